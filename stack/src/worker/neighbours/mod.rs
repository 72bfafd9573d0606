//! Ethernet addresses of neighbours: ARP (RFC 826) and IPv6 neighbour discovery (RFC 4861), both sides. Echo requests (ping) are answered too.
//!
//! Peers whose Ethernet address is in the address book need none of this. [`Worker::meet`] enters a peer by its IP
//! address and that of the router between, if there is one. The worker then asks for the Ethernet
//! address, and again every [`RETRY`], [`QUESTIONS`] times in all. It goes on sending and receiving
//! meanwhile; packets to the peer are dropped and counted, for there is no queue that could fill.
//! [`Worker::connect`] fails until there is an answer. The worker asks a neighbour that has not answered again after
//! [`REFRESH`], or when there is something to send.
//!
//! Any host on the link can claim any address. The worker learns an address only while a question about it is open;
//! an unsolicited frame can confirm an address, or be a reason to ask again, but changes none. The worker asks again
//! for an address after [`REFRESH`] without confirmation. If no host answers then, the old address stays: the
//! transport notices for itself when a peer is gone.
//!
//! The worker accepts frames that carry the link's VLAN, or no VLAN if the link has none, and answers with the link's
//! tag, at most [`ANSWERS`] times a second, and echo requests at most [`ECHOES`] times.

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod properties;
#[cfg(test)]
mod tests;
mod wire;

use core::net::IpAddr;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use foldhash::fast::RandomState;
use weft_cc::{Span, Time};

use self::wire::{Answer, Heard, Speaker};
use super::backoff::TimedOut;
use super::{AddressBook, BookError, HostAddr, Worker};
use crate::fep::{CallError, ConnectOptions, ConnectionId, Unreachable};
use crate::occurrences::is_logged;
use crate::packet::Addr;
use crate::port::{Frame, Port, TxBurst};
use crate::table::{Key, Table};
use crate::wire::ethernet::{MacAddr, VlanTag};

pub use crate::fep::QUESTIONS;

/// The time between two questions (RFC 4861 §10, RETRANS_TIMER).
pub const RETRY: Span = Span::from_ms(1_000);
/// How long an address is good without being confirmed (RFC 4861 §10, REACHABLE_TIME), and between two
/// series of questions without an answer.
pub const REFRESH: Span = Span::from_ms(30_000);
/// The most answers to questions for its address that the worker sends in a second.
pub const ANSWERS: u32 = 1_000;
/// The most answers to echo requests that it sends in a second: anybody can ask for these, and needs none of them.
pub const ECHOES: u32 = 100;
/// Neighbours that are asked, or given up, in a turn.
const PER_TURN: usize = 64;

