//! Two ports joined back to back in memory: tests, and endpoints in one process.
//!
//! Each direction is a bounded single-producer, single-consumer ring without locks, so that the two
//! ends may live on two threads. Frames change hands; their bytes are never copied. When one end is
//! dropped, the other finds its link silent: its own ring fills up, and then it sends no more.

use rtrb::{Consumer, Producer, RingBuffer};
use thiserror::Error;

use super::{BURST, Frame, FramePool, MIN_FRAME, Port, PortCaps, PortCounters, RxBurst, Timestamps, TxBurst};

/// The configuration of a pair of ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryConfig {
    /// Longest Ethernet payload, bytes.
    pub mtu: usize,
    /// Frames in flight in each direction before [`Port::transmit`] takes no more.
    pub ring: usize,
    /// Buffers of each end beyond those that fill its ring: for bursts being written, and for frames
    /// that the other end has received and still holds.
    pub spare: usize,
    /// The Ethernet addresses of the two ends.
    pub macs: [[u8; 6]; 2],
}

impl Default for MemoryConfig {
    /// MTU 9000, 256 frames in flight, buffers for four bursts, locally administered addresses.
    fn default() -> MemoryConfig {
        MemoryConfig {
            mtu: 9000,
            ring: 256,
            spare: 4 * BURST,
            macs: [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]],
        }
    }
}

/// Why a pair of ports cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MemoryPortError {
    /// The MTU is zero or beyond what Ethernet's and IP's length fields express.
    #[error("an MTU of {0} bytes is not between 1 and 65535")]
    Mtu(usize),
    /// The ring has no room for a frame.
    #[error("a ring of length 0 carries nothing")]
    Ring,
    /// There are no buffers to write frames into.
    #[error("at least one spare buffer is needed")]
    Spare,
}

/// Two ports, each of which receives what the other sends.
///
/// # Errors
/// The configuration is invalid; the error says in which way.
pub fn pair(config: &MemoryConfig) -> Result<(MemoryPort, MemoryPort), MemoryPortError> {
    if config.mtu == 0 || config.mtu > usize::from(u16::MAX) {
        return Err(MemoryPortError::Mtu(config.mtu));
    }
    if config.ring == 0 {
        return Err(MemoryPortError::Ring);
    }
    if config.spare == 0 {
        return Err(MemoryPortError::Spare);
    }
    let (a_out, b_in) = RingBuffer::new(config.ring);
    let (b_out, a_in) = RingBuffer::new(config.ring);
    Ok((
        MemoryPort::new(config, config.macs[0], a_out, a_in),
        MemoryPort::new(config, config.macs[1], b_out, b_in),
    ))
}

/// One end of a link in memory, made by [`pair`].
#[derive(Debug)]
pub struct MemoryPort {
    outgoing: Producer<Frame>,
    incoming: Consumer<Frame>,
    pool: FramePool,
    caps: PortCaps,
    counters: PortCounters,
}

impl MemoryPort {
    fn new(
        config: &MemoryConfig,
        mac: [u8; 6],
        outgoing: Producer<Frame>,
        incoming: Consumer<Frame>,
    ) -> MemoryPort {
        let max_frame = config.mtu + MIN_FRAME;
        let pool = FramePool::heap(config.ring + config.spare, max_frame)
            .expect("`pair` has checked that there are buffers and that they hold a header");
        let caps = PortCaps {
            max_frame,
            mac,
            tx_ipv4_checksum: false,
            tx_udp_checksum: false,
            rx_checksum: false,
            multi_segment: false,
            timestamps: Timestamps::Burst,
            in_memory: false,
        };
        MemoryPort { outgoing, incoming, pool, caps, counters: PortCounters::default() }
    }
}

impl Port for MemoryPort {
    #[inline]
    fn receive(&mut self, burst: &mut RxBurst) -> usize {
        let count = self.incoming.slots().min(burst.room());
        for _ in 0..count {
            let Ok(frame) = self.incoming.pop() else { unreachable!("only this end takes frames out") };
            self.counters.received(&frame);
            let pushed = burst.push(frame);
            debug_assert!(pushed.is_ok(), "no more than there is room for");
        }
        count
    }

    #[inline]
    fn transmit(&mut self, burst: &mut TxBurst) -> usize {
        let refused = burst.drop_longer_than(self.caps.max_frame);
        self.counters.tx_errors += refused as u64;
        let count = self.outgoing.slots().min(burst.len());
        for frame in burst.take_front(count) {
            self.counters.sent(&frame);
            let pushed = self.outgoing.push(frame);
            debug_assert!(pushed.is_ok(), "only this end puts frames in");
        }
        refused + count
    }

    fn capabilities(&self) -> PortCaps {
        self.caps
    }

    fn pool(&self) -> FramePool {
        self.pool.clone()
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn useless_configurations_are_refused() {
        let with = |change: fn(&mut MemoryConfig)| {
            let mut config = MemoryConfig::default();
            change(&mut config);
            pair(&config).unwrap_err()
        };
        assert_eq!(with(|c| c.mtu = 0), MemoryPortError::Mtu(0));
        assert_eq!(with(|c| c.mtu = 65536), MemoryPortError::Mtu(65536));
        assert_eq!(with(|c| c.ring = 0), MemoryPortError::Ring);
        assert_eq!(with(|c| c.spare = 0), MemoryPortError::Spare);
    }

    #[test]
    fn a_stuck_reader_costs_only_its_own_peer_buffers() {
        let config = MemoryConfig { mtu: 100, ring: 8, spare: 4, ..MemoryConfig::default() };
        let (mut a, mut b) = pair(&config).unwrap();
        let mut tx = TxBurst::new(&a);
        while tx.reserve(50).map(crate::port::Reservation::commit).is_ok() {
            a.transmit(&mut tx);
        }
        assert_eq!(a.pool().available(), 0);
        assert_eq!(b.pool().available(), 12);
        let mut back = TxBurst::new(&b);
        back.reserve(50).unwrap().commit();
        assert_eq!(b.transmit(&mut back), 1);
    }
}
