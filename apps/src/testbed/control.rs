//! What `weft testbed` says to the switches that run: a line of JSON each way over a Unix socket.

use super::status::Status;
use crate::Failure;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// How long the switches may take to answer, and a client to say what it wants.
const PATIENCE: Duration = Duration::from_secs(5);
/// Connections that have not said what they want: with one more, the one that has said nothing for longest is closed.
const SILENT: usize = 32;
/// Connections that wait for the switches' answer. One more is refused.
const ASKING: usize = 64;
/// How long to wait where no connection can be accepted.
const RETRY: Duration = Duration::from_millis(100);
/// Bytes of the longest request.
const LONGEST: u64 = 4_096;

/// What a client wants.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Request {
    Status,
    /// A link and what becomes of it.
    SetLink(String),
    Down,
}

/// What it is told.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Reply {
    Done,
    Status(Box<Status>),
    Refused(String),
}

/// A request, and where its answer goes.
pub(super) struct Call {
    pub(super) request: Request,
    answer: SyncSender<Reply>,
}

impl Call {
    /// Answers it.
    pub(super) fn answer(self, reply: Reply) {
        // A client that has gone needs no answer.
        let _ = self.answer.send(reply);
    }
}

/// Connections, each of which is served by a thread of its own.
#[derive(Default)]
struct Served {
    next: u64,
    /// Those that have not said what they want, the oldest first.
    silent: VecDeque<(u64, UnixStream)>,
    /// How many wait for an answer.
    asking: usize,
}

/// A connection's place among them, until it is dropped.
struct Seat {
    number: u64,
    asking: bool,
    served: Arc<Mutex<Served>>,
}

impl Seat {
    fn take(served: &Arc<Mutex<Served>>, stream: &UnixStream) -> io::Result<Seat> {
        let mut all = lock(served);
        if all.silent.len() >= SILENT
            && let Some((_, oldest)) = all.silent.pop_front()
        {
            // Its thread still reads what it has sent, and then the end.
            let _ = oldest.shutdown(Shutdown::Read);
        }
        let number = all.next;
        all.silent.push_back((number, stream.try_clone()?));
        all.next += 1;
        Ok(Seat { number, asking: false, served: served.clone() })
    }

    /// The connection is no longer silent. False if too many others are asking.
    fn ask(&mut self) -> bool {
        let mut all = lock(&self.served);
        all.silent.retain(|(number, _)| *number != self.number);
        self.asking = all.asking < ASKING;
        all.asking += usize::from(self.asking);
        self.asking
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut all = lock(&self.served);
        all.silent.retain(|(number, _)| *number != self.number);
        all.asking -= usize::from(self.asking);
    }
}

/// What it guards is whole after each statement, so a panic elsewhere is no reason to stop.
fn lock(served: &Mutex<Served>) -> MutexGuard<'_, Served> {
    served.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Listens at `path` in threads of its own, for as long as the process lives.
///
/// # Errors
/// What the system says.
pub(super) fn listen(path: &Path) -> io::Result<Receiver<Call>> {
    let listener = UnixListener::bind(path)?;
    let (calls, receiver) = mpsc::channel();
    let served = Arc::default();
    thread::Builder::new().name("weft-control".to_owned()).spawn(move || {
        for stream in listener.incoming() {
            match stream {
                // One that says nothing, or nonsense, is no reason to stop.
                Ok(stream) => drop(accept(stream, &served, &calls)),
                // For want of descriptors, say, which those that are served give back.
                Err(_) => thread::sleep(RETRY),
            }
        }
    })?;
    Ok(receiver)
}

/// Serves a connection in a thread.
fn accept(mut stream: UnixStream, served: &Arc<Mutex<Served>>, calls: &mpsc::Sender<Call>) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let (mut seat, calls) = (Seat::take(served, &stream)?, calls.clone());
    let serve = move || {
        // Whoever has gone needs no answer.
        let _ = serve(&mut stream, &mut seat, &calls);
    };
    thread::Builder::new().name("weft-control".to_owned()).spawn(serve).map(drop)
}

fn serve(stream: &mut UnixStream, seat: &mut Seat, calls: &mpsc::Sender<Call>) -> io::Result<()> {
    let mut line = String::new();
    BufReader::new(Read::by_ref(stream).take(LONGEST)).read_line(&mut line)?;
    if line.is_empty() {
        return Ok(());
    }
    if !seat.ask() {
        let why = format!("testbed: {ASKING} others are asking already; expected the same again later");
        return say(stream, &Reply::Refused(why));
    }
    let reply = match serde_json::from_str(&line) {
        Ok(request) => {
            let (answer, replies) = mpsc::sync_channel(1);
            let sent = calls.send(Call { request, answer });
            let waited = sent.ok().and_then(|()| replies.recv_timeout(PATIENCE).ok());
            waited.unwrap_or_else(|| Reply::Refused("the switches do not answer".to_owned()))
        }
        Err(error) => Reply::Refused(format!("not understood: {error}")),
    };
    say(stream, &reply)
}

fn say(stream: &mut UnixStream, reply: &Reply) -> io::Result<()> {
    let mut text = serde_json::to_vec(reply)?;
    text.push(b'\n');
    stream.write_all(&text)
}

