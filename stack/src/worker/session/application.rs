//! One application, on the worker's side: its commands are checked and passed to the endpoint, its reports are put in
//! its ring.

use core::net::IpAddr;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use weft_cc::Time;

use super::command::{Command, Extent, Found};
use super::connections::Connections;
use super::held_datagrams::HeldDatagram;
use super::link::Link;
use super::operations::Operations;
use super::peer_costs::MOST;
use super::put_off::PutOff;
use super::report::{Report, Request};
use super::sealing::Sealing;
use super::served::Served;
use super::server::{Ended, SessionId};
use super::unmapper::Kept;
use super::{Slot, bits};
use crate::buffer::Buffer;
use crate::fep::{
    CallError, ConnectOptions, ConnectionId, Datagram, DatagramReceive, Fep, PeerRefusal, PostError, Receive,
    Resource, Send, SendError, SendId, Unreachable,
};
use crate::packet::Addr;
use crate::region::Region;
use crate::ses::{Matching, ReceiveId, Source};
use crate::wire::ethernet::MacAddr;
use crate::worker::BookRoom;
use crate::worker::places::EXAMINED;
use crate::worker::ring::{Broken, Consumer, Producer};

/// The most commands of one application that are executed in a turn.
pub const COMMANDS_PER_TURN: usize = 32;
/// The most reports that waited for room in the ring of an application and are moved there in a turn: each is a line that the
/// application has written to.
pub const REPORTS_PER_TURN: usize = 256;

/// The operation that has a number.
#[derive(Clone, Copy, Debug)]
pub(super) enum Posted {
    Nothing,
    /// A message or a datagram.
    Send(SendId),
    /// A datagram to a peer whose Ethernet address is being asked for.
    Held {
        question: u64,
        number: u32,
    },
    /// A receive of a message or a datagram, and where its memory begins in its region.
    Receive {
        id: ReceiveId,
        offset: u32,
    },
}

impl Posted {
    /// Where `buffer`, the memory of a message, begins in that of this receive.
    #[inline]
    pub(super) fn offset_of(&self, buffer: &Buffer) -> u32 {
        match (self, buffer) {
            (Posted::Receive { offset, .. }, Buffer::Region(slice)) => slice.offset().wrapping_sub(*offset),
            _ => 0,
        }
    }
}

/// There is a [`Posted`] for each operation that an application may have.
const _: () = assert!(size_of::<Posted>() == 16);

/// Bytes that the worker may have for each operation of an application, beside what its endpoint has: what has the number, and the
/// report while that waits for room in the ring.
pub const BYTES_PER_OPERATION: u64 = (size_of::<Posted>() + size_of::<Slot>()) as u64;

/// The result of executing an application's commands in a turn.
pub(super) enum Obeyed {
    /// So many commands were executed, or something else was done once. The rest, if any, needs no turn in the round.
    All(usize),
    /// The same, and there may be more to do in the round.
    Some(usize),
    /// The application has more commands, but the ration of its process is used up.
    NotItsTurn,
}

/// Why a command has not been executed.
enum Undone {
    /// It has to wait for a later turn.
    PutOff,
    Refused(CallError),
}

impl From<CallError> for Undone {
    fn from(why: CallError) -> Undone {
        Undone::Refused(why)
    }
}

pub(super) struct Application {
    pub(super) id: SessionId,
    pub(super) process: u16,
    pub(super) commands: Consumer<8>,
    pub(super) reports: Producer<8>,
    /// Empty once the application has left.
    pub(super) regions: Vec<Region>,
    pub(super) operations: Operations,
    pub(super) connections: Vec<Option<ConnectionId>>,
    /// Bytes of the memory that it shares with the worker.
    pub(super) memory: u64,
    /// How many operations and connections are in use.
    pub(super) in_use: usize,
    /// How many peers it may have in the address book.
    pub(super) peers: u32,
    /// The peers that it has asked for and that stay in the address book as long as it is there.
    pub(super) held_peers: BTreeSet<Addr>,
    /// Other peers that it has connections to, which stay as long as it has; and whether it has none any more, so that they are to be
    /// released.
    pub(super) connected_peers: BTreeMap<Addr, bool>,
    /// Peers whose Ethernet address it has named before a host has answered for them: until one does, only this application and
    /// those that have named the same address send there. They are no more than it may have in the address book.
    pub(super) named: BTreeSet<Addr>,
    /// Reports that the ring had no room for.
    pub(super) backlog: VecDeque<Slot>,
    /// Whether its receives for many messages take none, as reports wait.
    pub(super) holds_many: bool,
    /// Whether it says how many they take.
    pub(super) allows_many: bool,
    /// Whether there are reports in the ring that have not been published.
    pub(super) news: bool,
    pub(super) link: Link,
    pub(super) broken: Option<Broken>,
    pub(super) leaving: bool,
    /// Whether it is leaving, and not all that it has posted has ended, or not all messages that waited for it are dropped.
    pub(super) clears_away: bool,
    /// If it is leaving: operations of pages before this one have ended, or end by themselves.
    pub(super) cleared: usize,
    pub(super) put_off: PutOff,
    /// The shared memory that its rings and its region lie in, if it is not this thread that unmaps it.
    pub(super) kept: Option<Kept>,
    /// Until that memory is sealed. Nothing in it is read or written before.
    pub(super) sealing: Option<Arc<Sealing>>,
}

