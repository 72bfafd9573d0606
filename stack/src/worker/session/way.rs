//! Connections to peers whose Ethernet address is being asked for. They are open, but held: messages can be posted on
//! them, and leave when there is a way. If there will be none, the commands that asked for all that are refused.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::BuildHasherDefault;

use rustc_hash::FxHasher;
use weft_cc::{Span, Time};

use crate::fep::{ConnectionId, Fep};
use crate::packet::Addr;
use crate::port::Port;
use crate::worker::Worker;
use crate::worker::neighbours::{NoWay, QUESTIONS, RETRY};

/// The longest wait for a way, from when the first of the connections that wait for it was asked for. Neighbours are
/// given up sooner, but only if the worker has buffers for its questions; they count whether or not the port takes them.
pub(super) const LONGEST: Span = RETRY.times(QUESTIONS as u64 + 2);

/// What sessions are served for: an endpoint, and what is known of the ways to its peers.
pub trait Endpoint {
    /// The endpoint.
    fn fep_mut(&mut self) -> &mut Fep;

    /// Whether packets can be sent to `peer`. Who has been silent is asked again.
    ///
    /// # Errors
    /// Why not, or not yet.
    fn find_way(&mut self, now: Time, peer: Addr) -> Result<(), NoWay>;

    /// A number that differs from an earlier one if any peer may not be [`NoWay::Resolving`] any more that was.
    fn ways_settled(&self) -> u64;
}

/// Whose packets find their way by themselves.
impl Endpoint for Fep {
    fn fep_mut(&mut self) -> &mut Fep {
        self
    }

    fn find_way(&mut self, _: Time, _: Addr) -> Result<(), NoWay> {
        Ok(())
    }

    fn ways_settled(&self) -> u64 {
        0
    }
}

impl<P: Port> Endpoint for Worker<P> {
    fn fep_mut(&mut self) -> &mut Fep {
        Worker::fep_mut(self)
    }

    fn find_way(&mut self, now: Time, peer: Addr) -> Result<(), NoWay> {
        Worker::find_way(self, now, peer)
    }

    fn ways_settled(&self) -> u64 {
        Worker::ways_settled(self)
    }
}

/// The connections of all sessions.
#[derive(Debug, Default)]
pub(super) struct Connections {
    /// The session and number of each.
    pub(super) names: HashMap<ConnectionId, (u32, u32), BuildHasherDefault<FxHasher>>,
    /// Those that are held.
    pub(super) waiting: Waiting,
}

/// The held connections of all sessions.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    peers: BTreeMap<Addr, Wait>,
    /// [`Endpoint::ways_settled`] when it was last looked for ways.
    seen: u64,
}

#[derive(Debug)]
struct Wait {
    until: Time,
    connections: BTreeSet<ConnectionId>,
}

/// Connections that wait no longer.
#[derive(Debug)]
pub(super) struct Settled {
    pub(super) peer: Addr,
    pub(super) connections: BTreeSet<ConnectionId>,
    pub(super) way: Result<(), NoWay>,
}

impl Waiting {
    pub(super) fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn len(&self) -> usize {
        self.peers.values().map(|wait| wait.connections.len()).sum()
    }

    /// `connection` to `peer` is held from `now` on.
    pub(super) fn add(&mut self, now: Time, peer: Addr, connection: ConnectionId) {
        let wait = || Wait { until: now + LONGEST, connections: BTreeSet::new() };
        self.peers.entry(peer).or_insert_with(wait).connections.insert(connection);
    }

    /// `connection` is closed. Nothing if it does not wait.
    pub(super) fn remove(&mut self, peer: Addr, connection: ConnectionId) {
        if let Some(wait) = self.peers.get_mut(&peer) {
            wait.connections.remove(&connection);
            if wait.connections.is_empty() {
                self.peers.remove(&peer);
            }
        }
    }

    /// Those whose wait is over. Costs next to nothing in turns in which no way has changed.
    pub(super) fn settle(&mut self, endpoint: &mut impl Endpoint, now: Time) -> Vec<Settled> {
        let settled = endpoint.ways_settled();
        let is_over = |wait: &Wait| now.is_at_or_after(wait.until);
        if settled == self.seen && !self.peers.values().any(is_over) {
            return Vec::new();
        }
        self.seen = settled;
        let ways = self.peers.iter().map(|(&peer, wait)| (peer, is_over(wait), endpoint.find_way(now, peer)));
        let over: Vec<_> =
            ways.filter(|(_, over, way)| *over || !matches!(way, Err(NoWay::Resolving { .. }))).collect();
        let taken = over.into_iter().filter_map(|(peer, _, way)| {
            let connections = self.peers.remove(&peer)?.connections;
            Some(Settled { peer, connections, way })
        });
        taken.collect()
    }
}
