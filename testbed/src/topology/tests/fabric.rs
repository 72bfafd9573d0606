//! Wiring, routes, latencies and bounds.

use proptest::prelude::*;
use weft_cc::{Rate, Span};
use weft_stack::rng::Rng;

use super::{PUBLIC, bundled, public};
use crate::topology::{
    Cut, Direction, HostId, Node, PortId, SwitchId, Topology, TopologySpec, parse_graph, parse_topo,
};

struct Expected {
    file: &'static str,
    hosts: u32,
    switches: [u32; 3],
    ports: usize,
    gbps: u64,
    oversubscription: [f64; 2],
    hops: u32,
}

const fn expected(
    file: &'static str,
    hosts: u32,
    switches: [u32; 3],
    ports: usize,
    gbps: u64,
    oversubscription: [f64; 2],
) -> Expected {
    let hops = if switches[2] == 0 { 4 } else { 6 };
    Expected { file, hosts, switches, ports, gbps, oversubscription, hops }
}

const SHAPES: [Expected; 12] = [
    expected("topologies/fat_tree_1024.topo", 1024, [128, 128, 64], 6144, 100, [1.0, 1.0]),
    expected("topologies/fat_tree_1024_1os.topo", 1024, [128, 128, 64], 6144, 200, [1.0, 1.0]),
    expected("topologies/fat_tree_1024_4os.topo", 1024, [128, 32, 16], 3072, 200, [4.0, 1.0]),
    expected("topologies/fat_tree_1024_8os.topo", 1024, [128, 32, 8], 2816, 100, [4.0, 2.0]),
    expected("topologies/fat_tree_128_1os.topo", 128, [32, 32, 16], 768, 100, [1.0, 1.0]),
    expected("topologies/fat_tree_8192_1os.topo", 8192, [512, 512, 256], 49152, 100, [1.0, 1.0]),
    expected("topologies/leaf_spine_1024.topo", 1024, [32, 32, 0], 4096, 100, [1.0, 1.0]),
    expected("topologies/leaf_spine_1024_oversub.topo", 1024, [32, 8, 0], 2560, 100, [4.0, 1.0]),
    expected("topologies/leaf_spine_1024_oversub_8-1.topo", 1024, [32, 4, 0], 2304, 100, [8.0, 1.0]),
    expected("topologies/leaf_spine_8192_100g.topo", 8192, [128, 64, 0], 32768, 100, [1.0, 1.0]),
    expected("topologies/leaf_spine_tiny.topo", 32, [4, 2, 0], 80, 100, [4.0, 1.0]),
    expected("uno/fat_tree_100Gbps.topo", 128, [32, 32, 16], 768, 100, [1.0, 1.0]),
];

#[test]
fn public_files_have_the_published_shapes() {
    for (want, (path, text)) in SHAPES.iter().zip(PUBLIC) {
        assert_eq!(want.file, path);
        let fabric = parse_topo(path, text).unwrap();
        assert_eq!(fabric.name(), path);
        assert_eq!(fabric.hosts(), want.hosts, "{path}");
        assert_eq!([0, 1, 2].map(|t| fabric.switches_in(t)), want.switches, "{path}");
        assert_eq!(fabric.ports().len(), want.ports, "{path}");
        assert!(fabric.ports().iter().all(|p| p.rate == Rate::from_gbps(want.gbps)), "{path}");
        assert!(fabric.ports().iter().all(|p| p.latency == Span::from_us(1)), "{path}");
        assert_eq!([0, 1].map(|t| fabric.oversubscription(t)), want.oversubscription, "{path}");
        assert_eq!(fabric.diameter_hops(), want.hops, "{path}");
        assert_eq!(fabric.diameter_latency(), Span::from_us(u64::from(want.hops)), "{path}");
    }
}

