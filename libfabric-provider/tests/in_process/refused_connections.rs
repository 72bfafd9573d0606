//! Endpoints of servers that want more connections to one host than their server lets them have.

use std::ptr::null_mut;

use crate::common::fabric::{Exposed, Failed, Side, table};
use crate::common::inside;
use crate::common::server::{Server, address, open, server};
use weft::{Endpoint, Limits};
use weft_fi::sys::{self, FI_ADDR_UNSPEC};

/// An endpoint of a server gets half of them, as others may come.
const CONNECTIONS: u32 = 8;
const PEERS: usize = 7;
const ROUNDS: usize = 4;
const MESSAGES: usize = 3;

/// Server `host` that lets its endpoints have few connections to one host.
fn narrow_server(directory: &tempfile::TempDir, host: u8) -> Server {
    let limits = Limits { pdcs_per_peer: CONNECTIONS, ..Limits::default() };
    let builder = Endpoint::builder(format!("udp:{}", address(host)));
    Server::start_within(limits, builder, &directory.path().join(host.to_string()))
}

fn content(peer: usize, round: usize, number: usize) -> Vec<u8> {
    let len = [20, 3_000, 90_000][number % 3];
    (0..len).map(|n: usize| (n * 7 + (n >> 8) * 5 + peer * 37 + round * 11 + number) as u8).collect()
}

#[test]
fn messages_to_more_peers_than_there_are_connections_arrive_in_their_order() {
    if !inside("messages_to_more_peers_than_there_are_connections_arrive_in_their_order") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (here, there) = (narrow_server(&directory, 61), server(&directory, 62, |builder| builder));
    let side = open(&here);
    let peers: Vec<Side> = (0..PEERS).map(|_| open(&there)).collect();
    let numbers: Vec<u64> = peers.iter().map(|peer| side.insert(&peer.name())).collect();
    for peer in &peers {
        peer.insert(&side.name());
    }
    for round in 0..ROUNDS {
        // Of each number to each peer.
        let messages: Vec<Vec<Vec<u8>>> = (0..MESSAGES)
            .map(|number| (0..PEERS).map(|peer| content(peer, round, number)).collect())
            .collect();
        let mut rooms = vec![vec![vec![0u8; 100_000]; MESSAGES]; PEERS];
        for (peer, rooms) in peers.iter().zip(&mut rooms) {
            for (number, room) in rooms.iter_mut().enumerate() {
                peer.receive(room, FI_ADDR_UNSPEC, None, number);
            }
        }
        // To all peers in turn, so that each wants its connection while the others have theirs.
        for messages in &messages {
            for (peer, message) in messages.iter().enumerate() {
                side.send(numbers[peer], message, None, 100 + peer);
            }
        }
        for _ in 0..PEERS * MESSAGES {
            side.cq.next().unwrap_or_else(|failed| panic!("in round {round} a message fails: {failed:?}"));
        }
        for (peer, side) in peers.iter().enumerate() {
            for _ in 0..MESSAGES {
                let entry = side.cq.next().unwrap();
                let expected = &messages[entry.context][peer];
                assert_eq!(entry.len, expected.len(), "peer {peer}, receive {}", entry.context);
                assert!(rooms[peer][entry.context][..entry.len] == expected[..], "peer {peer}");
            }
        }
    }
}

