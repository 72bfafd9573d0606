//! Properties of a device as its driver reports them, what weft derives from them, and corrections where drivers
//! report something untrue.

use std::ffi::CStr;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::Path;

use weft_cc::Rate;
use weft_dpdk_sys as sys;

use super::DpdkError;
use super::interface::{argument, interface_mtu};
use crate::port::{MIN_FRAME, PortCaps, Timestamps};
use crate::worker::Idle;

/// The MTU of standard Ethernet, bytes.
const ETHERNET_MTU: u16 = 1500;

/// Bytes that DPDK adds to the MTU for the length of a frame, unless the driver says otherwise: the header and the
/// frame check sequence.
const OVERHEAD: u32 = MIN_FRAME as u32 + 4;

/// Bytes before the Ethernet header in a frame of the kernel's packet rings: struct tpacket2_hdr and sockaddr_ll,
/// padded so that the bytes after the Ethernet header are aligned to 16.
const PACKET_RING_HEADER: u32 = 66;

/// Bytes of a frame of the packet rings unless `framesz` says otherwise.
const PACKET_RING_FRAME: u32 = 2048;

/// Bytes of struct tpacket2_hdr.
const TPACKET2_HEADER: u32 = 32;

/// Bytes of a chunk of XDP that hold no frame: the header of the pool's object, the mbuf, and headroom.
const XDP_BESIDE: usize = 64 + 128 + 128;

/// Bytes that a pool may add to its objects.
const CACHE_LINE: usize = 64;

/// Bytes of a buffer of `net_memif` unless `bsize` says otherwise.
const MEMIF_BUFFER: u32 = 2048;

/// Bytes of a buffer that virtio drivers need beyond the MTU: Ethernet's header, a VLAN tag, and the device's own
/// header of 12 bytes.
const VIRTIO_OVERHEAD: usize = MIN_FRAME + 4 + 12;

/// Some cards count the size of a buffer in KiB, rounded down (Intel 82599, SRRCTL.BSIZEPACKET): a frame that does not
/// fit then arrives in two buffers.
const CARD_UNIT: usize = 1024;

/// Properties of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Name of its driver, such as `net_memif`.
    pub driver: String,
    /// The least MTU, bytes.
    pub min_mtu: u16,
    /// The largest MTU, bytes; above 1500 for jumbo frames.
    pub max_mtu: u16,
    /// The largest number of receive queues, each with a transmit queue.
    pub queues: u16,
    /// Bytes that each buffer must hold at least, whatever the MTU.
    pub min_buffer: usize,
    /// Bytes that each buffer may hold at most.
    pub max_buffer: usize,
    /// Whether it can hash over IP addresses alone to choose a receive queue.
    pub hashes_addresses: bool,
    /// Bytes of the key of that hash; 0 if the device does not report it.
    pub hash_key: u8,
    /// Whether it sends frames from several buffers.
    pub multi_segment: bool,
    /// Whether it stamps frames with their time of arrival.
    pub timestamps: bool,
    /// Whether it raises interrupts for received frames, so that a worker can sleep until one arrives. Known once the
    /// device has started, because some drivers refuse only then.
    pub interrupts: bool,
    /// The kernel's interface below the device, if there is one with an MTU of its own.
    pub interface: Option<String>,
}

impl DeviceFacts {
    /// Reads the properties from `info`, for frames with a VLAN tag of `tag` bytes.
    pub(super) fn read(info: &sys::rte_eth_dev_info, arguments: &str, tag: usize) -> DeviceFacts {
        let driver = driver_of(info);
        let interface = match driver.as_str() {
            "net_af_packet" | "net_af_xdp" => argument(arguments, "iface").map(str::to_owned),
            _ => None,
        };
        DeviceFacts {
            min_mtu: info.min_mtu,
            max_mtu: max_mtu(&driver, info, arguments, interface.as_deref(), tag),
            min_buffer: *buffers(&driver, arguments).start(),
            max_buffer: *buffers(&driver, arguments).end(),
            queues: info.max_rx_queues.min(info.max_tx_queues),
            hashes_addresses: info.flow_type_rss_offloads & sys::WEFT_RSS_ADDRESSES != 0,
            hash_key: info.hash_key_size,
            multi_segment: info.tx_offload_capa & sys::WEFT_TX_OFFLOAD_MULTI_SEGS != 0,
            timestamps: info.rx_offload_capa & sys::WEFT_RX_OFFLOAD_TIMESTAMP != 0,
            interrupts: false,
            driver,
            interface,
        }
    }

