//! The report of a run.

use core::fmt;

use weft_cc::{Span, Time};
use weft_stack::fep::{Footprint, SendError};

use super::build::System;
use super::config::RunConfig;
use super::faults::FaultCounters;
use super::flows::{Begin, Flows, Note};
use super::host::Host;
use super::ideal;
use super::lines::Lines;
use super::measures::{Measures, measures};
use super::receiver::HostCounters;
use super::rtts::Rtts;
use super::switches::Switch;
use crate::goal::{HostRanks, Job, MessageRecord, RankRecord};
use crate::workload::{Flow, Task};

/// The progress of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunProgress {
    /// Time since the start of the run.
    pub now: Time,
    /// Number of flows that are complete.
    pub flows_done: u64,
    /// Number of flows of the workload.
    pub flows_total: u64,
    /// Number of events handled so far.
    pub events: u64,
}

/// The result of one flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowRecord {
    /// The flow's number in the workload.
    pub id: u64,
    /// The sending host.
    pub src: u32,
    /// The receiving host.
    pub dst: u32,
    /// Payload bytes.
    pub bytes: u64,
    /// When the flow began; `None` if it never did.
    pub start: Option<Time>,
    /// When the sender knew that all of it had arrived; `None` if it never did.
    pub end: Option<Time>,
    /// Number of packets retransmitted.
    pub retransmitted: u64,
}

impl FlowRecord {
    /// The record of a flow that has not begun.
    pub fn new(flow: &Flow) -> FlowRecord {
        FlowRecord {
            id: u64::from(flow.id),
            src: flow.src.0,
            dst: flow.dst.0,
            bytes: flow.bytes,
            start: None,
            end: None,
            retransmitted: 0,
        }
    }

    /// The record of a message of `job`, as its sender has recorded it; `None` if `job` has no such message.
    pub fn of_message(job: &Job, record: &MessageRecord) -> Option<FlowRecord> {
        let message = job.message(record.message as usize)?;
        Some(FlowRecord {
            id: u64::from(record.message) + 1,
            src: job.host_of(message.from),
            dst: job.host_of(message.to),
            bytes: u64::from(message.bytes),
            start: record.start.map(Time::from_ps),
            end: record.end.map(Time::from_ps),
            retransmitted: u64::from(record.retransmitted),
        })
    }

    /// A message that the flow never began; `None` if it did.
    pub fn not_started(&self) -> Option<NotStarted> {
        self.start.is_none().then_some(NotStarted { id: self.id, src: self.src })
    }
}

/// The result of one task of the workload ([`Workload::tasks`](crate::workload::Workload::tasks)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskRecord {
    /// The index of its description in [`Workload::sources`](crate::workload::Workload::sources).
    pub source: u32,
    /// When its first flow began; `None` if none did.
    pub start: Option<Time>,
    /// When the destinations had all of its flows; `None` if they never did.
    pub end: Option<Time>,
    /// The time that it takes in an idle fabric at least.
    pub ideal: Span,
}

/// A flow that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowFailure {
    /// Index of the flow in the workload.
    pub flow: u32,
    /// When its sender gave it up.
    pub at: Time,
    /// Why.
    pub error: SendError,
}

/// A flow that has not begun; displays as a message for people.
#[derive(Clone, Copy, Debug)]
pub struct NotStarted {
    id: u64,
    src: u32,
}

impl fmt::Display for NotStarted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "flow {} from host {} has not been started", self.id, self.src)
    }
}

/// Packet counts, taken where packets are sent, trimmed, marked or dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct PacketCounters {
    /// Data packets sent for the first time.
    pub data: u64,
    /// Data packets retransmitted.
    pub retransmitted: u64,
    /// Trimmed by switches.
    pub trimmed: u64,
    /// Dropped by switches and links, by full receive queues of hosts, and by endpoints whose control queue was full.
    pub dropped: u64,
    /// Acknowledgements sent.
    pub acks: u64,
    /// NACKs sent.
    pub nacks: u64,
    /// Marked by switches.
    pub ecn_marked: u64,
    /// Control packets sent: credit, probes, requests for either, and what opens and closes connections.
    pub control: u64,
    /// Data packets that senders inferred lost before a timer expired.
    pub inferred_lost: u64,
}

