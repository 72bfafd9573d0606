//! Numbers that no other process has, of the system's random source.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::Read;

/// Another number each time, also in processes that were forked: what the standard library knows of is the same in them.
pub(crate) fn number() -> u64 {
    let mut bytes = [0; 8];
    let read = File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut bytes));
    read.map_or_else(|_| RandomState::new().hash_one(std::process::id()), |()| u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Forks, calls `number` in the child, and returns what it returned there.
    fn in_a_child(number: impl FnOnce() -> u64) -> u64 {
        let mut ends = [0; 2];
        // SAFETY: the array has room for two descriptors. The child only opens a file, writes and ends.
        unsafe {
            assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
            let child = libc::fork();
            assert!(child >= 0);
            if child == 0 {
                let bytes = number().to_ne_bytes();
                libc::write(ends[1], bytes.as_ptr().cast(), bytes.len());
                libc::_exit(0);
            }
            let (mut bytes, mut status) = ([0; 8], 0);
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            assert_eq!(libc::read(ends[0], bytes.as_mut_ptr().cast(), bytes.len()), 8);
            ends.into_iter().for_each(|end| assert_eq!(libc::close(end), 0));
            u64::from_ne_bytes(bytes)
        }
    }

    #[test]
    fn processes_that_were_forked_draw_other_numbers() {
        // The hasher of this thread has been seeded.
        let hashed = || RandomState::new().hash_one(0);
        hashed();
        assert_eq!(in_a_child(hashed), in_a_child(hashed), "a hasher would do");
        assert_ne!(in_a_child(number), in_a_child(number));
    }
}
