//! Connections to peers that do not answer for their Ethernet address, or not at once; in virtual time, over a link
//! in memory.

use core::net::IpAddr;

use proptest::prelude::*;
use weft_cc::Time;

use super::*;
use crate::port::memory::{MemoryConfig, MemoryPort, pair};
use crate::port::{Port, RxBurst};
use crate::rng::Rng;
use crate::wire::ethernet::MacAddr;
use crate::worker::session::held::LONGEST;
use crate::worker::{AddressBook, Clock, HostAddr, LinkConfig, Strangers, Worker};

pub(super) const PEER: Addr = Addr(1);
/// Reached through [`ROUTER`].
pub(super) const FAR: Addr = Addr(2);
const ROUTER: Addr = Addr(3);
/// In no address book.
const NOBODY: Addr = Addr(7);

pub(super) fn ip(addr: Addr) -> IpAddr {
    [10, 0, 0, addr.0 as u8 + 1].into()
}

fn ms(n: u64) -> Span {
    Span::from_ms(n)
}

/// Far less than a neighbour takes to be given up: 63 timeouts, after which a PDC is, are over in 63 ms.
const RTO: Span = Span::from_ms(1);
/// Between two turns.
pub(super) const TURN: Span = Span::from_us(100);

/// One side of the link: a worker and its sessions.
pub(super) struct Side {
    pub(super) worker: Worker<MemoryPort>,
    pub(super) sessions: Sessions,
}

impl Side {
    pub(super) fn new(own: u32, port: MemoryPort) -> Side {
        Side::with_book(own, port, 8)
    }

    /// One whose address book has room for so many, of which three are kept.
    pub(super) fn with_book(own: u32, port: MemoryPort, entries: usize) -> Side {
        let config = Arc::new((*config()).clone().with_zones(|zone| zone.pdc.rto_init = RTO));
        let mut fep = Fep::new(Addr(own), config, Rng::new(3, own.into()), Time::ZERO).unwrap();
        fep.close_process(0).unwrap();
        let host = HostAddr { mac: MacAddr([2, 0, 0, 0, 0, own as u8]), ip: ip(Addr(own)) };
        let book = AddressBook::new(Addr(own), host, entries, Strangers::Refuse).unwrap();
        let clock = Clock::system(Time::ZERO);
        let mut worker = Worker::new(fep, port, book, LinkConfig::default(), clock).unwrap();
        let other = Addr(u32::from(own == 0));
        worker.meet(other, ip(other), None).unwrap();
        worker.meet(FAR, ip(FAR), Some(ip(ROUTER))).unwrap();
        Side { worker, sessions: Sessions::new(4) }
    }

    pub(super) fn open(&mut self) -> Client {
        self.sessions.open(self.worker.fep_mut(), &SMALL, None).unwrap()
    }

    pub(super) fn turn(&mut self, now: Time) {
        self.worker.poll_at(now);
        self.sessions.serve(&mut self.worker, now);
    }

    /// Turns until `client` has an event, for as long as anything here may take, and returns when.
    pub(super) fn event(&mut self, now: &mut Time, client: &mut Client) -> Event {
        let start = *now;
        loop {
            if let Some(event) = client.poll().unwrap() {
                return event;
            }
            assert!(now.since(start) < ms(6_000), "no event: {:?}", self.worker.fep().explain(*now));
            *now += TURN;
            self.turn(*now);
        }
    }

    pub(super) fn assert_nothing_is_left(mut self, mut now: Time, client: Client) {
        drop(client);
        self.turn(now);
        now += TURN;
        self.turn(now);
        assert!(self.sessions.is_empty());
        assert_eq!(self.sessions.held_connections(), 0);
        assert_eq!(self.worker.fep().leaks().collect::<Vec<_>>(), [""; 0]);
    }
}

/// A side whose questions arrive at the port that is returned too, and are not answered.
pub(super) fn alone() -> (Side, MemoryPort) {
    let (left, right) = pair(&MemoryConfig::default()).unwrap();
    (Side::new(0, left), right)
}

