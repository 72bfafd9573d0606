//! Messages that nobody receives for a long time, more of them than memory and servers hold: those behind them are received, and those to
//! others arrive.

use std::ptr::null_mut;
use std::time::Duration;

use crate::common::fabric::{Side, table};
use crate::common::inside_with;
use crate::common::server::{open, servers};
use weft_fi::sys;

/// Memory for messages: 16 MiB.
const LITTLE: &[(&str, &str)] = &[("FI_WEFT_MEMORY", "16")];

fn bytes(len: usize, seed: usize) -> impl Iterator<Item = u8> {
    (0..len).map(move |n| (n * 5 + (n >> 8) * 3 + (n >> 17) + seed * 17 + (seed >> 8) * 29) as u8)
}

fn is_message(room: &[u8], seed: usize) -> bool {
    bytes(room.len(), seed).eq(room.iter().copied())
}

/// Receives `count` messages with as many bytes, whose tags are their numbers, in the order of `numbers`.
fn receive(side: &Side, from: u64, len: usize, numbers: impl Iterator<Item = usize>) {
    const BATCH: usize = 128;
    let mut numbers = numbers.peekable();
    let mut rooms = vec![vec![0; len]; BATCH];
    while numbers.peek().is_some() {
        let batch: Vec<usize> = numbers.by_ref().take(BATCH).collect();
        for (room, number) in rooms.iter_mut().zip(&batch) {
            side.receive(room, from, Some((*number as u64, 0)), *number);
        }
        for _ in &batch {
            let entry = side.cq.next().unwrap();
            assert_eq!((entry.tag, entry.len), (entry.context as u64, len));
        }
        for (room, number) in rooms.iter_mut().zip(&batch) {
            assert!(is_message(room, *number), "message {number}");
            room.fill(0);
        }
    }
}

/// Sends `count` messages of `len` bytes to a peer that receives the last one first.
fn last_first(first_host: u8, len: usize, count: usize) {
    let directory = tempfile::tempdir().unwrap();
    let servers = servers(&directory, first_host);
    let (a, b) = (open(&servers[0]), open(&servers[1]));
    let (to_b, from_a) = (a.insert(&b.name()), b.insert(&a.name()));
    let all: Vec<Vec<u8>> = (0..count).map(|n| bytes(len, n).collect()).collect();
    for (n, message) in all.iter().enumerate() {
        a.send(to_b, message, Some(n as u64), n);
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut ended = vec![false; count];
            for _ in 0..count {
                let entry = a.cq.next().unwrap();
                assert!(!std::mem::replace(&mut ended[entry.context], true));
            }
        });
        receive(&b, from_a, len, std::iter::once(count - 1));
        receive(&b, from_a, len, (count - 3..count - 1).rev());
        receive(&b, from_a, len, 0..count - 3);
    });
}

#[test]
fn the_last_of_100_mib_of_long_messages_is_received_first() {
    if inside_with("the_last_of_100_mib_of_long_messages_is_received_first", LITTLE) {
        last_first(91, 1 << 20, 100);
    }
}

#[test]
fn the_last_of_80_mib_of_short_messages_is_received_first() {
    if inside_with("the_last_of_80_mib_of_short_messages_is_received_first", LITTLE) {
        last_first(93, 4_000, 20_000);
    }
}

/// Nothing stands for messages that are so short. Their receiver takes none until its server and their sender have as many as they may.
#[test]
fn a_peer_that_takes_none_of_too_many_messages_holds_up_none_to_others() {
    if !inside_with("a_peer_that_takes_none_of_too_many_messages_holds_up_none_to_others", LITTLE) {
        return;
    }
    /// What a server keeps of a host.
    const KEPT: usize = 65_536;
    const LEN: usize = 40;
    const AGAIN: isize = -(sys::FI_EAGAIN as isize);
    let directory = tempfile::tempdir().unwrap();
    let servers = servers(&directory, 95);
    let (a, b, c) = (open(&servers[0]), open(&servers[1]), open(&servers[1]));
    let (to_b, to_c) = (a.insert(&b.name()), a.insert(&c.name()));
    let from_a = [&b, &c].map(|side| side.insert(&a.name()));
    let all: Vec<u8> = (0..KEPT * 2).flat_map(|n| bytes(LEN, n)).collect();
    let (mut ended, mut count) = (0, 0);
    for (n, message) in all.chunks_exact(LEN).enumerate() {
        let (at, context) = (message.as_ptr().cast(), n as *mut _);
        // There is room no more if none of those before has ended in so many tries.
        let mut tries = 0..10_000;
        let is_sent = loop {
            let answer = table!(a.ep, tagged.send(at, LEN, null_mut(), to_b, n as u64, context));
            assert!([0, AGAIN].contains(&answer), "{answer}");
            if a.cq.read().is_some_and(|entry| entry.is_ok()) {
                (ended, tries) = (ended + 1, 0..10_000);
            } else if answer == AGAIN {
                std::thread::sleep(Duration::from_micros(200));
            }
            if answer == 0 || tries.next().is_none() {
                break answer == 0;
            }
        };
        if !is_sent {
            break;
        }
        count += 1;
    }
    assert!(count > KEPT && count < 2 * KEPT, "{count} messages, {ended} of them kept");
    // Of all lengths.
    for (n, len) in [9, 4_096, 60_000, 3 << 20].into_iter().enumerate() {
        let (message, mut room): (Vec<u8>, _) = (bytes(len, n).collect(), vec![0; len]);
        c.receive(&mut room, from_a[1], Some((1, 0)), n);
        a.send(to_c, &message, Some(1), KEPT * 2);
        assert_eq!(c.cq.next().unwrap().len, len);
        assert!(room == message, "{len} bytes");
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while ended < count + 4 {
                a.cq.next().unwrap();
                ended += 1;
            }
        });
        receive(&b, from_a[0], LEN, 0..count);
    });
}
