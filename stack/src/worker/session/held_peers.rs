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
/// processes with the same peers need no more room than one.
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
        // It changes with the entries that the owner keeps.
        if room != self.room {
            self.shares = self.shares.resized(room, self.accounts);
            self.room = room;
        }
        self.shares.available(account) > 0
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

    /// The application in `slot` holds `peer` no more. `account_of` tells the account of a slot.
    pub(super) fn release(&mut self, peer: Addr, slot: u32, account_of: impl Fn(u32) -> u32) {
        if !self.holders.remove(&(peer, slot)) {
            return;
        }
        let Some(counts_for) = self.counts_for.get_mut(&peer) else { return };
        let next = self.holders.range((peer, 0)..=(peer, u32::MAX)).next();
        match next.map(|(_, next)| account_of(*next)) {
            None => {
                self.shares.give_back(*counts_for, 1);
                self.counts_for.remove(&peer);
            }
            Some(next) if *counts_for == account_of(slot) => {
                self.shares.give_back(*counts_for, 1);
                self.shares.put(next, 1);
                *counts_for = next;
            }
            // It counts for one that holds it still.
            Some(_) => {}
        }
    }
}