impl Application {
    pub(super) fn has_ended(&mut self) -> Option<Ended> {
        match self.broken {
            Some(broken) => Some(Ended::Broken(broken)),
            // Commands that it left behind are of no interest to anybody.
            None => self.commands.is_deserted().then_some(Ended::Left),
        }
    }

    /// Prefetches its next command, also if its memory is not sealed: a prefetch neither fails nor waits.
    #[inline]
    pub(super) fn prefetch_command(&self) {
        self.commands.prefetch();
    }

    /// Prefetches the operation that its next command names, if one is known. It reads the command for that, unless some were put off,
    /// which come first.
    #[inline]
    pub(super) fn prefetch_operation(&self) {
        if self.put_off.is_done()
            && let Some(word) = self.commands.known()
        {
            debug_assert!(
                self.sealing.is_none(),
                "the worker looks for commands only in memory that is sealed"
            );
            self.operations.prefetch(bits(word, 32, 32) as u32);
        }
    }

    /// Whether there is nothing to do for it, which is so for most applications in most turns: [`Application::flush`],
    /// [`Application::obey`] and [`Application::has_ended`] would do nothing.
    #[inline]
    pub(super) fn is_idle(&mut self, fep: &Fep) -> bool {
        let is_done =
            self.put_off.is_done() && self.backlog.is_empty() && !self.holds_many && !fep.has_copies();
        is_done && self.commands.available() == Ok(0) && !self.commands.is_deserted() && self.broken.is_none()
    }

    /// Whether it has given no command that is not executed yet, or is leaving.
    #[cfg(test)]
    pub(super) fn has_obeyed(&mut self) -> bool {
        self.leaving || self.put_off.is_done() && self.commands.available() == Ok(0)
    }

    /// Whether its memory may be read and written.
    #[inline]
    pub(super) fn is_sealed(&mut self) -> bool {
        if self.sealing.as_ref().is_some_and(|sealing| sealing.is_sealed()) {
            self.sealing = None;
        }
        self.sealing.is_none()
    }

    /// The first of the peers that stay in the address book for it.
    pub(super) fn first_peer(&self) -> Option<Addr> {
        let connected = || self.connected_peers.keys().next();
        self.held_peers.first().or_else(connected).copied()
    }

    /// `peer` does not stay in the address book for it any more.
    pub(super) fn forget_peer(&mut self, peer: Addr) {
        self.held_peers.remove(&peer);
        self.connected_peers.remove(&peer);
    }

    /// The thread that seals the memory wakes the worker afterwards.
    pub(super) fn may_sleep(&mut self) -> bool {
        self.sealing.is_some() || self.put_off.is_done() && self.commands.may_sleep().unwrap_or(false)
    }

    pub(super) fn woken(&mut self) {
        if self.sealing.is_none() {
            self.commands.woken();
        }
    }

    /// Ends what the application, which is leaving, has posted, and drops the messages that waited for it, as much as in a turn.
    /// Returns whether there was something to do.
    pub(super) fn clear_away(&mut self, fep: &mut Fep, all: &mut Connections) -> bool {
        let had_some = self.clears_away;
        if had_some {
            let budget = all.accounts.ration(self.id.slot).bytes;
            if budget > 0 {
                let mut left = budget;
                self.clear_some(fep, all, &mut left);
                all.accounts.touch(self.id.slot, budget - left);
            }
        }
        had_some
    }

