//! The worker's side of all sessions: applications come and go, and the endpoint's completions are reported to them.

mod admission;

use core::net::IpAddr;
#[cfg(test)]
use std::collections::BTreeSet;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustc_hash::FxHasher;
use weft_cc::Time;

pub(super) use self::admission::{ALWAYS, Share};
use super::application::{Application, Obeyed, Posted};
use super::attention::{Attention, Places};
use super::connections::Connections;
use super::put_off::{PutOff, Quiet};
use super::report::{Report, Request};
use super::served::Served;
use super::unmapper::Unmapping;
#[cfg(test)]
use crate::fep::Limits;
use crate::fep::{CallError, Completion, ConnectionId, Fep, MAX_PROCESS};
use crate::packet::Addr;
#[cfg(test)]
use crate::region::Region;
use crate::worker::Waker;
use crate::worker::ring::Broken;

/// Identifies a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionId {
    pub(super) slot: u32,
    serial: u64,
}

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The application has dropped its client.
    Left,
    /// The application has died: its end of the socket is closed.
    Died,
    /// The application has written an impossible index into a ring.
    Broken(Broken),
    /// The owner has closed the session.
    Closed,
}

/// Entries of the address book that all applications which are leaving release in a turn, and as many that others release as they have
/// closed their last connections to them: for each, its other holders are looked at.
const RELEASES_PER_TURN: usize = 32;

/// The applications of one endpoint. The endpoint's completions are all theirs: its owner must not poll them, and
/// should [close](Fep::close_process) process 0, so that messages to process 0 are refused instead of kept. Long messages that have
/// waited are [copied in pieces](Fep::spread_copies) once an application has joined: an owner that uses process 0 itself has to call
/// [`Fep::copy`] for it.
pub struct Sessions {
    slots: Vec<Option<Application>>,
    /// Which of them are looked at in a turn.
    attention: Attention,
    connections: Connections,
    serial: u64,
    last_process: u16,
    /// Bytes of memory that all sessions may have together, with that of sessions that are gone until it is unmapped.
    memory: u64,
    /// What of it is to be unmapped by another thread, which may take a while.
    unmapping: Unmapping,
    /// The IP address that peers know the endpoint by, for applications to hand on.
    host: Option<IpAddr>,
    /// Wakes the owner, where applications of this process may find it asleep.
    waker: Option<Waker>,
    /// Connections that are refused, as soon as their messages are, because their peers cannot be reached.
    given_up: HashMap<ConnectionId, CallError, BuildHasherDefault<FxHasher>>,
    /// Sessions, by their slots, and peers that they have closed their last connections to. Each is noted once until it is looked at.
    parted: VecDeque<(u32, Addr)>,
    ended: VecDeque<(SessionId, u16, Ended)>,
    /// Whether others wait while messages of aborted connections end.
    quiet: Quiet,
    /// The time of the last turn.
    now: Time,
}

impl Sessions {
    /// Room for `capacity` applications, of which none is there.
    pub fn new(capacity: usize) -> Sessions {
        let capacity = capacity.min(usize::from(MAX_PROCESS));
        Sessions {
            slots: (0..capacity).map(|_| None).collect(),
            attention: Attention::new(capacity),
            connections: Connections::new(capacity),
            serial: 0,
            last_process: 0,
            memory: u64::MAX,
            unmapping: Unmapping::default(),
            host: None,
            waker: None,
            given_up: HashMap::default(),
            parted: VecDeque::new(),
            ended: VecDeque::new(),
            quiet: Quiet::default(),
            now: Time::ZERO,
        }
    }

    /// How many sessions there may be at a time.
    pub(super) fn capacity(&self) -> u16 {
        // At most as many as there are processes.
        self.slots.len() as u16
    }

    /// As [`Sessions::new`], for an owner that sleeps until `waker` is used: the clients of [`Sessions::open`] use it.
    pub fn with_waker(capacity: usize, waker: Waker) -> Sessions {
        Sessions { waker: Some(waker), ..Sessions::new(capacity) }
    }

    /// The same, which tell applications that peers know the endpoint by the IP address `host`.
    #[must_use]
    pub fn with_host(self, host: IpAddr) -> Sessions {
        Sessions { host: Some(host), ..self }
    }

