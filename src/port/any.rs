//! Whichever port it is.

use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;
#[cfg(feature = "dpdk")]
use weft_stack::port::dpdk::DpdkPort;
use weft_stack::port::memif::MemifPort;
use weft_stack::port::memory::MemoryPort;
use weft_stack::port::udp::UdpPort;
use weft_stack::port::{FramePool, Port, PortCaps, PortCounters, RxBurst, TxBurst};
use weft_stack::region::SharedRegion;

/// Any port, behind one type: which it is costs a branch a burst.
#[derive(Debug)]
pub enum AnyPort {
    /// Kernel UDP.
    Udp(Box<UdpPort>),
    /// Memory shared with another process.
    Memif(Box<MemifPort>),
    /// A device of DPDK.
    #[cfg(feature = "dpdk")]
    Dpdk(Box<DpdkPort>),
    /// One end of a link in this process.
    Memory(Box<MemoryPort>),
}

impl AnyPort {
    /// Notices about the port for the user, one line each.
    pub fn notices(&self) -> Vec<String> {
        match self {
            AnyPort::Udp(port) => port.notices().iter().map(ToString::to_string).collect(),
            #[cfg(feature = "dpdk")]
            AnyPort::Dpdk(port) => port.notices().iter().map(ToString::to_string).collect(),
            AnyPort::Memif(_) | AnyPort::Memory(_) => Vec::new(),
        }
    }

    /// Waits until a peer is at the other end of the link, as far as the port can tell.
    ///
    /// # Errors
    /// The part of the link that is missing after `bound`.
    pub fn wait_for_link(&self, bound: Duration) -> Result<(), String> {
        match self {
            AnyPort::Memif(port) => port.wait_for_link(bound).map_err(|error| error.to_string()),
            #[cfg(feature = "dpdk")]
            AnyPort::Dpdk(port) => port.wait_for_link(bound).map_err(|error| error.to_string()),
            AnyPort::Udp(_) | AnyPort::Memory(_) => Ok(()),
        }
    }
}

macro_rules! each {
    ($port:expr, $inner:ident => $do:expr) => {
        match $port {
            AnyPort::Udp($inner) => $do,
            AnyPort::Memif($inner) => $do,
            #[cfg(feature = "dpdk")]
            AnyPort::Dpdk($inner) => $do,
            AnyPort::Memory($inner) => $do,
        }
    };
}

impl Port for AnyPort {
    #[inline]
    fn receive(&mut self, burst: &mut RxBurst) -> usize {
        each!(self, port => port.receive(burst))
    }

    #[inline]
    fn transmit(&mut self, burst: &mut TxBurst) -> usize {
        each!(self, port => port.transmit(burst))
    }

    fn capabilities(&self) -> PortCaps {
        each!(self, port => port.capabilities())
    }

    fn pool(&self) -> FramePool {
        each!(self, port => port.pool())
    }

    fn counters(&self) -> PortCounters {
        each!(self, port => port.counters())
    }

    fn waitable(&mut self) -> Option<BorrowedFd<'_>> {
        each!(self, port => port.waitable())
    }

    fn waited(&mut self) {
        each!(self, port => port.waited());
    }

    fn register(&mut self, memory: &SharedRegion) -> bool {
        each!(self, port => port.register(memory))
    }

    fn keep_peer(&mut self, peer: IpAddr) {
        each!(self, port => port.keep_peer(peer));
    }

    fn forget_peer(&mut self, peer: IpAddr) {
        each!(self, port => port.forget_peer(peer));
    }

    fn recall(&mut self) {
        each!(self, port => port.recall());
    }
}
