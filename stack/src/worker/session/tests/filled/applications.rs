//! How an application, the hog, fills limits.

use core::net::IpAddr;

use weft_cc::Time;

use super::super::fabric::PEERS;
use super::peers::peer_3_is_deaf;
use super::*;
use crate::fep::PeerRefusal;

/// Kinds of peers that are added: the hog's, and one that the port refuses.
const ITS: u8 = 2;
const REFUSED: u8 = 3;
/// Messages that wait for the hog: a search among them touches more than it may in a turn.
const WAITING: u64 = BYTES_PER_TURN as u64 / 16 + 1_000;

/// More connections than have their turn at once.
const MANY: u32 = 150;

/// The hog asks for something until it has used up its part.
pub(super) fn operations(fabric: &mut Fabric) {
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
pub(super) fn memory(fabric: &mut Fabric) {
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

pub(super) fn connections(fabric: &mut Fabric) {
    let mut peer = 2;
    until(fabric, "the end of connections", |fabric| {
        peer = 5 - peer;
        let connection = fabric.guests[HOG].client.connect(Addr(peer), ConnectOptions::default(), 0);
        matches!(connection, Err(ClientError::Exhausted { what: Resource::Connections, .. }))
    });
}

pub(super) fn connections_to_alices_peer(fabric: &mut Fabric) {
    let error = CallError::Limit { what: Resource::PeerConnections, limit: 16 };
    until(fabric, "the end of connections to a peer", |fabric| {
        let _ = fabric.guests[HOG].client.connect(Addr(1), ConnectOptions::default(), 0);
        reports(fabric, HOG).any(|report| matches!(report, Report::Refused { error: e, .. } if e == error))
    });
}

/// The hog sends as many packets as it may to a peer that does not answer any more.
pub(super) fn packets_in_flight(fabric: &mut Fabric) {
    let connection = fabric.guests[HOG].client.connect(Addr(3), ConnectOptions::default(), 0).unwrap();
    fabric.guests[HOG].client.send(connection, extent(0, 1), None, 0, 0).unwrap();
    until(fabric, "the end of a message", |fabric| {
        reports(fabric, HOG).any(|report| matches!(report, Report::Sent { result: Ok(()), .. }))
    });
    fabric.lost.push(peer_3_is_deaf);
    let before = fabric.feps[0].counters().data_sent;
    use_all_operations(fabric, |client| client.send(connection, extent(0, 2_000), None, 0, 0));
    run(fabric, 20);
    assert_eq!(fabric.feps[0].counters().data_sent - before, u64::from(WINDOW));
}

pub(super) fn kinds_of_receives(fabric: &mut Fabric) {
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

pub(super) fn applications(fabric: &mut Fabric) {
    (2..APPLICATIONS).for_each(|_| fabric.join(1, 1));
    let one = SessionConfig { operations: 1, connections: 1, ..SMALL };
    let refused = fabric.sessions.open(&mut fabric.feps[0], &one, None);
    assert!(matches!(refused, Err(OpenError::Full(APPLICATIONS))));
}

/// The hog's datagrams wait for a peer that does not answer.
pub(super) fn held_datagrams(fabric: &mut Fabric) {
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

/// The hog asks for peers until that is refused with `error`.
fn ask_for_peers(fabric: &mut Fabric, error: CallError, mut ip: impl FnMut() -> IpAddr) {
    until(fabric, "a refused peer", |fabric| {
        let _ = fabric.guests[HOG].client.peer(ip(), None, 0);
        reports(fabric, HOG).any(|report| matches!(report, Report::Refused { error: e, .. } if e == error))
    });
}

pub(super) fn added_peers(fabric: &mut Fabric) {
    let error = CallError::Limit { what: Resource::Peers, limit: 1 + PEERS + BOOK_ROOM };
    let mut numbers = 0..;
    ask_for_peers(fabric, error, || added_ip(ITS, numbers.next().expect("there are enough")));
    assert_eq!(fabric.sessions.peers_of(process_of(fabric, HOG)), 6, "its part, and half of the rest");
}

/// A third application adds all the peers that it may, a fourth one connects to them, and the third one leaves and comes again.
pub(super) fn peers_kept_by_connections(fabric: &mut Fabric) {
    fabric.join_as(SessionConfig { operations: 2, connections: 20, peers: 0, ..SMALL });
    let fourth = fabric.guests.len() - 1;
    let mut numbers = 0..;
    for _ in 0..3 {
        fabric.join_as(SessionConfig { operations: 8, connections: 1, peers: 100, ..SMALL });
        let third = fabric.guests.len() - 1;
        let error = CallError::Limit { what: Resource::Peers, limit: 1 + PEERS + BOOK_ROOM };
        until(fabric, "a refused peer", |fabric| {
            let ip = added_ip(ITS, numbers.next().expect("there are enough"));
            let _ = fabric.guests[third].client.peer(ip, None, 0);
            reports(fabric, third)
                .any(|report| matches!(report, Report::Refused { error: e, .. } if e == error))
        });
        fabric.obey_all();
        for peer in fabric.guests[third].added.clone() {
            fabric.guests[fourth].client.connect(peer, ConnectOptions::default(), 0).unwrap();
            until(fabric, "a connection", |fabric| {
                reports(fabric, fourth).any(|report| matches!(report, Report::Connected { .. }))
            });
        }
        fabric.guests.remove(third);
        until(fabric, "a place", |fabric| fabric.sessions.len() == APPLICATIONS - 1);
    }
}

pub(super) fn peers_in_a_period(fabric: &mut Fabric) {
    let ip = added_ip(REFUSED, 0);
    fabric.peers.refuse(ip);
    let mut refused = 0;
    until(fabric, "the end of refusals", |fabric| {
        let _ = fabric.guests[HOG].client.peer(ip, None, 0);
        let port = CallError::Peer(PeerRefusal::Port);
        let is_port = |report: &Report| matches!(report, Report::Refused { error, .. } if *error == port);
        refused += reports(fabric, HOG).filter(is_port).count();
        let error = CallError::Limit { what: Resource::SessionPeers, limit: 256 };
        reports(fabric, HOG).any(|report| matches!(report, Report::Refused { error: e, .. } if e == error))
    });
    assert_eq!(refused, 256);
}

/// The hog gives as many commands as its ring takes: in each turn, of which [`Fabric::turn`] has two, more than are executed.
fn give_commands(fabric: &mut Fabric) {
    let client = &mut fabric.guests[HOG].client;
    while client.submit(&Command::Cancel { operation: 0 }).is_ok() {}
}

pub(super) fn commands(fabric: &mut Fabric) {
    fabric.meanwhile = Some(give_commands);
    run(fabric, 1);
    assert!(!fabric.sessions.have_obeyed(), "not all are executed in a turn");
}

/// The hog has all its connections, and a peer all the PDCs that it may have.
pub(super) fn timers(fabric: &mut Fabric) {
    super::peers::pdcs_of_a_peer(fabric);
    connections(fabric);
}

/// The hog cancels its receives as fast as its commands are executed, and posts others.
fn cancel(fabric: &mut Fabric) {
    let client = &mut fabric.guests[HOG].client;
    while let Ok(receive) = client.receive(extent(0, 1), None, Matching::Tagged { tag: 1, ignore: 0 }, 0) {
        if client.cancel(receive).is_err() {
            break;
        }
    }
}

pub(super) fn cancels(fabric: &mut Fabric) {
    fabric.meanwhile = Some(cancel);
    let mut cancelled = 0;
    until(fabric, "the end of many receives", |fabric| {
        let is_cancelled =
            |report: &Report| matches!(report, Report::Received { result: Err(ReceiveError::Cancelled), .. });
        cancelled += reports(fabric, HOG).filter(is_cancelled).count();
        cancelled > 1_000
    });
}

/// The hog looks for messages that are not there. No search is like one before.
fn search(fabric: &mut Fabric) {
    let turn = fabric.now.since(Time::ZERO).as_ps() / Span::from_us(1).as_ps();
    for n in 0..4 {
        let matching = Matching::Tagged { tag: 0, ignore: turn << 10 | n << 8 };
        let _ = fabric.guests[HOG].client.peek(None, matching, Found::Stays, 0);
    }
}

pub(super) fn searches(fabric: &mut Fabric) {
    send_to_the_hog(fabric, WAITING);
    fabric.meanwhile = Some(search);
    run(fabric, 10);
    assert!(!fabric.sessions.have_obeyed(), "a search goes on in a further turn");
}

/// The hog asks for as many operations as it has, and the commands are executed.
fn use_all_operations(
    fabric: &mut Fabric,
    mut ask: impl FnMut(&mut Client) -> Result<OperationHandle, ClientError>,
) {
    until(fabric, "the end of operations", |fabric| {
        let client = &mut fabric.guests[HOG].client;
        let refused = std::iter::repeat_with(|| ask(client)).find_map(Result::err);
        match refused.expect("the ring of commands has an end") {
            ClientError::Full => false,
            ClientError::Exhausted { what: Resource::Operations, .. } => true,
            error => panic!("{error}"),
        }
    });
    until(fabric, "the last command", |fabric| fabric.sessions.have_obeyed());
}

/// The hog leaves while most of its messages to a peer that does not answer have not left yet.
pub(super) fn unsent_messages(fabric: &mut Fabric) {
    fabric.lost.push(peer_3_is_deaf);
    let connection = fabric.guests[HOG].client.connect(Addr(3), ConnectOptions::default(), 0).unwrap();
    use_all_operations(fabric, |client| client.send(connection, extent(0, 1), None, 0, 0));
    fabric.guests.remove(HOG);
    run(fabric, 2);
    let unsent = |line: String| line.strip_suffix(" messages on their way out")?.parse::<usize>().ok();
    let left = fabric.feps[0].leaks().find_map(unsent);
    assert!(left > Some(3_000), "{left:?} messages end in further turns");
}

/// A third application asks for [`MANY`] connections to `peer`, and the commands are executed.
fn connect_often(fabric: &mut Fabric, peer: Addr) -> (usize, Vec<ConnectionHandle>) {
    fabric.join_as(SessionConfig {
        operations: MANY,
        connections: MANY,
        commands: 256,
        reports: 512,
        ..SMALL
    });
    let third = fabric.guests.len() - 1;
    let client = &mut fabric.guests[third].client;
    let connections =
        (0..MANY).map(|_| client.connect(peer, ConnectOptions::default(), 0).unwrap()).collect();
    until(fabric, "the last command", |fabric| fabric.sessions.have_obeyed());
    (third, connections)
}

/// Its connections to a peer that does not answer fail together.
pub(super) fn failing_connections(fabric: &mut Fabric) {
    fabric.lost.push(peer_3_is_deaf);
    let (third, connections) = connect_often(fabric, Addr(3));
    for connection in connections {
        fabric.guests[third].client.send(connection, extent(0, 2_000), None, 0, 0).unwrap();
    }
    until_late(fabric, "the end of a connection", |fabric| {
        reports(fabric, third).any(|report| matches!(report, Report::Closed { result: Err(_), .. }))
    });
    let is_due = |at: Time| fabric.now.is_at_or_after(at);
    assert!(fabric.feps[0].poll_timeout().is_some_and(is_due), "others fail in further turns");
}

/// Its connections wait for the address of a peer, which is found.
pub(super) fn held_connections(fabric: &mut Fabric) {
    let (silent, hop) = (Addr(9), IpAddr::from([10, 0, 0, 9]));
    fabric.peers.set(silent, Err(Unreachable::Resolving { hop, asked: 1 }));
    connect_often(fabric, silent);
    assert_eq!(fabric.sessions.held_connections(), MANY as usize);
    fabric.peers.set(silent, Ok(()));
    run(fabric, 1);
    // There are two turns of the worker's loop in one of the fabric.
    assert_eq!(fabric.sessions.held_connections(), MANY as usize - 2 * LET_GO_PER_TURN);
}

/// Peer 2 sends so many messages of one byte with tag 9 to the hog.
fn send_to_the_hog(fabric: &mut Fabric, messages: u64) {
    let id = connect_to(fabric, 2, process_of(fabric, HOG), DeliveryMode::Rud);
    let mut posted = 0;
    until(fabric, "the last message", |fabric| {
        for _ in 0..30.min(messages - posted) {
            post(fabric, 2, id, 1, Some(9));
            posted += 1;
        }
        fabric.feps[0].counters().data_received >= messages
    });
}

/// The hog has not read thousands of reports, and begins to.
pub(super) fn unread_reports(fabric: &mut Fabric) {
    let matching = Matching::Tagged { tag: 9, ignore: 0 };
    use_all_operations(fabric, |client| client.receive(extent(0, 1), None, matching, 0));
    fabric.guests[HOG].reads = false;
    let SessionConfig { operations, reports, .. } = fabric.guests[HOG].config;
    send_to_the_hog(fabric, operations.into());
    let unread = |fabric: &Fabric| fabric.sessions.unread(process_of(fabric, HOG));
    let all = (operations - reports) as usize;
    until(fabric, "the last report", |fabric| unread(fabric) == all);
    fabric.guests[HOG].reads = true;
    run(fabric, 2);
    // It has read at the end of the first, and there are two turns of the worker's loop in the second.
    assert_eq!(unread(fabric), all - 2 * REPORTS_PER_TURN);
}
