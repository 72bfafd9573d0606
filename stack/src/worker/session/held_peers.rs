//! Peers that stay in the address book as long as applications hold them: each counts for the process of one of its holders, or, while
//! somebody uses it whom it does not count for, for that of the last one.

use std::collections::{BTreeSet, HashMap};
use std::hash::BuildHasherDefault;
use std::ops::Bound::{Excluded, Unbounded};

use rustc_hash::FxHasher;

use crate::ledger::Shares;
use crate::packet::Addr;

/// The most entries without holders that are looked at to find some that are not in use any more. The next look goes on behind them.
pub(super) const LOOKS: usize = 64;

/// Entries have this in place of an account if they are taken of the rest, which is reserved for nobody.
const NOBODY: u32 = u32::MAX;

/// The entries of the address book that applications hold: they have asked for them, or have connections to them.
///
/// An entry counts for the account of the application that was the first to hold it, whoever holds it as well: hundreds of
/// processes with the same peers need no more room than one. Once that account holds it no more, it counts for another one. If none
/// may have it, nobody holds it any more. While it is in use nevertheless, it takes a place of the book, and goes on to count for the
/// account that had it last: otherwise two processes that take turns could have all places, each in use and counted for nobody. When
/// another process gets that account, such entries are taken of what is reserved for nobody.
#[derive(Debug)]
pub(super) struct HeldPeers {
    /// How many accounts there are.
    accounts: u64,
    /// The slots of the applications that hold each peer.
    holders: BTreeSet<(Addr, u32)>,
    /// The account that each peer counts for, or [`NOBODY`].
    counts_for: HashMap<Addr, u32, BuildHasherDefault<FxHasher>>,
    /// The peers that nobody holds, but that were in use when the last holder released them, each behind the account that it counts
    /// for.
    left: BTreeSet<(u32, Addr)>,
    /// The one of these that was looked at last.
    last_look: (u32, Addr),
    /// Whether entries that nobody holds have been looked at in this turn because an application may add none.
    has_looked: bool,
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
            left: BTreeSet::new(),
            last_look: (NOBODY, Addr(u32::MAX)),
            has_looked: false,
            room: 0,
            shares: Shares::new(0, accounts),
        }
    }

    /// Whether an application of `account` may hold an entry more that counts for it, of `room` that the book has for all. If not,
    /// some entries are looked at that nobody holds, once in a turn.
    pub(super) fn may_add(&mut self, account: u32, room: u64, is_in_use: impl FnMut(Addr) -> bool) -> bool {
        self.hear_of(room);
        if self.shares.available(account) == 0 && !std::mem::replace(&mut self.has_looked, true) {
            self.look_at_left(LOOKS, is_in_use);
        }
        self.shares.available(account) > 0
    }

    /// A turn of the worker's loop begins. If entries are taken of what is reserved for nobody, one is looked at: a join may be refused
    /// because of them when no application that is there looks for room.
    #[inline]
    pub(super) fn begin_turn(&mut self, is_in_use: impl FnMut(Addr) -> bool) {
        self.has_looked = false;
        if self.shares.of_rest() > 0 {
            self.look_at_left(1, is_in_use);
        }
    }

    /// Whether there are entries that nobody holds: some of them may not be in use any more.
    pub(super) fn has_left(&self) -> bool {
        !self.left.is_empty()
    }

    /// Looks at up to `most` entries that nobody holds. Those that are not in use any more are given back.
    pub(super) fn look_at_left(&mut self, most: usize, mut is_in_use: impl FnMut(Addr) -> bool) {
        if self.left.is_empty() {
            return;
        }
        let from = self.last_look;
        let round = self.left.range((Excluded(from), Unbounded)).chain(self.left.range(..=from));
        let looked: Vec<(u32, Addr)> = round.take(most).copied().collect();
        self.last_look = looked.last().copied().unwrap_or(from);
        for (account, peer) in looked.into_iter().filter(|(_, peer)| !is_in_use(*peer)) {
            self.left.remove(&(account, peer));
            self.counts_for.remove(&peer);
            self.give_back(account);
        }
    }

    /// An entry counts for `account` no more.
    fn give_back(&mut self, account: u32) {
        match account {
            NOBODY => self.shares.give_back_of_rest(1),
            _ => self.shares.give_back(account, 1),
        }
    }

    /// Whether nobody holds `peer`, which counts for `account`.
    fn is_left(&self, account: u32, peer: Addr) -> bool {
        self.left.contains(&(account, peer))
    }

    /// Whether a process could add fewer peers than are reserved for it if it got `account`, which has no applications, and asked for
    /// up to `peers`. Returns how many are reserved for it, and how many of these it could add. Entries of the account that are in use
    /// would be taken of the rest first, as far as the rest has room for them.
    pub(super) fn lack(&self, account: u32, peers: u64) -> Option<(u64, u64)> {
        let (used, each) = (self.shares.used(account) - self.shares.disownable(account), self.shares.each());
        let (wanted, left) = (peers.min(each), each.saturating_sub(used));
        (wanted > left).then_some((wanted, left))
    }

    /// Another process has got `account`. The entries that earlier processes have left in use there are taken of the rest, as far as
    /// the rest has room for them. There are no more of them than one process may have, which is a quarter of the book.
    pub(super) fn take_over(&mut self, account: u32) {
        let count = self.shares.disown(account);
        let all = self.left.range((account, Addr(0))..=(account, Addr(u32::MAX)));
        let moved: Vec<Addr> = all.take(count as usize).map(|(_, peer)| *peer).collect();
        for peer in moved {
            self.counts_for.insert(peer, NOBODY);
            self.left.remove(&(account, peer));
            self.left.insert((NOBODY, peer));
        }
    }

    /// The book has `room` for all: it changes with the entries that the owner keeps.
    fn hear_of(&mut self, room: u64) {
        if room != self.room {
            self.shares = self.shares.resized(room, self.accounts);
            self.room = room;
        }
    }

    /// Whether an application of `account` may hold `peer`, of `room` entries that the book has for all. One that nobody holds has to
    /// count for that account.
    pub(super) fn may_hold(
        &mut self,
        account: u32,
        peer: Addr,
        room: u64,
        is_in_use: impl FnMut(Addr) -> bool,
    ) -> bool {
        let counts = |for_account: &u32| *for_account == account || !self.is_left(*for_account, peer);
        self.counts_for.get(&peer).is_some_and(counts) || self.may_add(account, room, is_in_use)
    }

    /// The application in `slot`, of `account`, holds `peer`, as it [may](HeldPeers::may_hold).
    pub(super) fn hold(&mut self, peer: Addr, slot: u32, account: u32) {
        self.holders.insert((peer, slot));
        if let Some(before) = self.counts_for.get(&peer).copied() {
            if !self.left.remove(&(before, peer)) {
                return;
            }
            self.give_back(before);
        }
        self.counts_for.insert(peer, account);
        self.shares.put(account, 1);
    }

    /// The application in `slot` holds `peer` no more, of `room` entries that the book has for all. `account_of` tells the account
    /// of a slot, and `stays` whether its application is not leaving. The entry counts for another holder then, of the same account
    /// or of one that may still have an entry more: for one that stays, if there is one. If there is none, nobody holds it any more:
    /// returns the slots of those that did. It counts for the same account as before while it `is_in_use`.
    #[must_use]
    pub(super) fn release(
        &mut self,
        peer: Addr,
        slot: u32,
        room: u64,
        is_in_use: bool,
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
        if is_in_use {
            self.shares.put(account, 1);
            self.left.insert((account, peer));
        } else {
            self.counts_for.remove(&peer);
        }
        losers
    }

    /// How many entries count for `account`. If none of its applications is there, nobody holds them.
    pub(super) fn used(&self, account: u32) -> u64 {
        self.shares.used(account)
    }

    /// Whether `peer` counts for somebody.
    #[cfg(test)]
    pub(super) fn counts(&self, peer: Addr) -> bool {
        self.counts_for.contains_key(&peer)
    }

    /// How many entries count for accounts whose applications do not hold them.
    #[cfg(test)]
    pub(super) fn left(&self) -> u64 {
        self.left.len() as u64
    }

    /// Checks that these are the holders, that each entry that has some counts for one of them, and that what all have together leaves
    /// each account its part.
    #[cfg(test)]
    pub(super) fn check(&self, holders: &BTreeSet<(Addr, u32)>, account_of: impl Fn(u32) -> u32) {
        assert_eq!(self.holders, *holders);
        let held: BTreeSet<Addr> = holders.iter().map(|(peer, _)| *peer).collect();
        assert!(self.left.iter().all(|(_, peer)| !held.contains(peer)), "{:?}: some have holders", self.left);
        assert_eq!(held.len() + self.left.len(), self.counts_for.len());
        assert!(self.left.iter().all(|(account, peer)| self.counts_for.get(peer) == Some(account)));
        for (peer, account) in
            self.counts_for.iter().filter(|(peer, account)| !self.is_left(**account, **peer))
        {
            let mut of_peer = holders.range((*peer, 0)..=(*peer, u32::MAX));
            assert!(of_peer.any(|(_, slot)| account_of(*slot) == *account), "{peer:?} counts for {account}");
        }
        for account in 0..self.accounts as u32 {
            let counted = self.counts_for.values().filter(|other| **other == account).count();
            assert_eq!(counted as u64, self.shares.used(account), "entries that count for {account}");
        }
        if self.room > 0 {
            let of_nobody = self.counts_for.values().filter(|account| **account == NOBODY).count();
            assert_eq!(of_nobody as u64, self.shares.of_rest());
            self.shares.check(self.room, self.accounts);
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
            assert!(held.may_hold(slot, PEER, ROOM, |_| true));
            held.hold(PEER, slot, slot);
        }
        held
    }

    /// An application whose slot has this number takes all that it may, from this peer on.
    fn take_all(held: &mut HeldPeers, slot: u32, first: u32) -> BTreeSet<(Addr, u32)> {
        let mut taken = BTreeSet::new();
        for peer in (first..).map(Addr) {
            if !held.may_add(slot, ROOM, |_| true) {
                break;
            }
            held.hold(peer, slot, slot);
            taken.insert((peer, slot));
        }
        taken
    }

    fn check(held: &HeldPeers, holders: &[u32], account: Option<u32>) {
        held.check(&holders.iter().map(|slot| (PEER, *slot)).collect(), |slot| slot);
        assert_eq!(held.counts_for.get(&PEER).copied(), account);
    }

    /// Otherwise one that stays, and has room when the first holder leaves, might have none when the second one does.
    #[test]
    fn an_entry_counts_for_one_that_stays_rather_than_for_one_that_leaves() {
        let mut held = held_by_three();
        assert_eq!(held.release(PEER, 0, ROOM, false, |slot| slot, |slot| slot != 1), [0; 0]);
        check(&held, &[1, 2], Some(2));
        take_all(&mut held, 2, 100);
        assert_eq!(held.release(PEER, 1, ROOM, false, |slot| slot, |slot| slot == 2), [0; 0]);
        assert_eq!(held.counts_for.get(&PEER), Some(&2));
    }

    #[test]
    fn an_entry_counts_for_one_that_leaves_if_none_that_stays_has_room() {
        let mut held = held_by_three();
        take_all(&mut held, 2, 100);
        assert_eq!(held.release(PEER, 0, ROOM, false, |slot| slot, |slot| slot == 2), [0; 0]);
        assert_eq!(held.counts_for.get(&PEER), Some(&1));
        // Meanwhile the one that stays has released one of its own.
        assert_eq!(held.release(Addr(100), 2, ROOM, false, |slot| slot, |_| true), [0; 0]);
        assert_eq!(held.release(PEER, 1, ROOM, false, |slot| slot, |slot| slot == 2), [0; 0]);
        assert_eq!(held.counts_for.get(&PEER), Some(&2));
    }

    /// Slot 1 has all that it may and holds the peer of slot 0, which leaves. The entry stays in use.
    #[test]
    fn an_entry_in_use_that_no_holder_may_have_counts_for_the_account_that_had_it() {
        let mut held = HeldPeers::new(4);
        held.hear_of(ROOM);
        held.hold(PEER, 0, 0);
        held.hold(PEER, 1, 1);
        let of_others = take_all(&mut held, 1, 100);
        assert_eq!(held.release(PEER, 0, ROOM, true, |slot| slot, |_| true), [1], "nobody holds it");
        held.check(&of_others, |slot| slot);
        assert_eq!((held.used(0), held.counts(PEER)), (1, true));
        // Who may have no more may not hold it either.
        assert!(!held.may_hold(1, PEER, ROOM, |_| true));
        // It counts for one that may, and for nobody else then.
        assert!(held.may_hold(2, PEER, ROOM, |_| true));
        held.hold(PEER, 2, 2);
        assert_eq!((held.used(0), held.used(2)), (0, 1));
        assert_eq!(held.release(PEER, 2, ROOM, true, |slot| slot, |_| true), [0; 0]);
        // For the account that it counts for it makes no difference who holds it.
        take_all(&mut held, 2, 200);
        let used = held.used(2);
        assert!(held.may_hold(2, PEER, ROOM, |_| true));
        held.hold(PEER, 2, 2);
        assert_eq!(held.used(2), used);
    }

    /// Of 32 entries two are reserved for each of eight accounts.
    #[test]
    fn entries_in_use_of_an_account_that_changes_hands_are_taken_of_what_is_reserved_for_nobody() {
        const ROOM: u64 = 32;
        let mut held = HeldPeers::new(8);
        held.hear_of(ROOM);
        let take = |held: &mut HeldPeers, account: u32, count: u32| {
            for peer in (0..count).map(|n| Addr(1000 * (account + 1) + n)) {
                assert!(held.may_add(account, ROOM, |_| true));
                held.hold(peer, account, account);
            }
        };
        for account in 0..6 {
            take(&mut held, account, 4);
        }
        for account in 0..6 {
            for peer in (0..4).map(|n| Addr(1000 * (account + 1) + n)) {
                assert_eq!(held.release(peer, account, ROOM, true, |slot| slot, |_| true), [0; 0]);
            }
        }
        // Of each account's four two are of the rest already, so that each takes two more of the four that are left of it.
        for account in 0..2 {
            assert_eq!(held.lack(account, 2), None);
            held.take_over(account);
            assert_eq!(held.used(account), 0);
            held.check(&BTreeSet::new(), |slot| slot);
        }
        assert_eq!(held.lack(2, 2), Some((2, 0)), "it would have none of the two that are reserved for it");
        assert_eq!(held.lack(2, 0), None, "it wants none");
        held.take_over(2);
        held.check(&BTreeSet::new(), |slot| slot);
        // Another application holds one of them, which counts for its account from then on.
        let peer = Addr(1000);
        assert!(held.may_hold(7, peer, ROOM, |_| true));
        held.hold(peer, 7, 7);
        assert_eq!(held.used(7), 1);
        held.check(&[(peer, 7)].into(), |slot| slot);
        // Once they are not in use any more there is room again.
        held.look_at_left(LOOKS, |peer| peer.0 / 1000 != 2);
        held.check(&[(peer, 7)].into(), |slot| slot);
        assert_eq!(held.lack(2, 2), None);
        // A book with more room has as many entries in use.
        let of_rest = held.shares.of_rest();
        held.hear_of(ROOM + 8);
        assert!(of_rest > 0 && held.shares.of_rest() == of_rest);
        held.check(&[(peer, 7)].into(), |slot| slot);
        // One is looked at in each turn.
        for n in (0..held.left.len()).rev() {
            held.begin_turn(|_| false);
            held.check(&[(peer, 7)].into(), |slot| slot);
            if held.shares.of_rest() == 0 {
                return;
            }
            assert_eq!(held.left.len(), n);
        }
        panic!("they are never given back");
    }

    #[test]
    fn entries_that_nobody_holds_are_given_back_once_they_are_not_in_use() {
        let mut held = HeldPeers::new(4);
        let all = take_all(&mut held, 0, 100);
        for (peer, slot) in &all {
            assert_eq!(held.release(*peer, *slot, ROOM, true, |slot| slot, |_| true), [0; 0]);
        }
        held.check(&BTreeSet::new(), |slot| slot);
        assert_eq!(held.used(0), all.len() as u64);
        assert!(!held.may_add(0, ROOM, |_| true), "all of them are in use");
        assert!(!held.may_add(0, ROOM, |_| panic!("they are looked at twice in a turn")));
        held.begin_turn(|_| panic!("none is taken of the rest"));
        assert!(held.may_add(0, ROOM, |peer| peer != Addr(104)), "one of them is not");
        assert_eq!(held.used(0), all.len() as u64 - 1);
        held.look_at_left(LOOKS, |_| false);
        held.check(&BTreeSet::new(), |slot| slot);
        assert_eq!(held.used(0), 0);
    }

    /// Each look goes on where the last one has ended, so that none of them is passed over.
    #[test]
    fn a_look_at_entries_that_nobody_holds_has_a_bound() {
        const MANY: u64 = 40 * LOOKS as u64;
        let mut held = HeldPeers::new(4);
        let mut all = BTreeSet::new();
        while held.may_add(0, MANY, |_| true) {
            let peer = Addr(100 + all.len() as u32);
            held.hold(peer, 0, 0);
            all.insert(peer);
        }
        assert!(all.len() > 8 * LOOKS, "{}", all.len());
        for peer in &all {
            assert_eq!(held.release(*peer, 0, MANY, true, |slot| slot, |_| true), [0; 0]);
        }
        let mut looked = BTreeSet::new();
        for _ in 0..all.len().div_ceil(LOOKS) {
            let mut count = 0;
            held.look_at_left(LOOKS, |peer| {
                looked.insert(peer);
                count += 1;
                true
            });
            assert!(count <= LOOKS, "{count}");
        }
        assert_eq!(looked, all);
    }
}
