//! Processes that keep the queue of those that join full, and how long an honest application waits in it. Here time is that of the
//! clock: what is measured passes through the system's queue, and the server's thread that accepts applications.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use weft_stack::worker::session::{Client, SessionConfig};

use crate::PARTS;
use crate::honest::{in_parts, median};
use crate::interface::session;
use crate::net::Net;

/// The word after which this program is a crowd, and asks at the path that follows.
pub(crate) const CROWD: &str = "--crowd";
/// Sockets that a process of a crowd keeps open; in the system's queue it has as many as have room there.
const OPEN: usize = 500;
/// Joins in a part.
const JOINS: usize = 8;
/// How long a join may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a second process does while an application joins.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Crowd {
    Nobody,
    /// It has nothing to do with the server, and needs a processor.
    Computes,
    /// It asks to join, and does not wait for the answer.
    Asks,
    /// It says nothing.
    IsSilent,
}

impl Crowd {
    /// The argument that tells the second process what to do.
    fn word(self) -> &'static str {
        match self {
            Crowd::Nobody => "nobody",
            Crowd::Computes => "computes",
            Crowd::Asks => "asks",
            Crowd::IsSilent => "silent",
        }
    }
}

/// A process of its own, as processes take turns.
struct Process(Child);

impl Process {
    fn start(path: &Path, crowd: Crowd) -> Process {
        let program = std::env::current_exe().expect("it has a path");
        let child =
            Command::new(program).arg(CROWD).arg(path).arg(crowd.word()).stdout(Stdio::null()).spawn();
        Process(child.expect("the system has room for it"))
    }

    fn check(&mut self) {
        let ended = self.0.try_wait().expect("it is this one's child");
        assert!(ended.is_none(), "the crowd has ended: {ended:?}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A request for a small session (`join.rs` in `stack/src/worker/session`).
fn request() -> Vec<u8> {
    let words = [10u32, 0, 8, 8, 16, 4, 1 << 16, 2, 1, 0, 0, 0, 0, 0];
    words.iter().fold(b"weft-ses".to_vec(), |bytes, word| [bytes, word.to_ne_bytes().to_vec()].concat())
}

/// Connects to the server at `path` over and over, until it is killed.
pub(crate) fn crowd(path: &Path, what: &str) {
    let (request, mut sockets) = (request(), VecDeque::new());
    while what == Crowd::Computes.word() {
        std::hint::spin_loop();
    }
    loop {
        let Ok(mut socket) = UnixStream::connect(path) else { return };
        // It may have been refused before.
        let _ = if what == Crowd::Asks.word() { socket.write_all(&request) } else { Ok(()) };
        sockets.push_back(socket);
        if sockets.len() > OPEN
            && let Some(oldest) = sockets.pop_front()
        {
            check(oldest);
        }
    }
}

/// The server must not take requests for those of another version.
fn check(mut socket: UnixStream) {
    let mut reply = Vec::new();
    socket.set_nonblocking(true).expect("sockets can be");
    match socket.read_to_end(&mut reply) {
        Ok(_) => {}
        Err(error) => assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionReset)),
    }
    let text = String::from_utf8_lossy(&reply);
    assert!(!text.contains("version"), "{text}");
}

/// A server, and what another process does.
struct Server {
    net: Net,
    crowd: Option<Process>,
}

impl Server {
    fn new(crowd: Crowd) -> Server {
        let mut net = Net::new(|_| {});
        let path = net.let_nobody_join(small());
        let crowd = (crowd != Crowd::Nobody).then(|| Process::start(&path, crowd));
        let mut server = Server { net, crowd };
        // Until the queue is full.
        server.serve_while(|_, begin| begin.elapsed() < Duration::from_millis(100));
        server
    }

    fn serve_while(&mut self, mut goes_on: impl FnMut(&mut Net, Instant) -> bool) {
        let begin = Instant::now();
        while goes_on(&mut self.net, begin) {
            self.net.attend();
            self.net.turn();
        }
    }

    /// Joins in a second, one after the other, at random times.
    fn joins(&mut self) -> Option<f64> {
        let path = self.net.path_of_listener()?;
        let joins = thread::spawn(move || {
            let join = |_| {
                thread::sleep(Duration::from_millis(1));
                let begin = Instant::now();
                Client::join(&path, &small(), None, PATIENCE).ok()?;
                Some(1.0 / begin.elapsed().as_secs_f64())
            };
            (0..JOINS).map(join).collect::<Option<Vec<_>>>()
        });
        self.serve_while(|_, _| !joins.is_finished());
        if let Some(crowd) = &mut self.crowd {
            crowd.check();
        }
        Some(median(joins.join().expect("it has not panicked")?))
    }
}

fn small() -> SessionConfig {
    SessionConfig { memory: 1 << 16, ..session(16, 4) }
}

/// Joins in a second beside each of these; of what other rows measure besides there is nothing (NaN).
pub(crate) fn measure(crowds: &[Crowd]) -> Vec<Vec<Option<f64>>> {
    let mut servers: Vec<Crowd> = crowds.to_vec();
    // One at a time, as the others would have no turns meanwhile, and their crowds the processors.
    let joins = in_parts(&mut servers, PARTS, |crowd| Server::new(*crowd).joins());
    joins.into_iter().map(|joins| [vec![Some(f64::NAN); 5], vec![joins]].concat()).collect()
}
