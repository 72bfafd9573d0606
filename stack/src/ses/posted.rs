//! Posted receives that wait for messages. Among those that accept a message, the one posted first gets it.

use core::cmp::Ordering;
use std::collections::{BTreeMap, VecDeque};

use super::arrivals::{UNTAGGED, packed};
use super::by_age::ByAge;
use super::receive::Many;
use super::{Matching, Posted, ReceiveId, Source};
use crate::heap;

/// Number of receives checked one by one before the index is used: checking so few is faster than hashing a key, and
/// most endpoints never have more.
const SCANNED: usize = 8;

/// Posted receives. Finding one for a message takes a time that grows with the logarithm of the number of tags and senders that they
/// want, and with the number of their kinds, which is bounded.
#[derive(Debug, Default)]
pub(super) struct PostedQueue {
    /// The oldest receives, in order, unless messages keep passing them by; new receives go here while the index is
    /// empty.
    oldest: VecDeque<Posted>,
    /// All other receives; allocated when there are more than [`SCANNED`].
    indexed: Option<Box<Index>>,
    /// How many messages have matched an indexed receive since the last that matched one of `oldest`.
    passed_by: u32,
    /// What the receives for many messages want, and how many each of it.
    of_many: BTreeMap<Wanted, u32>,
}

/// Where a receive of a [`PostedQueue`] is.
#[derive(Clone, Copy)]
enum Place {
    /// The place among the oldest.
    Oldest(usize),
    /// The slot of the index.
    Indexed(u32),
}

/// The memory that dropping a receive touches, bytes.
const DROP: i64 = 128;

/// Number of messages that pass `oldest` by before its receives move to the index: a receive for a rare message may
/// wait for long.
const PASSED_BY: u32 = 64;

