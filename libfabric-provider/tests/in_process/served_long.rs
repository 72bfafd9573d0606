//! Messages between endpoints of servers that are longer than the servers' memory, and those of which no part waits before others:
//! the receivers fetch them.

use crate::common;
use std::cell::Cell;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use crate::common::fabric::{BOUND, Entry, Failed, How, Side, Wish, getinfo, table};
use crate::common::processes::{self, Process};
use crate::common::server::{Server, open, server, servers};
use crate::common::stand_ins::until_there;
use crate::common::{first, inside_with};
use weft::core::wire::ses::ReturnCode;
use weft::{Completion, ConnectOptions, Endpoint, Found, Matching, ReceiveOptions, SendOptions};
use weft_fi::sys::{self, FI_ADDR_UNSPEC};

/// Memory for messages: 16 MiB, of which a quarter is for what is sent, and one for receives.
const LITTLE: &[(&str, &str)] = &[("FI_WEFT_MEMORY", "16")];
/// Bytes of a message that is longer than a part of that.
const LONG: usize = 5_000_003;
/// The variable that names the server of a further process.
const SERVER: &str = "WEFT_FI_SERVER";
/// The process that others are there.
const PROCESS: u16 = 77;

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 5 + (n >> 8) * 3 + (n >> 17) + seed * 17) as u8).collect()
}

/// The next entries of both sides, one of each.
fn ends(a: &Side, b: &Side) -> [Result<Entry, Failed>; 2] {
    [a.cq.next(), b.cq.next()]
}

#[test]
fn a_message_of_200_mib_arrives_through_servers_with_64_mib() {
    if !inside_with("a_message_of_200_mib_arrives_through_servers_with_64_mib", &[("FI_WEFT_MEMORY", "64")]) {
        return;
    }
    const LEN: usize = 200 << 20;
    let directory = tempfile::tempdir().unwrap();
    let servers = servers(&directory, 51);
    let (a, b) = (open(&servers[0]), open(&servers[1]));
    let (to_b, from_a) = (a.insert(&b.name()), b.insert(&a.name()));
    let message = bytes(LEN, 1);
    for is_expected in [true, false] {
        let mut room = vec![0; LEN + 9];
        if is_expected {
            b.receive(&mut room, from_a, Some((7, 0)), 2);
        }
        a.send(to_b, &message, Some(7), 1);
        if !is_expected {
            // It is not there until somebody receives it, and nobody waits for that in the server.
            assert_eq!(a.cq.read_within(200), None);
            b.receive(&mut room, from_a, Some((7, 0)), 2);
        }
        let [sent, received] = ends(&a, &b);
        assert_eq!(sent.unwrap().context, 1);
        let received = received.unwrap();
        assert_eq!((received.context, received.len, received.tag, received.source), (2, LEN, 7, from_a));
        assert!(room[..LEN] == message[..] && room[LEN..] == [0; 9]);
    }
}

/// More than the memory and what a receiver's server keeps, of which the last is received first.
#[test]
fn messages_are_received_in_the_opposite_order_whatever_memory_there_is() {
    if !inside_with("messages_are_received_in_the_opposite_order_whatever_memory_there_is", LITTLE) {
        return;
    }
    const COUNT: usize = 30;
    let directory = tempfile::tempdir().unwrap();
    let servers = servers(&directory, 53);
    let (a, b) = (open(&servers[0]), open(&servers[1]));
    let (to_b, from_a) = (a.insert(&b.name()), b.insert(&a.name()));
    let messages: Vec<_> = (0..COUNT).map(|n| bytes(LONG - n, n)).collect();
    for (n, message) in messages.iter().enumerate() {
        a.send(to_b, message, Some(n as u64), n);
    }
    let mut room = vec![0; LONG];
    for (n, message) in messages.iter().enumerate().rev() {
        b.receive(&mut room, from_a, Some((n as u64, 0)), n);
        let [sent, received] = ends(&a, &b);
        assert_eq!((sent.unwrap().context, received.unwrap().len), (n, message.len()));
        assert!(room[..message.len()] == message[..], "message {n}");
    }
}

