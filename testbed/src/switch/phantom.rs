//! A queue that is not there: marks before a real one builds up.

use weft_cc::{Rate, Span};

/// How phantom queues behave. One counts the data that its port is offered and drains at less than the rate of the
/// link, so it grows, and marks, where the link is nearly full and nothing waits (HULL, NSDI 2012; Uno).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PhantomConfig {
    /// How fast it drains. A link that becomes slower later does not change that.
    pub rate: Rate,
    /// Marks begin above so much, as the time in which it drains.
    pub low: Span,
    /// Above this everything is marked.
    pub high: Span,
}

impl PhantomConfig {
    /// Drains at the part `drain` of `link`; marks between `low` and `high` bytes.
    pub fn new(link: Rate, drain: f64, (low, high): (u64, u64)) -> PhantomConfig {
        let rate = Rate::from_bps(((link.as_bps() as f64 * drain) as u64).max(1));
        PhantomConfig { rate, low: rate.time_for(low), high: rate.time_for(high) }
    }
}

/// The state of one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Phantom {
    /// When it will be empty if nothing more comes, ps.
    empty_at: u64,
}

impl Phantom {
    /// Counts `bytes` of data that arrive at `now`, ps.
    pub(super) fn offer(&mut self, config: &PhantomConfig, now: u64, bytes: u32) {
        let time = config.rate.time_for(u64::from(bytes)).as_ps();
        self.empty_at = self.empty_at.max(now).saturating_add(time);
    }

    /// How long it takes to drain, ps.
    pub(super) fn length(&self, now: u64) -> u64 {
        self.empty_at.saturating_sub(now)
    }
}
