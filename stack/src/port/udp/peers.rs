//! The socket addresses of peers.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use foldhash::fast::RandomState;

use super::config::own_ports;
use super::system::RawAddr;
use super::{Peer, UdpError};
use crate::spray::Entropy;
use crate::wire::udp::entropy_to_port;

/// With a random hash: peers choose their addresses and ports, and could choose those of equal hashes otherwise.
type Map<K, V> = HashMap<K, V, RandomState>;

/// The most peers that are told apart by their UDP ports for good: as many as the address books of endpoints hold.
const MOST: usize = 4096;
/// The most others: the address book has yet to enter them, or does not want them. More than there are frames in a burst.
const MOST_NEW: usize = 1024;

/// The number of an IP address that stands for an endpoint in frames of one port, and is no address of any host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Alias(u32);

/// How many aliases there are. They are used in turn, so that one that was forgotten rests for as long as possible.
const ALIASES: u32 = (1 << 28) - 2;

/// The alias of the port itself.
pub(super) const OWN: Alias = Alias(0);

impl Alias {
    /// Of 240.0.0.0/4, which RFC 1112 reserves, or of 100::/64, whose packets every router discards (RFC 6666).
    pub(super) fn at(self, v6: bool) -> IpAddr {
        let number = self.0 + 1;
        if v6 {
            Ipv6Addr::from(0x0100_u128 << 112 | u128::from(number)).into()
        } else {
            Ipv4Addr::from(0xf000_0000 | number).into()
        }
    }
}

/// The peers that have other addresses and ports than those in frames.
pub(super) struct Peers {
    others: Others,
    places: Map<IpAddr, RawAddr>,
    /// By address and source port: the address and source port that frames show.
    names: Map<SocketAddr, (IpAddr, u16)>,
}

/// The peers that have not been entered.
enum Others {
    /// All are at this UDP port, at addresses of their own.
    At(u16),
    /// Each endpoint has `count` UDP ports from a multiple of `count` on.
    ByPort {
        count: u16,
        known: Map<SocketAddr, IpAddr>,
        sockets: Map<IpAddr, SocketAddr>,
        /// Those that nobody has asked to keep, in the order in which they came; some of them are kept or gone.
        new: VecDeque<IpAddr>,
        /// Those of `sockets` that are kept.
        kept: HashSet<IpAddr, RandomState>,
        last: Alias,
    },
}

impl Peers {
    /// Peers that are all at `port` until they are entered.
    pub(super) fn by_address(port: u16) -> Peers {
        Peers { others: Others::At(port), places: Map::default(), names: Map::default() }
    }

    /// Peers that have `count` UDP ports each, and may share their addresses.
    pub(super) fn by_port(count: u16) -> Peers {
        let others = Others::ByPort {
            count,
            known: Map::default(),
            sockets: Map::default(),
            new: VecDeque::new(),
            kept: HashSet::default(),
            last: OWN,
        };
        Peers { others, places: Map::default(), names: Map::default() }
    }

    pub(super) fn insert(&mut self, peer: &Peer) -> Result<(), UdpError> {
        let from = |port: &u16| SocketAddr::new(peer.socket.ip(), *port);
        let known = peer.sources.iter().any(|port| self.names.contains_key(&from(port)));
        if known || self.places.contains_key(&peer.ip) {
            return Err(UdpError::PeerTaken { ip: peer.ip, socket: peer.socket });
        }
        self.places.insert(peer.ip, RawAddr::new(peer.socket));
        for (entropy, port) in (0..).zip(&peer.sources) {
            self.names.insert(from(port), (peer.ip, entropy_to_port(Entropy(entropy))));
        }
        Ok(())
    }

    /// Enters the endpoint at `socket`, which is not known, under a new alias, for good.
    pub(super) fn enter(&mut self, socket: SocketAddr) -> Result<IpAddr, UdpError> {
        if let Others::ByPort { kept, .. } = &self.others
            && kept.len() >= MOST
        {
            return Err(UdpError::TooManyPeers { socket, most: MOST });
        }
        let ip = self.enter_new(socket)?;
        self.keep(ip);
        Ok(ip)
    }

