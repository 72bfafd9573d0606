//! DPDK: network cards without the kernel, and virtual devices (`net_ring`, `net_null`, `net_pcap`,
//! …) that need neither a card nor privileges nor huge pages.
//!
//! [`Eal::init`] starts DPDK, [`MbufPool::create`] makes the buffers, [`DpdkPort::open`] a port,
//! [`DpdkPort::open_queues`] one for each queue of a device, and [`DpdkPort::ring_pair`] two that are joined.
//! Built with the cargo feature `dpdk`.

mod alarm;
mod chain;
mod device;
mod eal;
mod error;
mod facts;
mod interface;
mod mbuf;
mod needs;
mod ring;
mod stale;

pub use eal::{Eal, EalOptions, LcoreGuard, LogLevel};
pub use error::DpdkError;
pub use facts::{DeviceFacts, Notice, buffer_size_for};
pub(super) use mbuf::{KeptMbufs, ReturnedMbufs};
pub use mbuf::{Mbuf, MbufPool, MbufPoolConfig};
pub use weft_dpdk_sys::BUILD_VERSION;

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_cc::Rate;
use weft_dpdk_sys as sys;

use self::alarm::Alarm;
use self::chain::DropLater;
use self::device::Device;
use self::ring::RingPair;
use super::{BURST, Frame, FramePool, Port, PortCaps, PortCounters, RxBurst, TxBurst};

/// Options for opening a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DpdkPortConfig {
    /// Longest Ethernet payload, bytes. The pool's buffers must hold it and an Ethernet header.
    pub mtu: u16,
    /// Whether frames may have a VLAN tag, which makes them 4 bytes longer than `mtu` and the header.
    pub tagged: bool,
    /// Whether a device that cannot carry `mtu` is opened with its largest MTU instead of being refused.
    pub or_less: bool,
    /// Capacity of a receive queue, frames; adjusted to a number that the device supports.
    pub rx_descriptors: u16,
    /// Capacity of a transmit queue, frames; adjusted to a number that the device supports.
    pub tx_descriptors: u16,
    /// Whether to receive frames for other Ethernet addresses as well.
    pub promiscuous: bool,
    /// Whether to switch on receive interrupts where the device has them, so that workers can sleep
    /// ([`Port::waitable`]).
    pub interrupts: bool,
    /// How long opening a client of `net_memif` waits for its server's socket file. The link comes up later: see
    /// [`DpdkPort::wait_for_link`].
    pub peer_wait: Duration,
}

impl Default for DpdkPortConfig {
    /// MTU 9000, no tags, 1024 descriptors each way, own address only, interrupts on, no wait.
    fn default() -> DpdkPortConfig {
        let (rx_descriptors, tx_descriptors) = (1024, 1024);
        DpdkPortConfig {
            mtu: 9000,
            tagged: false,
            or_less: false,
            rx_descriptors,
            tx_descriptors,
            promiscuous: false,
            interrupts: true,
            peer_wait: Duration::ZERO,
        }
    }
}

/// How a receive queue is chosen for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// By the device, from IP addresses alone, with the key that [`Steering`](crate::worker::Steering) assumes: all
    /// packets of one peer arrive in one queue, whatever path they took. Devices that cannot do that are refused.
    Addresses,
    /// By the sender, or by the device in its own way: for links on which the sender's queue decides (`net_ring`,
    /// `net_memif`), for traffic generators, and for applications that do not care.
    Any,
}

/// Interval at which [`DpdkPort::wait_for_link`] checks the link.
const LINK_POLL: Duration = Duration::from_millis(1);

