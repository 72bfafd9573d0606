//! The initiator: one PDC, opened by the first message, and its window.

use std::collections::{BTreeMap, BTreeSet};

use super::nscc::{Feedback, Nscc};
use super::wire::{self, CcState, Class, Datagram, Pds, Rest, Segment, control, nack};
use super::{Message, Out, Ps, Settings};

/// Headers of a standard request in its UDP length, and the 40 bytes of its nominal size: 8 + 12 + 44 + 40.
const OVERHEAD: u64 = 104;
/// Bytes of a request's congestion control fields, and of the CRC.
const CC_FIELDS: u64 = 4;
const CRC: u64 = 4;
/// The next packet number reaches the wrap of the PSN soon.
const START: u32 = u32::MAX - 500;
const OURS: u16 = 0x1001;
const FIRST_PORT: u16 = 0xc000;
const PORTS: u16 = 64;
/// Bytes of credit asked for beyond what has been sent.
const DEMAND: u64 = 1 << 20;
const MAX_RETRIES: u32 = 10;

pub(crate) struct Initiator {
    settings: Settings,
    /// The target's PDCID, once an ACK has told it.
    theirs: Option<u16>,
    messages: Vec<Message>,
    /// Message and offset of the next segment that has not been sent.
    next: (usize, usize),
    /// Packets sent, numbered from 0, and how many of them are acknowledged without a gap.
    sent: u32,
    acknowledged: u32,
    outstanding: BTreeMap<u32, Sent>,
    /// Packets to be sent again.
    again: BTreeSet<u32>,
    close: bool,
    mp_range: u32,
    /// Nominal bytes of a data packet beyond its payload.
    overhead: u64,
    nscc: Nscc,
    in_flight: i64,
    /// Nominal bytes of all data packets, and of those of which an ACK has told.
    data_bytes: u64,
    known_bytes: u64,
    /// `rcvd_bytes` of the latest ACK, without its wrap.
    received_units: u64,
    trace: Vec<(Ps, u64)>,
    reads: Vec<Read>,
    /// Read and offset of the next request that has not been sent.
    next_read: (usize, usize),
    pub(crate) counters: Counters,
}

/// A read of the target's memory.
struct Read {
    key: u64,
    offset: usize,
    bytes: Vec<u8>,
    missing: usize,
}

/// What an initiator has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    /// Expiries of retransmission timers.
    pub(crate) timeouts: u32,
    /// ACKs of packets that were marked.
    pub(crate) marked: u32,
    /// NACKs.
    pub(crate) refused: u32,
    /// CREDIT packets.
    pub(crate) credits: u32,
}

/// A packet that is not acknowledged by CACK.
struct Sent {
    piece: Piece,
    size: u64,
    /// Bytes that it asks for.
    returning: u64,
    at: Ps,
    retries: u32,
    /// Neither acknowledged nor believed lost.
    in_flight: bool,
    sacked: bool,
}

#[derive(Clone, Copy)]
enum Piece {
    Segment { message: usize, at: usize },
    Read { read: usize, at: usize },
    Close,
}

impl Initiator {
    pub(super) fn new(settings: Settings) -> Initiator {
        let cc_fields = if settings.credit { CC_FIELDS } else { 0 };
        let overhead = OVERHEAD + cc_fields + if settings.crc { CRC } else { 0 };
        Initiator {
            settings,
            theirs: None,
            messages: Vec::new(),
            next: (0, 0),
            sent: 0,
            acknowledged: 0,
            outstanding: BTreeMap::new(),
            again: BTreeSet::new(),
            close: false,
            mp_range: 128,
            overhead,
            nscc: Nscc::new(settings.mtu as u64 + overhead, settings.base_rtt, settings.rate),
            in_flight: 0,
            data_bytes: 0,
            known_bytes: 0,
            received_units: 0,
            trace: Vec::new(),
            reads: Vec::new(),
            next_read: (0, 0),
            counters: Counters::default(),
        }
    }

