//! The initiator of a PDC: numbers packets, keeps their records, and processes acknowledgements and timeouts.

use std::collections::VecDeque;

use weft_cc::{Span, Time};

use super::loss::LossRecovery;
use super::record::{Records, State};
use super::{MIN_MP_RANGE, PacketKind, PdcConfig, TxRecord};
use crate::packet::Addr;
use crate::spray::Entropy;
use crate::wire::pds::{Ack, AckTrigger, CcState, DeliveryMode, Destination, Nack, NackCode, PdcId, Psn};

/// The state of a PDC at its initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxState {
    /// Accepts messages.
    Open,
    /// Accepts no more messages; CLOSE_CMD is sent once all packets are acknowledged.
    Draining,
    /// CLOSE_CMD has been sent.
    Closing,
    /// CLOSE_CMD is acknowledged.
    Closed,
}

/// The initiator's end of one PDC.
// In the order of use: the fields that every packet needs come first and take few cache lines.
#[derive(Debug)]
#[repr(C)]
pub struct TxPdc {
    /// Address of the target.
    pub peer: Addr,
    /// The initiator's PDCID.
    pub id: PdcId,
    /// RUD or ROD.
    pub mode: DeliveryMode,
    /// The state of the PDC.
    pub state: TxState,
    /// The target's PDCID, once an acknowledgement has revealed it.
    peer_id: Option<PdcId>,
    /// CACK as reported by the target; may lag behind the first record when acknowledgements are lost.
    cack: Psn,
    mp_range: u32,
    start_psn: Psn,
    /// Bytes of the packets in flight.
    outstanding: u64,
    /// Bytes that the target reports as accepted in total, and bytes of the packets known by PSN to have arrived. The
    /// first count is ahead if SACK bitmaps do not reach as far as reordering does.
    received: u64,
    acknowledged: u64,
    /// Number of new packets so far. PSNs wrap; this does not.
    numbered: u64,
    /// Records of the packets from the first one on that is not known to have arrived.
    records: Records,
    /// Packets to retransmit, by PSN.
    lost: VecDeque<Psn>,
    /// Set while all packets have arrived, but the acknowledgement that would move CACK has not.
    missing_ack: Option<MissingAck>,
    lost_bytes: u64,
    /// The shortest time that an answer has taken.
    fastest: Option<Span>,
    /// Sender-side loss inference.
    pub(super) recovery: LossRecovery,
}

#[derive(Clone, Copy, Debug)]
struct MissingAck {
    since: Time,
    asked: u8,
}

/// The news in an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AckOutcome {
    /// Bytes that the target accepted since the last one.
    pub newly_received: u64,
    /// RTT of the packet that triggered it, if it is unambiguous.
    pub rtt: Option<Span>,
    /// Number of packets that the target holds beyond the first missing one.
    pub out_of_order: u16,
    /// Share of the window to keep, in 1/127, if the target asks for less than all.
    pub receiver_window: Option<u8>,
    /// The probe's opaque value, if the acknowledgement answers a probe.
    pub probe: Option<u16>,
}

/// The news in a NACK about a packet in flight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NackOutcome {
    /// Bytes that the packet counted for.
    pub bytes: u64,
    /// Time since it was sent, if unambiguous.
    pub rtt: Option<Span>,
    /// The entropy that it was sent with.
    pub entropy: Entropy,
}

/// Result of a check of the retransmission timers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overdue {
    /// Nothing is overdue.
    Nothing,
    /// Packets were moved to the retransmission queue.
    Resend,
    /// All packets have arrived but CACK lags: ask for an acknowledgement.
    AskForAck,
    /// A packet has used up its retries.
    Failed(Psn),
}

impl TxPdc {
    /// The initiator's end of a PDC to `peer` whose first packet will be `start_psn`.
    pub fn new(config: &PdcConfig, peer: Addr, id: PdcId, mode: DeliveryMode, start_psn: Psn) -> TxPdc {
        TxPdc {
            peer,
            id,
            mode,
            state: TxState::Open,
            peer_id: None,
            cack: start_psn.minus(1),
            records: Records::new(start_psn, config.mp_range),
            outstanding: 0,
            received: 0,
            acknowledged: 0,
            numbered: 0,
            lost_bytes: 0,
            lost: VecDeque::new(),
            mp_range: config.mp_range,
            start_psn,
            missing_ack: None,
            fastest: None,
            recovery: LossRecovery::default(),
        }
    }

