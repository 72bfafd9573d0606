//! The address book: which Ethernet and IP address belongs to which [`Addr`].

use core::net::IpAddr;
use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasherDefault;

use rustc_hash::FxHasher;

use super::ip_prefix::PrefixZones;
use crate::packet::Addr;
use crate::wire::ethernet::MacAddr;
use crate::wire::ip::IpAddrs;
use crate::wire::prefix::Prefix;

/// The addresses at which an endpoint is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HostAddr {
    /// The Ethernet address of the endpoint's host, or of the router on the way to it.
    pub mac: MacAddr,
    /// The IP address of the endpoint.
    pub ip: IpAddr,
}

/// The addresses of packets from one host to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Source Ethernet address.
    pub src_mac: MacAddr,
    /// Destination Ethernet address.
    pub dst_mac: MacAddr,
    /// IP addresses.
    pub ip: IpAddrs,
    /// The finished Ethernet, IP and UDP headers; over IPv4 only.
    pub(super) prefix: Option<Prefix>,
}

impl Route {
    /// The route from `src` to `dst`; none if they use different versions of IP.
    fn between(src: &HostAddr, dst: &HostAddr) -> Option<Route> {
        let ip = match (src.ip, dst.ip) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => IpAddrs::V4 { src, dst },
            (IpAddr::V6(src), IpAddr::V6(dst)) => IpAddrs::V6 { src, dst },
            _ => return None,
        };
        let (src_mac, dst_mac) = (src.mac, dst.mac);
        let prefix = match ip {
            IpAddrs::V4 { src, dst } => Some(Prefix::new(src_mac, dst_mac, src, dst)),
            IpAddrs::V6 { .. } => None,
        };
        Some(Route { src_mac, dst_mac, ip, prefix })
    }
}

/// How packets from senders that are not in the book are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Strangers {
    /// The packets are dropped and counted.
    #[default]
    Refuse,
    /// The sender is entered under the lowest free address, until the book is full. Anybody who can send
    /// frames here with a forged source can then fill the book.
    Learn,
}

/// The endpoints that one endpoint may talk to, itself among them.
#[derive(Clone, Debug)]
pub struct AddressBook {
    own: Addr,
    own_host: HostAddr,
    /// The IP address that peers know the endpoint by, if it is another one.
    called: Option<IpAddr>,
    /// The addresses of peers, by [`Addr`]; never longer than `capacity`.
    hosts: Vec<Option<HostAddr>>,
    /// The routes to `hosts`, by the same index, computed in advance for packets.
    routes: Vec<Option<Route>>,
    /// The peers whose Ethernet address the worker asks for on the link, whether they have answered or not.
    asked: BTreeMap<Addr, IpAddr>,
    by_ip: HashMap<IpAddr, Addr, BuildHasherDefault<FxHasher>>,
    capacity: usize,
    strangers: Strangers,
    zones: PrefixZones,
    /// No address below this is free.
    first_free: usize,
    /// How often a route was entered.
    changes: u64,
}

/// Why an address was not entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BookError {
    /// All addresses of the book are taken.
    #[error("the address book is full: it has {capacity} entries")]
    Full {
        /// The number of entries.
        capacity: usize,
    },
    /// The sender is not in the book, which refuses strangers.
    #[error("{0} is not in the address book")]
    Stranger(IpAddr),
    /// The address does not exist in a book of this capacity.
    #[error("endpoint {} is beyond the address book's {capacity} entries", addr.0)]
    Beyond {
        /// The address that is out of range.
        addr: Addr,
        /// The number of entries of the book.
        capacity: usize,
    },
    /// The address has a different entry already.
    #[error("endpoint {} has an entry already", .0.0)]
    AddrTaken(Addr),
    /// Another endpoint has this IP address.
    #[error("{ip} belongs to endpoint {}", addr.0)]
    IpTaken {
        /// The IP address.
        ip: IpAddr,
        /// The endpoint that has it.
        addr: Addr,
    },
    /// The endpoint itself uses the other version of IP.
    #[error("{0} is of another IP version than the endpoint's own address")]
    Version(IpAddr),
    /// The address is not of a single endpoint: it is multicast, broadcast or unspecified.
    #[error("{ip} at {mac} is no address of an endpoint")]
    NotUnicast {
        /// The IP address.
        ip: IpAddr,
        /// The Ethernet address.
        mac: MacAddr,
    },
}

impl AddressBook {
    /// A book for the endpoint `own`, which is at `host`, with room for `capacity` endpoints.
    ///
    /// # Errors
    /// `own` is beyond the capacity, or `host` is no address of a single endpoint.
    pub fn new(
        own: Addr,
        host: HostAddr,
        capacity: usize,
        strangers: Strangers,
    ) -> Result<AddressBook, BookError> {
        let mut book = AddressBook {
            own,
            own_host: host,
            called: None,
            hosts: Vec::new(),
            routes: Vec::new(),
            asked: BTreeMap::new(),
            by_ip: HashMap::default(),
            capacity,
            strangers,
            zones: PrefixZones::default(),
            first_free: 0,
            changes: 0,
        };
        book.insert(own, host)?;
        Ok(book)
    }

