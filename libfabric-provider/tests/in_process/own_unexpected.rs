//! Messages between endpoints at ports of their own that nobody receives yet: a receive for the last of them is met, and nothing
//! that is asked of a peer waits behind them.

use crate::common::fabric::{Entry, Exposed, Failed, How, Side, Wish, table};
use crate::common::processes::{self, Process};
use crate::common::{first, inside, stand_ins};
use weft_fi::sys;

/// Bytes of a message of which a target keeps eight.
const LONG: usize = 16 << 20;

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 5 + (n >> 8) * 3 + (n >> 17) + seed * 17) as u8).collect()
}

fn open() -> Side {
    Side::open(&Wish::default(), How::default())
}

/// Two endpoints, and the number of the other one in each.
fn pair() -> ([Side; 2], [u64; 2]) {
    pair_with(0)
}

/// As [`pair`], with queues for so many entries.
fn pair_with(queue: usize) -> ([Side; 2], [u64; 2]) {
    let sides = [(); 2].map(|()| Side::open(&Wish::default(), How { queue, ..How::default() }));
    let to = [sides[0].insert(&sides[1].name()), sides[1].insert(&sides[0].name())];
    (sides, to)
}

fn next(side: &Side) -> Entry {
    side.cq.next().unwrap()
}

#[test]
fn messages_of_128_mib_are_received_in_the_opposite_order() {
    if !inside("messages_of_128_mib_are_received_in_the_opposite_order") {
        return;
    }
    const COUNT: usize = 8;
    let ([a, b], [to_b, from_a]) = pair();
    let messages: Vec<_> = (0..COUNT).map(|n| bytes(LONG - n, n)).collect();
    for (n, message) in messages.iter().enumerate() {
        a.send(to_b, message, Some(n as u64), n);
    }
    let mut room = vec![0; LONG];
    for (n, message) in messages.iter().enumerate().rev() {
        b.receive(&mut room, from_a, Some((n as u64, 0)), n);
        let received = next(&b);
        assert_eq!((received.context, received.len, received.tag), (n, message.len(), n as u64));
        assert!(room[..message.len()] == message[..], "message {n}");
    }
    let mut sent: Vec<_> = (0..COUNT).map(|_| next(&a).context).collect();
    sent.sort_unstable();
    assert!(sent.into_iter().eq(0..COUNT));
}

/// Both processes send first, and receive the last message first.
#[test]
fn both_sides_receive_in_the_opposite_order_at_once() {
    const NAME: &str = "both_sides_receive_in_the_opposite_order_at_once";
    const COUNT: usize = 8;
    if !inside(NAME) {
        return;
    }
    let exchange = |side: &Side, own: usize, peer: u64| {
        let messages: Vec<_> = (0..COUNT).map(|n| bytes(LONG + n, 2 * n + own)).collect();
        for (n, message) in messages.iter().enumerate() {
            side.send(peer, message, Some(n as u64), n);
        }
        let (mut room, mut sent, mut received) = (vec![0; LONG + COUNT], 0, 0);
        for n in (0..COUNT).rev() {
            side.receive(&mut room, peer, Some((n as u64, 0)), COUNT + n);
            while received < COUNT - n {
                let entry = next(side);
                if entry.context < COUNT {
                    sent += 1;
                    continue;
                }
                assert_eq!((entry.context, entry.len), (COUNT + n, LONG + n));
                assert!(room[..LONG + n] == bytes(LONG + n, 2 * n + 1 - own), "message {n} to {own}");
                received += 1;
            }
        }
        while sent < COUNT {
            assert!(next(side).context < COUNT);
            sent += 1;
        }
    };
    if processes::number().is_some() {
        let side = open();
        processes::say_name(side.name());
        let peer = side.insert(&processes::told_name());
        return exchange(&side, 1, peer);
    }
    let side = open();
    let mut process = Process::start(NAME, 1, &[]);
    let peer = side.insert(&process.name());
    process.tell_name(side.name());
    exchange(&side, 0, peer);
    assert!(process.child.wait().unwrap().success());
}

