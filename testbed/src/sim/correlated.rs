//! Losses that come in bursts: two models of a link whose losses are not independent of each other.

use weft_stack::rng::Rng;

/// How a link loses packets if a loss makes others more likely. Each direction of a link has a state of its own, which
/// each packet advances.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CorrelatedLoss {
    /// A Markov chain of two states.
    GilbertElliott(GilbertElliott),
    /// A number of losses drawn for each block of packets.
    Blocks(BlockLosses),
}

/// The Gilbert–Elliott model (Gilbert 1960, Elliott 1963): a link is in a good or in a bad state. Each packet may first
/// change the state, and is then lost with the probability of the state. A link begins in the good state. All members are
/// probabilities from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GilbertElliott {
    /// That a packet finds a good link turn bad.
    pub to_bad: f64,
    /// That a packet finds a bad link turn good.
    pub to_good: f64,
    /// That a packet is lost in the bad state.
    pub loss_bad: f64,
    /// That a packet is lost in the good state.
    pub loss_good: f64,
}

impl GilbertElliott {
    /// The fraction of packets that such a link loses in the long run.
    pub fn loss_rate(&self) -> f64 {
        let changes = self.to_bad + self.to_good;
        let bad = if changes > 0.0 { self.to_bad / changes } else { 0.0 };
        bad * self.loss_bad + (1.0 - bad) * self.loss_good
    }

    fn loses_any(&self) -> bool {
        self.loss_good > 0.0 || self.to_bad > 0.0 && self.loss_bad > 0.0
    }
}

/// Losses by block: consecutive packets of a direction of a link make up blocks of equal size, counted from the first
/// packet after the change. For each block the number of losses is drawn; the packets that are lost are any of the block's,
/// each choice with the same probability.
///
/// Uno (SC 2025), Table 1, measures just that: how many blocks of ten packets lose one, two or three of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockLosses {
    packets: u8,
    /// Index `k`: the probability that a block loses `k + 1` packets.
    chances: [f64; BlockLosses::MOST_LOSSES],
}

impl BlockLosses {
    /// The largest number of packets in a block.
    pub const MOST_PACKETS: u8 = 64;
    /// The largest number of losses in a block.
    pub const MOST_LOSSES: usize = 8;

    /// Blocks of `packets` packets, which lose `k + 1` of them with probability `chances[k]`. `None` if there are no
    /// packets or more than [`BlockLosses::MOST_PACKETS`], more chances than packets or than [`BlockLosses::MOST_LOSSES`],
    /// or if these are no probabilities of events that exclude each other.
    pub fn new(packets: u8, chances: &[f64]) -> Option<BlockLosses> {
        let mut all = [0.0; BlockLosses::MOST_LOSSES];
        all.get_mut(..chances.len())?.copy_from_slice(chances);
        let possible = chances.iter().all(|chance| (0.0..=1.0).contains(chance));
        let fits =
            (1..=BlockLosses::MOST_PACKETS).contains(&packets) && chances.len() <= usize::from(packets);
        (possible && fits && all.iter().sum::<f64>() <= 1.0).then_some(BlockLosses { packets, chances: all })
    }

    /// Setup 1 of Uno's Table 1: a path with an RTT of 65 ms, 320 million blocks of ten packets.
    pub fn uno_65ms() -> BlockLosses {
        BlockLosses::of_uno([97_403, 23_984, 5_007])
    }

    /// Setup 2 of Uno's Table 1: a path with an RTT of 33 ms, 320 million blocks of ten packets.
    pub fn uno_33ms() -> BlockLosses {
        BlockLosses::of_uno([12_785, 7_262, 1_560])
    }

    /// The loss rates in the paper's table are these numbers of blocks divided by 320 million, and its average loss per
    /// packet (5.01 × 10⁻⁵ for Setup 1) is the number of lost packets divided by ten times that.
    fn of_uno(blocks: [u32; 3]) -> BlockLosses {
        const MEASURED: f64 = 320e6;
        let mut chances = [0.0; BlockLosses::MOST_LOSSES];
        for (chance, blocks) in chances.iter_mut().zip(blocks) {
            *chance = f64::from(blocks) / MEASURED;
        }
        BlockLosses { packets: 10, chances }
    }

