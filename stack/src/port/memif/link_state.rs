//! The state of a link, shared between a port and its control thread.
#![forbid(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use super::link_layout::LinkLayout;

/// The state that a port and its control thread share.
///
/// The control thread never frees memory that the port has taken: a port that sees another [`LinkState::generation`]
/// than its own drops its link, between two bursts, and [takes](LinkState::take) the new one.
#[derive(Debug)]
pub(super) struct LinkState {
    /// Odd while there is a link. Changes only under the lock of `next`.
    generation: AtomicU32,
    /// The link, until the port takes it.
    next: Mutex<Option<LinkLayout>>,
    /// The name of the peer of this link, or of the last one.
    peer: Mutex<String>,
    /// The number of regions of this link, or of the last one.
    regions: AtomicUsize,
    /// Why there is no link.
    why: Mutex<String>,
    /// Wakes the worker.
    bell: OwnedFd,
    /// Wakes the control thread.
    call: OwnedFd,
    /// The generation of the link that the port has given up, and why.
    refused: Mutex<Option<(u32, String)>>,
    /// The port is closed.
    closed: AtomicBool,
}

impl LinkState {
    pub(super) fn new() -> io::Result<LinkState> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(LinkState {
            generation: AtomicU32::new(0),
            next: Mutex::new(None),
            peer: Mutex::new(String::new()),
            regions: AtomicUsize::new(0),
            why: Mutex::new("nobody has come yet".to_owned()),
            bell: eventfd(0, flags)?,
            call: eventfd(0, flags)?,
            refused: Mutex::new(None),
            closed: AtomicBool::new(false),
        })
    }

    /// The number of links made and lost: odd while there is one. The port compares it each turn.
    #[inline]
    pub(super) fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// The generation, and its link unless there is none or it has been taken already.
    pub(super) fn take(&self) -> (u32, Option<LinkLayout>) {
        let mut next = lock(&self.next);
        (self.generation(), next.take())
    }

    /// Readable after a change of the generation or [`LinkState::wake`], until [`LinkState::hush`].
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Makes the bell unreadable. To be called before the generation is read.
    pub(super) fn hush(&self) {
        drain(&self.bell);
    }

    /// Makes the bell readable.
    pub(super) fn wake(&self) {
        ring(&self.bell);
    }

    /// The number of regions of this link, or of the last one.
    pub(super) fn regions(&self) -> usize {
        self.regions.load(Ordering::Relaxed)
    }

    /// The name that the peer has told, if there is a peer.
    pub(super) fn peer(&self) -> Option<String> {
        let _still = lock(&self.next);
        is_up(self.generation()).then(|| lock(&self.peer).clone())
    }

    /// Why there is no link, or was none before the present one.
    pub(super) fn why(&self) -> String {
        lock(&self.why).clone()
    }

    /// Makes the control thread end the link of `generation` and tell the peer why. A link of another generation stays.
    pub(super) fn give_up(&self, generation: u32, reason: &str) {
        *lock(&self.refused) = Some((generation, reason.to_owned()));
        ring(&self.call);
    }

    /// Makes the control thread end.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        ring(&self.call);
    }

    /// Announces a new link.
    pub(super) fn raise(&self, link: LinkLayout) {
        self.change(Some(link));
    }

    /// Announces that there is no link any more; only takes the reason if there was none.
    pub(super) fn lower(&self, why: String) {
        tracing::info!(why, "memif link down");
        *lock(&self.why) = why;
        self.change(None);
    }

    /// Sets the reason why there is still no link.
    pub(super) fn explain(&self, why: String) {
        let mut known = lock(&self.why);
        // A client that connects again and again for the same reason says so once.
        if *known != why {
            tracing::info!(why, "no memif link");
        }
        *known = why;
    }

    fn change(&self, link: Option<LinkLayout>) {
        let mut next = lock(&self.next);
        let generation = self.generation.load(Ordering::Relaxed);
        if link.is_some() == is_up(generation) {
            return;
        }
        if let Some(link) = &link {
            tracing::info!(peer = link.peer, regions = link.regions.len(), "memif link up");
            lock(&self.peer).clone_from(&link.peer);
            self.regions.store(link.regions.len(), Ordering::Relaxed);
        }
        // This drops a link that the port has not taken, so no port uses it.
        *next = link;
        self.generation.store(generation.wrapping_add(1), Ordering::Release);
        ring(&self.bell);
    }

    /// Readable when the port has something for the control thread.
    pub(super) fn call(&self) -> BorrowedFd<'_> {
        self.call.as_fd()
    }

    /// Makes the call unreadable. To be called before the port's requests are read.
    pub(super) fn answer(&self) {
        drain(&self.call);
    }

    /// Whether the port is closed.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Why the port has given up the present link, if it has.
    pub(super) fn refusal(&self) -> Option<String> {
        let (generation, reason) = lock(&self.refused).take()?;
        (generation == self.generation() && is_up(generation)).then_some(reason)
    }
}

