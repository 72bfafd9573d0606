//! Receives for many messages: each takes a part of the memory, and the receive ends when too little is left and all of
//! its messages have.
//!
//! An application that does not read what it has received would let them grow without end: a message without bytes takes nothing of
//! their memory. So a process may have a number of further messages that they take. Beyond it messages that would meet one are
//! refused, and their senders try again ([decision
//! 0136](../../../../docs/decisions/0136-receives-for-many-messages-are-held.md)). A message counts for that number when all of it
//! is there, or none will come any more: who begins messages and sends the rest of none holds nobody else. Until then it counts for its
//! sender ([decision 0143](../../../../docs/decisions/0143-messages-count-when-they-end.md)).

use super::{Delivery, HAND_OVER, Receives};
use crate::heap;
use crate::ses::room::mean;
use crate::ses::senders::Senders;
use crate::ses::{Map, Posted, ReceiveId, Room, Source};

/// The most that messages which have arrived let a receive for many messages do at once, bytes touched: that which a burst of 32
/// short ones does, or of packets.
const MOST_ARRIVED: u64 = 32 * (HAND_OVER + 4096);

/// Incomplete messages that each peer may have in them, whatever others have.
const SURE: u32 = 4;

/// The receives for many messages that have not ended.
#[derive(Debug)]
pub(in crate::ses) struct Many {
    receives: Map<ReceiveId, State>,
    /// How many further messages they take. It is negative when those were taken that had arrived before, or had begun, and are not
    /// refused.
    further: i64,
    /// Whether they take none, whatever that says.
    pub(in crate::ses) is_held: bool,
    /// Whether they take one that has arrived already, whatever these say.
    takes_arrived: bool,
    /// The messages that have met one of them and not arrived in full; `None` if there never were any.
    incomplete: Option<Box<Incomplete>>,
}

/// Messages that count for the number of further ones when they end.
#[derive(Debug, Default)]
struct Incomplete {
    all: i64,
    of: Senders<u32>,
}

impl Default for Many {
    /// As many messages as come.
    fn default() -> Many {
        let (is_held, takes_arrived) = (false, false);
        Many { receives: Map::default(), further: i64::MAX, is_held, takes_arrived, incomplete: None }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// Messages that have met the receive, and are on their way.
    under_way: u64,
    /// Whether it takes no further ones.
    ended: bool,
}

impl Many {
    /// The part of `posted`, a receive for many messages, that one of `len` bytes gets. `None` if it gets all that is left:
    /// the receive takes no further ones.
    #[cold]
    pub(in crate::ses) fn take(&mut self, posted: &mut Posted, len: u32) -> Option<Posted> {
        self.further = self.further.saturating_sub(1);
        let state = self.receives.entry(posted.id).or_default();
        state.under_way += 1;
        let part = posted.split(len);
        state.ended = part.is_none();
        part
    }

    /// Whether they take no further message of `source`, which is there in full or not.
    #[inline]
    pub(in crate::ses) fn hold(&self, source: Source, is_whole: bool) -> bool {
        let holds = self.is_held || self.further <= 0 || !is_whole && !self.may_begin(source);
        holds && !self.takes_arrived
    }

    /// Whether one more message of `source` may begin: it leaves as many to others as count for it, or is one of the few of which each
    /// peer is sure.
    #[cold]
    fn may_begin(&self, source: Source) -> bool {
        let Some(Incomplete { all, of }) = self.incomplete.as_deref() else { return true };
        let of_peer = of.of_peer(source.peer);
        let wanted = mean(u64::from(of.of(source)) + 1, u64::from(of_peer) + 1);
        of_peer < SURE || self.further.saturating_sub(*all).saturating_sub_unsigned(wanted) >= 0
    }

    /// A message of `source` has met one of them that is not there in full: it does not count for others before that.
    #[cold]
    pub(super) fn begin_incomplete(&mut self, source: Source) {
        self.further = self.further.saturating_add(1);
        let Incomplete { all, of } = &mut **self.incomplete.get_or_insert_default();
        *all += 1;
        of.add(source, 1);
    }

    /// A message of `source` that has met receive `id` when it was not there in full is, or no more of it will come.
    #[inline]
    pub(super) fn end_incomplete(&mut self, id: ReceiveId, source: Source) {
        if !self.receives.is_empty() {
            self.end_incomplete_one(id, source);
        }
    }

    #[cold]
    fn end_incomplete_one(&mut self, id: ReceiveId, source: Source) {
        let Some(Incomplete { all, of }) = self.incomplete.as_deref_mut() else { return };
        if self.receives.contains_key(&id) {
            self.further = self.further.saturating_sub(1);
            *all -= 1;
            of.remove(source, 1);
        }
    }

    /// The receive takes no further messages. Returns whether some of those that have met it are on their way; if not,
    /// it has ended.
    pub(super) fn end(&mut self, id: ReceiveId) -> bool {
        let Some(state) = self.receives.get_mut(&id).filter(|state| state.under_way > 0) else {
            self.receives.remove(&id);
            return false;
        };
        state.ended = true;
        true
    }

    /// A message that has met receive `id` has ended. Returns whether the receive goes on.
    #[inline]
    pub(super) fn conclude(&mut self, id: ReceiveId) -> bool {
        !self.receives.is_empty() && self.conclude_one(id)
    }

    /// A message of receive `id`, which goes on, has not ended after all.
    pub(super) fn resume(&mut self, id: ReceiveId) {
        if let Some(state) = self.receives.get_mut(&id) {
            state.under_way += 1;
        }
    }

