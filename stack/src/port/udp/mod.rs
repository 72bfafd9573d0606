//! Kernel UDP: sockets, no privileges, no DPDK.
//!
//! A [`UdpPort`] is one IP address of this host. It sends and receives Ethernet frames, as every port
//! does, but the kernel writes and strips the lower headers: the headers of a frame to be sent say
//! where its datagram goes and with which marks, and those of a received frame say where it came from.
//! The port itself copies nothing: the kernel reads and writes payload in the port's own buffers.
//!
//! | in a frame | on the wire |
//! |---|---|
//! | Ethernet addresses, VLAN | the kernel's; frames received show [`mac_of`] |
//! | IP addresses | the same, unless a [`Peer`] says otherwise |
//! | DSCP, ECN, TTL | the same, by control messages in both directions |
//! | UDP source port: the entropy | one of a set of sockets, each bound to a port of its own |
//! | UDP destination port | 4793, or the port of the configuration or the [`Peer`] |
//! | checksums | the kernel's: none are computed or verified here |
//!
//! **Entropy.** ECMP hashes the UDP source port, and a socket has one. Of `n` sockets, entropy `e` leaves
//! through number `e mod n`, which is bound to port 0xC000 + `e mod n` by default. A receiver reads an
//! entropy from 0 to `n − 1`, and its acknowledgement carries that one back. So a load balancer should
//! choose from [`UdpPort::entropies`] entropies and no more, so that it learns about the entropies that it chose.
//!
//! **Shared addresses.** With [`UdpConfig::shared_address`] peers are told apart by their UDP ports as well as by their
//! addresses, so that every process of a host can have an endpoint of its own. In frames each of them has an alias, an IP
//! address of a range that no host has; it means something to this port only. Peers are entered by
//! [`UdpPort::meet_at`], or by the first datagram that comes from them.
//!
//! **Loss.** The kernel drops datagrams that arrive faster than they are received, and a datagram passed to it may
//! never be sent. The endpoint repairs such losses, as those of any network. [`PortCounters::rx_missed`] and
//! [`UdpCounters`] count the drops that the kernel reports; it counts joined datagrams as one.
//!
//! **Trimming.** The kernel drops a packet that a switch has trimmed, because UDP demands all bytes
//! that the UDP header announces. Only trimmed packets that another UDP port has sent arrive.

mod config;
mod control;
mod headers;
mod peers;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod properties;
mod receive;
mod sockets;
mod system;
mod transmit;

pub use config::{MAX_SOURCES, Notice, Peer, UdpConfig, UdpCounters, UdpError};
pub use headers::mac_of;

use std::cell::Cell;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use arrayvec::ArrayVec;
use libc::c_int;

use self::peers::Peers;
use self::receive::Receiver;
use self::transmit::{Sender, Told};
use super::{FramePool, MIN_FRAME, Port, PortCaps, PortCounters, RxBurst, Timestamps, TxBurst};

/// A port over kernel UDP.
///
/// [`AsFd`] gives the socket that becomes readable when a datagram arrives. Wait for it with `poll`
/// or `epoll` after [`Port::receive`] has returned nothing.
pub struct UdpPort {
    socket: UdpSocket,
    local: SocketAddr,
    alias: IpAddr,
    mtu: usize,
    receive_buffer: usize,
    sender: Sender,
    receiver: Receiver,
    peers: Peers,
    pool: FramePool,
    caps: PortCaps,
    counters: PortCounters,
    /// The kernel's count of drops at the last query, 32 bits wide, and the sum over all queries.
    overflow: Cell<(u32, u64)>,
    udp: UdpCounters,
    notices: Notices,
}

/// The notices of a port, each kind once.
#[derive(Default)]
struct Notices(ArrayVec<Notice, 8>);

impl Notices {
    fn say(&mut self, notice: Notice) {
        let kind = std::mem::discriminant(&notice);
        if self.0.iter().all(|said| std::mem::discriminant(said) != kind) {
            tracing::warn!(%notice, "UDP port");
            // There are fewer kinds than places.
            let _ = self.0.try_push(notice);
        }
    }
}

