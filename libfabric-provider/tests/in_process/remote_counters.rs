//! Counters of what peers do with memory (FI_RMA_EVENT), between two processes.

use std::ffi::c_void;
use std::ptr::null_mut;

use crate::common::fabric::{BOUND, Exposed, How, Side, Wish, close, table};
use crate::common::first;
use crate::common::processes::{self, Process};
use crate::common::server::servers;
use weft_fi::sys;

/// The variable that names the server of the process whose memory is accessed, if it has one.
const SERVER: &str = "WEFT_FI_SERVER";
/// Memory with a counter of its own, and memory without.
const KEYS: [u64; 2] = [0x11, 0x22];
const MEMORY: usize = 400_000;
/// Bytes of an access of many packets, and of several pieces through a server.
const LONG: usize = 300_000;
/// Accesses to each piece of memory that succeed: reads and fetching atomic operations, writes and other ones, and what changes it.
const READS: u64 = 5;
const WRITES: u64 = 4;
const CHANGES: u64 = 6;

fn open(domain: Option<String>) -> Side {
    let caps = sys::FI_RMA | sys::FI_ATOMIC | sys::FI_RMA_EVENT;
    let how = How { counters: Some(sys::FI_WAIT_UNSPEC), of_peers: true, ..How::default() };
    Side::open(&Wish { caps, domain, ..Wish::default() }, how)
}

/// What the process does whose memory is accessed.
fn be_accessed() {
    let side = open(std::env::var(SERVER).ok());
    let mut memory = [vec![0u8; MEMORY], vec![0u8; MEMORY]];
    let [one, two] = &mut memory;
    let exposed = [Exposed::new(&side, one, KEYS[0]), Exposed::new(&side, two, KEYS[1])];
    let (counter, answer) = exposed[0].count(&side, sys::FI_REMOTE_WRITE);
    assert_eq!(answer, 0);
    for flags in [sys::FI_REMOTE_READ, sys::FI_WRITE, 0] {
        let (counter, answer) = exposed[1].count(&side, flags);
        assert_eq!(answer, -(sys::FI_EBADFLAGS as i32));
        assert_eq!(close(counter.0.cast()), 0);
    }
    let (second, answer) = exposed[0].count(&side, sys::FI_REMOTE_WRITE);
    assert_eq!(answer, -sys::FI_EINVAL, "the memory has a counter");
    assert_eq!(close(second.0.cast()), 0);
    processes::say_name(side.name());
    // Its server lets in whom it has named.
    side.insert(&processes::told_name());
    println!("knows");
    // It sleeps, and an access wakes it.
    assert_eq!(counter.wait(CHANGES, BOUND.as_millis() as i32), 0);
    assert_eq!(processes::told(), "all have ended");
    // Its application has done nothing meanwhile.
    let of_peers = [side.counters[4].read(), side.counters[5].read()];
    assert_eq!(of_peers, [(2 * READS, 0), (2 * WRITES, 0)]);
    assert_eq!(counter.read(), (CHANGES, 0));
    assert!(side.counters[..4].iter().all(|own| own.read() == (0, 0)), "it has done nothing itself");
    assert_eq!(close(counter.0.cast()), -sys::FI_EBUSY, "the memory refers to it");
    drop(exposed);
    assert_eq!(close(counter.0.cast()), 0);
    println!("counted");
}

/// Accesses the memory of another process, whose server is the second.
fn access(side: &Side, owner: &mut Process) {
    let name = owner.name();
    let to = side.insert(&name);
    owner.tell_name(side.name());
    owner.says("knows");
    let (mut bytes, one) = (vec![7u8; LONG], 1u64);
    let (at, operand) = (bytes.as_mut_ptr(), (&raw const one).cast::<c_void>());
    let (u64s, sum) = (sys::FI_UINT64, sys::FI_SUM);
    let ends = |succeeds: bool| {
        let end = side.cq.read_within(60_000).expect("an entry within a minute");
        assert_eq!(end.is_ok(), succeeds, "{end:?}");
    };
    // The other memory is first: the owner waits for the counter of this one.
    for key in [KEYS[1], KEYS[0]] {
        let read =
            |len, addr| table!(side.ep, rma.read(at.cast(), len, null_mut(), to, addr, key, null_mut()));
        let write =
            |len, addr| table!(side.ep, rma.write(at.cast(), len, null_mut(), to, addr, key, null_mut()));
        let fetch = |op| {
            let result = at.cast();
            table!(
                side.ep,
                atomic.readwrite(
                    operand,
                    1,
                    null_mut(),
                    result,
                    null_mut(),
                    to,
                    0,
                    key,
                    u64s,
                    op,
                    null_mut()
                )
            )
        };
        side.post(|| read(8, 0));
        ends(true);
        side.post(|| read(LONG, 5));
        ends(true);
        side.post(|| fetch(sys::FI_ATOMIC_READ));
        ends(true);
        // What is refused counts for nobody.
        side.post(|| write(LONG, 200_000));
        ends(false);
        side.post(|| write(8, 0));
        ends(true);
        side.post(|| write(LONG, 3));
        ends(true);
        side.post(|| table!(side.ep, rma.writedata(at.cast(), LONG, null_mut(), 9, to, 0, key, null_mut())));
        ends(true);
        side.post(|| {
            table!(side.ep, atomic.write(operand, 1, null_mut(), to, 0, key, u64s, sum, null_mut()))
        });
        ends(true);
        side.post(|| fetch(sum));
        ends(true);
        let result = at.cast();
        side.post(|| {
            table!(
                side.ep,
                atomic.compwrite(
                    operand,
                    1,
                    null_mut(),
                    operand,
                    null_mut(),
                    result,
                    null_mut(),
                    to,
                    0,
                    key,
                    u64s,
                    sys::FI_CSWAP,
                    null_mut()
                )
            )
        });
        ends(true);
    }
    owner.tell("all have ended");
    owner.says("counted");
    let own = side.counters.iter().map(|counter| counter.read()).collect::<Vec<_>>();
    assert_eq!(own, [(0, 0), (0, 0), (2 * READS, 0), (2 * WRITES, 2), (0, 0), (0, 0)]);
}

#[test]
fn what_peers_do_with_memory_is_counted() {
    const NAME: &str = "what_peers_do_with_memory_is_counted";
    if !first(NAME, &[], |_| be_accessed()) {
        return;
    }
    access(&open(None), &mut Process::start(NAME, 1, &[]));
}

#[test]
fn what_peers_do_with_memory_is_counted_through_servers() {
    const NAME: &str = "what_peers_do_with_memory_is_counted_through_servers";
    if !first(NAME, &[], |_| be_accessed()) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let servers = servers(&directory, 41);
    let mut owner = Process::start(NAME, 1, &[(SERVER, &servers[1].name())]);
    access(&open(Some(servers[0].name())), &mut owner);
}
