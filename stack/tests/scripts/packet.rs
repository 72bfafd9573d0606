//! Packets between the words of scripts and bytes.

use std::collections::BTreeMap;

use super::fields::{CLASSES, FIELDS, Field, Form, Group, Kind, UUD, kind_of};
use super::peer::wire::{self, CcState, Class, Datagram, Pds, Rest, Segment};

/// The value of a field.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Number(u64),
    Psns(Vec<u32>),
    Bytes(Vec<u8>),
}

/// A packet: its type, and the fields that it has or that are given of it.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) kind: &'static Kind,
    pub(crate) fields: BTreeMap<&'static str, Value>,
}

/// The PDCIDs that packets of scripts have unless they name others: those of the peer's initiator and of its target, and
/// the first one of the endpoint.
const INITIATOR: u64 = 7;
const TARGET: u64 = 9;
const ENDPOINT: u64 = 1;
/// The lowest source port of weft, where an entropy is 0.
const PORT: u64 = 0xc000;
/// Bytes of UET that a switch leaves of a trimmed packet: those of a frame of 128 bytes.
const TRIMMED: usize = 128 - 14 - 20 - 8;
/// Operations that the conforming peer has no use for.
const ATOMIC: u8 = 3;
const FETCHING_ATOMIC: u8 = 4;
/// That of a datagram.
const DATAGRAM_SEND: u64 = 7;
/// The datatype of atomic operations, and the bytes of memory that a value takes.
const UINT64: u64 = 7;
const VALUE: u64 = 8;
/// PSNs that one unit of mpr stands for.
const RANGE: u64 = 128;

impl Packet {
    pub(crate) fn new(kind: &'static Kind) -> Packet {
        Packet { kind, fields: BTreeMap::new() }
    }

    fn set(&mut self, name: &'static str, value: impl Into<u64>) {
        self.fields.insert(name, Value::Number(value.into()));
    }