/// Messages that wait for a connection, as all are in use. One was refused by the server already, and came back.
#[test]
fn messages_that_wait_for_a_connection_can_be_cancelled() {
    if !inside("messages_that_wait_for_a_connection_can_be_cancelled") {
        return;
    }
    const IN_USE: usize = CONNECTIONS as usize / 2;
    let directory = tempfile::tempdir().unwrap();
    let here = narrow_server(&directory, 65);
    // It keeps nothing of messages that nobody receives, so that they stay under way.
    let limits = Limits { unexpected_bytes_per_peer: 0, ..Limits::default() };
    let there = Endpoint::builder(format!("udp:{}", address(66)));
    let there = Server::start_within(limits, there, &directory.path().join("66"));
    let side = open(&here);
    let peers: Vec<Side> = (0..=IN_USE).map(|_| open(&there)).collect();
    let numbers: Vec<u64> = peers.iter().map(|peer| side.insert(&peer.name())).collect();
    for peer in &peers {
        peer.insert(&side.name());
    }
    let long: Vec<Vec<u8>> = (0..IN_USE).map(|peer| content(peer, 0, 2)).collect();
    for (peer, message) in long.iter().enumerate() {
        side.send(numbers[peer], message, None, peer);
    }
    let last = &peers[IN_USE];
    let mut rooms = vec![vec![0u8; 4_000]; 2];
    for (n, room) in rooms.iter_mut().enumerate() {
        last.receive(room, FI_ADDR_UNSPEC, None, n);
    }
    let messages: Vec<Vec<u8>> = (0..5).map(|n| content(IN_USE, n, 1)).collect();
    for (n, message) in messages[..4].iter().enumerate() {
        side.send(numbers[IN_USE], message, None, 100 + n);
    }
    assert_eq!((side.cq.read_within(300), last.cq.read()), (None, None), "there is no connection for them");
    for context in [100, 102] {
        // SAFETY: the endpoint is open.
        let cancelled = unsafe {
            let context = std::ptr::without_provenance_mut(context);
            (*(*side.ep).ops).cancel.unwrap()(side.ep.cast(), context)
        };
        let end = side.cq.next();
        assert_eq!((cancelled, end), (0, Err(Failed { context, error: sys::FI_ECANCELED, beyond: 0 })));
    }
    // The first peer takes its message, and its connection makes room.
    let mut room = vec![0u8; 90_000];
    peers[0].receive(&mut room, FI_ADDR_UNSPEC, None, 0);
    assert_eq!(peers[0].cq.next().map(|entry| entry.len), Ok(90_000));
    assert!(room == long[0]);
    let mut sent: Vec<usize> = (0..3).map(|_| side.cq.next().unwrap().context).collect();
    sent.sort_unstable();
    assert_eq!(sent, [0, 101, 103]);
    for (n, message) in [&messages[1], &messages[3]].into_iter().enumerate() {
        let entry = last.cq.next().unwrap();
        assert_eq!((entry.context, entry.len), (n, message.len()));
        assert!(rooms[n][..entry.len] == message[..], "message {n}");
    }
    // Nothing of those that were cancelled follows.
    last.receive(&mut rooms[0], FI_ADDR_UNSPEC, None, 0);
    side.send(numbers[IN_USE], &messages[4], None, 104);
    assert_eq!(
        (side.cq.next().map(|entry| entry.context), last.cq.next().map(|entry| entry.len)),
        (Ok(104), Ok(3_000))
    );
    assert!(rooms[0][..3_000] == messages[4][..]);
    for (peer, message) in long.iter().enumerate().skip(1) {
        peers[peer].receive(&mut room, FI_ADDR_UNSPEC, None, 0);
        assert_eq!(peers[peer].cq.next().map(|entry| entry.len), Ok(90_000));
        assert!(room == *message);
        assert_eq!(side.cq.next().map(|entry| entry.context), Ok(peer));
    }
}

#[test]
fn memory_of_more_peers_than_there_are_connections_is_accessed() {
    if !inside("memory_of_more_peers_than_there_are_connections_is_accessed") {
        return;
    }
    const KEY: u64 = 5;
    let directory = tempfile::tempdir().unwrap();
    // Neither the requests nor the answers have enough of them.
    let (here, there) = (narrow_server(&directory, 63), narrow_server(&directory, 64));
    let sides: Vec<Side> = (0..3).map(|_| open(&here)).collect();
    let owners: Vec<Side> = (0..PEERS).map(|_| open(&there)).collect();
    let mut memory: Vec<Vec<u8>> = (0..PEERS).map(|owner| content(owner, 0, 2)).collect();
    let exposed: Vec<Exposed> =
        owners.iter().zip(&mut memory).map(|(owner, memory)| Exposed::new(owner, memory, KEY)).collect();
    // Servers let packets of hosts in that somebody has named.
    owners[0].insert(&sides[0].name());
    for (asker, side) in sides.iter().enumerate() {
        let mut rooms = vec![vec![0u8; 90_000]; PEERS];
        for (owner, room) in owners.iter().zip(&mut rooms) {
            let (from, at) = (side.insert(&owner.name()), room.as_mut_ptr());
            side.post(|| table!(side.ep, rma.read(at.cast(), 90_000, null_mut(), from, 0, KEY, null_mut())));
        }
        for _ in 0..PEERS {
            side.cq.next().unwrap_or_else(|failed| panic!("asker {asker}: {failed:?}"));
        }
        for (owner, room) in rooms.iter().enumerate() {
            assert!(*room == content(owner, 0, 2), "asker {asker}, owner {owner}");
        }
    }
    drop(exposed);
}
