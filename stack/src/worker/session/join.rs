//! What an application and a server say to each other before there are rings: a request for a session, and the reply.
//!
//! | bytes | request | reply |
//! |---|---|---|
//! | 0–7 | `weft-ses` | `weft-ses` |
//! | 8–11 | version: 10 | version |
//! | 12–15 | process; 0 if any | 0 joined, 1 refused |
//! | 16–19 | commands | the endpoint's address |
//! | 20–23 | reports | process |
//! | 24–27 | operations | length of a text |
//! | 28–31 | connections | the most bytes of a datagram |
//! | 32–35 | bytes of memory | the text, from byte 32 on: the endpoint's IP address, or why it is refused |
//! | 36–39 | peers | |
//! | 40–43 | 0 for the process that is named, 1 for any; 2 for a reply alone, without a session | |
//! | 44–47 | job | |
//! | 48–51 | 1 if it receives datagrams and nothing else | |
//!
//! Numbers are in the processor's order. A request has 64 bytes, a reply 256. Once an application that has joined has mapped its
//! memory, it sends a byte. The server then seals the memory ([`super::sealing`]), and begins to execute commands.

use std::io::{self, ErrorKind};
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg, send,
    sendmsg, socket_with,
};

use super::client::Client;
use super::config::{OpenError, SessionConfig};
use super::link::Link;
use super::server::Sessions;
use crate::fep::Fep;
use crate::occurrences::is_logged;
use crate::packet::Addr;
use crate::region::Region;
use crate::wire::ses::JobId;
use crate::worker::credentials::Credentials;

const MAGIC: [u8; 8] = *b"weft-ses";
const VERSION: u32 = 10;
pub(super) const REQUEST: usize = 64;
/// Kinds of a request: for a session with the process that is named, for one with any process, or for the server's address
/// and the longest datagram alone.
const NAMED: u32 = 0;
const ANY: u32 = 1;
const ASKS: u32 = 2;
pub(super) const REPLY: usize = 256;
/// The place of a reply's text.
const TEXT: usize = 32;

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

/// Whether a process of `user` may join, and is trusted as a server: it is this user's, or root's.
pub(super) fn may_join(user: u32) -> bool {
    user == rustix::process::geteuid().as_raw() || user == 0
}

/// The number at `at`.
fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// What a server tells applications without a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerFacts {
    /// The most bytes of a datagram, as [`Client::longest_datagram`] tells it once there is a session.
    pub longest_datagram: u32,
    /// How many applications may have sessions at a time, those that have one now included.
    pub applications: u16,
    /// The endpoint's IP address, if it has one, as [`Client::host`] tells it.
    pub host: Option<IpAddr>,
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// A session with these resources, as this process unless any will do.
    Session(SessionConfig, Option<u16>),
    /// What an application may know before it has a session.
    Facts,
}

/// What an application may know before it has a session. It does not change.
#[derive(Debug)]
pub(super) struct Facts {
    addr: Addr,
    /// The endpoint's IP address, or nothing.
    host: String,
    longest_datagram: u32,
    /// How many applications may have sessions at a time.
    pub(super) applications: u16,
}

impl Facts {
    /// Those of the endpoint `fep`, which serves `sessions`.
    pub(super) fn of(sessions: &Sessions, fep: &Fep) -> Facts {
        let host = sessions.host().map(|ip| ip.to_string()).unwrap_or_default();
        let applications = sessions.capacity();
        Facts { addr: fep.addr(), host, longest_datagram: fep.config().mtu, applications }
    }

    /// Tells them to an application without a session, with how many there may be.
    pub(super) fn tell(&self, socket: &UnixStream) {
        // One that cannot be told is dead: its end of the socket is closed.
        let _ = self.reply(socket, self.applications, None);
    }

    /// Tells them to an application that has a session now, with its process and its memory.
    ///
    /// # Errors
    /// It is dead; or the system hands no descriptor over, as too many are on their way.
    pub(super) fn let_in(&self, socket: &UnixStream, process: u16, file: &OwnedFd) -> io::Result<()> {
        self.reply(socket, process, Some(file))
    }

    fn reply(&self, socket: &UnixStream, number: u16, file: Option<&OwnedFd>) -> io::Result<()> {
        let words = [self.addr.0, number.into(), self.longest_datagram];
        reply(socket, 0, words, &self.host, file)?;
        Ok(())
    }
}

/// What a request asks for.
pub(super) fn read_request(bytes: &[u8; REQUEST]) -> Result<Asked, String> {
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
        ASKS if process == 0 => return Ok(Asked::Facts),
        other => return Err(format!("flags {other:#x} with process {process} make no sense")),
    };
    let config = SessionConfig {
        commands: word(16),
        reports: word(20),
        operations: word(24),
        connections: word(28),
        memory: word(32),
        peers: word(36),
        job: JobId::new(word(44)).ok_or_else(|| format!("there is no job {}", word(44)))?,
        only_datagrams: match word(48) {
            0 => false,
            1 => true,
            other => return Err(format!("{other} is neither 0 nor 1, for datagrams and nothing else")),
        },
    };
    Ok(Asked::Session(config, process))
}

/// Tells an application that it is refused. `count` is how many were before, for this cause.
pub(super) fn refuse(stream: &UnixStream, why: &str, count: &mut u64) {
    *count += 1;
    if is_logged(*count) {
        tracing::warn!(why, count, "an application was refused");
    }
    let _ = reply(stream, 1, [0; 3], why, None);
}

