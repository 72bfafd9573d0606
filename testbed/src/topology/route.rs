//! Routing by arithmetic on host numbers: a few instructions per hop.

use core::ops::Range;

use super::{HostId, PortId, PortRange, SwitchId, Topology};

/// The routes of one switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Router {
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

impl Router {
    /// The ports by which the switch may forward a packet for `dst`: the port or bundle that leads down to
    /// it, otherwise all ports that lead up. `dst` must be an existing host.
    #[inline]
    pub fn next_ports(&self, dst: HostId) -> PortRange {
        let below = dst.0.wrapping_sub(self.first_host);
        if below >= self.hosts {
            return self.up;
        }
        let child = ((u64::from(below) * self.reciprocal) >> 40) as u32;
        PortRange { first: PortId(self.first_down + child * self.bundle), count: self.bundle }
    }
}

impl Topology {
    /// The hosts of the same ToR, and those of the same pod.
    pub fn neighbours(&self, host: HostId) -> [Range<u32>; 2] {
        let per_tor = self.shape().hosts_per_tor;
        let per_pod = per_tor * self.shape().tors_per_pod;
        [per_tor, per_pod].map(|count| {
            let first = host.0 / count * count;
            first..first + count
        })
    }

    /// The routes of `switch`. Panics if there is no such switch.
    pub fn router(&self, switch: SwitchId) -> Router {
        let shape = self.shape();
        let place = self.place(switch);
        let (per_tor, per_pod) = (shape.hosts_per_tor, shape.hosts_per_tor * shape.tors_per_pod);
        let (first_host, hosts, per_child) = match (place.tier, place.pod) {
            (0, _) => (place.index * per_tor, per_tor, 1),
            (_, Some(pod)) => (pod * per_pod, per_pod, per_tor),
            (_, None) => (0, per_pod * shape.pods, per_pod),
        };
        Router {
            first_host,
            hosts,
            reciprocal: (1u64 << 40).div_ceil(u64::from(per_child)),
            first_down: self.ports_of(switch).first.0,
            bundle: self.tiers()[usize::from(place.tier)].bundle,
            up: self.up_ports(switch),
        }
    }
}
