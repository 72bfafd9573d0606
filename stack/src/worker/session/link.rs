//! The socket between an application and its worker: each end wakes the other through it, and sees when the other is
//! gone.
//!
//! A byte on it means nothing but "look at your ring". It is sent and received without waiting, by a flag
//! of each call: the other process shares the descriptor's mode and could change it, and then a worker would
//! wait for an application. If a byte does not fit, enough bytes wait already.
//!
//! An application in the worker's own process uses the worker's [`Waker`] instead of a byte.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::worker::Waker;

/// One end of the socket between a server and an application.
#[derive(Debug)]
pub(super) struct Link {
    /// Shared with the thread that watches it, where there is one.
    socket: Arc<UnixStream>,
    /// Wakes the other end in place of a byte.
    waker: Option<Waker>,
}

impl Link {
    /// Two ends in this process.
    pub(super) fn pair() -> io::Result<(Link, Link)> {
        let (left, right) = UnixStream::pair()?;
        Ok((Link::of(left), Link::of(right)))
    }

    /// The end that `stream` is.
    pub(super) fn of(stream: UnixStream) -> Link {
        Link::shared(Arc::new(stream))
    }

    /// The end that `socket` is, which another thread watches.
    pub(super) fn shared(socket: Arc<UnixStream>) -> Link {
        Link { socket, waker: None }
    }

    /// Whether this is the end that `socket` is.
    pub(super) fn is(&self, socket: &Arc<UnixStream>) -> bool {
        Arc::ptr_eq(&self.socket, socket)
    }

    /// The same end, if the other one sleeps until `waker` is used.
    pub(super) fn waking(mut self, waker: Option<Waker>) -> Link {
        self.waker = waker;
        self
    }

    /// Wakes the other end.
    pub(super) fn ring(&self) {
        if let Some(waker) = &self.waker {
            return waker.wake();
        }
        // If the socket is full, the other end has bytes to read; if it is closed, `is_closed` will say so.
        let _ = send(&self.socket, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Takes bytes that have come.
    pub(super) fn look(&self) -> Seen {
        look(&self.socket)
    }

    /// Whether the other end is gone. Takes bytes that have come.
    pub(super) fn is_closed(&self) -> bool {
        self.look().is_gone
    }

    /// Sleeps until the other end rings or is gone, or `limit` has passed.
    pub(super) fn wait(&self, limit: Duration) -> io::Result<()> {
        let limit = Timespec::try_from(limit).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
        match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&limit)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// What is seen of the other end of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// Bytes have come, and have been taken.
    pub(super) rang: bool,
    /// It is gone, even if bytes are left that it sent before: an edge-triggered watch reports that only once.
    pub(super) is_gone: bool,
}

/// Takes bytes that have come.
pub(super) fn look(socket: &UnixStream) -> Seen {
    let mut bytes = [0u8; 64];
    loop {
        match recv(socket, &mut bytes, RecvFlags::DONTWAIT).map(|(_, count)| count) {
            Ok(0) => return Seen { rang: false, is_gone: true },
            // Not until there are no more: an end that sends all the time would keep us here.
            Ok(_) => return Seen { rang: true, is_gone: has_hung_up(socket) },
            Err(Errno::AGAIN) => return Seen { rang: false, is_gone: false },
            Err(Errno::INTR) => {}
            Err(_) => return Seen { rang: false, is_gone: true },
        }
    }
}

fn has_hung_up(socket: &UnixStream) -> bool {
    let mut ends = [PollFd::new(socket, PollFlags::RDHUP)];
    let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    while let Err(error) = poll(&mut ends, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
        if error != Errno::INTR {
            return true;
        }
    }
    ends[0].revents().intersects(gone)
}

impl Drop for Link {
    /// The other end, if it sleeps, should see at once that this one is gone.
    fn drop(&mut self) {
        if let Some(waker) = &self.waker {
            waker.wake();
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_end_is_noticed_even_behind_unread_bytes() {
        for rings in [0, 1, 64, 1000] {
            let (here, there) = Link::pair().unwrap();
            (0..rings).for_each(|_| there.ring());
            assert!(!here.is_closed(), "after {rings} rings");
            (0..rings).for_each(|_| there.ring());
            drop(there);
            // At the first look: an edge-triggered watch reports a closed end only once.
            assert!(here.is_closed(), "after {rings} more");
        }
    }

    #[test]
    fn an_end_that_sends_all_the_time_does_not_keep_the_other_busy() {
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