impl UdpPort {
    /// Binds the sockets.
    ///
    /// # Errors
    /// The configuration is invalid, or the system refuses an address or port.
    pub fn open(config: &UdpConfig) -> Result<UdpPort, UdpError> {
        config.check()?;
        let v6 = config.address.is_ipv6();
        let max_frame = config.mtu + MIN_FRAME;
        let longest_frame = config.longest_received() + MIN_FRAME;
        let longest = longest_frame.saturating_sub(headers::len(v6));
        let mut notices = Notices::default();

        let (socket, sockets) = sockets::open(config)?;
        let local = local(&socket, config)?;
        prepare_receiving(&socket, local)?;
        let receive_buffer = grant(&socket, config.receive_buffer, &mut notices);
        let joins = config.gro && receive::can_join(longest) && {
            let on = system::set(socket.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1).is_ok();
            if !on {
                notices.say(Notice::NoGro);
            }
            on
        };

        // Without them a datagram counts as arrived when it is read.
        let stamps = system::set(socket.as_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1).is_ok();
        let timestamps = if stamps { Timestamps::Kernel } else { Timestamps::Burst };

        let can_cut = system::set(sockets[0].as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok();
        if config.gso && !can_cut {
            notices.say(Notice::NoGso);
        }

        let needed = receive::frames_needed(longest, joins);
        let (pool, rx_pool) = pools(config, (max_frame, longest_frame), needed)?;
        let (alias, peers) = if config.shared_address {
            (peers::OWN.at(v6), Peers::by_port(config.sources))
        } else {
            (config.alias.unwrap_or(config.address), Peers::by_address(config.peer_port))
        };
        let gso = config.gso && can_cut;
        tracing::info!(%local, mtu = config.mtu, sources = sockets.len(), receive_buffer, gso, gro = joins, "UDP port opened");
        Ok(UdpPort {
            socket,
            local,
            alias,
            mtu: config.mtu,
            receive_buffer,
            sender: Sender { sockets, v6, gso, classes: config.classes },
            receiver: Receiver::new(rx_pool, alias, longest, joins, config.classes),
            peers,
            pool,
            caps: PortCaps {
                max_frame,
                mac: mac_of(alias).0,
                tx_ipv4_checksum: true,
                tx_udp_checksum: true,
                rx_checksum: true,
                multi_segment: false,
                timestamps,
                in_memory: false,
            },
            counters: PortCounters::default(),
            overflow: Cell::new((0, 0)),
            udp: UdpCounters::default(),
            notices,
        })
    }

    /// The address and UDP port where datagrams for this port arrive.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// The IP address that stands for this port in frames.
    pub fn ip(&self) -> IpAddr {
        self.alias
    }

    /// The number of entropies, and so of paths, that the port's source ports distinguish.
    pub fn entropies(&self) -> u16 {
        self.sender.sockets.len() as u16
    }

    /// The entry by which other ports reach this one, whatever its UDP ports are.
    pub fn as_peer(&self) -> Peer {
        let port = |socket: &UdpSocket| socket.local_addr().map_or(0, |addr| addr.port());
        let sources = self.sender.sockets.iter().map(port).collect();
        Peer { ip: self.alias, socket: self.local, sources }
    }

    /// Enters a peer, and checks that the interface on the way to it carries this port's packets. Peers with standard
    /// ports and addresses of their own need no entry.
    ///
    /// # Errors
    /// There is no route, or none for packets of this length; or an address or source port is taken.
    pub fn meet(&mut self, peer: &Peer) -> Result<(), UdpError> {
        for ip in [peer.ip, peer.socket.ip()] {
            if ip.is_ipv4() != self.local.is_ipv4() {
                return Err(UdpError::Version { ip, own: self.local.ip() });
            }
        }
        self.check_interface(peer.socket)?;
        self.peers.insert(peer)
    }

    /// The IP address that stands in frames for the endpoint whose datagrams arrive at `socket`, at an address that it
    /// may share with others; a new one if it is not known yet. The endpoint may be this port's own.
    ///
    /// # Errors
    /// The port does [not share](UdpConfig::shared_address) its address, no endpoint can be at that UDP port, there are
    /// too many peers, or the interface on the way to it does not carry this port's packets.
    pub fn meet_at(&mut self, socket: SocketAddr) -> Result<IpAddr, UdpError> {
        if socket.is_ipv4() != self.local.is_ipv4() {
            return Err(UdpError::Version { ip: socket.ip(), own: self.local.ip() });
        }
        if let Some(alias) = self.peers.alias_of(socket) {
            self.peers.keep(alias);
            return Ok(alias);
        }
        self.check_interface(socket)?;
        self.peers.enter(socket)
    }

    /// The address and UDP port of the endpoint that `alias` stands for: what [`UdpPort::meet_at`] was given, or where a
    /// datagram came from.
    pub fn socket_of(&self, alias: IpAddr) -> Option<SocketAddr> {
        self.peers.socket_of(alias)
    }

    /// Checks that the interface on the way to `peer` carries this port's packets. What routers have reported of the rest of
    /// the path is only noted, because such reports can be forged.
    fn check_interface(&mut self, peer: SocketAddr) -> Result<(), UdpError> {
        let (own, mtu, path) = (self.local.ip(), self.mtu, self.path_mtu(peer)?);
        if path >= mtu {
            return Ok(());
        }
        let interface = system::interface_mtu(own, peer, mtu);
        let interface = interface.map_err(|error| UdpError::Route { own, peer, error })?;
        if interface < mtu {
            return Err(UdpError::InterfaceMtu { peer, interface, mtu });
        }
        self.notices.say(Notice::ShortPath { path });
        Ok(())
    }

    /// Bytes of the longest IP packet that reaches `peer`, as far as the kernel knows: the MTU of the
    /// interface, or less once somebody has reported a smaller one in the name of a router. The port sends longer packets
    /// nevertheless.
    ///
    /// # Errors
    /// There is no route.
    pub fn path_mtu(&self, peer: SocketAddr) -> Result<usize, UdpError> {
        let own = self.local.ip();
        system::path_mtu(own, peer).map_err(|error| UdpError::Route { own, peer, error })
    }

    /// Bytes of the kernel's receive buffer, its own structures included.
    pub fn receive_buffer(&self) -> usize {
        self.receive_buffer
    }

    /// Whether several datagrams are sent as one message, and whether several are received as one.
    pub fn joins(&self) -> (bool, bool) {
        (self.sender.gso, self.receiver.joins())
    }

    /// The notices so far, each kind once.
    pub fn notices(&self) -> &[Notice] {
        &self.notices.0
    }

    /// The counters of a UDP port beside those of every port.
    pub fn udp_counters(&self) -> UdpCounters {
        UdpCounters { rx_overflow: self.overflow(), ..self.udp }
    }

    /// Reads the kernel's count of drops, which is 32 bits wide.
    fn overflow(&self) -> u64 {
        let (before, total) = self.overflow.get();
        let now = system::drops(self.socket.as_fd()).unwrap_or(before);
        let total = total + u64::from(now.wrapping_sub(before));
        self.overflow.set((now, total));
        total
    }
}

impl Port for UdpPort {
    #[inline]
    fn receive(&mut self, burst: &mut RxBurst) -> usize {
        let counters = (&mut self.counters, &mut self.udp);
        self.receiver.receive(self.socket.as_fd(), &mut self.peers, burst, counters)
    }

