//! Settings: named parameters that are set from text as `key=value`.
//!
//! The macro `settings!` declares a configuration with one row for each setting: key, type, default, range
//! and text. The field and its documentation, the default, what is listed and what is refused follow from
//! that row.

use std::fmt;
use std::ops::{RangeFull, RangeInclusive};

use crate::Span;
use crate::units::{Size, parse_bytes, parse_span};

/// A configuration whose parameters can be set from text.
pub trait Settings: Clone + Default + fmt::Debug + Send + Sync + 'static {
    /// One row for each parameter.
    const TABLE: &'static [Setting<Self>];
}

/// One parameter of the configuration `C`.
pub struct Setting<C> {
    /// The name of the parameter.
    pub key: &'static str,
    /// The effect, with the unit, without the default.
    pub about: &'static str,
    /// The rule that applies while it has no value of its own; empty if it always has a value.
    pub otherwise: &'static str,
    /// The values and their range, to complete the sentence "expected …".
    pub expected: fn() -> String,
    /// The value in `C` as text that `store` reads; none if it has no value of its own.
    pub text: fn(&C) -> Option<String>,
    /// Stores a value in `C`; false if the text is not one of the expected values.
    pub store: fn(&mut C, &str) -> bool,
}

impl<C: Settings> Setting<C> {
    /// The row as people see it.
    pub fn info(&self) -> SettingInfo {
        let default = (self.text)(&C::default());
        SettingInfo {
            key: self.key,
            about: self.about,
            default,
            otherwise: self.otherwise,
            expected: (self.expected)(),
        }
    }
}

/// One parameter as people see it. Displays as a line of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingInfo {
    /// The name of the parameter.
    pub key: &'static str,
    /// The effect, with the unit, without the default.
    pub about: &'static str,
    /// The default as text that can be set; none if it has no value of its own by default.
    pub default: Option<String>,
    /// The rule that applies while it has no value of its own; empty if it always has a value.
    pub otherwise: &'static str,
    /// The values and their range, to complete the sentence "expected …".
    pub expected: String,
}

impl fmt::Display for SettingInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let default = self.default.as_deref().unwrap_or(self.otherwise);
        write!(f, "{}: {}; default {default} ({})", self.key, self.about, self.expected)
    }
}

/// A type that a setting can have.
pub trait Value: Sized {
    /// The values that are allowed.
    type Range;
    /// Reads a value; none if the text is not a value in `range`.
    fn read(text: &str, range: &Self::Range) -> Option<Self>;
    /// The text that reads back as this value; none for an optional value that is not set.
    fn text(&self) -> Option<String>;
    /// The values and their range, to complete the sentence "expected …".
    fn expected(range: &Self::Range) -> String;
}

/// A plain number.
impl Value for f64 {
    type Range = RangeInclusive<f64>;

    fn read(text: &str, range: &Self::Range) -> Option<f64> {
        text.parse().ok().filter(|number| range.contains(number))
    }

    fn text(&self) -> Option<String> {
        Some(self.to_string())
    }

    fn expected(range: &Self::Range) -> String {
        format!("a number from {} to {}", range.start(), range.end())
    }
}

/// Whole numbers of 32 bits, for settings that are counts.
impl Value for u32 {
    type Range = RangeInclusive<u32>;

    fn read(text: &str, range: &Self::Range) -> Option<u32> {
        text.parse().ok().filter(|count| range.contains(count))
    }

    fn text(&self) -> Option<String> {
        Some(self.to_string())
    }

    fn expected(range: &Self::Range) -> String {
        format!("a whole number from {} to {}", range.start(), range.end())
    }
}

/// A size in bytes.
impl Value for u64 {
    type Range = RangeInclusive<u64>;

    fn read(text: &str, range: &Self::Range) -> Option<u64> {
        parse_bytes(text).ok().filter(|size| range.contains(size))
    }

    fn text(&self) -> Option<String> {
        Some(Size(*self).to_string())
    }

    fn expected(range: &Self::Range) -> String {
        format!("a size from {} to {}, such as 65536 or 64KiB", Size(*range.start()), Size(*range.end()))
    }
}

/// A length of time.
impl Value for Span {
    type Range = RangeInclusive<Span>;

    fn read(text: &str, range: &Self::Range) -> Option<Span> {
        parse_span(text).ok().filter(|span| range.contains(span))
    }

    fn text(&self) -> Option<String> {
        Some(format!("{self:#}"))
    }

    fn expected(range: &Self::Range) -> String {
        format!("a time from {:#} to {:#}, such as 9us or 750ns", range.start(), range.end())
    }
}

impl Value for bool {
    type Range = RangeFull;

    fn read(text: &str, _: &RangeFull) -> Option<bool> {
        text.parse().ok()
    }

    fn text(&self) -> Option<String> {
        Some(self.to_string())
    }

    fn expected(_: &RangeFull) -> String {
        "true or false".into()
    }
}

impl<V: Value> Value for Option<V> {
    type Range = V::Range;

