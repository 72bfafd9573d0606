//! Zones: everything about a destination that depends on where it is.
//!
//! A network is rarely one: within a rack, a pod or a data centre the base RTT is microseconds, between data centres it
//! is milliseconds, and other algorithms suit it. Each peer is in one zone, as a [`ZoneMap`] says; each context and PDC
//! takes its settings from the zone of its peer.

use core::sync::atomic::{AtomicU8, Ordering};
use std::sync::Arc;

use weft_cc::{CcChoice, CcParams, PreparedCc, Span};

use super::config::ConfigError;
use crate::packet::Addr;
use crate::pdc::{MAX_FIRST_RANGE, PdcConfig};
use crate::spray::LbChoice;

/// The settings towards the peers of one zone.
#[derive(Clone)]
pub struct Zone {
    /// Congestion control of new contexts, with the zone's base RTT and BDP.
    pub cc: PreparedCc,
    /// Load balancing of new contexts.
    pub lb: LbChoice,
    /// Number of entropies to choose from, 1 to 16,384.
    pub paths: u16,
    /// Settings of packet delivery, in both directions.
    pub pdc: PdcConfig,
}

impl Zone {
    /// The default settings for peers that are reached over a network with the parameters `params`.
    pub fn new(cc: &CcChoice, params: &CcParams) -> Zone {
        Zone {
            cc: cc.prepare(params),
            lb: LbChoice::default(),
            paths: 128,
            pdc: PdcConfig { infer_loss: !params.trimming, ..PdcConfig::default() },
        }
    }

    /// Checks that every value is in its range.
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        if !(1..=16_384).contains(&self.paths) {
            return Err(ConfigError::Paths(self.paths));
        }
        let range = self.pdc.mp_range;
        if !(128..=32_640).contains(&range) || !range.is_multiple_of(128) {
            return Err(ConfigError::MpRange(range));
        }
        if !(1..=MAX_FIRST_RANGE).contains(&self.pdc.first_range) {
            return Err(ConfigError::FirstRange(self.pdc.first_range));
        }
        Ok(())
    }
}

/// The number of a zone in [`Zones`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, PartialOrd, Ord)]
pub struct ZoneId(u8);

impl ZoneId {
    /// The zone of all peers that no other zone has.
    pub const DEFAULT: ZoneId = ZoneId(0);

    /// The zone of this number: 0 for the default zone, and 1 for the first that was [added](Zones::add).
    pub const fn new(number: u8) -> ZoneId {
        ZoneId(number)
    }
}

/// The zones of an endpoint, one at least, and which peers are in which.
#[derive(Clone)]
pub struct Zones {
    /// The zone of all peers that no other zone has.
    pub default: Zone,
    /// The other zones, by number less one.
    others: Vec<Zone>,
    /// Which zone each peer is in.
    pub map: ZoneMap,
}

impl Zones {
    /// One zone for all peers.
    pub fn one(zone: Zone) -> Zones {
        Zones { default: zone, others: Vec::new(), map: ZoneMap::One }
    }

    /// `within` for peers of the endpoint's own group, `default` for all others. `of` has the group of each address.
    pub fn grouped(default: Zone, within: Zone, of: Arc<[u32]>) -> Zones {
        Zones { default, others: vec![within], map: ZoneMap::Groups { of, within: ZoneId(1) } }
    }

    /// Adds a zone, for [`Zones::map`] to refer to.
    ///
    /// # Errors
    /// [`ConfigError::Zones`] when there are 256.
    pub fn add(&mut self, zone: Zone) -> Result<ZoneId, ConfigError> {
        let id = u8::try_from(self.others.len() + 1).map_err(|_| ConfigError::Zones)?;
        self.others.push(zone);
        Ok(ZoneId(id))
    }

    /// The zone `id`; the default zone if there is no such zone.
    #[inline]
    pub fn get(&self, id: ZoneId) -> &Zone {
        match id {
            ZoneId::DEFAULT => &self.default,
            ZoneId(n) => self.others.get(usize::from(n) - 1).unwrap_or(&self.default),
        }
    }

    /// All zones, the default one first.
    pub fn iter(&self) -> impl Iterator<Item = &Zone> {
        core::iter::once(&self.default).chain(&self.others)
    }

