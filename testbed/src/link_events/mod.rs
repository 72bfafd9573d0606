//! The text format of link changes.
//!
//! Each line describes one change of one link, or of one direction of it, at one time ([`parse_link_events`],
//! [`write_link_event`]):
//!
//! ```text
//! # comments and blank lines are ignored
//! 100us tier=0 switch=3 link=1 fail
//! 300us tier=0 switch=3 link=1 restore
//! 0us   tier=1 switch=0 link=5 rate=25G
//! 10us  host=7 drop=0.01
//! 20us  host=7 dir=down drop-over=2000
//! 30us  host=7 dir=up delay=15ms
//! 0us   host=6 gilbert=0.0005,0.2
//! 0us   host=5 block-loss=uno-65ms
//! 0us   host=4 dir=down trim=0.01
//! ```
//!
//! Times count from the start of the run and need a unit. A line without a time describes a change that
//! happens now ([`parse_link_change`]).
//!
//! A [`Degradation`] such as `tier=0,links=2,rate=25%` makes many links slow from the start.
#![forbid(unsafe_code)]

mod degrade;
mod read;
mod write;

#[cfg(test)]
mod tests;

pub use degrade::{Degradation, DegradationError, SlowDirection};
pub use read::{parse_link_change, parse_link_events};
pub use write::{write_link, write_link_change, write_link_event};

use thiserror::Error;

/// Why a link event is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{source_name}:{line}:{column}: `{word}`: expected {expected}")]
pub struct LinkEventError {
    /// The name of the file or option.
    pub source_name: String,
    /// The line, counted from 1.
    pub line: usize,
    /// The column in characters at which the word starts, counted from 1.
    pub column: usize,
    /// The wrong word; empty if the line ends too early.
    pub word: String,
    /// Description of what was expected.
    pub expected: String,
}
