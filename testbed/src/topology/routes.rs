//! The router tables of a graph: for each switch and each switch that hosts are attached to, all ports on a shortest
//! path. A packet comes one switch closer to its destination with each hop, so there are no loops.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::graph::SwitchSpec;
use super::{HostId, NextPorts, Node, PortId, PortRange, PortSpec, SwitchId};

/// Maximum number of routes, which bounds the memory of a graph's tables to some hundred megabytes.
pub(super) const MAX_ROUTES: u64 = 1 << 24;

/// Maximum number of ports in all different lists of ports, which bounds the memory of these likewise.
pub(super) const MAX_LISTED: usize = 1 << 25;

/// The router tables of all switches of a graph.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Routes {
    /// Where each host is attached.
    hosts: Vec<Attachment>,
    /// Number of switches that hosts are attached to.
    targets: u32,
    /// For each switch, its routes to the switches that hosts are attached to.
    table: Vec<Route>,
    /// The ports of all routes. Routes with the same ports share them.
    lists: Vec<PortId>,
}

/// The place of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Attachment {
    switch: SwitchId,
    /// The number of that switch among those that hosts are attached to.
    target: u32,
    /// The switch's port that leads to the host.
    port: PortId,
}

/// The way from a switch to a switch that hosts are attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Route {
    /// The first of its ports in [`Routes::lists`].
    first: u32,
    count: u16,
    /// Number of links on the way.
    hops: u16,
    /// The first port of the slowest way.
    slowest: PortId,
}

/// What a path adds to a round trip in an idle network, ps: propagation and switching twice, and the serialisation of a
/// data packet and of an acknowledgement of the usual sizes. So "the slowest" means the same for packets of nearly all
/// sizes, and sums can be compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cost(u64);

/// Bytes on the wire of a data packet of 4 KiB with its headers, and of an acknowledgement.
const USUAL_SIZES: [u64; 2] = [4096 + 138, 98];

impl Cost {
    /// The cost of the link behind a port, with the latency of the switch that it leads to.
    pub(super) fn of(port: &PortSpec, switches: &[SwitchSpec]) -> Cost {
        let switching = match port.peer {
            Node::Switch(switch) => switches[switch.0 as usize].latency.as_ps(),
            Node::Host(_) => 0,
        };
        let latency = port.latency.as_ps().saturating_add(switching);
        let serialisation = USUAL_SIZES.map(|bytes| port.rate.time_for(bytes).as_ps());
        Cost(serialisation.into_iter().fold(latency.saturating_mul(2), u64::saturating_add))
    }

    pub(super) fn plus(self, other: Cost) -> Cost {
        Cost(self.0.saturating_add(other.0))
    }
}

/// The ways to one switch that hosts are attached to, from each switch.
pub(super) struct Ways {
    /// Links to go; `None` where there is no way.
    pub(super) hops: Vec<Option<u16>>,
    /// The cost of the slowest of the shortest ways.
    pub(super) costs: Vec<Cost>,
}

/// A fabric while its tables are made.
pub(super) struct Wired<'a> {
    pub(super) hosts: u32,
    pub(super) switches: &'a [SwitchSpec],
    pub(super) ports: &'a [PortSpec],
    pub(super) first_port: &'a [u32],
}

impl Wired<'_> {
    fn ports_of(&self, switch: SwitchId) -> impl Iterator<Item = PortId> {
        (self.first_port[switch.0 as usize]..self.first_port[switch.0 as usize + 1]).map(PortId)
    }

    fn port(&self, port: PortId) -> &PortSpec {
        &self.ports[port.0 as usize]
    }

    /// The switches next to `switch` with the ports that lead there.
    fn next_to(&self, switch: SwitchId) -> impl Iterator<Item = (PortId, SwitchId)> {
        self.ports_of(switch).filter_map(|port| match self.port(port).peer {
            Node::Switch(next) => Some((port, next)),
            Node::Host(_) => None,
        })
    }

    /// The distances of all switches from `target`, and the switches that reach it in the order of their distance.
    pub(super) fn distances(&self, target: SwitchId) -> (Vec<Option<u16>>, Vec<SwitchId>) {
        let mut hops = vec![None; self.switches.len()];
        let mut reached = Vec::with_capacity(self.switches.len());
        let mut ahead = VecDeque::from([(target, 0u16)]);
        hops[target.0 as usize] = Some(0);
        while let Some((switch, distance)) = ahead.pop_front() {
            reached.push(switch);
            for (_, next) in self.next_to(switch) {
                if hops[next.0 as usize].is_none() {
                    hops[next.0 as usize] = Some(distance.saturating_add(1));
                    ahead.push_back((next, distance.saturating_add(1)));
                }
            }
        }
        (hops, reached)
    }
}

