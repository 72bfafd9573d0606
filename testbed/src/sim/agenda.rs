//! What happens when.
//!
//! Nearly all events lie a fixed time ahead when they are scheduled — the serialisation of a full
//! packet, of an acknowledgement, the latency of a link — and the clock only moves forward, so the
//! events with one such delay come due in the order in which they were scheduled. A queue per delay,
//! merged at the front, replaces a heap for them; the few others go into a heap.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use weft_cc::{Span, Time};

/// Delays that get a queue of their own.
const MAX_LANES: usize = 12;

/// What an event is about. The order decides between events at the same instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// Something about a link changes: the index in the plan.
    Link(u32),
    /// A packet arrives at the end of a link: the link, and the packet.
    Arrival(u32, u32),
    /// A port has finished sending and has more.
    PortFree(u32),
    /// A host's timer.
    Timer(u32),
    /// A flow starts.
    Start(u32),
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    at: u64,
    event: Event,
    /// Keeps entries of a heap that are alike in the order in which they came.
    order: u64,
}

struct Lane {
    delay: u64,
    entries: VecDeque<(u64, Event)>,
}

/// The events to come.
pub(super) struct Agenda {
    now: u64,
    lanes: Vec<Lane>,
    heap: BinaryHeap<Reverse<Entry>>,
    pushed: u64,
}

impl Agenda {
    pub(super) fn new() -> Agenda {
        Agenda { now: 0, lanes: Vec::new(), heap: BinaryHeap::new(), pushed: 0 }
    }

    /// Schedules an event a time ahead that many events share.
    #[inline]
    pub(super) fn after(&mut self, delay: Span, event: Event) {
        let delay = delay.as_ps();
        let at = self.now.saturating_add(delay);
        if let Some(lane) = self.lanes.iter_mut().find(|lane| lane.delay == delay) {
            lane.entries.push_back((at, event));
        } else if self.lanes.len() < MAX_LANES {
            self.lanes.push(Lane { delay, entries: VecDeque::from([(at, event)]) });
        } else if let Some(lane) = self.lanes.iter_mut().find(|lane| lane.entries.is_empty()) {
            // A delay that has gone out of use makes room.
            lane.delay = delay;
            lane.entries.push_back((at, event));
        } else {
            self.push_heap(at, event);
        }
    }

    /// Schedules an event at a time of its own; at once if that has passed.
    pub(super) fn at(&mut self, at: Time, event: Event) {
        self.push_heap(at.as_ps().max(self.now), event);
    }

    fn push_heap(&mut self, at: u64, event: Event) {
        self.pushed += 1;
        self.heap.push(Reverse(Entry { at, event, order: self.pushed }));
    }

    /// Moves the clock to the next instant at which something happens and puts all of it into
    /// `batch`, in order.
    pub(super) fn next(&mut self, batch: &mut Vec<Event>) -> Option<Time> {
        let fronts = self.lanes.iter().filter_map(|lane| lane.entries.front()).map(|entry| entry.0);
        let heap = self.heap.peek().map(|entry| entry.0.at);
        let at = fronts.chain(heap).min()?;
        self.now = at;
        batch.clear();
        for lane in &mut self.lanes {
            while let Some(&(time, event)) = lane.entries.front()
                && time == at
            {
                lane.entries.pop_front();
                batch.push(event);
            }
        }
        while let Some(entry) = self.heap.peek()
            && entry.0.at == at
        {
            batch.push(entry.0.event);
            self.heap.pop();
        }
        if batch.len() > 1 {
            batch.sort();
        }
        Some(Time::from_ps(at))
    }

    pub(super) fn now(&self) -> Time {
        Time::from_ps(self.now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn yields_in_order_whatever_the_delays(
            delays in prop::collection::vec((0u64..40, 0u32..5, any::<bool>()), 1..300),
        ) {
            let mut agenda = Agenda::new();
            let mut model: Vec<(u64, Event)> = Vec::new();
            let mut batch = Vec::new();
            for chunk in delays.chunks(7) {
                for &(delay, id, lane) in chunk {
                    let event = Event::PortFree(id);
                    let at = agenda.now() + Span::from_ps(delay);
                    if lane { agenda.after(Span::from_ps(delay), event) } else { agenda.at(at, event) }
                    model.push((at.as_ps(), event));
                }
                let expected = model.iter().map(|m| m.0).min();
                prop_assert_eq!(agenda.next(&mut batch).map(Time::as_ps), expected);
                let mut due: Vec<Event> =
                    model.iter().filter(|m| Some(m.0) == expected).map(|m| m.1).collect();
                due.sort();
                prop_assert_eq!(&batch, &due);
                model.retain(|m| Some(m.0) != expected);
            }
        }
    }
}
