//! Control threads of both roles, with each other and with peers that break the protocol.

use std::fs;
use std::io::{self, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::super::config::SocketName;
use super::super::link_layout::{LinkLayout, Offer, RingPlace};
use super::super::link_state::is_up;
use super::super::message::{AddRing, Hello, Init, Message, TO_SERVER, Text, VERSION};
use super::super::ring::ring_bytes;
use super::super::socket::{ListenSocket, Received, Socket};
use super::*;
use crate::region::Region;

/// Longer than any step takes, however busy the machine.
const PATIENCE: Duration = Duration::from_secs(30);

fn anywhere() -> SocketName {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    SocketName::Abstract(format!("weft-memif-test-{}-{number}", std::process::id()))
}

fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

/// Two rings and nothing else.
fn offer(config: &MemifConfig) -> io::Result<Offer> {
    let log2_size = config.log2_ring;
    let (region, file) = Region::share(2 * ring_bytes(log2_size))?;
    let ring = |offset| RingPlace { region: 0, offset, log2_size, event: event() };
    let layout = LinkLayout {
        role: Role::Client,
        regions: vec![region],
        to_server: ring(0),
        to_client: ring(ring_bytes(log2_size) as u32),
        peer: String::new(),
    };
    Ok(Offer { layout, files: vec![file] })
}

fn start(config: &MemifConfig) -> ControlThread {
    ControlThread::start(config, Box::new(offer)).unwrap()
}

fn server(at: &SocketName) -> ControlThread {
    start(&MemifConfig { name: "left".to_owned(), ..MemifConfig::server(at.clone()) })
}

fn client(at: &SocketName) -> ControlThread {
    start(&MemifConfig { name: "right".to_owned(), ..MemifConfig::client(at.clone()) })
}

fn readable(file: impl AsFd, limit: Duration) -> bool {
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: 0 };
    let mut watched = [PollFd::new(&file, PollFlags::IN)];
    poll(&mut watched, Some(&limit)).unwrap() == 1
}

/// Sleeps until the generation is at least `least`, and there is a link if `least` is odd.
fn generation(control_thread: &ControlThread, least: u32) -> u32 {
    let link_state = control_thread.link_state();
    loop {
        link_state.hush();
        let generation = link_state.generation();
        if generation >= least && (is_up(generation) || !is_up(least)) {
            return generation;
        }
        assert!(readable(link_state.bell(), PATIENCE), "no bell; at {generation}: {}", link_state.why());
    }
}

fn link(control_thread: &ControlThread, least: u32) -> LinkLayout {
    let seen = generation(control_thread, least);
    let (generation, link) = control_thread.link_state().take();
    assert_eq!(generation, seen);
    link.unwrap()
}

fn expect_why(control_thread: &ControlThread, part: &str) {
    let end = Instant::now() + PATIENCE;
    while !control_thread.link_state().why().contains(part) {
        assert!(Instant::now() < end, "`{}` where `{part}` was expected", control_thread.link_state().why());
        thread::sleep(Duration::from_millis(5));
    }
}

/// The next message that a peer sends, `None` at its end.
fn next(socket: &Socket) -> Option<(Message, Option<OwnedFd>)> {
    loop {
        assert!(readable(socket, PATIENCE), "silence");
        match socket.receive() {
            Received::Nothing => {}
            Received::Closed => return None,
            Received::Packet(packet) => return Some(packet.unwrap()),
        }
    }
}

/// Why the peer parts, after any number of messages.
fn parting(socket: &Socket) -> String {
    loop {
        match next(socket).expect("a reason") {
            (Message::Disconnect { reason, .. }, _) => {
                assert!(next(socket).is_none(), "nothing after the reason");
                return reason.to_string();
            }
            (Message::Ack | Message::Hello(_), _) => {}
            (other, _) => panic!("{other:?}"),
        }
    }
}

fn accept(listener: &ListenSocket) -> Socket {
    loop {
        assert!(readable(listener, PATIENCE), "nobody comes");
        if let Some(socket) = listener.accept().unwrap() {
            return socket;
        }
    }
}

/// The reason that a peer played by the test gets at last. On a busy machine the test itself may be too late, and tries
/// again.
fn in_time(mut play: impl FnMut() -> String) -> String {
    for _ in 0..10 {
        let told = play();
        if told != "no answer in time" {
            return told;
        }
    }
    panic!("always too late");
}

