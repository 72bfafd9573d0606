//! The room for messages that have met no receive: what an endpoint has of it, and what each process and peer may take.

use std::collections::BTreeMap;
use std::collections::hash_map::Entry;
use std::ops::{AddAssign, SubAssign};

use super::order::Order;
use super::senders::Senders;
use super::{Map, Source};
use crate::heap;
use crate::ledger::Shares;
use crate::packet::Addr;
use crate::table::Key;
use crate::wire::pds::PdcId;

/// What there is and what is taken of it, of all processes of an endpoint together.
#[derive(Clone, Debug)]
pub struct Room {
    /// Bytes of payload kept of the messages of one process of a peer to one process: see [`mean`].
    pub(super) bytes_per_peer: u64,
    /// Number of these messages.
    pub(super) messages_per_peer: u32,
    /// Messages of all senders, by process.
    pub(super) messages: Shares<u16>,
    /// Bytes of payload of all senders' messages, by process.
    pub(super) bytes: Shares<u16>,
    /// Places reserved for each peer's early messages, and for those before them, which may be for any process. They are taken of the
    /// rest of `messages`.
    pub(super) early: Map<Addr, u32>,
    /// Messages that have not arrived in full, to any process.
    pub(super) incomplete: Incomplete,
    /// The newest of these of each PDC and process.
    pub(super) newest_incomplete: Newest,
    /// What handing messages over to receives that came later, and dropping messages, has cost so far, in bytes touched.
    pub(super) touched: u64,
    /// As much of a message is copied at once to a receive that came later.
    pub(super) longest_copy: u32,
    /// Messages that are copied in pieces, and those that wait for them, of all processes.
    pub(super) copies: u64,
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
    of: Senders<u32>,
}

impl Incomplete {
    /// Whether `source` may have one more: it leaves as many to others as are counted for it.
    fn has_room(&self, source: Source, per_peer: u32) -> bool {
        let (own, of_peer) = (self.of.of(source), self.of.of_peer(source.peer));
        let wanted = mean(u64::from(own) + 1, u64::from(of_peer) + 1);
        wanted <= per_peer.into() && wanted + self.all < self.most
    }

    pub(super) fn add(&mut self, source: Source) {
        self.all += 1;
        self.of.add(source, 1);
    }

    pub(super) fn remove(&mut self, source: Source) {
        self.all -= 1;
        self.of.remove(source, 1);
    }
}

/// The newest incomplete message of each PDC for each process that it has any for. By it a PDC that closes finds these processes:
/// there may be thousands of others.
#[derive(Clone, Debug, Default)]
pub(super) struct Newest {
    /// By PDC, with the process: of one process.
    first: Map<PdcId, (u16, Key)>,
    /// By PDC and process: of the others. Most PDCs have messages for one process only.
    others: BTreeMap<(u16, u16), Key>,
}

impl Newest {
    /// Message `key` of `pdc` is the newest one for `process` now. Returns the one that was.
    #[inline]
    pub(super) fn insert(&mut self, pdc: PdcId, process: u16, key: Key) -> Option<Key> {
        let newest = match self.first.entry(pdc) {
            Entry::Vacant(place) => {
                place.insert((process, key));
                return None;
            }
            Entry::Occupied(first) => first.into_mut(),
        };
        match newest.0 == process {
            true => Some(std::mem::replace(&mut newest.1, key)),
            false => self.others.insert((pdc.0, process), key),
        }
    }

    /// The last incomplete message of `pdc` for `process` is complete, or all are dropped. Returns the one that was the newest.
    #[inline]
    pub(super) fn remove(&mut self, pdc: PdcId, process: u16) -> Option<Key> {
        if self.others.is_empty() {
            return self.first.remove(&pdc).map(|first| first.1);
        }
        self.remove_of_several(pdc, process)
    }

