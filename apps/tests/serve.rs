//! `weft serve` as its applications see it: real processes, over kernel UDP on the loopback interface, some of
//! which are killed.

#[path = "../../examples/join.rs"]
mod example;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource as System, Rlimit, getrlimit, prlimit};
use tempfile::TempDir;
use weft_stack::fep::{CallError, ConnectOptions, Failure, PeerRefusal, ReceiveError, Resource, SendError};
use weft_stack::packet::Addr;
use weft_stack::rng::Rng;
use weft_stack::ses::{Matching, Source};
use weft_stack::wire::ses::{JobId, ReturnCode};
use weft_stack::worker::session::{
    Client, ClientError, Event, Extent, JoinError, Report, Request, SessionConfig,
};

/// Far longer than anything here takes, the bounds on waits included.
const LIMIT: Duration = Duration::from_secs(40);
/// Bytes of a message that takes long enough to be killed in.
const LONG: u32 = 200 << 20;
/// First retransmission timeout. A PDC puts up with 63 times that.
const RTO: &str = "50ms";
/// Silence of an initiator after which a target asks; it gives up after twice that.
const PATIENCE: &str = "2000ms";

const CONFIG: SessionConfig = SessionConfig {
    commands: 64,
    reports: 64,
    operations: 64,
    connections: 8,
    memory: LONG + 4096,
    peers: 4,
    job: JobId::NONE,
    only_datagrams: false,
};

/// A server that is running.
struct Server {
    child: Child,
    socket: PathBuf,
    lines: Receiver<String>,
}

impl Server {
    fn start(socket: &Path, own: &str, peer: &str) -> Server {
        let mut server = Server::start_unheard(socket, own, peer);
        server.listen();
        server.await_line("serving ");
        server
    }

    /// Starts a server whose standard output is a pipe that nobody reads yet.
    fn start_unheard(socket: &Path, own: &str, peer: &str) -> Server {
        let child = Command::new(env!("CARGO_BIN_EXE_weft"))
            .args([
                "serve",
                "--port",
                &format!("udp:{own}"),
                "--peer",
                peer,
                "--rto",
                RTO,
                "--patience",
                PATIENCE,
            ])
            .arg("--socket")
            .arg(socket)
            .stdout(Stdio::piped())
            .spawn()
            .expect("weft starts");
        Server { child, socket: socket.to_owned(), lines: channel().1 }
    }

    /// Begins to read what the server says.
    fn listen(&mut self) {
        let (sender, lines) = channel();
        let output = BufReader::new(self.child.stdout.take().expect("a pipe"));
        thread::spawn(move || output.lines().map_while(Result::ok).all(|line| sender.send(line).is_ok()));
        self.lines = lines;
    }

    /// Waits until the server says something that contains `text`.
    fn await_line(&self, text: &str) -> String {
        let started = Instant::now();
        while let Ok(line) = self.lines.recv_timeout(LIMIT.saturating_sub(started.elapsed())) {
            if line.contains(text) {
                return line;
            }
        }
        panic!("the server has not said {text:?}");
    }

    fn join(&self, process: Option<u16>) -> Client {
        Client::join(&self.socket, &CONFIG, process, LIMIT).expect("the server lets us in")
    }

    /// As the system does it: with -9.
    fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Two servers that know each other, at addresses that no other test uses.
struct Hosts {
    left: Server,
    right: Server,
    _dir: TempDir,
}

fn addresses(test: u8) -> [String; 2] {
    [1, 2].map(|host| format!("127.84.{test}.{host}"))
}

impl Hosts {
    fn new(test: u8) -> Hosts {
        let dir = tempfile::tempdir().expect("a directory");
        let [left, right] = addresses(test);
        Hosts {
            left: Server::start(&dir.path().join("left"), &left, &right),
            right: Server::start(&dir.path().join("right"), &right, &left),
            _dir: dir,
        }
    }
}

fn event(client: &mut Client) -> Result<Event, ClientError> {
    let started = Instant::now();
    loop {
        if let Some(event) = client.poll()? {
            return Ok(event);
        }
        assert!(started.elapsed() < LIMIT, "no event in {LIMIT:?}");
        client.wait(Duration::from_millis(100))?;
    }
}

fn content(seed: u32, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
    let step = |_| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as u8
    };
    (0..len).map(step).collect()
}

