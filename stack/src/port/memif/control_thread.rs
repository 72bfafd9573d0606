//! The thread that makes links and notices when they are lost.
//!
//! It never touches the memory of a link, and never frees a link that the port has taken: the port drops that itself,
//! between two bursts.
#![forbid(unsafe_code)]

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::config::{MemifConfig, MemifError, RETRY, Role};
use super::connector::Connector;
use super::link_layout::MakeOffer;
use super::link_state::LinkState;
use super::listener::Listener;

/// The longest sleep of the thread when nothing happens.
const SLEEP: Duration = Duration::from_secs(10);

/// The thread, which serves the socket of a port until this is dropped.
#[derive(Debug)]
pub(super) struct ControlThread {
    link_state: Arc<LinkState>,
    thread: Option<JoinHandle<()>>,
}

impl ControlThread {
    /// Listens at the socket as the server, or begins to connect to it as the client.
    ///
    /// # Errors
    /// The configuration is invalid, another server has the socket, or the system refuses it. That there is no server
    /// yet is no error for a client.
    pub(super) fn start(config: &MemifConfig, make_offer: MakeOffer) -> Result<ControlThread, MemifError> {
        config.check()?;
        let system = |error| MemifError::System { what: "attend to", socket: config.socket.clone(), error };
        let link_state = Arc::new(LinkState::new().map_err(system)?);
        let side = match config.role {
            Role::Server => Side::Server(Listener::open(config)?),
            Role::Client => Side::Client(Connector::new(config, make_offer, Instant::now())),
        };
        let shared = link_state.clone();
        let span = tracing::info_span!("memif", socket = ?config.socket, id = config.id);
        let body = move || span.in_scope(|| run(side, &shared));
        let thread = thread::Builder::new().name("weft-memif".to_owned()).spawn(body).map_err(system)?;
        Ok(ControlThread { link_state, thread: Some(thread) })
    }

    /// The state of the link.
    pub(super) fn link_state(&self) -> &Arc<LinkState> {
        &self.link_state
    }
}

impl Drop for ControlThread {
    /// Tells the peer. Afterwards a server's socket does not exist any more.
    fn drop(&mut self) {
        self.link_state.close();
        if let Some(thread) = self.thread.take() {
            // It ends soon: it waits for nothing but sockets and `link_state`, which has woken it.
            let _ = thread.join();
        }
    }
}

enum Side {
    Server(Listener),
    Client(Connector),
}

fn run(mut side: Side, link_state: &LinkState) {
    // Even after a panic: the port must not go on with a link that no thread watches.
    let _end = End(link_state);
    while !link_state.is_closed() {
        let now = Instant::now();
        if let Some(reason) = link_state.refusal() {
            side.give_up(link_state, &reason, now);
        }
        side.turn(link_state, now);
        side.sleep(link_state);
    }
    side.leave("the port is closed");
}

struct End<'a>(&'a LinkState);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.lower("the port is closed".to_owned());
    }
}

impl Side {
    fn turn(&mut self, link_state: &LinkState, now: Instant) {
        match self {
            Side::Server(listener) => listener.turn(link_state, now),
            Side::Client(connector) => connector.turn(link_state, now),
        }
    }

    fn give_up(&mut self, link_state: &LinkState, reason: &str, now: Instant) {
        match self {
            Side::Server(listener) => listener.give_up(link_state, reason),
            Side::Client(connector) => connector.give_up(link_state, reason, now),
        }
    }

    fn leave(self, reason: &str) {
        match self {
            Side::Server(listener) => listener.leave(reason),
            Side::Client(connector) => connector.leave(reason),
        }
    }

    /// Sleeps until a socket or the port needs something, or a deadline has passed.
    fn sleep(&self, link_state: &LinkState) {
        let call = link_state.call();
        let mut watched = vec![PollFd::new(&call, PollFlags::IN)];
        let until = match self {
            Side::Server(listener) => listener.watch(&mut watched),
            Side::Client(connector) => connector.watch(&mut watched),
        };
        let limit = until.map_or(SLEEP, |until| until.saturating_duration_since(Instant::now()).min(SLEEP));
        let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
        match poll(&mut watched, Some(&limit)) {
            Ok(_) if !watched[0].revents().is_empty() => link_state.answer(),
            Ok(_) | Err(Errno::INTR) => {}
            // The kernel has no memory for the call: try again, but do not spin.
            Err(_) => thread::sleep(RETRY),
        }
    }
}
