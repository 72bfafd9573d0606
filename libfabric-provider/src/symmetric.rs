//! Ranges of addresses: those of successive hosts, and of each of them successive ports (`fi_av_insertsym`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The addresses of a range, host after host.
#[derive(Debug)]
pub(crate) struct Range {
    first: Node,
    nodes: usize,
    port: u16,
    ports: usize,
    next: usize,
}

/// One of them. The node is none where there is no such host.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Symmetric {
    pub(crate) node: Option<String>,
    pub(crate) port: u16,
}

#[derive(Debug)]
enum Node {
    Ip(IpAddr),
    /// A name that ends with a number of so many digits.
    Name {
        before: String,
        number: u64,
        digits: usize,
    },
    /// The only one.
    Alone(String),
}

impl Range {
    /// `nodes` hosts from `node` on, and of each `ports` ports from `port` on; `None` if there are not so many.
    pub(crate) fn parse(node: &str, nodes: usize, port: &str, ports: usize) -> Option<Range> {
        let port: u16 = port.parse().ok()?;
        let last = usize::from(port).checked_add(ports)?;
        nodes.checked_mul(ports)?;
        (last <= 1 << 16).then_some(Range { first: Node::parse(node, nodes)?, nodes, port, ports, next: 0 })
    }
}

impl Iterator for Range {
    type Item = Symmetric;

    fn next(&mut self) -> Option<Symmetric> {
        if self.next >= self.nodes * self.ports {
            return None;
        }
        let (node, port) = (self.next / self.ports, self.next % self.ports);
        self.next += 1;
        Some(Symmetric { node: self.first.plus(node as u64), port: self.port + port as u16 })
    }
}

impl Node {
    fn parse(text: &str, count: usize) -> Option<Node> {
        if let Ok(ip) = text.parse() {
            return Some(Node::Ip(ip));
        }
        if count <= 1 {
            return Some(Node::Alone(text.to_owned()));
        }
        let before = text.trim_end_matches(|c: char| c.is_ascii_digit());
        let digits = text.len() - before.len();
        let number = text[before.len()..].parse().ok()?;
        Some(Node::Name { before: before.to_owned(), number, digits })
    }

    fn plus(&self, n: u64) -> Option<String> {
        match self {
            Node::Ip(IpAddr::V4(ip)) => {
                let next = u32::from(*ip).checked_add(u32::try_from(n).ok()?)?;
                Some(Ipv4Addr::from(next).to_string())
            }
            Node::Ip(IpAddr::V6(ip)) => {
                Some(Ipv6Addr::from(u128::from(*ip).checked_add(n.into())?).to_string())
            }
            Node::Name { before, number, digits } => {
                Some(format!("{before}{:0digits$}", number.checked_add(n)?))
            }
            Node::Alone(name) => Some(name.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(node: &str, nodes: usize, port: &str, ports: usize) -> Option<Vec<String>> {
        let range = Range::parse(node, nodes, port, ports)?;
        Some(range.map(|at| format!("{} {}", at.node.unwrap_or_default(), at.port)).collect())
    }

    #[test]
    fn a_range_has_all_ports_of_a_host_before_the_next_host() {
        let four = |hosts: [&str; 2]| {
            Some(hosts.iter().flat_map(|host| [5000, 5001].map(|port| format!("{host} {port}"))).collect())
        };
        assert_eq!(all("10.1.1.255", 2, "5000", 2), four(["10.1.1.255", "10.1.2.0"]));
        assert_eq!(all("fd00::ffff", 2, "5000", 2), four(["fd00::ffff", "fd00::1:0"]));
        assert_eq!(all("host10", 2, "5000", 2), four(["host10", "host11"]));
        assert_eq!(all("host09", 2, "5000", 2), four(["host09", "host10"]));
        assert_eq!(all("login", 1, "7", 1), Some(vec!["login 7".to_owned()]));
        assert_eq!(all("login", 0, "7", 1), Some(Vec::new()));
        assert_eq!(all("10.0.0.1", 1, "65535", 1), Some(vec!["10.0.0.1 65535".to_owned()]));
        assert_eq!(
            all("255.255.255.255", 2, "1", 1),
            Some(vec!["255.255.255.255 1".to_owned(), " 1".to_owned()])
        );
        let none = [
            ("login", 2, "7", 1),
            ("host1", 1, "http", 1),
            ("host1", 1, "65535", 2),
            ("host1", usize::MAX, "1", 2),
        ];
        assert!(none.into_iter().all(|(node, nodes, port, ports)| all(node, nodes, port, ports).is_none()));
    }
}
