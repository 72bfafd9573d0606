//! The initiator of a PDC: numbers packets, remembers them, learns what became of them.

use std::collections::VecDeque;

use weft_cc::{Span, Time};

use super::loss::LossRecovery;
use super::record::State;
use super::{MIN_MP_RANGE, PacketKind, PdcConfig, TxRecord};
use crate::packet::Addr;
use crate::spray::Entropy;
use crate::wire::pds::{Ack, AckTrigger, CcState, DeliveryMode, Destination, Nack, NackCode, PdcId, Psn};

/// How far a PDC is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxState {
    /// Takes messages.
    Open,
    /// Takes no more messages; CLOSE_CMD leaves when all is acknowledged.
    Draining,
    /// CLOSE_CMD has left.
    Closing,
    /// CLOSE_CMD is acknowledged.
    Closed,
}

/// The initiator's end of one PDC.
#[derive(Debug)]
pub struct TxPdc {
    /// The target.
    pub peer: Addr,
    /// Our PDCID.
    pub id: PdcId,
    /// RUD or ROD.
    pub mode: DeliveryMode,
    /// How far it is in its life.
    pub state: TxState,
    /// The target's PDCID, once an acknowledgement has revealed it.
    peer_id: Option<PdcId>,
    start_psn: Psn,
    /// The first packet not known to have arrived; `records` begins with it.
    pub(super) una: Psn,
    next_psn: Psn,
    /// New packets so far. PSNs go around; this does not.
    numbered: u64,
    /// As reported by the target; may lag behind `una` when acknowledgements are lost.
    cack: Psn,
    mp_range: u32,
    pub(super) records: VecDeque<TxRecord>,
    /// Packets to send again, by PSN.
    lost: VecDeque<Psn>,
    lost_bytes: u64,
    /// Bytes of the records in flight.
    outstanding: u64,
    /// Bytes that the target says it has accepted in total, and bytes of the packets we know of by
    /// number. The first is ahead when SACK bitmaps do not reach as far as reordering does.
    received: u64,
    acknowledged: u64,
    /// Sender-side loss inference.
    pub(super) recovery: LossRecovery,
    /// All packets have arrived, but the acknowledgement that would move CACK has not.
    missing_ack: Option<MissingAck>,
    /// The least time that an answer has taken.
    fastest: Option<Span>,
}

#[derive(Clone, Copy, Debug)]
struct MissingAck {
    since: Time,
    asked: u8,
}

/// What an acknowledgement told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AckOutcome {
    /// Bytes that the target accepted since the last one.
    pub newly_received: u64,
    /// RTT of the packet that triggered it, if its timestamp is unambiguous.
    pub rtt: Option<Span>,
    /// Packets that the target holds beyond the first missing one.
    pub out_of_order: u16,
    /// Share of the window to keep, in 1/127, if the target asks for less than all.
    pub receiver_window: Option<u8>,
    /// Its opaque value, if it answers a probe.
    pub probe: Option<u16>,
}

/// What a NACK told about a packet in flight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NackOutcome {
    /// Bytes the packet counted for.
    pub bytes: u64,
    /// Time since it was sent, if unambiguous.
    pub rtt: Option<Span>,
    /// The entropy it was sent with.
    pub entropy: Entropy,
}

/// What the retransmission timer found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overdue {
    /// Nothing is overdue.
    Nothing,
    /// Packets were moved to the queue of those to be sent again.
    Resend,
    /// All packets have arrived but CACK lags: ask for an acknowledgement.
    AskForAck,
    /// A packet's retries are spent.
    Failed(Psn),
}

impl TxPdc {
    /// A PDC towards `peer` whose first packet will be `start_psn`.
    pub fn new(config: &PdcConfig, peer: Addr, id: PdcId, mode: DeliveryMode, start_psn: Psn) -> TxPdc {
        TxPdc {
            peer,
            id,
            mode,
            state: TxState::Open,
            peer_id: None,
            start_psn,
            una: start_psn,
            next_psn: start_psn,
            numbered: 0,
            cack: start_psn.minus(1),
            mp_range: config.mp_range,
            records: VecDeque::new(),
            lost: VecDeque::new(),
            lost_bytes: 0,
            outstanding: 0,
            received: 0,
            acknowledged: 0,
            recovery: LossRecovery::default(),
            missing_ack: None,
            fastest: None,
        }
    }

