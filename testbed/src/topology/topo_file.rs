//! The `.topo` file format of uet-htsim. [`parse_topo`] documents it.

use thiserror::Error;
use weft_cc::{Rate, Span};

use super::{Keyword, ShapeError, ShapeField, Tier, Topology};
use weft_cc::units::scaled;

/// Why a `.topo` file is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{file}:{line}: {reason}")]
pub struct TopologyError {
    /// The file's name, as the caller gave it.
    pub file: String,
    /// The line, counted from 1.
    pub line: u32,
    /// The reason why the line is refused.
    pub reason: TopoReason,
}

/// Reasons to refuse a `.topo` file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TopoReason {
    /// A line starts with a word that is not a keyword.
    #[error("unknown word `{0}`")]
    UnknownWord(String),
    /// A keyword has no number.
    #[error("{0} needs a number")]
    NoValue(Keyword),
    /// A keyword has a value that is not allowed.
    #[error("{keyword} cannot be `{value}`")]
    BadValue {
        /// The keyword in front of the value.
        keyword: Keyword,
        /// The value as the file states it.
        value: String,
    },
    /// A line has more words than a keyword and a number.
    #[error("unexpected `{0}` at the end of the line")]
    TrailingWord(String),
    /// A keyword of the header is in a tier's section, or the reverse.
    #[error("{0} does not belong here")]
    Misplaced(Keyword),
    /// A keyword is given twice in the header or in one section.
    #[error("{0} is given twice")]
    Repeated(Keyword),
    /// A tier has two sections.
    #[error("tier {0} has two sections")]
    RepeatedTier(u8),
    /// A section is for a tier that the fabric does not have.
    #[error("there is no tier {0} in a fabric of {1} tiers")]
    NoSuchTier(u64, u8),
    /// The header lacks a keyword.
    #[error("{0} is missing in the header")]
    MissingInHeader(Keyword),
    /// A tier has no section.
    #[error("there is no section for tier {0}")]
    MissingTier(u8),
    /// A tier's section lacks a keyword.
    #[error("{1} is missing for tier {0}")]
    MissingInTier(u8, Keyword),
    /// The number of hosts is not a multiple of the pod size.
    #[error("{nodes} nodes do not fill pods of {podsize}")]
    PodsNotFull {
        /// Number of hosts.
        nodes: u32,
        /// Hosts in a pod.
        podsize: u32,
    },
    /// The stated oversubscription differs from that of the links.
    #[error("tier {tier} is said to be oversubscribed {stated}:1, but its links are {down} down, {up} up")]
    Oversubscription {
        /// The number of the tier.
        tier: u8,
        /// The stated ratio.
        stated: u32,
        /// Total bandwidth down of a switch.
        down: Rate,
        /// Total bandwidth up of a switch.
        up: Rate,
    },
    /// The numbers do not make a fabric.
    #[error(transparent)]
    Shape(#[from] ShapeError),
}

/// Parses the text of a `.topo` file. `file` names it in errors and becomes the topology's name.
///
/// Each line has one keyword and one number. `#` starts a comment; the case of keywords is ignored. The
/// header comes first, then one section per tier, each begun by `Tier N`:
///
/// | keyword | where | meaning | if missing |
/// |---|---|---|---|
/// | `Nodes` | header | number of hosts | refused |
/// | `Tiers` | header | 2 or 3 | refused |
/// | `Podsize` | header | hosts in a pod; all of them with two tiers | refused |
/// | `Downlink_speed_Gbps` | tier | rate of the links below the tier | refused |
/// | `Downlink_Latency_ns` | tier | propagation time of the links below the tier | refused |
/// | `Radix_Down` | tier | ports of a switch that lead down | refused |
/// | `Radix_Up` | tiers but the top | ports of a switch that lead up | refused |
/// | `Switch_Latency_ns` | tier | latency of a switch | 0 |
/// | `Bundle` | tiers but 0 | parallel links to each switch below | 1 |
/// | `Oversubscribed` | tiers but the top | bandwidth down over bandwidth up | 1 |
/// | `Queue_Down`, `Queue_Up` | tier | queue of a port, bytes | left to the user |
///
/// `Oversubscribed` is redundant: it is checked against the rates and radices. uet-htsim compares it with the
/// rounded ratio of the radices and with that of the bandwidths, so it accepts only files where the two
/// agree. Here the bandwidths decide, and every file that uet-htsim accepts is accepted. In other respects
/// this parser is stricter: it refuses unknown words in the header, repeated keywords and sections, sections
/// of tiers that do not exist, and numbers with trailing characters.
pub fn parse_topo(file: &str, text: &str) -> Result<Topology, TopologyError> {
    let fail = |(line, reason): Fault| TopologyError { file: file.to_owned(), line, reason };
    let draft = Draft::read(text).map_err(fail)?;
    draft.build(file).map_err(fail)
}

