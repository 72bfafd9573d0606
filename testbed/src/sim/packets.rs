//! The packets that are on their way.
//!
//! What switches look at travels by value through queues and links, which are read in sequence; the
//! headers and payload, which only hosts look at, lie in a slab until the packet arrives. So a hop
//! does not touch memory that nothing else has touched lately.

use std::sync::Arc;

use weft_stack::packet::{Class, Network, Packet, Payload};
use weft_stack::prefetch::prefetch_start;
use weft_stack::wire::ses::Ses;

use crate::switch::{Queued, flow_hash};

/// What the fabric needs to know of a packet, in five words: it is copied at each hop, and fewer fields are
/// copied faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Transit {
    /// The name of its content among those of its source.
    pub(super) content: u32,
    /// What switches hash; made once.
    pub(super) flow_hash: u32,
    /// The host it goes to.
    pub(super) dst: u32,
    /// Bytes on the wire, and from bit 16 on bytes on the wire without its payload.
    sizes: u32,
    /// Switches that it will have passed when it arrives; from [`CLASS`] on its class; marks; from
    /// [`SOURCE`] on the shard of its source.
    state: u32,
}

const CLASS: u32 = 8;
/// By number. (A table, as a `match` would be a jump that no processor can foresee.)
const CLASSES: [Class; 4] = [Class::Data, Class::Trimmed, Class::TrimmedLastHop, Class::Control];
const ECN: u32 = 1 << 16;
const CORRUPT: u32 = 1 << 17;
const SOURCE: u32 = 18;
/// The most shards whose numbers fit.
pub(super) const MAX_SHARDS: usize = 1 << (u32::BITS - SOURCE);

impl Transit {
    /// A packet that leaves its source, a host of shard `source`. (The headers have just been written: they are
    /// read in the pieces in which they were, as a wide read of narrow writes waits for all of them.)
    #[inline]
    pub(super) fn new(
        source: u32,
        content: u32,
        net: &Network,
        (size, trimmed_size): (u16, u16),
        hops: u8,
    ) -> Transit {
        let ecn = if net.ecn { ECN } else { 0 };
        Transit {
            content,
            flow_hash: flow_hash(net),
            dst: net.dst.0,
            sizes: u32::from(trimmed_size) << 16 | u32::from(size),
            state: u32::from(hops) | (net.class as u32) << CLASS | ecn | source << SOURCE,
        }
    }

    /// The shard of its source.
    #[inline]
    pub(super) fn source(&self) -> u32 {
        self.state >> SOURCE
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
        CLASSES[(self.state >> CLASS & 3) as usize]
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
    /// How many other packets on their way have this content: copies that links have made.
    copies: u32,
    /// Its payload's bytes; none if there are none, or only their number counts.
    bytes: Option<Box<[u8]>>,
    packet: Packet,
}

const _: () = assert!(size_of::<Content>() == 192);
const BLANK: Content = Content { copies: 0, bytes: None, packet: Packet::BLANK };
/// Bytes of the lines that a packet without a request takes.
const WITHOUT_REQUEST: usize = 128;

/// The contents of packets on their way to the hosts of one shard. Switches of other shards have no use for
/// them: a content goes from its source to its destination at once, whatever way its packet takes.
pub(super) struct Packets {
    shard: u32,
    /// The contents that come from this shard itself, by name.
    own: Vec<Content>,
    /// Shard by shard, the contents that come from other ones.
    foreign: Vec<Vec<Content>>,
    /// Shard by shard, the names for contents that go there.
    names: Vec<Names>,
    /// Host by host, its shard.
    shard_of: Arc<[u16]>,
    /// Shard by shard, what goes there.
    pub(super) mail: Vec<ContentMail>,
    /// The headers of a packet that has been trimmed.
    trimmed: Packet,
}

/// Names for contents, given out by the source.
#[derive(Default)]
struct Names {
    free: Vec<u32>,
    used: u32,
}

impl Names {
    fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.used += 1;
            self.used - 1
        })
    }
}

/// What one shard tells another about contents.
#[derive(Default)]
pub(super) struct ContentMail {
    /// From the source: contents with their names.
    contents: Vec<(u32, Content)>,
    /// To the destination: source and name of contents whose packets have been copied,
    copied: Vec<(u32, u32)>,
    /// or dropped.
    dropped: Vec<(u32, u32)>,
    /// To the source: names that are free again.
    free: Vec<u32>,
}

impl Packets {
    pub(super) fn new(shard: u32, shards: usize, shard_of: Arc<[u16]>) -> Packets {
        Packets {
            shard,
            own: Vec::new(),
            foreign: (0..shards).map(|_| Vec::new()).collect(),
            names: (0..shards).map(|_| Names::default()).collect(),
            shard_of,
            mail: (0..shards).map(|_| ContentMail::default()).collect(),
            trimmed: Packet::BLANK,
        }
    }

    /// Room for another packet, whose headers are to be written over.
    #[inline]
    pub(super) fn reserve(&mut self) -> u32 {
        let name = self.names[self.shard as usize].take();
        if name as usize == self.own.len() {
            self.own.push(BLANK);
        }
        name
    }

