//! Messages that wait for receives, in the order in which they came. What a receive compares lies side by side, because a
//! receive that ignores bits of the tag has to look at one message after the other.

use std::collections::BTreeMap;

use super::Source;
use crate::table::Key;

/// Messages of a block.
const BLOCK: usize = if cfg!(test) { 4 } else { 64 };

/// Bytes that looking at one message touches: its tag and its sender.
pub(super) const LOOK: i64 = 16;

/// Set in the senders of untagged messages, and in what receives of them want.
pub(super) const UNTAGGED: u64 = 1 << 63;

/// A sender as a number below 2⁴⁸.
#[inline]
pub(super) fn packed(source: Source) -> u64 {
    u64::from(source.peer.0) | u64::from(source.process) << 32
}

/// The tags and senders that a receive which ignores bits of the tag accepts: those that are equal where the masks have
/// ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    tag: u64,
    tag_mask: u64,
    sender: u64,
    sender_mask: u64,
}

impl Pattern {
    /// Tagged messages of `from`, or of any sender, whose tags equal `tag` in the bits that are not ignored.
    pub(super) fn new(from: Option<Source>, tag: u64, ignore: u64) -> Pattern {
        let (sender, sender_mask) = from.map_or((0, UNTAGGED), |from| (packed(from), u64::MAX));
        Pattern { tag, tag_mask: !ignore, sender, sender_mask }
    }

    fn accepts(&self, tag: u64, sender: u64) -> bool {
        (tag ^ self.tag) & self.tag_mask | (sender ^ self.sender) & self.sender_mask == 0
    }
}

/// Messages that came one after the other, the columns of a table. The first `len` entries of each are in use.
#[derive(Debug)]
struct Block {
    len: usize,
    tags: [u64; BLOCK],
    senders: [u64; BLOCK],
    arrivals: [u64; BLOCK],
    keys: [Key; BLOCK],
}

impl Block {
    fn new() -> Block {
        let (none, nothing) = ([0; BLOCK], [Key { index: 0, generation: 0 }; BLOCK]);
        Block { len: 0, tags: none, senders: none, arrivals: none, keys: nothing }
    }

    fn arrivals(&self) -> &[u64] {
        &self.arrivals[..self.len]
    }

    fn remove(&mut self, at: usize) {
        self.tags.copy_within(at + 1..self.len, at);
        self.senders.copy_within(at + 1..self.len, at);
        self.arrivals.copy_within(at + 1..self.len, at);
        self.keys.copy_within(at + 1..self.len, at);
        self.len -= 1;
    }

    /// Appends the messages of `later`, for which there is room.
    fn append(&mut self, later: &Block) {
        let (into, from) = (self.len..self.len + later.len, ..later.len);
        self.tags[into.clone()].copy_from_slice(&later.tags[from]);
        self.senders[into.clone()].copy_from_slice(&later.senders[from]);
        self.arrivals[into.clone()].copy_from_slice(&later.arrivals[from]);
        self.keys[into].copy_from_slice(&later.keys[from]);
        self.len += later.len;
    }

    /// The first message that `pattern` accepts, from the one at `start` on.
    fn find(&self, pattern: &Pattern, start: usize) -> Option<usize> {
        let (tags, senders) = (&self.tags[start..self.len], &self.senders[start..self.len]);
        let at = tags.iter().zip(senders).position(|(&tag, &sender)| pattern.accepts(tag, sender))?;
        Some(start + at)
    }
}

/// What a search has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// The message with this number is the first that is accepted.
    Found(u64, Key),
    /// None is accepted.
    Nothing,
    /// None of those before this number; the others have not been looked at.
    NotYet(u64),
}

/// The messages by their numbers, each of which is larger than all before.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    /// By a number that is not above those in the block, and above those in the blocks before. None is empty.
    blocks: BTreeMap<u64, Box<Block>>,
}

impl Arrivals {
    /// Adds a message.
    pub(super) fn push(&mut self, arrival: u64, source: Source, tag: Option<u64>, key: Key) {
        let last = self.blocks.last_entry().map(|entry| entry.into_mut());
        let block = match last {
            Some(last) if last.len < BLOCK => last,
            _ => self.blocks.entry(arrival).or_insert_with(|| Box::new(Block::new())),
        };
        let at = block.len;
        block.tags[at] = tag.unwrap_or(0);
        block.senders[at] = packed(source) | if tag.is_none() { UNTAGGED } else { 0 };
        block.arrivals[at] = arrival;
        block.keys[at] = key;
        block.len += 1;
    }

    /// The message `arrival`.
    #[cfg(test)]
    fn get(&self, arrival: u64) -> Option<Key> {
        let (_, block) = self.blocks.range(..=arrival).next_back()?;
        block.arrivals().binary_search(&arrival).ok().map(|at| block.keys[at])
    }

    /// Removes the message `arrival`, if there is one.
    pub(super) fn remove(&mut self, arrival: u64) {
        let Some((&first, block)) = self.blocks.range_mut(..=arrival).next_back() else { return };
        let Ok(at) = block.arrivals().binary_search(&arrival) else { return };
        block.remove(at);
        if block.len == 0 {
            self.blocks.remove(&first);
        } else if block.len <= BLOCK / 4 {
            self.merge_with_next(first);
            if let Some((&before, _)) = self.blocks.range(..first).next_back() {
                self.merge_with_next(before);
            }
        }
    }

    /// Removes the first messages, some at a time.
    pub(super) fn remove_block(&mut self) {
        self.blocks.pop_first();
    }

