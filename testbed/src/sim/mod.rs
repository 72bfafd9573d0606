//! The virtual-time engine: drives switches and endpoints through a run, deterministically.
//!
//! Hosts are [`weft_stack::fep::Fep`]s, the same that run over real ports; switches are
//! [`crate::switch`]. The engine moves packets between them and keeps the clock.
//!
//! The order of events at the same instant depends on what they are about, never on the order in
//! which they were scheduled, and everything random has a generator of its own: the same
//! configuration gives the same run, on every machine and in every build.
#![forbid(unsafe_code)]

mod agenda;
mod config;
mod fabric;
mod faults;
mod hosts;
mod packets;
mod report;
mod sample;

pub use config::{Overhead, PayloadMode, RunConfig, RunError};
pub use faults::{FaultPlan, LinkChange, LinkEvent, LinkFaults};
pub use report::{FlowRecord, PacketCounters, Progress, RunReport};
pub use sample::{FlowSample, PortSample, SampleSink, Sampling};

use fabric::Fabric;
use weft_cc::Time;

/// Carries out a run. `progress` is called now and then.
///
/// # Errors
/// A configuration that cannot work.
pub fn run(config: &RunConfig, progress: &mut dyn FnMut(&Progress)) -> Result<RunReport, RunError> {
    run_with_faults(config, &FaultPlan::default(), progress)
}

/// Carries out a run over links that misbehave as `faults` says.
///
/// # Errors
/// A configuration that cannot work.
pub fn run_with_faults(
    config: &RunConfig,
    faults: &FaultPlan,
    progress: &mut dyn FnMut(&Progress),
) -> Result<RunReport, RunError> {
    let mut fabric = Fabric::new(config, faults)?;
    let until = config.until.map(|span| Time::ZERO + span);
    let mut next_report = 0;
    while let Some(now) = fabric.step(until) {
        if fabric.events() >= next_report {
            next_report = fabric.events() + PROGRESS_INTERVAL;
            progress(&fabric.progress(now));
        }
    }
    Ok(fabric.into_report())
}

/// Events between two calls of the progress callback.
const PROGRESS_INTERVAL: u64 = 1 << 16;
