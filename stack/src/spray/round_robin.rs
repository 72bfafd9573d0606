//! `round-robin`: the entropies in ascending order, cyclically.

use super::round::draw;
use super::{Entropy, PathContext, PathFeedback, PathSelector};
use crate::rng::Rng;
use weft_cc::Time;

/// The entropies in ascending order from a random first one, so that contexts that start at the same time do not
/// use the same paths in step. It ignores feedback.
#[derive(Clone, Debug)]
pub struct RoundRobin {
    paths: u16,
    next: u16,
}

impl RoundRobin {
    /// Cycles through `paths` entropies (0 counts as 1).
    pub fn new(paths: u16, mut rng: Rng) -> RoundRobin {
        let paths = paths.max(1);
        RoundRobin { paths, next: draw(&mut rng, paths) }
    }
}

impl PathSelector for RoundRobin {
    fn next(&mut self, _: &PathContext) -> Entropy {
        let entropy = Entropy(self.next);
        self.next = if self.next + 1 == self.paths { 0 } else { self.next + 1 };
        entropy
    }

    fn feedback(&mut self, _: Time, _: Entropy, _: PathFeedback) {}
}
