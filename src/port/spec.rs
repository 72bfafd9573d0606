//! Ports and peers as they are named: `udp:192.0.2.1,entropies=16`, `memif:/run/weft.sock,role=server`,
//! `dpdk:0000:3b:00.0`, and `192.0.2.2/02:00:00:00:00:02` or `192.0.2.2:5000`.

use core::fmt;
use core::str::FromStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use weft_stack::wire::ethernet::{MacAddr, VlanTag};
use weft_stack::worker::Checksum;

use super::dpdk::device;
use super::memif::MemifSpec;
use super::udp::UdpSpec;

/// The smallest MTU that a port can have, bytes: the packet size that every IPv4 link carries (RFC 791).
pub const LEAST_MTU: u16 = 68;

/// A text that names no port, peer or address. It says what was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {0}")]
pub struct SpecError(String);

impl SpecError {
    pub(crate) fn expected(what: impl Into<String>) -> SpecError {
        SpecError(what.into())
    }
}

/// The name of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortSpec {
    /// `udp:ADDRESS[,port=N][,entropies=N][,shared=on|off][,called=ADDRESS][,gso=on|off][,gro=on|off]`: kernel UDP.
    Udp(UdpSpec),
    /// `memif:SOCKET,role=server|client[,id=N][,secret=TEXT][,bsize=BYTES][,rsize=N]`: memory shared with
    /// another process.
    Memif(Box<MemifSpec>),
    /// `dpdk:DEVICE[,ARGUMENTS]`: a device by its name, as DPDK's own programs take it.
    Dpdk(String),
}

/// How a port is opened, beyond its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortOptions {
    /// The port's own IP address: needed with `dpdk:` and `memif:`, while `udp:` names it.
    pub ip: Option<IpAddr>,
    /// The Ethernet address that frames leave with; the device's if there is none.
    pub mac: Option<MacAddr>,
    /// The longest IP packet, bytes, at least [`LEAST_MTU`]; both ends should have the same. 9000 if nothing is said, or
    /// less where the device or the interface of a `udp:` port has less.
    pub mtu: Option<u16>,
    /// The VLAN tag that frames leave with. The MTU is that of the IP packets in it. A `udp:` port uses the address of a
    /// VLAN interface of the kernel instead.
    pub vlan: Option<VlanTag>,
    /// The IPv4 packets that leave with a UDP checksum.
    pub checksum: Checksum,
    /// Whether packets end with a CRC-32C, as all of their network do: agreed out of band.
    pub crc: bool,
    /// DPDK takes its memory from huge pages; for PCI devices it always does.
    pub huge_pages: bool,
}

/// The name of a peer: `IP`, `IP/MAC`, or `IP:PORT` and `[IP]:PORT` over UDP at shared addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerSpec {
    /// Its IP address.
    pub ip: IpAddr,
    /// Its Ethernet address, or that of the router on the way to it. With `None`, a port that needs the address asks
    /// for it on the link.
    pub mac: Option<MacAddr>,
    /// Its UDP port, where endpoints share their addresses ([`UdpSpec::shared`]), and only there.
    pub port: Option<u16>,
}

impl From<IpAddr> for PeerSpec {
    fn from(ip: IpAddr) -> PeerSpec {
        PeerSpec { ip, mac: None, port: None }
    }
}

impl From<SocketAddr> for PeerSpec {
    fn from(socket: SocketAddr) -> PeerSpec {
        PeerSpec { ip: socket.ip(), mac: None, port: Some(socket.port()) }
    }
}

impl From<Ipv4Addr> for PeerSpec {
    fn from(ip: Ipv4Addr) -> PeerSpec {
        IpAddr::from(ip).into()
    }
}

impl From<Ipv6Addr> for PeerSpec {
    fn from(ip: Ipv6Addr) -> PeerSpec {
        IpAddr::from(ip).into()
    }
}

impl TryFrom<&String> for PeerSpec {
    type Error = SpecError;

    fn try_from(text: &String) -> Result<PeerSpec, SpecError> {
        text.parse()
    }
}

impl TryFrom<String> for PeerSpec {
    type Error = SpecError;

    fn try_from(text: String) -> Result<PeerSpec, SpecError> {
        text.parse()
    }
}

impl TryFrom<&str> for PeerSpec {
    type Error = SpecError;

    fn try_from(text: &str) -> Result<PeerSpec, SpecError> {
        text.parse()
    }
}

