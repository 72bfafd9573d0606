//! DPDK: network cards without the kernel, and virtual devices (`net_ring`, `net_null`, `net_pcap`,
//! …) that need neither a card nor privileges nor huge pages.
//!
//! [`Eal::init`] starts DPDK, [`MbufPool::create`] makes the buffers, [`DpdkPort::open`] a port and
//! [`DpdkPort::ring_pair`] two that are joined. Built with the cargo feature `dpdk`.

mod device;
mod eal;
mod mbuf;
mod ring;

pub use eal::{Eal, EalOptions, LcoreGuard, LogLevel};
pub use mbuf::{Mbuf, MbufPool, MbufPoolConfig};
pub use weft_dpdk_sys::BUILD_VERSION;

use std::ffi::CStr;
use std::ptr::NonNull;
use std::sync::Arc;

use thiserror::Error;
use weft_dpdk_sys as sys;

use self::device::Device;
use self::ring::RingPair;
use super::{BURST, Frame, FramePool, Port, PortCaps, PortCounters, RxBurst, TxBurst};

/// How a port is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DpdkPortConfig {
    /// Longest Ethernet payload, bytes. The pool's buffers must hold it and an Ethernet header.
    pub mtu: u16,
    /// Frames that the device can hold until they are received; adjusted to what it supports.
    pub rx_descriptors: u16,
    /// Frames that the device can hold until they are sent; adjusted to what it supports.
    pub tx_descriptors: u16,
    /// Whether to receive frames for other Ethernet addresses as well.
    pub promiscuous: bool,
}

impl Default for DpdkPortConfig {
    /// MTU 9000, 1024 descriptors each way, own address only.
    fn default() -> DpdkPortConfig {
        DpdkPortConfig { mtu: 9000, rx_descriptors: 1024, tx_descriptors: 1024, promiscuous: false }
    }
}

/// A port over a device of DPDK, with one receive and one transmit queue. It has the device to
/// itself; dropping it stops the device, and unplugs it if opening it plugged it in.
#[derive(Debug)]
pub struct DpdkPort {
    // Dropped in this order: the device lets go of the rings first.
    device: Device,
    /// The rings behind a `net_ring` device; only kept alive.
    _rings: Option<Arc<RingPair>>,
    pool: MbufPool,
    caps: PortCaps,
    counters: PortCounters,
}

impl DpdkPort {
    /// Opens a device by its name, and plugs it in first if DPDK does not have it yet.
    ///
    /// `device` is a PCI address (`0000:3b:00.0`) or a virtual device with its arguments, as on
    /// DPDK's command line: `net_null0`, `net_pcap0,rx_pcap=in.pcap,tx_pcap=out.pcap`,
    /// `net_memif0,role=client`. Number the devices of one driver differently.
    pub fn open(
        eal: Eal,
        device: &str,
        pool: MbufPool,
        config: &DpdkPortConfig,
    ) -> Result<DpdkPort, DpdkError> {
        let (name, arguments) = device.split_once(',').unwrap_or((device, ""));
        let device = Device::plug(eal, name, arguments)?;
        DpdkPort::start(device, None, pool, config)
    }

    /// Opens a `net_pcap` device: receives the frames of one capture file and writes those sent to
    /// another. Either may be absent: then nothing arrives, or what is sent vanishes. Frames are in
    /// the file as soon as [`Port::transmit`] returns. `number` tells such devices apart.
    pub fn pcap(
        eal: Eal,
        number: u16,
        rx: Option<&str>,
        tx: Option<&str>,
        pool: MbufPool,
        config: &DpdkPortConfig,
    ) -> Result<DpdkPort, DpdkError> {
        let mut device = format!("net_pcap{number}");
        for (key, path) in [("rx_pcap", rx), ("tx_pcap", tx)] {
            let Some(path) = path else { continue };
            // DPDK's argument lists have no way to quote these.
            if path.contains([',', '[', ']', '"', '\'']) {
                return Err(DpdkError::Path(path.to_owned()));
            }
            device.push_str(&format!(",{key}={path}"));
        }
        DpdkPort::open(eal, &device, pool, config)
    }

