//! The results of a run, summed up once and then printed in three ways.

pub(crate) mod csv;
pub(crate) mod json;
pub(crate) mod measures;
pub(crate) mod parquet;
mod slowdown;
mod switches;
pub(crate) mod table;

use crate::resolve::Plan;
use crate::sample::FairnessOverTime;
use crate::settings::Settings;
use crate::stats::{self, Summary};
use measures::Fabric;
use serde::Serialize;
use slowdown::{BySize, Tasks};
use std::collections::BTreeMap;
use switches::Switches;
use weft_cc::{Span, Time};
use weft_testbed::goal::RankRecord;
use weft_testbed::sim::{FlowRecord, HostCounters, Rtts, RunConfig, RunReport};
use weft_testbed::soft::SoftCounters;
use weft_testbed::topology::HostId;
use weft_testbed::workload::Background;

/// The results, in the order and under the names of the JSON report.
#[derive(Debug, Serialize)]
pub(crate) struct Report<'a> {
    pub(crate) flows: FlowCount,
    /// The ranks of a program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ranks: Option<Finishes>,
    /// The flows of background traffic. The figures of flows below are those of the others.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) background: Vec<BackgroundFlow>,
    /// Flow completion times: from a flow's start to the sender's knowledge that all of it arrived.
    pub(crate) fct_us: Summary,
    /// Completion times over those in an idle fabric, where there is one, and both by the sizes of flows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) flow_slowdown: Option<Summary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) by_size: Option<BySize>,
    /// The tasks of the workload, by the place of their description.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) tasks: BTreeMap<u32, Tasks>,
    /// The simulator's prediction, for a run in real time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) predicted: Option<Predicted>,
    /// How punctual the switches were, where they were software.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) switches: Option<Switches>,
    /// The time that the busiest link needs for its share of the workload.
    pub(crate) bound_us: f64,
    /// The time from the first flow's start to the last one's end, over the bound. None while a
    /// flow is unfinished, and when nothing crosses a link.
    pub(crate) slowdown_max: Option<f64>,
    /// Fairness of the completed flows' goodputs.
    pub(crate) jain: Option<f64>,
    /// Payload of the completed flows over the time from the first start to the last end.
    pub(crate) goodput_gbps: Option<f64>,
    pub(crate) packets: Packets,
    pub(crate) timeouts: u64,
    /// Round trips, in a simulation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rtt_us: Option<RoundTrips>,
    /// Queues and links, in a simulation.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(crate) fabric: Option<Fabric>,
    /// How evenly the flows have shared the network over time, in a sampled run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) shares: Option<FairnessOverTime>,
    /// The receive queues of hosts, if hosts take time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host_queues: Option<HostQueues>,
    /// The memory of the protocol.
    pub(crate) state: State,
    pub(crate) engine: Engine,
    pub(crate) config: &'a Settings,
    pub(crate) seed: u64,
    #[serde(skip)]
    pub(crate) bound_at: &'a str,
    /// The configuration, if switches and links lie between the hosts.
    #[serde(skip)]
    pub(crate) run_config: Option<&'a RunConfig>,
    /// How many times slower the network was than described.
    #[serde(skip)]
    slow: u32,
}

/// When the ranks of a program have finished.
#[derive(Debug, Serialize)]
pub(crate) struct Finishes {
    pub(crate) total: u64,
    pub(crate) finished: u64,
    /// From the start of the run.
    pub(crate) finish_us: Summary,
    /// The last one, if all have finished.
    pub(crate) slowest: Option<Finish>,
    /// In the order of the ranks.
    pub(crate) each: Vec<Finish>,
}

/// When a rank has finished, if it has.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Finish {
    pub(crate) rank: u32,
    pub(crate) host: u32,
    pub(crate) finish_us: Option<f64>,
}

impl Finishes {
    /// When the last rank finished, if all did.
    fn last_us(&self) -> Option<f64> {
        self.slowest.as_ref()?.finish_us
    }

