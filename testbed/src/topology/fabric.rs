//! A fabric of either kind: what the closed forms of a folded Clos and the tables of a graph have in common.

use weft_cc::{Rate, Span};

use super::clos::Clos;
use super::graph::Graph;
use super::{HostId, NextPorts, Node, PortId, PortRange, PortSpec, SwitchId};

/// A fabric. The module's documentation describes the numbering.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    pub(super) name: String,
    pub(super) hosts: u32,
    pub(super) ports: Vec<PortSpec>,
    /// The first port of each switch, followed by the number of ports.
    pub(super) first_port: Vec<u32>,
    pub(super) kind: Kind,
}

/// How a fabric finds routes, latencies and names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Clos(Clos),
    Graph(Box<Graph>),
}

/// The part of a fabric whose longest round trip sizes a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// A group of hosts ([`Topology::group_of`]).
    Group,
    /// The whole fabric.
    Network,
}

impl Topology {
    pub(super) fn clos(&self) -> Option<&Clos> {
        match &self.kind {
            Kind::Clos(clos) => Some(clos),
            Kind::Graph(_) => None,
        }
    }

    pub(super) fn graph(&self) -> Option<&Graph> {
        match &self.kind {
            Kind::Clos(_) => None,
            Kind::Graph(graph) => Some(graph),
        }
    }

    /// Whether this is a graph: any switches and links, with router tables instead of the closed forms of a folded Clos.
    pub fn is_graph(&self) -> bool {
        self.graph().is_some()
    }

    /// The same fabric with every link at `rate`, above zero.
    pub fn with_link_rate(mut self, rate: Rate) -> Topology {
        let Kind::Clos(clos) = &mut self.kind else { return self.with_graph_rate(rate) };
        clos.with_link_rate(rate);
        self.ports.iter_mut().for_each(|port| port.rate = rate);
        self
    }

    /// Other ways of a graph than before may be the slowest ones, so it is built anew.
    fn with_graph_rate(mut self, rate: Rate) -> Topology {
        let mut spec = self.to_graph();
        spec.cables.iter_mut().for_each(|cable| cable.rate = rate);
        // The rate is all that could be wrong with it.
        if let Ok(graph) = Topology::from_graph(self.name.clone(), spec) {
            return graph;
        }
        self.ports.iter_mut().for_each(|port| port.rate = rate);
        self
    }

    /// The same fabric in slow motion: rates divided and delays multiplied by `factor`. The bandwidth-delay
    /// product stays the same, so windows, queues and thresholds hold as many packets as before.
    pub fn slowed(mut self, factor: u32) -> Topology {
        let rate = |rate: Rate| Rate::from_bps((rate.as_bps() / u64::from(factor)).max(1));
        let span = |span: Span| span.times(u64::from(factor));
        match &mut self.kind {
            Kind::Clos(clos) => clos.slow(rate, span),
            Kind::Graph(graph) => graph.switches.iter_mut().for_each(|s| s.latency = span(s.latency)),
        }
        for port in &mut self.ports {
            (port.rate, port.latency) = (rate(port.rate), span(port.latency));
        }
        self
    }

    /// The name: that of its file, or the description given to a generator.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of hosts.
    #[inline]
    pub fn hosts(&self) -> u32 {
        self.hosts
    }

    /// Number of switches.
    #[inline]
    pub fn switches(&self) -> u32 {
        self.first_port.len() as u32 - 1
    }

    /// All ports, indexed by [`PortId`].
    #[inline]
    pub fn ports(&self) -> &[PortSpec] {
        &self.ports
    }

    /// One port. Panics if there is no such port.
    #[inline]
    pub fn port(&self, port: PortId) -> &PortSpec {
        &self.ports[port.0 as usize]
    }

    /// The only port of a host. `host` must be below [`Topology::hosts`].
    #[inline]
    pub fn nic(&self, host: HostId) -> PortId {
        PortId(host.0)
    }

    /// The queue size in bytes that the file sets for a port; `None` if it sets none, and for hosts.
    pub fn queue_of(&self, port: PortId) -> Option<u64> {
        let spec = self.port(port);
        let Node::Switch(switch) = spec.owner else { return None };
        match &self.kind {
            Kind::Clos(clos) => clos.queue_of(switch, spec.direction),
            Kind::Graph(graph) => graph.ports[port.0 as usize].queue,
        }
    }

    /// The ECN marking thresholds in bytes that the file sets for a port; `None` if it sets none, and for hosts.
    pub fn ecn_of(&self, port: PortId) -> Option<(u64, u64)> {
        self.graph().and_then(|graph| graph.ports[port.0 as usize].ecn)
    }

