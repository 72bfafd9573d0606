//! A port around another one that loses, duplicates, delays and damages what it receives.
//!
//! Faults strike on the receive side, one frame at a time, drawn from a seeded generator: the same
//! seed and the same frames give the same faults. Wrap both ends of a link to disturb both
//! directions. Sending is not touched.

use std::collections::VecDeque;

use thiserror::Error;

use super::{BURST, ChecksumStatus, Frame, FramePool, Port, PortCaps, PortCounters, RxBurst, TxBurst};
use crate::rng::Rng;

/// Frames that a port delays at the same time; when as many are held, the next is delivered at once.
const MAX_HELD: usize = 256;

/// How often each fault strikes, as probabilities per frame, independent of each other.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// The frame is lost.
    pub drop: f64,
    /// One bit of the frame is flipped.
    pub corrupt: f64,
    /// The frame arrives twice in a row. (Not if its pool has no buffer left for the copy.)
    pub duplicate: f64,
    /// The frame changes places with the next one.
    pub reorder: f64,
    /// The frame is held back until [`delay_frames`](Self::delay_frames) more have arrived.
    pub delay: f64,
    /// How many frames a delayed one lets pass. So that the last frames of a conversation arrive as
    /// well, a call of [`Port::receive`] that finds nothing counts as one frame.
    pub delay_frames: u32,
}

impl Faults {
    fn check(&self) -> Result<(), FaultsError> {
        for (name, p) in [
            ("drop", self.drop),
            ("corrupt", self.corrupt),
            ("duplicate", self.duplicate),
            ("reorder", self.reorder),
            ("delay", self.delay),
        ] {
            if !(0.0..=1.0).contains(&p) {
                return Err(FaultsError { name, value: p });
            }
        }
        Ok(())
    }
}

/// A number that is no probability.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[error("the probability of {name} must lie between 0 and 1, and is {value}")]
pub struct FaultsError {
    /// Which one.
    pub name: &'static str,
    /// Its value.
    pub value: f64,
}

/// How often each fault has struck.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Frames lost.
    pub dropped: u64,
    /// Frames with a bit flipped.
    pub corrupted: u64,
    /// Copies made.
    pub duplicated: u64,
    /// Frames moved behind the next one.
    pub reordered: u64,
    /// Frames delayed.
    pub delayed: u64,
}

/// A port that mistreats what it receives.
#[derive(Debug)]
pub struct FaultyPort<P> {
    inner: P,
    faults: Faults,
    rng: Rng,
    counts: FaultCounts,
    counters: PortCounters,
    incoming: RxBurst,
    held: VecDeque<Held>,
    ready: VecDeque<Frame>,
}

#[derive(Debug)]
struct Held {
    frame: Frame,
    /// Frames that must still pass.
    passes: u32,
}

impl<P: Port> FaultyPort<P> {
    /// A port like `inner` with these faults, drawn from `rng`.
    pub fn new(inner: P, faults: Faults, rng: Rng) -> Result<FaultyPort<P>, FaultsError> {
        faults.check()?;
        Ok(FaultyPort {
            inner,
            faults,
            rng,
            counts: FaultCounts::default(),
            counters: PortCounters::default(),
            incoming: RxBurst::new(),
            held: VecDeque::with_capacity(MAX_HELD),
            // Less than a burst left over, a burst and its duplicates, and all that was held.
            ready: VecDeque::with_capacity(3 * BURST + MAX_HELD),
        })
    }

    /// Changes the faults from the next frame on. Frames that are held stay held.
    pub fn set_faults(&mut self, faults: Faults) -> Result<(), FaultsError> {
        faults.check()?;
        self.faults = faults;
        Ok(())
    }

    /// How often each fault has struck.
    pub fn fault_counts(&self) -> FaultCounts {
        self.counts
    }

    /// The port inside.
    pub fn inner(&self) -> &P {
        &self.inner
    }

    /// The port inside; frames that are held are dropped.
    pub fn into_inner(self) -> P {
        self.inner
    }

    fn take_in(&mut self) {
        // Swapped out, so that frames can be drained from it into the fields of `self`.
        let mut incoming = std::mem::take(&mut self.incoming);
        if self.inner.receive(&mut incoming) == 0 {
            self.let_pass();
        }
        for frame in incoming.drain() {
            self.arrive(frame);
        }
        self.incoming = incoming;
    }

