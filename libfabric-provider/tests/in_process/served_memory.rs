//! Endpoints of servers whose memory for messages is smaller than what they send and receive at a time.

use std::ptr::null_mut;
use std::time::{Duration, Instant};

use crate::common::fabric::{BOUND, Failed, Side, table};
use crate::common::inside_with;
use crate::common::server::{open, servers};
use crate::waiting::receive_many;
use weft_fi::sys::{self, FI_ADDR_UNSPEC};

/// Little memory for messages: 4 MiB, of which a quarter is for what is sent, and one for receives.
const LITTLE: &[(&str, &str)] = &[("FI_WEFT_MEMORY", "4")];
/// Bytes of a message that is a large part of that.
const LARGE: usize = 700_000;

fn large(seed: usize) -> Vec<u8> {
    (0..LARGE).map(|n| (n * 5 + (n >> 8) * 3 + seed * 17) as u8).collect()
}

#[test]
fn receives_and_messages_that_are_longer_than_the_memory_together_wait_for_it() {
    if !inside_with("receives_and_messages_that_are_longer_than_the_memory_together_wait_for_it", LITTLE) {
        return;
    }
    const COUNT: usize = 12;
    let directory = tempfile::tempdir().unwrap();
    let servers = servers(&directory, 11);
    let (a, b) = (open(&servers[0]), open(&servers[1]));
    let numbers = [(&a, &b), (&b, &a)].map(|(own, other)| own.insert(&other.name()));
    // Both sides post everything at once, and receive in the opposite order.
    let messages: Vec<Vec<u8>> = (0..2 * COUNT).map(large).collect();
    let mut rooms = vec![vec![0; 3 * LARGE]; 2 * COUNT];
    let (rooms_of_a, rooms_of_b) = rooms.split_at_mut(COUNT);
    for (side, number, rooms) in [(&a, numbers[0], rooms_of_a), (&b, numbers[1], rooms_of_b)] {
        for (tag, room) in rooms.iter_mut().enumerate().rev() {
            side.receive(room, number, Some((tag as u64, 0)), tag);
        }
    }
    for (n, message) in messages.iter().enumerate() {
        let (side, number) = if n < COUNT { (&b, numbers[1]) } else { (&a, numbers[0]) };
        side.send(number, message, Some((n % COUNT) as u64), 100);
    }
    std::thread::scope(|scope| {
        for side in [&a, &b] {
            scope.spawn(move || {
                let entries = (0..2 * COUNT).map(|_| side.cq.next().unwrap());
                let received = entries.filter(|entry| entry.context < 100);
                assert!(received.map(|entry| assert_eq!(entry.len, LARGE)).count() == COUNT);
            });
        }
    });
    assert!(rooms.iter().zip(&messages).all(|(room, message)| room[..LARGE] == message[..]));
}

#[test]
fn receives_that_wait_for_memory_get_the_messages_that_they_would_have_got() {
    if !inside_with("receives_that_wait_for_memory_get_the_messages_that_they_would_have_got", LITTLE) {
        return;
    }
    const COUNT: usize = 8;
    let directory = tempfile::tempdir().unwrap();
    let servers = servers(&directory, 13);
    let (a, b) = (open(&servers[0]), open(&servers[1]));
    let (to_b, from_a) = (a.insert(&b.name()), b.insert(&a.name()));
    let begin = Instant::now();
    for round in 0..10 {
        // Longer than all memory, of which one is for any message; the others are for one tag, whose messages have turns.
        let mut rooms = vec![vec![0; 5 << 20]; COUNT];
        for (n, room) in rooms.iter_mut().enumerate() {
            let tags = if n == 3 { (0, u64::MAX) } else { (7, 0) };
            b.receive(room, FI_ADDR_UNSPEC, Some(tags), n);
        }
        let messages: Vec<Vec<u8>> = (0..COUNT).map(|n| large(n + round)[..1 << (2 * n)].to_vec()).collect();
        for message in &messages {
            a.send(to_b, message, Some(7), 50);
        }
        for _ in 0..COUNT {
            // It sleeps, and something wakes it.
            let entry = b.cq.read_within(60_000).expect("an entry").unwrap();
            assert_eq!((entry.len, entry.source, entry.tag), (messages[entry.context].len(), from_a, 7));
            assert!(a.cq.next().is_ok());
        }
        for (room, message) in rooms.iter().zip(&messages) {
            assert!(room[..message.len()] == message[..], "in round {round}");
        }
        assert!(begin.elapsed() < BOUND);
    }
}

