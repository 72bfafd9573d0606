//! Packets of one kind that wait at a port, in the order in which they came.

use std::hint::select_unpredictable;

use super::queue::Queued;

/// A ring that grows. (Made for what a port does at each packet: with the standard library's the processor
/// has to guess which lane it works on, and whether it is empty now, and guesses wrong too often.)
#[derive(Debug)]
pub(super) struct Lane<P> {
    /// As many as a power of two, or none.
    slots: Vec<P>,
    head: u32,
    len: u32,
    bytes: u64,
}

/// Slots at first.
const FEWEST: usize = 4;

impl<P: Queued> Lane<P> {
    pub(super) fn new() -> Lane<P> {
        Lane { slots: Vec::new(), head: 0, len: 0, bytes: 0 }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of what waits.
    #[inline]
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    #[inline]
    pub(super) fn push(&mut self, packet: P) {
        if self.len as usize == self.slots.len() {
            self.grow(packet);
        }
        let slot = (self.head + self.len) as usize & (self.slots.len() - 1);
        self.slots[slot] = packet;
        self.len += 1;
        self.bytes += u64::from(packet.size());
    }

    /// Makes room, filled with `filler`.
    #[cold]
    fn grow(&mut self, filler: P) {
        self.slots.rotate_left(self.head as usize);
        self.head = 0;
        self.slots.resize((2 * self.slots.len()).max(FEWEST), filler);
    }

    #[inline]
    pub(super) fn front(&self) -> Option<&P> {
        if self.len == 0 { None } else { self.slots.get(self.head as usize) }
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Option<P> {
        let packet = *self.front()?;
        self.len -= 1;
        let next = (self.head + 1) & (self.slots.len() - 1) as u32;
        // Back to the start of its memory: the less of it is used the more of it is in the cache.
        self.head = select_unpredictable(self.len == 0, 0, next);
        self.bytes -= u64::from(packet.size());
        Some(packet)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use proptest::prelude::*;
    use weft_stack::packet::Class;

    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Bytes(u32);

    impl Queued for Bytes {
        fn class(&self) -> Class {
            Class::Data
        }
        fn size(&self) -> u32 {
            self.0
        }
        fn trimmed_size(&self) -> u32 {
            self.0
        }
        fn trim(&mut self, _: Class) {}
        fn mark(&mut self) {}
    }

    proptest! {
        #[test]
        fn agrees_with_the_standard_library(steps in prop::collection::vec(prop::option::of(1u32..10_000), 0..300)) {
            let (mut lane, mut expected) = (Lane::new(), VecDeque::new());
            for step in steps {
                match step {
                    Some(size) => {
                        lane.push(Bytes(size));
                        expected.push_back(Bytes(size));
                    }
                    None => prop_assert_eq!(lane.pop(), expected.pop_front()),
                }
                prop_assert_eq!(lane.front(), expected.front());
                prop_assert_eq!(lane.is_empty(), expected.is_empty());
                prop_assert_eq!(lane.bytes(), expected.iter().map(|bytes| u64::from(bytes.0)).sum::<u64>());
            }
        }
    }
}
