//! Messages that a target does not take to their end: their process is gone, or was not there when they came.
//!
//! Another process may open under the same number while the rest of one arrives. It must not get that: the rest
//! would meet a receive and never fill it.

use super::Map;
use crate::heap;
use crate::wire::pds::Psn;

/// Such messages of one PDC. What a packet costs does not depend on how many there are: a peer may begin one with each.
#[derive(Debug)]
pub(super) struct Refused {
    /// About where each was last seen, by its number. Of one number there are two at most of which something can come: three
    /// that are further apart than two windows do not fit into the three in which packets can be.
    messages: Map<(u16, Twin), Psn>,
    /// PSNs from where a message was last seen, either way, within which packets with its number are its own.
    reach: i32,
    /// When there are more, those of which nothing can come are forgotten.
    sweep_at: usize,
    /// When there are more, and the peer has no room for them, those that were seen before the next packet are forgotten.
    crowded_at: usize,
}

/// Which of two messages of one number.
type Twin = bool;

/// Messages that are kept in any case, and for which no room is needed.
pub const FEW: usize = 16;
/// Bytes that each further message counts for: its place in the table, and as many as the table has free beside it when it has
/// just grown, with marks of those that were taken out.
pub(super) const RECORD: u64 = 48;

impl Refused {
    /// None so far, of a PDC with `mp_range`.
    ///
    /// No two packets of a message that arrive one after the other are further apart than a window, and the place
    /// where a message was seen is known to within another. Two windows are less than the 2¹⁶ PSNs after which
    /// a message's number can come again.
    pub(super) fn new(mp_range: u32) -> Refused {
        Refused { messages: Map::default(), reach: 2 * mp_range as i32, sweep_at: FEW, crowded_at: FEW }
    }

    /// Whether packet `psn` belongs to such a message.
    pub(super) fn holds(&self, msg_id: u16, psn: Psn) -> bool {
        let is_its = |at: &Psn| psn.distance(*at).abs() <= self.reach;
        [false, true].iter().any(|twin| self.messages.get(&(msg_id, *twin)).is_some_and(is_its))
    }

    /// Adds the message of packet `psn`. All before `expected` has arrived: of messages that were last seen long before,
    /// nothing can come any more. Of those that were seen a little before, nothing comes either if the initiator sends the
    /// packets of each message one after the other: they make room if there `is_room` for no further one.
    pub(super) fn add(&mut self, msg_id: u16, psn: Psn, expected: Psn, is_room: bool) {
        let reach = self.reach;
        let mut place = (msg_id, false);
        for name in [(msg_id, true), (msg_id, false)] {
            match self.messages.get(&name) {
                Some(at) if psn.distance(*at).abs() <= reach => {
                    place = name;
                    break;
                }
                Some(at) if expected.distance(*at) <= reach => {}
                _ => place = name,
            }
        }
        if !is_room && self.messages.len() >= self.crowded_at && !self.messages.contains_key(&place) {
            self.sweep(expected, 0);
            self.crowded_at = self.sweep_at;
        }
        self.messages.insert(place, psn);
        if self.messages.len() > self.sweep_at {
            self.sweep(expected, self.reach);
        }
    }

    /// Forgets messages that were last seen more than `reach` before `expected`. As a fifth of those that are looked at are
    /// new since the last time, or more, each that is added pays for five at most.
    #[cold]
    fn sweep(&mut self, expected: Psn, reach: i32) {
        #[cfg(test)]
        crate::steps::count(self.messages.len());
        self.messages.retain(|_, at| expected.distance(*at) <= reach);
        self.sweep_at = FEW + self.messages.len() / 4 * 5;
        if self.messages.capacity() > 4 * self.sweep_at {
            self.messages.shrink_to(self.sweep_at);
        }
    }

    /// Bytes that they count for.
    pub(super) fn cost(&self) -> u64 {
        self.messages.len().saturating_sub(FEW) as u64 * RECORD
    }

    /// Whether the next message needs room.
    pub(super) fn is_more_than_few(&self) -> bool {
        self.messages.len() >= FEW
    }

    /// Bytes of heap held.
    pub(super) fn heap_bytes(&self) -> u64 {
        heap::of_map(&self.messages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps;

    #[test]
    fn follows_a_message_and_lets_its_number_come_again() {
        let start = Psn(u32::MAX - 100);
        let mut refused = Refused::new(128);
        refused.add(7, start, start, true);
        // Packets of a window are out of order.
        for n in [100, 60, 180, 300, 290] {
            assert!(refused.holds(7, start.plus(n)) && !refused.holds(8, start.plus(n)));
            refused.add(7, start.plus(n), start.plus(n.saturating_sub(100)), true);
        }
        assert_eq!(refused.messages.len(), 1);
        assert!(!refused.holds(7, start.plus(290 + (1 << 16))), "another message of that number");
        refused.add(9, start.plus(800), start.plus(800), true);
        assert!(refused.holds(9, start.plus(801)));
        refused.sweep(start.plus(800), refused.reach);
        assert_eq!(refused.messages.len(), 1, "nothing of the first one can come any more");
    }

    /// A hostile peer begins a message with each packet.
    #[test]
    fn what_a_message_costs_does_not_depend_on_how_many_there_are() {
        const MP_RANGE: u32 = 32_640;
        for count in [1_000, 10_000, 1_000_000] {
            let mut refused = Refused::new(MP_RANGE);
            let steps = steps::of(|| {
                for n in 0..count {
                    let psn = Psn(n);
                    assert!(!refused.holds(n as u16, psn), "another message had number {n}");
                    refused.add(n as u16, psn, psn, true);
                    assert!(refused.holds(n as u16, psn));
                }
            });
            assert!((1..=5 * u64::from(count)).contains(&steps), "{steps} steps for {count}");
            assert!(refused.messages.len() <= FEW + 3 * MP_RANGE as usize);
        }
    }

    #[test]
    fn the_widest_window_is_told_from_the_next_message_of_that_number() {
        let mut refused = Refused::new(32_640);
        refused.add(1, Psn(5), Psn(5), true);
        assert!(refused.holds(1, Psn(5 + 2 * 32_640)) && !refused.holds(1, Psn(5 + (1 << 16))));
    }

    /// A peer without room: it has `ahead` messages behind a packet that is missing, and then begins one with each packet that
    /// is the next.
    #[test]
    fn without_room_those_before_the_next_packet_make_room_and_those_behind_it_stay() {
        for ahead in [0u32, 10, 1_000, 10_000] {
            let mut refused = Refused::new(32_640);
            for n in 0..ahead {
                refused.add(n as u16, Psn(10_000 + n), Psn(0), true);
            }
            let steps = steps::of(|| {
                for n in 0..10_000 {
                    let (msg_id, psn) = ((20_000 + n) as u16, Psn(n));
                    refused.add(msg_id, psn, psn, false);
                    assert!(
                        refused.holds(msg_id, psn.plus(1)),
                        "the rest of message {n} is the next to come"
                    );
                    assert!(refused.messages.len() <= 2 * FEW + ahead as usize / 4 * 5);
                }
            });
            assert!(steps <= 60_000 + u64::from(ahead), "{steps} steps beside {ahead}");
            assert!((0..ahead).all(|n| refused.holds(n as u16, Psn(10_000 + n))));
        }
    }
}