/// The message is longer than what is sent at once, and the first to its receiver, which has to say which process it is. A program that
/// was told to try again, and has nothing under way, may sleep until something of its own ends.
#[test]
fn a_program_that_sleeps_at_its_queue_is_woken_when_a_refused_message_can_be_sent() {
    if !inside("a_program_that_sleeps_at_its_queue_is_woken_when_a_refused_message_can_be_sent") {
        return;
    }
    const MINUTE: i32 = 60_000;
    let how = || How { wait: sys::FI_WAIT_UNSPEC, ..How::default() };
    let [a, b] = [how(), how()].map(|how| Side::open(&Wish::default(), how));
    let (to_b, from_a) = (a.insert(&b.name()), b.insert(&a.name()));
    let message = bytes(49 << 20, 1);
    let (at, len) = (message.as_ptr().cast(), message.len());
    let begin = std::time::Instant::now();
    let mut refusals = 0;
    loop {
        let sent = table!(a.ep, tagged.send(at, len, std::ptr::null_mut(), to_b, 5, 11 as *mut _));
        if sent == 0 {
            break;
        }
        assert_eq!(sent, -(sys::FI_EAGAIN as isize));
        refusals += 1;
        assert_eq!(a.cq.read_within(MINUTE), None);
        assert!(begin.elapsed().as_millis() < MINUTE as u128 / 2, "nobody has woken it");
    }
    assert!(refusals > 0, "nothing was refused");
    let mut room = vec![0; len];
    b.receive(&mut room, from_a, Some((5, 0)), 2);
    assert_eq!((next(&b).context, room == message), (2, true));
    assert_eq!(next(&a).context, 11);
}

/// The first one is longer than what is sent at once beside others, and the target keeps it.
#[test]
fn one_long_message_is_complete_before_its_receive_and_those_behind_it_are_read() {
    if !inside("one_long_message_is_complete_before_its_receive_and_those_behind_it_are_read") {
        return;
    }
    let ([a, b], [to_b, from_a]) = pair();
    let messages = [bytes(48 << 20, 1), bytes(48 << 20, 2), bytes(5_000, 3)];
    a.send(to_b, &messages[0], Some(0), 0);
    assert_eq!(next(&a).context, 0);
    (1..3).for_each(|n| a.send(to_b, &messages[n], Some(n as u64), n));
    assert_eq!(a.cq.read_within(1_000), None);
    let mut room = vec![0; 48 << 20];
    for n in [2, 1, 0] {
        b.receive(&mut room, from_a, Some((n as u64, 0)), n);
        let received = next(&b);
        assert_eq!((received.context, received.len), (n, messages[n].len()));
        assert!(room[..received.len] == messages[n][..], "message {n}");
    }
    let mut sent = [next(&a).context, next(&a).context];
    sent.sort_unstable();
    assert_eq!(sent, [1, 2]);
}

/// Sends so many messages with tags of their own, as long as `len` says, and receives them, the last one first.
fn receive_in_the_opposite_order(count: usize, len: impl Fn(usize) -> usize) {
    let ([a, b], [to_b, from_a]) = pair_with(count);
    let longest = (0..count).map(&len).max().unwrap();
    let all = bytes(longest + 256, 3);
    let message = |n: usize| &all[n % 251..n % 251 + len(n)];
    for n in 0..count {
        a.send(to_b, message(n), Some(n as u64), n);
    }
    let mut room = vec![0; longest];
    for n in (0..count).rev() {
        b.receive(&mut room, from_a, Some((n as u64, 0)), n);
        let received = next(&b);
        assert_eq!((received.context, received.len, received.tag), (n, len(n), n as u64));
        assert!(room[..len(n)] == *message(n), "message {n}");
    }
    let mut sent: Vec<_> = (0..count).map(|_| next(&a).context).collect();
    sent.sort_unstable();
    assert!(sent.into_iter().eq(0..count));
}

