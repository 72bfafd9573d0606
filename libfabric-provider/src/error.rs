//! libfabric's error numbers.

use std::io;
use std::sync::{Mutex, MutexGuard};

use rustix::io::Errno;
use weft::core::port::udp::UdpError;
use weft::core::region::RegionError;
use weft::core::wire::ses::ReturnCode;
use weft::core::worker::BookError;
use weft::core::worker::session::JoinError;
use weft::port::PortError;
use weft::{
    BuildError, CallError, Error, ExposeRefusal, Failure, PeerError, ReadFault, ReceiveError, SendError,
};

use crate::sys;

/// Why a call fails, or how an operation ended: one of libfabric's error numbers, positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FiError(i32);

impl FiError {
    pub(crate) const AGAIN: FiError = FiError(sys::FI_EAGAIN);
    pub(crate) const BUSY: FiError = FiError(sys::FI_EBUSY);
    pub(crate) const CANCELED: FiError = FiError(sys::FI_ECANCELED);
    pub(crate) const INVALID: FiError = FiError(sys::FI_EINVAL);
    pub(crate) const NO_ADDRESS: FiError = FiError(sys::FI_EADDRNOTAVAIL);
    pub(crate) const NO_DATA: FiError = FiError(sys::FI_ENODATA);
    pub(crate) const NO_ENTRY: FiError = FiError(sys::FI_ENOENT);
    pub(crate) const NO_MESSAGE: FiError = FiError(sys::FI_ENOMSG);
    pub(crate) const NO_KEY: FiError = FiError(sys::FI_ENOKEY as i32);
    pub(crate) const NO_OPERATION: FiError = FiError(sys::FI_EOPNOTSUPP);
    pub(crate) const NO_OPTION: FiError = FiError(sys::FI_ENOPROTOOPT);
    pub(crate) const NO_MEMORY: FiError = FiError(sys::FI_ENOMEM);
    pub(crate) const NOT_THERE: FiError = FiError(sys::FI_ENOSYS);
    pub(crate) const TIMED_OUT: FiError = FiError(sys::FI_ETIMEDOUT);
    pub(crate) const TOO_LONG: FiError = FiError(sys::FI_EMSGSIZE);
    pub(crate) const BAD_FLAGS: FiError = FiError(sys::FI_EBADFLAGS as i32);
    pub(crate) const BAD_STATE: FiError = FiError(sys::FI_EOPBADSTATE as i32);
    pub(crate) const ERROR_ENTRY: FiError = FiError(sys::FI_EAVAIL as i32);
    pub(crate) const NO_AV: FiError = FiError(sys::FI_ENOAV as i32);
    pub(crate) const NO_EQ: FiError = FiError(sys::FI_ENOEQ as i32);
    pub(crate) const NO_CQ: FiError = FiError(sys::FI_ENOCQ as i32);
    pub(crate) const OTHER: FiError = FiError(sys::FI_EOTHER as i32);
    pub(crate) const TOO_SMALL: FiError = FiError(sys::FI_ETOOSMALL as i32);
    pub(crate) const TRUNCATED: FiError = FiError(sys::FI_ETRUNC as i32);
    pub(crate) const ABORTED: FiError = FiError(sys::FI_ECONNABORTED);
    pub(crate) const REFUSED: FiError = FiError(sys::FI_ECONNREFUSED);
    pub(crate) const GONE: FiError = FiError(sys::FI_ESHUTDOWN);

    /// Whether an operation failed because there is no such peer any more.
    pub(crate) fn says_that_the_peer_is_gone(self) -> bool {
        [sys::FI_ETIMEDOUT, sys::FI_ECONNREFUSED, sys::FI_EHOSTUNREACH].contains(&self.0)
    }

    /// As completions have it: positive.
    pub(crate) fn number(self) -> i32 {
        self.0
    }
}

