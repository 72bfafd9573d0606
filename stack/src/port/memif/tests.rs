//! The data path over two ends of one memory, without a socket between them.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use rustix::event::{EventfdFlags, eventfd};

use super::MemifPort;
use super::config::{MAX_LOG2_RING, MemifConfig, MemifError, Role, SocketName};
use super::event;
use super::link::{Layout, Link, Moved, offer};
use super::link_layout::{LinkLayout, Offer, RingPlace};
use super::pair::{MAX_FRAME, Pair, REGISTERED, RING, TO_CLIENT, config, pair, pair_with};
use super::ring::{Checked, DescriptorRingError, TxBuffers};
use crate::port::{Attachment, BURST, Frame, FramePool, MIN_FRAME, Port, RxBurst, TxBurst};
use crate::region::{Region, RegionSlice};
use crate::rng::Rng;

fn pool() -> FramePool {
    FramePool::heap(200, MAX_FRAME).unwrap()
}

fn burst() -> TxBurst {
    let config = MemifConfig { mtu: MAX_FRAME - MIN_FRAME, ..config(64) };
    TxBurst::of(pool(), &config.capabilities())
}

/// A frame of `len` bytes of which `attached` are attached.
fn put(burst: &mut TxBurst, number: u8, len: usize, attached: usize) {
    let bytes = frame(number, len);
    let head = len - attached;
    let mut reserved = burst.reserve(head).unwrap();
    reserved.copy_from_slice(&bytes[..head]);
    match (attached, number.is_multiple_of(2)) {
        (0, _) => {}
        (_, true) => reserved.attach(Attachment::from(std::sync::Arc::from(&bytes[head..]))).unwrap(),
        (_, false) => {
            let slice = Region::allocate(attached).unwrap().slice(0, attached as u32).unwrap();
            slice.write(0, &bytes[head..]);
            reserved.attach(Attachment::from(slice)).unwrap();
        }
    }
    reserved.commit();
}

/// The same with what is attached in memory of an application's that may be registered.
fn put_from(burst: &mut TxBurst, memory: &Region, number: u8, len: usize, attached: usize) {
    let bytes = frame(number, len);
    let head = len - attached;
    let slice = memory.slice((usize::from(number) * MAX_FRAME) as u64, attached as u32).unwrap();
    slice.write(0, &bytes[head..]);
    let mut reserved = burst.reserve(head).unwrap();
    reserved.copy_from_slice(&bytes[..head]);
    reserved.attach(Attachment::from(slice)).unwrap();
    reserved.commit();
}

fn frame(number: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(31).wrapping_add(number)).collect()
}

fn whole(frame: &Frame) -> Vec<u8> {
    frame.gather(&pool()).unwrap().to_vec()
}

/// The error of a link that is given up.
fn error_of(result: Checked<Moved>) -> String {
    result.expect_err("the peer writes what cannot be").to_string()
}

fn received(link: &mut Link, burst: &mut RxBurst) -> Vec<Vec<u8>> {
    let moved = link.receive(burst, &pool(), MAX_FRAME).unwrap();
    assert_eq!((moved.frames, moved.errors), (burst.len(), 0));
    let frames: Vec<_> = burst.iter().map(whole).collect();
    burst.clear();
    frames
}