fn extent(offset: u64, len: u32) -> Extent {
    Extent { region: 0, offset, len }
}

fn to(process: u16) -> ConnectOptions {
    ConnectOptions { process, ..ConnectOptions::default() }
}

/// Sends `len` bytes from `from` to `to_client`, whose endpoint `from` calls 1, and compares them.
fn transfer(from: &mut Client, to_client: &mut Client, seed: u32, len: usize) {
    let bytes = content(seed, len);
    from.write(0, &bytes).expect("there is room");
    to_client.receive(extent(0, len as u32), None, Matching::Untagged, 1).expect("room");
    let connection = from.connect(Addr(1), to(to_client.process()), 2).expect("room");
    from.send(connection, extent(0, len as u32), None, 9, 3).expect("room");
    let received = event(to_client).expect("a report");
    let Report::Received { result: Ok(()), source, header_data: 9, .. } = received.report else {
        panic!("{received:?}")
    };
    assert_eq!(source, Some(Source { peer: Addr(1), process: from.process() }));
    let mut copy = vec![0; len];
    to_client.read(0, &mut copy).expect("within");
    assert!(copy == bytes, "the message has changed");
    for context in [2, 3] {
        assert_eq!(event(from).expect("a report").context, context);
    }
    from.close(connection).expect("room");
    let closed = event(from).expect("a report");
    assert!(matches!(closed.report, Report::Closed { result: Ok(()), .. }), "{closed:?}");
}

/// An application in a process of its own: this program again, told by its environment what to do.
struct Victim(Child);

impl Victim {
    /// Starts one that joins as process `own`, and waits until it has: one that is killed before leaves no session.
    fn start(server: &Server, role: &str, own: u16, peer_process: u16) -> Victim {
        let child = Command::new(std::env::current_exe().expect("a name"))
            .args(["--exact", "victim", "--nocapture"])
            .env("WEFT_TEST_VICTIM", role)
            .env("WEFT_TEST_SOCKET", &server.socket)
            .env("WEFT_TEST_OWN", own.to_string())
            .env("WEFT_TEST_PROCESS", peer_process.to_string())
            .stdout(Stdio::null())
            .spawn();
        let victim = Victim(child.expect("this program starts"));
        server.await_line(&format!("process {own}: come"));
        victim
    }

    fn kill(mut self) {
        self.0.kill().expect("it runs");
        self.0.wait().expect("it ends");
    }
}

/// The victims' own test: nothing, unless one of them is meant.
#[test]
fn victim() {
    let Ok(role) = std::env::var("WEFT_TEST_VICTIM") else { return };
    let variable = |name: &str| std::env::var(name).expect(name);
    let number = |name: &str| variable(name).parse::<u16>().expect("a number");
    let (own, process) = (Some(number("WEFT_TEST_OWN")), number("WEFT_TEST_PROCESS"));
    let mut client =
        Client::join(Path::new(&variable("WEFT_TEST_SOCKET")), &CONFIG, own, LIMIT).expect("it lets us in");
    match role.as_str() {
        "receiver" => drop(client.receive(extent(0, LONG), None, Matching::Untagged, 1)),
        _ => {
            client.write(0, &[0xab; 1000]).expect("room");
            let connection = client.connect(Addr(1), to(process), 0).expect("room");
            client.send(connection, extent(0, LONG), None, 0, 1).expect("room");
        }
    }
    // Until it is killed, or its server ends.
    while event(&mut client).is_ok() {}
}

/// Waits until the message has begun to arrive at offset 0.
fn await_first_byte(client: &Client) {
    let started = Instant::now();
    let mut first = [0];
    while first == [0] {
        assert!(started.elapsed() < LIMIT, "nothing arrives");
        thread::sleep(Duration::from_millis(1));
        client.read(0, &mut first).expect("within");
    }
}