    /// Two `net_ring` devices, `<name>a` and `<name>b`, joined back to back in this process. Each
    /// direction holds `frames` frames; the receiving end gets the very mbufs that
    /// were sent.
    pub fn ring_pair(
        eal: Eal,
        name: &str,
        frames: u32,
        pool: MbufPool,
        config: &DpdkPortConfig,
    ) -> Result<(DpdkPort, DpdkPort), DpdkError> {
        let rings = Arc::new(RingPair::create(eal, name, frames)?);
        let open = |suffix: &str, rx, tx| {
            // SAFETY: the port keeps the rings alive behind its device. Each ring has one device at
            // either end, and only these put mbufs in, which they own (`transmit`).
            let device = unsafe { Device::from_rings(eal, &format!("{name}{suffix}"), rx, tx) }?;
            DpdkPort::start(device, Some(Arc::clone(&rings)), pool, config)
        };
        let a = open("a", rings.b_to_a(), rings.a_to_b())?;
        let b = open("b", rings.a_to_b(), rings.b_to_a())?;
        Ok((a, b))
    }

    fn start(
        mut device: Device,
        rings: Option<Arc<RingPair>>,
        pool: MbufPool,
        config: &DpdkPortConfig,
    ) -> Result<DpdkPort, DpdkError> {
        let caps = device.start(&pool, config)?;
        Ok(DpdkPort { device, _rings: rings, pool, caps, counters: PortCounters::default() })
    }

    /// The pointers of the frames at the front of the burst, and how many those are: all of them,
    /// unless one that is no mbuf could not be copied into one.
    fn mbufs(&self, burst: &mut TxBurst, raw: &mut [*mut sys::rte_mbuf; BURST]) -> u16 {
        let mut count = 0;
        for (frame, slot) in burst.frames_mut().iter_mut().zip(raw) {
            if frame.as_mbuf().is_none() {
                let Some(copy) = self.pool.allocate(frame.len()).map(Frame::from) else { break };
                let original = std::mem::replace(frame, copy);
                frame.copy_from_slice(&original);
            }
            let Some(mbuf) = frame.as_mbuf() else { break };
            *slot = mbuf.as_ptr();
            count += 1;
        }
        count
    }
}

impl Port for DpdkPort {
    #[inline]
    fn receive(&mut self, burst: &mut RxBurst) -> usize {
        let mut raw = [std::ptr::null_mut(); BURST];
        let room = burst.room() as u16;
        // SAFETY: the device is started and ours; `raw` has place for BURST pointers, and a burst
        // never has room for more.
        let count = unsafe { sys::weft_rte_eth_rx_burst(self.device.id(), 0, raw.as_mut_ptr(), room) };
        let mut delivered = 0;
        for raw in raw.iter().take(usize::from(count)).filter_map(|raw| NonNull::new(*raw)) {
            // SAFETY: what a receive queue hands out is valid and belongs to the receiver.
            let mbuf = unsafe { Mbuf::from_raw(raw) };
            let Some(mbuf) = mbuf.filter(|mbuf| mbuf.len() <= self.caps.max_frame) else {
                self.counters.rx_errors += 1;
                continue;
            };
            self.counters.received(&mbuf);
            let pushed = burst.push(Frame::from(mbuf));
            debug_assert!(pushed.is_ok(), "no more than there is room for");
            delivered += 1;
        }
        delivered
    }

