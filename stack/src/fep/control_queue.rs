//! Acknowledgements, NACKs and control packets that wait for the port.
//!
//! A port sends them as fast as packets arrive, so that hardly any wait, and those leave in order, before everything else. Where one
//! cannot, some peer may have the endpoint answer more than the port sends: an answer can be longer than its question. Once many
//! wait, peers take turns, each may have as many as it leaves to others, and every second packet that leaves is data.

use std::collections::{BTreeMap, VecDeque};

use crate::heap;
use crate::packet::{Addr, Packet};

/// So many control packets leave in the order in which they came: those of several bursts.
pub const FEW: usize = if cfg!(test) { 16 } else { 256 };

#[derive(Debug, Default)]
pub(super) struct ControlQueue {
    /// These leave first.
    few: VecDeque<Packet>,
    /// Packets that found [`FEW`] of those waiting, or others here; `None` if there are none.
    many: Option<Box<Many>>,
}

/// Packets by peers.
#[derive(Debug, Default)]
struct Many {
    len: usize,
    of: BTreeMap<Addr, VecDeque<Packet>>,
    /// The peers that have some, in the order of their turns.
    order: VecDeque<Addr>,
    /// The peer of the last one that came.
    last: Option<Addr>,
    /// Whether the next turn belongs to data.
    is_datas_turn: bool,
}

