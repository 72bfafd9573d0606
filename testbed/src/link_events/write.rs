//! Formatting of link events.

use core::fmt;

use crate::sim::{CorrelatedLoss, GilbertElliott, LinkChange, LinkDirections, LinkEvent};
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
    write!(out, " ")?;
    write_link(event.link, fabric, out)?;
    write!(out, " ")?;
    write_link_change(&event.change, out)
}

/// Writes a change of a link: the last word of an event.
pub fn write_link_change(change: &LinkChange, out: &mut impl fmt::Write) -> fmt::Result {
    match *change {
        LinkChange::Fail => write!(out, "fail"),
        LinkChange::Restore => write!(out, "restore"),
        LinkChange::Degrade(rate) => {
            write!(out, "rate=")?;
            write_scaled(out, rate.as_bps(), &RATES)
        }
        // `Display` gives the shortest decimal that parses to the same value.
        LinkChange::Drop(p) => write!(out, "drop={p}"),
        LinkChange::DropOver(bytes) => write!(out, "drop-over={bytes}"),
        LinkChange::BitErrors(p) => write!(out, "ber={p}"),
        LinkChange::Corrupt(p) => write!(out, "corrupt={p}"),
        LinkChange::Trim(p) => write!(out, "trim={p}"),
        LinkChange::Delay(delay) => {
            write!(out, "delay=")?;
            write_scaled(out, delay.as_ps(), &TIMES)
        }
        LinkChange::Correlated(CorrelatedLoss::GilbertElliott(model)) => {
            let GilbertElliott { to_bad, to_good, loss_bad, loss_good } = model;
            write!(out, "gilbert={to_bad},{to_good},{loss_bad},{loss_good}")
        }
        LinkChange::Correlated(CorrelatedLoss::Blocks(blocks)) => {
            write!(out, "block-loss={}:", blocks.packets())?;
            for (index, chance) in blocks.chances().iter().enumerate() {
                write!(out, "{}{chance}", if index == 0 { "" } else { "," })?;
            }
            // A block that never loses anything still has a number.
            if blocks.chances().is_empty() { write!(out, "0") } else { Ok(()) }
        }
    }
}

fn write_scaled(out: &mut impl fmt::Write, value: u64, units: &[(u64, &str)]) -> fmt::Result {
    let (factor, unit) = units.iter().find(|(factor, _)| value.is_multiple_of(*factor)).ok_or(fmt::Error)?;
    write!(out, "{}{unit}", value / factor)
}

/// Writes the words that name a link of `fabric`, or a direction of it.
pub fn write_link(link: LinkDirections, fabric: &Topology, out: &mut impl fmt::Write) -> fmt::Result {
    match link {
        LinkDirections::Both(port) => write_ends(port, fabric, out),
        LinkDirections::From(port) => {
            let direction = match fabric.port(port).direction {
                Direction::Across => return write!(out, "link={}", fabric.direction_name(port)),
                Direction::Up => "up",
                Direction::Down => "down",
            };
            write_ends(port, fabric, out)?;
            write!(out, " dir={direction}")
        }
    }
}

fn write_ends(port: PortId, fabric: &Topology, out: &mut impl fmt::Write) -> fmt::Result {
    let spec = fabric.port(port);
    let (owner, peer) = match (spec.owner, spec.peer) {
        (Node::Host(host), _) | (_, Node::Host(host)) => return write!(out, "host={}", host.0),
        (Node::Switch(owner), Node::Switch(peer)) => (owner, peer),
    };
    let Some(place) = fabric.place(owner) else {
        return write!(out, "link={}", fabric.link_name(port));
    };
    let is_top = usize::from(place.tier) + 1 == fabric.tiers().len();
    let (switch, port, ports) = match spec.direction {
        Direction::Up => (owner, port, fabric.up_ports(owner)),
        _ if is_top => (owner, port, fabric.down_ports(owner)),
        _ => (peer, spec.reverse, fabric.up_ports(peer)),
    };
    let place = fabric.place(switch).ok_or(fmt::Error)?;
    write!(out, "tier={} switch={} link={}", place.tier, place.index, port.0 - ports.first.0)
}