    fn arrive(&mut self, mut frame: Frame) {
        // Every probability is drawn for every frame, so that changing one of them leaves the
        // others' draws as they were.
        let dropped = self.rng.chance(self.faults.drop);
        let corrupt = self.rng.chance(self.faults.corrupt);
        let duplicate = self.rng.chance(self.faults.duplicate);
        let reorder = self.rng.chance(self.faults.reorder);
        let delay = self.rng.chance(self.faults.delay);
        let bit = self.rng.next_u64();
        if dropped {
            self.counts.dropped += 1;
            return;
        }
        if corrupt && !frame.is_empty() {
            let bit = (bit % (frame.len() as u64 * 8)) as usize;
            frame[bit / 8] ^= 1 << (bit % 8);
            self.counts.corrupted += 1;
            // What has verified the frame would have dropped it, and nobody behind looks again.
            if frame.checksum_status() == ChecksumStatus::Good {
                return;
            }
        }
        let mut copy = if duplicate { self.inner.pool().copy(&frame) } else { None };
        if let Some(copy) = &mut copy {
            copy.set_checksum_status(frame.checksum_status());
        }
        self.counts.duplicated += u64::from(copy.is_some());
        self.let_pass();
        if delay && self.held.len() < MAX_HELD {
            self.counts.delayed += 1;
            self.held.push_back(Held { frame, passes: self.faults.delay_frames });
        } else if reorder && self.held.len() < MAX_HELD {
            self.counts.reordered += 1;
            self.held.push_back(Held { frame, passes: 1 });
        } else {
            self.ready.push_back(frame);
        }
        self.ready.extend(copy);
        self.release();
    }

    /// One frame passes those that are held.
    fn let_pass(&mut self) {
        for held in &mut self.held {
            held.passes = held.passes.saturating_sub(1);
        }
    }

    /// Those that have let enough frames pass follow the one that has just arrived.
    fn release(&mut self) {
        while let Some(index) = self.held.iter().position(|held| held.passes == 0) {
            self.ready.extend(self.held.remove(index).map(|held| held.frame));
        }
    }
}

impl<P: Port> Port for FaultyPort<P> {
    fn receive(&mut self, burst: &mut RxBurst) -> usize {
        if self.ready.len() < BURST {
            self.take_in();
            self.release();
        }
        let count = self.ready.len().min(burst.room());
        for frame in self.ready.drain(..count) {
            self.counters.received(&frame);
            let pushed = burst.push(frame);
            debug_assert!(pushed.is_ok(), "no more than there is room for");
        }
        count
    }

    fn transmit(&mut self, burst: &mut TxBurst) -> usize {
        self.inner.transmit(burst)
    }

    fn capabilities(&self) -> PortCaps {
        // It damages frames, as a wire does.
        PortCaps { in_memory: false, ..self.inner.capabilities() }
    }

    fn pool(&self) -> FramePool {
        self.inner.pool()
    }

    /// Those of the port inside, except for the frames received: these are counted after the faults.
    fn counters(&self) -> PortCounters {
        let PortCounters { rx_frames, rx_bytes, .. } = self.counters;
        PortCounters { rx_frames, rx_bytes, ..self.inner.counters() }
    }

