//! One Ethernet device of DPDK, with as many receive queues as transmit queues: found or plugged in, configured,
//! started; stopped and unplugged when dropped.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use weft_cc::Rate;
use weft_dpdk_sys as sys;

use super::alarm::{Alarm, Kind};
use super::facts::{DeviceFacts, believed_rate, is_pci_address};
use super::{DpdkError, DpdkPortConfig, Eal, MbufPool, Spread, needs, stale};
use crate::port::{MIN_FRAME, PortCaps, Timestamps};
use crate::wire::ethernet::VLAN_TAG_LEN;
use crate::worker::steer::SYMMETRIC_KEY;

/// Ids of the devices that are in use. A queue has one user, so a device can be opened only once at a time. The lock
/// also makes devices come and go one at a time.
static OPEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// Interval between two looks for a socket that must exist.
const SOCKET_POLL: Duration = Duration::from_millis(5);

/// Result of calls that a driver does not implement: `-ENOTSUP`.
const NOT_SUPPORTED: i32 = -95;

const VDEV_BUS: &CStr = c"vdev";
const PCI_BUS: &CStr = c"pci";

/// A device that this value alone uses. Invariant: DPDK has given `id` to this value, which closes the device only
/// when it is dropped; so `id` is valid in every method, and no other device has it.
#[derive(Debug)]
pub(super) struct Device {
    id: u16,
    name: String,
    arguments: String,
    facts: DeviceFacts,
    started: bool,
    /// Held while interrupts are switched: drivers do not expect calls for several queues at once.
    switch: Mutex<()>,
    /// Bus and name of the device, if it is to be unplugged when the port closes.
    unplug: Option<(&'static CStr, CString)>,
}

impl Device {
    /// The device called `name`; it is plugged in with these arguments if DPDK does not have it yet.
    pub(super) fn plug(_eal: Eal, name: &str, arguments: &str) -> Result<Device, DpdkError> {
        let name_c = CString::new(name).map_err(|_| DpdkError::NulByte)?;
        let arguments_c = CString::new(arguments).map_err(|_| DpdkError::NulByte)?;
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(id) = find(&name_c) {
            return claim(&mut open, id, name, arguments, None);
        }
        stale::remove_socket(name, arguments);
        let bus = bus_of(name);
        // SAFETY: DPDK runs (`_eal`), and these are C strings, which it copies.
        let result = unsafe { sys::rte_eal_hotplug_add(bus.as_ptr(), name_c.as_ptr(), arguments_c.as_ptr()) };
        if result < 0 {
            return Err(DpdkError::Plug { device: name.to_owned(), reason: needs::refusal(name, result) });
        }
        let id = find(&name_c).ok_or_else(|| DpdkError::NoPort { device: name.to_owned() })?;
        claim(&mut open, id, name, arguments, Some((bus, name_c)))
    }

    /// A device that receives from some rings and sends into other rings; each ring is a queue.
    ///
    /// # Safety
    ///
    /// The rings outlive the device; no other code takes from `rx` or puts into `tx`; and `rx` holds
    /// only mbufs to which there is no other reference.
    pub(super) unsafe fn from_rings(
        _eal: Eal,
        name: &str,
        rx: &[*mut sys::rte_ring],
        tx: &[*mut sys::rte_ring],
    ) -> Result<Device, DpdkError> {
        let short = CString::new(name).map_err(|_| DpdkError::NulByte)?;
        let full = CString::new(format!("net_ring_{name}")).map_err(|_| DpdkError::NulByte)?;
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let (rx_count, tx_count) = (rx.len() as u32, tx.len() as u32);
        // SAFETY: DPDK runs (`_eal`); there are as many rings as said, and all are valid, says the caller.
        let id = unsafe {
            sys::rte_eth_from_rings(short.as_ptr(), rx.as_ptr(), rx_count, tx.as_ptr(), tx_count, 0)
        };
        let id = u16::try_from(id).map_err(|_| DpdkError::from_errno("rte_eth_from_rings"))?;
        claim(&mut open, id, name, "", Some((VDEV_BUS, full)))
    }

    /// DPDK's number of the device.
    pub(super) fn id(&self) -> u16 {
        self.id
    }

