//! One application through `weft serve`: the same code as over ports of its own.

use crate::body;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::body::{Pair, Side};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use weft::{Completion, ConnectOptions, Endpoint, Error, ReceiveOptions, SendOptions, Source};

/// Far longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(20);

/// A server that is running.
struct Server(Child);

impl Server {
    fn start(socket: &Path, own: &str) -> Server {
        let mut child = Command::new(env!("CARGO_BIN_EXE_weft"))
            .args(["serve", "--port", &format!("udp:{own}"), "--socket"])
            .arg(socket)
            .stdout(Stdio::piped())
            .spawn()
            .expect("weft starts");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        assert!(lines.any(|line| line.is_ok_and(|line| line.starts_with("serving "))), "the server serves");
        std::thread::spawn(move || lines.count());
        Server(child)
    }

    /// Ends it as the system does with -9.
    fn kill(&mut self) {
        self.0.kill().expect("it runs");
        self.0.wait().expect("it ends");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Two servers at 127.85.`test`.1 and .2, and an application of each.
fn served(test: u8) -> (Pair, [Server; 2], tempfile::TempDir) {
    let dir = tempfile::tempdir().expect("a directory");
    let start = |n: u8| {
        let (socket, address) = (dir.path().join(n.to_string()), format!("127.85.{test}.{n}"));
        let server = Server::start(&socket, &address);
        (Side::new(body::open(&format!("serve:{}", socket.display())), address), server)
    };
    let ((mut left, first), (mut right, second)) = (start(1), start(2));
    // A server drops packets from hosts that no application has named.
    left.endpoint.peer(right.address.as_str()).unwrap();
    right.endpoint.peer(left.address.as_str()).unwrap();
    (Pair { left, right }, [first, second], dir)
}

#[test]
fn an_application_runs_through_a_server() {
    let (mut pair, _servers, _dir) = served(1);
    body::exchange(&mut pair);
}

#[test]
fn a_full_session_gives_the_buffer_back() {
    let (mut pair, _servers, _dir) = served(2);
    body::back_pressure(&mut pair);
}

/// Two applications of one server have numbers of their own, and the one that asks for a number gets it.
#[test]
fn several_applications_share_a_server() {
    let (mut pair, _servers, dir) = served(3);
    let spec = format!("serve:{}", dir.path().join("2").display());
    let mut other = Endpoint::builder(&spec).process(77).build().unwrap();
    assert_eq!(other.process(), 77);
    assert!(Endpoint::builder(&spec).process(77).build().is_err(), "nobody else gets it");
    other.receive(vec![0; 10]).unwrap();
    let peer = pair.left.endpoint.peer("127.85.3.2").unwrap();
    let to = weft::ConnectOptions { process: 77, ..weft::ConnectOptions::default() };
    let connection = pair.left.endpoint.connect_with(peer, to).unwrap();
    pair.left.endpoint.send(connection, b"to 77").unwrap();
    assert_eq!(other.wait(LIMIT).unwrap().unwrap().message().unwrap(), &b"to 77"[..]);
    assert!(pair.right.endpoint.wait(Duration::from_millis(50)).unwrap().is_none());
}

/// Two applications of one server send with the same tag to one of another server, which tells them apart.
#[test]
fn applications_of_one_server_are_different_senders() {
    let (mut pair, _servers, dir) = served(7);
    let spec = format!("serve:{}", dir.path().join("1").display());
    let mut other = Endpoint::builder(&spec).process(77).build().unwrap();
    let peer = pair.right.endpoint.peer("127.85.7.1").unwrap();
    let own = pair.left.endpoint.process();
    // The receive that was posted first is for the application that sends last.
    let expected = [(77, vec![77; 9_000]), (own, vec![1; 9_000])];
    for (process, _) in &expected {
        let options = ReceiveOptions::default().tag(5).from(Source { peer, process: *process });
        pair.right.endpoint.receive_with(vec![0; 9_000], options.context((*process).into())).unwrap();
    }
    let to = other.peer("127.85.7.2").unwrap();
    let there = ConnectOptions::default().process(pair.right.endpoint.process());
    for (endpoint, (_, bytes)) in [&mut pair.left.endpoint, &mut other].into_iter().zip(expected.iter().rev())
    {
        let connection = endpoint.connect_with(to, there).unwrap();
        endpoint.send_with(connection, bytes.clone(), SendOptions::default().tag(5)).unwrap();
        let is_sent = |completion| matches!(completion, Completion::Sent { result: Ok(()), .. });
        while !is_sent(endpoint.wait(LIMIT).unwrap().expect("the message is sent")) {}
    }
    for (process, bytes) in expected.iter().rev() {
        let received = pair.right.endpoint.wait(LIMIT).unwrap().unwrap();
        assert!(received.message().unwrap() == bytes[..], "the bytes of process {process}");
        let Completion::Received { source, context, .. } = received else { panic!("{received:?}") };
        let from = Source { peer, process: *process };
        assert_eq!((source, context), (Some(from), (*process).into()));
    }
}

/// All that was posted completes with [`Error::Gone`], with its buffer; and then every call fails so.
fn assert_gone(
    endpoint: &mut Endpoint,
    mut next: impl FnMut(&mut Endpoint) -> Result<Option<Completion>, Error>,
) {
    let (mut buffers, mut closed) = (0, 0);
    let begin = Instant::now();
    let error = loop {
        assert!(begin.elapsed() < Duration::from_secs(5), "the bound is milliseconds");
        match next(endpoint) {
            Ok(Some(Completion::Received { buffer, result: Err(Error::Gone), .. })) => {
                buffers += buffer.len()
            }
            Ok(Some(Completion::Closed { result: Err(Error::Gone), .. })) => closed += 1,
            Ok(Some(Completion::Connected { .. }) | None) => {}
            Ok(Some(other)) => panic!("{other:?}"),
            Err(error) => break error,
        }
    };
    assert_eq!((error, buffers, closed), (Error::Gone, 1234, 1));
    let refused = endpoint.receive(vec![0; 7]).unwrap_err();
    assert_eq!((refused.error, refused.buffer.len()), (Error::Gone, 7));
}

#[test]
fn a_server_that_is_killed_ends_a_wait_a_poll_and_a_sleep_on_the_descriptor() {
    for (test, way) in [(4, "wait"), (5, "poll"), (6, "descriptor")] {
        let (mut pair, mut servers, _dir) = served(test);
        pair.connect();
        pair.left.endpoint.receive(vec![0; 1234]).unwrap();
        // The server has taken the commands, and nothing more will come from it.
        assert!(pair.left.endpoint.wait(Duration::from_millis(50)).unwrap().is_none());
        let [server, _] = &mut servers;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(200));
                server.kill();
            });
            assert_gone(&mut pair.left.endpoint, |endpoint| match way {
                "wait" => endpoint.wait(LIMIT),
                "poll" => endpoint.poll(),
                _ => {
                    if endpoint.arm()? {
                        let mut fds = [PollFd::from_borrowed_fd(endpoint.as_fd(), PollFlags::IN)];
                        let readable = poll(&mut fds, Some(&Timespec { tv_sec: 20, tv_nsec: 0 })).unwrap();
                        assert_eq!(readable, 1, "it becomes readable");
                    }
                    endpoint.poll()
                }
            });
        });
    }
}

/// Applications of one server reach each other at its address, which the server tells them.
#[test]
fn applications_of_one_server_exchange_messages() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("socket");
    let _server = Server::start(&socket, "127.85.9.1");
    let open = || Endpoint::builder(format!("serve:{}", socket.display())).build().unwrap();
    let (mut alice, mut bob) = (open(), open());
    assert_eq!(alice.ip(), Some([127, 85, 9, 1].into()));
    let content: Vec<u8> = (0..3_000_000u32).map(|at| (at % 251) as u8).collect();
    bob.receive(vec![0; content.len()]).unwrap();
    let peer = alice.peer(alice.ip().unwrap()).unwrap();
    let there = ConnectOptions::default().process(bob.process());
    let connection = alice.connect_with(peer, there).unwrap();
    alice.send(connection, content.clone()).unwrap();
    let begin = Instant::now();
    loop {
        assert!(begin.elapsed() < LIMIT, "nothing arrives");
        alice.poll().unwrap();
        if let Some(Completion::Received { source, len, buffer, result, .. }) = bob.poll().unwrap() {
            result.unwrap();
            assert_eq!(source.map(|source| source.process), Some(alice.process()));
            assert!(buffer.to_bytes(len) == content, "the bytes");
            return;
        }
    }
}
