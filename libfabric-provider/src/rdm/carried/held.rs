//! Requests of others that wait for memory for their answers, or for room in the application's queue.
//!
//! All together have a number of bytes. Those for a read or for a part of a message carry none, so thousands of askers may have as
//! many there as they may have without an answer. What is carried beside writes and atomic operations fills it sooner.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use weft::Source;

use super::WINDOW;
use super::wire::Request;

/// Bytes of all requests together.
pub(in super::super) const MOST: usize = 16 << 20;
/// Bytes that a request counts for beside those that it carries, for itself and its place.
pub(in super::super) const OWN: usize = 512;

/// A request that waits.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) request: Request,
    pub(super) bytes: Vec<u8>,
}

impl Held {
    fn weight(&self) -> usize {
        OWN + self.bytes.len()
    }
}

/// The requests of one asker, in the order in which they came.
#[derive(Debug)]
struct Line {
    requests: VecDeque<Held>,
    /// The bytes of all but the first: what it may lose to others.
    spare: usize,
}

impl Line {
    /// With room for one: most askers that wait here have no more where there are many.
    fn new() -> Line {
        Line { requests: VecDeque::with_capacity(1), spare: 0 }
    }

    fn weight(&self) -> usize {
        self.requests.front().map_or(0, Held::weight) + self.spare
    }
}

/// The requests that wait.
#[derive(Debug, Default)]
pub(super) struct AllHeld {
    lines: BTreeMap<Source, Line>,
    /// Each asker that has a line, in turn.
    turns: VecDeque<Source>,
    /// The askers who have more than one, by the bytes of all but the first.
    richest: BTreeSet<(usize, Source)>,
    /// Bytes of all.
    weight: usize,
    dropped: u64,
}

impl AllHeld {
    pub(super) fn has(&self, asker: Source, number: u32) -> bool {
        self.lines
            .get(&asker)
            .is_some_and(|line| line.requests.iter().any(|held| held.request.number == number))
    }

