//! How long answers take: the average for timers (RFC 6298), and the longest of late for inferring losses.

use weft_cc::{Span, Time};

/// What one congestion context has measured of round-trip times, over all its connections and paths.
#[derive(Clone, Copy, Debug)]
pub struct RttEstimator {
    /// The longest RTT of the present period, and of the one before.
    longest: Span,
    former_longest: Span,
    /// SRTT and RTTVAR (RFC 6298 §2).
    smoothed: Span,
    deviation: Span,
    /// The average of the part of the RTTs that packets waited in the hosts, with the gain of `smoothed`.
    in_hosts: Span,
    period_began: Time,
    /// Quarters of the longest RTT that a packet may be late beyond it.
    leeway: u8,
    /// Whether a loss of this period was spurious.
    widened: bool,
    /// Whether there was a sample.
    measured: bool,
}

/// Length of a period in longest RTTs, so that an RTT counts as recent for four to eight RTTs.
const PERIOD: u64 = 4;
/// The least leeway, in quarters. RFC 8985 §6.2 begins with a quarter of the least RTT once it sees reordering; spraying
/// reorders always, and the first packets show least of it.
const LEAST_LEEWAY: u8 = 2;
/// Shorter RTTs are those of a clock that stands still: answers to probes would come at the instant they are sent.
const LEAST_REACH: Span = Span::from_ns(100);
/// The largest leeway, in quarters: four RTTs.
const LARGEST_LEEWAY: u8 = 16;

impl RttEstimator {
    /// Nothing is measured; RTTs of `expected` are assumed until then.
    pub fn new(expected: Span) -> RttEstimator {
        RttEstimator {
            longest: expected,
            former_longest: Span::ZERO,
            smoothed: expected,
            deviation: Span::ZERO,
            in_hosts: Span::ZERO,
            period_began: Time::ZERO,
            leeway: LEAST_LEEWAY,
            widened: false,
            measured: false,
        }
    }

    /// Takes in an unambiguous RTT, of which the packet and its answer waited `in_hosts` in the hosts, as far as these
    /// measure it.
    #[inline]
    pub fn sample(&mut self, now: Time, rtt: Span, in_hosts: Span) {
        if !self.measured {
            return self.begin(now, rtt, in_hosts.min(rtt));
        }
        // Most hosts measure nothing. One branch on both.
        if in_hosts.as_ps() | self.in_hosts.as_ps() != 0 {
            self.in_hosts = part(self.in_hosts, 7, 3) + part(in_hosts.min(rtt), 1, 3);
        }
        let error = if rtt < self.smoothed { self.smoothed.minus(rtt) } else { rtt.minus(self.smoothed) };
        self.deviation = part(self.deviation, 3, 2) + part(error, 1, 2);
        self.smoothed = part(self.smoothed, 7, 3) + part(rtt, 1, 3);
        self.longest = self.longest.max(rtt);
        if now.since(self.period_began) > self.longest().times(PERIOD) {
            self.begin_period(now, rtt);
        }
    }

    #[cold]
    fn begin(&mut self, now: Time, rtt: Span, in_hosts: Span) {
        (self.smoothed, self.deviation, self.in_hosts) = (rtt, part(rtt, 1, 1), in_hosts);
        (self.longest, self.period_began, self.measured) = (rtt, now, true);
    }

    #[inline(never)]
    fn begin_period(&mut self, now: Time, rtt: Span) {
        (self.former_longest, self.longest) = (self.longest, rtt);
        self.period_began = now;
        if !self.widened {
            self.leeway = (self.leeway - 1).max(LEAST_LEEWAY);
        }
        self.widened = false;
    }

    /// A packet was taken for lost that was only late: doubles the leeway, once in a period.
    pub fn on_spurious_loss(&mut self) {
        if !self.widened {
            self.widened = true;
            self.leeway = (self.leeway * 2).min(LARGEST_LEEWAY);
        }
    }

    /// The smoothed RTT (SRTT of RFC 6298 §2); `None` before the first sample.
    pub fn smoothed(&self) -> Option<Span> {
        self.measured.then_some(self.smoothed)
    }

    /// The part of the [smoothed RTT](RttEstimator::smoothed) that packets and their answers waited in the hosts.
    pub fn in_hosts(&self) -> Span {
        self.in_hosts
    }

    /// The longest RTT of the last four to eight RTTs, on any path.
    #[inline]
    pub fn longest(&self) -> Span {
        self.longest.max(self.former_longest)
    }

    /// The age at which a packet without an answer is late beyond all reordering seen of late.
    #[inline]
    pub fn reach(&self) -> Span {
        let longest = self.longest().max(LEAST_REACH);
        longest.plus(part(longest, self.leeway.into(), 2))
    }

    /// How long to wait for any news before a probe (the PTO of RFC 8985 §7.2).
    pub fn probe_wait(&self) -> Span {
        self.smoothed.times(2).max(self.reach())
    }

