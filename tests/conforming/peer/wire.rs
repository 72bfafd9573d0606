//! The headers of UET in bytes, at the offsets of the tables that public decoders agree on.
//!
//! A header keeps its flags as the wire has them. Decoding refuses what is reserved; which of the defined flags may stand
//! where is for the initiator and the target to judge.

/// The UDP destination port of UET.
pub(crate) const PORT: u16 = 4793;
/// IPv4 header and the 20 bytes beyond it that the nominal size of a packet adds to its UDP length, UET §3.6.12.
const NOMINAL: u64 = 40;

pub(crate) const RETX: u8 = 0x10;
/// AR of requests and control packets.
pub(crate) const ACK_REQUEST: u8 = 0x08;
pub(crate) const SYN: u8 = 0x04;
/// ISROD of control packets.
pub(crate) const IS_ROD: u8 = 0x20;
/// M of ACKs and NACKs.
pub(crate) const MARKED: u8 = 0x20;
/// P of ACKs.
pub(crate) const PROBED: u8 = 0x08;
/// REQ of ACKs.
pub(crate) const REQUEST: u8 = 0x06;
/// The value of REQ that asks for a clear.
pub(crate) const CLEAR: u8 = 0x02;
/// NT of NACKs.
pub(crate) const OF_RUDI: u8 = 0x08;

/// Values of next_hdr.
pub(crate) const STANDARD: u8 = 3;
pub(crate) const RESPONSE: u8 = 4;
pub(crate) const RESPONSE_WITH_DATA: u8 = 5;

/// Types of packets.
pub(crate) const RUD: u8 = 2;
pub(crate) const ROD: u8 = 3;
pub(crate) const ACK: u8 = 7;
pub(crate) const ACK_CC: u8 = 8;
pub(crate) const NACK: u8 = 10;
pub(crate) const CONTROL: u8 = 11;
pub(crate) const RUD_CC: u8 = 13;
pub(crate) const ROD_CC: u8 = 14;

/// Types of control packets. Those that the peer treats like any other have no name.
pub(crate) mod control {
    pub(crate) const NOOP: u8 = 0;
    pub(crate) const ACK_REQ: u8 = 1;
    pub(crate) const CLEAR_CMD: u8 = 2;
    pub(crate) const CLEAR_REQ: u8 = 3;
    pub(crate) const CLOSE_CMD: u8 = 4;
    pub(crate) const CLOSE_REQ: u8 = 5;
    pub(crate) const PROBE: u8 = 6;
    pub(crate) const CREDIT: u8 = 7;
    pub(crate) const NEGOTIATION: u8 = 9;
}

/// NACK codes.
pub(crate) mod nack {
    pub(crate) const TRIMMED: u8 = 0x01;
    pub(crate) const TRIMMED_LAST_HOP: u8 = 0x02;
    pub(crate) const ROD_OOO: u8 = 0x0d;
    pub(crate) const ACK_WITH_DATA: u8 = 0x14;
}

/// The class that the DSCP of a packet stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Data,
    Trimmed,
    TrimmedLastHop,
    Control,
}

/// A UDP datagram with what the headers below it say.
#[derive(Clone, Debug)]
pub(crate) struct Datagram {
    /// The payload of UDP. Trimming shortens it.
    pub(crate) bytes: Vec<u8>,
    /// The length in the UDP header, which trimming leaves alone.
    pub(crate) udp_len: u16,
    /// The source port: the entropy.
    pub(crate) port: u16,
    pub(crate) class: Class,
    /// Whether it has been marked (CE).
    pub(crate) marked: bool,
}

impl Datagram {
    pub(crate) fn new(bytes: Vec<u8>, port: u16, class: Class) -> Datagram {
        Datagram { udp_len: 8 + bytes.len() as u16, bytes, port, class, marked: false }
    }

    pub(crate) fn nominal_size(&self) -> u64 {
        u64::from(self.udp_len) + NOMINAL
    }
}

/// A packet-delivery header. All types that the peer knows have the same first 12 bytes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pds {
    pub(crate) kind: u8,
    /// next_hdr, or the type of a control packet.
    pub(crate) next: u8,
    pub(crate) flags: u8,
    /// clear_psn_offset, ack_psn_offset, the number of a probe, or the two codes of a NACK.
    pub(crate) second: u16,
    /// The packet's number; of ACKs CACK.
    pub(crate) psn: u32,
    pub(crate) spdcid: u16,
    /// The receiver's PDCID; with SYN use_rsv_pdc, three reserved bits, and psn_offset.
    pub(crate) dpdcid: u16,
    pub(crate) rest: Rest,
}

/// What follows the 12 bytes that all headers have.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Rest {
    None,
    /// ccc_id and credit_target of a request, the payload of a NACK or a control packet.
    Word(u32),
    State(CcState),
}

