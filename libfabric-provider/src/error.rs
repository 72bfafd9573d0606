//! libfabric's error numbers.

use std::sync::{Mutex, MutexGuard};

use weft::core::wire::ses::ReturnCode;
use weft::{CallError, Error, Failure, ReceiveError, SendError};

use crate::sys;

/// Why a call fails, or how an operation ended: one of libfabric's error numbers, positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FiError(i32);

impl FiError {
    pub(crate) const AGAIN: FiError = FiError(sys::FI_EAGAIN);
    pub(crate) const BUSY: FiError = FiError(sys::FI_EBUSY);
    pub(crate) const CANCELED: FiError = FiError(sys::FI_ECANCELED);
    pub(crate) const INVALID: FiError = FiError(sys::FI_EINVAL);
    pub(crate) const NO_DATA: FiError = FiError(sys::FI_ENODATA);
    pub(crate) const NO_ENTRY: FiError = FiError(sys::FI_ENOENT);
    pub(crate) const NO_OPTION: FiError = FiError(sys::FI_ENOPROTOOPT);
    pub(crate) const NO_MEMORY: FiError = FiError(sys::FI_ENOMEM);
    pub(crate) const NOT_THERE: FiError = FiError(sys::FI_ENOSYS);
    pub(crate) const TOO_LONG: FiError = FiError(sys::FI_EMSGSIZE);
    pub(crate) const BAD_FLAGS: FiError = FiError(sys::FI_EBADFLAGS as i32);
    pub(crate) const BAD_STATE: FiError = FiError(sys::FI_EOPBADSTATE as i32);
    pub(crate) const ERROR_ENTRY: FiError = FiError(sys::FI_EAVAIL as i32);
    pub(crate) const NO_AV: FiError = FiError(sys::FI_ENOAV as i32);
    pub(crate) const NO_CQ: FiError = FiError(sys::FI_ENOCQ as i32);
    pub(crate) const OTHER: FiError = FiError(sys::FI_EOTHER as i32);
    pub(crate) const TOO_SMALL: FiError = FiError(sys::FI_ETOOSMALL as i32);
    const TRUNCATED: FiError = FiError(sys::FI_ETRUNC as i32);

    /// As completions have it: positive.
    pub(crate) fn number(self) -> i32 {
        self.0
    }
}

impl From<&Error> for FiError {
    fn from(error: &Error) -> FiError {
        FiError(match error {
            error if error.is_back_pressure() => sys::FI_EAGAIN,
            Error::Refused(CallError::TooLong) => sys::FI_EMSGSIZE,
            Error::Refused(CallError::NotOpen) => sys::FI_ENOTCONN,
            Error::Refused(CallError::Unreachable { .. }) => sys::FI_EHOSTUNREACH,
            Error::Send(SendError::Cancelled) | Error::Receive(ReceiveError::Cancelled) => {
                return FiError::CANCELED;
            }
            Error::Send(SendError::Answered(ReturnCode::CANCELLED)) => return FiError::CANCELED,
            Error::Send(SendError::Answered(ReturnCode::BAD_PID)) => sys::FI_ECONNREFUSED,
            Error::Send(SendError::Answered(_)) => sys::FI_EREMOTEIO,
            Error::Send(SendError::Failed(failure)) | Error::Connection(failure) => of_failure(failure),
            Error::Receive(ReceiveError::Truncated { .. }) => return FiError::TRUNCATED,
            Error::Receive(ReceiveError::PeerLost) => sys::FI_ECONNABORTED,
            Error::Gone => sys::FI_ESHUTDOWN,
            _ => sys::FI_EIO,
        })
    }
}

fn of_failure(failure: &Failure) -> i32 {
    match failure {
        Failure::Refused { .. } => sys::FI_ECONNREFUSED,
        Failure::ClosedByPeer { .. } => sys::FI_ECONNABORTED,
        _ => sys::FI_ETIMEDOUT,
    }
}

/// Locks; fails if a call has panicked while it held the lock, since what it guards may be half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> Result<MutexGuard<'_, T>, FiError> {
    mutex.lock().map_err(|_| FiError::OTHER)
}
