//! The names of hosts, switches and directions in tables.

use parquet::data_type::ByteArray;
use weft_testbed::topology::{Node, PortId, SwitchId, Topology};

/// The names of all nodes of a topology. A copy of one shares its bytes.
pub(crate) struct Names {
    /// Hosts, then switches.
    nodes: Vec<ByteArray>,
    hosts: u32,
    up: ByteArray,
    down: ByteArray,
}

impl Names {
    pub(crate) fn of(topology: &Topology) -> Names {
        let hosts = (0..topology.hosts()).map(|host| format!("host{host}"));
        let switches = (0..topology.switches()).map(|switch| {
            let place = topology.place(SwitchId(switch));
            format!("{}{}", ["tor", "agg", "core"][usize::from(place.tier)], place.index)
        });
        Names {
            nodes: hosts.chain(switches).map(|name| ByteArray::from(name.into_bytes())).collect(),
            hosts: topology.hosts(),
            up: ByteArray::from("up"),
            down: ByteArray::from("down"),
        }
    }

    /// `host17`; or `tor3`, `agg1`, `core0`, counted within their tiers.
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

    /// The name without its number: `host`, `tor`, `agg`, `core`.
    pub(crate) fn kind(&self, node: Node) -> String {
        self.text(node).trim_end_matches(|c: char| c.is_ascii_digit()).to_owned()
    }

    /// The directed link behind a port: `tor3>host17`. Parallel links have the same name.
    pub(crate) fn link(&self, topology: &Topology, port: PortId) -> String {
        let spec = topology.port(port);
        format!("{}>{}", self.text(spec.owner), self.text(spec.peer))
    }

    pub(super) fn up(&self) -> ByteArray {
        self.up.clone()
    }

    pub(super) fn down(&self) -> ByteArray {
        self.down.clone()
    }
}
