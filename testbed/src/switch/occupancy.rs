//! The length of a queue over time.

use std::hint::select_unpredictable;

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

/// Measures the length of a queue, with a few instructions for each packet that joins or leaves. Times are in order.
///
/// The integral of the length over time is the sum over all packets of size times time in the queue (Little, Operations
/// Research 9, 1961). So a packet adds its size times the time at which it leaves, less its size times the time at which
/// it has joined, and nothing needs to be known between the two.
///
/// Packed, because 16 bytes of alignment would push fields of the queue that each packet needs out of the cache lines that
/// are fetched ahead.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, packed(8))]
pub(super) struct Meter {
    /// See above, modulo 2¹²⁸: less than zero while packets wait.
    integral: u128,
    /// When a packet joined last, ps.
    joined_at: u64,
    /// The length that lasted longest within that instant: the one at its end. Only shorter ones follow until the next
    /// packet joins.
    peak: u64,
    /// The longest length that lasted until then, bytes.
    longest: u64,
}

impl Meter {
    /// Notes that `bytes` bytes join at `now`, ps, which makes `length` bytes.
    #[inline]
    pub(super) fn join(&mut self, now: u64, bytes: u64, length: u64) {
        self.integral = self.integral.wrapping_sub(u128::from(now) * u128::from(bytes));
        self.longest = self.longest(now);
        (self.joined_at, self.peak) = (now, length);
    }

    /// Notes that `bytes` bytes leave at `now`, ps, of which `length` bytes remain.
    #[inline]
    pub(super) fn leave(&mut self, now: u64, bytes: u64, length: u64) {
        self.integral = self.integral.wrapping_add(u128::from(now) * u128::from(bytes));
        // Lengths within one instant do not last.
        self.peak = select_unpredictable(now == self.joined_at, length, self.peak);
    }

    /// The longest length that lasted until `now`, ps.
    #[inline]
    fn longest(&self, now: u64) -> u64 {
        self.longest.max(select_unpredictable(now > self.joined_at, self.peak, 0))
    }

    /// The measures until `now`, ps, of a queue that has `length` bytes since the last call.
    pub(super) fn read(&self, now: u64, length: u64) -> Occupancy {
        let until = now.max(self.joined_at);
        let integral = self.integral.wrapping_add(u128::from(until) * u128::from(length));
        Occupancy { until, longest: self.longest(until), integral }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_length_counts_for_as_long_as_it_lasts() {
        let mut meter = Meter::default();
        assert_eq!(meter.read(0, 0), Occupancy::default());
        assert_eq!(meter.read(0, 0).mean(), 0.0);
        // 4,000 bytes for 50 ps, then 9,000 for no time at all, then 1,000 for 250 ps.
        meter.join(100, 4_000, 4_000);
        meter.join(150, 5_000, 9_000);
        meter.leave(150, 8_000, 1_000);
        let occupancy = meter.read(400, 1_000);
        assert_eq!(occupancy.longest(), 4_000);
        assert_eq!(occupancy.integral(), 450_000);
        assert_eq!(occupancy.mean(), 1_125.0);
    }

    #[test]
    fn long_queues_over_long_times_do_not_overflow() {
        let mut meter = Meter::default();
        meter.join(0, u64::MAX, u64::MAX);
        assert_eq!(meter.read(u64::MAX, u64::MAX).mean(), u64::MAX as f64);
    }

    proptest! {
        /// The definition: each length, times the time until the next change.
        #[test]
        fn measures_follow_the_definition(changes in prop::collection::vec((0u64..3, -9i64..10), 1..60)) {
            let mut meter = Meter::default();
            let (mut now, mut length, mut longest, mut integral) = (0, 0u64, 0, 0);
            for (time, change) in changes {
                if time > 0 {
                    longest = longest.max(length);
                    integral += u128::from(length) * u128::from(time);
                    now += time;
                }
                let bytes = change.unsigned_abs();
                if change >= 0 {
                    length += bytes;
                    meter.join(now, bytes, length);
                } else if bytes <= length {
                    length -= bytes;
                    meter.leave(now, bytes, length);
                }
                let read = meter.read(now, length);
                prop_assert_eq!((read.longest(), read.integral()), (longest, integral));
            }
        }
    }
}