    /// The PSN of the next new packet.
    #[inline]
    pub fn next_psn(&self) -> Psn {
        self.records.end()
    }

    /// The first PSN not known to have arrived; [`TxPdc::next_psn`] if all have arrived.
    #[inline]
    pub fn first_unacknowledged(&self) -> Psn {
        self.records.first()
    }

    /// Bytes sent that are neither known to have arrived nor known to be lost.
    #[inline]
    pub fn in_flight(&self) -> u64 {
        let ahead = self.received.saturating_sub(self.acknowledged);
        self.outstanding - ahead.min(self.outstanding)
    }

    /// Whether a packet waits for retransmission.
    #[inline]
    pub fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Bytes of the packets that wait for retransmission.
    #[inline]
    pub fn lost_bytes(&self) -> u64 {
        self.lost_bytes
    }

    /// Whether no packet was ever sent.
    #[inline]
    pub fn is_unused(&self) -> bool {
        self.numbered == 0
    }

    /// Whether all packets are acknowledged.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.records.is_empty()
    }

    /// Whether a new packet is inside the window: PSN ≤ CACK + MP_RANGE. Until the target has reported its own range,
    /// the smallest one is assumed: packets beyond that would be refused for good.
    #[inline]
    pub fn may_send_new(&self) -> bool {
        let range = match self.peer_id {
            Some(_) => self.mp_range,
            None => self.mp_range.min(MIN_MP_RANGE),
        };
        self.next_psn().distance(self.cack) <= range as i32
    }

    /// The destination field of a packet with `psn`: the target's PDCID, or SYN until that is known.
    #[inline]
    pub fn destination(&self, psn: Psn) -> Destination {
        match self.peer_id {
            Some(id) => Destination::Pdc(id),
            None => Destination::Syn {
                use_reserved: false,
                // 12 bits; `may_send_new` keeps it below MIN_MP_RANGE.
                psn_offset: psn.distance(self.start_psn) as u16,
            },
        }
    }

    /// CLEAR_PSN: responses up to this PSN are no longer needed.
    #[inline]
    pub fn clear_psn(&self) -> Psn {
        self.first_unacknowledged().minus(1)
    }

    /// Records a new packet that is sent now, and returns its PSN.
    #[inline]
    pub fn send_new(&mut self, now: Time, kind: PacketKind, bytes: u32, entropy: Entropy) -> Psn {
        let psn = self.next_psn();
        self.numbered += 1;
        self.outstanding += u64::from(bytes);
        self.missing_ack = None;
        self.records.push(TxRecord::new(now, kind, bytes, entropy));
        psn
    }

    /// The next packet to retransmit.
    #[inline]
    pub fn peek_lost(&self) -> Option<(Psn, &TxRecord)> {
        let psn = *self.lost.front()?;
        self.records.get(psn).map(|record| (psn, record))
    }

    /// Records that the packet of [`TxPdc::peek_lost`] is sent again now.
    pub fn resend(&mut self, now: Time, entropy: Entropy) {
        let Some(psn) = self.lost.pop_front() else { return };
        let Some(record) = self.records.get_mut(psn) else { return };
        record.state = State::InFlight;
        record.sent_at = now;
        record.entropy = entropy;
        record.transmissions = record.transmissions.saturating_add(1);
        let bytes = u64::from(record.bytes);
        self.outstanding += bytes;
        self.lost_bytes -= bytes;
    }

    /// Whether `ack` can belong to this PDC: its CACK is at or after the PSN before the first one used, at most 2³⁰
    /// behind the known CACK, and before the next PSN. Once a PDC has used many PSNs the first condition is void,
    /// because half the circle behind looks like ahead.
    #[inline]
    pub fn accepts(&self, ack: &Ack) -> bool {
        let unconfirmed = self.next_psn().minus(1).distance(self.cack) as u64;
        let confirmed = self.numbered - unconfirmed;
        let behind = confirmed.min(1 << 30) as i32;
        ack.cack_psn.is_before(self.next_psn())
            && ack.cack_psn.distance(self.cack) >= -behind
            && ack.spdcid != PdcId(0)
    }

    /// Processes an acknowledgement. Calls `acked` once for every packet that is now known to have arrived. Returns
    /// `None` if it cannot belong to this PDC.
    #[inline]
    pub fn on_ack(&mut self, now: Time, ack: &Ack, mut acked: impl FnMut(&TxRecord)) -> Option<AckOutcome> {
        if !self.accepts(ack) {
            return None;
        }
        self.peer_id.get_or_insert(ack.spdcid);
        let rtt = self.rtt_sample(now, ack);
        self.note_rtt(rtt);
        self.mark_all_acked(ack, &mut acked);
        let mut outcome = AckOutcome {
            newly_received: 0,
            rtt,
            out_of_order: 0,
            receiver_window: None,
            probe: match ack.trigger {
                AckTrigger::Probe(opaque) => Some(opaque),
                AckTrigger::Psn(_) => None,
            },
        };
        if let Some(cc) = &ack.cc {
            if cc.mpr > 0 {
                self.mp_range = self.mp_range.min(u32::from(cc.mpr) * 128);
            }
            if let CcState::Nscc(state) = cc.state {
                outcome.newly_received = self.unwrap_received(state.rcvd_bytes);
                outcome.out_of_order = if state.ooo_count == 0xffff { 0 } else { state.ooo_count };
                outcome.receiver_window = (state.rcv_cwnd_pend < 0x7f).then_some(state.rcv_cwnd_pend);
            }
        }
        if self.outstanding == 0 {
            // Nothing is in flight, so any difference between the two counts is a counting error.
            self.acknowledged = self.received;
        }
        let all_arrived = self.records.is_empty() && self.state != TxState::Closed;
        if all_arrived && self.cack.plus(1) != self.next_psn() {
            self.missing_ack.get_or_insert(MissingAck { since: now, asked: 0 });
        } else {
            self.missing_ack = None;
        }
        Some(outcome)
    }

    /// Marks the packets that `ack` names as arrived: all up to CACK, the packet that triggered it, the bits of SACK.
    #[inline]
    fn mark_all_acked(&mut self, ack: &Ack, acked: &mut impl FnMut(&TxRecord)) {
        if self.cack.is_before(ack.cack_psn) {
            self.cack = ack.cack_psn;
        }
        while self.first_unacknowledged().distance(self.cack) <= 0 && !self.is_idle() {
            let first = self.first_unacknowledged();
            let up_to_cack = match self.cack.distance(first) {
                last @ 0..63 => (1 << (last + 1)) - 1,
                _ => u64::MAX,
            };
            self.mark_acked(first, up_to_cack, 0, acked);
        }
        let trigger = match ack.trigger {
            AckTrigger::Psn(offset) => Some(ack.cack_psn.offset(i32::from(offset))),
            AckTrigger::Probe(_) => None,
        };
        let Some(cc) = &ack.cc else {
            return trigger.into_iter().for_each(|psn| self.mark_acked(psn, 1, 0, acked));
        };
        let base = ack.cack_psn.offset(i32::from(cc.sack_psn_offset));
        let bit = trigger.map(|psn| (psn, psn.distance(base)));
        match bit {
            // Most often the packet that arrived is one of those in the bitmap.
            Some((_, bit @ 0..64)) => self.mark_acked(base, cc.sack_bitmap | 1 << bit, bit as u32, acked),
            Some((psn, _)) => {
                self.mark_acked(psn, 1, 0, acked);
                self.mark_acked(base, cc.sack_bitmap, 0, acked);
            }
            None => self.mark_acked(base, cc.sack_bitmap, 0, acked),
        }
    }

    /// Processes the target's refusal of `nack.psn`, which must be retransmitted. Returns `None` if that packet is not
    /// in flight, or has been retransmitted since. `entropy` is the one that the NACK echoes.
    pub fn on_nack(&mut self, now: Time, nack: &Nack, entropy: Entropy) -> Option<NackOutcome> {
        let record = *self.records.get(nack.psn)?;
        let age = now.since(record.sent_at);
        if record.state != State::InFlight || (record.transmissions > 1 && !nack.retx) {
            return None;
        }
        // RETX does not distinguish the third transmission from the second, but their entropies do; or, on a single
        // path, an answer far sooner than any before. Such a NACK is a copy of one that was handled already; obeying
        // each copy would multiply packets.
        let too_soon = self.fastest.is_some_and(|fastest| age.times(8) < fastest);
        if record.transmissions > 2 && (entropy != record.entropy || too_soon) {
            return None;
        }
        let unambiguous = record.transmissions == 1 + u8::from(nack.retx);
        let rtt = unambiguous.then_some(age);
        self.note_rtt(rtt);
        if nack.code == NackCode::ROD_OOO {
            self.go_back(Psn(nack.payload), nack.psn, record.sent_at);
        }
        if let Some(record) = self.records.get_mut(nack.psn) {
            // The peer is alive; only silence counts towards giving up.
            record.timeouts = 0;
        }
        self.mark_lost(nack.psn);
        Some(NackOutcome { bytes: u64::from(record.bytes), rtt, entropy: record.entropy })
    }

    /// When [`TxPdc::on_timer`] may find something; `None` while all packets are acknowledged.
    pub fn deadline(&self, config: &PdcConfig) -> Option<Time> {
        if let Some(missing) = &self.missing_ack {
            return Some(missing.deadline(config));
        }
        let in_flight = self.records.iter().filter(|(_, r)| r.state == State::InFlight);
        in_flight.map(|(_, r)| r.deadline(config.rto_init)).reduce(|a, b| a.earliest(b))
    }

    /// Moves the packets whose timers have expired to the retransmission queue, and calls `expired` for each.
    pub fn on_timer(
        &mut self,
        now: Time,
        config: &PdcConfig,
        mut expired: impl FnMut(Psn, &TxRecord),
    ) -> Overdue {
        if let Some(missing) = &mut self.missing_ack {
            return match missing {
                _ if now.is_before(missing.deadline(config)) => Overdue::Nothing,
                _ if missing.asked >= config.max_retries => Overdue::Failed(self.cack.plus(1)),
                _ => {
                    *missing = MissingAck { since: now, asked: missing.asked + 1 };
                    Overdue::AskForAck
                }
            };
        }
        let mut found = Overdue::Nothing;
        for psn in self.psns() {
            let Some(record) = self.records.get_mut(psn) else { continue };
            if record.state != State::InFlight || now.is_before(record.deadline(config.rto_init)) {
                continue;
            }
            if record.timeouts >= config.max_retries {
                return Overdue::Failed(psn);
            }
            record.timeouts += 1;
            expired(psn, record);
            self.mark_lost(psn);
            found = Overdue::Resend;
        }
        found
    }

    /// Moves all packets in flight to the retransmission queue.
    pub fn lose_all(&mut self) {
        for psn in self.psns() {
            self.mark_lost(psn);
        }
    }

    /// The records of all unacknowledged packets, for giving up.
    pub fn unacknowledged(&self) -> impl Iterator<Item = &TxRecord> {
        self.records.iter().map(|(_, record)| record).filter(|r| r.state != State::Acked)
    }

    /// When the packet `psn` was last sent, and how often; `None` once it is acknowledged.
    pub fn waiting_since(&self, psn: Psn) -> Option<(Time, u8)> {
        self.records.get(psn).map(|r| (r.sent_at, r.transmissions))
    }

    /// The record of the packet `psn`, unless it is known to have arrived.
    pub fn unanswered(&self, psn: Psn) -> Option<&TxRecord> {
        self.records.get(psn).filter(|record| record.state != State::Acked)
    }

    /// Whether the packet `psn` is in flight, as far as is known.
    pub fn is_in_flight(&self, psn: Psn) -> bool {
        self.records.get(psn).is_some_and(|record| record.state == State::InFlight)
    }

    pub(super) fn record(&self, psn: Psn) -> Option<&TxRecord> {
        self.records.get(psn)
    }

    /// The PSNs from the first one that has not arrived to the last one sent.
    fn psns(&self) -> impl Iterator<Item = Psn> + use<> {
        let first = self.first_unacknowledged();
        (0..self.next_psn().distance(first) as u32).map(move |n| first.plus(n))
    }

    /// An RTT is unambiguous for a packet sent once, or sent twice if the second transmission is acknowledged.
    fn rtt_sample(&self, now: Time, ack: &Ack) -> Option<Span> {
        let AckTrigger::Psn(offset) = ack.trigger else { return None };
        let record = self.records.get(ack.cack_psn.offset(i32::from(offset)))?;
        let valid = record.state == State::InFlight && record.transmissions == 1 + u8::from(ack.retx);
        valid.then(|| now.since(record.sent_at))
    }

    fn note_rtt(&mut self, rtt: Option<Span>) {
        if let Some(rtt) = rtt
            && self.fastest.is_none_or(|fastest| rtt < fastest)
        {
            self.fastest = Some(rtt);
        }
    }

    /// Marks `from + i` as arrived for each bit i of `bits`; calls `acked` for the packets for which that is new, for
    /// bit `first` before the others.
    fn mark_acked(&mut self, from: Psn, bits: u64, first: u32, acked: &mut impl FnMut(&TxRecord)) {
        let mut news = self.records.acknowledge(from, bits);
        let mut bit = if news >> first & 1 == 1 { first } else { news.trailing_zeros() };
        let (mut arrived, mut in_flight) = (0, 0);
        while news != 0 {
            let psn = from.plus(bit);
            news &= !(1 << bit);
            bit = news.trailing_zeros();
            let Some(record) = self.records.settled(psn) else { continue };
            let before = core::mem::replace(&mut record.state, State::Acked);
            acked(record);
            let bytes = u64::from(record.bytes);
            arrived += bytes;
            self.recovery.on_delivered(record.sent_at);
            if record.kind() == PacketKind::Close {
                self.state = TxState::Closed;
            }
            match before {
                State::InFlight => in_flight += bytes,
                _ => self.forget_lost(psn, bytes),
            }
        }
        self.acknowledged += arrived;
        self.outstanding -= in_flight;
    }

    #[cold]
    fn forget_lost(&mut self, psn: Psn, bytes: u64) {
        self.lost.retain(|lost| *lost != psn);
        self.lost_bytes -= bytes;
    }

    pub(super) fn mark_lost(&mut self, psn: Psn) {
        let Some(record) = self.records.get_mut(psn) else { return };
        if record.state != State::InFlight {
            return;
        }
        record.state = State::Lost;
        let bytes = u64::from(record.bytes);
        self.outstanding -= bytes;
        self.lost_bytes += bytes;
        let place = self.lost.iter().rposition(|other| other.is_before(psn)).map_or(0, |before| before + 1);
        self.lost.insert(place, psn);
    }

    /// Go-back-N: the target expects `expected` and refuses `refused`, which was sent at `sent_at`. Packets sent later
    /// are behind the refused packet on the one path and not affected; otherwise each refusal of a window would
    /// retransmit the packets that the one before has just retransmitted.
    fn go_back(&mut self, expected: Psn, refused: Psn, sent_at: Time) {
        let una = self.first_unacknowledged();
        let first = if expected.is_before(una) { una } else { expected };
        let mut psn = first;
        while psn.distance(refused) <= 0 {
            if self.record(psn).is_some_and(|record| sent_at.is_at_or_after(record.sent_at)) {
                self.mark_lost(psn);
            }
            psn = psn.plus(1);
        }
    }

    fn unwrap_received(&mut self, rcvd_bytes: u32) -> u64 {
        let units = rcvd_bytes.wrapping_sub((self.received / 256) as u32) & 0xff_ffff;
        // More than half the circle ahead is behind: the acknowledgement was overtaken by a later one.
        if units >= 1 << 23 {
            return 0;
        }
        let newly = u64::from(units) * 256;
        self.received += newly;
        newly
    }

    /// Bytes of heap allocated.
    pub(crate) fn heap_bytes(&self) -> u64 {
        self.records.heap_bytes() + crate::heap::of_deque(&self.lost)
    }
}

impl MissingAck {
    fn deadline(&self, config: &PdcConfig) -> Time {
        self.since + config.rto_init.times(1 << self.asked.min(20))
    }
}

#[cfg(test)]
mod tests;