    /// As [`Application::clear_away`], until that has touched `budget` bytes of memory, which are taken from it.
    pub(super) fn clear_some(&mut self, fep: &mut Fep, all: &mut Connections, budget: &mut i64) {
        let is_done = fep.clear_away(self.process, budget)
            && all.datagrams.forget_some(self.id.slot, budget)
            && self.forget_operations(budget);
        self.clears_away = !is_done;
    }

    /// Frees the numbers of receives and held datagrams, which have ended without completions. Messages and datagrams have
    /// theirs. Returns whether none is left.
    fn forget_operations(&mut self, budget: &mut i64) -> bool {
        let ends = |posted: &Posted| matches!(posted, Posted::Held { .. } | Posted::Receive { .. });
        while self.cleared < self.operations.pages() {
            if *budget <= 0 {
                return false;
            }
            let (freed, touched) = self.operations.free_page(self.cleared, ends);
            self.in_use -= freed;
            self.cleared += 1;
            *budget -= touched as i64;
        }
        true
    }

    /// Executes commands, and copies messages to receives that they have waited for.
    pub(super) fn obey(&mut self, served: &mut impl Served, now: Time, all: &mut Connections) -> Obeyed {
        let copies = served.fep_mut().is_copying(self.process);
        if !self.backlog.is_empty() && !copies {
            return Obeyed::All(0);
        }
        let waiting = if self.backlog.is_empty() { self.waiting() } else { 0 };
        if waiting == 0 && !self.put_off.gathers && !copies {
            return Obeyed::All(0);
        }
        let ration = all.accounts.ration(self.id.slot);
        if ration.is_used_up() {
            return Obeyed::NotItsTurn;
        }
        if !self.backlog.is_empty() {
            let mut left = ration.bytes;
            served.fep_mut().copy(self.process, &mut left);
            all.accounts.take(self.id.slot, 0, ration.bytes - left);
            return Obeyed::Some(1);
        }
        let mut slots = [[0; 8]; COMMANDS_PER_TURN];
        let count = self.fetch(&mut slots[..waiting.min(ration.commands)]);
        let left = self.execute_all(served, now, all, &slots[..count], ration.bytes);
        all.accounts.take(self.id.slot, count, ration.bytes - left);
        if count < waiting && ration.is_begun {
            return Obeyed::NotItsTurn;
        }
        // The last message that a receive for many takes may be one to copy.
        let copies = copies || served.fep_mut().is_copying(self.process);
        let goes_on = copies || !self.put_off.is_done();
        // One that waits for room in the address book looks at some of its entries in each turn.
        let has_more = goes_on || count < waiting || count == COMMANDS_PER_TURN;
        match has_more && self.put_off.looks == 0 {
            true => Obeyed::Some(count.max(usize::from(goes_on))),
            false => Obeyed::All(count.max(usize::from(goes_on))),
        }
    }

    /// The number of commands for this turn: those that were put off, or new ones.
    fn waiting(&mut self) -> usize {
        let available = match self.put_off.commands() {
            0 => self.commands.available(),
            put_off => return put_off,
        };
        let available = available.inspect_err(|broken| self.broken = Some(*broken));
        COMMANDS_PER_TURN.min(available.unwrap_or(0) as usize)
    }

    /// Fetches the commands for this turn, of which there are as many as `slots`. Returns how many it got.
    fn fetch(&mut self, slots: &mut [Slot]) -> usize {
        if self.put_off.commands() > 0 {
            return self.put_off.take(slots);
        }
        self.commands.pop_all(slots).inspect_err(|broken| self.broken = Some(*broken)).unwrap_or(0)
    }

    /// Executes commands until they have made the worker touch `budget` bytes of messages that wait. Returns what is left of
    /// that: less than nothing if the last one did more than that. Puts off the others.
    fn execute_all(
        &mut self,
        served: &mut impl Served,
        now: Time,
        all: &mut Connections,
        slots: &[Slot],
        mut budget: i64,
    ) -> i64 {
        for (n, slot) in slots.iter().enumerate() {
            self.resume(served.fep_mut(), &mut budget);
            let before = served.fep_mut().touched();
            let outcome = match &Command::decode(slot) {
                Ok(command) => self.execute(served, now, all, command, &mut budget),
                Err(_) => Err(CallError::Malformed.into()),
            };
            budget -= (served.fep_mut().touched() - before) as i64;
            match outcome {
                Ok(()) => {}
                Err(Undone::Refused(error)) => {
                    let number = bits(slot[0], 32, 32) as u32;
                    self.tell(&Report::Refused { request: Request::of(slot), number, error });
                }
                Err(Undone::PutOff) => {
                    self.put_off.keep(&slots[n..]);
                    return budget;
                }
            }
        }
        // A receive for many messages may be the last command, or one of a long message.
        self.resume(served.fep_mut(), &mut budget);
        budget
    }

