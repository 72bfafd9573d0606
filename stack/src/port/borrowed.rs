//! Frames whose bytes lie in memory that somebody else may be writing, lent until they have been looked at.
//!
//! What is looked at is copied: the first bytes of each frame, which hold its headers, into a [`RxHeaders`]. The
//! rest stays where it is, and can only be copied from there.

use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering, fence};

use super::{BURST, MIN_FRAME};
use crate::region::{Region, RegionBytes};

/// Bytes of a frame that are copied: the longest headers, or the whole of a short message.
pub(super) const HEAD: usize = 192;

/// A place for the first bytes of one frame.
#[repr(align(64))]
struct Head(UnsafeCell<[u8; HEAD]>);

/// Where the heads of one burst lie. Lives as long as the port that has it, or any of the frames.
pub(super) struct RxHeaders(NonNull<Shared>);

struct Shared {
    /// The frames that have not come back, and the port while it is there.
    holders: AtomicUsize,
    heads: [Head; BURST],
    regions: Vec<Region>,
}

// SAFETY: each head belongs to one frame at a time, and to the port when there is none; the rest is atomics and
// regions.
unsafe impl Send for RxHeaders {}

impl RxHeaders {
    /// For frames in these regions.
    pub(super) fn new(regions: Vec<Region>) -> RxHeaders {
        let heads = std::array::from_fn(|_| Head(UnsafeCell::new([0; HEAD])));
        let shared = Shared { holders: AtomicUsize::new(1), heads, regions };
        RxHeaders(NonNull::from(Box::leak(Box::new(shared))))
    }

    #[inline]
    fn shared(&self) -> &Shared {
        // SAFETY: the port is one of the holders.
        unsafe { self.0.as_ref() }
    }

    /// The memory that frames are lent from.
    #[inline]
    pub(super) fn regions(&self) -> &[Region] {
        &self.shared().regions
    }

    /// The memory that frames are lent from; and what lends up to `count` of them, if all that were lent before have
    /// come back.
    #[inline]
    pub(super) fn lend(&mut self, count: usize) -> (&[Region], Option<BorrowBatch<'_>>) {
        let shared = self.shared();
        // Acquire: what others did with their heads comes before what is done with them next.
        if shared.holders.load(Ordering::Acquire) != 1 {
            return (&shared.regions, None);
        }
        let left = count.min(BURST);
        // One addition for all.
        shared.holders.fetch_add(left, Ordering::Relaxed);
        (&shared.regions, Some(BorrowBatch { shared, headers: self.0, next: 0, left }))
    }
}

impl Drop for RxHeaders {
    fn drop(&mut self) {
        // SAFETY: the port's.
        unsafe { release(self.0, 1) };
    }
}

impl std::fmt::Debug for RxHeaders {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RxHeaders({} frames lent)", self.shared().holders.load(Ordering::Relaxed) - 1)
    }
}

/// Gives up the shares of so many holders; who gives up the last one frees the memory.
///
/// # Safety
/// They are the caller's, who uses none of them afterwards.
#[inline]
unsafe fn release(shared: NonNull<Shared>, shares: usize) {
    // SAFETY: the caller is one of the holders.
    if unsafe { shared.as_ref() }.holders.fetch_sub(shares, Ordering::Release) == shares {
        free(shared);
    }
}

/// Frames of one headers that come back together: each by itself costs the processor about as much as reading its headers.
#[derive(Default)]
pub(super) struct Returned {
    headers: Option<NonNull<Shared>>,
    shares: usize,
}

impl Returned {
    /// Takes one more; those of another headers are given back before.
    #[inline]
    pub(super) fn add(&mut self, frame: BorrowedFrame) {
        let headers = Some(frame.headers);
        if self.headers != headers {
            *self = Returned { headers, shares: 0 };
        }
        self.shares += 1;
        std::mem::forget(frame);
    }
}

impl Drop for Returned {
    #[inline]
    fn drop(&mut self) {
        if let Some(headers) = self.headers {
            // SAFETY: the shares of the frames added.
            unsafe { release(headers, self.shares) };
        }
    }
}

#[cold]
fn free(shared: NonNull<Shared>) {
    fence(Ordering::Acquire);
    // SAFETY: made from a box, and nobody holds it any more.
    drop(unsafe { Box::from_raw(shared.as_ptr()) });
}