/// Why [`Worker::resolve`] failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// The peer cannot be reached.
    #[error(transparent)]
    Unreachable(#[from] Unreachable),
    /// It took too long.
    #[error(transparent)]
    TimedOut(#[from] TimedOut),
}

/// With a random hash: others choose the addresses.
type Map<K, V> = HashMap<K, V, RandomState>;

/// The neighbours that have to be asked. There may be thousands: none of the calls looks at others than those that it is about.
#[derive(Debug)]
pub(super) struct Neighbours {
    own: Speaker,
    all: All,
    by_ip: Map<IpAddr, Key>,
    /// Each peer's neighbour.
    hops: Map<Addr, Key>,
    queues: Queues,
    /// When one of them is due: when it was asked for the first time, at once.
    next: Next,
    /// The second in which answers to questions are counted, and how many there were.
    answered: (Time, u32),
    /// The same of echo requests.
    echoed: (Time, u32),
}

/// All neighbours. Tests count each that is looked at: there is no other way to one.
#[derive(Debug, Default)]
struct All(Table<Neighbour>);

/// The neighbours in the order in which they are due. Those that wait for the same time are in one queue, behind those that began
/// to wait before, each with a number that is greater than theirs.
#[derive(Debug, Default)]
struct Queues {
    all: [BTreeMap<u64, (Next, Key)>; 3],
    last: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Never,
    Now,
    At(Time),
}

#[derive(Debug)]
struct Neighbour {
    ip: IpAddr,
    mac: Option<MacAddr>,
    state: State,
    /// How often it has been given up since it last answered.
    given_up: u64,
    /// How often it has answered with another address than before.
    moved: u64,
    /// The peers that are reached through it: itself, or those behind a router.
    peers: BTreeSet<Addr>,
    /// Its number in the queue of its state.
    place: u64,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// To be asked as soon as possible.
    New,
    /// Asked `asked` times, last `at`.
    Asked { asked: u32, at: Time },
    /// Has answered, or been confirmed, `at`; or, with an address from before, has not answered until then.
    Quiet { at: Time },
    /// Has not answered until `at`.
    Silent { at: Time },
}

impl State {
    fn due(self) -> Next {
        match self {
            State::New => Next::Now,
            State::Asked { at, .. } => Next::At(at + RETRY),
            State::Quiet { at } | State::Silent { at } => Next::At(at + REFRESH),
        }
    }

    /// Which queue those in this state are in.
    fn queue(self) -> usize {
        match self {
            State::New => 0,
            State::Asked { .. } => 1,
            State::Quiet { .. } | State::Silent { .. } => 2,
        }
    }
}

/// A neighbour, a peer of one or the head of a queue has been looked at.
#[inline]
fn count_step() {
    #[cfg(test)]
    crate::steps::count(1);
}

impl All {
    fn get(&self, key: Key) -> Option<&Neighbour> {
        count_step();
        self.0.get(key)
    }

    fn get_mut(&mut self, key: Key) -> Option<&mut Neighbour> {
        count_step();
        self.0.get_mut(key)
    }

    fn insert_with(&mut self, make: impl FnOnce(Key) -> Neighbour) -> Key {
        count_step();
        self.0.insert_with(make)
    }

    fn remove(&mut self, key: Key) {
        count_step();
        self.0.remove(key);
    }
}

impl Queues {
    fn put(&mut self, key: Key, neighbour: &mut Neighbour) {
        self.last += 1;
        neighbour.place = self.last;
        self.all[neighbour.state.queue()].insert(self.last, (neighbour.state.due(), key));
    }

    fn take_out(&mut self, neighbour: &Neighbour) {
        self.all[neighbour.state.queue()].remove(&neighbour.place);
    }

    fn firsts(&self) -> impl Iterator<Item = (Next, Key)> {
        self.all
            .iter()
            .inspect(|_| count_step())
            .filter_map(|queue| queue.first_key_value())
            .map(|(_, first)| *first)
    }
}

impl Neighbour {
    /// Takes `mac` for its address, and says so to the book.
    fn learn(&mut self, mac: MacAddr, book: &mut AddressBook) {
        match self.mac {
            None => tracing::info!(ip = %self.ip, %mac, "a neighbour has answered"),
            Some(before) if before != mac => {
                self.moved += 1;
                if is_logged(self.moved) {
                    let (ip, count) = (self.ip, self.moved);
                    tracing::info!(%ip, %mac, %before, count, "a neighbour has another Ethernet address");
                }
            }
            Some(_) => {}
        }
        self.mac = Some(mac);
        self.given_up = 0;
        for peer in &self.peers {
            count_step();
            book.resolve(*peer, mac);
        }
    }

    /// It has not answered.
    fn give_up(&mut self, book: &mut AddressBook) {
        for peer in &self.peers {
            count_step();
            book.note_resolution(*peer);
        }
        self.given_up += 1;
        if is_logged(self.given_up) {
            let (ip, count) = (self.ip, self.given_up);
            tracing::warn!(%ip, count, "a neighbour does not answer");
        }
    }
}

impl Next {
    fn is_due(self, now: Time) -> bool {
        match self {
            Next::Never => false,
            Next::Now => true,
            Next::At(at) => now.is_at_or_after(at),
        }
    }

    fn earliest(self, other: Next) -> Next {
        match (self, other) {
            (Next::Now, _) | (_, Next::Now) => Next::Now,
            (Next::Never, next) | (next, Next::Never) => next,
            (Next::At(one), Next::At(other)) => Next::At(one.earliest(other)),
        }
    }
}

impl Neighbours {
    pub(super) fn new(host: HostAddr, vlan: Option<VlanTag>) -> Neighbours {
        let own = Speaker { host, vlan };
        Neighbours {
            own,
            all: All::default(),
            by_ip: Map::default(),
            hops: Map::default(),
            queues: Queues::default(),
            next: Next::Never,
            answered: (Time::ZERO, 0),
            echoed: (Time::ZERO, 0),
        }
    }

    /// Whether [`Neighbours::ask`] has something to do.
    #[inline]
    pub(super) fn is_due(&self, now: Time) -> bool {
        self.next != Next::Never && self.next.is_due(now)
    }

    /// When [`Neighbours::ask`] will have something to do that it need not do at once.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        match self.next {
            Next::At(at) => Some(at),
            Next::Never | Next::Now => None,
        }
    }

    /// Asks the neighbours that are due, as long as `tx` has room, [`PER_TURN`] at most.
    #[cold]
    pub(super) fn ask(&mut self, now: Time, book: &mut AddressBook, tx: &mut TxBurst) {
        for _ in 0..PER_TURN {
            let Some((_, key)) = self.queues.firsts().find(|(next, _)| next.is_due(now)) else { break };
            let Some(neighbour) = self.all.get_mut(key) else { break };
            let asked = match neighbour.state {
                State::Asked { asked, .. } => asked,
                _ => 0,
            };
            let state = if asked >= QUESTIONS {
                match neighbour.mac {
                    Some(_) => State::Quiet { at: now },
                    None => {
                        neighbour.give_up(book);
                        State::Silent { at: now }
                    }
                }
            } else if send(tx, wire::QUESTION, |buf| wire::ask(&self.own, neighbour.ip, buf)) {
                State::Asked { asked: asked + 1, at: now }
            } else {
                break;
            };
            self.enter(key, state);
        }
        self.schedule();
    }

    /// A neighbour is in another state from now on, or in its state anew.
    fn enter(&mut self, key: Key, state: State) {
        if let Some(neighbour) = self.all.get_mut(key) {
            self.queues.take_out(neighbour);
            neighbour.state = state;
            self.queues.put(key, neighbour);
        }
    }

    fn hop(&self, peer: Addr) -> Option<&Neighbour> {
        self.all.get(*self.hops.get(&peer)?)
    }

    /// Packets for `peer` cannot leave. Asks its neighbour again if that was given up at least [`RETRY`] ago.
    pub(super) fn want(&mut self, now: Time, peer: Addr) {
        if let Some(&key) = self.hops.get(&peer)
            && let Some(Neighbour { state: State::Silent { at }, .. }) = self.all.get(key)
            && now.since(*at) >= RETRY
        {
            self.enter(key, State::New);
            self.schedule();
        }
    }

    /// Deals with a frame that is no packet. Returns whether it was of one of the protocols here.
    pub(super) fn on_frame(
        &mut self,
        now: Time,
        frame: &Frame,
        book: &mut AddressBook,
        tx: &mut TxBurst,
    ) -> bool {
        let Some(Heard { told, answer }) = wire::hear(frame, &self.own) else { return false };
        if let Some(told) = told {
            self.on_told(now, told, book);
        }
        if let Some(answer) = answer.filter(|answer| self.may_answer(now, answer)) {
            self.answer(&answer, tx);
        }
        true
    }

    fn on_told(&mut self, now: Time, told: HostAddr, book: &mut AddressBook) {
        let Some(&key) = self.by_ip.get(&told.ip) else { return };
        let Some(neighbour) = self.all.get_mut(key) else { return };
        let state = match neighbour.state {
            State::Asked { .. } => {
                neighbour.learn(told.mac, book);
                State::Quiet { at: now }
            }
            _ if neighbour.mac == Some(told.mac) => State::Quiet { at: now },
            // It has moved or come to life, or another host claims its address: the answer to a question will tell.
            State::Quiet { at } | State::Silent { at } if now.since(at) >= RETRY => State::New,
            _ => return,
        };
        self.enter(key, state);
        self.schedule();
    }

    fn may_answer(&mut self, now: Time, answer: &Answer<'_>) -> bool {
        let ((since, count), most) = match answer {
            Answer::Echo { .. } => (&mut self.echoed, ECHOES),
            Answer::Arp { .. } | Answer::Advert { .. } => (&mut self.answered, ANSWERS),
        };
        if *count == 0 || now.since(*since) >= Span::from_ms(1_000) {
            (*since, *count) = (now, 0);
        }
        *count += 1;
        *count <= most
    }

    /// Without room the answer is dropped, as the network might have done.
    fn answer(&self, answer: &Answer<'_>, tx: &mut TxBurst) {
        send(tx, wire::room_for(answer), |buf| wire::reply(&self.own, answer, buf));
    }

    fn schedule(&mut self) {
        self.next = self.queues.firsts().map(|(next, _)| next).fold(Next::Never, Next::earliest);
    }

    /// Adds a peer that is reached through `hop`, and no other, and returns the Ethernet address if that is known.
    fn add(&mut self, peer: Addr, hop: IpAddr, book: &mut AddressBook) -> Option<MacAddr> {
        let (all, queues) = (&mut self.all, &mut self.queues);
        let key = *self.by_ip.entry(hop).or_insert_with(|| {
            let state = State::New;
            let peers = BTreeSet::new();
            let mut neighbour =
                Neighbour { ip: hop, mac: None, state, given_up: 0, moved: 0, peers, place: 0 };
            all.insert_with(|key| {
                queues.put(key, &mut neighbour);
                neighbour
            })
        });
        let before = self.hops.insert(peer, key).filter(|before| *before != key);
        if let Some(before) = before {
            self.leave(before, peer);
            book.note_resolution(peer);
        }
        self.schedule();
        let neighbour = self.all.get_mut(key)?;
        neighbour.peers.insert(peer);
        neighbour.mac
    }

    /// Forgets `peer`, and its neighbour if no other peer is reached through it.
    pub(super) fn forget(&mut self, peer: Addr) {
        let Some(key) = self.hops.remove(&peer) else { return };
        self.leave(key, peer);
        self.schedule();
    }

    /// `peer` is not reached through neighbour `key` any more, which is forgotten with its last peer.
    fn leave(&mut self, key: Key, peer: Addr) {
        let Some(neighbour) = self.all.get_mut(key) else { return };
        neighbour.peers.remove(&peer);
        if neighbour.peers.is_empty() {
            self.by_ip.remove(&neighbour.ip);
            self.queues.take_out(neighbour);
            self.all.remove(key);
        }
    }

    fn why_unreachable(&self, peer: Addr) -> Unreachable {
        let Some(&Neighbour { ip: hop, state, .. }) = self.hop(peer) else {
            return Unreachable::Unknown(peer);
        };
        match state {
            State::Asked { asked, .. } => Unreachable::Resolving { hop, asked },
            State::Silent { .. } => Unreachable::NoAnswer { hop },
            State::New | State::Quiet { .. } => Unreachable::Resolving { hop, asked: 0 },
        }
    }
}

