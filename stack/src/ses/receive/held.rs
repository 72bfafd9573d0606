//! What the receives and messages of a process hold: for limits, for figures, and for tests, which compare it with what is counted.

#[cfg(test)]
use std::collections::BTreeMap;

#[cfg(test)]
use super::{Counts, Wait};
use super::{Destination, Incoming, Receives};
use crate::heap;
use crate::packet::Addr;
use crate::ses::Room;
#[cfg(test)]
use crate::ses::{Map, Source};

impl Receives {
    /// Bytes kept of the messages of `peer` that have met no receive.
    pub fn kept_of(&self, peer: Addr) -> u64 {
        self.kept.of_peer(peer).bytes
    }

    /// Messages of `peer` that have met no receive, those that have arrived before their turn, and at most as many more
    /// as have to arrive before those.
    pub fn kept_messages_of(&self, room: &Room, peer: Addr) -> u32 {
        self.kept.of_peer(peer).unexpected.saturating_add(room.early_of(peer))
    }

    /// Checks that `room` counts for this process as much as exists, and returns it: the number of messages that wait
    /// or are claimed, and the bytes that are kept of messages without a receive.
    #[cfg(test)]
    pub(crate) fn check(&self, room: &Room) -> (u64, u64) {
        let own = self.messages.iter().filter_map(|(_, message)| match &message.destination {
            Destination::Own { wait, buffer } => {
                Some((u64::from(*wait != Wait::Turn), buffer.as_ref().map_or(0, |_| message.total.into())))
            }
            Destination::Partly(_) => Some((0, message.total.into())),
            Destination::Receive { .. } | Destination::Nowhere => None,
        });
        let copied = self.copies.iter().flat_map(|copies| copies.kept()).map(|bytes| (0, bytes));
        let there =
            own.chain(copied).fold((0, 0), |all: (u64, u64), one: (u64, u64)| (all.0 + one.0, all.1 + one.1));
        assert_eq!((room.messages.used(self.process), room.bytes.used(self.process)), there);
        let kept = self.kept.check();
        let known = kept.values().map(|kept| (u64::from(kept.unexpected), kept.bytes));
        assert_eq!(known.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1)), there);
        let (messages, bytes) = (room.messages_per_peer, room.bytes_per_peer);
        for (source, own) in &kept {
            let all = self.kept.of_peer(source.peer);
            assert!(own.unexpected <= messages && all.unexpected <= 2 * messages);
            assert!(own.bytes <= bytes && all.bytes <= 2 * bytes);
        }
        there
    }

    /// Checks that messages are in the lists of incomplete ones exactly while they are. Counts those of each PDC
    /// and process, and those that count for their senders.
    #[cfg(test)]
    pub(crate) fn count_incomplete(
        &self,
        of_pdcs: &mut BTreeMap<(u16, u16), u16>,
        of_sources: &mut Map<Source, u32>,
    ) {
        for (_, message) in self.messages.iter() {
            assert_eq!(message.neighbours.is_some(), !message.is_complete(), "{message:?}");
            if message.neighbours.is_some() {
                *of_pdcs.entry((message.name.0.0, self.process)).or_default() += 1;
                if message.counts == Counts::ForSource {
                    *of_sources.entry(message.source).or_default() += 1;
                }
            }
        }
        let incomplete = self.messages.iter().filter(|(_, message)| !message.is_complete());
        self.many.check(incomplete.filter_map(|(_, message)| Some((message.receive()?, message.source))));
    }

    /// Bytes of heap allocated for posted receives, without their memory.
    pub(crate) fn posted_bytes(&self) -> u64 {
        self.posted.heap_bytes()
    }

    /// Bytes of heap allocated for messages in progress, without their contents.
    pub(crate) fn message_bytes(&self) -> u64 {
        let arrived = self.messages.iter().map(|(_, message)| message.arrived.heap_bytes());
        self.messages.heap_bytes()
            + arrived.sum::<u64>()
            + self.unexpected.heap_bytes()
            + heap::of_map(&self.by_name)
            + self.kept.heap_bytes()
            + self.many.heap_bytes()
            + self.copies.as_ref().map_or(0, |copies| copies.heap_bytes())
    }

    /// Bytes of the memory of posted receives and messages in progress.
    pub(crate) fn payload_bytes(&self) -> u64 {
        let buffer = |message: &Incoming| match &message.destination {
            Destination::Receive { buffer, .. } => heap::of_buffer(buffer),
            Destination::Own { buffer, .. } => buffer.as_ref().map_or(0, heap::of_buffer),
            Destination::Partly(partly) => heap::of_buffer(&partly.buffer) + heap::of_buffer(&partly.kept),
            Destination::Nowhere => 0,
        };
        let gathering = self.gathering.as_ref().map_or(0, |posted| heap::of_buffer(&posted.buffer));
        gathering
            + self.copies.as_ref().map_or(0, |copies| copies.payload_bytes())
            + self.posted.payload_bytes()
            + self.messages.iter().map(|(_, message)| buffer(message)).sum::<u64>()
    }
}
