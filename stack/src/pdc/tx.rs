//! The initiator of a PDC: numbers packets, keeps their records, and processes acknowledgements and timeouts.

mod lost;

use std::collections::VecDeque;

use weft_cc::{FlowControl, Span, Time};

use super::arrived::Arrived;
use super::loss::LossRecovery;
use super::record::{Records, State, backed_off};
use super::{PacketKind, PdcConfig, TxRecord};
use crate::packet::Addr;
use crate::spray::Entropy;
use crate::wire::pds::{
    Ack, AckCc, AckRequest, AckTrigger, CcState, DelayEcho, DeliveryMode, Destination, Nack, NackCode,
    NextHeader, PdcId, Psn, VendorFlags,
};

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
    /// The flags of its requests that are weft's own.
    pub flags: VendorFlags,
    /// The target's PDCID, once an acknowledgement has revealed it.
    peer_id: Option<PdcId>,
    /// CACK as reported by the target; may lag behind the first record when acknowledgements are lost.
    cack: Psn,
    mp_range: u32,
    first_range: u32,
    start_psn: Psn,
    /// Number of packets with data in flight, and their bytes.
    outstanding_packets: u32,
    outstanding: u64,
    arrived: Arrived,
    /// Number of new packets so far. PSNs wrap; this does not.
    numbered: u64,
    /// Records of the packets from the first one on that is not known to have arrived.
    records: Records,
    /// Packets to retransmit: in the order of PSNs, and then those that were postponed. Those that have arrived since are among
    /// them until they come to the front: the first one is always to be sent again.
    lost: VecDeque<Psn>,
    /// Set when a ROD target has refused a packet that came out of order: the PSN that it expects.
    draining: Option<Psn>,
    /// Set while all packets have arrived, but the acknowledgement that would move CACK has not.
    missing_ack: Option<MissingAck>,
    lost_bytes: u64,
    /// The shortest time that an answer has taken.
    fastest: Option<Span>,
    /// At the last refusal by a ROD target of a packet that came out of order: the first packet that was not
    /// acknowledged, and the packet that the target expected, whose predecessors it may have without having
    /// acknowledged them. Then the time since which these two are the same, and how often the target has refused since.
    stuck_at: (Psn, Psn),
    stuck_since: Time,
    go_backs: u8,
    /// How many of the packets to retransmit were postponed.
    postponed: u32,
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
    /// Whether it names a packet that was not known to have arrived.
    pub progress: bool,
    /// Bytes that the target accepted since the last one.
    pub newly_received: u64,
    /// Bytes of the packet that triggered it; 0 if no packet did, or if it was known to have arrived.
    pub trigger_bytes: u32,
    /// RTT of that packet, or of the probe that triggered it, if it is unambiguous.
    pub rtt: Option<Span>,
    /// Number of packets that the target holds beyond the first missing one.
    pub out_of_order: u16,
    /// The target's request concerning the window.
    pub flow_control: FlowControl,
    /// The total credit that the target grants, in 256 B modulo 2²⁴, if it says so here.
    pub credit: Option<u32>,
    /// Whether it answers a probe.
    pub probe: bool,
}

/// What an acknowledgement says of packets that it does not name.
#[derive(Clone, Copy, Debug)]
pub struct Evidence {
    /// The packets about which it is definite, as a half-open range: a packet among them that it does not name had not
    /// arrived when it left. About other packets it says nothing.
    pub definite: (Psn, Psn),
    /// Whether that holds for reads, too. It does if the acknowledgement carries data: then it has waited at the target
    /// like the responses to other reads.
    pub on_reads: bool,
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
}

impl TxPdc {
    /// The initiator's end of a PDC to `peer` whose first packet will be `start_psn`.
    pub fn new(config: &PdcConfig, peer: Addr, id: PdcId, mode: DeliveryMode, start_psn: Psn) -> TxPdc {
        TxPdc {
            peer,
            id,
            mode,
            state: TxState::Open,
            flags: VendorFlags::NONE,
            peer_id: None,
            cack: start_psn.minus(1),
            records: Records::new(start_psn, config.mp_range),
            outstanding_packets: 0,
            outstanding: 0,
            arrived: Arrived::default(),
            numbered: 0,
            lost_bytes: 0,
            lost: VecDeque::new(),
            draining: None,
            mp_range: config.mp_range,
            first_range: config.first_range.min(config.mp_range),
            start_psn,
            missing_ack: None,
            fastest: None,
            stuck_at: (start_psn, start_psn),
            stuck_since: Time::ZERO,
            go_backs: 0,
            postponed: 0,
            recovery: LossRecovery::default(),
        }
    }

