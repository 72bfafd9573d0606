//! What a run yields.

use weft_cc::{Span, Time};

use crate::workload::Flow;

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Virtual time.
    pub now: Time,
    /// Flows that are done.
    pub flows_done: u64,
    /// All flows.
    pub flows_total: u64,
    /// Events handled.
    pub events: u64,
}

/// One flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowRecord {
    /// The workload's number.
    pub id: u64,
    /// Who sent.
    pub src: u32,
    /// Who received.
    pub dst: u32,
    /// How much.
    pub bytes: u64,
    /// When it began; `None` if it never did.
    pub start: Option<Time>,
    /// When the sender knew that all of it had arrived; `None` if it never did.
    pub end: Option<Time>,
    /// Packets sent again.
    pub retransmitted: u64,
}

impl FlowRecord {
    /// The record of a flow that has not begun.
    pub fn new(flow: &Flow) -> FlowRecord {
        FlowRecord {
            id: u64::from(flow.id),
            src: flow.src.0,
            dst: flow.dst.0,
            bytes: flow.bytes,
            start: None,
            end: None,
            retransmitted: 0,
        }
    }
}

/// Packets, counted where they are sent or treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct PacketCounters {
    /// Data packets sent for the first time.
    pub data: u64,
    /// Data packets sent again.
    pub retransmitted: u64,
    /// Trimmed by switches.
    pub trimmed: u64,
    /// Dropped by switches and links.
    pub dropped: u64,
    /// Acknowledgements sent.
    pub acks: u64,
    /// NACKs sent.
    pub nacks: u64,
    /// Marked by switches.
    pub ecn_marked: u64,
}

/// What a run yields.
#[derive(Clone, Debug, PartialEq)]
pub struct RunReport {
    /// Every flow, in the order of the workload.
    pub flows: Vec<FlowRecord>,
    /// Packets.
    pub packets: PacketCounters,
    /// Expiries of retransmission timers.
    pub timeouts: u64,
    /// Events handled.
    pub events: u64,
    /// When the run ended.
    pub end: Time,
    /// The least time that the busiest link needs for the workload, and which link that is.
    pub bound: (Span, String),
    /// Who waits for what, or failed, at the end.
    pub stuck: Vec<String>,
    /// Messages whose bytes were not those sent, or that arrived other than once.
    pub payload_errors: Vec<String>,
    /// What was left in the endpoints at the end that should not be: connections, PDCs, messages.
    pub leaks: Vec<String>,
}

impl RunReport {
    /// Whether every flow is done.
    pub fn is_complete(&self) -> bool {
        self.flows.iter().all(|flow| flow.end.is_some())
    }
}
