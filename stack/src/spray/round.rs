//! Rounds: every entropy is used once per round, in an order that changes from round to round.

use super::Entropy;
use crate::rng::Rng;

/// Iterates over all entropies below `paths`, round after round.
///
/// For a power of two the counter is XORed with a random mask, drawn anew for each round (as
/// uet-htsim does). For any other number the XOR would leave the range, so the random number is
/// added modulo `paths` instead. Each entropy is still used exactly once per round, but neighbours stay neighbours.
#[derive(Clone, Debug)]
pub(super) struct Round {
    paths: u16,
    index: u16,
    shuffle: u16,
}

impl Round {
    /// Rounds over `paths` entropies (at least one), with the first shuffle drawn from `rng`.
    pub(super) fn new(paths: u16, rng: &mut Rng) -> Round {
        let paths = paths.max(1);
        Round { paths, index: 0, shuffle: draw(rng, paths) }
    }

    /// Number of entropies.
    pub(super) fn paths(&self) -> u16 {
        self.paths
    }

    /// The entropy at the current position.
    #[inline]
    pub(super) fn current(&self) -> Entropy {
        if self.paths.is_power_of_two() {
            return Entropy(self.index ^ self.shuffle);
        }
        let sum = u32::from(self.index) + u32::from(self.shuffle);
        Entropy((sum % u32::from(self.paths)) as u16)
    }

    /// Advances by one; after the last entropy a new round begins.
    #[inline]
    pub(super) fn advance(&mut self, rng: &mut Rng) {
        self.index += 1;
        if self.index == self.paths {
            self.begin(rng);
        }
    }

    #[cold]
    fn begin(&mut self, rng: &mut Rng) {
        self.index = 0;
        self.shuffle = draw(rng, self.paths);
    }
}

/// A random entropy value below `paths`.
pub(super) fn draw(rng: &mut Rng, paths: u16) -> u16 {
    rng.below(u32::from(paths)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_visits_every_entropy_once() {
        for paths in [1, 2, 3, 7, 64, 100, 257, 16_384, u16::MAX] {
            let mut rng = Rng::new(3, u64::from(paths));
            let mut round = Round::new(paths, &mut rng);
            for _ in 0..3 {
                let mut seen = vec![false; usize::from(paths)];
                for _ in 0..paths {
                    let Entropy(e) = round.current();
                    assert!(!core::mem::replace(&mut seen[usize::from(e)], true), "{e} twice of {paths}");
                    round.advance(&mut rng);
                }
            }
        }
    }

    #[test]
    fn the_order_changes_between_rounds() {
        let mut rng = Rng::new(1, 1);
        let mut round = Round::new(64, &mut rng);
        let mut orders = Vec::new();
        for _ in 0..8 {
            let mut order = Vec::new();
            for _ in 0..64 {
                order.push(round.current());
                round.advance(&mut rng);
            }
            orders.push(order);
        }
        orders.sort();
        orders.dedup();
        assert!(orders.len() > 4, "only {} different orders in 8 rounds", orders.len());
    }
}
