//! Each limit filled by one holder: the others get what is reserved for them, as fast as before.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::Range;

use super::fabric::{APPLICATIONS, Fabric, MEMORY};
use super::*;
use crate::buffer::Buffer;
use crate::fep::{Completion, ConnectionId, Datagram, FepConfig, Limits, Receive, Send};
use crate::packet::Packet;
use crate::pdc::RodReceive;
use crate::wire::pds::DeliveryMode;
use crate::wire::ses::{Placement, Ses};

/// The applications.
const ALICE: usize = 0;
const HOG: usize = 1;
/// Messages that alice and her peer, endpoint 1, send each other.
const MESSAGES: u64 = 300;
/// Bytes of each.
const LEN: u32 = 1000;
/// The length of a message of which all packets are lost.
const LOST: u32 = 777;
/// Half-open PDCs of all peers: as many as two of them may have.
const HALF_OPEN: usize = 16;
/// A process that does not exist.
const NOBODY: u16 = 999;

/// Of connections to a peer 2 are reserved for each application, of messages that wait 10, and 10,000 bytes of them.
pub(super) fn limits() -> Limits {
    Limits {
        connections: 40,
        pdcs_per_peer: 16,
        pdcs: 60,
        half_open_pdcs: HALF_OPEN,
        half_open_pdcs_per_peer: 8,
        closed_pdcs_per_peer: 64,
        sends: 128,
        receives: 1000,
        processes: 5,
        unexpected_messages: 100,
        unexpected_bytes: 100_000,
        unexpected_messages_per_peer: 40,
        unexpected_bytes_per_peer: 40_000,
        reorder_bytes: 24_000,
        reorder_packets: 16,
        response_bytes_per_peer: 2_000,
        response_bytes: 8_000,
        ..Limits::default()
    }
}

fn fabric() -> Fabric {
    let config = FepConfig { limits: limits(), rod_receive: RodReceive::Reorder, ..(*config()).clone() };
    let mut fabric = Fabric::with(config);
    fabric.join(16, 4);
    fabric.join(96, 8);
    fabric
}

/// Goes on until the events of a turn, or what it has come to, are those that are waited for.
fn until(fabric: &mut Fabric, what: &str, mut is_so: impl FnMut(&mut Fabric) -> bool) {
    for _ in 0..100_000 {
        fabric.turn(false);
        if is_so(fabric) {
            return;
        }
    }
    panic!(
        "{what} never comes: {:?}",
        fabric.feps.iter().map(|fep| fep.explain(fabric.now)).collect::<Vec<_>>()
    );
}

/// The reports that came to an application in the last turn.
fn reports(fabric: &Fabric, guest: usize) -> impl Iterator<Item = Report> {
    fabric.events.iter().filter(move |(n, _)| *n == guest).map(|(_, event)| event.report)
}

/// A connection of `peer` to the process of an application, or another one.
fn connect_to(fabric: &mut Fabric, peer: usize, process: u16, mode: DeliveryMode) -> ConnectionId {
    let options = ConnectOptions { process, mode, ..ConnectOptions::default() };
    let id = fabric.feps[peer].connect(fabric.now, Addr(0), options).unwrap();
    fabric.connections[peer].push(id);
    id
}

fn post(fabric: &mut Fabric, peer: usize, id: ConnectionId, len: u32, tag: Option<u64>) {
    let send = Send { buffer: Buffer::Virtual(len), tag, header_data: 0, context: 0 };
    fabric.feps[peer].post_send(id, send).unwrap();
}

/// Alice's peer sends her message `number`.
fn post_to_alice(fabric: &mut Fabric, id: ConnectionId, number: u64, tag: Option<u64>) {
    let buffer = Buffer::Heap(content(number, LEN as usize));
    let send = Send { buffer, tag, header_data: number, context: 0 };
    fabric.feps[1].post_send(id, send).unwrap();
}

/// The place in alice's memory for the message that has this context.
fn place(context: u64) -> Extent {
    extent(context * u64::from(LEN), LEN)
}

/// The place of what alice sends; those before it are for what arrives.
const SENT: u64 = 7;