impl PostedQueue {
    /// Number of posted receives.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.oldest.len() + self.indexed.as_ref().map_or(0, |index| index.count)
    }

    /// Whether there may be a receive of messages of `from` that are `matching`: of another kind than the present ones only
    /// if those are fewer than `most`.
    #[inline]
    pub(super) fn takes_kind(&self, from: Option<Source>, matching: Matching, most: usize) -> bool {
        let kind = Kind::of(from, matching);
        self.indexed.as_ref().is_none_or(|index| index.kinds.len() < most || index.has_kind(kind))
    }

    /// Adds a receive, whose identifier must be larger than all before.
    #[inline(always)]
    pub(super) fn push(&mut self, posted: Posted) {
        if self.oldest.len() < SCANNED && self.indexed.as_ref().is_none_or(|index| index.count == 0) {
            self.oldest.push_back(posted);
        } else {
            self.indexed.get_or_insert_default().push(posted);
        }
    }

    /// As [`PostedQueue::push`], of a receive for many messages.
    pub(super) fn push_many(&mut self, posted: Posted) {
        *self.of_many.entry(Index::wanted(&posted)).or_default() += 1;
        self.push(posted);
    }

    /// Whether a receive for many messages accepts one of `source` with `tag`.
    #[cold]
    pub(super) fn many_accept(&self, source: Source, tag: Option<u64>) -> bool {
        if self.of_many.is_empty() {
            return false;
        }
        let is_indexed = |index: &Index| {
            let mut wanted = index.kinds.iter().filter_map(|present| present.kind.wanted(source, tag));
            wanted.any(|wanted| self.of_many.contains_key(&wanted))
        };
        self.oldest.iter().any(|posted| posted.many.is_some() && posted.takes(source, tag))
            || self.indexed.as_deref().is_some_and(is_indexed)
    }

    /// Removes the first receive that accepts a message of `source` with `tag`, of `len` bytes and whole or not, and returns what
    /// `take` makes of it; of one for many messages, which `many` keeps account of, only the part for this one, if enough is left for
    /// others. `None` if no receive accepts the message, or if the first that does is one for many messages and those are held.
    // The receive is used where it lies: each move of one just written is a store-forwarding stall (see `crate::prefetch`). Always
    // inlined, as are its callees, for the same reason.
    #[inline(always)]
    pub(super) fn take_with<R>(
        &mut self,
        source: Source,
        tag: Option<u64>,
        (len, is_whole): (u32, bool),
        many: &mut Many,
        take: impl FnOnce(&mut Posted) -> R,
    ) -> Option<R> {
        let place = self.find(source, tag)?;
        let PostedQueue { oldest, indexed, of_many, .. } = self;
        let posted = match place {
            Place::Oldest(at) => &mut oldest[at],
            Place::Indexed(slot) => indexed.as_mut()?.slots[slot as usize].posted.as_mut()?,
        };
        if posted.many.is_some() {
            if many.hold(source, is_whole) {
                return None;
            }
            if let Some(mut part) = many.take(posted, len) {
                self.count_match(place);
                return Some(take(&mut part));
            }
            forget(of_many, posted);
        }
        let (id, taken) = (posted.id, take(posted));
        match place {
            Place::Oldest(at) => drop(oldest.remove(at)),
            Place::Indexed(slot) => indexed.as_mut()?.remove(slot, id),
        }
        self.count_match(place);
        Some(taken)
    }

    /// Where the first receive is that accepts a message of `source` with `tag`.
    #[inline(always)]
    fn find(&self, source: Source, tag: Option<u64>) -> Option<Place> {
        let among_oldest = match self.oldest.is_empty() {
            true => None,
            false => self.oldest.iter().position(|posted| posted.takes(source, tag)),
        };
        match among_oldest {
            Some(at) => Some(Place::Oldest(at)),
            None => self.indexed.as_ref()?.find(source, tag).map(Place::Indexed),
        }
    }

    /// A message has matched a receive that is at `place`, or was there.
    #[inline(always)]
    fn count_match(&mut self, place: Place) {
        match place {
            Place::Oldest(_) => self.passed_by = 0,
            Place::Indexed(_) => self.passed_by += u32::from(!self.oldest.is_empty()),
        }
        if self.passed_by > PASSED_BY
            && let Some(index) = &mut self.indexed
        {
            index.push_front_all(&mut self.oldest);
            self.passed_by = 0;
        }
    }

    /// Whether a receive accepts a message of `source` with `tag`.
    #[cold]
    pub(super) fn accepts(&self, source: Source, tag: Option<u64>) -> bool {
        self.find(source, tag).is_some()
    }

    /// Removes and returns the receive `id`.
    pub(super) fn cancel(&mut self, id: ReceiveId) -> Option<Posted> {
        #[cfg(test)]
        crate::steps::count(self.oldest.len());
        let cancelled = match self.oldest.iter().position(|posted| posted.id == id) {
            Some(at) => self.oldest.remove(at),
            None => self.indexed.as_mut()?.cancel(id),
        };
        if let Some(posted) = cancelled.as_ref().filter(|posted| posted.many.is_some()) {
            forget(&mut self.of_many, posted);
        }
        cancelled
    }

    /// Drops receives until that has touched `budget` bytes of memory, which are taken from it. From then on none is added or
    /// taken any more. Returns whether none is left.
    pub(super) fn drop_some(&mut self, budget: &mut i64) -> bool {
        loop {
            let slots = self.indexed.as_mut().map(|index| &mut index.slots);
            let is_there =
                self.oldest.pop_back().is_some() || slots.is_some_and(|slots| slots.pop().is_some());
            if !is_there {
                return true;
            }
            #[cfg(test)]
            crate::steps::count(1);
            *budget -= DROP;
            if *budget <= 0 {
                return false;
            }
        }
    }

    /// Bytes of heap allocated, without the memory of the receives.
    pub(super) fn heap_bytes(&self) -> u64 {
        let index = |index: &Index| size_of::<Index>() as u64 + index.heap_bytes();
        heap::of_deque(&self.oldest) + self.indexed.as_deref().map_or(0, index) + heap::of_tree(&self.of_many)
    }

    /// Bytes of the receives' memory.
    pub(super) fn payload_bytes(&self) -> u64 {
        let indexed = self.indexed.iter().flat_map(|index| &index.slots);
        let all = self.oldest.iter().chain(indexed.filter_map(|slot| slot.posted.as_ref()));
        all.map(|posted| heap::of_buffer(&posted.buffer)).sum()
    }
}

