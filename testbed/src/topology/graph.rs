//! Graphs: any hosts, switches and links.
//!
//! A [`GraphSpec`] lists them; [`Topology::from_graph`] checks and numbers them, and makes the router tables.

use std::collections::BTreeMap;
use std::sync::Arc;

use thiserror::Error;
use weft_cc::{Rate, Span};

use super::fabric::{Kind, Topology};
use super::routes::{Cost, MAX_LISTED, MAX_ROUTES, Routes, Ways, Wired};
use super::shape::{MAX_HOSTS, MAX_LATENCY, MAX_PORTS};
use super::{Direction, HostId, Node, PortId, PortSpec, SwitchId};

/// Maximum number of switches on a path. Frames start with a TTL of 64, and a switch forwards none whose TTL it has
/// used up.
pub(super) const MAX_SWITCHES: u16 = 63;
/// Maximum number of classes of ports.
const MAX_CLASSES: usize = 255;

/// The class of ports to hosts, where nothing else is said.
pub(super) const HOST_CLASS: &str = "host";
/// The class of ports to other switches, where nothing else is said.
pub(super) const SWITCH_CLASS: &str = "switch";

/// A switch of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchSpec {
    /// Its name: letters, digits, `_` and `.`, of which the first is a letter.
    pub name: String,
    /// Time from the arrival of a packet at the switch to its arrival in the output queue.
    pub latency: Span,
    /// The index in [`GraphSpec::groups`] of the group that its hosts belong to, if any.
    pub group: Option<u32>,
}

/// A cable of a graph: a link in each direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CableSpec {
    /// Its ends.
    pub ends: [Node; 2],
    /// The rate in each direction.
    pub rate: Rate,
    /// Propagation time.
    pub latency: Span,
    /// The classes of the ports at the two ends; `None`: `host` for a port that leads to a host, `switch` for others. A
    /// host's own port has none.
    pub classes: [Option<String>; 2],
    /// The queues of the ports at the two ends, bytes; those of hosts' ports have no effect.
    pub queues: [Option<u64>; 2],
    /// The ECN marking thresholds of these queues, bytes: no packet is marked up to the first, every one above the
    /// second.
    pub ecn: [Option<(u64, u64)>; 2],
}

impl CableSpec {
    /// A cable between `a` and `b`.
    pub fn new(a: Node, b: Node, rate: Rate, latency: Span) -> CableSpec {
        CableSpec { ends: [a, b], rate, latency, classes: [None, None], queues: [None; 2], ecn: [None; 2] }
    }

    /// The same cable with ports of the given classes.
    pub fn with_classes(self, first: &str, second: &str) -> CableSpec {
        CableSpec { classes: [Some(first.to_owned()), Some(second.to_owned())], ..self }
    }
}

/// The hosts, switches and cables of a graph. Hosts, switches, and the ports of each switch, are numbered in the order
/// of the lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GraphSpec {
    /// The names of the hosts, as those of switches.
    pub hosts: Vec<String>,
    /// The switches.
    pub switches: Vec<SwitchSpec>,
    /// The names of the groups.
    pub groups: Vec<String>,
    /// The cables. Two switches may be joined by several.
    pub cables: Vec<CableSpec>,
}

/// The part of a graph that an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraphPart {
    /// The graph as a whole.
    Whole,
    /// A host, by its index.
    Host(usize),
    /// A switch, by its index.
    Switch(usize),
    /// A cable, by its index.
    Cable(usize),
}

/// Why hosts, switches and cables do not make a fabric.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{reason}")]
pub struct GraphError {
    /// The part that is most likely wrong.
    pub part: GraphPart,
    /// Why it is wrong.
    pub reason: String,
}

fn wrong<T>(part: GraphPart, reason: impl Into<String>) -> Result<T, GraphError> {
    Err(GraphError { part, reason: reason.into() })
}

