//! A port that makes its host feel the rate of its link.

use std::collections::VecDeque;
use weft_cc::{Rate, Span, Time};
use weft_stack::port::{
    Frame, FramePool, MIN_FRAME, PoolError, Port, PortCaps, PortCounters, RxBurst, TxBurst,
};
use weft_stack::worker::Clock;

/// Preamble, frame check sequence and gap; and the shortest frame with them.
const AROUND: usize = 8 + 4 + 12;
const SHORTEST: usize = 84;

/// A port over a link of a given rate, as [`weft_testbed::soft::HostPort`] is one within a process: the endpoint has
/// a few buffers, and each back when the last bit of its frame has left, so it decides what to send at the moment
/// at which its link is free, or a few frames before. Frames of the endpoint leave through the inner
/// port at once: the fabric receives them before their departure time.
pub(super) struct PacedPort<P> {
    inner: P,
    tx: TxBurst,
    pool: FramePool,
    rate: Rate,
    clock: Clock,
    free_at: Time,
    /// Frames whose bits leave, and when the last one of each has left.
    leaving: VecDeque<(Time, Frame)>,
}

impl<P: Port> PacedPort<P> {
    /// `inner` at a link of `rate`, with `ahead` buffers.
    pub(super) fn new(inner: P, rate: Rate, ahead: usize, clock: Clock) -> Result<PacedPort<P>, PoolError> {
        let pool = FramePool::heap(ahead, inner.capabilities().max_frame.max(MIN_FRAME))?;
        let tx = TxBurst::new(&inner);
        let free_at = clock.now();
        Ok(PacedPort { inner, tx, pool, rate, clock, free_at, leaving: VecDeque::with_capacity(ahead) })
    }

    /// When the next buffer comes back.
    pub(super) fn next_free(&self) -> Option<Time> {
        self.leaving.front().map(|(at, _)| *at)
    }

    fn release(&mut self, now: Time) {
        while self.leaving.front().is_some_and(|(at, _)| now.is_at_or_after(*at)) {
            self.leaving.pop_front();
        }
    }

    fn time_for(&self, len: usize) -> Span {
        self.rate.time_for((len + AROUND).max(SHORTEST) as u64)
    }
}

impl<P: Port> Port for PacedPort<P> {
    fn receive(&mut self, burst: &mut RxBurst) -> usize {
        // The endpoint takes buffers for what it sends after it has received.
        self.release(self.clock.now());
        self.inner.receive(burst)
    }

    fn transmit(&mut self, burst: &mut TxBurst) -> usize {
        let now = self.clock.now();
        self.release(now);
        let mut room = self.tx.room();
        let pool = self.inner.pool();
        let mut taken = 0;
        while room > 0
            && let Some(copy) = burst.iter().next().and_then(|frame| pool.copy(frame))
        {
            let Some(frame) = burst.take_front(1).next() else { break };
            self.free_at = self.free_at.latest(now) + self.time_for(frame.len());
            self.leaving.push_back((self.free_at, frame));
            // There is room for one more frame, as checked above.
            let _ = self.tx.push(copy);
            room -= 1;
            taken += 1;
        }
        self.inner.transmit(&mut self.tx);
        taken
    }

    fn capabilities(&self) -> PortCaps {
        PortCaps { multi_segment: false, ..self.inner.capabilities() }
    }

    fn pool(&self) -> FramePool {
        self.pool.clone()
    }

    fn counters(&self) -> PortCounters {
        self.inner.counters()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_stack::port::memory::{MemoryConfig, pair};

    #[test]
    fn buffers_come_back_when_their_frames_have_left() {
        let (near, mut far) = pair(&MemoryConfig { mtu: 1_500, ..MemoryConfig::default() }).unwrap();
        let clock = Clock::new();
        // A frame of 1,226 bytes takes 10 ms, and cannot be back sooner however slow this machine is.
        let mut port = PacedPort::new(near, Rate::from_bps(1_000_000), 2, clock).unwrap();
        let mut tx = TxBurst::new(&port);
        let begin = clock.now();
        for _ in 0..2 {
            tx.reserve(1_226).unwrap().commit();
        }
        assert!(tx.reserve(60).is_err(), "two buffers");
        assert_eq!(port.transmit(&mut tx), 2);
        let mut rx = RxBurst::new();
        assert_eq!(far.receive(&mut rx), 2, "the fabric has them at once");
        let free = port.next_free().unwrap();
        assert!(free.since(begin) >= Span::from_ms(10));
        while port.next_free() == Some(free) {
            port.receive(&mut RxBurst::new());
        }
        assert!(clock.now().is_at_or_after(free));
        tx.reserve(60).unwrap().commit();
        assert_eq!(port.transmit(&mut tx), 1);
    }
}
