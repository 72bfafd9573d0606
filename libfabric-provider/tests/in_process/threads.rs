//! Several threads of a program use one endpoint and its completion queue at the same time (FI_THREAD_SAFE): for messages, and
//! meanwhile for all other kinds of calls.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::fabric::{BOUND, Entry, Exposed, Failed, How, Side, Wish, close, table};
use crate::common::inside;
use crate::common::server::servers;
use weft_fi::sys;

const PLAIN: &str = "threads_share_an_endpoint_and_its_queue";
const SERVED: &str = "threads_share_an_endpoint_of_a_server_and_its_queue";

const OTHER_CALLS: &str = "threads_make_calls_of_all_kinds_at_the_same_time";
const OTHER_CALLS_SERVED: &str = "threads_make_calls_of_all_kinds_at_the_same_time_through_servers";

/// Threads of each side.
const THREADS: usize = 4;
/// Rounds, in each of which a thread posts so many messages or receives.
const ROUNDS: usize = 60;
const AT_ONCE: usize = 8;
/// Operations of the messages of a side, and the most of other calls.
const MESSAGES: usize = THREADS * ROUNDS * AT_ONCE;
const OTHERS: usize = 1 << 22;
/// Keys and tags of the threads that make other calls.
const KEY: u64 = 0x7000;
const NO_TAG: u64 = u64::MAX >> 1;

/// The content of a message of a thread: some of one packet, some of many.
fn content(thread: usize, number: usize) -> Vec<u8> {
    let len = [0, 1, 700, 5_000, 40_000][(thread + number) % 5];
    (0..len).map(|at| (at * 7 + thread * 31 + number * 3) as u8).collect()
}

fn tag(thread: usize, number: usize) -> u64 {
    (thread << 32 | number) as u64
}

/// Each sleeps until the other one's message has come, and nobody else calls.
#[test]
fn two_threads_that_sleep_at_the_queues_of_two_endpoints_wake_each_other() {
    if !inside("two_threads_that_sleep_at_the_queues_of_two_endpoints_wake_each_other") {
        return;
    }
    const TURNS: usize = 200;
    const SENT: usize = 1;
    const RECEIVED: usize = 2;
    let bytes = |of: usize, turn: usize| -> Vec<u8> {
        let len = if turn.is_multiple_of(8) { 100_000 } else { 64 };
        (0..len).map(|at| (at * 3 + (at >> 8) + turn * 7 + of * 101) as u8).collect()
    };
    for wait in [sys::FI_WAIT_FD, sys::FI_WAIT_UNSPEC] {
        let sides = [0, 1].map(|_| Side::open(&Wish::default(), How { wait, ..How::default() }));
        let to = [sides[0].insert(&sides[1].name()), sides[1].insert(&sides[0].name())];
        let play = |own: usize| {
            let side = &sides[own];
            let await_one = |expected: &[usize]| {
                let entry = side.cq.read_within(60_000).expect("a message within a minute").unwrap();
                assert!(expected.contains(&entry.context), "{entry:?}");
                entry.context
            };
            for turn in 0..TURNS {
                let (message, expected) = (bytes(own, turn), bytes(1 - own, turn));
                let mut room = vec![0u8; expected.len()];
                side.receive(&mut room, to[own], Some((turn as u64, 0)), RECEIVED);
                if own == 1 {
                    assert_eq!(await_one(&[RECEIVED]), RECEIVED);
                }
                side.send(to[own], &message, Some(turn as u64), SENT);
                if own == 1 {
                    assert_eq!(await_one(&[SENT]), SENT);
                } else {
                    let both = [await_one(&[SENT, RECEIVED]), await_one(&[SENT, RECEIVED])];
                    assert_ne!(both[0], both[1]);
                }
                assert!(room == expected, "turn {turn} of {own}");
            }
        };
        std::thread::scope(|scope| {
            let other = scope.spawn(|| play(1));
            play(0);
            other.join().unwrap();
        });
    }
}

