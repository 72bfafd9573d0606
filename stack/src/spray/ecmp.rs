//! `ecmp`: one entropy for the lifetime of the context, as in a transport without spraying (RFC 2992).

use super::round::draw;
use super::{Entropy, PathContext, PathFeedback, PathSelector};
use crate::rng::Rng;
use weft_cc::Time;

/// One entropy, drawn at random when the context is made. It ignores feedback.
#[derive(Clone, Debug)]
pub struct Ecmp(Entropy);

impl Ecmp {
    /// Draws the entropy from `paths` of them (0 counts as 1).
    pub fn new(paths: u16, mut rng: Rng) -> Ecmp {
        Ecmp(Entropy(draw(&mut rng, paths)))
    }
}

impl PathSelector for Ecmp {
    fn next(&mut self, _: &PathContext) -> Entropy {
        self.0
    }

    fn feedback(&mut self, _: Time, _: Entropy, _: PathFeedback) {}
}
