//! The thread that makes links and notices when they are lost.
//!
//! It never touches the memory of a link, nor frees what the port has taken: the port does, when it is not using it.
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

/// How long the thread sleeps when nothing happens.
const SLEEP: Duration = Duration::from_secs(10);

/// Attends to the socket of a port as long as it is not dropped.
#[derive(Debug)]
pub(super) struct ControlThread {
    link_state: Arc<LinkState>,
    thread: Option<JoinHandle<()>>,
}

impl ControlThread {
    /// Takes the server's place at the socket, or begins to look for the server there.
    ///
    /// # Errors
    /// The configuration makes no sense, or the socket cannot be had. A client waits for a server.
    pub(super) fn start(config: &MemifConfig, make_offer: MakeOffer) -> Result<ControlThread, MemifError> {
        config.check()?;
        let system = |error| MemifError::System { what: "attend to", socket: config.socket.clone(), error };
        let link_state = Arc::new(LinkState::new().map_err(system)?);
        let side = match config.role {
            Role::Server => Side::Server(Listener::open(config)?),
            Role::Client => Side::Client(Connector::new(config, make_offer, Instant::now())),
        };
        let shared = link_state.clone();
        let body = move || run(side, &shared);
        let thread = thread::Builder::new().name("weft-memif".to_owned()).spawn(body).map_err(system)?;
        Ok(ControlThread { link_state, thread: Some(thread) })
    }

    /// What it has to say.
    pub(super) fn link_state(&self) -> &Arc<LinkState> {
        &self.link_state
    }
}

impl Drop for ControlThread {
    /// The peer is told, and a server's socket is gone afterwards.
    fn drop(&mut self) {
        self.link_state.close();
        if let Some(thread) = self.thread.take() {
            // Soon: it waits for nothing but the board and sockets.
            let _ = thread.join();
        }
    }
}

enum Side {
    Server(Listener),
    Client(Connector),
}

fn run(mut side: Side, link_state: &LinkState) {
    // Even if it panics, the port must not go on with a link that nobody looks after.
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

    /// Until something happens, or something is due.
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
            // No memory for it: not a reason to spin.
            Err(_) => thread::sleep(RETRY),
        }
    }
}
