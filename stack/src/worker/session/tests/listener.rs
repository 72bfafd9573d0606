//! Applications that join through a socket.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::super::join::{Asked, REPLY, ask, connect_within, read_reply, request};
use super::super::listener::{Joining, REST};
use super::*;
use crate::region::{free_first_page, mappings};
use crate::worker::{Clock, Waker};

/// Far longer than anything here takes.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

/// Two endpoints with a listener each, driven by a thread.
pub(super) struct Hosts {
    sockets: [PathBuf; 2],
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    _dir: tempfile::TempDir,
}

impl Hosts {
    pub(super) fn new() -> Hosts {
        let dir = tempfile::tempdir().unwrap();
        let sockets = [dir.path().join("left"), dir.path().join("right")];
        let (stop, paths) = (Arc::new(AtomicBool::new(false)), sockets.clone());
        let stopped = stop.clone();
        let (ready, opened) = std::sync::mpsc::channel();
        let thread = thread::spawn(move || {
            let mut world = World::new();
            let mut listeners =
                paths.map(|path| SessionListener::open(&path, SMALL, Waker::new().unwrap()).unwrap());
            ready.send(()).unwrap();
            let clock = Clock::new();
            while !stopped.load(Ordering::Acquire) {
                // Joining applications live in real time.
                let now = clock.now();
                if now.is_at_or_after(world.now) {
                    world.now = now;
                }
                for (side, listener) in listeners.iter_mut().enumerate() {
                    listener.attend(&mut world.sessions[side], &mut world.feps[side], world.now);
                }
                world.step(8);
                thread::yield_now();
            }
        });
        opened.recv().unwrap();
        Hosts { sockets, stop, thread: Some(thread), _dir: dir }
    }

    pub(super) fn socket(&self, side: usize) -> &std::path::Path {
        &self.sockets[side]
    }

    pub(super) fn join(
        &self,
        side: usize,
        config: &SessionConfig,
        process: Option<u16>,
    ) -> Result<Client, JoinError> {
        Client::join(&self.sockets[side], config, process, LIMIT)
    }

    fn refusal(&self, config: &SessionConfig, process: Option<u16>) -> String {
        match self.join(0, config, process) {
            Err(JoinError::Refused(_, why)) => why,
            other => panic!("{other:?}"),
        }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let outcome = self.thread.take().map(JoinHandle::join);
        assert!(thread::panicking() || matches!(outcome, Some(Ok(()))));
    }
}

pub(super) fn event(client: &mut Client) -> Result<Event, ClientError> {
    let started = Instant::now();
    loop {
        if let Some(event) = client.poll()? {
            return Ok(event);
        }
        assert!(started.elapsed() < LIMIT, "no event");
        client.wait(Duration::from_millis(10))?;
    }
}

#[test]
fn applications_that_join_exchange_messages_and_free_their_place_when_they_leave() {
    let hosts = Hosts::new();
    let mut alice = hosts.join(0, &SMALL, None).unwrap();
    let mut bob = hosts.join(1, &SMALL, Some(77)).unwrap();
    assert_eq!((alice.addr(), bob.addr(), bob.process()), (Addr(0), Addr(1), 77));
    // What the server tells those that only ask is what it tells those that join; and it is no place taken.
    let asked: Vec<ServerFacts> =
        (0..20).map(|_| Client::facts_at(&hosts.sockets[0], LIMIT).unwrap()).collect();
    let (longest_datagram, host) = (alice.longest_datagram(), alice.host());
    let facts = ServerFacts { longest_datagram, applications: 4, host };
    assert_eq!((asked, alice.longest_datagram() > 0), (vec![facts; 20], true));
    let bytes = content(8, 200_000);
    alice.write(0, &bytes).unwrap();
    bob.receive(extent(0, 200_000), None, Matching::Untagged, 1).unwrap();
    let connection = alice.connect(Addr(1), to(&bob), 2).unwrap();
    alice.send(connection, extent(0, 200_000), None, 0, 3).unwrap();
    let received = event(&mut bob).unwrap();
    assert!(matches!(received.report, Report::Received { result: Ok(()), len: 200_000, .. }));
    let mut copy = vec![0; 200_000];
    bob.read(0, &mut copy).unwrap();
    assert!(copy == bytes);
    assert_eq!(event(&mut alice).unwrap().context, 2);
    assert_eq!(event(&mut alice).unwrap().context, 3);
    let process = alice.process();
    drop(alice);
    // Its place and its process are free again.
    let started = Instant::now();
    while hosts.join(0, &SMALL, Some(process)).is_err() {
        assert!(started.elapsed() < LIMIT);
    }
    drop(hosts);
    assert_eq!(event(&mut bob), Err(ClientError::Gone));
}

