//! The worker's side: what applications ask for is checked and passed to the endpoint, and what the endpoint
//! completes is reported to them.

use std::collections::VecDeque;

use weft_cc::Time;

use super::client::Client;
use super::command::{Command, Extent};
use super::config::{OpenError, SessionConfig};
use super::link::Link;
use super::reason::Reason;
use super::report::{Report, Request, Status};
use super::way::{Connections, Endpoint, Settled};
use super::{Slot, bits};
use crate::buffer::Buffer;
use crate::fep::{CallError, Completion, ConnectOptions, ConnectionId, Fep, MAX_PROCESS, Receive, Send, SendId};
use crate::packet::Addr;
use crate::region::Region;
use crate::ses::ReceiveId;
use crate::worker::neighbours::NoWay;
use crate::worker::ring::{Broken, Consumer, Producer};

/// Commands of one application that are looked at in a turn.
const BURST: usize = 32;

/// Names a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionId {
    slot: u32,
    serial: u64,
}

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The application has left in good order.
    Left,
    /// Its end of the socket is closed: it has died.
    Died,
    /// It wrote what cannot be into a ring.
    Broken(Broken),
    /// The owner closed it.
    Closed,
}

/// The applications of one endpoint. The endpoint's completions are all theirs: its owner must not poll them, and
/// should [close](Fep::close_process) process 0, so that messages to nobody are refused instead of kept.
pub struct Sessions {
    slots: Vec<Option<Session>>,
    connections: Connections,
    serial: u64,
    last_process: u16,
    ended: VecDeque<(SessionId, u16, Ended)>,
}

/// What is in use under the number of an operation.
#[derive(Clone, Copy, Debug)]
enum Operation {
    Free,
    Send(SendId),
    Receive(ReceiveId),
}

struct Session {
    id: SessionId,
    process: u16,
    commands: Consumer<8>,
    reports: Producer<8>,
    /// Empty once the application has left.
    regions: Vec<Region>,
    operations: Vec<Operation>,
    connections: Vec<Option<ConnectionId>>,
    /// How many operations and connections are in use.
    in_use: usize,
    /// Reports that the ring had no room for.
    backlog: VecDeque<Slot>,
    /// Whether there is something to show the application.
    news: bool,
    link: Link,
    broken: Option<Broken>,
    leaving: bool,
}

impl Sessions {
    /// No applications, and room for `capacity`.
    pub fn new(capacity: usize) -> Sessions {
        let capacity = capacity.min(usize::from(MAX_PROCESS));
        Sessions {
            slots: (0..capacity).map(|_| None).collect(),
            connections: Connections::default(),
            serial: 0,
            last_process: 0,
            ended: VecDeque::new(),
        }
    }

    /// Opens a session for an application in this process, which may hand the client to another thread. Peers know it
    /// as `process`, or else as one that has been free for longest.
    ///
    /// # Errors
    /// Something cannot be had.
    pub fn open(
        &mut self,
        fep: &mut Fep,
        config: &SessionConfig,
        process: Option<u16>,
    ) -> Result<Client, OpenError> {
        let region = Region::allocate(config.layout()?.total)?;
        let (own, other) = Link::pair()?;
        let id = self.admit(fep, config, process, &region, own)?;
        Client::new(config, &region, other, fep.addr(), self.process(id).unwrap_or(0))
    }

