//! Targets of delay that can be met: above the part of the delay that a flow cannot avoid by sending less. It is measured
//! where nobody knows it beforehand.

use crate::Span;

/// A target, and an estimate of the delay that packets have even if nothing of their own flow queues before them: of the
/// path, and of hosts whose system gives their processor to others.
///
/// While a flow has one packet under way, nothing of its delay is its own queue, so the estimate follows that delay. While
/// it has more, its delay may be its own doing, and says something only if it is shorter: it lowers the estimate, but
/// slowly, because in a host that is held up now and then many delays are short.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Attainable {
    /// The least target, or a quarter more than the estimate.
    target: Span,
    /// In ps; zero while no packet was alone.
    delay: f32,
}

/// The gain with which the estimate follows the delay of lone packets, that of RFC 6298 for RTTs.
const ALONE: f32 = 0.125;
/// The gain with which it sinks towards a shorter delay of packets that are not alone. In hosts that are held up now and
/// then most delays are short: the larger this is, the more of their long ones shrink the window. A thousand ACKs are soon
/// there where nothing is held up.
const TOGETHER: f32 = 1.0 / 1024.0;

impl Attainable {
    /// A target of `least`, as long as nothing is measured.
    pub(super) fn new(least: Span) -> Attainable {
        Attainable { target: least, delay: 0.0 }
    }

    /// A packet had `delay`; `is_alone` says that the window has no room for two. No target is below `least`.
    pub(super) fn sample(&mut self, least: Span, delay: Span, is_alone: bool) {
        let delay = delay.as_ps() as f32;
        let gain = match is_alone {
            true if self.delay == 0.0 => 1.0,
            true => ALONE,
            false if delay < self.delay => TOGETHER,
            false => 0.0,
        };
        self.delay += gain * (delay - self.delay);
        self.target = least.max(Span::from_ps((self.delay * 1.25) as u64));
    }

    pub(super) fn target(&self) -> Span {
        self.target
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Span {
        Span::from_ms(ms)
    }

    fn after(samples: impl IntoIterator<Item = (u64, bool)>) -> f64 {
        let mut base = Attainable::new(Span::ZERO);
        for (delay, is_alone) in samples {
            base.sample(Span::ZERO, ms(delay), is_alone);
        }
        base.target().as_us_f64() / 1_250.0
    }

    #[test]
    fn the_first_lone_packet_is_believed_and_none_before() {
        assert_eq!(after([]), 0.0);
        assert_eq!(after([(10, false), (20, false)]), 0.0);
        assert!((after([(10, false), (20, true)]) - 20.0).abs() < 1e-3);
    }

    #[test]
    fn no_target_is_below_the_least() {
        let mut target = Attainable::new(ms(4));
        let mut after = |delay| {
            target.sample(ms(4), ms(delay), true);
            target.target()
        };
        assert_eq!(after(1), ms(4));
        let last = (0..100).map(|_| after(8)).last().unwrap_or(Span::ZERO);
        assert!(ms(9) < last && last <= ms(10), "{last}: a quarter above the delay");
    }

    #[test]
    fn only_lone_packets_raise_the_estimate() {
        let queue = [(10, true)].into_iter().chain([(500, false); 1_000]);
        assert!((after(queue) - 10.0).abs() < 1e-3, "the flow itself may have made that queue");
        let longer = [(10, true)].into_iter().chain([(50, true); 50]);
        assert!((after(longer) - 50.0).abs() < 0.1, "the path itself is longer now");
    }

    #[test]
    fn shorter_delays_lower_it_slowly_while_there_are_several_packets() {
        let few = [(64, true)].into_iter().chain([(0, false); 8]);
        assert!((63.0..64.0).contains(&after(few)));
        let many = [(64, true)].into_iter().chain([(0, false); 10_000]);
        assert!(after(many) < 0.1);
    }
}