    pub(crate) fn post(&mut self, message: Message) {
        self.messages.push(message);
    }

    /// Reads `len` bytes from `offset` of the target's memory, once all messages have been sent.
    pub(crate) fn read(&mut self, key: u64, offset: usize, len: usize) {
        self.reads.push(Read { key, offset, bytes: vec![0; len], missing: len });
    }

    /// The bytes of each read that has been answered.
    pub(crate) fn read_bytes(&self) -> impl Iterator<Item = &[u8]> {
        self.reads.iter().filter(|read| read.missing == 0).map(|read| &read.bytes[..])
    }

    /// Closes the PDC when everything has been acknowledged.
    pub(crate) fn close(&mut self) {
        self.close = true;
    }

    /// Whether everything that was posted has been acknowledged, the close included.
    pub(crate) fn is_done(&self) -> bool {
        let all_sent = self.next.0 == self.messages.len() && self.next_read.0 == self.reads.len();
        all_sent && self.outstanding.is_empty()
    }

    /// The window whenever an acknowledgement has changed it, bytes.
    pub(crate) fn trace(&self) -> &[(Ps, u64)] {
        &self.trace
    }

    pub(super) fn poll_transmit(&mut self, now: Ps) -> Option<Datagram> {
        let number = self.again.first().copied().unwrap_or(self.sent);
        let known = self.outstanding.get(&number).map(|sent| sent.piece);
        let piece = known.or_else(|| self.new_piece())?;
        let size = self.size(piece);
        let window = self.nscc.window() as i64;
        let returning = self.returning(piece);
        let fits = |bytes: i64| bytes + (size + returning) as i64 <= window;
        if self.in_flight > 0 && !fits(self.in_flight) || number >= self.acknowledged + self.mp_range {
            return None;
        }
        let retries = match self.outstanding.get(&number) {
            Some(sent) => sent.retries,
            None => {
                self.advance(piece, size);
                0
            }
        };
        let retransmission = self.again.remove(&number);
        self.in_flight += (size + returning) as i64;
        let sent = Sent { piece, size, returning, at: now, retries, in_flight: true, sacked: false };
        self.outstanding.insert(number, sent);
        // The window is full or the message over: nothing else may make the target answer.
        let ask = retransmission || self.new_piece().is_none() || !fits(self.in_flight);
        let flags = if retransmission { wire::RETX } else { 0 } | if ask { wire::ACK_REQUEST } else { 0 };
        Some(self.write(number, piece, flags))
    }

    fn new_piece(&self) -> Option<Piece> {
        let (message, at) = self.next;
        if message < self.messages.len() {
            return Some(Piece::Segment { message, at });
        }
        let (read, at) = self.next_read;
        if read < self.reads.len() {
            return Some(Piece::Read { read, at });
        }
        (self.close && self.outstanding.is_empty() && self.sent > 0).then_some(Piece::Close)
    }

    /// `piece` gets the next number.
    fn advance(&mut self, piece: Piece, size: u64) {
        self.sent += 1;
        match piece {
            Piece::Close => self.close = false,
            Piece::Read { read, at } => {
                self.data_bytes += size;
                let end = at + self.settings.mtu;
                let over = end >= self.reads[read].bytes.len();
                self.next_read = if over { (read + 1, 0) } else { (read, end) };
            }
            Piece::Segment { message, at } => {
                self.data_bytes += size;
                let end = at + self.settings.mtu;
                let over = end >= self.messages[message].bytes.len();
                self.next = if over { (message + 1, 0) } else { (message, end) };
            }
        }
    }

    fn payload(&self, message: usize, at: usize) -> &[u8] {
        let bytes = &self.messages[message].bytes;
        &bytes[at..bytes.len().min(at + self.settings.mtu)]
    }