pub(super) fn refused(event: &Event) -> (u64, Request, CallError) {
    match event.report {
        Report::Refused { request, error, .. } => (event.context, request, error),
        other => panic!("{other:?} is no refusal"),
    }
}

#[test]
fn a_connection_to_a_silent_peer_is_refused_once_the_peer_is_given_up() {
    for (peer, hop) in [(PEER, ip(PEER)), (FAR, ip(ROUTER))] {
        let (mut side, mut deaf) = alone();
        let mut client = side.open();
        let mut now = Time::ZERO;
        let connection = client.connect(peer, ConnectOptions::default(), 10).unwrap();
        for context in [11, 12] {
            client.send(connection, extent(0, 3000), None, 0, context).unwrap();
        }
        let error = CallError::Unreachable { peer, why: Unreachable::NoAnswer { hop } };
        assert_eq!(refused(&side.event(&mut now, &mut client)), (11, Request::Send, error));
        assert_eq!(refused(&side.event(&mut now, &mut client)), (12, Request::Send, error));
        assert_eq!(refused(&side.event(&mut now, &mut client)), (10, Request::Connect, error));
        let waited = now.since(Time::ZERO);
        assert!(waited >= ms(3_000) && waited < ms(3_010), "{waited}");
        let text = format!(
            "endpoint {}: no host on the link answers for {hop}: it was asked 3 times in 3 s",
            peer.0
        );
        assert_eq!(error.to_string(), text);
        assert_eq!(client.close(connection), Err(ClientError::Stale), "its number is free");

        // Now it is known.
        client.connect(peer, ConnectOptions::default(), 13).unwrap();
        side.turn(now);
        assert_eq!(refused(&client.poll().unwrap().unwrap()), (13, Request::Connect, error));
        let mut frames = RxBurst::new();
        deaf.receive(&mut frames);
        assert!(frames.iter().all(|frame| frame[12..14] == [8, 6]), "questions, and no packets");
        assert_eq!(frames.len(), 6, "three for each of two neighbours");
        assert_eq!(side.worker.counters().unresolved, 0);
        side.assert_nothing_is_left(now, client);
    }
}

/// Posts messages on a connection to a peer whose Ethernet address is being asked for.
fn with_held_messages(world: &mut World, messages: u64) -> (Client, ConnectionHandle) {
    world.peers[0].set(PEER, Err(Unreachable::Resolving { hop: ip(PEER), asked: 1 }));
    let config = SessionConfig { operations: 64, ..SMALL };
    let mut client = world.sessions[0].open(&mut world.feps[0], &config, None).unwrap();
    let connection = client.connect(PEER, ConnectOptions::default(), 1_000).unwrap();
    for n in 0..messages {
        client.send(connection, extent(0, 1), None, 0, n).unwrap();
        world.serve(0);
    }
    assert_eq!(client.poll(), Ok(None));
    (client, connection)
}

/// Serves side 0 until `client` hears nothing for some turns. Returns what it has heard, and what it has heard at most in a turn.
fn hear_all(world: &mut World, client: &mut Client) -> (Vec<Event>, usize) {
    let (mut heard, mut most, mut silent) = (Vec::new(), 0, 0);
    while silent < 4 {
        world.serve(0);
        let before = heard.len();
        while let Some(event) = client.poll().unwrap() {
            heard.push(event);
        }
        let now = heard.len() - before;
        most = most.max(now);
        silent = if now == 0 { silent + 1 } else { 0 };
    }
    (heard, most)
}

