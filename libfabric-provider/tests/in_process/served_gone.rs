//! Processes of servers that are killed, or that ask for what they may not: what waits for them ends with an error, and nobody
//! else waits.

use std::ptr::null_mut;
use std::time::{Duration, Instant};

use crate::common::fabric::{BOUND, Entry, Exposed, Failed, How, QUESTIONS, Side, Wish, table};
use crate::common::processes::{self, Process};
use crate::common::server::{Server, open, server};
use crate::common::{first, inside, stop};
use weft::{Completion, ConnectOptions, Endpoint, Found, Matching, ReceiveOptions, SendOptions};
use weft_fi::sys::{self, FI_ADDR_UNSPEC};

/// The variable that names the server of a further process.
const SERVER: &str = "WEFT_FI_SERVER";
const KEY: u64 = 0x77;
const MEMORY: usize = 100_000;

/// A further process, which has memory under `KEY`, and its name.
fn victim(test: &str, server: &Server) -> (Process, [u8; 16]) {
    let mut process = Process::start(test, 1, &[(SERVER, &server.name())]);
    let name = process.name();
    (process, name)
}

/// What that process does.
fn wait_for_the_end() {
    let side = Side::open(&Wish { domain: std::env::var(SERVER).ok(), ..Wish::default() }, How::default());
    let mut memory = vec![3u8; MEMORY];
    let _exposed = Exposed::new(&side, &mut memory, KEY);
    processes::say_name(side.name());
    std::thread::sleep(BOUND);
}

/// The next entry, for which the process sleeps: it comes at once, or with the answer to a question.
fn end(side: &Side) -> Result<Entry, Failed> {
    side.cq.next_within(QUESTIONS)
}

fn refused(context: usize) -> Result<Entry, Failed> {
    Err(Failed { context, error: sys::FI_ECONNREFUSED, beyond: 0 })
}

#[test]
fn receives_that_name_a_process_end_when_it_is_gone() {
    const NAME: &str = "receives_that_name_a_process_end_when_it_is_gone";
    if !first(NAME, &[], |_| wait_for_the_end()) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let server = server(&directory, 21, |builder| builder);
    let (mut victim, name) = victim(NAME, &server);
    let a = open(&server);
    let (killed, own) = (a.insert(&name), a.insert(&a.name()));
    let mut rooms = [[0u8; 4]; 4];
    let [one, two, any, other] = &mut rooms;
    a.receive(one, killed, None, 1);
    a.receive(two, killed, Some((7, 0)), 2);
    a.receive(any, FI_ADDR_UNSPEC, Some((8, 0)), 3);
    a.receive(other, own, Some((9, 0)), 4);
    // It is asked more than once while it lives.
    assert_eq!(a.cq.read_within(5_000), None);
    victim.child.kill().unwrap();
    victim.child.wait().unwrap();
    let mut ends = [end(&a), end(&a)];
    ends.sort_by_key(|end| end.map_or_else(|failed| failed.context, |entry| entry.context));
    assert_eq!(ends, [1, 2].map(refused));
    // Those that wait for anybody, or for others, still do.
    a.send(own, b"any", Some(8), 5);
    a.send(own, b"own", Some(9), 6);
    let mut left = vec![3, 4, 5, 6];
    while !left.is_empty() {
        let context = end(&a).unwrap().context;
        left.retain(|other| *other != context);
    }
}

