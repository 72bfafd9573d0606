//! Up to 32 frames on their way into or out of a port.

use std::ops::{Deref, DerefMut};

use arrayvec::ArrayVec;
use thiserror::Error;

use super::frame::KeptBuffers;
use super::{Attachment, BURST, Frame, FramePool, MIN_FRAME, Port, PortCaps};
use crate::packet::Payload;
use crate::region::RegionBytes;

/// Frames that a port has received. Dereferences to a slice of them.
#[derive(Debug, Default)]
pub struct RxBurst {
    frames: ArrayVec<Frame, BURST>,
    /// Whether the burst takes frames that [go on](Frame::is_attached) behind the bytes that they dereference to.
    tails: bool,
}

impl RxBurst {
    /// An empty burst.
    pub fn new() -> RxBurst {
        RxBurst::default()
    }

    /// An empty burst that takes frames which [go on](Frame::is_attached) elsewhere, for callers that handle such
    /// frames. In other bursts each frame is in one piece.
    pub(crate) fn with_tails() -> RxBurst {
        RxBurst { tails: true, ..RxBurst::default() }
    }

    /// Whether the burst takes frames that go on elsewhere.
    #[inline]
    pub(super) fn takes_tails(&self) -> bool {
        self.tails
    }

    /// How many more frames fit.
    #[inline]
    pub fn room(&self) -> usize {
        self.frames.remaining_capacity()
    }

    /// Appends a frame. Gives it back if the burst is full. For implementors of [`Port`].
    #[inline]
    pub fn push(&mut self, frame: Frame) -> Result<(), Frame> {
        self.frames.try_push(frame).map_err(|error| error.element())
    }

    /// Takes all frames out, in order; those not consumed are dropped.
    #[inline]
    pub fn drain(&mut self) -> impl ExactSizeIterator<Item = Frame> + '_ {
        self.frames.drain(..)
    }

    /// Drops all frames.
    #[inline]
    pub fn clear(&mut self) {
        Frame::drop_all(self.frames.drain(..));
    }

    /// Drops the first `count` frames, of which there are so many.
    #[cold]
    pub(crate) fn drop_first(&mut self, count: usize) {
        Frame::drop_all(self.frames.drain(..count));
    }
}

impl Deref for RxBurst {
    type Target = [Frame];

    #[inline]
    fn deref(&self) -> &[Frame] {
        &self.frames
    }
}

impl DerefMut for RxBurst {
    #[inline]
    fn deref_mut(&mut self) -> &mut [Frame] {
        &mut self.frames
    }
}

/// Frames for a port to send. Dereferences to a slice of them.
#[derive(Debug)]
pub struct TxBurst {
    /// The frames of the burst, and behind them spare ones, whose buffers [`reserve`](Self::reserve) takes first.
    /// Frames stay in place from one burst to the next: moving one that has just been written is a store-forwarding
    /// stall (see `borrowed.rs`).
    frames: Box<ArrayVec<Frame, BURST>>,
    /// The number of frames in the burst.
    count: usize,
    pool: FramePool,
    /// Buffers of the pool for the next frames, without data.
    kept: KeptBuffers,
    max_frame: usize,
    multi_segment: bool,
    payloads: Payloads,
}

/// How payloads have been put into the frames of a burst since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Payloads {
    /// Payloads attached: the device reads them where they are.
    pub attached: u64,
    /// Payloads copied.
    pub copied: u64,
}

impl TxBurst {
    /// An empty burst for this port: frames are allocated from its pool and no longer than it sends. Until it is cleared or
    /// dropped it may keep some buffers of the pool for its next frames.
    pub fn new<P: Port + ?Sized>(port: &P) -> TxBurst {
        TxBurst::of(port.pool(), &port.capabilities())
    }

    /// An empty burst for a port with this pool and these capabilities.
    pub(super) fn of(pool: FramePool, caps: &PortCaps) -> TxBurst {
        let max_frame = caps.max_frame.min(pool.buffer_size());
        let (multi_segment, payloads) = (caps.multi_segment, Payloads::default());
        let (frames, kept) = (Box::default(), KeptBuffers::default());
        TxBurst { frames, count: 0, pool, kept, max_frame, multi_segment, payloads }
    }

