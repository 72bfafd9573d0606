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
    /// The same by their numbers: the first one's time is up first.
    by_age: BTreeMap<u64, (Time, Addr)>,
    /// The number of the last one.
    last: u64,
    /// [`Served::resolutions`] when peers were last looked at.
    seen: u64,
}

#[derive(Debug)]
struct Held {
    number: u64,
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
        let held = self.peers.entry(peer).or_insert_with(|| {
            self.last += 1;
            self.by_age.insert(self.last, (now + LONGEST, peer));
            Held { number: self.last, connections: BTreeSet::new() }
        });
        held.connections.insert(connection);
    }

    /// Removes `connection`, which is closed. Does nothing if it is not held.
    pub fn remove(&mut self, peer: Addr, connection: ConnectionId) {
        if let Some(held) = self.peers.get_mut(&peer) {
            held.connections.remove(&connection);
            if held.connections.is_empty() {
                self.by_age.remove(&held.number);
                self.peers.remove(&peer);
            }
        }
    }

    /// Removes and returns the connections whose peer has been found or given up. In turns in which nothing about any peer has
    /// changed this is one comparison of times; otherwise those peers are looked at about which something has.
    pub fn settle(&mut self, served: &mut impl Served, now: Time) -> Vec<Settled> {
        let resolutions = served.resolutions();
        let is_over = |until: Time| now.is_at_or_after(until);
        let is_one_over = self.by_age.first_key_value().is_some_and(|(_, (until, _))| is_over(*until));
        if resolutions == self.seen && !is_one_over {
            return Vec::new();
        }
        let known = served.resolved_since(self.seen);
        self.seen = resolutions;
        let over: BTreeSet<Addr> =
            self.by_age.values().take_while(|(until, _)| is_over(*until)).map(|(_, peer)| *peer).collect();
        let concerned: BTreeSet<Addr> = match known {
            Some(peers) => peers
                .into_iter()
                .filter(|peer| self.peers.contains_key(peer))
                .chain(over.iter().copied())
                .collect(),
            None => self.peers.keys().copied().collect(),
        };
        let mut settled = Vec::new();
        for peer in concerned {
            #[cfg(test)]
            crate::steps::count(1);
            let result = served.resolve_peer(now, peer);
            if over.contains(&peer) || !matches!(result, Err(Unreachable::Resolving { .. })) {
                let Some(Held { number, connections }) = self.peers.remove(&peer) else { continue };
                self.by_age.remove(&number);
                settled.push(Settled { peer, connections, result });
            }
        }
        settled
    }
}
