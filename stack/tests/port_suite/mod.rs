//! The requirements on every [`Port`], tested over a link of two of them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use weft_stack::port::{
    BURST, Frame, FramePool, MIN_FRAME, Port, PortCounters, ReserveError, RxBurst, TxBurst, memory,
};
use weft_stack::rng::Rng;

/// Two ports, each of which receives the frames that the other sends.
pub(crate) struct Link<A, B> {
    /// One end of the link.
    pub(crate) a: A,
    /// The other end.
    pub(crate) b: B,
    /// Frames that each direction holds before it takes no more; `None` if the link loses frames instead.
    pub(crate) frames: Option<usize>,
    /// Headers with which this link carries a frame.
    pub(crate) dress: Dress,
}

/// Overwrites the first bytes of a frame with headers, for a frame from b to a (`back`) or from a to b.
#[derive(Clone, Copy)]
pub(crate) struct Dress {
    /// Bytes of the headers.
    pub(crate) headers: usize,
    pub(crate) write: fn(frame: &mut [u8], back: bool),
}

impl Dress {
    /// For links that carry any frame.
    pub(crate) const NONE: Dress = Dress { headers: MIN_FRAME, write: |_, _| () };

    fn there(&self, mut frame: Vec<u8>) -> Vec<u8> {
        (self.write)(&mut frame, false);
        frame
    }
}

/// Makes links and runs one test over each. After each test, all buffers must be free.
pub(crate) fn conforms<A: Port, B: Port>(mut make: impl FnMut() -> Link<A, B>) {
    let tests: [fn(&mut Link<A, B>); 11] = [
        capabilities_are_consistent,
        nothing_to_do_is_no_harm,
        frames_arrive_once_in_order_unchanged,
        a_burst_holds_32,
        received_frames_are_appended,
        a_full_link_keeps_frames_in_the_burst,
        wrong_lengths_are_refused,
        frames_too_long_for_the_port_are_counted,
        abandoned_frames_are_not_sent,
        frames_are_passed_on,
        an_empty_pool_recovers,
    ];
    for test in tests {
        let mut link = make();
        let pools = [link.a.pool(), link.b.pool()];
        test(&mut link);
        drop(link);
        for pool in pools {
            assert_eq!(pool.available(), pool.capacity(), "buffers were lost");
        }
    }
    frames_in_flight_are_freed_with_the_link(make());
}

/// The tests of [`conforms`] for links that lose frames without notice if they have no room, or whose devices keep
/// buffers when they are closed.
#[allow(dead_code, reason = "not every program that uses this module has such links")]
pub(crate) fn carries<A: Port, B: Port>(mut make: impl FnMut() -> Link<A, B>) {
    let tests: [fn(&mut Link<A, B>); 9] = [
        capabilities_are_consistent,
        nothing_to_do_is_no_harm,
        frames_arrive_once_in_order_unchanged,
        a_burst_holds_32,
        received_frames_are_appended,
        wrong_lengths_are_refused,
        frames_too_long_for_the_port_are_counted,
        abandoned_frames_are_not_sent,
        frames_are_passed_on,
    ];
    for test in tests {
        test(&mut make());
    }
}

/// Runs both ends in threads of their own, with sequence numbers to detect losses and reordering.
pub(crate) fn conforms_across_threads<A: Port + Send, B: Port + Send>(link: Link<A, B>, frames: u64) {
    let Link { mut a, mut b, dress, frames: room } = link;
    let window = room.map_or(LOSSLESS as u64, |_| u64::MAX);
    let arrived = &AtomicU64::new(0);
    let pools = [a.pool(), b.pool()];
    // Both ends live until all frames have arrived: closing a device may lose frames in flight.
    let (from, to) = (&mut a, &mut b);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let a = from;
            let mut tx = TxBurst::new(&*a);
            let (mut next, mut patience) = (0, Patience::new());
            while next < frames || !tx.is_empty() {
                // On a link that may lose frames, the sender waits until the receiver has caught up.
                while next < frames && next - arrived.load(Ordering::Acquire).min(next) < window {
                    let Ok(mut frame) = tx.reserve(LEN) else { break };
                    frame.copy_from_slice(&dress.there(numbered(next as usize)));
                    frame.commit();
                    next += 1;
                }
                patience.wait_unless(a.transmit(&mut tx) > 0);
            }
            assert_eq!(a.counters().tx_frames, frames);
        });
        scope.spawn(move || {
            let b = to;
            let mut rx = RxBurst::new();
            let (mut expected, mut patience) = (0, Patience::new());
            while expected < frames {
                patience.wait_unless(b.receive(&mut rx) > 0);
                for frame in rx.drain() {
                    assert_eq!(u64::from_be_bytes(frame[LEN - 8..].try_into().unwrap()), expected);
                    expected += 1;
                }
                arrived.store(expected, Ordering::Release);
            }
            assert_eq!(b.counters().rx_frames, frames);
        });
    });
    drop((a, b));
    for pool in pools {
        assert_eq!(pool.available(), pool.capacity(), "buffers were lost");
    }
}

