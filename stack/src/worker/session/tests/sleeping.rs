//! Applications and workers that sleep, or are gone.

use std::thread;
use std::time::{Duration, Instant};

use super::*;

/// Longer than any machine takes to wake a thread, and than the test may take.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn a_sleeping_application_is_woken_by_its_report() {
    let mut world = World::new();
    let mut client = world.open(0);
    let receive = client.receive(extent(0, 1), None, Matching::Untagged, 5).unwrap();
    client.cancel(receive).unwrap();
    let sleeper = thread::spawn(move || {
        let started = Instant::now();
        loop {
            if let Some(event) = client.poll().unwrap() {
                return (event.context, started.elapsed());
            }
            client.wait(LONG).unwrap();
        }
    });
    thread::sleep(Duration::from_millis(20));
    world.step(1);
    let (context, slept) = sleeper.join().unwrap();
    assert!(context == 5 && slept < LONG);
}

#[test]
fn a_sleeping_worker_is_woken_by_a_command() {
    let mut world = World::new();
    let mut client = world.open(0);
    world.step(1);
    let sessions = &mut world.sessions[0];
    assert!(sessions.may_sleep(&world.feps[0]));
    let asleep = |sessions: &Sessions| {
        let now = Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 });
        let mut all: Vec<_> = sessions
            .links()
            .map(|link| rustix::event::PollFd::from_borrowed_fd(link, rustix::event::PollFlags::IN))
            .collect();
        rustix::event::poll(&mut all, now).unwrap() == 0
    };
    assert!(asleep(sessions));
    client.receive(extent(0, 1), None, Matching::Untagged, 5).unwrap();
    assert!(!asleep(sessions));
    sessions.woken();
    sessions.check(&mut world.feps[0], world.now);
    assert!(asleep(sessions), "what woke it is taken");
    // One that does not sleep costs its applications nothing.
    client.receive(extent(0, 1), None, Matching::Untagged, 5).unwrap();
    assert!(asleep(sessions));
    assert!(!sessions.may_sleep(&world.feps[0]), "there is something to do");
    sessions.woken();
    world.step(1);
    assert!(world.sessions[0].may_sleep(&world.feps[0]));
}

/// Whether something can be read from the client's descriptor.
fn is_readable(client: &Client) -> bool {
    let now = Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 });
    let mut ends = [rustix::event::PollFd::new(client, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut ends, now).unwrap() == 1
}

#[test]
fn an_armed_client_becomes_readable_with_its_next_report_and_quiet_when_it_is_polled() {
    let mut world = World::new();
    let mut client = world.open(0);
    let report = |world: &mut World, client: &mut Client| {
        let receive = client.receive(extent(0, 1), None, Matching::Untagged, 5).unwrap();
        client.cancel(receive).unwrap();
        world.step(1);
    };
    // A client that is not armed costs the worker no system call.
    report(&mut world, &mut client);
    assert!(!is_readable(&client));
    assert_eq!(client.arm(), Ok(false), "there is a report already");
    assert_eq!(client.poll().unwrap().map(|event| event.context), Some(5));
    for _ in 0..3 {
        assert_eq!(client.arm(), Ok(true));
        world.step(1);
        assert!(!is_readable(&client));
        report(&mut world, &mut client);
        assert!(is_readable(&client));
        assert_eq!(client.poll().unwrap().map(|event| event.context), Some(5));
        assert!(!is_readable(&client));
    }
    assert_eq!(client.arm(), Ok(true));
    client.disarm().unwrap();
    report(&mut world, &mut client);
    assert!(!is_readable(&client));
    assert!(client.poll().unwrap().is_some());
    // A worker that dies.
    assert_eq!(client.arm(), Ok(true));
    drop(world);
    assert!(is_readable(&client));
    assert_eq!(client.poll(), Err(ClientError::Gone));
}

#[test]
fn clients_notice_that_the_worker_is_gone_when_they_poll_and_when_they_sleep() {
    let mut world = World::new();
    let (mut polls, mut sleeps) = (world.open(0), world.open(0));
    let receive = polls.receive(extent(0, 1), None, Matching::Untagged, 5).unwrap();
    polls.cancel(receive).unwrap();
    world.step(1);
    let sleeper = thread::spawn(move || {
        let started = Instant::now();
        (sleeps.wait(LONG), started.elapsed())
    });
    thread::sleep(Duration::from_millis(20));
    drop(world);
    assert!(matches!(polls.poll(), Ok(Some(Event { context: 5, .. }))), "what it had reported counts");
    assert_eq!(polls.poll(), Err(ClientError::Gone));
    let (outcome, slept) = sleeper.join().unwrap();
    assert!(outcome == Err(ClientError::Gone) && slept < LONG, "{outcome:?} after {slept:?}");
}

/// A process that is killed sets no flags in its rings: only the socket tells.
#[test]
fn killed_processes_are_noticed_by_their_sockets() {
    let mut world = World::new();
    let region = Region::allocate(SMALL.layout().unwrap().total).unwrap();
    let (own, other) = Link::pair().unwrap();
    world.sessions[0].admit(&mut world.feps[0], &SMALL, None, &region, own, None).unwrap();
    // It lives to the end, so that no flag is set.
    let mut deaf = Client::new(&SMALL, &region, other, None, Addr(0), 1).unwrap();
    world.step(1);
    world.sessions[0].check(&mut world.feps[0], world.now);
    assert_eq!(world.sessions[0].len(), 1, "alive");
    deaf.hang_up();
    world.sessions[0].check(&mut world.feps[0], world.now);
    let (_, _, how) = world.sessions[0].poll_ended().unwrap();
    assert_eq!(how, Ended::Died);
    world.assert_nothing_is_left();

    // And the other way: the worker.
    let (own, other) = Link::pair().unwrap();
    let region = Region::allocate(SMALL.layout().unwrap().total).unwrap();
    let mut client = Client::new(&SMALL, &region, other, None, Addr(0), 1).unwrap();
    for _ in 0..10_000 {
        assert_eq!(client.poll(), Ok(None));
    }
    drop(own);
    let polls = (0..10_000).find(|_| client.poll() == Err(ClientError::Gone));
    assert!(polls.is_some_and(|polls| polls <= 4096), "{polls:?}");
}
