//! The results of a run: a report of each host, and one of all of them.

use super::HostWork;
use super::flows::{HostFlows, Outcome, SendRecord};
use super::ranks::LiveRanks;
use serde::{Deserialize, Serialize};
use std::fmt::Display;
use weft_cc::{Span, Time};
use weft_stack::fep::Footprint;
use weft_stack::port::Port;
use weft_stack::worker::Worker;
use weft_testbed::goal::{MessageRecord, RankRecord};
use weft_testbed::sim::{FaultCounters, FlowRecord, Lines, PacketCounters, RunConfig, RunReport};

/// The results of one host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct HostReport {
    host: u32,
    /// Flows from it, or messages of its ranks.
    sent: Vec<SendRecord>,
    /// Flows to it that have arrived, by their index in the workload.
    received: Vec<u32>,
    ranks: Vec<RankFinish>,
    /// Flows or messages to it that arrived other than they were sent.
    wrong: Vec<String>,
    /// Flows, messages and connections from it that failed.
    failures: Vec<String>,
    /// The messages and times that its ranks wait for.
    rank_waits: Vec<String>,
    /// Connections that wait, and for what.
    waits: Vec<String>,
    /// Further waits, which are only counted.
    other_waits: u64,
    /// Whether all flows from it have ended, or all its ranks have finished, and their connections are closed.
    done: bool,
    /// State that is left in the endpoint.
    leaks: Vec<String>,
    #[serde(with = "PacketCountersFields")]
    packets: PacketCounters,
    timeouts: u64,
    /// Frames that have arrived.
    frames: u64,
    #[serde(with = "FootprintFields")]
    footprint: Footprint,
    /// Memory that its flows take whether they have started or not, or its ranks, bytes.
    plan: u64,
}

/// The end of a rank.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct RankFinish {
    rank: u32,
    /// When its last operation finished, since the beginning, ps; `None` if some have not.
    end: Option<u64>,
}

/// [`PacketCounters`], as they travel between processes.
#[derive(Serialize, Deserialize)]
#[serde(remote = "PacketCounters")]
struct PacketCountersFields {
    data: u64,
    retransmitted: u64,
    trimmed: u64,
    dropped: u64,
    acks: u64,
    nacks: u64,
    ecn_marked: u64,
    control: u64,
    inferred_lost: u64,
}

/// [`Footprint`], as it travels between processes.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Footprint")]
struct FootprintFields {
    endpoint: u64,
    connections: u64,
    contexts: u64,
    targets: u64,
    messages: u64,
    receives: u64,
    credit: u64,
    timers: u64,
    payload: u64,
}

impl HostReport {
    /// The results of `work` at `host`, whose endpoint `worker` drives. Compares the flows that have arrived with those sent.
    ///
    /// Packets that the network has trimmed or marked are counted where they arrive.
    pub(crate) fn new<P: Port>(host: u32, work: HostWork<'_>, worker: &Worker<P>) -> HostReport {
        match work {
            HostWork::Flows(flows) => HostReport::of_endpoint(host, worker).with_flows(flows),
            HostWork::Ranks(ranks) => HostReport::of_endpoint(host, worker).with_ranks(&ranks),
        }
    }

    /// The report of the endpoint of `host`, without its flows and ranks.
    fn of_endpoint<P: Port>(host: u32, worker: &Worker<P>) -> HostReport {
        let fep = worker.fep();
        let waits = waits(worker);
        let named = |line: &dyn Display| format!("host {host}: {line}");
        HostReport {
            host,
            sent: Vec::new(),
            received: Vec::new(),
            ranks: Vec::new(),
            wrong: Vec::new(),
            failures: Vec::new(),
            rank_waits: Vec::new(),
            waits: waits.iter().map(|line| named(line)).collect(),
            other_waits: waits.others(),
            done: true,
            leaks: fep.leaks().map(|line| named(&line)).collect(),
            packets: packets(worker),
            timeouts: fep.counters().timeouts,
            frames: frames(worker),
            footprint: fep.footprint(),
            plan: 0,
        }
    }

    fn with_flows(self, flows: HostFlows<'_>) -> HostReport {
        let (done, plan) = (flows.are_done(), flows.bytes());
        let Outcome { sent, received, failures, wrong } = flows.into_outcome();
        let host = self.host;
        let named = |lines: Vec<String>| lines.iter().map(|line| format!("host {host}: {line}")).collect();
        HostReport { sent, received, wrong: named(wrong), failures: named(failures), done, plan, ..self }
    }

