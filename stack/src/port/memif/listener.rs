//! The server's side of the control thread: it accepts clients, gives one of them the link, and refuses the others.
#![forbid(unsafe_code)]

use std::time::Instant;

use rustix::event::{PollFd, PollFlags};

use super::config::{HANDSHAKE, MemifConfig, MemifError, RETRY};
use super::handshake_error::HandshakeError;
use super::link_layout::LinkLayout;
use super::link_state::LinkState;
use super::server::{Answer, Handshake};
use super::socket::{ListenSocket, Received, Socket};

/// The most clients in a handshake at a time. More clients wait in the socket's queue, at most as long as a handshake
/// may take.
const MAX_PENDING: usize = 8;

/// The server of one interface, with all its clients.
pub(super) struct Listener {
    config: MemifConfig,
    socket: ListenSocket,
    /// No client is accepted before this time, because the system had no descriptors or no memory.
    closed_until: Option<Instant>,
    /// The clients in a handshake, oldest first.
    pending: Vec<PendingClient>,
    /// The client that has the link.
    link: Option<Socket>,
}

struct PendingClient {
    socket: Socket,
    handshake: Handshake,
    deadline: Instant,
}

/// The result of one step of a client's handshake.
enum Step {
    Continue,
    /// The client is gone, for this reason.
    Gone(String),
    Linked(LinkLayout),
}

impl Listener {
    /// # Errors
    /// Another server has the socket, or the system refuses it.
    pub(super) fn open(config: &MemifConfig) -> Result<Listener, MemifError> {
        let socket = ListenSocket::open(&config.socket)?;
        Ok(Listener { config: config.clone(), socket, closed_until: None, pending: Vec::new(), link: None })
    }

    /// Adds the sockets to wait for, and returns when to stop waiting.
    pub(super) fn watch<'a>(&'a self, watched: &mut Vec<PollFd<'a>>) -> Option<Instant> {
        let sockets = self.link.iter().chain(self.pending.iter().map(|client| &client.socket));
        watched.extend(sockets.map(|socket| PollFd::new(socket, PollFlags::IN)));
        if self.closed_until.is_none() && self.pending.len() < MAX_PENDING {
            watched.push(PollFd::new(&self.socket, PollFlags::IN));
        }
        self.pending.iter().map(|client| client.deadline).chain(self.closed_until).min()
    }

    /// Takes all steps for which there is a message or a deadline has passed.
    pub(super) fn turn(&mut self, link_state: &LinkState, now: Instant) {
        // First, so that the interface is free for a client that reconnects.
        if let Some(Err(why)) = self.link.as_ref().map(Socket::check_peer) {
            self.link = None;
            link_state.lower(why);
        }
        self.closed_until = self.closed_until.filter(|&until| now < until);
        self.accept(now);
        self.step(link_state, now);
    }

    /// Ends the link.
    pub(super) fn give_up(&mut self, link_state: &LinkState, reason: &str) {
        if let Some(link) = self.link.take() {
            link.part(reason);
            link_state.lower(format!("given up: {reason}"));
        }
    }

    /// Tells all clients why the server leaves.
    pub(super) fn leave(self, reason: &str) {
        for socket in self.link.iter().chain(self.pending.iter().map(|client| &client.socket)) {
            socket.part(reason);
        }
    }

    fn accept(&mut self, now: Instant) {
        while self.pending.len() < MAX_PENDING && self.closed_until.is_none() {
            match self.socket.accept() {
                Ok(Some(socket)) => {
                    let handshake = Handshake::new(&self.config);
                    // If this fails the client has left, which its next step notices.
                    let _ = socket.send(&handshake.hello(), None);
                    self.pending.push(PendingClient { socket, handshake, deadline: now + HANDSHAKE });
                }
                Ok(None) => return,
                // No descriptors are left, or no memory: the socket stays readable, so do not watch it for a while.
                Err(_) => self.closed_until = Some(now + RETRY),
            }
        }
    }

    fn step(&mut self, link_state: &LinkState, now: Instant) {
        let mut at = 0;
        while at < self.pending.len() {
            let is_free =
                self.link.is_none() && !self.pending.iter().any(|client| client.handshake.has_place());
            match self.pending[at].step(is_free, now) {
                Step::Continue => at += 1,
                Step::Gone(why) => {
                    self.pending.remove(at);
                    if self.link.is_none() {
                        link_state.explain(why);
                    }
                }
                Step::Linked(layout) => {
                    self.link = Some(self.pending.remove(at).socket);
                    link_state.raise(layout);
                }
            }
        }
    }
}

impl PendingClient {
    /// Takes the next message, if there is one.
    fn step(&mut self, is_free: bool, now: Instant) -> Step {
        let answer = match self.socket.receive() {
            Received::Nothing if now < self.deadline => return Step::Continue,
            Received::Nothing => Err(HandshakeError::Silence),
            Received::Closed => {
                return Step::Gone("a client left in the midst of its handshake".to_owned());
            }
            Received::Packet(packet) => {
                packet.and_then(|(message, file)| self.handshake.take(message, file, is_free))
            }
        };
        let (reply, fate) = match answer {
            Ok(Answer::Reply(reply)) => (reply, Step::Continue),
            Ok(Answer::Link(reply, layout)) => (reply, Step::Linked(layout)),
            Ok(Answer::Left(why)) => return Step::Gone(format!("a client left: {why}")),
            Err(error) => {
                let why = error.to_string();
                self.socket.part(&why);
                return Step::Gone(format!("a client was refused: {why}"));
            }
        };
        match self.socket.send(&reply, None) {
            Ok(()) => fate,
            Err(error) => Step::Gone(format!("a client cannot be answered: {error}")),
        }
    }
}