/// As a server does that has no descriptor left: it does not wait for the request.
#[test]
fn a_refusal_that_comes_before_the_request_is_heard() {
    let (server, client) = UnixStream::pair().unwrap();
    super::super::join::refuse(&server, "Too many open files", &mut 0);
    drop(server);
    match Client::join_over(client, "socket".as_ref(), &SMALL, None, LIMIT) {
        Err(JoinError::Refused(_, why)) => assert_eq!(why, "Too many open files"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_server_that_is_gone_before_the_request_is_an_error_of_the_system() {
    let (server, client) = UnixStream::pair().unwrap();
    drop(server);
    match Client::join_over(client, "socket".as_ref(), &SMALL, None, LIMIT) {
        Err(JoinError::System(_, error)) => assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_refused_request_says_why() {
    let hosts = Hosts::new();
    assert_eq!(
        hosts.refusal(&SessionConfig { memory: SMALL.memory + 1, ..SMALL }, None),
        "262145 bytes of memory: expected 1 to 262144"
    );
    let _kept = hosts.join(0, &SMALL, Some(5)).unwrap();
    assert_eq!(hosts.refusal(&SMALL, Some(5)), "process 5 is open already");
    assert_eq!(hosts.refusal(&SMALL, Some(5000)), "there is no process 5000: there are 0 to 4095");
    // Process 0 can be asked for like any other one, and is never chosen by the server.
    let zero = hosts.join(0, &SMALL, Some(0)).unwrap();
    assert_eq!(zero.process(), 0);
    assert_eq!(hosts.refusal(&SMALL, Some(0)), "process 0 is open already");
    let others: Vec<Client> = (0..2).map(|_| hosts.join(0, &SMALL, None).unwrap()).collect();
    assert!(others.iter().all(|client| client.process() != 0));
    assert!(hosts.refusal(&SMALL, None).contains("all 4 sessions are in use"));
    assert!(matches!(hosts.join(0, &SessionConfig { memory: 0, ..SMALL }, None), Err(JoinError::Config(_))));
    let nobody = Client::join(std::path::Path::new("/nonexistent"), &SMALL, None, LIMIT);
    assert!(matches!(nobody, Err(JoinError::System(..))));
}

/// A message of version `version`, the rest of which is empty.
fn message<const LEN: usize>(version: u32) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    bytes[..8].copy_from_slice(b"weft-ses");
    bytes[8..12].copy_from_slice(&version.to_ne_bytes());
    bytes
}

#[test]
fn replies_of_other_versions_and_of_other_programs_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let answer = |reply: [u8; 256]| {
        thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                stream.read_exact(&mut [0; 64]).unwrap();
                stream.write_all(&reply).unwrap();
            });
            Client::join(&path, &SMALL, None, LIMIT).unwrap_err().to_string()
        })
    };
    let text = |what: &str| format!("{}: {what}", path.display());
    assert_eq!(answer(message(3)), text("it speaks version 3, this is version 10: use the same weft"));
    assert_eq!(answer([0xaa; 256]), text("no server of weft: it does not answer as one"));
    assert_eq!(answer(message(10)), text("no server of weft: no memory came with it"));
}

