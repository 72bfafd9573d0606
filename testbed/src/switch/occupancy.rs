//! The length of a queue over time.

/// The true maximum of a queue's length, and its integral over time, which gives the mean.
///
/// A length counts if it lasts: what comes and goes at one instant is neither in the maximum nor in the integral. So
/// the result does not depend on the order in which events of one instant are handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Until when the length is accounted for, ps.
    until: u64,
    /// The longest length so far, bytes.
    longest: u64,
    /// Length times time, bytes · ps. In 64 bits, 64 MiB would overflow it after 0.3 s.
    integral: u128,
}

impl Occupancy {
    /// Accounts for the length `bytes`, which the queue has had since the last call, until `now`, ps.
    #[inline]
    pub(super) fn hold(&mut self, now: u64, bytes: u64) {
        let time = now.saturating_sub(self.until);
        self.longest = self.longest.max(if time > 0 { bytes } else { 0 });
        self.integral += u128::from(bytes) * u128::from(time);
        self.until = self.until.max(now);
    }

    /// The longest length that the queue had for any time, bytes.
    pub fn longest(&self) -> u64 {
        self.longest
    }

    /// Length times time since the start, bytes · ps.
    pub fn integral(&self) -> u128 {
        self.integral
    }

    /// The time-weighted mean length since the start, bytes; zero in no time.
    pub fn mean(&self) -> f64 {
        if self.until == 0 { 0.0 } else { self.integral as f64 / self.until as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_counts_for_as_long_as_it_lasts() {
        let mut occupancy = Occupancy::default();
        assert_eq!((occupancy.longest(), occupancy.mean()), (0, 0.0));
        occupancy.hold(100, 0);
        // 4,000 bytes for 50 ps, then 9,000 for no time at all, then 1,000 for 250 ps.
        occupancy.hold(150, 4_000);
        occupancy.hold(150, 9_000);
        occupancy.hold(400, 1_000);
        assert_eq!(occupancy.longest(), 4_000);
        assert_eq!(occupancy.integral(), 450_000);
        assert_eq!(occupancy.mean(), 1_125.0);
    }

    #[test]
    fn long_queues_over_long_times_do_not_overflow() {
        let mut occupancy = Occupancy::default();
        occupancy.hold(u64::MAX, u64::MAX);
        assert_eq!(occupancy.mean(), u64::MAX as f64);
    }
}