    /// Its name, without arguments.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The device's properties; valid once the device has [started](Self::start).
    pub(super) fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    /// Configures the device, sets up its queues and starts it. Returns its capabilities.
    pub(super) fn start(
        &mut self,
        pool: &MbufPool,
        queues: u16,
        spread: Spread,
        config: &DpdkPortConfig,
    ) -> Result<PortCaps, DpdkError> {
        let info = self.info()?;
        let tag = if config.tagged { VLAN_TAG_LEN } else { 0 };
        self.facts = DeviceFacts::read(&info, &self.arguments, tag);
        let most = if config.or_less { self.facts.max_mtu } else { u16::MAX };
        let config = &DpdkPortConfig { mtu: config.mtu.min(most), ..config.clone() };
        let max_frame = usize::from(config.mtu) + MIN_FRAME + tag;
        self.facts.check_buffers(&self.name, pool.buffer_size(), config.mtu, tag)?;
        self.facts.check_mtu(&self.name, config.mtu)?;
        self.check_queues(queues, spread)?;
        let interrupts = config.interrupts && self.facts.may_interrupt(&self.name);
        let (rx_offloads, tx_offloads) = match self.bring_up(&info, pool, queues, config, interrupts) {
            // Some drivers refuse interrupts only when they start.
            Err(_) if interrupts => self.bring_up(&info, pool, queues, config, false)?,
            other => {
                self.facts.interrupts =
                    interrupts && (0..queues).all(|queue| self.find_alarm(queue).is_some());
                other?
            }
        };
        self.receive_groups()?;
        if config.promiscuous {
            self.receive_all()?;
        }
        if queues > 1 && spread == Spread::Addresses {
            self.check_spread()?;
        }
        Ok(PortCaps {
            max_frame,
            mac: self.mac()?,
            tx_ipv4_checksum: tx_offloads & sys::WEFT_TX_OFFLOAD_IPV4_CKSUM != 0,
            tx_udp_checksum: tx_offloads & sys::WEFT_TX_OFFLOAD_UDP_CKSUM != 0,
            rx_checksum: rx_offloads & sys::WEFT_RX_OFFLOAD_UDP_CKSUM != 0,
            multi_segment: tx_offloads & sys::WEFT_TX_OFFLOAD_MULTI_SEGS != 0,
            timestamps: Timestamps::Burst,
            in_memory: self.facts.is_in_memory(),
        })
    }

    /// Configures the device, sets up its queues and starts it. Returns the receive and transmit offloads that are on.
    fn bring_up(
        &mut self,
        info: &sys::rte_eth_dev_info,
        pool: &MbufPool,
        queues: u16,
        config: &DpdkPortConfig,
        interrupts: bool,
    ) -> Result<(u64, u64), DpdkError> {
        let offloads = self.configure(info, queues, config, interrupts)?;
        self.set_mtu(config.mtu)?;
        for queue in 0..queues {
            self.set_up_queue(queue, pool, config)?;
        }
        self.run(config.peer_wait)?;
        Ok(offloads)
    }

    /// Starts a device that is configured and has its queues. A client of memif cannot start without its server's
    /// socket.
    fn run(&mut self, peer_wait: Duration) -> Result<(), DpdkError> {
        let begin = Instant::now();
        while self.facts.missing_socket(&self.arguments).is_some() {
            if begin.elapsed() >= peer_wait {
                return Err(self.no_link(peer_wait));
            }
            std::thread::sleep(SOCKET_POLL);
        }
        // SAFETY: `self.id` is a device of this `Device`, not closed yet; its queues are set up before `run` is called.
        check("rte_eth_dev_start", unsafe { sys::rte_eth_dev_start(self.id) })?;
        self.started = true;
        Ok(())
    }

    /// Receives multicast frames: neighbour solicitations are sent to a group, and cards pass on no group unless told
    /// to.
    fn receive_groups(&self) -> Result<(), DpdkError> {
        // SAFETY: `self.id` is a device that DPDK has given to this `Device`, which closes it only when dropped.
        let result = unsafe { sys::rte_eth_allmulticast_enable(self.id) };
        unless_unfiltered("rte_eth_allmulticast_enable", result)
    }

