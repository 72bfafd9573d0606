//! What happens when.
//!
//! Nearly all events lie a fixed time ahead when they are scheduled — the serialisation of a full
//! packet, of an acknowledgement, the latency of a link — and the clock only moves forward, so the
//! events with one such delay come due in the order in which they were scheduled. A queue per delay,
//! merged at the front, replaces a heap for them; the few others go into a heap.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};

use weft_cc::{Span, Time};

use super::packets::Transit;

/// Delays that get a queue of their own.
const MAX_LANES: usize = 12;
/// The time of nothing.
const NEVER: u64 = u64::MAX;

/// What an event is about. The order decides between events at the same instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// Something about a link changes: the index in the plan.
    Link(u32),
    /// A packet arrives at the end of a link.
    Arrival(u32, Transit),
    /// A port has finished sending and has more.
    PortFree(u32),
    /// A host's timer.
    Timer(u32),
    /// A flow starts.
    Start(u32),
}

impl Event {
    /// Decides between events at the same instant. Two packets on one link arrive at once only where
    /// the link has duplicated one.
    #[inline]
    fn rank(&self) -> (u8, u32, u32) {
        match self {
            Event::Link(id) => (0, *id, 0),
            Event::Arrival(id, transit) => (1, *id, transit.content),
            Event::PortFree(id) => (2, *id, 0),
            Event::Timer(id) => (3, *id, 0),
            Event::Start(id) => (4, *id, 0),
        }
    }
}

/// A scheduled event, in half a cache line.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Entry {
    at: u64,
    event: Event,
}

const _: () = assert!(size_of::<Entry>() <= 40);

impl Ord for Entry {
    fn cmp(&self, other: &Entry) -> Ordering {
        (self.at, self.event.rank()).cmp(&(other.at, other.event.rank()))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// All events of one instant, in order.
pub(super) type Batch = Vec<Event>;

/// The events to come.
pub(super) struct Agenda {
    now: u64,
    /// Lane by lane: the delay, and when the first entry is due.
    delays: [u64; MAX_LANES],
    heads: [u64; MAX_LANES],
    lanes: [VecDeque<Entry>; MAX_LANES],
    heap: BinaryHeap<Reverse<Entry>>,
    heap_head: u64,
}

impl Agenda {
    pub(super) fn new() -> Agenda {
        Agenda {
            now: 0,
            delays: [NEVER; MAX_LANES],
            heads: [NEVER; MAX_LANES],
            lanes: Default::default(),
            heap: BinaryHeap::new(),
            heap_head: NEVER,
        }
    }

    /// Schedules an event a time ahead that many events share.
    #[inline]
    pub(super) fn after(&mut self, delay: Span, event: Event) {
        let delay = delay.as_ps();
        let at = self.now + delay;
        match self.delays.iter().position(|known| *known == delay) {
            Some(lane) => self.push_lane(lane, at, event),
            None => self.after_unusual(delay, at, event),
        }
    }

    /// Schedules an event at a time of its own; at once if that has passed.
    pub(super) fn at(&mut self, at: Time, event: Event) {
        self.push_heap(at.as_ps().max(self.now), event);
    }

    #[inline]
    fn push_lane(&mut self, lane: usize, at: u64, event: Event) {
        let entries = &mut self.lanes[lane];
        if entries.is_empty() {
            self.heads[lane] = at;
        }
        entries.push_back(Entry { at, event });
    }

    /// A delay that has no lane takes one that is out of use.
    #[cold]
    fn after_unusual(&mut self, delay: u64, at: u64, event: Event) {
        match self.lanes.iter().position(VecDeque::is_empty) {
            Some(lane) => {
                self.delays[lane] = delay;
                self.push_lane(lane, at, event);
            }
            None => self.push_heap(at, event),
        }
    }

    fn push_heap(&mut self, at: u64, event: Event) {
        self.heap.push(Reverse(Entry { at, event }));
        self.heap_head = self.heap_head.min(at);
    }

    /// Moves the clock to the next instant at which something happens and puts all of it into `batch`;
    /// or, if that lies beyond `until`, moves it there and yields nothing.
    #[inline]
    pub(super) fn next(&mut self, until: Option<Time>, batch: &mut Batch) -> Option<Time> {
        let at = self.heads.iter().fold(self.heap_head, |min, head| min.min(*head));
        if let Some(until) = until
            && until.as_ps() < at
        {
            self.now = until.as_ps();
            return None;
        }
        if at == NEVER {
            return None;
        }
        self.now = at;
        batch.clear();
        for lane in 0..MAX_LANES {
            if self.heads[lane] == at {
                self.take_lane(lane, at, batch);
            }
        }
        if self.heap_head == at {
            self.take_heap(at, batch);
        }
        if batch.len() > 1 {
            batch.sort_unstable_by_key(Event::rank);
        }
        Some(Time::from_ps(at))
    }

    #[inline]
    fn take_lane(&mut self, lane: usize, at: u64, batch: &mut Batch) {
        let entries = &mut self.lanes[lane];
        self.heads[lane] = loop {
            match entries.front() {
                Some(entry) if entry.at == at => {
                    batch.push(entry.event);
                    entries.pop_front();
                }
                Some(entry) => break entry.at,
                None => break NEVER,
            }
        };
    }

    fn take_heap(&mut self, at: u64, batch: &mut Batch) {
        self.heap_head = loop {
            match self.heap.peek() {
                Some(Reverse(entry)) if entry.at == at => {
                    batch.push(entry.event);
                    self.heap.pop();
                }
                Some(Reverse(entry)) => break entry.at,
                None => break NEVER,
            }
        };
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
            let mut batch = Batch::default();
            for chunk in delays.chunks(7) {
                for &(delay, id, lane) in chunk {
                    let event = Event::PortFree(id);
                    let at = agenda.now() + Span::from_ps(delay);
                    if lane { agenda.after(Span::from_ps(delay), event) } else { agenda.at(at, event) }
                    model.push((at.as_ps(), event));
                }
                let expected = model.iter().map(|m| m.0).min();
                prop_assert_eq!(agenda.next(None, &mut batch).map(Time::as_ps), expected);
                let mut due: Vec<Event> =
                    model.iter().filter(|m| Some(m.0) == expected).map(|m| m.1).collect();
                due.sort_by_key(Event::rank);
                prop_assert_eq!(&batch, &due);
                model.retain(|m| Some(m.0) != expected);
            }
        }
    }
}
