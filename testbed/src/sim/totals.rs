//! The total of the data queues of a switch over time, for its true maximum.
//!
//! A switch handles a window port by port, so the changes of its queues are not in the order of time. They are noted,
//! and put in order at the end of the window.

use weft_stack::packet::Class;

use super::order::Sorter;
use super::packets::Transit;
use crate::switch::Queued;

/// Is told of data that joins and leaves the queues of a switch.
pub(super) trait Journal {
    /// Notes that `transit` has joined its queue at `at`, ps.
    fn joined(&mut self, at: u64, transit: &Transit);
    /// Notes that `transit` has left its queue at `at`, ps.
    fn left(&mut self, at: u64, transit: &Transit);
}

/// Notes nothing.
pub(super) struct NoJournal;

impl Journal for NoJournal {
    #[inline(always)]
    fn joined(&mut self, _: u64, _: &Transit) {}
    #[inline(always)]
    fn left(&mut self, _: u64, _: &Transit) {}
}

/// The changes of the queues of one switch within a window. All switches of a shard use the same memory.
#[derive(Default)]
pub(super) struct Changes {
    /// Time, ps, and change, bytes.
    noted: Vec<(u64, i64)>,
    /// Keys by which the changes are put in order.
    keys: Vec<u64>,
    sorter: Sorter,
}

/// Bits of a sort key that number the change. The other bits hold its time.
const INDEX_BITS: u32 = 28;

impl Journal for Changes {
    #[inline]
    fn joined(&mut self, at: u64, transit: &Transit) {
        self.note(at, transit, 1);
    }

    #[inline]
    fn left(&mut self, at: u64, transit: &Transit) {
        self.note(at, transit, -1);
    }
}

impl Changes {
    fn note(&mut self, at: u64, transit: &Transit, sign: i64) {
        if transit.class() == Class::Data {
            self.noted.push((at, sign * i64::from(transit.size())));
        }
    }

    /// Puts the changes in the order of time.
    fn sort(&mut self) {
        let times = || self.noted.iter().map(|(at, _)| *at);
        let first = times().min().unwrap_or(0);
        let time_bits = u64::BITS - (times().max().unwrap_or(0) - first).leading_zeros();
        if time_bits + INDEX_BITS > u64::BITS || self.noted.len() >> INDEX_BITS != 0 {
            return self.noted.sort_by_key(|(at, _)| *at);
        }
        self.keys.clear();
        self.keys
            .extend(self.noted.iter().zip(0..).map(|((at, _), index)| (at - first) << INDEX_BITS | index));
        self.sorter.sort(&mut self.keys, time_bits + INDEX_BITS);
        let index = |key: &u64| (key & ((1 << INDEX_BITS) - 1)) as usize;
        let ordered: Vec<(u64, i64)> = self.keys.iter().map(|key| self.noted[index(key)]).collect();
        self.noted = ordered;
    }
}

/// The data that waits in all queues of one switch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Total {
    bytes: i64,
    /// Until when `longest` accounts for it, ps.
    until: u64,
    longest: u64,
}

impl Total {
    /// Takes in the changes of a window.
    pub(super) fn apply(&mut self, changes: &mut Changes) {
        if changes.noted.is_empty() {
            return;
        }
        changes.sort();
        for (at, change) in changes.noted.drain(..) {
            self.hold(at);
            self.bytes += change;
        }
    }

    /// Accounts for the present length until `at`. As in [`Occupancy`](crate::switch::Occupancy), a length counts if it
    /// lasts.
    fn hold(&mut self, at: u64) {
        if at > self.until {
            self.longest = self.longest.max(self.bytes.max(0) as u64);
            self.until = at;
        }
    }

    /// The greatest total that lasted for any time until `end`, ps, bytes.
    pub(super) fn longest(mut self, end: u64) -> u64 {
        self.hold(end);
        self.longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_maximum_of_a_total_follows_time_and_not_the_order_of_ports() {
        // One port holds 3 from 10 to 20, another 4 from 20 to 30, a third 2 from 5 to 25.
        let noted = vec![(10, 3), (20, -3), (20, 4), (30, -4), (5, 2), (25, -2)];
        let mut changes = Changes { noted, ..Changes::default() };
        let mut total = Total::default();
        total.apply(&mut changes);
        assert_eq!(total.longest(40), 6);
        // Many changes at one instant, in the order of ports, come to nothing.
        changes.noted = (0..100).map(|n| (50, if n < 50 { 1 } else { -1 })).collect();
        total.apply(&mut changes);
        assert_eq!(total.longest(60), 6);
        // Times too far apart for a key.
        changes.noted = vec![(1 << 60, -7), (100, 7), (100, 9)];
        total.apply(&mut changes);
        assert_eq!(total.longest(u64::MAX), 16);
    }
}
