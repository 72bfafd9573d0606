//! A thread that accepts the applications that want to join, and watches their sockets, in the worker's stead: the worker makes
//! no system call for an application until that has sent a whole request, and none for what it writes afterwards.
//!
//! Few applications may be joining at once. One that is silent makes room for the next one after [`GRACE`], so that silent ones
//! keep nobody out. A process may have two, and else as many as it leaves to others: the rest of what it has in the system's queue is
//! refused at once, so that others do not wait behind all of it.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use weft_cc::Span;

use super::config::OpenError;
use super::join::{Asked, Facts, REQUEST, may_join, read_request, refuse};
use super::join_queue::{Tenant, check_part};
use super::link::look;
use super::sealing::Sealing;
use super::unheard::{News, Request, Unheard};
use crate::worker::Waker;
use crate::worker::credentials::Credentials;

/// How long an application may take to send its request.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long it has at least, when others wait to be accepted.
pub const GRACE: Duration = Duration::from_millis(25);
/// How many applications may be joining at once.
pub const JOINING: usize = 64;
/// When those that could not be accepted are looked at again.
const RETRY: Duration = Duration::from_millis(1);
/// Requests of which the worker may not have heard yet. While there are so many, nobody is accepted.
const UNHEARD: usize = 64;

/// The worker's end of the thread.
#[derive(Debug)]
pub(super) struct Acceptor {
    facts: Arc<OnceLock<Facts>>,
    unheard: Arc<Unheard>,
    _thread: AcceptorThread,
}

impl Acceptor {
    /// Accepts applications at `listener`, and uses `waker` when there is news, or an application rings.
    pub(super) fn start(listener: UnixListener, waker: Waker) -> io::Result<Acceptor> {
        let state = AcceptorLoop::new(listener, waker)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC)?;
        epoll::add(&state.sockets, &stop, EventData::new_u64(STOP), EventFlags::IN)?;
        let (unheard, facts) = (state.unheard.clone(), state.facts.clone());
        let thread = thread::Builder::new().name("weft-listener".to_owned()).spawn(move || state.run())?;
        Ok(Acceptor { facts, unheard, _thread: AcceptorThread { stop, thread: Some(thread) } })
    }

    /// From now on the thread itself answers applications that ask for facts.
    pub(super) fn inform(&self, facts: Facts) {
        let _ = self.facts.set(facts);
    }

    /// The next news. Makes no system call.
    pub(super) fn next(&self) -> Option<News> {
        self.unheard.next()
    }

    /// Whether there is some.
    pub(super) fn has_news(&self) -> bool {
        self.unheard.is_any()
    }

    /// How many requests of `tenant` the worker has not heard.
    #[cfg(test)]
    pub(super) fn unheard_of(&self, tenant: Tenant) -> usize {
        self.unheard.count(tenant).1
    }
}

