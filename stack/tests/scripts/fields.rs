//! The words of scripts: the types of packets, their fields, and the names of codes.

use super::peer::wire;

/// A type of packets.
#[derive(Debug, PartialEq)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    /// The type in the prologue.
    pub(crate) number: u8,
    /// The type of a control packet.
    pub(crate) control: u8,
    pub(crate) groups: &'static [Group],
}

/// A set of fields that some types of packets have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    /// Of the headers below UET.
    Network,
    /// Of requests.
    Request,
    /// Of requests with congestion-control fields.
    RequestCc,
    /// Of standard SES requests.
    Segment,
    Ack,
    /// The second part of an ACK_CC.
    CcState,
    /// Of SES responses, with and without data.
    Response,
    Nack,
    Control,
    /// Of a datagram that is given in hexadecimal digits.
    Raw,
}

use Group::{Ack, CcState, Control, Nack, Network, Raw, Request, RequestCc, Response, Segment};

/// The type of a datagram, which the conforming peer has no use for.
pub(crate) const UUD: u8 = 6;

const fn kind(name: &'static str, number: u8, groups: &'static [Group]) -> Kind {
    Kind { name, number, control: 0, groups }
}

const fn control(name: &'static str, control: u8) -> Kind {
    Kind { name, number: wire::CONTROL, control, groups: &[Network, Control] }
}

pub(crate) const KINDS: &[Kind] = &[
    kind("RUD_REQ", wire::RUD, &[Network, Request, Segment]),
    kind("ROD_REQ", wire::ROD, &[Network, Request, Segment]),
    kind("RUD_CC_REQ", wire::RUD_CC, &[Network, Request, RequestCc, Segment]),
    kind("ROD_CC_REQ", wire::ROD_CC, &[Network, Request, RequestCc, Segment]),
    kind("UUD_REQ", UUD, &[Network, Segment]),
    kind("ACK", wire::ACK, &[Network, Ack, Response]),
    kind("ACK_CC", wire::ACK_CC, &[Network, Ack, CcState, Response]),
    kind("NACK", wire::NACK, &[Network, Nack]),
    control("NOOP", wire::control::NOOP),
    control("ACK_REQ", wire::control::ACK_REQ),
    control("CLEAR_CMD", wire::control::CLEAR_CMD),
    control("CLEAR_REQ", wire::control::CLEAR_REQ),
    control("CLOSE_CMD", wire::control::CLOSE_CMD),
    control("CLOSE_REQ", wire::control::CLOSE_REQ),
    control("PROBE", wire::control::PROBE),
    control("CREDIT", wire::control::CREDIT),
    control("CREDIT_REQ", 8),
    control("NEGOTIATION", wire::control::NEGOTIATION),
    kind("DATAGRAM", 0, &[Network, Raw]),
    kind("FRAME", 0, &[Raw]),
];

/// The type that a header is of.
pub(crate) fn kind_of(number: u8, next: u8) -> Option<&'static Kind> {
    let is = |kind: &&Kind| kind.number == number && (number != wire::CONTROL || kind.control == next);
    KINDS.iter().find(is)
}

/// A field, by the name that scripts give it.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) form: Form,
    pub(crate) groups: &'static [Group],
}

/// The values that a field can have.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Form {
    /// Present or absent: written as a word.
    Flag,
    /// 32 bits that wrap around.
    Psn,
    /// An integer of so many bits.
    Number(u32),
    /// An integer of so many bits, some of whose values have names.
    Named(u32, &'static [(&'static str, u64)]),
    /// A set of PSNs.
    Psns,
    /// Bytes of a message or of memory.
    Content,
    /// Bytes in hexadecimal digits.
    Hex,
}

const fn field(name: &'static str, form: Form, groups: &'static [Group]) -> Field {
    Field { name, form, groups }
}

