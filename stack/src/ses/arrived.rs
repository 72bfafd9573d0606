//! The parts of a message that have arrived.
//!
//! A message is complete when each of its bytes has arrived once: counting bytes would complete one of which a part came
//! twice and another never. A sender cuts a message into segments of one length, the last of which may be shorter (UET:
//! all but the last carry the PDC's payload MTU), so beyond the bytes that have arrived in order a bit a segment is
//! enough; segments that are in order need nothing.

use super::Order;
use crate::pdc::Bitmap;
use crate::wire::pds::Psn;

/// Segments ahead of the first missing one for which no memory is allocated, because sprayed packets often arrive this far
/// out of order.
const NEAR: u32 = 64;

/// The parts of a message that have arrived.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arrived {
    /// Bytes from the start of the message on, without a gap.
    front: u32,
    /// Bytes of the last segment, if it has arrived ahead of others.
    tail: u32,
    /// The segments between the two.
    ahead: Option<Ahead>,
}

/// Segments that arrived ahead of others, by their numbers in the message. (Numbers of a message are as circular as PSNs.)
#[derive(Clone, Debug)]
struct Ahead {
    /// Bytes of a segment.
    segment: u32,
    /// The first missing one: kept, because a division for each packet would cost more than all else here.
    first: u32,
    present: Present,
}

#[derive(Clone, Debug)]
enum Present {
    /// Bit i stands for the segment that is i behind the first missing one, whose own bit is never set.
    Near(u64),
    Far(Box<Bitmap>),
}

impl Arrived {
    /// Whether all `total` bytes have arrived.
    #[inline]
    pub(crate) fn is_all(&self, total: u32) -> bool {
        self.front == total
    }

    /// Adds `offset..end` of a message of `total` bytes, which is not empty and inside the message. False, and nothing
    /// changes, if a byte of it has arrived already or it is no segment of the length of those before, or one that is as many
    /// segments ahead of the first missing one as the PDC of `order` has packets in its window, or more, and not the last.
    #[inline]
    pub(crate) fn add(&mut self, total: u32, offset: u32, end: u32, order: &Order) -> bool {
        if offset < self.front || end > total - self.tail {
            return false;
        }
        let (in_order, last) = (offset == self.front, end == total);
        match &mut self.ahead {
            None if in_order => self.front = end,
            None if last => self.tail = end - offset,
            None => return self.begin_ahead(total, offset, end, order),
            Some(ahead) if last => match ahead.is_last(offset, end) {
                true if in_order => self.front = end,
                true => self.tail = end - offset,
                false => return false,
            },
            Some(ahead) => {
                if !ahead.add(offset, end, order) {
                    return false;
                }
                self.front = ahead.first * ahead.segment;
            }
        }
        if self.front == total - self.tail {
            self.front = total;
        }
        true
    }

    /// [`Arrived::add`] of the first segment that arrives ahead of others and is not the last one: it gives the length,
    /// which what has arrived must agree with.
    #[cold]
    fn begin_ahead(&mut self, total: u32, offset: u32, end: u32, order: &Order) -> bool {
        let segment = end - offset;
        let last = self.tail == 0 || self.tail <= segment && (total - self.tail).is_multiple_of(segment);
        if !last || !self.front.is_multiple_of(segment) {
            return false;
        }
        let mut ahead = Ahead { segment, first: self.front / segment, present: Present::Near(0) };
        let added = ahead.add(offset, end, order);
        if added {
            self.ahead = Some(ahead);
        }
        added
    }

    /// Where the last of the segments ends that have arrived of a message of `total` bytes: nothing has arrived from there on.
    pub(crate) fn reach(&self, total: u32) -> u32 {
        let all_ahead = || self.ahead.as_ref().and_then(Ahead::reach);
        if self.tail > 0 { total } else { all_ahead().unwrap_or(self.front) }
    }

    /// Bytes of heap allocated.
    pub(crate) fn heap_bytes(&self) -> u64 {
        match self.ahead.as_ref().map(|ahead| &ahead.present) {
            Some(Present::Far(present)) => size_of::<Bitmap>() as u64 + present.heap_bytes(),
            Some(Present::Near(_)) | None => 0,
        }
    }
}

impl Ahead {
    /// Adds a segment that is not the last one. False, and nothing changes, if it has arrived, or is none, or is too far ahead.
    #[inline]
    fn add(&mut self, offset: u32, end: u32, order: &Order) -> bool {
        let number = offset / self.segment;
        if number * self.segment != offset || end - offset != self.segment {
            return false;
        }
        let Some(first) = self.present.add(self.first, number, order) else { return false };
        self.first = first;
        true
    }

    /// Where the last segment ends that is ahead of a missing one.
    fn reach(&self) -> Option<u32> {
        Some((self.present.last(self.first)? + 1) * self.segment)
    }

    /// Whether `offset..end`, at the end of the message, is its last segment.
    fn is_last(&self, offset: u32, end: u32) -> bool {
        offset.is_multiple_of(self.segment) && end - offset <= self.segment
    }
}