    /// Whether `buffer` bytes hold frames of `mtu` and `tag` bytes.
    pub(super) fn check_buffers(
        &self,
        device: &str,
        buffer: usize,
        mtu: u16,
        tag: usize,
    ) -> Result<(), DpdkError> {
        let min = self.min_buffer.max(longest_frame(&self.driver, mtu) + tag);
        if (min..=self.max_buffer).contains(&buffer) {
            return Ok(());
        }
        Err(DpdkError::Buffers { device: device.to_owned(), buffer, min, max: self.max_buffer })
    }

    /// Whether payload can be attached: the device sends from several buffers, and reads the same memory as the CPU.
    /// Network cards read only memory that has been mapped for them, and payload is not.
    pub(super) fn attaches(&self) -> bool {
        const VIRTUAL: [&str; 5] = ["net_ring", "net_memif", "net_af_packet", "net_tap", "net_pcap"];
        self.multi_segment && VIRTUAL.contains(&self.driver.as_str())
    }

    /// Whether frames only move within memory.
    pub(super) fn is_in_memory(&self) -> bool {
        matches!(self.driver.as_str(), "net_ring" | "net_memif")
    }

    /// Whether DPDK's interrupt thread takes the link down when the peer leaves. Closing the device does so too, and
    /// the two must not run at the same time. (`memif_disconnect` of `net_memif` frees the shared memory and
    /// the connection's state.)
    pub(super) fn frees_state_when_the_peer_leaves(&self) -> bool {
        self.driver == "net_memif"
    }

    /// Whether to ask the driver for receive interrupts. `net_e1000_em` of DPDK 22.11 claims them, but never tells a
    /// card with MSI-X, such as the 82574, which vector to use (IVAR): no interrupt arrived. Three of the virtual
    /// devices' drivers have them. `net_virtio_user` closes the descriptors twice (`rte_intr_efd_disable`, then
    /// `virtio_user_dev_uninit_notify`), and so may close new ones that have got their numbers meanwhile. `net_vhost`
    /// offers descriptors of the peer, which stay readable. Only TAP remains.
    pub(super) fn may_interrupt(&self, device: &str) -> bool {
        self.driver == "net_tap" || is_pci_address(device) && self.driver != "net_e1000_em"
    }

    /// Whether workers wait on the queue itself, which is readable while it holds frames: the descriptor of a TAP
    /// device.
    pub(super) fn waits_on_the_queue_itself(&self) -> bool {
        self.driver == "net_tap"
    }

    /// Whether receive queues can be chosen by addresses. The driver of TAP devices claims that they can, but has the
    /// kernel choose, by flow.
    pub(super) fn spreads_by_addresses(&self) -> bool {
        self.hashes_addresses && self.driver != "net_tap"
    }

    /// The MTU to configure for frames of `mtu`: see [`claims_standard_frames`].
    pub(super) fn configurable_mtu(&self, mtu: u16) -> u16 {
        if claims_standard_frames(&self.driver) { mtu.min(ETHERNET_MTU) } else { mtu }
    }

