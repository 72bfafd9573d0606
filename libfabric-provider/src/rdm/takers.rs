//! Receives and looks of the application that wait in the provider, in the order of the calls. They may be as many as receives are, so
//! what calls and turns ask of them is answered without going through all: whether one of them could take the same message as another,
//! which is the first that takes a message, and whether there is a look or one that was cancelled.

#[cfg(test)]
use std::cell::Cell;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use weft::{Found, Matching, Source};

use super::backlog::Space;
use super::kinds::{Kind, Tags};
use super::looks::Filter;

/// A receive, or a look of the application, that waits for its message or for its turn.
#[derive(Debug)]
pub(super) struct Taker {
    pub(super) number: usize,
    pub(super) filter: Filter,
    pub(super) kind: TakerKind,
    /// It ends unless a message is found for it just now.
    cancelled: bool,
    /// Its place among those that wait: the first has the lowest.
    place: u64,
}

#[derive(Debug)]
pub(super) enum TakerKind {
    Receive(Space),
    /// A look of the application, which ends if it finds nothing, and what it does with its message.
    Look(Found),
}

impl Taker {
    pub(super) fn new(number: usize, filter: Filter, kind: TakerKind) -> Taker {
        Taker { number, filter, kind, cancelled: false, place: 0 }
    }

    pub(super) fn is_look(&self) -> bool {
        matches!(self.kind, TakerKind::Look(_))
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled
    }
}

/// The sender and the tag of a filter, without the bits that it ignores. Filters of one kind with the same key are equal.
type Key = (Option<Source>, Option<u64>);

/// All receives and looks that wait.
#[derive(Debug, Default)]
pub(super) struct Takers {
    /// By their places.
    all: BTreeMap<u64, Taker>,
    /// The place of the next one.
    next: u64,
    /// The places by the numbers of the operations.
    places: HashMap<usize, u64>,
    /// The places of those with each filter, in order, by its kind and by its sender and its tag.
    alike: HashMap<Kind, HashMap<Key, VecDeque<u64>>>,
    /// The number of takers by ignored bits, then by tag; senders do not count.
    tags: HashMap<Option<u64>, HashMap<Option<u64>, usize>>,
    looks: BTreeSet<u64>,
    cancelled: BTreeSet<u64>,
    /// How many filters were looked up or compared.
    #[cfg(test)]
    pub(super) steps: Cell<usize>,
}

impl Takers {
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The first one first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Taker> {
        self.all.values()
    }

    pub(super) fn first(&self) -> Option<&Taker> {
        self.all.values().next()
    }

    pub(super) fn get(&self, number: usize) -> Option<&Taker> {
        self.all.get(self.places.get(&number)?)
    }

    /// The first one whose place is this or a later one: its place, its number, and whether none before it has its filter.
    pub(super) fn from(&self, place: u64) -> Option<(u64, usize, bool)> {
        let (place, taker) = self.all.range(place..).next()?;
        self.step();
        let Filter { from, .. } = taker.filter;
        let alike = self.alike.get(&taker.filter.kind()).and_then(|all| all.get(&(from, taker.filter.tag())));
        Some((*place, taker.number, alike.and_then(VecDeque::front) == Some(place)))
    }

    pub(super) fn push(&mut self, mut taker: Taker) {
        taker.place = self.next;
        self.next += 1;
        self.insert(taker);
    }

    /// Puts one back that was removed, where it was.
    pub(super) fn put_back(&mut self, taker: Taker) {
        self.insert(taker);
    }

    fn insert(&mut self, taker: Taker) {
        let Taker { number, filter, cancelled, place, .. } = taker;
        let (kind, tag) = (filter.kind(), filter.tag());
        let alike = self.alike.entry(kind).or_default().entry((filter.from, tag)).or_default();
        alike.insert(alike.partition_point(|other| *other < place), place);
        *self.tags.entry(kind.ignore).or_default().entry(tag).or_default() += 1;
        self.places.insert(number, place);
        if taker.is_look() {
            self.looks.insert(place);
        }
        if cancelled {
            self.cancelled.insert(place);
        }
        self.all.insert(place, taker);
    }

    pub(super) fn remove(&mut self, number: usize) -> Option<Taker> {
        let place = self.places.remove(&number)?;
        let taker = self.all.remove(&place)?;
        self.looks.remove(&place);
        self.cancelled.remove(&place);
        self.forget(taker.filter, place);
        Some(taker)
    }

    /// Removes `place` from the index of this filter.
    fn forget(&mut self, filter: Filter, place: u64) {
        let (kind, tag) = (filter.kind(), filter.tag());
        if let Entry::Occupied(mut of_kind) = self.alike.entry(kind)
            && let Entry::Occupied(mut alike) = of_kind.get_mut().entry((filter.from, tag))
        {
            if let Ok(at) = alike.get().binary_search(&place) {
                alike.get_mut().remove(at);
            }
            if alike.get().is_empty() {
                alike.remove();
            }
            if of_kind.get().is_empty() {
                of_kind.remove();
            }
        }
        if let Entry::Occupied(mut tags) = self.tags.entry(kind.ignore)
            && let Entry::Occupied(mut count) = tags.get_mut().entry(tag)
        {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
            if tags.get().is_empty() {
                tags.remove();
            }
        }
    }