    fn size(&self, piece: Piece) -> u64 {
        match piece {
            Piece::Close => 16 + 8 + 40,
            Piece::Read { .. } => self.overhead,
            Piece::Segment { message, at } => self.payload(message, at).len() as u64 + self.overhead,
        }
    }

    /// Bytes that the answer brings.
    fn returning(&self, piece: Piece) -> u64 {
        let Piece::Read { read, at } = piece else { return 0 };
        (self.reads[read].bytes.len() - at).min(self.settings.mtu) as u64
    }

    fn write(&self, number: u32, piece: Piece, flags: u8) -> Datagram {
        let port = if self.settings.ordered { FIRST_PORT } else { FIRST_PORT + number as u16 % PORTS };
        match piece {
            Piece::Close => {
                let close = self.command(control::CLOSE_CMD, flags, number);
                Datagram::new(close.encode(), port, Class::Control)
            }
            Piece::Segment { message, at } => {
                let mut bytes = self.request(number, flags).encode();
                self.segment(message, at).encode(&mut bytes);
                bytes.extend_from_slice(self.payload(message, at));
                Datagram::new(bytes, port, Class::Data)
            }
            Piece::Read { read, at } => {
                let mut bytes = self.request(number, flags).encode();
                self.read_segment(number, read, at).encode(&mut bytes);
                Datagram::new(bytes, port, Class::Data)
            }
        }
    }

    fn request(&self, number: u32, flags: u8) -> Pds {
        let kind = match (self.settings.ordered, self.settings.credit) {
            (false, false) => wire::RUD,
            (true, false) => wire::ROD,
            (false, true) => wire::RUD_CC,
            (true, true) => wire::ROD_CC,
        };
        // SYN until an ACK has told the target's PDCID; psn_offset is the packet's number.
        let (syn, dpdcid) = self.theirs.map_or((wire::SYN, number as u16), |theirs| (0, theirs));
        let credit_target = (self.data_bytes + DEMAND).div_ceil(256) as u32 & 0xff_ffff;
        let rest = if self.settings.credit { Rest::Word(credit_target) } else { Rest::None };
        let second = self.cleared().wrapping_sub(1).wrapping_sub(number) as u16;
        let psn = START.wrapping_add(number);
        Pds { second, rest, ..Pds::new(kind, wire::STANDARD, flags | syn, psn, OURS, dpdcid) }
    }

    /// The packets before the first whose answer may be missing: their responses are no longer needed.
    fn cleared(&self) -> u32 {
        let is_done = |number: &u32| self.outstanding.get(number).is_some_and(|sent| sent.sacked);
        self.acknowledged + (self.acknowledged..self.sent).take_while(is_done).count() as u32
    }

    fn read_segment(&self, number: u32, read: usize, at: usize) -> Segment {
        let Read { key, offset, bytes, .. } = &self.reads[read];
        Segment {
            opcode: wire::READ,
            flags: wire::START | wire::END,
            // Any number that no other packet under way has.
            msg_id: 0x8000 | number as u16,
            job: 0,
            pid_on_fep: 0,
            resource_index: 0,
            buffer_offset: (offset + at) as u64,
            initiator: 0,
            match_bits: *key,
            header_data: 0,
            request_length: (bytes.len() - at).min(self.settings.mtu) as u32,
        }
    }

    fn segment(&self, message: usize, at: usize) -> Segment {
        let len = self.payload(message, at).len();
        let Message { tag, header_data, bytes } = &self.messages[message];
        let (first, last) = (at == 0, at + len == bytes.len());
        Segment {
            opcode: if tag.is_some() { wire::TAGGED_SEND } else { wire::SEND },
            flags: if first { wire::START | wire::HEADER_DATA } else { 0 } | if last { wire::END } else { 0 },
            msg_id: message as u16,
            job: 0,
            pid_on_fep: 0,
            resource_index: 0,
            buffer_offset: 0,
            // Anything: no more than an implementation's own matching depends on it. Here it is an IPv4 address.
            initiator: 0xc000_0201,
            match_bits: tag.unwrap_or(0),
            header_data: if first { *header_data } else { (len as u64) << 32 | at as u64 },
            request_length: bytes.len() as u32,
        }
    }

