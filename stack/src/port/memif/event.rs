//! Eventfds that are the peer's, too, who can make them block at any time: whether they do is a property of the open file,
//! not of a descriptor.
#![forbid(unsafe_code)]

use std::io::IoSliceMut;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ReadWriteFlags, preadv2, read, write};

/// What stands for the position of a file that has none.
const NOWHERE: u64 = u64::MAX;

/// Makes `event` readable, unless it has been raised as often as it can count: then it is.
pub(super) fn raise(event: &OwnedFd) {
    // The kernel knows no writing to an eventfd that never waits, so the peer must not have filled it.
    let mut full = [PollFd::new(event, PollFlags::OUT)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    if poll(&mut full, Some(&at_once)) == Ok(1) && full[0].revents().contains(PollFlags::OUT) {
        let _ = write(event, &1u64.to_ne_bytes());
    }
}

/// Makes `event` unreadable.
pub(super) fn clear(event: &OwnedFd) {
    let mut count = [0u8; 8];
    let got = preadv2(event, &mut [IoSliceMut::new(&mut count)], NOWHERE, ReadWriteFlags::NOWAIT);
    // Linux before 5.8.
    if matches!(got, Err(Errno::OPNOTSUPP | Errno::NOSYS)) {
        let _ = read(event, &mut count);
    }
}