    /// Goes on with what earlier commands have begun, as far as `budget` permits.
    #[inline]
    fn resume(&mut self, fep: &mut Fep, budget: &mut i64) {
        if fep.is_copying(self.process) {
            fep.copy(self.process, budget);
        }
        if self.put_off.gathers {
            self.put_off.gathers = !fep.gather(self.process, budget);
        }
    }

    /// A command that has to do with messages that wait is put off while a receive for many messages looks at some, as no other search
    /// may take the place of its own, and while nothing is left of the budget, for example because a message is copied.
    #[inline]
    fn may_look(&self, budget: i64) -> Result<(), Undone> {
        if self.put_off.gathers || budget <= 0 { Err(Undone::PutOff) } else { Ok(()) }
    }

    /// As [`Application::may_look`], and looks for the message that such a receive or peek finds, as far as `budget` permits.
    #[inline]
    fn look_ahead(
        &self,
        fep: &mut Fep,
        (from, matching): (Option<Source>, Matching),
        budget: &mut i64,
    ) -> Result<(), Undone> {
        if !self.put_off.gathers && !fep.look_ahead(self.process, from, matching, budget) {
            return Err(Undone::PutOff);
        }
        self.may_look(*budget)
    }

    /// Executes a command. What a search for a message that waits touches before is taken from `budget`.
    fn execute(
        &mut self,
        served: &mut impl Served,
        now: Time,
        all: &mut Connections,
        command: &Command,
        budget: &mut i64,
    ) -> Result<(), Undone> {
        match *command {
            Command::Send { operation, connection, extent, tag, header_data } => {
                let id = self.connection(connection)?;
                self.post(operation, extent, |buffer, context| {
                    let send = Send { buffer, tag, header_data, context };
                    Ok(Posted::Send(served.fep_mut().post_send(id, send)?))
                })?;
            }
            Command::Receive { operation, extent, from, matching, many } => {
                match many {
                    None => self.look_ahead(served.fep_mut(), (from, matching), budget)?,
                    Some(_) => self.may_look(*budget)?,
                }
                if let Some(Source { peer, .. }) = from
                    && served.is_forgotten(peer)
                {
                    self.check_vacant(operation)?;
                    return Err(CallError::Unreachable { peer, why: Unreachable::Unknown(peer) }.into());
                }
                let process = self.process;
                self.post_receive(operation, extent, |buffer, context| {
                    let (receive, fep) = (Receive { buffer, from, matching, context }, served.fep_mut());
                    match many {
                        None => fep.post_receive_of(process, receive),
                        Some(least) => fep.begin_receive_many_of(process, receive, least),
                    }
                })?;
                self.put_off.gathers |= many.is_some();
            }
            Command::Connect { connection, peer, options } => {
                self.connect(served, now, all, connection, peer, options)?;
            }
            Command::Peek { operation, from, matching, found } => {
                self.look_ahead(served.fep_mut(), (from, matching), budget)?;
                self.check_vacant(operation)?;
                self.peek(served.fep_mut(), operation, (from, matching), found)?;
            }
            Command::ReceiveClaimed { operation, extent, claim } => {
                self.may_look(*budget)?;
                let process = self.process;
                self.post_receive(operation, extent, |buffer, context| {
                    served.fep_mut().receive_claimed(process, claim, buffer, context)
                })?;
            }
            Command::Discard { claim } => {
                self.may_look(*budget)?;
                served.fep_mut().discard(self.process, claim)?;
            }
            Command::AllowMany { more } => {
                if !std::mem::replace(&mut self.allows_many, true) {
                    served.fep_mut().limit_many(self.process, 0);
                }
                served.fep_mut().allow_many(self.process, more);
            }
            Command::SendDatagram { operation, to, extent, header_data } => {
                self.send_datagram(served, now, all, operation, to, (extent, header_data))?;
            }
            Command::ReceiveDatagram { operation, extent } => {
                let process = self.process;
                self.post_receive(operation, extent, |buffer, context| {
                    served.fep_mut().post_datagram_receive_of(process, DatagramReceive { buffer, context })
                })?;
            }
            Command::Cancel { operation } => self.cancel(served.fep_mut(), all, operation)?,
            Command::Close { connection } => served.fep_mut().close(now, self.connection(connection)?)?,
            Command::Abort { connection } => {
                served.fep_mut().begin_abort(now, self.connection(connection)?)?;
            }
            Command::Peer { operation, ip, mac } => {
                let found = self.peer(served, now, all, operation, (ip, mac));
                // More of the address book is looked at in the next turn, before any other command of this application.
                found.map_err(|why| if self.put_off.looks > 0 { Undone::PutOff } else { why.into() })?;
            }
        }
        Ok(())
    }