    fn of(ranks: &[RankRecord]) -> Option<Finishes> {
        let finish = |rank: &RankRecord| Finish {
            rank: rank.rank,
            host: rank.host,
            finish_us: rank.end.map(Span::as_us_f64),
        };
        let ends: Vec<Span> = ranks.iter().filter_map(|rank| rank.end).collect();
        let finished = ends.len();
        // The first of several that finish at the same time.
        let slowest = ranks.iter().rev().max_by_key(|rank| rank.end).filter(|_| finished == ranks.len());
        (!ranks.is_empty()).then(|| Finishes {
            total: ranks.len() as u64,
            finished: finished as u64,
            finish_us: Summary::of(ends),
            slowest: slowest.map(finish),
            each: ranks.iter().map(finish).collect(),
        })
    }
}

/// The simulator's results for a run in real time, and flow completion times over the simulator's.
#[derive(Debug, Serialize)]
pub(crate) struct Predicted {
    pub(crate) completed: u64,
    pub(crate) fct_us: Summary,
    pub(crate) mean_ratio: Option<f64>,
    pub(crate) p99_ratio: Option<f64>,
    pub(crate) max_ratio: Option<f64>,
    pub(crate) retransmitted: u64,
    pub(crate) trimmed: u64,
    pub(crate) dropped: u64,
    pub(crate) timeouts: u64,
    /// The ranks of a program in simulation, and when the last one finished over when it did in simulation, if both did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ranks: Option<Finishes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) finish_ratio: Option<f64>,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct FlowCount {
    pub(crate) total: u64,
    pub(crate) completed: u64,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Packets {
    /// Data packets sent for the first time.
    pub(crate) data: u64,
    pub(crate) retransmitted: u64,
    pub(crate) trimmed: u64,
    pub(crate) dropped: u64,
    pub(crate) acks: u64,
    pub(crate) nacks: u64,
    pub(crate) ecn_marked: u64,
}

/// The RTTs that senders have measured, in microseconds. All but the number are none without any.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct RoundTrips {
    pub(crate) count: u64,
    pub(crate) min: Option<f64>,
    pub(crate) mean: Option<f64>,
    pub(crate) p50: Option<f64>,
    pub(crate) p99: Option<f64>,
    pub(crate) p999: Option<f64>,
    pub(crate) max: Option<f64>,
}

impl RoundTrips {
    fn of(rtts: &Rtts) -> RoundTrips {
        let some = |rtt: Span| (rtts.count() > 0).then(|| rtt.as_us_f64());
        let [min, p50, p99, p999, max] =
            [0.0, 0.5, 0.99, 0.999, 1.0].map(|quantile| some(rtts.quantile(quantile)));
        RoundTrips { count: rtts.count(), min, mean: some(rtts.mean()), p50, p99, p999, max }
    }
}

/// What the receive queues of hosts have met.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct HostQueues {
    pub(crate) processed: u64,
    /// Packets that found no room. They are in `packets.dropped` as well.
    pub(crate) dropped: u64,
    /// The longest queue of any host.
    pub(crate) max_bytes: u64,
    /// From a packet's arrival to the end of its processing.
    pub(crate) wait_mean_us: f64,
    pub(crate) wait_max_us: f64,
}

impl HostQueues {
    fn of(counters: &HostCounters) -> HostQueues {
        HostQueues {
            processed: counters.processed,
            dropped: counters.dropped,
            max_bytes: counters.queue_max_bytes,
            wait_mean_us: counters.waited_mean().as_us_f64(),
            wait_max_us: counters.waited_max.as_us_f64(),
        }
    }
}

/// State of the endpoints, without the messages' bytes: tables at their largest.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct State {
    /// Memory that each endpoint holds whatever it does: itself, its queues, its timers.
    pub(crate) bytes_per_host: f64,
    /// Memory that each flow that has begun takes at both ends: connection, congestion context, target, message, receive.
    pub(crate) bytes_per_flow: f64,
    /// Memory that each flow of the workload takes whether it has begun or not: its place in the list, its start, its
    /// record.
    pub(crate) bytes_per_planned_flow: f64,
}

impl State {
    fn of(run: &RunReport) -> State {
        let f = &run.footprint;
        let fixed = f.endpoint + f.credit + f.timers;
        let begun = run.flows.iter().filter(|flow| flow.start.is_some()).count();
        let each = |bytes: u64, count: usize| (bytes as f64 / count.max(1) as f64 * 10.0).round() / 10.0;
        State {
            bytes_per_host: each(fixed, run.endpoints as usize),
            bytes_per_flow: each(f.state() - fixed, begun),
            bytes_per_planned_flow: each(run.plan, run.flows.len()),
        }
    }
}

