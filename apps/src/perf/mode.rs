//! The kinds of tests.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// The figure that a test measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// Bytes: long messages, one way.
    Throughput,
    /// Messages: short ones, each a packet of its own, one way.
    Rate,
    /// Round trips: one message there, and back.
    Latency,
}
