//! `reps`: recycled entropy packet spraying.
//!
//! Source: Bonato et al., "REPS: Recycled Entropy Packet Spraying for Adaptive Load Balancing and
//! Failure Mitigation" (arXiv 2407.21625), with the constants of uet-htsim. Deviations:
//! - Freezing also ends when a packet is sent, not only when feedback arrives.
//! - Without trimming, a loss may mean congestion as well as a failed path. A queue marks packets
//!   before it overflows, so a timeout freezes the ring only if none of the last eight acknowledgements
//!   carried a mark. (uet-htsim stops with an error on a timeout without trimming.)

use super::round::draw;
use super::{Entropy, PathContext, PathFeedback, PathSelector};
use crate::rng::Rng;
use weft_cc::settings;
use weft_cc::settings::TIME;
use weft_cc::{Span, Time};

settings! {
    /// The settings of `reps`. The defaults are those of uet-htsim.
    pub struct RepsConfig {
        ring: u32 = 8, in 1..=64, "entropies that the ring holds";
        freeze: Span = Span::from_ms(10), in TIME, "time for which a timeout freezes the ring";
        explore: u32 = 16, in 0..=255, "packets with random entropies after freezing, before recycling resumes";
    }
}

/// Reuses the entropies of packets that were acknowledged unmarked, oldest first; draws a random one if it has none.
#[derive(Clone, Debug)]
pub struct Reps {
    rng: Rng,
    frozen_at: Option<Time>,
    ring: Ring,
    freeze: Span,
    paths: u16,
    explore: u8,
    /// The value of `explore` when freezing ends.
    explore_after: u8,
    /// One bit for each of the last acknowledgements, the newest lowest: whether it carried a mark.
    marks: u8,
    trimming: bool,
}

impl Reps {
    /// Sprays over `paths` entropies (0 counts as 1). `trimming`: whether switches trim packets, so that
    /// congestion cannot cause a timeout.
    pub fn new(config: &RepsConfig, paths: u16, trimming: bool, rng: Rng) -> Reps {
        Reps {
            rng,
            frozen_at: None,
            ring: Ring::new(config.ring.clamp(1, 64) as u8),
            freeze: config.freeze,
            paths: paths.max(1),
            explore: 0,
            explore_after: config.explore.min(255) as u8,
            marks: 0,
            trimming,
        }
    }

    /// Whether a timeout has frozen the ring: its entropies are then used in turn, fresh or not.
    pub fn is_frozen(&self) -> bool {
        self.frozen_at.is_some()
    }

    fn thaw(&mut self, now: Time) {
        if self.frozen_at.is_some_and(|since| now.since(since) > self.freeze) {
            self.frozen_at = None;
            self.ring.clear();
            self.explore = self.explore_after;
        }
    }

    fn freeze(&mut self, now: Time) {
        let path_failed = self.trimming || self.marks == 0;
        if path_failed && self.frozen_at.is_none() && self.explore == 0 {
            self.frozen_at = Some(now);
        }
    }
}

impl PathSelector for Reps {
    fn next(&mut self, pkt: &PathContext) -> Entropy {
        self.thaw(pkt.now);
        let recycled = if self.explore > 0 {
            self.explore -= 1;
            None
        } else if self.is_frozen() {
            self.ring.cycle()
        } else {
            self.ring.take_oldest()
        };
        Entropy(recycled.unwrap_or_else(|| draw(&mut self.rng, self.paths)))
    }

    fn feedback(&mut self, now: Time, entropy: Entropy, feedback: PathFeedback) {
        self.thaw(now);
        match feedback {
            PathFeedback::Good => {
                self.marks <<= 1;
                if entropy.0 < self.paths {
                    self.ring.put(entropy.0);
                }
            }
            PathFeedback::Ecn => self.marks = self.marks << 1 | 1,
            PathFeedback::Nack => {}
            PathFeedback::Timeout => self.freeze(now),
        }
    }

    fn heap_bytes(&self) -> usize {
        size_of_val(&*self.ring.slots)
    }
}

/// The last entropies with good feedback. The newest `fresh` of them have not been reused yet.
#[derive(Clone, Debug)]
struct Ring {
    /// Allocated for the first entropy.
    slots: Box<[u16]>,
    len: u8,
    /// The slot for the next entropy.
    head: u8,
    /// Number of slots that hold an entropy.
    filled: u8,
    fresh: u8,
    /// The slot that the frozen ring uses next.
    cursor: u8,
}

impl Ring {
    /// An empty ring of `len` slots, at most 128.
    fn new(len: u8) -> Ring {
        Ring { slots: Box::default(), len, head: 0, filled: 0, fresh: 0, cursor: 0 }
    }

    fn clear(&mut self) {
        (self.head, self.filled, self.fresh, self.cursor) = (0, 0, 0, 0);
    }

    fn put(&mut self, entropy: u16) {
        if self.slots.is_empty() {
            self.slots = vec![0; usize::from(self.len)].into_boxed_slice();
        }
        self.slots[usize::from(self.head)] = entropy;
        self.head = (self.head + 1) % self.len;
        self.filled = (self.filled + 1).min(self.len);
        self.fresh = (self.fresh + 1).min(self.len);
    }