/// Turns a link that has stopped moving into a failure instead of a test that never ends.
struct Patience(Instant);

impl Patience {
    fn new() -> Patience {
        Patience(Instant::now())
    }

    fn wait_unless(&mut self, progress: bool) {
        if progress {
            self.0 = Instant::now();
            return;
        }
        assert!(self.0.elapsed() < Duration::from_secs(20), "the link has stopped moving");
        std::thread::yield_now();
    }
}

fn capabilities_are_consistent<A: Port, B: Port>(link: &mut Link<A, B>) {
    for caps in [link.a.capabilities(), link.b.capabilities()] {
        assert_eq!(caps.mtu() + MIN_FRAME, caps.max_frame);
        assert_eq!(caps.mac[0] & 1, 0, "a port's own address is no group address");
    }
    assert!(link.a.pool().buffer_size() >= link.a.capabilities().max_frame);
    assert_eq!(link.a.capabilities(), link.a.capabilities());
    assert_eq!(link.a.counters(), PortCounters::default());
}

fn nothing_to_do_is_no_harm<A: Port, B: Port>(link: &mut Link<A, B>) {
    let mut rx = RxBurst::new();
    let mut tx = TxBurst::new(&link.a);
    for _ in 0..3 {
        assert_eq!(link.a.receive(&mut rx), 0);
        assert_eq!(link.a.transmit(&mut tx), 0);
    }
    assert_eq!(link.a.counters(), PortCounters::default());
}

fn frames_arrive_once_in_order_unchanged<A: Port, B: Port>(link: &mut Link<A, B>) {
    let mut rng = Rng::new(1, 0);
    exchange(&mut link.a, &mut link.b, &mut rng, link.dress, false);
    exchange(&mut link.b, &mut link.a, &mut rng, link.dress, true);
}

/// Sends bursts of random length, of frames of random length and content, and receives now and then.
fn exchange<A: Port, B: Port>(from: &mut A, to: &mut B, rng: &mut Rng, dress: Dress, back: bool) {
    let shortest = dress.headers;
    let max = from.capabilities().max_frame;
    let (before, before_to) = (from.counters(), to.counters());
    let (mut tx, mut rx) = (TxBurst::new(from), RxBurst::new());
    let mut expected: VecDeque<Vec<u8>> = VecDeque::new();
    let (mut frames, mut bytes) = (0, 0);
    let mut lengths = vec![shortest, shortest + 1, LEN, 1514, max - 1, max];
    lengths.extend((0..500).map(|_| shortest + rng.below((max - shortest) as u32 + 1) as usize));
    for len in lengths {
        let mut content: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8).collect();
        (dress.write)(&mut content, back);
        write(&mut tx, &content);
        expected.push_back(content);
        (frames, bytes) = (frames + 1, bytes + len as u64);
        if tx.room() == 0 || rng.chance(0.1) {
            from.transmit(&mut tx);
            assert!(tx.is_empty(), "the link was empty before");
            drain(to, &mut rx, &mut expected);
        }
    }
    from.transmit(&mut tx);
    drain(to, &mut rx, &mut expected);
    assert_eq!(to.receive(&mut rx), 0, "nothing arrives twice");
    let sent = from.counters();
    assert_eq!((sent.tx_frames - before.tx_frames, sent.tx_bytes - before.tx_bytes), (frames, bytes));
    let got = to.counters();
    assert_eq!((got.rx_frames - before_to.rx_frames, got.rx_bytes - before_to.rx_bytes), (frames, bytes));
    assert_eq!((got.rx_errors, got.rx_missed, sent.tx_errors), (0, 0, 0));
}

