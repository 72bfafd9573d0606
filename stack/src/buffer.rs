//! Memory that messages are sent from and received into.

use crate::packet::Payload;

/// The longest message, bytes.
pub const MAX_MESSAGE: u64 = u32::MAX as u64;

/// A message's memory. The endpoint owns it from posting to completion, then hands it back.
#[derive(Debug, PartialEq, Eq)]
pub enum Buffer {
    /// No memory, only a length (bytes): for simulations that do not look at payloads.
    Virtual(u32),
    /// Memory of the process. At most [`MAX_MESSAGE`] bytes are used.
    Heap(Vec<u8>),
}

impl Buffer {
    /// Bytes in it.
    #[inline]
    pub fn len(&self) -> u32 {
        match self {
            Buffer::Virtual(len) => *len,
            Buffer::Heap(bytes) => u32::try_from(bytes.len()).unwrap_or(u32::MAX),
        }
    }

    /// Whether it holds nothing.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// `len` bytes from `offset`. The part that lies beyond the end is left out.
    #[inline]
    pub fn payload(&self, offset: u32, len: u32) -> Payload<'_> {
        let start = offset.min(self.len());
        let end = start.saturating_add(len).min(self.len());
        match self {
            Buffer::Virtual(_) => Payload::Virtual(end - start),
            Buffer::Heap(bytes) => Payload::Bytes(&bytes[start as usize..end as usize]),
        }
    }

    /// Puts `payload` at `offset`. The part that lies beyond the end is left out; a virtual payload
    /// leaves memory as it is.
    #[inline]
    pub fn place(&mut self, offset: u32, payload: Payload<'_>) {
        if let (Buffer::Heap(memory), Payload::Bytes(bytes)) = (self, payload) {
            let start = (offset as usize).min(memory.len());
            let len = bytes.len().min(memory.len() - start);
            memory[start..start + len].copy_from_slice(&bytes[..len]);
        }
    }

    /// A buffer of `len` zero bytes to keep a message that nobody has asked for yet: of the kind that suits `payload`.
    pub(crate) fn to_keep(len: u32, payload: Payload<'_>) -> Buffer {
        match payload {
            Payload::Virtual(_) => Buffer::Virtual(len),
            Payload::Bytes(_) => Buffer::Heap(vec![0; len as usize]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placing_and_reading_stay_inside() {
        let mut buffer = Buffer::Heap(vec![0; 4]);
        buffer.place(2, Payload::Bytes(&[1, 2, 3]));
        buffer.place(9, Payload::Bytes(&[9]));
        assert_eq!(buffer, Buffer::Heap(vec![0, 0, 1, 2]));
        assert_eq!(buffer.payload(3, 9).len(), 1);
        assert_eq!(buffer.payload(u32::MAX, u32::MAX).len(), 0);
        assert_eq!(Buffer::Virtual(7).payload(5, 5).len(), 2);
    }
}
