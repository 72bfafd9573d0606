//! A lower bound on the time of a set of transfers, set by the busiest link.

use core::borrow::Borrow;
use core::fmt;
use std::collections::BTreeMap;

use weft_cc::{Rate, Span};

use super::clos::Clos;
use super::fabric::Kind;
use super::{HostId, Node, PortId, SwitchId, Topology};

/// A set of links that certain traffic cannot avoid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cut {
    /// No link: there is no traffic.
    None,
    /// The link from a host.
    FromHost(HostId),
    /// The link to a host.
    ToHost(HostId),
    /// All uplinks of the ToR with this number.
    FromTor(u32),
    /// All links down to the ToR with this number.
    ToTor(u32),
    /// All links from the pod with this number to the cores.
    FromPod(u32),
    /// All links from the cores to the pod with this number.
    ToPod(u32),
    /// The links of a graph that this text describes by their names.
    Links(String),
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cut::None => write!(f, "no traffic"),
            Cut::FromHost(h) => write!(f, "link from host {}", h.0),
            Cut::ToHost(h) => write!(f, "link to host {}", h.0),
            Cut::FromTor(t) => write!(f, "uplinks of ToR {t}"),
            Cut::ToTor(t) => write!(f, "links down to ToR {t}"),
            Cut::FromPod(p) => write!(f, "links from pod {p} to the cores"),
            Cut::ToPod(p) => write!(f, "links from the cores to pod {p}"),
            Cut::Links(text) => f.write_str(text),
        }
    }
}

/// A lower bound on the time that a set of transfers takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkBound {
    /// The time for which the busiest links are busy, without propagation.
    pub time: Span,
    /// The busiest links.
    pub at: Cut,
}

/// Bytes out of and into each host, ToR or pod.
struct Load {
    out: Vec<u64>,
    into: Vec<u64>,
}

impl Load {
    fn new(n: u32) -> Load {
        Load { out: vec![0; n as usize], into: vec![0; n as usize] }
    }

    fn add(&mut self, from: u32, to: u32, bytes: u64) {
        for (row, i) in [(&mut self.out, from), (&mut self.into, to)] {
            row[i as usize] = row[i as usize].saturating_add(bytes);
        }
    }

    /// The index and value of the first of the largest entries.
    fn busiest(row: &[u64]) -> (u32, u64) {
        row.iter().enumerate().fold((0, 0), |best, (i, &n)| if n > best.1 { (i as u32, n) } else { best })
    }
}

impl LinkBound {
    const NONE: LinkBound = LinkBound { time: Span::ZERO, at: Cut::None };

    /// Takes over the busiest entry of `row`, if it is busy for longer at `rate`.
    fn consider(&mut self, row: &[u64], rate: Rate, cut: fn(u32) -> Cut) {
        let (i, bytes) = Load::busiest(row);
        let time = if bytes == 0 { Span::ZERO } else { rate.time_for(bytes) };
        if time > self.time {
            *self = LinkBound { time, at: cut(i) };
        }
    }
}

impl Topology {
    /// A lower bound on the time in which the given transfers (source, destination, bytes on the wire) can
    /// complete if all may start at once. It considers the hosts' links, and sets of links that count as one, as if
    /// spraying were perfect: in a folded Clos those that join each ToR and each pod to the rest; in a graph, for each
    /// pair of switches and each number of hops between them, all links that shortest paths take at that hop. It includes
    /// neither acknowledgements nor propagation. Transfers from a host to itself use no link; hosts must exist.
    pub fn busiest_link_bound(
        &self,
        flows: impl IntoIterator<Item = impl Borrow<(HostId, HostId, u64)>>,
    ) -> LinkBound {
        match &self.kind {
            Kind::Clos(clos) => self.clos_bound(clos, flows),
            Kind::Graph(_) => self.graph_bound(flows),
        }
    }

    fn clos_bound(
        &self,
        clos: &Clos,
        flows: impl IntoIterator<Item = impl Borrow<(HostId, HostId, u64)>>,
    ) -> LinkBound {
        let shape = &clos.shape;
        let (mut hosts, mut tors, mut pods) =
            (Load::new(self.hosts()), Load::new(shape.tors), Load::new(shape.pods));
        for flow in flows {
            let &(src, dst, bytes) = flow.borrow();
            if src == dst {
                continue;
            }
            hosts.add(src.0, dst.0, bytes);
            if shape.tor_of(src) != shape.tor_of(dst) {
                tors.add(shape.tor_of(src).0, shape.tor_of(dst).0, bytes);
            }
            if shape.pod_of(src) != shape.pod_of(dst) {
                pods.add(shape.pod_of(src), shape.pod_of(dst), bytes);
            }
        }
        let mut bound = LinkBound::NONE;
        bound.consider(&hosts.out, self.host_rate(), |h| Cut::FromHost(HostId(h)));
        bound.consider(&hosts.into, self.host_rate(), |h| Cut::ToHost(HostId(h)));
        bound.consider(&tors.out, clos.tor_capacity(), Cut::FromTor);
        bound.consider(&tors.into, clos.tor_capacity(), Cut::ToTor);
        bound.consider(&pods.out, clos.pod_capacity(), Cut::FromPod);
        bound.consider(&pods.into, clos.pod_capacity(), Cut::ToPod);
        bound
    }

