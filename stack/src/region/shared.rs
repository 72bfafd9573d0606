//! Regions that two processes share.
#![allow(unsafe_code)]

use core::ffi::c_void;
use core::ptr::{NonNull, null_mut};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate, memfd_create,
};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::Region;

/// The file system type of files of huge pages (`HUGETLBFS_MAGIC` of Linux's `magic.h`).
const HUGE_PAGES: u32 = 0x9584_58f6;

/// A mapping of an unnamed file.
struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: nothing accesses the memory through a `Mapping`, which is only kept and unmapped once, on any thread;
// accesses go through the `Region` that owns it.
unsafe impl Send for Mapping {}
// SAFETY: `&Mapping` gives access to nothing.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        #[cfg(test)]
        mappings::count([0, 1]);
        // SAFETY: mapped by `map`, and the last region that names it is gone.
        let _ = unsafe { munmap(self.base.as_ptr().cast::<c_void>(), self.len) };
    }
}

impl Region {
    /// `len` bytes, all 0, and a descriptor by which another process can [map](Region::map) them. The file's length is
    /// sealed, so no access to the bytes fails. The other process can free pages of them: an access to such a page waits for
    /// the system.
    ///
    /// # Errors
    /// The system's: no memory or no descriptor is left.
    pub fn share(len: usize) -> io::Result<(Region, OwnedFd)> {
        share(len, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
    }

    /// As [`Region::share`], but once the other process has mapped the bytes, and they are [sealed](seal), it cannot free pages
    /// of them any more.
    ///
    /// # Errors
    /// As [`Region::share`].
    pub(crate) fn share_to_seal(len: usize) -> io::Result<(Region, OwnedFd)> {
        share(len, SealFlags::SHRINK | SealFlags::GROW)
    }

    /// The first `len` bytes of `file`, which another process has [shared](Region::share).
    ///
    /// # Errors
    /// The system's; or the file is too short, could be shortened, or consists of huge pages.
    pub fn map(file: impl AsFd, len: usize) -> io::Result<Region> {
        let invalid = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        // A peer that could shorten the file could make this process fault.
        if !fcntl_get_seals(&file)?.contains(SealFlags::SHRINK) {
            return Err(invalid("shared memory that may shrink"));
        }
        if u64::try_from(fstat(&file)?.st_size).unwrap_or(0) < len as u64 {
            return Err(invalid("shared memory that is too short"));
        }
        // A page that is missing is provided again, which takes the system some time. But of huge ones none may be left, and
        // then a fault kills the process.
        if fstatfs(&file)?.f_type as u32 == HUGE_PAGES {
            return Err(invalid("shared memory of huge pages, which may be taken away"));
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the system chooses harms no other memory.
        let base = unsafe { mmap(null_mut(), len, access, MapFlags::SHARED, &file, 0) }?;
        let base = NonNull::new(base.cast::<u8>()).ok_or_else(|| invalid("a mapping at address 0"))?;
        #[cfg(test)]
        mappings::count([1, 0]);
        let mapping = Box::new(Mapping { base, len });
        // SAFETY: `mapping` keeps the memory, whose length is sealed, and nothing else in this process knows it.
        unsafe { Region::foreign(base, len, mapping) }.map_err(io::Error::other)
    }
}

fn share(len: usize, seals: SealFlags) -> io::Result<(Region, OwnedFd)> {
    let file = memfd_create("weft", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, len as u64)?;
    fcntl_add_seals(&file, seals)?;
    Ok((Region::map(&file, len)?, file))
}

/// Lets nobody free pages of `file`, which is [shared](Region::share_to_seal), nor map it to write to it. Mappings that there
/// are can be used as before. Linux knows the seal since 5.1; before, pages can be freed.
///
/// # Errors
/// Another process has sealed the file against that.
pub(crate) fn seal(file: impl AsFd) -> io::Result<()> {
    match fcntl_add_seals(&file, SealFlags::FUTURE_WRITE | SealFlags::SEAL) {
        Err(Errno::INVAL) => Ok(fcntl_add_seals(&file, SealFlags::SEAL)?),
        sealed => Ok(sealed?),
    }
}

/// The mappings that the tests' threads make and remove: each takes the system some time.
#[cfg(test)]
pub(crate) mod mappings {
    use std::cell::Cell;

    thread_local!(static COUNTS: Cell<[u64; 2]> = const { Cell::new([0; 2]) });

    /// This thread has made and removed so many more.
    pub(super) fn count([made, removed]: [u64; 2]) {
        let [made_before, removed_before] = COUNTS.get();
        COUNTS.set([made_before + made, removed_before + removed]);
    }

    /// How many this thread makes and removes in `action`.
    pub(crate) fn of(action: impl FnOnce()) -> [u64; 2] {
        let before = COUNTS.get();
        action();
        let after = COUNTS.get();
        [after[0] - before[0], after[1] - before[1]]
    }
}

/// Frees the first page of `file`, as a process that has its descriptor can unless it is [sealed](seal).
#[cfg(test)]
pub(crate) fn free_first_page(file: impl AsFd) -> io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    Ok(fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 4096)?)
}

