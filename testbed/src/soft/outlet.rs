//! The sending end of a link: its queue, and the packets in flight on it.

use std::collections::VecDeque;

use weft_cc::Span;

use super::ticket::Ticket;
use crate::sim::{Condition, LinkChange, LinkSpec};
use crate::switch::{Backlog, EgressQueue, QueueConfig};
use crate::topology::{Node, PortId};

/// The sender on a link.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "most are ports of switches, and a box would cost each packet another look-up"
)]
pub(super) enum Sender {
    /// The host with this number, which has its own queue.
    Host(u32),
    /// A port of a switch.
    Switch { queue: EgressQueue<Ticket>, config: QueueConfig },
}

/// The sending end of a link.
pub(super) struct Outlet {
    pub(super) sender: Sender,
    /// The host or switch at the receiving end.
    pub(super) to: Node,
    /// The receiver's port for the other direction, which orders packets that arrive at the same instant.
    pub(super) rank: u32,
    /// Whether a packet is being transmitted.
    pub(super) busy: bool,
    /// When the last bit of the last packet leaves, ps.
    free_at: u64,
    spec: LinkSpec,
    condition: Condition,
    /// Packets on the link with their arrival times in ps, the next to arrive first.
    in_flight: VecDeque<(u64, Ticket)>,
}

/// The transmission of a packet.
pub(super) struct Departure {
    /// When its last bit leaves, ps.
    pub(super) free_at: u64,
    /// Its arrival; `None` if the link loses the packet.
    pub(super) arrival: Option<LinkArrival>,
}

/// The arrival of a packet that the link does not lose.
pub(super) struct LinkArrival {
    /// Arrival time without delay by a fault, ps.
    pub(super) on_time: u64,
    /// Actual arrival time, ps.
    pub(super) at: u64,
    /// Whether one of its bits flips.
    pub(super) corrupt: bool,
    /// Whether a copy arrives on time.
    pub(super) duplicate: bool,
}

impl Outlet {
    pub(super) fn new(sender: Sender, to: Node, reverse: PortId, spec: LinkSpec) -> Outlet {
        let condition = Condition::new(&spec);
        Outlet {
            sender,
            to,
            rank: reverse.0,
            busy: false,
            free_at: 0,
            spec,
            condition,
            in_flight: VecDeque::new(),
        }
    }

    /// Draws whether the switch that sends here trims a packet whatever room its queue has.
    pub(super) fn draws_trim(&mut self, seed: u64, packet: &Ticket) -> bool {
        self.condition.draws_trim(self.spec.id, seed, packet)
    }

    /// Starts to transmit a packet of `size` bytes on the wire at `now`, ps.
    pub(super) fn depart(&mut self, now: u64, size: u32, seed: u64) -> Departure {
        self.busy = true;
        let free_at = now + self.condition.time_for(size);
        self.free_at = free_at;
        let outcome = self.condition.draw_outcome(self.spec.id, seed, size);
        let arrival = outcome.map(|outcome| {
            let on_time = self.condition.on_time(free_at + self.spec.latency);
            LinkArrival {
                on_time,
                at: on_time + outcome.held_up.as_ps(),
                corrupt: outcome.corrupt,
                duplicate: outcome.duplicate,
            }
        });
        Departure { free_at, arrival }
    }

    /// The bytes that `packet` would wait for here at `now`, ps. Hosts have queues of their own.
    pub(super) fn backlog(&self, now: u64, packet: &Ticket) -> Backlog {
        let unsent = self.condition.bytes_in(self.free_at.saturating_sub(now));
        match &self.sender {
            Sender::Host(_) => Backlog { bytes: unsent, data_limit: u64::MAX },
            Sender::Switch { queue, config } => {
                Backlog { bytes: queue.bytes_ahead_of(packet) + unsent, data_limit: config.data_limit }
            }
        }
    }

    /// Puts a packet on the link, to arrive at `at`, ps.
    pub(super) fn carry(&mut self, at: u64, ticket: Ticket) {
        // Links keep packets in order, unless a fault delays some of them.
        let behind = self.in_flight.iter().rev().take_while(|(other, _)| *other > at).count();
        self.in_flight.insert(self.in_flight.len() - behind, (at, ticket));
    }

    /// Takes the packet that arrives next.
    pub(super) fn arrival(&mut self) -> Option<Ticket> {
        self.in_flight.pop_front().map(|(_, ticket)| ticket)
    }

    /// Applies a change to the link.
    pub(super) fn change(&mut self, change: LinkChange) {
        self.condition.change(&self.spec, change);
    }

    /// Maximum number of bytes on the link at its initial rate, with an extra delay of `extra`.
    pub(super) fn capacity(&self, extra: Span) -> u64 {
        self.spec.rate.bytes_in(Span::from_ps(self.spec.latency) + extra)
    }
}
