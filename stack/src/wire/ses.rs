//! The semantic sublayer: requests and responses of messages.

mod codec;
mod extension;

#[cfg(test)]
pub(crate) mod tests;

pub use codec::SesView;
pub use extension::{
    AtomicExtension, AtomicOp, AtomicType, CompareSwapExtension, Extension, RendezvousExtension,
};

/// The largest number of a process of an endpoint (PIDonFEP), which has 12 bits.
pub const MAX_PROCESS: u16 = (1 << 12) - 1;

/// A job, 24 bits: processes of one may exchange messages. 0 stands for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobId(u32);

impl JobId {
    /// No job.
    pub const NONE: JobId = JobId(0);

    /// The job with this number, if it has no more than 24 bits.
    pub const fn new(number: u32) -> Option<JobId> {
        if number < 1 << 24 { Some(JobId(number)) } else { None }
    }

    /// Its number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// Operation of a request, 6 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Opcode(pub u8);

impl Opcode {
    /// No operation.
    pub const NO_OP: Opcode = Opcode(0x00);
    /// RMA write.
    pub const WRITE: Opcode = Opcode(0x01);
    /// RMA read.
    pub const READ: Opcode = Opcode(0x02);
    /// Atomic.
    pub const ATOMIC: Opcode = Opcode(0x03);
    /// Fetching atomic.
    pub const FETCHING_ATOMIC: Opcode = Opcode(0x04);
    /// Untagged message.
    pub const SEND: Opcode = Opcode(0x05);
    /// Rendezvous message.
    pub const RENDEZVOUS_SEND: Opcode = Opcode(0x06);
    /// One-packet message over UUD.
    pub const DATAGRAM_SEND: Opcode = Opcode(0x07);
    /// Deferrable message.
    pub const DEFERRABLE_SEND: Opcode = Opcode(0x08);
    /// Tagged message.
    pub const TAGGED_SEND: Opcode = Opcode(0x09);
    /// Tagged rendezvous message.
    pub const RENDEZVOUS_TSEND: Opcode = Opcode(0x0a);
    /// Tagged deferrable message.
    pub const DEFERRABLE_TSEND: Opcode = Opcode(0x0b);
    /// Ready to receive a deferred message.
    pub const DEFERRABLE_RTR: Opcode = Opcode(0x0c);
    /// Tagged atomic.
    pub const TSEND_ATOMIC: Opcode = Opcode(0x0d);
    /// Tagged fetching atomic.
    pub const TSEND_FETCH_ATOMIC: Opcode = Opcode(0x0e);
    /// A message failed at its initiator.
    pub const MSG_ERROR: Opcode = Opcode(0x0f);
    /// Extended opcode.
    pub const EXTENDED: Opcode = Opcode(0x3f);
}

/// The flags of a request, with its version: its second byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RequestFlags(u8);

impl RequestFlags {
    /// None, in version 0.
    pub const NONE: RequestFlags = RequestFlags(0);
    /// Delivery complete: respond once the data is visible.
    pub const DELIVERY_COMPLETE: RequestFlags = RequestFlags(0x20);
    /// Initiator error.
    pub const INITIATOR_ERROR: RequestFlags = RequestFlags(0x10);
    /// Addresses are relative to the job.
    pub const RELATIVE: RequestFlags = RequestFlags(0x08);
    /// Header data is present.
    pub const HEADER_DATA: RequestFlags = RequestFlags(0x04);
    /// Last packet of the message.
    pub const END_OF_MESSAGE: RequestFlags = RequestFlags(0x02);
    /// First packet of the message.
    pub const START_OF_MESSAGE: RequestFlags = RequestFlags(0x01);
    /// The flags of a message of one packet.
    pub const WHOLE_MESSAGE: RequestFlags = RequestFlags::START_OF_MESSAGE.with(RequestFlags::END_OF_MESSAGE);