pub(crate) const FIELDS: &[Field] = &[
    field("from", Form::Number(8), &[Network]),
    field("to", Form::Number(8), &[Network]),
    field("port", Form::Number(16), &[Network]),
    field("class", Form::Named(2, CLASSES), &[Network]),
    field("cut", Form::Number(16), &[Network]),
    field("CE", Form::Flag, &[Network]),
    field("RETX", Form::Flag, &[Request, Ack, Nack, Control]),
    field("AR", Form::Flag, &[Request, Control]),
    field("SYN", Form::Flag, &[Request, Control]),
    field("ISROD", Form::Flag, &[Control]),
    field("M", Form::Flag, &[Ack, Nack]),
    field("P", Form::Flag, &[Ack]),
    field("NT", Form::Flag, &[Nack]),
    field("code", Form::Named(8, CODES), &[Nack]),
    field("vendor", Form::Number(8), &[Nack]),
    field("req", Form::Named(2, &[("CLEAR", 1), ("CLOSE", 2)]), &[Ack]),
    field("psn", Form::Psn, &[Request, Nack, Control]),
    field("clear", Form::Psn, &[Request]),
    field("cack", Form::Psn, &[Ack]),
    field("acks", Form::Psn, &[Ack]),
    field("probe", Form::Number(16), &[Ack, Control]),
    field("spdcid", Form::Number(16), &[Request, Ack, Nack, Control]),
    field("dpdcid", Form::Number(16), &[Request, Ack, Nack, Control]),
    field("psn_offset", Form::Number(12), &[Request, Control]),
    field("ccc_id", Form::Number(8), &[RequestCc]),
    field("credit_target", Form::Number(24), &[RequestCc]),
    field("payload", Form::Psn, &[Nack, Control]),
    field("mpr", Form::Number(15), &[CcState]),
    field("sack", Form::Psns, &[CcState]),
    field("sack_base", Form::Psn, &[CcState]),
    field("cc_type", Form::Named(4, &[("NSCC", 0), ("CREDIT", 1), ("ECHO", 15)]), &[CcState]),
    field("service", Form::Number(16), &[CcState]),
    field("restore", Form::Number(1), &[CcState]),
    field("penalty", Form::Number(7), &[CcState]),
    field("rcvd", Form::Number(24), &[CcState]),
    field("ooo", Form::Number(16), &[CcState]),
    field("credit", Form::Number(24), &[CcState]),
    field("next", Form::Named(4, NEXT_HEADERS), &[Request, Ack]),
    field("op", Form::Named(6, OPCODES), &[Segment]),
    field("SOM", Form::Flag, &[Segment]),
    field("EOM", Form::Flag, &[Segment]),
    field("HD", Form::Flag, &[Segment]),
    field("rc", Form::Named(6, RETURN_CODES), &[Response]),
    field("msg", Form::Number(16), &[Segment, Response]),
    field("read", Form::Number(16), &[Response]),
    field("job", Form::Number(24), &[Segment, Response]),
    field("pid", Form::Number(12), &[Segment]),
    field("initiator", Form::Number(32), &[Segment]),
    field("match", Form::Number(64), &[Segment]),
    field("offset", Form::Number(64), &[Segment]),
    field("header_data", Form::Number(64), &[Segment]),
    field("at", Form::Number(32), &[Segment]),
    field("payload_len", Form::Number(14), &[Segment, Response]),
    field("total", Form::Number(32), &[Segment]),
    field("amo", Form::Named(8, AMOS), &[Segment]),
    field("type", Form::Named(8, TYPES), &[Segment]),
    field("operand", Form::Number(64), &[Segment]),
    field("compare", Form::Number(64), &[Segment]),
    field("swap", Form::Number(64), &[Segment]),
    field("modified", Form::Number(32), &[Response]),
    field("len", Form::Number(14), &[Segment, Response]),
    field("data", Form::Content, &[Segment, Response]),
    field("bytes", Form::Hex, &[Raw]),
];

pub(crate) const CLASSES: &[(&str, u64)] =
    &[("data", 0), ("trimmed", 1), ("trimmed_last_hop", 2), ("control", 3)];

const NEXT_HEADERS: &[(&str, u64)] = &[
    ("none", 0),
    ("small", 1),
    ("medium", 2),
    ("standard", wire::STANDARD as u64),
    ("response", wire::RESPONSE as u64),
    ("response_with_data", wire::RESPONSE_WITH_DATA as u64),
    ("small_response_with_data", 6),
];

