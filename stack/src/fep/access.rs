//! Writes and atomic operations on a peer's memory: what applications see of them.

use core::fmt;

use super::api::{Completion, SendError};
use super::read::ReadFault;
use crate::buffer::Buffer;
use crate::ses::{Operation, SendMessage, Source, supports};
use crate::table::Key;
use crate::wire::ses::{AtomicExtension, AtomicOp, AtomicType, CompareSwapExtension, Extension};

/// Identifies a posted write or atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AccessId(pub(super) Key);

/// What peers may do with exposed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Rights {
    /// Read it, also by atomic operations that only fetch.
    pub read: bool,
    /// Write to it.
    pub write: bool,
    /// Perform other atomic operations on it. Those that fetch need `read` as well.
    pub atomic: bool,
}

impl Rights {
    /// To read it only.
    pub const READ: Rights = Rights { read: true, write: false, atomic: false };
    /// All of them.
    pub const ALL: Rights = Rights { read: true, write: true, atomic: true };
}

/// How often peers have accessed memory that a process exposes, since this was asked for last. Each access that has succeeded is
/// counted once, however often its packets have come: a write when all its bytes are there, an atomic operation when it was
/// done, a read when its last request was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Accessed {
    /// The process that exposes the memory.
    pub process: u16,
    /// Its key.
    pub key: u64,
    /// Reads, atomic ones included.
    pub reads: u64,
    /// Writes, and atomic operations that fetch nothing.
    pub writes: u64,
    /// Other atomic operations that fetch what was there before.
    pub fetches: u64,
}

impl Accessed {
    /// Whether nobody has accessed it.
    pub(super) fn is_empty(&self) -> bool {
        self.reads | self.writes | self.fetches == 0
    }
}

/// A write to post.
#[derive(Debug)]
pub struct Write {
    /// The bytes to write.
    pub buffer: Buffer,
    /// The key of the peer's memory.
    pub key: u64,
    /// Offset of the first byte in the peer's memory, bytes.
    pub offset: u64,
    /// If it is to be announced at the peer with [`Completion::Written`] once all bytes are there: the value to announce.
    pub data: Option<u64>,
    /// The caller's value, returned with the completion.
    pub context: u64,
}

/// An atomic operation to post, on one value or several that follow each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Atomic {
    /// The operation.
    pub op: AtomicOp,
    /// What it works on.
    pub datatype: AtomicType,
    /// The operands, one for each value, each with its lowest byte first: with a [`Atomic::compare`] value the one to store.
    /// For [`AtomicOp::READ`] as many bytes as are to be read, of any content.
    pub operands: Vec<u8>,
    /// The value to compare with, or the mask, of operations that have one: those that
    /// [`have operands`](AtomicOp::has_operands). They work on one value.
    pub compare: Option<u128>,
    /// Whether the values from before the operation come back.
    pub fetch: bool,
    /// The key of the peer's memory.
    pub key: u64,
    /// Offset of the first value in the peer's memory, bytes.
    pub offset: u64,
    /// The caller's value, returned with the completion.
    pub context: u64,
}

/// Why an atomic operation could not be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AtomicError {
    /// There is no such operation on this datatype; or it lacks the value to compare with, or has one in vain.
    #[error("operation {:#x} does not exist for datatype {:#x} with these operands", op.0, datatype.0)]
    Unsupported {
        /// The operation.
        op: AtomicOp,
        /// The datatype.
        datatype: AtomicType,
    },
    /// The operands are no whole number of values, none, or more than fit in a packet.
    #[error("{len} bytes of operands: expected 1 to {most} values of {size} bytes")]
    Length {
        /// Bytes of operands.
        len: usize,
        /// Bytes of a value.
        size: usize,
        /// The largest number of values.
        most: usize,
    },
    /// The connection takes nothing.
    #[error(transparent)]
    Call(#[from] super::CallError),
}

impl Atomic {
    /// The largest number of values of one operation, where packets have payloads of at most `mtu` bytes. 0 if it is not
    /// supported.
    pub fn most_values(op: AtomicOp, datatype: AtomicType, mtu: u32) -> usize {
        match datatype.size() {
            Some(_) if !supports(op, datatype) => 0,
            Some(size) if op.has_operands() => usize::from(mtu as usize >= CompareSwapExtension::LEN + size),
            Some(size) => (mtu as usize).saturating_sub(AtomicExtension::LEN) / size,
            None => 0,
        }
    }

