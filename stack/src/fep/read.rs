//! Reads of a peer's memory, and the memory that processes expose to them: what applications see of both.

use super::access::Rights;
use super::api::{Completion, Failure, SendError};
use super::explain::Answered;
use crate::buffer::Buffer;
use crate::ses::{Operation, SendMessage, Source};
use crate::table::Key;
use crate::wire::ses::ReturnCode;

/// Identifies a posted read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReadId(pub(super) Key);

/// A read to post.
#[derive(Debug)]
pub struct Read {
    /// The memory for the bytes: as many are read as it has.
    pub buffer: Buffer,
    /// The key of the peer's memory.
    pub key: u64,
    /// Offset of the first byte in the peer's memory, bytes.
    pub offset: u64,
    /// The caller's value, returned with the completion.
    pub context: u64,
}

/// Why a read did not bring its bytes. Its buffer may hold some of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("reading from offset {offset} of memory {key:#x}: {why}")]
pub struct ReadError {
    /// The key of the peer's memory.
    pub key: u64,
    /// Offset of the first byte of the read in that memory, bytes.
    pub offset: u64,
    /// What prevented it.
    pub why: ReadFault,
}

/// What prevented a read, a write or an atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadFault {
    /// Its PDC was given up.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// The target answered with an error; or, with [`ReturnCode::CANCELLED`], the connection was aborted here after a
    /// request had left.
    #[error("{}", Answered(*.0))]
    Answered(ReturnCode),
    /// The target acknowledged a request, and did not send the data that it asked for.
    #[error("the target acknowledged a request without sending data")]
    NoData,
    /// Cancelled before any request of it was sent.
    #[error("cancelled")]
    Cancelled,
}

impl From<SendError> for ReadFault {
    fn from(error: SendError) -> ReadFault {
        match error {
            SendError::Failed(failure) => ReadFault::Failed(failure),
            SendError::Answered(code) => ReadFault::Answered(code),
            SendError::Cancelled => ReadFault::Cancelled,
        }
    }
}

/// Memory of a process that peers may access.
#[derive(Debug)]
pub struct Exposure {
    /// The key by which requests name it, of the caller's choice: whoever knows it has access, so it should be one of
    /// [`Fep::draw_key`](super::Fep::draw_key).
    pub key: u64,
    /// The memory. A write to it while it is exposed may reach a reader in part.
    pub buffer: Buffer,
    /// The offset by which requests name its first byte: 0, or its address in a process that tells peers addresses.
    pub base: u64,
    /// What peers may do with it.
    pub rights: Rights,
    /// The only process that may access it; any process of any peer if `None`. An address stands for its process 0.
    pub from: Option<Source>,
}

/// Memory that could not be exposed. It returns the buffer.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct ExposeError {
    /// Why the call was refused.
    pub why: ExposeRefusal,
    /// The memory, as the caller passed it.
    pub buffer: Buffer,
}

/// Why memory could not be exposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExposeRefusal {
    /// The process is not open.
    #[error("process {0} is not open")]
    ProcessNotOpen(u16),
    /// The process exposes other memory with this key.
    #[error("the process exposes other memory with key {0:#x}")]
    KeyInUse(u64),
    /// It is to be written to, and is [`Buffer::Bytes`].
    #[error("memory that is only read from cannot be exposed to writes and atomic operations")]
    ReadOnly,
    /// The memory is longer than [`MAX_MESSAGE`](crate::buffer::MAX_MESSAGE).
    #[error("memory with one key has at most {} bytes", crate::buffer::MAX_MESSAGE)]
    TooLong,
}

/// The completion of the read `id`, which is `message`. Ok stands for the end of all its requests.
#[inline(never)]
pub(super) fn completion(message: SendMessage, id: Key, result: Result<(), SendError>) -> Completion {
    let lacks_data = message.lacks_data();
    let SendMessage { operation, context, buffer, retransmissions, .. } = message;
    let (key, offset) = match operation {
        Operation::Read { key, offset, .. } => (key, offset),
        _ => (0, 0),
    };
    let result = match result {
        Ok(()) if lacks_data => Err(ReadFault::NoData),
        result => result.map_err(ReadFault::from),
    };
    let result = result.map_err(|why| ReadError { key, offset, why });
    Completion::Read { id: ReadId(id), context, buffer, retransmissions, result }
}
