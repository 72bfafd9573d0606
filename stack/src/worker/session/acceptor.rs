//! A thread that accepts the applications that want to join, and watches their sockets, in the worker's stead: the worker makes
//! no system call for an application until that has sent a whole request, and none for what it writes afterwards.
//!
//! Few applications may be joining at once. One that is silent makes room for the next one after [`GRACE`], so that silent ones
//! keep nobody out.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use weft_cc::Span;

use super::config::OpenError;
use super::join::{Asked, Facts, REQUEST, is_trusted, read_request, refuse};
use super::link::look;
use super::sealing::Sealing;
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
/// What the thread may tell the worker before the worker has heard of it.
const UNHEARD: usize = 64;

/// What the worker has to do.
#[derive(Debug)]
pub(super) enum News {
    /// An application wants to join, or to know something.
    Request {
        /// Its socket, which is watched.
        socket: Arc<UnixStream>,
        /// What it asks for.
        asked: Asked,
        /// The operating system's process that asks; `None` if it lives where this process cannot see it.
        tenant: Option<u32>,
        /// Whether the memory that it may get is sealed.
        sealing: Arc<Sealing>,
    },
    /// The application at the other end of this socket is gone.
    Closed(Arc<UnixStream>),
}

/// The worker's end of the thread.
#[derive(Debug)]
pub(super) struct Acceptor {
    called: Arc<AtomicBool>,
    facts: Arc<OnceLock<Facts>>,
    // Dropped before the thread is waited for, which would wait for room.
    news: Receiver<News>,
    _thread: AcceptorThread,
}

impl Acceptor {
    /// Accepts applications at `listener`, and uses `waker` when there is news, or an application rings.
    pub(super) fn start(listener: UnixListener, waker: Waker) -> io::Result<Acceptor> {
        let (state, news) = AcceptorLoop::new(listener, waker)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC)?;
        epoll::add(&state.sockets, &stop, EventData::new_u64(STOP), EventFlags::IN)?;
        let (called, facts) = (state.called.clone(), state.facts.clone());
        let thread = thread::Builder::new().name("weft-listener".to_owned()).spawn(move || state.run())?;
        Ok(Acceptor { called, facts, news, _thread: AcceptorThread { stop, thread: Some(thread) } })
    }

    /// From now on the thread itself answers applications that ask for facts.
    pub(super) fn inform(&self, facts: Facts) {
        let _ = self.facts.set(facts);
    }

    /// The next news. Makes no system call.
    pub(super) fn next(&self) -> Option<News> {
        next_of(&self.called, || self.news.try_recv().ok())
    }
}

/// Returns the next item of the queue that `take` pops from, if the thread has set `called`.
fn next_of<T>(called: &AtomicBool, mut take: impl FnMut() -> Option<T>) -> Option<T> {
    if !called.load(Ordering::Relaxed) {
        return None;
    }
    if let Some(news) = take() {
        return Some(news);
    }
    // Before the last look, so that nothing is missed.
    called.swap(false, Ordering::AcqRel);
    let news = take()?;
    // The thread may have set the flag for further items, too, before it was cleared here.
    called.store(true, Ordering::Relaxed);
    Some(news)
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
}

/// An application that has connected and not sent its request yet.
#[derive(Debug)]
struct Joining {
    stream: UnixStream,
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
    refused: RefusedJoins,
    tell: SyncSender<News>,
    called: Arc<AtomicBool>,
    /// What the worker has said, which it does once it is asked.
    facts: Arc<OnceLock<Facts>>,
    waker: Waker,
}

/// The worker is gone.
struct Stopped;

