//! Options that say something for each zone of destinations: `VALUE` for all, or `ZONE=VALUE,…`.

use crate::choices::Switch;
use crate::{Failure, units};
use clap::ValueEnum;
use std::str::FromStr;
use weft_cc::{CcChoice, Span};
use weft_stack::spray::LbChoice;
use weft_stack::worker::{IpPrefix, PrefixError};
use weft_testbed::sim::Algorithms;

/// The options that choose algorithms, which zones may have of their own.
pub(crate) struct AlgorithmOptions<'a> {
    cc: ByZone<'a>,
    cc_set: &'a [(String, String)],
    lb: ByZone<'a>,
    lb_set: &'a [(String, String)],
    /// The first option that names a zone.
    names_zones: Option<&'static str>,
}

impl<'a> AlgorithmOptions<'a> {
    /// Takes the options `--cc` and `--cc-set`, `--lb` and `--lb-set` apart; `zones` are the zones that they may name.
    ///
    /// # Errors
    /// Options that name zones which do not exist, or anything twice.
    pub(crate) fn new(
        (cc, cc_set): (&'a str, &'a [(String, String)]),
        (lb, lb_set): (&'a str, &'a [(String, String)]),
        zones: &[&str],
    ) -> Result<AlgorithmOptions<'a>, Failure> {
        let parse = |option, text| ByZone::parse(text, zones).map_err(|why| usage(option, why));
        let (cc, lb) = (parse("--cc", cc)?, parse("--lb", lb)?);
        let named = [
            ("--cc", cc.names_zones()),
            ("--lb", lb.names_zones()),
            ("--cc-set", check_settings("--cc-set", cc_set, zones)?),
            ("--lb-set", check_settings("--lb-set", lb_set, zones)?),
        ];
        let names_zones = named.into_iter().find(|(_, names)| *names).map(|(option, _)| option);
        Ok(AlgorithmOptions { cc, cc_set, lb, lb_set, names_zones })
    }

    /// The first option that names a zone, if one does.
    pub(crate) fn names_zones(&self) -> Option<&'static str> {
        self.names_zones
    }

    /// The algorithms for `zone`; for no zone in particular if that is empty.
    ///
    /// # Errors
    /// Names and parameters that do not exist.
    pub(crate) fn of(&self, zone: &str) -> Result<Algorithms, Failure> {
        let mut cc = CcChoice::parse(self.cc.of(zone).unwrap_or("nscc")).map_err(|e| usage("--cc", e))?;
        for (key, value) in settings_of(self.cc_set, zone) {
            cc.set(key, value).map_err(|e| usage("--cc-set", e))?;
        }
        let mut lb = LbChoice::parse(self.lb.of(zone).unwrap_or("mixed")).map_err(|e| usage("--lb", e))?;
        for (key, value) in settings_of(self.lb_set, zone) {
            lb.set(key, value).map_err(|e| usage("--lb-set", e))?;
        }
        Ok(Algorithms { cc, lb })
    }
}

/// Peers that are a zone: those whose IP addresses begin with a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PrefixZone {
    pub(crate) name: String,
    pub(crate) prefix: IpPrefix,
    /// The round-trip time of the idle network to these peers.
    pub(crate) rtt: Option<Span>,
    /// The first retransmission timeout.
    pub(crate) rto: Option<Span>,
    /// Whether switches on the way trim.
    pub(crate) trim: Option<Switch>,
}

impl FromStr for PrefixZone {
    type Err = String;

    fn from_str(text: &str) -> Result<PrefixZone, String> {
        const FORM: &str = "expected ZONE=PREFIX[,rtt=TIME][,rto=TIME][,trim=on|off]";
        let mut parts = text.split(',');
        let named = parts.next().and_then(|first| first.split_once('='));
        let (name, prefix) = named.filter(|(name, _)| !name.is_empty()).ok_or(FORM)?;
        let prefix = prefix.parse().map_err(|e: PrefixError| e.to_string())?;
        let mut zone = PrefixZone { name: name.to_owned(), prefix, rtt: None, rto: None, trim: None };
        for part in parts {
            let time = |value| units::span(value).map(Some).map_err(|e| e.to_string());
            match part.split_once('=').ok_or(FORM)? {
                ("rtt", value) => zone.rtt = time(value)?,
                ("rto", value) => zone.rto = time(value)?,
                ("trim", value) => zone.trim = Some(Switch::from_str(value, false)?),
                _ => return Err(format!("{part:?}: {FORM}")),
            }
        }
        Ok(zone)
    }
}

fn usage(option: &str, error: impl std::fmt::Display) -> Failure {
    Failure::Usage(format!("{option}: {error}"))
}

/// A value for each zone that an option names, and one for all others.
#[derive(Debug, PartialEq, Eq)]
struct ByZone<'a> {
    others: Option<&'a str>,
    named: Vec<(&'a str, &'a str)>,
}

impl<'a> ByZone<'a> {
    /// Parses `VALUE`, `ZONE=VALUE,…` or `VALUE,ZONE=VALUE,…`; there are the zones `zones`.
    ///
    /// # Errors
    /// A text that does not follow this grammar, or names a zone that does not exist.
    fn parse(text: &'a str, zones: &[&str]) -> Result<ByZone<'a>, String> {
        let mut parsed = ByZone { others: None, named: Vec::new() };
        for (at, part) in text.split(',').enumerate() {
            match part.split_once('=') {
                Some((zone, value)) => {
                    check(zone, zones)?;
                    if parsed.named.iter().any(|(other, _)| *other == zone) {
                        return Err(format!("{zone} is given twice; expected each zone once"));
                    }
                    parsed.named.push((zone, value));
                }
                None if at == 0 => parsed.others = Some(part),
                None => return Err(format!("'{part}' is for no zone; expected ZONE={part}")),
            }
        }
        Ok(parsed)
    }

    /// Whether zones are told apart.
    fn names_zones(&self) -> bool {
        !self.named.is_empty()
    }

    /// The value for `zone`, if there is one.
    fn of(&self, zone: &str) -> Option<&'a str> {
        let named = self.named.iter().find(|(name, _)| *name == zone);
        named.map(|(_, value)| *value).or(self.others)
    }
}