/// The messages to a peer that is given up are refused in several turns, and their connection after them.
#[test]
fn messages_to_a_peer_that_is_given_up_are_refused_in_several_turns() {
    const COUNT: u64 = 50;
    let mut world = World::new();
    let (mut client, _) = with_held_messages(&mut world, COUNT);
    let why = Unreachable::NoAnswer { hop: ip(PEER) };
    world.peers[0].set(PEER, Err(why));
    world.serve(0);
    let rest = world.feps[0].leaks().find(|line| line.contains("on their way out"));
    let (heard, _) = hear_all(&mut world, &mut client);
    assert_eq!(rest, Some(format!("{} messages on their way out", COUNT - 1)), "after a turn");
    let error = CallError::Unreachable { peer: PEER, why };
    let expected = (0..COUNT).map(|n| (n, Request::Send, error)).chain([(1_000, Request::Connect, error)]);
    assert!(heard.iter().map(refused).eq(expected), "{heard:?}");
    drop(client);
    world.assert_nothing_is_left();
}

/// An application that has aborted a connection does not hear that it is connected, if the peer is found while its messages are
/// being cancelled, nor that these are refused if it is given up.
#[test]
fn an_aborted_connection_that_was_held_is_neither_connected_nor_refused() {
    const COUNT: u64 = 50;
    for found in [Ok(()), Err(Unreachable::NoAnswer { hop: ip(PEER) })] {
        let mut world = World::new();
        let (mut client, connection) = with_held_messages(&mut world, COUNT);
        client.abort(connection).unwrap();
        world.serve(0);
        world.peers[0].set(PEER, found);
        let (heard, _) = hear_all(&mut world, &mut client);
        let (closed, sent) = heard.split_last().unwrap();
        assert!(matches!(closed.report, Report::Closed { result: Ok(()), .. }), "{closed:?}");
        assert!(sent.iter().map(|event| event.context).eq(0..COUNT), "{sent:?}");
        let cancelled =
            |event: &Event| matches!(event.report, Report::Sent { result: Err(SendError::Cancelled), .. });
        assert!(sent.iter().all(cancelled), "{sent:?}");
        drop(client);
        world.assert_nothing_is_left();
    }
}

#[test]
fn a_peer_that_was_given_up_is_asked_again_for_a_later_connection() {
    let (left, right) = pair(&MemoryConfig::default()).unwrap();
    let mut side = Side::new(0, left);
    let mut client = side.open();
    let mut now = Time::ZERO;
    client.connect(PEER, ConnectOptions::default(), 1).unwrap();
    assert_eq!(refused(&side.event(&mut now, &mut client)).0, 1);
    now += ms(2_000);
    client.connect(PEER, ConnectOptions::default(), 2).unwrap();
    side.turn(now);
    let unreachable = Unreachable::NoAnswer { hop: ip(PEER) };
    let expected = (2, Request::Connect, CallError::Unreachable { peer: PEER, why: unreachable });
    assert_eq!(refused(&client.poll().unwrap().unwrap()), expected);
    let mut other = Side::new(1, right);
    client.connect(PEER, ConnectOptions::default(), 3).unwrap();
    for _ in 0..4 {
        now += TURN;
        side.turn(now);
        other.turn(now);
    }
    let event = side.event(&mut now, &mut client);
    assert!(matches!(event, Event { context: 3, report: Report::Connected { .. } }), "{event:?}");
}

#[test]
fn a_connection_to_an_unknown_peer_is_refused_at_once() {
    let (mut side, _deaf) = alone();
    let mut client = side.open();
    let connection = client.connect(NOBODY, ConnectOptions::default(), 1).unwrap();
    client.send(connection, extent(0, 10), None, 0, 2).unwrap();
    side.turn(Time::ZERO);
    let error = CallError::Unreachable { peer: NOBODY, why: Unreachable::Unknown(NOBODY) };
    assert_eq!(refused(&client.poll().unwrap().unwrap()), (1, Request::Connect, error));
    assert_eq!(refused(&client.poll().unwrap().unwrap()), (2, Request::Send, CallError::NotOpen));
    assert_eq!(error.to_string(), "endpoint 7 is not in the address book");
    side.assert_nothing_is_left(Time::ZERO, client);
}