#[test]
fn accesses_end_when_the_owner_of_the_memory_is_gone() {
    const NAME: &str = "accesses_end_when_the_owner_of_the_memory_is_gone";
    if !first(NAME, &[], |_| wait_for_the_end()) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let server = server(&directory, 22, |builder| builder);
    let (mut victim, name) = victim(NAME, &server);
    let a = open(&server);
    let killed = a.insert(&name);
    let mut room = vec![0u8; MEMORY];
    let at = room.as_mut_ptr();
    let read = |context: usize| {
        a.post(|| table!(a.ep, rma.read(at.cast(), MEMORY, null_mut(), killed, 0, KEY, context as *mut _)));
    };
    // The owner's application does nothing.
    read(1);
    assert_eq!(end(&a).map(|entry| entry.context), Ok(1));
    // SAFETY: the bytes are there, and nothing writes to them now.
    assert!(unsafe { std::slice::from_raw_parts(at, MEMORY) }.iter().all(|byte| *byte == 3));
    // It has requests that it will never answer.
    stop(&victim);
    read(2);
    assert_eq!(a.cq.read_within(5_000), None);
    victim.child.kill().unwrap();
    victim.child.wait().unwrap();
    assert_eq!(end(&a), refused(2));
    read(3);
    assert_eq!(end(&a), refused(3));
}

/// A request, as `rdm/carried/wire.rs` describes it.
fn request(kind: u8, number: u32, len: u32) -> Vec<u8> {
    let mut bytes = vec![0; 64];
    bytes[0] = kind;
    bytes[4..8].copy_from_slice(&number.to_le_bytes());
    bytes[8..16].copy_from_slice(&KEY.to_le_bytes());
    bytes[24..28].copy_from_slice(&len.to_le_bytes());
    bytes[32..36].copy_from_slice(&len.to_le_bytes());
    bytes
}

/// The tags of requests and answers.
const REQUESTS: u64 = 1 << 63;
const ANSWERS: u64 = 1 << 63 | 1 << 32;

/// Whether the answer to request `number` comes within three seconds. It is not taken.
fn is_answered(endpoint: &mut Endpoint, number: u32) -> bool {
    let mut options = ReceiveOptions::default();
    options.matching = Matching::Tagged { tag: ANSWERS | u64::from(number), ignore: 0 };
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(3) {
        endpoint.peek(options, Found::Stays).unwrap();
        let found = loop {
            match endpoint.poll().unwrap() {
                Some(Completion::Peeked { message, .. }) => break message,
                _ => assert!(begin.elapsed() < BOUND, "the server does not answer"),
            }
        };
        if found.is_some() {
            return true;
        }
        std::thread::yield_now();
    }
    false
}

/// Receives answers until none comes for a second. Returns how many there were.
fn take_answers(endpoint: &mut Endpoint) -> usize {
    let mut count = 0;
    let mut last = Instant::now();
    let receive = |endpoint: &mut Endpoint| {
        let mut options = ReceiveOptions::default();
        options.matching = Matching::Tagged { tag: ANSWERS, ignore: u32::MAX.into() };
        endpoint.receive_with(vec![0; 40_000], options).unwrap();
    };
    receive(endpoint);
    while last.elapsed() < Duration::from_secs(1) {
        if let Some(Completion::Received { .. }) = endpoint.poll().unwrap() {
            (count, last) = (count + 1, Instant::now());
            receive(endpoint);
        }
    }
    count
}

#[test]
fn answers_that_nobody_waits_for_are_dropped() {
    const NAME: &str = "answers_that_nobody_waits_for_are_dropped";
    if !inside(NAME) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let server = server(&directory, 24, |builder| builder);
    // Its application does nothing.
    let a = open(&server);
    let mut hostile = Endpoint::builder(server.name()).build().unwrap();
    let host = hostile.peer(hostile.ip().unwrap()).unwrap();
    let process = u16::from_be_bytes([a.name()[2], a.name()[3]]);
    let connection = hostile.connect_with(host, ConnectOptions::default().process(process)).unwrap();
    // More than a server keeps for the process: 64 MiB.
    const COUNT: usize = 2_600;
    let (mut sent, mut done, begin) = (0, 0, Instant::now());
    while done < COUNT {
        if sent < COUNT && sent < done + 64 {
            let options = SendOptions::default().tag(ANSWERS | sent as u64);
            match hostile.send_with(connection, vec![7; 32 << 10], options) {
                Ok(_) => sent += 1,
                Err(refused) => assert!(refused.error.is_back_pressure(), "{refused}"),
            }
        }
        if let Some(Completion::Sent { result, .. }) = hostile.poll().unwrap() {
            result.unwrap();
            done += 1;
        }
        assert!(begin.elapsed() < BOUND, "{done} were delivered");
    }
}

