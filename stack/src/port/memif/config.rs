//! The configuration of a memif port, and its errors.
#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use super::ring::{RING_ALIGNMENT, SHORT, SHORTEST, ring_bytes};
use crate::port::{MIN_FRAME, PortCaps, Timestamps};

/// The most bytes of a secret: the length of the protocol's field. DPDK's driver keeps one byte less.
pub const MAX_SECRET: usize = 24;
/// The most bytes of an interface's name: one less than the protocol's field, for peers that need a zero at its end.
pub const MAX_NAME: usize = 31;
/// The most slots of a ring, as a power of two: the limit of DPDK's driver.
pub const MAX_LOG2_RING: u8 = 14;
/// The most bytes of a socket's name: those of the system's address, less the zero before or after the name.
pub const MAX_SOCKET_NAME: usize = 107;

/// How long a handshake may take.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(2);
/// The time between two attempts of a client to connect, and before a server that ran out of descriptors accepts again.
pub(super) const RETRY: Duration = Duration::from_millis(100);

/// The configuration of a port.
#[derive(Clone, PartialEq, Eq)]
pub struct MemifConfig {
    /// The end of the link that the port is.
    pub role: Role,
    /// The socket at which both ends meet.
    pub socket: SocketName,
    /// The number of the interface at that socket; the same at both ends.
    pub id: u32,
    /// The secret that the client sends and the server demands, up to [`MAX_SECRET`] bytes; if it is empty the server
    /// demands none. It keeps out mistakes, not intruders: it is sent unencrypted.
    pub secret: String,
    /// The name of this interface that peers show, up to [`MAX_NAME`] bytes.
    pub name: String,
    /// The port's own Ethernet address. The protocol does not send it to the peer.
    pub mac: [u8; 6],
    /// The longest IP packet, bytes. The protocol does not send it: the peer must be configured for as much.
    pub mtu: usize,
    /// Slots of each ring that a client makes, as a power of two, 1 to [`MAX_LOG2_RING`]. Its server may demand
    /// fewer. A server ignores this, and takes the rings that its client offers.
    pub log2_ring: u8,
    /// Bytes of each long buffer that a client makes, beside the short ones for frames up to 192 bytes that it sends.
    /// By default a buffer holds the longest frame, and 2048 bytes at least: see [`MemifConfig::buffer_bytes`]. A
    /// server ignores this, and takes the buffers that its client offers.
    pub buffer_size: Option<u32>,
}

/// The two ends of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Listens at the socket, and uses the memory that the client provides. Formerly called master.
    Server,
    /// Provides the memory, and connects to the socket until it has a link. Formerly called slave.
    Client,
}

/// The name of a Unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SocketName {
    /// The path of a socket file.
    Path(PathBuf),
    /// A name in the abstract name space, which vanishes with its last user. DPDK's driver takes its socket's name for
    /// an abstract one unless it is told `socket-abstract=no`.
    Abstract(String),
}

impl SocketName {
    /// The socket that `text` names: an abstract one if it begins with `@`, else a file.
    pub fn parse(text: &str) -> SocketName {
        match text.strip_prefix('@') {
            Some(name) => SocketName::Abstract(name.to_owned()),
            None => SocketName::Path(text.into()),
        }
    }

    fn check(&self) -> Result<(), MemifError> {
        let bytes = match self {
            SocketName::Path(path) => path.as_os_str(),
            SocketName::Abstract(name) => OsStr::new(name),
        };
        let fits = (1..=MAX_SOCKET_NAME).contains(&bytes.len()) && !bytes.as_bytes().contains(&0);
        if fits { Ok(()) } else { Err(MemifError::SocketName(self.clone())) }
    }
}

impl fmt::Display for SocketName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SocketName::Path(path) => path.display().fmt(f),
            SocketName::Abstract(name) => write!(f, "@{name}"),
        }
    }
}

impl MemifConfig {
    /// The server's end at `socket`: interface 0, no secret, MTU 9000.
    pub fn server(socket: SocketName) -> MemifConfig {
        MemifConfig::at(Role::Server, socket)
    }

    /// The client's end at `socket`: interface 0, no secret, MTU 9000, rings of 1024 slots.
    pub fn client(socket: SocketName) -> MemifConfig {
        MemifConfig::at(Role::Client, socket)
    }

    fn at(role: Role, socket: SocketName) -> MemifConfig {
        let last = match role {
            Role::Server => 1,
            Role::Client => 2,
        };
        MemifConfig {
            role,
            socket,
            id: 0,
            secret: String::new(),
            name: "weft".to_owned(),
            mac: [0x02, b'm', b'e', b'm', 0, last],
            mtu: 9000,
            log2_ring: 10,
            buffer_size: None,
        }
    }

    /// Bytes of each long buffer that a client makes: [`MemifConfig::buffer_size`], or by default a multiple of a cache
    /// line.
    pub fn buffer_bytes(&self) -> u32 {
        let needed = self.mtu.saturating_add(MIN_FRAME).next_multiple_of(64).max(2048);
        self.buffer_size.unwrap_or(u32::try_from(needed).unwrap_or(u32::MAX))
    }