    /// Cancels an operation, if that is not too late.
    fn cancel(&mut self, fep: &mut Fep, all: &mut Connections, operation: u32) -> Result<(), CallError> {
        match self.posted(operation)? {
            Posted::Nothing => Err(CallError::NumberNotInUse(operation)),
            Posted::Send(id) => fep.cancel_send(id),
            Posted::Held { question, number } => {
                all.datagrams.remove(self.id.slot, HeldDatagram { question, number });
                let result = Err(SendError::Cancelled);
                self.finish(operation, Report::Sent { operation, retransmissions: 0, result });
                Ok(())
            }
            Posted::Receive { id, .. } => fep.cancel_receive(id),
        }
    }

    /// Finds a peer in the address book, or enters it there.
    fn peer(
        &mut self,
        served: &mut impl Served,
        now: Time,
        all: &mut Connections,
        operation: u32,
        (ip, mac): (IpAddr, Option<MacAddr>),
    ) -> Result<(), CallError> {
        let looks = std::mem::take(&mut self.put_off.looks);
        self.check_vacant(operation)?;
        let addr = match served.find_peer(ip, mac)? {
            Some(addr) => addr,
            None => self.add_peer(served, now, all, ip, looks)?,
        };
        self.hold_peer(served, all, addr)?;
        let may_name = self.named.len() < self.peers as usize && !self.named.contains(&addr);
        if let Some(mac) = mac.filter(|_| may_name)
            && served.suppose(addr, mac)
        {
            self.named.insert(addr);
        }
        self.tell(&Report::Peer { operation, addr });
        Ok(())
    }

    /// Whether the application can send to `peer`. Only those that have named an Ethernet address send there before a host answers.
    fn resolve(&self, served: &mut impl Served, now: Time, peer: Addr) -> Result<(), Unreachable> {
        if self.named.contains(&peer) && !served.is_forgotten(peer) {
            return Ok(());
        }
        served.resolve_peer(now, peer)
    }

    /// Posts a datagram, or holds it while its peer's Ethernet address is being asked for.
    fn send_datagram(
        &mut self,
        served: &mut impl Served,
        now: Time,
        all: &mut Connections,
        operation: u32,
        to: Source,
        (extent, header_data): (Extent, u64),
    ) -> Result<(), CallError> {
        self.check_vacant(operation)?;
        let (buffer, context) = (memory(&self.regions, extent)?, self.context(operation));
        let Source { peer, process } = to;
        let datagram = Datagram { buffer, peer, process, header_data, context };
        let most = served.fep_mut().config().mtu;
        if extent.len > most {
            return Err(CallError::DatagramTooLong { most });
        }
        let posted = match self.resolve(served, now, peer) {
            // The number is the session's: an application cannot send in the name of another.
            Ok(()) => Posted::Send(served.fep_mut().post_datagram_of(self.process, datagram)?),
            Err(Unreachable::Resolving { .. }) => {
                let HeldDatagram { question, number } = all.datagrams.add(now, self.id.slot, datagram);
                Posted::Held { question, number }
            }
            Err(why) => return Err(CallError::Unreachable { peer, why }),
        };
        self.operations.set(operation, posted);
        self.in_use += 1;
        Ok(())
    }

