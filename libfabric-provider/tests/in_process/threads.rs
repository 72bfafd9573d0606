//! Several threads of a program use one endpoint and its completion queue at the same time (FI_THREAD_SAFE).

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use crate::common::fabric::{BOUND, How, Side, Wish};
use crate::common::inside;
use crate::common::server::servers;
use weft_fi::sys;

const PLAIN: &str = "threads_share_an_endpoint_and_its_queue";
const SERVED: &str = "threads_share_an_endpoint_of_a_server_and_its_queue";

/// Threads of each side.
const THREADS: usize = 4;
/// Rounds, in each of which a thread posts so many messages or receives.
const ROUNDS: usize = 60;
const AT_ONCE: usize = 8;

/// The content of a message of a thread: some of one packet, some of many.
fn content(thread: usize, number: usize) -> Vec<u8> {
    let len = [0, 1, 700, 5_000, 40_000][(thread + number) % 5];
    (0..len).map(|at| (at * 7 + thread * 31 + number * 3) as u8).collect()
}

fn tag(thread: usize, number: usize) -> u64 {
    (thread << 32 | number) as u64
}

/// An endpoint, and how often each operation has ended: the thread that reads an entry is seldom the one that waits for it.
struct Shared {
    side: Side,
    ended: Vec<AtomicU32>,
}

impl Shared {
    fn open(domain: Option<String>) -> Shared {
        let side = Side::open(&Wish { domain, ..Wish::default() }, How::default());
        Shared { side, ended: (0..THREADS * ROUNDS * AT_ONCE).map(|_| AtomicU32::new(0)).collect() }
    }

    fn context(thread: usize, number: usize) -> usize {
        thread * ROUNDS * AT_ONCE + number
    }

    /// Reads entries of any thread until those of these numbers have ended.
    fn wait_for(&self, thread: usize, numbers: std::ops::Range<usize>) {
        let begin = Instant::now();
        let has_ended = |number| self.ended[Shared::context(thread, number)].load(Ordering::Acquire) > 0;
        while !numbers.clone().all(has_ended) {
            match self.side.cq.read() {
                Some(entry) => {
                    let entry = entry.unwrap();
                    self.ended[entry.context].fetch_add(1, Ordering::Release);
                }
                None => std::thread::yield_now(),
            }
            assert!(begin.elapsed() < BOUND, "thread {thread} waits for {numbers:?}");
        }
    }
}

fn share(domains: [Option<String>; 2]) {
    let [a, b] = domains.map(Shared::open);
    let (to_b, from_a) = (a.side.insert(&b.side.name()), b.side.insert(&a.side.name()));
    let (a, b) = (&a, &b);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let numbers = round * AT_ONCE..(round + 1) * AT_ONCE;
                    let messages: Vec<Vec<u8>> =
                        numbers.clone().map(|number| content(thread, number)).collect();
                    for (number, message) in numbers.clone().zip(&messages) {
                        a.side.send(
                            to_b,
                            message,
                            Some(tag(thread, number)),
                            Shared::context(thread, number),
                        );
                    }
                    a.wait_for(thread, numbers);
                }
            });
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let numbers = round * AT_ONCE..(round + 1) * AT_ONCE;
                    let mut rooms = vec![vec![0xee; 40_001]; AT_ONCE];
                    for (number, room) in numbers.clone().zip(&mut rooms) {
                        // Some name the sender, some do not.
                        let from = if number % 2 == 0 { from_a } else { sys::FI_ADDR_UNSPEC };
                        let context = Shared::context(thread, number);
                        b.side.receive(room, from, Some((tag(thread, number), 0)), context);
                    }
                    b.wait_for(thread, numbers.clone());
                    for (number, room) in numbers.zip(&rooms) {
                        let message = content(thread, number);
                        assert!(room[..message.len()] == message, "message {number} of thread {thread}");
                        assert!(room[message.len()..].iter().all(|byte| *byte == 0xee));
                    }
                }
            });
        }
    });
    for side in [a, b] {
        assert_eq!(side.side.cq.read(), None);
        assert!(side.ended.iter().all(|times| times.load(Ordering::Relaxed) == 1));
    }
}

#[test]
fn threads_share_an_endpoint_and_its_queue() {
    if inside(PLAIN) {
        share([None, None]);
    }
}

#[test]
fn threads_share_an_endpoint_of_a_server_and_its_queue() {
    if inside(SERVED) {
        let directory = tempfile::tempdir().unwrap();
        let servers = servers(&directory, 64);
        share([Some(servers[0].name()), Some(servers[1].name())]);
    }
}
