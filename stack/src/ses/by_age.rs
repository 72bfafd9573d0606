//! The slots of posted receives by their identifiers, oldest first. Receives leave from anywhere. Their entries stay, unless it is
//! the first of those not looked at; while most are stale, a few are looked at with each receive that leaves: no single one
//! has to look at all the others.

use std::collections::VecDeque;

use super::ReceiveId;
use crate::heap;

/// Entries that are looked at when a receive leaves. With so many a round is over before half of the receives have left.
const LOOKS: usize = 4;

/// Stale entries that are not worth looking for.
const FEW: usize = 8;

type Entry = (ReceiveId, u32);

/// Entries in the order of their identifiers. Those of receives that are gone may still be there.
#[derive(Debug, Default)]
pub(super) struct ByAge {
    /// Entries that the present round has looked at, all of them older than the others. Empty between rounds.
    seen: VecDeque<Entry>,
    unseen: VecDeque<Entry>,
}

impl ByAge {
    /// Adds the oldest or the newest of all that have been added since none was left.
    #[inline]
    pub(super) fn add(&mut self, entry: Entry, oldest: bool) {
        match oldest {
            false => self.unseen.push_back(entry),
            true if self.seen.is_empty() => self.unseen.push_front(entry),
            true => self.seen.push_front(entry),
        }
    }

    /// The slot that receive `id` had when it was added.
    pub(super) fn find(&self, id: ReceiveId) -> Option<u32> {
        let is_seen = self.seen.back().is_some_and(|(newest, _)| *newest >= id);
        let entries = if is_seen { &self.seen } else { &self.unseen };
        let at = entries.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        Some(entries[at].1)
    }

    /// The receive of entry `gone` has left, so that `count` are there. `is_there` tells whether an entry is that of one of
    /// them.
    #[inline(always)]
    pub(super) fn one_left(&mut self, gone: Entry, count: usize, is_there: impl Fn(Entry) -> bool) {
        if count == 0 {
            self.seen.clear();
            self.unseen.clear();
            return;
        }
        if self.unseen.front() == Some(&gone) {
            self.unseen.pop_front();
        }
        for _ in 0..LOOKS {
            // A round ends with the last of the entries that it has to look at.
            if !self.is_round_due(count) {
                return;
            }
            #[cfg(test)]
            crate::steps::count(1);
            match self.unseen.pop_front() {
                Some(entry) if is_there(entry) => self.seen.push_back(entry),
                Some(_) => {}
                None => std::mem::swap(&mut self.seen, &mut self.unseen),
            }
        }
    }

    /// Whether a round is under way that has to go on, or most entries are stale.
    #[inline]
    fn is_round_due(&self, count: usize) -> bool {
        !self.seen.is_empty() || self.unseen.len() > 2 * count + FEW
    }

    pub(super) fn heap_bytes(&self) -> u64 {
        heap::of_deque(&self.seen) + heap::of_deque(&self.unseen)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Which receive leaves, or how many come.
    #[derive(Clone, Debug)]
    enum Step {
        Come { count: u64, oldest: bool },
        Leave(Which),
    }

    #[derive(Clone, Debug)]
    enum Which {
        Any(prop::sample::Index),
        Oldest,
        SecondOldest,
        Newest,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let which = prop_oneof![
            any::<prop::sample::Index>().prop_map(Which::Any),
            Just(Which::Oldest),
            Just(Which::SecondOldest),
            Just(Which::Newest),
        ];
        // So many of a kind that rounds begin, and end.
        let leave = (which, 1usize..60).prop_map(|(which, times)| vec![Step::Leave(which); times]);
        let come = (1u64..60, prop::bool::weighted(0.1))
            .prop_map(|(count, oldest)| vec![Step::Come { count, oldest }]);
        prop::collection::vec(prop_oneof![leave, come], 0..60).prop_map(|steps| steps.concat())
    }

    proptest! {
        #[test]
        fn entries_are_found_and_stale_ones_go_a_few_at_a_time(steps in steps()) {
            let (mut by_age, mut there) = (ByAge::default(), BTreeMap::<ReceiveId, u32>::new());
            let (mut oldest, mut newest) = (1 << 32, 1 << 32);
            let mut gone = Vec::new();
            for step in steps {
                match step {
                    Step::Come { count, oldest: is_oldest } => for _ in 0..count {
                        let id = if is_oldest { oldest -= 1; oldest } else { newest += 1; newest - 1 };
                        let entry = (ReceiveId(id), id as u32);
                        there.insert(entry.0, entry.1);
                        by_age.add(entry, is_oldest);
                    },
                    Step::Leave(_) if there.is_empty() => continue,
                    Step::Leave(which) => {
                        let at = match which {
                            Which::Any(index) => index.index(there.len()),
                            Which::Oldest => 0,
                            Which::SecondOldest => 1.min(there.len() - 1),
                            Which::Newest => there.len() - 1,
                        };
                        let id = *there.keys().nth(at).expect("it is one of them");
                        prop_assert_eq!(by_age.find(id), there.remove(&id));
                        gone.push(id);
                        let looks = Cell::new(0);
                        by_age.one_left((id, id.0 as u32), there.len(), |(id, slot)| {
                            looks.set(looks.get() + 1);
                            there.get(&id) == Some(&slot)
                        });
                        prop_assert!(looks.get() <= LOOKS);
                    }
                }
                let entries = by_age.seen.len() + by_age.unseen.len();
                prop_assert!(entries <= 4 * there.len() + 2 * FEW, "{} of {entries}", there.len());
            }
            for (id, slot) in &there {
                prop_assert_eq!(by_age.find(*id), Some(*slot));
            }
            // A stale entry names the slot that the receive had, or none.
            for id in gone {
                prop_assert!(by_age.find(id).is_none_or(|slot| slot == id.0 as u32));
            }
        }
    }
}
