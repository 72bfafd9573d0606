//! Datagrams of applications.

use super::resolving::{FAR, TURN, alone, ip, refused};
use super::*;
use crate::buffer::Buffer;
use crate::fep::Datagram;
use crate::packet::Packet;
use crate::wire::pds::Pds;
use crate::wire::ses::Ses;
use crate::worker::session::held::LONGEST;

fn of(client: &Client, side: u32) -> Source {
    Source { peer: Addr(side), process: client.process() }
}

/// Steps until nothing has been on the wire for long.
fn settle(world: &mut World) {
    (0..1_000).for_each(|_| world.step(4));
}

/// What `client` has heard, by context.
fn heard(client: &mut Client) -> Vec<(u64, Report)> {
    std::iter::from_fn(|| client.poll().unwrap()).map(|event| (event.context, event.report)).collect()
}

#[test]
fn datagrams_of_any_length_arrive_with_their_sender_and_header_data() {
    let mut world = World::new();
    let (mut alice, mut bob) = (world.open(0), world.open(1));
    assert_eq!(alice.longest_datagram(), 1024);
    for len in [0, 1, 1000, 1024] {
        let bytes = content(len.into(), len as usize);
        bob.receive_datagram(extent(7, 1024), 1).unwrap();
        world.step(1);
        alice.write(0, &bytes).unwrap();
        alice.send_datagram(of(&bob, 1), extent(0, len), u64::MAX - u64::from(len), 2).unwrap();
        let event = world.event(&mut bob);
        let Report::Received {
            source,
            tag: None,
            header_data,
            len: arrived,
            offset: 0,
            more: false,
            result: Ok(()),
            ..
        } = event.report
        else {
            panic!("{event:?}")
        };
        let expected = (1, Some(of(&alice, 0)), u64::MAX - u64::from(len), len);
        assert_eq!((event.context, source, header_data, arrived), expected);
        let mut copy = vec![0; len as usize];
        bob.read(7, &mut copy).unwrap();
        assert!(copy == bytes);
        let event = world.event(&mut alice);
        assert!(
            event.context == 2 && matches!(event.report, Report::Sent { result: Ok(()), .. }),
            "{event:?}"
        );
    }
    drop((alice, bob));
    world.assert_nothing_is_left();
}

/// Those for which no receive is posted are counted; and only the process that is named gets one.
#[test]
fn datagrams_of_one_application_are_never_seen_by_another() {
    let mut world = World::new();
    let (mut alice, mut bob, mut eve) = (world.open(0), world.open(1), world.open(1));
    for context in 0..8 {
        eve.receive_datagram(extent(0, 1024), context).unwrap();
    }
    world.step(1);
    alice.write(0, &[0x5a; 1024]).unwrap();
    for context in 0..5 {
        alice.send_datagram(of(&bob, 1), extent(0, 1024), 0, context).unwrap();
    }
    settle(&mut world);
    let sent: Vec<_> = heard(&mut alice).into_iter().map(|(context, _)| context).collect();
    assert_eq!((sent, heard(&mut bob).len(), heard(&mut eve).len()), (vec![0, 1, 2, 3, 4], 0, 0));
    assert_eq!(world.feps[1].counters().datagrams_dropped, 5);
    let mut memory = [1; 1024];
    eve.read(0, &mut memory).unwrap();
    assert_eq!(memory, [0; 1024], "nothing of them is in her memory");
    // With a receive, it is his alone.
    bob.receive_datagram(extent(0, 1024), 1).unwrap();
    world.step(1);
    alice.send_datagram(of(&bob, 1), extent(0, 100), 0, 6).unwrap();
    assert!(matches!(world.event(&mut bob).report, Report::Received { len: 100, result: Ok(()), .. }));
    assert_eq!(heard(&mut eve).len(), 0);
    drop((alice, bob, eve));
    world.assert_nothing_is_left();
}

#[test]
fn one_that_is_longer_than_its_receive_is_cut_off() {
    let mut world = World::new();
    let (mut alice, mut bob) = (world.open(0), world.open(1));
    bob.write(0, &[1; 200]).unwrap();
    bob.receive_datagram(extent(50, 100), 1).unwrap();
    world.step(1);
    alice.write(0, &[9; 500]).unwrap();
    alice.send_datagram(of(&bob, 1), extent(0, 500), 0, 2).unwrap();
    let Report::Received { result, .. } = world.event(&mut bob).report else { panic!("no receive") };
    assert_eq!(result, Err(ReceiveError::Truncated { len: 500, room: 100 }));
    let mut around = [0; 200];
    bob.read(0, &mut around).unwrap();
    assert_eq!(around, *[[1; 50].as_slice(), &[9; 100], &[1; 50]].concat());
    drop((alice, bob));
    world.assert_nothing_is_left();
}

