//! `mixed`: recycled entropies, or the choice of the bitmap if there are none.
//!
//! Source: the mixed balancer of uet-htsim, whose default it is; the recycling is that of its
//! "legacy REPS": no ring of eight, no freezing. Deviation: its queue of recycled entropies has no
//! limit; here it holds at most as many as there are paths, and then a newer one displaces the oldest. A
//! longer queue would only hold repetitions and older information. Windows of fewer packets than paths never
//! reach the limit.

use super::bitmap::{Bitmap, BitmapConfig};
use super::{Entropy, PathContext, PathFeedback, PathSelector};
use crate::rng::Rng;
use std::collections::VecDeque;
use weft_cc::Time;

/// Reuses the entropies of unmarked acknowledgements in the order of their arrival; without any it sprays as
/// [`Bitmap`] does.
// The fields are in the order of use: every packet reads the queue, most read the start of the bitmap as well.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Mixed {
    recycled: VecDeque<u16>,
    bitmap: Bitmap,
}

impl Mixed {
    /// Sprays over `paths` entropies (0 counts as 1).
    pub fn new(config: &BitmapConfig, paths: u16, rng: Rng) -> Mixed {
        Mixed { bitmap: Bitmap::new(config, paths, rng), recycled: VecDeque::new() }
    }

    fn recycle(&mut self, entropy: Entropy) {
        if self.recycled.len() == usize::from(self.bitmap.paths()) {
            self.recycled.pop_front();
        }
        self.recycled.push_back(entropy.0);
    }
}

impl PathSelector for Mixed {
    #[inline]
    fn next(&mut self, _: &PathContext) -> Entropy {
        match self.recycled.pop_front() {
            Some(entropy) => Entropy(entropy),
            None => self.bitmap.pick(),
        }
    }

    fn feedback(&mut self, _: Time, entropy: Entropy, feedback: PathFeedback) {
        self.bitmap.learn(entropy, feedback);
        if feedback == PathFeedback::Good && entropy.0 < self.bitmap.paths() {
            self.recycle(entropy);
        }
    }

    fn heap_bytes(&self) -> usize {
        self.bitmap.heap_bytes() + self.recycled.capacity() * size_of::<u16>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entropies_are_recycled_in_order_of_arrival_and_the_oldest_are_displaced() {
        let mut mixed = Mixed::new(&BitmapConfig::default(), 4, Rng::new(0, 0));
        let pkt = PathContext { now: Time::ZERO, sent: 9, window_packets: 4, retransmission: false };
        for e in [3, 0, 0, 1, 2, 2] {
            mixed.feedback(Time::ZERO, Entropy(e), PathFeedback::Good);
        }
        let sent: Vec<u16> = (0..4).map(|_| mixed.next(&pkt).0).collect();
        assert_eq!(sent, [0, 1, 2, 2]);
        assert!(mixed.recycled.is_empty());
    }
}
