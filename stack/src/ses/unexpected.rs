//! Unexpected messages, which wait for receives. A receive gets the first to arrive of those that it accepts.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::arrivals::{Arrivals, Look, Pattern, UNTAGGED, packed};
use super::{Matching, Source};
use crate::table::{Key, Table};

/// Messages that have matched no receive. Only a receive that ignores bits of the tag looks at them one by one.
#[derive(Debug, Default)]
pub(super) struct Unexpected {
    /// Number of unexpected messages so far, and of those that are there.
    arrivals: u64,
    count: usize,
    in_order: Arrivals,
    /// The messages of each tag, and those of each tag of each sender, in the order in which they came. Linked through the messages
    /// themselves: most messages come behind others of their tag and sender, and touch no more than the last one of them.
    lines: BTreeMap<LineName, Line>,
    /// What the last search was for, one by one, and the number of the first message that it has not ruled out. Later
    /// messages have larger numbers, so that a search like it can go on from there.
    searched: Option<(Pattern, u64)>,
}

/// The tag of the messages of a line, and their sender, which stand in this order in one number: so the two lines of a message are
/// most often side by side.
type LineName = u128;

/// The slots of the first and the last message of a line.
#[derive(Clone, Copy, Debug)]
struct Line {
    first: u32,
    last: u32,
}

/// The slots of the messages before and behind a message in a line.
#[derive(Clone, Copy, Debug)]
struct Beside {
    before: u32,
    behind: u32,
}

/// The place of a message in the line of its tag, and in that of its tag and sender.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places([Beside; 2]);

/// A message that may wait.
pub(super) trait Waits {
    /// Its places, which mean nothing while it does not wait for a receive.
    fn places(&mut self) -> &mut Places;
}

/// No message is in this slot.
const NOBODY: u32 = u32::MAX;

#[inline]
fn line_of(tag: Option<u64>, from: Option<Source>) -> LineName {
    // Untagged messages have lines of their own. The line of all senders comes first: nodes of trees are searched from their beginning.
    let untagged = if tag.is_none() { UNTAGGED } else { 0 };
    let sender = from.map_or(0, |from| packed(from) + 1) | untagged;
    u128::from(tag.unwrap_or(0)) << 64 | u128::from(sender)
}

/// The lines of a message, in the order of its places.
#[inline]
fn lines_of(tag: Option<u64>, source: Source) -> [LineName; 2] {
    [line_of(tag, None), line_of(tag, Some(source))]
}

impl Default for Places {
    fn default() -> Places {
        Places([Beside { before: NOBODY, behind: NOBODY }; 2])
    }
}

impl Places {
    /// Tells the messages that `slot`, which has these places, came behind. To be called when its message is there.
    pub(super) fn link<T: Waits>(&self, messages: &mut Table<T>, slot: u32) {
        for (which, beside) in self.0.iter().enumerate() {
            if let Some(before) = places_in(messages, beside.before) {
                before.0[which].behind = slot;
            }
        }
    }
}

#[inline]
fn places_in<T: Waits>(messages: &mut Table<T>, slot: u32) -> Option<&mut Places> {
    if slot == NOBODY {
        return None;
    }
    messages.at_mut(slot).map(|(_, message)| message.places())
}

impl Unexpected {
    /// Number of messages now.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// A number for the next message, larger than all before.
    pub(super) fn next_arrival(&mut self) -> u64 {
        self.arrivals += 1;
        self.arrivals
    }

    /// Adds the message with the number `arrival`, which is larger than all before. Returns its places, which are to be
    /// [linked](Places::link).
    pub(super) fn insert(&mut self, arrival: u64, source: Source, tag: Option<u64>, key: Key) -> Places {
        self.count += 1;
        self.in_order.push(arrival, source, tag, key);
        Places(lines_of(tag, source).map(|name| {
            let before = match self.lines.entry(name) {
                Entry::Occupied(mut line) => std::mem::replace(&mut line.get_mut().last, key.index),
                Entry::Vacant(place) => {
                    place.insert(Line { first: key.index, last: key.index });
                    NOBODY
                }
            };
            Beside { before, behind: NOBODY }
        }))
    }

    /// Removes the message with these places.
    pub(super) fn remove<T: Waits>(
        &mut self,
        messages: &mut Table<T>,
        places: Places,
        arrival: u64,
        source: Source,
        tag: Option<u64>,
    ) {
        self.count = self.count.saturating_sub(1);
        self.in_order.remove(arrival);
        for (which, name) in lines_of(tag, source).into_iter().enumerate() {
            let Beside { before, behind } = places.0[which];
            if let Some(before) = places_in(messages, before) {
                before.0[which].behind = behind;
            }
            if let Some(behind) = places_in(messages, behind) {
                behind.0[which].before = before;
            }
            match (before, behind) {
                (NOBODY, NOBODY) => _ = self.lines.remove(&name),
                (NOBODY, _) => self.change_line(name, |line| line.first = behind),
                (_, NOBODY) => self.change_line(name, |line| line.last = before),
                _ => {}
            }
        }
    }

    fn change_line(&mut self, name: LineName, change: impl FnOnce(&mut Line)) {
        if let Some(line) = self.lines.get_mut(&name) {
            change(line);
        }
    }

