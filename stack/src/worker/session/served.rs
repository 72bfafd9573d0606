//! The endpoint that sessions are served for: a worker, or, in tests and simulations, an endpoint without one.

use core::net::IpAddr;

use weft_cc::Time;

use crate::fep::{CallError, Fep, PeerRefusal, Resource, Unreachable};
use crate::packet::Addr;
use crate::port::Port;
use crate::wire::ethernet::MacAddr;
use crate::worker::{BookError, BookRoom, HostAddr, Worker};

/// An endpoint, and its address book if it has one.
pub trait Served {
    /// The endpoint that serves the sessions.
    fn fep_mut(&mut self) -> &mut Fep;

    /// Whether packets can be sent to `peer`. Asks a peer that has not answered again.
    ///
    /// # Errors
    /// Why not, or not yet.
    fn resolve_peer(&mut self, now: Time, peer: Addr) -> Result<(), Unreachable>;

    /// How often it may have become known of a peer that was [`Unreachable::Resolving`] whether it can be reached.
    fn resolutions(&self) -> u64;

    /// The peers of which it may have become known since [`Served::resolutions`] was `seen`; `None` if that is too long ago to say.
    fn resolved_since(&self, seen: u64) -> Option<Vec<Addr>>;

    /// The address book's entry for `ip`, if it has one.
    ///
    /// # Errors
    /// The entry has another Ethernet address than `mac`, `mac` is no single host's, or there is no address book.
    fn find_peer(&mut self, ip: IpAddr, mac: Option<MacAddr>) -> Result<Option<Addr>, CallError>;

    /// Enters `ip`, which has no entry, in the address book, for as long as it is held or used.
    ///
    /// # Errors
    /// It cannot be entered.
    fn add_peer(&mut self, ip: IpAddr) -> Result<Addr, CallError>;

    /// An application has named `mac` as the Ethernet address of `peer`: packets leave there until a host on the link answers, or
    /// until each application that has named it withdraws it. False if that makes no difference, and there is nothing to withdraw:
    /// the peer's address is known, or another one is supposed.
    fn suppose(&mut self, _peer: Addr, _mac: MacAddr) -> bool {
        false
    }

    /// An application that has named the Ethernet address of `peer` needs it no more.
    fn withdraw(&mut self, _peer: Addr) {}

    /// An application needs `peer`: its entry stays until it is released as often as it was held. False if it stays anyway.
    fn hold_peer(&mut self, peer: Addr) -> bool;

    /// An application that held `peer` needs it no more.
    fn release_peer(&mut self, peer: Addr);

    /// Whether `peer` was in the address book once and is not any more.
    fn is_forgotten(&self, peer: Addr) -> bool;

    /// What the address book has room for.
    fn book_room(&self) -> BookRoom;
}

/// Without a worker, packets reach every peer, and nothing is known about IP addresses.
impl Served for Fep {
    fn fep_mut(&mut self) -> &mut Fep {
        self
    }

    fn resolve_peer(&mut self, _: Time, _: Addr) -> Result<(), Unreachable> {
        Ok(())
    }

    fn resolutions(&self) -> u64 {
        0
    }

    fn resolved_since(&self, _: u64) -> Option<Vec<Addr>> {
        Some(Vec::new())
    }

    fn find_peer(&mut self, _: IpAddr, _: Option<MacAddr>) -> Result<Option<Addr>, CallError> {
        Err(CallError::Peer(PeerRefusal::Fixed))
    }

    fn add_peer(&mut self, _: IpAddr) -> Result<Addr, CallError> {
        Err(CallError::Peer(PeerRefusal::Fixed))
    }

    fn hold_peer(&mut self, _: Addr) -> bool {
        false
    }

    fn release_peer(&mut self, _: Addr) {}

    fn is_forgotten(&self, _: Addr) -> bool {
        false
    }

    fn book_room(&self) -> BookRoom {
        BookRoom::default()
    }
}

/// The worker asks for the peers' Ethernet addresses on the link.
impl<P: Port> Served for Worker<P> {
    fn fep_mut(&mut self) -> &mut Fep {
        Worker::fep_mut(self)
    }

    fn resolve_peer(&mut self, now: Time, peer: Addr) -> Result<(), Unreachable> {
        Worker::resolve_peer(self, now, peer)
    }

    fn resolutions(&self) -> u64 {
        Worker::resolutions(self)
    }

    fn resolved_since(&self, seen: u64) -> Option<Vec<Addr>> {
        self.book.resolutions().since(seen)
    }