    fn graph_bound(&self, flows: impl IntoIterator<Item = impl Borrow<(HostId, HostId, u64)>>) -> LinkBound {
        let mut hosts = Load::new(self.hosts());
        // Bytes between two switches, and a host at the second, which stands for all of them.
        let mut pairs: BTreeMap<(SwitchId, SwitchId), (u64, HostId)> = BTreeMap::new();
        for flow in flows {
            let &(src, dst, bytes) = flow.borrow();
            if src == dst {
                continue;
            }
            hosts.add(src.0, dst.0, bytes);
            let ends = (self.tor_of(src), self.tor_of(dst));
            if ends.0 != ends.1 {
                let (sum, _) = pairs.entry(ends).or_insert((0, dst));
                *sum = sum.saturating_add(bytes);
            }
        }
        let mut stages: BTreeMap<Vec<PortId>, u64> = BTreeMap::new();
        for ((from, to), (bytes, host)) in pairs {
            self.each_stage(from, to, host, |links| {
                let load = stages.entry(links).or_insert(0);
                *load = load.saturating_add(bytes);
            });
        }
        let mut bound = LinkBound::NONE;
        bound.consider(&hosts.out, self.host_rate(), |h| Cut::FromHost(HostId(h)));
        bound.consider(&hosts.into, self.host_rate(), |h| Cut::ToHost(HostId(h)));
        for (links, bytes) in stages {
            let bps = links.iter().map(|port| self.port(*port).rate.as_bps());
            let capacity = Rate::from_bps(bps.fold(0, u64::saturating_add));
            let time = capacity.time_for(bytes);
            if bytes > 0 && time > bound.time {
                bound = LinkBound { time, at: Cut::Links(self.describe(&links)) };
            }
        }
        bound
    }

    /// Passes the links that shortest paths between two switches take at each hop to `each`, in rising order; `host` is
    /// attached to the second switch.
    pub(crate) fn each_stage(
        &self,
        from: SwitchId,
        to: SwitchId,
        host: HostId,
        mut each: impl FnMut(Vec<PortId>),
    ) {
        let mut reached = vec![from];
        while reached != [to] {
            let mut links: Vec<PortId> =
                reached.iter().flat_map(|switch| self.next_ports(*switch, host).iter()).collect();
            links.sort_unstable();
            reached = links
                .iter()
                .filter_map(|port| match self.port(*port).peer {
                    Node::Switch(next) => Some(next),
                    Node::Host(_) => None,
                })
                .collect();
            reached.sort_unstable();
            reached.dedup();
            each(links);
        }
    }

    /// Describes some links, at least one, by names.
    fn describe(&self, links: &[PortId]) -> String {
        let ends = |port: &PortId| (self.port(*port).owner, self.port(*port).peer);
        let (owner, peer) = ends(&links[0]);
        let all = |is: &dyn Fn((Node, Node)) -> bool| links.iter().all(|port| is(ends(port)));
        match links.len() {
            1 => format!("link {}", self.direction_name(links[0])),
            n if all(&|ends| ends == (owner, peer)) => {
                format!("{n} links {}>{}", self.node_name(owner), self.node_name(peer))
            }
            n if all(&|ends| ends.0 == owner) => format!("{n} links from {}", self.node_name(owner)),
            n if all(&|ends| ends.1 == peer) => format!("{n} links to {}", self.node_name(peer)),
            n => format!("{n} links such as {}", self.direction_name(links[0])),
        }
    }
}

impl Clos {
    /// Total rate of the uplinks of a ToR.
    fn tor_capacity(&self) -> Rate {
        let (tor, agg) = (&self.tiers[0], &self.tiers[1]);
        Rate::from_bps(agg.down_rate.as_bps().saturating_mul(u64::from(tor.radix_up)))
    }

    /// Total rate of the links from a pod to the cores.
    fn pod_capacity(&self) -> Rate {
        let Some(core) = self.tiers.get(2) else { return self.tor_capacity() };
        let links = u64::from(self.tiers[1].radix_up) * u64::from(self.shape.aggs_per_pod);
        Rate::from_bps(core.down_rate.as_bps().saturating_mul(links))
    }
}
