//! How processes, and the applications of each, share the commands that the worker executes in a turn.

use super::*;
use crate::ses::HAND_OVER;
use crate::worker::session::COMMANDS_PER_TURN;
use crate::worker::session::put_off::BYTES_PER_TURN;

/// As many commands as are given at once.
const POSTED: u32 = 4 * COMMANDS_PER_TURN as u32;

/// Commands of applications with a backlog after which a turn leaves the others to the next ones.
const ENOUGH: usize = COMMANDS_PER_TURN / 4;

/// A server whose applications belong to these processes.
fn server_of(processes: &[u32]) -> (World, Vec<Client>) {
    let mut world = World::new();
    world.sessions[0] = Sessions::new(40);
    let config = SessionConfig { operations: 2 * POSTED, commands: POSTED, ..SMALL };
    let join = |process: &u32| {
        let tenant = Some(std::process::id() + 1 + process);
        world.sessions[0].join_of(&mut world.feps[0], tenant, &config).unwrap()
    };
    let clients = processes.iter().map(join).collect();
    (world, clients)
}

/// The commands that were executed of each application, in order, in one turn.
fn turn(world: &mut World) -> Vec<usize> {
    let before = world.sessions[0].operations();
    world.sessions[0].serve(&mut world.feps[0], world.now);
    let after = world.sessions[0].operations();
    after.iter().zip(before).map(|(after, before)| after - before).collect()
}

fn post(clients: &mut [Client], receives: usize) {
    for client in clients {
        (0..receives).for_each(|_| _ = client.receive(extent(0, 1), None, Matching::Untagged, 0).unwrap());
    }
}

#[test]
fn applications_of_a_process_share_the_commands_of_a_turn_and_take_turns() {
    let (mut world, mut clients) = server_of(&[0, 0, 1, 0]);
    post(&mut clients, 1);
    turn(&mut world);
    post(&mut clients, COMMANDS_PER_TURN);
    post(&mut clients[2..3], 2 * COMMANDS_PER_TURN);
    let half = COMMANDS_PER_TURN / 2;
    let (mut all, mut turns) = ([0; 4], Vec::new());
    while !world.sessions[0].have_obeyed() {
        let executed = turn(&mut world);
        all.iter_mut().zip(&executed).for_each(|(all, executed)| *all += executed);
        turns.push(executed);
        let of_process = all[0] + all[1] + all[3];
        assert!(of_process.abs_diff(all[2]) <= half, "{turns:?}");
        if of_process == 3 * half {
            assert_eq!((all[0], all[1], all[3]), (half, half, half), "{turns:?}");
        }
        assert!(turns.len() < 50, "{turns:?}");
    }
    let (once, of_three) = (COMMANDS_PER_TURN, 3 * COMMANDS_PER_TURN);
    assert_eq!(all, [once, once, of_three, once], "none is lost");
}

#[test]
fn processes_share_the_commands_of_a_turn_also_with_those_that_have_some_in_every_other_turn_only() {
    let (mut world, mut clients) = server_of(&[0, 1, 2, 3, 4, 5, 6, 7]);
    let even = COMMANDS_PER_TURN / 8;
    post(&mut clients, 1);
    assert_eq!(turn(&mut world), [1; 8]);
    for n in 0..6 {
        if n % 2 == 1 {
            // The others have no commands in this one.
            post(&mut clients[..1], even);
            turn(&mut world);
        }
        post(&mut clients, 2 * even);
        let executed = turn(&mut world);
        assert!(executed.iter().all(|count| (even..=even + 1).contains(count)), "{executed:?}");
        while !world.sessions[0].have_obeyed() {
            turn(&mut world);
        }
    }
    // One that is alone soon has a turn for itself again.
    (0..10).for_each(|_| _ = turn(&mut world));
    post(&mut clients[..1], COMMANDS_PER_TURN);
    assert_eq!(turn(&mut world)[0], COMMANDS_PER_TURN);
}

#[test]
fn what_an_application_leaves_of_a_turn_is_for_the_others_of_its_process() {
    let (mut world, mut clients) = server_of(&[0, 0]);
    post(&mut clients[..1], 3);
    post(&mut clients[1..], 2 * COMMANDS_PER_TURN);
    assert_eq!(turn(&mut world), [3, COMMANDS_PER_TURN - 3]);
    assert_eq!(turn(&mut world), [0, COMMANDS_PER_TURN]);
}

