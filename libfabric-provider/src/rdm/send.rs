//! Messages to send.

use bytes::Bytes;
use weft::core::wire::ses::ReturnCode;
use weft::{Error, MAX_COPY, OperationId, SendBuffer, SendError, SendOptions, Source};

use super::connections::Returned;
use super::{Bindings, DEPTH, Operation, Rdm, State, Wanted, report};
use crate::abi::AppBytes;
use crate::error::{FiError, lock};
use crate::queue::Problem;
use crate::sys::{self, fi_addr_t};

/// The longest message that can be injected, bytes: that is copied at the call.
pub(crate) const INJECT_SIZE: usize = MAX_COPY;
/// The bit of the header data that says that the low 32 bits are the sender's.
pub(super) const HAS_DATA: u64 = 1 << 32;

/// A message to send.
pub(crate) struct Outgoing {
    pub(crate) bytes: OutgoingBytes,
    pub(crate) to: fi_addr_t,
    pub(crate) tag: Option<u64>,
    pub(crate) data: Option<u64>,
    pub(crate) context: usize,
    pub(crate) wanted: Wanted,
    /// More will follow at once: nothing has to leave yet.
    pub(crate) more: bool,
}

/// The bytes of a message.
pub(crate) enum OutgoingBytes {
    /// To be sent from where they are.
    Lent(AppBytes),
    /// To be copied at the call.
    Injected(AppBytes),
    /// Several pieces, to be put together at the call.
    Gathered(Vec<AppBytes>),
}

impl Rdm {
    /// Sends a message.
    ///
    /// # Errors
    /// [`FiError::AGAIN`] if there is no room for it now.
    pub(crate) fn send(&self, message: Outgoing) -> Result<(), FiError> {
        let more = message.more;
        let mut state = lock(&self.state)?;
        let posted = state.send(message);
        self.follow(&mut state, posted, more)
    }
}

impl State {
    fn send(&mut self, message: Outgoing) -> Result<(), FiError> {
        let Outgoing { bytes, to, tag, data, context, wanted, .. } = message;
        let binding = self.ready(|bindings| &bindings.transmit)?;
        if self.sends >= DEPTH || !binding.queue.has_room()? {
            return Err(FiError::AGAIN);
        }
        let kind = if tag.is_some() { sys::FI_TAGGED } else { sys::FI_MSG };
        let (flags, reported) = (kind | sys::FI_SEND, wanted.is_reported(binding.selective));
        let operation = Operation { context, flags, reported, ..Operation::default() };
        let peer = self.peer(to)?;
        if self.peers.connections.is_returning(peer) {
            return Err(FiError::AGAIN);
        }
        let number = self.operations.insert(operation);
        let header_data = data.map_or(0, |data| HAS_DATA | data & u64::from(u32::MAX));
        let mut options = SendOptions::default().header_data(header_data).context(number as u64);
        options.tag = tag;
        match self.post(peer, bytes, options) {
            Ok(id) => {
                self.peers.connections.begin(peer);
                if let Some(operation) = self.operations.get_mut(number) {
                    (operation.id, operation.sending) = (Some(id), Some((peer, options)));
                }
                self.sends += 1;
                Ok(())
            }
            Err(error) => {
                self.operations.remove(number);
                Err(error)
            }
        }
    }

    /// Posts the bytes on the connection to `peer`, or on a new one if that has been closed.
    fn post(
        &mut self,
        peer: Source,
        bytes: OutgoingBytes,
        options: SendOptions,
    ) -> Result<OperationId, FiError> {
        let endpoint = self.endpoint.as_mut().ok_or(FiError::BAD_STATE)?;
        let connections = &mut self.peers.connections;
        let lent: Bytes = match bytes {
            OutgoingBytes::Injected(bytes) if endpoint.worker().is_some() => {
                return connections.post(endpoint, peer, |endpoint, connection| {
                    endpoint.send_copy(connection, bytes.as_ref(), options)
                });
            }
            // A server may give it back unsent.
            OutgoingBytes::Injected(bytes) => Bytes::copy_from_slice(bytes.as_ref()),
            OutgoingBytes::Lent(bytes) => Bytes::from_owner(bytes),
            OutgoingBytes::Gathered(pieces) => {
                pieces.iter().map(AsRef::as_ref).collect::<Vec<&[u8]>>().concat().into()
            }
        };
        connections.post(endpoint, peer, |endpoint, connection| {
            endpoint.send_with(connection, lent.clone(), options).map_err(|refused| refused.error)
        })
    }

