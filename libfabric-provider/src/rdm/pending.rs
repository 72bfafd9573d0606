//! How many messages through a server have not ended. A peer that takes none has no more of them than it leaves to all others, so that
//! there is always room for messages to those.

use std::collections::HashMap;

use weft::Source;

use super::DEPTH;

/// The most messages to one peer.
pub(super) const TO_ONE: usize = 8 * DEPTH;
/// The most to all.
const TO_ALL: usize = 32 * DEPTH;

#[derive(Debug, Default)]
pub(super) struct Pending {
    total: usize,
    to: HashMap<Source, usize>,
}

impl Pending {
    /// Messages to all peers.
    pub(super) fn total(&self) -> usize {
        self.total
    }

    /// Whether there is room for one more to `peer`.
    pub(super) fn has_room(&self, peer: Source) -> bool {
        let count = self.to.get(&peer).copied().unwrap_or(0);
        count < TO_ONE.min(TO_ALL - self.total)
    }

    pub(super) fn begin(&mut self, peer: Source) {
        self.total += 1;
        *self.to.entry(peer).or_default() += 1;
    }

    pub(super) fn end(&mut self, peer: Source) {
        let Some(count) = self.to.get_mut(&peer) else { return };
        (*count, self.total) = (*count - 1, self.total - 1);
        if *count == 0 {
            self.to.remove(&peer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_that_take_nothing_leave_room_for_all_others() {
        let peers = (0..100).map(|process| Source { peer: weft::Addr(1), process });
        let mut pending = Pending::default();
        let counts: Vec<usize> = peers
            .clone()
            .map(|peer| {
                let mut count = 0;
                while pending.has_room(peer) {
                    pending.begin(peer);
                    count += 1;
                }
                count
            })
            .collect();
        assert_eq!(counts[..5], [TO_ONE, TO_ONE, TO_ONE, TO_ONE / 2, TO_ONE / 4]);
        assert!(pending.total() <= TO_ALL && counts[..14].iter().all(|count| *count > 0));
        for (peer, count) in peers.zip(counts) {
            (0..count).for_each(|_| pending.end(peer));
            pending.end(peer);
        }
        assert!(pending.total() == 0 && pending.to.is_empty());
    }
}
