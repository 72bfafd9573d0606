//! Model checks of small cases: all interleavings, and all values that the memory model allows.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

use super::*;

/// Both ends of a ring of two slots whose indices are about to wrap.
fn small<const W: usize>() -> (Producer<W>, Consumer<W>) {
    let start = u32::MAX;
    let ring = Storage::new(2).unwrap();
    ring.control().tail.index.store(start, Ordering::Relaxed);
    ring.control().head.index.store(start, Ordering::Relaxed);
    (Producer::of(ring.clone(), start), Consumer::of(ring, start))
}

/// More slots than fit at once, so that publishing is checked in both directions.
#[test]
fn slots_arrive_whole_and_in_order() {
    loom::model(|| {
        let (mut producer, mut consumer) = small::<2>();
        let sender = thread::spawn(move || {
            let mut next = 1;
            while next <= 3 {
                match producer.push(&[next, 10 * next]).unwrap() {
                    true => next += 1,
                    false => thread::yield_now(),
                }
            }
        });
        let mut next = 1;
        while next <= 3 {
            match consumer.pop().unwrap() {
                Some(slot) => {
                    assert_eq!(slot, [next, 10 * next]);
                    next += 1;
                }
                None => thread::yield_now(),
            }
        }
        sender.join().unwrap();
    });
}

#[test]
fn batches_arrive_whole() {
    loom::model(|| {
        let (mut producer, mut consumer) = small::<1>();
        let sender = thread::spawn(move || {
            let mut sent = producer.push_all(&[[1], [2], [3]]).unwrap();
            assert_eq!(sent, 2);
            while sent < 3 {
                sent += producer.push_all(&[[3]]).unwrap();
                thread::yield_now();
            }
        });
        let (mut seen, mut slots) = (0, [[0]; 2]);
        while seen < 3 {
            let count = consumer.pop_all(&mut slots).unwrap();
            for slot in &slots[..count] {
                seen += 1;
                assert_eq!(*slot, [seen]);
            }
            thread::yield_now();
        }
        sender.join().unwrap();
    });
}

/// The consumer sleeps without a time limit: a lost wake-up would be a deadlock, which the checker reports.
#[test]
fn no_wake_up_is_lost() {
    loom::model(|| {
        let (mut producer, mut consumer) = small::<1>();
        let rung = Arc::new(loom::sync::Notify::new());
        let bell = rung.clone();
        let sender = thread::spawn(move || {
            for n in 1..=2 {
                assert!(producer.push(&[n]).unwrap());
                if producer.must_wake() {
                    bell.notify();
                }
            }
        });
        let mut next = 1;
        while next <= 2 {
            match consumer.pop().unwrap() {
                Some(slot) => {
                    assert_eq!(slot, [next]);
                    next += 1;
                }
                None => {
                    if consumer.may_sleep().unwrap() {
                        rung.wait();
                        consumer.woken();
                    }
                }
            }
        }
        sender.join().unwrap();
    });
}

/// A producer that leaves loses no slots that it has published.
#[test]
fn slots_published_before_leaving_are_found() {
    loom::model(|| {
        let (mut producer, mut consumer) = small::<1>();
        let sender = thread::spawn(move || {
            producer.push(&[7]).unwrap();
        });
        let mut seen = None;
        while !consumer.is_finished().unwrap() {
            seen = seen.or(consumer.pop().unwrap());
            thread::yield_now();
        }
        assert_eq!(seen, Some([7]));
        sender.join().unwrap();
    });
}

/// Checks the checker: it must find the error if the index is stored without release ordering.
#[test]
#[should_panic(expected = "stale")]
fn the_checker_finds_stale_words() {
    loom::model(|| {
        let ring = Storage::<1>::new(2).unwrap();
        let (other, done) = (ring.clone(), Arc::new(AtomicBool::new(false)));
        let flag = done.clone();
        let sender = thread::spawn(move || {
            other.slot(0)[0].store(7, Ordering::Relaxed);
            other.control().tail.index.store(1, Ordering::Relaxed);
            flag.store(true, Ordering::Relaxed);
        });
        if ring.control().tail.index.load(Ordering::Acquire) == 1 {
            assert_eq!(ring.slot(0)[0].load(Ordering::Relaxed), 7, "stale");
        }
        sender.join().unwrap();
    });
}
