//! Tests with clients that never answer, and with requests forged in the names of other hosts: neither keep the server from others.

use super::*;
use crate::perf::client::Client;
use crate::perf::drive::{self, clock};
use crate::perf::mode::Mode;
use crate::perf::plan::Limit;
use weft::SendOptions;

const OPTIONS: ServerOptions = ServerOptions {
    once: false,
    wait: None,
    memory: 1 << 20,
    payload: 1_000,
    room: 1_000,
    patience: Span::from_ms(1_000),
    shares_thread: false,
};

/// A host that answers nothing sends requests that make no sense.
#[test]
fn refusals_that_nobody_takes_are_bounded_and_end_no_server() {
    let mut endpoint = Endpoint::builder("udp:127.84.20.1").build().unwrap();
    let peer = endpoint.peer("127.84.20.2").unwrap();
    let mut server = Server::new(OPTIONS, Box::new(|_, _, _| Ok(())), Time::ZERO);
    let ask = |server: &mut Server<'_>, endpoint: &mut Endpoint| {
        server.told(endpoint, Time::ZERO, peer, b"nonsense");
        server.refusals.len()
    };
    let most = (0..70_000).map(|_| ask(&mut server, &mut endpoint)).max();
    assert_eq!(most, Some(UNPROVEN));
    // Once one of them has closed, another client can hear.
    let connection = server.refusals[0];
    let closed = Completion::Closed { connection, peer, result: Ok(()) };
    server.take(&mut endpoint, Time::ZERO, closed).unwrap();
    assert_eq!(server.refusals.len(), UNPROVEN - 1);
    assert_eq!(ask(&mut server, &mut endpoint), UNPROVEN);
    // The others are for clients that have repeated their cookies.
    server.requested(&mut endpoint, Time::ZERO, peer, Test { connections: 0, ..a_test() }, 1);
    assert_eq!(server.refusals.len(), UNPROVEN + 1);
}

pub(in crate::perf) fn a_test() -> Test {
    Test {
        mode: Mode::Throughput,
        size: 1,
        limit: Limit::Messages(1),
        warmup_us: 0,
        connections: 1,
        depth: 1,
        verify: false,
        payload: 1_000,
        room: 1_000,
        cc: "nscc".to_owned(),
        credit: false,
    }
}

/// A host that answers nothing asks for a test, again and again.
#[test]
fn a_client_that_begins_anew_all_the_time_takes_few_connections() {
    let mut endpoint = Endpoint::builder("udp:127.84.20.4").build().unwrap();
    let peers = ["127.84.20.5", "127.84.20.6"].map(|ip| endpoint.peer(ip).unwrap());
    let options = ServerOptions { memory: u64::MAX, ..OPTIONS };
    let mut server = Server::new(options, Box::new(|_, _, _| Ok(())), Time::ZERO);
    for number in 0..5_000 {
        for peer in peers {
            server.requested(&mut endpoint, Time::ZERO, peer, a_test(), number);
        }
    }
    assert_eq!((server.replaced.len(), server.refusals.len()), (REFUSALS, REFUSALS));
    assert!(server.session.is_some());
}

