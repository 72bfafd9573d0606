//! The messages' memory: registered where the port can send from such memory, as that of an application which cares for
//! speed.

use weft_stack::fep::{CallError, Resource};
use weft_stack::port::Port;
use weft_stack::region::{Region, RegionSlice, SharedRegion};

/// No two messages share a cache line.
const APART: u64 = 64;

/// Memory for messages of one size, none of which anybody has yet.
#[derive(Default)]
pub(super) struct Messages(Vec<RegionSlice>);

impl Messages {
    /// For `count` messages of `size` bytes.
    ///
    /// # Errors
    /// There is not so much.
    pub(super) fn new(count: u64, size: u64) -> Result<Messages, CallError> {
        Messages::with(count, size, |len| Region::allocate(len).ok())
    }

    /// The same to be sent by `port`.
    ///
    /// # Errors
    /// There is not so much.
    pub(super) fn registered(count: u64, size: u64, port: &mut impl Port) -> Result<Messages, CallError> {
        Messages::with(count, size, |len| match SharedRegion::allocate(len) {
            Ok(memory) if port.register(&memory) => Some(memory.region().clone()),
            // Ordinary memory can have large pages.
            Ok(_) | Err(_) => Region::allocate(len).ok(),
        })
    }

    fn with(
        count: u64,
        size: u64,
        mut allocate: impl FnMut(usize) -> Option<Region>,
    ) -> Result<Messages, CallError> {
        let apart = size.max(1).next_multiple_of(APART);
        // Regions are shorter than 4 GiB.
        let together = (u64::from(u32::MAX) / apart).max(1);
        let mut all = Vec::new();
        while (all.len() as u64) < count {
            let here = together.min(count - all.len() as u64);
            let limit = (here * apart) as usize;
            let none = CallError::Limit { what: Resource::MessageMemory, limit };
            let region = allocate(limit).ok_or(none)?;
            for n in 0..here {
                all.push(region.slice(n * apart, size as u32).map_err(|_| none)?);
            }
        }
        // The first to be taken is the first one.
        all.reverse();
        Ok(Messages(all))
    }

    /// A message that nobody has.
    ///
    /// # Errors
    /// All are taken.
    pub(super) fn take(&mut self) -> Result<RegionSlice, CallError> {
        self.0.pop().ok_or(CallError::Limit { what: Resource::Messages, limit: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_do_not_share_memory() {
        for (count, size) in [(1, 0), (300, 64), (7, 100), (3, 1 << 20)] {
            let mut all = Messages::new(count, size).unwrap();
            let mut ends = 0;
            for _ in 0..count {
                let slice = all.take().unwrap();
                assert_eq!(u64::from(slice.len()), size);
                assert!(slice.offset() >= ends && slice.offset().is_multiple_of(64));
                ends = slice.offset() + slice.len();
            }
            assert!(all.take().is_err());
        }
    }
}