#[test]
fn the_example_joins_and_is_heard() {
    let hosts = Hosts::new(8);
    let join = |server: &Server| example::join(&server.socket).expect("the server lets us in");
    let (mut alice, mut bob) = (join(&hosts.left), join(&hosts.right));
    let [_, right] = addresses(8);
    for text in ["hello", "hello again"] {
        example::expect(&mut bob).expect("room");
        example::send(&mut alice, &right, bob.process(), text).expect("it arrives");
        assert_eq!(example::receive(&mut bob, LIMIT).expect("it has arrived"), text);
    }
    let said = example::send(&mut alice, &right, 99, "is there anybody?").expect_err("nobody is").to_string();
    assert!(said.contains("the target answered with return code 0x1a (BAD_PID: it has no process"), "{said}");
}

#[test]
fn applications_of_two_hosts_exchange_messages() {
    let hosts = Hosts::new(1);
    let (mut alice, mut bob) = (hosts.left.join(None), hosts.right.join(Some(9)));
    let mut carol = hosts.right.join(None);
    transfer(&mut alice, &mut bob, 1, 5_000_000);
    transfer(&mut bob, &mut alice, 2, 3_000_001);
    transfer(&mut alice, &mut carol, 3, 1);
    transfer(&mut carol, &mut alice, 4, 100_000);
    hosts.right.await_line("process 9: come");
    drop(bob);
    hosts.right.await_line("process 9: left");
    transfer(&mut alice, &mut carol, 5, 1_000_000);
}

#[test]
fn a_sender_that_is_killed_ends_its_message_at_the_receiver() {
    let hosts = Hosts::new(2);
    let (mut alice, mut bob) = (hosts.left.join(None), hosts.right.join(None));
    bob.receive(extent(0, LONG), None, Matching::Untagged, 1).expect("room");
    let victim = Victim::start(&hosts.left, "sender", 50, bob.process());
    await_first_byte(&bob);
    assert_eq!(bob.poll(), Ok(None), "in the middle");
    let killed = Instant::now();
    victim.kill();
    let lost = event(&mut bob).expect("a report");
    assert!(matches!(lost.report, Report::Received { result: Err(ReceiveError::PeerLost), .. }), "{lost:?}");
    eprintln!("the receiver heard of it after {:?}", killed.elapsed());
    hosts.left.await_line("died");
    transfer(&mut alice, &mut bob, 6, 1_000_000);
}

#[test]
fn a_receiver_that_is_killed_fails_messages_to_it() {
    let hosts = Hosts::new(3);
    let (mut alice, mut bob) = (hosts.left.join(None), hosts.right.join(None));
    let victim = Victim::start(&hosts.right, "receiver", 50, 0);
    let connection = alice.connect(Addr(1), to(50), 0).expect("room");
    alice.send(connection, extent(0, LONG), None, 0, 1).expect("room");
    assert!(matches!(event(&mut alice).expect("a report").report, Report::Connected { .. }));
    victim.kill();
    let sent = |alice: &mut Client| match event(alice).expect("a report").report {
        Report::Sent { result, .. } => result,
        other => panic!("{other:?} is not about the message"),
    };
    let refused = Err(SendError::Answered(ReturnCode::BAD_PID));
    // The message may have been done before its receiver was; the next one is too late for certain.
    let result = sent(&mut alice);
    assert!(result == refused || result == Ok(()), "{result:?}");
    hosts.right.await_line("process 50: died");
    alice.send(connection, extent(0, 1_000), None, 0, 2).expect("room");
    assert_eq!(sent(&mut alice), refused);
    transfer(&mut alice, &mut bob, 7, 1_000_000);
}

