//! The times that flows and tasks take in an idle fabric: the yardstick of slowdowns. `docs/report.md` defines them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use weft_cc::{Rate, Span, Time};

use super::config::RunConfig;
use crate::topology::{HostId, NextPorts, Node, PortId};
use crate::workload::{Flow, Start, Task, TriggerBank, TriggerIdx, Workload};

/// A link on the way from one host to another.
#[derive(Clone, Copy)]
struct Hop {
    rate: Rate,
    /// Propagation, and the latency of the switch at its end.
    latency: Span,
    /// Number of links among which packets may be spread here; 1 if all of them pass this one.
    ways: u32,
}

impl RunConfig {
    /// The time from the start of a flow until its destination has all of it, in an idle fabric without faults: its
    /// packets follow each other without a gap from the source's link on, each switch passes a packet on when it has all
    /// of it, and packets queue only behind packets of their own flow, at links that all of them pass.
    pub fn ideal_delivery(&self, src: HostId, dst: HostId, bytes: u64) -> Span {
        self.delivery_over(&self.path(src, dst), bytes)
    }

    /// The time from the start of a flow until its source knows that its destination has all of it, in an idle fabric:
    /// [`RunConfig::ideal_delivery`], and the way of one acknowledgement of the smallest size back.
    pub fn ideal_fct(&self, src: HostId, dst: HostId, bytes: u64) -> Span {
        let ack = u64::from(self.smallest_ack());
        let back = self.path(dst, src);
        let back = back.iter().fold(Span::ZERO, |sum, hop| sum + hop.rate.time_for(ack) + hop.latency);
        self.ideal_delivery(src, dst, bytes) + back
    }

    /// The links of a path; in a folded Clos those of the others of the same pair are alike. Empty from a host to itself. Where the ways of
    /// packets part, they meet again at the last switch.
    fn path(&self, src: HostId, dst: HostId) -> Vec<Hop> {
        let topology = &self.topology;
        let mut hops = Vec::new();
        let mut port = topology.nic(src);
        let mut ways = 1u32;
        // A path is loop-free; the bound is for fabrics that are not.
        while src != dst && hops.len() <= topology.switches() as usize {
            let spec = topology.port(port);
            let Node::Switch(switch) = spec.peer else {
                hops.push(Hop { rate: spec.rate, latency: spec.latency, ways: 1 });
                break;
            };
            hops.push(Hop { rate: spec.rate, latency: spec.latency + topology.switch_latency(switch), ways });
            let next = topology.next_ports(switch, dst);
            ways = ways.saturating_mul(next.len());
            port = match next {
                NextPorts::Range(range) => range.first,
                // Links of a graph may differ: the quickest one counts.
                NextPorts::List(_) => {
                    let cost =
                        |port: &PortId| (topology.port(*port).latency, Reverse(topology.port(*port).rate));
                    next.iter().min_by_key(cost).unwrap_or(next.nth(0))
                }
            };
        }
        hops
    }

    /// When the last packet of a flow of `bytes` has arrived at the end of `path`: the completion time of a flow shop in
    /// which all jobs but the last one are alike, and some machines have several copies.
    fn delivery_over(&self, path: &[Hop], bytes: u64) -> Span {
        let overhead = u64::from(self.data_overhead());
        let mtu = u64::from(self.mtu);
        let full_packets = bytes.div_ceil(mtu).max(1) - 1;
        let rest = bytes - full_packets * mtu + overhead;
        // The time of the first full packet, and the time between two of them.
        let (mut first, mut gap) = (Span::ZERO, Span::ZERO);
        // When the last full packet, and the last packet, have arrived.
        let (mut full, mut last) = (Span::ZERO, Span::ZERO);
        for Hop { rate, ways, .. } in path {
            let (each, short) = (rate.time_for(mtu + overhead), rate.time_for(rest));
            first = first + each;
            if full_packets == 0 {
                last = last + short;
                continue;
            }
            gap = gap.max(Span::from_ps(each.as_ps() / u64::from(*ways)));
            let in_line = first + gap.times(full_packets - 1);
            if *ways > 1 {
                (full, last) = ((full + each).max(in_line), last + short);
            } else if last >= full {
                full = (full + each).max(in_line);
                last = last.max(full) + short;
            } else {
                // The last packet has overtaken the one before it, but not those before that.
                let others = if full_packets == 1 { Span::ZERO } else { in_line.minus(gap) };
                last = last.max(others) + short;
                full = (full.max(last) + each).max(in_line);
            }
        }
        path.iter().fold(full.max(last), |sum, hop| sum + hop.latency)
    }

    /// Bytes of a flow on the wire.
    pub(super) fn wire_bytes(&self, bytes: u64) -> u64 {
        let packets = bytes.div_ceil(u64::from(self.mtu)).max(1);
        bytes.saturating_add(packets.saturating_mul(u64::from(self.data_overhead())))
    }
}