    fn find_peer(&mut self, ip: IpAddr, mac: Option<MacAddr>) -> Result<Option<Addr>, CallError> {
        let found = self.book.find(ip);
        let Some(mac) = mac else { return Ok(found) };
        self.book.check(&HostAddr { mac, ip }).map_err(refusal)?;
        match found.and_then(|addr| self.book.get(addr)) {
            Some(host) if host.mac != mac => Err(CallError::Peer(PeerRefusal::OtherMac)),
            _ => Ok(found),
        }
    }

    fn add_peer(&mut self, ip: IpAddr) -> Result<Addr, CallError> {
        self.book.check(&HostAddr { mac: self.book.own_host().mac, ip }).map_err(refusal)?;
        let addr = self.free_addr().map_err(refusal)?;
        self.meet(addr, ip, None).map_err(refusal)?;
        self.book.lend(addr);
        Ok(addr)
    }

    fn suppose(&mut self, peer: Addr, mac: MacAddr) -> bool {
        self.book.suppose(peer, mac)
    }

    fn withdraw(&mut self, peer: Addr) {
        self.book.withdraw(peer);
    }

    fn hold_peer(&mut self, peer: Addr) -> bool {
        self.book.hold(peer)
    }

    fn release_peer(&mut self, peer: Addr) {
        self.book.release(peer);
    }

    fn is_forgotten(&self, peer: Addr) -> bool {
        self.book.is_forgotten(peer)
    }

    fn book_room(&self) -> BookRoom {
        self.book.room()
    }
}

/// Prepares a port for a peer, and returns the Ethernet address that frames to it carry: for ports that are no Ethernet
/// link, or join two ends, so that no host has to be asked.
pub type PlacePeer<P> = Box<dyn FnMut(&mut P, IpAddr) -> Result<MacAddr, PeerRefusal> + Send>;

/// A worker whose port knows where its peers are.
pub(super) struct Placing<'a, P: Port> {
    pub(super) worker: &'a mut Worker<P>,
    pub(super) place: &'a mut PlacePeer<P>,
}

impl<P: Port> Served for Placing<'_, P> {
    fn fep_mut(&mut self) -> &mut Fep {
        self.worker.fep_mut()
    }

    fn resolve_peer(&mut self, now: Time, peer: Addr) -> Result<(), Unreachable> {
        self.worker.resolve_peer(now, peer)
    }

    fn resolutions(&self) -> u64 {
        self.worker.resolutions()
    }

    fn resolved_since(&self, seen: u64) -> Option<Vec<Addr>> {
        self.worker.resolved_since(seen)
    }

    fn find_peer(&mut self, ip: IpAddr, _: Option<MacAddr>) -> Result<Option<Addr>, CallError> {
        Ok(self.worker.book().find(ip))
    }

    fn add_peer(&mut self, ip: IpAddr) -> Result<Addr, CallError> {
        let own = self.worker.book().own_host();
        self.worker.book.check(&HostAddr { mac: own.mac, ip }).map_err(refusal)?;
        let addr = self.worker.free_addr().map_err(refusal)?;
        let mac = (self.place)(self.worker.port_mut(), ip).map_err(CallError::Peer)?;
        self.worker.book_mut().insert(addr, HostAddr { mac, ip }).map_err(refusal)?;
        self.worker.book.lend(addr);
        Ok(addr)
    }

    fn hold_peer(&mut self, peer: Addr) -> bool {
        self.worker.hold_peer(peer)
    }

    fn release_peer(&mut self, peer: Addr) {
        self.worker.release_peer(peer);
    }

    fn is_forgotten(&self, peer: Addr) -> bool {
        self.worker.book.is_forgotten(peer)
    }

    fn book_room(&self) -> BookRoom {
        self.worker.book_room()
    }
}

pub(super) fn refusal(error: BookError) -> CallError {
    match error {
        BookError::Full { capacity } | BookError::Beyond { capacity, .. } => {
            CallError::Limit { what: Resource::Peers, limit: capacity }
        }
        BookError::Version(_) => CallError::Peer(PeerRefusal::IpVersion),
        BookError::NotUnicast { .. } => CallError::Peer(PeerRefusal::NotUnicast),
        // A worker enters no peer twice, and needs no peer's consent.
        BookError::Stranger(_)
        | BookError::Forgotten(_)
        | BookError::AddrTaken(_)
        | BookError::IpTaken { .. } => CallError::Peer(PeerRefusal::OtherMac),
    }
}
