//! The messages between the process of the switches and those of the hosts: lines of JSON over pipes.

use crate::live::{HostReport, News};
use crate::testbed::HostFacts;
use serde::{Deserialize, Serialize};

/// The first message to a host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Setup {
    /// All hosts of the run, this one among them.
    pub(super) hosts: Vec<HostFacts>,
}

/// Tells a host what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ToHost {
    /// The workload's times count from this time of `CLOCK_MONOTONIC`, ns.
    Begin(u64),
    /// This flow starts now: its trigger has been activated.
    Start(u32),
    /// The run is over: report and end.
    Finish,
}

/// Tells the process of the switches what a host has done.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum FromHost {
    /// The host waits for the beginning.
    Ready,
    /// Something has become of the host's flows.
    News(News),
    /// The last message.
    Report(Box<HostReport>),
}