#[test]
fn both_roles_come_to_use_the_same_memory_and_events() {
    let at = anywhere();
    let (server, client) = (server(&at), client(&at));
    let (here, there) = (link(&server, 1), link(&client, 1));
    assert_eq!((here.role, there.role), (Role::Server, Role::Client));
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(here.peer, format!("weft {version} (right)"));
    assert_eq!(there.peer, format!("weft {version} (left)"));

    for (one, other) in [(&here, &there), (&there, &here)] {
        assert_eq!(one.regions.len(), 1);
        let len = one.regions[0].len() as u32;
        assert_eq!(len as usize, 2 * ring_bytes(10));
        one.regions[0].slice(0, len).unwrap().write(len - 5, b"hello");
        let mut seen = [0; 5];
        other.regions[0].slice(0, len).unwrap().read(len - 5, &mut seen);
        assert_eq!(&seen, b"hello");
        one.regions[0].slice(0, len).unwrap().write(len - 5, &[0; 5]);
    }
    let place = |ring: &RingPlace| (ring.region, ring.offset, ring.log2_size);
    assert_eq!(place(&here.to_server), (0, 0, 10));
    assert_eq!(place(&here.to_client), (0, ring_bytes(10) as u32, 10));
    assert_eq!(place(&there.to_server), place(&here.to_server));
    assert_eq!(place(&there.to_client), place(&here.to_client));

    rustix::io::write(&there.to_server.event, &1u64.to_ne_bytes()).unwrap();
    assert!(readable(&here.to_server.event, PATIENCE) && !readable(&here.to_client.event, Duration::ZERO));
    rustix::io::write(&here.to_client.event, &1u64.to_ne_bytes()).unwrap();
    assert!(readable(&there.to_client.event, PATIENCE));
    assert!(rustix::io::read(&here.to_client.event, &mut [0; 8]).is_ok());
    assert!(rustix::io::read(&here.to_client.event, &mut [0; 8]).is_err(), "an event that does not block");
}

#[test]
fn memory_taken_by_the_port_outlives_the_link_and_the_server_can_return() {
    let at = anywhere();
    let client = client(&at);
    expect_why(&client, "no server");
    let first = server(&at);
    let memory = link(&client, 1);
    drop(first);
    assert_eq!(generation(&client, 2), 2);
    assert_eq!(client.link_state().why(), "the peer has left: the port is closed");
    memory.regions[0].slice(0, 8).unwrap().write(0, b"still");
    let second = server(&at);
    assert_eq!(generation(&client, 3), 3);
    assert_eq!(generation(&second, 1), 1);
    assert_ne!(link(&client, 3).regions[0], memory.regions[0], "memory of its own");
}

#[test]
fn a_client_may_come_again_and_a_second_one_only_when_the_first_is_gone() {
    let at = anywhere();
    let server = server(&at);
    let first = client(&at);
    let up = (generation(&server, 1), generation(&first, 1));
    let second = client(&at);
    expect_why(&second, "the server refuses: interface 0 has a client already");
    assert_eq!((server.link_state().generation(), first.link_state().generation()), up);
    drop(first);
    // The first link went down and the second came up, and the port sees the second's memory only.
    let here = link(&server, up.0 + 2);
    let there = link(&second, 1);
    there.regions[0].slice(0, 6).unwrap().write(0, b"second");
    let mut seen = [0; 6];
    here.regions[0].slice(0, 6).unwrap().read(0, &mut seen);
    assert_eq!(&seen, b"second");
}

#[test]
fn a_port_does_not_take_a_link_that_is_gone() {
    let at = anywhere();
    let server = server(&at);
    let client = client(&at);
    generation(&server, 1);
    drop(client);
    assert_eq!(generation(&server, 2), 2);
    let (generation, link) = server.link_state().take();
    assert_eq!((generation, link.is_none()), (2, true));
}

#[test]
fn clients_with_a_wrong_id_or_secret_get_the_reason() {
    let at = anywhere();
    let config = MemifConfig { secret: "s".repeat(24), id: 3, ..MemifConfig::server(at.clone()) };
    let server = start(&config);
    let right = MemifConfig { role: Role::Client, ..config };
    for (wrong, why) in [
        (MemifConfig { id: 4, ..right.clone() }, "no interface 4 here"),
        (MemifConfig { secret: String::new(), ..right.clone() }, "a secret is required"),
        (MemifConfig { secret: "s".repeat(23), ..right.clone() }, "another secret"),
    ] {
        let client = start(&wrong);
        expect_why(&client, &format!("the server refuses: {why}"));
        expect_why(&server, why);
    }
    assert_eq!(server.link_state().generation(), 0);
    let client = start(&right);
    generation(&client, 1);
    generation(&server, 1);
}

