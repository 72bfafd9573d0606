//! Tests with clients that never answer, and with requests forged in the names of other hosts: neither keep the server from others.

use super::*;
use crate::perf::mode::Mode;
use crate::perf::plan::Limit;

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
    server.requested(&mut endpoint, Time::ZERO, peer, Test { connections: 0, ..a_test() });
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
    let mut server = Server::new(OPTIONS, Box::new(|_, _, _| Ok(())), Time::ZERO);
    for _ in 0..5_000 {
        for peer in peers {
            server.requested(&mut endpoint, Time::ZERO, peer, a_test());
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
    let request = |cookie| control::encode(Message::Request { test: a_test(), cookie });
    let strangers: Vec<_> =
        (20..220).map(|last| endpoint.peer(format!("127.84.20.{last}").as_str()).unwrap()).collect();
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