#[test]
fn what_one_application_does_too_much_the_others_of_its_process_make_up_for() {
    let (mut world, mut clients) = server_of(&[0, 0, 1]);
    turn(&mut world);
    world.sessions[0].spend(0, 3 * BYTES_PER_TURN + 1);
    post(&mut clients, 2 * COMMANDS_PER_TURN);
    let turns: Vec<Vec<usize>> = (0..6).map(|_| turn(&mut world)).collect();
    assert_eq!(turns[0], [0, 0, COMMANDS_PER_TURN]);
    let first = turns.iter().position(|turn| turn[0] + turn[1] > 0);
    assert!(first >= Some(2), "{turns:?}");
}

/// All of them have done nothing for a while, so that the worker does not know how many will come.
#[test]
fn processes_that_all_come_at_once_make_no_turn_much_longer() {
    let (mut world, mut clients) = server_of(&[0, 1, 2, 3, 4, 5, 6, 7]);
    for _ in 0..3 {
        (0..10).for_each(|_| _ = turn(&mut world));
        post(&mut clients, COMMANDS_PER_TURN);
        let executed = turn(&mut world);
        assert_eq!(executed, [COMMANDS_PER_TURN, 1, 1, 1, 1, 1, 1, 1]);
        while !world.sessions[0].have_obeyed() {
            assert!(turn(&mut world).iter().sum::<usize>() <= COMMANDS_PER_TURN);
        }
    }
}

#[test]
fn a_process_saves_bytes_for_a_message_that_has_waited() {
    let (mut world, mut clients) = server_of(&[0, 1, 2, 3, 4, 5, 6, 7]);
    let busy_turn = |world: &mut World, clients: &mut [Client]| {
        (0..8).for_each(|slot| world.sessions[0].spend(slot, 1));
        post(clients, 1);
        turn(world);
    };
    (0..20).for_each(|_| busy_turn(&mut world, &mut clients));
    // The part of each would be less.
    let (message, saved) = (HAND_OVER as i64, HAND_OVER as i64 + BYTES_PER_TURN / 16);
    assert_eq!(world.sessions[0].bytes_left(0), saved);
    world.sessions[0].spend(0, message);
    assert!(world.sessions[0].bytes_left(0) > 0, "it makes up for nothing");
    // One that goes on has no more than its part.
    for _ in 0..20 {
        world.sessions[0].spend(0, BYTES_PER_TURN / 8 + 1);
        busy_turn(&mut world, &mut clients);
    }
    assert!(world.sessions[0].bytes_left(0) < BYTES_PER_TURN / 8);
    // In a turn in which others have touched too much, the next one has its part.
    world.sessions[0].spend(1, 10 * BYTES_PER_TURN);
    assert_eq!(world.sessions[0].bytes_left(2), BYTES_PER_TURN / 8);
}

/// In each turn somebody else touches as much as there is for all, as a command may.
#[test]
fn those_that_touch_too_much_in_turn_leave_a_process_its_part() {
    let (mut world, mut clients) = server_of(&[0, 1, 2, 3, 4, 5, 6, 7]);
    (0..20).for_each(|_| {
        post(&mut clients, 1);
        turn(&mut world);
    });
    let mut touched = 0;
    const TURNS: i64 = 64;
    for _ in 0..TURNS {
        post(&mut clients, 1);
        turn(&mut world);
        if let Some(other) = (0..7).find(|slot| world.sessions[0].bytes_left(*slot) > 0) {
            world.sessions[0].spend(other, BYTES_PER_TURN);
        }
        let own = world.sessions[0].bytes_left(7).max(0);
        world.sessions[0].spend(7, own);
        touched += own;
    }
    assert!(touched >= TURNS * (BYTES_PER_TURN / 8) * 9 / 10, "{touched} bytes");
}

#[test]
fn further_applications_of_processes_have_what_the_turn_has_left() {
    let (mut world, mut clients) = server_of(&[0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5]);
    post(&mut clients, 1);
    turn(&mut world);
    (0..10).for_each(|_| _ = turn(&mut world));
    post(&mut clients[..6], 1);
    post(&mut clients[6..], COMMANDS_PER_TURN);
    let executed = turn(&mut world);
    assert_eq!(executed.iter().sum::<usize>(), COMMANDS_PER_TURN, "{executed:?}");
}

