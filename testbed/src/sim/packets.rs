//! Packets in flight.
//!
//! The fields that switches read travel by value through queues and links, which are accessed sequentially.
//! Headers and payload, which only hosts read, stay in a slab until the packet arrives. So a hop does not
//! touch cold memory.

use std::sync::Arc;

use weft_stack::packet::{Class, Network, Packet, Payload};
use weft_stack::prefetch::prefetch_start;
use weft_stack::wire::class::Priority;
use weft_stack::wire::ses::Ses;

use super::measures::{LastLosses, pair_of};
use super::part;
use crate::switch::{Queued, flow_hash};

/// The fields of a packet that the fabric reads. It is copied at each hop, so it is packed into five words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Transit {
    /// The number of its content among those from its source's shard.
    pub(super) content: u32,
    /// The hash of addresses and entropy, computed once; with [`Routing::Exact`](crate::switch::Routing::Exact) what is left
    /// of the path's number.
    pub(super) flow_hash: u32,
    /// The destination host.
    pub(super) dst: u32,
    /// Bits 0 to 15: bytes on the wire. Bits 16 to 31: bytes on the wire after trimming.
    sizes: u32,
    /// Bits 0 to 7: number of switches on its way. From bit [`CLASS`]: its class, and from [`PRIORITY`] its priority.
    /// Then [`ECN`] and [`CORRUPT`]. From bit [`SOURCE`]: the shard of its source.
    state: u32,
}

const CLASS: u32 = 8;
/// Classes by number. A table, because a `match` would compile to an unpredictable jump.
const CLASSES: [Class; 4] = [Class::Data, Class::Trimmed, Class::TrimmedLastHop, Class::Control];
const PRIORITY: u32 = 10;
const ECN: u32 = 1 << 16;
const CORRUPT: u32 = 1 << 17;
const SOURCE: u32 = 18;
/// The largest number of shards whose numbers fit.
pub(super) const MAX_SHARDS: usize = 1 << (u32::BITS - SOURCE);

