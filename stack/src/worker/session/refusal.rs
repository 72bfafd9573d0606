//! A refused command's [`CallError`] as a code and words 1 to 4 of a report.
//!
//! | code | error | word 1 | word 2 | words 3, 4 |
//! |---|---|---|---|---|
//! | 0 | `NotOpen` | | | |
//! | 1 | `TooLong` | | | |
//! | 2 | `TooLate` | | | |
//! | 3 | `Malformed` | | | |
//! | 4 | `OutsideMemory` | | | |
//! | 5 | `Limit` | place in `Resource::ALL` | limit | |
//! | 6 | `ProcessOpen` | process | | |
//! | 7 | `ProcessNotOpen` | process | | |
//! | 8 | `NoSuchProcess` | process | | |
//! | 9 | `NoSuchNumber` | number | count | |
//! | 10 | `NumberInUse` | number | | |
//! | 11 | `NumberNotInUse` | number | | |
//! | 12 | `Peer` | place in `PeerRefusal::ALL` | | |
//! | 13 | `Unreachable` | bits 0–31 peer; 32–39 1 resolving, 2 no answer, 3 unknown; 40–47 IP version of the hop | how often it was asked, if resolving | IP address of the hop, low word first |
//! | 14 | `ReadOnly` | | | |
//! | 15 | `NotDivisible` | | | |
//! | 16 | `NotClaimed` | | | |
//! | 17 | `DatagramTooLong` | most bytes | | |
//!
//! Everything else is 0. [`decode`] ignores bits that mean nothing: its caller compares what it gets with
//! [`encode`].

use core::net::IpAddr;

use super::Slot;
use super::command::DescriptorError;
use crate::fep::{CallError, PeerRefusal, Resource, Unreachable};
use crate::packet::Addr;

const RESOLVING: u8 = 1;
const NO_ANSWER: u8 = 2;
const UNKNOWN: u8 = 3;

/// The code of `error`, and a slot with its words; word 0 is 0.
pub(super) fn encode(error: CallError) -> (u8, Slot) {
    let (code, word1, word2) = match error {
        CallError::NotOpen => (0, 0, 0),
        CallError::TooLong => (1, 0, 0),
        CallError::TooLate => (2, 0, 0),
        CallError::Malformed => (3, 0, 0),
        CallError::OutsideMemory => (4, 0, 0),
        CallError::Limit { what, limit } => (5, place(&Resource::ALL, what), limit as u64),
        CallError::ProcessOpen(process) => (6, process.into(), 0),
        CallError::ProcessNotOpen(process) => (7, process.into(), 0),
        CallError::NoSuchProcess(process) => (8, process.into(), 0),
        CallError::NoSuchNumber { number, count } => (9, number.into(), count.into()),
        CallError::NumberInUse(number) => (10, number.into(), 0),
        CallError::NumberNotInUse(number) => (11, number.into(), 0),
        CallError::Peer(why) => (12, place(&PeerRefusal::ALL, why), 0),
        CallError::ReadOnly => (14, 0, 0),
        CallError::NotDivisible => (15, 0, 0),
        CallError::NotClaimed => (16, 0, 0),
        CallError::DatagramTooLong { most } => (17, most.into(), 0),
        CallError::Unreachable { peer, why } => return (13, unreachable_words(peer, why)),
    };
    (code, [0, word1, word2, 0, 0, 0, 0, 0])
}

/// The error that `code` and the words of `slot` stand for.
///
/// # Errors
/// They stand for none.
pub(super) fn decode(code: u8, slot: &Slot) -> Result<CallError, DescriptorError> {
    let number = slot[1] as u32;
    let process = slot[1] as u16;
    Ok(match code {
        0 => CallError::NotOpen,
        1 => CallError::TooLong,
        2 => CallError::TooLate,
        3 => CallError::Malformed,
        4 => CallError::OutsideMemory,
        5 => CallError::Limit { what: at(&Resource::ALL, "a resource", slot[1])?, limit: slot[2] as usize },
        6 => CallError::ProcessOpen(process),
        7 => CallError::ProcessNotOpen(process),
        8 => CallError::NoSuchProcess(process),
        9 => CallError::NoSuchNumber { number, count: slot[2] as u32 },
        10 => CallError::NumberInUse(number),
        11 => CallError::NumberNotInUse(number),
        12 => CallError::Peer(at(&PeerRefusal::ALL, "a refusal of a peer", slot[1])?),
        13 => unreachable(slot)?,
        14 => CallError::ReadOnly,
        15 => CallError::NotDivisible,
        16 => CallError::NotClaimed,
        17 => CallError::DatagramTooLong { most: number },
        code => return Err(DescriptorError::Value("the code of a refusal", code.into())),
    })
}

fn place<T: PartialEq>(all: &[T], value: T) -> u64 {
    all.iter().position(|other| *other == value).unwrap_or(all.len()) as u64
}

fn at<T: Copy>(all: &[T], what: &'static str, place: u64) -> Result<T, DescriptorError> {
    let found = usize::try_from(place).ok().and_then(|place| all.get(place));
    found.copied().ok_or(DescriptorError::Value(what, place))
}

fn unreachable_words(peer: Addr, why: Unreachable) -> Slot {
    let (kind, hop, asked) = match why {
        Unreachable::Resolving { hop, asked } => (RESOLVING, Some(hop), asked),
        Unreachable::NoAnswer { hop } => (NO_ANSWER, Some(hop), 0),
        Unreachable::Unknown(_) => (UNKNOWN, None, 0),
    };
    let (version, low, high) = hop.map_or((0, 0, 0), ip_words);
    let word1 = u64::from(peer.0) | u64::from(kind) << 32 | u64::from(version) << 40;
    [0, word1, asked.into(), low, high, 0, 0, 0]
}

fn unreachable(slot: &Slot) -> Result<CallError, DescriptorError> {
    let peer = Addr(slot[1] as u32);
    let [_, _, _, _, kind, version, ..] = slot[1].to_le_bytes();
    let hop = || ip(version, slot[3], slot[4]);
    let why = match kind {
        RESOLVING => Unreachable::Resolving { hop: hop()?, asked: slot[2] as u32 },
        NO_ANSWER => Unreachable::NoAnswer { hop: hop()? },
        UNKNOWN => Unreachable::Unknown(peer),
        _ => return Err(DescriptorError::Value("the reason why a peer is unreachable", kind.into())),
    };
    Ok(CallError::Unreachable { peer, why })
}

/// The version of an IP address, and the address as a number of two words, low word first.
pub(super) fn ip_words(ip: IpAddr) -> (u8, u64, u64) {
    match ip {
        IpAddr::V4(ip) => (4, ip.to_bits().into(), 0),
        IpAddr::V6(ip) => (6, ip.to_bits() as u64, (ip.to_bits() >> 64) as u64),
    }
}

/// The IP address that [`ip_words`] made these of. Of an IPv4 address, bits beyond the lowest 32 are ignored.
///
/// # Errors
/// There is no such version.
pub(super) fn ip(version: u8, low: u64, high: u64) -> Result<IpAddr, DescriptorError> {
    match version {
        4 => Ok(IpAddr::from((low as u32).to_be_bytes())),
        6 => Ok(IpAddr::from((u128::from(low) | u128::from(high) << 64).to_be_bytes())),
        _ => Err(DescriptorError::Value("an IP version", version.into())),
    }
}