#[test]
fn receives_that_wait_for_memory_are_truncated_cancelled_and_hidden_from_looks() {
    if !inside_with("receives_that_wait_for_memory_are_truncated_cancelled_and_hidden_from_looks", LITTLE) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let servers = servers(&directory, 15);
    let (a, b) = (open(&servers[0]), open(&servers[1]));
    let (to_b, from_a) = (a.insert(&b.name()), b.insert(&a.name()));
    let mut rooms = vec![vec![0; 5 << 20]; 2];
    let [first, second] = &mut rooms[..] else { unreachable!() };
    b.receive(first, FI_ADDR_UNSPEC, Some((1, 0)), 1);
    b.receive(second, FI_ADDR_UNSPEC, Some((2, 0)), 2);
    // SAFETY: the endpoint is open.
    let cancel = |context: usize| unsafe { (*(*b.ep).ops).cancel.unwrap()(b.ep.cast(), context as *mut _) };
    assert_eq!(cancel(2), 0);
    assert_eq!(b.cq.next(), Err(Failed { context: 2, error: sys::FI_ECANCELED, beyond: 0 }));
    // A look finds no message that a receive takes, and finds the one behind it.
    let mut room = vec![0u8; LARGE];
    let piece = sys::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: LARGE };
    let look = |context: usize| sys::fi_msg_tagged {
        msg_iov: &piece,
        desc: null_mut(),
        iov_count: 1,
        addr: from_a,
        tag: 1,
        ignore: 0,
        context: context as *mut _,
        data: 0,
    };
    let messages = [large(1), large(2)];
    a.send(to_b, &messages[0], Some(1), 9);
    a.cq.next().unwrap();
    b.post(|| table!(b.ep, tagged.recvmsg(&look(3), sys::FI_PEEK | sys::FI_CLAIM)));
    let mut entries = [b.cq.next(), b.cq.next()];
    entries.sort_by_key(|entry| entry.is_err());
    assert_eq!(entries[0].map(|entry| (entry.context, entry.len)), Ok((1, LARGE)));
    assert!(matches!(entries[1], Err(Failed { context: 3, error: sys::FI_ENOMSG, .. })), "{entries:?}");
    a.send(to_b, &messages[1], Some(1), 9);
    let begin = Instant::now();
    let found = loop {
        b.post(|| table!(b.ep, tagged.recvmsg(&look(4), sys::FI_PEEK | sys::FI_CLAIM)));
        match b.cq.next() {
            Err(Failed { error: sys::FI_ENOMSG, .. }) => assert!(begin.elapsed() < BOUND),
            found => break found,
        }
    };
    assert_eq!(found.map(|entry| (entry.context, entry.len)), Ok((4, LARGE)));
    b.post(|| table!(b.ep, tagged.recvmsg(&look(4), sys::FI_CLAIM)));
    assert_eq!(b.cq.next().map(|entry| (entry.context, entry.len)), Ok((4, LARGE)));
    a.cq.next().unwrap();
    assert!(rooms[0][..LARGE] == messages[0][..] && room == messages[1]);
    // A sender with more memory that uses `weft::Endpoint` does not ask how long messages may be: the receive ends with an error.
    let mut rich = weft::Endpoint::builder(servers[0].name()).memory(32 << 20).build().unwrap();
    let host = rich.peer(std::net::IpAddr::from(<[u8; 4]>::try_from(&b.name()[4..8]).unwrap())).unwrap();
    let process = u16::from_be_bytes([b.name()[2], b.name()[3]]);
    let options = weft::ConnectOptions::default().process(process);
    let connection = rich.connect_with(host, options).unwrap();
    rich.send_with(connection, vec![0; 3 << 20], weft::SendOptions::default().tag(6)).unwrap();
    b.receive(&mut rooms[0], FI_ADDR_UNSPEC, Some((6, 0)), 6);
    assert_eq!(b.cq.next(), Err(Failed { context: 6, error: sys::FI_EMSGSIZE, beyond: 0 }));
    drop(rich);
}

