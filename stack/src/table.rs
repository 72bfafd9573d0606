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

/// Entries with stable, dense keys. Slots are reused in the order in which they were freed, so that
/// a name that appears on the wire rests as long as possible.
#[derive(Debug)]
pub struct Table<T> {
    slots: Vec<Slot<T>>,
    /// The slot that has been free for longest, and the one freed last.
    oldest_free: u32,
    newest_free: u32,
    free: u32,
}

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table { slots: Vec::new(), oldest_free: NONE, newest_free: NONE, free: 0 }
    }
}

impl<T> Table<T> {
    /// The number of entries.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free as usize
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds an entry.
    #[inline]
    pub fn insert(&mut self, value: T) -> Key {
        self.insert_with(|_| value)
    }

    /// Adds the entry that `make` returns for its key.
    #[inline]
    pub fn insert_with(&mut self, make: impl FnOnce(Key) -> T) -> Key {
        if self.free == 0 {
            self.add_slot();
        }
        let index = self.oldest_free;
        let slot = &mut self.slots[index as usize];
        self.oldest_free = slot.next_free;
        self.free -= 1;
        slot.generation = slot.generation.wrapping_add(1);
        let key = Key { index, generation: slot.generation };
        slot.value = Some(make(key));
        key
    }

    /// Adds a free slot where there is none.
    #[cold]
    #[inline(never)]
    fn add_slot(&mut self) {
        if self.slots.len() == self.slots.capacity() {
            // Most endpoints have one or two of what is large, and Vec would begin with room for four.
            self.slots.reserve_exact(self.slots.len().max(1));
        }
        (self.oldest_free, self.newest_free, self.free) =
            (self.slots.len() as u32, self.slots.len() as u32, 1);
        // Its first holder has generation 0.
        self.slots.push(Slot { generation: u32::MAX, next_free: NONE, value: None });
    }

    /// Brings the entry of slot `index` into the cache, if there is such a slot.
    #[inline]
    pub(crate) fn prefetch(&self, index: u32) {
        if let Some(slot) = self.slots.get(index as usize) {
            crate::prefetch::prefetch(slot);
        }
    }

    /// The entry `key`.
    #[inline]
    pub fn get(&self, key: Key) -> Option<&T> {
        let slot = self.slots.get(key.index as usize)?;
        if slot.generation == key.generation { slot.value.as_ref() } else { None }
    }

    /// The entry `key`.
    #[inline]
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.generation == key.generation { slot.value.as_mut() } else { None }
    }

    /// The present entry of slot `index`, whatever its generation, with its key.
    #[inline]
    pub fn at(&self, index: u32) -> Option<(Key, &T)> {
        let slot = self.slots.get(index as usize)?;
        slot.value.as_ref().map(|value| (Key { index, generation: slot.generation }, value))
    }

    /// Like [`Table::at`], to change the entry.
    #[inline]
    pub fn at_mut(&mut self, index: u32) -> Option<(Key, &mut T)> {
        let slot = self.slots.get_mut(index as usize)?;
        let key = Key { index, generation: slot.generation };
        slot.value.as_mut().map(|value| (key, value))
    }

    /// Takes the entry `key` out.
    #[inline]
    pub fn remove(&mut self, key: Key) -> Option<T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.generation != key.generation {
            return None;
        }
        let value = slot.value.take()?;
        slot.next_free = NONE;
        match self.free {
            0 => self.oldest_free = key.index,
            _ => self.slots[self.newest_free as usize].next_free = key.index,
        }
        self.newest_free = key.index;
        self.free += 1;
        Some(value)
    }

    /// All entries in the order of their slots.
    pub fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| {
            let key = Key { index: index as u32, generation: slot.generation };
            slot.value.as_ref().map(|value| (key, value))
        })
    }

    /// Bytes of heap that its slots take, free ones included; not what the entries hold themselves.
    pub(crate) fn heap_bytes(&self) -> u64 {
        crate::heap::of_vec(&self.slots)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_former_holders_are_dead() {
        let mut table = Table::default();
        let a = table.insert("a");
        let b = table.insert("b");
        assert_eq!(table.remove(a), Some("a"));
        assert_eq!(table.remove(a), None);
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
        assert!(table.remove(keys[1]).is_some());
        let reused: Vec<u32> = (0..4).map(|n| table.insert(n).index).collect();
        assert_eq!(reused, [0, 3, 1, 4]);
        assert_eq!((table.len(), table.iter().count()), (5, 5));
    }
}
