//! Congestion contexts: one for each peer and traffic class, shared by all PDCs between the two.

use std::collections::VecDeque;

use weft_cc::credit::SenderCredit;
use weft_cc::{AckSample, LossSample, NackSample, SenderAlgorithm, SenderCc, SentPacket, Time};

use crate::packet::Addr;
use crate::pdc::TxPdc;
use crate::spray::{Entropy, PathContext, PathFeedback, PathSelector, Selector};
use crate::table::Key;
use crate::wire::pds::{PdcId, Psn, RequestCc};

/// A traffic class. Connections to one peer share a congestion context if their classes are the same.
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

// In the order of use: the fields that every packet needs come first.
#[repr(C)]
pub(super) struct Context {
    in_flight: u64,
    sent: u64,
    /// Posted bytes of this context's connections that have not been cut into packets.
    pub(super) backlog: u64,
    pub(super) credit: Option<Box<SenderCredit>>,
    /// The connection taken from `blocked` to try the gate, until it has tried.
    pub(super) trying: Option<Key>,
    consecutive_timeouts: u32,
    pub(super) peer: Addr,
    pub(super) class: TrafficClass,
    /// Whether the next packet asks for an acknowledgement and is exempt from the window.
    pub(super) asks: bool,
    /// The PDC of the last packet that asked for an acknowledgement (AR); 0 if none did.
    asked_of: PdcId,
    selector: Selector,
    algorithm: SenderAlgorithm,
    /// Connections that have something to send and wait for the gate to open.
    pub(super) blocked: VecDeque<Key>,
    pub(super) timer: Option<Time>,
    wire_mtu: u64,
    /// Number of connections that use the context.
    pub(super) users: u32,
    /// PSN of the last packet of [`Context::asked_of`] that asked. It takes no extra room here: contexts fill whole
    /// cache lines.
    asked_with: Psn,
}

impl Context {
    pub(super) fn new(
        peer: Addr,
        class: TrafficClass,
        algorithm: SenderAlgorithm,
        selector: Selector,
        credit: Option<SenderCredit>,
        wire_mtu: u64,
    ) -> Context {
        Context {
            peer,
            class,
            algorithm,
            selector,
            credit: credit.map(Box::new),
            in_flight: 0,
            sent: 0,
            wire_mtu,
            users: 0,
            blocked: VecDeque::new(),
            asks: false,
            asked_of: PdcId(0),
            asked_with: Psn(0),
            trying: None,
            backlog: 0,
            timer: None,
            consecutive_timeouts: 0,
        }
    }

    /// Runs `change` on one of the context's PDCs and updates the count of bytes in flight.
    #[inline]
    pub(super) fn track<R>(&mut self, pdc: &mut TxPdc, change: impl FnOnce(&mut TxPdc) -> R) -> R {
        let before = pdc.in_flight();
        let result = change(pdc);
        self.in_flight = self.in_flight + pdc.in_flight() - before;
        result
    }

    /// Subtracts the bytes in flight of a PDC that is given up.
    pub(super) fn forget(&mut self, pdc: &TxPdc) {
        self.in_flight -= pdc.in_flight();
    }

    pub(super) fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Whether receiver credit is in use.
    #[inline]
    pub(super) fn needs_credit(&self) -> bool {
        self.credit.is_some()
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
        self.window().min(1 << 40) as f64 / self.wire_mtu as f64
    }

    /// Whether a packet of `bytes` may be sent. One packet may always be in flight, however small the window. Nor does a
    /// packet that asks for an acknowledgement wait for the window, in case the target withholds the acknowledgements of
    /// the packets in flight.
    #[inline]
    pub(super) fn gate(&self, now: Time, bytes: u64) -> Gate {
        if self.in_flight > 0 && self.in_flight + bytes > self.window() && !self.asks {
            return Gate::Window;
        }
        if let Some(credit) = &self.credit
            && !credit.may_send()
        {
            return Gate::Credit;
        }
        match self.algorithm.next_departure() {
            Some(at) if now.is_before(at) => Gate::Until(at),
            _ => Gate::Open,
        }
    }

    /// Whether the window has no room for any packet, so that waiting connections need not try the gate.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.in_flight > 0 && self.in_flight >= self.window() && !self.asks
    }

    /// Whether a packet of `bytes`, just sent, is the last one that the window allows: the target should acknowledge
    /// it at once instead of waiting for more.
    #[inline]
    pub(super) fn is_spent(&self, bytes: u64) -> bool {
        self.in_flight + bytes >= self.window() || self.credit.as_ref().is_some_and(|c| !c.may_send())
    }

    /// Records that a packet with a request for an acknowledgement was sent.
    #[inline]
    pub(super) fn on_ask(&mut self, pdc: PdcId, psn: Psn) {
        self.asks = false;
        (self.asked_of, self.asked_with) = (pdc, psn);
    }

    /// PDC and PSN of the last packet that asked for an acknowledgement.
    pub(super) fn asked(&self) -> (PdcId, Psn) {
        (self.asked_of, self.asked_with)
    }

    #[inline]
    pub(super) fn next_entropy(&mut self, now: Time, retransmission: bool) -> Entropy {
        // Only some load balancers use the window; the others are spared the division.
        let window_packets = if self.selector.wants_window() { self.window_packets() as u32 } else { 0 };
        self.selector.next(&PathContext { now, sent: self.sent, window_packets, retransmission })
    }

    #[inline]
    pub(super) fn on_send(&mut self, now: Time, bytes: u64, retransmission: bool) {
        self.sent += 1;
        self.algorithm.on_send(now, &SentPacket { bytes, in_flight: self.in_flight, retransmission });
        if let Some(credit) = &mut self.credit {
            credit.on_send(bytes);
        }
    }

    /// The congestion-control fields of a request, if credit is in use; `lost` bytes wait for retransmission.
    #[inline]
    pub(super) fn request_cc(&mut self, lost: u64) -> Option<RequestCc> {
        let credit_target = self.credit_target(lost)?;
        Some(RequestCc { ccc_id: self.class.0, credit_target })
    }

    /// The credit target to announce, if credit is in use; `lost` bytes wait for retransmission.
    #[inline]
    pub(super) fn credit_target(&mut self, lost: u64) -> Option<u32> {
        let credit = self.credit.as_mut()?;
        let window = self.algorithm.window().0;
        let room = (window != u64::MAX).then(|| window.max(self.in_flight));
        Some(credit.credit_target(self.backlog, lost, room))
    }

    #[inline]
    pub(super) fn on_ack(&mut self, now: Time, sample: AckSample) {
        self.consecutive_timeouts = 0;
        self.on_feedback();
        self.algorithm.on_ack(now, &AckSample { in_flight: self.in_flight, ..sample });
    }

    pub(super) fn on_nack(&mut self, now: Time, sample: NackSample) {
        self.on_feedback();
        self.algorithm.on_nack(now, &NackSample { in_flight: self.in_flight, ..sample });
    }

    pub(super) fn on_timeout(&mut self, now: Time, bytes: u64) {
        self.consecutive_timeouts += 1;
        let consecutive = self.consecutive_timeouts;
        self.algorithm.on_timeout(now, &LossSample { bytes, in_flight: self.in_flight, consecutive });
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

    pub(super) fn snapshot(&self) -> weft_cc::CcSnapshot {
        self.algorithm.snapshot()
    }

    /// Bytes of heap allocated.
    pub(super) fn heap_bytes(&self) -> u64 {
        let credit = self.credit.as_deref().map_or(0, |credit| size_of_val(credit) as u64);
        self.selector.heap_bytes() as u64 + crate::heap::of_deque(&self.blocked) + credit
    }
}
