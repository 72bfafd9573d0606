//! Congestion contexts: one for each peer and traffic class, shared by all PDCs between the two, or one for each PDC.

use weft_cc::credit::SenderCredit;
use weft_cc::{AckSample, LossSample, NackSample, SenderAlgorithm, SenderCc, SentPacket, Span, Time};

use super::FepConfig;
use super::connection::Connection;
use super::turns::Turns;
use super::zone::ZoneId;
use crate::packet::Addr;
use crate::pdc::{MAX_DOUBLINGS, PacketKind, Patience, PdcConfig, RttEstimator, TxPdc};
use crate::spray::{Entropy, PathContext, PathFeedback, PathSelector, Selector};
use crate::table::Key;
use crate::wire::pds::{PdcId, Psn, RequestCc};

/// A traffic class. Connections to one peer share a congestion context if their classes are the same, and if
/// [`Windows::Pair`](super::Windows) is configured. Where switches tell priorities apart
/// ([`FepConfig::priorities`]), it is also the priority of what they send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct TrafficClass(pub u8);

/// Why a packet may not be sent yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    Open,
    /// The window is full: an acknowledgement opens it.
    Window,
    /// Pacing: the packet may be sent at this time.
    Until(Time),
    /// No credit is left.
    Credit,
}

/// Which packets ask for an acknowledgement, beside retransmissions and those after which sending stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asking {
    AsNeeded,
    /// The next one, which is exempt from the window.
    Next,
    /// Every one: the algorithm needs to know about each packet.
    Each,
}

// In the order of use: the fields that every packet needs come first.
#[repr(C)]
pub(super) struct Context {
    in_flight: u64,
    sent: u64,
    /// Posted bytes of this context's connections that have not been cut into packets.
    pub(super) backlog: u64,
    pub(super) credit: Option<Box<SenderCredit>>,
    /// When the peer began to owe an answer to something; `None` while it owes none.
    pub(super) silent_since: Option<Time>,
    /// The connection taken from `blocked` to try the gate, until it has tried.
    pub(super) trying: Option<Key>,
    /// Number of rounds of timeouts since the last acknowledgement.
    consecutive_timeouts: u32,
    pub(super) peer: Addr,
    /// Names the context to the target, among those to the same peer (CCC_ID).
    pub(super) ccc_id: u8,
    pub(super) asks: Asking,
    /// The PDC of the last packet that asked for an acknowledgement (AR); 0 if none did.
    asked_of: PdcId,
    selector: Selector,
    algorithm: SenderAlgorithm,
    /// Connections that have something to send and wait for the gate to open.
    pub(super) blocked: Turns,
    pub(super) rtt: RttEstimator,
    /// When a packet of any of its connections last arrived.
    pub(super) progress_at: Time,
    /// When the last round of timeouts began.
    round_at: Time,
    pub(super) timer: Option<Time>,
    wire_mtu: u32,
    /// The zone of the peer.
    pub(super) zone: ZoneId,
    /// Number of connections that use the context.
    pub(super) users: u32,
    /// Number of them that have packets in flight.
    active: u32,
    /// Whether the context counts among those that hold credit and have something to send.
    pub(super) stocked: bool,
    /// The process of this endpoint for whose connection the context was made.
    pub(super) process: u16,
    /// PSN of the last packet of [`Context::asked_of`] that asked. It takes no extra room here: contexts fill whole
    /// cache lines.
    asked_with: Psn,
}

impl Context {
    #[expect(clippy::too_many_arguments, reason = "the parts that its zone and its peer make")]
    pub(super) fn new(
        now: Time,
        (peer, zone): (Addr, ZoneId),
        ccc_id: u8,
        algorithm: SenderAlgorithm,
        selector: Selector,
        credit: Option<SenderCredit>,
        ack_each: bool,
        wire_mtu: u32,
    ) -> Context {
        Context {
            peer,
            ccc_id,
            rtt: RttEstimator::new(algorithm.expected_rtt()),
            algorithm,
            selector,
            credit: credit.map(Box::new),
            in_flight: 0,
            sent: 0,
            wire_mtu,
            zone,
            users: 0,
            active: 0,
            stocked: false,
            process: 0,
            blocked: Turns::default(),
            asks: if ack_each { Asking::Each } else { Asking::AsNeeded },
            asked_of: PdcId(0),
            asked_with: Psn(0),
            trying: None,
            backlog: 0,
            timer: None,
            silent_since: None,
            progress_at: now,
            round_at: now,
            consecutive_timeouts: 0,
        }
    }

