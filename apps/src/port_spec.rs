//! Ports as they are named on the command line, and opened: `udp:192.0.2.1,entropies=16`,
//! `memif:/run/weft.sock,role=server`, `dpdk:0000:3b:00.0`.

mod any;
mod memif;

pub(crate) use self::any::AnyPort;
use self::memif::MemifSpec;
use crate::units::ValueError;
use clap::{Args, ValueEnum};
use core::fmt;
use core::str::FromStr;
use std::net::IpAddr;
use std::path::Path;
#[cfg(feature = "dpdk")]
use std::time::Duration;
use thiserror::Error;
use weft_cc::Rate;
use weft_stack::fep::PeerRefusal;
#[cfg(feature = "dpdk")]
use weft_stack::port::dpdk::{
    DpdkError, DpdkPort, DpdkPortConfig, Eal, EalOptions, MbufPool, MbufPoolConfig, buffer_size_for,
};
use weft_stack::port::memif::{MemifError, MemifPort};
use weft_stack::port::udp::{MAX_SOURCES, Peer, UdpConfig, UdpError, UdpPort, mac_of};
use weft_stack::port::{MIN_FRAME, Port};
use weft_stack::wire::MAX_HEADERS;
use weft_stack::wire::ethernet::{MacAddr, VLAN_TAG_LEN, VlanTag};
use weft_stack::wire::udp::HEADER_LEN as UDP;
use weft_stack::worker::session::PlacePeer;
use weft_stack::worker::{Checksum, HostAddr, LinkConfig};

/// The longest IP packet of a port for which nothing else is said, bytes; less where a UDP port's
/// interface has less.
const DEFAULT_MTU: u16 = 9000;
/// What IPv4 promises to carry.
const LEAST_MTU: u16 = 68;
/// Entropies of a port on which every one of them is as good as any other.
const ALL_PATHS: u16 = 128;
/// How long a port waits, when it is opened, until its network card has agreed with the other end about the rate of the
/// link: congestion control is set up with it, once. Over copper that takes two to four seconds, and training of a fast
/// link can take as long.
#[cfg(feature = "dpdk")]
const NEGOTIATION: Duration = Duration::from_secs(10);

/// A port, named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PortSpec {
    /// `udp:ADDRESS[,port=N][,entropies=N][,gso=on|off][,gro=on|off]`: kernel UDP.
    Udp(UdpSpec),
    /// `memif:SOCKET,role=server|client[,…]`: memory shared with another process.
    Memif(Box<MemifSpec>),
    /// `dpdk:DEVICE[,ARGUMENTS]`: a device by its name, as DPDK's own programs take it.
    Dpdk(String),
}

/// A port over kernel UDP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UdpSpec {
    /// Of an interface of this host.
    pub(crate) address: IpAddr,
    /// The UDP port of both ends; the standard's if none is given.
    pub(crate) port: Option<u16>,
    /// Number of source ports.
    pub(crate) entropies: Option<u16>,
    /// Whether to hand the kernel several datagrams at a time.
    pub(crate) gso: bool,
    /// Whether to take several datagrams from the kernel at a time.
    pub(crate) gro: bool,
}

/// Options that go with `--port`.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct PortOptions {
    /// The port's own IP address: needed with dpdk: and memif:, while udp: names it.
    #[arg(long, value_name = "IP")]
    pub(crate) ip: Option<IpAddr>,
    /// The Ethernet address that frames leave with [default: the device's].
    #[arg(long, value_name = "MAC", value_parser = mac)]
    pub(crate) mac: Option<MacAddr>,
    /// The longest IP packet, bytes; both ends should have the same [default: 9000, or less where
    /// the device or the interface of a udp: port has less].
    #[arg(long = "port-mtu", value_name = "BYTES", value_parser = clap::value_parser!(u16).range(i64::from(LEAST_MTU)..))]
    pub(crate) mtu: Option<u16>,
    /// The VLAN tag that frames leave with: an id of 1 to 4094, and a priority of 0 to 7. The MTU is that of the IP packets in
    /// it. For a udp: port, use the address of a VLAN interface of the kernel.
    #[arg(long, value_name = "ID[:PRIORITY]", value_parser = vlan)]
    pub(crate) vlan: Option<VlanTag>,
    /// Which IPv4 packets get a UDP checksum: auto, all but those over devices that join two memories
    /// (memif:, net_memif, net_ring); full, all, as needed where such a device leads to a switch with wires; or none.
    /// IPv6 requires it of all.
    #[arg(long, value_name = "auto|full|none", default_value = "auto")]
    pub(crate) checksum: ChecksumArg,
    /// Take DPDK's memory from huge pages; PCI devices always do.
    #[arg(long)]
    pub(crate) huge_pages: bool,
}

