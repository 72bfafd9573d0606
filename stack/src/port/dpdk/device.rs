//! One Ethernet device of DPDK with one receive and one transmit queue: found or plugged in,
//! configured, started; stopped and unplugged when dropped.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::sync::{Mutex, PoisonError};

use weft_dpdk_sys as sys;

use super::{DpdkError, DpdkPortConfig, Eal, MbufPool};
use crate::port::{MIN_FRAME, PortCaps};

/// Ids of devices that are in use. A queue has one user, so a device is opened once at a time; and
/// devices come and go one at a time.
static OPEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

const VDEV_BUS: &CStr = c"vdev";
const PCI_BUS: &CStr = c"pci";

/// A device that this value alone uses.
#[derive(Debug)]
pub(super) struct Device {
    id: u16,
    started: bool,
    /// Bus and name, if closing the port shall unplug the device.
    unplug: Option<(&'static CStr, CString)>,
}

impl Device {
    /// The device called `name`, plugged in with these arguments if there is none yet.
    pub(super) fn plug(_eal: Eal, name: &str, arguments: &str) -> Result<Device, DpdkError> {
        let name_c = CString::new(name).map_err(|_| DpdkError::NulByte)?;
        let arguments = CString::new(arguments).map_err(|_| DpdkError::NulByte)?;
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(id) = find(&name_c) {
            return claim(&mut open, id, name, None);
        }
        let bus = bus_of(name);
        // SAFETY: DPDK runs (`_eal`), and these are C strings, which it copies.
        let result = unsafe { sys::rte_eal_hotplug_add(bus.as_ptr(), name_c.as_ptr(), arguments.as_ptr()) };
        if result < 0 {
            return Err(DpdkError::Plug { device: name.to_owned(), reason: plug_failure(result) });
        }
        let id = find(&name_c).ok_or_else(|| DpdkError::NoPort { device: name.to_owned() })?;
        claim(&mut open, id, name, Some((bus, name_c)))
    }

    /// A device that receives from one ring and sends into another.
    ///
    /// # Safety
    ///
    /// The rings outlive the device; nobody else takes from `rx` or puts into `tx`; and `rx` holds
    /// nothing but mbufs that nobody refers to.
    pub(super) unsafe fn from_rings(
        _eal: Eal,
        name: &str,
        rx: *mut sys::rte_ring,
        tx: *mut sys::rte_ring,
    ) -> Result<Device, DpdkError> {
        let short = CString::new(name).map_err(|_| DpdkError::NulByte)?;
        let full = CString::new(format!("net_ring_{name}")).map_err(|_| DpdkError::NulByte)?;
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: DPDK runs (`_eal`); one ring each is given, and both are valid, says the caller.
        let id = unsafe { sys::rte_eth_from_rings(short.as_ptr(), &rx, 1, &tx, 1, 0) };
        let id = u16::try_from(id).map_err(|_| DpdkError::from_errno("rte_eth_from_rings"))?;
        claim(&mut open, id, name, Some((VDEV_BUS, full)))
    }

    /// DPDK's number of the device.
    pub(super) fn id(&self) -> u16 {
        self.id
    }

    /// Configures the device, gives it its queues and starts it. Returns what it can do.
    pub(super) fn start(&mut self, pool: &MbufPool, config: &DpdkPortConfig) -> Result<PortCaps, DpdkError> {
        let max_frame = usize::from(config.mtu) + MIN_FRAME;
        if pool.buffer_size() < max_frame {
            return Err(DpdkError::BufferTooSmall { buffer: pool.buffer_size(), frame: max_frame });
        }
        let info = self.info()?;
        if config.mtu < info.min_mtu || config.mtu > info.max_mtu {
            return Err(DpdkError::Mtu { mtu: config.mtu, min: info.min_mtu, max: info.max_mtu });
        }
        let (rx_offloads, tx_offloads) = self.configure(&info, config)?;
        self.set_up_queues(pool, config)?;
        // SAFETY: the device is configured and has its queues.
        check("rte_eth_dev_start", unsafe { sys::rte_eth_dev_start(self.id) })?;
        self.started = true;
        if config.promiscuous {
            // SAFETY: the device is ours.
            check("rte_eth_promiscuous_enable", unsafe { sys::rte_eth_promiscuous_enable(self.id) })?;
        }
        Ok(PortCaps {
            max_frame,
            mac: self.mac()?,
            tx_ipv4_checksum: tx_offloads & sys::WEFT_TX_OFFLOAD_IPV4_CKSUM != 0,
            tx_udp_checksum: tx_offloads & sys::WEFT_TX_OFFLOAD_UDP_CKSUM != 0,
            rx_checksum: rx_offloads & sys::WEFT_RX_OFFLOAD_UDP_CKSUM != 0,
            multi_segment: info.tx_offload_capa & sys::WEFT_TX_OFFLOAD_MULTI_SEGS != 0,
            timestamps: false,
        })
    }

    /// Frames that the device has lost for want of buffers or of queue space.
    pub(super) fn missed(&self) -> u64 {
        let mut stats = MaybeUninit::<sys::rte_eth_stats>::zeroed();
        // SAFETY: the device is ours. All-zero statistics are valid if it fills in none.
        let stats = unsafe {
            if sys::rte_eth_stats_get(self.id, stats.as_mut_ptr()) != 0 {
                return 0;
            }
            stats.assume_init()
        };
        stats.imissed + stats.rx_nombuf
    }