#[test]
fn silent_and_malformed_requests_do_not_keep_applications_from_joining() {
    let hosts = Hosts::new();
    let mut silent: Vec<UnixStream> =
        (0..40).map(|_| UnixStream::connect(&hosts.sockets[0]).unwrap()).collect();
    let mut mad = UnixStream::connect(&hosts.sockets[0]).unwrap();
    mad.write_all(&[0xaa; 64]).unwrap();
    let client = hosts.join(0, &SMALL, None).unwrap();
    let mut answer = Vec::new();
    mad.read_to_end(&mut answer).unwrap();
    assert_eq!(answer.len(), 256);
    assert!(String::from_utf8_lossy(&answer).contains("expected a request of version 10"));
    let mut old = UnixStream::connect(&hosts.sockets[0]).unwrap();
    old.write_all(&message::<64>(3)).unwrap();
    answer.clear();
    old.read_to_end(&mut answer).unwrap();
    let text = "the request is of version 3, this server of version 10";
    assert!(String::from_utf8_lossy(&answer).contains(text));
    for stream in &mut silent {
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        answer.clear();
        stream.read_to_end(&mut answer).unwrap();
        assert!(String::from_utf8_lossy(&answer).contains("no request came within 1 s"));
    }
    drop(client);
}

/// One endpoint with a listener, driven by the test itself.
struct Host {
    world: World,
    listener: SessionListener,
    socket: PathBuf,
    _dir: tempfile::TempDir,
}

impl Host {
    fn new() -> Host {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let listener = SessionListener::open(&socket, SMALL, Waker::new().unwrap()).unwrap();
        Host { world: World::new(), listener, socket, _dir: dir }
    }

    fn attend(&mut self) {
        self.listener.attend(&mut self.world.sessions[0], &mut self.world.feps[0], self.world.now);
        self.world.step(1);
        thread::yield_now();
    }

    /// As [`Host::attend`]; no time passes.
    fn attend_again(&mut self) {
        self.listener.attend(&mut self.world.sessions[0], &mut self.world.feps[0], self.world.now);
        self.world.serve(0);
        thread::yield_now();
    }

    /// The worker has opened a session, and time passes until it attends to applications again.
    fn rest(&mut self) {
        self.world.now += REST;
    }

    /// Process `n`, which is not this one, asks to join. Returns its socket.
    fn hear(&mut self, n: u32, config: SessionConfig) -> UnixStream {
        let (own, other) = UnixStream::pair().unwrap();
        other.set_nonblocking(true).unwrap();
        let joining = Joining { socket: Arc::new(own), sealing: Arc::default(), config, process: None };
        let tenant = Some(std::process::id() + 1 + n);
        self.listener.hear(&self.world.sessions[0], self.world.now, joining, tenant);
        other
    }

    /// Attends to those that want to join until something is so, while no time passes.
    fn until(&mut self, is_so: impl Fn(&Host) -> bool) {
        let started = Instant::now();
        while !is_so(self) {
            assert!(started.elapsed() < LIMIT, "it never is");
            self.attend_again();
        }
    }

    /// Attends to those that want to join until `ask`, which gets the path of the socket, has an answer.
    fn until_answered<T: Send>(&mut self, ask: impl FnOnce(&std::path::Path) -> T + Send) -> T {
        let socket = self.socket.clone();
        thread::scope(|scope| {
            let asker = scope.spawn(move || ask(&socket));
            while !asker.is_finished() {
                self.attend();
            }
            asker.join().unwrap()
        })
    }
}

/// They are always the same, so that the worker says them once.
#[test]
fn facts_are_told_to_all_but_the_first_without_the_worker() {
    let mut host = Host::new();
    let ask =
        |path: &std::path::Path| Client::facts_at(path, Duration::from_secs(5)).unwrap().longest_datagram;
    let first = host.until_answered(ask);
    assert!(first > 0);
    assert_eq!([(); 100].map(|()| ask(&host.socket)), [first; 100]);
    let joined = host.until_answered(|path| Client::join(path, &SMALL, None, LIMIT).unwrap());
    assert_eq!(joined.longest_datagram(), first);
}

