//! Builds the shards of a run from its topology and workload.

use std::collections::BTreeMap;
use std::sync::Arc;

use weft_cc::{Rate, Span, Time};
use weft_stack::fep::{Fep, FepConfig};
use weft_stack::packet::Addr;
use weft_stack::rng::Rng;

use super::config::{MIN_FRAME, Overhead, RunConfig, RunError};
use super::faults::{FaultPlan, LinkChange, LinkDirections, LinkEvent, LinkFaults, Share};
use super::flows::Flows;
use super::host::{Host, HostEnv};
use super::link::{Link, LinkSpec};
use super::packets::{MAX_SHARDS, Packets};
use super::ranks::Ranks;
use super::receiver::Receiver;
use super::shard::{Group, Shard, Side};
use super::sides::Sides;
use super::switches::{Port, Switch, SwitchScratch, longest_window, rank_bits};
use super::wires::{Inlet, Wires};
use crate::switch::{EgressQueue, Hasher, QueueConfig, Steering};
use crate::topology::{HostId, Node, PortId, PortSpec, SwitchId, Topology};
use crate::workload::{Start, TriggerIdx, Workload};

/// The state of a run at its start.
pub(super) struct System {
    pub(super) shards: Vec<Shard>,
    /// The shortest time, in ps, after which an event at one node can affect another.
    pub(super) lookahead: u64,
    /// Whether links join nodes of the same side.
    pub(super) one_side: bool,
    /// Changes of links, in time order.
    pub(super) changes: Vec<(u64, LinkSpec, LinkChange)>,
    /// Whether the run goes on until nothing happens any more: see [`Options::settle`](super::Options::settle).
    pub(super) settles: bool,
}

/// The location of each node.
struct Locations {
    hosts: Vec<Location>,
    switches: Vec<Location>,
    /// Groups of hosts in each shard, by the shard's own numbers.
    groups: Vec<Vec<Vec<u32>>>,
    /// For each trigger, the host where it is activated.
    homes: Arc<[u32]>,
}

/// The shard of a host or switch, and its numbers within the shard.
#[derive(Clone, Copy, Default)]
struct Location {
    shard: u32,
    node: u32,
    inbox: u32,
}

/// Builds the system for `threads` threads, or fewer if the fabric has fewer ToRs.
pub(super) fn build(
    config: &RunConfig,
    faults: &FaultPlan,
    threads: usize,
    sampling: bool,
) -> Result<System, RunError> {
    let topology = &config.topology;
    if config.job.is_some() && !config.workload.flows().is_empty() {
        return Err(RunError::FlowsAndRanks);
    }
    let (needed, present) = (config.hosts(), topology.hosts());
    if needed > present {
        return Err(RunError::Hosts { needed, present });
    }
    config.check_ports()?;
    let links = Links::new(config, faults);
    let changes = changes(&links, &faults.events)?;
    let lookahead = lookahead(&links, &changes).ok_or(RunError::NoLatency)?;
    let blocks = if topology.is_graph() { topology.switches() } else { topology.switches_in(0) };
    let shards = threads.clamp(1, blocks.clamp(1, MAX_SHARDS as u32) as usize);
    let sides = Sides::of(topology);
    let locations = Locations::new(topology, &config.workload, shards, &sides);
    let builder = Builder::new(links, &locations, &sides, lookahead, sampling)?;
    let shards = (0..shards as u32).map(|shard| builder.shard(shard)).collect::<Result<_, _>>()?;
    Ok(System { shards, lookahead, one_side: sides.is_one(), changes, settles: false })
}

/// The links in their state at the start of the run.
pub(crate) struct Links<'a> {
    config: &'a RunConfig,
    faults: LinkFaults,
    /// Sending ports that are slower than in the topology.
    slow: BTreeMap<PortId, Share>,
}

