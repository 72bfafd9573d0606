//! The layout of a link, on which both ends have agreed: its memory, and where the rings lie in it.
#![forbid(unsafe_code)]

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;

use super::config::{MAX_LOG2_RING, MemifConfig, Role};
use super::ring::{RING_ALIGNMENT, ring_bytes};
use crate::region::Region;

/// The most regions of a link.
pub(super) const MAX_REGIONS: usize = 255;

/// Where a ring lies, and the event that tells its consumer of new frames.
#[derive(Debug)]
pub(super) struct RingPlace {
    /// The index of its region.
    pub(super) region: u16,
    /// Where it begins in the region.
    pub(super) offset: u32,
    /// Its slots, as a power of two.
    pub(super) log2_size: u8,
    /// An eventfd in non-blocking mode. The peer shares it, and can make it block: see [`super::signal`].
    pub(super) event: OwnedFd,
}

/// A link. All its values have been checked: rings lie within their regions, are aligned, and do not overlap.
#[derive(Debug)]
pub(super) struct LinkLayout {
    /// The role of this end.
    pub(super) role: Role,
    /// The memory, by region index.
    pub(super) regions: Vec<Region>,
    /// The ring for frames from the client to the server.
    pub(super) to_server: RingPlace,
    /// The ring for frames from the server to the client.
    pub(super) to_client: RingPlace,
    /// The name that the peer has told.
    pub(super) peer: String,
}

/// A link as a client offers it to a server. The name of the peer is filled in when it is known.
#[derive(Debug)]
pub(super) struct Offer {
    /// The link that the client proposes.
    pub(super) layout: LinkLayout,
    /// A descriptor of each region.
    pub(super) files: Vec<OwnedFd>,
}

/// Makes the memory of a client. In the configuration that it gets, [`MemifConfig::log2_ring`] is no more than the
/// server allows.
pub(super) type MakeOffer = Box<dyn Fn(&MemifConfig) -> io::Result<Offer> + Send>;

/// Why a ring cannot lie there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PlaceError {
    #[error("a ring of 2^{0} slots: expected 2^1 to 2^{MAX_LOG2_RING}")]
    Slots(u8),
    #[error("a ring at offset {0}: expected a multiple of {RING_ALIGNMENT}")]
    Alignment(u32),
    #[error("a ring in region {came} of {count}")]
    Region { came: u16, count: usize },
    #[error("a ring of {bytes} bytes at {offset} of a region of {region}")]
    Outside { offset: u32, bytes: usize, region: usize },
    #[error("two rings that overlap")]
    Overlap,
}

impl RingPlace {
    /// Checks that the ring lies in one of `regions`, aligned.
    ///
    /// # Errors
    /// It does not, or has a number of slots that is not permitted.
    pub(super) fn check(&self, regions: &[Region]) -> Result<(), PlaceError> {
        let &RingPlace { region, offset, log2_size, .. } = self;
        if !(1..=MAX_LOG2_RING).contains(&log2_size) {
            return Err(PlaceError::Slots(log2_size));
        }
        if !offset.is_multiple_of(RING_ALIGNMENT) {
            return Err(PlaceError::Alignment(offset));
        }
        let missing = PlaceError::Region { came: region, count: regions.len() };
        let len = regions.get(usize::from(region)).ok_or(missing)?.len();
        if self.extent().end > len as u64 {
            return Err(PlaceError::Outside { offset, bytes: ring_bytes(log2_size), region: len });
        }
        Ok(())
    }

    /// # Errors
    /// The two rings overlap.
    pub(super) fn check_apart(&self, other: &RingPlace) -> Result<(), PlaceError> {
        let (one, two) = (self.extent(), other.extent());
        if self.region == other.region && one.start < two.end && two.start < one.end {
            return Err(PlaceError::Overlap);
        }
        Ok(())
    }

    /// The bytes that the ring takes. Call it only if the number of slots is permitted.
    fn extent(&self) -> Range<u64> {
        let start = u64::from(self.offset);
        start..start + ring_bytes(self.log2_size) as u64
    }
}
