//! Time and rates: the only types for them in weft.
//!
//! Both are integers: 4 KiB at 800 Gbit/s take 41.6 ns and 64 B take 640 ps, so the unit is the
//! picosecond. A `u64` of picoseconds lasts 213 days. Arithmetic on [`Span`] saturates. [`Time`] is
//! circular: the clock of a worker that runs for longer than 213 days wraps. Therefore instants are compared with
//! [`Time::is_before`] and its relatives, never by magnitude, and `Time` is deliberately not `Ord`.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};

/// Picoseconds in one second.
pub const PS_PER_SEC: u64 = 1_000_000_000_000;

/// An instant, in picoseconds since an epoch that the caller chooses (start of the run or of the
/// worker). Wraps around after 213 days; see the module's documentation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Time(u64);

/// A length of time in picoseconds. Arithmetic saturates.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span(u64);

/// A rate in bits per second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Rate(u64);

impl Time {
    /// The start of the clock, time 0.
    pub const ZERO: Time = Time(0);

    /// The instant `ps` picoseconds after the epoch.
    #[inline]
    pub const fn from_ps(ps: u64) -> Time {
        Time(ps)
    }

    /// Picoseconds since the epoch.
    #[inline]
    pub const fn as_ps(self) -> u64 {
        self.0
    }

    /// Whether `self` comes before `other`. Correct across the wrap as long as the two are less than 106 days apart.
    #[inline]
    pub const fn is_before(self, other: Time) -> bool {
        (self.0.wrapping_sub(other.0) as i64) < 0
    }

    /// Whether `self` is `other` or comes after it.
    #[inline]
    pub const fn is_at_or_after(self, other: Time) -> bool {
        !self.is_before(other)
    }

    /// The time from `earlier` to `self`; zero if `earlier` is the later one.
    #[inline]
    pub const fn since(self, earlier: Time) -> Span {
        if self.is_before(earlier) { Span::ZERO } else { Span(self.0.wrapping_sub(earlier.0)) }
    }

    /// The earlier of the two.
    #[inline]
    pub const fn earliest(self, other: Time) -> Time {
        if other.is_before(self) { other } else { self }
    }

    /// The later of the two.
    #[inline]
    pub const fn latest(self, other: Time) -> Time {
        if other.is_before(self) { self } else { other }
    }
}

impl Span {
    /// A span of length zero.
    pub const ZERO: Span = Span(0);
    /// The longest span.
    pub const MAX: Span = Span(u64::MAX);

    /// `ps` picoseconds.
    #[inline]
    pub const fn from_ps(ps: u64) -> Span {
        Span(ps)
    }

    /// `ns` nanoseconds.
    #[inline]
    pub const fn from_ns(ns: u64) -> Span {
        Span(ns.saturating_mul(1_000))
    }

    /// `us` microseconds.
    #[inline]
    pub const fn from_us(us: u64) -> Span {
        Span(us.saturating_mul(1_000_000))
    }

    /// `ms` milliseconds.
    #[inline]
    pub const fn from_ms(ms: u64) -> Span {
        Span(ms.saturating_mul(1_000_000_000))
    }

    /// The span in picoseconds.
    #[inline]
    pub const fn as_ps(self) -> u64 {
        self.0
    }

    /// In microseconds, with fractions.
    #[inline]
    pub fn as_us_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// In seconds, with fractions.
    #[inline]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e12
    }

    /// `self · factor`, rounded towards zero. A negative factor or NaN yields zero.
    #[inline]
    pub fn mul_f64(self, factor: f64) -> Span {
        Span((self.0 as f64 * factor) as u64)
    }

    /// `self · n`, saturating.
    #[inline]
    pub const fn times(self, n: u64) -> Span {
        Span(self.0.saturating_mul(n))
    }

    /// `self + other`, saturating.
    #[inline]
    pub const fn plus(self, other: Span) -> Span {
        Span(self.0.saturating_add(other.0))
    }

    /// `self − other`; zero if that is negative.
    #[inline]
    pub const fn minus(self, other: Span) -> Span {
        Span(self.0.saturating_sub(other.0))
    }
}

impl Rate {
    /// `n` bits per second.
    #[inline]
    pub const fn from_bps(n: u64) -> Rate {
        Rate(n)
    }

    /// `n` · 10⁹ bits per second.
    #[inline]
    pub const fn from_gbps(n: u64) -> Rate {
        Rate(n.saturating_mul(1_000_000_000))
    }

    /// In bits per second.
    #[inline]
    pub const fn as_bps(self) -> u64 {
        self.0
    }

