//! The packets that are on their way.
//!
//! What switches look at travels by value through queues and links, which are read in sequence; the
//! headers and payload, which only hosts look at, lie in a slab until the packet arrives. So a hop
//! does not touch memory that nothing else has touched lately.

use weft_stack::packet::{Class, Packet, Payload};
use weft_stack::prefetch::prefetch;
use weft_stack::wire::ses::Ses;

/// What the fabric needs to know of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Transit {
    /// Where its content lies.
    pub(super) content: u32,
    /// What switches hash; made once.
    pub(super) flow_hash: u32,
    /// The host it goes to.
    pub(super) dst: u32,
    /// Bytes on the wire.
    pub(super) size: u16,
    /// Bytes on the wire without its payload.
    pub(super) trimmed_size: u16,
    /// Switches that it will have passed when it arrives.
    pub(super) hops: u8,
    pub(super) class: Class,
    pub(super) ecn: bool,
    /// Whether a bit was flipped on its way: the checksum will not hold.
    pub(super) corrupt: bool,
}

/// Headers and payload of a packet.
pub(super) struct Content {
    packet: Packet,
    /// Its payload's bytes; none if there are none, or only their number counts.
    bytes: Option<Box<[u8]>>,
}

/// The contents of the packets on their way, named by index.
#[derive(Default)]
pub(super) struct Packets {
    contents: Vec<Content>,
    free: Vec<u32>,
}

impl Packets {
    pub(super) fn insert(&mut self, packet: &Packet, bytes: Option<Box<[u8]>>) -> u32 {
        match self.free.pop() {
            Some(index) => {
                let content = &mut self.contents[index as usize];
                content.packet = *packet;
                content.bytes = bytes;
                index
            }
            None => {
                self.contents.push(Content { packet: *packet, bytes });
                (self.contents.len() - 1) as u32
            }
        }
    }

    /// Another packet like `transit`.
    pub(super) fn duplicate(&mut self, transit: Transit) -> Transit {
        let Content { packet, bytes } = &self.contents[transit.content as usize];
        let (packet, bytes) = (*packet, bytes.clone());
        Transit { content: self.insert(&packet, bytes), ..transit }
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
        (packet.net.class, packet.net.hops, packet.net.ecn) = (transit.class, transit.hops, transit.ecn);
        let payload = match &content.bytes {
            _ if transit.class.is_trimmed() => {
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
        self.insert(&content.packet, content.bytes)
    }
}
