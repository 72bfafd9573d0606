//! Applications that leave in the middle of something.

use super::*;
use crate::fep::Failure;
use crate::packet::Payload;
use crate::wire::ses::ReturnCode;

/// Alice sends bob a message of 250 kB, and some of it has arrived.
fn in_the_middle() -> (World, Client, Client) {
    let mut world = World::new();
    let (mut alice, mut bob) = (world.open(0), world.open(1));
    bob.receive(extent(0, 250_000), None, Matching::Untagged, 1).unwrap();
    alice.write(0, &content(4, 250_000)).unwrap();
    let connection = alice.connect(Addr(1), to(&bob), 0).unwrap();
    alice.send(connection, extent(0, 250_000), None, 0, 2).unwrap();
    alice.send(connection, extent(0, 100), None, 0, 3).unwrap();
    assert!(matches!(world.event(&mut alice).report, Report::Connected { .. }));
    let begun = |world: &World| world.feps[1].counters().data_received > 10;
    for _ in 0..1000 {
        if begun(&world) {
            break;
        }
        world.step(1);
    }
    assert!(begun(&world) && bob.poll() == Ok(None), "in the middle");
    (world, alice, bob)
}

#[test]
fn a_sender_that_leaves_ends_its_message_at_the_receiver() {
    let (mut world, alice, mut bob) = in_the_middle();
    let memory = alice.memory().clone();
    let since = world.now;
    drop(alice);
    let event = world.event(&mut bob);
    assert!(
        matches!(event.report, Report::Received { result: Err(ReceiveError::PeerLost), .. }),
        "{event:?}"
    );
    assert!(world.now.since(since) < Span::from_us(1000), "as soon as what was in flight has arrived");
    let (_, _, how) = world.sessions[0].poll_ended().unwrap();
    assert_eq!(how, Ended::Left);
    drop(bob);
    world.assert_nothing_is_left();
    assert_eq!(memory.holders(), 1, "its memory is nobody's any more");
}

#[test]
fn messages_to_a_receiver_that_leaves_are_answered_with_bad_pid() {
    let (mut world, mut alice, bob) = in_the_middle();
    let memory = bob.memory().clone();
    drop(bob);
    world.step(1);
    assert_eq!(memory.holders(), 1, "its memory is nobody's any more");
    for context in [2, 3] {
        let event = world.event(&mut alice);
        let Report::Sent { result, .. } = event.report else { panic!("{event:?}") };
        assert_eq!((event.context, result), (context, Err(SendError::Answered(ReturnCode::BAD_PID))));
    }
    drop(alice);
    world.assert_nothing_is_left();
}

/// The peer is dead, so the sender's memory comes back after the longest silence that a PDC allows.
#[test]
fn the_memory_of_a_sender_that_leaves_is_freed_even_if_its_peer_is_dead() {
    let (mut world, alice, bob) = in_the_middle();
    let memory = alice.memory().clone();
    drop(alice);
    let (since, rto) = (world.now, world.feps[0].config().zones.default.pdc.rto_init);
    while !world.sessions[0].is_empty() {
        world.now += Span::from_us(10);
        let (fep, sessions) = (&mut world.feps[0], &mut world.sessions[0]);
        sessions.serve(fep, world.now);
        fep.on_timeout(world.now);
        while fep.poll_transmit(world.now).is_some() {}
        assert!(world.now.since(since) < rto.times(64), "{:?}", fep.explain(world.now));
    }
    assert_eq!(world.feps[0].leaks().count(), 0);
    assert_eq!(memory.holders(), 1);
    drop(bob);
}