    /// Runs `change` on one of the context's PDCs and updates the count of bytes in flight.
    #[inline]
    pub(super) fn track<R>(&mut self, pdc: &mut TxPdc, change: impl FnOnce(&mut TxPdc) -> R) -> R {
        let before = pdc.in_flight();
        let result = change(pdc);
        let after = pdc.in_flight();
        self.in_flight = self.in_flight + after - before;
        self.active = self.active + u32::from(after > 0) - u32::from(before > 0);
        result
    }

    /// Records a new packet of one of the context's PDCs, as [`TxPdc::send_new`] does, and counts its bytes in flight.
    /// It costs less than [`Context::track`].
    // Always inlined: it has one caller, which runs it for each packet.
    #[inline(always)]
    pub(super) fn send_new(
        &mut self,
        pdc: &mut TxPdc,
        now: Time,
        kind: PacketKind,
        bytes: u32,
        entropy: Entropy,
    ) -> Psn {
        let growth = pdc.growth(bytes);
        self.active += u32::from(growth > 0 && pdc.in_flight() == 0);
        self.in_flight += growth;
        pdc.send_new(now, kind, bytes, entropy)
    }

    /// Subtracts the bytes in flight of a PDC that is given up.
    pub(super) fn forget(&mut self, pdc: &TxPdc) {
        self.in_flight -= pdc.in_flight();
        self.active -= u32::from(pdc.in_flight() > 0);
    }

    pub(super) fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Number of connections that have packets in flight.
    pub(super) fn active(&self) -> u32 {
        self.active
    }

    /// Whether receiver credit is in use.
    #[inline]
    pub(super) fn needs_credit(&self) -> bool {
        self.credit.is_some()
    }

    /// Whether the context holds credit for something that it has to send.
    #[inline]
    pub(super) fn is_stocked(&self) -> bool {
        self.credit.as_ref().is_some_and(|credit| credit.holds_for(self.backlog))
    }

    /// Whether connections wait for the gate.
    #[inline]
    pub(super) fn has_blocked(&self) -> bool {
        !self.blocked.is_empty()
    }

    #[inline]
    pub(super) fn window(&self) -> u64 {
        self.algorithm.window().0
    }

    /// The window in packets of full size.
    pub(super) fn window_packets(&self) -> f64 {
        self.window().min(1 << 40) as f64 / f64::from(self.wire_mtu)
    }

    /// Whether a packet of `bytes` may be sent. One packet may always be in flight, however small the window. Nor does a
    /// packet that asks for an acknowledgement wait for the window, in case the target withholds the acknowledgements of
    /// the packets in flight.
    #[inline(always)]
    pub(super) fn gate(&self, config: &FepConfig, now: Time, bytes: u64) -> Gate {
        if self.in_flight > 0 && self.in_flight + bytes > self.window() && self.asks != Asking::Next {
            return Gate::Window;
        }
        if let Some(credit) = &self.credit
            && !credit.may_send()
        {
            return Gate::Credit;
        }
        match self.algorithm.next_departure().and_then(|at| self.paced(config, at)) {
            Some(at) if now.is_before(at) => Gate::Until(at),
            _ => Gate::Open,
        }
    }

    /// Whether a packet of full size may be sent.
    pub(super) fn is_open(&self, config: &FepConfig, now: Time) -> bool {
        self.gate(config, now, self.wire_mtu.into()) == Gate::Open
    }

    /// When a packet may leave that its algorithm wants to leave at `at`; `None` if at once. While something is in flight
    /// that is `at`. Otherwise it is sooner in two cases:
    ///
    /// - A timer has expired, and no answer has come since. Then one packet leaves at once, as the first one after an
    ///   expiry does in TCP: timers pace these by their back-off, and a gap between departures may be longer than the time
    ///   after which a silent peer is given up.
    /// - Nothing has arrived for [`FepConfig::longest_gap`]: the time without progress that ends a connection is not the
    ///   algorithm's to spend, and where there is no such time, nobody waits for ever.
    fn paced(&self, config: &FepConfig, at: Time) -> Option<Time> {
        if self.in_flight > 0 {
            return Some(at);
        }
        let has_tried = self.consecutive_timeouts > 0;
        (!has_tried).then(|| at.earliest(self.progress_at + config.longest_gap()))
    }

