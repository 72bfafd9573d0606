//! Packets from an endpoint to itself, such as those between two applications of one server. No port sees them.
//!
//! They are copied once on the way and arrive in the next turn, as if the link were very short.

use std::collections::VecDeque;

use weft_cc::Time;

use crate::fep::Fep;
use crate::packet::{Packet, Payload};
use crate::port::BURST;

/// The packets that have left and not arrived yet.
#[derive(Debug, Default)]
pub(super) struct Loopback {
    under_way: VecDeque<(Packet, Vec<u8>)>,
    /// Those of them that arrive in this turn; empty between turns.
    arriving: VecDeque<(Packet, Vec<u8>)>,
    /// Memory of packets that have arrived.
    spare: Vec<Vec<u8>>,
}

impl Loopback {
    /// Whether no further packet may leave in this turn.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.under_way.len() >= BURST
    }

    /// The number of packets that arrive in the next turn.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.under_way.len()
    }

    /// Copies a packet that leaves.
    pub(super) fn push(&mut self, packet: &Packet, payload: Payload<'_>) {
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.resize(payload.len() as usize, 0);
        payload.copy_to(&mut bytes);
        self.under_way.push_back((*packet, bytes));
    }

    /// Lets all packets arrive that have left in earlier turns. Returns how many there were.
    pub(super) fn deliver(&mut self, fep: &mut Fep, now: Time) -> usize {
        std::mem::swap(&mut self.under_way, &mut self.arriving);
        let count = self.arriving.len();
        while let Some((packet, bytes)) = self.arriving.pop_front() {
            fep.on_packet(now, &packet, Payload::Bytes(&bytes));
            self.spare.push(bytes);
        }
        count
    }
}