#[test]
fn an_aborted_connection_ends_its_messages_and_the_session_goes_on() {
    let mut world = World::new();
    let (mut alice, mut bob) = (world.open(0), world.open(1));
    bob.receive(extent(0, 200_000), None, Matching::Untagged, 1).unwrap();
    let connection = alice.connect(Addr(1), to(&bob), 7).unwrap();
    alice.send(connection, extent(0, 200_000), None, 0, 8).unwrap();
    alice.send(connection, extent(0, 100), None, 0, 9).unwrap();
    world.event(&mut alice);
    for _ in 0..20 {
        world.step(1);
    }
    alice.abort(connection).unwrap();
    let mut reports: Vec<Event> = (0..3).map(|_| world.event(&mut alice)).collect();
    reports.sort_by_key(|event| event.context);
    let (closed, begun, waiting) = (reports[0].report, reports[1].report, reports[2].report);
    assert!(matches!(closed, Report::Closed { result: Ok(()), .. }), "{closed:?}");
    let cancelled = Err(SendError::Answered(ReturnCode::CANCELLED));
    assert!(matches!(begun, Report::Sent { result, .. } if result == cancelled), "{begun:?}");
    assert!(matches!(waiting, Report::Sent { result: Err(SendError::Cancelled), .. }), "{waiting:?}");
    let event = world.event(&mut bob);
    assert!(
        matches!(event.report, Report::Received { result: Err(ReceiveError::PeerLost), .. }),
        "{event:?}"
    );

    let again = alice.connect(Addr(1), to(&bob), 0).unwrap();
    bob.receive(extent(0, 10), None, Matching::Untagged, 1).unwrap();
    alice.send(again, extent(0, 10), None, 0, 1).unwrap();
    let event = world.event(&mut bob);
    assert!(matches!(event.report, Report::Received { result: Ok(()), len: 10, .. }), "{event:?}");
}

/// Messages that wait to be sent are cancelled in several turns when their connection is aborted, by the application or because
/// that has left. Other applications get their turns meanwhile, and the connection ends last.
#[test]
fn messages_that_wait_to_be_sent_are_cancelled_in_several_turns() {
    for leaves in [false, true] {
        let mut world = World::new();
        let (mut alice, bob, mut other) = (world.open(0), world.open(1), world.open(0));
        let connection = alice.connect(Addr(1), to(&bob), 0).unwrap();
        assert!(matches!(world.event(&mut alice).report, Report::Connected { .. }));
        for n in 0..2 * MANY / 3 {
            alice.send(connection, extent(0, 1), None, 0, n).unwrap();
            world.serve(0);
        }
        let posted = left(&world);
        assert_eq!(u64::from(posted), 2 * MANY / 3);
        // It has left the ring of commands when the next turn begins.
        let alice = match leaves {
            true => {
                drop(alice);
                None
            }
            false => {
                alice.abort(connection).unwrap();
                Some(alice)
            }
        };
        let mut before = posted;
        let mut turns = 0;
        while left(&world) > 0 {
            let receive = other.receive(extent(0, 1), None, Matching::Untagged, turns).unwrap();
            other.cancel(receive).unwrap();
            world.serve(0);
            assert_eq!(other.poll().unwrap().expect("it is answered in each turn").context, turns);
            let now = left(&world);
            assert!(before - now <= 2, "{before} messages, then {now}");
            (before, turns) = (now, turns + 1);
            assert!(turns < 1_000, "{now} are left");
        }
        if let Some(mut alice) = alice {
            for n in 0..u64::from(posted) {
                let event = world.event(&mut alice);
                let cancelled =
                    matches!(event.report, Report::Sent { result: Err(SendError::Cancelled), .. });
                assert!(cancelled && event.context == n, "{event:?}");
            }
            assert!(matches!(world.event(&mut alice).report, Report::Closed { result: Ok(()), .. }));
        }
        drop((bob, other));
        world.assert_nothing_is_left();
    }
}

/// The messages of the endpoint of side 0 that have not ended.
fn left(world: &World) -> u32 {
    let leaks: Vec<String> = world.feps[0].leaks().collect();
    let line = leaks.iter().find_map(|line| line.strip_suffix(" messages on their way out"));
    line.map_or(0, |count| count.parse().unwrap())
}

