//! The packets that are on their way, in a slab.

use weft_stack::packet::{Packet, Payload};

/// A packet on its way.
pub(super) struct InTransit {
    pub(super) packet: Packet,
    /// Its payload's bytes; none if there are none, or only their number counts.
    pub(super) bytes: Option<Box<[u8]>>,
    /// What switches hash; made once.
    pub(super) flow_hash: u64,
    /// Bytes on the wire, whole and without payload.
    pub(super) size: u32,
    pub(super) trimmed_size: u32,
    /// Whether a bit was flipped on its way: the checksum will not hold.
    pub(super) corrupt: bool,
}

impl InTransit {
    /// Another packet like it.
    pub(super) fn copy(&self) -> InTransit {
        InTransit { bytes: self.bytes.clone(), ..*self }
    }

    /// What arrives of its payload.
    pub(super) fn payload(&self) -> Payload<'_> {
        match &self.bytes {
            _ if self.packet.net.class.is_trimmed() => Payload::EMPTY,
            Some(bytes) => Payload::Bytes(bytes),
            None if self.packet.payload_len == 0 => Payload::EMPTY,
            None => Payload::Virtual(self.packet.payload_len),
        }
    }
}

/// A slab of packets, named by index.
#[derive(Default)]
pub(super) struct Packets {
    slots: Vec<Option<InTransit>>,
    free: Vec<u32>,
}

impl Packets {
    pub(super) fn insert(&mut self, packet: InTransit) -> u32 {
        match self.free.pop() {
            Some(index) => {
                self.slots[index as usize] = Some(packet);
                index
            }
            None => {
                self.slots.push(Some(packet));
                (self.slots.len() - 1) as u32
            }
        }
    }

    /// The packet `index`, which must be present.
    #[inline]
    pub(super) fn get_mut(&mut self, index: u32) -> &mut InTransit {
        self.slots[index as usize].as_mut().expect("events name packets that are on their way")
    }

    pub(super) fn remove(&mut self, index: u32) -> InTransit {
        let packet = self.slots[index as usize].take();
        self.free.push(index);
        packet.expect("events name packets that are on their way")
    }
}
