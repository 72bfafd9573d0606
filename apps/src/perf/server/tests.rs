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
    assert_eq!(most, Some(REFUSALS));
    // Once one of them has closed, another client can hear.
    let connection = server.refusals[0];
    let closed = Completion::Closed { connection, peer, result: Ok(()) };
    server.take(&mut endpoint, Time::ZERO, closed).unwrap();
    assert_eq!(server.refusals.len(), REFUSALS - 1);
    assert_eq!(ask(&mut server, &mut endpoint), REFUSALS);
}
fn a_test() -> Test {
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
        if let Some(session) = &mut server.session {
            session.answered = session.peer == peers[0];
        }
    }
    assert_eq!((server.replaced.len(), server.refusals.len()), (REFUSALS, REFUSALS));
    assert!(server.session.is_some());
}

/// Requests in the name of a host that is not there, and of one where weft runs, which acknowledges what it has not asked for.
/// The next client gets its own test, and keeps it once it has named it.
#[test]
fn a_client_that_has_not_named_its_test_makes_room_for_the_next_one() {
    let mut endpoint = Endpoint::builder("udp:127.84.20.7").build().unwrap();
    let mut host = Endpoint::builder("udp:127.84.20.8").build().unwrap();
    let [absent, present, client, late] =
        [9, 8, 11, 10].map(|last| endpoint.peer(format!("127.84.20.{last}").as_str()).unwrap());
    host.peer("127.84.20.7").unwrap();
    let mut server = Server::new(OPTIONS, Box::new(|_, _, _| Ok(())), Time::ZERO);
    let client_of = |server: &Server<'_>| server.session.as_ref().map(|session| session.peer);
    server.requested(&mut endpoint, Time::ZERO, absent, a_test());
    assert_eq!(client_of(&server), Some(absent));
    server.requested(&mut endpoint, Time::ZERO, present, a_test());
    assert_eq!((client_of(&server), server.replaced.len()), (Some(present), 1));
    let mut acknowledged = false;
    for _ in 0..1_000_000 {
        if let Some(completion) = endpoint.poll().unwrap() {
            acknowledged |= matches!(completion, Completion::Sent { result: Ok(()), .. });
            server.take(&mut endpoint, Time::ZERO, completion).unwrap();
        }
        host.poll().unwrap();
        if acknowledged {
            break;
        }
    }
    assert!(acknowledged, "the host has heard that the test may begin");
    server.requested(&mut endpoint, Time::ZERO, client, a_test());
    assert_eq!(client_of(&server), Some(client));
    let session = server.session.as_ref().map_or(0, |session| session.id);
    let begins = |session| control::encode(Message::Begins { session });
    // The test of another number, and that of another client.
    server.told(&mut endpoint, Time::ZERO, client, &begins(session ^ 1));
    server.told(&mut endpoint, Time::ZERO, present, &begins(session));
    assert!(server.session.as_ref().is_some_and(|session| !session.answered));
    server.told(&mut endpoint, Time::ZERO, client, &begins(session));
    server.requested(&mut endpoint, Time::ZERO, late, a_test());
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
