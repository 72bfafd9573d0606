//! Applications that do not read their reports.

use core::num::NonZeroU32;

use super::waiting::{send, sender};
use super::*;
use crate::worker::session::application::REPORTS_PER_TURN;

const ANY: Matching = Matching::Tagged { tag: 0, ignore: !0 };

/// A session of the second endpoint with a ring of so many reports.
fn open(world: &mut World, operations: u32, reports: u32) -> Client {
    let config = SessionConfig { operations, reports, commands: 4096, ..SMALL };
    world.sessions[1].open(&mut world.feps[1], &config, None).unwrap()
}

/// Each receive gets all messages that arrive before it is known that nobody reads their reports. Nothing is lost: what is
/// received then is reported, and the others wait.
#[test]
fn receives_for_many_messages_end_if_more_reports_wait_than_there_are_operations() {
    const RECEIVES: u64 = 256;
    const MESSAGES: u64 = 6_000;
    let mut world = World::new();
    let mut bob = open(&mut world, RECEIVES as u32, 8);
    let receive = |bob: &mut Client, context| {
        bob.receive_many(extent(0, 16 << 10), None, ANY, NonZeroU32::MIN, context).unwrap();
    };
    (0..RECEIVES).for_each(|n| receive(&mut bob, n));
    (0..RECEIVES).for_each(|_| world.serve(1));
    let connection = sender(&mut world, bob.process());
    send(&mut world, connection, 1, 0..MESSAGES);
    let unread = world.sessions[1].unread(bob.process()) as u64;
    assert!(unread <= 3 * RECEIVES, "{unread} reports wait");
    // One for each receive says that it has ended.
    let (mut ended, mut got) = (0, 0);
    while ended < RECEIVES {
        match world.event(&mut bob).report {
            Report::Received { tag, more: true, result: Ok(()), .. } => {
                assert_eq!(tag, Some(got));
                got += 1;
            }
            Report::Received { more: false, result: Err(ReceiveError::Cancelled), .. } => ended += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!((1..3 * RECEIVES).contains(&got), "{got}");
    // Its ring of eight reports is full again in some turns.
    receive(&mut bob, 0);
    while got < MESSAGES {
        match world.event(&mut bob).report {
            Report::Received { tag, offset, more: true, result: Ok(()), .. } => {
                let mut byte = [0];
                bob.read(offset.into(), &mut byte).unwrap();
                assert_eq!((tag, byte.to_vec()), (Some(got), content(got, 1)));
                got += 1;
            }
            Report::Received { more: false, result: Err(ReceiveError::Cancelled), .. } => {
                receive(&mut bob, 0)
            }
            other => panic!("{other:?}"),
        }
    }
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
