//! Memory that messages are sent from and received into.

use core::fmt;

use bytes::{Bytes, BytesMut};

use crate::packet::Payload;
use crate::region::{RegionBytes, RegionSlice};

/// The longest message, bytes.
pub const MAX_MESSAGE: u64 = u32::MAX as u64;

/// Buffers of up to so many bytes are cleared here instead of by the allocator.
const SHORT: u32 = 512;

/// A message's memory. The endpoint owns it from posting to completion, then hands it back.
#[derive(Debug, PartialEq, Eq)]
pub enum Buffer {
    /// No memory, only a length (bytes): for simulations that do not look at payloads.
    Virtual(u32),
    /// Memory of the process. At most [`MAX_MESSAGE`] bytes are used.
    Heap(Vec<u8>),
    /// Memory that other processes can reach as well, such as an application's. Its owner should
    /// leave it alone until completion; a write in the meantime may or may not be sent.
    Region(RegionSlice),
    /// Memory of the process to send from, which other owners may hold as well. The endpoint never writes to it.
    Bytes(Box<Bytes>),
    /// Memory of the process, in a box so that this enum stays small.
    BytesMut(Box<BytesMut>),
    /// Memory of the process that belongs to a type of the caller's.
    Owned(OwnedBytes),
}

/// Bytes to receive into, or to send, that belong to any type: [`Bytes::from_owner`] for memory that is written to.
pub struct OwnedBytes(Box<dyn Owner>);

/// Bytes of which the beginning can be split off, for receives of many messages.
pub trait Split: AsRef<[u8]> + AsMut<[u8]> + Send + Sized + 'static {
    /// Splits the first `at` bytes off and returns them. There are so many.
    fn split_to(&mut self, at: usize) -> Self;
}

impl Split for BytesMut {
    fn split_to(&mut self, at: usize) -> BytesMut {
        BytesMut::split_to(self, at)
    }
}

/// The type that bytes belong to. Both conversions always give the same bytes.
trait Owner: Send {
    fn bytes(&self) -> &[u8];

    fn bytes_mut(&mut self) -> &mut [u8];

    /// Splits the first `at` bytes off, of which there are so many; `None` if that cannot be done.
    fn split_to(&mut self, at: usize) -> Option<OwnedBytes>;

    fn can_split(&self) -> bool;
}

/// Cannot be split.
struct Whole<T>(T);

impl<T: AsRef<[u8]> + AsMut<[u8]> + Send> Owner for Whole<T> {
    fn bytes(&self) -> &[u8] {
        self.0.as_ref()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.as_mut()
    }

    fn split_to(&mut self, _at: usize) -> Option<OwnedBytes> {
        None
    }

    fn can_split(&self) -> bool {
        false
    }
}

/// Can be split.
struct Divisible<T>(T);

impl<T: Split> Owner for Divisible<T> {
    fn bytes(&self) -> &[u8] {
        self.0.as_ref()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.as_mut()
    }

    fn split_to(&mut self, at: usize) -> Option<OwnedBytes> {
        Some(OwnedBytes::divisible(self.0.split_to(at)))
    }

    fn can_split(&self) -> bool {
        true
    }
}

impl OwnedBytes {
    /// The bytes of `owner`, of which `as_ref` and `as_mut` give the same ones at each call. It is dropped with this value.
    pub fn new(owner: impl AsRef<[u8]> + AsMut<[u8]> + Send + 'static) -> OwnedBytes {
        OwnedBytes(Box::new(Whole(owner)))
    }

    /// As [`OwnedBytes::new`], for receives of many messages, too.
    pub fn divisible(owner: impl Split) -> OwnedBytes {
        OwnedBytes(Box::new(Divisible(owner)))
    }

    /// Whether [`OwnedBytes::split_to`] works.
    pub fn can_split(&self) -> bool {
        self.0.can_split()
    }

    /// Splits the first `at` bytes off and returns them; `None`, and nothing changes, if there are not so many, or these bytes
    /// cannot be split.
    pub fn split_to(&mut self, at: usize) -> Option<OwnedBytes> {
        if at <= self.as_slice().len() { self.0.split_to(at) } else { None }
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        self.0.bytes()
    }

    /// The bytes, to be written to.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.0.bytes_mut()
    }
}

impl PartialEq for OwnedBytes {
    fn eq(&self, other: &OwnedBytes) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for OwnedBytes {}

impl fmt::Debug for OwnedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnedBytes({} bytes)", self.as_slice().len())
    }
}

// Every message has one, and the table of messages is read in no order.
const _: () = assert!(size_of::<Buffer>() == 24);