    fn take_oldest(&mut self) -> Option<u16> {
        if self.fresh == 0 {
            return None;
        }
        let at = (self.head + self.len - self.fresh) % self.len;
        self.fresh -= 1;
        Some(self.slots[usize::from(at)])
    }

    fn cycle(&mut self) -> Option<u16> {
        if self.filled == 0 {
            return None;
        }
        let entropy = self.slots[usize::from(self.cursor)];
        self.cursor = (self.cursor + 1) % self.filled;
        Some(entropy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(now: Time) -> PathContext {
        PathContext { now, sent: 0, window_packets: 32, retransmission: false }
    }

    fn ms(ms: u64) -> Time {
        Time::ZERO + Span::from_ms(ms)
    }

    fn primed(trimming: bool, entropies: &[u16]) -> Reps {
        let mut reps = Reps::new(&RepsConfig::default(), 4096, trimming, Rng::new(5, 0));
        for &e in entropies {
            reps.feedback(Time::ZERO, Entropy(e), PathFeedback::Good);
        }
        reps
    }

    fn take(reps: &mut Reps, now: Time, n: usize) -> Vec<u16> {
        (0..n).map(|_| reps.next(&at(now)).0).collect()
    }

    #[test]
    fn entropies_are_recycled_once_and_oldest_first() {
        let mut reps = primed(true, &[10, 11, 12]);
        assert_eq!(take(&mut reps, Time::ZERO, 3), [10, 11, 12]);
        let explored = take(&mut reps, Time::ZERO, 32);
        assert!(explored.iter().any(|e| !(10..=12).contains(e)));
    }

    #[test]
    fn the_ring_keeps_the_last_eight_entropies() {
        let mut reps = primed(true, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(take(&mut reps, Time::ZERO, 8), [2, 3, 4, 5, 6, 7, 8, 9]);
    }

    #[test]
    fn ring_and_freezing_are_as_configured() {
        let config = RepsConfig { ring: 3, freeze: Span::from_ms(1), explore: 0 };
        let mut reps = Reps::new(&config, 4096, true, Rng::new(5, 0));
        (0..5).for_each(|e| reps.feedback(Time::ZERO, Entropy(e), PathFeedback::Good));
        assert_eq!(take(&mut reps, Time::ZERO, 3), [2, 3, 4]);
        reps.feedback(Time::ZERO, Entropy(0), PathFeedback::Timeout);
        assert_eq!(take(&mut reps, ms(1), 4), [3, 4, 2, 3]);
        reps.feedback(ms(2), Entropy(9), PathFeedback::Good);
        assert_eq!(take(&mut reps, ms(2), 1), [9], "nothing is explored");
    }

    #[test]
    fn a_frozen_ring_is_cycled_for_10_ms_and_16_exploring_packets_follow() {
        let mut reps = primed(true, &[1, 2, 3]);
        take(&mut reps, Time::ZERO, 3);
        reps.feedback(ms(1), Entropy(0), PathFeedback::Timeout);
        assert!(reps.is_frozen());
        assert_eq!(take(&mut reps, ms(11), 7), [1, 2, 3, 1, 2, 3, 1]);
        reps.feedback(ms(5), Entropy(4), PathFeedback::Good);
        assert!(take(&mut reps, ms(11), 4).contains(&4), "a good entropy joins the frozen ring");

        let later = ms(11) + Span::from_ps(1);
        reps.feedback(later, Entropy(77), PathFeedback::Good);
        assert!(!reps.is_frozen());
        reps.feedback(later, Entropy(0), PathFeedback::Timeout);
        assert!(!reps.is_frozen(), "no freezing while exploring");
        let explored = take(&mut reps, later, 16);
        assert!(explored.iter().filter(|e| **e == 77).count() <= 1);
        assert_eq!(reps.next(&at(later)), Entropy(77), "then recycling goes on");
    }

    #[test]
    fn the_ring_thaws_without_feedback() {
        let mut reps = primed(true, &[1]);
        reps.feedback(ms(0), Entropy(0), PathFeedback::Timeout);
        reps.next(&at(ms(20)));
        assert!(!reps.is_frozen());
    }

    #[test]
    fn freezing_lasts_across_the_wrap_of_the_clock() {
        let near_end = Time::from_ps(u64::MAX - 1_000);
        let mut reps = primed(true, &[1]);
        reps.feedback(near_end, Entropy(0), PathFeedback::Timeout);
        assert_eq!(take(&mut reps, near_end + Span::from_ms(10), 2), [1, 1]);
        reps.next(&at(near_end + Span::from_ms(11)));
        assert!(!reps.is_frozen());
    }

    #[test]
    fn without_trimming_congestion_does_not_freeze_the_ring() {
        let mut reps = primed(false, &[1, 2]);
        reps.feedback(ms(1), Entropy(3), PathFeedback::Ecn);
        reps.feedback(ms(1), Entropy(3), PathFeedback::Timeout);
        assert!(!reps.is_frozen());
        for e in 0..8 {
            reps.feedback(ms(2), Entropy(e), PathFeedback::Good);
        }
        reps.feedback(ms(2), Entropy(3), PathFeedback::Timeout);
        assert!(reps.is_frozen(), "eight unmarked acknowledgements and a loss: the path has failed");
    }
}
