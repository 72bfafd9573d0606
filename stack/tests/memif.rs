//! Ports over weft's own memif: two in one process, and one with a peer that is killed.

mod port_suite;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use port_suite::{Dress, Link, conforms, conforms_across_threads};
use weft_stack::port::memif::{MemifConfig, MemifPort, Role, SocketName};
use weft_stack::port::{Attachment, Port, RxBurst, TxBurst};
use weft_stack::region::{Region, SharedRegion};

/// The longest wait for a peer.
const LINK: Duration = Duration::from_secs(20);

fn fresh(directory: &Path) -> SocketName {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    SocketName::Path(directory.join(format!("{}.sock", NEXT.fetch_add(1, Ordering::Relaxed))))
}

/// A link whose client makes rings of 2^`log2_ring` buffers of `buffer` bytes.
fn link(directory: &Path, log2_ring: u8, buffer: Option<u32>, back: bool) -> Link<MemifPort, MemifPort> {
    let socket = fresh(directory);
    let server = MemifPort::open(&MemifConfig::server(socket.clone())).unwrap();
    let config = MemifConfig { log2_ring, buffer_size: buffer, ..MemifConfig::client(socket) };
    let client = MemifPort::open(&config).unwrap();
    server.wait_for_link(LINK).unwrap();
    client.wait_for_link(LINK).unwrap();
    let (mut a, mut b) = if back { (server, client) } else { (client, server) };
    // Each end takes the link when it looks for frames.
    let mut rx = RxBurst::new();
    assert_eq!((a.receive(&mut rx), b.receive(&mut rx)), (0, 0));
    Link { a, b, frames: Some(1 << log2_ring), dress: Dress::NONE }
}

#[test]
fn memif_conforms_in_either_direction() {
    let directory = tempfile::tempdir().unwrap();
    for back in [false, true] {
        conforms(|| link(directory.path(), 8, None, back));
    }
}

#[test]
fn memif_conforms_across_threads() {
    let directory = tempfile::tempdir().unwrap();
    for back in [false, true] {
        conforms_across_threads(link(directory.path(), 6, None, back), 100_000);
    }
}

#[test]
fn frames_longer_than_buffers_arrive_complete() {
    let directory = tempfile::tempdir().unwrap();
    let payload: Arc<[u8]> = (0..8000).map(|n| (n % 251) as u8).collect::<Vec<u8>>().into();
    for (buffer, back) in [(None, false), (None, true), (Some(576), false), (Some(576), true)] {
        let Link { mut a, mut b, .. } = link(directory.path(), 8, buffer, back);
        let (mut tx, mut rx) = (TxBurst::new(&a), RxBurst::new());
        for len in [1, 64, 4096, 8000] {
            let mut frame = tx.reserve(90).unwrap();
            frame.fill(7);
            frame.attach(Attachment::bytes(Arc::clone(&payload), 0..len).unwrap()).unwrap();
            frame.commit();
        }
        assert_eq!((tx.payloads().attached, a.transmit(&mut tx)), (4, 4));
        assert_eq!(Arc::strong_count(&payload), 1, "it has been copied, and is let go");
        assert_eq!(b.receive(&mut rx), 4);
        for (frame, len) in rx.iter().zip([1, 64, 4096, 8000]) {
            assert!(frame[..90] == [7; 90] && frame[90..] == payload[..len], "{len} bytes over {buffer:?}");
        }
    }
}

/// A peer that sends as much as it can until it is killed, and drains its receive ring.
#[test]
#[ignore = "a part of another test, in a process of its own"]
fn a_peer() {
    let socket = SocketName::Path(std::env::var_os("WEFT_TEST_MEMIF").expect("the other test says").into());
    let config = match std::env::var("WEFT_TEST_ROLE").as_deref() {
        Ok("server") => MemifConfig::server(socket),
        _ => MemifConfig { log2_ring: 6, ..MemifConfig::client(socket) },
    };
    let mut port = MemifPort::open(&config).unwrap();
    let (mut tx, mut rx) = (TxBurst::new(&port), RxBurst::new());
    let begin = Instant::now();
    while begin.elapsed() < 3 * LINK {
        exchange(&mut port, &mut tx, &mut rx);
    }
}

/// Keeps the link full, and checks the frames that arrive.
fn exchange(port: &mut MemifPort, tx: &mut TxBurst, rx: &mut RxBurst) -> usize {
    while let Ok(mut frame) = tx.reserve(4000) {
        frame.fill(0x5a);
        frame.commit();
    }
    port.transmit(tx);
    let count = port.receive(rx);
    assert!(rx.drain().all(|frame| frame.len() == 4000 && frame.iter().all(|byte| *byte == 0x5a)));
    count
}

