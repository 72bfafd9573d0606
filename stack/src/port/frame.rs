//! Frames and the pools that their buffers come from.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use thiserror::Error;
use weft_cc::Span;

use super::borrowed::{BorrowedFrame, ReturnedFrames};
#[cfg(feature = "dpdk")]
use super::dpdk::{KeptMbufs, Mbuf, MbufPool, ReturnedMbufs};
use super::{Attachment, MIN_FRAME};
use crate::packet::Payload;
use crate::region::RegionBytes;

/// An Ethernet frame in a buffer of a [`FramePool`]; dereferences to its bytes. Dropping it gives
/// the buffer back, on any thread.
pub struct Frame(Buffer);

enum Buffer {
    Heap(HeapBuffer),
    Borrowed(BorrowedFrame),
    #[cfg(feature = "dpdk")]
    Mbuf(Mbuf),
}

impl Frame {
    /// Shortens the frame to its first `len` bytes, as a trimming switch does, but not below
    /// [`MIN_FRAME`]. Does nothing if the frame is no longer than that. Drops attached payload.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        let len = len.max(MIN_FRAME);
        match &mut self.0 {
            Buffer::Heap(buffer) => buffer.truncate(len),
            Buffer::Borrowed(frame) => frame.truncate(len),
            #[cfg(feature = "dpdk")]
            Buffer::Mbuf(mbuf) => mbuf.truncate(len),
        }
    }

    /// Bytes of the whole frame: those that it dereferences to and those that follow elsewhere, such as
    /// [attached](super::Reservation::attach) payload.
    #[inline]
    pub fn total_len(&self) -> usize {
        match &self.0 {
            Buffer::Heap(buffer) => buffer.total_len(),
            Buffer::Borrowed(frame) => frame.total_len(),
            #[cfg(feature = "dpdk")]
            Buffer::Mbuf(mbuf) => mbuf.total_len(),
        }
    }

    /// Whether the frame goes on behind the bytes that it dereferences to.
    #[inline]
    pub fn is_attached(&self) -> bool {
        match &self.0 {
            Buffer::Heap(buffer) => buffer.tail.is_some(),
            Buffer::Borrowed(frame) => frame.total_len() > frame.head().len(),
            #[cfg(feature = "dpdk")]
            Buffer::Mbuf(mbuf) => mbuf.is_chained(),
        }
    }

    /// The bytes behind those that the frame dereferences to, if it goes on elsewhere. Only frames to be sent do, and
    /// frames received into a burst that takes them ([`RxBurst::with_tails`](super::RxBurst::with_tails)).
    #[inline]
    pub(crate) fn tail(&self) -> Option<Payload<'_>> {
        match &self.0 {
            Buffer::Heap(buffer) => buffer.tail.as_ref().map(Attachment::payload),
            Buffer::Borrowed(frame) => frame.bytes_from(frame.head().len()).map(Payload::Region),
            #[cfg(feature = "dpdk")]
            Buffer::Mbuf(mbuf) => mbuf.tail().map(Payload::Region),
        }
    }

    /// The bytes from `start` on of a received frame that [goes on](Self::is_attached) elsewhere, if all of them lie
    /// there in one place.
    #[inline]
    pub(crate) fn bytes_from(&self, start: usize) -> Option<RegionBytes<'_>> {
        match &self.0 {
            Buffer::Heap(_) => None,
            Buffer::Borrowed(frame) => frame.bytes_from(start),
            #[cfg(feature = "dpdk")]
            Buffer::Mbuf(mbuf) => mbuf.tail().filter(|_| start == mbuf.len()),
        }
    }

    /// A copy of the whole frame in one buffer of `pool`; `None` if no buffer is free or long enough.
    pub(crate) fn gather(&self, pool: &FramePool) -> Option<Frame> {
        let mut whole = pool.allocate(self.total_len())?;
        let (head, rest) = whole.split_at_mut_checked(self.len())?;
        head.copy_from_slice(self);
        if let Some(tail) = self.tail() {
            tail.copy_to(rest);
        }
        whole.set_checksum_status(self.checksum_status());
        Some(whole)
    }

    /// A duplicate in a buffer of `pool`. Attached payload is shared with the original if its memory can be; else it is
    /// copied. `None` if no buffer is free or long enough.
    pub(super) fn duplicate(&self, pool: &FramePool) -> Option<Frame> {
        let shared = match &self.0 {
            Buffer::Heap(buffer) => buffer.tail.as_ref(),
            Buffer::Borrowed(_) => None,
            #[cfg(feature = "dpdk")]
            Buffer::Mbuf(_) => None,
        };
        let Some(shared) = shared else { return self.gather(pool) };
        let mut copy = pool.copy(self)?;
        copy.set_checksum_status(self.checksum_status());
        copy.attach(shared.clone(), None).is_ok().then_some(copy)
    }

    /// Attaches payload, or gives it back if that is not possible. If it takes a buffer, that is one of those `kept`, which are
    /// filled up for the frames that follow if there is none; without them it takes one from the pool.
    #[inline]
    #[cfg_attr(not(feature = "dpdk"), expect(unused_variables, reason = "only mbufs are kept"))]
    pub(super) fn attach(
        &mut self,
        payload: Attachment,
        kept: Option<&mut KeptBuffers>,
    ) -> Result<(), Attachment> {
        match &mut self.0 {
            Buffer::Heap(buffer) => {
                buffer.tail = Some(payload);
                Ok(())
            }
            Buffer::Borrowed(_) => Err(payload),
            #[cfg(feature = "dpdk")]
            Buffer::Mbuf(mbuf) => mbuf.attach(payload, kept.map(|kept| &mut kept.0)),
        }
    }

    /// Drops attached payload, if the frame's buffer is of `pool` and in ordinary memory. Returns whether it is.
    #[inline]
    pub(super) fn detach_from(&mut self, pool: &FramePool) -> bool {
        match (&mut self.0, &pool.0) {
            (Buffer::Heap(buffer), Pool::Heap(pool)) if Arc::ptr_eq(&buffer.home, pool) => {
                if buffer.tail.is_some() {
                    buffer.tail = None;
                }
                true
            }
            _ => false,
        }
    }

    /// Makes the frame as if newly [allocated](FramePool::allocate) with `len` bytes. Returns whether its buffer is in
    /// ordinary memory and holds them; if not, the frame is unchanged.
    #[inline]
    pub(super) fn renew(&mut self, len: usize) -> bool {
        match &mut self.0 {
            Buffer::Heap(buffer) if len <= buffer.bytes.len() => {
                (buffer.len, buffer.tail, buffer.checksums) = (len, None, ChecksumStatus::Unknown);
                true
            }
            _ => false,
        }
    }

    /// Lengthens the frame by `len` bytes and returns these, whose content is arbitrary; `None` if the buffer
    /// does not hold them.
    #[inline]
    pub(super) fn extend(&mut self, len: usize) -> Option<&mut [u8]> {
        match &mut self.0 {
            Buffer::Heap(buffer) => {
                let start = buffer.len;
                let room = if buffer.tail.is_some() { start } else { buffer.bytes.len() };
                let end = start.checked_add(len).filter(|end| *end <= room)?;
                buffer.len = end;
                Some(&mut buffer.bytes[start..end])
            }
            Buffer::Borrowed(_) => None,
            #[cfg(feature = "dpdk")]
            Buffer::Mbuf(mbuf) => mbuf.extend(len),
        }
    }

    /// The checksum status that the receiving port has found.
    #[inline]
    pub fn checksum_status(&self) -> ChecksumStatus {
        match &self.0 {
            Buffer::Heap(buffer) => buffer.checksums,
            Buffer::Borrowed(_) => ChecksumStatus::Unknown,
            #[cfg(feature = "dpdk")]
            Buffer::Mbuf(mbuf) => mbuf.checksum_status(),
        }
    }

    /// How long a received frame had waited in this host when its port handed it over; zero if the port does not
    /// measure that ([`PortCaps::timestamps`](super::PortCaps::timestamps)).
    #[inline]
    pub fn waited(&self) -> Span {
        match &self.0 {
            Buffer::Heap(buffer) => Span::from_ns(buffer.waited_ns.into()),
            Buffer::Borrowed(_) => Span::ZERO,
            #[cfg(feature = "dpdk")]
            Buffer::Mbuf(_) => Span::ZERO,
        }
    }

    /// Notes how long a frame in ordinary memory has waited, at most 4 s.
    #[inline]
    pub(super) fn set_waited(&mut self, waited: Span) {
        if let Buffer::Heap(buffer) = &mut self.0 {
            buffer.waited_ns = (waited.as_ps() / 1_000).min(u32::MAX.into()) as u32;
        }
    }

    /// Asks the port that will send the frame to compute checksums. Returns whether frames of this pool can carry the
    /// request. Whether the port can fulfil it is in its [`super::PortCaps`]: ask for nothing that it does not offer.
    #[inline]
    pub fn offload_checksums(&mut self, request: &ChecksumOffload) -> bool {
        match &mut self.0 {
            // The request needs no place: the kernel always computes both.
            Buffer::Heap(buffer) => {
                let _ = request;
                buffer.home.for_kernel
            }
            Buffer::Borrowed(_) => false,
            #[cfg(feature = "dpdk")]
            Buffer::Mbuf(mbuf) => {
                mbuf.offload_checksums(request);
                true
            }
        }
    }

    /// Sets the checksum status of a frame in ordinary memory.
    #[inline]
    pub(super) fn set_checksum_status(&mut self, status: ChecksumStatus) {
        match &mut self.0 {
            Buffer::Heap(buffer) => buffer.checksums = status,
            Buffer::Borrowed(_) => {}
            #[cfg(feature = "dpdk")]
            Buffer::Mbuf(_) => {}
        }
    }

    /// The frame as a port hands it over that has found its checksums good.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn verified(&mut self) {
        self.set_checksum_status(ChecksumStatus::Good);
    }

    /// A frame of these bytes, borrowed from memory of its own in two parts, of which the first has `head` bytes. `None`
    /// if no port hands over such a frame.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn in_two_parts(bytes: &[u8], head: usize) -> Option<Frame> {
        BorrowedFrame::in_two_parts(bytes, head).map(Frame::from)
    }

    /// Drops these frames, giving borrowed ones and mbufs back together.
    #[inline]
    pub(super) fn drop_all(frames: impl Iterator<Item = Frame>) {
        let mut returned = ReturnedFrames::default();
        #[cfg(feature = "dpdk")]
        let mut mbufs = ReturnedMbufs::default();
        for frame in frames {
            match frame.0 {
                Buffer::Borrowed(frame) => returned.add(frame),
                #[cfg(feature = "dpdk")]
                Buffer::Mbuf(mbuf) => mbufs.add(mbuf),
                other => drop(other),
            }
        }
    }

    /// The mbuf, if the frame is one.
    #[cfg(feature = "dpdk")]
    #[inline]
    pub(super) fn as_mbuf(&self) -> Option<&Mbuf> {
        match &self.0 {
            Buffer::Mbuf(mbuf) => Some(mbuf),
            _ => None,
        }
    }
}