/// A port over one receive and one transmit queue of a device of DPDK, which nothing else uses. Dropping the ports of
/// all queues stops the device, and unplugs it if opening plugged it in.
#[derive(Debug)]
pub struct DpdkPort {
    // Field order is drop order: the device releases the rings first.
    device: Arc<Device>,
    /// The rings behind a `net_ring` device, kept alive.
    _rings: Option<Arc<RingPair>>,
    queue: u16,
    pool: MbufPool,
    caps: PortCaps,
    counters: PortCounters,
    gathered: u64,
    /// Wakes a worker that waits for frames, if the device has receive interrupts.
    alarm: Option<Alarm>,
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
        let mut ports = DpdkPort::open_queues(eal, device, 1, Spread::Any, pool, config)?;
        Ok(ports.remove(0))
    }

    /// Opens a device with `queues` receive queues and as many transmit queues, and returns a port for each in order,
    /// for as many workers. See [`open`](Self::open).
    pub fn open_queues(
        eal: Eal,
        device: &str,
        queues: u16,
        spread: Spread,
        pool: MbufPool,
        config: &DpdkPortConfig,
    ) -> Result<Vec<DpdkPort>, DpdkError> {
        let (name, arguments) = device.split_once(',').unwrap_or((device, ""));
        let device = Device::plug(eal, name, arguments)?;
        DpdkPort::start(device, None, queues, spread, pool, config)
    }

    /// Opens a `net_pcap` device: it receives the frames of one capture file and writes sent frames to another. Either
    /// file may be absent: then nothing arrives, or sent frames are discarded. A frame is in the file as soon as
    /// [`Port::transmit`] returns. `number` distinguishes such devices.
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
            // DPDK's argument lists cannot quote these characters.
            if path.contains([',', '[', ']', '"', '\'']) {
                return Err(DpdkError::Path(path.to_owned()));
            }
            device.push_str(&format!(",{key}={path}"));
        }
        DpdkPort::open(eal, &device, pool, config)
    }

    /// Two `net_ring` devices, `<name>a` and `<name>b`, joined back to back in this process. Each direction holds
    /// `frames` frames. The receiver gets the very mbufs that were sent, except that a frame with attached payload is
    /// gathered into a new mbuf.
    pub fn ring_pair(
        eal: Eal,
        name: &str,
        frames: u32,
        pool: MbufPool,
        config: &DpdkPortConfig,
    ) -> Result<(DpdkPort, DpdkPort), DpdkError> {
        let mut links = DpdkPort::ring_pairs(eal, name, 1, frames, pool, config)?;
        Ok(links.remove(0))
    }

    /// The same with `queues` queues each way: frames sent into one end's queue are received from the other end's
    /// queue of the same number. Each pair of ports is one queue of both devices.
    pub fn ring_pairs(
        eal: Eal,
        name: &str,
        queues: u16,
        frames: u32,
        pool: MbufPool,
        config: &DpdkPortConfig,
    ) -> Result<Vec<(DpdkPort, DpdkPort)>, DpdkError> {
        let rings = Arc::new(RingPair::create(eal, name, queues, frames)?);
        let open = |suffix: &str, rx: &[_], tx: &[_]| {
            // SAFETY: the ports keep the rings alive behind their device. Each ring has one device at
            // either end, and only these put mbufs in, which they own (`transmit`).
            let device = unsafe { Device::from_rings(eal, &format!("{name}{suffix}"), rx, tx) }?;
            DpdkPort::start(device, Some(Arc::clone(&rings)), queues, Spread::Any, pool, config)
        };
        let a = open("a", &rings.b_to_a(), &rings.a_to_b())?;
        let b = open("b", &rings.a_to_b(), &rings.b_to_a())?;
        Ok(a.into_iter().zip(b).collect())
    }

    fn start(
        mut device: Device,
        rings: Option<Arc<RingPair>>,
        queues: u16,
        spread: Spread,
        pool: MbufPool,
        config: &DpdkPortConfig,
    ) -> Result<Vec<DpdkPort>, DpdkError> {
        let caps =
            device.start(&pool, queues, spread, config).map_err(|error| error.of_device(device.name()))?;
        let device = Arc::new(device);
        let DeviceFacts { driver, max_mtu, queues: most_queues, .. } = device.facts();
        let (name, mtu, link_up) = (device.name(), config.mtu, device.link_is_up());
        tracing::info!(name, driver, mtu, max_mtu, queues, most_queues, link_up, "DPDK device opened");
        let port = |queue| DpdkPort {
            device: Arc::clone(&device),
            _rings: rings.clone(),
            queue,
            pool,
            caps,
            counters: PortCounters::default(),
            gathered: 0,
            alarm: device.alarm(queue),
        };
        Ok((0..queues).map(port).collect())
    }

    /// The device's properties.
    pub fn facts(&self) -> &DeviceFacts {
        self.device.facts()
    }

    /// Remarks for the user, such as work that is done in software because the device does not do it.
    pub fn notices(&self) -> Vec<Notice> {
        self.device.facts().notices(&self.caps)
    }

    /// Number of this port's queue, from 0.
    pub fn queue(&self) -> u16 {
        self.queue
    }

    /// Number of frames that arrived in several buffers and were copied into one.
    pub fn gathered(&self) -> u64 {
        self.gathered
    }

    /// How many waits a frame has ended ([`Port::waitable`]).
    pub fn woken(&self) -> u64 {
        self.alarm.as_ref().map_or(0, Alarm::woken)
    }

    /// Whether the link is up: the cable is plugged, or a virtual device's peer is there.
    pub fn link_is_up(&self) -> bool {
        self.device.link_is_up()
    }

    /// The rate of the link, for congestion control, if it is known: only for PCI devices whose link is up and whose
    /// driver reads the rate. The constants that virtual devices report are ignored.
    pub fn link_rate(&self) -> Option<Rate> {
        self.device.link_rate()
    }

    /// Waits until the link is up, at most `bound`.
    ///
    /// # Errors
    /// The link is still down; the error says what is missing.
    pub fn wait_for_link(&self, bound: Duration) -> Result<(), DpdkError> {
        let begin = Instant::now();
        while !self.link_is_up() {
            if begin.elapsed() >= bound {
                return Err(self.device.no_link(bound));
            }
            std::thread::sleep(LINK_POLL);
        }
        Ok(())
    }

    /// Writes the pointers of the frames at the front of the burst to `raw` and their lengths to `lengths`, and returns
    /// their number: all of them, unless a frame that is no mbuf could not be copied into one.
    #[inline]
    fn mbufs(
        &self,
        burst: &mut TxBurst,
        raw: &mut [*mut sys::rte_mbuf; BURST],
        lengths: &mut [u16; BURST],
    ) -> u16 {
        let mut count = 0;
        for ((frame, slot), length) in burst.frames_mut().iter_mut().zip(raw).zip(lengths) {
            if frame.as_mbuf().is_none() {
                let Some(copy) = frame.gather(&FramePool::from(self.pool)) else { break };
                *frame = copy;
            }
            let Some(mbuf) = frame.as_mbuf() else { break };
            *slot = mbuf.as_ptr();
            *length = mbuf.total_len() as u16;
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
        // SAFETY: the device is started and the queue ours; `raw` has place for BURST pointers, and a
        // burst never has room for more.
        let count =
            unsafe { sys::weft_rte_eth_rx_burst(self.device.id(), self.queue, raw.as_mut_ptr(), room) };
        if let Some(alarm) = &mut self.alarm {
            alarm.record_poll(count > 0);
        }
        let mut delivered = 0;
        let pieces = if burst.takes_tails() { 2 } else { 1 };
        for raw in raw.iter().take(usize::from(count)).filter_map(|raw| NonNull::new(*raw)) {
            // SAFETY: the pointers that `rx_burst` has written are valid mbufs, whose first segment is their own
            // buffer, and which the driver has given up to the caller. Each is taken once.
            let mbuf = unsafe { Mbuf::from_raw(raw) };
            let Some((mbuf, copied)) = mbuf.within_segments(pieces, &self.pool, self.caps.max_frame) else {
                self.counters.rx_errors += 1;
                continue;
            };
            self.gathered += u64::from(copied);
            self.counters.rx_frames += 1;
            self.counters.rx_bytes += mbuf.total_len() as u64;
            let pushed = burst.push(Frame::from(mbuf));
            debug_assert!(pushed.is_ok(), "the burst has room for every frame");
            delivered += 1;
        }
        delivered
    }

    #[inline]
    fn transmit(&mut self, burst: &mut TxBurst) -> usize {
        if burst.is_empty() {
            return 0;
        }
        let refused = burst.drop_unsendable(self.caps.max_frame, self.caps.multi_segment);
        self.counters.tx_errors += refused as u64;
        let mut raw = [std::ptr::null_mut(); BURST];
        // The lengths are read before the call, because afterwards the first `sent` mbufs may be gone.
        let mut lengths = [0u16; BURST];
        let count = self.mbufs(burst, &mut raw, &mut lengths);
        let kept = DropLater::begin();
        // SAFETY: the device is started and the queue ours; the first `count` pointers are mbufs owned by the
        // burst, and the device takes over those that it reports as sent.
        let sent =
            unsafe { sys::weft_rte_eth_tx_burst(self.device.id(), self.queue, raw.as_mut_ptr(), count) };
        drop(kept);
        // `net_memif` answers −1 when the link goes down while it sends: it has then freed an unknown number of mbufs.
        let sent = usize::from(sent.min(count));
        // They are mbufs, and the device's own now.
        burst.take_front(sent).for_each(|frame| {
            debug_assert!(frame.as_mbuf().is_some(), "another frame's memory would be lost");
            std::mem::forget(frame);
        });
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
        // The device does not count these by queue.
        let rx_missed = if self.queue == 0 { self.device.missed() } else { 0 };
        PortCounters { rx_missed, ..self.counters }
    }

    /// The descriptor of the receive interrupts, unless they have proved unreliable: see [`DeviceFacts::interrupts`].
    fn waitable(&mut self) -> Option<BorrowedFd<'_>> {
        let (device, queue) = (&self.device, self.queue);
        let fd = self.alarm.as_mut()?.arm(|| device.interrupt(queue, true))?;
        // SAFETY: `fd` is a descriptor of the driver, which keeps it open as long as the device is started.
        // `self.device` keeps the device started, and the result borrows `self`.
        Some(unsafe { BorrowedFd::borrow_raw(fd) })
    }

    fn waited(&mut self) {
        let (device, queue) = (&self.device, self.queue);
        if let Some(alarm) = &mut self.alarm {
            alarm.disarm(|| {
                device.interrupt(queue, false);
            });
        }
    }
}
