//! How many operations have not ended: messages through a server, accesses to remote memory through one, and without one both
//! together. A peer that takes none has no more of them than it leaves to all others, so that there is always room for operations with
//! those.

use std::collections::{HashMap, HashSet};

use weft::Source;

use super::{DEPTH, Operation, State};
use crate::error::FiError;

/// The most to one peer.
pub(super) const TO_ONE: usize = 8 * DEPTH;
/// The most to all.
pub(super) const TO_ALL: usize = 32 * DEPTH;

/// How many there may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// To one peer.
    pub(super) to_one: usize,
    /// To all beyond those of which each peer is sure.
    pub(super) to_all: usize,
    /// Of how many each peer is sure, as long as there are so many in all.
    pub(super) sure: usize,
    pub(super) all_sure: usize,
}

const THROUGH_SERVERS: Limits = Limits { to_one: TO_ONE, to_all: TO_ALL, sure: 0, all_sure: 0 };
/// Of operations at ports of one's own, each peer is sure of four: an endpoint has up to 4,096 peers there. None is refused while there are
/// fewer than [`DEPTH`].
const WITHOUT_ONE: Limits = Limits { to_one: TO_ONE, to_all: TO_ALL, sure: 4, all_sure: 4 * DEPTH };
/// Of accesses to remote memory through servers each peer is sure of four, too.
pub(super) const ACCESSES: Limits = Limits { to_one: DEPTH, to_all: 8 * DEPTH, sure: 4, all_sure: 4 * DEPTH };

#[derive(Debug)]
pub(super) struct Pending {
    limits: Limits,
    total: usize,
    /// Those of which peers are sure.
    sure: usize,
    to: HashMap<Source, usize>,
    /// The peer of the last one, and how many it has, which are not among the others: most calls are for the same one again.
    last: Option<(Source, usize)>,
    /// The peers for which calls were refused as they have the most that one may have, and whether one was refused until any operation
    /// ends.
    refused: HashSet<Source>,
    refused_any: bool,
}

impl Default for Pending {
    fn default() -> Pending {
        Pending {
            limits: THROUGH_SERVERS,
            total: 0,
            sure: 0,
            to: HashMap::new(),
            last: None,
            refused: HashSet::new(),
            refused_any: false,
        }
    }
}

impl Pending {
    /// Of an endpoint that no server has.
    pub(super) fn without_a_server() -> Pending {
        Pending { limits: WITHOUT_ONE, ..Pending::default() }
    }

    /// Of accesses to remote memory through a server.
    pub(super) fn of_accesses() -> Pending {
        Pending { limits: ACCESSES, ..Pending::default() }
    }

    /// Operations with all peers.
    pub(super) fn total(&self) -> usize {
        self.total
    }

    /// How many `peer` has.
    fn count(&mut self, peer: Source) -> &mut usize {
        let last = self.last.get_or_insert((peer, 0));
        if last.0 != peer {
            let count = self.to.remove(&peer).unwrap_or(0);
            let (before, left) = std::mem::replace(last, (peer, count));
            if left > 0 {
                self.to.insert(before, left);
            }
        }
        &mut last.1
    }

    /// Whether there is room for one more with `peer`.
    pub(super) fn has_room(&mut self, peer: Source) -> bool {
        let (count, Limits { to_one, to_all, sure, all_sure }) = (*self.count(peer), self.limits);
        if count < sure && self.sure < all_sure {
            return true;
        }
        let left = to_all.saturating_sub(self.total - self.sure);
        count < to_one && count.saturating_sub(sure) < left
    }

    /// As [`Pending::has_room`], for a call that is refused if there is none: [`Pending::may_repeat`] says when it may be repeated.
    pub(super) fn admits(&mut self, peer: Source) -> bool {
        let has_room = self.has_room(peer);
        if !has_room && *self.count(peer) >= self.limits.to_one {
            self.refused.insert(peer);
        } else if !has_room {
            self.refused_any = true;
        }
        has_room
    }

    /// A call fails with this error. With [`FiError::AGAIN`] it may be repeated when any operation has ended. (If a datagram is refused
    /// because the address of a neighbour is being asked for, and nothing is under way, the program has to repeat the call after a while.)
    pub(super) fn refuse(&mut self, error: FiError) {
        self.refused_any |= error == FiError::AGAIN;
    }

    pub(super) fn begin(&mut self, peer: Source) {
        let sure = self.limits.sure;
        let count = self.count(peer);
        *count += 1;
        let is_sure = *count <= sure;
        self.total += 1;
        self.sure += usize::from(is_sure);
    }

    pub(super) fn end(&mut self, peer: Source) {
        let sure = self.limits.sure;
        let count = self.count(peer);
        if *count == 0 {
            return;
        }
        let was_sure = *count <= sure;
        *count -= 1;
        self.total -= 1;
        self.sure -= usize::from(was_sure);
    }