fn a_burst_holds_32<A: Port, B: Port>(link: &mut Link<A, B>) {
    let mut tx = TxBurst::new(&link.a);
    let numbered = |n| link.dress.there(numbered(n));
    for n in 0..BURST {
        write(&mut tx, &numbered(n));
    }
    assert_eq!(tx.room(), 0);
    assert_eq!(tx.reserve(LEN).unwrap_err(), ReserveError::BurstFull);
    let spare = link.a.pool().copy(&numbered(99)).unwrap();
    let refused = tx.push(spare).unwrap_err();
    assert_eq!(refused.reason, ReserveError::BurstFull);
    assert_eq!(*refused.frame, *numbered(99), "what is refused is given back");
    assert_eq!(link.a.transmit(&mut tx), BURST);
    let mut rx = RxBurst::new();
    arrive(&mut link.b, &mut rx, BURST);
    assert_eq!(link.b.receive(&mut rx), 0, "a full burst has no room");
    for (n, frame) in rx.iter().enumerate() {
        assert_eq!(**frame, *numbered(n));
    }
}

fn received_frames_are_appended<A: Port, B: Port>(link: &mut Link<A, B>) {
    let numbered = |n| link.dress.there(numbered(n));
    let mut tx = TxBurst::new(&link.a);
    for n in 0..20 {
        write(&mut tx, &numbered(n));
    }
    link.a.transmit(&mut tx);
    let mut rx = RxBurst::new();
    arrive(&mut link.b, &mut rx, 20);
    for n in 20..40 {
        write(&mut tx, &numbered(n));
    }
    link.a.transmit(&mut tx);
    arrive(&mut link.b, &mut rx, 12);
    for (n, frame) in rx.drain().enumerate() {
        assert_eq!(*frame, *numbered(n));
    }
    let mut rest = (32..40).map(numbered).collect();
    drain(&mut link.b, &mut rx, &mut rest);
    assert!(rest.is_empty());
}

fn a_full_link_keeps_frames_in_the_burst<A: Port, B: Port>(link: &mut Link<A, B>) {
    let Some(room) = link.frames else { return a_full_link_counts_its_losses(link) };
    let numbered = |n| link.dress.there(numbered(n));
    let mut tx = TxBurst::new(&link.a);
    let (mut written, mut taken) = (0, 0);
    loop {
        while tx.room() > 0 {
            write(&mut tx, &numbered(written));
            written += 1;
        }
        let before = tx.len();
        let count = link.a.transmit(&mut tx);
        assert_eq!(tx.len(), before - count, "a frame is either taken or kept");
        taken += count;
        if count == 0 {
            break;
        }
    }
    assert_eq!(taken, room);
    for (n, frame) in tx.iter().enumerate() {
        assert_eq!(**frame, *numbered(taken + n), "what stays, stays in order");
    }
    let counters = link.a.counters();
    assert_eq!((counters.tx_frames, counters.tx_bytes), (taken as u64, (taken * LEN) as u64));
    let mut rx = RxBurst::new();
    let mut expected: VecDeque<Vec<u8>> = (0..written).map(numbered).collect();
    while !expected.is_empty() {
        let waiting = tx.len();
        let mut there = expected.drain(..expected.len() - waiting).collect();
        drain(&mut link.b, &mut rx, &mut there);
        link.a.transmit(&mut tx);
        assert!(expected.is_empty() || tx.len() < waiting, "the link does not move");
    }
}

