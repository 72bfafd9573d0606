//! A bucket sort for the arrivals of a window: a few instructions per arrival, as times are spread evenly.

/// Sorts keys, and keeps its buffers between calls.
#[derive(Default)]
pub(super) struct Sorter {
    /// For each bucket, the position of its next key.
    offsets: Vec<u32>,
    /// The keys before they are sorted.
    unsorted: Vec<u64>,
}

/// Up to this many keys are sorted without buckets and without branches on keys.
const FEW: usize = 8;
/// With more keys than this in one bucket, the standard library's sort is faster.
const MAX_PER_BUCKET: u32 = 24;
const MAX_BUCKETS: usize = 4096;

impl Sorter {
    /// Sorts `keys`, which are below 2^`bits`.
    #[inline]
    pub(super) fn sort(&mut self, keys: &mut [u64], bits: u32) {
        match keys.len() {
            0..=FEW => sort_few(keys),
            _ => self.sort_by_buckets(keys, bits),
        }
    }

    #[inline(never)]
    fn sort_by_buckets(&mut self, keys: &mut [u64], bits: u32) {
        let buckets = (2 * keys.len()).next_power_of_two().min(MAX_BUCKETS);
        let shift = bits.saturating_sub(buckets.trailing_zeros());
        if self.count(keys, buckets, shift) > MAX_PER_BUCKET {
            return keys.sort_unstable();
        }
        self.unsorted.clear();
        self.unsorted.extend_from_slice(keys);
        for &key in &self.unsorted {
            let offset = &mut self.offsets[((key >> shift) as usize).min(buckets - 1)];
            keys[*offset as usize] = key;
            *offset += 1;
        }
        // Now only keys within a bucket can be out of order.
        insertion_sort(keys);
    }

    /// Computes where each bucket begins, and returns the number of keys in the fullest one.
    fn count(&mut self, keys: &[u64], buckets: usize, shift: u32) -> u32 {
        self.offsets.clear();
        self.offsets.resize(buckets, 0);
        for &key in keys {
            self.offsets[((key >> shift) as usize).min(buckets - 1)] += 1;
        }
        let (mut sum, mut most) = (0, 0);
        for offset in &mut self.offsets {
            let count = std::mem::replace(offset, sum);
            sum += count;
            most = most.max(count);
        }
        most
    }
}

/// Inserts one key after the other, with the same steps for any order: where a key belongs is hard to predict.
#[inline]
fn sort_few(keys: &mut [u64]) {
    for i in 1..keys.len() {
        let (sorted, rest) = keys.split_at_mut(i);
        let mut greatest = rest[0];
        for key in sorted {
            (*key, greatest) = ((*key).min(greatest), (*key).max(greatest));
        }
        rest[0] = greatest;
    }
}

fn insertion_sort(keys: &mut [u64]) {
    for i in 1..keys.len() {
        let key = keys[i];
        let mut hole = i;
        while hole > 0 && keys[hole - 1] > key {
            keys[hole] = keys[hole - 1];
            hole -= 1;
        }
        keys[hole] = key;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sorts_like_the_standard_library(
            bits in 1u32..=64,
            draws in prop::collection::vec(any::<u64>(), 0..300),
            crowded: bool,
        ) {
            let mut sorter = Sorter::default();
            for part in [&draws[..], &draws[..draws.len() / 3]] {
                let narrow = |draw: &u64| if crowded { draw % 5 } else { draw >> (64 - bits) };
                let mut keys: Vec<u64> = part.iter().map(narrow).collect();
                let mut expected = keys.clone();
                expected.sort_unstable();
                sorter.sort(&mut keys, bits);
                prop_assert_eq!(keys, expected);
            }
        }
    }
}
