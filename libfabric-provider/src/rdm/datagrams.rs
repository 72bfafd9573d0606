//! Endpoints of type FI_EP_DGRAM: messages of one packet, without a connection, that may be lost.

use weft::{CallError, Error, MAX_SEGMENT, OwnedBytes, Unreachable};

use super::operation::Piece;
use super::receive::{Incoming, Room};
use super::send::{HAS_DATA, Outgoing};
use super::{DEPTH, Operation, State};
use crate::error::FiError;
use crate::sys;

impl State {
    /// Sends a datagram. Its operation ends as that of a message does, when it has left.
    pub(super) fn send_datagram(&mut self, message: Outgoing) -> Result<(), FiError> {
        let Outgoing { bytes, to, data, context, wanted, .. } = message;
        let binding = self.ready(|bindings| &bindings.transmit)?;
        if !binding.queue.has_room()? {
            return Err(FiError::AGAIN);
        }
        if self.sends >= DEPTH {
            self.pending.refuse(FiError::AGAIN);
            return Err(FiError::AGAIN);
        }
        let peer = self.peer(to)?;
        let longest = self.endpoint.as_ref().map(weft::Endpoint::longest_datagram);
        // Before they are copied, if they are several pieces.
        if longest.is_some_and(|longest| bytes.len() > longest as usize) {
            return Err(FiError::TOO_LONG);
        }
        let endpoint = self.endpoint.as_mut().ok_or(FiError::BAD_STATE)?;
        let (flags, reported) = (sys::FI_MSG | sys::FI_SEND, wanted.is_reported(binding.selective));
        let injected = wanted.is_injected();
        let operation = Operation { context, flags, reported, injected, ..Operation::default() };
        let header_data = data.map_or(0, |data| HAS_DATA | data & u64::from(u32::MAX));
        let buffer = bytes.into_buffer(endpoint)?;
        let number = self.operations.insert(operation);
        let posted = endpoint.send_datagram(peer, buffer, header_data, number as u64);
        let noted = self.note_posted(number, posted.map_err(|refused| why_not_sent(&refused.error)));
        noted.inspect_err(|error| self.pending.refuse(*error))?;
        self.sends += 1;
        Ok(())
    }

    /// Posts a receive of a datagram.
    pub(super) fn receive_datagram(&mut self, receive: Incoming) -> Result<(), FiError> {
        let Incoming { room, context, wanted, .. } = receive;
        let binding = self.ready(|bindings| &bindings.receive)?;
        if self.receives >= DEPTH || !binding.queue.has_room()? {
            return Err(FiError::AGAIN);
        }
        let (flags, reported) = (sys::FI_MSG | sys::FI_RECV, wanted.is_reported(binding.selective));
        let (buf, len) = (room.address(), room.len());
        let mut operation = Operation { context, flags, buf, reported, ..Operation::default() };
        let buffer = match room {
            Room::One(room) => OwnedBytes::new(room),
            Room::Several(rooms) => {
                operation.pieces = rooms.into_iter().map(Piece).collect();
                OwnedBytes::new(vec![0; len.min(MAX_SEGMENT as usize)])
            }
        };
        let number = self.operations.insert(operation);
        let endpoint = self.endpoint.as_mut().ok_or(FiError::BAD_STATE)?;
        let posted = endpoint.receive_datagram(buffer, number as u64);
        self.note_posted(number, posted.map_err(|refused| FiError::from(&refused.error)))?;
        self.receives += 1;
        Ok(())
    }
}

/// Why a datagram was not sent. While the Ethernet address of its host is being asked for, it can be later.
fn why_not_sent(error: &Error) -> FiError {
    match error {
        Error::Refused(CallError::Unreachable { why: Unreachable::Resolving { .. }, .. }) => FiError::AGAIN,
        other => FiError::from(other),
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use weft::Addr;

    use super::*;
    use crate::sys::FI_EHOSTUNREACH;

    #[test]
    fn a_datagram_can_be_sent_later_while_the_ethernet_address_of_its_host_is_being_asked_for() {
        let hop = IpAddr::from([10, 0, 0, 2]);
        let refused = |why| why_not_sent(&Error::Refused(CallError::Unreachable { peer: Addr(1), why }));
        for asked in 0..=3 {
            assert_eq!(refused(Unreachable::Resolving { hop, asked }), FiError::AGAIN);
        }
        for why in [Unreachable::NoAnswer { hop }, Unreachable::Unknown(Addr(1))] {
            assert_eq!(refused(why).number(), FI_EHOSTUNREACH);
        }
    }
}