proptest! {
    /// Frames of any length, attached or not, in buffers of any size, come out as they went in, and in order.
    #[test]
    fn received_frames_equal_sent_frames(
        buffer_size in 104u32..600,
        lent: bool,
        to_server: bool,
        lengths in proptest::collection::vec((14usize..400, 0usize..400), 1..60),
    ) {
        let Pair { mut client, mut server, registered, .. } = pair(buffer_size);
        let (from, to) = if to_server { (&mut client, &mut server) } else { (&mut server, &mut client) };
        let (mut tx, mut rx) = (burst(), if lent { RxBurst::with_tails() } else { RxBurst::new() });
        let (mut sent, mut seen) = (Vec::new(), Vec::new());
        let mut lengths = lengths.into_iter().enumerate().peekable();
        let mut idle = 0;
        while (lengths.peek().is_some() || !tx.is_empty() || seen.len() < sent.len()) && idle < 3 {
            while tx.room() > 0 && let Some((number, (head, attached))) = lengths.next() {
                if number % 3 == 2 && attached > 0 {
                    put_from(&mut tx, &registered, number as u8, head + attached, attached);
                } else {
                    put(&mut tx, number as u8, head + attached, attached);
                }
                sent.push(frame(number as u8, head + attached));
            }
            let Moved { frames, errors, .. } = from.transmit(&mut tx).unwrap();
            prop_assert_eq!(errors, 0);
            let before = seen.len();
            seen.extend(received(to, &mut rx));
            idle = if frames == 0 && seen.len() == before { idle + 1 } else { 0 };
        }
        prop_assert_eq!(seen, sent);
    }

    /// Whatever stands in the memory: no panic, no access beside it.
    #[test]
    fn nonsense_is_survived(words in proptest::collection::vec((0u32..600, any::<u64>()), 1..40), small: bool) {
        let Pair { mut client, mut server, memory, registered } = pair(128);
        let all = memory.slice(0, memory.len() as u32).unwrap();
        let mut tx = burst();
        for (round, (at, word)) in words.into_iter().enumerate() {
            put(&mut tx, round as u8, 300, 100);
            if tx.room() > 0 {
                put_from(&mut tx, &registered, round as u8, 200, 100);
            }
            // Values near those that make sense get further.
            let word = if small { word & 0x0003_0000_00ff_0001 } else { word };
            all.write(at & !1, &word.to_ne_bytes());
            for link in [&mut client, &mut server] {
                let _: Checked<Moved> = link.transmit(&mut tx);
                for mut rx in [RxBurst::new(), RxBurst::with_tails()] {
                    let _: Checked<Moved> = link.receive(&mut rx, &pool(), MAX_FRAME);
                    rx.iter().for_each(|frame| drop(whole(frame)));
                }
            }
            if tx.room() == 0 {
                tx.clear();
            }
        }
    }
}

#[test]
fn a_full_ring_takes_no_more_and_recovers() {
    for to_server in [true, false] {
        let Pair { mut client, mut server, .. } = pair(256);
        let (from, to) = if to_server { (&mut client, &mut server) } else { (&mut server, &mut client) };
        let (mut tx, mut rx) = (burst(), RxBurst::with_tails());
        for round in 0..5000usize {
            (0..BURST).for_each(|number| put(&mut tx, (round + number) as u8, 100, 0));
            assert_eq!(from.transmit(&mut tx).unwrap().frames, 1 << RING);
            assert_eq!(from.transmit(&mut tx).unwrap().frames, 0);
            tx.clear();
            let expected: Vec<_> = (0..1 << RING).map(|number| frame((round + number) as u8, 100)).collect();
            assert_eq!(received(to, &mut rx), expected);
            // The buffers go back when the burst is empty, with the next look at the ring.
            assert!(received(to, &mut rx).is_empty());
        }
    }
}

/// The receiver reads payload in registered memory in place, so a change on the way is visible to it.
#[test]
fn payload_in_registered_memory_is_read_where_it_lies() {
    for (to_server, lent) in [(true, true), (true, false), (false, true)] {
        let Pair { mut client, mut server, registered, .. } = pair(256);
        let (from, to) = if to_server { (&mut client, &mut server) } else { (&mut server, &mut client) };
        let (mut tx, mut rx) = (burst(), if lent { RxBurst::with_tails() } else { RxBurst::new() });
        let part = registered.carve(1 << 17, 10 * MAX_FRAME).unwrap();
        let other = Region::allocate(REGISTERED).unwrap();
        for (memory, known) in [(&registered, true), (&part, true), (&other, false)] {
            put_from(&mut tx, memory, 3, 900, 800);
            assert_eq!(from.transmit(&mut tx).unwrap().frames, 1);
            memory.slice(3 * MAX_FRAME as u64, 800).unwrap().write(0, &[0xee; 800]);
            let mut expected = frame(3, 900);
            if to_server && known {
                expected[100..].fill(0xee);
            }
            assert_eq!(received(to, &mut rx), [expected], "to the server: {to_server}, lent: {lent}");
            received(to, &mut rx);
        }
    }
}