#[test]
fn receives_of_datagrams_and_of_messages_are_cancelled_by_their_own_names() {
    let mut world = World::new();
    let mut bob = world.open(1);
    let first = bob.receive_datagram(extent(0, 10), 1).unwrap();
    bob.receive_datagram(extent(10, 10), 2).unwrap();
    let message = bob.receive(extent(20, 10), None, Matching::Untagged, 3).unwrap();
    bob.cancel(message).unwrap();
    bob.cancel(first).unwrap();
    world.step(1);
    let cancelled: Vec<_> = heard(&mut bob)
        .into_iter()
        .map(|(context, report)| {
            let is_cancelled =
                matches!(report, Report::Received { result: Err(ReceiveError::Cancelled), .. });
            (context, is_cancelled)
        })
        .collect();
    assert_eq!(cancelled, [(3, true), (1, true)]);
    drop(bob);
    world.assert_nothing_is_left();
}

/// Whether datagrams to many peers are held costs nothing in turns in which no peer is found, and then as much as those to it.
#[test]
fn held_datagrams_are_looked_at_only_when_their_peer_is_found() {
    const PEERS: u32 = 100;
    let mut world = World::new();
    let config = SessionConfig { operations: PEERS, commands: 1024, reports: 1024, ..SMALL };
    let mut alice = world.sessions[0].open(&mut world.feps[0], &config, None).unwrap();
    for n in 0..PEERS {
        let (peer, hop) = (Addr(10 + n), ip(Addr(10 + n)));
        world.peers[0].set(peer, Err(Unreachable::Resolving { hop, asked: 1 }));
        alice.send_datagram(Source { peer, process: 0 }, extent(0, 8), 0, n.into()).unwrap();
    }
    (0..20).for_each(|_| world.step(1));
    assert_eq!(world.sessions[0].held_datagrams(), PEERS as usize);
    let steps = crate::steps::of(|| (0..1000).for_each(|_| world.step(1)));
    assert_eq!(steps, 0);
    world.peers[0].set(Addr(17), Ok(()));
    assert_eq!(crate::steps::of(|| (0..1000).for_each(|_| world.step(1))), 1);
    let sent: Vec<_> = heard(&mut alice).into_iter().map(|(context, _)| context).collect();
    assert_eq!(sent, [7]);
    drop(alice);
    world.assert_nothing_is_left();
}

/// Its number can be had again only when its session is gone, and its receives are gone with it.
#[test]
fn an_application_for_datagrams_alone_refuses_messages_and_has_its_number_to_itself() {
    let mut world = World::new();
    let only = SessionConfig { only_datagrams: true, ..SMALL };
    let mut alice = world.open(0);
    for round in 0..3 {
        let mut bob = world.sessions[1].open(&mut world.feps[1], &only, Some(77)).unwrap();
        let taken = world.sessions[1].open(&mut world.feps[1], &SMALL, Some(77));
        assert_eq!(taken.err().map(|error| error.to_string()).as_deref(), Some("process 77 is open already"));
        bob.receive_datagram(extent(0, 10), 1).unwrap();
        bob.receive_datagram(extent(0, 10), 2).unwrap();
        bob.receive(extent(0, 10), None, Matching::Untagged, 3).unwrap();
        let (context, request, error) = refused(&world.event(&mut bob));
        assert_eq!((context, request, error), (3, Request::Receive, CallError::ProcessNotOpen(77)));
        let connection = alice.connect(Addr(1), to(&bob), 4).unwrap();
        alice.send(connection, extent(0, 10), None, 0, 5).unwrap();
        assert!(matches!(world.event(&mut alice).report, Report::Connected { .. }));
        let Report::Sent { result, .. } = world.event(&mut alice).report else { panic!("it was not sent") };
        assert_eq!(result, Err(SendError::Answered(crate::wire::ses::ReturnCode::BAD_PID)), "round {round}");
        alice.close(connection).unwrap();
        assert!(matches!(world.event(&mut alice).report, Report::Closed { .. }));
        drop(bob);
        settle(&mut world);
        assert_eq!(world.feps[1].leaks().collect::<Vec<_>>(), [""; 0]);
        assert_eq!(world.feps[1].close_process(77), Err(CallError::ProcessNotOpen(77)));
    }
    drop(alice);
    world.assert_nothing_is_left();
}

