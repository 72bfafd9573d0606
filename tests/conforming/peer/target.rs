//! The target: the PDCs that the other side has opened, and their messages.

use std::collections::{BTreeMap, BTreeSet};

use super::wire::{self, CcState, Class, Datagram, Pds, Rest, Segment, control, nack};
use super::{Message, Out};

/// The kind of acknowledgements that a target sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acks {
    /// ACK_CC with the state of NSCC, and this `rcv_cwnd_pend` in it.
    Nscc { penalty: u8 },
    /// ACK_CC with the state of RCCC: enough credit for all that could follow in a round trip.
    Credit,
    /// ACKs without state or bitmap.
    Plain,
}

/// Packets beyond CACK that a PDC can take, a multiple of 128.
const MP_RANGE: u32 = 4096;
/// Accepted bytes after which an acknowledgement is due, each packet counting at least 1 KiB.
const ACK_BYTES: usize = 16 * 1024;
/// Bytes of credit beyond what has arrived.
const CREDIT: u64 = 1 << 20;

pub(crate) struct Target {
    acks: Acks,
    pdcs: Vec<Pdc>,
    received: Vec<Message>,
    /// Retransmissions, and packets that had arrived before.
    repeated: u32,
    /// What initiators may read, with its key.
    memory: Option<(u64, Vec<u8>)>,
}

/// A PDC at its target.
struct Pdc {
    theirs: u16,
    ours: u16,
    /// The type of its requests.
    kind: u8,
    start: u32,
    /// The packets received, counted from `start`, and how many there are from the first without a gap.
    received: BTreeSet<u32>,
    in_order: u32,
    /// Nominal bytes of the first copies of data packets.
    bytes: u64,
    unacknowledged: usize,
    /// The least number of a packet without SYN.
    first_plain: Option<u32>,
    messages: BTreeMap<u16, Partial>,
    /// Responses to reads that have not been cleared, by packet number.
    responses: BTreeMap<u32, Vec<u8>>,
    closing: Option<u32>,
}

/// A message that is arriving.
struct Partial {
    message: Message,
    missing: usize,
}

/// The acknowledgement of a packet.
struct Trigger {
    flags: u8,
    psn: u32,
    /// The number of the probe that is answered.
    probe: Option<u16>,
    port: u16,
    response: Vec<u8>,
}

impl Target {
    pub(crate) fn new(acks: Acks) -> Target {
        Target { acks, pdcs: Vec::new(), received: Vec::new(), repeated: 0, memory: None }
    }

    /// Lets initiators read `bytes`.
    pub(crate) fn expose(&mut self, key: u64, bytes: Vec<u8>) {
        self.memory = Some((key, bytes));
    }

    /// The messages that have arrived.
    pub(crate) fn received(&self) -> &[Message] {
        &self.received
    }

    /// The number of retransmissions and of packets that had arrived before.
    pub(crate) fn repeated(&self) -> u32 {
        self.repeated
    }

    /// Whether all PDCs have been closed by their initiators.
    pub(crate) fn is_closed(&self) -> bool {
        self.pdcs.iter().all(Pdc::is_closed)
    }

