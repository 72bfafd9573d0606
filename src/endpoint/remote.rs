//! The worker in another thread or process, reached through a session.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use weft_stack::buffer::MAX_MESSAGE;
use weft_stack::fep::{CallError, ConnectOptions};
use weft_stack::packet::Addr;
use weft_stack::ses::{Claim, MAX_SEGMENT, Source, Waiting};
use weft_stack::table::{Key, Table};
use weft_stack::worker::Idle;
use weft_stack::worker::session::{
    Client, ClientError, ConnectionHandle, DescriptorError, Event, Extent, Found, OperationHandle, Report,
    Request,
};

use super::buffer::{ReceiveBuffer, SendBuffer};
use super::completion::{
    Completion, ConnectionId, ConnectionName, OperationId, OperationName, ReceiveOptions, SendOptions,
};
use super::error::{Error, PeerError, PostError};
use super::memory::{Memory, MemorySlice};
use super::thread::WorkerThread;
use crate::port::{PeerSpec, SpecError};

/// How long a worker may take to enter a peer into its address book, for which it waits for nobody.
const ENTRY: Duration = Duration::from_secs(5);

/// A session, and all that the application has posted in it.
pub(super) struct Remote {
    client: Client,
    pub(super) memory: Memory,
    operations: Table<Posted>,
    connections: Table<Open>,
    /// Completions that were taken from the session before their turn.
    ready: VecDeque<Completion>,
    /// Datagrams that have not left.
    datagrams: usize,
    /// The answer to a request for a peer, and the request.
    entered: Option<(Key, Result<Addr, Error>)>,
    idle: Idle,
    /// Why nothing more will come from the session.
    over: Option<Error>,
    /// Dropped after the client.
    _thread: Option<WorkerThread>,
}

/// An operation that has not completed.
struct Posted {
    /// None only while it is being submitted.
    handle: Option<OperationHandle>,
    context: u64,
    buffer: Lent,
}

impl Posted {
    fn is_send(&self) -> bool {
        matches!(self.buffer, Lent::Send(..) | Lent::Datagram(..))
    }

    fn is_receive(&self) -> bool {
        matches!(self.buffer, Lent::Receive(..) | Lent::Many(..))
    }

    fn is_peek(&self) -> bool {
        matches!(self.buffer, Lent::Peek)
    }

    fn is_request(&self) -> bool {
        matches!(self.buffer, Lent::Nothing)
    }
}

/// The buffer of an operation, and the part of the session's memory that stands for it if it lies elsewhere.
enum Lent {
    Send(SendBuffer, Option<MemorySlice>),
    /// A datagram to send.
    Datagram(SendBuffer, Option<MemorySlice>),
    /// A receive of a message or a datagram.
    Receive(ReceiveBuffer, Option<MemorySlice>),
    /// A receive for many messages.
    Many(Pieces, Option<MemorySlice>),
    /// A look at messages that wait has none.
    Peek,
    /// A request for a peer has none.
    Nothing,
}

/// What no message of a receive for many has got, as far as it was reported.
struct Pieces {
    /// Where each begins in the buffer, in order. Messages end in another order than the one they begin in.
    all: Vec<(u32, ReceiveBuffer)>,
}

impl Pieces {
    fn new(buffer: ReceiveBuffer) -> Pieces {
        Pieces { all: vec![(0, buffer)] }
    }

    /// Takes out the part of a message of `len` bytes at `offset`: as much of it as there is.
    fn take(&mut self, offset: u32, len: u32) -> ReceiveBuffer {
        let Some(at) = self.all.iter().rposition(|(begin, _)| *begin <= offset) else {
            return Vec::new().into();
        };
        let (begin, piece) = &mut self.all[at];
        let before = (*begin, piece.split_to((offset - *begin) as usize));
        let part = piece.split_to(len as usize);
        *begin = offset.saturating_add(part.len() as u32);
        if !before.1.is_empty() {
            self.all.insert(at, before);
        }
        part
    }

