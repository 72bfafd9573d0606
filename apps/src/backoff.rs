//! Backoff of a thread that has nothing to do: it leaves its core to other threads for a moment.
//!
//! The thread yields, which costs least while no other thread wants the core. But since 6.18 Linux counts each
//! `sched_yield` as a whole time slice: a thread that yields in a loop beside threads that compute loses its core for
//! up to a second. So a thread that has noticed other threads sleeps instead for a while.
#![forbid(unsafe_code)]

use std::thread;
use std::time::{Duration, Instant};
use weft_cc::Span;

/// A thread that yields is back sooner, unless another one has had the core.
const LONG: Duration = Duration::from_micros(200);
/// How long no further attempt is made after the first one that took [`LONG`].
const WARY: Duration = Duration::from_millis(100);
/// How long no further attempt is made at most. An attempt beside a thread that computes may cost a pause of more than
/// 100 ms, so this bounds the part of the time that is lost to attempts at a few percent; and a thread whose core has
/// become free goes on sleeping for no longer than this.
const MOST_WARY: Duration = Duration::from_secs(10);
/// How long a thread sleeps instead of yielding.
const MOMENT: Duration = Duration::from_micros(20);

/// Whether a thread has noticed other threads on its core.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    wary_until: Option<Instant>,
    wary: Duration,
}

impl Backoff {
    /// Lets other threads have the core. Returns soon if there are none.
    pub(crate) fn give_way(&mut self) {
        let begin = Instant::now();
        if self.wary_until.is_some_and(|until| begin < until) {
            return thread::sleep(MOMENT);
        }
        thread::yield_now();
        let end = Instant::now();
        self.wary = next_wary(self.wary, end - begin);
        self.wary_until = Some(end + self.wary);
    }
}

/// How long no attempt is made after one that took `yielded_for`, if it was `before` after the attempt before: twice as
/// long each time that other threads have had the core, and no time at all otherwise.
fn next_wary(before: Duration, yielded_for: Duration) -> Duration {
    if yielded_for > LONG { (before * 2).clamp(WARY, MOST_WARY) } else { Duration::ZERO }
}

/// Sleeps for `span`.
pub(crate) fn sleep(span: Span) {
    thread::sleep(Duration::from_nanos(span.as_ps() / 1_000));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_to_yield_become_rarer_until_one_is_short() {
        let (short, long) = (Duration::from_micros(200), Duration::from_micros(201));
        let ms = Duration::from_millis;
        for (before, yielded_for, expected) in [
            (0, short, 0),
            (0, long, 100),
            (100, long, 200),
            (200, long, 400),
            (6_400, long, 10_000),
            (10_000, long, 10_000),
            (10_000, short, 0),
            (100, short, 0),
        ] {
            let found = next_wary(ms(before), yielded_for);
            assert_eq!(found, ms(expected), "{before} ms before, yielded for {yielded_for:?}");
        }
    }
}