    /// The lines of ranks name their hosts themselves.
    fn with_ranks(mut self, ranks: &LiveRanks) -> HostReport {
        let ranks = ranks.ranks();
        let waits: Lines = ranks.waits().collect();
        let texts = |notes: &[(u64, String)]| notes.iter().map(|(_, text)| text.clone()).collect();
        self.leaks.extend(ranks.leaks());
        HostReport {
            sent: ranks.records().iter().map(SendRecord::from).collect(),
            ranks: ranks.ranks().map(RankFinish::from).collect(),
            wrong: texts(ranks.wrong()),
            failures: texts(ranks.failures()),
            other_waits: self.other_waits + waits.others(),
            rank_waits: waits.to_vec(),
            done: ranks.is_done(),
            plan: ranks.bytes(),
            ..self
        }
    }
}

impl From<RankRecord> for RankFinish {
    fn from(record: RankRecord) -> RankFinish {
        RankFinish { rank: record.rank, end: record.end.map(Span::as_ps) }
    }
}

impl From<&MessageRecord> for SendRecord {
    fn from(record: &MessageRecord) -> SendRecord {
        let MessageRecord { message, start, end, retransmitted } = *record;
        SendRecord { flow: message, start, end, retransmitted: u64::from(retransmitted) }
    }
}

/// Frames that have arrived at an endpoint's port.
pub(super) fn frames<P: Port>(worker: &Worker<P>) -> u64 {
    worker.port().counters().rx_frames
}

fn packets<P: Port>(worker: &Worker<P>) -> PacketCounters {
    let (fep, dropped, port) = (worker.fep().counters(), worker.counters(), worker.port().counters());
    let by_worker =
        dropped.malformed + dropped.misdirected + dropped.strangers + dropped.unsendable + dropped.not_taken;
    let by_port = port.rx_errors + port.rx_missed + port.tx_errors + port.tx_no_link;
    PacketCounters {
        data: fep.data_sent,
        retransmitted: fep.data_retransmitted,
        dropped: by_worker + by_port + fep.control_dropped + fep.datagrams_dropped,
        acks: fep.acks_sent,
        nacks: fep.nacks_sent,
        trimmed: fep.trimmed_received,
        ecn_marked: fep.ecn_received,
        control: fep.control_sent,
        inferred_lost: fep.losses_inferred,
    }
}

/// Connections that wait, and what was wrong with frames.
fn waits<P: Port>(worker: &Worker<P>) -> Lines {
    let mut lines = Lines::default();
    lines.extend(worker.fep().waits(worker.clock().now()));
    lines.extend(worker.fep().shortages());
    let arrived = worker.last_read_error();
    lines.extend(arrived.map(|error| format!("the last frame dropped on arrival: {error}")));
    let left = worker.last_write_error();
    lines.extend(left.map(|error| format!("the last packet that could not leave: {error}")));
    lines
}

/// The report of a run, from those of all its hosts.
pub(crate) fn run_report(config: &RunConfig, hosts: &[HostReport]) -> RunReport {
    let mut sent: Vec<&SendRecord> = hosts.iter().flat_map(|host| &host.sent).collect();
    sent.sort_unstable_by_key(|record| record.flow);
    let flows: Vec<FlowRecord> = sent.iter().filter_map(|sent| flow_record(config, sent)).collect();
    let mut payload_errors = lines(hosts, |host| &host.wrong).collect::<Vec<_>>();
    payload_errors.extend(never_arrived(config, hosts, &sent));
    let done = hosts.iter().all(|host| host.done);
    let ranks = rank_records(config, hosts);
    let job = config.job.as_ref().map_or(0, |job| job.bytes());
    let last_flow = flows.iter().filter_map(|flow| flow.end);
    let last_rank = ranks.iter().filter_map(|rank| Some(Time::ZERO + rank.end?));
    RunReport {
        tasks: Vec::new(),
        failures: Vec::new(),
        // They are the simulator's.
        measures: None,
        rtts: None,
        // They are counted where the links are.
        faults: FaultCounters::default(),
        hosts: None,
        packets: sum(hosts.iter().map(|host| &host.packets)),
        timeouts: hosts.iter().map(|host| host.timeouts).sum(),
        events: hosts.iter().map(|host| host.frames).sum(),
        end: last_flow.chain(last_rank).reduce(Time::latest).unwrap_or(Time::ZERO),
        endpoints: hosts.len() as u32,
        footprint: hosts.iter().map(|host| host.footprint).sum(),
        plan: config.workload.bytes() + job + hosts.iter().map(|host| host.plan).sum::<u64>(),
        // No link is known whose rate would bound anything.
        bound: (Span::ZERO, String::new()),
        stuck: stuck(hosts, &flows),
        leaks: if done { lines(hosts, |host| &host.leaks).collect() } else { Vec::new() },
        payload_errors,
        flows,
        ranks,
    }
}

