//! Ports by their names: any kind behind one type, opened from a text such as `udp:192.0.2.1,entropies=16`.

mod any;
mod dpdk;
mod memif;
mod spec;
#[cfg(test)]
mod tests;
mod udp;

use std::net::IpAddr;

use weft_stack::cc::{Rate, Span};
use weft_stack::fep::PeerRefusal;
#[cfg(feature = "dpdk")]
use weft_stack::port::dpdk::DpdkError;
use weft_stack::port::memif::MemifError;
use weft_stack::port::udp::{Peer, UdpError, mac_of};
use weft_stack::port::{MIN_FRAME, Port};
use weft_stack::wire::MAX_HEADERS;
use weft_stack::wire::crc;
use weft_stack::wire::ethernet::{VLAN_TAG_LEN, VlanTag};
use weft_stack::wire::udp::HEADER_LEN as UDP;
use weft_stack::worker::session::PlacePeer;
use weft_stack::worker::{Checksum, HostAddr, LinkConfig};

use crate::endpoint::{LinkRate, Settings};

pub use self::any::AnyPort;
pub use self::memif::MemifSpec;
pub(crate) use self::spec::split_ip;
pub use self::spec::{LEAST_MTU, PeerSpec, PortOptions, PortSpec, SpecError, mac, vlan};
pub(crate) use self::udp::own_address;
pub use self::udp::{UdpSpec, interface_of, longest_payload_at};

/// The longest IP packet of a port for which nothing else is said, bytes; less where a UDP port's
/// interface has less.
const DEFAULT_MTU: u16 = 9000;
/// Entropies of a port on which every one of them is as good as any other.
const ALL_PATHS: u16 = 128;
/// The rate of a link that nobody knows.
const UNKNOWN_LINK: Rate = Rate::from_gbps(100);
/// The same over memif: more than processors copy, so that the window is left to the rings. NSCC, for one, holds it to
/// 1.5 BDP of the least RTT seen, which is that of a lone packet, and processes that work in bursts of 32 need several
/// times that.
const MEMORY_LINK: Rate = Rate::from_gbps(800);
/// Preamble, frame check sequence and gap, bytes.
const ETHERNET_EXTRA: u32 = 8 + 4 + 12;
/// The first retransmission timeout, and how often it expires before a peer is given up, between threads that share
/// their processors with others: the system may take a processor away for tens of milliseconds. A peer is given up
/// after 6.3 s.
const SHARED_CORES: (Span, u8) = (Span::from_ms(100), 5);
/// The same over a network card, which a thread polls on a core of its own: even there the kernel takes some
/// milliseconds now and then. A peer is given up after 5.1 s, as its application may be slow whatever the port.
const POLLED_CARD: (Span, u8) = (Span::from_ms(10), 8);

impl PortOptions {
    /// Bytes by which the tag makes frames longer.
    fn tag_len(&self) -> usize {
        tag_len(self.vlan)
    }
}

fn tag_len(vlan: Option<VlanTag>) -> usize {
    vlan.map_or(0, |_| VLAN_TAG_LEN)
}

/// Why a port is not opened, or a peer not entered.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// Devices have no IP address by themselves.
    #[error("{0}: this port has no IP address by itself and needs one")]
    NoAddress(PortSpec),
    /// Two addresses for one port.
    #[error("{spec}: the IP address {ip} is another one than the port's")]
    Address {
        /// The name of the port.
        spec: PortSpec,
        /// The address that the options name.
        ip: IpAddr,
    },
    /// An Ethernet address for a port of the kernel, which uses its own.
    #[error("{0}: an Ethernet address of one's own has no effect: the kernel writes the Ethernet headers")]
    MacOfKernel(PortSpec),
    /// A VLAN tag for a port of the kernel, which writes its own.
    #[error(
        "{0}: a VLAN tag has no effect: the kernel writes the Ethernet headers. Name the address of one of its VLAN interfaces, \
         such as that of `ip link add link eth0 name eth0.7 type vlan id 7`"
    )]
    VlanOfKernel(PortSpec),
    /// The system refuses a socket, or has no path to a peer.
    #[error("{spec}: {error}")]
    Udp {
        /// The name of the port.
        spec: PortSpec,
        /// The error of the UDP port.
        error: UdpError,
    },
    /// The memif socket cannot be had.
    #[error("{spec}: {error}")]
    Memif {
        /// The name of the port.
        spec: PortSpec,
        /// The error of the memif port.
        error: Box<MemifError>,
    },
    /// DPDK refuses the device.
    #[cfg(feature = "dpdk")]
    #[error("{spec}: {error}")]
    Dpdk {
        /// The name of the port.
        spec: PortSpec,
        /// The error of DPDK.
        error: DpdkError,
    },
    /// A DPDK device, but the feature `dpdk` is off.
    #[cfg(not(feature = "dpdk"))]
    #[error("{0}: this weft was built without its feature `dpdk`")]
    WithoutDpdk(PortSpec),
    /// A peer with a UDP port, or without one, where the opposite is needed.
    #[error("{spec}: {}", peer_port(.ip, .port))]
    PeerPort {
        /// The name of the port.
        spec: PortSpec,
        /// The peer's address.
        ip: IpAddr,
        /// The peer's UDP port.
        port: Option<u16>,
    },
    /// The peer uses the other version of IP.
    #[error("{spec}: {ip} is of another IP version than the port's address {own}")]
    Version {
        /// The name of the port.
        spec: PortSpec,
        /// The peer's address.
        ip: IpAddr,
        /// The port's address.
        own: IpAddr,
    },
}