/// Checks that the two ports of each link refer to each other, and that every port belongs to its owner.
fn check_wiring(fabric: &Topology) {
    for (i, port) in fabric.ports().iter().enumerate() {
        let id = PortId(i as u32);
        let back = fabric.port(port.reverse);
        assert_eq!((back.reverse, back.owner, back.peer), (id, port.peer, port.owner), "port {i}");
        assert_eq!((back.rate, back.latency, back.tier), (port.rate, port.latency, port.tier), "port {i}");
        assert_ne!(back.direction, port.direction, "port {i}");
        match port.owner {
            Node::Host(host) => {
                assert_eq!(fabric.nic(host), id);
                assert_eq!(port.peer, Node::Switch(fabric.tor_of(host)));
            }
            Node::Switch(switch) => {
                let (up, down) = (fabric.up_ports(switch), fabric.down_ports(switch));
                assert!(fabric.ports_of(switch).contains(id));
                assert_eq!(up.contains(id), port.direction == Direction::Up);
                assert_eq!(down.contains(id), port.direction == Direction::Down);
            }
        }
    }
    let owned: u32 = (0..fabric.switches()).map(|s| fabric.ports_of(SwitchId(s)).count).sum();
    assert_eq!(fabric.hosts() + owned, fabric.ports().len() as u32);
}

/// Follows every routing choice from `src` to `dst` and marks the ports on the way in `used`. Returns the
/// number of different paths.
fn check_routes(fabric: &Topology, src: HostId, dst: HostId, used: &mut [bool]) -> u64 {
    let mut hops = 1;
    used[fabric.nic(src).0 as usize] = true;
    let mut at = vec![(fabric.port(fabric.nic(src)).peer, 1u64)];
    while at != [(Node::Host(dst), at[0].1)] {
        let mut next: Vec<(Node, u64)> = Vec::new();
        for (node, paths) in at {
            let Node::Switch(switch) = node else { panic!("{src:?} to {dst:?} arrives at {node:?}") };
            let choices = fabric.next_ports(switch, dst);
            assert!(choices.len() > 0);
            for port in choices.iter() {
                used[port.0 as usize] = true;
                assert_eq!(fabric.port(port).owner, node);
                let peer = fabric.port(port).peer;
                match next.iter_mut().find(|(n, _)| *n == peer) {
                    Some((_, sum)) => *sum += paths,
                    None => next.push((peer, paths)),
                }
            }
        }
        at = next;
        hops += 1;
        assert!(hops <= fabric.diameter_hops(), "{src:?} to {dst:?}");
    }
    assert_eq!(hops, fabric.path_hops(src, dst), "{src:?} to {dst:?}");
    at[0].1
}

/// Checks the routes of all pairs, and that every port is on some route.
fn check_all_routes(fabric: &Topology) {
    let mut used = vec![false; fabric.ports().len()];
    for src in (0..fabric.hosts()).map(HostId) {
        for dst in (0..fabric.hosts()).map(HostId).filter(|&dst| dst != src) {
            check_routes(fabric, src, dst, &mut used);
        }
    }
    assert_eq!(used.iter().position(|u| !u), None, "a port that no route uses");
}

#[test]
fn every_routing_choice_reaches_the_destination() {
    for end in ["leaf_spine_tiny.topo", "fat_tree_128_1os.topo", "fat_tree_100Gbps.topo"] {
        check_all_routes(&public(end));
    }
    check_all_routes(&bundled());
}

#[test]
fn random_pairs_of_large_fabrics_reach_each_other() {
    let mut rng = Rng::new(1, 0);
    for (path, text) in PUBLIC {
        let fabric = parse_topo(path, text).unwrap();
        check_wiring(&fabric);
        let mut used = vec![false; fabric.ports().len()];
        for _ in 0..200 {
            let (src, dst) = (rng.below(fabric.hosts()), rng.below(fabric.hosts()));
            if src != dst {
                check_routes(&fabric, HostId(src), HostId(dst), &mut used);
            }
        }
    }
}

#[test]
fn the_number_of_equal_cost_paths_is_right() {
    let count = |fabric: &Topology, src, dst| {
        check_routes(fabric, HostId(src), HostId(dst), &mut vec![false; fabric.ports().len()])
    };
    let tree = public("fat_tree_1024.topo");
    assert_eq!([1, 8, 64, 1023].map(|dst| count(&tree, 0, dst)), [1, 8, 64, 64]);
    let thin = public("fat_tree_1024_8os.topo");
    assert_eq!([1, 8, 64].map(|dst| count(&thin, 0, dst)), [1, 2, 8]);
    assert_eq!(count(&public("leaf_spine_1024_oversub_8-1.topo"), 0, 1023), 4);
    // Within a pod: 4 uplinks and a bundle of 2 links down. Between pods: 4 · 4 up and 2 · 2 down.
    assert_eq!([1, 4, 8].map(|dst| count(&bundled(), 0, dst)), [1, 8, 64]);
}

