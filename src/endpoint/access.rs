//! Memory that peers access, and accesses to that of peers.

use weft_stack::buffer::{Buffer, MAX_MESSAGE};
use weft_stack::fep::{
    self, AccessError, AccessKind, Atomic, AtomicError, CallError, Exposure, Read, Rights, Write,
};
use weft_stack::ses::Source;

use super::buffer::{ReceiveBuffer, SendBuffer};
use super::completion::{Completion, ConnectionId, ConnectionName, OperationId, OperationName};
use super::direct::Direct;
use super::error::{Error, PostError};
use super::{Backend, Endpoint};

/// A place in a peer's memory.
///
/// ```
/// use std::time::Duration;
/// use weft::{Completion, Endpoint, RemoteMemory, Rights};
///
/// // Here the peer is the endpoint itself.
/// let mut endpoint = Endpoint::builder("udp:127.20.0.6").build()?;
/// let own = endpoint.peer("127.20.0.6")?;
/// let connection = endpoint.connect(own)?;
///
/// let key = endpoint.draw_key()?; // a peer needs it, for example from a message
/// endpoint.expose(key, vec![0; 8192], Rights::ALL, None)?;
///
/// let place = RemoteMemory { key, offset: 4096 };
/// endpoint.write(connection, b"hello", place, Some(7), 1)?;
/// loop {
///     match endpoint.wait(Duration::from_secs(5))?.expect("a completion") {
///         Completion::Wrote { result, .. } => break result?,
///         Completion::Written(written) => assert_eq!((written.len, written.data), (5, 7)),
///         _ => {}
///     }
/// }
/// let memory = endpoint.withdraw(key).expect("it was exposed");
/// assert_eq!(&memory.as_slice().unwrap()[4096..4101], b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteMemory {
    /// The key under which the peer exposes the memory, which it has told.
    pub key: u64,
    /// Offset of the first byte to access, bytes.
    pub offset: u64,
}

impl Endpoint {
    fn direct(&mut self) -> Result<&mut Direct, Error> {
        match &mut self.backend {
            Backend::Direct(direct) => Ok(direct),
            Backend::Remote(_) => Err(Error::WorkerElsewhere),
        }
    }

    /// A key that nobody can guess, for memory to expose: who knows it has access.
    ///
    /// # Errors
    /// [`Error::WorkerElsewhere`].
    pub fn draw_key(&mut self) -> Result<u64, Error> {
        Ok(self.direct()?.worker.fep_mut().draw_key())
    }

    /// Lets peers access memory under `key` until [`Endpoint::withdraw`]: all that know the key, or only process `from`. The
    /// endpoint owns the memory until then, and peers change it, if `rights` say so, while the endpoint works.
    ///
    /// # Errors
    /// [`Error::WorkerElsewhere`], [`Error::Exposed`]; with the buffer.
    pub fn expose(
        &mut self,
        key: u64,
        memory: impl Into<ReceiveBuffer>,
        rights: Rights,
        from: Option<Source>,
    ) -> Result<(), PostError<ReceiveBuffer>> {
        let memory = memory.into();
        let direct = match self.direct() {
            Ok(direct) => direct,
            Err(error) => return Err(PostError { error, buffer: memory }),
        };
        let buffer = direct.boxes.lend_to_receive(memory);
        let process = direct.process();
        let exposure = Exposure { key, buffer, base: 0, rights, from };
        direct.worker.fep_mut().expose(process, exposure).map_err(|refused| PostError {
            error: refused.why.into(),
            buffer: direct.boxes.take_received(refused.buffer),
        })
    }

    /// Takes back the memory that is exposed under `key`; `None` if there is none. Peers get an error for accesses that they
    /// have under way.
    pub fn withdraw(&mut self, key: u64) -> Option<ReceiveBuffer> {
        let direct = self.direct().ok()?;
        let process = direct.process();
        let buffer = direct.worker.fep_mut().withdraw(process, key)?;
        Some(direct.boxes.take_received(buffer))
    }

