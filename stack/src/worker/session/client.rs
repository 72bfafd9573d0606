//! The application's side of a session.

use core::net::IpAddr;
use core::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::command::{Command, DescriptorError, Extent, Found};
use super::config::{OpenError, SessionConfig};
use super::link::Link;
use super::report::{Report, Request};
use crate::fep::{ConnectOptions, Resource};
use crate::packet::Addr;
use crate::region::{Region, RegionError};
use crate::ses::{Claim, Matching, Source};
use crate::wire::ethernet::MacAddr;
use crate::worker::ring::{Broken, Consumer, Producer};

/// After this many polls that yield nothing, a client asks the system whether its worker is still there.
const POLLS_TO_CHECK: u32 = 4096;

/// An application's end of a session. It belongs to one thread at a time.
///
/// # Waiting
/// [`Client::wait`] sleeps until there may be something to poll. Applications that sleep on several descriptors register
/// the client's ([`AsFd`]) as readable, level-triggered, and then repeat: poll until there is nothing; [`Client::arm`];
/// if that returns true, sleep. The next poll ends what arm began, and makes the descriptor quiet again.
/// Nothing may be read from or written to the descriptor by anybody else.
///
/// # When the worker is gone
/// All calls that reach the worker fail with [`ClientError::Gone`], once its last reports have been polled: at once if
/// the worker has left in good order; after it was killed, or if it has left before it had sealed the memory that it shares
/// with the client, at once in [`Client::wait`] or in the poll after the descriptor became readable, and else within 4,096
/// polls that find nothing.
#[derive(Debug)]
pub struct Client {
    host: Option<IpAddr>,
    commands: Producer<8>,
    reports: Consumer<8>,
    memory: Region,
    addr: Addr,
    process: u16,
    longest_datagram: u32,
    operations: Handles,
    connections: Handles,
    idle_polls: u32,
    /// The worker has been told to wake us.
    armed: bool,
    /// Dropped after the rings, which say then that the application has left: its end wakes the worker.
    link: Link,
}

/// A message, a receive or a request for a peer that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OperationHandle(Handle);

/// A connection of a [`Client`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionHandle(Handle);

/// A report, with the operation or connection that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The word that the caller gave to the operation or connection.
    pub context: u64,
    /// The report that the server wrote.
    pub report: Report,
}