impl Buffer {
    /// Bytes in it.
    #[inline]
    pub fn len(&self) -> u32 {
        match self {
            Buffer::Virtual(len) => *len,
            Buffer::Heap(bytes) => u32::try_from(bytes.len()).unwrap_or(u32::MAX),
            Buffer::Region(slice) => slice.len(),
            Buffer::Bytes(bytes) => u32::try_from(bytes.len()).unwrap_or(u32::MAX),
            Buffer::BytesMut(bytes) => u32::try_from(bytes.len()).unwrap_or(u32::MAX),
            Buffer::Owned(bytes) => u32::try_from(bytes.as_slice().len()).unwrap_or(u32::MAX),
        }
    }

    /// Whether it holds nothing.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it holds more than a message can, so that [`Buffer::len`] does not count all of it.
    #[inline]
    pub(crate) fn is_too_long(&self) -> bool {
        let len = match self {
            Buffer::Heap(bytes) => bytes.len(),
            Buffer::Bytes(bytes) => bytes.len(),
            Buffer::BytesMut(bytes) => bytes.len(),
            Buffer::Owned(bytes) => bytes.as_slice().len(),
            Buffer::Virtual(_) | Buffer::Region(_) => return false,
        };
        len as u64 > MAX_MESSAGE
    }

    /// Whether [`Buffer::split_to`] works.
    pub fn can_split(&self) -> bool {
        match self {
            Buffer::Virtual(_) | Buffer::Region(_) | Buffer::BytesMut(_) => true,
            Buffer::Owned(bytes) => bytes.can_split(),
            Buffer::Heap(_) | Buffer::Bytes(_) => false,
        }
    }

    /// Splits the first `at` bytes off and returns them; `None`, and nothing changes, if there are not so many, or the buffer
    /// cannot be split.
    pub fn split_to(&mut self, at: u32) -> Option<Buffer> {
        let left = self.len().checked_sub(at)?;
        match self {
            Buffer::Virtual(len) => {
                *len = left;
                Some(Buffer::Virtual(at))
            }
            Buffer::Region(slice) => {
                let (first, rest) = (slice.part(0, at), slice.part(at, left));
                *slice = rest;
                Some(Buffer::Region(first))
            }
            Buffer::BytesMut(bytes) => Some(Buffer::BytesMut(Box::new(bytes.split_to(at as usize)))),
            Buffer::Owned(bytes) => bytes.split_to(at as usize).map(Buffer::Owned),
            Buffer::Heap(_) | Buffer::Bytes(_) => None,
        }
    }

    /// `len` bytes from `offset`. The part that lies beyond the end is left out.
    #[inline]
    pub fn payload(&self, offset: u32, len: u32) -> Payload<'_> {
        let end = offset.saturating_add(len);
        match self {
            Buffer::Virtual(len) => Payload::Virtual(end.min(*len) - offset.min(*len)),
            Buffer::Heap(bytes) => Payload::Bytes(part(bytes, offset, end)),
            Buffer::Region(slice) => Payload::Region(slice.bytes(offset, end)),
            Buffer::Bytes(bytes) => Payload::Bytes(part(bytes, offset, end)),
            Buffer::BytesMut(bytes) => Payload::Bytes(part(bytes, offset, end)),
            Buffer::Owned(bytes) => Payload::Bytes(part(bytes.as_slice(), offset, end)),
        }
    }

    /// Puts `payload` at `offset`. The part that lies beyond the end is left out; a virtual payload
    /// leaves memory as it is.
    #[inline]
    pub fn place(&mut self, offset: u32, payload: Payload<'_>) {
        match (self, payload) {
            (Buffer::Virtual(_), _) | (_, Payload::Virtual(_)) => {}
            (Buffer::Heap(memory), Payload::Bytes(bytes)) => copy_bytes_to(memory, offset, bytes),
            (Buffer::Region(slice), Payload::Bytes(bytes)) => {
                slice.write(offset, bytes);
            }
            (buffer, payload) => buffer.place_elsewhere(offset, payload),
        }
    }

    /// As [`Buffer::place`] but not of bytes into the heap or a region; not inlined into the code that most packets run through.
    #[inline(never)]
    fn place_elsewhere(&mut self, offset: u32, payload: Payload<'_>) {
        match (self, payload) {
            (Buffer::Heap(memory), Payload::Region(bytes)) => copy_to(memory, offset, bytes),
            (Buffer::BytesMut(memory), Payload::Region(bytes)) => copy_to(memory, offset, bytes),
            (Buffer::BytesMut(memory), Payload::Bytes(bytes)) => copy_bytes_to(memory, offset, bytes),
            (Buffer::Owned(memory), Payload::Region(bytes)) => copy_to(memory.as_mut_slice(), offset, bytes),
            (Buffer::Owned(memory), Payload::Bytes(bytes)) => {
                copy_bytes_to(memory.as_mut_slice(), offset, bytes)
            }
            (Buffer::Region(slice), Payload::Region(bytes)) => slice.copy_from(offset, bytes),
            (_, Payload::Virtual(_)) | (Buffer::Virtual(_), _) => {}
            (Buffer::Heap(_) | Buffer::Region(_), Payload::Bytes(_)) => unreachable!("`place` copies these"),
            (Buffer::Bytes(_), _) => {}
        }
    }

    /// A buffer of `len` zero bytes for an unexpected message, of the kind that suits `payload`.
    #[expect(clippy::slow_vector_initialization, reason = "it is the quicker one for short messages")]
    pub(crate) fn to_keep(len: u32, payload: Payload<'_>) -> Buffer {
        match payload {
            Payload::Virtual(_) => Buffer::Virtual(len),
            // `malloc` and a loop take fewer instructions than `calloc` for a few bytes.
            Payload::Bytes(_) | Payload::Region(_) if len <= SHORT => {
                let mut bytes = Vec::with_capacity(len as usize);
                bytes.resize(len as usize, 0);
                Buffer::Heap(bytes)
            }
            Payload::Bytes(_) | Payload::Region(_) => Buffer::Heap(vec![0; len as usize]),
        }
    }
}