/// Whether there is a link in this generation.
pub(super) fn is_up(generation: u32) -> bool {
    !generation.is_multiple_of(2)
}

/// A panic of another thread does no harm: the values behind these locks are replaced as a whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn ring(bell: &OwnedFd) {
    // It fails only when the counter is full, after 2⁶⁴ rings: the bell is readable then.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

fn drain(bell: &OwnedFd) {
    let _ = rustix::io::read(bell, &mut [0u8; 8]);
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::super::config::Role;
    use super::super::link_layout::RingPlace;
    use super::super::ring::ring_bytes;
    use super::*;
    use crate::region::Region;

    fn link() -> LinkLayout {
        let ring = |offset| {
            let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
            RingPlace { region: 0, offset, log2_size: 1, event }
        };
        let regions = vec![Region::allocate(2 * ring_bytes(1)).unwrap()];
        let (to_server, to_client) = (ring(0), ring(ring_bytes(1) as u32));
        LinkLayout { role: Role::Client, regions, to_server, to_client, peer: "far".to_owned() }
    }

    fn rings(link_state: &LinkState) -> bool {
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&link_state.bell(), PollFlags::IN)], Some(&none)).unwrap() == 1
    }

    #[test]
    fn each_change_rings_and_repeated_states_do_not() {
        let link_state = LinkState::new().unwrap();
        assert!(!rings(&link_state) && link_state.take().0 == 0);
        link_state.lower("still none".to_owned());
        assert!(!rings(&link_state) && link_state.generation() == 0 && link_state.why() == "still none");
        link_state.raise(link());
        assert!(rings(&link_state));
        link_state.hush();
        assert!(
            !rings(&link_state)
                && link_state.generation() == 1
                && link_state.peer().as_deref() == Some("far")
        );
        link_state.lower("lost".to_owned());
        assert!(rings(&link_state) && link_state.generation() == 2 && link_state.why() == "lost");
        assert_eq!(link_state.peer(), None);
    }

    #[test]
    fn a_link_is_taken_once_and_as_the_generation_that_it_is_of() {
        let link_state = LinkState::new().unwrap();
        link_state.raise(link());
        link_state.lower("lost".to_owned());
        assert!(matches!(link_state.take(), (2, None)));
        link_state.raise(link());
        assert!(matches!(link_state.take(), (3, Some(_))));
        assert!(matches!(link_state.take(), (3, None)));
    }

    #[test]
    fn only_the_link_that_there_is_can_be_given_up() {
        let link_state = LinkState::new().unwrap();
        link_state.give_up(0, "there is none");
        assert_eq!(link_state.refusal(), None);
        link_state.raise(link());
        link_state.give_up(1, "nonsense");
        assert_eq!(link_state.refusal().as_deref(), Some("nonsense"));
        assert_eq!(link_state.refusal(), None, "once");
        link_state.lower("lost".to_owned());
        link_state.raise(link());
        link_state.give_up(1, "late");
        assert_eq!(link_state.refusal(), None);
    }
}
