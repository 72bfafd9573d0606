//! Hosts over kernel UDP: each has a socket of its own, and a socket in the fabric represents it.
//!
//! ```text
//!   host i: 127.N.0.i ──▶ 127.N.1.j: the fabric's socket for host j
//!                              │ from i to j, through the switches
//!                              ▼
//!   host j: 127.N.0.j ◀── 127.N.1.i: the fabric's socket for host i
//! ```
//!
//! The socket to which a host sends identifies the destination, and the socket from which it receives identifies the
//! sender: host *i* knows host *j* only as 127.N.1.j. Frames in the fabric carry the hosts' own addresses, as sockets
//! report and accept them, so no header is rewritten.

use super::super::rundir::{Owned, State};
use super::{Attached, HostFacts, HostLink};
use crate::Failure;
use crate::choices::UDP_ENTROPIES;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use weft_stack::port::udp::{UdpConfig, UdpError, UdpPort};
use weft_stack::port::{BURST, Frame, FramePool, Port, PortCaps, PortCounters, RxBurst, TxBurst};
use weft_stack::wire::ethernet::EthernetView;
use weft_stack::wire::ipv4::Ipv4View;

/// The networks 127.N.0.0/15, of which each testbed takes one.
const NETWORKS: std::ops::RangeInclusive<u8> = 65..=126;
/// The most frames of a host that wait for its link. The fabric drops further ones, as the full queue of a host would.
const MAX_BACKLOG: usize = 512;
/// The receive buffers of one host's socket, frames: the upper bound with few hosts, the lower with many.
const RECEIVE_BUFFERS: std::ops::RangeInclusive<usize> = 256..=1_024;
/// The receive buffers of all sockets together, frames.
const ALL_RECEIVE_BUFFERS: usize = 16_384;

/// The sockets in the fabric that represent the hosts.
struct Exchange {
    network: u8,
    /// By the host's place: the socket that represents it.
    sockets: Vec<UdpPort>,
    /// By the host's place: frames that wait to be sent through that socket.
    to_send: Vec<TxBurst>,
    /// By the host's place: frames from the host that its link has not taken yet.
    sent: Vec<VecDeque<Frame>>,
    /// By the host's place: whether its socket may have a datagram.
    readable: Vec<bool>,
    /// The host's place by the last byte of its address.
    places: [Option<u8>; 256],
    scratch: RxBurst,
}

/// The fabric's end of one host's link.
pub(crate) struct UdpLink {
    place: usize,
    exchange: Rc<RefCell<Exchange>>,
    counters: PortCounters,
}

/// Opens sockets for `hosts` of the testbed `name`.
pub(super) fn attach(hosts: &[u32], mtu: u32, owned: &Owned, name: &str) -> Result<Vec<Attached>, Failure> {
    owned.note(&State { pid: std::process::id(), ..State::default() })?;
    allow_descriptors();
    let exchange = networks(name)
        .map(|network| Exchange::open(network, hosts, mtu))
        .find(|opened| !opened.as_ref().is_err_and(is_taken))
        .unwrap_or_else(|| Exchange::open(*NETWORKS.start(), hosts, mtu))
        .map_err(|error| Failure::Run(format!("testbed: {error}")))?;
    let network = exchange.network;
    let exchange = Rc::new(RefCell::new(exchange));
    let one = |(place, host): (usize, &u32)| {
        let own = host_address(network, *host);
        Attached {
            facts: HostFacts {
                host: *host,
                port: format!(
                    "udp:{own},entropies={UDP_ENTROPIES},called={}",
                    fabric_address(network, *host)
                ),
                ip: None,
                mtu,
                namespace: None,
                called: fabric_address(network, *host).to_string(),
                serve: None,
            },
            ip: own,
            link: HostLink::Udp(UdpLink {
                place,
                exchange: exchange.clone(),
                counters: PortCounters::default(),
            }),
        }
    };
    Ok(hosts.iter().enumerate().map(one).collect())
}

/// Raises the limit of open files, because many hosts need more sockets than it usually allows. If it cannot be raised,
/// opening a socket fails later.
fn allow_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// All networks in the order to try for the testbed `name`. The first depends only on the name, so that a testbed that
/// comes up again usually has the same addresses.
fn networks(name: &str) -> impl Iterator<Item = u8> {
    let count = NETWORKS.len() as u32;
    let first = name.bytes().fold(0, |sum: u32, byte| (sum * 31 + u32::from(byte)) % count);
    (0..count).map(move |n| NETWORKS.start() + ((first + n) % count) as u8)
}

/// Whether opening failed because another testbed has the network.
fn is_taken(error: &UdpError) -> bool {
    matches!(error, UdpError::Bind { error, .. } if error.kind() == io::ErrorKind::AddrInUse)
}

/// The address of the host's own socket.
fn host_address(network: u8, host: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(127, network, 0, host as u8 + 1))
}

/// The address of the socket that represents the host.
fn fabric_address(network: u8, host: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(127, network, 1, host as u8 + 1))
}

/// The sender of a frame: the last byte of its address.
fn sender(frame: &[u8]) -> Option<u8> {
    let eth = EthernetView::new_checked(frame).ok()?;
    Some(Ipv4View::new_trimmed(eth.payload()).ok()?.src().octets()[3])
}