/// A region of this process, with the descriptor by which other processes can map all of it.
#[derive(Debug)]
pub struct SharedRegion {
    region: Region,
    file: OwnedFd,
}

impl SharedRegion {
    /// `len` bytes, all 0.
    ///
    /// # Errors
    /// The system's: no memory or no descriptor is left.
    pub fn allocate(len: usize) -> io::Result<SharedRegion> {
        let (region, file) = Region::share(len)?;
        Ok(SharedRegion { region, file })
    }

    /// The region of this process over the shared memory.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// The same region with a descriptor of its own.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub(crate) fn try_clone(&self) -> io::Result<SharedRegion> {
        Ok(SharedRegion { region: self.region.clone(), file: self.file.try_clone()? })
    }

    /// The memory and the descriptor.
    pub(crate) fn into_parts(self) -> (Region, OwnedFd) {
        (self.region, self.file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_show_the_same_bytes_until_the_last_is_gone() {
        let (here, file) = Region::share(10_000).unwrap();
        let there = Region::map(&file, 10_000).unwrap();
        drop(file);
        here.slice(9_000, 5).unwrap().write(0, b"hello");
        drop(here);
        let mut seen = [0; 5];
        there.slice(9_000, 5).unwrap().read(0, &mut seen);
        assert_eq!(&seen, b"hello");
    }

    #[test]
    fn sealed_memory_stays_where_it_is_and_can_be_used() {
        let (here, file) = Region::share_to_seal(10_000).unwrap();
        let there = Region::map(&file, 10_000).unwrap();
        let mut seen = [0; 5];
        here.slice(0, 5).unwrap().write(0, b"hello");
        free_first_page(&file).expect("not sealed yet");
        there.slice(0, 5).unwrap().read(0, &mut seen);
        assert_eq!(seen, [0; 5]);
        seal(&file).unwrap();
        there.slice(0, 5).unwrap().write(0, b"hello");
        assert!(free_first_page(&file).is_err(), "sealed");
        here.slice(0, 5).unwrap().read(0, &mut seen);
        assert_eq!(&seen, b"hello");
        assert!(Region::map(&file, 10_000).is_err(), "sealed");
        assert!(seal(&file).is_err(), "nobody can add seals any more");
    }

    #[test]
    fn huge_pages_that_may_be_missing_are_refused() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        let file = match memfd_create("huge", flags) {
            Ok(file) => file,
            Err(error) => return crate::skipped::skipped(&format!("no huge pages: {error}")),
        };
        ftruncate(&file, 1 << 30).unwrap();
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).unwrap();
        assert_eq!(Region::map(&file, 4096).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn files_that_may_shrink_or_are_too_short_are_refused() {
        let (_, file) = Region::share(4096).unwrap();
        assert!(ftruncate(&file, 1).is_err(), "sealed");
        assert!(fcntl_add_seals(&file, SealFlags::WRITE).is_err(), "no seals can be added");
        let refusal = Region::map(&file, 4097).unwrap_err();
        assert_eq!(refusal.kind(), io::ErrorKind::InvalidData);
        let loose = memfd_create("loose", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&loose, 4096).unwrap();
        assert!(Region::map(&loose, 4096).is_err());
    }
}