/// Refuses settings (`KEY=VALUE` for all zones, or `ZONE.KEY=VALUE`) that are given twice or for a zone that does not
/// exist. Returns whether zones are told apart.
///
/// # Errors
/// The first such setting, of `option`.
fn check_settings(option: &str, settings: &[(String, String)], zones: &[&str]) -> Result<bool, Failure> {
    let refuse = |why: String| usage(option, why);
    for (at, (key, _)) in settings.iter().enumerate() {
        if settings[..at].iter().any(|(earlier, _)| earlier == key) {
            return Err(refuse(format!("{key} is given twice; expected each key once")));
        }
        if let Some((zone, _)) = key.split_once('.') {
            check(zone, zones).map_err(refuse)?;
        }
    }
    Ok(settings.iter().any(|(key, _)| key.contains('.')))
}

/// The settings for `zone`, by key, those for all zones before those for it alone.
fn settings_of<'a>(settings: &'a [(String, String)], zone: &str) -> Vec<(&'a str, &'a str)> {
    let (alone, all): (Vec<_>, Vec<_>) = settings
        .iter()
        .map(|(key, value)| (key.split_once('.'), (key.as_str(), value.as_str())))
        .partition(|(split, _)| split.is_some());
    let alone = alone.into_iter().filter_map(|(split, (_, value))| {
        let (name, key) = split?;
        (name == zone).then_some((key, value))
    });
    all.into_iter().map(|(_, setting)| setting).chain(alone).collect()
}

fn check(zone: &str, zones: &[&str]) -> Result<(), String> {
    match zones {
        zones if zones.contains(&zone) => Ok(()),
        [] => Err(format!("unknown zone '{zone}'; there are none")),
        zones => Err(format!("unknown zone '{zone}'; there are: {}", zones.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZONES: &[&str] = &["intra", "inter"];

    fn of<'a>(text: &'a str, zone: &str) -> Option<&'a str> {
        ByZone::parse(text, ZONES).unwrap().of(zone)
    }

    #[test]
    fn a_value_is_for_all_zones_or_for_those_that_it_names() {
        assert_eq!((of("nscc", "intra"), of("nscc", "inter")), (Some("nscc"), Some("nscc")));
        let both = "intra=median(swift),inter=nscc+rccc";
        assert_eq!((of(both, "intra"), of(both, "inter")), (Some("median(swift)"), Some("nscc+rccc")));
        assert_eq!((of("a,inter=b", "intra"), of("a,inter=b", "inter")), (Some("a"), Some("b")));
        assert_eq!((of("inter=b", "intra"), of("inter=b", "inter")), (None, Some("b")));
        assert!(!ByZone::parse("nscc", ZONES).unwrap().names_zones());
        assert!(ByZone::parse(both, ZONES).unwrap().names_zones());
    }

    #[test]
    fn a_zone_of_peers_has_a_name_a_prefix_and_its_network() {
        let zone: PrefixZone = "wan=10.2.0.0/16,rtt=30ms,trim=off".parse().unwrap();
        assert_eq!((zone.name.as_str(), zone.prefix.to_string().as_str()), ("wan", "10.2.0.0/16"));
        assert_eq!((zone.rtt, zone.rto, zone.trim), (Some(Span::from_ms(30)), None, Some(Switch::Off)));
        for text in ["wan", "=10.2.0.0/16", "wan=10.2.0.0", "wan=10.2.0.0/16,loss=1", "wan=10.2.0.0/16,rtt"] {
            assert!(text.parse::<PrefixZone>().is_err(), "{text}");
        }
    }

    #[test]
    fn refusals_say_what_is_expected() {
        let refusal = |text| ByZone::parse(text, ZONES).unwrap_err();
        assert_eq!(refusal("wan=nscc"), "unknown zone 'wan'; there are: intra, inter");
        assert_eq!(ByZone::parse("wan=nscc", &[]).unwrap_err(), "unknown zone 'wan'; there are none");
        assert_eq!(refusal("intra=a,intra=b"), "intra is given twice; expected each zone once");
        assert_eq!(refusal("a,b"), "'b' is for no zone; expected ZONE=b");
    }

    #[test]
    fn settings_are_for_all_zones_or_for_one() {
        let settings = |all: &[(&str, &str)]| -> Vec<(String, String)> {
            all.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
        };
        let given = settings(&[("inter.eta", "2"), ("eta", "1"), ("gamma", "3")]);
        assert_eq!(settings_of(&given, "intra"), [("eta", "1"), ("gamma", "3")]);
        assert_eq!(settings_of(&given, "inter"), [("eta", "1"), ("gamma", "3"), ("eta", "2")]);
        assert!(check_settings("--cc-set", &given, ZONES).unwrap());
        assert!(!check_settings("--cc-set", &given[1..], ZONES).unwrap());
        let refusal = |all| check_settings("--cc-set", &settings(all), ZONES).unwrap_err().to_string();
        assert_eq!(refusal(&[("wan.eta", "1")]), "--cc-set: unknown zone 'wan'; there are: intra, inter");
        assert_eq!(
            refusal(&[("eta", "1"), ("eta", "2")]),
            "--cc-set: eta is given twice; expected each key once"
        );
    }
}
