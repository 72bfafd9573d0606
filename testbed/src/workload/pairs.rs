//! The settings of a generator in its description: `NAME:value,key=value,…`.

use core::ops::Range;

use weft_cc::units::{parse_bytes, parse_rate, parse_span};
use weft_cc::{Rate, Span};
use weft_stack::wire::class::Priority;

use super::sizes::Sizes;
use super::spec::{Generator, WorkloadSpecError};

/// The settings of a description that have not been taken yet.
pub(super) struct Pairs<'a> {
    generator: &'static Generator,
    /// What stands before the first `key=value`.
    first: Option<&'a str>,
    left: Vec<(&'a str, &'a str)>,
}

impl<'a> Pairs<'a> {
    /// Splits `text`, which follows the name of `generator` and its colon.
    pub(super) fn split(
        generator: &'static Generator,
        text: Option<&'a str>,
    ) -> Result<Pairs<'a>, WorkloadSpecError> {
        let mut pairs = Pairs { generator, first: None, left: Vec::new() };
        for (place, part) in text.into_iter().flat_map(|text| text.split(',')).enumerate() {
            let Some((key, value)) = part.split_once('=') else {
                match place {
                    0 => pairs.first = Some(part),
                    _ => return Err(WorkloadSpecError::NotAPair(part.to_owned())),
                }
                continue;
            };
            if !generator.parameters.iter().any(|parameter| parameter.key == key) {
                return Err(pairs.unknown(key));
            }
            if pairs.left.iter().any(|(known, _)| *known == key) {
                return Err(WorkloadSpecError::Repeated(key.to_owned()));
            }
            pairs.left.push((key, value));
        }
        Ok(pairs)
    }

    fn unknown(&self, key: &str) -> WorkloadSpecError {
        let keys: Vec<&str> = self.generator.parameters.iter().map(|parameter| parameter.key).collect();
        WorkloadSpecError::UnknownKey {
            generator: self.generator.name,
            key: key.to_owned(),
            keys: if keys.is_empty() { "none".to_owned() } else { keys.join(", ") },
        }
    }

    /// Takes the value that stands before all keys.
    pub(super) fn first(&mut self) -> Option<&'a str> {
        self.first.take()
    }

    /// Whether a setting is given, and not taken yet.
    pub(super) fn has(&self, key: &str) -> bool {
        self.left.iter().any(|(known, _)| *known == key)
    }

    /// Takes the text of a setting.
    pub(super) fn text(&mut self, key: &str) -> Option<&'a str> {
        let at = self.left.iter().position(|(known, _)| *known == key)?;
        Some(self.left.remove(at).1)
    }

    /// Takes a setting that `read` understands; otherwise `expected` says what it should be.
    pub(super) fn read<T>(
        &mut self,
        key: &'static str,
        expected: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, WorkloadSpecError> {
        let Some(text) = self.text(key) else { return Ok(None) };
        let refusal = || WorkloadSpecError::value(key, format!("`{text}`; expected {expected}"));
        read(text).map(Some).ok_or_else(refusal)
    }

    /// Takes a whole number above zero.
    pub(super) fn count(&mut self, key: &'static str) -> Result<Option<u32>, WorkloadSpecError> {
        self.read(key, "a whole number above zero", |text| digits(text)?.parse().ok().filter(|n| *n > 0))
    }

    /// Takes a decimal number from above `least` to `most`.
    pub(super) fn decimal(
        &mut self,
        key: &'static str,
        expected: &str,
        accepts: impl Fn(f64) -> bool,
    ) -> Result<Option<f64>, WorkloadSpecError> {
        self.read(key, expected, |text| {
            let plain = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
            text.parse().ok().filter(|n| plain && accepts(*n))
        })
    }

    /// Takes a priority.
    pub(super) fn priority(&mut self, key: &'static str) -> Result<Option<Priority>, WorkloadSpecError> {
        self.read(key, "a number from 0 to 7", |text| Priority::new(digits(text)?.parse().ok()?))
    }

    /// Takes a rate.
    pub(super) fn rate(&mut self, key: &'static str) -> Result<Option<Rate>, WorkloadSpecError> {
        let read = |text| parse_rate(text).map_err(|e| WorkloadSpecError::value(key, e.to_string()));
        self.text(key).map(read).transpose()
    }

    /// Takes a length of time.
    pub(super) fn span(&mut self, key: &'static str) -> Result<Option<Span>, WorkloadSpecError> {
        let read = |text| parse_span(text).map_err(|e| WorkloadSpecError::value(key, e.to_string()));
        self.text(key).map(read).transpose()
    }

    /// Takes a length of time above zero.
    pub(super) fn duration(&mut self, key: &'static str) -> Result<Option<Span>, WorkloadSpecError> {
        match self.span(key)? {
            Some(Span::ZERO) => Err(WorkloadSpecError::value(key, "expected a time above zero".to_owned())),
            span => Ok(span),
        }
    }

    /// Takes a number of bytes.
    pub(super) fn bytes(&mut self, key: &'static str) -> Result<Option<u64>, WorkloadSpecError> {
        let read = |text| parse_bytes(text).map_err(|e| WorkloadSpecError::value(key, e.to_string()));
        self.text(key).map(read).transpose()
    }

    /// Takes flow sizes.
    pub(super) fn sizes(&mut self, key: &'static str) -> Result<Option<Sizes>, WorkloadSpecError> {
        let read = |text| Sizes::parse(text).map_err(|reason| WorkloadSpecError::value(key, reason));
        self.text(key).map(read).transpose()
    }

    /// Refuses what has not been taken.
    pub(super) fn finish(self) -> Result<(), WorkloadSpecError> {
        if let Some(first) = self.first {
            return Err(WorkloadSpecError::NotAPair(first.to_owned()));
        }
        match self.left.first() {
            None => Ok(()),
            Some((key, _)) => Err(self.unknown(key)),
        }
    }
}

/// `text`, if it has nothing but digits.
pub(super) fn digits(text: &str) -> Option<&str> {
    text.bytes().all(|b| b.is_ascii_digit()).then_some(text)
}

/// `A-B`, the hosts from A to B.
pub(super) fn range(text: &str) -> Option<Range<u32>> {
    let number = |text: &str| digits(text)?.parse::<u32>().ok();
    let (first, last) = text.split_once('-')?;
    Some(number(first)?..number(last)?.checked_add(1)?)
}