/// Takes what has been reported to alice in the last turn. Hands the places of messages that have arrived, as they were sent,
/// to `arrived`. Returns how many of hers have been sent.
fn alice_hears(fabric: &mut Fabric, mut arrived: impl FnMut(u64)) -> u64 {
    let mut sent = 0;
    for (_, event) in fabric.events.iter().filter(|(n, _)| *n == ALICE) {
        match event.report {
            Report::Sent { result: Ok(()), .. } => sent += 1,
            Report::Received { result: Ok(()), len: LEN, header_data, .. } => {
                let mut bytes = [0; LEN as usize];
                fabric.guests[ALICE].client.read(place(event.context).offset, &mut bytes).unwrap();
                assert!(bytes[..] == content(header_data, LEN as usize), "message {header_data} has changed");
                arrived(event.context);
            }
            other => panic!("{other:?}"),
        }
    }
    sent
}

fn process_of(fabric: &Fabric, guest: usize) -> u16 {
    fabric.guests[guest].client.process()
}

/// Alice opens the connections that are reserved for her, and so does her peer, and they exchange messages: some wait, as many
/// as a peer may always leave to her, some are early, some get responses that are stored, and all others meet receives.
/// Returns the turns that it takes.
pub(super) fn alice_and_her_peer(fabric: &mut Fabric) -> u64 {
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
        post_to_alice(fabric, to_alice[0], number, Some(5));
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
        alice_hears(fabric, |_| received += 1);
        received == 5
    });
    early_messages_to_alice(fabric, alice);
    messages_to_nobody(fabric);
    exchange(fabric, &connections, &to_alice);
    fabric.now.since(begin).as_ps() / Span::from_us(1).as_ps()
}

/// The number of the first message of alice's peer on an ordered connection.
const FIRST: u64 = 900;

fn is_first(packet: &Packet) -> bool {
    let first = Placement::Start { header_data: FIRST };
    matches!(&packet.ses, Ses::Standard(header) if header.placement == first)
}

/// The first message of an ordered connection from alice's peer is lost once. The four behind it are kept meanwhile, and not
/// sent again.
fn early_messages_to_alice(fabric: &mut Fabric, alice: u16) {
    fabric.lost.push(is_first);
    let id = connect_to(fabric, 1, alice, DeliveryMode::Rod);
    for n in 0..5 {
        fabric.guests[ALICE].client.receive(place(n), None, Matching::Untagged, n).unwrap();
        post_to_alice(fabric, id, FIRST + n, None);
    }
    run(fabric, 20);
    fabric.lost.pop();
    let (mut places, mut sent) = (Vec::new(), Vec::new());
    until(fabric, "what was early", |fabric| {
        alice_hears(fabric, |place| places.push(place));
        sent.extend(fabric.completions.iter().filter_map(|(n, completion)| match completion {
            Completion::Sent { retransmissions, .. } if *n == 1 => Some(*retransmissions > 0),
            _ => None,
        }));
        places.len() == 5 && sent.len() == 5
    });
    assert_eq!(places, [0, 1, 2, 3, 4]);
    assert_eq!(sent, [true, false, false, false, false], "which were sent again");
}

/// Messages of alice's peer to a process that does not exist get responses, which are stored until it has them.
fn messages_to_nobody(fabric: &mut Fabric) {
    let id = connect_to(fabric, 1, NOBODY, DeliveryMode::Rud);
    (0..5).for_each(|_| post(fabric, 1, id, 1, None));
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
        sent += alice_hears(fabric, |place| {
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
                    post_to_alice(fabric, to_alice[posted[1] as usize % 2], posted[1], None);
                    posted[1] += 1;
                }
            }
        }
        [sent, received, arrived, at_peer] == [MESSAGES; 4]
    });
}