/// Frames with payload elsewhere take two places, whatever the size of the buffers.
#[test]
fn a_ring_full_of_registered_payload_recovers() {
    let Pair { mut client, mut server, registered, .. } = pair(104);
    let (mut tx, mut rx) = (burst(), RxBurst::with_tails());
    // More than indices have values.
    for round in 0..4000 {
        let number = |n: usize| (round + n) as u8;
        (0..6).for_each(|n| put_from(&mut tx, &registered, number(n), 900, 800));
        // A head that fits no buffer: all of it is copied.
        put_from(&mut tx, &registered, number(6), 500, 290);
        for (frames, len) in [(0..4, 900), (4..6, 900), (6..7, 500)] {
            assert_eq!(client.transmit(&mut tx).unwrap().frames, frames.len());
            assert_eq!(client.is_taken_in().unwrap(), len == 500, "a copied frame refers to nothing");
            let expected: Vec<_> = frames.map(|n| frame(number(n), len)).collect();
            assert_eq!(received(&mut server, &mut rx), expected);
            assert!(received(&mut server, &mut rx).is_empty() && client.is_taken_in().unwrap());
        }
    }
}

#[test]
fn frames_taken_back_are_received_as_none() {
    let Pair { mut client, mut server, registered, .. } = pair(256);
    let (mut tx, mut rx) = (burst(), RxBurst::with_tails());
    put(&mut tx, 0, 100, 0);
    (1..3).for_each(|n| put_from(&mut tx, &registered, n, 900, 800));
    client.transmit(&mut tx).unwrap();
    client.take_back();
    let Moved { frames, errors, .. } = server.receive(&mut rx, &pool(), MAX_FRAME).unwrap();
    assert_eq!((frames, errors), (0, 5), "a slot each");
}

/// The head of a frame in two parts is shown, and becomes longer before the rest is.
#[test]
fn a_part_that_changes_its_length_is_nonsense() {
    let Pair { mut client, mut server, memory, registered } = pair(256);
    let (mut tx, mut rx) = (burst(), RxBurst::with_tails());
    put_from(&mut tx, &registered, 0, 900, 800);
    client.transmit(&mut tx).unwrap();
    let head = |index: u16| memory.slice(6, 2).unwrap().write(0, &index.to_ne_bytes());
    head(1);
    assert!(received(&mut server, &mut rx).is_empty(), "half of it");
    memory.slice(128 + 4, 4).unwrap().write(0, &150u32.to_ne_bytes());
    head(2);
    for rx in [&mut rx, &mut RxBurst::new()] {
        let error = error_of(server.receive(rx, &pool(), MAX_FRAME));
        assert_eq!(error, "a frame of 950 bytes: expected 900, as its descriptors said before");
    }
}

#[test]
fn lent_frames_keep_their_buffers() {
    let Pair { mut client, mut server, .. } = pair(600);
    let (mut tx, mut kept, mut rx) = (burst(), RxBurst::with_tails(), RxBurst::with_tails());
    (0..6).for_each(|number| put(&mut tx, number, 500, 300));
    client.transmit(&mut tx).unwrap();
    assert_eq!(server.receive(&mut kept, &pool(), MAX_FRAME).unwrap().frames, 6);
    (6..16).for_each(|number| put(&mut tx, number, 500, 300));
    assert_eq!(client.transmit(&mut tx).unwrap().frames, 2, "six buffers are lent");
    assert_eq!(received(&mut server, &mut rx), [frame(6, 500), frame(7, 500)], "copied meanwhile");
    assert_eq!(client.transmit(&mut tx).unwrap().frames, 0, "in order: these wait for the six");
    let first: Vec<_> = kept.iter().map(whole).collect();
    assert_eq!(first, (0..6).map(|number| frame(number, 500)).collect::<Vec<_>>());
    kept.clear();
    assert!(received(&mut server, &mut rx).is_empty());
    assert_eq!(client.transmit(&mut tx).unwrap().frames, 8);
}

#[test]
fn frames_longer_than_the_port_or_all_buffers_are_dropped_and_counted() {
    let Pair { mut client, mut server, .. } = pair(64);
    let (mut tx, mut rx) = (burst(), RxBurst::new());
    put(&mut tx, 0, 8 * 64 + 1, 0);
    put(&mut tx, 1, 8 * 64, 0);
    let Moved { frames, errors, .. } = client.transmit(&mut tx).unwrap();
    assert_eq!((frames, errors, tx.len()), (1, 1, 0));
    let Moved { frames, errors, .. } = server.receive(&mut rx, &pool(), 8 * 64 - 1).unwrap();
    assert_eq!((frames, errors), (0, 1));
    put(&mut tx, 2, 8 * 64, 0);
    client.transmit(&mut tx).unwrap();
    assert_eq!(received(&mut server, &mut rx), [frame(2, 8 * 64)]);
}