    /// In 10⁹ bits per second, with fractions.
    #[inline]
    pub fn as_gbps_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// The time that `bytes` take at this rate, rounded to the nearest picosecond; [`Span::MAX`] at rate zero.
    #[inline]
    pub const fn time_for(self, bytes: u64) -> Span {
        if self.0 == 0 {
            return Span::MAX;
        }
        let bits = bytes as u128 * 8 * PS_PER_SEC as u128;
        let ps = (bits + self.0 as u128 / 2) / self.0 as u128;
        if ps > u64::MAX as u128 { Span::MAX } else { Span(ps as u64) }
    }

    /// The bytes that pass in `span` at this rate, rounded down, saturating.
    #[inline]
    pub const fn bytes_in(self, span: Span) -> u64 {
        let bytes = self.0 as u128 * span.0 as u128 / (8 * PS_PER_SEC as u128);
        if bytes > u64::MAX as u128 { u64::MAX } else { bytes as u64 }
    }
}

impl Add<Span> for Time {
    type Output = Time;
    #[inline]
    fn add(self, span: Span) -> Time {
        Time(self.0.wrapping_add(span.0))
    }
}

impl AddAssign<Span> for Time {
    #[inline]
    fn add_assign(&mut self, span: Span) {
        *self = *self + span;
    }
}

impl Sub<Span> for Time {
    type Output = Time;
    #[inline]
    fn sub(self, span: Span) -> Time {
        Time(self.0.wrapping_sub(span.0))
    }
}

impl Add for Span {
    type Output = Span;
    #[inline]
    fn add(self, other: Span) -> Span {
        self.plus(other)
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "t={}", Span(self.0))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Span(self.0))
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Span {
    /// `9 µs`; with `{:#}` as people type it, `9us`. Exact, so that [`units::parse_span`](crate::units::parse_span)
    /// reads the same back.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (decimals, unit) = match self.0 {
            0..1_000 => (0, "ps"),
            1_000..1_000_000 => (3, "ns"),
            1_000_000..1_000_000_000 => (6, if f.alternate() { "us" } else { "µs" }),
            1_000_000_000..PS_PER_SEC => (9, "ms"),
            _ => (12, "s"),
        };
        write_decimal(f, self.0, decimals)?;
        f.write_str(if f.alternate() { "" } else { " " })?;
        f.write_str(unit)
    }
}

/// Writes `value · 10^-decimals` without trailing zeros.
fn write_decimal(f: &mut fmt::Formatter<'_>, value: u64, decimals: u32) -> fmt::Result {
    let one = 10_u64.pow(decimals);
    write!(f, "{}", value / one)?;
    let (mut fraction, mut digits) = (value % one, decimals as usize);
    if fraction == 0 {
        return Ok(());
    }
    while fraction % 10 == 0 {
        (fraction, digits) = (fraction / 10, digits - 1);
    }
    write!(f, ".{fraction:0digits$}")
}

impl fmt::Debug for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_decimal(f, self.0, 9)?;
        f.write_str(" Gbit/s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serialisation_times_are_exact() {
        assert_eq!(Rate::from_gbps(800).time_for(4096), Span::from_ps(40_960));
        assert_eq!(Rate::from_gbps(800).time_for(64), Span::from_ps(640));
        assert_eq!(Rate::from_gbps(100).time_for(4150), Span::from_ps(332_000));
        assert_eq!(Rate::from_bps(0).time_for(1), Span::MAX);
        assert_eq!(Rate::from_bps(1).time_for(u64::MAX), Span::MAX);
    }

    #[test]
    fn instants_survive_the_wrap() {
        let near_end = Time::from_ps(u64::MAX - 5);
        let after = near_end + Span::from_ps(20);
        assert_eq!(after.as_ps(), 14);
        assert!(near_end.is_before(after));
        assert!(!after.is_before(near_end));
        assert_eq!(after.since(near_end), Span::from_ps(20));
        assert_eq!(near_end.since(after), Span::ZERO);
        assert_eq!(near_end.latest(after), after);
        assert_eq!(near_end.earliest(after), near_end);
    }

    #[test]
    fn bytes_and_times_agree() {
        let rate = Rate::from_gbps(100);
        assert_eq!(rate.bytes_in(Span::from_us(12)), 150_000);
        assert_eq!(rate.bytes_in(rate.time_for(150_000)), 150_000);
        assert_eq!(Rate::from_gbps(1000).bytes_in(Span::MAX), 2_305_843_009_213_693_951);
    }
}
