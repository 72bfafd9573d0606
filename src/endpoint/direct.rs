//! The worker in the caller's thread: it turns when the caller polls or waits.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use weft_stack::buffer::{Buffer, MAX_MESSAGE};
use weft_stack::cc::{Span, Time};
use weft_stack::event::Counters;
use weft_stack::fep::{self, CallError, ConnectOptions, Receive, Send, Unreachable};
use weft_stack::packet::Addr;
use weft_stack::port::Port;
use weft_stack::ses::Claim;
use weft_stack::worker::session::{Found, HeldConnections};
use weft_stack::worker::{HostAddr, TurnResult, Worker};

use super::buffer::{Boxes, ReceiveBuffer, SendBuffer};
use super::completion::{
    Completion, ConnectionId, ConnectionName, OperationId, OperationName, ReceiveOptions, SendOptions,
};
use super::error::{Error, PeerError, PostError};
use super::memory::{Memory, MemorySlice};
use super::readiness::Readiness;
use crate::port::{AnyPort, PeerAddress, PeerSpec, PortInfo};

/// Bytes of the memory that short messages are copied to.
const COPIES: usize = 1 << 20;

/// First retransmission timeouts that a peer may take to send again: one more than one, as timers are not exact.
const TIMEOUTS: u64 = 2;

/// A worker, and what it tells the application.
pub(super) struct Direct {
    pub(super) worker: Worker<AnyPort>,
    /// None for a worker that was made elsewhere.
    port: Option<PortInfo>,
    process: u16,
    connections: BTreeMap<fep::ConnectionId, Addr>,
    /// Connections to peers whose Ethernet address is being asked for.
    held: HeldConnections,
    /// Completions that did not come from the endpoint, or were taken from it before their turn.
    ready: VecDeque<Completion>,
    pub(super) memory: Memory,
    /// Where messages are that were copied when they were posted.
    pub(super) copies: Memory,
    pub(super) boxes: Boxes,
    readiness: Readiness,
    /// Whether the port announces frames, as somebody may wait for them.
    armed: bool,
    /// Whether the application says how many messages receives for many take.
    allows_many: bool,
    /// Packets for PDCs that had arrived when it was last looked, and since when there were no more.
    heard: (u64, Time),
}

impl Direct {
    pub(super) fn new(
        worker: Worker<AnyPort>,
        port: Option<PortInfo>,
        process: u16,
        memory: Memory,
    ) -> std::io::Result<Direct> {
        Ok(Direct {
            worker,
            port,
            process,
            connections: BTreeMap::new(),
            held: HeldConnections::default(),
            ready: VecDeque::new(),
            memory,
            copies: Memory::default(),
            boxes: Boxes::default(),
            readiness: Readiness::new()?,
            armed: false,
            allows_many: false,
            heard: (0, Time::ZERO),
        })
    }

    pub(super) fn process(&self) -> u16 {
        self.process
    }

    pub(super) fn peer(&mut self, peer: &PeerSpec) -> Result<Addr, PeerError> {
        // The IP address of a peer with a UDP port is not its own alone.
        if peer.port.is_none()
            && let Some(known) = self.worker.book().find(peer.ip)
        {
            self.worker.book_mut().keep(known);
            return Ok(known);
        }
        let address = match &self.port {
            Some(info) => info.meet(self.worker.port_mut(), peer)?,
            None => match peer.mac {
                Some(mac) => PeerAddress::Known(HostAddr { mac, ip: peer.ip }),
                None => PeerAddress::ToBeAsked(peer.ip),
            },
        };
        if let PeerAddress::Known(host) = &address
            && let Some(known) = self.worker.book().find(host.ip)
        {
            self.worker.book_mut().keep(known);
            return Ok(known);
        }
        let addr = match (self.worker.free_addr(), &address) {
            (Err(full), PeerAddress::Known(host)) => {
                self.worker.port_mut().forget_peer(host.ip);
                return Err(full.into());
            }
            (found, _) => found?,
        };
        match address {
            PeerAddress::Known(host) => self.worker.book_mut().insert(addr, host)?,
            PeerAddress::ToBeAsked(ip) => self.worker.meet(addr, ip, None)?,
        }
        Ok(addr)
    }