impl FromStr for PortSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<PortSpec, SpecError> {
        match text.split_once(':') {
            Some(("udp", rest)) => UdpSpec::parse(rest).map(PortSpec::Udp),
            Some(("memif", rest)) => MemifSpec::parse(rest).map(|spec| PortSpec::Memif(Box::new(spec))),
            Some(("dpdk", rest)) => device(rest).map(|device| PortSpec::Dpdk(device.to_owned())),
            _ => Err(SpecError::expected(format!(
                "udp:ADDRESS[,entropies=N], memif:SOCKET,role=server|client or dpdk:DEVICE[,ARGUMENTS] \
                 instead of {text:?}"
            ))),
        }
    }
}

impl FromStr for PeerSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<PeerSpec, SpecError> {
        if let Ok(socket) = text.parse::<SocketAddr>() {
            return Ok(socket.into());
        }
        let (ip, link) = match text.split_once('/') {
            Some((ip, link)) => (ip, Some(mac(link)?)),
            None => (text, None),
        };
        let ip = ip.parse().map_err(|_| {
            SpecError::expected(format!("IP, IP/MAC or IP:PORT, such as 192.0.2.1, instead of {text:?}"))
        })?;
        Ok(PeerSpec { ip, mac: link, port: None })
    }
}

impl fmt::Display for PortSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortSpec::Dpdk(device) => write!(f, "dpdk:{device}"),
            PortSpec::Memif(spec) => spec.fmt(f),
            PortSpec::Udp(spec) => spec.fmt(f),
        }
    }
}

/// The Ethernet address of one host that `text` names, such as `02:00:00:00:00:01`.
///
/// # Errors
/// It names none.
pub fn mac(text: &str) -> Result<MacAddr, SpecError> {
    let mut bytes = [0; 6];
    let mut parts = text.split(':');
    let two_digits = |part: &str| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit());
    for byte in &mut bytes {
        let part = parts.next().filter(|part| two_digits(part));
        *byte = part.and_then(|part| u8::from_str_radix(part, 16).ok()).ok_or_else(mac_expected)?;
    }
    if parts.next().is_some() || bytes[0] & 1 != 0 || bytes == [0; 6] {
        return Err(mac_expected());
    }
    Ok(MacAddr(bytes))
}

/// The VLAN tag that `text` names: `7`, or `7:3` with a priority.
///
/// # Errors
/// It names none.
pub fn vlan(text: &str) -> Result<VlanTag, SpecError> {
    let expected = || SpecError::expected("ID[:PRIORITY] with an id of 1 to 4094 and a priority of 0 to 7");
    let (id, priority) = text.split_once(':').unwrap_or((text, "0"));
    let (id, priority) = id.parse().ok().zip(priority.parse().ok()).ok_or_else(expected)?;
    // Ids 0 and 4095 name no VLAN (IEEE 802.1Q, table 9-2).
    let valid = (1..=4094).contains(&id) && priority <= 7;
    valid.then_some(VlanTag { priority, drop_eligible: false, id }).ok_or_else(expected)
}

fn mac_expected() -> SpecError {
    SpecError::expected("an Ethernet address of one host, such as 02:00:00:00:00:01")
}

/// The name of a port without the part `ip=ADDRESS`, and the address, if it has one: for `memif:` and `dpdk:`, whose names
/// say nothing of it otherwise.
///
/// # Errors
/// It is no address.
pub(crate) fn split_ip(text: &str) -> Result<(String, Option<IpAddr>), SpecError> {
    let (mut ip, mut rest) = (None, Vec::new());
    for part in text.split(',') {
        match part.strip_prefix("ip=") {
            Some(value) => {
                let expected = || SpecError::expected(format!("an IP address instead of {part:?}"));
                ip = Some(value.parse().map_err(|_| expected())?);
            }
            None => rest.push(part),
        }
    }
    Ok((rest.join(","), ip))
}

pub(super) fn number<T: FromStr + PartialOrd + fmt::Display>(
    part: &str,
    value: &str,
    range: core::ops::RangeInclusive<T>,
) -> Result<T, SpecError> {
    value.parse().ok().filter(|n| range.contains(n)).ok_or_else(|| {
        SpecError::expected(format!("{} to {} instead of {part:?}", range.start(), range.end()))
    })
}

pub(super) fn switch(part: &str, value: &str) -> Result<bool, SpecError> {
    switch_of(part, value, [("on", true), ("off", false)])
}

/// The meaning of one of two words.
pub(super) fn switch_of<T>(part: &str, value: &str, words: [(&str, T); 2]) -> Result<T, SpecError> {
    let expected = format!("{} or {} instead of {part:?}", words[0].0, words[1].0);
    let found = words.into_iter().find(|(word, _)| *word == value);
    found.map(|(_, meaning)| meaning).ok_or_else(|| SpecError::expected(expected))
}