    /// Whether the file sets the queue size of any port.
    pub fn sets_queues(&self) -> bool {
        (0..self.ports.len() as u32).any(|port| self.queue_of(PortId(port)).is_some())
    }

    /// The part of the fabric whose longest round trip is the measure of the queue at `port`: the network's; but in
    /// a graph that declares groups, the group's for a port whose link stays within one.
    pub fn reach_of(&self, port: PortId) -> Reach {
        match self.declared_groups(port) {
            [Some(a), Some(b)] if a == b => Reach::Group,
            _ => Reach::Network,
        }
    }

    /// Whether the link of a port joins two of the groups that a graph declares.
    pub fn joins_groups(&self, port: PortId) -> bool {
        matches!(self.declared_groups(port), [Some(a), Some(b)] if a != b)
    }

    /// The groups that a graph declares for the ends of a port's link.
    fn declared_groups(&self, port: PortId) -> [Option<u32>; 2] {
        let Some(graph) = self.graph() else { return [None; 2] };
        let spec = self.port(port);
        [spec.owner, spec.peer].map(|node| match node {
            Node::Host(host) => graph.switches[self.tor_of(host).0 as usize].group,
            Node::Switch(switch) => graph.switches[switch.0 as usize].group,
        })
    }

    /// The time that a packet takes from its arrival at a switch to the output queue.
    #[inline]
    pub fn switch_latency(&self, switch: SwitchId) -> Span {
        match &self.kind {
            Kind::Clos(clos) => clos.tier_of(switch).switch_latency,
            Kind::Graph(graph) => graph.switches[switch.0 as usize].latency,
        }
    }

    /// All ports of a switch. Panics if there is no such switch.
    #[inline]
    pub fn ports_of(&self, switch: SwitchId) -> PortRange {
        let first = self.first_port[switch.0 as usize];
        PortRange { first: PortId(first), count: self.first_port[switch.0 as usize + 1] - first }
    }

    /// The ports of a switch that lead up; none in the top tier, and none in a graph.
    #[inline]
    pub fn up_ports(&self, switch: SwitchId) -> PortRange {
        let count = self.clos().map_or(0, |clos| clos.tier_of(switch).radix_up);
        PortRange { first: PortId(self.first_port[switch.0 as usize + 1] - count), count }
    }

    /// The ports of a switch that do not lead up.
    #[inline]
    pub fn down_ports(&self, switch: SwitchId) -> PortRange {
        let all = self.ports_of(switch);
        PortRange { first: all.first, count: all.count - self.up_ports(switch).count }
    }