/// Other applications are killed at random moments; the messages of those that live arrive whole. `WEFT_SERVE_SEED` is the seed
/// of the random moments, `WEFT_SERVE_CASES` the number of cases.
#[test]
fn applications_exchange_messages_while_others_are_killed() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect(name));
    let (seed, cases) = (number("WEFT_SERVE_SEED").unwrap_or(5), number("WEFT_SERVE_CASES").unwrap_or(2));
    let mut rng = Rng::new(seed, 0);
    let hosts = Hosts::new(9);
    let (mut alice, mut bob) = (hosts.left.join(None), hosts.right.join(None));
    let mut bytes = 0;
    for case in 0..cases {
        let process = 60 + (case % 1000) as u16;
        // The other end of what is cut off, on whose side nobody is killed.
        let (victim, other, died) = if rng.below(2) == 0 {
            let mut other = hosts.right.join(None);
            other.receive(extent(0, LONG), None, Matching::Untagged, 1).expect("room");
            (Victim::start(&hosts.left, "sender", process, other.process()), other, &hosts.left)
        } else {
            let victim = Victim::start(&hosts.right, "receiver", process, 0);
            let mut other = hosts.left.join(None);
            let connection = other.connect(Addr(1), to(process), 0).expect("room");
            other.send(connection, extent(0, LONG), None, 0, 1).expect("room");
            (victim, other, &hosts.right)
        };
        thread::sleep(Duration::from_millis(rng.below(60).into()));
        let mut transfer = |from: &mut Client, to_client: &mut Client| {
            let len = [1, 1000, 100_000, 2_000_000][rng.below(4) as usize] - rng.below(2) as usize;
            transfer(from, to_client, case as u32, len);
            bytes += len;
        };
        transfer(&mut alice, &mut bob);
        victim.kill();
        transfer(&mut bob, &mut alice);
        died.await_line("died");
        drop(other);
        transfer(&mut alice, &mut bob);
    }
    // For scripts/soak.sh.
    println!("{cases} cases: {bytes} bytes");
}

#[test]
fn a_server_that_is_killed_is_noticed_and_can_be_replaced() {
    let mut hosts = Hosts::new(4);
    let [left, right] = addresses(4);
    let (mut alice, mut bob) = (hosts.left.join(None), hosts.right.join(Some(3)));
    let send_long = |alice: &mut Client, bob: &mut Client| {
        bob.receive(extent(0, LONG), None, Matching::Untagged, 1).expect("room");
        alice.write(0, &[1; 1000]).expect("room");
        let connection = alice.connect(Addr(1), to(3), 0).expect("room");
        alice.send(connection, extent(0, LONG), None, 0, 1).expect("room");
        await_first_byte(bob);
    };
    // The receiver's server: its own application hears at once, the peer after 63 retransmission timeouts.
    send_long(&mut alice, &mut bob);
    hosts.right.kill();
    assert_eq!(event(&mut bob), Err(ClientError::Gone));
    let failed = loop {
        match event(&mut alice).expect("its own server lives").report {
            Report::Connected { .. } => {}
            Report::Sent { result, .. } => break result,
            other => panic!("{other:?}"),
        }
    };
    // The whole of it: which PDC and packet, and how long and how often it was tried.
    let Err(SendError::Failed(Failure::NoAnswer { peer: Addr(1), sent, .. })) = failed else {
        panic!("{failed:?}")
    };
    assert!(sent > 1, "{failed:?}");
    let closed = event(&mut alice).expect("a report").report;
    assert!(matches!(closed, Report::Closed { result: Err(Failure::NoAnswer { .. }), .. }), "{closed:?}");
    // Another one at the same place, without cleaning up.
    hosts.right = Server::start(&hosts.right.socket.clone(), &right, &left);
    let mut bob = hosts.right.join(Some(3));
    transfer(&mut alice, &mut bob, 8, 1_000_000);

    // The sender's server: the receiver's asks after `PATIENCE`, and gives up after as much again.
    bob.write(0, &[0]).expect("within");
    send_long(&mut alice, &mut bob);
    hosts.left.kill();
    assert!(matches!(event(&mut alice).expect("it came before").report, Report::Connected { .. }));
    assert_eq!(event(&mut alice), Err(ClientError::Gone));
    let lost = event(&mut bob).expect("a report");
    assert!(matches!(lost.report, Report::Received { result: Err(ReceiveError::PeerLost), .. }), "{lost:?}");
    hosts.left = Server::start(&hosts.left.socket.clone(), &left, &right);
    let mut alice = hosts.left.join(None);
    transfer(&mut alice, &mut bob, 9, 1_000_000);
}