/// The hog asks for something until it has used up its part.
fn operations(fabric: &mut Fabric) {
    until(fabric, "the end of operations", |fabric| {
        let client = &mut fabric.guests[HOG].client;
        let receive = client.receive(extent(0, 1), None, Matching::Untagged, 0);
        matches!(receive, Err(ClientError::Exhausted { what: Resource::Operations, .. }))
    });
    // Nor can another one have what is promised to alice.
    let greedy = SessionConfig { operations: 17, ..SMALL };
    assert!(matches!(
        fabric.sessions.open(&mut fabric.feps[0], &greedy, None),
        Err(OpenError::NotLeft { what: Resource::Operations, asked: 17, left: 16, .. })
    ));
}

/// A third application takes all the memory that alice and the hog have left, and no other one gets any.
fn memory(fabric: &mut Fabric) {
    let third = SessionConfig { operations: 1, connections: 1, memory: MEMORY, ..SMALL };
    let memory_of = |config: &SessionConfig| config.layout().unwrap().total as u64;
    let taken: u64 = fabric.guests.iter().map(|guest| memory_of(&guest.config)).sum();
    fabric.sessions.limit_memory(taken + memory_of(&third));
    fabric.join(third.operations, third.connections);
    assert_eq!(fabric.guests.len(), 3);
    let refused = fabric.sessions.open(&mut fabric.feps[0], &third, None);
    assert!(matches!(refused, Err(OpenError::NotLeft { what: Resource::SessionMemory, left: 0, .. })));
    fabric.check();
}

fn connections(fabric: &mut Fabric) {
    let mut peer = 2;
    until(fabric, "the end of connections", |fabric| {
        peer = 5 - peer;
        let connection = fabric.guests[HOG].client.connect(Addr(peer), ConnectOptions::default(), 0);
        matches!(connection, Err(ClientError::Exhausted { what: Resource::Connections, .. }))
    });
}

fn connections_to_alices_peer(fabric: &mut Fabric) {
    let error = CallError::Limit { what: Resource::PeerConnections, limit: 16 };
    until(fabric, "the end of connections to a peer", |fabric| {
        let _ = fabric.guests[HOG].client.connect(Addr(1), ConnectOptions::default(), 0);
        reports(fabric, HOG).any(|report| matches!(report, Report::Refused { error: e, .. } if e == error))
    });
}

fn kinds_of_receives(fabric: &mut Fabric) {
    let mut mask = 1;
    until(fabric, "the end of kinds", |fabric| {
        let matching = Matching::Tagged { tag: 0, ignore: mask };
        if fabric.guests[HOG].client.receive(extent(0, 1), None, matching, 0).is_ok() {
            mask += 1;
        }
        let error = CallError::Limit { what: Resource::ReceiveKinds, limit: 64 };
        reports(fabric, HOG).any(|report| matches!(report, Report::Refused { error: e, .. } if e == error))
    });
}

fn applications(fabric: &mut Fabric) {
    (2..APPLICATIONS).for_each(|_| fabric.join(1, 1));
    let one = SessionConfig { operations: 1, connections: 1, ..SMALL };
    let refused = fabric.sessions.open(&mut fabric.feps[0], &one, None);
    assert!(matches!(refused, Err(OpenError::Full(APPLICATIONS))));
}

/// The hog's datagrams wait for a peer that does not answer.
fn held_datagrams(fabric: &mut Fabric) {
    let (silent, hop) = (Addr(9), IpAddr::from([10, 0, 0, 9]));
    fabric.peers.set(silent, Err(Unreachable::Resolving { hop, asked: 1 }));
    until(fabric, "the end of operations", |fabric| {
        let to = Source { peer: silent, process: 1 };
        let datagram = fabric.guests[HOG].client.send_datagram(to, extent(0, 1), 0, 0);
        matches!(datagram, Err(ClientError::Exhausted { what: Resource::Operations, .. }))
    });
    run(fabric, 20);
    assert_eq!(fabric.sessions.held_datagrams(), fabric.guests[HOG].config.operations as usize);
}

