//! Messages that were claimed for receives, and wait for memory.

use weft::{Claim, ReceiveBuffer, Waiting};

use super::super::State;
use super::super::operation::Piece;
use super::{Backlog, Space, Way, has_memory};
use crate::error::FiError;

/// A message that was claimed for a receive, and waits for memory or for room in the ring of commands.
#[derive(Debug)]
pub(in super::super) struct Claimed {
    pub(super) number: usize,
    claim: Claim,
    message: Waiting,
    /// Whether it stands for a longer one.
    stands: bool,
    room: Target,
}

/// Where a claimed message is received.
#[derive(Debug)]
enum Target {
    /// Into memory that is to be chosen, and from there to this.
    Undecided(Space),
    Chosen(ReceiveBuffer),
}

impl Target {
    /// How much of a message of `len` bytes is received.
    fn len(&self, len: u32) -> usize {
        let room = match self {
            Target::Undecided(room) => room.len(),
            Target::Chosen(buffer) => buffer.len(),
        };
        room.min(len as usize)
    }
}

impl Backlog {
    /// A message was claimed for a receive.
    pub(in super::super) fn claim(
        &mut self,
        number: usize,
        room: Space,
        claim: Claim,
        message: &Waiting,
        stands: bool,
    ) {
        let room = Target::Undecided(room);
        self.claimed.push_back(Claimed { number, claim, message: *message, stands, room });
    }
}

impl State {
    /// Receives the messages that were claimed, as far as there is memory.
    pub(in super::super) fn resume_claimed(&mut self) -> Result<(), FiError> {
        while let Some(claimed) = self.backlog.claimed.pop_front() {
            let Claimed { number, claim, message, stands, room } = claimed;
            let len = message.len;
            if !stands && self.backlog.longest().is_some_and(|longest| room.len(len) > longest) {
                // Of a sender with more memory. None of this endpoint's will ever do.
                let claimed = Claimed { number, claim, message, stands, room };
                if self.fail_claimed(claimed, FiError::TOO_LONG)? {
                    continue;
                }
                return Ok(());
            }
            let buffer = match room {
                Target::Chosen(buffer) => buffer,
                Target::Undecided(room) => {
                    let space = room.len();
                    match self.choose(number, room, len, stands) {
                        Ok(Ok(buffer)) => buffer,
                        Ok(Err(room)) => {
                            let room = Target::Undecided(room);
                            self.backlog.claimed.push_front(Claimed { number, claim, message, stands, room });
                            return Ok(());
                        }
                        Err(FiError::NO_MEMORY) => {
                            let room = Target::Undecided(Space::Several(space));
                            let claimed = Claimed { number, claim, message, stands, room };
                            if self.fail_claimed(claimed, FiError::NO_MEMORY)? {
                                continue;
                            }
                            return Ok(());
                        }
                        Err(error) => return Err(error),
                    }
                }
            };
            let endpoint = self.endpoint.as_mut().ok_or(FiError::BAD_STATE)?;
            match endpoint.receive_claimed(claim, buffer, number as u64) {
                Ok(id) => {
                    if let Some(operation) = self.operations.get_mut(number) {
                        operation.id = Some(id);
                    }
                }
                Err(refused) if refused.error.is_back_pressure() => {
                    let room = Target::Chosen(refused.buffer);
                    self.backlog.claimed.push_front(Claimed { number, claim, message, stands, room });
                    return Ok(());
                }
                // Its sender was lost in the middle of it.
                Err(refused) => {
                    self.backlog.take_received(refused.buffer);
                    self.fail(number, Way::In, FiError::from(&refused.error))?;
                }
            }
        }
        Ok(())
    }

    /// Drops a message that was claimed for a receive, which ends with `error`. Returns false if there is no room for that now.
    fn fail_claimed(&mut self, claimed: Claimed, error: FiError) -> Result<bool, FiError> {
        let endpoint = self.endpoint.as_mut().ok_or(FiError::BAD_STATE)?;
        if endpoint.discard(claimed.claim).is_err_and(|error| error.is_back_pressure()) {
            self.backlog.claimed.push_front(claimed);
            return Ok(false);
        }
        let Claimed { number, message, .. } = claimed;
        self.has_taken(message.source, message.header_data, message.len);
        self.fail(number, Way::In, error)?;
        Ok(true)
    }

    /// A buffer for a claimed message of `len` bytes: what stands for the application's own room, which needs as much memory of
    /// the endpoint, or else the reserve. Gives the room back if there is neither. One that stands for a longer message is received
    /// beside the application's room.
    ///
    /// # Errors
    /// [`FiError::NO_MEMORY`] if nothing can stand for several pieces of room.
    fn choose(
        &mut self,
        number: usize,
        room: Space,
        len: u32,
        stands: bool,
    ) -> Result<Result<ReceiveBuffer, Space>, FiError> {
        let endpoint = self.endpoint.as_mut().ok_or(FiError::BAD_STATE)?;
        let wanted = if stands { len as usize } else { room.len().min(len as usize) };
        let Some(parts) = &mut self.backlog.parts else {
            return Ok(Ok(if stands {
                self.beside(number, room, wanted)
            } else {
                room.beginning(wanted)?.into()
            }));
        };
        let buffer = if has_memory(endpoint, wanted) {
            if !stands {
                return Ok(Ok(room.beginning(wanted)?.into()));
            }
            vec![0; wanted].into()
        } else {
            match parts.for_a_claimed.take(endpoint, wanted) {
                Some(slice) => slice.into(),
                None => return Ok(Err(room)),
            }
        };
        if let (Space::One(room), Some(operation)) = (room, self.operations.get_mut(number)) {
            operation.pieces = vec![Piece(room)];
        }
        Ok(Ok(buffer))
    }

    /// Memory of `len` bytes for what stands for a longer message, which is received into `room` when it is fetched.
    fn beside(&mut self, number: usize, room: Space, len: usize) -> ReceiveBuffer {
        if let (Space::One(room), Some(operation)) = (room, self.operations.get_mut(number)) {
            operation.pieces = vec![Piece(room)];
        }
        vec![0; len].into()
    }
}