impl From<BorrowedFrame> for Frame {
    #[inline]
    fn from(frame: BorrowedFrame) -> Frame {
        Frame(Buffer::Borrowed(frame))
    }
}

#[cfg(feature = "dpdk")]
impl From<Mbuf> for Frame {
    #[inline]
    fn from(mbuf: Mbuf) -> Frame {
        Frame(Buffer::Mbuf(mbuf))
    }
}

impl Deref for Frame {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Buffer::Heap(buffer) => &buffer.bytes[..buffer.len],
            Buffer::Borrowed(frame) => frame.head(),
            #[cfg(feature = "dpdk")]
            Buffer::Mbuf(mbuf) => mbuf,
        }
    }
}

impl DerefMut for Frame {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Buffer::Heap(buffer) => &mut buffer.bytes[..buffer.len],
            Buffer::Borrowed(frame) => frame.head_mut(),
            #[cfg(feature = "dpdk")]
            Buffer::Mbuf(mbuf) => mbuf,
        }
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.0 {
            Buffer::Heap(_) => "heap",
            Buffer::Borrowed(_) => "frame",
            #[cfg(feature = "dpdk")]
            Buffer::Mbuf(_) => "mbuf",
        };
        write!(f, "Frame({kind}, {} bytes)", self.len())
    }
}