/// The port waits for room that the peer can still give, and not for room that can never exist.
#[test]
fn frames_longer_than_all_that_a_stingy_client_can_offer_are_dropped_and_counted() {
    let Pair { mut client, mut server, memory, .. } = pair(64);
    let offers = |count| write(&memory, u64::from(TO_CLIENT) + HEAD_OF_CLIENT, count);
    let (mut tx, mut rx) = (burst(), RxBurst::new());
    for (number, len) in [(0, 8 * 64 + 1), (1, 100), (2, 8 * 64 + 1), (3, 8 * 64), (4, 50)] {
        put(&mut tx, number, len, 0);
    }
    let mut transmit = || server.transmit(&mut tx).map(|moved| (moved.frames, moved.errors)).unwrap();
    offers(0);
    assert_eq!(transmit(), (0, 0), "nobody knows how long its buffers will be");
    offers(3);
    assert_eq!(transmit(), (1, 2));
    assert_eq!(transmit(), (0, 0), "the next one may have room some time");
    assert_eq!(received(&mut client, &mut rx), [frame(1, 100)]);
    assert_eq!(transmit(), (1, 0));
    assert_eq!(received(&mut client, &mut rx), [frame(3, 8 * 64)]);
    assert_eq!(transmit(), (1, 0));
    assert_eq!(received(&mut client, &mut rx), [frame(4, 50)]);
}

/// A client cannot have its server look at thousands of buffers for each frame.
#[test]
fn empty_buffers_of_less_than_64_bytes_are_malformed() {
    let Pair { mut client, mut server, memory, .. } = pair(128);
    let offer = |slot: u64, len: u16| write(&memory, u64::from(TO_CLIENT) + descriptor(slot) + 4, len);
    let (mut tx, mut rx) = (burst(), RxBurst::new());
    for slot in 0..8 {
        offer(slot, 64);
    }
    put(&mut tx, 0, 200, 0);
    assert_eq!(server.transmit(&mut tx).unwrap().frames, 1);
    assert_eq!(received(&mut client, &mut rx), [frame(0, 200)], "in four of 64 bytes");
    for len in [0, 63] {
        (4..8).for_each(|slot| offer(slot, len));
        put(&mut tx, 1, 200, 0);
        assert_eq!(
            error_of(server.transmit(&mut tx)),
            format!("an empty buffer of {len} bytes: expected 64 at least")
        );
        assert_eq!(tx.len(), 1, "nothing is lost");
        tx.clear();
    }
}