/// Tells an application what `outcome` there is: the endpoint's address, its process and the most bytes of a datagram
/// are `words`. One without a session, which has no process, is told how many applications may have one instead.
pub(super) fn reply(
    stream: &UnixStream,
    outcome: u32,
    [addr, process, longest_datagram]: [u32; 3],
    text: &str,
    file: Option<&OwnedFd>,
) -> rustix::io::Result<usize> {
    let mut bytes = [0; REPLY];
    let text = &text.as_bytes()[..text.len().min(REPLY - TEXT)];
    bytes[..8].copy_from_slice(&MAGIC);
    let words = [VERSION, outcome, addr, process, text.len() as u32, longest_datagram];
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
        let end = Instant::now().checked_add(limit);
        let stream =
            connect_within(path, limit).map_err(|error| JoinError::System(path.to_owned(), error))?;
        let left = end.map_or(limit, |end| end.saturating_duration_since(Instant::now()));
        Client::join_over(stream, path, config, process, left)
    }

    /// Asks the server at `path` what an application may know before it has a session, and waits for the answer for up to `limit`.
    ///
    /// # Errors
    /// As [`Client::join`].
    pub fn facts_at(path: &Path, limit: Duration) -> Result<ServerFacts, JoinError> {
        let failed = |error: io::Error| JoinError::System(path.to_owned(), error);
        let end = Instant::now().checked_add(limit);
        let stream = connect_within(path, limit).map_err(failed)?;
        let left = end.map_or(limit, |end| end.saturating_duration_since(Instant::now()));
        let Joined { host, process, longest_datagram, .. } = ask(&stream, path, &Asked::Facts, left)?.0;
        Ok(ServerFacts { longest_datagram, applications: process, host })
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
        let (joined, file) = ask(&stream, path, &Asked::Session(*config, process), limit)?;
        let Joined { host, addr, process, longest_datagram } = joined;
        let file = file.ok_or_else(|| JoinError::Protocol(path.to_owned(), "no memory came with it"))?;
        let mapped = Region::map(&file, layout.total);
        let region = mapped.map_err(|error| JoinError::System(path.to_owned(), error))?;
        let link = Link::of(stream);
        link.ring();
        let client = Client::new(config, &region, link, host, addr, process)?;
        Ok(client.with_longest_datagram(longest_datagram))
    }
}

/// Sends the server at `path` a request, and returns its reply and what came with it.
pub(super) fn ask(
    stream: &UnixStream,
    path: &Path,
    asked: &Asked,
    limit: Duration,
) -> Result<(Joined, Option<OwnedFd>), JoinError> {
    let failed = |error: io::Error| JoinError::System(path.to_owned(), error);
    let server = Credentials::of_peer(stream).map_err(failed)?.user;
    if !may_join(server) {
        return Err(JoinError::Stranger(path.to_owned(), server));
    }
    limit_waits(stream, Timeout::Recv, limit).map_err(failed)?;
    // A server that is out of descriptors has replied and closed the connection before it sees a request.
    let sent = send(stream, &request(asked), SendFlags::NOSIGNAL);
    let (reply, file) =
        receive_reply(stream).map_err(|error| failed(sent.err().map_or(error, Into::into)))?;
    Ok((read_reply(path, &reply)?, file))
}

/// What a server says that lets an application in, or tells it about itself.
#[derive(Debug)]
pub(super) struct Joined {
    pub(super) host: Option<IpAddr>,
    pub(super) addr: Addr,
    pub(super) process: u16,
    pub(super) longest_datagram: u32,
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
    Ok(Joined { host, addr: Addr(word(16)), process, longest_datagram: word(28) })
}

pub(super) fn request(asked: &Asked) -> [u8; REQUEST] {
    let mut bytes = [0; REQUEST];
    bytes[..8].copy_from_slice(&MAGIC);
    let words = match *asked {
        Asked::Facts => [VERSION, 0, 0, 0, 0, 0, 0, 0, ASKS, 0, 0],
        Asked::Session(config, process) => {
            let SessionConfig { commands, reports, operations, connections, memory, .. } = config;
            let (peers, job, only) = (config.peers, config.job.get(), config.only_datagrams.into());
            let kind = if process.is_some() { NAMED } else { ANY };
            let process = process.unwrap_or(0).into();
            [VERSION, process, commands, reports, operations, connections, memory, peers, kind, job, only]
        }
    };
    for (place, word) in bytes[8..].chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

/// A connection to the socket `path`. The system lets a caller wait as long as the socket's queue is full, unless there is
/// a limit for what is sent.
pub(super) fn connect_within(path: &Path, limit: Duration) -> io::Result<UnixStream> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let stream = UnixStream::from(socket);
    limit_waits(&stream, Timeout::Send, limit)?;
    let address = SocketAddrUnix::new(path)?;
    loop {
        match connect(&stream, &address) {
            Ok(()) => return Ok(stream),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Err(no_answer()),
            Err(error) => return Err(error.into()),
        }
    }
}

fn limit_waits(stream: &UnixStream, which: Timeout, limit: Duration) -> io::Result<()> {
    // None at all would be no limit.
    Ok(set_socket_timeout(stream, which, Some(limit.max(Duration::from_micros(1))))?)
}

fn no_answer() -> io::Error {
    io::Error::new(ErrorKind::TimedOut, "no answer in time")
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
            Err(Errno::AGAIN) => return Err(no_answer()),
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
