//! Messages that a target does not take to their end: their process is gone, or was not there when they came.
//!
//! Another process may open under the same number while the rest of one arrives. It must not get that: the rest
//! would meet a receive and never fill it.

use crate::wire::pds::Psn;

/// Such messages of one PDC.
#[derive(Debug)]
pub(super) struct Refused {
    messages: Vec<Message>,
    /// PSNs from where a message was last seen, either way, within which packets with its number are its own.
    reach: i32,
}

#[derive(Clone, Copy, Debug)]
struct Message {
    msg_id: u16,
    /// About where it was last seen.
    psn: Psn,
}

impl Refused {
    /// None so far, of a PDC with `mp_range`.
    ///
    /// No two packets of a message that arrive one after the other are further apart than a window, and the place
    /// where a message was seen is known to within another. Two windows are less than the 2¹⁶ PSNs after which
    /// a message's number can come again.
    pub(super) fn new(mp_range: u32) -> Refused {
        Refused { messages: Vec::new(), reach: 2 * mp_range as i32 }
    }

    /// Whether packet `psn` belongs to such a message.
    pub(super) fn holds(&self, msg_id: u16, psn: Psn) -> bool {
        // The newest is the one that most packets are of.
        self.messages.iter().rev().any(|message| self.is(message, msg_id, psn))
    }

    /// Adds the message of packet `psn`, and forgets those of which nothing can come any more, as all before
    /// `expected` has arrived.
    pub(super) fn add(&mut self, msg_id: u16, psn: Psn, expected: Psn) {
        let reach = self.reach;
        self.messages.retain(|message| expected.distance(message.psn) <= reach);
        match self.messages.iter().rposition(|message| self.is(message, msg_id, psn)) {
            Some(at) => self.messages[at].psn = psn,
            None => self.messages.push(Message { msg_id, psn }),
        }
    }

    fn is(&self, message: &Message, msg_id: u16, psn: Psn) -> bool {
        message.msg_id == msg_id && psn.distance(message.psn).abs() <= self.reach
    }

    /// Bytes of heap held.
    pub(super) fn heap_bytes(&self) -> u64 {
        crate::heap::of_vec(&self.messages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_a_message_and_lets_its_number_come_again() {
        let start = Psn(u32::MAX - 100);
        let mut refused = Refused::new(128);
        refused.add(7, start, start);
        // Packets of a window are out of order.
        for n in [100, 60, 180, 300, 290] {
            assert!(refused.holds(7, start.plus(n)) && !refused.holds(8, start.plus(n)));
            refused.add(7, start.plus(n), start.plus(n.saturating_sub(100)));
        }
        assert_eq!(refused.messages.len(), 1);
        assert!(!refused.holds(7, start.plus(290 + (1 << 16))), "another message of that number");
        refused.add(9, start.plus(800), start.plus(800));
        assert_eq!(refused.messages.len(), 1, "nothing of the first one can come any more");
        assert!(refused.holds(9, start.plus(801)));
    }

    #[test]
    fn the_widest_window_is_told_from_the_next_message_of_that_number() {
        let mut refused = Refused::new(32_640);
        refused.add(1, Psn(5), Psn(5));
        assert!(refused.holds(1, Psn(5 + 2 * 32_640)) && !refused.holds(1, Psn(5 + (1 << 16))));
    }
}