/// Asks the switches that listen at `path`. None if nobody listens there, or they end before they answer.
///
/// # Errors
/// They refuse, or do not answer within 10 s.
pub(super) fn ask(path: &Path, request: &Request) -> Result<Option<Reply>, Failure> {
    let line = match exchange(path, request) {
        Ok(line) if line.is_empty() => return Ok(None),
        Ok(line) => line,
        Err(error) if is_gone(&error) => return Ok(None),
        Err(error) if is_late(&error) => {
            return Err(Failure::Run(format!(
                "testbed: no answer within {} s at {}: it is stopped or very busy; expected the same again later, or \
                 weft testbed down",
                2 * PATIENCE.as_secs(),
                path.display()
            )));
        }
        Err(error) => return Err(Failure::Run(format!("{}: {error}", path.display()))),
    };
    match serde_json::from_str(&line) {
        Ok(Reply::Refused(why)) => Err(Failure::Usage(why)),
        Ok(reply) => Ok(Some(reply)),
        Err(error) => Err(Failure::Run(format!("{}: not understood: {error}", path.display()))),
    }
}

fn exchange(path: &Path, request: &Request) -> io::Result<String> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE * 2))?;
    stream.set_write_timeout(Some(PATIENCE * 2))?;
    let mut text = serde_json::to_vec(request)?;
    text.push(b'\n');
    stream.write_all(&text)?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(line)
}

/// What connecting to nobody looks like, and to a process that is being killed.
fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound};
    matches!(error.kind(), NotFound | ConnectionRefused | ConnectionReset | BrokenPipe)
}

/// What a socket's timeout looks like.
fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    /// Switches that do as they are told.
    fn obliging(path: &Path) {
        let calls = listen(path).unwrap();
        thread::spawn(move || calls.into_iter().for_each(|call| call.answer(Reply::Done)));
    }

    #[test]
    fn requests_are_answered_and_nonsense_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("control.sock");
        assert!(ask(&path, &Request::Status).unwrap().is_none(), "nobody is there");
        let calls = listen(&path).unwrap();
        thread::spawn(move || {
            for call in calls {
                let reply = match &call.request {
                    Request::SetLink(words) => Reply::Refused(format!("no {words}")),
                    _ => Reply::Done,
                };
                call.answer(reply);
            }
        });
        assert!(matches!(ask(&path, &Request::Down).unwrap(), Some(Reply::Done)));
        let refused = ask(&path, &Request::SetLink("host=9 down".to_owned())).unwrap_err();
        assert_eq!(refused.to_string(), "no host=9 down");
        let mut rude = UnixStream::connect(&path).unwrap();
        rude.write_all(b"hello\n").unwrap();
        let mut line = String::new();
        BufReader::new(rude).read_line(&mut line).unwrap();
        assert!(line.contains("not understood"), "{line}");
    }

    #[test]
    fn switches_that_do_not_answer_are_waited_for_so_long_and_no_longer() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("control.sock");
        let _calls = listen(&path).unwrap();
        let begin = Instant::now();
        let error = ask(&path, &Request::Status).unwrap_err();
        assert_eq!(error.to_string(), "the switches do not answer");
        assert!(begin.elapsed() >= PATIENCE);
    }

    #[test]
    fn those_who_say_nothing_keep_nobody_waiting() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("control.sock");
        obliging(&path);
        let begin = Instant::now();
        let mut silent: Vec<UnixStream> = (0..200).map(|_| UnixStream::connect(&path).unwrap()).collect();
        assert!(matches!(ask(&path, &Request::Status).unwrap(), Some(Reply::Done)));
        let limit = Some(PATIENCE * 4);
        for stream in &mut silent {
            stream.set_read_timeout(limit).unwrap();
            assert_eq!(stream.read(&mut [0; 64]).unwrap(), 0, "it is closed");
        }
        // The last ones were closed because their time was over.
        assert!(begin.elapsed() >= PATIENCE);
        assert!(matches!(ask(&path, &Request::Status).unwrap(), Some(Reply::Done)));
    }

    #[test]
    fn those_who_wait_for_the_switches_are_so_many_and_no_more() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("control.sock");
        let calls = listen(&path).unwrap();
        let waiting: Vec<UnixStream> = (0..ASKING)
            .map(|_| {
                let mut stream = UnixStream::connect(&path).unwrap();
                stream.write_all(b"\"status\"\n").unwrap();
                stream
            })
            .collect();
        let asked: Vec<Call> = calls.iter().take(ASKING).collect();
        let error = ask(&path, &Request::Status).unwrap_err();
        assert!(error.to_string().contains("64 others are asking already"), "{error}");
        asked.into_iter().for_each(|call| call.answer(Reply::Done));
        for stream in waiting {
            let mut line = String::new();
            BufReader::new(stream).read_line(&mut line).unwrap();
            assert_eq!(line, "\"done\"\n");
        }
    }

    #[test]
    fn who_does_not_answer_at_all_is_named() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("control.sock");
        let _deaf = UnixListener::bind(&path).unwrap();
        let error = ask(&path, &Request::Status).unwrap_err();
        assert!(error.to_string().starts_with("testbed: no answer within 10 s at "), "{error}");
    }
}
