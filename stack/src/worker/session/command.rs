//! Commands: the requests of an application, as eight words.
//!
//! | word | bits | meaning |
//! |---|---|---|
//! | 0 | 0–7 | 1 connect, 2 send, 3 receive, 4 cancel, 5 close, 6 abort, 7 peer, 8 peek, 9 receive claimed, 10 discard, |
//! | | | 11 send datagram, 12 receive datagram, 13 allow many |
//! | | 8–15 | flags: bit 0 tagged; bit 1 from one sender only; bit 2 ordered (ROD); bit 3 with an Ethernet address; |
//! | | | connect: bit 4 waits without end for a peer that answers |
//! | | 16–23 | connect: traffic class; peer: IP version |
//! | | 8–15 | peek: bits 4–5 what becomes of the message: 0 stays, 1 claimed, 2 discarded |
//! | | 16–31 | receive and peek: the sender's process; send datagram: the peer's process |
//! | | 32–63 | the connection (connect, close, abort) or the operation (all others but discard and allow many) |
//! | 1 | 0–31 | connect and send datagram: peer; receive and peek: sender; send: connection |
//! | | 32–63 | connect: process; all that send or receive: region |
//! | | 0–47 | peer: Ethernet address, its first byte lowest |
//! | | 0–63 | allow many: number of messages |
//! | 2 | | all that send or receive: offset in the region; peer: lower half of the IP address |
//! | 3 | 0–31 | all that send or receive: length |
//! | | 0–63 | peer: upper half of the IP address |
//! | 4 | | tag |
//! | 5 | | send and send datagram: header data; receive and peek: bits of the tag that do not matter; |
//! | | | receive claimed and discard: the claim |
//! | 6 | 0–31 | receive: bytes that must be left for another message; 0 for a receive of one message |
//!
//! Everything else is 0, and refused if it is not.

use core::net::IpAddr;
use core::num::NonZeroU32;

use super::refusal::{ip, ip_words};
use super::{Slot, bits};
use crate::fep::{ConnectOptions, MAX_PROCESS, TrafficClass};
use crate::packet::Addr;
use crate::ses::{Claim, Matching, Source};
use crate::wire::ethernet::MacAddr;
use crate::wire::pds::DeliveryMode;

/// A request of an application. It chooses the numbers of connections and operations, each below the count in its
/// configuration, and uses none again before a report has said that it is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Opens a connection.
    Connect {
        /// The connection's number.
        connection: u32,
        /// Address of the peer.
        peer: Addr,
        /// The delivery mode, traffic class and process of the peer.
        options: ConnectOptions,
    },
    /// Posts a message.
    Send {
        /// The number of this operation.
        operation: u32,
        /// The number of the connection that it is sent on.
        connection: u32,
        /// The memory that holds the message.
        extent: Extent,
        /// The tag of a tagged message.
        tag: Option<u64>,
        /// 64 bits that the receiver's report carries.
        header_data: u64,
    },
    /// Posts a receive.
    Receive {
        /// The number of this operation.
        operation: u32,
        /// The memory that the message is placed in.
        extent: Extent,
        /// The only sender whose messages it takes; none for any sender.
        from: Option<Source>,
        /// The messages that it takes.
        matching: Matching,
        /// It takes messages until fewer than so many bytes are left; `None` if it takes one.
        many: Option<NonZeroU32>,
    },
    /// Looks for a message that waits for a receive.
    Peek {
        /// The number of this operation, until it is answered.
        operation: u32,
        /// The only sender of the message; none for any sender.
        from: Option<Source>,
        /// The messages that it looks for.
        matching: Matching,
        /// What becomes of the message.
        found: Found,
    },
    /// Receives a message that was claimed.
    ReceiveClaimed {
        /// The number of this operation.
        operation: u32,
        /// The memory that the message is placed in.
        extent: Extent,
        /// The message.
        claim: Claim,
    },
    /// Drops a message that was claimed.
    Discard {
        /// The message.
        claim: Claim,
    },
    /// Lets receives for many messages take further ones. Before the first of these commands they take any number.
    AllowMany {
        /// So many more than they may take now.
        more: u64,
    },
    /// Posts a datagram.
    SendDatagram {
        /// The number of this operation.
        operation: u32,
        /// The peer, and the process of the peer that it is for.
        to: Source,
        /// The memory that holds the datagram.
        extent: Extent,
        /// 64 bits that the receiver's report carries.
        header_data: u64,
    },
    /// Posts a receive of one datagram, from any sender.
    ReceiveDatagram {
        /// The number of this operation.
        operation: u32,
        /// The memory that the datagram is placed in.
        extent: Extent,
    },
    /// Cancels a message of which nothing has been sent, or a receive that no message has met; or a datagram or the receive of
    /// one.
    Cancel {
        /// The operation's number.
        operation: u32,
    },
    /// Closes a connection once its messages are sent.
    Close {
        /// The connection's number.
        connection: u32,
    },
    /// Closes a connection without sending the messages that wait.
    Abort {
        /// The connection's number.
        connection: u32,
    },
    /// Enters a peer in the address book, or looks it up.
    Peer {
        /// The number of this operation, until it is answered.
        operation: u32,
        /// The peer's IP address.
        ip: IpAddr,
        /// The peer's Ethernet address, if it is known.
        mac: Option<MacAddr>,
    },
}