/// Processes for datagrams only have all places that are left. Two peers flood them, and send them messages that they do not
/// take.
fn processes_for_datagrams(fabric: &mut Fabric) {
    for guest in 2..APPLICATIONS {
        let config = SessionConfig { operations: 8, connections: 1, only_datagrams: true, ..SMALL };
        fabric.join_as(config);
        for _ in 0..8 {
            fabric.guests[guest].client.receive_datagram(extent(0, 1), 0).unwrap();
        }
        run(fabric, 2);
        let process = process_of(fabric, guest);
        for _ in 0..40 {
            let buffer = Buffer::Virtual(1);
            let datagram = Datagram { buffer, peer: Addr(0), process, header_data: 0, context: 0 };
            fabric.feps[guest].post_datagram_of(0, datagram).unwrap();
        }
        let id = connect_to(fabric, guest, process, DeliveryMode::Rud);
        (0..20).for_each(|_| post(fabric, guest, id, 1, None));
    }
    let one = SessionConfig { operations: 1, connections: 1, only_datagrams: true, ..SMALL };
    let refused = fabric.sessions.open(&mut fabric.feps[0], &one, None);
    assert!(matches!(refused, Err(OpenError::Full(APPLICATIONS))));
    until(fabric, "the last datagram", |fabric| {
        let counters = fabric.feps[0].counters();
        (counters.datagrams_received, counters.datagrams_dropped) == (2 * 8, 2 * 32)
    });
}

/// Some peers send messages of `len` bytes to an application, which receives none of them, until no more are taken.
fn unexpected(fabric: &mut Fabric, peers: Range<usize>, guest: usize, len: u32) {
    let process = process_of(fabric, guest);
    for peer in peers {
        let id = connect_to(fabric, peer, process, DeliveryMode::Rud);
        (0..60).for_each(|_| post(fabric, peer, id, len, Some(9)));
    }
    until_refused(fabric);
    run(fabric, 300);
}

fn run(fabric: &mut Fabric, turns: u32) {
    (0..turns).for_each(|_| fabric.turn(false));
}

fn until_refused(fabric: &mut Fabric) {
    let before = fabric.feps[0].counters().nacks_sent;
    until(fabric, "a refusal", |fabric| fabric.feps[0].counters().nacks_sent > before);
}

fn unexpected_messages(fabric: &mut Fabric) {
    unexpected(fabric, 2..4, HOG, 1);
    // The hog may have its part and half of the rest, and two peers that take what they can two thirds of that, or a little
    // more: messages that arrive before their turn have reserved places.
    let (messages, ..) = fabric.feps[0].check_accounts();
    assert!((22..=35).contains(&messages), "{messages}");
}

fn unexpected_bytes(fabric: &mut Fabric) {
    unexpected(fabric, 2..4, HOG, 2000);
    let (_, bytes, _) = fabric.feps[0].check_accounts();
    assert!((18_000..=35_000).contains(&bytes), "{bytes}");
}

/// Here alice herself gets more messages of a peer than she wants; those of her own peer have room beside them.
fn unexpected_messages_of_a_peer(fabric: &mut Fabric) {
    unexpected(fabric, 2..3, ALICE, 1);
    let (messages, ..) = fabric.feps[0].check_accounts();
    assert!((16..=20).contains(&messages), "{messages}");
}

fn unexpected_bytes_of_a_peer(fabric: &mut Fabric) {
    unexpected(fabric, 2..3, ALICE, 2000);
    let (_, bytes, _) = fabric.feps[0].check_accounts();
    assert!((14_000..=20_000).contains(&bytes), "{bytes}");
}

fn pdcs_of_a_peer(fabric: &mut Fabric) {
    let hog = process_of(fabric, HOG);
    for _ in 0..20 {
        let id = connect_to(fabric, 2, hog, DeliveryMode::Rud);
        post(fabric, 2, id, 0, None);
    }
    until_refused(fabric);
    // The first that are refused are those beyond the half-open ones, until their initiators have answered.
    until(fabric, "the last PDC", |fabric| fabric.feps[0].open_targets() == 16);
    run(fabric, 300);
    assert_eq!(fabric.feps[0].open_targets(), 16);
}

/// Nothing that is sent to peer 3 arrives.
fn peer_3_is_deaf(packet: &Packet) -> bool {
    packet.net.dst == Addr(3)
}

