//! Endpoints of two servers between which packets are lost, copied, reordered and trimmed: random calls end once, and as a model
//! says, and long messages that are fetched arrive.

use std::time::Instant;

use crate::common::fabric::{BOUND, Side};
use crate::common::lossy::Faults;
use crate::common::model::games::{play_at_servers, seeds};
use crate::common::server::{open, servers_over_relay};
use crate::common::{inside, inside_with, stand_ins};

const FAULTS: Faults = Faults { lost: 10, copied: 10, late: 20, trimmed: 50 };
/// Memory for messages: 1 MiB, with which tagged messages of more than 128 KiB are fetched, and others of more than 256 KiB.
const LITTLE: [(&str, &str); 1] = [("FI_WEFT_MEMORY", "1")];
/// Bytes of a message that is longer than a part of that.
const LONG: usize = 300_003;

#[test]
fn random_calls_end_as_a_model_says_whatever_happens_between_servers() {
    if inside("random_calls_end_as_a_model_says_whatever_happens_between_servers") {
        play_between(35);
    }
}

#[test]
fn random_calls_end_as_a_model_says_whatever_happens_between_servers_with_little_memory() {
    let name = "random_calls_end_as_a_model_says_whatever_happens_between_servers_with_little_memory";
    if inside_with(name, &LITTLE) {
        play_between(35);
    }
}

/// Plays each seed at two servers, hosts `first` and the next one, with a relay at the hosts behind them.
fn play_between(first: u8) {
    for seed in seeds(2) {
        let directory = tempfile::tempdir().unwrap();
        let (servers, relay) = servers_over_relay(&directory, first, FAULTS, seed);
        play_at_servers(seed, &servers);
        let counts = relay.stop();
        println!("seed {seed}: {counts:?}");
        FAULTS.check(counts);
    }
}

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 5 + (n >> 8) * 3 + (n >> 17) + seed * 17) as u8).collect()
}

#[test]
fn long_messages_are_fetched_whatever_happens_between_servers() {
    if !inside_with("long_messages_are_fetched_whatever_happens_between_servers", &LITTLE) {
        return;
    }
    for seed in seeds(1) {
        let directory = tempfile::tempdir().unwrap();
        let (servers, relay) = servers_over_relay(&directory, 35, FAULTS, seed);
        let (a, b) = (open(&servers[0]), open(&servers[1]));
        let (to_b, to_a) = (a.insert(&b.name()), b.insert(&a.name()));
        stand_ins::every_end(&a, &b, to_b, to_a, &bytes(LONG, 3));
        for tag in [None, Some(5)] {
            exchange([&a, &b], [to_b, to_a], tag);
        }
        drop((a, b));
        FAULTS.check(relay.stop());
    }
}

/// Each of two sides sends the other one some long messages, half of which find receives that wait for them.
fn exchange(sides: [&Side; 2], numbers: [u64; 2], tag: Option<u64>) {
    const COUNT: usize = 4;
    let messages = [0, 1].map(|from| [0, 1, 2, 3].map(|n| bytes(LONG + n, COUNT * from + n)));
    let mut rooms = [0; 2].map(|_| [0; COUNT].map(|_| vec![0u8; LONG + COUNT]));
    let mut receive = |range: std::ops::Range<usize>| {
        for (at, side) in sides.iter().enumerate() {
            for n in range.clone() {
                side.receive(&mut rooms[at][n], numbers[at], tag.map(|tag| (tag, 0)), n);
            }
        }
    };
    receive(0..COUNT / 2);
    for (from, side) in sides.iter().enumerate() {
        for (n, message) in messages[from].iter().enumerate() {
            side.send(numbers[from], message, tag, COUNT + n);
        }
    }
    receive(COUNT / 2..COUNT);
    let (begin, mut left) = (Instant::now(), [2 * COUNT; 2]);
    while left != [0; 2] {
        assert!(begin.elapsed() < BOUND, "{left:?} entries have not come");
        for (at, side) in sides.iter().enumerate() {
            let Some(entry) = side.cq.read() else { continue };
            let entry = entry.unwrap();
            left[at] -= 1;
            if let Some(message) = messages[1 - at].get(entry.context) {
                assert_eq!(entry.len, message.len());
                assert!(
                    rooms[at][entry.context][..entry.len] == message[..],
                    "message {} to {at}",
                    entry.context
                );
            }
        }
        std::thread::yield_now();
    }
}