    pub(super) fn let_go(&mut self, peer: Addr) {
        self.worker.book_mut().let_go(peer);
    }

    /// The error for a call that names a peer which the address book has forgotten.
    #[inline]
    fn why_forgotten(&self, peer: Addr) -> Option<Error> {
        let unknown = || CallError::Unreachable { peer, why: Unreachable::Unknown(peer) }.into();
        self.worker.book().is_forgotten(peer).then(unknown)
    }

    pub(super) fn connect(&mut self, peer: Addr, options: ConnectOptions) -> Result<ConnectionId, Error> {
        let now = self.now();
        let held = match self.worker.resolve_peer(now, peer) {
            Ok(()) => false,
            Err(Unreachable::Resolving { .. }) => true,
            Err(why) => return Err(CallError::Unreachable { peer, why }.into()),
        };
        let fep = self.worker.fep_mut();
        let id = fep.connect_of(self.process, now, peer, options)?;
        let connection = ConnectionId(ConnectionName::Direct(id));
        self.connections.insert(id, peer);
        if held {
            // It has just been opened, and nothing was posted on it.
            let _ = fep.hold(id);
            self.held.add(now, peer, id);
        } else {
            self.ready.push_back(Completion::Connected { connection, peer });
        }
        Ok(connection)
    }

