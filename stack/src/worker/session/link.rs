//! The socket between an application and its worker: it wakes who sleeps, and tells when the other is gone.
//!
//! A byte on it means nothing but "look at your ring". It is sent and received without waiting, by a flag
//! of each call: a mode of the descriptor could be changed by whoever shares it, and then a worker would
//! wait for an application. If it does not fit, enough bytes wait already.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

/// One end.
#[derive(Debug)]
pub(super) struct Link(UnixStream);

impl Link {
    /// Two ends in this process.
    pub(super) fn pair() -> io::Result<(Link, Link)> {
        let (left, right) = UnixStream::pair()?;
        Ok((Link(left), Link(right)))
    }

    /// The end that `stream` is.
    pub(super) fn of(stream: UnixStream) -> Link {
        Link(stream)
    }

    /// Wakes the other end.
    pub(super) fn ring(&self) {
        // Full: it has not read what it was sent. Closed: `is_closed` will tell.
        let _ = send(&self.0, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Takes bytes that have come. Returns whether the other end is gone, even if bytes are left that it sent
    /// before: who waits for edges is told only once.
    pub(super) fn is_closed(&self) -> bool {
        let mut bytes = [0u8; 64];
        loop {
            match recv(&self.0, &mut bytes, RecvFlags::DONTWAIT).map(|(_, count)| count) {
                Ok(0) => return true,
                // Not until there are no more: who sends all the time would keep us here.
                Ok(_) => return self.has_hung_up(),
                Err(Errno::AGAIN) => return false,
                Err(Errno::INTR) => {}
                Err(_) => return true,
            }
        }
    }

    fn has_hung_up(&self) -> bool {
        let mut ends = [PollFd::new(&self.0, PollFlags::RDHUP)];
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        while let Err(error) = poll(&mut ends, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            if error != Errno::INTR {
                return true;
            }
        }
        ends[0].revents().intersects(gone)
    }

    /// Sleeps until the other end rings or is gone, or `limit` has passed.
    pub(super) fn wait(&self, limit: Duration) -> io::Result<()> {
        let limit = Timespec::try_from(limit).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
        match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&limit)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_that_is_gone_is_seen_behind_the_bytes_that_it_has_sent() {
        for rings in [0, 1, 64, 1000] {
            let (here, there) = Link::pair().unwrap();
            (0..rings).for_each(|_| there.ring());
            assert!(!here.is_closed(), "after {rings} rings");
            (0..rings).for_each(|_| there.ring());
            drop(there);
            // Once: of an end that is gone, a watch for edges tells once.
            assert!(here.is_closed(), "after {rings} more");
        }
    }

    #[test]
    fn an_end_that_rings_all_the_time_keeps_nobody() {
        let (here, there) = Link::pair().unwrap();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    there.ring();
                }
            });
            let closed = (0..1000).any(|_| here.is_closed());
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(!closed);
        });
    }
}
