//! What is on the wires: for each link a queue of packets that have left and not arrived.
//!
//! Times here and throughout the engine are picoseconds since the start of the run; they neither wrap
//! nor reach [`NEVER`].

use std::collections::VecDeque;

use super::packets::{Content, Packets, Transit};

/// The time of what does not happen.
pub(super) const NEVER: u64 = u64::MAX;

/// The receiving end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Inlet {
    /// The shard of the node that receives.
    pub(super) shard: u32,
    /// The node, as its shard numbers them.
    pub(super) node: u32,
    /// The queue of this link among those of the shard.
    pub(super) pipe: u32,
}

/// A packet on a link.
#[derive(Clone, Copy)]
pub(super) struct Arrival {
    pub(super) at: u64,
    pub(super) transit: Transit,
}

const _: () = assert!(size_of::<Arrival>() == 32, "two to a cache line");

/// A packet that leaves a shard for another.
pub(super) struct Crossing {
    inlet: Inlet,
    arrival: Arrival,
    content: Content,
}

/// All links that end in one shard.
pub(super) struct Wires {
    shard: u32,
    pub(super) packets: Packets,
    pipes: Vec<VecDeque<Arrival>>,
    /// Pipe by pipe, when its first packet arrives.
    heads: Vec<u64>,
    /// Node by node, a time before which nothing happens there.
    pub(super) next: Vec<u64>,
    /// The earliest arrival of all packets that were sent since this was last asked for.
    earliest: u64,
    /// Shard by shard, what goes there.
    pub(super) outboxes: Vec<Vec<Crossing>>,
}

impl Wires {
    pub(super) fn new(shard: u32, shards: usize, nodes: usize, pipes: usize) -> Wires {
        Wires {
            shard,
            packets: Packets::default(),
            pipes: (0..pipes).map(|_| VecDeque::new()).collect(),
            heads: vec![NEVER; pipes],
            next: vec![NEVER; nodes],
            earliest: NEVER,
            outboxes: (0..shards).map(|_| Vec::new()).collect(),
        }
    }

    /// A packet leaves and will arrive at `at`. (Inlined, like all that a packet passes on its way through a
    /// switch: it stays in registers. Written to the stack and read back in other pieces it costs more than
    /// all the rest.)
    #[inline(always)]
    pub(super) fn send(&mut self, to: Inlet, at: u64, transit: Transit) {
        self.earliest = self.earliest.min(at);
        if to.shard == self.shard {
            self.push(to, at, transit);
        } else {
            let content = self.packets.take(transit.content);
            let crossing = Crossing { inlet: to, arrival: Arrival { at, transit }, content };
            self.outboxes[to.shard as usize].push(crossing);
        }
    }

    /// Takes in what another shard has sent.
    pub(super) fn receive(&mut self, crossings: &mut Vec<Crossing>) {
        for Crossing { inlet, arrival, content } in crossings.drain(..) {
            let transit = Transit { content: self.packets.put(content), ..arrival.transit };
            self.push(inlet, arrival.at, transit);
        }
    }

    #[inline(always)]
    fn push(&mut self, to: Inlet, at: u64, transit: Transit) {
        let pipe = &mut self.pipes[to.pipe as usize];
        let last = pipe.back().map_or(0, |last| last.at);
        pipe.push_back(Arrival { at, transit });
        if at < last {
            return self.overtake(to, at);
        }
        let head = &mut self.heads[to.pipe as usize];
        *head = at.min(*head);
        let next = &mut self.next[to.node as usize];
        *next = at.min(*next);
    }

    /// Links keep the order of packets, except where they hold some of them up: moves the last packet, which
    /// arrives at `at`, to where it belongs.
    #[cold]
    fn overtake(&mut self, to: Inlet, at: u64) {
        let pipe = &mut self.pipes[to.pipe as usize];
        if let Some(arrival) = pipe.pop_back() {
            let place = pipe.partition_point(|other| other.at <= at);
            pipe.insert(place, arrival);
        }
        let head = &mut self.heads[to.pipe as usize];
        *head = at.min(*head);
        let next = &mut self.next[to.node as usize];
        *next = at.min(*next);
    }

    /// When the first packet of `pipe` arrives.
    #[inline]
    pub(super) fn head(&self, pipe: u32) -> u64 {
        self.heads[pipe as usize]
    }

    /// Takes the first packet of `pipe` off.
    #[inline]
    pub(super) fn pop(&mut self, pipe: u32) -> Option<Arrival> {
        let queue = &mut self.pipes[pipe as usize];
        let arrival = queue.pop_front();
        self.heads[pipe as usize] = match queue.front() {
            Some(first) => first.at,
            None => {
                // Back to the start of its memory: the less of it is used the more of it is in the cache.
                queue.clear();
                NEVER
            }
        };
        arrival
    }

    /// The packets that arrive by `pipe` before `end`, which stay there.
    pub(super) fn before(&self, pipe: u32, end: u64) -> impl Iterator<Item = &Arrival> {
        self.pipes[pipe as usize].iter().take_while(move |arrival| arrival.at < end)
    }

    /// The earliest arrival of all packets that were sent since this was last asked for.
    pub(super) fn take_earliest(&mut self) -> u64 {
        std::mem::replace(&mut self.earliest, NEVER)
    }
}