#[test]
fn frames_are_announced_to_a_listening_peer() {
    let readable = |link: &Link| {
        let mut of =
            [rustix::event::PollFd::from_borrowed_fd(link.announced(), rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut of, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    };
    let Pair { mut client, mut server, .. } = pair(256);
    let mut tx = burst();
    for to_server in [true, false] {
        let (from, to) = if to_server { (&mut client, &mut server) } else { (&mut server, &mut client) };
        let mut send = |from: &mut Link| {
            put(&mut tx, 0, 100, 0);
            from.transmit(&mut tx).unwrap();
            assert_eq!(tx.len(), 0);
        };
        send(from);
        assert!(!readable(to), "nobody asked");
        assert!(to.listen(), "what came before, nobody was told");
        send(from);
        assert!(readable(to));
        to.look_out();
        send(from);
        assert!(!readable(to));
    }
}

#[test]
fn a_memory_of_the_longest_rings_is_laid_out() {
    let config = MemifConfig { log2_ring: 14, buffer_size: Some(64), ..config(64) };
    let offer = offer(&config, &[]).unwrap();
    let signals = event::means().unwrap();
    assert!(Link::of(offer.layout, 64, signals).is_ok());
    let flags = EventfdFlags::CLOEXEC;
    let place = |offset| RingPlace { region: 0, offset, log2_size: 14, event: eventfd(0, flags).unwrap() };
    let regions = vec![Region::allocate(4096).unwrap()];
    let (to_server, to_client) = (place(0), place(1024));
    let short = LinkLayout { role: Role::Server, regions, to_server, to_client, peer: String::new() };
    assert!(Link::of(short, 64, signals).is_err(), "rings beyond the end of the memory");
}

/// Whatever a client puts into its memory has a place of its own there, and offsets have 32 bits.
#[test]
fn nothing_lies_in_the_place_of_something_else() {
    for (log2_ring, size) in [(1, 64), (1, 9000), (10, 2048), (14, 64), (14, 65_600)] {
        let Layout { to_client, sending: TxBuffers { long, short }, receiving, len } =
            Layout::of(log2_ring, size);
        let ring = super::ring::ring_bytes(log2_ring);
        let buffers = [long, short, receiving].map(|b| (b.offset as usize, (b.size as usize) << log2_ring));
        let mut places =
            [(0, ring), (to_client as usize, ring)].into_iter().chain(buffers).collect::<Vec<_>>();
        places.sort_unstable();
        assert!(places.is_sorted_by(|a, b| a.0 + a.1 <= b.0), "{places:?}");
        let (last, bytes) = places[places.len() - 1];
        assert_eq!(last + bytes, len);
    }
    for log2_ring in 1..=MAX_LOG2_RING {
        let huge = MemifConfig { log2_ring, buffer_size: Some(u32::MAX), ..config(64) };
        let Err(MemifError::Buffer { most, .. }) = huge.check() else { panic!("it fits") };
        assert!(MemifConfig { buffer_size: Some(most), ..huge }.check().is_ok());
        let len = Layout::of(log2_ring, most).len;
        assert!(u32::try_from(len).is_ok(), "{len} bytes with 2^{log2_ring} slots");
    }
}

/// A client sends short frames from buffers that lie side by side, and none is in the place of another, long or short.
#[test]
fn short_frames_of_a_client_lie_side_by_side() {
    let Pair { mut client, mut server, memory, .. } = pair(MAX_FRAME as u32);
    let (mut tx, mut rx) = (burst(), RxBurst::new());
    let lengths = [192, 193, 14, 300, 192, 100, MAX_FRAME, 14];
    (0..).zip(lengths).for_each(|(number, len)| put(&mut tx, number, len, 0));
    assert_eq!(client.transmit(&mut tx).unwrap().frames, lengths.len());
    let word = |at: u64| {
        let mut bytes = [0; 4];
        memory.slice(at, 4).unwrap().bytes(0, 4).copy_to(&mut bytes);
        u32::from_ne_bytes(bytes)
    };
    let places = (0..8).map(|slot| word(128 + 16 * slot + 8)).collect::<Vec<_>>();
    for (slot, len) in lengths.into_iter().enumerate() {
        let (first, step) =
            if len <= 192 { (places[0], 192) } else { (places[1] - MAX_FRAME as u32, MAX_FRAME as u32) };
        assert_eq!(places[slot], first + slot as u32 * step, "{len} bytes in slot {slot}");
    }
    let sent: Vec<_> = (0..).zip(lengths).map(|(number, len)| frame(number, len)).collect();
    assert_eq!(received(&mut server, &mut rx), sent);
}

#[test]
fn buffers_that_a_peer_takes_back_are_nonsense() {
    // The empty buffers of the client end at its head in the ring to it, those of the server begin behind its tail in
    // the other one.
    for (from_server, index, back, why) in [
        (true, TO_CLIENT + 6, 4, "the head of the ring to the client is 4: expected 8 to 11"),
        (false, 64, u16::MAX, "the tail of the ring to the server is 65535: expected 0 to 3"),
    ] {
        let Pair { mut client, mut server, memory, .. } = pair(256);
        let (from, to) = if from_server { (&mut server, &mut client) } else { (&mut client, &mut server) };
        let (mut tx, mut rx) = (burst(), RxBurst::new());
        for number in 0..3 {
            put(&mut tx, number, 100, 0);
            from.transmit(&mut tx).unwrap();
            received(to, &mut rx);
            received(to, &mut rx);
        }
        // The sender has seen room for all but these three, and sees less when it looks for more.
        (0..8).for_each(|number| put(&mut tx, number, 100, 0));
        memory.slice(index.into(), 2).unwrap().write(0, &back.to_ne_bytes());
        assert_eq!(error_of(from.transmit(&mut tx)), why);
        assert_eq!(tx.len(), 8, "nothing is lost");
    }
}

/// Writes small numbers into the rings, which nearly make sense as flags, regions, lengths and offsets; seldom as
/// indices.
fn scribble(all: &RegionSlice, mut rng: Rng, has_begun: &AtomicBool, is_done: &AtomicBool) {
    const DESCRIPTORS: u32 = 16 << RING;
    has_begun.store(true, Ordering::Relaxed);
    while !is_done.load(Ordering::Relaxed) {
        let ring = rng.below(2) * TO_CLIENT;
        let index = [6, 64][rng.below(2) as usize];
        let place = if rng.chance(0.002) { index } else { 128 + (rng.below(DESCRIPTORS) & !1) };
        all.write(ring + place, &(rng.below(256) as u16 >> rng.below(8)).to_ne_bytes());
    }
}

/// Says so even if the test fails.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Not only between two calls, as in the property test, but in the midst of them.
#[test]
fn a_peer_that_scribbles_all_the_time_is_survived() {
    let (pool, mut outcomes) = (pool(), [0; 2]);
    for seed in 0..400 {
        let Pair { client, server, memory, .. } = pair(128);
        let all = memory.slice(0, memory.len() as u32).unwrap();
        let (has_begun, is_done) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let _done = Done(&is_done);
            scope.spawn(|| scribble(&all, Rng::new(seed, 0), &has_begun, &is_done));
            while !has_begun.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            let (mut tx, mut rx) = (burst(), RxBurst::with_tails());
            let mut links = [client, server];
            for round in 0..100usize {
                let link = &mut links[round % 2];
                while tx.room() > 0 {
                    put(&mut tx, 0, 300, 100);
                }
                let all_is_well =
                    link.transmit(&mut tx).is_ok() && link.receive(&mut rx, &pool, MAX_FRAME).is_ok();
                rx.drain().for_each(|frame| drop(frame.gather(&pool).unwrap()));
                outcomes[usize::from(all_is_well)] += 1;
                if !all_is_well {
                    break;
                }
            }
        });
    }
    assert!(outcomes.iter().all(|times| *times > 0), "{outcomes:?}");
}

