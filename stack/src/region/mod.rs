//! Memory that several threads or processes read and write at the same time, some of which are not trusted.
//!
//! A [`Region`] is never lent as a Rust slice: bytes are copied in and out with an operation that may race
//! (`copy.rs`), so a peer that writes where it must not produces wrong bytes and never undefined behaviour.
//! `shared.rs` maps regions that two processes share.
//!
//! ```
//! use weft_stack::region::Region;
//!
//! let memory = Region::allocate(4096)?;
//! let slice = memory.slice(100, 5)?;
//! slice.write(0, b"hello");
//! let mut copy = [0; 5];
//! slice.read(0, &mut copy);
//! assert_eq!(&copy, b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![allow(unsafe_code)]

mod copy;
mod shared;

use core::alloc::Layout;
use core::any::Any;
use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;
use std::sync::Arc;

use self::copy::{copy_across, copy_in, copy_out};
use crate::prefetch::prefetch_lines;

#[cfg(test)]
pub(crate) use self::copy::{LONG, copied};
pub use self::shared::SharedRegion;
pub(crate) use self::shared::seal;
#[cfg(test)]
pub(crate) use self::shared::{free_first_page, mappings};

/// The distance in bytes between data that different threads write: a cache line, and the one that is fetched with it.
pub const SEPARATION: usize = 128;

/// The longest region, bytes: offsets in it have 32 bits.
pub(crate) const MAX_REGION: usize = u32::MAX as usize;

/// Memory that several threads, or processes, read and write at any time. Clones name the same memory, which lives as
/// long as any of them, or any slice.
#[derive(Clone)]
pub struct Region(Arc<Memory>);

struct Memory {
    base: NonNull<u8>,
    len: usize,
    owner: Owner,
}

enum Owner {
    /// Allocated here.
    Heap(Layout),
    /// Another value, which frees the memory when it is dropped.
    Other { _owner: Box<dyn Any + Send + Sync> },
}

// SAFETY: no reference to the bytes is ever made: every thread accesses them by copies that may race (`copy.rs`) and
// by atomics. The owner is freed on whichever thread drops the last `Arc`: the heap allows that, and another owner is
// `Send`.
unsafe impl Send for Memory {}
// SAFETY: as for `Send`: accesses from several threads at a time are copies that may race and atomics, and `&Memory`
// gives access to the owner in no way.
unsafe impl Sync for Memory {}

/// Why a region cannot be made, or does not have such a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegionError {
    /// No region has this length.
    #[error("a region of {0} bytes: expected 1 to {MAX_REGION}")]
    Length(usize),
    /// The system does not have that much memory.
    #[error("no memory for a region of {0} bytes")]
    Memory(usize),
    /// The part does not lie in the region.
    #[error("{len} bytes from {offset} do not lie in a region of {region}")]
    Outside {
        /// The offset at which it would begin, bytes.
        offset: u64,
        /// The length of the part, bytes.
        len: u64,
        /// The length of the region, bytes.
        region: u64,
    },
}

impl Region {
    /// `len` bytes of the process's own memory, all 0.
    ///
    /// # Errors
    /// The length is 0 or above 4 GiB − 1, or there is no memory.
    pub fn allocate(len: usize) -> Result<Region, RegionError> {
        if !(1..=MAX_REGION).contains(&len) {
            return Err(RegionError::Length(len));
        }
        let layout = Layout::from_size_align(len, SEPARATION).map_err(|_| RegionError::Length(len))?;
        // SAFETY: the layout has a size that is not 0, as `alloc_zeroed` requires: `len` has been checked.
        let base = unsafe { std::alloc::alloc_zeroed(layout) };
        let base = NonNull::new(base).ok_or(RegionError::Memory(len))?;
        Ok(Region(Arc::new(Memory { base, len, owner: Owner::Heap(layout) })))
    }