    /// All that is left behind the last message; or the buffer as it was.
    fn rest(mut self) -> ReceiveBuffer {
        self.all.pop().map_or_else(|| Vec::new().into(), |(_, rest)| rest)
    }
}

/// A connection that has not closed.
struct Open {
    /// None only while it is being submitted.
    handle: Option<ConnectionHandle>,
    peer: Addr,
}

/// The message that a receive has brought; none unless there is a source.
#[derive(Default)]
struct Arrival {
    source: Option<Source>,
    tag: Option<u64>,
    header_data: u64,
    len: u32,
    offset: u32,
    more: bool,
}

impl Remote {
    pub(super) fn new(client: Client, idle: Idle, thread: Option<WorkerThread>) -> Remote {
        Remote {
            memory: Memory::of(client.memory().clone()),
            client,
            operations: Table::default(),
            connections: Table::default(),
            ready: VecDeque::new(),
            datagrams: 0,
            entered: None,
            idle,
            over: None,
            _thread: thread,
        }
    }

    pub(super) fn process(&self) -> u16 {
        self.client.process()
    }

    pub(super) fn ip(&self) -> Option<IpAddr> {
        self.client.host()
    }

    /// Asks the worker for a peer and waits for the answer. Completions that come meanwhile are kept.
    pub(super) fn peer(&mut self, peer: &PeerSpec) -> Result<Addr, PeerError> {
        self.peer_within(peer, ENTRY)
    }

    /// As [`Remote::peer`], and waits no longer than that.
    pub(super) fn peer_within(&mut self, peer: &PeerSpec, bound: Duration) -> Result<Addr, PeerError> {
        self.check()?;
        if let Some(port) = peer.port {
            return Err(SpecError::expected(format!(
                "a peer without a UDP port, as the worker runs elsewhere, instead of {}:{port}",
                peer.ip
            ))
            .into());
        }
        let key = self.operations.insert(Posted { handle: None, context: 0, buffer: Lent::Nothing });
        if let Err(error) = self.client.peer(peer.ip, peer.mac, word(key)) {
            self.operations.remove(key);
            return Err(Error::from(error).into());
        }
        let begin = Instant::now();
        loop {
            while let Some(completion) = self.take() {
                self.ready.push_back(completion);
            }
            match self.entered.take() {
                Some((request, answer)) if request == key => return Ok(answer?),
                // The answer to an earlier request, which came too late.
                Some(_) => continue,
                None => self.check()?,
            }
            let waited = begin.elapsed();
            if waited >= bound {
                return Err(Error::NoReply(bound).into());
            }
            self.rest(waited, bound - waited);
        }
    }

    pub(super) fn connect(&mut self, peer: Addr, options: ConnectOptions) -> Result<ConnectionId, Error> {
        self.check()?;
        let key = self.connections.insert(Open { handle: None, peer });
        match self.client.connect(peer, options, word(key)) {
            Ok(handle) => {
                if let Some(open) = self.connections.get_mut(key) {
                    open.handle = Some(handle);
                }
                Ok(connection_id(key))
            }
            Err(error) => {
                self.connections.remove(key);
                Err(error.into())
            }
        }
    }

    #[inline]
    pub(super) fn send(
        &mut self,
        connection: ConnectionId,
        buffer: SendBuffer,
        options: SendOptions,
    ) -> Result<OperationId, PostError<SendBuffer>> {
        let (handle, part) =
            match self.connection(connection).and_then(|handle| Ok((handle, self.stage(&buffer)?))) {
                Ok(prepared) => prepared,
                Err(error) => return Err(PostError { error, buffer }),
            };
        let SendOptions { tag, header_data, context } = options;
        let extent = extent(part.as_ref().or(buffer.memory()));
        let key = self.operations.insert(Posted { handle: None, context, buffer: Lent::Send(buffer, part) });
        let submitted = self.client.send(handle, extent, tag, header_data, word(key));
        match self.submitted(key, submitted) {
            Ok(operation) => Ok(operation),
            Err((error, Lent::Send(buffer, part))) => {
                self.give_back(part);
                Err(PostError { error, buffer })
            }
            Err((error, _)) => Err(PostError { error, buffer: SendBuffer::Copied }),
        }
    }