    /// The book with `zones` for all peers, those that are entered already and those to come.
    #[must_use]
    pub fn with_zones(mut self, zones: PrefixZones) -> AddressBook {
        self.by_ip.iter().for_each(|(ip, addr)| zones.enter(*addr, *ip));
        self.zones = zones;
        self
    }

    /// The endpoint whose book it is.
    pub fn own(&self) -> Addr {
        self.own
    }

    /// The addresses of that endpoint.
    pub fn own_host(&self) -> HostAddr {
        self.own_host
    }

    /// Peers know the endpoint by another IP address than the one in its frames, as something on the way translates
    /// addresses. It stands for the endpoint here too.
    ///
    /// # Errors
    /// Another endpoint has that address.
    pub fn set_called(&mut self, ip: IpAddr) -> Result<(), BookError> {
        match *self.by_ip.entry(ip).or_insert(self.own) {
            holder if holder == self.own => {
                self.called = Some(ip);
                Ok(())
            }
            holder => Err(BookError::IpTaken { ip, addr: holder }),
        }
    }

    /// The IP address that peers know the endpoint by.
    pub fn called(&self) -> IpAddr {
        self.called.unwrap_or(self.own_host.ip)
    }

    /// Enters `host` under `addr`, permanently: a peer whose Ethernet address was asked for is not asked any more.
    /// Entering the same again changes nothing.
    ///
    /// # Errors
    /// Why `host` cannot be entered; the book is unchanged.
    pub fn insert(&mut self, addr: Addr, host: HostAddr) -> Result<(), BookError> {
        self.check(&host)?;
        let learnt = self.asked.contains_key(&addr);
        if self.get(addr).is_some_and(|present| *present != host && !learnt) {
            return Err(BookError::AddrTaken(addr));
        }
        self.claim(addr, host.ip)?;
        self.asked.remove(&addr);
        self.place(addr, host);
        Ok(())
    }

    /// Enters a peer whose Ethernet address is not known; see [`super::Worker::meet`], which asks for it.
    /// Until it is known there is no route to the peer, but packets from the peer are recognised.
    ///
    /// # Errors
    /// Why the peer cannot be entered; the book is unchanged.
    pub(super) fn expect(&mut self, addr: Addr, ip: IpAddr) -> Result<(), BookError> {
        self.check(&HostAddr { mac: self.own_host.mac, ip })?;
        match self.ip(addr) {
            Some(present) if present == ip => return Ok(()),
            Some(_) => return Err(BookError::AddrTaken(addr)),
            None => self.claim(addr, ip)?,
        }
        self.asked.insert(addr, ip);
        self.skip_taken();
        Ok(())
    }

    /// Sets the Ethernet address of a peer that [`AddressBook::expect`] has entered, unless it has been entered
    /// permanently since.
    pub(super) fn resolve(&mut self, addr: Addr, mac: MacAddr) {
        if let Some(&ip) = self.asked.get(&addr) {
            self.place(addr, HostAddr { mac, ip });
        }
    }

    /// The IP address of `addr`, whether there is a route to it or not.
    pub fn ip(&self, addr: Addr) -> Option<IpAddr> {
        self.get(addr).map(|host| host.ip).or_else(|| self.asked.get(&addr).copied())
    }

    /// Reserves `ip` for `addr`, unless another endpoint has it or `addr` has another.
    fn claim(&mut self, addr: Addr, ip: IpAddr) -> Result<(), BookError> {
        if addr.0 as usize >= self.capacity {
            return Err(BookError::Beyond { addr, capacity: self.capacity });
        }
        if self.ip(addr).is_some_and(|present| present != ip) {
            return Err(BookError::AddrTaken(addr));
        }
        match *self.by_ip.entry(ip).or_insert(addr) {
            holder if holder == addr => {
                self.zones.enter(addr, ip);
                Ok(())
            }
            holder => Err(BookError::IpTaken { ip, addr: holder }),
        }
    }

    /// Enters a host whose `addr` is below the capacity and whose IP address is reserved for it.
    fn place(&mut self, addr: Addr, host: HostAddr) {
        let index = addr.0 as usize;
        if index >= self.hosts.len() {
            self.hosts.resize(index + 1, None);
            self.routes.resize(index + 1, None);
        }
        self.hosts[index] = Some(host);
        self.routes[index] = Route::between(&self.own_host, &host);
        self.changes += 1;
        self.skip_taken();
    }