    /// None while frames are held back: they come out as time passes, and nothing announces them.
    #[cfg(unix)]
    fn waitable(&mut self) -> Option<std::os::fd::BorrowedFd<'_>> {
        let inner = self.inner.waitable();
        inner.filter(|_| self.ready.is_empty() && self.held.is_empty())
    }

    fn waited(&mut self) {
        self.inner.waited();
    }

    #[cfg(target_os = "linux")]
    fn register(&mut self, memory: &crate::worker::ring::SharedRegion) -> bool {
        self.inner.register(memory)
    }

    fn recall(&mut self) {
        self.inner.recall();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::memory::{MemoryConfig, MemoryPort, pair};

    /// Sends `count` numbered frames through these faults. Returns what arrives.
    fn run(faults: Faults, count: u32, seed: u64) -> (Vec<Vec<u8>>, FaultCounts) {
        let (mut a, b) = pair(&MemoryConfig { mtu: 100, ..MemoryConfig::default() }).unwrap();
        let pools = [a.pool(), b.pool()];
        let mut b = FaultyPort::new(b, faults, Rng::new(seed, 0)).unwrap();
        let mut arrived = Vec::new();
        for first in (0..count).step_by(BURST) {
            send(&mut a, first..count.min(first + BURST as u32));
            collect(&mut b, &mut arrived);
        }
        for _ in 0..=faults.delay_frames + 1 {
            collect(&mut b, &mut arrived);
        }
        assert_eq!(b.counters().rx_frames, arrived.len() as u64);
        let counts = b.fault_counts();
        drop((a, b));
        assert!(pools.iter().all(|pool| pool.available() == pool.capacity()), "no buffer is lost");
        (arrived, counts)
    }

    fn send(port: &mut MemoryPort, numbers: std::ops::Range<u32>) {
        let mut tx = TxBurst::new(port);
        for n in numbers {
            let mut frame = tx.reserve(20).unwrap();
            frame.fill(0);
            frame[16..].copy_from_slice(&n.to_be_bytes());
            frame.commit();
        }
        port.transmit(&mut tx);
        assert!(tx.is_empty());
    }

    fn collect(port: &mut FaultyPort<MemoryPort>, into: &mut Vec<Vec<u8>>) {
        let mut rx = RxBurst::new();
        port.receive(&mut rx);
        into.extend(rx.drain().map(|frame| frame.to_vec()));
    }

    fn numbers(frames: &[Vec<u8>]) -> Vec<u32> {
        frames.iter().map(|frame| u32::from_be_bytes(frame[16..].try_into().unwrap())).collect()
    }

    #[test]
    fn without_faults_nothing_changes() {
        let (frames, counts) = run(Faults::default(), 100, 1);
        assert_eq!(numbers(&frames), (0..100).collect::<Vec<_>>());
        assert_eq!(counts, FaultCounts::default());
    }

    #[test]
    fn drops_are_as_frequent_as_asked() {
        let (frames, counts) = run(Faults { drop: 0.2, ..Faults::default() }, 10_000, 1);
        assert_eq!(counts.dropped + frames.len() as u64, 10_000);
        // Mean 2000, standard deviation 40.
        assert!((1800..2200).contains(&counts.dropped), "{counts:?}");
        assert!(numbers(&frames).is_sorted());
    }

    #[test]
    fn duplicates_follow_their_original() {
        let (frames, _) = run(Faults { duplicate: 1.0, ..Faults::default() }, 50, 1);
        assert_eq!(numbers(&frames), (0..50).flat_map(|n| [n, n]).collect::<Vec<_>>());
    }

    #[test]
    fn a_reordered_frame_follows_the_next() {
        let (frames, counts) = run(Faults { reorder: 0.3, ..Faults::default() }, 1000, 1);
        let seen = numbers(&frames);
        assert_ne!(seen, (0..1000).collect::<Vec<_>>());
        for (place, n) in seen.iter().enumerate() {
            assert!((place as i64 - i64::from(*n)).abs() <= 1, "{n} arrived in place {place}");
        }
        assert!(counts.reordered > 200);
    }

    #[test]
    fn a_delayed_frame_lets_as_many_pass_as_asked() {
        let (a, b) = pair(&MemoryConfig::default()).unwrap();
        let mut a = a;
        let mut b = FaultyPort::new(b, Faults::default(), Rng::new(1, 0)).unwrap();
        let mut arrived = Vec::new();
        b.set_faults(Faults { delay: 1.0, delay_frames: 3, ..Faults::default() }).unwrap();
        send(&mut a, 0..1);
        collect(&mut b, &mut arrived);
        assert!(arrived.is_empty());
        b.set_faults(Faults::default()).unwrap();
        send(&mut a, 1..6);
        collect(&mut b, &mut arrived);
        assert_eq!(numbers(&arrived), [1, 2, 3, 0, 4, 5]);
    }

    #[test]
    fn the_last_delayed_frame_arrives_as_well() {
        let (frames, counts) = run(Faults { delay: 1.0, delay_frames: 7, ..Faults::default() }, 40, 1);
        assert_eq!((frames.len(), counts.delayed), (40, 40));
    }

    #[test]
    fn corruption_flips_one_bit() {
        let (frames, counts) = run(Faults { corrupt: 1.0, ..Faults::default() }, 200, 1);
        assert_eq!(counts.corrupted, 200);
        for (n, frame) in frames.iter().enumerate() {
            let mut expected = vec![0; 20];
            expected[16..].copy_from_slice(&(n as u32).to_be_bytes());
            let flipped: u32 = frame.iter().zip(&expected).map(|(a, b)| (a ^ b).count_ones()).sum();
            assert_eq!(flipped, 1);
        }
    }

    #[test]
    fn the_seed_decides() {
        let faults =
            Faults { drop: 0.1, corrupt: 0.1, duplicate: 0.1, reorder: 0.1, delay: 0.1, delay_frames: 40 };
        assert_eq!(run(faults, 2000, 5), run(faults, 2000, 5));
        assert_ne!(run(faults, 2000, 5), run(faults, 2000, 6));
    }

    #[test]
    fn numbers_that_are_no_probabilities_are_refused() {
        for value in [-0.1, 1.1, f64::NAN] {
            let (a, _b) = pair(&MemoryConfig::default()).unwrap();
            let error = FaultyPort::new(a, Faults { reorder: value, ..Faults::default() }, Rng::new(1, 0))
                .unwrap_err();
            assert_eq!(error.name, "reorder");
        }
    }
}
