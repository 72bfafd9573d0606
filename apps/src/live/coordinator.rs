//! The part of a run that concerns all hosts: it knows which of them take part, which flows start when others end, and
//! when the run is over.

use super::News;
use std::collections::BTreeMap;
use weft_cc::{Span, Time};
use weft_stack::packet::Addr;
use weft_testbed::sim::{RunConfig, RunProgress};
use weft_testbed::workload::{Agenda, Flow, Start, TriggerIdx, Workload};

/// Without news or a packet for so long, a run is given up; but not before so many round trips of the network, which may
/// take long in slow motion.
const SILENCE: Span = Span::from_ms(10_000);
const SILENT_ROUND_TRIPS: u64 = 4;
/// Bytes of payload up to which all of it is made before a run and compared after it, so that neither costs the flows
/// time. Receivers need as many again. With more, each flow's payload is made when it starts.
const MADE_AHEAD: u64 = 2 << 30;

/// The hosts between which flows run, and what the workload makes of that.
pub(crate) struct Participants {
    /// The address of each host at the endpoints.
    addresses: BTreeMap<u32, Addr>,
    /// By trigger: whether only flows that take part activate it. Flows do not wait for any other trigger.
    pub(super) kept: Vec<bool>,
    /// Whether all payload is made before the run and compared after it.
    pub(super) ahead: bool,
}

impl Participants {
    /// All flows of `workload` take part whose source and destination are among `hosts`, whose addresses are their
    /// places in the list.
    pub(crate) fn new(workload: &Workload, hosts: &[u32]) -> Participants {
        let addresses = hosts.iter().copied().zip((0..).map(Addr)).collect();
        let participants = Participants { addresses, kept: Vec::new(), ahead: false };
        let mut kept = vec![true; workload.triggers().len()];
        let mut bytes = 0u64;
        for flow in workload.flows() {
            match participants.ends(flow) {
                Some(_) => bytes = bytes.saturating_add(flow.bytes),
                None => [flow.on_sent, flow.on_received]
                    .into_iter()
                    .flatten()
                    .for_each(|trigger| kept[trigger.index()] = false),
            }
        }
        give_up_chains(workload, &mut kept);
        Participants { kept, ahead: bytes <= MADE_AHEAD, ..participants }
    }

    /// The addresses of the source and the destination of `flow`, if it takes part.
    pub(super) fn ends(&self, flow: &Flow) -> Option<(Addr, Addr)> {
        Some((self.address(flow.src.0)?, self.address(flow.dst.0)?))
    }

    fn address(&self, host: u32) -> Option<Addr> {
        self.addresses.get(&host).copied()
    }
}

/// Does not keep any trigger that one activates which is not kept.
fn give_up_chains(workload: &Workload, kept: &mut [bool]) {
    let mut given_up: Vec<usize> = (0..kept.len()).filter(|i| !kept[*i]).collect();
    while let Some(i) = given_up.pop() {
        if let Some(then) = workload.triggers()[i].then.filter(|then| kept[then.index()]) {
            kept[then.index()] = false;
            given_up.push(then.index());
        }
    }
}

/// Takes in the news of all hosts, and says which flows start next and when the run is over.
pub(crate) struct Coordinator<'a> {
    workload: &'a Workload,
    agenda: Agenda<'a>,
    /// Flows, or messages between ranks of different hosts.
    flows: u64,
    delivered: u64,
    /// Hosts whose flows have not all ended, or whose ranks have not all finished.
    running: usize,
    begin: Time,
    until: Option<Span>,
    /// Without news or a packet for so long, the run is given up.
    silence: Span,
    /// When something last went forward, or the last start that the workload sets.
    last_news: Time,
    moved: u64,
}

