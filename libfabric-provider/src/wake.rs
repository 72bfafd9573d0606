//! Descriptors to sleep on.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::io::{Errno, read, write};

use crate::error::FiError;
use crate::sys;

/// A descriptor that is readable from [`Event::set`] to [`Event::clear`].
#[derive(Debug)]
pub(crate) struct Event(OwnedFd);

impl Event {
    /// # Errors
    /// The system has no descriptor left, or no memory.
    pub(crate) fn new() -> Result<Event, FiError> {
        Ok(Event(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    pub(crate) fn set(&self) {
        // It can only fail if it is readable.
        let _ = write(&self.0, &1u64.to_ne_bytes());
    }

    /// Returns whether it was set.
    pub(crate) fn clear(&self) -> bool {
        read(&self.0, &mut [0u8; 8]).is_ok()
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A descriptor that is readable when it was woken, or when one of the descriptors that were added is.
#[derive(Debug)]
pub(crate) struct Wake {
    all: OwnedFd,
    /// Without the event.
    added: OwnedFd,
    event: Event,
}

impl Wake {
    /// # Errors
    /// The system has no descriptor left, or no memory.
    pub(crate) fn new() -> Result<Wake, FiError> {
        let [all, added] =
            [epoll::create(epoll::CreateFlags::CLOEXEC)?, epoll::create(epoll::CreateFlags::CLOEXEC)?];
        let wake = Wake { all, added, event: Event::new()? };
        add(&wake.all, wake.event.as_fd())?;
        Ok(wake)
    }

    pub(crate) fn add(&self, descriptor: BorrowedFd<'_>) -> Result<(), FiError> {
        add(&self.all, descriptor)?;
        add(&self.added, descriptor)
    }

    pub(crate) fn remove(&self, descriptor: BorrowedFd<'_>) {
        for epoll in [&self.all, &self.added] {
            // It was added.
            let _ = epoll::delete(epoll, descriptor);
        }
    }

    /// Makes the descriptor readable until [`Wake::rest`].
    pub(crate) fn wake(&self) {
        self.event.set();
    }

    pub(crate) fn rest(&self) {
        self.event.clear();
    }

    /// Sleeps until the descriptor is readable, for `bound` at most if there is one.
    /// Returns false if a signal has ended it.
    pub(crate) fn sleep(&self, bound: Option<Duration>) -> bool {
        sleep(&[self.as_fd()], bound)
    }

    /// Sleeps until one of the descriptors that were added is readable, or `event` is set, for `bound` at most if there is one. That the
    /// descriptor was woken does not matter: whoever sleeps on it may not have seen that yet.
    pub(crate) fn sleep_with(&self, event: &Event, bound: Option<Duration>) {
        sleep(&[self.added.as_fd(), event.as_fd()], bound);
    }
}

fn add(epoll: &OwnedFd, descriptor: BorrowedFd<'_>) -> Result<(), FiError> {
    let data = epoll::EventData::new_u64(descriptor.as_raw_fd() as u64);
    Ok(epoll::add(epoll, descriptor, data, epoll::EventFlags::IN)?)
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.all.as_fd()
    }
}

/// Sleeps until one of the descriptors is readable, for `bound` at most if there is one; perhaps less. Returns false if a signal has
/// ended it.
pub(crate) fn sleep(descriptors: &[BorrowedFd<'_>], bound: Option<Duration>) -> bool {
    let mut waits: Vec<_> =
        descriptors.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let span =
        bound.map(|bound| Timespec { tv_sec: bound.as_secs() as i64, tv_nsec: bound.subsec_nanos().into() });
    poll(&mut waits, span.as_ref()) != Err(Errno::INTR)
}

/// Whether an object with this wait object may be waited for.
///
/// # Errors
/// The wait object is not there.
pub(crate) fn may_wait(object: sys::fi_wait_obj) -> Result<bool, FiError> {
    match object {
        sys::FI_WAIT_NONE => Ok(false),
        sys::FI_WAIT_UNSPEC | sys::FI_WAIT_FD | sys::FI_WAIT_SET => Ok(true),
        _ => Err(FiError::NOT_THERE),
    }
}

/// The bound of a wait in milliseconds as libfabric has it: negative for none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    pub(crate) fn after(ms: i32) -> Deadline {
        Deadline(u64::try_from(ms).ok().map(|ms| Instant::now() + Duration::from_millis(ms)))
    }

    /// The time that is left; `None` if it has no end.
    ///
    /// # Errors
    /// [`FiError::AGAIN`] if there is none left.
    pub(crate) fn left(self) -> Result<Option<Duration>, FiError> {
        let Some(end) = self.0 else { return Ok(None) };
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(FiError::AGAIN) } else { Ok(Some(left)) }
    }
}