    /// A data packet, of which `rest` follows the delivery header.
    pub(super) fn on_request(&mut self, datagram: &Datagram, request: &Pds, rest: &[u8], out: &mut Out) {
        if let Class::Trimmed | Class::TrimmedLastHop = datagram.class {
            return self.refuse_trimmed(datagram, request, out);
        }
        let Some(at) = self.pdc_of(request, out) else { return };
        let pdc = &mut self.pdcs[at];
        pdc.check_request(request, out);
        pdc.clear(request.second_psn(), out);
        let number = request.psn.wrapping_sub(pdc.start);
        out.require(request.next == wire::STANDARD, || format!("next_hdr: {request:?}"));
        let (segment, payload) = match Segment::decode(rest) {
            Ok(found) => found,
            Err(what) => return out.violations.push(what),
        };
        let syn = request.psn_offset().is_some();
        let mut due = request.flags & wire::ACK_REQUEST != 0 || syn || datagram.marked;
        let new = pdc.accept(number);
        self.repeated += u32::from(!new || request.flags & wire::RETX != 0);
        if new {
            pdc.bytes += datagram.nominal_size();
            pdc.unacknowledged += payload.len().max(1024);
            due |= pdc.unacknowledged >= ACK_BYTES;
            if segment.opcode == wire::READ {
                due = true;
                match read(self.memory.as_ref(), &segment, payload) {
                    Ok(response) => _ = pdc.responses.insert(number, response),
                    Err(what) => out.violations.push(what),
                }
            } else if let Some(message) = pdc.place(&segment, payload, out) {
                self.received.push(message);
            }
        } else {
            due = true;
        }
        if due {
            let marked = if datagram.marked { wire::MARKED } else { 0 };
            // A response that says nothing may be left out.
            let response = match self.acks {
                Acks::Plain => Vec::new(),
                _ => wire::default_response(&segment),
            };
            let flags = marked | request.flags & wire::RETX;
            let trigger = Trigger { flags, psn: request.psn, probe: None, port: datagram.port, response };
            self.pdcs[at].acknowledge(self.acks, trigger, out);
        }
    }

    /// The PDC of a request; a SYN opens one.
    fn pdc_of(&mut self, request: &Pds, out: &mut Out) -> Option<usize> {
        let Some(offset) = request.psn_offset() else {
            let at = self.pdcs.iter().position(|pdc| pdc.ours == request.dpdcid);
            out.require(at.is_some_and(|at| self.pdcs[at].theirs == request.spdcid), || {
                format!("there is no such PDC: {request:?}")
            });
            return at;
        };
        let start = request.psn.wrapping_sub(offset);
        let known = self.pdcs.iter().rposition(|pdc| pdc.theirs == request.spdcid);
        match known {
            Some(at) if self.pdcs[at].start == start => return Some(at),
            Some(at) => out.require(self.pdcs[at].is_closed(), || format!("a second start: {request:?}")),
            None => {}
        }
        let ours = 0x2000 + self.pdcs.len() as u16;
        self.pdcs.push(Pdc::new(request, ours, start));
        Some(self.pdcs.len() - 1)
    }

    /// Answers a packet without payload. Nothing else changes.
    fn refuse_trimmed(&self, datagram: &Datagram, request: &Pds, out: &mut Out) {
        let code = match datagram.class {
            Class::TrimmedLastHop => nack::TRIMMED_LAST_HOP,
            _ => nack::TRIMMED,
        };
        let ours = self.pdcs.iter().rfind(|pdc| pdc.theirs == request.spdcid).map_or(0, |pdc| pdc.ours);
        let flags = if datagram.marked { wire::MARKED } else { 0 } | request.flags & wire::RETX;
        let refusal = Pds::new(wire::NACK, 0, flags, request.psn, ours, request.spdcid);
        out.send(&Pds { second: u16::from(code) << 8, ..refusal }, datagram.port);
    }

    /// A control packet of an initiator.
    pub(super) fn on_control(&mut self, datagram: &Datagram, packet: &Pds, out: &mut Out) {
        if packet.flags & wire::SYN != 0 {
            // It cannot open a PDC, and the initiator does not know ours yet.
            return;
        }
        let Some(pdc) = self.pdcs.iter_mut().find(|pdc| pdc.ours == packet.dpdcid) else {
            return out.violations.push(format!("there is no such PDC: {packet:?}"));
        };
        out.require(pdc.theirs == packet.spdcid, || format!("another's PDC: {packet:?}"));
        let probe = (packet.next == control::PROBE).then_some(packet.second);
        if packet.next == control::CLOSE_CMD {
            let number = packet.psn.wrapping_sub(pdc.start);
            let drained = number == pdc.in_order || pdc.closing == Some(number);
            out.require(drained, || format!("a close before all is acknowledged: {packet:?}"));
            pdc.accept(number);
            pdc.closing = Some(number);
        }
        if let (control::CLEAR_CMD, Rest::Word(psn)) = (packet.next, &packet.rest) {
            pdc.clear(*psn, out);
        }
        let answered = matches!(packet.next, control::ACK_REQ | control::PROBE | control::CLOSE_CMD);
        if answered || packet.flags & wire::ACK_REQUEST != 0 {
            let flags = packet.flags & wire::RETX | if probe.is_some() { wire::PROBED } else { 0 };
            let trigger =
                Trigger { flags, psn: packet.psn, probe, port: datagram.port, response: Vec::new() };
            pdc.acknowledge(self.acks, trigger, out);
        }
    }