fn half_open_pdcs(fabric: &mut Fabric) {
    fabric.lost.push(peer_3_is_deaf);
    let hog = process_of(fabric, HOG);
    for _ in 0..16 {
        let id = connect_to(fabric, 3, hog, DeliveryMode::Rud);
        post(fabric, 3, id, 0, None);
    }
    until_refused(fabric);
    assert_eq!(fabric.feps[0].open_targets(), 8);
}

/// Nothing that is sent to peer 2 arrives.
fn peer_2_is_deaf(packet: &Packet) -> bool {
    packet.net.dst == Addr(2)
}

/// Two peers have as many as there may be of all. Those of alice's peer get the places of the oldest.
fn half_open_pdcs_of_all(fabric: &mut Fabric) {
    fabric.lost = vec![peer_2_is_deaf, peer_3_is_deaf];
    let hog = process_of(fabric, HOG);
    for peer in [2, 3].repeat(8) {
        let id = connect_to(fabric, peer, hog, DeliveryMode::Rud);
        post(fabric, peer, id, 0, None);
    }
    until(fabric, "the last place", |fabric| fabric.feps[0].open_targets() == HALF_OPEN);
}

fn remembered_pdcs(fabric: &mut Fabric) {
    let before = fabric.feps[0].counters().nacks_sent;
    let hog = process_of(fabric, HOG);
    for _ in 0..100 {
        let id = connect_to(fabric, 2, hog, DeliveryMode::Rud);
        post(fabric, 2, id, 0, None);
        fabric.feps[2].close(fabric.now, id).unwrap();
        run(fabric, 20);
        let _ = fabric.guests[HOG].client.receive(extent(0, 1), None, Matching::Untagged, 0);
    }
    assert!(fabric.feps[0].counters().nacks_sent > before, "the last ones are put off");
}

/// The first message of an ordered connection is lost again and again; those behind it have `len` bytes.
fn early(fabric: &mut Fabric, len: u32) {
    fabric.lost.push(|packet| matches!(&packet.ses, Ses::Standard(header) if header.request_length == LOST));
    let hog = process_of(fabric, HOG);
    let id = connect_to(fabric, 2, hog, DeliveryMode::Rod);
    post(fabric, 2, id, LOST, None);
    (0..40).for_each(|_| post(fabric, 2, id, len, None));
    until_refused(fabric);
}

/// Sixteen of them take no more than half of the bytes that a peer may have.
fn early_packets(fabric: &mut Fabric) {
    early(fabric, 100);
}

/// Sixteen of them would take more than the 12,000 bytes that a peer may have.
fn bytes_of_early_packets(fabric: &mut Fabric) {
    early(fabric, 1000);
}

fn stored_responses(fabric: &mut Fabric) {
    fabric.lost.push(peer_3_is_deaf);
    let id = connect_to(fabric, 3, NOBODY, DeliveryMode::Rud);
    (0..100).for_each(|_| post(fabric, 3, id, 0, None));
    until_refused(fabric);
}

