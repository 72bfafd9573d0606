//! Peers whose processes are killed, or that never were there: what waits for them ends with an error. And peers that are closed
//! and come again.

use std::time::Duration;

use crate::common::fabric::{BOUND, Entry, Exposed, Failed, How, QUESTIONS, SILENCE, Side, Wish, table};
use crate::common::inside;
use crate::common::processes::{self, Process};
use weft_fi::sys;
use weft_fi::sys::FI_ADDR_UNSPEC;

fn open() -> Side {
    Side::open(&Wish::default(), How::default())
}

/// The memory that the other process exposes.
const KEY: u64 = 0x51;
const MEMORY: usize = 1 << 20;

/// An endpoint of another process, which takes a message.
fn victim(test: &str) -> (Process, [u8; 16]) {
    let mut process = Process::start(test, 1, &[]);
    let name = process.name();
    (process, name)
}

/// What that process does.
fn wait_for_the_end() {
    let side = open();
    processes::say_name(side.name());
    let (mut room, mut memory) = ([0; 4], vec![3u8; MEMORY]);
    let _exposed = Exposed::new(&side, &mut memory, KEY);
    side.receive(&mut room, FI_ADDR_UNSPEC, None, 1);
    assert!(side.cq.next().is_ok());
    println!("has it");
    std::thread::sleep(BOUND);
}

fn kill(process: &mut Process) {
    process.says("has it");
    process.child.kill().unwrap();
    process.child.wait().unwrap();
}

/// The next entry, for which the process sleeps: it comes at once, or with the silence of a peer.
fn end(side: &Side) -> Result<Entry, Failed> {
    side.cq.next_within(SILENCE)
}

fn silent(context: usize) -> Result<Entry, Failed> {
    Err(Failed { context, error: sys::FI_ETIMEDOUT, beyond: 0 })
}

/// An endpoint, another process, and the number of that there; none where the test has nothing else to do: in the process that starts
/// the one with the provider, and in the other process.
fn meet(test: &str) -> Option<(Side, Process, u64)> {
    if !inside(test) {
        return None;
    }
    if processes::number().is_some() {
        wait_for_the_end();
        return None;
    }
    let (victim, name) = victim(test);
    let side = open();
    let number = side.insert(&name);
    Some((side, victim, number))
}

/// A server that is restarted, for example, while its client goes on. The client's connections are to the endpoint that was closed.
#[test]
fn an_endpoint_that_comes_at_the_address_of_one_that_was_closed_gets_the_first_operations_of_a_peer() {
    if !inside(
        "an_endpoint_that_comes_at_the_address_of_one_that_was_closed_gets_the_first_operations_of_a_peer",
    ) {
        return;
    }
    let (a, mut service) = (open(), None);
    for round in 0..3 {
        let b = Side::open(&Wish { service, ..Wish::default() }, How::default());
        let name = b.name();
        service = Some(u16::from_be_bytes([name[2], name[3]]));
        let to_b = a.insert(&name);
        let (mut memory, mut result, mut room) = ([7 + round; 8], [0; 8], [0; 4]);
        let mut long = vec![9; 1 << 20];
        let exposed = Exposed::new(&b, &mut memory, KEY);
        b.receive(&mut room, FI_ADDR_UNSPEC, None, 1);
        a.send(to_b, b"live", None, 2);
        assert!(a.cq.next().is_ok() && b.cq.next().is_ok(), "round {round}");
        b.receive(&mut long, FI_ADDR_UNSPEC, None, 4);
        let sent = vec![round; 1 << 20];
        a.send(to_b, &sent, None, 5);
        assert!(a.cq.next().is_ok() && b.cq.next().is_ok(), "a long message in round {round}");
        let (none, context) = (std::ptr::null_mut(), std::ptr::without_provenance_mut(3));
        a.post(|| table!(a.ep, rma.read(result.as_mut_ptr().cast(), 8, none, to_b, 0, KEY, context)));
        assert!(a.cq.next().is_ok(), "round {round}");
        assert_eq!((room, result), (*b"live", [7 + round; 8]));
        assert!(long.iter().all(|byte| *byte == round));
        drop((exposed, b));
        // The request of the closed endpoint has arrived. If no thread of the provider has read it yet, this call does.
        assert_eq!(a.cq.read(), None);
    }
}