#[test]
fn messages_that_one_peer_does_not_receive_hold_back_none_to_others() {
    if !inside_with("messages_that_one_peer_does_not_receive_hold_back_none_to_others", LITTLE) {
        return;
    }
    const COUNT: usize = 200;
    let directory = tempfile::tempdir().unwrap();
    let servers = servers(&directory, 55);
    let (a, b, c) = (open(&servers[0]), open(&servers[1]), open(&servers[1]));
    let (to_b, to_c) = (a.insert(&b.name()), a.insert(&c.name()));
    let from_a = [&b, &c].map(|side| side.insert(&a.name()));
    // Of each of these lengths more than there is memory.
    let messages = [40_000, 1 << 20].map(|len| bytes(len, len));
    for n in 0..COUNT {
        a.send(to_b, &messages[n % 2], Some(n as u64), n);
    }
    for (n, len) in [9, 4_096, 60_000, LONG].into_iter().enumerate() {
        let (message, mut room) = (bytes(len, n), vec![0; len]);
        c.receive(&mut room, from_a[1], Some((1, 0)), n);
        a.send(to_c, &message, Some(1), COUNT + n);
        assert_eq!(c.cq.next().unwrap().len, len);
        assert!(room == message);
    }
    // All of the others arrive when they are received, in their order.
    let mut rooms: Vec<_> = (0..COUNT).map(|n| vec![0; messages[n % 2].len()]).collect();
    for (n, room) in rooms.iter_mut().enumerate() {
        b.receive(room, from_a[0], Some((0, u64::MAX)), n);
    }
    let mut left = COUNT + 4;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..COUNT {
                let entry = b.cq.next().unwrap();
                assert_eq!(entry.tag, entry.context as u64);
            }
        });
        while left > 0 {
            a.cq.next().unwrap();
            left -= 1;
        }
    });
    assert!(rooms.iter().enumerate().all(|(n, room)| *room == messages[n % 2]));
}

#[test]
fn long_messages_are_truncated_looked_at_claimed_and_dropped() {
    if !inside_with("long_messages_are_truncated_looked_at_claimed_and_dropped", LITTLE) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let servers = servers(&directory, 57);
    let (a, b) = (open(&servers[0]), open(&servers[1]));
    let (to_b, from_a) = (a.insert(&b.name()), b.insert(&a.name()));
    common::stand_ins::every_end(&a, &b, to_b, from_a, &bytes(LONG, 3));
}

/// Those without tags meet receives for many messages as well, which have no room for them: neither side takes such a message for one
/// that has arrived.
#[test]
fn messages_without_tags_are_fetched_if_no_memory_holds_them_and_not_by_receives_for_many() {
    const NAME: &str =
        "messages_without_tags_are_fetched_if_no_memory_holds_them_and_not_by_receives_for_many";
    if !inside_with(NAME, LITTLE) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let servers = servers(&directory, 63);
    let (a, b) = (open(&servers[0]), open(&servers[1]));
    let (to_b, from_a) = (a.insert(&b.name()), b.insert(&a.name()));
    let message = bytes(LONG, 4);
    for is_expected in [true, false] {
        let mut room = vec![0; LONG];
        if is_expected {
            b.receive(&mut room, from_a, None, 2);
        }
        a.send(to_b, &message, None, 1);
        if !is_expected {
            assert_eq!(a.cq.read_within(100), None);
            b.receive(&mut room, from_a, None, 2);
        }
        let [sent, received] = ends(&a, &b);
        let received = received.unwrap();
        assert_eq!((sent.unwrap().context, received.context, received.len, received.tag), (1, 2, LONG, 0));
        assert!(room == message);
    }
    let mut room = vec![0u8; 3 << 20];
    let piece = sys::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
    let many = sys::fi_msg {
        msg_iov: &piece,
        desc: null_mut(),
        iov_count: 1,
        addr: from_a,
        context: 3 as *mut _,
        data: 0,
    };
    let fails = |context| Err(Failed { context, error: sys::FI_EMSGSIZE, beyond: 0 });
    // With less room than what stands for the message has bytes, of whose number nothing is there then.
    let short = sys::iovec { iov_len: 100, ..piece };
    let few = sys::fi_msg { msg_iov: &short, context: 4 as *mut _, ..many };
    b.post(|| table!(b.ep, msg.recvmsg(&few, sys::FI_MULTI_RECV)));
    a.send(to_b, &message, None, 1);
    assert_eq!(ends(&a, &b), [fails(1), fails(4)]);
    b.post(|| table!(b.ep, msg.recvmsg(&many, sys::FI_MULTI_RECV)));
    for (len, n) in [(9, 0), (LONG, 1), (2 << 20, 2), (10, 3)] {
        let sent = bytes(len, n);
        a.send(to_b, &sent, None, 1);
        if len == LONG {
            assert_eq!(ends(&a, &b), [fails(1), fails(3)]);
            continue;
        }
        assert_eq!(a.cq.next().unwrap().context, 1);
        let (entry, place) = b.cq.read_with_place().unwrap_or_else(|| {
            let begin = Instant::now();
            loop {
                if let Some(read) = b.cq.read_with_place() {
                    break read;
                }
                assert!(begin.elapsed() < BOUND);
            }
        });
        assert_eq!((entry.context, entry.len), (3, len));
        // SAFETY: the message is there.
        assert!(unsafe { std::slice::from_raw_parts(place as *const u8, len) } == sent);
    }
}

