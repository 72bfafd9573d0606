//! Which hosts talk to each other, and how much load that puts on which links.

use std::collections::BTreeMap;

use weft_stack::rng::Rng;

use super::draft::Setting;
use super::random::unit;
use super::spec::WorkloadSpecError;
use crate::topology::{HostId, Topology};

/// Draws a destination for each source.
pub(super) struct Partners {
    hosts: u32,
    zones: Option<Zones>,
}

/// The hosts by groups ([`Topology::group_of`]).
struct Zones {
    /// The share of flows that stay in the group of their source.
    intra: f64,
    /// The hosts, group by group.
    order: Vec<u32>,
    /// By host: where its group begins in `order`, how many hosts it has, and the place of the host in it.
    place: Vec<(u32, u32, u32)>,
}

impl Partners {
    /// Destinations uniformly at random among all other hosts; with `intra`, that share of them among the hosts of the
    /// source's own group and the remaining ones among all others.
    pub(super) fn new(setting: &Setting<'_>, intra: Option<f64>) -> Result<Partners, WorkloadSpecError> {
        let zones = intra.map(|intra| Zones::new(setting, intra)).transpose()?;
        Ok(Partners { hosts: setting.hosts, zones })
    }

    /// A destination for `src`, which is another host.
    pub(super) fn draw(&self, src: u32, rng: &mut Rng) -> u32 {
        match &self.zones {
            None => (src + 1 + rng.below(self.hosts - 1)) % self.hosts,
            Some(zones) => zones.draw(src, rng),
        }
    }

    /// The probability that a flow in a folded Clos leaves the ToR of its source, and that it leaves its pod.
    fn leaving(&self, topology: &Topology) -> [f64; 2] {
        let hosts = f64::from(self.hosts);
        let tors = self.sizes(|host| topology.tor_of(host));
        let pods = self.sizes(|host| topology.pod_of(host));
        let groups = self.sizes(|host| topology.group_of(host));
        let mut leaving = [0.0; 2];
        for host in (0..self.hosts).map(HostId) {
            let group = f64::from(groups[&topology.group_of(host)]);
            let intra = self.zones.as_ref().map_or((group - 1.0) / (hosts - 1.0), |zones| zones.intra);
            // Destinations are uniform within the group and beyond it; a ToR is part of a group, a pod all of it or, in
            // a fabric of one pod, all hosts.
            let near = |size: u32| match f64::from(size) {
                size if size <= group && group > 1.0 => intra * (size - 1.0) / (group - 1.0),
                size if size <= group => 0.0,
                size => intra + (1.0 - intra) * (size - group) / (hosts - group),
            };
            leaving[0] += 1.0 - near(tors[&topology.tor_of(host)]);
            leaving[1] += 1.0 - near(pods[&topology.pod_of(host)]);
        }
        leaving.map(|sum| sum / hosts)
    }

    /// Number of hosts for which `place` gives the same, by what it gives.
    fn sizes<P: Ord>(&self, place: impl Fn(HostId) -> P) -> BTreeMap<P, u32> {
        let mut sizes = BTreeMap::new();
        (0..self.hosts).for_each(|host| *sizes.entry(place(HostId(host))).or_insert(0) += 1);
        sizes
    }
}

impl Zones {
    fn new(setting: &Setting<'_>, intra: f64) -> Result<Zones, WorkloadSpecError> {
        let topology = setting.topology.ok_or(WorkloadSpecError::NeedsTopology("intra"))?;
        let group = |host: &u32| topology.group_of(HostId(*host));
        let mut order: Vec<u32> = (0..setting.hosts).collect();
        order.sort_by_key(group);
        let mut place = vec![(0, 0, 0); order.len()];
        let mut first = 0;
        for members in order.chunk_by(|a, b| group(a) == group(b)) {
            let size = members.len() as u32;
            for (host, number) in members.iter().zip(0..) {
                place[*host as usize] = (first, size, number);
            }
            if size == 1 && intra > 0.0 {
                let reason = format!("host {} has no other host in its group; expected 0", members[0]);
                return Err(WorkloadSpecError::value("intra", reason));
            }
            if size == setting.hosts && intra < 1.0 {
                let reason = "all hosts are of one group; expected 1".to_owned();
                return Err(WorkloadSpecError::value("intra", reason));
            }
            first += size;
        }
        Ok(Zones { intra, order, place })
    }

    fn draw(&self, src: u32, rng: &mut Rng) -> u32 {
        let (first, size, number) = self.place[src as usize];
        let hosts = self.order.len() as u32;
        let at = if unit(rng) < self.intra {
            first + (number + 1 + rng.below(size - 1)) % size
        } else {
            (first + size + rng.below(hosts - size)) % hosts
        };
        self.order[at as usize]
    }
}

/// The links whose capacity a load is a share of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoadOf {
    /// The links of the hosts.
    Hosts,
    /// The links between switches of the tier that the traffic fills first; graphs have none.
    Core,
}

impl LoadOf {
    /// The total payload, bytes per second, that hosts which talk as `partners` say must offer to load these links fully.
    pub(super) fn capacity(
        self,
        setting: &Setting<'_>,
        partners: &Partners,
    ) -> Result<f64, WorkloadSpecError> {
        let topology = setting.topology.ok_or(WorkloadSpecError::NeedsTopology("load"))?;
        let bits = match self {
            LoadOf::Hosts => f64::from(setting.hosts) * topology.host_rate().as_bps() as f64,
            LoadOf::Core if topology.is_graph() => {
                let reason = "a graph has no tier that counts as its core; expected host".to_owned();
                return Err(WorkloadSpecError::value("of", reason));
            }
            LoadOf::Core => {
                let full = core_capacities(topology).into_iter().zip(partners.leaving(topology));
                let least = full.filter(|(_, leaving)| *leaving > 0.0).map(|(bits, leaving)| bits / leaving);
                least.reduce(f64::min).ok_or_else(|| {
                    WorkloadSpecError::value("of", "no flow leaves its ToR; expected host".to_owned())
                })?
            }
        };
        Ok(bits / 8.0)
    }
}

/// The total rate of the links up from all ToRs, and of those up from all pods, bit/s.
fn core_capacities(topology: &Topology) -> Vec<f64> {
    let above = topology.tiers().iter().skip(1);
    (0..)
        .zip(topology.tiers().iter().zip(above))
        .map(|(tier, (here, above))| {
            let links = f64::from(topology.switches_in(tier)) * f64::from(here.radix_up);
            links * above.down_rate.as_bps() as f64
        })
        .collect()
}