impl Routes {
    /// Makes the tables, and shows the ways to each switch that hosts are attached to, in order, to `look`. All
    /// switches must reach each other, by no more than [`u16::MAX`] ports each. `None` if the lists of ports have more than
    /// `most` entries.
    pub(super) fn new(
        wired: &Wired<'_>,
        most: usize,
        mut look: impl FnMut(SwitchId, &Ways),
    ) -> Option<Routes> {
        let mut targets: Vec<SwitchId> = Vec::new();
        let mut target_of: Vec<Option<u32>> = vec![None; wired.switches.len()];
        for nic in &wired.ports[..wired.hosts as usize] {
            if let Node::Switch(switch) = nic.peer
                && target_of[switch.0 as usize].replace(0).is_none()
            {
                targets.push(switch);
            }
        }
        targets.sort_unstable();
        for (number, switch) in (0..).zip(&targets) {
            target_of[switch.0 as usize] = Some(number);
        }
        let hosts = wired.ports[..wired.hosts as usize].iter().filter_map(|nic| {
            let Node::Switch(switch) = nic.peer else { return None };
            Some(Attachment { switch, target: target_of[switch.0 as usize]?, port: nic.reverse })
        });
        let nowhere = Route { first: 0, count: 0, hops: 0, slowest: PortId(0) };
        let mut routes = Routes {
            hosts: hosts.collect(),
            targets: targets.len() as u32,
            table: vec![nowhere; wired.switches.len() * targets.len()],
            lists: Vec::new(),
        };
        let mut known: FxHashMap<Vec<PortId>, u32> = FxHashMap::default();
        for (number, &target) in (0..).zip(&targets) {
            let ways = routes.fill(wired, number, target, &mut known);
            if routes.lists.len() > most {
                return None;
            }
            look(target, &ways);
        }
        Some(routes)
    }

    /// Fills in all routes to the switch `target`.
    fn fill(
        &mut self,
        wired: &Wired<'_>,
        number: u32,
        target: SwitchId,
        known: &mut FxHashMap<Vec<PortId>, u32>,
    ) -> Ways {
        let (hops, reached) = wired.distances(target);
        let mut costs = vec![Cost::default(); wired.switches.len()];
        for &switch in reached.iter().skip(1) {
            let distance = hops[switch.0 as usize].unwrap_or(0);
            let closer = |next: SwitchId| hops[next.0 as usize].is_some_and(|hops| hops < distance);
            let mut ports = Vec::new();
            let mut slowest: Option<(Cost, PortId)> = None;
            for (port, next) in wired.next_to(switch).filter(|(_, next)| closer(*next)) {
                ports.push(port);
                let cost = Cost::of(wired.port(port), wired.switches).plus(costs[next.0 as usize]);
                if slowest.is_none_or(|(most, _)| cost > most) {
                    slowest = Some((cost, port));
                }
            }
            let count = ports.len() as u16;
            let first = *known.entry(ports).or_insert_with_key(|ports| {
                self.lists.extend_from_slice(ports);
                (self.lists.len() - ports.len()) as u32
            });
            let (cost, slowest) = slowest.unwrap_or((Cost::default(), PortId(0)));
            costs[switch.0 as usize] = cost;
            self.table[(switch.0 * self.targets + number) as usize] =
                Route { first, count, hops: distance, slowest };
        }
        Ways { hops, costs }
    }

    /// The switch that a host is attached to.
    #[inline]
    pub(super) fn switch_of(&self, host: HostId) -> SwitchId {
        self.hosts[host.0 as usize].switch
    }

    #[inline]
    fn route(&self, from: SwitchId, to: &Attachment) -> &Route {
        &self.table[(from.0 * self.targets + to.target) as usize]
    }

    /// Number of links between `from` and the switch of `dst`.
    #[inline]
    pub(super) fn hops(&self, from: SwitchId, dst: HostId) -> u32 {
        u32::from(self.route(from, &self.hosts[dst.0 as usize]).hops)
    }

    /// The ports by which `from` may forward a packet for `dst`.
    #[inline]
    pub(super) fn next_ports(&self, from: SwitchId, dst: HostId) -> NextPorts<'_> {
        let to = &self.hosts[dst.0 as usize];
        if to.switch == from {
            return NextPorts::Range(PortRange { first: to.port, count: 1 });
        }
        let Route { first, count, .. } = *self.route(from, to);
        NextPorts::List(&self.lists[first as usize..][..usize::from(count)])
    }

    /// The first port of the slowest way from `from` to `dst`.
    pub(super) fn slowest(&self, from: SwitchId, dst: HostId) -> PortId {
        let to = &self.hosts[dst.0 as usize];
        if to.switch == from { to.port } else { self.route(from, to).slowest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{Topology, TopologySpec};

    #[test]
    fn no_more_ports_are_listed_than_asked_for() {
        let clos = "leaf-spine:hosts=8,leaves=4,spines=3".parse::<TopologySpec>().unwrap().build().unwrap();
        let fabric = Topology::from_graph("graph", clos.to_graph()).unwrap();
        let graph = fabric.graph().unwrap();
        let (switches, ports) = (&graph.switches[..], fabric.ports());
        let wired = Wired { hosts: fabric.hosts(), switches, ports, first_port: &fabric.first_port };
        // Of each leaf its three uplinks, and of each spine one port to each leaf.
        assert_eq!(graph.routes.lists.len(), 4 * 3 + 3 * 4);
        assert_eq!(Routes::new(&wired, 24, |_, _| ()).as_ref(), Some(&*graph.routes));
        assert_eq!(Routes::new(&wired, 23, |_, _| ()), None);
    }
}
