//! Accesses to remote memory, and memory that peers access.

use std::sync::Arc;
use std::{fmt, vec};

use weft::core::{Buffer, Exposure};
use weft::{
    Atomic, AtomicOp, AtomicType, Completion, Endpoint, Error, OwnedBytes, ReceiveBuffer, RemoteMemory,
    Source, Written,
};

use super::notes;
use super::operation::Piece;
use super::pending::Pending;
use super::{Binding, Bindings, Operation, OutgoingBytes, Rdm, Room, State, Wanted, report};
use crate::abi::zeroed;
use crate::counter::Counter;
use crate::error::{FiError, lock};
use crate::memory::{Registration, lock_of_atomics};
use crate::queue::{Entry, Problem};
use crate::sys::{self, FI_ADDR_NOTAVAIL, fi_addr_t};

/// An access to a peer's memory.
pub(crate) struct Access {
    pub(crate) peer: fi_addr_t,
    pub(crate) addr: u64,
    pub(crate) key: u64,
    pub(crate) context: usize,
    pub(crate) wanted: Wanted,
    /// More will follow at once: nothing has to leave yet.
    pub(crate) more: bool,
    pub(crate) what: What,
    /// Accesses to further places, in their order.
    pub(crate) further: Vec<Part>,
}

/// The part of an access that concerns one place of several.
pub(crate) struct Part {
    pub(crate) addr: u64,
    pub(crate) key: u64,
    pub(crate) what: What,
}

/// The parts of an access that are left. Each begins when the one before has ended well, so that an access that fails has not
/// gone beyond that place, and data beside a write are announced when all bytes are there.
pub(super) struct Further {
    peer: Source,
    parts: vec::IntoIter<Part>,
}

impl fmt::Debug for Further {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Further({} parts)", self.parts.len())
    }
}

pub(crate) enum What {
    Read(Room),
    Write { bytes: OutgoingBytes, data: Option<u64> },
    Atomic(AtomicCall),
}

pub(crate) struct AtomicCall {
    pub(crate) op: AtomicOp,
    pub(crate) datatype: AtomicType,
    pub(crate) operands: Vec<u8>,
    pub(crate) compare: Option<u128>,
    /// For what was there before, if that is wanted.
    pub(crate) room: Option<Room>,
}

impl What {
    /// The capabilities that it needs. Atomic operations but those that only read change memory; those that fetch read it.
    fn needs(&self) -> u64 {
        match self {
            What::Read(_) => sys::FI_RMA | sys::FI_READ,
            What::Write { .. } => sys::FI_RMA | sys::FI_WRITE,
            What::Atomic(AtomicCall { op: AtomicOp::READ, .. }) => sys::FI_ATOMIC | sys::FI_READ,
            What::Atomic(AtomicCall { room: Some(_), .. }) => sys::FI_ATOMIC | sys::FI_READ | sys::FI_WRITE,
            What::Atomic(_) => sys::FI_ATOMIC | sys::FI_WRITE,
        }
    }
}

impl Rdm {
    /// Accesses the memory of a peer.
    ///
    /// # Errors
    /// [`FiError::AGAIN`] if there is no room for it now, [`FiError::NO_OPERATION`] if the endpoint was not opened for it.
    pub(crate) fn access(&self, access: Access) -> Result<(), FiError> {
        self.caps.demand(access.what.needs())?;
        let more = access.more;
        let mut state = lock(&self.state)?;
        let posted = state.access(access);
        self.follow(&mut state, posted, more)
    }

