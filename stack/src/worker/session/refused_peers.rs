//! The peers that applications ask for and the port refuses. Each costs the worker some system calls, so that an application
//! may ask for so many in a [`PERIOD`] only. They count for the account of its process, so that leaving and coming again does
//! not help.

use weft_cc::{Span, Time};

/// How long a refusal counts, from the first of a series on.
pub(super) const PERIOD: Span = Span::from_ms(10_000);

/// The refusals of each account: since when they are counted, and how many there were.
#[derive(Debug)]
pub(super) struct RefusedPeers(Vec<(Time, u32)>);

impl RefusedPeers {
    /// None, of up to `applications` applications.
    pub(super) fn new(applications: usize) -> RefusedPeers {
        RefusedPeers(vec![(Time::ZERO, 0); applications])
    }

    /// How many count for `account`.
    pub(super) fn count(&self, now: Time, account: u32) -> u32 {
        let (since, count) = self.0[account as usize];
        if now.since(since) < PERIOD { count } else { 0 }
    }

    /// The port has refused a peer that an application of `account` asked for.
    pub(super) fn add(&mut self, now: Time, account: u32) {
        let counted = self.count(now, account);
        let entry = &mut self.0[account as usize];
        *entry = if counted == 0 { (now, 1) } else { (entry.0, counted + 1) };
    }
}