    #[inline]
    pub(super) fn send_copy(
        &mut self,
        connection: ConnectionId,
        bytes: &[u8],
        options: SendOptions,
    ) -> Result<OperationId, Error> {
        let handle = self.connection(connection)?;
        let slice = self.memory.allocate(bytes.len() as u32)?;
        slice.write(0, bytes);
        let SendOptions { tag, header_data, context } = options;
        let extent = extent(Some(&slice));
        let lent = Lent::Send(SendBuffer::Copied, Some(slice));
        let key = self.operations.insert(Posted { handle: None, context, buffer: lent });
        let submitted = self.client.send(handle, extent, tag, header_data, word(key));
        self.submitted(key, submitted).map_err(|(error, lent)| {
            if let Lent::Send(_, part) = lent {
                self.give_back(part);
            }
            error
        })
    }

    #[inline]
    pub(super) fn receive(
        &mut self,
        buffer: ReceiveBuffer,
        options: ReceiveOptions,
    ) -> Result<OperationId, PostError<ReceiveBuffer>> {
        let part = match self.check().and_then(|()| self.room_for(&buffer)) {
            Ok(part) => part,
            Err(error) => return Err(PostError { error, buffer }),
        };
        let ReceiveOptions { matching, from, context } = options;
        let extent = extent(part.as_ref().or(buffer.memory()));
        let key =
            self.operations.insert(Posted { handle: None, context, buffer: Lent::Receive(buffer, part) });
        let submitted = self.client.receive(extent, from, matching, word(key));
        self.submitted_receive(key, submitted)
    }

    #[inline]
    fn submitted_receive(
        &mut self,
        key: Key,
        outcome: Result<OperationHandle, ClientError>,
    ) -> Result<OperationId, PostError<ReceiveBuffer>> {
        match self.submitted(key, outcome) {
            Ok(operation) => Ok(operation),
            Err((error, Lent::Receive(buffer, part))) => {
                self.give_back(part);
                Err(PostError { error, buffer })
            }
            Err((error, Lent::Many(pieces, part))) => {
                self.give_back(part);
                Err(PostError { error, buffer: pieces.rest() })
            }
            Err((error, _)) => Err(PostError { error, buffer: Vec::new().into() }),
        }
    }

    pub(super) fn longest_datagram(&self) -> u32 {
        self.client.longest_datagram()
    }

    pub(super) fn send_datagram(
        &mut self,
        to: Source,
        buffer: SendBuffer,
        header_data: u64,
        context: u64,
    ) -> Result<OperationId, PostError<SendBuffer>> {
        let most = self.longest_datagram();
        let part = match self.check() {
            Ok(()) if buffer.len() > most as usize => Err(CallError::DatagramTooLong { most }.into()),
            Ok(()) => self.stage(&buffer),
            Err(error) => Err(error),
        };
        let part = match part {
            Ok(part) => part,
            Err(error) => return Err(PostError { error, buffer }),
        };
        let extent = extent(part.as_ref().or(buffer.memory()));
        let lent = Lent::Datagram(buffer, part);
        let key = self.operations.insert(Posted { handle: None, context, buffer: lent });
        let submitted = self.client.send_datagram(to, extent, header_data, word(key));
        match self.submitted(key, submitted) {
            Ok(operation) => {
                self.datagrams += 1;
                Ok(operation)
            }
            Err((error, Lent::Datagram(buffer, part))) => {
                self.give_back(part);
                Err(PostError { error, buffer })
            }
            Err((error, _)) => Err(PostError { error, buffer: SendBuffer::Copied }),
        }
    }

