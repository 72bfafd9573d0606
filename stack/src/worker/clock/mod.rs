//! The one place where the stack reads a clock.
//!
//! On x86-64 processors whose time-stamp counter runs at one rate in all states of sleep and speed, and
//! which the kernel itself trusts, reading the clock is reading that counter ([`tsc`]); elsewhere it is
//! [`Instant`]. Which of the two it is, and why, is told by [`Clock::source`].

mod fitness;
#[cfg(test)]
mod tests;
mod tsc;

use std::sync::OnceLock;
use std::time::Instant;

use weft_cc::{Span, Time};

pub use self::fitness::Unfit;
use self::tsc::{Hardware, Tsc};

/// A monotonic clock. Copies agree, on all threads: endpoints in one process compare times by sharing one.
/// Two threads that read it within the same few nanoseconds may see them in either order.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    source: Source,
    /// What the clock adds to its source, on the circle of [`Time`].
    offset: Span,
}

#[derive(Clone, Copy, Debug)]
enum Source {
    Counter(&'static Tsc<Hardware>),
    System { origin: Instant, why: Unfit },
}

/// What a [`Clock`] reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockSource {
    /// The processor's time-stamp counter.
    Counter {
        /// Its frequency as last measured against the system's monotonic clock, Hz.
        hz: u64,
    },
    /// The system's monotonic clock.
    System(Unfit),
}

impl std::fmt::Display for ClockSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ClockSource::Counter { hz } => write!(f, "time-stamp counter, {:.3} MHz", *hz as f64 / 1e6),
            ClockSource::System(why) => write!(f, "system clock (CLOCK_MONOTONIC): {why}"),
        }
    }
}

impl Clock {
    /// A clock that shows [`Time::ZERO`] now. The first one of a process measures the counter, which takes
    /// some 5 ms.
    pub fn new() -> Clock {
        Clock::starting_at(Time::ZERO)
    }

    /// A clock that shows `start` now.
    pub fn starting_at(start: Time) -> Clock {
        // One counter, so one measurement for all clocks of the process.
        static COUNTER: OnceLock<Result<Tsc<Hardware>, Unfit>> = OnceLock::new();
        let source = match COUNTER.get_or_init(tsc::of_this_machine) {
            Ok(counter) => Source::Counter(counter),
            Err(why) => Source::System { origin: Instant::now(), why: *why },
        };
        Clock::of(source, start)
    }

    /// A clock that shows `start` now and reads the system's clock, wherever it runs.
    pub fn system(start: Time) -> Clock {
        Clock::of(Source::System { origin: Instant::now(), why: Unfit::NotWanted }, start)
    }

    fn of(source: Source, start: Time) -> Clock {
        let unset = Clock { source, offset: Span::ZERO };
        Clock { source, offset: Span::from_ps(start.as_ps().wrapping_sub(unset.now().as_ps())) }
    }

    /// The time. Wraps with [`Time`], after 213 days.
    #[inline]
    pub fn now(&self) -> Time {
        let ps = match &self.source {
            Source::Counter(counter) => counter.now_ps(),
            Source::System { origin, .. } => circular_ps(origin.elapsed().as_nanos()),
        };
        Time::from_ps(ps) + self.offset
    }

    /// What the clock reads. It can change once, when the counter turns out not to run as it should: whoever
    /// keeps a log says so there.
    pub fn source(&self) -> ClockSource {
        match &self.source {
            Source::Counter(counter) => match counter.given_up() {
                Some(why) => ClockSource::System(why),
                None => ClockSource::Counter { hz: counter.hz() },
            },
            Source::System { why, .. } => ClockSource::System(*why),
        }
    }
}

/// Reduced modulo 2⁶⁴ ps, the circle of [`Time`]: reducing nanoseconds first changes nothing.
fn circular_ps(ns: u128) -> u64 {
    (ns as u64).wrapping_mul(1000)
}

impl Default for Clock {
    fn default() -> Clock {
        Clock::new()
    }
}