    /// A control packet to the target.
    fn command(&self, kind: u8, flags: u8, number: u32) -> Pds {
        let (psn, theirs) = (START.wrapping_add(number), self.theirs.unwrap_or(0));
        Pds::new(wire::CONTROL, kind, flags, psn, OURS, theirs)
    }

    pub(super) fn on_ack(&mut self, now: Ps, ack: &Pds, rest: &[u8], out: &mut Out) {
        let Some(acknowledged) = self.check_ack(ack, rest, out) else { return };
        self.theirs.get_or_insert(ack.spdcid);
        let rtt = self.rtt(now, ack);
        let marked = ack.flags & wire::MARKED != 0;
        self.counters.marked += u32::from(marked);
        let newest = acknowledged >= self.acknowledged;
        if ack.next == wire::RESPONSE_WITH_DATA
            && let Err(what) = self.on_data(ack.second_psn().wrapping_sub(START), rest)
        {
            out.violations.push(what);
        }
        self.on_cack(acknowledged);
        if ack.flags & wire::REQUEST == wire::CLEAR {
            let clear = START.wrapping_add(self.cleared()).wrapping_sub(1);
            let command = self.command(control::CLEAR_CMD, 0, self.sent - 1);
            out.send(&Pds { rest: Rest::Word(clear), ..command }, FIRST_PORT);
        }
        let Rest::State(cc) = &ack.rest else { return };
        self.mp_range = u32::from(cc.mpr) * 128;
        self.on_sack(acknowledged, cc, out);
        let newly_received = self.on_state(cc, newest, out);
        self.in_flight -= newly_received as i64;
        let flow_control = if cc.cc_type == 0 { (cc.state >> 40) as u8 } else { 0 };
        let (penalty, restore) = (flow_control & 0x7f, flow_control & 0x80 != 0);
        let in_flight = self.in_flight.max(0) as u64;
        let feedback = Feedback { newly_received, rtt, marked, penalty, restore, in_flight };
        self.nscc.on_ack(now, &feedback);
        let window = self.nscc.window();
        if self.trace.last().is_none_or(|last| last.1 != window) {
            self.trace.push((now, window));
        }
    }

    /// The answer to packet `number`, which is a read.
    fn on_data(&mut self, number: u32, response: &[u8]) -> Result<(), String> {
        let (msg_id, data) = wire::read_data(response)?;
        // Another copy of it may have come before.
        let Some(mut sent) = self.outstanding.remove(&number) else { return Ok(()) };
        let Piece::Read { read, at } = sent.piece else { return Err(format!("data for packet {number}")) };
        let expected = (0x8000 | number as u16, sent.returning);
        if (msg_id, data.len() as u64) != expected {
            return Err(format!("{} bytes for {msg_id:#x} instead of {expected:?}", data.len()));
        }
        if !sent.sacked {
            let read = &mut self.reads[read];
            read.bytes[at..at + data.len()].copy_from_slice(data);
            read.missing -= data.len();
            self.note_received(&sent);
            (sent.sacked, sent.in_flight) = (true, true);
            self.again.remove(&number);
        }
        self.outstanding.insert(number, sent);
        Ok(())
    }

    /// A switch has cut off the data of a response: the target is to send it again.
    pub(super) fn on_trimmed_response(&self, datagram: &Datagram, ack: &Pds, out: &mut Out) {
        let flags = ack.flags & wire::RETX;
        let refusal = Pds::new(wire::NACK, 0, flags, ack.second_psn(), OURS, ack.spdcid);
        out.send(&Pds { second: u16::from(nack::ACK_WITH_DATA) << 8, ..refusal }, datagram.port);
    }