#[test]
fn frames_before_a_malformed_descriptor_are_received() {
    for lent in [true, false] {
        let Pair { mut client, mut server, memory, .. } = pair(256);
        let (mut tx, mut rx) = (burst(), if lent { RxBurst::with_tails() } else { RxBurst::new() });
        (0..3).for_each(|number| put(&mut tx, number, 250, 0));
        client.transmit(&mut tx).unwrap();
        // The third descriptor names a region that there is not.
        memory.slice(128 + 2 * 16 + 2, 2).unwrap().write(0, &9u16.to_ne_bytes());
        assert_eq!(received(&mut server, &mut rx), [frame(0, 250), frame(1, 250)]);
        let error = error_of(server.receive(&mut rx, &pool(), MAX_FRAME));
        assert_eq!(error, "a buffer in region 9: expected 0 to 1");
        assert!(rx.is_empty());
    }
}

/// Where the descriptor in this slot of the ring to the server begins.
fn descriptor(slot: u64) -> u64 {
    128 + 16 * slot
}

/// Writes two bytes as a peer may at any time.
fn write(memory: &Region, at: u64, value: u16) {
    memory.slice(at, 2).unwrap().write(0, &value.to_ne_bytes());
}

/// Where the client says how many descriptors it has put into the ring to the server.
const HEAD_OF_CLIENT: u64 = 6;

#[test]
fn a_frame_that_is_not_all_there_is_looked_at_once() {
    for before in [0, 2] {
        let Pair { mut client, mut server, memory, .. } = pair(256);
        let (mut tx, mut rx) = (burst(), RxBurst::with_tails());
        (0..before).for_each(|number| put(&mut tx, number, 100, 0));
        put(&mut tx, 9, 700, 0);
        assert_eq!(client.transmit(&mut tx).unwrap().frames, usize::from(before) + 1);
        let first = u64::from(before);
        write(&memory, HEAD_OF_CLIENT, u16::from(before) + 2);
        let singles: Vec<_> = (0..before).map(|number| frame(number, 100)).collect();
        assert_eq!(received(&mut server, &mut rx), singles);
        // With another look the frame would end here.
        write(&memory, descriptor(first + 1), 0);
        assert!(received(&mut server, &mut rx).is_empty());
        write(&memory, HEAD_OF_CLIENT, u16::from(before) + 3);
        assert_eq!(received(&mut server, &mut rx), [frame(9, 700)], "the rest has come");
        put(&mut tx, 10, 700, 0);
        client.transmit(&mut tx).unwrap();
        assert_eq!(received(&mut server, &mut rx), [frame(10, 700)], "and is forgotten");
    }
}

