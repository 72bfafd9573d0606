//! A port around another one that loses, duplicates, delays and damages what it receives, or what it sends.
//!
//! Faults hit one frame at a time, drawn from a seeded generator: the same seed and the same frames give the same
//! faults. A port disturbs one direction; wrap both ends of a link to disturb both.
//!
//! Received frames are disturbed in one piece. Frames to be sent keep their [attached](super::Attachment) payload: a
//! frame that is held back refers to that memory, and carries its content at the time when it is sent at last, like a
//! frame in the ring of a slow device.

use std::collections::VecDeque;

use thiserror::Error;

use super::{BURST, ChecksumStatus, Frame, FramePool, Port, PortCaps, PortCounters, RxBurst, TxBurst};
use crate::rng::Rng;

/// The most frames that a port delays at the same time; while it holds as many, the next is delivered at once.
const MAX_HELD: usize = 256;

/// The probability of each fault per frame, independent of each other.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// The frame is lost.
    pub drop: f64,
    /// One bit of the frame is flipped. (In a copy, if payload is attached; not if the pool has no buffer for it.)
    pub corrupt: f64,
    /// The frame arrives twice in a row. (Not if its pool has no buffer left for the copy.) Of payload attached there
    /// is no copy: both refer to it.
    pub duplicate: f64,
    /// The frame changes places with the next one.
    pub reorder: f64,
    /// The frame is held back until [`delay_frames`](Self::delay_frames) more have arrived.
    pub delay: f64,
    /// How many frames a delayed one lets pass. So that the last frames of a conversation arrive as well, a call of
    /// [`Port::receive`] that finds nothing, or of [`Port::transmit`] that brings nothing, counts as one frame.
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
                return Err(FaultsError { name, value: p, most: 1.0 });
            }
        }
        Ok(())
    }
}

/// A fault's value that is no probability, or that the port does not permit.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[error("the probability of {name} must lie between 0 and {most}, and is {value}")]
pub struct FaultsError {
    /// The name of the fault.
    pub name: &'static str,
    /// The value that was given.
    pub value: f64,
    /// The largest value permitted: 1, or 0 where the port has promised never to have this fault.
    pub most: f64,
}

/// How often each fault has occurred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Number of frames that were lost.
    pub dropped: u64,
    /// Number of frames with a bit flipped.
    pub corrupted: u64,
    /// Number of additional copies of frames.
    pub duplicated: u64,
    /// Number of frames moved behind the next one.
    pub reordered: u64,
    /// Number of frames that were delayed.
    pub delayed: u64,
}

/// The direction in which frames are disturbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    In,
    Out,
}

/// A port that disturbs the frames that it receives, or those that it sends.
#[derive(Debug)]
pub struct FaultyPort<P> {
    inner: P,
    way: Way,
    /// Whether frames may be damaged: the port's capabilities depend on it.
    damages: bool,
    faults: Faults,
    rng: Rng,
    counts: FaultCounts,
    counters: PortCounters,
    incoming: RxBurst,
    outgoing: TxBurst,
    held: VecDeque<Held>,
    ready: VecDeque<Frame>,
}

#[derive(Debug)]
struct Held {
    frame: Frame,
    /// The number of frames that must still overtake it.
    passes: u32,
}

impl<P: Port> FaultyPort<P> {
    /// A port like `inner` with these faults, drawn from `rng`, in the frames that it receives.
    pub fn new(inner: P, faults: Faults, rng: Rng) -> Result<FaultyPort<P>, FaultsError> {
        FaultyPort::with(inner, Way::In, true, faults, rng)
    }

    /// A port like `inner` with these faults in what it sends. One that is not to damage frames from the beginning
    /// never does: if the frames of `inner` stay [in memory](PortCaps::in_memory), so do its own.
    ///
    /// The port keeps frames that the device has no room for, and sends them with a later call of [`Port::transmit`].
    ///
    /// Damage is done before the frame leaves: a device that computes checksums without being asked, as kernel UDP
    /// does, makes damaged frames good ones.
    pub fn sending(inner: P, faults: Faults, rng: Rng) -> Result<FaultyPort<P>, FaultsError> {
        FaultyPort::with(inner, Way::Out, faults.corrupt > 0.0, faults, rng)
    }

    fn with(
        inner: P,
        way: Way,
        damages: bool,
        faults: Faults,
        rng: Rng,
    ) -> Result<FaultyPort<P>, FaultsError> {
        faults.check()?;
        Ok(FaultyPort {
            outgoing: TxBurst::new(&inner),
            inner,
            way,
            damages,
            faults,
            rng,
            counts: FaultCounts::default(),
            counters: PortCounters::default(),
            incoming: RxBurst::new(),
            held: VecDeque::with_capacity(MAX_HELD),
            // Room for the rest of a burst, a burst and its duplicates, and all frames held back.
            ready: VecDeque::with_capacity(3 * BURST + MAX_HELD),
        })
    }

