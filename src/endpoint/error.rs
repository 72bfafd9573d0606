//! Errors of endpoints, the same wherever the worker runs.

use std::io;
use std::time::Duration;

use weft_stack::fep::{
    AtomicError, CallError, ConfigError, ExposeRefusal, Failure, ReadFault, ReceiveError, Resource, SendError,
};
use weft_stack::region::RegionError;
use weft_stack::worker::session::{ClientError, JoinError, OpenError};
use weft_stack::worker::{BookError, PinError, WorkerError};

use crate::port::{PortError, SpecError};

/// Why a call failed, or why an operation or a connection did not end as it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The endpoint refused the call. Where the worker runs in another thread or process it may say so later, in the
    /// completion.
    #[error(transparent)]
    Refused(#[from] CallError),
    /// A message was not delivered.
    #[error(transparent)]
    Send(#[from] SendError),
    /// A receive ended without a whole message.
    #[error(transparent)]
    Receive(#[from] ReceiveError),
    /// A read of, a write to or an atomic operation on a peer's memory failed.
    #[error(transparent)]
    Access(#[from] ReadFault),
    /// An atomic operation was not posted.
    #[error(transparent)]
    Atomic(#[from] AtomicError),
    /// Memory was not exposed.
    #[error(transparent)]
    Exposed(#[from] ExposeRefusal),
    /// The worker runs in another thread or process, which can neither expose memory of this one nor access that of peers.
    #[error("remote memory needs an endpoint whose worker runs in the caller's thread")]
    WorkerElsewhere,
    /// A connection failed.
    #[error(transparent)]
    Connection(#[from] Failure),
    /// The ring to the worker is full: poll, then try again.
    #[error("the ring of commands to the worker is full")]
    RingFull,
    /// The memory for messages has no room: poll, then try again.
    #[error("the endpoint's memory for messages has no room for {0} bytes")]
    MemoryFull(u32),
    /// The message is longer than all the memory for messages, whose size [`Builder::memory`](crate::Builder::memory) sets.
    #[error("{len} bytes do not fit into the endpoint's memory for messages, which has {size}")]
    BeyondMemory {
        /// The length of the message, bytes.
        len: u32,
        /// The size of the memory, bytes.
        size: usize,
    },
    /// More bytes than [`Endpoint::send_copy`](crate::Endpoint::send_copy) copies.
    #[error("{len} bytes are too many to be copied at the call; at most {most} are")]
    TooLongToCopy {
        /// The length of the message, bytes.
        len: usize,
        /// The longest that is copied, bytes.
        most: usize,
    },
    /// A piece of registered memory that is not this endpoint's.
    #[error("the memory is not registered with this endpoint")]
    ForeignMemory,
    /// The operation has completed.
    #[error("the operation has completed")]
    Completed,
    /// The server, or the thread that the worker ran on, has ended.
    #[error("the worker is gone: its process or thread has ended")]
    Gone,
    /// The worker has not answered a request that it answers at once.
    #[error("the worker has not answered for {0:?}")]
    NoReply(Duration),
    /// Connections are open, or packets still arrive, after all the time that there was to shut down.
    #[error("not shut down after {0:?}")]
    Busy(Duration),
    /// The server has written nonsense into the memory that it shares with this process.
    #[error("the worker wrote nonsense: {0}")]
    Broken(ClientError),
    /// The system refused to wait.
    #[error("the system cannot wait for the endpoint: {0}")]
    System(io::ErrorKind),
}

impl Error {
    /// Whether the call would succeed later, once other operations have completed: poll, then try again.
    pub fn is_back_pressure(&self) -> bool {
        match self {
            Error::RingFull | Error::MemoryFull(_) => true,
            // Entries of the address book come free when others leave or close connections, not by what this endpoint completes.
            Error::Refused(CallError::Limit { what, .. }) => {
                !matches!(what, Resource::Peers | Resource::SessionPeers)
            }
            _ => false,
        }
    }
}

impl From<ClientError> for Error {
    fn from(error: ClientError) -> Error {
        match error {
            ClientError::Full => Error::RingFull,
            ClientError::Exhausted { what, limit } => Error::Refused(CallError::Limit { what, limit }),
            ClientError::Stale => Error::Refused(CallError::NotOpen),
            ClientError::Gone => Error::Gone,
            ClientError::Memory(_) => Error::ForeignMemory,
            ClientError::Wait => Error::System(io::ErrorKind::Other),
            other => Error::Broken(other),
        }
    }
}

impl From<rustix::io::Errno> for Error {
    fn from(error: rustix::io::Errno) -> Error {
        Error::System(io::Error::from(error).kind())
    }
}

/// A buffer that was not posted, and why. The endpoint has not kept it.
///
/// ```
/// use std::time::Duration;
/// use weft::{ConnectionId, Endpoint, Error, SendBuffer};
///
/// /// Posts a message, if necessary after others have completed.
/// fn post(endpoint: &mut Endpoint, connection: ConnectionId, message: Vec<u8>) -> Result<(), Error> {
///     let mut buffer = SendBuffer::Vec(message);
///     while let Err(refused) = endpoint.send(connection, buffer) {
///         if !refused.error.is_back_pressure() {
///             return Err(refused.error);
///         }
///         buffer = refused.buffer;
///         let completion = endpoint.wait(Duration::from_secs(1))?;
///         println!("{completion:?}"); // a program does with it what it does with any other
///     }
///     Ok(())
/// }
/// ```
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct PostError<B> {
    /// The cause.
    pub error: Error,
    /// The buffer, as it was given.
    pub buffer: B,
}

/// Why there is no endpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The text names no port, or no peer.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The option has no effect on an endpoint of this kind.
    #[error("{option} has no effect on {spec}: {why}")]
    NoEffect {
        /// The builder's method.
        option: &'static str,
        /// The endpoint's name.
        spec: String,
        /// The reason.
        why: &'static str,
    },
    /// There is no such congestion control, or it has no such parameter.
    #[error("congestion control: {0}")]
    CongestionControl(String),
    /// There is no such load balancer.
    #[error("load balancer: {0}")]
    LoadBalancer(String),
    /// The port does not carry packets of this payload.
    #[error("the port's MTU leaves {longest} bytes, and packets shall have {payload}")]
    Payload {
        /// The payload that was asked for, bytes.
        payload: u32,
        /// The longest payload that the port carries, bytes.
        longest: u32,
    },
    /// The port cannot be opened, or cannot reach a peer.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The configuration cannot work.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A peer, or the endpoint's own address, cannot be entered into the address book.
    #[error(transparent)]
    Book(#[from] BookError),
    /// The worker refuses a peer, or is gone.
    #[error(transparent)]
    Peer(Error),
    /// The parts do not fit each other.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// The endpoint refuses the process number.
    #[error(transparent)]
    Call(#[from] CallError),
    /// There is no room for a session.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The server cannot be joined.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// The thread cannot be pinned to its core.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// There is no memory for messages.
    #[error(transparent)]
    Memory(#[from] RegionError),
    /// The system has no thread or descriptor left.
    #[error("{what}: {error}")]
    System {
        /// The request that the system refused.
        what: &'static str,
        /// Its answer.
        error: io::Error,
    },
}

/// Why a peer is not known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PeerError {
    /// The text names no peer.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The port cannot reach it.
    #[error(transparent)]
    Port(#[from] PortError),
    /// It cannot be entered into the address book.
    #[error(transparent)]
    Book(#[from] BookError),
    /// The worker refuses it, or is gone.
    #[error(transparent)]
    Endpoint(#[from] Error),
}

impl From<std::convert::Infallible> for PeerError {
    fn from(never: std::convert::Infallible) -> PeerError {
        match never {}
    }
}
