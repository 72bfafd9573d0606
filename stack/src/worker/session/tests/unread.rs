//! Applications that do not read their reports.

use core::num::NonZeroU32;

use super::waiting::{post, send, sender};
use super::*;
use crate::worker::session::application::REPORTS_PER_TURN;

const ANY: Matching = Matching::Tagged { tag: 0, ignore: !0 };

/// A session of the second endpoint with a ring of so many reports.
fn open(world: &mut World, operations: u32, reports: u32) -> Client {
    let config = SessionConfig { operations, reports, commands: 4096, ..SMALL };
    world.sessions[1].open(&mut world.feps[1], &config, None).unwrap()
}

/// Their messages stay with the sender, and nothing is lost or cancelled. The ring of eight reports is full again and again.
#[test]
fn receives_for_many_messages_are_held_while_reports_wait() {
    hold_while_reports_wait(|_| ());
}

#[test]
fn receives_for_many_messages_are_held_while_reports_wait_however_many_their_application_allows() {
    hold_while_reports_wait(|bob| (0..3).for_each(|_| bob.allow_many(u64::MAX).unwrap()));
}

fn hold_while_reports_wait(prepare: impl FnOnce(&mut Client)) {
    const RECEIVES: u64 = 256;
    const MESSAGES: u64 = 2_000;
    let mut world = World::new();
    let mut bob = open(&mut world, RECEIVES as u32, 8);
    prepare(&mut bob);
    for n in 0..RECEIVES {
        bob.receive_many(extent(0, 16 << 10), None, ANY, NonZeroU32::MIN, n).unwrap();
    }
    (0..RECEIVES).for_each(|_| world.serve(1));
    let connection = sender(&mut world, bob.process());
    post(&mut world, connection, 1, 0..MESSAGES);
    (0..1_000).for_each(|_| world.step(64));
    let unread = world.sessions[1].unread(bob.process());
    assert!((1..=64).contains(&unread), "{unread} reports wait: as many as arrive in a turn at most");
    (0..10_000).for_each(|_| world.step(64));
    assert_eq!(world.sessions[1].unread(bob.process()), unread, "no further one is taken");
    for n in 0..MESSAGES {
        match world.event(&mut bob).report {
            Report::Received { tag, offset, more: true, result: Ok(()), .. } => {
                let mut byte = [0];
                bob.read(offset.into(), &mut byte).unwrap();
                assert_eq!((tag, byte.to_vec()), (Some(n), content(n, 1)));
            }
            other => panic!("{other:?}"),
        }
    }
    world.feps[0].abort(world.now, connection).unwrap();
    drop(bob);
    world.assert_nothing_is_left();
}

/// The rest stays with the sender.
#[test]
fn receives_for_many_messages_take_as_many_as_their_application_allows() {
    const MESSAGES: u64 = 40;
    let mut world = World::new();
    let mut bob = open(&mut world, 4, 64);
    let mut got = 0;
    let mut read = |world: &mut World, bob: &mut Client, count: u64| {
        for _ in 0..count {
            match world.event(bob).report {
                Report::Received { tag, more: true, result: Ok(()), .. } => assert_eq!(tag, Some(got)),
                other => panic!("{other:?}"),
            }
            got += 1;
        }
        (0..10_000).for_each(|_| world.step(64));
        assert!(bob.poll().unwrap().is_none(), "more than {got} messages");
    };
    bob.allow_many(0).unwrap();
    bob.receive_many(extent(0, 16 << 10), None, ANY, NonZeroU32::MIN, 1).unwrap();
    world.serve(1);
    let connection = sender(&mut world, bob.process());
    post(&mut world, connection, 1, 0..MESSAGES);
    read(&mut world, &mut bob, 0);
    bob.allow_many(3).unwrap();
    read(&mut world, &mut bob, 3);
    bob.allow_many(u64::MAX).unwrap();
    read(&mut world, &mut bob, MESSAGES - 3);
    world.feps[0].abort(world.now, connection).unwrap();
    drop(bob);
    world.assert_nothing_is_left();
}

#[test]
fn reports_that_wait_move_to_the_ring_in_several_turns() {
    const RING: u32 = 1024;
    const MESSAGES: u64 = 2 * RING as u64;
    let mut world = World::new();
    let mut bob = open(&mut world, MESSAGES as u32, RING);
    for n in 0..MESSAGES {
        bob.receive(extent(n, 1), None, ANY, n).unwrap();
    }
    (0..MESSAGES).for_each(|_| world.serve(1));
    let connection = sender(&mut world, bob.process());
    send(&mut world, connection, 1, 0..MESSAGES);
    assert_eq!(world.sessions[1].unread(bob.process()) as u64, MESSAGES - u64::from(RING));
    let read = |bob: &mut Client, next: u64| {
        let mut count = 0;
        while let Some(event) = bob.poll().unwrap() {
            assert_eq!(event.context, next + count);
            assert!(matches!(event.report, Report::Received { result: Ok(()), .. }), "{event:?}");
            count += 1;
        }
        count
    };
    let mut got = read(&mut bob, 0);
    assert_eq!(got, RING.into());
    let mut turns = 0;
    while got < MESSAGES {
        world.serve(1);
        let count = read(&mut bob, got);
        assert!((1..=REPORTS_PER_TURN as u64).contains(&count), "{count} in one turn");
        (got, turns) = (got + count, turns + 1);
    }
    assert_eq!(turns, MESSAGES.div_ceil(2).div_ceil(REPORTS_PER_TURN as u64));
    let mut bytes = vec![0; MESSAGES as usize];
    bob.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, (0..MESSAGES).flat_map(|n| content(n, 1)).collect::<Vec<_>>());
    world.feps[0].abort(world.now, connection).unwrap();
    drop(bob);
    world.assert_nothing_is_left();
}
