//! Commands: what an application asks for, as eight words.
//!
//! | word | bits | what |
//! |---|---|---|
//! | 0 | 0–7 | 1 connect, 2 send, 3 receive, 4 cancel, 5 close, 6 abort |
//! | | 8–15 | flags: bit 0 tagged; bit 1 from one sender only; bit 2 ordered (ROD) |
//! | | 16–23 | connect: traffic class |
//! | | 32–63 | the operation (send, receive, cancel) or the connection (connect, close, abort) |
//! | 1 | 0–31 | connect: peer; receive: sender; send: connection |
//! | | 32–63 | connect: process; send and receive: region |
//! | 2 | | send and receive: offset in the region |
//! | 3 | 0–31 | send and receive: length |
//! | 4 | | tag |
//! | 5 | | send: header data; receive: bits of the tag that do not matter |
//!
//! Everything else is 0, and refused if it is not.

use super::{Slot, bits};
use crate::fep::{ConnectOptions, MAX_PROCESS, TrafficClass};
use crate::packet::Addr;
use crate::ses::Matching;
use crate::wire::pds::DeliveryMode;

/// What an application asks for. It chooses the numbers of connections and operations, each less than its
/// configuration says, and uses none again before it has been told that it is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Opens a connection.
    Connect {
        /// Its number.
        connection: u32,
        /// To whom.
        peer: Addr,
        /// How.
        options: ConnectOptions,
    },
    /// Posts a message.
    Send {
        /// The number of this operation.
        operation: u32,
        /// On which connection.
        connection: u32,
        /// Its bytes.
        extent: Extent,
        /// Its tag.
        tag: Option<u64>,
        /// 64 bits for the receiver's report.
        header_data: u64,
    },
    /// Posts a receive.
    Receive {
        /// The number of this operation.
        operation: u32,
        /// Where the message goes.
        extent: Extent,
        /// Takes messages of this sender only.
        from: Option<Addr>,
        /// Takes these messages only.
        matching: Matching,
    },
    /// Takes a message of which nothing has been sent, or a receive that nothing has met, back.
    Cancel {
        /// Which.
        operation: u32,
    },
    /// Closes a connection once its messages are sent.
    Close {
        /// Which.
        connection: u32,
    },
    /// Closes a connection without sending what waits.
    Abort {
        /// Which.
        connection: u32,
    },
}

/// Memory of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Extent {
    /// The region; 0 is the one that the session came with.
    pub region: u32,
    /// Where it begins in the region, bytes.
    pub offset: u64,
    /// Its length, bytes.
    pub len: u32,
}

/// A command that is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DescriptorError {
    /// There is no such kind.
    #[error("descriptors of kind {0} do not exist")]
    Kind(u8),
    /// Bits that must be 0 are not.
    #[error("word {0} has bits that mean nothing")]
    Reserved(usize),
    /// A number that cannot be.
    #[error("{0} cannot be {1}")]
    Value(&'static str, u64),
}

const TAGGED: u8 = 1;
const FROM_ONE: u8 = 2;
const ORDERED: u8 = 4;

const CONNECT: u8 = 1;
const SEND: u8 = 2;
const RECEIVE: u8 = 3;
const CANCEL: u8 = 4;
const CLOSE: u8 = 5;
const ABORT: u8 = 6;

/// The bits of each word that a kind of command gives a meaning to.
pub(super) fn meaningful(kind: u8) -> Option<Slot> {
    const ALL: u64 = u64::MAX;
    const LOW: u64 = u32::MAX as u64;
    const NAME: u64 = 0xffff_ffff_0000_00ff;
    let flags = |flags: u8| u64::from(flags) << 8;
    Some(match kind {
        CONNECT => [NAME | flags(ORDERED) | 0xff_0000, ALL, 0, 0, 0, 0, 0, 0],
        SEND => [NAME | flags(TAGGED), ALL, ALL, LOW, ALL, ALL, 0, 0],
        RECEIVE => [NAME | flags(TAGGED | FROM_ONE), ALL, ALL, LOW, ALL, ALL, 0, 0],
        CANCEL | CLOSE | ABORT => [NAME, 0, 0, 0, 0, 0, 0, 0],
        _ => return None,
    })
}

impl Command {
    /// Its words.
    pub fn encode(&self) -> Slot {
        let word0 =
            |kind: u8, flags: u8, name: u32| u64::from(kind) | u64::from(flags) << 8 | u64::from(name) << 32;
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        match *self {
            Command::Connect { connection, peer, options: ConnectOptions { mode, class, process } } => {
                let flags = if mode == DeliveryMode::Rod { ORDERED } else { 0 };
                let word0 = word0(CONNECT, flags, connection) | u64::from(class.0) << 16;
                [word0, pair(peer.0, process.into()), 0, 0, 0, 0, 0, 0]
            }
            Command::Send { operation, connection, extent, tag, header_data } => {
                let Extent { region, offset, len } = extent;
                let word0 = word0(SEND, if tag.is_some() { TAGGED } else { 0 }, operation);
                [word0, pair(connection, region), offset, len.into(), tag.unwrap_or(0), header_data, 0, 0]
            }
            Command::Receive { operation, extent, from, matching } => {
                let Extent { region, offset, len } = extent;
                let (tagged, tag, ignore) = match matching {
                    Matching::Untagged => (0, 0, 0),
                    Matching::Tagged { tag, ignore } => (TAGGED, tag, ignore),
                };
                let flags = tagged | if from.is_some() { FROM_ONE } else { 0 };
                let from = from.map_or(0, |addr| addr.0);
                [word0(RECEIVE, flags, operation), pair(from, region), offset, len.into(), tag, ignore, 0, 0]
            }
            Command::Cancel { operation } => [word0(CANCEL, 0, operation), 0, 0, 0, 0, 0, 0, 0],
            Command::Close { connection } => [word0(CLOSE, 0, connection), 0, 0, 0, 0, 0, 0, 0],
            Command::Abort { connection } => [word0(ABORT, 0, connection), 0, 0, 0, 0, 0, 0, 0],
        }
    }