/// The cost of the run: the only part of a report that differs between two runs of one seed.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Engine {
    pub(crate) events: u64,
    /// CPU time of the run itself, without reading files and building the topology, seconds.
    pub(crate) cpu_s: f64,
    pub(crate) data_packets_per_cpu_s: f64,
    /// The most memory that the process ever held, 10⁶ bytes.
    pub(crate) max_rss_mb: f64,
}

impl<'a> Report<'a> {
    /// Sums up `run` of `plan`, which took `cpu_s` seconds of CPU and `max_rss_mb` of memory.
    pub(crate) fn new(run: &'a RunReport, plan: &'a Plan, cpu_s: f64, max_rss_mb: f64) -> Self {
        let done = done(run, &plan.config);
        let every: Vec<Done> = run.flows.iter().filter_map(Done::of).collect();
        let goodputs: Vec<f64> = done.iter().filter_map(|d| stats::gbps(d.bytes, d.fct())).collect();
        let elapsed = makespan(&done);
        let all_done = every.len() == run.flows.len();
        let p = &run.packets;
        let run_config = plan.on.has_fabric().then_some(&plan.config);
        let (flow_slowdown, by_size) = run_config.map(|config| slowdown::slowdowns(run, config)).unzip();
        Report {
            flow_slowdown,
            by_size,
            tasks: slowdown::tasks(run, &plan.config),
            run_config,
            ranks: Finishes::of(&run.ranks),
            flows: FlowCount { total: run.flows.len() as u64, completed: every.len() as u64 },
            background: BackgroundFlow::all(run, &plan.config),
            bound_us: run.bound.0.as_us_f64(),
            slowdown_max: makespan(&every).filter(|_| all_done).and_then(|t| ratio(t, run.bound.0)),
            jain: stats::jain(&goodputs),
            goodput_gbps: elapsed.and_then(|t| stats::gbps(done.iter().map(|d| d.bytes).sum(), t)),
            fct_us: Summary::of(done.iter().map(Done::fct).collect()),
            predicted: None,
            switches: None,
            packets: Packets {
                data: p.data,
                retransmitted: p.retransmitted,
                trimmed: p.trimmed,
                dropped: p.dropped,
                acks: p.acks,
                nacks: p.nacks,
                ecn_marked: p.ecn_marked,
            },
            timeouts: run.timeouts,
            rtt_us: run.rtts.as_ref().map(RoundTrips::of),
            shares: None,
            fabric: Fabric::of(run, &plan.config.topology),
            host_queues: run.hosts.as_ref().map(HostQueues::of),
            state: State::of(run),
            engine: Engine {
                events: run.events,
                // To the microsecond: the digits after it come from the binary fraction, not from the clock.
                cpu_s: (cpu_s * 1e6).round() / 1e6,
                data_packets_per_cpu_s: if cpu_s > 0.0 { (p.data as f64 / cpu_s).round() } else { 0.0 },
                max_rss_mb,
            },
            config: &plan.settings,
            seed: plan.config.seed,
            bound_at: &run.bound.1,
            slow: plan.slow,
        }
    }

    /// Puts the simulator's results beside those of the same run in real time.
    pub(crate) fn compare(&mut self, predicted: &'a RunReport) {
        let done: Vec<Done> = match self.run_config {
            Some(config) => done(predicted, config),
            None => predicted.flows.iter().filter_map(Done::of).collect(),
        };
        let p = &predicted.packets;
        let fct_us = Summary::of(done.iter().map(Done::fct).collect());
        let over =
            |real: Option<f64>, simulated: Option<f64>| Some(real? / simulated.filter(|us| *us > 0.0)?);
        let ranks = Finishes::of(&predicted.ranks);
        let last = |ranks: &Option<Finishes>| ranks.as_ref()?.last_us();
        self.predicted = Some(Predicted {
            mean_ratio: over(self.fct_us.mean, fct_us.mean),
            p99_ratio: over(self.fct_us.p99, fct_us.p99),
            max_ratio: over(self.fct_us.max, fct_us.max),
            completed: done.len() as u64,
            trimmed: p.trimmed,
            retransmitted: p.retransmitted,
            dropped: p.dropped,
            timeouts: predicted.timeouts,
            fct_us,
            finish_ratio: over(last(&self.ranks), last(&ranks)),
            ranks,
        });
    }