    /// The PSN of the next new packet.
    pub fn next_psn(&self) -> Psn {
        self.next_psn
    }

    /// The first PSN not known to have arrived; [`TxPdc::next_psn`] if all have.
    pub fn first_unacknowledged(&self) -> Psn {
        self.una
    }

    /// Bytes sent that have neither arrived nor are known to be lost.
    pub fn in_flight(&self) -> u64 {
        let ahead = self.received.saturating_sub(self.acknowledged);
        self.outstanding - ahead.min(self.outstanding)
    }

    /// Whether a packet waits to be sent again.
    pub fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Bytes of the packets that wait to be sent again.
    pub fn lost_bytes(&self) -> u64 {
        self.lost_bytes
    }

    /// Whether nothing was ever sent.
    pub fn is_unused(&self) -> bool {
        self.numbered == 0
    }

    /// Whether nothing is unacknowledged.
    pub fn is_idle(&self) -> bool {
        self.records.is_empty()
    }

    /// Whether a new packet is inside the window: PSN ≤ CACK + MP_RANGE. Until the target has told its own
    /// range it may be the smallest there is, and what lies beyond it would be refused for good.
    pub fn may_send_new(&self) -> bool {
        let range = match self.peer_id {
            Some(_) => self.mp_range,
            None => self.mp_range.min(MIN_MP_RANGE),
        };
        self.next_psn.distance(self.cack) <= range as i32
    }

    /// Where a packet with `psn` has to go: to the target's PDCID, or with SYN until it is known.
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

    /// CLEAR_PSN: responses up to here are no longer needed.
    pub fn clear_psn(&self) -> Psn {
        self.una.minus(1)
    }

    /// Records a new packet that leaves now, and returns its number.
    pub fn send_new(&mut self, now: Time, kind: PacketKind, bytes: u32, entropy: Entropy) -> Psn {
        let psn = self.next_psn;
        self.next_psn = psn.plus(1);
        self.numbered += 1;
        self.outstanding += u64::from(bytes);
        self.missing_ack = None;
        self.records.push_back(TxRecord {
            kind,
            sent_at: now,
            bytes,
            entropy,
            transmissions: 1,
            timeouts: 0,
            state: State::InFlight,
        });
        psn
    }

    /// The packet to send again next.
    pub fn peek_lost(&self) -> Option<(Psn, &TxRecord)> {
        let psn = *self.lost.front()?;
        self.record(psn).map(|record| (psn, record))
    }

    /// Records that the packet of [`TxPdc::peek_lost`] leaves again now.
    pub fn resend(&mut self, now: Time, entropy: Entropy) {
        let Some(psn) = self.lost.pop_front() else { return };
        let Some(record) = self.record_mut(psn) else { return };
        record.state = State::InFlight;
        record.sent_at = now;
        record.entropy = entropy;
        record.transmissions = record.transmissions.saturating_add(1);
        let bytes = u64::from(record.bytes);
        self.outstanding += bytes;
        self.lost_bytes -= bytes;
    }

    /// Whether `ack` can belong to this PDC: its CACK is the last PSN before the first one used or later,
    /// at most 2³⁰ behind the CACK known, and before the next PSN. Once a PDC has used many PSNs the first
    /// one says nothing: half the circle behind looks like ahead.
    pub fn accepts(&self, ack: &Ack) -> bool {
        let unconfirmed = self.next_psn.minus(1).distance(self.cack) as u64;
        let confirmed = self.numbered - unconfirmed;
        let behind = confirmed.min(1 << 30) as i32;
        ack.cack_psn.is_before(self.next_psn)
            && ack.cack_psn.distance(self.cack) >= -behind
            && ack.spdcid != PdcId(0)
    }