    /// The `len` bytes from `base`, which `owner` keeps.
    ///
    /// # Safety
    /// As long as `owner` is not dropped, the bytes stay readable and writable, and nothing in this process
    /// accesses them but regions, atomics, and code that has exclusive access by other means: a message's
    /// memory belongs to the endpoint from posting to completion.
    ///
    /// # Errors
    /// The length is 0 or above 4 GiB − 1.
    pub unsafe fn foreign(
        base: NonNull<u8>,
        len: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<Region, RegionError> {
        if !(1..=MAX_REGION).contains(&len) {
            return Err(RegionError::Length(len));
        }
        Ok(Region(Arc::new(Memory { base, len, owner: Owner::Other { _owner: owner } })))
    }

    /// The `len` bytes from `offset` as a region of its own.
    ///
    /// # Errors
    /// The bytes do not all lie in this region.
    pub fn carve(&self, offset: usize, len: usize) -> Result<Region, RegionError> {
        let base = self.part(offset, len)?;
        let owner = Box::new(self.clone());
        // SAFETY: the bytes lie in this region, and `owner` keeps it.
        unsafe { Region::foreign(base, len, owner) }
    }

    /// The length of the region, bytes.
    #[expect(clippy::len_without_is_empty, reason = "no region is empty")]
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// The `len` bytes from `offset`. Both values may come from an untrusted peer.
    ///
    /// # Errors
    /// The bytes do not all lie in the region.
    #[inline]
    pub fn slice(&self, offset: u64, len: u32) -> Result<RegionSlice, RegionError> {
        let region = self.0.len as u64;
        match offset.checked_add(len.into()) {
            Some(end) if end <= region => {
                Ok(RegionSlice { region: self.clone(), offset: offset as u32, len })
            }
            _ => Err(RegionError::Outside { offset, len: len.into(), region }),
        }
    }

    /// The `len` bytes from `offset`, if they lie in the region.
    #[inline]
    pub(crate) fn bytes(&self, offset: u64, len: u32) -> Option<RegionBytes<'_>> {
        let end = offset.checked_add(len.into())?;
        if end > self.0.len as u64 {
            return None;
        }
        // SAFETY: `offset + len` is at most the length of the region, so the pointer stays in its allocation.
        let base = unsafe { self.0.base.add(offset as usize) };
        Some(RegionBytes { base, len, region: PhantomData })
    }

    /// The offset of `bytes` in this region, if they lie in it, even if they are of another region of the same memory.
    #[inline]
    pub(crate) fn place_of(&self, bytes: RegionBytes<'_>) -> Option<u32> {
        let offset = bytes.base.addr().get().checked_sub(self.0.base.addr().get())?;
        let end = offset.checked_add(bytes.len as usize)?;
        // Offsets in a region have 32 bits.
        (end <= self.0.len).then_some(offset as u32)
    }

    /// How many handles name this memory, those of slices included.
    pub fn holders(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    /// The address of the `len` bytes from `offset`.
    pub(crate) fn part(&self, offset: usize, len: usize) -> Result<NonNull<u8>, RegionError> {
        if offset.checked_add(len).is_none_or(|end| end > self.0.len) {
            let (offset, len) = (offset as u64, len as u64);
            return Err(RegionError::Outside { offset, len, region: self.0.len as u64 });
        }
        // SAFETY: `offset + len` is at most the length of the region, so the pointer stays in its allocation.
        Ok(unsafe { self.0.base.add(offset) })
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({:p}, {} bytes)", self.0.base, self.0.len)
    }
}

/// A region that calls `freed` when its memory is freed.
#[cfg(test)]
pub(crate) fn test_region(freed: impl FnOnce() + Send + Sync + 'static) -> Region {
    struct Owner<F: FnOnce()>(Box<[u8]>, Option<F>);
    impl<F: FnOnce()> Drop for Owner<F> {
        fn drop(&mut self) {
            self.1.take().into_iter().for_each(|freed| freed());
        }
    }
    let mut bytes = vec![0; 64].into_boxed_slice();
    let base = NonNull::new(bytes.as_mut_ptr()).unwrap();
    let owner = Box::new(Owner(bytes, Some(freed)));
    // SAFETY: the owner has the bytes, and nothing accesses them through it.
    unsafe { Region::foreign(base, owner.0.len(), owner) }.unwrap()
}

/// Regions are equal if they are clones: the same memory, not the same content.
impl PartialEq for Region {
    fn eq(&self, other: &Region) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Region {}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Owner::Heap(layout) = self.owner {
            // SAFETY: allocated with this layout, and no pointer into it is left.
            unsafe { std::alloc::dealloc(self.base.as_ptr(), layout) };
        }
    }
}