fn peer_port(ip: &IpAddr, port: &Option<u16>) -> String {
    match port {
        Some(port) => {
            format!("only ports with shared=on tell the peers at {ip} apart by UDP ports such as {port}")
        }
        None => {
            format!("the peer {ip} is named without its UDP port, which endpoints at shared addresses need")
        }
    }
}

/// Where frames to a peer go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerAddress {
    /// To these addresses.
    Known(HostAddr),
    /// To this IP address, whose Ethernet address the worker has to ask for.
    ToBeAsked(IpAddr),
}

/// An open port and its properties.
#[derive(Debug)]
pub struct OpenPort {
    /// The port, ready to send and receive.
    pub port: AnyPort,
    /// The properties of the port.
    pub info: PortInfo,
}

/// The first retransmission timeout and the retries that fit the kind of port.
fn timers(spec: Option<&PortSpec>) -> (Span, u8) {
    match spec {
        Some(PortSpec::Dpdk(device)) if dpdk::is_card(device) => POLLED_CARD,
        _ => SHARED_CORES,
    }
}

/// What the configuration of an endpoint follows from at its port, unless its settings say otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortFacts {
    /// Payload of the longest packet that the port takes, bytes.
    pub longest_payload: u32,
    /// Bytes that a data packet costs on the wire beyond its payload.
    pub overhead: u32,
    /// The number of entropies that make a difference.
    pub paths: u16,
    /// The rate of the link.
    pub link: LinkRate,
    /// The first retransmission timeout.
    pub rto: Span,
    /// Expiries of one packet's timer after which its connection fails, the timeout doubling with each.
    pub max_retries: u8,
    /// Whether packets end with a CRC-32C.
    pub crc: bool,
}

/// The properties of an open port.
#[derive(Clone, Debug)]
pub struct PortInfo {
    /// The name it was opened by; none for ports that have no name.
    spec: Option<PortSpec>,
    /// Its own addresses.
    pub host: HostAddr,
    /// The number of entropies that make a difference here.
    pub paths: u16,
    /// The rate of its link, where the system or the device tells.
    pub link: Option<Rate>,
    /// The IP address that peers know it by, if it is another one.
    pub(crate) called: Option<IpAddr>,
    /// The packets that leave with a UDP checksum.
    checksum: Checksum,
    /// Whether packets end with a CRC-32C.
    pub(crate) crc: bool,
    /// The tag that frames leave with.
    vlan: Option<VlanTag>,
    /// Neither end of this link filters by Ethernet address, so frames may carry any.
    point_to_point: bool,
}

impl PortSpec {
    /// Opens the port.
    ///
    /// # Errors
    /// Options that do not go together, or the system's or DPDK's complaint.
    pub fn open(&self, options: &PortOptions) -> Result<OpenPort, PortError> {
        match self {
            PortSpec::Udp(udp) => udp.open(self, options),
            PortSpec::Memif(memif) => memif.open(self, options),
            PortSpec::Dpdk(device) => dpdk::open(self, device, options),
        }
    }
}

impl OpenPort {
    /// One end of a link in this process, whose ends are told apart by `n`: its IP address is 127.0.0.`n`.
    pub fn in_process(port: AnyPort, n: u8) -> OpenPort {
        let ip = IpAddr::from([127, 0, 0, n]);
        let host = HostAddr { mac: mac_of(ip), ip };
        let info = PortInfo {
            spec: None,
            host,
            paths: ALL_PATHS,
            link: None,
            called: None,
            checksum: Checksum::default(),
            crc: false,
            vlan: None,
            point_to_point: true,
        };
        OpenPort { port, info }
    }

    /// Prepares the port for a peer. Returns where that is.
    ///
    /// # Errors
    /// The peer cannot be reached.
    pub fn meet(&mut self, peer: &PeerSpec) -> Result<PeerAddress, PortError> {
        self.info.meet(&mut self.port, peer)
    }