/// The line of an error, and the reason.
type Fault = (u32, TopoReason);

/// A number, and the line that gives it.
#[derive(Clone, Copy)]
struct Given {
    value: u64,
    line: u32,
}

/// The numbers given so far in the header or in a section.
#[derive(Clone, Default)]
struct Section {
    line: u32,
    given: [Option<Given>; Keyword::ALL.len()],
}

impl Section {
    fn get(&self, keyword: Keyword) -> Option<Given> {
        self.given[keyword as usize]
    }

    fn value_or(&self, keyword: Keyword, default: u64) -> u64 {
        self.get(keyword).map_or(default, |g| g.value)
    }

    fn line_of(&self, keyword: Keyword) -> u32 {
        self.get(keyword).map_or(self.line, |g| g.line)
    }

    fn set(&mut self, keyword: Keyword, given: Given) -> Result<(), Fault> {
        let slot = &mut self.given[keyword as usize];
        if slot.is_some() {
            return Err((given.line, TopoReason::Repeated(keyword)));
        }
        *slot = Some(given);
        Ok(())
    }

    /// Builds the tier `t` that the section describes.
    fn tier(&self, t: u8, top: bool) -> Result<Tier, Fault> {
        let need = |keyword| match self.get(keyword) {
            Some(given) => Ok(given.value),
            None => Err((self.line, TopoReason::MissingInTier(t, keyword))),
        };
        if let (true, Some(given)) = (top, self.get(Keyword::QueueUp)) {
            return Err((given.line, TopoReason::Misplaced(Keyword::QueueUp)));
        }
        Ok(Tier {
            down_rate: Rate::from_bps(need(Keyword::DownlinkSpeed)?),
            down_latency: Span::from_ns(need(Keyword::DownlinkLatency)?),
            switch_latency: Span::from_ns(self.value_or(Keyword::SwitchLatency, 0)),
            radix_down: need(Keyword::RadixDown)? as u32,
            radix_up: if top { self.value_or(Keyword::RadixUp, 0) } else { need(Keyword::RadixUp)? } as u32,
            bundle: self.value_or(Keyword::Bundle, 1) as u32,
            queue_down: self.get(Keyword::QueueDown).map(|g| g.value),
            queue_up: self.get(Keyword::QueueUp).map(|g| g.value),
        })
    }
}

/// The parsed file, before it is checked as a whole.
#[derive(Default)]
struct Draft {
    header: Section,
    tiers: [Option<Section>; 3],
    current: Option<usize>,
    last_line: u32,
}

impl Draft {
    fn read(text: &str) -> Result<Draft, Fault> {
        let mut draft = Draft::default();
        for (i, line) in text.lines().enumerate() {
            let number = u32::try_from(i + 1).unwrap_or(u32::MAX);
            draft.last_line = number;
            let content = line.split('#').next().unwrap_or_default();
            let mut words = content.split_whitespace();
            if let Some(word) = words.next() {
                draft.line(number, word, words.next(), words.next())?;
            }
        }
        Ok(draft)
    }

    fn line(&mut self, line: u32, word: &str, value: Option<&str>, rest: Option<&str>) -> Result<(), Fault> {
        let known = Keyword::ALL.iter().find(|(_, name)| name.eq_ignore_ascii_case(word));
        let Some(&(keyword, _)) = known else {
            return Err((line, TopoReason::UnknownWord(word.to_owned())));
        };
        let value = value.ok_or((line, TopoReason::NoValue(keyword)))?;
        if let Some(rest) = rest {
            return Err((line, TopoReason::TrailingWord(rest.to_owned())));
        }
        let bad = || (line, TopoReason::BadValue { keyword, value: value.to_owned() });
        let given = Given { value: number(keyword, value).ok_or_else(bad)?, line };
        if keyword == Keyword::Tier {
            return self.start_tier(given);
        }
        let in_header = matches!(keyword, Keyword::Nodes | Keyword::Tiers | Keyword::Podsize);
        match self.current.and_then(|t| self.tiers[t].as_mut()) {
            None if in_header => self.header.set(keyword, given),
            Some(section) if !in_header => section.set(keyword, given),
            _ => Err((line, TopoReason::Misplaced(keyword))),
        }
    }

