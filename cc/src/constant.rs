//! A window that never changes: the baseline for comparisons.

use crate::settings::{SIZE, settings};
use crate::{AckSample, CcParams, CcSnapshot, LossSample, NackSample, SenderCc, Span, Time, Window};

settings! {
    /// The settings of `constant`.
    pub struct ConstantConfig {
        window: Option<u64> = None, in SIZE, "the window in bytes; replaces window_bdp", or "window_bdp";
        window_bdp: f64 = 1.0, in 0.001..=1e3, "the window in BDPs of the network";
    }
}

/// A fixed window. It tracks the least RTT, because the retransmission timers are derived from it.
#[derive(Clone, Copy, Debug)]
pub struct Constant {
    window: Window,
    base_rtt: Span,
    phase: &'static str,
}

impl Constant {
    /// A flow with the configured window, which is at least one byte.
    pub fn new(config: &ConstantConfig, params: &CcParams) -> Constant {
        let bdps = || (params.network_bdp() as f64 * config.window_bdp) as u64;
        let window = config.window.unwrap_or_else(bdps);
        Constant::fixed(Window(window.max(1)), "constant", params)
    }

    /// A flow with this window, whose snapshots show `phase`.
    pub(crate) fn fixed(window: Window, phase: &'static str, params: &CcParams) -> Constant {
        Constant { window, base_rtt: params.network_rtt, phase }
    }

    fn see(&mut self, rtt: Option<Span>) {
        self.base_rtt = rtt.map_or(self.base_rtt, |rtt| rtt.min(self.base_rtt));
    }
}

impl SenderCc for Constant {
    fn on_ack(&mut self, _now: Time, ack: &AckSample) {
        self.see(ack.rtt);
    }

    fn on_nack(&mut self, _now: Time, nack: &NackSample) {
        self.see(nack.rtt);
    }

    fn on_timeout(&mut self, _now: Time, _lost: &LossSample) {}

    fn window(&self) -> Window {
        self.window
    }

    fn expected_rtt(&self) -> Span {
        self.base_rtt
    }

    fn snapshot(&self) -> CcSnapshot {
        CcSnapshot {
            cwnd: self.window.0,
            base_rtt: self.base_rtt,
            target: Span::ZERO,
            delay: Span::ZERO,
            phase: self.phase,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rate;

    fn params() -> CcParams {
        CcParams {
            mtu: 4096,
            overhead: 64,
            link_rate: Rate::from_gbps(100),
            network_rtt: Span::from_us(12),
            trimming: true,
            delays: crate::Delays::Known,
        }
    }

    #[test]
    fn the_window_is_as_configured_and_does_not_change() {
        let half = ConstantConfig { window: None, window_bdp: 0.5 };
        let bytes = ConstantConfig { window: Some(9_000), window_bdp: 0.5 };
        assert_eq!(Constant::new(&ConstantConfig::default(), &params()).window(), Window(150_000));
        assert_eq!(Constant::new(&half, &params()).window(), Window(75_000));
        let mut cc = Constant::new(&bytes, &params());
        cc.on_timeout(Time::ZERO, &LossSample { bytes: 4160, in_flight: 0, expiries: 3 });
        assert_eq!(cc.window(), Window(9_000));
    }
}