/// More bytes than are sent at once are in messages that go at once until so many are not received: something stands for the others.
#[test]
fn fifty_thousand_messages_of_a_kilobyte_and_a_half_are_received_in_the_opposite_order() {
    if inside("fifty_thousand_messages_of_a_kilobyte_and_a_half_are_received_in_the_opposite_order") {
        receive_in_the_opposite_order(50_000, |_| 1_500);
    }
}

#[test]
fn forty_thousand_messages_of_four_kilobytes_are_received_in_the_opposite_order() {
    if inside("forty_thousand_messages_of_four_kilobytes_are_received_in_the_opposite_order") {
        receive_in_the_opposite_order(40_000, |_| 4_096);
    }
}

/// As many bytes as may be sent at once are before messages that are too short for stand-ins.
#[test]
fn short_messages_behind_long_ones_are_received_in_the_opposite_order() {
    if inside("short_messages_behind_long_ones_are_received_in_the_opposite_order") {
        let long = |n| if n < 24 { 1 << 20 } else { 60_000 };
        receive_in_the_opposite_order(50_000, |n| if n < 300 { long(n) } else { 1_000 });
    }
}

/// So many messages are sent that the receiver has places for, whatever their lengths, and then calls are refused until it receives some.
#[test]
fn calls_are_refused_before_a_target_has_no_place_for_messages() {
    if !inside("calls_are_refused_before_a_target_has_no_place_for_messages") {
        return;
    }
    const SURE: usize = 55_296;
    let ([a, b], [to_b, from_a]) = pair_with(1 << 17);
    let message = bytes(7, 1);
    for n in 0..SURE {
        a.send(to_b, &message, Some(n as u64), n);
    }
    let (at, len, none) = (message.as_ptr().cast(), message.len(), std::ptr::null_mut());
    let try_next = |n: usize| table!(a.ep, tagged.send(at, len, none, to_b, n as u64, n as *mut _));
    let (mut count, mut refused) = (SURE, 0);
    while refused < 100 {
        match try_next(count) {
            0 => (count, refused) = (count + 1, 0),
            answer => {
                assert_eq!(answer, -(sys::FI_EAGAIN as isize));
                refused += 1;
                assert!(table!(a.cq.0, ops.read(none, 0)) <= 0);
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
        assert!(count < 65_536, "nothing is refused");
    }
    // The last one is met, and when some were received there is room for more.
    let mut room = vec![0; len];
    for n in [count - 1].into_iter().chain(0..10_000) {
        b.receive(&mut room, from_a, Some((n as u64, 0)), n);
        let received = next(&b);
        assert_eq!((received.context, received.len), (n, len));
        assert!(room == message, "message {n}");
    }
    a.send(to_b, &message, Some(count as u64), count);
    b.receive(&mut room, from_a, Some((count as u64, 0)), count);
    assert_eq!(next(&b).context, count);
}

/// The program has been refused for the number of its messages, all of which have arrived. Its peer receives some while it sleeps.
#[test]
fn a_program_that_sleeps_is_woken_when_its_peer_has_received_some_of_too_many_messages() {
    if !inside("a_program_that_sleeps_is_woken_when_its_peer_has_received_some_of_too_many_messages") {
        return;
    }
    const MINUTE: i32 = 60_000;
    const RECEIVED: usize = 10_000;
    let how = || How { wait: sys::FI_WAIT_UNSPEC, queue: 1 << 17, ..How::default() };
    let [a, b] = [how(), how()].map(|how| Side::open(&Wish::default(), how));
    let (to_b, from_a) = (a.insert(&b.name()), b.insert(&a.name()));
    let message = bytes(7, 1);
    let (at, len, none) = (message.as_ptr().cast(), message.len(), std::ptr::null_mut());
    let try_next = |n: usize| table!(a.ep, tagged.send(at, len, none, to_b, n as u64, n as *mut _));
    let (mut sent, mut ended, mut refused) = (0, 0, 0);
    while refused < 100 {
        let answer = try_next(sent);
        while a.cq.read().is_some() {
            ended += 1;
        }
        if answer == 0 {
            (sent, refused) = (sent + 1, 0);
        } else if ended == sent {
            assert_eq!(answer, -(sys::FI_EAGAIN as isize));
            refused += 1;
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(sent < 65_536, "nothing is refused");
    }
    let begin = std::time::Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut room = [0; 7];
            for n in 0..RECEIVED {
                b.receive(&mut room, from_a, Some((n as u64, 0)), n);
                assert_eq!((next(&b).context, room == message[..]), (n, true));
            }
        });
        while try_next(sent) != 0 {
            assert_eq!(a.cq.read_within(MINUTE), None);
            assert!(begin.elapsed().as_millis() < MINUTE as u128 / 2, "nobody has woken it");
        }
    });
    assert_eq!(next(&a).context, sent);
}