/// The ideal time of each task of the workload: the longer of two times that no fabric can undercut, namely that of its
/// longest chain of flows that wait for each other, each taking its own ideal time, and that in which the busiest of its
/// hosts' links carries what the task sends over it.
pub(super) fn of_tasks(config: &RunConfig) -> Vec<Span> {
    let workload = &config.workload;
    if workload.tasks().is_empty() {
        return Vec::new();
    }
    let run = Contentionless::run(config);
    let chain = |task: &Task| {
        let flows = task.first as usize..(task.first + task.flows) as usize;
        let first = run.starts[flows.clone()].iter().min().copied().unwrap_or_default();
        let last = run.ends[flows].iter().max().copied().unwrap_or_default();
        last.minus(first)
    };
    workload.tasks().iter().map(|task| chain(task).max(busiest_link(config, workload, task))).collect()
}

/// The time in which the busiest of the hosts' links carries the flows of `task`.
fn busiest_link(config: &RunConfig, workload: &Workload, task: &Task) -> Span {
    let flows = &workload.flows()[task.first as usize..(task.first + task.flows) as usize];
    // For each host and direction: bytes, and the least time that its flows need besides.
    let mut links: BTreeMap<(u32, bool), (u64, Span)> = BTreeMap::new();
    for flow in flows {
        let bytes = config.wire_bytes(flow.bytes);
        let delivery = config.ideal_delivery(flow.src, flow.dst, flow.bytes);
        for (host, sends) in [(flow.src, true), (flow.dst, false)] {
            let rate = config.topology.port(config.topology.nic(host)).rate;
            let beside = delivery.minus(rate.time_for(bytes));
            let (sum, least) = links.entry((host.0, sends)).or_insert((0, Span::MAX));
            *sum = sum.saturating_add(bytes);
            *least = beside.min(*least);
        }
    }
    let time = |((host, _), (bytes, beside)): (&(u32, bool), &(u64, Span))| {
        config.topology.port(config.topology.nic(HostId(*host))).rate.time_for(*bytes) + *beside
    };
    links.iter().map(time).max().unwrap_or_default()
}

/// A run in which every flow takes its own ideal time, whatever else happens.
struct Contentionless<'a> {
    config: &'a RunConfig,
    triggers: TriggerBank,
    agenda: BinaryHeap<Reverse<(Span, Event)>>,
    /// By flow: when it started, and when its destination had all of it.
    starts: Vec<Span>,
    ends: Vec<Span>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Start(u32),
    Activation(TriggerIdx),
}

impl<'a> Contentionless<'a> {
    fn run(config: &'a RunConfig) -> Contentionless<'a> {
        let workload = &config.workload;
        let zeros = vec![Span::ZERO; workload.flows().len()];
        let mut run = Contentionless {
            config,
            triggers: TriggerBank::new(workload),
            agenda: BinaryHeap::new(),
            starts: zeros.clone(),
            ends: zeros,
        };
        for (flow, i) in workload.flows().iter().zip(0..) {
            if let Start::At(at) = flow.start {
                run.start(i, at.since(Time::ZERO));
            }
        }
        for (trigger, index) in workload.triggers().iter().zip((0..).filter_map(TriggerIdx::new)) {
            if let Some(at) = trigger.at {
                run.agenda.push(Reverse((at.since(Time::ZERO), Event::Activation(index))));
            }
        }
        while let Some(Reverse((now, event))) = run.agenda.pop() {
            match event {
                Event::Start(flow) => run.start(flow, now),
                Event::Activation(trigger) => run.activate(trigger, now),
            }
        }
        run
    }

    fn start(&mut self, index: u32, now: Span) {
        let Flow { src, dst, bytes, on_sent, on_received, .. } = self.config.workload.flows()[index as usize];
        let end = now + self.config.ideal_delivery(src, dst, bytes);
        (self.starts[index as usize], self.ends[index as usize]) = (now, end);
        if let Some(trigger) = on_received {
            self.agenda.push(Reverse((end, Event::Activation(trigger))));
        }
        if let Some(trigger) = on_sent {
            let sent = now + self.config.ideal_fct(src, dst, bytes);
            self.agenda.push(Reverse((sent, Event::Activation(trigger))));
        }
    }

    fn activate(&mut self, trigger: TriggerIdx, now: Span) {
        let config = self.config;
        let Some(fired) = self.triggers.activate(&config.workload, trigger) else { return };
        let at = now + fired.delay;
        let starts = fired.flows.iter().map(|flow| Event::Start(*flow));
        let events = starts.chain(fired.then.map(Event::Activation));
        self.agenda.extend(events.map(|event| Reverse((at, event))));
    }
}
