//! A port in memory for a host that shall feel its link's rate.

use weft_stack::port::memory::{MemoryConfig, MemoryPort, MemoryPortError, pair};
use weft_stack::port::{FramePool, MIN_FRAME, Port, PortCaps, PortCounters, RxBurst, TxBurst};

/// Frames on their way between the two threads; more wait in the fabric.
const RING: usize = 128;

/// The host's end of a link to the fabric.
///
/// It owns no more buffers than are to be ahead of the link. As the fabric gives a buffer back when its last bit
/// has left, an endpoint that has one buffer decides what to send at the moment at which the link is free, as
/// in simulation; with more of them it decides that many frames earlier, and a late turn of its loop does not
/// leave the link idle.
#[derive(Debug)]
pub struct HostPort {
    inner: MemoryPort,
    pool: FramePool,
}

/// A link in memory between a host and the fabric: the host's end, with `ahead` buffers, and the fabric's.
/// `mtu` is that of the Ethernet payload, bytes.
///
/// # Errors
/// An MTU that there is not, or no buffer.
pub fn host_link(mtu: usize, mac: [u8; 6], ahead: usize) -> Result<(HostPort, MemoryPort), MemoryPortError> {
    // The fabric sends from its own buffers, and the host from those beside the pair's.
    let config = MemoryConfig { mtu, ring: RING.max(ahead), spare: 1, macs: [mac, [2, 0, 0, 0, 0, 0xff]] };
    let pool = FramePool::heap(ahead, mtu + MIN_FRAME).map_err(|_| MemoryPortError::Spare)?;
    let (inner, fabric) = pair(&config)?;
    Ok((HostPort { inner, pool }, fabric))
}

impl Port for HostPort {
    #[inline]
    fn receive(&mut self, burst: &mut RxBurst) -> usize {
        self.inner.receive(burst)
    }

    #[inline]
    fn transmit(&mut self, burst: &mut TxBurst) -> usize {
        self.inner.transmit(burst)
    }

    fn capabilities(&self) -> PortCaps {
        self.inner.capabilities()
    }

    fn pool(&self) -> FramePool {
        self.pool.clone()
    }

    fn counters(&self) -> PortCounters {
        self.inner.counters()
    }
}
