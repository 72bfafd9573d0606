//! What the process of the switches and those of the hosts tell each other: lines of JSON over pipes.

use crate::testbed::HostFacts;
use serde::{Deserialize, Serialize};
use weft_stack::fep::Footprint;
use weft_testbed::sim::PacketCounters;

/// The first line that a host gets.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Setup {
    /// All hosts of the run, this one among them.
    pub(super) hosts: Vec<HostFacts>,
}

/// What a host is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ToHost {
    /// The workload's times count from this time of `CLOCK_MONOTONIC`, ns.
    Begin(u64),
    /// This flow's trigger has been activated.
    Start(u32),
    /// It is over: report and end.
    Finish,
}

/// What a host says.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum FromHost {
    /// It waits for the beginning.
    Ready,
    /// A flow from it has been delivered.
    Sent(u32),
    /// A flow to it that activates a trigger has arrived.
    Received(u32),
    /// All flows from it have ended, and their connections are closed.
    Done,
    /// The last word.
    Report(Box<HostReport>),
}

/// What a host has to report.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct HostReport {
    /// Flows from it.
    pub(super) sent: Vec<Sent>,
    /// Flows to it that have arrived, by their index.
    pub(super) received: Vec<u32>,
    /// What arrived other than it was sent.
    pub(super) wrong: Vec<String>,
    /// Flows and connections that have failed.
    pub(super) failures: Vec<String>,
    /// Who waits for what.
    pub(super) waits: Vec<String>,
    /// What is left over although all is done.
    pub(super) leaks: Vec<String>,
    pub(super) packets: Packets,
    pub(super) timeouts: u64,
    /// Frames that have arrived.
    pub(super) frames: u64,
    pub(super) footprint: Bytes,
}

/// One flow at its sender; times since the beginning, ps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Sent {
    /// Its index in the workload.
    pub(super) flow: u32,
    pub(super) start: Option<u64>,
    pub(super) end: Option<u64>,
    pub(super) retransmitted: u64,
}

/// [`PacketCounters`], as they travel.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Packets {
    data: u64,
    retransmitted: u64,
    trimmed: u64,
    dropped: u64,
    acks: u64,
    nacks: u64,
    ecn_marked: u64,
}

/// [`Footprint`], as it travels.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Bytes {
    endpoint: u64,
    connections: u64,
    contexts: u64,
    targets: u64,
    messages: u64,
    receives: u64,
    credit: u64,
    timers: u64,
    payload: u64,
}

macro_rules! same_fields {
    ($here:ident, $there:ident: $($field:ident),*) => {
        impl From<$there> for $here {
            fn from(there: $there) -> $here {
                let $there { $($field),* } = there;
                $here { $($field),* }
            }
        }

        impl From<$here> for $there {
            fn from(here: $here) -> $there {
                let $here { $($field),* } = here;
                $there { $($field),* }
            }
        }
    };
}

same_fields!(Packets, PacketCounters: data, retransmitted, trimmed, dropped, acks, nacks, ecn_marked);
same_fields!(
    Bytes, Footprint:
    endpoint, connections, contexts, targets, messages, receives, credit, timers, payload
);
