//! Eventfds that are shared with a peer, which can make them block at any time: see [`super::signal`].
#![forbid(unsafe_code)]

use std::io::IoSliceMut;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use super::config::MemifError;
use super::signal::Signals;

/// The offset that `preadv2` takes for a file without a position.
const NOWHERE: u64 = u64::MAX;

/// Makes `event` readable. Does nothing if its counter is full: it is readable then.
pub(super) fn raise(signals: &Signals, event: &OwnedFd) {
    // It is an eventfd: see the handshake.
    let _ = signals.raise(event.as_fd());
}

/// Makes `event` unreadable.
pub(super) fn clear(event: &OwnedFd) {
    // It is unreadable already, or can be read without waiting.
    let _ = read_at_once(event);
}

fn read_at_once(event: &OwnedFd) -> Result<usize, Errno> {
    let mut count = [0u8; 8];
    preadv2(event, &mut [IoSliceMut::new(&mut count)], NOWHERE, ReadWriteFlags::NOWAIT)
}

/// The means of this process to raise events, after a check that it can read them without waiting, too.
///
/// # Errors
/// The system refuses one of them: a peer could stop this process then.
pub(super) fn means() -> Result<&'static Signals, MemifError> {
    let refused = |what, error| MemifError::Events { what, error };
    let event = eventfd(0, EventfdFlags::CLOEXEC).map_err(|error| refused("eventfd", error.into()))?;
    match read_at_once(&event) {
        Ok(_) | Err(Errno::AGAIN) => {}
        Err(error) => return Err(refused("preadv2 of an eventfd with RWF_NOWAIT", error.into())),
    }
    Signals::of_process().map_err(|error| refused("io_setup", error))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use rustix::io::write;

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
        let signals = means().unwrap();
        let event = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        let (begun, raised) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (done, is_done) = channel();
        {
            let (event, begun, raised) = (event.clone(), begun.clone(), raised.clone());
            std::thread::spawn(move || {
                for round in 1..=ROUNDS {
                    wait_for(&begun, round);
                    (0..round % 64).for_each(|_| std::hint::spin_loop());
                    raise(signals, &event);
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
                raise(signals, &event);
                wait_for(&raised, round);
            }
            done.send(()).unwrap();
        });
        is_done.recv_timeout(Duration::from_secs(60)).expect("the peer keeps it waiting");
    }
}
