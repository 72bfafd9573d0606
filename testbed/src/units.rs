//! Quantities as people write them: rates, times and sizes with a unit.
//!
//! | quantity | units | examples |
//! |---|---|---|
//! | rate | `k M G T`, optionally followed by `bps`, `bit/s` or `b/s` | `100G`, `2.5Gbps` |
//! | time | `ps ns us µs ms s` | `1us`, `600ns` |
//! | size | `B kB MB GB` (powers of 1000), `KiB MiB GiB` (powers of 1024), `k M G` as `kB MB GB`, or none | `2MiB`, `2000000` |
//!
//! Numbers are decimal and exact: what cannot be represented in whole bits per second, picoseconds
//! or bytes is refused rather than rounded. A zero needs no unit.

use thiserror::Error;
use weft_cc::{Rate, Span};

/// Why a quantity could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{text}` is not {expected}")]
pub struct UnitError {
    text: String,
    expected: &'static str,
}

/// Reads a rate such as `100G` or `2.5Gbit/s`; zero is refused.
pub fn parse_rate(text: &str) -> Result<Rate, UnitError> {
    let expected = "a rate above zero (such as 100G, 2.5Gbps)";
    let parsed = split(text).and_then(|(number, unit)| {
        let prefix = ["bps", "bit/s", "b/s"].iter().find_map(|s| unit.strip_suffix(s)).unwrap_or(unit);
        let factor = match prefix {
            "" if prefix != unit => 1,
            "k" | "K" => 1_000,
            "M" => 1_000_000,
            "G" => 1_000_000_000,
            "T" => 1_000_000_000_000,
            _ => return None,
        };
        scaled(number, factor)
    });
    parsed.filter(|&bps| bps > 0).map(Rate::from_bps).ok_or(UnitError { text: text.into(), expected })
}

/// Reads a length of time such as `1us`.
pub fn parse_span(text: &str) -> Result<Span, UnitError> {
    let expected = "a time in whole picoseconds (such as 1us, 600ns)";
    let parsed = split(text).and_then(|(number, unit)| {
        let factor = match unit {
            "ps" => 1,
            "ns" => 1_000,
            "us" | "µs" | "μs" => 1_000_000,
            "ms" => 1_000_000_000,
            "s" => 1_000_000_000_000,
            "" => return scaled(number, 1).filter(|&n| n == 0),
            _ => return None,
        };
        scaled(number, factor)
    });
    parsed.map(Span::from_ps).ok_or(UnitError { text: text.into(), expected })
}

/// Reads a size in bytes such as `2MiB`, `100kB` or `2000000`.
pub fn parse_bytes(text: &str) -> Result<u64, UnitError> {
    let expected = "a whole number of bytes (such as 2MiB, 100kB, 2000000)";
    let parsed = split(text).and_then(|(number, unit)| {
        let factor = match unit {
            "" | "B" => 1,
            "k" | "K" | "kB" | "KB" => 1_000,
            "M" | "MB" => 1_000_000,
            "G" | "GB" => 1_000_000_000,
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            "GiB" => 1 << 30,
            _ => return None,
        };
        scaled(number, factor)
    });
    parsed.ok_or(UnitError { text: text.into(), expected })
}

/// `number · factor` for a non-negative decimal number without exponent, if that is a whole number
/// that fits.
pub(crate) fn scaled(number: &str, factor: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = whole.len() + fraction.len();
    let plain = whole.bytes().chain(fraction.bytes()).all(|b| b.is_ascii_digit());
    // 24 digits times the largest factor, 10^12, still fit 128 bits.
    if whole.is_empty() || number.ends_with('.') || !plain || digits > 24 {
        return None;
    }
    let value = whole.bytes().chain(fraction.bytes()).fold(0u128, |n, b| n * 10 + u128::from(b - b'0'));
    let product = value * u128::from(factor);
    let divisor = 10u128.pow(fraction.len() as u32);
    if product % divisor != 0 {
        return None;
    }
    u64::try_from(product / divisor).ok()
}

fn split(text: &str) -> Option<(&str, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    if end == 0 { None } else { Some((&text[..end], text[end..].trim_start())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_with_units() {
        assert_eq!(parse_rate("100G"), Ok(Rate::from_gbps(100)));
        assert_eq!(parse_rate("2.5Gbps"), Ok(Rate::from_bps(2_500_000_000)));
        assert_eq!(parse_rate("1.6 Tbit/s"), Ok(Rate::from_gbps(1600)));
        assert_eq!(parse_rate("8bps"), Ok(Rate::from_bps(8)));
        assert_eq!(parse_span("1us"), Ok(Span::from_us(1)));
        assert_eq!(parse_span("41.6ns"), Ok(Span::from_ps(41_600)));
        assert_eq!(parse_span("0"), Ok(Span::ZERO));
        assert_eq!(parse_bytes("2MiB"), Ok(2_097_152));
        assert_eq!(parse_bytes("2MB"), Ok(2_000_000));
        assert_eq!(parse_bytes("1.5k"), Ok(1_500));
        assert_eq!(parse_bytes("4096"), Ok(4096));
    }

    #[test]
    fn what_is_not_exact_or_not_a_quantity_is_refused() {
        for text in ["", "G", "100", "0G", "-1G", "1e9G", "100Q", "100000000T", "1..5G", ".5G", "1.G"] {
            assert!(parse_rate(text).is_err(), "{text}");
        }
        for text in ["", "1", "1.5ps", "-1us", "1h", "99999999999999999999s", "1234567890123456789012345ps"] {
            assert!(parse_span(text).is_err(), "{text}");
        }
        for text in ["", "1.5", "-5", "1TB", "+5", "0x10", "5 B B"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
        assert_eq!(
            parse_rate("100").unwrap_err().to_string(),
            "`100` is not a rate above zero (such as 100G, 2.5Gbps)"
        );
    }
}
