//! Phantom queues: virtual queues that mark packets before a real queue builds up.

use weft_cc::{Rate, Span};

/// The configuration of a phantom queue. It counts the data offered to its port and drains at less than the
/// rate of the link. So it grows, and marks, when the link is nearly full but no packet waits (HULL, NSDI
/// 2012; Uno).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PhantomConfig {
    /// The drain rate. It stays the same if the link slows down later.
    pub rate: Rate,
    /// Marking begins above this length, given as the time to drain it.
    pub low: Span,
    /// Above this length every packet is marked.
    pub high: Span,
}

impl PhantomConfig {
    /// A queue that drains at the fraction `drain` of the rate `link` and marks between `low` and `high`
    /// bytes.
    pub fn new(link: Rate, drain: f64, (low, high): (u64, u64)) -> PhantomConfig {
        let rate = Rate::from_bps(((link.as_bps() as f64 * drain) as u64).max(1));
        PhantomConfig { rate, low: rate.time_for(low), high: rate.time_for(high) }
    }
}

/// The state of a phantom queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Phantom {
    /// When the queue will be empty if no more data arrives, ps.
    empty_at: u64,
}

impl Phantom {
    /// Counts `bytes` bytes of data that arrive at `now`, ps.
    pub(super) fn offer(&mut self, config: &PhantomConfig, now: u64, bytes: u32) {
        let time = config.rate.time_for(u64::from(bytes)).as_ps();
        self.empty_at = self.empty_at.max(now).saturating_add(time);
    }

    /// The time that the queue takes to drain, ps.
    pub(super) fn length(&self, now: u64) -> u64 {
        self.empty_at.saturating_sub(now)
    }
}