    /// Whether calls may be repeated that were refused until an operation has ended, now that one with `peer` has. It returns true once for the calls that were refused until then.
    fn may_repeat(&mut self, peer: Option<Source>) -> bool {
        let is_refused = !self.refused.is_empty() && peer.is_some_and(|peer| self.refused.remove(&peer));
        std::mem::take(&mut self.refused_any) || is_refused
    }
}

impl State {
    /// An operation has ended. A program that was told to repeat a call may sleep, as the operation may have no entry.
    pub(super) fn end_pending(&mut self, operation: &Operation) {
        operation.to.into_iter().for_each(|peer| self.pending.end(peer));
        operation.carried_to.into_iter().for_each(|peer| self.carried_accesses.end(peer));
        let may_repeat = self.pending.may_repeat(operation.to);
        let may_repeat = self.carried_accesses.may_repeat(operation.carried_to) || may_repeat;
        if may_repeat {
            self.wake_callers();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peers(count: u16) -> impl Iterator<Item = Source> + Clone {
        (0..count).map(|process| Source { peer: weft::Addr(1), process })
    }

    /// How many a peer gets that takes as many as it may.
    fn fill(pending: &mut Pending, peer: Source) -> usize {
        let mut count = 0;
        while pending.has_room(peer) {
            pending.begin(peer);
            count += 1;
        }
        count
    }

    fn empty(pending: &mut Pending, counts: impl IntoIterator<Item = (Source, usize)>) {
        for (peer, count) in counts {
            (0..count).for_each(|_| pending.end(peer));
            pending.end(peer);
        }
        assert!(pending.total == 0 && pending.sure == 0);
        assert!(pending.to.is_empty() && pending.last.is_none_or(|(_, count)| count == 0));
    }

    #[test]
    fn peers_that_take_nothing_leave_room_for_all_others() {
        let mut pending = Pending::default();
        let counts: Vec<usize> = peers(100).map(|peer| fill(&mut pending, peer)).collect();
        assert_eq!(counts[..5], [TO_ONE, TO_ONE, TO_ONE, TO_ONE / 2, TO_ONE / 4]);
        assert!(pending.total() <= TO_ALL && counts[..14].iter().all(|count| *count > 0));
        empty(&mut pending, peers(100).zip(counts));
    }

    #[test]
    fn each_of_as_many_peers_as_an_endpoint_knows_without_a_server_has_room() {
        let mut pending = Pending::without_a_server();
        let counts: Vec<usize> = peers(4_096).map(|peer| fill(&mut pending, peer)).collect();
        assert_eq!(counts[..3], [TO_ONE; 3]);
        assert!(counts.iter().all(|count| *count >= WITHOUT_ONE.sure));
        assert!(pending.total() <= WITHOUT_ONE.to_all + WITHOUT_ONE.all_sure);
        // What one gives back is there for it again.
        let mut peers_again = peers(4_096).skip(1_000);
        let again = peers_again.next().unwrap();
        pending.end(again);
        assert!(pending.has_room(again) && !pending.has_room(peers_again.next().unwrap()));
        pending.begin(again);
        empty(&mut pending, peers(4_096).zip(counts));
    }

    /// As many as `fi_getinfo` promises, with whichever peers.
    #[test]
    fn no_operation_without_a_server_is_refused_while_there_are_few() {
        for others in [1u16, 2, 7, 100, 4_095] {
            let mut pending = Pending::without_a_server();
            for (n, peer) in peers(others).cycle().take(DEPTH).enumerate() {
                assert!(pending.has_room(peer), "number {n} of {others} peers");
                pending.begin(peer);
            }
        }
    }

    #[test]
    fn calls_that_were_refused_may_be_repeated_once_an_operation_has_ended_for_which_there_is_room_again() {
        let mut pending = Pending::without_a_server();
        let ends = |pending: &mut Pending, peer| {
            pending.end(peer);
            pending.may_repeat(Some(peer))
        };
        let all: Vec<Source> = peers(6).collect();
        let [full, other] = [all[0], all[1]];
        fill(&mut pending, full);
        pending.begin(other);
        assert!(!ends(&mut pending, full), "no call was refused");
        pending.begin(full);
        assert!(!pending.admits(full) && pending.admits(other));
        assert!(!ends(&mut pending, other), "that makes no room with the one that is full");
        assert!(ends(&mut pending, full) && !ends(&mut pending, full), "it is said once");
        // Of the last one that has room it was refused for what all others have.
        all.iter().for_each(|peer| _ = fill(&mut pending, *peer));
        assert!(!pending.admits(all[5]) && *pending.count(all[5]) < TO_ONE);
        assert!(ends(&mut pending, other) && !ends(&mut pending, other));
        pending.refuse(FiError::REFUSED);
        assert!(!ends(&mut pending, other));
        pending.refuse(FiError::AGAIN);
        assert!(ends(&mut pending, other) && !ends(&mut pending, other));
    }
}
