//! What applications say to an endpoint, and hear from it.

use weft_cc::Span;

use super::TrafficClass;
use super::explain::Meaning;
use crate::buffer::{Buffer, MAX_MESSAGE};
use crate::packet::Addr;
use crate::ses::{Matching, ReceiveId, SendMessage};
use crate::table::Key;
use crate::wire::pds::{DeliveryMode, NackCode, PdcId, Psn};
use crate::wire::ses::ReturnCode;

/// Names a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub(super) Key);

/// Names a message that was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SendId(pub(super) Key);

/// How to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ConnectOptions {
    /// RUD or ROD.
    pub mode: DeliveryMode,
    /// Connections to one peer share a congestion context if their traffic classes are the same.
    pub class: TrafficClass,
    /// The process of the peer that messages are for: 0, or one that it has
    /// [opened](super::Fep::open_process). At most [`MAX_PROCESS`].
    pub process: u16,
}

/// The largest number of a process: it has 12 bits on the wire.
pub const MAX_PROCESS: u16 = (1 << 12) - 1;

/// A message to send.
#[derive(Debug)]
pub struct Send {
    /// Its bytes.
    pub buffer: Buffer,
    /// For tagged messages, their tag.
    pub tag: Option<u64>,
    /// 64 bits for the receiver's completion.
    pub header_data: u64,
    /// Handed back at completion.
    pub context: u64,
}

/// A receive to post.
#[derive(Debug)]
pub struct Receive {
    /// Where the message goes.
    pub buffer: Buffer,
    /// Takes messages of this sender only.
    pub from: Option<Addr>,
    /// Takes these messages only.
    pub matching: Matching,
    /// Handed back at completion.
    pub context: u64,
}

/// Something that was asked for is done.
#[derive(Debug)]
pub enum Completion {
    /// A message has been sent: all of it has arrived, or it failed.
    Sent {
        /// Which.
        id: SendId,
        /// Its caller's word.
        context: u64,
        /// Its memory.
        buffer: Buffer,
        /// Packets sent again on its behalf.
        retransmissions: u32,
        /// How it went.
        result: Result<(), SendError>,
    },
    /// A message has been received, or will not be.
    Received {
        /// Into which receive.
        id: ReceiveId,
        /// Its caller's word.
        context: u64,
        /// Who sent it; none if none did.
        peer: Option<Addr>,
        /// Its tag.
        tag: Option<u64>,
        /// Its sender's 64 bits.
        header_data: u64,
        /// Its length, bytes.
        len: u32,
        /// Its memory.
        buffer: Buffer,
        /// How it went.
        result: Result<(), ReceiveError>,
    },
    /// A connection is closed; its name is dead.
    Closed {
        /// Which.
        id: ConnectionId,
        /// Its peer.
        peer: Addr,
        /// Why, if nobody here asked for it.
        result: Result<(), Failure>,
    },
}

impl SendMessage {
    /// The message called `key` is over, with this result.
    #[inline]
    pub(super) fn into_completion(self, key: Key, result: Result<(), SendError>) -> Completion {
        let SendMessage { context, buffer, retransmissions, .. } = self;
        Completion::Sent { id: SendId(key), context, buffer, retransmissions, result }
    }
}

/// Why a PDC was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// A packet was never acknowledged.
    #[error("PDC {} to endpoint {}: PSN {} not acknowledged in {waited} and {sent} transmissions", pdc.0, peer.0, psn.0)]
    NoAnswer {
        /// Our PDCID.
        pdc: PdcId,
        /// The target.
        peer: Addr,
        /// The packet.
        psn: Psn,
        /// Since it was last sent.
        waited: Span,
        /// Times it was sent.
        sent: u8,
    },
    /// The target refused it for good.
    #[error("PDC {} to endpoint {}: PSN {} refused with {}", pdc.0, peer.0, psn.0, Meaning(*code))]
    Refused {
        /// Our PDCID.
        pdc: PdcId,
        /// The target.
        peer: Addr,
        /// The packet.
        psn: Psn,
        /// What the target said.
        code: NackCode,
    },
    /// The target was busy, or the way to it refused packets, for too long.
    #[error("PDC {} to endpoint {}: PSN {} put off for {waited} with {}", pdc.0, peer.0, psn.0, Meaning(*code))]
    Busy {
        /// Our PDCID.
        pdc: PdcId,
        /// The target.
        peer: Addr,
        /// The packet.
        psn: Psn,
        /// What the target said.
        code: NackCode,
        /// For how long.
        waited: Span,
    },
    /// The target granted no credit for too long.
    #[error("PDC {} to endpoint {}: no credit for PSN {} for {waited}", pdc.0, peer.0, psn.0)]
    NoCredit {
        /// Our PDCID.
        pdc: PdcId,
        /// The target.
        peer: Addr,
        /// The packet that waits.
        psn: Psn,
        /// For how long.
        waited: Span,
    },
    /// The target asked for the connection to be closed, while nothing waited to be sent. Targets do so
    /// when nothing has arrived for [`FepConfig::idle_timeout`](super::FepConfig::idle_timeout); every message posted has been delivered.
    #[error("PDC {} to endpoint {}: closed at the target's request", pdc.0, peer.0)]
    ClosedByPeer {
        /// Our PDCID.
        pdc: PdcId,
        /// The target.
        peer: Addr,
    },
}

/// Why a message was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// Its PDC was given up.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// The target's message layer answered with an error.
    #[error("the target answered with return code {:#04x}", .0.0)]
    Answered(ReturnCode),
    /// Cancelled before any of it was sent.
    #[error("cancelled")]
    Cancelled,
}

/// Why a receive ended without its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiveError {
    /// The message is longer than the receive, which holds its beginning.
    #[error("the message has {len} bytes, the receive {room}")]
    Truncated {
        /// The message.
        len: u32,
        /// The receive.
        room: u32,
    },
    /// The sender fell silent, or closed, in the middle.
    #[error("the sender fell silent after a part of the message")]
    PeerLost,
    /// Cancelled before a message met it.
    #[error("cancelled")]
    Cancelled,
}

/// Why a call was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The connection is closed, closing, or never was.
    #[error("no such open connection")]
    NotOpen,
    /// Something is used up.
    #[error("limit of {limit} {what} reached")]
    Limit {
        /// What.
        what: &'static str,
        /// How many there may be.
        limit: usize,
    },
    /// Too long for one message.
    #[error("a message has at most {MAX_MESSAGE} bytes")]
    TooLong,
    /// Too late: it is under way or done.
    #[error("too late to cancel")]
    TooLate,
    /// No such process, or one that is open already.
    #[error("process {0} is not open, or is open already; there are 0 to {MAX_PROCESS}")]
    Process(u16),
}

/// A message or a receive that was not posted. Its buffer is the caller's again: a limit is normal back-pressure.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct PostError {
    /// Why the call was refused.
    pub error: CallError,
    /// The buffer of the message or the receive, as the caller passed it.
    pub buffer: Buffer,
}

impl From<PostError> for CallError {
    fn from(refused: PostError) -> CallError {
        refused.error
    }
}