/// `posted`, a receive for many messages, takes none any more.
#[cold]
fn forget(of_many: &mut BTreeMap<Wanted, u32>, posted: &Posted) {
    let wanted = Index::wanted(posted);
    if let Some(count) = of_many.get_mut(&wanted) {
        *count -= 1;
        if *count == 0 {
            of_many.remove(&wanted);
        }
    }
}

/// Set in [`Kind::flags`] of receives from any sender; [`UNTAGGED`] is set in those of receives of untagged messages.
const FROM_ANY: u64 = 1 << 62;
const _: () = assert!(FROM_ANY >= 1 << 48 && FROM_ANY & UNTAGGED == 0, "packed senders have the bits below");

/// The parts of a message that a receive leaves open. Receives of one kind differ only in `Wanted`.
// Numbers, which are quick to compare: each message is compared with what receives of each kind want.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kind {
    flags: u64,
    /// Mask of the tag's bits that are not compared; 0 for untagged receives.
    ignore: u64,
}

/// The sender and tag that a receive asks for. Receives with equal values take the same messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wanted {
    /// The sender, unless it may be any, beside the flags of the kind.
    sender: u64,
    ignore: u64,
    /// The bits of the tag that are compared.
    tag: u64,
}

impl Ord for Wanted {
    fn cmp(&self, other: &Wanted) -> Ordering {
        #[cfg(test)]
        crate::steps::count(1);
        [self.sender, self.ignore, self.tag].cmp(&[other.sender, other.ignore, other.tag])
    }
}

impl PartialOrd for Wanted {
    fn partial_cmp(&self, other: &Wanted) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Wanted {
    #[inline]
    fn kind(&self) -> Kind {
        Kind { flags: self.sender & (FROM_ANY | UNTAGGED), ignore: self.ignore }
    }
}

impl Kind {
    #[inline]
    fn of(from: Option<Source>, matching: Matching) -> Kind {
        let any = if from.is_none() { FROM_ANY } else { 0 };
        match matching {
            Matching::Untagged => Kind { flags: any | UNTAGGED, ignore: 0 },
            Matching::Tagged { ignore, .. } => Kind { flags: any, ignore },
        }
    }

    /// The value that a receive of this kind must have to accept a message of `source` with `tag`.
    #[inline]
    fn wanted(self, source: Source, tag: Option<u64>) -> Option<Wanted> {
        if (self.flags & UNTAGGED != 0) != tag.is_none() {
            return None;
        }
        let sender = if self.flags & FROM_ANY != 0 { 0 } else { packed(source) };
        let tag = tag.unwrap_or(0) & !self.ignore;
        Some(Wanted { sender: sender | self.flags, ignore: self.ignore, tag })
    }