    /// Opens a session whose rings and memory lie in `region`, and whose application is at the other end of `link`.
    pub(super) fn admit(
        &mut self,
        fep: &mut Fep,
        config: &SessionConfig,
        process: Option<u16>,
        region: &Region,
        link: Link,
    ) -> Result<SessionId, OpenError> {
        let layout = config.layout()?;
        let slot = self.slots.iter().position(Option::is_none).ok_or(OpenError::Full(self.slots.len()))?;
        let commands = Consumer::at(region, 0, config.commands)?;
        let reports = Producer::at(region, layout.reports, config.reports)?;
        let memory = region.carve(layout.memory, config.memory as usize)?;
        let process = self.open_process(fep, process)?;
        self.serial += 1;
        let id = SessionId { slot: slot as u32, serial: self.serial };
        let (operations, connections) = (config.operations as usize, config.connections as usize);
        self.slots[slot] = Some(Session {
            id,
            process,
            commands,
            reports,
            regions: vec![memory],
            operations: vec![Operation::Free; operations],
            connections: vec![None; connections],
            in_use: 0,
            // All that can complete while none of its commands is looked at, and what a burst can add.
            backlog: VecDeque::with_capacity(operations + 2 * connections + BURST),
            news: false,
            link,
            broken: None,
            leaving: false,
        });
        Ok(id)
    }

    fn open_process(&mut self, fep: &mut Fep, wanted: Option<u16>) -> Result<u16, OpenError> {
        if let Some(process) = wanted {
            fep.open_process(process)?;
            return Ok(process);
        }
        // In turn, so that a name rests as long as possible: some peer may still send to who had it.
        let after_last = (1..=MAX_PROCESS).map(|n| (self.last_process + n - 1) % MAX_PROCESS + 1);
        for process in after_last {
            if fep.open_process(process).is_ok() {
                self.last_process = process;
                return Ok(process);
            }
        }
        Err(OpenError::Full(usize::from(MAX_PROCESS)))
    }

    /// Sessions that are open, or of which something is left.
    pub fn len(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Connections that wait for a way to their peers.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn held_connections(&self) -> usize {
        self.connections.waiting.len()
    }

    /// The process that peers know a session as, while it is open.
    pub fn process(&self, id: SessionId) -> Option<u16> {
        let session = self.slots.get(id.slot as usize)?.as_ref()?;
        (session.id == id && !session.leaving).then_some(session.process)
    }

    /// The next session that has ended, and how. It is told as soon as its commands are not looked at any more;
    /// what is left of it goes when its connections are closed.
    pub fn poll_ended(&mut self) -> Option<(SessionId, u16, Ended)> {
        self.ended.pop_front()
    }

    /// Looks at what applications ask for, and reports what is done. To be called once a turn, between or after the
    /// worker's; returns how many commands and reports there were. Makes no system calls but to wake
    /// applications that sleep.
    ///
    /// Where there is a worker it is the `endpoint`, rather than its [`Fep`], which knows nothing of the ways to
    /// peers.
    pub fn serve<E: Endpoint>(&mut self, endpoint: &mut E, now: Time) -> usize {
        let mut count = self.distribute(endpoint.fep_mut());
        if !self.connections.waiting.is_empty() {
            count += self.settle(endpoint, now);
        }
        for slot in 0..self.slots.len() {
            let Some(session) = &mut self.slots[slot] else { continue };
            if !session.leaving {
                count += session.flush() + session.obey(endpoint, now, &mut self.connections);
                if let Some(how) = session.has_ended() {
                    self.end(endpoint.fep_mut(), now, slot, how);
                }
            }
        }
        count += self.distribute(endpoint.fep_mut());
        for slot in &mut self.slots {
            if let Some(session) = slot {
                session.show();
                if session.leaving && session.in_use == 0 {
                    *slot = None;
                }
            }
        }
        count
    }

    /// Ends the sessions of applications that have died. Makes a system call for each session, so it is not for every
    /// turn: as often as deaths should be noticed.
    pub fn check(&mut self, fep: &mut Fep, now: Time) {
        for slot in 0..self.slots.len() {
            let Some(session) = self.slots[slot].as_ref().filter(|session| !session.leaving) else {
                continue;
            };
            if session.link.is_closed() {
                let how = if session.commands.is_deserted() { Ended::Left } else { Ended::Died };
                self.end(fep, now, slot, how);
            }
        }
    }

    /// Ends a session. Nothing if it has ended.
    pub fn close(&mut self, fep: &mut Fep, now: Time, id: SessionId) {
        if self.process(id).is_some() {
            self.end(fep, now, id.slot as usize, Ended::Closed);
        }
    }

    /// Ends all sessions.
    pub fn close_all(&mut self, fep: &mut Fep, now: Time) {
        for slot in 0..self.slots.len() {
            if self.slots[slot].as_ref().is_some_and(|session| !session.leaving) {
                self.end(fep, now, slot, Ended::Closed);
            }
        }
    }

    /// Announces that the owner is about to sleep until something can be read from one of
    /// [`Sessions::links`]. Returns whether it may: else there is something to do. [`Sessions::woken`] is to be called in
    /// any case. An application that lets its ring of reports fill up does not wake anybody when it empties it:
    /// its other reports come when the owner wakes for another reason, so no owner should sleep for long.
    pub fn may_sleep(&mut self) -> bool {
        let mut all = true;
        for session in self.slots.iter_mut().flatten().filter(|session| !session.leaving) {
            // Each has to know, whatever the others say.
            all &= session.may_sleep();
        }
        all
    }

    /// The owner is awake.
    pub fn woken(&mut self) {
        for session in self.slots.iter_mut().flatten().filter(|session| !session.leaving) {
            session.commands.woken();
        }
    }

    /// What to sleep on. Something can be read from each that [`Sessions::check`] should look at.
    pub fn links(&self) -> impl Iterator<Item = std::os::fd::BorrowedFd<'_>> {
        use std::os::fd::AsFd;
        self.slots.iter().flatten().filter(|session| !session.leaving).map(|session| session.link.as_fd())
    }