/// The results of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunReport {
    /// The flows, in the order of the workload; or the messages between ranks of different hosts, in the order of
    /// [`Job::messages`].
    pub flows: Vec<FlowRecord>,
    /// The tasks, in the order of the workload; none in runs over real ports.
    pub tasks: Vec<TaskRecord>,
    /// The ranks, in their order; none where flows run.
    pub ranks: Vec<RankRecord>,
    /// The flows that failed, in the order of their failures. Runs over real ports report failures as text only, in
    /// [`RunReport::stuck`].
    pub failures: Vec<FlowFailure>,
    /// Packet counts.
    pub packets: PacketCounters,
    /// Measures of links, switches and flows; `None` for runs in real time.
    pub measures: Option<Measures>,
    /// The RTTs that senders have measured, if [`Options::measure`](super::Options::measure) is set; `None` for runs in
    /// real time.
    pub rtts: Option<Rtts>,
    /// Numbers of packets that faults of links have met.
    pub faults: FaultCounters,
    /// What the receive queues of hosts have met, if hosts take time ([`RunConfig::host`]).
    pub hosts: Option<HostCounters>,
    /// Number of retransmission timeouts.
    pub timeouts: u64,
    /// Number of events handled so far.
    pub events: u64,
    /// Time at which the run ended.
    pub end: Time,
    /// Number of endpoints.
    pub endpoints: u32,
    /// Memory that all endpoints together held.
    pub footprint: Footprint,
    /// Bytes that all flows take whether they have begun or not, endpoints not included: the workload, the
    /// state to start flows and to detect their end, and their records.
    pub plan: u64,
    /// The minimum time that the busiest link needs for the workload, and the name of that link.
    pub bound: (Span, String),
    /// Messages about failures, and about whatever still waits at the end of the run.
    pub stuck: Lines,
    /// Messages about flows whose bytes differ from those sent, or that arrived more than once.
    pub payload_errors: Vec<String>,
    /// Connections, PDCs and messages that the endpoints still held at the end although everything was done, or although
    /// nothing happened any more.
    pub leaks: Vec<String>,
}

impl RunReport {
    /// Whether every flow is complete, and every rank.
    pub fn is_complete(&self) -> bool {
        let flows = self.flows.iter().all(|flow| flow.end.is_some());
        flows && self.ranks.iter().all(|rank| rank.end.is_some())
    }
}

/// The RTTs of all shards.
fn rtts(system: &System) -> Option<Rtts> {
    let mut all = system.shards.iter().filter_map(|shard| Some(shard.rtts.as_ref()?.lock()));
    let first = all.next()?.clone();
    Some(all.fold(first, |mut sum, rtts| {
        sum.extend(&rtts);
        sum
    }))
}

