//! The Unix socket through which applications of other processes join.
//!
//! Only processes of the same user, and root's, may join. Each sends one message with the resources that it wants, and
//! gets one back, with a descriptor of the memory that its rings lie in. From then on the socket is the session's
//! [`Link`]. A thread sleeps on all sockets in the worker's stead and wakes it when one is readable: the worker itself
//! makes no system call for them otherwise.
//!
//! | bytes | request | reply |
//! |---|---|---|
//! | 0–7 | `weft-ses` | `weft-ses` |
//! | 8–11 | version: 6 | version |
//! | 12–15 | process; 0 if any | 0 joined, 1 refused |
//! | 16–19 | commands | the endpoint's address |
//! | 20–23 | reports | process |
//! | 24–27 | operations | length of a text |
//! | 28–31 | connections | 0 |
//! | 32–35 | bytes of memory | the text, from byte 32 on: the endpoint's IP address, or why it is refused |
//! | 36–39 | peers | |
//! | 40–43 | 1 for any process, 0 for the one that is named | |
//!
//! Numbers are in the processor's order. A request has 64 bytes, a reply 256.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recv, recvmsg, send, sendmsg,
};
use weft_cc::{Span, Time};

use super::client::Client;
use super::config::{OpenError, SessionConfig};
use super::link::Link;
use super::server::{SessionId, Sessions};
use crate::fep::Fep;
use crate::occurrences::is_logged;
use crate::packet::Addr;
use crate::region::Region;
use crate::worker::Waker;
use crate::worker::credentials::Credentials;

const MAGIC: [u8; 8] = *b"weft-ses";
const VERSION: u32 = 6;
pub(super) const REQUEST: usize = 64;
/// Flags of a request: the process is named, or any will do.
const NAMED: u32 = 0;
const ANY: u32 = 1;
pub(super) const REPLY: usize = 256;
/// The place of a reply's text.
const TEXT: usize = 32;
/// How long an application may take to send its request.
const PATIENCE: Span = Span::from_ms(1000);
/// How many applications may be joining at once.
const PENDING: usize = 16;

/// Why a socket cannot be listened at.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another process listens there.
    #[error("{0}: another process serves there")]
    Taken(PathBuf),
    /// The path names something that is no socket.
    #[error("{0}: it exists and is no socket")]
    NoSocket(PathBuf),
    /// The system refused something.
    #[error("{0}: {1}")]
    System(PathBuf, io::Error),
}

