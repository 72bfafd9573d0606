//! A client's side of the attendant: attempts until there is a link, and again when it is lost.
#![forbid(unsafe_code)]

use std::time::Instant;

use rustix::event::{PollFd, PollFlags};

use super::agreement::Agreement;
use super::attendant::{HANDSHAKE, Offering, RETRY, still_there};
use super::board::Board;
use super::client::{Answer, Handshake};
use super::config::MemifConfig;
use super::refusal::Refusal;
use super::socket::{Received, Socket};

/// Who looks for the server.
pub(super) struct Caller {
    config: MemifConfig,
    offering: Offering,
    state: State,
}

enum State {
    /// Until the next attempt.
    Waits(Instant),
    /// The server has been reached.
    Calls { socket: Socket, handshake: Box<Handshake>, deadline: Instant },
    /// There is a link.
    Linked(Socket),
}

/// What becomes of an attempt.
enum Fate {
    Goes,
    Fails(String),
    Links(Agreement),
}

impl Caller {
    /// Begins to look at `now`.
    pub(super) fn new(config: &MemifConfig, offering: Offering, now: Instant) -> Caller {
        Caller { config: config.clone(), offering, state: State::Waits(now) }
    }

    /// What to wait for, and until when at most.
    pub(super) fn watch<'a>(&'a self, watched: &mut Vec<PollFd<'a>>) -> Option<Instant> {
        let (socket, until) = match &self.state {
            State::Waits(until) => (None, Some(*until)),
            State::Calls { socket, deadline, .. } => (Some(socket), Some(*deadline)),
            State::Linked(socket) => (Some(socket), None),
        };
        watched.extend(socket.map(|socket| PollFd::new(socket, PollFlags::IN)));
        until
    }

    /// Does what there is to do.
    pub(super) fn turn(&mut self, board: &Board, now: Instant) {
        let again = State::Waits(now + RETRY);
        self.state = match std::mem::replace(&mut self.state, again) {
            State::Waits(until) if now < until => State::Waits(until),
            State::Waits(_) => self.call(board, now),
            State::Calls { socket, mut handshake, deadline } => {
                match hear(&socket, &mut handshake, &self.offering, now >= deadline) {
                    Fate::Goes => State::Calls { socket, handshake, deadline },
                    Fate::Fails(why) => {
                        board.explain(why);
                        State::Waits(now + RETRY)
                    }
                    Fate::Links(agreement) => {
                        board.raise(agreement);
                        State::Linked(socket)
                    }
                }
            }
            State::Linked(socket) => match still_there(&socket) {
                Ok(()) => State::Linked(socket),
                Err(why) => {
                    board.lower(why);
                    State::Waits(now + RETRY)
                }
            },
        };
    }

    fn call(&self, board: &Board, now: Instant) -> State {
        match Socket::connect(&self.config.socket) {
            Ok(socket) => {
                let handshake = Box::new(Handshake::new(&self.config));
                State::Calls { socket, handshake, deadline: now + HANDSHAKE }
            }
            Err(error) => {
                board.explain(format!("no server: {}", std::io::Error::from(error)));
                State::Waits(now + RETRY)
            }
        }
    }

    /// Ends the link.
    pub(super) fn give_up(&mut self, board: &Board, reason: &str, now: Instant) {
        if let State::Linked(socket) = &self.state {
            socket.part(reason);
            board.lower(format!("given up: {reason}"));
            self.state = State::Waits(now + RETRY);
        }
    }

    /// Says goodbye.
    pub(super) fn leave(self, reason: &str) {
        if let State::Calls { socket, .. } | State::Linked(socket) = &self.state {
            socket.part(reason);
        }
    }
}

/// Takes the next message, if there is one.
fn hear(socket: &Socket, handshake: &mut Handshake, offering: &Offering, is_late: bool) -> Fate {
    let answer = match socket.receive() {
        Received::Nothing if !is_late => return Fate::Goes,
        Received::Nothing => Err(Refusal::Silence),
        Received::Closed => return Fate::Fails("the server left in the midst of the handshake".to_owned()),
        Received::Packet(packet) => match packet {
            // None of a server's messages has a descriptor.
            Ok((message, _)) => handshake.take(message, offering),
            Err(refusal) => Err(refusal),
        },
    };
    match answer {
        Ok(Answer::Send(message, file)) => match socket.send(&message, file) {
            Ok(()) => Fate::Goes,
            Err(error) => Fate::Fails(format!("the server takes no message: {error}")),
        },
        Ok(Answer::Link(agreement)) => Fate::Links(agreement),
        Ok(Answer::Left(why)) => Fate::Fails(format!("the server refuses: {why}")),
        Err(refusal) => {
            let why = refusal.to_string();
            socket.part(&why);
            Fate::Fails(format!("the server makes no sense: {why}"))
        }
    }
}