    /// The longest first retransmission timeout of all zones.
    pub fn longest_rto(&self) -> Span {
        self.iter().map(|zone| zone.pdc.rto_init).fold(Span::ZERO, Span::max)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Zone> {
        core::iter::once(&mut self.default).chain(&mut self.others)
    }
}

/// Which zone a peer is in. To look it up takes the same time for any number of peers and zones.
#[derive(Clone, Debug, Default)]
pub enum ZoneMap {
    /// All peers are in the default zone.
    #[default]
    One,
    /// The peers of the endpoint's own group (a rack, a pod, a data centre) are in one zone, all others in the default
    /// zone. One map serves the endpoints of all groups.
    Groups {
        /// The group of each address; an address beyond the end is in no group.
        of: Arc<[u32]>,
        /// The zone of peers in the endpoint's own group.
        within: ZoneId,
    },
    /// Peers are in the zones that are entered while they get their addresses: over ports, from their IP addresses.
    Table(Arc<ZoneTable>),
}

impl ZoneMap {
    /// The zone in which the endpoint `own` sees `peer`.
    pub fn zone_of(&self, own: Addr, peer: Addr) -> ZoneId {
        match self {
            ZoneMap::One => ZoneId::DEFAULT,
            ZoneMap::Groups { of, within } => {
                let group = |addr: Addr| of.get(addr.0 as usize);
                match group(own).is_some() && group(own) == group(peer) {
                    true => *within,
                    false => ZoneId::DEFAULT,
                }
            }
            ZoneMap::Table(table) => table.get(peer),
        }
    }
}

/// The zone of each peer, by its place in the address book. The zone is entered together with the peer's address, before the
/// endpoint hears of the peer; it does not change as long as the peer is in the book.
#[derive(Debug, Default)]
pub struct ZoneTable(Box<[AtomicU8]>);

impl ZoneTable {
    /// A table for an address book of `capacity` places, which are in the default zone until another is entered.
    pub fn new(capacity: usize) -> ZoneTable {
        let places = capacity.next_power_of_two();
        ZoneTable((0..places).map(|_| AtomicU8::new(ZoneId::DEFAULT.0)).collect())
    }

    /// Enters the zone of `peer`.
    pub fn set(&self, peer: Addr, zone: ZoneId) {
        if let Some(entry) = self.entry(peer) {
            entry.store(zone.0, Ordering::Relaxed);
        }
    }

    fn get(&self, peer: Addr) -> ZoneId {
        self.entry(peer).map_or(ZoneId::DEFAULT, |zone| ZoneId(zone.load(Ordering::Relaxed)))
    }

    fn entry(&self, peer: Addr) -> Option<&AtomicU8> {
        // The bits above those of the place tell its holders apart.
        self.0.get(peer.0 as usize & self.0.len().wrapping_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_cc::{Rate, Span};

    fn zone(rtt: Span) -> Zone {
        let params = CcParams {
            mtu: 4096,
            overhead: 64,
            link_rate: Rate::from_gbps(100),
            network_rtt: rtt,
            trimming: true,
            delays: weft_cc::Delays::Known,
        };
        Zone::new(&CcChoice::default(), &params)
    }

    #[test]
    fn peers_of_the_own_group_are_in_the_zone_within_and_all_others_in_the_default_zone() {
        let mut zones = Zones::one(zone(Span::from_ms(2)));
        let within = zones.add(zone(Span::from_us(10))).unwrap();
        let map = ZoneMap::Groups { of: Arc::new([0, 0, 1, 1]), within };
        assert_eq!(map.zone_of(Addr(0), Addr(1)), within);
        assert_eq!(map.zone_of(Addr(3), Addr(2)), within);
        assert_eq!(map.zone_of(Addr(1), Addr(2)), ZoneId::DEFAULT);
        for (own, peer) in [(0, 4), (4, 0), (4, 5), (u32::MAX, u32::MAX)] {
            assert_eq!(map.zone_of(Addr(own), Addr(peer)), ZoneId::DEFAULT, "{own} to {peer}");
        }
        assert_eq!(ZoneMap::One.zone_of(Addr(0), Addr(1)), ZoneId::DEFAULT);
    }

    #[test]
    fn a_table_has_the_zones_that_were_entered() {
        let table = Arc::new(ZoneTable::new(3));
        let map = ZoneMap::Table(table.clone());
        table.set(Addr(1), ZoneId(3));
        let zones = |peers: [u32; 4]| peers.map(|peer| map.zone_of(Addr(9), Addr(peer)));
        assert_eq!(zones([0, 1, 2, 3]), [ZoneId::DEFAULT, ZoneId(3), ZoneId::DEFAULT, ZoneId::DEFAULT]);
        table.set(Addr(4 + 2), ZoneId(1));
        assert_eq!(zones([0, 1, 2, 6])[2..], [ZoneId(1); 2], "the second peer in that place of the book");
        assert_eq!(ZoneMap::Table(Arc::default()).zone_of(Addr(9), Addr(0)), ZoneId::DEFAULT);
    }

    #[test]
    fn there_are_at_most_256_zones_and_no_number_is_beyond_them() {
        let rtt = |zone: &Zone| zone.cc.params().network_rtt;
        let mut zones = Zones::one(zone(Span::from_us(1)));
        assert_eq!(rtt(zones.get(ZoneId(1))), Span::from_us(1), "no such zone");
        for n in 1..=255 {
            assert_eq!(zones.add(zone(Span::from_us(n + 1))), Ok(ZoneId(n as u8)));
        }
        assert_eq!(zones.add(zone(Span::ZERO)), Err(ConfigError::Zones));
        assert_eq!(rtt(zones.get(ZoneId(255))), Span::from_us(256));
        assert_eq!(zones.iter().count(), 256);
    }
}
