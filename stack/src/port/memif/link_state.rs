//! Where the attendant of a port and the port itself leave each other word.
#![forbid(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use super::link_layout::LinkLayout;

/// What the port and its attendant share.
///
/// The attendant never frees memory that the port has taken: a port that sees another [`LinkState::generation`] than
/// its own drops what it has, when it is not in the midst of it, and [takes](LinkState::take) what there is now.
#[derive(Debug)]
pub(super) struct LinkState {
    /// Odd: there is a link. Changes only under the lock of `next`.
    generation: AtomicU32,
    /// The link, until the port takes it.
    next: Mutex<Option<LinkLayout>>,
    /// Who is at the other end of the link, or was.
    peer: Mutex<String>,
    /// How many regions the link has, or had.
    regions: AtomicUsize,
    /// Why there is no link.
    why: Mutex<String>,
    /// Wakes the worker.
    bell: OwnedFd,
    /// Wakes the control_thread.
    call: OwnedFd,
    /// The link that the port does not want any more, and why.
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

    /// Counts links made and lost: odd while there is one. To be compared each turn.
    #[inline]
    pub(super) fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// The generation, and its link if there is one that has not been taken.
    pub(super) fn take(&self) -> (u32, Option<LinkLayout>) {
        let mut next = lock(&self.next);
        (self.generation(), next.take())
    }

    /// Readable after a change of the generation or [`LinkState::wake`], until [`LinkState::hush`].
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Makes the bell unreadable. To be called before the generation is looked at.
    pub(super) fn hush(&self) {
        drain(&self.bell);
    }

    /// Makes the bell readable.
    pub(super) fn wake(&self) {
        ring(&self.bell);
    }

    /// How many regions the link has that there is, or was last.
    pub(super) fn regions(&self) -> usize {
        self.regions.load(Ordering::Relaxed)
    }

    /// What the peer calls itself, if there is one.
    pub(super) fn peer(&self) -> Option<String> {
        let _still = lock(&self.next);
        is_up(self.generation()).then(|| lock(&self.peer).clone())
    }

    /// Why there is no link, or was none before this one.
    pub(super) fn why(&self) -> String {
        lock(&self.why).clone()
    }

    /// Has the attendant end the link of `generation`, and tell the peer why. A link of another generation stays.
    pub(super) fn give_up(&self, generation: u32, reason: &str) {
        *lock(&self.refused) = Some((generation, reason.to_owned()));
        ring(&self.call);
    }

    /// Has the attendant end.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        ring(&self.call);
    }

    /// There is a link.
    pub(super) fn raise(&self, link: LinkLayout) {
        self.change(Some(link));
    }

    /// There is none any more, or there is still none.
    pub(super) fn lower(&self, why: String) {
        self.explain(why);
        self.change(None);
    }

    /// Why there is still no link.
    pub(super) fn explain(&self, why: String) {
        *lock(&self.why) = why;
    }

    fn change(&self, link: Option<LinkLayout>) {
        let mut next = lock(&self.next);
        let generation = self.generation.load(Ordering::Relaxed);
        if link.is_some() == is_up(generation) {
            return;
        }
        if let Some(link) = &link {
            lock(&self.peer).clone_from(&link.peer);
            self.regions.store(link.regions.len(), Ordering::Relaxed);
        }
        // What nobody has taken, nobody uses.
        *next = link;
        self.generation.store(generation.wrapping_add(1), Ordering::Release);
        ring(&self.bell);
    }

    /// Readable when there is something for the control_thread.
    pub(super) fn call(&self) -> BorrowedFd<'_> {
        self.call.as_fd()
    }

    /// Makes the call unreadable. To be called before what it was about is looked at.
    pub(super) fn answer(&self) {
        drain(&self.call);
    }

    /// Whether the port is closed.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Why the port does not want the link that there is.
    pub(super) fn refusal(&self) -> Option<String> {
        let (generation, reason) = lock(&self.refused).take()?;
        (generation == self.generation() && is_up(generation)).then_some(reason)
    }
}

/// Whether there is a link.
pub(super) fn is_up(generation: u32) -> bool {
    !generation.is_multiple_of(2)
}

/// What stands behind these locks is whole at any time.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn ring(bell: &OwnedFd) {
    // It can only fail when it has been rung 2⁶⁴ times: it is readable then.
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
    fn each_change_rings_and_what_is_no_change_does_not() {
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
