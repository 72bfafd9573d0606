//! The configuration of a UDP port, its errors and its notices.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;

use crate::wire::class::DscpClasses;
use crate::wire::udp::{ENTROPY_PORT_BASE, UET_UDP_PORT};

/// The configuration of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdpConfig {
    /// The local address that the port is bound to; a unicast address of either version.
    pub address: IpAddr,
    /// The IP address that stands for the port in frames, if it is another one: see [`Peer`].
    pub alias: Option<IpAddr>,
    /// The UDP port where datagrams arrive; 0 for any free one.
    pub port: u16,
    /// The UDP port of peers that have not been [entered](super::UdpPort::meet).
    pub peer_port: u16,
    /// The number of source ports, 1 to [`MAX_SOURCES`]: the number of paths among which the fabric's ECMP can be made
    /// to choose. Both ends should have the same number.
    pub sources: u16,
    /// The first of the source ports, a multiple of `sources`; 0 for any free ones. A peer that has been given other
    /// ports than the default by [`super::UdpPort::as_peer`] reads the same entropies from them.
    pub first_source: u16,
    /// Whether several processes have endpoints at this address, and at those of peers, each at UDP ports of its own:
    /// [`UdpPort::meet_at`](super::UdpPort::meet_at). Such an endpoint has `sources` consecutive UDP ports. Datagrams
    /// arrive at the first, `port`: a multiple of `sources`, or 0 for any. Each entropy leaves from one of them. All
    /// endpoints have the same number of them. Packets of up to 9000 bytes are received even if `mtu` is less. `alias`, `peer_port` and `first_source` are without effect then.
    pub shared_address: bool,
    /// The longest IP packet, bytes. Packets are never fragmented: every path must carry this length.
    pub mtu: usize,
    /// Bytes of receive buffer to ask the kernel for, which may grant less.
    pub receive_buffer: usize,
    /// Bytes of send buffer to ask the kernel for, for each source port.
    pub send_buffer: usize,
    /// Number of frames that can be written or wait to be sent.
    pub tx_frames: usize,
    /// Number of frames for receiving: those that wait for datagrams, and those received and not given back yet.
    pub rx_frames: usize,
    /// The fabric's classes, which tell trimmed datagrams.
    pub classes: DscpClasses,
    /// Whether to pass several datagrams to the kernel as one message, if it can do that (`UDP_SEGMENT`).
    pub gso: bool,
    /// Whether to receive several datagrams as one message, if the kernel can do that (`UDP_GRO`).
    pub gro: bool,
}

/// The longest IP packet of a port for which nothing else is said, bytes.
const USUAL_MTU: usize = 9000;

/// The most source ports.
pub const MAX_SOURCES: u16 = 64;

impl UdpConfig {
    /// The default configuration at this address.
    pub fn at(address: IpAddr) -> UdpConfig {
        UdpConfig { address, ..UdpConfig::default() }
    }

    /// The default configuration, with all UDP ports chosen by the system: for several ports at one address.
    pub fn with_free_ports(self) -> UdpConfig {
        UdpConfig { port: 0, first_source: 0, ..self }
    }

    /// Bytes of the longest IP packet that is received. Endpoints at shared addresses may be at interfaces of different
    /// MTUs, such as the loopback interface and a network card of one host.
    pub(super) fn longest_received(&self) -> usize {
        if self.shared_address { self.mtu.max(USUAL_MTU) } else { self.mtu }
    }

    pub(super) fn check(&self) -> Result<(), UdpError> {
        let broadcast = self.address == IpAddr::V4(Ipv4Addr::BROADCAST);
        if self.address.is_unspecified() || self.address.is_multicast() || broadcast {
            return Err(UdpError::Address(self.address));
        }
        let alias = self.alias.unwrap_or(self.address);
        if alias.is_ipv4() != self.address.is_ipv4() {
            return Err(UdpError::Version { ip: alias, own: self.address });
        }
        let (count, first) = (self.sources, self.first_source);
        let fit =
            first == 0 || (first.is_multiple_of(count.max(1)) && first.checked_add(count - 1).is_some());
        if !(1..=MAX_SOURCES).contains(&count) || !fit {
            return Err(UdpError::Sources { first, count });
        }
        if self.shared_address && own_ports(self.port, count).is_none() {
            return Err(UdpError::Sources { first: self.port, count });
        }
        // At least what IPv4 promises to carry, at most what the length fields of IP and UDP express.
        if !(68..=65_535).contains(&self.mtu) {
            return Err(UdpError::Mtu(self.mtu));
        }
        Ok(())
    }
}