/// An endpoint, and how often each operation has ended: the thread that reads an entry is seldom the one that waits for it.
struct Shared {
    side: Side,
    ended: Vec<AtomicU32>,
    /// How many other operations have been posted.
    others: AtomicUsize,
}

impl Shared {
    fn open(domain: Option<String>) -> Shared {
        let side = Side::open(&Wish { domain, ..Wish::default() }, How::default());
        let ended = (0..MESSAGES + OTHERS).map(|_| AtomicU32::new(0)).collect();
        Shared { side, ended, others: AtomicUsize::new(0) }
    }

    /// The context of an operation that is no message of a round.
    fn other(&self) -> usize {
        let number = self.others.fetch_add(1, Ordering::Relaxed);
        assert!(number < OTHERS, "too many calls");
        MESSAGES + number
    }

    /// Notes an entry, of whichever thread.
    fn note(&self, entry: Result<Entry, Failed>) {
        let context = match entry {
            Ok(entry) => entry.context,
            // Only receives of a tag that nobody uses are cancelled.
            Err(failed) => {
                assert_eq!(failed.error, sys::FI_ECANCELED);
                assert!(failed.context >= MESSAGES, "{failed:?}");
                failed.context
            }
        };
        self.ended[context].fetch_add(1, Ordering::Release);
    }

    /// Waits until another operation has ended.
    fn wait_for_other(&self, context: usize) {
        let begin = Instant::now();
        while self.ended[context].load(Ordering::Acquire) == 0 {
            match self.side.cq.read() {
                Some(entry) => self.note(entry),
                None => std::thread::yield_now(),
            }
            assert!(begin.elapsed() < BOUND, "operation {context} does not end");
        }
    }

    fn context(thread: usize, number: usize) -> usize {
        thread * ROUNDS * AT_ONCE + number
    }

    /// Reads entries of any thread until those of these numbers have ended.
    fn wait_for(&self, thread: usize, numbers: std::ops::Range<usize>) {
        let begin = Instant::now();
        let has_ended = |number| self.ended[Shared::context(thread, number)].load(Ordering::Acquire) > 0;
        while !numbers.clone().all(has_ended) {
            match self.side.cq.read() {
                Some(entry) => self.note(entry),
                None => std::thread::yield_now(),
            }
            assert!(begin.elapsed() < BOUND, "thread {thread} waits for {numbers:?}");
        }
    }
}

/// Inserts and removes names of others.
fn insert_and_remove(own: &Shared, busy: &AtomicBool) {
    let mut name = own.side.name();
    for n in (1..=1_000u16).cycle().take_while(|_| busy.load(Ordering::Relaxed)) {
        // Ports are multiples of four, and processes are as they like.
        name[2..4].copy_from_slice(&(4 * n).to_be_bytes());
        let mut number = own.side.insert(&name);
        assert_eq!(table!(own.side.av, ops.remove(&mut number, 1, 0)), 0);
        std::thread::yield_now();
    }
}

/// Registers memory, which the other side writes and reads, and closes it again. Each thread has a key of its own.
fn register_and_access(own: &Shared, other: &Shared, to_other: u64, key: u64, busy: &AtomicBool) {
    let (ep, none) = (own.side.ep, null_mut());
    for n in (0u8..=255).cycle().take_while(|_| busy.load(Ordering::Relaxed)) {
        let mut memory = vec![0u8; 3_000];
        let exposed = Exposed::new(&other.side, &mut memory, key);
        let (bytes, mut room) = (vec![n; 3_000], vec![!n; 3_000]);
        let context = own.other();
        let (at, named) = (bytes.as_ptr().cast(), std::ptr::without_provenance_mut(context));
        own.side.post(|| table!(ep, rma.write(at, 3_000, none, to_other, 0, key, named)));
        own.wait_for_other(context);
        let context = own.other();
        let (at, named) = (room.as_mut_ptr().cast(), std::ptr::without_provenance_mut(context));
        own.side.post(|| table!(ep, rma.read(at, 3_000, none, to_other, 0, key, named)));
        own.wait_for_other(context);
        drop(exposed);
        assert!(room == bytes && memory == bytes, "turn {n}");
    }
}

