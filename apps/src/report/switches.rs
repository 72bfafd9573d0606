//! How punctual software switches were, and whether that was enough for the figures to mean something.

use crate::stats::Summary;
use serde::Serialize;
use weft_cc::Span;
use weft_testbed::soft::SoftCounters;

/// Events on the way of a packet and of its acknowledgement are about ten: with each of them late by more than this
/// share of the idle round trip, round trips are twice as long as they should be.
const MEAN_SHARE: f64 = 0.1;
/// One pause is too long if it comes near the idle round trip, at which windows and timers begin to feel it ...
const PAUSE_SHARE: f64 = 0.5;
/// ... and if it is more than this share of the mean completion time.
const FCT_SHARE: f64 = 0.05;

/// How late software switches did what they did.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Switches {
    /// Mean over all events, and the latest one.
    pub(crate) late_mean_us: f64,
    pub(crate) late_max_us: f64,
    /// The round trip of the idle network.
    pub(crate) idle_rtt_us: f64,
    /// Whether completion times are the network's and not the machine's, as far as the switches go.
    pub(crate) punctual: bool,
}

impl Switches {
    /// Judges the `counters` of a run in which flows took `fct_us`.
    pub(crate) fn of(counters: &SoftCounters, idle_rtt: Span, fct_us: &Summary) -> Switches {
        let late_mean_us = counters.lateness.as_us_f64() / counters.events.max(1) as f64;
        let (late_max_us, idle_rtt_us) = (counters.latest.as_us_f64(), idle_rtt.as_us_f64());
        let paused = late_max_us > idle_rtt_us * PAUSE_SHARE
            && fct_us.mean.is_none_or(|mean| late_max_us > mean * FCT_SHARE);
        let punctual = late_mean_us <= idle_rtt_us * MEAN_SHARE && !paused;
        Switches { late_mean_us, late_max_us, idle_rtt_us, punctual }
    }

    /// The same for people.
    pub(crate) fn text(&self) -> String {
        let Switches { late_mean_us: mean, late_max_us: max, idle_rtt_us: rtt, .. } = self;
        format!("{mean:.0} µs late on average, {max:.0} µs at most; the idle round trip is {rtt:.0} µs")
    }

    /// A warning that the figures are wrong, if they are, with a remedy. The fabric was `slow` times slower than
    /// described.
    pub(crate) fn doubt(&self, slow: u32) -> Option<String> {
        (!self.punctual).then(|| {
            format!(
                "THESE FIGURES ARE NO GOOD: the machine was too busy for its switches; \
                 take a larger --slow than {slow}, or stop what else runs"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1000 events, over an idle round trip of 5 ms.
    fn switches(mean_us: u64, max_us: u64, fct_ms: &[u64]) -> Switches {
        let counters = SoftCounters {
            events: 1000,
            lateness: Span::from_us(1000 * mean_us),
            latest: Span::from_us(max_us),
            ..SoftCounters::default()
        };
        let fct = Summary::of(fct_ms.iter().map(|ms| Span::from_ms(*ms)).collect());
        Switches::of(&counters, Span::from_ms(5), &fct)
    }

    #[test]
    fn results_of_late_switches_come_with_a_warning() {
        for (mean_us, max_us, fct_ms, punctual) in [
            (2, 91, &[500][..], true),
            (500, 2_500, &[10], true),
            (501, 600, &[500], false),
            // A pause of a round trip is 1 % of one run, and 10 % of the other.
            (3, 5_000, &[400, 600], true),
            (3, 5_000, &[50], false),
            (3, 890_793, &[2_800], false),
            (3, 890_793, &[], false),
        ] {
            let seen = switches(mean_us, max_us, fct_ms);
            assert_eq!(seen.punctual, punctual, "{mean_us} {max_us} {fct_ms:?}");
            assert_eq!(seen.doubt(500).is_none(), punctual);
        }
        let doubt = switches(3, 890_793, &[2_800]).doubt(500).unwrap();
        assert!(doubt.contains("NO GOOD") && doubt.contains("--slow than 500"), "{doubt}");
        let text = switches(3, 890_793, &[2_800]).text();
        assert_eq!(text, "3 µs late on average, 890793 µs at most; the idle round trip is 5000 µs");
    }
}
