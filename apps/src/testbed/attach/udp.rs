//! Hosts over kernel UDP: each has a socket of its own, and one in the fabric that stands for it.
//!
//! ```text
//!   host i: 127.N.0.i ──▶ 127.N.1.j: the fabric's socket for host j
//!                              │ from i to j, through the switches
//!                              ▼
//!   host j: 127.N.0.j ◀── 127.N.1.i: the fabric's socket for host i
//! ```
//!
//! So what a host sends to says where it goes, and from which it gets something says who sent it: host *i* calls
//! host *j* 127.N.1.j and knows nothing else. Frames in the fabric carry the hosts' own addresses, as sockets
//! show and take them, and no header is rewritten.

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

/// Networks 127.N.0.0/15 that testbeds take, one each.
const NETWORKS: std::ops::RangeInclusive<u8> = 65..=126;
/// Frames that a host may have sent and its link not begun to carry; beyond that the fabric drops them, as a
/// host's full queue would.
const BACKLOG: usize = 512;
/// Frames that the sockets of one host can have handed over, if there are few hosts; and all of them together.
const RECEIVED: std::ops::RangeInclusive<usize> = 256..=1_024;
const ALL_RECEIVED: usize = 16_384;

/// All hosts' sockets in the fabric.
struct Exchange {
    network: u8,
    /// By the host's place: the socket that stands for it, what waits to be sent through that, and what the host
    /// has sent.
    stands_for: Vec<UdpPort>,
    to_send: Vec<TxBurst>,
    sent: Vec<VecDeque<Frame>>,
    /// By the host's place: whether there may be something at its socket.
    readable: Vec<bool>,
    /// By the last byte of a host's address: its place.
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
        let own = own(network, *host);
        Attached {
            facts: HostFacts {
                host: *host,
                port: format!("udp:{own},entropies={UDP_ENTROPIES}"),
                ip: None,
                mtu,
                namespace: None,
                called: stand_in(network, *host).to_string(),
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

/// Sockets for many hosts are more than a process usually has. Where it may not have them, opening them says so.
fn allow_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// All networks, the one that the testbed `name` has unless another one has taken it first: when it comes up again, its
/// hosts find it where it was.
fn networks(name: &str) -> impl Iterator<Item = u8> {
    let count = NETWORKS.len() as u32;
    let first = name.bytes().fold(0, |sum: u32, byte| (sum * 31 + u32::from(byte)) % count);
    (0..count).map(move |n| NETWORKS.start() + ((first + n) % count) as u8)
}

/// Whether another testbed has this network.
fn is_taken(error: &UdpError) -> bool {
    matches!(error, UdpError::Bind { error, .. } if error.kind() == io::ErrorKind::AddrInUse)
}

/// The host's own address.
fn own(network: u8, host: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(127, network, 0, host as u8 + 1))
}

/// What others call it.
fn stand_in(network: u8, host: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(127, network, 1, host as u8 + 1))
}

/// Who sent the frame, by the last byte of its address.
fn sender(frame: &[u8]) -> Option<u8> {
    let eth = EthernetView::new_checked(frame).ok()?;
    Some(Ipv4View::new_trimmed(eth.payload()).ok()?.src().octets()[3])
}

impl Exchange {
    fn open(network: u8, hosts: &[u32], mtu: u32) -> Result<Exchange, UdpError> {
        let open = |host: &u32| {
            UdpPort::open(&UdpConfig {
                alias: Some(own(network, *host)),
                sources: UDP_ENTROPIES,
                mtu: mtu as usize,
                rx_frames: (ALL_RECEIVED / hosts.len().max(1)).clamp(*RECEIVED.start(), *RECEIVED.end()),
                ..UdpConfig::at(stand_in(network, *host))
            })
        };
        let stands_for: Vec<UdpPort> = hosts.iter().map(open).collect::<Result<_, _>>()?;
        let mut places = [None; 256];
        for (place, host) in (0..).zip(hosts) {
            places[*host as usize + 1] = Some(place);
        }
        Ok(Exchange {
            network,
            to_send: stands_for.iter().map(TxBurst::new).collect(),
            sent: stands_for.iter().map(|_| VecDeque::new()).collect(),
            readable: stands_for.iter().map(|_| true).collect(),
            stands_for,
            places,
            scratch: RxBurst::new(),
        })
    }

    fn place_of(&self, frame: &[u8]) -> Option<usize> {
        sender(frame).and_then(|last| self.places[usize::from(last)]).map(usize::from)
    }

    /// Finds out which sockets have something: one call instead of one for each.
    fn look(&mut self) {
        let mut fds: Vec<PollFd<'_>> =
            self.stands_for.iter().map(|port| PollFd::new(port, PollFlags::IN)).collect();
        // Where it fails, all are asked.
        let asked = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok();
        for (readable, fd) in self.readable.iter_mut().zip(&fds) {
            *readable |= !asked || !fd.revents().is_empty();
        }
    }

    /// Takes in what has been sent to the host at `place`.
    fn take_in(&mut self, place: usize) -> u64 {
        if place == 0 {
            self.look();
        }
        if !self.readable[place] {
            return 0;
        }
        let mut refused = 0;
        // There may be more if there was as much as it takes at a time.
        self.readable[place] = self.stands_for[place].receive(&mut self.scratch) == BURST;
        let mut arrived = std::mem::take(&mut self.scratch);
        for frame in arrived.drain() {
            match self.place_of(&frame) {
                Some(from) if self.sent[from].len() < BACKLOG => self.sent[from].push_back(frame),
                _ => refused += 1,
            }
        }
        self.scratch = arrived;
        refused
    }

    /// Hands a frame to the socket that stands for its sender. Gives it back if that has no room.
    fn post(&mut self, frame: Frame) -> Result<(), Frame> {
        let Some(from) = self.place_of(&frame) else { return Ok(()) };
        if self.to_send[from].room() == 0 {
            self.stands_for[from].transmit(&mut self.to_send[from]);
        }
        if self.to_send[from].room() == 0 {
            return Err(frame);
        }
        // It fits: all ports have the same MTU.
        let _ = self.to_send[from].push(frame);
        Ok(())
    }

    fn flush(&mut self) {
        for (port, burst) in self.stands_for.iter_mut().zip(&mut self.to_send) {
            if !burst.is_empty() {
                port.transmit(burst);
            }
        }
    }
}

impl Port for UdpLink {
    fn receive(&mut self, burst: &mut RxBurst) -> usize {
        let mut exchange = self.exchange.borrow_mut();
        self.counters.rx_missed += exchange.take_in(self.place);
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
                // The kernel has no room: a full queue of the host's would do the same.
                self.counters.tx_errors += 1;
            }
        }
        exchange.flush();
        count
    }

    fn capabilities(&self) -> PortCaps {
        self.exchange.borrow().stands_for[self.place].capabilities()
    }

    fn pool(&self) -> FramePool {
        self.exchange.borrow().stands_for[self.place].pool()
    }

    fn counters(&self) -> PortCounters {
        let kernel = self.exchange.borrow().stands_for[self.place].counters();
        PortCounters { rx_missed: self.counters.rx_missed + kernel.rx_missed, ..self.counters }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_testbed_tries_its_own_network_first_and_then_all_others() {
        let of = |name: &str| networks(name).collect::<Vec<u8>>();
        assert_eq!(of("weft"), of("weft"));
        assert_ne!(of("weft")[0], of("other")[0]);
        let mut all = of("weft");
        all.sort_unstable();
        assert_eq!(all, NETWORKS.collect::<Vec<u8>>());
    }
}
