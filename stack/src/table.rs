//! A slab whose keys tell the present holder of a slot from earlier ones.

/// Names an entry of a [`Table`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// The slot, dense from 0.
    pub index: u32,
    /// How often the slot had been used before.
    pub generation: u32,
}

/// Begins on a cache line, with what every look-up reads: an entry takes no more lines than it must.
#[derive(Debug)]
#[repr(C, align(64))]
struct Slot<T> {
    generation: u32,
    /// While it is free: the slot that was freed next.
    next_free: u32,
    value: Option<T>,
}

/// Ends the list of free slots.
const NONE: u32 = u32::MAX;

/// Bytes that are moved at most when a table grows.
const MOVED: usize = 256 << 10;

/// Slots that are not moved, [`Table::BLOCK`] in each block but the last.
#[derive(Debug)]
struct Blocks<T>(Vec<Vec<Slot<T>>>);

impl<T> Slot<T> {
    /// A slot without an entry, whose first one will have generation 0.
    fn vacant() -> Slot<T> {
        Slot { generation: u32::MAX, next_free: NONE, value: None }
    }
}

/// Entries with stable, dense keys. Slots are reused in the order in which they were freed, so that
/// a name that appears on the wire rests as long as possible.
///
/// A table that grows moves its first slots. Further ones are in blocks that stay where they are: to move a large table for
/// one more entry would hold up its owner for milliseconds.
// In order of use: see `Fep`.
#[derive(Debug)]
#[repr(C)]
pub struct Table<T> {
    /// The first slots, up to [`Table::BLOCK`]. The last of them may never have been used.
    slots: Box<[Slot<T>]>,
    /// The slot that has been free for longest, of those that have been used.
    oldest_free: u32,
    /// The number of entries.
    len: u32,
    /// The slot freed last, if any is free.
    newest_free: u32,
    /// The other slots; `None` while there are no others. Boxed, as most tables need none.
    blocks: Option<Box<Blocks<T>>>,
}

const _: () = assert!(size_of::<Table<u64>>() == 40);

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table { slots: Box::default(), oldest_free: NONE, len: 0, newest_free: NONE, blocks: None }
    }
}

impl<T> Table<T> {
    /// The slots of a block, a power of two: when there is room for so many, half of them have been moved.
    const BLOCK: usize = 1 << (2 * MOVED / size_of::<Slot<T>>()).ilog2();

    /// The number of entries.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of slots, free ones included.
    pub(crate) fn slots(&self) -> u32 {
        let last = |blocks: &Blocks<T>| blocks.0.last().map_or(0, Vec::len);
        let others = self.blocks.as_deref().map_or(0, |all| (all.0.len() - 1) * Self::BLOCK + last(all));
        (self.slots.len() + others) as u32
    }

    /// Adds an entry.
    #[inline(always)]
    pub fn insert(&mut self, value: T) -> Key {
        self.insert_with(|_| value)
    }

    /// Adds the entry that `make` returns for its key.
    // One path for all slots, in which the entry is made where it stays: each move of one just made is a store-forwarding
    // stall (see `crate::prefetch`).
    #[inline(always)]
    pub fn insert_with(&mut self, make: impl FnOnce(Key) -> T) -> Key {
        if self.oldest_free == NONE {
            self.add_slot();
        }
        let index = self.oldest_free;
        let slot = match self.slots.get_mut(index as usize) {
            Some(slot) => slot,
            None => far_mut(&mut self.blocks, index).expect("slots that are free are there"),
        };
        self.oldest_free = slot.next_free;
        self.len += 1;
        slot.generation = slot.generation.wrapping_add(1);
        let key = Key { index, generation: slot.generation };
        // A free slot has no entry that would have to be dropped.
        slot.value.get_or_insert_with(|| make(key));
        key
    }

    /// Makes a slot free where none is.
    #[cold]
    #[inline(never)]
    fn add_slot(&mut self) {
        let index = self.len as usize;
        if index >= Self::BLOCK {
            self.add_far_slot();
        } else if index == self.slots.len() {
            let mut slots = std::mem::take(&mut self.slots).into_vec();
            // Most endpoints have one or two of what is large, and Vec would begin with room for four.
            slots.reserve_exact(index.max(1));
            slots.resize_with(index + index.max(1), Slot::vacant);
            self.slots = slots.into_boxed_slice();
        }
        (self.oldest_free, self.newest_free) = (self.len, self.len);
    }

    /// Adds a slot behind the first ones.
    fn add_far_slot(&mut self) {
        let Blocks(blocks) = &mut **self.blocks.get_or_insert_with(|| Box::new(Blocks(Vec::new())));
        if (self.len as usize).is_multiple_of(Self::BLOCK) {
            blocks.push(Vec::with_capacity(Self::BLOCK));
        }
        blocks.last_mut().expect("it has a block").push(Slot::vacant());
    }