/// Makes the report of a run that ended at `end`, ps. Its order does not depend on the number of shards.
pub(super) fn report(config: &RunConfig, system: &System, end: u64) -> RunReport {
    let flows = || system.shards.iter().map(|shard| &shard.flows);
    let mut hosts: Vec<&Host> =
        system.shards.iter().flat_map(|shard| &shard.groups).flat_map(|group| &group.hosts).collect();
    hosts.sort_unstable_by_key(|host| host.id);
    let done = flows().all(|flows| flows.open == 0);
    // Queues change until the last instant, some time after the last connection has closed.
    let last = end;
    let end = if done && !system.settles {
        flows().map(|flows| flows.last_close).max().unwrap_or(end)
    } else {
        end
    };
    let mut records = records(config, flows());
    let ranks: Vec<&HostRanks> = hosts.iter().filter_map(|host| Some(&host.ranks.as_ref()?.ranks)).collect();
    // Messages of ranks are not named by their numbers in packets, and reported by their ranks.
    let flows_only = records.len();
    records.extend(message_records(config, &ranks));
    let (packets, timeouts) = count(system, &hosts);
    let mut failures = notes(flows().flat_map(|flows| &flows.failures));
    failures.extend(in_order(&ranks, HostRanks::failures));
    let mut payload_errors = notes(flows().flat_map(|flows| &flows.payload_errors));
    payload_errors.extend(in_order(&ranks, HostRanks::wrong));
    let fine = done && failures.is_empty();
    let mut failed: Vec<FlowFailure> = flows().flat_map(|flows| &flows.failed).copied().collect();
    failed.sort_by_key(|failure| (failure.at.as_ps(), failure.flow));
    RunReport {
        tasks: tasks(config, &records, flows),
        failures: failed,
        packets,
        measures: Some(measures(config, system, &hosts, &records, last)),
        rtts: rtts(system),
        faults: faults(system, &hosts),
        hosts: config
            .host
            .map(|_| hosts.iter().filter_map(|host| Some(host.receiver.as_ref()?.counters)).sum()),
        timeouts,
        events: system.shards.iter().map(|shard| shard.events).sum(),
        end: Time::from_ps(end),
        endpoints: hosts.len() as u32,
        footprint: hosts.iter().map(|host| host.fep.footprint()).sum(),
        plan: plan(config, &hosts),
        bound: bound(config),
        stuck: if fine {
            Lines::default()
        } else {
            explain(failures, &hosts, &ranks, &records[..flows_only], Time::from_ps(end))
        },
        payload_errors,
        leaks: match (fine || system.settles, done) {
            (true, _) => leaks(&hosts, &records[..flows_only], flows),
            (false, true) => leaks(&[], &records[..flows_only], flows),
            (false, false) => Vec::new(),
        },
        ranks: rank_records(&ranks),
        flows: records,
    }
}

fn records<'a>(config: &RunConfig, shards: impl Iterator<Item = &'a Flows>) -> Vec<FlowRecord> {
    let mut records: Vec<FlowRecord> = config.workload.flows().iter().map(FlowRecord::new).collect();
    for source_flow in shards.flat_map(|flows| &flows.source_flows) {
        let record = &mut records[source_flow.flow as usize];
        (record.start, record.end) = (source_flow.start(), source_flow.end());
        record.retransmitted = u64::from(source_flow.retransmitted);
    }
    records
}

/// The tasks, as the sources and destinations of their flows saw them.
fn tasks<'a, F>(config: &RunConfig, records: &[FlowRecord], shards: impl Fn() -> F) -> Vec<TaskRecord>
where
    F: Iterator<Item = &'a Flows>,
{
    let ideals = ideal::of_tasks(config);
    let record = |((task, ideal), i): ((&Task, Span), usize)| {
        let flows = &records[task.first as usize..(task.first + task.flows) as usize];
        let arrived: u32 = shards().map(|shard| shard.task(i).arrived).sum();
        let last = shards().map(|shard| shard.task(i).last).max().unwrap_or_default();
        TaskRecord {
            source: task.source,
            start: flows.iter().filter_map(|flow| flow.start).reduce(Time::earliest),
            end: (arrived == task.flows).then_some(Time::from_ps(last)),
            ideal,
        }
    };
    config.workload.tasks().iter().zip(ideals).zip(0..).map(record).collect()
}

/// The messages between ranks of different hosts, in their order.
fn message_records<'a>(
    config: &'a RunConfig,
    ranks: &'a [&HostRanks],
) -> impl Iterator<Item = FlowRecord> + 'a {
    let mut all: Vec<&MessageRecord> = ranks.iter().flat_map(|ranks| ranks.records()).collect();
    all.sort_unstable_by_key(|record| record.message);
    all.into_iter().filter_map(|record| FlowRecord::of_message(config.job.as_ref()?, record))
}

/// The records of the ranks of all hosts, in the order of the ranks.
fn rank_records(hosts: &[&HostRanks]) -> Vec<RankRecord> {
    let mut all: Vec<RankRecord> = hosts.iter().flat_map(|ranks| ranks.ranks()).collect();
    all.sort_unstable_by_key(|record| record.rank);
    all
}

/// The texts that `of` gives for each host, sorted by time and host.
fn in_order<'a>(hosts: &[&'a HostRanks], of: fn(&HostRanks) -> &[(u64, String)]) -> Vec<String> {
    let mut all: Vec<&'a (u64, String)> = hosts.iter().flat_map(|ranks| of(ranks)).collect();
    all.sort_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, text)| text.clone()).collect()
}

