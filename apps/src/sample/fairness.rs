//! How evenly flows share the network over time, from samples.

use crate::stats;
use serde::Serialize;
use std::collections::BTreeMap;
use weft_cc::{Span, Time};
use weft_testbed::sim::FlowSample;

/// A share is fair within this part of the mean.
const TOLERANCE: f64 = 0.1;

/// How evenly flows have shared the network over time. Only intervals count at both ends of which the same flows were
/// open, at least two; and only these flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct FairnessOverTime {
    /// Jain's index over the goodputs within an interval: its mean over the intervals, and its least value.
    pub(crate) jain_mean: Option<f64>,
    pub(crate) jain_min: Option<f64>,
    /// The time until which some flow was away from the mean goodput by more than a tenth, and from which on none was;
    /// none if that was so to the end. Microseconds since the start of the run.
    pub(crate) converged_us: Option<f64>,
    /// The share of all goodputs within intervals that are within a tenth of the mean of their interval.
    pub(crate) fair: Option<f64>,
}

/// Finds the intervals that count.
#[derive(Debug, Default)]
pub(crate) struct SameFlows {
    /// The flows that were open at the last sample, with what they received before it.
    open: BTreeMap<u32, f64>,
}

impl SameFlows {
    /// Takes in the flows that are open at the end of an interval, with what each has received in it. Returns what they
    /// have received if the same flows, at least two, were open when it began.
    pub(crate) fn shares(&mut self, open: BTreeMap<u32, f64>) -> Option<Vec<f64>> {
        let same = open.len() >= 2 && open.keys().eq(self.open.keys());
        self.open = open;
        same.then(|| self.open.values().copied().collect())
    }
}

/// Takes in samples.
#[derive(Default)]
pub(crate) struct Shares {
    flows: SameFlows,
    intervals: u64,
    sum: f64,
    least: Option<f64>,
    /// When the interval began since which all shares were fair.
    fair_since: Option<Time>,
    /// All shares, and those that were fair.
    all: u64,
    fair: u64,
}

impl Shares {
    /// Takes in the samples of an interval that began at `began`.
    pub(crate) fn sample(&mut self, began: Time, flows: &[FlowSample]) {
        let open = flows.iter().filter(|f| f.sender.is_some()).map(|f| (f.flow, f.received_bytes as f64));
        if let Some(bytes) = self.flows.shares(open.collect()) {
            self.interval(began, &bytes);
        }
    }

    fn interval(&mut self, began: Time, bytes: &[f64]) {
        let Some(jain) = stats::jain(bytes) else { return };
        self.intervals += 1;
        self.sum += jain;
        self.least = Some(self.least.map_or(jain, |least| least.min(jain)));
        let mean = bytes.iter().sum::<f64>() / bytes.len() as f64;
        let fair = bytes.iter().filter(|share| (*share - mean).abs() <= TOLERANCE * mean).count();
        (self.all, self.fair) = (self.all + bytes.len() as u64, self.fair + fair as u64);
        self.fair_since = if fair == bytes.len() { self.fair_since.or(Some(began)) } else { None };
    }

    pub(crate) fn result(&self) -> FairnessOverTime {
        let us = |at: Time| Span::as_us_f64(at.since(Time::ZERO));
        FairnessOverTime {
            jain_mean: (self.intervals > 0).then(|| self.sum / self.intervals as f64),
            jain_min: self.least,
            converged_us: self.fair_since.map(us),
            fair: (self.all > 0).then(|| self.fair as f64 / self.all as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_testbed::sim::SenderSample;

    fn flow(flow: u32, received_bytes: u64, open: bool) -> FlowSample {
        let sender = SenderSample {
            cwnd: 1,
            in_flight: 1,
            rtt: None,
            in_hosts: Span::ZERO,
            base_rtt: Span::ZERO,
            phase: "",
        };
        FlowSample { flow, received_bytes, sender: open.then_some(sender) }
    }

    fn at(us: u64) -> Time {
        Time::ZERO + Span::from_us(us)
    }

    #[test]
    fn flows_have_converged_when_none_leaves_its_fair_share_again() {
        let mut shares = Shares::default();
        for (n, (a, b)) in [(9, 1), (5, 5), (8, 2), (52, 48), (46, 54), (100, 100)].into_iter().enumerate() {
            shares.sample(at(10 * n as u64), &[flow(3, a, true), flow(5, b, true)]);
        }
        // The first flow has ended: what the other receives is no share of it.
        shares.sample(at(60), &[flow(3, 10, false), flow(5, 100, true)]);
        let result = shares.result();
        assert_eq!(result.converged_us, Some(30.0), "the third interval was the last unfair one");
        // The first interval began without flows.
        assert_eq!(result.jain_min, Some(100.0 / (2.0 * 68.0)));
        assert_eq!(result.fair, Some(0.8), "eight of ten shares: those of all intervals but the third");
        assert!(result.jain_mean.unwrap() > 0.93 && result.jain_mean.unwrap() < 1.0);
    }

    #[test]
    fn one_flow_alone_shares_with_nobody() {
        let mut shares = Shares::default();
        (1..5).for_each(|n| shares.sample(at(n), &[flow(0, 7, true)]));
        assert_eq!(shares.result(), FairnessOverTime::default());
    }
}
