//! Receives that name a peer end with an error when that is gone: an endpoint asks the peers that they wait for, now and then,
//! whether they are there. The question is a write of no bytes, to memory that nobody has: any answer will do.

use std::collections::HashSet;

use bytes::Bytes;
use weft::{Error, RemoteMemory, Source};

use super::{Operation, Rdm, State};
use crate::error::{FiError, lock};

/// The key of the memory that is asked for. If an application has some there, nothing happens to it.
const NOBODYS: RemoteMemory = RemoteMemory { key: u64::MAX, offset: 0 };

impl Rdm {
    /// Asks the peers that receives name, those that have not answered the last question excepted.
    pub(crate) fn ask_peers(&self) -> Result<(), FiError> {
        let mut state = lock(&self.state)?;
        let asked: HashSet<Source> = state.operations.iter().filter_map(|operation| operation.asks).collect();
        let named: HashSet<Source> = state.operations.iter().filter_map(|operation| operation.from).collect();
        for peer in named.difference(&asked) {
            // Who cannot be asked now is asked the next time.
            let _ = state.ask(*peer);
        }
        Ok(())
    }

    /// Whether a question is under way.
    pub(crate) fn is_asking(&self) -> Result<bool, FiError> {
        Ok(lock(&self.state)?.questions > 0)
    }
}

impl State {
    fn ask(&mut self, peer: Source) -> Result<(), FiError> {
        let State { endpoint, peers, operations, questions, .. } = self;
        let endpoint = endpoint.as_mut().ok_or(FiError::BAD_STATE)?;
        if endpoint.worker().is_none() {
            // A server does not write for its applications.
            return Err(FiError::NOT_THERE);
        }
        let number = operations.insert(Operation { asks: Some(peer), ..Operation::default() });
        let posted = peers.connections.post(endpoint, peer, |endpoint, connection| {
            let write = endpoint.write(connection, Bytes::new(), NOBODYS, None, number as u64);
            write.map_err(|refused| refused.error)
        });
        match posted {
            Ok(_) => *questions += 1,
            Err(_) => drop(operations.remove(number)),
        }
        posted.map(|_| ())
    }

    /// A question to `peer` has ended: without an answer, receives that name it have failed.
    pub(super) fn answered(&mut self, peer: Source, result: Result<(), Error>) {
        self.questions = self.questions.saturating_sub(1);
        let error = match result.as_ref().map_err(FiError::from) {
            Err(error @ FiError::TIMED_OUT) => error,
            _ => return,
        };
        let State { endpoint, operations, .. } = self;
        let Some(endpoint) = endpoint else { return };
        for receive in operations.iter_mut().filter(|operation| operation.from == Some(peer)) {
            receive.given_up = Some(error);
            if let Some(id) = receive.id {
                // One that a message has met ends with that.
                let _ = endpoint.cancel(id);
            }
        }
    }
}