/// Whether a port has verified the checksums of a received frame, and with which result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumStatus {
    /// The port has not verified them: verify them yourself.
    Unknown,
    /// The checksums of the IPv4 header (if there is one) and of UDP are right.
    Good,
    /// At least one of them is wrong.
    Bad,
}

/// A request to a port: which checksums to compute in a frame, and where they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChecksumOffload {
    /// Bytes of the Ethernet header, tags included; at most 127.
    pub l2_len: u8,
    /// Bytes of the IP header, options included; at most 511.
    pub l3_len: u16,
    /// Whether the IP header is IPv4; else it is IPv6.
    pub ipv4: bool,
    /// Whether to compute the UDP checksum too. Its field must hold the checksum of the pseudo-header.
    pub udp: bool,
}

/// Buffers of one pool that were taken from it together, for the next frames of a burst. Buffers in ordinary memory stay in
/// their frames instead.
#[derive(Debug, Default)]
pub(super) struct KeptBuffers(#[cfg(feature = "dpdk")] KeptMbufs);

/// A fixed number of equal buffers, allocated once. Clones share them. Threads may allocate and free
/// at the same time, without locks.
#[derive(Clone)]
pub struct FramePool(Pool);

#[derive(Clone)]
enum Pool {
    Heap(Arc<HeapPool>),
    #[cfg(feature = "dpdk")]
    Mbuf(MbufPool),
}

impl FramePool {
    /// A pool of `buffers` buffers of `size` bytes each, in ordinary memory.
    pub fn heap(buffers: usize, size: usize) -> Result<FramePool, PoolError> {
        FramePool::in_memory(buffers, size, false)
    }

    /// The same for frames that a port hands to the kernel, which computes their checksums.
    pub(crate) fn heap_for_kernel(buffers: usize, size: usize) -> Result<FramePool, PoolError> {
        FramePool::in_memory(buffers, size, true)
    }

    fn in_memory(buffers: usize, size: usize, for_kernel: bool) -> Result<FramePool, PoolError> {
        if buffers == 0 || size < MIN_FRAME {
            return Err(PoolError { buffers, size });
        }
        let free = ArrayQueue::new(buffers);
        for _ in 0..buffers {
            let stored = free.push(vec![0; size].into_boxed_slice());
            debug_assert!(stored.is_ok(), "the queue is as long as the pool is large");
        }
        Ok(FramePool(Pool::Heap(Arc::new(HeapPool { free, size, for_kernel }))))
    }

    /// A frame of `len` bytes, or `None` if no buffer is free or `len` is above
    /// [`buffer_size`](Self::buffer_size). **Its bytes are those of an earlier frame**: overwrite
    /// them all.
    #[inline]
    pub fn allocate(&self, len: usize) -> Option<Frame> {
        match &self.0 {
            Pool::Heap(pool) => pool.allocate(len).map(|buffer| Frame(Buffer::Heap(buffer))),
            #[cfg(feature = "dpdk")]
            Pool::Mbuf(pool) => pool.allocate(len).map(Frame::from),
        }
    }

    /// As [`allocate`](Self::allocate), with a buffer that was `kept`, or new ones, of which the rest are kept: taking several
    /// from the pool at once takes less time.
    #[inline]
    #[cfg_attr(not(feature = "dpdk"), expect(unused_variables, reason = "only mbufs are kept"))]
    pub(super) fn allocate_for(&self, kept: &mut KeptBuffers, len: usize) -> Option<Frame> {
        match &self.0 {
            Pool::Heap(pool) => pool.allocate(len).map(|buffer| Frame(Buffer::Heap(buffer))),
            #[cfg(feature = "dpdk")]
            Pool::Mbuf(pool) => kept.0.allocate(pool, len).map(Frame::from),
        }
    }

    /// A frame with these bytes, or `None` as with [`allocate`](Self::allocate).
    #[inline]
    pub fn copy(&self, bytes: &[u8]) -> Option<Frame> {
        let mut frame = self.allocate(bytes.len())?;
        frame.copy_from_slice(bytes);
        Some(frame)
    }

    /// Bytes of the longest frame that a buffer can hold.
    #[inline]
    pub fn buffer_size(&self) -> usize {
        match &self.0 {
            Pool::Heap(pool) => pool.size,
            #[cfg(feature = "dpdk")]
            Pool::Mbuf(pool) => pool.buffer_size(),
        }
    }

    /// The number of buffers, free or not.
    pub fn capacity(&self) -> usize {
        match &self.0 {
            Pool::Heap(pool) => pool.free.capacity(),
            #[cfg(feature = "dpdk")]
            Pool::Mbuf(pool) => pool.capacity(),
        }
    }

    /// The number of free buffers. Exact only while no other thread uses the pool. Slow with mbufs.
    pub fn available(&self) -> usize {
        match &self.0 {
            Pool::Heap(pool) => pool.free.len(),
            #[cfg(feature = "dpdk")]
            Pool::Mbuf(pool) => pool.available(),
        }
    }
}

#[cfg(feature = "dpdk")]
impl From<MbufPool> for FramePool {
    fn from(pool: MbufPool) -> FramePool {
        FramePool(Pool::Mbuf(pool))
    }
}

impl fmt::Debug for FramePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FramePool({} buffers of {} bytes)", self.capacity(), self.buffer_size())
    }
}

