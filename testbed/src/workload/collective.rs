//! Collective operations, once or in iterations with computation between them.
//!
//! Every rank begins an iteration by itself: the first one at a time, each further one when the rank has ended the one
//! before and has computed. A step begins when the rank has begun, has what the step sends, and has begun the step
//! before; the triggers of a rank follow each other for that ([`Trigger::then`](super::Trigger::then)).

use std::collections::BTreeMap;
use std::ops::Range;

use weft_cc::{Span, Time};
use weft_stack::rng::Rng;

use super::draft::{Done, Draft, Setting};
use super::generate::shuffled;
use super::pairs::{Pairs, digits, range};
use super::random::up_to;
use super::spec::WorkloadSpecError;
use super::{Start, TriggerIdx, TriggerKind};

/// What the ranks do in an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// All-reduce around a ring: 2 (n - 1) steps with an n-th of the vector (Patarasuk and Yuan, JPDC 2009).
    Ring,
    /// All-reduce over a binomial tree, up and down again, with the whole vector.
    Tree,
    /// All-reduce by recursive doubling: log₂ n exchanges of the whole vector (Thakur et al., IJHPCA 2005).
    Doubling,
    /// Every rank sends to every other one, to at most so many at a time.
    AllToAll { window: u32 },
}

/// The ranks of a collective.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Ranks {
    /// All hosts, in their order.
    All,
    /// These hosts, in their order.
    Hosts(Range<u32>),
}

/// A collective operation in iterations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Collective {
    operation: Operation,
    bytes: Option<u64>,
    ranks: Ranks,
    /// Whether the ranks are given to the hosts at random.
    shuffle: bool,
    iterations: u32,
    compute: Span,
    start: Span,
    jitter: Span,
}

/// The keys that make an iterated collective of an all-to-all.
pub(super) const ITERATION_KEYS: [&str; 4] = ["iterations", "compute", "ranks", "order"];

impl Collective {
    /// Takes the settings of an all-reduce.
    pub(super) fn parse_all_reduce(pairs: &mut Pairs<'_>) -> Result<Collective, WorkloadSpecError> {
        let operation = match pairs.first() {
            Some("ring") => Operation::Ring,
            Some("tree") => Operation::Tree,
            Some("recursive-doubling") => Operation::Doubling,
            other => {
                let found = other.unwrap_or_default();
                return Err(WorkloadSpecError::Missing(format!(
                    "all-reduce:ring, all-reduce:tree or all-reduce:recursive-doubling, not `{found}`"
                )));
            }
        };
        Collective::parse(operation, pairs)
    }

    /// Takes the settings of `operation`.
    pub(super) fn parse(
        operation: Operation,
        pairs: &mut Pairs<'_>,
    ) -> Result<Collective, WorkloadSpecError> {
        let ranks = pairs.read("ranks", "a number of hosts such as 16, or a range such as 8-23", ranks)?;
        let shuffle = pairs.read("order", "hosts or random", |text| match text {
            "hosts" => Some(false),
            "random" => Some(true),
            _ => None,
        })?;
        Ok(Collective {
            operation,
            bytes: pairs.bytes("size")?,
            ranks: ranks.map_or(Ranks::All, Ranks::Hosts),
            shuffle: shuffle.unwrap_or(false),
            iterations: pairs.count("iterations")?.unwrap_or(1),
            compute: pairs.span("compute")?.unwrap_or(Span::ZERO),
            start: pairs.span("start")?.unwrap_or(Span::ZERO),
            jitter: pairs.span("jitter")?.unwrap_or(Span::ZERO),
        })
    }

    /// Number of hosts that must exist.
    pub(super) fn hosts_needed(&self) -> u64 {
        match &self.ranks {
            Ranks::All => 2,
            Ranks::Hosts(range) => u64::from(range.end),
        }
    }

    /// Flows of an iteration of `n` ranks.
    fn flows(&self, n: u64) -> u64 {
        match self.operation {
            Operation::Ring => 2 * n * (n - 1),
            Operation::Tree => 2 * (n - 1),
            Operation::Doubling => n * u64::from(n.ilog2()),
            Operation::AllToAll { .. } => n * (n - 1),
        }
    }