    #[inline]
    fn slot(&self, index: u32) -> Option<&Slot<T>> {
        match self.slots.get(index as usize) {
            Some(slot) => Some(slot),
            None => far(&self.blocks, index),
        }
    }

    #[inline]
    fn slot_mut(&mut self, index: u32) -> Option<&mut Slot<T>> {
        match self.slots.get_mut(index as usize) {
            Some(slot) => Some(slot),
            None => far_mut(&mut self.blocks, index),
        }
    }

    /// Brings the entry of slot `index` into the cache, if it is one of the first slots.
    #[inline]
    pub(crate) fn prefetch(&self, index: u32) {
        if let Some(slot) = self.slots.get(index as usize) {
            crate::prefetch::prefetch(slot);
        }
    }

    /// The entry `key`.
    #[inline(always)]
    pub fn get(&self, key: Key) -> Option<&T> {
        let slot = self.slot(key.index)?;
        if slot.generation == key.generation { slot.value.as_ref() } else { None }
    }

    /// The entry `key`.
    #[inline(always)]
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let slot = self.slot_mut(key.index)?;
        if slot.generation == key.generation { slot.value.as_mut() } else { None }
    }

    /// The present entry of slot `index`, whatever its generation, with its key.
    #[inline]
    pub fn at(&self, index: u32) -> Option<(Key, &T)> {
        let slot = self.slot(index)?;
        slot.value.as_ref().map(|value| (Key { index, generation: slot.generation }, value))
    }

    /// Like [`Table::at`], to change the entry.
    #[inline]
    pub fn at_mut(&mut self, index: u32) -> Option<(Key, &mut T)> {
        let slot = self.slot_mut(index)?;
        let key = Key { index, generation: slot.generation };
        slot.value.as_mut().map(|value| (key, value))
    }

    /// Takes the entry `key` out.
    #[inline]
    pub fn remove(&mut self, key: Key) -> Option<T> {
        let slot = self.slot_mut(key.index)?;
        if slot.generation != key.generation {
            return None;
        }
        let value = slot.value.take()?;
        slot.next_free = NONE;
        self.free(key.index);
        Some(value)
    }

    /// Drops the entry `key`, after `take` has taken from it what is still needed. A large entry is not moved for that.
    #[inline]
    pub(crate) fn remove_with<R>(&mut self, key: Key, take: impl FnOnce(&mut T) -> R) -> Option<R> {
        let slot = self.slot_mut(key.index)?;
        if slot.generation != key.generation {
            return None;
        }
        let taken = take(slot.value.as_mut()?);
        slot.value = None;
        slot.next_free = NONE;
        self.free(key.index);
        Some(taken)
    }

    /// A slot is free from now on, as the last one of those that are.
    #[inline]
    fn free(&mut self, index: u32) {
        if self.oldest_free == NONE {
            self.oldest_free = index;
        } else if let Some(newest) = self.slot_mut(self.newest_free) {
            newest.next_free = index;
        }
        self.newest_free = index;
        self.len -= 1;
    }

    /// Gives back the memory of some slots of a table that is empty, and of which nothing more is wanted: the system takes a while
    /// to get back that of a large one. Returns how many bytes that was, 0 if none is left.
    pub(crate) fn give_back_some(&mut self) -> usize {
        debug_assert!(self.is_empty());
        (self.oldest_free, self.newest_free) = (NONE, NONE);
        if let Some(mut blocks) = self.blocks.take()
            && let Some(block) = blocks.0.pop()
        {
            self.blocks = (!blocks.0.is_empty()).then_some(blocks);
            return block.capacity() * size_of::<Slot<T>>();
        }
        size_of_val(&*std::mem::take(&mut self.slots))
    }

    /// All entries in the order of their slots.
    pub fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        let others = self.blocks.iter().flat_map(|blocks| blocks.0.iter().flatten());
        self.slots.iter().chain(others).enumerate().filter_map(|(index, slot)| {
            let key = Key { index: index as u32, generation: slot.generation };
            slot.value.as_ref().map(|value| (key, value))
        })
    }

    /// Bytes of heap that its slots take, free ones included; not what the entries hold themselves.
    pub(crate) fn heap_bytes(&self) -> u64 {
        let of_blocks = |blocks: &Blocks<T>| {
            let each = blocks.0.iter().map(crate::heap::of_vec).sum::<u64>();
            size_of_val(blocks) as u64 + crate::heap::of_vec(&blocks.0) + each
        };
        size_of_val(&*self.slots) as u64 + self.blocks.as_deref().map_or(0, of_blocks)
    }
}

/// A slot that is not one of the first.
#[cold]
#[inline(never)]
fn far<T>(blocks: &Option<Box<Blocks<T>>>, index: u32) -> Option<&Slot<T>> {
    let index = index as usize;
    blocks.as_ref()?.0.get((index / Table::<T>::BLOCK).checked_sub(1)?)?.get(index % Table::<T>::BLOCK)
}

