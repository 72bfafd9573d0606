//! The memory that messages are sent from and received into.

use bytes::{Bytes, BytesMut};
use weft_stack::buffer::{Buffer, OwnedBytes};

use super::memory::{Memory, MemorySlice};

/// The bytes of a message to send. The endpoint owns them from posting to completion, then hands them back.
///
/// Where the worker runs in the caller's thread, all of these are sent from where they are. To a worker in another
/// thread or process [`SendBuffer::Memory`] is; others are copied once, at the call, into memory shared with it.
#[derive(Debug)]
#[non_exhaustive]
pub enum SendBuffer {
    /// Bytes that others may hold as well; also static ones, and those of a `BytesMut`.
    Bytes(Bytes),
    /// A vector's bytes.
    Vec(Vec<u8>),
    /// Registered memory of the endpoint, or [memory that is lent](MemorySlice::lent). The first [`MemorySlice::len`] bytes
    /// are sent.
    Memory(MemorySlice),
    /// Nothing: the message was [copied](crate::Endpoint::send_copy) when it was posted.
    Copied,
}

impl SendBuffer {
    /// Bytes to be sent.
    pub fn len(&self) -> usize {
        match self {
            SendBuffer::Bytes(bytes) => bytes.len(),
            SendBuffer::Vec(bytes) => bytes.len(),
            SendBuffer::Memory(slice) => slice.len() as usize,
            SendBuffer::Copied => 0,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn memory(&self) -> Option<&MemorySlice> {
        if let SendBuffer::Memory(slice) = self { Some(slice) } else { None }
    }
}

impl From<Bytes> for SendBuffer {
    fn from(bytes: Bytes) -> SendBuffer {
        SendBuffer::Bytes(bytes)
    }
}

impl From<BytesMut> for SendBuffer {
    fn from(bytes: BytesMut) -> SendBuffer {
        SendBuffer::Bytes(bytes.freeze())
    }
}

impl From<Vec<u8>> for SendBuffer {
    fn from(bytes: Vec<u8>) -> SendBuffer {
        SendBuffer::Vec(bytes)
    }
}

impl From<&'static [u8]> for SendBuffer {
    fn from(bytes: &'static [u8]) -> SendBuffer {
        SendBuffer::Bytes(Bytes::from_static(bytes))
    }
}

impl<const N: usize> From<&'static [u8; N]> for SendBuffer {
    fn from(bytes: &'static [u8; N]) -> SendBuffer {
        SendBuffer::Bytes(Bytes::from_static(bytes))
    }
}

impl From<MemorySlice> for SendBuffer {
    fn from(slice: MemorySlice) -> SendBuffer {
        SendBuffer::Memory(slice)
    }
}

/// Room for a message: the whole length of the buffer, not its capacity. The endpoint owns it from posting to
/// completion, then hands it back.
///
/// From a worker in another thread or process, messages are copied once, at the completion, except into
/// [`ReceiveBuffer::Memory`].
#[derive(Debug)]
#[non_exhaustive]
pub enum ReceiveBuffer {
    /// A buffer's bytes.
    BytesMut(BytesMut),
    /// A vector's bytes.
    Vec(Vec<u8>),
    /// Registered memory of the endpoint.
    Memory(MemorySlice),
    /// The bytes of a type of the caller's.
    Owned(OwnedBytes),
}

impl ReceiveBuffer {
    /// Bytes of room.
    pub fn len(&self) -> usize {
        match self {
            ReceiveBuffer::BytesMut(bytes) => bytes.len(),
            ReceiveBuffer::Vec(bytes) => bytes.len(),
            ReceiveBuffer::Memory(slice) => slice.len() as usize,
            ReceiveBuffer::Owned(bytes) => bytes.as_slice().len(),
        }
    }

    /// Whether there is no room at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All bytes, in place; none for registered memory, which [`MemorySlice::read`] copies out of. A message is the first
    /// bytes of the buffer, as many as its completion's `len`, or all if the message is longer.
    pub fn as_slice(&self) -> Option<&[u8]> {
        match self {
            ReceiveBuffer::BytesMut(bytes) => Some(bytes),
            ReceiveBuffer::Vec(bytes) => Some(bytes),
            ReceiveBuffer::Owned(bytes) => Some(bytes.as_slice()),
            ReceiveBuffer::Memory(_) => None,
        }
    }