/// The transport would have given up long before.
#[test]
fn messages_to_a_peer_that_answers_late_leave_in_order_after_the_answer() {
    let (left, right) = pair(&MemoryConfig::default()).unwrap();
    let (mut alice_side, mut bob_side) = (Side::new(0, left), Side::new(1, right));
    let (mut alice, mut bob) = (alice_side.open(), bob_side.open());
    let bytes = content(1, 100_000);
    alice.write(0, &bytes).unwrap();
    let connection = alice.connect(PEER, to(&bob), 1).unwrap();
    for (at, context) in [(0, 2), (50_000, 3)] {
        alice.send(connection, extent(at, 50_000), None, 0, context).unwrap();
        bob.receive(extent(at, 50_000), None, Matching::Untagged, context).unwrap();
    }
    alice.close(connection).unwrap();
    let mut now = Time::ZERO;
    while now.since(Time::ZERO) < ms(2_500) {
        now += TURN;
        alice_side.turn(now);
        assert_eq!(alice.poll(), Ok(None));
    }
    let (mut reports, mut received) = (Vec::new(), Vec::new());
    let begin = now;
    while reports.len() < 4 || received.len() < 2 {
        assert!(now.since(begin) < ms(600), "{reports:?}, {received:?}");
        now += Span::from_us(10);
        alice_side.turn(now);
        bob_side.turn(now);
        reports.extend(alice.poll().unwrap());
        received.extend(bob.poll().unwrap());
    }
    assert_eq!(reports[0], Event { context: 1, report: Report::Connected { connection: 0 } });
    for (event, context) in reports[1..3].iter().zip([2, 3]) {
        assert!(matches!(event.report, Report::Sent { result: Ok(()), .. }), "{event:?}");
        assert_eq!(event.context, context);
    }
    assert!(matches!(reports[3], Event { context: 1, report: Report::Closed { result: Ok(()), .. } }));
    for (event, context) in received.iter().zip([2, 3]) {
        assert!(matches!(event.report, Report::Received { result: Ok(()), len: 50_000, .. }), "{event:?}");
        assert_eq!(event.context, context);
    }
    let mut copy = vec![0; 100_000];
    bob.read(0, &mut copy).unwrap();
    assert!(copy == bytes);
}

#[test]
fn a_held_connection_delays_no_other_connection() {
    let mut world = World::new();
    let (mut alice, mut bob) = (world.open(0), world.open(1));
    world.peers[0].set(FAR, Err(Unreachable::Resolving { hop: ip(FAR), asked: 1 }));
    let waits = alice.connect(FAR, ConnectOptions::default(), 1).unwrap();
    alice.send(waits, extent(0, 10), None, 0, 2).unwrap();
    let connection = alice.connect(PEER, to(&bob), 3).unwrap();
    alice.send(connection, extent(0, 20_000), None, 0, 4).unwrap();
    bob.receive(extent(0, 20_000), None, Matching::Untagged, 5).unwrap();
    let contexts = [world.event(&mut alice), world.event(&mut alice)].map(|event| event.context);
    assert_eq!(contexts, [3, 4]);
    assert!(matches!(world.event(&mut bob).report, Report::Received { result: Ok(()), .. }));
    assert_eq!(world.sessions[0].held_connections(), 1);
    world.peers[0].set(FAR, Ok(()));
    assert_eq!(world.event(&mut alice).context, 1);
    drop((alice, bob));
    world.assert_nothing_is_left();
}