    /// The flags, and the version in the upper two bits, that the second byte says.
    #[inline]
    pub const fn from_bits(bits: u8) -> RequestFlags {
        RequestFlags(bits)
    }

    /// The second byte.
    #[inline]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// The version, 2 bits; 0.
    #[inline]
    pub const fn version(self) -> u8 {
        self.0 >> 6
    }

    /// These flags and those of `other`.
    #[inline]
    pub const fn with(self, other: RequestFlags) -> RequestFlags {
        RequestFlags(self.0 | other.0)
    }

    /// These flags without those of `other`.
    #[inline]
    pub const fn without(self, other: RequestFlags) -> RequestFlags {
        RequestFlags(self.0 & !other.0)
    }

    /// These flags if `on`, else none.
    #[inline]
    pub const fn only_if(self, on: bool) -> RequestFlags {
        RequestFlags(self.0 * on as u8)
    }

    /// Whether all flags of `other` are among these.
    #[inline]
    pub const fn has(self, other: RequestFlags) -> bool {
        self.0 & other.0 == other.0
    }
}

/// The words of a standard request that depend on the packet's place in the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// First packet (SOM): the user's header data.
    Start {
        /// Completion data for the receiver.
        header_data: u64,
    },
    /// Later packet: the position of its payload.
    Continue {
        /// Payload bytes of this packet, 14 bits.
        payload_len: u16,
        /// Offset of the payload in the message, bytes.
        msg_offset: u32,
    },
}

/// A standard request, 44 B.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StandardRequest {
    /// Operation of the request.
    pub opcode: Opcode,
    /// Flags; [`RequestFlags::START_OF_MESSAGE`] must agree with `placement`.
    pub flags: RequestFlags,
    /// Identifier of the message, unique for its sender and PDC.
    pub msg_id: u16,
    /// Generation of the resource index.
    pub ri_generation: u8,
    /// Job, 24 bits.
    pub job_id: u32,
    /// Process on the target, 12 bits.
    pub pid_on_fep: u16,
    /// Queue of the target (resource index), 12 bits.
    pub resource_index: u16,
    /// Offset in the target's buffer.
    pub buffer_offset: u64,
    /// Identifier of the sender, for matching.
    pub initiator: u32,
    /// Match bits of a tagged message, or memory key.
    pub match_bits: u64,
    /// Header data or placement.
    pub placement: Placement,
    /// Length of the whole message, bytes.
    pub request_length: u32,
}

/// A small request, 20 B: one packet, no matching.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmallRequest {
    /// Operation of the request.
    pub opcode: Opcode,
    /// Flags.
    pub flags: RequestFlags,
    /// Length of the message, 14 bits.
    pub length: u16,
    /// Generation of the resource index.
    pub ri_generation: u8,
    /// Job, 24 bits.
    pub job_id: u32,
    /// Process on the target, 12 bits.
    pub pid_on_fep: u16,
    /// Queue of the target (resource index), 12 bits.
    pub resource_index: u16,
    /// Offset in the target's buffer.
    pub buffer_offset: u64,
}

/// A medium request, 32 B: one packet, with matching.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediumRequest {
    /// Operation of the request.
    pub opcode: Opcode,
    /// Flags.
    pub flags: RequestFlags,
    /// Length of the message, 14 bits.
    pub length: u16,
    /// Generation of the resource index.
    pub ri_generation: u8,
    /// Job, 24 bits.
    pub job_id: u32,
    /// Process on the target, 12 bits.
    pub pid_on_fep: u16,
    /// Queue of the target (resource index), 12 bits.
    pub resource_index: u16,
    /// Header data, or offset in the target's buffer.
    pub header_data_or_offset: u64,
    /// Identifier of the sender, for matching.
    pub initiator: u32,
    /// Match bits or memory key.
    pub match_bits: u64,
}