    fn info(&self) -> Result<sys::rte_eth_dev_info, DpdkError> {
        let mut info = MaybeUninit::<sys::rte_eth_dev_info>::zeroed();
        // SAFETY: the device is ours, and the structure large enough.
        check("rte_eth_dev_info_get", unsafe { sys::rte_eth_dev_info_get(self.id, info.as_mut_ptr()) })?;
        // SAFETY: filled in by the call; zeroes are valid in every field.
        Ok(unsafe { info.assume_init() })
    }

    /// Returns the receive and transmit offloads that are on.
    fn configure(
        &mut self,
        info: &sys::rte_eth_dev_info,
        config: &DpdkPortConfig,
    ) -> Result<(u64, u64), DpdkError> {
        let rx = info.rx_offload_capa & (sys::WEFT_RX_OFFLOAD_IPV4_CKSUM | sys::WEFT_RX_OFFLOAD_UDP_CKSUM);
        let tx = info.tx_offload_capa & (sys::WEFT_TX_OFFLOAD_IPV4_CKSUM | sys::WEFT_TX_OFFLOAD_UDP_CKSUM);
        // SAFETY: all-zero is a valid configuration: one that asks for nothing.
        let mut conf: sys::rte_eth_conf = unsafe { MaybeUninit::zeroed().assume_init() };
        conf.rxmode.mtu = u32::from(config.mtu);
        conf.rxmode.offloads = rx;
        conf.txmode.offloads = tx;
        // SAFETY: the device is ours and stopped; DPDK copies the configuration.
        check("rte_eth_dev_configure", unsafe { sys::rte_eth_dev_configure(self.id, 1, 1, &conf) })?;
        Ok((rx, tx))
    }

    fn set_up_queues(&mut self, pool: &MbufPool, config: &DpdkPortConfig) -> Result<(), DpdkError> {
        let (mut rx, mut tx) = (config.rx_descriptors, config.tx_descriptors);
        // SAFETY: the device is ours.
        let adjusted = unsafe { sys::rte_eth_dev_adjust_nb_rx_tx_desc(self.id, &mut rx, &mut tx) };
        check("rte_eth_dev_adjust_nb_rx_tx_desc", adjusted)?;
        // SAFETY: the device is ours.
        let socket = unsafe { sys::rte_eth_dev_socket_id(self.id) } as u32;
        // SAFETY: the device is ours and configured for one queue each way; no configuration means
        // the driver's own; the pool is never freed.
        unsafe {
            let no_rx_conf = std::ptr::null();
            let result = sys::rte_eth_rx_queue_setup(self.id, 0, rx, socket, no_rx_conf, pool.as_ptr());
            check("rte_eth_rx_queue_setup", result)?;
            check(
                "rte_eth_tx_queue_setup",
                sys::rte_eth_tx_queue_setup(self.id, 0, tx, socket, std::ptr::null()),
            )
        }
    }

    fn mac(&self) -> Result<[u8; 6], DpdkError> {
        let mut mac = sys::rte_ether_addr { addr_bytes: [0; 6] };
        // SAFETY: the device is ours, and the structure valid.
        check("rte_eth_macaddr_get", unsafe { sys::rte_eth_macaddr_get(self.id, &mut mac) })?;
        Ok(mac.addr_bytes)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the device is ours, and nobody uses its queues any more. What fails here cannot be
        // helped: the device is then left as it is, for the life of the process.
        unsafe {
            if self.started {
                sys::rte_eth_dev_stop(self.id);
            }
            if let Some((bus, name)) = &self.unplug {
                sys::rte_eth_dev_close(self.id);
                sys::rte_eal_hotplug_remove(bus.as_ptr(), name.as_ptr());
            }
        }
        open.remove(&self.id);
    }
}

/// Enters the device into `open`, or refuses because it stands there.
fn claim(
    open: &mut BTreeSet<u16>,
    id: u16,
    name: &str,
    unplug: Option<(&'static CStr, CString)>,
) -> Result<Device, DpdkError> {
    if !open.insert(id) {
        return Err(DpdkError::InUse { device: name.to_owned() });
    }
    Ok(Device { id, started: false, unplug })
}

fn find(name: &CStr) -> Option<u16> {
    let mut id = 0;
    // SAFETY: the name is a C string, the number ours to write to.
    let result = unsafe { sys::rte_eth_dev_get_port_by_name(name.as_ptr(), &mut id) };
    (result == 0).then_some(id)
}

/// Names of virtual devices begin with their driver's; the others are PCI addresses.
fn bus_of(name: &str) -> &'static CStr {
    if name.starts_with(|first: char| first.is_ascii_hexdigit()) && name.contains(':') {
        PCI_BUS
    } else {
        VDEV_BUS
    }
}

fn check(call: &'static str, result: i32) -> Result<(), DpdkError> {
    if result < 0 { Err(DpdkError::from_code(call, result)) } else { Ok(()) }
}

/// Drivers answer with a plain −1 where an error number of the system would be expected; its text,
/// "Operation not permitted", would mislead.
fn plug_failure(result: i32) -> String {
    if result == -1 { "its driver refuses it; DPDK's log says why".into() } else { super::describe(-result) }
}