    /// Lets sessions have no more than `memory` bytes together, rings included. Those that are open keep what they have.
    pub fn limit_memory(&mut self, memory: u64) {
        self.memory = memory;
    }

    /// Where memory of sessions that are gone counts until it is unmapped.
    pub(super) fn unmapping(&self) -> &Unmapping {
        &self.unmapping
    }

    pub(super) fn host(&self) -> Option<IpAddr> {
        self.host
    }

    /// How many sessions are open, or have connections that are not closed yet.
    pub fn len(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    /// Whether no place is taken.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Checks that no more is promised to applications than `limits` permit, and that their connections are counted right.
    #[cfg(test)]
    pub(super) fn check_accounts(&self, limits: &Limits) {
        let all = |of: fn(&Application) -> usize| self.slots.iter().flatten().map(of).sum::<usize>();
        assert!(all(|session| session.operations.count() as usize) <= limits.sends);
        assert!(all(|session| session.connections.len()) <= limits.most_connections());
        assert!(all(|session| session.memory as usize) as u64 <= self.memory);
        let mut open = std::collections::HashMap::<u32, u64>::new();
        for (slot, _) in self.connections.numbers.values() {
            *open.entry(self.connections.account(*slot)).or_default() += 1;
        }
        for account in 0..self.slots.len() {
            let left_behind = self.connections.left_behind(account);
            if left_behind > 0 {
                *open.entry(account as u32).or_default() += u64::from(left_behind);
            }
        }
        assert_eq!(self.connections.check(limits.pdcs_per_peer), open);
        let sessions = self.slots.iter().flatten();
        self.connections.accounts.check(sessions.map(|session| (session.id.slot, session.leaving)));
    }

    /// The memory of the session of a process.
    #[cfg(test)]
    pub(super) fn memory_of(&self, process: u16) -> Option<Region> {
        let session = self.slots.iter().flatten().find(|session| session.process == process)?;
        session.regions.first().cloned()
    }

    /// Checks that the entries of the address book that applications hold count for one of their holders each, that none has more
    /// than it may, and that they leave all others their parts.
    #[cfg(test)]
    pub(super) fn check_peers(&self) {
        for session in self.slots.iter().flatten() {
            assert!(session.held_peers.len() <= session.peers as usize);
            assert!(session.named.len() <= session.peers as usize);
            assert!(session.connected_peers.len() <= session.connections.len() + self.parted.len());
            assert!(session.connected_peers.keys().all(|peer| !session.held_peers.contains(peer)));
            for (peer, is_parted) in &session.connected_peers {
                let is_noted = self.parted.contains(&(session.id.slot, *peer));
                assert!(is_noted || !is_parted && self.connections.is_connected(session.id.slot, *peer));
            }
        }
        self.connections.held_peers.check(&self.holders(), |slot| self.connections.account(slot));
    }

    /// Checks that all peers that applications have connections to count for somebody, apart from those that the owner keeps.
    #[cfg(test)]
    pub(super) fn check_connected(&self, is_kept: impl Fn(Addr) -> bool) {
        for peer in self.connections.peers().filter(|peer| !is_kept(*peer)) {
            assert!(self.connections.held_peers.counts(peer), "{peer:?} is in use, and counts for nobody");
        }
    }

    /// Which peers the applications in the slots hold in the address book.
    #[cfg(test)]
    pub(super) fn holders(&self) -> BTreeSet<(Addr, u32)> {
        let of_session = |session: &Application| {
            let all = session.held_peers.iter().chain(session.connected_peers.keys());
            all.map(|peer| (*peer, session.id.slot)).collect::<Vec<_>>()
        };
        self.slots.iter().flatten().flat_map(of_session).collect()
    }

    /// How many entries of the address book count for accounts whose applications do not hold them.
    #[cfg(test)]
    pub(super) fn left_peers(&self) -> u64 {
        self.connections.held_peers.left()
    }

    /// How many entries of the address book count for the account of the session of a process.
    #[cfg(test)]
    pub(super) fn peers_of(&self, process: u16) -> u64 {
        self.connections.held_peers.used(self.account_of(process))
    }

    /// How many PDCs that failed connections have left at peers count for the account of the session of a process.
    #[cfg(test)]
    pub(super) fn left_behind_by(&self, process: u16) -> u32 {
        self.connections.left_behind(self.account_of(process) as usize)
    }

    #[cfg(test)]
    fn account_of(&self, process: u16) -> u32 {
        let session = self.slots.iter().flatten().find(|session| session.process == process);
        self.connections.account(session.expect("it has joined").id.slot)
    }

    /// Whether an application holds `peer` in the address book.
    #[cfg(test)]
    pub(super) fn is_held(&self, peer: Addr) -> bool {
        self.holders().iter().any(|(held, _)| *held == peer)
    }

    /// The account of a session.
    #[cfg(test)]
    pub(super) fn account(&self, id: SessionId) -> u32 {
        self.connections.account(id.slot)
    }

    /// Whether all commands that applications have given have been executed.
    #[cfg(test)]
    pub(super) fn have_obeyed(&mut self) -> bool {
        self.slots.iter_mut().flatten().all(Application::has_obeyed)
    }

    /// The operations that each application has posted and that have not ended.
    #[cfg(test)]
    pub(super) fn operations(&self) -> Vec<usize> {
        self.slots.iter().flatten().map(|session| session.in_use).collect()
    }

    /// In this turn so many bytes were touched for the application in `slot`.
    #[cfg(test)]
    pub(super) fn spend(&mut self, slot: u32, bytes: i64) {
        self.connections.accounts.ration(slot);
        self.connections.accounts.touch(slot, bytes);
    }

    /// The bytes that may be touched for the application in `slot` in this turn.
    #[cfg(test)]
    pub(super) fn bytes_left(&mut self, slot: u32) -> i64 {
        self.connections.accounts.ration(slot).bytes
    }

    /// Whether nothing that applications have asked for goes on.
    #[cfg(test)]
    pub(super) fn are_idle(&self) -> bool {
        self.slots.iter().flatten().all(|session| session.in_use == 0)
    }

    /// Applications with a receive for many messages that has to go on in the next turn.
    #[cfg(test)]
    pub(super) fn gatherers(&self) -> u64 {
        self.slots.iter().flatten().filter(|session| session.put_off.gathers).count() as u64
    }

    /// The reports that wait for room in the ring of a session.
    #[cfg(test)]
    pub(super) fn unread(&self, process: u16) -> usize {
        let mut sessions = self.slots.iter().flatten();
        sessions.find(|session| session.process == process).map_or(0, |session| session.backlog.len())
    }

    /// Connections to peers whose Ethernet address is being asked for.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn held_connections(&self) -> usize {
        self.connections.held.len()
    }

