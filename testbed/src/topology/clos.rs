//! The folded Clos: ports, wiring, latencies and rates.

use weft_cc::{Rate, Span};

use super::shape::{Keyword, MAX_HOSTS, MAX_PORTS, Shape, ShapeError, check_tier, wrong};
use super::{Direction, HostId, Node, PortId, PortRange, PortSpec, SwitchId, SwitchPlace, Tier};

/// A fabric. The module's documentation describes the numbering.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    name: String,
    hosts: u32,
    tiers: Vec<Tier>,
    shape: Shape,
    ports: Vec<PortSpec>,
    /// The first port of each switch, followed by the number of ports.
    first_port: Vec<u32>,
}

impl Topology {
    /// Builds a fabric of `pods` pods with room for `hosts_per_pod` hosts each. Only the first `hosts` hosts
    /// exist; ToRs have no ports for the others.
    pub fn from_tiers(
        name: impl Into<String>,
        hosts: u32,
        hosts_per_pod: u32,
        pods: u32,
        tiers: Vec<Tier>,
    ) -> Result<Topology, ShapeError> {
        for (t, tier) in tiers.iter().enumerate() {
            check_tier(t as u8, tier, tiers.get(t + 1))?;
        }
        let shape = Shape::new(hosts_per_pod, pods, &tiers)?;
        let room = u64::from(hosts_per_pod) * u64::from(pods);
        if hosts == 0 || u64::from(hosts) > room || room > MAX_HOSTS {
            let reason = format!("{hosts} hosts: there must be 1 to {}", room.min(MAX_HOSTS));
            return wrong(None, Keyword::Nodes, reason);
        }
        if shape.ports(&tiers) > MAX_PORTS {
            let reason = format!("more than {MAX_PORTS} ports");
            return wrong(None, Keyword::Nodes, reason);
        }
        let mut topology =
            Topology { name: name.into(), hosts, tiers, shape, ports: Vec::new(), first_port: Vec::new() };
        topology.number_ports();
        topology.wire();
        Ok(topology)
    }

    /// The same fabric with every link at `rate`.
    pub fn with_link_rate(mut self, rate: Rate) -> Topology {
        self.tiers.iter_mut().for_each(|tier| tier.down_rate = rate);
        self.ports.iter_mut().for_each(|port| port.rate = rate);
        self
    }

