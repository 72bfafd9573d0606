//! The memory layout of a ring.
//!
//! | offset | what | written by |
//! |---|---|---|
//! | 0 | tail, u32: slots ever filled, modulo 2³²; then u32: not 0 once the producer has left | producer |
//! | 128 | head, u32: slots ever emptied, modulo 2³²; then u32: not 0 once the consumer has left | consumer |
//! | 256 | u32: not 0 while the consumer sleeps and wants to be woken | both |
//! | 384 | capacity × W words of 64 bits | producer |

#[cfg(not(loom))]
pub(super) use mapped::Storage;
#[cfg(loom)]
pub(super) use model::Storage;

use super::sync::AtomicU32;
use crate::region::{RegionError, SEPARATION};

/// One side's index, and whether that side has left.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub(super) struct Line {
    pub(super) index: AtomicU32,
    pub(super) left: AtomicU32,
}

/// The control words in front of the slots.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub(super) struct Control {
    pub(super) tail: Line,
    pub(super) head: Line,
    pub(super) asleep: Line,
}

/// Offset of the slots, bytes.
const SLOTS: usize = 3 * SEPARATION;
#[cfg(not(loom))]
const _: () = assert!(size_of::<Control>() == SLOTS);

/// Why a ring cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// The capacity is not a power of two in range.
    #[error("a ring of {0} slots: expected a power of two from 2 to 2^30")]
    Capacity(u32),
    /// The offset is not aligned.
    #[error("a ring at offset {0}: expected a multiple of {SEPARATION}")]
    Alignment(usize),
    /// The ring does not fit its region.
    #[error(transparent)]
    Region(#[from] RegionError),
}

/// Size of a ring of `capacity` slots of `words` words, bytes; a multiple of [`SEPARATION`].
///
/// # Errors
/// The capacity is not possible.
pub fn ring_bytes(capacity: u32, words: usize) -> Result<usize, RingError> {
    check(capacity)?;
    let slots = (capacity as usize).checked_mul(words * 8).ok_or(RingError::Capacity(capacity))?;
    Ok(SLOTS + slots.next_multiple_of(SEPARATION))
}

fn check(capacity: u32) -> Result<(), RingError> {
    let fits = capacity.is_power_of_two() && (2..=1 << 30).contains(&capacity);
    if fits { Ok(()) } else { Err(RingError::Capacity(capacity)) }
}

#[cfg(not(loom))]
mod mapped {
    #![allow(unsafe_code)]

    use core::ptr::NonNull;

    use super::super::sync::AtomicU64;
    use super::{Control, RingError, SEPARATION, SLOTS, ring_bytes};
    use crate::region::Region;

    /// The words of a ring in a region.
    #[derive(Clone, Debug)]
    pub(in super::super) struct Storage<const W: usize> {
        control: NonNull<Control>,
        slots: NonNull<[AtomicU64; W]>,
        capacity: u32,
        /// Keeps the memory allocated.
        _region: Region,
    }

    // SAFETY: both pointers lead only to atomics, which any thread may use, in memory that `_region` keeps allocated.
    unsafe impl<const W: usize> Send for Storage<W> {}
    // SAFETY: as for `Send`: several threads at a time access nothing but atomics.
    unsafe impl<const W: usize> Sync for Storage<W> {}

    impl<const W: usize> Storage<W> {
        /// The ring at `offset` of `region`.
        pub(in super::super) fn at(
            region: &Region,
            offset: usize,
            capacity: u32,
        ) -> Result<Storage<W>, RingError> {
            let base = region.part(offset, ring_bytes(capacity, W)?)?;
            if !base.addr().get().is_multiple_of(SEPARATION) {
                return Err(RingError::Alignment(offset));
            }
            // SAFETY: `part` has checked that `ring_bytes` bytes from `base` lie in the region.
            let slots = unsafe { base.add(SLOTS) };
            Ok(Storage { control: base.cast(), slots: slots.cast(), capacity, _region: region.clone() })
        }

        /// A ring in memory of its own.
        pub(in super::super) fn new(capacity: u32) -> Result<Storage<W>, RingError> {
            let region = Region::allocate(ring_bytes(capacity, W)?)?;
            Storage::at(&region, 0, capacity)
        }

        pub(in super::super) fn capacity(&self) -> u32 {
            self.capacity
        }

        #[inline]
        pub(in super::super) fn control(&self) -> &Control {
            // SAFETY: `at` has checked that a `Control` lies here in the region, aligned, and `_region` keeps it. It
            // consists of atomics, for which any bytes are values, and regions are accessed only by atomics or by
            // copies that behave like them.
            unsafe { self.control.as_ref() }
        }

        /// The words of the slot with number `index` modulo the capacity.
        #[inline]
        pub(in super::super) fn slot(&self, index: u32) -> &[AtomicU64; W] {
            let at = (index & (self.capacity - 1)) as usize;
            // SAFETY: `at` is less than the capacity, and `Storage::at` has checked that so many slots lie in the
            // region, which `_region` keeps. Slots are aligned atomics, for which any bytes are values, and regions
            // are accessed only by atomics or by copies that behave like them.
            unsafe { self.slots.add(at).as_ref() }
        }
    }
}

#[cfg(loom)]
mod model {
    use std::sync::Arc;

    use super::super::sync::AtomicU64;
    use super::{Control, RingError, check};

    /// The words of a ring for the model checker, which knows objects instead of memory.
    #[derive(Clone, Debug)]
    pub(in super::super) struct Storage<const W: usize> {
        control: Arc<Control>,
        slots: Arc<[[AtomicU64; W]]>,
    }

    impl<const W: usize> Storage<W> {
        pub(in super::super) fn at(
            _: &crate::region::Region,
            _: usize,
            capacity: u32,
        ) -> Result<Storage<W>, RingError> {
            Storage::new(capacity)
        }

        pub(in super::super) fn new(capacity: u32) -> Result<Storage<W>, RingError> {
            check(capacity)?;
            let slot = |_| std::array::from_fn(|_| AtomicU64::new(0));
            Ok(Storage { control: Arc::default(), slots: (0..capacity).map(slot).collect() })
        }

        pub(in super::super) fn capacity(&self) -> u32 {
            self.slots.len() as u32
        }

        pub(in super::super) fn control(&self) -> &Control {
            &self.control
        }

        pub(in super::super) fn slot(&self, index: u32) -> &[AtomicU64; W] {
            &self.slots[index as usize % self.slots.len()]
        }
    }
}
