//! The slots of posted receives by their identifiers, oldest first. Receives leave from anywhere. Their entries stay, unless it is
//! the first of those not looked at; while most are stale, a few are looked at with each receive that leaves: no single one
//! has to look at all the others.

use core::cmp::Ordering;
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
        search(if is_seen { &self.seen } else { &self.unseen }, id)
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

/// The slot of receive `id` according to `entries`, which are in order. All processes draw identifiers from one counter. If a process
/// posts a constant part of all receives, its identifiers grow evenly, and the first look finds the entry, or one near it.
/// Otherwise steps double until they pass the entry, and then the rest is halved: 2 log₂ n + 2 looks at most.
fn search(entries: &VecDeque<Entry>, id: ReceiveId) -> Option<u32> {
    let (oldest, newest) = (entries.front()?.0.0, entries.back()?.0.0);
    let (behind, all) = (id.0.checked_sub(oldest)?, newest - oldest);
    let last = entries.len() - 1;
    let mut at = last.min((behind as f64 / all.max(1) as f64 * last as f64) as usize);
    // It is one of these, if any.
    let mut among = 0..entries.len();
    let mut step = 1;
    loop {
        #[cfg(test)]
        crate::steps::count(1);
        let (there, slot) = entries[at];
        match there.cmp(&id) {
            Ordering::Equal => return Some(slot),
            Ordering::Less => among.start = at + 1,
            Ordering::Greater => among.end = at,
        }
        if among.is_empty() {
            return None;
        }
        let middle = among.start.midpoint(among.end);
        at = if there < id { middle.min(at + step) } else { middle.max(at.saturating_sub(step)) };
        step *= 2;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::steps;

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

    /// Each of 31 processes posts as many.
    #[test]
    fn a_receive_of_many_whose_identifiers_grow_evenly_is_found_at_once() {
        let mut by_age = ByAge::default();
        let id = |n: u32| ReceiveId(7 << 52 | u64::from(n * 31 + n * n % 17));
        (0..3_000).for_each(|n| by_age.add((id(n), n), false));
        let steps = steps::of(|| (0..3_000).for_each(|n| assert_eq!(by_age.find(id(n)), Some(n))));
        assert!(steps < 2 * 3_000, "{steps} steps");
        assert!(
            by_age.find(ReceiveId(id(0).0 - 1)).is_none()
                && by_age.find(ReceiveId(id(2_999).0 + 1)).is_none()
        );
    }

    #[test]
    fn finding_a_receive_looks_at_twice_as_many_as_a_binary_search_at_most() {
        let mut by_age = ByAge::default();
        // Other processes have posted 2⁴⁰ receives before the last one.
        let id = |n: u32| ReceiveId(if n < 2_999 { n.into() } else { 1 << 40 });
        (0..3_000).for_each(|n| by_age.add((id(n), n), false));
        for n in 0..3_000 {
            let steps = steps::of(|| assert_eq!(by_age.find(id(n)), Some(n)));
            assert!(steps <= 2 + 2 * 11, "{steps} steps");
        }
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
                        let mut found = None;
                        let steps = steps::of(|| found = by_age.find(id));
                        let most = 2 + 2 * (by_age.seen.len() + by_age.unseen.len()).ilog2();
                        prop_assert!(steps <= most.into(), "{steps} steps");
                        prop_assert_eq!(found, there.remove(&id));
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
            let mut found = None;
            for id in gone {
                let steps = steps::of(|| found = by_age.find(id));
                prop_assert!(found.is_none_or(|slot| slot == id.0 as u32));
                let all = by_age.seen.len() + by_age.unseen.len();
                prop_assert!(steps <= (2 + 2 * all.max(1).ilog2()).into(), "{steps} steps");
            }
        }
    }
}