    fn read(text: &str, range: &Self::Range) -> Option<Option<V>> {
        V::read(text, range).map(Some)
    }

    fn text(&self) -> Option<String> {
        self.as_ref().and_then(V::text)
    }

    fn expected(range: &Self::Range) -> String {
        V::expected(range)
    }
}

/// A factor without a natural limit.
pub const FACTOR: RangeInclusive<f64> = 0.0..=1e3;
/// A share of a whole.
pub const SHARE: RangeInclusive<f64> = 0.0..=1.0;
/// A window or credit in BDPs: never nothing.
pub const BDPS: RangeInclusive<f64> = 0.01..=1e3;
/// A time above zero, shorter than the longest timer.
pub const TIME: RangeInclusive<Span> = Span::from_ps(1)..=Span::from_ms(600_000);
/// A size above zero, which 32 bits hold.
pub const SIZE: RangeInclusive<u64> = 1..=1 << 30;

/// Declares a configuration and its settings. A row is
/// `key: type = default, in range, "text", or "what applies without a value";`, the last part for optional types.
#[macro_export]
macro_rules! settings {
    (
        $(#[$outer:meta])*
        $vis:vis struct $config:ident {
            $( $key:ident: $kind:ty = $default:expr, in $range:expr, $about:literal $(, or $otherwise:literal)?; )*
        }
    ) => {
        $(#[$outer])*
        #[derive(Clone, Debug, PartialEq)]
        $vis struct $config {
            $(
                #[doc = concat!("Setting: ", $about, ".")]
                $( #[doc = concat!("None: ", $otherwise, ".")] )?
                $vis $key: $kind,
            )*
        }

        impl Default for $config {
            fn default() -> Self {
                $config { $( $key: $default, )* }
            }
        }

        impl $crate::settings::Settings for $config {
            const TABLE: &'static [$crate::settings::Setting<Self>] = &[ $(
                $crate::settings::Setting {
                    key: stringify!($key),
                    about: $about,
                    otherwise: concat!($($otherwise)?),
                    expected: || <$kind as $crate::settings::Value>::expected(&$range),
                    text: |config| $crate::settings::Value::text(&config.$key),
                    store: |config, text| {
                        let value = <$kind as $crate::settings::Value>::read(text, &$range);
                        value.map(|value| config.$key = value).is_some()
                    },
                },
            )* ];
        }
    };
}
pub(crate) use settings;

#[cfg(test)]
mod tests {
    use super::*;

    settings! {
        /// An example of every kind.
        struct Example {
            factor: f64 = 0.5, in SHARE, "a share";
            count: u32 = 3, in 0..=31, "a count";
            size: u64 = 16 << 10, in SIZE, "a size";
            time: Span = Span::from_us(9), in TIME, "a time";
            flag: bool = true, in .., "a flag";
            limit: Option<u64> = None, in SIZE, "a limit", or "no limit";
        }
    }

    fn info(key: &str) -> SettingInfo {
        Example::TABLE.iter().find(|setting| setting.key == key).expect("a known key").info()
    }

    #[test]
    fn a_row_is_listed_with_its_default_and_its_range() {
        assert_eq!(info("factor").to_string(), "factor: a share; default 0.5 (a number from 0 to 1)");
        assert_eq!(info("count").to_string(), "count: a count; default 3 (a whole number from 0 to 31)");
        assert_eq!(
            info("size").to_string(),
            "size: a size; default 16KiB (a size from 1B to 1GiB, such as 65536 or 64KiB)"
        );
        assert_eq!(
            info("time").to_string(),
            "time: a time; default 9us (a time from 1ps to 600s, such as 9us or 750ns)"
        );
        assert_eq!(info("flag").to_string(), "flag: a flag; default true (true or false)");
        assert!(info("limit").to_string().starts_with("limit: a limit; default no limit ("));
    }

    #[test]
    fn values_have_units_and_are_range_checked() {
        assert_eq!(Span::read("12.5us", &TIME), Some(Span::from_ns(12_500)));
        assert_eq!(Span::read("9µs", &TIME), Some(Span::from_us(9)));
        assert_eq!(Span::read("600s", &TIME), Some(Span::from_ms(600_000)));
        assert_eq!(u64::read("64KiB", &SIZE), Some(65_536));
        assert_eq!(u64::read("64k", &SIZE), Some(64_000));
        assert_eq!(f64::read("0.5", &SHARE), Some(0.5));
        for bad in ["", "12", "0", "us", "-1us", "0us", "NaNus", "infs", "601s"] {
            assert_eq!(Span::read(bad, &TIME), None, "{bad:?}");
        }
        for bad in ["", "0", "-3", "NaN", "inf", "2000MiB", "KiB"] {
            assert_eq!(u64::read(bad, &SIZE), None, "{bad:?}");
        }
        for bad in ["", "NaN", "inf", "1.01", "-0.1", "x"] {
            assert_eq!(f64::read(bad, &SHARE), None, "{bad:?}");
        }
    }
}
