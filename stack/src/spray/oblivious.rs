//! `oblivious`: packet spraying without feedback.

use super::round::Round;
use super::{Entropy, PathContext, PathFeedback, PathSelector};
use crate::rng::Rng;
use weft_cc::Time;

/// Sprays evenly over all entropies: each is used once per round, in an order shuffled for every round.
/// Source: the oblivious balancer of uet-htsim. Deviation: any number of paths is allowed, where the simulator
/// requires a power of two; other numbers are shuffled by rotation.
#[derive(Clone, Debug)]
pub struct Oblivious {
    round: Round,
    rng: Rng,
}

impl Oblivious {
    /// Sprays over `paths` entropies (0 counts as 1).
    pub fn new(paths: u16, mut rng: Rng) -> Oblivious {
        Oblivious { round: Round::new(paths, &mut rng), rng }
    }
}

impl PathSelector for Oblivious {
    fn next(&mut self, _: &PathContext) -> Entropy {
        let entropy = self.round.current();
        self.round.advance(&mut self.rng);
        entropy
    }

    fn feedback(&mut self, _: Time, _: Entropy, _: PathFeedback) {}
}
