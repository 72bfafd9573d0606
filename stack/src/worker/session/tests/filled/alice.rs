//! What alice and her peer do beside a holder that has filled a limit: they need what is reserved for them.

use std::collections::BTreeSet;

use super::*;
use crate::fep::{Completion, Receive};
use crate::wire::ses::{Placement, Ses, StandardRequest};

/// Messages that alice and her peer, endpoint 1, send each other.
const MESSAGES: u64 = 300;
/// Bytes of each.
const LEN: u32 = 1000;
/// The bytes of a message of which five may be under way whatever the window.
const SHORT: u32 = 100;
/// The bytes of a message of two packets.
const LONG: u32 = 1100;
/// Peers that alice adds: the entries of the address book that are reserved for her.
const PEERS_OF_ALICE: u64 = 2;
/// The kind of these.
const HERS: u8 = 1;

/// Alice's peer sends her message `number`, of `len` bytes.
fn post_to_alice(fabric: &mut Fabric, id: ConnectionId, number: u64, len: u32, tag: Option<u64>) {
    let buffer = Buffer::Heap(content(number, len as usize));
    let send = Send { buffer, tag, header_data: number, context: 0 };
    fabric.feps[1].post_send(id, send).unwrap();
}

/// The place in alice's memory for the message of `len` bytes that has this context.
fn place_of(context: u64, len: u32) -> Extent {
    extent(context * u64::from(len), len)
}

fn place(context: u64) -> Extent {
    place_of(context, LEN)
}

/// The place of what alice sends; those before it are for what arrives.
const SENT: u64 = 7;

/// Takes what has been reported to alice in the last turn. Hands the places of messages of `len` bytes that have arrived, as they
/// were sent, to `arrived`. Returns how many of hers have been sent.
fn alice_hears(fabric: &mut Fabric, len: u32, mut arrived: impl FnMut(u64)) -> u64 {
    let mut sent = 0;
    for (_, event) in fabric.events.iter().filter(|(n, _)| *n == ALICE) {
        match event.report {
            Report::Sent { result: Ok(()), .. } => sent += 1,
            Report::Received { result: Ok(()), len: received, header_data, .. } if received == len => {
                let mut bytes = vec![0; len as usize];
                fabric.guests[ALICE].client.read(place_of(event.context, len).offset, &mut bytes).unwrap();
                assert!(bytes == content(header_data, len as usize), "message {header_data} has changed");
                arrived(event.context);
            }
            other => panic!("{other:?}"),
        }
    }
    sent
}

/// Alice opens the connections that are reserved for her, and so does her peer, and they exchange messages: some wait, as many
/// as a peer may always leave to her, some are early, of some a part has to be sent again, some get responses that are stored, and all
/// others meet receives.
/// Returns the turns that it takes.
pub(in super::super) fn alice_and_her_peer(fabric: &mut Fabric) -> u64 {
    let begin = fabric.now;
    let alice = process_of(fabric, ALICE);
    let client = &mut fabric.guests[ALICE].client;
    let connections = [0, 1].map(|n| client.connect(Addr(1), ConnectOptions::default(), n).unwrap());
    let mut opened = 0;
    until(fabric, "a connection", |fabric| {
        for report in reports(fabric, ALICE) {
            assert!(matches!(report, Report::Connected { .. }), "{report:?}");
            opened += 1;
        }
        opened == 2
    });
    let to_alice = [(); 2].map(|()| connect_to(fabric, 1, alice, DeliveryMode::Rud));
    for number in 0..5 {
        post_to_alice(fabric, to_alice[0], number, LEN, Some(5));
    }
    let mut sent = 0;
    until(fabric, "room for messages that wait", |fabric| {
        sent += fabric.completions.iter().filter(|(n, _)| *n == 1).count();
        sent == 5
    });
    for n in 0..5 {
        let (matching, client) = (Matching::Tagged { tag: 0, ignore: 7 }, &mut fabric.guests[ALICE].client);
        client.receive(place(n), None, matching, n).unwrap();
    }
    let mut received = 0;
    until(fabric, "what waited", |fabric| {
        alice_hears(fabric, LEN, |_| received += 1);
        received == 5
    });
    early_messages_to_alice(fabric, alice);
    incomplete_messages_to_alice(fabric, to_alice[1]);
    messages_to_nobody(fabric);
    exchange(fabric, &connections, &to_alice);
    fabric.now.since(begin).as_ps() / Span::from_us(1).as_ps()
}

/// Alice adds the peers that she may add in any case. Returns the turns that it takes.
pub(super) fn alice_adds_peers(fabric: &mut Fabric) -> u64 {
    assert_eq!(PEERS_OF_ALICE, reserved_part(BOOK_ROOM as u64, APPLICATIONS as u64));
    let begin = fabric.now;
    for n in 0..PEERS_OF_ALICE {
        fabric.guests[ALICE].client.peer(added_ip(HERS, n as u16), None, n).unwrap();
    }
    let mut added = 0;
    until(fabric, "a peer", |fabric| {
        for report in reports(fabric, ALICE) {
            assert!(matches!(report, Report::Peer { .. }), "{report:?}");
            added += 1;
        }
        added == PEERS_OF_ALICE
    });
    fabric.now.since(begin).as_ps() / Span::from_us(1).as_ps()
}

/// The number of the first message of alice's peer on an ordered connection.
const FIRST: u64 = 900;

fn is_first(packet: &Packet) -> bool {
    let first = Placement::Start { header_data: FIRST };
    matches!(&packet.ses, Ses::Standard(header) if header.placement == first)
}