/// The second part of an ACK_CC.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CcState {
    pub(crate) cc_type: u8,
    pub(crate) flags: u8,
    pub(crate) mpr: u8,
    pub(crate) sack_offset: i16,
    pub(crate) sack: u64,
    pub(crate) state: u64,
}

impl Pds {
    /// A header without CcState: NACKs and control packets have a payload of 0.
    pub(crate) fn new(kind: u8, next: u8, flags: u8, psn: u32, spdcid: u16, dpdcid: u16) -> Pds {
        let rest = if matches!(kind, NACK | CONTROL) { Rest::Word(0) } else { Rest::None };
        Pds { kind, next, flags, second: 0, psn, spdcid, dpdcid, rest }
    }

    /// The header at the beginning of `bytes`, and what follows it.
    pub(crate) fn decode(bytes: &[u8]) -> Result<(Pds, &[u8]), String> {
        need(bytes, 12, "a header")?;
        let prologue = get(bytes, 0, 2) as u16;
        let (kind, next, flags) = ((prologue >> 11) as u8, (prologue >> 7 & 15) as u8, prologue as u8 & 0x7f);
        let (len, allowed) = match kind {
            RUD | ROD => (12, RETX | ACK_REQUEST | SYN),
            RUD_CC | ROD_CC => (16, RETX | ACK_REQUEST | SYN),
            ACK => (12, MARKED | RETX | PROBED | REQUEST),
            ACK_CC => (32, MARKED | RETX | PROBED | REQUEST),
            NACK => (16, MARKED | RETX | OF_RUDI),
            CONTROL => (16, IS_ROD | RETX | ACK_REQUEST | SYN),
            _ => return Err(format!("type: {kind}")),
        };
        need(bytes, len, "a header")?;
        let rest = match len {
            12 => Rest::None,
            16 => Rest::Word(get(bytes, 12, 4) as u32),
            _ => Rest::State(CcState {
                cc_type: bytes[12] >> 4,
                flags: bytes[12] & 15,
                mpr: bytes[13],
                sack_offset: get(bytes, 14, 2) as i16,
                sack: get(bytes, 16, 8),
                state: get(bytes, 24, 8),
            }),
        };
        let word = |at| get(bytes, at, 2) as u16;
        let psn = get(bytes, 4, 4) as u32;
        let pds = Pds { kind, next, flags, second: word(2), psn, spdcid: word(8), dpdcid: word(10), rest };
        let reserved_of_syn = pds.psn_offset().is_some() && pds.dpdcid & 0x7000 != 0;
        if flags & !allowed != 0 || reserved_of_syn {
            return Err(format!("reserved bits: {pds:?}"));
        }
        Ok((pds, &bytes[len..]))
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put(&mut out, u64::from(self.kind) << 11 | u64::from(self.next) << 7 | u64::from(self.flags), 2);
        put(&mut out, self.second.into(), 2);
        put(&mut out, self.psn.into(), 4);
        put(&mut out, self.spdcid.into(), 2);
        put(&mut out, self.dpdcid.into(), 2);
        match &self.rest {
            Rest::None => {}
            Rest::Word(word) => put(&mut out, u64::from(*word), 4),
            Rest::State(cc) => {
                out.extend_from_slice(&[cc.cc_type << 4 | cc.flags, cc.mpr]);
                put(&mut out, u64::from(cc.sack_offset as u16), 2);
                put(&mut out, cc.sack, 8);
                put(&mut out, cc.state, 8);
            }
        }
        out
    }

    /// psn_offset of a SYN.
    pub(crate) fn psn_offset(&self) -> Option<u32> {
        let may_be = !matches!(self.kind, ACK | ACK_CC | NACK);
        (may_be && self.flags & SYN != 0).then_some(u32::from(self.dpdcid & 0xfff))
    }

    /// CLEAR_PSN of a request, ACK_PSN of an ACK.
    pub(crate) fn second_psn(&self) -> u32 {
        self.psn.wrapping_add(i32::from(self.second as i16) as u32)
    }
}

fn get(bytes: &[u8], at: usize, len: usize) -> u64 {
    bytes[at..at + len].iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

fn put(out: &mut Vec<u8>, value: u64, len: usize) {
    out.extend_from_slice(&value.to_be_bytes()[8 - len..]);
}

fn need(bytes: &[u8], len: usize, what: &str) -> Result<(), String> {
    (bytes.len() >= len).then_some(()).ok_or(format!("{what} of {} bytes instead of {len}", bytes.len()))
}

pub(crate) const HEADER_DATA: u8 = 0x04;
pub(crate) const END: u8 = 0x02;
pub(crate) const START: u8 = 0x01;
pub(crate) const READ: u8 = 0x02;
pub(crate) const SEND: u8 = 0x05;
pub(crate) const TAGGED_SEND: u8 = 0x09;

/// A standard SES request header of a SEND, a TAGGED_SEND or a READ.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Segment {
    pub(crate) opcode: u8,
    pub(crate) flags: u8,
    pub(crate) msg_id: u16,
    /// ri_generation and job_id.
    pub(crate) job: u32,
    pub(crate) pid_on_fep: u16,
    pub(crate) resource_index: u16,
    pub(crate) buffer_offset: u64,
    pub(crate) initiator: u32,
    pub(crate) match_bits: u64,
    /// header_data of the first segment; of others the length of the payload and where in the message it belongs.
    pub(crate) header_data: u64,
    pub(crate) request_length: u32,
}