/// 31 processes that always have commands: a turn executes some of them, and packets come in between.
#[test]
fn processes_with_a_backlog_have_their_turns_in_several_turns_of_the_worker() {
    const PROCESSES: usize = 31;
    let (mut world, mut clients) = server_of(&core::array::from_fn::<u32, PROCESSES, _>(|n| n as u32));
    for _ in 0..2 {
        post(&mut clients, COMMANDS_PER_TURN);
        (0..20).for_each(|_| _ = turn(&mut world));
    }
    let turns: Vec<Vec<usize>> = (0..2 * PROCESSES.div_ceil(ENOUGH)).map(|_| turn(&mut world)).collect();
    for round in turns.chunks(PROCESSES.div_ceil(ENOUGH)) {
        assert!(round.iter().all(|turn| turn.iter().sum::<usize>() <= ENOUGH), "{turns:?}");
        let of_each = (0..PROCESSES).map(|n| round.iter().map(|turn| turn[n]).sum::<usize>());
        assert!(of_each.eq([1; PROCESSES]), "{turns:?}");
    }
}

/// Beside 31 processes that always have commands.
#[test]
fn an_application_without_a_backlog_has_its_turn_at_once() {
    let (mut world, mut clients) = server_of(&core::array::from_fn::<u32, 32, _>(|n| n as u32));
    let (often, seldom) = clients.split_at_mut(31);
    post(often, COMMANDS_PER_TURN);
    (0..10).for_each(|_| _ = turn(&mut world));
    for n in 0..10 {
        post(seldom, 1);
        let executed = turn(&mut world);
        assert_eq!(executed[31], 1, "{n}: {executed:?}");
        assert!(executed.iter().sum::<usize>() <= ENOUGH + 1, "{n}: {executed:?}");
        turn(&mut world);
    }
}

/// Of several processes, all of whose applications always have commands.
#[test]
fn each_application_of_each_process_has_its_turn() {
    const PROCESSES: [u32; 9] = [0, 0, 0, 0, 1, 1, 2, 1, 0];
    let (mut world, mut clients) = server_of(&PROCESSES);
    post(&mut clients, POSTED as usize);
    let mut all = [0; PROCESSES.len()];
    for _ in 0..40 {
        let executed = turn(&mut world);
        all.iter_mut().zip(&executed).for_each(|(all, executed)| *all += executed);
        for process in 0..3 {
            let of_process =
                || PROCESSES.iter().zip(&all).filter(|(of, _)| **of == process).map(|(_, all)| *all);
            let (least, most) = (of_process().min(), of_process().max());
            assert!(most.unwrap() - least.unwrap() <= COMMANDS_PER_TURN, "{all:?}");
        }
    }
    assert!(all.iter().all(|all| *all >= COMMANDS_PER_TURN / 3), "{all:?}");
    assert!(all.iter().all(|all| *all < POSTED as usize), "all have some left: {all:?}");
}

#[test]
fn a_process_alone_has_half_of_the_bytes_of_a_turn_and_all_of_them_after_one_without() {
    let (mut world, _clients) = server_of(&[0]);
    (0..10).for_each(|_| _ = turn(&mut world));
    for _ in 0..3 {
        assert_eq!(world.sessions[0].bytes_left(0), BYTES_PER_TURN);
        world.sessions[0].spend(0, BYTES_PER_TURN);
        for _ in 0..3 {
            turn(&mut world);
            assert_eq!(world.sessions[0].bytes_left(0), BYTES_PER_TURN / 2);
            world.sessions[0].spend(0, BYTES_PER_TURN / 2);
        }
        (0..2).for_each(|_| _ = turn(&mut world));
    }
}

/// None has touched any for a while, so that the worker does not know how many will.
#[test]
fn processes_that_touch_bytes_all_at_once_make_one_turn_longer_only() {
    let (mut world, mut clients) = server_of(&[0, 1, 2, 3, 4, 5, 6, 7]);
    let mut of_turn = |world: &mut World| {
        post(&mut clients, 1);
        turn(world);
        let touch = |slot| {
            let bytes = world.sessions[0].bytes_left(slot).max(0);
            world.sessions[0].spend(slot, bytes);
            bytes
        };
        (0..8).map(touch).sum::<i64>()
    };
    assert!(of_turn(&mut world) <= 3 * BYTES_PER_TURN, "1 + 1/2 + 1/3 and so on");
    for n in 1..20 {
        let bytes = of_turn(&mut world);
        // Some have still saved something in the first ones.
        let most = if n <= 2 { 2 * BYTES_PER_TURN } else { BYTES_PER_TURN + BYTES_PER_TURN / 8 };
        assert!(bytes <= most, "{bytes} in turn {n}");
    }
}
