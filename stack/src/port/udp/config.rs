//! How a UDP port is opened, why it is not, and what it has to say.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::wire::class::DscpClasses;
use crate::wire::udp::{ENTROPY_PORT_BASE, UET_UDP_PORT};

/// How a port is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdpConfig {
    /// The local address that it is bound to; a single one, of either version.
    pub address: IpAddr,
    /// What frames call that address, if not by its name: see [`Peer`].
    pub alias: Option<IpAddr>,
    /// The UDP port where datagrams arrive; 0 for any that is free.
    pub port: u16,
    /// The UDP port of peers of whom nothing else is [known](super::UdpPort::meet).
    pub peer_port: u16,
    /// How many source ports there are, 1 to [`MAX_SOURCES`]: as many paths as the fabric's ECMP can be
    /// made to choose. Both ends should have the same number.
    pub sources: u16,
    /// The first of the source ports, a multiple of `sources`; 0 for any that are free. Other ports than the
    /// default's tell a peer the same entropies if it has them from [`super::UdpPort::as_peer`].
    pub first_source: u16,
    /// The longest IP packet, bytes. Nothing is ever fragmented: a path must carry it.
    pub mtu: usize,
    /// Bytes asked for of the buffer for what has arrived; the kernel may grant less.
    pub receive_buffer: usize,
    /// Bytes asked for of each source port's buffer.
    pub send_buffer: usize,
    /// Frames that can be written or wait to be sent.
    pub tx_frames: usize,
    /// Frames that can have been received and not given back, those that wait for datagrams among them.
    pub rx_frames: usize,
    /// The fabric's classes, which say what datagrams are trimmed.
    pub classes: DscpClasses,
    /// Hand the kernel several datagrams as one, if it can (`UDP_SEGMENT`).
    pub gso: bool,
    /// Take several datagrams from the kernel as one, if it can (`UDP_GRO`).
    pub gro: bool,
}

/// Most source ports.
pub const MAX_SOURCES: u16 = 64;

impl UdpConfig {
    /// The default at this address.
    pub fn at(address: IpAddr) -> UdpConfig {
        UdpConfig { address, ..UdpConfig::default() }
    }

    /// The same with all UDP ports chosen by the system: for several ports at one address.
    pub fn with_free_ports(self) -> UdpConfig {
        UdpConfig { port: 0, first_source: 0, ..self }
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
        // What the IP header's length field and UDP's leave, and what IPv4 promises to carry.
        if !(68..=65_535).contains(&self.mtu) {
            return Err(UdpError::Mtu(self.mtu));
        }
        Ok(())
    }
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
            mtu: 9000,
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

/// Where a port is reached whose UDP ports are not the standard's, or that shares its address with
/// others. Frames name each port by an IP address of its own, which then need not exist anywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// What frames call it.
    pub ip: IpAddr,
    /// Where datagrams to it go.
    pub socket: SocketAddr,
    /// Its source ports, by entropy.
    pub sources: Vec<u16>,
}