    /// Bytes of the headers of a data packet at their longest: Ethernet, IP, UDP, PDS and SES; and of its CRC.
    pub fn headers(&self) -> u32 {
        let ip = if self.info.host.ip.is_ipv4() { 20 } else { 40 };
        let crc = if self.info.crc { crc::LEN } else { 0 };
        (MIN_FRAME + tag_len(self.info.vlan) + UDP + MAX_HEADERS + crc) as u32 + ip
    }

    /// Bytes of the longest IP packet.
    pub fn mtu(&self) -> usize {
        self.port.capabilities().mtu().saturating_sub(tag_len(self.info.vlan))
    }

    /// What the configuration of an endpoint with `settings` follows from.
    pub fn facts(&self, settings: &Settings) -> PortFacts {
        let unknown = if matches!(self.port, AnyPort::Memif(_)) { MEMORY_LINK } else { UNKNOWN_LINK };
        let (rto, max_retries) = timers(self.info.spec.as_ref());
        PortFacts {
            longest_payload: self.longest_payload(),
            overhead: ETHERNET_EXTRA + self.headers() - if settings.uses_credit() { 0 } else { 4 },
            paths: self.info.paths,
            link: self.info.link.map_or(LinkRate::Assumed(unknown), LinkRate::OfPort),
            rto,
            max_retries,
            crc: self.info.crc,
        }
    }

    /// Bytes of payload that fit into a packet at this port.
    pub fn longest_payload(&self) -> u32 {
        (self.port.capabilities().max_frame as u32).saturating_sub(self.headers())
    }
}

impl PortInfo {
    /// Prepares `port`, which this is about, for a peer. Returns where that is.
    ///
    /// # Errors
    /// The peer cannot be reached.
    pub fn meet(&self, port: &mut AnyPort, peer: &PeerSpec) -> Result<PeerAddress, PortError> {
        let at = |ip| PeerAddress::Known(HostAddr { mac: mac_of(ip), ip });
        let any_mac = at(peer.ip);
        let Some(spec) = self.spec.clone() else { return Ok(any_mac) };
        let shared = matches!(&spec, PortSpec::Udp(udp) if udp.shared);
        match (port, peer.port) {
            (AnyPort::Udp(port), Some(number)) if shared => {
                let alias = port.meet_at((peer.ip, number).into());
                alias.map(at).map_err(|error| PortError::Udp { spec, error })
            }
            (_, number) if number.is_some() != shared => {
                Err(PortError::PeerPort { spec, ip: peer.ip, port: number })
            }
            (port, _) => self.meet_by_address(port, peer, spec, any_mac),
        }
    }

    fn meet_by_address(
        &self,
        port: &mut AnyPort,
        peer: &PeerSpec,
        spec: PortSpec,
        any_mac: PeerAddress,
    ) -> Result<PeerAddress, PortError> {
        if peer.ip.is_ipv4() != self.host.ip.is_ipv4() {
            return Err(PortError::Version { spec, ip: peer.ip, own: self.host.ip });
        }
        if let (AnyPort::Udp(port), PortSpec::Udp(udp)) = (port, &spec) {
            let known =
                Peer { ip: peer.ip, socket: (peer.ip, udp.remote_port()).into(), sources: Vec::new() };
            port.meet(&known).map_err(|error| PortError::Udp { spec, error })?;
            return Ok(any_mac);
        }
        Ok(match peer.mac {
            Some(mac) => PeerAddress::Known(HostAddr { mac, ip: peer.ip }),
            None if self.point_to_point => any_mac,
            None => PeerAddress::ToBeAsked(peer.ip),
        })
    }

    /// The function that gives the Ethernet address of a peer that is added later. `None` if the port has to ask for it
    /// on the link.
    pub fn place_peers(&self) -> Option<PlacePeer<AnyPort>> {
        match &self.spec {
            // A peer that is added later is named without its UDP port.
            Some(PortSpec::Udp(udp)) if udp.shared => Some(Box::new(|_, _| Err(PeerRefusal::Port))),
            Some(PortSpec::Udp(udp)) => {
                let remote = udp.remote_port();
                Some(Box::new(move |port, ip| {
                    let AnyPort::Udp(port) = port else { return Err(PeerRefusal::Port) };
                    let peer = Peer { ip, socket: (ip, remote).into(), sources: Vec::new() };
                    port.meet(&peer).map_err(|_| PeerRefusal::Port)?;
                    Ok(mac_of(ip))
                }))
            }
            None => Some(Box::new(|_, ip| Ok(mac_of(ip)))),
            _ if self.point_to_point => Some(Box::new(|_, ip| Ok(mac_of(ip)))),
            _ => None,
        }
    }

    /// How frames leave.
    pub fn link_config(&self) -> LinkConfig {
        LinkConfig { checksum: self.checksum, vlan: self.vlan, ..LinkConfig::default() }
    }
}