/// What becomes of a message that a [`Command::Peek`] finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// It stays where it is: the next receive like this gets it.
    Stays,
    /// It waits to be received by its claim, or discarded, and no other receive gets it.
    IsClaimed,
    /// It is dropped. Its sender hears that it was delivered.
    IsDiscarded,
}

/// The memory of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Extent {
    /// The region; 0 is the one that the session came with.
    pub region: u32,
    /// Where it begins in the region, bytes.
    pub offset: u64,
    /// The length, bytes.
    pub len: u32,
}

/// Why eight words are no command, or no report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DescriptorError {
    /// There is no such kind.
    #[error("descriptors of kind {0} do not exist")]
    Kind(u8),
    /// Bits that must be 0 are not.
    #[error("word {0} has bits that mean nothing")]
    Reserved(usize),
    /// A value is out of range.
    #[error("{0} cannot be {1}")]
    Value(&'static str, u64),
}

const TAGGED: u8 = 1;
const FROM_ONE: u8 = 2;
const ORDERED: u8 = 4;
const HAS_MAC: u8 = 8;

const PATIENT: u8 = 16;
const CLAIM: u8 = 16;
const DISCARD_IT: u8 = 32;

const CONNECT: u8 = 1;
const SEND: u8 = 2;
const RECEIVE: u8 = 3;
const CANCEL: u8 = 4;
const CLOSE: u8 = 5;
const ABORT: u8 = 6;
const PEER: u8 = 7;
const PEEK: u8 = 8;
const RECEIVE_CLAIMED: u8 = 9;
const DISCARD: u8 = 10;
pub(super) const SEND_DATAGRAM: u8 = 11;
const RECEIVE_DATAGRAM: u8 = 12;
const ALLOW_MANY: u8 = 13;
/// Kinds of commands are below this number.
pub(super) const KINDS: u8 = 14;

/// The bits of each word that each kind of command gives a meaning to. There is no kind 0.
const MEANINGFUL: [Slot; KINDS as usize] = {
    const ALL: u64 = u64::MAX;
    const LOW: u64 = u32::MAX as u64;
    const NAME: u64 = 0xffff_ffff_0000_00ff;
    const fn flags(flags: u8) -> u64 {
        (flags as u64) << 8
    }
    const NAMED: Slot = [NAME, 0, 0, 0, 0, 0, 0, 0];
    let mut kinds = [[0; 8]; KINDS as usize];
    kinds[CONNECT as usize] = [NAME | flags(ORDERED | PATIENT) | 0xff_0000, ALL, 0, 0, 0, 0, 0, 0];
    kinds[SEND as usize] = [NAME | flags(TAGGED), ALL, ALL, LOW, ALL, ALL, 0, 0];
    kinds[RECEIVE as usize] =
        [NAME | flags(TAGGED | FROM_ONE) | 0xffff_0000, ALL, ALL, LOW, ALL, ALL, LOW, 0];
    let found = flags(TAGGED | FROM_ONE | CLAIM | DISCARD_IT);
    kinds[PEEK as usize] = [NAME | found | 0xffff_0000, LOW, 0, 0, ALL, ALL, 0, 0];
    kinds[RECEIVE_CLAIMED as usize] = [NAME, !LOW, ALL, LOW, 0, ALL, 0, 0];
    kinds[DISCARD as usize] = [0xff, 0, 0, 0, 0, ALL, 0, 0];
    kinds[SEND_DATAGRAM as usize] = [NAME | 0xffff_0000, ALL, ALL, LOW, 0, ALL, 0, 0];
    kinds[RECEIVE_DATAGRAM as usize] = [NAME, !LOW, ALL, LOW, 0, 0, 0, 0];
    kinds[ALLOW_MANY as usize] = [0xff, ALL, 0, 0, 0, 0, 0, 0];
    kinds[PEER as usize] = [NAME | flags(HAS_MAC) | 0xff_0000, (1 << 48) - 1, ALL, ALL, 0, 0, 0, 0];
    kinds[CANCEL as usize] = NAMED;
    kinds[CLOSE as usize] = NAMED;
    kinds[ABORT as usize] = NAMED;
    kinds
};