    /// As [`Peers::enter`], but the endpoint makes room for others unless it is [kept](Peers::keep).
    fn enter_new(&mut self, socket: SocketAddr) -> Result<IpAddr, UdpError> {
        let Others::ByPort { count, sockets, last, .. } = &mut self.others else {
            return Err(UdpError::PeerPort { socket, count: 1 });
        };
        let Some(ports) = own_ports(socket.port(), *count).filter(|_| socket.port() != 0) else {
            return Err(UdpError::PeerPort { socket, count: *count });
        };
        let ip = loop {
            *last = Alias(last.0 % ALIASES + 1);
            let alias = last.at(socket.is_ipv6());
            if !sockets.contains_key(&alias) {
                break alias;
            }
        };
        self.insert(&Peer { ip, socket, sources: ports.collect() })?;
        let Others::ByPort { known, sockets, new, kept, .. } = &mut self.others else { return Ok(ip) };
        known.insert(socket, ip);
        sockets.insert(ip, socket);
        new.push_back(ip);
        if new.len() > MOST_NEW
            && let Some(oldest) = new.pop_front()
            && !kept.contains(&oldest)
        {
            self.forget(oldest);
        }
        Ok(ip)
    }

    /// The endpoint that `alias` stands for is to stay known.
    pub(super) fn keep(&mut self, alias: IpAddr) {
        if let Others::ByPort { sockets, kept, .. } = &mut self.others
            && sockets.contains_key(&alias)
        {
            kept.insert(alias);
        }
    }

    /// Forgets the peer that `ip` stands for in frames.
    pub(super) fn forget(&mut self, ip: IpAddr) {
        self.places.remove(&ip);
        match &mut self.others {
            Others::At(_) => self.names.retain(|_, (name, _)| *name != ip),
            Others::ByPort { count, known, sockets, kept, .. } => {
                kept.remove(&ip);
                let Some(socket) = sockets.remove(&ip) else { return };
                known.remove(&socket);
                for port in own_ports(socket.port(), *count).into_iter().flatten() {
                    self.names.remove(&SocketAddr::new(socket.ip(), port));
                }
            }
        }
    }

    /// The alias of the endpoint at `socket`.
    pub(super) fn alias_of(&self, socket: SocketAddr) -> Option<IpAddr> {
        match &self.others {
            Others::At(_) => None,
            Others::ByPort { known, .. } => known.get(&socket).copied(),
        }
    }

    /// The endpoint that `alias` stands for.
    pub(super) fn socket_of(&self, alias: IpAddr) -> Option<SocketAddr> {
        match &self.others {
            Others::At(_) => None,
            Others::ByPort { sockets, .. } => sockets.get(&alias).copied(),
        }
    }

    /// The address and port to which datagrams for `ip` are sent.
    #[inline]
    pub(super) fn place(&self, ip: IpAddr) -> RawAddr {
        let entered = if self.places.is_empty() { None } else { self.places.get(&ip) };
        let port = match &self.others {
            Others::At(port) => *port,
            // Nobody has an alias that was not given away: there is nothing to send to it.
            Others::ByPort { .. } => 0,
        };
        entered.copied().unwrap_or_else(|| RawAddr::new(SocketAddr::new(ip, port)))
    }

    /// The address and source port that frames from `from` get. `None` if there is no room for another peer.
    #[inline]
    pub(super) fn name(&mut self, from: SocketAddr) -> Option<(IpAddr, u16)> {
        let as_it_is = (from.ip(), from.port());
        if let Others::At(_) = self.others
            && self.names.is_empty()
        {
            return Some(as_it_is);
        }
        // The scope of a link-local sender is the interface that its datagram came through, not a part of its identity.
        let plain = SocketAddr::new(from.ip(), from.port());
        match (self.names.get(&plain), &self.others) {
            (Some(name), _) => Some(*name),
            (None, Others::At(_)) => Some(as_it_is),
            (None, Others::ByPort { count, .. }) => {
                let first = plain.port() - plain.port() % count;
                self.enter_sender(plain, first)
            }
        }
    }