    /// Moves the messages of the block after `first` there, if it has room for them: few messages do not keep much memory.
    fn merge_with_next(&mut self, first: u64) {
        let Some((&next, later)) = self.blocks.range(first + 1..).next() else { return };
        if self.blocks.get(&first).is_some_and(|block| block.len + later.len <= BLOCK)
            && let Some(later) = self.blocks.remove(&next)
            && let Some(block) = self.blocks.get_mut(&first)
        {
            block.append(&later);
        }
    }

    /// Looks for the first message that `pattern` accepts of those from number `start` on, until that has cost `budget`
    /// bytes, which are taken from it.
    pub(super) fn look(&self, pattern: &Pattern, start: u64, budget: &mut i64) -> Look {
        let first = self.blocks.range(..=start).next_back().map_or(0, |(&first, _)| first);
        for block in self.blocks.range(first..).map(|(_, block)| block) {
            let from = block.arrivals().partition_point(|arrival| *arrival < start);
            if from == block.len {
                continue;
            }
            if *budget <= 0 {
                return Look::NotYet(block.arrivals[from]);
            }
            let found = block.find(pattern, from);
            *budget -= LOOK * (found.map_or(block.len, |at| at + 1) - from) as i64;
            if let Some(at) = found {
                return Look::Found(block.arrivals[at], block.keys[at]);
            }
        }
        Look::Nothing
    }

    /// Bytes of heap allocated.
    pub(super) fn heap_bytes(&self) -> u64 {
        // Nodes of the tree are at least half full.
        (self.blocks.len() * (size_of::<Block>() + 2 * size_of::<(u64, Box<Block>)>())) as u64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::packet::Addr;

    fn key(arrival: u64) -> Key {
        Key { index: arrival as u32, generation: 1 }
    }

    fn source((peer, process): (u32, u16)) -> Source {
        Source { peer: Addr(peer), process }
    }

    type Message = (u64, (u32, u16), Option<u64>);

    #[derive(Clone, Debug)]
    enum Step {
        Push((u32, u16), Option<u64>),
        Remove(prop::sample::Index),
        Look { from: Option<(u32, u16)>, tag: u64, ignore: u64, start: u64, budget: i64 },
    }

    fn step() -> impl Strategy<Value = Step> {
        let sender = || (prop_oneof![0u32..3, Just(u32::MAX)], prop_oneof![0u16..2, Just(u16::MAX)]);
        let tag = || prop_oneof![0u64..4, Just(u64::MAX)];
        let ignore = prop_oneof![Just(1u64), Just(2), Just(u64::MAX), Just(u64::MAX - 1)];
        prop_oneof![
            5 => (sender(), prop::option::weighted(0.8, tag())).prop_map(|(from, tag)| Step::Push(from, tag)),
            4 => any::<prop::sample::Index>().prop_map(Step::Remove),
            4 => (prop::option::of(sender()), tag(), ignore, 0u64..200, 0i64..500).prop_map(
                |(from, tag, ignore, start, budget)| Step::Look { from, tag, ignore, start, budget }
            ),
        ]
    }

    fn accepts(message: &Message, from: Option<(u32, u16)>, tag: u64, ignore: u64) -> bool {
        message.2.is_some_and(|theirs| (theirs ^ tag) & !ignore == 0)
            && from.is_none_or(|from| from == message.1)
    }

    proptest! {
        #[test]
        fn a_search_in_pieces_finds_what_a_list_has(steps in prop::collection::vec(step(), 0..300)) {
            let (mut arrivals, mut list, mut count) = (Arrivals::default(), Vec::<Message>::new(), 0);
            for step in steps {
                match step {
                    Step::Push(from, tag) => {
                        count += 1;
                        list.push((count, from, tag));
                        arrivals.push(count, source(from), tag, key(count));
                    }
                    Step::Remove(index) if !list.is_empty() => {
                        let (arrival, ..) = list.remove(index.index(list.len()));
                        arrivals.remove(arrival);
                        prop_assert_eq!(arrivals.get(arrival), None);
                    }
                    Step::Remove(_) => arrivals.remove(count + 1),
                    Step::Look { from, tag, ignore, start, mut budget } => {
                        let wanted = |m: &&Message| m.0 >= start && accepts(m, from, tag, ignore);
                        let expected = list.iter().find(wanted).map(|m| m.0);
                        let (pattern, given) = (Pattern::new(from.map(source), tag, ignore), budget);
                        let look = arrivals.look(&pattern, start, &mut budget);
                        match look {
                            Look::Found(arrival, found) => {
                                prop_assert_eq!((Some(arrival), found), (expected, key(arrival)));
                            }
                            Look::Nothing => prop_assert_eq!(expected, None),
                            Look::NotYet(next) => {
                                prop_assert!(expected.is_none_or(|expected| expected >= next));
                                prop_assert!(budget <= 0);
                                let seen = list.iter().filter(|m| (start..next).contains(&m.0)).count() as i64;
                                prop_assert!(seen * LOOK >= given && seen * LOOK < given + LOOK * BLOCK as i64);
                            }
                        }
                    }
                }
                for (arrival, ..) in &list {
                    prop_assert_eq!(arrivals.get(*arrival), Some(key(*arrival)));
                }
                let blocks = arrivals.blocks.len();
                prop_assert!(blocks <= 2 + 6 * list.len() / BLOCK, "{} in {blocks} blocks", list.len());
            }
        }
    }
}