#[test]
fn a_join_that_is_refused_maps_no_memory() {
    let mut host = Host::new();
    let mut guests: Vec<Client> = (0..3).map(|_| host.world.open(0)).collect();
    let taken = guests[0].process();
    let made_and_removed = mappings::of(|| {
        let mut refused = |process, why: &str| {
            let joined = host.until_answered(|path| Client::join(path, &SMALL, process, LIMIT));
            assert!(matches!(&joined, Err(JoinError::Refused(_, said)) if said.contains(why)), "{joined:?}");
        };
        refused(Some(taken), "is open already");
        refused(Some(5000), "there is no process 5000");
    });
    assert_eq!(made_and_removed, [0, 0]);
    guests.push(host.world.open(0));
    let made_and_removed = mappings::of(|| {
        let joined = host.until_answered(|path| Client::join(path, &SMALL, None, LIMIT));
        assert!(matches!(joined, Err(JoinError::Refused(..))), "{joined:?}");
    });
    assert_eq!(made_and_removed, [0, 0]);
}

#[test]
fn the_memory_of_an_application_that_is_gone_is_unmapped_by_another_thread() {
    let mut host = Host::new();
    let made_and_removed = mappings::of(|| {
        // Its own mapping is its own thread's.
        host.until_answered(|path| drop(Client::join(path, &SMALL, None, LIMIT).unwrap()));
        let started = Instant::now();
        while !host.world.sessions[0].is_empty() {
            assert!(started.elapsed() < LIMIT, "it stays");
            host.attend();
        }
    });
    assert_eq!(made_and_removed, [1, 0]);
}

/// A host of which applications may have no more memory than one of them needs; one has been there, and has left a frame behind
/// that refers to its memory.
fn host_whose_memory_is_in_use() -> (Host, Region) {
    let mut host = Host::new();
    host.world.sessions[0].limit_memory(SMALL.layout().unwrap().total as u64);
    let first = host.until_answered(|path| Client::join(path, &SMALL, None, LIMIT).unwrap());
    let frame = host.world.sessions[0].memory_of(first.process()).unwrap();
    drop(first);
    host.rest();
    host.until(|host| host.world.sessions[0].is_empty());
    (host, frame)
}

/// Joins at `host` in another thread.
fn join_at(host: &Host) -> JoinHandle<Result<Client, JoinError>> {
    let path = host.socket.clone();
    thread::spawn(move || Client::join(&path, &SMALL, None, LIMIT))
}

#[test]
fn memory_counts_until_it_is_unmapped_and_applications_wait_for_it() {
    let (mut host, frame) = host_whose_memory_is_in_use();
    let next = join_at(&host);
    host.until(|host| host.listener.waiting() > 0);
    (0..100).for_each(|_| host.attend_again());
    assert!(host.world.sessions[0].is_empty(), "there is more memory than sessions may have");
    drop(frame);
    host.until(|_| next.is_finished());
    let next = next.join().unwrap().unwrap();
    assert_eq!(host.listener.waiting(), 0);
    host.rest();
    // Those that would not fit in any case do not wait.
    let refused = join_at(&host);
    host.until(|_| refused.is_finished());
    assert!(matches!(refused.join().unwrap(), Err(JoinError::Refused(..))));
    drop(next);
}

#[test]
fn an_application_waits_for_memory_to_be_unmapped_for_a_second_at_most() {
    let (mut host, frame) = host_whose_memory_is_in_use();
    let late = join_at(&host);
    host.until(|host| host.listener.waiting() > 0);
    host.world.now += Span::from_ms(1_000);
    host.until(|_| late.is_finished());
    match late.join().unwrap() {
        Err(JoinError::Refused(_, why)) => assert!(why.contains("bytes of memory, rings included"), "{why}"),
        other => panic!("{other:?}"),
    }
    drop(frame);
}