/// A target does not keep as much of each of them as of a single one.
#[test]
fn receives_for_the_last_messages_of_many_senders_are_met() {
    if !inside("receives_for_the_last_messages_of_many_senders_are_met") {
        return;
    }
    const SENDERS: usize = 64;
    const COUNT: usize = 650;
    const LEN: usize = 64 << 10;
    let all = bytes(LEN + 251, 5);
    let message = |sender: usize, n: usize| &all[(sender * COUNT + n) % 251..][..LEN];
    let receiver = open();
    let senders: Vec<Side> = (0..SENDERS).map(|_| open()).collect();
    let mut from = Vec::new();
    for (number, sender) in senders.iter().enumerate() {
        from.push(receiver.insert(&sender.name()));
        let to = sender.insert(&receiver.name());
        (0..COUNT).for_each(|n| sender.send(to, message(number, n), Some(n as u64), n));
    }
    let mut room = vec![0u8; LEN];
    for n in [COUNT - 1, COUNT / 2, 0] {
        for (number, from) in from.iter().enumerate() {
            receiver.receive(&mut room, *from, Some((n as u64, 0)), n);
            let received = next(&receiver);
            assert_eq!((received.context, received.len), (n, LEN));
            assert!(room == message(number, n), "message {n} of {number}");
        }
    }
    // Each of them would wait a second for the rest to be received.
    std::mem::forget(senders);
}

/// Messages of up to 64 KiB, of which more are kept than of longer ones.
#[test]
fn a_receive_for_the_last_of_many_messages_is_met() {
    if !inside("a_receive_for_the_last_of_many_messages_is_met") {
        return;
    }
    const LEN: usize = 40_000;
    const COUNT: usize = 3_000;
    let ([a, b], [to_b, from_a]) = pair();
    let messages: Vec<_> = (0..7).map(|n| bytes(LEN + n, n)).collect();
    for n in 0..COUNT {
        a.send(to_b, &messages[n % 7], Some(n as u64), n);
    }
    let mut room = vec![0; LEN + 7];
    for n in (0..COUNT).rev() {
        b.receive(&mut room, from_a, Some((n as u64, 0)), n);
        let received = next(&b);
        assert_eq!((received.context, received.len), (n, LEN + n % 7));
        assert!(room[..LEN + n % 7] == messages[n % 7][..], "message {n}");
    }
    (0..COUNT).for_each(|_| assert!(next(&a).context < COUNT));
}

