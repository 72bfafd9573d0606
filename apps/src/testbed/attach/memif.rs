//! Hosts over memif: the fabric owns the sockets, the hosts the memory.

use super::super::rundir::{Owned, State};
use super::{Attached, HostFacts, HostLink};
use crate::Failure;
use std::net::{IpAddr, Ipv4Addr};
use weft_stack::port::MIN_FRAME;
use weft_stack::port::dpdk::{
    DpdkError, DpdkPort, DpdkPortConfig, Eal, EalOptions, MbufPool, MbufPoolConfig, buffer_size_for,
};

/// Buffers for each host: bursts in both directions, and what waits for its link.
const FRAMES: u32 = 192;
/// Those of the caches.
const SPARE: u32 = 1_024;

/// Opens a server of memif for each of `hosts`.
pub(super) fn attach(hosts: &[u32], mtu: u32, owned: &Owned) -> Result<Vec<Attached>, Failure> {
    owned.note(&State { pid: std::process::id(), ..State::default() })?;
    let directory = owned.dir.path().display();
    let buffer = (mtu + MIN_FRAME as u32).next_multiple_of(64);
    let name = |host: u32, role: &str| {
        let n = if role == "server" { host } else { 0 };
        format!("net_memif{n},role={role},socket={directory}/h{host}.sock,socket-abstract=no,bsize={buffer}")
    };
    let devices: Vec<String> = hosts.iter().map(|host| name(*host, "server")).collect();
    let ports = open(&devices, mtu).map_err(|error| Failure::Run(format!("testbed: {error}")))?;
    let one = |(host, port): (&u32, DpdkPort)| Attached {
        facts: HostFacts {
            host: *host,
            port: format!("dpdk:{}", name(*host, "client")),
            ip: Some(address(*host)),
            mtu,
            namespace: None,
            called: address(*host).to_string(),
        },
        ip: address(*host),
        link: HostLink::Dpdk(Box::new(port)),
    };
    Ok(hosts.iter().zip(ports).map(one).collect())
}

/// The address of `host`, which can be any.
pub(super) fn address(host: u32) -> IpAddr {
    let [_, b, c, d] = (host + 1).to_be_bytes();
    IpAddr::V4(Ipv4Addr::new(10, b, c, d))
}

/// Opens these devices, which share a pool.
pub(super) fn open(devices: &[String], mtu: u32) -> Result<Vec<DpdkPort>, DpdkError> {
    let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
    let eal = Eal::init(&EalOptions::default())?;
    let buffer_size = devices.iter().map(|device| buffer_size_for(device, mtu)).max().unwrap_or(mtu);
    let buffers = SPARE + FRAMES * devices.len() as u32;
    let pool = MbufPool::create(
        eal,
        "testbed",
        &MbufPoolConfig { buffers, buffer_size, ..MbufPoolConfig::default() },
    )?;
    let config = DpdkPortConfig { mtu, promiscuous: true, ..DpdkPortConfig::default() };
    devices.iter().map(|device| DpdkPort::open(eal, device, pool, &config)).collect()
}
