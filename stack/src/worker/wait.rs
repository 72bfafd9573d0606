//! Sleeping until something happens, and waking a sleeping worker.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use weft_cc::Span;

use self::system as bell;

/// Wakes a worker that sleeps, or stops it, from any thread. Clones act on the same worker.
///
/// After giving a worker something to do that its port does not see (a descriptor in a ring, say), call
/// [`Waker::wake`]. While the worker is awake that costs a fence and no system call.
#[derive(Clone, Debug)]
pub struct Waker(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    asleep: AtomicBool,
    stopped: AtomicBool,
    bell: bell::Bell,
}

impl Waker {
    /// A waker for one worker.
    ///
    /// # Errors
    /// The process has no file descriptor left.
    pub fn new() -> io::Result<Waker> {
        let bell = bell::Bell::new()?;
        Ok(Waker(Arc::new(Shared { asleep: false.into(), stopped: false.into(), bell })))
    }

    /// Makes the worker check everything once more, if it sleeps or is about to.
    #[inline]
    pub fn wake(&self) {
        // The caller has written before the fence, and reads the flag after it. The worker does the reverse
        // (`fall_asleep`), so at least one of the two sees what the other has written.
        fence(Ordering::SeqCst);
        if self.0.asleep.load(Ordering::Relaxed) {
            self.0.ring();
        }
    }

    /// Makes the worker's loop end after the turn that it is in.
    pub fn stop(&self) {
        self.0.stopped.store(true, Ordering::Release);
        self.wake();
    }

    /// Whether the worker has been stopped.
    #[inline]
    pub fn is_stopped(&self) -> bool {
        self.0.stopped.load(Ordering::Acquire)
    }

    /// Whether the worker sleeps, or makes its last turn before it sleeps.
    pub fn is_asleep(&self) -> bool {
        self.0.asleep.load(Ordering::Acquire)
    }

    /// Notes that the worker will sleep unless it finds something to do in one more turn.
    pub(super) fn fall_asleep(&self) {
        self.0.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Notes that the worker is awake.
    pub(super) fn awake(&self) {
        self.0.asleep.store(false, Ordering::Relaxed);
    }
}

impl Shared {
    #[cold]
    fn ring(&self) {
        // One ring is enough, however many callers have something for the worker.
        if self.asleep.swap(false, Ordering::AcqRel) {
            self.bell.ring();
        }
    }
}

/// Sleeps until `waker` is woken or `port` becomes readable, but no longer than `span`.
pub(super) fn sleep(waker: Option<&Waker>, port: Option<BorrowedFd<'_>>, span: Span) {
    system::sleep(waker.map(|waker| &waker.0.bell), port, span);
}

/// Eventfds and `poll`.
mod system {
    use std::io;
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

    use arrayvec::ArrayVec;
    use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
    use weft_cc::Span;

    /// An eventfd.
    #[derive(Debug)]
    pub(super) struct Bell(OwnedFd);

    impl Bell {
        pub(super) fn new() -> io::Result<Bell> {
            Ok(Bell(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?))
        }

        pub(super) fn ring(&self) {
            // It fails only when the counter is full, after 2⁶⁴ rings: the bell is readable then.
            let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
        }

        fn silence(&self) {
            // It fails if the bell has not been rung.
            let _ = rustix::io::read(&self.0, &mut [0; 8]);
        }
    }

    pub(super) fn sleep(bell: Option<&Bell>, port: Option<BorrowedFd<'_>>, span: Span) {
        let mut waited_for: ArrayVec<PollFd<'_>, 2> = ArrayVec::new();
        let bell_fd = bell.map(|bell| bell.0.as_fd());
        waited_for.extend(
            [bell_fd, port].into_iter().flatten().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)),
        );
        // In whole microseconds: the kernel is not more precise.
        let us = (span.as_ps() / 1_000_000) as i64;
        let timeout = Timespec { tv_sec: us / 1_000_000, tv_nsec: us % 1_000_000 * 1000 };
        // A signal ends it early, which is harmless.
        let _ = poll(&mut waited_for, Some(&timeout));
        if let Some(bell) = bell {
            bell.silence();
        }
    }
}
