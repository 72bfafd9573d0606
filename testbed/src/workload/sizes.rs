//! Distributions of flow sizes: built-in ones and files of one's own.

use thiserror::Error;
use weft_cc::units::Size;
use weft_stack::rng::Rng;

use super::random::unit;

/// The largest size that a distribution may have, bytes. Above 2⁵³, fractions of a byte would get lost.
const MAX_SIZE: f64 = (1u64 << 53) as f64;

/// A distribution of flow sizes.
///
/// Its text has two numbers on each line, a size in bytes and the percentage of flows that are not larger:
///
/// ```text
/// # size  percent
/// 0       0
/// 10000   15
/// 30000   30.5
/// 1000000 100
/// ```
///
/// Neither column falls, and the last percentage is 100. Between two lines the distribution is linear. The percentage
/// of the first line is the share of flows of just that size; a size that stands on two lines has the share between
/// their percentages. `#` starts a comment. (The format is that of the traffic generators of HPCC and uet-htsim, which
/// allow no comments.)
#[derive(Clone, Debug, PartialEq)]
pub struct SizeDistribution {
    /// Size in bytes, and the share of flows that are not larger, in percent.
    points: Vec<(f64, f64)>,
}

/// Why the text of a distribution is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{file}:{line}: {reason}")]
pub struct SizesError {
    /// The file's name, as the caller gave it.
    pub file: String,
    /// The line, counted from 1.
    pub line: usize,
    /// The reason why the line is refused.
    pub reason: SizesReason,
}

/// Reasons to refuse a line of a distribution.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SizesReason {
    /// A word is not a size.
    #[error("`{0}` is not a size; expected a number of bytes from 0 to 2^53, such as 10000")]
    NotASize(String),
    /// A word is not a percentage.
    #[error("`{0}` is not a percentage; expected a number from 0 to 100, such as 97.5")]
    NotAPercentage(String),
    /// The line has no percentage.
    #[error("`{0}` stands alone; expected a size and a percentage")]
    Alone(String),
    /// The line has a third word.
    #[error("`{0}` follows the percentage; expected the end of the line")]
    TooMany(String),
    /// A size is below that of the line before.
    #[error("the size {0} is below that of the line before; expected sizes that do not fall")]
    FallingSize(String),
    /// A percentage is below that of the line before.
    #[error("{0} % is below the percentage of the line before; expected percentages that do not fall")]
    FallingShare(String),
    /// The last percentage is not 100.
    #[error("the last percentage is {0}; expected 100")]
    Incomplete(String),
    /// There is no line with numbers.
    #[error("the file has no sizes; expected lines with a size and a percentage")]
    Empty,
}

/// A distribution that needs no file.
#[derive(Clone, Copy, Debug)]
pub struct BuiltInSizes {
    /// Its name, which is not case-sensitive.
    pub name: &'static str,
    /// What was measured.
    pub about: &'static str,
    text: &'static str,
}

/// The distributions that need no file. They come from the artifact of Uno (SC 2025); see `testbed/data/README.md` for
/// their licence.
pub const BUILT_IN_SIZES: &[BuiltInSizes] = &[
    BuiltInSizes {
        name: "GoogleRPC2008",
        about: "RPCs in a Google data centre, 2008",
        text: include_str!("../../data/flow-sizes/GoogleRPC2008.txt"),
    },
    BuiltInSizes {
        name: "FbHdp",
        about: "Hadoop at Facebook",
        text: include_str!("../../data/flow-sizes/FbHdp_distribution.txt"),
    },
    BuiltInSizes {
        name: "WebSearch",
        about: "web search, as in DCTCP (SIGCOMM 2010)",
        text: include_str!("../../data/flow-sizes/WebSearch_distribution.txt"),
    },
    BuiltInSizes {
        name: "AliInterDC2021",
        about: "between data centres of Alibaba, 2021",
        text: include_str!("../../data/flow-sizes/AliInterDC2021.txt"),
    },
    BuiltInSizes {
        name: "AliStorage2019",
        about: "storage at Alibaba, 2019",
        text: include_str!("../../data/flow-sizes/AliStorage2019.txt"),
    },
];

impl SizeDistribution {
    /// All flows have `bytes` bytes.
    pub fn fixed(bytes: u64) -> SizeDistribution {
        SizeDistribution { points: vec![(bytes as f64, 100.0)] }
    }

    /// The built-in distribution `name`; `None` if there is no such one.
    pub fn built_in(name: &str) -> Option<SizeDistribution> {
        let known = BUILT_IN_SIZES.iter().find(|known| known.name.eq_ignore_ascii_case(name))?;
        SizeDistribution::parse(known.name, known.text).ok()
    }

    /// Reads the text of a distribution. `file` names it in errors.
    ///
    /// # Errors
    /// The first line that is wrong, and what was expected.
    pub fn parse(file: &str, text: &str) -> Result<SizeDistribution, SizesError> {
        let fault = |line, reason| SizesError { file: file.to_owned(), line, reason };
        let mut points: Vec<(f64, f64)> = Vec::new();
        let mut last = 1;
        for (number, line) in (1..).zip(text.lines()) {
            let Some(point) = parse_line(line, points.last()).map_err(|reason| fault(number, reason))? else {
                continue;
            };
            points.push(point);
            last = number;
        }
        match points.last() {
            None => Err(fault(1, SizesReason::Empty)),
            Some((_, 100.0)) => Ok(SizeDistribution { points }),
            Some((_, share)) => Err(fault(last, SizesReason::Incomplete(share.to_string()))),
        }
    }

