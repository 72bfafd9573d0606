//! Flows of a workload, or the ranks of a program, at endpoints in real time, over ports of any kind.
//!
//! Each host has its [`HostWork`], and a [`Coordinator`] carries word between them. In one process [`Live`] drives all
//! of them:
//!
//! ```text
//!   let hosts = numbers.map(|number| LiveHost { number, host, port });
//!   let mut live = Live::new(&config, &endpoints, hosts)?;
//!   live.run(progress, interrupt);       // until all is done, time is up, nothing moves any more, or a signal comes
//!   let report = live.into_report();     // closes the ports
//! ```
//!
//! `weft run --on soft --processes` has the same parts, with the coordinator in one process, each host in another, and
//! pipes between them.
//!
//! The flows run whose two hosts take part. They start at their times, or when the flows for which they wait are done;
//! where one of those does not run here, they start at once. Of a program, all ranks run.
//!
//! One thread drives all endpoints of a process in turn, so the run needs one core, and a round trip takes a turn of the
//! loop or two.

mod coordinator;
mod flows;
mod network;
mod ranks;
mod report;
#[cfg(test)]
pub(crate) mod tests;
mod work;

pub(crate) use coordinator::{Coordinator, Participants};
pub(crate) use flows::{HostFlows, News};
pub(crate) use network::{LiveError, LiveHost, configure, endpoint};
pub(crate) use report::{HostReport, run_report};
pub(crate) use work::HostWork;

use crate::backoff::Backoff;
use crate::interrupt::Interrupt;
use crate::trace::LiveTrace;
use std::sync::Arc;
use weft_cc::Time;
use weft_stack::fep::FepConfig;
use weft_stack::port::{BURST, Port};
use weft_stack::worker::{Clock, Worker};
use weft_testbed::sim::{RunConfig, RunProgress, RunReport};

/// Turns of the loop between two looks for signals, and calls of the progress callback.
const LOOK_INTERVAL: u64 = 1 << 12;
/// Bursts that an endpoint takes in before the next one's turn. With one each, hosts to which many send would fall
/// behind.
const BURSTS: u32 = 64;

/// A run in this process: endpoints, and what they have to do.
pub(crate) struct Live<'a, P> {
    config: &'a RunConfig,
    participants: Participants,
    /// In the order of their addresses.
    hosts: Vec<Running<'a, P>>,
    coordinator: Coordinator<'a>,
    clock: Clock,
    backoff: Backoff,
}

/// A host of the run.
struct Running<'a, P> {
    /// The workload's number of the host.
    number: u32,
    worker: Worker<P>,
    work: HostWork<'a>,
}