    /// The receive with this number is to end. Returns whether it waits.
    pub(super) fn cancel(&mut self, number: usize) -> bool {
        let Some(place) = self.places.get(&number) else { return false };
        let Some(receive) = self.all.get_mut(place).filter(|taker| !taker.is_look()) else { return false };
        receive.cancelled = true;
        self.cancelled.insert(*place);
        true
    }

    /// Whether there can be a message that one of them and `filter` take. That takes as many steps as they are of kinds, but for a filter
    /// that ignores bits of tags which those of a kind do not ignore: it is compared with the senders and the tags of these.
    pub(super) fn meet(&self, filter: Filter) -> bool {
        let Some(from) = filter.from else {
            return self.tags.iter().any(|(ignore, tags)| {
                self.step();
                match filter.tags_of(*ignore) {
                    Tags::None => false,
                    Tags::One(tag) => tags.contains_key(&tag),
                    Tags::Several => tags.keys().any(|tag| {
                        self.step();
                        self.are_met(filter, *ignore, *tag)
                    }),
                }
            });
        };
        self.alike.iter().any(|(kind, alike)| {
            self.step();
            let from = kind.from_one.then_some(from);
            match filter.tags_of(kind.ignore) {
                Tags::None => false,
                Tags::One(tag) => alike.contains_key(&(from, tag)),
                Tags::Several => alike.keys().any(|(other, tag)| {
                    self.step();
                    *other == from && self.are_met(filter, kind.ignore, *tag)
                }),
            }
        })
    }

    /// Whether `filter` takes messages with this tag, of which these bits are ignored.
    fn are_met(&self, filter: Filter, ignore: Option<u64>, tag: Option<u64>) -> bool {
        let matching = match (tag, ignore) {
            (Some(tag), Some(ignore)) => Matching::Tagged { tag, ignore },
            _ => Matching::Untagged,
        };
        filter.meets(Filter { from: None, matching })
    }

    /// The number of the first one that takes what `filter` takes, which is messages of one sender and with one tag or none.
    pub(super) fn owner_of(&self, filter: Filter) -> Option<usize> {
        let firsts = self.alike.iter().filter_map(|(kind, alike)| {
            self.step();
            let Tags::One(tag) = filter.tags_of(kind.ignore) else { return None };
            alike.get(&(filter.from.filter(|_| kind.from_one), tag))?.front()
        });
        firsts.min().and_then(|place| self.all.get(place)).map(|taker| taker.number)
    }

    pub(super) fn has_looks(&self) -> bool {
        !self.looks.is_empty()
    }

    /// The number of the first look.
    pub(super) fn first_look(&self) -> Option<usize> {
        self.looks.first().and_then(|place| self.all.get(place)).map(|taker| taker.number)
    }

    /// The number of the first one that was cancelled.
    pub(super) fn first_cancelled(&self) -> Option<usize> {
        self.cancelled.first().and_then(|place| self.all.get(place)).map(|taker| taker.number)
    }

    fn step(&self) {
        #[cfg(test)]
        self.steps.set(self.steps.get() + 1);
    }
}

#[cfg(test)]
mod tests {
    use weft::Addr;

    use super::super::RECEIVES;
    use super::*;

    fn receive(number: usize, filter: Filter) -> Taker {
        Taker::new(number, filter, TakerKind::Receive(Space::Several(9)))
    }

    #[test]
    fn looks_and_receives_that_were_cancelled_are_found_until_they_are_removed() {
        let filter = Filter { from: None, matching: Matching::Untagged };
        let look = |number| Taker::new(number, filter, TakerKind::Look(Found::Stays));
        let mut all = Takers::default();
        [receive(0, filter), receive(1, filter), look(2), receive(3, filter), look(4)]
            .into_iter()
            .for_each(|taker| all.push(taker));
        assert!(all.has_looks() && all.first_look() == Some(2) && all.first_cancelled().is_none());
        // Looks are not cancelled, and nothing is twice.
        assert!(all.cancel(3) && all.cancel(3) && !all.cancel(2) && !all.cancel(9));
        assert_eq!(all.first_cancelled(), Some(3));
        assert_eq!(all.remove(2).map(|taker| taker.number), Some(2));
        assert_eq!((all.first_look(), all.first_cancelled()), (Some(4), Some(3)));
        let cancelled = all.remove(3).unwrap();
        assert!(cancelled.is_cancelled() && all.first_cancelled().is_none());
        all.put_back(cancelled);
        assert_eq!((all.first_look(), all.first_cancelled()), (Some(4), Some(3)));
        assert!(all.iter().map(|taker| taker.number).eq([0, 1, 3, 4]));
        assert_eq!(all.remove(4).map(|taker| taker.number), Some(4));
        assert!(!all.has_looks() && all.first_look().is_none() && all.remove(4).is_none());
        [0, 1, 3].into_iter().for_each(|number| assert!(all.remove(number).is_some()));
        assert!(all.is_empty() && all.places.is_empty() && all.cancelled.is_empty());
        assert!(all.alike.is_empty() && all.tags.is_empty());
    }