/// Writes a frame into a burst. Returns whether that had room for it.
fn send(tx: &mut TxBurst, room: usize, write: impl FnOnce(&mut [u8]) -> Option<usize>) -> bool {
    let Ok(mut frame) = tx.reserve(room) else { return false };
    if let Some(len) = write(&mut frame) {
        frame.truncate(len);
        frame.commit();
    }
    true
}

impl<P: Port> Worker<P> {
    /// Enters a peer of which only the IP address is known. The worker asks for its Ethernet address, or that of the
    /// router `via` on the way to it, from the next turn on. A peer whose Ethernet address the book has keeps it.
    ///
    /// # Errors
    /// Why it cannot be entered.
    pub fn meet(&mut self, peer: Addr, ip: IpAddr, via: Option<IpAddr>) -> Result<(), BookError> {
        if self.book.get(peer).is_some_and(|host| host.ip == ip) {
            return Ok(());
        }
        let hop = via.unwrap_or(ip);
        self.book.check(&HostAddr { mac: self.book.own_host().mac, ip: hop })?;
        self.book.expect(peer, ip)?;
        if let Some(mac) = self.neighbours.add(peer, hop, &mut self.book) {
            self.book.resolve(peer, mac);
        }
        Ok(())
    }

    /// Whether frames can be sent to `peer`. An Ethernet address that only applications have named is none.
    ///
    /// # Errors
    /// Why not, or not yet.
    pub fn is_reachable(&self, peer: Addr) -> Result<(), Unreachable> {
        match self.book.get(peer) {
            Some(_) if !self.book.is_supposed(peer) => Ok(()),
            _ => Err(self.neighbours.why_unreachable(peer)),
        }
    }

