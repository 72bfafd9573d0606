//! `median(SENDER)`: a sender that reacts to delay is driven by the median of recent RTTs, not by the latest one.
//!
//! Source: MSwift, which puts the median before Swift. Where packets are sprayed, an RTT is that of one path of many;
//! a few congested paths then hold back a window that all paths share. The history has
//! max(min(window / 2, 10), 3) samples, with the window in packets. Choices where the paper is open:
//! - Until the history is full, the median is that of the samples there are. Of an even number it is the lower middle.
//! - NACKs keep their own RTT, which may lower the base RTT.
//! - Marks are not filtered: they pass with their ACKs.

use crate::registry::{MakeSender, SenderInput};
use crate::settings::SettingInfo;
use crate::table::{Builder, Refused};
use crate::{
    AckSample, CcSnapshot, LossSample, NackSample, SenderAlgorithm, SenderCc, SentPacket, Span, Time, Window,
};
use std::sync::Arc;

/// The fewest and the most samples of the history.
const SHORTEST: u64 = 3;
const LONGEST: u64 = 10;

/// A flow of another algorithm, which sees median RTTs.
#[derive(Debug)]
pub struct Median {
    inner: SenderAlgorithm,
    /// Bytes of a full packet.
    packet: u64,
    /// A ring of the last RTTs.
    rtts: [Span; LONGEST as usize],
    /// The place of the next RTT.
    next: usize,
    /// Number of RTTs in the ring.
    known: usize,
}

impl Median {
    /// A new flow of `inner`, whose full packets have `packet` bytes.
    pub fn new(inner: SenderAlgorithm, packet: u64) -> Median {
        Median { inner, packet: packet.max(1), rtts: [Span::ZERO; LONGEST as usize], next: 0, known: 0 }
    }

    /// Adds `rtt` to the history; the median of it.
    fn filter(&mut self, rtt: Span) -> Span {
        self.rtts[self.next] = rtt;
        self.next = (self.next + 1) % self.rtts.len();
        self.known = (self.known + 1).min(self.rtts.len());
        let half_a_window = self.inner.window().0 / self.packet / 2;
        let count = self.known.min(half_a_window.clamp(SHORTEST, LONGEST) as usize);
        let mut latest = self.rtts;
        latest.rotate_left(self.next);
        let history = &mut latest[self.rtts.len() - count..];
        history.sort_unstable();
        history[(count - 1) / 2]
    }
}

impl SenderCc for Median {
    fn on_send(&mut self, now: Time, pkt: &SentPacket) {
        self.inner.on_send(now, pkt);
    }

    fn on_hops(&mut self, hops: u8) {
        self.inner.on_hops(hops);
    }

    fn on_ack(&mut self, now: Time, ack: &AckSample) {
        let rtt = ack.rtt.map(|rtt| self.filter(rtt));
        self.inner.on_ack(now, &AckSample { rtt, ..*ack });
    }

    fn on_nack(&mut self, now: Time, nack: &NackSample) {
        self.inner.on_nack(now, nack);
    }

    fn on_timeout(&mut self, now: Time, lost: &LossSample) {
        self.inner.on_timeout(now, lost);
    }

    fn window(&self) -> Window {
        self.inner.window()
    }

    fn expected_rtt(&self) -> Span {
        self.inner.expected_rtt()
    }

    fn next_departure(&self) -> Option<Time> {
        self.inner.next_departure()
    }

    fn snapshot(&self) -> CcSnapshot {
        self.inner.snapshot()
    }
}

/// Builds `median(SENDER)`. The settings are those of the sender.
#[derive(Debug)]
pub(crate) struct MedianOf(pub(crate) Arc<dyn Builder<SenderInput, MakeSender>>);

impl Builder<SenderInput, MakeSender> for MedianOf {
    fn settings(&self) -> Vec<SettingInfo> {
        self.0.settings()
    }

    fn with(&self, key: &str, value: &str) -> Result<Arc<dyn Builder<SenderInput, MakeSender>>, Refused> {
        Ok(Arc::new(MedianOf(self.0.with(key, value)?)))
    }

    fn build(&self, input: SenderInput) -> MakeSender {
        let (inner, packet) = (self.0.build(input), input.params.wire_mtu());
        Arc::new(move || SenderAlgorithm::Median(Box::new(Median::new(inner(), packet))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::constant::{Constant, ConstantConfig};
    use crate::{CcParams, Rate};

    fn median(window: u64) -> Median {
        let params = CcParams {
            mtu: 1_000,
            overhead: 0,
            link_rate: Rate::from_gbps(100),
            network_rtt: Span::from_us(12),
            trimming: true,
        };
        let config = ConstantConfig { window: Some(window), ..ConstantConfig::default() };
        Median::new(SenderAlgorithm::Constant(Constant::new(&config, &params)), params.wire_mtu())
    }

    fn medians(window: u64, rtts_us: &[u64]) -> Vec<u64> {
        let mut median = median(window);
        rtts_us.iter().map(|rtt| median.filter(Span::from_us(*rtt)).as_ps() / 1_000_000).collect()
    }

    #[test]
    fn small_windows_have_a_history_of_three() {
        assert_eq!(medians(1_000, &[10, 90, 11, 12, 95, 96]), [10, 10, 11, 12, 12, 95]);
    }

    #[test]
    fn the_history_is_half_a_window_and_ten_at_most() {
        // Five of the last ten are long: the lower middle is short. With six it is long.
        let rtts = [1, 1, 1, 1, 1, 9, 9, 9, 9, 9, 9];
        assert_eq!(medians(20_000, &rtts)[9..], [1, 9]);
        assert_eq!(medians(1_000_000, &rtts)[9..], [1, 9]);
        // With ten packets it is that of the last five.
        assert_eq!(medians(10_000, &rtts)[6..9], [1, 9, 9]);
    }

    #[test]
    fn a_few_slow_paths_do_not_show() {
        let rtts: Vec<u64> = (0..100).map(|n| if n % 5 == 0 { 80 } else { 13 }).collect();
        assert!(medians(64_000, &rtts)[1..].iter().all(|rtt| *rtt == 13));
    }
}