/// A port with the role `own`, its socket, and the role that a peer must have.
fn open_as(own: Role, directory: &Path) -> (MemifPort, PathBuf, &'static str) {
    let (file, other) = match own {
        Role::Server => ("server", "client"),
        Role::Client => ("client", "server"),
    };
    let socket = directory.join(file);
    let config = MemifConfig { role: own, ..MemifConfig::server(SocketName::Path(socket.clone())) };
    (MemifPort::open(&config).unwrap(), socket, other)
}

fn start(role: &str, socket: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_peer", "--ignored"])
        .env("WEFT_TEST_MEMIF", socket)
        .env("WEFT_TEST_ROLE", role)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// An end whose peer is killed under load only loses its link, and finds the next peer. Either end is killed in turn;
/// nothing is cleaned up in between.
#[test]
fn killing_a_peer_under_load_only_costs_the_link() {
    let directory = tempfile::tempdir().unwrap();
    for own in [Role::Server, Role::Client] {
        let (mut port, socket, other) = open_as(own, directory.path());
        let (mut tx, mut rx) = (TxBurst::new(&port), RxBurst::new());
        for round in 0..15u64 {
            let mut peer = start(other, &socket);
            let begin = Instant::now();
            let mut seen = 0;
            // Until frames have arrived from this peer, and then some more.
            while seen < 500 + 37 * round as usize {
                seen += exchange(&mut port, &mut tx, &mut rx);
                assert!(begin.elapsed() < LINK, "round {round}: {seen} frames from the {other}");
            }
            peer.kill().unwrap();
            let begin = Instant::now();
            while port.link_is_up() {
                exchange(&mut port, &mut tx, &mut rx);
                assert!(begin.elapsed() < LINK, "round {round}: the {other} is dead");
            }
            peer.wait().unwrap();
            assert_eq!(exchange(&mut port, &mut tx, &mut rx), 0);
        }
    }
}

/// A peer that is suspended under load loses the frames that its ring cannot hold, and then continues.
#[test]
fn a_suspended_peer_does_not_block_the_other_end() {
    let directory = tempfile::tempdir().unwrap();
    for own in [Role::Server, Role::Client] {
        let (mut port, socket, other) = open_as(own, directory.path());
        let mut peer = start(other, &socket);
        let signal = |signal| {
            rustix::process::kill_process(rustix::process::Pid::from_child(&peer), signal).unwrap();
        };
        let (mut tx, mut rx) = (TxBurst::new(&port), RxBurst::new());
        for round in 0..5 {
            let mut seen = 0;
            let begin = Instant::now();
            while seen < 500 {
                seen += exchange(&mut port, &mut tx, &mut rx);
                assert!(begin.elapsed() < LINK, "round {round}: {seen} frames from the {other}");
            }
            signal(rustix::process::Signal::STOP);
            // The frames sent so far are received; then the ring to the peer is full, and its own is empty.
            let mut quiet = 0;
            while quiet < 1000 {
                let sent = port.counters().tx_frames;
                let moved = exchange(&mut port, &mut tx, &mut rx) > 0 || port.counters().tx_frames > sent;
                quiet = if moved { 0 } else { quiet + 1 };
                assert!(begin.elapsed() < LINK, "round {round}: the {other} is stopped");
            }
            assert!(port.link_is_up() && port.waitable().is_some());
            port.waited();
            signal(rustix::process::Signal::CONT);
        }
        peer.kill().unwrap();
        peer.wait().unwrap();
    }
}

/// Sends `count` frames over `port` whose payload is in `memory`.
fn send_from(port: &mut MemifPort, tx: &mut TxBurst, memory: &Region, count: usize) {
    for n in 0..count {
        let slice = memory.slice(4096 * n as u64, 4096).unwrap();
        let mut frame = tx.reserve(98).unwrap();
        frame.fill(n as u8);
        frame.attach(Attachment::from(slice)).unwrap();
        frame.commit();
    }
    assert_eq!(port.transmit(tx), count);
}

fn receive_all(port: &mut MemifPort, rx: &mut RxBurst, count: usize) -> Vec<Vec<u8>> {
    let (begin, mut frames) = (Instant::now(), Vec::new());
    while frames.len() < count {
        assert!(begin.elapsed() < LINK, "{} of {count} frames", frames.len());
        port.receive(rx);
        frames.extend(rx.drain().map(|frame| frame.to_vec()));
    }
    frames
}

/// Waits for the link in which the client's memory is registered.
fn linked(client: &mut MemifPort, server: &mut MemifPort, rx: &mut RxBurst) {
    for port in [client, server] {
        port.wait_for_link(LINK).unwrap();
        assert_eq!(port.receive(rx), 0);
    }
}

/// Memory may be registered before there is a link, or while there is one, which is replaced.
#[test]
fn registered_memory_is_shared_with_the_peer_of_the_next_link() {
    let directory = tempfile::tempdir().unwrap();
    let socket = fresh(directory.path());
    let mut client = MemifPort::open(&MemifConfig::client(socket.clone())).unwrap();
    let memories: [_; 2] = std::array::from_fn(|_| SharedRegion::allocate(1 << 20).unwrap());
    assert!(client.register(&memories[0]));
    let mut server = MemifPort::open(&MemifConfig::server(socket)).unwrap();
    assert!(!server.register(&memories[0]), "the memory of a link is the client's");
    let (mut tx, mut rx) = (TxBurst::new(&client), RxBurst::new());
    for known in 1..3 {
        linked(&mut client, &mut server, &mut rx);
        for (n, memory) in memories.iter().map(SharedRegion::region).enumerate() {
            memory.slice(0, 1 << 20).unwrap().write(0, &vec![n as u8; 1 << 20]);
            send_from(&mut client, &mut tx, memory, 20);
            memory.slice(0, 1 << 20).unwrap().write(0, &vec![0xee; 1 << 20]);
            let payload = if n < known { 0xee } else { n as u8 };
            for (number, frame) in receive_all(&mut server, &mut rx, 20).iter().enumerate() {
                assert_eq!((frame.len(), &frame[..98]), (98 + 4096, &[number as u8; 98][..]));
                assert!(frame[98..].iter().all(|byte| *byte == payload), "memory {n} of {known}");
            }
        }
        assert!(client.register(&memories[1]));
        assert!(!client.link_is_up());
    }
}

/// Recalling memory does not wait for frames that the peer has copied; frames that it has not cost the link. A peer
/// that still looks at the ring finds nothing there, however late it learns of the end of the link.
#[test]
fn recalled_memory_is_never_read_again() {
    let directory = tempfile::tempdir().unwrap();
    let socket = fresh(directory.path());
    let mut client = MemifPort::open(&MemifConfig::client(socket.clone())).unwrap();
    let mut server = MemifPort::open(&MemifConfig::server(socket)).unwrap();
    let memory = SharedRegion::allocate(1 << 20).unwrap();
    let (mut tx, mut rx) = (TxBurst::new(&client), RxBurst::new());
    client.recall();
    assert!(client.register(&memory));
    for round in 0..3 {
        linked(&mut client, &mut server, &mut rx);
        send_from(&mut client, &mut tx, memory.region(), 20);
        receive_all(&mut server, &mut rx, 20);
        assert_eq!(server.receive(&mut rx), 0, "the buffers go back");
        // Copied, and not received yet: recalling does not wait for these.
        tx.reserve(100).unwrap().commit();
        assert_eq!(client.transmit(&mut tx), 1);
        client.recall();
        assert!(client.link_is_up());
        send_from(&mut client, &mut tx, memory.region(), 20);
        let errors = server.counters().rx_errors;
        client.recall();
        assert!(!client.link_is_up());
        while server.receive(&mut rx) > 0 {
            assert!(rx.drain().all(|frame| frame.len() == 100), "round {round}: nothing of the memory");
        }
        let gone = server.counters().rx_errors - errors;
        assert!(gone == 0 || gone == 41, "round {round}: the link ended first, or all came empty: {gone}");
    }
}

/// Whether `port` becomes readable, which happens at once or not at all.
fn would_wake(port: &mut MemifPort) -> bool {
    let alarm = port.waitable().expect("memif can tell");
    let at_once = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut watched = [rustix::event::PollFd::from_borrowed_fd(alarm, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut watched, Some(&at_once)).unwrap() == 1
}

/// A worker that was about to sleep when the link came up sees frames that were sent over it before the wait.
#[test]
fn frames_sent_as_the_link_comes_up_wake_a_worker_about_to_sleep() {
    let directory = tempfile::tempdir().unwrap();
    for sleeper_is_server in [true, false] {
        let socket = fresh(directory.path());
        let (first, second) = (MemifConfig::server(socket.clone()), MemifConfig::client(socket));
        let (first, second) = if sleeper_is_server { (first, second) } else { (second, first) };
        let (mut sleeper, mut rx) = (MemifPort::open(&first).unwrap(), RxBurst::new());
        assert!(!would_wake(&mut sleeper));
        let mut other = MemifPort::open(&second).unwrap();
        sleeper.wait_for_link(LINK).unwrap();
        other.wait_for_link(LINK).unwrap();
        assert_eq!(sleeper.receive(&mut rx), 0, "the turn that finds nothing, and takes the link");
        let mut tx = TxBurst::new(&other);
        tx.reserve(100).unwrap().commit();
        assert_eq!(other.transmit(&mut tx), 1);
        assert!(would_wake(&mut sleeper));
        assert_eq!(sleeper.receive(&mut rx), 1);
        sleeper.waited();
        assert!(!would_wake(&mut sleeper), "what has been received wakes nobody");
        tx.reserve(100).unwrap().commit();
        assert_eq!(other.transmit(&mut tx), 1);
        assert!(would_wake(&mut sleeper), "who listens is told");
    }
}
