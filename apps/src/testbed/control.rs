//! The control socket of a testbed: `weft testbed` sends a request, the process of the switches answers; each is a line
//! of JSON over a Unix socket.
//!
//! The switches serve one connection at a time, from the loop that turns them, and never wait for it.

use super::status::Status;
use crate::Failure;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// The longest that a connection is served.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a connection may be without a request while another one waits.
const GRACE: Duration = Duration::from_millis(20);
/// How long `weft testbed` waits for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long it waits before it connects again, where its connection was closed.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// Bytes of the longest request.
const MAX_REQUEST: usize = 4_096;

/// A request to the switches.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Request {
    Status,
    /// Change a link: the words of [`weft_testbed::link_events`] without a time.
    SetLink(String),
    /// End the testbed.
    Down,
}

/// The answer to a request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Reply {
    Done,
    Status(Box<Status>),
    Refused(String),
}

/// The control socket, at the switches' end.
pub(super) struct Control {
    listener: UnixListener,
    client: Option<Client>,
}

/// The connection that is served.
struct Client {
    stream: UnixStream,
    since: Instant,
    /// Bytes of the request that have arrived.
    request: Vec<u8>,
    /// Bytes of the reply that are still to be sent; empty before there is a request.
    reply: Vec<u8>,
}

impl Control {
    /// Listens at `path`.
    ///
    /// # Errors
    /// Whatever the system reports.
    pub(super) fn listen(path: &Path) -> io::Result<Control> {
        Control::on(UnixListener::bind(path)?)
    }

    /// The same at a socket that is bound already.
    pub(super) fn on(listener: UnixListener) -> io::Result<Control> {
        listener.set_nonblocking(true)?;
        Ok(Control { listener, client: None })
    }

    /// The next request, if one has arrived; [`Control::answer`] is then due. Does not wait.
    pub(super) fn poll(&mut self) -> Option<Request> {
        // The one that is served may have just sent its request, so it is looked at before it has to give way.
        let mut request = self.read();
        if request.is_none() && self.client.as_ref().is_none_or(Client::gives_way) && self.accept() {
            request = self.read();
        }
        request
    }

    /// Sends `reply` to the client whose request [`Control::poll`] has returned.
    pub(super) fn answer(&mut self, reply: &Reply) {
        if let Some(client) = &mut self.client {
            client.reply = line_of(reply);
            self.write();
        }
    }

    /// Serves the next connection in place of the present one. Returns whether there is one.
    fn accept(&mut self) -> bool {
        let accepted = self.listener.accept().and_then(|(stream, _)| {
            stream.set_nonblocking(true)?;
            Ok(Client { stream, since: Instant::now(), request: Vec::new(), reply: Vec::new() })
        });
        // Without a descriptor for it, say, the connection waits for a later poll.
        accepted.map(|client| self.client = Some(client)).is_ok()
    }

    /// Goes on with the client that is served, and ends with one that has gone or takes too long.
    fn read(&mut self) -> Option<Request> {
        let client = self.client.as_mut()?;
        if client.since.elapsed() >= CONNECTION_TIMEOUT {
            self.client = None;
            return None;
        }
        if !client.reply.is_empty() {
            self.write();
            return None;
        }
        let (stream, request) = (&client.stream, &mut client.request);
        let ended = match stream.take((MAX_REQUEST - request.len()) as u64).read_to_end(request) {
            Err(e) if e.kind() == ErrorKind::WouldBlock => false,
            // The client has closed its end, the request is too long, or reading failed: read no more.
            _ => true,
        };
        if request.is_empty() && ended {
            self.client = None;
            return None;
        }
        let line = match request.iter().position(|byte| *byte == b'\n') {
            Some(end) => &request[..end],
            None if ended => request,
            None => return None,
        };
        match serde_json::from_slice(line) {
            Ok(request) => Some(request),
            Err(error) => {
                self.answer(&Reply::Refused(format!("not understood: {error}")));
                None
            }
        }
    }

