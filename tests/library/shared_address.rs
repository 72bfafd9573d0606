//! Endpoints that share an IP address over kernel UDP, each at UDP ports of its own.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use weft::port::AnyPort;
use weft::{
    Completion, ConnectionId, Endpoint, OwnedBytes, ReceiveBuffer, ReceiveOptions, SendOptions, Source,
};

const BOUND: Duration = Duration::from_secs(20);

fn open(spec: &str) -> Endpoint {
    Endpoint::builder(spec).build().unwrap_or_else(|error| panic!("{spec}: {error}"))
}

fn local(endpoint: &Endpoint) -> SocketAddr {
    match endpoint.worker().expect("in this thread").port() {
        AnyPort::Udp(port) => port.local(),
        other => panic!("{other:?}"),
    }
}

/// Where a packet of `source` comes from.
fn socket_of(endpoint: &Endpoint, source: Source) -> SocketAddr {
    let worker = endpoint.worker().unwrap();
    let AnyPort::Udp(port) = worker.port() else { unreachable!() };
    port.socket_of(worker.book().ip(source.peer).unwrap()).unwrap()
}

fn connect(endpoint: &mut Endpoint, to: SocketAddr) -> ConnectionId {
    let peer = endpoint.peer(to).unwrap();
    assert_eq!(endpoint.peer(to).unwrap(), peer, "a peer that is known");
    endpoint.connect(peer).unwrap()
}

/// Turns all endpoints until each of them has completed as many operations as `wanted` says.
fn complete<const N: usize>(endpoints: [&mut Endpoint; N], wanted: [usize; N]) -> [Vec<Completion>; N] {
    let (begin, mut endpoints) = (Instant::now(), endpoints);
    let mut all: [Vec<Completion>; N] = std::array::from_fn(|_| Vec::new());
    while (0..N).any(|n| all[n].len() < wanted[n]) {
        assert!(begin.elapsed() < BOUND, "{all:?}");
        for (endpoint, completions) in endpoints.iter_mut().zip(&mut all) {
            match endpoint.poll().unwrap() {
                Some(Completion::Connected { .. }) | None => {}
                Some(completion) => completions.push(completion),
            }
        }
    }
    all
}

fn sent(completions: &[Completion]) -> usize {
    completions.iter().filter(|c| matches!(c, Completion::Sent { result: Ok(()), .. })).count()
}

#[test]
fn endpoints_of_one_address_are_senders_of_their_own() {
    for address in ["127.0.0.1", "[::1]"] {
        let spec = format!("udp:{address},shared=on,entropies=4");
        let (mut a, mut b, mut c) = (open(&spec), open(&spec), open(&spec));
        let to = local(&c);
        assert!(to.port().is_multiple_of(4), "{to}");
        let (from_a, from_b) = (connect(&mut a, to), connect(&mut b, to));
        let payload = |n: u8| vec![n; 100_000];
        a.send_with(from_a, payload(1), SendOptions::default().tag(1)).unwrap();
        b.send_with(from_b, payload(2), SendOptions::default().tag(2)).unwrap();
        c.receive_with(vec![0; 100_000], ReceiveOptions::default().tag(1)).unwrap();
        // One receive names its sender.
        let peer = c.peer(local(&b)).unwrap();
        c.receive_with(vec![0; 100_000], ReceiveOptions::default().tags(0, u64::MAX).from(peer)).unwrap();
        let [at_a, at_b, at_c] = complete([&mut a, &mut b, &mut c], [1, 1, 2]);
        assert_eq!((sent(&at_a), sent(&at_b)), (1, 1), "{at_a:?} {at_b:?}");
        for completion in &at_c {
            let Completion::Received { source: Some(source), tag: Some(tag), .. } = completion else {
                panic!("{completion:?}")
            };
            let sender = if *tag == 1 { local(&a) } else { local(&b) };
            assert_eq!(socket_of(&c, *source), sender, "tag {tag}");
            assert_eq!(completion.message().unwrap(), payload(*tag as u8));
        }
    }
}

