//! The peers for which the worker has made system calls lately: those that the port refuses, and those that applications have
//! added, which make room when these leave. A process has a limit in each [`PERIOD`], however often it leaves and comes again.

use weft_cc::{Span, Time};

/// How long a peer counts, from the first of a series on.
pub(super) const PERIOD: Span = Span::from_ms(10_000);

/// How many the applications of a process may have in a [`PERIOD`], unless those that are there may have more peers in the address
/// book together: each can add all that it may at once.
pub(super) const MOST: u64 = 256;

/// How many peers there were in a [`PERIOD`], and since when.
#[derive(Clone, Copy, Debug)]
struct Lately {
    since: Time,
    count: u32,
}

impl Lately {
    const NONE: Lately = Lately { since: Time::ZERO, count: 0 };

    /// How many count.
    fn count(&self, now: Time) -> u32 {
        if now.since(self.since) < PERIOD { self.count } else { 0 }
    }

    /// There is one more.
    fn add(&mut self, now: Time) {
        *self = match self.count(now) {
            0 => Lately { since: now, count: 1 },
            counted => Lately { since: self.since, count: counted + 1 },
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

    /// There is one more of an application of `account`.
    pub(super) fn add(&mut self, now: Time, account: u32) {
        self.0[account as usize].add(now);
    }
}
