//! The calls that applications make on an endpoint, their completions, and their errors.

use core::fmt;
use core::net::IpAddr;

use weft_cc::Span;

use super::TrafficClass;
use super::access::{self, AccessError, AccessId, AccessKind, Written};
use super::explain::{Answered, Meaning};
use super::read::{self, ReadError, ReadId};
use crate::buffer::{Buffer, MAX_MESSAGE};
use crate::packet::Addr;
use crate::ses::{Matching, Operation, ReceiveId, SendMessage, Source};
use crate::table::Key;
use crate::wire::pds::{DeliveryMode, NackCode, PdcId, Psn};
use crate::wire::ses::{MAX_PROCESS, ReturnCode};

/// Identifies a connection of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub(super) Key);

/// Identifies a posted message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SendId(pub(super) Key);

/// Options of a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ConnectOptions {
    /// Reliable unordered (RUD) or reliable ordered (ROD) delivery.
    pub mode: DeliveryMode,
    /// Connections to one peer share a congestion context if their traffic classes are the same.
    pub class: TrafficClass,
    /// The peer's process that receives the messages: 0, or one that it has [opened](super::Fep::open_process). At
    /// most [`MAX_PROCESS`].
    pub process: u16,
    /// The connection is not given up while the peer answers, however long it takes nothing, as if
    /// [`FepConfig::busy_timeout`](super::FepConfig::busy_timeout) were endless. That ends when it is aborted, or
    /// sends CLOSE_CMD.
    pub patient: bool,
}

impl ConnectOptions {
    /// The same with reliable unordered or reliable ordered delivery.
    #[must_use]
    pub fn mode(self, mode: DeliveryMode) -> ConnectOptions {
        ConnectOptions { mode, ..self }
    }

    /// The same with a traffic class.
    #[must_use]
    pub fn class(self, class: TrafficClass) -> ConnectOptions {
        ConnectOptions { class, ..self }
    }

    /// The same to a process of the peer, at most [`MAX_PROCESS`].
    #[must_use]
    pub fn process(self, process: u16) -> ConnectOptions {
        ConnectOptions { process, ..self }
    }

    /// The same, and waiting without end for a peer that answers, or not.
    #[must_use]
    pub fn patient(self, patient: bool) -> ConnectOptions {
        ConnectOptions { patient, ..self }
    }
}

/// A message to send.
#[derive(Debug)]
pub struct Send {
    /// The bytes of the message.
    pub buffer: Buffer,
    /// The tag of a tagged message.
    pub tag: Option<u64>,
    /// 64 bits of header data for the receiver's completion.
    pub header_data: u64,
    /// The caller's value, returned with the completion.
    pub context: u64,
}

/// A receive to post.
#[derive(Debug)]
pub struct Receive {
    /// The buffer that the message is placed in.
    pub buffer: Buffer,
    /// The only sender whose messages it accepts; any sender if `None`.
    pub from: Option<Source>,
    /// The messages that it accepts.
    pub matching: Matching,
    /// The caller's value, returned with the completion.
    pub context: u64,
}