#[test]
fn either_end_may_give_up_and_both_begin_again() {
    let at = anywhere();
    let (server, client) = (server(&at), client(&at));
    for (one, other) in [(&server, &client), (&client, &server)] {
        let (here, there) = (generation(one, 1), generation(other, 1));
        one.link_state().give_up(here, "nonsense in a ring");
        generation(one, here + 1);
        generation(other, there + 1);
        expect_why(other, "the peer has left: nonsense in a ring");
        generation(one, here + 2);
        generation(other, there + 2);
        assert_eq!(one.link_state().why(), "given up: nonsense in a ring");
    }
}

#[test]
fn silent_connections_do_not_keep_clients_out() {
    let at = anywhere();
    let server = server(&at);
    // As many as are greeted at a time, and then some.
    let silent: Vec<Socket> = (0..12).map(|_| Socket::connect(&at).unwrap()).collect();
    let client = client(&at);
    generation(&client, 1);
    generation(&server, 1);
    assert_eq!(parting(&silent[0]), "no answer in time");
    assert!(is_up(server.link_state().generation()));
}

#[test]
fn a_silent_server_is_left_and_tried_again() {
    let at = anywhere();
    let listener = ListenSocket::open(&at).unwrap();
    let client = client(&at);
    let first = accept(&listener);
    assert_eq!(parting(&first), "no answer in time");
    assert_eq!(client.link_state().why(), "the server makes no sense: no answer in time");
    let _second = accept(&listener);
    assert_eq!(client.link_state().generation(), 0);
    let begin = Instant::now();
    drop(client);
    assert!(begin.elapsed() < PATIENCE, "it does not hang in a handshake");
}

fn init() -> Message {
    let (secret, name) = (Text::filled(b""), Text::new("test"));
    Message::Init(Init { version: VERSION, id: 0, mode: 0, secret, name })
}

fn add_ring(flags: u16, offset: u32) -> AddRing {
    AddRing { flags, index: 0, region: 0, offset, log2_size: 4, private_header: 0 }
}

#[test]
fn clients_out_of_order_or_without_descriptors_are_told_and_closed() {
    let at = anywhere();
    let server = server(&at);
    let connect = Message::Connect { interface: Text::new("x") };
    let region = Message::AddRegion { index: 0, size: 4096 };
    let (_memory, file) = Region::share(4096).unwrap();
    let (reader, pipe) = std::io::pipe().unwrap();
    let (file, pipe, event) = (file.as_fd(), pipe.as_fd(), event());
    let ring = |flags, offset| (Message::AddRing(add_ring(flags, offset)), Some(event.as_fd()));
    let no_event = (Message::AddRing(add_ring(0, 0)), Some(pipe));
    let outside = (Message::AddRing(add_ring(1, 4096 - 64)), Some(event.as_fd()));
    let (init, region) = ((init(), None), (region, Some(file)));
    type Step<'a> = (Message, Option<BorrowedFd<'a>>);
    let scripts: [(Vec<Step<'_>>, &str); 12] = [
        (vec![(connect, None)], "CONNECT where INIT was expected"),
        (vec![region], "ADD_REGION where INIT was expected"),
        (vec![(Message::Ack, None)], "ACK where INIT was expected"),
        (vec![init, init], "INIT where ADD_REGION, ADD_RING or CONNECT was expected"),
        (vec![init, (region.0, None)], "ADD_REGION without a descriptor"),
        (vec![(init.0, Some(file))], "INIT with a descriptor too many"),
        (vec![init, (connect, None)], "no ring to the server"),
        (vec![init, ring(1, 0)], "a ring in region 0 of 0"),
        (vec![init, region, outside], "a ring of 384 bytes at 4032 of a region of 4096"),
        (vec![init, region, ring(1, 0), ring(0, 64)], "two rings that overlap"),
        (vec![init, region, ring(1, 0), ring(1, 384)], "a second ring in one direction"),
        (vec![init, region, no_event], "a ring with a descriptor that is no eventfd: pipe:"),
    ];
    for (script, why) in scripts {
        let reason = in_time(|| {
            let socket = Socket::connect(&at).unwrap();
            for &(message, file) in &script {
                // After a refusal the server has closed.
                let _ = socket.send(&message, file);
            }
            parting(&socket)
        });
        assert!(reason.starts_with(why), "`{reason}` where `{why}` was expected");
    }
    drop(reader);
    assert_eq!(server.link_state().generation(), 0);
    let client = client(&at);
    generation(&client, 1);
}