    /// Sends as much of the reply as the socket takes, and closes the connection after the last of it.
    fn write(&mut self) {
        let Some(client) = &mut self.client else { return };
        loop {
            match client.stream.write(&client.reply) {
                Ok(sent) if sent > 0 && sent < client.reply.len() => drop(client.reply.drain(..sent)),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                // The whole answer is sent, or the client has closed the connection.
                _ => return self.client = None,
            }
        }
    }
}

impl Client {
    /// Whether it has had its time to ask, and another connection may take its place.
    fn gives_way(&self) -> bool {
        self.reply.is_empty() && self.since.elapsed() >= GRACE
    }
}

fn line_of(message: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Sends `request` to the switches that listen at `path`. `None` if no process listens there, or if the switches end
/// before they answer.
///
/// # Errors
/// They refuse, or do not answer within 10 s.
pub(super) fn ask(path: &Path, request: &Request) -> Result<Option<Reply>, Failure> {
    let begin = Instant::now();
    let line = loop {
        match exchange(path, request) {
            Ok(line) if !line.is_empty() => break line,
            Err(error) if is_absent(&error) => return Ok(None),
            Err(error) if is_late(&error) => {
                return Err(Failure::Run(format!(
                    "testbed: no answer within {} s at {}: it is stopped or very busy; expected the same again later, \
                     or weft testbed down",
                    ANSWER_TIMEOUT.as_secs(),
                    path.display()
                )));
            }
            Err(error) if !is_closed(&error) => return Err(Failure::at(path, &error)),
            // The switches have closed the connection without an answer. If they have ended, no process listens now;
            // otherwise the request came late.
            _ if begin.elapsed() < ANSWER_TIMEOUT => thread::sleep(RETRY_INTERVAL),
            _ => return Ok(None),
        }
    };
    match serde_json::from_str(&line) {
        Ok(Reply::Refused(why)) => Err(Failure::Usage(why)),
        Ok(reply) => Ok(Some(reply)),
        Err(error) => Err(Failure::Run(format!("{}: not understood: {error}", path.display()))),
    }
}

/// The line that is answered; empty if the connection is closed without one.
fn exchange(path: &Path, request: &Request) -> io::Result<String> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    stream.write_all(&line_of(request))?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(line)
}

/// Whether connecting failed because no process listens at the socket.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused)
}

/// Whether the other end has closed the connection.
fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
}