impl AcceptorLoop {
    fn new(listener: UnixListener, waker: Waker) -> io::Result<(AcceptorLoop, Receiver<News>)> {
        let sockets = epoll::create(CreateFlags::CLOEXEC)?;
        listener.set_nonblocking(true)?;
        watch(&sockets, &listener, LISTENER)?;
        let spare = Some(listener.as_fd().try_clone_to_owned()?);
        let (tell, news) = sync_channel(UNHEARD);
        let state = AcceptorLoop {
            listener,
            sockets,
            spare,
            joining: BTreeMap::new(),
            links: HashMap::new(),
            last_key: LISTENER,
            queue_is_empty: false,
            refused: RefusedJoins::default(),
            tell,
            called: Arc::default(),
            facts: Arc::default(),
            waker,
        };
        Ok((state, news))
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
                    self.read(key)?;
                    // It may be gone already, which is reported once.
                    self.look_at_link(key)?;
                }
            }
        }
        self.accept()?;
        self.dismiss_silent(PATIENCE)
    }

    /// How long to sleep if nothing happens.
    fn limit(&self) -> Option<Duration> {
        if !self.queue_is_empty {
            return Some(RETRY);
        }
        let (_, first) = self.joining.first_key_value()?;
        // The system counts in whole milliseconds where it must.
        Some(PATIENCE.saturating_sub(first.since.elapsed()).max(RETRY))
    }

    /// Accepts applications as long as there is room: the rest waits in the system's queue.
    fn accept(&mut self) -> Result<(), Stopped> {
        // As many as there is room for and no more, so that those that have joined are looked at as well.
        for _ in 0..JOINING {
            if self.queue_is_empty || !self.has_room()? {
                break;
            }
            match self.listener.accept() {
                Ok((stream, _)) => self.welcome(stream)?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.queue_is_empty = true,
                // The system says so even if nobody waits.
                Err(error) if is_out_of_descriptors(&error) => {
                    let waits = somebody_waits(&self.listener);
                    if !waits || !self.refuse_with_spare(error) {
                        self.queue_is_empty = !waits;
                        break;
                    }
                }
                // It has gone, or the system has no memory for it.
                Err(_) => break,
            }
        }
        Ok(())
    }

    fn has_room(&mut self) -> Result<bool, Stopped> {
        if self.joining.len() >= JOINING {
            self.dismiss_silent(GRACE)?;
        }
        Ok(self.joining.len() < JOINING)
    }

    /// Refuses applications that have sent no request for as long as `limit`.
    fn dismiss_silent(&mut self, limit: Duration) -> Result<(), Stopped> {
        while let Some((&key, first)) = self.joining.first_key_value()
            && first.since.elapsed() >= limit
        {
            // Its request may have come while this thread waited for the worker.
            self.read(key)?;
            if let Some(silent) = self.joining.remove(&key) {
                let why = format!("no request came within {}", Span::from_ms(limit.as_millis() as u64));
                refuse(&silent.stream, &why, &mut self.refused.requests);
            }
        }
        Ok(())
    }

    fn welcome(&mut self, stream: UnixStream) -> Result<(), Stopped> {
        self.last_key += 1;
        let key = self.last_key;
        let watched = is_trusted(&stream).and_then(|trusted| match trusted {
            true => watch(&self.sockets, &stream, key).map(|()| true),
            false => Ok(false),
        });
        match watched {
            Ok(true) => {
                self.joining.insert(key, Joining { stream, since: Instant::now() });
                // Most have sent it already.
                return self.read(key);
            }
            Ok(false) => refuse(&stream, "you are neither this user nor root", &mut self.refused.strangers),
            Err(error) => refuse(&stream, &OpenError::System(error).to_string(), &mut self.refused.system),
        }
        Ok(())
    }

    /// Reads the request of an application that is joining, if it is complete.
    fn read(&mut self, key: u64) -> Result<(), Stopped> {
        let request = match self.joining.get(&key).map(Joining::request) {
            None | Some(Ok(None)) => return Ok(()),
            Some(request) => request,
        };
        let Some(Joining { stream, .. }) = self.joining.remove(&key) else { return Ok(()) };
        match request {
            Ok(None) => Ok(()),
            Ok(Some(asked)) => {
                if asked == Asked::Facts
                    && let Some(facts) = self.facts.get()
                {
                    facts.tell(&stream);
                    return Ok(());
                }
                let tenant = Credentials::of_peer(&stream).ok().and_then(|peer| peer.process);
                let (socket, sealing) = (Arc::new(stream), Arc::new(Sealing::default()));
                self.links.retain(|_, (link, _)| link.strong_count() > 0);
                self.links.insert(key, (Arc::downgrade(&socket), sealing.clone()));
                self.tell(News::Request { socket, asked, tenant, sealing })
            }
            Err(why) => {
                refuse(&stream, &why, &mut self.refused.requests);
                Ok(())
            }
        }
    }

    /// An application that has joined has rung, or is gone.
    fn look_at_link(&mut self, key: u64) -> Result<(), Stopped> {
        let Some((link, sealing)) = self.links.get(&key) else { return Ok(()) };
        let Some(socket) = link.upgrade() else { return Ok(()) };
        let seen = look(&socket);
        // The first byte says that it has mapped its memory.
        let can_stay = !seen.rang || sealing.seal().is_ok();
        if seen.is_gone || !can_stay {
            self.links.remove(&key);
            return self.tell(News::Closed(socket));
        }
        self.waker.wake();
        Ok(())
    }

    fn tell(&self, news: News) -> Result<(), Stopped> {
        self.tell.send(news).map_err(|_| Stopped)?;
        self.called.store(true, Ordering::Release);
        self.waker.wake();
        Ok(())
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
    use std::collections::VecDeque;
    use std::io::Write;

    use super::super::join::request;
    use super::*;

    /// The thread waited for the worker meanwhile.
    #[test]
    fn an_application_whose_request_has_come_is_not_taken_for_silent() {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("socket")).unwrap();
        let (mut acceptor, news) = AcceptorLoop::new(listener, Waker::new().unwrap()).unwrap();
        let mut join = |key| {
            let (application, stream) = UnixStream::pair().unwrap();
            acceptor.joining.insert(key, Joining { stream, since: Instant::now() - 2 * GRACE });
            application
        };
        let (silent, mut asks) = (join(2), join(3));
        asks.write_all(&request(&Asked::Facts)).unwrap();
        assert!(acceptor.dismiss_silent(GRACE).is_ok());
        assert!(acceptor.joining.is_empty());
        assert_eq!(acceptor.refused.requests, 1);
        assert!(matches!(news.try_recv(), Ok(News::Request { asked: Asked::Facts, .. })));
        drop(silent);
    }

    #[test]
    fn news_that_come_between_two_looks_are_all_heard() {
        let called = AtomicBool::new(true);
        let (mut looks, mut news) = (0, VecDeque::new());
        let heard: Vec<u32> = (0..4)
            .filter_map(|_| {
                next_of(&called, || {
                    let taken = news.pop_front();
                    looks += 1;
                    if looks == 1 {
                        // The thread tells two things after the first look, before the worker clears the flag.
                        news.extend([1, 2]);
                        called.store(true, Ordering::Release);
                    }
                    taken
                })
            })
            .collect();
        assert_eq!(heard, [1, 2]);
        assert!(!called.load(Ordering::Relaxed), "further looks cost nothing");
    }
}