#[test]
fn long_messages_at_ports_of_ones_own_are_truncated_looked_at_claimed_and_dropped() {
    if !inside("long_messages_at_ports_of_ones_own_are_truncated_looked_at_claimed_and_dropped") {
        return;
    }
    let ([a, b], [to_b, from_a]) = pair();
    // Nobody receives this one, so that something stands for those behind it.
    let first = bytes(20 << 20, 1);
    a.send(to_b, &first, Some(99), 1);
    assert_eq!(next(&a).context, 1);
    stand_ins::every_end(&a, &b, to_b, from_a, &bytes(5_000_003, 3));
    let mut room = vec![0; first.len()];
    b.receive(&mut room, from_a, Some((99, 0)), 2);
    assert_eq!(next(&b).context, 2);
    assert!(room == first);
}

/// At a port of its own an application may use all 64 bits of a tag.
#[test]
fn a_message_that_is_read_has_its_tag_in_its_entry_whatever_it_is() {
    if !inside("a_message_that_is_read_has_its_tag_in_its_entry_whatever_it_is") {
        return;
    }
    let ([a, b], [to_b, from_a]) = pair();
    let long = bytes(50 << 20, 1);
    let mut room = vec![0; long.len()];
    for tag in [u64::MAX, u64::MAX - 1, 0] {
        a.send(to_b, &long, Some(tag), 1);
        b.receive(&mut room, from_a, Some((0, u64::MAX)), 2);
        let received = next(&b);
        assert_eq!((received.len, received.tag), (long.len(), tag));
        assert!(room == long);
        room.fill(0);
        assert_eq!(next(&a).context, 1);
    }
}

/// A message without a tag has no stand-in, and more are sent than a target keeps.
#[test]
fn accesses_do_not_wait_behind_messages_that_nobody_receives() {
    if !inside("accesses_do_not_wait_behind_messages_that_nobody_receives") {
        return;
    }
    const COUNT: usize = 9;
    let wish = || Wish { caps: sys::FI_MSG | sys::FI_TAGGED | sys::FI_RMA, ..Wish::default() };
    let [a, b] = [wish(), wish()].map(|wish| Side::open(&wish, How::default()));
    let (to_b, from_a) = (a.insert(&b.name()), b.insert(&a.name()));
    let mut memory = bytes(100_000, 7);
    let expected = memory.clone();
    let exposed = Exposed::new(&b, &mut memory, 5);
    let message = bytes(LONG, 2);
    for n in 0..COUNT {
        a.send(to_b, &message, None, n);
    }
    let mut room = vec![0u8; expected.len()];
    let (at, len) = (room.as_mut_ptr().cast(), room.len());
    a.post(|| table!(a.ep, rma.read(at, len, std::ptr::null_mut(), to_b, 0, 5, 77 as *mut _)));
    loop {
        let entry = next(&a);
        if entry.context == 77 {
            break;
        }
        assert!(entry.context < COUNT);
    }
    assert!(room == expected);
    let mut place = vec![0; LONG];
    for n in 0..COUNT {
        b.receive(&mut place, from_a, None, n);
        assert_eq!((next(&b).context, place == message), (n, true));
        place.fill(0);
    }
    drop(exposed);
}

