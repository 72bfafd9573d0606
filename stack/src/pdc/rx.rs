//! The target of a PDC: classifies packets as new or not, and builds acknowledgements.

use weft_cc::Time;

use super::bitmap::Bitmap;
use super::responses::{Answer, Responses, StoredResponse};
use super::{ACK_MIN_PACKET, PdcConfig};
use crate::packet::Addr;
use crate::wire::pds::{
    Ack, AckCc, AckRequest, AckTrigger, CcState, DeliveryMode, NextHeader, NsccState, PdcId, Psn,
};

/// How a PSN relates to the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Not received before, inside the window.
    New,
    /// Received before.
    Duplicate,
    /// Beyond CACK + MP_RANGE, or too far behind to be classified.
    OutOfWindow,
}

/// Number of PSNs behind the expected one that still count as used. Packets live much shorter than that, and with more
/// PSNs the circular order would flip.
const MEMORY: u32 = 1 << 30;

/// Packets that a SACK bitmap describes.
const SACK_BITS: i32 = 64;

/// The target's end of one PDC.
// In the order of use: the fields that every packet needs come first and take two cache lines.
#[derive(Debug)]
#[repr(C)]
pub struct RxPdc {
    /// Address of the initiator.
    pub peer: Addr,
    /// The initiator's PDCID.
    pub peer_id: PdcId,
    /// The target's PDCID.
    pub id: PdcId,
    /// RUD or ROD.
    pub mode: DeliveryMode,
    /// AR was seen while packets were missing: acknowledge again when the gap closes.
    ack_when_complete: bool,
    /// The first PSN that counts as used: `start_psn`, or the one [`MEMORY`] PSNs behind.
    oldest: Psn,
    bitmap: Bitmap,
    mp_range: u32,
    ack_bytes: u32,
    unacknowledged: u32,
    /// The PSN of the first packet.
    pub start_psn: Psn,
    received_bytes: u64,
    /// When a packet last arrived.
    pub last_heard: Time,
    /// Stored responses; CACK may not pass the first of them.
    responses: Responses,
}

/// Signed distance from CACK in 16 bits; a distance that does not fit is outside any window.
fn offset16(psn: Psn, cack: Psn) -> i16 {
    psn.distance(cack).clamp(i32::from(i16::MIN), i32::from(i16::MAX)) as i16
}

/// The first PSN of the SACK bitmap of an acknowledgement with this CACK that describes the PSNs near `around`: the 64
/// packets up to the one that arrived. With spraying, that is where the news is.
#[inline(always)]
fn sack_base(cack: Psn, around: Psn) -> Psn {
    let first_useful = cack.plus(1);
    match around.minus(SACK_BITS as u32 - 1) {
        base if base.is_before(first_useful) => first_useful,
        base => base,
    }
}

impl RxPdc {
    /// The target's end of a PDC that `peer` opens with its PDCID `peer_id`; its first packet will be `start_psn`.
    pub fn new(
        config: &PdcConfig,
        peer: Addr,
        peer_id: PdcId,
        id: PdcId,
        mode: DeliveryMode,
        start_psn: Psn,
        now: Time,
    ) -> RxPdc {
        RxPdc {
            peer,
            peer_id,
            id,
            mode,
            start_psn,
            oldest: start_psn,
            last_heard: now,
            bitmap: Bitmap::new(start_psn, config.mp_range),
            mp_range: config.mp_range,
            ack_bytes: config.ack_bytes,
            unacknowledged: 0,
            ack_when_complete: false,
            received_bytes: 0,
            responses: Responses::default(),
        }
    }

    /// The highest PSN up to which all packets have arrived and no response is still to be cleared.
    #[inline]
    pub fn cack(&self) -> Psn {
        let received = self.bitmap.base().minus(1);
        if self.responses.is_empty() { received } else { self.cack_before_responses(received) }
    }

    /// CACK with stored responses taken into account; `received` if they do not hold it back.
    #[cold]
    fn cack_before_responses(&self, received: Psn) -> Psn {
        match self.responses.first() {
            Some(first) if first.is_before(self.bitmap.base()) => first.minus(1),
            _ => received,
        }
    }