/// Why a call of a client failed: errors of the session itself. Errors of the endpoint come as [`Report::Refused`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The ring of commands is full: poll, and try again.
    #[error("the ring of commands is full")]
    Full,
    /// All numbers of operations, or of connections, are in use: poll, and try again.
    #[error("all {limit} {what} of the session are in use")]
    Exhausted {
        /// Operations or connections.
        what: Resource,
        /// How many the session has.
        limit: usize,
    },
    /// The handle is that of an operation or a connection that has ended.
    #[error("the operation or connection has ended")]
    Stale,
    /// The bytes do not lie in the session's memory.
    #[error(transparent)]
    Memory(#[from] RegionError),
    /// The worker has left or died. All operations and connections have ended with it.
    #[error("the worker is gone")]
    Gone,
    /// The worker has written an impossible index into a ring.
    #[error(transparent)]
    Broken(#[from] Broken),
    /// The worker has written words that are no report, or a report on nothing that was asked for.
    #[error("a report makes no sense: {0}")]
    Nonsense(#[from] DescriptorError),
    /// The system call that waits for the worker's socket failed.
    #[error("the system does not wait for the worker's socket")]
    Wait,
}

impl Client {
    /// The client of the session whose rings and memory lie in `region`, which has not been used before.
    pub(super) fn new(
        config: &SessionConfig,
        region: &Region,
        link: Link,
        host: Option<IpAddr>,
        addr: Addr,
        process: u16,
    ) -> Result<Client, OpenError> {
        let layout = config.layout()?;
        Ok(Client {
            commands: Producer::at(region, 0, config.commands)?,
            reports: Consumer::at(region, layout.reports, config.reports)?,
            memory: region.carve(layout.memory, config.memory as usize)?,
            link,
            host,
            addr,
            process,
            longest_datagram: 0,
            operations: Handles::new(config.operations, Resource::Operations),
            connections: Handles::new(config.connections, Resource::Connections),
            idle_polls: 0,
            armed: false,
        })
    }

    /// The same, of an endpoint whose datagrams have at most so many bytes.
    pub(super) fn with_longest_datagram(self, most: u32) -> Client {
        Client { longest_datagram: most, ..self }
    }

    /// The most bytes of a datagram that the endpoint sends: those that a packet carries.
    pub fn longest_datagram(&self) -> u32 {
        self.longest_datagram
    }

    /// The IP address that peers know the endpoint by, if it has one.
    pub fn host(&self) -> Option<IpAddr> {
        self.host
    }

    /// The endpoint's address.
    pub fn addr(&self) -> Addr {
        self.addr
    }

    /// The process that peers name to reach this application, [`ConnectOptions::process`], and that its messages come
    /// from, [`Source::process`].
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
    /// The memory is too short.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), ClientError> {
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.memory.slice(offset, len)?.write(0, bytes);
        Ok(())
    }

    /// Copies from `offset` of the memory to `bytes`.
    ///
    /// # Errors
    /// The memory is too short.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), ClientError> {
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.memory.slice(offset, len)?.read(0, bytes);
        Ok(())
    }

    /// Opens a connection. Messages may be posted on it at once. It ends with [`Report::Closed`], or with
    /// [`Report::Refused`] if it was never open; either carries `context`. If the peer's Ethernet address is still being
    /// asked for, [`Report::Connected`] comes with the answer, or the refusal after some three seconds.
    ///
    /// # Errors
    /// [`ClientError::Full`], [`ClientError::Exhausted`] or [`ClientError::Gone`].
    pub fn connect(
        &mut self,
        peer: Addr,
        options: ConnectOptions,
        context: u64,
    ) -> Result<ConnectionHandle, ClientError> {
        let handle = self.connections.take(context)?;
        let command = Command::Connect { connection: handle.number, peer, options };
        self.submit_or(&command, |client| client.connections.give_back(handle.number))?;
        Ok(ConnectionHandle(handle))
    }

    /// Posts a message. Its memory belongs to the endpoint until [`Report::Sent`], or [`Report::Refused`] if none of it
    /// was ever sent.
    ///
    /// # Errors
    /// As [`Client::connect`]; [`ClientError::Stale`] if the connection has ended.
    pub fn send(
        &mut self,
        connection: ConnectionHandle,
        extent: Extent,
        tag: Option<u64>,
        header_data: u64,
        context: u64,
    ) -> Result<OperationHandle, ClientError> {
        let connection = self.connections.check(connection.0)?;
        let handle = self.operations.take(context)?;
        let operation = handle.number;
        let command = Command::Send { operation, connection, extent, tag, header_data };
        self.submit_or(&command, |client| client.operations.give_back(operation))?;
        Ok(OperationHandle(handle))
    }

    /// Posts a receive. Its memory belongs to the endpoint until [`Report::Received`] or [`Report::Refused`].
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn receive(
        &mut self,
        extent: Extent,
        from: Option<Source>,
        matching: Matching,
        context: u64,
    ) -> Result<OperationHandle, ClientError> {
        let many = None;
        self.begin(context, |operation| Command::Receive { operation, extent, from, matching, many })
    }

    /// Posts a receive for many messages: each gets the beginning of what is left of the memory, until fewer than `least`
    /// bytes are left. There is a [`Report::Received`] for each, with its offset; that of the last message to end says that
    /// there are no more. It takes none while the application does not read its reports, or beyond what [`Client::allow_many`] says.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn receive_many(
        &mut self,
        extent: Extent,
        from: Option<Source>,
        matching: Matching,
        least: NonZeroU32,
        context: u64,
    ) -> Result<OperationHandle, ClientError> {
        let many = Some(least);
        self.begin(context, |operation| Command::Receive { operation, extent, from, matching, many })
    }

    /// Lets receives for many messages take `more` further ones than they may now. Before the first such call they take any number. Beyond
    /// it messages that would meet one stay with their senders, as [`Fep::limit_many`](crate::fep::Fep::limit_many) says.
    ///
    /// # Errors
    /// [`ClientError::Full`] or [`ClientError::Gone`].
    pub fn allow_many(&mut self, more: u64) -> Result<(), ClientError> {
        self.submit(&Command::AllowMany { more })
    }

    /// Posts a datagram to a process of a peer: one packet, without a connection, that is never sent again. Its memory belongs to
    /// the endpoint until [`Report::Sent`], which says that it has left and nothing about its arrival, or [`Report::Refused`].
    /// While the peer's Ethernet address is being asked for, it waits for the answer.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn send_datagram(
        &mut self,
        to: Source,
        extent: Extent,
        header_data: u64,
        context: u64,
    ) -> Result<OperationHandle, ClientError> {
        self.begin(context, |operation| Command::SendDatagram { operation, to, extent, header_data })
    }

    /// Posts a receive of one datagram, of any sender. Datagrams for which there is none are dropped. They meet no receives of
    /// messages, and messages none of these. It counts from the turn in which the worker executes the command: a datagram
    /// that arrives before is dropped. Its memory belongs to the endpoint until [`Report::Received`] or [`Report::Refused`].
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn receive_datagram(&mut self, extent: Extent, context: u64) -> Result<OperationHandle, ClientError> {
        self.begin(context, |operation| Command::ReceiveDatagram { operation, extent })
    }

    /// Looks for a message that waits for a receive like this. [`Report::Peeked`] says whether there is one.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn peek(
        &mut self,
        from: Option<Source>,
        matching: Matching,
        found: Found,
        context: u64,
    ) -> Result<OperationHandle, ClientError> {
        self.begin(context, |operation| Command::Peek { operation, from, matching, found })
    }

    /// Receives a message that was claimed, as [`Client::receive`]. [`Report::Refused`] says that it is not there any more.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn receive_claimed(
        &mut self,
        extent: Extent,
        claim: Claim,
        context: u64,
    ) -> Result<OperationHandle, ClientError> {
        self.begin(context, |operation| Command::ReceiveClaimed { operation, extent, claim })
    }

    /// Drops a message that was claimed.
    ///
    /// # Errors
    /// [`ClientError::Full`] or [`ClientError::Gone`].
    pub fn discard(&mut self, claim: Claim) -> Result<(), ClientError> {
        self.submit(&Command::Discard { claim })
    }

    /// Passes a command that needs the number of an operation.
    fn begin(
        &mut self,
        context: u64,
        command: impl FnOnce(u32) -> Command,
    ) -> Result<OperationHandle, ClientError> {
        let handle = self.operations.take(context)?;
        self.submit_or(&command(handle.number), |client| client.operations.give_back(handle.number))?;
        Ok(OperationHandle(handle))
    }

    /// Asks for the [`Addr`] of the peer with this IP address, which is entered in the endpoint's address book if it has
    /// no entry. [`Report::Peer`] brings it; or [`Report::Refused`] says why not. The Ethernet address `mac` is used
    /// until a host on the link answers for `ip`, for applications that have given it and no others, and only where the link has
    /// Ethernet addresses at all. A connection that this one has opened before does not use it. How many peers an application can
    /// add, [`SessionConfig::peers`] says; asking for one that is there already is always possible. One that another process has
    /// added stays as long as that one, and longer if this process may still add one then.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn peer(
        &mut self,
        ip: IpAddr,
        mac: Option<MacAddr>,
        context: u64,
    ) -> Result<OperationHandle, ClientError> {
        let handle = self.operations.take(context)?;
        let command = Command::Peer { operation: handle.number, ip, mac };
        self.submit_or(&command, |client| client.operations.give_back(handle.number))?;
        Ok(OperationHandle(handle))
    }

    /// Cancels a message or a receive, which then ends as cancelled; or [`Report::Refused`] says that it is too late.
    ///
    /// # Errors
    /// [`ClientError::Full`] or [`ClientError::Gone`]; [`ClientError::Stale`] if it has ended.
    pub fn cancel(&mut self, operation: OperationHandle) -> Result<(), ClientError> {
        let operation = self.operations.check(operation.0)?;
        self.submit(&Command::Cancel { operation })
    }

    /// Closes a connection once its messages are sent.
    ///
    /// # Errors
    /// As [`Client::cancel`].
    pub fn close(&mut self, connection: ConnectionHandle) -> Result<(), ClientError> {
        let connection = self.connections.check(connection.0)?;
        self.submit(&Command::Close { connection })
    }

    /// Closes a connection without sending the messages that wait.
    ///
    /// # Errors
    /// As [`Client::cancel`].
    pub fn abort(&mut self, connection: ConnectionHandle) -> Result<(), ClientError> {
        let connection = self.connections.check(connection.0)?;
        self.submit(&Command::Abort { connection })
    }

    /// The next event. Does not wait. Makes no system call except one after [`Client::arm`], and one in 4,096 polls that
    /// find nothing, to see whether the worker is there.
    ///
    /// # Errors
    /// [`ClientError::Gone`], [`ClientError::Broken`] or [`ClientError::Nonsense`]: no more events will come.
    pub fn poll(&mut self) -> Result<Option<Event>, ClientError> {
        if self.armed {
            self.disarm()?;
        }
        if let Some(slot) = self.reports.pop()? {
            self.idle_polls = 0;
            return self.settle(Report::decode(&slot)?).map(Some);
        }
        self.idle_polls = self.idle_polls.wrapping_add(1);
        let look = self.idle_polls.is_multiple_of(POLLS_TO_CHECK);
        // Reports that the worker published before it left are in the ring, even if they were not a moment ago.
        if self.reports.is_finished()? || (look && self.link.is_closed() && self.reports.available()? == 0) {
            return Err(ClientError::Gone);
        }
        Ok(None)
    }

    /// Sleeps until there may be something to poll, or `limit` has passed. A worker that dies ends the sleep at once.
    ///
    /// # Errors
    /// [`ClientError::Gone`], [`ClientError::Broken`] or [`ClientError::Wait`].
    pub fn wait(&mut self, limit: Duration) -> Result<(), ClientError> {
        if !self.arm()? {
            return Ok(());
        }
        let slept = self.link.wait(limit);
        self.disarm()?;
        slept.map_err(|_| ClientError::Wait)
    }

    /// Announces that the caller is about to sleep on the client's descriptor. Returns whether it may: if not, there is
    /// something to poll already. Once the worker has something to report, or dies, the descriptor becomes readable.
    ///
    /// # Errors
    /// [`ClientError::Broken`].
    pub fn arm(&mut self) -> Result<bool, ClientError> {
        self.armed = self.reports.may_sleep()?;
        Ok(self.armed)
    }

    /// Whether the last [`Client::arm`] allowed a sleep, and nothing has ended what it began.
    pub fn is_armed(&self) -> bool {
        self.armed
    }

    /// Ends what [`Client::arm`] began: the worker makes no system calls for this application any more. Polling does
    /// the same.
    ///
    /// # Errors
    /// [`ClientError::Gone`] or [`ClientError::Broken`].
    pub fn disarm(&mut self) -> Result<(), ClientError> {
        self.armed = false;
        self.reports.woken();
        match self.link.is_closed() && self.reports.available()? == 0 {
            true => Err(ClientError::Gone),
            false => Ok(()),
        }
    }

    /// Passes a command as it is. Its numbers are not those that this client gives to the commands of its other calls, so
    /// reports on them may be refused as nonsense.
    ///
    /// # Errors
    /// [`ClientError::Full`] or [`ClientError::Gone`].
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

    /// Finds the operation or connection of a report, which may end with it.
    fn settle(&mut self, report: Report) -> Result<Event, ClientError> {
        let context = match report {
            Report::Connected { connection } => self.connections.context(connection)?,
            Report::Received { operation, more: true, .. } => self.operations.context(operation)?,
            Report::Sent { operation, .. }
            | Report::Received { operation, .. }
            | Report::Peeked { operation, .. }
            | Report::Peer { operation, .. } => self.operations.end(operation)?,
            Report::Closed { connection, .. } => self.connections.end(connection)?,
            Report::Refused { request, number, .. } => match request {
                Request::Connect => self.connections.end(number)?,
                _ if request.posts_operation() => self.operations.end(number)?,
                // The operation or connection may have ended before the command was executed.
                Request::Cancel => self.operations.context(number).unwrap_or(0),
                Request::Close | Request::Abort => self.connections.context(number).unwrap_or(0),
                _ => 0,
            },
        };
        Ok(Event { context, report })
    }
}

