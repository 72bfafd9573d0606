//! Matching: the messages that a receive accepts.

use core::num::NonZeroU32;

use crate::buffer::Buffer;
use crate::packet::Addr;
use crate::wire::ses::MAX_PROCESS;

/// Identifier of a posted receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReceiveId(pub u64);

/// The sender of messages: a process of an endpoint. Where libfabric has one address, this is it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Source {
    /// Address of the endpoint.
    pub peer: Addr,
    /// The process of that endpoint, at most [`MAX_PROCESS`]; 0 where an endpoint has one application.
    pub process: u16,
}

impl Source {
    /// The sender of a message of `peer` whose packets have `initiator` in their headers.
    ///
    /// Endpoints of this kind put their process there (docs/wire.md). A larger number is another implementation's: its
    /// messages are those of process 0, so that a receive for the peer takes them.
    #[inline]
    pub(crate) fn of_message(peer: Addr, initiator: u32) -> Source {
        let process = u16::try_from(initiator).ok().filter(|process| *process <= MAX_PROCESS);
        Source { peer, process: process.unwrap_or(0) }
    }
}

/// Process 0 of the endpoint.
impl From<Addr> for Source {
    fn from(peer: Addr) -> Source {
        Source { peer, process: 0 }
    }
}

/// The messages that a receive accepts, apart from their sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matching {
    /// Untagged messages.
    Untagged,
    /// Tagged messages whose tag equals `tag` in all bits that `ignore` does not mask.
    Tagged {
        /// The tag wanted.
        tag: u64,
        /// Mask of the bits that are not compared.
        ignore: u64,
    },
}

impl Matching {
    /// Whether all bits of a tag matter.
    #[inline]
    pub fn is_exact(&self) -> bool {
        matches!(self, Matching::Untagged | Matching::Tagged { ignore: 0, .. })
    }
}

/// A receive: memory for one message, or for many.
#[derive(Debug)]
pub struct Posted {
    /// Identifier of the receive; later receives have larger ones.
    pub id: ReceiveId,
    /// Accepts only messages of this sender; of any sender if `None`.
    pub from: Option<Source>,
    /// Accepts only these messages.
    pub matching: Matching,
    /// Memory for the message.
    pub buffer: Buffer,
    /// The caller's value, returned at completion.
    pub context: u64,
    /// It takes messages one after the other, each at the beginning of what is left of the memory, until less than so
    /// many bytes are left; `None` if it takes one message.
    pub many: Option<NonZeroU32>,
}

impl Matching {
    /// Whether a receive like this from `from`, or any sender, accepts a message of `source` with `tag`.
    #[inline]
    pub(super) fn takes(self, from: Option<Source>, source: Source, tag: Option<u64>) -> bool {
        let matches = match (self, tag) {
            (Matching::Untagged, None) => true,
            (Matching::Tagged { tag, ignore }, Some(theirs)) => (tag ^ theirs) & !ignore == 0,
            _ => false,
        };
        matches && from.is_none_or(|from| from == source)
    }
}

impl Posted {
    /// Whether the receive accepts a message of `source` with `tag`.
    #[inline]
    pub(super) fn takes(&self, source: Source, tag: Option<u64>) -> bool {
        self.matching.takes(self.from, source, tag)
    }

    /// Takes the whole receive out; what stays behind has no memory.
    pub(super) fn take(&mut self) -> Posted {
        let Posted { id, from, matching, context, many, .. } = *self;
        Posted { id, from, matching, buffer: self.take_buffer(), context, many }
    }

    /// Takes its memory out; the receive has none then.
    #[inline]
    pub(super) fn take_buffer(&mut self) -> Buffer {
        std::mem::replace(&mut self.buffer, Buffer::Virtual(0))
    }

    /// The part of a receive for many messages that one of `len` bytes gets; the rest stays for others. `None` if too
    /// little would be left: the message gets all.
    #[cold]
    pub(super) fn split(&mut self, len: u32) -> Option<Posted> {
        let left = self.buffer.len().checked_sub(len)?;
        self.many.filter(|least| left >= least.get())?;
        let buffer = self.buffer.split_to(len)?;
        let Posted { id, from, matching, context, .. } = *self;
        Some(Posted { id, from, matching, buffer, context, many: self.many })
    }
}