/// What is offered at a server for hints with these capabilities and this `max_msg_size`: the capabilities, and the longest message.
fn offered(server: &Server, caps: u64, longest: usize) -> Result<(u64, usize), i32> {
    thread_local! {
        static LONGEST: Cell<usize> = const { Cell::new(0) };
    }
    LONGEST.set(longest);
    // SAFETY: new hints have all their parts.
    let change: fn(&mut sys::fi_info) = |hints| unsafe { (*hints.ep_attr).max_msg_size = LONGEST.get() };
    let wish = Wish { domain: Some(server.name()), caps, kind: sys::FI_EP_RDM, change, ..Wish::default() };
    // SAFETY: an info has all its parts.
    getinfo(&wish).map(|info| unsafe { (info.get().caps, (*info.get().ep_attr).max_msg_size) })
}

/// `max_msg_size` holds for all messages of an endpoint, also those that meet receives for many messages, if it has these.
#[test]
fn endpoints_with_receives_for_many_messages_have_the_longest_message_that_those_take() {
    if !inside_with(
        "endpoints_with_receives_for_many_messages_have_the_longest_message_that_those_take",
        LITTLE,
    ) {
        return;
    }
    const QUARTER: usize = 4 << 20;
    const ANY: usize = u32::MAX as usize;
    let directory = tempfile::tempdir().unwrap();
    let server = server(&directory, 79, |builder| builder);
    let (one, many) = (sys::FI_MSG | sys::FI_TAGGED | sys::FI_RMA, sys::FI_MULTI_RECV);
    for (named, wanted, has_many, longest) in [
        (one, 0, false, ANY),
        (one, ANY, false, ANY),
        (one | many, 0, true, QUARTER),
        (one | many, QUARTER, true, QUARTER),
        // Hints that name none want any.
        (0, 0, true, QUARTER),
        (0, QUARTER, true, QUARTER),
        (0, QUARTER + 1, false, ANY),
    ] {
        let (caps, most) = offered(&server, named, wanted).unwrap();
        assert_eq!((caps & many != 0, most), (has_many, longest), "{named:#x}, {wanted}");
        // A program may ask for what it was offered.
        assert_eq!(offered(&server, caps, most), Ok((caps, most)), "{named:#x}, {wanted}");
    }
    assert_eq!(offered(&server, one | many, QUARTER + 1), Err(sys::FI_ENODATA));
    // They take that.
    let caps = one | many | sys::FI_DIRECTED_RECV;
    let wish = Wish { domain: Some(server.name()), caps, ..Wish::default() };
    let [a, b] = [(); 2].map(|()| Side::open(&wish, How::default()));
    let (to_b, _) = (a.insert(&b.name()), b.insert(&a.name()));
    let (message, mut room) = (bytes(QUARTER, 5), vec![0u8; QUARTER]);
    b.receive_many(room.as_mut_ptr().cast(), QUARTER);
    a.send(to_b, &message, None, 1);
    let [sent, received] = ends(&a, &b);
    assert_eq!((sent.unwrap().context, received.unwrap().len, room == message), (1, QUARTER, true));
}

fn open_as(server: &str) -> Side {
    let wish = Wish { domain: Some(server.to_owned()), service: Some(PROCESS), ..Wish::default() };
    Side::open(&wish, How::default())
}