/// A burst being lent.
pub(super) struct BorrowBatch<'a> {
    shared: &'a Shared,
    headers: NonNull<Shared>,
    next: usize,
    /// Shares that no frame has yet.
    left: usize,
}

// Inlined always: a frame that is put together and then moved is waited for.
impl BorrowBatch<'_> {
    /// Lends `bytes`, which are of the headers's regions, as a frame.
    ///
    /// # Panics
    /// As many frames have been lent as were announced.
    #[inline(always)]
    pub(super) fn frame(&mut self, bytes: RegionBytes<'_>) -> BorrowedFrame {
        self.lend(bytes, bytes, 0)
    }

    /// Lends two parts, which are of the headers's regions, as a frame. The first is no longer than a [`HEAD`].
    ///
    /// # Panics
    /// As many frames have been lent as were announced, or the first part is longer.
    #[inline(always)]
    pub(super) fn frame_of_two(&mut self, first: RegionBytes<'_>, second: RegionBytes<'_>) -> BorrowedFrame {
        assert!(first.len() as usize <= HEAD, "a longer head than there is a place for");
        self.lend(first, second, first.len())
    }

    /// Lends the frame that begins with `first`, of which what follows its first `rest_from` bytes is `rest`.
    #[inline(always)]
    fn lend(&mut self, first: RegionBytes<'_>, rest: RegionBytes<'_>, rest_from: u32) -> BorrowedFrame {
        let left = self.left.checked_sub(1).expect("no more frames than announced");
        let head = self.shared.heads[self.next].0.get().cast::<u8>();
        let head_len = first.len().min(HEAD as u32);
        // SAFETY: no frame has this head: all have come back, and each is given away once.
        let place = unsafe { std::slice::from_raw_parts_mut(head, head_len as usize) };
        first.first(head_len).copy_to(place);
        (self.next, self.left) = (self.next + 1, left);
        let head = NonNull::from(place).cast();
        let len = rest_from.saturating_add(rest.len());
        BorrowedFrame { head, head_len, rest: rest.base(), rest_from, len, headers: self.headers }
    }
}

impl Drop for BorrowBatch<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.left > 0 {
            self.shared.holders.fetch_sub(self.left, Ordering::Release);
        }
    }
}

/// A frame lent.
pub(super) struct BorrowedFrame {
    head: NonNull<u8>,
    head_len: u32,
    /// In a region: the bytes of the frame from `rest_from` on.
    rest: NonNull<u8>,
    rest_from: u32,
    /// Of the whole frame.
    len: u32,
    headers: NonNull<Shared>,
}

// SAFETY: its head is its own, and the regions may be read by any thread; so may the count be changed.
unsafe impl Send for BorrowedFrame {}
// SAFETY: as above.
unsafe impl Sync for BorrowedFrame {}

impl BorrowedFrame {
    #[inline]
    pub(super) fn head(&self) -> &[u8] {
        // SAFETY: initialised; and this frame's alone until it is dropped.
        unsafe { std::slice::from_raw_parts(self.head.as_ptr(), self.head_len as usize) }
    }

    #[inline]
    pub(super) fn head_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.head.as_ptr(), self.head_len as usize) }
    }

    #[inline]
    pub(super) fn total_len(&self) -> usize {
        self.len as usize
    }

    /// The bytes from `start` on, as they are in the region, if there are any and they lie together.
    #[inline]
    pub(super) fn bytes_from(&self, start: usize) -> Option<RegionBytes<'_>> {
        let more = self.total_len().checked_sub(start).filter(|more| *more > 0)?;
        let skipped = start.checked_sub(self.rest_from as usize)?;
        // SAFETY: within the bytes that were lent, in a region that the headers keeps.
        Some(unsafe { RegionBytes::from_raw(self.rest.add(skipped), more as u32) })
    }

    pub(super) fn truncate(&mut self, len: usize) {
        debug_assert!(len >= MIN_FRAME);
        self.len = self.len.min(len as u32);
        self.head_len = self.head_len.min(self.len);
    }
}

