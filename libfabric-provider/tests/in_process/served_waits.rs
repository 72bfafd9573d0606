//! Programs that sleep by `epoll` on the descriptors of queues and counters of endpoints of servers, after `fi_trywait` has said that they
//! may.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};

use crate::common::fabric::{BOUND, Entry, Exposed, Failed, How, Side, Wish, descriptor, table};
use crate::common::server::{Server, servers};
use crate::common::{inside, inside_with};
use weft_fi::sys::{self, FI_ADDR_UNSPEC};

/// Memory for messages: 16 MiB, of which a message with a tag may have an eighth if it is not fetched.
const LITTLE: &[(&str, &str)] = &[("FI_WEFT_MEMORY", "16")];
/// Bytes of messages of one packet, of many packets, of those that wait for the answer to a question, and of those that are fetched.
const LENGTHS: [usize; 4] = [8, 100_000, 500_000, 2_500_000];
const KEY: u64 = 0x77;

/// A thread that sleeps until a queue or a counter has something for it.
struct Sleeper<'a> {
    side: &'a Side,
    object: *mut sys::fid,
    epoll: OwnedFd,
    /// How often it has found nothing.
    misses: usize,
}

impl Sleeper<'_> {
    fn new(side: &Side, object: *mut sys::fid) -> Sleeper<'_> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        // SAFETY: it is open as long as the object, which its side has.
        let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor(object)) };
        epoll::add(&epoll, descriptor, epoll::EventData::new_u64(0), epoll::EventFlags::IN).unwrap();
        Sleeper { side, object, epoll, misses: 0 }
    }

    fn of_queue(side: &Side) -> Sleeper<'_> {
        Sleeper::new(side, side.cq.0.cast())
    }

    fn may_sleep(&self) -> bool {
        self.side.try_wait_for(self.object)
    }

    /// Waits until it may sleep, as there is nothing for it.
    fn settle(&self) {
        let begin = Instant::now();
        while !self.may_sleep() {
            assert!(begin.elapsed() < BOUND, "fi_trywait does not let it sleep");
        }
    }

    /// Sleeps for as long at most. Returns whether somebody has woken it.
    fn sleep_within(&self, bound: Duration) -> bool {
        let bound = Timespec { tv_sec: bound.as_secs() as i64, tv_nsec: bound.subsec_nanos().into() };
        let mut events = Vec::with_capacity(1);
        epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&bound)).unwrap() == 1
    }

    fn sleep(&self) {
        assert!(self.sleep_within(BOUND), "nobody has woken it");
    }

    /// Sleeps whenever there is nothing to `take`, which must come.
    fn until<T>(&mut self, mut take: impl FnMut(&Side) -> Option<T>) -> T {
        loop {
            if let Some(taken) = take(self.side) {
                return taken;
            }
            self.misses += 1;
            if self.may_sleep() {
                self.sleep();
            }
        }
    }

    fn next(&mut self) -> Result<Entry, Failed> {
        self.until(|side| side.cq.read())
    }
}

/// An endpoint with all counters.
fn open(server: &Server) -> Side {
    let wish = Wish { domain: Some(server.name()), ..Wish::default() };
    Side::open(&wish, How { counters: Some(sys::FI_WAIT_FD), of_peers: true, ..How::default() })
}

/// Two endpoints of these servers, and the number of the other one in each.
fn pair(servers: &[Server; 2]) -> ([Side; 2], [u64; 2]) {
    let sides = servers.each_ref().map(open);
    let to = [sides[0].insert(&sides[1].name()), sides[1].insert(&sides[0].name())];
    (sides, to)
}

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 5 + (n >> 8) * 3 + seed * 17) as u8).collect()
}

#[test]
fn messages_wake_programs_that_sleep_by_epoll_at_both_ends_through_servers() {
    if !inside_with("messages_wake_programs_that_sleep_by_epoll_at_both_ends_through_servers", LITTLE) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let servers = servers(&directory, 85);
    let ([a, b], [to_b, from_a]) = pair(&servers);
    let mut receiver = Sleeper::of_queue(&b);
    let kinds = LENGTHS.into_iter().flat_map(|len| [(len, Some(5)), (len, None)]);
    for (n, (len, tag)) in kinds.enumerate() {
        let (message, mut room) = (bytes(len, n), vec![0; len]);
        b.receive(&mut room, FI_ADDR_UNSPEC, tag.map(|tag| (tag, 0)), 2);
        receiver.settle();
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| {
                a.send(to_b, &message, tag, 1);
                Sleeper::of_queue(&a).next()
            });
            receiver.sleep();
            let received = receiver.next().unwrap();
            assert_eq!((received.context, received.len, received.source), (2, len, from_a));
            assert_eq!(sender.join().unwrap().map(|sent| sent.context), Ok(1));
        });
        assert!(room == message, "{len} bytes");
    }
}

