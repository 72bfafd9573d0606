//! What a run yields.

use super::Live;
use super::flows::Outcome;
use weft_cc::{Span, Time};
use weft_stack::port::Port;
use weft_stack::worker::Worker;
use weft_testbed::sim::{FlowRecord, Lines, PacketCounters, RunReport};

/// Frames that have arrived at all ends.
pub(crate) fn frames<P: Port>(ends: &[Worker<P>]) -> u64 {
    ends.iter().map(|end| end.port().counters().rx_frames).sum()
}

impl<P: Port> Live<'_, P> {
    /// Compares what has arrived with what was sent, sums up, and closes the ports.
    ///
    /// What the network has done is counted where it arrives: packets trimmed or marked on their way.
    pub(crate) fn into_report(self) -> RunReport {
        let end = self.clock.now();
        let done = self.flows.are_done();
        let plan = self.flows.bytes();
        let Outcome { records, failures, payload_errors } = self.flows.into_outcome();
        let mut stuck: Lines = failures.into_iter().collect();
        waits(&self.ends, end, &mut stuck);
        stuck.extend(records.iter().filter_map(FlowRecord::not_started));
        RunReport {
            packets: packets(&self.ends),
            timeouts: self.ends.iter().map(|worker| worker.fep().counters().timeouts).sum(),
            events: frames(&self.ends),
            end,
            endpoints: self.ends.len() as u32,
            footprint: self.ends.iter().map(|worker| worker.fep().footprint()).sum(),
            plan,
            // No link is known whose rate would bound anything.
            bound: (Span::ZERO, String::new()),
            stuck,
            leaks: if done { leaks(&self.ends) } else { Vec::new() },
            flows: records,
            payload_errors,
        }
    }
}

/// What endpoints have counted.
pub(crate) fn packets<P: Port>(ends: &[Worker<P>]) -> PacketCounters {
    let mut packets = PacketCounters::default();
    for worker in ends {
        let (fep, dropped, port) = (worker.fep().counters(), worker.counters(), worker.port().counters());
        packets.data += fep.data_sent;
        packets.retransmitted += fep.data_retransmitted;
        packets.dropped += dropped.malformed + dropped.misdirected + dropped.strangers + dropped.unsendable;
        packets.dropped += dropped.not_taken;
        packets.dropped += port.rx_errors + port.rx_missed + port.tx_errors + port.tx_no_link;
        packets.acks += fep.acks_sent;
        packets.nacks += fep.nacks_sent;
        packets.trimmed += fep.trimmed_received;
        packets.ecn_marked += fep.ecn_received;
    }
    packets
}

/// Who waits for what, and what was wrong with frames.
pub(crate) fn waits<P: Port>(ends: &[Worker<P>], now: Time, lines: &mut Lines) {
    lines.extend(ends.iter().flat_map(|worker| worker.fep().waits(now)));
    let arrived = ends.iter().filter_map(Worker::last_read_error);
    lines.extend(arrived.map(|error| format!("the last frame dropped on arrival: {error}")));
    let left = ends.iter().filter_map(Worker::last_write_error);
    lines.extend(left.map(|error| format!("the last packet that could not leave: {error}")));
}

/// What is left in endpoints that should not be.
pub(crate) fn leaks<P: Port>(ends: &[Worker<P>]) -> Vec<String> {
    let of = |end: &Worker<P>| {
        let addr = end.fep().addr().0;
        end.fep().leaks().map(move |what| format!("endpoint {addr}: {what}")).collect::<Vec<_>>()
    };
    ends.iter().flat_map(of).collect()
}