    /// The peer of a datagram that was held has been found or given up.
    pub(super) fn let_go(&mut self, fep: &mut Fep, datagram: Datagram, result: Result<(), Unreachable>) {
        let (operation, peer) = (datagram.context as u32, datagram.peer);
        let posted = match result {
            // It is dropped, as those are whose peer is not found yet.
            Ok(()) if self.leaving => Err(CallError::ProcessNotOpen(self.process)),
            Ok(()) => fep.post_datagram_of(self.process, datagram).map_err(|refused| refused.error),
            Err(why) => Err(CallError::Unreachable { peer, why }),
        };
        match posted {
            Ok(id) => self.operations.set(operation, Posted::Send(id)),
            Err(error) => {
                let request = Request::SendDatagram;
                self.finish(operation, Report::Refused { request, number: operation, error });
            }
        }
    }

    /// Looks for a message that waits, and reports it.
    fn peek(
        &mut self,
        fep: &mut Fep,
        operation: u32,
        (from, matching): (Option<Source>, Matching),
        found: Found,
    ) -> Result<(), CallError> {
        let (message, claim) = match found {
            Found::Stays => (fep.peek(self.process, from, matching)?, None),
            Found::IsClaimed | Found::IsDiscarded => {
                fep.claim(self.process, from, matching)?.map(|(claim, message)| (message, claim)).unzip()
            }
        };
        let claim = match (found, claim) {
            (Found::IsDiscarded, Some(claim)) => fep.discard(self.process, claim).map(|()| None)?,
            (_, claim) => claim,
        };
        self.tell(&Report::Peeked { operation, message, claim });
        Ok(())
    }

    /// Enters a peer in the address book, which has looked for room in so many turns before, in vain. If it finds none again among those
    /// that it looks at in this turn, and has not looked at all, the command is put off.
    fn add_peer(
        &mut self,
        served: &mut impl Served,
        now: Time,
        all: &mut Connections,
        ip: IpAddr,
        looks: usize,
    ) -> Result<Addr, CallError> {
        let account = all.account(self.id.slot);
        let (own, together) = (u64::from(self.peers), MOST.max(all.accounts.peers(account)));
        let costs = u64::from(all.peer_costs.count(now, account));
        for (count, limit) in [(self.held_peers.len() as u64, own), (costs, together)] {
            if count >= limit {
                return Err(CallError::Limit { what: Resource::SessionPeers, limit: limit as usize });
            }
        }
        let BookRoom { capacity, for_applications } = served.book_room();
        // A book without room for applications says by itself that it is full.
        let is_in_use = |peer| served.fep_mut().standing(peer).may_be_in_use();
        let may_look_again = for_applications > 0 && looks + 1 < capacity.div_ceil(EXAMINED);
        if for_applications > 0 && !all.held_peers.may_add(account, for_applications as u64, is_in_use) {
            // Entries that nobody holds are looked at in turns, too.
            if may_look_again && all.held_peers.has_left() {
                self.put_off.looks = looks + 1;
            }
            return Err(CallError::Limit { what: Resource::Peers, limit: capacity });
        }
        let added = served.add_peer(ip);
        // The port has made system calls, so that this must not go on for ever: not with those that it refuses, nor with those
        // that make room when the application leaves.
        if let Ok(_) | Err(CallError::Peer(PeerRefusal::Port)) = added {
            all.peer_costs.add(now, account);
        }
        let is_full = matches!(added, Err(CallError::Limit { what: Resource::Peers, .. }));
        if is_full && may_look_again {
            self.put_off.looks = looks + 1;
        }
        added
    }

    /// Keeps `peer` in the address book as long as the application is there, if its quota allows.
    ///
    /// # Errors
    /// Nobody holds the peer, and the application's account has its part of the book: without its entry the peer would be refused,
    /// too, and one that nobody holds may be forgotten at any time.
    fn hold_peer(
        &mut self,
        served: &mut impl Served,
        all: &mut Connections,
        peer: Addr,
    ) -> Result<(), CallError> {
        let may = self.held_peers.len() < self.peers as usize && !self.held_peers.contains(&peer);
        if may && self.connected_peers.remove(&peer).is_some() {
            self.held_peers.insert(peer);
        } else if may && self.needs_hold(served, all, peer)? {
            all.held_peers.hold(peer, self.id.slot, all.account(self.id.slot));
            self.held_peers.insert(peer);
        }
        Ok(())
    }

