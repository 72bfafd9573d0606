//! Samples of queues, links and flows during a run, at equal intervals, and once more at the end of the run.

use std::ops::Range;

use weft_cc::{Span, Time};

/// The activity of a port in the interval that ends with a sample. Ports that sent nothing and hold nothing
/// are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortSample {
    /// The port's number in the topology.
    pub port: u32,
    /// Bytes of data in its queue at the end of the interval; [`u32::MAX`] if there are more.
    pub data_bytes: u32,
    /// Bytes of control packets and trimmed packets in its queue at the end of the interval.
    pub control_bytes: u32,
    /// Bytes of the packets whose transmission began in the interval, with all overhead.
    pub sent_bytes: u64,
}

/// The progress of a flow in the interval that ends with a sample. Flows of which nothing arrived and that are not
/// open at their senders are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowSample {
    /// The flow's index in the workload.
    pub flow: u32,
    /// Payload bytes that arrived in the interval; a packet that arrives twice counts twice.
    pub received_bytes: u64,
    /// Its sender at the end of the interval, if the flow has begun and has not completed.
    pub sender: Option<SenderSample>,
}

/// The congestion context that a flow uses at its sender. With windows per pair of hosts, flows of one pair share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderSample {
    /// Bytes that its window allows in flight.
    pub cwnd: u64,
    /// Bytes in flight.
    pub in_flight: u64,
    /// The smoothed RTT; `None` before the first answer.
    pub rtt: Option<Span>,
    /// The part of it that packets and their answers waited in the hosts; of the wait at the receiver at most 8.4 ms, as
    /// its answer has 16 bits for units of 128 ns.
    pub in_hosts: Span,
    /// The least RTT that the algorithm knows of, without time in hosts.
    pub base_rtt: Span,
    /// The phase of the algorithm, in its own words.
    pub phase: &'static str,
}

impl SenderSample {
    /// The part of the smoothed RTT above the base RTT that was not spent in the hosts: queueing, and whatever time in
    /// them they do not measure.
    pub fn queueing(&self) -> Option<Span> {
        let rest = self.base_rtt.plus(self.in_hosts);
        self.rtt.map(|rtt| if rtt > rest { rtt.minus(rest) } else { Span::ZERO })
    }
}

/// Receives samples.
pub trait SampleSink {
    /// Receives the samples of one interval, each list in rising order of port or flow. Between the end of the last
    /// interval and the start of this one nothing happened. An error must be kept until the end, because the run goes
    /// on.
    fn sample(&mut self, interval: Range<Time>, ports: &[PortSample], flows: &[FlowSample]);
}

/// How a run is sampled.
pub struct Sampling<'a> {
    /// The interval. Intervals in which nothing happens are skipped. The last one ends with the run and may be shorter.
    pub every: Span,
    /// Where the samples go.
    pub sink: &'a mut dyn SampleSink,
}