#[cold]
#[inline(never)]
fn far_mut<T>(blocks: &mut Option<Box<Blocks<T>>>, index: u32) -> Option<&mut Slot<T>> {
    let index = index as usize;
    blocks
        .as_mut()?
        .0
        .get_mut((index / Table::<T>::BLOCK).checked_sub(1)?)?
        .get_mut(index % Table::<T>::BLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_is_not_wanted_any_more_gives_its_memory_back_in_blocks() {
        for count in [0u64, 1, 1_000, 100_000] {
            let mut table = Table::default();
            let keys: Vec<Key> = (0..count).map(|n| table.insert([n; 9])).collect();
            keys.iter().for_each(|key| assert!(table.remove(*key).is_some()));
            let most = Table::<[u64; 9]>::BLOCK * size_of::<Slot<[u64; 9]>>();
            loop {
                let before = table.heap_bytes();
                let bytes = table.give_back_some();
                assert!(bytes <= most && before - table.heap_bytes() >= bytes as u64);
                let left = table.slots() as usize * size_of::<Slot<[u64; 9]>>();
                assert!(left <= before as usize, "{count}: {left} of {before} after {bytes}");
                if bytes == 0 {
                    break;
                }
            }
            assert_eq!((table.heap_bytes(), table.slots()), (0, 0));
        }
    }

    #[test]
    fn keys_of_former_holders_are_dead() {
        let mut table = Table::default();
        let a = table.insert("a");
        let b = table.insert("b");
        assert_eq!(table.remove(a), Some("a"));
        assert_eq!(table.remove(a), None);
        assert_eq!(table.remove_with(a, |_| ()), None);
        let c = table.insert("c");
        assert_eq!(c.index, a.index);
        assert_eq!((table.get(a), table.get(b), table.get(c)), (None, Some(&"b"), Some(&"c")));
        assert_eq!(table.at(c.index), Some((c, &"c")));
        assert_eq!((table.len(), table.iter().count()), (2, 2));
    }

    #[test]
    fn slots_rest_as_long_as_possible() {
        let mut table = Table::default();
        let keys: Vec<Key> = (0..4).map(|n| table.insert(n)).collect();
        for n in [2, 0, 3] {
            assert_eq!(table.remove(keys[n]), Some(n));
        }
        assert_eq!(table.insert(9).index, 2);
        assert_eq!(table.remove_with(keys[1], |n| std::mem::replace(n, 7)), Some(1));
        let reused: Vec<u32> = (0..4).map(|n| table.insert(n).index).collect();
        assert_eq!(reused, [0, 3, 1, 4]);
        assert_eq!((table.len(), table.iter().count()), (5, 5));
    }

    #[test]
    fn a_large_table_never_moves_its_entries_and_finds_all_of_them() {
        // 128 bytes with its header: 4,096 slots in a block.
        let mut table = Table::<[u64; 9]>::default();
        let keys: Vec<Key> =
            (0..3 * Table::<[u64; 9]>::BLOCK as u64 + 5).map(|n| table.insert([n; 9])).collect();
        assert!(keys.iter().enumerate().all(|(at, key)| *key == Key { index: at as u32, generation: 0 }));
        let places = |table: &Table<[u64; 9]>| {
            keys.iter().filter_map(|key| table.get(*key).map(core::ptr::from_ref)).collect::<Vec<_>>()
        };
        let before = places(&table);
        let more: Vec<Key> = (0..20_000).map(|n| table.insert([n; 9])).collect();
        assert_eq!(before, places(&table));
        assert!(table.iter().map(|(key, _)| key).eq(keys.iter().chain(&more).copied()));
        assert!(table.get(Key { index: table.len() as u32, generation: 0 }).is_none());
        assert!(table.at_mut(u32::MAX).is_none());
        for (at, key) in keys.iter().enumerate().step_by(3) {
            assert_eq!(table.get_mut(*key).map(|value| value[8]), Some(at as u64));
            assert_eq!(table.remove(*key), Some([at as u64; 9]));
            assert_eq!((table.get(*key), table.at(key.index)), (None, None));
        }
        let freed = keys.iter().step_by(3).map(|key| Key { generation: 1, ..*key });
        let reused: Vec<Key> = (0..freed.len()).map(|_| table.insert([0; 9])).collect();
        assert!(freed.eq(reused), "in the order in which they were freed");
        assert_eq!(table.len(), keys.len() + more.len());
        assert_eq!(table.insert([0; 9]), Key { index: table.len() as u32 - 1, generation: 0 });
    }

    #[test]
    fn a_table_grows_by_moving_no_more_than_a_quarter_of_a_mebibyte() {
        let mut table = Table::<[u64; 40]>::default();
        let mut room = 0;
        while table.len() < 5_000 {
            table.insert([0; 40]);
            if table.slots.len() != room {
                assert!(room * size_of::<Slot<[u64; 40]>>() <= MOVED, "{room} slots were moved");
                room = table.slots.len();
            }
        }
        assert!(table.slots.len() < 2_000 && table.blocks.is_some());
    }
}
