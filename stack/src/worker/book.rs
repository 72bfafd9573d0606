//! The address book: which Ethernet and IP address belongs to which [`Addr`].

use core::hash::{Hash, Hasher};
use core::net::IpAddr;
use std::collections::{BTreeMap, HashMap};

use foldhash::fast::RandomState;

use super::ip_prefix::PrefixZones;
use super::places::{Named, Places};
use super::resolutions::Resolutions;
use crate::fep::Standing;
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
    /// Whose route it is.
    peer: Addr,
}

impl Route {
    /// The route from `src` to `peer` at `dst`; none if they use different versions of IP.
    fn between(src: &HostAddr, peer: Addr, dst: &HostAddr) -> Option<Route> {
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
        Some(Route { src_mac, dst_mac, ip, prefix, peer })
    }
}

/// How packets from senders that are not in the book are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Strangers {
    /// The packets are dropped and counted.
    #[default]
    Refuse,
    /// The sender is entered. When the book is full, a peer that was entered in this way and is not needed makes room:
    /// see [`super::Worker::free_addr`].
    Learn,
}

/// The endpoints that one endpoint may talk to, itself among them.
#[derive(Clone, Debug)]
pub struct AddressBook {
    own: Addr,
    own_host: HostAddr,
    /// The IP address that peers know the endpoint by, if it is another one.
    called: Option<IpAddr>,
    /// Who has which place of the book.
    places: Places,
    /// The addresses of peers, by place; never longer than the book's capacity.
    hosts: Vec<Option<HostAddr>>,
    /// The routes to `hosts`, by the same index, computed in advance for packets.
    routes: Vec<Option<Route>>,
    /// The peers whose Ethernet address the worker asks for on the link, whether they have answered or not.
    asked: BTreeMap<Addr, Asked>,
    /// With a random hash: peers choose their addresses, and could choose those of equal hashes otherwise.
    by_ip: HashMap<ByIp, Addr, RandomState>,
    strangers: Strangers,
    zones: PrefixZones,
    /// How often a route was entered or forgotten.
    changes: u64,
    /// The peers of these, and those that the worker has given up, or asks for at another neighbour.
    resolutions: Resolutions,
}

/// A peer whose Ethernet address the worker asks for.
#[derive(Clone, Copy, Debug)]
struct Asked {
    ip: IpAddr,
    /// The Ethernet address that applications have named, and how many of them, as long as no host has answered.
    supposed: Option<(MacAddr, u32)>,
}

/// An IP address that is hashed as one number: each packet is looked up by that of its sender, and the hash of the standard library's
/// type goes over its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ByIp(IpAddr);

impl Hash for ByIp {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self.0 {
            IpAddr::V4(ip) => state.write_u32(ip.to_bits()),
            IpAddr::V6(ip) => state.write_u128(ip.to_bits()),
        }
    }
}

