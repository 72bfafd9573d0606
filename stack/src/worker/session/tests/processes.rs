//! An application in a process of its own: this program again, told by its environment what to do.

use std::process::{Child, Command as Program, Stdio};

use super::listener::{Hosts, event};
use super::*;
use crate::wire::ses::ReturnCode;

/// The message that comes back, bytes.
const LEN: u32 = 100_000;
const SOCKET: &str = "WEFT_TEST_SOCKET_PATH";
const PEER: &str = "WEFT_TEST_PEER";
/// The child's process.
const CHILD: u16 = 50;

/// Killed at the latest when the test ends.
struct Echo(Child);

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The child's own test: nothing, unless it is the child. It sends a message back and waits until it is killed.
#[test]
fn echo() {
    let (Ok(place), Ok(peer)) = (std::env::var(SOCKET), std::env::var(PEER)) else { return };
    let mut client = Client::join(place.as_ref(), &SMALL, Some(CHILD), super::listener::LIMIT).unwrap();
    client.receive(extent(0, LEN), None, Matching::Untagged, 1).unwrap();
    let there = ConnectOptions { process: peer.parse().unwrap(), ..ConnectOptions::default() };
    let connection = client.connect(Addr(0), there, 2).unwrap();
    while event(&mut client).unwrap().context != 1 {}
    client.send(connection, extent(0, LEN), None, 0, 3).unwrap();
    while event(&mut client).is_ok() {}
}

#[test]
fn applications_in_other_processes_exchange_messages_and_are_noticed_when_killed() {
    let hosts = Hosts::new();
    let mut alice = hosts.join(0, &SMALL, None).unwrap();
    alice.receive(extent(u64::from(LEN), LEN), None, Matching::Untagged, 1).unwrap();
    let child = Program::new(std::env::current_exe().unwrap())
        .args(["--exact", "worker::session::tests::processes::echo"])
        .env(SOCKET, hosts.socket(1))
        .env(PEER, alice.process().to_string())
        .stdout(Stdio::null())
        .spawn();
    let child = Echo(child.unwrap());
    let bytes = content(5, LEN as usize);
    alice.write(0, &bytes).unwrap();
    let there = ConnectOptions { process: CHILD, ..ConnectOptions::default() };
    let connection = alice.connect(Addr(1), there, 2).unwrap();
    // Until it has come in.
    let started = std::time::Instant::now();
    let send = |alice: &mut Client| loop {
        assert!(started.elapsed() < super::listener::LIMIT);
        alice.send(connection, extent(0, LEN), None, 0, 3).unwrap();
        let result = loop {
            match event(alice).unwrap().report {
                Report::Sent { result, .. } => break result,
                Report::Connected { .. } => {}
                other => panic!("{other:?}"),
            }
        };
        if result != Err(SendError::Answered(ReturnCode::BAD_PID)) {
            break result;
        }
    };
    assert_eq!(send(&mut alice), Ok(()));
    let back = event(&mut alice).unwrap();
    assert!(matches!(back.report, Report::Received { result: Ok(()), len: LEN, .. }), "{back:?}");
    let mut copy = vec![0; LEN as usize];
    alice.read(u64::from(LEN), &mut copy).unwrap();
    assert!(copy == bytes);

    drop(child);
    loop {
        alice.send(connection, extent(0, 1), None, 0, 4).unwrap();
        let event = event(&mut alice).unwrap();
        match event.report {
            Report::Sent { result: Ok(()), .. } => assert!(started.elapsed() < super::listener::LIMIT),
            Report::Sent { result: Err(SendError::Answered(ReturnCode::BAD_PID)), .. } => break,
            other => panic!("{other:?}"),
        }
    }
}
