//! `bitmap`: even spraying that leaves out penalised entropies.
//!
//! Source: the bitmap balancer of uet-htsim. An ECN mark adds 1 point to the penalty of its entropy, a NACK 4,
//! a timeout 15, which is also the maximum. Deviations:
//! - Any number of paths is allowed. Numbers that are no power of two are shuffled by rotation.
//! - Penalties have four bits each and are allocated when the first one is given.
//! - A packet examines at most 256 entropies before it takes a penalised one. With up to 256 paths this makes no
//!   difference.
//! - Feedback about an entropy out of range is ignored, not folded into the range.

use super::round::Round;
use super::{Entropy, PathContext, PathFeedback, PathSelector};
use crate::rng::Rng;
use weft_cc::{Time, settings};

/// The largest penalty of an entropy: four bits.
const MAX_PENALTY: u8 = 15;
/// Number of entropies that a packet examines before it takes a penalised one. UET suggests 64 to 256 entropies.
const SCAN_LIMIT: u16 = 256;

settings! {
    /// The settings of `bitmap`, and of `mixed`. The defaults are those of uet-htsim.
    pub struct BitmapConfig {
        ecn: u32 = 1, in 0..=15, "penalty of an entropy for a congestion mark, points";
        nack: u32 = 4, in 0..=15, "penalty for a trimmed packet or an inferred loss, points";
        timeout: u32 = 15, in 0..=15, "penalty for an expiry of the retransmission timer, points";
    }
}

/// Sprays like [`Oblivious`](super::Oblivious), but skips penalised entropies. Each packet that skips takes one
/// point off.
// The fields are in the order of use: the generator is needed once a round.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Bitmap {
    round: Round,
    penalties: Penalties,
    rng: Rng,
}

impl Bitmap {
    /// Sprays over `paths` entropies (0 counts as 1).
    pub fn new(config: &BitmapConfig, paths: u16, mut rng: Rng) -> Bitmap {
        let points = [config.ecn, config.nack, config.timeout].map(|points| points.min(15) as u8);
        let penalties = Penalties { points, ..Penalties::default() };
        Bitmap { round: Round::new(paths, &mut rng), penalties, rng }
    }

    pub(super) fn paths(&self) -> u16 {
        self.round.paths()
    }

    #[inline]
    pub(super) fn pick(&mut self) -> Entropy {
        if self.penalties.penalised > 0 {
            self.skip_penalised();
        }
        let entropy = self.round.current();
        self.round.advance(&mut self.rng);
        entropy
    }

    /// Advances to the next entropy without a penalty; gives up at the scan limit, or if all are penalised.
    fn skip_penalised(&mut self) {
        let all_penalised = self.penalties.penalised == self.round.paths();
        let mut looked_at = 0;
        while self.penalties.of(self.round.current()) > 0 {
            // One point per packet, not per skip, so that a burst of penalties takes as many packets to work off.
            if looked_at == 0 {
                self.penalties.forgive(self.round.current());
            }
            looked_at += 1;
            if all_penalised || looked_at > SCAN_LIMIT.min(self.round.paths()) {
                break;
            }
            self.round.advance(&mut self.rng);
        }
    }

    #[inline]
    pub(super) fn learn(&mut self, entropy: Entropy, feedback: PathFeedback) {
        let [ecn, nack, timeout] = self.penalties.points;
        let points = match feedback {
            PathFeedback::Good => return,
            PathFeedback::Ecn => ecn,
            PathFeedback::Nack => nack,
            PathFeedback::Timeout => timeout,
        };
        if points > 0 && entropy.0 < self.round.paths() {
            self.penalties.add(entropy, points, self.round.paths());
        }
    }
}

impl PathSelector for Bitmap {
    fn next(&mut self, _: &PathContext) -> Entropy {
        self.pick()
    }

    fn feedback(&mut self, _: Time, entropy: Entropy, feedback: PathFeedback) {
        self.learn(entropy, feedback);
    }

    // There is no heap until the first penalty, then half a byte per entropy.
    fn heap_bytes(&self) -> usize {
        self.penalties.nibbles.len()
    }
}

/// Four bits per entropy, allocated at the first penalty: in a healthy fabric most contexts never have one.
#[derive(Clone, Debug, Default)]
#[repr(C)]
struct Penalties {
    /// Entropies with a penalty above zero.
    penalised: u16,
    /// Points for a mark, a NACK, a timeout.
    points: [u8; 3],
    nibbles: Box<[u8]>,
}