#[test]
fn malformed_messages_are_refused_and_their_descriptors_closed() {
    let at = anywhere();
    let _server = server(&at);
    let unknown = [9u16.to_ne_bytes(), [0; 2]].concat();
    let unknown: Vec<u8> = unknown.into_iter().chain([0; 124]).collect();
    let whole = init().encode();
    let region = Message::AddRegion { index: 0, size: 1 }.encode();
    for (bytes, files, why) in [
        (&whole[..127], 1, "a message of 127 bytes: expected 128"),
        (&whole[..1], 0, "a message of 1 bytes: expected 128"),
        (&[0u8; 129][..], 1, "a message longer than 128 bytes"),
        (&unknown[..], 1, "a message of type 9: expected 1 to 8"),
        (&whole[..], 2, "INIT with a descriptor too many"),
        (&region[..], 2, "ADD_REGION with a descriptor too many"),
        // More than there is room for: the system itself closes some.
        (&region[..], 9, "ADD_REGION with a descriptor too many"),
    ] {
        let (mut reader, pipe) = std::io::pipe().unwrap();
        let told = in_time(|| {
            let socket = Socket::connect(&at).unwrap();
            let sent = vec![pipe.as_fd(); files];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(9))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if files > 0 {
                assert!(control.push(SendAncillaryMessage::ScmRights(&sent)));
            }
            sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).unwrap();
            parting(&socket)
        });
        assert_eq!(told, why);
        drop(pipe);
        assert!(readable(&reader, PATIENCE), "somebody still holds the pipe");
        assert_eq!(reader.read(&mut [0; 1]).unwrap(), 0);
    }
}

#[test]
fn memory_that_may_shrink_or_is_too_short_is_refused() {
    let at = anywhere();
    let server = server(&at);
    let loose = tempfile::tempfile().unwrap();
    loose.set_len(4096).unwrap();
    let (_memory, short) = Region::share(4096).unwrap();
    for (index, size, file, why) in [
        (0, 4096, loose.as_fd(), "a region that cannot be mapped: "),
        (0, 4097, short.as_fd(), "a region that cannot be mapped: shared memory that is too short"),
        (0, 0, short.as_fd(), "a region of 0 bytes: expected 1 to 4294967295"),
        (0, 1 << 32, short.as_fd(), "a region of 4294967296 bytes: expected 1 to 4294967295"),
        (1, 4096, short.as_fd(), "region 1: expected 0"),
    ] {
        let reason = in_time(|| {
            let socket = Socket::connect(&at).unwrap();
            socket.send(&init(), None).unwrap();
            let _ = socket.send(&Message::AddRegion { index, size }, Some(file));
            parting(&socket)
        });
        assert!(reason.starts_with(why), "`{reason}` where `{why}` was expected");
    }
    assert_eq!(server.link_state().generation(), 0);
}

#[test]
fn a_client_that_sends_on_an_established_link_loses_it() {
    let at = anywhere();
    let server = server(&at);
    let (_memory, file) = Region::share(4096).unwrap();
    let event = event();
    let connect = Message::Connect { interface: Text::new("x") };
    let steps = [
        (init(), None),
        (Message::AddRegion { index: 0, size: 4096 }, Some(file.as_fd())),
        (Message::AddRing(add_ring(TO_SERVER, 0)), Some(event.as_fd())),
        (Message::AddRing(add_ring(0, 384)), Some(event.as_fd())),
        (connect, None),
    ];
    let told = in_time(|| {
        let socket = Socket::connect(&at).unwrap();
        assert!(matches!(next(&socket), Some((Message::Hello(_), None))));
        for (message, file) in steps {
            assert_eq!(server.link_state().generation(), 0);
            let _ = socket.send(&message, file);
            match next(&socket).expect("an answer").0 {
                Message::Ack if message != connect => {}
                Message::Connected { .. } if message == connect => {}
                Message::Disconnect { reason, .. } => return reason.to_string(),
                other => panic!("{other:?}"),
            }
        }
        generation(&server, 1);
        socket.send(&Message::Ack, None).unwrap();
        parting(&socket)
    });
    assert_eq!(told, "ACK where DISCONNECT was expected");
    generation(&server, 2);
    expect_why(&server, "the peer makes no sense: ACK");
}

fn hello() -> Hello {
    Hello {
        name: Text::new("test"),
        min_version: 0x0100,
        max_version: 0x0300,
        max_region: 0,
        max_to_client: 0,
        max_to_server: 0,
        max_log2_ring: 3,
    }
}