/// Memory that flows take whether they have begun or not, bytes; see [`RunReport::plan`].
fn plan(config: &RunConfig, hosts: &[&Host]) -> u64 {
    let workload = &config.workload;
    let starts: usize = hosts.iter().map(|host| host.starts.capacity() * size_of::<(u64, Begin)>()).sum();
    let records = workload.flows().len() * size_of::<FlowRecord>();
    let job = config.job.as_ref().map_or(0, |job| job.bytes());
    let ranks: u64 = hosts.iter().filter_map(|host| Some(host.ranks.as_ref()?.ranks.bytes())).sum();
    job + ranks + workload.bytes() + Flows::bytes_of(workload) + (starts + records) as u64
}

fn count(system: &System, hosts: &[&Host]) -> (PacketCounters, u64) {
    let mut packets = PacketCounters::default();
    let mut timeouts = 0;
    for host in hosts {
        let counters = host.fep.counters();
        packets.data += counters.data_sent;
        packets.retransmitted += counters.data_retransmitted;
        packets.acks += counters.acks_sent;
        packets.nacks += counters.nacks_sent;
        packets.control += counters.control_sent;
        packets.inferred_lost += counters.losses_inferred;
        packets.dropped += host.dropped + counters.control_dropped;
        timeouts += counters.timeouts;
    }
    for switch in system.shards.iter().flat_map(|shard| &shard.switches) {
        packets.dropped += switch.dropped;
        for counters in switch.counters() {
            packets.trimmed += counters.trimmed;
            packets.ecn_marked += counters.marked;
        }
    }
    (packets, timeouts)
}

fn faults(system: &System, hosts: &[&Host]) -> FaultCounters {
    let switches = system.shards.iter().flat_map(|shard| &shard.switches).map(Switch::faults);
    hosts.iter().map(|host| host.nic.faults()).chain(switches).sum()
}

/// The texts of `notes`, sorted by time and host.
fn notes<'a>(notes: impl Iterator<Item = &'a Note>) -> Vec<String> {
    let mut notes: Vec<&Note> = notes.collect();
    notes.sort_by_key(|(at, host, _)| (*at, *host));
    notes.into_iter().map(|(.., text)| text.clone()).collect()
}

/// The failures, what ranks wait for, the endpoints' open waits, and the flows that have not started.
fn explain(
    failures: Vec<String>,
    hosts: &[&Host],
    ranks: &[&HostRanks],
    flows: &[FlowRecord],
    now: Time,
) -> Lines {
    let mut lines: Lines = failures.into_iter().collect();
    lines.extend(ranks.iter().flat_map(|ranks| ranks.waits()));
    lines.extend(hosts.iter().flat_map(|host| host.fep.waits(now)));
    lines.extend(hosts.iter().flat_map(|host| host.fep.shortages()));
    lines.extend(flows.iter().filter_map(FlowRecord::not_started));
    lines
}

/// Leftovers in the endpoints `hosts` after everything is done, and flows that arrived not at all or more
/// than once. A failed connection leaves the peer's end behind for a time, so after failures `hosts` is
/// empty.
fn leaks<'a, F>(hosts: &[&Host], records: &[FlowRecord], flows: impl Fn() -> F) -> Vec<String>
where
    F: Iterator<Item = &'a Flows>,
{
    let mut leaks = Vec::new();
    for host in hosts {
        leaks.extend(host.fep.leaks().map(|what| format!("endpoint {}: {what}", host.id)));
        leaks.extend(host.ranks.iter().flat_map(|ranks| ranks.ranks.leaks()));
    }
    for (record, index) in records.iter().zip(0..) {
        let times: u32 = flows().map(|flows| u32::from(flows.times_received(index))).sum();
        if record.end.is_some() && times != 1 {
            leaks.push(format!("flow {} was received {times} times", record.id));
        }
    }
    leaks
}

/// The minimum time that the workload takes: its bytes with their headers over the busiest links.
fn bound(config: &RunConfig) -> (Span, String) {
    let flows = config.transfers().map(|(src, dst, bytes)| (src, dst, config.wire_bytes(bytes)));
    let bound = config.topology.busiest_link_bound(flows);
    (bound.time, bound.at.to_string())
}