#[test]
fn switch_positions_are_right() {
    let tree = public("fat_tree_1024_8os.topo");
    let place = |s| {
        let place = tree.place(SwitchId(s)).unwrap();
        assert_eq!(tree.switch_at(place.tier, place.index), Some(SwitchId(s)));
        (place.tier, place.index, place.pod)
    };
    assert_eq!(place(0), (0, 0, Some(0)));
    assert_eq!(place(127), (0, 127, Some(15)));
    assert_eq!(place(128), (1, 0, Some(0)));
    assert_eq!(place(159), (1, 31, Some(15)));
    assert_eq!(place(167), (2, 7, None));
    assert_eq!(tree.switch_at(2, 8), None);
    assert_eq!(tree.switch_at(3, 0), None);
    assert_eq!((tree.tor_of(HostId(1023)), tree.pod_of(HostId(1023))), (SwitchId(127), Some(15)));
}

#[test]
fn link_numbers_name_uplinks_or_downlinks_of_the_top_tier() {
    let fabric = bundled();
    let ends = |tier, index, link| {
        fabric.link_at(tier, index, link).map(|p| (fabric.port(p).owner, fabric.port(p).peer))
    };
    let switch = |tier, index| Node::Switch(fabric.switch_at(tier, index).unwrap());
    // ToR 3 is in pod 1, whose aggregation switches are 2 and 3; two links lead to each.
    assert_eq!(ends(0, 3, 1), Some((switch(0, 3), switch(1, 2))));
    assert_eq!(ends(0, 3, 2), Some((switch(0, 3), switch(1, 3))));
    // Aggregation switch 3, second of its pod, reaches the cores 1 and 3.
    assert_eq!(ends(1, 3, 0), Some((switch(1, 3), switch(2, 1))));
    assert_eq!(ends(1, 3, 3), Some((switch(1, 3), switch(2, 3))));
    assert_eq!(ends(2, 1, 3), Some((switch(2, 1), switch(1, 3))));
    assert_eq!([ends(0, 3, 4), ends(0, 4, 0), ends(2, 0, 4), ends(3, 0, 0)], [None; 4]);
}

#[test]
fn latencies_and_round_trips_are_right() {
    // 2 · 6 µs + 6 · (332 ns + 5.12 ns): the reference's network_max_unloaded_rtt.
    let tree = public("fat_tree_1024.topo");
    assert_eq!(tree.network_rtt(4150, 64), Span::from_ps(14_022_720));
    assert_eq!(tree.bdp(4150, 64), 175_284);
    assert_eq!(tree.pair_rtt(HostId(0), HostId(1023), 4150, 64), Span::from_ps(14_022_720));
    assert_eq!(tree.pair_rtt(HostId(0), HostId(1), 4150, 64), Span::from_ps(4_674_240));
    assert_eq!(tree.pair_rtt(HostId(5), HostId(5), 4150, 64), Span::ZERO);
    assert_eq!(tree.path_hops(HostId(5), HostId(5)), 0);
    assert_eq!(public("leaf_spine_1024.topo").network_rtt(4150, 64), Span::from_ps(9_348_480));

    let fabric = bundled();
    let latency = |dst| fabric.path_latency(HostId(0), HostId(dst));
    assert_eq!(latency(1), Span::from_ns(2_000 + 100));
    assert_eq!(latency(4), Span::from_ns(6_000 + 200 + 200));
    assert_eq!(latency(8), Span::from_ns(12_000 + 200 + 400 + 300));
    assert_eq!(fabric.diameter_latency(), latency(8));
    assert_eq!(fabric.switch_latency(SwitchId(4)), Span::from_ns(200));
}

#[test]
fn pair_round_trips_use_the_rate_of_each_link() {
    let spec: TopologySpec = "leaf-spine:hosts=144,leaves=9,spines=4,uplink=400G".parse().unwrap();
    let fabric = spec.build().unwrap();
    assert_eq!(fabric.oversubscription(0), 1.0);
    let (near, far) = (HostId(15), HostId(16));
    // 1250 B: 100 ns at 100G, 25 ns at 400G.
    assert_eq!(fabric.pair_rtt(HostId(0), near, 1250, 1250), Span::from_ns(4_000 + 4 * 100));
    assert_eq!(fabric.pair_rtt(HostId(0), far, 1250, 1250), Span::from_ns(8_000 + 4 * 100 + 4 * 25));
    assert_eq!(fabric.network_rtt(1250, 1250), Span::from_ns(8_000 + 8 * 100));
    let slow = fabric.with_link_rate(Rate::from_gbps(10));
    assert!(slow.ports().iter().all(|p| p.rate == Rate::from_gbps(10)));
    assert_eq!((slow.host_rate(), slow.oversubscription(0)), (Rate::from_gbps(10), 4.0));
}

