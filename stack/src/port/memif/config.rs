//! How a memif port is opened, and why it is not.
#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use super::ring::{RING_ALIGNMENT, SHORT, ring_bytes};
use crate::port::{MIN_FRAME, PortCaps};

/// Most bytes of a secret, as many as the protocol's field has. DPDK's driver keeps one byte less.
pub const MAX_SECRET: usize = 24;
/// Most bytes of an interface's name: one less than the protocol's field, for peers that look for its end.
pub const MAX_NAME: usize = 31;
/// Most slots of a ring, as a power of two: what DPDK's driver makes at most.
pub const MAX_LOG2_RING: u8 = 14;
/// Most bytes of a socket's name: what the system's address holds, less the zero before or after it.
pub const MAX_SOCKET_NAME: usize = 107;

/// How long a handshake may take.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(2);
/// The time between two attempts of a client to connect, and before a server that ran out of descriptors accepts again.
pub(super) const RETRY: Duration = Duration::from_millis(100);

/// How a port is opened.
#[derive(Clone, PartialEq, Eq)]
pub struct MemifConfig {
    /// Which end of the link it is.
    pub role: Role,
    /// Where both ends meet.
    pub socket: SocketName,
    /// Which of the interfaces at that socket; both ends have the same.
    pub id: u32,
    /// What the client tells and the server demands, up to [`MAX_SECRET`] bytes; empty: the server demands none.
    /// It keeps mistakes out, not intruders: it crosses the socket as it is.
    pub secret: String,
    /// What peers show as this interface's name, up to [`MAX_NAME`] bytes.
    pub name: String,
    /// The port's own Ethernet address. The protocol does not tell it.
    pub mac: [u8; 6],
    /// The longest IP packet, bytes. The protocol does not tell it: the peer must carry as much.
    pub mtu: usize,
    /// Slots of each ring that a client makes, as a power of two, 1 to [`MAX_LOG2_RING`]. A server may have it make
    /// fewer. A server takes what it is offered.
    pub log2_ring: u8,
    /// Bytes of each long buffer that a client makes, beside short ones for frames up to 192 bytes that it sends; by default
    /// what holds the longest frame, and 2048 at least: see
    /// [`MemifConfig::buffer_bytes`]. A server takes what it is offered.
    pub buffer_size: Option<u32>,
}

/// Which end of a link a port is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It waits at the socket for the other end, and uses the memory that the other end gives it. Formerly
    /// called master.
    Server,
    /// It makes the memory, and connects to the socket as often as it takes. Formerly called slave.
    Client,
}

/// The name of a Unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SocketName {
    /// A file.
    Path(PathBuf),
    /// A name of the abstract name space, which is gone as soon as nobody uses it. DPDK's driver takes its socket for
    /// one unless told `socket-abstract=no`.
    Abstract(String),
}

impl SocketName {
    /// The socket that `text` names: an abstract one after `@`, or else a file.
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

    /// Bytes of each long buffer that a client makes: a multiple of a cache line, unless [`MemifConfig::buffer_size`] says
    /// otherwise.
    pub fn buffer_bytes(&self) -> u32 {
        let needed = self.mtu.saturating_add(MIN_FRAME).next_multiple_of(64).max(2048);
        self.buffer_size.unwrap_or(u32::try_from(needed).unwrap_or(u32::MAX))
    }

    /// What the port can do.
    pub(super) fn capabilities(&self) -> PortCaps {
        PortCaps {
            max_frame: self.mtu + MIN_FRAME,
            mac: self.mac,
            tx_ipv4_checksum: false,
            tx_udp_checksum: false,
            rx_checksum: false,
            multi_segment: true,
            timestamps: false,
            in_memory: true,
        }
    }

    /// # Errors
    /// No port can be like this.
    pub(super) fn check(&self) -> Result<(), MemifError> {
        self.socket.check()?;
        // A zero would end them for the other side.
        if self.secret.len() > MAX_SECRET || self.secret.contains('\0') {
            return Err(MemifError::Secret(self.secret.len()));
        }
        if self.name.len() > MAX_NAME || self.name.contains('\0') {
            return Err(MemifError::Name(self.name.clone()));
        }
        // What the IP header's length field leaves, and what IPv4 promises to carry.
        if !(68..=65_535).contains(&self.mtu) {
            return Err(MemifError::Mtu(self.mtu));
        }
        if !(1..=MAX_LOG2_RING).contains(&self.log2_ring) {
            return Err(MemifError::Ring(self.log2_ring));
        }
        // All has to lie within a region's 32 bit of offsets: both rings, the buffers of both, the short ones of one.
        let buffer = self.buffer_bytes();
        let ring = ring_bytes(self.log2_ring).next_multiple_of(RING_ALIGNMENT as usize);
        let beside_rings = u32::MAX - 2 * ring as u32;
        let most = ((beside_rings >> self.log2_ring) - SHORT) / 2;
        if !(64..=most).contains(&buffer) {
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

/// Why a port is not opened, or has no link.
#[derive(Debug, thiserror::Error)]
pub enum MemifError {
    /// No socket has this name.
    #[error("a socket called `{0}`: expected 1 to {MAX_SOCKET_NAME} bytes, none of them 0")]
    SocketName(SocketName),
    /// A secret too long, or with a zero in it.
    #[error("a secret of {0} bytes: expected up to {MAX_SECRET}, none of them 0")]
    Secret(usize),
    /// A name too long, or with a zero in it.
    #[error("an interface called {0:?}: expected up to {MAX_NAME} bytes, none of them 0")]
    Name(String),
    /// An MTU that no IP packet has.
    #[error("an MTU of {0} bytes: expected 68 to 65535")]
    Mtu(usize),
    /// A ring that no peer takes.
    #[error("rings of 2^{0} slots: expected 2^1 to 2^{MAX_LOG2_RING}")]
    Ring(u8),
    /// Buffers too short, or so long that not all of them lie in a region.
    #[error("buffers of {size} bytes: expected 64 to {most} with rings of this size")]
    Buffer {
        /// Bytes.
        size: u32,
        /// Most bytes.
        most: u32,
    },
    /// Somebody else is the server at this socket.
    #[error("{0} is the socket of a server that is alive: end it, or choose another socket")]
    Taken(SocketName),
    /// There is something else where the socket should be.
    #[error("{} exists and is not a socket: remove it, or choose another path", .0.display())]
    NoSocket(PathBuf),
    /// What the system says.
    #[error("{what} {socket}: {error}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// The socket.
        socket: SocketName,
        /// Why it failed.
        #[source]
        error: io::Error,
    },
    /// The other end has not come in time.
    #[error("no link at {socket} within {limit:?}: {why}")]
    NoLink {
        /// The socket.
        socket: SocketName,
        /// How long was waited.
        limit: Duration,
        /// What went wrong last.
        why: String,
    },
}
