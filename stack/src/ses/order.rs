//! The order of the messages of a PDC. Their packets overtake each other; receives meet them in the order in which they
//! were sent (decision 0048).
//!
//! An initiator numbers the messages of a PDC as it cuts their first packets. A message whose number is the next has its
//! *turn*: all messages before it have begun, and it may be matched. One that begins before its turn is *early*, and
//! waits. A peer that numbers its messages in another way is understood by its PSNs: when all packets before one have
//! arrived, all messages before have begun.

use std::collections::VecDeque;

use crate::heap;
use crate::wire::pds::Psn;

/// The place that the messages of one PDC have reached in their order.
#[derive(Debug, Default)]
pub(crate) struct Order {
    /// The number of the next message: all before it have begun.
    next: u16,
    /// Number of early messages.
    count: u16,
    /// Number of messages that have begun and not arrived in full, and the most that there may be.
    incomplete: u16,
    most_incomplete: u16,
    /// The early messages; `None` if there never were any.
    early: Option<Box<EarlyMessages>>,
}

/// Messages that began before their turn.
#[derive(Debug, Default)]
struct EarlyMessages {
    /// In order of PSNs.
    messages: VecDeque<EarlyMessage>,
    /// How many of them are kept for a process.
    kept: u32,
    /// Places that are reserved for these, and for messages before them that have not begun. Each of these has one, whatever
    /// numbers and PSNs a peer gives its messages, since it is kept without a further look at limits when its turn comes.
    places: u32,
}

impl EarlyMessages {
    /// Whether a place is reserved for a message that is not early.
    fn has_place(&self) -> bool {
        self.places > self.kept
    }
}

/// A message that began before its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EarlyMessage {
    /// The process that it is for; `None` if none takes it, so that it has no place.
    pub(crate) process: Option<u16>,
    /// Its number.
    pub(crate) msg_id: u16,
    /// The PSN of its first packet to arrive.
    psn: Psn,
}

/// Incomplete messages that a PDC may have whatever its peer has otherwise, so that it goes on.
pub const FEW_INCOMPLETE: u16 = 16;

impl Order {
    /// That of a PDC that accepts `mp_range` packets beyond the first missing one. Initiators that send the packets of each message
    /// one after the other never have more messages than that of which packets are missing; others may have twice as many.
    pub(crate) fn new(mp_range: u32) -> Order {
        let most_incomplete = u16::try_from(2 * u64::from(mp_range)).unwrap_or(u16::MAX);
        Order { most_incomplete, ..Order::default() }
    }

    /// Packets that the PDC accepts from the first missing one on. As initiators send the packets of a message in order, none is so
    /// many or more packets ahead of the first missing one of its message. 0 once the PDC is closed: then no message may be incomplete.
    #[inline]
    pub(crate) fn window(&self) -> u32 {
        u32::from(self.most_incomplete / 2)
    }

    /// Whether a message that begins now and is not complete is one of the few that count for nobody.
    #[inline]
    pub(super) fn has_few_incomplete(&self) -> bool {
        self.incomplete < FEW_INCOMPLETE
    }

    /// The most messages that may be incomplete.
    pub(crate) fn most_incomplete(&self) -> u16 {
        self.most_incomplete
    }

    /// Whether one more message may be incomplete.
    pub(super) fn may_have_incomplete(&self) -> bool {
        self.incomplete < self.most_incomplete
    }

    /// A message has begun that is not complete.
    #[inline]
    pub(super) fn add_incomplete(&mut self) {
        self.incomplete += 1;
    }

    /// An incomplete message is complete, or is dropped.
    #[inline]
    pub(crate) fn end_incomplete(&mut self) {
        self.incomplete = self.incomplete.saturating_sub(1);
    }

    /// Number of incomplete messages.
    #[cfg(test)]
    pub(crate) fn incomplete(&self) -> u16 {
        self.incomplete
    }

    /// All incomplete messages are dropped. Returns whether there are any.
    pub(crate) fn end_all_incomplete(&mut self) -> bool {
        std::mem::take(&mut self.incomplete) > 0
    }

    /// Number of messages that are incomplete, or have not had their turn: what is left if no more packets come. Some may be both.
    pub(crate) fn unfinished(&self) -> usize {
        usize::from(self.incomplete) + usize::from(self.count)
    }

    /// Whether all messages before `msg_id`, which packet `psn` begins, have begun and have been matched. All packets before
    /// `expected` have arrived.
    #[inline(always)]
    pub(crate) fn is_turn(&self, msg_id: u16, psn: Psn, expected: Psn) -> bool {
        (msg_id == self.next || psn == expected) && !self.has_due(expected)
    }

    /// Whether the turn of an early message has come. All packets before `expected` have arrived.
    #[inline]
    pub(crate) fn has_due(&self, expected: Psn) -> bool {
        self.count > 0 && self.first_due(expected).is_some()
    }

    /// The next early message, if its turn has come.
    #[inline(never)]
    fn first_due(&self, expected: Psn) -> Option<&EarlyMessage> {
        let first = self.early.as_ref()?.messages.front()?;
        (first.msg_id == self.next || !expected.is_before(first.psn)).then_some(first)
    }

    /// Message `msg_id` has begun, and it was its turn. Returns whether one of the places of early messages is free
    /// now: no further message is before them.
    #[inline]
    pub(crate) fn pass(&mut self, msg_id: u16) -> bool {
        self.next = msg_id.wrapping_add(1);
        self.count > 0 && self.take_place()
    }

    /// Whether a place is reserved for a message whose turn it is.
    pub(crate) fn has_place(&self) -> bool {
        self.early.as_deref().is_some_and(EarlyMessages::has_place)
    }