    /// The value that a receive of this kind has.
    #[inline]
    fn wanted_by(self, from: Option<Source>, matching: Matching) -> Wanted {
        let tag = match matching {
            Matching::Untagged => 0,
            Matching::Tagged { tag, ignore } => tag & !ignore,
        };
        Wanted { sender: from.map_or(0, packed) | self.flags, ignore: self.ignore, tag }
    }
}

/// Marks the end of a list of slots.
const NONE: u32 = u32::MAX;

/// The first and last of the receives with equal `Wanted`.
#[derive(Clone, Copy, Debug)]
struct Group {
    wanted: Wanted,
    first: u32,
    last: u32,
}

/// A kind that posted receives have.
#[derive(Clone, Copy, Debug)]
struct Present {
    kind: Kind,
    /// Number of receives of this kind.
    count: u32,
    /// Number of groups that they are in.
    groups: u32,
    /// The group of this kind that was used last: the next message most often matches it, too.
    recent: u32,
}

/// A receive with its group and its neighbours there; or a free slot with the next free one.
#[derive(Debug)]
struct Slot {
    posted: Option<Posted>,
    group: u32,
    before: u32,
    after: u32,
}

#[derive(Debug)]
struct Index {
    slots: Vec<Slot>,
    /// The slot that was freed last.
    free: u32,
    /// Number of receives.
    count: usize,
    /// The slot of each receive, by identifier.
    by_age: ByAge,
    groups: Vec<Group>,
    free_groups: Vec<u32>,
    /// In order, not by a hash: the applications and peers that choose the tags could choose those of equal hashes.
    by_wanted: BTreeMap<Wanted, u32>,
    kinds: Vec<Present>,
}

impl Default for Index {
    fn default() -> Index {
        Index {
            slots: Vec::new(),
            free: NONE,
            count: 0,
            by_age: ByAge::default(),
            groups: Vec::new(),
            free_groups: Vec::new(),
            by_wanted: BTreeMap::new(),
            kinds: Vec::new(),
        }
    }
}

impl Index {
    #[cold]
    fn has_kind(&self, kind: Kind) -> bool {
        self.kinds.iter().any(|present| present.kind == kind)
    }

    #[inline]
    fn wanted(posted: &Posted) -> Wanted {
        Kind::of(posted.from, posted.matching).wanted_by(posted.from, posted.matching)
    }

    /// Adds receives that are older than all present ones.
    #[cold]
    fn push_front_all(&mut self, older: &mut VecDeque<Posted>) {
        while let Some(posted) = older.pop_back() {
            self.add(posted, true);
        }
    }

    #[inline(always)]
    fn push(&mut self, posted: Posted) {
        self.add(posted, false);
    }

    /// Adds a receive, which must be the oldest or the newest one.
    // Always inlined: see `PostedQueue::take_with`.
    #[inline(always)]
    fn add(&mut self, posted: Posted, oldest: bool) {
        let (id, wanted) = (posted.id, Index::wanted(&posted));
        let slot = self.free_slot();
        let group = self.group_for(wanted, slot);
        let ends = &mut self.groups[group as usize];
        let neighbour = std::mem::replace(if oldest { &mut ends.first } else { &mut ends.last }, slot);
        let neighbour = if neighbour == slot { NONE } else { neighbour };
        if let Some(next) = self.slots.get_mut(neighbour as usize) {
            *(if oldest { &mut next.before } else { &mut next.after }) = slot;
        }
        let (before, after) = if oldest { (NONE, neighbour) } else { (neighbour, NONE) };
        self.slots[slot as usize] = Slot { posted: Some(posted), group, before, after };
        self.by_age.add((id, slot), oldest);
        self.count += 1;
    }

    /// A free slot.
    fn free_slot(&mut self) -> u32 {
        match self.slots.get(self.free as usize) {
            Some(slot) => std::mem::replace(&mut self.free, slot.after),
            None => {
                self.slots.push(Slot { posted: None, group: NONE, before: NONE, after: NONE });
                (self.slots.len() - 1) as u32
            }
        }
    }

    /// The group of receives that want `wanted`, to which `slot` is about to be added; a new group begins with `slot`.
    #[inline(always)]
    fn group_for(&mut self, wanted: Wanted, slot: u32) -> u32 {
        let at = self.kinds.iter().position(|present| present.kind == wanted.kind()).unwrap_or_else(|| {
            self.kinds.push(Present { kind: wanted.kind(), count: 0, groups: 0, recent: NONE });
            self.kinds.len() - 1
        });
        let found = self.group_of(&self.kinds[at], wanted);
        let group = found.unwrap_or_else(|| self.new_group(Group { wanted, first: slot, last: slot }));
        let present = &mut self.kinds[at];
        present.count += 1;
        present.groups += u32::from(found.is_none());
        present.recent = group;
        group
    }