    /// A buffer for a frame of `len` bytes, to be written and then [committed](Reservation::commit).
    /// **Its bytes are those of an earlier frame**: overwrite them all.
    #[inline(always)]
    pub fn reserve(&mut self, len: usize) -> Result<Reservation<'_>, ReserveError> {
        check_len(len, self.max_frame)?;
        if self.room() == 0 {
            return Err(ReserveError::BurstFull);
        }
        if !self.frames.get_mut(self.count).is_some_and(|spare| spare.renew(len)) {
            self.allocate(len)?;
        }
        Ok(Reservation { burst: self })
    }

    /// Takes a buffer of the pool for the next frame, in the place of spare ones.
    // Not inlined into the code that most frames run through: those reuse a buffer.
    #[inline(never)]
    fn allocate(&mut self, len: usize) -> Result<(), ReserveError> {
        self.drop_spare();
        self.frames.push(self.pool.allocate_for(&mut self.kept, len).ok_or(ReserveError::PoolEmpty)?);
        Ok(())
    }

    /// Gives back the spare buffers.
    fn drop_spare(&mut self) {
        self.frames.truncate(self.count);
    }

    /// Appends a frame that exists already, say one that was received and is passed on. It may be of
    /// another port's pool. Gives it back if it is refused.
    #[inline]
    pub fn push(&mut self, frame: Frame) -> Result<(), PushError> {
        if let Err(reason) = check_len(frame.total_len(), self.max_frame) {
            return Err(PushError { frame, reason });
        }
        if frame.is_attached() && !self.multi_segment {
            return Err(PushError { frame, reason: ReserveError::Attached });
        }
        if self.room() == 0 {
            return Err(PushError { frame, reason: ReserveError::BurstFull });
        }
        self.drop_spare();
        self.frames.push(frame);
        self.count += 1;
        Ok(())
    }

    /// Longest frame that the burst accepts, bytes.
    #[inline]
    pub fn max_frame(&self) -> usize {
        self.max_frame
    }

    /// How many more frames fit.
    #[inline]
    pub fn room(&self) -> usize {
        BURST - self.count
    }

    /// Takes the first `count` frames out, in order; those not consumed are dropped. Takes all if
    /// there are fewer. For implementors of [`Port`].
    #[inline]
    pub fn take_front(&mut self, count: usize) -> impl ExactSizeIterator<Item = Frame> + '_ {
        let count = count.min(self.count);
        self.count -= count;
        self.frames.drain(..count)
    }

    /// Takes out the first `count` frames, which the port has copied, and keeps their buffers for the next frames:
    /// that is cheaper than giving them back to the pool. Takes all if there are fewer.
    #[inline]
    pub(super) fn reuse_front(&mut self, count: usize) {
        let count = count.min(self.count);
        let (sent, rest) = self.frames[..self.count].split_at_mut(count);
        if !sent.iter_mut().all(|frame| frame.detach_from(&self.pool)) {
            drop(self.take_front(count));
            return;
        }
        if !rest.is_empty() {
            self.frames[..self.count].rotate_left(count);
        }
        self.count -= count;
    }

    /// How [`Reservation::attach`] and [`Reservation::append`] have put payloads into frames.
    pub fn payloads(&self) -> Payloads {
        self.payloads
    }

    /// Drops all frames longer than `max_frame` bytes, and those with attached payload, and returns how many it
    /// dropped. For implementors of [`Port`], which may be given a burst made for another port.
    #[inline]
    pub fn drop_longer_than(&mut self, max_frame: usize) -> usize {
        self.drop_unsendable(max_frame, false)
    }

    /// The same for a port that may be able to send attached payload.
    #[inline]
    pub(super) fn drop_unsendable(&mut self, max_frame: usize, multi_segment: bool) -> usize {
        if self.max_frame <= max_frame && (multi_segment || !self.multi_segment) {
            return 0;
        }
        let before = self.count;
        self.retain(|frame| frame.total_len() <= max_frame && (multi_segment || !frame.is_attached()));
        before - self.count
    }

    fn retain(&mut self, mut keep: impl FnMut(&Frame) -> bool) {
        self.drop_spare();
        self.frames.retain(|frame| keep(frame));
        self.count = self.frames.len();
    }

    /// Drops the frames with attached payload.
    pub(crate) fn drop_attached(&mut self) {
        self.retain(|frame| !frame.is_attached());
    }

    /// Drops the frames with attached payload that is of no region, or for which `is_gone` returns true.
    pub(crate) fn drop_attached_to(&mut self, is_gone: impl Fn(RegionBytes<'_>) -> bool) {
        self.retain(|frame| match frame.tail() {
            Some(Payload::Region(bytes)) => !is_gone(bytes),
            _ => !frame.is_attached(),
        });
    }

    /// Drops the frames whose bits are set in `gone`, the lowest bit being the first frame's.
    pub(super) fn remove(&mut self, gone: u32) {
        if gone.count_ones() as usize == self.count {
            return self.clear();
        }
        let mut bit = 1u32;
        self.retain(|_| {
            let kept = gone & bit == 0;
            bit = bit.wrapping_shl(1);
            kept
        });
    }

    /// Drops all frames, and gives back the buffers that were kept for the next ones.
    #[inline]
    pub fn clear(&mut self) {
        self.frames.clear();
        self.kept = KeptBuffers::default();
        self.count = 0;
    }

    /// The frames, for a port that replaces those it cannot send from their memory. Not public: a
    /// frame put here avoids the checks of [`push`](Self::push).
    #[cfg(feature = "dpdk")]
    #[inline]
    pub(super) fn frames_mut(&mut self) -> &mut [Frame] {
        &mut self.frames[..self.count]
    }
}

