//! Unexpected messages, which wait for receives. A receive gets the first to arrive of those that it accepts.

use std::collections::{BTreeMap, BTreeSet};

use super::{Matching, Source};
use crate::table::Key;

/// Messages that have matched no receive. Only a receive that ignores bits of the tag looks at them one by one.
#[derive(Debug, Default)]
pub(super) struct Unexpected {
    /// Number of unexpected messages so far.
    arrivals: u64,
    in_order: BTreeMap<u64, Key>,
    by_tag: BTreeSet<(Option<u64>, u64)>,
    by_sender: BTreeSet<(Option<u64>, Source, u64)>,
}

impl Unexpected {
    /// Number of messages now.
    pub(super) fn len(&self) -> usize {
        self.in_order.len()
    }

    /// A number for the next message, larger than all before.
    pub(super) fn next_arrival(&mut self) -> u64 {
        self.arrivals += 1;
        self.arrivals
    }

    /// Adds the message with the number `arrival`.
    pub(super) fn insert(&mut self, arrival: u64, source: Source, tag: Option<u64>, key: Key) {
        self.in_order.insert(arrival, key);
        self.by_tag.insert((tag, arrival));
        self.by_sender.insert((tag, source, arrival));
    }

    /// Removes a message.
    pub(super) fn remove(&mut self, arrival: u64, source: Source, tag: Option<u64>) {
        self.in_order.remove(&arrival);
        self.by_tag.remove(&(tag, arrival));
        self.by_sender.remove(&(tag, source, arrival));
    }

    /// The first message that a receive accepts; `takes` says whether it accepts a given one.
    pub(super) fn find(
        &self,
        from: Option<Source>,
        matching: Matching,
        takes: impl Fn(Key) -> bool,
    ) -> Option<Key> {
        if self.in_order.is_empty() {
            return None;
        }
        let tag = match matching {
            Matching::Untagged => None,
            Matching::Tagged { tag, ignore: 0 } => Some(tag),
            Matching::Tagged { .. } => return self.in_order.values().copied().find(|&key| takes(key)),
        };
        let arrival = match from {
            Some(from) => self.by_sender.range((tag, from, 0)..=(tag, from, u64::MAX)).next()?.2,
            None => self.by_tag.range((tag, 0)..=(tag, u64::MAX)).next()?.1,
        };
        self.in_order.get(&arrival).copied()
    }

    /// Bytes of heap allocated. Assumes that tree nodes are three quarters full, as after random insertions.
    pub(super) fn heap_bytes(&self) -> u64 {
        let entry = size_of::<(u64, Key)>()
            + size_of::<(Option<u64>, u64)>()
            + size_of::<(Option<u64>, Source, u64)>();
        (self.in_order.len() * entry) as u64 * 4 / 3
    }
}