    /// Removes an entry from each index, not all of the same message, so that none can be found from now on. When there have
    /// been as many calls as there are messages, nothing is left.
    pub(super) fn remove_any(&mut self) {
        self.count = self.count.saturating_sub(1);
        self.in_order.remove_block();
        // A message is in two lines.
        self.lines.pop_first();
        self.lines.pop_first();
    }

    /// The first of the `messages` that a receive accepts.
    #[inline]
    pub(super) fn find<T>(
        &mut self,
        messages: &Table<T>,
        from: Option<Source>,
        matching: Matching,
    ) -> Option<Key> {
        if self.count == 0 { None } else { self.find_among(messages, from, matching) }
    }

    /// As [`Unexpected::find`], where there are messages.
    #[inline(never)]
    fn find_among<T>(
        &mut self,
        messages: &Table<T>,
        from: Option<Source>,
        matching: Matching,
    ) -> Option<Key> {
        let tag = match matching {
            Matching::Untagged => None,
            Matching::Tagged { tag, ignore: 0 } => Some(tag),
            Matching::Tagged { tag, ignore } => {
                return match self.look(Pattern::new(from, tag, ignore), &mut { i64::MAX }) {
                    Look::Found(_, key) => Some(key),
                    Look::Nothing | Look::NotYet(_) => None,
                };
            }
        };
        let line = self.lines.get(&line_of(tag, from))?;
        messages.at(line.first).map(|(key, _)| key)
    }

    /// Looks for the message that [`Unexpected::find`] would find next, until that has cost `budget`, the bytes that it
    /// touches. Returns whether the search is over, so that `find` costs little.
    pub(super) fn look_ahead(&mut self, from: Option<Source>, matching: Matching, budget: &mut i64) -> bool {
        match matching {
            Matching::Untagged | Matching::Tagged { ignore: 0, .. } => true,
            Matching::Tagged { tag, ignore } => {
                !matches!(self.look(Pattern::new(from, tag, ignore), budget), Look::NotYet(_))
            }
        }
    }

    fn look(&mut self, pattern: Pattern, budget: &mut i64) -> Look {
        let may_look = *budget > 0;
        let start = self.searched.filter(|(searched, _)| *searched == pattern).map_or(0, |(_, next)| next);
        let look = self.in_order.look(&pattern, start, budget);
        let next = match look {
            Look::Found(next, _) | Look::NotYet(next) => next,
            Look::Nothing => self.arrivals + 1,
        };
        // A search that has looked at nothing does not take the place of the one before, which may have to go on.
        if may_look {
            self.searched = Some((pattern, next));
        }
        look
    }

    /// Bytes of heap allocated. Assumes that tree nodes are three quarters full, as after random insertions.
    pub(super) fn heap_bytes(&self) -> u64 {
        let entry = size_of::<LineName>() + size_of::<Line>();
        (self.lines.len() * entry) as u64 * 4 / 3 + self.in_order.heap_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Addr;
    use crate::rng::Rng;

    impl Waits for Places {
        fn places(&mut self) -> &mut Places {
            self
        }
    }

    type Model = Vec<(Key, u64, Source, Option<u64>)>;

    /// Compared with a list. Few tags and senders: lines get long, and end.
    #[test]
    fn the_first_message_of_a_line_is_found_whichever_have_left() {
        let mut rng = Rng::new(8, 0);
        for round in 0..40 {
            let mut messages: Table<Places> = Table::default();
            let (mut unexpected, mut model) = (Unexpected::default(), Model::new());
            for _ in 0..600 {
                let source = Source { peer: Addr(rng.below(3)), process: rng.below(2) as u16 };
                let tag = [None, Some(0), Some(1), Some(u64::MAX)][rng.below(4) as usize];
                // In some rounds there are always few, in others more and more.
                if rng.below(4 + round % 5) < 3 {
                    let arrival = unexpected.next_arrival();
                    let key = messages.insert_with(|key| unexpected.insert(arrival, source, tag, key));
                    let places = *messages.get(key).unwrap();
                    places.link(&mut messages, key.index);
                    model.push((key, arrival, source, tag));
                }
                for _ in 0..rng.below(3) {
                    if let Some(one) = rng.below(model.len() as u32 + 1).checked_sub(1) {
                        let (key, arrival, source, tag) = model.remove(one as usize);
                        let places = messages.remove(key).unwrap();
                        unexpected.remove(&mut messages, places, arrival, source, tag);
                    }
                }
                for from in [None, Some(source)] {
                    let is_it = |one: &&(Key, u64, Source, Option<u64>)| {
                        one.3 == tag && from.is_none_or(|from| one.2 == from)
                    };
                    let matching = tag.map_or(Matching::Untagged, |tag| Matching::Tagged { tag, ignore: 0 });
                    let found = unexpected.find(&messages, from, matching);
                    assert_eq!(found, model.iter().find(is_it).map(|one| one.0), "round {round}");
                }
                assert_eq!(unexpected.len(), model.len());
            }
            // The last ones go in any order, with what is left of their places.
            for (key, ..) in model {
                messages.remove(key);
                unexpected.remove_any();
            }
            assert_eq!((unexpected.len(), unexpected.lines.len()), (0, 0));
        }
    }
}