/// Clients of side 0, each with so many messages on a connection to a process of side 1 that have not left.
fn with_waiting_messages(world: &mut World, clients: usize, messages: u64) -> Vec<Client> {
    let mut open = || {
        let config = SessionConfig { operations: 64, ..SMALL };
        let mut client = world.sessions[0].open(&mut world.feps[0], &config, None).unwrap();
        let options = ConnectOptions { process: 9, ..ConnectOptions::default() };
        let connection = client.connect(Addr(1), options, 1_000).unwrap();
        world.serve(0);
        assert!(matches!(client.poll().unwrap().unwrap().report, Report::Connected { .. }));
        for n in 0..messages {
            client.send(connection, extent(0, 4096), None, 0, n).unwrap();
            world.serve(0);
        }
        client
    };
    (0..clients).map(|_| open()).collect()
}

/// A packet of side 1 arrives at side 0.
fn packet_arrives(world: &mut World) {
    world.serve(1);
    let transmit = world.feps[1].poll_transmit(world.now).expect("a message has been sent");
    let payload = world.feps[1].payload(&transmit.payload);
    let mut bytes = vec![0; payload.len() as usize];
    payload.copy_to(&mut bytes);
    world.feps[0].on_packet(world.now, &transmit.packet, Payload::Bytes(&bytes));
}

/// What applications do that have not left.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Others {
    Nothing,
    /// One has commands in each turn.
    HaveCommands,
    /// One is sent a packet in every third turn, and waits for them.
    WaitForPackets,
}

/// More messages end in turns while nothing else happens: the places of applications that have left come free sooner.
#[test]
fn messages_are_cancelled_sooner_while_nothing_else_happens() {
    const EACH: u64 = 40;
    for others in [Others::Nothing, Others::HaveCommands, Others::WaitForPackets] {
        let mut world = World::new();
        let config = SessionConfig { operations: 64, ..SMALL };
        let mut other = world.open(0);
        let mut bob = world.sessions[1].open(&mut world.feps[1], &config, None).unwrap();
        let to_other = bob.connect(Addr(0), to(&other), 0).unwrap();
        assert!(matches!(world.event(&mut bob).report, Report::Connected { .. }));
        let leaving = with_waiting_messages(&mut world, 2, EACH);
        assert_eq!(u64::from(left(&world)), 2 * EACH);
        drop(leaving);
        let mut turns = 0;
        while left(&world) > 0 {
            match others {
                Others::Nothing => {}
                Others::HaveCommands => {
                    let receive = other.receive(extent(0, 1), None, Matching::Untagged, turns).unwrap();
                    other.cancel(receive).unwrap();
                }
                Others::WaitForPackets if turns % 3 == 0 => {
                    bob.send(to_other, extent(0, 1), None, 0, turns).unwrap();
                    packet_arrives(&mut world);
                }
                Others::WaitForPackets => {}
            }
            let before = left(&world);
            world.serve(0);
            let ended = before - left(&world);
            let most = if others == Others::Nothing && turns > 4 { 8 } else { 1 };
            assert!(ended <= most, "{ended} messages ended in turn {turns}: {others:?}");
            while other.poll().unwrap().is_some() {}
            turns += 1;
            assert!(turns < 1_000, "{} messages are left", left(&world));
        }
        let expected = if others == Others::Nothing { 2 * EACH / 8 } else { 2 * EACH };
        assert!((expected..expected + 12).contains(&turns), "{turns} turns: {others:?}");
        drop((other, bob));
        world.assert_nothing_is_left();
    }
}

