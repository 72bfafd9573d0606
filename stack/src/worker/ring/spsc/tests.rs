//! Tests of the ring with any order of calls, several threads and hostile peers.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use proptest::prelude::*;

use super::*;

/// Both ends of a ring whose indices begin at `start`, and the ring behind them.
fn ring_at<const W: usize>(capacity: u32, start: u32) -> (Producer<W>, Consumer<W>, Storage<W>) {
    let ring = Storage::new(capacity).unwrap();
    ring.control().tail.index.store(start, Ordering::Relaxed);
    ring.control().head.index.store(start, Ordering::Relaxed);
    (Producer::of(ring.clone(), start), Consumer::of(ring.clone(), start), ring)
}

proptest! {
    /// Any sequence of calls in one thread behaves like a bounded queue, also when the indices wrap.
    #[test]
    fn the_ring_behaves_like_a_bounded_queue(
        capacity in 1u32..6,
        start in prop_oneof![Just(0), u32::MAX - 20..=u32::MAX],
        calls in prop::collection::vec((0u8..6, 0usize..10), 0..200),
    ) {
        let capacity = 1 << capacity;
        let (mut producer, mut consumer, _) = ring_at::<2>(capacity, start);
        let (mut next, mut staged, mut queue) = (0u64, Vec::new(), VecDeque::<[u64; 2]>::new());
        let free = |staged: &Vec<_>, queue: &VecDeque<_>| capacity as usize - staged.len() - queue.len();
        for (call, count) in calls {
            consumer.prefetch();
            if let Some(word) = consumer.known() {
                prop_assert_eq!(Some(word), queue.front().map(|[first, _]| *first));
            }
            match call {
                0 => {
                    let room = free(&staged, &queue);
                    prop_assert_eq!(producer.stage(&[next, !next]).unwrap(), room > 0);
                    if room > 0 {
                        staged.push([next, !next]);
                        next += 1;
                    }
                }
                1 => {
                    producer.publish();
                    queue.extend(staged.drain(..));
                }
                2 => {
                    let slots: Vec<[u64; 2]> = (next..).map(|n| [n, !n]).take(count).collect();
                    let taken = producer.push_all(&slots).unwrap();
                    prop_assert_eq!(taken, count.min(free(&staged, &queue)));
                    queue.extend(staged.drain(..));
                    queue.extend(&slots[..taken]);
                    next += taken as u64;
                }
                3 => prop_assert_eq!(consumer.pop().unwrap(), queue.pop_front()),
                4 => {
                    let available = consumer.available().unwrap() as usize;
                    prop_assert!(available <= queue.len() && (available > 0 || queue.is_empty()));
                    prop_assert_eq!(consumer.known(), queue.front().map(|[first, _]| *first));
                }
                _ => {
                    let mut slots = vec![[0; 2]; count];
                    let taken = consumer.pop_all(&mut slots).unwrap();
                    prop_assert!(taken <= queue.len() && (taken > 0 || count == 0 || queue.is_empty()));
                    let expected: Vec<_> = queue.drain(..taken).collect();
                    prop_assert_eq!(&slots[..taken], &expected[..]);
                }
            }
        }
    }

    /// Any value that the peer writes as its index is either possible or reported.
    #[test]
    fn impossible_indices_are_reported(
        start in any::<u32>(),
        filled in 0u32..9,
        emptied in 0u32..9,
        wild in prop_oneof![any::<u32>(), (0u32..20).prop_map(|n| n.wrapping_sub(10))],
    ) {
        let emptied = emptied.min(filled);
        let wild = start.wrapping_add(wild);
        let set_up = || {
            let (mut producer, mut consumer, ring) = ring_at::<1>(8, start);
            producer.push_all(&vec![[1]; filled as usize]).unwrap();
            consumer.pop_all(&mut vec![[0]; emptied as usize]).unwrap();
            (producer, consumer, ring)
        };
        // The consumer's index, as the producer knows it, is still the start.
        let (mut producer, _consumer, ring) = set_up();
        ring.control().head.index.store(wild, Ordering::Relaxed);
        let (own, distance) = (start.wrapping_add(filled), wild.wrapping_sub(start));
        let expected = if distance <= filled { Ok(8 - (filled - distance)) } else { Err(Broken { own, known: start, found: wild }) };
        prop_assert_eq!(producer.room(9), expected);

        let (_producer, mut consumer, ring) = set_up();
        let rest = (filled - emptied) as usize;
        prop_assert_eq!(consumer.pop_all(&mut vec![[0]; rest]).unwrap(), rest);
        ring.control().tail.index.store(wild, Ordering::Relaxed);
        let (own, distance) = (start.wrapping_add(filled), wild.wrapping_sub(start.wrapping_add(filled)));
        let expected = if distance <= 8 { Ok(distance) } else { Err(Broken { own, known: own, found: wild }) };
        prop_assert_eq!(consumer.available(), expected);
    }
}