/// What a graph knows beyond its ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Graph {
    pub(super) host_names: Vec<String>,
    pub(super) switches: Vec<SwitchSpec>,
    pub(super) groups: Vec<String>,
    pub(super) classes: Vec<String>,
    /// Indexed by [`PortId`].
    pub(super) ports: Vec<GraphPort>,
    pub(super) nodes: BTreeMap<String, Node>,
    pub(super) routes: Arc<Routes>,
    /// The two hosts that are furthest apart.
    pub(super) network_pair: (HostId, HostId),
    /// The two hosts of one group that are furthest apart; `None` if no group has two.
    pub(super) group_pair: Option<(HostId, HostId)>,
    pub(super) diameter_hops: u32,
}

/// What a file or a generator says of a port of a graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct GraphPort {
    /// The index of its class; `None` for hosts.
    pub(super) class: Option<u8>,
    pub(super) queue: Option<u64>,
    pub(super) ecn: Option<(u64, u64)>,
}

impl Graph {
    pub(super) fn group_of(&self, host: HostId) -> u32 {
        group_of_switch(&self.switches, self.groups.len(), self.routes.switch_of(host))
    }
}

/// The group of the hosts at a switch: the declared one, or one for the switch alone.
fn group_of_switch(switches: &[SwitchSpec], declared: usize, switch: SwitchId) -> u32 {
    switches[switch.0 as usize].group.unwrap_or(declared as u32 + switch.0)
}

impl Topology {
    /// Builds the fabric `name` of the hosts, switches and cables of `spec`.
    ///
    /// # Errors
    /// [`GraphError`] if hosts have other than one link, or links of different rates; if there is no path between
    /// two hosts, or one of more than 63 switches; if names are not names or occur twice; or if anything is too
    /// large.
    pub fn from_graph(name: impl Into<String>, spec: GraphSpec) -> Result<Topology, GraphError> {
        let nodes = check_names(&spec)?;
        check_sizes(&spec)?;
        for (index, cable) in spec.cables.iter().enumerate() {
            check_cable(&spec, index, cable)?;
        }
        check_hosts(&spec)?;
        let hosts = spec.hosts.len() as u32;
        let (ends, first_port) = number_ports(&spec);
        let ports = wire(&spec, &ends, first_port[spec.switches.len()]);
        let (classes, graph_ports) = classify(&spec, &ends, ports.len())?;
        let wired = Wired { hosts, switches: &spec.switches, ports: &ports, first_port: &first_port };
        check_reachability(&spec, &wired)?;
        let mut extremes = Extremes::new(&spec, &wired);
        let routes = Routes::new(&wired, MAX_LISTED, |target, ways| extremes.look(target, ways));
        let Some(routes) = routes else {
            let reason =
                format!("switches have more than {MAX_LISTED} choices among ports; expected fewer links");
            return wrong(GraphPart::Whole, reason);
        };
        let (hops, network_pair, group_pair) = extremes.finish();
        if hops >= MAX_SWITCHES {
            let [a, b] = [network_pair.0, network_pair.1].map(|host| &spec.hosts[host.0 as usize]);
            let reason = format!(
                "a path of {} switches, as between {a} and {b}; expected at most {MAX_SWITCHES}, as the TTL of frames is 64",
                u32::from(hops) + 1
            );
            return wrong(GraphPart::Whole, reason);
        }
        let GraphSpec { hosts: host_names, switches, groups, .. } = spec;
        let graph = Graph {
            host_names,
            switches,
            groups,
            classes,
            ports: graph_ports,
            nodes,
            routes: Arc::new(routes),
            network_pair,
            group_pair,
            diameter_hops: u32::from(hops) + 2,
        };
        let kind = Kind::Graph(Box::new(graph));
        Ok(Topology { name: name.into(), hosts, ports, first_port, kind })
    }
}