    fn receive_all(&self) -> Result<(), DpdkError> {
        // SAFETY: `self.id` is a device that DPDK has given to this `Device`, which closes it only when dropped.
        let result = unsafe { sys::rte_eth_promiscuous_enable(self.id) };
        unless_unfiltered("rte_eth_promiscuous_enable", result)
    }

    /// The alarm of a queue, if the device [has receive interrupts](DeviceFacts::interrupts). It must not outlive the
    /// device.
    pub(super) fn alarm(&self, queue: u16) -> Option<Alarm> {
        self.facts.interrupts.then(|| self.find_alarm(queue)).flatten()
    }

    /// The alarm of a queue, without a check that the device has started with interrupts on.
    fn find_alarm(&self, queue: u16) -> Option<Alarm> {
        if !self.started {
            return None;
        }
        // SAFETY: `self.id` is a device of this `Device`, not closed yet, and `started` says that it runs.
        let fd = unsafe { sys::rte_eth_dev_rx_intr_ctl_q_get_fd(self.id, queue) };
        let kind = if self.facts.waits_on_the_queue_itself() { Kind::Queue } else { Kind::Counter };
        let alarm = Alarm::new(fd, kind)?;
        let works = kind == Kind::Queue || self.interrupt(queue, true) && self.interrupt(queue, false);
        works.then_some(alarm)
    }

    /// Switches the receive interrupts of a queue on or off. Returns whether the driver could.
    pub(super) fn interrupt(&self, queue: u16, on: bool) -> bool {
        let _switch = self.switch.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: `self.id` is a device of this `Device`, not closed yet and started; the lock keeps others from
        // switching now.
        let result = unsafe {
            match on {
                true => sys::rte_eth_dev_rx_intr_enable(self.id, queue),
                false => sys::rte_eth_dev_rx_intr_disable(self.id, queue),
            }
        };
        result == 0
    }

    /// Whether the link is up.
    pub(super) fn link_is_up(&self) -> bool {
        self.link().is_some()
    }

    /// The rate of the link, if the link is up and the driver's value can be believed: see [`believed_rate`].
    pub(super) fn link_rate(&self) -> Option<Rate> {
        believed_rate(&self.name, &self.facts.driver, self.link()?)
    }

    /// The driver's value for the link's speed, Mbit/s, if the link is up.
    fn link(&self) -> Option<u32> {
        let mut mbps = 0;
        // SAFETY: the device is ours (`Device`'s invariant), and `mbps` ours to write to.
        let up = unsafe { sys::weft_rte_eth_link(self.id, &mut mbps) } == 1;
        up.then_some(mbps)
    }

    /// The error that the link is still down after `waited`.
    pub(super) fn no_link(&self, waited: Duration) -> DpdkError {
        DpdkError::NoLink {
            device: self.name.clone(),
            waited,
            what: self.facts.missing_link(&self.arguments),
        }
    }

    /// Frames that the device has lost because it had no buffer or no room in a queue.
    pub(super) fn missed(&self) -> u64 {
        let mut stats = MaybeUninit::<sys::rte_eth_stats>::zeroed();
        // SAFETY: the device is ours (`Device`'s invariant). All-zero statistics are valid if it fills in none.
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
        // SAFETY: the device is ours (`Device`'s invariant), and the structure large enough.
        check("rte_eth_dev_info_get", unsafe { sys::rte_eth_dev_info_get(self.id, info.as_mut_ptr()) })?;
        // SAFETY: filled in by the call; zeroes are valid in every field.
        Ok(unsafe { info.assume_init() })
    }

    fn check_queues(&self, queues: u16, spread: Spread) -> Result<(), DpdkError> {
        let (device, max) = (self.name.clone(), self.facts.queues);
        if queues == 0 || queues > max {
            return Err(DpdkError::Queues { device, queues, max });
        }
        if queues > 1 && spread == Spread::Addresses && !self.facts.spreads_by_addresses() {
            return Err(DpdkError::Spread { device, driver: self.facts.driver.clone() });
        }
        Ok(())
    }

