//! Flows that arrive whether or not earlier ones have ended, and requests with their responses.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use weft_cc::{Span, Time};
use weft_stack::rng::Rng;

use super::draft::{Done, Draft, MAX_FLOWS, Pool, Setting, Sharing};
use super::pairs::Pairs;
use super::partners::{LoadOf, Partners};
use super::random::{exponential, lognormal};
use super::sizes::{SizeDistribution, Sizes};
use super::spec::WorkloadSpecError;
use super::{Start, TriggerKind};

/// The latest start that a workload may have, ps: that of a connection matrix.
const MAX_START: u64 = 1 << 62;

/// How much time is between the arrivals of a source.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Arrivals {
    /// Exponentially distributed times.
    Poisson,
    /// Lognormally distributed times, whose logarithm has the standard deviation `sigma`.
    Lognormal { sigma: f64 },
    /// Always the same time.
    Periodic,
}

impl Arrivals {
    /// Takes `arrivals` and `sigma`.
    pub(super) fn parse(pairs: &mut Pairs<'_>) -> Result<Arrivals, WorkloadSpecError> {
        let name = pairs.text("arrivals").unwrap_or("poisson");
        match name {
            "poisson" if pairs.has("sigma") => {
                Err(WorkloadSpecError::value("sigma", "expected arrivals=lognormal with it".to_owned()))
            }
            "poisson" => Ok(Arrivals::Poisson),
            "lognormal" => Ok(Arrivals::Lognormal { sigma: sigma(pairs)? }),
            _ => {
                let reason = format!("`{name}`; expected poisson or lognormal");
                Err(WorkloadSpecError::value("arrivals", reason))
            }
        }
    }

    /// The time until the next arrival, where it is `mean` on average.
    pub(super) fn gap(self, mean: f64, rng: &mut Rng) -> u64 {
        let factor = match self {
            Arrivals::Poisson => exponential(rng),
            Arrivals::Lognormal { sigma } => lognormal(rng, sigma),
            Arrivals::Periodic => 1.0,
        };
        // The conversion saturates.
        (mean * factor + 0.5) as u64
    }
}

/// Takes `sigma`.
pub(super) fn sigma(pairs: &mut Pairs<'_>) -> Result<f64, WorkloadSpecError> {
    let expected = "a number from 0 to 10, such as 2";
    Ok(pairs.decimal("sigma", expected, |n| n <= 10.0)?.unwrap_or(2.0))
}

/// How long a generator makes arrivals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// For a time.
    For(Span),
    /// Until there are so many.
    Count(u32),
}

impl Extent {
    /// Takes `duration` or `count`, one of which must be given.
    pub(super) fn parse(pairs: &mut Pairs<'_>, count: &'static str) -> Result<Extent, WorkloadSpecError> {
        match (pairs.duration("duration")?, pairs.count(count)?) {
            (Some(duration), None) => Ok(Extent::For(duration)),
            (None, Some(number)) => Ok(Extent::Count(number)),
            (None, None) => Err(WorkloadSpecError::Missing(format!("duration=TIME or {count}=N"))),
            (Some(_), Some(_)) => {
                Err(WorkloadSpecError::value("duration", format!("expected no {count} as well")))
            }
        }
    }

    /// About how many arrivals there will be, one in `gap` ps.
    pub(super) fn expected(self, gap: f64) -> u64 {
        match self {
            Extent::For(span) => (span.as_ps() as f64 / gap) as u64,
            Extent::Count(count) => u64::from(count),
        }
    }

    /// Whether arrival number `number`, counted from 0, is part of it if it comes `since` ps after the beginning.
    pub(super) fn has(self, number: u64, since: u64) -> bool {
        match self {
            Extent::For(span) => since < span.as_ps(),
            Extent::Count(count) => number < u64::from(count),
        }
    }
}

/// Flows that arrive at random, from and to random hosts.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OpenLoop {
    arrivals: Arrivals,
    load: f64,
    of: LoadOf,
    sizes: Option<Sizes>,
    /// Sizes of responses, and the time that a server takes to begin with one.
    response: Option<(Sizes, Span)>,
    extent: Extent,
    start: Span,
    intra: Option<f64>,
    sharing: Sharing,
}