    fn skip_taken(&mut self) {
        let taken = |index: usize| {
            self.hosts.get(index).is_some_and(Option::is_some) || self.asked.contains_key(&Addr(index as u32))
        };
        while taken(self.first_free) {
            self.first_free += 1;
        }
    }

    /// How often a route was entered: if that has not changed, no route is new.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// The addresses of the endpoint `addr`.
    #[inline]
    pub fn get(&self, addr: Addr) -> Option<&HostAddr> {
        self.hosts.get(addr.0 as usize)?.as_ref()
    }

    /// The endpoint that has the IP address `ip`.
    #[inline]
    pub fn find(&self, ip: IpAddr) -> Option<Addr> {
        self.by_ip.get(&ip).copied()
    }

    /// The endpoint that a packet from `host` belongs to. Enters it if it is not in the book, and the book learns
    /// strangers. The IP address decides; a router may have put its own Ethernet address on the frame.
    ///
    /// # Errors
    /// The sender is not in the book, which refuses strangers or is full.
    #[inline]
    pub fn sender(&mut self, host: HostAddr) -> Result<Addr, BookError> {
        match self.find(host.ip) {
            Some(addr) => Ok(addr),
            None => self.meet(host),
        }
    }

    /// The addresses of packets to `addr`.
    #[inline]
    pub fn route(&self, addr: Addr) -> Option<&Route> {
        self.routes.get(addr.0 as usize)?.as_ref()
    }

    #[cold]
    fn meet(&mut self, host: HostAddr) -> Result<Addr, BookError> {
        if self.strangers == Strangers::Refuse {
            return Err(BookError::Stranger(host.ip));
        }
        let addr = self.lowest_free()?;
        self.insert(addr, host)?;
        Ok(addr)
    }

    /// The lowest address that has no entry.
    ///
    /// # Errors
    /// The book is full.
    pub(super) fn lowest_free(&self) -> Result<Addr, BookError> {
        match self.first_free < self.capacity {
            true => Ok(Addr(self.first_free as u32)),
            false => Err(BookError::Full { capacity: self.capacity }),
        }
    }