    #[cold]
    fn remove_of_several(&mut self, pdc: PdcId, process: u16) -> Option<Key> {
        let Entry::Occupied(mut first) = self.first.entry(pdc) else { return None };
        if first.get().0 != process {
            return self.others.remove(&(pdc.0, process));
        }
        // One of the others takes its place.
        let next = self.others.range((pdc.0, 0)..=(pdc.0, u16::MAX)).next().map(|(&name, _)| name);
        match next.and_then(|name| Some((name.1, self.others.remove(&name)?))) {
            Some(next) => Some(first.insert(next).1),
            None => Some(first.remove().1),
        }
    }

    /// A process that an incomplete message of `pdc` is for.
    fn process(&self, pdc: PdcId) -> Option<u16> {
        self.first.get(&pdc).map(|first| first.0)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.first.is_empty() && self.others.is_empty()
    }

    /// The PDCs and processes that there are messages of, in order.
    #[cfg(test)]
    fn names(&self) -> Vec<(u16, u16)> {
        let first = self.first.iter().map(|(pdc, first)| (pdc.0, first.0));
        let mut names: Vec<_> = first.chain(self.others.keys().copied()).collect();
        names.sort_unstable();
        names
    }

    fn heap_bytes(&self) -> u64 {
        heap::of_map(&self.first) + heap::of_tree(&self.others)
    }
}

/// The messages without a receive of a sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Kept {
    /// Messages that wait for a receive, not for their turn.
    pub(super) unexpected: u32,
    /// Bytes of payload of all its messages without a receive.
    pub(super) bytes: u64,
}

impl AddAssign for Kept {
    fn add_assign(&mut self, other: Kept) {
        self.unexpected += other.unexpected;
        self.bytes += other.bytes;
    }
}

impl SubAssign for Kept {
    fn sub_assign(&mut self, other: Kept) {
        self.unexpected -= other.unexpected;
        self.bytes -= other.bytes;
    }
}

/// What counts against a limit of a peer of which a process has `own`, and all of its processes `of_peer`: the mean. So a process
/// that is alone may have all of it, and one that uses up the limit leaves as much again to the others, of which each may
/// have as much as it leaves.
pub(super) fn mean(own: u64, of_peer: u64) -> u64 {
    own.midpoint(of_peer) + (own ^ of_peer) % 2
}