/// Whoever comes then is refused, and does not keep those that wait from their turns.
#[test]
fn applications_that_come_while_many_wait_for_memory_are_refused_and_hold_none_of_them_up() {
    let (mut host, frame) = host_whose_memory_is_in_use();
    // On a busy machine one whose request comes late makes room for others.
    let (mut waiting, started) = (Vec::new(), Instant::now());
    while host.listener.waiting() < JOINING {
        assert!(started.elapsed() < LIMIT, "they never wait");
        waiting.retain(|join: &JoinHandle<_>| !join.is_finished());
        if waiting.len() < JOINING {
            waiting.push(join_at(&host));
        }
        host.attend_again();
    }
    let why = loop {
        assert!(started.elapsed() < LIMIT, "it is never refused for that");
        let late = join_at(&host);
        host.until(|_| late.is_finished());
        match late.join().unwrap() {
            Err(JoinError::Refused(_, why)) if why.contains("no request") => {}
            Err(JoinError::Refused(_, why)) => break why,
            other => panic!("{other:?}"),
        }
    };
    assert!(why.contains("applications wait for memory already"), "{why}");
    assert_eq!(host.listener.waiting(), JOINING);
    // One that asks in each turn.
    host.world.now += Span::from_ms(1_000);
    let (mut late, mut turns) = (join_at(&host), 0);
    while host.listener.waiting() > 0 {
        host.attend();
        if late.is_finished() {
            turns += 1;
            assert!(turns < 1_000, "those that wait have no turn");
            late = join_at(&host);
        }
    }
    // No time passes, so the last one waits until there is memory.
    drop(frame);
    host.until(|_| late.is_finished() && waiting.iter().all(|join| join.is_finished()));
}

/// What the server has answered to an application, if it has.
fn answer(socket: &mut UnixStream) -> Option<Result<(), String>> {
    let mut reply = [0; REPLY];
    match socket.read(&mut reply) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => None,
        // It has been read.
        Ok(0) => None,
        read => {
            assert_eq!(read.unwrap(), REPLY);
            Some(read_reply("socket".as_ref(), &reply).map(|_| ()).map_err(|error| error.to_string()))
        }
    }
}

/// A process asks for memory that it cannot have, over and over; it could if that of another application was unmapped.
#[test]
fn a_process_that_waits_for_memory_keeps_no_other_one_from_joining() {
    const LITTLE: SessionConfig = SessionConfig { memory: 4096, ..SMALL };
    let (mut host, frame) = host_whose_memory_is_in_use();
    let [all, little] = [SMALL, LITTLE].map(|config| config.layout().unwrap().total as u64);
    host.world.sessions[0].limit_memory(all + 2 * little);
    let mut greedy: Vec<UnixStream> = (0..JOINING).map(|_| host.hear(0, SMALL)).collect();
    (0..2 * JOINING).for_each(|_| host.attend_again());
    let refused: Vec<String> = greedy.iter_mut().filter_map(answer).map(Result::unwrap_err).collect();
    assert_eq!((host.listener.waiting(), refused.len()), (2, JOINING - 2), "what it may have");
    assert!(refused.iter().all(|why| why.contains("applications, and leave")), "{refused:?}");
    // Others join in the turn in which they ask, those of one process as those of two.
    for n in [1, 2] {
        let mut socket = host.hear(n, LITTLE);
        host.attend_again();
        assert_eq!(answer(&mut socket), Some(Ok(())));
        host.rest();
    }
    assert_eq!(host.world.sessions[0].len(), 2);
    // It has its turn when there is memory.
    drop(frame);
    host.until(|host| host.world.sessions[0].len() == 3);
    assert_eq!(greedy.iter_mut().filter_map(answer).collect::<Vec<_>>(), [Ok(())]);
}

/// To open a session takes far longer than a turn, so that the worker rests after it. It must not sleep meanwhile.
#[test]
fn of_applications_that_have_asked_one_is_let_in_at_a_time() {
    assert_eq!(LimitRow::JoinRate.name(), format!("joins in {} µs", REST.as_us_f64()));
    let mut host = Host::new();
    let mut asked: Vec<UnixStream> = (0..4).map(|n| host.hear(n, SMALL)).collect();
    for let_in in 1..=4 {
        (0..10).for_each(|_| host.attend_again());
        let rested = host.world.now + REST;
        host.world.now = rested - Span::from_ns(1);
        host.attend_again();
        let answered: Vec<_> = asked.iter_mut().filter_map(answer).collect();
        assert_eq!((answered, host.listener.waiting()), (vec![Ok(())], 4 - let_in));
        assert!(host.listener.makes_wait());
        host.world.now = rested;
    }
    host.attend_again();
    assert!(!host.listener.makes_wait());
}

/// Set for the copy of this program that asks over and over.
const FLOODED: &str = "WEFT_TEST_FLOODED_SOCKET";
/// How often it asks.
const ASKED: usize = 200;

