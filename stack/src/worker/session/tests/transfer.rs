//! Well-behaved applications.

use super::*;

#[test]
fn a_message_is_copied_from_memory_to_memory_and_nowhere_else() {
    let mut world = World::new();
    let (mut alice, mut bob) = (world.open(0), world.open(1));
    let bytes = content(1, 100_000);
    alice.write(1000, &bytes).unwrap();
    let sender = Source { peer: Addr(0), process: alice.process() };
    let receive = bob.receive(extent(5, 150_000), Some(sender), Matching::Tagged { tag: 9, ignore: 0 }, 21);
    receive.unwrap();
    let connection = alice.connect(Addr(1), to(&bob), 11).unwrap();
    alice.send(connection, extent(1000, 100_000), Some(9), 77, 12).unwrap();
    assert_eq!(world.event(&mut alice), Event { context: 11, report: Report::Connected { connection: 0 } });
    let Event { context: 12, report: Report::Sent { result: Ok(()), .. } } = world.event(&mut alice) else {
        panic!("not sent")
    };
    let received = Report::Received {
        operation: 0,
        source: Some(sender),
        tag: Some(9),
        header_data: 77,
        len: 100_000,
        offset: 0,
        more: false,
        result: Ok(()),
    };
    assert_eq!(world.event(&mut bob), Event { context: 21, report: received });
    let mut copy = vec![0; 100_000];
    bob.read(5, &mut copy).unwrap();
    assert!(copy == bytes);
    let mut around = [9; 6];
    bob.read(0, &mut around).unwrap();
    assert_eq!(around[..5], [0; 5], "only where it was to go");

    alice.close(connection).unwrap();
    let Event { context: 11, report: Report::Closed { peer: Addr(1), result: Ok(()), .. } } =
        world.event(&mut alice)
    else {
        panic!("not closed")
    };
    assert_eq!(alice.close(connection), Err(ClientError::Stale));
    drop((alice, bob));
    world.assert_nothing_is_left();
}

#[test]
fn each_process_gets_the_messages_that_name_it() {
    let mut world = World::new();
    let mut sender = world.open(0);
    let mut receivers = [world.open(1), world.open(1), world.open(1)];
    for receiver in &mut receivers {
        receiver.receive(extent(0, 8), None, Matching::Untagged, 0).unwrap();
    }
    // In another order than the receives were posted.
    for at in [2, 0, 1] {
        let process = receivers[at].process();
        sender.write(at as u64 * 8, &[at as u8; 8]).unwrap();
        let connection = sender.connect(Addr(1), to(&receivers[at]), 0).unwrap();
        sender.send(connection, extent(at as u64 * 8, 8), None, process.into(), 0).unwrap();
    }
    for (at, receiver) in receivers.iter_mut().enumerate() {
        let Report::Received { header_data, .. } = world.event(receiver).report else { panic!() };
        assert_eq!(header_data, receiver.process().into());
        let mut bytes = [0; 8];
        receiver.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [at as u8; 8]);
    }
}

/// Applications that share an endpoint are different senders, even if they send the same tag to the same application.
#[test]
fn each_application_is_a_sender_of_its_own() {
    let mut world = World::new();
    let (mut senders, mut bob) = ([world.open(0), world.open(0)], world.open(1));
    let [alice, ann] = [0, 1].map(|n: usize| Source { peer: Addr(0), process: senders[n].process() });
    let tag = Matching::Tagged { tag: 9, ignore: 0 };
    // The first receive is for the application that sends last; the last one is for either.
    for (n, from) in [Some(ann), Some(alice), None].into_iter().enumerate() {
        bob.receive(extent(5_000 * n as u64, 5_000), from, tag, n as u64).unwrap();
    }
    for (n, seed) in [(0, 1), (0, 2), (1, 3)] {
        let sender = &mut senders[n];
        sender.write(0, &content(seed, 5_000)).unwrap();
        let connection = sender.connect(Addr(1), to(&bob), 0).unwrap();
        sender.send(connection, extent(0, 5_000), Some(9), seed, 1).unwrap();
        while world.event(sender).context != 1 {}
    }
    for (context, from, seed) in [(1, alice, 1), (2, alice, 2), (0, ann, 3)] {
        let event = world.event(&mut bob);
        let Report::Received { source, header_data, result: Ok(()), .. } = event.report else {
            panic!("{event:?}")
        };
        assert_eq!((event.context, source, header_data), (context, Some(from), seed));
        let mut bytes = vec![0; 5_000];
        bob.read(5_000 * context, &mut bytes).unwrap();
        assert!(bytes == content(seed, 5_000), "message {seed}");
    }
}