    /// Takes over what the endpoint has completed.
    fn distribute(&mut self, fep: &mut Fep) -> usize {
        let mut count = 0;
        while let Some(completion) = fep.poll_completion() {
            count += 1;
            self.report(completion, None);
        }
        count
    }

    /// Lets connections go whose peers have been found, and gives up those whose peers will not be. The endpoint's
    /// completions have been taken.
    fn settle(&mut self, endpoint: &mut impl Endpoint, now: Time) -> usize {
        let mut count = 0;
        for Settled { peer, connections, way } in self.connections.waiting.settle(endpoint, now) {
            count += connections.len();
            let fep = endpoint.fep_mut();
            for id in connections {
                match way {
                    Ok(()) => self.release(fep, id),
                    Err(why) => self.give_up(fep, now, id, Reason::NoWay { peer, why }),
                }
            }
        }
        count
    }

    fn release(&mut self, fep: &mut Fep, id: ConnectionId) {
        fep.release(id);
        if let Some(&(slot, connection)) = self.connections.names.get(&id)
            && let Some(session) = self.at(slot)
        {
            session.tell(&Report::Connected { connection });
        }
    }

    #[cold]
    fn give_up(&mut self, fep: &mut Fep, now: Time, id: ConnectionId, reason: Reason) {
        // Nothing of it has left, so it ends at once, and what completes now is its own.
        let _ = fep.abort(now, id);
        while let Some(completion) = fep.poll_completion() {
            self.report(completion, Some(reason));
        }
    }

    /// Reports what is done; or that it was refused, if there is a reason why nothing of it was begun.
    fn report(&mut self, completion: Completion, refusal: Option<Reason>) {
        let refused = |request, name| refusal.map(|reason| Report::Refused { request, name, reason });
        match completion {
            Completion::Sent { context, retransmissions, result, .. } => {
                let (slot, operation) = unpack(context);
                if let Some(session) = self.at(slot) {
                    let status = Status::from(result);
                    let sent = Report::Sent { operation, retransmissions, status };
                    session.finish(operation, refused(Request::Send, operation).unwrap_or(sent));
                }
            }
            Completion::Received { context, peer, tag, header_data, len, result, .. } => {
                let (slot, operation) = unpack(context);
                if let Some(session) = self.at(slot) {
                    let status = Status::from(result);
                    let report = Report::Received { operation, peer, tag, header_data, len, status };
                    session.finish(operation, report);
                }
            }
            Completion::Closed { id, peer, result } => {
                self.connections.waiting.remove(peer, id);
                let Some((slot, connection)) = self.connections.names.remove(&id) else { return };
                if let Some(session) = self.at(slot)
                    && let Some(place) = session.connections.get_mut(connection as usize)
                    && place.take().is_some()
                {
                    session.in_use -= 1;
                    let closed = Report::Closed { connection, peer, status: Status::from(result) };
                    session.tell(&refused(Request::Connect, connection).unwrap_or(closed));
                }
            }
        }
    }

