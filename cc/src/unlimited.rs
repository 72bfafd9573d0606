//! No sender's window at all, for connections that only a receiver's credits control.

use crate::{AckSample, CcParams, CcSnapshot, LossSample, NackSample, SenderCc, Span, Time, Window};

/// An unlimited window. Keeps the least RTT, which timers are derived from.
#[derive(Clone, Copy, Debug)]
pub struct Unlimited {
    base_rtt: Span,
}

impl Unlimited {
    /// A new flow.
    pub fn new(params: &CcParams) -> Unlimited {
        Unlimited { base_rtt: params.network_rtt }
    }

    fn see(&mut self, rtt: Option<Span>) {
        self.base_rtt = rtt.map_or(self.base_rtt, |rtt| rtt.min(self.base_rtt));
    }
}

impl SenderCc for Unlimited {
    fn on_ack(&mut self, _now: Time, ack: &AckSample) {
        self.see(ack.rtt);
    }

    fn on_nack(&mut self, _now: Time, nack: &NackSample) {
        self.see(nack.rtt);
    }

    fn on_timeout(&mut self, _now: Time, _lost: &LossSample) {}

    fn window(&self) -> Window {
        Window::UNLIMITED
    }

    fn snapshot(&self) -> CcSnapshot {
        CcSnapshot { cwnd: u64::MAX, base_rtt: self.base_rtt, phase: "credit", ..CcSnapshot::default() }
    }
}