    pub(super) fn ask_to_close(&mut self, out: &mut Out) {
        for pdc in self.pdcs.iter().filter(|pdc| !pdc.is_closed()) {
            let close = Pds::new(wire::CONTROL, control::CLOSE_REQ, 0, pdc.cack(), pdc.ours, pdc.theirs);
            out.send(&close, 0xc000);
        }
    }
}

/// The response to a read.
fn read(memory: Option<&(u64, Vec<u8>)>, request: &Segment, payload: &[u8]) -> Result<Vec<u8>, String> {
    let whole = request.flags & (wire::START | wire::END) == wire::START | wire::END;
    let Some((_, bytes)) =
        memory.filter(|(key, _)| *key == request.match_bits && whole && payload.is_empty())
    else {
        return Err(format!("an invalid read: {request:?}"));
    };
    let from = request.buffer_offset as usize;
    let data = bytes.get(from..from + request.request_length as usize);
    let data = data.ok_or_else(|| format!("a read beyond the end: {request:?}"))?;
    Ok(wire::response_with_data(request, data))
}

impl Pdc {
    fn new(request: &Pds, ours: u16, start: u32) -> Pdc {
        Pdc {
            theirs: request.spdcid,
            ours,
            kind: request.kind,
            start,
            received: BTreeSet::new(),
            in_order: 0,
            bytes: 0,
            unacknowledged: 0,
            first_plain: None,
            messages: BTreeMap::new(),
            responses: BTreeMap::new(),
            closing: None,
        }
    }

    fn is_closed(&self) -> bool {
        self.closing.is_some_and(|last| self.in_order > last)
    }

    /// The last packet before the first that is missing, or whose response is not cleared.
    fn cack(&self) -> u32 {
        let uncleared = self.responses.first_key_value().map_or(u32::MAX, |(number, _)| *number);
        self.start.wrapping_add(self.in_order.min(uncleared)).wrapping_sub(1)
    }

    /// The initiator has the responses up to `psn`.
    fn clear(&mut self, psn: u32, out: &mut Out) {
        let cleared = psn.wrapping_sub(self.start).wrapping_add(1);
        out.require(cleared <= self.in_order, || format!("CLEAR of {cleared} of {} packets", self.in_order));
        self.responses.retain(|number, _| *number >= cleared);
    }

    fn check_request(&mut self, request: &Pds, out: &mut Out) {
        let number = request.psn.wrapping_sub(self.start);
        // A retransmission is within MP_RANGE of the CACK that its sender knows, which is at most ours.
        out.require(number < self.in_order + MP_RANGE || number > u32::MAX / 2, || {
            format!("beyond MP_RANGE: {request:?}")
        });
        let open = self.closing.is_none_or(|last| number < last);
        out.require(open, || format!("data behind the close: {request:?}"));
        out.require(request.kind == self.kind, || format!("the type has changed: {request:?}"));
        match request.psn_offset() {
            // A packet that is sent again has the flags of that time, and can overtake one with SYN.
            None if request.flags & wire::RETX != 0 => {}
            None => self.first_plain = Some(self.first_plain.map_or(number, |first| first.min(number))),
            Some(_) => out.require(self.first_plain.is_none_or(|first| number < first), || {
                format!("a SYN after a packet without: {request:?}")
            }),
        }
    }

    /// Whether the packet is the first of its number.
    fn accept(&mut self, number: u32) -> bool {
        let new = number >= self.in_order && self.received.insert(number);
        while self.received.remove(&self.in_order) {
            self.in_order += 1;
        }
        new
    }

