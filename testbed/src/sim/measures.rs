//! What links, switches and flows have met in a run: queues over time, and packets trimmed, marked and lost.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use rustc_hash::FxHasher;
use weft_cc::{Span, Time};

use super::build::System;
use super::config::RunConfig;
use super::faults::LinkChange;
use super::host::Host;
use super::report::FlowRecord;
use super::switches::Switch;
use crate::goal::Job;
use crate::topology::{HostId, PortId, SwitchId, Topology};

/// Measures of the links, switches and flows of a simulation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measures {
    /// The time that means are taken over: the length of the run.
    pub time: Span,
    /// The links, by port.
    pub links: Vec<LinkMeasures>,
    /// The data queues of each priority, by port and priority; none where switches have one priority.
    pub priorities: Vec<PriorityMeasures>,
    /// The switches, by number.
    pub switches: Vec<SwitchMeasures>,
    /// The flows that have begun and not completed, and the last packet that each has lost, in the order of the workload.
    pub unfinished: Vec<Unfinished>,
}

/// Measures of a directed link and of the queue before it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkMeasures {
    /// The sending port.
    pub port: PortId,
    /// Bytes of all packets sent, with all overhead.
    pub sent_bytes: u64,
    /// The greatest length of the data queue that lasted for any time, bytes. The queue of a host is in its endpoint
    /// and counts as empty.
    pub queue_max_bytes: u64,
    /// The mean length of the data queue over time, bytes.
    pub queue_mean_bytes: f64,
    /// Packets that the queue has trimmed.
    pub trimmed: u64,
    /// Packets that found no room in the queue and were dropped.
    pub dropped: u64,
    /// Packets that the link has lost.
    pub lost: u64,
    /// Packets that were marked as they left the queue.
    pub marked: u64,
}

/// Measures of the data queue of one priority at a port of a switch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PriorityMeasures {
    /// The port.
    pub port: PortId,
    /// The priority, from 0.
    pub priority: u8,
    /// The greatest length that lasted for any time, bytes.
    pub queue_max_bytes: u64,
    /// The mean length over time, bytes.
    pub queue_mean_bytes: f64,
}

/// Measures of all data queues of a switch together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SwitchMeasures {
    /// The switch.
    pub switch: SwitchId,
    /// The greatest sum of the lengths that lasted for any time, bytes; `None` unless
    /// [`Options::measure`](super::Options::measure) is set.
    pub queue_max_bytes: Option<u64>,
    /// The mean of the sum over time, bytes.
    pub queue_mean_bytes: f64,
}

/// A flow that has not completed, or a message between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// Its index in [`RunReport::flows`](super::RunReport::flows).
    pub flow: u32,
    /// The loss of its last packet that was lost, if any was; of a message, the loss of the last packet from its rank to the
    /// other rank. Packets that arrived damaged, and those of acknowledgements,
    /// do not count.
    pub last_loss: Option<Loss>,
}

/// The loss of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// When it was dropped by a queue, or when it would have arrived at the other end of a link that lost it.
    pub at: Time,
    /// The port that dropped it or whose link lost it.
    pub port: PortId,
    /// Since when that link is down; `None` if it is up at the end of the run.
    pub down_since: Option<Time>,
}

/// The time, ps, and the port of the last loss of each flow that has lost packets, or of each pair of ranks.
#[derive(Default)]
pub(super) struct LastLosses(HashMap<u64, (u64, u32), BuildHasherDefault<FxHasher>>);

impl LastLosses {
    pub(super) fn note(&mut self, flow: u64, at: u64, port: u32) {
        let last = self.0.entry(flow).or_default();
        *last = (*last).max((at, port));
    }

    fn of(&self, key: u64) -> Option<(u64, u32)> {
        self.0.get(&key).copied()
    }
}

/// The key of messages from one rank to another, by their hosts and processes. Hosts have numbers of 20 bits, processes of 12.
pub(super) fn pair_of(from: (u32, u16), to: (u32, u16)) -> u64 {
    let half = |(host, process): (u32, u16)| u64::from(host << 12 | u32::from(process));
    half(from) << 32 | half(to)
}

/// The key of flow `index`, or of message `index` between ranks.
fn key_of(job: Option<&Job>, index: u32) -> u64 {
    let message = job.and_then(|job| Some((job, job.message(index as usize)?)));
    message.map_or(index.into(), |(job, message)| {
        let place = |rank| (job.host_of(rank), job.process_of(rank));
        pair_of(place(message.from), place(message.to))
    })
}