/// Which IPv4 packets get a UDP checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ChecksumArg {
    #[default]
    Auto,
    Full,
    None,
}

impl PortOptions {
    /// Bytes by which the tag makes frames longer.
    fn tag_len(&self) -> usize {
        tag_len(self.vlan)
    }
}

fn tag_len(vlan: Option<VlanTag>) -> usize {
    vlan.map_or(0, |_| VLAN_TAG_LEN)
}

impl From<ChecksumArg> for Checksum {
    fn from(arg: ChecksumArg) -> Checksum {
        match arg {
            ChecksumArg::Auto => Checksum::WhereNeeded,
            ChecksumArg::Full => Checksum::Always,
            ChecksumArg::None => Checksum::Never,
        }
    }
}

/// The other end: `IP` or `IP/MAC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerSpec {
    /// Its IP address.
    pub(crate) ip: IpAddr,
    /// Its Ethernet address, or that of the router on the way to it.
    pub(crate) mac: Option<MacAddr>,
}

/// Why a port is not opened, or a peer not entered.
#[derive(Debug, Error)]
pub(crate) enum PortError {
    /// Devices have no IP address by themselves.
    #[error("{0}: this port has no IP address by itself: say --ip ADDRESS")]
    NoAddress(PortSpec),
    /// Two addresses for one port.
    #[error("{spec}: --ip {ip} is another address than the port's")]
    Address { spec: PortSpec, ip: IpAddr },
    /// The kernel's own is used.
    #[error("{0}: --mac has no effect: the kernel writes the Ethernet headers")]
    MacOfKernel(PortSpec),
    /// The kernel's own are used.
    #[error(
        "{0}: --vlan has no effect: the kernel writes the Ethernet headers. Name the address of one of its VLAN interfaces, \
         such as that of `ip link add link eth0 name eth0.7 type vlan id 7`"
    )]
    VlanOfKernel(PortSpec),
    /// The system refuses.
    #[error("{spec}: {error}")]
    Udp { spec: PortSpec, error: UdpError },
    /// The socket is not to be had.
    #[error("{spec}: {error}")]
    Memif { spec: PortSpec, error: Box<MemifError> },
    /// DPDK refuses.
    #[cfg(feature = "dpdk")]
    #[error("{spec}: {error}")]
    Dpdk { spec: PortSpec, error: DpdkError },
    /// Built without.
    #[cfg(not(feature = "dpdk"))]
    #[error("{0}: this weft was built without its feature `dpdk`")]
    WithoutDpdk(PortSpec),
    /// The peer uses the other version of IP.
    #[error("{spec}: {ip} is of another IP version than the port's address {own}")]
    Version { spec: PortSpec, ip: IpAddr, own: IpAddr },
}

/// Where a peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Here.
    Known(HostAddr),
    /// Only its IP address is known: the worker has to ask for the other.
    ToBeAsked(IpAddr),
}