/// The end of an operation, or of a connection.
#[derive(Debug)]
pub enum Completion {
    /// A message has been sent: all of it has arrived, or it failed. Or a datagram has left.
    Sent {
        /// Identifies the message.
        id: SendId,
        /// The context that the message was posted with.
        context: u64,
        /// The buffer that the message was posted with.
        buffer: Buffer,
        /// Number of packets of the message that were retransmitted.
        retransmissions: u32,
        /// Whether the whole message has arrived.
        result: Result<(), SendError>,
    },
    /// A message or a datagram has been received, or will not be.
    Received {
        /// Identifies the receive.
        id: ReceiveId,
        /// The context that the receive was posted with.
        context: u64,
        /// The sender; `None` if no message has matched the receive.
        source: Option<Source>,
        /// The message's tag, if it has one.
        tag: Option<u64>,
        /// The 64 bits that the sender posted with the message.
        header_data: u64,
        /// The message's length, bytes. A shorter buffer holds its beginning.
        len: u32,
        /// The buffer that the receive was posted with; of a receive for many messages the part that this one got.
        buffer: Buffer,
        /// Whether the receive goes on: it is one for many messages, and has not ended.
        more: bool,
        /// Whether the buffer holds the whole message.
        result: Result<(), ReceiveError>,
    },
    /// A read has ended.
    Read {
        /// Identifies the read.
        id: ReadId,
        /// The context that the read was posted with.
        context: u64,
        /// The buffer that the read was posted with.
        buffer: Buffer,
        /// Number of requests that were sent again.
        retransmissions: u32,
        /// Whether the buffer holds the bytes of the peer's memory.
        result: Result<(), ReadError>,
    },
    /// A write or an atomic operation has ended.
    Accessed {
        /// Identifies it.
        id: AccessId,
        /// Which of the two it was.
        kind: AccessKind,
        /// The context that it was posted with.
        context: u64,
        /// The buffer that a write was posted with; of an atomic operation what it fetched, in a [`Buffer::Heap`], which is
        /// empty if it fetches nothing.
        buffer: Buffer,
        /// Number of packets that were sent again.
        retransmissions: u32,
        /// Whether it has been done, once.
        result: Result<(), AccessError>,
    },
    /// A peer has written to exposed memory, and announces it.
    Written(Written),
    /// A connection has closed; its id is invalid from now on.
    Closed {
        /// Identifies the connection.
        id: ConnectionId,
        /// Address of the peer.
        peer: Addr,
        /// Why it closed, unless the application asked for it.
        result: Result<(), Failure>,
    },
}

impl SendMessage {
    /// The completion of the message `key` with this result.
    #[inline]
    pub(super) fn into_completion(self, key: Key, result: Result<(), SendError>) -> Completion {
        if self.is_access() {
            return match self.operation {
                Operation::Read { .. } => read::completion(self, key, result),
                _ => access::completion(self, key, result),
            };
        }
        self.sent(key, result)
    }

    /// The completion of a message that is no access.
    #[inline(always)]
    pub(super) fn sent(self, key: Key, result: Result<(), SendError>) -> Completion {
        let SendMessage { context, buffer, retransmissions, .. } = self;
        Completion::Sent { id: SendId(key), context, buffer, retransmissions, result }
    }
}