impl Topology {
    /// The hosts, switches and cables of the fabric. A folded Clos becomes a graph with the same numbers of hosts,
    /// switches and ports, the same paths, and no groups.
    pub fn to_graph(&self) -> GraphSpec {
        let name = |node| self.node_name(node);
        let switches = (0..self.switches()).map(SwitchId).map(|switch| SwitchSpec {
            name: name(Node::Switch(switch)),
            latency: self.switch_latency(switch),
            group: self.graph().and_then(|graph| graph.switches[switch.0 as usize].group),
        });
        let classes = self.classes();
        let class = |port| self.class_of(port).map(|class| classes[class].to_owned());
        let cables = self.cables_in_order().into_iter().map(|port| {
            let spec = self.port(port);
            let ends = [port, spec.reverse];
            CableSpec {
                classes: ends.map(class),
                queues: ends.map(|port| self.queue_of(port)),
                ecn: ends.map(|port| self.ecn_of(port)),
                ..CableSpec::new(spec.owner, spec.peer, spec.rate, spec.latency)
            }
        });
        GraphSpec {
            hosts: (0..self.hosts).map(|host| name(Node::Host(HostId(host)))).collect(),
            switches: switches.collect(),
            groups: self.graph().map_or(Vec::new(), |graph| graph.groups.clone()),
            cables: cables.collect(),
        }
    }
}

impl Topology {
    /// One port of each cable, that with the lower number, in an order that agrees with the order of the ports at each
    /// node. There is one in every graph, because its ports have been numbered in the order of its cables, and in every
    /// Clos: hosts first, then tier by tier.
    fn cables_in_order(&self) -> Vec<PortId> {
        let mut cables = Vec::with_capacity(self.ports.len() / 2);
        let mut is_listed = vec![false; self.ports.len()];
        // A cable can be listed if it comes next at both of its ends.
        let comes_next = |port: PortId, is_listed: &[bool]| {
            let at = port.0 as usize;
            let is_first = at == 0 || self.ports[at - 1].owner != self.ports[at].owner;
            !is_listed[at] && (is_first || is_listed[at - 1])
        };
        let nodes = (0..self.hosts)
            .map(PortId)
            .chain((0..self.switches()).map(|switch| PortId(self.first_port[switch as usize])));
        for first in nodes {
            let mut ahead = vec![first];
            while let Some(port) = ahead.pop() {
                if port.0 as usize >= self.ports.len() || is_listed[port.0 as usize] {
                    continue;
                }
                let reverse = self.port(port).reverse;
                if comes_next(port, &is_listed) && comes_next(reverse, &is_listed) {
                    cables.push(port.min(reverse));
                    (is_listed[port.0 as usize], is_listed[reverse.0 as usize]) = (true, true);
                    ahead.extend([PortId(reverse.0 + 1), PortId(port.0 + 1)]);
                }
            }
        }
        cables
    }
}

/// Whether `text` can name a host, a switch or a group. `-`, `>` and `:` join the names of nodes to that of a link.
pub(super) fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'.')
}

/// Whether `text` can name a class of ports.
pub(super) fn is_class(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'))
}

/// What a name may be, to complete the sentence "expected …".
pub(super) const A_NAME: &str = "a name: a letter, then letters, digits, `_` and `.`";

fn check_names(spec: &GraphSpec) -> Result<BTreeMap<String, Node>, GraphError> {
    let mut nodes = BTreeMap::new();
    let hosts = spec.hosts.iter().zip(0..).map(|(name, i)| (name, Node::Host(HostId(i))));
    let switches = spec.switches.iter().zip(0..).map(|(s, i)| (&s.name, Node::Switch(SwitchId(i))));
    for (name, node) in hosts.chain(switches) {
        let part = match node {
            Node::Host(host) => GraphPart::Host(host.0 as usize),
            Node::Switch(switch) => GraphPart::Switch(switch.0 as usize),
        };
        if !is_name(name) {
            return wrong(part, format!("`{name}`: expected {A_NAME}"));
        }
        if nodes.insert(name.clone(), node).is_some() {
            return wrong(
                part,
                format!("there are two nodes called `{name}`; expected a name of its own for each"),
            );
        }
    }
    Ok(nodes)
}

