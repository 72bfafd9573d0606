//! The folded Clos: places, latencies and round trips in closed form, and the wiring.

use weft_cc::{Rate, Span};

use super::fabric::Kind;
use super::shape::{Keyword, MAX_HOSTS, MAX_PORTS, Shape, ShapeError, check_tier, wrong};
use super::{Direction, HostId, Node, PortId, PortSpec, SwitchId, SwitchPlace, Tier, Topology};

/// The numbers of a folded Clos. The module's documentation describes the numbering.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Clos {
    pub(super) tiers: Vec<Tier>,
    pub(super) shape: Shape,
}

impl Topology {
    /// Builds a folded Clos of `pods` pods with room for `hosts_per_pod` hosts each. Only the first `hosts` hosts
    /// exist; ToRs have no ports for the others.
    ///
    /// # Errors
    /// The numbers do not make a fabric, or too large a one.
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
        let clos = Clos { tiers, shape };
        let mut wiring = Wiring { clos: &clos, hosts, first_port: Vec::new() };
        wiring.first_port = wiring.first_ports();
        let (ports, first_port) = (wiring.ports(), wiring.first_port);
        Ok(Topology { name: name.into(), hosts, ports, first_port, kind: Kind::Clos(clos) })
    }

    /// The tiers of a folded Clos, ToRs first; none in a graph.
    pub fn tiers(&self) -> &[Tier] {
        self.clos().map_or(&[], |clos| &clos.tiers)
    }

    /// Number of switches in `tier`; 0 if there is no such tier, so always in a graph.
    pub fn switches_in(&self, tier: u8) -> u32 {
        self.clos().map_or(0, |clos| clos.switches_in(tier))
    }

    /// The tier, number and pod of a switch of a folded Clos; `None` in a graph, whose switches have names only.
    /// Panics if there is no such switch.
    #[inline]
    pub fn place(&self, switch: SwitchId) -> Option<SwitchPlace> {
        self.clos().map(|clos| clos.place(switch))
    }

    /// The switch number `index` of `tier`, if there is one.
    pub fn switch_at(&self, tier: u8, index: u32) -> Option<SwitchId> {
        let before = (0..tier).map(|t| self.switches_in(t)).sum::<u32>();
        (index < self.switches_in(tier)).then_some(SwitchId(before + index))
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

    /// The pod of a host of a folded Clos; `None` in a graph.
    #[inline]
    pub fn pod_of(&self, host: HostId) -> Option<u32> {
        self.clos().map(|clos| clos.shape.pod_of(host))
    }

    /// Number of pods of a folded Clos; 1 in a fabric of two tiers, and in a graph.
    pub fn pods(&self) -> u32 {
        self.clos().map_or(1, |clos| clos.shape.pods)
    }

    /// Bandwidth down over bandwidth up of a switch of `tier`; 1 for the top tier, and in a graph.
    pub fn oversubscription(&self, tier: u8) -> f64 {
        let t = usize::from(tier);
        let (Some(here), Some(above)) = (self.tiers().get(t), self.tiers().get(t + 1)) else { return 1.0 };
        let down = f64::from(here.radix_down) * here.down_rate.as_gbps_f64();
        let up = f64::from(here.radix_up) * above.down_rate.as_gbps_f64();
        down / up
    }
}

impl Shape {
    #[inline]
    pub(super) fn tor_of(&self, host: HostId) -> SwitchId {
        SwitchId(host.0 / self.hosts_per_tor)
    }

    #[inline]
    pub(super) fn pod_of(&self, host: HostId) -> u32 {
        host.0 / self.hosts_per_tor / self.tors_per_pod
    }
}

impl Clos {
    pub(super) fn switches_in(&self, tier: u8) -> u32 {
        [self.shape.tors, self.shape.aggs, self.shape.cores].get(usize::from(tier)).copied().unwrap_or(0)
    }

