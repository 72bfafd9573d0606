//! An endpoint sends messages to itself, over a port that does not carry them back.

use std::time::{Duration, Instant};

use weft::{Completion, Endpoint, ReceiveOptions, SendOptions, Source};

const BOUND: Duration = Duration::from_secs(20);

/// The messages are longer than a burst of packets, and there are more of them than a window holds.
fn send_to_oneself(endpoint: &mut Endpoint, own: &str) {
    const COUNT: u64 = 8;
    let content = |n: u64| -> Vec<u8> { (0..1_000_000u64).map(|at| (at * 7 + n * 31) as u8).collect() };
    let peer = endpoint.peer(own).unwrap();
    for n in 0..COUNT {
        let options = ReceiveOptions::default().tag(n).from(Source { peer, process: 0 });
        endpoint.receive_with(vec![0; 1_000_000], options).unwrap();
    }
    let connection = endpoint.connect(peer).unwrap();
    for n in 0..COUNT {
        let mut options = SendOptions::default();
        options.tag = Some(n);
        endpoint.send_with(connection, content(n), options).unwrap();
    }
    let (begin, mut sent, mut received) = (Instant::now(), 0, 0);
    while sent < COUNT || received < COUNT {
        assert!(begin.elapsed() < BOUND, "{sent} sent, {received} received");
        match endpoint.wait(Duration::from_secs(1)).unwrap() {
            Some(Completion::Sent { result, .. }) => {
                result.unwrap();
                sent += 1;
            }
            Some(Completion::Received { result, source, tag, len, buffer, .. }) => {
                result.unwrap();
                assert_eq!(source, Some(Source { peer, process: 0 }));
                assert!(buffer.to_bytes(len) == content(tag.unwrap()), "the bytes of message {tag:?}");
                received += 1;
            }
            _ => {}
        }
    }
}

#[test]
fn an_endpoint_sends_to_itself_and_no_port_sees_it() {
    let directory = tempfile::tempdir().unwrap();
    // Nobody is at the other end.
    let spec = format!("memif:{},role=server,ip=10.0.0.1", directory.path().join("socket").display());
    let mut endpoint = Endpoint::builder(spec).build().unwrap();
    assert_eq!(endpoint.ip(), Some([10, 0, 0, 1].into()));
    send_to_oneself(&mut endpoint, "10.0.0.1");
}

#[test]
fn an_endpoint_knows_itself_by_the_address_that_peers_use() {
    let mut endpoint = Endpoint::builder("udp:127.46.0.5,called=198.51.100.7").build().unwrap();
    assert_eq!(endpoint.ip(), Some([198, 51, 100, 7].into()));
    let own = endpoint.peer("127.46.0.5").unwrap();
    assert_eq!(endpoint.peer("198.51.100.7").unwrap(), own);
    send_to_oneself(&mut endpoint, "198.51.100.7");
}
