//! Peers that stay in the address book as long as applications hold them: each counts for the process of one of its holders.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::hash::BuildHasherDefault;

use rustc_hash::FxHasher;

use crate::ledger::Shares;
use crate::packet::Addr;

/// The entries of the address book that applications hold.
///
/// An entry counts for the account of the application that was the first to hold it, whoever holds it as well: hundreds of
/// processes with the same peers need no more room than one. Once that account holds it no more, it counts for another one, or is
/// held by nobody if none may have it.
#[derive(Debug)]
pub(super) struct HeldPeers {
    /// How many accounts there are.
    accounts: u64,
    /// The slots of the applications that hold each peer.
    holders: BTreeSet<(Addr, u32)>,
    /// The account that each peer counts for.
    counts_for: HashMap<Addr, u32, BuildHasherDefault<FxHasher>>,
    /// How many entries the book has for applications, as far as has been heard.
    room: u64,
    shares: Shares<u32>,
}

impl HeldPeers {
    /// None, of so many accounts.
    pub(super) fn new(accounts: usize) -> HeldPeers {
        let accounts = accounts as u64;
        HeldPeers {
            accounts,
            holders: BTreeSet::new(),
            counts_for: HashMap::default(),
            room: 0,
            shares: Shares::new(0, accounts),
        }
    }

    /// Whether an application of `account` may hold an entry more that counts for it, of `room` that the book has for all.
    pub(super) fn may_add(&mut self, account: u32, room: u64) -> bool {
        self.hear_of(room);
        self.shares.available(account) > 0
    }

    /// The book has `room` for all: it changes with the entries that the owner keeps.
    fn hear_of(&mut self, room: u64) {
        if room != self.room {
            self.shares = self.shares.resized(room, self.accounts);
            self.room = room;
        }
    }

    /// Whether an application of `account` may hold `peer`, of `room` entries that the book has for all.
    pub(super) fn may_hold(&mut self, account: u32, peer: Addr, room: u64) -> bool {
        self.counts_for.contains_key(&peer) || self.may_add(account, room)
    }

    /// The application in `slot`, of `account`, holds `peer`, as it [may](HeldPeers::may_hold).
    pub(super) fn hold(&mut self, peer: Addr, slot: u32, account: u32) {
        self.holders.insert((peer, slot));
        if let Entry::Vacant(free) = self.counts_for.entry(peer) {
            free.insert(account);
            self.shares.put(account, 1);
        }
    }

    /// The application in `slot` holds `peer` no more, of `room` entries that the book has for all. `account_of` tells the account
    /// of a slot, and `stays` whether its application is not leaving. The entry counts for another holder then, of the same account
    /// or of one that may still have an entry more: for one that stays, if there is one. If there is none, nobody holds it any more:
    /// returns the slots of those that did.
    #[must_use]
    pub(super) fn release(
        &mut self,
        peer: Addr,
        slot: u32,
        room: u64,
        account_of: impl Fn(u32) -> u32,
        stays: impl Fn(u32) -> bool,
    ) -> Vec<u32> {
        let Some(&account) = self.counts_for.get(&peer).filter(|_| self.holders.remove(&(peer, slot))) else {
            return Vec::new();
        };
        let others = || self.holders.range((peer, 0)..=(peer, u32::MAX)).map(|(_, slot)| *slot);
        if account != account_of(slot) || others().any(|other| account_of(other) == account) {
            // It counts for one that holds it still.
            return Vec::new();
        }
        self.shares.give_back(account, 1);
        self.hear_of(room);
        let others = || self.holders.range((peer, 0)..=(peer, u32::MAX)).map(|(_, slot)| *slot);
        // Not whoever holds it: a process could have others add what it may not, and inherit the whole book.
        let may = |other: &u32| self.shares.available(account_of(*other)) > 0;
        // One that is leaving is the last resort: until it releases the entry another one may have room.
        let heir = others().filter(|other| stays(*other)).find(may).or_else(|| others().find(may));
        if let Some(heir) = heir.map(&account_of) {
            self.shares.put(heir, 1);
            self.counts_for.insert(peer, heir);
            return Vec::new();
        }
        let losers: Vec<u32> = others().collect();
        for slot in &losers {
            self.holders.remove(&(peer, *slot));
        }
        self.counts_for.remove(&peer);
        losers
    }

