//! Mbufs of several segments: payload sent by reference, and frames that arrive in several buffers.

use std::cell::RefCell;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use arrayvec::ArrayVec;

use weft_dpdk_sys as sys;

use super::{KeptMbufs, Mbuf, MbufPool};
use crate::port::{Attachment, BURST};
use crate::region::RegionBytes;

const _: () = assert!(size_of::<Attachment>() <= sys::WEFT_OWNER_SIZE as usize);
const _: () = assert!(align_of::<Attachment>() <= 8);

/// Bytes used in the own buffer of an mbuf that refers to foreign memory: 24 bytes of C's bookkeeping, and the
/// attachment.
const BOOKKEEPING: usize = 24 + sys::WEFT_OWNER_SIZE as usize;

impl Mbuf {
    /// Makes `payload` the last part of the frame, without copying it. Takes another mbuf of the pool, one of those `kept` if the
    /// caller has some, which keeps the payload's memory until the device has sent it. Gives the payload back if there is no
    /// mbuf.
    #[inline]
    pub(in crate::port) fn attach(
        &mut self,
        payload: Attachment,
        kept: Option<&mut KeptMbufs>,
    ) -> Result<(), Attachment> {
        let raw = self.as_ptr();
        // SAFETY: the mbuf is ours, and its pool is never freed.
        let pool = unsafe { (*raw).pool };
        // SAFETY: `pool` is the mempool of a live mbuf, and mempools are never freed (`MbufPool`). The call only
        // reads it.
        let room = usize::from(unsafe { sys::weft_rte_pktmbuf_data_room_size(pool) });
        let Ok(len) = u16::try_from(payload.len()) else { return Err(payload) };
        if room < BOOKKEEPING {
            return Err(payload);
        }
        // SAFETY: `pool` is a mempool of mbufs, never freed, from which any thread may allocate (`MbufPool`).
        let take = |pool| unsafe {
            match kept {
                Some(kept) => kept.take(pool),
                None => KeptMbufs::take_one(pool),
            }
        };
        let Some(tail) = NonNull::new(pool).and_then(take) else { return Err(payload) };
        let tail = ManuallyDrop::new(tail);
        let data = payload.as_ptr().cast_mut().cast::<c_void>();
        // SAFETY: the tail is new and ours, and its buffer has place for the attachment, as checked above; so
        // has the chain, which has two segments. The attachment stays in that place and keeps `data` until
        // `release` takes it out. DPDK reads through `data` and never writes: the mbuf is only sent.
        unsafe {
            sys::weft_rte_pktmbuf_owner(tail.as_ptr()).cast::<Attachment>().write(payload);
            let result = sys::weft_rte_pktmbuf_attach(raw, tail.as_ptr(), data, len, Some(release));
            debug_assert_eq!(result, 0, "a chain of two is not too long");
        }
        Ok(())
    }

    /// Whether the frame continues beyond the bytes that `self` dereferences to.
    #[inline]
    pub(in crate::port) fn is_chained(&self) -> bool {
        // SAFETY: `Mbuf` owns a valid mbuf, and only reads it here.
        unsafe { (*self.as_ptr()).nb_segs != 1 }
    }

    /// Length of the whole frame, bytes.
    #[inline]
    pub(in crate::port) fn total_len(&self) -> usize {
        // SAFETY: `Mbuf` owns a valid mbuf, and only reads it here.
        unsafe { (*self.as_ptr()).pkt_len as usize }
    }

