//! Whether every message of a connection arrives, and once. Messages may overtake each other.

use std::collections::VecDeque;

/// Messages beyond the first missing one that are kept track of. A sender that goes further ahead than
/// any test does is counted as wrong instead of costing memory.
const FURTHEST: u64 = 1 << 21;

/// The numbers that have arrived.
#[derive(Debug, Default)]
pub(super) struct Sequence {
    /// All below have arrived; a multiple of 64.
    base: u64,
    /// A bit for each number from `base`.
    seen: VecDeque<u64>,
    wrong: u64,
}

impl Sequence {
    /// Message `n` has arrived. Returns whether it is new.
    pub(super) fn arrived(&mut self, n: u64) -> bool {
        let new = n >= self.base && n - self.base < FURTHEST && self.mark(n - self.base);
        self.wrong += u64::from(!new);
        new
    }

    /// How many were there already, or cannot be.
    pub(super) fn wrong(&self) -> u64 {
        self.wrong
    }

    fn mark(&mut self, offset: u64) -> bool {
        let (word, bit) = ((offset / 64) as usize, 1 << (offset % 64));
        if word >= self.seen.len() {
            self.seen.resize(word + 1, 0);
        }
        let seen = &mut self.seen[word];
        let new = *seen & bit == 0;
        *seen |= bit;
        if word == 0 && *seen == u64::MAX {
            self.advance();
        }
        new
    }

    /// Moves the base behind all that have arrived.
    #[cold]
    fn advance(&mut self) {
        while self.seen.front() == Some(&u64::MAX) {
            self.seen.pop_front();
            self.base += 64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_does_not_matter_and_repetition_does() {
        let mut sequence = Sequence::default();
        for n in (0..1000).rev() {
            assert!(sequence.arrived(n));
        }
        assert_eq!(sequence.wrong(), 0);
        assert!(!sequence.arrived(999) && !sequence.arrived(0) && !sequence.arrived(960));
        assert_eq!(sequence.wrong(), 3);
        assert!(sequence.arrived(1000));
    }

    #[test]
    fn memory_does_not_grow_with_the_count() {
        let mut sequence = Sequence::default();
        for n in 0..100_000 {
            assert!(sequence.arrived(n ^ 1));
        }
        assert!(sequence.seen.len() <= 1, "{}", sequence.seen.len());
        assert!(!sequence.arrived(u64::MAX));
        assert!(sequence.seen.len() <= 1);
    }
}
