//! Where applications of other processes come in: a Unix socket.
//!
//! Only processes of the same user, and root's, are let in. Each sends one message that says what it wants to be able
//! to use up, and gets one back, with a descriptor of the memory that its rings lie in. From then on the
//! socket is the session's [`Link`]. A thread sleeps on all sockets in the worker's stead and calls it when
//! there is something: the worker itself makes no system call for them otherwise.
//!
//! | bytes | request | reply |
//! |---|---|---|
//! | 0–7 | `weft-ses` | `weft-ses` |
//! | 8–11 | version: 2 | version |
//! | 12–15 | process, 0 for any | 0: you are in; 1: you are not |
//! | 16–19 | commands | the endpoint's address |
//! | 20–23 | reports | process |
//! | 24–27 | operations | length of a text |
//! | 28–31 | connections | |
//! | 32–35 | bytes of memory | why not, from byte 32 on |
//!
//! Numbers are in the processor's order. A request has 64 bytes, a reply 256.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::mem::MaybeUninit;
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
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
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
use crate::packet::Addr;
use crate::region::Region;
use crate::worker::Waker;

const MAGIC: [u8; 8] = *b"weft-ses";
const VERSION: u32 = 2;
const REQUEST: usize = 64;
const REPLY: usize = 256;
/// Where a reply's text begins.
const TEXT: usize = 32;
/// How long one who has come in may take to say what it wants.
const PATIENCE: Span = Span::from_ms(1000);
/// Those who may stand in the door at once.
const GUESTS: usize = 16;

/// Why there is no door.
#[derive(Debug, thiserror::Error)]
pub enum DoorError {
    /// Somebody else listens there.
    #[error("{0}: another process serves there")]
    Taken(PathBuf),
    /// There is something that is no socket.
    #[error("{0}: it exists and is no socket")]
    NoSocket(PathBuf),
    /// What the system says.
    #[error("{0}: {1}")]
    System(PathBuf, io::Error),
}