    #[cold]
    fn conclude_one(&mut self, id: ReceiveId) -> bool {
        let Some(state) = self.receives.get_mut(&id) else { return false };
        state.under_way -= 1;
        if state.ended && state.under_way == 0 {
            self.receives.remove(&id);
            return false;
        }
        true
    }

    pub(super) fn heap_bytes(&self) -> u64 {
        let incomplete =
            |incomplete: &Incomplete| size_of::<Incomplete>() as u64 + incomplete.of.heap_bytes();
        heap::of_map(&self.receives) + self.incomplete.as_deref().map_or(0, incomplete)
    }

    /// Checks that those of the incomplete messages `there`, each with its receive and its sender, count that have met one of them.
    #[cfg(test)]
    pub(super) fn check(&self, there: impl Iterator<Item = (ReceiveId, Source)>) {
        let mut of: Map<Source, u32> = Map::default();
        for (_, source) in there.filter(|(id, _)| self.receives.contains_key(id)) {
            *of.entry(source).or_default() += 1;
        }
        let (all, counted) = self
            .incomplete
            .as_ref()
            .map_or((0, Map::default()), |incomplete| (incomplete.all, incomplete.of.check()));
        assert_eq!((all, counted), (of.values().map(|count| i64::from(*count)).sum::<i64>(), of));
    }
}

/// The messages that were waiting for a receive, and are complete.
pub type Deliveries = Vec<Delivery>;

impl Receives {
    /// See [`Fep::limit_many`](crate::fep::Fep::limit_many).
    pub fn limit_many(&mut self, further: u64) {
        self.many.further = i64::try_from(further).unwrap_or(i64::MAX);
    }

    /// See [`Fep::allow_many`](crate::fep::Fep::allow_many).
    pub fn allow_many(&mut self, more: u64) {
        self.many.further = self.many.further.saturating_add_unsigned(more);
    }

    /// See [`Fep::hold_many`](crate::fep::Fep::hold_many).
    pub fn hold_many(&mut self, holds: bool) {
        self.many.is_held = holds;
    }

    /// The receive that takes a message which has arrived before its turn, however many further ones receives for many take: it was
    /// acknowledged.
    pub(super) fn take_for_arrived(&mut self, source: Source, tag: Option<u64>, len: u32) -> Option<Posted> {
        self.many.takes_arrived = true;
        let posted = self.posted.take_with(source, tag, (len, true), &mut self.many, Posted::take);
        self.many.takes_arrived = false;
        posted
    }

    /// Whether a message of `source` that begins before its turn, whole or not, is refused: a receive for many might have to take it then,
    /// and takes none now.
    #[inline]
    pub(super) fn holds_early(&self, source: Source, tag: Option<u64>, is_whole: bool) -> bool {
        self.many.hold(source, is_whole) && self.many_accept(source, tag)
    }

    /// Whether a receive for many messages accepts one of `source` with `tag`.
    #[cold]
    fn many_accept(&self, source: Source, tag: Option<u64>) -> bool {
        self.posted.many_accept(source, tag)
            || self.gathering.as_ref().is_some_and(|posted| posted.takes(source, tag))
    }

    /// Adds a receive for many messages, whose identifier must be larger than all before, and whose memory can be split.
    /// [`Receives::gather`] gives it the messages that wait; until that is done, no further receive may be added.
    pub fn post_many(&mut self, posted: Posted) {
        debug_assert!(self.gathering.is_none(), "one that was added before comes first");
        self.gathering = Some(Box::new(posted));
    }

    /// Whether a receive for many messages has to [gather](Receives::gather) them still.
    pub fn is_gathering(&self) -> bool {
        self.gathering.is_some()
    }

    /// A message with so many bytes has arrived in full, and waits for a receive. If one for many messages takes those that
    /// wait, it may take one more at once, so that it does not fall behind those that arrive, however many these are.
    pub(super) fn note_arrival(&mut self, bytes: u32) {
        if self.gathering.is_some() {
            self.arrived = MOST_ARRIVED.min(self.arrived + HAND_OVER + u64::from(bytes));
        }
    }

    /// Gives messages that wait to the receive that was added last, until that has touched `budget` bytes, which are taken
    /// from it, on top of what has arrived since it did so before. Returns those that are complete. Messages that arrive
    /// meanwhile wait behind the others. One that is copied in pieces comes before all others.
    pub fn gather(&mut self, room: &mut Room, budget: &mut i64) -> Deliveries {
        let mut arrived = std::mem::take(&mut self.arrived);
        let mut deliveries = self.copy_with(room, budget, &mut arrived);
        while !self.is_copying()
            && let Some(mut posted) = self.gathering.take()
        {
            let is_over = *budget > 0 && self.look_ahead(posted.from, posted.matching, budget);
            if !is_over {
                self.gathering = Some(posted);
                break;
            }
            let Some(key) = self.first_waiting(posted.from, posted.matching) else {
                self.posted.push_many(*posted);
                break;
            };
            let (before, len) = (room.touched, self.messages.get(key).map_or(0, |message| message.total));
            match self.many.take(&mut posted, len) {
                Some(part) => {
                    deliveries.extend(self.hand_over_to(room, key, part));
                    self.gathering = Some(posted);
                }
                None => deliveries.extend(self.hand_over_to(room, key, *posted)),
            }
            let touched = room.touched - before;
            let paid = touched.min(arrived);
            arrived -= paid;
            *budget -= (touched - paid) as i64;
            deliveries.extend(self.copy_with(room, budget, &mut arrived));
        }
        deliveries
    }
}
