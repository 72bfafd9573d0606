//! Two endpoints with sessions and a channel between them, for tests and fuzz targets.

use core::net::IpAddr;
use std::collections::BTreeMap;
use std::sync::Arc;

use weft_cc::{CcChoice, CcParams, Delays, Rate, Span, Time};

use super::served::refusal;
use super::{Extent, Served, SessionConfig, Sessions};
use crate::fep::{CallError, Fep, FepConfig, JobId, PeerRefusal, Unreachable};
use crate::packet::{Addr, Packet, Payload};
use crate::rng::Rng;
use crate::wire::ethernet::MacAddr;
use crate::worker::resolutions::Resolutions;
use crate::worker::{AddressBook, BookError, BookRoom, HostAddr};

pub(super) fn config() -> Arc<FepConfig> {
    Arc::new(config_with(&CcChoice::default()))
}

/// The same with another congestion control.
pub(super) fn config_with(cc: &CcChoice) -> FepConfig {
    config_at(cc, Rate::from_gbps(10))
}

/// The same for another rate of the link.
pub(super) fn config_at(cc: &CcChoice, link_rate: Rate) -> FepConfig {
    let network = CcParams {
        mtu: 1024,
        overhead: 64,
        link_rate,
        network_rtt: Span::from_us(10),
        trimming: true,
        delays: Delays::Known,
    };
    FepConfig::new(cc, &network).with_zones(|zone| zone.pdc.rto_init = Span::from_us(100))
}

/// Sessions of 8 commands, 8 reports, 16 operations, 4 connections, 256 KiB and 2 peers.
pub(super) const SMALL: SessionConfig = SessionConfig {
    commands: 8,
    reports: 8,
    operations: 16,
    connections: 4,
    memory: 256 << 10,
    peers: 2,
    job: JobId::NONE,
    only_datagrams: false,
};

/// Two endpoints with applications, and a channel between them.
pub(super) struct World {
    pub(super) feps: [Fep; 2],
    pub(super) sessions: [Sessions; 2],
    pub(super) peers: [Peers; 2],
    pub(super) now: Time,
}

/// The peers that cannot be reached and the address book, in place of a worker's.
#[derive(Debug, Default)]
pub(super) struct Peers {
    unreachable: BTreeMap<Addr, Unreachable>,
    /// Those of which that may have changed, where there is no book.
    resolutions: Resolutions,
    /// Without one, applications can add no peers.
    book: Option<AddressBook>,
    /// The IP address of a peer that the port refuses.
    refused: Option<IpAddr>,
    /// How often the book finds no room from now on.
    full: u32,
}

/// The Ethernet address of all hosts: frames have none here.
const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

impl Peers {
    /// The peers of endpoint 0. Its book has endpoints 1 to `kept` for good, and room for so many that applications add.
    #[cfg(test)]
    pub(super) fn with_book(kept: u32, room: usize) -> Peers {
        let host = |n: u32| HostAddr { mac: MAC, ip: IpAddr::from([10, 0, 0, n as u8 + 1]) };
        let capacity = 1 + kept as usize + room;
        let strangers = crate::worker::Strangers::Refuse;
        let mut book = AddressBook::new(Addr(0), host(0), capacity, strangers).expect("room for all");
        (1..=kept).for_each(|n| book.insert(Addr(n), host(n)).expect("room for all"));
        Peers { book: Some(book), ..Peers::default() }
    }

    /// The port refuses the peer with this IP address from now on.
    #[cfg(test)]
    pub(super) fn refuse(&mut self, ip: IpAddr) {
        self.refused = Some(ip);
    }

    /// The book finds no room from now on, so many times.
    #[cfg(test)]
    pub(super) fn look_in_vain(&mut self, times: u32) {
        self.full = times;
    }

    /// How many applications hold each entry of the book that somebody holds.
    #[cfg(test)]
    pub(super) fn users(&self) -> BTreeMap<Addr, u32> {
        self.book.as_ref().map_or_else(BTreeMap::new, AddressBook::users)
    }

    /// Whether `peer` has an entry in the book that is not kept for good.
    #[cfg(test)]
    pub(super) fn is_lent(&self, peer: Addr) -> bool {
        self.book.as_ref().is_some_and(|book| book.is_lent(peer))
    }

    pub(super) fn set(&mut self, peer: Addr, result: Result<(), Unreachable>) {
        match result {
            Ok(()) => self.unreachable.remove(&peer),
            Err(why) => self.unreachable.insert(peer, why),
        };
        match &mut self.book {
            Some(book) => book.note_resolution(peer),
            None => self.resolutions.note(peer),
        }
    }

    /// Those of the book as well, which notes that it has forgotten a peer.
    fn resolutions(&self) -> &Resolutions {
        self.book.as_ref().map_or(&self.resolutions, AddressBook::resolutions)
    }
}

/// An endpoint, and which of its peers can be reached.
pub(super) struct Side<'a>(pub(super) &'a mut Fep, pub(super) &'a mut Peers);

