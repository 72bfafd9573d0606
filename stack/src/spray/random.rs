//! `random`: random packet spraying.

use super::round::draw;
use super::{Entropy, PathContext, PathFeedback, PathSelector};
use crate::rng::Rng;
use weft_cc::Time;

/// An entropy for each packet, drawn with replacement. It ignores feedback.
/// Source: Dixit et al., "On the Impact of Packet Spraying in Data Center Networks", INFOCOM 2013 (RPS).
#[derive(Clone, Debug)]
pub struct Random {
    paths: u16,
    rng: Rng,
}

impl Random {
    /// Draws from `paths` entropies (0 counts as 1).
    pub fn new(paths: u16, rng: Rng) -> Random {
        Random { paths: paths.max(1), rng }
    }
}

impl PathSelector for Random {
    fn next(&mut self, _: &PathContext) -> Entropy {
        Entropy(draw(&mut self.rng, self.paths))
    }

    fn feedback(&mut self, _: Time, _: Entropy, _: PathFeedback) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of draws with replacement a paths-th part repeats the one before; a round repeats none.
    #[test]
    fn draws_are_uniform_and_do_not_depend_on_those_before() {
        let (paths, count) = (16_u16, 160_000);
        let mut random = Random::new(paths, Rng::new(1, 0));
        let pkt = PathContext { now: Time::ZERO, sent: 0, window_packets: 0, retransmission: false };
        let drawn: Vec<u16> = (0..count).map(|_| random.next(&pkt).0).collect();
        let expected = count / usize::from(paths);
        for path in 0..paths {
            let times = drawn.iter().filter(|other| **other == path).count();
            assert!(times.abs_diff(expected) < expected / 20, "{path}: {times}");
        }
        let repeated = drawn.windows(2).filter(|pair| pair[0] == pair[1]).count();
        assert!(repeated.abs_diff(expected) < expected / 20, "{repeated}");
    }
}