    /// Whether the window has no room for any packet, so that waiting connections need not try the gate.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.in_flight > 0 && self.in_flight >= self.window() && self.asks != Asking::Next
    }

    /// Whether a packet of `bytes`, just sent, is the last one that the window allows: the target should acknowledge
    /// it at once instead of waiting for more.
    #[inline]
    pub(super) fn is_spent(&self, bytes: u64) -> bool {
        self.in_flight + bytes >= self.window() || self.credit.as_ref().is_some_and(|c| !c.may_send())
    }

    /// Number of connections that have packets in flight, or will have before the next turn of the one that sends: those that
    /// wait for the gate, and up to the number of the context's connections, the `ready` ones that wait for the link.
    #[inline]
    pub(super) fn sharing(&self, ready: usize) -> u64 {
        let waiting = (ready + self.blocked.len()).min(self.users as usize) as u64;
        waiting.max(u64::from(self.active))
    }

    /// Whether `unasked` bytes are more than one of `sharing` connections may have in flight without having asked for an
    /// acknowledgement. Each connection has a target of its own, which withholds acknowledgements until it has enough to
    /// acknowledge: together they may withhold all that the window allows. If each has as many bytes, they are a quarter of
    /// `limit` together. A connection that sends alone asks for other reasons. See [`Context::ends_credit_within`], too.
    pub(super) fn exceeds_share(unasked: u64, limit: u64, sharing: u64) -> bool {
        debug_assert!(sharing > 1, "a connection that sends alone has no share to exceed");
        unasked * sharing * 4 > limit
    }

    /// Whether `turns` packets, those of other connections before the next turn of the one that sends, use up the credit that is
    /// left: that turn may be as far away as the next credit.
    pub(super) fn ends_credit_within(&self, turns: u64) -> bool {
        self.credit.as_ref().is_some_and(|credit| credit.ends_within(turns))
    }

    /// Records that a packet with a request for an acknowledgement was sent.
    #[inline]
    pub(super) fn on_ask(&mut self, pdc: PdcId, psn: Psn) {
        if self.asks == Asking::Next {
            self.asks = Asking::AsNeeded;
        }
        (self.asked_of, self.asked_with) = (pdc, psn);
    }

    /// PDC and PSN of the last packet that asked for an acknowledgement.
    pub(super) fn asked(&self) -> (PdcId, Psn) {
        (self.asked_of, self.asked_with)
    }

    #[inline(always)]
    pub(super) fn next_entropy(&mut self, now: Time, retransmission: bool) -> Entropy {
        // Only some load balancers use the window; the others are spared the division.
        let window_packets = if self.selector.wants_window() { self.window_packets() as u32 } else { 0 };
        self.selector.next(&PathContext { now, sent: self.sent, window_packets, retransmission })
    }

    /// A packet leaves that counts for `bytes` in the window, and needs credit for `carried`.
    #[inline(always)]
    pub(super) fn on_send(&mut self, now: Time, bytes: u64, carried: u64, retransmission: bool) {
        self.sent += 1;
        self.await_answer(now);
        let in_flight = self.in_flight;
        let app_limited = self.backlog == 0 && in_flight + u64::from(self.wire_mtu) <= self.window();
        self.algorithm.on_send(now, &SentPacket { bytes, in_flight, retransmission, app_limited });
        if let Some(credit) = &mut self.credit {
            credit.on_send(carried);
        }
    }

    /// `bytes` of messages of `connection` have left, or will not leave.
    #[inline(always)]
    pub(super) fn leave_backlog(&mut self, connection: &mut Connection, bytes: u64) {
        self.backlog = self.backlog.saturating_sub(bytes);
        connection.backlog = connection.backlog.saturating_sub(bytes);
    }

    /// Something has left that the peer answers.
    #[inline]
    pub(super) fn await_answer(&mut self, now: Time) {
        self.silent_since.get_or_insert(now);
    }

    /// A packet of the peer has arrived that belongs to a connection of this context.
    #[inline]
    pub(super) fn hear(&mut self, now: Time) {
        self.silent_since = (self.in_flight > 0).then_some(now);
    }

    /// The congestion-control fields of a request, if credit is in use; `lost` bytes wait for retransmission, and
    /// `rivals` other contexts hold credit for what they have to send.
    #[inline]
    pub(super) fn request_cc(&mut self, lost: u64, rivals: u32) -> Option<RequestCc> {
        if !self.needs_credit() {
            return None;
        }
        let credit_target = self.credit_target(lost, rivals)?;
        Some(RequestCc { ccc_id: self.ccc_id, credit_target })
    }

    /// The credit target to announce, if credit is in use; see [`Context::request_cc`].
    // Not inlined into the code that packets without credit run through.
    #[inline(never)]
    pub(super) fn credit_target(&mut self, lost: u64, rivals: u32) -> Option<u32> {
        let credit = self.credit.as_mut()?;
        let window = self.algorithm.window().0;
        let room = (window != u64::MAX).then(|| window.max(self.in_flight));
        Some(credit.credit_target(self.backlog, lost, room, rivals))
    }

    pub(super) fn on_hops(&mut self, hops: u8) {
        self.algorithm.on_hops(hops);
    }

    #[inline]
    pub(super) fn on_ack(&mut self, now: Time, sample: &AckSample) {
        self.consecutive_timeouts = 0;
        self.on_feedback();
        self.algorithm.on_ack(now, sample);
    }

    pub(super) fn on_nack(&mut self, now: Time, sample: NackSample) {
        self.on_feedback();
        self.algorithm.on_nack(now, &NackSample { in_flight: self.in_flight, ..sample });
    }

    /// The retransmission timer of one of the context's PDCs has expired for packets of `bytes` together, the last of
    /// which was sent at `sent_at`. Packets that were sent before a round of expiries began belong to that round,
    /// whichever connection's they are.
    pub(super) fn on_timeout(&mut self, now: Time, bytes: u64, sent_at: Time) {
        if self.consecutive_timeouts == 0 || sent_at.is_at_or_after(self.round_at) {
            self.consecutive_timeouts += 1;
            self.round_at = now;
        }
        let expiries = self.consecutive_timeouts;
        self.algorithm.on_timeout(now, &LossSample { bytes, in_flight: self.in_flight, expiries });
    }

    /// The target announces the total of its credit, in 256 B modulo 2²⁴.
    pub(super) fn on_credit_total(&mut self, total: u32) {
        if let Some(credit) = &mut self.credit {
            credit.on_credit_total(total);
        }
    }

    #[inline]
    pub(super) fn on_feedback(&mut self) {
        if let Some(credit) = &mut self.credit {
            credit.on_feedback();
        }
    }

    #[inline]
    pub(super) fn path_feedback(&mut self, now: Time, entropy: Entropy, feedback: PathFeedback) {
        self.selector.feedback(now, entropy, feedback);
    }

    /// The retransmission timeout now.
    pub(super) fn rto(&self, config: &PdcConfig) -> Span {
        self.rtt.timeout(config.rto_init, config.infer_loss)
    }

    /// The longest time between two transmissions of a packet.
    fn longest_rest(&self, config: &PdcConfig) -> Span {
        self.rto(config).times(1 << MAX_DOUBLINGS)
    }

    /// Whether the peer has owed an answer and said nothing for as long as the slowest retransmissions are apart.
    pub(super) fn is_silent(&self, now: Time, config: &PdcConfig) -> bool {
        self.silent_since.is_some_and(|since| now.since(since) >= self.longest_rest(config))
    }

    /// How long to wait before probes ask about packets. At the rate of the slowest retransmissions they keep a living
    /// peer from seeming silent.
    pub(super) fn patience(&self, config: &PdcConfig) -> Patience {
        let longest_rest = self.longest_rest(config);
        Patience { reach: self.rtt.reach(), quiet: self.rtt.probe_wait(), longest_rest }
    }

    pub(super) fn snapshot(&self) -> weft_cc::CcSnapshot {
        self.algorithm.snapshot()
    }

    /// Bytes of heap allocated.
    pub(super) fn heap_bytes(&self) -> u64 {
        let credit = self.credit.as_deref().map_or(0, |credit| size_of_val(credit) as u64);
        self.selector.heap_bytes() as u64 + self.blocked.heap_bytes() + credit
    }
}