    fn start_tier(&mut self, given: Given) -> Result<(), Fault> {
        let Given { value, line } = given;
        let count = self.header.value_or(Keyword::Tiers, 3).min(3);
        if value >= count {
            return Err((line, TopoReason::NoSuchTier(value, count as u8)));
        }
        let slot = &mut self.tiers[value as usize];
        if slot.is_some() {
            return Err((line, TopoReason::RepeatedTier(value as u8)));
        }
        *slot = Some(Section { line, ..Section::default() });
        self.current = Some(value as usize);
        Ok(())
    }

    fn build(&self, file: &str) -> Result<Topology, Fault> {
        let nodes = self.header_number(Keyword::Nodes)?;
        let tier_count = self.header_number(Keyword::Tiers)?;
        let podsize = self.header_number(Keyword::Podsize)?;
        if !(2..=3).contains(&tier_count) {
            let value = tier_count.to_string();
            let reason = TopoReason::BadValue { keyword: Keyword::Tiers, value };
            return Err((self.header.line_of(Keyword::Tiers), reason));
        }
        let missing = |t: usize| (self.last_line.max(1), TopoReason::MissingTier(t as u8));
        let sections = (0..tier_count as usize).map(|t| self.tiers[t].as_ref().ok_or(missing(t)));
        let sections = sections.collect::<Result<Vec<_>, _>>()?;
        let tiers = (0u8..).zip(&sections).map(|(t, section)| section.tier(t, t + 1 == tier_count as u8));
        let tiers = tiers.collect::<Result<Vec<_>, _>>()?;
        if podsize == 0 || nodes % podsize != 0 {
            let reason = TopoReason::PodsNotFull { nodes, podsize };
            return Err((self.header.line_of(Keyword::Podsize), reason));
        }
        check_oversubscription(&sections, &tiers)?;
        Topology::from_tiers(file, nodes, podsize, nodes / podsize, tiers)
            .map_err(|e| (self.line_of(e.field), TopoReason::Shape(e)))
    }

    fn header_number(&self, keyword: Keyword) -> Result<u32, Fault> {
        match self.header.get(keyword) {
            Some(given) => Ok(given.value as u32),
            None => Err((self.last_line.max(1), TopoReason::MissingInHeader(keyword))),
        }
    }

    fn line_of(&self, field: ShapeField) -> u32 {
        let section = match field.tier {
            None => Some(&self.header),
            Some(t) => self.tiers.get(usize::from(t)).and_then(Option::as_ref),
        };
        section.map_or(0, |s| s.line_of(field.keyword)).max(1)
    }
}

/// Checks the stated oversubscription of each section against the tiers' links.
fn check_oversubscription(sections: &[&Section], tiers: &[Tier]) -> Result<(), Fault> {
    for (t, (tier, section)) in tiers.iter().zip(sections).enumerate() {
        let stated = section.value_or(Keyword::Oversubscribed, 1);
        let line = section.line_of(Keyword::Oversubscribed);
        let Some(above) = tiers.get(t + 1) else {
            if stated != 1 {
                return Err((line, TopoReason::Misplaced(Keyword::Oversubscribed)));
            }
            continue;
        };
        let bandwidth = |radix: u32, rate: Rate| u128::from(radix) * u128::from(rate.as_bps());
        let down = bandwidth(tier.radix_down, tier.down_rate);
        let up = bandwidth(tier.radix_up, above.down_rate);
        if down != up * u128::from(stated) {
            let rate = |bps: u128| Rate::from_bps(u64::try_from(bps).unwrap_or(u64::MAX));
            let (tier, stated) = (t as u8, stated as u32);
            let reason = TopoReason::Oversubscription { tier, stated, down: rate(down), up: rate(up) };
            return Err((line, reason));
        }
    }
    Ok(())
}

/// Parses the number of `keyword`: rates may have decimals and are converted to bits per second, queue sizes
/// are bytes, and all others are whole numbers of 32 bits.
fn number(keyword: Keyword, text: &str) -> Option<u64> {
    match keyword {
        Keyword::DownlinkSpeed => scaled(text, 1_000_000_000).filter(|&bps| bps > 0),
        Keyword::QueueDown | Keyword::QueueUp => scaled(text, 1).filter(|&bytes| bytes > 0),
        Keyword::Tier | Keyword::DownlinkLatency | Keyword::SwitchLatency => whole(text),
        _ => whole(text).filter(|&n| n > 0),
    }
}

/// Parses an unsigned whole number of 32 bits.
fn whole(text: &str) -> Option<u64> {
    if text.contains('.') { None } else { scaled(text, 1).filter(|&n| n <= u64::from(u32::MAX)) }
}
