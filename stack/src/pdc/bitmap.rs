//! The set of packets beyond CACK that have arrived.

use crate::wire::pds::Psn;

/// A window of `range` packets that starts at the first missing one.
#[derive(Clone, Debug)]
pub(crate) struct Bitmap {
    /// Bits in a ring whose length is a power of two, indexed by the low bits of the PSN; allocated when the first
    /// packet arrives out of order.
    words: Box<[u64]>,
    /// The PSN of the first missing packet.
    base: Psn,
    range: u32,
    /// The number of bits that are set.
    count: u32,
}

impl Bitmap {
    pub(crate) fn new(base: Psn, range: u32) -> Bitmap {
        debug_assert!(range.is_multiple_of(128) && range > 0);
        Bitmap { words: Box::default(), base, range, count: 0 }
    }

    /// The PSN of the first missing packet.
    #[inline]
    pub(crate) fn base(&self) -> Psn {
        self.base
    }

    /// Number of packets present beyond the first missing one.
    #[inline]
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Whether `psn` is present. PSNs before the window count as present, those after it as absent.
    #[inline]
    pub(crate) fn contains(&self, psn: Psn) -> bool {
        match psn.distance(self.base) {
            ahead if ahead < 0 => true,
            ahead if self.count == 0 || ahead as u32 >= self.range => false,
            _ => self.words[self.word_of(psn)] & bit_of(psn) != 0,
        }
    }

    /// Adds `psn`, which must be inside the window and absent; moves the window if `psn` was the first missing packet.
    #[inline(always)]
    pub(crate) fn insert(&mut self, psn: Psn) {
        debug_assert!((psn.distance(self.base) as u32) < self.range && !self.contains(psn));
        if psn != self.base {
            self.set(psn, 1);
            return;
        }
        self.base = psn.plus(1);
        self.settle();
    }

    /// Adds `psn`, which is not before the window. False if it is present, or beyond the window.
    #[inline]
    pub(crate) fn insert_new(&mut self, psn: Psn) -> bool {
        if psn == self.base {
            self.base = psn.plus(1);
            self.settle();
            return true;
        }
        if psn.distance(self.base) as u32 >= self.range {
            return false;
        }
        if self.words.is_empty() {
            self.allocate();
        }
        let (word, bit) = (self.word_of(psn), bit_of(psn));
        let is_new = self.words[word] & bit == 0;
        self.words[word] |= bit;
        self.count += u32::from(is_new);
        is_new
    }

    /// Adds `from + i` for each bit i of `bits`, all of which must be inside the window and absent; moves the window
    /// to the first missing packet.
    #[inline]
    pub(crate) fn insert_word(&mut self, from: Psn, bits: u64) {
        if from == self.base {
            self.insert_at_base(bits);
            return;
        }
        self.set(from, bits);
        self.settle();
    }

    /// Adds `base + i` for each bit i of `bits`, all of which must be inside the window; moves the window to the first
    /// missing packet. Returns the bits that were absent.
    ///
    /// Of the packets that arrive most are near the start of the window. So what is present is read, completed and written
    /// in one pass over the two words that hold it.
    #[inline]
    pub(crate) fn insert_at_base(&mut self, bits: u64) -> u64 {
        if self.count == 0 && bits & bits.wrapping_add(1) == 0 {
            // They follow each other, and leave no gap to remember.
            self.base = self.base.plus(bits.trailing_ones());
            return bits;
        }
        self.merge_at_base(bits)
    }

    /// [`Bitmap::insert_at_base`] if packets are or will be present beyond the first missing one.
    #[inline]
    fn merge_at_base(&mut self, bits: u64) -> u64 {
        if self.words.is_empty() {
            self.allocate();
        }
        let (low, high, shift) =
            (self.word_of(self.base), self.word_of(self.base.plus(64)), self.base.0 % 64);
        // The two shifts of the upper word are one by 64 − shift, which is too far where `shift` is 0.
        let present = self.words[low] >> shift | self.words[high] << 1 << (63 - shift);
        let news = bits & !present;
        let run = (present | bits).trailing_ones();
        let passed = u64::MAX.checked_shr(64 - run).unwrap_or(0);
        // What is present before the new start of the window is dropped, what is new behind it is added.
        let changed = present & passed | news & !passed;
        self.words[low] ^= changed << shift;
        self.words[high] ^= changed >> 1 >> (63 - shift);
        self.count = self.count + news.count_ones() - run;
        self.base = self.base.plus(run);
        if run == 64 {
            self.settle();
        }
        news
    }

    #[inline]
    fn set(&mut self, from: Psn, bits: u64) {
        if self.words.is_empty() {
            self.allocate();
        }
        let (word, shift) = (self.word_of(from), from.0 % 64);
        self.words[word] |= bits << shift;
        let rest = (bits >> 1) >> (63 - shift);
        if rest != 0 {
            let word = self.word_of(from.plus(64));
            self.words[word] |= rest;
        }
        self.count += bits.count_ones();
    }

    /// Moves the window to the first missing packet.
    #[inline]
    fn settle(&mut self) {
        if self.count > 0 {
            self.skip_present();
        }
    }

