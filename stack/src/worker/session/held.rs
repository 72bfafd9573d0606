//! Connections to peers whose Ethernet address is being asked for. They are open, but held: messages can be posted on
//! them, and leave once the peer has answered. If it does not answer, all the commands that asked for them are refused.

use std::collections::{BTreeMap, BTreeSet};

use weft_cc::{Span, Time};

use super::served::Served;
use crate::fep::{ConnectionId, Unreachable};
use crate::packet::Addr;
use crate::worker::neighbours::{QUESTIONS, RETRY};

/// The longest time that a connection is held, counted from the first of those to the same peer. Neighbours are
/// given up sooner, but only if the worker has buffers for its questions, whether or not the port takes them.
pub(super) const LONGEST: Span = RETRY.times(QUESTIONS as u64 + 2);

/// The held connections of an endpoint.
#[derive(Debug, Default)]
pub struct HeldConnections {
    peers: BTreeMap<Addr, Held>,
    /// Not after any of their times, while there are some.
    earliest: Time,
    /// [`Served::resolutions`] when the peers were last looked at.
    seen: u64,
}

#[derive(Debug)]
struct Held {
    until: Time,
    connections: BTreeSet<ConnectionId>,
}

/// Connections to one peer that are not to be held any longer.
#[derive(Debug)]
pub struct Settled {
    /// Address of the peer.
    pub peer: Addr,
    /// The connections, to be released or aborted.
    pub connections: BTreeSet<ConnectionId>,
    /// Whether the peer can be reached.
    pub result: Result<(), Unreachable>,
}

impl HeldConnections {
    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.peers.values().map(|held| held.connections.len()).sum()
    }

    /// Adds `connection` to `peer`, which its endpoint [holds](crate::fep::Fep::hold) from `now` on.
    pub fn add(&mut self, now: Time, peer: Addr, connection: ConnectionId) {
        let until = now + LONGEST;
        self.earliest = if self.is_empty() { until } else { self.earliest.earliest(until) };
        let held = || Held { until, connections: BTreeSet::new() };
        self.peers.entry(peer).or_insert_with(held).connections.insert(connection);
    }

    /// Removes `connection`, which is closed. Does nothing if it is not held.
    pub fn remove(&mut self, peer: Addr, connection: ConnectionId) {
        if let Some(held) = self.peers.get_mut(&peer) {
            held.connections.remove(&connection);
            if held.connections.is_empty() {
                self.peers.remove(&peer);
            }
        }
    }

    /// Removes and returns the connections whose peer has been found or given up. In turns in which nothing about any peer has
    /// changed this is one comparison of times.
    pub fn settle(&mut self, served: &mut impl Served, now: Time) -> Vec<Settled> {
        let resolutions = served.resolutions();
        if resolutions == self.seen && !now.is_at_or_after(self.earliest) {
            return Vec::new();
        }
        self.seen = resolutions;
        let results = self.peers.iter().map(|(&peer, held)| {
            #[cfg(test)]
            crate::steps::count(1);
            (peer, now.is_at_or_after(held.until), served.resolve_peer(now, peer))
        });
        let over: Vec<_> = results
            .filter(|(_, over, result)| *over || !matches!(result, Err(Unreachable::Resolving { .. })))
            .collect();
        let taken = over.into_iter().filter_map(|(peer, _, result)| {
            let connections = self.peers.remove(&peer)?.connections;
            Some(Settled { peer, connections, result })
        });
        let settled = taken.collect();
        let times = self.peers.values().map(|held| held.until);
        self.earliest = times.reduce(Time::earliest).unwrap_or(self.earliest);
        settled
    }
}
