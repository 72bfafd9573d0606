//! Quantities as people write them: rates, times and sizes with a unit. This is the only grammar of quantities in
//! weft: options, settings, topology specifications and scripts of link events all use it.
//!
//! | quantity | units | examples |
//! |---|---|---|
//! | rate | `k M G T`, alone or before `bps`, `bit/s`, `b/s` or `bit`; or these without prefix | `100G`, `2.5Gbps` |
//! | time | `ps ns us µs ms s` | `1us`, `9µs`, `600ns` |
//! | size, powers of 1000 | `B kB MB GB`, `k M G`, or none | `100kB`, `64k`, `2000000` |
//! | size, powers of 1024 | `KiB MiB GiB` | `2MiB` |
//!
//! A number is decimal and may have a fraction and an exponent: `1.5`, `.5`, `1e6`. Spaces may stand between the
//! number and its unit. Case matters, because `m` and `M` differ; only `K` is the same as `k`. Numbers are exact: a
//! quantity that is not a whole number of bits per second, picoseconds or bytes is refused, never rounded. Only a
//! size, and a time of zero, may leave out the unit.

use std::fmt;

use thiserror::Error;

use crate::{Rate, Span};

/// A text that is not the quantity that was expected.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{text}` is not {expected}")]
pub struct UnitError {
    text: String,
    expected: &'static str,
}

impl UnitError {
    /// The expected quantity with its units and examples, to complete the sentence "expected …".
    pub fn expected(&self) -> &'static str {
        self.expected
    }
}

const RATE: &str = "a rate above zero with its unit (k, M, G or T, such as 100G or 2.5Gbps)";
const SPAN: &str = "a time in whole picoseconds with its unit (ps, ns, us, ms or s, such as 10us or 1.5ms)";
const BYTES: &str =
    "a whole number of bytes (B, kB, MB, GB, KiB, MiB, GiB or no unit, such as 64KiB, 100kB or 2000000)";

/// Reads a rate such as `100G` or `2.5Gbit/s`; zero is refused.
///
/// # Errors
/// [`UnitError`] when the text is not a rate, or not a whole number of bits per second that fits a `u64`.
pub fn parse_rate(text: &str) -> Result<Rate, UnitError> {
    let factor = |unit: &str| {
        let prefix = ["bps", "bit/s", "b/s", "bit"].iter().find_map(|s| unit.strip_suffix(s));
        Some(match prefix.unwrap_or(unit) {
            "" if prefix.is_some() => 1,
            "k" | "K" => 1_000,
            "M" => 1_000_000,
            "G" => 1_000_000_000,
            "T" => 1_000_000_000_000,
            _ => return None,
        })
    };
    let bps = quantity(text, factor).filter(|&bps| bps > 0);
    bps.map(Rate::from_bps).ok_or_else(|| UnitError { text: text.into(), expected: RATE })
}

/// Reads a length of time such as `1us`.
///
/// # Errors
/// [`UnitError`] when the text is not a time, or not a whole number of picoseconds that fits a `u64`.
pub fn parse_span(text: &str) -> Result<Span, UnitError> {
    let factor = |unit: &str| {
        Some(match unit {
            "ps" => 1,
            "ns" => 1_000,
            // The micro sign, and the Greek letter that looks like it.
            "us" | "µs" | "μs" => 1_000_000,
            "ms" => 1_000_000_000,
            "s" => 1_000_000_000_000,
            _ => return None,
        })
    };
    let zero = || quantity(text, |unit| unit.is_empty().then_some(1)).filter(|&ps| ps == 0);
    let ps = quantity(text, factor).or_else(zero);
    ps.map(Span::from_ps).ok_or_else(|| UnitError { text: text.into(), expected: SPAN })
}

/// Reads a size in bytes such as `2MiB`, `100kB`, `64k` or `2000000`.
///
/// # Errors
/// [`UnitError`] when the text is not a size, or not a whole number of bytes that fits a `u64`.
pub fn parse_bytes(text: &str) -> Result<u64, UnitError> {
    let factor = |unit: &str| {
        Some(match unit {
            "" | "B" => 1,
            "k" | "K" | "kB" | "KB" => 1_000,
            "M" | "MB" => 1_000_000,
            "G" | "GB" => 1_000_000_000,
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            "GiB" => 1 << 30,
            _ => return None,
        })
    };
    quantity(text, factor).ok_or_else(|| UnitError { text: text.into(), expected: BYTES })
}