    #[inline]
    fn transmit(&mut self, burst: &mut TxBurst) -> usize {
        if burst.is_empty() {
            return 0;
        }
        let refused = burst.drop_longer_than(self.caps.max_frame);
        self.counters.tx_errors += refused as u64;
        let mut told = Told { port: &mut self.counters, udp: &mut self.udp, notices: &mut self.notices };
        refused + self.sender.transmit(burst, &self.peers, &mut told)
    }

    fn capabilities(&self) -> PortCaps {
        self.caps
    }

    fn pool(&self) -> FramePool {
        self.pool.clone()
    }

    /// Asks the kernel: a system call.
    fn counters(&self) -> PortCounters {
        PortCounters { rx_missed: self.counters.rx_missed + self.overflow(), ..self.counters }
    }

    fn keep_peer(&mut self, peer: IpAddr) {
        self.peers.keep(peer);
    }

    fn forget_peer(&mut self, peer: IpAddr) {
        self.peers.forget(peer);
    }

    /// The socket that datagrams arrive at.
    fn waitable(&mut self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }
}

impl AsFd for UdpPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl std::fmt::Debug for UdpPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "UdpPort({}, {} source ports)", self.local, self.sender.sockets.len())
    }
}

fn local(socket: &UdpSocket, config: &UdpConfig) -> Result<SocketAddr, UdpError> {
    let addr = SocketAddr::new(config.address, config.port);
    socket.local_addr().map_err(|error| UdpError::Bind { addr, error })
}

