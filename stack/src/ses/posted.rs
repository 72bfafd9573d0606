//! Receives that wait for messages. The one posted first of those that take a message gets it.

use std::collections::VecDeque;

use super::{Map, Matching, Posted, ReceiveId};
use crate::heap;
use crate::packet::Addr;

/// Receives looked at one by one before the index is asked: so few are found faster than a key is hashed,
/// and most endpoints never have more.
const SCANNED: usize = 8;

/// Posted receives: finding one for a message takes a time that does not depend on their number, but on the
/// number of different masks among them.
#[derive(Debug, Default)]
pub(super) struct PostedQueue {
    /// The oldest ones, in order; others only go here while none are indexed.
    oldest: VecDeque<Posted>,
    /// The others, from when there were any.
    indexed: Option<Box<Index>>,
}

impl PostedQueue {
    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.oldest.len() + self.indexed.as_ref().map_or(0, |index| index.entries.len())
    }

    /// Adds a receive, whose name must be larger than those before.
    #[inline]
    pub(super) fn push(&mut self, posted: Posted) {
        if self.oldest.len() < SCANNED && self.indexed.as_ref().is_none_or(|index| index.entries.is_empty()) {
            self.oldest.push_back(posted);
        } else {
            self.indexed.get_or_insert_default().push(posted);
        }
    }

    /// Takes out the first one that takes a message of `peer` with `tag`.
    #[inline]
    pub(super) fn take(&mut self, peer: Addr, tag: Option<u64>) -> Option<Posted> {
        match self.oldest.iter().position(|posted| posted.takes(peer, tag)) {
            Some(at) => self.oldest.remove(at),
            None => {
                let index = self.indexed.as_mut()?;
                let first = index.find(peer, tag)?;
                index.remove(first)
            }
        }
    }

    /// Takes out the one called `id`.
    pub(super) fn cancel(&mut self, id: ReceiveId) -> Option<Posted> {
        match self.oldest.iter().position(|posted| posted.id == id) {
            Some(at) => self.oldest.remove(at),
            None => self.indexed.as_mut()?.remove(id),
        }
    }

    /// Bytes of heap held, without the memory of the receives.
    pub(super) fn heap_bytes(&self) -> u64 {
        let index = |Index { entries, lines, kinds }: &Index| {
            size_of::<Index>() as u64 + heap::of_map(entries) + heap::of_map(lines) + heap::of_vec(kinds)
        };
        heap::of_deque(&self.oldest) + self.indexed.as_deref().map_or(0, index)
    }

    /// Bytes of the memory of the receives.
    pub(super) fn payload_bytes(&self) -> u64 {
        let indexed = self.indexed.iter().flat_map(|index| index.entries.values());
        let all = self.oldest.iter().chain(indexed.map(|entry| &entry.posted));
        all.map(|posted| heap::of_buffer(&posted.buffer)).sum()
    }
}

/// What a receive leaves open. The messages that receives of one kind take differ in `Wanted` alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Kind {
    from_any: bool,
    /// Bits of the tag that do not matter; none for untagged receives.
    ignore: Option<u64>,
}

/// What receives ask for that take the same messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Wanted {
    kind: Kind,
    from: Addr,
    tag: u64,
}

impl Kind {
    fn of(posted: &Posted) -> Kind {
        let ignore = match posted.matching {
            Matching::Untagged => None,
            Matching::Tagged { ignore, .. } => Some(ignore),
        };
        Kind { from_any: posted.from.is_none(), ignore }
    }

    /// What a receive of this kind must want in order to take a message of `peer` with `tag`.
    fn wanted(self, peer: Addr, tag: Option<u64>) -> Option<Wanted> {
        let tag = match (self.ignore, tag) {
            (None, None) => 0,
            (Some(ignore), Some(tag)) => tag & !ignore,
            _ => return None,
        };
        Some(Wanted { kind: self, from: if self.from_any { Addr(0) } else { peer }, tag })
    }
}

/// Receives that want the same: the first and the last.
#[derive(Clone, Copy, Debug)]
struct Line {
    first: ReceiveId,
    last: ReceiveId,
}

/// A receive and its neighbours in its line.
#[derive(Debug)]
struct Entry {
    posted: Posted,
    before: Option<ReceiveId>,
    after: Option<ReceiveId>,
}

#[derive(Debug, Default)]
struct Index {
    entries: Map<ReceiveId, Entry>,
    lines: Map<Wanted, Line>,
    /// The kinds present and how many receives there are of each.
    kinds: Vec<(Kind, u32)>,
}

impl Index {
    fn wanted(posted: &Posted) -> Wanted {
        let tag = match posted.matching {
            Matching::Untagged => None,
            Matching::Tagged { tag, .. } => Some(tag),
        };
        let kind = Kind::of(posted);
        kind.wanted(posted.from.unwrap_or(Addr(0)), tag).expect("the kind is its own")
    }

    fn push(&mut self, posted: Posted) {
        let (id, wanted) = (posted.id, Index::wanted(&posted));
        match self.kinds.iter_mut().find(|(kind, _)| *kind == wanted.kind) {
            Some((_, count)) => *count += 1,
            None => self.kinds.push((wanted.kind, 1)),
        }
        let line = self.lines.entry(wanted).or_insert(Line { first: id, last: id });
        let before = Some(std::mem::replace(&mut line.last, id)).filter(|&last| last != id);
        if let Some(last) = before.and_then(|last| self.entries.get_mut(&last)) {
            last.after = Some(id);
        }
        self.entries.insert(id, Entry { posted, before, after: None });
    }

    /// The first receive that takes a message of `peer` with `tag`.
    fn find(&self, peer: Addr, tag: Option<u64>) -> Option<ReceiveId> {
        let lines = self.kinds.iter().filter_map(|(kind, _)| self.lines.get(&kind.wanted(peer, tag)?));
        lines.map(|line| line.first).min()
    }

    fn remove(&mut self, id: ReceiveId) -> Option<Posted> {
        let Entry { posted, before, after } = self.entries.remove(&id)?;
        let wanted = Index::wanted(&posted);
        if let Some(entry) = before.and_then(|before| self.entries.get_mut(&before)) {
            entry.after = after;
        }
        if let Some(entry) = after.and_then(|after| self.entries.get_mut(&after)) {
            entry.before = before;
        }
        match (before, after, self.lines.get_mut(&wanted)) {
            (None, None, _) => drop(self.lines.remove(&wanted)),
            (None, Some(after), Some(line)) => line.first = after,
            (Some(before), None, Some(line)) => line.last = before,
            _ => {}
        }
        if let Some(at) = self.kinds.iter().position(|(kind, _)| *kind == wanted.kind) {
            self.kinds[at].1 -= 1;
            if self.kinds[at].1 == 0 {
                self.kinds.swap_remove(at);
            }
        }
        Some(posted)
    }
}