    /// The first PSN that has not arrived.
    #[inline]
    pub fn expected(&self) -> Psn {
        self.bitmap.base()
    }

    /// The PSNs used so far, as a half-open range; of a long-lived PDC the last 2³⁰.
    pub fn used(&self) -> (Psn, Psn) {
        (self.oldest, self.expected())
    }

    /// Packets beyond CACK that this end accepts (MP_RANGE).
    pub(crate) fn mp_range(&self) -> u32 {
        self.mp_range
    }

    /// Number of packets that arrived beyond the first missing one.
    pub fn out_of_order(&self) -> u32 {
        self.bitmap.count()
    }

    /// Classifies `psn`. Changes nothing.
    #[inline]
    pub fn classify(&self, psn: Psn) -> Arrival {
        let range = self.mp_range as i32;
        match psn.distance(self.bitmap.base()) {
            // All packets before the window were received; a PSN more than 2³⁰ behind does not belong to it.
            ahead if ahead < -(MEMORY as i32) => Arrival::OutOfWindow,
            ahead if ahead < 0 => Arrival::Duplicate,
            // CACK may be further back than the window.
            _ if !self.responses.is_empty() && psn.distance(self.cack()) > range => Arrival::OutOfWindow,
            ahead if ahead >= range => Arrival::OutOfWindow,
            _ if self.bitmap.contains(psn) => Arrival::Duplicate,
            _ => Arrival::New,
        }
    }

    /// Accepts `psn`, which must be [`Arrival::New`] and has the nominal size `bytes`, 0 if it carries no data. `soon` means that an acknowledgement is
    /// due at once: the header asks for one, or the packet carried a congestion mark or SYN. Returns whether an
    /// acknowledgement is due now.
    // Always inlined: every packet of data comes here, from one of a few places.
    #[inline(always)]
    pub fn accept(&mut self, psn: Psn, bytes: u32, soon: bool) -> bool {
        self.bitmap.insert(psn);
        if self.expected().distance(self.oldest) > MEMORY as i32 {
            self.oldest = self.expected().minus(MEMORY);
        }
        self.received_bytes += u64::from(bytes);
        self.unacknowledged = self.unacknowledged.saturating_add(bytes.max(ACK_MIN_PACKET));
        self.ack_when_complete |= soon;
        let completed = self.ack_when_complete && self.bitmap.count() == 0;
        self.ack_when_complete &= !completed;
        soon || completed || self.unacknowledged >= self.ack_bytes
    }

    /// Keeps `answer` to the request `psn`, which must be [`Arrival::New`], until it is cleared.
    pub fn store_response(&mut self, psn: Psn, answer: Answer) {
        self.responses.insert(psn, answer);
    }

    /// Whether responses are stored.
    #[inline]
    pub fn has_responses(&self) -> bool {
        !self.responses.is_empty()
    }

    /// The response stored for `psn`.
    #[inline]
    pub fn response(&self, psn: Psn) -> Option<&StoredResponse> {
        if self.responses.is_empty() { None } else { self.responses.get(psn) }
    }

    /// Forgets the responses up to `psn`, all of which the initiator has. Returns the bytes that they counted for.
    ///
    /// A packet that has not arrived has no response: who names one speaks of an earlier PDC with the same identifiers.
    #[inline]
    pub fn clear(&mut self, psn: Psn) -> u64 {
        if self.responses.is_empty() || !psn.is_before(self.expected()) {
            0
        } else {
            self.responses.clear(psn)
        }
    }

    /// Bytes that the stored responses count for ([`Answer::cost`]).
    pub fn response_cost(&self) -> u64 {
        self.responses.cost()
    }