    #[inline]
    fn transmit(&mut self, burst: &mut TxBurst) -> usize {
        let refused = burst.drop_longer_than(self.caps.max_frame);
        self.counters.tx_errors += refused as u64;
        let mut raw = [std::ptr::null_mut(); BURST];
        let count = self.mbufs(burst, &mut raw);
        // From here on, the first `sent` mbufs may be anywhere: their lengths are counted before.
        let mut lengths = [0u16; BURST];
        for (length, frame) in lengths.iter_mut().zip(burst.iter()) {
            *length = frame.len() as u16;
        }
        // SAFETY: the device is started and ours; the first `count` pointers are mbufs owned by the
        // burst, and the device takes over those that it reports as sent.
        let sent = unsafe { sys::weft_rte_eth_tx_burst(self.device.id(), 0, raw.as_mut_ptr(), count) };
        let sent = usize::from(sent);
        for frame in burst.take_front(sent) {
            // Now the device's.
            std::mem::forget(frame.into_mbuf());
        }
        self.counters.tx_frames += sent as u64;
        self.counters.tx_bytes += lengths[..sent].iter().map(|length| u64::from(*length)).sum::<u64>();
        refused + sent
    }

    fn capabilities(&self) -> PortCaps {
        self.caps
    }

    fn pool(&self) -> FramePool {
        FramePool::from(self.pool)
    }

    fn counters(&self) -> PortCounters {
        PortCounters { rx_missed: self.device.missed(), ..self.counters }
    }
}

/// Why DPDK could not be started, or a pool or port not be made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DpdkError {
    /// DPDK runs already, with other options; it starts once in a process.
    #[error("DPDK runs already in this process, with other options")]
    AlreadyStarted,
    /// A name or an argument cannot be handed to C.
    #[error("a name or argument contains a NUL byte")]
    NulByte,
    /// A call failed.
    #[error("{call}: {reason}")]
    Call {
        /// The function of DPDK.
        call: &'static str,
        /// What DPDK says about it.
        reason: String,
    },
    /// The device could not be plugged in.
    #[error("device {device} cannot be added: {reason}")]
    Plug {
        /// Its name.
        device: String,
        /// What DPDK says about it.
        reason: String,
    },
    /// The device was plugged in but is no Ethernet port.
    #[error("device {device} is no Ethernet port")]
    NoPort {
        /// Its name.
        device: String,
    },
    /// Another [`DpdkPort`] has the device.
    #[error("device {device} is open already")]
    InUse {
        /// Its name.
        device: String,
    },
    /// The pool's buffers cannot hold the longest frame.
    #[error("buffers of {buffer} bytes cannot hold frames of {frame}: choose a pool with larger ones")]
    BufferTooSmall {
        /// Bytes of a frame that a buffer can hold.
        buffer: usize,
        /// Bytes of the longest frame.
        frame: usize,
    },
    /// Buffers of this size and their headroom do not fit the 16-bit length of an mbuf.
    #[error("a buffer of {0} bytes and its headroom exceed 65535")]
    BufferSize(u16),
    /// The device does not support this MTU.
    #[error("an MTU of {mtu} is not between the device's {min} and {max}")]
    Mtu {
        /// The MTU asked for.
        mtu: u16,
        /// The least that the device supports.
        min: u16,
        /// The largest that the device supports.
        max: u16,
    },
    /// DPDK's device arguments cannot express this path.
    #[error("the path {0:?} has characters that device arguments cannot express")]
    Path(String),
    /// A ring's length is not one that DPDK can make.
    #[error("a ring cannot have {0} places")]
    RingSize(u32),
}

impl DpdkError {
    /// The failure that the calling thread's `rte_errno` describes.
    fn from_errno(call: &'static str) -> DpdkError {
        // SAFETY: only reads a variable of the thread.
        let code = unsafe { sys::weft_rte_errno() };
        DpdkError::Call { call, reason: describe(code) }
    }

    /// The failure that a negative result describes.
    fn from_code(call: &'static str, result: i32) -> DpdkError {
        DpdkError::Call { call, reason: describe(-result) }
    }
}

/// DPDK's words for an error number.
fn describe(code: i32) -> String {
    // SAFETY: returns a C string of this thread or of the program, valid until the thread's next
    // call; it is copied at once.
    unsafe { CStr::from_ptr(sys::rte_strerror(code)) }.to_string_lossy().into_owned()
}
