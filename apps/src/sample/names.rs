//! The names of hosts, switches and directions in tables.

use parquet::data_type::ByteArray;
use weft_testbed::topology::{Direction, HostId, Node, PortId, SwitchId, Topology};

/// The names of all nodes of a topology. A copy of one shares its bytes.
pub(crate) struct Names {
    /// Hosts, then switches.
    nodes: Vec<ByteArray>,
    hosts: u32,
    up: ByteArray,
    down: ByteArray,
    across: ByteArray,
}

impl Names {
    pub(crate) fn of(topology: &Topology) -> Names {
        let hosts = (0..topology.hosts()).map(|host| Node::Host(HostId(host)));
        let switches = (0..topology.switches()).map(|switch| Node::Switch(SwitchId(switch)));
        let names = hosts.chain(switches).map(|node| topology.node_name(node));
        Names {
            nodes: names.map(|name| ByteArray::from(name.into_bytes())).collect(),
            hosts: topology.hosts(),
            up: ByteArray::from("up"),
            down: ByteArray::from("down"),
            across: ByteArray::from("across"),
        }
    }

    /// Its name in the topology ([`Topology::node_name`]).
    pub(super) fn node(&self, node: Node) -> ByteArray {
        let index = match node {
            Node::Host(host) => host.0,
            Node::Switch(switch) => self.hosts + switch.0,
        };
        self.nodes[index as usize].clone()
    }

    /// The same as text.
    pub(crate) fn text(&self, node: Node) -> String {
        String::from_utf8_lossy(self.node(node).data()).into_owned()
    }

    /// The name without its number: `host`, `tor`, `agg`, `core` in a folded Clos.
    pub(crate) fn kind(&self, node: Node) -> String {
        self.text(node).trim_end_matches(|c: char| c.is_ascii_digit()).to_owned()
    }

    /// The directed link behind a port: `tor3>host17` ([`Topology::direction_name`]).
    pub(crate) fn link(&self, topology: &Topology, port: PortId) -> String {
        topology.direction_name(port)
    }

    pub(super) fn direction(&self, direction: Direction) -> ByteArray {
        match direction {
            Direction::Up => self.up.clone(),
            Direction::Down => self.down.clone(),
            Direction::Across => self.across.clone(),
        }
    }
}