impl OpenLoop {
    /// Takes the settings of flows that arrive as `arrivals` say.
    pub(super) fn parse(arrivals: Arrivals, pairs: &mut Pairs<'_>) -> Result<OpenLoop, WorkloadSpecError> {
        let share = |n: f64| n <= 1.0;
        let of = pairs.read("of", "host or core", |text| match text {
            "host" => Some(LoadOf::Hosts),
            "core" => Some(LoadOf::Core),
            _ => None,
        })?;
        Ok(OpenLoop {
            arrivals,
            load: load(pairs)?.ok_or_else(|| WorkloadSpecError::Missing("load=SHARE".to_owned()))?,
            of: of.unwrap_or(LoadOf::Hosts),
            sizes: pairs.sizes("sizes")?,
            response: None,
            extent: Extent::parse(pairs, "flows")?,
            start: pairs.span("start")?.unwrap_or(Span::ZERO),
            intra: pairs.decimal("intra", "a share from 0 to 1, such as 0.8", share)?,
            sharing: Sharing::parse(pairs)?,
        })
    }

    /// Takes the settings of requests and responses.
    pub(super) fn parse_rpc(pairs: &mut Pairs<'_>) -> Result<OpenLoop, WorkloadSpecError> {
        let arrivals = Arrivals::parse(pairs)?;
        let response = pairs.sizes("response")?.unwrap_or(Sizes::Fixed(DEFAULT_RESPONSE));
        let service = pairs.span("service")?.unwrap_or(Span::ZERO);
        let requests = OpenLoop::parse(arrivals, pairs)?;
        Ok(OpenLoop { response: Some((response, service)), ..requests })
    }

    pub(super) fn generate(
        &self,
        source: u32,
        setting: &Setting<'_>,
        draft: &mut Draft,
        rng: &mut Rng,
    ) -> Result<(), WorkloadSpecError> {
        let load_sizes = |key, sizes: &Sizes| {
            sizes.load(setting.read).map_err(|reason| WorkloadSpecError::Sizes { key, reason })
        };
        let sizes = match &self.sizes {
            Some(sizes) => load_sizes("sizes", sizes)?,
            None => SizeDistribution::fixed(setting.bytes),
        };
        let response = match &self.response {
            Some((sizes, service)) => Some((load_sizes("response", sizes)?, *service)),
            None => None,
        };
        let mean = sizes.mean() + response.as_ref().map_or(0.0, |(sizes, _)| sizes.mean());
        if mean <= 0.0 {
            let reason = "flows of no bytes make no load; expected sizes above zero".to_owned();
            return Err(WorkloadSpecError::value("load", reason));
        }
        let partners = Partners::new(setting, self.intra)?;
        let capacity = self.of.capacity(setting, &partners)?;
        // Time between arrivals of all sources together, ps.
        let gap = mean / (self.load * capacity) * 1e12;
        let flows_each = if response.is_some() { 2 } else { 1 };
        draft.reserve(self.extent.expected(gap).saturating_mul(flows_each))?;
        let mut pool = Pool::new(self.sharing);
        let begin = self.start.as_ps();
        let mean_gap = gap * f64::from(setting.hosts);
        let mut next: BinaryHeap<Reverse<(u64, u32)>> = (0..setting.hosts)
            .map(|src| Reverse((begin.saturating_add(self.arrivals.gap(mean_gap, rng)), src)))
            .collect();
        for number in 0.. {
            let Some(Reverse((at, src))) = next.pop() else { break };
            if !self.extent.has(number, at - begin) {
                break;
            }
            if at > MAX_START {
                return Err(WorkloadSpecError::value("load", "so few flows never come".to_owned()));
            }
            let ends = (src, partners.draw(src, rng));
            let start = Start::At(Time::from_ps(at));
            let flow = pool.flow(draft, ends, sizes.draw(rng), start)?;
            if let Some((sizes, service)) = &response {
                let trigger = draft.trigger(TriggerKind::Oneshot, *service)?;
                draft.activate(Done::Received(flow), trigger);
                let back = Start::Trigger(trigger);
                pool.flow(draft, (ends.1, ends.0), sizes.draw(rng), back)?;
                draft.task(source, flow);
            }
            next.push(Reverse((at.saturating_add(self.arrivals.gap(mean_gap, rng)), src)));
        }
        Ok(())
    }
}

/// Bytes of a response where nothing is said.
const DEFAULT_RESPONSE: u64 = 64;

