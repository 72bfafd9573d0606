//! Eventfds that are shared with a peer, which can make them block at any time: see [`super::signal`].
#![forbid(unsafe_code)]

use std::io::IoSliceMut;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ReadWriteFlags, preadv2, read, write};

use super::signal::Signals;

/// The offset that `preadv2` takes for a file without a position.
const NOWHERE: u64 = u64::MAX;

/// Makes `event` readable. Does nothing if its counter is full: it is readable then.
pub(super) fn raise(event: &OwnedFd) {
    if Signals::of_process().is_some_and(|signals| signals.raise(event.as_fd()).is_ok()) {
        return;
    }
    // Without asynchronous operations there is no other way: a peer that fills it in between blocks this thread.
    if is_ready(event, PollFlags::OUT) {
        let _ = write(event, &1u64.to_ne_bytes());
    }
}

/// Makes `event` unreadable.
pub(super) fn clear(event: &OwnedFd) {
    let mut count = [0u8; 8];
    let got = preadv2(event, &mut [IoSliceMut::new(&mut count)], NOWHERE, ReadWriteFlags::NOWAIT);
    // Linux before 5.8 takes no NOWAIT for eventfds.
    if matches!(got, Err(Errno::OPNOTSUPP | Errno::NOSYS)) && is_ready(event, PollFlags::IN) {
        let _ = read(event, &mut count);
    }
}

fn is_ready(event: &OwnedFd, what: PollFlags) -> bool {
    let mut asked = [PollFd::new(event, what)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut asked, Some(&at_once)) == Ok(1) && asked[0].revents().contains(what)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    const ROUNDS: u64 = 3000;

    fn wait_for(what: &AtomicU64, value: u64) {
        let mut looks = 0u32;
        while what.load(Ordering::Acquire) != value {
            looks += 1;
            if looks < 10_000 { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
    }

    /// The peer clears the event and fills it while it is being raised; over the rounds, between any two steps of that.
    #[test]
    fn a_peer_that_fills_an_event_does_not_block_the_port() {
        if Signals::of_process().is_none() {
            return crate::skipped::skipped("no asynchronous operations here");
        }
        let event = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        let (begun, raised) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (done, is_done) = channel();
        {
            let (event, begun, raised) = (event.clone(), begun.clone(), raised.clone());
            std::thread::spawn(move || {
                for round in 1..=ROUNDS {
                    wait_for(&begun, round);
                    (0..round % 64).for_each(|_| std::hint::spin_loop());
                    raise(&event);
                    raised.store(round, Ordering::Release);
                }
            });
        }
        std::thread::spawn(move || {
            for round in 1..=ROUNDS {
                clear(&event);
                begun.store(round, Ordering::Release);
                // One less than what it holds, whether or not it has been raised by now, and then the last.
                write(&event, &(u64::MAX - 2).to_ne_bytes()).unwrap();
                raise(&event);
                wait_for(&raised, round);
            }
            done.send(()).unwrap();
        });
        is_done.recv_timeout(Duration::from_secs(60)).expect("the peer keeps it waiting");
    }
}
