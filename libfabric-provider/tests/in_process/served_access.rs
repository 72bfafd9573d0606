//! Accesses to memory through servers whose owner, asker or messages are in the way.

use std::ptr::null_mut;
use std::time::{Duration, Instant};

use crate::common::fabric::{BOUND, Exposed, Failed, How, QUESTIONS, Side, Wish, table};
use crate::common::processes::{self, Process};
use crate::common::server::{Server, open, server, servers};
use crate::common::{inside, stop};
use weft::{Completion, ConnectOptions, Endpoint, Matching, ReceiveOptions, SendOptions, Source};
use weft_fi::sys::{self, FI_ADDR_UNSPEC};

/// The variable that names the server of a further process.
const SERVER: &str = "WEFT_FI_SERVER";
const KEY: u64 = 0x77;
const MEMORY: usize = 100_000;
/// The process that is asked for where a test needs to know it.
const PROCESS: u16 = 77;
/// The tag of requests, and that of the answer to request 0.
const REQUESTS: u64 = 1 << 63;
const ANSWERS: u64 = 1 << 63 | 1 << 32;

fn open_as(domain: String, process: u16) -> Side {
    let wish = Wish { domain: Some(domain), service: Some(process), ..Wish::default() };
    Side::open(&wish, How::default())
}

fn read(side: &Side, room: &mut [u8], from: u64, context: usize) {
    let (at, len) = (room.as_mut_ptr(), room.len());
    side.post(|| table!(side.ep, rma.read(at.cast(), len, null_mut(), from, 0, KEY, context as *mut _)));
}

/// The next message with the tag of requests: who has sent it, and its number.
fn take_request(owner: &mut Endpoint) -> (Source, u32) {
    let mut options = ReceiveOptions::default();
    options.matching = Matching::Tagged { tag: REQUESTS, ignore: 0 };
    owner.receive_with(vec![0; 64], options).unwrap();
    let begin = Instant::now();
    loop {
        if let Some(Completion::Received { source, buffer, result, .. }) = owner.poll().unwrap() {
            result.unwrap();
            let number = buffer.as_slice().unwrap()[4..8].try_into().unwrap();
            return (source.unwrap(), u32::from_le_bytes(number));
        }
        assert!(begin.elapsed() < BOUND, "no request");
        std::thread::yield_now();
    }
}

/// Answers a request with bytes that were read; returns when the answer is delivered.
fn answer(owner: &mut Endpoint, asker: Source, number: u32, bytes: &[u8]) {
    let connection =
        owner.connect_with(asker.peer, ConnectOptions::default().process(asker.process)).unwrap();
    let mut message = vec![1, 0, 0, 0];
    message.extend((bytes.len() as u32).to_le_bytes());
    message.extend(bytes);
    let options = SendOptions::default().tag(ANSWERS + u64::from(number));
    owner.send_with(connection, message, options).unwrap();
    let begin = Instant::now();
    loop {
        if let Some(Completion::Sent { result, .. }) = owner.poll().unwrap() {
            return result.unwrap();
        }
        assert!(begin.elapsed() < BOUND, "the answer is not delivered");
        std::thread::yield_now();
    }
}

#[test]
fn answers_to_a_process_that_is_gone_are_none_to_the_one_that_takes_its_number() {
    if !inside("answers_to_a_process_that_is_gone_are_none_to_the_one_that_takes_its_number") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let server = server(&directory, 41, |builder| builder);
    let mut owner = Endpoint::builder(server.name()).build().unwrap();
    let ask = |room: &mut [u8], owner: &mut Endpoint| {
        let side = open_as(server.name(), PROCESS);
        let mut name = side.name();
        name[2..4].copy_from_slice(&owner.process().to_be_bytes());
        let from = side.insert(&name);
        read(&side, room, from, 1);
        let (asker, number) = take_request(owner);
        (side, asker, number)
    };
    let mut rooms = [[0u8; 4]; 2];
    let [first, second] = &mut rooms;
    let (gone, _, number_before) = ask(first, &mut owner);
    drop(gone);
    let (side, asker, number) = ask(second, &mut owner);
    answer(&mut owner, asker, number_before, b"past");
    answer(&mut owner, asker, number, b"now!");
    assert!(side.cq.next().is_ok());
    assert_eq!(second, b"now!");
}

#[test]
fn accesses_through_a_server_are_cancelled_before_anything_was_asked_for() {
    if !inside("accesses_through_a_server_are_cancelled_before_anything_was_asked_for") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let server = server(&directory, 47, |builder| builder);
    let mut owner = Endpoint::builder(server.name()).build().unwrap();
    let side = open_as(server.name(), PROCESS);
    let mut name = side.name();
    name[2..4].copy_from_slice(&owner.process().to_be_bytes());
    let from = side.insert(&name);
    // More than are asked for at a time.
    let mut rooms = vec![[0u8; 4]; 100];
    for (n, room) in rooms.iter_mut().enumerate() {
        read(&side, room, from, n + 1);
    }
    let (asker, number) = take_request(&mut owner);
    // SAFETY: the endpoint is open.
    let cancel = |context: usize| unsafe {
        (*(*side.ep).ops).cancel.unwrap()(side.ep.cast(), std::ptr::without_provenance_mut(context))
    };
    let cancelled = |context| Some(Err(Failed { context, error: sys::FI_ECANCELED, beyond: 0 }));
    assert_eq!((cancel(100), side.cq.read()), (0, cancelled(100)));
    assert_eq!(cancel(100), -(sys::FI_ENOENT as isize));
    // It is too late for the first one.
    assert_eq!((cancel(1), side.cq.read()), (0, None));
    answer(&mut owner, asker, number, b"here");
    assert_eq!(side.cq.next().unwrap().context, 1);
    assert_eq!((rooms[0], rooms[99]), (*b"here", [0; 4]));
    assert_eq!((cancel(99), side.cq.next()), (0, cancelled(99).unwrap()));
}

