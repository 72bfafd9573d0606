//! The switches' buffers, and which frame lies where.

use weft_stack::port::{Frame, FramePool, PoolError};

/// Bytes of a small buffer: all acknowledgements and trimmed frames fit.
const SMALL: usize = 256;

/// How many frames there is room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameLimits {
    /// Frames of any length.
    pub(super) large: usize,
    /// Frames of up to [`SMALL`] bytes.
    pub(super) small: usize,
    /// Bytes of the longest frame.
    pub(super) longest: usize,
}

/// All frames in the fabric. Control packets and trimmed ones have buffers of their own, so that neither
/// kind takes the other's: there may be ten times as many of them as of whole packets.
#[derive(Debug)]
pub(super) struct FrameStore {
    frames: Vec<Option<Frame>>,
    free: Vec<u32>,
    large: FramePool,
    small: FramePool,
}

impl FrameStore {
    pub(super) fn new(limits: &FrameLimits) -> Result<FrameStore, PoolError> {
        Ok(FrameStore {
            frames: Vec::new(),
            free: Vec::new(),
            large: FramePool::heap(limits.large, limits.longest)?,
            small: FramePool::heap(limits.small, SMALL)?,
        })
    }

    /// Copies a frame in. `None` if no buffer is free.
    pub(super) fn admit(&mut self, bytes: &[u8]) -> Option<u32> {
        let frame = if bytes.len() <= SMALL { self.small.copy(bytes) } else { self.large.copy(bytes) }?;
        let slot = self.free.pop().unwrap_or(self.frames.len() as u32);
        match self.frames.get_mut(slot as usize) {
            Some(entry) => *entry = Some(frame),
            None => self.frames.push(Some(frame)),
        }
        Some(slot)
    }

    /// Copies the frame in `slot`. `None` if no buffer is free.
    pub(super) fn duplicate(&mut self, slot: u32) -> Option<u32> {
        let frame = self.frames.get_mut(slot as usize)?.take()?;
        let copy = self.admit(&frame);
        self.frames[slot as usize] = Some(frame);
        copy
    }

    /// The frame in `slot`.
    #[inline]
    pub(super) fn frame(&mut self, slot: u32) -> Option<&mut Frame> {
        self.frames.get_mut(slot as usize)?.as_mut()
    }

    /// Cuts the frame in `slot` to `len` bytes, and moves it to a small buffer if there is one.
    pub(super) fn cut(&mut self, slot: u32, len: usize) {
        let Some(frame) = self.frames.get_mut(slot as usize).and_then(Option::as_mut) else { return };
        frame.truncate(len);
        if let Some(small) = (len <= SMALL).then(|| self.small.copy(frame)).flatten() {
            *frame = small;
        }
    }

    /// Takes the frame out of `slot`.
    #[inline]
    pub(super) fn take(&mut self, slot: u32) -> Option<Frame> {
        let frame = self.frames.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        Some(frame)
    }

    /// How many frames there are.
    pub(super) fn len(&self) -> usize {
        self.frames.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trimmed_frames_give_their_buffers_back() {
        let mut store = FrameStore::new(&FrameLimits { large: 1, small: 1, longest: 1_000 }).unwrap();
        let whole = store.admit(&[7; 600]).unwrap();
        assert!(store.admit(&[8; 600]).is_none(), "there is one large buffer");
        assert!(store.duplicate(whole).is_none());
        store.cut(whole, 58);
        assert_eq!(store.frame(whole).unwrap()[..], [7; 58]);
        let next = store.admit(&[8; 600]).unwrap();
        assert!(store.admit(&[9; 100]).is_none(), "the small one is the trimmed frame's");
        assert_eq!(store.take(whole).unwrap().len(), 58);
        assert!(store.take(whole).is_none() && store.len() == 1);
        assert_eq!(store.admit(&[9; 100]), Some(whole), "slots are used again");
        assert_eq!(store.take(next).unwrap()[0], 8);
    }
}
