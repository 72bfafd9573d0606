//! One descriptor that becomes readable when a worker should turn: a frame is there, or its next timer is due.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use weft_stack::cc::Span;

use super::Error;

/// An epoll descriptor over a timer and the port's descriptor.
#[derive(Debug)]
pub(super) struct Readiness {
    all: OwnedFd,
    timer: OwnedFd,
}

impl Readiness {
    /// The longest time between two turns of a worker that nothing happens to.
    pub(super) const LONGEST: Span = Span::from_ms(100);

    pub(super) fn new() -> io::Result<Readiness> {
        let all = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        add(&all, timer.as_fd())?;
        Ok(Readiness { all, timer })
    }

    /// Makes the descriptor readable when `port` is, or `span` has passed.
    pub(super) fn wait_for(&mut self, port: Option<BorrowedFd<'_>>, span: Span) -> Result<(), Error> {
        if let Some(port) = port {
            // Each time: the port may have another descriptor than before, under the same number.
            add(&self.all, port)?;
        }
        // 0 would stop the timer.
        let ns = (span.as_ps() / 1000).max(1) as i64;
        let at = Timespec { tv_sec: ns / 1_000_000_000, tv_nsec: ns % 1_000_000_000 };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: at };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)?;
        Ok(())
    }
}

fn add(all: &OwnedFd, descriptor: BorrowedFd<'_>) -> Result<(), Errno> {
    let data = epoll::EventData::new_u64(descriptor.as_raw_fd() as u64);
    match epoll::add(all, descriptor, data, epoll::EventFlags::IN) {
        Err(Errno::EXIST) | Ok(()) => Ok(()),
        Err(error) => Err(error),
    }
}

impl AsFd for Readiness {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.all.as_fd()
    }
}