impl Segment {
    const LEN: usize = 44;

    /// The header at the beginning of `bytes`, and the payload that follows it.
    pub(crate) fn decode(bytes: &[u8]) -> Result<(Segment, &[u8]), String> {
        need(bytes, Segment::LEN, "a standard request header")?;
        if bytes[0] >> 6 | bytes[1] >> 6 | bytes[8] >> 4 | bytes[10] >> 4 != 0 {
            return Err(format!("reserved bits or a version in {:x?}", &bytes[..12]));
        }
        let payload = &bytes[Segment::LEN..];
        let segment = Segment {
            opcode: bytes[0],
            flags: bytes[1],
            msg_id: get(bytes, 2, 2) as u16,
            job: get(bytes, 4, 4) as u32,
            pid_on_fep: get(bytes, 8, 2) as u16,
            resource_index: get(bytes, 10, 2) as u16,
            buffer_offset: get(bytes, 12, 8),
            initiator: get(bytes, 20, 4) as u32,
            match_bits: get(bytes, 24, 8),
            header_data: get(bytes, 32, 8),
            request_length: get(bytes, 40, 4) as u32,
        };
        if segment.flags & START == 0 && segment.header_data >> 32 != payload.len() as u64 {
            return Err(format!("payload_len {:#x} of {} bytes", segment.header_data >> 32, payload.len()));
        }
        Ok((segment, payload))
    }

    /// Where in the message the payload belongs.
    pub(crate) fn offset(&self) -> usize {
        if self.flags & START != 0 { 0 } else { self.header_data as u32 as usize }
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[self.opcode, self.flags]);
        put(out, self.msg_id.into(), 2);
        put(out, self.job.into(), 4);
        put(out, self.pid_on_fep.into(), 2);
        put(out, self.resource_index.into(), 2);
        put(out, self.buffer_offset, 8);
        put(out, self.initiator.into(), 4);
        put(out, self.match_bits, 8);
        put(out, self.header_data, 8);
        put(out, self.request_length.into(), 4);
    }
}

/// A default response to `segment`: list expected, opcode DEFAULT, return code OK.
pub(crate) fn default_response(segment: &Segment) -> Vec<u8> {
    let mut out = vec![0, 1];
    put(&mut out, segment.msg_id.into(), 2);
    put(&mut out, u64::from(segment.job & 0x00ff_ffff), 4);
    put(&mut out, segment.request_length.into(), 4);
    out
}

/// The return code of a response without data.
pub(crate) fn return_code(bytes: &[u8]) -> Result<u8, String> {
    if bytes.len() != 12 {
        return Err(format!("a response of {} bytes", bytes.len()));
    }
    match (bytes[0] & 0x3f, bytes[1] >> 6) {
        (0 | 1, 0) => Ok(bytes[1] & 0x3f),
        (opcode, version) => Err(format!("a response with opcode {opcode} and version {version}")),
    }
}

/// The response to the read `request` with these bytes: list expected, opcode WITH_DATA, return code OK.
pub(crate) fn response_with_data(request: &Segment, data: &[u8]) -> Vec<u8> {
    let mut out = vec![2, 1];
    put(&mut out, request.msg_id.into(), 2);
    put(&mut out, u64::from(request.job & 0x00ff_ffff), 4);
    put(&mut out, request.msg_id.into(), 2);
    put(&mut out, data.len() as u64, 2);
    put(&mut out, data.len() as u64, 4);
    put(&mut out, 0, 4);
    out.extend_from_slice(data);
    out
}

/// The number of the read that a response with data answers, and its bytes.
pub(crate) fn read_data(bytes: &[u8]) -> Result<(u16, &[u8]), String> {
    need(bytes, 20, "a response with data")?;
    let (header, data) = bytes.split_at(20);
    let is_success = header[0] & 0x3f == 2 && header[1] == 1;
    let lengths = (get(header, 10, 2), get(header, 12, 4), get(header, 16, 4));
    let len = data.len() as u64;
    if !is_success || header[4] != 0 || lengths != (len, len, 0) {
        return Err(format!("a response with data of {len} bytes: {header:x?}"));
    }
    Ok((get(header, 8, 2) as u16, data))
}