    /// The first `len` bytes, or all; a copy.
    pub fn to_bytes(&self, len: u32) -> Bytes {
        let len = (len as usize).min(self.len());
        match self {
            ReceiveBuffer::BytesMut(bytes) => Bytes::copy_from_slice(&bytes[..len]),
            ReceiveBuffer::Vec(bytes) => Bytes::copy_from_slice(&bytes[..len]),
            ReceiveBuffer::Owned(bytes) => Bytes::copy_from_slice(&bytes.as_slice()[..len]),
            ReceiveBuffer::Memory(slice) => {
                let mut bytes = vec![0; len];
                slice.read(0, &mut bytes);
                bytes.into()
            }
        }
    }

    /// Whether it can be divided among messages. Parts of registered memory could not be freed by themselves.
    pub(super) fn can_split(&self) -> bool {
        match self {
            ReceiveBuffer::BytesMut(_) => true,
            ReceiveBuffer::Owned(bytes) => bytes.can_split(),
            ReceiveBuffer::Vec(_) | ReceiveBuffer::Memory(_) => false,
        }
    }

    /// Splits the first `at` bytes off, or all if there are fewer; nothing if it cannot be split.
    pub(super) fn split_to(&mut self, at: usize) -> ReceiveBuffer {
        let at = at.min(self.len());
        match self {
            ReceiveBuffer::BytesMut(bytes) => bytes.split_to(at).into(),
            ReceiveBuffer::Owned(bytes) => {
                bytes.split_to(at).map_or_else(|| Vec::new().into(), ReceiveBuffer::Owned)
            }
            ReceiveBuffer::Vec(_) | ReceiveBuffer::Memory(_) => Vec::new().into(),
        }
    }

    pub(super) fn memory(&self) -> Option<&MemorySlice> {
        if let ReceiveBuffer::Memory(slice) = self { Some(slice) } else { None }
    }

    /// Puts what is in `from` from `offset` on into the first `len` bytes.
    pub(super) fn copy_from(&mut self, from: &MemorySlice, offset: u32, len: u32) {
        let len = (len as usize).min(self.len());
        match self {
            ReceiveBuffer::BytesMut(bytes) => from.read(offset, &mut bytes[..len]),
            ReceiveBuffer::Vec(bytes) => from.read(offset, &mut bytes[..len]),
            ReceiveBuffer::Owned(bytes) => from.read(offset, &mut bytes.as_mut_slice()[..len]),
            ReceiveBuffer::Memory(_) => 0,
        };
    }
}

impl From<BytesMut> for ReceiveBuffer {
    fn from(bytes: BytesMut) -> ReceiveBuffer {
        ReceiveBuffer::BytesMut(bytes)
    }
}

impl From<Vec<u8>> for ReceiveBuffer {
    fn from(bytes: Vec<u8>) -> ReceiveBuffer {
        ReceiveBuffer::Vec(bytes)
    }
}

impl From<OwnedBytes> for ReceiveBuffer {
    fn from(bytes: OwnedBytes) -> ReceiveBuffer {
        ReceiveBuffer::Owned(bytes)
    }
}

impl From<MemorySlice> for ReceiveBuffer {
    fn from(slice: MemorySlice) -> ReceiveBuffer {
        ReceiveBuffer::Memory(slice)
    }
}

/// Boxes for the core's buffers, kept so that sending does not allocate them anew each time.
#[derive(Debug, Default)]
#[expect(clippy::vec_box, reason = "the boxes themselves are kept")]
pub(super) struct Boxes {
    bytes: Vec<Box<Bytes>>,
    bytes_mut: Vec<Box<BytesMut>>,
}

/// Boxes of a kind that are kept.
const KEPT: usize = 1024;

impl Boxes {
    fn bytes(&mut self, bytes: Bytes) -> Buffer {
        match self.bytes.pop() {
            Some(mut empty) => {
                *empty = bytes;
                Buffer::Bytes(empty)
            }
            None => Buffer::Bytes(Box::new(bytes)),
        }
    }

