//! A lower bound on the time of a set of transfers, set by the busiest link.

use core::borrow::Borrow;
use core::fmt;

use weft_cc::{Rate, Span};

use super::{HostId, Topology};

/// A set of links that certain traffic cannot avoid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
        }
    }
}

/// A lower bound on the time that a set of transfers takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

impl Topology {
    /// A lower bound on the time in which the given transfers (source, destination, bytes on the wire) can
    /// complete if all may start at once. It considers the hosts' links, and the links that join each ToR and
    /// each pod to the rest; the latter count as one, as if spraying were perfect. It includes neither
    /// acknowledgements nor propagation. Transfers from a host to itself use no link; hosts must exist.
    pub fn busiest_link_bound(
        &self,
        flows: impl IntoIterator<Item = impl Borrow<(HostId, HostId, u64)>>,
    ) -> LinkBound {
        let (mut hosts, mut tors, mut pods) =
            (Load::new(self.hosts()), Load::new(self.switches_in(0)), Load::new(self.pods()));
        for flow in flows {
            let &(src, dst, bytes) = flow.borrow();
            if src == dst {
                continue;
            }
            hosts.add(src.0, dst.0, bytes);
            if self.tor_of(src) != self.tor_of(dst) {
                tors.add(self.tor_of(src).0, self.tor_of(dst).0, bytes);
            }
            if self.pod_of(src) != self.pod_of(dst) {
                pods.add(self.pod_of(src), self.pod_of(dst), bytes);
            }
        }
        let mut bound = LinkBound { time: Span::ZERO, at: Cut::None };
        let mut consider = |row: &[u64], rate: Rate, cut: fn(u32) -> Cut| {
            let (i, bytes) = Load::busiest(row);
            let time = if bytes == 0 { Span::ZERO } else { rate.time_for(bytes) };
            if time > bound.time {
                bound = LinkBound { time, at: cut(i) };
            }
        };
        consider(&hosts.out, self.host_rate(), |h| Cut::FromHost(HostId(h)));
        consider(&hosts.into, self.host_rate(), |h| Cut::ToHost(HostId(h)));
        consider(&tors.out, self.tor_capacity(), Cut::FromTor);
        consider(&tors.into, self.tor_capacity(), Cut::ToTor);
        consider(&pods.out, self.pod_capacity(), Cut::FromPod);
        consider(&pods.into, self.pod_capacity(), Cut::ToPod);
        bound
    }

    /// Total rate of the uplinks of a ToR.
    fn tor_capacity(&self) -> Rate {
        let (tor, agg) = (&self.tiers()[0], &self.tiers()[1]);
        Rate::from_bps(agg.down_rate.as_bps().saturating_mul(u64::from(tor.radix_up)))
    }

    /// Total rate of the links from a pod to the cores.
    fn pod_capacity(&self) -> Rate {
        let Some(core) = self.tiers().get(2) else { return self.tor_capacity() };
        let aggs = u64::from(self.switches_in(1) / self.pods());
        let links = u64::from(self.tiers()[1].radix_up) * aggs;
        Rate::from_bps(core.down_rate.as_bps().saturating_mul(links))
    }
}
