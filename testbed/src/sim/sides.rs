//! The two sides of a fabric, which take turns ([`super::engine`]).

use super::shard::Side;
use crate::topology::{Node, SwitchId, Topology};

/// The side of each switch.
pub(super) struct Sides(Vec<Side>);

impl Sides {
    /// Divides the switches of a fabric so that each link joins one side to the other, with all hosts on the even one: in
    /// a folded Clos the tiers alternate. Where that is impossible, because a link joins two switches at the same
    /// distance from the hosts or hosts are at different ones, all nodes are even, and the odd side is empty.
    pub(super) fn of(topology: &Topology) -> Sides {
        let mut sides: Vec<Option<Side>> = vec![None; topology.switches() as usize];
        let mut ahead = Vec::new();
        for nic in &topology.ports()[..topology.hosts() as usize] {
            let Node::Switch(switch) = nic.peer else { continue };
            if sides[switch.0 as usize].replace(Side::Odd).is_none() {
                ahead.push(switch);
            }
        }
        while let Some(switch) = ahead.pop() {
            let Some(side) = sides[switch.0 as usize] else { continue };
            for port in topology.ports_of(switch).iter() {
                let Node::Switch(next) = topology.port(port).peer else { continue };
                match &mut sides[next.0 as usize] {
                    unknown @ None => {
                        *unknown = Some(side.other());
                        ahead.push(next);
                    }
                    Some(same) if *same == side => {
                        return Sides(vec![Side::Even; topology.switches() as usize]);
                    }
                    Some(_) => {}
                }
            }
        }
        Sides(sides.into_iter().map(|side| side.unwrap_or(Side::Odd)).collect())
    }

    /// The side of a switch.
    pub(super) fn side(&self, switch: SwitchId) -> Side {
        self.0[switch.0 as usize]
    }

    /// Whether hosts and all switches are on one side, so that links join nodes of the same side.
    pub(super) fn is_one(&self) -> bool {
        !self.0.contains(&Side::Odd)
    }

    /// All switches, those of the hosts' side first.
    pub(super) fn in_order(&self) -> impl Iterator<Item = SwitchId> {
        let of_side = |side| {
            let on_side = move |(_, other): &(u32, &Side)| **other == side;
            (0..).zip(&self.0).filter(on_side).map(|(switch, _)| SwitchId(switch))
        };
        of_side(Side::Even).chain(of_side(Side::Odd))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::TopologySpec;

    fn sides(spec: &str) -> (Topology, Sides) {
        let topology = spec.parse::<TopologySpec>().unwrap().build().unwrap();
        let sides = Sides::of(&topology);
        (topology, sides)
    }

    #[test]
    fn the_tiers_of_a_clos_alternate() {
        for spec in ["fat-tree:k=4,hosts=13", "leaf-spine:hosts=12,leaves=3,spines=4"] {
            let (topology, sides) = sides(spec);
            for switch in (0..topology.switches()).map(SwitchId) {
                let tier = topology.place(switch).unwrap().tier;
                assert_eq!(sides.side(switch) == Side::Odd, tier.is_multiple_of(2), "{spec}: {switch:?}");
            }
        }
    }

    #[test]
    fn two_data_centres_have_one_side_only_as_their_borders_are_equally_far_from_hosts() {
        assert!(sides("two-dc:k=4").1.is_one());
        assert!(sides("dumbbell:hosts=2").1.is_one());
    }
}
