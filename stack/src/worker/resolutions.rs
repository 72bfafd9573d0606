//! Which peers have been found or given up lately: those who wait for some of them look at these, not at all.

use std::collections::VecDeque;

use crate::packet::Addr;

/// How many are remembered: more than a turn finds and gives up, but for those behind one router.
const RECENT: usize = 256;

/// Peers of which it may have become known whether they can be reached, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Resolutions {
    count: u64,
    /// The last of them.
    recent: VecDeque<Addr>,
}

impl Resolutions {
    /// `peer` has been found or given up.
    pub(super) fn note(&mut self, peer: Addr) {
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(peer);
        self.count += 1;
    }

    /// How many there have been.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Those since there were `seen`; `None` if so many are not remembered.
    pub(super) fn since(&self, seen: u64) -> Option<Vec<Addr>> {
        let new = usize::try_from(self.count.checked_sub(seen)?).ok()?;
        let before = self.recent.len().checked_sub(new)?;
        Some(self.recent.iter().skip(before).copied().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_since_then_are_named_as_long_as_they_are_remembered() {
        let mut resolutions = Resolutions::default();
        assert_eq!(resolutions.since(0), Some(vec![]));
        (0..300).for_each(|peer| resolutions.note(Addr(peer)));
        assert_eq!(resolutions.count(), 300);
        assert_eq!(resolutions.since(298), Some(vec![Addr(298), Addr(299)]));
        assert_eq!(resolutions.since(300), Some(vec![]));
        assert_eq!(resolutions.since(44).map(|peers| peers.len()), Some(RECENT));
        assert_eq!((resolutions.since(43), resolutions.since(301)), (None, None));
    }
}