#[test]
fn frames_that_never_end_are_malformed_also_while_frames_are_lent() {
    let Pair { mut client, mut server, memory, .. } = pair(256);
    let (mut tx, mut kept, mut rx) = (burst(), RxBurst::with_tails(), RxBurst::with_tails());
    (0..2).for_each(|number| put(&mut tx, number, 100, 0));
    client.transmit(&mut tx).unwrap();
    assert_eq!(server.receive(&mut kept, &pool(), MAX_FRAME).unwrap().frames, 2);
    // All that are left, in one frame.
    (0..8).for_each(|slot| write(&memory, descriptor(slot), 1));
    for (head, lent) in [(7, true), (8, true), (8, false), (9, false)] {
        write(&memory, HEAD_OF_CLIENT, head);
        if !lent {
            kept.clear();
        }
        assert!(received(&mut server, &mut rx).is_empty(), "{head}");
    }
    write(&memory, HEAD_OF_CLIENT, 10);
    let error = error_of(server.receive(&mut rx, &pool(), MAX_FRAME));
    assert_eq!(error, "a frame goes on behind 8 slots");
}

/// The server of a link with the longest rings, and the memory that its client has made, with empty descriptors.
fn server_of_long_rings() -> (Link, Region) {
    let config = MemifConfig { log2_ring: MAX_LOG2_RING, ..config(64) };
    let Offer { layout, files } = offer(&config, &[]).unwrap();
    let memory = Region::map(&files[0], layout.regions[0].len()).unwrap();
    let layout = LinkLayout { role: Role::Server, regions: vec![memory.clone()], ..layout };
    (Link::of(layout, 0, event::means().unwrap()).unwrap(), memory)
}

#[test]
fn a_call_ends_while_descriptors_wait_that_become_no_frame() {
    let (mut server, memory) = server_of_long_rings();
    write(&memory, HEAD_OF_CLIENT, 1 << MAX_LOG2_RING);
    let mut calls = Vec::new();
    while calls.last() != Some(&0) {
        let Moved { frames, errors, .. } = server.receive(&mut RxBurst::new(), &pool(), MAX_FRAME).unwrap();
        assert_eq!(frames, 0);
        calls.push(errors);
    }
    assert_eq!(calls, [&[1024; 16][..], &[0]].concat());
}

#[test]
fn frames_of_thousands_of_descriptors_are_malformed() {
    let (mut server, memory) = server_of_long_rings();
    (0..1 << MAX_LOG2_RING).for_each(|slot| write(&memory, descriptor(slot), 1));
    write(&memory, HEAD_OF_CLIENT, 1 << MAX_LOG2_RING);
    let mut receive = || server.receive(&mut RxBurst::new(), &pool(), MAX_FRAME);
    assert_eq!(receive().unwrap().frames, 0, "a part is looked at");
    assert_eq!(error_of(receive()), "a frame goes on behind 2048 slots");
}

#[test]
fn descriptors_that_a_peer_takes_back_are_nonsense() {
    let Pair { mut client, mut server, memory, .. } = pair(256);
    let (mut tx, mut rx) = (burst(), RxBurst::new());
    put(&mut tx, 0, 700, 0);
    client.transmit(&mut tx).unwrap();
    write(&memory, HEAD_OF_CLIENT, 2);
    assert!(received(&mut server, &mut rx).is_empty());
    write(&memory, HEAD_OF_CLIENT, 1);
    let error = error_of(server.receive(&mut rx, &pool(), MAX_FRAME));
    assert_eq!(error, "a frame has 1 descriptors: expected 2 at least, as before");
}

#[test]
fn an_index_beyond_the_ring_is_an_error_that_names_it() {
    let Pair { mut client, mut server, memory, .. } = pair(256);
    let (mut tx, mut rx) = (burst(), RxBurst::new());
    put(&mut tx, 0, 100, 0);
    server.transmit(&mut tx).unwrap();
    assert_eq!(received(&mut client, &mut rx), [frame(0, 100)]);
    write(&memory, HEAD_OF_CLIENT, 9);
    let error = error_of(server.receive(&mut rx, &pool(), MAX_FRAME));
    assert_eq!(error, "the head of the ring to the server is 9: expected 0 to 8");
    // The client has received one frame, whose buffer it gave back.
    write(&memory, u64::from(TO_CLIENT) + 64, 0);
    let error = error_of(client.receive(&mut rx, &pool(), MAX_FRAME));
    assert_eq!(error, "the tail of the ring to the client is 0: expected 1 to 9");
}