/// On an ordered connection from alice's peer a message is lost once. The four behind it are kept meanwhile, and not refused.
fn early_messages_to_alice(fabric: &mut Fabric, alice: u16) {
    let id = connect_to(fabric, 1, alice, DeliveryMode::Rod);
    let mut sent = 0;
    let post = |fabric: &mut Fabric, n: u64| {
        fabric.guests[ALICE].client.receive(place_of(n, SHORT), None, Matching::Untagged, n).unwrap();
        post_to_alice(fabric, id, FIRST + n - 1, SHORT, None);
    };
    // One goes before it, as no others leave until the first one is acknowledged.
    post(fabric, 0);
    until(fabric, "the first message", |fabric| {
        alice_hears(fabric, SHORT, |_| {});
        sent += fabric.completions.iter().filter(|(n, _)| *n == 1).count();
        sent == 1
    });
    fabric.lost.push(is_first);
    (1..6).for_each(|n| post(fabric, n));
    let refused = fabric.feps[1].counters().nacks_received;
    run(fabric, 20);
    assert!(fabric.feps[0].keeps_early_packets_of(Addr(1)), "nothing is early");
    fabric.lost.pop();
    let mut places = Vec::new();
    until(fabric, "what was early", |fabric| {
        alice_hears(fabric, SHORT, |place| places.push(place));
        sent += fabric.completions.iter().filter(|(n, _)| *n == 1).count();
        places.len() == 5 && sent == 6
    });
    assert_eq!(places, [1, 2, 3, 4, 5]);
    assert_eq!(fabric.feps[1].counters().nacks_received, refused, "none is refused");
}

fn is_rest_of_hers(packet: &Packet) -> bool {
    let continues = |ses: &StandardRequest| matches!(ses.placement, Placement::Continue { .. });
    packet.net.src == Addr(1) && matches!(&packet.ses, Ses::Standard(header) if continues(header))
}

/// The second packets of five messages from alice's peer are lost once. A part of each has arrived meanwhile.
fn incomplete_messages_to_alice(fabric: &mut Fabric, id: ConnectionId) {
    fabric.lost.push(is_rest_of_hers);
    for n in 0..5 {
        fabric.guests[ALICE].client.receive(place_of(n, LONG), None, Matching::Untagged, n).unwrap();
        post_to_alice(fabric, id, n, LONG, None);
    }
    run(fabric, 20);
    fabric.lost.pop();
    let (mut received, mut sent) = (0, 0);
    until(fabric, "the rest of messages", |fabric| {
        alice_hears(fabric, LONG, |_| received += 1);
        sent += fabric.completions.iter().filter(|(n, _)| *n == 1).count();
        [received, sent] == [5; 2]
    });
}

/// Messages of alice's peer to a process that does not exist get responses, which are stored until it has them. Of each a second packet
/// follows the first.
fn messages_to_nobody(fabric: &mut Fabric) {
    let id = connect_to(fabric, 1, NOBODY, DeliveryMode::Rud);
    (0..5).for_each(|_| post(fabric, 1, id, LONG, None));
    let mut answered = 0;
    until(fabric, "the responses", |fabric| {
        for (_, completion) in fabric.completions.iter().filter(|(n, _)| *n == 1) {
            match completion {
                Completion::Sent { result: Err(SendError::Answered(_)), retransmissions: 0, .. } => {
                    answered += 1
                }
                other => panic!("{other:?}"),
            }
        }
        answered == 5
    });
}

fn exchange(fabric: &mut Fabric, from_alice: &[ConnectionHandle; 2], to_alice: &[ConnectionId; 2]) {
    for n in 0..MESSAGES {
        let buffer = Buffer::Heap(vec![0; LEN as usize]);
        let receive = Receive { buffer, from: None, matching: Matching::Untagged, context: n };
        fabric.feps[1].post_receive(receive).unwrap();
    }
    let by_alice = content(SENT, LEN as usize);
    fabric.guests[ALICE].client.write(place(SENT).offset, &by_alice).unwrap();
    let by_alice = Buffer::Heap(by_alice);
    let mut free: Vec<u64> = (0..4).collect();
    let mut waits = BTreeSet::new();
    let (mut posted, mut received, mut sent, mut arrived, mut at_peer) = ([0; 2], 0, 0, 0, 0);
    until(fabric, "the last message", |fabric| {
        sent += alice_hears(fabric, LEN, |place| {
            free.push(place);
            received += 1;
        });
        for (_, completion) in fabric.completions.iter().filter(|(n, _)| *n == 1) {
            match completion {
                Completion::Sent { result: Ok(()), .. } => arrived += 1,
                Completion::Received { result: Ok(()), context, buffer, .. } => {
                    assert!(waits.insert(*context));
                    assert!(*buffer == by_alice, "receive {context} got other bytes");
                    at_peer += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        let client = &mut fabric.guests[ALICE].client;
        if posted[0] < MESSAGES.min(sent + 8) {
            let connection = from_alice[posted[0] as usize % 2];
            // Commands wait, in a ring of eight, for turns that make up for copies.
            match client.send(connection, place(SENT), None, 0, 0) {
                Err(ClientError::Full) => {}
                sent => {
                    sent.unwrap();
                    posted[0] += 1;
                }
            }
        }
        // The peer sends when there is a receive.
        if posted[1] < MESSAGES
            && let Some(at) = free.pop()
        {
            match client.receive(place(at), None, Matching::Untagged, at) {
                Err(ClientError::Full) => free.push(at),
                receive => {
                    receive.unwrap();
                    post_to_alice(fabric, to_alice[posted[1] as usize % 2], posted[1], LEN, None);
                    posted[1] += 1;
                }
            }
        }
        [sent, received, arrived, at_peer] == [MESSAGES; 4]
    });
}