    /// How many entries count for `account`.
    #[cfg(test)]
    pub(super) fn used(&self, account: u32) -> u64 {
        self.shares.used(account)
    }

    /// Checks that these are the holders, that each entry counts for one of them, and that what all have together leaves each account
    /// its part.
    #[cfg(test)]
    pub(super) fn check(&self, holders: &BTreeSet<(Addr, u32)>, account_of: impl Fn(u32) -> u32) {
        assert_eq!(self.holders, *holders);
        let held: BTreeSet<Addr> = holders.iter().map(|(peer, _)| *peer).collect();
        assert_eq!(held.len(), self.counts_for.len());
        for (peer, account) in &self.counts_for {
            let mut of_peer = holders.range((*peer, 0)..=(*peer, u32::MAX));
            assert!(of_peer.any(|(_, slot)| account_of(*slot) == *account), "{peer:?} counts for {account}");
        }
        for account in 0..self.accounts as u32 {
            let counted = self.counts_for.values().filter(|other| **other == account).count();
            assert_eq!(counted as u64, self.shares.used(account), "entries that count for {account}");
        }
        if self.room > 0 {
            self.shares.check(self.room, self.accounts, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: u64 = 32;
    const PEER: Addr = Addr(9);

    /// Slots 0 to 2 hold a peer, each with an account of its own.
    fn held_by_three() -> HeldPeers {
        let mut held = HeldPeers::new(4);
        for slot in 0..3 {
            assert!(held.may_hold(slot, PEER, ROOM));
            held.hold(PEER, slot, slot);
        }
        held
    }

    fn check(held: &HeldPeers, holders: &[u32], account: Option<u32>) {
        held.check(&holders.iter().map(|slot| (PEER, *slot)).collect(), |slot| slot);
        assert_eq!(held.counts_for.get(&PEER).copied(), account);
    }

    /// Otherwise one that stays, and has room when the first holder leaves, might have none when the second one does.
    #[test]
    fn an_entry_counts_for_one_that_stays_rather_than_for_one_that_leaves() {
        let mut held = held_by_three();
        assert_eq!(held.release(PEER, 0, ROOM, |slot| slot, |slot| slot != 1), [0; 0]);
        check(&held, &[1, 2], Some(2));
        // The one that stays takes all that it may.
        let mut other = 100;
        while held.may_add(2, ROOM) {
            held.hold(Addr(other), 2, 2);
            other += 1;
        }
        assert_eq!(held.release(PEER, 1, ROOM, |slot| slot, |slot| slot == 2), [0; 0]);
        assert_eq!(held.counts_for.get(&PEER), Some(&2));
    }

    #[test]
    fn an_entry_counts_for_one_that_leaves_if_none_that_stays_has_room() {
        let mut held = held_by_three();
        let mut other = 100;
        while held.may_add(2, ROOM) {
            held.hold(Addr(other), 2, 2);
            other += 1;
        }
        assert_eq!(held.release(PEER, 0, ROOM, |slot| slot, |slot| slot == 2), [0; 0]);
        assert_eq!(held.counts_for.get(&PEER), Some(&1));
        // Meanwhile the one that stays has released one of its own.
        assert_eq!(held.release(Addr(100), 2, ROOM, |slot| slot, |_| true), [0; 0]);
        assert_eq!(held.release(PEER, 1, ROOM, |slot| slot, |slot| slot == 2), [0; 0]);
        assert_eq!(held.counts_for.get(&PEER), Some(&2));
    }
}
