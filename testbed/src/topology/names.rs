//! The names of nodes and links, and the classes of ports.
//!
//! A link is named by its ends: `A-B` for both directions, `A>B` for that from A to B, with `:N` behind it for number N
//! (from 0) of several links between the two.

use thiserror::Error;

use super::fabric::Kind;
use super::graph::HOST_CLASS;
use super::{Direction, HostId, Node, PortId, Topology};

/// The names of the switches of a folded Clos, by tier.
const TIERS: [&str; 3] = ["tor", "agg", "core"];
/// The classes of the ports of a folded Clos: first those of two tiers.
const CLOS_CLASSES: [&str; 5] = [HOST_CLASS, "tor-up", "agg-down", "agg-up", "core-down"];

/// A link, or a direction of it, that has been found by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedLink {
    /// The port of the first end.
    pub port: PortId,
    /// Whether the name means only the direction in which that port sends.
    pub one_way: bool,
}

/// Why a text names no link.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("expected {0}")]
pub struct LinkNameError(String);

impl LinkNameError {
    /// What was expected, to complete the sentence "expected …".
    pub fn expected(&self) -> &str {
        &self.0
    }
}

fn expected<T>(what: impl Into<String>) -> Result<T, LinkNameError> {
    Err(LinkNameError(what.into()))
}

impl Topology {
    /// The name of a node: `host3`, `tor0`, `agg5` and `core2` in a folded Clos, counted within their tiers; the name
    /// that a graph gives it.
    pub fn node_name(&self, node: Node) -> String {
        match (&self.kind, node) {
            (Kind::Graph(graph), Node::Host(host)) => graph.host_names[host.0 as usize].clone(),
            (Kind::Graph(graph), Node::Switch(switch)) => graph.switches[switch.0 as usize].name.clone(),
            (Kind::Clos(_), Node::Host(host)) => format!("host{}", host.0),
            (Kind::Clos(clos), Node::Switch(switch)) => {
                let place = clos.place(switch);
                format!("{}{}", TIERS[usize::from(place.tier)], place.index)
            }
        }
    }

    /// The node called `name`, if there is one.
    pub fn node_named(&self, name: &str) -> Option<Node> {
        if let Kind::Graph(graph) = &self.kind {
            return graph.nodes.get(name).copied();
        }
        let digits = name.find(|c: char| c.is_ascii_digit())?;
        let (kind, number) = name.split_at(digits);
        let number: u32 = number.parse().ok().filter(|n: &u32| n.to_string() == number)?;
        if kind == "host" {
            return (number < self.hosts()).then_some(Node::Host(HostId(number)));
        }
        let tier = TIERS.iter().position(|tier| *tier == kind)?;
        self.switch_at(tier as u8, number).map(Node::Switch)
    }

    /// The ports of `from` whose links lead to `to`, in order.
    pub fn ports_between(&self, from: Node, to: Node) -> impl Iterator<Item = PortId> {
        let ports = match from {
            Node::Host(host) => host.0..host.0 + 1,
            Node::Switch(switch) => {
                let ports = self.ports_of(switch);
                ports.first.0..ports.first.0 + ports.count
            }
        };
        ports.map(PortId).filter(move |port| self.port(*port).peer == to)
    }

    /// The name of the direction in which `port` sends, such as `tor0>agg1`.
    pub fn direction_name(&self, port: PortId) -> String {
        self.name_with('>', port)
    }

    /// The name of the link at `port` for both directions, such as `tor0-agg1`. Both of its ports give the same name:
    /// the end with the lower port number comes first.
    pub fn link_name(&self, port: PortId) -> String {
        self.name_with('-', port.min(self.port(port).reverse))
    }

    fn name_with(&self, joint: char, port: PortId) -> String {
        let spec = self.port(port);
        let (owner, peer) = (self.node_name(spec.owner), self.node_name(spec.peer));
        // Numbered by the end with the lower port numbers, so that both ends agree.
        let (first, from, to) = match port < spec.reverse {
            true => (port, spec.owner, spec.peer),
            false => (spec.reverse, spec.peer, spec.owner),
        };
        let mut parallel = self.ports_between(from, to);
        let number = parallel.position(|other| other == first).unwrap_or(0);
        match number > 0 || parallel.next().is_some() {
            true => format!("{owner}{joint}{peer}:{number}"),
            false => format!("{owner}{joint}{peer}"),
        }
    }

    /// The link called `name`: `A-B` or `A>B`, with `:N` behind it where A and B are joined by several links.
    ///
    /// # Errors
    /// [`LinkNameError`] if the text has another form, or there is no such node or link.
    pub fn link_named(&self, name: &str) -> Result<NamedLink, LinkNameError> {
        const FORM: &str = "A-B (both directions) or A>B (one), with :N behind it for one of several links";
        let Some((first, rest)) = name.split_once(['-', '>']) else { return expected(FORM) };
        let one_way = name.as_bytes()[first.len()] == b'>';
        let (second, number) = match rest.split_once(':') {
            None => (rest, None),
            Some((second, number)) => match number.parse::<usize>() {
                Ok(number) => (second, Some(number)),
                Err(_) => return expected(FORM),
            },
        };
        let node = |name: &str| match self.node_named(name) {
            Some(node) => Ok(node),
            None if self.is_graph() => expected(format!("a node of the topology instead of `{name}`")),
            None => expected(format!("hostN, torN, aggN or coreN of the topology instead of `{name}`")),
        };
        let (a, b) = (node(first)?, node(second)?);
        // Numbered by the end with the lower port numbers; see `name_with`.
        let in_order = self.ports_between(a, b).next().is_some_and(|port| port < self.port(port).reverse);
        let links: Vec<PortId> = match in_order {
            true => self.ports_between(a, b).collect(),
            false => self.ports_between(b, a).map(|port| self.port(port).reverse).collect(),
        };
        match (links.len(), number) {
            (0, _) => {
                expected(format!("two nodes that a link joins; there is none between {first} and {second}"))
            }
            (1, None) => Ok(NamedLink { port: links[0], one_way }),
            (count, None) => expected(format!(
                ":0 to :{} behind the name, as {first} and {second} are joined by {count} links",
                count - 1
            )),
            (count, Some(number)) if number < count => Ok(NamedLink { port: links[number], one_way }),
            (count, Some(_)) => expected(format!(
                "a number below {count}, as {first} and {second} are joined by so many links"
            )),
        }
    }

    /// The names of the classes of switch ports. In a folded Clos: `host` (to hosts), `tor-up`, `agg-down`, and with
    /// three tiers `agg-up` and `core-down`; in a graph those that its links name, and `host` and `switch` for others.
    pub fn classes(&self) -> Vec<&str> {
        match &self.kind {
            Kind::Clos(clos) => CLOS_CLASSES[..2 * usize::from(clos.shape.tiers) - 1].to_vec(),
            Kind::Graph(graph) => graph.classes.iter().map(String::as_str).collect(),
        }
    }

    /// The index of the class of a port in [`Topology::classes`]; `None` for a host's port.
    pub fn class_of(&self, port: PortId) -> Option<usize> {
        let spec = self.port(port);
        let Node::Switch(switch) = spec.owner else { return None };
        match &self.kind {
            Kind::Graph(graph) => graph.ports[port.0 as usize].class.map(usize::from),
            Kind::Clos(clos) => {
                let tier = usize::from(clos.place(switch).tier);
                Some(2 * tier + usize::from(spec.direction == Direction::Up))
            }
        }
    }
}
