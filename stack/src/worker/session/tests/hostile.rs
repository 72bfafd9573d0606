//! Applications that write nonsense harm only themselves.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;

use super::explore::explore;
use super::*;
use crate::fep::{FepConfig, Limits, MAX_PROCESS, PeerRefusal};
use crate::ses::Claim;
use crate::worker::ring::Producer;
use crate::worker::session::command::{KINDS, SEND_DATAGRAM};

/// Words that are nearly commands: kinds, numbers and lengths are often possible.
pub(super) fn nearly_a_command() -> impl Strategy<Value = Slot> {
    let word =
        prop_oneof![4 => Just(0u64), 2 => 0u64..20, 1 => any::<u64>(), 2 => (0u64..6).prop_map(|n| n << 32)];
    (
        0..1 + u64::from(KINDS),
        0u64..8,
        prop_oneof![6 => 0u64..18, 1 => any::<u32>().prop_map(u64::from)],
        prop::array::uniform7(word),
        0u64..5,
    )
        .prop_map(|(kind, flags, name, words, process)| {
            let mut slot = [0; 8];
            slot[0] = kind | if flags < 4 { 0 } else { (flags - 4) << 8 } | name << 32;
            if kind == u64::from(SEND_DATAGRAM) {
                slot[0] |= process << 16;
            }
            slot[1..].copy_from_slice(&words);
            slot
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The message and the datagram of another application arrive, each command is answered, and nothing is left.
    #[test]
    fn arbitrary_commands_harm_no_other_application(commands in prop::collection::vec(nearly_a_command(), 1..200)) {
        let mut world = World::new();
        // One beside Alice and one beside Bob.
        let (mut mad, mut alice, mut bob, mut madder) = (world.open(0), world.open(0), world.open(1), world.open(1));
        let bytes = content(3, 60_000);
        alice.write(0, &bytes).unwrap();
        bob.receive(extent(0, 60_000), None, Matching::Untagged, 1).unwrap();
        let connection = alice.connect(Addr(1), to(&bob), 0).unwrap();
        alice.send(connection, extent(0, 60_000), None, 0, 2).unwrap();
        let mut refused = 0;
        for (n, words) in commands.iter().enumerate() {
            let mad = if n % 2 == 0 { &mut mad } else { &mut madder };
            // Datagrams of anybody are legitimate.
            if matches!(Command::decode(words), Ok(Command::SendDatagram { to, .. }) if to.process == bob.process()) {
                continue;
            }
            while mad.submit_words(words) == Err(ClientError::Full) {
                world.step(2);
                // Its reports make no sense to a client that has not asked; but they come.
                while let Ok(Some(_)) | Err(ClientError::Nonsense(_)) = mad.poll() {
                    refused += 1;
                }
            }
        }
        let event = world.event(&mut bob);
        prop_assert!(matches!(event.report, Report::Received { result: Ok(()), .. }), "{event:?}");
        let mut copy = vec![0; 60_000];
        bob.read(0, &mut copy).unwrap();
        prop_assert!(copy == bytes);
        bob.receive_datagram(extent(0, 1_000), 3).unwrap();
        // For its long message, which had waited, its process has to make up in some turns.
        (0..100).for_each(|_| world.step(1));
        alice.send_datagram(Source { peer: Addr(1), process: bob.process() }, extent(1, 1_000), 4, 5).unwrap();
        let event = world.event(&mut bob);
        let source = Some(Source { peer: Addr(0), process: alice.process() });
        let is_hers = matches!(event.report, Report::Received { source: of, header_data: 4, .. } if of == source);
        prop_assert!(event.context == 3 && is_hers, "{event:?}");
        bob.read(0, &mut copy[..1_000]).unwrap();
        prop_assert!(copy[..1_000] == bytes[1..1_001]);
        drop((mad, alice, bob, madder));
        world.assert_nothing_is_left();
        prop_assert!(refused <= 2 * commands.len() + 4);
    }
}

/// The property of the fuzz target.
#[test]
fn arbitrary_writes_to_shared_memory_harm_no_other_application() {
    // Datagrams that are held at a time, and applications for datagrams only.
    let reached = Cell::new([0; 2]);
    explore("WRITES", 400, prop::collection::vec(any::<u8>(), 0..2000), |bytes| {
        let [held, only] = properties::arbitrary_writes(&bytes);
        reached.set([reached.get()[0].max(held), reached.get()[1] + only]);
        (0, 0)
    });
    let [held, only] = reached.get();
    assert!(held >= 5 && only >= 50, "{held}, {only}");
}

#[test]
fn each_malformed_command_is_refused_with_its_error() {
    let mut world = World::new();
    let mut client = world.open(0);
    let send = |operation, connection, extent| Command::Send {
        operation,
        connection,
        extent,
        tag: None,
        header_data: 0,
    };
    let receive = |operation, extent| Command::Receive {
        operation,
        extent,
        from: None,
        matching: Matching::Untagged,
        many: None,
    };
    let claim = Claim::from_bits(7);
    let connect =
        |connection| Command::Connect { connection, peer: Addr(1), options: ConnectOptions::default() };
    let number = |number, count| CallError::NoSuchNumber { number, count };
    let peer = |operation| Command::Peer { operation, ip: [10, 0, 0, 9].into(), mac: None };
    let beyond = |offset, len| Extent { region: 0, offset, len };
    let datagram = |operation, process, extent| Command::SendDatagram {
        operation,
        to: Source { peer: Addr(1), process },
        extent,
        header_data: 0,
    };
    let cases = [
        (connect(4).encode(), number(4, 4)),
        (connect(u32::MAX).encode(), number(u32::MAX, 4)),
        (send(0, 3, extent(0, 1)).encode(), CallError::NotOpen),
        (send(0, 4, extent(0, 1)).encode(), number(4, 4)),
        (receive(16, extent(0, 1)).encode(), number(16, 16)),
        (receive(0, Extent { region: 1, offset: 0, len: 1 }).encode(), CallError::OutsideMemory),
        (receive(0, beyond(256 << 10, 1)).encode(), CallError::OutsideMemory),
        (receive(0, beyond(u64::MAX, 2)).encode(), CallError::OutsideMemory),
        (receive(0, beyond((256 << 10) - 1, u32::MAX)).encode(), CallError::OutsideMemory),
        (
            Command::ReceiveClaimed { operation: 0, extent: extent(0, 1), claim }.encode(),
            CallError::NotClaimed,
        ),
        (Command::Discard { claim }.encode(), CallError::NotClaimed),
        (datagram(0, 1, extent(0, 1025)).encode(), CallError::DatagramTooLong { most: 1024 }),
        (datagram(0, 1, beyond(256 << 10, 1)).encode(), CallError::OutsideMemory),
        (datagram(0, 1, Extent { region: 1, offset: 0, len: 1 }).encode(), CallError::OutsideMemory),
        (datagram(16, 1, extent(0, 1)).encode(), number(16, 16)),
        (datagram(0, MAX_PROCESS + 1, extent(0, 1)).encode(), CallError::Malformed),
        (
            Command::ReceiveDatagram { operation: 0, extent: beyond((256 << 10) - 1, u32::MAX) }.encode(),
            CallError::OutsideMemory,
        ),
        (Command::ReceiveDatagram { operation: 99, extent: extent(0, 1) }.encode(), number(99, 16)),
        (Command::Cancel { operation: 3 }.encode(), CallError::NumberNotInUse(3)),
        (Command::Cancel { operation: 99 }.encode(), number(99, 16)),
        (Command::Close { connection: 0 }.encode(), CallError::NotOpen),
        (Command::Abort { connection: 9 }.encode(), number(9, 4)),
        (peer(16).encode(), number(16, 16)),
        (peer(3).encode(), CallError::Peer(PeerRefusal::Fixed)),
        ([0; 8], CallError::Malformed),
        ([u64::MAX; 8], CallError::Malformed),
    ];
    for (words, expected) in cases {
        client.submit_words(&words).unwrap();
        world.step(1);
        // As it comes: this client has not asked, and would not believe it.
        let report = client.poll_raw().unwrap().unwrap();
        let Report::Refused { error, number, request } = report else { panic!("{report:?}") };
        assert_eq!((error, u64::from(number)), (expected, words[0] >> 32), "{words:x?}");
        assert_eq!(request, Request::of(&words));
    }
    // A number that is in use.
    client.submit(&receive(5, extent(0, 1))).unwrap();
    client.submit(&receive(5, extent(0, 1))).unwrap();
    world.step(1);
    let Some(Report::Refused { error: CallError::NumberInUse(5), number: 5, .. }) =
        client.poll_raw().unwrap()
    else {
        panic!("accepted twice")
    };
}

/// A client whose rings we can reach, as it could itself.
fn open_with_region(world: &mut World) -> (Client, Region) {
    let region = Region::allocate(SMALL.layout().unwrap().total).unwrap();
    let (own, other) = Link::pair().unwrap();
    let id = world.sessions[0].admit(&mut world.feps[0], &SMALL, None, &region, own, None).unwrap();
    let process = world.sessions[0].process(id).unwrap();
    (Client::new(&SMALL, &region, other, None, Addr(0), process).unwrap(), region)
}

#[test]
fn a_broken_ring_ends_its_session_and_no_other() {
    for reports in [false, true] {
        let mut world = World::new();
        let mut other = world.open(0);
        let (mut client, region) = open_with_region(&mut world);
        for n in 0..5 {
            let receive = client.receive(extent(0, 1), None, Matching::Untagged, n).unwrap();
            world.step(1);
            client.cancel(receive).unwrap();
            world.step(1);
        }
        if reports {
            // The consumer's index, where a producer believes its own to be: 128 bytes further.
            let at = SMALL.layout().unwrap().reports;
            let index = region.slice(at as u64 + 128, 4).unwrap();
            index.write(0, &99u32.to_ne_bytes());
            for n in 0..5 {
                let _ =
                    client.receive(extent(0, 1), None, Matching::Untagged, n).and_then(|r| client.cancel(r));
                world.step(1);
            }
        } else {
            // Back to where it began.
            Producer::<8>::at(&region, 0, SMALL.commands).unwrap().push(&[0; 8]).unwrap();
        }
        world.step(1);
        let (_, process, how) = world.sessions[0].poll_ended().expect("it has ended");
        assert!(matches!(how, Ended::Broken(_)) && process == client.process(), "{how:?}");
        world.step(1);
        assert_eq!(world.sessions[0].len(), 1);
        // Earlier reports are still there.
        let gone = (0..100).find_map(|_| client.poll().err());
        assert!(matches!(gone, Some(ClientError::Gone | ClientError::Broken(_))), "{gone:?}");
        let receive = other.receive(extent(0, 1), None, Matching::Untagged, 42).unwrap();
        other.cancel(receive).unwrap();
        assert_eq!(world.event(&mut other).context, 42);
    }
}

/// An application writes to its memory while the endpoint reads it, or places a message there. The messages consist of
/// bytes that were there at some time.
#[test]
fn messages_whose_memory_changes_under_way_arrive_as_a_mixture() {
    let mut world = World::new();
    let (mut alice, mut bob) = (world.open(0), world.open(1));
    let (from, into) = (alice.memory().slice(0, 50_000).unwrap(), bob.memory().slice(0, 50_000).unwrap());
    from.write(0, &[0x11; 50_000]);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                for value in [0x22; 50].into_iter().chain([0x11; 50]) {
                    from.write(0, &[value; 50_000]);
                    into.write(0, &[value; 50_000]);
                }
            }
        });
        let connection = alice.connect(Addr(1), to(&bob), 0).unwrap();
        world.event(&mut alice);
        let mut bytes = vec![0; 50_000];
        for n in 0..50 {
            bob.receive(extent(0, 50_000), None, Matching::Untagged, n).unwrap();
            alice.send(connection, extent(0, 50_000), None, 0, n).unwrap();
            let event = world.event(&mut bob);
            bob.read(0, &mut bytes).unwrap();
            let known = bytes.iter().all(|byte| [0x11, 0x22].contains(byte));
            // The scribbler has to be told before the test may fail.
            if !known
                || event.context != n
                || !matches!(event.report, Report::Received { result: Ok(()), .. })
            {
                done.store(true, Ordering::Relaxed);
                panic!("{event:?}, known bytes only: {known}");
            }
            world.event(&mut alice);
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn an_application_that_uses_all_its_resources_takes_none_of_other_applications() {
    let mut world = World::new();
    let (mut glutton, mut alice) = (world.open(0), world.open(0));
    for connection in 0..4 {
        glutton.connect(Addr(1), ConnectOptions::default(), connection).unwrap();
    }
    world.step(1);
    for n in 0..16 {
        while glutton.receive(extent(0, 1), None, Matching::Untagged, n) == Err(ClientError::Full) {
            world.step(1);
        }
    }
    for _ in 0..20 {
        world.step(1);
    }
    for n in 0..3 {
        let receive = alice.receive(extent(0, 1), None, Matching::Untagged, n).unwrap();
        alice.cancel(receive).unwrap();
        assert_eq!(world.event(&mut alice).context, n);
    }
    drop((glutton, alice));
    world.assert_nothing_is_left();
}

/// Connections of applications to one peer: 16 that the peer takes of all, for up to four applications, so that each has
/// two, and may have some of the other eight.
#[test]
fn applications_with_many_connections_leave_others_theirs_to_the_same_peer() {
    let config =
        FepConfig { limits: Limits { pdcs_per_peer: 16, ..Limits::default() }, ..(*config()).clone() };
    let mut world = World::with(&Arc::new(config));
    let many = SessionConfig { connections: 64, ..SMALL };
    let mut hogs = [(); 2].map(|()| world.sessions[0].open(&mut world.feps[0], &many, None).unwrap());
    let mut greedy_bob = world.open(1);
    let mut opened = Vec::new();
    for hog in &mut hogs {
        let mut connections = Vec::new();
        for context in 0..64 {
            hog.connect(Addr(1), to(&greedy_bob), context).unwrap();
            match world.event(hog).report {
                Report::Connected { connection } => connections.push(connection),
                Report::Refused { error, .. } => {
                    let what = Resource::PeerConnections;
                    assert_eq!(error, CallError::Limit { what, limit: 16 });
                }
                report => panic!("{report:?}"),
            }
        }
        opened.push(connections.len());
    }
    assert_eq!(opened, [2 + 4, 2 + 2]);
    // Their PDCs are open at the peer.
    for _ in 0..1_000 {
        world.step(4);
    }
    let (mut alice, mut bob) = (world.open(0), world.open(1));
    for n in 0..2 {
        let connection = alice.connect(Addr(1), to(&bob), n).unwrap();
        assert!(matches!(world.event(&mut alice).report, Report::Connected { .. }));
        bob.receive(extent(0, 100), None, Matching::Untagged, n).unwrap();
        alice.send(connection, extent(0, 100), None, 0, 7).unwrap();
        assert!(matches!(world.event(&mut bob).report, Report::Received { result: Ok(()), .. }));
        assert!(matches!(world.event(&mut alice).report, Report::Sent { result: Ok(()), .. }));
    }
    // What a session had is to be had again once it has gone.
    drop(hogs);
    while world.sessions[0].len() > 1 {
        world.step(4);
    }
    for context in 0..2 {
        alice.connect(Addr(1), to(&greedy_bob), context).unwrap();
        assert!(matches!(world.event(&mut alice).report, Report::Connected { .. }));
    }
    assert_eq!(greedy_bob.poll(), Ok(None));
    drop((alice, bob, greedy_bob));
    world.assert_nothing_is_left();
}

/// The peer does not hear that a connection is given up, and keeps its PDC: so long it counts for the place of the application
/// that had it, also once that has left. If it comes again, it gets the same account.
#[test]
fn connections_that_fail_count_until_their_peer_has_forgotten_them() {
    let config = FepConfig {
        limits: Limits { pdcs_per_peer: 16, ..Limits::default() },
        idle_timeout: Span::from_ms(20),
        ..(*config()).clone()
    };
    let mut world = World::with(&Arc::new(config));
    let many = SessionConfig { connections: 64, ..SMALL };
    let (mut alice, bob) = (world.open(0), world.open(1));
    let answers_are_lost = |packet: &crate::packet::Packet| packet.net.src == Addr(0);
    let mut total = 0;
    for round in 0..6 {
        let mut hog = world.sessions[0].open(&mut world.feps[0], &many, None).unwrap();
        let mut connections = Vec::new();
        loop {
            let connection = hog.connect(Addr(1), to(&bob), 0).unwrap();
            match world.event(&mut hog).report {
                Report::Connected { .. } => connections.push(connection),
                _ => break,
            }
        }
        for connection in &connections {
            hog.send(*connection, extent(0, 1), None, 0, 1).unwrap();
        }
        let mut ended = 0;
        while ended < 2 * connections.len() {
            world.step_through(4, answers_are_lost);
            while let Some(event) = hog.poll().unwrap() {
                let failed = matches!(
                    event.report,
                    Report::Sent { result: Err(_), .. } | Report::Closed { result: Err(_), .. }
                );
                assert!(failed, "{event:?}");
                ended += 1;
            }
        }
        total += connections.len();
        assert_eq!((total, world.feps[1].open_targets()), (6, 6), "until round {round}");
        drop(hog);
        world.step(1);
    }
    // An application of another process gets another account, and another one of that process the same.
    let regions = [(); 2].map(|()| Region::allocate(SMALL.layout().unwrap().total).unwrap());
    let strangers = regions.map(|region| {
        let (own, _other) = Link::pair().unwrap();
        world.sessions[0].admit(&mut world.feps[0], &SMALL, None, &region, own, Some(1)).unwrap()
    });
    assert_eq!(strangers.map(|stranger| world.sessions[0].account(stranger)), [2, 2]);
    strangers.iter().for_each(|stranger| world.sessions[0].close(&mut world.feps[0], world.now, *stranger));
    // One that is there has its part.
    for _ in 0..2 {
        let connection = alice.connect(Addr(1), to(&bob), 0).unwrap();
        assert!(matches!(world.event(&mut alice).report, Report::Connected { .. }));
        alice.send(connection, extent(0, 100), None, 0, 7).unwrap();
        assert!(matches!(world.event(&mut alice).report, Report::Sent { result: Ok(()), .. }));
    }
    let until = world.now + Span::from_ms(41);
    while world.now.is_before(until) {
        world.step(1);
    }
    let mut hog = world.sessions[0].open(&mut world.feps[0], &many, None).unwrap();
    for _ in 0..6 {
        hog.connect(Addr(1), to(&bob), 0).unwrap();
        assert!(matches!(world.event(&mut hog).report, Report::Connected { .. }), "they count no more");
    }
}

/// Another process than the server's joins, with what `config` asks for.
fn join_as(world: &mut World, tenant: u32, config: &SessionConfig) -> Client {
    world.sessions[0].join_of(&mut world.feps[0], Some(tenant), config).unwrap()
}

/// Endpoint 0 serves up to so many applications, which share 32 PDCs at the other one. An application of that one has joined.
fn world_of_places(places: usize, idle_timeout: Span) -> (World, Client) {
    let limits = Limits { pdcs_per_peer: 32, ..Limits::default() };
    let mut world = World::with(&Arc::new(FepConfig { limits, idle_timeout, ..(*config()).clone() }));
    world.sessions[0] = Sessions::new(places);
    let bob = world.open(1);
    (world, bob)
}

/// Opens connections to a process of the peer until no more are to be had. Returns them.
fn connect_all(world: &mut World, client: &mut Client, options: ConnectOptions) -> Vec<ConnectionHandle> {
    let full = CallError::Limit { what: Resource::PeerConnections, limit: 32 };
    let mut connections = Vec::new();
    loop {
        let connection = client.connect(Addr(1), options, 0).unwrap();
        match world.event(client).report {
            Report::Connected { .. } => connections.push(connection),
            Report::Refused { error, .. } if error == full => return connections,
            other => panic!("{other:?}"),
        }
    }
}

/// A process has two sessions, and may have ten of the PDCs that its peer takes. Which of them asks first makes no difference.
#[test]
fn a_session_leaves_connections_to_a_peer_to_other_sessions_of_its_process_that_have_none() {
    let (mut world, bob) = world_of_places(8, config().idle_timeout);
    let many = SessionConfig { connections: 64, commands: 64, ..SMALL };
    let [mut first, mut second] = [(); 2].map(|()| join_as(&mut world, 1, &many));
    let mut opened = connect_all(&mut world, &mut first, to(&bob));
    assert_eq!(opened.len(), 4, "one more would be more than half of what there is for the other one");
    let of_second = connect_all(&mut world, &mut second, to(&bob));
    assert_eq!(of_second.len(), 6);
    // The first has what the second gives up, as this has some still.
    for connection in &of_second[..2] {
        second.close(*connection).unwrap();
        assert!(matches!(world.event(&mut second).report, Report::Closed { .. }));
    }
    opened.extend(connect_all(&mut world, &mut first, to(&bob)));
    assert_eq!(opened.len(), 6);
    // Nobody waits for one that is gone, or is leaving with a message under way.
    let connection = of_second[2];
    second.send(connection, extent(0, 1), None, 0, 0).unwrap();
    world.step(0);
    drop(second);
    world.step(0);
    while world.sessions[0].len() > 1 {
        world.step(4);
    }
    opened.extend(connect_all(&mut world, &mut first, to(&bob)));
    assert_eq!(opened.len(), 10, "all that the process may have");
    drop((first, bob));
    world.assert_nothing_is_left();
}

/// Another process than the server's joins several times. All its sessions together have what one application may have at
/// a peer, as long as they are there and until their failed connections count no more.
#[test]
fn a_process_that_joins_several_times_at_once_has_one_part_of_a_peer_s_pdcs() {
    let (mut world, bob) = world_of_places(8, Span::from_ms(20));
    let mut hogs = [(); 3].map(|()| join_as(&mut world, 1, &SMALL));
    let mut opened = 0;
    for hog in &mut hogs {
        let connections = [(); 4].map(|()| hog.connect(Addr(1), to(&bob), 0).unwrap());
        for connection in connections {
            if matches!(world.event(hog).report, Report::Connected { .. }) {
                hog.send(connection, extent(0, 1), None, 0, 1).unwrap();
                opened += 1;
            }
        }
    }
    assert_eq!(opened, 2 + 8, "its own part, and half of what is nobody's");
    // All fail, and the process leaves.
    while world.feps[0].waits(world.now).next().is_some() {
        world.step_through(4, |packet| packet.net.src == Addr(0));
    }
    drop(hogs);
    while !world.sessions[0].is_empty() {
        world.step(1);
    }
    let mut others = [2, 3, 4].map(|process| join_as(&mut world, process, &SMALL));
    for other in &mut others {
        for _ in 0..2 {
            other.connect(Addr(1), to(&bob), 0).unwrap();
            assert!(matches!(world.event(other).report, Report::Connected { .. }));
        }
    }
}

/// Opens eight connections to a process of the peer, whose answers are lost until all have failed.
fn eight_fail(world: &mut World, client: &mut Client, bob: &Client) {
    let connections = [(); 8].map(|()| {
        let connection = client.connect(Addr(1), to(bob), 0).unwrap();
        assert!(matches!(world.event(client).report, Report::Connected { .. }));
        connection
    });
    for connection in connections {
        client.send(connection, extent(0, 1), None, 0, 1).unwrap();
    }
    let mut failed = 0;
    while failed < connections.len() {
        world.step_through(4, |packet| packet.net.src == Addr(0));
        while let Some(event) = client.poll().unwrap() {
            failed += usize::from(matches!(event.report, Report::Closed { result: Err(_), .. }));
        }
    }
}

/// The peer forgets those of an application that was there before first.
#[test]
fn connections_that_have_failed_are_forgotten_in_the_order_in_which_they_failed() {
    let (mut world, bob) = world_of_places(2, Span::from_ms(500));
    let many = SessionConfig { connections: 64, commands: 64, ..SMALL };
    let _other = join_as(&mut world, 1, &SMALL);
    let mut first = join_as(&mut world, 2, &many);
    eight_fail(&mut world, &mut first, &bob);
    let failed = world.now;
    drop(first);
    while world.sessions[0].len() > 1 {
        world.step(1);
    }
    let mut second = join_as(&mut world, 3, &many);
    eight_fail(&mut world, &mut second, &bob);
    world.now = failed + Span::from_ms(1_000);
    world.serve(0);
    world.sessions[0].check_accounts(&world.feps[0].config().limits);
    assert_eq!(world.sessions[0].left_behind_by(second.process()), 8, "its own count still");
}

/// A peer takes 32 PDCs of two applications, of which eight are reserved for each. One has its own eight and eight more. The eight
/// of another one fail, which leaves, and the next process gets its account.
#[test]
fn an_application_has_its_part_of_a_peer_s_pdcs_though_those_of_the_one_before_it_have_failed() {
    let (mut world, bob) = world_of_places(2, Span::from_ms(500));
    let many = SessionConfig { connections: 64, commands: 64, ..SMALL };
    let mut hog = join_as(&mut world, 1, &many);
    assert_eq!(connect_all(&mut world, &mut hog, to(&bob)).len(), 8 + 8);
    let mut fails = join_as(&mut world, 2, &many);
    eight_fail(&mut world, &mut fails, &bob);
    drop(fails);
    while world.sessions[0].len() > 1 {
        world.step(1);
    }
    let mut next = join_as(&mut world, 3, &many);
    world.sessions[0].check_accounts(&world.feps[0].config().limits);
    assert_eq!(connect_all(&mut world, &mut next, to(&bob)).len(), 8);
    // Once the peer has forgotten those that failed, and all others are gone, one has its part and half of the rest.
    drop((hog, next));
    while !world.sessions[0].is_empty() {
        world.step(1);
    }
    world.now += Span::from_ms(1_000);
    world.serve(0);
    world.sessions[0].check_accounts(&world.feps[0].config().limits);
    let mut last = join_as(&mut world, 4, &many);
    assert_eq!(connect_all(&mut world, &mut last, to(&bob)).len(), 8 + 8);
}

#[test]
fn a_session_that_cannot_have_its_share_is_refused_when_it_joins() {
    let limits = Limits { sends: 40, connections: 9, ..Limits::default() };
    let config = FepConfig { limits, ..(*config()).clone() };
    let mut world = World::with(&Arc::new(config));
    let mut open = |config| world.sessions[0].open(&mut world.feps[0], &config, None);
    let _both = [(); 2].map(|()| open(SMALL).unwrap());
    let why = |result: Result<Client, OpenError>| result.err().map(|error| error.to_string());
    let operations = "16 operations are asked for, and the endpoint has 8 of 40 left";
    assert_eq!(why(open(SMALL)).as_deref(), Some(operations));
    let eight = SessionConfig { operations: 8, ..SMALL };
    let connections = "4 connections are asked for, and the endpoint has 1 of 9 left";
    assert_eq!(why(open(eight)).as_deref(), Some(connections));
    let last = open(SessionConfig { connections: 1, ..eight }).unwrap();
    // However many messages the others post, it can post its own.
    let mut last = last;
    let connection = last.connect(Addr(1), ConnectOptions::default(), 0).unwrap();
    for n in 0..7 {
        last.send(connection, extent(0, 1), None, 0, n).unwrap();
    }
    world.step(0);
    assert!(matches!(last.poll().unwrap().unwrap().report, Report::Connected { .. }));
    assert_eq!(last.poll(), Ok(None), "nothing is refused");
}
