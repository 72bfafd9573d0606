//! A shard: the hosts and switches that one thread drives, and the links that end at them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use weft_stack::event::{Recorder, Selection};

use super::faults::LinkChange;
use super::flows::Flows;
use super::host::{Host, HostEnv, HostEvent};
use super::link::LinkSpec;
use super::rtts::SharedRtts;
use super::sample::{FlowSample, PortSample};
use super::switches::{Switch, SwitchScratch};
use super::totals::{Changes, Total};
use super::wires::{NEVER, Wires};

/// Hosts that must be processed together, because flows of one start when flows of another end. Most groups
/// have one host.
pub(super) struct Group {
    pub(super) hosts: Vec<Host>,
    /// The inbox of the first host, stored here so that prefetching need not touch the host.
    pub(super) inbox: u32,
}

/// The part of the fabric that one thread drives.
pub(super) struct Shard {
    /// Nodes are numbered groups first, then the switches of the hosts' side, then the other switches.
    pub(super) groups: Vec<Group>,
    pub(super) switches: Vec<Switch>,
    /// The first node of [`Side::Odd`].
    pub(super) first_odd: usize,
    pub(super) wires: Wires,
    pub(super) flows: Flows,
    /// For each trigger, the host where it is activated.
    pub(super) homes: Arc<[u32]>,
    pub(super) scratch: SwitchScratch,
    pub(super) env: HostEnv,
    /// Keeps the events of the hosts' endpoints, if the run is traced.
    pub(super) recorder: Option<Recorder>,
    /// The RTTs of the hosts' endpoints, if they are measured.
    pub(super) rtts: Option<SharedRtts>,
    /// Packets that arrived at the end of a link, timers that expired, flows that started.
    pub(super) events: u64,
}

/// The two sides of a fabric. Every link joins a node of one side to a node of the other, unless all nodes are on the
/// even one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// Hosts, and the switches at an even number of links from them.
    Even,
    /// The switches at an odd number of links from hosts: ToRs, and cores.
    Odd,
}

impl Side {
    pub(super) fn other(self) -> Side {
        match self {
            Side::Even => Side::Odd,
            Side::Odd => Side::Even,
        }
    }
}

/// The samples of one shard at one instant.
#[derive(Default)]
pub(super) struct Samples {
    pub(super) ports: Vec<PortSample>,
    pub(super) flows: Vec<FlowSample>,
}

impl Shard {
    /// Sets the time of the first event of each node.
    pub(super) fn prepare(&mut self) {
        for (node, group) in self.groups.iter().enumerate() {
            let first = group.hosts.iter().map(|host| host.next_event(&self.wires).0).min();
            self.wires.next[node] = first.unwrap_or(NEVER);
        }
    }

    /// Measures the totals of switches' queues and RTTs from now on; the latter once [`subscribe`](Self::subscribe) is
    /// called.
    pub(super) fn measure(&mut self) {
        self.scratch.changes = Some(Changes::default());
        self.switches.iter_mut().for_each(|switch| switch.total = Some(Total::default()));
        self.rtts = Some(SharedRtts::default());
    }

    /// Subscribes to the events of the endpoints for RTTs, if they are measured, and for the events of `traced`.
    pub(super) fn subscribe(&mut self, traced: Option<&Arc<Selection>>) {
        self.recorder = traced.map(|selection| Recorder::new(Arc::clone(selection)));
        for host in self.groups.iter_mut().flat_map(|group| &mut group.hosts) {
            let recorder = self.recorder.as_ref().and_then(|recorder| recorder.subscriber(host.id));
            let subscriber = match &self.rtts {
                Some(rtts) => Some(rtts.subscriber(recorder)),
                None => recorder,
            };
            if let Some(subscriber) = subscriber {
                host.fep.subscribe(subscriber);
            }
        }
    }

    /// The time of the first event in this shard.
    pub(super) fn first(&self) -> u64 {
        self.wires.next.iter().copied().min().unwrap_or(NEVER)
    }

    /// Runs the nodes of one side through the window from `start` to just before `end`. Returns a lower bound
    /// for the time of the next event, here or at the other shards to which this one has sent packets.
    pub(super) fn run(&mut self, side: Side, start: u64, end: u64) -> u64 {
        let (all, odd) = (self.wires.next.len(), self.first_odd);
        let (nodes, others) = match side {
            // Nodes of one side may have sent packets to each other.
            Side::Even if odd == all => (0..all, 0..all),
            Side::Even => (0..odd, odd..all),
            Side::Odd => (odd..all, 0..odd),
        };
        self.wires.bring_near(end);
        let mut earliest = NEVER;
        for node in nodes {
            self.prefetch(node, end);
            let mut next = self.wires.next[node];
            if next < end {
                next = match node.checked_sub(self.groups.len()) {
                    None => self.run_group(node, end),
                    Some(switch) => self.run_switch(switch, start, end),
                };
                self.wires.next[node] = next;
            }
            earliest = earliest.min(next);
        }
        let others = self.wires.next[others].iter().copied().min().unwrap_or(NEVER);
        earliest.min(others).min(self.wires.take_earliest()).min(self.wires.first_far())
    }

