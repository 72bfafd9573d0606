//! Memory that is registered with an endpoint: messages are sent from it and received into it without a copy that the
//! endpoint could avoid.
//!
//! Blocks are cut from it in sizes at most an eighth larger than asked for, and kept in a list for each size when they
//! are freed: both take constant time. Only when nothing fits are free neighbours joined again, which takes time
//! proportional to their number.

use weft_stack::buffer::Buffer;
use weft_stack::packet::Payload;
use weft_stack::port::Port;
use weft_stack::region::{Region, RegionBytes, RegionError, RegionSlice, SharedRegion};

use super::Error;

/// Blocks begin at multiples of this, bytes: no two share a cache line.
const GRAIN: u32 = 64;
/// Up to this size blocks are multiples of the grain; beyond it there are eight sizes for each doubling.
const FINE: u32 = 1024;
const FINE_CLASSES: usize = (FINE / GRAIN) as usize;
const CLASSES: usize = FINE_CLASSES + 8 * (32 - FINE.ilog2() as usize);

/// A piece of an endpoint's registered memory. It is read and written by copying, as others may write to it at the same
/// time. Give it back with [`Memory::free`]; one that is dropped stays in use as long as the endpoint lives.
#[derive(Debug)]
pub struct MemorySlice(RegionSlice);

impl MemorySlice {
    /// Memory of the caller's own to send from, where the worker runs in the caller's thread; elsewhere it is refused
    /// ([`Error::ForeignMemory`]). It comes back when the message has ended; see [`MemorySlice::is_shared`].
    pub fn lent(slice: RegionSlice) -> MemorySlice {
        MemorySlice(slice)
    }

    /// Whether anybody else refers to its region: for a region of one message that has ended, this is a copy of a packet
    /// that still waits to be sent. Who is about to free that memory drops such packets ([`weft_stack::worker::Worker::recall`]).
    pub fn is_shared(&self) -> bool {
        self.0.region().holders() > 1
    }

    /// Its length, bytes.
    pub fn len(&self) -> u32 {
        self.0.len()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Shortens it to `len` bytes, say to send a short message; [`Memory::set_len`] makes it longer again.
    pub fn truncate(&mut self, len: u32) {
        self.0 = self.0.part(0, len);
    }

    /// Copies bytes from `at` on to `bytes`; returns how many there are.
    pub fn read(&self, at: u32, bytes: &mut [u8]) -> usize {
        self.0.read(at, bytes)
    }

    /// Copies `bytes` to where `at` is; returns how many there is room for.
    pub fn write(&self, at: u32, bytes: &[u8]) -> usize {
        self.0.write(at, bytes)
    }

    /// The bytes from `start` to `end`, as far as there are any, to be copied.
    pub fn bytes(&self, start: u32, end: u32) -> RegionBytes<'_> {
        self.0.bytes(start, end)
    }

    /// Copies bytes, which others may write to at the same time, to where `at` is: as many as there is room for.
    pub fn copy_from(&self, at: u32, bytes: RegionBytes<'_>) {
        Buffer::Region(self.0.clone()).place(at, Payload::Region(bytes));
    }

    /// Its offset in the registered memory, bytes.
    pub(super) fn offset(&self) -> u64 {
        self.0.offset().into()
    }

    pub(super) fn into_region_slice(self) -> RegionSlice {
        self.0
    }

    pub(super) fn from_region_slice(slice: RegionSlice) -> MemorySlice {
        MemorySlice(slice)
    }
}

/// The registered memory of an endpoint.
///
/// ```
/// use std::time::Duration;
/// use weft::{Completion, Endpoint, SendBuffer};
///
/// let mut endpoint = Endpoint::builder("udp:127.20.0.7").memory(1 << 20).build()?;
/// let own = endpoint.peer("127.20.0.7")?;
/// let connection = endpoint.connect(own)?;
/// endpoint.receive(vec![0; 5])?;
///
/// let slice = endpoint.memory().allocate(5)?;
/// slice.write(0, b"hello");
/// endpoint.send(connection, slice)?;
/// loop {
///     let completion = endpoint.wait(Duration::from_secs(5))?.expect("a completion");
///     if let Completion::Sent { buffer: SendBuffer::Memory(slice), result, .. } = completion {
///         result?;
///         endpoint.memory().free(slice)?;
///         break;
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct Memory {
    region: Option<Region>,
    /// Free memory that has not been cut into blocks, by offset and length.
    extents: Vec<(u32, u32)>,
    /// Free blocks of each class.
    free: Vec<Vec<u32>>,
    /// For each grain of the memory, 1 + the class of the block in use that begins there, or 0.
    in_use: Vec<u8>,
    /// Whether blocks have been freed since free neighbours were joined.
    freed: bool,
}

impl Memory {
    /// All of `region`, free.
    pub(super) fn of(region: Region) -> Memory {
        let len = region.len() as u32;
        Memory {
            extents: vec![(0, len)],
            free: vec![Vec::new(); CLASSES],
            in_use: vec![0; (len / GRAIN) as usize + 1],
            freed: false,
            region: Some(region),
        }
    }