/// Posts receives that nobody's message meets, and cancels them.
fn post_and_cancel(own: &Shared, busy: &AtomicBool) {
    let mut room = [0u8; 8];
    while busy.load(Ordering::Relaxed) {
        let context = own.other();
        own.side.receive(&mut room, sys::FI_ADDR_UNSPEC, Some((NO_TAG, 0)), context);
        // SAFETY: the endpoint is open.
        let cancelled = unsafe {
            let cancel = (*(*own.side.ep).ops).cancel.unwrap();
            cancel(own.side.ep.cast(), std::ptr::without_provenance_mut(context))
        };
        assert_eq!(cancelled, 0);
        own.wait_for_other(context);
    }
}

/// Sleeps until there is an entry, or another thread wakes it.
fn sleep_and_wake(own: &Shared, wakes: bool, busy: &AtomicBool) {
    while busy.load(Ordering::Relaxed) {
        if wakes {
            assert_eq!(table!(own.side.cq.0, ops.signal()), 0);
            std::thread::yield_now();
        } else if let Some(entry) = own.side.cq.read_within(5) {
            own.note(entry);
        }
    }
}

/// What ends the threads that make other calls: the end of the others, also by a panic.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Threads exchange messages, and others make further calls meanwhile if there are to be some.
fn share(domains: [Option<String>; 2], has_others: bool) {
    let [a, b] = domains.map(Shared::open);
    let (to_b, from_a) = (a.side.insert(&b.side.name()), b.side.insert(&a.side.name()));
    let (a, b, busy) = (&a, &b, &AtomicBool::new(true));
    std::thread::scope(|scope| {
        if has_others {
            scope.spawn(|| insert_and_remove(a, busy));
            scope.spawn(|| insert_and_remove(b, busy));
            scope.spawn(|| register_and_access(a, b, to_b, KEY, busy));
            scope.spawn(|| register_and_access(b, a, from_a, KEY + 1, busy));
            scope.spawn(|| register_and_access(a, b, to_b, KEY + 2, busy));
            scope.spawn(|| post_and_cancel(b, busy));
            scope.spawn(|| sleep_and_wake(b, false, busy));
            scope.spawn(|| sleep_and_wake(b, true, busy));
        }
        let _ends = Ends(busy);
        exchange(a, b, to_b, from_a);
    });
    for side in [a, b] {
        assert_eq!(side.side.cq.read(), None);
        let others = side.others.load(Ordering::Relaxed);
        assert_eq!(others > 0, has_others);
        let all = side.ended[..MESSAGES + others].iter();
        assert!(all.map(|times| times.load(Ordering::Relaxed)).all(|times| times == 1));
    }
}

/// Threads of `a` send messages to threads of `b`.
fn exchange(a: &Shared, b: &Shared, to_b: u64, from_a: u64) {
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let numbers = round * AT_ONCE..(round + 1) * AT_ONCE;
                    let messages: Vec<Vec<u8>> =
                        numbers.clone().map(|number| content(thread, number)).collect();
                    for (number, message) in numbers.clone().zip(&messages) {
                        a.side.send(
                            to_b,
                            message,
                            Some(tag(thread, number)),
                            Shared::context(thread, number),
                        );
                    }
                    a.wait_for(thread, numbers);
                }
            });
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let numbers = round * AT_ONCE..(round + 1) * AT_ONCE;
                    let mut rooms = vec![vec![0xee; 40_001]; AT_ONCE];
                    for (number, room) in numbers.clone().zip(&mut rooms) {
                        // Some name the sender, some do not.
                        let from = if number % 2 == 0 { from_a } else { sys::FI_ADDR_UNSPEC };
                        let context = Shared::context(thread, number);
                        b.side.receive(room, from, Some((tag(thread, number), 0)), context);
                    }
                    b.wait_for(thread, numbers.clone());
                    for (number, room) in numbers.zip(&rooms) {
                        let message = content(thread, number);
                        assert!(room[..message.len()] == message, "message {number} of thread {thread}");
                        assert!(room[message.len()..].iter().all(|byte| *byte == 0xee));
                    }
                }
            });
        }
    });
}