    fn new_group(&mut self, group: Group) -> u32 {
        let at = match self.free_groups.pop() {
            Some(at) => {
                self.groups[at as usize] = group;
                at
            }
            None => {
                self.groups.push(group);
                (self.groups.len() - 1) as u32
            }
        };
        self.by_wanted.insert(group.wanted, at);
        at
    }

    /// The group of receives of kind `present` that want `wanted`.
    #[inline(always)]
    fn group_of(&self, present: &Present, wanted: Wanted) -> Option<u32> {
        match self.groups.get(present.recent as usize).filter(|group| group.first != NONE) {
            Some(group) if group.wanted == wanted => Some(present.recent),
            // The kind has no other group.
            Some(group) if present.groups == 1 && group.wanted.kind() == present.kind => None,
            _ => self.other_group(wanted),
        }
    }

    #[inline(never)]
    fn other_group(&self, wanted: Wanted) -> Option<u32> {
        self.by_wanted.get(&wanted).copied()
    }

    /// The slot of the first receive that accepts a message of `source` with `tag`.
    #[inline]
    fn find(&self, source: Source, tag: Option<u64>) -> Option<u32> {
        let mut first: Option<(ReceiveId, u32)> = None;
        for present in &self.kinds {
            if let Some(wanted) = present.kind.wanted(source, tag)
                && let Some(group) = self.group_of(present, wanted)
            {
                let slot = self.groups[group as usize].first;
                if let Some(posted) = &self.slots[slot as usize].posted
                    && first.is_none_or(|(id, _)| posted.id < id)
                {
                    first = Some((posted.id, slot));
                }
            }
        }
        first.map(|(_, slot)| slot)
    }

    /// Removes and returns the receive `id`.
    #[inline(never)]
    fn cancel(&mut self, id: ReceiveId) -> Option<Posted> {
        let slot = self.by_age.find(id)?;
        let cancelled = self.slots[slot as usize].posted.take_if(|posted| posted.id == id)?;
        self.remove(slot, id);
        Some(cancelled)
    }

    /// Drops receive `id` of slot `at`, if it is still there, and frees the slot.
    #[inline(always)]
    fn remove(&mut self, at: u32, id: ReceiveId) {
        let slot = &mut self.slots[at as usize];
        slot.posted = None;
        let (group, before, after) = (slot.group, slot.before, slot.after);
        slot.after = std::mem::replace(&mut self.free, at);
        self.count -= 1;
        if let Some(slot) = self.slots.get_mut(before as usize) {
            slot.after = after;
        }
        if let Some(slot) = self.slots.get_mut(after as usize) {
            slot.before = before;
        }
        let ends = &mut self.groups[group as usize];
        if before == NONE {
            ends.first = after;
        }
        if after == NONE {
            ends.last = before;
        }
        let (wanted, is_last) = (ends.wanted, ends.first == NONE);
        if is_last {
            self.by_wanted.remove(&wanted);
            self.free_groups.push(group);
        }
        if let Some(at) = self.kinds.iter().position(|present| present.kind == wanted.kind()) {
            let present = &mut self.kinds[at];
            present.count -= 1;
            present.groups -= u32::from(is_last);
            if present.count == 0 {
                self.kinds.swap_remove(at);
            }
        }
        self.by_age.one_left((id, at), self.count, |entry| holds(&self.slots, entry));
    }

