//! The rings between a pair of `net_ring` devices.

use std::ffi::CString;
use std::ptr::NonNull;

use weft_dpdk_sys as sys;

use super::{DpdkError, Eal};

/// Rings of mbufs, one for each queue and direction.
#[derive(Debug)]
pub(super) struct RingPair {
    a_to_b: Vec<Ring>,
    b_to_a: Vec<Ring>,
}

impl RingPair {
    /// Makes rings for `frames` mbufs each. The name must be new in this process.
    pub(super) fn create(eal: Eal, name: &str, queues: u16, frames: u32) -> Result<RingPair, DpdkError> {
        let rings = |way: &str| -> Result<Vec<Ring>, DpdkError> {
            (0..queues).map(|queue| Ring::create(eal, &format!("{name}.{way}{queue}"), frames)).collect()
        };
        Ok(RingPair { a_to_b: rings("ab")?, b_to_a: rings("ba")? })
    }

    /// The rings from the first device to the second. Valid as long as `self` lives.
    pub(super) fn a_to_b(&self) -> Vec<*mut sys::rte_ring> {
        self.a_to_b.iter().map(|ring| ring.0.as_ptr()).collect()
    }

    /// The rings from the second device to the first. Valid as long as `self` lives.
    pub(super) fn b_to_a(&self) -> Vec<*mut sys::rte_ring> {
        self.b_to_a.iter().map(|ring| ring.0.as_ptr()).collect()
    }
}

/// A ring that owns the mbufs in it.
#[derive(Debug)]
struct Ring(NonNull<sys::rte_ring>);

// SAFETY: DPDK's rings are not tied to the thread that made them. While a device has the ring, only the device uses it;
// `drop` uses it once both devices are gone, and then from one thread.
unsafe impl Send for Ring {}
// SAFETY: all that `&Ring` gives is the address: nothing accesses the ring through a shared reference.
unsafe impl Sync for Ring {}

impl Ring {
    fn create(_eal: Eal, name: &str, frames: u32) -> Result<Ring, DpdkError> {
        if frames == 0 || frames > sys::WEFT_RING_SZ_MASK {
            return Err(DpdkError::RingSize(frames));
        }
        let name = CString::new(name).map_err(|_| DpdkError::NulByte)?;
        // Without EXACT_SZ the size must be a power of two, and the ring holds one less.
        let flags = sys::WEFT_RING_F_SP_ENQ | sys::WEFT_RING_F_SC_DEQ | sys::WEFT_RING_F_EXACT_SZ;
        // SAFETY: DPDK runs (`_eal`), and the name is a C string, which it copies.
        let raw = unsafe { sys::rte_ring_create(name.as_ptr(), frames, sys::WEFT_SOCKET_ID_ANY, flags) };
        NonNull::new(raw).map(Ring).ok_or_else(|| DpdkError::from_errno("rte_ring_create"))
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let mut object = std::ptr::null_mut();
        // SAFETY: no device uses the ring any more, and it holds nothing but mbufs that were sent,
        // which now belong to it.
        unsafe {
            while sys::weft_rte_ring_dequeue(self.0.as_ptr(), &mut object) == 0 {
                sys::weft_rte_pktmbuf_free(object.cast());
            }
            sys::rte_ring_free(self.0.as_ptr());
        }
    }
}