    /// `bytes` of the process's own memory, which is not registered; none for 0. Only a worker in the caller's thread sends
    /// from it and receives into it.
    ///
    /// # Errors
    /// No region is so long, or there is no memory.
    pub fn private(bytes: usize) -> Result<Memory, RegionError> {
        match bytes {
            0 => Ok(Memory::default()),
            bytes => Ok(Memory::of(Region::allocate(bytes)?)),
        }
    }

    /// `bytes` of memory for an endpoint at `port`; none for 0. It is registered with the port if that sends from
    /// registered memory without a copy (a memif client does), and the process's own otherwise, which the system may give
    /// large pages.
    ///
    /// # Errors
    /// No region is so long, or there is no memory.
    pub fn for_port(bytes: usize, port: &mut impl Port) -> Result<Memory, RegionError> {
        match SharedRegion::allocate(bytes) {
            Ok(shared) if port.register(&shared) => Ok(Memory::of(shared.region().clone())),
            Ok(_) | Err(_) => Memory::private(bytes),
        }
    }

    /// The bytes of memory that `count` slices of `len` bytes take.
    pub fn size_for(count: u64, len: u32) -> u64 {
        class_of(len).1.saturating_mul(count)
    }

    /// Its size, bytes, whether in use or not.
    pub fn size(&self) -> usize {
        self.region.as_ref().map_or(0, Region::len)
    }

    /// `len` bytes that nobody else has. What they hold is undefined, though never another process's secret.
    ///
    /// # Errors
    /// [`Error::MemoryFull`] if no free piece is long enough, [`Error::BeyondMemory`] if none ever is.
    #[inline]
    pub fn allocate(&mut self, len: u32) -> Result<MemorySlice, Error> {
        let (class, size) = class_of(len);
        let offset = match self.free.get_mut(class).and_then(Vec::pop) {
            Some(offset) => offset,
            None => self.cut(size).ok_or_else(|| self.lack(len, size))?,
        };
        let slice = self.region.as_ref().and_then(|region| region.slice(offset.into(), len).ok());
        let slice = slice.ok_or(Error::MemoryFull(len))?;
        self.in_use[(offset / GRAIN) as usize] = class as u8 + 1;
        Ok(MemorySlice(slice))
    }

    /// Takes a slice back.
    ///
    /// # Errors
    /// [`Error::ForeignMemory`] if it is another endpoint's.
    #[inline]
    pub fn free(&mut self, slice: MemorySlice) -> Result<(), Error> {
        let class = self.class_in_use(&slice.0)?;
        self.in_use[(slice.0.offset() / GRAIN) as usize] = 0;
        self.free[class].push(slice.0.offset());
        self.freed = true;
        Ok(())
    }

    /// Makes a slice `len` bytes long, at most as long as it was allocated.
    ///
    /// # Errors
    /// [`Error::MemoryFull`] if it was shorter, [`Error::ForeignMemory`] if it is another endpoint's.
    pub fn set_len(&self, slice: &mut MemorySlice, len: u32) -> Result<(), Error> {
        let class = self.class_in_use(&slice.0)?;
        let fits = u64::from(len) <= size_of_class(class);
        let longer = slice.0.region().slice(slice.0.offset().into(), len).ok().filter(|_| fits);
        slice.0 = longer.ok_or(Error::MemoryFull(len))?;
        Ok(())
    }

    /// # Errors
    /// [`Error::ForeignMemory`] if `slice` is another endpoint's.
    #[inline]
    pub(super) fn check(&self, slice: &MemorySlice) -> Result<(), Error> {
        if self.holds(&slice.0) { Ok(()) } else { Err(Error::ForeignMemory) }
    }

    /// Whether `slice` lies in this memory.
    #[inline]
    pub(super) fn holds(&self, slice: &RegionSlice) -> bool {
        self.region.as_ref() == Some(slice.region())
    }

    fn class_in_use(&self, slice: &RegionSlice) -> Result<usize, Error> {
        let entry = self.in_use.get((slice.offset() / GRAIN) as usize).filter(|_| self.holds(slice));
        let class = entry.and_then(|entry| entry.checked_sub(1));
        class.map(usize::from).ok_or(Error::ForeignMemory)
    }

    /// Why there is no block of `size` bytes for `len`.
    #[cold]
    fn lack(&self, len: u32, size: u64) -> Error {
        match self.size() {
            all if size > all as u64 => Error::BeyondMemory { len, size: all },
            _ => Error::MemoryFull(len),
        }
    }

    /// Cuts a block of `size` bytes from memory that is in no list.
    #[cold]
    fn cut(&mut self, size: u64) -> Option<u32> {
        if let Some(offset) = self.cut_from_extents(size) {
            return Some(offset);
        }
        if !std::mem::take(&mut self.freed) {
            return None;
        }
        self.join();
        self.cut_from_extents(size)
    }

