//! Peers of a memif port that come and go leave nothing behind. This test is a process of its own, because it counts
//! the process's resources.

use std::fs;
use std::time::{Duration, Instant};

use weft_stack::port::memif::{MemifConfig, MemifPort, SocketName};
use weft_stack::port::{Port, RxBurst, TxBurst};

/// The longest wait for a peer.
const PATIENCE: Duration = Duration::from_secs(20);

fn until(mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
}

/// Number of descriptors, mappings of shared memory, and threads of this process.
fn process_resources() -> [usize; 3] {
    let entries = |path| fs::read_dir(path).unwrap().count();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let shared = maps.lines().filter(|line| line.contains("memfd:weft")).count();
    [entries("/proc/self/fd"), shared, entries("/proc/self/task")]
}

/// Sends a frame over a new link, and closes it. The frame stays in `rx`.
fn visit(server: &mut MemifPort, rx: &mut RxBurst, socket: &SocketName) {
    let mut client = MemifPort::open(&MemifConfig::client(socket.clone())).unwrap();
    client.wait_for_link(PATIENCE).unwrap();
    let mut tx = TxBurst::new(&client);
    tx.reserve(2000).unwrap().commit();
    assert_eq!(client.transmit(&mut tx), 1);
    until(|| server.receive(rx) == 1);
    // Asking for the descriptor to wait on makes the port watch all its sources.
    assert!(server.waitable().is_some());
    drop(client);
    until(|| !server.link_is_up());
}

#[test]
fn peers_that_come_and_go_leave_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    let socket = SocketName::Path(directory.path().join("steady.sock"));
    let mut server = MemifPort::open(&MemifConfig::server(socket.clone())).unwrap();
    let mut rx = RxBurst::new();
    let mut rounds = |count| {
        for _ in 0..count {
            visit(&mut server, &mut rx, &socket);
            rx.clear();
        }
        assert_eq!(server.receive(&mut rx), 0, "the lost link is let go");
        process_resources()
    };
    let before = rounds(3);
    assert_eq!(before[1], 0);
    assert_eq!(rounds(1000), before);
}
