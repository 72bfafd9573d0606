//! `median(SENDER)`: a sender that reacts to delay is driven by the median of recent RTTs, not by the latest one.
//!
//! Source: MSwift (§III), which puts the median before Swift. Where packets are sprayed, an RTT is that of one path of many;
//! a few congested paths then hold back a window that all paths share. The history has
//! max(min(α · window, K), least) samples, with the window in packets. With the defaults α = 0.5, K = 10 and least = 3 that
//! is the paper's bounded window; `history_most=1000` leaves its history by window, and the same number for K and least is
//! its constant history, of which 1 is no median at all. Choices where the paper is open:
//! - Until the history is full, the median is that of the samples there are. Of an even number it is the lower middle.
//! - NACKs keep their own RTT, which may lower the base RTT.
//! - Marks are not filtered: they pass with their ACKs.

use crate::registry::{MakeSender, SenderInput};
use crate::settings::{FACTOR, SettingInfo, Settings, settings};
use crate::table::{Builder, Refused};
use crate::{
    AckSample, CcSnapshot, LossSample, NackSample, SenderAlgorithm, SenderCc, SentPacket, Span, Time, Window,
};
use std::collections::VecDeque;
use std::sync::Arc;

settings! {
    /// The settings of `median`, beside those of the sender that it drives.
    pub struct MedianConfig {
        history_share: f64 = 0.5, in FACTOR, "samples of the history for each packet of the window (α)";
        history_most: u32 = 10, in 1..=1000, "most samples of the history (K)";
        history_least: u32 = 3, in 1..=1000, "fewest samples of the history, even if that is more than history_most";
    }
}

/// A flow of another algorithm, which sees median RTTs.
#[derive(Debug)]
pub struct Median {
    inner: SenderAlgorithm,
    config: Arc<MedianConfig>,
    /// Bytes of a full packet.
    packet: u64,
    /// The last RTTs, the latest one at the end.
    rtts: VecDeque<Span>,
    /// The RTTs of the current history, which are the newest of `rtts`, sorted in ascending order.
    sorted: Vec<Span>,
}

impl Median {
    /// A new flow of `inner`, whose full packets have `packet` bytes.
    pub fn new(inner: SenderAlgorithm, config: Arc<MedianConfig>, packet: u64) -> Median {
        Median { inner, config, packet: packet.max(1), rtts: VecDeque::new(), sorted: Vec::new() }
    }

    /// Samples that the history should have.
    fn length(&self) -> usize {
        let MedianConfig { history_share, history_most, history_least } = *self.config;
        let packets = self.inner.window().0 as f64 / self.packet as f64;
        let by_window = (history_share * packets).min(history_most.into()) as u32;
        by_window.max(history_least) as usize
    }

    /// Adds `rtt` to the history; the median of it.
    fn filter(&mut self, rtt: Span) -> Span {
        let kept = self.config.history_most.max(self.config.history_least) as usize;
        let count = self.length().min(kept).min(self.rtts.len() + 1);
        match self.rtts.len().checked_sub(count).and_then(|first| self.rtts.get(first)) {
            // As long as before: the oldest one makes room.
            Some(&oldest) if self.sorted.len() == count => replace(&mut self.sorted, oldest, rtt),
            _ => self.sort(rtt, count),
        }
        if self.rtts.len() == kept {
            self.rtts.pop_front();
        }
        self.rtts.push_back(rtt);
        self.sorted.get((count - 1) / 2).copied().unwrap_or(rtt)
    }

    /// Puts `rtt` and the last of the others in order, `count` together.
    #[cold]
    fn sort(&mut self, rtt: Span, count: usize) {
        self.sorted.clear();
        self.sorted.extend(self.rtts.iter().rev().take(count - 1));
        self.sorted.push(rtt);
        self.sorted.sort_unstable();
    }
}