    /// The same fabric in slow motion: rates divided and delays multiplied by `factor`. The bandwidth-delay
    /// product stays the same, so windows, queues and thresholds hold as many packets as before.
    pub fn slowed(mut self, factor: u32) -> Topology {
        let rate = |rate: Rate| Rate::from_bps((rate.as_bps() / u64::from(factor)).max(1));
        let span = |span: Span| span.times(u64::from(factor));
        for tier in &mut self.tiers {
            tier.down_rate = rate(tier.down_rate);
            (tier.down_latency, tier.switch_latency) = (span(tier.down_latency), span(tier.switch_latency));
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

    /// The tiers, ToRs first.
    pub fn tiers(&self) -> &[Tier] {
        &self.tiers
    }

    /// Number of switches.
    #[inline]
    pub fn switches(&self) -> u32 {
        self.shape.tors + self.shape.aggs + self.shape.cores
    }

    /// Number of switches in `tier`; 0 if there is no such tier.
    pub fn switches_in(&self, tier: u8) -> u32 {
        [self.shape.tors, self.shape.aggs, self.shape.cores].get(usize::from(tier)).copied().unwrap_or(0)
    }

    /// Number of pods; 1 in a two-tier fabric.
    pub fn pods(&self) -> u32 {
        self.shape.pods
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

    /// The queue size in bytes that the `.topo` file sets for a port; `None` if it sets none, and for hosts.
    pub fn queue_of(&self, port: PortId) -> Option<u64> {
        let spec = self.port(port);
        let Node::Switch(switch) = spec.owner else { return None };
        let tier = &self.tiers[usize::from(self.place(switch).tier)];
        match spec.direction {
            Direction::Up => tier.queue_up,
            Direction::Down => tier.queue_down,
        }
    }

    /// The tier, number and pod of a switch. Panics if there is no such switch.
    #[inline]
    pub fn place(&self, switch: SwitchId) -> SwitchPlace {
        let Shape { tors, aggs, cores, tors_per_pod, aggs_per_pod, .. } = self.shape;
        let s = switch.0;
        assert!(s < tors + aggs + cores, "no switch {s}");
        if s < tors {
            SwitchPlace { tier: 0, index: s, pod: Some(s / tors_per_pod) }
        } else if s < tors + aggs {
            SwitchPlace { tier: 1, index: s - tors, pod: Some((s - tors) / aggs_per_pod) }
        } else {
            SwitchPlace { tier: 2, index: s - tors - aggs, pod: None }
        }
    }

    /// The switch number `index` of `tier`, if there is one.
    pub fn switch_at(&self, tier: u8, index: u32) -> Option<SwitchId> {
        let before = (0..tier).map(|t| self.switches_in(t)).sum::<u32>();
        (index < self.switches_in(tier)).then_some(SwitchId(before + index))
    }

    /// The time that a packet takes from its arrival at a switch to the output queue.
    #[inline]
    pub fn switch_latency(&self, switch: SwitchId) -> Span {
        self.tiers[usize::from(self.place(switch).tier)].switch_latency
    }

    /// All ports of a switch. Panics if there is no such switch.
    #[inline]
    pub fn ports_of(&self, switch: SwitchId) -> PortRange {
        let first = self.first_port[switch.0 as usize];
        PortRange { first: PortId(first), count: self.first_port[switch.0 as usize + 1] - first }
    }

    /// The ports of a switch that lead up; none in the top tier.
    #[inline]
    pub fn up_ports(&self, switch: SwitchId) -> PortRange {
        let count = self.tiers[usize::from(self.place(switch).tier)].radix_up;
        PortRange { first: PortId(self.first_port[switch.0 as usize + 1] - count), count }
    }

    /// The ports of a switch that lead down.
    #[inline]
    pub fn down_ports(&self, switch: SwitchId) -> PortRange {
        let all = self.ports_of(switch);
        PortRange { first: all.first, count: all.count - self.up_ports(switch).count }
    }

    /// The port of a link named by tier, switch and link, as link events and failures name it: number `link`
    /// of the uplinks of switch `index` of `tier`, or of its downlinks in the top tier. `None` if there is
    /// none. [`PortSpec::reverse`] is the port of the other direction.
    pub fn link_at(&self, tier: u8, index: u32, link: u32) -> Option<PortId> {
        let switch = self.switch_at(tier, index)?;
        let up = self.up_ports(switch);
        let ports = if up.count == 0 { self.down_ports(switch) } else { up };
        (link < ports.count).then(|| ports.nth(link))
    }

    /// The ports by which `switch` may forward a packet for `dst`; see
    /// [`Router::next_ports`](super::Router::next_ports). Never empty.
    pub fn next_ports(&self, switch: SwitchId, dst: HostId) -> PortRange {
        self.router(switch).next_ports(dst)
    }

    pub(super) fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The ToR that a host is attached to.
    #[inline]
    pub fn tor_of(&self, host: HostId) -> SwitchId {
        SwitchId(host.0 / self.shape.hosts_per_tor)
    }

    /// The pod of a host.
    #[inline]
    pub fn pod_of(&self, host: HostId) -> u32 {
        host.0 / self.shape.hosts_per_tor / self.shape.tors_per_pod
    }

    /// The group of a host, within which paths do not pass the top tier: its pod, in a fabric of two tiers its ToR.
    #[inline]
    pub fn group_of(&self, host: HostId) -> u32 {
        match self.shape.tiers {
            2 => self.tor_of(host).0,
            _ => self.pod_of(host),
        }
    }

    /// The highest tier on the way between two hosts.
    #[inline]
    fn apex(&self, a: HostId, b: HostId) -> u8 {
        if self.tor_of(a) == self.tor_of(b) {
            0
        } else if self.pod_of(a) == self.pod_of(b) {
            1
        } else {
            2
        }
    }

    /// Number of links between two hosts: 2, 4 or 6; 0 from a host to itself.
    #[inline]
    pub fn path_hops(&self, src: HostId, dst: HostId) -> u32 {
        if src == dst { 0 } else { 2 * (u32::from(self.apex(src, dst)) + 1) }
    }

    /// Number of links of the longest path.
    #[inline]
    pub fn diameter_hops(&self) -> u32 {
        2 * u32::from(self.shape.tiers)
    }

    /// Propagation and switching time of a path over tier `apex`, one way.
    fn latency_over(&self, apex: u8) -> Span {
        let twice = |s: Span| s.times(2);
        let below = &self.tiers[..usize::from(apex)];
        let top = &self.tiers[usize::from(apex)];
        below.iter().fold(twice(top.down_latency) + top.switch_latency, |sum, tier| {
            sum + twice(tier.down_latency) + twice(tier.switch_latency)
        })
    }

    /// Propagation and switching time between two hosts, one way, without serialisation.
    pub fn path_latency(&self, src: HostId, dst: HostId) -> Span {
        if src == dst { Span::ZERO } else { self.latency_over(self.apex(src, dst)) }
    }

    /// Propagation and switching time of the longest path, one way, without serialisation.
    pub fn diameter_latency(&self) -> Span {
        self.latency_over(self.shape.tiers - 1)
    }

    /// The rate of the hosts' links.
    pub fn host_rate(&self) -> Rate {
        self.tiers[0].down_rate
    }

    /// RTT of the longest path in an idle network, for a data packet and an acknowledgement of the given
    /// sizes on the wire: twice the latency, and for each link one serialisation of each packet at the hosts'
    /// rate, however fast the links between switches are (as in uet-htsim, whose windows and queues scale
    /// with this number).
    pub fn network_rtt(&self, data_wire_bytes: u64, ack_wire_bytes: u64) -> Span {
        self.rtt_over(self.shape.tiers - 1, data_wire_bytes, ack_wire_bytes)
    }

    /// As [`Topology::network_rtt`], of the longest path within a group of hosts ([`Topology::group_of`]).
    pub fn group_rtt(&self, data_wire_bytes: u64, ack_wire_bytes: u64) -> Span {
        self.rtt_over(self.shape.tiers - 2, data_wire_bytes, ack_wire_bytes)
    }

    fn rtt_over(&self, apex: u8, data_wire_bytes: u64, ack_wire_bytes: u64) -> Span {
        let rate = self.host_rate();
        let per_link = rate.time_for(data_wire_bytes) + rate.time_for(ack_wire_bytes);
        let links = 2 * (u64::from(apex) + 1);
        self.latency_over(apex).times(2) + per_link.times(links)
    }

    /// RTT between two hosts in an idle network, each packet serialised at each link's own rate.
    pub fn pair_rtt(&self, src: HostId, dst: HostId, data_wire_bytes: u64, ack_wire_bytes: u64) -> Span {
        if src == dst {
            return Span::ZERO;
        }
        let apex = usize::from(self.apex(src, dst));
        let links = &self.tiers[..=apex];
        let serialisation = links.iter().fold(Span::ZERO, |sum, tier| {
            let once = tier.down_rate.time_for(data_wire_bytes) + tier.down_rate.time_for(ack_wire_bytes);
            sum + once.times(2)
        });
        self.path_latency(src, dst).times(2) + serialisation
    }

    /// Bandwidth-delay product of the network, bytes: [`Topology::network_rtt`] times the hosts' rate.
    pub fn bdp(&self, data_wire_bytes: u64, ack_wire_bytes: u64) -> u64 {
        self.host_rate().bytes_in(self.network_rtt(data_wire_bytes, ack_wire_bytes))
    }

    /// Bandwidth down over bandwidth up of a switch of `tier`; 1 for the top tier.
    pub fn oversubscription(&self, tier: u8) -> f64 {
        let t = usize::from(tier);
        let (Some(here), Some(above)) = (self.tiers.get(t), self.tiers.get(t + 1)) else { return 1.0 };
        let down = f64::from(here.radix_down) * here.down_rate.as_gbps_f64();
        let up = f64::from(here.radix_up) * above.down_rate.as_gbps_f64();
        down / up
    }
}

/// The wiring: which ports the links of a Clos fabric join.
impl Topology {
    /// Number of hosts attached to ToR `t`; the last ToRs may have unused room.
    fn hosts_at(&self, t: u32) -> u32 {
        let room = self.shape.hosts_per_tor;
        self.hosts.saturating_sub(t.saturating_mul(room)).min(room)
    }

    fn number_ports(&mut self) {
        let Shape { tors, aggs, cores, .. } = self.shape;
        let radices: Vec<u32> = self.tiers.iter().map(|tier| tier.radix_down + tier.radix_up).collect();
        let mut first_port = Vec::with_capacity((tors + aggs + cores) as usize + 1);
        let mut next = self.hosts;
        for s in 0..tors + aggs + cores {
            first_port.push(next);
            next += if s < tors {
                self.hosts_at(s) + self.tiers[0].radix_up
            } else if s < tors + aggs {
                radices[1]
            } else {
                radices[2]
            };
        }
        first_port.push(next);
        self.first_port = first_port;
    }

    /// Lists all ports in the order of their numbers.
    fn wire(&mut self) {
        let Shape { tors, aggs, cores, .. } = self.shape;
        let mut ports = Vec::with_capacity(self.first_port[(tors + aggs + cores) as usize] as usize);
        for h in 0..self.hosts {
            let (tor, at) = (h / self.shape.hosts_per_tor, h % self.shape.hosts_per_tor);
            let ends = (Node::Host(HostId(h)), Node::Switch(SwitchId(tor)));
            ports.push(self.link(ends, self.first_port[tor as usize] + at, Direction::Up, 0));
        }
        (0..tors).for_each(|t| self.wire_tor(t, &mut ports));
        (0..aggs).for_each(|a| self.wire_agg(a, &mut ports));
        (0..cores).for_each(|c| self.wire_core(c, &mut ports));
        self.ports = ports;
    }

    fn wire_tor(&self, tor: u32, ports: &mut Vec<PortSpec>) {
        let Shape { hosts_per_tor, tors_per_pod, aggs_per_pod, .. } = self.shape;
        let this = Node::Switch(SwitchId(tor));
        for i in 0..self.hosts_at(tor) {
            let host = tor * hosts_per_tor + i;
            ports.push(self.link((this, Node::Host(HostId(host))), host, Direction::Down, 0));
        }
        let bundle = self.tiers[1].bundle;
        for i in 0..self.tiers[0].radix_up {
            let agg = self.agg(tor / tors_per_pod * aggs_per_pod + i / bundle);
            let back = self.first_port[agg.0 as usize] + tor % tors_per_pod * bundle + i % bundle;
            ports.push(self.link((this, Node::Switch(agg)), back, Direction::Up, 1));
        }
    }

    fn wire_agg(&self, index: u32, ports: &mut Vec<PortSpec>) {
        let Shape { tors_per_pod, aggs_per_pod, .. } = self.shape;
        let this = Node::Switch(self.agg(index));
        let (pod, position) = (index / aggs_per_pod, index % aggs_per_pod);
        let bundle = self.tiers[1].bundle;
        for i in 0..self.tiers[1].radix_down {
            let tor = pod * tors_per_pod + i / bundle;
            let back = self.first_port[tor as usize] + self.hosts_at(tor) + position * bundle + i % bundle;
            ports.push(self.link((this, Node::Switch(SwitchId(tor))), back, Direction::Down, 1));
        }
        for i in 0..self.tiers[1].radix_up {
            let bundle = self.tiers[2].bundle;
            let core = self.core(position + aggs_per_pod * (i / bundle));
            let back = self.first_port[core.0 as usize] + pod * bundle + i % bundle;
            ports.push(self.link((this, Node::Switch(core)), back, Direction::Up, 2));
        }
    }

    fn wire_core(&self, index: u32, ports: &mut Vec<PortSpec>) {
        let Shape { aggs_per_pod, .. } = self.shape;
        let this = Node::Switch(self.core(index));
        let bundle = self.tiers[2].bundle;
        for i in 0..self.tiers[2].radix_down {
            let agg = self.agg(i / bundle * aggs_per_pod + index % aggs_per_pod);
            let uplink = index / aggs_per_pod * bundle + i % bundle;
            let back = self.first_port[agg.0 as usize] + self.tiers[1].radix_down + uplink;
            ports.push(self.link((this, Node::Switch(agg)), back, Direction::Down, 2));
        }
    }

    fn agg(&self, index: u32) -> SwitchId {
        SwitchId(self.shape.tors + index)
    }

    fn core(&self, index: u32) -> SwitchId {
        SwitchId(self.shape.tors + self.shape.aggs + index)
    }

    fn link(&self, (owner, peer): (Node, Node), reverse: u32, direction: Direction, tier: u8) -> PortSpec {
        let Tier { down_rate: rate, down_latency: latency, .. } = self.tiers[usize::from(tier)];
        PortSpec { owner, peer, reverse: PortId(reverse), rate, latency, direction, tier }
    }
}