    /// Sets by how many bytes the nominal size of a packet, which the target counts, exceeds the bytes that it counts
    /// for in windows. 0 unless this is called, before anything is sent.
    pub fn with_nominal_excess(self, bytes: i32) -> TxPdc {
        TxPdc { arrived: Arrived::new(bytes), ..self }
    }

    /// The delay echo in `cc`, if the packets of this PDC ask for one. If they do not, `cc` is another vendor's state.
    #[cold]
    pub fn echo<'a>(&self, cc: &'a AckCc) -> Option<&'a DelayEcho> {
        match &cc.state {
            CcState::DelayEcho(echo) if self.flags.has(VendorFlags::DELAY_ECHO) => Some(echo),
            _ => None,
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
        self.outstanding - self.arrived.unnamed().min(self.outstanding)
    }

    /// Whether a packet waits for retransmission.
    #[inline]
    pub fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Bytes of payload of the packets that wait for retransmission. The bytes that reads ask for do not count.
    #[inline]
    pub fn lost_bytes(&self) -> u64 {
        self.lost_bytes
    }

    /// Whether no packet was ever sent.
    #[inline]
    pub fn is_unused(&self) -> bool {
        self.numbered == 0
    }

    /// Whether the target has acknowledged a packet.
    #[inline]
    pub fn is_heard(&self) -> bool {
        self.peer_id.is_some()
    }

    /// Whether packets were sent and the target has acknowledged none of them, so that it is unknown whether it has
    /// opened the PDC, or has opened and forgotten it.
    #[inline]
    pub fn is_unheard(&self) -> bool {
        !self.is_heard() && !self.is_idle()
    }

    /// The target has a PDC in the name of this one that is not this one, and will forget it: what has been sent was in vain.
    /// The first packet is sent again, unless it was sent less than `least` ago: forged questions must not have it sent all
    /// the time. Returns whether it is.
    pub(crate) fn sends_first_again(&mut self, now: Time, least: Span) -> bool {
        let psn = self.first_unacknowledged();
        let is_due =
            |record: &TxRecord| record.state == State::InFlight && !now.is_before(record.sent_at + least);
        let is_due = self.is_unheard() && self.records.get(psn).is_some_and(is_due);
        if is_due {
            self.mark_lost(psn);
        }
        is_due
    }

    /// Whether all packets are acknowledged.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.records.is_empty()
    }

    /// Whether nothing is expected of the target: all packets are acknowledged, by CACK as well.
    pub fn is_settled(&self) -> bool {
        self.is_idle() && self.missing_ack.is_none()
    }

    /// Whether retransmissions have to wait: a ROD target refuses what comes out of order, and packets that it will
    /// refuse are still in flight. They would be in the way of the packet that it expects, and have it trimmed again.
    pub fn is_draining(&self) -> bool {
        let Some(expected) = self.draining else { return false };
        let una = self.first_unacknowledged();
        let first = if expected.is_before(una) { una } else { expected };
        // Answers come in the order of the path, so the newest packet is in flight the longest.
        let count = self.next_psn().distance(first);
        (1..=count.max(0) as u32).any(|back| self.is_in_flight(self.next_psn().minus(back)))
    }

    /// Whether a new packet is inside the window: PSN ≤ CACK + MP_RANGE, and until the target has reported its own
    /// range no more packets than the first range.
    ///
    /// CACK here is that of the target at the moment at which it checks the packet. The target has all packets up to
    /// CLEAR_PSN, and the new packet clears their responses before it is checked, so the target's CACK is at least
    /// CLEAR_PSN by then. The CACK that the target has reported is older: it may stand before responses that have
    /// arrived here since.
    #[inline]
    pub fn may_send_new(&self) -> bool {
        let range = match self.peer_id {
            Some(_) => self.mp_range,
            None => self.first_range,
        };
        self.next_psn().distance(self.clear_psn()) <= range as i32
    }

    /// The PSN of the first packet.
    pub(crate) fn start_psn(&self) -> Psn {
        self.start_psn
    }

    /// The destination field of a packet with `psn`: the target's PDCID, or SYN until that is known.
    #[inline]
    pub fn destination(&self, psn: Psn) -> Destination {
        match self.peer_id {
            Some(id) => Destination::Pdc(id),
            None => Destination::Syn {
                use_reserved: false,
                // 12 bits; `may_send_new` keeps it below MAX_FIRST_RANGE.
                psn_offset: psn.distance(self.start_psn) as u16,
            },
        }
    }

    /// Whether the target's PDC is `spdcid`, and `cack` can be its CACK: the known one, or ahead of it. Who asks to close the
    /// PDC must name both, as nobody can who sees none of its packets.
    pub(crate) fn is_named_by(&self, spdcid: PdcId, cack: Psn) -> bool {
        self.peer_id == Some(spdcid) && self.is_ahead(cack)
    }

    /// CLEAR_PSN: responses up to this PSN are no longer needed.
    #[inline]
    pub fn clear_psn(&self) -> Psn {
        self.first_unacknowledged().minus(1)
    }

    /// By how much [`TxPdc::in_flight`] will grow with a packet that counts for `bytes`.
    #[inline]
    pub fn growth(&self, bytes: u32) -> u64 {
        let unnamed = self.arrived.unnamed();
        let after = (self.outstanding + u64::from(bytes)).saturating_sub(unnamed);
        after - self.outstanding.saturating_sub(unnamed)
    }

    /// Records a new packet that is sent now, and returns its PSN.
    #[inline]
    pub fn send_new(&mut self, now: Time, kind: PacketKind, bytes: u32, entropy: Entropy) -> Psn {
        let psn = self.next_psn();
        self.numbered += 1;
        self.outstanding += u64::from(bytes);
        self.outstanding_packets += u32::from(kind != PacketKind::Close);
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
        let Some(psn) = self.pop_lost() else { return };
        self.skip_arrived();
        self.draining = None;
        let Some(record) = self.records.get_mut(psn) else { return };
        record.state = State::InFlight;
        record.sent_at = now;
        record.entropy = entropy;
        record.transmissions = record.transmissions.saturating_add(1);
        let (bytes, carried) = (u64::from(record.bytes), u64::from(record.carried()));
        self.outstanding += bytes;
        self.outstanding_packets += u32::from(record.has_data());
        self.lost_bytes -= carried;
    }

    /// Whether `ack` can belong to this PDC: its CACK is at or after the PSN before the first one used, at most 2³⁰
    /// behind the known CACK, and before the next PSN. Once a PDC has used many PSNs the first condition is void,
    /// because half the circle behind looks like ahead.
    #[inline]
    pub fn accepts(&self, ack: &Ack) -> bool {
        // Most acknowledgements come in the order in which they left: CACK is the known one or ahead of it.
        let is_named = self.is_ahead(ack.cack_psn) || self.accepts_behind(ack);
        is_named && ack.spdcid != PdcId(0)
    }

    /// Whether `psn` is the known CACK, or one ahead of it that has been used.
    #[inline]
    fn is_ahead(&self, psn: Psn) -> bool {
        (psn.distance(self.cack) as u32) < self.next_psn().distance(self.cack) as u32
    }

    /// Whether the CACK of `ack` is one that this PDC may have seen before; see [`TxPdc::accepts`].
    #[inline(never)]
    fn accepts_behind(&self, ack: &Ack) -> bool {
        let unconfirmed = self.next_psn().minus(1).distance(self.cack) as u64;
        let confirmed = self.numbered - unconfirmed;
        let behind = confirmed.min(1 << 30) as i32;
        ack.cack_psn.is_before(self.next_psn()) && ack.cack_psn.distance(self.cack) >= -behind
    }

    /// Processes an acknowledgement. Calls `acked` once for every packet that is now known to have arrived, and says
    /// whether it was taken for lost wrongly. Returns `None` if the acknowledgement cannot belong to this PDC.
    #[inline]
    pub fn on_ack(
        &mut self,
        now: Time,
        ack: &Ack,
        mut acked: impl FnMut(Psn, &TxRecord, bool),
    ) -> Option<AckOutcome> {
        if !self.accepts(ack) {
            return None;
        }
        let trigger = self.trigger(now, ack);
        Some(self.take_in(now, ack, trigger, &mut acked))
    }

    /// As [`TxPdc::on_ack`], for a response with data that a switch has trimmed. The packet that it answers still waits
    /// for its answer. But the target does not repeat what the header says of other packets, so that is processed now.
    #[cold]
    pub fn on_trimmed_response(
        &mut self,
        now: Time,
        ack: &Ack,
        mut acked: impl FnMut(Psn, &TxRecord, bool),
    ) -> Option<AckOutcome> {
        let without_trigger = Ack { trigger: AckTrigger::Probe(0), ..*ack };
        self.accepts(ack).then(|| self.take_in(now, &without_trigger, (0, None), &mut acked))
    }

    /// Takes in `ack`, whose trigger counts for so many bytes and has this RTT, and which can belong to this PDC.
    #[inline(always)]
    fn take_in(
        &mut self,
        now: Time,
        ack: &Ack,
        (trigger_bytes, rtt): (u32, Option<Span>),
        acked: &mut impl FnMut(Psn, &TxRecord, bool),
    ) -> AckOutcome {
        self.peer_id.get_or_insert(ack.spdcid);
        let progress = self.mark_all_acked(now, ack, acked);
        let mut outcome = AckOutcome {
            progress,
            newly_received: 0,
            trigger_bytes,
            rtt,
            out_of_order: 0,
            flow_control: FlowControl::Off,
            credit: None,
            probe: matches!(ack.trigger, AckTrigger::Probe(_)),
        };
        if let Some(cc) = &ack.cc {
            if cc.mpr > 0 {
                self.mp_range = self.mp_range.min(u32::from(cc.mpr) * 128);
            }
            match cc.state {
                CcState::Nscc(state) => {
                    // A target with stored responses holds more packets than CACK names even then. Their bytes are
                    // counted later, when an acknowledgement names them. This also corrects the count of a target that
                    // counts in another way.
                    self.arrived.on_report(state.rcvd_bytes, state.ooo_count == 0);
                    outcome.out_of_order = known_count(state.ooo_count);
                    outcome.flow_control = state.flow_control();
                }
                _ => (outcome.out_of_order, outcome.credit) = self.on_other_state(cc),
            }
        }
        outcome.newly_received = self.arrived.news(self.outstanding, self.outstanding_packets);
        let all_arrived = self.records.is_empty();
        if all_arrived {
            self.arrived.settle();
        }
        if all_arrived && self.state != TxState::Closed && self.cack.plus(1) != self.next_psn() {
            self.missing_ack.get_or_insert(MissingAck { since: now, asked: 0 });
        } else {
            self.missing_ack = None;
        }
        outcome
    }

    /// Takes in the state of congestion control in an acknowledgement where it is not NSCC's. Returns the packets that the
    /// target holds beyond the first missing one, and the credit that it grants.
    #[inline(never)]
    fn on_other_state(&mut self, cc: &AckCc) -> (u16, Option<u32>) {
        if let CcState::Credit { credit, ooo_count } = cc.state {
            return (known_count(ooo_count), Some(credit));
        }
        let Some(&DelayEcho { rcvd_bytes, ooo_count, .. }) = self.echo(cc) else { return (0, None) };
        self.arrived.on_report(rcvd_bytes, ooo_count == 0);
        (known_count(ooo_count), None)
    }

    /// What `ack`, which has just been processed, says of packets that it does not name.
    pub fn evidence(&self, ack: &Ack) -> Evidence {
        let on_reads = matches!(ack.next, NextHeader::ResponseData | NextHeader::ResponseDataSmall);
        Evidence { definite: self.definite(ack), on_reads }
    }

    /// See [`Evidence::definite`].
    fn definite(&self, ack: &Ack) -> (Psn, Psn) {
        let una = self.first_unacknowledged();
        let Some(cc) = &ack.cc else { return (una, una) };
        let held = match cc.state {
            CcState::Nscc(state) => state.ooo_count,
            CcState::Credit { ooo_count, .. } => ooo_count,
            _ => self.echo(cc).map_or(UNKNOWN_COUNT, |echo| echo.ooo_count),
        };
        // With stored responses the count begins at the first missing packet, and CACK stands before that.
        let from_cack = ack.request != AckRequest::Clear;
        if held != UNKNOWN_COUNT && from_cack && self.knows_all(ack.cack_psn, held) {
            return (una, self.next_psn());
        }
        let base = ack.cack_psn.offset(i32::from(cc.sack_psn_offset));
        (base, base.plus(SACK_BITS))
    }

    /// Whether all packets that the target holds are known by number here: it reports `cack`, and as many packets
    /// beyond it as are acknowledged.
    #[inline]
    fn knows_all(&self, cack: Psn, out_of_order: u16) -> bool {
        cack == self.cack
            && cack.plus(1) == self.first_unacknowledged()
            && u32::from(out_of_order) == self.records.acknowledged_beyond()
    }

    /// Marks the packets that `ack` names as arrived: all up to CACK, the packet that triggered it, the bits of SACK.
    /// Returns whether one of them was not known to have arrived.
    #[inline]
    fn mark_all_acked(&mut self, now: Time, ack: &Ack, acked: &mut impl FnMut(Psn, &TxRecord, bool)) -> bool {
        if self.cack.is_before(ack.cack_psn) {
            self.cack = ack.cack_psn;
        }
        match self.named(ack) {
            Some(named) => self.mark_acked(now, ack, &named, acked),
            None => self.mark_spread(now, ack, acked),
        }
    }

    /// The packets that `ack` names, as bits from the first unacknowledged one on; `None` if they are too far apart.
    #[inline]
    fn named(&self, ack: &Ack) -> Option<Named> {
        let from = self.first_unacknowledged();
        let up_to_cack = match self.cack.distance(from) {
            ..0 => 0,
            last @ 0..64 => u64::MAX >> (63 - last),
            _ => return None,
        };
        let trigger = match trigger_of(ack).map(|psn| psn.distance(from)) {
            None | Some(..0) => 0,
            Some(bit @ 0..64) => 1 << bit,
            Some(_) => return None,
        };
        let sack = match sack_of(ack) {
            (_, 0) => 0,
            (base, bits) => match base.distance(from) {
                ahead @ 0..64 if bits.leading_zeros() >= ahead as u32 => bits << ahead,
                behind @ -63..0 => bits >> -behind,
                ..0 => 0,
                _ => return None,
            },
        };
        Some(Named { from, up_to_cack, trigger, sack })
    }

    /// [`TxPdc::mark_all_acked`] for packets that are further apart than the bits of a word.
    #[inline(never)]
    fn mark_spread(&mut self, now: Time, ack: &Ack, acked: &mut impl FnMut(Psn, &TxRecord, bool)) -> bool {
        let mut progress = false;
        while self.first_unacknowledged().distance(self.cack) <= 0 && !self.is_idle() {
            let from = self.first_unacknowledged();
            let up_to_cack = match self.cack.distance(from) {
                last @ 0..64 => u64::MAX >> (63 - last),
                _ => u64::MAX,
            };
            progress |= self.mark_acked(now, ack, &Named { up_to_cack, ..Named::none(from) }, acked);
        }
        if let Some(psn) = trigger_of(ack) {
            progress |= self.mark_acked(now, ack, &Named { trigger: 1, ..Named::none(psn) }, acked);
        }
        let (base, sack) = sack_of(ack);
        progress | self.mark_acked(now, ack, &Named { sack, ..Named::none(base) }, acked)
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
        // each copy would multiply packets. Not where the target asks to wait: its polls are far apart, and if its answers
        // have become quick, none would count, as those to polls are no samples of round trips.
        let copies_cost = !nack.code.asks_to_wait();
        let too_soon = copies_cost && self.fastest.is_some_and(|fastest| age.times(8) < fastest);
        if record.transmissions > 2 && (entropy != record.entropy || too_soon) {
            return None;
        }
        let unambiguous = record.transmissions == 1 + u8::from(nack.retx);
        let rtt = unambiguous.then_some(age);
        self.note_rtt(rtt);
        if nack.code == NackCode::ROD_OOO {
            if self.draining.is_none() {
                self.note_go_back(now, Psn(nack.payload));
            }
            self.draining = Some(Psn(nack.payload));
            self.go_back(Psn(nack.payload), nack.psn, record.sent_at);
        } else if nack.code.says_that_it_was_trimmed() && nack.psn == self.stuck_at.1 {
            // The packet that the others wait for is on its way, and is lost to congestion, for which there are windows.
            self.go_backs = 0;
        }
        if let Some(record) = self.records.get_mut(nack.psn) {
            // The peer is alive; only silence counts towards giving up.
            record.timeouts = 0;
        }
        self.mark_lost(nack.psn);
        Some(NackOutcome { bytes: u64::from(record.bytes), rtt, entropy: record.entropy })
    }

    /// Notes that all packets from the one that a ROD target expects are to be sent again.
    fn note_go_back(&mut self, now: Time, expected: Psn) {
        let at = (self.first_unacknowledged(), expected);
        if self.stuck_at != at || self.go_backs == 0 {
            (self.stuck_at, self.stuck_since, self.go_backs) = (at, now, 0);
        }
        self.go_backs = self.go_backs.saturating_add(1);
    }

    /// Whether it is useless to send all packets that a ROD target has refused again at once: it has refused them five
    /// times, and nothing has arrived in between. The refusals must span at least the retransmission timeout `rto`,
    /// because those of earlier transmissions count too.
    pub fn goes_back_in_vain(&self, now: Time, rto: Span) -> bool {
        self.stuck_at.0 == self.first_unacknowledged()
            && self.go_backs > MAX_GO_BACKS
            && now.since(self.stuck_since) >= rto
    }

    /// Whether the packet `psn` was sent and is acknowledged, and is one that its target may still expect.
    pub fn was_acknowledged(&self, psn: Psn) -> bool {
        let una = self.first_unacknowledged();
        let acknowledged = self.numbered - self.next_psn().distance(una) as u64;
        let behind = una.distance(psn);
        behind > 0 && behind as u64 <= acknowledged.min(self.mp_range.into())
    }

    /// When [`TxPdc::on_timer`] may find something, with a retransmission timeout of `rto`; `None` while nothing is
    /// expected of the target. With `news`, timers run from that time at the earliest: the last packet that arrived.
    ///
    /// A ROD PDC has one timer, that of the first packet in flight: when it expires, all packets are sent again. If
    /// each packet had its own timer, later packets would have backed off less, and the first packet would be sent
    /// again whenever one of their timers expires.
    pub fn deadline(&self, rto: Span, news: Option<Time>) -> Option<Time> {
        if let Some(missing) = &self.missing_ack {
            return Some(missing.deadline(rto));
        }
        let in_flight = self.records.iter().filter(|(_, r)| r.state == State::InFlight);
        let mut deadlines = in_flight.map(|(_, r)| r.deadline(rto, news));
        match self.mode {
            DeliveryMode::Rod => deadlines.next(),
            _ => deadlines.reduce(Time::earliest),
        }
    }

    /// Moves the packets whose timers have expired to the retransmission queue, and calls `expired` for each. `rto` and
    /// `news` are those of [`TxPdc::deadline`].
    pub fn on_timer(
        &mut self,
        now: Time,
        rto: Span,
        news: Option<Time>,
        mut expired: impl FnMut(Psn, &TxRecord),
    ) -> Overdue {
        if let Some(missing) = &mut self.missing_ack {
            if now.is_before(missing.deadline(rto)) {
                return Overdue::Nothing;
            }
            *missing = MissingAck { since: now, asked: missing.asked.saturating_add(1) };
            return Overdue::AskForAck;
        }
        let is_due = |at: Time| now.is_at_or_after(at);
        if self.mode == DeliveryMode::Rod && !self.deadline(rto, news).is_some_and(is_due) {
            return Overdue::Nothing;
        }
        let mut added = 0;
        for psn in self.psns() {
            let Some(record) = self.records.get_mut(psn) else { continue };
            if record.state != State::InFlight || now.is_before(record.deadline(rto, news)) {
                continue;
            }
            record.timeouts = record.timeouts.saturating_add(1);
            expired(psn, record);
            added += usize::from(self.append_lost(psn));
        }
        self.put_in_order(added);
        if added > 0 { Overdue::Resend } else { Overdue::Nothing }
    }

    /// How many PSNs there are from the first one that has not arrived to the last one sent.
    pub fn unacknowledged_psns(&self) -> usize {
        self.next_psn().distance(self.first_unacknowledged()) as usize
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

    /// When a packet was last sent for the first time; `None` while all packets are acknowledged.
    pub(super) fn newest_sent(&self) -> Option<Time> {
        self.records.get(self.next_psn().minus(1)).map(|record| record.sent_at)
    }

    /// The PSNs from the first one that has not arrived to the last one sent.
    fn psns(&self) -> impl Iterator<Item = Psn> + use<> {
        let first = self.first_unacknowledged();
        (0..self.unacknowledged_psns() as u32).map(move |n| first.plus(n))
    }

    /// Bytes and RTT of the packet that triggered `ack`, unless it is known to have arrived; or the RTT of a probe. An
    /// RTT is unambiguous for a packet sent once, or sent twice if the second transmission is acknowledged: a question
    /// whether the PDC is there tells nothing of that.
    #[inline]
    fn trigger(&mut self, now: Time, ack: &Ack) -> (u32, Option<Span>) {
        let offset = match ack.trigger {
            AckTrigger::Psn(offset) => offset,
            AckTrigger::Probe(opaque) => return (0, self.recovery.on_probe_answer(now, opaque)),
        };
        let Some(record) = self.unanswered(ack.cack_psn.offset(i32::from(offset))) else { return (0, None) };
        let (bytes, sent_at) = (record.bytes, record.sent_at);
        let is_ambiguous = record.transmissions != 1 + u8::from(ack.retx) || ack.is_question();
        if record.state != State::InFlight || is_ambiguous {
            return (bytes, None);
        }
        self.recovery.on_delivered(sent_at);
        let rtt = Some(now.since(sent_at));
        self.note_rtt(rtt);
        (bytes, rtt)
    }

    fn note_rtt(&mut self, rtt: Option<Span>) {
        if let Some(rtt) = rtt
            && self.fastest.is_none_or(|fastest| rtt < fastest)
        {
            self.fastest = Some(rtt);
        }
    }

    /// Marks the packets of `named` as arrived, because `ack` says so. Calls `acked` for those for which that is new:
    /// first for those up to CACK, then for the one that triggered `ack`, then for the others. Returns whether there
    /// are any.
    #[inline]
    fn mark_acked(
        &mut self,
        now: Time,
        ack: &Ack,
        named: &Named,
        acked: &mut impl FnMut(Psn, &TxRecord, bool),
    ) -> bool {
        let news = self.records.acknowledge(named.from, named.up_to_cack | named.trigger | named.sack);
        if news != 0 {
            self.settle_acked(now, ack, named, news, acked);
        }
        news != 0
    }

    /// Settles the records of the packets that [`TxPdc::mark_acked`] found to have arrived.
    #[inline(never)]
    fn settle_acked(
        &mut self,
        now: Time,
        ack: &Ack,
        named: &Named,
        mut news: u64,
        acked: &mut impl FnMut(Psn, &TxRecord, bool),
    ) {
        let (mut bytes, mut packets) = (0, 0);
        for part in [named.up_to_cack, named.trigger, named.sack] {
            let mut bits = news & part;
            news &= !part;
            while bits != 0 {
                let psn = named.from.plus(bits.trailing_zeros());
                bits &= bits - 1;
                let Some(record) = self.records.settled(psn) else { continue };
                if !record.is_first_transmission() {
                    self.settle_rare(now, ack, psn, acked);
                    continue;
                }
                record.state = State::Acked;
                acked(psn, record, false);
                bytes += u64::from(record.bytes);
                packets += 1;
            }
        }
        self.arrived.on_named(bytes, bytes, packets);
        self.outstanding -= bytes;
        self.outstanding_packets -= packets;
    }

    /// Settles the record of a packet that was sent again, or is taken for lost, or is no part of a message.
    #[inline(never)]
    fn settle_rare(&mut self, now: Time, ack: &Ack, psn: Psn, acked: &mut impl FnMut(Psn, &TxRecord, bool)) {
        let Some(record) = self.records.settled(psn) else { return };
        let before = core::mem::replace(&mut record.state, State::Acked);
        let resent = record.transmissions > 1;
        let spurious = before == State::Lost || resent && is_spurious(now, ack, psn, record, self.fastest);
        acked(psn, record, spurious);
        let (bytes, packets) = (u64::from(record.bytes), u32::from(record.has_data()));
        let carried = u64::from(record.carried());
        if !record.has_data() {
            self.state = TxState::Closed;
        }
        self.arrived.on_named(bytes, carried, packets);
        match before {
            State::InFlight => {
                self.outstanding -= bytes;
                self.outstanding_packets -= packets;
            }
            _ => self.forget_lost(carried),
        }
    }

    /// Gives back the memory that a large window has needed and a small one does not.
    pub(crate) fn give_back(&mut self) {
        self.records.give_back();
        crate::heap::give_back(&mut self.lost);
    }

    /// Bytes of heap allocated.
    pub(crate) fn heap_bytes(&self) -> u64 {
        self.records.heap_bytes() + crate::heap::of_deque(&self.lost)
    }
}

