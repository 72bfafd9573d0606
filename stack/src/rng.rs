//! The seeded generator that everything random in weft draws from.

use std::hash::{DefaultHasher, Hash, Hasher};

use rand_core::{RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// A deterministic generator: the same seed and stream give the same numbers on every machine.
#[derive(Clone, Debug)]
pub struct Rng(Xoshiro256PlusPlus);

impl Rng {
    /// The generator number `stream` of `seed`. Streams are independent of each other, so each
    /// host, port or workload takes its own and none disturbs another.
    pub fn new(seed: u64, stream: u64) -> Rng {
        // Weyl-sequence step: neighbouring streams start far apart before seed_from_u64 mixes them.
        Rng(Xoshiro256PlusPlus::seed_from_u64(seed ^ stream.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// A number that depends on the state and does not tell the numbers to come. The state stays as it is.
    pub(crate) fn secret(&self) -> u64 {
        let mut next = self.clone();
        let mut hasher = DefaultHasher::new();
        (next.next_u64(), next.next_u64()).hash(&mut hasher);
        hasher.finish()
    }

    /// A uniformly distributed 64-bit number.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A uniformly distributed number below `n`; 0 when `n` is 0. (Lemire's multiplication; the bias, below 2⁻³², is of no consequence here.)
    #[inline]
    pub fn below(&mut self, n: u32) -> u32 {
        ((u64::from((self.0.next_u64() >> 32) as u32) * u64::from(n)) >> 32) as u32
    }

    /// True with probability `p` (0 never, 1 always).
    #[inline]
    pub fn chance(&mut self, p: f64) -> bool {
        ((self.0.next_u64() >> 11) as f64) < p * (1u64 << 53) as f64
    }
}