    /// Changes the faults from the next frame on. Frames that are held stay held.
    ///
    /// # Errors
    /// A value is no probability, or frames would be damaged although the port [never damages](Self::sending) any.
    pub fn set_faults(&mut self, faults: Faults) -> Result<(), FaultsError> {
        faults.check()?;
        if faults.corrupt > 0.0 && !self.damages {
            return Err(FaultsError { name: "corrupt", value: faults.corrupt, most: 0.0 });
        }
        self.faults = faults;
        Ok(())
    }

    /// How often each fault has occurred.
    pub fn fault_counts(&self) -> FaultCounts {
        self.counts
    }

    /// Frames held back that refer to memory of an application.
    pub fn held_attached(&self) -> usize {
        self.held.iter().filter(|held| held.frame.is_attached()).count()
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
        if corrupt && self.damage(&mut frame, bit) && frame.checksum_status() == ChecksumStatus::Good {
            // A device that verifies checksums would have dropped the damaged frame: do not call it verified.
            return;
        }
        let copy = if duplicate { frame.duplicate(&self.inner.pool()) } else { None };
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

    /// Flips a bit of the frame, but never in the memory of an application. Returns whether it did.
    fn damage(&mut self, frame: &mut Frame, bit: u64) -> bool {
        if frame.is_attached() {
            let Some(whole) = frame.gather(&self.inner.pool()) else { return false };
            *frame = whole;
        }
        if frame.is_empty() {
            return false;
        }
        let bit = (bit % (frame.len() as u64 * 8)) as usize;
        frame[bit / 8] ^= 1 << (bit % 8);
        self.counts.corrupted += 1;
        true
    }

    /// Sends the frames that are ready, as far as there is room. Returns whether all were sent.
    fn send_on(&mut self) -> bool {
        loop {
            while self.outgoing.room() > 0
                && let Some(frame) = self.ready.pop_front()
            {
                self.counters.tx_errors += u64::from(self.outgoing.push(frame).is_err());
            }
            self.inner.transmit(&mut self.outgoing);
            if !self.outgoing.is_empty() || self.ready.is_empty() {
                return self.outgoing.is_empty();
            }
        }
    }

    /// Counts one frame as overtaking those that are held back.
    fn let_pass(&mut self) {
        for held in &mut self.held {
            held.passes = held.passes.saturating_sub(1);
        }
    }

    /// Releases the held frames that have been overtaken often enough, behind the frame that has just arrived.
    fn release(&mut self) {
        while let Some(index) = self.held.iter().position(|held| held.passes == 0) {
            self.ready.extend(self.held.remove(index).map(|held| held.frame));
        }
    }
}

impl<P: Port> Port for FaultyPort<P> {
    fn receive(&mut self, burst: &mut RxBurst) -> usize {
        if self.way == Way::Out {
            return self.inner.receive(burst);
        }
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
        if self.way == Way::In {
            return self.inner.transmit(burst);
        }
        if !self.send_on() {
            return 0;
        }
        if burst.is_empty() {
            self.let_pass();
            self.release();
        }
        let count = burst.len();
        for frame in burst.take_front(count) {
            self.arrive(frame);
        }
        self.send_on();
        count
    }

    fn capabilities(&self) -> PortCaps {
        let caps = self.inner.capabilities();
        // Frames that can be damaged go over a wire.
        let in_memory = caps.in_memory && !self.damages;
        match self.way {
            Way::In => PortCaps { in_memory, ..caps },
            // Computed after the damage, they would hide it.
            Way::Out => PortCaps { in_memory, tx_ipv4_checksum: false, tx_udp_checksum: false, ..caps },
        }
    }

    fn pool(&self) -> FramePool {
        self.inner.pool()
    }

    /// The counters of the port inside, except that frames are counted after the faults.
    fn counters(&self) -> PortCounters {
        let PortCounters { rx_frames, rx_bytes, tx_errors, .. } = self.counters;
        let inner = self.inner.counters();
        match self.way {
            Way::In => PortCounters { rx_frames, rx_bytes, ..inner },
            Way::Out => PortCounters { tx_errors: tx_errors + inner.tx_errors, ..inner },
        }
    }

    /// None while frames are held back: calls release them, and no event announces that.
    fn waitable(&mut self) -> Option<std::os::fd::BorrowedFd<'_>> {
        let inner = self.inner.waitable();
        inner.filter(|_| self.ready.is_empty() && self.held.is_empty() && self.outgoing.is_empty())
    }

    fn waited(&mut self) {
        self.inner.waited();
    }

    fn register(&mut self, memory: &crate::region::SharedRegion) -> bool {
        self.inner.register(memory)
    }

    fn keep_peer(&mut self, peer: std::net::IpAddr) {
        self.inner.keep_peer(peer);
    }

    fn forget_peer(&mut self, peer: std::net::IpAddr) {
        self.inner.forget_peer(peer);
    }

    /// Frames held back that refer to such memory are lost.
    fn recall(&mut self) {
        self.held.retain(|held| !held.frame.is_attached());
        self.ready.retain(|frame| !frame.is_attached());
        self.outgoing.drop_attached();
        self.inner.recall();
    }
}

#[cfg(test)]
mod sending;
#[cfg(test)]
mod tests;