#[test]
fn held_connections_can_be_closed_and_aborted_and_their_messages_cancelled_at_once() {
    let (mut side, _deaf) = alone();
    let mut client = side.open();
    let mut now = Time::ZERO;
    let mut turn = |side: &mut Side| {
        now += TURN;
        side.turn(now);
        now
    };
    let [closed, aborted, left, emptied] =
        [1, 2, 3, 4].map(|context| client.connect(PEER, ConnectOptions::default(), context).unwrap());
    client.send(aborted, extent(0, 10), None, 0, 12).unwrap();
    let taken_back = client.send(left, extent(0, 10), None, 0, 13).unwrap();
    client.send(left, extent(0, 10), None, 0, 14).unwrap();
    let last = client.send(emptied, extent(0, 10), None, 0, 15).unwrap();
    turn(&mut side);
    assert_eq!((client.poll(), side.sessions.held_connections()), (Ok(None), 4));

    client.close(closed).unwrap();
    client.abort(aborted).unwrap();
    client.cancel(taken_back).unwrap();
    client.close(emptied).unwrap();
    client.cancel(last).unwrap();
    turn(&mut side);
    assert_eq!(side.sessions.held_connections(), 2, "the endpoint removes the last one in its own turn");
    turn(&mut side);
    let mut reports = Vec::new();
    while let Some(event) = client.poll().unwrap() {
        let cancelled = match event.report {
            Report::Sent { result, .. } => result == Err(SendError::Cancelled),
            Report::Closed { result: Ok(()), .. } => false,
            other => panic!("{other:?}"),
        };
        reports.push((event.context, cancelled));
    }
    let cancelled = [12, 13, 15].map(|context| (context, true));
    reports.sort_by_key(|(context, _)| *context);
    assert_eq!(reports, [&[1, 2, 4].map(|context| (context, false))[..], &cancelled].concat());
    assert_eq!(side.sessions.held_connections(), 1);
    let now = turn(&mut side);
    side.assert_nothing_is_left(now, client);
}

/// Connections to one peer are let go, or given up, in several turns, and those to others do not wait for them.
#[test]
fn many_held_connections_are_let_go_some_in_each_turn() {
    const COUNT: u32 = 300;
    for reachable in [true, false] {
        let mut world = World::new();
        let roomy = SessionConfig { commands: 512, reports: 512, connections: COUNT, ..SMALL };
        let mut many = world.sessions[0].open(&mut world.feps[0], &roomy, None).unwrap();
        let mut few = world.open(0);
        for peer in [PEER, FAR] {
            world.peers[0].set(peer, Err(Unreachable::Resolving { hop: ip(peer), asked: 1 }));
        }
        for context in 0..u64::from(COUNT) {
            many.connect(PEER, ConnectOptions::default(), context).unwrap();
        }
        (0..20).for_each(|_| world.step(1));
        few.connect(FAR, ConnectOptions::default(), 0).unwrap();
        world.step(1);
        assert_eq!(world.sessions[0].held_connections(), COUNT as usize + 1);
        for peer in [PEER, FAR] {
            let why = Unreachable::NoAnswer { hop: ip(peer) };
            world.peers[0].set(peer, if reachable { Ok(()) } else { Err(why) });
        }
        world.serve(0);
        assert_eq!(world.sessions[0].held_connections(), COUNT as usize + 1 - 64, "in one turn");
        let is_told = |report: &Report| matches!(report, Report::Connected { .. }) == reachable;
        assert!(few.poll().unwrap().is_some_and(|event| is_told(&event.report)));
        (0..20).for_each(|_| world.step(1));
        assert_eq!(world.sessions[0].held_connections(), 0);
        let told = std::iter::from_fn(|| many.poll().unwrap()).filter(|event| is_told(&event.report)).count();
        assert_eq!(told, COUNT as usize);
        drop((many, few));
        world.assert_nothing_is_left();
    }
}

