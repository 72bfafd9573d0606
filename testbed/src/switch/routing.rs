//! How a switch chooses among the ports that lead to a destination equally well.

use core::fmt;
use core::str::FromStr;
use std::collections::BTreeMap;

use thiserror::Error;
use weft_cc::Span;
use weft_cc::units::parse_span;

use super::ecmp::{Hasher, mix};

/// How switches choose among equal ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Routing {
    /// By a hash of the addresses and the entropy.
    #[default]
    Ecmp,
    /// By the length of the queues.
    Adaptive(Adaptive),
    /// By the entropy as the number of a path: each switch with a choice takes a digit off the number, the first one the
    /// lowest, in the base of its choices. So where all paths between two hosts offer the same numbers of choices, the
    /// numbers from 0 to their product name each path once, and further numbers begin anew.
    Exact,
}

impl Routing {
    /// The same routing in a fabric in slow motion, where everything takes `times` as long.
    pub fn slowed(self, times: u32) -> Routing {
        match self {
            Routing::Adaptive(Adaptive { measure, sticky: Some(time) }) => {
                Routing::Adaptive(Adaptive { measure, sticky: Some(time.times(u64::from(times))) })
            }
            other => other,
        }
    }
}

/// Adaptive routing: each packet, or each flowlet, takes the port with the least waiting bytes, as in uet-htsim's
/// `-ar_method queue`. Equal ports are chosen from at random.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adaptive {
    /// What is compared.
    pub measure: QueueMeasure,
    /// A flow keeps its port while the gap between two of its packets at a switch is not longer than this; `None`: each
    /// packet chooses. A switch tells flows apart by the hash of their addresses and entropy, so a load balancer that
    /// sprays makes as many flows as it uses entropies.
    pub sticky: Option<Span>,
}

/// What adaptive routing compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueMeasure {
    /// The bytes that wait at a port, those of the packet in transmission that have not left included.
    LeastQueue,
    /// The same bytes in four levels: below 5, 10 and 20 % of the data queue's size, and above. These are uet-htsim's
    /// levels; they keep the switch from reacting to single packets.
    Quantised,
}

/// Why a routing is refused: the text says what was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "expected ecmp, exact, adaptive:least-queue or adaptive:quantised, the latter two perhaps with ,sticky=TIME"
)]
pub struct RoutingError;

impl FromStr for Routing {
    type Err = RoutingError;

    fn from_str(text: &str) -> Result<Routing, RoutingError> {
        let Some(adaptive) = text.strip_prefix("adaptive:") else {
            return match text {
                "ecmp" => Ok(Routing::Ecmp),
                "exact" => Ok(Routing::Exact),
                _ => Err(RoutingError),
            };
        };
        let (measure, sticky) = match adaptive.split_once(',') {
            None => (adaptive, None),
            Some((measure, sticky)) => {
                let time = sticky.strip_prefix("sticky=").and_then(|time| parse_span(time).ok());
                (measure, Some(time.filter(|time| *time > Span::ZERO).ok_or(RoutingError)?))
            }
        };
        let measure = match measure {
            "least-queue" => QueueMeasure::LeastQueue,
            "quantised" => QueueMeasure::Quantised,
            _ => return Err(RoutingError),
        };
        Ok(Routing::Adaptive(Adaptive { measure, sticky }))
    }
}

impl fmt::Display for Routing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Routing::Adaptive(Adaptive { measure, sticky }) = self else {
            return f.write_str(if *self == Routing::Exact { "exact" } else { "ecmp" });
        };
        f.write_str(match measure {
            QueueMeasure::LeastQueue => "adaptive:least-queue",
            QueueMeasure::Quantised => "adaptive:quantised",
        })?;
        sticky.map_or(Ok(()), |time| write!(f, ",sticky={time:#}"))
    }
}

/// The choice of a packet with the path number `path` among `choices` ports. What is left of the number goes on with the
/// packet.
#[inline]
fn take_digit(path: &mut u32, choices: u32) -> u32 {
    let digit = *path % choices;
    *path /= choices;
    digit
}

/// How one switch chooses among equal ports: a [`Routing`] with its state.
#[derive(Clone, Debug)]
pub enum Steering {
    /// See [`Routing::Ecmp`]. This alone can be done before the queues are known.
    Ecmp,
    /// See [`Routing::Exact`].
    Exact,
    /// See [`Routing::Adaptive`].
    Adaptive(Box<AdaptiveState>),
}

impl Steering {
    /// The state of switch number `switch` for `seed` at the start of a run.
    pub fn new(routing: Routing, seed: u64, switch: u32) -> Steering {
        match routing {
            Routing::Ecmp => Steering::Ecmp,
            Routing::Exact => Steering::Exact,
            Routing::Adaptive(config) => {
                Steering::Adaptive(Box::new(AdaptiveState::new(config, seed, switch)))
            }
        }
    }