/// Requests in the names of hosts that are not there, and of one where weft runs, which acknowledges what it has not asked for: the
/// server keeps nothing of them, however many there are. A client gets its test beside them, and keeps it.
#[test]
fn requests_in_the_names_of_others_hold_nothing_and_keep_no_client_out() {
    let mut endpoint = Endpoint::builder("udp:127.84.20.7").build().unwrap();
    let mut host = Endpoint::builder("udp:127.84.20.8").build().unwrap();
    let [absent, client, present] =
        [9, 11, 8].map(|last| endpoint.peer(format!("127.84.20.{last}").as_str()).unwrap());
    let own = host.peer("127.84.20.7").unwrap();
    let mut server = Server::new(OPTIONS, Box::new(|_, _, _| Ok(())), Time::ZERO);
    let request = |cookie| control::encode(Message::Request { test: a_test(), cookie, number: 1 });
    // Where no test has an endpoint that would answer.
    let strangers: Vec<_> =
        (20..220).map(|last| endpoint.peer(format!("127.84.29.{last}").as_str()).unwrap()).collect();
    let leaks = |endpoint: &mut Endpoint| {
        // Datagrams leave in the next turns.
        (0..1_000).for_each(|_| drop(endpoint.poll().unwrap()));
        endpoint.worker().unwrap().fep().leaks().collect::<Vec<_>>()
    };
    let forge = |server: &mut Server<'_>, endpoint: &mut Endpoint| {
        for (peer, guess) in strangers.iter().chain([&absent, &present]).zip(0..) {
            server.told(endpoint, Time::ZERO, *peer, &request(None));
            server.told(endpoint, Time::ZERO, *peer, &request(Some(guess)));
        }
    };
    let before = leaks(&mut endpoint);
    forge(&mut server, &mut endpoint);
    assert!(server.session.is_none());
    assert_eq!((server.refusals.len(), server.replaced.len(), leaks(&mut endpoint)), (0, 0, before));

    // Each host gets a cookie of its own, in a datagram.
    host.receive_datagram(Vec::<u8>::new(), COOKIE).unwrap();
    let received = (0..1_000_000).find_map(|round| {
        if round % 1_000 == 0 {
            server.told(&mut endpoint, Time::ZERO, present, &request(None));
        }
        endpoint.poll().unwrap();
        match host.poll().unwrap() {
            Some(Completion::Received { context: COOKIE, source, header_data, .. }) => {
                Some((source.map(|source| source.peer), header_data))
            }
            _ => None,
        }
    });
    assert_eq!(received, server.cookie(&endpoint, present).map(|cookie| (Some(own), cookie)));
    let cookie = server.cookie(&endpoint, client);
    assert!(cookie.is_some() && server.cookie(&endpoint, present) != cookie);
    assert_eq!(server.cookie(&endpoint, Addr(4_000)), None, "a host without an IP address in the book");

    // That of one host is worth nothing in the name of another.
    server.told(&mut endpoint, Time::ZERO, present, &request(cookie));
    assert!(server.session.is_none());
    server.told(&mut endpoint, Time::ZERO, client, &request(cookie));
    let client_of = |server: &Server<'_>| server.session.as_ref().map(|session| session.peer);
    assert_eq!(client_of(&server), Some(client));
    // A request that comes again begins no other test.
    let id_of = |server: &Server<'_>| server.session.as_ref().map(|session| session.id);
    let id = id_of(&server);
    server.told(&mut endpoint, Time::ZERO, client, &request(cookie));
    assert_eq!(id_of(&server), id);
    forge(&mut server, &mut endpoint);
    assert_eq!((client_of(&server), server.refusals.len()), (Some(client), 0));
    // Another client hears that the server is busy.
    let cookie = server.cookie(&endpoint, present);
    server.told(&mut endpoint, Time::ZERO, present, &request(cookie));
    assert_eq!((client_of(&server), server.refusals.len()), (Some(client), 1));
}

/// The endpoint refuses a connection to a client that it does not know any more.
#[test]
fn a_client_that_cannot_be_told_its_result_ends_its_test_and_no_server() {
    let mut endpoint = Endpoint::builder("udp:127.84.20.3").build().unwrap();
    let test = a_test();
    for once in [false, true] {
        let options = ServerOptions { once, ..OPTIONS };
        let mut server = Server::new(options, Box::new(|_, _, _| Ok(())), Time::ZERO);
        let mut session =
            Session::new(1, Addr(4_000), "a client".to_owned(), test.clone(), options, Time::ZERO);
        session.announced = Some(0);
        server.session = Some(session);
        let over = server.advance(&mut endpoint, Time::ZERO);
        assert!(if once { over.is_err() } else { over.is_ok_and(|over| !over) }, "once: {once}");
        assert!(once || server.session.is_none(), "another client can come");
    }
}

