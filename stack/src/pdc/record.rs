//! The initiator's record of each unacknowledged packet: 32 bytes, no payload.

use weft_cc::{Span, Time};

use super::bitmap::Bitmap;
use crate::heap;
use crate::spray::Entropy;
use crate::wire::pds::Psn;

/// The kind of packet that has a PSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketKind {
    /// A part of a message.
    Data {
        /// The message, as numbered by the endpoint.
        send: u32,
        /// Offset of the part in the message, bytes.
        offset: u32,
        /// Length of the part, bytes.
        len: u32,
    },
    /// A request to read a part of the peer's memory, whose bytes come with the acknowledgement.
    Read {
        /// The read, as numbered by the endpoint.
        send: u32,
        /// Offset of the part in the read, bytes.
        offset: u32,
        /// Length of the part, bytes.
        len: u32,
    },
    /// A CLOSE_CMD.
    Close,
}

impl PacketKind {
    /// The message or read that the packet is a part of, as numbered by the endpoint.
    #[inline]
    pub fn send(&self) -> Option<u32> {
        match self {
            PacketKind::Data { send, .. } | PacketKind::Read { send, .. } => Some(*send),
            PacketKind::Close => None,
        }
    }
}

/// [`PacketKind`] without its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Data,
    Read,
    Close,
}

/// The state of a packet, as far as the initiator knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Sent and not acknowledged.
    InFlight,
    /// Known not to have arrived; waits for retransmission.
    Lost,
    /// The target has it.
    Acked,
}

/// One packet that was sent. Its kind is stored in plain fields instead of an enum, which keeps the record at 32
/// bytes: two in a cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
pub struct TxRecord {
    /// When it was last sent.
    pub sent_at: Time,
    send: u32,
    offset: u32,
    len: u32,
    /// Bytes that the packet counts for in windows.
    pub bytes: u32,
    /// The entropy of its last transmission.
    pub entropy: Entropy,
    /// Number of transmissions.
    pub transmissions: u8,
    /// Number of expiries of its retransmission timer.
    pub timeouts: u8,
    kind: Kind,
    pub(super) state: State,
}

/// Bytes that an initiator has for each packet that is not acknowledged, apart from its payload, if the window is a power of two: its
/// record, and its place among those that are to be sent again.
pub const BYTES_PER_PACKET: u64 = (size_of::<TxRecord>() + 2 * size_of::<Psn>()) as u64;

impl TxRecord {
    /// The record of a packet that is sent now for the first time.
    #[inline]
    pub(super) fn new(now: Time, kind: PacketKind, bytes: u32, entropy: Entropy) -> TxRecord {
        let (kind, send, offset, len) = match kind {
            PacketKind::Data { send, offset, len } => (Kind::Data, send, offset, len),
            PacketKind::Read { send, offset, len } => (Kind::Read, send, offset, len),
            PacketKind::Close => (Kind::Close, 0, 0, 0),
        };
        TxRecord {
            sent_at: now,
            send,
            offset,
            len,
            bytes,
            entropy,
            transmissions: 1,
            timeouts: 0,
            kind,
            state: State::InFlight,
        }
    }

    /// The kind of packet, with its part of a message.
    #[inline]
    pub fn kind(&self) -> PacketKind {
        let TxRecord { send, offset, len, .. } = *self;
        match self.kind {
            Kind::Data => PacketKind::Data { send, offset, len },
            Kind::Read => PacketKind::Read { send, offset, len },
            Kind::Close => PacketKind::Close,
        }
    }

    /// Whether it is part of a message or a read.
    #[inline]
    pub(super) fn has_data(&self) -> bool {
        self.kind != Kind::Close
    }

    /// Bytes that it counts for in windows and carries itself: without those that come back with its acknowledgement.
    #[inline]
    pub(super) fn carried(&self) -> u32 {
        if self.kind == Kind::Read { self.bytes.saturating_sub(self.len) } else { self.bytes }
    }

    /// Whether it asks for data, which comes with its acknowledgement.
    #[inline]
    pub(super) fn is_read(&self) -> bool {
        self.kind == Kind::Read
    }

    /// Whether it carries a part of a message, was sent once, and is in flight.
    #[inline]
    pub(super) fn is_first_transmission(&self) -> bool {
        self.transmissions == 1 && self.kind == Kind::Data && self.state == State::InFlight
    }

    /// When its retransmission timer expires: `rto` · 2^timeouts after it was sent, or after `news` if that was later.
    pub(super) fn deadline(&self, rto: Span, news: Option<Time>) -> Time {
        let began = news.map_or(self.sent_at, |news| news.latest(self.sent_at));
        began + backed_off(rto, self.timeouts)
    }