    /// The command that `slot` stands for.
    ///
    /// # Errors
    /// It stands for none.
    pub fn decode(slot: &Slot) -> Result<Command, DescriptorError> {
        let (kind, flags) = (slot[0] as u8, (slot[0] >> 8) as u8);
        let meaningful = meaningful(kind).ok_or(DescriptorError::Kind(kind))?;
        if let Some(word) = slot.iter().zip(meaningful).position(|(word, bits)| word & !bits != 0) {
            return Err(DescriptorError::Reserved(word));
        }
        let (name, low, high) = ((slot[0] >> 32) as u32, slot[1] as u32, (slot[1] >> 32) as u32);
        let extent = Extent { region: high, offset: slot[2], len: slot[3] as u32 };
        // Absent values are 0, so that each command has one form.
        let unless = |flag: u8, word: usize, value: u64| match flags & flag == 0 && value != 0 {
            true => Err(DescriptorError::Reserved(word)),
            false => Ok(()),
        };
        Ok(match kind {
            CONNECT => {
                let process = u16::try_from(high).ok().filter(|process| *process <= MAX_PROCESS);
                let process = process.ok_or(DescriptorError::Value("the process", high.into()))?;
                let mode = if flags & ORDERED != 0 { DeliveryMode::Rod } else { DeliveryMode::Rud };
                let class = TrafficClass(bits(slot[0], 16, 8) as u8);
                let options = ConnectOptions { mode, class, process };
                Command::Connect { connection: name, peer: Addr(low), options }
            }
            SEND => {
                unless(TAGGED, 4, slot[4])?;
                let tag = (flags & TAGGED != 0).then_some(slot[4]);
                Command::Send { operation: name, connection: low, extent, tag, header_data: slot[5] }
            }
            RECEIVE => {
                unless(TAGGED, 4, slot[4])?;
                unless(TAGGED, 5, slot[5])?;
                unless(FROM_ONE, 1, low.into())?;
                let matching = match flags & TAGGED {
                    0 => Matching::Untagged,
                    _ => Matching::Tagged { tag: slot[4], ignore: slot[5] },
                };
                let from = (flags & FROM_ONE != 0).then_some(Addr(low));
                Command::Receive { operation: name, extent, from, matching }
            }
            CANCEL => Command::Cancel { operation: name },
            CLOSE => Command::Close { connection: name },
            _ => Command::Abort { connection: name },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// What is decoded has one form; everything else is refused. Bits are set sparsely, so that both happen.
        #[test]
        fn decoding_accepts_one_form_of_each(
            kind in 0u64..8,
            flags in 0u64..8,
            words in prop::array::uniform8(prop_oneof![Just(0), Just(1), any::<u64>(), (0u64..4096).prop_map(|n| n << 32)]),
            masked in any::<bool>(),
        ) {
            let mut slot = words;
            slot[0] = kind | flags << 8 | (words[0] & !0xffff);
            if masked && let Some(meaningful) = meaningful(kind as u8) {
                slot.iter_mut().zip(meaningful).for_each(|(word, bits)| *word &= bits);
            }
            if let Ok(command) = Command::decode(&slot) {
                prop_assert_eq!(command.encode(), slot);
            }
        }

        #[test]
        fn commands_survive_the_ring(
            (name, other, offset, len) in any::<(u32, u32, u64, u32)>(),
            (tag, data, ignore) in any::<(Option<u64>, u64, u64)>(),
            (from, rod, class, process) in (any::<Option<u32>>(), any::<bool>(), any::<u8>(), 0..=MAX_PROCESS),
        ) {
            let extent = Extent { region: other, offset, len };
            let mode = if rod { DeliveryMode::Rod } else { DeliveryMode::Rud };
            let options = ConnectOptions { mode, class: TrafficClass(class), process };
            let matching = tag.map_or(Matching::Untagged, |tag| Matching::Tagged { tag, ignore });
            let commands = [
                Command::Connect { connection: name, peer: Addr(other), options },
                Command::Send { operation: name, connection: !name, extent, tag, header_data: data },
                Command::Receive { operation: name, extent, from: from.map(Addr), matching },
                Command::Cancel { operation: name },
                Command::Close { connection: name },
                Command::Abort { connection: name },
            ];
            for command in commands {
                prop_assert_eq!(Command::decode(&command.encode()), Ok(command));
            }
        }
    }

    #[test]
    fn refusals_name_what_is_wrong() {
        assert_eq!(Command::decode(&[0; 8]), Err(DescriptorError::Kind(0)));
        assert_eq!(Command::decode(&[9, 0, 0, 0, 0, 0, 0, 0]), Err(DescriptorError::Kind(9)));
        assert_eq!(Command::decode(&[5, 0, 0, 0, 0, 0, 0, 1]), Err(DescriptorError::Reserved(7)));
        let process = DescriptorError::Value("the process", 4096);
        assert_eq!(Command::decode(&[1, 4096 << 32, 0, 0, 0, 0, 0, 0]), Err(process));
        assert_eq!(Command::decode(&[3, 5, 0, 0, 0, 0, 0, 0]), Err(DescriptorError::Reserved(1)));
    }
}
