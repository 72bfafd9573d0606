//! Random calls between two endpoints whose datagrams are lost, copied, reordered and trimmed: every operation ends once, and as
//! a model says. So do long messages, of which their receivers read the bytes.

use crate::common::fabric::{How, Side, Wish};
use crate::common::lossy::{Faults, Relay};
use crate::common::model::games::{play_over_relay, seeds};
use crate::common::{inside_with, stand_ins};

const FAULTS: Faults = Faults { lost: 20, copied: 20, late: 50, trimmed: 100 };
const VARIABLES: [(&str, &str); 1] = [("FI_WEFT_MTU", "1500")];

#[test]
fn random_calls_end_as_a_model_says_whatever_happens_to_datagrams() {
    let name = "random_calls_end_as_a_model_says_whatever_happens_to_datagrams";
    if !inside_with(name, &VARIABLES) {
        return;
    }
    for seed in seeds(4) {
        play_over_relay(seed, FAULTS);
    }
}

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 5 + (n >> 8) * 3 + (n >> 17) + seed * 17) as u8).collect()
}

/// Two sides, of which the first one has sent a message that the second one keeps: something stands for those behind it that are
/// longer than 64 KiB. The relay between them, the number of the other one in each, and that message.
fn ahead(seed: u64) -> ([Side; 2], Relay, [u64; 2], Vec<u8>) {
    let [a, b] = [(); 2].map(|()| Side::open(&Wish::default(), How::default()));
    let (relay, numbers) = Relay::between([&a, &b], FAULTS, seed);
    let message = bytes(24 << 20, 1);
    a.send(numbers[0], &message, Some(99), 1);
    assert_eq!(a.cq.next().unwrap().context, 1);
    ([a, b], relay, numbers, message)
}

/// The second side receives the message that it has kept.
fn end([a, b]: [Side; 2], relay: Relay, from_a: u64, message: &[u8]) {
    let mut room = vec![0; message.len()];
    b.receive(&mut room, from_a, Some((99, 0)), 2);
    assert_eq!(b.cq.next().unwrap().context, 2);
    assert!(room == message);
    assert_eq!((a.cq.read(), b.cq.read()), (None, None));
    FAULTS.check(relay.stop());
}

#[test]
fn long_messages_are_truncated_looked_at_claimed_and_dropped_whatever_happens_to_datagrams() {
    let name = "long_messages_are_truncated_looked_at_claimed_and_dropped_whatever_happens_to_datagrams";
    if !inside_with(name, &VARIABLES) {
        return;
    }
    for seed in seeds(1) {
        let (sides, relay, [to_b, from_a], first) = ahead(seed);
        stand_ins::every_end(&sides[0], &sides[1], to_b, from_a, &bytes(1_000_003, 3));
        end(sides, relay, from_a, &first);
    }
}

#[test]
fn long_messages_are_received_in_the_opposite_order_whatever_happens_to_datagrams() {
    let name = "long_messages_are_received_in_the_opposite_order_whatever_happens_to_datagrams";
    const COUNT: usize = 6;
    const LEN: usize = 3 << 20;
    if !inside_with(name, &VARIABLES) {
        return;
    }
    for seed in seeds(1) {
        let (sides, relay, [to_b, from_a], first) = ahead(seed);
        let [a, b] = &sides;
        let messages: Vec<_> = (0..COUNT).map(|n| bytes(LEN - n, n)).collect();
        for (n, message) in messages.iter().enumerate() {
            a.send(to_b, message, Some(n as u64), n);
        }
        // None of them is complete before its receive, not even the first.
        stand_ins::until_there(b, COUNT as u64 - 1);
        assert_eq!(a.cq.read_within(200), None);
        let mut room = vec![0; LEN];
        for (n, message) in messages.iter().enumerate().rev() {
            b.receive(&mut room, from_a, Some((n as u64, 0)), n);
            let received = b.cq.next().unwrap();
            assert_eq!((received.context, received.len, received.tag), (n, message.len(), n as u64));
            assert!(room[..message.len()] == message[..], "message {n}");
        }
        let mut sent: Vec<_> = (0..COUNT).map(|_| a.cq.next().unwrap().context).collect();
        sent.sort_unstable();
        assert!(sent.into_iter().eq(0..COUNT));
        end(sides, relay, from_a, &first);
    }
}
