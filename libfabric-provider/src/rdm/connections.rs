//! The connections to peers: one for each, so that its messages meet receives in the order in which they were sent. It is
//! opened by the first message, and again after it was closed, for its silence for example.
//!
//! A server may close a connection while messages for it are on their way through the ring of commands. They come back
//! unsent, in their order, and are posted again; no other message for the peer is posted before.
//!
//! A server lets an application have only so many connections. Those on which nothing is under way are closed for others
//! that it refuses, the one that has not been used for longest first.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use weft::{
    CallError, ConnectOptions, ConnectionId, Endpoint, Error, Failure, OperationId, SendBuffer, SendOptions,
    Source,
};

use super::refusals::{Refusals, used_up};
use crate::error::FiError;

#[derive(Debug, Default)]
pub(super) struct Connections {
    open: HashMap<Source, Open>,
    /// Messages that will come back unsent.
    returning: HashMap<Source, Returning>,
    refusals: Refusals,
    /// Peers that were refused for too long, and why: what waits for them fails.
    given_up: Vec<(Source, Error)>,
    /// Connections that are being closed to make room.
    making_room: HashSet<ConnectionId>,
    /// Whether peers of a server that answer and take nothing are waited for without end.
    is_patient: bool,
    /// Messages that were posted, which tell how long ago a connection was used.
    posted: u64,
}

#[derive(Debug)]
struct Open {
    id: ConnectionId,
    /// Messages that have not ended.
    under_way: usize,
    /// The number of the last message.
    used: u64,
}

#[derive(Debug)]
struct Returning {
    left: usize,
    /// Why their connection was closed, unless a new one is in order.
    why: Option<Error>,
}

/// What becomes of a message that has come back unsent.
#[derive(Debug)]
pub(super) enum Returned {
    Again,
    Failed(Error),
}

impl Connections {
    /// Connections for the application's messages. Through a server they are patient, since its busy timeout was not chosen for
    /// this application; an endpoint with a worker of its own has a setting for that.
    pub(super) fn of_messages(endpoint: &Endpoint) -> Connections {
        Connections { is_patient: endpoint.worker().is_none(), ..Connections::default() }
    }

    /// Posts on the connection to `peer`, which is opened if there is none.
    pub(super) fn post(
        &mut self,
        endpoint: &mut Endpoint,
        peer: Source,
        mut post: impl FnMut(&mut Endpoint, ConnectionId) -> Result<OperationId, Error>,
    ) -> Result<OperationId, FiError> {
        if let Some(open) = self.open.get(&peer) {
            match post(endpoint, open.id) {
                // Those that were posted before come back, and are first.
                Err(Error::Refused(CallError::NotOpen)) if open.under_way > 0 => return Err(FiError::AGAIN),
                Err(Error::Refused(CallError::NotOpen)) => {}
                posted => return posted.map_err(|error| FiError::from(&error)),
            }
        }
        let options = ConnectOptions::default().process(peer.process).patient(self.is_patient);
        let id = match endpoint.connect_with(peer.peer, options) {
            Ok(id) => id,
            Err(error) => {
                // One that has its worker here tells the application, which may try again.
                if endpoint.worker().is_none() {
                    self.refuse(peer, &error);
                }
                return Err(FiError::from(&error));
            }
        };
        self.open.insert(peer, Open { id, under_way: 0, used: self.posted });
        post(endpoint, id).map_err(|error| FiError::from(&error))
    }

    /// Notes that there is no connection to `peer`. Returns whether it will be tried again.
    fn refuse(&mut self, peer: Source, error: &Error) -> bool {
        let Some(what) = used_up(error) else {
            self.refusals.forget(peer);
            return false;
        };
        let is_over = self.refusals.refuse(Instant::now(), peer, what);
        if is_over {
            self.given_up.push((peer, *error));
        }
        !is_over
    }

    /// As [`Refusals::refuse_for_now`].
    #[cfg(test)]
    pub(super) fn refuse_for_now(&mut self, peer: Source) {
        self.refusals.refuse_for_now(peer);
    }

    /// The peer has been refused for too long.
    #[cfg(test)]
    pub(super) fn give_up(&mut self, peer: Source) {
        let limit = CallError::Limit { what: weft::Resource::PeerConnections, limit: 1 };
        self.refusals.forget(peer);
        self.given_up.push((peer, Error::Refused(limit)));
    }

    /// Whether messages to `peer` have to wait, for others that are on their way back or for a connection.
    pub(super) fn holds_back(&self, peer: Source) -> bool {
        self.is_returning(peer) || self.is_refused(peer)
    }

    /// Whether nothing may be posted to `peer`, as the server refuses a connection.
    pub(super) fn is_refused(&self, peer: Source) -> bool {
        self.refusals.has(peer)
    }

    /// Whether something may be posted to `peer` now that overtakes nothing, also if it is a try.
    pub(super) fn may_post(&self, peer: Source) -> bool {
        !self.is_returning(peer) && (!self.is_refused(peer) || self.may_try(Instant::now(), peer))
    }

    /// Whether one message may be posted to a peer that was refused, as a try. One that was posted is to be told by
    /// [`Connections::tries`].
    pub(super) fn may_try(&self, now: Instant, peer: Source) -> bool {
        self.refusals.is_due(now, peer)
    }

    pub(super) fn tries(&mut self, peer: Source) {
        self.refusals.tries(peer);
    }

