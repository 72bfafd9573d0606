//! Frames whose bytes lie in memory that another process may be writing, borrowed until they have been read.
//!
//! The first bytes of each frame, which hold its headers, are copied into [`RxHeaders`], so that what is checked is
//! what is used. The rest stays in the region, and can only be copied from there.
//!
//! # Store-forwarding stalls
//!
//! A value of several words that has just been written to memory in small stores, and is then moved with wider loads,
//! cannot be forwarded from the processor's store buffer: the loads wait until all the stores have reached the cache.
//! On the fast path that costs more than the work itself. So functions there are inlined (`inline(always)`) where
//! their result does not fit registers, and results are built in their final place. Comments elsewhere refer to this
//! section.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ptr::NonNull;

use super::batch_arc::{Batch, BatchArc, Returned, Share};
use super::{BURST, MIN_FRAME};
use crate::region::{Region, RegionBytes};

/// Bytes of a frame that are copied: enough for the longest headers, or for a whole frame with a short message.
pub(super) const HEAD: usize = 192;

/// Room for the first bytes of one frame.
#[repr(align(64))]
struct Head(UnsafeCell<[u8; HEAD]>);

/// Where the heads of one burst lie. They live as long as the port, or any of the frames.
pub(super) struct RxHeaders(BatchArc<Shared>);

/// The memory that the port shares with the frames that it has lent.
pub(super) struct Shared {
    heads: [Head; BURST],
    regions: Vec<Region>,
}

// SAFETY: only the heads are not `Sync` by themselves. A head is written by `BorrowBatch::lend` while no frame has it,
// and is then accessed by the one frame that got its address; `BatchArc` orders the two. The regions are `Sync`.
unsafe impl Sync for Shared {}

impl RxHeaders {
    /// Room for the heads of one burst of frames in these regions.
    pub(super) fn new(regions: Vec<Region>) -> RxHeaders {
        let heads = std::array::from_fn(|_| Head(UnsafeCell::new([0; HEAD])));
        RxHeaders(BatchArc::new(Shared { heads, regions }))
    }

    /// The regions that frames are borrowed from.
    #[inline]
    pub(super) fn regions(&self) -> &[Region] {
        &self.0.get().regions
    }

    /// The regions that frames are borrowed from; and a batch of up to `count` frames, if all frames of earlier
    /// batches have come back.
    #[inline]
    pub(super) fn lend(&mut self, count: usize) -> (&[Region], Option<BorrowBatch<'_>>) {
        let (shared, shares) = self.0.try_share(count.min(BURST));
        (&shared.regions, shares.map(|shares| BorrowBatch { shares, next: 0 }))
    }
}

impl std::fmt::Debug for RxHeaders {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RxHeaders({} frames lent)", self.0.shares_out())
    }
}

/// Borrowed frames that come back together.
#[derive(Default)]
pub(super) struct ReturnedFrames(Returned<Shared>);

impl ReturnedFrames {
    #[inline]
    pub(super) fn add(&mut self, frame: BorrowedFrame) {
        self.0.add(frame.share);
    }
}

/// A batch of frames being lent. When it is dropped, it gives back the shares that no frame has got.
pub(super) struct BorrowBatch<'a> {
    shares: Batch<'a, Shared>,
    /// The head of the next frame.
    next: usize,
}

// Inlined always: see store-forwarding stalls, above.
impl BorrowBatch<'_> {
    /// Lends `bytes`, which are in the regions, as a frame.
    ///
    /// # Panics
    /// As many frames have been lent as were announced.
    #[inline(always)]
    pub(super) fn frame(&mut self, bytes: RegionBytes<'_>) -> BorrowedFrame {
        self.lend(bytes, bytes, 0)
    }

    /// Lends two parts, which are in the regions, as a frame. The first is no longer than a [`HEAD`].
    ///
    /// # Panics
    /// As many frames have been lent as were announced, or the first part is longer.
    #[inline(always)]
    pub(super) fn frame_of_two(&mut self, first: RegionBytes<'_>, second: RegionBytes<'_>) -> BorrowedFrame {
        assert!(first.len() as usize <= HEAD, "a longer head than there is a place for");
        self.lend(first, second, first.len())
    }

    /// Lends the frame that begins with `first`, and whose bytes from `rest_from` on are `rest`.
    #[inline(always)]
    fn lend(&mut self, first: RegionBytes<'_>, rest: RegionBytes<'_>, rest_from: u32) -> BorrowedFrame {
        let share = self.shares.split().expect("no more frames than announced");
        let head = self.shares.get().heads[self.next].0.get().cast::<u8>();
        let head_len = first.len().min(HEAD as u32);
        // SAFETY: the head has at least `head_len` bytes. No frame has it: all shares of earlier bursts are back
        // (`BatchArc::try_share`), and `next` names each head once in this burst.
        let place = unsafe { std::slice::from_raw_parts_mut(head, head_len as usize) };
        first.first(head_len).copy_to(place);
        self.next += 1;
        let head = NonNull::from(place).cast();
        let len = rest_from.saturating_add(rest.len());
        BorrowedFrame { head, head_len, rest: rest.base(), rest_from, len, share }
    }
}

