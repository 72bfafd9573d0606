//! Ports over kernel UDP: `udp:ADDRESS[,port=N][,entropies=N][,shared=on|off][,called=ADDRESS][,gso=on|off][,gro=on|off]`.

use core::fmt;
use core::str::FromStr;
use std::net::IpAddr;
use std::path::Path;

use weft_stack::cc::Rate;
use weft_stack::port::udp::{MAX_SOURCES, UdpConfig, UdpPort, mac_of};
use weft_stack::ses::MAX_SEGMENT;
use weft_stack::wire::MAX_HEADERS;
use weft_stack::wire::udp::HEADER_LEN as UDP;
use weft_stack::worker::HostAddr;

use super::spec::{number, switch};
use super::{AnyPort, DEFAULT_MTU, OpenPort, PortError, PortInfo, PortOptions, PortSpec, SpecError};

/// A port over kernel UDP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdpSpec {
    /// Of an interface of this host.
    pub address: IpAddr,
    /// The UDP port of both ends, the standard's if none is given. Of this end at a shared address, any if none is given.
    pub port: Option<u16>,
    /// Number of source ports.
    pub entropies: Option<u16>,
    /// Whether several processes have endpoints at this address, and at those of peers, so that peers are named
    /// `IP:PORT`: [`UdpConfig::shared_address`].
    pub shared: bool,
    /// The IP address that peers know this end by, if something on the way translates addresses.
    pub called: Option<IpAddr>,
    /// Whether to hand the kernel several datagrams at a time.
    pub gso: bool,
    /// Whether to take several datagrams from the kernel at a time.
    pub gro: bool,
}

impl UdpSpec {
    pub(super) fn parse(text: &str) -> Result<UdpSpec, SpecError> {
        let mut parts = text.split(',');
        let address = parts.next().unwrap_or_default();
        let bare = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(address);
        let address = bare.parse().map_err(|_| {
            SpecError::expected(format!("udp:ADDRESS with an IP address of this host instead of {address:?}"))
        })?;
        let (port, entropies, shared, called) = (None, None, false, None);
        let mut spec = UdpSpec { address, port, entropies, shared, called, gso: true, gro: true };
        for part in parts {
            spec.set(part)?;
        }
        Ok(spec)
    }

    fn set(&mut self, part: &str) -> Result<(), SpecError> {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        match key {
            "port" => self.port = Some(number(part, value, 1..=u16::MAX)?),
            "entropies" => self.entropies = Some(number(part, value, 1..=MAX_SOURCES)?),
            "shared" => self.shared = switch(part, value)?,
            "called" => {
                let expected = || SpecError::expected(format!("an IP address instead of {part:?}"));
                self.called = Some(value.parse().map_err(|_| expected())?);
            }
            "gso" => self.gso = switch(part, value)?,
            "gro" => self.gro = switch(part, value)?,
            _ => {
                return Err(SpecError::expected(format!(
                    "port=N, entropies=N, shared=on|off, called=ADDRESS, gso=on|off or gro=on|off instead of {part:?}"
                )));
            }
        }
        Ok(())
    }

    /// The UDP port of this end, and of its peers.
    pub(super) fn remote_port(&self) -> u16 {
        self.port.unwrap_or(UdpConfig::at(self.address).port)
    }

    fn config(&self, mtu: usize) -> UdpConfig {
        let default = UdpConfig::at(self.address);
        let port = self.port.unwrap_or(if self.shared { 0 } else { default.port });
        UdpConfig {
            port,
            peer_port: port,
            shared_address: self.shared,
            sources: self.entropies.unwrap_or(default.sources),
            mtu,
            gso: self.gso,
            gro: self.gro,
            ..default
        }
    }

