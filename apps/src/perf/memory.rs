//! The memory of the messages: the endpoint's, which is registered where the port sends from such memory without a copy.

use weft::{Endpoint, Error, Memory, MemorySlice};

/// The longest region of memory, bytes.
const LONGEST: u64 = u32::MAX as u64;

/// Bytes of memory that an endpoint needs for `count` messages of `size` bytes. Those that are beyond the longest region
/// lie elsewhere.
pub(super) fn size_for(count: u64, size: u64) -> usize {
    Memory::size_for(count, size as u32).min(LONGEST) as usize
}

/// Memory for `count` messages of `size` bytes: the endpoint's as long as it lasts, then the process's own.
///
/// # Errors
/// There is not so much.
pub(super) fn messages(endpoint: &mut Endpoint, count: u64, size: u64) -> Result<Vec<MemorySlice>, Error> {
    let (count, len) = (count as usize, size as u32);
    let mut all = Vec::new();
    take(endpoint.memory(), count, len, &mut all);
    while all.len() < count {
        let most = (LONGEST / Memory::size_for(1, len)).max(1);
        let bytes = Memory::size_for(most.min((count - all.len()) as u64), len);
        let mut memory = Memory::private(bytes as usize).map_err(|_| Error::MemoryFull(len))?;
        take(&mut memory, count, len, &mut all);
    }
    Ok(all)
}

/// Memory for one more message of `size` bytes.
///
/// # Errors
/// There is not so much.
pub(super) fn one(endpoint: &mut Endpoint, size: u64) -> Result<MemorySlice, Error> {
    messages(endpoint, 1, size)?.pop().ok_or(Error::MemoryFull(size as u32))
}

/// Adds slices of `memory` until there are `count`, or none is left.
fn take(memory: &mut Memory, count: usize, len: u32, all: &mut Vec<MemorySlice>) {
    while all.len() < count {
        match memory.allocate(len) {
            Ok(slice) => all.push(slice),
            Err(_) => return,
        }
    }
}
