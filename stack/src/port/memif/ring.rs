//! The rings of descriptors that both ends see, and the operations of each end.
//!
//! The client owns the memory. In either ring it adds descriptors of its buffers at `head` and takes them back at
//! `tail`, which the server moves. In the ring to the server the client's buffers carry frames; in the ring to the
//! client they are empty, for the server to fill. Indices count modulo 2¹⁶; the slot is the index modulo the ring's
//! length.
//!
//! | offset | what | written by |
//! |---|---|---|
//! | 0 | cookie, u32 | client |
//! | 4 | flags, u16: 1 = do not announce | receiver |
//! | 6 | head, u16 | client |
//! | 64 | tail, u16 | server |
//! | 128 | descriptors of 16 bytes | both |
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

#[cfg(any(test, feature = "fuzzing"))]
use super::meanwhile::peer_acts;
use crate::region::Region;

/// Nothing happens between two reads unless a peer makes it happen.
#[cfg(not(any(test, feature = "fuzzing")))]
#[inline(always)]
fn peer_acts() {}

/// The first word of each ring's header.
pub(super) const COOKIE: u32 = 0x03e3_1f20;

/// Bytes before the descriptors: two cache lines.
const HEADER: usize = 128;

/// The offset of a ring is a multiple of this: a cache line.
pub(super) const RING_ALIGNMENT: u32 = 64;

/// The flag by which a receiver says that it polls: the sender need not announce frames.
const DO_NOT_ANNOUNCE: u16 = 1;

/// The flag of a descriptor whose frame goes on in the next descriptor's buffer.
const GOES_ON: u16 = 1;

/// The most descriptors of a frame: twice as many as the longest one takes with the shortest buffers.
const LONGEST_CHAIN: u16 = 2048;

/// How many descriptors a call looks at, beside those of an incomplete frame that it has seen before. A peer can make a whole
/// ring of such as become no frame wait again by moving an index.
const LOOKS: u16 = 1024;

/// Bytes of a ring.
pub(super) const fn ring_bytes(log2_size: u8) -> usize {
    HEADER + (size_of::<[AtomicU64; 2]>() << log2_size)
}

#[repr(C, align(64))]
struct ClientLine {
    cookie: AtomicU32,
    flags: AtomicU16,
    head: AtomicU16,
}

#[repr(C, align(64))]
struct ServerLine {
    tail: AtomicU16,
}

#[repr(C)]
struct Header {
    client: ClientLine,
    server: ServerLine,
}

const _: () = assert!(size_of::<Header>() == HEADER && align_of::<Header>() == RING_ALIGNMENT as usize);
const _: () = assert!(size_of::<[AtomicU64; 2]>() == 16, "a descriptor");

/// One buffer, as a descriptor names it. The peer may have written it: no value is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Descriptor {
    pub(super) goes_on: bool,
    pub(super) region: u16,
    pub(super) len: u32,
    pub(super) offset: u32,
}

impl Descriptor {
    fn of(words: [u64; 2]) -> Descriptor {
        let [f0, f1, r0, r1, l0, l1, l2, l3] = words[0].to_ne_bytes();
        let [o0, o1, o2, o3, ..] = words[1].to_ne_bytes();
        Descriptor {
            goes_on: u16::from_ne_bytes([f0, f1]) & GOES_ON != 0,
            region: u16::from_ne_bytes([r0, r1]),
            len: u32::from_ne_bytes([l0, l1, l2, l3]),
            offset: u32::from_ne_bytes([o0, o1, o2, o3]),
        }
    }

    fn words(self) -> [u64; 2] {
        let ([f0, f1], [r0, r1]) = (u16::from(self.goes_on).to_ne_bytes(), self.region.to_ne_bytes());
        let ([l0, l1, l2, l3], [o0, o1, o2, o3]) = (self.len.to_ne_bytes(), self.offset.to_ne_bytes());
        let place = u64::from_ne_bytes([o0, o1, o2, o3, 0, 0, 0, 0]);
        [u64::from_ne_bytes([f0, f1, r0, r1, l0, l1, l2, l3]), place]
    }
}

/// A ring in shared memory.
#[derive(Debug)]
struct Ring {
    header: NonNull<Header>,
    descriptors: NonNull<[AtomicU64; 2]>,
    mask: u16,
    /// Keeps the memory.
    _region: Region,
}

// SAFETY: both pointers lead only to atomics, which any thread may use, in memory that `_region` keeps mapped.
unsafe impl Send for Ring {}

