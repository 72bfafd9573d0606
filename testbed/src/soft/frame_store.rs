//! The buffers of the fabric, and the slots of the frames in them.

use weft_stack::port::{Frame, FramePool, PoolError};

/// Size of a small buffer in bytes. All acknowledgements and trimmed frames fit.
const SMALL: usize = 256;

/// The number and size of the buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameLimits {
    /// Number of buffers for frames of any length.
    pub(super) large: usize,
    /// Number of buffers for frames of up to [`SMALL`] bytes.
    pub(super) small: usize,
    /// Length of the longest frame, bytes.
    pub(super) longest: usize,
}

/// All frames in the fabric. Small frames (control packets and trimmed packets) have their own buffers, so
/// that neither kind takes the buffers of the other: there may be ten times as many small frames as whole
/// packets.
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

    /// Truncates the frame in `slot` to `len` bytes, and moves it to a small buffer if one is free.
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

    /// Number of frames in the store.
    pub(super) fn len(&self) -> usize {
        self.frames.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trimming_a_frame_frees_its_large_buffer() {
        let mut store = FrameStore::new(&FrameLimits { large: 1, small: 1, longest: 1_000 }).unwrap();
        let whole = store.admit(&[7; 600]).unwrap();
        assert!(store.admit(&[8; 600]).is_none(), "there is one large buffer");
        assert!(store.duplicate(whole).is_none());
        store.cut(whole, 58);
        assert_eq!(store.frame(whole).unwrap()[..], [7; 58]);
        let next = store.admit(&[8; 600]).unwrap();
        assert!(store.admit(&[9; 100]).is_none(), "the trimmed frame has the only small buffer");
        assert_eq!(store.take(whole).unwrap().len(), 58);
        assert!(store.take(whole).is_none() && store.len() == 1);
        assert_eq!(store.admit(&[9; 100]), Some(whole), "slots are reused");
        assert_eq!(store.take(next).unwrap()[0], 8);
    }
}
