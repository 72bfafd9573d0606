//! No window at the sender, for connections that are controlled by the receiver's credits alone.

use crate::constant::Constant;
use crate::{AckSample, CcParams, CcSnapshot, LossSample, NackSample, SenderCc, Span, Time, Window};

/// An unlimited window: a [`Constant`] one that the bytes in flight cannot reach.
#[derive(Clone, Copy, Debug)]
pub struct Unlimited(Constant);

impl Unlimited {
    /// A new flow.
    pub fn new(params: &CcParams) -> Unlimited {
        Unlimited(Constant::fixed(Window::UNLIMITED, "credit", params))
    }
}

impl SenderCc for Unlimited {
    fn on_ack(&mut self, now: Time, ack: &AckSample) {
        self.0.on_ack(now, ack);
    }

    fn on_nack(&mut self, now: Time, nack: &NackSample) {
        self.0.on_nack(now, nack);
    }

    fn on_timeout(&mut self, now: Time, lost: &LossSample) {
        self.0.on_timeout(now, lost);
    }

    fn window(&self) -> Window {
        self.0.window()
    }

    fn expected_rtt(&self) -> Span {
        self.0.expected_rtt()
    }

    fn snapshot(&self) -> CcSnapshot {
        self.0.snapshot()
    }
}