/// Nobody receives them, and the first one leaves no room for others to be sent at once.
#[test]
fn messages_that_one_peer_does_not_receive_leave_room_for_operations_with_others() {
    if !inside("messages_that_one_peer_does_not_receive_leave_room_for_operations_with_others") {
        return;
    }
    const COUNT: usize = 32_768;
    const OTHER: usize = 100_000;
    let (first, message) = (bytes(24 << 20, 1), bytes(70_000, 2));
    let wish = || Wish { caps: sys::FI_MSG | sys::FI_TAGGED | sys::FI_RMA, ..Wish::default() };
    let [b, c, a] = [wish(), wish(), wish()].map(|wish| Side::open(&wish, How::default()));
    let (to_b, to_c) = (a.insert(&b.name()), a.insert(&c.name()));
    let (mut of_b, mut of_c) = (bytes(100, 3), bytes(100, 4));
    let expected = of_c.clone();
    let exposed = [Exposed::new(&b, &mut of_b, 5), Exposed::new(&c, &mut of_c, 5)];
    a.send(to_b, &first, Some(u64::MAX), OTHER);
    assert_eq!(next(&a).context, OTHER);
    for n in 0..COUNT {
        a.send(to_b, &message, Some(n as u64), n);
    }
    let mut place = vec![0u8; 100];
    let (at, len, none, again) =
        (message.as_ptr().cast(), message.len(), std::ptr::null_mut(), -(sys::FI_EAGAIN as isize));
    let read = |place: &mut Vec<u8>, from| {
        let room = place.as_mut_ptr().cast();
        table!(a.ep, rma.read(room, 100, none, from, 0, 5, OTHER as *mut _))
    };
    for _ in 0..100 {
        assert_eq!(table!(a.ep, tagged.send(at, len, none, to_b, COUNT as u64, COUNT as *mut _)), again);
        assert_eq!(read(&mut place, to_b), again);
    }
    let mut room = vec![0u8; message.len()];
    c.receive(&mut room, sys::FI_ADDR_UNSPEC, Some((1, 0)), 1);
    a.send(to_c, &message, Some(1), OTHER);
    assert_eq!((next(&c).context, next(&a).context), (1, OTHER));
    assert!(room == message);
    a.post(|| read(&mut place, to_c));
    assert_eq!(next(&a).context, OTHER);
    assert!(place == expected);
    // The last one is received, and there is room for a further one.
    for n in [COUNT - 1, COUNT] {
        room.fill(0);
        b.receive(&mut room, sys::FI_ADDR_UNSPEC, Some((n as u64, 0)), n);
        if n == COUNT {
            a.send(to_b, &message, Some(n as u64), n);
        }
        assert_eq!((next(&b).context, next(&a).context), (n, n));
        assert!(room == message, "message {n}");
    }
    drop(exposed);
}

/// More than are sent at once, of each sender, which are read from all of them at the same time.
#[test]
fn long_messages_of_several_senders_are_received_in_the_opposite_order() {
    if !inside("long_messages_of_several_senders_are_received_in_the_opposite_order") {
        return;
    }
    const SENDERS: usize = 3;
    const COUNT: usize = 5;
    const LEN: usize = 8 << 20;
    let messages: Vec<_> = (0..SENDERS * COUNT).map(|n| bytes(LEN - n, n)).collect();
    let mut rooms = vec![vec![0u8; LEN]; SENDERS * COUNT];
    let receiver = open();
    let senders: Vec<Side> = (0..SENDERS).map(|_| open()).collect();
    let mut from = Vec::new();
    for (sender, messages) in senders.iter().zip(messages.chunks(COUNT)) {
        from.push(receiver.insert(&sender.name()));
        let to = sender.insert(&receiver.name());
        for (n, message) in messages.iter().enumerate() {
            sender.send(to, message, Some(n as u64), n);
        }
    }
    for n in (0..COUNT).rev() {
        for (sender, from) in from.iter().enumerate() {
            let at = sender * COUNT + n;
            receiver.receive(&mut rooms[at], *from, Some((n as u64, 0)), at);
        }
    }
    let mut lengths = [0; SENDERS * COUNT];
    for _ in 0..SENDERS * COUNT {
        let received = next(&receiver);
        lengths[received.context] = received.len;
    }
    for (n, message) in messages.iter().enumerate() {
        assert_eq!(lengths[n], message.len(), "message {n}");
        assert!(rooms[n][..message.len()] == message[..], "message {n}");
    }
    for sender in &senders {
        let mut sent: Vec<_> = (0..COUNT).map(|_| next(sender).context).collect();
        sent.sort_unstable();
        assert!(sent.into_iter().eq(0..COUNT));
    }
}

/// The tag of the message for the process that takes the receiver's place.
const AFTER: u64 = 9;

