//! Eventfds raised by the kernel, so that a hostile peer cannot block the worker.
//!
//! The eventfd of a ring is shared with the peer, which is not trusted. Whether a write to it blocks is a property of
//! the open file, not of a descriptor: the peer can clear `O_NONBLOCK` at any time, and can fill the counter. `poll`
//! followed by `write` is therefore not enough: a peer that fills the counter between the two blocks the worker for
//! as long as it likes, and with it every other peer of that worker. (`event.rs` has a test in which a peer tries to
//! do just that.) There is no open file of one's own either: `/proc/self/fd` does not reopen eventfds, and a write to
//! one takes no `RWF_NOWAIT`.
//!
//! But the kernel itself raises an eventfd when an asynchronous operation that asked for it ends (`IOCB_FLAG_RESFD`).
//! It never waits then: a full counter stays full, which is readable. A read from /dev/null ends at once.
#![allow(unsafe_code)]

use std::ffi::{c_long, c_ulong};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::OnceLock;

/// `IOCB_CMD_PREAD` of linux/aio_abi.h.
const READ: u16 = 0;
/// `IOCB_FLAG_RESFD` of linux/aio_abi.h.
const RAISE_AT_END: u32 = 1;

/// Threads that can raise something at the same time. The kernel takes this as a lower bound.
const AT_ONCE: c_long = 64;

/// `struct io_event` of linux/aio_abi.h: the result of an operation.
#[repr(C)]
struct End([u64; 4]);

/// A kernel context for asynchronous operations, and the file that they read.
#[derive(Debug)]
pub(super) struct Signals {
    context: c_ulong,
    nothing: File,
}

impl Signals {
    /// The context of this process; none where the kernel has no asynchronous operations, or permits none.
    ///
    /// All ports share one, because destroying a context takes the kernel milliseconds.
    pub(super) fn of_process() -> Option<&'static Signals> {
        static SIGNALS: OnceLock<Option<Signals>> = OnceLock::new();
        SIGNALS.get_or_init(|| Signals::new().ok()).as_ref()
    }

    fn new() -> io::Result<Signals> {
        let nothing = File::open("/dev/null")?;
        let mut context: c_ulong = 0;
        // SAFETY: the call writes a number to `context`, which is its own, and nothing else.
        check(unsafe { libc::syscall(libc::SYS_io_setup, AT_ONCE, &raw mut context) })?;
        Ok(Signals { context, nothing })
    }

    /// Makes `event`, an eventfd, readable. Never waits.
    ///
    /// # Errors
    /// `event` is no eventfd, or the process is a fork of the one that has opened this: `event` is as it was.
    pub(super) fn raise(&self, event: BorrowedFd<'_>) -> io::Result<()> {
        let mut byte = 0u8;
        // SAFETY: `iocb` consists of numbers only, for which zero is a value.
        let mut request: libc::iocb = unsafe { std::mem::zeroed() };
        request.aio_lio_opcode = READ;
        request.aio_fildes = self.nothing.as_raw_fd() as u32;
        request.aio_buf = (&raw mut byte) as u64;
        request.aio_nbytes = 1;
        request.aio_flags = RAISE_AT_END;
        request.aio_resfd = event.as_raw_fd() as u32;
        let mut requests = [&raw mut request];
        // SAFETY: one request, which the kernel copies; of /dev/null nothing is read, and that at once, so that
        // `byte` is not written to, least of all later.
        let begun = check(unsafe {
            libc::syscall(libc::SYS_io_submit, self.context, 1 as c_long, requests.as_mut_ptr())
        });
        self.forget_ends();
        begun
    }

    /// Discards the results of operations that have ended, so that there is room for the next ones.
    fn forget_ends(&self) {
        const MANY: usize = 4;
        let mut ends = [const { End([0; 4]) }; MANY];
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let (least, most) = (0 as c_long, MANY as c_long);
        // SAFETY: there is room for as many as may be written, and `at_once` is only read.
        unsafe {
            let ends = ends.as_mut_ptr();
            libc::syscall(libc::SYS_io_getevents, self.context, least, most, ends, ptr::from_ref(&at_once));
        }
    }
}

fn check(result: c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    /// None where there can be none, which must not be in CI.
    fn signals() -> Option<&'static Signals> {
        let signals = Signals::of_process();
        if signals.is_none() {
            crate::skipped::skipped("no asynchronous operations here");
        }
        signals
    }

    #[test]
    fn each_raise_counts_as_one() {
        let Some(signals) = signals() else { return };
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        // More than the kernel holds ends of.
        for _ in 0..100_000 {
            signals.raise(event.as_fd()).unwrap();
        }
        let mut count = [0; 8];
        rustix::io::read(&event, &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 100_000);
        assert!(rustix::io::read(&event, &mut count).is_err(), "nothing comes later");
    }

    #[test]
    fn a_full_blocking_event_does_not_block_the_port() {
        let Some(signals) = signals() else { return };
        let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        for _ in 0..3 {
            signals.raise(event.as_fd()).unwrap();
        }
        let mut count = [0; 8];
        rustix::io::read(&event, &mut count).unwrap();
        assert!(u64::from_ne_bytes(count) >= u64::MAX - 1);
    }

    #[test]
    fn descriptors_that_are_no_event_are_refused() {
        let Some(signals) = signals() else { return };
        let (pipe, _end) = std::io::pipe().unwrap();
        assert!(signals.raise(pipe.as_fd()).is_err());
    }
}