/// The messages of a connection that fails end in several turns, and the connection after them.
#[test]
fn the_messages_of_a_connection_that_fails_end_in_several_turns() {
    const COUNT: u64 = 60;
    let mut world = World::new();
    let mut client = with_waiting_messages(&mut world, 1, COUNT).pop().unwrap();
    // Nobody answers.
    let fep = &mut world.feps[0];
    for _ in 0..200 {
        while fep.poll_transmit(world.now).is_some() {}
        world.now += Span::from_us(100);
        fep.on_timeout(world.now);
    }
    assert!(u64::from(left(&world)) > COUNT / 2, "few of them had left");
    let mut turns = 0;
    let mut reports = Vec::new();
    let mut silent = 0;
    while silent < 4 {
        let before = left(&world);
        world.serve(0);
        let ended = before - left(&world);
        assert!(ended <= 8, "{ended} messages ended in a turn");
        turns += u64::from(ended > 0);
        let heard = reports.len();
        while let Some(event) = client.poll().unwrap() {
            reports.push(event);
        }
        silent = if reports.len() == heard { silent + 1 } else { 0 };
    }
    assert!(turns >= COUNT / 2 / 8, "{turns} turns");
    let is_silence = |failure: &Failure| matches!(failure, Failure::NoAnswer { peer: Addr(1), .. });
    let closed = reports.pop().unwrap().report;
    assert!(
        matches!(&closed, Report::Closed { result: Err(failure), .. } if is_silence(failure)),
        "{closed:?}"
    );
    let contexts: Vec<u64> = reports.iter().map(|event| event.context).collect();
    assert_eq!(contexts, (0..COUNT).collect::<Vec<_>>(), "in the order in which they were sent");
    let failed = |event: &Event| matches!(&event.report, Report::Sent { result: Err(SendError::Failed(failure)), .. } if is_silence(failure));
    assert!(reports.iter().all(failed), "{reports:?}");
    drop(client);
    world.assert_nothing_is_left();
}

/// The peers of a server that ends hear at once that its applications are gone, however many messages wait.
#[test]
fn connections_are_closed_at_once_when_the_server_ends() {
    let mut world = World::new();
    let (mut alice, bob) = (world.open(0), world.open(1));
    let connection = alice.connect(Addr(1), to(&bob), 0).unwrap();
    assert!(matches!(world.event(&mut alice).report, Report::Connected { .. }));
    for n in 0..2 * MANY / 3 {
        alice.send(connection, extent(0, 1), None, 0, n).unwrap();
        world.serve(0);
    }
    world.sessions[0].close_all(&mut world.feps[0], world.now);
    let leaks: Vec<String> = world.feps[0].leaks().collect();
    assert!(!leaks.iter().any(|line| line.contains("messages on their way out")), "{leaks:?}");
    drop((alice, bob));
    world.assert_nothing_is_left();
}

/// Receives of messages and of datagrams, and datagrams that have not left. The others get their turns meanwhile, and the process
/// number is not free.
#[test]
fn what_an_application_has_posted_ends_in_several_turns() {
    const COUNT: u64 = 200;
    let roomy = SessionConfig { operations: 256, ..SMALL };
    for kind in 0..3 {
        let mut world = World::new();
        let mut alice = world.sessions[0].open(&mut world.feps[0], &roomy, None).unwrap();
        let mut other = world.open(0);
        let process = alice.process();
        for n in 0..COUNT {
            let extent = extent(0, 1);
            match kind {
                0 => _ = alice.receive(extent, None, Matching::Tagged { tag: n, ignore: 0 }, n).unwrap(),
                1 => _ = alice.receive_datagram(extent, n).unwrap(),
                _ => _ = alice.send_datagram(Source { peer: Addr(1), process: 9 }, extent, 0, n).unwrap(),
            }
            world.serve(0);
        }
        drop(alice);
        let mut turns = 0;
        let taken = Err(CallError::ProcessOpen(process));
        while turns == 0 || world.feps[0].open_process(process) == taken {
            let receive = other.receive(extent(0, 1), None, Matching::Untagged, turns).unwrap();
            other.cancel(receive).unwrap();
            let steps = crate::steps::of(|| world.serve(0));
            assert!(steps <= 10, "{steps} steps in a turn");
            assert_eq!(other.poll().unwrap().expect("it is answered in each turn").context, turns);
            turns += 1;
            assert!(turns < 1_000, "the process number is not free after {turns} turns");
        }
        assert!(turns >= COUNT / 10, "all has ended in {turns} turns");
        world.feps[0].close_process(process).unwrap();
        drop(other);
        world.assert_nothing_is_left();
    }
}