impl<'a, P: Port> Live<'a, P> {
    /// Endpoints at `hosts`, configured as `endpoints` says, and the flows of `config`'s workload between them or the ranks
    /// of its program, not started yet. With a program, `hosts` are those of [`hosts`], or more.
    ///
    /// # Errors
    /// Endpoints that cannot be configured so, hosts that contradict each other, ports that do not carry the packets, or
    /// no flow between the hosts.
    pub(crate) fn new(
        config: &'a RunConfig,
        endpoints: &Arc<FepConfig>,
        hosts: Vec<LiveHost<P>>,
    ) -> Result<Live<'a, P>, LiveError> {
        let numbers: Vec<u32> = hosts.iter().map(|host| host.number).collect();
        let places: Vec<_> = hosts.iter().map(|host| host.host).collect();
        let participants = Participants::new(&config.workload, &numbers);
        let clock = Clock::new();
        let running = |(own, host): (u32, LiveHost<P>)| {
            let number = host.number;
            let mut worker = endpoint(config.seed, endpoints, host, own, &places, clock)?;
            let work = HostWork::new(config, &participants, number, worker.fep_mut())?;
            Ok(Running { number, worker, work })
        };
        let mut hosts = (0..).zip(hosts).map(running).collect::<Result<Vec<_>, LiveError>>()?;
        let flows = match &config.job {
            Some(job) => job.messages().len() as u64,
            None => hosts.iter_mut().filter_map(|host| Some(host.work.flows()?.len() as u64)).sum(),
        };
        if flows == 0 && config.job.is_none() {
            return Err(LiveError::NoFlows);
        }
        let coordinator = Coordinator::new(config, hosts.len(), flows);
        Ok(Live { config, participants, hosts, coordinator, clock, backoff: Backoff::default() })
    }

    /// Puts the events of the endpoints into `trace` from now on.
    pub(crate) fn trace(&mut self, trace: Option<&LiveTrace>) {
        let Some(trace) = trace else { return };
        // Endpoints know each other by their places among the hosts that take part.
        let numbers: Option<Arc<[u32]>> = Some(self.hosts.iter().map(|host| host.number).collect());
        for host in &mut self.hosts {
            if let Some(subscriber) = trace.subscriber(host.number, &numbers) {
                host.worker.fep_mut().subscribe(subscriber);
            }
        }
    }

    /// Turns the loop until all is done, the configured time has passed, nothing has gone forward for 10 s, or a signal
    /// has come. `progress` is called now and then.
    pub(crate) fn run(&mut self, progress: &mut dyn FnMut(&RunProgress), interrupt: &Interrupt) {
        let begin = self.clock.now();
        self.hosts.iter_mut().for_each(|host| host.work.begin(begin));
        self.coordinator.begin(begin);
        for turn in 0u64.. {
            let now = self.clock.now();
            if turn.is_multiple_of(LOOK_INTERVAL) {
                let frames = self.hosts.iter().map(|host| report::frames(&host.worker)).sum();
                progress(&self.coordinator.progress(now, frames));
                if interrupt.has_arrived() {
                    return;
                }
            }
            if self.coordinator.is_over(now, self.moved()) {
                return;
            }
            self.turn(now);
        }
    }

    /// The ports, in the order of the hosts.
    pub(crate) fn ports(&self) -> impl Iterator<Item = &P> {
        self.hosts.iter().map(|host| host.worker.port())
    }

    /// Compares what has arrived with what was sent, sums up, and closes the ports.
    pub(crate) fn into_report(self) -> RunReport {
        let of = |host: Running<'_, P>| HostReport::new(host.number, host.work, &host.worker);
        let reports: Vec<HostReport> = self.hosts.into_iter().map(of).collect();
        run_report(self.config, &reports)
    }

    /// Grows whenever data or an answer arrives, or something ends. The answers of a busy receiver count: how long it is
    /// waited for is the endpoints' business.
    fn moved(&self) -> u64 {
        let of = |host: &Running<'_, P>| {
            let counters = host.worker.fep().counters();
            let answers = counters.acks_received + counters.nacks_received;
            counters.data_received + answers + host.work.completions()
        };
        self.hosts.iter().map(of).sum()
    }

    fn turn(&mut self, now: Time) {
        for at in 0..self.hosts.len() {
            while let Some(flow) = self.hosts[at].work.next_due(now) {
                self.start(now, flow);
            }
        }
        for flow in self.coordinator.due(now) {
            self.start(now, flow);
        }
        let mut idle = true;
        for host in &mut self.hosts {
            idle &= drive(&mut host.worker);
        }
        let now = self.clock.now();
        for at in 0..self.hosts.len() {
            let host = &mut self.hosts[at];
            idle &= !host.work.collect(now, host.worker.fep_mut());
            while let Some(news) = self.hosts[at].work.poll_news() {
                for flow in self.coordinator.take_in(now, news) {
                    self.start(now, flow);
                }
            }
        }
        if idle {
            // The run may wait for another thread's work, on a machine with few cores.
            self.backoff.give_way();
        }
    }

    /// Starts a flow at both ends: the receive is posted first, so that it is there when the message arrives.
    fn start(&mut self, now: Time, flow: u32) {
        let Some((from, to)) = self.participants.ends(&self.config.workload.flows()[flow as usize]) else {
            return;
        };
        let (from, to) = (from.0 as usize, to.0 as usize);
        if !self.hosts[from].work.flows().is_some_and(|flows| flows.is_waiting(flow)) {
            return;
        }
        let Running { work, worker, .. } = &mut self.hosts[to];
        let expected = work.flows().map(|flows| flows.expect(flow, worker.fep_mut()));
        let Running { work, worker, .. } = &mut self.hosts[from];
        let Some(sender) = work.flows() else { return };
        match expected.unwrap_or(Ok(())) {
            Ok(()) => sender.start(now, flow, worker.fep_mut()),
            Err(error) => sender.refuse(now, flow, error, worker.fep_mut()),
        }
    }
}

/// Lets an endpoint take in what has arrived, and send. Returns whether there was nothing to do.
pub(crate) fn drive<P: Port>(worker: &mut Worker<P>) -> bool {
    let mut idle = true;
    for _ in 0..BURSTS {
        // Each with a time of its own: a turn takes as long as a network's round trip.
        let progress = worker.poll();
        idle &= progress.is_idle();
        if progress.received < BURST {
            break;
        }
    }
    idle
}

/// The hosts that take part in a run, in ascending order: those between which flows run, or those with ranks. These have
/// the smallest numbers, which thus are their addresses at the endpoints.
pub(crate) fn hosts(config: &RunConfig) -> Vec<u32> {
    if let Some(job) = &config.job {
        return (0..job.hosts()).collect();
    }
    let flows = config.workload.flows().iter();
    let mut hosts: Vec<u32> = flows.flat_map(|flow| [flow.src.0, flow.dst.0]).collect();
    hosts.sort_unstable();
    hosts.dedup();
    hosts
}
