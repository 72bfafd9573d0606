//! Random variates with the same bits on every machine: basic arithmetic, which IEEE 754 defines exactly, and the
//! transcendental functions of the crate `libm`, which is written in Rust and calls no platform's library.

use weft_cc::Span;
use weft_stack::rng::Rng;

/// A uniformly distributed number from 0 to just below 1.
pub(super) fn unit(rng: &mut Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// An exponentially distributed number with mean 1.
pub(super) fn exponential(rng: &mut Rng) -> f64 {
    -libm::log(1.0 - unit(rng))
}

/// A normally distributed number with mean 0 and variance 1 (Marsaglia's polar method, without its second result).
fn normal(rng: &mut Rng) -> f64 {
    loop {
        let (x, y) = (2.0 * unit(rng) - 1.0, 2.0 * unit(rng) - 1.0);
        let s = x * x + y * y;
        if s > 0.0 && s < 1.0 {
            return x * (-2.0 * libm::log(s) / s).sqrt();
        }
    }
}

/// A lognormally distributed number with mean 1; its logarithm has the standard deviation `sigma`.
pub(super) fn lognormal(rng: &mut Rng, sigma: f64) -> f64 {
    libm::exp(sigma * normal(rng) - sigma * sigma / 2.0)
}

/// A time that is uniformly distributed from 0 to `longest`.
pub(super) fn up_to(rng: &mut Rng, longest: Span) -> Span {
    Span::from_ps(((u128::from(rng.next_u64()) * (u128::from(longest.as_ps()) + 1)) >> 64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mean and variance of a million draws.
    fn moments(mut draw: impl FnMut(&mut Rng) -> f64) -> (f64, f64) {
        const DRAWS: u32 = 1_000_000;
        let mut rng = Rng::new(1, 2);
        let draws: Vec<f64> = (0..DRAWS).map(|_| draw(&mut rng)).collect();
        let mean = draws.iter().sum::<f64>() / f64::from(DRAWS);
        (mean, draws.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / f64::from(DRAWS))
    }

    fn is_near(seen: (f64, f64), expected: (f64, f64), tolerance: f64) {
        let near = |a: f64, b: f64| (a - b).abs() <= tolerance;
        assert!(near(seen.0, expected.0) && near(seen.1, expected.1), "{seen:?}, expected {expected:?}");
    }

    #[test]
    fn variates_have_the_moments_of_their_distributions() {
        is_near(moments(unit), (0.5, 1.0 / 12.0), 0.002);
        is_near(moments(exponential), (1.0, 1.0), 0.006);
        is_near(moments(normal), (0.0, 1.0), 0.005);
        // The variance of a lognormal variate with mean 1 is exp(sigma²) - 1.
        is_near(moments(|rng| lognormal(rng, 0.5)), (1.0, libm::exp(0.25) - 1.0), 0.006);
        is_near(moments(|rng| lognormal(rng, 0.0)), (1.0, 0.0), 1e-12);
        is_near(moments(|rng| up_to(rng, Span::from_ps(1)).as_ps() as f64), (0.5, 0.25), 0.002);
    }

    /// The bits are the same everywhere: libraries of platforms differ in the last one.
    #[test]
    fn the_same_seed_gives_the_same_bits_on_every_machine() {
        let mut rng = Rng::new(7, 7);
        let mut sum = 0u64;
        for _ in 0..1_000 {
            for bits in [exponential(&mut rng), normal(&mut rng), lognormal(&mut rng, 2.0)].map(f64::to_bits)
            {
                sum = sum.rotate_left(7) ^ bits;
            }
        }
        assert_eq!(sum, 673_311_204_059_981_934);
    }
}