    fn at(&mut self, slot: u32) -> Option<&mut Session> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    /// Stops looking at a session's commands and lets go of all that it holds.
    #[cold]
    fn end(&mut self, fep: &mut Fep, now: Time, slot: usize, how: Ended) {
        let Some(session) = &mut self.slots[slot] else { return };
        session.leaving = true;
        session.regions.clear();
        session.backlog.clear();
        for connection in session.connections.iter().flatten() {
            // One that is all but closed completes by itself.
            let _ = fep.abort(now, *connection);
        }
        // Its receives are gone without completions.
        let _ = fep.close_process(session.process);
        for operation in &mut session.operations {
            if matches!(operation, Operation::Receive(_)) {
                *operation = Operation::Free;
                session.in_use -= 1;
            }
        }
        self.ended.push_back((session.id, session.process, how));
    }
}

impl Session {
    fn has_ended(&mut self) -> Option<Ended> {
        match self.broken {
            Some(broken) => Some(Ended::Broken(broken)),
            // What it asked for last is of no interest to anybody.
            None => self.commands.is_deserted().then_some(Ended::Left),
        }
    }

    fn may_sleep(&mut self) -> bool {
        self.commands.may_sleep().unwrap_or(false)
    }

    /// Looks at the application's commands.
    fn obey(&mut self, endpoint: &mut impl Endpoint, now: Time, all: &mut Connections) -> usize {
        if !self.backlog.is_empty() {
            return 0;
        }
        let available = match self.commands.available() {
            Ok(0) => return 0,
            Ok(available) => available,
            Err(broken) => {
                self.broken = Some(broken);
                return 0;
            }
        };
        let mut slots = [[0; 8]; BURST];
        let count = BURST.min(available as usize);
        let count = match self.commands.pop_all(&mut slots[..count]) {
            Ok(count) => count,
            Err(broken) => {
                self.broken = Some(broken);
                return 0;
            }
        };
        for slot in &slots[..count] {
            let outcome = match Command::decode(slot) {
                Ok(command) => self.execute(endpoint, now, all, command),
                Err(_) => Err(Reason::Descriptor),
            };
            if let Err(reason) = outcome {
                let name = bits(slot[0], 32, 32) as u32;
                self.tell(&Report::Refused { request: Request::of(slot), name, reason });
            }
        }
        count
    }

    fn execute(
        &mut self,
        endpoint: &mut impl Endpoint,
        now: Time,
        all: &mut Connections,
        command: Command,
    ) -> Result<(), Reason> {
        match command {
            Command::Connect { connection, peer, options } => {
                self.connect(endpoint, now, all, connection, peer, options)
            }
            Command::Send { operation, connection, extent, tag, header_data } => {
                let id = self.connection(connection)?;
                let context = self.reserve(operation)?;
                let buffer = self.memory(extent)?;
                let id = endpoint.fep_mut().post_send(id, Send { buffer, tag, header_data, context });
                let id = id.map_err(CallError::from)?;
                self.begin(operation, Operation::Send(id))
            }
            Command::Receive { operation, extent, from, matching } => {
                let context = self.reserve(operation)?;
                let buffer = self.memory(extent)?;
                let receive = Receive { buffer, from, matching, context };
                let id = endpoint.fep_mut().post_receive_of(self.process, receive);
                let id = id.map_err(CallError::from)?;
                self.begin(operation, Operation::Receive(id))
            }
            Command::Cancel { operation } => match self.operations.get(operation as usize) {
                None => Err(Reason::Number),
                Some(Operation::Free) => Err(Reason::InUse),
                Some(Operation::Send(id)) => Ok(endpoint.fep_mut().cancel_send(*id)?),
                Some(Operation::Receive(id)) => Ok(endpoint.fep_mut().cancel_receive(*id)?),
            },
            Command::Close { connection } => {
                Ok(endpoint.fep_mut().close(now, self.connection(connection)?)?)
            }
            Command::Abort { connection } => {
                Ok(endpoint.fep_mut().abort(now, self.connection(connection)?)?)
            }
        }
    }

