//! A message on its way out, or a read of the peer's memory.

use crate::buffer::Buffer;
use crate::wire::ses::{Opcode, Placement, RequestFlags, ReturnCode, StandardRequest};

/// Flags of the first packet of a message, whose header data it carries.
const FIRST: RequestFlags = RequestFlags::START_OF_MESSAGE.with(RequestFlags::HEADER_DATA);

/// What a [`SendMessage`] asks of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// To take a message, with its tag for matching if it has one.
    Send {
        /// The tag.
        tag: Option<u64>,
    },
    /// To answer with bytes of its memory.
    Read {
        /// The key of the memory.
        key: u64,
        /// Offset of the first byte in the memory, bytes.
        offset: u64,
        /// Bytes that each request asks for, but for the last; at least 1.
        part: u32,
    },
    /// To put bytes into its memory.
    Write {
        /// The key of the memory.
        key: u64,
        /// Offset of the first byte in the memory, bytes.
        offset: u64,
        /// Whether to announce the header data once all is there.
        notify: bool,
    },
    /// To perform an atomic operation on its memory.
    Atomic {
        /// The key of the memory.
        key: u64,
        /// Offset of the first byte in the memory, bytes.
        offset: u64,
        /// Bytes that the request carries, from the start of the buffer; at the end of the buffer is room for what comes back.
        carried: u16,
        /// Bytes of memory that it works on.
        len: u16,
        /// Whether to answer with what was there before.
        fetch: bool,
    },
}

/// A message being sent, or an access to the peer's memory.
// In the order of use: the fields that every packet needs come first.
#[derive(Debug)]
#[repr(C)]
pub struct SendMessage {
    /// The bytes of the message or the write; of a read the memory for what it reads.
    pub buffer: Buffer,
    /// Length of the message or the read, bytes; kept here because looking up the buffer takes longer.
    len: u32,
    /// Offset of the next packet.
    next_offset: u32,
    /// Packets sent and not acknowledged.
    pub unacknowledged: u32,
    /// Number of the message in its PDC, once its first packet has been cut. A read is a message for each packet, with
    /// consecutive numbers. Of a datagram, the process that sends it.
    pub msg_id: u16,
    /// Whether the last packet has been cut.
    cut: bool,
    /// What it asks of the target. The first cache line ends behind its tag: the rest is for reads.
    pub operation: Operation,
    /// Packets sent more than once, counted each time.
    pub retransmissions: u32,
    /// Its place among the messages posted on the connection, or the datagrams of its process, counted from any number.
    pub(crate) place: u32,
    /// Header data for the receiver's completion.
    pub header_data: u64,
    /// The caller's value, returned at completion.
    pub context: u64,
    /// Bytes of a read that have come back.
    pub read: u32,
    /// The target's return code, if it was not OK.
    pub refusal: Option<ReturnCode>,
    /// The connection that it was posted on, as numbered by the endpoint, which has fewer than 2¹⁶.
    pub(crate) connection: u16,
}

/// One packet's share of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Offset of the part, bytes.
    pub offset: u32,
    /// Length of the part, bytes.
    pub len: u32,
}

impl SendMessage {
    /// A message of which no packet has been cut.
    #[inline]
    pub fn new(
        buffer: Buffer,
        operation: Operation,
        header_data: u64,
        context: u64,
        connection: u16,
    ) -> SendMessage {
        SendMessage {
            len: buffer.len(),
            buffer,
            operation,
            header_data,
            context,
            msg_id: 0,
            next_offset: 0,
            cut: false,
            unacknowledged: 0,
            retransmissions: 0,
            connection,
            place: 0,
            read: 0,
            refusal: None,
        }
    }

    /// Whether it accesses the peer's memory.
    #[inline]
    pub fn is_access(&self) -> bool {
        !matches!(self.operation, Operation::Send { .. })
    }

    /// Whether it asks for data: a read, or a fetching atomic operation.
    #[inline]
    pub fn is_read(&self) -> bool {
        matches!(self.operation, Operation::Read { .. } | Operation::Atomic { fetch: true, .. })
    }

    /// Whether no packet has been cut yet.
    pub fn is_untouched(&self) -> bool {
        self.next_offset == 0 && !self.cut
    }

    /// Whether all packets have been cut.
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    /// Whether all packets have been sent and acknowledged.
    #[inline]
    pub fn is_delivered(&self) -> bool {
        self.cut && self.unacknowledged == 0
    }

    /// Whether bytes that it asked for have not come back.
    pub(crate) fn lacks_data(&self) -> bool {
        self.is_read() && self.read < self.len
    }

    /// Number of bytes not cut yet.
    #[inline]
    pub fn remaining(&self) -> u32 {
        self.len - self.next_offset
    }

    /// The next packet, of at most `mtu` bytes; `None` once all are cut. An empty message is one packet.
    #[inline]
    pub fn peek(&self, mtu: u32) -> Option<Segment> {
        let len = self.remaining().min(mtu);
        (!self.cut).then_some(Segment { offset: self.next_offset, len })
    }

