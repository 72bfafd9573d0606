//! A relay between two endpoints, or two servers, that loses, copies, reorders and trims their datagrams.
//!
//! Each endpoint knows the other one by UDP ports of the relay's, as many as an endpoint has: a datagram that one sends from its
//! port number `n` leaves the relay from number `n` of the ports that stand for it. So endpoints cannot tell the relay from
//! their peer. Servers have UDP ports that all know, at addresses of their own. So what stands for one has the same ports at another
//! address, by which the server's peers, and its own endpoints, know it.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use weft::core::port::udp::UdpConfig;

use super::fabric::Side;
use super::random::Random;

/// UDP ports of each endpoint, as FI_WEFT_ENTROPIES has it unless it is set.
const PORTS: u16 = 4;
/// The longest time without a datagram after which those that are held back go on.
const PATIENCE: Duration = Duration::from_millis(2);
/// Bytes of payload that a trimmed datagram keeps.
const KEPT: usize = 64;
/// The DSCPs of data that switches may trim, and that of trimmed data, as docs/wire.md has them.
const TRIMMABLE: std::ops::RangeInclusive<u8> = 8..=15;
const TRIMMED: u8 = 16;

/// How many of 1,000 datagrams have each fault.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faults {
    pub(crate) lost: u32,
    pub(crate) copied: u32,
    /// Up to 8 others overtake it.
    pub(crate) late: u32,
    /// Of those that may be trimmed.
    pub(crate) trimmed: u32,
}

/// How many datagrams had each fault.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) all: u64,
    pub(crate) lost: u64,
    pub(crate) copied: u64,
    pub(crate) late: u64,
    pub(crate) trimmed: u64,
}

/// A thread that relays until this is dropped.
pub(crate) struct Relay {
    /// Where each of the two endpoints reaches the other one.
    names: [SocketAddr; 2],
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<Counts>>,
}

/// The ports that stand for an endpoint, or a server.
struct Stand {
    /// Where datagrams to the endpoint arrive.
    at: UdpSocket,
    /// The sockets from which datagrams of the endpoint leave.
    sources: Vec<UdpSocket>,
    /// Where the endpoint receives, and the first of the ports that it sends from.
    endpoint: SocketAddr,
    first_source: u16,
}

struct Datagram {
    bytes: Vec<u8>,
    tos: u8,
    /// From which port it leaves.
    entropy: usize,
    /// How many have to overtake it.
    behind: u32,
}

impl Stand {
    /// For an endpoint: as many consecutive ports as it has, from a multiple of their number on. The first is for receiving, too.
    fn for_endpoint(endpoint: SocketAddr) -> Stand {
        for first in (20_000..60_000).step_by(usize::from(PORTS)) {
            let bind = |n| UdpSocket::bind((endpoint.ip(), first + n));
            if let Ok(sources) = (0..PORTS).map(bind).collect::<io::Result<Vec<_>>>() {
                return Stand::of(sources[0].try_clone().unwrap(), sources, endpoint, endpoint.port());
            }
        }
        panic!("no {PORTS} consecutive UDP ports are free");
    }

    /// For the server at the address `server`: the same ports at the address `stand`.
    fn for_server(server: Ipv4Addr, stand: Ipv4Addr) -> Stand {
        let UdpConfig { port, first_source, sources, .. } = UdpConfig::default();
        let bind = |port| UdpSocket::bind((stand, port)).unwrap();
        let sources = (first_source..first_source + sources).map(bind).collect();
        Stand::of(bind(port), sources, (server, port).into(), first_source)
    }

    fn of(at: UdpSocket, sources: Vec<UdpSocket>, endpoint: SocketAddr, first_source: u16) -> Stand {
        at.set_read_timeout(Some(PATIENCE)).unwrap();
        let on: libc::c_int = 1;
        // SAFETY: the option is a number.
        let set = unsafe {
            let (option, len) = ((&raw const on).cast(), size_of::<libc::c_int>() as u32);
            libc::setsockopt(at.as_raw_fd(), libc::IPPROTO_IP, libc::IP_RECVTOS, option, len)
        };
        assert_eq!(set, 0, "IP_RECVTOS: {}", io::Error::last_os_error());
        Stand { at, sources, endpoint, first_source }
    }