/// Why an application did not get in.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// Nobody serves there, or the system does not let us ask.
    #[error("{0}: {1}")]
    System(PathBuf, io::Error),
    /// The server refuses.
    #[error("{0}: refused: {1}")]
    Refused(PathBuf, String),
    /// Who serves there is neither this user nor root.
    #[error("{0}: it is served by user {1}")]
    Stranger(PathBuf, u32),
    /// The server is of another weft.
    #[error("{0}: it speaks version {1}, this is version {VERSION}: use the same weft")]
    Version(PathBuf, u32),
    /// What came back makes no sense.
    #[error("{0}: no server of weft: {1}")]
    Protocol(PathBuf, &'static str),
    /// What is asked for cannot be.
    #[error(transparent)]
    Config(#[from] OpenError),
}

/// A place where applications come in.
#[derive(Debug)]
pub struct Door {
    listener: UnixListener,
    path: PathBuf,
    most: SessionConfig,
    guests: Vec<Guest>,
    watch: Watch,
    /// As long as it is open and locked, nobody else serves here.
    _lock: File,
}

/// Somebody who has come in and said nothing yet.
#[derive(Debug)]
struct Guest {
    stream: UnixStream,
    since: Time,
}

impl Door {
    /// Opens a door at `path`, for applications that want no more than `most`, and calls `waker` when somebody knocks.
    /// A socket that a dead process has left there is removed; a file `path.lock` tells the dead from the living, and
    /// stays.
    ///
    /// # Errors
    /// Somebody else serves there, or what the system says.
    pub fn open(path: &Path, most: SessionConfig, waker: Waker) -> Result<Door, DoorError> {
        let failed = |error: io::Error| DoorError::System(path.to_owned(), error);
        // Before there is a file for the lock, which would stay.
        is_no_other_file(path)?;
        let lock = lock(path)?;
        is_no_other_file(path)?;
        match fs::symlink_metadata(path) {
            // We have the lock, so it is not one of ours; but somebody may listen who knows no locks.
            Ok(_) if UnixStream::connect(path).is_ok() => return Err(DoorError::Taken(path.to_owned())),
            Ok(_) => fs::remove_file(path).map_err(failed)?,
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        let listener = UnixListener::bind(path).map_err(failed)?;
        // Who connects before this has its user checked all the same.
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let watch = Watch::new(waker).map_err(failed)?;
        watch.add(&listener).map_err(failed)?;
        Ok(Door { listener, path: path.to_owned(), most, guests: Vec::new(), watch, _lock: lock })
    }

    /// Lets in who has knocked, and ends the sessions of who has died. To be called each turn; makes system calls only
    /// when something has happened at a socket. Returns the sessions that are new.
    pub fn attend(&mut self, sessions: &mut Sessions, fep: &mut Fep, now: Time) -> Vec<SessionId> {
        self.guests.retain(|guest| now.since(guest.since) < PATIENCE);
        if !self.watch.called() {
            return Vec::new();
        }
        sessions.check(fep, now);
        self.accept(now);
        let mut admitted = Vec::new();
        for guest in std::mem::take(&mut self.guests) {
            match guest.request() {
                Ok(Some((config, process))) => {
                    admitted.extend(self.admit(guest.stream, &config, process, sessions, fep));
                }
                Ok(None) => self.guests.push(guest),
                Err(why) => refuse(&guest.stream, &why),
            }
        }
        admitted
    }

    /// Opens a session for who is at the other end of `stream`, and tells it.
    fn admit(
        &self,
        stream: UnixStream,
        config: &SessionConfig,
        process: Option<u16>,
        sessions: &mut Sessions,
        fep: &mut Fep,
    ) -> Option<SessionId> {
        let answer = stream.try_clone().ok()?;
        let open = || -> Result<_, OpenError> {
            config.within(&self.most)?;
            let (region, file) = Region::share(config.layout()?.total)?;
            // It stays among those that are watched.
            Ok((sessions.admit(fep, config, process, &region, Link::of(stream))?, file))
        };
        let (id, file) = open().map_err(|error| refuse(&answer, &error.to_string())).ok()?;
        let process = sessions.process(id).unwrap_or(0);
        // One that cannot be told will be found dead: its end of the socket is closed.
        let _ = reply(&answer, 0, fep.addr().0, process, "", Some(&file));
        Some(id)
    }

    fn accept(&mut self, now: Time) {
        // Those who wait in the system's queue knock again when these have gone: see `Watch`.
        while self.guests.len() < GUESTS
            && let Ok((stream, _)) = self.listener.accept()
        {
            match is_trusted(&stream) {
                Ok(true) if self.watch.add(&stream).is_ok() => self.guests.push(Guest { stream, since: now }),
                Ok(false) => refuse(&stream, "you are neither this user nor root"),
                _ => {}
            }
        }
        if self.guests.len() == GUESTS {
            self.watch.call_again();
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Refuses what is there and is no socket.
fn is_no_other_file(path: &Path) -> Result<(), DoorError> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.mode() & 0o170_000 != 0o140_000 => Err(DoorError::NoSocket(path.to_owned())),
        _ => Ok(()),
    }
}

/// Makes this process the one that serves at `path`.
fn lock(path: &Path) -> Result<File, DoorError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let name = PathBuf::from(name);
    let failed = |error: io::Error| DoorError::System(name.clone(), error);
    let mut options = File::options();
    options.write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(&name).map_err(failed)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => Err(DoorError::Taken(path.to_owned())),
        Err(error) => Err(failed(error.into())),
    }
}

/// Whether the process at the other end is this user's, or root's.
fn is_trusted(stream: &UnixStream) -> io::Result<bool> {
    let peer = socket_peercred(stream)?.uid;
    Ok(peer == rustix::process::geteuid() || peer.is_root())
}

impl Guest {
    /// What it asks for, once it has.
    fn request(&self) -> Result<Option<(SessionConfig, Option<u16>)>, String> {
        let mut bytes = [0; REQUEST];
        // Looked at until it is whole.
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        match recv(&self.stream, &mut bytes, flags).map(|(_, count)| count) {
            Ok(REQUEST) => {}
            Ok(0) => return Err("nothing was asked for".to_owned()),
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(error) => return Err(error.to_string()),
        }
        let _ = recv(&self.stream, &mut bytes, RecvFlags::DONTWAIT);
        let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if bytes[..8] != MAGIC {
            return Err(format!("expected a request of version {VERSION}"));
        }
        if word(8) != VERSION {
            return Err(format!("the request is of version {}, this server of version {VERSION}", word(8)));
        }
        let process = u16::try_from(word(12)).map_err(|_| format!("there is no process {}", word(12)))?;
        let config = SessionConfig {
            commands: word(16),
            reports: word(20),
            operations: word(24),
            connections: word(28),
            memory: word(32),
        };
        Ok(Some((config, (process != 0).then_some(process))))
    }
}

fn refuse(stream: &UnixStream, why: &str) {
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
    /// application as `process`, or as one that the server chooses.
    ///
    /// # Errors
    /// Nobody serves there, or what the server says.
    pub fn join(
        path: &Path,
        config: &SessionConfig,
        process: Option<u16>,
        limit: Duration,
    ) -> Result<Client, JoinError> {
        let layout = config.layout()?;
        let failed = |error: io::Error| JoinError::System(path.to_owned(), error);
        let stream = UnixStream::connect(path).map_err(failed)?;
        if !is_trusted(&stream).map_err(failed)? {
            let uid = socket_peercred(&stream).map_err(|error| failed(error.into()))?.uid;
            return Err(JoinError::Stranger(path.to_owned(), uid.as_raw()));
        }
        let limit = Some(limit.max(Duration::from_micros(1)));
        set_socket_timeout(&stream, Timeout::Recv, limit).map_err(|error| failed(error.into()))?;
        let request = request(config, process);
        send(&stream, &request, SendFlags::NOSIGNAL).map_err(|error| failed(error.into()))?;
        let (reply, file) = receive_reply(&stream).map_err(failed)?;
        let protocol = |what| JoinError::Protocol(path.to_owned(), what);
        let word = |at: usize| u32::from_ne_bytes([reply[at], reply[at + 1], reply[at + 2], reply[at + 3]]);
        if reply[..8] != MAGIC {
            return Err(protocol("it does not answer as one"));
        }
        if word(8) != VERSION {
            return Err(JoinError::Version(path.to_owned(), word(8)));
        }
        if word(12) != 0 {
            let len = (word(24) as usize).min(REPLY - TEXT);
            let why = String::from_utf8_lossy(&reply[TEXT..TEXT + len]).into_owned();
            return Err(JoinError::Refused(path.to_owned(), why));
        }
        let file = file.ok_or_else(|| protocol("no memory came with it"))?;
        let region = Region::map(&file, layout.total).map_err(failed)?;
        let process = u16::try_from(word(20)).map_err(|_| protocol("no such process"))?;
        Ok(Client::new(config, &region, Link::of(stream), Addr(word(16)), process)?)
    }
}

fn request(config: &SessionConfig, process: Option<u16>) -> [u8; REQUEST] {
    let mut bytes = [0; REQUEST];
    bytes[..8].copy_from_slice(&MAGIC);
    let SessionConfig { commands, reports, operations, connections, memory } = *config;
    let words = [VERSION, process.unwrap_or(0).into(), commands, reports, operations, connections, memory];
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

/// The stop's name among the sockets.
const STOP: u64 = 1;

impl Watch {
    fn new(waker: Waker) -> io::Result<Watch> {
        let sockets = Arc::new(epoll::create(CreateFlags::CLOEXEC)?);
        let stop = eventfd(0, EventfdFlags::CLOEXEC)?;
        epoll::add(&sockets, &stop, EventData::new_u64(STOP), EventFlags::IN)?;
        let called = Arc::new(AtomicBool::new(false));
        let (waits, calls) = (sockets.clone(), called.clone());
        let thread = thread::Builder::new().name("weft-door".to_owned()).spawn(move || {
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
        // Edges: what the worker has been called for once, it looks at in its own time.
        let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        match epoll::add(&*self.sockets, socket, EventData::new_u64(0), flags) {
            Err(Errno::EXIST) | Ok(()) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn called(&self) -> bool {
        self.called.load(Ordering::Relaxed) && self.called.swap(false, Ordering::Acquire)
    }

    /// There is more to do than was done.
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