/// As many operations as an application of these tests has.
const MANY: u64 = SMALL.operations as u64;

/// Unexpected messages of a process are freed when its application has left.
#[test]
fn unexpected_messages_are_freed_with_their_process() {
    let mut world = World::new();
    let (mut alice, bob) = (world.open(0), world.open(1));
    let connection = alice.connect(Addr(1), to(&bob), 0).unwrap();
    for n in 0..5 {
        alice.send(connection, extent(0, 5000), Some(n), 0, 0).unwrap();
    }
    for _ in 0..6 {
        world.event(&mut alice);
    }
    assert!(world.feps[1].footprint().payload >= 25_000);
    drop(bob);
    (0..10).for_each(|_| world.step(1));
    assert_eq!(world.feps[1].footprint().payload, 0);
    drop(alice);
    world.assert_nothing_is_left();
}

/// Many messages have waited for it, and one of them has not arrived in full. Meanwhile another application gets its turns,
/// and what is not dropped yet still counts.
#[test]
fn messages_that_an_application_leaves_behind_are_dropped_in_several_turns() {
    const LEN: u32 = 100;
    const LONG: u32 = 1500;
    let many = 300;
    let mut world = World::new();
    let (mut alice, bob, mut other) = (world.open(0), world.open(1), world.open(1));
    let connection = alice.connect(Addr(1), to(&bob), 0).unwrap();
    world.event(&mut alice);
    for n in 1..=many {
        alice.send(connection, extent(0, LEN), Some(n), 0, 0).unwrap();
        world.event(&mut alice);
    }
    alice.send(connection, extent(0, LONG), Some(0), 0, 1).unwrap();
    let before = world.feps[1].counters().data_received;
    while world.feps[1].counters().data_received == before {
        world.step(1);
    }
    let used = |world: &World| world.feps[1].check_accounts();
    let before = used(&world);
    assert_eq!(before, (many + 1, many * u64::from(LEN) + u64::from(LONG), 0));

    let process = bob.process();
    drop(bob);
    let mut left = before.0;
    for turn in 0..1_000 {
        let receive = other.receive(extent(0, 1), None, Matching::Untagged, turn).unwrap();
        other.cancel(receive).unwrap();
        world.serve(1);
        assert_eq!(other.poll().unwrap().expect("the other one is answered in each turn").context, turn);
        let now = used(&world).0;
        assert!(left - now <= 4, "{left} messages, then {now}");
        left = now;
        assert_eq!(world.feps[1].open_process(process), Err(CallError::ProcessOpen(process)));
        assert_eq!(world.sessions[1].len(), 2, "the place is not free either");
        if turn == 0 {
            // The end of a message that is not dropped yet comes too late, and so does a new one.
            alice.send(connection, extent(0, 1), None, 0, 2).unwrap();
            for context in [1, 2] {
                let event = world.event(&mut alice);
                let refused = Err(SendError::Answered(ReturnCode::BAD_PID));
                assert_eq!(event.context, context);
                assert!(
                    matches!(event.report, Report::Sent { result, .. } if result == refused),
                    "{event:?}"
                );
            }
            left = used(&world).0;
            assert!(left > 8, "that was before its turn to be dropped: {left}");
        }
        if left <= 4 {
            break;
        }
    }
    (0..100).for_each(|_| world.serve(1));
    assert_eq!((used(&world), world.sessions[1].len()), ((0, 0, 0), 1));
    assert_eq!(world.feps[1].footprint().payload, 0);
    world.feps[1].open_process(process).unwrap();
    world.feps[1].close_process(process).unwrap();
    drop((alice, other));
    world.assert_nothing_is_left();
}