/// A receive waits for memory while looks of each kind, and a receive that does not have to wait for memory, are called behind it:
/// each gets what it would have got if nothing had waited.
#[test]
fn looks_and_receives_behind_a_receive_that_waits_get_messages_in_the_order_of_the_calls() {
    let name = "looks_and_receives_behind_a_receive_that_waits_get_messages_in_the_order_of_the_calls";
    if !inside_with(name, LITTLE) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let servers = servers(&directory, 21);
    let (a, b) = (open(&servers[0]), open(&servers[1]));
    let (to_b, from_a) = (a.insert(&b.name()), b.insert(&a.name()));
    let ended = |side: &Side| side.cq.next().map(|entry| (entry.context, entry.len)).unwrap();
    for flags in [0, sys::FI_CLAIM, sys::FI_DISCARD] {
        let mut rooms = [vec![0; 5 << 20], vec![0; 9], vec![0; 9]];
        let [waits, short, claimed] = &mut rooms;
        b.receive(waits, from_a, Some((1, 0)), 1);
        let send = |message: &[u8], tag| {
            a.send(to_b, message, Some(tag), 9);
            a.cq.next().unwrap();
        };
        send(b"one", 2);
        send(b"third", 2);
        let piece = sys::iovec { iov_base: claimed.as_mut_ptr().cast(), iov_len: claimed.len() };
        let look = sys::fi_msg_tagged {
            msg_iov: &piece,
            desc: null_mut(),
            iov_count: 1,
            addr: from_a,
            tag: 0,
            ignore: 3,
            context: 2 as *mut _,
            data: 0,
        };
        b.post(|| table!(b.ep, tagged.recvmsg(&look, sys::FI_PEEK | flags)));
        b.receive(short, from_a, Some((2, 0)), 3);
        let mut ends = [ended(&b), ended(&b)];
        ends.sort_unstable();
        // What a look has only seen is left to the receive.
        let of_short = if flags == 0 { 3 } else { 5 };
        assert_eq!(ends, [(2, 3), (3, of_short)], "flags {flags:#x}");
        if flags == 0 {
            b.receive(claimed, from_a, Some((2, 0)), 4);
            assert_eq!(ended(&b), (4, 5));
        } else if flags == sys::FI_CLAIM {
            b.post(|| table!(b.ep, tagged.recvmsg(&look, sys::FI_CLAIM)));
            assert_eq!(ended(&b), (2, 3));
            assert_eq!(rooms[2][..3], *b"one");
        }
        // A look sees no message of the receive that still waits.
        send(b"for the first", 1);
        b.post(|| {
            table!(b.ep, tagged.recvmsg(&sys::fi_msg_tagged { context: 5 as *mut _, ..look }, sys::FI_PEEK))
        });
        let mut ends = [b.cq.next(), b.cq.next()];
        ends.sort_by_key(|end| end.is_err());
        assert_eq!(ends[0].map(|entry| (entry.context, entry.len)), Ok((1, 13)));
        assert!(matches!(ends[1], Err(Failed { context: 5, error: sys::FI_ENOMSG, .. })), "{ends:?}");
        assert_eq!(rooms[0][..13], *b"for the first");
    }
}

/// Bytes of a long message of MPI's.
const LONG: usize = 8 << 20;
/// The least memory for such messages: one is a quarter of it.
const LEAST: &[(&str, &str)] = &[("FI_WEFT_MEMORY", "32")];

fn long(from: usize, to: usize) -> Vec<u8> {
    (0..LONG).map(|n| (n * 7 + (n >> 9) * 5 + from * 31 + to * 3) as u8).collect()
}

