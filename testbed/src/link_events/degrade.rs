//! Links that are slow from the start, many at once.

use core::fmt;
use core::str::FromStr;

use thiserror::Error;

use crate::sim::{Share, SlowPort};
use crate::topology::Topology;
use weft_cc::units::scaled;

/// Slows the first uplinks of every switch of a tier, in both directions. Their queues and marking thresholds
/// shrink by the same factor.
///
/// In a fabric of two tiers, `tier=0,links=N` does the same as `-failed N` in uet-htsim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Degradation {
    /// The tier of the switches. The top tier has no uplinks.
    pub tier: u8,
    /// Number of uplinks of each switch, counted from the first.
    pub links: u32,
    /// The fraction of their rate that remains.
    pub share: Share,
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

    /// Parses `tier=T,links=N,rate=P%`. Without `rate`, it is 25 %.
    fn from_str(text: &str) -> Result<Degradation, DegradationError> {
        let form = "tier=T,links=N,rate=P%, each once, such as tier=0,links=1,rate=25%";
        let (mut tier, mut links, mut share) = (None, None, None);
        for word in text.split(',') {
            let taken = match word.split_once('=') {
                Some(("tier", value)) => tier.replace(whole(word, value)?).is_some(),
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
        Ok(Degradation { tier, links, share })
    }
}

impl fmt::Display for Degradation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millionths = self.share.millionths();
        let (percent, rest) = (millionths / 10_000, millionths % 10_000);
        write!(f, "tier={},links={},rate={percent}", self.tier, self.links)?;
        if rest > 0 {
            write!(f, ".{}", format!("{rest:04}").trim_end_matches('0'))?;
        }
        write!(f, "%")
    }
}

impl Degradation {
    /// The ports of `fabric` that become slow, for both directions of each link.
    ///
    /// # Errors
    /// `fabric` has no such tier below the top, or its switches have fewer uplinks.
    pub fn ports(&self, fabric: &Topology) -> Result<Vec<SlowPort>, DegradationError> {
        let tiers = fabric.tiers();
        let Some((_, below_top)) = tiers.split_last() else { return Ok(Vec::new()) };
        let Some(tier) = below_top.get(usize::from(self.tier)) else {
            let expected = format!("a tier below {}, the top", below_top.len());
            return Err(wrong(&format!("tier={}", self.tier), &expected));
        };
        if self.links > tier.radix_up {
            let expected =
                format!("at most {}, the number of uplinks of a switch of tier {}", tier.radix_up, self.tier);
            return Err(wrong(&format!("links={}", self.links), &expected));
        }
        let switches = (0..fabric.switches_in(self.tier)).filter_map(|n| fabric.switch_at(self.tier, n));
        let up = switches.flat_map(|switch| fabric.up_ports(switch).iter().take(self.links as usize));
        let both = up.flat_map(|port| [port, fabric.port(port).reverse]);
        Ok(both.map(|port| SlowPort { port, share: self.share }).collect())
    }
}

fn wrong(word: &str, expected: &str) -> DegradationError {
    DegradationError { word: word.to_owned(), expected: expected.to_owned() }
}

fn whole<T: FromStr>(word: &str, value: &str) -> Result<T, DegradationError> {
    let digits = Some(value).filter(|v| v.bytes().all(|b| b.is_ascii_digit()));
    digits.and_then(|v| v.parse().ok()).ok_or_else(|| wrong(word, "a whole number"))
}

fn percent(word: &str, value: &str) -> Result<Share, DegradationError> {
    let millionths = value.strip_suffix('%').and_then(|number| scaled(number, 10_000));
    millionths
        .and_then(Share::from_millionths)
        .ok_or_else(|| wrong(word, "a percentage above 0 %, at most 100 %, with at most four decimals"))
}
