//! PDCs that were opened while many were half-open, in order: the oldest one that still is makes room for another one.

use std::collections::VecDeque;

use crate::heap;
use crate::table::Key;

/// How many PDCs a call looks at to forget those that are half-open no more.
const LOOKED_AT: usize = 3;
/// How many of them a call takes out at most, to come to one that still is.
const TAKEN: usize = 64;
/// So many are kept beside those that are half-open, whether they are or not.
const SOME: usize = 64;

/// PDCs, of which some are half-open no more: they were heard of, or are gone. None of those is ever half-open again.
#[derive(Default)]
pub(super) struct Suspects {
    keys: VecDeque<Key>,
    /// Those before this place were half-open when they were looked at last.
    kept: u32,
    /// Those from there to before this place are not.
    looked: u32,
}

impl Suspects {
    /// Appends PDC `key`, which makes so many that are `half_open`. If there are more than twice as many here, looks at a few, so that
    /// no call takes longer than others: until it has looked at all, there can be up to three times as many, and some.
    pub(super) fn push(&mut self, key: Key, half_open: usize, is_half_open: impl Fn(Key) -> bool) {
        if self.looked > 0 || self.keys.len() > SOME + 2 * half_open {
            self.forget_some(is_half_open);
        }
        self.keys.push_back(key);
    }

    /// Looks at the next few. Those that are half-open move to the front, in their order, and the others go together.
    fn forget_some(&mut self, is_half_open: impl Fn(Key) -> bool) {
        for _ in 0..LOOKED_AT {
            let Some(&key) = self.keys.get(self.looked as usize) else {
                self.keys.truncate(self.kept as usize);
                (self.kept, self.looked) = (0, 0);
                return;
            };
            count_step();
            if is_half_open(key) {
                self.keys.swap(self.kept as usize, self.looked as usize);
                self.kept += 1;
            }
            self.looked += 1;
        }
    }

    /// Takes out the one that has been here for longest of those that are half-open, if it `may_go`, which has what `opened` says of
    /// a half-open one. Gives up after some that are not.
    pub(super) fn take_oldest<T>(
        &mut self,
        opened: impl Fn(Key) -> Option<T>,
        may_go: impl Fn(T) -> bool,
    ) -> Option<Key> {
        for _ in 0..TAKEN {
            let key = *self.keys.front()?;
            count_step();
            let opened = opened(key);
            let is_half_open = opened.is_some();
            if opened.is_some_and(|opened| !may_go(opened)) {
                return None;
            }
            self.keys.pop_front();
            (self.kept, self.looked) = (self.kept.saturating_sub(1), self.looked.saturating_sub(1));
            if is_half_open {
                return Some(key);
            }
        }
        None
    }

    /// Bytes of heap held.
    pub(super) fn heap_bytes(&self) -> u64 {
        heap::of_deque(&self.keys)
    }
}

/// One has been looked at.
fn count_step() {
    #[cfg(test)]
    crate::steps::count(1);
}

#[cfg(test)]
mod tests {
    use std::collections::{HashSet, VecDeque};
    use std::hash::BuildHasherDefault;

    use rustc_hash::FxHasher;

    use super::*;
    use crate::rng::Rng;
    use crate::steps;

    type Keys = HashSet<Key, BuildHasherDefault<FxHasher>>;

    fn key(index: u32) -> Key {
        Key { index, generation: 1 }
    }

    /// As many as an endpoint may have open, of which a third is half-open at the end.
    #[test]
    fn a_call_looks_at_a_few_pdcs_however_many_are_half_open_no_more() {
        let (mut suspects, mut half_open) = (Suspects::default(), Keys::default());
        for n in 0..60_000 {
            half_open.insert(key(n));
            let steps = steps::of(|| suspects.push(key(n), half_open.len(), |key| half_open.contains(&key)));
            assert!(steps <= LOOKED_AT as u64, "{steps}");
        }
        half_open.retain(|key| key.index % 3 == 0);
        for n in 60_000..150_000 {
            half_open.remove(&key((n - 60_000) * 2 / 3));
            half_open.insert(key(n));
            let steps = steps::of(|| suspects.push(key(n), half_open.len(), |key| half_open.contains(&key)));
            assert!(steps <= LOOKED_AT as u64, "{steps}");
            let (kept, there) = (suspects.keys.len(), half_open.len());
            assert!(kept < 3 * there + SOME, "{kept} for {there}");
        }
        // None is left, and all are forgotten bit by bit.
        while !suspects.keys.is_empty() {
            let steps = steps::of(|| assert_eq!(suspects.take_oldest(|_| None::<()>, |()| true), None));
            assert!(steps <= TAKEN as u64, "{steps}");
        }
    }

    /// Compared with a queue that forgets the others all the time.
    #[test]
    fn the_oldest_that_is_half_open_comes_first_whatever_was_forgotten() {
        for seed in 0..40 {
            let mut rng = Rng::new(seed, 0);
            let (mut suspects, mut model) = (Suspects::default(), VecDeque::new());
            let mut half_open = Keys::default();
            for n in 0..3_000 {
                // In some cases nearly all stay half-open, in others nearly none.
                match rng.below(2 + seed as u32 % 5) {
                    0 => {
                        let one = rng.below(model.len() as u32 + 1) as usize;
                        model.remove(one).inspect(|key| assert!(half_open.remove(key)));
                    }
                    1 if rng.below(8) == 0 => {
                        let opened = |key| half_open.contains(&key).then_some(());
                        assert_eq!(suspects.take_oldest(opened, |()| false), None);
                        let taken = (0..100).find_map(|_| suspects.take_oldest(opened, |()| true));
                        assert_eq!(taken, model.pop_front(), "seed {seed}");
                        taken.inspect(|key| assert!(half_open.remove(key)));
                    }
                    _ => {
                        model.push_back(key(n));
                        half_open.insert(key(n));
                        suspects.push(key(n), half_open.len(), |key| half_open.contains(&key));
                    }
                }
            }
        }
    }
}