/// A further process that has memory, and its name.
fn owner_elsewhere(test: &str, server: &Server) -> (Process, [u8; 16]) {
    let mut process = Process::start(test, 1, &[(SERVER, &server.name())]);
    let name = process.name();
    (process, name)
}

#[test]
fn an_access_ends_when_another_process_has_the_number_of_its_owner() {
    const NAME: &str = "an_access_ends_when_another_process_has_the_number_of_its_owner";
    if !inside(NAME) {
        return;
    }
    if processes::number().is_some() {
        let side = open_as(std::env::var(SERVER).unwrap(), PROCESS);
        let mut memory = vec![3u8; MEMORY];
        let _exposed = Exposed::new(&side, &mut memory, KEY);
        processes::say_name(side.name());
        return std::thread::sleep(BOUND);
    }
    let directory = tempfile::tempdir().unwrap();
    let server = server(&directory, 42, |builder| builder);
    let (mut owner, name) = owner_elsewhere(NAME, &server);
    let side = open(&server);
    let from = side.insert(&name);
    let mut room = vec![0u8; MEMORY];
    read(&side, &mut room, from, 1);
    assert!(side.cq.next().is_ok());
    // It has requests that it will never answer.
    stop(&owner);
    read(&side, &mut room, from, 2);
    assert_eq!(side.cq.read_within(500), None);
    owner.child.kill().unwrap();
    owner.child.wait().unwrap();
    let successor = open_as(server.name(), PROCESS);
    let mut memory = vec![4u8; MEMORY];
    let _exposed = Exposed::new(&successor, &mut memory, KEY);
    // Two questions: the successor answers that it does not have the request.
    let end = side.cq.next_within(2 * QUESTIONS);
    assert_eq!(end, Err(Failed { context: 2, error: sys::FI_ECONNREFUSED, beyond: 0 }));
    // What the successor has is accessed.
    read(&side, &mut room, from, 3);
    assert_eq!(side.cq.next().map(|entry| entry.context), Ok(3));
    assert_eq!(room, memory);
}

#[test]
fn an_access_does_not_wait_for_messages_that_nobody_receives() {
    if !inside("an_access_does_not_wait_for_messages_that_nobody_receives") {
        return;
    }
    const COUNT: usize = 40;
    const LONG: usize = 4 << 20;
    let directory = tempfile::tempdir().unwrap();
    let servers = servers(&directory, 43);
    let (a, b) = (open(&servers[0]), open(&servers[1]));
    let (to_b, to_a) = (a.insert(&b.name()), b.insert(&a.name()));
    let mut memory: Vec<u8> = (0..MEMORY).map(|n| (n * 7 + (n >> 8)) as u8).collect();
    let _exposed = Exposed::new(&b, &mut memory, KEY);
    // More than the server of the receiver keeps.
    let messages: Vec<_> = (0..COUNT).map(|n| vec![n as u8; LONG]).collect();
    for message in &messages {
        b.send(to_a, message, Some(5), 9);
    }
    std::thread::sleep(Duration::from_millis(500));
    let mut room = vec![0u8; MEMORY];
    read(&a, &mut room, to_b, 1);
    assert_eq!(a.cq.next().map(|entry| entry.context), Ok(1));
    assert_eq!(room, memory);
    let mut received = vec![0u8; LONG];
    for message in &messages {
        a.receive(&mut received, FI_ADDR_UNSPEC, Some((5, 0)), 2);
        assert_eq!(a.cq.next().map(|entry| entry.len), Ok(LONG));
        assert!(received == *message);
    }
}

#[test]
fn writes_that_were_injected_are_done_when_their_endpoint_is_closed_at_once() {
    if !inside("writes_that_were_injected_are_done_when_their_endpoint_is_closed_at_once") {
        return;
    }
    const COUNT: usize = 100;
    let directory = tempfile::tempdir().unwrap();
    let servers = servers(&directory, 45);
    let (a, b) = (open(&servers[0]), open(&servers[1]));
    let to_b = a.insert(&b.name());
    b.insert(&a.name());
    let mut memory = vec![0u8; 8 * COUNT];
    let _exposed = Exposed::new(&b, &mut memory, KEY);
    for n in 0..COUNT {
        let bytes = [n as u8 + 1; 8];
        let (at, to) = (bytes.as_ptr().cast(), 8 * n as u64);
        a.post(|| table!(a.ep, rma.inject(at, 8, to_b, to, KEY)));
    }
    drop(a);
    let begin = Instant::now();
    let written = |n: usize| {
        // SAFETY: the bytes are there, whoever writes to them.
        (0..8).all(|byte| unsafe { memory.as_ptr().add(8 * n + byte).read_volatile() } == n as u8 + 1)
    };
    while !(0..COUNT).all(written) {
        assert_eq!(b.cq.read(), None);
        let done = (0..COUNT).filter(|n| written(*n)).count();
        assert!(begin.elapsed() < BOUND / 6, "{done} of {COUNT} writes were done");
    }
}
