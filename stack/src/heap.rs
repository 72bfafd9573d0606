//! Heap memory that collections hold, in bytes, for the counts of [`Footprint`](crate::fep::Footprint), and when they give it back.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::buffer::Buffer;

/// A queue of so many bytes gives nothing back.
const SPARE: usize = 512;

/// Whether a collection of `len` elements with room for `capacity` should give memory back: it has room for more than `spare`, and uses
/// a quarter at most. Growing again costs no more than what needs the room.
#[inline]
pub(crate) fn is_too_large(len: usize, capacity: usize, spare: usize) -> bool {
    capacity > spare && len <= capacity / 4
}

/// Gives back the memory of a queue that has become much shorter.
#[inline]
pub(crate) fn give_back<T>(deque: &mut VecDeque<T>) {
    if is_too_large(deque.len(), deque.capacity(), SPARE / size_of::<T>().max(1)) {
        deque.shrink_to(2 * deque.len());
    }
}

/// Bytes that `vec` has allocated for its elements; not those that the elements hold themselves.
pub(crate) fn of_vec<T>(vec: &Vec<T>) -> u64 {
    (vec.capacity() * size_of::<T>()) as u64
}

/// Bytes that `deque` has allocated for its elements.
pub(crate) fn of_deque<T>(deque: &VecDeque<T>) -> u64 {
    (deque.capacity() * size_of::<T>()) as u64
}

/// Bytes that `map` has allocated for its entries. The table of std has a power of two of buckets, at most 7/8 of
/// them in use, a byte beside each, and 16 bytes more.
pub(crate) fn of_map<K, V, S>(map: &HashMap<K, V, S>) -> u64 {
    match map.capacity() {
        0 => 0,
        usable => {
            let buckets = (usable * 8 / 7).next_power_of_two();
            ((buckets * size_of::<(K, V)>()).next_multiple_of(16) + buckets + 16) as u64
        }
    }
}

/// Bytes that `tree` has allocated for its entries at most: its nodes have room for 11, and hold five at least.
pub(crate) fn of_tree<K, V>(tree: &BTreeMap<K, V>) -> u64 {
    (tree.len().div_ceil(5) * 11 * size_of::<(K, V)>()) as u64
}

/// Bytes that `buffer` owns.
pub(crate) fn of_buffer(buffer: &Buffer) -> u64 {
    match buffer {
        // A region is its owner's.
        Buffer::Virtual(_) | Buffer::Region(_) => 0,
        Buffer::Heap(bytes) => bytes.capacity() as u64,
        Buffer::Bytes(bytes) => (size_of::<bytes::Bytes>() + bytes.len()) as u64,
        // Its owner is not known.
        Buffer::Owned(bytes) => bytes.as_slice().len() as u64,
        Buffer::BytesMut(bytes) => (size_of::<bytes::BytesMut>() + bytes.capacity()) as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_that_becomes_shorter_gives_memory_back_and_keeps_its_elements() {
        let mut queue: VecDeque<u64> = (0..10_000).collect();
        for next in 0..10_000 {
            assert_eq!(queue.pop_front(), Some(next));
            give_back(&mut queue);
            let (len, room) = (queue.len(), queue.capacity());
            assert!(room <= (4 * len + 3).max(SPARE / size_of::<u64>()), "room for {room} with {len}");
        }
    }
}