    /// By which of its ports the endpoint has sent a datagram that comes from here.
    fn entropy(&self, from: SocketAddr) -> Option<usize> {
        let entropy = usize::from(from.port().wrapping_sub(self.first_source));
        (from.ip() == self.endpoint.ip() && entropy < self.sources.len()).then_some(entropy)
    }

    /// The next datagram that arrives here, with its TOS and where it came from.
    fn receive(&self, room: &mut [u8]) -> Option<(usize, u8, SocketAddr)> {
        let mut piece = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
        let mut control = [0u64; 8];
        // SAFETY: plain numbers and pointers, of which zeros are values.
        let (mut from, mut message): (libc::sockaddr_in, libc::msghdr) = unsafe { std::mem::zeroed() };
        message.msg_name = (&raw mut from).cast();
        message.msg_namelen = size_of::<libc::sockaddr_in>() as u32;
        message.msg_iov = &mut piece;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        // SAFETY: all places have their lengths, and live until the end of the function.
        unsafe {
            let len = libc::recvmsg(self.at.as_raw_fd(), &mut message, 0);
            let len = usize::try_from(len).ok()?;
            let mut tos = 0;
            let mut at = libc::CMSG_FIRSTHDR(&message);
            while !at.is_null() {
                if ((*at).cmsg_level, (*at).cmsg_type) == (libc::IPPROTO_IP, libc::IP_TOS) {
                    tos = *libc::CMSG_DATA(at);
                }
                at = libc::CMSG_NXTHDR(&message, at);
            }
            let ip = Ipv4Addr::from(u32::from_be(from.sin_addr.s_addr));
            Some((len, tos, (ip, u16::from_be(from.sin_port)).into()))
        }
    }

    /// Sends as the endpoint that this stands for.
    fn send(&self, datagram: &Datagram, to: SocketAddr) {
        let socket = &self.sources[datagram.entropy];
        let tos = libc::c_int::from(datagram.tos);
        // SAFETY: the option is a number.
        let set = unsafe {
            let (at, len) = ((&raw const tos).cast(), size_of::<libc::c_int>() as u32);
            libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_IP, libc::IP_TOS, at, len)
        };
        assert_eq!(set, 0, "IP_TOS: {}", io::Error::last_os_error());
        // One that the kernel does not take is lost, as in any network.
        let _ = socket.send_to(&datagram.bytes, to);
    }
}

/// One direction of the relay.
struct Lane {
    /// Where datagrams arrive.
    at: Arc<Stand>,
    /// Whom they come from.
    sender: Arc<Stand>,
    faults: Faults,
    random: Random,
    held: VecDeque<Datagram>,
    counts: Counts,
}

impl Lane {
    fn forward(&self, datagram: &Datagram) {
        self.sender.send(datagram, self.at.endpoint);
    }

    /// Takes a datagram, if there is one, and forwards what is due.
    fn turn(&mut self, room: &mut [u8]) {
        let Some((len, mut tos, from)) = self.at.receive(room) else {
            for datagram in std::mem::take(&mut self.held) {
                self.forward(&datagram);
            }
            return;
        };
        let Some(entropy) = self.sender.entropy(from) else {
            return; // Of nobody that takes part.
        };
        self.counts.all += 1;
        let mut bytes = room[..len].to_vec();
        let mut happens = |of_thousand| self.random.below(1000) < u64::from(of_thousand);
        if happens(self.faults.lost) {
            self.counts.lost += 1;
            return;
        }
        if TRIMMABLE.contains(&(tos >> 2)) && bytes.len() > KEPT && happens(self.faults.trimmed) {
            self.counts.trimmed += 1;
            let udp_length = bytes.len() as u16 + 8;
            bytes.truncate(KEPT);
            // The kernel writes the length of what is left, so that of all follows; see the port's documentation.
            bytes.extend(udp_length.to_be_bytes());
            tos = TRIMMED << 2 | tos & 3;
        }
        let (copied, late) = (happens(self.faults.copied), happens(self.faults.late));
        let mut datagram = Datagram { bytes, tos, entropy, behind: 0 };
        if copied {
            self.counts.copied += 1;
            self.forward(&datagram);
        }
        if late {
            self.counts.late += 1;
            datagram.behind = 1 + self.random.below(8) as u32;
            self.held.push_back(datagram);
        } else {
            self.forward(&datagram);
        }
        for held in &mut self.held {
            held.behind = held.behind.saturating_sub(1);
        }
        while self.held.front().is_some_and(|held| held.behind == 0) {
            let held = self.held.pop_front().unwrap();
            self.forward(&held);
        }
    }
}

