//! A server's side of the attendant: clients that come, the one that has the link, and those that must go.
#![forbid(unsafe_code)]

use std::time::Instant;

use rustix::event::{PollFd, PollFlags};

use super::agreement::Agreement;
use super::attendant::{HANDSHAKE, RETRY, still_there};
use super::board::Board;
use super::config::{MemifConfig, MemifError};
use super::refusal::Refusal;
use super::server::{Answer, Handshake};
use super::socket::{Listener, Received, Socket};

/// Most clients that are greeted at a time. Who comes when there are as many waits in the system's queue, at most as
/// long as a handshake may take.
const GUESTS: usize = 8;

/// All who have to do with one server's interface.
pub(super) struct Host {
    config: MemifConfig,
    listener: Listener,
    /// Until when nobody is let in, because the system had no room.
    shut_until: Option<Instant>,
    /// Those with whom the handshake is under way, oldest first.
    guests: Vec<Guest>,
    /// The client that has the link.
    link: Option<Socket>,
}

struct Guest {
    socket: Socket,
    handshake: Handshake,
    deadline: Instant,
}

/// What becomes of a guest.
enum Fate {
    Stays,
    /// It is gone, for this reason.
    Leaves(String),
    Links(Agreement),
}

impl Host {
    /// # Errors
    /// The socket cannot be had.
    pub(super) fn open(config: &MemifConfig) -> Result<Host, MemifError> {
        let listener = Listener::open(&config.socket)?;
        Ok(Host { config: config.clone(), listener, shut_until: None, guests: Vec::new(), link: None })
    }

    /// What to wait for, and for how long at most.
    pub(super) fn watch<'a>(&'a self, watched: &mut Vec<PollFd<'a>>) -> Option<Instant> {
        let sockets = self.link.iter().chain(self.guests.iter().map(|guest| &guest.socket));
        watched.extend(sockets.map(|socket| PollFd::new(socket, PollFlags::IN)));
        if self.shut_until.is_none() && self.guests.len() < GUESTS {
            watched.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        self.guests.iter().map(|guest| guest.deadline).chain(self.shut_until).min()
    }

    /// Does what there is to do.
    pub(super) fn turn(&mut self, board: &Board, now: Instant) {
        // First, so that the place is free for a client that comes again.
        if let Some(Err(why)) = self.link.as_ref().map(still_there) {
            self.link = None;
            board.lower(why);
        }
        self.shut_until = self.shut_until.filter(|&until| now < until);
        self.let_in(now);
        self.hear(board, now);
    }

    /// Ends the link.
    pub(super) fn give_up(&mut self, board: &Board, reason: &str) {
        if let Some(link) = self.link.take() {
            link.part(reason);
            board.lower(format!("given up: {reason}"));
        }
    }

    /// Says goodbye to everybody.
    pub(super) fn leave(self, reason: &str) {
        for socket in self.link.iter().chain(self.guests.iter().map(|guest| &guest.socket)) {
            socket.part(reason);
        }
    }

    fn let_in(&mut self, now: Instant) {
        while self.guests.len() < GUESTS && self.shut_until.is_none() {
            match self.listener.accept() {
                Ok(Some(socket)) => {
                    let handshake = Handshake::new(&self.config);
                    // Who cannot be greeted will be found gone.
                    let _ = socket.send(&handshake.hello(), None);
                    self.guests.push(Guest { socket, handshake, deadline: now + HANDSHAKE });
                }
                Ok(None) => return,
                // No descriptors are left, or no memory: whoever waits makes the listener readable all the time.
                Err(_) => self.shut_until = Some(now + RETRY),
            }
        }
    }

    fn hear(&mut self, board: &Board, now: Instant) {
        let mut at = 0;
        while at < self.guests.len() {
            let is_free = self.link.is_none() && !self.guests.iter().any(|guest| guest.handshake.is_seated());
            match self.guests[at].hear(is_free, now) {
                Fate::Stays => at += 1,
                Fate::Leaves(why) => {
                    self.guests.remove(at);
                    if self.link.is_none() {
                        board.explain(why);
                    }
                }
                Fate::Links(agreement) => {
                    self.link = Some(self.guests.remove(at).socket);
                    board.raise(agreement);
                }
            }
        }
    }
}

impl Guest {
    /// Takes the next message, if there is one.
    fn hear(&mut self, is_free: bool, now: Instant) -> Fate {
        let answer = match self.socket.receive() {
            Received::Nothing if now < self.deadline => return Fate::Stays,
            Received::Nothing => Err(Refusal::Silence),
            Received::Closed => {
                return Fate::Leaves("a client left in the midst of its handshake".to_owned());
            }
            Received::Packet(packet) => {
                packet.and_then(|(message, file)| self.handshake.take(message, file, is_free))
            }
        };
        let (reply, fate) = match answer {
            Ok(Answer::Reply(reply)) => (reply, Fate::Stays),
            Ok(Answer::Link(reply, agreement)) => (reply, Fate::Links(agreement)),
            Ok(Answer::Left(why)) => return Fate::Leaves(format!("a client left: {why}")),
            Err(refusal) => {
                let why = refusal.to_string();
                self.socket.part(&why);
                return Fate::Leaves(format!("a client was refused: {why}"));
            }
        };
        match self.socket.send(&reply, None) {
            Ok(()) => fate,
            Err(error) => Fate::Leaves(format!("a client cannot be answered: {error}")),
        }
    }
}