/// The UDP ports of the endpoint that datagrams reach at `first`, if each endpoint has `count`.
pub(super) fn own_ports(first: u16, count: u16) -> Option<RangeInclusive<u16>> {
    let last = first.checked_add(count.checked_sub(1)?)?;
    first.is_multiple_of(count).then_some(first..=last)
}

impl Default for UdpConfig {
    /// At 127.0.0.1, port 4793; 8 source ports from 0xC000, which are the entropies 0 to 7; MTU 9000;
    /// buffers of 4 MiB.
    fn default() -> UdpConfig {
        UdpConfig {
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            alias: None,
            port: UET_UDP_PORT,
            peer_port: UET_UDP_PORT,
            sources: 8,
            first_source: ENTROPY_PORT_BASE,
            shared_address: false,
            mtu: USUAL_MTU,
            receive_buffer: 4 << 20,
            send_buffer: 1 << 20,
            tx_frames: 256,
            rx_frames: 1024,
            classes: DscpClasses::default(),
            gso: true,
            gro: true,
        }
    }
}

/// How a port is reached that has other UDP ports than the standard ones, or shares its address with
/// others. In frames each port has an IP address of its own, which need not exist anywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The IP address that stands for the port in frames.
    pub ip: IpAddr,
    /// The address and UDP port to which datagrams for it are sent.
    pub socket: SocketAddr,
    /// The port's source ports, by entropy.
    pub sources: Vec<u16>,
}

/// Why a port cannot be opened, or a peer cannot be entered.
#[derive(Debug, thiserror::Error)]
pub enum UdpError {
    /// The address is not of a single host: it is multicast, broadcast or unspecified.
    #[error("a UDP port needs the address of an interface of this host, and {0} is none")]
    Address(IpAddr),
    /// Two addresses are of different versions of IP.
    #[error("{ip} is of another IP version than {own}")]
    Version {
        /// The address that was given.
        ip: IpAddr,
        /// The port's own address.
        own: IpAddr,
    },
    /// The source ports are out of range, or not a multiple of their number.
    #[error(
        "{count} source ports from {first}: expected 1 to {MAX_SOURCES}, from a multiple of their number, below 65536"
    )]
    Sources {
        /// The first source port.
        first: u16,
        /// The number of source ports.
        count: u16,
    },
    /// An MTU that no IP packet can have.
    #[error("an MTU of {0} bytes is not between 68 and 65535")]
    Mtu(usize),
    /// The pools are too small: no frame to send from, or too few to receive into.
    #[error("{tx} frames to send and {rx} to receive are too few: expected at least 1 and {needed}")]
    Frames {
        /// Frames for sending.
        tx: usize,
        /// Frames for receiving.
        rx: usize,
        /// The least number of frames for receiving.
        needed: usize,
    },
    /// The system refuses to bind this address and port.
    #[error("UDP {addr}: {}", explain(.error))]
    Bind {
        /// The address and port.
        addr: SocketAddr,
        /// The system's reason.
        error: io::Error,
    },
    /// The system refuses an option that the port needs.
    #[error("UDP {addr}: {option}: {error}")]
    Option {
        /// The address of the socket.
        addr: SocketAddr,
        /// The name of the option.
        option: &'static str,
        /// The system's reason.
        error: io::Error,
    },
    /// There is no route to the peer.
    #[error("no route from {own} to {peer}: {error}")]
    Route {
        /// The port's own address.
        own: IpAddr,
        /// The address of the peer's socket.
        peer: SocketAddr,
        /// The system's reason.
        error: io::Error,
    },
    /// The interface on the way to the peer does not carry packets of the port's MTU.
    #[error(
        "the interface to {peer} carries packets of {interface} bytes, and this port sends {mtu}: lower its MTU"
    )]
    InterfaceMtu {
        /// The address of the peer.
        peer: SocketAddr,
        /// The MTU of the interface, bytes.
        interface: usize,
        /// The configured MTU, bytes.
        mtu: usize,
    },
    /// No consecutive UDP ports are free.
    #[error("UDP {address}: no {count} consecutive ports are free")]
    NoPorts {
        /// The local address.
        address: IpAddr,
        /// The number of ports.
        count: u16,
    },
    /// A UDP port at which no endpoint can be, or an endpoint at an address that is not shared.
    #[error(
        "no endpoint can be at {socket}: expected a multiple of {count}, and a port that shares its address"
    )]
    PeerPort {
        /// The address and port of the peer.
        socket: SocketAddr,
        /// The number of UDP ports of each endpoint.
        count: u16,
    },
    /// All places for peers are taken.
    #[error("no room for the peer {socket}: there are {most} already")]
    TooManyPeers {
        /// The address and port of the peer.
        socket: SocketAddr,
        /// The most peers.
        most: usize,
    },
    /// Another peer has this address or this source port.
    #[error("{ip} at {socket} cannot be told from another peer")]
    PeerTaken {
        /// The address that would stand for it in frames.
        ip: IpAddr,
        /// The address and port of its datagrams.
        socket: SocketAddr,
    },
}