fn check_sizes(spec: &GraphSpec) -> Result<(), GraphError> {
    let (hosts, switches) = (spec.hosts.len() as u64, spec.switches.len() as u64);
    if !(2..=MAX_HOSTS).contains(&hosts) {
        return wrong(GraphPart::Whole, format!("{hosts} hosts; expected 2 to {MAX_HOSTS}"));
    }
    if spec.cables.len() as u64 > MAX_PORTS / 2 {
        let most = MAX_PORTS / 2;
        return wrong(GraphPart::Whole, format!("{} links; expected at most {most}", spec.cables.len()));
    }
    let mut is_target = vec![false; spec.switches.len()];
    for cable in &spec.cables {
        if let [Node::Host(_), Node::Switch(s)] | [Node::Switch(s), Node::Host(_)] = cable.ends
            && let Some(target) = is_target.get_mut(s.0 as usize)
        {
            *target = true;
        }
    }
    let targets = is_target.into_iter().filter(|is| *is).count() as u64;
    if switches.saturating_mul(targets) > MAX_ROUTES {
        let reason = format!(
            "{switches} switches, {targets} of them with hosts, need {} routes; expected at most {MAX_ROUTES}",
            switches.saturating_mul(targets)
        );
        return wrong(GraphPart::Whole, reason);
    }
    for (index, switch) in spec.switches.iter().enumerate() {
        if switch.latency > MAX_LATENCY {
            return wrong(GraphPart::Switch(index), too_slow("switch"));
        }
    }
    Ok(())
}

fn too_slow(what: &str) -> String {
    format!("the latency of a {what} must be at most {} s", MAX_LATENCY.as_secs_f64())
}

fn check_cable(spec: &GraphSpec, index: usize, cable: &CableSpec) -> Result<(), GraphError> {
    let part = GraphPart::Cable(index);
    let exists = |node: &Node| match *node {
        Node::Host(host) => (host.0 as usize) < spec.hosts.len(),
        Node::Switch(switch) => (switch.0 as usize) < spec.switches.len(),
    };
    if !cable.ends.iter().all(exists) {
        return wrong(part, "the link ends at a node that does not exist");
    }
    if let [Node::Host(_), Node::Host(_)] = cable.ends {
        return wrong(part, "a link joins two hosts; expected a switch at one end at least");
    }
    if cable.ends[0] == cable.ends[1] {
        return wrong(part, "a link leads from a switch to itself; expected two different ends");
    }
    if cable.rate == Rate::from_bps(0) {
        return wrong(part, "the rate of a link must be above zero");
    }
    if cable.latency > MAX_LATENCY {
        return wrong(part, too_slow("link"));
    }
    if cable.ecn.iter().flatten().any(|(low, high)| low > high) {
        return wrong(part, "ECN marking begins above the length from which every packet is marked");
    }
    if cable.queues.contains(&Some(0)) {
        return wrong(part, "a queue of 0 bytes holds no packet; expected more");
    }
    if let Some(class) = cable.classes.iter().flatten().find(|class| !is_class(class)) {
        let reason = format!(
            "`{class}`: expected the name of a class: a letter, then letters, digits, `_`, `.` and `-`"
        );
        return wrong(part, reason);
    }
    Ok(())
}

/// Each host has one link, and all of these have one rate: endpoints are configured for one.
fn check_hosts(spec: &GraphSpec) -> Result<(), GraphError> {
    let mut link_of: Vec<Option<usize>> = vec![None; spec.hosts.len()];
    for (index, cable) in spec.cables.iter().enumerate() {
        let host = cable.ends.iter().find_map(|end| match end {
            Node::Host(host) => Some(host.0 as usize),
            Node::Switch(_) => None,
        });
        if let Some(host) = host
            && link_of[host].replace(index).is_some()
        {
            let reason = format!("host `{}` has two links; expected one", spec.hosts[host]);
            return wrong(GraphPart::Cable(index), reason);
        }
    }
    if let Some(host) = link_of.iter().position(Option::is_none) {
        let reason = format!("host `{}` has no link; expected one to a switch", spec.hosts[host]);
        return wrong(GraphPart::Host(host), reason);
    }
    let rate = |link: usize| spec.cables[link].rate;
    let links: Vec<usize> = link_of.into_iter().flatten().collect();
    if let Some(host) = links.iter().position(|&link| rate(link) != rate(links[0])) {
        let reason = format!(
            "the link of host `{}` has {} bit/s, that of `{}` {}; expected one rate for the links of all hosts",
            spec.hosts[host],
            rate(links[host]).as_bps(),
            spec.hosts[0],
            rate(links[0]).as_bps()
        );
        return wrong(GraphPart::Cable(links[host]), reason);
    }
    Ok(())
}

