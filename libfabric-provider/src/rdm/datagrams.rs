//! Endpoints of type FI_EP_DGRAM: messages of one packet, without a connection, that may be lost.

use weft::{MAX_SEGMENT, OwnedBytes};

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
        if self.sends >= DEPTH || !binding.queue.has_room()? {
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
        let number = self.operations.insert(Operation { context, flags, reported, ..Operation::default() });
        let header_data = data.map_or(0, |data| HAS_DATA | data & u64::from(u32::MAX));
        let buffer = bytes.into_buffer(endpoint);
        let posted = endpoint.send_datagram(peer, buffer, header_data, number as u64);
        self.note_posted(number, posted.map_err(|refused| FiError::from(&refused.error)))?;
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