    /// The socket that must exist before the device can start, if it does not.
    pub(super) fn missing_socket<'a>(&self, arguments: &'a str) -> Option<&'a Path> {
        let client = matches!(argument(arguments, "role"), Some("client" | "slave"));
        if self.driver != "net_memif" || !client || argument(arguments, "socket-abstract") != Some("no") {
            return None;
        }
        argument(arguments, "socket").map(Path::new).filter(|socket| !socket.exists())
    }

    /// Whether the MTU must be set by a call, because the device does not take it from the configuration.
    pub(super) fn wants_mtu_set(&self) -> bool {
        self.driver == "net_tap"
    }

    pub(super) fn check_mtu(&self, device: &str, mtu: u16) -> Result<(), DpdkError> {
        if (self.min_mtu..=self.max_mtu).contains(&mtu) {
            return Ok(());
        }
        let hint = match (&self.interface, self.driver.as_str()) {
            (Some(interface), "net_af_packet") => {
                format!(
                    ": what interface {interface} carries, and {PACKET_RING_HEADER} and a header less than framesz"
                )
            }
            (None, "net_memif") => ": a header less than bsize".to_owned(),
            (Some(interface), _) => format!(": no more than what interface {interface} and a page hold"),
            (None, _) => String::new(),
        };
        let (min, max) = (self.min_mtu, self.max_mtu);
        Err(DpdkError::Mtu { device: device.to_owned(), mtu, min, max, hint })
    }

    /// The counterpart that is missing while a link is down.
    pub(super) fn missing_link(&self, arguments: &str) -> String {
        match self.driver.as_str() {
            "net_memif" => {
                let socket = argument(arguments, "socket").unwrap_or("/run/memif.sock");
                let (own, other) = match argument(arguments, "role") {
                    Some("client" | "slave") => ("client", "server"),
                    _ => ("server", "client"),
                };
                format!("{other} at the socket {socket}, to which this end is the {own}")
            }
            "net_vhost" => {
                let socket = argument(arguments, "iface").unwrap_or("that was given");
                format!("virtio driver at the socket {socket}")
            }
            _ => match &self.interface {
                Some(interface) => format!("link: interface {interface} or its other end is down"),
                None => "link".to_owned(),
            },
        }
    }

    /// Remarks for a user, each made once, on a port with the capabilities `caps`.
    pub(super) fn notices(&self, caps: &PortCaps) -> Vec<Notice> {
        let (ipv4, udp) = (!caps.tx_ipv4_checksum, !caps.tx_udp_checksum && !caps.in_memory);
        let driver = || self.driver.clone();
        let all = [
            (ipv4 || udp).then(|| Notice::WritesChecksums { driver: driver(), ipv4, udp }),
            caps.in_memory.then(|| Notice::InMemory { driver: driver() }),
            (!caps.rx_checksum).then(|| Notice::VerifiesChecksums { driver: driver() }),
            (!caps.multi_segment)
                .then(|| Notice::CopiesPayload { driver: driver(), unmapped: self.multi_segment }),
            (caps.timestamps == Timestamps::Burst)
                .then(|| Notice::NoTimestamps { driver: driver(), offered: self.timestamps }),
            (!self.spreads_by_addresses())
                .then(|| Notice::OneWorker { driver: driver(), queues: self.queues }),
            (!self.interrupts).then(|| Notice::NoInterrupts { driver: driver() }),
        ];
        all.into_iter().flatten().collect()
    }
}

/// Buffer size, in bytes, for the pool of a device that is to carry frames of `mtu` bytes of payload, or the longest
/// that the device supports: some drivers want buffers longer than their frames. `device` is a name with arguments, as
/// for [`DpdkPort::open`](super::DpdkPort::open).
pub fn buffer_size_for(device: &str, mtu: u16) -> u16 {
    let (name, arguments) = device.split_once(',').unwrap_or((device, ""));
    let size = if is_pci_address(name) {
        // The driver is not known yet.
        longest_frame("net_virtio", mtu).next_multiple_of(CARD_UNIT)
    } else {
        let driver = name.trim_end_matches(|last: char| last.is_ascii_digit());
        let allowed = buffers(driver, arguments);
        longest_frame(driver, mtu).clamp(*allowed.start(), *allowed.end())
    };
    u16::try_from(size).unwrap_or(u16::MAX)
}

/// Whether a device is named by its PCI address. Names of virtual devices begin with their driver's.
pub(super) fn is_pci_address(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_hexdigit()) && name.contains(':')
}

/// The rate of the link of `device`, which is up and whose speed `driver` reports as `mbps`; `None` if that cannot be
/// believed.
///
/// Congestion control without a rate falls back to its own default, so no rate is better than a wrong one. DPDK's
/// virtual devices have no link: their drivers report 10 Gbit/s or another constant, whatever the interface below can
/// do. A PCI device has a link, or has been configured with a speed, as virtio may be; otherwise it reports 0 or
/// "unknown". Among the drivers of PCI devices, `net_vmxnet3` of DPDK 22.11 reports a constant as well
/// (`vmxnet3_dev_link_update`).
pub(super) fn believed_rate(device: &str, driver: &str, mbps: u32) -> Option<Rate> {
    let known = !matches!(mbps, 0 | sys::WEFT_SPEED_UNKNOWN);
    let asked = is_pci_address(device) && driver != "net_vmxnet3";
    (known && asked).then(|| Rate::from_bps(u64::from(mbps) * 1_000_000))
}