const CODES: &[(&str, u64)] = &[
    ("TRIMMED", 0x01),
    ("TRIMMED_LASTHOP", 0x02),
    ("TRIMMED_ACK", 0x03),
    ("NO_PDC_AVAIL", 0x04),
    ("NO_CCC_AVAIL", 0x05),
    ("NO_BITMAP", 0x06),
    ("NO_PKT_BUFFER", 0x07),
    ("NO_GTD_DEL_AVAIL", 0x08),
    ("NO_SES_MSG_AVAIL", 0x09),
    ("NO_RESOURCE", 0x0a),
    ("PSN_OOR_WINDOW", 0x0b),
    ("ROD_OOO", 0x0d),
    ("INV_DPDCID", 0x0e),
    ("PDC_HDR_MISMATCH", 0x0f),
    ("CLOSING", 0x10),
    ("CLOSING_IN_ERR", 0x11),
    ("PKT_NOT_RCVD", 0x12),
    ("GTD_RESP_UNAVAIL", 0x13),
    ("ACK_WITH_DATA", 0x14),
    ("INVALID_SYN", 0x15),
    ("PDC_MODE_MISMATCH", 0x16),
    ("NEW_START_PSN", 0x17),
    ("RCVD_SES_PROCG", 0x18),
    ("UNEXP_EVENT", 0x19),
    ("RCVR_INFER_LOSS", 0x1a),
    ("EXP_NORMAL", 0xfd),
    ("EXP_ERROR", 0xfe),
    ("EXP_FATAL", 0xff),
];

const OPCODES: &[(&str, u64)] = &[
    ("NO_OP", 0x00),
    ("WRITE", 0x01),
    ("READ", wire::READ as u64),
    ("ATOMIC", 0x03),
    ("FETCHING_ATOMIC", 0x04),
    ("SEND", wire::SEND as u64),
    ("RNDV_SEND", 0x06),
    ("DATAGRAM_SEND", 0x07),
    ("DEFER_SEND", 0x08),
    ("TAGGED_SEND", wire::TAGGED_SEND as u64),
    ("RNDV_TSEND", 0x0a),
    ("DEFER_TSEND", 0x0b),
    ("DEFER_RTR", 0x0c),
    ("TSEND_ATOMIC", 0x0d),
    ("TSEND_FETCH_ATOMIC", 0x0e),
    ("MSG_ERROR", 0x0f),
];

/// The operations of atomic requests.
pub(crate) const AMOS: &[(&str, u64)] = &[
    ("MIN", 0x00),
    ("MAX", 0x01),
    ("SUM", 0x02),
    ("DIFF", 0x03),
    ("PROD", 0x04),
    ("LOR", 0x05),
    ("LAND", 0x06),
    ("BOR", 0x07),
    ("BAND", 0x08),
    ("LXOR", 0x09),
    ("BXOR", 0x0a),
    ("AMO_READ", 0x0b),
    ("AMO_WRITE", 0x0c),
    ("CSWAP", 0x0d),
    ("CSWAP_NE", 0x0e),
    ("CSWAP_LE", 0x0f),
    ("CSWAP_LT", 0x10),
    ("CSWAP_GE", 0x11),
    ("CSWAP_GT", 0x12),
    ("MSWAP", 0x13),
];

/// The datatype of atomic requests that scripts have, and one that can be asked for in vain.
pub(crate) const TYPES: &[(&str, u64)] = &[("UINT64", 0x07), ("LONG_DOUBLE", 0x0f)];

const RETURN_CODES: &[(&str, u64)] = &[
    ("NULL", 0x00),
    ("OK", 0x01),
    ("NO_MATCH", 0x05),
    ("UNSUPPORTED_OP", 0x06),
    ("UNSUPPORTED_SIZE", 0x07),
    ("AT_OUT_OF_RANGE", 0x0c),
    ("AMO_UNSUPPORTED_OP", 0x0f),
    ("AMO_UNSUPPORTED_DT", 0x10),
    ("AMO_UNSUPPORTED_SIZE", 0x11),
    ("PERM_VIOLATION", 0x17),
    ("OP_VIOLATION", 0x18),
    ("BAD_PID", 0x1a),
    ("BAD_JOB_ID", 0x1b),
    ("BAD_MKEY", 0x1c),
    ("CANCELLED", 0x1e),
    ("TOO_LONG", 0x22),
    ("DROPPED", 0x24),
];
