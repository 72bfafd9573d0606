//! Applications for which many messages wait: what the worker does for them in a turn has a bound, and the others get their
//! turns meanwhile.

use core::num::NonZeroU32;

use super::*;
use crate::buffer::Buffer;
use crate::fep::{ConnectionId, FepConfig, Send};
use crate::worker::session::{BYTES_PER_TURN, Found};

/// Messages that a search looks at in a turn.
const LOOKS: u64 = BYTES_PER_TURN as u64 / 16;

/// All bits of the tag but the lowest eight are ignored.
const MASKED: Matching = Matching::Tagged { tag: 0xff, ignore: !0xff };

/// A world whose first endpoint has a connection of its own to process `process` of the second.
pub(super) fn sender(world: &mut World, process: u16) -> ConnectionId {
    world.feps[0].open_process(4000).unwrap();
    let options = ConnectOptions { process, ..ConnectOptions::default() };
    world.feps[0].connect_of(4000, world.now, Addr(1), options).unwrap()
}

/// Sends messages of `len` bytes with these tags, which wait then.
pub(super) fn send(
    world: &mut World,
    connection: ConnectionId,
    len: usize,
    tags: impl IntoIterator<Item = u64>,
) {
    let before = world.feps[1].counters().data_received;
    let mut count = 0;
    for tag in tags {
        let buffer = Buffer::Heap(content(tag, len));
        // Completions go to a session that does not exist.
        let send = Send { buffer, tag: Some(tag), header_data: tag, context: u64::MAX };
        world.feps[0].post_send(connection, send).unwrap();
        count += len.div_ceil(1024).max(1) as u64;
    }
    for _ in 0..100_000 {
        if world.feps[1].counters().data_received >= before + count {
            return;
        }
        world.step(64);
    }
    panic!("{:?}", world.feps[0].explain(world.now));
}

/// Turns of the second endpoint's sessions until `client` has an event; in each of them another application gets an answer.
fn turns_until_event(world: &mut World, client: &mut Client, other: &mut Client) -> (u64, Event) {
    for turn in 1..100_000 {
        let receive = other.receive(extent(0, 1), None, Matching::Untagged, turn).unwrap();
        other.cancel(receive).unwrap();
        world.serve(1);
        let event = other.poll().unwrap().expect("the other one is answered in each turn");
        assert_eq!(event.context, turn);
        if let Some(event) = client.poll().unwrap() {
            return (turn, event);
        }
    }
    panic!("no event")
}

#[test]
fn a_search_through_many_messages_goes_on_in_later_turns() {
    let mut world = World::new();
    let (mut bob, mut other) = (world.open(1), world.open(1));
    let connection = sender(&mut world, bob.process());
    let many = 3 * LOOKS;
    send(&mut world, connection, 1, (0..many).map(|n| n << 8));

    // One that finds nothing, and what comes after it.
    let receive = bob.receive(extent(0, 1), None, MASKED, 1).unwrap();
    bob.cancel(receive).unwrap();
    let (turns, event) = turns_until_event(&mut world, &mut bob, &mut other);
    assert!(
        matches!(event.report, Report::Received { result: Err(ReceiveError::Cancelled), .. }),
        "{event:?}"
    );
    assert!((3..=4).contains(&turns), "{turns}");

    // The same search again has nothing to do. Another one begins at the beginning.
    bob.peek(None, MASKED, Found::Stays, 2).unwrap();
    let (turns, event) = turns_until_event(&mut world, &mut bob, &mut other);
    assert!(matches!(event.report, Report::Peeked { message: None, .. }), "{event:?}");
    assert_eq!(turns, 1);
    let last = Matching::Tagged { tag: (many - 1) << 8, ignore: 1 };
    bob.peek(None, last, Found::IsClaimed, 3).unwrap();
    let (turns, event) = turns_until_event(&mut world, &mut bob, &mut other);
    assert!(matches!(event.report, Report::Peeked { message: Some(_), claim: Some(_), .. }), "{event:?}");
    assert!((3..=4).contains(&turns), "{turns}");

    // Many of them in one burst take so much longer, and are answered in their order.
    for n in 0..5 {
        let receive =
            bob.receive(extent(0, 1), None, Matching::Tagged { tag: 1, ignore: 2 << n }, n).unwrap();
        let (turns, _) = {
            bob.cancel(receive).unwrap();
            turns_until_event(&mut world, &mut bob, &mut other)
        };
        assert!((3..=4).contains(&turns), "{turns}");
    }
    world.feps[0].abort(world.now, connection).unwrap();
    drop((bob, other));
    world.assert_nothing_is_left();
}

