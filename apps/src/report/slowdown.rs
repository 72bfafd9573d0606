//! Flows beside their ideal times, by their sizes, and the tasks of a workload.

use crate::stats::Summary;
use serde::Serialize;
use std::collections::BTreeMap;
use weft_cc::Span;
use weft_testbed::sim::{FlowRecord, RunConfig, RunReport};
use weft_testbed::topology::HostId;

/// A flow's time beside that in an idle fabric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Slowdown {
    pub(crate) ideal: Span,
    /// The flow's time over the ideal one, if the flow has completed.
    pub(crate) factor: Option<f64>,
}

impl Slowdown {
    /// The slowdown of `flow`.
    pub(crate) fn of(flow: &FlowRecord, config: &RunConfig) -> Slowdown {
        let ideal = config.ideal_fct(HostId(flow.src), HostId(flow.dst), flow.bytes);
        let fct = flow.start.zip(flow.end).map(|(start, end)| end.since(start));
        Slowdown { ideal, factor: fct.map(|fct| factor(fct, ideal)) }
    }
}

fn factor(time: Span, ideal: Span) -> f64 {
    time.as_ps() as f64 / ideal.as_ps().max(1) as f64
}

/// The completed flows of some sizes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Group {
    pub(crate) flows: u64,
    pub(crate) fct_us: Summary,
    pub(crate) slowdown: Summary,
}

impl Group {
    fn of(flows: &[(Span, f64)]) -> Group {
        Group {
            flows: flows.len() as u64,
            fct_us: Summary::of(flows.iter().map(|(fct, _)| *fct).collect()),
            slowdown: Summary::of_numbers(flows.iter().map(|(_, factor)| *factor).collect()),
        }
    }
}

/// The completed flows by size, in the groups of SIRD (§6.2).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct BySize {
    /// Less than the payload of a packet, one bandwidth-delay product, eight of them; and the remaining ones.
    pub(crate) below_mtu: Group,
    pub(crate) below_bdp: Group,
    pub(crate) below_8_bdp: Group,
    pub(crate) larger: Group,
    /// Bytes of the bandwidth-delay product.
    pub(crate) bdp_bytes: u64,
}

impl BySize {
    /// The groups with their names for people.
    pub(crate) fn groups(&self) -> [(&'static str, &Group); 4] {
        [
            ("< MTU", &self.below_mtu),
            ("< BDP", &self.below_bdp),
            ("< 8 BDP", &self.below_8_bdp),
            ("larger", &self.larger),
        ]
    }
}

/// The slowdowns of all completed flows, and the same by size.
pub(crate) fn slowdowns(run: &RunReport, config: &RunConfig) -> (Summary, BySize) {
    let bdp = config.bdp();
    let limits = [u64::from(config.mtu), bdp, bdp.saturating_mul(8)];
    let mut groups: [Vec<(Span, f64)>; 4] = Default::default();
    for (i, flow) in run.flows.iter().enumerate() {
        if config.workload.background_of(i).is_some() {
            continue;
        }
        let Some((start, end)) = flow.start.zip(flow.end) else { continue };
        let Some(factor) = Slowdown::of(flow, config).factor else { continue };
        // A BDP of less than a packet leaves the second group empty.
        let group = limits.iter().position(|limit| flow.bytes < *limit).unwrap_or(limits.len());
        groups[group].push((end.since(start), factor));
    }
    let all = groups.iter().flatten().map(|(_, factor)| *factor).collect();
    let [below_mtu, below_bdp, below_8_bdp, larger] = groups.map(|flows| Group::of(&flows));
    (Summary::of_numbers(all), BySize { below_mtu, below_bdp, below_8_bdp, larger, bdp_bytes: bdp })
}

/// The tasks of one description of a workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Tasks {
    pub(crate) workload: String,
    pub(crate) total: u64,
    pub(crate) completed: u64,
    /// From the start of a task's first flow until the destinations have all of its flows.
    pub(crate) time_us: Summary,
    /// The least time in an idle fabric.
    pub(crate) ideal_us: Summary,
    /// One over the other.
    pub(crate) slowdown: Summary,
}

/// The tasks by the place of their description on the command line, counted from 1; empty if there are none.
pub(crate) fn tasks(run: &RunReport, config: &RunConfig) -> BTreeMap<u32, Tasks> {
    let mut sources: Vec<u32> = run.tasks.iter().map(|task| task.source).collect();
    sources.dedup();
    let of = |source: u32| {
        let tasks = || run.tasks.iter().filter(move |task| task.source == source);
        let done: Vec<(Span, Span)> =
            tasks().filter_map(|task| Some((task.end?.since(task.start?), task.ideal))).collect();
        Tasks {
            workload: config.workload.sources()[source as usize].clone(),
            total: tasks().count() as u64,
            completed: done.len() as u64,
            time_us: Summary::of(done.iter().map(|(time, _)| *time).collect()),
            ideal_us: Summary::of(done.iter().map(|(_, ideal)| *ideal).collect()),
            slowdown: Summary::of_numbers(done.iter().map(|(time, ideal)| factor(*time, *ideal)).collect()),
        }
    };
    sources.into_iter().map(|source| (source + 1, of(source))).collect()
}