    /// Takes an acknowledgement in. `acked` is called once for every packet that is now known to
    /// have arrived. Returns nothing if it cannot belong to this PDC.
    pub fn on_ack(&mut self, now: Time, ack: &Ack, mut acked: impl FnMut(&TxRecord)) -> Option<AckOutcome> {
        if !self.accepts(ack) {
            return None;
        }
        self.peer_id.get_or_insert(ack.spdcid);
        let rtt = self.rtt_sample(now, ack);
        self.note_rtt(rtt);
        if self.cack.is_before(ack.cack_psn) {
            self.cack = ack.cack_psn;
            while self.una.distance(self.cack) <= 0 && self.una != self.next_psn {
                self.mark_acked(self.una, &mut acked);
                self.pop_acked();
            }
        }
        if let AckTrigger::Psn(offset) = ack.trigger {
            self.mark_acked(ack.cack_psn.offset(i32::from(offset)), &mut acked);
        }
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
            let base = ack.cack_psn.offset(i32::from(cc.sack_psn_offset));
            let mut bits = cc.sack_bitmap;
            while bits != 0 {
                self.mark_acked(base.plus(bits.trailing_zeros()), &mut acked);
                bits &= bits - 1;
            }
            if cc.mpr > 0 {
                self.mp_range = self.mp_range.min(u32::from(cc.mpr) * 128);
            }
            if let CcState::Nscc(state) = cc.state {
                outcome.newly_received = self.unwrap_received(state.rcvd_bytes);
                outcome.out_of_order = if state.ooo_count == 0xffff { 0 } else { state.ooo_count };
                outcome.receiver_window = (state.rcv_cwnd_pend < 0x7f).then_some(state.rcv_cwnd_pend);
            }
        }
        self.pop_acked();
        if self.outstanding == 0 {
            // Nothing is in flight: whatever the two counts differ by is an error of counting.
            self.acknowledged = self.received;
        }
        let all_arrived = self.records.is_empty() && self.state != TxState::Closed;
        if all_arrived && self.cack.plus(1) != self.next_psn {
            self.missing_ack.get_or_insert(MissingAck { since: now, asked: 0 });
        } else {
            self.missing_ack = None;
        }
        Some(outcome)
    }

    /// Takes in that the target refused `nack.psn` and that it must be sent again. Returns nothing
    /// if that packet is not in flight, or was sent again since. `entropy` is the one the NACK echoes.
    pub fn on_nack(&mut self, now: Time, nack: &Nack, entropy: Entropy) -> Option<NackOutcome> {
        let record = *self.record(nack.psn)?;
        let age = now.since(record.sent_at);
        if record.state != State::InFlight || (record.transmissions > 1 && !nack.retx) {
            return None;
        }
        // RETX does not tell the third transmission from the second, but their entropies do, or, on one
        // path, that the answer comes far sooner than any did. It is a copy of one that has been acted
        // upon; to obey each copy would multiply packets.
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
        if let Some(record) = self.record_mut(nack.psn) {
            // Somebody answers: what counts towards giving up is silence.
            record.timeouts = 0;
        }
        self.mark_lost(nack.psn);
        Some(NackOutcome { bytes: u64::from(record.bytes), rtt, entropy: record.entropy })
    }

    /// When [`TxPdc::on_timer`] may find something; nothing while all is acknowledged.
    pub fn deadline(&self, config: &PdcConfig) -> Option<Time> {
        if let Some(missing) = &self.missing_ack {
            return Some(missing.deadline(config));
        }
        let in_flight = self.records.iter().filter(|r| r.state == State::InFlight);
        in_flight.map(|r| r.deadline(config.rto_init)).reduce(|a, b| a.earliest(b))
    }

    /// Moves the packets whose timers have expired to the queue of those to be sent again, calling
    /// `expired` for each.
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
        for index in 0..self.records.len() {
            let record = &mut self.records[index];
            if record.state != State::InFlight || now.is_before(record.deadline(config.rto_init)) {
                continue;
            }
            let psn = self.una.plus(index as u32);
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

    /// Moves everything in flight to the queue of what is to be sent again.
    pub fn lose_all(&mut self) {
        for index in 0..self.records.len() {
            self.mark_lost(self.una.plus(index as u32));
        }
    }

    /// Everything that is not acknowledged, for giving up.
    pub fn unacknowledged(&self) -> impl Iterator<Item = &TxRecord> {
        self.records.iter().filter(|r| r.state != State::Acked)
    }

    /// When the packet `psn` was last sent, and how often, while it is not acknowledged.
    pub fn waiting_since(&self, psn: Psn) -> Option<(Time, u8)> {
        self.record(psn).map(|r| (r.sent_at, r.transmissions))
    }

    /// The packet `psn`, unless it is known to have arrived.
    pub fn unanswered(&self, psn: Psn) -> Option<&TxRecord> {
        self.record(psn).filter(|record| record.state != State::Acked)
    }

    pub(super) fn record(&self, psn: Psn) -> Option<&TxRecord> {
        let index = psn.distance(self.una);
        if index < 0 { None } else { self.records.get(index as usize) }
    }

    fn record_mut(&mut self, psn: Psn) -> Option<&mut TxRecord> {
        let index = psn.distance(self.una);
        if index < 0 { None } else { self.records.get_mut(index as usize) }
    }

    /// A timestamp is valid for a packet sent once, or sent twice if the second one is acknowledged.
    fn rtt_sample(&self, now: Time, ack: &Ack) -> Option<Span> {
        let AckTrigger::Psn(offset) = ack.trigger else { return None };
        let record = self.record(ack.cack_psn.offset(i32::from(offset)))?;
        let valid = record.state == State::InFlight && record.transmissions == 1 + u8::from(ack.retx);
        valid.then(|| now.since(record.sent_at))
    }

    fn note_rtt(&mut self, rtt: Option<Span>) {
        self.fastest = rtt.map(|rtt| self.fastest.map_or(rtt, |fastest| fastest.min(rtt))).or(self.fastest);
    }

    fn mark_acked(&mut self, psn: Psn, acked: &mut impl FnMut(&TxRecord)) {
        let Some(record) = self.record_mut(psn) else { return };
        let (before, bytes) = (record.state, u64::from(record.bytes));
        if before == State::Acked {
            return;
        }
        record.state = State::Acked;
        acked(record);
        let (kind, sent_at) = (record.kind, record.sent_at);
        self.acknowledged += bytes;
        self.recovery.on_delivered(sent_at);
        match before {
            State::InFlight => self.outstanding -= bytes,
            _ => {
                self.lost.retain(|lost| *lost != psn);
                self.lost_bytes -= bytes;
            }
        }
        if kind == PacketKind::Close {
            self.state = TxState::Closed;
        }
    }

    pub(super) fn mark_lost(&mut self, psn: Psn) {
        let Some(record) = self.record_mut(psn) else { return };
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

    /// Go-back-N: the target expects `expected` and refuses `refused`, which left at `sent_at`. What has
    /// left since is behind the refused packet on the one path and not judged by it; else each refusal
    /// of a window would send again what the one before has sent again.
    fn go_back(&mut self, expected: Psn, refused: Psn, sent_at: Time) {
        let first = if expected.is_before(self.una) { self.una } else { expected };
        let mut psn = first;
        while psn.distance(refused) <= 0 {
            if self.record(psn).is_some_and(|record| sent_at.is_at_or_after(record.sent_at)) {
                self.mark_lost(psn);
            }
            psn = psn.plus(1);
        }
    }

    fn pop_acked(&mut self) {
        while self.records.front().is_some_and(|r| r.state == State::Acked) {
            self.records.pop_front();
            self.una = self.una.plus(1);
        }
    }

    fn unwrap_received(&mut self, rcvd_bytes: u32) -> u64 {
        let units = rcvd_bytes.wrapping_sub((self.received / 256) as u32) & 0xff_ffff;
        // More than half the circle ahead is behind: an acknowledgement that was overtaken.
        if units >= 1 << 23 {
            return 0;
        }
        let newly = u64::from(units) * 256;
        self.received += newly;
        newly
    }
}

impl MissingAck {
    fn deadline(&self, config: &PdcConfig) -> Time {
        self.since + config.rto_init.times(1 << self.asked.min(20))
    }
}

#[cfg(test)]
mod tests;
