//! A FIFO queue of packets at a port.

use std::hint::select_unpredictable;

use super::queue::Queued;

/// A growing ring buffer without unpredictable branches. With `VecDeque`, the branches on the lane and on
/// emptiness would often be mispredicted.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Lane<P> {
    len: u32,
    head: u32,
    bytes: u64,
    /// Their number is a power of two, or zero.
    slots: Box<[P]>,
}

/// Initial number of slots.
const FEWEST: usize = 4;

impl<P: Queued> Lane<P> {
    pub(super) fn new() -> Lane<P> {
        Lane { len: 0, head: 0, bytes: 0, slots: Box::default() }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of the waiting packets.
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

    /// Doubles the ring, filling the new slots with `filler`.
    #[cold]
    fn grow(&mut self, filler: P) {
        let mut slots = std::mem::take(&mut self.slots).into_vec();
        slots.rotate_left(self.head as usize);
        self.head = 0;
        slots.resize((2 * slots.len()).max(FEWEST), filler);
        self.slots = slots.into_boxed_slice();
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
        // An empty ring starts again at the front of its memory, so that the same cache lines are used again.
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
    use weft_stack::wire::class::Priority;

    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Bytes(u32);

    impl Queued for Bytes {
        fn class(&self) -> Class {
            Class::Data
        }
        fn priority(&self) -> Priority {
            Priority::LOWEST
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
        fn behaves_like_a_vec_deque(steps in prop::collection::vec(prop::option::of(1u32..10_000), 0..300)) {
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
