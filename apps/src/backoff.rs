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
/// How long no further attempt is made then.
const WARY: Duration = Duration::from_millis(100);
/// How long a thread sleeps instead of yielding.
const MOMENT: Duration = Duration::from_micros(20);

/// Whether a thread has noticed other threads on its core.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    wary_until: Option<Instant>,
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
        self.wary_until = (end - begin > LONG).then(|| end + WARY);
    }
}

/// Sleeps for `span`.
pub(crate) fn sleep(span: Span) {
    thread::sleep(Duration::from_nanos(span.as_ps() / 1_000));
}