/// Whether `source` may have as much as `wanted` says, of what it has and of what its peer has: `fits` tells whether so much fits
/// for a peer.
#[inline]
fn may_have(
    source: Source,
    kept: &Senders<Kept>,
    wanted: impl Fn(Kept) -> u64,
    fits: impl Fn(u64) -> bool,
) -> bool {
    let of_peer = wanted(kept.of_peer(source.peer));
    // The mean is no more than that.
    fits(of_peer) || fits(mean(wanted(kept.of(source)), of_peer))
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
            incomplete: Incomplete { most: messages as u64, ..Incomplete::default() },
            newest_incomplete: Newest::default(),
            touched: 0,
            longest_copy: u32::MAX,
            copies: 0,
        }
    }

    /// From now on messages of which more than `longest` bytes have to be copied to a receive that came later are copied in pieces.
    pub(crate) fn limit_copies(&mut self, longest: u32) {
        self.longest_copy = longest;
    }

    /// Whether messages of any process are being copied in pieces.
    #[inline]
    pub(crate) fn has_copies(&self) -> bool {
        self.copies > 0
    }

    /// Whether no message waits for a receive of any process, or is claimed.
    #[inline]
    pub(crate) fn keeps_none(&self) -> bool {
        self.messages.is_unused()
    }

    /// Whether `source`, of whom `process` has what `kept` says, may have so many `more` messages there.
    pub(super) fn has_messages(&self, process: u16, source: Source, kept: &Senders<Kept>, more: u32) -> bool {
        let further = u64::from(self.early_of(source.peer)) + u64::from(more);
        may_have(
            source,
            kept,
            |kept| u64::from(kept.unexpected) + further,
            |wanted| {
                wanted <= self.messages_per_peer.into()
                    && is_fair(&self.messages, process, wanted, more.into())
            },
        )
    }

    /// Takes `more` bytes for a message of `source`, of whom `process` has what `kept` says. False, and nothing changes, if it
    /// may not have them.
    pub(super) fn take_bytes(
        &mut self,
        process: u16,
        source: Source,
        kept: &Senders<Kept>,
        more: u64,
    ) -> bool {
        let fits = may_have(
            source,
            kept,
            |kept| kept.bytes.saturating_add(more),
            |wanted| wanted <= self.bytes_per_peer && is_fair(&self.bytes, process, wanted, more),
        );
        if fits {
            self.bytes.put(process, more);
        }
        fits
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

    pub(super) fn early_of(&self, peer: Addr) -> u32 {
        self.early.get(&peer).copied().unwrap_or(0)
    }

    /// Reserves `places` for early messages of `peer`. False, and nothing changes, if it would leave fewer than it has to other peers,
    /// or all of them together fewer than they have to processes. Peers of which not every one `is_there` for certain, as anybody
    /// can open half-open PDCs in any name, leave the others half of that.
    pub(crate) fn reserve(&mut self, peer: Addr, places: u32, is_there: bool) -> bool {
        let (own, left) = (u64::from(self.early_of(peer)), self.messages.rest());
        let left = if is_there { left } else { left.saturating_sub(self.messages.of_rest()) / 2 };
        let wanted = u64::from(places);
        let may = wanted == 0 || wanted <= left && own + wanted <= left - wanted + 1;
        if may && places > 0 {
            self.messages.take_of_rest(places.into());
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
        self.messages.give_back_of_rest(places.into());
    }

    /// What it has cost so far to hand messages over to receives that came later, and to drop messages, in bytes touched.
    pub(crate) fn touched(&self) -> u64 {
        self.touched
    }

    /// A process that has incomplete messages of `pdc`.
    pub(crate) fn process_with_incomplete(&self, pdc: PdcId) -> Option<u16> {
        self.newest_incomplete.process(pdc)
    }

    /// Checks that so many incomplete messages count for each sender, and for its peer, and that these PDCs and processes have any.
    #[cfg(test)]
    pub(crate) fn check_incomplete(
        &self,
        of_sources: &Map<Source, u32>,
        of: impl Iterator<Item = (u16, u16)>,
    ) {
        assert!(self.newest_incomplete.names().into_iter().eq(of));
        let Incomplete { most, all, of } = &self.incomplete;
        assert_eq!(of.check(), *of_sources);
        assert_eq!(of_sources.values().map(|count| u64::from(*count)).sum::<u64>(), *all);
        assert!(all <= most);
        assert!(of_sources.values().all(|count| *count <= self.messages_per_peer));
    }

    /// Checks the accounts of room for so many messages and bytes of up to `processes` processes.
    #[cfg(test)]
    pub(crate) fn check(&self, processes: usize, all: (usize, u64)) {
        self.messages.check(all.0 as u64, processes as u64);
        self.bytes.check(all.1, processes as u64);
        assert_eq!(u64::from(self.early.values().sum::<u32>()), self.messages.of_rest());
    }

    /// What the processes have together: messages, bytes, and places reserved for early messages.
    #[cfg(test)]
    pub(crate) fn used(&self) -> (u64, u64, u64) {
        (self.messages.used_by_all(), self.bytes.used_by_all(), self.messages.of_rest())
    }

    /// Bytes of heap allocated.
    pub(crate) fn heap_bytes(&self) -> u64 {
        self.messages.heap_bytes()
            + self.bytes.heap_bytes()
            + heap::of_map(&self.early)
            + self.incomplete.of.heap_bytes()
            + self.newest_incomplete.heap_bytes()
    }
}

/// Whether a peer may have `more`, and `wanted` with it, of what `process` may have: it takes no more than it leaves,
/// rounded up.
fn is_fair(shares: &Shares<u16>, process: u16, wanted: u64, more: u64) -> bool {
    let available = shares.available(process);
    more <= available && wanted <= available - more + 1
}