/// Replaces `old`, one of `sorted`, by `new`, and keeps the order.
fn replace(sorted: &mut [Span], old: Span, new: Span) {
    let mut at = sorted.iter().position(|rtt| *rtt == old).unwrap_or(0);
    while let Some(&next) = sorted.get(at + 1).filter(|next| **next < new) {
        sorted[at] = next;
        at += 1;
    }
    while at > 0 && sorted[at - 1] > new {
        sorted[at] = sorted[at - 1];
        at -= 1;
    }
    sorted[at] = new;
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

/// Builds `median(SENDER)`. The settings are its own and those of the sender.
#[derive(Debug)]
pub(crate) struct MedianOf {
    config: MedianConfig,
    inner: Arc<dyn Builder<SenderInput, MakeSender>>,
}

impl MedianOf {
    /// The median with its default history in front of `inner`.
    pub(crate) fn new(inner: Arc<dyn Builder<SenderInput, MakeSender>>) -> MedianOf {
        MedianOf { config: MedianConfig::default(), inner }
    }
}

impl Builder<SenderInput, MakeSender> for MedianOf {
    fn settings(&self) -> Vec<SettingInfo> {
        let own = MedianConfig::TABLE.iter().map(|setting| setting.info());
        own.chain(self.inner.settings()).collect()
    }

    fn with(&self, key: &str, value: &str) -> Result<Arc<dyn Builder<SenderInput, MakeSender>>, Refused> {
        let Some(setting) = MedianConfig::TABLE.iter().find(|setting| setting.key == key) else {
            return Ok(Arc::new(MedianOf {
                config: self.config.clone(),
                inner: self.inner.with(key, value)?,
            }));
        };
        let mut config = self.config.clone();
        match (setting.store)(&mut config, value) {
            true => Ok(Arc::new(MedianOf { config, inner: self.inner.clone() })),
            false => Err(Refused::BadValue { expected: (setting.expected)() }),
        }
    }

    fn build(&self, input: SenderInput) -> MakeSender {
        let (inner, packet) = (self.inner.build(input), input.params.wire_mtu());
        let config = Arc::new(self.config.clone());
        Arc::new(move || SenderAlgorithm::Median(Box::new(Median::new(inner(), config.clone(), packet))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::constant::{Constant, ConstantConfig};
    use crate::{CcParams, Delays, Rate};

    fn median_with(window: u64, median: MedianConfig) -> Median {
        let params = CcParams {
            mtu: 1_000,
            overhead: 0,
            link_rate: Rate::from_gbps(100),
            network_rtt: Span::from_us(12),
            trimming: true,
            delays: Delays::Known,
        };
        let config = ConstantConfig { window: Some(window), ..ConstantConfig::default() };
        let inner = SenderAlgorithm::Constant(Constant::new(&config, &params));
        Median::new(inner, Arc::new(median), params.wire_mtu())
    }

    fn medians(window: u64, rtts_us: &[u64]) -> Vec<u64> {
        medians_with(window, MedianConfig::default(), rtts_us)
    }

    fn medians_with(window: u64, config: MedianConfig, rtts_us: &[u64]) -> Vec<u64> {
        let mut median = median_with(window, config);
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

    #[test]
    fn histories_are_constant_or_follow_the_window_alone() {
        let rtts: Vec<u64> = (0..200).map(|n| n * 37 % 101 + 1).collect();
        let model = |count: usize| -> Vec<u64> {
            let median = |end: usize| {
                let mut history = rtts[(end + 1).saturating_sub(count)..=end].to_vec();
                history.sort_unstable();
                history[(history.len() - 1) / 2]
            };
            (0..rtts.len()).map(median).collect()
        };
        let constant = |n| MedianConfig { history_most: n, history_least: n, ..MedianConfig::default() };
        for n in [1, 2, 5, 10, 40] {
            for window in [1_000, 30_000, 1_000_000] {
                assert_eq!(medians_with(window, constant(n), &rtts), model(n as usize), "{n} {window}");
            }
        }
        let by_window = MedianConfig { history_share: 0.25, history_most: 1000, history_least: 3 };
        for (window, count) in [(1_000, 3), (16_000, 4), (60_000, 15), (100_000_000, 1000)] {
            assert_eq!(medians_with(window, by_window.clone(), &rtts), model(count), "{window}");
        }
    }

    #[test]
    fn a_window_that_changes_takes_samples_back_and_drops_others() {
        for config in
            [MedianConfig::default(), MedianConfig { history_most: 1000, ..MedianConfig::default() }]
        {
            let mut median = median_with(1_000, config);
            let mut history = Vec::new();
            for n in 0_u64..2_000 {
                // Windows and RTTs stay for some samples, and RTTs repeat.
                let window = 1_000 + n / 7 * 5_407 % 41_000;
                median.inner = median_with(window, MedianConfig::default()).inner;
                history.push(Span::from_us(n * n % 23));
                let count = median.length().min(history.len());
                let mut recent = history[history.len() - count..].to_vec();
                recent.sort_unstable();
                let latest = history[history.len() - 1];
                assert_eq!(median.filter(latest), recent[(count - 1) / 2], "sample {n} of {count}");
            }
        }
    }

    #[test]
    fn settings_are_those_of_the_median_and_of_its_sender() {
        let mut choice = crate::CcChoice::parse("median(nscc)").unwrap();
        choice.set("history_most", "40").unwrap();
        assert!(choice.settings().iter().any(|setting| setting.key == "history_share"));
        let refused = choice.set("history_least", "0").unwrap_err().to_string();
        assert!(refused.contains("a whole number from 1 to 1000"), "{refused}");
        assert!(choice.set("no_such_key", "0").is_err());
    }
}