/// The packets that leave side 0 of the world, without those that answer.
fn leaving(world: &mut World) -> Vec<Packet> {
    let mut left = Vec::new();
    world.step_through(100, |packet| {
        if packet.net.src == Addr(0) {
            left.push(*packet);
        }
        true
    });
    left
}

/// One with many datagrams and one with few: both leave in turn. Neither holds back messages of a third.
#[test]
fn applications_take_turns_with_their_datagrams_and_messages() {
    let mut world = World::new();
    let (mut many, mut few, mut third) = (world.open(0), world.open(0), world.open(0));
    let mut bob = world.open(1);
    bob.receive(extent(0, 20_000), None, Matching::Untagged, 0).unwrap();
    let connection = third.connect(Addr(1), to(&bob), 0).unwrap();
    third.send(connection, extent(0, 20_000), None, 0, 0).unwrap();
    // As many as its ring of commands takes at a time.
    for context in 0..8 {
        many.send_datagram(of(&bob, 1), extent(0, 1000), 1, context).unwrap();
    }
    for context in 0..2 {
        few.send_datagram(of(&bob, 1), extent(0, 1000), 2, context).unwrap();
    }
    let order: Vec<_> = leaving(&mut world)
        .iter()
        .map(|packet| match (&packet.pds, &packet.ses) {
            (Pds::Uud(_), Ses::Standard(request)) if request.initiator == many.process().into() => 'm',
            (Pds::Uud(_), _) => 'f',
            _ => '.',
        })
        .collect();
    assert_eq!(order[..8], ['m', 'f', '.', 'm', 'f', '.', 'm', '.'], "{order:?}");
    settle(&mut world);
    drop((many, few, third, bob));
    world.assert_nothing_is_left();
}

/// Datagrams of an application that is gone do not leave any more.
#[test]
fn what_has_not_left_ends_with_its_application() {
    let mut world = World::new();
    let (mut alice, mut bob) = (world.open(0), world.open(1));
    bob.receive_datagram(extent(0, 10), 1).unwrap();
    world.step(1);
    for context in 0..4 {
        alice.send_datagram(of(&bob, 1), extent(0, 10), 0, context).unwrap();
    }
    // Commands are executed, and no packet leaves.
    world.step(0);
    assert!(world.feps[0].wants_to_transmit());
    drop(alice);
    settle(&mut world);
    assert_eq!((heard(&mut bob).len(), world.feps[0].counters().datagrams_sent), (0, 0));
    drop(bob);
    world.assert_nothing_is_left();
}

/// A peer whose Ethernet address is being asked for: its datagrams leave with the answer.
#[test]
fn datagrams_wait_for_the_answer_of_a_peer_that_is_being_asked() {
    let mut world = World::new();
    let (mut alice, mut bob) = (world.open(0), world.open(1));
    let hop = ip(Addr(1));
    world.peers[0].set(Addr(1), Err(Unreachable::Resolving { hop, asked: 1 }));
    for context in 0..3 {
        bob.receive_datagram(extent(0, 10), context).unwrap();
    }
    let held = [1, 2, 3].map(|context| alice.send_datagram(of(&bob, 1), extent(0, 10), 0, context).unwrap());
    settle(&mut world);
    assert_eq!((heard(&mut alice).len(), world.sessions[0].held_datagrams()), (0, 3));
    alice.cancel(held[1]).unwrap();
    world.step(1);
    let cancelled = heard(&mut alice);
    let is_cancelled = matches!(cancelled[..], [(2, Report::Sent { result: Err(SendError::Cancelled), .. })]);
    assert!(is_cancelled, "{cancelled:?}");
    world.peers[0].set(Addr(1), Ok(()));
    settle(&mut world);
    let sent: Vec<_> = heard(&mut alice).into_iter().map(|(context, _)| context).collect();
    assert_eq!((sent, heard(&mut bob).len(), world.sessions[0].held_datagrams()), (vec![1, 3], 2, 0));
    // One that is held ends with its application.
    world.peers[0].set(Addr(1), Err(Unreachable::Resolving { hop, asked: 2 }));
    alice.send_datagram(of(&bob, 1), extent(0, 10), 0, 4).unwrap();
    settle(&mut world);
    drop((alice, bob));
    world.assert_nothing_is_left();
}