    /// Number of packets in a block.
    pub fn packets(&self) -> u8 {
        self.packets
    }

    /// Index `k`: the probability that a block loses `k + 1` packets. Numbers of losses that never happen are left out at
    /// the end.
    pub fn chances(&self) -> &[f64] {
        let used = self.chances.iter().rposition(|chance| *chance > 0.0).map_or(0, |last| last + 1);
        &self.chances[..used]
    }

    /// The fraction of packets that such a link loses in the long run.
    pub fn loss_rate(&self) -> f64 {
        let lost: f64 = self.chances.iter().zip(1u32..).map(|(chance, k)| chance * f64::from(k)).sum();
        lost / f64::from(self.packets)
    }

    /// Draws the number of losses of a block.
    fn draw(&self, rng: &mut Rng) -> u8 {
        let draw = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let mut sum = 0.0;
        for (chance, losses) in self.chances.iter().zip(1..) {
            sum += chance;
            if draw < sum {
                return losses;
            }
        }
        0
    }
}

impl CorrelatedLoss {
    /// Whether the link loses packets at all.
    pub(super) fn loses_any(&self) -> bool {
        match self {
            CorrelatedLoss::GilbertElliott(model) => model.loses_any(),
            CorrelatedLoss::Blocks(blocks) => !blocks.chances().is_empty(),
        }
    }
}

/// The state of one direction of a link.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BurstState {
    /// Whether the link is in the bad state.
    bad: bool,
    /// Packets of the current block that have not passed yet, and how many of them will be lost.
    left: u8,
    losses: u8,
}

