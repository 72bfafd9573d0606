//! The Unix socket through which applications of other processes join.
//!
//! Only processes of the same user, and root's, may join. Each sends one message with the resources that it wants, and
//! gets one back, with a descriptor of the memory that its rings lie in ([`super::join`]). From then on the socket is the
//! session's [`Link`]. A thread accepts applications and watches all sockets in the worker's stead ([`super::acceptor`]): the
//! worker makes system calls only to open the session of an application that has sent its request, or to refuse it. The memory
//! of applications that are gone is unmapped by another thread ([`super::unmapper`]). Meanwhile applications that ask for it wait in
//! a queue ([`super::join_queue`]).

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use weft_cc::{Span, Time};

use super::acceptor::Acceptor;
use super::config::{OpenError, SessionConfig};
use super::join::{Asked, Facts, connect_within, refuse};
use super::join_queue::JoinQueue;
use super::link::Link;
use super::sealing::Sealing;
use super::server::{SessionId, Sessions, Share};
use super::unheard::{News, Request};
use super::unmapper::Unmapper;
use crate::fep::{Fep, Resource};
use crate::region::Region;
use crate::worker::Waker;

/// How long another program may take to accept a connection that shows that it is there.
const PROBE: Duration = Duration::from_millis(100);

/// How long an application may wait for memory that is to be unmapped while none is. That takes some milliseconds, unless frames
/// refer to the memory, which are given up after as long.
const UNMAPPING: Span = Span::from_ms(1_000);
/// How long it may wait in any case: less than [`Client::join`](super::Client::join) does in programs.
const PATIENCE: Span = Span::from_ms(4_000);

/// After a turn in which the worker has made memory for an application, it does nothing for those that join or leave until this time
/// has passed since the turn began. To make the memory takes the system some 50 µs, in which all others wait: applications that join
/// and leave over and over have a fifth of the worker's time.
pub(super) const REST: Span = Span::from_us(250);

/// Applications that are found gone in a turn.
const CLOSED_PER_TURN: usize = 64;

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

/// An application that has sent its request.
#[derive(Debug)]
pub(super) struct Joining {
    pub(super) socket: Arc<UnixStream>,
    pub(super) sealing: Arc<Sealing>,
    pub(super) config: SessionConfig,
    /// The process number that it wants.
    pub(super) process: Option<u16>,
}