    fn heap_bytes(&self) -> u64 {
        heap::of_vec(&self.slots)
            + self.by_age.heap_bytes()
            + heap::of_vec(&self.groups)
            + heap::of_vec(&self.free_groups)
            + heap::of_tree(&self.by_wanted)
            + heap::of_vec(&self.kinds)
    }
}

/// Whether `slots` has the receive of an entry of [`ByAge`].
#[inline]
fn holds(slots: &[Slot], (id, slot): (ReceiveId, u32)) -> bool {
    slots[slot as usize].posted.as_ref().is_some_and(|posted| posted.id == id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Buffer;

    /// An application may choose tags as it likes, also such that would have the same hash.
    #[test]
    fn a_receive_is_posted_found_and_cancelled_with_few_comparisons_whatever_the_tags() {
        // The inverse, modulo 2⁶⁴, of the factor by which rustc-hash multiplies.
        const FACTOR: u64 = 0xf135_7aea_2e62_a9c5;
        let inverse = (0..6).fold(FACTOR, |inverse: u64, _| {
            inverse.wrapping_mul(2u64.wrapping_sub(FACTOR.wrapping_mul(inverse)))
        });
        assert_eq!(inverse.wrapping_mul(FACTOR), 1);
        let source = Source { peer: crate::packet::Addr(1), process: 0 };
        let tags = |n: u64| (n << 20).rotate_right(26).wrapping_mul(inverse);
        let mut queue = PostedQueue::default();
        // A node has at most eleven keys, the tree has at most five levels, and it is searched twice.
        let most = 2 * 5 * 11;
        for n in 0..20_000 {
            let matching = Matching::Tagged { tag: tags(n), ignore: 0 };
            let posted = Posted {
                id: ReceiveId(n),
                buffer: Buffer::Virtual(0),
                from: None,
                matching,
                context: n,
                many: None,
            };
            let steps = crate::steps::of(|| queue.push(posted));
            assert!(steps <= most, "{steps} to post receive {n}");
        }
        for n in (0..20_000).step_by(7) {
            let steps = crate::steps::of(|| assert!(queue.accepts(source, Some(tags(n)))));
            assert!(steps <= most, "{steps} to find receive {n}");
            let steps = crate::steps::of(|| assert!(queue.cancel(ReceiveId(n)).is_some()));
            assert!(steps <= most, "{steps} to cancel receive {n}");
        }
    }

    fn receive(n: u64, peer: u32, least: Option<u32>) -> Posted {
        Posted {
            id: ReceiveId(n),
            buffer: Buffer::Virtual(1_000),
            from: Some(crate::packet::Addr(peer).into()),
            matching: Matching::Untagged,
            context: n,
            many: least.and_then(core::num::NonZeroU32::new),
        }
    }

    /// Rare receives are not looked at for each message, whatever receive the messages match.
    #[test]
    fn receives_move_to_the_index_when_many_messages_have_passed_them_by() {
        for (least, held) in [(None, false), (Some(1), false), (Some(1), true)] {
            let mut queue = PostedQueue::default();
            let mut many = Many::default();
            many.is_held = held;
            (0..SCANNED as u64).for_each(|n| queue.push(receive(n, 2, None)));
            match least {
                None => queue.push(receive(100, 1, None)),
                Some(_) => queue.push_many(receive(100, 1, least)),
            }
            let source = crate::packet::Addr(1).into();
            for n in 0..=PASSED_BY {
                assert_eq!((queue.oldest.len(), queue.passed_by), (SCANNED, if held { 0 } else { n }));
                let taken = queue.take_with(source, None, (1, true), &mut many, |posted| posted.context);
                let posted = 100 + if least.is_none() { u64::from(n) } else { 0 };
                assert_eq!(taken, (!held).then_some(posted), "message {n}");
                if least.is_none() {
                    queue.push(receive(posted + 1, 1, None));
                }
            }
            assert_eq!(queue.oldest.len(), if held { SCANNED } else { 0 });
            let rare = crate::packet::Addr(2).into();
            for n in 0..SCANNED as u64 {
                let taken = queue.take_with(rare, None, (1, true), &mut many, |posted| posted.context);
                assert_eq!(taken, Some(n), "in the order in which they were posted");
            }
        }
    }
}
