//! Ports of DPDK: `dpdk:DEVICE[,ARGUMENTS]`, and `dpdk:ring:NAME`, one end of a pair of rings in this process.

#[cfg(feature = "dpdk")]
use std::collections::BTreeMap;
#[cfg(feature = "dpdk")]
use std::sync::atomic::{AtomicU32, Ordering};
#[cfg(feature = "dpdk")]
use std::sync::{Mutex, PoisonError};
#[cfg(feature = "dpdk")]
use std::time::Duration;

#[cfg(feature = "dpdk")]
use weft_stack::port::dpdk::{
    DpdkError, DpdkPort, DpdkPortConfig, Eal, EalOptions, MbufPool, MbufPoolConfig, buffer_size_for,
};
#[cfg(feature = "dpdk")]
use weft_stack::port::udp::mac_of;
#[cfg(feature = "dpdk")]
use weft_stack::port::{MIN_FRAME, Port};
#[cfg(feature = "dpdk")]
use weft_stack::wire::ethernet::MacAddr;
#[cfg(feature = "dpdk")]
use weft_stack::worker::HostAddr;

#[cfg(feature = "dpdk")]
use super::{ALL_PATHS, AnyPort, DEFAULT_MTU, PortInfo};
use super::{OpenPort, PortError, PortOptions, PortSpec, SpecError};

/// How long a port waits, when it is opened, until its network card has agreed with the other end about the rate of the
/// link: congestion control is set up with it, once. Over copper that takes two to four seconds, and training of a fast
/// link can take as long.
#[cfg(feature = "dpdk")]
const NEGOTIATION: Duration = Duration::from_secs(10);

/// Ports that this process has opened.
#[cfg(feature = "dpdk")]
static OPENED: AtomicU32 = AtomicU32::new(0);

/// How the names of rings begin.
const RING: &str = "ring:";
/// Frames that each direction of a pair of rings holds.
#[cfg(feature = "dpdk")]
const RING_FRAMES: u32 = 1024;
/// The second ends of pairs of rings whose first end is open, by name.
#[cfg(feature = "dpdk")]
static SECOND_ENDS: Mutex<BTreeMap<String, DpdkPort>> = Mutex::new(BTreeMap::new());

/// A device with its arguments, such as `net_memif0,role=client` or `0000:3b:00.0`. Only DPDK knows which names exist;
/// this refuses names that are empty or contain white space.
pub(super) fn device(text: &str) -> Result<&str, SpecError> {
    let name = text.split(',').next().unwrap_or_default();
    let nameless = name.is_empty() || name == RING;
    if nameless || name.contains(|c: char| c.is_whitespace() || c.is_control()) {
        let expected = "dpdk:DEVICE[,ARGUMENTS], such as dpdk:net_memif0,role=client, dpdk:0000:3b:00.0 or dpdk:ring:NAME";
        return Err(SpecError::expected(format!("{expected}, and {name:?} is no device")));
    }
    Ok(text)
}

/// Opens the port of `device`, which `spec` names.
#[cfg(feature = "dpdk")]
pub(super) fn open(spec: &PortSpec, device: &str, options: &PortOptions) -> Result<OpenPort, PortError> {
    let ip = options.ip.ok_or_else(|| PortError::NoAddress(spec.clone()))?;
    let port = start_dpdk(device, options).map_err(|error| PortError::Dpdk { spec: spec.clone(), error })?;
    let own = MacAddr(port.capabilities().mac);
    if is_card(device) {
        // Without a link there is no rate; a caller that needs the link reports that it is missing.
        let _ = port.wait_for_link(NEGOTIATION);
    }
    let link = port.link_rate();
    let point_to_point = joins_two(device);
    // The devices that join two processes make up a new address each time.
    let mac = options.mac.unwrap_or(if point_to_point { mac_of(ip) } else { own });
    let info = PortInfo {
        spec: Some(spec.clone()),
        host: HostAddr { mac, ip },
        paths: ALL_PATHS,
        link,
        called: None,
        checksum: options.checksum,
        crc: options.crc,
        vlan: options.vlan,
        point_to_point,
    };
    Ok(OpenPort { port: AnyPort::Dpdk(Box::new(port)), info })
}

#[cfg(not(feature = "dpdk"))]
pub(super) fn open(spec: &PortSpec, _device: &str, _options: &PortOptions) -> Result<OpenPort, PortError> {
    Err(PortError::WithoutDpdk(spec.clone()))
}

/// Starts DPDK as the device needs it, and opens the device.
#[cfg(feature = "dpdk")]
fn start_dpdk(device: &str, options: &PortOptions) -> Result<DpdkPort, DpdkError> {
    let name = device.split(',').next().unwrap_or(device);
    let eal = if is_card(device) {
        EalOptions::nic(vec![name.to_owned()])
    } else {
        let memory_mib = if options.huge_pages { None } else { EalOptions::default().memory_mib };
        EalOptions { huge_pages: options.huge_pages, memory_mib, ..EalOptions::default() }
    };
    let eal = Eal::init(&eal)?;
    let mtu = options.mtu.unwrap_or(DEFAULT_MTU);
    mtu.checked_add(MIN_FRAME as u16).ok_or(DpdkError::BufferSize(mtu))?;
    let buffer_size = buffer_size_for(device, mtu.saturating_add(options.tag_len() as u16));
    // The second end of a pair of rings was made with the first.
    let mut second_ends = SECOND_ENDS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(second) = second_ends.remove(device) {
        return Ok(second);
    }
    // Pools of one process have different names.
    let number = OPENED.fetch_add(1, Ordering::Relaxed);
    let pool = MbufPoolConfig { buffer_size, ..MbufPoolConfig::default() };
    let pool = MbufPool::create(eal, &format!("port{number}"), &pool)?;
    let config = DpdkPortConfig {
        mtu,
        // Without an MTU in the options, a smaller one than the default is acceptable.
        or_less: options.mtu.is_none(),
        tagged: options.vlan.is_some(),
        // Cards pass on only what is sent to their own address.
        promiscuous: options.mac.is_some(),
        ..DpdkPortConfig::default()
    };
    if device.starts_with(RING) {
        let (first, second) = DpdkPort::ring_pair(eal, &format!("ring{number}"), RING_FRAMES, pool, &config)?;
        second_ends.insert(device.to_owned(), second);
        return Ok(first);
    }
    drop(second_ends);
    DpdkPort::open(eal, device, pool, &config)
}

/// Whether the device is one that is there, such as a network card, and not one that DPDK makes up.
pub(super) fn is_card(device: &str) -> bool {
    !device.starts_with("net_") && !device.starts_with(RING)
}

/// Whether the device has one other end, in another process or this one, and nothing between them looks at Ethernet
/// addresses.
#[cfg(any(feature = "dpdk", test))]
pub(super) fn joins_two(device: &str) -> bool {
    [RING, "net_memif", "net_ring", "net_pcap", "net_null"].iter().any(|driver| device.starts_with(driver))
}