    /// Whether some peers are refused.
    pub(super) fn has_refused(&self) -> bool {
        !self.refusals.is_empty()
    }

    /// Forgets the refusals of peers that nothing waits for, comes back from, or tries to reach.
    pub(super) fn keep_refusals(&mut self, waits: impl Fn(Source) -> bool) {
        let returning = &self.returning;
        self.refusals.keep(|peer| waits(peer) || returning.contains_key(&peer));
    }

    /// The peers that were refused for too long since the last call, and why.
    pub(super) fn take_given_up(&mut self) -> Vec<(Source, Error)> {
        std::mem::take(&mut self.given_up)
    }

    /// Whether [`Connections::take_given_up`] has something to say.
    pub(super) fn has_given_up(&self) -> bool {
        !self.given_up.is_empty()
    }

    /// A connection was opened.
    pub(super) fn connected(&mut self, id: ConnectionId) {
        if !self.refusals.is_empty()
            && let Some((&peer, _)) = self.open.iter().find(|(_, open)| open.id == id)
        {
            self.refusals.forget(peer);
        }
    }

    /// How many connections have to be closed yet for those that were refused.
    pub(super) fn wants_room(&self, now: Instant) -> usize {
        self.refusals.waiting(now).saturating_sub(self.making_room.len())
    }

    /// The connection that has been used least recently of those that make room for what `refused` lists, and nothing is
    /// under way on; and how many messages ago it was.
    pub(super) fn spare(&self, refused: &Connections) -> Option<(Source, u64)> {
        let spare = self
            .open
            .iter()
            .filter(|(peer, open)| open.under_way == 0 && refused.refusals.would_gain(**peer));
        let oldest = spare.min_by_key(|(_, open)| open.used)?;
        Some((*oldest.0, self.posted - oldest.1.used))
    }

    /// Closes the connection to `peer` on which nothing is under way. Returns which one it was, if it is being closed.
    pub(super) fn give_away(&mut self, endpoint: &mut Endpoint, peer: Source) -> Option<ConnectionId> {
        let id = self.open.get(&peer)?.id;
        // If the ring of commands has no room, it is closed later.
        endpoint.close(id).ok()?;
        self.open.remove(&peer);
        Some(id)
    }

    /// The connection is being closed for one of those that were refused.
    pub(super) fn await_room(&mut self, id: ConnectionId) {
        self.making_room.insert(id);
    }

    /// Posts the buffer, or gives it back.
    pub(super) fn post_buffer(
        &mut self,
        endpoint: &mut Endpoint,
        peer: Source,
        buffer: SendBuffer,
        options: SendOptions,
    ) -> Result<OperationId, (FiError, SendBuffer)> {
        let mut buffer = Some(buffer);
        let posted = self.post(endpoint, peer, |endpoint, connection| {
            let taken = buffer.take().ok_or(Error::Completed)?;
            endpoint.send_with(connection, taken, options).map_err(|refused| {
                buffer = Some(refused.buffer);
                refused.error
            })
        });
        posted.map_err(|error| (error, buffer.unwrap_or(SendBuffer::Copied)))
    }

    /// Whether messages to `peer` are on their way back, which others must not overtake.
    pub(super) fn is_returning(&self, peer: Source) -> bool {
        !self.returning.is_empty() && self.returning.contains_key(&peer)
    }

    /// A message to `peer` was posted.
    pub(super) fn begin(&mut self, peer: Source) {
        if let Some(open) = self.open.get_mut(&peer) {
            open.under_way += 1;
            self.posted += 1;
            open.used = self.posted;
        }
    }

    /// A message to `peer` has ended. Returns what becomes of it if it has come back.
    ///
    /// The peer tells which connection it was on: a server executes commands in their order, so all messages of one that is closed
    /// have come back before any of the next one ends.
    pub(super) fn end(&mut self, peer: Source, result: &Result<(), Error>) -> Option<Returned> {
        let is_back = matches!(result, Err(Error::Refused(CallError::NotOpen)));
        if is_back
            && !self.is_returning(peer)
            && let Some(Open { under_way: left, .. }) = self.open.remove(&peer)
        {
            // The first of those for a connection that is being closed.
            self.returning.insert(peer, Returning { left, why: None });
        }
        if let Some(returning) = self.returning.get_mut(&peer) {
            returning.left = returning.left.saturating_sub(1);
            let why = returning.why;
            if returning.left == 0 {
                self.returning.remove(&peer);
            }
            return is_back.then(|| why.map_or(Returned::Again, Returned::Failed));
        }
        if let Some(open) = self.open.get_mut(&peer) {
            open.under_way = open.under_way.saturating_sub(1);
        }
        None
    }

    /// A connection was closed.
    pub(super) fn close(&mut self, id: ConnectionId, result: &Result<(), Error>) {
        if !self.refusals.is_empty() && (result.is_ok() || self.making_room.contains(&id)) {
            self.refusals.hurry(Instant::now());
        }
        self.making_room.remove(&id);
        let Some((&peer, open)) = self.open.iter().find(|(_, open)| open.id == id) else { return };
        let left = open.under_way;
        let why = match *result {
            Ok(()) | Err(Error::Connection(Failure::ClosedByPeer { .. })) => None,
            Err(why) if self.refuse(peer, &why) => None,
            Err(why) => Some(why),
        };
        if left > 0 {
            self.returning.insert(peer, Returning { left, why });
        }
        self.open.remove(&peer);
    }
}