#[test]
fn eight_ranks_exchange_long_messages_in_memory_for_four() {
    if !inside_with("eight_ranks_exchange_long_messages_in_memory_for_four", LEAST) {
        return;
    }
    const RANKS: usize = 8;
    let directory = tempfile::tempdir().unwrap();
    let servers = servers(&directory, 17);
    let sides: Vec<Side> = (0..RANKS).map(|rank| open(&servers[rank % 2])).collect();
    let names: Vec<_> = sides.iter().map(Side::name).collect();
    std::thread::scope(|scope| {
        for (own, side) in sides.iter().enumerate() {
            let names = &names;
            scope.spawn(move || {
                let numbers: Vec<u64> = names.iter().map(|name| side.insert(name)).collect();
                let mut rooms = vec![vec![0; LONG]; RANKS];
                let messages: Vec<_> = (0..RANKS).map(|to| long(own, to)).collect();
                // As MPI_Alltoall: all receives, then all messages, then all are awaited.
                for (from, room) in rooms.iter_mut().enumerate() {
                    side.receive(room, numbers[from], Some((1, 0)), from);
                }
                for (to, message) in messages.iter().enumerate() {
                    side.send(numbers[to], message, Some(1), RANKS + to);
                }
                let mut left = [true; 2 * RANKS];
                for _ in 0..2 * RANKS {
                    let entry = side.cq.next().unwrap();
                    assert!(std::mem::take(&mut left[entry.context]));
                    assert!(entry.context >= RANKS || entry.len == LONG);
                }
                for (from, room) in rooms.iter().enumerate() {
                    assert!(*room == long(from, own), "{from} to {own}");
                }
            });
        }
    });
}

#[test]
fn messages_wait_for_a_receiver_that_posts_late() {
    if !inside_with("messages_wait_for_a_receiver_that_posts_late", LEAST) {
        return;
    }
    // More than what a server keeps for a receiver that has not posted.
    const COUNT: usize = 12;
    let directory = tempfile::tempdir().unwrap();
    let servers = servers(&directory, 19);
    let (a, b) = (open(&servers[0]), open(&servers[1]));
    let (to_b, from_a) = (a.insert(&b.name()), b.insert(&a.name()));
    let messages: Vec<_> = (0..COUNT).map(|n| long(n, 1)).collect();
    for (n, message) in messages.iter().enumerate() {
        a.send(to_b, message, Some(5), n);
    }
    // Its sender computes meanwhile, too.
    std::thread::sleep(Duration::from_millis(500));
    let mut rooms = vec![vec![0; LONG]; COUNT];
    for (n, room) in rooms.iter_mut().enumerate() {
        b.receive(room, from_a, Some((5, 0)), n);
    }
    let sent = std::thread::scope(|scope| {
        let sent = scope.spawn(|| (0..COUNT).map(|_| a.cq.next().unwrap().context).sum::<usize>());
        for _ in 0..COUNT {
            assert_eq!(b.cq.next().unwrap().len, LONG);
        }
        sent.join().unwrap()
    });
    assert_eq!(sent, (0..COUNT).sum());
    // In their order, though all have the same tag.
    assert!(rooms.iter().zip(&messages).all(|(room, message)| room == message));
}

/// A program that posts a number of them before it reads any entry would wait for ever.
#[test]
fn receives_for_many_messages_that_will_have_no_memory_are_refused() {
    if !inside_with("receives_for_many_messages_that_will_have_no_memory_are_refused", LITTLE) {
        return;
    }
    const ROOM: usize = 300_000;
    let directory = tempfile::tempdir().unwrap();
    let servers = servers(&directory, 98);
    let b = open(&servers[0]);
    let mut rooms = vec![vec![0u8; ROOM]; 16];
    let begin = Instant::now();
    let mut posted = 0;
    let refused = loop {
        match receive_many(&b, &mut rooms[posted], posted) {
            0 => posted += 1,
            again if again == -(sys::FI_EAGAIN as isize) => {
                assert!(begin.elapsed() < BOUND, "{posted} receives have memory, and one waits for it");
            }
            refused => break refused,
        }
    };
    assert_eq!(refused, -(sys::FI_ENOMEM as isize));
    assert!((1..=6).contains(&posted), "{posted} receives have half of 4 MiB at most");
    // Others have their own memory, and one that ends makes room.
    let own = b.insert(&b.name());
    let (message, mut room) = (large(3), vec![0; LARGE]);
    b.receive(&mut room, own, Some((1, 0)), 100);
    b.send(own, &message, Some(1), 101);
    (0..2).for_each(|_| assert!(b.cq.next().is_ok()));
    assert!(room == message);
    // SAFETY: the endpoint is open.
    assert_eq!(unsafe { (*(*b.ep).ops).cancel.unwrap()(b.ep.cast(), null_mut()) }, 0);
    assert_eq!(b.cq.next().unwrap_err().error, sys::FI_ECANCELED);
    b.receive_many(rooms[0].as_mut_ptr().cast(), ROOM);
}
