//! A packet that leaves, and where its payload lies.

use super::target::Target;
use crate::buffer::Buffer;
use crate::packet::{Packet, Payload};
use crate::region::RegionSlice;
use crate::ses::SendMessage;
use crate::table::{Key, Table};
use crate::wire::pds::{PdcId, Psn};

/// A packet to put on the wire.
#[derive(Clone, Copy, Debug)]
pub struct Transmit {
    /// The packet's headers.
    pub packet: Packet,
    /// Its payload; ask [`Fep::payload`](super::Fep::payload) for the bytes before the next call that takes `&mut self`.
    pub payload: PayloadRef,
}

/// Reference to a packet's payload.
// Written and read where it lies: it does not fit registers, and each move of one just written is a store-forwarding stall (see
// `crate::prefetch`).
#[derive(Clone, Copy, Debug)]
pub struct PayloadRef {
    source: Source,
    len: u32,
}

/// Where the payload of a packet lies.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// It has none.
    Nothing,
    /// In the buffer of a message, at this offset.
    Message { send: Key, offset: u32 },
    /// The buffer of a datagram. It is not shared: the datagram ends when the port has taken the packet, and what is done
    /// with the memory then must not reach the peer.
    Datagram { send: Key },
    /// Where the response says that is stored for this PSN of a PDC that a peer has opened.
    Response { pdc: PdcId, psn: Psn },
}

impl PayloadRef {
    /// No payload.
    pub const NONE: PayloadRef = PayloadRef { source: Source::Nothing, len: 0 };

    /// The `len` bytes of message `send` from `offset` on.
    #[inline]
    pub(super) fn of_message(send: Key, offset: u32, len: u32) -> PayloadRef {
        PayloadRef { source: Source::Message { send, offset }, len }
    }

    /// All `len` bytes of the datagram `send`.
    pub(super) fn of_datagram(send: Key, len: u32) -> PayloadRef {
        PayloadRef { source: Source::Datagram { send }, len }
    }

    /// The `len` bytes of the response that is stored for packet `psn` of the target's PDC `pdc`.
    pub(super) fn of_response(pdc: PdcId, psn: Psn, len: u32) -> PayloadRef {
        PayloadRef { source: Source::Response { pdc, psn }, len }
    }

    #[inline(always)]
    pub(super) fn resolve<'a>(&self, sends: &'a Table<SendMessage>, target: &'a Target) -> Payload<'a> {
        if let Source::Message { send, offset } = self.source
            && let Some(message) = sends.get(send)
        {
            return message.buffer.payload(offset, self.len);
        }
        self.resolve_any(sends, target)
    }

    // Not inlined into the code that most packets run through: those are parts of messages.
    #[inline(never)]
    fn resolve_any<'a>(&self, sends: &'a Table<SendMessage>, target: &'a Target) -> Payload<'a> {
        let found = match self.source {
            Source::Message { send, offset } => sends.get(send).map(|message| (&message.buffer, offset)),
            Source::Datagram { send } => sends.get(send).map(|message| (&message.buffer, 0)),
            Source::Response { pdc, psn } => target.response_data(pdc, psn),
            Source::Nothing => None,
        };
        found.map_or(Payload::EMPTY, |(buffer, offset)| buffer.payload(offset, self.len))
    }

    /// A shared reference to the same bytes, if their memory can be shared.
    #[inline]
    pub(super) fn share(&self, sends: &Table<SendMessage>, target: &Target) -> Option<RegionSlice> {
        let (buffer, offset) = match self.source {
            Source::Message { send, offset } => (&sends.get(send)?.buffer, offset),
            Source::Response { pdc, psn } => target.response_data(pdc, psn)?,
            Source::Datagram { .. } | Source::Nothing => return None,
        };
        match buffer {
            Buffer::Region(slice) => Some(slice.part(offset, self.len)),
            Buffer::Heap(_)
            | Buffer::Virtual(_)
            | Buffer::Bytes(_)
            | Buffer::BytesMut(_)
            | Buffer::Owned(_) => None,
        }
    }

    /// Length of the payload, bytes.
    #[inline]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether the payload is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}
