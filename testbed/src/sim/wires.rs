//! Packets on the wires: for each node, the packets that have been sent to it and have not arrived.
//!
//! Times here and throughout the engine are picoseconds since the start of the run; they neither wrap
//! nor reach [`NEVER`].

use std::collections::BTreeMap;

use weft_stack::prefetch::prefetch;

use super::packets::{Packets, Transit};

/// The time of an event that never happens.
pub(super) const NEVER: u64 = u64::MAX;

/// The receiving end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Inlet {
    /// The shard of the node that receives.
    pub(super) shard: u32,
    /// The node, as its shard numbers them.
    pub(super) node: u32,
    /// The index of the inbox that receives its packets.
    pub(super) inbox: u32,
    /// The number of this link among the links that end at the node. Of packets that arrive at the same
    /// instant, the one from the lower link comes first.
    pub(super) rank: u32,
}

/// A packet on a link, with its time of arrival.
#[derive(Clone, Copy)]
pub(super) struct Arrival {
    pub(super) at: u64,
    /// See [`Inlet`].
    pub(super) rank: u32,
    pub(super) transit: Transit,
}

const _: () = assert!(size_of::<Arrival>() == 32, "two to a cache line");

/// A packet on its way from one shard to another.
pub(super) struct Crossing {
    inlet: Inlet,
    at: u64,
    transit: Transit,
}

/// The packets on their way to one host or switch. Packets of one link are in the order of sending.
#[derive(Default)]
pub(super) struct Inbox {
    arrivals: Vec<Arrival>,
    /// Index of the first packet that has not been taken.
    head: usize,
}

impl Inbox {
    /// The arrival time of the first packet. The inbox must be sorted by time.
    #[inline]
    fn first(&self) -> u64 {
        self.arrivals.get(self.head).map_or(NEVER, |first| first.at)
    }
}

/// Packets that arrive much later than the window in which they left, as over a link between data centres. They stay out
/// of the inboxes, which nodes read as a whole in each window.
struct Far {
    /// Packets that arrive from this time on are far. It moves on with the windows.
    from: u64,
    /// The length of the periods by which far packets are kept, ps. A packet moves to its inbox when its period begins.
    period: u64,
    periods: BTreeMap<u64, Vec<Crossing>>,
    /// When the first period with packets begins.
    first: u64,
}

/// Length of [`Far::period`] in lookaheads; the length of a window is 2. Nearly all packets over links of similar latencies
/// are near.
const PERIOD: u64 = 4;

/// All links that end in one shard.
pub(super) struct Wires {
    shard: u32,
    pub(super) packets: Packets,
    inboxes: Vec<Inbox>,
    /// For each node, a lower bound for the time of its next event.
    pub(super) next: Vec<u64>,
    /// The earliest arrival of the packets sent to other shards since the last call of `take_earliest`.
    earliest: u64,
    /// For each shard, the packets that go there.
    pub(super) outboxes: Vec<Vec<Crossing>>,
    far: Far,
}

impl Wires {
    pub(super) fn new(shard: u32, packets: Packets, nodes: usize, inboxes: usize, lookahead: u64) -> Wires {
        let shards = packets.mail.len();
        Wires {
            shard,
            packets,
            inboxes: (0..inboxes).map(|_| Inbox::default()).collect(),
            next: vec![NEVER; nodes],
            earliest: NEVER,
            outboxes: (0..shards).map(|_| Vec::new()).collect(),
            far: Far {
                from: 2 * PERIOD * lookahead,
                period: PERIOD * lookahead,
                periods: BTreeMap::new(),
                first: NEVER,
            },
        }
    }

    /// Sends a packet that will arrive at `at`. Inlined and by reference, like all code on the packet path
    /// through a switch, so that a packet is copied directly from queue to queue: a copy on the stack, read
    /// back in different pieces, would cost more than the rest of the hop.
    #[inline(always)]
    pub(super) fn send(&mut self, to: Inlet, at: u64, transit: &Transit) {
        if to.shard == self.shard {
            self.push(to, at, transit);
        } else {
            self.earliest = self.earliest.min(at);
            self.outboxes[to.shard as usize].push(Crossing { inlet: to, at, transit: *transit });
        }
    }

    /// Delivers the packets that another shard has sent.
    pub(super) fn receive(&mut self, crossings: &mut Vec<Crossing>) {
        for Crossing { inlet, at, transit } in crossings.drain(..) {
            self.push(inlet, at, &transit);
        }
    }

