//! The application's side.

use std::time::Duration;

use super::command::{Command, DescriptorError, Extent};
use super::config::{OpenError, SessionConfig};
use super::link::Link;
use super::report::{Report, Request};
use crate::fep::ConnectOptions;
use crate::packet::Addr;
use crate::region::{Region, RegionError};
use crate::ses::Matching;
use crate::worker::ring::{Broken, Consumer, Producer};

/// Polls that yield nothing after which a client asks the system whether its worker is still there.
const POLLS_TO_CHECK: u32 = 4096;

/// An application's end of a session. It belongs to one thread at a time.
#[derive(Debug)]
pub struct Client {
    commands: Producer<8>,
    reports: Consumer<8>,
    memory: Region,
    link: Link,
    addr: Addr,
    process: u16,
    operations: Names,
    connections: Names,
    idle_polls: u32,
}

/// A message or a receive that was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operation(Name);

/// A connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Connection(Name);

/// Something has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The caller's word: of the operation, or of the connection.
    pub context: u64,
    /// What.
    pub report: Report,
}

/// Why a call of a client failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The ring of commands is full: poll, and try again.
    #[error("the ring of commands is full")]
    Full,
    /// All operations, or all connections, are in use.
    #[error("all {0} {1} are in use")]
    Exhausted(usize, &'static str),
    /// It is not in use any more.
    #[error("the operation or connection is not in use any more")]
    Stale,
    /// There is no such memory.
    #[error(transparent)]
    Memory(#[from] RegionError),
    /// The worker has left or died. All operations and connections have ended with it.
    #[error("the worker is gone")]
    Gone,
    /// The worker has written what cannot be.
    #[error(transparent)]
    Broken(#[from] Broken),
    /// The worker has reported what makes no sense.
    #[error("a report makes no sense: {0}")]
    Nonsense(#[from] DescriptorError),
    /// The system does not let it sleep.
    #[error("the system does not wait for the worker's socket")]
    Wait,
}

impl Client {
    /// The client of the session whose rings and memory lie in `region`, which nobody has used before.
    pub(super) fn new(
        config: &SessionConfig,
        region: &Region,
        link: Link,
        addr: Addr,
        process: u16,
    ) -> Result<Client, OpenError> {
        let layout = config.layout()?;
        Ok(Client {
            commands: Producer::at(region, 0, config.commands)?,
            reports: Consumer::at(region, layout.reports, config.reports)?,
            memory: region.carve(layout.memory, config.memory as usize)?,
            link,
            addr,
            process,
            operations: Names::new(config.operations),
            connections: Names::new(config.connections),
            idle_polls: 0,
        })
    }

    /// The endpoint's address.
    pub fn addr(&self) -> Addr {
        self.addr
    }

    /// What peers name to reach this application: [`ConnectOptions::process`].
    pub fn process(&self) -> u16 {
        self.process
    }

    /// The memory that messages are sent from and received into: region 0 of [`Extent`].
    pub fn memory(&self) -> &Region {
        &self.memory
    }

    /// Copies `bytes` to `offset` of the memory.
    ///
    /// # Errors
    /// They do not lie in it.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), ClientError> {
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.memory.slice(offset, len)?.write(0, bytes);
        Ok(())
    }

    /// Copies from `offset` of the memory to `bytes`.
    ///
    /// # Errors
    /// They do not lie in it.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), ClientError> {
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.memory.slice(offset, len)?.read(0, bytes);
        Ok(())
    }

    /// Opens a connection. Messages may be posted on it at once. It ends with [`Report::Closed`], or
    /// [`Report::Refused`] if it never was; either carries `context`. If the peer's Ethernet address is still being
    /// asked for, [`Report::Connected`] comes with the answer, or the refusal after some three seconds.
    ///
    /// # Errors
    /// No room.
    pub fn connect(
        &mut self,
        peer: Addr,
        options: ConnectOptions,
        context: u64,
    ) -> Result<Connection, ClientError> {
        let name = self.connections.take(context, "connections")?;
        let command = Command::Connect { connection: name.number, peer, options };
        self.submit_or(&command, |client| client.connections.give_back(name.number))?;
        Ok(Connection(name))
    }

    /// Posts a message. Its memory is the endpoint's until [`Report::Sent`], or [`Report::Refused`] if none of it was
    /// ever sent.
    ///
    /// # Errors
    /// No room, no such memory or connection.
    pub fn send(
        &mut self,
        connection: Connection,
        extent: Extent,
        tag: Option<u64>,
        header_data: u64,
        context: u64,
    ) -> Result<Operation, ClientError> {
        let connection = self.connections.check(connection.0)?;
        let name = self.operations.take(context, "operations")?;
        let operation = name.number;
        let command = Command::Send { operation, connection, extent, tag, header_data };
        self.submit_or(&command, |client| client.operations.give_back(operation))?;
        Ok(Operation(name))
    }

    /// Posts a receive. Its memory is the endpoint's until [`Report::Received`].
    ///
    /// # Errors
    /// No room.
    pub fn receive(
        &mut self,
        extent: Extent,
        from: Option<Addr>,
        matching: Matching,
        context: u64,
    ) -> Result<Operation, ClientError> {
        let name = self.operations.take(context, "operations")?;
        let command = Command::Receive { operation: name.number, extent, from, matching };
        self.submit_or(&command, |client| client.operations.give_back(name.number))?;
        Ok(Operation(name))
    }

    /// Takes a message or receive back, which then ends as cancelled; or [`Report::Refused`] tells that it is too late.
    ///
    /// # Errors
    /// No room, or it has ended.
    pub fn cancel(&mut self, operation: Operation) -> Result<(), ClientError> {
        let operation = self.operations.check(operation.0)?;
        self.submit(&Command::Cancel { operation })
    }

    /// Closes a connection once its messages are sent.
    ///
    /// # Errors
    /// No room, or it is closed.
    pub fn close(&mut self, connection: Connection) -> Result<(), ClientError> {
        let connection = self.connections.check(connection.0)?;
        self.submit(&Command::Close { connection })
    }

    /// Closes a connection without sending what waits.
    ///
    /// # Errors
    /// No room, or it is closed.
    pub fn abort(&mut self, connection: Connection) -> Result<(), ClientError> {
        let connection = self.connections.check(connection.0)?;
        self.submit(&Command::Abort { connection })
    }

    /// The next event. Does not wait. Makes no system call but one in 4,096 polls that find nothing, to see whether the
    /// worker is there.
    ///
    /// # Errors
    /// The worker is gone, or out of its mind; there is nothing more to come.
    pub fn poll(&mut self) -> Result<Option<Event>, ClientError> {
        if let Some(slot) = self.reports.pop()? {
            self.idle_polls = 0;
            return self.settle(Report::decode(&slot)?).map(Some);
        }
        self.idle_polls += 1;
        let look = self.idle_polls.is_multiple_of(POLLS_TO_CHECK);
        // What the worker published before it left is in the ring, even if it was not a moment ago.
        if self.reports.is_finished()? || (look && self.link.is_closed() && self.reports.available()? == 0) {
            return Err(ClientError::Gone);
        }
        Ok(None)
    }

    /// Sleeps until there may be something to poll, or `limit` has passed. A worker that dies ends the sleep at once.
    ///
    /// # Errors
    /// The worker is gone, or out of its mind.
    pub fn wait(&mut self, limit: Duration) -> Result<(), ClientError> {
        if !self.reports.may_sleep()? {
            return Ok(());
        }
        let slept = self.link.wait(limit);
        self.reports.woken();
        slept.map_err(|_| ClientError::Wait)?;
        match self.link.is_closed() && self.reports.available()? == 0 {
            true => Err(ClientError::Gone),
            false => Ok(()),
        }
    }

    /// Passes a command as it is, which a caller should not do who uses the other calls: its numbers are not this
    /// client's to give, and reports on them are refused as nonsense.
    ///
    /// # Errors
    /// No room.
    pub(super) fn submit(&mut self, command: &Command) -> Result<(), ClientError> {
        self.submit_words(&command.encode())
    }

    pub(super) fn submit_words(&mut self, words: &super::Slot) -> Result<(), ClientError> {
        if !self.commands.push(words)? {
            return match self.commands.is_deserted() {
                true => Err(ClientError::Gone),
                false => Err(ClientError::Full),
            };
        }
        if self.commands.must_wake() {
            self.link.ring();
        }
        Ok(())
    }

    /// [`Client::submit`], and `undo` if that fails.
    fn submit_or(&mut self, command: &Command, undo: impl FnOnce(&mut Client)) -> Result<(), ClientError> {
        self.submit(command).inspect_err(|_| undo(self))
    }

    /// The next report as it comes.
    #[cfg(test)]
    pub(super) fn poll_raw(&mut self) -> Result<Option<Report>, ClientError> {
        self.reports.pop()?.map(|slot| Report::decode(&slot)).transpose().map_err(Into::into)
    }

    /// Its end of the socket.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn link(&self) -> &Link {
        &self.link
    }

    /// Closes its end of the socket and nothing else, as the system does for a process that is killed.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn hang_up(&mut self) {
        self.link = Link::pair().expect("sockets").0;
    }

    /// Finds what a report is about, which may end with it.
    fn settle(&mut self, report: Report) -> Result<Event, ClientError> {
        let context = match report {
            Report::Connected { connection } => self.connections.context(connection)?,
            Report::Sent { operation, .. } | Report::Received { operation, .. } => {
                self.operations.end(operation)?
            }
            Report::Closed { connection, .. } => self.connections.end(connection)?,
            Report::Refused { request, name, .. } => match request {
                Request::Connect => self.connections.end(name)?,
                Request::Send | Request::Receive => self.operations.end(name)?,
                // What they were about may have ended before they were looked at.
                Request::Cancel => self.operations.context(name).unwrap_or(0),
                Request::Close | Request::Abort => self.connections.context(name).unwrap_or(0),
                Request::Unknown => 0,
            },
        };
        Ok(Event { context, report })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Name {
    number: u32,
    generation: u32,
}

/// Numbers that are in use, and their callers' words.
#[derive(Debug)]
struct Names {
    all: Vec<Use>,
    free: Vec<u32>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Use {
    context: Option<u64>,
    generation: u32,
}

impl Names {
    fn new(count: u32) -> Names {
        Names { all: vec![Use::default(); count as usize], free: (0..count).rev().collect() }
    }

    fn take(&mut self, context: u64, what: &'static str) -> Result<Name, ClientError> {
        let number = self.free.pop().ok_or(ClientError::Exhausted(self.all.len(), what))?;
        let entry = &mut self.all[number as usize];
        entry.context = Some(context);
        Ok(Name { number, generation: entry.generation })
    }

    fn check(&self, name: Name) -> Result<u32, ClientError> {
        match self.all.get(name.number as usize) {
            Some(entry) if entry.generation == name.generation && entry.context.is_some() => Ok(name.number),
            _ => Err(ClientError::Stale),
        }
    }

    fn context(&self, number: u32) -> Result<u64, ClientError> {
        let context = self.all.get(number as usize).and_then(|entry| entry.context);
        context.ok_or(ClientError::Nonsense(DescriptorError::Value("a number not in use", number.into())))
    }

    fn end(&mut self, number: u32) -> Result<u64, ClientError> {
        let context = self.context(number)?;
        self.give_back(number);
        Ok(context)
    }

    fn give_back(&mut self, number: u32) {
        if let Some(entry) = self.all.get_mut(number as usize)
            && entry.context.take().is_some()
        {
            entry.generation = entry.generation.wrapping_add(1);
            self.free.push(number);
        }
    }
}
