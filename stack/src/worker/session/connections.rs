//! What applications use together: connections, the PDCs that a peer takes of this endpoint, and datagrams that are held.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::BuildHasherDefault;

use rustc_hash::FxHasher;
use weft_cc::{Span, Time};

use super::accounts::Accounts;
use super::held::HeldConnections;
use super::held_datagrams::HeldDatagrams;
use super::held_peers::HeldPeers;
use super::peer_costs::PeerCosts;
use crate::fep::{CallError, ConnectionId, Failure, Resource};
use crate::ledger::Shares;
use crate::packet::Addr;

/// The connections of all applications.
#[derive(Debug)]
pub(super) struct Connections {
    /// The session and the number of each.
    pub(super) numbers: HashMap<ConnectionId, (u32, u32), BuildHasherDefault<FxHasher>>,
    pub(super) held: HeldConnections,
    pub(super) datagrams: HeldDatagrams,
    pub(super) held_peers: HeldPeers,
    pub(super) peer_costs: PeerCosts,
    /// How many applications there can be.
    applications: usize,
    pub(super) accounts: Accounts,
    /// The PDCs that this endpoint has at each peer, shared by accounts. A peer lets all of
    /// an endpoint have [`Limits::pdcs_per_peer`](crate::fep::Limits::pdcs_per_peer); its limit is taken to be ours.
    at_peer: HashMap<Addr, Shares<u32>, BuildHasherDefault<FxHasher>>,
    /// How many of them each session has, if it has some, by its peer, account and slot.
    of_sessions: BTreeMap<(Addr, u32, u32), u64>,
    /// PDCs that failed connections may have left at peers, the account for which they count, and until when.
    left_behind: VecDeque<(Time, Addr, u32)>,
    /// How many of them each account has left at each peer, if there are some.
    left_at: BTreeMap<(u32, Addr), LeftBehind>,
    /// How many of them count for each account.
    counts: Vec<u32>,
}

/// The PDCs that failed connections of an account may have left behind at a peer.
#[derive(Clone, Copy, Debug, Default)]
struct LeftBehind {
    /// How many PDCs count for the account.
    counted: u64,
    /// How many PDCs of processes that had the account before are taken of the rest, which is reserved for nobody. They expire first.
    of_rest: u64,
}

impl Connections {
    /// None, of up to `applications` applications.
    pub(super) fn new(applications: usize) -> Connections {
        Connections {
            numbers: HashMap::default(),
            held: HeldConnections::default(),
            datagrams: HeldDatagrams::default(),
            held_peers: HeldPeers::new(applications),
            peer_costs: PeerCosts::new(applications),
            applications,
            accounts: Accounts::new(applications),
            at_peer: HashMap::default(),
            of_sessions: BTreeMap::new(),
            left_behind: VecDeque::new(),
            left_at: BTreeMap::new(),
            counts: vec![0; applications],
        }
    }

    /// The account of the application in `slot`.
    pub(super) fn account(&self, slot: u32) -> u32 {
        self.accounts.of(slot)
    }

    /// The application in `slot` holds `peer` in the address book no more, which has `room` for the peers of all. Returns the slots of
    /// others that hold it no more either, as none of them may. While it `is_in_use` it counts as before then.
    #[must_use]
    pub(super) fn release_peer(&mut self, slot: u32, peer: Addr, room: u64, is_in_use: bool) -> Vec<u32> {
        let (account_of, stays) = (|slot| self.accounts.of(slot), |slot| self.accounts.is_open(slot));
        self.held_peers.release(peer, slot, room, is_in_use, account_of, stays)
    }

    /// Whether the application in `slot` has a connection to `peer`.
    pub(super) fn is_connected(&self, slot: u32, peer: Addr) -> bool {
        self.of_sessions.contains_key(&(peer, self.account(slot), slot))
    }

    /// Lets the application in `slot` open a connection to `peer`, of `limit` that the peer takes of all.
    ///
    /// # Errors
    /// Its account has its part, and what others must leave it is used up; or the application has to leave some to another one of
    /// its account, which has none.
    pub(super) fn claim(&mut self, peer: Addr, slot: u32, limit: u32) -> Result<(), CallError> {
        let account = self.account(slot);
        let none = || Shares::new(limit.into(), self.applications as u64);
        let available = self.at_peer.entry(peer).or_insert_with(none).available(account);
        if available == 0 || self.must_leave(peer, account, slot, available) {
            return Err(CallError::Limit { what: Resource::PeerConnections, limit: limit as usize });
        }
        self.at_peer.entry(peer).and_modify(|all| all.put(account, 1));
        *self.of_sessions.entry((peer, account, slot)).or_default() += 1;
        Ok(())
    }

    /// Whether the session in `slot` must leave what `account` may still have at `peer` to others of the account: it has more than
    /// half of that, and another one has nothing.
    fn must_leave(&self, peer: Addr, account: u32, slot: u32, available: u64) -> bool {
        let open = self.accounts.open(account) as usize;
        let has = self.of_sessions.get(&(peer, account, slot)).copied().unwrap_or(0);
        if open < 2 || has * 2 <= available {
            return false;
        }
        let of_account = self.of_sessions.range((peer, account, 0)..=(peer, account, u32::MAX));
        of_account.filter(|((.., slot), _)| self.accounts.is_open(*slot)).count() < open
    }

    /// The application in `slot` has a PDC less at `peer`.
    pub(super) fn release(&mut self, peer: Addr, slot: u32) {
        self.forget(peer, slot);
        self.give_back(peer, Some(self.account(slot)));
    }