impl Ring {
    /// The ring at `offset` of `region`; none if it does not fit there or would not be aligned.
    fn at(region: &Region, offset: u32, log2_size: u8) -> Option<Ring> {
        let len = u32::try_from(ring_bytes(log2_size)).ok().filter(|_| log2_size < 16)?;
        let base = region.bytes(offset.into(), len)?.base();
        let aligned = base.addr().get().is_multiple_of(align_of::<Header>());
        // SAFETY: `bytes` has checked that `len` bytes from `base` lie in the region, and `HEADER` is less than `len`.
        let descriptors = unsafe { base.add(HEADER) }.cast();
        let mask = (1u16 << log2_size).wrapping_sub(1);
        aligned.then(|| Ring { header: base.cast(), descriptors, mask, _region: region.clone() })
    }

    #[inline]
    fn header(&self) -> &Header {
        // SAFETY: `at` has checked that a header lies here in the region, aligned, and `_region` keeps it mapped. It
        // consists of atomics, for which any bytes are values, and regions are accessed only by atomics or by copies
        // that behave like them.
        unsafe { self.header.as_ref() }
    }

    #[inline]
    fn slot(&self, index: u16) -> &[AtomicU64; 2] {
        // SAFETY: `index & mask` is less than the number of slots, for all of which `at` has checked that they lie in
        // the region, which is kept mapped. Descriptors consist of aligned atomics, for which any bytes are values,
        // and regions are accessed only by atomics or by copies that behave like them.
        unsafe { self.descriptors.add(usize::from(index & self.mask)).as_ref() }
    }

    #[inline]
    fn read(&self, index: u16) -> Descriptor {
        let slot = self.slot(index);
        peer_acts();
        let first = slot[0].load(Ordering::Relaxed);
        peer_acts();
        Descriptor::of([first, slot[1].load(Ordering::Relaxed)])
    }

    #[inline]
    fn write(&self, index: u16, descriptor: Descriptor) {
        let (slot, words) = (self.slot(index), descriptor.words());
        slot[0].store(words[0], Ordering::Relaxed);
        slot[1].store(words[1], Ordering::Relaxed);
    }

    /// The number of slots, at most 2¹⁵.
    #[inline]
    fn size(&self) -> u16 {
        self.mask.wrapping_add(1)
    }
}

/// The buffers of one frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chain {
    pub(super) first: Descriptor,
    pub(super) last: Descriptor,
    /// The number of descriptors.
    pub(super) count: u16,
    /// Bytes of the whole frame.
    pub(super) len: usize,
}

/// The client's buffers of one ring: one for each slot, one behind the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buffers {
    pub(super) region: u16,
    pub(super) offset: u32,
    pub(super) size: u32,
}

impl Buffers {
    #[inline]
    fn descriptor(self, slot: u16) -> Descriptor {
        let offset = self.offset + u32::from(slot) * self.size;
        Descriptor { goes_on: false, region: self.region, len: self.size, offset }
    }
}

/// The buffers that a client sends from: each slot has a long one and a short one.
#[derive(Clone, Copy, Debug)]
pub(super) struct TxBuffers {
    pub(super) long: Buffers,
    /// Side by side, without gaps between the lines that most short messages use: processors fetch consecutive lines
    /// ahead by themselves, and many share a page. Long buffers have a page each, or half of one.
    pub(super) short: Buffers,
}

/// The least bytes of a buffer that a client sends from, or offers its server to write to. So what a frame costs depends on
/// its length, and not on how many buffers there are. VPP, libmemif and DPDK offer 2,048 unless they are told otherwise.
pub(super) const SHORTEST: u32 = 64;

/// Bytes of a short buffer, whole cache lines: room for the headers of a frame whose payload is elsewhere, or for a
/// whole frame with 64 bytes of payload.
pub(super) const SHORT: u32 = 192;

impl TxBuffers {
    /// The buffer of `slot` for `len` bytes; the long one if neither holds them.
    #[inline]
    fn descriptor(self, slot: u16, len: u32) -> Descriptor {
        // The configuration may make long buffers shorter than short ones.
        let short = len <= self.short.size;
        if short { self.short.descriptor(slot) } else { self.long.descriptor(slot) }
    }
}