#[test]
fn datagrams_to_a_peer_that_does_not_answer_are_refused() {
    let (mut side, _deaf) = alone();
    let mut client = side.open();
    let mut now = weft_cc::Time::ZERO;
    let to = |peer| Source { peer, process: 1 };
    client.send_datagram(to(FAR), extent(0, 10), 0, 1).unwrap();
    client.send_datagram(to(Addr(7)), extent(0, 10), 0, 2).unwrap();
    let (context, request, error) = refused(&side.event(&mut now, &mut client));
    let why = Unreachable::Unknown(Addr(7));
    assert_eq!((context, request), (2, Request::SendDatagram));
    assert_eq!(error, CallError::Unreachable { peer: Addr(7), why });
    let (context, _, error) = refused(&side.event(&mut now, &mut client));
    assert!(
        context == 1
            && matches!(error, CallError::Unreachable { peer: FAR, why: Unreachable::NoAnswer { .. } })
    );
    assert!(now.since(weft_cc::Time::ZERO) < LONGEST + TURN);
    // It is known by now, so the next one is refused at once.
    client.send_datagram(to(FAR), extent(0, 10), 0, 3).unwrap();
    side.turn(now);
    assert_eq!(refused(&client.poll().unwrap().unwrap()).0, 3);
    side.assert_nothing_is_left(now, client);
}

/// Far more than leave in one turn: each is posted in its turn, and none is forgotten.
#[test]
fn many_that_were_held_are_let_go_some_in_each_turn() {
    const COUNT: u32 = 300;
    let mut world = World::new();
    let roomy = SessionConfig { commands: 512, reports: 512, operations: COUNT, ..SMALL };
    let mut alice = world.sessions[0].open(&mut world.feps[0], &roomy, None).unwrap();
    let bob = world.open(1);
    world.peers[0].set(Addr(1), Err(Unreachable::Resolving { hop: ip(Addr(1)), asked: 1 }));
    for context in 0..u64::from(COUNT) {
        alice.send_datagram(of(&bob, 1), extent(0, 10), 0, context).unwrap();
    }
    settle(&mut world);
    assert_eq!(world.sessions[0].held_datagrams(), COUNT as usize);
    world.peers[0].set(Addr(1), Ok(()));
    world.serve(0);
    assert_eq!(world.sessions[0].held_datagrams(), COUNT as usize - 32, "in one turn");
    settle(&mut world);
    assert_eq!(heard(&mut alice).len(), COUNT as usize);
    assert_eq!(world.feps[0].counters().datagrams_sent, COUNT.into());
    drop((alice, bob));
    world.assert_nothing_is_left();
}