/// Such a link takes every frame. Frames arrive in order, and lost ones are counted.
fn a_full_link_counts_its_losses<A: Port, B: Port>(link: &mut Link<A, B>) {
    let mut tx = TxBurst::new(&link.a);
    let mut sent = 0u64;
    let flood = 200_000;
    while sent < flood {
        while tx.room() > 0 {
            write(&mut tx, &link.dress.there(numbered(sent as usize)));
            sent += 1;
        }
        link.a.transmit(&mut tx);
    }
    assert_eq!(link.a.counters().tx_frames, sent);
    let (mut rx, mut next, mut patience) = (RxBurst::new(), 0, Patience::new());
    // Losses are reported together with later frames, so another frame is sent after all have been received.
    let mut told = false;
    loop {
        let count = link.b.receive(&mut rx);
        patience.wait_unless(count > 0);
        for frame in rx.drain() {
            let n = u64::from_be_bytes(frame[LEN - 8..].try_into().unwrap());
            assert!(n >= next, "frame {n} arrived behind frame {}", next - 1);
            next = n + 1;
        }
        if told && next == sent {
            break;
        }
        if count == 0 && !told {
            write(&mut tx, &link.dress.there(numbered(sent as usize)));
            link.a.transmit(&mut tx);
            (sent, told) = (sent + 1, true);
        }
    }
    let counters = link.b.counters();
    // Frames lost together may count as one.
    assert!(counters.rx_frames + counters.rx_missed <= sent, "{counters:?} of {sent}");
    assert!(counters.rx_missed > 0, "{flood} frames were no flood");
}

fn wrong_lengths_are_refused<A: Port, B: Port>(link: &mut Link<A, B>) {
    let pool = link.a.pool();
    let max = link.a.capabilities().max_frame;
    let free = pool.available();
    let mut tx = TxBurst::new(&link.a);
    for len in [0, 1, MIN_FRAME - 1] {
        assert_eq!(tx.reserve(len).unwrap_err(), ReserveError::TooShort { len });
    }
    for len in [max + 1, 1 << 16, 1 << 20, usize::MAX] {
        assert_eq!(tx.reserve(len).unwrap_err(), ReserveError::TooLong { len, max });
    }
    let foreign = FramePool::heap(2, max + 1).unwrap();
    for (len, reason) in
        [(3, ReserveError::TooShort { len: 3 }), (max + 1, ReserveError::TooLong { len: max + 1, max })]
    {
        let refused = tx.push(foreign.allocate(len).unwrap()).unwrap_err();
        assert_eq!((refused.reason, refused.frame.len()), (reason, len));
    }
    assert!(tx.is_empty());
    assert_eq!(pool.available(), free, "a refusal takes no buffer");
}

/// A burst made for a port that sends longer frames: frames too long are removed and counted.
fn frames_too_long_for_the_port_are_counted<A: Port, B: Port>(link: &mut Link<A, B>) {
    let max = link.a.capabilities().max_frame;
    let config = memory::MemoryConfig { mtu: max, ring: 1, ..memory::MemoryConfig::default() };
    let numbered = |n| link.dress.there(numbered(n));
    let (jumbo, _) = memory::pair(&config).unwrap();
    let mut tx = TxBurst::new(&jumbo);
    write(&mut tx, &numbered(0));
    write(&mut tx, &vec![1; max + 1]);
    write(&mut tx, &numbered(1));
    assert_eq!(link.a.transmit(&mut tx), 3);
    assert!(tx.is_empty());
    assert_eq!(link.a.counters().tx_errors, 1);
    assert_eq!(link.a.counters().tx_frames, 2);
    let mut expected = (0..2).map(numbered).collect();
    drain(&mut link.b, &mut RxBurst::new(), &mut expected);
    assert!(expected.is_empty());
}

fn abandoned_frames_are_not_sent<A: Port, B: Port>(link: &mut Link<A, B>) {
    let pool = link.a.pool();
    let free = pool.available();
    let mut tx = TxBurst::new(&link.a);
    drop(tx.reserve(100).unwrap());
    assert!(tx.is_empty());
    // A burst may hold buffers for its next frames until then.
    tx.clear();
    assert_eq!(pool.available(), free);
    write(&mut tx, &link.dress.there(numbered(1)));
    assert!(pool.available() < free);
    tx.clear();
    assert_eq!(pool.available(), free);
    link.a.transmit(&mut tx);
    assert_eq!(link.b.receive(&mut RxBurst::new()), 0);
}