/// A part of a region: a message's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionSlice {
    region: Region,
    offset: u32,
    len: u32,
}

impl RegionSlice {
    /// The length of the slice, bytes.
    #[inline]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether the slice is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The offset of the slice in its region, bytes.
    pub fn offset(&self) -> u32 {
        self.offset
    }

    /// The region that the slice lies in.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// The bytes from `start` to `end`, as far as they lie in the slice.
    #[inline]
    pub fn bytes(&self, start: u32, end: u32) -> RegionBytes<'_> {
        let end = end.min(self.len);
        let start = start.min(end);
        // SAFETY: `slice` has checked `offset + len`, and `start` is at most `len`.
        let base = unsafe { self.region.0.base.add(self.offset as usize + start as usize) };
        RegionBytes { base, len: end - start, region: PhantomData }
    }

    /// The `len` bytes from `start`, as far as they lie in the slice.
    #[must_use]
    #[inline]
    pub fn part(&self, start: u32, len: u32) -> RegionSlice {
        let start = start.min(self.len);
        let len = len.min(self.len - start);
        // `offset + self.len` has been checked to lie in the region, whose offsets have 32 bits.
        RegionSlice { region: self.region.clone(), offset: self.offset + start, len }
    }

    /// Copies the bytes from `at` on into `bytes`, and returns how many it copied: fewer at the end of the slice.
    pub fn read(&self, at: u32, bytes: &mut [u8]) -> usize {
        let part = self.bytes(at, self.len);
        let len = bytes.len().min(part.len as usize);
        part.first(len as u32).copy_to(&mut bytes[..len]);
        len
    }

    /// Copies `bytes` into the slice from `at` on, and returns how many it copied: fewer at the end of the slice.
    #[inline]
    pub fn write(&self, at: u32, bytes: &[u8]) -> usize {
        let part = self.bytes(at, self.len);
        let len = bytes.len().min(part.len as usize);
        // SAFETY: `part` lies in the region, and `bytes`, to which there is a reference, in none.
        unsafe { copy_in(bytes.as_ptr(), part.base.as_ptr(), len) };
        len
    }

    /// Copies `bytes` into the slice from `at` on, as many as there is room for.
    pub(crate) fn copy_from(&self, at: u32, bytes: RegionBytes<'_>) {
        let part = self.bytes(at, self.len);
        let len = bytes.len.min(part.len);
        // SAFETY: both lie in regions, and no reference to either exists.
        unsafe { copy_across(bytes.base.as_ptr(), part.base.as_ptr(), len as usize) };
    }
}

/// Bytes of a region. They may change at any time, so they can only be copied.
#[derive(Clone, Copy, Debug)]
pub struct RegionBytes<'a> {
    base: NonNull<u8>,
    len: u32,
    region: PhantomData<&'a Region>,
}

// SAFETY: like `&Region`, it gives no access to the bytes but copies that may race, which any thread may make; its
// lifetime keeps the region.
unsafe impl Send for RegionBytes<'_> {}
// SAFETY: `&RegionBytes` allows no more than a copy of it, which is `Send`.
unsafe impl Sync for RegionBytes<'_> {}

