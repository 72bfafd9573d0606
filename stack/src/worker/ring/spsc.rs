//! The ring: one thread fills slots, another empties them.
//!
//! Each end keeps its own index, and a copy of the peer's from the last read. It reads the peer's cache line only if
//! the copy says that there is no room, or nothing to take. A batch costs one write of the own index.

use super::storage::{RingError, Storage};
use super::sync::{Ordering, fence};
use crate::prefetch::prefetch;
use crate::region::Region;

/// The peer has written an impossible index: the ring is unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the ring is broken: the other end's index was {known}, with {own} here, and is {found}")]
pub struct Broken {
    /// This end's index.
    pub own: u32,
    /// The peer's index, as last read.
    pub known: u32,
    /// The peer's index now.
    pub found: u32,
}

/// The end that fills slots of `W` words.
#[derive(Debug)]
pub struct Producer<const W: usize> {
    ring: Storage<W>,
    /// Number of slots filled, including those staged and not published.
    tail: u32,
    published: u32,
    /// Number of slots emptied, as last read.
    head: u32,
    /// Whether the consumer is told when this end is dropped.
    tells: bool,
}

/// The end that empties slots of `W` words.
#[derive(Debug)]
pub struct Consumer<const W: usize> {
    ring: Storage<W>,
    /// Number of slots emptied.
    head: u32,
    /// Number of slots filled, as last read.
    tail: u32,
    /// Whether the producer is told when this end is dropped.
    tells: bool,
}

/// A ring of `capacity` slots, a power of two, of `W` words each, in memory of its own.
///
/// # Errors
/// The capacity is not possible, or there is no memory.
pub fn ring<const W: usize>(capacity: u32) -> Result<(Producer<W>, Consumer<W>), RingError> {
    let ring = Storage::new(capacity)?;
    Ok((Producer::of(ring.clone(), 0), Consumer::of(ring, 0)))
}

impl<const W: usize> Producer<W> {
    /// The producing end of the ring of `capacity` slots at `offset` of `region`. All bytes of the ring must be 0 when
    /// its first end is made, and there must be no other producing end, because two would overwrite each other's
    /// slots.
    ///
    /// # Errors
    /// The capacity or offset is not possible, or the ring does not fit.
    pub fn at(region: &Region, offset: usize, capacity: u32) -> Result<Producer<W>, RingError> {
        Ok(Producer::of(Storage::at(region, offset, capacity)?, 0))
    }

    /// The producing end of a ring whose first `start` slots have all been emptied again.
    pub(super) fn of(ring: Storage<W>, start: u32) -> Producer<W> {
        Producer { ring, tail: start, published: start, head: start, tells: true }
    }

    /// Number of slots.
    pub fn capacity(&self) -> u32 {
        self.ring.capacity()
    }

    /// Number of free slots; at least `wanted` if that many are free.
    ///
    /// # Errors
    /// The consumer's index is impossible.
    #[inline]
    pub fn room(&mut self, wanted: u32) -> Result<u32, Broken> {
        let room = self.capacity() - self.tail.wrapping_sub(self.head);
        if room >= wanted {
            return Ok(room);
        }
        let head = self.ring.control().head.index.load(Ordering::Acquire);
        // The index moves forward, and at most to the published tail.
        if self.published.wrapping_sub(head) > self.published.wrapping_sub(self.head) {
            return Err(Broken { own: self.published, known: self.head, found: head });
        }
        self.head = head;
        Ok(self.capacity() - self.tail.wrapping_sub(self.head))
    }

    /// Fills a slot, which the consumer does not see before [`Producer::publish`]. Returns false if none is free.
    ///
    /// # Errors
    /// The consumer's index is impossible.
    #[inline(always)]
    pub fn stage(&mut self, words: &[u64; W]) -> Result<bool, Broken> {
        if self.room(1)? == 0 {
            return Ok(false);
        }
        for (place, word) in self.ring.slot(self.tail).iter().zip(words) {
            place.store(*word, Ordering::Relaxed);
        }
        self.tail = self.tail.wrapping_add(1);
        Ok(true)
    }

    /// Makes the staged slots visible to the consumer.
    #[inline]
    pub fn publish(&mut self) {
        if self.published != self.tail {
            self.published = self.tail;
            self.ring.control().tail.index.store(self.tail, Ordering::Release);
        }
    }

    /// Fills a slot and publishes it. Returns false if none is free.
    ///
    /// # Errors
    /// The consumer's index is impossible.
    #[inline]
    pub fn push(&mut self, words: &[u64; W]) -> Result<bool, Broken> {
        let staged = self.stage(words)?;
        self.publish();
        Ok(staged)
    }

    /// Fills as many slots as are free and publishes them together. Returns their number.
    ///
    /// # Errors
    /// The consumer's index is impossible.
    pub fn push_all(&mut self, slots: &[[u64; W]]) -> Result<usize, Broken> {
        let room = self.room(u32::try_from(slots.len()).unwrap_or(u32::MAX))?;
        let count = slots.len().min(room as usize);
        for words in &slots[..count] {
            self.stage(words)?;
        }
        self.publish();
        Ok(count)
    }

    /// Whether the consumer sleeps and the caller has to wake it; the next call returns false. Call this after
    /// publishing.
    #[inline]
    pub fn must_wake(&mut self) -> bool {
        // Pairs with the fence in `Consumer::may_sleep`: either this end sees that the consumer sleeps, or the
        // consumer sees the published slots.
        fence(Ordering::SeqCst);
        let asleep = &self.ring.control().asleep.index;
        asleep.load(Ordering::Relaxed) != 0 && asleep.swap(0, Ordering::Relaxed) != 0
    }

