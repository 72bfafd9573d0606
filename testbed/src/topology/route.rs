//! Routers: which ports of a switch lead to a destination.

use core::ops::Range;
use std::sync::Arc;

use super::clos::Clos;
use super::fabric::Kind;
use super::routes::Routes;
use super::{HostId, PortId, PortRange, SwitchId, Topology};

/// The routes of one switch. A caller with many packets can tell the two kinds apart once for all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Router {
    /// In a folded Clos.
    Clos(ClosRouter),
    /// In a graph.
    Graph(GraphRouter),
}

/// The ports that a switch may choose from for a destination. Never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextPorts<'a> {
    /// Consecutive ports, as always in a folded Clos.
    Range(PortRange),
    /// Any ports, in rising order.
    List(&'a [PortId]),
}

impl NextPorts<'_> {
    /// Number of ports.
    #[inline(always)]
    #[expect(clippy::len_without_is_empty, reason = "there is always a port")]
    pub fn len(self) -> u32 {
        match self {
            NextPorts::Range(range) => range.count,
            NextPorts::List(list) => list.len() as u32,
        }
    }

    /// Port number `i`, which must be below [`NextPorts::len`].
    #[inline(always)]
    pub fn nth(self, i: u32) -> PortId {
        match self {
            NextPorts::Range(range) => range.nth(i),
            NextPorts::List(list) => list[i as usize],
        }
    }

    /// The port that `choose` picks: given a number of ports above 1, it returns one below that number.
    #[inline(always)]
    pub fn pick(self, choose: impl FnOnce(u32) -> u32) -> PortId {
        match self.len() {
            1 => self.nth(0),
            count => self.nth(choose(count)),
        }
    }

    /// The ports, in rising order.
    pub fn iter(self) -> impl ExactSizeIterator<Item = PortId> {
        (0..self.len()).map(move |i| self.nth(i))
    }
}

impl Router {
    /// The ports by which the switch may forward a packet for `dst`, which must be an existing host: in a folded Clos
    /// the port or bundle that leads down to it, otherwise all ports that lead up; in a graph all ports on a shortest
    /// path.
    pub fn next_ports(&self, dst: HostId) -> NextPorts<'_> {
        match self {
            Router::Clos(router) => router.next_ports(dst),
            Router::Graph(router) => router.next_ports(dst),
        }
    }
}

/// The routes of a switch of a graph: a table that all its switches share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphRouter {
    routes: Arc<Routes>,
    switch: SwitchId,
}

impl GraphRouter {
    /// See [`Router::next_ports`].
    #[inline(always)]
    pub fn next_ports(&self, dst: HostId) -> NextPorts<'_> {
        self.routes.next_ports(self.switch, dst)
    }
}

/// The routes of a switch of a folded Clos: arithmetic on host numbers, a few instructions per hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClosRouter {
    /// The first of the hosts below the switch.
    first_host: u32,
    /// Number of hosts below the switch; they are numbered consecutively.
    hosts: u32,
    /// ⌈2⁴⁰ / hosts below each child⌉, to divide by multiplication. Exact for dividends and divisors up to
    /// 2²⁰ = [`MAX_HOSTS`](super::MAX_HOSTS), as the product of the rounding error (less than the divisor)
    /// and the dividend stays below 2⁴⁰.
    reciprocal: u64,
    /// The first port that leads down.
    first_down: u32,
    /// Parallel links to each child.
    bundle: u32,
    /// The ports that lead up.
    up: PortRange,
}

impl ClosRouter {
    /// See [`Router::next_ports`]: always a [`NextPorts::Range`].
    #[inline(always)]
    pub fn next_ports(&self, dst: HostId) -> NextPorts<'static> {
        NextPorts::Range(self.range(dst))
    }

    #[inline(always)]
    fn range(&self, dst: HostId) -> PortRange {
        let below = dst.0.wrapping_sub(self.first_host);
        if below >= self.hosts {
            return self.up;
        }
        let child = ((u64::from(below) * self.reciprocal) >> 40) as u32;
        PortRange { first: PortId(self.first_down + child * self.bundle), count: self.bundle }
    }
}

/// The numbers of switches between a host and all others.
#[derive(Clone, Debug)]
pub struct Distances(Near);

#[derive(Clone, Debug)]
enum Near {
    /// In a folded Clos, the hosts of the same ToR and those of the same pod.
    Blocks([Range<u32>; 2]),
    /// In a graph, the table, and the host's switch.
    Table(Arc<Routes>, SwitchId),
}

impl Distances {
    /// Number of switches on the way to `dst`.
    #[inline]
    pub fn switches_to(&self, dst: HostId) -> u8 {
        match &self.0 {
            Near::Blocks(blocks) => match blocks.iter().position(|hosts| hosts.contains(&dst.0)) {
                Some(0) => 1,
                Some(_) => 3,
                None => 5,
            },
            // Graphs with longer paths than a TTL allows are refused.
            Near::Table(routes, switch) => (routes.hops(*switch, dst) + 1) as u8,
        }
    }
}

impl Clos {
    pub(super) fn router(&self, switch: SwitchId, topology: &Topology) -> ClosRouter {
        let shape = &self.shape;
        let place = self.place(switch);
        let (per_tor, per_pod) = (shape.hosts_per_tor, shape.hosts_per_tor * shape.tors_per_pod);
        let (first_host, hosts, per_child) = match (place.tier, place.pod) {
            (0, _) => (place.index * per_tor, per_tor, 1),
            (_, Some(pod)) => (pod * per_pod, per_pod, per_tor),
            (_, None) => (0, per_pod * shape.pods, per_pod),
        };
        ClosRouter {
            first_host,
            hosts,
            reciprocal: (1u64 << 40).div_ceil(u64::from(per_child)),
            first_down: topology.ports_of(switch).first.0,
            bundle: self.tiers[usize::from(place.tier)].bundle,
            up: topology.up_ports(switch),
        }
    }
}

impl Topology {
    /// The numbers of switches between `host` and all others.
    pub fn distances(&self, host: HostId) -> Distances {
        match &self.kind {
            Kind::Clos(clos) => {
                let per_tor = clos.shape.hosts_per_tor;
                let per_pod = per_tor * clos.shape.tors_per_pod;
                Distances(Near::Blocks([per_tor, per_pod].map(|count| {
                    let first = host.0 / count * count;
                    first..first + count
                })))
            }
            Kind::Graph(graph) => Distances(Near::Table(Arc::clone(&graph.routes), self.tor_of(host))),
        }
    }

    /// The routes of `switch`. Panics if there is no such switch.
    pub fn router(&self, switch: SwitchId) -> Router {
        match &self.kind {
            Kind::Clos(clos) => Router::Clos(clos.router(switch, self)),
            Kind::Graph(graph) => Router::Graph(GraphRouter { routes: Arc::clone(&graph.routes), switch }),
        }
    }
}