    /// Requests that were dropped.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.lines.values().map(|line| line.requests.len()).sum()
    }

    /// Keeps a request, unless its asker has as many as it may. If all together have as many bytes as they may, those who have most
    /// lose their last ones for it, but not their first; or it is dropped if its asker has as many.
    pub(super) fn keep(&mut self, asker: Source, held: Held) {
        let (own, count) = self.lines.get(&asker).map_or((0, 0), |line| (line.spare, line.requests.len()));
        let wanted = if count == 0 { 0 } else { own + held.weight() };
        let mut has_room = count < WINDOW;
        while has_room && self.weight + held.weight() > MOST {
            match self.richest.last() {
                Some(&(spare, other)) if spare > wanted => self.drop_last(other),
                _ => has_room = false,
            }
        }
        if !has_room {
            self.dropped += 1;
            return;
        }
        if count == 0 {
            self.turns.push_back(asker);
        }
        self.change(asker, |line| {
            line.spare += if count == 0 { 0 } else { held.weight() };
            line.requests.push_back(held);
        });
    }

    fn drop_last(&mut self, asker: Source) {
        self.change(asker, |line| {
            let last = line.requests.pop_back();
            line.spare -= last.map_or(0, |last| last.weight());
        });
        self.dropped += 1;
    }

    /// Changes the line of an asker, and what is known of it.
    fn change(&mut self, asker: Source, change: impl FnOnce(&mut Line)) {
        let line = self.lines.entry(asker).or_insert_with(Line::new);
        self.richest.remove(&(line.spare, asker));
        self.weight -= line.weight();
        change(line);
        self.weight += line.weight();
        if line.spare > 0 {
            self.richest.insert((line.spare, asker));
        }
    }

    /// Takes the requests of the asker whose turn it is.
    pub(super) fn take_next(&mut self) -> Option<(Source, VecDeque<Held>)> {
        let asker = self.turns.pop_front()?;
        let line = self.lines.remove(&asker)?;
        self.richest.remove(&(line.spare, asker));
        self.weight -= line.weight();
        Some((asker, line.requests))
    }

    /// Puts requests back that were taken. Others of their asker have not come meanwhile.
    pub(super) fn put_back(&mut self, asker: Source, requests: VecDeque<Held>) {
        if requests.is_empty() {
            return;
        }
        self.turns.push_back(asker);
        self.change(asker, |line| {
            line.spare = requests.iter().skip(1).map(Held::weight).sum();
            line.requests = requests;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asker(number: usize) -> Source {
        Source { peer: weft::Addr(number as u32 >> 12), process: number as u16 & 0xfff }
    }

    fn held(number: u32, len: usize) -> Held {
        Held { request: Request { number, ..Request::QUESTION }, bytes: vec![0; len] }
    }

    fn count(all: &AllHeld, asker: Source) -> usize {
        all.lines.get(&asker).map_or(0, |line| line.requests.len())
    }

    /// What is counted is what is there.
    fn check(all: &AllHeld) {
        let weight = |line: &Line| line.requests.iter().map(Held::weight).sum::<usize>();
        assert_eq!(all.weight, all.lines.values().map(weight).sum::<usize>());
        assert!(all.weight <= MOST);
        let mut turns: Vec<_> = all.turns.iter().copied().collect();
        turns.sort();
        assert_eq!(turns, all.lines.keys().copied().collect::<Vec<_>>());
        let rich = all.lines.iter().filter(|(_, line)| line.requests.len() > 1);
        let rich: BTreeSet<_> = rich.map(|(asker, line)| (line.spare, *asker)).collect();
        assert_eq!(all.richest, rich);
    }

    #[test]
    fn thousands_of_askers_may_have_as_many_requests_that_carry_nothing_as_they_ask_for() {
        let mut all = AllHeld::default();
        let askers = MOST / OWN / WINDOW;
        assert!(askers >= 4_096);
        for n in 0..askers * WINDOW {
            all.keep(asker(n % askers), held(n as u32, 0));
        }
        assert_eq!((all.dropped(), all.weight), (0, MOST));
        check(&all);
        // Who asks for more has nothing of it, and others have theirs.
        (0..100).for_each(|n| all.keep(asker(7), held(n, 0)));
        assert_eq!((all.dropped(), count(&all, asker(7))), (100, WINDOW));
        all.keep(asker(askers + 1), held(5, 0));
        assert!(all.has(asker(askers + 1), 5));
        assert_eq!(all.dropped(), 101);
        check(&all);
    }

    #[test]
    fn askers_who_have_most_make_room_for_others_when_all_have_as_much_as_they_may() {
        const CARRIED: usize = 32 << 10;
        let mut all = AllHeld::default();
        let many = MOST / (OWN + CARRIED) / WINDOW;
        for asked_by in 0..many + 8 {
            (0..2 * WINDOW).for_each(|n| all.keep(asker(asked_by), held(n as u32, CARRIED)));
        }
        check(&all);
        let counts: Vec<_> = (0..many + 8).map(|n| count(&all, asker(n))).collect();
        assert!(counts.iter().all(|count| (WINDOW - 2..=WINDOW).contains(count)), "{counts:?}");
        // The first of each stays.
        assert!((0..many + 8).all(|n| all.has(asker(n), 0)));
        let dropped = all.dropped();
        all.keep(asker(999), held(7, CARRIED));
        assert!(all.has(asker(999), 7) && all.dropped() == dropped + 1);
        check(&all);
    }

    #[test]
    fn askers_have_turns_and_what_cannot_be_served_stays() {
        let mut all = AllHeld::default();
        for n in 0..6 {
            all.keep(asker(n % 3), held(n as u32, n));
        }
        let (first, mut requests) = all.take_next().unwrap();
        assert_eq!((first, requests.len()), (asker(0), 2));
        requests.pop_front();
        all.put_back(first, requests);
        check(&all);
        let order = [asker(1), asker(2), asker(0)];
        for expected in order {
            let (next, requests) = all.take_next().unwrap();
            assert_eq!((next, requests.len()), (expected, if next == asker(0) { 1 } else { 2 }));
            all.put_back(next, VecDeque::new());
            check(&all);
        }
        assert!(all.take_next().is_none());
    }
}