/// The address that an endpoint's name holds.
pub(crate) fn address(name: [u8; 16]) -> SocketAddr {
    let ip: [u8; 4] = name[4..8].try_into().unwrap();
    (ip, u16::from_be_bytes([name[2], name[3]])).into()
}

/// The name of an endpoint at this address.
pub(crate) fn name(addr: SocketAddr) -> [u8; 16] {
    let SocketAddr::V4(addr) = addr else { panic!("{addr}") };
    let mut name = [0; 16];
    name[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
    name[2..4].copy_from_slice(&addr.port().to_be_bytes());
    name[4..8].copy_from_slice(&addr.ip().octets());
    name
}

impl Faults {
    /// Asserts that each fault that was to happen has happened, and no other.
    pub(crate) fn check(self, counts: Counts) {
        for (of_thousand, count) in [
            (self.lost, counts.lost),
            (self.copied, counts.copied),
            (self.late, counts.late),
            (self.trimmed, counts.trimmed),
        ] {
            assert_eq!(of_thousand > 0, count > 0, "{counts:?}");
        }
    }
}

impl Relay {
    /// A relay between two sides, and the number of the other one in each.
    pub(crate) fn between(sides: [&Side; 2], faults: Faults, seed: u64) -> (Relay, [u64; 2]) {
        let stands = sides.map(|side| Stand::for_endpoint(address(side.name())));
        let relay = Relay::start(stands, faults, seed);
        let numbers = [0, 1].map(|n| sides[n].insert(&name(relay.names[n])));
        (relay, numbers)
    }

    /// A relay between the servers at the first two of these addresses, which are known by the other two.
    pub(crate) fn between_servers([a, b, as_a, as_b]: [Ipv4Addr; 4], faults: Faults, seed: u64) -> Relay {
        Relay::start([Stand::for_server(a, as_a), Stand::for_server(b, as_b)], faults, seed)
    }

    fn start(stands: [Stand; 2], faults: Faults, seed: u64) -> Relay {
        let [a, b] = stands.map(Arc::new);
        let name = |stand: &Stand| stand.at.local_addr().unwrap();
        // The first reaches the second at the ports that stand for the second.
        let names = [name(&b), name(&a)];
        let lane = |at: &Arc<Stand>, sender: &Arc<Stand>, seed| Lane {
            at: at.clone(),
            sender: sender.clone(),
            faults,
            random: Random::new(seed),
            held: VecDeque::new(),
            counts: Counts::default(),
        };
        let lanes = [lane(&b, &a, seed), lane(&a, &b, !seed)];
        let end = Arc::new(AtomicBool::new(false));
        let stop = end.clone();
        let thread = std::thread::spawn(move || {
            let threads = lanes.map(|mut lane| {
                let stop = stop.clone();
                std::thread::spawn(move || {
                    let mut room = vec![0; 1 << 16];
                    while !stop.load(Ordering::Relaxed) {
                        lane.turn(&mut room);
                    }
                    lane.counts
                })
            });
            let [a, b] = threads.map(|thread| thread.join().unwrap());
            Counts {
                all: a.all + b.all,
                lost: a.lost + b.lost,
                copied: a.copied + b.copied,
                late: a.late + b.late,
                trimmed: a.trimmed + b.trimmed,
            }
        });
        Relay { names, end, thread: Some(thread) }
    }

    /// Ends it, and tells what it has done.
    pub(crate) fn stop(mut self) -> Counts {
        self.end.store(true, Ordering::Relaxed);
        self.thread.take().map(|thread| thread.join().unwrap()).unwrap_or_default()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