#[test]
fn accesses_of_peers_wake_programs_that_sleep_by_epoll_on_counters_and_queues_through_servers() {
    const NAME: &str =
        "accesses_of_peers_wake_programs_that_sleep_by_epoll_on_counters_and_queues_through_servers";
    if !inside(NAME) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let servers = servers(&directory, 87);
    let ([a, b], [to_b, _]) = pair(&servers);
    let mut memory = vec![0u8; 400_000];
    let exposed = Exposed::new(&b, &mut memory, KEY);
    let [mut of_reads, mut of_writes] = [4, 5].map(|n| Sleeper::new(&b, b.counters[n].0.cast()));
    let mut of_queue = Sleeper::of_queue(&b);
    // Lets `a` make an access for which `sleeper` sleeps until it is there.
    let wakes = |sleeper: &mut Sleeper<'_>, call: &dyn Fn() -> isize, is_there: &dyn Fn(&Side) -> bool| {
        sleeper.settle();
        a.post(call);
        std::thread::scope(|scope| {
            let caller = scope.spawn(|| Sleeper::of_queue(&a).next());
            sleeper.sleep();
            sleeper.until(|b| is_there(b).then_some(()));
            assert_eq!(caller.join().unwrap().map(|entry| entry.context), Ok(7));
        });
    };
    // Accesses of one piece, and of several.
    for (n, len) in (1..).zip([8, 300_000]) {
        let mut own = bytes(len, 1);
        let (at, context) = (own.as_mut_ptr(), 7 as *mut _);
        let read = || table!(a.ep, rma.read(at.cast(), len, null_mut(), to_b, 0, KEY, context));
        let write = || table!(a.ep, rma.write(at.cast(), len, null_mut(), to_b, 0, KEY, context));
        let write_data = || table!(a.ep, rma.writedata(at.cast(), len, null_mut(), 9, to_b, 0, KEY, context));
        wakes(&mut of_reads, &read, &|b| b.counters[4].read() == (n, 0));
        wakes(&mut of_writes, &write, &|b| b.counters[5].read() == (2 * n - 1, 0));
        wakes(&mut of_queue, &write_data, &|b| b.cq.read().is_some_and(|entry| entry.unwrap().data == 9));
        assert_eq!(b.counters[5].read(), (2 * n, 0));
    }
    drop(exposed);
}

#[test]
fn fi_trywait_lets_nobody_sleep_while_there_is_an_entry_or_a_count_that_was_not_read() {
    if !inside("fi_trywait_lets_nobody_sleep_while_there_is_an_entry_or_a_count_that_was_not_read") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let servers = servers(&directory, 89);
    let ([a, b], [to_b, _]) = pair(&servers);
    let of_queue = Sleeper::of_queue(&b);
    let received = &b.counters[1];
    let of_counter = Sleeper::new(&b, received.0.cast());
    let mut rooms = [[0u8; 8]; 2];
    for (n, room) in rooms.iter_mut().enumerate() {
        b.receive(room, FI_ADDR_UNSPEC, None, n);
    }
    of_queue.settle();
    of_counter.settle();
    for _ in 0..2 {
        a.send(to_b, b"message", None, 1);
    }
    let begin = Instant::now();
    while received.read() != (2, 0) {
        assert!(begin.elapsed() < BOUND, "the messages do not arrive");
    }
    of_counter.settle();
    for _ in 0..2 {
        // It says so as often as it is asked.
        assert_eq!([(); 3].map(|()| of_queue.may_sleep()), [false; 3]);
        assert!(of_queue.sleep_within(Duration::ZERO) || !of_queue.may_sleep());
        assert!(b.cq.read().is_some_and(|entry| entry.is_ok()));
    }
    of_queue.settle();
    b.receive(&mut rooms[0], FI_ADDR_UNSPEC, None, 1);
    a.send(to_b, b"another", None, 1);
    assert!(b.cq.next().is_ok());
    // It tells of a count once, which the program has seen then.
    assert!(!of_counter.may_sleep());
    of_counter.settle();
    assert_eq!(received.read(), (3, 0));
    (0..3).for_each(|_| assert!(a.cq.next().is_ok()));
}

/// Programs that were woken too late or too often, or not at all, would need more looks, or would never end.
#[test]
fn programs_that_sleep_by_epoll_exchange_messages_through_servers_with_few_looks_that_find_nothing() {
    const NAME: &str =
        "programs_that_sleep_by_epoll_exchange_messages_through_servers_with_few_looks_that_find_nothing";
    if !inside(NAME) {
        return;
    }
    const ROUNDS: usize = 500;
    let directory = tempfile::tempdir().unwrap();
    let servers = servers(&directory, 91);
    let (sides, to) = pair(&servers);
    let exchange = |own: usize| {
        let mut sleeper = Sleeper::of_queue(&sides[own]);
        for round in 0..ROUNDS {
            let (message, mut room) = (round.to_ne_bytes(), [0u8; 8]);
            let side = &sides[own];
            side.receive(&mut room, to[own], Some((7, 0)), 1);
            // One answers what the other one has sent. The end of a message that is sent comes before or after the next one.
            let mut left = [1, 2];
            let mut take = |context: usize| {
                while left.contains(&context) {
                    let entry = sleeper.next().unwrap();
                    left.iter_mut().filter(|other| **other == entry.context).for_each(|other| *other = 0);
                }
            };
            if own == 1 {
                take(1);
            }
            side.send(to[own], &message, Some(7), 2);
            take(1);
            take(2);
            assert_eq!(room, message);
        }
        // Nothing happens any more.
        let (begin, mut wakes) = (Instant::now(), 0);
        sleeper.settle();
        while let Some(left) = Duration::from_millis(300).checked_sub(begin.elapsed()) {
            wakes += usize::from(sleeper.sleep_within(left));
            sleeper.settle();
        }
        (sleeper.misses, wakes)
    };
    let found_nothing = std::thread::scope(|scope| {
        let other = scope.spawn(|| exchange(1));
        [exchange(0), other.join().unwrap()]
    });
    for (misses, wakes) in found_nothing {
        assert!(misses <= 10 * ROUNDS, "{misses} looks have found nothing in {ROUNDS} exchanges");
        assert!(wakes <= 30, "{wakes} wakes while nothing happens");
    }
}
