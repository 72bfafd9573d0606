//! The one place where the stack reads a clock.

use std::time::Instant;

use weft_cc::{Span, Time};

/// A monotonic clock. Copies agree: endpoints in one process compare times by sharing one.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
    start: Time,
}

impl Clock {
    /// A clock that shows [`Time::ZERO`] now.
    pub fn new() -> Clock {
        Clock::starting_at(Time::ZERO)
    }

    /// A clock that shows `start` now.
    pub fn starting_at(start: Time) -> Clock {
        Clock { origin: Instant::now(), start }
    }

    /// The time. Resolution 1 ns; wraps with [`Time`], after 213 days.
    #[inline]
    pub fn now(&self) -> Time {
        self.after_ns(self.origin.elapsed().as_nanos())
    }

    /// Reduced modulo 2⁶⁴ ps, the circle of [`Time`]: reducing nanoseconds first changes nothing.
    fn after_ns(&self, elapsed: u128) -> Time {
        self.start + Span::from_ps((elapsed as u64).wrapping_mul(1000))
    }
}

impl Default for Clock {
    fn default() -> Clock {
        Clock::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goes_forward() {
        let clock = Clock::new();
        let first = clock.now();
        let copy = clock;
        assert!(copy.now().is_at_or_after(first));
        assert!(first.is_at_or_after(Time::ZERO));
    }

    #[test]
    fn survives_the_end_of_the_circle() {
        let clock = Clock::starting_at(Time::from_ps(u64::MAX - 500));
        assert_eq!(clock.after_ns(1), Time::from_ps(499));
        // 2⁶⁴ ps are 18,446,744,073,709,551.616 ns.
        let circle_ns = 18_446_744_073_709_552;
        assert_eq!(clock.after_ns(circle_ns), Time::from_ps(u64::MAX - 500 + 384));
        assert_eq!(clock.after_ns(5 * circle_ns).since(clock.after_ns(4 * circle_ns)), Span::from_ps(384));
    }
}