/// Why an application could not join.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// No server listens at the path, or the system refuses the connection.
    #[error("{0}: {1}")]
    System(PathBuf, io::Error),
    /// The server refuses.
    #[error("{0}: refused: {1}")]
    Refused(PathBuf, String),
    /// The server belongs to neither this user nor root.
    #[error("{0}: it is served by user {1}")]
    Stranger(PathBuf, u32),
    /// The server is of another weft.
    #[error("{0}: it speaks version {1}, this is version {VERSION}: use the same weft")]
    Version(PathBuf, u32),
    /// The reply makes no sense.
    #[error("{0}: no server of weft: {1}")]
    Protocol(PathBuf, &'static str),
    /// A number of the configuration is out of range.
    #[error(transparent)]
    Config(#[from] OpenError),
}

/// A Unix socket at which applications join.
#[derive(Debug)]
pub struct SessionListener {
    listener: UnixListener,
    path: PathBuf,
    most: SessionConfig,
    pending: Vec<PendingJoin>,
    watch: Watch,
    refused: RefusedJoins,
    /// Given up for a moment to accept, and refuse, an application when there is no other descriptor.
    spare: Option<OwnedFd>,
    /// While this file is open and locked, no other server can take the path.
    _lock: File,
}

/// How many applications were refused, by cause: any of these can occur again and again.
#[derive(Debug, Default)]
struct RefusedJoins {
    /// Joins by processes of other users.
    strangers: u64,
    /// Those whose request makes no sense.
    requests: u64,
    /// Joins that asked for resources or for a process that they cannot have.
    sessions: u64,
}

/// An application that has connected and not sent its request yet.
#[derive(Debug)]
struct PendingJoin {
    stream: UnixStream,
    since: Time,
}

impl SessionListener {
    /// Listens at `path` for applications that want no more than `most`, and uses `waker` when one connects.
    /// A socket that a dead process has left there is removed; a file `path.lock` tells the dead from the living, and
    /// stays.
    ///
    /// # Errors
    /// Another process listens there, or the system refuses something.
    pub fn open(path: &Path, most: SessionConfig, waker: Waker) -> Result<SessionListener, ListenError> {
        let failed = |error: io::Error| ListenError::System(path.to_owned(), error);
        // Before there is a file for the lock, which would stay.
        is_no_other_file(path)?;
        let lock = lock(path)?;
        is_no_other_file(path)?;
        match fs::symlink_metadata(path) {
            // We have the lock, so it is no weft; but another program may listen there.
            Ok(_) if UnixStream::connect(path).is_ok() => return Err(ListenError::Taken(path.to_owned())),
            Ok(_) => fs::remove_file(path).map_err(failed)?,
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        let listener = UnixListener::bind(path).map_err(failed)?;
        // The user of an application that connects before this is checked all the same.
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let watch = Watch::new(waker).map_err(failed)?;
        watch.add(&listener).map_err(failed)?;
        let spare = Some(listener.as_fd().try_clone_to_owned().map_err(failed)?);
        tracing::info!(socket = %path.display(), "listening for applications");
        Ok(SessionListener {
            listener,
            path: path.to_owned(),
            most,
            pending: Vec::new(),
            watch,
            refused: RefusedJoins::default(),
            spare,
            _lock: lock,
        })
    }

    /// Opens sessions for applications that want to join, and ends the sessions of those that have died. To be called
    /// each turn; makes system calls only when something has happened at a socket. Returns the sessions that are new.
    pub fn attend(&mut self, sessions: &mut Sessions, fep: &mut Fep, now: Time) -> Vec<SessionId> {
        let refused = &mut self.refused.requests;
        for late in self.pending.extract_if(.., |join| now.since(join.since) >= PATIENCE) {
            refuse(&late.stream, &format!("no request came within {PATIENCE}"), refused);
        }
        if !self.watch.called() {
            return Vec::new();
        }
        sessions.check(fep, now);
        self.accept(now);
        let mut admitted = Vec::new();
        for join in std::mem::take(&mut self.pending) {
            match join.request() {
                Ok(Some((config, process))) => {
                    admitted.extend(self.admit(join.stream, &config, process, sessions, fep));
                }
                Ok(None) => self.pending.push(join),
                Err(why) => refuse(&join.stream, &why, &mut self.refused.requests),
            }
        }
        admitted
    }

    /// Opens a session for the application at the other end of `stream`, and tells it.
    fn admit(
        &mut self,
        stream: UnixStream,
        config: &SessionConfig,
        process: Option<u16>,
        sessions: &mut Sessions,
        fep: &mut Fep,
    ) -> Option<SessionId> {
        let answer = match stream.try_clone() {
            Ok(answer) => answer,
            Err(error) => {
                refuse(&stream, &OpenError::System(error).to_string(), &mut self.refused.sessions);
                return None;
            }
        };
        // Not known of one that lives where this process cannot see it.
        let tenant = Credentials::of_peer(&stream).ok().and_then(|peer| peer.process);
        let open = || -> Result<_, OpenError> {
            config.within(&self.most)?;
            let (region, file) = Region::share(config.layout()?.total)?;
            // It stays among those that are watched.
            Ok((sessions.admit(fep, config, process, &region, Link::of(stream), tenant)?, file))
        };
        let opened = open().map_err(|error| refuse(&answer, &error.to_string(), &mut self.refused.sessions));
        let (id, file) = opened.ok()?;
        let process = sessions.process(id).unwrap_or(0);
        // An application that cannot be told is dead: its end of the socket is closed.
        let host = sessions.host().map(|ip| ip.to_string()).unwrap_or_default();
        let _ = reply(&answer, 0, fep.addr().0, process, &host, Some(&file));
        Some(id)
    }

    fn accept(&mut self, now: Time) {
        // Those in the system's queue are looked at once these have gone: see `Watch::call_again`.
        for _ in self.pending.len()..PENDING {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if is_out_of_descriptors(&error) && self.spare.is_some() => {
                    self.refuse_with_spare(error);
                    continue;
                }
                Err(_) => return,
            };
            let watched = is_trusted(&stream).and_then(|trusted| match trusted {
                true => self.watch.add(&stream).map(|()| true),
                false => Ok(false),
            });
            match watched {
                Ok(true) => self.pending.push(PendingJoin { stream, since: now }),
                Ok(false) => {
                    refuse(&stream, "you are neither this user nor root", &mut self.refused.strangers);
                }
                Err(error) => {
                    refuse(&stream, &OpenError::System(error).to_string(), &mut self.refused.sessions);
                }
            }
        }
        self.watch.call_again();
    }

    /// Refuses an application that there is no descriptor for: it takes the place of the spare one until it has heard.
    #[cold]
    fn refuse_with_spare(&mut self, why: io::Error) {
        drop(self.spare.take());
        if let Ok((stream, _)) = self.listener.accept() {
            refuse(&stream, &OpenError::System(why).to_string(), &mut self.refused.sessions);
        }
        self.spare = self.listener.as_fd().try_clone_to_owned().ok();
    }
}

impl Drop for SessionListener {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Whether this process, or the system, has no descriptors left.
fn is_out_of_descriptors(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(code, Some(Errno::MFILE | Errno::NFILE))
}

/// Fails if the path names something that is no socket.
fn is_no_other_file(path: &Path) -> Result<(), ListenError> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.mode() & 0o170_000 != 0o140_000 => Err(ListenError::NoSocket(path.to_owned())),
        _ => Ok(()),
    }
}

