//! Named parameters of algorithms: one table row each, set from text as `key=value`.

use crate::Span;

/// One parameter of the configuration `C`.
pub(crate) struct Setting<C> {
    pub(crate) key: &'static str,
    /// What values look like, to finish the sentence "expected …".
    pub(crate) expected: &'static str,
    pub(crate) about: &'static str,
    /// Stores the value; false if it is not one of those expected.
    pub(crate) set: fn(&mut C, &str) -> bool,
}

/// One parameter as shown to people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettingInfo {
    /// Its name.
    pub key: &'static str,
    /// What its values look like.
    pub expected: &'static str,
    /// What it does, its default included.
    pub about: &'static str,
}

impl<C> Setting<C> {
    pub(crate) fn info(&self) -> SettingInfo {
        SettingInfo { key: self.key, expected: self.expected, about: self.about }
    }
}

/// Outcome of looking a key up in one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Applied {
    Done,
    NoSuchKey,
    BadValue { expected: &'static str },
}

pub(crate) fn apply<C>(table: &[Setting<C>], config: &mut C, key: &str, value: &str) -> Applied {
    match table.iter().find(|s| s.key == key) {
        None => Applied::NoSuchKey,
        Some(s) if (s.set)(config, value.trim()) => Applied::Done,
        Some(s) => Applied::BadValue { expected: s.expected },
    }
}

/// Stores `parsed` in `slot`; false if there is none.
pub(crate) fn store<T>(slot: &mut T, parsed: Option<T>) -> bool {
    parsed.map(|value| *slot = value).is_some()
}

/// A number from `low` to `high`, both included.
pub(crate) fn number(text: &str, low: f64, high: f64) -> Option<f64> {
    text.parse::<f64>().ok().filter(|v| (low..=high).contains(v))
}

/// A whole number from `low` to `high`, both included.
pub(crate) fn whole(text: &str, low: u64, high: u64) -> Option<u64> {
    text.parse::<u64>().ok().filter(|v| (low..=high).contains(v))
}

/// `true` or `false`.
pub(crate) fn flag(text: &str) -> Option<bool> {
    text.parse().ok()
}

/// A length of time above zero with its unit: `750ns`, `12.5us`, `2ms`, `1s`; up to 10 minutes.
pub(crate) fn span(text: &str) -> Option<Span> {
    const UNITS: [(&str, f64); 5] = [("ps", 1.0), ("ns", 1e3), ("us", 1e6), ("ms", 1e9), ("s", 1e12)];
    let (digits, scale) = UNITS.iter().find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, scale)))?;
    let ps = number(digits.trim(), 0.0, 6e14)? * scale;
    (1.0..=6e14).contains(&ps).then(|| Span::from_ps(ps as u64))
}

/// A positive number of bytes: `65536`, `64KiB`, `1.5MiB`, `64kB`, `2MB`; up to 1 GiB.
pub(crate) fn bytes(text: &str) -> Option<u64> {
    const UNITS: [(&str, f64); 5] =
        [("KiB", 1024.0), ("MiB", 1_048_576.0), ("kB", 1e3), ("MB", 1e6), ("B", 1.0)];
    let unit = UNITS.iter().find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, *scale)));
    let (digits, scale) = unit.unwrap_or((text, 1.0));
    let value = number(digits.trim(), 0.0, 1_073_741_824.0)? * scale;
    (1.0..=1_073_741_824.0).contains(&value).then_some(value as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_carry_units_and_are_range_checked() {
        assert_eq!(span("12.5us"), Some(Span::from_ns(12_500)));
        assert_eq!(span("7 ms"), Some(Span::from_ms(7)));
        assert_eq!(span("3s"), Some(Span::from_ms(3_000)));
        assert_eq!(bytes("64KiB"), Some(65_536));
        assert_eq!(bytes("1.5MB"), Some(1_500_000));
        assert_eq!(bytes("4096"), Some(4_096));
        assert_eq!(number("0.5", 0.0, 1.0), Some(0.5));
        for bad in ["", "12", "us", "-1us", "0us", "NaNus", "infs", "99999999s"] {
            assert_eq!(span(bad), None, "{bad:?}");
        }
        for bad in ["", "0", "-3", "NaN", "inf", "2000MiB", "KiB"] {
            assert_eq!(bytes(bad), None, "{bad:?}");
        }
        for bad in ["", "NaN", "inf", "1.01", "-0.1", "x"] {
            assert_eq!(number(bad, 0.0, 1.0), None, "{bad:?}");
        }
    }
}
