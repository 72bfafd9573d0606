//! An application that has the descriptor of its shared memory could free pages of it again and again, and the worker would wait
//! for the system at each access to one. So the memory is sealed once the application says that it has mapped it, and until
//! then the worker leaves the memory alone.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::region::seal;

/// Whether the memory of an application is sealed. The worker hands the memory over, and the thread that watches the
/// application's socket seals it.
#[derive(Debug, Default)]
pub(super) struct Sealing {
    /// The descriptor, as long as the memory has been handed over and is not sealed.
    file: Mutex<Option<OwnedFd>>,
    is_sealed: AtomicBool,
}

impl Sealing {
    fn file(&self) -> MutexGuard<'_, Option<OwnedFd>> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends `file` to the application with `send`. What it answers is seen afterwards.
    ///
    /// # Errors
    /// That of `send`.
    pub(super) fn hand_over(
        &self,
        file: OwnedFd,
        send: impl FnOnce(&OwnedFd) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut kept = self.file();
        send(&file)?;
        *kept = Some(file);
        Ok(())
    }

    /// The application says that it has mapped its memory. Does nothing if it says so once more, or has none yet.
    ///
    /// # Errors
    /// The memory cannot be sealed: the application has seen to that.
    pub(super) fn seal(&self) -> io::Result<()> {
        if let Some(file) = self.file().take() {
            seal(&file)?;
            self.is_sealed.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Whether the memory stays where it is.
    #[inline]
    pub(super) fn is_sealed(&self) -> bool {
        self.is_sealed.load(Ordering::Acquire)
    }
}