impl Drop for BorrowedFrame {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the frame's.
        unsafe { release(self.headers, 1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers() -> RxHeaders {
        let region = Region::allocate(1000).unwrap();
        let bytes: Vec<u8> = (0..1000u32).map(|n| n as u8).collect();
        region.slice(0, 1000).unwrap().write(0, &bytes);
        RxHeaders::new(vec![region])
    }

    /// Lends `count` frames, which begin one byte apart.
    fn lend(headers: &mut RxHeaders, count: usize, len: u32) -> Option<Vec<BorrowedFrame>> {
        let (regions, batch) = headers.lend(count);
        let mut batch = batch?;
        Some((0..count as u64).map(|at| batch.frame(regions[0].bytes(at, len).unwrap())).collect())
    }

    #[test]
    fn heads_are_copied_and_the_rest_is_not() {
        let mut headers = headers();
        let [_, long] = &mut lend(&mut headers, 2, 500).unwrap()[..] else { unreachable!() };
        headers.regions()[0].slice(0, 1000).unwrap().write(0, &[0; 1000]);
        assert_eq!((long.head().len(), long.total_len(), long.head()[..2].to_vec()), (HEAD, 500, vec![1, 2]));
        let mut rest = [1; 400];
        long.bytes_from(100).unwrap().copy_to(&mut rest);
        assert_eq!(rest, [0; 400], "as it is now");
        assert!(long.bytes_from(500).is_none() && long.bytes_from(501).is_none());
        long.truncate(300);
        assert_eq!((long.head().len(), long.total_len()), (HEAD, 300));
        long.truncate(30);
        assert_eq!((long.head().len(), long.total_len()), (30, 30));
    }

    #[test]
    fn a_frame_of_two_parts_goes_on_in_the_second() {
        let mut headers = headers();
        let (regions, batch) = headers.lend(1);
        let bytes = |at, len| regions[0].bytes(at, len).unwrap();
        let mut frame = batch.unwrap().frame_of_two(bytes(500, 98), bytes(7, 300));
        assert_eq!((frame.head().len(), frame.total_len(), frame.head()[0]), (98, 398, 500u32 as u8));
        assert!(frame.bytes_from(97).is_none() && frame.bytes_from(398).is_none());
        for (start, first) in [(98, 7), (100, 9), (397, (7 + 299u32) as u8)] {
            let mut rest = vec![0; 398 - start];
            frame.bytes_from(start).unwrap().copy_to(&mut rest);
            assert_eq!(rest[0], first);
        }
        frame.truncate(200);
        assert_eq!((frame.bytes_from(98).unwrap().len(), frame.head().len()), (102, 98));
        frame.truncate(50);
        assert_eq!((frame.head().len(), frame.total_len()), (50, 50));
        assert!(frame.bytes_from(50).is_none());
    }

    #[test]
    fn nothing_is_lent_until_all_has_come_back() {
        let mut headers = headers();
        let frames = lend(&mut headers, BURST, 14).unwrap();
        assert!(headers.lend(1).1.is_none());
        std::thread::spawn(move || drop(frames)).join().unwrap();
        drop(headers.lend(BURST + 1).1.unwrap());
        assert!(headers.lend(1).1.is_some(), "what was announced and not lent is back as well");
    }

    #[test]
    fn frames_outlive_their_desk() {
        let mut headers = headers();
        let frames = lend(&mut headers, 3, 300).unwrap();
        drop(headers);
        assert_eq!(frames[2].head()[0], 2);
        let mut rest = [0; 1];
        frames[2].bytes_from(299).unwrap().copy_to(&mut rest);
        assert_eq!(rest, [45]);
    }

    #[test]
    fn r7_frames_of_several_desks() {
        use crate::port::{Frame, RxBurst};
        let (mut a, mut b, mut c) = (headers(), headers(), headers());
        let mut queues =
            [lend(&mut a, 6, 300).unwrap(), lend(&mut b, 6, 30).unwrap(), lend(&mut c, 4, 30).unwrap()];
        let mut burst = RxBurst::with_tails();
        for which in [0, 1, 1, 0, 2, 2, 1, 0, 0, 2, 1] {
            assert!(burst.push(Frame::from(queues[which].pop().unwrap())).is_ok());
        }
        let others = queues;
        let regions = c.regions()[0].clone();
        drop(c);
        burst.clear();
        let left = |headers: &RxHeaders| headers.shared().holders.load(Ordering::Relaxed);
        assert_eq!((left(&a), left(&b)), (1 + 2, 1 + 2));
        drop(others);
        assert_eq!((left(&a), left(&b)), (1, 1));
        assert!(a.lend(1).1.is_some() && b.lend(1).1.is_some());
        drop(regions);
    }
}