/// The neighbour is neither found nor given up. All connections to it end when the first one has waited long enough.
#[test]
fn a_held_connection_is_refused_after_five_seconds_even_if_the_peer_was_never_asked() {
    let mut world = World::new();
    let mut client = world.open(0);
    let why = Unreachable::Resolving { hop: ip(ROUTER), asked: 1 };
    world.peers[0].set(FAR, Err(why));
    client.connect(FAR, ConnectOptions::default(), 1).unwrap();
    world.step(1);
    let begin = world.now;
    world.now = begin + LONGEST - Span::from_us(2);
    let late = client.connect(FAR, ConnectOptions::default(), 2).unwrap();
    client.send(late, extent(0, 10), None, 0, 3).unwrap();
    world.step(1);
    assert_eq!((client.poll(), world.sessions[0].held_connections()), (Ok(None), 2));
    world.step(1);
    assert_eq!(world.now.since(begin), ms(5_000));
    let error = CallError::Unreachable { peer: FAR, why };
    let refusals = [1, 3, 2].map(|context| {
        let request = if context == 3 { Request::Send } else { Request::Connect };
        (context, request, error)
    });
    assert_eq!([0; 3].map(|_| refused(&client.poll().unwrap().unwrap())), refusals);
    assert_eq!((client.poll(), world.sessions[0].held_connections()), (Ok(None), 0));
    drop(client);
    world.assert_nothing_is_left();
}

#[test]
fn each_held_connection_is_settled_once_however_the_peer_changes() {
    let unreachable = Unreachable::NoAnswer { hop: ip(FAR) };
    let resolving = Err(Unreachable::Resolving { hop: ip(FAR), asked: 1 });
    let mut world = World::new();
    let mut client = world.open(0);
    world.peers[0].set(FAR, resolving);
    let mut connect = |world: &mut World, context| {
        client.connect(FAR, ConnectOptions::default(), context).unwrap();
        world.step(1);
        client.poll().unwrap().map(|event| (event.context, event.report))
    };
    assert_eq!(connect(&mut world, 1), None);
    assert_eq!(connect(&mut world, 2), None);
    world.peers[0].set(FAR, Err(unreachable));
    let error = CallError::Unreachable { peer: FAR, why: unreachable };
    let lost = |number| Report::Refused { request: Request::Connect, number, error };
    assert_eq!(connect(&mut world, 3), Some((1, lost(0))));
    world.peers[0].set(FAR, Ok(()));
    assert_eq!(connect(&mut world, 4), Some((2, lost(1))));
    assert_eq!(client.poll().unwrap().map(|event| (event.context, event.report)), Some((3, lost(2))));
    let event = client.poll().unwrap().unwrap();
    assert!(matches!(event, Event { context: 4, report: Report::Connected { .. } }), "{event:?}");
    assert_eq!(client.poll(), Ok(None));
    drop(client);
    world.assert_nothing_is_left();
}

/// A step of the property below.
#[derive(Clone, Copy, Debug)]
enum Act {
    Connect,
    /// On the connection with this place among those opened, as the next two.
    Send(usize),
    Close(usize),
    Abort(usize),
    /// The message with this place among those posted.
    Cancel(usize),
    Peer(Result<(), Unreachable>),
    Step,
}

