//! The virtual-time engine: drives switches and endpoints through a run, deterministically.
//!
//! Hosts are [`weft_stack::fep::Fep`]s, the same endpoints that run over real ports. Switches are the model
//! of [`crate::switch`]. The engine moves packets between them and advances the clock.
//!
//! Events at the same instant are ordered by their kind and place, never by the order in which they were
//! scheduled, and each random decision has its own generator. So the same configuration gives the same run,
//! on every machine and in every build.
#![forbid(unsafe_code)]

mod barrier;
mod build;
mod config;
mod correlated;
mod engine;
mod faults;
mod flows;
mod host;
mod ideal;
mod lines;
mod link;
mod measures;
mod order;
mod packets;
mod part;
mod ranks;
mod receiver;
mod report;
mod rtts;
mod sample;
mod shard;
mod sides;
mod switches;
mod totals;
mod trace;
mod wires;

pub use config::{
    Algorithms, Opening, Overhead, PayloadMode, PhantomQueues, PortClass, RunConfig, RunError, Thresholds,
    Timers,
};
pub use correlated::{BlockLosses, CorrelatedLoss, GilbertElliott};
pub use faults::{
    FaultCounters, FaultPlan, LinkChange, LinkDirections, LinkEvent, LinkFaults, Share, SlowPort,
};
pub use lines::Lines;
pub use measures::{LinkMeasures, Loss, Measures, PriorityMeasures, SwitchMeasures, Unfinished};
pub use receiver::{HostCounters, HostModel};
pub use report::{FlowFailure, FlowRecord, NotStarted, PacketCounters, RunProgress, RunReport, TaskRecord};
pub use rtts::Rtts;
pub use sample::{FlowSample, PortSample, SampleSink, Sampling, SenderSample};
pub use trace::{TraceSink, Tracing};

// Also used by the software fabric.
pub(crate) use build::{Links, changes, mark_seed};
pub(crate) use config::MIN_FRAME;
pub(crate) use link::{Condition, LinkSpec};

use core::sync::atomic::AtomicBool;
use engine::Watch;
use shard::Shard;

/// Options of a run. Only `faults`, `settle` and `stop` affect the results.
#[derive(Default)]
pub struct Options<'a> {
    /// The link faults to inject.
    pub faults: FaultPlan,
    /// Whether the run goes on after the last connection has closed, until no packet is under way and no timer is left:
    /// targets need some seconds to notice that the initiator of a PDC has failed. [`RunReport::leaks`] then says what
    /// is left whether or not connections have failed.
    pub settle: bool,
    /// Number of threads; 0 counts as 1. At most one thread per ToR is used, in a graph one per switch.
    pub threads: usize,
    /// Whether two measures are taken that cost some time at each packet: the greatest total of the queues of each switch,
    /// [`SwitchMeasures::queue_max_bytes`], and RTTs, [`RunReport::rtts`]. Everything else is measured always.
    pub measure: bool,
    /// The sampling interval and the sink that receives the samples.
    pub sampling: Option<Sampling<'a>>,
    /// The endpoints' events to trace and the sink that receives them.
    pub tracing: Option<Tracing<'a>>,
    /// Called about every 65,536 events.
    pub progress: Option<&'a mut dyn FnMut(&RunProgress)>,
    /// Ends the run early once it is set, at an instant that depends on when it is set. Up to that instant the run is
    /// the same as without; it ends as a run with [`RunConfig::until`] does.
    pub stop: Option<&'a AtomicBool>,
}

/// Runs `config` without faults, on one thread. `progress` is called about every 65,536 events.
///
/// # Errors
/// [`RunError`] says which part of the configuration cannot work.
pub fn run(config: &RunConfig, progress: &mut dyn FnMut(&RunProgress)) -> Result<RunReport, RunError> {
    run_with(config, Options { progress: Some(progress), ..Options::default() })
}

/// Runs `config` with `options`.
///
/// # Errors
/// [`RunError`] says which part of the configuration cannot work.
pub fn run_with(config: &RunConfig, options: Options<'_>) -> Result<RunReport, RunError> {
    let Options { faults, settle, threads, measure, sampling, tracing, progress, stop } = options;
    let mut system = build::build(config, &faults, threads, sampling.is_some())?;
    if measure {
        system.shards.iter_mut().for_each(Shard::measure);
    }
    let selection = tracing.as_ref().map(|tracing| &tracing.selection);
    system.shards.iter_mut().for_each(|shard| shard.subscribe(selection));
    let messages = config.job.as_ref().map_or(0, |job| job.messages().len());
    let flows_total = (config.workload.flows().len() + messages) as u64;
    let mut watch = Watch { progress, sampling, tracing, stop, flows_total };
    system.settles = settle;
    let end = engine::run(&mut system, config.until, &mut watch);
    Ok(report::report(config, &system, end))
}