impl Penalties {
    fn of(&self, e: Entropy) -> u8 {
        if self.penalised == 0 {
            return 0;
        }
        self.nibbles[usize::from(e.0 / 2)] >> shift(e) & 0xf
    }

    fn set(&mut self, e: Entropy, penalty: u8) {
        let byte = &mut self.nibbles[usize::from(e.0 / 2)];
        *byte = *byte & !(0xf << shift(e)) | penalty << shift(e);
    }

    fn add(&mut self, e: Entropy, points: u8, paths: u16) {
        if self.nibbles.is_empty() {
            self.nibbles = vec![0; usize::from(paths).div_ceil(2)].into_boxed_slice();
        }
        // Read and written once: with marks on every second packet this is a good part of an acknowledgement.
        let byte = &mut self.nibbles[usize::from(e.0 / 2)];
        let before = *byte >> shift(e) & 0xf;
        let after = (before + points).min(MAX_PENALTY);
        self.penalised += u16::from(before == 0);
        *byte ^= (before ^ after) << shift(e);
    }

    fn forgive(&mut self, e: Entropy) {
        let left = self.of(e) - 1;
        self.set(e, left);
        if left == 0 {
            self.penalised -= 1;
        }
    }
}

fn shift(e: Entropy) -> u32 {
    u32::from(e.0 & 1) * 4
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds until `entropy` is used again, counted in packets.
    fn packets_until(bitmap: &mut Bitmap, entropy: u16) -> usize {
        (0..100_000).position(|_| bitmap.pick() == Entropy(entropy)).expect("it comes back")
    }

    #[test]
    fn heavier_penalties_keep_a_path_out_for_longer() {
        let absence = |feedback| {
            let mut bitmap = Bitmap::new(&BitmapConfig::default(), 16, Rng::new(1, 2));
            bitmap.learn(Entropy(5), feedback);
            packets_until(&mut bitmap, 5)
        };
        let (ecn, nack, timeout) =
            (absence(PathFeedback::Ecn), absence(PathFeedback::Nack), absence(PathFeedback::Timeout));
        // One point is worked off per round of 15 other paths.
        assert!((15..=31).contains(&ecn), "{ecn}");
        assert!((4 * 15..=5 * 16).contains(&nack), "{nack}");
        assert!((15 * 15..=16 * 16).contains(&timeout), "{timeout}");
    }

    #[test]
    fn penalties_are_as_configured() {
        let config = BitmapConfig { ecn: 0, nack: 2, ..BitmapConfig::default() };
        let mut bitmap = Bitmap::new(&config, 16, Rng::new(1, 2));
        bitmap.learn(Entropy(5), PathFeedback::Ecn);
        assert_eq!((bitmap.penalties.of(Entropy(5)), bitmap.penalties.penalised), (0, 0));
        bitmap.learn(Entropy(5), PathFeedback::Nack);
        assert_eq!((bitmap.penalties.of(Entropy(5)), bitmap.penalties.penalised), (2, 1));
    }

    #[test]
    fn penalties_saturate_and_neighbours_are_untouched() {
        let mut penalties = Penalties::default();
        penalties.add(Entropy(6), 9, 16);
        penalties.add(Entropy(6), 9, 16);
        penalties.add(Entropy(7), 2, 16);
        assert_eq!([5, 6, 7, 8].map(|e| penalties.of(Entropy(e))), [0, 15, 2, 0]);
        assert_eq!(penalties.penalised, 2);
        penalties.forgive(Entropy(7));
        penalties.forgive(Entropy(7));
        assert_eq!((penalties.of(Entropy(7)), penalties.penalised), (0, 1));
    }

    #[test]
    fn spraying_stays_even_if_all_entropies_are_penalised() {
        let mut bitmap = Bitmap::new(&BitmapConfig::default(), 8, Rng::new(1, 2));
        for e in 0..8 {
            bitmap.learn(Entropy(e), PathFeedback::Timeout);
        }
        let mut count = [0; 8];
        for _ in 0..8 * 14 {
            count[usize::from(bitmap.pick().0)] += 1;
        }
        assert_eq!(count, [14; 8]);
        for _ in 0..64 {
            bitmap.pick();
        }
        assert_eq!(bitmap.penalties.penalised, 0);
    }
}