#[test]
fn threads_share_an_endpoint_and_its_queue() {
    if inside(PLAIN) {
        share([None, None], false);
    }
}

#[test]
fn threads_share_an_endpoint_of_a_server_and_its_queue() {
    if inside(SERVED) {
        let directory = tempfile::tempdir().unwrap();
        let servers = servers(&directory, 64);
        share([Some(servers[0].name()), Some(servers[1].name())], false);
    }
}

#[test]
fn threads_make_calls_of_all_kinds_at_the_same_time() {
    if inside(OTHER_CALLS) {
        share([None, None], true);
    }
}

#[test]
fn threads_make_calls_of_all_kinds_at_the_same_time_through_servers() {
    if inside(OTHER_CALLS_SERVED) {
        let directory = tempfile::tempdir().unwrap();
        let servers = servers(&directory, 92);
        share([Some(servers[0].name()), Some(servers[1].name())], true);
    }
}

/// Writes a value to the memory of a peer. It may be too early for that.
fn write(side: &Side, to: u64, value: u64) -> isize {
    let bytes = value.to_ne_bytes();
    let piece = sys::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: 8 };
    let place = sys::fi_rma_iov { addr: 0, len: 8, key: KEY };
    let write = sys::fi_msg_rma {
        msg_iov: &raw const piece,
        desc: null_mut(),
        iov_count: 1,
        addr: to,
        rma_iov: &raw const place,
        rma_iov_count: 1,
        context: null_mut(),
        data: 0,
    };
    table!(side.ep, rma.writemsg(&write, sys::FI_INJECT | sys::FI_COMPLETION))
}

/// A thread closes an endpoint to which a peer writes all the time, which takes a second; another one closes the memory meanwhile, and
/// may free it.
#[test]
fn closed_memory_is_not_written_to_through_an_endpoint_that_is_being_closed() {
    if !inside("closed_memory_is_not_written_to_through_an_endpoint_that_is_being_closed") {
        return;
    }
    let [mut owner, peer] =
        [0, 1].map(|_| Side::open(&Wish { caps: sys::FI_RMA, ..Wish::default() }, How::default()));
    let (to_owner, _) = (peer.insert(&owner.name()), owner.insert(&peer.name()));
    let mut memory = [0u8; 8];
    let at = memory.as_ptr() as usize;
    // SAFETY: the memory lives to the end of the test.
    let now = || unsafe { (at as *const u64).read_volatile() };
    let exposed = Exposed::new(&owner, &mut memory, KEY);
    let begin = Instant::now();
    peer.post(|| write(&peer, to_owner, 1));
    while now() == 0 {
        peer.cq.read();
        owner.cq.read();
        assert!(begin.elapsed() < BOUND, "nothing is written");
        std::thread::yield_now();
    }
    let (is_over, refused) = (AtomicBool::new(false), AtomicUsize::new(0));
    let ep = std::mem::replace(&mut owner.ep, null_mut()) as usize;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for value in 2.. {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                write(&peer, to_owner, value);
                while let Some(entry) = peer.cq.read() {
                    refused.fetch_add(usize::from(entry.is_err()), Ordering::Relaxed);
                }
            }
        });
        scope.spawn(|| assert_eq!(close((ep as *mut sys::fid_ep).cast()), 0));
        std::thread::sleep(Duration::from_millis(50));
        drop(exposed);
        let before = now();
        std::thread::sleep(Duration::from_millis(200));
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(now(), before, "written after it was closed");
    });
    assert_ne!(refused.into_inner(), 0, "no write was refused");
}