/// A port and what is known about it.
#[derive(Debug)]
pub(crate) struct OpenPort {
    /// The port.
    pub(crate) port: AnyPort,
    /// What it was opened from; none for ports that have no name.
    spec: Option<PortSpec>,
    /// Its own addresses.
    pub(crate) host: HostAddr,
    /// How many entropies make a difference here.
    pub(crate) paths: u16,
    /// Rate of its link, where the system or the device says it.
    pub(crate) link: Option<Rate>,
    /// Which packets leave with a UDP checksum.
    checksum: Checksum,
    /// The tag that frames leave with.
    vlan: Option<VlanTag>,
    /// Nobody filters by Ethernet address on this link, so any will do.
    point_to_point: bool,
}

impl FromStr for PortSpec {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<PortSpec, ValueError> {
        match text.split_once(':') {
            Some(("udp", rest)) => UdpSpec::parse(rest).map(PortSpec::Udp),
            Some(("memif", rest)) => MemifSpec::parse(rest).map(|spec| PortSpec::Memif(Box::new(spec))),
            Some(("dpdk", rest)) => device(rest).map(|device| PortSpec::Dpdk(device.to_owned())),
            _ => Err(ValueError::expected(format!(
                "udp:ADDRESS[,entropies=N], memif:SOCKET,role=server|client or dpdk:DEVICE[,ARGUMENTS] \
                 instead of {text:?}"
            ))),
        }
    }
}

/// `net_memif0,role=client`, `0000:3b:00.0`: what DPDK is to be asked for is DPDK's affair, but it must
/// be something.
fn device(text: &str) -> Result<&str, ValueError> {
    let name = text.split(',').next().unwrap_or_default();
    if name.is_empty() || name.contains(|c: char| c.is_whitespace() || c.is_control()) {
        let expected = "dpdk:DEVICE[,ARGUMENTS], such as dpdk:net_memif0,role=client or dpdk:0000:3b:00.0";
        return Err(ValueError::expected(format!("{expected}, and {name:?} is no device")));
    }
    Ok(text)
}

impl UdpSpec {
    fn parse(text: &str) -> Result<UdpSpec, ValueError> {
        let mut parts = text.split(',');
        let address = parts.next().unwrap_or_default();
        let bare = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(address);
        let address = bare.parse().map_err(|_| {
            ValueError::expected(format!(
                "udp:ADDRESS with an IP address of this host instead of {address:?}"
            ))
        })?;
        let mut spec = UdpSpec { address, port: None, entropies: None, gso: true, gro: true };
        for part in parts {
            spec.set(part)?;
        }
        Ok(spec)
    }

    fn set(&mut self, part: &str) -> Result<(), ValueError> {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        match key {
            "port" => self.port = Some(number(part, value, 1..=u16::MAX)?),
            "entropies" => self.entropies = Some(number(part, value, 1..=MAX_SOURCES)?),
            "gso" => self.gso = switch(part, value)?,
            "gro" => self.gro = switch(part, value)?,
            _ => {
                return Err(ValueError::expected(format!(
                    "port=N, entropies=N, gso=on|off or gro=on|off instead of {part:?}"
                )));
            }
        }
        Ok(())
    }

    fn config(&self, mtu: usize) -> UdpConfig {
        let default = UdpConfig::at(self.address);
        let port = self.port.unwrap_or(default.port);
        UdpConfig {
            port,
            peer_port: port,
            sources: self.entropies.unwrap_or(default.sources),
            mtu,
            gso: self.gso,
            gro: self.gro,
            ..default
        }
    }
}

fn number<T: FromStr + PartialOrd + fmt::Display>(
    part: &str,
    value: &str,
    range: core::ops::RangeInclusive<T>,
) -> Result<T, ValueError> {
    value.parse().ok().filter(|n| range.contains(n)).ok_or_else(|| {
        ValueError::expected(format!("{} to {} instead of {part:?}", range.start(), range.end()))
    })
}

fn switch(part: &str, value: &str) -> Result<bool, ValueError> {
    switch_of(part, value, [("on", true), ("off", false)])
}

