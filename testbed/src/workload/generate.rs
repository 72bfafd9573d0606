//! Workloads that run once: permutations and all-to-alls.

use weft_cc::{Span, Time};
use weft_stack::rng::Rng;

use super::draft::{Done, Draft, Setting};
use super::pairs::Pairs;
use super::random::up_to;
use super::spec::WorkloadSpecError;
use super::{Start, TriggerKind};

/// The size and the start of all flows of a workload that runs once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Once {
    /// Bytes of each flow; `None`: as the setting says.
    bytes: Option<u64>,
    start: Time,
    /// Flows start later than `start` by a random time up to this.
    jitter: Span,
}

impl Once {
    pub(super) fn parse(pairs: &mut Pairs<'_>) -> Result<Once, WorkloadSpecError> {
        Ok(Once {
            bytes: pairs.bytes("size")?,
            start: Time::ZERO + pairs.span("start")?.unwrap_or(Span::ZERO),
            jitter: pairs.span("jitter")?.unwrap_or(Span::ZERO),
        })
    }

    pub(super) fn bytes(&self, setting: &Setting<'_>) -> u64 {
        self.bytes.unwrap_or(setting.bytes)
    }

    pub(super) fn start(&self, rng: &mut Rng) -> Start {
        let late = if self.jitter == Span::ZERO { Span::ZERO } else { up_to(rng, self.jitter) };
        Start::At(self.start + late)
    }

    /// Every host sends to one other and receives from one other: a derangement, with each equally likely.
    pub(super) fn permutation(
        &self,
        setting: &Setting<'_>,
        draft: &mut Draft,
        rng: &mut Rng,
    ) -> Result<(), WorkloadSpecError> {
        draft.reserve(u64::from(setting.hosts))?;
        // One in e shuffles has no fixed point. Taking the first such shuffle keeps all derangements equally
        // likely.
        let order = loop {
            let order = shuffled(setting.hosts, rng);
            if (0..setting.hosts).all(|h| order[h as usize] != h) {
                break order;
            }
        };
        for (src, dst) in (0..setting.hosts).zip(order) {
            let start = self.start(rng);
            draft.lone_flow(src, dst, self.bytes(setting), start)?;
        }
        Ok(())
    }

    /// Each host sends to the others in the order of one common ring. When a flow ends, the host's next flow starts
    /// (SMaRTT §IV-C).
    pub(super) fn all_to_all(
        &self,
        window: u32,
        setting: &Setting<'_>,
        draft: &mut Draft,
        rng: &mut Rng,
    ) -> Result<(), WorkloadSpecError> {
        let hosts = setting.hosts as usize;
        draft.reserve(u64::from(setting.hosts) * u64::from(setting.hosts - 1))?;
        let ring = shuffled(setting.hosts, rng);
        for (at, &src) in ring.iter().enumerate() {
            let next = match (window as usize) < hosts - 1 {
                true => Some(draft.trigger(TriggerKind::Multishot, Span::ZERO)?),
                false => None,
            };
            for distance in 1..hosts {
                let start = match next {
                    Some(trigger) if distance > window as usize => Start::Trigger(trigger),
                    _ => self.start(rng),
                };
                let flow = draft.lone_flow(src, ring[(at + distance) % hosts], self.bytes(setting), start)?;
                if let Some(trigger) = next {
                    draft.activate(Done::Sent(flow), trigger);
                }
            }
        }
        Ok(())
    }
}

/// The numbers below `n` in random order (Fisher–Yates).
pub(super) fn shuffled(n: u32, rng: &mut Rng) -> Vec<u32> {
    let mut order: Vec<u32> = (0..n).collect();
    for i in (1..n).rev() {
        order.swap(i as usize, rng.below(i + 1) as usize);
    }
    order
}