/// A limit, and how one holder fills it.
type Fill = (&'static str, fn(&mut Fabric));

/// `docs/limits.md` names those of each row of its table.
const FILLS: [Fill; 19] = [
    ("applications", applications),
    ("operations", operations),
    ("memory", memory),
    ("connections", connections),
    ("connections to one peer", connections_to_alices_peer),
    ("kinds of receives", kinds_of_receives),
    ("held datagrams", held_datagrams),
    ("processes for datagrams only", processes_for_datagrams),
    ("unexpected messages", unexpected_messages),
    ("unexpected messages of one peer", unexpected_messages_of_a_peer),
    ("bytes of unexpected messages", unexpected_bytes),
    ("bytes of unexpected messages of one peer", unexpected_bytes_of_a_peer),
    ("PDCs that peers open", pdcs_of_a_peer),
    ("half-open PDCs of one peer", half_open_pdcs),
    ("half-open PDCs", half_open_pdcs_of_all),
    ("PDCs open or remembered", remembered_pdcs),
    ("early ROD packets of one PDC", early_packets),
    ("bytes of early ROD packets", bytes_of_early_packets),
    ("bytes of stored responses", stored_responses),
];

#[test]
fn each_limit_filled_by_one_holder_leaves_the_others_their_part_and_their_speed() {
    let mut calm = fabric();
    let expected = alice_and_her_peer(&mut calm);
    calm.end();
    let mut slow = Vec::new();
    for (what, fill) in FILLS {
        let mut fabric = fabric();
        fill(&mut fabric);
        fabric.check();
        let turns = alice_and_her_peer(&mut fabric);
        if turns * 10 > expected * 11 {
            slow.push((what, turns));
        }
        fabric.check();
        fabric.end();
    }
    assert_eq!(slow, [], "turns instead of {expected}");
}

/// The hog sends the process that alice sends to as many messages, or bytes, as it may, which nobody receives.
#[test]
fn an_application_that_fills_a_peer_s_process_leaves_room_there_to_others_of_its_host() {
    for len in [1, 2000] {
        let mut fabric = fabric();
        let mut connect = |guest: usize| {
            let client = &mut fabric.guests[guest].client;
            let connection = client.connect(Addr(1), ConnectOptions::default(), 0).unwrap();
            until(&mut fabric, "a connection", |fabric| {
                reports(fabric, guest).any(|report| matches!(report, Report::Connected { .. }))
            });
            connection
        };
        let connections = [ALICE, HOG].map(&mut connect);
        let mut posted = 0;
        until(&mut fabric, "a refusal", |fabric| {
            let client = &mut fabric.guests[HOG].client;
            if posted < 60 && client.send(connections[HOG], extent(0, len), Some(9), 0, 0).is_ok() {
                posted += 1;
            }
            posted == 60 && fabric.feps[1].counters().nacks_sent > 0
        });
        run(&mut fabric, 300);
        for n in 0..2 {
            let client = &mut fabric.guests[ALICE].client;
            client.send(connections[ALICE], extent(0, len), Some(5), n, 0).unwrap();
        }
        let mut sent = 0;
        until(&mut fabric, "the last of alice's messages", |fabric| {
            for report in reports(fabric, ALICE) {
                assert!(matches!(report, Report::Sent { result: Ok(()), .. }), "{report:?}");
                sent += 1;
            }
            sent == 2
        });
        let tagged = Matching::Tagged { tag: 5, ignore: 0 };
        assert!(fabric.feps[1].peek(0, None, tagged).unwrap().is_some_and(|found| found.len == len));
        fabric.check();
    }
}

/// The rows of a table of a document, which begins with these words, as cells.
fn rows<'a>(document: &'a str, header: &str) -> Vec<Vec<&'a str>> {
    let lines = document.lines().skip_while(|line| !line.starts_with(header)).skip(2);
    let rows = lines.take_while(|line| line.starts_with('|'));
    rows.map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

/// What a text has in backticks.
fn names(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn each_row_of_the_documented_table_names_what_fills_it() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let document = std::fs::read_to_string(root.join("../docs/limits.md")).unwrap();
    let benchmark = std::fs::read_to_string(root.join("benches/attacks/cases.rs")).unwrap();
    let is_fill = |name: &str| FILLS.iter().any(|(what, _)| *what == name);
    let is_file =
        |name: &str| root.join("src/worker").join(name).exists() || root.join("..").join(name).exists();
    let filled = rows(&document, "| row | filled");
    let (limits, named): (Vec<_>, Vec<_>) = (
        rows(&document, "| resource | of the endpoint | holder | reserved")
            .iter()
            .map(|row| row[0])
            .collect(),
        filled.iter().map(|row| row[0]).collect(),
    );
    assert_eq!(
        limits, named,
        "each row of the table has one in the table of what fills it, in the same order"
    );
    for row in &filled {
        let is_named = names(row[1]).any(|name| is_fill(name) || is_file(name));
        assert!(is_named || row[1].starts_with("by no holder alone"), "nothing fills {row:?}");
        for name in names(row[2]) {
            assert!(benchmark.contains(&format!("\"{name}\"")), "the benchmark has no {name}");
        }
    }
    for (what, _) in FILLS {
        assert!(filled.iter().any(|row| names(row[1]).any(|name| name == what)), "no row names {what}");
    }
}