/// What the one or the other word stands for.
fn switch_of<T>(part: &str, value: &str, words: [(&str, T); 2]) -> Result<T, ValueError> {
    let expected = format!("{} or {} instead of {part:?}", words[0].0, words[1].0);
    let found = words.into_iter().find(|(word, _)| *word == value);
    found.map(|(_, meaning)| meaning).ok_or_else(|| ValueError::expected(expected))
}

/// `02:00:00:00:00:01`.
pub(crate) fn mac(text: &str) -> Result<MacAddr, ValueError> {
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

/// `7`, `7:3`.
fn vlan(text: &str) -> Result<VlanTag, ValueError> {
    let expected = || ValueError::expected("ID[:PRIORITY] with an id of 1 to 4094 and a priority of 0 to 7");
    let (id, priority) = text.split_once(':').unwrap_or((text, "0"));
    let (id, priority) = id.parse().ok().zip(priority.parse().ok()).ok_or_else(expected)?;
    // Ids 0 and 4095 name no VLAN (IEEE 802.1Q, table 9-2).
    let valid = (1..=4094).contains(&id) && priority <= 7;
    valid.then_some(VlanTag { priority, drop_eligible: false, id }).ok_or_else(expected)
}

fn mac_expected() -> ValueError {
    ValueError::expected("an Ethernet address of one host, such as 02:00:00:00:00:01")
}

impl fmt::Display for PortSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortSpec::Dpdk(device) => write!(f, "dpdk:{device}"),
            PortSpec::Memif(spec) => spec.fmt(f),
            PortSpec::Udp(spec) => {
                write!(f, "udp:{}", spec.address)?;
                let options = [("port", spec.port), ("entropies", spec.entropies)];
                for (key, value) in options {
                    value.map_or(Ok(()), |value| write!(f, ",{key}={value}"))?;
                }
                for (key, on) in [("gso", spec.gso), ("gro", spec.gro)] {
                    if !on {
                        write!(f, ",{key}=off")?;
                    }
                }
                Ok(())
            }
        }
    }
}

impl FromStr for PeerSpec {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<PeerSpec, ValueError> {
        let (ip, link) = match text.split_once('/') {
            Some((ip, link)) => (ip, Some(mac(link)?)),
            None => (text, None),
        };
        let ip = ip.parse().map_err(|_| ValueError::expected("IP or IP/MAC, such as 192.0.2.1"))?;
        Ok(PeerSpec { ip, mac: link })
    }
}

impl PortSpec {
    /// Opens the port.
    ///
    /// # Errors
    /// Options that do not go together, or what the system or DPDK says.
    pub(crate) fn open(&self, options: &PortOptions) -> Result<OpenPort, PortError> {
        match self {
            PortSpec::Udp(udp) => self.open_udp(udp, options),
            PortSpec::Memif(memif) => self.open_memif(memif, options),
            PortSpec::Dpdk(device) => self.open_dpdk(device, options),
        }
    }

    fn open_udp(&self, udp: &UdpSpec, options: &PortOptions) -> Result<OpenPort, PortError> {
        if let Some(ip) = options.ip.filter(|ip| *ip != udp.address) {
            return Err(PortError::Address { spec: self.clone(), ip });
        }
        if options.mac.is_some() {
            return Err(PortError::MacOfKernel(self.clone()));
        }
        if options.vlan.is_some() {
            return Err(PortError::VlanOfKernel(self.clone()));
        }
        let interface = interface_of(udp.address);
        let default = || interface.as_deref().and_then(interface_mtu).unwrap_or(DEFAULT_MTU).min(DEFAULT_MTU);
        let config = udp.config(usize::from(options.mtu.unwrap_or_else(default)));
        let port = UdpPort::open(&config).map_err(|error| PortError::Udp { spec: self.clone(), error })?;
        Ok(OpenPort {
            host: HostAddr { mac: mac_of(udp.address), ip: udp.address },
            paths: port.entropies(),
            link: interface.as_deref().and_then(interface_rate),
            checksum: options.checksum.into(),
            vlan: None,
            point_to_point: true,
            port: AnyPort::Udp(Box::new(port)),
            spec: Some(self.clone()),
        })
    }