    /// Opens a connection at `now`, as [`crate::fep::Fep::connect`] does, if the peer can be reached. Asks a peer
    /// that has not answered again.
    ///
    /// # Errors
    /// [`CallError::Unreachable`] if the peer cannot be reached, or not yet; or the endpoint refuses.
    pub fn connect(
        &mut self,
        now: Time,
        peer: Addr,
        options: ConnectOptions,
    ) -> Result<ConnectionId, CallError> {
        self.resolve_peer(now, peer).map_err(|why| CallError::Unreachable { peer, why })?;
        self.fep.connect(now, peer, options)
    }

    /// As [`Worker::is_reachable`], and asks a peer that has not answered again.
    ///
    /// # Errors
    /// Why it cannot be reached, or not yet.
    pub fn resolve_peer(&mut self, now: Time, peer: Addr) -> Result<(), Unreachable> {
        self.is_reachable(peer).inspect_err(|_| self.neighbours.want(now, peer))
    }

    /// A number that grows whenever [`Worker::is_reachable`] may have changed its answer for a peer from
    /// [`Unreachable::Resolving`] to another one.
    pub fn resolutions(&self) -> u64 {
        self.book.resolutions().count()
    }

    /// Turns the loop until packets can be sent to `peer`.
    ///
    /// # Errors
    /// The peer does not answer, or `limit` has passed.
    pub fn resolve(&mut self, peer: Addr, limit: Span) -> Result<(), ResolveError> {
        let start = self.now();
        loop {
            match self.is_reachable(peer) {
                Err(Unreachable::Resolving { .. }) => {}
                other => return Ok(other?),
            }
            let now = self.now();
            let progress = self.poll_at(now);
            if now.since(start) >= limit {
                return Err(TimedOut(limit).into());
            }
            self.rest(now, !progress.is_idle(), None);
        }
    }
}
