//! Flows of a workload between endpoints of this process, in real time, over ports of any kind.
//!
//! The caller opens the ports and says what it knows of the network between them; the rest is the same for
//! a pair of rings, for sockets and for a fabric of software switches:
//!
//! ```text
//!   let ends = hosts.map(|host| End { host, place, port });
//!   let mut live = Live::new(&config, &network, ends)?;
//!   live.run(progress);                  // until all is done, time is up, or nothing moves any more
//!   let report = live.into_report();     // closes the ports
//! ```
//!
//! Of the workload those flows run whose two hosts are among the ends. They start at their times, or when
//! the flows for which they wait are done; where one of those does not run here, they start at once.
//!
//! One thread drives all endpoints in turn, so the run needs one core, and a round trip takes a turn of
//! the loop or two.

mod flows;
mod memory;
mod network;
mod summary;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use network::worker;
pub(crate) use network::{End, LiveError, Network};
pub(crate) use summary::{frames, leaks, packets, waits};

use crate::nap::Rest;
use flows::Flows;
use weft_cc::{Span, Time};
use weft_stack::port::{BURST, Port};
use weft_stack::worker::{Clock, Worker};
use weft_testbed::sim::{RunConfig, RunProgress};
use weft_testbed::workload::Workload;

/// Silence after which a run is given up.
const SILENCE: Span = Span::from_ms(10_000);
/// Turns of the loop between two calls of the progress callback.
const PROGRESS_INTERVAL: u64 = 1 << 12;
/// Bursts that an endpoint takes in before the next one's turn. One each would let those to whom many send
/// fall behind.
const BURSTS: u32 = 64;

/// A run: endpoints, and the flows between them.
pub(crate) struct Live<'a, P> {
    ends: Vec<Worker<P>>,
    flows: Flows<'a>,
    clock: Clock,
    until: Option<Span>,
    /// When something last went forward.
    last_news: Time,
    data_received: u64,
    rest: Rest,
}

impl<'a, P: Port> Live<'a, P> {
    /// Endpoints at `ends`, and the flows of `config`'s workload between them, not started yet.
    ///
    /// # Errors
    /// Endpoints that cannot be configured as `config` and `network` ask, ends that contradict each other, ports
    /// that do not carry the packets, or no flow between the ends.
    pub(crate) fn new(
        config: &'a RunConfig,
        network: &Network,
        ends: Vec<End<P>>,
    ) -> Result<Live<'a, P>, LiveError> {
        let hosts: Vec<u32> = ends.iter().map(|end| end.host).collect();
        let flows = Flows::new(config, &hosts);
        if flows.is_empty() {
            return Err(LiveError::NoFlows);
        }
        let clock = Clock::new();
        let ends = network::workers(config, network, ends, clock)?;
        Ok(Live {
            ends,
            flows,
            clock,
            until: config.until,
            last_news: Time::ZERO,
            data_received: 0,
            rest: Rest::default(),
        })
    }

    /// Turns the loop until all is done, the configured time has passed, or nothing has gone forward for 10 s.
    /// `progress` is called now and then.
    pub(crate) fn run(&mut self, progress: &mut dyn FnMut(&RunProgress)) {
        let begin = self.clock.now();
        self.flows.begin(begin);
        self.last_news = begin;
        for turn in 0u64.. {
            let now = self.clock.now();
            let cut_off = self.until.is_some_and(|limit| now.since(begin) >= limit);
            if cut_off || self.flows.are_done() || now.since(self.last_news) >= SILENCE {
                return;
            }
            self.turn(now);
            if turn.is_multiple_of(PROGRESS_INTERVAL) {
                progress(&self.progress(now));
            }
        }
    }

    /// The ports, in the order of the ends.
    pub(crate) fn ports(&self) -> impl Iterator<Item = &P> {
        self.ends.iter().map(Worker::port)
    }

    fn turn(&mut self, now: Time) {
        let mut news = self.flows.start_due(now, &mut self.ends);
        let mut idle = true;
        for end in &mut self.ends {
            idle &= drive(end);
        }
        let now = self.clock.now();
        news |= self.flows.collect(now, &mut self.ends);
        let data = self.ends.iter().map(|end| end.fep().counters().data_received).sum();
        if news || data != self.data_received {
            self.data_received = data;
            self.last_news = now;
        }
        if idle {
            // What there is to wait for may be another thread's work, on a machine with few cores.
            self.rest.give_way();
        }
    }

    fn progress(&self, now: Time) -> RunProgress {
        RunProgress {
            now,
            flows_done: self.flows.completed(),
            flows_total: self.flows.len() as u64,
            events: summary::frames(&self.ends),
        }
    }
}

/// Lets an endpoint take in what has arrived, and send. Returns whether there was nothing to do.
fn drive<P: Port>(end: &mut Worker<P>) -> bool {
    let mut idle = true;
    for _ in 0..BURSTS {
        // Each with a time of its own: a turn takes as long as a network's round trip.
        let progress = end.poll();
        idle &= progress.is_idle();
        if progress.received < BURST {
            break;
        }
    }
    idle
}

/// The hosts between which the flows of `workload` run, in ascending order.
pub(crate) fn hosts(workload: &Workload) -> Vec<u32> {
    let mut hosts: Vec<u32> = workload.flows().iter().flat_map(|flow| [flow.src.0, flow.dst.0]).collect();
    hosts.sort_unstable();
    hosts.dedup();
    hosts
}