    /// Says how punctual the switches were, in a network whose idle round trip is `idle_rtt`.
    pub(crate) fn judge(&mut self, counters: &SoftCounters, idle_rtt: Span) {
        self.switches = Some(Switches::of(counters, idle_rtt, &self.fct_us));
    }

    /// A warning that the figures are wrong, if they are, with a remedy.
    pub(crate) fn doubt(&self) -> Option<String> {
        self.switches.as_ref()?.doubt(self.slow)
    }

    /// Whether every flow has completed, and every rank has finished.
    pub(crate) fn complete(&self) -> bool {
        let ranks = self.ranks.as_ref().is_none_or(|ranks| ranks.finished == ranks.total);
        self.flows.completed == self.flows.total && ranks
    }
}

/// A flow at a constant rate.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct BackgroundFlow {
    pub(crate) flow: u64,
    pub(crate) src: u32,
    pub(crate) dst: u32,
    /// The entropy of its packets, if the workload says one.
    pub(crate) path: Option<u16>,
    /// Payload that was to be sent, 10⁹ bits per second.
    pub(crate) rate_gbps: f64,
    /// Payload that arrived, from its start to its end, without the round trip of the last packet in an idle fabric. None
    /// while it is unfinished, and for a single packet.
    pub(crate) goodput_gbps: Option<f64>,
}

impl BackgroundFlow {
    fn all(run: &RunReport, config: &RunConfig) -> Vec<BackgroundFlow> {
        let flows = run.flows.iter().enumerate();
        let background = flows.filter_map(|(i, flow)| Some((flow, config.workload.background_of(i)?)));
        let row = |(flow, kind): (&FlowRecord, Background)| BackgroundFlow {
            flow: flow.id,
            src: flow.src,
            dst: flow.dst,
            path: kind.path,
            rate_gbps: kind.rate.as_gbps_f64(),
            goodput_gbps: Done::of(flow).and_then(|done| steady_goodput(flow, &done, config)),
        };
        background.map(row).collect()
    }
}

/// The goodput of a flow whose packets leave at equal times: of all but the last, in the time until that one leaves.
fn steady_goodput(flow: &FlowRecord, done: &Done, config: &RunConfig) -> Option<f64> {
    let mtu = u64::from(config.mtu);
    let last = (flow.bytes.checked_sub(1)? % mtu) + 1;
    let alone = config.ideal_fct(HostId(flow.src), HostId(flow.dst), last);
    stats::gbps((flow.bytes - last).checked_sub(1)? + 1, done.fct().minus(alone))
}

/// The completed flows that are not background traffic.
fn done(run: &RunReport, config: &RunConfig) -> Vec<Done> {
    let flows = run.flows.iter().enumerate();
    let others = flows.filter(|(i, _)| config.workload.background_of(*i).is_none());
    others.filter_map(|(_, flow)| Done::of(flow)).collect()
}

/// A completed flow.
pub(crate) struct Done {
    start: Time,
    end: Time,
    pub(crate) bytes: u64,
}

impl Done {
    pub(crate) fn of(flow: &FlowRecord) -> Option<Done> {
        Some(Done { start: flow.start?, end: flow.end?, bytes: flow.bytes })
    }

    pub(crate) fn fct(&self) -> Span {
        self.end.since(self.start)
    }
}

/// From the first start to the last end.
pub(crate) fn makespan(done: &[Done]) -> Option<Span> {
    let first = done.iter().map(|d| d.start).reduce(Time::earliest)?;
    let last = done.iter().map(|d| d.end).reduce(Time::latest)?;
    Some(last.since(first))
}

fn ratio(time: Span, bound: Span) -> Option<f64> {
    (bound > Span::ZERO).then(|| time.as_ps() as f64 / bound.as_ps() as f64)
}