#[test]
fn a_buffer_beyond_its_region_is_an_error_that_names_both() {
    let Pair { mut client, mut server, memory, .. } = pair(256);
    let (mut tx, mut rx) = (burst(), RxBurst::new());
    put(&mut tx, 0, 100, 0);
    client.transmit(&mut tx).unwrap();
    let len = memory.len();
    memory.slice(descriptor(0) + 8, 4).unwrap().write(0, &(len as u32 - 99).to_ne_bytes());
    let error = error_of(server.receive(&mut rx, &pool(), MAX_FRAME));
    assert_eq!(error, format!("a buffer of 100 bytes at {} of region 0, which has {len}", len - 99));
}

#[test]
fn a_peer_is_told_the_whole_error() {
    let region = DescriptorRingError::Outside {
        region: 254,
        offset: u32::MAX,
        len: u32::MAX,
        region_len: u32::MAX as usize,
    };
    let index = "tail of the ring to the server";
    let index = DescriptorRingError::Index { index, found: u16::MAX, first: u16::MAX, last: u16::MAX };
    let length = DescriptorRingError::Length { expected: 65_549, found: u32::MAX as usize };
    for error in [region, index, length] {
        assert!(error.to_string().len() <= 95, "{error}");
    }
}

#[test]
fn an_incomplete_frame_does_not_keep_the_receiver_awake() {
    let Pair { mut client, mut server, memory, .. } = pair(256);
    let (mut tx, mut rx) = (burst(), RxBurst::with_tails());
    put(&mut tx, 0, 700, 0);
    client.transmit(&mut tx).unwrap();
    write(&memory, HEAD_OF_CLIENT, 2);
    assert!(server.listen(), "it has not been looked at");
    assert!(received(&mut server, &mut rx).is_empty());
    server.look_out();
    assert!(!server.listen(), "nothing has come since");
    server.look_out();
    write(&memory, HEAD_OF_CLIENT, 3);
    assert!(server.listen());
}

/// Does `what` with the server of a pair, in time.
fn in_time(mut server: Link, what: impl FnOnce(&mut Link) + Send + 'static) {
    let (done, is_done) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        what(&mut server);
        done.send(()).unwrap();
    });
    is_done.recv_timeout(std::time::Duration::from_secs(20)).expect("the peer keeps it waiting");
    thread.join().unwrap();
}

#[test]
fn events_that_a_peer_makes_blocking_do_not_block_the_port() {
    let block = |event: &OwnedFd| rustix::fs::fcntl_setfl(event, rustix::fs::OFlags::empty()).unwrap();
    let Pair { server, .. } = pair_with(256, |offer| block(&offer.layout.to_server.event));
    in_time(server, |server| {
        assert!(!server.listen());
        server.look_out();
    });
    let Pair { mut client, server, .. } = pair_with(256, |offer| {
        let event = &offer.layout.to_client.event;
        block(event);
        rustix::io::write(event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    });
    assert!(!client.listen());
    in_time(server, |server| {
        let mut tx = burst();
        put(&mut tx, 0, 100, 0);
        assert_eq!(server.transmit(&mut tx).unwrap().frames, 1);
    });
}

#[test]
fn without_a_link_frames_are_dropped_and_counted() {
    let name = SocketName::Abstract(format!("weft-memif-alone-{}", std::process::id()));
    let mut port = MemifPort::open(&MemifConfig::server(name)).unwrap();
    let mut tx = TxBurst::new(&port);
    (0..3).for_each(|number| put(&mut tx, number, 100, 50));
    assert_eq!((port.transmit(&mut tx), tx.len()), (3, 0));
    let counted = port.counters();
    assert_eq!((counted.tx_no_link, counted.tx_errors, counted.tx_frames), (3, 0, 0));
}

#[test]
fn a_link_without_a_working_alarm_is_polled() {
    let name = SocketName::Abstract(format!("weft-memif-unwatched-{}", std::process::id()));
    let mut port = MemifPort::open(&MemifConfig::server(name.clone())).unwrap();
    assert!(port.waitable().is_some());
    // Nothing can be watched by this.
    port.alarm = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    for _ in 0..2 {
        let peer = MemifPort::open(&MemifConfig::client(name.clone())).unwrap();
        port.wait_for_link(std::time::Duration::from_secs(20)).unwrap();
        assert!(port.waitable().is_none(), "it would sleep too long");
        drop(peer);
        while port.link_is_up() {
            std::thread::yield_now();
        }
        assert!(port.waitable().is_some());
    }
}
