//! A packet as the protocol core sees it: addresses and marks, header structs, a payload beside them.
//!
//! In virtual time these structs travel as they are. At a real port [`crate::wire`] turns them into
//! bytes and back, and an address book turns [`Addr`] into MAC and IP addresses.

use crate::region::RegionBytes;
use crate::spray::Entropy;
use crate::wire::class::Priority;
use crate::wire::pds::{NextHeader, Pds, Uud};
use crate::wire::ses::Ses;

/// The address of a fabric endpoint: an index in the address vector of the endpoint's caller
/// (in simulation the host number). Small and dense, so that tables can be indexed by it.
///
/// The address book of a [`Worker`](crate::worker::Worker) forgets peers that nobody needs when others need the room. An
/// address there is a place in the book, in the low bits, and the number of peers that had the place before, in the bits
/// above: the next peer in that place has another address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Addr(pub u32);

/// The class that a packet's DSCP puts it in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Class {
    /// Data that switches may trim.
    #[default]
    Data,
    /// Data whose payload a switch inside the fabric cut off.
    Trimmed,
    /// Data whose payload the switch before the receiver cut off.
    TrimmedLastHop,
    /// Acknowledgements, NACKs and control packets: high priority, never trimmed.
    Control,
}

impl Class {
    /// Whether the payload is gone.
    #[inline]
    pub fn is_trimmed(self) -> bool {
        matches!(self, Class::Trimmed | Class::TrimmedLastHop)
    }
}

/// The network layer's part of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// Address of the sending endpoint.
    pub src: Addr,
    /// Address of the receiving endpoint.
    pub dst: Addr,
    /// The value that switches hash beside the addresses. An acknowledgement or NACK carries the entropy of
    /// the packet it answers, so that the sender learns which path that packet took.
    pub entropy: Entropy,
    /// The class that its DSCP puts it in.
    pub class: Class,
    /// Its priority, given by its DSCP too; of packets that are not [`Class::Data`] it means nothing.
    pub priority: Priority,
    /// Whether it carries a congestion mark (CE).
    pub ecn: bool,
    /// Switches it has passed, if known (start TTL − received TTL).
    pub hops: u8,
}

/// Headers of one packet, in the order in which they are looked at.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Packet {
    /// The network layer's part.
    pub net: Network,
    /// Payload bytes the packet was sent with; a trimmed packet no longer has them.
    pub payload_len: u32,
    /// The packet-delivery header.
    pub pds: Pds,
    /// Message semantics; [`Ses::None`] also where trimming cut them off.
    pub ses: Ses,
}

impl Packet {
    /// A packet that says nothing, to be written over.
    pub const BLANK: Packet = Packet {
        net: Network {
            src: Addr(0),
            dst: Addr(0),
            entropy: Entropy(0),
            class: Class::Control,
            priority: Priority::LOWEST,
            ecn: false,
            hops: 0,
        },
        payload_len: 0,
        pds: Pds::Uud(Uud { next: NextHeader::None }),
        ses: Ses::None,
    };

    /// Overwrites `other`, but does not touch the room of its semantic header if there is none, as in most
    /// acknowledgements: that is memory fetched for nothing.
    #[inline]
    pub(crate) fn write_to(&self, other: &mut Packet) {
        (other.net, other.payload_len, other.pds) = (self.net, self.payload_len, self.pds);
        match self.ses {
            Ses::None => other.ses = Ses::None,
            ses => other.ses = ses,
        }
    }
}

/// The payload of a packet.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Only its length exists: for simulations that do not care what is in it.
    Virtual(u32),
    /// Bytes in memory that does not change.
    Bytes(&'a [u8]),
    /// Bytes that other processes may change meanwhile: they can only be copied.
    Region(RegionBytes<'a>),
}

impl Payload<'_> {
    /// A payload of no bytes.
    pub const EMPTY: Payload<'static> = Payload::Bytes(&[]);

    /// Its length, bytes.
    #[inline]
    pub fn len(&self) -> u32 {
        match self {
            Payload::Virtual(len) => *len,
            Payload::Bytes(bytes) => bytes.len() as u32,
            Payload::Region(bytes) => bytes.len(),
        }
    }

    /// Copies its bytes, if it has any.
    ///
    /// # Panics
    /// `place` is not as long as the payload.
    #[inline]
    pub fn copy_to(&self, place: &mut [u8]) {
        match self {
            Payload::Virtual(_) => {}
            Payload::Bytes(bytes) => place.copy_from_slice(bytes),
            Payload::Region(bytes) => bytes.copy_to(place),
        }
    }

    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
