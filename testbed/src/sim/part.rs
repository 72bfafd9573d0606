//! Flows of more bytes than a message can have: they are sent as messages of one connection, a few at a time, so that
//! neither end holds more than those.

use std::collections::BTreeSet;

/// About how many bytes a part has.
const PART: u64 = 64 << 20;
/// Parts that are under way at a time. When one has arrived, the others are more than any window holds.
const AT_A_TIME: u32 = 4;

/// Whether a flow of so many bytes is sent in parts.
pub(super) fn is_large(bytes: u64) -> bool {
    bytes > u64::from(u32::MAX)
}

/// The name of part `number` of the flow with index `flow`. A flow that is one message has that of part 0.
pub(super) fn name(flow: u32, number: u32) -> u64 {
    u64::from(number) << 32 | u64::from(flow)
}

/// The index of the flow that a message belongs to.
pub(super) fn flow_of(name: u64) -> u32 {
    name as u32
}

/// The number of the part that a message is.
pub(super) fn number(name: u64) -> u32 {
    (name >> 32) as u32
}

/// How flows are cut.
#[derive(Clone, Copy)]
pub(super) struct Parts {
    /// Bytes of each part but the last: full packets only, so that cutting adds no packet.
    each: u64,
}

impl Parts {
    pub(super) fn new(mtu: u32) -> Parts {
        let mtu = u64::from(mtu.max(1));
        Parts { each: PART / mtu * mtu }
    }

    /// Number of parts of a flow of so many bytes.
    pub(super) fn count(self, bytes: u64) -> u32 {
        if is_large(bytes) { u32::try_from(bytes.div_ceil(self.each)).unwrap_or(u32::MAX) } else { 1 }
    }

    /// Bytes of the message `name` of a flow of `bytes` bytes; `None` if the flow has no such part.
    pub(super) fn bytes(self, bytes: u64, name: u64) -> Option<u32> {
        let number = number(name);
        if number >= self.count(bytes) {
            return None;
        }
        let left = bytes - u64::from(number) * self.each;
        Some(if is_large(bytes) { left.min(self.each) } else { left } as u32)
    }
}

/// A large flow at its source.
#[derive(Debug)]
pub(super) struct LeavingParts {
    /// The part that is sent next.
    pub(super) next: u32,
    pub(super) under_way: u32,
    /// Whether a part could not be sent: no further one is.
    pub(super) failed: bool,
}

impl LeavingParts {
    /// The number of the part to send now, of `count`; `None` if enough are under way or none is left.
    pub(super) fn take_next(&mut self, count: u32) -> Option<u32> {
        if self.failed || self.under_way == AT_A_TIME || self.next == count {
            return None;
        }
        self.under_way += 1;
        self.next += 1;
        Some(self.next - 1)
    }

    /// A part could not be sent at all.
    pub(super) fn give_up(&mut self) {
        self.end(true);
    }

    /// A part has ended.
    pub(super) fn end(&mut self, failed: bool) {
        self.under_way -= 1;
        self.failed |= failed;
    }

    /// Whether the flow has failed, and no part of it is under way any more.
    pub(super) fn has_failed_altogether(&self) -> bool {
        self.failed && self.under_way == 0
    }
}

/// A large flow at its destination.
#[derive(Debug, Default)]
pub(super) struct ArrivingParts {
    /// All parts below this number have arrived.
    below: u32,
    /// Parts from there on for which a receive has been posted, and those of them that have arrived.
    expected: BTreeSet<u32>,
    arrived: BTreeSet<u32>,
}

impl ArrivingParts {
    /// Whether no receive has been posted for part `number` yet.
    pub(super) fn is_news(&self, number: u32) -> bool {
        number >= self.below && !self.expected.contains(&number)
    }

    /// A receive has been posted for part `number`.
    pub(super) fn expect(&mut self, number: u32) {
        self.expected.insert(number);
    }

    /// Part `number` has arrived. Returns how many parts have arrived without a gap from the first one on.
    pub(super) fn arrive(&mut self, number: u32) -> u32 {
        self.arrived.insert(number);
        while self.arrived.remove(&self.below) {
            self.expected.remove(&self.below);
            self.below += 1;
        }
        self.below
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_make_up_the_flow_in_full_packets() {
        for mtu in [64, 1000, 4096, 16_383] {
            let parts = Parts::new(mtu);
            for bytes in [u64::from(u32::MAX) + 1, 5_000_000_000, 100_000_000_001] {
                let count = parts.count(bytes);
                let sizes: Vec<u64> =
                    (0..count).map(|part| parts.bytes(bytes, name(7, part)).unwrap().into()).collect();
                assert_eq!(sizes.iter().sum::<u64>(), bytes);
                assert!(sizes[..sizes.len() - 1].iter().all(|size| size % u64::from(mtu) == 0));
                let packets: u64 = sizes.iter().map(|size| size.div_ceil(mtu.into())).sum();
                assert_eq!(packets, bytes.div_ceil(mtu.into()), "cutting adds no packet");
                assert_eq!(parts.bytes(bytes, name(7, count)), None);
            }
            assert_eq!(parts.count(u32::MAX.into()), 1);
            assert_eq!(parts.bytes(u32::MAX.into(), 3), Some(u32::MAX));
            assert_eq!(parts.bytes(0, 3), Some(0));
            assert_eq!(parts.bytes(9, name(3, 1)), None);
        }
    }

    #[test]
    fn a_few_parts_are_under_way_until_one_fails() {
        let mut parts = LeavingParts { next: 0, under_way: 0, failed: false };
        let taken: Vec<u32> = std::iter::from_fn(|| parts.take_next(6)).collect();
        assert_eq!(taken, [0, 1, 2, 3]);
        parts.end(false);
        assert_eq!((parts.take_next(6), parts.take_next(6)), (Some(4), None));
        parts.end(true);
        assert_eq!(parts.take_next(6), None);
        (0..3).for_each(|_| parts.end(false));
        assert!(parts.has_failed_altogether());
    }

    #[test]
    fn parts_arrive_in_any_order_and_late_duplicates_are_known() {
        let mut parts = ArrivingParts::default();
        for number in [0, 1, 2] {
            assert!(parts.is_news(number));
            parts.expect(number);
        }
        assert!(!parts.is_news(2));
        assert_eq!([parts.arrive(2), parts.arrive(0), parts.arrive(1)], [0, 1, 3]);
        assert!(!parts.is_news(0) && !parts.is_news(2) && parts.is_news(3));
        assert!(parts.expected.is_empty() && parts.arrived.is_empty());
    }
}