    /// Opens a connection, which is held while its peer's Ethernet address is being asked for.
    fn connect(
        &mut self,
        endpoint: &mut impl Endpoint,
        now: Time,
        all: &mut Connections,
        connection: u32,
        peer: Addr,
        options: ConnectOptions,
    ) -> Result<(), Reason> {
        let place = self.connections.get_mut(connection as usize).ok_or(Reason::Number)?;
        if place.is_some() {
            return Err(Reason::InUse);
        }
        let held = match endpoint.find_way(now, peer) {
            Ok(()) => false,
            Err(NoWay::Resolving { .. }) => true,
            Err(why) => return Err(Reason::NoWay { peer, why }),
        };
        let id = endpoint.fep_mut().connect(now, peer, options)?;
        *place = Some(id);
        self.in_use += 1;
        all.names.insert(id, (self.id.slot, connection));
        if held {
            // It has just been opened, and nothing posted on it.
            let _ = endpoint.fep_mut().hold(id);
            all.waiting.add(now, peer, id);
        } else {
            self.tell(&Report::Connected { connection });
        }
        Ok(())
    }

    fn connection(&self, number: u32) -> Result<ConnectionId, Reason> {
        self.connections.get(number as usize).ok_or(Reason::Number)?.ok_or(Reason::NotOpen)
    }

    /// The word that an operation that is not in use has at the endpoint.
    fn reserve(&self, operation: u32) -> Result<u64, Reason> {
        match self.operations.get(operation as usize) {
            None => Err(Reason::Number),
            Some(Operation::Free) => Ok(u64::from(self.id.slot) << 32 | u64::from(operation)),
            Some(_) => Err(Reason::InUse),
        }
    }

    fn begin(&mut self, operation: u32, what: Operation) -> Result<(), Reason> {
        self.operations[operation as usize] = what;
        self.in_use += 1;
        Ok(())
    }

    fn memory(&self, extent: Extent) -> Result<Buffer, Reason> {
        let region = self.regions.get(extent.region as usize).ok_or(Reason::Memory)?;
        region.slice(extent.offset, extent.len).map(Buffer::Region).map_err(|_| Reason::Memory)
    }

    /// An operation is done. Those of receives that were dropped are free already.
    fn finish(&mut self, operation: u32, report: Report) {
        if let Some(place) = self.operations.get_mut(operation as usize)
            && !matches!(place, Operation::Free)
        {
            *place = Operation::Free;
            self.in_use -= 1;
            self.tell(&report);
        }
    }

    /// Tells the application, now or when its ring has room.
    fn tell(&mut self, report: &Report) {
        if self.leaving {
            return;
        }
        let slot = report.encode();
        if !self.backlog.is_empty() || !self.stage(&slot) {
            self.backlog.push_back(slot);
        }
    }

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

    /// Moves reports that wait to the ring.
    fn flush(&mut self) -> usize {
        let mut count = 0;
        while let Some(&slot) = self.backlog.front()
            && self.stage(&slot)
        {
            self.backlog.pop_front();
            count += 1;
        }
        count
    }

    /// Shows the application what is new.
    fn show(&mut self) {
        if self.news && !self.leaving {
            self.news = false;
            self.reports.publish();
            if self.reports.must_wake() {
                self.link.ring();
            }
        }
    }
}

fn unpack(context: u64) -> (u32, u32) {
    ((context >> 32) as u32, context as u32)
}