#[test]
fn messages_to_a_process_that_does_not_exist_are_answered_with_bad_pid() {
    let mut world = World::new();
    let mut sender = world.open(0);
    let nobody = ConnectOptions { process: 4000, ..ConnectOptions::default() };
    let connection = sender.connect(Addr(1), nobody, 0).unwrap();
    sender.send(connection, extent(0, 3000), None, 0, 5).unwrap();
    world.event(&mut sender);
    let Event { context: 5, report: Report::Sent { result, .. } } = world.event(&mut sender) else {
        panic!()
    };
    assert_eq!(result, Err(SendError::Answered(crate::wire::ses::ReturnCode::BAD_PID)));
}

/// An application that posts without looking at its reports: it is stopped, and finds all of them later.
#[test]
fn an_application_that_takes_no_reports_is_held_up_and_loses_none() {
    let mut world = World::new();
    let (mut alice, mut bob) = (world.open(0), world.open(1));
    // 16 receives, cancelled: 16 reports for a ring of 8, in a session whose other commands wait meanwhile.
    for n in 0..16 {
        let receive = loop {
            match alice.receive(extent(0, 10), None, Matching::Untagged, n) {
                Err(ClientError::Full) => world.step(1),
                other => break other.unwrap(),
            }
        };
        while alice.cancel(receive) == Err(ClientError::Full) {
            world.step(1);
        }
    }
    let sixteen = ClientError::Exhausted { what: Resource::Operations, limit: 16 };
    assert_eq!(alice.receive(extent(0, 10), None, Matching::Untagged, 0), Err(sixteen));
    for _ in 0..100 {
        world.step(1);
    }
    // It does not take its reports, so its commands are not looked at any more.
    assert_eq!(alice.connect(Addr(1), to(&bob), 0), Err(ClientError::Full));
    // Other applications are not held up.
    bob.receive(extent(0, 1), None, Matching::Untagged, 1).unwrap();
    let connection = bob.connect(Addr(0), to(&alice), 2).unwrap();
    assert_eq!(world.event(&mut bob).context, 2);
    bob.abort(connection).unwrap();
    assert_eq!(world.event(&mut bob).context, 2);

    let contexts: Vec<u64> = (0..16).map(|_| world.event(&mut alice).context).collect();
    assert_eq!(contexts, (0..16).collect::<Vec<_>>());
    alice.connect(Addr(1), to(&bob), 100).unwrap();
    assert_eq!(world.event(&mut alice).context, 100);
    for _ in 0..100 {
        world.step(1);
    }
    assert_eq!(alice.poll(), Ok(None));
}

#[test]
fn sessions_with_impossible_numbers_or_processes_are_refused() {
    let mut world = World::new();
    let mut open = |config: SessionConfig, process| {
        world.sessions[0].open(&mut world.feps[0], &config, process).map(|client| client.process())
    };
    let configs = [
        SessionConfig { operations: 0, ..SMALL },
        SessionConfig { operations: 1 << 21, ..SMALL },
        SessionConfig { connections: 0, ..SMALL },
        SessionConfig { memory: 0, ..SMALL },
        SessionConfig { memory: u32::MAX, ..SMALL },
        SessionConfig { peers: 1 << 17, ..SMALL },
    ];
    for config in configs {
        assert!(matches!(open(config, None), Err(OpenError::Range { .. })), "{config:?}");
    }
    assert!(matches!(open(SessionConfig { reports: 9, ..SMALL }, None), Err(OpenError::Ring(_))));
    for process in [4096, u16::MAX] {
        assert!(matches!(open(SMALL, Some(process)), Err(OpenError::Process(_))));
    }
    let _kept = world.sessions[0].open(&mut world.feps[0], &SMALL, Some(3)).unwrap();
    assert!(matches!(
        world.sessions[0].open(&mut world.feps[0], &SMALL, Some(3)),
        Err(OpenError::Process(_))
    ));
    let _others: Vec<Client> = (0..3).map(|_| world.open(0)).collect();
    assert!(matches!(world.sessions[0].open(&mut world.feps[0], &SMALL, None), Err(OpenError::Full(4))));
}
