//! The queue between the listener's thread and the worker: requests of applications, and sockets that are closed.
//!
//! Processes take turns: one that asks over and over has others wait for one of its requests, not for all of them. Each request
//! has a round, one later than that of the last one of its process that waits, and they are heard in the order of their rounds.

use std::collections::VecDeque;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use super::join::Asked;
use super::join_queue::Tenant;
use super::sealing::Sealing;

/// What the worker has to do.
#[derive(Debug)]
pub(super) enum News {
    /// An application wants to join, or to know something.
    Request(Request),
    /// The application at the other end of this socket is gone.
    Closed(Arc<UnixStream>),
}

/// What an application asks for.
#[derive(Debug)]
pub(super) struct Request {
    /// Its socket, which is watched.
    pub(super) socket: Arc<UnixStream>,
    pub(super) asked: Asked,
    pub(super) tenant: Tenant,
    /// Whether the memory that it may get is sealed.
    pub(super) sealing: Arc<Sealing>,
}

/// What the worker has not heard yet.
#[derive(Debug, Default)]
pub(super) struct Unheard {
    all: Mutex<All>,
    /// Whether there is anything. It changes while `all` is locked.
    any: AtomicBool,
}

#[derive(Debug, Default)]
struct All {
    closed: VecDeque<Arc<UnixStream>>,
    /// With their rounds, in the order of these.
    requests: VecDeque<(u64, Request)>,
    /// That of the request which was heard last.
    round: u64,
}

impl Unheard {
    fn all(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An application asks for something.
    pub(super) fn ask(&self, request: Request) {
        let mut all = self.all();
        let last = all.requests.iter().rfind(|(_, other)| other.tenant == request.tenant);
        // Not in the round that is being heard: whoever asks again and again would pass all that wait for the next one.
        let round = last.map_or(all.round, |(round, _)| *round) + 1;
        let at = all.requests.partition_point(|(other, _)| *other <= round);
        all.requests.insert(at, (round, request));
        self.any.store(true, Ordering::Release);
    }

    /// The application at the other end of `socket` is gone. If it has asked for something, that need not be heard any more.
    pub(super) fn close(&self, socket: Arc<UnixStream>) {
        let mut all = self.all();
        let before = all.requests.len();
        all.requests.retain(|(_, request)| !Arc::ptr_eq(&request.socket, &socket));
        if all.requests.len() == before {
            all.closed.push_back(socket);
        }
        self.any.store(!all.is_empty(), Ordering::Release);
    }

    /// How many requests there are, and how many of them are those of `tenant`.
    pub(super) fn count(&self, tenant: Tenant) -> (usize, usize) {
        let all = self.all();
        let own = all.requests.iter().filter(|(_, request)| request.tenant == tenant);
        (all.requests.len(), own.count())
    }

    /// Whether there is anything.
    #[inline]
    pub(super) fn is_any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// The next news. It waits for nobody: while the other thread has the lock there is none. [`Unheard::is_any`] stays true then, so
    /// that the worker looks again and does not sleep.
    pub(super) fn next(&self) -> Option<News> {
        if !self.is_any() {
            return None;
        }
        let mut all = match self.all.try_lock() {
            Ok(all) => all,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let next = match all.closed.pop_front() {
            Some(socket) => Some(News::Closed(socket)),
            None => all.requests.pop_front().map(|(round, request)| {
                all.round = round;
                News::Request(request)
            }),
        };
        self.any.store(!all.is_empty(), Ordering::Release);
        next
    }
}

impl All {
    fn is_empty(&self) -> bool {
        self.closed.is_empty() && self.requests.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(tenant: u32) -> (Request, Arc<UnixStream>) {
        let (socket, _) = UnixStream::pair().unwrap();
        let (socket, tenant) = (Arc::new(socket), Some(tenant));
        let request =
            Request { socket: socket.clone(), asked: Asked::Facts, tenant, sealing: Arc::default() };
        (request, socket)
    }

    /// The processes that are heard, until there is nothing more.
    fn heard(unheard: &Unheard) -> Vec<u32> {
        std::iter::from_fn(|| unheard.next())
            .map(|news| match news {
                News::Request(request) => request.tenant.unwrap(),
                News::Closed(_) => 0,
            })
            .collect()
    }

    #[test]
    fn processes_take_turns() {
        let unheard = Unheard::default();
        (0..5).for_each(|_| unheard.ask(request(1).0));
        (0..2).for_each(|_| unheard.ask(request(2).0));
        unheard.ask(request(3).0);
        assert_eq!((unheard.count(Some(1)), unheard.count(Some(4))), ((8, 5), (8, 0)));
        let first: Vec<_> = (0..4).filter_map(|_| unheard.next()).collect();
        assert_eq!(first.len(), 4);
        // One that comes while others wait is heard behind two of each of them at most.
        unheard.ask(request(4).0);
        assert_eq!(heard(&unheard), [2, 1, 4, 1, 1]);
        assert!(!unheard.is_any());
    }

    #[test]
    fn one_that_asks_again_whenever_it_was_heard_passes_nobody_for_ever() {
        let unheard = Unheard::default();
        (0..3).for_each(|_| unheard.ask(request(2).0));
        unheard.ask(request(1).0);
        let mut order = Vec::new();
        while unheard.count(Some(2)).1 > 0 {
            assert!(order.len() < 20, "{order:?}");
            if let Some(News::Request(next)) = unheard.next() {
                order.extend(next.tenant);
                if next.tenant == Some(1) {
                    unheard.ask(request(1).0);
                }
            }
        }
    }

    #[test]
    fn a_request_whose_socket_is_closed_is_not_heard() {
        let unheard = Unheard::default();
        let (gone, socket) = request(1);
        unheard.ask(gone);
        unheard.ask(request(2).0);
        unheard.close(socket);
        assert_eq!(heard(&unheard), [2]);
        let (heard_already, socket) = request(1);
        unheard.ask(heard_already);
        assert_eq!(heard(&unheard), [1]);
        unheard.close(socket);
        unheard.ask(request(3).0);
        assert_eq!(heard(&unheard), [0, 3], "the worker may have a session for it");
        let (alone, socket) = request(1);
        unheard.ask(alone);
        unheard.close(socket);
        assert!(!unheard.is_any());
    }
}