/// A Unix socket at which applications join.
#[derive(Debug)]
pub struct SessionListener {
    path: PathBuf,
    most: SessionConfig,
    acceptor: Acceptor,
    unmapper: Unmapper,
    /// Applications that are to be let in or refused, in turn. Some may wait for memory.
    joining: JoinQueue<Joining>,
    /// When memory was unmapped last while one waited, and how much was to be unmapped then, bytes.
    unmapped: (Time, u64),
    /// Until when the worker rests after it has made memory for a session.
    rests_until: Option<Time>,
    /// How many applications were refused because they asked for resources or for a process that they cannot have.
    refused: u64,
    /// While this file is open and locked, no other server can take the path.
    _lock: File,
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
            Ok(_) if is_served(path) => return Err(ListenError::Taken(path.to_owned())),
            Ok(_) => fs::remove_file(path).map_err(failed)?,
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        let listener = UnixListener::bind(path).map_err(failed)?;
        // The user of an application that connects before this is checked all the same.
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(failed)?;
        let acceptor = Acceptor::start(listener, waker).map_err(failed)?;
        let unmapper = Unmapper::start().map_err(failed)?;
        tracing::info!(socket = %path.display(), "listening for applications");
        let (path, joining, unmapped) = (path.to_owned(), JoinQueue::new(), (Time::ZERO, 0));
        let rests_until = None;
        Ok(SessionListener {
            path,
            most,
            acceptor,
            unmapper,
            joining,
            unmapped,
            rests_until,
            refused: 0,
            _lock: lock,
        })
    }

    /// Ends the sessions of applications that have died, and opens one for the next one that wants to join. To be called
    /// each turn; makes no system call but to open a session, to refuse one, or to answer the first questions for facts. Returns
    /// the session that is new.
    ///
    /// An application for which there is memory, but for that of others which are gone, waits until it is unmapped, in a
    /// queue. For 250 µs after memory was made for one nothing is done.
    pub fn attend(&mut self, sessions: &mut Sessions, fep: &mut Fep, now: Time) -> Option<SessionId> {
        if self.rests_until.is_some_and(|until| now.is_before(until)) {
            return None;
        }
        self.rests_until = None;
        // The rest waits for the next turn, as all slots are looked at for each that is gone.
        for _ in 0..CLOSED_PER_TURN {
            let Some(news) = self.acceptor.next() else { break };
            match news {
                News::Closed(socket) => {
                    self.joining.remove(|joining| Arc::ptr_eq(&joining.socket, &socket));
                    sessions.hung_up(fep, now, &socket);
                }
                // One a turn, as even a refusal makes system calls.
                News::Request(Request { socket, asked, tenant, sealing }) => match asked {
                    Asked::Session(config, process) => {
                        self.hear(sessions, now, Joining { socket, sealing, config, process }, tenant);
                        break;
                    }
                    Asked::Facts => {
                        let facts = Facts::of(sessions, fep);
                        facts.tell(&socket);
                        self.acceptor.inform(facts);
                        return None;
                    }
                },
            }
        }
        self.admit_next(sessions, fep, now)
    }

    /// The process `tenant` has sent a request: it gets a place in the queue, or is refused.
    pub(super) fn hear(&mut self, sessions: &Sessions, now: Time, joining: Joining, tenant: Option<u32>) {
        let may_wait = || {
            joining.config.within(&self.most)?;
            let memory = joining.config.layout()?.total as u64;
            // The only one need not wait, but for memory.
            if !self.joining.is_empty() {
                self.joining.check(tenant)?;
                sessions.check_waiting(tenant, self.joining.share_of(tenant), Share::one(memory))?;
            }
            Ok(memory)
        };
        match may_wait() {
            Ok(memory) => self.joining.push(joining, tenant, memory, now),
            Err(why) => self.refuse(&joining, &why),
        }
    }

    /// Whether applications may be waiting, for memory, because a session has just been opened, or because others have asked before:
    /// [`SessionListener::attend`] must be called then although nothing happens.
    pub fn makes_wait(&self) -> bool {
        !self.joining.is_empty() || self.rests_until.is_some() || self.acceptor.has_news()
    }

    /// How many of them are in the queue.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.joining.len()
    }

    /// How many requests of the process `tenant` have not been heard.
    #[cfg(test)]
    pub(super) fn unheard_of(&self, tenant: u32) -> usize {
        self.acceptor.unheard_of(Some(tenant))
    }

    /// Opens a session for the application whose turn it is, or refuses it, unless it has to wait.
    fn admit_next(&mut self, sessions: &mut Sessions, fep: &mut Fep, now: Time) -> Option<SessionId> {
        if self.joining.is_empty() {
            return None;
        }
        let unmapping = sessions.unmapping().bytes();
        if unmapping < std::mem::replace(&mut self.unmapped.1, unmapping) {
            self.unmapped.0 = now;
        }
        let unmapped = self.unmapped.0;
        let is_due = |since: Time| {
            let end = (since.latest(unmapped) + UNMAPPING).earliest(since + PATIENCE);
            now.is_at_or_after(end)
        };
        let (free, part) = (sessions.free_memory(), sessions.part_of_memory());
        let (at, next) = self.joining.take(is_due, free, part)?;
        match self.admit(&next.application, next.tenant, sessions, fep, now) {
            Ok(id) => {
                self.joining.note_passed(at, &next);
                id
            }
            Err(OpenError::NotLeft { what: Resource::SessionMemory, asked, .. })
                if !is_due(next.since) && sessions.will_have_memory(asked) =>
            {
                self.joining.put_back(at, next);
                None
            }
            Err(error) => {
                self.refuse(&next.application, &error);
                None
            }
        }
    }

    /// Opens a session for an application, and tells it.
    fn admit(
        &mut self,
        joining: &Joining,
        tenant: Option<u32>,
        sessions: &mut Sessions,
        fep: &mut Fep,
        now: Time,
    ) -> Result<Option<SessionId>, OpenError> {
        let Joining { socket, sealing, config, process } = joining;
        let link = Link::shared(socket.clone());
        let (mut shared, unmapping) = (None, sessions.unmapping().clone());
        let share = |len| {
            let (region, file) = Region::share_to_seal(len)?;
            shared = Some((self.unmapper.keep(region.clone(), unmapping), file));
            Ok(region)
        };
        let id = sessions.admit_with(fep, config, *process, share, link, tenant);
        self.rests_until = shared.as_ref().map(|_| now + REST);
        let id = id?;
        let Some((kept, file)) = shared else { return Ok(None) };
        sessions.keep(id, kept, sealing.clone());
        let (process, facts) = (sessions.process(id).unwrap_or(0), Facts::of(sessions, fep));
        match sealing.hand_over(file, |file| facts.let_in(socket, process, file)) {
            Ok(()) => Ok(Some(id)),
            Err(error) => {
                sessions.withdraw(fep, now, id);
                Err(error.into())
            }
        }
    }

    fn refuse(&mut self, joining: &Joining, why: &OpenError) {
        refuse(&joining.socket, &why.to_string(), &mut self.refused);
    }
}

impl Drop for SessionListener {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Whether a program listens at `path`.
fn is_served(path: &Path) -> bool {
    match connect_within(path, PROBE) {
        Ok(_) => true,
        // It accepts nobody.
        Err(error) => error.kind() == ErrorKind::TimedOut,
    }
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