    fn on_cack(&mut self, acknowledged: u32) {
        self.acknowledged = self.acknowledged.max(acknowledged);
        while let Some(entry) = self.outstanding.first_entry().filter(|e| *e.key() < self.acknowledged) {
            self.again.remove(entry.key());
            let sent = entry.remove();
            self.note_received(&sent);
        }
    }

    /// The packets that the ACK acknowledges without a gap.
    fn check_ack(&self, ack: &Pds, rest: &[u8], out: &mut Out) -> Option<u32> {
        out.require(ack.dpdcid == OURS && ack.spdcid != 0, || format!("wrong PDCIDs: {ack:?}"));
        out.require(self.theirs.is_none_or(|id| id == ack.spdcid), || format!("another PDCID: {ack:?}"));
        match (ack.next, rest) {
            (0, []) | (wire::RESPONSE_WITH_DATA, _) => {}
            (wire::RESPONSE, rest) => match wire::return_code(rest) {
                Ok(code) => out.require(code <= 1, || format!("return code {code}")),
                Err(what) => out.violations.push(what),
            },
            (next, rest) => out.violations.push(format!("next_hdr {next} and {} bytes", rest.len())),
        }
        // Only reads have guaranteed responses to clear, and CLOSE_REQ is the way to ask for a close.
        let may_ask = ack.flags & wire::REQUEST == wire::CLEAR && !self.reads.is_empty();
        out.require(ack.flags & wire::REQUEST == 0 || may_ask, || format!("REQ: {ack:?}"));
        out.require(ack.flags & wire::PROBED == 0, || format!("nothing was probed: {ack:?}"));
        let acknowledged = ack.psn.wrapping_add(1).wrapping_sub(START);
        let trigger = ack.second_psn().wrapping_sub(START);
        out.require(trigger < self.sent, || format!("never sent: {ack:?}"));
        let sent = acknowledged <= self.sent;
        out.require(sent, || format!("CACK beyond the last packet: {ack:?}"));
        sent.then_some(acknowledged)
    }

    /// The RTT of the packet that triggered the ACK: valid if it is known which copy did.
    fn rtt(&self, now: Ps, ack: &Pds) -> Option<Ps> {
        let sent = self.outstanding.get(&ack.second_psn().wrapping_sub(START))?;
        let retransmitted = ack.flags & wire::RETX != 0;
        matches!((sent.retries, retransmitted), (0, false) | (1, true)).then_some(now - sent.at)
    }

    /// A packet has arrived: its bytes are in `rcvd_bytes`, also if they were believed lost.
    fn note_received(&mut self, sent: &Sent) {
        if sent.sacked {
            return;
        }
        if !sent.in_flight {
            self.in_flight += (sent.size + sent.returning) as i64;
        }
        self.in_flight -= sent.returning as i64;
        match sent.piece {
            Piece::Close => self.in_flight -= sent.size as i64,
            Piece::Segment { .. } | Piece::Read { .. } => self.known_bytes += sent.size,
        }
    }

    fn on_sack(&mut self, acknowledged: u32, cc: &CcState, out: &mut Out) {
        out.require(cc.mpr > 0, || format!("no range: {cc:?}"));
        let base = i64::from(acknowledged) - 1 + i64::from(cc.sack_offset);
        for bit in (0..64).filter(|bit| cc.sack >> bit & 1 == 1) {
            let number = base + bit;
            out.require(number < i64::from(self.sent), || format!("SACK of {number}: {cc:?}"));
            let Ok(number) = u32::try_from(number) else { continue };
            let Some(mut sent) = self.outstanding.remove(&number) else { continue };
            self.note_received(&sent);
            (sent.sacked, sent.in_flight) = (true, true);
            self.again.remove(&number);
            self.outstanding.insert(number, sent);
        }
    }