    /// The retransmission timeout: at least `least`, and once RTTs are measured never sooner than answers come
    /// (RFC 6298 §2). With `probes`, not sooner than the answer to a probe.
    pub fn timeout(&self, least: Span, probes: bool) -> Span {
        if !self.measured {
            return least;
        }
        let answer = if probes { self.probe_wait().plus(self.longest()) } else { self.reach() };
        least.max(self.smoothed.plus(self.deviation.times(4))).max(answer)
    }
}

/// `span · numerator / 2^shift`, without overflow for spans below 2⁵⁸ ps (three days).
#[inline]
fn part(span: Span, numerator: u64, shift: u32) -> Span {
    Span::from_ps(span.times(numerator).as_ps() >> shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(us: u64) -> Span {
        Span::from_us(us)
    }

    fn measured(rtts: impl IntoIterator<Item = u64>) -> RttEstimator {
        let mut estimator = RttEstimator::new(us(7));
        for (n, rtt) in rtts.into_iter().enumerate() {
            estimator.sample(Time::ZERO + us(10 * n as u64), us(rtt), Span::ZERO);
        }
        estimator
    }

    #[test]
    fn nothing_is_known_before_the_first_sample() {
        let estimator = RttEstimator::new(us(7));
        assert_eq!(estimator.timeout(us(1), true), us(1));
        assert_eq!(estimator.probe_wait(), us(14));
    }

    #[test]
    fn the_first_sample_sets_the_average_as_rfc_6298_says() {
        let estimator = measured([40]);
        assert_eq!(estimator.timeout(us(10), false), us(40 + 4 * 20));
        assert_eq!(estimator.timeout(us(500), false), us(500));
        assert_eq!(estimator.probe_wait(), us(80));
        assert_eq!(estimator.reach(), us(60));
    }

    #[test]
    fn the_part_in_hosts_is_averaged_like_the_rtt_that_it_is_part_of() {
        let mut estimator = RttEstimator::new(us(7));
        assert_eq!(estimator.in_hosts(), Span::ZERO);
        estimator.sample(Time::ZERO, us(80), us(16));
        assert_eq!((estimator.smoothed(), estimator.in_hosts()), (Some(us(80)), us(16)));
        estimator.sample(Time::ZERO + us(90), us(160), us(96));
        assert_eq!((estimator.smoothed(), estimator.in_hosts()), (Some(us(90)), us(26)));
        // Hosts that report more than the whole are not believed.
        estimator.sample(Time::ZERO + us(190), us(90), us(1_000));
        assert_eq!(estimator.in_hosts(), us(34));
        for n in 0..1_000 {
            estimator.sample(Time::ZERO + us(200 + n), us(90), Span::ZERO);
        }
        assert_eq!(estimator.in_hosts(), Span::ZERO, "it is forgotten in time");
    }

    #[test]
    fn steady_rtts_bring_the_timeout_close_but_never_below_them() {
        let estimator = measured([2_000; 100]);
        let timeout = estimator.timeout(us(10), false);
        assert!((us(2_000)..=us(3_000)).contains(&timeout), "{timeout}");
        assert_eq!(estimator.timeout(us(10), true), us(4_000 + 2_000), "a probe first");
    }

    #[test]
    fn a_long_rtt_counts_for_four_to_eight_of_its_kind() {
        let mut estimator = measured([100, 10, 10]);
        let mut forgotten = None;
        for now in (30..2_000).step_by(10) {
            estimator.sample(Time::ZERO + us(now), us(10), Span::ZERO);
            if estimator.longest() < us(100) {
                forgotten.get_or_insert(now);
            }
        }
        assert!((400..=820).contains(&forgotten.unwrap()), "{forgotten:?}");
    }

    #[test]
    fn spurious_losses_widen_the_leeway_and_it_narrows_again() {
        let mut estimator = measured([100]);
        assert_eq!(estimator.reach(), us(150));
        for _ in 0..9 {
            estimator.on_spurious_loss();
        }
        assert_eq!(estimator.reach(), us(200), "once in a period");
        for period in 1..10 {
            estimator.sample(Time::ZERO + us(500 * period), us(100), Span::ZERO);
            estimator.on_spurious_loss();
        }
        assert_eq!(estimator.reach(), us(500), "bounded");
        for period in 10..40 {
            estimator.sample(Time::ZERO + us(500 * period), us(100), Span::ZERO);
        }
        assert_eq!(estimator.reach(), us(150));
    }

    #[test]
    fn extreme_samples_do_not_overflow() {
        let mut estimator = measured([0, u64::MAX / 2_000_000, 0]);
        estimator.sample(Time::ZERO, Span::MAX, Span::MAX);
        estimator.on_spurious_loss();
        let _ = (estimator.reach(), estimator.timeout(us(1), true), estimator.probe_wait());
    }
}
