//! Eventfds raised by the kernel, so that a hostile peer cannot block the worker.
//!
//! The eventfd of a ring is shared with the peer, which is not trusted. Whether a write to it blocks is a property of
//! the open file, not of a descriptor: the peer can clear `O_NONBLOCK` at any time, and can fill the counter. `poll`
//! followed by `write` is therefore not enough: a peer that fills the counter between the two blocks the worker for
//! as long as it likes, and with it every other peer of that worker. (`event.rs` has a test in which a peer tries to
//! do just that.) There is no open file of one's own either: `/proc/self/fd` does not reopen eventfds, and a write to
//! one takes no `RWF_NOWAIT`.
//!
//! A thread of its own that writes, and is left alone when it does not come back, would have to be left alone for each link
//! that such a peer makes.
//!
//! But the kernel itself raises an eventfd when an asynchronous operation that asked for it ends (`IOCB_FLAG_RESFD`).
//! It never waits then: a full counter stays full, which is readable. A read from /dev/null ends at once. Where the system
//! refuses such operations no port is opened.
#![allow(unsafe_code)]

use std::ffi::{c_long, c_ulong};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::{Mutex, PoisonError};

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
    /// The context of this process. The first call is slow.
    ///
    /// All ports share one, because destroying a context takes the kernel milliseconds. A fork of the process cannot use
    /// it, and gets another one.
    ///
    /// # Errors
    /// The kernel has no asynchronous operations, or permits none.
    pub(super) fn of_process() -> io::Result<&'static Signals> {
        static SIGNALS: Mutex<Option<(u32, &'static Signals)>> = Mutex::new(None);
        let mut known = SIGNALS.lock().unwrap_or_else(PoisonError::into_inner);
        match *known {
            Some((process, signals)) if process == std::process::id() => Ok(signals),
            _ => {
                let signals = &*Box::leak(Box::new(Signals::new()?));
                *known = Some((std::process::id(), signals));
                Ok(signals)
            }
        }
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
    use std::process::Command;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;
    use crate::port::memif::{MemifConfig, MemifError, MemifPort, SocketName};

    #[test]
    fn each_raise_counts_as_one() {
        let signals = Signals::of_process().unwrap();
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
        let signals = Signals::of_process().unwrap();
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
        let signals = Signals::of_process().unwrap();
        let (pipe, _end) = std::io::pipe().unwrap();
        assert!(signals.raise(pipe.as_fd()).is_err());
    }
    /// Set in a process of its own, because what a process is refused stays refused.
    const IN_CHILD: &str = "WEFT_TEST_WITHOUT_IO_SETUP";

    /// As in a sandbox. Rather no port than one whose peers can stop it.
    #[test]
    fn where_io_setup_is_refused_no_port_is_opened_and_the_error_names_it() {
        if std::env::var_os(IN_CHILD).is_none() {
            let name = "port::memif::signal::tests::where_io_setup_is_refused_no_port_is_opened_and_the_error_names_it";
            let mut child = Command::new(std::env::current_exe().unwrap());
            let output = child.args(["--exact", name]).env(IN_CHILD, "1").output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && said.contains("1 passed"), "{said}");
            return;
        }
        refuse(libc::SYS_io_setup);
        let socket = SocketName::Abstract(format!("weft-memif-refused-{}", std::process::id()));
        for config in [MemifConfig::server(socket.clone()), MemifConfig::client(socket)] {
            let error = MemifPort::open(&config).unwrap_err();
            assert!(matches!(error, MemifError::Events { what: "io_setup", .. }), "{error:?}");
            let text = error.to_string();
            assert!(text.contains("io_setup") && text.contains("not permitted"), "{text}");
        }
    }

    /// Makes the kernel refuse a system call to this thread.
    fn refuse(call: c_long) {
        use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_JUMP, BPF_K, BPF_LD, BPF_RET, BPF_STMT, BPF_W};
        let refusal = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
        // SAFETY: these build numbers.
        let mut filter = unsafe {
            [
                // The number of the call is the first word of `seccomp_data`.
                BPF_STMT((BPF_LD | BPF_W | BPF_ABS) as u16, 0),
                BPF_JUMP((BPF_JMP | BPF_JEQ | BPF_K) as u16, call as u32, 0, 1),
                BPF_STMT((BPF_RET | BPF_K) as u16, refusal),
                BPF_STMT((BPF_RET | BPF_K) as u16, libc::SECCOMP_RET_ALLOW),
            ]
        };
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: the calls change what this thread may call, and read `program`, which outlives them.
        let results = unsafe {
            [
                libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
                libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, ptr::from_ref(&program)),
            ]
        };
        assert_eq!(results, [0, 0], "{}", io::Error::last_os_error());
    }
}
