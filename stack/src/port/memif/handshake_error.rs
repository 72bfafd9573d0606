//! Why a handshake fails.
#![forbid(unsafe_code)]

use super::config::MAX_LOG2_RING;
use super::link_layout::{MAX_REGIONS, PlaceError};
use super::message::{MESSAGE, VERSION};

/// Why there is no link with a peer. The text is short enough for the 95 bytes of a DISCONNECT, where that is possible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error("a message of {0} bytes: expected {MESSAGE}")]
    Length(usize),
    #[error("a message longer than {MESSAGE} bytes")]
    TooLong,
    #[error("a message of type {0}: expected 1 to 8")]
    Type(u16),
    #[error("{0} without a descriptor")]
    NoFile(&'static str),
    #[error("{0} with a descriptor too many")]
    Files(&'static str),
    #[error("{came} where {expected} was expected")]
    Order { came: &'static str, expected: &'static str },
    #[error("version {lowest:#06x} to {highest:#06x}: expected {VERSION:#06x}")]
    Version { lowest: u16, highest: u16 },
    #[error("no interface {0} here")]
    Id(u32),
    #[error("mode {0}: expected 0, Ethernet")]
    Mode(u8),
    #[error("a secret is required")]
    NoSecret,
    #[error("another secret")]
    Secret,
    #[error("interface {0} has a client already")]
    Taken(u32),
    #[error("region {came}: expected {expected}")]
    RegionIndex { came: u16, expected: usize },
    #[error("more than {MAX_REGIONS} regions")]
    Regions,
    #[error("a region of {0} bytes: expected 1 to 4294967295")]
    RegionSize(u64),
    #[error("a region that cannot be mapped: {0}")]
    Memory(String),
    #[error("ring {0}: expected one ring each way, number 0")]
    RingIndex(u16),
    #[error("a second ring in one direction")]
    RingTwice,
    #[error("ring flags {0:#x}: expected 0 or 1")]
    RingFlags(u16),
    #[error("a private header of {0} bytes in each descriptor: expected none")]
    PrivateHeader(u16),
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error("a ring with a descriptor that is no eventfd: {0}")]
    Event(String),
    #[error("no ring {0}")]
    NoRing(&'static str),
    #[error("rings of 2^{0} slots at most: expected 2^1 to 2^{MAX_LOG2_RING}")]
    Slots(u8),
    #[error("{needed} regions are needed, {allowed} allowed")]
    TooFewRegions { needed: usize, allowed: usize },
    #[error("no memory to offer: {0}")]
    Offer(String),
    #[error("no answer in time")]
    Silence,
}