    /// The payload that asks for it, with room for the values that come back, and what it is to the initiator.
    pub(super) fn encode(self, mtu: u32) -> Result<(Vec<u8>, Operation), AtomicError> {
        let Atomic { op, datatype, operands, compare, fetch, key, offset, .. } = self;
        let unsupported = AtomicError::Unsupported { op, datatype };
        let size = datatype.size().filter(|_| supports(op, datatype)).ok_or(unsupported)?;
        if compare.is_some() != op.has_operands() {
            return Err(unsupported);
        }
        let most = Atomic::most_values(op, datatype, mtu);
        let len = operands.len();
        if len == 0 || !len.is_multiple_of(size) || len / size > most {
            return Err(AtomicError::Length { len, size, most });
        }
        let atomic = AtomicExtension { op, datatype: datatype.0, semantic: 0 };
        let mut padded = [0; 16];
        let extension = match compare {
            Some(compare) => {
                padded[..len].copy_from_slice(&operands);
                Extension::CompareSwap(CompareSwapExtension {
                    atomic,
                    compare,
                    swap: u128::from_le_bytes(padded),
                })
            }
            None => Extension::Atomic(atomic),
        };
        let head = extension.encoded_len();
        let mut payload = vec![0; head];
        // There is room, and the extension suits the operation.
        if extension.emit(&mut payload).is_err() {
            return Err(unsupported);
        }
        let carries = compare.is_none() && op != AtomicOp::READ;
        let carried = if carries { head + len } else { head };
        payload.extend(operands);
        // Both are at most the MTU, which has 14 bits.
        let (carried, len) = (carried as u16, len as u16);
        Ok((payload, Operation::Atomic { key, offset, carried, len, fetch }))
    }
}

/// What an access was to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessKind {
    /// To write.
    Write,
    /// To perform an atomic operation.
    Atomic,
}

/// Why a write or an atomic operation failed. A write may have changed some of the bytes, unless the target refused it for
/// its key, its rights or its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} offset {offset} of memory {key:#x}: {why}")]
pub struct AccessError {
    /// What it was to do.
    pub kind: AccessKind,
    /// The key of the peer's memory.
    pub key: u64,
    /// Offset of the first byte in that memory, bytes.
    pub offset: u64,
    /// What prevented it.
    pub why: ReadFault,
}

impl fmt::Display for AccessKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AccessKind::Write => "writing to",
            AccessKind::Atomic => "an atomic operation at",
        })
    }
}

/// A peer's write with a value to announce. All its bytes are in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// The process whose memory it is.
    pub process: u16,
    /// Who wrote.
    pub source: Source,
    /// The key of the memory.
    pub key: u64,
    /// Offset of the first byte written, bytes.
    pub offset: u64,
    /// Bytes written.
    pub len: u32,
    /// The writer's value.
    pub data: u64,
}

/// The completion of the write or atomic operation `id`, which is `message`.
#[inline(never)]
pub(super) fn completion(message: SendMessage, id: Key, result: Result<(), SendError>) -> Completion {
    let lacks_data = message.lacks_data();
    let SendMessage { operation, context, buffer, retransmissions, .. } = message;
    let (kind, key, offset, buffer) = match operation {
        Operation::Atomic { key, offset, len, fetch, .. } => {
            let fetched = match buffer {
                Buffer::Heap(mut payload) if fetch => payload.split_off(payload.len() - usize::from(len)),
                _ => Vec::new(),
            };
            (AccessKind::Atomic, key, offset, Buffer::Heap(fetched))
        }
        Operation::Write { key, offset, .. } | Operation::Read { key, offset, .. } => {
            (AccessKind::Write, key, offset, buffer)
        }
        Operation::Send { .. } => (AccessKind::Write, 0, 0, buffer),
    };
    let result = match result {
        Ok(()) if lacks_data => Err(ReadFault::NoData),
        result => result.map_err(ReadFault::from),
    };
    let result = result.map_err(|why| AccessError { kind, key, offset, why });
    Completion::Accessed { id: AccessId(id), kind, context, buffer, retransmissions, result }
}