/// One application has so many that letting them go takes many turns: another one does not wait for them.
#[test]
fn held_datagrams_of_one_application_do_not_delay_those_of_another() {
    const COUNT: u32 = 300;
    let mut world = World::new();
    let roomy = SessionConfig { commands: 512, reports: 512, operations: COUNT, ..SMALL };
    let mut many = world.sessions[0].open(&mut world.feps[0], &roomy, None).unwrap();
    let (mut few, mut bob) = (world.open(0), world.open(1));
    world.peers[0].set(Addr(1), Err(Unreachable::Resolving { hop: ip(Addr(1)), asked: 1 }));
    for context in 0..u64::from(COUNT) {
        many.send_datagram(of(&bob, 1), extent(0, 10), 1, context).unwrap();
    }
    settle(&mut world);
    few.send_datagram(of(&bob, 1), extent(0, 10), 2, 0).unwrap();
    bob.receive_datagram(extent(0, 10), 0).unwrap();
    bob.receive_datagram(extent(0, 10), 1).unwrap();
    settle(&mut world);
    world.peers[0].set(Addr(1), Ok(()));
    world.step(2);
    let from: Vec<_> = heard(&mut bob)
        .iter()
        .map(|(_, report)| match report {
            Report::Received { header_data, result: Ok(()), .. } => *header_data,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(from, [1, 2], "one of each in the turn in which the peer has answered");
    settle(&mut world);
    assert_eq!((heard(&mut many).len(), heard(&mut few).len()), (COUNT as usize, 1));
    drop((many, few, bob));
    world.assert_nothing_is_left();
}

/// The peer is asked again while they are being refused: they have waited for the first answer.
#[test]
fn held_datagrams_are_all_refused_for_the_reason_that_ended_their_wait() {
    const COUNT: u32 = 300;
    let mut world = World::new();
    let roomy = SessionConfig { commands: 512, reports: 512, operations: COUNT, ..SMALL };
    let mut alice = world.sessions[0].open(&mut world.feps[0], &roomy, None).unwrap();
    let bob = world.open(1);
    let hop = ip(Addr(1));
    world.peers[0].set(Addr(1), Err(Unreachable::Resolving { hop, asked: 1 }));
    for context in 0..u64::from(COUNT) {
        alice.send_datagram(of(&bob, 1), extent(0, 10), 0, context).unwrap();
    }
    settle(&mut world);
    let why = Unreachable::NoAnswer { hop };
    world.peers[0].set(Addr(1), Err(why));
    world.serve(0);
    world.peers[0].set(Addr(1), Err(Unreachable::Resolving { hop, asked: 1 }));
    settle(&mut world);
    let mut count = 0;
    while let Some(event) = alice.poll().unwrap() {
        let expected = (Request::SendDatagram, CallError::Unreachable { peer: Addr(1), why });
        let (_, request, error) = refused(&event);
        assert_eq!((request, error), expected);
        count += 1;
    }
    assert_eq!(count, COUNT);
    drop((alice, bob));
    world.assert_nothing_is_left();
}

/// Neither those to a peer that has not answered yet, nor those that are being let go, and none of others.
#[test]
fn held_datagrams_of_an_application_that_leaves_end_and_those_of_others_stay() {
    const COUNT: u32 = 300;
    let mut world = World::new();
    let roomy = SessionConfig { commands: 512, reports: 512, operations: COUNT, ..SMALL };
    for has_answered in [false, true] {
        let mut many = world.sessions[0].open(&mut world.feps[0], &roomy, None).unwrap();
        let (mut few, mut bob) = (world.open(0), world.open(1));
        for context in 0..4 {
            bob.receive_datagram(extent(0, 10), context).unwrap();
        }
        world.peers[0].set(Addr(1), Err(Unreachable::Resolving { hop: ip(Addr(1)), asked: 1 }));
        for context in 0..u64::from(COUNT) {
            // None of them meets a receive.
            many.send_datagram(Source { peer: Addr(1), process: 9 }, extent(0, 10), 1, context).unwrap();
        }
        for context in 0..4 {
            few.send_datagram(of(&bob, 1), extent(0, 10), 2, context).unwrap();
        }
        settle(&mut world);
        if has_answered {
            world.peers[0].set(Addr(1), Ok(()));
            world.serve(0);
            assert!(world.sessions[0].held_datagrams() > 0, "some are left for the next turn");
        } else {
            assert_eq!(world.sessions[0].held_datagrams(), COUNT as usize + 4);
        }
        drop(many);
        let others = if has_answered { 0 } else { 4 };
        let mut turns = 0;
        while world.sessions[0].held_datagrams() > others {
            let steps = crate::steps::of(|| world.serve(0));
            assert!(steps <= 1, "{steps} steps in a turn");
            turns += 1;
            assert!(turns < 10 * COUNT, "{} are left", world.sessions[0].held_datagrams());
        }
        assert_eq!(world.sessions[0].held_datagrams(), others);
        world.peers[0].set(Addr(1), Ok(()));
        settle(&mut world);
        assert_eq!((heard(&mut few).len(), heard(&mut bob).len()), (4, 4));
        drop((few, bob));
        settle(&mut world);
        world.assert_nothing_is_left();
    }
}

/// The job of a datagram that waits is that of its process when it was posted.
#[test]
fn a_datagram_that_waits_keeps_its_job() {
    let mut world = World::new();
    let job = |n| crate::fep::JobId::new(n).unwrap();
    let fep = &mut world.feps[0];
    fep.open_process(5).unwrap();
    fep.set_job(5, job(3)).unwrap();
    let datagram =
        Datagram { buffer: Buffer::Heap(vec![1]), peer: Addr(1), process: 6, header_data: 0, context: 0 };
    assert!(fep.post_datagram_of(5, datagram).is_ok());
    fep.set_job(5, job(4)).unwrap();
    let left = fep.poll_transmit(world.now).unwrap().packet;
    let Ses::Standard(request) = left.ses else { panic!("{left:?}") };
    assert_eq!((request.job_id, request.initiator), (3, 5));
}
