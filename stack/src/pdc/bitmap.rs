//! Which packets beyond CACK have arrived.

use crate::wire::pds::Psn;

/// A window of `range` packets that starts at the first missing one.
#[derive(Clone, Debug)]
pub(super) struct Bitmap {
    /// The packet that bit `head` stands for: the first one missing.
    base: Psn,
    head: u32,
    /// Bits in a ring; allocated when the first packet arrives out of order.
    words: Box<[u64]>,
    range: u32,
    /// Bits set.
    count: u32,
}

impl Bitmap {
    pub(super) fn new(base: Psn, range: u32) -> Bitmap {
        debug_assert!(range.is_multiple_of(128) && range > 0);
        Bitmap { base, head: 0, words: Box::default(), range, count: 0 }
    }

    /// The first packet missing.
    pub(super) fn base(&self) -> Psn {
        self.base
    }

    /// Packets present beyond the first missing one.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Whether `psn` is present. Packets before the window are; those after it are not.
    pub(super) fn contains(&self, psn: Psn) -> bool {
        match psn.distance(self.base) {
            ahead if ahead < 0 => true,
            ahead if ahead as u32 >= self.range || self.words.is_empty() => false,
            ahead => {
                let bit = self.position(ahead as u32);
                self.words[(bit / 64) as usize] & (1 << (bit % 64)) != 0
            }
        }
    }

    /// Adds `psn`, which must be inside the window and absent; moves the window when it was the first missing one.
    pub(super) fn insert(&mut self, psn: Psn) {
        let ahead = psn.distance(self.base) as u32;
        debug_assert!(ahead < self.range && !self.contains(psn));
        if ahead > 0 {
            if self.words.is_empty() {
                self.words = vec![0; (self.range / 64) as usize].into();
            }
            let bit = self.position(ahead);
            self.words[(bit / 64) as usize] |= 1 << (bit % 64);
            self.count += 1;
            return;
        }
        self.step();
        while self.count > 0 && self.contains(self.base) {
            let bit = self.head;
            self.words[(bit / 64) as usize] &= !(1 << (bit % 64));
            self.count -= 1;
            self.step();
        }
    }

    /// 64 bits: bit i tells whether `from + i` is present.
    pub(super) fn word(&self, from: Psn) -> u64 {
        let ahead = from.distance(self.base);
        if ahead < 0 {
            return match -ahead {
                behind @ 0..64 => self.word(self.base) << behind | ((1 << behind) - 1),
                _ => u64::MAX,
            };
        }
        if self.count == 0 || ahead as u32 >= self.range {
            return 0;
        }
        let bit = self.position(ahead as u32);
        let (word, shift) = ((bit / 64) as usize, bit % 64);
        let low = self.words[word] >> shift;
        let bits =
            if shift == 0 { low } else { low | self.words[(word + 1) % self.words.len()] << (64 - shift) };
        match self.range - ahead as u32 {
            left @ 0..64 => bits & ((1 << left) - 1),
            _ => bits,
        }
    }

    fn position(&self, ahead: u32) -> u32 {
        (self.head + ahead) % self.range
    }

    fn step(&mut self) {
        self.base = self.base.plus(1);
        self.head = (self.head + 1) % self.range;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn agrees_with_a_set(start: u32, arrivals in prop::collection::vec(0u32..400, 0..500)) {
            let mut bitmap = Bitmap::new(Psn(start), 256);
            let mut present = BTreeSet::new();
            for arrival in arrivals {
                let psn = Psn(start).plus(arrival);
                let first_missing = (0u32..).find(|n| !present.contains(n)).unwrap();
                prop_assert_eq!(bitmap.contains(psn), present.contains(&arrival));
                if arrival < first_missing + 256 && !present.contains(&arrival) {
                    bitmap.insert(psn);
                    present.insert(arrival);
                }
                let first_missing = (0u32..).find(|n| !present.contains(n)).unwrap();
                prop_assert_eq!(bitmap.base(), Psn(start).plus(first_missing));
                prop_assert_eq!(bitmap.count() as usize, present.range(first_missing..).count());
                let from = i64::from(first_missing) + i64::from(arrival % 356) - 100;
                let word = bitmap.word(Psn(start).offset(from as i32));
                for i in 0..64 {
                    let psn = from + i;
                    let expected = psn < i64::from(first_missing)
                        || psn < i64::from(first_missing) + 256 && present.contains(&(psn as u32));
                    prop_assert_eq!(word >> i & 1 == 1, expected);
                }
            }
        }
    }
}