impl Deref for TxBurst {
    type Target = [Frame];

    #[inline]
    fn deref(&self) -> &[Frame] {
        &self.frames[..self.count]
    }
}

#[inline]
fn check_len(len: usize, max: usize) -> Result<(), ReserveError> {
    if len < MIN_FRAME {
        return Err(ReserveError::TooShort { len });
    }
    if len > max {
        return Err(ReserveError::TooLong { len, max });
    }
    Ok(())
}

/// A buffer in which a frame is being written; dereferences to [`Frame`]. Dropped without
/// [`commit`](Self::commit), it goes back to its pool and nothing is sent.
#[derive(Debug)]
#[must_use = "a frame that is not committed is not sent"]
pub struct Reservation<'a> {
    /// The reserved frame is the first spare one of this burst.
    burst: &'a mut TxBurst,
}

impl Reservation<'_> {
    /// Appends `payload` to the bytes written so far: by reference if the port
    /// [can send that](super::PortCaps::multi_segment), else by copying it. Its memory is kept until the frame has been
    /// sent; changes to it until then may or may not be sent.
    ///
    /// The frame still dereferences to the bytes written before. It takes no second attachment; truncating it
    /// drops this one.
    ///
    /// # Errors
    /// The frame would be too long, or has an attachment already. The frame is unchanged.
    #[inline]
    pub fn attach(&mut self, payload: Attachment) -> Result<(), ReserveError> {
        self.check(payload.len())?;
        let payload = if self.burst.multi_segment && !payload.is_empty() {
            let TxBurst { frames, count, kept, .. } = &mut *self.burst;
            match frames[*count].attach(payload, Some(kept)) {
                Ok(()) => {
                    self.burst.payloads.attached += 1;
                    return Ok(());
                }
                Err(payload) => payload,
            }
        } else {
            payload
        };
        self.append(payload.payload())
    }

    /// Appends a copy of `payload` to the bytes written so far. A virtual payload, which has only a length, adds
    /// nothing.
    ///
    /// # Errors
    /// As of [`attach`](Self::attach).
    #[inline]
    pub fn append(&mut self, payload: Payload<'_>) -> Result<(), ReserveError> {
        let len = match payload {
            Payload::Virtual(_) => return Ok(()),
            Payload::Bytes(_) | Payload::Region(_) => payload.len() as usize,
        };
        self.check(len)?;
        let too_long = ReserveError::TooLong { len: self.len() + len, max: self.burst.max_frame };
        payload.copy_to(self.extend(len).ok_or(too_long)?);
        self.burst.payloads.copied += 1;
        Ok(())
    }

    #[inline]
    fn check(&self, more: usize) -> Result<(), ReserveError> {
        if self.is_attached() {
            return Err(ReserveError::Attached);
        }
        check_len(self.len().saturating_add(more), self.burst.max_frame)
    }

    /// Appends the frame to its burst.
    #[inline]
    pub fn commit(self) {
        self.burst.count += 1;
        std::mem::forget(self);
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        // The last spare frame takes its place, if there is another.
        self.burst.frames.swap_remove(self.burst.count);
    }
}

impl Deref for Reservation<'_> {
    type Target = Frame;

    #[inline]
    fn deref(&self) -> &Frame {
        &self.burst.frames[self.burst.count]
    }
}

impl DerefMut for Reservation<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Frame {
        &mut self.burst.frames[self.burst.count]
    }
}

/// Why a burst cannot take a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ReserveError {
    /// The frame is shorter than an Ethernet header.
    #[error("a frame of {len} bytes is shorter than an Ethernet header")]
    TooShort {
        /// The frame's length in bytes.
        len: usize,
    },
    /// The frame is longer than the port can send.
    #[error("a frame of {len} bytes is longer than the {max} that the port sends")]
    TooLong {
        /// The frame's length in bytes.
        len: usize,
        /// The longest possible length in bytes.
        max: usize,
    },
    /// The frame has payload attached: it takes no more, or the port cannot send attached payload.
    #[error("the frame has payload attached to it")]
    Attached,
    /// The burst holds [`BURST`] frames: transmit it first.
    #[error("the burst is full")]
    BurstFull,
    /// The port's pool has no free buffer: frames that were received or are waiting must go first.
    #[error("the frame pool is empty")]
    PoolEmpty,
}

/// A frame that a burst refused, and why.
#[derive(Debug, Error)]
#[error("{reason}")]
pub struct PushError {
    /// The frame that was refused.
    pub frame: Frame,
    /// Why it was refused; never [`ReserveError::PoolEmpty`].
    pub reason: ReserveError,
}