impl Exchange {
    fn open(network: u8, hosts: &[u32], mtu: u32) -> Result<Exchange, UdpError> {
        let open = |host: &u32| {
            UdpPort::open(&UdpConfig {
                alias: Some(host_address(network, *host)),
                sources: UDP_ENTROPIES,
                mtu: mtu as usize,
                rx_frames: (ALL_RECEIVE_BUFFERS / hosts.len().max(1))
                    .clamp(*RECEIVE_BUFFERS.start(), *RECEIVE_BUFFERS.end()),
                ..UdpConfig::at(fabric_address(network, *host))
            })
        };
        let sockets: Vec<UdpPort> = hosts.iter().map(open).collect::<Result<_, _>>()?;
        let mut places = [None; 256];
        for (place, host) in (0..).zip(hosts) {
            places[*host as usize + 1] = Some(place);
        }
        Ok(Exchange {
            network,
            to_send: sockets.iter().map(TxBurst::new).collect(),
            sent: sockets.iter().map(|_| VecDeque::new()).collect(),
            readable: sockets.iter().map(|_| true).collect(),
            sockets,
            places,
            scratch: RxBurst::new(),
        })
    }

    fn place_of(&self, frame: &[u8]) -> Option<usize> {
        sender(frame).and_then(|last| self.places[usize::from(last)]).map(usize::from)
    }

    /// Finds the sockets that have a datagram, with one system call for all of them.
    fn poll_sockets(&mut self) {
        let mut fds: Vec<PollFd<'_>> =
            self.sockets.iter().map(|port| PollFd::new(port, PollFlags::IN)).collect();
        // If the call fails, all sockets are read.
        let asked = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok();
        for (readable, fd) in self.readable.iter_mut().zip(&fds) {
            *readable |= !asked || !fd.revents().is_empty();
        }
    }

    /// Receives the frames that were sent to the host at `place`. Returns how many were dropped.
    fn receive_at_socket(&mut self, place: usize) -> u64 {
        if place == 0 {
            self.poll_sockets();
        }
        if !self.readable[place] {
            return 0;
        }
        let mut refused = 0;
        // A full burst means that there may be more.
        self.readable[place] = self.sockets[place].receive(&mut self.scratch) == BURST;
        let mut arrived = std::mem::take(&mut self.scratch);
        for frame in arrived.drain() {
            match self.place_of(&frame) {
                Some(from) if self.sent[from].len() < MAX_BACKLOG => self.sent[from].push_back(frame),
                _ => refused += 1,
            }
        }
        self.scratch = arrived;
        refused
    }

    /// Hands a frame to the socket that represents its sender; returns it if that socket has no room.
    fn post(&mut self, frame: Frame) -> Result<(), Frame> {
        let Some(from) = self.place_of(&frame) else { return Ok(()) };
        if self.to_send[from].room() == 0 {
            self.sockets[from].transmit(&mut self.to_send[from]);
        }
        if self.to_send[from].room() == 0 {
            return Err(frame);
        }
        // The frame fits, because all ports have the same MTU.
        let _ = self.to_send[from].push(frame);
        Ok(())
    }

    fn flush(&mut self) {
        for (port, burst) in self.sockets.iter_mut().zip(&mut self.to_send) {
            if !burst.is_empty() {
                port.transmit(burst);
            }
        }
    }
}

impl Port for UdpLink {
    fn receive(&mut self, burst: &mut RxBurst) -> usize {
        let mut exchange = self.exchange.borrow_mut();
        self.counters.rx_missed += exchange.receive_at_socket(self.place);
        let mut count = 0;
        while burst.room() > 0
            && let Some(frame) = exchange.sent[self.place].pop_front()
        {
            self.counters.received(&frame);
            let _ = burst.push(frame);
            count += 1;
        }
        count
    }

    fn transmit(&mut self, burst: &mut TxBurst) -> usize {
        let mut exchange = self.exchange.borrow_mut();
        let count = burst.len();
        for frame in burst.take_front(count) {
            self.counters.sent(&frame);
            if exchange.post(frame).is_err() {
                // The kernel has no room; the full queue of a host would drop the frame too.
                self.counters.tx_errors += 1;
            }
        }
        exchange.flush();
        count
    }

    fn capabilities(&self) -> PortCaps {
        self.exchange.borrow().sockets[self.place].capabilities()
    }

    fn pool(&self) -> FramePool {
        self.exchange.borrow().sockets[self.place].pool()
    }

    fn counters(&self) -> PortCounters {
        let kernel = self.exchange.borrow().sockets[self.place].counters();
        PortCounters { rx_missed: self.counters.rx_missed + kernel.rx_missed, ..self.counters }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_testbed_tries_its_own_network_first_and_then_the_rest() {
        let of = |name: &str| networks(name).collect::<Vec<u8>>();
        assert_eq!(of("weft"), of("weft"));
        assert_ne!(of("weft")[0], of("other")[0]);
        let mut all = of("weft");
        all.sort_unstable();
        assert_eq!(all, NETWORKS.collect::<Vec<u8>>());
    }
}
