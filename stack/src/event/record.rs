//! Events with their time and their host: the rows of a trace.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use weft_cc::Time;

use super::{Event, Subscriber};
use crate::wire::pds::PdcId;

/// An event of a host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Record {
    /// The time of the event, by the clock of the endpoint.
    pub at: Time,
    /// The number of the host, as the subscriber counts hosts.
    pub host: u32,
    /// The event that the endpoint reported.
    pub event: Event,
}

/// The events that a trace is to contain; by default all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// The hosts; `None` means all.
    pub hosts: Option<BTreeSet<u32>>,
    /// The PDCs, by their numbers at the selected hosts; `None` means all. With a selection of PDCs, events that
    /// belong to no PDC are left out.
    pub pdcs: Option<BTreeSet<PdcId>>,
}

impl Selection {
    /// Whether the trace contains events of `host`.
    pub fn has_host(&self, host: u32) -> bool {
        self.hosts.as_ref().is_none_or(|hosts| hosts.contains(&host))
    }

    /// Whether the trace contains `event`, if it contains events of its host.
    #[inline]
    pub fn has_event(&self, event: &Event) -> bool {
        self.pdcs.as_ref().is_none_or(|pdcs| event.pdc().is_some_and(|pdc| pdcs.contains(&pdc)))
    }
}

/// Keeps events in memory, in the order in which they happen. Clones share what they keep, so that one list can
/// receive the events of several endpoints.
#[derive(Clone, Debug, Default)]
pub struct Recorder {
    selection: Arc<Selection>,
    records: Arc<Mutex<Vec<Record>>>,
}

impl Recorder {
    /// A recorder that keeps the selected events.
    pub fn new(selection: Arc<Selection>) -> Recorder {
        Recorder { selection, records: Arc::default() }
    }

    /// A subscriber for the endpoint of `host`; `None` if that host is not selected.
    pub fn subscriber(&self, host: u32) -> Option<Box<dyn Subscriber + Send>> {
        let of_host =
            || Box::new(HostRecorder { recorder: self.clone(), host }) as Box<dyn Subscriber + Send>;
        self.selection.has_host(host).then(of_host)
    }

    /// Moves what has been recorded since the last call to the end of `records`.
    pub fn take_into(&self, records: &mut Vec<Record>) {
        records.append(&mut self.records.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The records since the last call.
    pub fn take(&self) -> Vec<Record> {
        let mut records = Vec::new();
        self.take_into(&mut records);
        records
    }
}

/// A recorder, and the host whose events it gets.
struct HostRecorder {
    recorder: Recorder,
    host: u32,
}

impl Subscriber for HostRecorder {
    fn on_event(&mut self, now: Time, event: &Event) {
        if self.recorder.selection.has_event(event) {
            let record = Record { at: now, host: self.host, event: *event };
            self.recorder.records.lock().unwrap_or_else(PoisonError::into_inner).push(record);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Addr;
    use crate::wire::pds::Psn;

    fn lost(pdc: u16) -> Event {
        Event::LossInferred { pdc: PdcId(pdc), psn: Psn(7) }
    }

    #[test]
    fn a_recorder_keeps_the_events_of_selected_hosts_and_pdcs() {
        let selection = Selection { hosts: Some([1, 2].into()), pdcs: Some([PdcId(5)].into()) };
        let recorder = Recorder::new(selection.into());
        assert!(recorder.subscriber(0).is_none());
        let mut first = recorder.subscriber(1).unwrap();
        let mut second = recorder.subscriber(2).unwrap();
        first.on_event(Time::from_ps(1), &lost(5));
        first.on_event(Time::from_ps(2), &lost(6));
        second.on_event(Time::from_ps(3), &lost(5));
        second.on_event(Time::from_ps(4), &Event::Ignored { peer: Addr(0), why: "no PDC" });
        let record = |ps, host| Record { at: Time::from_ps(ps), host, event: lost(5) };
        assert_eq!(recorder.take(), [record(1, 1), record(3, 2)]);
        assert_eq!(recorder.take(), []);
    }
}
