//! A map from the numbers in a file to indices in a list.

use std::collections::BTreeMap;

/// Maps numbers to indices. Most files number their items consecutively in the order of the list. A run of
/// such numbers is stored as its first number and its length, so that it takes no more memory than one
/// number.
#[derive(Debug, Default)]
pub(super) struct Numbering {
    /// Sorted by number.
    runs: Vec<Run>,
    /// Numbers that were inserted after a larger number.
    scattered: BTreeMap<u32, u32>,
}

#[derive(Debug)]
struct Run {
    number: u32,
    place: u32,
    len: u32,
}

impl Numbering {
    /// The index of `number`.
    pub(super) fn get(&self, number: u32) -> Option<u32> {
        let after = self.runs.partition_point(|run| run.number <= number);
        let run = after.checked_sub(1).map(|i| &self.runs[i]);
        match run.map(|run| (run, number - run.number)) {
            Some((run, ahead)) if ahead < run.len => Some(run.place + ahead),
            _ => self.scattered.get(&number).copied(),
        }
    }

    /// Sets the index of `number`, which must not have one yet.
    pub(super) fn insert(&mut self, number: u32, place: u32) {
        match self.runs.last_mut().map(|run| (number.checked_sub(run.number), run)) {
            Some((None, _)) => drop(self.scattered.insert(number, place)),
            Some((Some(ahead), run)) if ahead < run.len => drop(self.scattered.insert(number, place)),
            Some((Some(ahead), run)) if ahead == run.len && place.checked_sub(run.place) == Some(ahead) => {
                run.len += 1;
            }
            _ => self.runs.push(Run { number, place, len: 1 }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn behaves_like_a_map(steps in prop::collection::vec((-3i64..12, 0u32..3), 0..200)) {
            let mut model = BTreeMap::new();
            let mut numbering = Numbering::default();
            let (mut number, mut place) = (20i64, 0);
            for (step, skipped) in steps {
                // Mostly consecutive numbers, from the last one on or from elsewhere.
                number = (number + if step > 3 { 1 } else { step }).max(0);
                place += if step > 3 { 1 } else { skipped };
                let key = number as u32;
                model.entry(key).or_insert_with(|| {
                    numbering.insert(key, place);
                    place
                });
                for key in key.saturating_sub(9)..key + 9 {
                    prop_assert_eq!(numbering.get(key), model.get(&key).copied());
                }
            }
        }
    }

    #[test]
    fn consecutive_numbers_take_one_entry() {
        let mut numbering = Numbering::default();
        (0..1000).for_each(|i| numbering.insert(i + 7, i));
        assert_eq!((numbering.runs.len(), numbering.scattered.len()), (1, 0));
        assert_eq!([6, 7, 1006, 1007].map(|n| numbering.get(n)), [None, Some(0), Some(999), None]);
        numbering.insert(u32::MAX, 1000);
        assert_eq!(numbering.get(u32::MAX), Some(1000));
    }
}