    /// Dropping this end writes nothing to the ring any more: the consumer does not see that the producer has left.
    pub fn leave_untold(&mut self) {
        self.tells = false;
    }

    /// Whether the consumer has left. Slots still in the ring will not be read.
    pub fn is_deserted(&self) -> bool {
        self.ring.control().head.left.load(Ordering::Acquire) != 0
    }
}

impl<const W: usize> Drop for Producer<W> {
    fn drop(&mut self) {
        if self.tells {
            self.ring.control().tail.left.store(1, Ordering::Release);
        }
    }
}

impl<const W: usize> Consumer<W> {
    /// The consuming end of the ring of `capacity` slots at `offset` of `region`. All bytes of the ring must be 0 when
    /// its first end is made, and there must be no other consuming end.
    ///
    /// # Errors
    /// The capacity or offset is not possible, or the ring does not fit.
    pub fn at(region: &Region, offset: usize, capacity: u32) -> Result<Consumer<W>, RingError> {
        Ok(Consumer::of(Storage::at(region, offset, capacity)?, 0))
    }

    pub(super) fn of(ring: Storage<W>, start: u32) -> Consumer<W> {
        Consumer { ring, head: start, tail: start, tells: true }
    }

    /// Number of slots.
    pub fn capacity(&self) -> u32 {
        self.ring.capacity()
    }

    /// Number of slots that can be taken; more than 0 if there are any.
    ///
    /// # Errors
    /// The producer's index is impossible.
    #[inline]
    pub fn available(&mut self) -> Result<u32, Broken> {
        if self.tail == self.head {
            self.refresh()?;
        }
        Ok(self.tail.wrapping_sub(self.head))
    }

    #[inline]
    fn refresh(&mut self) -> Result<(), Broken> {
        let tail = self.ring.control().tail.index.load(Ordering::Acquire);
        let filled = tail.wrapping_sub(self.head);
        // The index moves forward, and at most to where the ring is full.
        if filled > self.capacity() || filled < self.tail.wrapping_sub(self.head) {
            return Err(Broken { own: self.head, known: self.tail, found: tail });
        }
        self.tail = tail;
        Ok(())
    }

    /// Takes a slot.
    ///
    /// # Errors
    /// The producer's index is impossible.
    #[inline]
    pub fn pop(&mut self) -> Result<Option<[u64; W]>, Broken> {
        let mut slot = [[0; W]];
        Ok((self.pop_all(&mut slot)? == 1).then_some(slot[0]))
    }

    /// Prefetches the next slot; or, if none is known, the index that tells whether there is one.
    #[inline]
    pub(crate) fn prefetch(&self) {
        if self.tail == self.head {
            prefetch(&self.ring.control().tail.index);
        } else {
            prefetch(self.ring.slot(self.head));
        }
    }

    /// The first word of the next slot, if one is known, as [`Consumer::available`] has found it. A hostile producer may change it
    /// before it is taken.
    #[inline]
    pub(crate) fn known(&self) -> Option<u64> {
        (self.tail != self.head).then(|| self.ring.slot(self.head)[0].load(Ordering::Relaxed))
    }

    /// Takes as many slots as there are and as `slots` has room for, and frees them together. Returns their number.
    ///
    /// # Errors
    /// The producer's index is impossible.
    #[inline]
    pub fn pop_all(&mut self, slots: &mut [[u64; W]]) -> Result<usize, Broken> {
        let count = slots.len().min(self.available()? as usize);
        for (copy, index) in slots[..count].iter_mut().zip(0..) {
            let words = self.ring.slot(self.head.wrapping_add(index));
            for (copy, word) in copy.iter_mut().zip(words) {
                *copy = word.load(Ordering::Relaxed);
            }
        }
        if count > 0 {
            self.head = self.head.wrapping_add(count as u32);
            self.ring.control().head.index.store(self.head, Ordering::Release);
        }
        Ok(count)
    }

    /// Announces that this end is about to sleep. Returns false if it must not, because there is something to take. If
    /// it may sleep, the producer wakes it, and it calls [`Consumer::woken`] afterwards.
    ///
    /// # Errors
    /// The producer's index is impossible.
    pub fn may_sleep(&mut self) -> Result<bool, Broken> {
        // Both sides write the flag with exchanges, which are totally ordered among themselves. A store on one side
        // would need an argument that the model checker does not follow.
        self.ring.control().asleep.index.swap(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let empty = self.available()? == 0;
        if !empty {
            self.woken();
        }
        Ok(empty)
    }

    /// Announces that this end no longer sleeps.
    pub fn woken(&mut self) {
        self.ring.control().asleep.index.swap(0, Ordering::Relaxed);
    }

    /// Dropping this end writes nothing to the ring any more: the producer does not see that the consumer has left.
    pub fn leave_untold(&mut self) {
        self.tells = false;
    }

    /// Whether the producer has left. The ring may still hold slots to take.
    #[inline]
    pub fn is_deserted(&self) -> bool {
        self.ring.control().tail.left.load(Ordering::Acquire) != 0
    }

    /// Whether the producer has left and the ring is empty.
    ///
    /// # Errors
    /// The producer's index is impossible.
    pub fn is_finished(&mut self) -> Result<bool, Broken> {
        // Checked before the index, because slots published before the producer left count.
        Ok(self.is_deserted() && self.available()? == 0)
    }
}

impl<const W: usize> Drop for Consumer<W> {
    fn drop(&mut self) {
        if self.tells {
            self.ring.control().head.left.store(1, Ordering::Release);
        }
    }
}

#[cfg(all(test, loom))]
mod model;
#[cfg(all(test, not(loom)))]
mod tests;
