//! Changes of links as people write them.
//!
//! One change of one link at one time a line ([`parse_link_events`], [`write_link_event`]):
//!
//! ```text
//! # comments and blank lines do not count
//! 100us tier=0 switch=3 link=1 fail
//! 300us tier=0 switch=3 link=1 restore
//! 0us   tier=1 switch=0 link=5 rate=25G
//! 10us  host=7 drop=0.01
//! ```
//!
//! Times count from the start of the run and need a unit. Without a time a line is a change that is to happen now
//! ([`parse_link_change`]).
//!
//! Links that are slow from the start, many at once ([`Degradation`]): `tier=0,links=2,rate=25%`.
#![forbid(unsafe_code)]

mod degrade;
mod read;
mod write;

#[cfg(test)]
mod tests;

pub use degrade::{Degradation, DegradationError};
pub use read::{parse_link_change, parse_link_events};
pub use write::write_link_event;

use thiserror::Error;

/// Why link events could not be read: where, which word, and what belongs there.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{source_name}:{line}:{column}: `{word}`: expected {expected}")]
pub struct LinkEventError {
    /// The file or flag.
    pub source_name: String,
    /// The line, from 1.
    pub line: usize,
    /// The character of the line at which the word starts, from 1.
    pub column: usize,
    /// The word; empty where the line ends too early.
    pub word: String,
    /// What belongs there.
    pub expected: String,
}