    /// Posts a message again that came back unsent, since its connection had been closed.
    fn post_again(&mut self, number: usize, buffer: SendBuffer) -> Result<(), FiError> {
        let State { endpoint, peers, operations, .. } = self;
        let endpoint = endpoint.as_mut().ok_or(FiError::BAD_STATE)?;
        let operation = operations.get_mut(number).ok_or(FiError::OTHER)?;
        let (Some((peer, options)), SendBuffer::Bytes(bytes)) = (operation.sending, buffer) else {
            return Err(FiError::OTHER);
        };
        let id = peers.connections.post(endpoint, peer, |endpoint, connection| {
            endpoint.send_with(connection, bytes.clone(), options).map_err(|refused| refused.error)
        })?;
        peers.connections.begin(peer);
        operation.id = Some(id);
        Ok(())
    }

    /// A message has ended.
    pub(super) fn end_send(
        &mut self,
        number: usize,
        buffer: SendBuffer,
        mut result: Result<(), Error>,
    ) -> Result<(), FiError> {
        let sending = self.operations.get_mut(number).and_then(|operation| operation.sending);
        let returned = sending.and_then(|(peer, _)| self.peers.connections.end(peer, &result));
        let mut error = None;
        match returned {
            Some(Returned::Again) => match self.post_again(number, buffer) {
                Ok(()) => return Ok(()),
                Err(why) => error = Some(why),
            },
            Some(Returned::Failed(why)) => result = Err(why),
            None => {}
        }
        self.sends = self.sends.saturating_sub(1);
        let Some(operation) = self.operations.remove(number) else { return Ok(()) };
        let problem = match result {
            // It has arrived, as far as its sender is concerned: the receiver has an error entry.
            Ok(()) | Err(Error::Send(SendError::Answered(ReturnCode::TOO_LONG))) => None,
            Err(why) => Some(error.unwrap_or_else(|| FiError::from(&why))),
        };
        let problem = problem.map(|error| Problem { error, beyond: 0 });
        let entry = operation.entry(problem);
        let Bindings { transmit, sent, .. } = &self.bindings;
        report(transmit, sent, operation.reported, entry)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use weft::Endpoint;

    use super::*;
    use crate::addresses::Addresses;
    use crate::place::Place;
    use crate::queue::Queue;
    use crate::rdm::{Binding, Caps};

    fn endpoint() -> Rdm {
        let endpoint = Endpoint::builder("udp:127.0.0.1,shared=on").build().unwrap();
        let rdm = Rdm::new(endpoint, &Place::OwnPorts, Caps::of(0)).unwrap();
        let binding = || Some(Binding { queue: Arc::new(Queue::new(4, false).unwrap()), selective: true });
        let addresses = Some(Arc::new(Addresses::default()));
        lock(&rdm.state).unwrap().bindings =
            Bindings { transmit: binding(), receive: binding(), addresses, ..Bindings::default() };
        rdm.enable().unwrap();
        rdm
    }

    /// No thread but the one that sends lets the endpoint work, and it does nothing but repeat what was refused. There is room
    /// for 256 messages of 4 KiB at a time.
    #[test]
    fn a_send_that_is_repeated_finds_room_by_itself() {
        let (a, b) = (endpoint(), endpoint());
        let to = lock(&a.state).unwrap().bindings.addresses.as_ref().unwrap().insert(b.local).unwrap();
        let bytes = [7u8; INJECT_SIZE];
        let (begin, mut refused) = (Instant::now(), 0);
        for _ in 0..1000 {
            let message = || Outgoing {
                // SAFETY: `bytes` outlives the message, and is not changed.
                bytes: OutgoingBytes::Injected(unsafe { AppBytes::new(bytes.as_ptr().cast(), bytes.len()) }),
                to,
                tag: None,
                data: None,
                context: 0,
                wanted: Wanted::Never,
                more: false,
            };
            while let Err(error) = a.send(message()) {
                assert_eq!(error, FiError::AGAIN);
                refused += 1;
                // The peer keeps messages for which there is no receive.
                b.progress().unwrap();
                assert!(begin.elapsed() < Duration::from_secs(60), "no room is given back");
            }
        }
        assert!(refused > 0, "there was room for all at once");
    }
}
