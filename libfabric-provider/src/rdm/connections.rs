//! The connections to peers: one for each, so that its messages meet receives in the order in which they were sent. It is
//! opened by the first message, and again after it was closed, for its silence for example.
//!
//! A server may close a connection while messages for it are on their way through the ring of commands. They come back
//! unsent, in their order, and are posted again; no other message for the peer is posted before.

use std::collections::HashMap;

use weft::{
    CallError, ConnectOptions, ConnectionId, Endpoint, Error, Failure, OperationId, SendBuffer, SendOptions,
    Source,
};

use crate::error::FiError;

#[derive(Debug, Default)]
pub(super) struct Connections {
    open: HashMap<Source, Open>,
    /// Messages that will come back unsent.
    returning: HashMap<Source, Returning>,
}

#[derive(Debug)]
struct Open {
    id: ConnectionId,
    /// Messages that have not ended.
    under_way: usize,
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
        let options = ConnectOptions::default().process(peer.process);
        let id = endpoint.connect_with(peer.peer, options).map_err(|error| FiError::from(&error))?;
        self.open.insert(peer, Open { id, under_way: 0 });
        post(endpoint, id).map_err(|error| FiError::from(&error))
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
        let Some((&peer, open)) = self.open.iter().find(|(_, open)| open.id == id) else { return };
        if open.under_way > 0 {
            let why = match *result {
                Ok(()) | Err(Error::Connection(Failure::ClosedByPeer { .. })) => None,
                Err(why) => Some(why),
            };
            self.returning.insert(peer, Returning { left: open.under_way, why });
        }
        self.open.remove(&peer);
    }
}