/// Bytes of a buffer that a driver wants for frames of `mtu` bytes of payload.
fn longest_frame(driver: &str, mtu: u16) -> usize {
    let overhead = match driver {
        "net_virtio" | "net_virtio_user" => VIRTIO_OVERHEAD,
        _ => MIN_FRAME,
    };
    usize::from(mtu) + overhead
}

/// Buffer sizes that a driver accepts, bytes.
fn buffers(driver: &str, arguments: &str) -> RangeInclusive<usize> {
    match driver {
        // A buffer must hold a whole frame of the ring, although no packet is that long.
        "net_af_packet" => ring_frame(arguments).saturating_sub(TPACKET2_HEADER) as usize..=usize::MAX,
        // The driver copies frames piece by piece into shorter buffers.
        "net_memif" => memif_buffer(arguments) as usize..=usize::MAX,
        // The kernel's XDP takes chunks of 2048 bytes to a page; beside the frame there are an mbuf and headroom.
        // A pool makes an object of exactly a page longer, to use all channels of the memory.
        "net_af_xdp" => 2048 - XDP_BESIDE..=4096 - CACHE_LINE - XDP_BESIDE,
        _ => 0..=usize::MAX,
    }
}

/// Bytes of a buffer of `net_memif`.
fn memif_buffer(arguments: &str) -> u32 {
    argument(arguments, "bsize").and_then(|bytes| bytes.parse().ok()).unwrap_or(MEMIF_BUFFER)
}

/// Bytes of a frame in the rings of `net_af_packet`.
fn ring_frame(arguments: &str) -> u32 {
    argument(arguments, "framesz").and_then(|bytes| bytes.parse().ok()).unwrap_or(PACKET_RING_FRAME)
}

/// Whether the driver claims Ethernet's standard frame as its maximum and refuses more, yet passes on any frame that
/// its buffers hold (`bsize`, `framesz`), as `net_memif` and `net_af_packet` do.
fn claims_standard_frames(driver: &str) -> bool {
    matches!(driver, "net_memif" | "net_af_packet")
}

fn driver_of(info: &sys::rte_eth_dev_info) -> String {
    if info.driver_name.is_null() {
        return String::new();
    }
    // SAFETY: a driver's name is a C string of the driver, which is never unloaded.
    unsafe { CStr::from_ptr(info.driver_name) }.to_string_lossy().into_owned()
}

/// The largest MTU of IP packets in frames with a VLAN tag of `tag` bytes. Drivers of cards, and the kernel, have room
/// for a tag beside the MTU; buffers of a fixed length do not.
fn max_mtu(
    driver: &str,
    info: &sys::rte_eth_dev_info,
    arguments: &str,
    interface: Option<&str>,
    tag: usize,
) -> u16 {
    let frame = match driver {
        // With several buffers to a frame, the driver joins frames that do not belong together once its ring has
        // wrapped.
        "net_memif" => memif_buffer(arguments),
        "net_af_packet" => ring_frame(arguments).saturating_sub(PACKET_RING_HEADER),
        _ => info.max_rx_pktlen,
    };
    let overhead = if claims_standard_frames(driver) { (MIN_FRAME + tag) as u32 } else { OVERHEAD };
    let device = frame.saturating_sub(overhead).min(u32::from(info.max_mtu));
    let kernel = interface.and_then(interface_mtu).unwrap_or(u32::MAX);
    // At most `max_mtu`, which is a u16.
    device.min(kernel) as u16
}