    /// Has the address book keep `peer`, which it does not keep for the application yet. Returns whether that makes a difference, so that
    /// the entry has to count for somebody: it counts for nobody if the owner keeps it.
    ///
    /// # Errors
    /// It would have to count for the application's account, which has its part of the book.
    fn needs_hold(
        &self,
        served: &mut impl Served,
        all: &mut Connections,
        peer: Addr,
    ) -> Result<bool, CallError> {
        if !served.hold_peer(peer) {
            return Ok(false);
        }
        let BookRoom { capacity, for_applications } = served.book_room();
        let account = all.account(self.id.slot);
        let is_in_use = |peer| served.fep_mut().standing(peer).may_be_in_use();
        if all.held_peers.may_hold(account, peer, for_applications as u64, is_in_use) {
            return Ok(true);
        }
        served.release_peer(peer);
        Err(CallError::Limit { what: Resource::Peers, limit: capacity })
    }

    /// Opens a connection, which is held while its peer's Ethernet address is being asked for. As long as it is there the peer stays in
    /// the address book, and counts for somebody: otherwise applications could keep more than their parts by connections to peers that
    /// others have added.
    fn connect(
        &mut self,
        served: &mut impl Served,
        now: Time,
        all: &mut Connections,
        connection: u32,
        peer: Addr,
        options: ConnectOptions,
    ) -> Result<(), CallError> {
        let count = self.connections.len() as u32;
        let place = self.connections.get(connection as usize);
        if place.ok_or(CallError::NoSuchNumber { number: connection, count })?.is_some() {
            return Err(CallError::NumberInUse(connection));
        }
        let held = match self.resolve(served, now, peer) {
            Ok(()) => false,
            Err(Unreachable::Resolving { .. }) => true,
            Err(why) => return Err(CallError::Unreachable { peer, why }),
        };
        let is_kept = self.held_peers.contains(&peer) || self.connected_peers.contains_key(&peer);
        let holds = !is_kept && self.needs_hold(served, all, peer)?;
        let opened = self.open(served.fep_mut(), now, all, peer, options);
        let id = opened.inspect_err(|_| {
            if holds {
                served.release_peer(peer);
            }
        })?;
        if holds {
            all.held_peers.hold(peer, self.id.slot, all.account(self.id.slot));
            self.connected_peers.insert(peer, false);
        }
        self.connections[connection as usize] = Some(id);
        self.in_use += 1;
        all.numbers.insert(id, (self.id.slot, connection));
        if held {
            // It has just been opened, and nothing posted on it.
            let _ = served.fep_mut().hold(id);
            all.held.add(now, peer, id);
        } else {
            self.tell(&Report::Connected { connection });
        }
        Ok(())
    }

    /// Opens a connection at the endpoint, which counts for the application there.
    fn open(
        &self,
        fep: &mut Fep,
        now: Time,
        all: &mut Connections,
        peer: Addr,
        options: ConnectOptions,
    ) -> Result<ConnectionId, CallError> {
        all.claim(peer, self.id.slot, fep.config().limits.pdcs_per_peer)?;
        // The number is the session's: an application cannot send in the name of another.
        let opened = fep.connect_of(self.process, now, peer, options);
        opened.inspect_err(|_| all.release(peer, self.id.slot))
    }

    fn connection(&self, number: u32) -> Result<ConnectionId, CallError> {
        let count = self.connections.len() as u32;
        let place = self.connections.get(number as usize);
        place.ok_or(CallError::NoSuchNumber { number, count })?.ok_or(CallError::NotOpen)
    }

    fn posted(&self, number: u32) -> Result<Posted, CallError> {
        let count = self.operations.count();
        self.operations.get(number).ok_or(CallError::NoSuchNumber { number, count })
    }

    /// # Errors
    /// The number is in use, or there is no such number.
    fn check_vacant(&self, operation: u32) -> Result<(), CallError> {
        match self.posted(operation)? {
            Posted::Nothing => Ok(()),
            _ => Err(CallError::NumberInUse(operation)),
        }
    }

    /// The context of an operation at the endpoint.
    #[inline]
    fn context(&self, operation: u32) -> u64 {
        u64::from(self.id.slot) << 32 | u64::from(operation)
    }