/// With links of one rate, the way through `c` is the slower one; before, it was that through `b`.
#[test]
fn the_slowest_ways_of_a_graph_follow_the_rate_of_its_links() {
    let text = |rate: &str| {
        format!(
            "switch a\nswitch b\nswitch c\nswitch d\nhost h0\nhost h1\nlink h0 a\nlink h1 d\n\
             link a b{rate}\nlink b d{rate}\nlink a c latency=2us\nlink c d\n"
        )
    };
    let build = |rate| parse_graph("ways.graph", &text(rate)).unwrap();
    let rate = Rate::from_gbps(100);
    let (changed, expected) = (build(" rate=1G").with_link_rate(rate), build(""));
    assert_eq!(changed.network_rtt(4160, 84), expected.network_rtt(4160, 84));
    assert_eq!(changed, expected);
}

#[test]
fn a_slowed_fabric_has_the_same_bandwidth_delay_product() {
    let spec: TopologySpec = "leaf-spine:hosts=16,leaves=4,switch-latency=100ns".parse().unwrap();
    let fabric = spec.build().unwrap();
    let slow = fabric.clone().slowed(500);
    assert_eq!((slow.host_rate(), slow.bdp(4160, 84)), (Rate::from_bps(200_000_000), fabric.bdp(4160, 84)));
    assert_eq!(slow.network_rtt(4160, 84), fabric.network_rtt(4160, 84).times(500));
    assert_eq!(slow.diameter_latency(), fabric.diameter_latency().times(500));
    assert!(slow.ports().iter().all(|port| port.latency == Span::from_us(500)));
}

#[test]
fn queue_sizes_of_the_file_apply_to_the_right_ports() {
    let fabric = bundled();
    let up = |s| fabric.queue_of(fabric.up_ports(SwitchId(s)).nth(0));
    let down = |s| fabric.queue_of(fabric.down_ports(SwitchId(s)).nth(0));
    assert_eq!((up(0), down(0)), (Some(500_000), None));
    assert_eq!((up(4), down(4)), (None, None));
    assert_eq!(down(8), Some(700_000));
    assert_eq!(fabric.queue_of(PortId(0)), None);
}

/// Every host sends `bytes` to the host `shift` further on.
fn shift(fabric: &Topology, shift: u32, bytes: u64) -> Vec<(HostId, HostId, u64)> {
    let hosts = fabric.hosts();
    (0..hosts).map(|h| (HostId(h), HostId((h + shift) % hosts), bytes)).collect()
}

#[test]
fn the_busiest_link_sets_the_bound() {
    // 2 MiB in packets of 4096 + 64 bytes.
    let bytes = 512 * 4160;
    let alone = Rate::from_gbps(100).time_for(bytes);

    let fabric = public("leaf_spine_1024_oversub_8-1.topo");
    let bound = fabric.busiest_link_bound(shift(&fabric, 32, bytes));
    assert_eq!((bound.time, &bound.at), (Span::from_ps(1_363_148_800), &Cut::FromTor(0)));
    assert_eq!(bound.at.to_string(), "uplinks of ToR 0");
    let inside = fabric.busiest_link_bound([(HostId(0), HostId(1), bytes), (HostId(2), HostId(3), bytes)]);
    assert_eq!((inside.time, inside.at), (alone, Cut::FromHost(HostId(0))));
    let shifted_by_one = fabric.busiest_link_bound(shift(&fabric, 1, bytes));
    assert_eq!(shifted_by_one.time, alone);

    let incast: Vec<_> = (1..33).map(|h| (HostId(h * 31), HostId(0), bytes)).collect();
    let bound = fabric.busiest_link_bound(incast);
    assert_eq!((bound.time, bound.at), (alone.times(32), Cut::ToHost(HostId(0))));

    // Eight hosts of one leaf receive over four links.
    let into_leaf: Vec<_> = (0..8).map(|h| (HostId(64 + 32 * h), HostId(h), bytes)).collect();
    let bound = fabric.busiest_link_bound(into_leaf);
    assert_eq!((bound.time, bound.at), (alone.times(2), Cut::ToTor(0)));
}

