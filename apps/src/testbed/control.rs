//! What `weft testbed` says to the switches that run: a line of JSON each way over a Unix socket.

use super::status::Status;
use crate::Failure;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;
use std::time::Duration;

/// How long the switches may take to answer, and a client to say what it wants.
const PATIENCE: Duration = Duration::from_secs(5);
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

/// Listens at `path` in a thread of its own, for as long as the process lives.
///
/// # Errors
/// What the system says.
pub(super) fn listen(path: &Path) -> io::Result<Receiver<Call>> {
    let listener = UnixListener::bind(path)?;
    let (calls, receiver) = mpsc::channel();
    thread::Builder::new().name("weft-control".to_owned()).spawn(move || {
        for stream in listener.incoming().flatten() {
            // One that says nothing, or nonsense, is no reason to stop.
            let _ = serve(stream, &calls);
        }
    })?;
    Ok(receiver)
}

fn serve(mut stream: UnixStream, calls: &mpsc::Sender<Call>) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new(Read::by_ref(&mut stream).take(LONGEST)).read_line(&mut line)?;
    let reply = match serde_json::from_str(&line) {
        Ok(request) => {
            let (answer, replies) = mpsc::sync_channel(1);
            let sent = calls.send(Call { request, answer });
            let waited = sent.ok().and_then(|()| replies.recv_timeout(PATIENCE).ok());
            waited.unwrap_or_else(|| Reply::Refused("the switches do not answer".to_owned()))
        }
        Err(error) => Reply::Refused(format!("not understood: {error}")),
    };
    let mut text = serde_json::to_vec(&reply)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

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
}