    #[inline(always)]
    fn push(&mut self, to: Inlet, at: u64, transit: &Transit) {
        if at >= self.far.from {
            return self.push_far(to, at, transit);
        }
        self.inboxes[to.inbox as usize].arrivals.push(Arrival { at, rank: to.rank, transit: *transit });
        let next = &mut self.next[to.node as usize];
        *next = at.min(*next);
    }

    #[cold]
    #[inline(never)]
    fn push_far(&mut self, to: Inlet, at: u64, transit: &Transit) {
        let begin = at / self.far.period * self.far.period;
        self.far.periods.entry(begin).or_default().push(Crossing { inlet: to, at, transit: *transit });
        self.far.first = self.far.first.min(begin);
    }

    /// Begins a window that ends at `end`: moves the far packets that may arrive in it to their inboxes. Packets of one
    /// link stay in the order of sending, because those that arrive at the same instant are in the same period.
    #[inline]
    pub(super) fn bring_near(&mut self, end: u64) {
        self.far.from = end.saturating_add(2 * self.far.period);
        if self.far.first < end {
            self.bring_periods_near(end);
        }
    }

    #[cold]
    fn bring_periods_near(&mut self, end: u64) {
        while let Some((begin, mut crossings)) = self.far.periods.pop_first() {
            if begin >= end {
                self.far.periods.insert(begin, crossings);
                break;
            }
            self.receive(&mut crossings);
        }
        self.far.first = self.far.periods.first_key_value().map_or(NEVER, |(begin, _)| *begin);
    }

    /// A time before which no far packet arrives.
    #[inline]
    pub(super) fn first_far(&self) -> u64 {
        self.far.first
    }

    /// Begins a window at a host: sorts its inbox by time. Links keep packets in order, unless a fault delays
    /// some of them.
    #[inline]
    pub(super) fn sort(&mut self, inbox: u32) {
        let arrivals = &mut self.inboxes[inbox as usize].arrivals;
        if !arrivals.is_sorted_by_key(|arrival| arrival.at) {
            arrivals.sort_by_key(|arrival| arrival.at);
        }
    }

    /// The arrival time of the first packet of a host.
    #[inline]
    pub(super) fn first(&self, inbox: u32) -> u64 {
        self.inboxes[inbox as usize].first()
    }

    /// Takes the first packet of a host.
    #[inline]
    pub(super) fn pop(&mut self, inbox: u32) -> Option<Arrival> {
        let inbox = &mut self.inboxes[inbox as usize];
        let arrival = inbox.arrivals.get(inbox.head).copied();
        inbox.head += usize::from(arrival.is_some());
        arrival
    }

    /// Ends a window at a host: removes the packets that have been taken.
    #[inline]
    pub(super) fn tidy(&mut self, inbox: u32) {
        let inbox = &mut self.inboxes[inbox as usize];
        // The inbox always starts at the front of its memory, so that the same cache lines are used again.
        inbox.arrivals.drain(..inbox.head);
        inbox.head = 0;
    }

    /// Prefetches the first packets of a host.
    #[inline]
    pub(super) fn prefetch(&self, inbox: u32) {
        if let Some(first) = self.inboxes[inbox as usize].arrivals.first() {
            prefetch(first);
        }
    }

    /// The packets of a host that arrive before `end`.
    #[inline]
    pub(super) fn before(&self, inbox: u32, end: u64) -> impl Iterator<Item = &Arrival> {
        self.inboxes[inbox as usize].arrivals.iter().filter(move |arrival| arrival.at < end)
    }

    /// Takes all packets of a switch, in no order, together with their buffer.
    #[inline]
    pub(super) fn take(&mut self, inbox: u32) -> Vec<Arrival> {
        std::mem::take(&mut self.inboxes[inbox as usize].arrivals)
    }

    /// Returns the packets of a switch that have not arrived, together with their buffer.
    #[inline]
    pub(super) fn put_back(&mut self, inbox: u32, arrivals: Vec<Arrival>) {
        self.inboxes[inbox as usize].arrivals = arrivals;
    }

    /// The earliest arrival of the packets sent to other shards since the last call of `take_earliest`.
    pub(super) fn take_earliest(&mut self) -> u64 {
        std::mem::replace(&mut self.earliest, NEVER)
    }
}