/// What a further process does: it sends a long message, or receives one, or none.
fn peer() {
    let side = open_as(&std::env::var(SERVER).unwrap());
    processes::say_name(side.name());
    let to = processes::told();
    let message = bytes(LONG, 1);
    if let Some(name) = to.strip_prefix("receive ") {
        let (from, mut room) = (side.insert(&name.parse::<u128>().unwrap().to_be_bytes()), vec![0; LONG]);
        side.receive(&mut room, from, Some((1, 0)), 1);
        assert!(side.cq.next().unwrap().len == LONG && room == message);
        println!("received");
    }
    if let Ok(name) = to.parse::<u128>() {
        let number = side.insert(&name.to_be_bytes());
        side.send(number, &message, Some(1), 1);
        println!("sent");
    }
    std::thread::sleep(BOUND);
}

#[test]
fn long_messages_end_when_their_sender_or_their_receiver_is_gone() {
    const NAME: &str = "long_messages_end_when_their_sender_or_their_receiver_is_gone";
    if !first(NAME, LITTLE, |_| peer()) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let server = server(&directory, 59, |builder| builder);
    let a = open(&server);
    let own = u128::from_be_bytes(a.name());
    let start = |server: &Server| {
        let mut process = Process::start(NAME, 1, &[(SERVER, &server.name())]);
        let name = process.name();
        (process, name)
    };
    let end = |context: usize, error: i32| {
        let ended = a.cq.read_within(60_000).expect("an entry within a minute");
        assert_eq!(ended, Err(Failed { context, error, beyond: 0 }));
    };
    let kill = |mut process: Process| {
        process.child.kill().unwrap();
        process.child.wait().unwrap();
    };
    let mut room = vec![0; LONG];
    // The sender is killed when what stands for the message is there, and is received then.
    let (mut process, _) = start(&server);
    process.tell(&own.to_string());
    process.says("sent");
    until_there(&a, 1);
    kill(process);
    a.receive(&mut room, FI_ADDR_UNSPEC, Some((1, 0)), 1);
    end(1, sys::FI_ECONNABORTED);
    // It is stopped while the message is fetched.
    let (mut process, _) = start(&server);
    process.tell(&own.to_string());
    process.says("sent");
    until_there(&a, 1);
    common::stop(&process);
    a.receive(&mut room, FI_ADDR_UNSPEC, Some((1, 0)), 2);
    assert_eq!(a.cq.read_within(3_000), None);
    kill(process);
    end(2, sys::FI_ECONNABORTED);
    // The receiver is killed, and has not received.
    let (process, name) = start(&server);
    let to = a.insert(&name);
    let message = bytes(LONG, 1);
    a.send(to, &message, Some(1), 3);
    assert_eq!(a.cq.read_within(3_000), None);
    kill(process);
    end(3, sys::FI_ECONNREFUSED);
    // It is killed, and another process has its number before anybody has missed it.
    let (process, name) = start(&server);
    let to = a.insert(&name);
    a.send(to, &message, Some(1), 6);
    assert_eq!(a.cq.read_within(500), None);
    kill(process);
    let successor = open_as(&server.name());
    end(6, sys::FI_ECONNREFUSED);
    let from_a = successor.insert(&own.to_be_bytes());
    successor.receive(&mut room, from_a, Some((1, 0)), 7);
    a.send(to, &message, Some(1), 8);
    assert_eq!([a.cq.next().unwrap().context, successor.cq.next().unwrap().context], [8, 7]);
    assert!(std::mem::take(&mut room) == message);
    drop(successor);
    room.resize(LONG, 0);
    // A message to itself still arrives.
    let number = a.insert(&own.to_be_bytes());
    a.receive(&mut room, number, Some((1, 0)), 4);
    a.send(number, &message, Some(1), 5);
    let both = [a.cq.next().unwrap().context, a.cq.next().unwrap().context];
    assert_eq!(both[0] + both[1], 9);
    assert!(room == message);
}