    /// The second segment of two.
    #[inline]
    pub(in crate::port) fn tail(&self) -> Option<RegionBytes<'_>> {
        // SAFETY: the mbuf is valid, and so is what is chained to it.
        unsafe {
            let next = (*self.as_ptr()).next.as_ref()?;
            let data = next.buf_addr.cast::<u8>().add(usize::from(next.data_off));
            // SAFETY: the segment keeps its data as long as the frame exists, to which `self` is borrowed; no
            // reference to them is ever made.
            Some(RegionBytes::from_raw(NonNull::new(data)?, u32::from(next.data_len)))
        }
    }

    /// Drops all segments but the first.
    #[inline]
    pub(super) fn unchain(&mut self) {
        // SAFETY: the mbuf is ours, and so is what is chained to it.
        unsafe {
            let raw = &mut *self.as_ptr();
            if raw.nb_segs != 1 {
                sys::weft_rte_pktmbuf_free(std::mem::replace(&mut raw.next, std::ptr::null_mut()));
                raw.nb_segs = 1;
                raw.pkt_len = u32::from(raw.data_len);
            }
        }
    }

    /// Lengthens the data by `len` bytes, whose content is arbitrary; `None` if the buffer is too short, or the data
    /// continue in another segment.
    #[inline]
    pub(in crate::port) fn extend(&mut self, len: usize) -> Option<&mut [u8]> {
        let before = self.len();
        if self.is_chained() {
            return None;
        }
        // SAFETY: the mbuf is ours; the new length ends inside its buffer, all of which is initialised.
        unsafe {
            let raw = &mut *self.as_ptr();
            let room = usize::from(raw.buf_len) - usize::from(raw.data_off) - before;
            if len > room {
                return None;
            }
            raw.data_len += len as u16;
            raw.pkt_len += len as u32;
        }
        Some(&mut self[before..])
    }

    /// The frame in at most `segments` segments: itself, or a copy in a buffer of `pool`. `None` if it is longer than
    /// `max` bytes, or the pool has no free buffer. The second value says whether it was copied.
    #[inline]
    pub(super) fn within_segments(self, segments: u16, pool: &MbufPool, max: usize) -> Option<(Mbuf, bool)> {
        if self.total_len() > max {
            return None;
        }
        // SAFETY: `Mbuf` owns a valid mbuf, and only reads it here.
        let whole = unsafe { (*self.as_ptr()).nb_segs } <= segments;
        if whole { Some((self, false)) } else { self.gather(pool).map(|mbuf| (mbuf, true)) }
    }

    #[cold]
    fn gather(self, pool: &MbufPool) -> Option<Mbuf> {
        let whole = pool.allocate(self.total_len())?;
        // SAFETY: both are ours, and the copy has been made as long as all segments together. Other processes
        // may write to the memory of the segments meanwhile: C copies any bytes.
        unsafe {
            let data = (*whole.as_ptr()).buf_addr.cast::<u8>().add(usize::from((*whole.as_ptr()).data_off));
            sys::weft_rte_pktmbuf_gather(self.as_ptr(), data.cast());
            let (from, to) = (&*self.as_ptr(), &mut *whole.as_ptr());
            // The device's verdict on the checksums stays valid; the flag for foreign memory does not.
            to.ol_flags = from.ol_flags & (sys::WEFT_F_RX_IP_CKSUM_MASK | sys::WEFT_F_RX_L4_CKSUM_MASK);
        }
        Some(whole)
    }
}

/// Called by DPDK, on whichever thread, when the last mbuf that refers to the memory is freed.
///
/// # Safety
///
/// `owner` is where `Mbuf::attach` has put an attachment, and this is the only call for it.
unsafe extern "C" fn release(_data: *mut c_void, owner: *mut c_void) {
    // SAFETY: the caller promises that `owner` holds an attachment, which nothing else reads: this moves it out once.
    let attachment = unsafe { owner.cast::<Attachment>().read() };
    // An attachment that cannot be kept for later is dropped here, but not while `LATER` is borrowed: dropping may run
    // arbitrary code.
    let unkept = LATER.try_with(|later| {
        let mut later = later.borrow_mut();
        if later.keeps {
            later.kept.try_push(attachment).err().map(|full| full.element())
        } else {
            Some(attachment)
        }
    });
    drop(unkept);
}

/// Attachments of mbufs that this thread has freed while a [`DropLater`] exists.
struct Later {
    keeps: bool,
    kept: ArrayVec<Attachment, BURST>,
}

thread_local! {
    static LATER: RefCell<Later> = const { RefCell::new(Later { keeps: false, kept: ArrayVec::new_const() }) };
}

/// While a value exists, attachments of mbufs that this thread frees are kept; they are dropped together with the
/// value.
///
/// Dropping an `Arc` is a locked operation, which waits for all earlier writes. Drivers that copy free each mbuf right
/// after its copy, so the copies of a burst would wait for each other.
pub(super) struct DropLater {
    /// Not [`Send`]: it stands for a state of its own thread.
    thread: PhantomData<*const ()>,
}

impl DropLater {
    #[inline]
    pub(super) fn begin() -> DropLater {
        // A thread that ends has no such memory any more: attachments are dropped at once then.
        let _ = LATER.try_with(|later| later.borrow_mut().keeps = true);
        DropLater { thread: PhantomData }
    }
}