    /// Lets peers access memory, as far as the endpoint was opened for that.
    pub(crate) fn expose(&self, registration: &Registration) -> Result<(), FiError> {
        let registration =
            &Registration { rights: self.caps.limit(registration.rights), ..registration.clone() };
        let mut state = lock(&self.state)?;
        if state.expose_carried(registration) {
            return Ok(());
        }
        state.allow_announcements()?;
        // Without one there are no entries of data.
        let has_queue = state.bindings.receive.is_some();
        let Some(endpoint) = &mut state.endpoint else { return Ok(()) };
        let process = endpoint.process();
        let worker = endpoint.worker_mut().ok_or(FiError::NOT_THERE)?;
        let buffer = match &registration.bytes {
            Some(bytes) => Buffer::Region(bytes.clone()),
            None => Buffer::Heap(Vec::new()),
        };
        let Registration { key, base, rights, .. } = *registration;
        let fep = worker.fep_mut();
        fep.share_atomics(lock_of_atomics().clone());
        let exposed = fep.expose(process, Exposure { key, buffer, base, rights, from: None });
        exposed.map_err(|refused| FiError::from(&Error::from(refused.why)))?;
        if has_queue {
            worker.fep_mut().limit_announcements(process, key);
        }
        Ok(())
    }

    /// Counts what peers write to the memory under this key, if the endpoint was opened for that.
    pub(crate) fn count_writes(self: &Arc<Rdm>, key: u64, counter: &Arc<Counter>) -> Result<(), FiError> {
        if !self.caps.counts_peers {
            return Ok(());
        }
        counter.endpoints().attach(self)?;
        lock(&self.state)?.bindings.of_memory.insert(key, counter.clone());
        Ok(())
    }

    /// Takes memory back: nothing refers to it any more.
    pub(crate) fn withdraw(&self, key: u64) -> Result<(), FiError> {
        let mut state = lock(&self.state)?;
        // What has been done until now counts; if it cannot be counted, peers lose their access nevertheless.
        let counted = state.count_accesses();
        state.bindings.of_memory.remove(&key);
        if state.withdraw_carried(key) {
            return counted;
        }
        let Some(endpoint) = &mut state.endpoint else { return counted };
        let process = endpoint.process();
        let worker = endpoint.worker_mut().ok_or(FiError::NOT_THERE)?;
        if worker.fep_mut().withdraw(process, key).is_some() {
            // Packets that refer to it are recalled at the end of a turn.
            worker.poll();
        }
        state.take_ended(self.caps.names_source).and(counted)
    }
}

impl State {
    fn access(&mut self, access: Access) -> Result<(), FiError> {
        let Access { peer, addr, key, context, wanted, what, further, .. } = access;
        let binding = self.ready(|bindings| &bindings.transmit)?;
        if !binding.queue.has_room()? {
            return Err(FiError::AGAIN);
        }
        let reported = wanted.is_reported(binding.selective);
        let peer = self.peer(peer)?;
        if !self.counts_of_accesses().admits(peer) {
            return Err(FiError::AGAIN);
        }
        let (to, carried_to) = if self.carrier.is_some() { (None, Some(peer)) } else { (Some(peer), None) };
        let flags = match &what {
            What::Read(_) => sys::FI_RMA | sys::FI_READ,
            What::Write { .. } => sys::FI_RMA | sys::FI_WRITE,
            What::Atomic(AtomicCall { room: Some(_), .. }) => sys::FI_ATOMIC | sys::FI_READ,
            What::Atomic(_) => sys::FI_ATOMIC | sys::FI_WRITE,
        };
        let further = (!further.is_empty()).then(|| Box::new(Further { peer, parts: further.into_iter() }));
        let injected = wanted.is_injected();
        let operation =
            Operation { context, flags, reported, injected, further, to, carried_to, ..Operation::default() };
        let number = self.operations.insert(operation);
        let memory = RemoteMemory { key, offset: addr };
        self.sends += 1;
        self.counts_of_accesses().begin(peer);
        let posted = match self.carrier {
            Some(_) => self.carry(peer, memory, what, number),
            None => self.post_access(peer, memory, what, number),
        };
        if let Err(error) = posted {
            self.sends -= 1;
            self.counts_of_accesses().end(peer);
            self.counts_of_accesses().refuse(error);
            self.operations.remove(number);
        }
        posted
    }

