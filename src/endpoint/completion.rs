//! Operations, connections and their completions.

use bytes::Bytes;
use weft_stack::fep::{self, AccessId, ReadId, SendId, Written};
use weft_stack::packet::Addr;
use weft_stack::ses::{Claim, Matching, ReceiveId, Source, Waiting};
use weft_stack::table::Key;

use super::Error;
use super::buffer::{ReceiveBuffer, SendBuffer};

/// Names a connection of an endpoint, until [`Completion::Closed`]. It means nothing to other endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub(super) ConnectionName);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum ConnectionName {
    Direct(fep::ConnectionId),
    Session(Key),
}

/// Names an operation of an endpoint, such as a message that was posted, until its completion. It means nothing to
/// other endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperationId(pub(super) OperationName);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum OperationName {
    Send(SendId),
    Receive(ReceiveId),
    Read(ReadId),
    Access(AccessId),
    /// A look at waiting messages, which has ended already.
    Peek,
    Session(Key),
}

/// How a message is sent. Default: untagged, with header data 0 and context 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SendOptions {
    /// The tag that receives match, if the message is to have one.
    pub tag: Option<u64>,
    /// 64 bits for the receiver's completion.
    pub header_data: u64,
    /// A word of the caller's that the completion carries.
    pub context: u64,
}

impl SendOptions {
    /// The same with a tag.
    #[must_use]
    pub fn tag(self, tag: u64) -> SendOptions {
        SendOptions { tag: Some(tag), ..self }
    }

    /// The same with 64 bits for the receiver's completion.
    #[must_use]
    pub fn header_data(self, header_data: u64) -> SendOptions {
        SendOptions { header_data, ..self }
    }

    /// The same with a word of the caller's that the completion carries.
    #[must_use]
    pub fn context(self, context: u64) -> SendOptions {
        SendOptions { context, ..self }
    }
}

/// Which messages a receive takes. Default: untagged ones of any sender, with context 0.
///
/// ```
/// use weft::{Addr, Matching, ReceiveOptions};
///
/// // Messages of process 0 of a peer whose tags are 0x100 to 0x1ff.
/// let options = ReceiveOptions::default().tags(0x100, 0xff).from(Addr(1));
/// assert_eq!(options.matching, Matching::Tagged { tag: 0x100, ignore: 0xff });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReceiveOptions {
    /// Which tags the receive takes, or that it takes untagged messages.
    pub matching: Matching,
    /// The only sender whose messages the receive takes; `None`: any sender.
    pub from: Option<Source>,
    /// A word of the caller's that the completion carries.
    pub context: u64,
}

impl Default for ReceiveOptions {
    fn default() -> ReceiveOptions {
        ReceiveOptions { matching: Matching::Untagged, from: None, context: 0 }
    }
}

impl ReceiveOptions {
    /// The same for tagged messages with this tag.
    #[must_use]
    pub fn tag(self, tag: u64) -> ReceiveOptions {
        self.tags(tag, 0)
    }

    /// The same for tagged messages whose tag is `tag`, leaving aside the bits of `ignore`.
    #[must_use]
    pub fn tags(self, tag: u64, ignore: u64) -> ReceiveOptions {
        ReceiveOptions { matching: Matching::Tagged { tag, ignore }, ..self }
    }

    /// The same for messages of one sender: a [`Source`], such as that of an earlier completion, or an [`Addr`] for
    /// process 0 of that peer.
    #[must_use]
    pub fn from(self, source: impl Into<Source>) -> ReceiveOptions {
        ReceiveOptions { from: Some(source.into()), ..self }
    }

    /// The same with a word of the caller's that the completion carries.
    #[must_use]
    pub fn context(self, context: u64) -> ReceiveOptions {
        ReceiveOptions { context, ..self }
    }
}