    /// The acknowledgement to send for `trigger`; resets the count of unacknowledged bytes. The SACK bitmap describes
    /// the PSNs near `around`.
    #[inline]
    pub fn acknowledge(&mut self, trigger: Trigger, around: Psn, ecn: bool, retx: bool) -> Ack {
        self.unacknowledged = 0;
        let cack = self.cack();
        let base = sack_base(cack, around);
        // A request whose response has not been cleared is not acknowledged by PSN: the initiator would consider it
        // complete without the response.
        let bitmap = self.bitmap.word(base);
        let sack_bitmap =
            if self.responses.is_empty() { bitmap } else { bitmap & !self.responses.mask(base) };
        Ack {
            next: NextHeader::None,
            ecn,
            retx,
            request: if self.responses.is_empty() { AckRequest::None } else { AckRequest::Clear },
            trigger: match trigger {
                Trigger::Psn(psn) => AckTrigger::Psn(offset16(psn, cack)),
                Trigger::Probe(opaque) => AckTrigger::Probe(opaque),
            },
            cack_psn: cack,
            spdcid: self.id,
            dpdcid: self.peer_id,
            cc: Some(AckCc {
                flags: 0,
                mpr: (self.mp_range / 128).min(255) as u8,
                sack_psn_offset: offset16(base, cack),
                sack_bitmap,
                state: CcState::Nscc(NsccState {
                    // Acknowledgements are built as packets arrive, in less than the unit of 128 ns.
                    service_time: 0,
                    restore_cwnd: false,
                    rcv_cwnd_pend: 0,
                    rcvd_bytes: (self.received_bytes.div_ceil(256) & 0xff_ffff) as u32,
                    ooo_count: self.bitmap.count().min(0xfffe) as u16,
                }),
            }),
        }
    }

    /// Whether the acknowledgement that packet `psn` triggers names all packets that have arrived among those from `first`
    /// to `last`.
    pub(crate) fn names(&self, psn: Psn, (first, last): (Psn, Psn)) -> bool {
        let cack = self.cack();
        let base = sack_base(cack, psn);
        let from_cack = base == cack.plus(1);
        (from_cack || !first.is_before(base)) && last.distance(base) < SACK_BITS
    }

    /// Bytes of heap allocated.
    pub(crate) fn heap_bytes(&self) -> u64 {
        self.bitmap.heap_bytes() + self.responses.heap_bytes()
    }
}