    fn bytes_mut(&mut self, bytes: BytesMut) -> Buffer {
        match self.bytes_mut.pop() {
            Some(mut empty) => {
                *empty = bytes;
                Buffer::BytesMut(empty)
            }
            None => Buffer::BytesMut(Box::new(bytes)),
        }
    }

    /// The core's buffer for `buffer`.
    // Inlined always: a completion or a buffer that is put together and then moved costs more than the call.
    #[inline(always)]
    pub(super) fn lend_to_send(&mut self, buffer: SendBuffer) -> Buffer {
        match buffer {
            SendBuffer::Bytes(bytes) => self.bytes(bytes),
            SendBuffer::Vec(bytes) => Buffer::Heap(bytes),
            SendBuffer::Memory(slice) => Buffer::Region(slice.into_region_slice()),
            SendBuffer::Copied => Buffer::Heap(Vec::new()),
        }
    }

    /// The core's buffer for `buffer`.
    // Inlined always: a completion or a buffer that is put together and then moved costs more than the call.
    #[inline(always)]
    pub(super) fn lend_to_receive(&mut self, buffer: ReceiveBuffer) -> Buffer {
        match buffer {
            ReceiveBuffer::BytesMut(bytes) => self.bytes_mut(bytes),
            ReceiveBuffer::Vec(bytes) => Buffer::Heap(bytes),
            ReceiveBuffer::Owned(bytes) => Buffer::Owned(bytes),
            ReceiveBuffer::Memory(slice) => Buffer::Region(slice.into_region_slice()),
        }
    }

    /// The buffer that the core hands back: of [`Boxes::lend_to_send`], or one from `copies`, which goes back there.
    pub(super) fn take_sent(&mut self, buffer: Buffer, copies: &mut Memory) -> SendBuffer {
        match buffer {
            Buffer::Heap(bytes) => SendBuffer::Vec(bytes),
            Buffer::Region(slice) if copies.holds(&slice) => {
                // It is in use there, as it has been posted.
                let _ = copies.free(MemorySlice::from_region_slice(slice));
                SendBuffer::Copied
            }
            Buffer::Region(slice) => SendBuffer::Memory(MemorySlice::from_region_slice(slice)),
            Buffer::Bytes(mut full) => {
                let bytes = std::mem::take(&mut *full);
                if self.bytes.len() < KEPT {
                    self.bytes.push(full);
                }
                SendBuffer::Bytes(bytes)
            }
            Buffer::BytesMut(bytes) => SendBuffer::Bytes(bytes.freeze()),
            // The endpoint is never given these to send from.
            Buffer::Owned(_) | Buffer::Virtual(_) => SendBuffer::Copied,
        }
    }

    /// The buffer that the core hands back: of [`Boxes::lend_to_receive`].
    pub(super) fn take_received(&mut self, buffer: Buffer) -> ReceiveBuffer {
        match buffer {
            Buffer::Heap(bytes) => ReceiveBuffer::Vec(bytes),
            Buffer::Region(slice) => ReceiveBuffer::Memory(MemorySlice::from_region_slice(slice)),
            Buffer::BytesMut(mut full) => {
                let bytes = std::mem::take(&mut *full);
                if self.bytes_mut.len() < KEPT {
                    self.bytes_mut.push(full);
                }
                ReceiveBuffer::BytesMut(bytes)
            }
            Buffer::Owned(bytes) => ReceiveBuffer::Owned(bytes),
            // The endpoint is never given these to receive into.
            Buffer::Bytes(_) | Buffer::Virtual(_) => ReceiveBuffer::Vec(Vec::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_in_place_unless_they_lie_in_registered_memory() {
        assert_eq!(ReceiveBuffer::from(vec![1, 2, 3]).as_slice(), Some(&[1, 2, 3][..]));
        assert_eq!(ReceiveBuffer::from(BytesMut::from(&b"ab"[..])).as_slice(), Some(&b"ab"[..]));
        let slice = Memory::private(4096).unwrap().allocate(10).unwrap();
        assert_eq!(ReceiveBuffer::from(slice).as_slice(), None);
    }
}