/// The message arrives while the search is among older ones. It waits behind them, and the search finds it.
#[test]
fn a_message_that_arrives_during_a_search_is_found_in_its_turn() {
    let mut world = World::new();
    let (mut bob, mut other) = (world.open(1), world.open(1));
    let connection = sender(&mut world, bob.process());
    send(&mut world, connection, 1, (0..3 * LOOKS).map(|n| n << 8));
    bob.receive(extent(0, 1), None, MASKED, 1).unwrap();
    bob.receive(extent(1, 1), None, Matching::Tagged { tag: 0x2ff, ignore: 0 }, 2).unwrap();
    world.serve(1);
    send(&mut world, connection, 1, [0x1ff, 0x2ff]);
    for context in 1..3 {
        let (_, event) = turns_until_event(&mut world, &mut bob, &mut other);
        let Report::Received { tag, result: Ok(()), .. } = event.report else { panic!("{event:?}") };
        assert_eq!((event.context, tag), (context, Some(context << 8 | 0xff)));
    }
}

/// A receive for many messages gets those that wait in their order, some in each turn.
#[test]
fn a_receive_for_many_messages_gets_those_that_wait_in_several_turns() {
    const LEN: usize = 100;
    let mut world = World::new();
    let roomy = SessionConfig { reports: 1024, ..SMALL };
    let mut bob = world.sessions[1].open(&mut world.feps[1], &roomy, None).unwrap();
    let mut other = world.open(1);
    let connection = sender(&mut world, bob.process());
    let count = 300;
    send(&mut world, connection, LEN, (0..count).map(|n| n << 8 | 0xff));
    bob.receive_many(extent(0, 256 << 10), None, MASKED, NonZeroU32::new(1).unwrap(), 1).unwrap();
    let (mut turns, mut got) = (0, 0);
    while got < count {
        let (more, first) = turns_until_event(&mut world, &mut bob, &mut other);
        turns += more;
        let mut next = Some(first);
        let mut in_turn = 0;
        while let Some(event) = next {
            let Report::Received { tag, offset, more: true, result: Ok(()), .. } = event.report else {
                panic!("{event:?}")
            };
            assert_eq!((tag, u64::from(offset)), (Some(got << 8 | 0xff), got * LEN as u64));
            let mut bytes = [0; LEN];
            bob.read(offset.into(), &mut bytes).unwrap();
            assert_eq!(bytes[..], content(got << 8 | 0xff, LEN));
            (got, in_turn) = (got + 1, in_turn + 1);
            next = bob.poll().unwrap();
        }
        assert!(in_turn <= 4, "{in_turn}");
    }
    assert!(turns >= count / 4, "{turns}");
    // It takes new ones, too.
    send(&mut world, connection, LEN, [0xff]);
    assert!(matches!(world.event(&mut bob).report, Report::Received { tag: Some(0xff), more: true, .. }));
    world.feps[0].abort(world.now, connection).unwrap();
    drop((bob, other));
    world.assert_nothing_is_left();
}

/// Messages arrive in each turn that are more than the share of their application would pay for. A receive for many messages
/// takes them none the less, so that the search behind it begins while they go on arriving, and ends.
#[test]
fn a_receive_for_many_messages_does_not_fall_behind_those_that_arrive() {
    const LEN: usize = 1000;
    let mut world = World::new();
    let roomy = SessionConfig { memory: 16 << 20, reports: 1024, ..SMALL };
    let mut bob = world.sessions[1].open(&mut world.feps[1], &roomy, None).unwrap();
    let connection = sender(&mut world, bob.process());
    let waiting = 50;
    send(&mut world, connection, LEN, (0..waiting).map(|n| n << 8 | 0xff));
    bob.receive_many(extent(0, 16 << 20), None, MASKED, NonZeroU32::new(1).unwrap(), 1).unwrap();
    bob.peek(None, Matching::Tagged { tag: 1, ignore: 2 }, Found::Stays, 2).unwrap();
    let (mut sent, mut got) = (waiting, 0);
    for _ in 0..2_000 {
        for _ in 0..4 {
            let buffer = Buffer::Heap(content(sent << 8 | 0xff, LEN));
            let send = Send { buffer, tag: Some(sent << 8 | 0xff), header_data: 0, context: u64::MAX };
            sent += u64::from(world.feps[0].post_send(connection, send).is_ok());
        }
        world.step(4);
        while let Some(event) = bob.poll().unwrap() {
            let Report::Received { tag, offset, result: Ok(()), .. } = event.report else {
                assert!(matches!(event.report, Report::Peeked { message: None, .. }), "{event:?}");
                assert!(got > waiting + waiting / 2, "messages arrived meanwhile: {got}");
                return;
            };
            let mut bytes = [0; LEN];
            bob.read(offset.into(), &mut bytes).unwrap();
            assert_eq!((tag, &bytes[..]), (Some(got << 8 | 0xff), &content(got << 8 | 0xff, LEN)[..]));
            got += 1;
        }
    }
    panic!("{sent} messages were sent, {got} received, and the search has not ended");
}