impl BurstState {
    /// Whether the link loses its next packet.
    pub(super) fn loses(&mut self, model: &CorrelatedLoss, rng: &mut Rng) -> bool {
        match model {
            CorrelatedLoss::GilbertElliott(model) => {
                let change = if self.bad { model.to_good } else { model.to_bad };
                self.bad ^= rng.chance(change);
                rng.chance(if self.bad { model.loss_bad } else { model.loss_good })
            }
            CorrelatedLoss::Blocks(blocks) => {
                if self.left == 0 {
                    (self.left, self.losses) = (blocks.packets, blocks.draw(rng));
                }
                // Selection sampling: each set of packets of the block is equally likely.
                let lost = rng.below(u32::from(self.left)) < u32::from(self.losses);
                self.left -= 1;
                self.losses -= u8::from(lost);
                lost
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn losses(model: CorrelatedLoss, packets: u64) -> Vec<bool> {
        let mut state = BurstState::default();
        (0..packets).map(|packet| state.loses(&model, &mut Rng::new(7, packet))).collect()
    }

    fn rate(losses: &[bool]) -> f64 {
        losses.iter().filter(|lost| **lost).count() as f64 / losses.len() as f64
    }

    #[test]
    fn a_gilbert_elliott_link_has_the_loss_rate_of_the_closed_form() {
        for (to_bad, to_good, loss_bad, loss_good) in
            [(0.01, 0.2, 1.0, 0.0), (0.05, 0.05, 0.5, 0.01), (0.3, 0.9, 0.8, 0.1), (1.0, 1.0, 1.0, 0.0)]
        {
            let model = GilbertElliott { to_bad, to_good, loss_bad, loss_good };
            let measured = rate(&losses(CorrelatedLoss::GilbertElliott(model), 400_000));
            let expected = model.loss_rate();
            assert!((measured / expected - 1.0).abs() < 0.05, "{model:?}: {measured} instead of {expected}");
        }
    }

    /// With certain loss in the bad state and none in the good one, a burst is a stay in the bad state: its length is
    /// geometric with mean 1 / `to_good`, and the gaps have mean 1 / `to_bad`.
    #[test]
    fn bursts_of_a_gilbert_elliott_link_have_the_lengths_of_the_closed_form() {
        let model = GilbertElliott { to_bad: 0.02, to_good: 0.25, loss_bad: 1.0, loss_good: 0.0 };
        let losses = losses(CorrelatedLoss::GilbertElliott(model), 400_000);
        let runs: Vec<&[bool]> = losses.chunk_by(|a, b| a == b).collect();
        let lengths = |lost: bool| -> Vec<usize> {
            runs.iter().filter(|run| run[0] == lost).map(|run| run.len()).collect()
        };
        let mean = |lengths: &[usize]| lengths.iter().sum::<usize>() as f64 / lengths.len() as f64;
        let (bursts, gaps) = (lengths(true), lengths(false));
        assert!((mean(&bursts) / 4.0 - 1.0).abs() < 0.05, "mean burst {}", mean(&bursts));
        assert!((mean(&gaps) / 50.0 - 1.0).abs() < 0.05, "mean gap {}", mean(&gaps));
        for length in 1..=6 {
            let share = bursts.iter().filter(|burst| **burst == length).count() as f64 / bursts.len() as f64;
            let expected = 0.25 * 0.75f64.powi(length as i32 - 1);
            assert!((share - expected).abs() < 0.03, "bursts of {length}: {share} instead of {expected}");
        }
    }

    #[test]
    fn blocks_lose_as_many_packets_as_drawn_at_any_place() {
        let blocks = BlockLosses::new(10, &[0.3, 0.1, 0.0, 0.05]).unwrap();
        let losses = losses(CorrelatedLoss::Blocks(blocks), 1_000_000);
        let (mut by_number, mut by_place) = ([0u32; 11], [0u32; 10]);
        for block in losses.chunks(10) {
            by_number[block.iter().filter(|lost| **lost).count()] += 1;
            block.iter().zip(&mut by_place).for_each(|(lost, place)| *place += u32::from(*lost));
        }
        for (number, expected) in by_number.iter().zip([0.55, 0.3, 0.1, 0.0, 0.05, 0.0]) {
            let share = f64::from(*number) / 100_000.0;
            assert!((share - expected).abs() < 0.006, "{by_number:?}");
        }
        let mean = f64::from(by_place.iter().sum::<u32>()) / 10.0;
        assert!(by_place.iter().all(|place| (f64::from(*place) / mean - 1.0).abs() < 0.05), "{by_place:?}");
        assert!((rate(&losses) / blocks.loss_rate() - 1.0).abs() < 0.02);
    }

    #[test]
    fn the_blocks_of_uno_have_the_rates_of_its_table() {
        // The table's second column has two digits.
        for (blocks, rates, mean) in [
            (BlockLosses::uno_65ms(), [3.0e-4, 7.5e-5, 1.6e-5], 5.01e-5),
            (BlockLosses::uno_33ms(), [4.0e-5, 2.3e-5, 4.9e-6], 1.0e-5),
        ] {
            for (chance, rate) in blocks.chances().iter().zip(rates) {
                assert!((chance / rate - 1.0).abs() < 0.03, "{chance} instead of {rate}");
            }
            assert!((blocks.loss_rate() / mean - 1.0).abs() < 0.01, "{}", blocks.loss_rate());
        }
    }

    #[test]
    fn impossible_blocks_are_refused() {
        assert!(BlockLosses::new(0, &[]).is_none());
        assert!(BlockLosses::new(65, &[0.1]).is_none());
        assert!(BlockLosses::new(1, &[0.1, 0.1]).is_none());
        assert!(BlockLosses::new(10, &[0.6, 0.5]).is_none());
        assert!(BlockLosses::new(10, &[f64::NAN]).is_none());
        assert!(BlockLosses::new(64, &[0.1; 9]).is_none());
        assert_eq!(BlockLosses::new(3, &[0.0, 0.1, 0.0]).unwrap().chances(), [0.0, 0.1]);
    }
}