/// The ports at the two ends of each cable, and the first port of each switch, followed by the number of ports.
fn number_ports(spec: &GraphSpec) -> (Vec<[PortId; 2]>, Vec<u32>) {
    let mut counts = vec![0u32; spec.switches.len()];
    for end in spec.cables.iter().flat_map(|cable| cable.ends) {
        if let Node::Switch(switch) = end {
            counts[switch.0 as usize] += 1;
        }
    }
    let mut next = spec.hosts.len() as u32;
    let mut first_port = Vec::with_capacity(counts.len() + 1);
    for count in counts {
        first_port.push(next);
        next += count;
    }
    first_port.push(next);
    let mut free = first_port.clone();
    let mut number = |end: Node| match end {
        Node::Host(host) => PortId(host.0),
        Node::Switch(switch) => {
            let port = &mut free[switch.0 as usize];
            *port += 1;
            PortId(*port - 1)
        }
    };
    let ends = spec.cables.iter().map(|cable| cable.ends.map(&mut number)).collect();
    (ends, first_port)
}

/// Lists all ports in the order of their numbers.
fn wire(spec: &GraphSpec, ends: &[[PortId; 2]], count: u32) -> Vec<PortSpec> {
    let mut ports: Vec<Option<PortSpec>> = vec![None; count as usize];
    for (cable, ids) in spec.cables.iter().zip(ends) {
        for (own, other) in [(0, 1), (1, 0)] {
            let (owner, peer) = (cable.ends[own], cable.ends[other]);
            let (direction, tier) = match (owner, peer) {
                (Node::Host(_), _) => (Direction::Up, 0),
                (_, Node::Host(_)) => (Direction::Down, 0),
                (Node::Switch(_), Node::Switch(_)) => (Direction::Across, 1),
            };
            let CableSpec { rate, latency, .. } = *cable;
            ports[ids[own].0 as usize] =
                Some(PortSpec { owner, peer, reverse: ids[other], rate, latency, direction, tier });
        }
    }
    // Every number belongs to an end of a cable.
    ports.into_iter().flatten().collect()
}

fn classify(
    spec: &GraphSpec,
    ends: &[[PortId; 2]],
    count: usize,
) -> Result<(Vec<String>, Vec<GraphPort>), GraphError> {
    let mut classes: Vec<String> = Vec::new();
    let mut ports = vec![GraphPort::default(); count];
    for (index, (cable, ids)) in spec.cables.iter().zip(ends).enumerate() {
        for (own, other) in [(0, 1), (1, 0)] {
            if let Node::Host(_) = cable.ends[own] {
                continue;
            }
            let usual = if let Node::Host(_) = cable.ends[other] { HOST_CLASS } else { SWITCH_CLASS };
            let name = cable.classes[own].as_deref().unwrap_or(usual);
            let class = classes.iter().position(|known| known == name).unwrap_or_else(|| {
                classes.push(name.to_owned());
                classes.len() - 1
            });
            if class >= MAX_CLASSES {
                let reason = format!("more than {MAX_CLASSES} classes of ports");
                return wrong(GraphPart::Cable(index), reason);
            }
            ports[ids[own].0 as usize] =
                GraphPort { class: Some(class as u8), queue: cable.queues[own], ecn: cable.ecn[own] };
        }
    }
    Ok((classes, ports))
}

