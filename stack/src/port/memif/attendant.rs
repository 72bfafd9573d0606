//! The thread that makes links and notices when they are lost.
//!
//! It never touches the memory of a link, nor frees what the port has taken: the port does, when it is not using it.
#![forbid(unsafe_code)]

#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::agreement::Offer;
use super::board::Board;
use super::caller::Caller;
use super::config::{MemifConfig, MemifError, Role};
use super::host::Host;
use super::message::Message;
use super::refusal::Refusal;
use super::socket::{Received, Socket};

/// Makes the memory of a client. The configuration's [`MemifConfig::log2_ring`] is what the server has left of it.
pub(super) type Offering = Box<dyn Fn(&MemifConfig) -> io::Result<Offer> + Send>;

/// How long a handshake may take.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(2);
/// What lies between a client's attempts.
pub(super) const RETRY: Duration = Duration::from_millis(100);
/// How long the thread sleeps when nothing happens.
const SLEEP: Duration = Duration::from_secs(10);

/// Attends to the socket of a port as long as it is not dropped.
#[derive(Debug)]
pub(super) struct Attendant {
    board: Arc<Board>,
    thread: Option<JoinHandle<()>>,
}

impl Attendant {
    /// Takes the server's place at the socket, or begins to look for the server there.
    ///
    /// # Errors
    /// The configuration makes no sense, or the socket cannot be had. A client waits for a server.
    pub(super) fn start(config: &MemifConfig, offering: Offering) -> Result<Attendant, MemifError> {
        config.check()?;
        let system = |error| MemifError::System { what: "attend to", socket: config.socket.clone(), error };
        let board = Arc::new(Board::new().map_err(system)?);
        let side = match config.role {
            Role::Server => Side::Server(Host::open(config)?),
            Role::Client => Side::Client(Caller::new(config, offering, Instant::now())),
        };
        let shared = board.clone();
        let run = move || attend(side, &shared);
        let thread = thread::Builder::new().name("weft-memif".to_owned()).spawn(run).map_err(system)?;
        Ok(Attendant { board, thread: Some(thread) })
    }

    /// What it has to say.
    pub(super) fn board(&self) -> &Arc<Board> {
        &self.board
    }
}

impl Drop for Attendant {
    /// The peer is told, and a server's socket is gone afterwards.
    fn drop(&mut self) {
        self.board.close();
        if let Some(thread) = self.thread.take() {
            // Soon: it waits for nothing but the board and sockets.
            let _ = thread.join();
        }
    }
}

enum Side {
    Server(Host),
    Client(Caller),
}

fn attend(mut side: Side, board: &Board) {
    // Even if it panics, the port must not go on with a link that nobody looks after.
    let _end = End(board);
    while !board.is_closed() {
        let now = Instant::now();
        if let Some(reason) = board.refusal() {
            side.give_up(board, &reason, now);
        }
        side.turn(board, now);
        side.sleep(board);
    }
    side.leave("the port is closed");
}

struct End<'a>(&'a Board);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.lower("the port is closed".to_owned());
    }
}

impl Side {
    fn turn(&mut self, board: &Board, now: Instant) {
        match self {
            Side::Server(host) => host.turn(board, now),
            Side::Client(caller) => caller.turn(board, now),
        }
    }

    fn give_up(&mut self, board: &Board, reason: &str, now: Instant) {
        match self {
            Side::Server(host) => host.give_up(board, reason),
            Side::Client(caller) => caller.give_up(board, reason, now),
        }
    }

    fn leave(self, reason: &str) {
        match self {
            Side::Server(host) => host.leave(reason),
            Side::Client(caller) => caller.leave(reason),
        }
    }

    /// Until something happens, or something is due.
    fn sleep(&self, board: &Board) {
        let call = board.call();
        let mut watched = vec![PollFd::new(&call, PollFlags::IN)];
        let until = match self {
            Side::Server(host) => host.watch(&mut watched),
            Side::Client(caller) => caller.watch(&mut watched),
        };
        let limit = until.map_or(SLEEP, |until| until.saturating_duration_since(Instant::now()).min(SLEEP));
        let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
        match poll(&mut watched, Some(&limit)) {
            Ok(_) if !watched[0].revents().is_empty() => board.answer(),
            Ok(_) | Err(Errno::INTR) => {}
            // No memory for it: not a reason to spin.
            Err(_) => thread::sleep(RETRY),
        }
    }
}

/// Whether the peer of a link is there and keeps silent, as it must.
///
/// # Errors
/// Why there is no link any more.
pub(super) fn still_there(socket: &Socket) -> Result<(), String> {
    let refusal = match socket.receive() {
        Received::Nothing => return Ok(()),
        Received::Closed => return Err("the peer is gone".to_owned()),
        Received::Packet(Ok((Message::Disconnect { reason, .. }, _))) => {
            return Err(format!("the peer has left: {reason}"));
        }
        Received::Packet(Ok((other, _))) => Refusal::Order { came: other.name(), expected: "DISCONNECT" },
        Received::Packet(Err(refusal)) => refusal,
    };
    let why = refusal.to_string();
    socket.part(&why);
    Err(format!("the peer makes no sense: {why}"))
}