/// The child's own test: nothing, unless it is the child. It asks to join, each time over another socket, and says so when it has
/// been refused as often as must be.
#[test]
fn flood() {
    let Ok(path) = std::env::var(FLOODED) else { return };
    let ask = |_| {
        let mut socket = connect_within(path.as_ref(), LIMIT).unwrap();
        // It may have been refused before.
        let _ = socket.write_all(&request(&Asked::Session(SMALL, None)));
        socket.set_nonblocking(true).unwrap();
        socket
    };
    let mut sockets: Vec<UnixStream> = (0..ASKED).map(ask).collect();
    let started = Instant::now();
    while sockets.len() > JOINING / 2 {
        assert!(started.elapsed() < LIMIT, "{} wait for an answer", sockets.len());
        sockets.retain_mut(|socket| {
            let Some(answer) = answer(socket) else { return true };
            let why = answer.unwrap_err();
            assert!(why.contains("applications that wait, and leave 31: it may have 2"), "{why}");
            false
        });
        thread::sleep(Duration::from_millis(1));
    }
    println!("{READY}");
    // Until the other one is through with it.
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

const READY: &str = "as many were refused as must be";

#[test]
fn a_process_that_asks_over_and_over_keeps_no_other_one_from_joining() {
    let mut host = Host::new();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "worker::session::tests::listener::flood", "--nocapture"])
        .env(FLOODED, &host.socket)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    // The worker has heard of none of them.
    assert!(lines.any(|line| line.ends_with(READY)), "the child has failed");
    assert_eq!(host.listener.unheard_of(child.id()), JOINING / 2);
    let join = join_at(&host);
    host.until(|host| host.listener.unheard_of(std::process::id()) == 1);
    while host.listener.unheard_of(std::process::id()) == 1 {
        host.rest();
        host.attend_again();
    }
    let left = host.listener.unheard_of(child.id());
    assert!(left >= JOINING / 2 - 2, "{left}: it waits behind one of them");
    host.until(|_| join.is_finished());
    drop(join.join().unwrap().unwrap());
    drop(child.stdin.take());
    lines.for_each(drop);
    assert!(child.wait().unwrap().success());
}

/// They have memory made for them all the same.
#[test]
fn applications_that_are_gone_before_they_are_let_in_have_turns_no_more_often() {
    let mut host = Host::new();
    (0..3).for_each(|n| drop(host.hear(n, SMALL)));
    for left in [2, 1, 0] {
        (0..10).for_each(|_| host.attend_again());
        assert_eq!((host.listener.waiting(), host.world.sessions[0].len()), (left, 0));
        host.rest();
    }
}

/// It would have a session that nobody ends.
#[test]
fn an_application_that_is_gone_does_not_wait_for_memory() {
    let (mut host, frame) = host_whose_memory_is_in_use();
    let path = host.socket.clone();
    let gone = thread::spawn(move || {
        let stream = connect_within(&path, LIMIT).unwrap();
        let asked = Asked::Session(SMALL, None);
        ask(&stream, &path, &asked, Duration::from_millis(20)).is_err()
    });
    host.until(|host| host.listener.waiting() > 0);
    host.until(|host| host.listener.waiting() == 0);
    assert!(gone.join().unwrap());
    assert!(host.world.sessions[0].is_empty());
    drop(frame);
}

/// An application that has joined at `host`, but has not said that it has mapped its memory: its client, its end of the socket, and
/// the descriptor of the memory.
fn join_silently(host: &mut Host) -> (Client, UnixStream, std::os::fd::OwnedFd) {
    let (stream, joined, file) = host.until_answered(|path| {
        let stream = connect_within(path, LIMIT).unwrap();
        let (joined, file) = ask(&stream, path, &Asked::Session(SMALL, None), LIMIT).unwrap();
        (stream, joined, file.expect("memory"))
    });
    let region = Region::map(&file, SMALL.layout().unwrap().total).unwrap();
    let link = Link::of(stream.try_clone().unwrap());
    (Client::new(&SMALL, &region, link, None, joined.addr, joined.process).unwrap(), stream, file)
}