/// The bytes from `start` to `end`, as far as there are any.
#[inline]
fn part(bytes: &[u8], start: u32, end: u32) -> &[u8] {
    let end = (end as usize).min(bytes.len());
    &bytes[(start as usize).min(end)..end]
}

/// Copies `bytes` to `offset` of `memory`, as many as there is room for.
#[inline(always)]
fn copy_bytes_to(memory: &mut [u8], offset: u32, bytes: &[u8]) {
    let start = (offset as usize).min(memory.len());
    let len = bytes.len().min(memory.len() - start);
    memory[start..start + len].copy_from_slice(&bytes[..len]);
}

/// Copies `bytes` to `offset` of `memory`, as many as there is room for.
fn copy_to(memory: &mut [u8], offset: u32, bytes: RegionBytes<'_>) {
    let start = (offset as usize).min(memory.len());
    let len = (bytes.len() as usize).min(memory.len() - start);
    bytes.first(len as u32).copy_to(&mut memory[start..start + len]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::Region;

    #[test]
    fn boxed_bytes_are_sent_and_received_like_those_of_a_vector() {
        let source = Buffer::Bytes(Box::new(Bytes::from_static(b"abcdef")));
        assert_eq!((source.len(), source.payload(4, 9).len()), (6, 2));
        let mut room = Buffer::BytesMut(Box::new(BytesMut::zeroed(4)));
        room.place(2, source.payload(0, 6));
        room.place(9, source.payload(0, 6));
        let region = Region::allocate(10).unwrap();
        let mut slice = Buffer::Region(region.slice(0, 2).unwrap());
        slice.place(0, source.payload(4, 2));
        room.place(1, slice.payload(0, 1));
        assert_eq!(room, Buffer::BytesMut(Box::new(BytesMut::from(&b"\0eab"[..]))));
        let mut only_to_send = Buffer::Bytes(Box::default());
        only_to_send.place(0, source.payload(0, 6));
        assert!(only_to_send.is_empty());
    }

    #[test]
    fn bytes_of_a_type_of_the_callers_are_sent_and_received_too() {
        let mut room = Buffer::Owned(OwnedBytes::new(vec![0; 4]));
        assert!(!room.is_too_long() && room.len() == 4);
        room.place(2, Payload::Bytes(&[1, 2, 3]));
        room.place(9, Payload::Bytes(&[9]));
        let region = Region::allocate(10).unwrap();
        let slice = Buffer::Region(region.slice(0, 1).unwrap());
        room.place(3, slice.payload(0, 1));
        assert_eq!(room, Buffer::Owned(OwnedBytes::new([0, 0, 1, 0])));
        assert_eq!((room.payload(2, 9).len(), room.payload(9, 1).len()), (2, 0));
    }

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

    #[test]
    fn regions_take_part_like_memory_of_the_process() {
        let region = Region::allocate(100).unwrap();
        let part = |offset, len| Buffer::Region(region.slice(offset, len).unwrap());
        let (mut four, mut all) = (part(10, 4), part(0, 100));
        four.place(2, Payload::Bytes(&[1, 2, 3]));
        four.place(9, Payload::Bytes(&[9]));
        assert_eq!((four.len(), four.payload(3, 9).len(), four.payload(u32::MAX, 1).len()), (4, 1, 0));
        let mut heap = Buffer::Heap(vec![7; 5]);
        heap.place(0, four.payload(1, 3));
        assert_eq!(heap, Buffer::Heap(vec![0, 1, 2, 7, 7]));
        heap.place(4, four.payload(2, 2));
        assert_eq!(heap, Buffer::Heap(vec![0, 1, 2, 7, 1]));
        all.place(90, four.payload(2, 2));
        let mut bytes = vec![9; 12];
        all.payload(88, 50).copy_to(&mut bytes);
        assert_eq!(bytes, [0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
}