impl From<&Error> for FiError {
    fn from(error: &Error) -> FiError {
        FiError(match error {
            error if error.is_back_pressure() => sys::FI_EAGAIN,
            Error::Refused(CallError::TooLong | CallError::DatagramTooLong { .. })
            | Error::BeyondMemory { .. } => sys::FI_EMSGSIZE,
            Error::Refused(CallError::NotOpen) => sys::FI_ENOTCONN,
            // Its sender was lost in the middle of it.
            Error::Refused(CallError::NotClaimed) => sys::FI_ECONNABORTED,
            Error::Refused(CallError::Unreachable { .. }) => sys::FI_EHOSTUNREACH,
            Error::Send(SendError::Cancelled) | Error::Receive(ReceiveError::Cancelled) => {
                return FiError::CANCELED;
            }
            Error::Send(SendError::Answered(ReturnCode::CANCELLED)) => return FiError::CANCELED,
            Error::Send(SendError::Answered(ReturnCode::BAD_PID)) => sys::FI_ECONNREFUSED,
            Error::Send(SendError::Answered(ReturnCode::BAD_JOB_ID)) => sys::FI_EACCES,
            Error::Send(SendError::Answered(_)) => sys::FI_EREMOTEIO,
            Error::Send(SendError::Failed(failure)) | Error::Connection(failure) => of_failure(failure),
            Error::Receive(ReceiveError::Truncated { .. }) => return FiError::TRUNCATED,
            Error::Receive(ReceiveError::PeerLost) => sys::FI_ECONNABORTED,
            Error::Access(ReadFault::Cancelled | ReadFault::Answered(ReturnCode::CANCELLED)) => {
                return FiError::CANCELED;
            }
            Error::Access(ReadFault::Answered(code)) => match *code {
                ReturnCode::BAD_MKEY => sys::FI_EKEYREJECTED,
                ReturnCode::PERM_VIOLATION | ReturnCode::BAD_JOB_ID => sys::FI_EACCES,
                ReturnCode::BAD_PID => sys::FI_ECONNREFUSED,
                ReturnCode::AMO_UNSUPPORTED_OP | ReturnCode::AMO_UNSUPPORTED_DT => sys::FI_EOPNOTSUPP,
                _ => sys::FI_EREMOTEIO,
            },
            Error::Access(ReadFault::Failed(failure)) => of_failure(failure),
            Error::Atomic(_) => sys::FI_EOPNOTSUPP,
            Error::Exposed(ExposeRefusal::KeyInUse(_)) => return FiError::NO_KEY,
            Error::Exposed(_) => sys::FI_EINVAL,
            Error::WorkerElsewhere => sys::FI_ENOSYS,
            Error::Gone => sys::FI_ESHUTDOWN,
            _ => sys::FI_EIO,
        })
    }
}

/// The system's own number: libfabric's numbers below 256 are those.
impl From<Errno> for FiError {
    fn from(errno: Errno) -> FiError {
        FiError(errno.raw_os_error())
    }
}

/// The system's own number; -FI_EIO if the error is not the system's.
impl From<&io::Error> for FiError {
    fn from(error: &io::Error) -> FiError {
        FiError(error.raw_os_error().unwrap_or(sys::FI_EIO))
    }
}

/// The system's reason where there is one; -FI_EINVAL for settings that make no sense.
impl From<&BuildError> for FiError {
    fn from(error: &BuildError) -> FiError {
        match error {
            BuildError::System { error, .. } => FiError::from(error),
            BuildError::Port(error) => of_port(error),
            BuildError::Book(error) => of_book(error),
            BuildError::Peer(error) => FiError::from(error),
            BuildError::Memory(RegionError::Memory(_)) => FiError::NO_MEMORY,
            BuildError::Join(error) => of_join(error),
            _ => FiError::INVALID,
        }
    }
}

impl From<&PeerError> for FiError {
    fn from(error: &PeerError) -> FiError {
        match error {
            PeerError::Port(error) => of_port(error),
            PeerError::Book(error) => of_book(error),
            PeerError::Endpoint(error) => FiError::from(error),
            _ => FiError::INVALID,
        }
    }
}

fn of_join(error: &JoinError) -> FiError {
    match error {
        JoinError::System(_, error) => FiError::from(error),
        JoinError::Refused(..) => FiError(sys::FI_ECONNREFUSED),
        JoinError::Stranger(..) => FiError(sys::FI_EACCES),
        _ => FiError::INVALID,
    }
}

fn of_port(error: &PortError) -> FiError {
    let PortError::Udp { error, .. } = error else { return FiError::INVALID };
    match error {
        UdpError::Bind { error, .. } | UdpError::Option { error, .. } | UdpError::Route { error, .. } => {
            FiError::from(error)
        }
        UdpError::Address(_) => FiError::NO_ADDRESS,
        UdpError::NoPorts { .. } => FiError(sys::FI_EADDRINUSE),
        UdpError::TooManyPeers { .. } => FiError::NO_MEMORY,
        _ => FiError::INVALID,
    }
}

fn of_book(error: &BookError) -> FiError {
    match error {
        BookError::Full { .. } | BookError::Beyond { .. } => FiError::NO_MEMORY,
        _ => FiError::INVALID,
    }
}

fn of_failure(failure: &Failure) -> i32 {
    match failure {
        Failure::Refused { .. } => sys::FI_ECONNREFUSED,
        Failure::ClosedByPeer { .. } | Failure::FalseAck { .. } => sys::FI_ECONNABORTED,
        _ => sys::FI_ETIMEDOUT,
    }
}

/// Locks; fails if a call has panicked while it held the lock, since what it guards may be half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> Result<MutexGuard<'_, T>, FiError> {
    mutex.lock().map_err(|_| FiError::OTHER)
}
