//! Hosts in network namespaces: each has a pair of veth interfaces, with one end in its namespace and the other end in
//! the namespace of the switches.

use super::super::ip;
use super::super::rundir::{Owned, State};
use super::{Attached, HostFacts, HostLink, address};
use crate::Failure;
use rustix::process::geteuid;
use std::fmt::Write;
use std::path::Path;
use weft_stack::port::dpdk::{
    DpdkError, DpdkPort, DpdkPortConfig, Eal, EalOptions, MbufPool, MbufPoolConfig, buffer_size_for,
};
use weft_stack::port::udp::mac_of;
use weft_stack::wire::ethernet::MacAddr;

/// Bytes that the ring of a packet socket needs for each frame in addition to the IP packet.
const RING_OVERHEAD: u32 = 66;
/// Bytes of a block of the ring.
const BLOCK_SIZE: u32 = 36_864;
/// Frame sizes that divide a block, bytes.
const FRAME_SIZES: [u32; 4] = [2_304, 4_608, 9_216, 18_432];
/// Buffers for each host: bursts in both directions, and frames that wait for its link.
const BUFFERS_PER_HOST: u32 = 192;
/// Buffers for the caches of the pool.
const CACHE_BUFFERS: u32 = 1_024;

/// Creates namespaces and interfaces for `hosts` of the testbed `name`, and opens the fabric's ends.
pub(super) fn attach(hosts: &[u32], mtu: u32, owned: &Owned, name: &str) -> Result<Vec<Attached>, Failure> {
    if !geteuid().is_root() {
        return Err(Failure::Run(
            "testbed: --hosts veth makes network namespaces; expected root (sudo), or --hosts udp or memif"
                .to_owned(),
        ));
    }
    let frame = FRAME_SIZES.iter().find(|frame| mtu + RING_OVERHEAD <= **frame).ok_or_else(|| {
        Failure::Usage(format!(
            "testbed: --hosts veth carries packets of {} bytes at most",
            FRAME_SIZES[3] - RING_OVERHEAD
        ))
    })?;
    let state = State {
        pid: std::process::id(),
        namespaces: hosts.iter().map(|host| namespace(name, *host)).collect(),
        links: hosts.iter().map(|host| interface(name, *host)).collect(),
    };
    check_names(&state)?;
    owned.note(&state)?;
    make(hosts, mtu, name)?;
    let ring = format!("blocksz={BLOCK_SIZE},framesz={frame}");
    let devices: Vec<String> = hosts
        .iter()
        .map(|host| format!("net_af_packet{host},iface={},{ring}", interface(name, *host)))
        .collect();
    let ports = open(&devices, mtu).map_err(|error| Failure::Run(format!("testbed: {error}")))?;
    let one = |(host, port)| {
        let ip = address(host);
        Attached {
            facts: HostFacts {
                host,
                port: format!("dpdk:net_af_packet0,iface=eth0,{ring}"),
                ip: Some(ip),
                mtu,
                namespace: Some(namespace(name, host)),
                called: format!("{ip}/{}", mac_text(mac_of(ip))),
                serve: None,
            },
            ip,
            link: HostLink::Dpdk(Box::new(port)),
        }
    };
    Ok(hosts.iter().copied().zip(ports).map(one).collect())
}

/// Opens `devices`, which share a buffer pool.
fn open(devices: &[String], mtu: u32) -> Result<Vec<DpdkPort>, DpdkError> {
    let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
    let eal = Eal::init(&EalOptions::default())?;
    let buffer_size = devices.iter().map(|device| buffer_size_for(device, mtu)).max().unwrap_or(mtu);
    let buffers = CACHE_BUFFERS + BUFFERS_PER_HOST * devices.len() as u32;
    let pool = MbufPool::create(
        eal,
        "testbed",
        &MbufPoolConfig { buffers, buffer_size, ..MbufPoolConfig::default() },
    )?;
    let config = DpdkPortConfig { mtu, promiscuous: true, ..DpdkPortConfig::default() };
    devices.iter().map(|device| DpdkPort::open(eal, device, pool, &config)).collect()
}

fn namespace(name: &str, host: u32) -> String {
    format!("{name}-h{host}")
}

/// The name of the fabric's end: names of interfaces have at most 15 characters.
fn interface(name: &str, host: u32) -> String {
    format!("{name}-s{host}")
}

fn make(hosts: &[u32], mtu: u32, name: &str) -> Result<(), Failure> {
    let (mut links, mut up) = (String::new(), String::new());
    for host in hosts {
        let (namespace, switch, mac) =
            (namespace(name, *host), interface(name, *host), mac_text(mac_of(address(*host))));
        let _ = writeln!(
            links,
            "netns add {namespace}\n\
             link add {switch} mtu {mtu} type veth peer name eth0 address {mac} mtu {mtu} netns {namespace}"
        );
        let _ = writeln!(up, "link set {switch} up");
    }
    ip::batch(None, &links)?;
    hosts.iter().for_each(|host| disable_ipv6(None, &interface(name, *host)));
    ip::batch(None, &up)?;
    for host in hosts {
        let namespace = namespace(name, *host);
        disable_ipv6(Some(&namespace), "eth0");
        ip::batch(Some(&namespace), "link set lo up\nlink set eth0 up\n")?;
    }
    Ok(())
}

/// An Ethernet address in the form that options accept.
fn mac_text(mac: MacAddr) -> String {
    mac.0.map(|byte| format!("{byte:02x}")).join(":")
}

/// Gives the link no IPv6 address, so that the kernel sends nothing on it. The command fails, without harm, on a kernel
/// without IPv6.
fn disable_ipv6(namespace: Option<&str>, link: &str) {
    let _ = ip::batch(namespace, &format!("link set {link} addrgenmode none\n"));
}

/// Refuses names that are in use: a namespace or interface of another program must not be removed with the testbed.
fn check_names(state: &State) -> Result<(), Failure> {
    let taken = |directory: &str, name: &&String| Path::new(directory).join(name).exists();
    let namespace = state.namespaces.iter().find(|name| taken("/run/netns", name));
    let link = state.links.iter().find(|name| taken("/sys/class/net", name));
    let (what, name, remove) = match (namespace, link) {
        (Some(name), _) => ("a network namespace", name, "ip netns delete"),
        (None, Some(name)) => ("an interface", name, "ip link delete"),
        (None, None) => return Ok(()),
    };
    Err(Failure::Run(format!(
        "testbed: there is {what} {name} already; expected another --name, or {remove} {name} if nobody needs it"
    )))
}