/// The worker waits for the system at each access to a page that is missing.
#[test]
fn memory_of_which_pages_can_be_freed_is_left_alone() {
    let mut host = Host::new();
    let (mut client, mut stream, file) = join_silently(&mut host);
    let receive = client.receive(extent(0, 1), None, Matching::Untagged, 5).unwrap();
    client.cancel(receive).unwrap();
    for _ in 0..1000 {
        host.attend();
        assert!(host.world.sessions[0].may_sleep(&host.world.feps[0]));
        host.world.sessions[0].woken();
        assert_eq!(client.poll(), Ok(None));
    }
    stream.write_all(&[1]).unwrap();
    let started = Instant::now();
    let event = loop {
        host.attend();
        if let Some(event) = client.poll().unwrap() {
            break event;
        }
        assert!(started.elapsed() < LIMIT, "no event");
    };
    assert_eq!(event.context, 5);
    assert!(free_first_page(&file).is_err(), "sealed");
    assert!(Region::map(&file, 4096).is_err(), "sealed");
    // What an application does that joins as it should.
    let mut good = host.until_answered(|path| Client::join(path, &SMALL, None, LIMIT).unwrap());
    let receive = good.receive(extent(0, 1), None, Matching::Untagged, 6).unwrap();
    good.cancel(receive).unwrap();
    while good.poll().unwrap().is_none() {
        host.attend();
        assert!(started.elapsed() < LIMIT, "no event");
    }
}

/// The ends of the rings say in the memory that they are gone.
#[test]
fn memory_is_written_to_when_its_session_ends_only_if_it_is_sealed() {
    for is_sealed in [false, true] {
        let mut host = Host::new();
        let (mut client, mut stream, file) = join_silently(&mut host);
        let memory = Region::map(&file, SMALL.layout().unwrap().total).unwrap();
        let read = || {
            let mut bytes = vec![0; memory.len()];
            memory.slice(0, memory.len() as u32).unwrap().read(0, &mut bytes);
            bytes
        };
        let started = Instant::now();
        if is_sealed {
            stream.write_all(&[1]).unwrap();
            while free_first_page(&file).is_ok() {
                assert!(started.elapsed() < LIMIT, "it is not sealed");
                host.attend();
            }
            // The worker has seen it.
            let receive = client.receive(extent(0, 1), None, Matching::Untagged, 5).unwrap();
            client.cancel(receive).unwrap();
            while client.poll().unwrap().is_none() {
                assert!(started.elapsed() < LIMIT, "no event");
                host.attend();
            }
        }
        let before = read();
        stream.shutdown(std::net::Shutdown::Both).unwrap();
        while !host.world.sessions[0].is_empty() {
            assert!(started.elapsed() < LIMIT, "it stays");
            host.attend();
        }
        assert_eq!(read() == before, !is_sealed, "sealed: {is_sealed}");
    }
}

#[test]
fn an_application_whose_memory_cannot_be_sealed_is_dismissed() {
    use rustix::fs::{SealFlags, fcntl_add_seals};
    let mut host = Host::new();
    let (_client, mut stream, file) = join_silently(&mut host);
    fcntl_add_seals(&file, SealFlags::SEAL).unwrap();
    stream.write_all(&[1]).unwrap();
    let started = Instant::now();
    while !host.world.sessions[0].is_empty() {
        host.attend();
        assert!(started.elapsed() < LIMIT, "it stays");
    }
    assert!(matches!(host.world.sessions[0].poll_ended(), Some((_, _, Ended::Died))));
}

/// Set for the copy of this program that runs in a user namespace of its own.
const INSIDE: &str = "WEFT_TEST_INSIDE_USER_NAMESPACE";

/// The system hands no descriptor over as long as the user has more on their way than one process may have open, and the
/// server has no privileges: the test runs itself once more in a new user namespace.
#[test]
fn an_application_that_cannot_be_handed_its_memory_hears_the_reason() {
    if std::env::var_os(INSIDE).is_some() {
        return refused_while_many_descriptors_are_on_their_way();
    }
    let namespaces = ["--user", "--map-root-user"];
    match Command::new("unshare").args(namespaces).arg("true").output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => return crate::skipped::skipped(&String::from_utf8_lossy(&output.stderr)),
        Err(error) => return crate::skipped::skipped(&format!("unshare: {error}")),
    }
    let output = Command::new("unshare")
        .args(namespaces)
        .arg(std::env::current_exe().unwrap())
        .arg("an_application_that_cannot_be_handed_its_memory_hears_the_reason")
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

