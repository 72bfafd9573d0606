//! Hosts over memif: the fabric owns the sockets, and the hosts own the memory.

use super::super::rundir::{Owned, State};
use super::{Attached, HostFacts, HostLink, address};
use crate::Failure;
use weft_stack::port::memif::{MemifConfig, MemifPort, SocketName};

/// Opens a memif server for each of `hosts`.
pub(super) fn attach(hosts: &[u32], mtu: u32, owned: &Owned) -> Result<Vec<Attached>, Failure> {
    owned.note(&State { pid: std::process::id(), ..State::default() })?;
    hosts.iter().map(|host| one(*host, mtu, owned)).collect()
}

fn one(host: u32, mtu: u32, owned: &Owned) -> Result<Attached, Failure> {
    let (ip, socket) = (address(host), owned.dir.path().join(format!("h{host}.sock")));
    let facts = HostFacts {
        host,
        port: format!("memif:{},role=client", socket.display()),
        ip: Some(ip),
        mtu,
        namespace: None,
        called: ip.to_string(),
        serve: None,
    };
    let config = MemifConfig { mtu: mtu as usize, ..MemifConfig::server(SocketName::Path(socket)) };
    let port = MemifPort::open(&config).map_err(|error| Failure::Run(format!("testbed: {error}")))?;
    Ok(Attached { facts, ip, link: HostLink::Memif(Box::new(port)) })
}