/// A receiver that does nothing, or the one that takes its place and receives a message that is sent then.
fn restarted(number: usize) {
    let service = (number == 2).then(|| processes::told().parse().unwrap());
    let side = Side::open(&Wish { service, ..Wish::default() }, How::default());
    processes::say_name(side.name());
    if number == 1 {
        return std::thread::sleep(crate::common::fabric::BOUND);
    }
    let mut rooms = [vec![0; LONG], vec![0; LONG]];
    for (room, tag) in rooms.iter_mut().zip([AFTER, 2]) {
        side.receive(room, sys::FI_ADDR_UNSPEC, Some((tag, 0)), tag as usize);
    }
    assert_eq!(next(&side).context, AFTER as usize);
    assert!(rooms[0] == bytes(LONG, AFTER as usize));
    println!("received");
    // SAFETY: the endpoint is open.
    assert_eq!(unsafe { (*(*side.ep).ops).cancel.unwrap()(side.ep.cast(), 2 as *mut _) }, 0);
    assert_eq!(side.cq.next(), Err(Failed { context: 2, error: sys::FI_ECANCELED, beyond: 0 }));
    println!("nothing else");
    processes::told();
}

#[test]
fn a_receiver_that_is_restarted_at_its_port_gets_no_long_messages_that_were_for_the_one_before() {
    const NAME: &str =
        "a_receiver_that_is_restarted_at_its_port_gets_no_long_messages_that_were_for_the_one_before";
    if !first(NAME, &[], restarted) {
        return;
    }
    let messages = [0, 1, 2, AFTER as usize].map(|n| bytes(LONG, n));
    let a = open();
    let mut before = Process::start(NAME, 1, &[]);
    let name = before.name();
    let to = a.insert(&name);
    for (n, message) in messages.iter().enumerate().take(3) {
        a.send(to, message, Some(n as u64), n);
    }
    // The target keeps the first one, and what stands for the others.
    assert_eq!(next(&a).context, 0);
    assert_eq!(a.cq.read_within(500), None);
    before.child.kill().unwrap();
    before.child.wait().unwrap();
    let mut after = Process::start(NAME, 2, &[]);
    after.tell(&u16::from_be_bytes([name[2], name[3]]).to_string());
    assert_eq!(after.name(), name);
    // The other process may be taken for the one before that is silent until it has answered a question.
    let is_gone = |error: i32| [sys::FI_ECONNREFUSED, sys::FI_ETIMEDOUT].contains(&error);
    let mut ended = [0; 2].map(|_| {
        let failed = a.cq.next().unwrap_err();
        assert!(is_gone(failed.error), "{failed:?}");
        failed.context
    });
    ended.sort_unstable();
    assert_eq!(ended, [1, 2]);
    let (at, len, none) = (messages[3].as_ptr().cast(), LONG, std::ptr::null_mut());
    let (begin, mut tries) = (std::time::Instant::now(), 0);
    loop {
        assert!(begin.elapsed() < crate::common::fabric::BOUND && tries < 20, "{tries} tries");
        let sent = table!(a.ep, tagged.send(at, len, none, to, AFTER, AFTER as *mut _));
        if sent == -(sys::FI_EAGAIN as isize) {
            assert!(table!(a.cq.0, ops.read(none, 0)) <= 0);
            continue;
        }
        tries += 1;
        if sent != 0 {
            assert!(is_gone(-sent as i32), "{sent}");
            continue;
        }
        match a.cq.next() {
            Ok(entry) => break assert_eq!(entry.context, AFTER as usize),
            Err(failed) => assert!(is_gone(failed.error), "{failed:?}"),
        }
    }
    after.says("received");
    after.says("nothing else");
    after.tell("end");
    assert!(after.child.wait().unwrap().success());
}

/// What a further process does: it sends long messages, or receives none.
fn peer() {
    let side = open();
    processes::say_name(side.name());
    if let Ok(name) = processes::told().parse::<u128>() {
        let number = side.insert(&name.to_be_bytes());
        let messages = [0, 1, 2].map(|n| bytes(LONG, n));
        for (n, message) in messages.iter().enumerate() {
            side.send(number, message, Some(n as u64), n);
        }
        println!("sent");
        std::thread::sleep(crate::common::fabric::BOUND);
    }
    std::thread::sleep(crate::common::fabric::BOUND);
}

