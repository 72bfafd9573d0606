//! The ranks of a program at a simulated host.

use std::sync::Arc;

use weft_cc::Time;
use weft_stack::fep::{CallError, Fep};

use super::config::{PayloadMode, RunConfig};
use super::flows::{Begin, Flows};
use crate::goal::{HostRanks, Job};

/// The ranks of one host, and how many of their messages are counted.
pub(super) struct Ranks {
    pub(super) ranks: HostRanks,
    counted: u64,
    is_over: bool,
}

impl Ranks {
    pub(super) fn new(
        config: &RunConfig,
        job: &Arc<Job>,
        host: u32,
        fep: &mut Fep,
    ) -> Result<Ranks, CallError> {
        let real = config.payload == PayloadMode::Real;
        let ranks = HostRanks::new(job, host, config.mode, real, fep)?;
        Ok(Ranks { ranks, counted: 0, is_over: false })
    }

    /// When the ranks go on by themselves, as an entry of [`Host::starts`](super::host::Host::starts).
    pub(super) fn next(&self) -> Option<(u64, Begin)> {
        self.ranks.poll_timeout().map(|at| (at.as_ps(), Begin::flow(0)))
    }

    /// Lets the ranks do what is due.
    pub(super) fn go_on(&mut self, now: u64, fep: &mut Fep) {
        self.ranks.on_timeout(Time::from_ps(now), fep);
    }

    /// Hands the endpoint's completions to the ranks, and counts what is done.
    pub(super) fn collect(&mut self, now: u64, fep: &mut Fep, flows: &mut Flows) {
        while let Some(completion) = fep.poll_completion() {
            self.ranks.on_completion(Time::from_ps(now), completion, fep);
        }
        let arrived = self.ranks.arrived();
        flows.done += arrived - std::mem::replace(&mut self.counted, arrived);
        if !self.is_over && self.ranks.is_done() {
            self.is_over = true;
            flows.open -= 1;
            flows.last_close = flows.last_close.max(now);
        }
    }
}
