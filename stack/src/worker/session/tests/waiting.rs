//! Applications for which many messages wait: what the worker does for them in a turn has a bound, and the others get their
//! turns meanwhile.

use core::num::NonZeroU32;

use super::*;
use crate::buffer::Buffer;
use crate::fep::{ConnectionId, FepConfig, Send};
use crate::wire::pds::DeliveryMode;
use crate::worker::session::world::Side;
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
    let count = post(world, connection, len, tags);
    for _ in 0..100_000 {
        if world.feps[1].counters().data_received >= before + count {
            return;
        }
        world.step(64);
    }
    panic!("{:?}", world.feps[0].explain(world.now));
}

/// Posts messages of `len` bytes with these tags. Returns how many packets they have.
pub(super) fn post(
    world: &mut World,
    connection: ConnectionId,
    len: usize,
    tags: impl IntoIterator<Item = u64>,
) -> u64 {
    let mut count = 0;
    for tag in tags {
        let buffer = Buffer::Heap(content(tag, len));
        // Completions go to a session that does not exist.
        let send = Send { buffer, tag: Some(tag), header_data: tag, context: u64::MAX };
        world.feps[0].post_send(connection, send).unwrap();
        count += len.div_ceil(1024).max(1) as u64;
    }
    count
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
    assert!((6..=7).contains(&turns), "{turns}, of which the other application has half");

    // The same search again has nothing to do. Another one begins at the beginning.
    bob.peek(None, MASKED, Found::Stays, 2).unwrap();
    let (turns, event) = turns_until_event(&mut world, &mut bob, &mut other);
    assert!(matches!(event.report, Report::Peeked { message: None, .. }), "{event:?}");
    assert_eq!(turns, 1);
    let last = Matching::Tagged { tag: (many - 1) << 8, ignore: 1 };
    bob.peek(None, last, Found::IsClaimed, 3).unwrap();
    let (turns, event) = turns_until_event(&mut world, &mut bob, &mut other);
    assert!(matches!(event.report, Report::Peeked { message: Some(_), claim: Some(_), .. }), "{event:?}");
    assert!((6..=7).contains(&turns), "{turns}");

    // Many of them in one burst take so much longer, and are answered in their order.
    for n in 0..5 {
        let receive =
            bob.receive(extent(0, 1), None, Matching::Tagged { tag: 1, ignore: 2 << n }, n).unwrap();
        let (turns, _) = {
            bob.cancel(receive).unwrap();
            turns_until_event(&mut world, &mut bob, &mut other)
        };
        assert!((5..=7).contains(&turns), "{turns}");
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

/// Each is copied in so many turns as its bytes take, half of each, and what its memory costs that goes back.
#[test]
fn messages_that_are_copied_to_their_receives_are_paced() {
    const LEN: usize = 16 * BYTES_PER_TURN as usize;
    let mut world = World::with(&Arc::new(FepConfig { time_wait: Span::from_us(10), ..(*config()).clone() }));
    let mut bob = open_for(&mut world, 3 * LEN);
    let mut other = world.open(1);
    let connection = sender(&mut world, bob.process());
    send(&mut world, connection, LEN, 0..3);
    for tag in 0..3 {
        bob.receive(place(tag, LEN), None, Matching::Tagged { tag, ignore: 0 }, tag).unwrap();
    }
    let gaps: Vec<u64> = (0..3).map(|_| turns_until_event(&mut world, &mut bob, &mut other).0).collect();
    assert!(gaps.iter().all(|gap| (32..=36).contains(gap)), "{gaps:?}");
    (0..3).for_each(|tag| assert_eq!(read(&bob, tag, LEN), content(tag, LEN)));
}

/// A session of the second endpoint with so many bytes of memory.
fn open_for(world: &mut World, memory: usize) -> Client {
    let config = SessionConfig { memory: memory as u32, reports: 1024, ..SMALL };
    world.sessions[1].open(&mut world.feps[1], &config, None).unwrap()
}

/// The memory of the receive for one of several messages of `len` bytes.
fn place(n: u64, len: usize) -> Extent {
    extent(n * len as u64, len as u32)
}

fn read(client: &Client, n: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    client.read(n * len as u64, &mut bytes).unwrap();
    bytes
}

fn tagged(tag: u64) -> Matching {
    Matching::Tagged { tag, ignore: 0 }
}

/// What was received, and with which tag, or that it was not.
fn received(event: Option<Event>) -> Result<u64, ReceiveError> {
    match event.map(|event| event.report) {
        Some(Report::Received { tag: Some(tag), result, .. }) => result.map(|()| tag),
        other => panic!("{other:?}"),
    }
}

/// The worker copies no more than its share in a turn, and others have theirs. Until it is done, the message counts for its sender.
#[test]
fn a_long_message_is_copied_in_pieces_of_the_share_of_a_turn() {
    const LEN: usize = 16 << 20;
    let mut world = World::new();
    let (mut bob, mut other) = (open_for(&mut world, LEN), world.open(1));
    let connection = sender(&mut world, bob.process());
    send(&mut world, connection, LEN, [5]);
    bob.receive(place(0, LEN), None, tagged(5), 1).unwrap();
    // What looks at no messages does not wait for it.
    bob.connect(Addr(0), ConnectOptions::default(), 2).unwrap();
    let (mut turns, mut all) = (0, 0);
    loop {
        let receive = other.receive(extent(0, 1), None, Matching::Untagged, turns).unwrap();
        other.cancel(receive).unwrap();
        let mut busy = 0;
        let copied = crate::steps::of(|| {
            let mut served = Side(&mut world.feps[1], &mut world.peers[1]);
            busy = world.sessions[1].serve(&mut served, world.now);
        });
        // Other steps are counted, too, but few.
        assert!(copied <= BYTES_PER_TURN as u64 + 8, "{copied} bytes in a turn");
        assert!(busy > 2, "the worker goes on by itself");
        assert!(other.poll().unwrap().is_some(), "the other one is answered in each turn");
        (turns, all) = (turns + 1, all + copied);
        let event = bob.poll().unwrap();
        if turns == 1 {
            assert!(matches!(event.unwrap().report, Report::Connected { .. }));
        } else if event.is_some() {
            assert_eq!(received(event), Ok(5));
            break;
        }
        assert_eq!(world.feps[1].kept_of(bob.process(), Addr(0)), LEN as u64);
    }
    assert!(
        (LEN as u64..=LEN as u64 + 2 * turns).contains(&all) && turns >= (LEN as i64 / BYTES_PER_TURN) as u64,
        "{all} bytes in {turns} turns"
    );
    assert_eq!(world.feps[1].kept_of(bob.process(), Addr(0)), 0);
    assert_eq!(read(&bob, 0, LEN), content(5, LEN));
    world.feps[0].abort(world.now, connection).unwrap();
    drop((bob, other));
    world.assert_nothing_is_left();
}

/// As much of a message as `sent` bytes arrives, and then a receive comes for it.
fn begin(world: &mut World, bob: &mut Client, connection: ConnectionId, len: usize, sent: usize) {
    let buffer = Buffer::Heap(content(7, len));
    let send = Send { buffer, tag: Some(7), header_data: 7, context: u64::MAX };
    world.feps[0].post_send(connection, send).unwrap();
    let arrives = |packet: &crate::packet::Packet| match &packet.ses {
        crate::wire::ses::Ses::Standard(header) => match header.placement {
            // Some of it is missing, and the end has arrived before that.
            crate::wire::ses::Placement::Continue { msg_offset, .. } => {
                (msg_offset as usize) < sent && msg_offset != 8 << 10
            }
            crate::wire::ses::Placement::Start { .. } => true,
        },
        _ => true,
    };
    for _ in 0..200 {
        world.step_through(64, arrives);
    }
    assert_eq!(world.feps[1].kept_of(bob.process(), Addr(0)), len as u64);
    bob.receive(place(0, len), None, tagged(7), 1).unwrap();
    (0..40).for_each(|_| world.serve(1));
    assert!(bob.poll().unwrap().is_none());
    assert_eq!(world.feps[1].kept_of(bob.process(), Addr(0)), len as u64, "it counts until it is copied");
}

#[test]
fn what_had_arrived_of_a_message_before_its_receive_is_copied_when_the_rest_is_there() {
    const LEN: usize = 64 << 10;
    let mut world = World::new();
    let mut bob = open_for(&mut world, LEN);
    let connection = sender(&mut world, bob.process());
    begin(&mut world, &mut bob, connection, LEN, 24 << 10);
    let mut copied = 0;
    let mut event = None;
    for _ in 0..100_000 {
        copied += crate::steps::of(|| world.step(4));
        event = bob.poll().unwrap();
        if event.is_some() {
            break;
        }
    }
    assert_eq!(received(event), Ok(7));
    assert!((24 << 10..25 << 10).contains(&copied), "the rest went straight to the receive: {copied}");
    assert_eq!(read(&bob, 0, LEN), content(7, LEN));
    assert_eq!(world.feps[1].kept_of(bob.process(), Addr(0)), 0);
    world.feps[0].abort(world.now, connection).unwrap();
    drop(bob);
    world.assert_nothing_is_left();
}

/// The last packet of a message is no command, so that it wakes no quiet application.
#[test]
fn a_message_is_copied_as_soon_as_it_is_complete_though_its_application_is_quiet() {
    const LEN: usize = 64 << 10;
    let mut world = World::new();
    world.sessions[1] = Sessions::new(20);
    let others: Vec<Client> = (0..19).map(|_| world.open(1)).collect();
    let mut bob = open_for(&mut world, LEN);
    let connection = sender(&mut world, bob.process());
    begin(&mut world, &mut bob, connection, LEN, 24 << 10);
    (0..100).for_each(|_| world.serve(1));
    let mut copied = 0;
    for _ in 0..100_000 {
        copied += crate::steps::of(|| world.step(4));
        if world.feps[1].has_copies() {
            break;
        }
    }
    assert!(copied >= BYTES_PER_TURN as u64, "{copied} bytes in the first turns");
    assert!(!world.sessions[1].may_sleep(&world.feps[1]));
    world.sessions[1].woken();
    assert_eq!(received(Some(world.event(&mut bob))), Ok(7));
    assert_eq!(read(&bob, 0, LEN), content(7, LEN));
    assert!(!world.feps[1].has_copies());
    world.feps[0].abort(world.now, connection).unwrap();
    drop((bob, others));
    world.assert_nothing_is_left();
}

#[test]
fn a_connection_that_ends_in_the_middle_of_a_message_leaves_nothing_to_copy() {
    const LEN: usize = 64 << 10;
    for leaves in [false, true] {
        let mut world = World::new();
        let mut bob = open_for(&mut world, LEN);
        let connection = sender(&mut world, bob.process());
        begin(&mut world, &mut bob, connection, LEN, 24 << 10);
        if leaves {
            drop(bob);
            (0..10).for_each(|_| world.serve(1));
            world.feps[0].abort(world.now, connection).unwrap();
            // What was lost is sent again before.
            for _ in 0..10_000 {
                if world.feps[0].leaks().count() == 0 {
                    break;
                }
                world.step(100);
            }
        } else {
            world.feps[0].abort(world.now, connection).unwrap();
            assert_eq!(received(Some(world.event(&mut bob))), Err(ReceiveError::PeerLost));
            assert_eq!(world.feps[1].kept_of(bob.process(), Addr(0)), 0);
            drop(bob);
        }
        world.assert_nothing_is_left();
    }
}

#[test]
fn an_application_may_leave_and_a_connection_may_fail_while_a_message_is_copied() {
    const LEN: usize = 32 << 10;
    for leaves in [false, true] {
        let mut world = World::new();
        let mut bob = open_for(&mut world, 2 * LEN);
        let connection = sender(&mut world, bob.process());
        send(&mut world, connection, LEN, [1, 2]);
        let receive = bob.receive(place(0, LEN), None, tagged(1), 1).unwrap();
        bob.receive(place(1, LEN), None, tagged(2), 2).unwrap();
        bob.cancel(receive).unwrap();
        (0..8).for_each(|_| world.serve(1));
        assert!(world.feps[1].is_copying(bob.process()));
        if leaves {
            drop(bob);
            (0..8).for_each(|_| world.serve(1));
            world.feps[0].abort(world.now, connection).unwrap();
        } else {
            // The message has arrived, and it is too late to cancel its receive.
            world.feps[0].abort(world.now, connection).unwrap();
            let mut tags = Vec::new();
            while tags.len() < 2 {
                let event = world.event(&mut bob);
                if matches!(event.report, Report::Received { .. }) {
                    tags.push(received(Some(event)));
                }
            }
            assert_eq!(tags, [Ok(1), Ok(2)]);
            (0..2).for_each(|n| assert_eq!(read(&bob, n, LEN), content(n + 1, LEN)));
            drop(bob);
        }
        world.assert_nothing_is_left();
    }
}

/// The reports of others fill the ring and wait, and nobody reads them: the copy ends none the less.
#[test]
fn a_message_is_copied_while_reports_wait() {
    const LEN: usize = 32 << 10;
    let mut world = World::new();
    let config = SessionConfig { memory: LEN as u32 + 16, commands: 64, ..SMALL };
    let mut bob = world.sessions[1].open(&mut world.feps[1], &config, None).unwrap();
    let connection = sender(&mut world, bob.process());
    for n in 0..12 {
        bob.receive(extent(LEN as u64 + n, 1), None, tagged(100 + n), 100 + n).unwrap();
    }
    world.serve(1);
    send(&mut world, connection, LEN, [1]);
    bob.receive(place(0, LEN), None, tagged(1), 1).unwrap();
    world.serve(1);
    send(&mut world, connection, 1, (0..12).map(|n| 100 + n));
    assert!(world.sessions[1].unread(bob.process()) > 0);
    for _ in 0..80 {
        world.serve(1);
    }
    assert_eq!(world.feps[1].kept_of(bob.process(), Addr(0)), 0, "it is copied");
    let mut tags: Vec<u64> = (0..13).map(|_| received(Some(world.event(&mut bob))).unwrap()).collect();
    tags.sort_unstable();
    assert_eq!(tags, [1].into_iter().chain(100..112).collect::<Vec<_>>());
    assert_eq!(read(&bob, 0, LEN), content(1, LEN));
    world.feps[0].abort(world.now, connection).unwrap();
    drop(bob);
    world.assert_nothing_is_left();
}

/// Short messages arrive while one before them is copied, for a receive for many messages. On a connection with order they end
/// behind it, and more of them than may wait are refused until then; on another one they overtake it.
#[test]
fn messages_of_a_connection_with_order_do_not_overtake_one_that_is_copied() {
    const LEN: usize = 512 << 10;
    const SHORT: u64 = 700;
    for mode in [DeliveryMode::Rod, DeliveryMode::Rud] {
        let mut world = World::new();
        let mut bob = open_for(&mut world, LEN + SHORT as usize);
        world.feps[0].open_process(4000).unwrap();
        let options = ConnectOptions { process: bob.process(), mode, ..ConnectOptions::default() };
        let connection = world.feps[0].connect_of(4000, world.now, Addr(1), options).unwrap();
        let rest = extent(LEN as u64, SHORT as u32);
        let many = Matching::Tagged { tag: 1 << 32, ignore: 0xffff };
        send(&mut world, connection, LEN, [1]);
        bob.receive_many(rest, None, many, NonZeroU32::MIN, 2).unwrap();
        bob.receive(place(0, LEN), None, tagged(1), 1).unwrap();
        (0..3).for_each(|_| world.serve(1));
        for n in 0..SHORT {
            let buffer = Buffer::Heap(vec![n as u8]);
            let send = Send { buffer, tag: Some(1 << 32 | n), header_data: 0, context: u64::MAX };
            world.feps[0].post_send(connection, send).unwrap();
        }
        let tags: Vec<u64> = (0..=SHORT).map(|_| received(Some(world.event(&mut bob))).unwrap()).collect();
        let expected = |n| if n == 0 { 1 } else { 1 << 32 | (n - 1) };
        if mode == DeliveryMode::Rod {
            assert_eq!(tags, (0..=SHORT).map(expected).collect::<Vec<_>>());
        } else {
            assert_ne!(tags[0], 1, "it is copied while others arrive");
        }
        assert_eq!(read(&bob, 0, LEN), content(1, LEN));
        let mut short = vec![0; SHORT as usize];
        bob.read(LEN as u64, &mut short).unwrap();
        if mode == DeliveryMode::Rod {
            assert_eq!(short, (0..SHORT).map(|n| n as u8).collect::<Vec<_>>());
        }
        world.feps[0].abort(world.now, connection).unwrap();
        drop(bob);
        world.assert_nothing_is_left();
    }
}