/// A receive for many messages that is still looking at those that wait, and behind it a search for something else. Both end.
#[test]
fn a_search_behind_a_receive_for_many_messages_begins_when_that_has_looked_at_all() {
    let mut world = World::new();
    let (mut bob, mut other) = (world.open(1), world.open(1));
    let connection = sender(&mut world, bob.process());
    send(&mut world, connection, 1, [0xff]);
    send(&mut world, connection, 1, (0..3 * LOOKS).map(|n| n << 8));
    bob.receive_many(extent(0, 100), None, MASKED, NonZeroU32::new(1).unwrap(), 1).unwrap();
    bob.peek(None, Matching::Tagged { tag: 1, ignore: 2 }, Found::Stays, 2).unwrap();
    let (_, event) = turns_until_event(&mut world, &mut bob, &mut other);
    assert!(matches!(event.report, Report::Received { tag: Some(0xff), result: Ok(()), .. }), "{event:?}");
    let (turns, event) = turns_until_event(&mut world, &mut bob, &mut other);
    assert!(matches!(event.report, Report::Peeked { message: None, .. }), "{event:?}");
    assert!((5..=20).contains(&turns), "{turns}");
    world.feps[0].abort(world.now, connection).unwrap();
    drop((bob, other));
    world.assert_nothing_is_left();
}

/// So can connections be opened and messages be sent meanwhile.
#[test]
fn a_receive_for_many_messages_that_looks_for_long_can_be_cancelled() {
    let mut world = World::new();
    let (mut bob, mut other) = (world.open(1), world.open(1));
    let connection = sender(&mut world, bob.process());
    send(&mut world, connection, 1, (0..3 * LOOKS).map(|n| n << 8));
    let receive = bob.receive_many(extent(0, 100), None, MASKED, NonZeroU32::new(1).unwrap(), 1).unwrap();
    bob.connect(Addr(0), ConnectOptions::default(), 2).unwrap();
    bob.cancel(receive).unwrap();
    let (turns, event) = turns_until_event(&mut world, &mut bob, &mut other);
    assert!(matches!(event.report, Report::Connected { .. }), "{event:?}");
    let cancelled = bob.poll().unwrap().map(|event| event.report);
    assert!(matches!(cancelled, Some(Report::Received { result: Err(ReceiveError::Cancelled), .. })));
    assert_eq!(turns, 1);
    world.feps[0].abort(world.now, connection).unwrap();
    drop((bob, other));
    world.assert_nothing_is_left();
}

/// A message is copied in one piece, however long it is. Later turns make up for it.
#[test]
fn messages_that_are_copied_to_their_receives_are_paced() {
    const LEN: usize = 16 * BYTES_PER_TURN as usize;
    let mut world = World::with(&Arc::new(FepConfig { time_wait: Span::from_us(10), ..(*config()).clone() }));
    let roomy = SessionConfig { memory: LEN as u32, ..SMALL };
    let mut bob = world.sessions[1].open(&mut world.feps[1], &roomy, None).unwrap();
    let mut other = world.open(1);
    let connection = sender(&mut world, bob.process());
    send(&mut world, connection, LEN, 0..3);
    for tag in 0..3 {
        bob.receive(extent(0, LEN as u32), None, Matching::Tagged { tag, ignore: 0 }, tag).unwrap();
    }
    let gaps: Vec<u64> = (0..3).map(|_| turns_until_event(&mut world, &mut bob, &mut other).0).collect();
    assert_eq!(gaps[0], 1);
    assert!(gaps[1..].iter().all(|gap| (16..=17).contains(gap)), "{gaps:?}");
}
