//! Up to 32 frames on their way into or out of a port.

use std::ops::{Deref, DerefMut};

use arrayvec::ArrayVec;
use thiserror::Error;

use super::{BURST, Frame, FramePool, MIN_FRAME, Port};

/// Frames that a port has received. Dereferences to a slice of them.
#[derive(Debug, Default)]
pub struct RxBurst {
    frames: ArrayVec<Frame, BURST>,
}

impl RxBurst {
    /// An empty burst.
    pub fn new() -> RxBurst {
        RxBurst::default()
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
        self.frames.clear();
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

/// Frames that a port shall send. Dereferences to a slice of them.
#[derive(Debug)]
pub struct TxBurst {
    frames: ArrayVec<Frame, BURST>,
    pool: FramePool,
    max_frame: usize,
}

impl TxBurst {
    /// An empty burst for this port: frames are allocated from its pool and no longer than it sends.
    pub fn new<P: Port + ?Sized>(port: &P) -> TxBurst {
        let pool = port.pool();
        let max_frame = port.capabilities().max_frame.min(pool.buffer_size());
        TxBurst { frames: ArrayVec::new(), pool, max_frame }
    }

    /// A buffer for a frame of `len` bytes, to be written and then [committed](Reservation::commit).
    /// **Its bytes are those of an earlier frame**: overwrite them all.
    #[inline]
    pub fn reserve(&mut self, len: usize) -> Result<Reservation<'_>, ReserveError> {
        check_len(len, self.max_frame)?;
        if self.frames.is_full() {
            return Err(ReserveError::BurstFull);
        }
        let frame = self.pool.allocate(len).ok_or(ReserveError::PoolEmpty)?;
        Ok(Reservation { burst: self, frame })
    }

    /// Appends a frame that exists already, say one that was received and is passed on. It may be of
    /// another port's pool. Gives it back if it is refused.
    #[inline]
    pub fn push(&mut self, frame: Frame) -> Result<(), PushError> {
        if let Err(reason) = check_len(frame.len(), self.max_frame) {
            return Err(PushError { frame, reason });
        }
        self.frames
            .try_push(frame)
            .map_err(|error| PushError { frame: error.element(), reason: ReserveError::BurstFull })
    }

    /// Longest frame that the burst accepts, bytes.
    #[inline]
    pub fn max_frame(&self) -> usize {
        self.max_frame
    }

    /// How many more frames fit.
    #[inline]
    pub fn room(&self) -> usize {
        self.frames.remaining_capacity()
    }

    /// Takes the first `count` frames out, in order; those not consumed are dropped. Takes all if
    /// there are fewer. For implementors of [`Port`].
    #[inline]
    pub fn take_front(&mut self, count: usize) -> impl ExactSizeIterator<Item = Frame> + '_ {
        let count = count.min(self.frames.len());
        self.frames.drain(..count)
    }

    /// Drops all frames longer than `max_frame` bytes and returns how many those were. For
    /// implementors of [`Port`], who may be handed a burst made for another port.
    #[inline]
    pub fn drop_longer_than(&mut self, max_frame: usize) -> usize {
        if self.max_frame <= max_frame {
            return 0;
        }
        let before = self.frames.len();
        self.frames.retain(|frame| frame.len() <= max_frame);
        before - self.frames.len()
    }

    /// Drops the frames whose bits are set in `gone`, the lowest bit being the first frame's.
    #[cfg(target_os = "linux")]
    pub(super) fn remove(&mut self, gone: u32) {
        if gone.count_ones() as usize == self.frames.len() {
            return self.frames.clear();
        }
        let mut bit = 1u32;
        self.frames.retain(|_| {
            let kept = gone & bit == 0;
            bit = bit.wrapping_shl(1);
            kept
        });
    }

    /// Drops all frames.
    #[inline]
    pub fn clear(&mut self) {
        self.frames.clear();
    }

    /// The frames, for a port that replaces those it cannot send from where they are. Not public: a
    /// frame put here goes around the checks of [`push`](Self::push).
    #[cfg(feature = "dpdk")]
    #[inline]
    pub(super) fn frames_mut(&mut self) -> &mut [Frame] {
        &mut self.frames
    }
}

impl Deref for TxBurst {
    type Target = [Frame];

    #[inline]
    fn deref(&self) -> &[Frame] {
        &self.frames
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
    burst: &'a mut TxBurst,
    frame: Frame,
}

impl Reservation<'_> {
    /// Appends the frame to its burst.
    #[inline]
    pub fn commit(self) {
        // `reserve` has seen room in the burst, and borrowed it since.
        self.burst.frames.push(self.frame);
    }
}

impl Deref for Reservation<'_> {
    type Target = Frame;

    #[inline]
    fn deref(&self) -> &Frame {
        &self.frame
    }
}

impl DerefMut for Reservation<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Frame {
        &mut self.frame
    }
}

/// Why a burst has no place for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ReserveError {
    /// It is shorter than an Ethernet header.
    #[error("a frame of {len} bytes is shorter than an Ethernet header")]
    TooShort {
        /// Its length in bytes.
        len: usize,
    },
    /// It is longer than the port can send.
    #[error("a frame of {len} bytes is longer than the {max} that the port sends")]
    TooLong {
        /// Its length in bytes.
        len: usize,
        /// The longest possible length in bytes.
        max: usize,
    },
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
    /// The frame.
    pub frame: Frame,
    /// Why it was refused; never [`ReserveError::PoolEmpty`].
    pub reason: ReserveError,
}