    /// The choice, of `choices` ports, for a packet that arrives at `now`, ps. `hasher` is the switch's. `flow_hash` is the
    /// packet's hash or, with [`Routing::Exact`], what is left of the number of its path. `backlogs` are those of the ports
    /// in order; they are asked for only if the choice depends on them.
    pub fn choose(
        &mut self,
        hasher: Hasher,
        now: u64,
        flow_hash: &mut u32,
        choices: u32,
        backlogs: impl Iterator<Item = Backlog>,
    ) -> u32 {
        match self {
            Steering::Ecmp => hasher.choose(*flow_hash, choices),
            Steering::Exact => take_digit(flow_hash, choices),
            Steering::Adaptive(state) => state.choose(now, *flow_hash, choices, backlogs),
        }
    }
}

/// The bytes that a packet would wait for at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backlog {
    /// Bytes that wait [before the packet](super::EgressQueue::bytes_ahead_of), and of the packet in transmission as far as it
    /// has not left.
    pub bytes: u64,
    /// Size of the data queue of each priority, bytes.
    pub data_limit: u64,
}

impl Backlog {
    fn measured(self, measure: QueueMeasure) -> u64 {
        let reaches =
            |percent: u64| u128::from(self.bytes) * 100 >= u128::from(self.data_limit) * u128::from(percent);
        match measure {
            QueueMeasure::LeastQueue => self.bytes,
            QueueMeasure::Quantised => {
                [5, 10, 20].into_iter().map(|percent| u64::from(reaches(percent))).sum()
            }
        }
    }
}

/// The state of adaptive routing at one switch.
#[derive(Clone, Debug)]
pub struct AdaptiveState {
    config: Adaptive,
    /// The state of the generator that chooses among equal ports.
    random: u64,
    /// Measures of the ports, kept to reuse the memory.
    measures: Vec<u64>,
    flowlets: Flowlets,
}

impl AdaptiveState {
    /// The state of switch number `switch` for `seed` at the start of a run.
    pub fn new(config: Adaptive, seed: u64, switch: u32) -> AdaptiveState {
        let random = Hasher::new(seed, switch).secret();
        AdaptiveState { config, random, measures: Vec::new(), flowlets: Flowlets::default() }
    }

    /// The choice, of `choices` ports, for a packet with `flow_hash` that arrives at `now`, ps. `backlogs` are those of the
    /// ports in order.
    pub fn choose(
        &mut self,
        now: u64,
        flow_hash: u32,
        choices: u32,
        backlogs: impl Iterator<Item = Backlog>,
    ) -> u32 {
        let Some(sticky) = self.config.sticky else { return self.least(backlogs) };
        // Flows to different destinations may have one hash, and different numbers of ports.
        let current = self.flowlets.current(now, flow_hash, sticky.as_ps());
        if let Some(choice) = current.filter(|choice| *choice < choices) {
            return choice;
        }
        let choice = self.least(backlogs);
        self.flowlets.begin(now, flow_hash, choice, sticky.as_ps());
        choice
    }

    /// One of the ports with the least measure.
    fn least(&mut self, backlogs: impl Iterator<Item = Backlog>) -> u32 {
        let measure = self.config.measure;
        self.measures.clear();
        self.measures.extend(backlogs.map(|backlog| backlog.measured(measure)));
        let least = self.measures.iter().min().copied().unwrap_or_default();
        let equal = || self.measures.iter().zip(0..).filter(|(measure, _)| **measure == least);
        let count = equal().count() as u64;
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let pick = ((mix(self.random) >> 32) * count) >> 32;
        equal().nth(pick as usize).map_or(0, |(_, choice)| choice)
    }
}

/// The ports of flows, and when each was last seen.
#[derive(Clone, Debug, Default)]
struct Flowlets {
    /// By the hash of the flow: the time of its last packet, ps, and its choice. A map with an order, so that nothing
    /// depends on a hash.
    by_flow: BTreeMap<u32, (u64, u32)>,
    /// Number of flows at which those are forgotten whose port may change anyway.
    full: usize,
}

impl Flowlets {
    /// The port of a flow that was seen at most `sticky` ps before `now`, when it is seen again.
    fn current(&mut self, now: u64, flow: u32, sticky: u64) -> Option<u32> {
        let (last, choice) = self.by_flow.get_mut(&flow)?;
        if now.saturating_sub(*last) > sticky {
            return None;
        }
        *last = now;
        Some(*choice)
    }