    pub(super) fn receive_datagram(
        &mut self,
        buffer: ReceiveBuffer,
        context: u64,
    ) -> Result<OperationId, PostError<ReceiveBuffer>> {
        let part = match self.check().and_then(|()| self.room_for_datagram(&buffer)) {
            Ok(part) => part,
            Err(error) => return Err(PostError { error, buffer }),
        };
        let extent = extent(part.as_ref().or(buffer.memory()));
        let key =
            self.operations.insert(Posted { handle: None, context, buffer: Lent::Receive(buffer, part) });
        let submitted = self.client.receive_datagram(extent, word(key));
        self.submitted_receive(key, submitted)
    }

    pub(super) fn receive_many(
        &mut self,
        buffer: ReceiveBuffer,
        least: NonZeroU32,
        options: ReceiveOptions,
    ) -> Result<OperationId, PostError<ReceiveBuffer>> {
        // Messages are copied to their parts, which are split off one after the other. Vectors cannot be split, and parts of
        // registered memory could not be freed by themselves.
        if !buffer.can_split() {
            return Err(PostError { error: CallError::NotDivisible.into(), buffer });
        }
        let part = match self.check().and_then(|()| self.room_for(&buffer)) {
            Ok(part) => part,
            Err(error) => return Err(PostError { error, buffer }),
        };
        let ReceiveOptions { matching, from, context } = options;
        let extent = extent(part.as_ref());
        let lent = Lent::Many(Pieces::new(buffer), part);
        let key = self.operations.insert(Posted { handle: None, context, buffer: lent });
        let submitted = self.client.receive_many(extent, from, matching, least, word(key));
        self.submitted_receive(key, submitted)
    }

    pub(super) fn allow_many(&mut self, more: u64) -> Result<(), Error> {
        self.check()?;
        Ok(self.client.allow_many(more)?)
    }

    pub(super) fn peek(&mut self, options: ReceiveOptions, found: Found) -> Result<OperationId, Error> {
        self.check()?;
        let ReceiveOptions { matching, from, context } = options;
        let key = self.operations.insert(Posted { handle: None, context, buffer: Lent::Peek });
        let submitted = self.client.peek(from, matching, found, word(key));
        self.submitted(key, submitted).map_err(|(error, _)| error)
    }

    pub(super) fn receive_claimed(
        &mut self,
        claim: Claim,
        buffer: ReceiveBuffer,
        context: u64,
    ) -> Result<OperationId, PostError<ReceiveBuffer>> {
        let part = match self.check().and_then(|()| self.room_for(&buffer)) {
            Ok(part) => part,
            Err(error) => return Err(PostError { error, buffer }),
        };
        let extent = extent(part.as_ref().or(buffer.memory()));
        let key =
            self.operations.insert(Posted { handle: None, context, buffer: Lent::Receive(buffer, part) });
        let submitted = self.client.receive_claimed(extent, claim, word(key));
        self.submitted_receive(key, submitted)
    }

    pub(super) fn discard(&mut self, claim: Claim) -> Result<(), Error> {
        self.check()?;
        Ok(self.client.discard(claim)?)
    }