/// What [`Endpoint::poll`](crate::Endpoint::poll) and [`Endpoint::wait`](crate::Endpoint::wait) return: an operation or
/// a connection has ended, a connection is open, or a peer has written to exposed memory. Every operation that was
/// posted completes once, and every connection closes once, also when the worker is gone.
#[derive(Debug)]
#[non_exhaustive]
pub enum Completion {
    /// A connection is open: the peer's Ethernet address is known, or not needed. Messages may have been posted on the
    /// connection before.
    Connected {
        /// The connection.
        connection: ConnectionId,
        /// Its peer.
        peer: Addr,
    },
    /// A message was delivered, or has failed; or a datagram has left.
    Sent {
        /// The operation.
        operation: OperationId,
        /// The context that it was posted with.
        context: u64,
        /// The buffer that it was posted with.
        buffer: SendBuffer,
        /// Packets that were sent again on its behalf.
        retransmissions: u32,
        /// Whether all of it arrived, or the datagram has left.
        result: Result<(), Error>,
    },
    /// A message or a datagram was received, or the receive has ended without one.
    Received {
        /// The operation.
        operation: OperationId,
        /// The context that it was posted with.
        context: u64,
        /// The sender; `None` if no message has met the receive.
        source: Option<Source>,
        /// The message's tag, if it has one.
        tag: Option<u64>,
        /// The 64 bits that the sender posted with it.
        header_data: u64,
        /// The length of the message, bytes. If the buffer is shorter, it holds the beginning of the message.
        len: u32,
        /// The buffer that the receive was posted with, in its full length; the message is its first `len` bytes. For a
        /// receive for many messages, the part of the buffer that this message got.
        buffer: ReceiveBuffer,
        /// Whether the receive goes on: it is one for many messages, and has not ended.
        more: bool,
        /// Whether the buffer holds a whole message.
        result: Result<(), Error>,
    },
    /// A [peek](crate::Endpoint::peek) at the messages that wait has ended.
    Peeked {
        /// The operation.
        operation: OperationId,
        /// The context that it was posted with.
        context: u64,
        /// The first message that waits for a receive like this, if there is one.
        message: Option<Waiting>,
        /// The message's claim, if it was claimed.
        claim: Option<Claim>,
        /// Whether the messages could be looked at.
        result: Result<(), Error>,
    },
    /// A read of a peer's memory has ended.
    Read {
        /// The operation.
        operation: OperationId,
        /// The context that it was posted with.
        context: u64,
        /// The buffer that it was posted with.
        buffer: ReceiveBuffer,
        /// Requests that were sent again.
        retransmissions: u32,
        /// Whether the buffer holds the bytes of the peer's memory.
        result: Result<(), Error>,
    },
    /// A write to a peer's memory has ended.
    Wrote {
        /// The operation.
        operation: OperationId,
        /// The context that it was posted with.
        context: u64,
        /// The buffer that it was posted with.
        buffer: SendBuffer,
        /// Packets that were sent again on its behalf.
        retransmissions: u32,
        /// Whether all bytes are in the peer's memory.
        result: Result<(), Error>,
    },
    /// An atomic operation on a peer's memory has ended.
    Atomic {
        /// The operation.
        operation: OperationId,
        /// The context that it was posted with.
        context: u64,
        /// The bytes that the memory held before, if the operation asked for them
        /// ([`Atomic::fetch`](crate::Atomic::fetch)).
        fetched: Vec<u8>,
        /// Packets that were sent again on its behalf.
        retransmissions: u32,
        /// Whether the operation was done; if so, it was done once.
        result: Result<(), Error>,
    },
    /// A peer has written to exposed memory, and announces it.
    Written(Written),
    /// A connection is closed, or could not be opened. Its [`ConnectionId`] is invalid from now on, and all its
    /// messages have completed.
    Closed {
        /// The connection.
        connection: ConnectionId,
        /// Its peer.
        peer: Addr,
        /// `Ok` if this application has closed or aborted the connection; otherwise the reason.
        result: Result<(), Error>,
    },
}

impl Completion {
    /// A copy of the message that a receive has brought: the first `len` bytes of `buffer`. `None` for other
    /// completions, and for receives that have failed.
    pub fn message(&self) -> Option<Bytes> {
        match self {
            Completion::Received { len, buffer, result: Ok(()), .. } => Some(buffer.to_bytes(*len)),
            _ => None,
        }
    }
}