impl ControlQueue {
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.few.len() + self.many.as_ref().map_or(0, |many| many.len)
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.few.is_empty() && self.many.is_none()
    }

    /// Appends a packet, if it is one of `most` at most, and its peer leaves as many to others as it has. Returns whether it does.
    #[inline]
    pub(super) fn push(&mut self, packet: Packet, most: usize) -> bool {
        if self.many.is_none() && self.few.len() < FEW.min(most) {
            self.few.push_back(packet);
            return true;
        }
        self.push_of_many(packet, most)
    }

    #[cold]
    #[inline(never)]
    fn push_of_many(&mut self, packet: Packet, most: usize) -> bool {
        let left = most.saturating_sub(self.len());
        let peer = packet.net.dst;
        let used = self.many.as_ref().and_then(|many| many.of.get(&peer)).map_or(0, VecDeque::len);
        if used >= left {
            return false;
        }
        let many = self.many.get_or_insert_default();
        many.of.entry(peer).or_default().push_back(packet);
        if used == 0 {
            many.order.push_back(peer);
        }
        many.len += 1;
        many.last = Some(peer);
        true
    }

    /// The packet that came last, if it still waits.
    pub(super) fn last_mut(&mut self) -> Option<&mut Packet> {
        match &mut self.many {
            None => self.few.back_mut(),
            Some(many) => many.of.get_mut(&many.last?)?.back_mut(),
        }
    }

    /// Takes the next one of those that leave in order.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Packet> {
        let packet = self.few.pop_front()?;
        if self.few.is_empty() {
            // The queue begins again at the start of its memory, which is in the cache.
            self.few.clear();
        }
        Some(packet)
    }

    /// Whether so many wait that they take turns with data.
    #[inline]
    pub(super) fn takes_turns(&self) -> bool {
        self.many.is_some()
    }

    /// Takes the next one if it is not the turn of data, and passes the turn on.
    #[cold]
    #[inline(never)]
    pub(super) fn pop_in_turn(&mut self) -> Option<Packet> {
        let many = self.many.as_mut()?;
        many.is_datas_turn = !many.is_datas_turn;
        if many.is_datas_turn { self.pop_of_next_peer() } else { None }
    }

    /// Takes one of the peer whose turn it is among peers.
    #[cold]
    #[inline(never)]
    pub(super) fn pop_of_next_peer(&mut self) -> Option<Packet> {
        let many = self.many.as_mut()?;
        let peer = many.order.pop_front()?;
        let queue = many.of.get_mut(&peer)?;
        let packet = queue.pop_front()?;
        if queue.is_empty() {
            many.of.remove(&peer);
        } else {
            many.order.push_back(peer);
        }
        many.len -= 1;
        if many.len == 0 {
            self.many = None;
        }
        Some(packet)
    }

    /// Bytes of heap held.
    pub(super) fn heap_bytes(&self) -> u64 {
        let many = self.many.as_deref().map_or(0, |many| {
            let queues: u64 = many.of.values().map(heap::of_deque).sum();
            size_of::<Many>() as u64 + heap::of_tree(&many.of) + heap::of_deque(&many.order) + queues
        });
        heap::of_deque(&self.few) + many
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer to `peer`, which has a number.
    fn answer(peer: u32, number: u32) -> Packet {
        let mut packet = Packet::BLANK;
        (packet.net.dst, packet.payload_len) = (Addr(peer), number);
        packet
    }

    /// Takes the next packet, and returns its peer and its number; `None` if it is the turn of data.
    fn next(queue: &mut ControlQueue) -> Option<(u32, u32)> {
        let packet = queue.pop().or_else(|| queue.pop_in_turn())?;
        Some((packet.net.dst.0, packet.payload_len))
    }

    #[test]
    fn a_few_leave_in_order_and_before_everything_else() {
        let mut queue = ControlQueue::default();
        for round in 0..100 {
            assert!((0..FEW as u32).all(|n| queue.push(answer(n % 3, round + n), 1000)));
            assert!(!queue.takes_turns());
            assert_eq!(queue.last_mut().map(|last| last.payload_len), Some(round + FEW as u32 - 1));
            assert!((0..FEW as u32).all(|n| next(&mut queue) == Some((n % 3, round + n))));
            assert!(queue.is_empty());
            assert_eq!(queue.len(), 0, "as many as there are");
        }
    }

    #[test]
    fn of_many_each_peer_has_turns_and_every_second_packet_is_data() {
        let mut queue = ControlQueue::default();
        assert!((0..500).all(|n| queue.push(answer(1, n), 4_000)));
        assert!((0..3).all(|n| queue.push(answer(2, n), 4_000)));
        assert_eq!(queue.last_mut().map(|last| last.net.dst), Some(Addr(2)));
        assert_eq!(queue.len(), 503);
        let few = FEW as u32;
        assert!((0..few).all(|n| next(&mut queue) == Some((1, n))));
        // One that comes now is behind those of its peer, however few are before it.
        assert!(queue.push(answer(3, 0), 4_000));
        let taken: Vec<_> = (0..16).map(|_| next(&mut queue)).collect();
        let peers = [(1, few), (2, 0), (3, 0), (1, few + 1), (2, 1), (1, few + 2), (2, 2), (1, few + 3)];
        let expected: Vec<_> = peers.iter().flat_map(|taken| [Some(*taken), None]).collect();
        assert_eq!(taken, expected);
        // The rest is in order.
        let rest: Vec<_> =
            std::iter::from_fn(|| queue.pop_of_next_peer()).map(|packet| packet.payload_len).collect();
        assert!(rest.into_iter().eq(few + 4..500));
        assert!(queue.is_empty() && !queue.takes_turns());
    }

    #[test]
    fn a_peer_has_no_more_than_it_leaves_to_others() {
        let mut queue = ControlQueue::default();
        let pushed = |queue: &mut ControlQueue, peer| {
            (0..4_000).filter(|n| queue.push(answer(peer, *n), 1_016)).count()
        };
        assert_eq!(pushed(&mut queue, 1), FEW + 500);
        assert_eq!(pushed(&mut queue, 2), 250);
        assert_eq!(pushed(&mut queue, 3), 125);
        let mut taken = BTreeMap::<u32, usize>::new();
        while !queue.is_empty() {
            if let Some((peer, _)) = next(&mut queue) {
                *taken.entry(peer).or_default() += 1;
            }
        }
        assert!(taken.into_iter().eq([(1, FEW + 500), (2, 250), (3, 125)]));
    }

    #[test]
    fn there_are_no_more_than_may_be() {
        for most in 0..2 * FEW {
            let mut queue = ControlQueue::default();
            let pushed = (0..200).filter(|n| queue.push(answer(n % 50, *n), most)).count();
            assert_eq!((pushed, queue.len()), (most, most));
        }
    }
}
