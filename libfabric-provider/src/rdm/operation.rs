//! Operations that are under way, and the entries of those that have ended.

use weft::{OperationId, ReceiveBuffer, SendOptions, Source};

use super::State;
use super::eager::Counted;
use super::kinds::Kind;
use super::notes::Notice;
use super::readings::PieceRead;
use super::remote::Further;
use super::send::HAS_DATA;
use super::stand_in::Fetched;
use crate::abi::AppRoom;
use crate::error::FiError;
use crate::queue::{Entry, Problem};
use crate::sys::{self, FI_ADDR_NOTAVAIL};

/// An operation that is under way.
#[derive(Debug, Default)]
pub(super) struct Operation {
    pub(super) id: Option<OperationId>,
    pub(super) context: usize,
    pub(super) flags: u64,
    pub(super) buf: usize,
    /// The pieces of a receive that has more than one.
    pub(super) pieces: Vec<Piece>,
    /// The places that an access has not come to yet.
    pub(super) further: Option<Box<Further>>,
    pub(super) reported: bool,
    /// A call for injection has begun it: the application has no context for it, and never hears of it again unless it fails.
    pub(super) injected: bool,
    /// Whether it receives many messages.
    pub(super) many: bool,
    /// How a message is sent, and to whom, should it come back unsent.
    pub(super) sending: Option<(Source, SendOptions)>,
    /// The place of a message among all.
    pub(super) order: u64,
    /// The only peer whose messages a receive takes.
    pub(super) from: Option<Source>,
    /// Why a receive that is being cancelled is: its peer is gone.
    pub(super) given_up: Option<FiError>,
    /// It is no operation of the application's, but asks whether this peer is there.
    pub(super) asks: Option<Source>,
    /// It does not ask, but answers that peer's question with this number, and says which process this is.
    pub(super) says_here: Option<u32>,
    /// Its question has a number, so that the peer is to answer.
    pub(super) is_numbered: bool,
    /// It is no operation of the application's, but reads a piece of a message.
    pub(super) reads: Option<PieceRead>,
    /// It is no operation of the application's, but tells a sender that its message is done.
    pub(super) notice: Option<Box<Notice>>,
    /// What a message that was sent at once counts for.
    pub(super) counted: Option<Counted>,
    /// Bytes of a server's memory that it counts for, while the server has it.
    pub(super) memory: Option<u64>,
    /// The peer of a message, and without a server that of an access, which it counts for as long as it has not ended.
    pub(super) to: Option<Source>,
    /// The peer of an access through a server, which it counts for as long.
    pub(super) carried_to: Option<Source>,
    /// The number of what stands for the message that it sends.
    pub(super) stand_in: Option<u16>,
    /// The message that is fetched for a receive.
    pub(super) fetched: Option<Box<Fetched>>,
    /// Whether it is a look that drops its message.
    pub(super) drops: bool,
    /// The kind of a receive that a server has.
    pub(super) kind: Option<Kind>,
}

/// A piece of an application's memory that a message is copied to when it is complete.
pub(super) struct Piece(pub(super) AppRoom);

impl std::fmt::Debug for Piece {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Piece({} bytes)", self.0.as_ref().len())
    }
}

impl Entry {
    /// Notes the tag of a message and the sender's data, if it has any.
    pub(super) fn take_envelope(&mut self, tag: Option<u64>, header_data: u64) {
        self.tag = tag.unwrap_or(0);
        if header_data & HAS_DATA != 0 {
            self.data = header_data & u64::from(u32::MAX);
            self.flags |= sys::FI_REMOTE_CQ_DATA;
        }
    }
}

impl Operation {
    pub(super) fn entry(&self, problem: Option<Problem>) -> Entry {
        // Calls say that there is no room now. What has ended with that has waited for it in vain.
        let lasting = |error| if error == FiError::AGAIN { FiError::NO_MEMORY } else { error };
        let problem = problem.map(|problem| Problem { error: lasting(problem.error), ..problem });
        Entry {
            context: self.context,
            flags: self.flags,
            len: 0,
            buf: self.buf,
            data: 0,
            tag: 0,
            source: FI_ADDR_NOTAVAIL,
            problem,
        }
    }

    /// Whether it is one of the application's.
    pub(super) fn is_of_application(&self) -> bool {
        self.asks.is_none() && self.notice.is_none() && self.reads.is_none()
    }

    /// Whether `fi_cancel` with this context means it. What was injected has no context of its own, but that of its endpoint.
    pub(super) fn is_named(&self, context: usize) -> bool {
        self.context == context && !self.injected && self.is_of_application()
    }

    /// Copies `bytes` to the pieces of a receive that has several, from byte `at` on.
    pub(super) fn scatter_from(&mut self, bytes: &[u8], at: usize) {
        let (mut skip, mut bytes) = (at, bytes);
        for Piece(room) in &mut self.pieces {
            let room = room.as_mut();
            let begin = skip.min(room.len());
            skip -= begin;
            let (now, later) = bytes.split_at(bytes.len().min(room.len() - begin));
            room[begin..begin + now.len()].copy_from_slice(now);
            bytes = later;
        }
    }

    /// Copies the first `len` bytes to the pieces of a receive that has more than one.
    pub(super) fn scatter(&mut self, buffer: &ReceiveBuffer, len: usize) {
        let (mut at, len) = (0, len.min(buffer.len()));
        for Piece(room) in &mut self.pieces {
            let room = room.as_mut();
            let count = room.len().min(len - at);
            match buffer {
                ReceiveBuffer::Memory(slice) => {
                    slice.read(at as u32, &mut room[..count]);
                }
                other => room[..count].copy_from_slice(&other.as_slice().unwrap_or(&[])[at..at + count]),
            }
            at += count;
        }
    }
}

impl State {
    /// Operation `number` was posted, or refused.
    pub(super) fn note_posted(
        &mut self,
        number: usize,
        posted: Result<OperationId, FiError>,
    ) -> Result<(), FiError> {
        match posted {
            Ok(id) => {
                if let Some(operation) = self.operations.get_mut(number) {
                    operation.id = Some(id);
                }
                Ok(())
            }
            Err(error) => {
                self.operations.remove(number);
                Err(error)
            }
        }
    }
}