#[test]
fn a_message_to_a_successor_of_its_peer_waits_until_that_receives_it() {
    const NAME: &str = "a_message_to_a_successor_of_its_peer_waits_until_that_receives_it";
    if !first(NAME, LITTLE, |_| peer()) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let server = server(&directory, 65, |builder| builder);
    let a = open(&server);
    let own = u128::from_be_bytes(a.name());
    let mut process = Process::start(NAME, 1, &[(SERVER, &server.name())]);
    let to = a.insert(&process.name());
    process.tell(&format!("receive {own}"));
    let message = bytes(LONG, 1);
    a.send(to, &message, Some(1), 1);
    assert_eq!(a.cq.next().unwrap().context, 1);
    process.says("received");
    process.child.kill().unwrap();
    process.child.wait().unwrap();
    let successor = open_as(&server.name());
    a.send(to, &message, Some(1), 2);
    // Longer than from one question to the next.
    assert_eq!(a.cq.read_within(5_000), None);
    let (from_a, mut room) = (successor.insert(&own.to_be_bytes()), vec![0; LONG]);
    successor.receive(&mut room, from_a, Some((1, 0)), 3);
    let [sent, received] = ends(&a, &successor);
    assert_eq!((sent.unwrap().context, received.unwrap().context), (2, 3));
    assert!(room == message);
}

/// A process that does not say which one it is gets no stand-in, so a message is not lost with it.
#[test]
fn a_message_to_a_process_that_dies_before_it_has_said_its_life_is_for_its_successor() {
    const NAME: &str = "a_message_to_a_process_that_dies_before_it_has_said_its_life_is_for_its_successor";
    if !first(NAME, LITTLE, |_| peer()) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let server = server(&directory, 75, |builder| builder);
    let a = open(&server);
    let own = u128::from_be_bytes(a.name());
    let mut process = Process::start(NAME, 1, &[(SERVER, &server.name())]);
    let to = a.insert(&process.name());
    common::stop(&process);
    let message = bytes(LONG, 1);
    a.send(to, &message, Some(1), 1);
    // It is asked, and says nothing.
    assert_eq!(a.cq.read_within(300), None);
    process.child.kill().unwrap();
    process.child.wait().unwrap();
    let successor = open_as(&server.name());
    let (from_a, mut room) = (successor.insert(&own.to_be_bytes()), vec![0; LONG]);
    successor.receive(&mut room, from_a, Some((1, 0)), 2);
    let mut sent = a.cq.next();
    if sent.is_err() {
        // It was asked again when no process had the number.
        assert_eq!(sent, Err(Failed { context: 1, error: sys::FI_ECONNREFUSED, beyond: 0 }));
        a.send(to, &message, Some(1), 1);
        sent = a.cq.next();
    }
    assert_eq!((sent.unwrap().context, successor.cq.next().unwrap().context), (1, 2));
    assert!(room == message);
}

/// As `fi_cancel` has it for operations that are no longer pending: it asks for nothing that has begun.
#[test]
fn a_receive_that_is_being_fetched_ends_as_if_nobody_had_cancelled_it() {
    if !inside_with("a_receive_that_is_being_fetched_ends_as_if_nobody_had_cancelled_it", LITTLE) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let server = server(&directory, 77, |builder| builder);
    let a = open(&server);
    // SAFETY: the endpoint is open.
    let cancel = |context: usize| unsafe { (*(*a.ep).ops).cancel.unwrap()(a.ep.cast(), context as *mut _) };
    let mut room = vec![0; 5_000];
    for answers in [true, false] {
        let mut one = Stranger::new(&server, &a);
        a.receive(&mut room, FI_ADDR_UNSPEC, Some((8, 0)), 2);
        let message = one.send_stand_in(3);
        let [number, at, len] = one.next_request();
        assert_eq!((cancel(2), cancel(3)), (0, -(sys::FI_ENOENT as isize)));
        if answers {
            // The message is there, and so its sender learns.
            one.answer(number, ReturnCode::OK.0, &message[at as usize..(at + len) as usize]);
            let [notice, _, len] = one.next_request();
            assert_eq!(len, 0);
            one.answer(notice, ReturnCode::OK.0, &[]);
            assert_eq!(a.cq.next().map(|entry| (entry.context, entry.len)), Ok((2, 5_000)));
            assert!(room == message);
        } else {
            // Its sender is gone.
            drop(one);
            let ended = a.cq.read_within(60_000).expect("an entry within a minute");
            assert_eq!(ended, Err(Failed { context: 2, error: sys::FI_ECONNABORTED, beyond: 0 }));
        }
        assert_eq!(cancel(2), -(sys::FI_ENOENT as isize));
    }
}