    /// The session in `slot` has a PDC less at `peer`, whether its account has it still or not.
    fn forget(&mut self, peer: Addr, slot: u32) {
        if let Entry::Occupied(mut has) = self.of_sessions.entry((peer, self.account(slot), slot)) {
            *has.get_mut() -= 1;
            if *has.get() == 0 {
                has.remove();
            }
        }
    }

    fn give_back(&mut self, peer: Addr, account: Option<u32>) {
        let Some(all) = self.at_peer.get_mut(&peer) else { return };
        match account {
            Some(account) => all.give_back(account, 1),
            None => all.give_back_of_rest(1),
        }
        if all.of_rest() == 0 && all.is_unused() {
            self.at_peer.remove(&peer);
        }
    }

    /// Another process has got `account`, which has no connections. Entries of the address book, and PDCs at peers, that earlier
    /// processes have left there are taken of the rest, as far as the rest has room for them, so that the process has what is reserved
    /// for it. A join is not refused for a peer where there is less: the process may want other peers.
    pub(super) fn take_over(&mut self, account: u32) {
        self.held_peers.take_over(account);
        for (&(_, peer), left) in self.left_at.range_mut((account, Addr(0))..=(account, Addr(u32::MAX))) {
            let Some(all) = self.at_peer.get_mut(&peer) else { continue };
            let count = all.disown(account);
            left.counted -= count;
            left.of_rest += count;
            self.counts[account as usize] -= count as u32;
        }
    }

    /// The connection `id` to `peer` is no more. Returns the session and the number that it had.
    ///
    /// A peer that has not heard that its initiator has given up keeps the PDC for up to twice its idle timeout, which is
    /// taken to be `idle`, as this endpoint's is: so long the PDC counts as its application's.
    pub(super) fn remove(
        &mut self,
        now: Time,
        (id, peer): (ConnectionId, Addr),
        result: Result<(), Failure>,
        idle: Span,
    ) -> Option<(u32, u32)> {
        self.held.remove(peer, id);
        let (slot, number) = self.numbers.remove(&id)?;
        match result {
            Ok(()) | Err(Failure::ClosedByPeer { .. }) => self.release(peer, slot),
            Err(_) => {
                self.forget(peer, slot);
                let account = self.account(slot);
                self.left_behind.push_back((now + idle.times(2), peer, account));
                self.left_at.entry((account, peer)).or_default().counted += 1;
                self.counts[account as usize] += 1;
            }
        }
        Some((slot, number))
    }

    /// Gives back what has been counted for long enough.
    #[inline]
    pub(super) fn expire(&mut self, now: Time) {
        while let Some(&(until, peer, account)) = self.left_behind.front()
            && now.is_at_or_after(until)
        {
            self.left_behind.pop_front();
            self.forget_left(peer, account);
        }
    }

    /// The oldest PDC that was left at `peer` by `account` is not there any more.
    #[cold]
    fn forget_left(&mut self, peer: Addr, account: u32) {
        let Entry::Occupied(mut left) = self.left_at.entry((account, peer)) else { return };
        let of_account = left.get().of_rest == 0;
        let LeftBehind { counted, of_rest } = left.get_mut();
        if of_account {
            *counted -= 1;
        } else {
            *of_rest -= 1;
        }
        if *counted + *of_rest == 0 {
            left.remove();
        }
        self.counts[account as usize] -= u32::from(of_account);
        self.give_back(peer, of_account.then_some(account));
    }

    /// How many PDCs that were left behind count for `account`.
    pub(super) fn left_behind(&self, account: usize) -> u32 {
        self.counts[account]
    }

    /// The peers that applications have connections to.
    #[cfg(test)]
    pub(super) fn peers(&self) -> impl Iterator<Item = Addr> {
        self.of_sessions.keys().map(|(peer, ..)| *peer)
    }

    /// Checks that the PDCs at each peer are counted right, of `limit` that it takes. Returns what each account
    /// has, with what its failed connections may have left behind.
    #[cfg(test)]
    pub(super) fn check(&self, limit: u32) -> HashMap<u32, u64> {
        let mut of_each = HashMap::<u32, u64>::new();
        assert_eq!(
            self.left_at.values().map(|left| left.counted + left.of_rest).sum::<u64>() as usize,
            self.left_behind.len()
        );
        for (peer, shares) in &self.at_peer {
            let left = self.left_at.iter().filter(|((_, at), _)| at == peer);
            assert_eq!(left.map(|(_, left)| left.of_rest).sum::<u64>(), shares.of_rest());
            shares.check(limit.into(), self.applications as u64);
            for account in 0..self.applications as u32 {
                *of_each.entry(account).or_default() += shares.used(account);
            }
        }
        of_each.retain(|_, count| *count > 0);
        let of_sessions: u64 = self.of_sessions.values().sum();
        assert_eq!(of_sessions, self.numbers.len() as u64);
        let mut of_accounts = BTreeMap::<(Addr, u32), u64>::new();
        for (&(peer, account, slot), count) in &self.of_sessions {
            assert!(*count > 0 && self.account(slot) == account);
            *of_accounts.entry((peer, account)).or_default() += count;
        }
        for (&(account, peer), left) in &self.left_at {
            assert!(self.at_peer.contains_key(&peer) && left.counted + left.of_rest > 0);
            *of_accounts.entry((peer, account)).or_default() += left.counted;
        }
        for (account, counted) in (0..).zip(&self.counts) {
            let of_account = self.left_at.range((account, Addr(0))..=(account, Addr(u32::MAX)));
            assert_eq!(of_account.map(|(_, left)| left.counted).sum::<u64>(), u64::from(*counted));
        }
        for ((peer, account), count) in of_accounts {
            assert_eq!(self.at_peer[&peer].used(account), count);
        }
        of_each
    }
}