/// The measures of a run that ended at `end`, ps. `hosts` are in order.
pub(super) fn measures(
    config: &RunConfig,
    system: &System,
    hosts: &[&Host],
    flows: &[FlowRecord],
    end: u64,
) -> Measures {
    let topology = &config.topology;
    let mut switches: Vec<&Switch> = system.shards.iter().flat_map(|shard| &shard.switches).collect();
    switches.sort_unstable_by_key(|switch| switch.first_port);
    let nics = hosts.iter().map(|host| LinkMeasures {
        port: topology.nic(HostId(host.id)),
        sent_bytes: host.nic.sent_bytes(),
        queue_max_bytes: 0,
        queue_mean_bytes: 0.0,
        trimmed: 0,
        dropped: 0,
        lost: host.nic.faults().lost,
        marked: 0,
    });
    let mut links: Vec<LinkMeasures> =
        nics.chain(switches.iter().flat_map(|switch| ports(switch, end))).collect();
    links.sort_unstable_by_key(|link| link.port);
    let priorities = switches.iter().flat_map(|switch| priorities(switch, end)).collect();
    let mut switches: Vec<SwitchMeasures> =
        switches.iter().map(|switch| whole(switch, topology, end)).collect();
    switches.sort_unstable_by_key(|switch| switch.switch);
    let unfinished = unfinished(config, system, flows, end);
    Measures { time: Span::from_ps(end), links, priorities, switches, unfinished }
}

fn ports(switch: &Switch, end: u64) -> impl Iterator<Item = LinkMeasures> {
    switch.ports.iter().zip(switch.first_port..).map(move |(port, id)| {
        let (counters, occupancy) = (port.queue.counters(), port.queue.occupancy(end));
        LinkMeasures {
            port: PortId(id),
            sent_bytes: port.link.sent_bytes(),
            queue_max_bytes: occupancy.longest(),
            queue_mean_bytes: occupancy.mean(),
            trimmed: counters.trimmed,
            dropped: counters.dropped,
            lost: port.link.faults().lost,
            marked: counters.marked,
        }
    })
}

fn priorities(switch: &Switch, end: u64) -> impl Iterator<Item = PriorityMeasures> {
    let ports = switch.ports.iter().zip(switch.first_port..);
    ports.flat_map(move |(port, id)| {
        (0..).zip(port.queue.occupancies(end)).map(move |(priority, occupancy)| PriorityMeasures {
            port: PortId(id),
            priority,
            queue_max_bytes: occupancy.longest(),
            queue_mean_bytes: occupancy.mean(),
        })
    })
}

fn whole(switch: &Switch, topology: &Topology, end: u64) -> SwitchMeasures {
    let integral: u128 = switch.ports.iter().map(|port| port.queue.occupancy(end).integral()).sum();
    SwitchMeasures {
        switch: owner(topology, switch),
        queue_max_bytes: switch.total.map(|total| total.longest(end)),
        queue_mean_bytes: if end == 0 { 0.0 } else { integral as f64 / end as f64 },
    }
}

fn owner(topology: &Topology, switch: &Switch) -> SwitchId {
    match topology.port(PortId(switch.first_port)).owner {
        crate::topology::Node::Switch(switch) => switch,
        crate::topology::Node::Host(_) => unreachable!("the ports of hosts come before those of switches"),
    }
}

fn unfinished(config: &RunConfig, system: &System, flows: &[FlowRecord], end: u64) -> Vec<Unfinished> {
    let of = |index: u32| {
        let key = key_of(config.job.as_deref(), index);
        let losses = system.shards.iter().map(|shard| &shard.wires.packets.losses);
        let (at, port) = losses.filter_map(|losses| losses.of(key)).max()?;
        let down_since = down_since(system, port, end);
        Some(Loss { at: Time::from_ps(at), port: PortId(port), down_since })
    };
    // Flows that have not begun have lost nothing, and there may be millions of them.
    let open = flows.iter().zip(0..).filter(|(flow, _)| flow.start.is_some() && flow.end.is_none());
    open.map(|(_, flow)| Unfinished { flow, last_loss: of(flow) }).collect()
}

/// Since when the link behind `port` is down at `end`.
fn down_since(system: &System, port: u32, end: u64) -> Option<Time> {
    let mut down = None;
    for (at, spec, change) in system.changes.iter().filter(|(at, ..)| *at <= end) {
        match change {
            LinkChange::Fail if spec.id == port => down = down.or(Some(Time::from_ps(*at))),
            LinkChange::Restore if spec.id == port => down = None,
            _ => {}
        }
    }
    down
}
