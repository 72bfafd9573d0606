//! `fi_cancel` of programs that give their operations no contexts, and while a server executes nothing.

use std::ffi::c_void;
use std::path::Path;
use std::ptr::{null_mut, without_provenance_mut};

use crate::common::fabric::{BOUND, Exposed, Failed, How, Side, Wish, table};
use crate::common::processes::{self, Process};
use crate::common::server::Server;
use crate::common::{inside, stop};
use weft_fi::sys::{self, FI_ADDR_UNSPEC};

const NAME: &str = "a_cancel_without_a_context_takes_the_receive_and_nothing_that_was_injected";
const KEY: u64 = 9;
/// Bytes of each message that is injected: so few that it is sent at once whatever its peer has not received.
const LEN: usize = 1_000;
/// Messages with this tag, of which most wait in the endpoint, as their peer acknowledges nothing.
const TAG: u64 = 7;
const COUNT: usize = 400;
/// Where the write and the sum go to.
const WRITTEN: u64 = 16;
const SUM: u64 = 8;

fn content(n: usize) -> Vec<u8> {
    (0..LEN).map(|at| (at * 3 + n * 29 + 1) as u8).collect()
}

fn cancel(side: &Side) -> isize {
    // SAFETY: the endpoint is open.
    unsafe { (*(*side.ep).ops).cancel.unwrap()(side.ep.cast(), null_mut()) }
}

/// Receives without a context, cancels what has none, and demands that it was the receive.
fn cancel_a_receive(side: &Side, after: &str) {
    let mut room = [0u8; 8];
    side.receive(&mut room, FI_ADDR_UNSPEC, Some((TAG + 1, 0)), 0);
    assert_eq!(cancel(side), 0, "after {after}");
    let cancelled = Failed { context: 0, error: sys::FI_ECANCELED, beyond: 0 };
    assert_eq!(side.cq.read_within(BOUND.as_millis() as i32), Some(Err(cancelled)), "after {after}");
    assert_eq!(cancel(side), -(sys::FI_ENOENT as isize), "something without a context is left after {after}");
}

/// The peer, which is stopped while everything is injected.
fn receive_all() {
    let side = Side::open(&Wish::default(), How::default());
    println!("name {}", u128::from_be_bytes(side.name()));
    let to = side.insert(&processes::told().parse::<u128>().unwrap().to_be_bytes());
    let mut memory = vec![0u8; WRITTEN as usize + LEN];
    let exposed = Exposed::new(&side, &mut memory, KEY);
    side.send(to, &[], Some(TAG), 1);
    assert_eq!(side.cq.next().unwrap().context, 1);
    println!("is there");
    // It is told so when it goes on.
    processes::told();
    let mut room = vec![0u8; LEN];
    side.receive(&mut room, to, None, 2);
    assert_eq!(side.cq.next().map(|entry| (entry.context, entry.len)), Ok((2, LEN)));
    assert!(room == content(0));
    for n in 1..=COUNT {
        side.receive(&mut room, to, Some((TAG, 0)), 2 + n);
        assert_eq!(side.cq.next().map(|entry| (entry.context, entry.len)), Ok((2 + n, LEN)));
        assert!(room == content(n), "message {n}");
    }
    // The write and the sum were injected before the last messages; nothing says when they are done.
    let expected = [&5u64.to_le_bytes()[..], &content(COUNT + 1)].concat();
    let begin = std::time::Instant::now();
    loop {
        assert!(side.cq.read().is_none());
        // SAFETY: the bytes are there.
        let now: Vec<u8> = unsafe {
            (SUM as usize..memory.len()).map(|at| memory.as_ptr().add(at).read_volatile()).collect()
        };
        if now == expected {
            break;
        }
        assert!(begin.elapsed() < BOUND, "the write or the sum is not done");
    }
    drop(exposed);
    println!("has all");
}