/// Runs what is to be done at a server's endpoint and at another one until `done`.
fn turns(
    server: &mut Server<'_>,
    ends: [&mut Endpoint; 2],
    what: &str,
    mut done: impl FnMut(&mut Server<'_>, &mut Endpoint) -> bool,
) {
    let [own, other] = ends;
    for _ in 0..1_000_000 {
        own.turn_at(clock(own).now());
        server.step(own, Time::ZERO).unwrap();
        while other.poll().unwrap().is_some() {}
        if done(server, own) {
            return;
        }
    }
    panic!("{what}");
}

/// A host begins messages of as many packets as there are receives, with each tag that a server may wait for, and sends the rest of
/// none.
#[test]
fn messages_that_never_end_keep_no_request_out() {
    let [mut endpoint, mut attacker, mut here] =
        [31, 32, 33].map(|last| Endpoint::builder(format!("udp:127.84.20.{last}")).build().unwrap());
    let [to_attacked, to_server] =
        [&mut attacker, &mut here].map(|endpoint| endpoint.peer("127.84.20.31").unwrap());
    let mut server = Server::new(OPTIONS, Box::new(|_, _, _| Ok(())), Time::ZERO);
    endpoint.turn_at(clock(&endpoint).now());
    server.step(&mut endpoint, Time::ZERO).unwrap();
    let before = received(&endpoint);
    for _ in 0..2 * REQUESTS {
        let connection = attacker.connect(to_attacked).unwrap();
        let options = SendOptions::default().tag(control::TAG);
        attacker.send_with(connection, vec![0; 1 << 20], options).unwrap();
    }
    turns(&mut server, [&mut endpoint, &mut attacker], "all messages begin", |_, endpoint| {
        received(endpoint) > before + 2 * REQUESTS as u64
    });
    let patience = Span::from_ms(30_000);
    let clock = clock(&here);
    let mut client = Client::new(a_test(), to_server, "the server".to_owned(), patience, clock);
    let step = |client: &mut Client, here: &mut Endpoint| {
        let now = clock.now();
        here.turn_at(now);
        client.step(here, now).unwrap()
    };
    // From now on nothing comes of the attacker.
    while step(&mut client, &mut here) != Step::Done {
        endpoint.turn_at(drive::clock(&endpoint).now());
        server.step(&mut endpoint, Time::ZERO).unwrap();
    }
    assert_eq!(client.server_report().map(|report| report.arrived), Some(1));
}

/// Clients begin a message of their tests, and die.
#[test]
fn messages_of_earlier_tests_hold_no_more_than_the_memory_of_a_server() {
    const SIZE: u64 = 16 << 20;
    let mut endpoint = Endpoint::builder("udp:127.84.20.34").build().unwrap();
    let test = Test { size: SIZE, ..a_test() };
    let memory = 3 * test.receive_memory();
    let mut server = Server::new(ServerOptions { memory, ..OPTIONS }, Box::new(|_, _, _| Ok(())), Time::ZERO);
    let mut dead = Vec::new();
    for number in 0..12 {
        let ip = format!("127.84.20.{}", 50 + number);
        let mut client = Endpoint::builder(format!("udp:{ip}")).build().unwrap();
        let to = client.peer("127.84.20.34").unwrap();
        let peer = endpoint.peer(ip.as_str()).unwrap();
        let cookie = server.cookie(&endpoint, peer);
        let request = control::encode(Message::Request { test: test.clone(), cookie, number });
        turns(&mut server, [&mut endpoint, &mut client], "a test begins", |server, endpoint| {
            let now = clock(endpoint).now();
            server.told(endpoint, now, peer, &request);
            server.session.is_some()
        });
        let session = server.session.as_ref().unwrap().id;
        // Until all is there that the one before has sent.
        while endpoint.turn_at(clock(&endpoint).now()).received > 0 {}
        let connection = client.connect(to).unwrap();
        let options = SendOptions::default().tag(control::data_tag(session, 0));
        client.send_with(connection, vec![0; SIZE as usize], options).unwrap();
        let before = received(&endpoint);
        turns(&mut server, [&mut endpoint, &mut client], "a message begins", |_, endpoint| {
            received(endpoint) > before
        });
        // Messages that have completed do not count.
        let held = server.held() + test.receive_memory();
        assert!(held <= memory, "test {number}: {held} bytes of {memory}");
        let now = clock(&endpoint).now();
        server.end_session(&mut endpoint, now);
        dead.push(client);
    }
}

/// The client has died, and another host sends packets.
#[test]
fn packets_of_others_keep_no_test_alive() {
    let [mut endpoint, mut other] =
        [37, 38].map(|last| Endpoint::builder(format!("udp:127.84.20.{last}")).build().unwrap());
    let to = other.peer("127.84.20.37").unwrap();
    let client = endpoint.peer("127.84.20.39").unwrap();
    let mut server = Server::new(OPTIONS, Box::new(|_, _, _| Ok(())), Time::ZERO);
    server.requested(&mut endpoint, Time::ZERO, client, a_test(), 1);
    let connection = other.connect(to).unwrap();
    let mut now = Time::ZERO;
    for _ in 0..20 {
        let before = received(&endpoint);
        other.send_with(connection, vec![0; 1], SendOptions::default().tag(5)).unwrap();
        while received(&endpoint) == before {
            endpoint.turn_at(clock(&endpoint).now());
            while other.poll().unwrap().is_some() {}
        }
        now += Span::from_ms(500);
        server.advance(&mut endpoint, now).unwrap();
    }
    assert!(server.session.is_none(), "nothing has come of the client for ten times its patience");
}

#[test]
fn a_client_whose_test_takes_too_long_is_told() {
    let [mut endpoint, mut client] =
        [41, 42].map(|last| Endpoint::builder(format!("udp:127.84.20.{last}")).build().unwrap());
    let to = client.peer("127.84.20.41").unwrap();
    let peer = endpoint.peer("127.84.20.42").unwrap();
    let mut server = Server::new(OPTIONS, Box::new(|_, _, _| Ok(())), Time::ZERO);
    for _ in 0..2 {
        control::post_receive(&mut client, to, control::TAG, CONTROL).unwrap();
    }
    server.requested(&mut endpoint, Time::ZERO, peer, a_test(), 1);
    let late = Time::ZERO + Span::from_ms(60_000);
    server.session.as_mut().unwrap().silence.restart(late);
    server.advance(&mut endpoint, late).unwrap();
    assert!(server.session.is_none());
    let mut heard = Vec::new();
    for _ in 0..1_000_000 {
        endpoint.turn_at(clock(&endpoint).now());
        if let Some(Completion::Received { buffer, len, .. }) = client.poll().unwrap() {
            heard.push(control::decode(&buffer.to_bytes(len)).unwrap());
        }
        if heard.len() == 2 {
            break;
        }
    }
    let [Message::Ready { .. }, Message::Refused { reason }] = &heard[..] else { panic!("{heard:?}") };
    assert!(reason.contains("takes too long"), "{reason}");
}

/// A client sends a message from time to time, for longer than it has said; or none at all, though its packets arrive. One that is as
/// slow as it may be keeps its test.
#[test]
fn a_test_takes_no_longer_than_its_client_has_said() {
    let endpoint = &mut Endpoint::builder("udp:127.84.20.40").build().unwrap();
    let second = Span::from_ms(1_000);
    let lasts = |endpoint: &mut Endpoint, test: Test, every: u64| {
        let mut server = Server::new(OPTIONS, Box::new(|_, _, _| Ok(())), Time::ZERO);
        let session = Session::new(1, Addr(4_000), "a client".to_owned(), test, OPTIONS, Time::ZERO);
        server.session = Some(session);
        (1..200).find(|seconds| {
            let now = Time::ZERO + second.times(*seconds);
            let Some(session) = server.session.as_mut() else { return true };
            session.silence.restart(now);
            if seconds % every == 0 {
                session.last_message = now;
                session.progress.messages += 1;
            }
            server.advance(endpoint, now).unwrap();
            server.session.is_none()
        })
    };
    let megabyte = Test { size: 1_000_000, ..a_test() };
    let ten_seconds =
        Test { limit: Limit::Microseconds(10_000_000), warmup_us: 5_000_000, ..megabyte.clone() };
    // Patience, once more for the request, and ten seconds for the messages under way.
    assert_eq!(lasts(endpoint, ten_seconds, 3), Some(15 + 2 + 10));
    assert_eq!(lasts(endpoint, megabyte.clone(), 300), Some(1 + 10));
    assert_eq!(lasts(endpoint, Test { depth: 4, ..megabyte.clone() }, 300), Some(1 + 40));
    assert_eq!(lasts(endpoint, megabyte, 10), None);
}