impl Present {
    /// Adds segment `number`, where `first` is the first missing one. Returns which one that is then.
    #[inline]
    fn add(&mut self, first: u32, number: u32, order: &Order) -> Option<u32> {
        match self {
            Present::Near(bits) if number == first => {
                let run = 1 + (*bits >> 1).trailing_ones();
                *bits = bits.checked_shr(run).unwrap_or(0);
                Some(first + run)
            }
            Present::Near(bits) if number - first < NEAR => {
                let bit = 1 << (number - first);
                let is_new = *bits & bit == 0;
                *bits |= bit;
                is_new.then_some(first)
            }
            _ => self.add_far(first, number, order),
        }
    }

    /// The last segment that is there, where `first` is the first missing one.
    fn last(&self, first: u32) -> Option<u32> {
        let last_of = |ahead: u32, bits: u64| (bits != 0).then(|| first + ahead + bits.ilog2());
        match self {
            Present::Near(bits) => last_of(0, *bits),
            Present::Far(present) => {
                let words = (0..present.range()).step_by(64).rev();
                words
                    .map(|ahead| (ahead, present.word(present.base().plus(ahead))))
                    .find_map(|(n, bits)| last_of(n, bits))
            }
        }
    }

    fn add_far(&mut self, first: u32, number: u32, order: &Order) -> Option<u32> {
        let distance = number - first;
        if distance >= order.window() {
            return None;
        }
        if let Present::Near(bits) = *self {
            let mut present = Box::new(Bitmap::new(Psn(first), 2 * NEAR));
            present.insert_word(Psn(first), bits);
            *self = Present::Far(present);
        }
        let Present::Far(present) = self else { return None };
        if distance >= present.range() {
            present.widen((distance + 1).next_power_of_two());
        }
        present.insert_new(Psn(number)).then(|| present.base().0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A PDC whose window is larger than the number of segments of any message of these tests.
    fn wide() -> Order {
        Order::new(4096)
    }

    /// The segments of a message, as offset and end.
    fn cut(total: u32, mtu: u32) -> Vec<(u32, u32)> {
        let starts = (0..total).step_by(mtu as usize);
        starts.map(|offset| (offset, total.min(offset.saturating_add(mtu)))).collect()
    }

    proptest! {
        #[test]
        fn a_message_is_complete_when_each_segment_has_arrived_once(
            total in 1u32..3_000,
            mtu in 1u32..400,
            order in prop::collection::vec(any::<prop::sample::Index>(), 0..3_000),
            odd in prop::collection::vec((0u32..3_000, 1u32..400), 0..50),
        ) {
            let mut left = cut(total, mtu);
            let (mut arrived, mut bytes) = (Arrived::default(), vec![false; total as usize]);
            for index in order {
                if left.is_empty() {
                    break;
                }
                let (offset, end) = left.swap_remove(index.index(left.len()));
                prop_assert!(arrived.add(total, offset, end, &wide()), "{offset} to {end}");
                prop_assert!(!arrived.add(total, offset, end, &wide()), "{offset} to {end} a second time");
                bytes[offset as usize..end as usize].fill(true);
                prop_assert_eq!(arrived.is_all(total), left.is_empty());
                let reach = bytes.iter().rposition(|there| *there).map_or(0, |last| last as u32 + 1);
                prop_assert_eq!(arrived.reach(total), reach);
                // What overlaps is refused, wherever it begins.
                for &(offset, len) in odd.iter().filter(|(offset, len)| offset + len <= total) {
                    let overlaps = bytes[offset as usize..(offset + len) as usize].contains(&true);
                    prop_assert!(!(overlaps && arrived.add(total, offset, offset + len, &wide())));
                }
            }
        }
    }

    #[test]
    fn a_message_of_four_gibibytes_needs_a_bit_for_each_segment_that_is_ahead() {
        let (total, mtu) = (u32::MAX, 4096);
        let mut arrived = Arrived::default();
        for (offset, end) in cut(total, mtu) {
            // Every second one arrives before the one in front of it.
            let other = if offset / mtu % 2 == 0 { end } else { offset - mtu };
            let (offset, end) = match other.checked_add(mtu) {
                _ if other == total => (offset, end),
                Some(end) => (other, end),
                None => (other, total),
            };
            assert!(arrived.add(total, offset, end, &wide()), "{offset}");
        }
        assert!(arrived.is_all(total) && arrived.heap_bytes() < 128, "{}", arrived.heap_bytes());
    }

    #[test]
    fn segments_of_other_lengths_are_taken_in_order_only() {
        let begun = |offset, end| {
            let mut arrived = Arrived::default();
            assert!(arrived.add(100, offset, end, &wide()));
            move |offset, end| arrived.clone().add(100, offset, end, &wide())
        };
        let takes = begun(0, 7);
        assert!(takes(7, 40), "in order any length will do");
        assert!(!takes(20, 30), "the seven bytes are no segments of ten");
        let takes = begun(20, 30);
        assert!(takes(0, 10) && takes(90, 100));
        assert!(!takes(0, 20) && !takes(15, 25) && !takes(95, 100));
        let takes = begun(95, 100);
        assert!(takes(19, 38) && !takes(10, 20), "95 is a multiple of 19, not of 10");
    }
}
