//! How a thread with nothing to do leaves its core to others for a moment.
//!
//! By sleeping, not by yielding: since 6.18 Linux counts each `sched_yield` as a whole slice of time used, and a thread
//! that yields in a loop, beside others that compute, is then without its core for up to a second.
#![forbid(unsafe_code)]

use std::thread;
use std::time::Duration;
use weft_cc::Span;

/// How long a thread sleeps that another one may have something for at any time.
pub(crate) const MOMENT: Span = Span::from_us(20);

/// Lets the calling thread's naps end when they are to: otherwise the kernel may add 50 µs.
pub(crate) fn be_punctual() {
    // Where it is not to be had naps are longer, as on a machine that is busy.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_current_timer_slack(core::num::NonZeroU64::new(1));
}

/// Sleeps for `span`.
pub(crate) fn nap(span: Span) {
    thread::sleep(Duration::from_nanos(span.as_ps() / 1_000));
}
