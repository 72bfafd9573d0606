//! The sending end of a link: what waits for it, and what is on it.

use std::collections::VecDeque;

use weft_cc::Span;

use super::ticket::Ticket;
use crate::sim::{Condition, LinkChange, LinkSpec};
use crate::switch::{EgressQueue, QueueConfig};
use crate::topology::{Node, PortId};

/// Who sends on a link.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "most are ports of switches, and a packet must not take a further look-up"
)]
pub(super) enum Sender {
    /// The host of this number, by its own queue.
    Host(u32),
    /// A port of a switch.
    Switch { queue: EgressQueue<Ticket>, config: QueueConfig },
}

/// The sending end of a link.
pub(super) struct Outlet {
    pub(super) sender: Sender,
    /// Who receives.
    pub(super) to: Node,
    /// The receiver's port for the other direction: it decides between packets that arrive at the same instant.
    pub(super) rank: u32,
    /// Whether a packet is leaving.
    pub(super) busy: bool,
    spec: LinkSpec,
    condition: Condition,
    /// What is on the link, the next to arrive first, and when, ps.
    in_flight: VecDeque<(u64, Ticket)>,
}

/// A packet has begun to leave.
pub(super) struct Departure {
    /// When its last bit leaves, ps.
    pub(super) free_at: u64,
    /// What becomes of it; `None` if the link loses it.
    pub(super) delivery: Option<Delivery>,
}

/// The way of a packet over a link that does not lose it.
pub(super) struct Delivery {
    /// When it would arrive, ps.
    pub(super) on_time: u64,
    /// When it does.
    pub(super) at: u64,
    /// Whether a bit of it flips.
    pub(super) corrupt: bool,
    /// Whether another one like it arrives on time.
    pub(super) duplicate: bool,
}

impl Outlet {
    pub(super) fn new(sender: Sender, to: Node, reverse: PortId, spec: LinkSpec) -> Outlet {
        let condition = Condition::new(&spec);
        Outlet { sender, to, rank: reverse.0, busy: false, spec, condition, in_flight: VecDeque::new() }
    }

    /// A packet of `size` bytes on the wire begins to leave at `now`.
    pub(super) fn depart(&mut self, now: u64, size: u32, seed: u64) -> Departure {
        self.busy = true;
        let free_at = now + self.condition.time_for(size);
        let on_time = free_at + self.spec.latency;
        let delivery = self.condition.draw_outcome(self.spec.id, seed).map(|outcome| Delivery {
            on_time,
            at: on_time + outcome.held_up.as_ps(),
            corrupt: outcome.corrupt,
            duplicate: outcome.duplicate,
        });
        Departure { free_at, delivery }
    }

    /// A packet is on the link and arrives at `at`.
    pub(super) fn carry(&mut self, at: u64, ticket: Ticket) {
        // Links keep the order of packets, except where they hold some of them up.
        let behind = self.in_flight.iter().rev().take_while(|(other, _)| *other > at).count();
        self.in_flight.insert(self.in_flight.len() - behind, (at, ticket));
    }

    /// Takes the packet that arrives next.
    pub(super) fn arrival(&mut self) -> Option<Ticket> {
        self.in_flight.pop_front().map(|(_, ticket)| ticket)
    }

    /// Something becomes of the link.
    pub(super) fn change(&mut self, change: LinkChange) {
        self.condition.change(&self.spec, change);
    }

    /// Most bytes on the link at a time, at the rate that it has from the start.
    pub(super) fn capacity(&self) -> u64 {
        self.spec.rate.bytes_in(Span::from_ps(self.spec.latency))
    }
}