    fn open_memif(&self, memif: &MemifSpec, options: &PortOptions) -> Result<OpenPort, PortError> {
        let ip = options.ip.ok_or_else(|| PortError::NoAddress(self.clone()))?;
        let mac = options.mac.unwrap_or(mac_of(ip));
        let payload = usize::from(options.mtu.unwrap_or(DEFAULT_MTU)) + options.tag_len();
        // Frames of memif can be no longer.
        let config = memif.config(payload.min(usize::from(u16::MAX)), mac.0);
        let port = MemifPort::open(&config)
            .map_err(|error| PortError::Memif { spec: self.clone(), error: Box::new(error) })?;
        Ok(OpenPort {
            port: AnyPort::Memif(Box::new(port)),
            spec: Some(self.clone()),
            host: HostAddr { mac, ip },
            paths: ALL_PATHS,
            link: None,
            checksum: options.checksum.into(),
            vlan: options.vlan,
            point_to_point: true,
        })
    }

    #[cfg(feature = "dpdk")]
    fn open_dpdk(&self, device: &str, options: &PortOptions) -> Result<OpenPort, PortError> {
        let ip = options.ip.ok_or_else(|| PortError::NoAddress(self.clone()))?;
        let port =
            start_dpdk(device, options).map_err(|error| PortError::Dpdk { spec: self.clone(), error })?;
        let own = MacAddr(port.capabilities().mac);
        if is_card(device) {
            // Without a link there is no rate; whoever needs the link says that it is missing.
            let _ = port.wait_for_link(NEGOTIATION);
        }
        let link = port.link_rate();
        let point_to_point = joins_two(device);
        // The devices that join two processes make up a new address each time.
        let mac = options.mac.unwrap_or(if point_to_point { mac_of(ip) } else { own });
        Ok(OpenPort {
            port: AnyPort::Dpdk(Box::new(port)),
            spec: Some(self.clone()),
            host: HostAddr { mac, ip },
            paths: ALL_PATHS,
            link,
            checksum: options.checksum.into(),
            vlan: options.vlan,
            point_to_point,
        })
    }

    #[cfg(not(feature = "dpdk"))]
    fn open_dpdk(&self, _device: &str, _options: &PortOptions) -> Result<OpenPort, PortError> {
        Err(PortError::WithoutDpdk(self.clone()))
    }
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
    let pool = MbufPool::create(eal, "port", &MbufPoolConfig { buffer_size, ..MbufPoolConfig::default() })?;
    let config = DpdkPortConfig {
        mtu,
        // Nobody asked for that much.
        or_less: options.mtu.is_none(),
        tagged: options.vlan.is_some(),
        // Cards pass on only what is sent to their own address.
        promiscuous: options.mac.is_some(),
        ..DpdkPortConfig::default()
    };
    DpdkPort::open(eal, device, pool, &config)
}

/// Whether the device is one that is there, such as a network card, and not one that DPDK makes up.
#[cfg(feature = "dpdk")]
fn is_card(device: &str) -> bool {
    !device.starts_with("net_")
}

/// Whether the device has one other end, in another process, and nothing between them looks at
/// Ethernet addresses.
#[cfg(any(feature = "dpdk", test))]
fn joins_two(device: &str) -> bool {
    ["net_memif", "net_ring", "net_pcap", "net_null"].iter().any(|driver| device.starts_with(driver))
}

impl OpenPort {
    /// One end of a link in this process, whose ends are told apart by `n`.
    pub(crate) fn in_process(port: AnyPort, n: u8) -> OpenPort {
        let ip = IpAddr::from([127, 0, 0, n]);
        let host = HostAddr { mac: mac_of(ip), ip };
        OpenPort {
            port,
            spec: None,
            host,
            paths: ALL_PATHS,
            link: None,
            checksum: Checksum::default(),
            vlan: None,
            point_to_point: true,
        }
    }