    #[cold]
    fn enter_sender(&mut self, from: SocketAddr, first: u16) -> Option<(IpAddr, u16)> {
        self.enter_new(SocketAddr::new(from.ip(), first)).ok()?;
        self.names.get(&from).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> SocketAddr {
        ([192, 0, 2, 1], port).into()
    }

    #[test]
    fn endpoints_at_one_address_are_told_apart_by_their_ports() {
        let mut peers = Peers::by_port(4);
        let entered = peers.enter(at(4000)).unwrap();
        assert_eq!(entered, IpAddr::from([240, 0, 0, 2]));
        assert_eq!(peers.name(at(4002)), Some((entered, entropy_to_port(Entropy(2)))));
        let (heard, port) = peers.name(at(4005)).unwrap();
        assert_eq!((heard, port), ([240, 0, 0, 3].into(), entropy_to_port(Entropy(1))));
        assert_eq!((peers.alias_of(at(4004)), peers.socket_of(heard)), (Some(heard), Some(at(4004))));
        assert_eq!(peers.name(at(4007)).unwrap().0, heard);
    }

    #[test]
    fn no_endpoint_is_at_a_port_between() {
        let mut peers = Peers::by_port(4);
        for port in [0, 4001, 4002] {
            assert!(matches!(peers.enter(at(port)), Err(UdpError::PeerPort { .. })), "{port}");
        }
        assert_eq!(peers.name(at(3)), None, "port 0 is nobody's");
        assert!(matches!(Peers::by_address(4793).enter(at(4000)), Err(UdpError::PeerPort { .. })));
    }

    #[test]
    fn no_more_peers_are_entered_for_good_than_books_hold() {
        let mut peers = Peers::by_port(1);
        for port in 1..=MOST as u16 {
            peers.enter(at(port)).unwrap();
        }
        assert!(matches!(peers.enter(at(5000)), Err(UdpError::TooManyPeers { .. })));
        assert!(peers.name(at(4096)).is_some());
    }

    #[test]
    fn senders_whom_nobody_keeps_make_room_for_others_and_leave_nothing_behind() {
        let mut peers = Peers::by_port(4);
        let (asked, heard) = (peers.enter(at(4)).unwrap(), peers.name(at(9)).unwrap().0);
        peers.keep(heard);
        let first = peers.name(at(12)).unwrap().0;
        for number in 4..=MOST_NEW as u16 + 4 {
            assert!(peers.name(at(number * 4 + 3)).is_some());
        }
        assert_eq!(peers.socket_of(first), None);
        assert!(!peers.places.contains_key(&first));
        assert_ne!(peers.name(at(12)).unwrap().0, first, "an alias is not used again");
        assert_eq!((peers.name(at(6)).unwrap().0, peers.name(at(11)).unwrap().0), (asked, heard));
        assert!(peers.names.len() <= 4 * (MOST_NEW + 2), "{} source ports", peers.names.len());
        peers.forget(heard);
        assert_ne!(peers.name(at(9)).unwrap().0, heard);
    }

    #[test]
    fn a_peer_that_was_forgotten_can_be_met_again() {
        let mut peers = Peers::by_address(4793);
        let peer = |source| Peer { ip: [10, 0, 0, 2].into(), socket: at(5000), sources: vec![source] };
        peers.insert(&peer(7)).unwrap();
        assert!(peers.insert(&peer(8)).is_err());
        peers.forget([10, 0, 0, 2].into());
        peers.insert(&peer(7)).unwrap();
        assert_eq!(peers.name(at(7)).unwrap().0, IpAddr::from([10, 0, 0, 2]));
    }
}
