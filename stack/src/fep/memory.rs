//! The memory that processes expose, and who may access it.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Map;
use super::access::{Accessed, Rights};
use super::admit::Writes;
use super::read::{ExposeError, ExposeRefusal, Exposure};
use crate::buffer::Buffer;
use crate::heap;
use crate::packet::{Addr, Payload};
use crate::rng::Rng;
use crate::ses::Source;
use crate::table::{Key, Table};
use crate::wire::ses::{
    List, Opcode, Placement, RequestFlags, ResponseWithData, ReturnCode, StandardRequest,
};

/// What a process exposes under one key.
#[derive(Debug)]
struct Exposed {
    buffer: Buffer,
    from: Option<Source>,
    base: u64,
    rights: Rights,
    /// Writes to it announce themselves only as far as that is allowed.
    limited: bool,
    accessed: Accessed,
}

/// All exposed memory of an endpoint.
#[derive(Debug, Default)]
pub(super) struct ExposedMemory {
    table: Table<Exposed>,
    /// By process and key.
    by_name: Map<(u16, u64), Key>,
    /// What peers have accessed since the application has asked for it, each once.
    accessed: VecDeque<Key>,
    /// The secret that keys are drawn with, and how many were.
    keys: Option<([u64; 2], u64)>,
    /// Writes of which a part has arrived.
    pub(super) writes: Writes,
    /// How many further writes to memory of which they are limited may be announced.
    announcements: usize,
    /// The lock under which endpoints that expose the same memory perform atomic operations.
    atomics: Option<Arc<Mutex<()>>>,
}

impl ExposedMemory {
    /// See [`Fep::expose`](super::Fep::expose). The process must be open.
    pub(super) fn expose(&mut self, process: u16, exposure: Exposure) -> Result<(), ExposeError> {
        let Exposure { key, buffer, base, rights, from } = exposure;
        if self.by_name.contains_key(&(process, key)) {
            return Err(ExposeError { why: ExposeRefusal::KeyInUse(key), buffer });
        }
        if buffer.is_too_long() {
            return Err(ExposeError { why: ExposeRefusal::TooLong, buffer });
        }
        if matches!(buffer, Buffer::Bytes(_)) && (rights.write || rights.atomic) {
            return Err(ExposeError { why: ExposeRefusal::ReadOnly, buffer });
        }
        let place = self.table.insert(Exposed {
            buffer,
            from,
            base,
            rights,
            limited: false,
            accessed: Accessed { process, key, ..Accessed::default() },
        });
        self.by_name.insert((process, key), place);
        Ok(())
    }

    /// See [`Fep::draw_key`](super::Fep::draw_key). Keys are images of a count under a keyed hash: who sees some learns
    /// nothing of the others, as he would from the outputs of the generator itself.
    pub(super) fn draw_key(&mut self, rng: &mut Rng) -> u64 {
        let (secret, count) = self.keys.get_or_insert_with(|| ([rng.next_u64(), rng.next_u64()], 0));
        *count += 1;
        let mut hasher = DefaultHasher::new();
        (*secret, *count, *secret).hash(&mut hasher);
        hasher.finish()
    }

    /// See [`Fep::withdraw`](super::Fep::withdraw).
    pub(super) fn withdraw(&mut self, process: u16, key: u64) -> Option<Buffer> {
        let place = self.by_name.remove(&(process, key))?;
        let exposed = self.table.remove(place)?;
        if !exposed.accessed.is_empty() {
            self.accessed.retain(|other| *other != place);
        }
        Some(exposed.buffer)
    }

    /// Drops all memory of `process`. Returns whether there was any.
    pub(super) fn withdraw_all(&mut self, process: u16) -> bool {
        let before = self.by_name.len();
        let table = &mut self.table;
        self.by_name.retain(|name, place| {
            let stays = name.0 != process;
            if !stays {
                table.remove(*place);
            }
            stays
        });
        self.accessed.retain(|place| table.get(*place).is_some());
        self.by_name.len() < before
    }

    /// Where the bytes are that `peer` accesses with `request`: all `request_length` of them.
    ///
    /// # Errors
    /// The return code to answer with.
    pub(super) fn find(&self, peer: Addr, request: &StandardRequest) -> Result<(Key, u32), ReturnCode> {
        let name = (request.pid_on_fep, request.match_bits);
        let &place = self.by_name.get(&name).ok_or(ReturnCode::BAD_MKEY)?;
        let exposed = self.table.get(place).ok_or(ReturnCode::BAD_MKEY)?;
        if exposed.from.is_some_and(|from| from != Source::of_message(peer, request.initiator)) {
            return Err(ReturnCode::PERM_VIOLATION);
        }
        let may = match request.opcode {
            Opcode::READ => exposed.rights.read,
            Opcode::WRITE => exposed.rights.write,
            // What else it needs its extension tells: see `may_change`.
            Opcode::FETCHING_ATOMIC => exposed.rights.read,
            _ => exposed.rights.atomic,
        };
        if !may {
            return Err(ReturnCode::PERM_VIOLATION);
        }
        let at = request.buffer_offset.checked_sub(exposed.base).ok_or(ReturnCode::AT_OUT_OF_RANGE)?;
        let end = at.checked_add(u64::from(request.request_length));
        if end.is_none_or(|end| end > u64::from(exposed.buffer.len())) {
            return Err(ReturnCode::AT_OUT_OF_RANGE);
        }
        // It is at most the length of the buffer, which has 32 bits.
        Ok((place, at as u32))
    }

