//! Payload that a frame refers to instead of holding it.

use std::ops::Range;
use std::sync::Arc;

use crate::packet::Payload;
use crate::region::RegionSlice;

/// A reference to bytes, which keeps their memory: until the device has sent them and the endpoint needs them no
/// more.
#[derive(Clone, Debug)]
pub struct Attachment(Memory);

#[derive(Clone, Debug)]
enum Memory {
    Bytes { owner: Arc<[u8]>, start: u32, len: u32 },
    Region(RegionSlice),
}

impl Attachment {
    /// The bytes `range` of `owner`; `None` if they are not all in it, or begin or end beyond 4 GiB.
    pub fn bytes(owner: Arc<[u8]>, range: Range<usize>) -> Option<Attachment> {
        let len = owner.get(range.clone())?.len();
        let (start, len) = (u32::try_from(range.start).ok()?, u32::try_from(len).ok()?);
        Some(Attachment(Memory::Bytes { owner, start, len }))
    }

    /// The number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match &self.0 {
            Memory::Bytes { len, .. } => *len as usize,
            Memory::Region(slice) => slice.len() as usize,
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes as a payload.
    #[inline]
    pub fn payload(&self) -> Payload<'_> {
        match &self.0 {
            Memory::Bytes { owner, start, len } => Payload::Bytes(&owner[*start as usize..][..*len as usize]),
            Memory::Region(slice) => Payload::Region(slice.bytes(0, slice.len())),
        }
    }

    /// The address of the bytes. They stay readable as long as `self` or a clone of it exists; if they are a region's,
    /// other processes may write to them meanwhile.
    #[cfg(feature = "dpdk")]
    #[inline]
    pub(super) fn as_ptr(&self) -> *const u8 {
        match self.payload() {
            Payload::Bytes(bytes) => bytes.as_ptr(),
            Payload::Region(bytes) => bytes.as_ptr(),
            Payload::Virtual(_) => unreachable!("attachments are memory"),
        }
    }
}

impl From<Arc<[u8]>> for Attachment {
    /// The first 4 GiB of these bytes.
    fn from(owner: Arc<[u8]>) -> Attachment {
        let len = u32::try_from(owner.len()).unwrap_or(u32::MAX);
        Attachment(Memory::Bytes { owner, start: 0, len })
    }
}

impl From<RegionSlice> for Attachment {
    fn from(slice: RegionSlice) -> Attachment {
        Attachment(Memory::Region(slice))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::Region;

    fn content(attachment: &Attachment) -> Vec<u8> {
        let mut bytes = vec![0; attachment.len()];
        attachment.payload().copy_to(&mut bytes);
        bytes
    }

    #[test]
    fn parts_lie_inside() {
        let owner: Arc<[u8]> = Arc::from([1, 2, 3, 4]);
        let part = |range| Attachment::bytes(Arc::clone(&owner), range).map(|part| content(&part));
        assert_eq!(part(1..3), Some(vec![2, 3]));
        assert_eq!(part(4..4), Some(vec![]));
        assert_eq!(part(2..5), None);
        assert_eq!(part(5..5), None);
        assert_eq!(content(&Attachment::from(Arc::clone(&owner))), [1, 2, 3, 4]);
    }

    #[test]
    fn regions_are_kept() {
        let region = Region::allocate(10).unwrap();
        let slice = region.slice(2, 3).unwrap();
        slice.write(0, &[7, 8, 9]);
        let attachment = Attachment::from(slice);
        drop(region);
        assert_eq!(content(&attachment), [7, 8, 9]);
    }
}
