//! Endpoints of servers that want more connections to one host than their server lets them have.

mod common;

use std::ptr::null_mut;

use common::fabric::{Exposed, Side, table};
use common::inside;
use common::server::{Server, open, server};
use weft::{Endpoint, Limits};
use weft_fi::sys::FI_ADDR_UNSPEC;

/// An endpoint of a server gets half of them, as others may come.
const CONNECTIONS: u32 = 8;
const PEERS: usize = 7;
const ROUNDS: usize = 4;
const MESSAGES: usize = 3;

/// A server at 127.40.0.`host` that lets its endpoints have few connections to one host.
fn narrow_server(directory: &tempfile::TempDir, host: u8) -> Server {
    let limits = Limits { pdcs_per_peer: CONNECTIONS, ..Limits::default() };
    let builder = Endpoint::builder(format!("udp:127.40.0.{host}"));
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