/// Why a port is not opened, or a peer not entered.
#[derive(Debug, thiserror::Error)]
pub enum UdpError {
    /// No single host has this address.
    #[error("a UDP port needs the address of an interface of this host, and {0} is none")]
    Address(IpAddr),
    /// Two addresses that must be of one version of IP are not.
    #[error("{ip} is of another IP version than {own}")]
    Version {
        /// The one.
        ip: IpAddr,
        /// The port's own.
        own: IpAddr,
    },
    /// The source ports cannot be had.
    #[error(
        "{count} source ports from {first}: expected 1 to {MAX_SOURCES}, from a multiple of their number, below 65536"
    )]
    Sources {
        /// The first one.
        first: u16,
        /// How many.
        count: u16,
    },
    /// No such packets.
    #[error("an MTU of {0} bytes is not between 68 and 65535")]
    Mtu(usize),
    /// There is not room for a single frame, or not enough to receive into.
    #[error("{tx} frames to send and {rx} to receive are too few: expected at least 1 and {needed}")]
    Frames {
        /// For sending.
        tx: usize,
        /// For receiving.
        rx: usize,
        /// What receiving takes.
        needed: usize,
    },
    /// The system does not give this address and port.
    #[error("UDP {addr}: {}", explain(.error))]
    Bind {
        /// Which.
        addr: SocketAddr,
        /// Why not.
        error: io::Error,
    },
    /// The system refuses an option that the port cannot do without.
    #[error("UDP {addr}: {option}: {error}")]
    Option {
        /// The socket.
        addr: SocketAddr,
        /// The option.
        option: &'static str,
        /// Why not.
        error: io::Error,
    },
    /// There is no way to the peer.
    #[error("no route from {own} to {peer}: {error}")]
    Route {
        /// The port's own address.
        own: IpAddr,
        /// The peer.
        peer: SocketAddr,
        /// What the system says.
        error: io::Error,
    },
    /// The way to the peer does not carry the port's packets.
    #[error("the path to {peer} carries packets of {path} bytes, and this port sends {mtu}: lower its MTU")]
    PathMtu {
        /// The peer.
        peer: SocketAddr,
        /// What the path carries.
        path: usize,
        /// What was configured.
        mtu: usize,
    },
    /// Another peer has this address or this source port.
    #[error("{ip} at {socket} cannot be told from another peer")]
    PeerTaken {
        /// What frames would call it.
        ip: IpAddr,
        /// Where it is.
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

/// What is worth knowing about a port that works. Each kind is said once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Every datagram is handed to the kernel by itself.
    NoGso,
    /// Every datagram is taken from the kernel by itself.
    NoGro,
    /// The buffer for what has arrived is smaller than asked for.
    ReceiveBuffer {
        /// Bytes asked for.
        asked: usize,
        /// Bytes that count, the kernel's book-keeping included.
        granted: usize,
    },
    /// A packet was longer than its path carries, and was dropped. So will others be.
    TooLong {
        /// Bytes of the IP packet.
        packet: usize,
        /// What the path carries, if the kernel has said so.
        path: Option<usize>,
    },
    /// Routers or peers have said that datagrams did not get through: the first reason.
    Unreachable {
        /// The system's number of the error.
        errno: i32,
    },
    /// The system did not send a datagram, which was dropped: the first reason.
    Refused {
        /// The system's number of the error.
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
            Notice::TooLong { packet, path: Some(path) } => {
                write!(
                    f,
                    "a packet of {packet} bytes was dropped: its path carries {path}; lower the port's MTU"
                )
            }
            Notice::TooLong { packet, path: None } => {
                write!(
                    f,
                    "a packet of {packet} bytes was dropped: longer than its path carries; lower the port's MTU"
                )
            }
            Notice::Unreachable { errno } => write!(f, "datagrams do not arrive: {}", error(errno)),
            Notice::Refused { errno } => write!(f, "a datagram was not sent: {}", error(errno)),
        }
    }
}

/// What the port has done besides what every port counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdpCounters {
    /// Calls of `sendmmsg`.
    pub send_calls: u64,
    /// Calls of `recvmmsg`, those that found nothing among them.
    pub receive_calls: u64,
    /// Messages handed over that were several datagrams.
    pub tx_joined: u64,
    /// Messages taken that were several datagrams.
    pub rx_joined: u64,
    /// Datagrams whose payload was copied on arrival, because the kernel joined them otherwise than expected.
    pub rx_copied: u64,
    /// Messages that the kernel dropped for want of receive buffer, or because they were damaged (`SO_MEMINFO`).
    /// Each may have been several datagrams, joined: with GRO it is the least that was lost.
    pub rx_overflow: u64,
    /// Times that a router or peer said that a datagram did not get through.
    pub unreachable: u64,
}