    /// Puts the payload into its message. Returns the message once it is complete.
    fn place(&mut self, segment: &Segment, payload: &[u8], out: &mut Out) -> Option<Message> {
        let (at, len) = (segment.offset(), segment.request_length as usize);
        let end = at + payload.len();
        out.require(matches!(segment.opcode, wire::SEND | wire::TAGGED_SEND), || format!("{segment:?}"));
        out.require(segment.initiator == 0, || format!("the sender is process 0: {segment:?}"));
        out.require(end <= len, || format!("payload up to {end} in {segment:?}"));
        let (first, last) = (segment.flags & wire::START != 0, segment.flags & wire::END != 0);
        out.require(first == (at == 0), || format!("SOM at {at}: {segment:?}"));
        out.require(last == (end == len), || format!("EOM at {end}: {segment:?}"));
        let partial = self.messages.entry(segment.msg_id).or_insert_with(|| {
            let tag = (segment.opcode == wire::TAGGED_SEND).then_some(segment.match_bits);
            Partial { message: Message { tag, header_data: 0, bytes: vec![0; len] }, missing: len }
        });
        if partial.message.bytes.len() != len || end > len || partial.missing < payload.len() {
            out.violations.push(format!("another message of the same number: {segment:?}"));
            return None;
        }
        if first {
            partial.message.header_data = segment.header_data;
        }
        partial.message.bytes[at..end].copy_from_slice(payload);
        partial.missing -= payload.len();
        if partial.missing > 0 {
            return None;
        }
        self.messages.remove(&segment.msg_id).map(|partial| partial.message)
    }

    fn acknowledge(&mut self, acks: Acks, trigger: Trigger, out: &mut Out) {
        self.unacknowledged = 0;
        let cack = self.cack();
        let ahead = trigger.psn.wrapping_sub(cack) as i32;
        let number = trigger.psn.wrapping_sub(self.start);
        let stored = self.responses.get(&number).filter(|_| trigger.probe.is_none());
        let (next, response, class) = match stored {
            Some(response) => (wire::RESPONSE_WITH_DATA, &response[..], Class::Data),
            None if trigger.response.is_empty() => (0, &[][..], Class::Control),
            None => (wire::RESPONSE, &trigger.response[..], Class::Control),
        };
        let request = if self.responses.is_empty() { 0 } else { wire::CLEAR };
        let (kind, rest) = match acks {
            Acks::Plain => (wire::ACK, Rest::None),
            _ => (wire::ACK_CC, Rest::State(self.state(acks, ahead))),
        };
        let second = trigger.probe.unwrap_or(ahead as u16);
        let ack = Pds::new(kind, next, trigger.flags | request, cack, self.ours, self.theirs);
        let mut bytes = Pds { second, rest, ..ack }.encode();
        bytes.extend_from_slice(response);
        out.control.push_back(Datagram::new(bytes, trigger.port, class));
    }

    /// The bitmap reaches to the packet that is acknowledged, `ahead` of CACK.
    fn state(&self, acks: Acks, ahead: i32) -> CcState {
        let sack_offset = (ahead - 63).max(1);
        let base = self.cack().wrapping_sub(self.start).wrapping_add(sack_offset as u32);
        let is_here = |number: u32| number < self.in_order || self.received.contains(&number);
        let is_done = |number: u32| is_here(number) && !self.responses.contains_key(&number);
        let sack = (0..64).filter(|bit| is_done(base + bit)).fold(0, |map, bit| map | 1 << bit);
        let out_of_order = self.received.len().min(0xfffe) as u64;
        let units = |bytes: u64| bytes.div_ceil(256) & 0xff_ffff;
        let (cc_type, state) = match acks {
            Acks::Credit => (1, units(self.bytes + CREDIT) << 40),
            Acks::Nscc { penalty } => (0, u64::from(penalty) << 40 | units(self.bytes) << 16),
            Acks::Plain => (0, 0),
        };
        let mpr = (MP_RANGE / 128) as u8;
        CcState { cc_type, flags: 0, mpr, sack_offset: sack_offset as i16, sack, state: state | out_of_order }
    }
}