/// A pool needs at least one buffer, and buffers that hold the shortest frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a pool of {buffers} buffers of {size} bytes can hold no frame")]
pub struct PoolError {
    /// The number of buffers asked for.
    pub buffers: usize,
    /// The size of each in bytes.
    pub size: usize,
}

struct HeapPool {
    free: ArrayQueue<Box<[u8]>>,
    size: usize,
    /// Whether the kernel sends these frames, and so computes their checksums.
    for_kernel: bool,
}

impl HeapPool {
    #[inline]
    fn allocate(self: &Arc<Self>, len: usize) -> Option<HeapBuffer> {
        if len > self.size {
            return None;
        }
        let bytes = self.free.pop()?;
        let (tail, checksums) = (None, ChecksumStatus::Unknown);
        Some(HeapBuffer { bytes, len, tail, checksums, waited_ns: 0, home: Arc::clone(self) })
    }
}

struct HeapBuffer {
    bytes: Box<[u8]>,
    len: usize,
    /// The payload attached behind the bytes of the buffer.
    tail: Option<Attachment>,
    checksums: ChecksumStatus,
    /// How long the received frame had waited when the port handed it over, ns.
    waited_ns: u32,
    home: Arc<HeapPool>,
}

impl HeapBuffer {
    fn truncate(&mut self, len: usize) {
        if len < self.total_len() {
            self.tail = None;
            self.len = self.len.min(len);
        }
    }