/// A size in bytes that displays as [`parse_bytes`] reads it, with the largest binary unit that is exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
        let exact = units.iter().find(|(bits, _)| self.0 > 0 && self.0.trailing_zeros() >= *bits);
        let (bits, unit) = exact.copied().unwrap_or((0, "B"));
        write!(f, "{}{unit}", self.0 >> bits)
    }
}

/// `number · factor` for plain decimal digits with at most one point among them (no sign, no exponent), if
/// the product is a whole number that fits a `u64`. For file formats that have fixed units.
pub fn scaled(number: &str, factor: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let plain = whole.bytes().chain(fraction.bytes()).all(|b| b.is_ascii_digit());
    if whole.is_empty() || number.ends_with('.') || !plain {
        return None;
    }
    exact(whole, fraction, 0, factor)
}

/// Reads a number and its unit, whose factor `factor` knows.
fn quantity(text: &str, factor: impl Fn(&str) -> Option<u64>) -> Option<u64> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let (whole, rest) = digits(text);
    let (fraction, rest) = rest.strip_prefix('.').map_or(("", rest), digits);
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let (exponent, unit) = exponent(rest)?;
    exact(whole, fraction, exponent, factor(unit.trim_start())?)
}

/// Splits off the decimal digits that `text` begins with.
fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

/// Splits off the exponent that `text` begins with, 0 if there is none. No unit begins with an `e`.
fn exponent(text: &str) -> Option<(i32, &str)> {
    let Some(rest) = text.strip_prefix(['e', 'E']) else { return Some((0, text)) };
    let negative = rest.starts_with('-');
    let (size, unit) = digits(rest.strip_prefix(['-', '+']).unwrap_or(rest));
    let size = size.parse::<i32>().ok()?;
    Some((if negative { -size } else { size }, unit))
}