    /// Notes the flag `name` if it is among `flags`.
    fn set_flag(&mut self, name: &'static str, flags: u8, bit: u8) {
        self.set(name, flags & bit != 0);
    }

    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        match self.fields.get(name) {
            Some(Value::Number(number)) => Some(*number),
            _ => None,
        }
    }

    fn or(&self, name: &str, default: u64) -> u64 {
        self.number(name).unwrap_or(default)
    }

    /// `bit` if the flag is set, which otherwise it is if `default`.
    fn bit(&self, name: &str, bit: u8, default: bool) -> u8 {
        if self.or(name, default.into()) != 0 { bit } else { 0 }
    }

    fn needed(&self, name: &str) -> Result<u64, String> {
        self.number(name).ok_or_else(|| format!("{} needs {name}=", self.kind.name))
    }

    fn bytes(&self, name: &str) -> Option<&[u8]> {
        match self.fields.get(name) {
            Some(Value::Bytes(bytes)) => Some(bytes),
            _ => None,
        }
    }

    /// The datagram with these fields, and with the usual values in all others.
    pub(crate) fn write(&self) -> Result<Datagram, String> {
        let is_cc = matches!(self.kind.number, wire::RUD_CC | wire::ROD_CC);
        let bytes = match self.kind.number {
            wire::RUD | wire::ROD | wire::RUD_CC | wire::ROD_CC => self.write_request(is_cc)?,
            wire::ACK | wire::ACK_CC => self.write_ack()?,
            UUD => self.write_uud(),
            wire::NACK => self.write_nack()?,
            wire::CONTROL => self.write_control()?,
            _ => self.bytes("bytes").ok_or("a datagram needs bytes=")?.to_vec(),
        };
        let is_data = matches!(self.kind.groups, [.., Group::Segment]) || self.carries_data();
        let class = self.or("class", if is_data { 0 } else { 3 });
        let class = [Class::Data, Class::Trimmed, Class::TrimmedLastHop, Class::Control][class as usize];
        let mut datagram = Datagram::new(bytes, self.or("port", PORT) as u16, class);
        let is_trimmed = matches!(class, Class::Trimmed | Class::TrimmedLastHop);
        let len = datagram.bytes.len();
        let left = self.or("cut", if is_trimmed { TRIMMED } else { len } as u64) as usize;
        datagram.bytes.truncate(left);
        if !is_trimmed {
            datagram.udp_len = 8 + datagram.bytes.len() as u16;
        }
        datagram.marked = self.or("CE", 0) != 0;
        Ok(datagram)
    }

    /// The last field of headers that can carry SYN, and the flag.
    fn destination(&self) -> (u8, u16) {
        let syn = self.number("psn_offset").is_some();
        let field = if syn { "psn_offset" } else { "dpdcid" };
        (self.bit("SYN", wire::SYN, syn), self.or(field, ENDPOINT) as u16)
    }

    fn write_request(&self, with_cc: bool) -> Result<Vec<u8>, String> {
        let psn = self.needed("psn")? as u32;
        let (syn, destination) = self.destination();
        let flags = syn | self.bit("RETX", wire::RETX, false) | self.bit("AR", wire::ACK_REQUEST, false);
        let before_first = psn.wrapping_sub(1).wrapping_sub(self.or("psn_offset", 0) as u32);
        let clear = self.or("clear", before_first.into()) as u32;
        let next = self.or("next", wire::STANDARD.into()) as u8;
        let spdcid = self.or("spdcid", INITIATOR) as u16;
        let rest = match with_cc {
            true => Rest::Word((self.or("ccc_id", 0) << 24 | self.or("credit_target", 0)) as u32),
            false => Rest::None,
        };
        let second = clear.wrapping_sub(psn) as u16;
        let header = Pds::new(self.kind.number, next, flags, psn, spdcid, destination);
        let mut bytes = Pds { second, rest, ..header }.encode();
        if next == wire::STANDARD {
            self.segment().encode(&mut bytes);
        }
        bytes.extend_from_slice(self.bytes("data").unwrap_or_default());
        Ok(bytes)
    }

    /// A header of 4 bytes, of which only the first two say anything, and the message behind it.
    fn write_uud(&self) -> Vec<u8> {
        let prologue = u16::from(UUD) << 11 | u16::from(wire::STANDARD) << 7;
        let mut bytes = [prologue.to_be_bytes(), [0; 2]].concat();
        self.segment().encode(&mut bytes);
        bytes.extend_from_slice(self.bytes("data").unwrap_or_default());
        bytes
    }

    fn segment(&self) -> Segment {
        let (at, len) = (self.or("at", 0), self.or("len", 0));
        let is_atomic = self.number("amo").is_some();
        let total = self.or("total", if is_atomic { VALUE } else { at + len });
        let is_one_packet = is_atomic || self.number("op") == Some(wire::READ.into());
        let (first, last) = (at == 0, at + len == total || is_one_packet);
        let start = self.bit("SOM", wire::START, first);
        let flags = start | self.bit("EOM", wire::END, last) | self.bit("HD", wire::HEADER_DATA, first);
        let position = self.or("payload_len", len) << 32 | at;
        Segment {
            opcode: self.or("op", if self.kind.number == UUD { DATAGRAM_SEND } else { wire::SEND.into() })
                as u8,
            flags,
            msg_id: self.or("msg", 0) as u16,
            job: self.or("job", 0) as u32,
            pid_on_fep: self.or("pid", 0) as u16,
            resource_index: 0,
            buffer_offset: self.or("offset", 0),
            initiator: self.or("initiator", 0) as u32,
            match_bits: self.or("match", 0),
            header_data: if start != 0 { self.or("header_data", 0) } else { position },
            request_length: total as u32,
        }
    }

    /// The payload of an atomic request: its extension, and its operand unless that is a part of it.
    pub(crate) fn atomic_payload(&self) -> Option<Vec<u8>> {
        let mut bytes = vec![self.number("amo")? as u8, self.or("type", UINT64) as u8, 0, 0];
        if self.number("compare").or(self.number("swap")).is_some() {
            for name in ["compare", "swap"] {
                bytes.extend_from_slice(&u128::from(self.or(name, 0)).to_be_bytes());
            }
        } else if let Some(operand) = self.number("operand") {
            bytes.extend_from_slice(&operand.to_le_bytes());
        }
        Some(bytes)
    }

    fn read_atomic(&mut self, payload: &[u8]) -> Result<(), String> {
        let Some((&[amo, datatype, 0, 0], rest)) = payload.split_first_chunk::<4>() else {
            return Err(format!("no atomic extension: {payload:02x?}"));
        };
        self.set("amo", amo);
        self.set("type", datatype);
        if let Ok(operand) = rest.try_into() {
            self.set("operand", u64::from_le_bytes(operand));
        } else if let Some((compare, swap)) = rest.split_first_chunk::<16>() {
            let swap = swap.try_into().map_err(|_| format!("{} bytes of operands", rest.len()))?;
            for (name, operand) in [("compare", *compare), ("swap", swap)] {
                let operand = u64::try_from(u128::from_be_bytes(operand));
                self.set(name, operand.map_err(|_| format!("{name} is no number of 64 bits"))?);
            }
        } else if !rest.is_empty() {
            return Err(format!("{} bytes of operands", rest.len()));
        }
        Ok(())
    }

    fn carries_data(&self) -> bool {
        matches!(self.kind.number, wire::ACK | wire::ACK_CC) && self.fields.contains_key("read")
    }

    fn write_ack(&self) -> Result<Vec<u8>, String> {
        let cack = self.needed("cack")? as u32;
        let probe = self.number("probe");
        let second = probe.unwrap_or_else(|| (self.or("acks", cack.into()) as u32).wrapping_sub(cack).into());
        let flags = self.bit("M", wire::MARKED, false)
            | self.bit("RETX", wire::RETX, false)
            | self.bit("P", wire::PROBED, probe.is_some())
            | (self.or("req", 0) as u8) << 1;
        let (next, response) = match (self.number("read"), self.number("rc")) {
            (Some(read), _) => (wire::RESPONSE_WITH_DATA, self.response_with_data(read)),
            (None, Some(code)) => (wire::RESPONSE, self.response(code)),
            (None, None) => (0, Vec::new()),
        };
        let next = self.or("next", next.into()) as u8;
        let (spdcid, dpdcid) = (self.or("spdcid", TARGET) as u16, self.or("dpdcid", ENDPOINT) as u16);
        let rest = match self.kind.number {
            wire::ACK_CC => Rest::State(self.cc_state(cack)?),
            _ => Rest::None,
        };
        let header = Pds::new(self.kind.number, next, flags, cack, spdcid, dpdcid);
        let header = Pds { second: second as u16, rest, ..header };
        Ok([header.encode(), response].concat())
    }

    fn cc_state(&self, cack: u32) -> Result<CcState, String> {
        let psns = match self.fields.get("sack") {
            Some(Value::Psns(psns)) => &psns[..],
            _ => &[],
        };
        let base = self.or("sack_base", cack.wrapping_add(1).into()) as u32;
        let mut sack = 0;
        for psn in psns {
            let bit = psn.wrapping_sub(base);
            if bit >= 64 {
                return Err(format!("sack= names PSN {psn}, which is not among the 64 from {base} on"));
            }
            sack |= 1 << bit;
        }
        let cc_type = self.or("cc_type", u64::from(self.number("credit").is_some()));
        let first = match cc_type {
            1 => self.or("credit", 0) << 40,
            _ => {
                let flow_control = self.or("restore", 0) << 7 | self.or("penalty", 0);
                self.or("service", 0) << 48 | flow_control << 40 | self.or("rcvd", 0) << 16
            }
        };
        Ok(CcState {
            cc_type: cc_type as u8,
            flags: 0,
            mpr: (self.or("mpr", 4 * RANGE) / RANGE) as u8,
            sack_offset: base.wrapping_sub(cack) as i16,
            sack,
            state: first | self.or("ooo", psns.len() as u64),
        })
    }

    /// A response without data: list expected, opcode RESPONSE.
    fn response(&self, code: u64) -> Vec<u8> {
        let mut bytes = vec![1, code as u8];
        bytes.extend_from_slice(&(self.or("msg", 0) as u16).to_be_bytes());
        bytes.extend_from_slice(&(self.or("job", 0) as u32).to_be_bytes());
        bytes.extend_from_slice(&(self.or("modified", 0) as u32).to_be_bytes());
        bytes
    }

    /// A response to the read with the number `read`: list expected, opcode WITH_DATA.
    fn response_with_data(&self, read: u64) -> Vec<u8> {
        let data = self.bytes("data").unwrap_or_default();
        let len = data.len() as u64;
        let mut bytes = vec![2, self.or("rc", 1) as u8];
        bytes.extend_from_slice(&(self.or("msg", read) as u16).to_be_bytes());
        bytes.extend_from_slice(&(self.or("job", 0) as u32).to_be_bytes());
        bytes.extend_from_slice(&(read as u16).to_be_bytes());
        bytes.extend_from_slice(&(self.or("payload_len", len) as u16).to_be_bytes());
        bytes.extend_from_slice(&(self.or("modified", len) as u32).to_be_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(data);
        bytes
    }

    fn write_nack(&self) -> Result<Vec<u8>, String> {
        let flags = self.bit("M", wire::MARKED, false)
            | self.bit("RETX", wire::RETX, false)
            | self.bit("NT", wire::OF_RUDI, false);
        let (spdcid, dpdcid) = (self.or("spdcid", TARGET) as u16, self.or("dpdcid", ENDPOINT) as u16);
        let header = Pds::new(wire::NACK, 0, flags, self.needed("psn")? as u32, spdcid, dpdcid);
        let second = (self.needed("code")? << 8 | self.or("vendor", 0)) as u16;
        Ok(Pds { second, rest: Rest::Word(self.or("payload", 0) as u32), ..header }.encode())
    }

    fn write_control(&self) -> Result<Vec<u8>, String> {
        let (syn, destination) = self.destination();
        let flags = syn
            | self.bit("RETX", wire::RETX, false)
            | self.bit("AR", wire::ACK_REQUEST, false)
            | self.bit("ISROD", wire::IS_ROD, false);
        let of_target = matches!(
            self.kind.control,
            wire::control::CLEAR_REQ | wire::control::CLOSE_REQ | wire::control::CREDIT
        );
        let spdcid = self.or("spdcid", if of_target { TARGET } else { INITIATOR }) as u16;
        let psn = self.needed("psn")? as u32;
        let header = Pds::new(wire::CONTROL, self.kind.control, flags, psn, spdcid, destination);
        let (second, rest) = (self.or("probe", 0) as u16, Rest::Word(self.or("payload", 0) as u32));
        Ok(Pds { second, rest, ..header }.encode())
    }

    /// All fields of a datagram.
    pub(crate) fn read(datagram: &Datagram) -> Result<Packet, String> {
        if datagram.bytes.first().is_some_and(|first| first >> 3 == UUD) {
            return Packet::read_uud(datagram);
        }
        let (pds, rest) = Pds::decode(&datagram.bytes)?;
        let kind = kind_of(pds.kind, pds.next).ok_or_else(|| format!("no such type: {pds:?}"))?;
        let mut packet = Packet::new(kind);
        packet.set("port", datagram.port);
        packet.set("class", datagram.class as u64);
        packet.set("spdcid", pds.spdcid);
        match pds.kind {
            wire::ACK | wire::ACK_CC => packet.read_ack(&pds, rest)?,
            wire::NACK => packet.read_nack(&pds),
            wire::CONTROL => packet.read_control(&pds),
            _ => packet.read_request(&pds, rest)?,
        }
        if !matches!(pds.kind, wire::ACK | wire::ACK_CC)
            && !kind.groups.contains(&Group::Segment)
            && !rest.is_empty()
        {
            return Err(format!("{} bytes behind the header of {}", rest.len(), packet.describe()));
        }
        Ok(packet)
    }

    fn read_uud(datagram: &Datagram) -> Result<Packet, String> {
        let kind = kind_of(UUD, 0).ok_or("no such type")?;
        let mut packet = Packet::new(kind);
        packet.set("port", datagram.port);
        packet.set("class", datagram.class as u64);
        let (header, rest) = datagram.bytes.split_first_chunk::<4>().ok_or("a UUD header has 4 bytes")?;
        if header[..] != [0x31, 0x80, 0, 0] {
            return Err(format!("a UUD header with a standard request is 31800000, not {header:02x?}"));
        }
        packet.read_segment(rest)?;
        Ok(packet)
    }

    fn read_destination(&mut self, pds: &Pds) {
        self.set_flag("SYN", pds.flags, wire::SYN);
        match pds.psn_offset() {
            Some(offset) => self.set("psn_offset", offset),
            None => self.set("dpdcid", pds.dpdcid),
        }
    }

    fn read_request(&mut self, pds: &Pds, rest: &[u8]) -> Result<(), String> {
        self.set_flag("RETX", pds.flags, wire::RETX);
        self.set_flag("AR", pds.flags, wire::ACK_REQUEST);
        self.read_destination(pds);
        self.set("psn", pds.psn);
        self.set("clear", pds.second_psn());
        self.set("next", pds.next);
        if let Rest::Word(word) = pds.rest {
            self.set("ccc_id", word >> 24);
            self.set("credit_target", word & 0xff_ffff);
        }
        if pds.next != wire::STANDARD {
            return Err(format!("next_hdr {} in a request", pds.next));
        }
        self.read_segment(rest)
    }

    fn read_segment(&mut self, rest: &[u8]) -> Result<(), String> {
        let (segment, payload) = Segment::decode(rest)?;
        self.set("op", segment.opcode);
        self.set_flag("SOM", segment.flags, wire::START);
        self.set_flag("EOM", segment.flags, wire::END);
        self.set_flag("HD", segment.flags, wire::HEADER_DATA);
        self.set("msg", segment.msg_id);
        self.set("job", segment.job);
        self.set("pid", segment.pid_on_fep);
        self.set("initiator", segment.initiator);
        self.set("match", segment.match_bits);
        self.set("offset", segment.buffer_offset);
        self.set("at", segment.offset() as u64);
        self.set("total", segment.request_length);
        if segment.flags & wire::START != 0 {
            self.set("header_data", segment.header_data);
        }
        self.set_data(payload);
        match segment.opcode {
            ATOMIC | FETCHING_ATOMIC => self.read_atomic(payload),
            _ => Ok(()),
        }
    }

    fn set_data(&mut self, payload: &[u8]) {
        self.set("len", payload.len() as u64);
        self.fields.insert("data", Value::Bytes(payload.to_vec()));
    }

    fn read_ack(&mut self, pds: &Pds, rest: &[u8]) -> Result<(), String> {
        self.set_flag("M", pds.flags, wire::MARKED);
        self.set_flag("RETX", pds.flags, wire::RETX);
        self.set_flag("P", pds.flags, wire::PROBED);
        self.set("req", (pds.flags & wire::REQUEST) >> 1);
        self.set("cack", pds.psn);
        self.set("dpdcid", pds.dpdcid);
        match pds.flags & wire::PROBED != 0 {
            true => self.set("probe", pds.second),
            false => self.set("acks", pds.second_psn()),
        }
        self.set("next", pds.next);
        if let Rest::State(state) = &pds.rest {
            self.read_state(pds.psn, state);
        }
        match pds.next {
            0 if rest.is_empty() => {}
            wire::RESPONSE => {
                self.set("rc", wire::return_code(rest)?);
                self.set("job", u32::from_be_bytes([0, rest[5], rest[6], rest[7]]));
                self.set("msg", u16::from_be_bytes([rest[2], rest[3]]));
                self.set("modified", u32::from_be_bytes([rest[8], rest[9], rest[10], rest[11]]));
            }
            wire::RESPONSE_WITH_DATA => {
                let (read, data) = wire::read_data(rest)?;
                self.set("job", u32::from_be_bytes([0, rest[5], rest[6], rest[7]]));
                self.set("rc", 1u8);
                self.set("read", read);
                self.set_data(data);
            }
            next => return Err(format!("next_hdr {next} and {} bytes in an ACK", rest.len())),
        }
        Ok(())
    }

    fn read_state(&mut self, cack: u32, cc: &CcState) {
        self.set("mpr", u64::from(cc.mpr) * RANGE);
        self.set("cc_type", cc.cc_type);
        let base = cack.wrapping_add(i32::from(cc.sack_offset) as u32);
        self.set("sack_base", base);
        let psns = (0..64).filter(|bit| cc.sack >> bit & 1 == 1).map(|bit| base.wrapping_add(bit)).collect();
        self.fields.insert("sack", Value::Psns(psns));
        self.set("ooo", cc.state & 0xffff);
        if cc.cc_type == 1 {
            self.set("credit", cc.state >> 40);
        } else {
            self.set("service", cc.state >> 48);
            self.set("restore", cc.state >> 47 & 1);
            self.set("penalty", cc.state >> 40 & 0x7f);
            self.set("rcvd", cc.state >> 16 & 0xff_ffff);
        }
    }

    fn read_nack(&mut self, pds: &Pds) {
        self.set_flag("M", pds.flags, wire::MARKED);
        self.set_flag("RETX", pds.flags, wire::RETX);
        self.set_flag("NT", pds.flags, wire::OF_RUDI);
        self.set("code", pds.second >> 8);
        self.set("vendor", pds.second & 0xff);
        self.set("psn", pds.psn);
        self.set("dpdcid", pds.dpdcid);
        self.set_word("payload", &pds.rest);
    }

    fn read_control(&mut self, pds: &Pds) {
        self.set_flag("RETX", pds.flags, wire::RETX);
        self.set_flag("AR", pds.flags, wire::ACK_REQUEST);
        self.set_flag("ISROD", pds.flags, wire::IS_ROD);
        self.read_destination(pds);
        self.set("psn", pds.psn);
        self.set("probe", pds.second);
        self.set_word("payload", &pds.rest);
    }

    fn set_word(&mut self, name: &'static str, rest: &Rest) {
        if let Rest::Word(word) = rest {
            self.set(name, *word);
        }
    }

    /// The fields in which `self`, which was expected, and `seen` differ, in words.
    pub(crate) fn differences(&self, seen: &Packet) -> Vec<String> {
        if self.kind != seen.kind {
            return vec![format!("it is {}, not {}", a(seen.kind.name), a(self.kind.name))];
        }
        let differs = |(name, expected): (&&'static str, &Value)| {
            let field = field(name)?;
            match seen.fields.get(name) {
                Some(value) if value == expected => None,
                Some(Value::Bytes(bytes)) => Some(match expected {
                    Value::Bytes(wanted) if wanted.len() == bytes.len() => {
                        let at = wanted.iter().zip(bytes).position(|(a, b)| a != b).unwrap_or(0);
                        format!("{name} differs from byte {at} on")
                    }
                    Value::Bytes(wanted) => {
                        format!("{name} has {} bytes instead of {}", bytes.len(), wanted.len())
                    }
                    _ => format!("{name} is of another form"),
                }),
                Some(value) => Some(format!("{} instead of {}", show(field, value), show(field, expected))),
                None => Some(format!("there is no {name}")),
            }
        };
        self.fields.iter().filter_map(differs).collect()
    }

    /// The packet in the words of scripts.
    pub(crate) fn describe(&self) -> String {
        let mut words = vec![self.kind.name.to_owned()];
        for field in FIELDS {
            match self.fields.get(field.name) {
                Some(Value::Number(0)) if matches!(field.form, Form::Flag) => {}
                Some(Value::Bytes(_)) | None => {}
                Some(value) => words.push(show(field, value)),
            }
        }
        words.join(" ")
    }
}

