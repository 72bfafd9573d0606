//! Comparing instants that may be very old, on a clock that wraps.
//!
//! A connection can sleep for longer than the 106 days over which [`Time::is_before`] is
//! unambiguous. The timers of congestion control are short, so a stored instant that seems to lie far ahead
//! is really one from long ago, and counts as passed. The price is a wrong answer for the length of one timer
//! every 213 days.

use crate::Time;

/// The longest that a timer of this crate runs: 2^50 ps, about 19 minutes.
pub(crate) const LONGEST_TIMER_PS: u64 = 1 << 50;

/// Picoseconds from `then` to `now`.
#[inline(always)]
pub(crate) fn elapsed_ps(now: Time, then: Time) -> u64 {
    now.as_ps().wrapping_sub(then.as_ps())
}

/// Whether `deadline` is before `now`.
#[inline(always)]
pub(crate) fn passed(now: Time, deadline: Time) -> bool {
    deadline.as_ps().wrapping_sub(now.as_ps()) >= LONGEST_TIMER_PS
}

/// Whether `deadline` is `now` or before it.
#[inline(always)]
pub(crate) fn reached(now: Time, deadline: Time) -> bool {
    deadline.as_ps().wrapping_sub(now.as_ps()).wrapping_sub(1) >= LONGEST_TIMER_PS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Span;

    #[test]
    fn a_deadline_passes_once_and_stays_passed() {
        for start in [0, 1, u64::MAX - 5, u64::MAX / 2] {
            let deadline = Time::from_ps(start) + Span::from_us(10);
            let just_before = deadline - Span::from_ps(1);
            assert!(!reached(Time::from_ps(start), deadline) && !reached(just_before, deadline));
            assert!(reached(deadline, deadline) && !passed(deadline, deadline));
            for later in [1, 1 << 40, 1 << 62, (1 << 63) + 1, u64::MAX - LONGEST_TIMER_PS] {
                let now = deadline + Span::from_ps(later);
                assert!(reached(now, deadline) && passed(now, deadline), "{later} ps later");
            }
        }
    }

    #[test]
    fn elapsed_time_crosses_the_wrap() {
        assert_eq!(elapsed_ps(Time::from_ps(4), Time::from_ps(u64::MAX - 5)), 10);
    }
}