impl<'a> Links<'a> {
    pub(crate) fn new(config: &'a RunConfig, faults: &FaultPlan) -> Links<'a> {
        let slow = faults.slow.iter().map(|slow| (slow.port, slow.share)).collect();
        Links { config, faults: faults.all_links, slow }
    }

    /// The fraction that remains of the rate of the link behind `port`.
    fn share(&self, port: PortId) -> Share {
        self.slow.get(&port).copied().unwrap_or(Share::WHOLE)
    }

    /// The remaining rate of the link behind `port`.
    fn rate(&self, port: PortId) -> Rate {
        let rate = self.config.topology.port(port).rate;
        Rate::from_bps(self.share(port).of(rate.as_bps()).max(1))
    }

    /// The fixed properties of the link behind `port`.
    pub(crate) fn spec(&self, port: PortId) -> LinkSpec {
        let topology = &self.config.topology;
        let spec = topology.port(port);
        let switching = match spec.peer {
            Node::Switch(switch) => topology.switch_latency(switch),
            Node::Host(_) => Span::ZERO,
        };
        let latency = (spec.latency + switching).as_ps();
        LinkSpec { id: port.0, rate: self.rate(port), latency, faults: self.faults }
    }

    /// The queue configuration of `port`.
    pub(crate) fn queue(&self, port: PortId) -> QueueConfig {
        self.config.queue(port, self.rate(port), self.share(port))
    }
}

/// The failures of the workload and `events`, for each direction of a link, in time order.
pub(crate) fn changes(
    links: &Links<'_>,
    events: &[LinkEvent],
) -> Result<Vec<(u64, LinkSpec, LinkChange)>, RunError> {
    let topology = &links.config.topology;
    let mut all = Vec::new();
    for failure in links.config.workload.failures() {
        let (tier, switch, link) = (failure.tier, failure.switch, failure.link);
        let port = topology.link_at(tier, switch, link);
        let port = port.ok_or(RunError::NoSuchLink { tier, switch, link })?;
        let link = LinkDirections::Both(port);
        all.push(LinkEvent { at: Time::ZERO, link, change: LinkChange::Fail });
    }
    all.extend_from_slice(events);
    for event in &all {
        event.change.check(event.link, topology, links.config.trim)?;
    }
    all.sort_by_key(|event| event.at.as_ps());
    let each = all.iter().flat_map(|event| {
        let ports = event.link.ports(topology);
        ports.map(|port| (event.at.as_ps(), links.spec(port), event.change))
    });
    Ok(each.collect())
}

/// The lookahead: the time that the smallest packet takes over the fastest and shortest link, ps. `None` if
/// it is zero.
fn lookahead(links: &Links<'_>, changes: &[(u64, LinkSpec, LinkChange)]) -> Option<u64> {
    let topology = &links.config.topology;
    let specs = (0..topology.ports().len() as u32).map(|id| links.spec(PortId(id)));
    let (latency, rate) = specs.fold((u64::MAX, None), |(latency, rate), link| {
        (latency.min(link.latency), rate.max(Some(link.rate)))
    });
    let degraded = changes.iter().filter_map(|(_, _, change)| match change {
        LinkChange::Degrade(rate) => Some(*rate),
        _ => None,
    });
    let smallest = match links.config.wire_overhead {
        Overhead::Fixed(bytes) => bytes,
        Overhead::Auto => MIN_FRAME,
    };
    let fastest = rate.into_iter().chain(degraded).max()?;
    let lookahead = latency + fastest.time_for(u64::from(smallest)).as_ps();
    let ports = (0..topology.switches()).map(|s| topology.ports_of(SwitchId(s)).count).max().unwrap_or(0);
    // Windows are twice as long as the lookahead.
    (lookahead > 0).then(|| lookahead.min(longest_window(ports) / 2))
}

/// The number of a switch among those that are distributed together, and how many they are: those of its tier, or in a
/// graph all.
fn position(topology: &Topology, switch: SwitchId) -> (u32, u32) {
    match topology.place(switch) {
        Some(place) => (place.index, topology.switches_in(place.tier)),
        None => (switch.0, topology.switches()),
    }
}

impl Locations {
    /// Distributes the nodes: blocks of ToRs with their hosts, and the switches above evenly; in a graph, blocks of
    /// switches with their hosts.
    fn new(topology: &Topology, workload: &Workload, shards: usize, sides: &Sides) -> Locations {
        let of = |switch: SwitchId| {
            let (index, count) = position(topology, switch);
            (u64::from(index) * shards as u64 / u64::from(count)) as u32
        };
        let (leaders, homes) = leaders(topology.hosts(), workload);
        let mut groups = vec![Vec::new(); shards];
        let mut hosts: Vec<Location> = Vec::with_capacity(topology.hosts() as usize);
        let mut inboxes = vec![0; shards];
        for host in 0..topology.hosts() {
            let leader = leaders[host as usize];
            let shard = match hosts.get(leader as usize) {
                Some(leader) => leader.shard,
                None => of(topology.tor_of(HostId(host))),
            };
            let (groups, inbox) = (&mut groups[shard as usize], &mut inboxes[shard as usize]);
            let node = hosts.get(leader as usize).map_or(groups.len() as u32, |leader| leader.node);
            match leader == host {
                true => groups.push(vec![host]),
                false => groups[node as usize].push(host),
            }
            hosts.push(Location { shard, node, inbox: *inbox });
            *inbox += 1;
        }
        let mut nodes: Vec<u32> = groups.iter().map(|groups| groups.len() as u32).collect();
        let mut switches = vec![Location::default(); topology.switches() as usize];
        for switch in sides.in_order() {
            let shard = of(switch);
            let (node, inbox) = (&mut nodes[shard as usize], &mut inboxes[shard as usize]);
            switches[switch.0 as usize] = Location { shard, node: *node, inbox: *inbox };
            *node += 1;
            *inbox += 1;
        }
        Locations { hosts, switches, groups, homes: homes.into() }
    }