    /// Reads as many bytes of the memory of the connection's peer as `buffer` has. [`Completion::Read`] brings them.
    ///
    /// # Errors
    /// As [`Endpoint::send_with`]; [`Error::WorkerElsewhere`]; with the buffer.
    pub fn read(
        &mut self,
        connection: ConnectionId,
        buffer: impl Into<ReceiveBuffer>,
        from: RemoteMemory,
        context: u64,
    ) -> Result<OperationId, PostError<ReceiveBuffer>> {
        let buffer = buffer.into();
        let (direct, id) = match self.direct().and_then(|direct| Ok((direct, name(connection)?))) {
            Ok(found) => found,
            Err(error) => return Err(PostError { error, buffer }),
        };
        let RemoteMemory { key, offset } = from;
        let buffer = direct.boxes.lend_to_receive(buffer);
        match direct.worker.fep_mut().post_read(id, Read { buffer, key, offset, context }) {
            Ok(id) => Ok(OperationId(OperationName::Read(id))),
            Err(refused) => Err(direct.refused_receive(refused)),
        }
    }

    /// Writes bytes to the memory of the connection's peer; [`Completion::Wrote`] tells when all are there. If there is
    /// `data`, the peer gets a [`Completion::Written`] with it then. Messages that are sent afterwards may be received before
    /// the bytes are there.
    ///
    /// # Errors
    /// As [`Endpoint::send_with`]; [`Error::WorkerElsewhere`]; with the buffer.
    pub fn write(
        &mut self,
        connection: ConnectionId,
        buffer: impl Into<SendBuffer>,
        to: RemoteMemory,
        data: Option<u64>,
        context: u64,
    ) -> Result<OperationId, PostError<SendBuffer>> {
        let buffer = buffer.into();
        let (direct, id) = match self.direct().and_then(|direct| Ok((direct, name(connection)?))) {
            Ok(found) => found,
            Err(error) => return Err(PostError { error, buffer }),
        };
        if buffer.len() as u64 > MAX_MESSAGE {
            return Err(PostError { error: CallError::TooLong.into(), buffer });
        }
        let RemoteMemory { key, offset } = to;
        let buffer = direct.boxes.lend_to_send(buffer);
        match direct.worker.fep_mut().post_write(id, Write { buffer, key, offset, data, context }) {
            Ok(id) => Ok(OperationId(OperationName::Access(id))),
            Err(refused) => Err(direct.refused_send(refused)),
        }
    }

    /// Performs an atomic operation on the memory of the connection's peer, exactly once unless the connection fails.
    /// [`Completion::Atomic`] brings what was there before, if that was asked for. Operations that come to one endpoint of the
    /// peer are atomic to each other, not to what its process does with the memory itself.
    ///
    /// # Errors
    /// [`Error::Atomic`], [`Error::WorkerElsewhere`], [`Error::Refused`].
    pub fn atomic(&mut self, connection: ConnectionId, atomic: Atomic) -> Result<OperationId, Error> {
        let (direct, id) = (self.direct()?, name(connection)?);
        match direct.worker.fep_mut().post_atomic(id, atomic) {
            Ok(id) => Ok(OperationId(OperationName::Access(id))),
            Err(AtomicError::Call(error)) => Err(error.into()),
            Err(error) => Err(error.into()),
        }
    }
}

fn name(connection: ConnectionId) -> Result<fep::ConnectionId, Error> {
    match connection.0 {
        ConnectionName::Direct(id) => Ok(id),
        ConnectionName::Session(_) => Err(CallError::NotOpen.into()),
    }
}

impl Direct {
    /// The application's completion of an access, or of one that a peer announces; `None` of anything else.
    #[cold]
    pub(super) fn convert_access(&mut self, completion: fep::Completion) -> Option<Completion> {
        Some(match completion {
            fep::Completion::Read { id, context, buffer, retransmissions, result } => Completion::Read {
                operation: OperationId(OperationName::Read(id)),
                context,
                buffer: self.boxes.take_received(buffer),
                retransmissions,
                result: result.map_err(|error| error.why.into()),
            },
            fep::Completion::Accessed { id, kind, context, buffer, retransmissions, result } => {
                let operation = OperationId(OperationName::Access(id));
                let result = result.map_err(|AccessError { why, .. }| why.into());
                match kind {
                    AccessKind::Write => Completion::Wrote {
                        operation,
                        context,
                        buffer: self.boxes.take_sent(buffer, &mut self.copies),
                        retransmissions,
                        result,
                    },
                    AccessKind::Atomic => {
                        let fetched = if let Buffer::Heap(bytes) = buffer { bytes } else { Vec::new() };
                        Completion::Atomic { operation, context, fetched, retransmissions, result }
                    }
                }
            }
            fep::Completion::Written(written) => Completion::Written(written),
            _ => return None,
        })
    }
}
