//! Datagrams between two endpoints over kernel UDP, whose workers run in the caller's thread or on threads of their own.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use weft::{CallError, Completion, Endpoint, Error, SendBuffer, Source};

/// The longest wait, on a machine that is busy with others.
const BOUND: Duration = Duration::from_secs(60);

/// Two endpoints that work together, and what each has completed before its turn.
struct Pair {
    endpoints: [Endpoint; 2],
    kept: [VecDeque<Completion>; 2],
}

impl Pair {
    /// The next completion of one of them.
    fn next(&mut self, which: usize) -> Completion {
        let begin = Instant::now();
        loop {
            for (endpoint, kept) in self.endpoints.iter_mut().zip(&mut self.kept) {
                kept.extend(endpoint.wait(Duration::from_millis(1)).expect("the worker is there"));
            }
            if let Some(completion) = self.kept[which].pop_front() {
                return completion;
            }
            assert!(begin.elapsed() < BOUND, "no completion");
        }
    }

    /// Makes room for a datagram, and waits until the worker knows.
    fn receive(&mut self, len: usize) {
        self.endpoints[1].receive_datagram(vec![0; len], 5).expect("room");
        let other = self.endpoints[1].receive_datagram(vec![0; 1], 9).expect("room");
        self.endpoints[1].cancel(other).expect("it is posted");
        let cancelled = self.next(1);
        let is_cancelled = matches!(cancelled, Completion::Received { context: 9, result: Err(_), .. });
        assert!(is_cancelled, "{cancelled:?}");
    }
}

fn exchange(endpoints: [Endpoint; 2], addresses: [&str; 2]) {
    let mut pair = Pair { endpoints, kept: Default::default() };
    let peer = pair.endpoints[0].peer(addresses[1]).expect("a peer");
    let sender = pair.endpoints[1].peer(addresses[0]).expect("a peer");
    let most = pair.endpoints[0].longest_datagram() as usize;
    for len in [0, 1, 1000, most] {
        let bytes: Vec<u8> = (0..len).map(|n| (n * 7) as u8).collect();
        pair.receive(most);
        pair.endpoints[0].send_datagram(peer, bytes.clone(), u64::MAX, 6).expect("room");
        let sent = pair.next(0);
        let Completion::Sent { context: 6, buffer: SendBuffer::Vec(back), result: Ok(()), .. } = sent else {
            panic!("{sent:?}")
        };
        assert_eq!(back, bytes);
        let received = pair.next(1);
        assert_eq!(received.message().expect("a datagram"), bytes);
        let Completion::Received { context: 5, source, header_data: u64::MAX, .. } = received else {
            panic!("{received:?}")
        };
        assert_eq!(source, Some(Source::from(sender)));
    }
    let too_long = pair.endpoints[0].send_datagram(peer, vec![0; most + 1], 0, 0);
    let refused = too_long.expect_err("one byte too many");
    assert_eq!(refused.error, Error::Refused(CallError::DatagramTooLong { most: most as u32 }));
    assert_eq!(refused.buffer.len(), most + 1);
    // An endpoint that is shut down sends what was posted before.
    pair.receive(most);
    let [mut a, mut b] = pair.endpoints;
    a.send_datagram(peer, b"last".to_vec(), 0, 0).expect("room");
    a.shutdown(BOUND).expect("it leaves");
    let received = b.wait(BOUND).expect("the worker is there").expect("a datagram");
    assert_eq!(received.message().expect("a datagram"), &b"last"[..]);
}

#[test]
fn datagrams_of_any_length_arrive_with_their_sender_and_header_data() {
    let addresses = ["127.46.0.1", "127.46.0.2"];
    exchange(addresses.map(|at| Endpoint::builder(format!("udp:{at}")).build().expect("a port")), addresses);
}

#[test]
fn endpoints_whose_workers_run_elsewhere_exchange_datagrams_too() {
    let addresses = ["127.46.0.3", "127.46.0.4"];
    let build = |at| Endpoint::builder(format!("udp:{at}")).on_thread(None).build().expect("a port");
    exchange(addresses.map(build), addresses);
}