    /// The bytes that `rcvd_bytes` adds to those of earlier ACKs.
    fn on_state(&mut self, cc: &CcState, newest: bool, out: &mut Out) -> u64 {
        if cc.cc_type != 0 {
            return 0;
        }
        out.require(cc.flags == 0, || format!("flags without meaning: {cc:?}"));
        out.require(cc.state >> 40 & 0xff == 0, || format!("a penalty without congestion: {cc:?}"));
        let units = cc.state >> 16 & 0xff_ffff;
        let step = units.wrapping_sub(self.received_units) & 0xff_ffff;
        if step >= 1 << 23 {
            return 0;
        }
        self.received_units += step;
        let (known, all) = (self.known_bytes.div_ceil(256), self.data_bytes.div_ceil(256));
        let range = if newest { known..=all } else { 0..=all };
        out.require(range.contains(&self.received_units), || {
            format!("rcvd_bytes: {} units, which should lie in {range:?}", self.received_units)
        });
        step * 256
    }

    pub(super) fn on_nack(&mut self, now: Ps, packet: &Pds, out: &mut Out) {
        self.counters.refused += 1;
        let number = packet.psn.wrapping_sub(START);
        let [code, vendor] = packet.second.to_be_bytes();
        let plain = packet.next == 0 && vendor == 0 && packet.flags & wire::OF_RUDI == 0;
        out.require(plain && packet.dpdcid == OURS && number < self.sent, || {
            format!("an invalid NACK: {packet:?}")
        });
        match code {
            nack::TRIMMED | nack::TRIMMED_LAST_HOP => {
                if let Some(size) = self.lose(number) {
                    self.nscc.on_trim(now, size, self.in_flight.max(0) as u64);
                }
            }
            nack::ROD_OOO => _ = self.lose(number),
            _ => out.violations.push(format!("a NACK without reason: {packet:?}")),
        }
    }

    /// Packet `number` has to be sent again. Returns its size if it was in flight.
    fn lose(&mut self, number: u32) -> Option<u64> {
        let sent = self.outstanding.get_mut(&number).filter(|sent| sent.in_flight && !sent.sacked)?;
        sent.in_flight = false;
        sent.retries += 1;
        self.in_flight -= (sent.size + sent.returning) as i64;
        self.again.insert(number);
        Some(sent.size + sent.returning)
    }

    /// A control packet of the target.
    pub(super) fn on_control(&mut self, packet: &Pds, out: &mut Out) {
        let known = packet.dpdcid == OURS && self.theirs.is_none_or(|theirs| theirs == packet.spdcid);
        out.require(known, || format!("wrong PDCIDs: {packet:?}"));
        match packet.next {
            control::CLOSE_REQ => self.close(),
            control::CREDIT => self.counters.credits += 1,
            _ => {}
        }
    }

    fn expiry(&self, sent: &Sent) -> Ps {
        sent.at + (self.settings.rto << sent.retries.min(MAX_RETRIES))
    }

    pub(super) fn poll_timeout(&self) -> Option<Ps> {
        self.outstanding.values().filter(|sent| sent.in_flight).map(|sent| self.expiry(sent)).min()
    }

    pub(super) fn on_timeout(&mut self, now: Ps, out: &mut Out) {
        let due = |sent: &Sent| sent.in_flight && self.expiry(sent) <= now;
        let expired: Vec<u32> = self.outstanding.iter().filter(|(_, s)| due(s)).map(|(n, _)| *n).collect();
        for number in expired {
            let Some(sent) = self.outstanding.get_mut(&number) else { continue };
            self.counters.timeouts += 1;
            out.require(sent.retries < MAX_RETRIES, || format!("no answer to packet {number}"));
            if sent.sacked {
                (sent.at, sent.retries) = (now, sent.retries + 1);
                out.send(&self.command(control::ACK_REQ, wire::ACK_REQUEST, number), FIRST_PORT);
            } else if let Some(size) = self.lose(number) {
                self.nscc.on_loss(size);
            }
        }
    }
}
