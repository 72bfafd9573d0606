//! The part of a host in a run: its flows, or the ranks of a program.

use super::ranks::LiveRanks;
use super::{HostFlows, News, Participants};
use weft_cc::Time;
use weft_stack::fep::{CallError, Fep};
use weft_testbed::sim::RunConfig;

/// The work of a host in a run: to send the flows of a workload, or to run the ranks of a program.
pub(crate) enum HostWork<'a> {
    Flows(HostFlows<'a>),
    Ranks(LiveRanks),
}

impl<'a> HostWork<'a> {
    /// The work of `host`, whose endpoint is `fep`, in the run that `config` describes.
    ///
    /// # Errors
    /// The endpoint has no room for its ranks.
    pub(crate) fn new(
        config: &'a RunConfig,
        participants: &Participants,
        host: u32,
        fep: &mut Fep,
    ) -> Result<HostWork<'a>, CallError> {
        Ok(match &config.job {
            Some(job) => HostWork::Ranks(LiveRanks::new(config, job, host, fep)?),
            None => HostWork::Flows(HostFlows::new(config, participants, host)),
        })
    }

    /// The flows, if it consists of flows.
    pub(crate) fn flows(&mut self) -> Option<&mut HostFlows<'a>> {
        match self {
            HostWork::Flows(flows) => Some(flows),
            HostWork::Ranks(_) => None,
        }
    }

    /// Times count from `begin`.
    pub(crate) fn begin(&mut self, begin: Time) {
        match self {
            HostWork::Flows(flows) => flows.begin(begin),
            HostWork::Ranks(ranks) => ranks.begin(begin),
        }
    }

    /// When the host next does something by itself.
    pub(crate) fn next_timer(&self) -> Option<Time> {
        match self {
            HostWork::Flows(flows) => flows.next_start(),
            HostWork::Ranks(ranks) => ranks.next_timer(),
        }
    }

    /// Takes the next flow whose time has come, which [`HostFlows::start`] then starts.
    pub(crate) fn next_due(&mut self, now: Time) -> Option<u32> {
        self.flows()?.next_due(now)
    }

    /// Messages, receives and connections that have ended so far, well or not.
    pub(super) fn completions(&self) -> u64 {
        match self {
            HostWork::Flows(flows) => flows.completions(),
            HostWork::Ranks(ranks) => ranks.completions(),
        }
    }

    /// Takes in what the endpoint reports, and does what ranks do because of that or of the time. Returns whether there was
    /// anything.
    pub(crate) fn collect(&mut self, now: Time, fep: &mut Fep) -> bool {
        match self {
            HostWork::Flows(flows) => flows.collect(now, fep),
            HostWork::Ranks(ranks) => ranks.collect(now, fep),
        }
    }

    /// The next event for the coordinator; `None` when it has heard of all.
    pub(crate) fn poll_news(&mut self) -> Option<News> {
        match self {
            HostWork::Flows(flows) => flows.poll_news(),
            HostWork::Ranks(ranks) => ranks.poll_news(),
        }
    }
}