/// Why a link cannot be used any more: the peer has written a value into a ring that cannot be there. Short enough to
/// be told to the peer in 95 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum DescriptorRingError {
    #[error("no ring of 2^{log2_size} slots fits at {offset} of region {region}")]
    Place { region: u16, offset: u32, log2_size: u8 },
    /// Indices count modulo 2¹⁶: `last` may be less than `first`.
    #[error("the {index} is {found}: expected {first} to {last}")]
    Index { index: &'static str, found: u16, first: u16, last: u16 },
    #[error("a frame has {found} descriptors: expected {seen} at least, as before")]
    TakenBack { seen: u16, found: u16 },
    #[error("a frame goes on behind {slots} slots")]
    Endless { slots: u16 },
    #[error("a buffer in region {found}: expected 0 to {last}")]
    Region { found: u16, last: usize },
    #[error("a buffer of {len} bytes at {offset} of region {region}, which has {region_len}")]
    Outside { region: u16, offset: u32, len: u32, region_len: usize },
    #[error("an empty buffer of {found} bytes: expected {SHORTEST} at least")]
    ShortBuffer { found: u32 },
    #[error("a frame of {found} bytes: expected {expected}, as its descriptors said before")]
    Length { expected: usize, found: usize },
}

/// The result of reading a ring. The error is boxed, so that results on the fast path stay small enough for registers.
pub(super) type Checked<T> = Result<T, Box<DescriptorRingError>>;

/// `found` is not one of the `most` + 1 indices from `first` on.
#[cold]
fn bad_index(index: &'static str, found: u16, first: u16, most: u16) -> Box<DescriptorRingError> {
    Box::new(DescriptorRingError::Index { index, found, first, last: first.wrapping_add(most) })
}

/// The part of an incomplete frame that has been read. It is kept so that each descriptor is read once, and not in each
/// turn, if a peer leaves a frame incomplete.
#[derive(Clone, Copy, Debug)]
struct PartialChain {
    /// The index of the frame's first descriptor.
    at: u16,
    /// The number of descriptors read.
    count: u16,
    /// The bytes of their buffers.
    len: usize,
}

/// The receiving end of a ring.
#[derive(Debug)]
pub(super) struct RxRing {
    ring: Ring,
    /// The client's buffers; none at the server.
    buffers: Option<Buffers>,
    /// The index of the next descriptor to receive.
    next: u16,
    /// The index of the next descriptor to give back.
    kept: u16,
    /// The incomplete frame that [`RxRing::chain`] has found, as long as it is the next one.
    partial: Option<PartialChain>,
}

impl RxRing {
    /// The receiving end of the ring at this place; none if no ring fits there.
    pub(super) fn at(
        region: &Region,
        offset: u32,
        log2_size: u8,
        buffers: Option<Buffers>,
    ) -> Option<RxRing> {
        let ring = Ring::at(region, offset, log2_size)?;
        ring.header().client.flags.store(DO_NOT_ANNOUNCE, Ordering::Relaxed);
        let mut rx_ring = RxRing { ring, buffers, next: 0, kept: 0, partial: None };
        rx_ring.offer_all();
        Some(rx_ring)
    }

    /// Gives all of the client's buffers, which are empty, to the server.
    fn offer_all(&mut self) {
        let Some(buffers) = self.buffers else { return };
        let size = self.ring.size();
        (0..size).for_each(|slot| self.ring.write(slot, buffers.descriptor(slot)));
        self.ring.header().client.head.store(size, Ordering::Release);
    }

    /// The number of descriptors with frames that have not been received yet.
    ///
    /// # Errors
    /// The peer's index claims more than the ring can hold.
    #[inline]
    pub(super) fn waiting(&self) -> Checked<u16> {
        let header = self.ring.header();
        let (end, name) = match self.buffers {
            Some(_) => (&header.server.tail, "tail of the ring to the client"),
            None => (&header.client.head, "head of the ring to the server"),
        };
        peer_acts();
        let end = end.load(Ordering::Acquire);
        let waiting = end.wrapping_sub(self.next);
        let most = self.ring.size() - self.next.wrapping_sub(self.kept);
        if waiting <= most { Ok(waiting) } else { Err(bad_index(name, end, self.next, most)) }
    }

    /// As [`RxRing::waiting`], but no more than a call looks at.
    ///
    /// # Errors
    /// As [`RxRing::waiting`].
    #[inline]
    pub(super) fn in_view(&self) -> Checked<u16> {
        let seen = self.partial.map_or(0, |partial| partial.count);
        Ok(self.waiting()?.min(seen + LOOKS))
    }

    /// The `ahead`th of the descriptors that [wait](Self::waiting).
    #[inline]
    pub(super) fn peek(&self, ahead: u16) -> Descriptor {
        self.ring.read(self.next.wrapping_add(ahead))
    }

    /// Whether more descriptors wait than those of the incomplete frame. Also true if the peer's index is invalid.
    pub(super) fn has_news(&self) -> bool {
        self.waiting() != Ok(self.partial.map_or(0, |partial| partial.count))
    }