#[test]
fn who_asks_for_too_much_and_takes_no_answers_keeps_nobody_from_memory() {
    const NAME: &str = "who_asks_for_too_much_and_takes_no_answers_keeps_nobody_from_memory";
    if !inside(NAME) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let server = server(&directory, 23, |builder| builder);
    let (a, b) = (open(&server), open(&server));
    let mut memory = vec![5u8; MEMORY];
    let exposed = Exposed::new(&b, &mut memory, KEY);
    let to_b = a.insert(&b.name());
    let mut hostile = Endpoint::builder(server.name()).build().unwrap();
    let host = hostile.peer(hostile.ip().unwrap()).unwrap();
    let process = u16::from_be_bytes([b.name()[2], b.name()[3]]);
    let connection = hostile.connect_with(host, ConnectOptions::default().process(process)).unwrap();
    let send = |hostile: &mut Endpoint, tag: u64, bytes: &[u8]| {
        let begin = Instant::now();
        let options = SendOptions::default().tag(tag);
        while let Err(refused) = hostile.send_with(connection, bytes.to_vec(), options) {
            assert!(refused.error.is_back_pressure() && begin.elapsed() < BOUND, "{refused}");
            let _ = hostile.poll().unwrap();
        }
        let _ = hostile.poll().unwrap();
    };
    // Nonsense of every kind and length.
    for n in 0..1_000u64 {
        let nonsense = vec![n as u8; n as usize % 97];
        send(&mut hostile, if n % 2 == 0 { REQUESTS } else { ANSWERS | n }, &nonsense);
    }
    // Reads, until its server keeps no further answer for it: 64 MiB.
    let mut asked = 0;
    let mut ask = |hostile: &mut Endpoint| {
        send(hostile, REQUESTS, &request(1, asked, 32 << 10));
        asked += 1;
        asked - 1
    };
    let begin = Instant::now();
    loop {
        // No more than wait at the owner.
        for _ in 0..7 {
            ask(&mut hostile);
        }
        let last = ask(&mut hostile);
        if !is_answered(&mut hostile, last) {
            break;
        }
        assert!(begin.elapsed() < 2 * BOUND);
    }
    // The owner has memory for some of these, keeps others, and drops the rest.
    const MORE: usize = 64;
    for _ in 0..MORE {
        ask(&mut hostile);
    }
    let mut room = vec![0u8; MEMORY];
    for round in 0..20 {
        let at = room.as_mut_ptr();
        a.post(|| table!(a.ep, rma.read(at.cast(), MEMORY, null_mut(), to_b, 0, KEY, round as *mut _)));
        let _ = hostile.poll().unwrap();
        let begin = Instant::now();
        let entry = loop {
            assert_eq!(b.cq.read(), None);
            match a.cq.read() {
                Some(entry) => break entry.unwrap(),
                None => assert!(begin.elapsed() < BOUND, "round {round}"),
            }
        };
        assert_eq!(entry.context, round);
        // SAFETY: the bytes are there, and nothing writes to them now.
        assert!(unsafe { std::slice::from_raw_parts(at, MEMORY) }.iter().all(|byte| *byte == 5));
        std::thread::sleep(Duration::from_millis(1));
    }
    // It has got what its server has kept, and its share of the owner's memory, and not what it has asked for beyond that.
    let answered = take_answers(&mut hostile);
    assert!(answered >= 1_000 && answered + MORE / 2 <= asked as usize, "{answered} answers to {asked}");
    drop(exposed);
}