    /// Posts an operation, by `post` with its memory and its context.
    #[inline]
    fn post(
        &mut self,
        operation: u32,
        extent: Extent,
        post: impl FnOnce(Buffer, u64) -> Result<Posted, PostError>,
    ) -> Result<(), CallError> {
        let context = self.context(operation);
        let place = self.operations.vacant(operation)?;
        *place = post(memory(&self.regions, extent)?, context)?;
        self.in_use += 1;
        Ok(())
    }

    /// As [`Application::post`], for receives.
    #[inline]
    fn post_receive(
        &mut self,
        operation: u32,
        extent: Extent,
        post: impl FnOnce(Buffer, u64) -> Result<ReceiveId, PostError>,
    ) -> Result<(), CallError> {
        let offset = extent.offset as u32;
        self.post(operation, extent, |buffer, context| {
            Ok(Posted::Receive { id: post(buffer, context)?, offset })
        })
    }

    /// Frees the number of an operation that has ended, and reports it. The numbers of receives that were dropped with
    /// the session are free already.
    #[inline(always)]
    pub(super) fn finish(&mut self, operation: u32, report: Report) {
        self.finish_with(operation, |_| report);
    }

    /// As [`Application::finish`]. `report` makes the report from the operation that had the number.
    #[inline(always)]
    pub(super) fn finish_with(&mut self, operation: u32, report: impl FnOnce(Posted) -> Report) {
        if let Some(posted) = self.operations.free(operation) {
            self.in_use -= 1;
            self.tell_words(report(posted).encode());
        }
    }

    /// Reports a message of a receive that goes on. Returns whether such receives may: from the first report that waits on they take
    /// no messages, until the application has read so many that none does.
    pub(super) fn go_on(&mut self, operation: u32, report: impl FnOnce(Posted) -> Report) -> bool {
        if let Some(posted) = self.operations.get(operation).filter(|p| !matches!(p, Posted::Nothing)) {
            self.tell(&report(posted));
        }
        let must_hold = !self.backlog.is_empty() && !self.holds_many;
        self.holds_many |= must_hold;
        !must_hold
    }

    /// Reports to the application, now or when its ring has room.
    #[inline(never)]
    pub(super) fn tell(&mut self, report: &Report) {
        self.tell_words(report.encode());
    }

    /// As [`Application::tell`], with the words of a report.
    #[inline(always)]
    fn tell_words(&mut self, slot: Slot) {
        if self.leaving {
            return;
        }
        if !self.backlog.is_empty() || !self.stage(&slot) {
            self.backlog.push_back(slot);
        }
    }

    #[inline(always)]
    fn stage(&mut self, slot: &Slot) -> bool {
        match self.reports.stage(slot) {
            Ok(staged) => {
                self.news |= staged;
                staged
            }
            Err(broken) => {
                self.broken = Some(broken);
                false
            }
        }
    }

    /// The most reports that wait without a receive for many messages: everything can complete while none of its commands is
    /// executed, after a burst of them.
    pub(super) fn most_unread(operations: usize, connections: usize) -> usize {
        operations + 2 * connections + COMMANDS_PER_TURN
    }

    /// Moves reports from the backlog to the ring, some in each turn, and lets receives for many messages go on behind the last one.
    /// Returns how many.
    pub(super) fn flush(&mut self, fep: &mut Fep) -> usize {
        let mut count = 0;
        while count < REPORTS_PER_TURN
            && let Some(&slot) = self.backlog.front()
            && self.stage(&slot)
        {
            self.backlog.pop_front();
            count += 1;
        }
        if self.holds_many && self.backlog.is_empty() {
            self.holds_many = false;
            fep.hold_many(self.process, false);
        }
        count
    }

    /// Publishes new reports.
    pub(super) fn publish(&mut self) {
        if self.news && !self.leaving {
            self.news = false;
            self.reports.publish();
            if self.reports.must_wake() {
                self.link.ring();
            }
        }
    }
}

#[inline]
fn memory(regions: &[Region], extent: Extent) -> Result<Buffer, CallError> {
    let region = regions.get(extent.region as usize).ok_or(CallError::OutsideMemory)?;
    region.slice(extent.offset, extent.len).map(Buffer::Region).map_err(|_| CallError::OutsideMemory)
}

impl Drop for Application {
    /// The ends of the rings say in the memory that they are gone. While pages of it can be freed, the socket has to say it alone.
    fn drop(&mut self) {
        if !self.is_sealed() {
            self.commands.leave_untold();
            self.reports.leave_untold();
        }
    }
}
