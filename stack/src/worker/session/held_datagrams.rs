//! Datagrams to peers whose Ethernet address is being asked for. They are posted once the peer has answered; if it does not
//! answer, they are refused. Each is an operation of its application, so that there are no more of them than of those.

use std::collections::BTreeMap;

use weft_cc::Time;

use super::held::LONGEST;
use super::served::Served;
use crate::fep::{Datagram, Unreachable};
use crate::packet::Addr;

/// The most datagrams that are let go in one turn.
const PER_TURN: usize = 64;

/// The held datagrams of all applications.
#[derive(Debug, Default)]
pub(super) struct HeldDatagrams {
    all: BTreeMap<HeldDatagram, Datagram>,
    /// Until when those to each peer may be held: counted from the first of them.
    until: BTreeMap<Addr, Time>,
    serial: u64,
    /// [`Served::resolutions`] when the peers were last looked at.
    seen: u64,
    /// Whether there were more to be let go than one turn has time for.
    goes_on: bool,
}

/// The name of a held datagram. Those to one peer have names that grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct HeldDatagram {
    peer: Addr,
    serial: u64,
}

impl HeldDatagrams {
    /// Whether there are none.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// How many there are.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Holds `datagram` from `now` on.
    pub(super) fn add(&mut self, now: Time, datagram: Datagram) -> HeldDatagram {
        self.serial += 1;
        let name = HeldDatagram { peer: datagram.peer, serial: self.serial };
        self.until.entry(name.peer).or_insert(now + LONGEST);
        self.all.insert(name, datagram);
        name
    }

    /// Forgets a datagram. False if it is not held.
    pub(super) fn remove(&mut self, name: HeldDatagram) -> bool {
        let was_held = self.all.remove(&name).is_some();
        if self.first_to(name.peer).is_none() {
            self.until.remove(&name.peer);
        }
        was_held
    }

    fn first_to(&self, peer: Addr) -> Option<HeldDatagram> {
        let all = HeldDatagram { peer, serial: 0 }..=HeldDatagram { peer, serial: u64::MAX };
        self.all.range(all).next().map(|(name, _)| *name)
    }

    /// Removes and returns datagrams whose peer has been found or given up, some in each turn. Costs next to nothing in turns
    /// in which nothing about any peer has changed.
    pub(super) fn settle(
        &mut self,
        served: &mut impl Served,
        now: Time,
    ) -> Vec<(Datagram, Result<(), Unreachable>)> {
        let resolutions = served.resolutions();
        let is_over = |until: &Time| now.is_at_or_after(*until);
        if resolutions == self.seen && !self.goes_on && !self.until.values().any(is_over) {
            return Vec::new();
        }
        (self.seen, self.goes_on) = (resolutions, false);
        let mut settled = Vec::new();
        let peers: Vec<_> = self.until.iter().map(|(peer, until)| (*peer, is_over(until))).collect();
        for (peer, is_over) in peers {
            let result = served.resolve_peer(now, peer);
            if !is_over && matches!(result, Err(Unreachable::Resolving { .. })) {
                continue;
            }
            while let Some(name) = self.first_to(peer) {
                if settled.len() >= PER_TURN {
                    self.goes_on = true;
                    return settled;
                }
                settled.extend(self.all.remove(&name).map(|datagram| (datagram, result)));
            }
            self.until.remove(&peer);
        }
        settled
    }
}