    /// Returns the receive and transmit offloads that are on.
    fn configure(
        &mut self,
        info: &sys::rte_eth_dev_info,
        queues: u16,
        config: &DpdkPortConfig,
        interrupts: bool,
    ) -> Result<(u64, u64), DpdkError> {
        let rx = info.rx_offload_capa & (sys::WEFT_RX_OFFLOAD_IPV4_CKSUM | sys::WEFT_RX_OFFLOAD_UDP_CKSUM);
        let mut tx =
            info.tx_offload_capa & (sys::WEFT_TX_OFFLOAD_IPV4_CKSUM | sys::WEFT_TX_OFFLOAD_UDP_CKSUM);
        if self.facts.attaches() {
            tx |= sys::WEFT_TX_OFFLOAD_MULTI_SEGS;
        }
        // SAFETY: all-zero is a valid configuration: one that asks for nothing.
        let mut conf: sys::rte_eth_conf = unsafe { MaybeUninit::zeroed().assume_init() };
        conf.rxmode.mtu = u32::from(self.facts.configurable_mtu(config.mtu));
        conf.rxmode.offloads = rx;
        conf.txmode.offloads = tx;
        conf.intr_conf.set_rxq(u32::from(interrupts));
        let mut key = rss_key(info.hash_key_size);
        if queues > 1 && self.facts.spreads_by_addresses() {
            conf.rxmode.mq_mode = sys::WEFT_MQ_RX_RSS as _;
            conf.rx_adv_conf.rss_conf.rss_hf = info.flow_type_rss_offloads & sys::WEFT_RSS_ADDRESSES;
            if !key.is_empty() {
                conf.rx_adv_conf.rss_conf.rss_key = key.as_mut_ptr();
                conf.rx_adv_conf.rss_conf.rss_key_len = info.hash_key_size;
            }
        }
        // SAFETY: the device is ours (`Device`'s invariant) and stopped; DPDK copies the configuration, and `key`
        // outlives the call.
        let result = unsafe { sys::rte_eth_dev_configure(self.id, queues, queues, &conf) };
        check("rte_eth_dev_configure", result)?;
        Ok((rx, tx))
    }

    /// Sets the MTU of devices that do not take it from the configuration.
    fn set_mtu(&self, mtu: u16) -> Result<(), DpdkError> {
        if !self.facts.wants_mtu_set() {
            return Ok(());
        }
        // SAFETY: `self.id` is a device that DPDK has given to this `Device`, which closes it only when dropped.
        check("rte_eth_dev_set_mtu", unsafe { sys::rte_eth_dev_set_mtu(self.id, mtu) })
    }

    /// Checks that the driver hashes over nothing but addresses; otherwise one peer's packets would arrive in several
    /// queues.
    fn check_spread(&self) -> Result<(), DpdkError> {
        let mut conf = sys::rte_eth_rss_conf { rss_key: std::ptr::null_mut(), rss_key_len: 0, rss_hf: 0 };
        // SAFETY: the device is ours (`Device`'s invariant); without a place for the key only the kinds of hash are
        // told.
        let result = unsafe { sys::rte_eth_dev_rss_hash_conf_get(self.id, &mut conf) };
        check("rte_eth_dev_rss_hash_conf_get", result)?;
        if conf.rss_hf & sys::WEFT_RSS_PORTS != 0 || conf.rss_hf & sys::WEFT_RSS_ADDRESSES == 0 {
            return Err(DpdkError::Spread { device: self.name.clone(), driver: self.facts.driver.clone() });
        }
        Ok(())
    }

    fn set_up_queue(
        &mut self,
        queue: u16,
        pool: &MbufPool,
        config: &DpdkPortConfig,
    ) -> Result<(), DpdkError> {
        let (mut rx, mut tx) = (config.rx_descriptors, config.tx_descriptors);
        // SAFETY: `self.id` is a device that DPDK has given to this `Device`, which closes it only when dropped.
        let adjusted = unsafe { sys::rte_eth_dev_adjust_nb_rx_tx_desc(self.id, &mut rx, &mut tx) };
        check("rte_eth_dev_adjust_nb_rx_tx_desc", adjusted)?;
        // SAFETY: `self.id` is a device that DPDK has given to this `Device`, which closes it only when dropped.
        let socket = unsafe { sys::rte_eth_dev_socket_id(self.id) } as u32;
        // SAFETY: the device is ours (`Device`'s invariant) and configured for more queues than `queue` each way; no
        // configuration means the driver's own; the pool is never freed.
        unsafe {
            let no_rx_conf = std::ptr::null();
            let result = sys::rte_eth_rx_queue_setup(self.id, queue, rx, socket, no_rx_conf, pool.as_ptr());
            check("rte_eth_rx_queue_setup", result)?;
            check(
                "rte_eth_tx_queue_setup",
                sys::rte_eth_tx_queue_setup(self.id, queue, tx, socket, std::ptr::null()),
            )
        }
    }