#[test]
fn long_messages_at_ports_of_ones_own_end_when_their_sender_or_their_receiver_is_gone() {
    const NAME: &str = "long_messages_at_ports_of_ones_own_end_when_their_sender_or_their_receiver_is_gone";
    if !first(NAME, &[], |_| peer()) {
        return;
    }
    let a = open();
    let own = u128::from_be_bytes(a.name());
    let start = || {
        let mut process = Process::start(NAME, 1, &[]);
        let name = process.name();
        (process, name)
    };
    let kill = |mut process: Process| {
        process.child.kill().unwrap();
        process.child.wait().unwrap();
    };
    // The sender is killed when what stands for its last message is there, which is received then.
    let (mut process, name) = start();
    let from = a.insert(&name);
    process.tell(&own.to_string());
    process.says("sent");
    stand_ins::until_there(&a, 2);
    kill(process);
    let mut room = vec![0; LONG];
    a.receive(&mut room, from, Some((2, 0)), 1);
    let ended = a.cq.read_within(60_000).expect("an entry within a minute");
    assert_eq!(ended, Err(Failed { context: 1, error: sys::FI_ECONNABORTED, beyond: 0 }));
    // The receiver is killed, and has received nothing.
    let (process, name) = start();
    let to = a.insert(&name);
    let message = bytes(LONG, 1);
    for n in 0..3 {
        a.send(to, &message, Some(n as u64), n);
    }
    // The target keeps the first one, so that it is complete.
    assert_eq!(next(&a).context, 0);
    assert_eq!(a.cq.read_within(3_000), None);
    kill(process);
    for n in 1..3 {
        let ended = a.cq.read_within(60_000).expect("an entry within a minute");
        assert_eq!(ended, Err(Failed { context: n, error: sys::FI_ETIMEDOUT, beyond: 0 }));
    }
}

/// Messages that are read when their sender is killed: so many bytes that not all of them are under way at a time.
#[test]
fn all_long_messages_of_a_sender_that_is_gone_end_together() {
    const NAME: &str = "all_long_messages_of_a_sender_that_is_gone_end_together";
    const COUNT: usize = 12;
    const LEN: usize = 8 << 20;
    if !inside(NAME) {
        return;
    }
    if processes::number().is_some() {
        let side = open();
        processes::say_name(side.name());
        let to = side.insert(&processes::told_name());
        // The first three are sent at once.
        let message = bytes(LEN, 1);
        (0..3 + COUNT).for_each(|n| side.send(to, &message, Some(n as u64), n));
        println!("sent");
        return std::thread::sleep(crate::common::fabric::BOUND);
    }
    let a = open();
    let mut process = Process::start(NAME, 1, &[]);
    let from = a.insert(&process.name());
    process.tell_name(a.name());
    process.says("sent");
    stand_ins::until_there(&a, 2 + COUNT as u64);
    process.child.kill().unwrap();
    process.child.wait().unwrap();
    let mut rooms = vec![vec![0; LEN]; COUNT];
    for (n, room) in rooms.iter_mut().enumerate() {
        a.receive(room, from, Some((3 + n as u64, 0)), n);
    }
    let mut contexts = Vec::new();
    for n in 0..COUNT {
        // A question to the sender that only began when the first one has ended takes longer than the others may.
        let bound = if n == 0 { 60_000 } else { 4_000 };
        let ended = a.cq.read_within(bound).expect("an entry").unwrap_err();
        assert_eq!(ended, Failed { context: ended.context, error: sys::FI_ECONNABORTED, beyond: 0 });
        contexts.push(ended.context);
    }
    contexts.sort_unstable();
    assert!(contexts.into_iter().eq(0..COUNT));
}