impl<'a> Coordinator<'a> {
    /// For `flows` flows of `config`'s workload, or messages of its program, from so many `hosts`.
    pub(crate) fn new(config: &'a RunConfig, hosts: usize, flows: u64) -> Coordinator<'a> {
        Coordinator {
            workload: &config.workload,
            agenda: Agenda::new(&config.workload, |_| true),
            flows,
            delivered: 0,
            running: hosts,
            begin: Time::ZERO,
            until: config.until,
            silence: SILENCE.max(config.network_rtt().times(SILENT_ROUND_TRIPS)),
            last_news: Time::ZERO,
            moved: 0,
        }
    }

    /// The run begins at `now`.
    pub(crate) fn begin(&mut self, now: Time) {
        let last_start = self.workload.flows().iter().filter_map(|flow| match flow.start {
            Start::At(time) => Some(time),
            Start::Trigger(_) => None,
        });
        self.begin = now;
        self.last_news = now + last_start.map(|at| at.since(Time::ZERO)).max().unwrap_or(Span::ZERO);
        self.look_ahead();
    }

    /// Nothing need go forward before the last time on the agenda.
    fn look_ahead(&mut self) {
        self.last_news = self.last_news.latest(self.begin + self.agenda.latest());
    }

    /// The flows whose time has come because of a delay, by their index in the workload.
    pub(crate) fn due(&mut self, now: Time) -> Vec<u32> {
        let flows = self.agenda.due(now.since(self.begin));
        self.look_ahead();
        flows
    }

    /// Takes in news that arrived at `now`. Returns the flows that start because of them, by their index in the
    /// workload.
    pub(crate) fn take_in(&mut self, now: Time, news: News) -> Vec<u32> {
        self.last_news = self.last_news.latest(now);
        match news {
            News::Sent(index) => {
                self.delivered += 1;
                self.activate(now, self.flow(index).and_then(|flow| flow.on_sent))
            }
            News::Received(index) => self.activate(now, self.flow(index).and_then(|flow| flow.on_received)),
            News::Delivered(messages) => {
                self.delivered += messages;
                Vec::new()
            }
            News::Computing(until) => {
                self.last_news = self.last_news.latest(self.begin + Span::from_ps(until));
                Vec::new()
            }
            News::Done => {
                self.running = self.running.saturating_sub(1);
                Vec::new()
            }
        }
    }

    fn flow(&self, index: u32) -> Option<&'a Flow> {
        self.workload.flows().get(index as usize)
    }

    /// Activates a trigger, if there is one. Returns the flows that start at once.
    fn activate(&mut self, now: Time, trigger: Option<TriggerIdx>) -> Vec<u32> {
        let Some(trigger) = trigger else { return Vec::new() };
        let flows = self.agenda.activate(now.since(self.begin), trigger);
        self.look_ahead();
        flows
    }

    /// Whether the run is over at `now`: all flows have ended, time is up, or nothing has moved for too long. `moved` is any
    /// count that grows as long as something moves.
    pub(crate) fn is_over(&mut self, now: Time, moved: u64) -> bool {
        if std::mem::replace(&mut self.moved, moved) != moved {
            self.last_news = self.last_news.latest(now);
        }
        let time_is_up = self.until.is_some_and(|until| now.since(self.begin) >= until);
        self.running == 0 || time_is_up || now.since(self.last_news) >= self.silence
    }

    /// How far the run is; `events` is the number of frames so far.
    pub(crate) fn progress(&self, now: Time, events: u64) -> RunProgress {
        let now = Time::ZERO + now.since(self.begin);
        RunProgress { now, flows_done: self.delivered, flows_total: self.flows, events }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_stack::rng::Rng;
    use weft_testbed::topology::TopologySpec;
    use weft_testbed::workload::WorkloadSpec;

    /// The time after which a run over `fabric`, `slow` times slower, is given up if nothing moves.
    fn silence(fabric: &str, slow: u32) -> Span {
        let fabric = fabric.parse::<TopologySpec>().unwrap().build().unwrap().slowed(slow);
        let workload: WorkloadSpec = "permutation".parse().unwrap();
        let workload = workload.build(Some(fabric.hosts()), 1, &mut Rng::new(1, 1)).unwrap();
        let config = RunConfig::new(fabric, workload);
        let mut coordinator = Coordinator::new(&config, 1, 1);
        coordinator.begin(Time::ZERO);
        let is_over = |second: &u64| coordinator.is_over(Time::ZERO + Span::from_ms(second * 1_000), 0);
        Span::from_ms((0..1_000).find(is_over).unwrap() * 1_000)
    }

    /// A run in which ranks compute is not given up before they have, and have been silent since.
    #[test]
    fn computation_is_no_silence() {
        let config = crate::live::tests::config("Nodes 2\nConnections 0\n");
        let mut coordinator = Coordinator::new(&config, 1, 0);
        coordinator.begin(Time::ZERO);
        coordinator.take_in(Time::ZERO, News::Computing(Span::from_ms(60_000).as_ps()));
        let mut is_over = |ms| coordinator.is_over(Time::ZERO + Span::from_ms(ms), 0);
        assert!(!is_over(69_999) && is_over(70_000));
    }

    #[test]
    fn a_silent_run_is_given_up_after_ten_seconds_or_some_round_trips() {
        assert_eq!(silence("leaf-spine:hosts=16,leaves=4", 500), Span::from_ms(10_000));
        // A way of 12.5 s.
        let far = silence("dumbbell:hosts=2,bottleneck=10G,delay=100ms", 125);
        assert!((Span::from_ms(100_000)..Span::from_ms(110_000)).contains(&far), "{far:?}");
    }
}