#[derive(Debug)]
struct AcceptorThread {
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Drop for AcceptorThread {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The stop's key among the sockets, and the listener's. Those of applications follow.
const STOP: u64 = 0;
const LISTENER: u64 = 1;

/// How many applications were refused, by cause: any of these can occur again and again.
#[derive(Debug, Default)]
struct RefusedJoins {
    /// Joins by processes of other users.
    strangers: u64,
    /// Those whose request is missing or makes no sense.
    requests: u64,
    /// Those for which the system has no descriptor.
    system: u64,
    /// Those whose process leaves too few places to others.
    many: u64,
}

/// An application that has connected and not sent its request yet.
#[derive(Debug)]
struct Joining {
    stream: UnixStream,
    tenant: Tenant,
    since: Instant,
}

/// What the thread has.
struct AcceptorLoop {
    listener: UnixListener,
    sockets: OwnedFd,
    /// Given up for a moment to accept, and refuse, an application when there is no other descriptor.
    spare: Option<OwnedFd>,
    /// Applications that are joining, the one that came first at the front.
    joining: BTreeMap<u64, Joining>,
    /// Sockets of those that have sent their request. The worker closes them.
    links: HashMap<u64, (Weak<UnixStream>, Arc<Sealing>)>,
    last_key: u64,
    /// Nobody waits in the system's queue.
    queue_is_empty: bool,
    /// As many were accepted as are in one turn, so that there may be more.
    has_more: bool,
    refused: RefusedJoins,
    unheard: Arc<Unheard>,
    /// What the worker has said, which it does once it is asked.
    facts: Arc<OnceLock<Facts>>,
    waker: Waker,
}

/// The worker is gone, or the system's answer makes no sense.
struct Stopped;

impl AcceptorLoop {
    fn new(listener: UnixListener, waker: Waker) -> io::Result<AcceptorLoop> {
        let sockets = epoll::create(CreateFlags::CLOEXEC)?;
        listener.set_nonblocking(true)?;
        watch(&sockets, &listener, LISTENER)?;
        let spare = Some(listener.as_fd().try_clone_to_owned()?);
        Ok(AcceptorLoop {
            listener,
            sockets,
            spare,
            joining: BTreeMap::new(),
            links: HashMap::new(),
            last_key: LISTENER,
            queue_is_empty: false,
            has_more: false,
            refused: RefusedJoins::default(),
            unheard: Arc::default(),
            facts: Arc::default(),
            waker,
        })
    }

    fn run(mut self) {
        let mut events = Vec::with_capacity(16);
        while self.turn(&mut events).is_ok() {}
    }

    fn turn(&mut self, events: &mut Vec<epoll::Event>) -> Result<(), Stopped> {
        let limit = self.limit().and_then(|limit| Timespec::try_from(limit).ok());
        match epoll::wait(&self.sockets, rustix::buffer::spare_capacity(events), limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return Err(Stopped),
        }
        for event in events.drain(..) {
            match event.data.u64() {
                STOP => return Err(Stopped),
                LISTENER => self.queue_is_empty = false,
                key => {
                    self.read(key);
                    // It may be gone already, which is reported once.
                    self.look_at_link(key);
                }
            }
        }
        self.accept();
        self.dismiss_silent(PATIENCE);
        Ok(())
    }

    /// How long to sleep if nothing happens.
    fn limit(&self) -> Option<Duration> {
        if self.has_more {
            return Some(Duration::ZERO);
        }
        if !self.queue_is_empty {
            return Some(RETRY);
        }
        let (_, first) = self.joining.first_key_value()?;
        // The system counts in whole milliseconds where it must.
        Some(PATIENCE.saturating_sub(first.since.elapsed()).max(RETRY))
    }

    /// Accepts applications as long as there is room: the rest waits in the system's queue.
    fn accept(&mut self) {
        self.has_more = false;
        // So many and no more, so that those that have joined are looked at as well.
        for _ in 0..JOINING {
            if self.queue_is_empty || !self.has_room() {
                return;
            }
            match self.listener.accept() {
                Ok((stream, _)) => self.welcome(stream),
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.queue_is_empty = true,
                // The system says so even if nobody waits.
                Err(error) if is_out_of_descriptors(&error) => {
                    let waits = somebody_waits(&self.listener);
                    if !waits || !self.refuse_with_spare(error) {
                        self.queue_is_empty = !waits;
                        return;
                    }
                }
                // It has gone, or the system has no memory for it.
                Err(_) => return,
            }
        }
        self.has_more = true;
    }

    fn has_room(&mut self) -> bool {
        if self.joining.len() >= JOINING {
            self.dismiss_silent(GRACE);
        }
        self.joining.len() < JOINING && self.unheard.count(None).0 < UNHEARD
    }

    /// Refuses applications that have sent no request for as long as `limit`.
    fn dismiss_silent(&mut self, limit: Duration) {
        while let Some((&key, first)) = self.joining.first_key_value()
            && first.since.elapsed() >= limit
        {
            // Its request may have come while this thread got no processor.
            self.read(key);
            if let Some(silent) = self.joining.remove(&key) {
                let why = format!("no request came within {}", Span::from_ms(limit.as_millis() as u64));
                refuse(&silent.stream, &why, &mut self.refused.requests);
            }
        }
    }

    fn welcome(&mut self, stream: UnixStream) {
        self.last_key += 1;
        let key = self.last_key;
        let refused = &mut self.refused;
        let tenant = match Credentials::of_peer(&stream) {
            Ok(Credentials { user, process }) if may_join(user) => process,
            Ok(_) => return refuse(&stream, "you are neither this user nor root", &mut refused.strangers),
            Err(error) => return refuse(&stream, &OpenError::System(error).to_string(), &mut refused.system),
        };
        let silent = self.joining.values().filter(|other| other.tenant == tenant).count();
        let (all, own) = self.unheard.count(tenant);
        if let Err(why) = check_part(tenant, all + self.joining.len(), own + silent) {
            return refuse(&stream, &why.to_string(), &mut refused.many);
        }
        if let Err(error) = watch(&self.sockets, &stream, key) {
            return refuse(&stream, &OpenError::System(error).to_string(), &mut refused.system);
        }
        self.joining.insert(key, Joining { stream, tenant, since: Instant::now() });
        // Most have sent it already.
        self.read(key);
    }

    /// Reads the request of an application that is joining, if it is complete.
    fn read(&mut self, key: u64) {
        let request = match self.joining.get(&key).map(Joining::request) {
            None | Some(Ok(None)) => return,
            Some(request) => request,
        };
        let Some(Joining { stream, tenant, .. }) = self.joining.remove(&key) else { return };
        match request {
            Ok(None) => {}
            Ok(Some(asked)) => {
                if asked == Asked::Facts
                    && let Some(facts) = self.facts.get()
                {
                    return facts.tell(&stream);
                }
                let (socket, sealing) = (Arc::new(stream), Arc::new(Sealing::default()));
                self.links.retain(|_, (link, _)| link.strong_count() > 0);
                self.links.insert(key, (Arc::downgrade(&socket), sealing.clone()));
                self.unheard.ask(Request { socket, asked, tenant, sealing });
                self.waker.wake();
            }
            Err(why) => refuse(&stream, &why, &mut self.refused.requests),
        }
    }

    /// An application that has joined has rung, or is gone.
    fn look_at_link(&mut self, key: u64) {
        let Some((link, sealing)) = self.links.get(&key) else { return };
        let Some(socket) = link.upgrade() else { return };
        let seen = look(&socket);
        // The first byte says that it has mapped its memory.
        let can_stay = !seen.rang || sealing.seal().is_ok();
        if seen.is_gone || !can_stay {
            self.links.remove(&key);
            self.unheard.close(socket);
        }
        self.waker.wake();
    }

    /// Refuses an application that there is no descriptor for: it takes the place of the spare one until it has heard.
    /// Returns whether there was a spare one; another thread may have taken what was to become the next.
    #[cold]
    fn refuse_with_spare(&mut self, why: io::Error) -> bool {
        if self.spare.take().is_none() {
            self.spare = self.listener.as_fd().try_clone_to_owned().ok();
            return self.spare.is_some();
        }
        if let Ok((stream, _)) = self.listener.accept() {
            refuse(&stream, &OpenError::System(why).to_string(), &mut self.refused.system);
        }
        self.spare = self.listener.as_fd().try_clone_to_owned().ok();
        true
    }
}

/// Watches a socket until it is closed.
fn watch(sockets: &OwnedFd, socket: impl AsFd, key: u64) -> io::Result<()> {
    // Edge-triggered: what waits in a queue for its time must not wake the thread again.
    let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
    Ok(epoll::add(sockets, socket, EventData::new_u64(key), flags)?)
}

/// Whether somebody has connected and is not accepted yet.
fn somebody_waits(listener: &UnixListener) -> bool {
    let mut polled = [PollFd::new(listener, PollFlags::IN)];
    // In doubt it is tried again.
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) != Ok(0)
}

/// Whether this process, or the system, has no descriptors left.
fn is_out_of_descriptors(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(code, Some(Errno::MFILE | Errno::NFILE))
}

impl Joining {
    /// Its request, once that is complete.
    fn request(&self) -> Result<Option<Asked>, String> {
        let mut bytes = [0; REQUEST];
        // Not taken before it is complete.
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        match recv(&self.stream, &mut bytes, flags).map(|(_, count)| count) {
            Ok(REQUEST) => {}
            Ok(0) => return Err("the connection was closed without a request".to_owned()),
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(error) => return Err(error.to_string()),
        }
        let _ = recv(&self.stream, &mut bytes, RecvFlags::DONTWAIT);
        read_request(&bytes).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::super::join::request;
    use super::*;

    /// The thread got no processor meanwhile.
    #[test]
    fn an_application_whose_request_has_come_is_not_taken_for_silent() {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("socket")).unwrap();
        let mut acceptor = AcceptorLoop::new(listener, Waker::new().unwrap()).unwrap();
        let mut join = |key| {
            let (application, stream) = UnixStream::pair().unwrap();
            let since = Instant::now() - 2 * GRACE;
            acceptor.joining.insert(key, Joining { stream, tenant: None, since });
            application
        };
        let (silent, mut asks) = (join(2), join(3));
        asks.write_all(&request(&Asked::Facts)).unwrap();
        acceptor.dismiss_silent(GRACE);
        assert!(acceptor.joining.is_empty());
        assert_eq!(acceptor.refused.requests, 1);
        let asks = |news| matches!(news, News::Request(Request { asked: Asked::Facts, .. }));
        assert!(acceptor.unheard.next().is_some_and(asks));
        drop(silent);
    }
}