/// Makes this process the one that listens at `path`.
fn lock(path: &Path) -> Result<File, ListenError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let name = PathBuf::from(name);
    let failed = |error: io::Error| ListenError::System(name.clone(), error);
    let mut options = File::options();
    options.write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(&name).map_err(failed)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => Err(ListenError::Taken(path.to_owned())),
        Err(error) => Err(failed(error.into())),
    }
}

/// Whether the process at the other end is this user's, or root's.
fn is_trusted(stream: &UnixStream) -> io::Result<bool> {
    Ok(may_join(Credentials::of_peer(stream)?.user))
}

fn may_join(user: u32) -> bool {
    user == rustix::process::geteuid().as_raw() || user == 0
}

impl PendingJoin {
    /// Its request, once that is complete.
    fn request(&self) -> Result<Option<(SessionConfig, Option<u16>)>, String> {
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

/// The number at `at`.
fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// What a request asks for: resources, and a process unless any will do.
pub(super) fn read_request(bytes: &[u8; REQUEST]) -> Result<(SessionConfig, Option<u16>), String> {
    let word = |at| word(bytes, at);
    if bytes[..8] != MAGIC {
        return Err(format!("expected a request of version {VERSION}"));
    }
    if word(8) != VERSION {
        return Err(format!("the request is of version {}, this server of version {VERSION}", word(8)));
    }
    let process = u16::try_from(word(12)).map_err(|_| format!("there is no process {}", word(12)))?;
    let process = match word(40) {
        NAMED => Some(process),
        ANY if process == 0 => None,
        other => return Err(format!("flags {other:#x} with process {process} make no sense")),
    };
    let config = SessionConfig {
        commands: word(16),
        reports: word(20),
        operations: word(24),
        connections: word(28),
        memory: word(32),
        peers: word(36),
    };
    Ok((config, process))
}

/// Tells an application that it is refused. `count` is how many were before, for this cause.
pub(super) fn refuse(stream: &UnixStream, why: &str, count: &mut u64) {
    *count += 1;
    if is_logged(*count) {
        tracing::warn!(why, count, "an application was refused");
    }
    let _ = reply(stream, 1, 0, 0, why, None);
}

fn reply(
    stream: &UnixStream,
    outcome: u32,
    addr: u32,
    process: u16,
    text: &str,
    file: Option<&OwnedFd>,
) -> rustix::io::Result<usize> {
    let mut bytes = [0; REPLY];
    let text = &text.as_bytes()[..text.len().min(REPLY - TEXT)];
    bytes[..8].copy_from_slice(&MAGIC);
    let words = [VERSION, outcome, addr, process.into(), text.len() as u32];
    for (place, word) in bytes[8..].chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    bytes[TEXT..TEXT + text.len()].copy_from_slice(text);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = file.map(|file| [file.as_fd()]);
    if let Some(files) = &files {
        control.push(SendAncillaryMessage::ScmRights(files));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(stream, &[io::IoSlice::new(&bytes)], &mut control, flags)
}

impl Client {
    /// Asks the server at `path` for a session, and waits for its answer for up to `limit`. Peers will know this
    /// application as `process`, which may be 0, or else as one that the server chooses from 1 to 4095.
    ///
    /// # Errors
    /// No server listens at `path`, or the server refuses.
    pub fn join(
        path: &Path,
        config: &SessionConfig,
        process: Option<u16>,
        limit: Duration,
    ) -> Result<Client, JoinError> {
        config.layout()?;
        let stream = UnixStream::connect(path).map_err(|error| JoinError::System(path.to_owned(), error))?;
        Client::join_over(stream, path, config, process, limit)
    }

    /// [`Client::join`], once `stream` is connected.
    pub(super) fn join_over(
        stream: UnixStream,
        path: &Path,
        config: &SessionConfig,
        process: Option<u16>,
        limit: Duration,
    ) -> Result<Client, JoinError> {
        let layout = config.layout()?;
        let failed = |error: io::Error| JoinError::System(path.to_owned(), error);
        let server = Credentials::of_peer(&stream).map_err(failed)?.user;
        if !may_join(server) {
            return Err(JoinError::Stranger(path.to_owned(), server));
        }
        let limit = Some(limit.max(Duration::from_micros(1)));
        set_socket_timeout(&stream, Timeout::Recv, limit).map_err(|error| failed(error.into()))?;
        let request = request(config, process);
        // A server that is out of descriptors has replied and closed the connection before it sees a request.
        let sent = send(&stream, &request, SendFlags::NOSIGNAL);
        let (reply, file) =
            receive_reply(&stream).map_err(|error| failed(sent.err().map_or(error, Into::into)))?;
        let Joined { host, addr, process } = read_reply(path, &reply)?;
        let file = file.ok_or_else(|| JoinError::Protocol(path.to_owned(), "no memory came with it"))?;
        let region = Region::map(&file, layout.total).map_err(failed)?;
        Ok(Client::new(config, &region, Link::of(stream), host, addr, process)?)
    }
}

/// What a server says that lets an application in.
#[derive(Debug)]
pub(super) struct Joined {
    pub(super) host: Option<IpAddr>,
    pub(super) addr: Addr,
    pub(super) process: u16,
}

/// What the reply of the server at `path` says.
pub(super) fn read_reply(path: &Path, reply: &[u8; REPLY]) -> Result<Joined, JoinError> {
    let word = |at| word(reply, at);
    let protocol = |what| JoinError::Protocol(path.to_owned(), what);
    if reply[..8] != MAGIC {
        return Err(protocol("it does not answer as one"));
    }
    if word(8) != VERSION {
        return Err(JoinError::Version(path.to_owned(), word(8)));
    }
    let len = (word(24) as usize).min(REPLY - TEXT);
    let text = String::from_utf8_lossy(&reply[TEXT..TEXT + len]);
    if word(12) != 0 {
        return Err(JoinError::Refused(path.to_owned(), text.into_owned()));
    }
    let host = match &*text {
        "" => None,
        text => Some(text.parse().map_err(|_| protocol("its IP address is none"))?),
    };
    let process =
        u16::try_from(word(20)).map_err(|_| protocol("the process that it names does not exist"))?;
    Ok(Joined { host, addr: Addr(word(16)), process })
}

pub(super) fn request(config: &SessionConfig, process: Option<u16>) -> [u8; REQUEST] {
    let mut bytes = [0; REQUEST];
    bytes[..8].copy_from_slice(&MAGIC);
    let SessionConfig { commands, reports, operations, connections, memory, peers } = *config;
    let flags = if process.is_some() { NAMED } else { ANY };
    let process = process.unwrap_or(0).into();
    let words = [VERSION, process, commands, reports, operations, connections, memory, peers, flags];
    for (place, word) in bytes[8..].chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

/// The reply and the descriptor that came with it.
fn receive_reply(stream: &UnixStream) -> io::Result<([u8; REPLY], Option<OwnedFd>)> {
    let mut bytes = [0; REPLY];
    let (mut count, mut file) = (0, None);
    while count < REPLY {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [io::IoSliceMut::new(&mut bytes[count..])];
        let received = match recvmsg(stream, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(received) => received,
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => return Err(io::Error::new(ErrorKind::TimedOut, "no answer in time")),
            Err(error) => return Err(error.into()),
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                file = files.last().or(file);
            }
        }
        if received.bytes == 0 {
            return Err(io::Error::new(ErrorKind::UnexpectedEof, "closed without an answer"));
        }
        count += received.bytes;
    }
    Ok((bytes, file))
}

/// A thread that sleeps on sockets and wakes the worker.
#[derive(Debug)]
struct Watch {
    sockets: Arc<OwnedFd>,
    called: Arc<AtomicBool>,
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

/// The stop's key among the sockets.
const STOP: u64 = 1;

impl Watch {
    fn new(waker: Waker) -> io::Result<Watch> {
        let sockets = Arc::new(epoll::create(CreateFlags::CLOEXEC)?);
        let stop = eventfd(0, EventfdFlags::CLOEXEC)?;
        epoll::add(&sockets, &stop, EventData::new_u64(STOP), EventFlags::IN)?;
        let called = Arc::new(AtomicBool::new(false));
        let (waits, calls) = (sockets.clone(), called.clone());
        let thread = thread::Builder::new().name("weft-listener".to_owned()).spawn(move || {
            let mut events = Vec::with_capacity(16);
            loop {
                match epoll::wait(&waits, rustix::buffer::spare_capacity(&mut events), None) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(_) => return,
                }
                if events.iter().any(|event| event.data.u64() == STOP) {
                    return;
                }
                events.clear();
                calls.store(true, Ordering::Release);
                waker.wake();
            }
        })?;
        Ok(Watch { sockets, called, stop, thread: Some(thread) })
    }

    /// Watches a socket until it is closed.
    fn add(&self, socket: impl AsFd) -> io::Result<()> {
        // Edge-triggered: the worker looks at it in its own time, and must not be woken again before.
        let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        match epoll::add(&*self.sockets, socket, EventData::new_u64(0), flags) {
            Err(Errno::EXIST) | Ok(()) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn called(&self) -> bool {
        self.called.load(Ordering::Relaxed) && self.called.swap(false, Ordering::Acquire)
    }

    /// Makes [`Watch::called`] return true once more.
    fn call_again(&self) {
        self.called.store(true, Ordering::Release);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
