//! Connections to peers whose Ethernet address is being asked for. They are open, but held: messages can be posted on
//! them, and leave once the peer has answered. If it does not answer, all the commands that asked for them are refused.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use weft_cc::{Span, Time};

use super::served::Served;
use crate::fep::{ConnectionId, Unreachable};
use crate::packet::Addr;
use crate::worker::neighbours::{QUESTIONS, RETRY};

/// The longest time that a connection is held, counted from the first of those to the same peer. Neighbours are
/// given up sooner, but only if the worker has buffers for its questions, whether or not the port takes them.
pub(super) const LONGEST: Span = RETRY.times(QUESTIONS as u64 + 2);

/// Connections that go on, or are refused, in a turn, as their peers have been found or given up. Thousands may wait for the same peer.
pub const LET_GO_PER_TURN: usize = 64;

/// Connections to one peer that do so before those to the next one have their turn.
const OF_A_PEER: usize = 8;

/// The held connections of an endpoint.
#[derive(Debug, Default)]
pub struct HeldConnections {
    peers: BTreeMap<Addr, Held>,
    /// The same by their numbers: the first one's time is up first.
    by_age: BTreeMap<u64, (Time, Addr)>,
    /// The number of the last one.
    last: u64,
    /// Connections that are not to be held any longer.
    settled: VecDeque<Settled>,
    /// [`Served::resolutions`] when peers were last looked at.
    seen: u64,
}

#[derive(Debug)]
struct Held {
    number: u64,
    connections: BTreeSet<ConnectionId>,
}

/// Connections to one peer that are not to be held any longer: to be released or aborted.
#[derive(Debug)]
struct Settled {
    peer: Addr,
    connections: BTreeSet<ConnectionId>,
    result: Result<(), Unreachable>,
}

impl HeldConnections {
    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.peers.is_empty() && self.settled.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        let waiting: usize = self.peers.values().map(|held| held.connections.len()).sum();
        waiting + self.settled.iter().map(|settled| settled.connections.len()).sum::<usize>()
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

    /// Removes `connection`, which is closed. Does nothing if it is not held. One whose peer has been found or given up stays in the
    /// list: [`settle`](Self::settle) returns it later, and the caller ignores it.
    pub fn remove(&mut self, peer: Addr, connection: ConnectionId) {
        if let Some(held) = self.peers.get_mut(&peer) {
            held.connections.remove(&connection);
            if held.connections.is_empty() {
                self.by_age.remove(&held.number);
                self.peers.remove(&peer);
            }
        }
    }

    /// Removes and returns connections whose peer has been found or given up, with whether it can be reached: [`LET_GO_PER_TURN`] at
    /// most, and peers take turns.
    pub fn settle(
        &mut self,
        served: &mut impl Served,
        now: Time,
    ) -> Vec<(Addr, ConnectionId, Result<(), Unreachable>)> {
        self.look(served, now);
        let mut some = Vec::new();
        while some.len() < LET_GO_PER_TURN
            && let Some(mut settled) = self.settled.pop_front()
        {
            let Settled { peer, connections, result } = &mut settled;
            let most = OF_A_PEER.min(LET_GO_PER_TURN - some.len());
            let ids = std::iter::from_fn(|| connections.pop_first()).take(most);
            some.extend(ids.map(|id| (*peer, id, *result)));
            if !connections.is_empty() {
                self.settled.push_back(settled);
            }
        }
        some
    }

    /// Finds peers that have been found or given up. In turns in which nothing about any peer has changed this is one comparison of
    /// times; otherwise those peers are looked at about which something has.
    fn look(&mut self, served: &mut impl Served, now: Time) {
        let resolutions = served.resolutions();
        let is_over = |until: Time| now.is_at_or_after(until);
        let is_one_over = self.by_age.first_key_value().is_some_and(|(_, (until, _))| is_over(*until));
        if resolutions == self.seen && !is_one_over {
            return;
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
        for peer in concerned {
            #[cfg(test)]
            crate::steps::count(1);
            let result = served.resolve_peer(now, peer);
            if over.contains(&peer) || !matches!(result, Err(Unreachable::Resolving { .. })) {
                let Some(Held { number, connections }) = self.peers.remove(&peer) else { continue };
                self.by_age.remove(&number);
                self.settled.push_back(Settled { peer, connections, result });
            }
        }
    }
}
