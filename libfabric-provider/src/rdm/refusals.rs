//! Peers to which the server opens no connection now, as the application has as many as it may have. What is to be sent to
//! them waits, and the connection is asked for again: when another one was closed, and else now and then.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use weft::{CallError, Error, Resource, Source};

/// How long after the first refusal the next try follows, and the longest time between two: each failure doubles it.
const FIRST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_millis(64);
/// How long a peer may be refused before what waits for it fails.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct Refusals(HashMap<Source, Refusal>);

#[derive(Debug)]
struct Refusal {
    since: Instant,
    again: Instant,
    pause: Duration,
    /// Whether a try is under way.
    tries: bool,
    /// The resource of which there is none left.
    what: Resource,
}

/// The resource that is used up, if that is why there is no connection.
pub(super) fn used_up(error: &Error) -> Option<Resource> {
    match *error {
        Error::Refused(CallError::Limit {
            what: what @ (Resource::Connections | Resource::PeerConnections | Resource::Peers),
            ..
        }) => Some(what),
        _ => None,
    }
}

impl Refusals {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many peers are refused, and neither being tried nor about to be.
    pub(super) fn waiting(&self, now: Instant) -> usize {
        self.0.values().filter(|refusal| !refusal.tries && now < refusal.again).count()
    }

    /// Whether nothing may be posted to `peer` but what tries.
    pub(super) fn has(&self, peer: Source) -> bool {
        !self.0.is_empty() && self.0.contains_key(&peer)
    }

    /// The server refuses a connection to `peer`. Returns whether it has done so for too long: then the peer is forgotten.
    pub(super) fn refuse(&mut self, now: Instant, peer: Source, what: Resource) -> bool {
        let first = Refusal { since: now, again: now, pause: FIRST, tries: false, what };
        let refusal = self.0.entry(peer).or_insert(first);
        if now.saturating_duration_since(refusal.since) >= PATIENCE {
            self.0.remove(&peer);
            return true;
        }
        (refusal.tries, refusal.what) = (false, what);
        refusal.again = now + refusal.pause;
        refusal.pause = (refusal.pause * 2).min(LONGEST);
        false
    }

    /// The server refuses a connection to `peer`, and a try is under way that does not end.
    #[cfg(test)]
    pub(super) fn refuse_for_now(&mut self, peer: Source) {
        let (since, what) = (Instant::now(), Resource::PeerConnections);
        self.0.insert(peer, Refusal { since, again: since, pause: LONGEST, tries: true, what });
    }

    /// There is a connection to `peer`, or what was to be sent to it has failed for another reason.
    pub(super) fn forget(&mut self, peer: Source) {
        self.0.remove(&peer);
    }

    /// Forgets peers that are not wanted and not being tried.
    pub(super) fn keep(&mut self, is_wanted: impl Fn(Source) -> bool) {
        self.0.retain(|peer, refusal| refusal.tries || is_wanted(*peer));
    }

    /// Another connection was closed: there may be room.
    pub(super) fn hurry(&mut self, now: Instant) {
        for refusal in self.0.values_mut() {
            refusal.again = now;
        }
    }

    /// Whether it is time for another try to reach `peer`. One that was made is to be told by [`Refusals::tries`].
    pub(super) fn is_due(&self, now: Instant, peer: Source) -> bool {
        self.0.get(&peer).is_some_and(|refusal| !refusal.tries && now >= refusal.again)
    }

    /// A message or request was posted to `peer`, as a try to get a connection to it.
    pub(super) fn tries(&mut self, peer: Source) {
        if let Some(refusal) = self.0.get_mut(&peer) {
            refusal.tries = true;
        }
    }

    /// Whether a connection to `other` that is closed makes room for one that was refused.
    pub(super) fn would_gain(&self, other: Source) -> bool {
        self.0.iter().any(|(peer, refusal)| refusal.what == Resource::Connections || peer.peer == other.peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(host: u32, process: u16) -> Source {
        Source { peer: weft::Addr(host), process }
    }

    #[test]
    fn a_connection_is_asked_for_again_where_others_may_leave_room() {
        let full = |what| Error::Refused(CallError::Limit { what, limit: 1 });
        for what in [Resource::Connections, Resource::PeerConnections, Resource::Peers] {
            assert_eq!(used_up(&full(what)), Some(what));
        }
        for error in
            [full(Resource::SessionPeers), full(Resource::Messages), Error::Refused(CallError::NotOpen)]
        {
            assert_eq!(used_up(&error), None, "{error}");
        }
    }

    #[test]
    fn tries_become_rarer_until_patience_is_over() {
        let (begin, peer) = (Instant::now(), peer(1, 7));
        let (mut refusals, mut now, mut tries) = (Refusals::default(), begin, 0u32);
        while !refusals.refuse(now, peer, Resource::PeerConnections) {
            assert!(refusals.has(peer) && !refusals.is_due(now, peer));
            let until = now + LONGEST;
            assert!(refusals.is_due(until, peer), "no try within the longest pause");
            while !refusals.is_due(now, peer) {
                now += FIRST;
            }
            refusals.tries(peer);
            assert!(!refusals.is_due(until, peer), "two tries at a time");
            tries += 1;
        }
        // 1, 2, 4, … 64 ms, and 64 ms from then on.
        assert_eq!(tries, 6 + (PATIENCE.as_millis() as u32 - 63).div_ceil(64));
        assert!(!refusals.has(peer) && refusals.is_empty());
        assert!(!refusals.refuse(now, peer, Resource::PeerConnections), "it begins anew");
    }

    #[test]
    fn a_peer_that_nothing_waits_for_is_forgotten_unless_it_is_being_tried() {
        let (mut refusals, now) = (Refusals::default(), Instant::now());
        for process in 1..4 {
            refusals.refuse(now, peer(1, process), Resource::PeerConnections);
        }
        refusals.tries(peer(1, 1));
        refusals.keep(|wanted| wanted == peer(1, 2));
        assert_eq!([1, 2, 3].map(|process| refusals.has(peer(1, process))), [true, true, false]);
        assert_eq!(refusals.waiting(now), 1);
        assert_eq!(refusals.waiting(now + FIRST), 0, "it is about to try, and may find room");
        refusals.keep(|_| false);
        assert_eq!(refusals.waiting(now), 0, "room is made for nobody");
    }

    #[test]
    fn room_is_made_by_connections_to_the_same_host_unless_there_are_too_many_of_all() {
        let (mut refusals, now) = (Refusals::default(), Instant::now());
        assert!(!refusals.would_gain(peer(1, 1)));
        refusals.refuse(now, peer(1, 7), Resource::PeerConnections);
        assert_eq!([1, 2].map(|host| refusals.would_gain(peer(host, 1))), [true, false]);
        refusals.refuse(now, peer(1, 7), Resource::Connections);
        assert!(refusals.would_gain(peer(2, 1)));
        assert!(!refusals.is_due(now, peer(1, 7)));
        refusals.hurry(now);
        assert!(refusals.is_due(now, peer(1, 7)));
        refusals.forget(peer(1, 7));
        assert!(!refusals.would_gain(peer(2, 1)));
    }
}