    /// Datagrams to such peers.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn held_datagrams(&self) -> usize {
        self.connections.datagrams.len()
    }

    /// The process of a session, while it is open.
    pub fn process(&self, id: SessionId) -> Option<u16> {
        let session = self.slots.get(id.slot as usize)?.as_ref()?;
        (session.id == id && !session.leaving).then_some(session.process)
    }

    /// The next session that has ended, its process, and how it ended. A session ends when its commands are not executed
    /// any more; its place is free once its connections are closed.
    pub fn poll_ended(&mut self) -> Option<(SessionId, u16, Ended)> {
        self.ended.pop_front()
    }

    /// Executes the commands of applications, and reports completions to them. To be called once a turn, before or after
    /// the worker's; returns how many commands and reports there were. Makes no system calls except to wake
    /// applications that sleep.
    ///
    /// Where there is a worker, `served` is the worker rather than its [`Fep`], which knows nothing of IP addresses.
    pub fn serve(&mut self, served: &mut impl Served, now: Time) -> usize {
        self.now = now;
        let is_in_use = |peer| served.fep_mut().standing(peer).may_be_in_use();
        self.connections.held_peers.begin_turn(is_in_use);
        self.connections.expire(now);
        let mut count = self.distribute(served.fep_mut(), now);
        if !self.connections.held.is_empty() {
            count += self.settle(served, now);
        }
        if !self.connections.datagrams.is_empty() {
            count += self.settle_datagrams(served, now);
        }
        count += self.go_on_with_round(served, now);
        let (done, cleared) = self.look_at_due(served, now);
        count += done;
        // Of all applications together, which take turns.
        let fep = served.fep_mut();
        if fep.has_aborted() {
            let budget = self.quiet.budget(count > 0, fep.counters());
            count += self.end_aborted(fep, now, budget);
            self.quiet.note(fep.counters());
        } else {
            self.quiet.forget();
        }
        count += cleared;
        count += self.distribute(served.fep_mut(), now);
        // Those that have been told something are awake, as are those that leave.
        let mut releases = RELEASES_PER_TURN;
        for word in 0..self.attention.words() {
            for slot in self.attention.awake(word) {
                let Some(session) = &mut self.slots[slot] else { continue };
                session.publish();
                if session.leaving && session.in_use == 0 && !session.clears_away {
                    let before = releases;
                    if self.release_peers(served, slot, &mut releases) {
                        self.slots[slot] = None;
                        self.attention.end(slot);
                        self.connections.accounts.end(slot as u32);
                    }
                    count += before - releases;
                }
            }
        }
        count + self.release_parted(served)
    }

    /// Executes commands of the applications that are due and have no backlog, and clears away what those leave that are gone. Returns how
    /// much was done, and at how many of the latter.
    #[inline]
    fn look_at_due(&mut self, served: &mut impl Served, now: Time) -> (usize, usize) {
        let (mut done, mut cleared) = (0, 0);
        // A message that is to be copied may belong to a quiet application: its last packet is no command.
        if served.fep_mut().has_copies() {
            self.attention.look_at_all();
        }
        self.attention.begin_turn();
        for word in 0..self.attention.words() {
            let mut due = self.attention.due(word);
            while let Some(slot) = due.next() {
                self.prefetch(due);
                match &mut self.slots[slot] {
                    Some(session) if session.leaving => {
                        cleared += usize::from(session.clear_away(served.fep_mut(), &mut self.connections));
                    }
                    _ => done += self.look_at(served, now, slot),
                }
            }
        }
        (done, cleared)
    }

    /// Executes commands of the applications with a backlog that are next in the round, until that is enough for a turn. Returns how much
    /// was done.
    #[inline]
    fn go_on_with_round(&mut self, served: &mut impl Served, now: Time) -> usize {
        self.connections.accounts.begin_turn();
        // A round that is not over counts as something done: the owner does not sleep in the middle of it.
        let mut done = usize::from(!self.attention.is_round_over());
        if done == 0 {
            self.attention.begin_round();
            self.connections.accounts.begin_round();
        }
        while let Some((slot, upcoming)) = self.attention.next_backlogged() {
            if self.connections.accounts.have_enough() {
                self.attention.put_back(slot);
                break;
            }
            self.prefetch(upcoming);
            let Some(session) = &mut self.slots[slot] else { continue };
            let has_backlog = |slot: u32| self.attention.has_backlog(slot as usize);
            if !session.is_idle(served.fep_mut())
                && !self.connections.accounts.has_its_turn(slot as u32, has_backlog)
            {
                done += session.flush(served.fep_mut());
                continue;
            }
            self.attention.serve(slot);
            done += self.look_at(served, now, slot);
        }
        done
    }

    /// Executes commands of an application that is not, or no longer, marked as one with a backlog, and looks whether it is gone. Returns
    /// how much was done.
    #[inline]
    fn look_at(&mut self, served: &mut impl Served, now: Time, slot: usize) -> usize {
        let Some(session) = &mut self.slots[slot] else { return 0 };
        if session.leaving || !session.is_sealed() {
            return 0;
        }
        if session.is_idle(served.fep_mut()) {
            self.attention.looked(slot, false);
            return 0;
        }
        let mut done = session.flush(served.fep_mut());
        match session.obey(served, now, &mut self.connections) {
            Obeyed::All(count) => done += count,
            Obeyed::Some(count) => {
                done += count;
                self.attention.set_backlog(slot, true);
            }
            Obeyed::NotItsTurn => {
                done += 1;
                self.connections.accounts.lets_pass(slot as u32);
                self.attention.set_backlog(slot, true);
            }
        }
        self.attention.looked(slot, done > 0);
        if let Some(how) = session.has_ended() {
            self.end(served.fep_mut(), now, slot, how);
        }
        done
    }

    /// The session in `slot`, which is leaving, holds its peers in the address book no more, nor the Ethernet addresses that it has
    /// named: `most` of them, from which those are taken that it has released. Returns whether it holds none.
    fn release_peers(&mut self, served: &mut impl Served, slot: usize, most: &mut usize) -> bool {
        while let Some(session) = &mut self.slots[slot] {
            let named = session.named.first().copied();
            let Some(peer) = named.or_else(|| session.first_peer()) else { break };
            if *most == 0 {
                return false;
            }
            *most -= 1;
            if session.named.remove(&peer) {
                served.withdraw(peer);
            } else {
                self.release_peer(served, slot as u32, peer);
            }
        }
        true
    }

    /// Sessions hold peers no more that they have no connections to any more, and have not asked for. Returns how many were looked at.
    fn release_parted(&mut self, served: &mut impl Served) -> usize {
        for count in 0..RELEASES_PER_TURN {
            let Some((slot, peer)) = self.parted.pop_front() else { return count };
            // The session may have asked for the peer or connected to it again, or may be another one.
            let Some(session) = &mut self.slots[slot as usize] else { continue };
            let Some(is_parted) = session.connected_peers.get_mut(&peer) else { continue };
            *is_parted = false;
            if !self.connections.is_connected(slot, peer) {
                self.release_peer(served, slot, peer);
            }
        }
        RELEASES_PER_TURN
    }

    /// The session in `slot` holds `peer` in the address book no more.
    fn release_peer(&mut self, served: &mut impl Served, slot: u32, peer: Addr) {
        let room = served.book_room().for_applications as u64;
        let is_in_use = served.fep_mut().standing(peer).may_be_in_use();
        let losers = self.connections.release_peer(slot, peer, room, is_in_use);
        for slot in std::iter::once(slot).chain(losers) {
            served.release_peer(peer);
            if let Some(session) = &mut self.slots[slot as usize] {
                session.forget_peer(peer);
            }
        }
    }

    /// Ends the sessions of applications that have died. Makes a system call for each session, so it should be called
    /// only as often as deaths should be noticed.
    pub fn check(&mut self, fep: &mut Fep, now: Time) {
        for slot in 0..self.slots.len() {
            let Some(session) = self.slots[slot].as_ref().filter(|session| !session.leaving) else {
                continue;
            };
            let seen = session.link.look();
            // A byte may say that it has mapped its memory, where no other thread watches its socket.
            let seals = || session.sealing.as_ref().is_none_or(|sealing| sealing.seal().is_ok());
            if seen.is_gone || seen.rang && !seals() {
                self.end_gone(fep, now, slot);
            }
        }
    }

    /// Prefetches for the applications at the first two of `places`, which are looked at next: of the first the operation that its next
    /// command names, of the second that command. Another processor has written the command, and the operation may not have
    /// been used for long, so that the worker would wait for both. If no command is known yet, only the index that tells whether
    /// there is one is prefetched.
    #[inline]
    fn prefetch(&self, mut places: Places) {
        let Some(first) = places.next() else { return };
        if let Some(next) = &self.slots[first] {
            next.prefetch_operation();
        }
        if let Some(second) = places.next().and_then(|slot| self.slots[slot].as_ref()) {
            second.prefetch_command();
        }
    }

    /// Ends the session whose application was at the other end of `socket`, and is gone.
    pub(super) fn hung_up(&mut self, fep: &mut Fep, now: Time, socket: &Arc<UnixStream>) {
        let is_its = |session: &Application| !session.leaving && session.link.is(socket);
        if let Some(slot) = self.slots.iter().position(|slot| slot.as_ref().is_some_and(is_its)) {
            self.end_gone(fep, now, slot);
        }
    }

    /// Ends the session of an application that is gone.
    fn end_gone(&mut self, fep: &mut Fep, now: Time, slot: usize) {
        let has_left = self.slots[slot]
            .as_mut()
            .is_some_and(|session| session.is_sealed() && session.commands.is_deserted());
        self.end(fep, now, slot, if has_left { Ended::Left } else { Ended::Died });
    }

    /// Ends a session. Does nothing if it has ended.
    pub fn close(&mut self, fep: &mut Fep, now: Time, id: SessionId) {
        if self.process(id).is_some() {
            self.end(fep, now, id.slot as usize, Ended::Closed);
        }
    }

    /// Ends a session that nobody has heard of, as if there had been none.
    pub(super) fn withdraw(&mut self, fep: &mut Fep, now: Time, id: SessionId) {
        self.close(fep, now, id);
        self.ended.retain(|(ended, ..)| *ended != id);
    }

    /// Ends all sessions. What they have not sent is cancelled at once: no application waits for its turn any more, and peers hear
    /// of it sooner.
    pub fn close_all(&mut self, fep: &mut Fep, now: Time) {
        for slot in 0..self.slots.len() {
            if self.slots[slot].as_ref().is_some_and(|session| !session.leaving) {
                self.end(fep, now, slot, Ended::Closed);
            }
        }
        fep.cancel_aborted(now, &mut { i64::MAX });
        for session in self.slots.iter_mut().flatten() {
            session.clear_some(fep, &mut self.connections, &mut { i64::MAX });
        }
    }

    /// Announces that the owner is about to sleep until its waker is used, or something can be read from one of
    /// [`Sessions::links`]. Returns whether it may; if not, there are commands, or messages to copy. [`Sessions::woken`] must be called
    /// afterwards in either case. An application that lets its ring of reports fill up does not wake the owner when it
    /// empties the ring: the remaining reports come when the owner wakes for another reason, so no owner should sleep
    /// for long.
    pub fn may_sleep(&mut self, fep: &Fep) -> bool {
        // The next turn may be one after the sleep: an application has ended it, whichever that is.
        self.attention.look_at_all();
        let mut all = !fep.has_copies();
        for (slot, session) in self.slots.iter_mut().enumerate() {
            // All of them have to be told.
            if let Some(session) = session.as_mut().filter(|session| !session.leaving)
                && !session.may_sleep()
            {
                self.attention.wake(slot);
                all = false;
            }
        }
        all
    }

    /// The owner is awake.
    pub fn woken(&mut self) {
        // One of them has woken it.
        self.attention.look_at_all();
        for session in self.slots.iter_mut().flatten().filter(|session| !session.leaving) {
            session.woken();
        }
    }

    /// Descriptors to sleep on. One becomes readable when its application wakes the owner, or dies: then
    /// [`Sessions::check`] is due.
    pub fn links(&self) -> impl Iterator<Item = std::os::fd::BorrowedFd<'_>> {
        use std::os::fd::AsFd;
        self.slots.iter().flatten().filter(|session| !session.leaving).map(|session| session.link.as_fd())
    }

    /// Reports the endpoint's completions to the applications that they belong to.
    #[inline(never)]
    fn distribute(&mut self, fep: &mut Fep, now: Time) -> usize {
        let mut count = 0;
        while let Some(completion) = fep.poll_completion() {
            count += 1;
            self.report(fep, now, completion, None);
        }
        count
    }

    /// Ends messages of connections that were aborted, given up, or have failed, until that has touched `budget` bytes. Returns
    /// how many completions that were.
    #[cold]
    fn end_aborted(&mut self, fep: &mut Fep, now: Time, mut budget: i64) -> usize {
        let mut count = self.distribute(fep, now);
        while let Some((id, ended)) = fep.cancel_some_aborted(now, &mut budget) {
            count += ended;
            // All completions now are its own.
            let refusal = self.given_up.get(&id).copied();
            while let Some(completion) = fep.poll_completion() {
                self.report(fep, now, completion, refusal);
            }
        }
        count
    }

    /// Releases held connections whose peers have been found, and gives up those whose peers have been given up, some in a turn. The
    /// endpoint's completions have been taken before.
    fn settle(&mut self, served: &mut impl Served, now: Time) -> usize {
        let settled = self.connections.held.settle(served, now);
        let count = settled.len();
        let fep = served.fep_mut();
        for (peer, id, result) in settled {
            if fep.is_aborting(id) {
                // Its application does not wait for the peer any more.
                continue;
            }
            match result {
                Ok(()) => self.release(fep, id),
                Err(why) => self.give_up(fep, now, id, CallError::Unreachable { peer, why }),
            }
        }
        count
    }

    /// Posts held datagrams whose peers have been found, and refuses those to peers that have been given up.
    fn settle_datagrams(&mut self, served: &mut impl Served, now: Time) -> usize {
        let settled = self.connections.datagrams.settle(served, now);
        let count = settled.len();
        for (slot, datagram, result) in settled {
            if let Some(session) = self.at(slot) {
                session.let_go(served.fep_mut(), datagram, result);
            }
        }
        count
    }

    fn release(&mut self, fep: &mut Fep, id: ConnectionId) {
        fep.release(id);
        if let Some(&(slot, connection)) = self.connections.numbers.get(&id)
            && let Some(session) = self.at(slot)
        {
            session.tell(&Report::Connected { connection });
        }
    }

    #[cold]
    fn give_up(&mut self, fep: &mut Fep, now: Time, id: ConnectionId, error: CallError) {
        // Its messages are refused bit by bit, and then it is. Without any it ends at once, and the completion now is its own.
        if fep.begin_abort(now, id).is_ok() {
            self.given_up.insert(id, error);
        }
        while let Some(completion) = fep.poll_completion() {
            self.report(fep, now, completion, Some(error));
        }
    }

    /// Reports a completion; or, with `refusal`, that the command which asked for it was refused.
    // Nearly all completions are reported by one caller, without a refusal.
    #[inline(always)]
    fn report(&mut self, fep: &mut Fep, now: Time, completion: Completion, refusal: Option<CallError>) {
        match completion {
            Completion::Sent { context, retransmissions, result, .. } => {
                let (slot, operation) = unpack(context);
                if let Some(session) = self.at(slot) {
                    let (request, number) = (Request::Send, operation);
                    match refusal {
                        None => {
                            session.finish(operation, Report::Sent { operation, retransmissions, result })
                        }
                        Some(error) => session.finish(operation, Report::Refused { request, number, error }),
                    }
                }
            }
            Completion::Received { context, source, tag, header_data, len, buffer, more, result, .. } => {
                let (slot, operation) = unpack(context);
                if let Some(session) = self.at(slot) {
                    let report = |posted: Posted| {
                        let offset = posted.offset_of(&buffer);
                        Report::Received { operation, source, tag, header_data, len, offset, more, result }
                    };
                    if !more {
                        session.finish_with(operation, report);
                    } else if !session.go_on(operation, report) {
                        fep.hold_many(session.process, true);
                    }
                }
            }
            Completion::Closed { id, peer, result } => {
                self.given_up.remove(&id);
                let idle = fep.config().idle_timeout;
                let removed = self.connections.remove(now, (id, peer), result, idle);
                let Some((slot, connection)) = removed else { return };
                self.note_parted(slot, peer);
                if let Some(session) = self.at(slot)
                    && let Some(place) = session.connections.get_mut(connection as usize)
                    && place.take().is_some()
                {
                    session.in_use -= 1;
                    let (request, number) = (Request::Connect, connection);
                    session.tell(&match refusal {
                        None => Report::Closed { connection, peer, result },
                        Some(error) => Report::Refused { request, number, error },
                    });
                }
            }
            // Sessions have no command for reads.
            Completion::Read { .. } | Completion::Accessed { .. } | Completion::Written(_) => {}
        }
    }

    /// A connection of the session in `slot` to `peer` is no more.
    fn note_parted(&mut self, slot: u32, peer: Addr) {
        if let Some(session) = &mut self.slots[slot as usize]
            && let Some(is_parted) = session.connected_peers.get_mut(&peer)
            && !self.connections.is_connected(slot, peer)
            && !std::mem::replace(is_parted, true)
        {
            self.parted.push_back((slot, peer));
        }
    }

    #[inline]
    fn at(&mut self, slot: u32) -> Option<&mut Application> {
        let session = self.slots.get_mut(slot as usize)?.as_mut()?;
        // Its caller has something to tell it. One that has been told something in this turn is awake.
        if !session.news {
            self.attention.wake(slot as usize);
        }
        Some(session)
    }

    /// Ends a session: none of its commands is executed any more, and everything that it holds is released.
    #[cold]
    fn end(&mut self, fep: &mut Fep, now: Time, slot: usize, how: Ended) {
        let Some(session) = &mut self.slots[slot] else { return };
        session.leaving = true;
        self.attention.wake(slot);
        self.attention.set_backlog(slot, false);
        self.connections.accounts.leave(session.id.slot);
        session.regions.clear();
        session.backlog.clear();
        for connection in session.connections.iter().flatten() {
            // A connection that is closing already completes by itself.
            let _ = fep.begin_abort(now, *connection);
        }
        // Commands that were put off are of no interest, and what it has to make up for delays nobody any more.
        session.put_off = PutOff::default();
        // Its receives are dropped without completions, and so are its datagrams whose peers have not been found.
        let _ = fep.begin_close_process(session.process);
        session.clears_away = true;
        session.clear_away(fep, &mut self.connections);
        self.ended.push_back((session.id, session.process, how));
    }
}

fn unpack(context: u64) -> (u32, u32) {
    ((context >> 32) as u32, context as u32)
}
