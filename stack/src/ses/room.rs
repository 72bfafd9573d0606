//! The room for messages that have met no receive: what an endpoint has of it, and what each process and peer may take.

use super::order::Order;
use super::{Map, Source};
use crate::heap;
use crate::ledger::Shares;
use crate::packet::Addr;

/// What there is and what is taken of it, of all processes of an endpoint together.
#[derive(Clone, Debug)]
pub struct Room {
    /// Bytes of payload kept of one sender's messages to one process.
    pub(super) bytes_per_peer: u64,
    /// Number of one sender's messages to one process.
    pub(super) messages_per_peer: u32,
    /// Messages of all senders, by process.
    pub(super) messages: Shares<u16>,
    /// Bytes of payload of all senders' messages, by process.
    pub(super) bytes: Shares<u16>,
    /// Places reserved for each peer's early messages, and for those before them, which may be for any process.
    pub(super) early: Map<Addr, u32>,
    /// The sum of these.
    pub(super) all_early: u32,
    /// Messages that have not arrived in full, to any process.
    pub(super) incomplete: Incomplete,
    /// What handing messages over to receives that came later, and dropping messages, has cost so far, in bytes touched.
    pub(super) touched: u64,
}

/// What an incomplete message counts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counts {
    /// It is one of the few that each PDC may have.
    ForPdc,
    /// Its sender.
    ForSource,
}

/// Messages that have begun and not arrived in full, beyond the few of each PDC, whether they have met receives or not.
#[derive(Clone, Debug, Default)]
pub(super) struct Incomplete {
    /// How many there may be.
    most: u64,
    all: u64,
    by_peer: Map<Addr, u32>,
    by_source: Map<Source, u32>,
}

impl Incomplete {
    /// Whether `source` may have one more: it leaves as many to others as are counted for it.
    fn has_room(&self, source: Source, per_peer: u32) -> bool {
        let of_peer = self.by_peer.get(&source.peer).copied().unwrap_or(0);
        let own = self.by_source.get(&source).copied().unwrap_or(0);
        let wanted = mean(u64::from(own) + 1, u64::from(of_peer) + 1);
        wanted <= per_peer.into() && wanted + self.all < self.most
    }

    pub(super) fn add(&mut self, source: Source) {
        self.all += 1;
        *self.by_peer.entry(source.peer).or_default() += 1;
        *self.by_source.entry(source).or_default() += 1;
    }

    pub(super) fn remove(&mut self, source: Source) {
        self.all -= u64::from(take_one(&mut self.by_source, source));
        take_one(&mut self.by_peer, source.peer);
    }

    fn heap_bytes(&self) -> u64 {
        heap::of_map(&self.by_peer) + heap::of_map(&self.by_source)
    }
}

/// Takes one of what `holder` has. Returns whether it had any.
fn take_one<H: Copy + Eq + std::hash::Hash>(counts: &mut Map<H, u32>, holder: H) -> bool {
    let Some(count) = counts.get_mut(&holder) else { return false };
    *count -= 1;
    if *count == 0 {
        counts.remove(&holder);
    }
    true
}

/// What counts against a limit of a peer of which a process has `own`, and all of its processes `of_peer`: the mean. So a process
/// that is alone may have all of it, and one that uses up the limit leaves as much again to the others, of which each may
/// have as much as it leaves.
fn mean(own: u64, of_peer: u64) -> u64 {
    (own + of_peer).div_ceil(2)
}

impl Room {
    /// Room for so many messages and bytes of up to `processes` processes, and for those of one peer to one process.
    pub fn new(processes: usize, all: (usize, u64), per_peer: (u32, u64)) -> Room {
        let ((messages, bytes), processes) = (all, processes as u64);
        Room {
            bytes_per_peer: per_peer.1,
            messages_per_peer: per_peer.0,
            messages: Shares::new(messages as u64, processes),
            bytes: Shares::new(bytes, processes),
            early: Map::default(),
            all_early: 0,
            incomplete: Incomplete { most: messages as u64, ..Incomplete::default() },
            touched: 0,
        }
    }

