//! The virtual-time engine: drives switches and endpoints through a run, deterministically.
//!
//! Hosts are [`weft_stack::fep::Fep`]s, the same that run over real ports; switches are
//! [`crate::switch`]. The engine moves packets between them and keeps the clock.
//!
//! The order of events at the same instant depends on what they are about, never on the order in
//! which they were scheduled, and everything random has a generator of its own: the same
//! configuration gives the same run, on every machine and in every build.
#![forbid(unsafe_code)]

mod barrier;
mod build;
mod config;
mod engine;
mod faults;
mod flows;
mod host;
mod lines;
mod link;
mod order;
mod packets;
mod report;
mod sample;
mod shard;
mod switches;
mod wires;

pub use config::{Overhead, PayloadMode, PhantomQueues, RunConfig, RunError};
pub use faults::{FaultPlan, LinkChange, LinkEvent, LinkFaults, Share, SlowPort};
pub use lines::Lines;
pub use report::{FlowRecord, NotStarted, PacketCounters, Progress, RunReport};
pub use sample::{FlowSample, PortSample, SampleSink, Sampling};

// What the software fabric shares with the engine.
pub(crate) use build::{Links, changes, mark_seed};
pub(crate) use config::MIN_FRAME;
pub(crate) use link::{Condition, LinkSpec};

use core::sync::atomic::AtomicBool;
use engine::Watch;

/// How a run is carried out. Only `faults` and `stop` have an effect on the results.
#[derive(Default)]
pub struct Options<'a> {
    /// What goes wrong with links.
    pub faults: FaultPlan,
    /// How many threads share the work; 0 counts as 1. No more are used than there are ToRs.
    pub threads: usize,
    /// Takes samples in.
    pub sampling: Option<Sampling<'a>>,
    /// Called now and then.
    pub progress: Option<&'a mut dyn FnMut(&Progress)>,
    /// Ends the run early once it is set: soon, at an instant that depends on when that happens. Up to this instant the
    /// run is the same as without; it ends as one with [`RunConfig::until`] does.
    pub stop: Option<&'a AtomicBool>,
}

/// Carries out a run. `progress` is called now and then.
///
/// # Errors
/// A configuration that cannot work.
pub fn run(config: &RunConfig, progress: &mut dyn FnMut(&Progress)) -> Result<RunReport, RunError> {
    run_with(config, Options { progress: Some(progress), ..Options::default() })
}

/// Carries out a run as `options` say.
///
/// # Errors
/// A configuration that cannot work.
pub fn run_with(config: &RunConfig, options: Options<'_>) -> Result<RunReport, RunError> {
    let Options { faults, threads, sampling, progress, stop } = options;
    let mut system = build::build(config, &faults, threads, sampling.is_some())?;
    let flows_total = config.workload.flows().len() as u64;
    let mut watch = Watch { progress, sampling, stop, flows_total };
    let end = engine::run(&mut system, config.until, &mut watch);
    Ok(report::report(config, &system, end))
}