/// Sets the options that the port needs.
fn require(
    socket: &UdpSocket,
    addr: SocketAddr,
    options: &[(&'static str, c_int, c_int, c_int)],
) -> Result<(), UdpError> {
    for &(option, level, name, value) in options {
        system::set(socket.as_fd(), level, name, value).map_err(|error| UdpError::Option {
            addr,
            option,
            error,
        })?;
    }
    Ok(())
}

fn prepare_receiving(socket: &UdpSocket, addr: SocketAddr) -> Result<(), UdpError> {
    use libc::{IPPROTO_IP, IPPROTO_IPV6};
    if addr.is_ipv6() {
        let class = ("IPV6_RECVTCLASS", IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1);
        require(socket, addr, &[class, ("IPV6_RECVHOPLIMIT", IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, 1)])
    } else {
        let class = ("IP_RECVTOS", IPPROTO_IP, libc::IP_RECVTOS, 1);
        require(socket, addr, &[class, ("IP_RECVTTL", IPPROTO_IP, libc::IP_RECVTTL, 1)])
    }
}

/// Asks for a receive buffer, beyond the system's limit if the process may. Returns the size that was granted.
fn grant(socket: &UdpSocket, asked: usize, notices: &mut Notices) -> usize {
    let wanted = c_int::try_from(asked).unwrap_or(c_int::MAX);
    let (fd, level) = (socket.as_fd(), libc::SOL_SOCKET);
    if system::set(fd, level, libc::SO_RCVBUFFORCE, wanted).is_err() {
        // The size that the kernel grants is read back below.
        let _ = system::set(fd, level, libc::SO_RCVBUF, wanted);
    }
    let granted = system::get(fd, level, libc::SO_RCVBUF).map_or(0, |bytes| bytes as usize);
    // The kernel doubles the requested size, to account for its own structures.
    if granted < asked.saturating_mul(2) {
        notices.say(Notice::ReceiveBuffer { asked, granted });
    }
    granted
}

/// Separate pools for sending and receiving, so that neither direction can starve the other.
fn pools(
    config: &UdpConfig,
    (tx_size, rx_size): (usize, usize),
    needed: usize,
) -> Result<(FramePool, FramePool), UdpError> {
    let (tx, rx) = (config.tx_frames, config.rx_frames);
    let too_few = |_: io::Error| UdpError::Frames { tx, rx, needed };
    if rx < needed {
        return Err(too_few(io::ErrorKind::OutOfMemory.into()));
    }
    let pool = |frames, size| {
        FramePool::heap_for_kernel(frames, size).map_err(|_| too_few(io::ErrorKind::OutOfMemory.into()))
    };
    Ok((pool(tx, tx_size)?, pool(rx, rx_size)?))
}