    /// A small generator of numbers.
    fn draw(state: &mut u64, below: u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) % below
    }

    fn filter(draws: &mut u64) -> Filter {
        let from = [None, Some(1), Some(2)][draw(draws, 3) as usize];
        let from = from.map(|process| Source { peer: Addr(3), process });
        let matching = match draw(draws, 5) {
            0 => Matching::Untagged,
            one => Matching::Tagged { tag: draw(draws, 8), ignore: [0, 1, 6, u64::MAX][one as usize - 1] },
        };
        Filter { from, matching }
    }

    /// The answers are those of a list that is compared from its beginning.
    #[test]
    fn those_that_are_met_and_first_are_the_same_as_in_a_list() {
        let (mut all, mut list, mut draws) = (Takers::default(), Vec::<(usize, Filter)>::new(), 7);
        let (mut met, mut owned, mut repeated) = ([0; 2], [0; 2], [0; 2]);
        for number in 0..20_000 {
            if draw(&mut draws, 20) < list.len() as u64 {
                let (number, filter) = list.remove(draw(&mut draws, list.len() as u64) as usize);
                let taker = all.remove(number).unwrap();
                assert_eq!((taker.number, taker.filter), (number, filter));
                if draw(&mut draws, 4) == 0 {
                    let at = list.partition_point(|(other, _)| *other < number);
                    list.insert(at, (number, filter));
                    all.put_back(taker);
                }
            } else {
                let filter = filter(&mut draws);
                list.push((number, filter));
                all.push(receive(number, filter));
            }
            assert!(all.iter().map(|taker| taker.number).eq(list.iter().map(|(number, _)| *number)));
            let new = filter(&mut draws);
            let meets = list.iter().any(|(_, other)| other.meets(new));
            assert_eq!(all.meet(new), meets, "{new:?} and {list:?}");
            met[usize::from(meets)] += 1;
            let from = Some(Source { peer: Addr(3), process: 1 + draw(&mut draws, 3) as u16 });
            let matching = match draw(&mut draws, 3) {
                0 => Matching::Untagged,
                _ => Matching::Tagged { tag: draw(&mut draws, 8), ignore: 0 },
            };
            let message = Filter { from, matching };
            let owner = list.iter().find(|(_, other)| other.meets(message)).map(|(number, _)| *number);
            assert_eq!(all.owner_of(message), owner, "{message:?} and {list:?}");
            owned[usize::from(owner.is_some())] += 1;
            let (mut place, mut seen) = (0, Vec::new());
            for (number, filter) in &list {
                let (at, found, is_first) = all.from(place).unwrap();
                let own = (filter.kind(), filter.from, filter.tag());
                assert_eq!((found, is_first), (*number, !seen.contains(&own)));
                repeated[usize::from(is_first)] += 1;
                seen.push(own);
                place = at + 1;
            }
            assert!(all.from(place).is_none());
        }
        for both in [met, owned, repeated] {
            assert!(both.iter().all(|count| *count > 100), "{both:?}");
        }
    }

    /// So many receives with different tags are posted, looked for once, and handed over, in a few steps each.
    #[test]
    fn as_many_receives_as_there_may_be_take_a_few_steps_each() {
        let mut all = Takers::default();
        for number in 0..RECEIVES {
            let from = (number % 2 == 1).then_some(Source { peer: Addr(3), process: 4 });
            // The second half ignores fewer bits than the first: both are looked up by their tags.
            let ignore = if number < RECEIVES / 2 { u64::MAX << 32 } else { 0 };
            let tagged = Filter { from, matching: Matching::Tagged { tag: number as u64, ignore } };
            assert!(!all.meet(tagged));
            all.push(receive(number, tagged));
        }
        let (mut place, mut count) = (0, 0);
        while let Some((at, number, is_first)) = all.from(place) {
            assert!(is_first && number == count);
            (place, count) = (at + 1, count + 1);
        }
        let message = |tag: usize| Filter {
            from: Some(Source { peer: Addr(3), process: 4 }),
            matching: Matching::Tagged { tag: tag as u64, ignore: 0 },
        };
        for number in (0..RECEIVES).rev() {
            assert_eq!(all.owner_of(message(number)), Some(number));
            assert!(all.remove(number).is_some());
        }
        assert_eq!((count, all.is_empty()), (RECEIVES, true));
        let steps = all.steps.get();
        assert!((2 * RECEIVES..=9 * RECEIVES).contains(&steps), "{steps} steps");
    }
}