fn refused_while_many_descriptors_are_on_their_way() {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    use rustix::process::{Resource, Rlimit, setrlimit};
    const OPEN: u64 = 200;
    setrlimit(Resource::Nofile, Rlimit { current: Some(OPEN), maximum: Some(OPEN) }).unwrap();
    let (own, other) = UnixStream::pair().unwrap();
    let send_one = || {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files = [own.as_fd(); 8];
        control.push(SendAncillaryMessage::ScmRights(&files));
        sendmsg(&own, &[std::io::IoSlice::new(&[1])], &mut control, SendFlags::DONTWAIT)
    };
    let error = (0..OPEN).find_map(|_| send_one().err()).expect("there is a limit");
    assert_eq!(error, rustix::io::Errno::TOOMANYREFS);
    let mut host = Host::new();
    let mut join = || {
        let joined = host.until_answered(|path| Client::join(path, &SMALL, None, LIMIT));
        // What was opened for one that is refused is gone, and nobody hears of it.
        let started = Instant::now();
        while joined.is_err() && !host.world.sessions[0].is_empty() {
            assert!(started.elapsed() < LIMIT, "it stays");
            host.attend();
        }
        assert_eq!(host.world.sessions[0].poll_ended(), None);
        joined
    };
    match join() {
        Err(JoinError::Refused(_, why)) => assert!(why.contains("Too many references"), "{why}"),
        other => panic!("{other:?}"),
    }
    drop((own, other));
    join().unwrap();
}

/// A silent application makes room for the next one: `weft::Endpoint` gives a server 5 s for its answer.
#[test]
fn hundreds_of_silent_sockets_keep_no_application_from_joining() {
    let hosts = Hosts::new();
    let connect = || UnixStream::connect(&hosts.sockets[0]).unwrap();
    let mut silent: Vec<UnixStream> = (0..200).map(|_| connect()).collect();
    let client = Client::join(&hosts.sockets[0], &SMALL, None, Duration::from_secs(5)).unwrap();
    assert_eq!(client.addr(), Addr(0));
    // Each of them hears why it has not been let in.
    for stream in &mut silent {
        let mut answer = Vec::new();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.read_to_end(&mut answer).unwrap();
        assert!(String::from_utf8_lossy(&answer).contains("no request came within"));
    }
}

/// The system makes those wait that connect to a socket whose queue is full.
#[test]
fn a_server_that_accepts_nobody_keeps_no_application_for_longer_than_it_waits() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let socket = rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM, None);
    let socket = socket.unwrap();
    rustix::net::bind(&socket, &rustix::net::SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&socket, 0).unwrap();
    let _first = UnixStream::connect(&path).unwrap();
    let (done, outcome) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let joined = Client::join(&path, &SMALL, None, Duration::from_millis(50));
        let _ = done.send(joined.map(|_| ()).map_err(|error| error.to_string()));
    });
    let outcome = outcome.recv_timeout(LIMIT).expect("the call returns");
    assert!(outcome.unwrap_err().ends_with("no answer in time"));
}

#[test]
fn a_second_listener_is_refused_and_a_dead_one_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let open = || SessionListener::open(&path, SMALL, Waker::new().unwrap());
    // The socket of a process that was killed.
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let listener = open().unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(matches!(open(), Err(ListenError::Taken(_))));
    assert!(path.exists(), "the refused listener removes nothing");
    drop(listener);
    assert!(!path.exists());
    // A program that does not use the lock.
    let other = UnixListener::bind(&path).unwrap();
    assert!(matches!(open(), Err(ListenError::Taken(_))));
    drop(other);
    drop(open().unwrap());
}

#[test]
fn a_file_that_is_no_socket_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    std::fs::write(&path, "precious").unwrap();
    let opened = SessionListener::open(&path, SMALL, Waker::new().unwrap());
    assert!(matches!(opened, Err(ListenError::NoSocket(_))));
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    let names: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["file"], "the refused listener leaves nothing");
}