#[test]
fn messages_to_a_peer_that_is_gone_fail_within_a_bounded_time() {
    let Some((a, mut victim, killed)) = meet("messages_to_a_peer_that_is_gone_fail_within_a_bounded_time")
    else {
        return;
    };
    a.send(killed, b"live", None, 1);
    assert_eq!(a.cq.next().unwrap().context, 1);
    kill(&mut victim);
    // One that was never there: an endpoint that is closed again.
    let closed = a.insert(&open().name());
    let long = vec![7; 1 << 20];
    for (context, peer) in [(2, killed), (3, killed), (4, closed)] {
        a.send(peer, &long, None, context);
    }
    // Others are not held up.
    let own = a.insert(&a.name());
    let mut room = [0; 4];
    a.receive(&mut room, own, None, 5);
    a.send(own, b"self", None, 6);
    let mut ends: Vec<_> = (2..=6).map(|_| end(&a)).collect();
    ends.sort_by_key(|end| end.map_or_else(|failed| failed.context, |entry| entry.context));
    assert_eq!(ends[..3], [2, 3, 4].map(silent));
    assert!(ends[3].is_ok() && ends[4].is_ok(), "{ends:?}");
    // The next message to it fails in the same way.
    a.send(killed, &long, None, 7);
    assert_eq!(end(&a), silent(7));
}

#[test]
fn accesses_to_memory_of_a_process_that_is_gone_fail_within_a_bounded_time() {
    let Some((a, mut victim, killed)) =
        meet("accesses_to_memory_of_a_process_that_is_gone_fail_within_a_bounded_time")
    else {
        return;
    };
    let (mut room, bytes) = (vec![0u8; MEMORY], vec![7u8; MEMORY]);
    let (one, mut before) = ([1u8; 8], [0u8; 8]);
    let (operand, fetched) = (one.as_ptr().cast(), before.as_mut_ptr().cast());
    let (none, u64s, sum) = (std::ptr::null_mut(), sys::FI_UINT64, sys::FI_SUM);
    let mut access = |which: usize| {
        let context = std::ptr::without_provenance_mut(which);
        a.post(|| match which {
            2 => table!(a.ep, rma.read(room.as_mut_ptr().cast(), MEMORY, none, killed, 0, KEY, context)),
            3 => table!(a.ep, rma.write(bytes.as_ptr().cast(), MEMORY, none, killed, 0, KEY, context)),
            _ => table!(
                a.ep,
                atomic.readwrite(operand, 1, none, fetched, none, killed, 0, KEY, u64s, sum, context)
            ),
        });
    };
    let all = [2, 3, 4];
    let ends = || {
        let mut ends = all.map(|_| end(&a));
        ends.sort_by_key(|end| end.map_or_else(|failed| failed.context, |entry| entry.context));
        ends
    };
    all.iter().for_each(|which| access(*which));
    assert!(ends().iter().all(Result::is_ok), "while it lives");
    a.send(killed, b"live", None, 1);
    assert_eq!(a.cq.next().unwrap().context, 1);
    kill(&mut victim);
    // Twice: later ones fail in the same way.
    for _ in 0..2 {
        all.iter().for_each(|which| access(*which));
        assert_eq!(ends(), all.map(silent));
    }
    // Nothing refers to their memory any more, and the endpoint goes on.
    drop((room, bytes));
    let own = a.insert(&a.name());
    let mut room = [0; 4];
    a.receive(&mut room, own, None, 5);
    a.send(own, b"self", None, 6);
    assert!(end(&a).is_ok() && end(&a).is_ok());
}