fn check_reachability(spec: &GraphSpec, wired: &Wired<'_>) -> Result<(), GraphError> {
    let Node::Switch(first) = wired.ports[0].peer else { return Ok(()) };
    let (hops, _) = wired.distances(first);
    let lost = |switch: SwitchId| hops[switch.0 as usize].is_none();
    for (host, nic) in wired.ports[..wired.hosts as usize].iter().enumerate() {
        if let Node::Switch(switch) = nic.peer
            && lost(switch)
        {
            let reason =
                format!("there is no path between hosts `{}` and `{}`", spec.hosts[0], spec.hosts[host]);
            return wrong(GraphPart::Host(host), reason);
        }
    }
    if let Some(switch) = (0..spec.switches.len()).find(|s| lost(SwitchId(*s as u32))) {
        let reason = format!("switch `{}` has no path to the hosts", spec.switches[switch].name);
        return wrong(GraphPart::Switch(switch), reason);
    }
    let most = usize::from(u16::MAX);
    let wide = wired.first_port.windows(2).position(|pair| (pair[1] - pair[0]) as usize > most);
    match wide {
        Some(switch) => wrong(GraphPart::Switch(switch), format!("a switch with more than {most} ports")),
        None => Ok(()),
    }
}

/// Looks for the longest paths.
struct Extremes {
    /// For each switch, its two slowest hosts, the slowest first, with the costs of their links up and down.
    slowest: Vec<Vec<(Cost, Cost, HostId)>>,
    groups: Vec<u32>,
    hops: u16,
    network: Option<(Cost, HostId, HostId)>,
    group: Option<(Cost, HostId, HostId)>,
}

impl Extremes {
    fn new(spec: &GraphSpec, wired: &Wired<'_>) -> Extremes {
        let mut slowest: Vec<Vec<(Cost, Cost, HostId)>> = vec![Vec::new(); spec.switches.len()];
        for (nic, host) in wired.ports[..wired.hosts as usize].iter().zip(0..) {
            if let Node::Switch(switch) = nic.peer {
                let hosts = &mut slowest[switch.0 as usize];
                let down = &wired.ports[nic.reverse.0 as usize];
                hosts.push((Cost::of(nic, &spec.switches), Cost::of(down, &spec.switches), HostId(host)));
                // Only the two slowest count; of equal ones, the first.
                hosts.sort_by_key(|(cost, _, host)| (core::cmp::Reverse(*cost), *host));
                hosts.truncate(2);
            }
        }
        let group = |s: u32| group_of_switch(&spec.switches, spec.groups.len(), SwitchId(s));
        let groups = (0..spec.switches.len() as u32).map(group).collect();
        Extremes { slowest, groups, hops: 0, network: None, group: None }
    }

    /// Looks at the ways to `target`.
    fn look(&mut self, target: SwitchId, ways: &Ways) {
        let to = target.0 as usize;
        for from in 0..self.slowest.len() {
            let (Some(&(up, _, src)), Some(hops)) = (self.slowest[from].first(), ways.hops[from]) else {
                continue;
            };
            // The links of two hosts at one switch are different ones.
            let Some(&(_, down, dst)) = self.slowest[to].get(usize::from(from == to)) else { continue };
            self.hops = self.hops.max(hops);
            let found = (up.plus(ways.costs[from]).plus(down), src, dst);
            let longer = |best: &Option<(Cost, HostId, HostId)>| best.is_none_or(|(cost, ..)| found.0 > cost);
            if longer(&self.network) {
                self.network = Some(found);
            }
            if self.groups[from] == self.groups[to] && longer(&self.group) {
                self.group = Some(found);
            }
        }
    }

    /// The most links between switches, the pair of hosts of the longest path, and that within a group.
    fn finish(self) -> (u16, (HostId, HostId), Option<(HostId, HostId)>) {
        let pair = |found: Option<(Cost, HostId, HostId)>| found.map(|(_, a, b)| (a.min(b), a.max(b)));
        (self.hops, pair(self.network).unwrap_or((HostId(0), HostId(1))), pair(self.group))
    }
}