#[test]
fn an_endpoint_sends_to_itself() {
    let mut a = open("udp:127.0.0.1,shared=on");
    let to = local(&a);
    let connection = connect(&mut a, to);
    let payload: Vec<u8> = (0..1 << 20).map(|n: u32| ((n * 31) >> 5) as u8).collect();
    for _ in 0..3 {
        a.receive(OwnedBytes::new(vec![0; payload.len()])).unwrap();
        a.send(connection, payload.clone()).unwrap();
    }
    let [completions] = complete([&mut a], [6]);
    assert_eq!(sent(&completions), 3, "{completions:?}");
    for completion in completions {
        if let Completion::Received { buffer: ReceiveBuffer::Owned(bytes), result, .. } = completion {
            assert_eq!(result, Ok(()));
            assert!(bytes.as_slice() == payload);
        }
    }
}

/// As on a host whose loopback interface carries longer packets than its network cards.
#[test]
fn endpoints_with_different_mtus_understand_each_other() {
    let open = |mtu| Endpoint::builder("udp:127.0.0.1,shared=on").mtu(mtu).build().unwrap();
    let (mut a, mut b) = (open(1500), open(9000));
    let (to_b, to_a) = (local(&b), local(&a));
    let connections = (connect(&mut a, to_b), connect(&mut b, to_a));
    let payload: Vec<u8> = (0..300_000).map(|n: u32| ((n * 31) >> 5) as u8).collect();
    a.receive(vec![0; payload.len()]).unwrap();
    b.receive(vec![0; payload.len()]).unwrap();
    a.send(connections.0, payload.clone()).unwrap();
    b.send(connections.1, payload.clone()).unwrap();
    for completions in complete([&mut a, &mut b], [2, 2]) {
        assert_eq!(sent(&completions), 1, "{completions:?}");
        assert_eq!(completions.iter().find_map(Completion::message).unwrap(), payload);
    }
}

#[test]
fn a_peer_that_starts_late_and_at_a_given_port_is_reached() {
    let mut a = open("udp:127.0.0.1,shared=on,entropies=4");
    let b = open("udp:127.0.0.1,shared=on,entropies=4");
    let to = local(&b);
    drop(b);
    let connection = connect(&mut a, to);
    a.send(connection, b"early").unwrap();
    for _ in 0..10 {
        assert!(!matches!(a.poll().unwrap(), Some(Completion::Sent { .. })));
    }
    let mut b = open(&format!("udp:127.0.0.1,shared=on,entropies=4,port={}", to.port()));
    assert_eq!(local(&b), to);
    b.receive(vec![0; 10]).unwrap();
    let [at_a, at_b] = complete([&mut a, &mut b], [1, 1]);
    assert_eq!((sent(&at_a), at_b[0].message().unwrap().as_ref()), (1, &b"early"[..]));
}

#[test]
fn peers_and_ports_that_cannot_be_are_refused() {
    let refusal = |spec: &str, peer: &str| open(spec).peer(peer).expect_err(peer).to_string();
    assert!(refusal("udp:127.0.0.1,shared=on", "127.0.0.1").contains("named without its UDP port"));
    assert!(refusal("udp:127.0.0.1,shared=on", "127.0.0.1:4001").contains("expected a multiple of 8"));
    assert!(refusal("udp:127.0.0.1,shared=on", "[::1]:4000").contains("another IP version"));
    let own = format!("udp:127.44.{}.1", std::process::id() % 256);
    assert!(refusal(&own, "127.0.0.1:4000").contains("only ports with shared=on"));
    let taken = open("udp:127.0.0.1,shared=on,entropies=4");
    let spec = format!("udp:127.0.0.1,shared=on,entropies=4,port={}", local(&taken).port());
    let error = Endpoint::builder(spec).build().unwrap_err().to_string();
    assert!(error.contains("another process, or another port of this one, is bound to it"), "{error}");
    let error = Endpoint::builder("udp:127.0.0.1,shared=on,port=4001").build().unwrap_err().to_string();
    assert!(error.contains("8 source ports from 4001: expected"), "{error}");
}