/// Forwards like a switch: a received frame is changed, shortened and sent back. One end's frames travel through the
/// other's burst, as do frames of a pool that neither end knows.
fn frames_are_passed_on<A: Port, B: Port>(link: &mut Link<A, B>) {
    let foreign = FramePool::heap(1, 2000).unwrap();
    let mut tx = TxBurst::new(&link.a);
    tx.push(foreign.copy(&link.dress.there(vec![5; 1000])).unwrap()).unwrap();
    write(&mut tx, &link.dress.there(vec![6; 1000]));
    assert_eq!(link.a.transmit(&mut tx), 2);

    let (mut rx, mut back) = (RxBurst::new(), TxBurst::new(&link.b));
    arrive(&mut link.b, &mut rx, 2);
    for mut frame in rx.drain() {
        frame[93] = 77;
        frame.truncate(100);
        (link.dress.write)(&mut frame, true);
        back.push(frame).unwrap();
    }
    assert_eq!(link.b.transmit(&mut back), 2);

    arrive(&mut link.a, &mut rx, 2);
    let lengths: Vec<usize> = rx.iter().map(|frame| frame.len()).collect();
    assert_eq!(lengths, [100, 100]);
    for (frame, fill) in rx.iter().zip([5, 6]) {
        assert_eq!((frame[92], frame[93], frame[99]), (fill, 77, fill));
    }
    rx.clear();
    assert_eq!(foreign.available(), 1);
}

fn an_empty_pool_recovers<A: Port, B: Port>(link: &mut Link<A, B>) {
    let numbered = |n| link.dress.there(numbered(n));
    let pool = link.a.pool();
    let mut tx = TxBurst::new(&link.a);
    let mut hoard: Vec<Frame> = std::iter::from_fn(|| pool.allocate(LEN)).collect();
    assert_eq!(tx.reserve(LEN).unwrap_err(), ReserveError::PoolEmpty);
    hoard.pop();
    write(&mut tx, &numbered(1));
    assert_eq!(link.a.transmit(&mut tx), 1);
    drop(hoard);
    let mut expected = [numbered(1)].into();
    drain(&mut link.b, &mut RxBurst::new(), &mut expected);
    assert!(expected.is_empty());
}

fn frames_in_flight_are_freed_with_the_link<A: Port, B: Port>(mut link: Link<A, B>) {
    let pools = [link.a.pool(), link.b.pool()];
    let dress = link.dress;
    let numbered = |n| dress.there(numbered(n));
    let mut tx = TxBurst::new(&link.a);
    for n in 0..10 {
        write(&mut tx, &numbered(n));
    }
    link.a.transmit(&mut tx);
    write(&mut tx, &numbered(10));
    let mut back = TxBurst::new(&link.b);
    write(&mut back, &numbered(11));
    link.b.transmit(&mut back);
    // Bursts may keep buffers for the next frames.
    drop((tx, back, link));
    for pool in pools {
        assert_eq!(pool.available(), pool.capacity(), "frames in flight were lost with the link");
    }
}

/// Appends a frame with this content.
pub(crate) fn write(tx: &mut TxBurst, content: &[u8]) {
    let mut frame = tx.reserve(content.len()).expect("room for a frame");
    frame.copy_from_slice(content);
    frame.commit();
}

/// Receives until no frame arrives any more; the frames must be the front of `expected`.
fn drain<P: Port>(port: &mut P, rx: &mut RxBurst, expected: &mut VecDeque<Vec<u8>>) {
    let mut patience = Patience::new();
    while !expected.is_empty() {
        patience.wait_unless(port.receive(rx) > 0);
        for frame in rx.drain() {
            let next = expected.pop_front().expect("a frame that nobody sent");
            assert_eq!(*frame, *next);
        }
    }
}

/// Appends exactly `count` frames to `rx`, which may take more than one call.
fn arrive<P: Port>(port: &mut P, rx: &mut RxBurst, count: usize) {
    let (mut arrived, mut patience) = (0, Patience::new());
    while arrived < count {
        let now = port.receive(rx);
        patience.wait_unless(now > 0);
        arrived += now;
    }
    assert_eq!(arrived, count);
}

/// Length of a [`numbered`] frame, bytes: more than the headers of any link.
pub(crate) const LEN: usize = 80;

/// Number of frames that a lossy link certainly holds.
const LOSSLESS: usize = 64;

/// A frame of [`LEN`] bytes that ends with its number in eight bytes.
pub(crate) fn numbered(n: usize) -> Vec<u8> {
    let mut frame = vec![0x5a; LEN];
    frame[LEN - 8..].copy_from_slice(&(n as u64).to_be_bytes());
    frame
}
