//! What is on the wires: for each node the packets that have left for it and not arrived.
//!
//! Times here and throughout the engine are picoseconds since the start of the run; they neither wrap
//! nor reach [`NEVER`].

use weft_stack::prefetch::prefetch;

use super::packets::{Packets, Transit};

/// The time of what does not happen.
pub(super) const NEVER: u64 = u64::MAX;

/// The receiving end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Inlet {
    /// The shard of the node that receives.
    pub(super) shard: u32,
    /// The node, as its shard numbers them.
    pub(super) node: u32,
    /// Where its packets are put.
    pub(super) inbox: u32,
    /// Counts the links that end at the node: of packets that arrive at the same instant the one from the
    /// lower link comes first.
    pub(super) rank: u32,
}

/// A packet on a link.
#[derive(Clone, Copy)]
pub(super) struct Arrival {
    pub(super) at: u64,
    /// See [`Inlet`]; while a switch plans its window, the port that the packet goes to.
    pub(super) rank: u32,
    pub(super) transit: Transit,
}

const _: () = assert!(size_of::<Arrival>() == 32, "two to a cache line");

/// A packet that leaves a shard for another.
pub(super) struct Crossing {
    inlet: Inlet,
    at: u64,
    transit: Transit,
}

/// The packets that are on their way to one host or switch, those of one link in the order in which
/// they were sent.
#[derive(Default)]
pub(super) struct Inbox {
    arrivals: Vec<Arrival>,
    /// Those before this one have been taken.
    head: usize,
}

impl Inbox {
    /// When the first packet arrives. The inbox must be in order of time.
    #[inline]
    fn first(&self) -> u64 {
        self.arrivals.get(self.head).map_or(NEVER, |first| first.at)
    }
}

/// All links that end in one shard.
pub(super) struct Wires {
    shard: u32,
    pub(super) packets: Packets,
    inboxes: Vec<Inbox>,
    /// Node by node, a time before which nothing happens there.
    pub(super) next: Vec<u64>,
    /// The earliest arrival of all packets that were sent to other shards since this was last asked for.
    earliest: u64,
    /// Shard by shard, what goes there.
    pub(super) outboxes: Vec<Vec<Crossing>>,
}

impl Wires {
    pub(super) fn new(shard: u32, packets: Packets, nodes: usize, inboxes: usize) -> Wires {
        let shards = packets.mail.len();
        Wires {
            shard,
            packets,
            inboxes: (0..inboxes).map(|_| Inbox::default()).collect(),
            next: vec![NEVER; nodes],
            earliest: NEVER,
            outboxes: (0..shards).map(|_| Vec::new()).collect(),
        }
    }

    /// A packet leaves and will arrive at `at`. (Inlined, and by reference, like all that a packet passes on its
    /// way through a switch: it is copied from queue to queue at once. Written to the stack and read back in
    /// other pieces it would cost more than all the rest.)
    #[inline(always)]
    pub(super) fn send(&mut self, to: Inlet, at: u64, transit: &Transit) {
        if to.shard == self.shard {
            self.push(to, at, transit);
        } else {
            self.earliest = self.earliest.min(at);
            self.outboxes[to.shard as usize].push(Crossing { inlet: to, at, transit: *transit });
        }
    }

    /// Takes in what another shard has sent.
    pub(super) fn receive(&mut self, crossings: &mut Vec<Crossing>) {
        for Crossing { inlet, at, transit } in crossings.drain(..) {
            self.push(inlet, at, &transit);
        }
    }

    #[inline(always)]
    fn push(&mut self, to: Inlet, at: u64, transit: &Transit) {
        self.inboxes[to.inbox as usize].arrivals.push(Arrival { at, rank: to.rank, transit: *transit });
        let next = &mut self.next[to.node as usize];
        *next = at.min(*next);
    }

    /// Begins a window at a host: puts its inbox in order. Links keep the order of packets, except where
    /// they hold some of them up.
    #[inline]
    pub(super) fn sort(&mut self, inbox: u32) {
        let arrivals = &mut self.inboxes[inbox as usize].arrivals;
        if !arrivals.is_sorted_by_key(|arrival| arrival.at) {
            arrivals.sort_by_key(|arrival| arrival.at);
        }
    }

    /// When the first packet of a host arrives.
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

    /// Ends a window at a host: what has been taken makes room.
    #[inline]
    pub(super) fn tidy(&mut self, inbox: u32) {
        let inbox = &mut self.inboxes[inbox as usize];
        // Always from the start of its memory: the less of it is used the more of it is in the cache.
        inbox.arrivals.drain(..inbox.head);
        inbox.head = 0;
    }

    /// Brings the first packets of a host into the cache.
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

    /// Takes all packets of a switch, in no order, and the memory that they are in.
    #[inline]
    pub(super) fn take(&mut self, inbox: u32) -> Vec<Arrival> {
        std::mem::take(&mut self.inboxes[inbox as usize].arrivals)
    }

    /// Gives a switch's packets back that have not arrived, with the memory that they are in.
    #[inline]
    pub(super) fn put_back(&mut self, inbox: u32, arrivals: Vec<Arrival>) {
        self.inboxes[inbox as usize].arrivals = arrivals;
    }

    /// The earliest arrival of all packets that were sent to other shards since this was last asked for.
    pub(super) fn take_earliest(&mut self) -> u64 {
        std::mem::replace(&mut self.earliest, NEVER)
    }
}
