//! Applications that join at the server's socket, in a thread of their own: what they do themselves takes the server no time.

use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
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

/// How long silent sockets are left alone: less than the server waits for their requests.
const PAUSE: Duration = Duration::from_millis(1);

pub(crate) struct Joiner {
    listener: Option<SessionListener>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    directory: tempfile::TempDir,
}

impl Joiner {
    /// An application that joins with `config` and leaves, over and over.
    pub(crate) fn start(config: SessionConfig) -> Joiner {
        Joiner::doing(config, move |path| drop(Client::join(path, &config, None, PATIENCE)))
    }

    /// Nobody joins but who knows its path.
    pub(crate) fn nobody(config: SessionConfig) -> Joiner {
        Joiner::doing(config, |_| thread::sleep(PAUSE))
    }

    /// Where applications join.
    pub(crate) fn path(&self) -> PathBuf {
        socket_in(&self.directory)
    }

    /// So many sockets that say nothing. Each that the server closes is replaced.
    pub(crate) fn silent(config: SessionConfig, count: usize) -> Joiner {
        let mut sockets: Vec<UnixStream> = Vec::new();
        Joiner::doing(config, move |path| {
            sockets.retain_mut(|socket| {
                socket.read(&mut [0; 256]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
            });
            while sockets.len() < count {
                let Ok(socket) = UnixStream::connect(path) else { return };
                socket.set_nonblocking(true).expect("sockets can be");
                sockets.push(socket);
            }
            thread::sleep(PAUSE);
        })
    }

    /// A thread that does something over and over.
    fn doing(config: SessionConfig, mut step: impl FnMut(&Path) + Send + 'static) -> Joiner {
        let directory = tempfile::tempdir().expect("there is a place for it");
        let path = socket_in(&directory);
        let waker = Waker::new().expect("the system has one");
        let listener = Some(SessionListener::open(&path, config, waker).expect("nobody else listens there"));
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                step(&path);
            }
        });
        Joiner { listener, stop, thread: Some(thread), directory }
    }

    /// What the server does for it in a turn.
    pub(crate) fn attend(&mut self, sessions: &mut Sessions, server: &mut Fep, now: Time) {
        if let Some(listener) = &mut self.listener {
            listener.attend(sessions, server, now);
        }
    }
}

fn socket_in(directory: &tempfile::TempDir) -> PathBuf {
    directory.path().join("socket")
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