/// The target's list in which a message was matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum List {
    /// A posted receive.
    #[default]
    Expected,
    /// The overflow (unexpected) list.
    Overflow,
    /// Reserved values 2 and 3.
    Reserved(u8),
}

/// A response's return code, 6 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct ReturnCode(pub u8);

impl ReturnCode {
    /// No return code.
    pub const NULL: ReturnCode = ReturnCode(0x00);
    /// Success.
    pub const OK: ReturnCode = ReturnCode(0x01);
    /// The resource index has another generation.
    pub const BAD_GENERATION: ReturnCode = ReturnCode(0x02);
    /// The resource is disabled.
    pub const DISABLED: ReturnCode = ReturnCode(0x03);
    /// The resource is disabled and its index carries generations.
    pub const DISABLED_GEN: ReturnCode = ReturnCode(0x04);
    /// No receive matches and the message was not kept.
    pub const NO_MATCH: ReturnCode = ReturnCode(0x05);
    /// The target does not support this operation.
    pub const UNSUPPORTED_OP: ReturnCode = ReturnCode(0x06);
    /// The target does not support this size.
    pub const UNSUPPORTED_SIZE: ReturnCode = ReturnCode(0x07);
    /// Address translation: invalid context.
    pub const AT_INVALID: ReturnCode = ReturnCode(0x08);
    /// Address translation: not permitted.
    pub const AT_PERM: ReturnCode = ReturnCode(0x09);
    /// Address translation: the translation service failed.
    pub const AT_ATS_ERROR: ReturnCode = ReturnCode(0x0a);
    /// Address translation: no translation exists.
    pub const AT_NO_TRANS: ReturnCode = ReturnCode(0x0b);
    /// Address translation: out of range.
    pub const AT_OUT_OF_RANGE: ReturnCode = ReturnCode(0x0c);
    /// The target's memory is poisoned.
    pub const HOST_POISONED: ReturnCode = ReturnCode(0x0d);
    /// The target's memory access did not complete.
    pub const HOST_UNSUCCESS_CMPL: ReturnCode = ReturnCode(0x0e);
    /// The target does not support this atomic operation.
    pub const AMO_UNSUPPORTED_OP: ReturnCode = ReturnCode(0x0f);
    /// The target does not support atomics on this datatype.
    pub const AMO_UNSUPPORTED_DT: ReturnCode = ReturnCode(0x10);
    /// The atomic's length is no multiple of its datatype's.
    pub const AMO_UNSUPPORTED_SIZE: ReturnCode = ReturnCode(0x11);
    /// The atomic's address is not aligned to its datatype.
    pub const AMO_UNALIGNED: ReturnCode = ReturnCode(0x12);
    /// The atomic produced a NaN.
    pub const AMO_FP_NAN: ReturnCode = ReturnCode(0x13);
    /// The atomic underflowed.
    pub const AMO_FP_UNDERFLOW: ReturnCode = ReturnCode(0x14);
    /// The atomic overflowed.
    pub const AMO_FP_OVERFLOW: ReturnCode = ReturnCode(0x15);
    /// The atomic's result is inexact.
    pub const AMO_FP_INEXACT: ReturnCode = ReturnCode(0x16);
    /// The initiator has no permission for this operation.
    pub const PERM_VIOLATION: ReturnCode = ReturnCode(0x17);
    /// The operation is invalid.
    pub const OP_VIOLATION: ReturnCode = ReturnCode(0x18);
    /// No such resource index.
    pub const BAD_INDEX: ReturnCode = ReturnCode(0x19);
    /// No such process.
    pub const BAD_PID: ReturnCode = ReturnCode(0x1a);
    /// No such job.
    pub const BAD_JOB_ID: ReturnCode = ReturnCode(0x1b);
    /// No such memory key.
    pub const BAD_MKEY: ReturnCode = ReturnCode(0x1c);
    /// The address is invalid.
    pub const BAD_ADDR: ReturnCode = ReturnCode(0x1d);
    /// The receive was cancelled.
    pub const CANCELLED: ReturnCode = ReturnCode(0x1e);
    /// The message cannot be delivered.
    pub const UNDELIVERABLE: ReturnCode = ReturnCode(0x1f);
    /// An uncorrectable error.
    pub const UNCOR: ReturnCode = ReturnCode(0x20);
    /// An uncorrectable error that may be transient.
    pub const UNCOR_TRNSNT: ReturnCode = ReturnCode(0x21);
    /// The message is longer than the receive.
    pub const TOO_LONG: ReturnCode = ReturnCode(0x22);
    /// The initiator failed.
    pub const INITIATOR_ERR: ReturnCode = ReturnCode(0x23);
    /// The message was dropped.
    pub const DROPPED: ReturnCode = ReturnCode(0x24);
}

