//! Receives, and the messages that they get.

use weft::{Completion, Error, Matching, OwnedBytes, ReceiveError, ReceiveOptions};

use super::operation::Piece;
use super::{Bindings, DEPTH, Operation, Rdm, State, Wanted, report};
use crate::abi::AppRoom;
use crate::error::{FiError, lock};
use crate::queue::Problem;
use crate::sys::{self, FI_ADDR_UNSPEC, fi_addr_t};

/// A receive to post.
pub(crate) struct Incoming {
    pub(crate) room: Room,
    pub(crate) from: fi_addr_t,
    pub(crate) matching: Matching,
    pub(crate) context: usize,
    pub(crate) wanted: Wanted,
    pub(crate) which: Which,
}

/// Where a message is received.
pub(crate) enum Room {
    One(AppRoom),
    /// One piece after the other.
    Several(Vec<AppRoom>),
}

/// Which messages a receive gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// The first that matches.
    First,
    /// One after the other, until too little room is left.
    Many,
    /// The one that was claimed with the same context.
    Claimed,
}

impl Rdm {
    /// Posts a receive.
    ///
    /// # Errors
    /// [`FiError::AGAIN`] if there is no room for it now.
    pub(crate) fn receive(&self, receive: Incoming) -> Result<(), FiError> {
        let mut state = lock(&self.state)?;
        let posted = state.receive(receive, self.caps.directed);
        self.follow(&mut state, posted, true)
    }
}

impl State {
    fn receive(&mut self, receive: Incoming, directed: bool) -> Result<(), FiError> {
        let Incoming { room, from, matching, context, wanted, which } = receive;
        let binding = self.ready(|bindings| &bindings.receive)?;
        if self.receives >= DEPTH || !binding.queue.has_room()? {
            return Err(FiError::AGAIN);
        }
        let kind = if matching == Matching::Untagged { sys::FI_MSG } else { sys::FI_TAGGED };
        let (buf, pieces, buffer) = match room {
            Room::One(room) => (room.address(), Vec::new(), OwnedBytes::divisible(room)),
            Room::Several(rooms) => {
                let len = rooms.iter().map(|room| room.as_ref().len()).sum();
                let buf = rooms.first().map_or(0, AppRoom::address);
                (buf, rooms.into_iter().map(Piece).collect(), OwnedBytes::new(vec![0; len]))
            }
        };
        let mut options = ReceiveOptions::default();
        options.matching = matching;
        let from = if directed && from != FI_ADDR_UNSPEC { Some(self.peer(from)?) } else { None };
        if let Some(from) = from {
            options = options.from(from);
        }
        let reported = wanted.is_reported(binding.selective);
        let flags = kind | sys::FI_RECV;
        let claim = match which {
            Which::Claimed => Some(self.claims.get(&context).ok_or(FiError::NO_ENTRY)?.claim),
            Which::First | Which::Many => None,
        };
        let many = which == Which::Many;
        let operation =
            Operation { context, flags, buf, pieces, reported, many, from, ..Operation::default() };
        let number = self.operations.insert(operation);
        let endpoint = self.endpoint.as_mut().ok_or(FiError::BAD_STATE)?;
        let options = options.context(number as u64);
        let posted = match claim {
            Some(claim) => endpoint.receive_claimed(claim, buffer, number as u64),
            None if many => endpoint.receive_many(buffer, self.least, options),
            None => endpoint.receive_with(buffer, options),
        };
        match posted {
            Ok(id) => {
                if let Some(operation) = self.operations.get_mut(number) {
                    operation.id = Some(id);
                }
                self.receives += 1;
            }
            Err(refused) => {
                let operation = self.operations.remove(number);
                let error = FiError::from(&refused.error);
                if claim.is_none() || error == FiError::AGAIN {
                    return Err(error);
                }
                // Its sender was lost in the middle of the message: the receive ends at once.
                let problem = Some(Problem { error, beyond: 0 });
                let entry = operation.map(|operation| operation.entry(problem)).ok_or(FiError::OTHER)?;
                let Bindings { receive, received, .. } = &self.bindings;
                report(receive, received, reported, entry)?;
            }
        }
        if claim.is_some() {
            self.claims.remove(&context);
        }
        Ok(())
    }

    /// A receive has ended, or got one of many messages.
    pub(super) fn end_receive(&mut self, completion: Completion, names_source: bool) -> Result<(), FiError> {
        let Completion::Received { context, source, tag, header_data, len, mut buffer, more, result, .. } =
            completion
        else {
            return Ok(());
        };
        let number = context as usize;
        let Some(operation) = self.operations.get_mut(number) else { return Ok(()) };
        let room = buffer.len();
        operation.scatter(&mut buffer, len as usize);
        let problem = result.err().map(|error| match error {
            Error::Receive(ReceiveError::Truncated { len, room }) => {
                Problem { error: FiError::from(&error), beyond: (len - room) as usize }
            }
            _ => Problem { error: operation.given_up.unwrap_or(FiError::from(&error)), beyond: 0 },
        });
        let mut entry = operation.entry(problem);
        entry.len = (len as usize).min(room);
        let mut reported = operation.reported;
        if operation.many {
            if let Some(bytes) = buffer.as_slice() {
                entry.buf = bytes.as_ptr().addr();
            }
            if !more {
                entry.flags |= sys::FI_MULTI_RECV;
                // The application has to know that the buffer is its own again.
                reported = true;
            }
        }
        if !more {
            self.operations.remove(number);
            self.receives = self.receives.saturating_sub(1);
        }
        entry.take_envelope(tag, header_data);
        if let (true, Some(source)) = (names_source, source) {
            entry.source = self.number_of(source)?;
        }
        let Bindings { receive, received, .. } = &self.bindings;
        report(receive, received, reported, entry)
    }
}