#[test]
fn slots_pass_between_threads_in_order() {
    const COUNT: u64 = 300_000;
    let (mut producer, mut consumer, _) = ring_at::<8>(64, u32::MAX - 1000);
    let sender = thread::spawn(move || {
        let mut next = 0;
        while next < COUNT {
            let batch = (next % 40 + 1).min(COUNT - next);
            let slots: Vec<[u64; 8]> =
                (next..next + batch).map(|n| std::array::from_fn(|w| n * 8 + w as u64)).collect();
            match producer.push_all(&slots).unwrap() {
                0 => thread::yield_now(),
                taken => next += taken as u64,
            }
        }
    });
    let (mut next, mut slots) = (0, [[0; 8]; 23]);
    while !consumer.is_finished().unwrap() {
        let count = consumer.pop_all(&mut slots).unwrap();
        for slot in &slots[..count] {
            assert_eq!(*slot, std::array::from_fn(|w| next * 8 + w as u64));
            next += 1;
        }
        if count == 0 {
            thread::yield_now();
        }
    }
    sender.join().unwrap();
    assert_eq!(next, COUNT);
}

/// A peer that keeps writing random values anywhere: every call returns a value or an error.
#[test]
fn a_peer_that_writes_random_values_does_no_harm() {
    let (mut producer, mut consumer, ring) = ring_at::<2>(16, 0);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = 1u64;
            for n in 0..100_000 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let (high, low) = ((random >> 33) as u32, (random >> 60) as u32);
                ring.control().tail.index.store(if low < 8 { high % 40 } else { high }, Ordering::Relaxed);
                ring.control()
                    .head
                    .index
                    .store(if low % 2 == 0 { high % 40 } else { high }, Ordering::Relaxed);
                ring.control().asleep.index.store(high, Ordering::Relaxed);
                ring.slot(high)[0].store(random, Ordering::Relaxed);
                if n % 100 == 0 {
                    thread::yield_now();
                }
            }
            done.store(true, Ordering::Release);
        });
        let mut slots = [[0; 2]; 40];
        while !done.load(Ordering::Acquire) {
            let results = [consumer.pop_all(&mut slots), producer.push_all(&slots[..20])];
            assert!(results.iter().flatten().all(|&count| count <= 20), "{results:?}");
            producer.must_wake();
        }
        // However far the ends have come, their indices are less than half the circle apart.
        while matches!(consumer.pop(), Ok(Some(_))) {}
        ring.control().tail.index.store(consumer.head.wrapping_add(1 << 31), Ordering::Relaxed);
        assert!(consumer.pop().is_err());
    });
}

#[test]
fn each_end_sees_that_the_other_has_left() {
    let (producer, consumer) = ring::<1>(2).unwrap();
    assert!(!producer.is_deserted());
    drop(consumer);
    assert!(producer.is_deserted());
    let (mut producer, mut consumer) = ring::<1>(2).unwrap();
    producer.push(&[5]).unwrap();
    drop(producer);
    assert!(!consumer.is_finished().unwrap());
    assert_eq!(consumer.pop().unwrap(), Some([5]));
    assert!(consumer.is_finished().unwrap());
}

#[test]
fn both_ends_find_a_ring_in_a_region() {
    let bytes = super::super::ring_bytes(4, 3).unwrap();
    let region = Region::allocate(128 + bytes).unwrap();
    let mut producer = Producer::<3>::at(&region, 128, 4).unwrap();
    let mut consumer = Consumer::<3>::at(&region, 128, 4).unwrap();
    assert_eq!(producer.push_all(&[[1, 2, 3]; 9]).unwrap(), 4);
    assert_eq!(consumer.pop().unwrap(), Some([1, 2, 3]));
    assert!(matches!(Producer::<3>::at(&region, 64, 2), Err(RingError::Alignment(64))));
    assert!(matches!(Producer::<3>::at(&region, 256, 4), Err(RingError::Region(_))));
    for capacity in [0, 1, 3, 1 << 31] {
        assert_eq!(Producer::<3>::at(&region, 0, capacity).unwrap_err(), RingError::Capacity(capacity));
    }
}

/// A consumer that sleeps whenever it may is always woken.
#[test]
fn no_wake_up_is_lost() {
    let (mut producer, mut consumer) = ring::<1>(4).unwrap();
    let sleeper = thread::spawn(move || {
        let mut next = 0;
        while !consumer.is_finished().unwrap() {
            match consumer.pop().unwrap() {
                Some([n]) => {
                    assert_eq!(n, next);
                    next += 1;
                }
                None if consumer.may_sleep().unwrap() => {
                    // Its producer leaves without waking it.
                    thread::park_timeout(std::time::Duration::from_secs(if next < 20_000 { 30 } else { 0 }));
                    consumer.woken();
                }
                None => {}
            }
        }
        next
    });
    let started = std::time::Instant::now();
    for n in 0..20_000 {
        while !producer.push(&[n]).unwrap() {
            thread::yield_now();
        }
        if producer.must_wake() {
            sleeper.thread().unpark();
        }
    }
    drop(producer);
    assert_eq!(sleeper.join().unwrap(), 20_000);
    assert!(started.elapsed().as_secs() < 25, "the consumer slept until its timeout");
}