    fn cut_from_extents(&mut self, size: u64) -> Option<u32> {
        let fit = self.extents.iter().position(|(_, len)| u64::from(*len) >= size)?;
        let (offset, len) = &mut self.extents[fit];
        let block = *offset;
        // At most the length, which has 32 bits; only the end of the whole may become empty.
        *offset = offset.wrapping_add(size as u32);
        *len -= size as u32;
        if *len == 0 {
            self.extents.remove(fit);
        }
        Some(block)
    }

    /// Makes extents of all free blocks, joined with their neighbours.
    fn join(&mut self) {
        let mut all = std::mem::take(&mut self.extents);
        for (class, blocks) in self.free.iter_mut().enumerate() {
            all.extend(blocks.drain(..).map(|offset| (offset, size_of_class(class) as u32)));
        }
        all.sort_unstable();
        for (offset, len) in all {
            match self.extents.last_mut() {
                Some((last, length)) if *last + *length == offset => *length += len,
                _ => self.extents.push((offset, len)),
            }
        }
    }
}

/// The smallest class whose blocks hold `len` bytes, and their size.
#[inline]
fn class_of(len: u32) -> (usize, u64) {
    let last = len.max(1) - 1;
    let class = if last < FINE {
        (last / GRAIN) as usize
    } else {
        let exponent = last.ilog2();
        let eighth = (last >> (exponent - 3)) & 7;
        FINE_CLASSES + 8 * (exponent - FINE.ilog2()) as usize + eighth as usize
    };
    (class, size_of_class(class))
}

#[inline]
fn size_of_class(class: usize) -> u64 {
    match class.checked_sub(FINE_CLASSES) {
        None => (class as u64 + 1) * u64::from(GRAIN),
        Some(coarse) => (9 + coarse as u64 % 8) << (coarse as u64 / 8 + u64::from(FINE.ilog2()) - 3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_at_most_an_eighth_larger_than_asked_for() {
        for len in (1..5000).chain([1 << 20, (1 << 20) + 1, u32::MAX - 1, u32::MAX]) {
            let (class, size) = class_of(len);
            assert!(class < CLASSES && size >= len.into(), "{len}");
            assert!(
                size <= u64::from(len).next_multiple_of(64).max(u64::from(len) * 9 / 8 + 64),
                "{len}: {size}"
            );
            assert_eq!(class_of(u32::try_from(size).unwrap_or(u32::MAX)).0, class, "{len}");
        }
    }

    #[test]
    fn blocks_do_not_overlap_and_all_of_the_memory_comes_back() {
        let mut memory = Memory::private(1 << 16).unwrap();
        for round in 0..4u32 {
            let mut blocks = Vec::new();
            while let Ok(block) = memory.allocate(100 * (round + 1) + 37 * blocks.len() as u32 % 1000) {
                blocks.push(block);
            }
            let mut spans: Vec<_> = blocks.iter().map(|b| (b.offset(), u64::from(b.len()))).collect();
            spans.sort_unstable();
            assert!(spans.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
            assert!(spans.iter().map(|span| span.1).sum::<u64>() > 50_000, "round {round}");
            blocks.into_iter().for_each(|block| memory.free(block).unwrap());
            let all = memory.allocate(1 << 16).unwrap();
            assert_eq!(memory.allocate(1).unwrap_err(), Error::MemoryFull(1));
            memory.free(all).unwrap();
        }
    }

    #[test]
    fn memory_holds_as_many_slices_as_its_size_was_computed_for() {
        for (count, len) in [(1, 0), (300, 64), (7, 100), (3, 1 << 20), (5, 100_000)] {
            let mut memory = Memory::private(Memory::size_for(count, len) as usize).unwrap();
            let slices: Vec<_> = std::iter::from_fn(|| memory.allocate(len).ok()).collect();
            assert_eq!(slices.len() as u64, count, "{len} bytes");
        }
    }

    #[test]
    fn slices_can_be_shortened_and_lengthened_and_know_where_they_belong() {
        let mut memory = Memory::private(4096).unwrap();
        let mut slice = memory.allocate(100).unwrap();
        slice.truncate(10);
        assert_eq!(slice.len(), 10);
        memory.set_len(&mut slice, 128).unwrap();
        assert_eq!(memory.set_len(&mut slice, 129), Err(Error::MemoryFull(129)));
        let mut other = Memory::private(4096).unwrap();
        assert_eq!(other.free(slice), Err(Error::ForeignMemory));
        assert_eq!(Memory::default().allocate(0).unwrap_err(), Error::BeyondMemory { len: 0, size: 0 });
    }

    #[test]
    fn only_a_lack_that_ends_is_back_pressure() {
        let mut memory = Memory::private(4096).unwrap();
        let all = memory.allocate(4096).unwrap();
        assert!(memory.allocate(1).unwrap_err().is_back_pressure());
        let error = memory.allocate(4097).unwrap_err();
        assert!(!error.is_back_pressure(), "{error}");
        memory.free(all).unwrap();
        assert_eq!(memory.allocate(4097).unwrap_err(), error);
    }
}