/// The bits of each word that a kind of command gives a meaning to.
#[inline]
pub(super) fn meaningful(kind: u8) -> Option<&'static Slot> {
    MEANINGFUL.get(usize::from(kind)).filter(|_| kind != 0)
}

/// The first word of a command that has bits which mean nothing.
#[cold]
fn reserved(slot: &Slot, meaningful: &Slot) -> DescriptorError {
    let has_some = |(word, bits): (&u64, &u64)| word & !bits != 0;
    DescriptorError::Reserved(slot.iter().zip(meaningful).position(has_some).unwrap_or(0))
}

/// The process with this number.
///
/// # Errors
/// There is no such process.
#[inline]
pub(super) fn process(number: u64) -> Result<u16, DescriptorError> {
    let process = u16::try_from(number).ok().filter(|process| *process <= MAX_PROCESS);
    process.ok_or(DescriptorError::Value("the process", number))
}

/// The words of a receive, or of a look at those that wait, that say which messages it takes.
struct Wanted {
    flags: u8,
    process: u16,
    peer: u32,
    tag: u64,
    ignore: u64,
}

impl Wanted {
    fn of(from: Option<Source>, matching: Matching) -> Wanted {
        let (tagged, tag, ignore) = match matching {
            Matching::Untagged => (0, 0, 0),
            Matching::Tagged { tag, ignore } => (TAGGED, tag, ignore),
        };
        let flags = tagged | if from.is_some() { FROM_ONE } else { 0 };
        let (peer, process) = from.map_or((0, 0), |source| (source.peer.0, source.process));
        Wanted { flags, process, peer, tag, ignore }
    }
}