    /// [`Bitmap::settle`] if packets are present beyond the first missing one. Not inlined: it would take the registers
    /// of what every packet runs through.
    #[inline(never)]
    fn skip_present(&mut self) {
        while self.count > 0 {
            let (word, shift) = (self.word_of(self.base), self.base.0 % 64);
            let run = (self.words[word] >> shift).trailing_ones();
            if run == 0 {
                return;
            }
            self.words[word] &= !(u64::MAX >> (64 - run) << shift);
            self.count -= run;
            self.base = self.base.plus(run);
        }
    }

    #[cold]
    fn allocate(&mut self) {
        self.words = vec![0; (self.range / 64).next_power_of_two() as usize].into();
    }

    /// The presence of 64 packets: bit i is set if `from + i` is present.
    #[inline]
    pub(crate) fn word(&self, from: Psn) -> u64 {
        let ahead = from.distance(self.base);
        if ahead < 0 {
            return match -ahead {
                behind @ 0..64 => self.word_ahead(self.base) << behind | ((1 << behind) - 1),
                _ => u64::MAX,
            };
        }
        self.word_ahead(from)
    }

    /// [`Bitmap::word`] for a `from` that is not before the window.
    #[inline]
    fn word_ahead(&self, from: Psn) -> u64 {
        let ahead = from.distance(self.base) as u32;
        if self.count == 0 || ahead >= self.range {
            return 0;
        }
        let shift = from.0 % 64;
        let low = self.words[self.word_of(from)] >> shift;
        let bits = match shift {
            0 => low,
            _ => low | self.words[self.word_of(from.plus(64))] << (64 - shift),
        };
        match self.range - ahead {
            left @ 0..64 => bits & ((1 << left) - 1),
            _ => bits,
        }
    }

    #[inline]
    fn word_of(&self, psn: Psn) -> usize {
        (psn.0 / 64) as usize & (self.words.len() - 1)
    }

    /// Makes the window larger: `range` packets.
    #[cold]
    pub(crate) fn widen(&mut self, range: u32) {
        let mut wider = Bitmap::new(self.base, range);
        let words = (0..self.range).step_by(64).map(|ahead| self.base.plus(ahead));
        words.for_each(|from| wider.insert_word(from, self.word(from)));
        *self = wider;
    }

    /// Size of the window, packets.
    pub(crate) fn range(&self) -> u32 {
        self.range
    }

    /// Bytes of heap allocated.
    pub(crate) fn heap_bytes(&self) -> u64 {
        size_of_val(&*self.words) as u64
    }
}

#[inline]
fn bit_of(psn: Psn) -> u64 {
    1 << (psn.0 % 64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn the_bitmap_agrees_with_a_set(
            start: u32,
            range in prop::sample::select(vec![128u32, 256, 384]),
            arrivals in prop::collection::vec(0u32..400, 0..500),
        ) {
            let mut bitmap = Bitmap::new(Psn(start), range);
            let mut present = BTreeSet::new();
            for arrival in arrivals {
                let psn = Psn(start).plus(arrival);
                let first_missing = (0u32..).find(|n| !present.contains(n)).unwrap();
                prop_assert_eq!(bitmap.contains(psn), present.contains(&arrival));
                if arrival < first_missing + range && !present.contains(&arrival) {
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
                        || psn < i64::from(first_missing + range) && present.contains(&(psn as u32));
                    prop_assert_eq!(word >> i & 1 == 1, expected);
                }
            }
        }

        #[test]
        fn packets_added_from_the_start_of_the_window_on_agree_with_a_set(
            start: u32,
            range in prop::sample::select(vec![128u32, 256, 384]),
            steps in prop::collection::vec((any::<u64>(), 0u32..64, 64u32..128), 0..200),
        ) {
            let mut bitmap = Bitmap::new(Psn(start), range);
            let mut present = BTreeSet::new();
            for (bits, shift, beyond) in steps {
                // Runs, gaps, single packets, and packets beyond the word.
                let bits = [bits >> shift, (1 << shift) - 1, 1 << shift, bits & bits << shift][beyond as usize % 4];
                let first_missing = (0u32..).find(|n| !present.contains(n)).unwrap();
                let named = (0..64).filter(|i| bits >> i & 1 == 1);
                let news = named.filter(|i| present.insert(first_missing + i)).map(|i| 1u64 << i).sum::<u64>();
                prop_assert_eq!(bitmap.insert_at_base(bits), news);
                let first_missing = (0u32..).find(|n| !present.contains(n)).unwrap();
                prop_assert_eq!(bitmap.base(), Psn(start).plus(first_missing));
                prop_assert_eq!(bitmap.count() as usize, present.range(first_missing..).count());
                if beyond % 3 == 0 && present.insert(first_missing + beyond) {
                    bitmap.insert(Psn(start).plus(first_missing + beyond));
                }
                let is_present = |n: u32| bitmap.contains(Psn(start).plus(n)) == present.contains(&n);
                prop_assert!((first_missing..first_missing + range).all(is_present));
            }
        }
    }
}