    /// The age at which it counts as late if answers take up to `reach`. A packet that was lost again and again is
    /// judged ever later, so that a path that swallows it is not fed at the pace of round trips.
    pub(super) fn reach(&self, reach: Span) -> Span {
        reach.times(1 << self.transmissions.saturating_sub(2).min(MAX_REACH_DOUBLINGS))
    }
}

/// How often a retransmission timeout doubles: the longest is 4 RTO. So 17 transmissions fit in the 63 RTO of silence
/// after which a peer is given up, where six would fit without a limit.
pub const MAX_DOUBLINGS: u8 = 2;
/// How often [`TxRecord::reach`] doubles.
const MAX_REACH_DOUBLINGS: u8 = 6;

/// `rto` · 2^`expiries`, with at most [`MAX_DOUBLINGS`].
pub(crate) fn backed_off(rto: Span, expiries: u8) -> Span {
    rto.times(1 << expiries.min(MAX_DOUBLINGS))
}

/// The records of all PSNs from the first unacknowledged one on, in a ring whose length is a power of two, indexed by
/// the low bits of the PSN.
///
/// A bitmap beside them says which packets are acknowledged. Acknowledgements repeat much that is known, and testing a
/// bit is cheaper than fetching a record.
#[derive(Debug)]
pub(super) struct Records {
    ring: Box<[TxRecord]>,
    acked: Bitmap,
    /// The PSN of the next record to be added.
    end: Psn,
}

/// A ring with room for so many records gives nothing back: 4 KiB.
const SPARE: usize = 128;

impl Records {
    /// No records yet; the first will be that of `first`. At most `range` records exist at a time.
    pub(super) fn new(first: Psn, range: u32) -> Records {
        Records { ring: Box::default(), acked: Bitmap::new(first, range), end: first }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.end == self.first()
    }

    /// The first unacknowledged PSN; [`Records::end`] if all are acknowledged.
    #[inline]
    pub(super) fn first(&self) -> Psn {
        self.acked.base()
    }

    /// Number of acknowledged packets beyond the first unacknowledged one.
    #[inline]
    pub(super) fn acknowledged_beyond(&self) -> u32 {
        self.acked.count()
    }

    /// The PSN of the next record to be added.
    #[inline]
    pub(super) fn end(&self) -> Psn {
        self.end
    }

    /// The record of `psn`, if it is in the ring.
    #[inline]
    pub(super) fn get(&self, psn: Psn) -> Option<&TxRecord> {
        if !self.contains(psn) {
            return None;
        }
        self.ring.get(slot(psn, self.ring.len()))
    }

    /// The record of `psn`, mutably, if it is in the ring.
    #[inline]
    pub(super) fn get_mut(&mut self, psn: Psn) -> Option<&mut TxRecord> {
        if !self.contains(psn) {
            return None;
        }
        self.ring.get_mut(slot(psn, self.ring.len()))
    }

    /// Adds the record of [`Records::end`].
    #[inline]
    pub(super) fn push(&mut self, record: TxRecord) {
        if self.len() as usize == self.ring.len() {
            self.resize((self.ring.len() * 2).max(4));
        }
        let place = slot(self.end, self.ring.len());
        self.ring[place] = record;
        self.end = self.end.plus(1);
    }

    /// Marks `from + i` as acknowledged for each bit i of `bits`, and forgets all records before the first
    /// unacknowledged one. Returns the bits that were new. The caller changes the state of their records, which stay
    /// readable with [`Records::settled`].
    #[inline]
    pub(super) fn acknowledge(&mut self, from: Psn, bits: u64) -> u64 {
        if from != self.first() {
            return self.acknowledge_apart(from, bits);
        }
        let present = match self.len() {
            len @ 0..64 => bits & ((1 << len) - 1),
            _ => bits,
        };
        self.acked.insert_at_base(present)
    }

    /// [`Records::acknowledge`] for bits that do not begin with the first unacknowledged PSN.
    #[inline(never)]
    fn acknowledge_apart(&mut self, from: Psn, bits: u64) -> u64 {
        // Most often a bitmap has nothing beyond the packets that CACK has named.
        let behind = self.first().distance(from);
        if behind >= 64 || behind > 0 && bits >> behind == 0 {
            return 0;
        }
        let present = match self.end.distance(from) {
            ..=0 => return 0,
            ahead @ 1..64 => bits & ((1 << ahead) - 1),
            _ => bits,
        };
        let news = present & !self.acked.word(from);
        if news != 0 {
            self.acked.insert_word(from, news);
        }
        news
    }

    /// The record of `psn`, which [`Records::acknowledge`] has just reported as new, even if it is forgotten.
    #[inline]
    pub(super) fn settled(&mut self, psn: Psn) -> Option<&mut TxRecord> {
        self.ring.get_mut(slot(psn, self.ring.len()))
    }