#[test]
fn pods_can_be_the_bottleneck() {
    let bytes = 1_250_000;
    let alone = Rate::from_gbps(100).time_for(bytes);
    let fabric = public("fat_tree_1024_8os.topo");
    // 64 hosts leave a pod by 2 · 4 links; 8 hosts reach the next ToR of the same pod by 2 links.
    let across = fabric.busiest_link_bound(shift(&fabric, 64, bytes));
    assert_eq!((across.time, across.at), (alone.times(8), Cut::FromPod(0)));
    let within = fabric.busiest_link_bound(shift(&fabric, 8, bytes));
    assert_eq!((within.time, within.at), (alone.times(4), Cut::FromTor(0)));
    let into_pod: Vec<_> = (0..64).map(|h| (HostId(64 + 15 * h), HostId(h), bytes)).collect();
    let bound = fabric.busiest_link_bound(into_pod);
    assert_eq!((bound.time, bound.at), (alone.times(8), Cut::ToPod(0)));
}

#[test]
fn without_traffic_the_bound_is_zero() {
    let fabric = public("leaf_spine_tiny.topo");
    let idle = fabric.busiest_link_bound([(HostId(0), HostId(1), 0); 0]);
    assert_eq!((idle.time, idle.at), (Span::ZERO, Cut::None));
    let to_itself = fabric.busiest_link_bound([(HostId(3), HostId(3), 1000), (HostId(1), HostId(2), 0)]);
    assert_eq!(to_itself.at, Cut::None);
}

#[test]
fn the_default_is_the_smallest_fat_tree() {
    let rate = Rate::from_gbps(400);
    for (hosts, k, switches) in
        [(1, 2, 5), (2, 2, 5), (3, 4, 20), (16, 4, 20), (17, 6, 45), (128, 8, 80), (1024, 16, 320)]
    {
        let fabric = Topology::default_for(hosts, rate).unwrap();
        assert_eq!(fabric.name(), format!("fat-tree:k={k},hosts={hosts},link=400000000000bps"));
        assert_eq!((fabric.hosts(), fabric.switches()), (hosts, switches));
        assert_eq!(fabric.diameter_latency(), Span::from_us(6));
        assert_eq!((fabric.host_rate(), fabric.oversubscription(0)), (rate, 1.0));
        assert_eq!(fabric.oversubscription(1), 1.0);
    }
    assert!(Topology::default_for(u32::MAX, rate).is_err());
    assert!(Topology::default_for(0, rate).is_err());
}

#[test]
fn partly_filled_trees_route_correctly() {
    for hosts in [1, 7, 15, 17, 53, 54] {
        let fabric = Topology::default_for(hosts, Rate::from_gbps(100)).unwrap();
        check_wiring(&fabric);
        let mut used = vec![false; fabric.ports().len()];
        for src in (0..hosts).map(HostId) {
            (0..hosts).map(HostId).filter(|&dst| dst != src).for_each(|dst| {
                check_routes(&fabric, src, dst, &mut used);
            });
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any fabric that can be described is wired consistently, and its routes reach their destinations.
    #[test]
    fn any_described_fabric_routes(
        leaves in 1u32..6, per_leaf in 1u32..6, spines in 1u32..5, bundle in 1u32..4,
        half in 1u32..5, thin in 1u32..4,
    ) {
        let hosts = leaves * per_leaf;
        let leaf_spine = format!("leaf-spine:hosts={hosts},leaves={leaves},spines={spines},bundle={bundle}");
        let up = half * thin;
        let tree = format!("fat-tree:k={},hosts={},oversub={thin}", 2 * up, 1 + hosts % (up * up));
        for text in [leaf_spine, tree] {
            let fabric = text.parse::<TopologySpec>().unwrap().build().unwrap();
            check_wiring(&fabric);
            let mut used = vec![false; fabric.ports().len()];
            for dst in 1..fabric.hosts() {
                check_routes(&fabric, HostId(0), HostId(dst), &mut used);
                check_routes(&fabric, HostId(dst), HostId(0), &mut used);
            }
        }
    }
}