    /// The mean size, bytes.
    pub fn mean(&self) -> f64 {
        let steps = self.points.windows(2).map(|pair| {
            let [(low, below), (high, upto)] = [pair[0], pair[1]];
            (upto - below) / 100.0 * (low + high) / 2.0
        });
        self.points[0].0 * self.points[0].1 / 100.0 + steps.sum::<f64>()
    }

    /// Draws a size: whole bytes, at least 1 unless all flows have no bytes.
    pub fn draw(&self, rng: &mut Rng) -> u64 {
        if let [(size, _)] = self.points[..] {
            return size as u64;
        }
        let percent = unit(rng) * 100.0;
        let above = self.points.partition_point(|(_, share)| *share <= percent);
        let (high, upto) = self.points[above.min(self.points.len() - 1)];
        let size = match above.checked_sub(1).map(|i| self.points[i]) {
            None => high,
            Some((low, below)) => low + (high - low) * (percent - below) / (upto - below),
        };
        ((size + 0.5) as u64).max(1)
    }

    /// The share of flows that have at most `bytes` bytes, from 0 to 1.
    pub fn share_up_to(&self, bytes: f64) -> f64 {
        let above = self.points.partition_point(|(size, _)| *size <= bytes);
        let percent = match (above.checked_sub(1).map(|i| self.points[i]), self.points.get(above)) {
            (None, _) => 0.0,
            (Some((_, share)), None) => share,
            (Some((low, below)), Some((high, upto))) => below + (upto - below) * (bytes - low) / (high - low),
        };
        percent / 100.0
    }

    /// Writes the distribution as text that [`SizeDistribution::parse`] reads as the same.
    pub fn write(&self) -> String {
        self.points.iter().map(|(size, share)| format!("{size} {share}\n")).collect()
    }
}

/// The point on a line, which is checked against the point before it; `None` if the line is empty.
fn parse_line(line: &str, before: Option<&(f64, f64)>) -> Result<Option<(f64, f64)>, SizesReason> {
    let content = line.split('#').next().unwrap_or_default();
    let mut words = content.split_ascii_whitespace();
    let Some(first) = words.next() else { return Ok(None) };
    let size = number(first, MAX_SIZE).ok_or_else(|| SizesReason::NotASize(first.to_owned()))?;
    let second = words.next().ok_or_else(|| SizesReason::Alone(first.to_owned()))?;
    let share = number(second, 100.0).ok_or_else(|| SizesReason::NotAPercentage(second.to_owned()))?;
    if let Some(word) = words.next() {
        return Err(SizesReason::TooMany(word.to_owned()));
    }
    match before {
        Some((low, _)) if size < *low => Err(SizesReason::FallingSize(first.to_owned())),
        Some((_, below)) if share < *below => Err(SizesReason::FallingShare(second.to_owned())),
        _ => Ok(Some((size, share))),
    }
}

/// A plain decimal number up to `most`, without sign or exponent.
fn number(text: &str, most: f64) -> Option<f64> {
    let plain = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    text.parse().ok().filter(|n| plain && *n <= most)
}

/// Sizes as a description names them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// All flows have the same number of bytes.
    Fixed(u64),
    /// A built-in distribution, by its name.
    BuiltIn(&'static str),
    /// The distribution in the file of this name.
    File(String),
}

impl Sizes {
    /// Reads a size in bytes, the name of a built-in distribution, or the name of a file.
    pub fn parse(text: &str) -> Result<Sizes, String> {
        if let Some(known) = BUILT_IN_SIZES.iter().find(|known| known.name.eq_ignore_ascii_case(text)) {
            return Ok(Sizes::BuiltIn(known.name));
        }
        if let Ok(bytes) = weft_cc::units::parse_bytes(text) {
            return Ok(Sizes::Fixed(bytes));
        }
        if text.contains(['.', '/']) {
            return Ok(Sizes::File(text.to_owned()));
        }
        let names: Vec<&str> = BUILT_IN_SIZES.iter().map(|known| known.name).collect();
        Err(format!(
            "`{text}` is no size; expected bytes such as 64KiB, a file such as sizes.txt, or one of: {}",
            names.join(", ")
        ))
    }

    /// The distribution. `read` returns the text of a file, or why it cannot be read.
    pub(super) fn load(
        &self,
        read: &dyn Fn(&str) -> Result<String, String>,
    ) -> Result<SizeDistribution, String> {
        match self {
            Sizes::Fixed(bytes) => Ok(SizeDistribution::fixed(*bytes)),
            Sizes::BuiltIn(name) => {
                SizeDistribution::built_in(name).ok_or_else(|| format!("no distribution {name}"))
            }
            Sizes::File(name) => SizeDistribution::parse(name, &read(name)?).map_err(|e| e.to_string()),
        }
    }
}

impl core::fmt::Display for Sizes {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Sizes::Fixed(bytes) => Size(*bytes).fmt(f),
            Sizes::BuiltIn(name) => f.write_str(name),
            Sizes::File(name) => f.write_str(name),
        }
    }
}
