//! Why a command was refused, as a code and seven words.
//!
//! | word | bits | what, if there is no way to the peer; else 0 |
//! |---|---|---|
//! | 1 | 0–31 | peer |
//! | | 32–39 | 1 its Ethernet address is being asked for, 2 nobody answered, 3 it is not in the address book |
//! | | 40–47 | IP version of who is asked for; 0 if nobody is |
//! | 2 | 0–31 | how often it was asked, if it still is |
//! | 3, 4 | | its IP address as a number, low word first |

use core::fmt;
use core::net::IpAddr;

use super::Slot;
use super::command::DescriptorError;
use crate::fep::CallError;
use crate::packet::Addr;
use crate::worker::neighbours::NoWay;

/// Why a command was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The descriptor makes no sense.
    #[error("the descriptor makes no sense")]
    Descriptor,
    /// The number of an operation or connection is too large.
    #[error("the number is not one of the session's")]
    Number,
    /// The number is in use, or not in use where it has to be.
    #[error("the number is in use, or is not")]
    InUse,
    /// The memory does not lie in a region of the session.
    #[error("the memory does not lie in a region of the session")]
    Memory,
    /// The connection is closed or closing.
    #[error("the connection is not open")]
    NotOpen,
    /// The endpoint's own limits.
    #[error("a limit of the endpoint is reached")]
    Limit,
    /// Too late to cancel.
    #[error("too late")]
    TooLate,
    /// There is no way to the peer: of a connection, and of the messages that waited on it. Who has not
    /// answered is asked again, so that it makes sense to try later.
    #[error("{}", NoWayTo(*.peer, *.why))]
    NoWay {
        /// To whom.
        peer: Addr,
        /// Why not; it names the same peer, if any.
        why: NoWay,
    },
}

/// The text of [`Reason::NoWay`], which names the peer once.
struct NoWayTo(Addr, NoWay);

impl fmt::Display for NoWayTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            NoWay::Unknown(_) => self.1.fmt(f),
            why => write!(f, "endpoint {}: {why}", self.0.0),
        }
    }
}

/// Those that are a code alone.
pub(super) const PLAIN: [Reason; 7] = [
    Reason::Descriptor,
    Reason::Number,
    Reason::InUse,
    Reason::Memory,
    Reason::NotOpen,
    Reason::Limit,
    Reason::TooLate,
];
const NO_WAY: u8 = PLAIN.len() as u8;

const RESOLVING: u8 = 1;
const UNREACHABLE: u8 = 2;
const UNKNOWN: u8 = 3;

impl Reason {
    pub(super) fn code(self) -> u8 {
        PLAIN.iter().position(|plain| *plain == self).map_or(NO_WAY, |code| code as u8)
    }

    /// A slot with the words that say more than the code; the first one is 0.
    pub(super) fn words(self) -> Slot {
        let Reason::NoWay { peer, why } = self else { return [0; 8] };
        let (kind, hop, asked) = match why {
            NoWay::Resolving { hop, asked } => (RESOLVING, Some(hop), asked),
            NoWay::Unreachable { hop } => (UNREACHABLE, Some(hop), 0),
            NoWay::Unknown(_) => (UNKNOWN, None, 0),
        };
        let (version, address) = match hop {
            None => (0, 0),
            Some(IpAddr::V4(ip)) => (4, u128::from(ip.to_bits())),
            Some(IpAddr::V6(ip)) => (6, ip.to_bits()),
        };
        let word1 = u64::from(peer.0) | u64::from(kind) << 32 | version << 40;
        [0, word1, asked.into(), address as u64, (address >> 64) as u64, 0, 0, 0]
    }

    /// The reason that `code` and the words of `slot` stand for, if there is one. Bits that mean nothing may be set:
    /// [`Reason::words`] differs from them then.
    ///
    /// # Errors
    /// They stand for none.
    pub(super) fn decode(code: u8, slot: &Slot) -> Result<Reason, DescriptorError> {
        if code != NO_WAY {
            let plain = PLAIN.get(usize::from(code)).copied();
            return plain.ok_or(DescriptorError::Value("a reason", code.into()));
        }
        let peer = Addr(slot[1] as u32);
        let [_, _, _, _, kind, version, ..] = slot[1].to_le_bytes();
        let hop = || match version {
            4 => Ok(IpAddr::from((slot[3] as u32).to_be_bytes())),
            6 => Ok(IpAddr::from((u128::from(slot[3]) | u128::from(slot[4]) << 64).to_be_bytes())),
            _ => Err(DescriptorError::Value("an IP version", version.into())),
        };
        let why = match kind {
            RESOLVING => NoWay::Resolving { hop: hop()?, asked: slot[2] as u32 },
            UNREACHABLE => NoWay::Unreachable { hop: hop()? },
            UNKNOWN => NoWay::Unknown(peer),
            _ => return Err(DescriptorError::Value("a lack of a way", kind.into())),
        };
        Ok(Reason::NoWay { peer, why })
    }
}

impl From<CallError> for Reason {
    fn from(error: CallError) -> Reason {
        match error {
            CallError::NotOpen => Reason::NotOpen,
            CallError::Limit { .. } => Reason::Limit,
            CallError::TooLong => Reason::Memory,
            CallError::TooLate => Reason::TooLate,
            CallError::Process(_) => Reason::Number,
        }
    }
}
