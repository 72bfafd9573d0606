//! The messages' memory: registered, as that of an application which cares for speed, so that ports which can
//! send from it do.

use weft_stack::buffer::Buffer;
use weft_stack::fep::CallError;
use weft_stack::worker::ring::{Region, RegionSlice};

/// No two messages share a cache line.
const APART: u64 = 64;

/// Memory for `count` messages of `size` bytes.
///
/// # Errors
/// There is not so much.
pub(super) fn messages(count: u64, size: u64) -> Result<Vec<RegionSlice>, CallError> {
    let apart = size.max(1).next_multiple_of(APART);
    // Regions are shorter than 4 GiB.
    let together = (u64::from(u32::MAX) / apart).max(1);
    let mut all = Vec::new();
    while (all.len() as u64) < count {
        let here = together.min(count - all.len() as u64);
        let none = |_| CallError::Limit { what: "messages' bytes of memory", limit: (here * apart) as usize };
        let region = Region::allocate((here * apart) as usize).map_err(none)?;
        for n in 0..here {
            all.push(region.slice(n * apart, size as u32).map_err(none)?);
        }
    }
    Ok(all)
}

/// What a completion hands back, if it is a message's.
pub(super) fn of(buffer: Buffer) -> Option<RegionSlice> {
    match buffer {
        Buffer::Region(slice) => Some(slice),
        Buffer::Heap(_) | Buffer::Virtual(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_do_not_share_memory() {
        for (count, size) in [(1, 0), (300, 64), (7, 100), (3, 1 << 20)] {
            let all = messages(count, size).unwrap();
            assert_eq!(all.len() as u64, count);
            let mut ends = 0;
            for slice in &all {
                assert_eq!(u64::from(slice.len()), size);
                assert!(slice.offset() >= ends && slice.offset() % 64 == 0);
                ends = slice.offset() + slice.len();
            }
        }
    }
}
