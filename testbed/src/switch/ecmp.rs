//! Equal-cost multipath: the next hop is a hash of addresses and entropy.

use weft_stack::packet::Network;

/// Mixes 64 bits into 64 bits (the finaliser of SplitMix64, Steele et al., OOPSLA 2014).
#[inline]
pub(super) const fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The part of the hash that is the same at all switches, computed once per packet.
#[inline]
pub fn flow_hash(net: &Network) -> u32 {
    let addresses = u64::from(net.src.0) << 32 | u64::from(net.dst.0);
    (mix(mix(addresses) ^ u64::from(net.entropy.0)) >> 32) as u32
}

/// A switch's own hash function, so that switches choose independently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hasher(u64);

impl Hasher {
    /// The hash function of switch number `switch` for `seed`.
    pub fn new(seed: u64, switch: u32) -> Hasher {
        Hasher(mix(seed ^ mix(u64::from(switch).wrapping_add(0x9e37_79b9_7f4a_7c15))))
    }

    /// The number that makes this function different from others.
    pub(super) fn secret(self) -> u64 {
        self.0
    }

    /// The path, of `choices` equal ones, that a packet with `flow_hash` takes.
    #[inline]
    pub fn choose(self, flow_hash: u32, choices: u32) -> u32 {
        let hash = mix(u64::from(flow_hash) ^ self.0) >> 32;
        ((hash * u64::from(choices)) >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_stack::packet::{Addr, Class};
    use weft_stack::spray::Entropy;
    use weft_stack::wire::class::Priority;

    #[test]
    fn entropies_spread_evenly_and_switches_choose_independently() {
        let (a, b) = (Hasher::new(1, 0), Hasher::new(1, 1));
        let mut counts = [0u32; 8];
        let mut same = 0;
        for entropy in 0..8_000 {
            let net = Network {
                src: Addr(3),
                dst: Addr(9),
                entropy: Entropy(entropy),
                class: Class::Data,
                priority: Priority::LOWEST,
                ecn: false,
                hops: 0,
            };
            let hash = flow_hash(&net);
            counts[a.choose(hash, 8) as usize] += 1;
            same += u32::from(a.choose(hash, 8) == b.choose(hash, 8));
        }
        // Binomial with mean 1000 and standard deviation 30: the bounds are six deviations away.
        assert!(counts.iter().all(|n| (820..1180).contains(n)), "{counts:?}");
        assert!((820..1180).contains(&same), "{same}");
    }

    /// The spread of 128 entropies over the paths of two tiers, which bounds what spraying without feedback can reach: the
    /// variance of independent draws is 128 · 1/64 · 63/64, and a hash that tiers share, or one that repeats, has more.
    #[test]
    fn a_flows_entropies_spread_over_two_tiers_like_independent_draws() {
        const FLOWS: u32 = 1_000;
        let mut squares = 0;
        for flow in 0..FLOWS {
            let (tor, agg) = (Hasher::new(13, flow), Hasher::new(13, 5_000 + flow));
            let mut counts = [0i32; 64];
            for entropy in 0..128 {
                let (src, dst) = (Addr(flow), Addr(flow ^ 512));
                let net = Network {
                    src,
                    dst,
                    entropy: Entropy(entropy),
                    class: Class::Data,
                    priority: Priority::LOWEST,
                    ecn: false,
                    hops: 0,
                };
                let hash = flow_hash(&net);
                counts[(tor.choose(hash, 8) * 8 + agg.choose(hash, 8)) as usize] += 1;
            }
            squares += counts.iter().map(|count| (count - 2).pow(2)).sum::<i32>();
        }
        let variance = f64::from(squares) / f64::from(64 * FLOWS);
        let expected = 128.0 / 64.0 * 63.0 / 64.0;
        // The standard deviation of this estimate is 0.6 %.
        assert!((variance / expected - 1.0).abs() < 0.04, "{variance}, expected {expected}");
    }
}