    /// Gives room back that was not needed.
    pub(super) fn unreserve(&mut self, name: u32) {
        self.names[self.shard as usize].free.push(name);
    }

    /// The headers of a packet that is about to leave.
    #[inline]
    pub(super) fn headers(&mut self, name: u32) -> &mut Packet {
        &mut self.own[name as usize].packet
    }

    pub(super) fn set_bytes(&mut self, name: u32, bytes: Box<[u8]>) {
        self.own[name as usize].bytes = Some(bytes);
    }

    /// Sends a packet's content on its way, to where it has another name.
    #[inline]
    pub(super) fn dispatch(&mut self, transit: &mut Transit) {
        let to = usize::from(self.shard_of[transit.dst as usize]);
        if to == self.shard as usize {
            return;
        }
        let name = transit.content;
        let content = &mut self.own[name as usize];
        let there = self.names[to].take();
        let moved = Content { copies: 0, bytes: content.bytes.take(), packet: content.packet };
        self.mail[to].contents.push((there, moved));
        self.unreserve(name);
        transit.content = there;
    }

    /// Takes in what shard `from` has to tell.
    pub(super) fn receive(&mut self, from: usize, mail: &mut ContentMail) {
        let contents = &mut self.foreign[from];
        for (name, content) in mail.contents.drain(..) {
            if name as usize >= contents.len() {
                contents.resize_with(name as usize + 1, || BLANK);
            }
            contents[name as usize] = content;
        }
        for (source, name) in mail.copied.drain(..) {
            self.content(source, name).copies += 1;
        }
        for (source, name) in mail.dropped.drain(..) {
            self.release(source, name);
        }
        self.names[from].free.append(&mut mail.free);
    }

    #[inline]
    fn content(&mut self, source: u32, name: u32) -> &mut Content {
        match source == self.shard {
            true => &mut self.own[name as usize],
            false => &mut self.foreign[source as usize][name as usize],
        }
    }

    /// Another packet like `transit` is on its way.
    pub(super) fn copied(&mut self, transit: &Transit) {
        let to = self.shard_of[transit.dst as usize];
        let (source, name) = (transit.source(), transit.content);
        match u32::from(to) == self.shard {
            true => self.content(source, name).copies += 1,
            false => self.mail[usize::from(to)].copied.push((source, name)),
        }
    }

    /// The packet is gone.
    #[inline]
    pub(super) fn remove(&mut self, transit: &Transit) {
        let to = self.shard_of[transit.dst as usize];
        match u32::from(to) == self.shard {
            true => self.release(transit.source(), transit.content),
            false => self.mail[usize::from(to)].dropped.push((transit.source(), transit.content)),
        }
    }

    #[inline]
    fn release(&mut self, source: u32, name: u32) {
        let content = self.content(source, name);
        if content.copies > 0 {
            content.copies -= 1;
            return;
        }
        content.bytes = None;
        match source == self.shard {
            true => self.unreserve(name),
            false => self.mail[source as usize].free.push(name),
        }
    }

    /// Brings a content that will be needed soon into the cache.
    #[inline]
    pub(super) fn prefetch(&self, transit: &Transit) {
        let contents = match transit.source() {
            source if source == self.shard => &self.own,
            source => &self.foreign[source as usize],
        };
        let len = if transit.class() == Class::Data { size_of::<Content>() } else { WITHOUT_REQUEST };
        prefetch_start(&contents[transit.content as usize], len);
    }

    /// A packet as it arrives at a host, with what happened to it on its way.
    #[inline]
    pub(super) fn arrived(&mut self, transit: &Transit) -> (&Packet, Payload<'_>) {
        let contents = match transit.source() {
            source if source == self.shard => &mut self.own,
            source => &mut self.foreign[source as usize],
        };
        let content = &mut contents[transit.content as usize];
        let packet = &mut content.packet;
        (packet.net.class, packet.net.hops, packet.net.ecn) =
            (transit.class(), transit.hops(), transit.ecn());
        if transit.class().is_trimmed() {
            // Trimming leaves the PDS header. Copies of the packet may be whole.
            self.trimmed = Packet { ses: Ses::None, ..*packet };
            return (&self.trimmed, Payload::EMPTY);
        }
        let payload = match &content.bytes {
            Some(bytes) => Payload::Bytes(bytes),
            None => Payload::Virtual(packet.payload_len),
        };
        (packet, payload)
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
                let mut transit = Transit::new(513, 7, &net, (4160, 64), 5);
                assert_eq!((transit.class(), transit.size(), transit.trimmed_size()), (class, 4160, 64));
                assert_eq!((transit.ecn(), transit.hops(), transit.is_corrupt()), (ecn, 5, false));
                transit.corrupt();
                transit.trim(Class::TrimmedLastHop);
                assert_eq!((transit.class(), transit.size()), (Class::TrimmedLastHop, 64));
                assert_eq!((transit.ecn(), transit.is_corrupt()), (ecn, true));
                transit.mark();
                assert_eq!((transit.ecn(), transit.hops(), transit.dst), (true, 5, 9));
                assert_eq!((transit.source(), transit.content), (513, 7));
            }
        }
    }
}
