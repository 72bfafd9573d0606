//! Errors from starting DPDK and from making pools and ports.

use std::ffi::CStr;

use thiserror::Error;
use weft_dpdk_sys as sys;

use super::needs;

/// Why DPDK could not be started, or a pool or port not be made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DpdkError {
    /// DPDK runs already, with other options; it can be started only once in a process.
    #[error("DPDK runs already in this process, with other options")]
    AlreadyStarted,
    /// DPDK does not start with huge pages.
    #[error(
        "DPDK does not start with huge pages ({reason}): none are free, or they are not to be used from here; \
         weft doctor says what is there and what to type"
    )]
    HugePages {
        /// DPDK's own error text.
        reason: String,
    },
    /// A name or an argument cannot be handed to C.
    #[error("a name or argument contains a NUL byte")]
    NulByte,
    /// A call failed.
    #[error("{call}: {reason}")]
    Call {
        /// The function of DPDK.
        call: &'static str,
        /// DPDK's own error text.
        reason: String,
    },
    /// The device could not be plugged in.
    #[error("device {device} cannot be added: {reason}")]
    Plug {
        /// Name of the device.
        device: String,
        /// DPDK's own error text.
        reason: String,
    },
    /// The device was plugged in, but does not start.
    #[error("device {device} does not start: {call}: {reason}")]
    Start {
        /// Name of the device.
        device: String,
        /// The function of DPDK that failed.
        call: &'static str,
        /// DPDK's own error text, and advice on how to mend it.
        reason: String,
    },
    /// The device was plugged in but is no Ethernet port.
    #[error("device {device} is no Ethernet port")]
    NoPort {
        /// Name of the device.
        device: String,
    },
    /// Another [`DpdkPort`](super::DpdkPort) uses the device.
    #[error("device {device} is open already")]
    InUse {
        /// Name of the device.
        device: String,
    },
    /// The pool's buffers cannot hold the longest frame, or the driver cannot use their size.
    #[error("device {device} needs buffers of {min} bytes at least{}, and the pool's have {buffer}", at_most(*max))]
    Buffers {
        /// Name of the device.
        device: String,
        /// Longest frame that a buffer holds, bytes.
        buffer: usize,
        /// Least size that the device accepts, bytes.
        min: usize,
        /// Largest size that the device accepts, bytes.
        max: usize,
    },
    /// Buffers of this size and their headroom do not fit the 16-bit length of an mbuf.
    #[error("a buffer of {0} bytes and its headroom exceed 65535")]
    BufferSize(u16),
    /// The device does not support this MTU.
    #[error("device {device}: an MTU of {mtu} was asked for, and {min} to {max} are possible{hint}")]
    Mtu {
        /// Name of the device.
        device: String,
        /// The MTU asked for.
        mtu: u16,
        /// The least that the device supports.
        min: u16,
        /// The largest that the device supports.
        max: u16,
        /// How to make a larger MTU possible, if there is a way, in words that begin with a colon.
        hint: String,
    },
    /// The device does not have as many queues.
    #[error("device {device}: {queues} queues were asked for, and it has {max}")]
    Queues {
        /// Name of the device.
        device: String,
        /// The queues asked for.
        queues: u16,
        /// The largest number that it has for both receiving and sending.
        max: u16,
    },
    /// The device cannot spread packets over queues by addresses.
    #[error(
        "device {device}, driver {driver}, does not choose receive queues by IP addresses: \
         packets of one peer, sprayed over paths, would come to several workers. Use one queue"
    )]
    Spread {
        /// Name of the device.
        device: String,
        /// Name of its driver.
        driver: String,
    },
    /// The link did not come up in time.
    #[error("device {device}: after {waited:?} there is still no {what}")]
    NoLink {
        /// Name of the device.
        device: String,
        /// The time that the caller waited.
        waited: std::time::Duration,
        /// The missing link or peer, in words.
        what: String,
    },
    /// DPDK's device arguments cannot express this path.
    #[error("the path {0:?} has characters that device arguments cannot express")]
    Path(String),
    /// A ring's length is not one that DPDK can make.
    #[error("a ring cannot have {0} places")]
    RingSize(u32),
}

impl DpdkError {
    /// The failure that the calling thread's `rte_errno` describes.
    pub(super) fn from_errno(call: &'static str) -> DpdkError {
        // SAFETY: only reads a variable of the thread.
        let code = unsafe { sys::weft_rte_errno() };
        DpdkError::Call { call, reason: describe(code) }
    }

    /// The error for a failed start. With huge pages the cause is that these are missing, which DPDK's own text, such
    /// as "Permission denied", does not say.
    pub(super) fn start(huge_pages: bool) -> DpdkError {
        match DpdkError::from_errno("rte_eal_init") {
            DpdkError::Call { reason, .. } if huge_pages => DpdkError::HugePages { reason },
            other => other,
        }
    }

    /// The same error with the device it concerns, and with advice.
    pub(super) fn of_device(self, device: &str) -> DpdkError {
        match self {
            DpdkError::Call { call, reason } => {
                let reason = reason + &needs::advice(device);
                DpdkError::Start { device: device.to_owned(), call, reason }
            }
            other => other,
        }
    }

    /// The failure that a negative result describes.
    pub(super) fn from_code(call: &'static str, result: i32) -> DpdkError {
        DpdkError::Call { call, reason: describe(-result) }
    }
}

/// DPDK's text for an error number.
pub(super) fn describe(code: i32) -> String {
    // SAFETY: returns a C string of this thread or of the program, valid until the thread's next
    // call; it is copied at once.
    unsafe { CStr::from_ptr(sys::rte_strerror(code)) }.to_string_lossy().into_owned()
}

fn at_most(max: usize) -> String {
    if max == usize::MAX { String::new() } else { format!(" and {max} at most") }
}