    /// Prefetches the state of the nodes that follow `node`.
    #[inline]
    fn prefetch(&self, node: usize, end: u64) {
        let busy = |ahead: usize| {
            let node = node + ahead;
            let group = self.groups.get(node)?;
            (self.wires.next[node] < end).then_some(group)
        };
        if let Some(group) = busy(6) {
            self.wires.prefetch(group.inbox);
            group.hosts[0].prefetch();
        }
        if let Some(group) = busy(3) {
            group.hosts[0].prefetch_arrivals(end, &self.wires);
        }
    }

    fn run_switch(&mut self, switch: usize, start: u64, end: u64) -> u64 {
        let next = self.switches[switch].run(start, end, &mut self.scratch, &mut self.wires);
        self.events += self.scratch.arrivals;
        next
    }

    fn run_group(&mut self, group: usize, end: u64) -> u64 {
        match self.groups[group].hosts.len() {
            1 => self.run_host(group, end),
            _ => self.run_hosts(group, end),
        }
    }

    fn run_host(&mut self, group: usize, end: u64) -> u64 {
        let Shard { groups, wires, flows, env, events, .. } = self;
        let host = &mut groups[group].hosts[0];
        wires.sort(host.inbox);
        loop {
            let (at, event) = host.next_event(wires);
            if at >= end {
                wires.tidy(host.inbox);
                return at;
            }
            *events += u64::from(event != HostEvent::LinkFree);
            host.handle(at, event, env, flows, wires);
            while !flows.started.is_empty() {
                for slot in std::mem::take(&mut flows.started) {
                    *events += 1;
                    host.start(at, slot, env, flows, wires);
                }
            }
            if !flows.delayed.is_empty() {
                flows.delayed.drain(..).for_each(|(at, begin)| host.note(at, begin));
            }
        }
    }

    /// Does the same as [`Shard::run_host`] for hosts that start each other's flows: processes the events of
    /// all of them in time order.
    fn run_hosts(&mut self, group: usize, end: u64) -> u64 {
        let Shard { groups, wires, flows, env, events, homes, .. } = self;
        let hosts = &mut groups[group].hosts;
        hosts.iter().for_each(|host| wires.sort(host.inbox));
        let entry = |index: usize, host: &Host, wires: &Wires| {
            let (at, event) = host.next_event(wires);
            Reverse((at, event, index))
        };
        let mut agenda: BinaryHeap<_> =
            hosts.iter().enumerate().map(|(index, host)| entry(index, host, wires)).collect();
        while let Some(Reverse((at, event, index))) = agenda.pop() {
            if hosts[index].next_event(wires) != (at, event) {
                // The entry is stale: another event of this host has become the next one.
                continue;
            }
            if at >= end {
                hosts.iter().for_each(|host| wires.tidy(host.inbox));
                return at;
            }
            *events += u64::from(event != HostEvent::LinkFree);
            hosts[index].handle(at, event, env, flows, wires);
            agenda.push(entry(index, &hosts[index], wires));
            while !flows.started.is_empty() {
                for slot in std::mem::take(&mut flows.started) {
                    let source = flows.source(slot);
                    let Ok(index) = hosts.binary_search_by_key(&source, |host| host.id) else { continue };
                    *events += 1;
                    hosts[index].start(at, slot, env, flows, wires);
                    agenda.push(entry(index, &hosts[index], wires));
                }
            }
            for (at, begin) in std::mem::take(&mut flows.delayed) {
                let host = flows.host_of(begin, homes);
                let Ok(index) = hosts.binary_search_by_key(&host, |host| host.id) else { continue };
                hosts[index].note(at, begin);
                agenda.push(entry(index, &hosts[index], wires));
            }
        }
        hosts.iter().for_each(|host| wires.tidy(host.inbox));
        NEVER
    }

    /// Applies a change to a link if its sending end is in this shard.
    pub(super) fn change(&mut self, spec: &LinkSpec, change: LinkChange) {
        let host = self.groups.iter_mut().flat_map(|group| &mut group.hosts).find(|host| host.id == spec.id);
        if let Some(host) = host {
            return host.change(spec, change);
        }
        let ours = |switch: &&mut Switch| {
            (switch.first_port..switch.first_port + switch.ports.len() as u32).contains(&spec.id)
        };
        if let Some(switch) = self.switches.iter_mut().find(ours) {
            switch.change(spec, change);
        }
    }

    /// Appends the samples of this shard.
    pub(super) fn sample(&mut self, samples: &mut Samples) {
        self.groups.iter_mut().flat_map(|group| &mut group.hosts).for_each(|h| h.sample(&mut samples.ports));
        self.switches.iter_mut().for_each(|switch| switch.sample(&mut samples.ports));
        self.flows.sample(&mut samples.flows);
        for host in self.groups.iter().flat_map(|group| &group.hosts) {
            self.flows.sample_senders(&host.fep, &mut samples.flows);
        }
    }
}
