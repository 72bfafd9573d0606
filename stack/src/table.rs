//! A slab whose keys tell the present holder of a slot from earlier ones.

use std::collections::VecDeque;

/// Names an entry of a [`Table`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// The slot, dense from 0.
    pub index: u32,
    /// How often the slot had been used before.
    pub generation: u32,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

/// Entries with stable, dense keys. Slots are reused in the order in which they were freed, so that
/// a name that appears on the wire rests as long as possible.
#[derive(Debug)]
pub struct Table<T> {
    slots: Vec<Slot<T>>,
    free: VecDeque<u32>,
}

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table { slots: Vec::new(), free: VecDeque::new() }
    }
}

impl<T> Table<T> {
    /// Entries present.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds an entry.
    pub fn insert(&mut self, value: T) -> Key {
        self.insert_with(|_| value)
    }

    /// Adds the entry that `make` returns for its key.
    pub fn insert_with(&mut self, make: impl FnOnce(Key) -> T) -> Key {
        match self.free.pop_front() {
            Some(index) => {
                let slot = &mut self.slots[index as usize];
                slot.generation = slot.generation.wrapping_add(1);
                let key = Key { index, generation: slot.generation };
                slot.value = Some(make(key));
                key
            }
            None => {
                let key = Key { index: self.slots.len() as u32, generation: 0 };
                self.slots.push(Slot { generation: 0, value: Some(make(key)) });
                key
            }
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
    pub fn remove(&mut self, key: Key) -> Option<T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.generation != key.generation {
            return None;
        }
        let value = slot.value.take()?;
        self.free.push_back(key.index);
        Some(value)
    }

    /// All entries in the order of their slots.
    pub fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| {
            let key = Key { index: index as u32, generation: slot.generation };
            slot.value.as_ref().map(|value| (key, value))
        })
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
}
