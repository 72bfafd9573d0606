//! The retransmission queue of a PDC: packets that are taken for lost, in the order in which they are sent again.

use std::collections::VecDeque;

use weft_cc::Time;

use super::TxPdc;
use crate::pdc::record::State;
use crate::wire::pds::{DeliveryMode, Psn};

impl TxPdc {
    /// Puts the lost packets of the messages of `psns` behind all others that wait for retransmission: their target refuses
    /// them, and may take another. Not with ROD, where nothing arrives out of order.
    #[cold]
    pub fn postpone(&mut self, psns: impl IntoIterator<Item = Psn>) {
        let mut messages: Vec<u32> = psns.into_iter().filter_map(|psn| self.message_of(psn)).collect();
        if self.mode != DeliveryMode::Rud || messages.is_empty() {
            return;
        }
        messages.sort_unstable();
        messages.dedup();
        #[cfg(test)]
        crate::steps::count(self.lost.len());
        let in_order = self.in_order();
        let (mut others, mut refused, mut postponed) =
            (VecDeque::with_capacity(self.lost.len()), Vec::new(), 0);
        for (place, psn) in self.lost.iter().copied().enumerate().filter(|(_, psn)| self.is_lost(*psn)) {
            if self.message_of(psn).is_some_and(|message| messages.binary_search(&message).is_ok()) {
                refused.push(psn);
            } else {
                others.push_back(psn);
                postponed += u32::from(place >= in_order);
            }
        }
        refused.sort_by_key(|psn| psn.distance(self.cack));
        self.postponed = postponed + refused.len() as u32;
        others.extend(refused);
        self.lost = others;
    }

    /// How many messages wait for retransmission of packets that may be sent in any order; at least 1.
    #[cold]
    pub fn lost_messages(&self) -> u32 {
        let lost = self.lost.iter().filter(|psn| self.is_lost(**psn));
        let mut messages: Vec<Option<u32>> = lost.map(|psn| self.message_of(*psn)).collect();
        messages.dedup();
        if self.mode == DeliveryMode::Rud { (messages.len() as u32).max(1) } else { 1 }
    }

    fn message_of(&self, psn: Psn) -> Option<u32> {
        self.records.get(psn)?.kind().send()
    }

    /// Moves all packets in flight to the retransmission queue.
    pub fn lose_all(&mut self) {
        let added = self.psns().filter(|psn| self.append_lost(*psn)).count();
        self.put_in_order(added);
    }

    /// A packet of so many bytes has arrived that was to be sent again.
    #[cold]
    pub(super) fn forget_lost(&mut self, carried: u64) {
        self.lost_bytes -= carried;
        self.skip_arrived();
        if self.lost.is_empty() {
            self.draining = None;
        }
    }

    /// Removes packets from the front of the retransmission queue that have arrived.
    pub(super) fn skip_arrived(&mut self) {
        while self.lost.front().is_some_and(|psn| !self.is_lost(*psn)) {
            #[cfg(test)]
            crate::steps::count(1);
            self.pop_lost();
        }
    }

    pub(super) fn pop_lost(&mut self) -> Option<Psn> {
        let psn = self.lost.pop_front()?;
        self.postponed = self.postponed.min(self.lost.len() as u32);
        Some(psn)
    }

    /// Whether the packet `psn` is to be sent again.
    pub(super) fn is_lost(&self, psn: Psn) -> bool {
        self.records.get(psn).is_some_and(|record| record.state == State::Lost)
    }

    /// How many of the packets to retransmit are in the order of PSNs.
    fn in_order(&self) -> usize {
        self.lost.len() - self.postponed as usize
    }

    pub(in crate::pdc) fn mark_lost(&mut self, psn: Psn) {
        if self.note_lost(psn) {
            self.lost.insert(self.place_of_lost(psn), psn);
        }
    }

    /// Notes that the packet `psn` is to be sent again. False if it is not in flight.
    fn note_lost(&mut self, psn: Psn) -> bool {
        let Some(record) = self.records.get_mut(psn).filter(|record| record.state == State::InFlight) else {
            return false;
        };
        record.state = State::Lost;
        let (bytes, carried) = (u64::from(record.bytes), u64::from(record.carried()));
        self.outstanding -= bytes;
        self.outstanding_packets -= u32::from(record.has_data());
        self.lost_bytes += carried;
        true
    }

    /// Where `psn` belongs in the retransmission queue: most often behind all others that were not postponed.
    fn place_of_lost(&self, psn: Psn) -> usize {
        let is_before = |place: usize| {
            #[cfg(test)]
            crate::steps::count(1);
            self.lost.get(place).is_some_and(|other| other.is_before(psn))
        };
        let (mut from, mut to) = (0, self.in_order());
        if to > 0 && is_before(to - 1) {
            return to;
        }
        while from < to {
            let middle = from.midpoint(to);
            if is_before(middle) { from = middle + 1 } else { to = middle }
        }
        from
    }

    /// As [`TxPdc::mark_lost`], for one of many packets: [`TxPdc::put_in_order`] has to follow for those for which it
    /// returns true.
    pub(super) fn append_lost(&mut self, psn: Psn) -> bool {
        let is_lost = self.note_lost(psn);
        if is_lost {
            self.lost.push_back(psn);
        }
        is_lost
    }

    /// Puts the last `added` packets of the retransmission queue where they belong.
    pub(super) fn put_in_order(&mut self, added: usize) {
        let (in_order, cack) = (self.in_order(), self.cack);
        let Some(known) = in_order.checked_sub(added) else { return };
        let lost = self.lost.make_contiguous();
        lost[known..].rotate_right(added);
        // The sort merges two sequences that are in order in one pass.
        lost[..in_order].sort_by_key(|psn| psn.distance(cack));
    }

    /// Go-back-N: the target expects `expected` and refuses `refused`, which was sent at `sent_at`. Packets sent later
    /// are behind the refused packet on the one path and not affected; otherwise each refusal of a window would
    /// retransmit the packets that the one before has just retransmitted.
    pub(super) fn go_back(&mut self, expected: Psn, refused: Psn, sent_at: Time) {
        let una = self.first_unacknowledged();
        let first = if expected.is_before(una) { una } else { expected };
        let mut psn = first;
        while psn.distance(refused) <= 0 {
            if self.record(psn).is_some_and(|record| sent_at.is_at_or_after(record.sent_at)) {
                self.mark_lost(psn);
            }
            psn = psn.plus(1);
        }
    }
}