    pub(super) fn check(&self, host: &HostAddr) -> Result<(), BookError> {
        if host.ip.is_ipv4() != self.own_host.ip.is_ipv4() {
            return Err(BookError::Version(host.ip));
        }
        let broadcast = matches!(host.ip, IpAddr::V4(v4) if v4.is_broadcast());
        let group_mac = host.mac.0[0] & 1 != 0;
        if host.ip.is_multicast() || host.ip.is_unspecified() || broadcast || group_mac {
            return Err(BookError::NotUnicast { ip: host.ip, mac: host.mac });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::fep::{Zone, ZoneId, ZoneMap, ZoneTable, Zones};
    use weft_cc::{CcChoice, CcParams, Rate, Span};

    fn host(n: u8) -> HostAddr {
        HostAddr { mac: MacAddr([2, 0, 0, 0, 0, n]), ip: IpAddr::from([10, 0, 0, n]) }
    }

    fn book(capacity: usize, strangers: Strangers) -> AddressBook {
        AddressBook::new(Addr(1), host(1), capacity, strangers).unwrap()
    }

    /// Two zones beside the default one, and a table.
    fn zones() -> ([ZoneId; 2], Arc<ZoneTable>) {
        let params = CcParams {
            mtu: 4096,
            overhead: 64,
            link_rate: Rate::from_gbps(100),
            network_rtt: Span::from_us(10),
            trimming: true,
        };
        let zone = || Zone::new(&CcChoice::default(), &params);
        let mut zones = Zones::one(zone());
        ([(); 2].map(|()| zones.add(zone()).unwrap()), Arc::new(ZoneTable::new(16)))
    }

    #[test]
    fn entries_are_found_both_ways() {
        let mut book = book(8, Strangers::Refuse);
        book.insert(Addr(5), host(9)).unwrap();
        book.insert(Addr(5), host(9)).unwrap();
        assert_eq!((book.get(Addr(5)), book.get(Addr(4))), (Some(&host(9)), None));
        assert_eq!(book.sender(host(9)), Ok(Addr(5)));
        let behind_a_router = HostAddr { mac: MacAddr([4; 6]), ..host(9) };
        assert_eq!(book.sender(behind_a_router), Ok(Addr(5)));
        let ip = IpAddrs::V4 { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 9].into() };
        let route = *book.route(Addr(5)).unwrap();
        assert_eq!((route.src_mac, route.dst_mac, route.ip), (host(1).mac, host(9).mac, ip));
        assert_eq!(Some(route), Route::between(&host(1), &host(9)));
        assert_eq!(book.route(Addr(4)), None);
    }

    #[test]
    fn strangers_are_refused_or_learned_until_the_book_is_full() {
        let mut closed = book(8, Strangers::Refuse);
        assert_eq!(closed.sender(host(3)), Err(BookError::Stranger(host(3).ip)));
        let mut open = book(4, Strangers::Learn);
        open.insert(Addr(2), host(2)).unwrap();
        assert_eq!(open.sender(host(7)), Ok(Addr(0)));
        assert_eq!(open.sender(host(8)), Ok(Addr(3)));
        assert_eq!(open.sender(host(9)), Err(BookError::Full { capacity: 4 }));
        assert_eq!(open.sender(host(7)), Ok(Addr(0)), "those who are in stay in");
    }

    #[test]
    fn an_expected_peer_can_be_entered_permanently() {
        let mut book = book(8, Strangers::Learn);
        book.expect(Addr(0), host(5).ip).unwrap();
        book.expect(Addr(0), host(5).ip).unwrap();
        assert_eq!(
            (book.get(Addr(0)), book.ip(Addr(0)), book.route(Addr(0))),
            (None, Some(host(5).ip), None)
        );
        assert_eq!(book.sender(host(5)), Ok(Addr(0)), "its packets are its, whatever their Ethernet address");
        assert_eq!(book.sender(host(6)), Ok(Addr(2)), "its place is taken");
        assert_eq!(book.expect(Addr(0), host(7).ip), Err(BookError::AddrTaken(Addr(0))));
        let taken = BookError::IpTaken { ip: host(5).ip, addr: Addr(0) };
        assert_eq!(book.expect(Addr(3), host(5).ip), Err(taken));

        book.resolve(Addr(0), MacAddr([2; 6]));
        assert_eq!(book.get(Addr(0)), Some(&HostAddr { mac: MacAddr([2; 6]), ..host(5) }));
        book.resolve(Addr(0), MacAddr([4; 6]));
        assert_eq!(book.get(Addr(0)).unwrap().mac, MacAddr([4; 6]), "it may move");
        let moved = HostAddr { mac: MacAddr([4; 6]), ..host(5) };
        assert_eq!(book.route(Addr(0)).copied(), Route::between(&host(1), &moved));
        book.insert(Addr(0), host(5)).unwrap();
        book.resolve(Addr(0), MacAddr([6; 6]));
        assert_eq!(book.get(Addr(0)), Some(&host(5)), "but not any more");
        assert_eq!(book.insert(Addr(0), host(7)), Err(BookError::AddrTaken(Addr(0))));
    }

    #[test]
    fn peers_are_in_the_zone_of_the_longest_prefix_of_their_address() {
        let ([wide, narrow], table) = zones();
        let prefixes = [("10.0.0.0/29", wide), ("10.0.0.4/30", narrow)];
        let prefixes = prefixes.map(|(prefix, zone)| (prefix.parse().unwrap(), zone));
        let map = ZoneMap::Table(table.clone());
        let mut book = book(16, Strangers::Learn);
        book.insert(Addr(2), host(2)).unwrap();
        let mut book = book.with_zones(PrefixZones::new(prefixes.into(), table));
        book.insert(Addr(5), host(5)).unwrap();
        book.expect(Addr(6), host(6).ip).unwrap();
        let stranger = book.sender(host(7)).unwrap();
        let beyond = book.sender(host(9)).unwrap();
        let zone = |peer| map.zone_of(Addr(1), peer);
        assert_eq!(
            [zone(Addr(2)), zone(Addr(5)), zone(Addr(6)), zone(stranger)],
            [wide, narrow, narrow, narrow]
        );
        assert_eq!(zone(beyond), ZoneId::DEFAULT);
    }

    #[test]
    fn contradictions_are_refused() {
        let mut book = book(8, Strangers::Learn);
        assert_eq!(book.insert(Addr(1), host(2)), Err(BookError::AddrTaken(Addr(1))));
        let taken = BookError::IpTaken { ip: host(1).ip, addr: Addr(1) };
        assert_eq!(book.insert(Addr(2), host(1)), Err(taken));
        assert_eq!(book.insert(Addr(8), host(2)), Err(BookError::Beyond { addr: Addr(8), capacity: 8 }));
        let v6 = HostAddr { ip: "fd00::1".parse().unwrap(), ..host(2) };
        assert_eq!(book.insert(Addr(2), v6), Err(BookError::Version(v6.ip)));
        for (mac, ip) in [([1, 0, 0, 0, 0, 0], [10, 0, 0, 2]), ([2; 6], [224, 0, 0, 1]), ([2; 6], [0; 4])] {
            let bad = HostAddr { mac: MacAddr(mac), ip: IpAddr::from(ip) };
            assert!(matches!(book.sender(bad), Err(BookError::NotUnicast { .. })), "{bad:?}");
        }
        assert_eq!(book.get(Addr(0)), None);
    }
}