    fn begin(&mut self, now: u64, flow: u32, choice: u32, sticky: u64) {
        self.by_flow.insert(flow, (now, choice));
        if self.by_flow.len() > self.full {
            self.by_flow.retain(|_, (last, _)| now.saturating_sub(*last) <= sticky);
            self.full = (2 * self.by_flow.len()).max(1024);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn backlogs(bytes: &[u64]) -> impl Iterator<Item = Backlog> + '_ {
        bytes.iter().map(|bytes| Backlog { bytes: *bytes, data_limit: 1_000 })
    }

    fn state(measure: QueueMeasure, sticky: Option<Span>) -> AdaptiveState {
        AdaptiveState::new(Adaptive { measure, sticky }, 1, 7)
    }

    #[test]
    fn the_least_queue_is_chosen_and_ties_are_broken_evenly() {
        let mut least = state(QueueMeasure::LeastQueue, None);
        assert_eq!(least.choose(0, 1, 3, backlogs(&[9, 3, 7])), 1);
        let mut counts = [0; 4];
        for _ in 0..3_000 {
            counts[least.choose(0, 1, 4, backlogs(&[5, 4, 4, 4])) as usize] += 1;
        }
        // Binomial with a deviation of 26: the bounds are six deviations away.
        assert!(counts[0] == 0 && counts[1..].iter().all(|n| (845..1_155).contains(n)), "{counts:?}");
    }

    #[test]
    fn quantised_queues_within_a_level_are_equal() {
        let mut levels = state(QueueMeasure::Quantised, None);
        for (queues, expected) in [
            ([49, 50, 300], &[0][..]),
            ([0, 49, 20], &[0, 1, 2]),
            ([99, 50, 100], &[0, 1]),
            ([199, 100, 200], &[0, 1]),
            ([900, 200, 1_000_000], &[0, 1, 2]),
        ] {
            let mut seen: Vec<u32> = (0..200).map(|_| levels.choose(0, 1, 3, backlogs(&queues))).collect();
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen, expected, "{queues:?}");
        }
    }

    #[test]
    fn a_flow_keeps_its_port_until_it_pauses() {
        let mut sticky = state(QueueMeasure::LeastQueue, Some(Span::from_ps(100)));
        assert_eq!(sticky.choose(0, 1, 2, backlogs(&[0, 5])), 0);
        assert_eq!(sticky.choose(60, 2, 2, backlogs(&[9, 5])), 1, "another flow");
        assert_eq!(sticky.choose(100, 1, 2, backlogs(&[9, 5])), 0);
        assert_eq!(sticky.choose(200, 1, 2, backlogs(&[9, 5])), 0, "each packet prolongs the flowlet");
        assert_eq!(sticky.choose(301, 1, 2, backlogs(&[9, 5])), 1);
        assert_eq!(sticky.choose(302, 1, 2, backlogs(&[0, 5])), 1);
    }

    /// Two flows to different destinations may have one hash.
    #[test]
    fn a_port_of_another_flow_with_the_same_hash_is_taken_only_where_it_exists() {
        let mut sticky = state(QueueMeasure::LeastQueue, Some(Span::from_ps(100)));
        assert_eq!(sticky.choose(0, 1, 3, backlogs(&[9, 9, 0])), 2);
        assert_eq!(sticky.choose(10, 1, 2, backlogs(&[9, 0])), 1);
    }

    #[test]
    fn flows_that_have_paused_are_forgotten() {
        let mut sticky = state(QueueMeasure::LeastQueue, Some(Span::from_ps(100)));
        for flow in 0..100_000 {
            sticky.choose(u64::from(flow) * 10, flow, 2, backlogs(&[0, 0]));
        }
        assert!(sticky.flowlets.by_flow.len() <= 1_025, "{}", sticky.flowlets.by_flow.len());
    }

    #[test]
    fn routings_that_are_not_known_are_refused() {
        for text in [
            "",
            "ECMP",
            "adaptive",
            "adaptive:",
            "adaptive:queue",
            "adaptive:least-queue,",
            "exact,sticky=1us",
        ] {
            assert_eq!(text.parse::<Routing>(), Err(RoutingError), "{text}");
        }
        for text in ["adaptive:least-queue,sticky=0s", "adaptive:least-queue,sticky=5"] {
            assert_eq!(text.parse::<Routing>(), Err(RoutingError), "{text}");
        }
    }

    proptest! {
        #[test]
        fn written_routings_parse_to_the_same_routings(quantised: bool, sticky in prop::option::of(1..=u64::MAX)) {
            let measure = if quantised { QueueMeasure::Quantised } else { QueueMeasure::LeastQueue };
            let adaptive = Routing::Adaptive(Adaptive { measure, sticky: sticky.map(Span::from_ps) });
            for routing in [Routing::Ecmp, Routing::Exact, adaptive] {
                prop_assert_eq!(routing.to_string().parse(), Ok(routing));
            }
        }

        /// Three switches with choices, as on a path up through two tiers and down a bundle.
        #[test]
        fn every_path_has_one_number(choices in [1u32..9, 1u32..9, 1u32..5]) {
            let paths: u32 = choices.iter().product();
            let path = |number: u32| {
                let mut rest = number;
                choices.map(|count| take_digit(&mut rest, count))
            };
            let mut all: Vec<_> = (0..paths).map(path).collect();
            prop_assert_eq!(path(paths + 3), path(3), "further numbers begin anew");
            all.sort_unstable();
            all.dedup();
            prop_assert_eq!(all.len() as u32, paths);
        }
    }
}