/// A response without data, 12 B.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    /// The list in which the message was matched.
    pub list: List,
    /// Response opcode: 0 DEFAULT, 1 RESPONSE ([`Response::OPCODE`]), 3 NO_RESPONSE; 6 bits.
    pub opcode: u8,
    /// Version, 2 bits; 0.
    pub version: u8,
    /// Result of the operation.
    pub return_code: ReturnCode,
    /// Identifier of the message that this answers.
    pub msg_id: u16,
    /// Generation of the resource index.
    pub ri_generation: u8,
    /// Job, 24 bits.
    pub job_id: u32,
    /// Number of bytes placed or changed.
    pub modified_length: u32,
}

impl Response {
    /// The response opcode RESPONSE.
    pub const OPCODE: u8 = 1;

    /// The response to message `msg_id` of job `job_id`, without a list or a generation.
    pub fn new(msg_id: u16, job_id: u32, return_code: ReturnCode) -> Response {
        Response {
            list: List::Expected,
            opcode: Response::OPCODE,
            version: 0,
            return_code,
            msg_id,
            ri_generation: 0,
            job_id,
            modified_length: 0,
        }
    }
}

/// A response with data, 20 B.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseWithData {
    /// The list in which the message was matched.
    pub list: List,
    /// Response opcode, 6 bits.
    pub opcode: u8,
    /// Version, 2 bits; 0.
    pub version: u8,
    /// Result of the operation.
    pub return_code: ReturnCode,
    /// Identifier of the message that this answers.
    pub msg_id: u16,
    /// Job, 24 bits.
    pub job_id: u32,
    /// Identifier of the read request that this answers.
    pub read_request_msg_id: u16,
    /// Payload bytes of this packet, 14 bits.
    pub payload_len: u16,
    /// Number of bytes read.
    pub modified_length: u32,
    /// Offset of the payload in the message.
    pub msg_offset: u32,
}

impl ResponseWithData {
    /// The response opcode RESPONSE_W_DATA.
    pub const OPCODE: u8 = 2;
}

/// A small response with data, 12 B.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmallResponseWithData {
    /// The list in which the message was matched.
    pub list: List,
    /// Response opcode, 6 bits.
    pub opcode: u8,
    /// Version, 2 bits; 0.
    pub version: u8,
    /// Result of the operation.
    pub return_code: ReturnCode,
    /// Payload bytes of this packet, 14 bits.
    pub payload_len: u16,
    /// Job, 24 bits.
    pub job_id: u32,
    /// PSN of the request that this answers.
    pub original_request_psn: u32,
}

/// Any SES header that follows a PDS header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Ses {
    /// No SES header (next header 0).
    #[default]
    None,
    /// Standard request (next header 3).
    Standard(StandardRequest),
    /// Small request (next header 1).
    Small(SmallRequest),
    /// Medium request (next header 2).
    Medium(MediumRequest),
    /// Response (next header 4).
    Response(Response),
    /// Response with data (next header 5).
    ResponseWithData(ResponseWithData),
    /// Small response with data (next header 6).
    SmallResponseWithData(SmallResponseWithData),
}