#[test]
fn receives_that_name_a_peer_end_when_it_is_gone() {
    let Some((a, mut victim, killed)) = meet("receives_that_name_a_peer_end_when_it_is_gone") else { return };
    let own = a.insert(&a.name());
    let mut rooms = [[0u8; 4]; 5];
    let [one, two, any, other, rest] = &mut rooms;
    a.receive(one, killed, None, 2);
    a.receive(two, killed, Some((7, 0)), 3);
    a.receive(any, FI_ADDR_UNSPEC, Some((8, 0)), 4);
    a.receive(other, own, Some((9, 0)), 5);
    // It is asked more than once while it lives, and answers.
    assert_eq!(a.cq.read_within(5_000), None);
    a.send(killed, b"live", None, 1);
    assert_eq!(end(&a).unwrap().context, 1);
    kill(&mut victim);
    // It is asked once more, and does not answer.
    let mut ends = [(); 2].map(|()| a.cq.next_within(QUESTIONS + SILENCE));
    ends.sort_by_key(|end| end.map_or_else(|failed| failed.context, |entry| entry.context));
    assert_eq!(ends, [2, 3].map(silent));
    // Those that wait for anybody, or for others, still do.
    a.send(own, b"any", Some(8), 6);
    a.send(own, b"own", Some(9), 7);
    let mut left = vec![4, 5, 6, 7];
    while !left.is_empty() {
        let context = end(&a).unwrap().context;
        left.retain(|other| *other != context);
    }
    // One that is posted later ends as well, also if nobody reads the queue meanwhile.
    a.receive(rest, killed, None, 8);
    std::thread::sleep(Duration::from_secs(10));
    assert_eq!(a.cq.next(), silent(8));
}

/// The receive has met a message, of which the rest never comes, so that it is too late to take it back.
#[test]
fn a_receive_that_names_its_peer_ends_when_that_dies_in_the_middle_of_a_message() {
    const NAME: &str = "a_receive_that_names_its_peer_ends_when_that_dies_in_the_middle_of_a_message";
    const LONG: usize = 256 << 20;
    if !inside(NAME) {
        return;
    }
    let side = open();
    if processes::number().is_some() {
        processes::say_name(side.name());
        let to = side.insert(&processes::told_name());
        side.send(to, &vec![7u8; LONG], None, 1);
        while side.cq.read().is_none() {
            std::thread::yield_now();
        }
        panic!("it was to be killed before");
    }
    let (mut victim, name) = victim(NAME);
    let from = side.insert(&name);
    let mut room = vec![0u8; LONG];
    side.receive(&mut room, from, None, 2);
    victim.tell_name(side.name());
    let begun = || {
        // SAFETY: the byte is there.
        unsafe { room.as_ptr().read_volatile() == 7 }
    };
    while !begun() {
        assert_eq!(side.cq.read(), None);
        std::thread::yield_now();
    }
    victim.child.kill().unwrap();
    victim.child.wait().unwrap();
    assert_eq!(side.cq.next_within(QUESTIONS + SILENCE), silent(2));
}

/// As many peers as an endpoint knows at a time, and more, one after the other. Each is removed from the vector before the next.
#[test]
fn peers_that_are_removed_make_room_for_others() {
    if !inside("peers_that_are_removed_make_room_for_others") {
        return;
    }
    const AT_A_TIME: u16 = 4096;
    let side =
        Side::open(&Wish { caps: sys::FI_MSG | sys::FI_DIRECTED_RECV, ..Wish::default() }, How::default());
    let mut room = [0u8; 4];
    let mut ask_of = |port: u16, removes: bool| {
        let mut name = side.name();
        name[2..4].copy_from_slice(&port.to_be_bytes());
        let mut number = side.insert(&name);
        let (at, context) = (room.as_mut_ptr().cast(), std::ptr::without_provenance_mut(usize::from(port)));
        let posted = table!(side.ep, msg.recv(at, 4, std::ptr::null_mut(), number, context));
        if posted == 0 {
            // SAFETY: the endpoint is open.
            assert_eq!(unsafe { (*(*side.ep).ops).cancel.unwrap()(side.ep.cast(), context) }, 0);
            assert_eq!(side.cq.next().map_err(|failed| failed.error), Err(sys::FI_ECANCELED));
        }
        if removes {
            assert_eq!(table!(side.av, ops.remove(&mut number, 1, 0)), 0);
        }
        posted
    };
    // Ports are multiples of four.
    for n in 0..AT_A_TIME + 500 {
        assert_eq!(ask_of(4 * (n + 1), true), 0, "peer {n}");
    }
    // Those that stay in the vector are kept.
    let refused = (0..AT_A_TIME).map(|n| ask_of(4 * (n + 6000), false)).find(|posted| *posted != 0);
    assert_eq!(refused, Some(-(sys::FI_ENOMEM as isize)));
}