    /// Whether `peer`, of whom `process` has `unexpected` messages already, may have so many `more` there.
    pub(super) fn has_messages(&self, process: u16, peer: Addr, unexpected: u32, more: u32) -> bool {
        let wanted = u64::from(unexpected) + u64::from(self.early_of(peer)) + u64::from(more);
        wanted <= self.messages_per_peer.into() && is_fair(&self.messages, process, wanted, more.into())
    }

    /// Takes `more` bytes for a message of `peer`, of whom `process` has `kept` bytes already. False, and nothing
    /// changes, if it may not have them.
    pub(super) fn take_bytes(&mut self, process: u16, kept: u64, more: u64) -> bool {
        let fits = kept.checked_add(more).is_some_and(|wanted| {
            wanted <= self.bytes_per_peer && is_fair(&self.bytes, process, wanted, more)
        });
        fits && self.bytes.take(process, more)
    }

    /// What a message of `source` counts for if it begins now and is not complete, in a PDC with `order`. `None` if there may be
    /// none.
    #[inline]
    pub(super) fn place_for_incomplete(&self, order: &Order, source: Source) -> Option<Counts> {
        if order.has_few_incomplete() {
            return Some(Counts::ForPdc);
        }
        let may = order.may_have_incomplete() && self.incomplete.has_room(source, self.messages_per_peer);
        may.then_some(Counts::ForSource)
    }

    fn early_of(&self, peer: Addr) -> u32 {
        self.early.get(&peer).copied().unwrap_or(0)
    }

    /// Reserves `places` for early messages of `peer`. False, and nothing changes, if others would have too few left.
    pub(crate) fn reserve(&mut self, peer: Addr, places: u32) -> bool {
        let may = u64::from(places) <= self.messages.rest(self.all_early.into());
        if may && places > 0 {
            self.messages.take_of_rest(places.into());
            self.all_early += places;
            *self.early.entry(peer).or_default() += places;
        }
        may
    }

    /// Gives reserved places back.
    pub(crate) fn give_back(&mut self, peer: Addr, places: u32) {
        let Some(early) = self.early.get_mut(&peer).filter(|_| places > 0) else { return };
        *early -= places;
        if *early == 0 {
            self.early.remove(&peer);
        }
        self.all_early -= places;
        self.messages.give_back_of_rest(places.into());
    }

    /// What it has cost so far to hand messages over to receives that came later, and to drop messages, in bytes touched.
    pub(crate) fn touched(&self) -> u64 {
        self.touched
    }

    /// Checks that so many incomplete messages count for each sender, and for its peer.
    #[cfg(test)]
    pub(crate) fn check_incomplete(&self, of_sources: &Map<Source, u32>) {
        let Incomplete { most, all, by_peer, by_source } = &self.incomplete;
        assert_eq!(by_source, of_sources);
        assert_eq!(by_source.values().map(|count| u64::from(*count)).sum::<u64>(), *all);
        assert!(all <= most);
        let mut of_peers = Map::default();
        by_source.iter().for_each(|(source, count)| *of_peers.entry(source.peer).or_default() += count);
        assert_eq!(*by_peer, of_peers);
        assert!(by_source.values().all(|count| *count <= self.messages_per_peer));
    }

    /// Checks the accounts of room for so many messages and bytes of up to `processes` processes.
    #[cfg(test)]
    pub(crate) fn check(&self, processes: usize, all: (usize, u64)) {
        self.messages.check(all.0 as u64, processes as u64, self.all_early.into());
        self.bytes.check(all.1, processes as u64, 0);
        assert_eq!(self.early.values().sum::<u32>(), self.all_early);
    }

    /// What the processes have together: messages, bytes, and places reserved for early messages.
    #[cfg(test)]
    pub(crate) fn used(&self) -> (u64, u64, u32) {
        (self.messages.used_by_all(), self.bytes.used_by_all(), self.all_early)
    }

    /// Bytes of heap allocated.
    pub(crate) fn heap_bytes(&self) -> u64 {
        self.messages.heap_bytes()
            + self.bytes.heap_bytes()
            + heap::of_map(&self.early)
            + self.incomplete.heap_bytes()
    }
}

/// Whether a peer may have `more`, and `wanted` with it, of what `process` may have: it takes no more than it leaves,
/// rounded up.
fn is_fair(shares: &Shares<u16>, process: u16, wanted: u64, more: u64) -> bool {
    let available = shares.available(process);
    more <= available && wanted <= available - more + 1
}