impl RegionBytes<'_> {
    /// The number of bytes.
    #[inline]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first `len` bytes, or all if there are fewer.
    #[must_use]
    pub fn first(self, len: u32) -> Self {
        RegionBytes { len: self.len.min(len), ..self }
    }

    /// The bytes from `start` on.
    #[must_use]
    #[inline]
    pub(crate) fn after(self, start: u32) -> Self {
        let start = start.min(self.len);
        // SAFETY: `start` is at most `len`, so the pointer is inside the bytes or one past their end.
        let base = unsafe { self.base.add(start as usize) };
        RegionBytes { base, len: self.len - start, ..self }
    }

    /// The `len` bytes from `base`.
    ///
    /// # Safety
    /// The bytes stay readable for `'a`, and this process has no reference to them.
    pub(crate) unsafe fn from_raw(base: NonNull<u8>, len: u32) -> Self {
        RegionBytes { base, len, region: PhantomData }
    }

    /// Fetches the bytes into the cache without waiting for them.
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch_lines(self.base.as_ptr(), self.len as usize);
    }

    /// The address of the bytes, for callers that keep the region.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The address of the bytes, for devices that read them directly.
    #[cfg(feature = "dpdk")]
    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.base.as_ptr()
    }

    /// Overwrites the bytes.
    ///
    /// # Panics
    /// `bytes` has another length.
    #[inline]
    pub(crate) fn write(&self, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.len as usize, "a copy of another length");
        // SAFETY: these lie in the region, and `bytes`, to which there is a reference, in none.
        unsafe { copy_in(bytes.as_ptr(), self.base.as_ptr(), bytes.len()) };
    }

    /// Overwrites the bytes.
    ///
    /// # Panics
    /// `bytes` has another length.
    #[inline]
    pub(crate) fn copy_from(&self, bytes: RegionBytes<'_>) {
        assert_eq!(bytes.len, self.len, "a copy of another length");
        // SAFETY: both lie in regions, and no reference to either exists.
        unsafe { copy_across(bytes.base.as_ptr(), self.base.as_ptr(), self.len as usize) };
    }

    /// Copies the bytes, each with a value that it has at some time during the copy.
    ///
    /// # Panics
    /// `place` has another length.
    #[inline]
    pub fn copy_to(&self, place: &mut [u8]) {
        assert_eq!(place.len(), self.len as usize, "a copy of another length");
        // SAFETY: the bytes lie in the region, and `place`, to which there is a reference, in none.
        unsafe { copy_out(self.base.as_ptr(), place.as_mut_ptr(), place.len()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_must_lie_inside_the_region() {
        let region = Region::allocate(1000).unwrap();
        assert!(region.slice(0, 1000).is_ok() && region.slice(1000, 0).is_ok());
        for (offset, len) in [(0, 1001), (1000, 1), (u64::MAX, 1), (u64::MAX, u32::MAX), (1 << 32, 0)] {
            let outside = RegionError::Outside { offset, len: len.into(), region: 1000 };
            assert_eq!(region.slice(offset, len).unwrap_err(), outside);
        }
        assert!(region.carve(900, 100).is_ok());
        assert!(region.carve(900, 101).is_err() && region.carve(usize::MAX, 2).is_err());
        assert!(matches!(Region::allocate(0), Err(RegionError::Length(0))));
    }

    #[test]
    fn reads_and_writes_stay_in_the_slice() {
        let region = Region::allocate(100).unwrap();
        let all = region.slice(0, 100).unwrap();
        all.write(0, &[9; 100]);
        let slice = region.slice(10, 20).unwrap();
        assert_eq!(slice.write(15, &[1; 50]), 5);
        assert_eq!(slice.write(20, &[1; 50]), 0);
        assert_eq!(slice.write(u32::MAX, &[1; 50]), 0);
        let mut seen = [0; 100];
        assert_eq!(all.read(0, &mut seen), 100);
        let expected: Vec<u8> = (0..100).map(|at| if (25..30).contains(&at) { 1 } else { 9 }).collect();
        assert_eq!(seen[..], expected[..]);
        assert_eq!(slice.read(18, &mut seen), 2);
        assert_eq!(slice.bytes(19, u32::MAX).len(), 1);
        assert_eq!(slice.bytes(30, 10).len(), 0);
        let part = slice.part(5, 3);
        assert_eq!((part.offset(), part.len(), part.region()), (15, 3, &region));
        let ends = [(0, 99), (18, 5), (20, 1), (u32::MAX, u32::MAX)];
        assert_eq!(ends.map(|(start, len)| slice.part(start, len).len()), [20, 2, 0, 0]);
    }

    #[test]
    fn slices_keep_the_memory() {
        struct Noted(#[expect(dead_code, reason = "counted")] Arc<()>);
        let freed = Arc::new(());
        let mut memory = vec![0u8; 64];
        let base = NonNull::new(memory.as_mut_ptr()).unwrap();
        let owner = Box::new((Noted(freed.clone()), memory));
        // SAFETY: the vector lives in `owner`, and no other code uses it.
        let region = unsafe { Region::foreign(base, 64, owner) }.unwrap();
        let slice = region.carve(8, 8).unwrap().slice(0, 8).unwrap();
        drop(region);
        slice.write(0, &[1; 8]);
        assert_eq!(Arc::strong_count(&freed), 2);
        drop(slice);
        assert_eq!(Arc::strong_count(&freed), 1);
    }
}