/// A frame whose head is copied and whose rest lies in a region.
pub(super) struct BorrowedFrame {
    /// The bytes of `Shared::heads` that are this frame's.
    head: NonNull<u8>,
    head_len: u32,
    /// In a region: the bytes of the frame from `rest_from` on.
    rest: NonNull<u8>,
    rest_from: u32,
    /// Bytes of the whole frame.
    len: u32,
    /// Keeps the heads and the regions.
    share: Share<Shared>,
}

// SAFETY: `head` points to bytes that no other frame has, `rest` into a region, which any thread may read, and `share`,
// which keeps both, is `Send`.
unsafe impl Send for BorrowedFrame {}
// SAFETY: through `&BorrowedFrame` the head is only read (`head_mut` takes `&mut`), and the rest is only copied from.
unsafe impl Sync for BorrowedFrame {}

impl BorrowedFrame {
    /// A frame of these bytes, in memory of its own.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn in_two_parts(bytes: &[u8], head: usize) -> Option<BorrowedFrame> {
        let (head, rest) = bytes.split_at_checked(head)?;
        if !(MIN_FRAME..=HEAD).contains(&head.len()) || rest.is_empty() {
            return None;
        }
        let region = Region::allocate(bytes.len()).ok()?;
        region.slice(0, bytes.len() as u32).ok()?.write(0, bytes);
        let mut headers = RxHeaders::new(vec![region]);
        let (regions, batch) = headers.lend(1);
        let part = |offset: usize, len: usize| regions[0].bytes(offset as u64, len as u32);
        Some(batch?.frame_of_two(part(0, head.len())?, part(head.len(), rest.len())?))
    }

    #[inline]
    pub(super) fn head(&self) -> &[u8] {
        // SAFETY: `head_len` initialised bytes of a head that is this frame's alone while it has its share.
        unsafe { std::slice::from_raw_parts(self.head.as_ptr(), self.head_len as usize) }
    }

    #[inline]
    pub(super) fn head_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `head`; and `&mut self` keeps anybody else from reading it through this frame.
        unsafe { std::slice::from_raw_parts_mut(self.head.as_ptr(), self.head_len as usize) }
    }

    #[inline]
    pub(super) fn total_len(&self) -> usize {
        self.len as usize
    }

    /// The bytes from `start` on, in the region; none if there are none, or they begin before the part that `rest`
    /// holds.
    #[inline]
    pub(super) fn bytes_from(&self, start: usize) -> Option<RegionBytes<'_>> {
        let more = self.total_len().checked_sub(start).filter(|more| *more > 0)?;
        let skipped = start.checked_sub(self.rest_from as usize)?;
        // SAFETY: `rest` has the bytes from `rest_from` to `len` or more, `truncate` only lowers `len`, and `share`
        // keeps the region that they lie in.
        Some(unsafe { RegionBytes::from_raw(self.rest.add(skipped), more as u32) })
    }

    pub(super) fn truncate(&mut self, len: usize) {
        debug_assert!(len >= MIN_FRAME);
        self.len = self.len.min(len as u32);
        self.head_len = self.head_len.min(self.len);
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
        let left = |headers: &RxHeaders| headers.0.shares_out();
        assert_eq!((left(&a), left(&b)), (2, 2));
        drop(others);
        assert_eq!((left(&a), left(&b)), (0, 0));
        assert!(a.lend(1).1.is_some() && b.lend(1).1.is_some());
        drop(regions);
    }
}