impl Command {
    /// Writes the command as the words of a ring's slot.
    pub fn encode(&self) -> Slot {
        let word0 =
            |kind: u8, flags: u8, name: u32| u64::from(kind) | u64::from(flags) << 8 | u64::from(name) << 32;
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        match *self {
            Command::Connect { connection, peer, options } => {
                let ConnectOptions { mode, class, process, patient } = options;
                let ordered = if mode == DeliveryMode::Rod { ORDERED } else { 0 };
                let flags = ordered | if patient { PATIENT } else { 0 };
                let word0 = word0(CONNECT, flags, connection) | u64::from(class.0) << 16;
                [word0, pair(peer.0, process.into()), 0, 0, 0, 0, 0, 0]
            }
            Command::Send { operation, connection, extent, tag, header_data } => {
                let Extent { region, offset, len } = extent;
                let word0 = word0(SEND, if tag.is_some() { TAGGED } else { 0 }, operation);
                [word0, pair(connection, region), offset, len.into(), tag.unwrap_or(0), header_data, 0, 0]
            }
            Command::Receive { operation, extent, from, matching, many } => {
                let Extent { region, offset, len } = extent;
                let Wanted { flags, process, peer, tag, ignore } = Wanted::of(from, matching);
                let word0 = word0(RECEIVE, flags, operation) | u64::from(process) << 16;
                let least = many.map_or(0, NonZeroU32::get);
                [word0, pair(peer, region), offset, len.into(), tag, ignore, least.into(), 0]
            }
            Command::Peek { operation, from, matching, found } => {
                let Wanted { flags, process, peer, tag, ignore } = Wanted::of(from, matching);
                let found = match found {
                    Found::Stays => 0,
                    Found::IsClaimed => CLAIM,
                    Found::IsDiscarded => DISCARD_IT,
                };
                let word0 = word0(PEEK, flags | found, operation) | u64::from(process) << 16;
                [word0, peer.into(), 0, 0, tag, ignore, 0, 0]
            }
            Command::ReceiveClaimed { operation, extent, claim } => {
                let Extent { region, offset, len } = extent;
                let word0 = word0(RECEIVE_CLAIMED, 0, operation);
                [word0, pair(0, region), offset, len.into(), 0, claim.to_bits(), 0, 0]
            }
            Command::Discard { claim } => [DISCARD.into(), 0, 0, 0, 0, claim.to_bits(), 0, 0],
            Command::AllowMany { more } => [ALLOW_MANY.into(), more, 0, 0, 0, 0, 0, 0],
            Command::SendDatagram { operation, to, extent, header_data } => {
                let (Extent { region, offset, len }, Source { peer, process }) = (extent, to);
                let word0 = word0(SEND_DATAGRAM, 0, operation) | u64::from(process) << 16;
                [word0, pair(peer.0, region), offset, len.into(), 0, header_data, 0, 0]
            }
            Command::ReceiveDatagram { operation, extent } => {
                let Extent { region, offset, len } = extent;
                let word0 = word0(RECEIVE_DATAGRAM, 0, operation);
                [word0, pair(0, region), offset, len.into(), 0, 0, 0, 0]
            }
            Command::Cancel { operation } => [word0(CANCEL, 0, operation), 0, 0, 0, 0, 0, 0, 0],
            Command::Close { connection } => [word0(CLOSE, 0, connection), 0, 0, 0, 0, 0, 0, 0],
            Command::Abort { connection } => [word0(ABORT, 0, connection), 0, 0, 0, 0, 0, 0, 0],
            Command::Peer { operation, ip, mac } => {
                let (version, low, high) = ip_words(ip);
                let word0 = word0(PEER, if mac.is_some() { HAS_MAC } else { 0 }, operation);
                let [a, b, c, d, e, f] = mac.map_or([0; 6], |mac| mac.0);
                let mac = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]);
                [word0 | u64::from(version) << 16, mac, low, high, 0, 0, 0, 0]
            }
        }
    }

    /// The command that `slot` stands for.
    ///
    /// # Errors
    /// It stands for none.
    #[inline]
    pub fn decode(slot: &Slot) -> Result<Command, DescriptorError> {
        let kind = slot[0] as u8;
        let meaningful = meaningful(kind).ok_or(DescriptorError::Kind(kind))?;
        if slot.iter().zip(meaningful).fold(0, |others, (word, bits)| others | word & !bits) != 0 {
            return Err(reserved(slot, meaningful));
        }
        // These are by far the most.
        match kind {
            SEND => Ok(Command::Send {
                operation: name(slot),
                connection: slot[1] as u32,
                extent: extent(slot),
                tag: tag(slot)?,
                header_data: slot[5],
            }),
            RECEIVE => {
                let (from, matching) = wanted(slot)?;
                let many = NonZeroU32::new(slot[6] as u32);
                Ok(Command::Receive { operation: name(slot), extent: extent(slot), from, matching, many })
            }
            _ => Command::decode_other(slot),
        }
    }

    /// As [`Command::decode`], for words of a kind that exists and neither sends nor receives a message. All their bits mean
    /// something.
    #[inline(never)]
    fn decode_other(slot: &Slot) -> Result<Command, DescriptorError> {
        let (kind, name, low) = (slot[0] as u8, name(slot), slot[1] as u32);
        Ok(match kind {
            CONNECT => {
                let process = process(bits(slot[1], 32, 32))?;
                let mode = if has(slot, ORDERED) { DeliveryMode::Rod } else { DeliveryMode::Rud };
                let class = TrafficClass(bits(slot[0], 16, 8) as u8);
                let patient = has(slot, PATIENT);
                let options = ConnectOptions { mode, class, process, patient };
                Command::Connect { connection: name, peer: Addr(low), options }
            }
            PEEK => {
                let (from, matching) = wanted(slot)?;
                let found = match flags(slot) & (CLAIM | DISCARD_IT) {
                    0 => Found::Stays,
                    CLAIM => Found::IsClaimed,
                    DISCARD_IT => Found::IsDiscarded,
                    both => return Err(DescriptorError::Value("what becomes of a message", both.into())),
                };
                Command::Peek { operation: name, from, matching, found }
            }
            RECEIVE_CLAIMED => {
                let claim = Claim::from_bits(slot[5]);
                Command::ReceiveClaimed { operation: name, extent: extent(slot), claim }
            }
            DISCARD => Command::Discard { claim: Claim::from_bits(slot[5]) },
            ALLOW_MANY => Command::AllowMany { more: slot[1] },
            SEND_DATAGRAM => {
                let to = Source { peer: Addr(low), process: process(bits(slot[0], 16, 16))? };
                Command::SendDatagram { operation: name, to, extent: extent(slot), header_data: slot[5] }
            }
            RECEIVE_DATAGRAM => Command::ReceiveDatagram { operation: name, extent: extent(slot) },
            CANCEL => Command::Cancel { operation: name },
            CLOSE => Command::Close { connection: name },
            PEER => {
                unless(slot, HAS_MAC, 1, slot[1])?;
                let [a, b, c, d, e, f, ..] = slot[1].to_le_bytes();
                let mac = has(slot, HAS_MAC).then_some(MacAddr([a, b, c, d, e, f]));
                let ip = ip(bits(slot[0], 16, 8) as u8, slot[2], slot[3])?;
                if ip.is_ipv4() && (slot[2] >> 32 != 0 || slot[3] != 0) {
                    return Err(DescriptorError::Reserved(if slot[3] == 0 { 2 } else { 3 }));
                }
                Command::Peer { operation: name, ip, mac }
            }
            _ => Command::Abort { connection: name },
        })
    }
}