/// Why a PDC was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The peer owed an answer for [`PdcConfig::silence`](crate::pdc::PdcConfig::silence), and no packet of it came.
    #[error("PDC {} to endpoint {}: no answer for {waited}; PSN {} was sent {sent} times", pdc.0, peer.0, psn.0)]
    NoAnswer {
        /// The initiator's PDCID.
        pdc: PdcId,
        /// Address of the target.
        peer: Addr,
        /// PSN of the first packet not acknowledged.
        psn: Psn,
        /// How long the peer has owed an answer.
        waited: Span,
        /// Number of transmissions of that packet; 0 if it has never left.
        sent: u8,
    },
    /// The target refused a packet for good.
    #[error("PDC {} to endpoint {}: PSN {} refused with {}", pdc.0, peer.0, psn.0, Meaning(*code))]
    Refused {
        /// The initiator's PDCID.
        pdc: PdcId,
        /// Address of the target.
        peer: Addr,
        /// PSN of the packet.
        psn: Psn,
        /// The code that the target gave.
        code: NackCode,
    },
    /// The target was busy, or the path to it refused packets, for too long.
    #[error("PDC {} to endpoint {}: PSN {} put off for {waited} with {}", pdc.0, peer.0, psn.0, Meaning(*code))]
    Busy {
        /// The initiator's PDCID.
        pdc: PdcId,
        /// Address of the target.
        peer: Addr,
        /// PSN of the packet.
        psn: Psn,
        /// The code that the target gave.
        code: NackCode,
        /// How long no packet of the connection has arrived.
        waited: Span,
    },
    /// The peer answered something, but nothing of this connection arrived for
    /// [`FepConfig::busy_timeout`](super::FepConfig::busy_timeout). If probes, which are short, were answered and a long
    /// packet never was, a link on the path may take no packets of its length; the text suspects that from six
    /// transmissions on.
    #[error("PDC {} to endpoint {}: PSN {} {} for {waited}, though the peer answers{}", pdc.0, peer.0, psn.0, Unarrived(*len, *sent), Suspicion(*sent, *probed))]
    NoProgress {
        /// The initiator's PDCID.
        pdc: PdcId,
        /// Address of the target.
        peer: Addr,
        /// PSN of the first packet not acknowledged.
        psn: Psn,
        /// Length of its payload, bytes; 0 if it has none or has never left.
        len: u32,
        /// Number of its transmissions, at most 255; 0 if it has never left.
        sent: u8,
        /// Whether probes were answered meanwhile.
        probed: bool,
        /// How long no packet of the connection has arrived.
        waited: Span,
    },
    /// The target granted no credit for too long.
    #[error("PDC {} to endpoint {}: no credit for PSN {} for {waited}", pdc.0, peer.0, psn.0)]
    NoCredit {
        /// The initiator's PDCID.
        pdc: PdcId,
        /// Address of the target.
        peer: Addr,
        /// PSN of the waiting packet.
        psn: Psn,
        /// How long the packet has waited.
        waited: Span,
    },
    /// The target of an ordered connection waits for a packet that was acknowledged, by itself or by somebody in its name. It
    /// takes nothing that comes behind that packet, which nobody sends any more.
    #[error("PDC {} to endpoint {}: PSN {} was acknowledged, but the target still waits for it", pdc.0, peer.0, psn.0)]
    FalseAck {
        /// The initiator's PDCID.
        pdc: PdcId,
        /// Address of the target.
        peer: Addr,
        /// PSN of the packet.
        psn: Psn,
    },
    /// The target asked for the connection to be closed, while nothing waited to be sent. Targets do so
    /// when nothing has arrived for [`FepConfig::idle_timeout`](super::FepConfig::idle_timeout); every message posted has been delivered.
    #[error("PDC {} to endpoint {}: closed at the target's request", pdc.0, peer.0)]
    ClosedByPeer {
        /// The initiator's PDCID.
        pdc: PdcId,
        /// Address of the target.
        peer: Addr,
    },
}

/// What became of a packet with this length of payload, which was sent so many times.
struct Unarrived(u32, u8);

impl fmt::Display for Unarrived {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Unarrived(_, 0) => f.write_str("has not left"),
            Unarrived(0, sent) => write!(f, "was sent {sent} times and does not arrive"),
            Unarrived(len, sent) => {
                write!(f, "with {len} bytes of payload was sent {sent} times and does not arrive")
            }
        }
    }
}

/// Whether the length of a packet seems to be the reason why it does not arrive: it was sent so many times, and probes
/// were answered or were not.
struct Suspicion(u8, bool);

/// A packet that is lost at random one time in three is lost so often one time in 700.
const SUSPICIOUS: u8 = 6;

impl fmt::Display for Suspicion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Suspicion(SUSPICIOUS.., true) => f.write_str(" probes (a black hole for its length?)"),
            _ => Ok(()),
        }
    }
}

/// Why a message was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// Its PDC was given up.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// The target's message layer answered with an error; or, with [`ReturnCode::CANCELLED`], the connection was aborted
    /// here after a packet had left.
    #[error("{}", Answered(*.0))]
    Answered(ReturnCode),
    /// Cancelled before any packet of it was sent; or a datagram that could not leave when its turn came, as when its peer was not in
    /// the address book any more.
    #[error("cancelled")]
    Cancelled,
}

