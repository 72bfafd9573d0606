//! `plb`: Protective Load Balancing. A connection keeps one path until that has been congested for a while.

use super::round::draw;
use super::{Entropy, PathContext, PathFeedback, PathSelector};
use crate::rng::Rng;
use weft_cc::settings::SHARE;
use weft_cc::{Span, Time, settings};

settings! {
    /// The settings of `plb`. The defaults are those of the paper, and of the Linux kernel.
    pub struct PlbConfig {
        threshold: f64 = 0.5, in SHARE, "share of marked answers from which on a round trip is congested";
        idle_rounds: u32 = 3, in 1..=31, "congested round trips in a row after which a pause is used to change the path";
        rounds: u32 = 12, in 1..=31, "congested round trips in a row after which the path is changed at once";
    }
}

/// One entropy, which is drawn anew when its path is congested.
///
/// Source: Qureshi et al., "PLB: Congestion Signals are Simple and Effective for Network Load Balancing", SIGCOMM 2022,
/// and `tcp_plb.c` of the Linux kernel. Choices:
/// - A round trip lasts as long as one of the idle network, since balancers do not learn RTTs. Its marked share is that of
///   answers, and a NACK counts as marked.
/// - Idle is who has sent nothing for a round trip.
/// - Feedback on the packets of an earlier path changes nothing.
/// - After a timeout the path is changed at once, as TCP does without PLB. Linux then pauses PLB for a minute or two, so
///   that it does not return to a path that has failed; this balancer does not.
#[derive(Clone, Debug)]
pub struct Plb {
    config: PlbConfig,
    paths: u16,
    rng: Rng,
    round_trip: Span,
    entropy: Entropy,
    /// Answers of this round trip, and the marked ones among them.
    answers: u32,
    marked: u32,
    round_began: Option<Time>,
    /// Congested round trips in a row.
    congested: u32,
    last_sent: Option<Time>,
}

impl Plb {
    /// Chooses among `paths` entropies (0 counts as 1) in a network whose idle round trip is `round_trip`.
    pub fn new(config: &PlbConfig, paths: u16, round_trip: Span, mut rng: Rng) -> Plb {
        let paths = paths.max(1);
        let entropy = Entropy(draw(&mut rng, paths));
        Plb {
            config: config.clone(),
            paths,
            rng,
            round_trip,
            entropy,
            answers: 0,
            marked: 0,
            round_began: None,
            congested: 0,
            last_sent: None,
        }
    }

    /// Draws another entropy, if there is one, and forgets what is known of the present one.
    fn change_path(&mut self) {
        if let Some(others) = self.paths.checked_sub(1).filter(|others| *others > 0) {
            let step = 1 + u32::from(draw(&mut self.rng, others));
            // Below `paths`, so it fits.
            self.entropy = Entropy(((u32::from(self.entropy.0) + step) % u32::from(self.paths)) as u16);
        }
        (self.answers, self.marked, self.round_began, self.congested) = (0, 0, None, 0);
    }

    fn is_over(&self, since: Time, now: Time) -> bool {
        !now.is_before(since + self.round_trip)
    }

    fn end_round(&mut self, now: Time) {
        let is_congested = f64::from(self.marked) >= self.config.threshold * f64::from(self.answers);
        self.congested = if is_congested && self.marked > 0 { self.congested + 1 } else { 0 };
        (self.answers, self.marked, self.round_began) = (0, 0, Some(now));
        if self.congested >= self.config.rounds {
            self.change_path();
        }
    }
}

impl PathSelector for Plb {
    fn next(&mut self, pkt: &PathContext) -> Entropy {
        let was_idle = self.last_sent.is_some_and(|at| self.is_over(at, pkt.now));
        if was_idle && self.congested >= self.config.idle_rounds {
            self.change_path();
        }
        self.last_sent = Some(pkt.now);
        self.entropy
    }

    fn feedback(&mut self, now: Time, entropy: Entropy, feedback: PathFeedback) {
        if entropy != self.entropy {
            return;
        }
        if feedback == PathFeedback::Timeout {
            return self.change_path();
        }
        let began = *self.round_began.get_or_insert(now);
        self.answers += 1;
        self.marked += u32::from(feedback != PathFeedback::Good);
        if self.is_over(began, now) {
            self.end_round(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Span = Span::from_us(10);

    fn plb(paths: u16) -> Plb {
        Plb::new(&PlbConfig::default(), paths, RTT, Rng::new(1, 0))
    }

    fn at(us: u64) -> Time {
        Time::ZERO + Span::from_us(us)
    }

    fn send(plb: &mut Plb, us: u64) -> Entropy {
        plb.next(&PathContext { now: at(us), sent: 0, window_packets: 0, retransmission: false })
    }

    /// A packet and its answer each microsecond for `rtts` round trips from `from` on; the time after them.
    fn busy(plb: &mut Plb, from: u64, rtts: u64, marked: impl Fn(u64) -> bool) -> u64 {
        for us in from..from + 10 * rtts {
            let entropy = send(plb, us);
            let feedback = if marked(us) { PathFeedback::Ecn } else { PathFeedback::Good };
            plb.feedback(at(us), entropy, feedback);
        }
        from + 10 * rtts
    }

    #[test]
    fn a_path_is_kept_until_twelve_round_trips_in_a_row_were_congested() {
        let mut plb = plb(8);
        let first = plb.entropy;
        // Less than half of the answers are marked, and for ever.
        let now = busy(&mut plb, 0, 100, |us| us % 5 < 2);
        assert_eq!(plb.entropy, first);
        // Eleven congested ones, one that is not, eleven again.
        let now = busy(&mut plb, now, 11, |_| true);
        let now = busy(&mut plb, now, 2, |_| false);
        let now = busy(&mut plb, now, 11, |_| true);
        assert_eq!(plb.entropy, first);
        busy(&mut plb, now, 2, |_| true);
        assert_ne!(plb.entropy, first);
    }

    #[test]
    fn a_pause_is_used_after_three_congested_round_trips() {
        let mut plb = plb(8);
        let first = plb.entropy;
        let now = busy(&mut plb, 0, 2, |_| true);
        assert_eq!(send(&mut plb, now + 20), first, "two are too few");
        let now = busy(&mut plb, now + 20, 3, |_| true);
        assert_eq!(send(&mut plb, now), first, "it was not idle");
        assert_ne!(send(&mut plb, now + 10), first);
    }

    #[test]
    fn a_timeout_changes_the_path_and_late_feedback_on_the_old_one_does_not() {
        let mut plb = plb(2);
        let first = plb.entropy;
        plb.feedback(at(0), first, PathFeedback::Timeout);
        let second = plb.entropy;
        assert_ne!(second, first);
        plb.feedback(at(1), first, PathFeedback::Timeout);
        assert_eq!(plb.entropy, second);
    }

    #[test]
    fn a_single_path_is_kept_whatever_happens() {
        let mut plb = plb(1);
        busy(&mut plb, 0, 50, |_| true);
        plb.feedback(at(900), Entropy(0), PathFeedback::Timeout);
        assert_eq!(plb.entropy, Entropy(0));
    }
}
