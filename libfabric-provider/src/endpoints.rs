//! The endpoints whose operations end in a queue: letting them work, and sleeping until they have something to do.

use std::sync::{Arc, Mutex, Weak};

use crate::error::{FiError, lock};
use crate::rdm::{Attended, Rdm};
use crate::wake::Wake;

#[derive(Debug)]
pub(crate) struct Endpoints {
    /// None if nobody may sleep.
    wake: Option<Wake>,
    /// Locked before an endpoint, never after it.
    all: Mutex<Vec<Weak<Rdm>>>,
}

impl Endpoints {
    /// None yet; `waits` says whether anybody may sleep until they have something to do.
    pub(crate) fn new(waits: bool) -> Result<Endpoints, FiError> {
        let wake = if waits { Some(Wake::new()?) } else { None };
        Ok(Endpoints { wake, all: Mutex::default() })
    }

    /// The descriptor to sleep on after [`Endpoints::arm`].
    ///
    /// # Errors
    /// Nobody may sleep.
    pub(crate) fn wake(&self) -> Result<&Wake, FiError> {
        self.wake.as_ref().ok_or(FiError::NOT_THERE)
    }

    pub(crate) fn attach(&self, endpoint: &Arc<Rdm>) -> Result<(), FiError> {
        let mut all = lock(&self.all)?;
        if all.iter().any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(endpoint))) {
            return Ok(());
        }
        if let Some(wake) = &self.wake {
            endpoint.with_descriptor(|descriptor| wake.add(descriptor))?;
        }
        all.push(Arc::downgrade(endpoint));
        Ok(())
    }

    pub(crate) fn detach(&self, endpoint: &Arc<Rdm>) -> Result<(), FiError> {
        let mut all = lock(&self.all)?;
        let before = all.len();
        all.retain(|known| !std::ptr::eq(known.as_ptr(), Arc::as_ptr(endpoint)));
        if let Some(wake) = self.wake.as_ref().filter(|_| before != all.len()) {
            endpoint.with_descriptor(|descriptor| {
                wake.remove(descriptor);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Does the work of all endpoints.
    ///
    /// # Errors
    /// One of them cannot work; the others have.
    pub(crate) fn progress(&self) -> Result<(), FiError> {
        let mut done = Ok(());
        for endpoint in lock(&self.all)?.iter().filter_map(Weak::upgrade) {
            done = done.and(endpoint.progress());
        }
        done
    }

    /// As [`Endpoints::progress`], and prepares for a sleep on the descriptor, which an endpoint makes readable when a packet
    /// arrives or a timer is due. Returns whether the caller may sleep.
    ///
    /// # Errors
    /// Nobody may, or one of them cannot work; the others are armed.
    pub(crate) fn arm(&self) -> Result<bool, FiError> {
        self.wake()?;
        let mut may_sleep = Ok(true);
        for endpoint in self.list()? {
            let may = endpoint.arm();
            may_sleep = may_sleep.and_then(|before| Ok(before & may?));
        }
        may_sleep
    }

    /// Says that the caller arms the endpoints and sleeps, for as long as it keeps what is returned. It does so before it arms them: calls
    /// of other threads in between leave them armed. The endpoints' own threads leave the work to the caller meanwhile.
    pub(crate) fn attend(&self) -> Result<Vec<Attended>, FiError> {
        Ok(self.list()?.into_iter().map(Attended::new).collect())
    }

    fn list(&self) -> Result<Vec<Arc<Rdm>>, FiError> {
        Ok(lock(&self.all)?.iter().filter_map(Weak::upgrade).collect())
    }
}