    /// The ports by which `switch` may forward a packet for `dst`; see
    /// [`Router::next_ports`](super::Router::next_ports). Never empty.
    pub fn next_ports(&self, switch: SwitchId, dst: HostId) -> NextPorts<'_> {
        match &self.kind {
            Kind::Clos(clos) => clos.router(switch, self).next_ports(dst),
            Kind::Graph(graph) => graph.routes.next_ports(switch, dst),
        }
    }

    /// The switch that a host is attached to.
    #[inline]
    pub fn tor_of(&self, host: HostId) -> SwitchId {
        match &self.kind {
            Kind::Clos(clos) => clos.shape.tor_of(host),
            Kind::Graph(graph) => graph.routes.switch_of(host),
        }
    }

    /// The group of a host: in a folded Clos its pod, within which paths do not pass the top tier, or its ToR if there
    /// are two tiers; in a graph the group of its switch, or that switch alone if it declares none.
    #[inline]
    pub fn group_of(&self, host: HostId) -> u32 {
        match &self.kind {
            Kind::Clos(clos) => clos.group_of(host),
            Kind::Graph(graph) => graph.group_of(host),
        }
    }

    /// Number of links between two hosts; 0 from a host to itself. It is 2, 4 or 6 in a folded Clos.
    #[inline]
    pub fn path_hops(&self, src: HostId, dst: HostId) -> u32 {
        match &self.kind {
            _ if src == dst => 0,
            Kind::Clos(clos) => 2 * (u32::from(clos.apex(src, dst)) + 1),
            Kind::Graph(graph) => graph.routes.hops(self.tor_of(src), dst) + 2,
        }
    }

    /// Number of links of the longest path.
    #[inline]
    pub fn diameter_hops(&self) -> u32 {
        match &self.kind {
            Kind::Clos(clos) => 2 * u32::from(clos.shape.tiers),
            Kind::Graph(graph) => graph.diameter_hops,
        }
    }

    /// The links that a packet from `src` to `dst` passes, by their sending ports, on the slowest of its paths: the one
    /// of the longest round trip of usual packets in an idle network. Empty from a host to itself.
    pub fn slowest_path(&self, src: HostId, dst: HostId) -> impl Iterator<Item = PortId> + '_ {
        let mut next = (src != dst).then(|| self.nic(src));
        core::iter::from_fn(move || {
            let port = next?;
            next = match self.port(port).peer {
                Node::Host(_) => None,
                Node::Switch(switch) => Some(match &self.kind {
                    Kind::Clos(_) => self.next_ports(switch, dst).nth(0),
                    Kind::Graph(graph) => graph.routes.slowest(switch, dst),
                }),
            };
            Some(port)
        })
    }

    /// Time from the last bit's departure at `port` to its arrival in the next queue or host.
    fn latency_behind(&self, port: PortId) -> Span {
        let spec = self.port(port);
        match spec.peer {
            Node::Switch(switch) => spec.latency + self.switch_latency(switch),
            Node::Host(_) => spec.latency,
        }
    }

    /// Propagation and switching time between two hosts, one way, without serialisation; in a graph, of the slowest of
    /// equal paths.
    pub fn path_latency(&self, src: HostId, dst: HostId) -> Span {
        match &self.kind {
            _ if src == dst => Span::ZERO,
            Kind::Clos(clos) => clos.latency_over(clos.apex(src, dst)),
            Kind::Graph(_) => {
                self.slowest_path(src, dst).fold(Span::ZERO, |sum, port| sum + self.latency_behind(port))
            }
        }
    }

    /// Propagation and switching time of the longest path, one way, without serialisation.
    pub fn diameter_latency(&self) -> Span {
        match &self.kind {
            Kind::Clos(clos) => clos.latency_over(clos.shape.tiers - 1),
            Kind::Graph(graph) => self.path_latency(graph.network_pair.0, graph.network_pair.1),
        }
    }

    /// The rate of the hosts' links.
    pub fn host_rate(&self) -> Rate {
        self.ports[0].rate
    }

    /// The rate of the slowest link.
    pub fn slowest_rate(&self) -> Rate {
        self.ports.iter().map(|port| port.rate).min().unwrap_or(self.host_rate())
    }

    /// RTT of the longest path in an idle network, for a data packet and an acknowledgement of the given
    /// sizes on the wire: twice the latency, and for each link one serialisation of each packet: in a folded Clos at the
    /// hosts' rate, however fast the links between switches are (as in uet-htsim, whose windows and queues scale
    /// with this number), in a graph at each link's own rate.
    pub fn network_rtt(&self, data_wire_bytes: u64, ack_wire_bytes: u64) -> Span {
        match &self.kind {
            Kind::Clos(clos) => clos.rtt_over(clos.shape.tiers - 1, data_wire_bytes, ack_wire_bytes),
            Kind::Graph(graph) => {
                let (a, b) = graph.network_pair;
                self.pair_rtt(a, b, data_wire_bytes, ack_wire_bytes)
            }
        }
    }

    /// As [`Topology::network_rtt`], of the longest path within a group of hosts ([`Topology::group_of`]). In a graph
    /// whose groups have one host each, that of the network.
    pub fn group_rtt(&self, data_wire_bytes: u64, ack_wire_bytes: u64) -> Span {
        match &self.kind {
            Kind::Clos(clos) => clos.rtt_over(clos.shape.tiers - 2, data_wire_bytes, ack_wire_bytes),
            Kind::Graph(graph) => {
                let (a, b) = graph.group_pair.unwrap_or(graph.network_pair);
                self.pair_rtt(a, b, data_wire_bytes, ack_wire_bytes)
            }
        }
    }

    /// RTT between two hosts in an idle network, each packet serialised at each link's own rate; in a graph over the
    /// slowest of equal paths ([`Topology::slowest_path`]), both ways.
    pub fn pair_rtt(&self, src: HostId, dst: HostId, data_wire_bytes: u64, ack_wire_bytes: u64) -> Span {
        match &self.kind {
            _ if src == dst => Span::ZERO,
            Kind::Clos(clos) => clos.pair_rtt(src, dst, data_wire_bytes, ack_wire_bytes),
            Kind::Graph(_) => self.slowest_path(src, dst).fold(Span::ZERO, |sum, port| {
                let rate = self.port(port).rate;
                let serialisation = rate.time_for(data_wire_bytes) + rate.time_for(ack_wire_bytes);
                sum + self.latency_behind(port).times(2) + serialisation
            }),
        }
    }

    /// Bandwidth-delay product of the network, bytes: [`Topology::network_rtt`] times the hosts' rate.
    pub fn bdp(&self, data_wire_bytes: u64, ack_wire_bytes: u64) -> u64 {
        self.host_rate().bytes_in(self.network_rtt(data_wire_bytes, ack_wire_bytes))
    }
}
