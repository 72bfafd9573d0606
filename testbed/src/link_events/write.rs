//! Formatting of link events.

use core::fmt;

use crate::sim::{LinkChange, LinkEvent};
use crate::topology::{Direction, Node, PortId, Topology};

/// Units from the largest to the smallest. A value is written in the first unit of which it is a multiple.
const TIMES: [(u64, &str); 5] =
    [(1_000_000_000_000, "s"), (1_000_000_000, "ms"), (1_000_000, "us"), (1_000, "ns"), (1, "ps")];
const RATES: [(u64, &str); 5] =
    [(1_000_000_000_000, "T"), (1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k"), (1, "bps")];

/// Writes an event of a link of `fabric` as one line, without a line break. Parsing the line gives an event
/// of the same link at the same time.
pub fn write_link_event(event: &LinkEvent, fabric: &Topology, out: &mut impl fmt::Write) -> fmt::Result {
    write_scaled(out, event.at.as_ps(), &TIMES)?;
    write_link(out, event.port, fabric)?;
    match event.change {
        LinkChange::Fail => write!(out, " fail"),
        LinkChange::Restore => write!(out, " restore"),
        LinkChange::Degrade(rate) => {
            write!(out, " rate=")?;
            write_scaled(out, rate.as_bps(), &RATES)
        }
        // `Display` gives the shortest decimal that parses to the same value.
        LinkChange::Drop(p) => write!(out, " drop={p}"),
        LinkChange::Corrupt(p) => write!(out, " corrupt={p}"),
    }
}

fn write_scaled(out: &mut impl fmt::Write, value: u64, units: &[(u64, &str)]) -> fmt::Result {
    let (factor, unit) = units.iter().find(|(factor, _)| value.is_multiple_of(*factor)).ok_or(fmt::Error)?;
    write!(out, "{}{unit}", value / factor)
}

fn write_link(out: &mut impl fmt::Write, port: PortId, fabric: &Topology) -> fmt::Result {
    let spec = fabric.port(port);
    match (spec.owner, spec.peer) {
        (Node::Host(host), _) | (_, Node::Host(host)) => write!(out, " host={}", host.0),
        (Node::Switch(owner), Node::Switch(peer)) => {
            let is_top = usize::from(fabric.place(owner).tier) + 1 == fabric.tiers().len();
            let (switch, port, ports) = match spec.direction {
                Direction::Up => (owner, port, fabric.up_ports(owner)),
                Direction::Down if is_top => (owner, port, fabric.down_ports(owner)),
                Direction::Down => (peer, spec.reverse, fabric.up_ports(peer)),
            };
            let place = fabric.place(switch);
            write!(out, " tier={} switch={} link={}", place.tier, place.index, port.0 - ports.first.0)
        }
    }
}
