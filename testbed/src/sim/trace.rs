//! Traces of a run: the events of its endpoints, in an order that does not depend on the number of threads.

use std::sync::Arc;

use weft_stack::event::{Record, Selection};

/// Receives the events of endpoints.
pub trait TraceSink {
    /// Receives the events of the next part of the run, ordered by time and host; those of one host at one instant
    /// in the order in which they happened. An error must be kept until the end, because the run goes on.
    fn records(&mut self, records: &[Record]);
}

/// How a run is traced.
pub struct Tracing<'a> {
    /// The hosts and PDCs whose events are traced.
    pub selection: Arc<Selection>,
    /// Where the events go.
    pub sink: &'a mut dyn TraceSink,
}

/// Brings the events of one window into their order. Each host's own events are in order already.
pub(super) fn sort(records: &mut [Record]) {
    records.sort_by_key(|record| (record.at.as_ps(), record.host));
}
