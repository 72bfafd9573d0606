//! The client's side of the control thread: it tries to connect until there is a link, and again when the link is lost.
#![forbid(unsafe_code)]

use std::time::Instant;

use rustix::event::{PollFd, PollFlags};

use super::client::{Answer, Handshake};
use super::config::{HANDSHAKE, MemifConfig, RETRY};
use super::handshake_error::HandshakeError;
use super::link_layout::{LinkLayout, MakeOffer};
use super::link_state::LinkState;
use super::socket::{Received, Socket};

/// A client that connects to its server.
pub(super) struct Connector {
    config: MemifConfig,
    make_offer: MakeOffer,
    state: State,
}

enum State {
    /// Waits until the next attempt.
    Waiting(Instant),
    /// Is connected, and shakes hands until the deadline.
    Handshaking { socket: Socket, handshake: Box<Handshake>, deadline: Instant },
    /// Has a link.
    Linked(Socket),
}

/// The result of one step of the handshake.
enum Step {
    Continue,
    Failed(String),
    Linked(LinkLayout),
}

impl Connector {
    /// Tries to connect for the first time at `now`.
    pub(super) fn new(config: &MemifConfig, make_offer: MakeOffer, now: Instant) -> Connector {
        Connector { config: config.clone(), make_offer, state: State::Waiting(now) }
    }

    /// Adds the sockets to wait for, and returns when to stop waiting.
    pub(super) fn watch<'a>(&'a self, watched: &mut Vec<PollFd<'a>>) -> Option<Instant> {
        let (socket, until) = match &self.state {
            State::Waiting(until) => (None, Some(*until)),
            State::Handshaking { socket, deadline, .. } => (Some(socket), Some(*deadline)),
            State::Linked(socket) => (Some(socket), None),
        };
        watched.extend(socket.map(|socket| PollFd::new(socket, PollFlags::IN)));
        until
    }

    /// Takes the next step, if there is a message or a deadline has passed.
    pub(super) fn turn(&mut self, link_state: &LinkState, now: Instant) {
        let again = State::Waiting(now + RETRY);
        self.state = match std::mem::replace(&mut self.state, again) {
            State::Waiting(until) if now < until => State::Waiting(until),
            State::Waiting(_) => self.connect(link_state, now),
            State::Handshaking { socket, mut handshake, deadline } => {
                match step(&socket, &mut handshake, &self.make_offer, now >= deadline) {
                    Step::Continue => State::Handshaking { socket, handshake, deadline },
                    Step::Failed(why) => {
                        link_state.explain(why);
                        State::Waiting(now + RETRY)
                    }
                    Step::Linked(layout) => {
                        link_state.raise(layout);
                        State::Linked(socket)
                    }
                }
            }
            State::Linked(socket) => match socket.check_peer() {
                Ok(()) => State::Linked(socket),
                Err(why) => {
                    link_state.lower(why);
                    State::Waiting(now + RETRY)
                }
            },
        };
    }

    fn connect(&self, link_state: &LinkState, now: Instant) -> State {
        match Socket::connect(&self.config.socket) {
            Ok(socket) => {
                let handshake = Box::new(Handshake::new(&self.config));
                State::Handshaking { socket, handshake, deadline: now + HANDSHAKE }
            }
            Err(error) => {
                link_state.explain(format!("no server: {}", std::io::Error::from(error)));
                State::Waiting(now + RETRY)
            }
        }
    }

    /// Ends the link.
    pub(super) fn give_up(&mut self, link_state: &LinkState, reason: &str, now: Instant) {
        if let State::Linked(socket) = &self.state {
            socket.part(reason);
            link_state.lower(format!("given up: {reason}"));
            self.state = State::Waiting(now + RETRY);
        }
    }

    /// Tells the server why the client leaves.
    pub(super) fn leave(self, reason: &str) {
        if let State::Handshaking { socket, .. } | State::Linked(socket) = &self.state {
            socket.part(reason);
        }
    }
}

/// Takes the next message, if there is one.
fn step(socket: &Socket, handshake: &mut Handshake, make_offer: &MakeOffer, is_late: bool) -> Step {
    let answer = match socket.receive() {
        Received::Nothing if !is_late => return Step::Continue,
        Received::Nothing => Err(HandshakeError::Silence),
        Received::Closed => return Step::Failed("the server left in the midst of the handshake".to_owned()),
        Received::Packet(packet) => match packet {
            // A server's messages carry no descriptors.
            Ok((message, _)) => handshake.take(message, make_offer),
            Err(error) => Err(error),
        },
    };
    match answer {
        Ok(Answer::Send(message, file)) => match socket.send(&message, file) {
            Ok(()) => Step::Continue,
            Err(error) => Step::Failed(format!("the server takes no message: {error}")),
        },
        Ok(Answer::Link(layout)) => Step::Linked(layout),
        Ok(Answer::Left(why)) => Step::Failed(format!("the server refuses: {why}")),
        Err(error) => {
            let why = error.to_string();
            socket.part(&why);
            Step::Failed(format!("the server makes no sense: {why}"))
        }
    }
}