/// The flow that `sent` is the record of, or the message between ranks.
fn flow_record(config: &RunConfig, sent: &SendRecord) -> Option<FlowRecord> {
    let blank = match &config.job {
        Some(job) => {
            let message = MessageRecord { message: sent.flow, start: None, end: None, retransmitted: 0 };
            FlowRecord::of_message(job, &message)?
        }
        None => FlowRecord::new(config.workload.flows().get(sent.flow as usize)?),
    };
    let at = |ps: u64| Time::ZERO + Span::from_ps(ps);
    let SendRecord { start, end, retransmitted, .. } = *sent;
    Some(FlowRecord { start: start.map(at), end: end.map(at), retransmitted, ..blank })
}

/// Flows whose sources know that they have arrived, and whose destinations do not. Messages of ranks that no receive has taken
/// are left over in the endpoints.
fn never_arrived(config: &RunConfig, hosts: &[HostReport], sent: &[&SendRecord]) -> Vec<String> {
    let flows = config.workload.flows();
    let mut arrived = vec![false; flows.len()];
    hosts.iter().flat_map(|host| &host.received).for_each(|flow| arrived[*flow as usize] = true);
    let ended = sent.iter().filter(|sent| sent.end.is_some()).map(|sent| sent.flow as usize);
    let lost = ended.filter(|index| arrived.get(*index) == Some(&false));
    lost.map(|index| format!("flow {} never arrived", flows[index].id)).collect()
}

/// The ranks of all hosts, in their order.
fn rank_records(config: &RunConfig, hosts: &[HostReport]) -> Vec<RankRecord> {
    let host_of = |rank| config.job.as_ref().map_or(0, |job| job.host_of(rank));
    let finishes = hosts.iter().flat_map(|host| &host.ranks);
    let mut ranks: Vec<RankRecord> = finishes
        .map(|finish| RankRecord {
            rank: finish.rank,
            host: host_of(finish.rank),
            end: finish.end.map(Span::from_ps),
        })
        .collect();
    ranks.sort_unstable_by_key(|record| record.rank);
    ranks
}

/// One kind of line of all hosts.
fn lines(hosts: &[HostReport], of: fn(&HostReport) -> &Vec<String>) -> impl Iterator<Item = String> {
    hosts.iter().flat_map(move |host| of(host).iter().cloned())
}

fn stuck(hosts: &[HostReport], flows: &[FlowRecord]) -> Lines {
    let mut stuck: Lines = lines(hosts, |host| &host.failures).collect();
    stuck.extend(lines(hosts, |host| &host.rank_waits));
    stuck.extend(lines(hosts, |host| &host.waits));
    stuck.count_others(hosts.iter().map(|host| host.other_waits).sum());
    // Messages of ranks are reported by their ranks.
    if hosts.iter().all(|host| host.ranks.is_empty()) {
        stuck.extend(flows.iter().filter_map(FlowRecord::not_started));
    }
    stuck
}

fn sum<'a>(counters: impl Iterator<Item = &'a PacketCounters>) -> PacketCounters {
    counters.fold(PacketCounters::default(), |sum, one| PacketCounters {
        data: sum.data + one.data,
        retransmitted: sum.retransmitted + one.retransmitted,
        trimmed: sum.trimmed + one.trimmed,
        dropped: sum.dropped + one.dropped,
        acks: sum.acks + one.acks,
        nacks: sum.nacks + one.nacks,
        ecn_marked: sum.ecn_marked + one.ecn_marked,
        control: sum.control + one.control,
        inferred_lost: sum.inferred_lost + one.inferred_lost,
    })
}