fn explain(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => "another process, or another port of this one, is bound to it".to_owned(),
        io::ErrorKind::AddrNotAvailable => "no interface of this host has this address".to_owned(),
        _ => error.to_string(),
    }
}

/// A notice about a port that works, but not at its best. Each kind is reported once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Every datagram is passed to the kernel by itself.
    NoGso,
    /// Every datagram is received by itself.
    NoGro,
    /// The receive buffer is smaller than asked for.
    ReceiveBuffer {
        /// Bytes asked for.
        asked: usize,
        /// Bytes granted, the kernel's own structures included.
        granted: usize,
    },
    /// A packet was longer than its interface carries, and was dropped. Later ones of that length will be, too.
    TooLong {
        /// Bytes of the IP packet.
        packet: usize,
        /// The MTU of the interface, if the kernel has told it.
        interface: Option<usize>,
    },
    /// A router has reported that a path carries only shorter packets than were sent, or somebody in its name. They are still
    /// sent.
    ShortPath {
        /// The MTU of the path, bytes; 0 if the report does not say.
        path: usize,
    },
    /// Routers or peers have reported that datagrams did not arrive: the first reason.
    Unreachable {
        /// The `errno` value.
        errno: i32,
    },
    /// The system refused to send a datagram, which was dropped: the first reason.
    Refused {
        /// The `errno` value.
        errno: i32,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error = |errno: &i32| io::Error::from_raw_os_error(*errno);
        match self {
            Notice::NoGso => {
                write!(f, "the kernel does not cut datagrams (UDP_SEGMENT): one call's work each")
            }
            Notice::NoGro => write!(f, "the kernel does not join datagrams (UDP_GRO): one call's work each"),
            Notice::ReceiveBuffer { asked, granted } => write!(
                f,
                "the receive buffer has {granted} bytes, not {asked}: raise net.core.rmem_max, or expect losses"
            ),
            Notice::TooLong { packet, interface: Some(interface) } => {
                write!(
                    f,
                    "a packet of {packet} bytes was dropped: its interface carries {interface}; lower the port's MTU"
                )
            }
            Notice::TooLong { packet, interface: None } => {
                write!(
                    f,
                    "a packet of {packet} bytes was dropped: longer than its interface carries; lower the port's MTU"
                )
            }
            Notice::ShortPath { path } => write!(
                f,
                "a router reports that a path carries packets of {path} bytes only: if long messages fail, lower the port's MTU"
            ),
            Notice::Unreachable { errno } => write!(f, "datagrams do not arrive: {}", error(errno)),
            Notice::Refused { errno } => write!(f, "a datagram was not sent: {}", error(errno)),
        }
    }
}

/// Counters of a UDP port beside those of every port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdpCounters {
    /// Calls of `sendmmsg`.
    pub send_calls: u64,
    /// Calls of `recvmmsg`, including those that found nothing.
    pub receive_calls: u64,
    /// Messages sent that consisted of several datagrams.
    pub tx_joined: u64,
    /// Messages received that consisted of several datagrams.
    pub rx_joined: u64,
    /// Datagrams whose payload was copied on arrival, because the kernel had joined other datagrams than expected.
    pub rx_copied: u64,
    /// Messages that the kernel dropped because the receive buffer was full, or because they were damaged
    /// (`SO_MEMINFO`). Each may have been several joined datagrams, so with GRO this is a lower bound for the
    /// datagrams lost.
    pub rx_overflow: u64,
    /// How often a router or peer reported that a datagram did not arrive.
    pub unreachable: u64,
}