impl Transit {
    /// A packet that leaves its source, a host of shard `source`. The headers have just been written, so they
    /// are read in the same pieces: a wide load of narrow stores would cause a store-forwarding stall.
    #[inline]
    pub(super) fn new(
        source: u32,
        content: u32,
        net: &Network,
        (size, trimmed_size): (u16, u16),
        hops: u8,
    ) -> Transit {
        let ecn = if net.ecn { ECN } else { 0 };
        let priority = u32::from(net.priority.number()) << PRIORITY;
        Transit {
            content,
            flow_hash: flow_hash(net),
            dst: net.dst.0,
            sizes: u32::from(trimmed_size) << 16 | u32::from(size),
            state: u32::from(hops) | (net.class as u32) << CLASS | priority | ecn | source << SOURCE,
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

    /// Whether a link has flipped a bit, so that the checksum will fail.
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
    fn priority(&self) -> Priority {
        Priority::new((self.state >> PRIORITY & 7) as u8).unwrap_or_default()
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

/// Headers and payload of a packet. With this field order and alignment, an acknowledgement touches two cache
/// lines and a data packet three.
#[repr(C, align(64))]
pub(super) struct Content {
    /// Number of further packets in flight with this content: copies made by faulty links.
    copies: u32,
    /// The payload's bytes; `None` if it is empty or virtual.
    bytes: Option<Box<[u8]>>,
    packet: Packet,
}

const _: () = assert!(size_of::<Content>() == 192);
const BLANK: Content = Content { copies: 0, bytes: None, packet: Packet::BLANK };
/// Bytes of the cache lines that a packet without a request touches.
const WITHOUT_REQUEST: usize = 128;

/// The contents of packets in flight to the hosts of one shard. Switches do not need the contents, so a
/// content moves from the source's shard to the destination's at once, whatever path its packet takes.
pub(super) struct Packets {
    shard: u32,
    /// The contents from hosts of this shard, by number.
    own: Vec<Content>,
    /// The contents from hosts of each other shard, by number.
    foreign: Vec<Vec<Content>>,
    /// For each shard, the numbers of contents that go there.
    names: Vec<Names>,
    /// The shard of each host.
    shard_of: Arc<[u16]>,
    /// For each shard, the mail for it.
    pub(super) mail: Vec<ContentMail>,
    /// Scratch space for the headers of a trimmed packet.
    trimmed: Packet,
    /// Of flows to hosts of this shard, or of pairs of ranks.
    pub(super) losses: LastLosses,
    /// Whether ranks execute a program, in place of flows.
    runs_ranks: bool,
}

/// Numbers of contents, allocated by the source's shard.
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

/// Changes to contents that one shard reports to another.
#[derive(Default)]
pub(super) struct ContentMail {
    /// From the source: numbers and contents of new packets.
    contents: Vec<(u32, Content)>,
    /// To the destination: source and number of contents whose packets a link has duplicated.
    copied: Vec<(u32, u32)>,
    /// To the destination: source and number of contents whose packets were dropped.
    dropped: Vec<(u32, u32)>,
    /// To the destination: source and number of contents whose packets were lost, with time and port.
    lost: Vec<(u32, u32, u64, u32)>,
    /// To the source: numbers that are free again.
    free: Vec<u32>,
}

impl Packets {
    pub(super) fn new(shard: u32, shards: usize, shard_of: Arc<[u16]>, runs_ranks: bool) -> Packets {
        Packets {
            shard,
            own: Vec::new(),
            foreign: (0..shards).map(|_| Vec::new()).collect(),
            names: (0..shards).map(|_| Names::default()).collect(),
            shard_of,
            mail: (0..shards).map(|_| ContentMail::default()).collect(),
            trimmed: Packet::BLANK,
            losses: LastLosses::default(),
            runs_ranks,
        }
    }

    /// Allocates a content, whose headers the caller must overwrite.
    #[inline]
    pub(super) fn reserve(&mut self) -> u32 {
        let name = self.names[self.shard as usize].take();
        if name as usize == self.own.len() {
            self.own.push(BLANK);
        }
        name
    }

    /// Frees a content that was not used.
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

    /// Moves a packet's content to its destination's shard, where it gets another number.
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

    /// Processes the mail from shard `from`.
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
        for (source, name, at, port) in mail.lost.drain(..) {
            self.note_loss(source, name, at, port);
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

    /// Counts a copy of the packet.
    pub(super) fn copied(&mut self, transit: &Transit) {
        let to = self.shard_of[transit.dst as usize];
        let (source, name) = (transit.source(), transit.content);
        match u32::from(to) == self.shard {
            true => self.content(source, name).copies += 1,
            false => self.mail[usize::from(to)].copied.push((source, name)),
        }
    }

    /// Removes a packet that was delivered or dropped.
    #[inline]
    pub(super) fn remove(&mut self, transit: &Transit) {
        let to = self.shard_of[transit.dst as usize];
        match u32::from(to) == self.shard {
            true => self.release(transit.source(), transit.content),
            false => self.mail[usize::from(to)].dropped.push((transit.source(), transit.content)),
        }
    }

    /// Removes a packet that was lost at `at`, ps, on the link behind `port` or in the queue before it.
    #[cold]
    pub(super) fn lose(&mut self, transit: &Transit, at: u64, port: u32) {
        let to = self.shard_of[transit.dst as usize];
        let (source, name) = (transit.source(), transit.content);
        if u32::from(to) == self.shard {
            self.note_loss(source, name, at, port);
            self.release(source, name);
        } else {
            self.mail[usize::from(to)].lost.push((source, name, at, port));
        }
    }

    fn note_loss(&mut self, source: u32, name: u32, at: u64, port: u32) {
        let runs_ranks = self.runs_ranks;
        let packet = &self.content(source, name).packet;
        let net = &packet.net;
        // A trimmed packet that is lost is still named by its header.
        if let Ses::Standard(header) = packet.ses {
            let key = match runs_ranks {
                false => part::flow_of(header.match_bits).into(),
                true => pair_of((net.src.0, header.initiator as u16), (net.dst.0, header.pid_on_fep)),
            };
            self.losses.note(key, at, port);
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

    /// Prefetches a content that will be needed soon.
    #[inline]
    pub(super) fn prefetch(&self, transit: &Transit) {
        let contents = match transit.source() {
            source if source == self.shard => &self.own,
            source => &self.foreign[source as usize],
        };
        let len = if transit.class() == Class::Data { size_of::<Content>() } else { WITHOUT_REQUEST };
        prefetch_start(&contents[transit.content as usize], len);
    }

    /// The headers and payload of a packet that arrives at a host, with the changes that switches made.
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
            // Trimming leaves the PDS header. The shared content stays untouched, because copies of the
            // packet may be whole.
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
    fn class_priority_size_and_marks_survive_packing() {
        let (src, dst, entropy) = (Addr(1), Addr(9), Entropy(3));
        for (class, number) in
            [Class::Data, Class::Trimmed, Class::TrimmedLastHop, Class::Control].into_iter().zip([0, 1, 5, 7])
        {
            for ecn in [false, true] {
                let priority = Priority::new(number).unwrap();
                let net = Network { src, dst, entropy, class, priority, ecn, hops: 0 };
                let mut transit = Transit::new(513, 7, &net, (4160, 64), 5);
                assert_eq!((transit.class(), transit.size(), transit.trimmed_size()), (class, 4160, 64));
                assert_eq!((transit.ecn(), transit.hops(), transit.is_corrupt()), (ecn, 5, false));
                assert_eq!(transit.priority(), priority);
                transit.corrupt();
                transit.trim(Class::TrimmedLastHop);
                assert_eq!((transit.class(), transit.size()), (Class::TrimmedLastHop, 64));
                assert_eq!((transit.ecn(), transit.is_corrupt()), (ecn, true));
                transit.mark();
                assert_eq!((transit.ecn(), transit.hops(), transit.dst), (true, 5, 9));
                assert_eq!((transit.source(), transit.content, transit.priority()), (513, 7, priority));
            }
        }
    }
}