/// How often a window is sent again at once because a ROD target has refused what came out of order, while the first packet of
/// the window has not arrived. That packet may be lost several times; whoever refuses all is not to be sent windows for ever.
const MAX_GO_BACKS: u8 = 4;

/// An `ooo_count` that says nothing.
const UNKNOWN_COUNT: u16 = 0xffff;

/// `ooo_count`, 0 if it is unknown.
#[inline]
fn known_count(ooo_count: u16) -> u16 {
    if ooo_count == UNKNOWN_COUNT { 0 } else { ooo_count }
}

/// Packets that an acknowledgement names: bit i stands for `from + i`.
struct Named {
    from: Psn,
    up_to_cack: u64,
    trigger: u64,
    sack: u64,
}

impl Named {
    #[inline]
    fn none(from: Psn) -> Named {
        Named { from, up_to_cack: 0, trigger: 0, sack: 0 }
    }
}

/// The SACK bitmap of `ack`, and the PSN of its first bit.
#[inline]
fn sack_of(ack: &Ack) -> (Psn, u64) {
    match &ack.cc {
        Some(cc) => (ack.cack_psn.offset(i32::from(cc.sack_psn_offset)), cc.sack_bitmap),
        None => (ack.cack_psn, 0),
    }
}

/// The packet that triggered `ack`; `None` if a probe did.
#[inline]
fn trigger_of(ack: &Ack) -> Option<Psn> {
    match ack.trigger {
        AckTrigger::Psn(offset) => Some(ack.cack_psn.offset(i32::from(offset))),
        AckTrigger::Probe(_) => None,
    }
}

impl MissingAck {
    fn deadline(&self, rto: Span) -> Time {
        self.since + backed_off(rto, self.asked)
    }
}

/// Whether a packet that was sent again and has now been found to have arrived had been taken for lost wrongly: the
/// answer is to its first transmission (Eifel, RFC 3522 §3.2, with the echoed RETX in place of the timestamp), or it is
/// acknowledged beside another one, or by a question, sooner after its retransmission than any answer has come.
fn is_spurious(now: Time, ack: &Ack, psn: Psn, record: &TxRecord, fastest: Option<Span>) -> bool {
    match trigger_of(ack) == Some(psn) && !ack.is_question() {
        true => !ack.retx,
        false => fastest.is_some_and(|fastest| now.since(record.sent_at) < fastest),
    }
}

/// Packets that a SACK bitmap describes.
const SACK_BITS: u32 = 64;

#[cfg(test)]
mod tests;