    /// The receiving end of the link behind `port`.
    fn inlet(&self, topology: &Topology, port: &PortSpec) -> Inlet {
        let (location, rank) = match port.peer {
            Node::Host(host) => (self.hosts[host.0 as usize], 0),
            Node::Switch(switch) => {
                let ports = topology.ports_of(switch);
                (self.switches[switch.0 as usize], port.reverse.0 - ports.first.0)
            }
        };
        Inlet { shard: location.shard, node: location.node, inbox: location.inbox, rank }
    }
}

/// For each host, the first host of its group, and for each trigger, a host of the group where it is activated. Two hosts
/// belong together if flows of one are started by flows that end at the other, because that takes no time.
fn leaders(hosts: u32, workload: &Workload) -> (Vec<u32>, Vec<u32>) {
    let mut leaders: Vec<u32> = (0..hosts).collect();
    fn find(leaders: &mut [u32], mut host: u32) -> u32 {
        while leaders[host as usize] != host {
            leaders[host as usize] = leaders[leaders[host as usize] as usize];
            host = leaders[host as usize];
        }
        host
    }
    let mut member = vec![u32::MAX; workload.triggers().len()];
    let mut join = |known: &mut u32, host: u32| {
        if *known == u32::MAX {
            *known = host;
        }
        let (a, b) = (find(&mut leaders, *known), find(&mut leaders, host));
        leaders[a.max(b) as usize] = a.min(b);
    };
    for flow in workload.flows() {
        let started = match flow.start {
            Start::Trigger(trigger) => Some((trigger, flow.src.0)),
            Start::At(_) => None,
        };
        let sent = flow.on_sent.map(|trigger| (trigger, flow.src.0));
        let received = flow.on_received.map(|trigger| (trigger, flow.dst.0));
        for (trigger, host) in [started, sent, received].into_iter().flatten() {
            join(&mut member[trigger.index()], host);
        }
    }
    join_chains(workload, &mut member, join);
    let leaders: Vec<u32> = (0..hosts).map(|host| find(&mut leaders, host)).collect();
    (leaders, member)
}

/// Joins triggers that activate each other. `member` has a host of each, or [`u32::MAX`] where there is none yet.
fn join_chains(workload: &Workload, member: &mut [u32], mut join: impl FnMut(&mut u32, u32)) {
    let next = |i: usize| workload.triggers()[i].then.map(TriggerIdx::index);
    for first in 0..member.len() {
        // The triggers from here on that have no host get that of the first one that has, so that no chain is walked
        // twice. Those that lead to no flow get host 0.
        let mut end = first;
        for _ in 0..member.len() {
            match next(end).filter(|_| member[end] == u32::MAX) {
                Some(then) => end = then,
                None => break,
            }
        }
        let host = if member[end] == u32::MAX { 0 } else { member[end] };
        let mut at = Some(first);
        while let Some(trigger) = at.filter(|at| member[*at] == u32::MAX) {
            member[trigger] = host;
            at = next(trigger);
        }
    }
    for i in 0..member.len() {
        let host = member[i];
        if let Some(then) = next(i) {
            join(&mut member[then], host);
        }
    }
}

/// The seed of a port's generator for marks.
pub(crate) fn mark_seed(seed: u64, port: PortId) -> u64 {
    seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ u64::from(port.0) << 32
}

struct Builder<'a> {
    config: &'a RunConfig,
    links: Links<'a>,
    locations: &'a Locations,
    sides: &'a Sides,
    lookahead: u64,
    endpoint: Arc<FepConfig>,
    /// For each port, the receiving end of its link.
    inlets: Vec<Inlet>,
    queues: Vec<QueueConfig>,
    /// For each port, the index of its queue configuration.
    queue_of: Vec<u8>,
    /// The shard of each host.
    shard_of: Arc<[u16]>,
    sampling: bool,
}