impl AsFd for Client {
    /// The descriptor to wait on, as described at [`Client`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Handle {
    number: u32,
    generation: u32,
}

/// The numbers of operations, or of connections, and the contexts of those that are in use.
#[derive(Debug)]
struct Handles {
    what: Resource,
    all: Vec<Use>,
    free: Vec<u32>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Use {
    context: Option<u64>,
    generation: u32,
}

impl Handles {
    fn new(count: u32, what: Resource) -> Handles {
        Handles { what, all: vec![Use::default(); count as usize], free: (0..count).rev().collect() }
    }

    fn take(&mut self, context: u64) -> Result<Handle, ClientError> {
        let exhausted = ClientError::Exhausted { what: self.what, limit: self.all.len() };
        let number = self.free.pop().ok_or(exhausted)?;
        let entry = &mut self.all[number as usize];
        entry.context = Some(context);
        Ok(Handle { number, generation: entry.generation })
    }

    fn check(&self, handle: Handle) -> Result<u32, ClientError> {
        match self.all.get(handle.number as usize) {
            Some(entry) if entry.generation == handle.generation && entry.context.is_some() => {
                Ok(handle.number)
            }
            _ => Err(ClientError::Stale),
        }
    }

    fn context(&self, number: u32) -> Result<u64, ClientError> {
        let context = self.all.get(number as usize).and_then(|entry| entry.context);
        context.ok_or(ClientError::Nonsense(DescriptorError::Value(
            "the number of nothing in use",
            number.into(),
        )))
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
