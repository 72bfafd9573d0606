//! The times that flows and tasks take in an idle fabric: the yardstick of slowdowns. `docs/report.md` defines them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use weft_cc::{Rate, Span, Time};

use super::config::RunConfig;
use crate::topology::{HostId, Node, PortSpec, SwitchId};
use crate::workload::{Flow, Start, Task, TriggerBank, TriggerIdx, Workload};

/// The links of one hop between two hosts, over which packets may be spread.
#[derive(Clone, Copy)]
struct Hop {
    /// The rate of the fastest of them.
    rate: Rate,
    /// The sum of their rates.
    sum: Rate,
}

/// The ways from one host to another.
struct Ways {
    hops: Vec<Hop>,
    /// Propagation and the latency of switches on the quickest way.
    latency: Span,
}

impl RunConfig {
    /// The time from the start of a flow until its destination has all of it, in an idle fabric without faults: its
    /// packets follow each other without a gap from the source's link on, each switch passes a packet on when it has all
    /// of it, and packets queue only behind packets of their own flow, at links that all of them pass.
    pub fn ideal_delivery(&self, src: HostId, dst: HostId, bytes: u64) -> Span {
        self.delivery_over(&self.ways(src, dst), bytes)
    }

    /// The time from the start of a flow until its source knows that its destination has all of it, in an idle fabric:
    /// [`RunConfig::ideal_delivery`], and the way of one acknowledgement of the smallest size back.
    pub fn ideal_fct(&self, src: HostId, dst: HostId, bytes: u64) -> Span {
        let ack = u64::from(self.smallest_ack());
        let back = self.ways(dst, src);
        let back = back.hops.iter().fold(back.latency, |sum, hop| sum + hop.rate.time_for(ack));
        self.ideal_delivery(src, dst, bytes) + back
    }

    /// The ways from `src` to `dst`; no hops from a host to itself.
    fn ways(&self, src: HostId, dst: HostId) -> Ways {
        match self.topology.is_graph() {
            _ if src == dst => Ways { hops: Vec::new(), latency: Span::ZERO },
            true => self.ways_of_graph(src, dst),
            false => self.ways_of_clos(src, dst),
        }
    }

    /// The ways in a folded Clos, where those of one pair are alike, and as many links lead down to a tier as up from it.
    fn ways_of_clos(&self, src: HostId, dst: HostId) -> Ways {
        let topology = &self.topology;
        let mut ways = Ways { hops: Vec::new(), latency: Span::ZERO };
        let mut links = 1u32;
        let mut port = topology.nic(src);
        loop {
            let PortSpec { rate, latency, peer, .. } = *topology.port(port);
            let sum = Rate::from_bps(rate.as_bps().saturating_mul(u64::from(links)));
            ways.hops.push(Hop { rate, sum });
            ways.latency = ways.latency + latency;
            let Node::Switch(switch) = peer else { break };
            ways.latency = ways.latency + topology.switch_latency(switch);
            let next = topology.next_ports(switch, dst);
            links = links.saturating_mul(next.len());
            port = next.nth(0);
        }
        let hops = ways.hops.len();
        for down in hops.div_ceil(2)..hops {
            let (up, rate) = (ways.hops[hops - 1 - down], ways.hops[down].rate);
            let links = up.sum.as_bps() / up.rate.as_bps().max(1);
            ways.hops[down].sum = Rate::from_bps(rate.as_bps().saturating_mul(links));
        }
        ways
    }

    /// The ways in a graph, whose links may differ.
    fn ways_of_graph(&self, src: HostId, dst: HostId) -> Ways {
        let topology = &self.topology;
        let [from, to] = [src, dst].map(|host| topology.tor_of(host));
        let [up, down] =
            [topology.nic(src), topology.port(topology.nic(dst)).reverse].map(|p| topology.port(p));
        let lone = |port: &PortSpec| Hop { rate: port.rate, sum: port.rate };
        let mut hops = vec![lone(up)];
        let arrival = up.latency + topology.switch_latency(from);
        // The least latency of the ways to each switch that the hop before leads to.
        let mut reached = BTreeMap::from([(from, arrival)]);
        topology.each_stage(from, to, dst, |links| {
            let mut next: BTreeMap<SwitchId, Span> = BTreeMap::new();
            let mut hop = Hop { rate: Rate::from_bps(0), sum: Rate::from_bps(0) };
            for port in links.iter().map(|port| topology.port(*port)) {
                hop.rate = hop.rate.max(port.rate);
                hop.sum = Rate::from_bps(hop.sum.as_bps().saturating_add(port.rate.as_bps()));
                if let (Node::Switch(owner), Node::Switch(peer)) = (port.owner, port.peer) {
                    let arrival = reached[&owner] + port.latency + topology.switch_latency(peer);
                    next.entry(peer).and_modify(|least| *least = arrival.min(*least)).or_insert(arrival);
                }
            }
            hops.push(hop);
            reached = next;
        });
        hops.push(lone(down));
        Ways { hops, latency: reached[&to] + down.latency }
    }

    /// When the last packet of a flow of `bytes` has arrived over `ways`: the completion time of a flow shop in which all
    /// jobs but the last one are alike, and some machines have several copies.
    fn delivery_over(&self, ways: &Ways, bytes: u64) -> Span {
        let overhead = u64::from(self.data_overhead());
        let mtu = u64::from(self.mtu);
        let full_packets = bytes.div_ceil(mtu).max(1) - 1;
        let rest = bytes - full_packets * mtu + overhead;
        // The time of the first full packet, that by which the others arrive later, and that between two of them.
        let (mut first, mut later, mut gap) = (Span::ZERO, Span::ZERO, Span::ZERO);
        // When the last full packet, and the last packet, have arrived.
        let (mut full, mut last) = (Span::ZERO, Span::ZERO);
        for Hop { rate, sum } in &ways.hops {
            let (each, short) = (rate.time_for(mtu + overhead), rate.time_for(rest));
            first = first + each;
            if full_packets == 0 {
                last = last + short;
                continue;
            }
            // The mean time between two packets, if the links of this hop are never idle.
            let mean = u128::from(each.as_ps()) * u128::from(rate.as_bps()) / u128::from(sum.as_bps().max(1));
            let mean = Span::from_ps(mean as u64);
            gap = gap.max(mean);
            later = later.max(mean.times(full_packets).minus(each));
            let in_line = first + later;
            if sum > rate {
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
        full.max(last) + ways.latency
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