    /// The capabilities of the port.
    pub(super) fn capabilities(&self) -> PortCaps {
        PortCaps {
            max_frame: self.mtu + MIN_FRAME,
            mac: self.mac,
            tx_ipv4_checksum: false,
            tx_udp_checksum: false,
            rx_checksum: false,
            multi_segment: true,
            timestamps: Timestamps::Burst,
            in_memory: true,
        }
    }

    /// # Errors
    /// The configuration is invalid; the error says in which way.
    pub(super) fn check(&self) -> Result<(), MemifError> {
        self.socket.check()?;
        // For the other side a zero would be the end of the string.
        if self.secret.len() > MAX_SECRET || self.secret.contains('\0') {
            return Err(MemifError::Secret(self.secret.len()));
        }
        if self.name.len() > MAX_NAME || self.name.contains('\0') {
            return Err(MemifError::Name(self.name.clone()));
        }
        // At least what IPv4 promises to carry, at most what the IP header's length field expresses.
        if !(68..=65_535).contains(&self.mtu) {
            return Err(MemifError::Mtu(self.mtu));
        }
        if !(1..=MAX_LOG2_RING).contains(&self.log2_ring) {
            return Err(MemifError::Ring(self.log2_ring));
        }
        // Offsets in a region have 32 bits. It holds both rings, long buffers for both, and short ones for one.
        let buffer = self.buffer_bytes();
        let ring = ring_bytes(self.log2_ring).next_multiple_of(RING_ALIGNMENT as usize);
        let beside_rings = u32::MAX - 2 * ring as u32;
        let most = ((beside_rings >> self.log2_ring) - SHORT) / 2;
        if !(SHORTEST..=most).contains(&buffer) {
            return Err(MemifError::Buffer { size: buffer, most });
        }
        Ok(())
    }
}

/// Without the secret.
impl fmt::Debug for MemifConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MemifConfig { role, socket, id, secret, name, mac, mtu, log2_ring, buffer_size } = self;
        f.debug_struct("MemifConfig")
            .field("role", role)
            .field("socket", socket)
            .field("id", id)
            .field("has_secret", &!secret.is_empty())
            .field("name", name)
            .field("mac", mac)
            .field("mtu", mtu)
            .field("log2_ring", log2_ring)
            .field("buffer_size", buffer_size)
            .finish()
    }
}

/// Why a port cannot be opened, or has no link.
#[derive(Debug, thiserror::Error)]
pub enum MemifError {
    /// The name is too long for a socket, empty, or has a zero in it.
    #[error("a socket called `{0}`: expected 1 to {MAX_SOCKET_NAME} bytes, none of them 0")]
    SocketName(SocketName),
    /// A secret too long, or with a zero in it.
    #[error("a secret of {0} bytes: expected up to {MAX_SECRET}, none of them 0")]
    Secret(usize),
    /// A name too long, or with a zero in it.
    #[error("an interface called {0:?}: expected up to {MAX_NAME} bytes, none of them 0")]
    Name(String),
    /// An MTU that no IP packet can have.
    #[error("an MTU of {0} bytes: expected 68 to 65535")]
    Mtu(usize),
    /// A number of slots that no peer accepts.
    #[error("rings of 2^{0} slots: expected 2^1 to 2^{MAX_LOG2_RING}")]
    Ring(u8),
    /// Buffers that are too short, or so long that one region cannot hold all of them.
    #[error("buffers of {size} bytes: expected {SHORTEST} to {most} with rings of this size")]
    Buffer {
        /// Bytes of a buffer, as configured.
        size: u32,
        /// The most bytes of a buffer with rings of this size.
        most: u32,
    },
    /// Another server listens at this socket.
    #[error("{0} is the socket of a server that is alive: end it, or choose another socket")]
    Taken(SocketName),
    /// There is a file at the socket's path that is no socket.
    #[error("{} exists and is not a socket: remove it, or choose another path", .0.display())]
    NoSocket(PathBuf),
    /// The system refused an operation.
    #[error("{what} {socket}: {error}")]
    System {
        /// The operation, as a verb.
        what: &'static str,
        /// The name of the socket.
        socket: SocketName,
        /// The system's reason.
        #[source]
        error: io::Error,
    },
    /// The system refuses what keeps a peer from stopping this process by the event descriptors that they share.
    #[error(
        "the system refuses {what} ({error}), without which a peer could stop this process: permit io_setup, io_submit and io_getevents where a sandbox filters system calls, and use Linux 5.8 or later"
    )]
    Events {
        /// What it refuses.
        what: &'static str,
        /// The system's reason.
        #[source]
        error: io::Error,
    },
    /// There was no link in time.
    #[error("no link at {socket} within {limit:?}: {why}")]
    NoLink {
        /// The name of the socket.
        socket: SocketName,
        /// The time that the caller waited.
        limit: Duration,
        /// The last error, in words.
        why: String,
    },
}