impl Served for Side<'_> {
    fn fep_mut(&mut self) -> &mut Fep {
        self.0
    }

    fn resolve_peer(&mut self, _: Time, peer: Addr) -> Result<(), Unreachable> {
        match self.1.unreachable.get(&peer) {
            Some(why) => Err(*why),
            None if self.is_forgotten(peer) => Err(Unreachable::Unknown(peer)),
            None => Ok(()),
        }
    }

    fn resolutions(&self) -> u64 {
        self.1.resolutions().count()
    }

    fn resolved_since(&self, seen: u64) -> Option<Vec<Addr>> {
        self.1.resolutions().since(seen)
    }

    fn find_peer(&mut self, ip: IpAddr, mac: Option<MacAddr>) -> Result<Option<Addr>, CallError> {
        match &self.1.book {
            Some(book) => Ok(book.find(ip)),
            None => self.0.find_peer(ip, mac),
        }
    }

    fn add_peer(&mut self, ip: IpAddr) -> Result<Addr, CallError> {
        let Side(fep, Peers { book, refused, full, .. }) = self;
        let Some(book) = book else { return fep.add_peer(ip) };
        let host = HostAddr { mac: MAC, ip };
        book.check(&host).map_err(refusal)?;
        if *refused == Some(ip) {
            return Err(CallError::Peer(PeerRefusal::Port));
        }
        if let Some(less) = full.checked_sub(1) {
            *full = less;
            return Err(refusal(BookError::Full { capacity: book.room().capacity }));
        }
        let addr = match book.free() {
            Err(full @ BookError::Full { .. }) => {
                let forgotten = book.forget_one(|peer| fep.standing(peer));
                let (peer, _) = forgotten.ok_or(refusal(full))?;
                fep.forget_peer(peer);
                book.free()
            }
            found => found,
        };
        let addr = addr.map_err(refusal)?;
        book.insert(addr, host).map_err(refusal)?;
        book.lend(addr);
        Ok(addr)
    }

    fn hold_peer(&mut self, peer: Addr) -> bool {
        self.1.book.as_mut().is_some_and(|book| book.hold(peer))
    }

    fn release_peer(&mut self, peer: Addr) {
        if let Some(book) = &mut self.1.book {
            book.release(peer);
        }
    }

    fn is_forgotten(&self, peer: Addr) -> bool {
        self.1.book.as_ref().is_some_and(|book| book.is_forgotten(peer))
    }

    fn book_room(&self) -> BookRoom {
        self.1.book.as_ref().map_or_else(BookRoom::default, AddressBook::room)
    }
}

impl World {
    pub(super) fn new() -> World {
        World::with(&config())
    }

    pub(super) fn with(config: &Arc<FepConfig>) -> World {
        let fep = |n: u32| {
            let mut fep = Fep::new(Addr(n), config.clone(), Rng::new(7, n.into()), Time::ZERO).unwrap();
            // All applications have sessions.
            fep.close_process(0).unwrap();
            fep
        };
        World {
            feps: [fep(0), fep(1)],
            sessions: [Sessions::new(4), Sessions::new(4)],
            peers: Default::default(),
            now: Time::ZERO,
        }
    }

    pub(super) fn serve(&mut self, side: usize) {
        let mut served = Side(&mut self.feps[side], &mut self.peers[side]);
        self.sessions[side].serve(&mut served, self.now);
    }

    /// A microsecond: commands and timers, and at most `packets` packets each way.
    pub(super) fn step(&mut self, packets: usize) {
        self.step_through(packets, |_| true);
    }

    /// As [`World::step`], over a channel that loses the packets for which `passes` returns false.
    pub(super) fn step_through(&mut self, packets: usize, mut passes: impl FnMut(&Packet) -> bool) {
        self.now += Span::from_us(1);
        for side in 0..2 {
            self.serve(side);
            if self.feps[side].poll_timeout().is_some_and(|at| self.now.is_at_or_after(at)) {
                self.feps[side].on_timeout(self.now);
            }
            for _ in 0..packets {
                let Some(transmit) = self.feps[side].poll_transmit(self.now) else { break };
                let payload = self.feps[side].payload(&transmit.payload);
                let mut bytes = vec![0; payload.len() as usize];
                payload.copy_to(&mut bytes);
                // Packets for other addresses are lost.
                if passes(&transmit.packet)
                    && let Some(fep) = self.feps.get_mut(transmit.packet.net.dst.0 as usize)
                {
                    fep.on_packet(self.now, &transmit.packet, Payload::Bytes(&bytes));
                }
            }
            self.serve(side);
        }
    }

    /// Steps until no session is left, and checks that the endpoints hold nothing.
    pub(super) fn assert_nothing_is_left(&mut self) {
        for _ in 0..100_000 {
            if self.sessions.iter().all(Sessions::is_empty) {
                break;
            }
            self.step(100);
        }
        // Until the targets of the other side's connections are gone.
        for _ in 0..100 {
            self.step(100);
        }
        for side in 0..2 {
            assert!(self.sessions[side].is_empty(), "sessions of side {side}");
            assert_eq!(self.sessions[side].held_connections(), 0, "held connections of side {side}");
            assert_eq!(self.sessions[side].held_datagrams(), 0, "held datagrams of side {side}");
            #[cfg(test)]
            self.feps[side].check_datagrams();
            assert_eq!(self.feps[side].leaks().collect::<Vec<_>>(), [""; 0], "side {side}");
        }
    }
}

pub(super) fn extent(offset: u64, len: u32) -> Extent {
    Extent { region: 0, offset, len }
}

pub(super) fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed, 99);
    let mut bytes = vec![0; len];
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&rng.next_u64().to_le_bytes()[..chunk.len()]);
    }
    bytes
}