#[inline]
fn flags(slot: &Slot) -> u8 {
    (slot[0] >> 8) as u8
}

#[inline]
fn has(slot: &Slot, flag: u8) -> bool {
    flags(slot) & flag != 0
}

/// The number of the connection or operation.
#[inline]
fn name(slot: &Slot) -> u32 {
    (slot[0] >> 32) as u32
}

#[inline]
fn extent(slot: &Slot) -> Extent {
    Extent { region: (slot[1] >> 32) as u32, offset: slot[2], len: slot[3] as u32 }
}

/// # Errors
/// `value`, which is a part of `word`, is there without its flag: absent values are 0, so that each command has one form.
#[inline]
fn unless(slot: &Slot, flag: u8, word: usize, value: u64) -> Result<(), DescriptorError> {
    if !has(slot, flag) && value != 0 { Err(DescriptorError::Reserved(word)) } else { Ok(()) }
}

#[inline]
fn tag(slot: &Slot) -> Result<Option<u64>, DescriptorError> {
    unless(slot, TAGGED, 4, slot[4])?;
    Ok(has(slot, TAGGED).then_some(slot[4]))
}

/// The messages that a receive takes, or a look at those that wait finds.
#[inline]
fn wanted(slot: &Slot) -> Result<(Option<Source>, Matching), DescriptorError> {
    let tag = tag(slot)?;
    unless(slot, TAGGED, 5, slot[5])?;
    let matching = tag.map_or(Matching::Untagged, |tag| Matching::Tagged { tag, ignore: slot[5] });
    let (peer, number) = (slot[1] as u32, bits(slot[0], 16, 16));
    if !has(slot, FROM_ONE) && number | u64::from(peer) == 0 {
        return Ok((None, matching));
    }
    unless(slot, FROM_ONE, 1, peer.into())?;
    let process = process(number)?;
    unless(slot, FROM_ONE, 0, number)?;
    Ok((Some(Source { peer: Addr(peer), process }), matching))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Everything else is refused. Bits are set sparsely, so that both happen.
        #[test]
        fn each_command_has_one_form(
            kind in 0..2 + u64::from(KINDS),
            flags in 0u64..64,
            version in prop_oneof![Just(0u64), Just(4), Just(6), any::<u8>().prop_map(u64::from)],
            words in prop::array::uniform8(prop_oneof![Just(0), Just(1), any::<u64>(), (0u64..4096).prop_map(|n| n << 32)]),
            masked in any::<bool>(),
        ) {
            let mut slot = words;
            slot[0] = kind | flags << 8 | version << 16 | (words[0] & !0xff_ffff);
            if masked && let Some(meaningful) = meaningful(kind as u8) {
                slot.iter_mut().zip(meaningful).for_each(|(word, bits)| *word &= bits);
            }
            if let Ok(command) = Command::decode(&slot) {
                prop_assert_eq!(command.encode(), slot);
            }
        }

        #[test]
        fn a_decoded_command_is_the_one_that_was_encoded(
            (name, other, offset, len) in any::<(u32, u32, u64, u32)>(),
            (tag, data, ignore) in any::<(Option<u64>, u64, u64)>(),
            (ip, mac) in any::<(IpAddr, Option<[u8; 6]>)>(),
            (rod, class, process, patient) in (any::<bool>(), any::<u8>(), 0..=MAX_PROCESS, any::<bool>()),
            from in prop::option::of((any::<u32>(), 0..=MAX_PROCESS)),
            found in prop::sample::select(vec![Found::Stays, Found::IsClaimed, Found::IsDiscarded]),
        ) {
            let extent = Extent { region: other, offset, len };
            let mode = if rod { DeliveryMode::Rod } else { DeliveryMode::Rud };
            let options = ConnectOptions { mode, class: TrafficClass(class), process, patient };
            let from = from.map(|(peer, process)| Source { peer: Addr(peer), process });
            let matching = tag.map_or(Matching::Untagged, |tag| Matching::Tagged { tag, ignore });
            let commands = [
                Command::Connect { connection: name, peer: Addr(other), options },
                Command::Send { operation: name, connection: !name, extent, tag, header_data: data },
                Command::Receive { operation: name, extent, from, matching, many: NonZeroU32::new(other) },
                Command::Peek { operation: name, from, matching, found },
                Command::ReceiveClaimed { operation: name, extent, claim: Claim::from_bits(data) },
                Command::Discard { claim: Claim::from_bits(ignore) },
                Command::AllowMany { more: data },
                Command::SendDatagram {
                    operation: name,
                    to: Source { peer: Addr(other), process },
                    extent,
                    header_data: data,
                },
                Command::ReceiveDatagram { operation: name, extent },
                Command::Cancel { operation: name },
                Command::Close { connection: name },
                Command::Abort { connection: name },
                Command::Peer { operation: name, ip, mac: mac.map(MacAddr) },
            ];
            for command in commands {
                prop_assert_eq!(Command::decode(&command.encode()), Ok(command));
            }
        }
    }

    #[test]
    fn words_that_are_no_command_are_refused_with_their_place() {
        assert_eq!(Command::decode(&[0; 8]), Err(DescriptorError::Kind(0)));
        assert_eq!(Command::decode(&[KINDS.into(), 0, 0, 0, 0, 0, 0, 0]), Err(DescriptorError::Kind(KINDS)));
        assert_eq!(Command::decode(&[5, 0, 0, 0, 0, 0, 0, 1]), Err(DescriptorError::Reserved(7)));
        let process = DescriptorError::Value("the process", 4096);
        assert_eq!(Command::decode(&[1, 4096 << 32, 0, 0, 0, 0, 0, 0]), Err(process));
        let to_no_process = 11 | 4096 << 16;
        assert_eq!(Command::decode(&[to_no_process, 0, 0, 0, 0, 0, 0, 0]), Err(process));
        assert_eq!(Command::decode(&[11, 0, 0, 0, 1, 0, 0, 0]), Err(DescriptorError::Reserved(4)));
        assert_eq!(Command::decode(&[12, 1, 0, 0, 0, 0, 0, 0]), Err(DescriptorError::Reserved(1)));
        assert_eq!(Command::decode(&[13 | 1 << 32, 1, 0, 0, 0, 0, 0, 0]), Err(DescriptorError::Reserved(0)));
        let v4 = 7 | 4 << 16;
        assert_eq!(Command::decode(&[v4, 1, 2, 0, 0, 0, 0, 0]), Err(DescriptorError::Reserved(1)));
        assert_eq!(Command::decode(&[v4, 0, 1 << 32, 0, 0, 0, 0, 0]), Err(DescriptorError::Reserved(2)));
        assert_eq!(Command::decode(&[v4, 0, 2, 1, 0, 0, 0, 0]), Err(DescriptorError::Reserved(3)));
        let no_version = DescriptorError::Value("an IP version", 5);
        assert_eq!(Command::decode(&[7 | 5 << 16, 0, 0, 0, 0, 0, 0, 0]), Err(no_version));
        assert_eq!(Command::decode(&[3, 5, 0, 0, 0, 0, 0, 0]), Err(DescriptorError::Reserved(1)));
        let of_anybody = 3 | 7 << 16;
        assert_eq!(Command::decode(&[of_anybody, 0, 0, 0, 0, 0, 0, 0]), Err(DescriptorError::Reserved(0)));
        let of_no_process = 3 | u64::from(FROM_ONE) << 8 | 4096 << 16;
        assert_eq!(Command::decode(&[of_no_process, 5, 0, 0, 0, 0, 0, 0]), Err(process));
    }
}