fn a(name: &str) -> String {
    let article = if name.starts_with(['A', 'E', 'I', 'N', 'O']) { "an" } else { "a" };
    format!("{article} {name}")
}

pub(crate) fn field(name: &str) -> Option<&'static Field> {
    FIELDS.iter().find(|field| field.name == name)
}

/// `name=value`, or the name of a flag.
fn show(field: &Field, value: &Value) -> String {
    let name = field.name;
    match (field.form, value) {
        (Form::Flag, Value::Number(set)) => format!("{}{name}", if *set == 0 { "!" } else { "" }),
        (Form::Named(_, names), Value::Number(number)) => {
            match names.iter().find(|(_, value)| value == number) {
                Some((word, _)) => format!("{name}={word}"),
                None => format!("{name}={number:#x}"),
            }
        }
        (_, Value::Number(number)) => format!("{name}={number}"),
        (_, Value::Psns(psns)) if psns.is_empty() => format!("{name}=none"),
        (_, Value::Psns(psns)) => {
            let psns: Vec<String> = psns.iter().map(u32::to_string).collect();
            format!("{name}={}", psns.join(","))
        }
        (_, Value::Bytes(bytes)) => format!("{name} of {} bytes", bytes.len()),
    }
}

/// `CLASSES` has the order of `Class`.
#[test]
fn classes_have_the_names_of_the_codec() {
    for (class, name) in
        [Class::Data, Class::Trimmed, Class::TrimmedLastHop, Class::Control].into_iter().zip(CLASSES)
    {
        assert_eq!(class as u64, name.1, "{}", name.0);
    }
}
