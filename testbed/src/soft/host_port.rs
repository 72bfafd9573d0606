//! A port in memory whose host is limited to its link's rate.

use weft_stack::port::memory::{MemoryConfig, MemoryPort, MemoryPortError, pair};
use weft_stack::port::{FramePool, MIN_FRAME, Port, PortCaps, PortCounters, RxBurst, TxBurst};

/// Frames between the two threads; more frames wait in the fabric.
const RING: usize = 128;

/// The host's end of a link to the fabric.
///
/// It owns only as many buffers as frames may be ahead of the link. The fabric returns a buffer when the last
/// bit of its frame has left. So an endpoint with one buffer decides what to send at the moment at which the
/// link becomes free, as in simulation. With more buffers it decides that many frames earlier, and a late
/// turn of its loop does not leave the link idle.
#[derive(Debug)]
pub struct HostPort {
    inner: MemoryPort,
    pool: FramePool,
}

/// Makes a link in memory between a host and the fabric. Returns the host's end, with `ahead` buffers, and
/// the fabric's end. `mtu` is the maximum Ethernet payload in bytes.
///
/// # Errors
/// The MTU is out of range, or `ahead` is zero.
pub fn host_link(mtu: usize, mac: [u8; 6], ahead: usize) -> Result<(HostPort, MemoryPort), MemoryPortError> {
    // The fabric sends from its own buffers, and the host from `pool`, so the pair needs only one.
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