    /// What accesses count for: without a server they are among the operations of their peer.
    fn counts_of_accesses(&mut self) -> &mut Pending {
        match self.carrier {
            Some(_) => &mut self.carried_accesses,
            None => &mut self.pending,
        }
    }

    fn post_access(
        &mut self,
        peer: weft::Source,
        to: RemoteMemory,
        what: What,
        number: usize,
    ) -> Result<(), FiError> {
        let State { endpoint, peers, operations, .. } = self;
        let endpoint = endpoint.as_mut().ok_or(FiError::BAD_STATE)?;
        let operation = operations.get_mut(number).ok_or(FiError::OTHER)?;
        // Not behind messages of the application, which may wait there until the peer receives them.
        let (connections, context) = (&mut peers.accesses, number as u64);
        let id = match what {
            What::Read(room) => {
                let mut buffer = Some(ReceiveBuffer::from(match room {
                    Room::One(room) => OwnedBytes::new(room),
                    Room::Several(rooms) => {
                        let len = rooms.iter().map(|room| room.as_ref().len()).sum();
                        operation.pieces = rooms.into_iter().map(Piece).collect();
                        OwnedBytes::new(zeroed(len)?)
                    }
                }));
                connections.post(endpoint, peer, |endpoint, connection| {
                    let taken = buffer.take().ok_or(Error::Completed)?;
                    endpoint.read(connection, taken, to, context).map_err(|refused| {
                        buffer = Some(refused.buffer);
                        refused.error
                    })
                })
            }
            What::Write { bytes, data } => {
                let data = data.map(|data| data & u64::from(u32::MAX));
                let mut buffer = Some(bytes.into_buffer(endpoint)?);
                connections.post(endpoint, peer, |endpoint, connection| {
                    let taken = buffer.take().ok_or(Error::Completed)?;
                    endpoint.write(connection, taken, to, data, context).map_err(|refused| {
                        buffer = Some(refused.buffer);
                        refused.error
                    })
                })
            }
            What::Atomic(AtomicCall { op, datatype, operands, compare, room }) => {
                let fetch = room.is_some();
                operation.pieces = match room {
                    Some(Room::One(room)) => vec![Piece(room)],
                    Some(Room::Several(rooms)) => rooms.into_iter().map(Piece).collect(),
                    None => Vec::new(),
                };
                let RemoteMemory { key, offset } = to;
                let atomic = Atomic { op, datatype, operands, compare, fetch, key, offset, context };
                connections
                    .post(endpoint, peer, |endpoint, connection| endpoint.atomic(connection, atomic.clone()))
            }
        }?;
        operation.id = Some(id);
        Ok(())
    }

    /// Reports the end of an access, or that of one that a peer announces.
    pub(super) fn end_access(&mut self, completion: Completion, names_source: bool) -> Result<(), FiError> {
        let (context, buffer, result) = match completion {
            Completion::Read { context, buffer, result, .. } => {
                let operation = self.operations.get_mut(context as usize);
                if let Some(read) = operation.and_then(|operation| operation.reads) {
                    self.operations.remove(context as usize);
                    return self.piece_ended(read, &buffer, result);
                }
                (context, Some(buffer), result)
            }
            Completion::Wrote { context, buffer, result, .. } => {
                self.take_back(&buffer);
                (context, None, result)
            }
            Completion::Atomic { context, fetched, result, .. } => {
                (context, Some(ReceiveBuffer::Vec(fetched)), result)
            }
            Completion::Written(note) if notes::is_key(note.key) => return self.take_note(&note),
            Completion::Written(written) => return self.announce(&written, names_source),
            _ => return Ok(()),
        };
        let (number, mut buffer) = (context as usize, buffer);
        let went_on = if result.is_ok() { self.go_on(number, &mut buffer) } else { Ok(false) };
        if went_on == Ok(true) {
            return Ok(());
        }
        let Some(mut operation) = self.operations.remove(number) else { return Ok(()) };
        if let Some(peer) = operation.asks {
            return self.question_ended(peer, &operation, result);
        }
        if let Some(notice) = operation.notice {
            self.notice_ended(*notice, result);
            return Ok(());
        }
        self.sends = self.sends.saturating_sub(1);
        self.end_pending(&operation);
        if let (Some(buffer), true) = (&buffer, result.is_ok() && went_on.is_ok()) {
            operation.scatter(buffer, buffer.len());
        }
        let error = went_on.err().or(result.err().map(|error| FiError::from(&error)));
        self.report_access(&operation, error)
    }