impl Drop for DropLater {
    #[inline]
    fn drop(&mut self) {
        let _ = LATER.try_with(|later| later.borrow_mut().keeps = false);
        // One at a time, and not while `LATER` is borrowed.
        while let Ok(Some(kept)) = LATER.try_with(|later| later.borrow_mut().kept.pop()) {
            drop(kept);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::port::dpdk::{Eal, EalOptions, MbufPoolConfig};
    use crate::port::frame::FramePool;

    fn pool(name: &str, buffers: u32) -> MbufPool {
        let config = MbufPoolConfig { buffers, buffer_size: 1000, cache: 0, socket: None };
        MbufPool::create(Eal::init(&EalOptions::default()).unwrap(), name, &config).unwrap()
    }

    fn chained(pool: &MbufPool, owner: &Arc<[u8]>) -> Mbuf {
        let mut mbuf = pool.allocate(100).unwrap();
        mbuf.fill(1);
        mbuf.attach(Attachment::from(Arc::clone(owner)), None).unwrap();
        mbuf
    }

    #[test]
    fn memory_is_kept_until_the_mbuf_is_freed_on_any_thread() {
        let pool = pool("kept", 15);
        let owner: Arc<[u8]> = vec![2; 5000].into();
        let mbuf = chained(&pool, &owner);
        assert_eq!((mbuf.len(), mbuf.total_len(), pool.available()), (100, 5100, 13));
        assert_eq!(Arc::strong_count(&owner), 2);
        std::thread::spawn(move || drop(mbuf)).join().unwrap();
        assert_eq!((Arc::strong_count(&owner), pool.available()), (1, 15));
        // All buffers are back in the pool.
        let fresh: Vec<Mbuf> = std::iter::from_fn(|| pool.allocate(1000)).collect();
        assert_eq!(fresh.len(), 15);
        assert!(
            fresh.iter().all(|mbuf| mbuf.len() == 1000 && mbuf.total_len() == 1000 && !mbuf.is_chained())
        );
    }

    #[test]
    fn attached_memory_is_released_after_the_burst() {
        let pool = pool("later", 255);
        let owner: Arc<[u8]> = vec![2; 50].into();
        let mbufs: Vec<Mbuf> = (0..BURST + 3).map(|_| chained(&pool, &owner)).collect();
        let later = DropLater::begin();
        drop(mbufs);
        assert_eq!(
            Arc::strong_count(&owner),
            1 + BURST,
            "attachments beyond the kept ones are dropped at once"
        );
        assert_eq!(pool.available(), 255, "the mbufs themselves are free");
        drop(later);
        assert_eq!(Arc::strong_count(&owner), 1);
        drop(chained(&pool, &owner));
        assert_eq!(Arc::strong_count(&owner), 1);
    }

    #[test]
    fn truncating_releases_the_attached_memory() {
        let pool = pool("let_go", 15);
        let owner: Arc<[u8]> = vec![2; 50].into();
        let mut mbuf = chained(&pool, &owner);
        assert!(mbuf.extend(1).is_none(), "data cannot grow behind an attachment");
        mbuf.truncate(100);
        assert_eq!((mbuf.len(), mbuf.total_len(), Arc::strong_count(&owner)), (100, 100, 1));
        mbuf.extend(10).unwrap().fill(3);
        assert_eq!((mbuf[99], mbuf[100], mbuf.len(), mbuf.total_len()), (1, 3, 110, 110));
        assert!(mbuf.extend(891).is_none());
        assert_eq!(mbuf.extend(890).unwrap().len(), 890);
    }

    /// Seven more would be taken for nothing, and go back at once.
    #[test]
    fn a_duplicate_takes_no_more_mbufs_than_it_needs() {
        let ordinary = FramePool::heap(1, 100).unwrap();
        let mut frame = ordinary.copy(&[7; 60]).unwrap();
        frame.attach(Attachment::from(Arc::<[u8]>::from(vec![8; 40])), None).unwrap();
        let mbufs = pool("duplicated", 15);
        let mut copy = None;
        let taken = crate::steps::of(|| copy = frame.duplicate(&mbufs.into()));
        let copy = copy.unwrap();
        assert_eq!((copy.total_len(), copy.is_attached(), mbufs.available()), (100, true, 13));
        assert_eq!(taken, 1, "mbufs for its tail");
    }

    #[test]
    fn the_payload_is_returned_if_no_mbuf_is_free() {
        let pool = pool("comes_back", 1);
        let owner: Arc<[u8]> = vec![2; 70_000].into();
        let mut mbuf = pool.allocate(100).unwrap();
        let attach = |mbuf: &mut Mbuf, len| {
            let part = Attachment::bytes(Arc::clone(&owner), 0..len).unwrap();
            mbuf.attach(part, None)
        };
        assert_eq!(attach(&mut mbuf, 20).unwrap_err().len(), 20);
        assert_eq!(attach(&mut mbuf, 70_000).unwrap_err().len(), 70_000);
        assert_eq!((mbuf.total_len(), Arc::strong_count(&owner)), (100, 1));
    }

    #[test]
    fn segments_are_gathered_into_one() {
        let pool = pool("gathered", 15);
        let owner: Arc<[u8]> = (0..=255).collect::<Vec<u8>>().into();
        let (whole, copied) = chained(&pool, &owner).within_segments(1, &pool, 356).unwrap();
        assert!(copied && !whole.is_chained());
        assert_eq!((&whole[..100], &whole[100..]), (&[1; 100][..], &owner[..]));
        assert_eq!((Arc::strong_count(&owner), pool.available()), (1, 14));
        assert!(chained(&pool, &owner).within_segments(1, &pool, 355).is_none());
        let (_, copied) = pool.allocate(50).unwrap().within_segments(1, &pool, 50).unwrap();
        assert!(!copied);
        let long: Arc<[u8]> = vec![0; 901].into();
        assert!(chained(&pool, &long).within_segments(1, &pool, 2000).is_none(), "longer than a buffer");
        drop(whole);
        assert_eq!((Arc::strong_count(&owner), Arc::strong_count(&long), pool.available()), (1, 1, 15));
    }
}