    /// Cuts the packet that [`SendMessage::peek`] returned.
    #[inline]
    pub fn cut(&mut self, segment: Segment) {
        self.next_offset += segment.len;
        self.cut = self.remaining() == 0;
        self.unacknowledged += 1;
    }

    /// Drops the part that has not been cut.
    pub(crate) fn cut_short(&mut self) {
        self.cut = true;
    }

    /// The number of the request that asks for the part of a read at `offset`, which begins a part.
    pub fn read_id(&self, offset: u32) -> u16 {
        let Operation::Read { part, .. } = self.operation else { return self.msg_id };
        self.msg_id.wrapping_add((offset / part) as u16)
    }

    /// Where in the buffer the answer to the request of `len` bytes at `offset` goes, and how long it is, bytes.
    pub(crate) fn room_for(&self, offset: u32, len: u32) -> (u32, u32) {
        match self.operation {
            Operation::Atomic { len: fetched, .. } => (self.len - u32::from(fetched), fetched.into()),
            _ => (offset, len),
        }
    }

    /// Its tag. An access has none.
    #[inline]
    fn tag(&self) -> Option<u64> {
        match self.operation {
            Operation::Send { tag } => tag,
            Operation::Read { .. } | Operation::Write { .. } | Operation::Atomic { .. } => None,
        }
    }

    /// The header of the packet that carries `len` bytes from `offset` of a message, sent by process `source` of this
    /// endpoint. Not for accesses.
    #[inline]
    pub fn request(&self, source: u16, offset: u32, len: u32) -> StandardRequest {
        let tag = self.tag();
        let start = offset == 0;
        StandardRequest {
            opcode: if tag.is_some() { Opcode::TAGGED_SEND } else { Opcode::SEND },
            flags: FIRST.only_if(start).with(RequestFlags::END_OF_MESSAGE.only_if(offset + len == self.len)),
            msg_id: self.msg_id,
            ri_generation: 0,
            job_id: 0,
            pid_on_fep: 0,
            resource_index: 0,
            buffer_offset: 0,
            initiator: source.into(),
            match_bits: tag.unwrap_or(0),
            placement: if start {
                Placement::Start { header_data: self.header_data }
            } else {
                Placement::Continue { payload_len: len as u16, msg_offset: offset }
            },
            request_length: self.len,
        }
    }

    /// The header of the packet that accesses the peer's memory for `len` bytes from `offset` of the buffer, sent by process
    /// `source` of this endpoint; `None` of a message. Each packet of a read is a message of its own, so that its target can
    /// answer it without the others.
    pub fn access_request(&self, source: u16, offset: u32, len: u32) -> Option<StandardRequest> {
        let alone = StandardRequest {
            flags: RequestFlags::WHOLE_MESSAGE,
            placement: Placement::Start { header_data: 0 },
            ..self.request(source, offset, len)
        };
        Some(match self.operation {
            Operation::Send { .. } => return None,
            Operation::Read { key, offset: first, .. } => StandardRequest {
                opcode: Opcode::READ,
                msg_id: self.read_id(offset),
                buffer_offset: first.wrapping_add(offset.into()),
                match_bits: key,
                // What is asked for behind this: a target that counts reads counts the last request.
                placement: Placement::Start { header_data: u64::from(self.len - offset - len) },
                request_length: len,
                ..alone
            },
            Operation::Atomic { key, offset: first, len, fetch, .. } => StandardRequest {
                opcode: if fetch { Opcode::FETCHING_ATOMIC } else { Opcode::ATOMIC },
                buffer_offset: first,
                match_bits: key,
                request_length: len.into(),
                ..alone
            },
            Operation::Write { key, offset: first, notify } => {
                let request = self.request(source, offset, len);
                StandardRequest {
                    opcode: Opcode::WRITE,
                    flags: match notify {
                        true => request.flags,
                        false => request.flags.without(RequestFlags::HEADER_DATA),
                    },
                    buffer_offset: first,
                    match_bits: key,
                    ..request
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn segments_cover_the_message(len in prop_oneof![0u32..20_000, u32::MAX - 9_000..=u32::MAX], mtu in 1u32..9_000) {
            let mut message = SendMessage::new(Buffer::Virtual(len), Operation::Send { tag: None }, 0, 0, 0);
            message.next_offset = len.saturating_sub(20_000) / mtu * mtu;
            let mut at = message.next_offset;
            while let Some(segment) = message.peek(mtu) {
                prop_assert_eq!(segment.offset, at);
                prop_assert!(segment.len > 0 || len == 0);
                at += segment.len;
                let request = message.request(1, segment.offset, segment.len);
                prop_assert_eq!(request.flags.has(RequestFlags::END_OF_MESSAGE), message.remaining() == segment.len);
                message.cut(segment);
            }
            prop_assert_eq!(at, len);
        }
    }
}