    pub(super) fn cancel(&mut self, operation: OperationId) -> Result<(), Error> {
        self.check()?;
        let OperationName::Session(key) = operation.0 else { return Err(Error::Completed) };
        let handle = self.operations.get(key).and_then(|posted| posted.handle).ok_or(Error::Completed)?;
        match self.client.cancel(handle) {
            // It has ended, which its completion will tell.
            Ok(()) | Err(ClientError::Stale) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn close(&mut self, connection: ConnectionId, abort: bool) -> Result<(), Error> {
        let handle = self.connection(connection)?;
        let asked = if abort { self.client.abort(handle) } else { self.client.close(handle) };
        Ok(asked?)
    }

    /// Closes all connections.
    pub(super) fn close_all(&mut self) {
        for (_, open) in self.connections.iter() {
            if let Some(handle) = open.handle {
                // One that is closing already closes; a full ring closes them when the session ends.
                let _ = self.client.close(handle);
            }
        }
    }

    /// Whether no connection is open, and all datagrams have left.
    pub(super) fn is_quiet(&self) -> bool {
        self.connections.is_empty() && self.datagrams == 0
    }

    #[inline]
    pub(super) fn poll(&mut self) -> Result<Option<Completion>, Error> {
        match self.next() {
            Some(completion) => Ok(Some(completion)),
            None => self.check().map(|()| None),
        }
    }

    /// The next completion. When the session ends, those of all that was posted follow.
    // Never inlined: the call writes the completion to where the caller wants it.
    #[inline(never)]
    pub(super) fn next(&mut self) -> Option<Completion> {
        if self.ready.is_empty()
            && let Some(completion) = self.take()
        {
            return Some(completion);
        }
        self.ready.pop_front()
    }

    pub(super) fn wait(&mut self, bound: Duration) -> Result<Option<Completion>, Error> {
        let begin = Instant::now();
        loop {
            if let Some(completion) = self.poll()? {
                return Ok(Some(completion));
            }
            let waited = begin.elapsed();
            if waited >= bound {
                return Ok(None);
            }
            self.rest(waited, bound - waited);
        }
    }

    /// Prepares for a wait on the descriptor; see [`super::Endpoint::arm`].
    pub(super) fn arm(&mut self) -> Result<bool, Error> {
        if !self.ready.is_empty() || self.over.is_some() {
            return Ok(false);
        }
        match self.client.arm() {
            Ok(armed) => Ok(armed),
            Err(error) => {
                self.end(error.into());
                Ok(false)
            }
        }
    }

    pub(super) fn is_armed(&self) -> bool {
        self.client.is_armed()
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.client.as_fd()
    }

    fn check(&self) -> Result<(), Error> {
        self.over.map_or(Ok(()), Err)
    }

    fn connection(&self, connection: ConnectionId) -> Result<ConnectionHandle, Error> {
        self.check()?;
        let ConnectionName::Session(key) = connection.0 else { return Err(CallError::NotOpen.into()) };
        let open = self.connections.get(key).and_then(|open| open.handle);
        Ok(open.ok_or(CallError::NotOpen)?)
    }

    /// Copies a message into the session's memory, if it is not there already.
    #[inline]
    fn stage(&mut self, buffer: &SendBuffer) -> Result<Option<MemorySlice>, Error> {
        if buffer.len() as u64 > MAX_MESSAGE {
            return Err(CallError::TooLong.into());
        }
        let bytes: &[u8] = match buffer {
            SendBuffer::Bytes(bytes) => bytes,
            SendBuffer::Vec(bytes) => bytes,
            SendBuffer::Memory(slice) => return self.memory.check(slice).map(|()| None),
            SendBuffer::Copied => &[],
        };
        let slice = self.memory.allocate(bytes.len() as u32)?;
        slice.write(0, bytes);
        Ok(Some(slice))
    }

    /// Memory of the session for a message, if the buffer does not lie there.
    #[inline]
    fn room_for(&mut self, buffer: &ReceiveBuffer) -> Result<Option<MemorySlice>, Error> {
        match buffer {
            ReceiveBuffer::Memory(slice) => self.memory.check(slice).map(|()| None),
            other => {
                let len = u32::try_from(other.len()).unwrap_or(u32::MAX);
                self.memory.allocate(len).map(Some)
            }
        }
    }

    /// Memory of the session for a datagram, if the buffer does not lie there: no more than one may have.
    fn room_for_datagram(&mut self, buffer: &ReceiveBuffer) -> Result<Option<MemorySlice>, Error> {
        match buffer {
            ReceiveBuffer::Memory(slice) => self.memory.check(slice).map(|()| None),
            other => self.memory.allocate(other.len().min(MAX_SEGMENT as usize) as u32).map(Some),
        }
    }

    fn give_back(&mut self, part: Option<MemorySlice>) {
        if let Some(slice) = part {
            // It is in use there, as it was allocated for the operation.
            let _ = self.memory.free(slice);
        }
    }

    /// The name of an operation that was submitted; or the buffer of one that was not, which is forgotten.
    #[inline]
    fn submitted(
        &mut self,
        key: Key,
        outcome: Result<OperationHandle, ClientError>,
    ) -> Result<OperationId, (Error, Lent)> {
        match outcome {
            Ok(handle) => {
                if let Some(posted) = self.operations.get_mut(key) {
                    posted.handle = Some(handle);
                }
                Ok(operation_id(key))
            }
            Err(error) => {
                let lent = self.operations.remove(key).map_or(Lent::Nothing, |posted| posted.buffer);
                Err((error.into(), lent))
            }
        }
    }

    /// The next completion in the session's ring. When the session has ended, there is none: those that are left are in
    /// `ready`.
    #[inline]
    fn take(&mut self) -> Option<Completion> {
        while self.over.is_none() {
            match self.client.poll() {
                Ok(None) => return None,
                Ok(Some(event)) => {
                    if let Some(completion) = self.settle(event) {
                        return Some(completion);
                    }
                }
                Err(error) => self.end(error.into()),
            }
        }
        None
    }

    /// The completion that a report stands for, if it stands for one.
    #[inline]
    fn settle(&mut self, Event { context, report }: Event) -> Option<Completion> {
        let key = key(context);
        match report {
            Report::Connected { .. } => {
                let peer = self.connections.get(key)?.peer;
                Some(Completion::Connected { connection: connection_id(key), peer })
            }
            Report::Sent { retransmissions, result, .. } if self.is(key, Posted::is_send) => {
                self.sent(key, retransmissions, result.map_err(Error::from))
            }
            Report::Received { source, tag, header_data, len, offset, more, result, .. }
                if self.is(key, Posted::is_receive) =>
            {
                let arrival = Arrival { source, tag, header_data, len, offset, more };
                self.received(key, arrival, result.map_err(Error::from))
            }
            Report::Peeked { message, claim, .. } if self.is(key, Posted::is_peek) => {
                self.peeked(key, message, claim, Ok(()))
            }
            Report::Closed { result, .. } => self.closed(key, result.map_err(Error::from)),
            Report::Peer { addr, .. } if self.is(key, Posted::is_request) => {
                self.operations.remove(key);
                self.entered = Some((key, Ok(addr)));
                None
            }
            Report::Refused { request, error, .. } => self.refused(key, request, error.into()),
            // Of another kind than the operation, whose buffer must not be lost with it.
            Report::Sent { operation, .. }
            | Report::Received { operation, .. }
            | Report::Peeked { operation, .. }
            | Report::Peer { operation, .. } => {
                let why = DescriptorError::Value("the number of an operation of this kind", operation.into());
                self.end(Error::Broken(ClientError::Nonsense(why)));
                None
            }
        }
    }

    #[inline]
    fn is(&self, key: Key, kind: impl FnOnce(&Posted) -> bool) -> bool {
        self.operations.get(key).is_some_and(kind)
    }

    #[cold]
    fn refused(&mut self, key: Key, request: Request, error: Error) -> Option<Completion> {
        match request {
            Request::Connect => self.closed(key, Err(error)),
            _ if request.posts_operation() => self.fail(key, error),
            // It names an operation or a connection that has ended, which the completion of that tells, or a message that is gone.
            _ => None,
        }
    }

    /// The completion of an operation that has failed.
    #[cold]
    fn fail(&mut self, key: Key, error: Error) -> Option<Completion> {
        match self.operations.get(key)?.buffer {
            Lent::Send(..) | Lent::Datagram(..) => self.sent(key, 0, Err(error)),
            Lent::Receive(..) | Lent::Many(..) => self.received(key, Arrival::default(), Err(error)),
            Lent::Peek => self.peeked(key, None, None, Err(error)),
            Lent::Nothing => {
                self.operations.remove(key);
                self.entered = Some((key, Err(error)));
                None
            }
        }
    }

    fn sent(&mut self, key: Key, retransmissions: u32, result: Result<(), Error>) -> Option<Completion> {
        let Posted { context, buffer, .. } = self.operations.remove(key)?;
        let (buffer, part) = match buffer {
            Lent::Send(buffer, part) => (buffer, part),
            Lent::Datagram(buffer, part) => {
                self.datagrams -= 1;
                (buffer, part)
            }
            _ => return None,
        };
        self.give_back(part);
        Some(Completion::Sent { operation: operation_id(key), context, buffer, retransmissions, result })
    }

    fn received(&mut self, key: Key, arrival: Arrival, result: Result<(), Error>) -> Option<Completion> {
        if let Lent::Many(..) = self.operations.get(key)?.buffer {
            return self.received_one_of_many(key, arrival, result);
        }
        let Posted { context, buffer: Lent::Receive(mut buffer, part), .. } = self.operations.remove(key)?
        else {
            return None;
        };
        let Arrival { source, tag, header_data, len, .. } = arrival;
        if let Some(part) = &part {
            buffer.copy_from(part, 0, len);
        }
        self.give_back(part);
        let (operation, more) = (operation_id(key), false);
        Some(Completion::Received { operation, context, source, tag, header_data, len, buffer, more, result })
    }

    #[cold]
    fn received_one_of_many(
        &mut self,
        key: Key,
        arrival: Arrival,
        result: Result<(), Error>,
    ) -> Option<Completion> {
        let Arrival { source, tag, header_data, len, offset, more } = arrival;
        let posted = self.operations.get_mut(key)?;
        let context = posted.context;
        let Lent::Many(pieces, Some(part)) = &mut posted.buffer else { return None };
        let mut buffer = None;
        if source.is_some() {
            let mut message = pieces.take(offset, len);
            message.copy_from(part, offset, len);
            buffer = Some(message);
        }
        if !more && let Lent::Many(pieces, part) = self.operations.remove(key)?.buffer {
            self.give_back(part);
            buffer.get_or_insert_with(|| pieces.rest());
        }
        let (operation, buffer) = (operation_id(key), buffer.unwrap_or_else(|| Vec::new().into()));
        Some(Completion::Received { operation, context, source, tag, header_data, len, buffer, more, result })
    }

    #[cold]
    fn peeked(
        &mut self,
        key: Key,
        message: Option<Waiting>,
        claim: Option<Claim>,
        result: Result<(), Error>,
    ) -> Option<Completion> {
        let context = self.operations.remove(key)?.context;
        Some(Completion::Peeked { operation: operation_id(key), context, message, claim, result })
    }

    fn closed(&mut self, key: Key, result: Result<(), Error>) -> Option<Completion> {
        let peer = self.connections.remove(key)?.peer;
        Some(Completion::Closed { connection: connection_id(key), peer, result })
    }

    /// Nothing more will come: completes all that was posted, and closes all connections.
    #[cold]
    fn end(&mut self, error: Error) {
        self.over = Some(error);
        let operations: Vec<_> = self.operations.iter().map(|(key, _)| key).collect();
        let connections: Vec<_> = self.connections.iter().map(|(key, _)| key).collect();
        let failed: Vec<_> = operations.into_iter().filter_map(|key| self.fail(key, error)).collect();
        self.ready.extend(failed);
        let closed: Vec<_> = connections.into_iter().filter_map(|key| self.closed(key, Err(error))).collect();
        self.ready.extend(closed);
    }

    /// Rests as [`Idle`] says, having `waited` already, and no longer than `left`.
    fn rest(&mut self, waited: Duration, left: Duration) {
        let Idle::Adaptive { spin, yield_for, sleep } = self.idle else { return std::hint::spin_loop() };
        let waited = waited.as_nanos();
        if waited < u128::from(spin.as_ps() / 1000) {
            std::hint::spin_loop();
        } else if waited < u128::from(spin.plus(yield_for).as_ps() / 1000) {
            std::thread::yield_now();
        } else if let Err(error) = self.client.wait(left.min(Duration::from_nanos(sleep.as_ps() / 1000))) {
            self.end(error.into());
        }
    }
}

/// The context under which the session knows an operation or a connection.
fn word(key: Key) -> u64 {
    u64::from(key.generation) << 32 | u64::from(key.index)
}

fn key(word: u64) -> Key {
    Key { index: word as u32, generation: (word >> 32) as u32 }
}

fn operation_id(key: Key) -> OperationId {
    OperationId(OperationName::Session(key))
}

fn connection_id(key: Key) -> ConnectionId {
    ConnectionId(ConnectionName::Session(key))
}

fn extent(slice: Option<&MemorySlice>) -> Extent {
    slice.map_or(Extent { region: 0, offset: 0, len: 0 }, |slice| Extent {
        region: 0,
        offset: slice.offset(),
        len: slice.len(),
    })
}

#[cfg(test)]
mod tests {
    use weft_stack::port::memory::{MemoryConfig, MemoryPort, pair};
    use weft_stack::worker::session::{SessionConfig, SessionServer};
    use weft_stack::worker::{Strangers, Waker, Worker};

    use super::*;
    use crate::endpoint::{Settings, Setup};
    use crate::port::{AnyPort, OpenPort};

    /// A session with a worker that does not run yet, and the other end of its link.
    struct Served {
        remote: Remote,
        server: SessionServer<AnyPort>,
        worker: Worker<AnyPort>,
        waker: Waker,
        _link: MemoryPort,
    }

    fn served() -> Served {
        let (here, link) = pair(&MemoryConfig::default()).unwrap();
        let open = OpenPort::in_process(AnyPort::Memory(Box::new(here)), 1);
        let settings = Settings { payload: Some(1024), ..Settings::default() };
        let setup = Setup::new(&settings, &open.facts(&settings)).unwrap();
        let (mut worker, info) = setup.worker(open, Addr(0), &[], Strangers::Learn).unwrap();
        let waker = Waker::new().unwrap();
        let mut server = SessionServer::new(&mut worker, 1, waker.clone());
        server.place_peers(info.place_peers().unwrap());
        let client = server.open(&mut worker, &SessionConfig::default(), None).unwrap();
        Served { remote: Remote::new(client, Idle::ADAPTIVE, None), server, worker, waker, _link: link }
    }

    #[test]
    fn a_late_answer_to_one_request_for_a_peer_is_not_taken_for_the_answer_to_the_next() {
        let Served { mut remote, server, worker, waker, _link } = served();
        let late = remote.operations.insert(Posted { handle: None, context: 0, buffer: Lent::Nothing });
        remote.client.peer([127, 0, 0, 7].into(), None, word(late)).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| server.run(worker, |_| ()));
            let peer =
                |remote: &mut Remote, n| remote.peer(&PeerSpec::from(std::net::IpAddr::from([127, 0, 0, n])));
            let (next, first) = (peer(&mut remote, 8), peer(&mut remote, 7));
            waker.stop();
            assert_eq!((first.unwrap(), next.unwrap()), (Addr(1), Addr(2)));
        });
        assert!(remote.operations.is_empty());
    }

    #[test]
    fn a_report_on_an_operation_of_another_kind_ends_the_session_and_loses_no_buffer() {
        let Served { mut remote, .. } = served();
        let receive = remote.receive(vec![0; 9].into(), ReceiveOptions::default()).unwrap();
        let OperationName::Session(key) = receive.0 else { unreachable!() };
        let report = Report::Sent { operation: 3, retransmissions: 0, result: Ok(()) };
        assert!(remote.settle(Event { context: word(key), report }).is_none());
        let Ok(Some(Completion::Received { operation, buffer, result, .. })) = remote.poll() else {
            panic!("the receive completes");
        };
        assert_eq!((operation, buffer.len()), (receive, 9));
        assert!(matches!(result, Err(Error::Broken(_))), "{result:?}");
        assert!(matches!(remote.poll(), Err(Error::Broken(_))));
    }
}