/// The packet that an acknowledgement answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// A packet that consumed a PSN, or a control packet that refers to one.
    Psn(Psn),
    /// A probe, with its opaque value.
    Probe(u16),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Key;
    use crate::wire::ses::{List, Response, ResponseWithData, ReturnCode};

    fn pdc(start: u32) -> RxPdc {
        let config = PdcConfig { mp_range: 128, ..PdcConfig::default() };
        RxPdc::new(&config, Addr(1), PdcId(2), PdcId(3), DeliveryMode::Rud, Psn(start), Time::ZERO)
    }

    fn response() -> Answer {
        Answer::Plain(Response {
            list: List::Expected,
            opcode: 1,
            version: 0,
            return_code: ReturnCode::TOO_LONG,
            msg_id: 1,
            ri_generation: 0,
            job_id: 0,
            modified_length: 0,
        })
    }

    fn data(len: u16) -> Answer {
        let header = ResponseWithData {
            list: List::Expected,
            opcode: 2,
            version: 0,
            return_code: ReturnCode::OK,
            msg_id: 1,
            job_id: 0,
            read_request_msg_id: 1,
            payload_len: len,
            modified_length: len.into(),
            msg_offset: 0,
        };
        Answer::Memory { header, memory: Key { index: 0, generation: 0 }, offset: 0 }
    }

    #[test]
    fn an_acknowledgement_is_due_every_16_kib_and_small_packets_count_as_1_kib() {
        let mut pdc = pdc(u32::MAX - 5);
        let due: Vec<bool> = (0..8).map(|i| pdc.accept(Psn(u32::MAX - 5).plus(i), 4160, false)).collect();
        assert_eq!(due, [false, false, false, true, true, true, true, true], "it stays due until it is sent");
        pdc.acknowledge(Trigger::Psn(Psn(1)), Psn(1), false, false);
        let due = (0..16).filter(|i| pdc.accept(Psn(2).plus(*i), 64, false)).count();
        assert_eq!(due, 1, "16 small packets are 16 KiB");
    }

    #[test]
    fn a_requested_acknowledgement_is_repeated_when_the_gap_closes() {
        let mut pdc = pdc(100);
        assert!(pdc.accept(Psn(101), 64, true));
        pdc.acknowledge(Trigger::Psn(Psn(101)), Psn(101), false, false);
        assert!(pdc.accept(Psn(100), 64, false));
    }

    #[test]
    fn window_and_sack_follow_arrivals() {
        let mut pdc = pdc(1000);
        assert_eq!(pdc.cack(), Psn(999));
        assert_eq!(pdc.classify(Psn(999)), Arrival::Duplicate);
        assert_eq!(pdc.classify(Psn(1127)), Arrival::New);
        assert_eq!(pdc.classify(Psn(1128)), Arrival::OutOfWindow);
        pdc.accept(Psn(1070), 64, false);
        let ack = pdc.acknowledge(Trigger::Psn(Psn(1070)), Psn(1070), true, false);
        let cc = ack.cc.unwrap();
        assert_eq!(ack.cack_psn, Psn(999));
        assert_eq!(ack.trigger, AckTrigger::Psn(71));
        assert_eq!(cc.sack_psn_offset, 8, "1007 = 1070 − 63");
        assert_eq!(cc.sack_bitmap, 1 << 63);
        assert!(matches!(cc.state, CcState::Nscc(NsccState { rcv_cwnd_pend: 0, restore_cwnd: false, .. })));
        assert!(ack.ecn);
    }

    #[test]
    fn stored_responses_hold_cack_back_until_cleared() {
        let mut pdc = pdc(10);
        for i in 0..4 {
            pdc.accept(Psn(10 + i), 64, false);
        }
        pdc.store_response(Psn(12), response());
        let ack = pdc.acknowledge(Trigger::Psn(Psn(13)), Psn(13), false, false);
        assert_eq!((ack.cack_psn, ack.request), (Psn(11), AckRequest::Clear));
        assert_eq!(ack.cc.unwrap().sack_bitmap, 0b10, "13 but not 12, whose response is not cleared yet");
        assert!(pdc.response(Psn(12)).is_some());
        pdc.clear(Psn(11));
        assert_eq!(pdc.cack(), Psn(11));
        pdc.clear(Psn(12));
        assert_eq!(pdc.cack(), Psn(13));
        assert!(pdc.response(Psn(12)).is_none());
    }

    #[test]
    fn responses_are_cleared_in_order_of_psns_whatever_the_order_of_arrival() {
        let mut pdc = pdc(u32::MAX - 1);
        let cost = |len: u16| data(len).cost();
        for (n, len) in [(3, 30), (0, 0), (2, 20), (1, 10)] {
            let psn = Psn(u32::MAX - 1).plus(n);
            pdc.store_response(psn, data(len));
            pdc.accept(psn, 64, true);
            assert!(pdc.response(psn).is_some_and(|stored| stored.psn == psn));
        }
        assert_eq!(pdc.response_cost(), cost(0) + cost(10) + cost(20) + cost(30));
        let ack = pdc.acknowledge(Trigger::Psn(Psn(1)), Psn(1), false, false);
        assert_eq!((ack.cack_psn, ack.cc.unwrap().sack_bitmap), (Psn(u32::MAX - 2), 0), "none is cleared");
        assert_eq!(pdc.clear(Psn(u32::MAX)), cost(0) + cost(10));
        assert_eq!(pdc.cack(), Psn(u32::MAX));
        assert!(pdc.response(Psn(u32::MAX)).is_none() && pdc.response(Psn(0)).is_some());
        assert_eq!((pdc.clear(Psn(u32::MAX)), pdc.clear(Psn(2))), (0, 0), "2 has not arrived");
        assert_eq!(pdc.clear(Psn(1)), cost(20) + cost(30));
        assert_eq!((pdc.cack(), pdc.response_cost()), (Psn(1), 0));
    }

    #[test]
    fn used_psns_are_remembered_after_psns_wrap() {
        let mut pdc = pdc(7);
        let mut expected = Psn(7);
        for _ in 0..9 {
            expected = expected.plus(1 << 29);
            pdc.bitmap = Bitmap::new(expected, 128);
            assert!(pdc.classify(expected) == Arrival::New);
            pdc.accept(expected, 64, false);
            expected = expected.plus(1);
            let (first, end) = pdc.used();
            assert_eq!(end, expected);
            assert!(first.is_before(end) && end.distance(first) <= 1 << 30);
            assert!(!end.minus(1 << 29).is_before(first));
        }
    }
}
