//! Quiet applications, of which the worker looks at a part in each turn: none waits for long, and nothing of theirs is lost.

use super::*;
use crate::worker::session::attention::PERIOD;

/// More applications than are looked at in each turn all the time.
const MANY: usize = 70;

/// Longer than it takes until applications that do nothing are quiet.
const TURNS: usize = 100;

/// A world whose first endpoint has many applications that have done nothing for long.
fn quiet() -> (World, Vec<Client>) {
    let mut world = World::new();
    world.sessions[0] = Sessions::new(MANY);
    let clients = (0..MANY).map(|_| world.open(0)).collect();
    (0..TURNS).for_each(|_| world.serve(0));
    (world, clients)
}

/// A command that is answered in the turn in which it is executed.
fn ask(client: &mut Client) {
    let receive = client.receive(extent(0, 1), None, Matching::Untagged, 5).unwrap();
    client.cancel(receive).unwrap();
}

/// The turns until it is answered.
fn turns_until_answer(world: &mut World, client: &mut Client) -> u32 {
    let answer = (1..100).find(|_| {
        world.serve(0);
        client.poll().unwrap().is_some_and(|event| event.context == 5)
    });
    answer.expect("it is answered")
}

#[test]
fn a_command_of_a_quiet_application_is_executed_within_a_period_and_the_next_ones_at_once() {
    let (mut world, mut clients) = quiet();
    let mut waited = [0; PERIOD as usize + 1];
    for client in &mut clients {
        ask(client);
        let turns = turns_until_answer(&mut world, client);
        assert!(turns <= PERIOD, "{turns} turns");
        waited[turns as usize] += 1;
        for _ in 0..3 {
            ask(client);
            assert_eq!(turns_until_answer(&mut world, client), 1, "it is not quiet any more");
        }
    }
    assert!(waited[2..].iter().sum::<u32>() > 30, "most of them had been quiet: {waited:?}");
}

#[test]
fn an_application_that_gets_a_message_can_answer_it_at_once() {
    let (mut world, mut clients) = quiet();
    let server = &mut clients[33];
    server.receive(extent(0, 100), None, Matching::Untagged, 7).unwrap();
    turns_until_idle(&mut world);
    let mut peer = world.open(1);
    let connection = peer.connect(Addr(0), to(server), 1).unwrap();
    peer.send(connection, extent(0, 100), None, 0, 2).unwrap();
    while server.poll().unwrap().is_none_or(|event| event.context != 7) {
        world.step(4);
    }
    ask(server);
    assert_eq!(turns_until_answer(&mut world, server), 1);
}

fn turns_until_idle(world: &mut World) {
    (0..TURNS).for_each(|_| world.serve(0));
}

#[test]
fn an_owner_does_not_sleep_over_a_command_of_a_quiet_application_and_executes_it_in_the_next_turn() {
    let (mut world, mut clients) = quiet();
    for client in &mut clients {
        turns_until_idle(&mut world);
        // It is given before the owner wants to sleep.
        ask(client);
        assert!(!world.sessions[0].may_sleep(&world.feps[0]));
        world.sessions[0].woken();
        assert_eq!(turns_until_answer(&mut world, client), 1);
        // It is given while the owner sleeps.
        turns_until_idle(&mut world);
        assert!(world.sessions[0].may_sleep(&world.feps[0]));
        ask(client);
        world.sessions[0].woken();
        assert_eq!(turns_until_answer(&mut world, client), 1);
    }
}

/// The owner may find something else to do in its last turn, and need not tell the applications that it is awake before the next.
#[test]
fn a_command_that_keeps_an_owner_awake_is_executed_in_the_next_turn() {
    let (mut world, mut clients) = quiet();
    ask(&mut clients[50]);
    assert!(!world.sessions[0].may_sleep(&world.feps[0]));
    assert_eq!(turns_until_answer(&mut world, &mut clients[50]), 1);
    world.sessions[0].woken();
}

/// An owner that was woken may serve before it says that it is awake.
#[test]
fn a_command_that_ends_a_sleep_is_executed_in_the_next_turn() {
    let (mut world, mut clients) = quiet();
    for client in &mut clients {
        turns_until_idle(&mut world);
        assert!(world.sessions[0].may_sleep(&world.feps[0]));
        ask(client);
        assert_eq!(turns_until_answer(&mut world, client), 1);
        world.sessions[0].woken();
    }
}

#[test]
fn quiet_applications_that_leave_are_noticed_within_a_period() {
    let (mut world, mut clients) = quiet();
    clients.truncate(20);
    for _ in 0..PERIOD {
        world.serve(0);
    }
    let left = std::iter::from_fn(|| world.sessions[0].poll_ended());
    assert_eq!(left.filter(|(.., how)| *how == Ended::Left).count(), MANY - 20);
    drop(clients);
    world.assert_nothing_is_left();
}