#[test]
fn an_endpoint_that_is_closed_first_delivers_the_long_messages_that_it_has_sent() {
    if !inside_with("an_endpoint_that_is_closed_first_delivers_the_long_messages_that_it_has_sent", LITTLE) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let servers = servers(&directory, 67);
    let b = open(&servers[1]);
    for n in 0..3 {
        let a = open(&servers[0]);
        let (to_b, from_a) = (a.insert(&b.name()), b.insert(&a.name()));
        let (message, mut room) = (bytes(LONG, n), vec![0; LONG]);
        b.receive(&mut room, from_a, Some((1, 0)), 2);
        a.send(to_b, &message, Some(1), 1);
        drop(a);
        assert_eq!(b.cq.next().unwrap().len, LONG);
        assert!(room == message);
    }
}

/// A request for a part of a message, as `rdm/carried/wire.rs` describes it.
fn request(
    number: u32,
    header_data: u64,
    tag: u64,
    at: u32,
    len: u32,
    end: [u8; 16],
    is_done: bool,
) -> Vec<u8> {
    let mut bytes = vec![0; 64];
    (bytes[0], bytes[1]) = (4, 4 | if is_done { 8 } else { 0 });
    bytes[4..8].copy_from_slice(&number.to_le_bytes());
    bytes[8..16].copy_from_slice(&header_data.to_le_bytes());
    bytes[16..24].copy_from_slice(&tag.to_le_bytes());
    bytes[24..28].copy_from_slice(&(at + len).to_le_bytes());
    bytes[28..32].copy_from_slice(&at.to_le_bytes());
    bytes[32..36].copy_from_slice(&len.to_le_bytes());
    bytes[48..].copy_from_slice(&end);
    bytes
}

/// An endpoint that is none of libfabric's, and its connection to one that is.
struct Stranger {
    endpoint: Endpoint,
    connection: weft::ConnectionId,
}

impl Stranger {
    fn new(server: &Server, side: &Side) -> Stranger {
        let mut endpoint = Endpoint::builder(server.name()).memory(8 << 20).build().unwrap();
        let host = endpoint.peer(endpoint.ip().unwrap()).unwrap();
        let options = ConnectOptions::default().process(u16::from_be_bytes([side.name()[2], side.name()[3]]));
        let connection = endpoint.connect_with(host, options).unwrap();
        Stranger { endpoint, connection }
    }

    /// The name of this endpoint, beside `side`.
    fn name(&self, side: &Side) -> [u8; 16] {
        let mut name = side.name();
        name[2..4].copy_from_slice(&self.endpoint.process().to_be_bytes());
        name
    }

    /// Sends a request, and returns the code and the bytes of the answer.
    fn ask(&mut self, request: Vec<u8>) -> (u8, Vec<u8>) {
        let number = u32::from_le_bytes(request[4..8].try_into().unwrap());
        let mut options = ReceiveOptions::default();
        options.matching = Matching::Tagged { tag: 1 << 63 | 1 << 32 | u64::from(number), ignore: 0 };
        self.endpoint.receive_with(vec![0; 40_000], options).unwrap();
        self.endpoint.send_with(self.connection, request, SendOptions::default().tag(1 << 63)).unwrap();
        let (len, buffer) = self.receive();
        let bytes = buffer.to_bytes(len);
        (bytes[0], bytes[8..].to_vec())
    }

    /// Sends a stand-in of a message of 5,000 bytes, with the tag 8. Returns the message.
    fn send_stand_in(&mut self, number: u8) -> Vec<u8> {
        let message = bytes(5_000, number.into());
        let mut stand_in = message[..16 + 5_000 % 1_024].to_vec();
        *stand_in.last_mut().unwrap() = 0;
        let header = 1 << 33 | u64::from(number) << 34 | (5_000 / 1_024) << 42;
        let options = SendOptions::default().tag(8).header_data(header);
        self.endpoint.send_with(self.connection, stand_in, options).unwrap();
        message
    }