#[test]
fn a_server_that_is_told_to_end_cleans_up_and_peers_hear_of_it() {
    let mut hosts = Hosts::new(5);
    let (mut alice, mut bob) = (hosts.left.join(None), hosts.right.join(None));
    bob.receive(extent(0, LONG), None, Matching::Untagged, 1).expect("room");
    alice.write(0, &[1; 1000]).expect("room");
    let connection = alice.connect(Addr(1), to(bob.process()), 0).expect("room");
    alice.send(connection, extent(0, LONG), None, 0, 1).expect("room");
    await_first_byte(&bob);
    let pid = rustix::process::Pid::from_child(&hosts.left.child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
    let lost = event(&mut bob).expect("a report");
    assert!(matches!(lost.report, Report::Received { result: Err(ReceiveError::PeerLost), .. }), "{lost:?}");
    assert!(hosts.left.child.wait().expect("it ends").success());
    assert!(!hosts.left.socket.exists());
    loop {
        match event(&mut alice) {
            Ok(_) => {}
            Err(error) => break assert_eq!(error, ClientError::Gone),
        }
    }
}

#[test]
fn a_connection_to_a_peer_that_the_server_does_not_know_is_refused() {
    let hosts = Hosts::new(7);
    let (mut alice, mut bob) = (hosts.left.join(None), hosts.right.join(None));
    let connection = alice.connect(Addr(2), to(1), 5).expect("room");
    alice.send(connection, extent(0, 10), None, 0, 6).expect("room");
    let mut refused = || match event(&mut alice).expect("a report") {
        Event { context, report: Report::Refused { request, error, .. } } => (context, request, error),
        other => panic!("{other:?}"),
    };
    let (context, request, error) = refused();
    assert_eq!((context, request), (5, Request::Connect));
    assert_eq!(error.to_string(), "endpoint 2 is not in the address book");
    assert_eq!(refused(), (6, Request::Send, CallError::NotOpen));
    transfer(&mut alice, &mut bob, 10, 1_000);
}

#[test]
fn applications_add_peers_by_address() {
    let hosts = Hosts::new(9);
    let [left, right] = addresses(9);
    let third = Server::start(&hosts.left.socket.with_file_name("third"), "127.84.9.3", &left);
    let (mut alice, mut bob, mut carol) =
        (hosts.left.join(Some(0)), hosts.left.join(None), third.join(Some(0)));
    let ask = |client: &mut Client, ip: &str| {
        client.peer(ip.parse().expect("an address"), None, 1).expect("room");
        match event(client).expect("a report").report {
            Report::Peer { addr, .. } => Ok(addr),
            Report::Refused { request: Request::Peer, error, .. } => Err(error),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(ask(&mut alice, &right), Ok(Addr(1)), "its --peer");
    assert_eq!(ask(&mut alice, "127.84.9.3"), Ok(Addr(2)));
    assert_eq!(ask(&mut bob, "127.84.9.3"), Ok(Addr(2)));
    assert_eq!(ask(&mut alice, "fd00::1"), Err(CallError::Peer(PeerRefusal::IpVersion)));
    for n in 4..7 {
        assert_eq!(ask(&mut alice, &format!("127.84.9.{n}")), Ok(Addr(n - 1)));
    }
    // `CONFIG` has four, and the second peer is one of them.
    let quota = CallError::Limit { what: Resource::SessionPeers, limit: 4 };
    assert_eq!(ask(&mut alice, "127.84.9.7"), Err(quota));
    assert_eq!(ask(&mut bob, "127.84.9.7"), Ok(Addr(6)));

    carol.receive(extent(0, 100), None, Matching::Untagged, 1).expect("room");
    let connection = alice.connect(Addr(2), to(0), 2).expect("room");
    alice.send(connection, extent(0, 100), None, 0, 3).expect("room");
    let received = event(&mut carol).expect("a report").report;
    assert!(matches!(received, Report::Received { result: Ok(()), len: 100, .. }), "{received:?}");
}

/// `docs/limits.md` has the table that the server prints.
#[test]
fn the_limits_that_a_server_prints_are_those_of_the_documentation() {
    let output = Command::new(env!("CARGO_BIN_EXE_weft"))
        .args(["serve", "--port", "udp:127.84.11.1", "--socket", "/nonexistent/socket", "--limits"])
        .output()
        .expect("weft starts");
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8(output.stdout).expect("text");
    assert!(printed.lines().count() > 10 && printed.contains("| applications | 64 |"), "{printed}");
    let documented = std::fs::read_to_string("../docs/limits.md").expect("it is there");
    assert!(documented.contains(&printed), "docs/limits.md should have this table:\n{printed}");
}

/// The server has no descriptor left for the socket of an application, or only some of those that a session needs.
#[test]
fn an_application_that_the_server_has_no_descriptors_for_hears_so() {
    let hosts = Hosts::new(10);
    let pid = Pid::from_raw(hosts.left.child.id() as i32);
    let open = || -> BTreeSet<u64> {
        let all = std::fs::read_dir(format!("/proc/{}/fd", hosts.left.child.id())).expect("it runs");
        all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
    };
    let (before, limit) = (open(), getrlimit(System::Nofile));
    // The limit is one of numbers, and those that are free are taken in order.
    let free = (0..).find(|number| !before.contains(number)).expect("there are more");
    for more in 0..2 {
        let current = Some(free + more);
        prlimit(pid, System::Nofile, Rlimit { current, ..limit }).expect("it is ours");
        for _ in 0..20 {
            match Client::join(&hosts.left.socket, &CONFIG, None, LIMIT) {
                Err(JoinError::Refused(_, why)) => assert!(why.contains("Too many open files"), "{why}"),
                other => panic!("with {more} descriptors more: {other:?}"),
            }
        }
    }
    prlimit(pid, System::Nofile, limit).expect("it is ours");
    let client = hosts.left.join(None);
    assert!(open().len() > before.len(), "the session has descriptors");
    drop(client);
}

/// 2,500 applications join and leave. The server prints more lines about them than the pipe and the queue of lines can hold.
#[test]
fn a_server_whose_output_nobody_reads_serves_all_the_same() {
    let dir = tempfile::tempdir().expect("a directory");
    let [own, peer] = addresses(17);
    let socket = dir.path().join("unheard");
    let mut server = Server::start_unheard(&socket, &own, &peer);
    let config = SessionConfig { memory: 4096, ..CONFIG };
    let started = Instant::now();
    while let Err(error) = Client::join(&socket, &config, None, LIMIT) {
        assert!(started.elapsed() < LIMIT, "no server: {error}");
        thread::sleep(Duration::from_millis(10));
    }
    for n in 0..2_500 {
        let joined = Client::join(&socket, &config, None, Duration::from_secs(10));
        joined.unwrap_or_else(|error| panic!("application {n}: {error}"));
    }
    server.listen();
    server.await_line("serving ");
    // It says how many lines it has dropped as soon as there is room for a line.
    let said = loop {
        let _ = Client::join(&socket, &config, None, LIMIT).expect("it serves");
        let late = |line: &String| line.ends_with("lines were not printed: nobody read the ones before");
        if let Some(line) = server.lines.try_iter().find(late) {
            break line;
        }
        assert!(started.elapsed() < LIMIT, "it does not say what it has dropped");
    };
    let dropped: usize = said.split(' ').next().and_then(|count| count.parse().ok()).expect("a number");
    assert!((1..5_000).contains(&dropped), "{said}");
}

#[test]
fn a_second_server_at_the_same_socket_is_refused() {
    let hosts = Hosts::new(6);
    let second = Command::new(env!("CARGO_BIN_EXE_weft"))
        .args(["serve", "--port", "udp:127.84.6.3", "--socket"])
        .arg(&hosts.left.socket)
        .output()
        .expect("weft starts");
    assert_eq!(second.status.code(), Some(1));
    let text = String::from_utf8_lossy(&second.stderr);
    assert!(text.contains("another process serves there"), "{text}");
    hosts.left.join(None);
}
