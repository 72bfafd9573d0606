//! A reference count whose shares are taken and given back in batches.
//!
//! [`BatchArc`] is the owner's handle. It hands out any number of [`Share`]s with one addition, but only while all
//! earlier ones are back: whatever the shares protect then belongs to the owner alone. Shares come back from any
//! thread, one by one or [together](Returned) with one subtraction. The holder that gives up the last
//! reference frees the value.
//!
//! `model.rs` checks this in all interleavings that the memory model allows.
#![allow(unsafe_code)]

use std::ptr::NonNull;

#[cfg(not(loom))]
use core::sync::atomic::{AtomicUsize, Ordering, fence};
#[cfg(loom)]
use loom::sync::atomic::{AtomicUsize, Ordering, fence};

#[cfg(all(test, loom))]
mod model;

/// The owner's reference. There is one, and it counts as one share.
pub(super) struct BatchArc<T>(NonNull<Counted<T>>);

/// One reference, which comes back when it is dropped.
pub(super) struct Share<T>(NonNull<Counted<T>>);

/// Shares that the owner has taken and not handed out yet. Shares that are left come back when this is dropped.
pub(super) struct Batch<'a, T> {
    owner: &'a BatchArc<T>,
    left: usize,
}

/// Shares of one value that come back together when this is dropped: each by itself costs the processor about as much
/// as reading a frame's headers.
pub(super) struct Returned<T> {
    value: Option<NonNull<Counted<T>>>,
    count: usize,
}

/// The value, and how many references to it there are.
struct Counted<T> {
    references: AtomicUsize,
    value: T,
}

// SAFETY: the count is atomic. The owner and its shares give access to `T` only by shared reference, from several
// threads (`T: Sync`), and any of these threads may be the one that drops it (`T: Send`).
unsafe impl<T: Send + Sync> Send for BatchArc<T> {}
// SAFETY: as for `BatchArc`: a share gives no access to `T` except to free it with the last reference.
unsafe impl<T: Send + Sync> Send for Share<T> {}
// SAFETY: `&Share` has no methods that touch the count or `T`.
unsafe impl<T: Send + Sync> Sync for Share<T> {}

impl<T> BatchArc<T> {
    pub(super) fn new(value: T) -> BatchArc<T> {
        let counted = Counted { references: AtomicUsize::new(1), value };
        BatchArc(NonNull::from(Box::leak(Box::new(counted))))
    }

    #[inline]
    fn counted(&self) -> &Counted<T> {
        // SAFETY: made from a box in `new`, which is freed only when the count reaches 0; the owner's own reference is
        // counted until the owner is dropped, so the box outlives this borrow of `self`.
        unsafe { self.0.as_ref() }
    }

    #[inline]
    pub(super) fn get(&self) -> &T {
        &self.counted().value
    }

    /// How many shares are out.
    pub(super) fn shares_out(&self) -> usize {
        self.counted().references.load(Ordering::Relaxed) - 1
    }

    /// The value; and `count` shares of it, or none of them while any earlier share is out.
    #[inline]
    pub(super) fn try_share(&mut self, count: usize) -> (&T, Option<Batch<'_, T>>) {
        let Counted { references, value } = self.counted();
        // Acquire: writes of other threads under their shares come before accesses under the next shares.
        if references.load(Ordering::Acquire) != 1 {
            return (value, None);
        }
        references.fetch_add(count, Ordering::Relaxed);
        (value, Some(Batch { owner: self, left: count }))
    }
}

impl<T> Drop for BatchArc<T> {
    fn drop(&mut self) {
        // SAFETY: the owner's own reference is counted from `new` until here, and nothing uses `self.0` afterwards.
        unsafe { release(self.0, 1) };
    }
}

impl<T> Drop for Share<T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: `try_share` has counted one reference for each share that `Batch::split` made, this one has not been
        // forgotten in `Returned::add`, and nothing uses `self.0` afterwards.
        unsafe { release(self.0, 1) };
    }
}

impl<'a, T> Batch<'a, T> {
    #[inline]
    pub(super) fn get(&self) -> &'a T {
        self.owner.get()
    }

    /// Takes one share out, if any are left.
    #[inline]
    pub(super) fn split(&mut self) -> Option<Share<T>> {
        self.left = self.left.checked_sub(1)?;
        Some(Share(self.owner.0))
    }
}

impl<T> Drop for Batch<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // These are never the last ones: the owner, which is borrowed, has its own reference.
        if self.left > 0 {
            self.owner.counted().references.fetch_sub(self.left, Ordering::Release);
        }
    }
}

impl<T> Default for Returned<T> {
    fn default() -> Returned<T> {
        Returned { value: None, count: 0 }
    }
}

impl<T> Returned<T> {
    /// Adds a share. If it is of another value than those before, these come back first.
    #[inline]
    pub(super) fn add(&mut self, share: Share<T>) {
        let value = Some(share.0);
        if self.value != value {
            *self = Returned { value, count: 0 };
        }
        self.count += 1;
        std::mem::forget(share);
    }
}

impl<T> Drop for Returned<T> {
    #[inline]
    fn drop(&mut self) {
        if let Some(value) = self.value {
            // SAFETY: `count` shares of this value have been forgotten in `add`, and are still counted. It is at
            // least 1, and nothing uses the value afterwards.
            unsafe { release(value, self.count) };
        }
    }
}

/// Gives up `count` references. The holder that gives up the last reference frees the value.
///
/// # Safety
/// That many counted references are the caller's, who uses none of them afterwards.
#[inline]
unsafe fn release<T>(value: NonNull<Counted<T>>, count: usize) {
    // SAFETY: the caller's references are still counted, so the value has not been freed.
    let references = unsafe { &value.as_ref().references };
    // Release: accesses under these references come before the owner's next accesses, and before the value is freed.
    if references.fetch_sub(count, Ordering::Release) == count {
        free(value);
    }
}

/// Frees a value to which there is no reference any more.
#[cold]
fn free<T>(value: NonNull<Counted<T>>) {
    fence(Ordering::Acquire);
    // SAFETY: the pointer comes from a box (`BatchArc::new`). The count has reached 0 and only a counted reference can
    // raise it, so no other thread has the value; the fence orders their accesses before this one.
    drop(unsafe { Box::from_raw(value.as_ptr()) });
}
