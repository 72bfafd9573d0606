//! Links that are slow from the start, many at once.

use core::fmt;
use core::str::FromStr;

use thiserror::Error;

use crate::sim::{Share, SlowPort};
use crate::topology::Topology;
use weft_cc::units::scaled;

/// Slows the first uplinks of the switches of a tier, in both directions or in one. The queues before them and their
/// marking thresholds shrink by the same factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Degradation {
    /// The tier of the switches. The top tier has no uplinks.
    pub tier: u8,
    /// The only switch of that tier whose uplinks are slow; `None`: those of all its switches are.
    pub switch: Option<u32>,
    /// Number of uplinks of each switch, counted from the first.
    pub links: u32,
    /// Which directions of each link are slow.
    pub direction: SlowDirection,
    /// The fraction of their rate that remains.
    pub share: Share,
}

/// The directions of a link between two tiers that are slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SlowDirection {
    /// Both.
    #[default]
    Both,
    /// Away from the hosts.
    Up,
    /// Towards the hosts.
    Down,
}

/// Why a degradation is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{word}`: expected {expected}")]
pub struct DegradationError {
    /// The wrong word, or the whole text if something is missing.
    pub word: String,
    /// Description of what was expected.
    pub expected: String,
}

/// The remaining rate if none is given, as in uet-htsim.
const DEFAULT_MILLIONTHS: u64 = 250_000;

impl FromStr for Degradation {
    type Err = DegradationError;

    /// Parses `tier=T[,switch=S],links=N[,dir=up|down][,rate=P%]`. Without `switch` it means all switches of the tier,
    /// without `dir` both directions, and without `rate` 25 %.
    fn from_str(text: &str) -> Result<Degradation, DegradationError> {
        let form =
            "tier=T,switch=S,links=N,dir=up|down,rate=P%, each at most once, such as tier=0,links=1,rate=25%";
        let (mut tier, mut switch, mut links, mut direction, mut share) = (None, None, None, None, None);
        for word in text.split(',') {
            let taken = match word.split_once('=') {
                Some(("tier", value)) => tier.replace(whole(word, value)?).is_some(),
                Some(("switch", value)) => switch.replace(whole(word, value)?).is_some(),
                Some(("dir", value)) => direction.replace(one_way(word, value)?).is_some(),
                Some(("links", value)) => links.replace(whole(word, value)?).is_some(),
                Some(("rate", value)) => share.replace(percent(word, value)?).is_some(),
                _ => return Err(wrong(word, form)),
            };
            if taken {
                return Err(wrong(word, form));
            }
        }
        let (Some(tier), Some(links)) = (tier, links) else {
            return Err(wrong(text, form));
        };
        let share = share.or_else(|| Share::from_millionths(DEFAULT_MILLIONTHS));
        let share = share.ok_or_else(|| wrong(text, form))?;
        Ok(Degradation { tier, switch, links, direction: direction.unwrap_or_default(), share })
    }
}

impl fmt::Display for Degradation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millionths = self.share.millionths();
        let (percent, rest) = (millionths / 10_000, millionths % 10_000);
        write!(f, "tier={}", self.tier)?;
        if let Some(switch) = self.switch {
            write!(f, ",switch={switch}")?;
        }
        write!(f, ",links={}", self.links)?;
        match self.direction {
            SlowDirection::Both => {}
            SlowDirection::Up => write!(f, ",dir=up")?,
            SlowDirection::Down => write!(f, ",dir=down")?,
        }
        write!(f, ",rate={percent}")?;
        if rest > 0 {
            write!(f, ".{}", format!("{rest:04}").trim_end_matches('0'))?;
        }
        write!(f, "%")
    }
}

impl Degradation {
    /// The ports of `fabric` that become slow: those that send in the slow directions.
    ///
    /// # Errors
    /// `fabric` is a graph or has no such tier below the top, no such switch, or its switches have fewer uplinks.
    pub fn ports(&self, fabric: &Topology) -> Result<Vec<SlowPort>, DegradationError> {
        let tiers = fabric.tiers();
        let Some((_, below_top)) = tiers.split_last() else {
            let expected =
                "a folded Clos, as a graph has no tiers; link=A-B in a link event names a link of a graph";
            return Err(wrong(&format!("tier={}", self.tier), expected));
        };
        let Some(tier) = below_top.get(usize::from(self.tier)) else {
            let expected = format!("a tier below {}, the top", below_top.len());
            return Err(wrong(&format!("tier={}", self.tier), &expected));
        };
        if self.links > tier.radix_up {
            let expected =
                format!("at most {}, the number of uplinks of a switch of tier {}", tier.radix_up, self.tier);
            return Err(wrong(&format!("links={}", self.links), &expected));
        }
        let count = fabric.switches_in(self.tier);
        let numbers = match self.switch {
            None => 0..count,
            Some(switch) if switch < count => switch..switch + 1,
            Some(switch) => {
                let expected =
                    format!("a switch below {count}, the number of switches of tier {}", self.tier);
                return Err(wrong(&format!("switch={switch}"), &expected));
            }
        };
        let switches = numbers.filter_map(|n| fabric.switch_at(self.tier, n));
        let up = switches.flat_map(|switch| fabric.up_ports(switch).iter().take(self.links as usize));
        let slow = up.flat_map(|port| {
            let (up, down) = (port, fabric.port(port).reverse);
            match self.direction {
                SlowDirection::Both => [Some(up), Some(down)],
                SlowDirection::Up => [Some(up), None],
                SlowDirection::Down => [None, Some(down)],
            }
        });
        Ok(slow.flatten().map(|port| SlowPort { port, share: self.share }).collect())
    }
}

fn wrong(word: &str, expected: &str) -> DegradationError {
    DegradationError { word: word.to_owned(), expected: expected.to_owned() }
}

fn whole<T: FromStr>(word: &str, value: &str) -> Result<T, DegradationError> {
    let digits = Some(value).filter(|v| v.bytes().all(|b| b.is_ascii_digit()));
    digits.and_then(|v| v.parse().ok()).ok_or_else(|| wrong(word, "a whole number"))
}

fn one_way(word: &str, value: &str) -> Result<SlowDirection, DegradationError> {
    match value {
        "up" => Ok(SlowDirection::Up),
        "down" => Ok(SlowDirection::Down),
        _ => Err(wrong(word, "up, away from the hosts, or down, towards them; both without it")),
    }
}

fn percent(word: &str, value: &str) -> Result<Share, DegradationError> {
    let millionths = value.strip_suffix('%').and_then(|number| scaled(number, 10_000));
    millionths
        .and_then(Share::from_millionths)
        .ok_or_else(|| wrong(word, "a percentage above 0 %, at most 100 %, with at most four decimals"))
}