    pub(super) fn generate(
        &self,
        source: u32,
        setting: &Setting<'_>,
        draft: &mut Draft,
        rng: &mut Rng,
    ) -> Result<(), WorkloadSpecError> {
        let mut hosts: Vec<u32> = match &self.ranks {
            Ranks::All => (0..setting.hosts).collect(),
            Ranks::Hosts(range) => range.clone().collect(),
        };
        if self.shuffle {
            hosts = shuffled(hosts.len() as u32, rng).into_iter().map(|i| hosts[i as usize]).collect();
        }
        let n = hosts.len();
        if self.operation == Operation::Doubling && !n.is_power_of_two() {
            let reason = format!("{n} ranks; expected a power of two for recursive doubling");
            return Err(WorkloadSpecError::value("ranks", reason));
        }
        draft.reserve(self.flows(n as u64).saturating_mul(u64::from(self.iterations)))?;
        let bytes = self.bytes.unwrap_or(setting.bytes);
        let mut iteration = Iteration { draft, hosts, connections: BTreeMap::new(), bytes };
        let mut ends: Vec<Vec<Done>> = Vec::new();
        for number in 0..self.iterations {
            let begins = match number {
                0 => (0..n).map(|_| iteration.first(self.start, self.jitter, rng)).collect(),
                _ => iteration.following(&ends, self.compute, self.jitter, rng),
            };
            let begins: Vec<TriggerIdx> = begins.into_iter().collect::<Result<_, _>>()?;
            let first = iteration.draft.len();
            ends = match self.operation {
                Operation::Ring => iteration.ring(&begins)?,
                Operation::Tree => iteration.tree(&begins)?,
                Operation::Doubling => iteration.doubling(&begins)?,
                Operation::AllToAll { window } => iteration.all_to_all(window, &begins)?,
            };
            iteration.draft.task(source, first);
        }
        Ok(())
    }
}

/// `N` for the first N hosts, or `A-B` for the hosts from A to B; at least two.
fn ranks(text: &str) -> Option<Range<u32>> {
    let range = match range(text) {
        Some(range) => range,
        None => 0..digits(text)?.parse().ok()?,
    };
    (range.end.saturating_sub(range.start) >= 2).then_some(range)
}

/// The ranks of a collective while an iteration is made. Each method adds the flows of one iteration that rank `r`
/// begins when `begins[r]` fires, and returns for each rank when it has ended.
struct Iteration<'d> {
    draft: &'d mut Draft,
    /// The host of each rank.
    hosts: Vec<u32>,
    /// The connection of each pair of ranks, which all iterations share.
    connections: BTreeMap<(usize, usize), u32>,
    bytes: u64,
}

type Ends = Result<Vec<Vec<Done>>, WorkloadSpecError>;

