//! Unexpected messages, which wait for receives. A receive gets the first to arrive of those that it accepts.

use std::collections::BTreeSet;

use super::arrivals::{Arrivals, Look, Pattern, UNTAGGED, packed};
use super::{Matching, Source};
use crate::table::Key;

/// Messages that have matched no receive. Only a receive that ignores bits of the tag looks at them one by one.
#[derive(Debug, Default)]
pub(super) struct Unexpected {
    /// Number of unexpected messages so far.
    arrivals: u64,
    in_order: Arrivals,
    by_tag: BTreeSet<OfTag>,
    by_sender: BTreeSet<OfSender>,
    /// What the last search was for, one by one, and the number of the first message that it has not ruled out. Later
    /// messages have larger numbers, so that a search like it can go on from there.
    searched: Option<(Pattern, u64)>,
}

/// The tag of a message and how many numbers there are above its own, which stand in this order in one number. So a new message
/// comes before all others of its tag: nodes of trees are searched from their beginning, and an insertion compares a few of them
/// instead of some thirty.
type OfTag = u128;

/// The tag and the sender of a message, and how many numbers there are above its own.
type OfSender = (u64, u64, u64);

/// The largest number that a message may have.
const LAST: u64 = UNTAGGED - 1;

#[inline]
fn of_tag(tag: Option<u64>, arrival: u64) -> OfTag {
    // Untagged messages have a place of their own: no number is so large.
    u128::from(tag.unwrap_or(0)) << 64 | u128::from((LAST - arrival) | untagged(tag))
}

#[inline]
fn of_sender(tag: Option<u64>, source: Source, arrival: u64) -> OfSender {
    (tag.unwrap_or(0), packed(source) | untagged(tag), LAST - arrival)
}

#[inline]
fn untagged(tag: Option<u64>) -> u64 {
    if tag.is_none() { UNTAGGED } else { 0 }
}

impl Unexpected {
    /// Number of messages now.
    pub(super) fn len(&self) -> usize {
        self.by_tag.len()
    }

    /// A number for the next message, larger than all before.
    pub(super) fn next_arrival(&mut self) -> u64 {
        self.arrivals += 1;
        self.arrivals
    }

    /// Adds the message with the number `arrival`.
    pub(super) fn insert(&mut self, arrival: u64, source: Source, tag: Option<u64>, key: Key) {
        self.in_order.push(arrival, source, tag, key);
        self.by_tag.insert(of_tag(tag, arrival));
        self.by_sender.insert(of_sender(tag, source, arrival));
    }

    /// Removes a message.
    pub(super) fn remove(&mut self, arrival: u64, source: Source, tag: Option<u64>) {
        self.in_order.remove(arrival);
        self.by_tag.remove(&of_tag(tag, arrival));
        self.by_sender.remove(&of_sender(tag, source, arrival));
    }

    /// Removes an entry from each index, not all of the same message. When there have been as many calls as there are
    /// messages, none is left.
    pub(super) fn remove_any(&mut self) {
        self.in_order.remove_block();
        self.by_tag.pop_first();
        self.by_sender.pop_first();
    }

    /// The first message that a receive accepts.
    #[inline]
    pub(super) fn find(&mut self, from: Option<Source>, matching: Matching) -> Option<Key> {
        if self.by_tag.is_empty() { None } else { self.find_among(from, matching) }
    }

    /// As [`Unexpected::find`], where there are messages.
    #[inline(never)]
    fn find_among(&mut self, from: Option<Source>, matching: Matching) -> Option<Key> {
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
        let above = match from {
            Some(from) => {
                let all = of_sender(tag, from, LAST)..=of_sender(tag, from, 0);
                self.by_sender.range(all).next_back()?.2
            }
            None => {
                let all = of_tag(tag, LAST)..=of_tag(tag, 0);
                (self.by_tag.range(all).next_back()? & u128::from(LAST)) as u64
            }
        };
        self.in_order.get(LAST - above)
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
        let entry = size_of::<OfTag>() + size_of::<OfSender>();
        (self.by_tag.len() * entry) as u64 * 4 / 3 + self.in_order.heap_bytes()
    }
}
