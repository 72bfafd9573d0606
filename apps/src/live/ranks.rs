//! The ranks of a program at a host in real time.

use super::News;
use std::sync::Arc;
use weft_cc::{Span, Time};
use weft_stack::fep::{CallError, Fep};
use weft_testbed::goal::{HostRanks, Job};
use weft_testbed::sim::RunConfig;

/// The coordinator hears of timers that are later by this than the last one that it has heard of. It is short beside the
/// silence that ends a run.
const ANNOUNCED: Span = Span::from_ms(1_000);

/// The ranks of one host. Computation is a timer here as in a simulation, so that neither the endpoint nor other ranks wait
/// for it.
pub(crate) struct LiveRanks {
    ranks: HostRanks,
    /// Times count from here; nothing happens before it is known.
    begin: Option<Time>,
    completions: u64,
    /// Messages whose delivery the coordinator has heard of.
    told: u64,
    /// The last timer that the coordinator has heard of.
    announced: Time,
    is_over: bool,
}

impl LiveRanks {
    /// The ranks of `host` in `job`. Hosts' numbers are their addresses at the endpoints.
    ///
    /// # Errors
    /// The endpoint cannot have so many processes.
    pub(super) fn new(
        config: &RunConfig,
        job: &Arc<Job>,
        host: u32,
        fep: &mut Fep,
    ) -> Result<LiveRanks, CallError> {
        Ok(LiveRanks {
            ranks: HostRanks::new(job, host, config.mode, true, fep)?,
            begin: None,
            completions: 0,
            told: 0,
            announced: Time::ZERO,
            is_over: false,
        })
    }

    pub(super) fn ranks(&self) -> &HostRanks {
        &self.ranks
    }

    pub(super) fn begin(&mut self, begin: Time) {
        self.begin = Some(begin);
        self.announced = begin;
        self.ranks.begin_at(begin);
    }

    /// When the ranks go on by themselves.
    pub(super) fn next_timer(&self) -> Option<Time> {
        self.begin.and_then(|_| self.ranks.poll_timeout())
    }

    /// Messages, receives and connections that have ended so far, well or not.
    pub(super) fn completions(&self) -> u64 {
        self.completions
    }

    /// Takes in what the endpoint reports, and does what is due. Returns whether there was anything.
    pub(super) fn collect(&mut self, now: Time, fep: &mut Fep) -> bool {
        // Messages that arrive before the run begins wait in the endpoint.
        if self.begin.is_none_or(|begin| !now.is_at_or_after(begin)) {
            return false;
        }
        let before = self.completions;
        while let Some(completion) = fep.poll_completion() {
            self.completions += 1;
            self.ranks.on_completion(now, completion, fep);
        }
        let is_due = self.next_timer().is_some_and(|at| now.is_at_or_after(at));
        if is_due {
            self.ranks.on_timeout(now, fep);
        }
        is_due || self.completions != before
    }

    /// The next event for the coordinator; `None` when it has heard of all.
    pub(super) fn poll_news(&mut self) -> Option<News> {
        let begin = self.begin?;
        let arrived = self.ranks.arrived();
        let delivered = arrived - std::mem::replace(&mut self.told, arrived);
        if delivered > 0 {
            return Some(News::Delivered(delivered));
        }
        if let Some(timer) =
            self.ranks.poll_timeout().filter(|at| at.is_at_or_after(self.announced + ANNOUNCED))
        {
            self.announced = timer;
            return Some(News::Computing(timer.since(begin).as_ps()));
        }
        if !self.is_over && self.ranks.is_done() {
            self.is_over = true;
            return Some(News::Done);
        }
        None
    }
}