    #[inline]
    pub(super) fn place(&self, switch: SwitchId) -> SwitchPlace {
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

    pub(super) fn tier_of(&self, switch: SwitchId) -> &Tier {
        &self.tiers[usize::from(self.place(switch).tier)]
    }

    /// The pod of a host, in a fabric of two tiers its ToR.
    pub(super) fn group_of(&self, host: HostId) -> u32 {
        match self.shape.tiers {
            2 => self.shape.tor_of(host).0,
            _ => self.shape.pod_of(host),
        }
    }

    /// The highest tier on the way between two hosts.
    #[inline]
    pub(super) fn apex(&self, a: HostId, b: HostId) -> u8 {
        if self.shape.tor_of(a) == self.shape.tor_of(b) {
            0
        } else if self.shape.pod_of(a) == self.shape.pod_of(b) {
            1
        } else {
            2
        }
    }

    /// Propagation and switching time of a path over tier `apex`, one way.
    pub(super) fn latency_over(&self, apex: u8) -> Span {
        let twice = |s: Span| s.times(2);
        let below = &self.tiers[..usize::from(apex)];
        let top = &self.tiers[usize::from(apex)];
        below.iter().fold(twice(top.down_latency) + top.switch_latency, |sum, tier| {
            sum + twice(tier.down_latency) + twice(tier.switch_latency)
        })
    }

    /// The RTT of a path over tier `apex`, with each packet serialised at the hosts' rate on every link, however
    /// fast the links between switches are (as in uet-htsim, whose windows and queues scale with this number).
    pub(super) fn rtt_over(&self, apex: u8, data_wire_bytes: u64, ack_wire_bytes: u64) -> Span {
        let rate = self.tiers[0].down_rate;
        let per_link = rate.time_for(data_wire_bytes) + rate.time_for(ack_wire_bytes);
        let links = 2 * (u64::from(apex) + 1);
        self.latency_over(apex).times(2) + per_link.times(links)
    }

    /// The RTT between two different hosts, each packet serialised at each link's own rate.
    pub(super) fn pair_rtt(
        &self,
        src: HostId,
        dst: HostId,
        data_wire_bytes: u64,
        ack_wire_bytes: u64,
    ) -> Span {
        let apex = self.apex(src, dst);
        let links = &self.tiers[..=usize::from(apex)];
        let serialisation = links.iter().fold(Span::ZERO, |sum, tier| {
            let once = tier.down_rate.time_for(data_wire_bytes) + tier.down_rate.time_for(ack_wire_bytes);
            sum + once.times(2)
        });
        self.latency_over(apex).times(2) + serialisation
    }

    /// The queue size that the `.topo` file sets for a port of `switch`.
    pub(super) fn queue_of(&self, switch: SwitchId, direction: Direction) -> Option<u64> {
        let tier = self.tier_of(switch);
        match direction {
            Direction::Up => tier.queue_up,
            Direction::Down => tier.queue_down,
            Direction::Across => None,
        }
    }

    pub(super) fn with_link_rate(&mut self, rate: Rate) {
        self.tiers.iter_mut().for_each(|tier| tier.down_rate = rate);
    }

    pub(super) fn slow(&mut self, rate: impl Fn(Rate) -> Rate, span: impl Fn(Span) -> Span) {
        for tier in &mut self.tiers {
            tier.down_rate = rate(tier.down_rate);
            (tier.down_latency, tier.switch_latency) = (span(tier.down_latency), span(tier.switch_latency));
        }
    }
}

/// The wiring: which ports the links of a Clos fabric join.
struct Wiring<'a> {
    clos: &'a Clos,
    hosts: u32,
    first_port: Vec<u32>,
}