/// `whole.fraction · 10^exponent · factor`, if that is a whole number that fits. The arguments are digits only.
fn exact(whole: &str, fraction: &str, exponent: i32, factor: u64) -> Option<u64> {
    let whole = whole.trim_start_matches('0');
    let fraction = fraction.trim_end_matches('0');
    // 24 digits times the largest factor, 10^12, still fit 128 bits.
    if whole.len() + fraction.len() > 24 {
        return None;
    }
    let value = whole.bytes().chain(fraction.bytes()).fold(0_u128, |n, b| n * 10 + u128::from(b - b'0'));
    if value == 0 {
        return Some(0);
    }
    let product = value * u128::from(factor);
    let exponent = exponent.checked_sub(fraction.len() as i32)?;
    let power = 10_u128.checked_pow(exponent.unsigned_abs())?;
    let result = if exponent >= 0 {
        product.checked_mul(power)?
    } else if product % power == 0 {
        product / power
    } else {
        return None;
    };
    u64::try_from(result).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantities_with_units() {
        assert_eq!(parse_rate("100G"), Ok(Rate::from_gbps(100)));
        assert_eq!(parse_rate("2.5Gbps"), Ok(Rate::from_bps(2_500_000_000)));
        assert_eq!(parse_rate("1.6 Tbit/s"), Ok(Rate::from_gbps(1600)));
        assert_eq!(parse_rate("100Gbit"), Ok(Rate::from_gbps(100)));
        assert_eq!(parse_rate("8bps"), Ok(Rate::from_bps(8)));
        assert_eq!(parse_span("1us"), Ok(Span::from_us(1)));
        assert_eq!(parse_span("9µs"), parse_span("9us"));
        assert_eq!(parse_span("41.6ns"), Ok(Span::from_ps(41_600)));
        assert_eq!(parse_span("7 ms"), Ok(Span::from_ms(7)));
        assert_eq!(parse_span("0"), Ok(Span::ZERO));
        assert_eq!(parse_bytes("2MiB"), Ok(2_097_152));
        assert_eq!(parse_bytes("2MB"), Ok(2_000_000));
        assert_eq!(parse_bytes("64k"), Ok(64_000));
        assert_eq!(parse_bytes("1.5k"), Ok(1_500));
        assert_eq!(parse_bytes("4096"), Ok(4096));
    }

    #[test]
    fn numbers_may_have_a_fraction_a_plus_and_an_exponent() {
        assert_eq!(parse_bytes("1e6"), Ok(1_000_000));
        assert_eq!(parse_bytes("1.5E+3"), Ok(1_500));
        assert_eq!(parse_bytes("+5"), Ok(5));
        assert_eq!(parse_bytes("5.00"), Ok(5));
        assert_eq!(parse_span("25e-1us"), Ok(Span::from_ns(2_500)));
        assert_eq!(parse_span(".5us"), Ok(Span::from_ns(500)));
        assert_eq!(parse_span("5.us"), Ok(Span::from_us(5)));
        assert_eq!(parse_rate("1e11bps"), Ok(Rate::from_gbps(100)));
        assert_eq!(parse_bytes("0e999"), Ok(0));
        for text in ["1e", "1e+", "e6", "1e6e6", "1e99", "1e-1", "1e99999999999", "1.2.3", "--1", "+-1", "+"]
        {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_quantity_that_is_wrong_or_not_exact_is_refused() {
        for text in ["", "G", "100", "0G", "-1G", "1e19G", "100Q", "100000000T", "1..5G", ".G", "100gbit"] {
            assert!(parse_rate(text).is_err(), "{text}");
        }
        for text in ["", "1", "1.5ps", "-1us", "1h", "99999999999999999999s", "1234567890123456789012345ps"] {
            assert!(parse_span(text).is_err(), "{text}");
        }
        for text in ["", "1.5", "-5", "1TB", "2mb", "0x10", "5 B B", "NaN", "inf", "."] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
        assert_eq!(
            parse_rate("100").unwrap_err().to_string(),
            "`100` is not a rate above zero with its unit (k, M, G or T, such as 100G or 2.5Gbps)"
        );
    }

    #[test]
    fn numbers_of_files_are_plain_digits() {
        assert_eq!(scaled("1.25", 1_000), Some(1_250));
        assert_eq!(scaled("007", 1), Some(7));
        for text in ["", ".5", "5.", "1e3", "+5", "-5", "1.2.3", "0.5"] {
            assert_eq!(scaled(text, 1), None, "{text}");
        }
    }

    /// Numbers of every magnitude, because uniform ones nearly all have twenty digits.
    fn magnitudes() -> impl Strategy<Value = u64> {
        (any::<u64>(), 0_u32..64).prop_map(|(n, shift)| n >> shift)
    }

    proptest! {
        #[test]
        fn displayed_quantities_read_back_the_same(n in magnitudes()) {
            let span = Span::from_ps(n);
            prop_assert_eq!(parse_span(&span.to_string()), Ok(span));
            prop_assert_eq!(parse_span(&format!("{span:#}")), Ok(span));
            prop_assert_eq!(parse_bytes(&Size(n).to_string()), Ok(n));
            if n > 0 {
                prop_assert_eq!(parse_rate(&Rate::from_bps(n).to_string()), Ok(Rate::from_bps(n)));
            }
        }

        #[test]
        fn nothing_is_rounded(whole in 0_u64..100_000, fraction in "[0-9]{0,15}", exponent in -3_i32..4) {
            // The number in units of 10^-18, which all of these are whole multiples of.
            let digits: u128 = format!("{whole}{fraction}").parse().unwrap();
            let value = digits * 10_u128.pow((18 - fraction.len() as i32 + exponent) as u32);
            let text = format!("{whole}.{fraction}e{exponent}");
            for (unit, factor) in [("ps", 1_u128), ("us", 1_000_000), ("s", 1_000_000_000_000)] {
                let (product, one) = (value * factor, 10_u128.pow(18));
                let exact = (product % one == 0).then(|| product / one).and_then(|ps| u64::try_from(ps).ok());
                let read = parse_span(&format!("{text}{unit}")).ok().map(Span::as_ps);
                prop_assert_eq!(read, exact, "{}{}", text, unit);
            }
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,20}") {
            let _ = (parse_rate(&text), parse_span(&text), parse_bytes(&text), scaled(&text, 1 << 30));
        }

        #[test]
        fn plain_numbers_read_the_same_with_and_without_exponents(text in "[0-9]{1,9}(\\.[0-9]{1,6})?") {
            prop_assert_eq!(scaled(&text, 1 << 20), parse_bytes(&format!("{text}MiB")).ok());
        }
    }
}