/// The room of an address book.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct BookRoom {
    /// The number of entries that it can have.
    pub capacity: usize,
    /// Those that are not kept for good, so that peers may have them which applications add.
    pub for_applications: usize,
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
    /// The address is that of a peer that was forgotten.
    #[error("endpoint {} was forgotten, and its address is never used again", .0.0)]
    Forgotten(Addr),
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
            places: Places::new(capacity),
            hosts: Vec::new(),
            routes: Vec::new(),
            asked: BTreeMap::new(),
            by_ip: HashMap::default(),
            strangers,
            zones: PrefixZones::default(),
            changes: 0,
            resolutions: Resolutions::default(),
        };
        book.insert(own, host)?;
        Ok(book)
    }

    /// The book with `zones` for all peers, those that are entered already and those to come.
    #[must_use]
    pub fn with_zones(mut self, zones: PrefixZones) -> AddressBook {
        self.by_ip.iter().for_each(|(ByIp(ip), addr)| zones.enter(*addr, *ip));
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
        match *self.by_ip.entry(ByIp(ip)).or_insert(self.own) {
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
        self.places.keep(addr);
        self.place(addr, host);
        Ok(())
    }

    /// Makes the entry of `addr`, if there is one, permanent.
    pub fn keep(&mut self, addr: Addr) {
        if self.ip(addr).is_some() {
            self.places.keep(addr);
        }
    }

    /// Lets the peer `addr` be forgotten when another one needs its room and it has neither PDC nor connection, until it is
    /// [kept](AddressBook::keep) again. The endpoint's own entry stays.
    pub fn let_go(&mut self, addr: Addr) {
        if addr != self.own {
            self.places.let_go(addr);
        }
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
        self.asked.insert(addr, Asked { ip, supposed: None });
        self.places.keep(addr);
        Ok(())
    }

    /// Sets the Ethernet address of a peer that [`AddressBook::expect`] has entered, unless it has been entered
    /// permanently since.
    pub(super) fn resolve(&mut self, addr: Addr, mac: MacAddr) {
        if let Some(asked) = self.asked.get_mut(&addr) {
            let ip = asked.ip;
            asked.supposed = None;
            self.place(addr, HostAddr { mac, ip });
        }
    }

    /// Takes `mac`, which an application names, for the Ethernet address of `addr` until a host answers, or until all
    /// applications that have named it have [withdrawn](AddressBook::withdraw) it. False if the book has another one, or
    /// an answer: then there is nothing to withdraw.
    pub(super) fn suppose(&mut self, addr: Addr, mac: MacAddr) -> bool {
        let is_known = self.get(addr).is_some();
        let Some(asked) = self.asked.get_mut(&addr) else { return false };
        match &mut asked.supposed {
            Some((supposed, namers)) if *supposed == mac => *namers += 1,
            None if !is_known => {
                let ip = asked.ip;
                asked.supposed = Some((mac, 1));
                self.place(addr, HostAddr { mac, ip });
            }
            _ => return false,
        }
        true
    }

    /// An application that has named the Ethernet address of `addr` needs it no more.
    pub(super) fn withdraw(&mut self, addr: Addr) {
        let Some(asked) = self.asked.get_mut(&addr) else { return };
        match &mut asked.supposed {
            None => {}
            Some((_, namers)) if *namers > 1 => *namers -= 1,
            Some(_) => {
                asked.supposed = None;
                self.clear(addr);
            }
        }
    }

    /// Whether the Ethernet address of `addr` is only one that applications have named.
    pub(super) fn is_supposed(&self, addr: Addr) -> bool {
        self.asked.get(&addr).is_some_and(|asked| asked.supposed.is_some())
    }

    /// The IP address of `addr`, whether there is a route to it or not.
    pub fn ip(&self, addr: Addr) -> Option<IpAddr> {
        self.get(addr).map(|host| host.ip).or_else(|| self.asked.get(&addr).map(|asked| asked.ip))
    }

    /// Reserves `ip` for `addr`, unless another endpoint has it or `addr` has another.
    fn claim(&mut self, addr: Addr, ip: IpAddr) -> Result<(), BookError> {
        match self.places.named(addr) {
            Named::Place(_) => {}
            Named::Former => return Err(BookError::Forgotten(addr)),
            Named::Nothing => return Err(BookError::Beyond { addr, capacity: self.places.capacity() }),
        }
        if self.ip(addr).is_some_and(|present| present != ip) {
            return Err(BookError::AddrTaken(addr));
        }
        match *self.by_ip.entry(ByIp(ip)).or_insert(addr) {
            holder if holder == addr => {
                self.zones.enter(addr, ip);
                Ok(())
            }
            holder => Err(BookError::IpTaken { ip, addr: holder }),
        }
    }

    /// Enters a host whose `addr` names a place and whose IP address is reserved for it.
    fn place(&mut self, addr: Addr, host: HostAddr) {
        let index = self.places.slot(addr);
        if index >= self.hosts.len() {
            self.hosts.resize(index + 1, None);
            self.routes.resize(index + 1, None);
        }
        self.hosts[index] = Some(host);
        self.routes[index] = Route::between(&self.own_host, addr, &host);
        self.changes += 1;
        self.resolutions.note(addr);
    }

    /// There is no route to `addr` any more.
    fn clear(&mut self, addr: Addr) {
        let index = self.places.slot(addr);
        if let Some(host) = self.hosts.get_mut(index) {
            *host = None;
            self.routes[index] = None;
        }
        self.changes += 1;
        self.resolutions.note(addr);
    }

    /// Forgets a peer that nobody keeps and that `standing` does not hold, so that there is room for another. Returns who it
    /// was; none if all have to stay.
    pub(super) fn forget_one(&mut self, standing: impl Fn(Addr) -> Standing) -> Option<(Addr, IpAddr)> {
        let addr = self.places.take_least_needed(standing)?;
        let ip = self.ip(addr)?;
        self.clear(addr);
        self.asked.remove(&addr);
        self.by_ip.remove(&ByIp(ip));
        self.places.free_up(addr);
        Some((addr, ip))
    }

    /// Lets the peer `addr`, which has just been entered, be forgotten once nobody needs it.
    pub(super) fn lend(&mut self, addr: Addr) {
        self.places.lend(addr);
    }

    /// One more application needs the peer `addr`. False if that makes no difference: it is kept, or not in the book.
    pub(super) fn hold(&mut self, addr: Addr) -> bool {
        self.places.hold(addr)
    }

    /// An application for which `addr` was [held](AddressBook::hold) needs it no more.
    pub(super) fn release(&mut self, addr: Addr) {
        self.places.release(addr);
    }

    /// Whether `addr` has an entry that is not kept for good.
    #[cfg(test)]
    pub(super) fn is_lent(&self, addr: Addr) -> bool {
        self.places.is_lent(addr)
    }

    /// How many applications hold each entry that somebody holds.
    #[cfg(test)]
    pub(super) fn users(&self) -> BTreeMap<Addr, u32> {
        self.places.users().collect()
    }

    /// How many entries it can have, and how many of them peers may have that applications add.
    pub(super) fn room(&self) -> BookRoom {
        let (capacity, kept) = (self.places.capacity(), self.places.kept());
        BookRoom { capacity, for_applications: capacity.saturating_sub(kept) }
    }

    /// Whether peers that come should show soon that they are there, as so many have come that nobody keeps.
    pub(super) fn is_crowded(&self) -> bool {
        self.places.is_crowded()
    }

    /// Whether `addr` is that of a peer that was forgotten.
    #[inline]
    pub fn is_forgotten(&self, addr: Addr) -> bool {
        self.places.named(addr) == Named::Former
    }

    /// Whether `addr` can be reached may have become known.
    pub(super) fn note_resolution(&mut self, addr: Addr) {
        self.resolutions.note(addr);
    }

    /// The peers of which that may have become known.
    pub(super) fn resolutions(&self) -> &Resolutions {
        &self.resolutions
    }

    /// How often a route was entered or forgotten: if that has not changed, no route is new.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// The addresses of the endpoint `addr`.
    #[inline]
    pub fn get(&self, addr: Addr) -> Option<&HostAddr> {
        match self.places.named(addr) {
            Named::Place(slot) => self.hosts.get(slot)?.as_ref(),
            Named::Former | Named::Nothing => None,
        }
    }

    /// The endpoint that has the IP address `ip`.
    #[inline]
    pub fn find(&self, ip: IpAddr) -> Option<Addr> {
        self.by_ip.get(&ByIp(ip)).copied()
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
        self.routes.get(self.places.slot(addr))?.as_ref().filter(|route| route.peer == addr)
    }

    #[cold]
    fn meet(&mut self, host: HostAddr) -> Result<Addr, BookError> {
        if self.strangers == Strangers::Refuse {
            return Err(BookError::Stranger(host.ip));
        }
        let addr = self.free()?;
        self.insert(addr, host)?;
        self.places.lend(addr);
        Ok(addr)
    }

    /// An address that has no entry.
    ///
    /// # Errors
    /// The book is full.
    pub(super) fn free(&mut self) -> Result<Addr, BookError> {
        let full = BookError::Full { capacity: self.places.capacity() };
        self.places.free().ok_or(full)
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
mod tests;
