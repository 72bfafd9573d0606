//! Where packets enter and leave: Ethernet frames, in bursts, over memory, memif, DPDK, kernel UDP or any other
//! implementation of [`Port`].
//!
//! A [`Frame`] owns one buffer of a [`FramePool`] and gives it back when dropped, on any thread. A
//! worker's loop is:
//!
//! ```
//! use weft_stack::port::{Port, RxBurst, TxBurst, memory};
//!
//! let (mut here, mut there) = memory::pair(&memory::MemoryConfig::default())?;
//! let (mut rx, mut tx) = (RxBurst::new(), TxBurst::new(&here));
//!
//! let mut frame = tx.reserve(64)?;          // a buffer that the port can send from,
//! frame.fill(0);                            // headers and payload are written straight into it,
//! frame.commit();                           // and it stands in the burst
//! here.transmit(&mut tx);                   // frames that the port had no room for are still in `tx`
//!
//! there.receive(&mut rx);
//! for frame in rx.drain() {
//!     assert_eq!(frame.len(), 64);          // `frame` is a slice of the port's buffer: no copy
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Nothing on this path allocates memory, locks or makes system calls, unless the device behind the
//! port does. Frames are whole Ethernet frames without preamble and frame check sequence.

use std::net::IpAddr;
use std::os::fd::BorrowedFd;

mod attachment;
mod batch_arc;
mod borrowed;
mod burst;
mod frame;

#[cfg(feature = "dpdk")]
pub mod dpdk;
pub mod faulty;
pub mod memif;
pub mod memory;
pub mod udp;

use crate::region::SharedRegion;

pub use attachment::Attachment;
pub use burst::{Payloads, PushError, Reservation, ReserveError, RxBurst, TxBurst};
pub use frame::{ChecksumOffload, ChecksumStatus, Frame, FramePool, PoolError};

/// The most frames of a burst.
pub const BURST: usize = 32;

/// Bytes of an Ethernet header, which is also the shortest frame that a port accepts. Several
/// network cards stop their transmit queue when handed less. Padding to 60 bytes is the card's job.
pub const MIN_FRAME: usize = 14;

/// One end of a link.
///
/// A port has one user at a time (`&mut self`) but may move between threads if it is [`Send`].
pub trait Port {
    /// Appends frames that have arrived to `burst`, in order of arrival, as many as it has room for. Returns how many.
    /// Never waits.
    ///
    /// Some device drivers work in groups of frames and deliver nothing into a burst that is nearly
    /// full: empty the burst before each call.
    fn receive(&mut self, burst: &mut RxBurst) -> usize;

    /// Takes frames from the front of `burst`, in order, and sends them. Returns how many it took.
    /// Never waits.
    ///
    /// Frames that the port has no room for stay in the burst: call again later. A frame longer than
    /// [`PortCaps::max_frame`], or with attached payload that the port cannot send (only possible in a burst made for
    /// another port), can never be sent: it is dropped and counted in [`PortCounters::tx_errors`]. Without a link,
    /// frames that stay would make their sender wait for a peer that may never come: a port that knows that it has no
    /// link drops them, counted in [`PortCounters::tx_no_link`]. DPDK ports leave that to their drivers.
    fn transmit(&mut self, burst: &mut TxBurst) -> usize;

    /// The capabilities of the port. Constant as long as it is open.
    fn capabilities(&self) -> PortCaps;

    /// The pool from which frames for this port are best allocated. [`TxBurst::new`] uses it.
    ///
    /// Frames of other pools are sent as well; a port that cannot send from their memory copies them.
    fn pool(&self) -> FramePool;

    /// Counts of frames and bytes since the port was opened.
    fn counters(&self) -> PortCounters;

    /// Prepares to wait for a frame, and returns a descriptor that becomes readable when one arrives; `None` if the
    /// port cannot announce frames. Wait for it with `poll` or `epoll`, but only after another [`Port::receive`] has
    /// returned nothing: frames that arrived before this call may go unannounced. May be called again before the
    /// wait.
    fn waitable(&mut self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Ends a wait, or cancels it: the port need not announce frames any more.
    fn waited(&mut self) {}

    /// Shares `memory` with the receiver of frames, so that payload [attached](Reservation::attach) from there need
    /// not be copied. Returns whether the port can do that; if it cannot, such payload is sent all the same. Call it
    /// before there is traffic: frames on their way may be lost. Memory stays registered as long as the port is open.
    ///
    /// **The receiver of the frames can read and write all of this memory from then on.**
    fn register(&mut self, memory: &SharedRegion) -> bool {
        let _ = memory;
        false
    }

    /// The sender of frames from `peer` was entered in the address book: the port must go on to tell it from others.
    fn keep_peer(&mut self, peer: IpAddr) {
        let _ = peer;
    }

    /// The address book has forgotten `peer`. The port may forget it too.
    fn forget_peer(&mut self, peer: IpAddr) {
        let _ = peer;
    }

    /// Recalls frames whose attached memory is about to change. Frames that have not been received yet, and that the
    /// port can still stop, no longer arrive. May wait, but not for long.
    fn recall(&mut self) {}
}

/// The capabilities of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortCaps {
    /// Longest frame sent or received, bytes from the destination address to the end of the payload.
    pub max_frame: usize,
    /// The port's own Ethernet address.
    pub mac: [u8; 6],
    /// Computes the IPv4 header checksum of frames that ask for it ([`Frame::offload_checksums`]).
    pub tx_ipv4_checksum: bool,
    /// Computes the UDP checksum of frames that ask for it.
    pub tx_udp_checksum: bool,
    /// Verifies the checksums of frames that arrive ([`Frame::checksum_status`]).
    pub rx_checksum: bool,
    /// Can send a frame from several buffers: payload is attached without a copy
    /// ([`Reservation::attach`]).
    pub multi_segment: bool,
    /// Who says when a frame arrived ([`Frame::waited`]).
    pub timestamps: Timestamps,
    /// Frames go from the sender's memory to the receiver's and over no wire: nothing can damage them, unless the
    /// receiver forwards them over a wire.
    pub in_memory: bool,
}

impl PortCaps {
    /// Longest Ethernet payload (the IP packet), bytes.
    pub fn mtu(&self) -> usize {
        self.max_frame - MIN_FRAME
    }
}

/// Who measures when a frame arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timestamps {
    /// Nobody: a frame counts as arrived when the worker reads the burst that it is in.
    Burst,
    /// The kernel, when it takes the frame from its driver.
    Kernel,
}

/// Counts of a port since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Frames delivered into bursts.
    pub rx_frames: u64,
    /// Bytes of these frames.
    pub rx_bytes: u64,
    /// Frames that arrived but were dropped: too long, in several buffers, or damaged.
    pub rx_errors: u64,
    /// Frames that the device lost for want of buffers or of queue space.
    pub rx_missed: u64,
    /// Frames taken from bursts and sent.
    pub tx_frames: u64,
    /// Bytes of these frames.
    pub tx_bytes: u64,
    /// Frames taken from bursts and dropped, because they can never be sent.
    pub tx_errors: u64,
    /// Frames taken from bursts and dropped, because the port knew of no link.
    pub tx_no_link: u64,
}

impl PortCounters {
    /// Counts one frame as received.
    #[inline]
    pub fn received(&mut self, frame: &[u8]) {
        self.rx_frames += 1;
        self.rx_bytes += frame.len() as u64;
    }

    /// Counts one frame as sent.
    #[inline]
    pub fn sent(&mut self, frame: &[u8]) {
        self.tx_frames += 1;
        self.tx_bytes += frame.len() as u64;
    }
}
