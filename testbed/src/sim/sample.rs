//! What a run looks like while it goes on: queues, links and flows, at equal intervals, and once more when it ends.

use weft_cc::{Span, Time};

/// A port over the interval that ends with a sample. Ports that did nothing and hold nothing are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortSample {
    /// The port's number in the topology.
    pub port: u32,
    /// Bytes of data in its queue at the end of the interval.
    pub data_bytes: u32,
    /// Bytes of control packets and trimmed ones in its queue at the end of the interval.
    pub control_bytes: u32,
    /// Bytes of the packets whose transmission began in the interval, with all overhead.
    pub sent_bytes: u64,
}

/// A flow over the interval that ends with a sample. Flows of which nothing arrived are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowSample {
    /// The flow's index in the workload.
    pub flow: u32,
    /// Payload bytes that arrived in the interval; a packet that arrives twice counts twice.
    pub received_bytes: u64,
}

/// Takes samples in.
pub trait SampleSink {
    /// The samples of one instant, each list in rising order of port or flow. What goes wrong must be kept
    /// until somebody asks: the run goes on.
    fn sample(&mut self, at: Time, ports: &[PortSample], flows: &[FlowSample]);
}

/// That a run is to be sampled.
pub struct Sampling<'a> {
    /// How often. The interval that is under way when the run ends, ends with it.
    pub every: Span,
    /// Where the samples go.
    pub sink: &'a mut dyn SampleSink,
}