impl Iteration<'_> {
    /// The beginning of a rank's first iteration.
    fn first(&mut self, start: Span, jitter: Span, rng: &mut Rng) -> Result<TriggerIdx, WorkloadSpecError> {
        self.draft.timed_trigger(Time::ZERO + start + up_to(rng, jitter))
    }

    /// The beginnings of an iteration after the one whose `ends` are given.
    fn following(
        &mut self,
        ends: &[Vec<Done>],
        compute: Span,
        jitter: Span,
        rng: &mut Rng,
    ) -> Vec<Result<TriggerIdx, WorkloadSpecError>> {
        let mut begin = |dones: &Vec<Done>| {
            let delay = compute + up_to(rng, jitter);
            let trigger = self.draft.trigger(TriggerKind::Barrier(dones.len() as u32), delay)?;
            dones.iter().for_each(|done| self.draft.activate(*done, trigger));
            Ok(trigger)
        };
        ends.iter().map(&mut begin).collect()
    }

    /// Adds a flow from rank `from` to rank `to`.
    fn send(
        &mut self,
        from: usize,
        to: usize,
        bytes: u64,
        trigger: TriggerIdx,
    ) -> Result<u32, WorkloadSpecError> {
        let Iteration { draft, hosts, connections, .. } = self;
        let connection =
            *connections.entry((from, to)).or_insert_with(|| draft.connect(hosts[from], hosts[to]));
        draft.flow(connection, bytes, Start::Trigger(trigger), true)
    }

    /// A trigger that fires after `before` and `arrivals` activations by flows.
    fn after(&mut self, before: TriggerIdx, arrivals: u32) -> Result<TriggerIdx, WorkloadSpecError> {
        let trigger = self.draft.trigger(TriggerKind::Barrier(arrivals + 1), Span::ZERO)?;
        self.draft.chain(before, trigger);
        Ok(trigger)
    }

    fn ring(&mut self, begins: &[TriggerIdx]) -> Ends {
        let n = self.hosts.len();
        // The first bytes % n chunks have a byte more.
        let chunk = |c: usize| self.bytes / n as u64 + u64::from((c as u64) < self.bytes % n as u64);
        let chunks: Vec<u64> = (0..n).map(chunk).collect();
        let mut ready = begins.to_vec();
        let mut arrived = Vec::new();
        for step in 0..2 * (n - 1) {
            if step > 0 {
                for (rank, ready) in ready.iter_mut().enumerate() {
                    *ready = self.after(*ready, 1)?;
                    // What the rank passes on comes from the one before it.
                    let from = (rank + n - 1) % n;
                    self.draft.activate(Done::Received(arrived[from]), *ready);
                }
            }
            arrived.clear();
            for (rank, ready) in ready.iter().enumerate() {
                let bytes = chunks[(rank + 2 * n - step) % n];
                arrived.push(self.send(rank, (rank + 1) % n, bytes, *ready)?);
            }
        }
        Ok((0..n).map(|rank| vec![Done::Received(arrived[(rank + n - 1) % n])]).collect())
    }

    fn doubling(&mut self, begins: &[TriggerIdx]) -> Ends {
        let n = self.hosts.len();
        let mut ready = begins.to_vec();
        let mut ends = vec![Vec::new(); n];
        for round in 0..n.ilog2() {
            if round > 0 {
                for (rank, ready) in ready.iter_mut().enumerate() {
                    *ready = self.after(*ready, 1)?;
                    let last: Option<Done> = ends[rank].pop();
                    last.into_iter().for_each(|done| self.draft.activate(done, *ready));
                }
            }
            for (rank, ready) in ready.iter().enumerate() {
                let partner = rank ^ (1 << round);
                let flow = self.send(rank, partner, self.bytes, *ready)?;
                ends[partner] = vec![Done::Received(flow)];
            }
        }
        Ok(ends)
    }

    fn tree(&mut self, begins: &[TriggerIdx]) -> Ends {
        let n = self.hosts.len();
        // The children of a rank in a binomial tree whose root is rank 0, the largest subtree last.
        let children = |rank: usize| {
            let width = if rank == 0 { n.next_power_of_two() } else { 1 << rank.trailing_zeros() };
            (0..).map(|bit| 1 << bit).take_while(move |bit| *bit < width).map(move |bit| rank + bit)
        };
        let children = |rank: usize| children(rank).filter(|child| *child < n);
        // Up: a rank sends when it has begun and has heard from its children.
        let mut ready = begins.to_vec();
        for rank in (0..n).rev() {
            if children(rank).next().is_some() {
                ready[rank] = self.after(begins[rank], children(rank).count() as u32)?;
            }
        }
        for rank in 1..n {
            let parent = rank & (rank - 1);
            let flow = self.send(rank, parent, self.bytes, ready[rank])?;
            self.draft.activate(Done::Received(flow), ready[parent]);
        }
        // Down: a rank sends to one child after the other, the largest subtree first.
        let mut ends = vec![Vec::new(); n];
        let mut arrived: Vec<Option<u32>> = vec![None; n];
        for rank in 0..n {
            let mut next = match arrived[rank] {
                None => Some(ready[0]),
                Some(flow) => {
                    ends[rank] = vec![Done::Received(flow)];
                    None
                }
            };
            let mut below: Vec<usize> = children(rank).collect();
            below.reverse();
            for child in below {
                let trigger = match next.take() {
                    Some(trigger) => trigger,
                    None => {
                        let trigger = self.draft.trigger(TriggerKind::Oneshot, Span::ZERO)?;
                        ends[rank].iter().for_each(|done| self.draft.activate(*done, trigger));
                        trigger
                    }
                };
                let flow = self.send(rank, child, self.bytes, trigger)?;
                arrived[child] = Some(flow);
                ends[rank] = vec![Done::Sent(flow)];
            }
        }
        Ok(ends)
    }

    fn all_to_all(&mut self, window: u32, begins: &[TriggerIdx]) -> Ends {
        let n = self.hosts.len();
        let mut ends = vec![Vec::new(); n];
        for (rank, begin) in begins.iter().enumerate() {
            let next = match (window as usize) < n - 1 {
                true => Some(self.draft.trigger(TriggerKind::Multishot, Span::ZERO)?),
                false => None,
            };
            for distance in 1..n {
                let trigger = next.filter(|_| distance > window as usize).unwrap_or(*begin);
                let to = (rank + distance) % n;
                let flow = self.send(rank, to, self.bytes, trigger)?;
                if let Some(next) = next {
                    self.draft.activate(Done::Sent(flow), next);
                }
                ends[to].push(Done::Received(flow));
            }
        }
        Ok(ends)
    }
}
