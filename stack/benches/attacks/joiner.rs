//! An application that joins at the server's socket and leaves, over and over, in a thread of its own: what it does itself takes
//! the server no time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use weft_stack::Time;
use weft_stack::fep::Fep;
use weft_stack::worker::Waker;
use weft_stack::worker::session::{Client, SessionConfig, SessionListener, Sessions};

/// How long it waits for an answer: the server has turns only while something is measured.
const PATIENCE: Duration = Duration::from_secs(1);

pub(crate) struct Joiner {
    listener: Option<SessionListener>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    _directory: tempfile::TempDir,
}

impl Joiner {
    /// One that joins with `config`.
    pub(crate) fn start(config: SessionConfig) -> Joiner {
        let directory = tempfile::tempdir().expect("there is a place for it");
        let path = directory.path().join("socket");
        let waker = Waker::new().expect("the system has one");
        let listener = Some(SessionListener::open(&path, config, waker).expect("nobody else listens there"));
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                drop(Client::join(&path, &config, None, PATIENCE));
            }
        });
        Joiner { listener, stop, thread: Some(thread), _directory: directory }
    }

    /// What the server does for it in a turn.
    pub(crate) fn attend(&mut self, sessions: &mut Sessions, server: &mut Fep, now: Time) {
        if let Some(listener) = &mut self.listener {
            listener.attend(sessions, server, now);
        }
    }
}

impl Drop for Joiner {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // A join that waits fails.
        self.listener = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