    // Inlined always: a completion or a buffer that is put together and then moved costs more than the call.
    #[inline(always)]
    pub(super) fn send(
        &mut self,
        connection: ConnectionId,
        buffer: SendBuffer,
        options: SendOptions,
    ) -> Result<OperationId, PostError<SendBuffer>> {
        let ConnectionName::Direct(id) = connection.0 else {
            return Err(PostError { error: CallError::NotOpen.into(), buffer });
        };
        if buffer.len() as u64 > MAX_MESSAGE {
            return Err(PostError { error: CallError::TooLong.into(), buffer });
        }
        let SendOptions { tag, header_data, context } = options;
        let buffer = self.boxes.lend_to_send(buffer);
        match self.worker.fep_mut().post_send(id, Send { buffer, tag, header_data, context }) {
            Ok(id) => Ok(OperationId(OperationName::Send(id))),
            Err(refused) => Err(self.refused_send(refused)),
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn refused_send(&mut self, refused: fep::PostError) -> PostError<SendBuffer> {
        let buffer = self.boxes.take_sent(refused.buffer, &mut self.copies);
        PostError { error: refused.error.into(), buffer }
    }

    #[inline]
    pub(super) fn send_copy(
        &mut self,
        connection: ConnectionId,
        bytes: &[u8],
        options: SendOptions,
    ) -> Result<OperationId, Error> {
        if self.copies.size() == 0 {
            self.copies = Memory::private(COPIES).map_err(|_| Error::MemoryFull(bytes.len() as u32))?;
        }
        let slice = self.copies.allocate(bytes.len() as u32)?;
        slice.write(0, bytes);
        self.send(connection, SendBuffer::Memory(slice), options).map_err(|refused| refused.error)
    }

    // Inlined always: a completion or a buffer that is put together and then moved costs more than the call.
    #[inline(always)]
    pub(super) fn receive(
        &mut self,
        buffer: ReceiveBuffer,
        options: ReceiveOptions,
    ) -> Result<OperationId, PostError<ReceiveBuffer>> {
        let ReceiveOptions { matching, from, context } = options;
        if let Some(error) = from.and_then(|from| self.why_forgotten(from.peer)) {
            return Err(PostError { error, buffer });
        }
        let buffer = self.boxes.lend_to_receive(buffer);
        let receive = Receive { buffer, from, matching, context };
        match self.worker.fep_mut().post_receive_of(self.process, receive) {
            Ok(id) => Ok(OperationId(OperationName::Receive(id))),
            Err(refused) => Err(self.refused_receive(refused)),
        }
    }

    pub(super) fn receive_many(
        &mut self,
        buffer: ReceiveBuffer,
        least: NonZeroU32,
        options: ReceiveOptions,
    ) -> Result<OperationId, PostError<ReceiveBuffer>> {
        let ReceiveOptions { matching, from, context } = options;
        if let Some(error) = from.and_then(|from| self.why_forgotten(from.peer)) {
            return Err(PostError { error, buffer });
        }
        if !buffer.can_split() {
            return Err(PostError { error: CallError::NotDivisible.into(), buffer });
        }
        let buffer = self.boxes.lend_to_receive(buffer);
        let receive = Receive { buffer, from, matching, context };
        match self.worker.fep_mut().post_receive_many_of(self.process, receive, least) {
            Ok(id) => Ok(OperationId(OperationName::Receive(id))),
            Err(refused) => Err(self.refused_receive(refused)),
        }
    }

    pub(super) fn allow_many(&mut self, more: u64) -> Result<(), Error> {
        let (fep, process) = (self.worker.fep_mut(), self.process);
        if !std::mem::replace(&mut self.allows_many, true) {
            fep.limit_many(process, 0);
        }
        fep.allow_many(process, more);
        Ok(())
    }

    pub(super) fn peek(&mut self, options: ReceiveOptions, found: Found) -> Result<OperationId, Error> {
        let ReceiveOptions { matching, from, context } = options;
        let (fep, process) = (self.worker.fep_mut(), self.process);
        let (message, claim) = match found {
            Found::Stays => (fep.peek(process, from, matching)?, None),
            Found::IsClaimed | Found::IsDiscarded => match fep.claim(process, from, matching)? {
                Some((claim, message)) => (Some(message), Some(claim)),
                None => (None, None),
            },
        };
        let claim = match (found, claim) {
            (Found::IsDiscarded, Some(claim)) => fep.discard(process, claim).map(|()| None)?,
            (_, claim) => claim,
        };
        let operation = OperationId(OperationName::Peek);
        self.ready.push_back(Completion::Peeked { operation, context, message, claim, result: Ok(()) });
        Ok(operation)
    }

    pub(super) fn receive_claimed(
        &mut self,
        claim: Claim,
        buffer: ReceiveBuffer,
        context: u64,
    ) -> Result<OperationId, PostError<ReceiveBuffer>> {
        let buffer = self.boxes.lend_to_receive(buffer);
        match self.worker.fep_mut().receive_claimed(self.process, claim, buffer, context) {
            Ok(id) => Ok(OperationId(OperationName::Receive(id))),
            Err(refused) => Err(self.refused_receive(refused)),
        }
    }

    pub(super) fn discard(&mut self, claim: Claim) -> Result<(), Error> {
        Ok(self.worker.fep_mut().discard(self.process, claim)?)
    }

    #[cold]
    #[inline(never)]
    pub(super) fn refused_receive(&mut self, refused: fep::PostError) -> PostError<ReceiveBuffer> {
        let buffer = self.boxes.take_received(refused.buffer);
        PostError { error: refused.error.into(), buffer }
    }

    pub(super) fn cancel(&mut self, operation: OperationId) -> Result<(), Error> {
        let cancelled = match operation.0 {
            OperationName::Send(id) => self.worker.fep_mut().cancel_send(id),
            OperationName::Receive(id) => self.worker.fep_mut().cancel_receive(id),
            OperationName::Read(id) => self.worker.fep_mut().cancel_read(id),
            OperationName::Access(id) => self.worker.fep_mut().cancel_access(id),
            OperationName::Peek | OperationName::Session(_) => return Err(Error::Completed),
        };
        match cancelled {
            // Its completion tells how it went.
            Ok(()) | Err(CallError::TooLate) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn close(&mut self, connection: ConnectionId, abort: bool) -> Result<(), Error> {
        let ConnectionName::Direct(id) = connection.0 else { return Err(CallError::NotOpen.into()) };
        let now = self.now();
        let fep = self.worker.fep_mut();
        Ok(if abort { fep.abort(now, id) } else { fep.close(now, id) }?)
    }

    /// The next completion, after a turn of the worker's loop if there is none yet.
    #[inline]
    pub(super) fn poll(&mut self) -> Option<Completion> {
        if self.armed {
            self.disarm();
        }
        if let Some(completion) = self.next() {
            return Some(completion);
        }
        self.turn();
        self.next()
    }

    pub(super) fn wait(&mut self, bound: Duration) -> Option<Completion> {
        if self.armed {
            self.disarm();
        }
        if let Some(completion) = self.next() {
            return Some(completion);
        }
        let bound = Span::from_ps(u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX).saturating_mul(1000));
        let begin = self.now();
        loop {
            let busy = self.turn();
            let completion = self.next();
            let now = self.now();
            let waited = now.since(begin);
            if completion.is_some() || waited >= bound {
                self.worker.rise(None);
                return completion;
            }
            self.worker.rest_at_most(now, busy, None, bound.minus(waited));
        }
    }

    /// Prepares for a wait on the descriptor; see [`super::Endpoint::arm`].
    pub(super) fn arm(&mut self) -> Result<bool, Error> {
        self.armed = true;
        self.worker.port_mut().waitable();
        let busy = self.turn();
        if let Some(completion) = self.next() {
            self.ready.push_front(completion);
        }
        if busy || !self.ready.is_empty() {
            self.disarm();
            return Ok(false);
        }
        let now = self.now();
        let limit = self.worker.sleep_limit(now, Readiness::LONGEST);
        self.readiness.wait_for(self.worker.port_mut().waitable(), limit)?;
        Ok(true)
    }

    pub(super) fn is_armed(&self) -> bool {
        self.armed
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.readiness.as_fd()
    }

    #[cold]
    fn disarm(&mut self) {
        self.armed = false;
        self.worker.port_mut().waited();
    }

    /// Whether no connection is open and nothing has arrived for so long that peers seem to have all their answers: one
    /// whose last acknowledgement was lost sends again within a retransmission timeout.
    pub(super) fn is_quiet(&mut self) -> bool {
        let (now, packets) = (self.now(), packets_for_pdcs(self.worker.fep().counters()));
        if packets != self.heard.0 {
            self.heard = (packets, now);
        }
        let silence = self.worker.fep().config().zones.longest_rto().times(TIMEOUTS);
        self.connections.is_empty()
            && !self.worker.fep().wants_to_transmit()
            && now.since(self.heard.1) >= silence
    }

    /// Asks peers to close the connections that they have to this endpoint, as it is about to go.
    pub(super) fn ask_to_close(&mut self) {
        let now = self.now();
        self.worker.fep_mut().ask_to_close(now);
    }

    /// Closes all connections.
    pub(super) fn close_all(&mut self) {
        let now = self.now();
        for id in self.connections.keys() {
            // One that is closing already closes.
            let _ = self.worker.fep_mut().close(now, *id);
        }
    }

    fn now(&self) -> Time {
        self.worker.clock().now()
    }

    /// One turn of the loop. Returns whether anything happened.
    #[inline]
    fn turn(&mut self) -> bool {
        let turn = self.worker.poll();
        let settled = !self.held.is_empty() && self.settle();
        settled || !turn.is_idle()
    }

    /// One turn of the loop at `now`, not before that of an earlier turn.
    #[inline]
    pub(super) fn turn_at(&mut self, now: Time) -> TurnResult {
        if self.armed {
            self.disarm();
        }
        let mut turn = self.worker.poll_at(now);
        if !self.held.is_empty() {
            // Others may follow in the next turn.
            turn.timers |= self.settle();
        }
        turn
    }

    /// The next completion that is there already.
    // Inlined always: a completion or a buffer that is put together and then moved costs more than the call.
    #[inline(always)]
    pub(super) fn next(&mut self) -> Option<Completion> {
        if !self.ready.is_empty() {
            return self.next_ready();
        }
        // The usual ones are put together here, in place, with nothing in them that a call has returned.
        match self.worker.fep_mut().poll_completion()? {
            fep::Completion::Sent {
                id,
                context,
                buffer: Buffer::Region(slice),
                retransmissions,
                result: Ok(()),
            } if !self.copies.holds(&slice) => Some(Completion::Sent {
                operation: OperationId(OperationName::Send(id)),
                context,
                buffer: SendBuffer::Memory(MemorySlice::from_region_slice(slice)),
                retransmissions,
                result: Ok(()),
            }),
            fep::Completion::Received {
                id,
                context,
                source,
                tag,
                header_data,
                len,
                buffer: Buffer::Region(slice),
                more: false,
                result: Ok(()),
            } => Some(Completion::Received {
                operation: OperationId(OperationName::Receive(id)),
                context,
                source,
                tag,
                header_data,
                len,
                buffer: ReceiveBuffer::Memory(MemorySlice::from_region_slice(slice)),
                more: false,
                result: Ok(()),
            }),
            other => self.other(other),
        }
    }

    // Never inlined: the call writes the completion to where the caller wants it.
    #[inline(never)]
    fn other(&mut self, completion: fep::Completion) -> Option<Completion> {
        self.convert(completion)
    }

    #[cold]
    #[inline(never)]
    fn next_ready(&mut self) -> Option<Completion> {
        self.ready.pop_front()
    }

    /// The endpoint's completion as the application's.
    fn convert(&mut self, completion: fep::Completion) -> Option<Completion> {
        Some(match completion {
            fep::Completion::Sent { id, context, buffer, retransmissions, result } => Completion::Sent {
                operation: OperationId(OperationName::Send(id)),
                context,
                buffer: self.boxes.take_sent(buffer, &mut self.copies),
                retransmissions,
                result: result.map_err(Error::from),
            },
            fep::Completion::Received {
                id,
                context,
                source,
                tag,
                header_data,
                len,
                buffer,
                more,
                result,
            } => Completion::Received {
                operation: OperationId(OperationName::Receive(id)),
                context,
                source,
                tag,
                header_data,
                len,
                buffer: self.boxes.take_received(buffer),
                more,
                result: result.map_err(Error::from),
            },
            fep::Completion::Closed { id, peer, result } => {
                self.connections.remove(&id);
                self.held.remove(peer, id);
                Completion::Closed {
                    connection: ConnectionId(ConnectionName::Direct(id)),
                    peer,
                    result: result.map_err(Error::from),
                }
            }
            access @ (fep::Completion::Read { .. }
            | fep::Completion::Accessed { .. }
            | fep::Completion::Written(_)) => return self.convert_access(access),
        })
    }

    /// Lets connections go whose peers have answered, and gives up those whose peers will not, some in a turn. Returns whether there
    /// were any.
    #[cold]
    fn settle(&mut self) -> bool {
        let now = self.now();
        let settled = self.held.settle(&mut self.worker, now);
        let some = !settled.is_empty();
        for (peer, id, result) in settled {
            // It may have been closed since its peer was found.
            if !self.connections.contains_key(&id) {
                continue;
            }
            match result {
                Ok(()) => {
                    self.worker.fep_mut().release(id);
                    let connection = ConnectionId(ConnectionName::Direct(id));
                    self.ready.push_back(Completion::Connected { connection, peer });
                }
                Err(why) => {
                    self.take_all(None);
                    // Nothing of it has left, so it ends at once, and all that completes now is its own.
                    let _ = self.worker.fep_mut().abort(now, id);
                    self.take_all(Some(CallError::Unreachable { peer, why }.into()));
                }
            }
        }
        some
    }

    /// Takes all completions of the worker's endpoint. `refusal` is the reason for those of a connection on which nothing
    /// was ever sent.
    fn take_all(&mut self, refusal: Option<Error>) {
        while let Some(completion) = self.worker.fep_mut().poll_completion() {
            let Some(mut completion) = self.convert(completion) else { continue };
            if let (Completion::Sent { result, .. } | Completion::Closed { result, .. }, Some(refusal)) =
                (&mut completion, refusal)
            {
                *result = Err(refusal);
            }
            self.ready.push_back(completion);
        }
    }
}

/// A number that grows with every packet that arrives for a PDC, and not with other frames, such as broadcasts. Control
/// packets have no counter; those that a peer repeats until it has an answer are counted by their answers.
fn packets_for_pdcs(counters: &Counters) -> u64 {
    let received = counters.data_received + counters.duplicates_received + counters.trimmed_received;
    let answers = counters.acks_sent + counters.nacks_sent;
    received + answers + counters.acks_received + counters.nacks_received
}