/// Whether a socket's timeout has passed.
fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use tempfile::TempDir;

    /// A thread that polls a control socket as the switches do, until it is dropped.
    struct Switches {
        path: PathBuf,
        end: Arc<AtomicBool>,
        thread: Option<thread::JoinHandle<()>>,
        _directory: TempDir,
    }

    impl Switches {
        fn new(answer: impl Fn(Request) -> Reply + Send + 'static) -> Switches {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("control.sock");
            assert!(ask(&path, &Request::Status).unwrap().is_none(), "nobody listens yet");
            let (mut control, end) = (Control::listen(&path).unwrap(), Arc::new(AtomicBool::new(false)));
            let ended = end.clone();
            let thread = thread::spawn(move || {
                while !ended.load(Ordering::Relaxed) {
                    if let Some(request) = control.poll() {
                        control.answer(&answer(request));
                    }
                    thread::sleep(Duration::from_millis(1));
                }
            });
            Switches { path, end, thread: Some(thread), _directory: directory }
        }

        fn obliging() -> Switches {
            Switches::new(|_| Reply::Done)
        }

        fn connect(&self) -> UnixStream {
            let stream = UnixStream::connect(&self.path).unwrap();
            stream.set_read_timeout(Some(CONNECTION_TIMEOUT * 4)).unwrap();
            stream
        }

        fn assert_answering(&self) {
            assert!(matches!(ask(&self.path, &Request::Status).unwrap(), Some(Reply::Done)));
        }
    }

    impl Drop for Switches {
        fn drop(&mut self) {
            self.end.store(true, Ordering::Relaxed);
            let ended = self.thread.take().map(thread::JoinHandle::join);
            assert!(thread::panicking() || ended.is_some_and(|ended| ended.is_ok()));
        }
    }

    /// The answer of the switches to `bytes`.
    fn said(switches: &Switches, bytes: &[u8]) -> String {
        let mut stream = switches.connect();
        stream.write_all(bytes).unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        line
    }

    #[test]
    fn requests_are_answered_and_nonsense_is_refused() {
        let switches = Switches::new(|request| match request {
            Request::SetLink(words) => Reply::Refused(format!("no {words}")),
            _ => Reply::Done,
        });
        assert!(matches!(ask(&switches.path, &Request::Down).unwrap(), Some(Reply::Done)));
        let refused = ask(&switches.path, &Request::SetLink("host=9 down".to_owned())).unwrap_err();
        assert_eq!(refused.to_string(), "no host=9 down");
        assert_eq!(said(&switches, b"\"status\"\n"), "\"done\"\n");
        assert!(said(&switches, b"hello\n").contains("not understood"));
        assert!(said(&switches, &[b'x'; MAX_REQUEST]).contains("not understood"), "it is too long");
        let mut half = switches.connect();
        half.write_all(b"\"sta").unwrap();
        thread::sleep(Duration::from_millis(5));
        half.write_all(b"tus\"\n").unwrap();
        let mut line = String::new();
        BufReader::new(half).read_line(&mut line).unwrap();
        assert_eq!(line, "\"done\"\n");
    }

    #[test]
    fn long_answers_arrive_whole_and_slow_readers_do_not_stop_the_switches() {
        let words = "x".repeat(4 << 20);
        let expected = words.clone();
        let switches = Switches::new(move |request| match request {
            Request::SetLink(_) => Reply::Refused(words.clone()),
            _ => Reply::Done,
        });
        let long = ask(&switches.path, &Request::SetLink(String::new())).unwrap_err();
        assert!(long.to_string() == expected);
        let begin = Instant::now();
        let mut idle = switches.connect();
        idle.write_all(b"{\"setlink\":\"\"}\n").unwrap();
        thread::sleep(GRACE * 2);
        switches.assert_answering();
        assert!(begin.elapsed() < CONNECTION_TIMEOUT * 2, "{:?}", begin.elapsed());
    }

    #[test]
    fn connections_without_a_request_do_not_block_other_clients() {
        let switches = Switches::obliging();
        let begin = Instant::now();
        let mut silent: Vec<UnixStream> = (0..100).map(|_| switches.connect()).collect();
        switches.assert_answering();
        assert!(begin.elapsed() < ANSWER_TIMEOUT, "{:?}", begin.elapsed());
        for stream in &mut silent {
            assert_eq!(stream.read(&mut [0; 64]).unwrap(), 0, "it is closed");
        }
        // The switches close a connection without a request when its time limit has passed.
        let (mut last, begin) = (switches.connect(), Instant::now());
        assert_eq!(last.read(&mut [0; 64]).unwrap(), 0, "it is closed");
        assert!(begin.elapsed() >= CONNECTION_TIMEOUT / 2, "{:?}", begin.elapsed());
        switches.assert_answering();
    }

    #[test]
    fn a_request_on_a_connection_that_was_closed_is_sent_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let switches = thread::spawn(move || {
            drop(listener.accept().unwrap());
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"\"done\"\n").unwrap();
            let _ = stream.read(&mut [0; 64]);
        });
        assert!(matches!(ask(&path, &Request::Status).unwrap(), Some(Reply::Done)));
        switches.join().unwrap();
        assert!(ask(&path, &Request::Status).unwrap().is_none(), "they have ended");
    }

    #[test]
    fn switches_that_do_not_answer_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        let _deaf = UnixListener::bind(&path).unwrap();
        let error = ask(&path, &Request::Status).unwrap_err();
        assert!(error.to_string().starts_with("testbed: no answer within 10 s at "), "{error}");
    }
}