/// Injected operations are recorded with the context of their endpoint, which is null here. A cancel of null must not take them.
#[test]
fn a_cancel_without_a_context_takes_the_receive_and_nothing_that_was_injected() {
    if !inside(NAME) {
        return;
    }
    if processes::number().is_some() {
        return receive_all();
    }
    let side = Side::open(&Wish::default(), How::default());
    let mut process = Process::start(NAME, 1, &[]);
    let to = side.insert(&process.says("name ").parse::<u128>().unwrap().to_be_bytes());
    process.tell(&u128::from_be_bytes(side.name()).to_string());
    process.says("is there");
    side.receive(&mut [], to, Some((TAG, 0)), 1);
    assert_eq!(side.cq.next().unwrap().context, 1);
    stop(&process);
    let at = |bytes: &[u8]| -> *const c_void { bytes.as_ptr().cast() };
    let message = content(0);
    side.post(|| table!(side.ep, msg.inject(at(&message), LEN, to)));
    cancel_a_receive(&side, "fi_inject");
    let message = content(COUNT + 1);
    side.post(|| table!(side.ep, rma.inject(at(&message), LEN, to, WRITTEN, KEY)));
    cancel_a_receive(&side, "fi_inject_write");
    let five = 5u64.to_le_bytes();
    side.post(|| table!(side.ep, atomic.inject(at(&five), 1, to, SUM, KEY, sys::FI_UINT64, sys::FI_SUM)));
    cancel_a_receive(&side, "fi_inject_atomic");
    for n in 1..=COUNT {
        let message = content(n);
        side.post(|| table!(side.ep, tagged.inject(at(&message), LEN, to, TAG)));
    }
    cancel_a_receive(&side, "fi_tinject");
    // A message with a context is found behind those that were injected.
    let (room, context) = ([1u8; 8], without_provenance_mut(3));
    side.send(to, &room, Some(TAG + 2), 3);
    // SAFETY: the endpoint is open.
    assert_eq!(unsafe { (*(*side.ep).ops).cancel.unwrap()(side.ep.cast(), context) }, 0);
    // SAFETY: it is the number of a process that has not been waited for.
    assert_eq!(unsafe { libc::kill(process.child.id() as i32, libc::SIGCONT) }, 0);
    process.tell("it goes on");
    process.says("has all");
    // It may have left before it was cancelled.
    let end = side.cq.next().map_or_else(|failed| failed.context, |entry| entry.context);
    assert_eq!(end, 3);
    assert!(process.child.wait().unwrap().success());
}

/// The server executes nothing while its process is stopped, so that its ring is full of receives.
#[test]
fn receives_are_cancelled_whatever_the_server_has_not_come_to() {
    const NAME: &str = "receives_are_cancelled_whatever_the_server_has_not_come_to";
    /// More than the ring holds, with their cancels.
    const RECEIVES: usize = 2_200;
    if !inside(NAME) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("server");
    if processes::number().is_some() {
        let socket = std::env::var_os("WEFT_FI_SOCKET").unwrap();
        let _server = Server::start(weft::Endpoint::builder("udp:127.13.0.90"), Path::new(&socket));
        println!("is there");
        // It serves until it is killed, or the other process has ended.
        std::io::stdin().read_line(&mut String::new()).unwrap();
        return;
    }
    let mut process = Process::start(NAME, 1, &[("WEFT_FI_SOCKET", socket.to_str().unwrap())]);
    process.says("is there");
    let wish = Wish { domain: Some(format!("serve:{}", socket.display())), ..Wish::default() };
    let side = Side::open(&wish, How::default());
    let own = side.insert(&side.name());
    // The host is known to the server.
    side.send(own, b"first", Some(TAG), 1);
    let mut room = [0; 5];
    side.receive(&mut room, own, Some((TAG, 0)), 2);
    (0..2).for_each(|_| assert!(side.cq.next().is_ok()));
    stop(&process);
    let contexts = 10..10 + RECEIVES;
    contexts.clone().for_each(|context| side.receive(&mut [], FI_ADDR_UNSPEC, Some((TAG, 0)), context));
    for context in contexts.clone() {
        // SAFETY: the endpoint is open.
        let answer = unsafe { (*(*side.ep).ops).cancel.unwrap()(side.ep.cast(), context as *mut c_void) };
        assert_eq!(answer, 0, "receive {context}");
    }
    // SAFETY: the process has not been waited for.
    assert_eq!(unsafe { libc::kill(process.child.id() as i32, libc::SIGCONT) }, 0);
    let mut cancelled: Vec<_> = (0..RECEIVES)
        .map(|_| match side.cq.next() {
            Err(Failed { context, error: sys::FI_ECANCELED, .. }) => context,
            other => panic!("{other:?}"),
        })
        .collect();
    cancelled.sort_unstable();
    assert!(cancelled.into_iter().eq(contexts));
    drop(side);
    process.child.kill().unwrap();
}
