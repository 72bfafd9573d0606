//! Fabrics: switches, wiring and routes.
//!
//! A [`Topology`] is one of two kinds.
//!
//! A *folded Clos* of two or three tiers is wired as uet-htsim wires its fat trees, so that the
//! public `.topo` files have the same meaning: tier 0 are the ToRs (leaves), tier 1 the aggregation switches
//! (spines of a two-tier fabric), tier 2 the cores. Within a pod every ToR reaches every aggregation switch
//! by a bundle of links. With `A` aggregation switches per pod, the one at position `j` of its pod reaches
//! the cores `j`, `j + A`, `j + 2A` and so on. Traffic goes up to the lowest tier that both ends share, by
//! any uplink, then down by the one bundle that leads to the destination. Routes are arithmetic on numbers.
//!
//! A *graph* is any set of switches that are connected, and hosts with one link each. Traffic takes the paths of the
//! fewest links, all of them; each switch has a table of its ports on such a path to each switch that hosts are
//! attached to.
//!
//! Everything has a small dense number. Hosts are numbered from 0. Switches are numbered from 0, those of a Clos tier by
//! tier, ToRs first. Ports (each the sending end of one directed link) are numbered from 0: first the only port of
//! every host, with the host's own number, then the ports of each switch, in a Clos down before up. So the ports that a
//! switch of a Clos may choose from for a destination are always contiguous, and [`Topology::next_ports`] is a
//! multiplication. Nodes and links of both kinds have names as well ([`Topology::node_name`],
//! [`Topology::link_name`]), and ports of switches belong to classes ([`Topology::class_of`]).
//!
//! A `.topo` file is read by [`parse_topo`], a `.graph` file by [`parse_graph`], and a generator's description such as
//! `leaf-spine:hosts=1024,leaves=32,oversub=8` by [`TopologySpec`].

mod bound;
mod clos;
mod fabric;
mod generate;
mod graph;
mod graph_file;
mod names;
mod route;
mod routes;
mod shape;
mod topo_file;

#[cfg(test)]
mod tests;

pub use bound::{Cut, LinkBound};
pub use fabric::{Reach, Topology};
pub use generate::{
    DumbbellSpec, FatTreeSpec, InnerSpec, LeafSpineSpec, ParkingLotSpec, SpecError, TopologySpec, TwoDcSpec,
};
pub use graph::{CableSpec, GraphError, GraphPart, GraphSpec, SwitchSpec};
pub use graph_file::{GraphFileError, parse_graph, write_graph};
pub use names::{LinkNameError, NamedLink};
pub use route::{ClosRouter, Distances, GraphRouter, NextPorts, Router};
pub use shape::{Keyword, MAX_HOSTS, ShapeError, ShapeField};
pub use topo_file::{TopoReason, TopologyError, parse_topo};

use weft_cc::{Rate, Span};

/// A host, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostId(pub u32);

/// A switch, counted from 0; in a folded Clos over all tiers, ToRs first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SwitchId(pub u32);

/// An output port, which also identifies the directed link that leaves it. See the module's documentation for
/// the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortId(pub u32);

/// An end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Node {
    /// A host.
    Host(HostId),
    /// A switch.
    Switch(SwitchId),
}

/// The direction of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Away from the hosts.
    Up,
    /// Towards the hosts.
    Down,
    /// Between switches of a graph, which have no tiers.
    Across,
}

/// One output port and the link behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortSpec {
    /// The sending node.
    pub owner: Node,
    /// The receiving node.
    pub peer: Node,
    /// The port of `peer` that leads back to `owner` over the same cable.
    pub reverse: PortId,
    /// Rate of the link.
    pub rate: Rate,
    /// Propagation time of the link, without the latency of the receiving switch
    /// ([`Topology::switch_latency`]).
    pub latency: Span,
    /// Whether the link leads up or down.
    pub direction: Direction,
    /// The tier of the link's upper end: 0 between hosts and ToRs. In a graph, 0 for links of hosts and 1 for all
    /// others.
    pub tier: u8,
}

/// A range of consecutive ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    /// The first port.
    pub first: PortId,
    /// Number of ports.
    pub count: u32,
}

impl PortRange {
    /// Port number `i` of the range; `i` must be below `count`.
    #[inline]
    pub fn nth(self, i: u32) -> PortId {
        debug_assert!(i < self.count);
        PortId(self.first.0 + i)
    }

    /// The ports of the range, in order.
    pub fn iter(self) -> impl ExactSizeIterator<Item = PortId> {
        (self.first.0..self.first.0 + self.count).map(PortId)
    }

    /// Whether `port` is in the range.
    #[inline]
    pub fn contains(self, port: PortId) -> bool {
        port.0.wrapping_sub(self.first.0) < self.count
    }
}

/// The properties that the switches of one tier have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tier {
    /// Rate of the links below the tier, in each direction.
    pub down_rate: Rate,
    /// Propagation time of the links below the tier.
    pub down_latency: Span,
    /// Time from the arrival of a packet at a switch to its arrival in the output queue.
    pub switch_latency: Span,
    /// Number of ports of a switch that lead down.
    pub radix_down: u32,
    /// Number of ports of a switch that lead up; 0 in the top tier.
    pub radix_up: u32,
    /// Number of parallel links from a switch to each neighbour in the tier below; 1 in tier 0.
    pub bundle: u32,
    /// Queue size of ports that lead down, bytes; `None` if the file sets none.
    pub queue_down: Option<u64>,
    /// Queue size of ports that lead up, bytes; `None` if the file sets none.
    pub queue_up: Option<u64>,
}

/// The position of a switch in the fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchPlace {
    /// Its tier, 0 for ToRs.
    pub tier: u8,
    /// Its number within the tier.
    pub index: u32,
    /// Its pod; `None` for a core.
    pub pod: Option<u32>,
}
