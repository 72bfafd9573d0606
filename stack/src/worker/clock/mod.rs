//! The one place where the stack reads a clock.
//!
//! On x86-64 processors whose time-stamp counter runs at a constant rate in all sleep and frequency states, and which
//! the kernel itself trusts, the clock reads that counter ([`tsc`]); elsewhere it reads [`Instant`]. [`Clock::source`]
//! says which, and why.

mod fitness;
#[cfg(test)]
mod tests;
mod tsc;

use std::sync::OnceLock;
use std::time::Instant;

use weft_cc::{Span, Time};

pub use self::fitness::Unfit;
use self::tsc::{Hardware, Tsc};

/// A monotonic clock. Copies show the same time on all threads: endpoints in one process compare times by sharing a
/// clock. Two threads that read it within a few nanoseconds of each other may see their readings in either order.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    source: Source,
    /// Offset added to the source's time, on the circle of [`Time`].
    offset: Span,
}

#[derive(Clone, Copy, Debug)]
enum Source {
    Counter(&'static Tsc<Hardware>),
    System { origin: Instant, why: Unfit },
}

/// The source that a [`Clock`] reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockSource {
    /// The processor's time-stamp counter.
    Counter {
        /// Frequency of the counter as last measured against the system's monotonic clock, Hz.
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
    /// A clock that shows [`Time::ZERO`] now. The first clock of a process measures the counter, which takes about 5
    /// ms.
    pub fn new() -> Clock {
        Clock::starting_at(Time::ZERO)
    }

    /// A clock that shows `start` now.
    pub fn starting_at(start: Time) -> Clock {
        // There is one counter, so one measurement serves all clocks of the process.
        static COUNTER: OnceLock<Result<Tsc<Hardware>, Unfit>> = OnceLock::new();
        let source = match COUNTER.get_or_init(tsc::of_this_machine) {
            Ok(counter) => Source::Counter(counter),
            Err(why) => Source::System { origin: Instant::now(), why: *why },
        };
        Clock::of(source, start)
    }

    /// A clock that shows `start` now and reads the system's clock on any machine.
    pub fn system(start: Time) -> Clock {
        Clock::of(Source::System { origin: Instant::now(), why: Unfit::NotWanted }, start)
    }

    fn of(source: Source, start: Time) -> Clock {
        let unset = Clock { source, offset: Span::ZERO };
        Clock { source, offset: Span::from_ps(start.as_ps().wrapping_sub(unset.now().as_ps())) }
    }

    /// The current time. Wraps with [`Time`], after 213 days.
    #[inline]
    pub fn now(&self) -> Time {
        let ps = match &self.source {
            Source::Counter(counter) => counter.now_ps(),
            Source::System { origin, .. } => circular_ps(origin.elapsed().as_nanos()),
        };
        Time::from_ps(ps) + self.offset
    }

    /// The source that the clock reads. It can change once, if the counter turns out to be unreliable; long-running
    /// programs should log that change.
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

/// `ns` in picoseconds, modulo 2⁶⁴, the circle of [`Time`]. Reducing the nanoseconds first changes nothing.
fn circular_ps(ns: u128) -> u64 {
    (ns as u64).wrapping_mul(1000)
}

impl Default for Clock {
    fn default() -> Clock {
        Clock::new()
    }
}
