//! The names of congestion controls, and how they are put together:
//!
//! ```text
//! choice   = sender | receiver | sender "+" receiver
//! sender   = NAME | "median(" sender ")"
//! receiver = NAME
//! ```
//!
//! The names are those of [`SENDERS`] and [`RECEIVERS`].

use std::sync::Arc;

use thiserror::Error;

use crate::CcParams;
use crate::median::MedianOf;
use crate::registry::{MakeSender, Needs, PreparedReceiver, RECEIVERS, SENDERS, SenderInput, UNLIMITED};
use crate::table::{Builder, Row, names};

/// The ways to put congestion controls together: the form, a line about it, and its source.
pub static FORMS: [(&str, &str, &str); 2] = [
    (
        "median(SENDER)",
        "a sender that reacts to delay, driven by the median of the last 3 to 10 RTTs",
        "MSwift paper",
    ),
    (
        "SENDER+RECEIVER",
        "receiver credit under a sender's window; the smaller permission wins",
        "SMaRTT paper, section VI",
    ),
];

/// A name that stands for no congestion control.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{problem} at character {at} of '{text}'; expected {expected}")]
pub struct CcNameError {
    /// The whole name.
    pub text: String,
    /// The place of the mistake, in characters from 1.
    pub at: usize,
    /// The mistake.
    pub problem: String,
    /// The texts that are allowed at this place.
    pub expected: String,
}

/// A sender's part with its name.
pub(crate) struct Sender {
    pub(crate) builder: Arc<dyn Builder<SenderInput, MakeSender>>,
    pub(crate) needs: Needs,
}

/// A receiver's part.
pub(crate) type Receiver = Arc<dyn Builder<CcParams, PreparedReceiver>>;

/// The parts that `text` names.
pub(crate) fn parse(text: &str) -> Result<(Sender, Option<Receiver>), CcNameError> {
    let mut parser = Parser { text, rest: text };
    if let Some(row) = RECEIVERS.iter().find(|row| row.name == text) {
        let sender = Sender { builder: UNLIMITED(), needs: Needs::NONE };
        return Ok((sender, Some((row.part)())));
    }
    let sender = parser.sender(true)?;
    if parser.rest.is_empty() {
        return Ok((sender, None));
    }
    parser.expect('+', "'+' or the end")?;
    let (before, name) = (parser.rest, parser.word());
    let Some(row) = RECEIVERS.iter().find(|row| row.name == name) else {
        return Err(parser.error(before, format!("unknown receiver '{name}'"), one_of(&names(RECEIVERS))));
    };
    match parser.rest {
        "" => Ok((sender, Some((row.part)()))),
        rest => Err(parser.error(rest, format!("unexpected '{rest}'"), "the end".into())),
    }
}

struct Parser<'a> {
    text: &'a str,
    rest: &'a str,
}

impl<'a> Parser<'a> {
    /// A sender; `first` if a receiver could stand there instead.
    fn sender(&mut self, first: bool) -> Result<Sender, CcNameError> {
        let (before, name) = (self.rest, self.word());
        if name == "median" && self.rest.starts_with('(') {
            return self.median();
        }
        if let Some(Row { part, .. }) = SENDERS.iter().find(|row| row.name == name) {
            return Ok(Sender { builder: (part.build)(), needs: part.needs });
        }
        let (kind, mut known) = match first {
            true => ("congestion control", [names(SENDERS), names(RECEIVERS)].concat()),
            false => ("sender", names(SENDERS)),
        };
        if first {
            known.extend(FORMS.map(|(form, ..)| form));
        }
        Err(self.error(before, format!("unknown {kind} '{name}'"), one_of(&known)))
    }

    /// The rest of `median(SENDER)`.
    fn median(&mut self) -> Result<Sender, CcNameError> {
        self.expect('(', "'('")?;
        let before = self.rest;
        let inner = self.sender(false)?;
        let name = &before[..before.len() - self.rest.len()];
        if !inner.needs.delay {
            let filtered: Vec<&str> =
                SENDERS.iter().filter(|row| row.part.needs.delay).map(|row| row.name).collect();
            let problem = format!("{name} does not react to single RTTs, which median filters,");
            return Err(self.error(before, problem, one_of(&filtered)));
        }
        self.expect(')', "')'")?;
        let needs = Needs { ack_each: true, delay: false, ..inner.needs };
        Ok(Sender { builder: Arc::new(MedianOf::new(inner.builder)), needs })
    }

    /// The characters up to the next parenthesis or plus.
    fn word(&mut self) -> &'a str {
        let end = self.rest.find(['(', ')', '+']).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    fn expect(&mut self, wanted: char, expected: &str) -> Result<(), CcNameError> {
        let Some(rest) = self.rest.strip_prefix(wanted) else {
            let found = self.rest.chars().next();
            let problem = found.map_or_else(|| "the end".to_owned(), |found| format!("'{found}'"));
            return Err(self.error(self.rest, problem, expected.to_owned()));
        };
        self.rest = rest;
        Ok(())
    }

    fn error(&self, rest: &str, problem: String, expected: String) -> CcNameError {
        let before = &self.text[..self.text.len() - rest.len()];
        CcNameError { text: self.text.to_owned(), at: before.chars().count() + 1, problem, expected }
    }
}

fn one_of(names: &[&str]) -> String {
    match names {
        [one] => (*one).to_owned(),
        _ => format!("one of: {}", names.join(", ")),
    }
}