fn act() -> impl Strategy<Value = Act> {
    let hop = ip(FAR);
    let results = [
        Ok(()),
        Err(Unreachable::NoAnswer { hop }),
        Err(Unreachable::Unknown(PEER)),
        Err(Unreachable::Resolving { hop, asked: 1 }),
        Err(Unreachable::Resolving { hop, asked: 2 }),
    ];
    prop_oneof![
        4 => Just(Act::Connect),
        6 => (0usize..4).prop_map(Act::Send),
        1 => (0usize..4).prop_map(Act::Close),
        1 => (0usize..4).prop_map(Act::Abort),
        2 => (0usize..8).prop_map(Act::Cancel),
        4 => prop::sample::select(results.to_vec()).prop_map(Act::Peer),
        6 => Just(Act::Step),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// However the state of a peer changes, and whatever an application does meanwhile; and nothing is left.
    #[test]
    fn each_connection_and_each_message_ends_exactly_once(acts in prop::collection::vec(act(), 1..80)) {
        let mut world = World::new();
        let (mut alice, bob) = (world.open(0), world.open(1));
        world.peers[0].set(PEER, Err(Unreachable::Resolving { hop: ip(PEER), asked: 0 }));
        let (mut connections, mut messages) = (Vec::new(), Vec::new());
        let (mut begun, mut ended) = (Vec::new(), Vec::new());
        let mut context = 0;
        let mut listen = |alice: &mut Client| {
            while let Some(event) = alice.poll().unwrap() {
                let over = match event.report {
                    Report::Connected { .. } => false,
                    Report::Refused { request, .. } => matches!(request, Request::Connect | Request::Send),
                    _ => true,
                };
                ended.extend(over.then_some(event.context));
            }
        };
        for act in acts {
            context += 1;
            // Numbers that are in use, or not any more, and full rings: nothing was asked for then.
            match act {
                Act::Connect => if let Ok(connection) = alice.connect(PEER, to(&bob), context) {
                    connections.insert(0, connection);
                    begun.push(context);
                },
                Act::Send(which) => if let Some(&connection) = connections.get(which)
                    && let Ok(message) = alice.send(connection, extent(0, 2000), None, 0, context)
                {
                    messages.insert(0, message);
                    begun.push(context);
                },
                Act::Close(which) => drop(connections.get(which).map(|it| alice.close(*it))),
                Act::Abort(which) => drop(connections.get(which).map(|it| alice.abort(*it))),
                Act::Cancel(which) => drop(messages.get(which).map(|it| alice.cancel(*it))),
                Act::Peer(result) => world.peers[0].set(PEER, result),
                Act::Step => {
                    world.step(4);
                    listen(&mut alice);
                }
            }
        }
        world.peers[0].set(PEER, Err(Unreachable::NoAnswer { hop: ip(PEER) }));
        // Connections whose peer had been found before.
        for connection in connections {
            while alice.close(connection) == Err(ClientError::Full) {
                world.step(4);
                listen(&mut alice);
            }
        }
        for _ in 0..2_000 {
            world.step(4);
            listen(&mut alice);
        }
        ended.sort_unstable();
        prop_assert_eq!(ended, begun);
        prop_assert_eq!(world.sessions[0].held_connections(), 0);
        drop((alice, bob));
        world.assert_nothing_is_left();
    }
}

/// Whether connections to many peers are held costs nothing in turns in which no peer is found and the time of none is up.
#[test]
fn held_connections_are_looked_at_only_when_something_has_changed() {
    const PEERS: u32 = 100;
    let mut world = World::new();
    let config = SessionConfig { connections: PEERS, commands: 1024, reports: 1024, ..SMALL };
    let mut alice = world.sessions[0].open(&mut world.feps[0], &config, None).unwrap();
    for n in 0..PEERS {
        let (peer, hop) = (Addr(10 + n), IpAddr::from([10, 0, 1, n as u8]));
        world.peers[0].set(peer, Err(Unreachable::Resolving { hop, asked: 1 }));
        alice.connect(peer, ConnectOptions::default(), n.into()).unwrap();
    }
    (0..20).for_each(|_| world.step(1));
    assert_eq!(world.sessions[0].held_connections(), PEERS as usize);
    let steps = crate::steps::of(|| (0..1000).for_each(|_| world.step(1)));
    assert_eq!(steps, 0);
    // One peer is found: it alone is looked at. The time of the others passes.
    world.peers[0].set(Addr(10), Ok(()));
    assert_eq!(crate::steps::of(|| (0..1000).for_each(|_| world.step(1))), 1);
    assert!(matches!(world.event(&mut alice).report, Report::Connected { .. }));
    world.now += ms(60_000);
    let mut refused = 0;
    while refused < PEERS - 1 {
        let report = world.event(&mut alice).report;
        assert!(matches!(report, Report::Refused { request: Request::Connect, .. }), "{report:?}");
        refused += 1;
    }
    assert_eq!(world.sessions[0].held_connections(), 0);
    drop(alice);
    world.assert_nothing_is_left();
}