impl Wiring<'_> {
    /// Number of hosts attached to ToR `t`; the last ToRs may have unused room.
    fn hosts_at(&self, t: u32) -> u32 {
        let room = self.clos.shape.hosts_per_tor;
        self.hosts.saturating_sub(t.saturating_mul(room)).min(room)
    }

    /// The first port of each switch, followed by the number of ports.
    fn first_ports(&self) -> Vec<u32> {
        let Shape { tors, aggs, cores, .. } = self.clos.shape;
        let radices: Vec<u32> = self.clos.tiers.iter().map(|tier| tier.radix_down + tier.radix_up).collect();
        let mut first_port = Vec::with_capacity((tors + aggs + cores) as usize + 1);
        let mut next = self.hosts;
        for s in 0..tors + aggs + cores {
            first_port.push(next);
            next += if s < tors {
                self.hosts_at(s) + self.clos.tiers[0].radix_up
            } else if s < tors + aggs {
                radices[1]
            } else {
                radices[2]
            };
        }
        first_port.push(next);
        first_port
    }

    /// Lists all ports in the order of their numbers.
    fn ports(&self) -> Vec<PortSpec> {
        let Shape { tors, aggs, cores, .. } = self.clos.shape;
        let mut ports = Vec::with_capacity(self.first_port[(tors + aggs + cores) as usize] as usize);
        for h in 0..self.hosts {
            let (tor, at) = (h / self.clos.shape.hosts_per_tor, h % self.clos.shape.hosts_per_tor);
            let ends = (Node::Host(HostId(h)), Node::Switch(SwitchId(tor)));
            ports.push(self.link(ends, self.first_port[tor as usize] + at, Direction::Up, 0));
        }
        (0..tors).for_each(|t| self.wire_tor(t, &mut ports));
        (0..aggs).for_each(|a| self.wire_agg(a, &mut ports));
        (0..cores).for_each(|c| self.wire_core(c, &mut ports));
        ports
    }

    fn wire_tor(&self, tor: u32, ports: &mut Vec<PortSpec>) {
        let Shape { hosts_per_tor, tors_per_pod, aggs_per_pod, .. } = self.clos.shape;
        let this = Node::Switch(SwitchId(tor));
        for i in 0..self.hosts_at(tor) {
            let host = tor * hosts_per_tor + i;
            ports.push(self.link((this, Node::Host(HostId(host))), host, Direction::Down, 0));
        }
        let bundle = self.clos.tiers[1].bundle;
        for i in 0..self.clos.tiers[0].radix_up {
            let agg = self.agg(tor / tors_per_pod * aggs_per_pod + i / bundle);
            let back = self.first_port[agg.0 as usize] + tor % tors_per_pod * bundle + i % bundle;
            ports.push(self.link((this, Node::Switch(agg)), back, Direction::Up, 1));
        }
    }

    fn wire_agg(&self, index: u32, ports: &mut Vec<PortSpec>) {
        let Shape { tors_per_pod, aggs_per_pod, .. } = self.clos.shape;
        let this = Node::Switch(self.agg(index));
        let (pod, position) = (index / aggs_per_pod, index % aggs_per_pod);
        let bundle = self.clos.tiers[1].bundle;
        for i in 0..self.clos.tiers[1].radix_down {
            let tor = pod * tors_per_pod + i / bundle;
            let back = self.first_port[tor as usize] + self.hosts_at(tor) + position * bundle + i % bundle;
            ports.push(self.link((this, Node::Switch(SwitchId(tor))), back, Direction::Down, 1));
        }
        for i in 0..self.clos.tiers[1].radix_up {
            let bundle = self.clos.tiers[2].bundle;
            let core = self.core(position + aggs_per_pod * (i / bundle));
            let back = self.first_port[core.0 as usize] + pod * bundle + i % bundle;
            ports.push(self.link((this, Node::Switch(core)), back, Direction::Up, 2));
        }
    }

    fn wire_core(&self, index: u32, ports: &mut Vec<PortSpec>) {
        let Shape { aggs_per_pod, .. } = self.clos.shape;
        let this = Node::Switch(self.core(index));
        let bundle = self.clos.tiers[2].bundle;
        for i in 0..self.clos.tiers[2].radix_down {
            let agg = self.agg(i / bundle * aggs_per_pod + index % aggs_per_pod);
            let uplink = index / aggs_per_pod * bundle + i % bundle;
            let back = self.first_port[agg.0 as usize] + self.clos.tiers[1].radix_down + uplink;
            ports.push(self.link((this, Node::Switch(agg)), back, Direction::Down, 2));
        }
    }

    fn agg(&self, index: u32) -> SwitchId {
        SwitchId(self.clos.shape.tors + index)
    }

    fn core(&self, index: u32) -> SwitchId {
        SwitchId(self.clos.shape.tors + self.clos.shape.aggs + index)
    }

    fn link(&self, (owner, peer): (Node, Node), reverse: u32, direction: Direction, tier: u8) -> PortSpec {
        let Tier { down_rate: rate, down_latency: latency, .. } = self.clos.tiers[usize::from(tier)];
        PortSpec { owner, peer, reverse: PortId(reverse), rate, latency, direction, tier }
    }
}