/// Why a receive ended without its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiveError {
    /// The message is longer than the receive, which holds its beginning.
    #[error("the message has {len} bytes, the receive {room}")]
    Truncated {
        /// The message's length, bytes.
        len: u32,
        /// The receive's length, bytes.
        room: u32,
    },
    /// The sender fell silent or closed in the middle of the message.
    #[error("the sender fell silent after a part of the message")]
    PeerLost,
    /// Cancelled before a message matched it.
    #[error("cancelled")]
    Cancelled,
}

/// Why a call was refused by the endpoint itself, by its worker, or by the session that forwards it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The connection is closed or closing, or was never open.
    #[error("no such open connection")]
    NotOpen,
    /// A resource is exhausted: the call succeeds once some of it is released.
    #[error("limit of {limit} {what} reached")]
    Limit {
        /// The exhausted resource.
        what: Resource,
        /// The limit of the resource.
        limit: usize,
    },
    /// The message is longer than [`MAX_MESSAGE`].
    #[error("a message has at most {MAX_MESSAGE} bytes")]
    TooLong,
    /// The datagram is longer than the payload of a packet.
    #[error("a datagram is one packet, and has at most {most} bytes here")]
    DatagramTooLong {
        /// The most bytes of a datagram: [`FepConfig::mtu`](super::FepConfig::mtu).
        most: u32,
    },
    /// Data cannot be put into [`Buffer::Bytes`], which can only be sent.
    #[error("the buffer can only be sent: other owners may hold its memory")]
    ReadOnly,
    /// Many messages were to be received into a buffer that cannot be split.
    #[error("the buffer cannot be split among messages")]
    NotDivisible,
    /// The message was not claimed, or is not there any more: it was received or discarded, or its sender was lost in the
    /// middle of it.
    #[error("no message is claimed by this name")]
    NotClaimed,
    /// The operation cannot be cancelled any more: it is under way or done.
    #[error("too late to cancel")]
    TooLate,
    /// The process has been opened before.
    #[error("process {0} is open already")]
    ProcessOpen(u16),
    /// The process is not open.
    #[error("process {0} is not open")]
    ProcessNotOpen(u16),
    /// The number is above [`MAX_PROCESS`].
    #[error("there is no process {0}: there are 0 to {MAX_PROCESS}")]
    NoSuchProcess(u16),
    /// No packet can be sent to the peer. The worker goes on asking a peer that has not answered, so a later try may
    /// succeed.
    #[error("{}", UnreachablePeer(*.peer, *.why))]
    Unreachable {
        /// Address of the peer.
        peer: Addr,
        /// Why it cannot be reached.
        why: Unreachable,
    },
    /// The address cannot be added as a peer's.
    #[error("the peer is refused: {0}")]
    Peer(PeerRefusal),
    /// The session's command has an invalid encoding.
    #[error("the command makes no sense")]
    Malformed,
    /// The session has no operation or connection with this number.
    #[error("there is no number {number}: the session has 0 to {}", .count.saturating_sub(1))]
    NoSuchNumber {
        /// The number in the call.
        number: u32,
        /// How many numbers the session has, at least 1.
        count: u32,
    },
    /// The session's operation or connection with this number has not ended yet.
    #[error("number {0} is in use already")]
    NumberInUse(u32),
    /// The session has no operation with this number at the moment.
    #[error("number {0} is not in use")]
    NumberNotInUse(u32),
    /// The memory of a message is outside the session's regions.
    #[error("the memory does not lie in a region of the session")]
    OutsideMemory,
}

/// Something of which there is a limited amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resource {
    /// Open connections.
    Connections,
    /// Messages that were posted and have not ended.
    Messages,
    /// Receives that were posted and have not ended.
    Receives,
    /// Bytes of memory for messages.
    MessageMemory,
    /// Numbers of a session's operations: messages, receives and requests together.
    Operations,
    /// Entries of the address book.
    Peers,
    /// Entries of the address book that one session may add.
    SessionPeers,
    /// Connections to one peer that sessions may have together, of which each has a part.
    PeerConnections,
    /// Open processes.
    Processes,
    /// Kinds of receives of one process: the masks of ignored bits of tags, with and without a sender.
    ReceiveKinds,
    /// Bytes of the memory of all sessions.
    SessionMemory,
}