impl<'a> Builder<'a> {
    fn new(
        links: Links<'a>,
        locations: &'a Locations,
        sides: &'a Sides,
        lookahead: u64,
        sampling: bool,
    ) -> Result<Builder<'a>, RunError> {
        let config = links.config;
        let topology = &config.topology;
        let inlets = topology.ports().iter().map(|port| locations.inlet(topology, port)).collect();
        let mut queues = Vec::new();
        let queue_of = (0..topology.ports().len() as u32).map(|id| {
            let queue = links.queue(PortId(id));
            let index = queues.iter().position(|other| *other == queue).unwrap_or_else(|| {
                queues.push(queue);
                queues.len() - 1
            });
            u8::try_from(index).map_err(|_| RunError::QueueKinds)
        });
        let queue_of = queue_of.collect::<Result<_, _>>()?;
        let endpoint = Arc::new(config.endpoint());
        let shard_of = locations.hosts.iter().map(|location| location.shard as u16).collect();
        Ok(Builder {
            config,
            links,
            locations,
            sides,
            lookahead,
            endpoint,
            inlets,
            queues,
            queue_of,
            shard_of,
            sampling,
        })
    }

    fn shard(&self, shard: u32) -> Result<Shard, RunError> {
        let config = self.config;
        let groups = &self.locations.groups[shard as usize];
        let switches: Vec<SwitchId> =
            self.sides.in_order().filter(|s| self.locations.switches[s.0 as usize].shard == shard).collect();
        let is_even = |s: &SwitchId| self.sides.side(*s) == Side::Even;
        let first_odd = groups.len() + switches.iter().filter(|s| is_even(s)).count();
        let nodes = groups.len() + switches.len();
        let hosts: usize = groups.iter().map(Vec::len).sum();
        let inboxes = hosts + switches.len();
        let is_ours = |host: u32| self.locations.hosts[host as usize].shard == shard;
        let mut flows = Flows::new(config, is_ours, self.sampling);
        let group = |hosts: &Vec<u32>| {
            let hosts = hosts.iter().map(|host| self.host(*host)).collect::<Result<Vec<_>, _>>()?;
            let inbox = hosts.first().map_or(0, |host| host.inbox);
            Ok::<_, RunError>(Group { hosts, inbox })
        };
        let mut groups = groups.iter().map(group).collect::<Result<Vec<_>, _>>()?;
        let activations = flows.activations(&self.locations.homes).filter(|(.., home)| is_ours(*home));
        for (at, begin, source) in flows.starts().chain(activations) {
            let hosts = &mut groups[self.locations.hosts[source as usize].node as usize].hosts;
            if let Ok(index) = hosts.binary_search_by_key(&source, |host| host.id) {
                hosts[index].starts.push((at, begin));
            }
        }
        for host in groups.iter_mut().flat_map(|group| &mut group.hosts) {
            // The next flow to start is the last entry.
            host.starts.sort_unstable_by(|a, b| b.cmp(a));
            host.starts.shrink_to_fit();
            if let Some(ranks) = &host.ranks {
                flows.open += 1;
                host.starts = ranks.next().into_iter().collect();
            }
        }
        let packets =
            Packets::new(shard, self.locations.groups.len(), self.shard_of.clone(), config.job.is_some());
        let mut shard = Shard {
            groups,
            switches: switches.into_iter().map(|switch| self.switch(switch)).collect(),
            first_odd,
            wires: Wires::new(shard, packets, nodes, inboxes, self.lookahead),
            flows,
            homes: self.locations.homes.clone(),
            scratch: SwitchScratch::new(self.queues.clone(), config.seed),
            env: HostEnv {
                shard,
                overhead: config.wire_overhead,
                routing: config.routing,
                seed: config.seed,
                sampling: self.sampling,
                runs_ranks: config.job.is_some(),
            },
            recorder: None,
            rtts: None,
            events: 0,
        };
        shard.prepare();
        Ok(shard)
    }

    fn host(&self, id: u32) -> Result<Host, RunError> {
        let config = self.config;
        let rng = Rng::new(config.seed, u64::from(id));
        let mut fep = Fep::new(Addr(id), self.endpoint.clone(), rng, Time::ZERO)?;
        let job = config.job.as_ref().filter(|job| id < job.hosts());
        Ok(Host {
            id,
            ranks: job.map(|job| Ranks::new(config, job, id, &mut fep)).transpose()?.map(Box::new),
            fep,
            nic: self.link(config.topology.nic(HostId(id))),
            sampled_bytes: 0,
            inbox: self.locations.hosts[id as usize].inbox,
            distances: config.topology.distances(HostId(id)),
            starts: Vec::new(),
            dropped: 0,
            receiver: config.host.map(|model| Box::new(Receiver::new(model))),
            last_hop: config.topology.port(config.topology.nic(HostId(id))).reverse.0,
            now: 0,
        })
    }

    fn switch(&self, id: SwitchId) -> Switch {
        let topology = &self.config.topology;
        let ports = topology.ports_of(id);
        Switch {
            first_port: ports.first.0,
            router: topology.router(id),
            hasher: Hasher::new(self.config.seed, id.0),
            steering: Steering::new(self.config.routing, self.config.seed, id.0),
            ports: ports.iter().map(|port| self.port(port)).collect(),
            waiting: vec![0; ports.count.div_ceil(64) as usize],
            inbox: self.locations.switches[id.0 as usize].inbox,
            rank_bits: rank_bits(ports.count),
            dropped: 0,
            total: None,
        }
    }

    fn port(&self, id: PortId) -> Port {
        let last_hop = matches!(self.config.topology.port(id).peer, Node::Host(_));
        let config = self.queue_of[id.0 as usize];
        let queue_config = &self.queues[usize::from(config)];
        Port {
            link: self.link(id),
            queue: EgressQueue::new(queue_config, last_hop, mark_seed(self.config.seed, id)),
            sampled_bytes: 0,
            config,
        }
    }

    fn link(&self, port: PortId) -> Link {
        Link::new(&self.links.spec(port), self.inlets[port.0 as usize])
    }
}