    #[inline]
    fn total_len(&self) -> usize {
        self.len + self.tail.as_ref().map_or(0, Attachment::len)
    }
}

impl Drop for HeapBuffer {
    #[inline]
    fn drop(&mut self) {
        // An empty box owns no memory: this neither allocates nor frees.
        let bytes = std::mem::take(&mut self.bytes);
        let stored = self.home.free.push(bytes);
        debug_assert!(stored.is_ok(), "the queue is as long as the pool is large");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back() {
        let pool = FramePool::heap(3, 100).unwrap();
        let frames: Vec<Frame> = std::iter::from_fn(|| pool.allocate(100)).collect();
        assert_eq!((frames.len(), pool.available()), (3, 0));
        std::thread::spawn(move || drop(frames)).join().unwrap();
        assert_eq!((pool.available(), pool.capacity()), (3, 3));
    }

    #[test]
    fn frames_outlive_their_pool() {
        let pool = FramePool::heap(1, 20).unwrap();
        let frame = pool.copy(&[7; 20]).unwrap();
        drop(pool);
        assert_eq!(*frame, [7; 20]);
    }

    #[test]
    fn length_is_bounded_by_the_buffer() {
        let pool = FramePool::heap(1, 20).unwrap();
        assert!(pool.allocate(21).is_none());
        assert_eq!(pool.available(), 1, "a refusal takes no buffer");
        let mut frame = pool.allocate(20).unwrap();
        frame.truncate(30);
        assert_eq!(frame.len(), 20);
        frame.truncate(15);
        assert_eq!(frame.len(), 15);
        frame.truncate(0);
        assert_eq!(frame.len(), MIN_FRAME);
        drop(frame);
        assert_eq!(pool.allocate(20).unwrap().len(), 20, "a buffer comes back at full size");
    }

    #[test]
    fn frames_grow_inside_their_buffer() {
        let pool = FramePool::heap(1, 20).unwrap();
        let mut frame = pool.copy(&[7; 15]).unwrap();
        assert!(frame.extend(6).is_none() && frame.extend(usize::MAX).is_none());
        frame.extend(5).unwrap().fill(8);
        assert_eq!((frame[14], frame[15], frame.total_len()), (7, 8, 20));
    }

    #[test]
    fn frames_continue_with_their_attachment() {
        let pool = FramePool::heap(2, 40).unwrap();
        let mut frame = pool.copy(&[7; 20]).unwrap();
        frame.attach(Attachment::from(Arc::from([8u8; 10])), None).unwrap();
        assert!(frame.is_attached() && frame.extend(1).is_none());
        assert_eq!((frame.len(), frame.total_len()), (20, 30));
        assert_eq!(frame.gather(&pool).unwrap()[18..], [7, 7, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8]);
        frame.truncate(30);
        assert!(frame.is_attached());
        frame.truncate(29);
        assert_eq!((frame.is_attached(), frame.total_len()), (false, 20));
    }

    #[test]
    fn useless_pools_are_refused() {
        assert!(FramePool::heap(0, 100).is_err());
        assert_eq!(FramePool::heap(4, 13).unwrap_err(), PoolError { buffers: 4, size: 13 });
    }
}