    fn mac(&self) -> Result<[u8; 6], DpdkError> {
        let mut mac = sys::rte_ether_addr { addr_bytes: [0; 6] };
        // SAFETY: `self.id` is a device of this `Device`, not closed yet, and the structure is initialised and
        // outlives the call.
        check("rte_eth_macaddr_get", unsafe { sys::rte_eth_macaddr_get(self.id, &mut mac) })?;
        Ok(mac.addr_bytes)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the device is ours (`Device`'s invariant), and no queue of it is in use any more. If a step
        // fails, the device stays as it is for the life of the process.
        unsafe {
            let in_order =
                self.started && self.unplug.is_some() && self.facts.frees_state_when_the_peer_leaves();
            if in_order {
                sys::weft_rte_eth_dev_close_in_order(self.id);
            } else if self.started {
                sys::rte_eth_dev_stop(self.id);
            }
            if let Some((bus, name)) = &self.unplug {
                if !in_order {
                    sys::rte_eth_dev_close(self.id);
                }
                sys::rte_eal_hotplug_remove(bus.as_ptr(), name.as_ptr());
            }
        }
        open.remove(&self.id);
    }
}

/// Enters the device into `open`; refuses if it is already there.
fn claim(
    open: &mut BTreeSet<u16>,
    id: u16,
    name: &str,
    arguments: &str,
    unplug: Option<(&'static CStr, CString)>,
) -> Result<Device, DpdkError> {
    if !open.insert(id) {
        return Err(DpdkError::InUse { device: name.to_owned() });
    }
    let (name, arguments, facts) = (name.to_owned(), arguments.to_owned(), DeviceFacts::default());
    Ok(Device { id, name, arguments, facts, started: false, switch: Mutex::new(()), unplug })
}

/// The hash key in the length that the device wants: the 16 bits of [`SYMMETRIC_KEY`] repeated. Empty if the device
/// reports no length.
fn rss_key(len: u8) -> Vec<u8> {
    SYMMETRIC_KEY.iter().copied().cycle().take(usize::from(len)).collect()
}

fn find(name: &CStr) -> Option<u16> {
    let mut id = 0;
    // SAFETY: the name is a C string, the number ours to write to.
    let result = unsafe { sys::rte_eth_dev_get_port_by_name(name.as_ptr(), &mut id) };
    (result == 0).then_some(id)
}

fn bus_of(name: &str) -> &'static CStr {
    if is_pci_address(name) { PCI_BUS } else { VDEV_BUS }
}

fn check(call: &'static str, result: i32) -> Result<(), DpdkError> {
    if result < 0 { Err(DpdkError::from_code(call, result)) } else { Ok(()) }
}

/// Checks a call that opens a filter: a device without the call has no filter either.
fn unless_unfiltered(call: &'static str, result: i32) -> Result<(), DpdkError> {
    if result == NOT_SUPPORTED { Ok(()) } else { check(call, result) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_keys_have_the_length_that_the_device_wants_and_are_symmetric() {
        assert!(rss_key(0).is_empty());
        assert_eq!(rss_key(40), SYMMETRIC_KEY);
        let long = rss_key(52);
        assert!(long.len() == 52 && long.windows(3).all(|bytes| bytes[0] == bytes[2]));
    }

    #[test]
    fn devices_are_found_on_their_bus() {
        assert_eq!(bus_of("0000:3b:00.0"), PCI_BUS);
        assert_eq!(bus_of("net_memif0"), VDEV_BUS);
    }
}