    /// Opens the port; `spec` is the same as `self`.
    pub(super) fn open(&self, spec: &PortSpec, options: &PortOptions) -> Result<OpenPort, PortError> {
        if let Some(ip) = options.ip.filter(|ip| *ip != self.address) {
            return Err(PortError::Address { spec: spec.clone(), ip });
        }
        if options.mac.is_some() {
            return Err(PortError::MacOfKernel(spec.clone()));
        }
        if options.vlan.is_some() {
            return Err(PortError::VlanOfKernel(spec.clone()));
        }
        let interface = interface_of(self.address);
        let default = || interface.as_deref().and_then(interface_mtu).unwrap_or(DEFAULT_MTU).min(DEFAULT_MTU);
        let config = self.config(usize::from(options.mtu.unwrap_or_else(default)));
        let port = UdpPort::open(&config).map_err(|error| PortError::Udp { spec: spec.clone(), error })?;
        let info = PortInfo {
            host: HostAddr { mac: mac_of(port.ip()), ip: port.ip() },
            paths: port.entropies(),
            link: interface.as_deref().and_then(interface_rate),
            called: self.called,
            checksum: options.checksum,
            crc: options.crc,
            vlan: None,
            point_to_point: true,
            spec: Some(spec.clone()),
        };
        Ok(OpenPort { port: AnyPort::Udp(Box::new(port)), info })
    }
}

impl fmt::Display for UdpSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "udp:{}", self.address)?;
        for (key, value) in [("port", self.port), ("entropies", self.entropies)] {
            value.map_or(Ok(()), |value| write!(f, ",{key}={value}"))?;
        }
        if self.shared {
            f.write_str(",shared=on")?;
        }
        if let Some(called) = self.called {
            write!(f, ",called={called}")?;
        }
        for (key, on) in [("gso", self.gso), ("gro", self.gro)] {
            if !on {
                write!(f, ",{key}=off")?;
            }
        }
        Ok(())
    }
}

/// The interface that has this address.
pub fn interface_of(address: IpAddr) -> Option<String> {
    let all = if_addrs::get_if_addrs().ok()?;
    // The whole of 127.0.0.0/8 belongs to the loopback interface, which lists one address of it.
    let same = |at: &if_addrs::Interface| at.ip() == address || (address.is_loopback() && at.is_loopback());
    all.into_iter().find(same).map(|at| at.name)
}

/// The first address of this host by which other hosts can reach it: one of IPv4 before one of IPv6.
pub(crate) fn own_address() -> Option<IpAddr> {
    let all = if_addrs::get_if_addrs().ok()?;
    let global =
        |ip: &IpAddr| !ip.is_loopback() && !matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
    all.iter().map(if_addrs::Interface::ip).filter(global).min_by_key(IpAddr::is_ipv6)
}

/// Bytes of the longest IP packet on an interface. Linux's loopback carries 65,536, more than IP can.
fn interface_mtu(name: &str) -> Option<u16> {
    let mtu: u32 = interface_fact(name, "mtu")?;
    Some(u16::try_from(mtu).unwrap_or(u16::MAX))
}

/// Bytes of payload that fit into a packet of an endpoint over kernel UDP at `address` if its longest IP packet has `mtu`
/// bytes, or as many as its interface carries: those of a packet of
/// [`Builder::longest_payload`](crate::Builder::longest_payload).
pub fn longest_payload_at(address: IpAddr, mtu: Option<u16>) -> u32 {
    let of_interface = || interface_of(address).as_deref().and_then(interface_mtu);
    let mtu = mtu.unwrap_or_else(|| of_interface().unwrap_or(DEFAULT_MTU).min(DEFAULT_MTU));
    let ip = if address.is_ipv4() { 20 } else { 40 };
    u32::from(mtu).saturating_sub(ip + (UDP + MAX_HEADERS) as u32).min(MAX_SEGMENT)
}

/// Rate of an interface's link; virtual ones have none.
fn interface_rate(name: &str) -> Option<Rate> {
    let mbps: i64 = interface_fact(name, "speed")?;
    u64::try_from(mbps).ok().filter(|mbps| *mbps > 0).map(|mbps| Rate::from_bps(mbps * 1_000_000))
}

fn interface_fact<T: FromStr>(name: &str, fact: &str) -> Option<T> {
    let path = Path::new("/sys/class/net").join(name).join(fact);
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}