    /// Whether atomic operations may change the memory `place`.
    pub(super) fn may_change(&self, place: Key) -> bool {
        self.table.get(place).is_some_and(|exposed| exposed.rights.atomic)
    }

    /// The memory `place`, to be written to, unless it has been withdrawn.
    pub(super) fn get_mut(&mut self, place: Key) -> Option<&mut Buffer> {
        self.table.get_mut(place).map(|exposed| &mut exposed.buffer)
    }

    /// The memory `place`, to perform an atomic operation on, unless it has been withdrawn. Other endpoints that have the same lock
    /// perform none meanwhile.
    pub(super) fn get_for_atomics(
        &mut self,
        place: Key,
    ) -> Option<(&mut Buffer, Option<MutexGuard<'_, ()>>)> {
        let ExposedMemory { table, atomics, .. } = self;
        let buffer = table.get_mut(place).map(|exposed| &mut exposed.buffer)?;
        // A thread that has panicked under the lock has left nothing behind but bytes.
        Some((buffer, atomics.as_deref().map(|lock| lock.lock().unwrap_or_else(PoisonError::into_inner))))
    }

    /// See [`Fep::share_atomics`](super::Fep::share_atomics).
    pub(super) fn share_atomics(&mut self, lock: Arc<Mutex<()>>) {
        self.atomics = Some(lock);
    }

    /// See [`Fep::allow_announcements`](super::Fep::allow_announcements).
    pub(super) fn allow_announcements(&mut self, more: usize) {
        self.announcements = self.announcements.saturating_add(more);
    }

    /// See [`Fep::limit_announcements`](super::Fep::limit_announcements).
    pub(super) fn limit_announcements(&mut self, process: u16, key: u64) {
        if let Some(exposed) = self.by_name.get(&(process, key)).and_then(|place| self.table.get_mut(*place))
        {
            exposed.limited = true;
        }
    }

    /// Whether the application takes another announcement of a write to the memory `place`.
    pub(super) fn may_announce(&self, place: Key) -> bool {
        self.announcements > 0 || !self.is_limited(place)
    }

    /// A write to the memory `place` is announced.
    pub(super) fn announce(&mut self, place: Key) {
        if self.is_limited(place) {
            self.announcements = self.announcements.saturating_sub(1);
        }
    }

    fn is_limited(&self, place: Key) -> bool {
        self.table.get(place).is_some_and(|exposed| exposed.limited)
    }

    /// The memory `place`, unless it has been withdrawn.
    pub(super) fn get(&self, place: Key) -> Option<&Buffer> {
        self.table.get(place).map(|exposed| &exposed.buffer)
    }

    /// Counts an access to the memory `place`.
    pub(super) fn count(&mut self, place: Key, count: impl FnOnce(&mut Accessed)) {
        let Some(exposed) = self.table.get_mut(place) else { return };
        if exposed.accessed.is_empty() {
            self.accessed.push_back(place);
        }
        count(&mut exposed.accessed);
    }

    /// See [`Fep::next_accessed`](super::Fep::next_accessed).
    pub(super) fn next_accessed(&mut self) -> Option<Accessed> {
        let place = self.accessed.pop_front()?;
        let accessed = &mut self.table.get_mut(place)?.accessed;
        let Accessed { process, key, .. } = *accessed;
        Some(std::mem::replace(accessed, Accessed { process, key, ..Accessed::default() }))
    }

    /// Bytes of heap held, without those of the memory.
    pub(super) fn heap_bytes(&self) -> u64 {
        let accessed = (self.accessed.capacity() * size_of::<Key>()) as u64;
        self.table.heap_bytes() + heap::of_map(&self.by_name) + accessed + self.writes.heap_bytes()
    }

    /// Bytes of the memory itself.
    pub(super) fn payload_bytes(&self) -> u64 {
        self.table.iter().map(|(_, exposed)| heap::of_buffer(&exposed.buffer)).sum()
    }
}

/// Whether `request` is the last one of its read. Those of the same read that follow it are announced in the header data, which
/// mean nothing else here.
pub(super) fn is_last(request: &StandardRequest) -> bool {
    let has_header_data = request.flags.has(RequestFlags::HEADER_DATA);
    !matches!(request.placement, Placement::Start { header_data } if header_data != 0 && !has_header_data)
}

/// Whether `request` is a whole read, and carries nothing.
///
/// # Errors
/// The return code to answer with. `mtu` is the largest payload of a packet: the answer has to fit in one.
pub(super) fn check(request: &StandardRequest, payload: Payload<'_>, mtu: u32) -> Result<(), ReturnCode> {
    let whole = request.flags.has(RequestFlags::WHOLE_MESSAGE);
    if !whole || !payload.is_empty() {
        return Err(ReturnCode::OP_VIOLATION);
    }
    if request.request_length > mtu {
        return Err(ReturnCode::UNSUPPORTED_SIZE);
    }
    Ok(())
}

/// The header of the response with all bytes that `request` asks for.
pub(super) fn header(request: &StandardRequest) -> ResponseWithData {
    ResponseWithData {
        list: List::Expected,
        opcode: ResponseWithData::OPCODE,
        version: 0,
        return_code: ReturnCode::OK,
        msg_id: request.msg_id,
        job_id: request.job_id,
        read_request_msg_id: request.msg_id,
        // At most the largest payload of a packet, which has 14 bits.
        payload_len: request.request_length as u16,
        modified_length: request.request_length,
        msg_offset: 0,
    }
}