    /// An access has ended.
    pub(super) fn report_access(&self, operation: &Operation, error: Option<FiError>) -> Result<(), FiError> {
        let entry = operation.entry(error.map(|error| Problem { error, beyond: 0 }));
        let Bindings { transmit, read, written, .. } = &self.bindings;
        let counter = if operation.flags & sys::FI_READ != 0 { read } else { written };
        report(transmit, counter, operation.reported, entry)
    }

    /// Begins the next part of an access whose last one has ended well with `buffer`. Returns whether there is one.
    ///
    /// # Errors
    /// It cannot begin, so that the access has failed.
    pub(super) fn go_on(
        &mut self,
        number: usize,
        buffer: &mut Option<ReceiveBuffer>,
    ) -> Result<bool, FiError> {
        let Some(operation) = self.operations.get_mut(number) else { return Ok(false) };
        let Some(further) = &mut operation.further else { return Ok(false) };
        let Some(Part { addr, key, what }) = further.parts.next() else { return Ok(false) };
        let peer = further.peer;
        if let Some(buffer) = buffer.take() {
            operation.scatter(&buffer, buffer.len());
        }
        operation.pieces.clear();
        let memory = RemoteMemory { key, offset: addr };
        let begun = match self.carrier {
            Some(_) => self.hand_over(peer, memory, what, number),
            None => self.post_access(peer, memory, what, number),
        };
        begun.map(|()| true)
    }

    /// Counts what peers have done with registered memory, where the worker does it.
    pub(super) fn count_accesses(&mut self) -> Result<(), FiError> {
        let Some(worker) = self.endpoint.as_mut().and_then(Endpoint::worker_mut) else { return Ok(()) };
        while let Some(accessed) = worker.fep_mut().next_accessed() {
            // The application counts what peers do with its own memory.
            let key = accessed.key;
            if self.bindings.count_accesses(key) && !notes::is_key(key) && !self.stand_ins.lends(key) {
                self.bindings.count(&accessed)?;
            }
        }
        Ok(())
    }

    /// A peer has written, with data for an entry.
    pub(super) fn announce(&mut self, written: &Written, names_source: bool) -> Result<(), FiError> {
        let source = if names_source { self.number_of(written.source)? } else { FI_ADDR_NOTAVAIL };
        let entry = Entry {
            context: 0,
            flags: sys::FI_RMA | sys::FI_REMOTE_WRITE | sys::FI_REMOTE_CQ_DATA,
            len: written.len as usize,
            buf: 0,
            data: written.data,
            tag: 0,
            source,
            problem: None,
        };
        report(&self.bindings.receive, &None, true, entry)?;
        self.expected_announcements = self.expected_announcements.saturating_sub(1);
        self.allow_announcements()
    }

    /// Lets as many further writes with data in as the queue of their entries has room for, where the worker performs accesses. While
    /// none may come, the endpoint looks at the queue again each time that it works.
    pub(super) fn allow_announcements(&mut self) -> Result<(), FiError> {
        let Some(Binding { queue, .. }) = &self.bindings.receive else { return Ok(()) };
        let Some(worker) = self.endpoint.as_mut().and_then(Endpoint::worker_mut) else { return Ok(()) };
        let more = queue.room()?.saturating_sub(self.expected_announcements);
        worker.fep_mut().allow_announcements(more);
        self.expected_announcements += more;
        self.refuses_announcements = self.expected_announcements == 0;
        Ok(())
    }
}