    /// All records with their PSNs, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Psn, &TxRecord)> {
        let psns = (0..self.len()).map(|n| self.first().plus(n));
        psns.filter_map(|psn| self.get(psn).map(|record| (psn, record)))
    }

    #[inline]
    fn contains(&self, psn: Psn) -> bool {
        // Before the first PSN the distance is negative, which as an unsigned number exceeds any length.
        (psn.distance(self.first()) as u32) < self.len()
    }

    #[inline]
    fn len(&self) -> u32 {
        self.end.distance(self.first()) as u32
    }

    /// Gives back the memory of a ring that has become much longer than it needs to be.
    pub(super) fn give_back(&mut self) {
        let (len, capacity) = (self.len() as usize, self.ring.len());
        if heap::is_too_large(len, capacity, SPARE) {
            self.resize((2 * len).next_power_of_two().max(SPARE));
        }
    }

    /// Makes the ring so long, a power of two or nothing, that all records have room.
    #[cold]
    #[inline(never)]
    fn resize(&mut self, len: usize) {
        let unused = TxRecord::new(Time::ZERO, PacketKind::Close, 0, Entropy(0));
        let mut ring = vec![unused; len].into_boxed_slice();
        for (psn, record) in self.iter() {
            ring[slot(psn, ring.len())] = *record;
        }
        self.ring = ring;
    }

    /// Bytes of heap allocated.
    pub(super) fn heap_bytes(&self) -> u64 {
        size_of_val(&*self.ring) as u64 + self.acked.heap_bytes()
    }

    /// Advances as if `psns` more records had been added and acknowledged.
    #[cfg(test)]
    pub(super) fn skip(&mut self, psns: u32) {
        assert!(self.is_empty());
        *self = Records::new(self.first().plus(psns), self.acked.range());
    }
}

/// The index of `psn` in a ring of length `len`, a power of two.
#[inline]
fn slot(psn: Psn, len: usize) -> usize {
    psn.0 as usize & len.wrapping_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn record_of(psn: Psn) -> TxRecord {
        let kind = PacketKind::Data { send: psn.0, offset: 1, len: 2 };
        TxRecord::new(Time::ZERO, kind, 3, Entropy(4))
    }

    fn sparse_bits() -> impl Strategy<Value = u64> {
        prop_oneof![
            Just(1),
            any::<u64>().prop_map(|bits| bits & bits >> 32),
            (0u32..64).prop_map(|n| (1 << n) - 1)
        ]
    }

    #[test]
    fn two_records_share_a_cache_line() {
        assert_eq!(size_of::<TxRecord>(), 32);
    }

    proptest! {
        #[test]
        fn the_records_agree_with_a_map(start: u32, steps in prop::collection::vec((0u32..200, 0u32..400, sparse_bits(), any::<bool>()), 0..60)) {
            let mut records = Records::new(Psn(start), 1024);
            // By PSN: whether the packet is acknowledged.
            let mut model = BTreeMap::new();
            let mut next = 0;
            for (added, acknowledged, bits, gives_back) in steps {
                for _ in 0..added.min(1024 - (next - records.first().distance(Psn(start)) as u32)) {
                    records.push(record_of(records.end()));
                    model.insert(next, false);
                    next += 1;
                }
                if gives_back {
                    records.give_back();
                    let room = records.ring.len() as u32;
                    prop_assert!(room <= (4 * records.len()).max(SPARE as u32), "{room}");
                }
                let number = next.wrapping_sub(acknowledged);
                let psn = Psn(start).plus(number);
                let mut news = 0;
                for bit in (0..64).filter(|bit| bits >> bit & 1 == 1) {
                    if let Some(acked) = model.get_mut(&number.wrapping_add(bit)).filter(|acked| !**acked) {
                        *acked = true;
                        news |= 1 << bit;
                    }
                }
                prop_assert_eq!(records.acknowledge(psn, bits), news);
                for bit in (0..64).filter(|bit| news >> bit & 1 == 1) {
                    let kind = records.settled(psn.plus(bit)).map(|record| record.kind());
                    prop_assert_eq!(kind, Some(record_of(psn.plus(bit)).kind()));
                }
                while model.first_entry().is_some_and(|first| *first.get()) {
                    model.pop_first();
                }
                let psns = model.keys().map(|number| Psn(start).plus(*number)).collect::<Vec<_>>();
                prop_assert_eq!(records.iter().map(|(psn, _)| psn).collect::<Vec<_>>(), psns);
                prop_assert!(records.iter().all(|(psn, record)| record.kind() == record_of(psn).kind()));
                prop_assert_eq!(records.end(), Psn(start).plus(next));
            }
        }
    }
}