/// A remark about a device that its user should read once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Checksums of frames that are sent are computed in software.
    WritesChecksums {
        /// Name of the driver.
        driver: String,
        /// Whether that includes IPv4 header checksums.
        ipv4: bool,
        /// Whether that includes UDP checksums.
        udp: bool,
    },
    /// Frames only move within memory: IPv4 packets need no UDP checksum, and carry none unless asked for.
    InMemory {
        /// Name of the driver.
        driver: String,
    },
    /// Checksums of frames that arrive are verified in software.
    VerifiesChecksums {
        /// Name of the driver.
        driver: String,
    },
    /// Payload is copied into frames, because the device cannot send it by reference.
    CopiesPayload {
        /// Name of the driver.
        driver: String,
        /// Whether the reason is that the device reads only memory that is mapped for it.
        unmapped: bool,
    },
    /// Arrival times are taken from the worker's clock.
    NoTimestamps {
        /// Name of the driver.
        driver: String,
        /// Whether the device has timestamps, which weft does not use.
        offered: bool,
    },
    /// Only one worker can use the device.
    OneWorker {
        /// Name of the driver.
        driver: String,
        /// Number of its queues; if there are several, the device does not choose them by addresses.
        queues: u16,
    },
    /// Idle workers poll, because the device has no receive interrupts.
    NoInterrupts {
        /// Name of the driver.
        driver: String,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::WritesChecksums { driver, ipv4, udp } => {
                let which = match (ipv4, udp) {
                    (true, false) => "IPv4",
                    (false, true) => "UDP",
                    _ => "IPv4 and UDP",
                };
                write!(f, "{driver}: {which} checksums are computed in software")
            }
            Notice::InMemory { driver } => {
                write!(f, "{driver}: frames stay in memory: no UDP checksums over IPv4 unless asked for")
            }
            Notice::VerifiesChecksums { driver } => write!(f, "{driver}: checksums are verified in software"),
            Notice::CopiesPayload { driver, unmapped: false } => {
                write!(f, "{driver}: no frames of several buffers: payload is copied once")
            }
            Notice::CopiesPayload { driver, unmapped: true } => {
                write!(f, "{driver}: payload is not mapped for the device: it is copied once")
            }
            Notice::NoTimestamps { driver, offered } => {
                let why = if *offered { "not used" } else { "none" };
                write!(f, "{driver}: timestamps of the device: {why}; the worker's clock is read instead")
            }
            Notice::OneWorker { driver, queues: 0 | 1 } => {
                write!(f, "{driver}: one receive queue, so one worker")
            }
            Notice::OneWorker { driver, .. } => {
                write!(f, "{driver}: receive queues are not chosen by addresses, so one worker")
            }
            Notice::NoInterrupts { driver } => {
                let us = Idle::BLIND.as_ps() / 1_000_000;
                write!(
                    f,
                    "{driver}: frames are not announced: an idle worker looks every {us} µs instead of sleeping"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(driver: &str) -> DeviceFacts {
        DeviceFacts { driver: driver.into(), max_mtu: 9000, max_buffer: usize::MAX, ..DeviceFacts::default() }
    }

    const NOTHING: PortCaps = PortCaps {
        max_frame: 1514,
        mac: [2, 0, 0, 0, 0, 1],
        tx_ipv4_checksum: false,
        tx_udp_checksum: false,
        rx_checksum: false,
        multi_segment: false,
        timestamps: Timestamps::Burst,
        in_memory: false,
    };

    #[test]
    fn notices_leave_out_the_work_that_the_device_does() {
        let able = DeviceFacts { hashes_addresses: true, queues: 8, interrupts: true, ..facts("net_card") };
        let caps = PortCaps {
            tx_ipv4_checksum: true,
            tx_udp_checksum: true,
            rx_checksum: true,
            multi_segment: true,
            timestamps: Timestamps::Kernel,
            ..NOTHING
        };
        assert_eq!(able.notices(&caps), []);
        assert_eq!(able.notices(&NOTHING).len(), 4);
        let half = able.notices(&PortCaps { tx_udp_checksum: false, ..caps });
        assert_eq!(half[0].to_string(), "net_card: UDP checksums are computed in software");
        let memory = facts("net_memif").notices(&PortCaps { in_memory: true, ..NOTHING });
        assert_eq!(memory[0].to_string(), "net_memif: IPv4 checksums are computed in software");
        let left_out = "net_memif: frames stay in memory: no UDP checksums over IPv4 unless asked for";
        assert_eq!(memory[1].to_string(), left_out);
    }

    #[test]
    fn only_cards_are_believed_about_their_link_rate() {
        let card = "0000:3b:00.0";
        assert_eq!(believed_rate(card, "net_e1000_em", 1_000), Some(Rate::from_gbps(1)));
        assert_eq!(believed_rate("3b:00.1", "net_ice", 400_000), Some(Rate::from_gbps(400)));
        assert_eq!(believed_rate(card, "net_virtio", 25_000), Some(Rate::from_gbps(25)));
        for unknown in [0, u32::MAX] {
            assert_eq!(believed_rate(card, "net_virtio", unknown), None);
        }
        assert_eq!(believed_rate(card, "net_vmxnet3", 10_000), None);
        for device in ["net_ring_a", "net_memif0", "net_tap0", "net_af_packet0", "net_virtio_user0"] {
            let driver = device.trim_end_matches('0');
            assert_eq!(believed_rate(device, driver, 10_000), None, "{device}");
        }
    }

    /// TAP's driver claims to, and leaves it to the kernel.
    #[test]
    fn tap_devices_do_not_spread_by_addresses() {
        let claims = |driver| DeviceFacts { hashes_addresses: true, ..facts(driver) };
        assert!(claims("net_null").spreads_by_addresses() && !claims("net_tap").spreads_by_addresses());
        let said = DeviceFacts { queues: 16, ..claims("net_tap") }.notices(&NOTHING);
        let [.., queues, interrupts] = &said[..] else { panic!("{said:?}") };
        let expected = "net_tap: receive queues are not chosen by addresses, so one worker";
        assert_eq!(queues.to_string(), expected);
        let expected =
            "net_tap: frames are not announced: an idle worker looks every 50 µs instead of sleeping";
        assert_eq!(interrupts.to_string(), expected);
    }

    #[test]
    fn only_cards_and_tap_use_interrupts() {
        assert!(facts("net_ice").may_interrupt("0000:3b:00.0"));
        assert!(!facts("net_e1000_em").may_interrupt("0000:3b:00.0"));
        assert!(facts("net_tap").may_interrupt("net_tap0") && facts("net_tap").waits_on_the_queue_itself());
        for driver in ["net_ring", "net_memif", "net_af_packet", "net_virtio_user", "net_vhost", "net_null"] {
            assert!(!facts(driver).may_interrupt(&format!("{driver}0")), "{driver}");
        }
    }

    #[test]
    fn cards_never_get_memory_that_is_not_mapped_for_them() {
        let takes = |driver| DeviceFacts { multi_segment: true, ..facts(driver) };
        assert!(takes("net_memif").attaches() && !facts("net_memif").attaches());
        assert!(!takes("net_ice").attaches() && !takes("net_virtio_user").attaches());
        let text = takes("net_ice").notices(&NOTHING)[2].to_string();
        assert_eq!(text, "net_ice: payload is not mapped for the device: it is copied once");
    }

    #[test]
    fn buffers_suit_the_driver_and_the_mtu() {
        assert_eq!(buffer_size_for("net_null0", 9000), 9014);
        assert_eq!(buffer_size_for("net_memif12,role=client", 1500), 2048);
        assert_eq!(buffer_size_for("net_af_packet0,iface=a,framesz=9216", 1500), 9184);
        assert_eq!(buffer_size_for("net_af_xdp0,iface=a", 1500), 1728);
        assert_eq!(buffer_size_for("net_af_xdp0,iface=a", 9000), 3712);
        assert_eq!(buffer_size_for("net_virtio_user0,path=a", 1500), 1530);
        assert_eq!(buffer_size_for("0000:3b:00.0", 9000), 9216);
        assert_eq!(buffer_size_for("0000:3b:00.0", u16::MAX), u16::MAX);
        let virtio = facts("net_virtio");
        assert!(virtio.check_buffers("0000:3b:00.0", 1530, 1500, 0).is_ok());
        assert!(virtio.check_buffers("0000:3b:00.0", 1529, 1500, 0).is_err());
        assert!(virtio.check_buffers("0000:3b:00.0", 1533, 1500, 4).is_err());
        let xdp = DeviceFacts { min_buffer: 1728, max_buffer: 3776, ..facts("net_af_xdp") };
        let error = xdp.check_buffers("net_af_xdp0", 4000, 1500, 0).unwrap_err().to_string();
        let expected = "device net_af_xdp0 needs buffers of 1728 bytes at least and 3776 at most, and the pool's have 4000";
        assert_eq!(error, expected);
        assert!(xdp.check_buffers("net_af_xdp0", 1728, 1714, 0).is_ok());
        assert!(xdp.check_buffers("net_af_xdp0", 1728, 1715, 0).is_err());
    }
}