    #[cold]
    fn take_place(&mut self) -> bool {
        let Some(early) = self.early.as_mut().filter(|early| early.has_place()) else { return false };
        early.places -= 1;
        true
    }

    /// The places that are wanting if message `msg_id` begins early with packet `psn`: it needs one, and so does each message before
    /// it that may still need one when its turn comes, and each that is early. All packets before `expected` have arrived.
    pub(crate) fn missing_places(&self, msg_id: u16, psn: Psn, expected: Psn) -> u32 {
        // Each of them has a packet at least, so that PSNs bound what the numbers of another kind of peer mean; or its turn has come,
        // and it waits to be matched.
        let before = u32::from(msg_id.wrapping_sub(self.next));
        let early = self.early.as_deref();
        let due =
            early.map_or(0, |early| early.messages.partition_point(|other| other.psn.is_before(expected)));
        let before = before.min(psn.distance(expected).unsigned_abs() + due as u32);
        // Messages of equal numbers, for several processes, are not among those before each other.
        let (kept, places) = early.map_or((0, 0), |early| (early.kept, early.places));
        (before.max(kept) + 1).saturating_sub(places)
    }

    /// No further message may begin.
    pub(crate) fn close(&mut self) {
        self.most_incomplete = 0;
    }

    /// Whether no further message may begin: the PDC is over, or so many wait to be matched although their turn has come. The
    /// window bounds the others.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.count >= self.most_incomplete
    }

    /// Message `msg_id` for `process`, or for none that takes it, has begun early with packet `psn`, and takes `places` more.
    #[cold]
    pub(crate) fn add_early(&mut self, process: Option<u16>, msg_id: u16, psn: Psn, places: u32) {
        let early = self.early.get_or_insert_default();
        let at = early.messages.partition_point(|other| other.psn.is_before(psn));
        early.messages.insert(at, EarlyMessage { process, msg_id, psn });
        early.kept += u32::from(process.is_some());
        early.places += places;
        self.count += 1;
    }

    /// Whether messages wait for their turn.
    #[inline]
    pub(crate) fn has_early(&self) -> bool {
        self.count > 0
    }

    /// Takes out the next early message, if its turn has come. All packets before `expected` have arrived. Call
    /// [`Order::pass`] for it.
    pub(crate) fn next_due(&mut self, expected: Psn) -> Option<EarlyMessage> {
        self.first_due(expected)?;
        self.next_early()
    }

    /// Takes out the next early message, whether its turn has come or not.
    pub(crate) fn next_early(&mut self) -> Option<EarlyMessage> {
        let early = self.early.as_mut()?;
        let message = early.messages.pop_front()?;
        crate::heap::give_back(&mut early.messages);
        early.kept -= u32::from(message.process.is_some());
        self.count -= 1;
        Some(message)
    }

    /// The places that are still reserved while no message is early; none are any more.
    pub(crate) fn take_places(&mut self) -> u32 {
        let unused = self.early.as_mut().filter(|early| early.messages.is_empty());
        unused.map_or(0, |early| std::mem::take(&mut early.places))
    }

    /// Bytes of heap held.
    pub(crate) fn heap_bytes(&self) -> u64 {
        let of = |early: &EarlyMessages| size_of::<EarlyMessages>() as u64 + heap::of_deque(&early.messages);
        self.early.as_deref().map_or(0, of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The messages whose turn has come.
    fn due(order: &mut Order, expected: u32) -> Vec<u16> {
        let mut due = Vec::new();
        while let Some(message) = order.next_due(Psn(expected)) {
            order.pass(message.msg_id);
            due.push(message.msg_id);
        }
        due
    }

    #[test]
    fn early_messages_wait_for_those_before_them_and_numbers_wrap() {
        let mut order = Order { next: u16::MAX - 1, ..Order::default() };
        for (msg_id, psn, missing) in [(1, 13, 4), (0, 12, 0), (3, 20, 2)] {
            assert!(!order.is_turn(msg_id, Psn(psn), Psn(9)));
            assert_eq!(order.missing_places(msg_id, Psn(psn), Psn(9)), missing);
            order.add_early(Some(0), msg_id, Psn(psn), missing);
        }
        assert!(order.is_turn(u16::MAX - 1, Psn(10), Psn(9)));
        assert!(order.pass(u16::MAX - 1));
        assert_eq!(due(&mut order, 9), [0; 0]);
        assert!(order.pass(u16::MAX));
        assert_eq!(due(&mut order, 9), [0, 1]);
        assert!(order.has_early() && order.has_place());
        assert!(order.pass(2));
        assert_eq!(due(&mut order, 9), [3]);
        assert!(!order.has_early());
        assert_eq!(order.take_places(), 1, "that of the last message");
        assert!(!order.pass(4));
    }

    #[test]
    fn numbers_with_holes_are_put_in_order_by_psns() {
        let mut order = Order::default();
        assert!(order.is_turn(500, Psn(7), Psn(7)));
        order.pass(500);
        // Packet 8 is missing: it may begin a message.
        assert_eq!(order.missing_places(90, Psn(10), Psn(8)), 3, "PSNs bound the number of messages before");
        order.add_early(Some(0), 90, Psn(10), 3);
        assert_eq!(order.missing_places(7_000, Psn(9), Psn(8)), 0);
        order.add_early(Some(0), 7_000, Psn(9), 0);
        assert_eq!(due(&mut order, 8), [0; 0]);
        assert!(order.is_turn(60_000, Psn(8), Psn(8)) && order.pass(60_000));
        assert_eq!(due(&mut order, 11), [7_000, 90]);
        assert_eq!(order.take_places(), 1);
    }
}