    /// The frame that begins with the `ahead`th of the descriptors that wait; the frames before it have been asked for.
    /// None if the frame is incomplete.
    ///
    /// # Errors
    /// The frame fills the ring, or has as many descriptors as a frame can have, and still goes on; or the peer has taken back
    /// descriptors that it had shown.
    #[inline]
    pub(super) fn chain(&mut self, ahead: u16, waiting: u16) -> Checked<Option<Chain>> {
        let first = self.peek(ahead);
        if first.goes_on {
            return self.long_chain(first, ahead, waiting);
        }
        Ok(Some(Chain { first, last: first, count: 1, len: first.len as usize }))
    }

    fn long_chain(&mut self, first: Descriptor, ahead: u16, waiting: u16) -> Checked<Option<Chain>> {
        let at = self.next.wrapping_add(ahead);
        let partial = self.partial.filter(|partial| partial.at == at);
        let mut frame = partial.unwrap_or(PartialChain { at, count: 1, len: first.len as usize });
        let there = waiting.saturating_sub(ahead);
        if there < frame.count {
            return Err(Box::new(DescriptorRingError::TakenBack { seen: frame.count, found: there }));
        }
        let most = self.ring.size().min(LONGEST_CHAIN);
        while frame.count < there.min(most) {
            let next = self.peek(ahead + frame.count);
            frame.count += 1;
            frame.len += next.len as usize;
            if !next.goes_on {
                return Ok(Some(Chain { first, last: next, count: frame.count, len: frame.len }));
            }
        }
        if frame.count == most {
            return Err(Box::new(DescriptorRingError::Endless { slots: frame.count }));
        }
        self.partial = Some(frame);
        Ok(None)
    }

    /// Marks `count` descriptors as received. Their buffers are kept until they are [given back](Self::give_back).
    #[inline]
    pub(super) fn advance(&mut self, count: u16) {
        self.next = self.next.wrapping_add(count);
        self.partial = self.partial.filter(|partial| partial.at == self.next);
    }

    /// Gives back the buffers of all descriptors that have been received.
    #[inline]
    pub(super) fn give_back(&mut self) {
        if self.kept == self.next {
            return;
        }
        let header = self.ring.header();
        match self.buffers {
            None => header.server.tail.store(self.next, Ordering::Release),
            Some(buffers) => {
                while self.kept != self.next {
                    // Anew, because the server may have written anything into the descriptor.
                    self.ring.write(self.kept, buffers.descriptor(self.kept & self.ring.mask));
                    self.kept = self.kept.wrapping_add(1);
                }
                header.client.head.store(self.next.wrapping_add(self.ring.size()), Ordering::Release);
            }
        }
        self.kept = self.next;
    }

    /// Asks the sender to announce frames, or not to. Frames that were sent before the call may go unannounced.
    pub(super) fn announce(&mut self, on: bool) {
        let flags = if on { 0 } else { DO_NOT_ANNOUNCE };
        self.ring.header().client.flags.store(flags, Ordering::Relaxed);
        // Either this end's next look finds the sender's frames, or the sender finds the flag.
        fence(Ordering::SeqCst);
    }
}

/// The sending end of a ring.
#[derive(Debug)]
pub(super) struct TxRing {
    ring: Ring,
    /// The client's buffers; none at the server.
    buffers: Option<TxBuffers>,
    /// The index of the next descriptor to fill.
    next: u16,
    /// The number of buffers that were empty at the last look and have not been sent since.
    room: u16,
    /// Whether frames have been sent that may have to be announced still.
    unsure: bool,
    /// The index behind the last descriptor of registered memory, until the receiver is known to be beyond it.
    referred: Option<u16>,
}

impl TxRing {
    /// The sending end of the ring at this place; none if no ring fits there.
    pub(super) fn at(
        region: &Region,
        offset: u32,
        log2_size: u8,
        buffers: Option<TxBuffers>,
    ) -> Option<TxRing> {
        let ring = Ring::at(region, offset, log2_size)?;
        Some(TxRing { ring, buffers, next: 0, room: 0, unsure: false, referred: None })
    }

    /// The number of buffers that are known to be empty. There may be more, but each [look](Self::look) has to fetch a
    /// cache line from the other processor.
    #[inline]
    pub(super) fn room(&self) -> u16 {
        self.room
    }