    /// The next request for a part of a message: its number, where the piece begins, and its length.
    fn next_request(&mut self) -> [u32; 3] {
        let bytes = self.next_of_kind(4);
        [4, 28, 32].map(|at| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()))
    }

    /// The next request that is of this kind.
    fn next_of_kind(&mut self, kind: u8) -> Vec<u8> {
        let mut requests = ReceiveOptions::default();
        requests.matching = Matching::Tagged { tag: 1 << 63, ignore: 0 };
        loop {
            self.endpoint.receive_with(vec![0; 1_000], requests).unwrap();
            let (len, buffer) = self.receive();
            let bytes = buffer.to_bytes(len);
            if bytes[0] == kind {
                return bytes.to_vec();
            }
        }
    }

    /// Answers a question with a life, without which no stand-in is sent.
    fn say_life(&mut self) {
        let question = self.next_of_kind(0);
        let mut here = vec![0; 64];
        (here[0], here[1], here[48]) = (5, 4, 9);
        here[4..8].copy_from_slice(&question[4..8]);
        self.endpoint.send_with(self.connection, here, SendOptions::default().tag(1 << 63)).unwrap();
    }

    fn answer(&mut self, number: u32, code: u8, bytes: &[u8]) {
        let answer = [&[code, 0, 0, 0], &(bytes.len() as u32).to_le_bytes()[..], bytes].concat();
        let options = SendOptions::default().tag(1 << 63 | 1 << 32 | u64::from(number));
        self.endpoint.send_with(self.connection, answer, options).unwrap();
    }

    fn receive(&mut self) -> (u32, weft::ReceiveBuffer) {
        let begin = Instant::now();
        loop {
            if let Some(Completion::Received { len, buffer, result, .. }) = self.endpoint.poll().unwrap() {
                result.unwrap();
                return (len, buffer);
            }
            assert!(begin.elapsed() < BOUND, "no message");
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_message_is_fetched_by_nobody_but_whom_it_is_for_and_stand_ins_of_strangers_do_no_harm() {
    const NAME: &str =
        "a_message_is_fetched_by_nobody_but_whom_it_is_for_and_stand_ins_of_strangers_do_no_harm";
    if !inside_with(NAME, LITTLE) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let server = server(&directory, 61, |builder| builder);
    let a = open(&server);
    let (mut one, mut other) = (Stranger::new(&server, &a), Stranger::new(&server, &a));
    let to_one = a.insert(&one.name(&a));
    let message = bytes(LONG, 2);
    a.send(to_one, &message, Some(5), 1);
    one.say_life();
    // What stands for it.
    let mut options = ReceiveOptions::default();
    options.matching = Matching::Tagged { tag: 5, ignore: 0 };
    let begin = Instant::now();
    let seen = loop {
        one.endpoint.peek(options, Found::Stays).unwrap();
        let seen = loop {
            if let Some(Completion::Peeked { message, .. }) = one.endpoint.poll().unwrap() {
                break message;
            }
        };
        if let Some(message) = seen {
            break message;
        }
        assert!(begin.elapsed() < BOUND);
    };
    one.endpoint.receive_with(vec![0; 2_000], options).unwrap();
    let (len, buffer) = one.receive();
    let stand_in = buffer.to_bytes(len);
    assert!(stand_in[..len as usize - 1] == message[..len as usize - 1]);
    let end: [u8; 16] = *stand_in.last_chunk().unwrap();
    let header = seen.header_data;
    // Another process, which knows all of it, gets nothing and ends nothing.
    const BAD_KEY: u8 = ReturnCode::BAD_MKEY.0;
    const OK: u8 = ReturnCode::OK.0;
    for is_done in [false, true] {
        let answer = other.ask(request(7, header, 5, 0, if is_done { 0 } else { 1_000 }, end, is_done));
        assert_eq!(answer, (BAD_KEY, Vec::new()));
    }
    // Nor does the right one with another tag, another length, or another number; nor for bytes beyond the message.
    let mut wrong = end;
    wrong[15] ^= 1;
    for (n, (header, tag, end)) in
        [(header, 6, end), (header ^ 1 << 42, 5, end), (header ^ 1 << 34, 5, end), (header, 5, wrong)]
            .into_iter()
            .enumerate()
    {
        assert_eq!(one.ask(request(10 + n as u32, header, tag, 0, 9, end, true)).0, BAD_KEY);
    }
    assert_eq!(
        one.ask(request(20, header, 5, LONG as u32 - 1, 2, end, false)).0,
        ReturnCode::AT_OUT_OF_RANGE.0
    );
    assert_eq!(a.cq.read(), None);
    let answer = one.ask(request(21, header, 5, 50_000, 30_000, end, false));
    assert_eq!((answer.0, answer.1.len()), (OK, 30_000));
    assert!(answer.1 == message[50_000..80_000]);
    assert_eq!(a.cq.read(), None);
    assert_eq!(one.ask(request(22, header, 5, LONG as u32, 0, end, true)).0, OK);
    assert_eq!(a.cq.next().unwrap().context, 1);
    // It is done once.
    assert_eq!(one.ask(request(23, header, 5, LONG as u32, 0, end, true)).0, BAD_KEY);
    assert_eq!(a.cq.read(), None);
    // Stand-ins for messages that are not there: the receives fail, as its sender does not have them, and others go on.
    let mut room = vec![0; 100_000];
    a.receive(&mut room, FI_ADDR_UNSPEC, Some((8, 0)), 2);
    let options = SendOptions::default().tag(8).header_data(header);
    one.endpoint.send_with(one.connection, stand_in.to_vec(), options).unwrap();
    // The request for it comes to one that answers with nonsense, twice.
    let [number, ..] = one.next_request();
    for _ in 0..2 {
        let mut answer = vec![1; 8 + 5];
        answer[..8].copy_from_slice(&[OK, 0, 0, 0, 5, 0, 0, 0]);
        let options = SendOptions::default().tag(1 << 63 | 1 << 32 | u64::from(number));
        one.endpoint.send_with(one.connection, answer, options).unwrap();
    }
    drop(other);
    let begin = Instant::now();
    let failed = loop {
        let _ = one.endpoint.poll();
        if let Some(end) = a.cq.read() {
            break end;
        }
        // Further requests have no answer until the process is gone.
        if begin.elapsed() > Duration::from_secs(1) {
            break {
                drop(one);
                a.cq.read_within(60_000).expect("an entry within a minute")
            };
        }
    };
    assert_eq!(failed, Err(Failed { context: 2, error: sys::FI_ECONNABORTED, beyond: 0 }));
    let own = a.insert(&a.name());
    room.resize(LONG, 0);
    a.receive(&mut room, own, Some((9, 0)), 3);
    a.send(own, &message, Some(9), 4);
    let both = [a.cq.next().unwrap().context, a.cq.next().unwrap().context];
    assert_eq!(both[0] + both[1], 7);
    assert!(room == message);
}

#[test]
fn a_receive_that_has_all_bytes_ends_well_though_the_sender_is_gone_then() {
    if !inside_with("a_receive_that_has_all_bytes_ends_well_though_the_sender_is_gone_then", LITTLE) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let server = server(&directory, 71, |builder| builder);
    let a = open(&server);
    let mut one = Stranger::new(&server, &a);
    let mut room = vec![0; 5_000];
    a.receive(&mut room, FI_ADDR_UNSPEC, Some((8, 0)), 2);
    let message = one.send_stand_in(3);
    let [number, at, len] = one.next_request();
    one.answer(number, ReturnCode::OK.0, &message[at as usize..(at + len) as usize]);
    // It is told that the receiver has all, and has no time to answer.
    assert_eq!(one.next_request()[2], 0);
    drop(one);
    let ended = a.cq.read_within(60_000).expect("an entry within a minute");
    assert_eq!(ended.map(|entry| (entry.context, entry.len)), Ok((2, 5_000)));
    assert!(room == message);
}

/// A request that its sender says not to have is made again.
#[test]
fn pieces_of_a_message_that_are_lost_are_asked_for_again() {
    if !inside_with("pieces_of_a_message_that_are_lost_are_asked_for_again", LITTLE) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let server = server(&directory, 73, |builder| builder);
    let a = open(&server);
    let mut one = Stranger::new(&server, &a);
    let mut room = vec![0; 5_000];
    a.receive(&mut room, FI_ADDR_UNSPEC, Some((8, 0)), 2);
    let message = one.send_stand_in(3);
    let first = one.next_request();
    one.answer(first[0], ReturnCode::BAD_PID.0, &[]);
    let [number, at, len] = one.next_request();
    assert_eq!([at, len], first[1..]);
    one.answer(number, ReturnCode::OK.0, &message[at as usize..(at + len) as usize]);
    let [notice, _, len] = one.next_request();
    assert_eq!(len, 0);
    one.answer(notice, ReturnCode::BAD_PID.0, &[]);
    let [notice, _, len] = one.next_request();
    assert_eq!(len, 0);
    one.answer(notice, ReturnCode::OK.0, &[]);
    assert_eq!(a.cq.next().map(|entry| (entry.context, entry.len)), Ok((2, 5_000)));
    assert!(room == message);
}
