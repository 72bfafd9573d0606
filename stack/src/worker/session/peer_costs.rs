//! The peers for which the worker has made system calls in vain: those that the port refuses, and those that sessions have added
//! which have ended. An application may have so many in a [`PERIOD`] only. They count for the account of its process, so that
//! leaving and coming again does not help.

use weft_cc::{Span, Time};

/// How long a peer counts, from the first of a series on.
pub(super) const PERIOD: Span = Span::from_ms(10_000);

/// How many peers there were in a [`PERIOD`], and since when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lately {
    since: Time,
    count: u32,
}

impl Lately {
    pub(super) const NONE: Lately = Lately { since: Time::ZERO, count: 0 };

    /// How many count.
    pub(super) fn count(&self, now: Time) -> u32 {
        if now.since(self.since) < PERIOD { self.count } else { 0 }
    }

    /// There are `more`.
    pub(super) fn add(&mut self, now: Time, more: u32) {
        *self = match self.count(now) {
            0 => Lately { since: now, count: more },
            counted => Lately { since: self.since, count: counted + more },
        };
    }
}

/// The peers of each account.
#[derive(Debug)]
pub(super) struct PeerCosts(Vec<Lately>);

impl PeerCosts {
    /// None yet, of so many `applications`.
    pub(super) fn new(applications: usize) -> PeerCosts {
        PeerCosts(vec![Lately::NONE; applications])
    }

    /// How many count for `account`.
    pub(super) fn count(&self, now: Time, account: u32) -> u32 {
        self.0[account as usize].count(now)
    }

    /// How many counted for `account` when there was one last.
    pub(super) fn last(&self, account: usize) -> u32 {
        self.0[account].count
    }

    /// There are `more` of an application of `account`.
    pub(super) fn add(&mut self, now: Time, account: u32, more: u32) {
        self.0[account as usize].add(now, more);
    }
}