    /// The number of empty buffers, no fewer than are [known](Self::room), from the peer's index.
    ///
    /// # Errors
    /// The peer's index claims more than the ring can hold, or has gone back.
    pub(super) fn look(&mut self) -> Checked<u16> {
        let (header, size) = (self.ring.header(), self.ring.size());
        // No fewer than are known: some of those may be filled already, and wait only to be sent.
        let most = size - self.room;
        let (end, first, name) = match self.buffers {
            Some(_) => (&header.server.tail, self.next.wrapping_sub(most), "tail of the ring to the server"),
            None => {
                (&header.client.head, self.next.wrapping_add(self.room), "head of the ring to the client")
            }
        };
        peer_acts();
        let end = end.load(Ordering::Acquire);
        let more = end.wrapping_sub(first);
        if more > most {
            return Err(bad_index(name, end, first, most));
        }
        let room = self.room + more;
        self.room = room;
        let full = size - room;
        // Kept if it is not sent yet, or the receiver is not there yet. There is a look before each ringful of
        // frames, so indices have not wrapped around.
        self.referred = self.referred.filter(|end| {
            let behind = self.next.wrapping_sub(*end);
            (behind as i16) < 0 || behind < full
        });
        Ok(room)
    }

    /// Notes that one of the next `count` descriptors refers to registered memory.
    #[inline]
    pub(super) fn refer(&mut self, count: u16) {
        self.referred = Some(self.next.wrapping_add(count));
    }

    /// Whether the receiver may still have to read descriptors of registered memory.
    pub(super) fn refers(&self) -> bool {
        self.referred.is_some()
    }

    /// Makes all frames on their way empty, so that the receiver drops them.
    pub(super) fn take_back(&mut self) {
        for back in 1..=self.ring.size() {
            let index = self.next.wrapping_sub(back);
            // Only the first word changes: a peer that reads both words meanwhile has all of the frame, or none.
            let nothing = Descriptor { goes_on: false, len: 0, ..self.ring.read(index) };
            self.ring.slot(index)[0].store(nothing.words()[0], Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }

    /// Bytes of the longest of this end's own buffers; none if the buffers are the peer's.
    #[inline]
    pub(super) fn own_buffer(&self) -> Option<usize> {
        self.buffers.map(|buffers| buffers.long.size.max(buffers.short.size) as usize)
    }

    /// The number of slots of the ring.
    #[inline]
    pub(super) fn size(&self) -> u16 {
        self.ring.size()
    }

    /// The `ahead`th empty buffer, for `len` bytes. It may be longer; or shorter, if no buffer is as long.
    #[inline]
    pub(super) fn buffer(&self, ahead: u16, len: u32) -> Descriptor {
        let index = self.next.wrapping_add(ahead);
        match self.buffers {
            Some(buffers) => buffers.descriptor(index & self.ring.mask, len),
            None => self.ring.read(index),
        }
    }

    /// Writes the descriptor of the `ahead`th buffer.
    #[inline]
    pub(super) fn fill(&mut self, ahead: u16, descriptor: Descriptor) {
        self.ring.write(self.next.wrapping_add(ahead), descriptor);
    }

    /// Sends the first `count` buffers, all of them [known](Self::room). Returns whether the receiver is known to ask
    /// for an announcement. A later call of [`tell`](Self::tell) must follow.
    #[inline]
    pub(super) fn send(&mut self, count: u16) -> bool {
        self.next = self.next.wrapping_add(count);
        self.room -= count;
        let header = self.ring.header();
        let end = if self.buffers.is_some() { &header.client.head } else { &header.server.tail };
        end.store(self.next, Ordering::Release);
        let wanted = self.is_wanted();
        self.unsure = !wanted;
        wanted
    }

    /// Whether frames were sent just when the receiver began to ask for announcements, so that they must be announced
    /// now.
    ///
    /// To be sure of that takes a fence, as in [`RxRing::announce`], which waits until the other processor has given
    /// up all the lines that have been written to. The wait is longest right after [`send`](Self::send).
    #[inline]
    pub(super) fn tell(&mut self) -> bool {
        if !std::mem::take(&mut self.unsure) {
            return false;
        }
        fence(Ordering::SeqCst);
        self.is_wanted()
    }

    #[inline]
    fn is_wanted(&self) -> bool {
        self.ring.header().client.flags.load(Ordering::Relaxed) & DO_NOT_ANNOUNCE == 0
    }
}

/// Makes the memory at `offset` of `region` an empty ring. The client does this before it offers the ring to the
/// server.
pub(super) fn create(region: &Region, offset: u32, log2_size: u8) -> bool {
    let ring = Ring::at(region, offset, log2_size);
    ring.inspect(|ring| ring.header().client.cookie.store(COOKIE, Ordering::Release)).is_some()
}