/// Takes `load`.
pub(super) fn load(pairs: &mut Pairs<'_>) -> Result<Option<f64>, WorkloadSpecError> {
    pairs.decimal("load", "a share above 0, at most 10, such as 0.6", |n| n > 0.0 && n <= 10.0)
}

/// Bursts: every now and then many hosts send to one host at the same time.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Bursts {
    senders: u32,
    bytes: Option<u64>,
    rate: BurstRate,
    arrivals: Arrivals,
    extent: Extent,
    start: Span,
    jitter: Span,
    sharing: Sharing,
}

/// How often bursts come.
#[derive(Clone, Copy, Debug, PartialEq)]
enum BurstRate {
    /// As often as makes this load on the links of all hosts.
    Load(f64),
    /// One in this time.
    Every(Span),
}

impl Bursts {
    pub(super) fn parse(pairs: &mut Pairs<'_>) -> Result<Bursts, WorkloadSpecError> {
        let rate = match (load(pairs)?, pairs.duration("every")?) {
            (Some(load), None) => BurstRate::Load(load),
            (None, Some(every)) => BurstRate::Every(every),
            (None, None) => {
                return Err(WorkloadSpecError::Missing("load=SHARE or every=TIME".to_owned()));
            }
            (Some(_), Some(_)) => {
                return Err(WorkloadSpecError::value("load", "expected no every as well".to_owned()));
            }
        };
        let arrivals = pairs.read("arrivals", "periodic or poisson", |text| match text {
            "periodic" => Some(Arrivals::Periodic),
            "poisson" => Some(Arrivals::Poisson),
            _ => None,
        })?;
        Ok(Bursts {
            senders: pairs
                .count("senders")?
                .ok_or_else(|| WorkloadSpecError::Missing("senders=N".to_owned()))?,
            bytes: pairs.bytes("size")?,
            rate,
            arrivals: arrivals.unwrap_or(Arrivals::Periodic),
            extent: Extent::parse(pairs, "bursts")?,
            start: pairs.span("start")?.unwrap_or(Span::ZERO),
            jitter: pairs.span("jitter")?.unwrap_or(Span::ZERO),
            sharing: Sharing::parse(pairs)?,
        })
    }

    /// Hosts that take part in a burst.
    pub(super) fn hosts_needed(&self) -> u64 {
        u64::from(self.senders) + 1
    }

    pub(super) fn generate(
        &self,
        source: u32,
        setting: &Setting<'_>,
        draft: &mut Draft,
        rng: &mut Rng,
    ) -> Result<(), WorkloadSpecError> {
        let bytes = self.bytes.unwrap_or(setting.bytes);
        let gap = match self.rate {
            BurstRate::Every(every) => every.as_ps() as f64,
            BurstRate::Load(load) => {
                let capacity = LoadOf::Hosts.capacity(setting, &Partners::new(setting, None)?)?;
                bytes as f64 * f64::from(self.senders) / (load * capacity) * 1e12
            }
        };
        if gap < 1.0 {
            let reason = "bursts would follow each other within a picosecond".to_owned();
            return Err(WorkloadSpecError::value("load", reason));
        }
        draft
            .reserve(self.extent.expected(gap).saturating_mul(u64::from(self.senders)).min(MAX_FLOWS + 1))?;
        let mut pool = Pool::new(self.sharing);
        let mut order: Vec<u32> = (0..setting.hosts).collect();
        let begin = self.start.as_ps();
        let mut at = begin;
        for number in 0.. {
            at = at.saturating_add(self.arrivals.gap(gap, rng));
            if !self.extent.has(number, at - begin) {
                break;
            }
            if at > MAX_START {
                return Err(WorkloadSpecError::value("load", "so few bursts never come".to_owned()));
            }
            // The first steps of a Fisher–Yates shuffle: the receiver, and its senders.
            for i in 0..=self.senders {
                order.swap(i as usize, (i + rng.below(setting.hosts - i)) as usize);
            }
            let first = draft.len();
            for &src in &order[1..=self.senders as usize] {
                let late = super::random::up_to(rng, self.jitter);
                let start = Start::At(Time::from_ps(at) + late);
                pool.flow(draft, (src, order[0]), bytes, start)?;
            }
            draft.task(source, first);
        }
        Ok(())
    }
}
