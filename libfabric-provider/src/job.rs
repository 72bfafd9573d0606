//! Authorisation keys: the job that an endpoint belongs to, of which there are 24 bits in UET.

use weft::JobId;

use crate::abi;
use crate::error::FiError;

/// The most bytes of a key.
const LONGEST: usize = 4;

/// The key of a domain or an endpoint: a number of 1 to 4 bytes, the first of which counts most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    bytes: [u8; LONGEST],
    len: usize,
}

impl Key {
    /// The key of `len` bytes at `at`; `None` if there is none.
    ///
    /// # Errors
    /// It is no job.
    ///
    /// # Safety
    /// There are so many bytes, or `at` is null.
    pub(crate) unsafe fn read(at: *const u8, len: usize) -> Result<Option<Key>, FiError> {
        if len == 0 {
            return Ok(None);
        }
        if at.is_null() || len > LONGEST {
            return Err(FiError::INVALID);
        }
        let mut bytes = [0; LONGEST];
        // SAFETY: as the caller promises.
        bytes[..len].copy_from_slice(unsafe { std::slice::from_raw_parts(at, len) });
        let key = Key { bytes, len };
        // Job 0 is none: a process that means to be kept apart would take messages of all.
        match JobId::new(key.number()) {
            Some(job) if job != JobId::NONE => Ok(Some(key)),
            _ => Err(FiError::INVALID),
        }
    }

    fn number(&self) -> u32 {
        self.bytes[..self.len].iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
    }

    pub(crate) fn job(&self) -> JobId {
        JobId::new(self.number()).unwrap_or_default()
    }

    /// The same bytes, which libfabric frees with `free`, and their number.
    pub(crate) fn duplicate(&self) -> Result<(*mut u8, usize), FiError> {
        abi::duplicate_bytes(&self.bytes[..self.len]).map(|at| (at.cast(), self.len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_a_number_of_24_bits() {
        // SAFETY: there are so many bytes.
        let read = |key: &[u8]| unsafe { Key::read(key.as_ptr(), key.len()) };
        let job = |key: &[u8]| read(key).map(|key| key.map(|key| key.job().get()));
        assert_eq!(job(&[]), Ok(None));
        assert_eq!(job(&[7]), Ok(Some(7)));
        assert_eq!(job(&[1, 2, 3]), Ok(Some(0x01_0203)));
        assert_eq!(job(&[0, 0xff, 0xff, 0xff]), Ok(Some(0xff_ffff)));
        assert_eq!(job(&[1, 0, 0, 0]), Err(FiError::INVALID), "25 bits");
        for len in 1..=4 {
            assert_eq!(job(&vec![0; len]), Err(FiError::INVALID), "{len} bytes of zeros are no job");
        }
        assert_eq!(job(&[0; 5]), Err(FiError::INVALID), "5 bytes");
        // SAFETY: it is null.
        assert_eq!(unsafe { Key::read(std::ptr::null(), 3) }, Err(FiError::INVALID));
        let (at, len) = read(&[0, 1, 2]).unwrap().unwrap().duplicate().unwrap();
        // SAFETY: it is the copy, which `malloc` has returned.
        unsafe {
            assert_eq!(std::slice::from_raw_parts(at, len), [0, 1, 2]);
            libc::free(at.cast());
        }
    }
}