#[test]
fn a_client_does_as_the_server_allows_and_leaves_one_that_makes_no_sense() {
    let at = anywhere();
    let listener = ListenSocket::open(&at).unwrap();
    let client = client(&at);
    for (answers, why) in [
        (vec![Message::Ack], "ACK where HELLO was expected"),
        (
            vec![Message::Hello(Hello { min_version: 0x0201, ..hello() })],
            "version 0x0201 to 0x0300: expected 0x0200",
        ),
        (
            vec![Message::Hello(Hello { max_log2_ring: 0, ..hello() })],
            "rings of 2^0 slots at most: expected 2^1 to 2^14",
        ),
        (vec![Message::Hello(hello()), Message::Hello(hello())], "HELLO where ACK was expected"),
        (
            vec![Message::Hello(hello()), Message::Connected { interface: Text::new("x") }],
            "CONNECTED where ACK was expected",
        ),
    ] {
        let told = in_time(|| {
            let socket = accept(&listener);
            for answer in &answers {
                let _ = socket.send(answer, None);
            }
            match next(&socket) {
                Some((Message::Init(_), None)) => parting(&socket),
                Some((Message::Disconnect { reason, .. }, None)) => reason.to_string(),
                other => panic!("{other:?}"),
            }
        });
        assert_eq!(told, why);
    }
    assert_eq!(client.link_state().generation(), 0);

    let mut sent = Vec::new();
    let mut socket = None;
    let told = in_time(|| {
        let server = accept(&listener);
        let _ = server.send(&Message::Hello(hello()), None);
        sent.clear();
        loop {
            match next(&server).expect("a message") {
                (Message::Disconnect { reason, .. }, _) => return reason.to_string(),
                (message, file) => {
                    assert_eq!(file.is_some(), message.has_file());
                    sent.push(message);
                }
            }
            assert_eq!(client.link_state().generation(), 0, "not before the server has said so");
            let last = matches!(sent.last(), Some(Message::Connect { .. }));
            let connected = Message::Connected { interface: Text::new("far") };
            let _ = server.send(if last { &connected } else { &Message::Ack }, None);
            if last {
                break;
            }
        }
        socket = Some(server);
        "a link".to_owned()
    });
    assert_eq!(told, "a link");
    let names: Vec<_> = sent.iter().map(Message::name).collect();
    assert_eq!(names, ["INIT", "ADD_REGION", "ADD_RING", "ADD_RING", "CONNECT"]);
    let size = 2 * ring_bytes(3) as u64;
    assert_eq!(sent[1], Message::AddRegion { index: 0, size });
    assert_eq!(sent[2], Message::AddRing(AddRing { log2_size: 3, ..add_ring(TO_SERVER, 0) }));
    assert_eq!(sent[3], Message::AddRing(AddRing { log2_size: 3, ..add_ring(0, ring_bytes(3) as u32) }));
    assert_eq!(link(&client, 1).peer, "test (far)");
    drop(socket);
    generation(&client, 2);
    expect_why(&client, "the peer is gone");
}

fn refusal(at: &Path) -> MemifError {
    let config = MemifConfig::server(SocketName::Path(at.to_owned()));
    ControlThread::start(&config, Box::new(offer)).unwrap_err()
}

#[test]
fn a_dead_servers_socket_is_taken_over_and_a_living_ones_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("memif.sock");
    let at = SocketName::Path(path.clone());
    // A killed server leaves a bound socket at which no process listens.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let server = server(&at);
    let client = client(&at);
    generation(&client, 1);
    assert!(matches!(refusal(&path), MemifError::Taken(taken) if taken == at));
    drop(client);
    generation(&server, 2);
    drop(server);
    assert!(!path.exists(), "nothing is left behind");

    let living = std::os::unix::net::UnixListener::bind(&path).unwrap();
    assert!(matches!(refusal(&path), MemifError::Taken(_)), "even if it speaks something else");
    drop(living);
}

#[test]
fn a_server_leaves_files_that_are_not_its_own_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("memif.sock");
    fs::write(&path, "precious").unwrap();
    assert!(matches!(refusal(&path), MemifError::NoSocket(named) if named == path));
    assert_eq!(fs::read(&path).unwrap(), b"precious");
    fs::remove_file(&path).unwrap();

    let server = server(&SocketName::Path(path.clone()));
    fs::remove_file(&path).unwrap();
    fs::write(&path, "of somebody else").unwrap();
    drop(server);
    assert!(path.exists());
    let nowhere = folder.path().join("none/memif.sock");
    assert!(matches!(refusal(&nowhere), MemifError::System { what: "listen at", .. }));
}

#[test]
fn abstract_names_are_taken_once() {
    let at = anywhere();
    let first = server(&at);
    let again = ControlThread::start(&MemifConfig::server(at.clone()), Box::new(offer));
    assert!(matches!(again, Err(MemifError::Taken(taken)) if taken == at));
    drop(first);
    server(&at);
}
