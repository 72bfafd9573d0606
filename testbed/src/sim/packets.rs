//! The packets that are on their way.
//!
//! What switches look at travels by value through queues and links, which are read in sequence; the
//! headers and payload, which only hosts look at, lie in a slab until the packet arrives. So a hop
//! does not touch memory that nothing else has touched lately.

use weft_stack::packet::{Class, Network, Packet, Payload};
use weft_stack::prefetch::prefetch;
use weft_stack::wire::ses::Ses;

use crate::switch::{Queued, flow_hash};

/// What the fabric needs to know of a packet, in five words: it is copied at each hop, and fewer fields are
/// copied faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Transit {
    /// Where its content lies.
    pub(super) content: u32,
    /// What switches hash; made once.
    pub(super) flow_hash: u32,
    /// The host it goes to.
    pub(super) dst: u32,
    /// Bytes on the wire, and from bit 16 on bytes on the wire without its payload.
    sizes: u32,
    /// Switches that it will have passed when it arrives; from [`CLASS`] on its class; marks.
    state: u32,
}

const CLASS: u32 = 8;
const ECN: u32 = 1 << 16;
const CORRUPT: u32 = 1 << 17;

impl Transit {
    /// A packet that leaves its source.
    pub(super) fn new(content: u32, net: &Network, (size, trimmed_size): (u16, u16), hops: u8) -> Transit {
        let ecn = if net.ecn { ECN } else { 0 };
        Transit {
            content,
            flow_hash: flow_hash(net),
            dst: net.dst.0,
            sizes: u32::from(trimmed_size) << 16 | u32::from(size),
            state: u32::from(hops) | (net.class as u32) << CLASS | ecn,
        }
    }

    fn hops(&self) -> u8 {
        self.state as u8
    }

    fn ecn(&self) -> bool {
        self.state & ECN != 0
    }

    /// Whether a bit was flipped on its way: the checksum will not hold.
    pub(super) fn is_corrupt(&self) -> bool {
        self.state & CORRUPT != 0
    }

    pub(super) fn corrupt(&mut self) {
        self.state |= CORRUPT;
    }
}

impl Queued for Transit {
    #[inline]
    fn class(&self) -> Class {
        match self.state >> CLASS & 3 {
            0 => Class::Data,
            1 => Class::Trimmed,
            2 => Class::TrimmedLastHop,
            _ => Class::Control,
        }
    }

    #[inline]
    fn size(&self) -> u32 {
        self.sizes & 0xffff
    }

    #[inline]
    fn trimmed_size(&self) -> u32 {
        self.sizes >> 16
    }

    #[inline]
    fn trim(&mut self, class: Class) {
        self.state = self.state & !(3 << CLASS) | (class as u32) << CLASS;
        self.sizes = self.sizes & !0xffff | self.sizes >> 16;
    }

    #[inline]
    fn mark(&mut self) {
        self.state |= ECN;
    }
}

/// Headers and payload of a packet. In this order, and at the start of a cache line: an acknowledgement then
/// takes two lines and a data packet three.
#[repr(C, align(64))]
pub(super) struct Content {
    /// Its payload's bytes; none if there are none, or only their number counts.
    bytes: Option<Box<[u8]>>,
    packet: Packet,
}

const _: () = assert!(size_of::<Content>() == 192);

/// The contents of the packets on their way, named by index.
#[derive(Default)]
pub(super) struct Packets {
    contents: Vec<Content>,
    free: Vec<u32>,
}

impl Packets {
    /// Room for another packet, whose headers are to be written over.
    #[inline]
    pub(super) fn reserve(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.contents.push(Content { bytes: None, packet: Packet::BLANK });
            (self.contents.len() - 1) as u32
        })
    }

    /// The headers of a packet.
    #[inline]
    pub(super) fn headers(&mut self, index: u32) -> &mut Packet {
        &mut self.contents[index as usize].packet
    }

    pub(super) fn set_bytes(&mut self, index: u32, bytes: Box<[u8]>) {
        self.contents[index as usize].bytes = Some(bytes);
    }

    fn insert(&mut self, content: Content) -> u32 {
        let index = self.reserve();
        self.contents[index as usize] = content;
        index
    }

    /// Another packet like `transit`.
    pub(super) fn duplicate(&mut self, transit: Transit) -> Transit {
        let Content { packet, bytes } = &self.contents[transit.content as usize];
        let copy = Content { packet: *packet, bytes: bytes.clone() };
        Transit { content: self.insert(copy), ..transit }
    }

    /// Brings a content that will be needed soon into the cache.
    #[inline]
    pub(super) fn prefetch(&self, index: u32) {
        prefetch(&self.contents[index as usize]);
    }

    /// A packet as it arrives at a host, with what happened to it on its way.
    #[inline]
    pub(super) fn arrived(&mut self, transit: &Transit) -> (&Packet, Payload<'_>) {
        let content = &mut self.contents[transit.content as usize];
        let packet = &mut content.packet;
        (packet.net.class, packet.net.hops, packet.net.ecn) =
            (transit.class(), transit.hops(), transit.ecn());
        let payload = match &content.bytes {
            _ if transit.class().is_trimmed() => {
                // Trimming leaves the PDS header.
                packet.ses = Ses::None;
                Payload::EMPTY
            }
            Some(bytes) => Payload::Bytes(bytes),
            None if packet.payload_len == 0 => Payload::EMPTY,
            None => Payload::Virtual(packet.payload_len),
        };
        (packet, payload)
    }

    pub(super) fn remove(&mut self, index: u32) {
        self.contents[index as usize].bytes = None;
        self.free.push(index);
    }

    /// Takes a content out, to be put among those of another shard.
    pub(super) fn take(&mut self, index: u32) -> Content {
        let content = &mut self.contents[index as usize];
        let taken = Content { packet: content.packet, bytes: content.bytes.take() };
        self.free.push(index);
        taken
    }

    /// Puts a content of another shard among these.
    pub(super) fn put(&mut self, content: Content) -> u32 {
        self.insert(content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_stack::packet::Addr;
    use weft_stack::spray::Entropy;

    #[test]
    fn what_switches_do_to_a_packet_is_kept() {
        for class in [Class::Data, Class::Trimmed, Class::TrimmedLastHop, Class::Control] {
            for ecn in [false, true] {
                let net = Network { src: Addr(1), dst: Addr(9), entropy: Entropy(3), class, ecn, hops: 0 };
                let mut transit = Transit::new(7, &net, (4160, 64), 5);
                assert_eq!((transit.class(), transit.size(), transit.trimmed_size()), (class, 4160, 64));
                assert_eq!((transit.ecn(), transit.hops(), transit.is_corrupt()), (ecn, 5, false));
                transit.corrupt();
                transit.trim(Class::TrimmedLastHop);
                assert_eq!((transit.class(), transit.size()), (Class::TrimmedLastHop, 64));
                assert_eq!((transit.ecn(), transit.is_corrupt()), (ecn, true));
                transit.mark();
                assert_eq!((transit.ecn(), transit.hops(), transit.dst), (true, 5, 9));
            }
        }
    }
}
