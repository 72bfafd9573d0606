//! A table whose entries have small numbers, which are used again.

/// Entries by number.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    entries: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab { entries: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub(crate) fn insert(&mut self, entry: T) -> usize {
        match self.free.pop() {
            Some(number) => {
                self.entries[number] = Some(entry);
                number
            }
            None => {
                self.entries.push(Some(entry));
                self.entries.len() - 1
            }
        }
    }

    pub(crate) fn remove(&mut self, number: usize) -> Option<T> {
        let entry = self.entries.get_mut(number)?.take()?;
        self.free.push(number);
        Some(entry)
    }

    pub(crate) fn get_mut(&mut self, number: usize) -> Option<&mut T> {
        self.entries.get_mut(number)?.as_mut()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().flatten()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().flatten()
    }

    /// The numbers of all entries that are such.
    pub(crate) fn numbers(&self, is_one: impl Fn(&T) -> bool) -> Vec<usize> {
        let entries = self.entries.iter().enumerate();
        let found = entries.filter(|(_, entry)| entry.as_ref().is_some_and(&is_one));
        found.map(|(number, _)| number).collect()
    }

    /// The number of the first entry that is one of those.
    pub(crate) fn position(&self, is_one: impl Fn(&T) -> bool) -> Option<usize> {
        self.entries.iter().position(|entry| entry.as_ref().is_some_and(&is_one))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_used_again_when_their_entries_are_gone() {
        let mut slab = Slab::default();
        assert_eq!((slab.insert('a'), slab.insert('b')), (0, 1));
        assert_eq!((slab.remove(0), slab.remove(0), slab.remove(7)), (Some('a'), None, None));
        assert_eq!(slab.insert('c'), 0);
        assert_eq!(slab.iter().collect::<String>(), "cb");
        *slab.get_mut(1).unwrap() = 'd';
        assert_eq!(slab.remove(1), Some('d'));
    }
}
