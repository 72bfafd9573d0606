//! The results of a run: a report of each host, and one of all of them.

use super::flows::{HostFlows, Outcome, SendRecord};
use serde::{Deserialize, Serialize};
use weft_cc::{Span, Time};
use weft_stack::fep::Footprint;
use weft_stack::port::Port;
use weft_stack::worker::Worker;
use weft_testbed::sim::{FaultCounters, FlowRecord, Lines, PacketCounters, RunConfig, RunReport};

/// The results of one host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct HostReport {
    host: u32,
    /// Flows from it.
    sent: Vec<SendRecord>,
    /// Flows to it that have arrived, by their index in the workload.
    received: Vec<u32>,
    /// Flows to it that arrived other than they were sent.
    wrong: Vec<String>,
    /// Flows and connections from it that failed.
    failures: Vec<String>,
    /// Connections that wait, and for what.
    waits: Vec<String>,
    /// Further waits, which are only counted.
    other_waits: u64,
    /// Whether all flows from it have ended, and their connections are closed.
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
    /// Memory that its flows take whether they have started or not, bytes.
    plan: u64,
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
    /// The results of `flows` at `host`, whose endpoint `worker` drives. Compares what has arrived with what was sent.
    ///
    /// Packets that the network has trimmed or marked are counted where they arrive.
    pub(crate) fn new<P: Port>(host: u32, flows: HostFlows<'_>, worker: &Worker<P>) -> HostReport {
        let fep = worker.fep();
        let (done, plan) = (flows.are_done(), flows.bytes());
        let Outcome { sent, received, failures, wrong } = flows.into_outcome();
        let waits = waits(worker);
        HostReport {
            host,
            sent,
            received,
            wrong,
            failures,
            waits: waits.to_vec(),
            other_waits: waits.others(),
            done,
            leaks: fep.leaks().collect(),
            packets: packets(worker),
            timeouts: fep.counters().timeouts,
            frames: frames(worker),
            footprint: fep.footprint(),
            plan,
        }
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
        dropped: by_worker + by_port + fep.control_dropped,
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
    let workload = &config.workload;
    let mut sent: Vec<&SendRecord> = hosts.iter().flat_map(|host| &host.sent).collect();
    sent.sort_unstable_by_key(|record| record.flow);
    let mut arrived = vec![false; workload.flows().len()];
    hosts.iter().flat_map(|host| &host.received).for_each(|flow| arrived[*flow as usize] = true);
    let at = |ps: u64| Time::ZERO + Span::from_ps(ps);
    let record = |sent: &&SendRecord| FlowRecord {
        start: sent.start.map(at),
        end: sent.end.map(at),
        retransmitted: sent.retransmitted,
        ..FlowRecord::new(&workload.flows()[sent.flow as usize])
    };
    let flows: Vec<FlowRecord> = sent.iter().map(record).collect();
    let mut payload_errors = lines(hosts, |host| &host.wrong).collect::<Vec<_>>();
    let lost = sent.iter().zip(&flows).filter(|(sent, _)| sent.end.is_some() && !arrived[sent.flow as usize]);
    payload_errors.extend(lost.map(|(_, flow)| format!("flow {} never arrived", flow.id)));
    let done = hosts.iter().all(|host| host.done);
    RunReport {
        tasks: Vec::new(),
        failures: Vec::new(),
        // They are the simulator's.
        measures: None,
        // They are counted where the links are.
        faults: FaultCounters::default(),
        hosts: None,
        packets: sum(hosts.iter().map(|host| &host.packets)),
        timeouts: hosts.iter().map(|host| host.timeouts).sum(),
        events: hosts.iter().map(|host| host.frames).sum(),
        end: flows.iter().filter_map(|flow| flow.end).reduce(Time::latest).unwrap_or(Time::ZERO),
        endpoints: hosts.len() as u32,
        footprint: hosts.iter().map(|host| host.footprint).sum(),
        ranks: Vec::new(),
        plan: workload.bytes() + hosts.iter().map(|host| host.plan).sum::<u64>(),
        // No link is known whose rate would bound anything.
        bound: (Span::ZERO, String::new()),
        stuck: stuck(hosts, &flows),
        leaks: if done { lines(hosts, |host| &host.leaks).collect() } else { Vec::new() },
        payload_errors,
        flows,
    }
}

/// One kind of line of all hosts, each with the host's number.
fn lines(hosts: &[HostReport], of: fn(&HostReport) -> &Vec<String>) -> impl Iterator<Item = String> {
    hosts.iter().flat_map(move |host| of(host).iter().map(|line| format!("host {}: {line}", host.host)))
}

fn stuck(hosts: &[HostReport], flows: &[FlowRecord]) -> Lines {
    let mut stuck: Lines = lines(hosts, |host| &host.failures).collect();
    stuck.extend(lines(hosts, |host| &host.waits));
    stuck.count_others(hosts.iter().map(|host| host.other_waits).sum());
    stuck.extend(flows.iter().filter_map(FlowRecord::not_started));
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
