//! `ecmp`: one entropy for the lifetime of the context, as in a transport without spraying (RFC 2992).

use super::round::draw;
use super::{Entropy, PathContext, PathFeedback, PathSelector};
use crate::rng::Rng;
use weft_cc::{Time, settings};

settings! {
    /// The settings of `ecmp`.
    pub struct EcmpConfig {
        entropy: Option<u32> = None, in 0..=65_535, "entropy of every connection, modulo the number of paths",
            or "drawn for each connection";
    }
}

/// One entropy, drawn at random when the context is made, or given. It ignores feedback.
#[derive(Clone, Debug)]
pub struct Ecmp(Entropy);

impl Ecmp {
    /// Takes the entropy of `config`, or draws it, from `paths` of them (0 counts as 1).
    pub fn new(config: &EcmpConfig, paths: u16, mut rng: Rng) -> Ecmp {
        // The remainder is below `paths`, so it fits.
        let given = config.entropy.map(|entropy| (entropy % u32::from(paths.max(1))) as u16);
        Ecmp(Entropy(given.unwrap_or_else(|| draw(&mut rng, paths))))
    }
}

impl PathSelector for Ecmp {
    fn next(&mut self, _: &PathContext) -> Entropy {
        self.0
    }

    fn feedback(&mut self, _: Time, _: Entropy, _: PathFeedback) {}
}