impl Resource {
    /// All kinds of resources.
    pub const ALL: [Resource; 11] = [
        Resource::Connections,
        Resource::Messages,
        Resource::Receives,
        Resource::MessageMemory,
        Resource::Operations,
        Resource::Peers,
        Resource::SessionPeers,
        Resource::PeerConnections,
        Resource::Processes,
        Resource::ReceiveKinds,
        Resource::SessionMemory,
    ];
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Resource::Connections => "connections",
            Resource::Messages => "messages",
            Resource::Receives => "receives",
            Resource::MessageMemory => "bytes of memory for messages",
            Resource::Operations => "operations",
            Resource::Peers => "peers in the address book",
            Resource::SessionPeers => "peers that an application may add",
            Resource::PeerConnections => "connections to one peer, of which each application has a part,",
            Resource::Processes => "processes",
            Resource::ReceiveKinds => "kinds of receives (ignored bits of tags, with or without a sender)",
            Resource::SessionMemory => "bytes of memory, rings included,",
        })
    }
}

/// Why a peer cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreachable {
    /// Its Ethernet address is being resolved: try again later.
    #[error("{hop} has been asked for its Ethernet address {asked} times, and has not answered yet")]
    Resolving {
        /// The peer, or the router on the way to it.
        hop: IpAddr,
        /// How often it was asked.
        asked: u32,
    },
    /// Its Ethernet address could not be resolved, because no host answered.
    #[error("no host on the link answers for {hop}: it was asked {QUESTIONS} times in {QUESTIONS} s")]
    NoAnswer {
        /// The peer, or the router on the way to it.
        hop: IpAddr,
    },
    /// The address book has no such peer. It may have had one: when the book is full, a peer is forgotten that nobody needs,
    /// and if it comes again it has another address.
    #[error("endpoint {} is not in the address book", .0.0)]
    Unknown(Addr),
}

/// Number of requests for a neighbour's Ethernet address, a second apart, before resolution fails (RFC 4861 §10,
/// MAX_MULTICAST_SOLICIT).
pub const QUESTIONS: u32 = 3;

/// The text of [`CallError::Unreachable`], which names the peer once.
struct UnreachablePeer(Addr, Unreachable);

impl fmt::Display for UnreachablePeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            Unreachable::Unknown(_) => self.1.fmt(f),
            why => write!(f, "endpoint {}: {why}", self.0.0),
        }
    }
}

/// Why an address cannot be added as a peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerRefusal {
    /// The endpoint's own address is of the other IP version.
    #[error("its address is of another IP version than the endpoint's own")]
    IpVersion,
    /// The IP or Ethernet address is multicast, broadcast or unspecified.
    #[error("no single host has its address")]
    NotUnicast,
    /// The address book has another Ethernet address for it.
    #[error("its Ethernet address is known to be another one")]
    OtherMac,
    /// The port cannot send to the address, or has no room for another peer.
    #[error("the port cannot send to it")]
    Port,
    /// The set of peers is fixed: there is no worker with an address book.
    #[error("peers cannot be added here")]
    Fixed,
}

impl PeerRefusal {
    /// All reasons for a refusal.
    pub const ALL: [PeerRefusal; 5] = [
        PeerRefusal::IpVersion,
        PeerRefusal::NotUnicast,
        PeerRefusal::OtherMac,
        PeerRefusal::Port,
        PeerRefusal::Fixed,
    ];
}

/// A message or a receive that could not be posted. It returns the buffer, because reaching a limit is normal
/// back-pressure.
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
