//! Datagrams between two endpoints over kernel UDP.

use std::time::{Duration, Instant};

use weft::{CallError, Completion, Endpoint, Error, OwnedBytes, SendBuffer, Source};

/// The longest wait, on a machine that is busy with others.
const BOUND: Duration = Duration::from_secs(60);

/// The next completion of one of the endpoints, while both work.
fn next(endpoints: &mut [Endpoint; 2], which: usize) -> Completion {
    let begin = Instant::now();
    loop {
        if let Some(completion) = endpoints[which].poll().expect("the worker is here") {
            return completion;
        }
        let other = endpoints[1 - which].wait(Duration::from_millis(1)).expect("the worker is here");
        assert!(other.is_none(), "{other:?}");
        assert!(begin.elapsed() < BOUND, "no completion");
    }
}

#[test]
fn a_datagram_of_any_length_arrives_with_its_sender_and_header_data() {
    let build = |address: &str| Endpoint::builder(address).build().expect("a port");
    let mut endpoints = [build("udp:127.46.0.1"), build("udp:127.46.0.2")];
    let peer = endpoints[0].peer("127.46.0.2").expect("a peer");
    let sender = endpoints[1].peer("127.46.0.1").expect("a peer");
    let most = endpoints[0].longest_datagram().expect("its worker is here") as usize;
    for len in [0, 1, 1000, most] {
        let bytes: Vec<u8> = (0..len).map(|n| (n * 7) as u8).collect();
        endpoints[1].receive_datagram(vec![0; most], 5).expect("room");
        endpoints[0].send_datagram(peer, bytes.clone(), u64::MAX, 6).expect("room");
        let sent = next(&mut endpoints, 0);
        let Completion::Sent { context: 6, buffer: SendBuffer::Vec(back), result: Ok(()), .. } = sent else {
            panic!("{sent:?}")
        };
        assert_eq!(back, bytes);
        let received = next(&mut endpoints, 1);
        assert_eq!(received.message().expect("a datagram"), bytes);
        let Completion::Received { context: 5, source, header_data: u64::MAX, .. } = received else {
            panic!("{received:?}")
        };
        assert_eq!(source, Some(Source::from(sender)));
    }
    let refused = endpoints[0].send_datagram(peer, vec![0; most + 1], 0, 0).expect_err("one byte too many");
    assert_eq!(refused.error, Error::Refused(CallError::DatagramTooLong { most: most as u32 }));
    assert_eq!(refused.buffer.len(), most + 1);
}

#[test]
fn an_endpoint_whose_worker_runs_elsewhere_has_no_datagrams() {
    let mut endpoint = Endpoint::builder("udp:127.46.0.3").on_thread(None).build().expect("a port");
    let peer = endpoint.peer("127.46.0.4").expect("a peer");
    assert_eq!(endpoint.longest_datagram(), None);
    let refused = endpoint.send_datagram(peer, vec![0; 10], 0, 0).expect_err("a thread of its own");
    assert_eq!(refused.error, Error::DatagramsElsewhere);
    let refused =
        endpoint.receive_datagram(OwnedBytes::new(vec![0; 10]), 0).expect_err("a thread of its own");
    assert_eq!(refused.error, Error::DatagramsElsewhere);
}