    /// Prepares the port for a peer. Returns where that is.
    ///
    /// # Errors
    /// The peer cannot be reached.
    pub(crate) fn meet(&mut self, peer: &PeerSpec) -> Result<Place, PortError> {
        let any_mac = Place::Known(HostAddr { mac: mac_of(peer.ip), ip: peer.ip });
        let Some(spec) = self.spec.clone() else { return Ok(any_mac) };
        if peer.ip.is_ipv4() != self.host.ip.is_ipv4() {
            return Err(PortError::Version { spec, ip: peer.ip, own: self.host.ip });
        }
        if let (AnyPort::Udp(port), PortSpec::Udp(udp)) = (&mut self.port, &spec) {
            let remote = udp.port.unwrap_or(UdpConfig::default().port);
            let known = Peer { ip: peer.ip, socket: (peer.ip, remote).into(), sources: Vec::new() };
            port.meet(&known).map_err(|error| PortError::Udp { spec, error })?;
            return Ok(any_mac);
        }
        Ok(match peer.mac {
            Some(mac) => Place::Known(HostAddr { mac, ip: peer.ip }),
            None if self.point_to_point => any_mac,
            None => Place::ToBeAsked(peer.ip),
        })
    }

    /// How the port finds peers that are added later, if it asks no link for their Ethernet addresses.
    pub(crate) fn place_peers(&self) -> Option<PlacePeer<AnyPort>> {
        match (&self.port, &self.spec) {
            (AnyPort::Udp(_), Some(PortSpec::Udp(udp))) => {
                let remote = udp.port.unwrap_or(UdpConfig::default().port);
                Some(Box::new(move |port, ip| {
                    let AnyPort::Udp(port) = port else { return Err(PeerRefusal::Port) };
                    let peer = Peer { ip, socket: (ip, remote).into(), sources: Vec::new() };
                    port.meet(&peer).map_err(|_| PeerRefusal::Port)?;
                    Ok(mac_of(ip))
                }))
            }
            (_, None) => Some(Box::new(|_, ip| Ok(mac_of(ip)))),
            _ if self.point_to_point => Some(Box::new(|_, ip| Ok(mac_of(ip)))),
            _ => None,
        }
    }

    /// How frames leave.
    pub(crate) fn link_config(&self) -> LinkConfig {
        LinkConfig { checksum: self.checksum, vlan: self.vlan, ..LinkConfig::default() }
    }

    /// Bytes of the headers of a data packet at their longest: Ethernet, IP, UDP, PDS and SES.
    pub(crate) fn headers(&self) -> u32 {
        let ip = if self.host.ip.is_ipv4() { 20 } else { 40 };
        (MIN_FRAME + tag_len(self.vlan) + UDP + MAX_HEADERS) as u32 + ip
    }

    /// Bytes of the longest IP packet.
    pub(crate) fn mtu(&self) -> usize {
        self.port.capabilities().mtu().saturating_sub(tag_len(self.vlan))
    }

    /// Bytes of payload that fit into a packet at this port.
    pub(crate) fn longest_payload(&self) -> u32 {
        (self.port.capabilities().max_frame as u32).saturating_sub(self.headers())
    }
}

/// The interface that has this address.
pub(crate) fn interface_of(address: IpAddr) -> Option<String> {
    let all = if_addrs::get_if_addrs().ok()?;
    // The whole of 127.0.0.0/8 belongs to the loopback interface, which lists one address of it.
    let same = |at: &if_addrs::Interface| at.ip() == address || (address.is_loopback() && at.is_loopback());
    all.into_iter().find(same).map(|at| at.name)
}

/// Bytes of the longest IP packet on an interface. Linux's loopback carries 65,536, more than IP can.
fn interface_mtu(name: &str) -> Option<u16> {
    let mtu: u32 = interface_fact(name, "mtu")?;
    Some(u16::try_from(mtu).unwrap_or(u16::MAX))
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

#[cfg(test)]
mod tests;
