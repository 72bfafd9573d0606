//! Router tables: against the closed forms of a Clos, and against a search of their own in random graphs.

use std::collections::BTreeSet;

use proptest::prelude::*;
use weft_cc::{Rate, Span};

use super::{bundled, public};
use crate::topology::{
    CableSpec, GraphPart, GraphSpec, HostId, Node, PortId, SwitchId, SwitchSpec, Topology, TopologySpec,
};

fn build(spec: &str) -> Topology {
    spec.parse::<TopologySpec>().unwrap().build().unwrap()
}

fn as_graph(fabric: &Topology) -> Topology {
    Topology::from_graph(fabric.name(), fabric.to_graph()).unwrap()
}

fn ports(fabric: &Topology, switch: SwitchId, dst: HostId) -> Vec<PortId> {
    fabric.next_ports(switch, dst).iter().collect()
}

#[test]
fn a_clos_as_a_graph_has_the_same_ports_paths_round_trips_and_bounds() {
    let fabrics =
        [build("leaf-spine:hosts=12,leaves=3,spines=2,bundle=2"), build("fat-tree:k=4,hosts=13"), bundled()];
    for clos in fabrics {
        let graph = as_graph(&clos);
        assert!(graph.is_graph() && !clos.is_graph());
        assert_eq!((graph.hosts(), graph.switches()), (clos.hosts(), clos.switches()));
        assert_eq!(graph.ports().len(), clos.ports().len());
        for (id, (a, b)) in (0..).map(PortId).zip(graph.ports().iter().zip(clos.ports())) {
            assert_eq!(
                (a.owner, a.peer, a.reverse, a.rate, a.latency),
                (b.owner, b.peer, b.reverse, b.rate, b.latency)
            );
            assert_eq!(graph.queue_of(id), clos.queue_of(id));
            let class =
                |fabric: &Topology| fabric.class_of(id).map(|class| fabric.classes()[class].to_owned());
            assert_eq!(class(&graph), class(&clos));
            assert_eq!(graph.link_name(id), clos.link_name(id));
        }
        let hosts = || (0..clos.hosts()).map(HostId);
        for dst in hosts() {
            for switch in (0..clos.switches()).map(SwitchId) {
                assert_eq!(ports(&graph, switch, dst), ports(&clos, switch, dst), "{switch:?} to {dst:?}");
            }
            for src in hosts() {
                assert_eq!(graph.path_hops(src, dst), clos.path_hops(src, dst));
                assert_eq!(graph.path_latency(src, dst), clos.path_latency(src, dst));
                assert_eq!(graph.pair_rtt(src, dst, 4160, 84), clos.pair_rtt(src, dst, 4160, 84));
                let distance = |fabric: &Topology| fabric.distances(src).switches_to(dst);
                if src != dst {
                    assert_eq!(distance(&graph), distance(&clos));
                }
            }
        }
        assert_eq!(graph.network_rtt(4160, 84), clos.network_rtt(4160, 84));
        assert_eq!(
            (graph.diameter_hops(), graph.diameter_latency()),
            (clos.diameter_hops(), clos.diameter_latency())
        );
        let last = clos.hosts() - 1;
        let incast: Vec<_> = (0..last).map(|h| (HostId(h), HostId(last), 1_000_000)).collect();
        let shift: Vec<_> =
            (0..clos.hosts()).map(|h| (HostId(h), HostId((h + 4) % clos.hosts()), 1_000_000)).collect();
        for flows in [incast, shift] {
            assert_eq!(graph.busiest_link_bound(&flows).time, clos.busiest_link_bound(&flows).time);
        }
    }
}

#[test]
fn an_oversubscribed_clos_as_a_graph_names_the_uplinks_in_its_bound() {
    let clos = public("leaf_spine_1024_oversub_8-1.topo");
    let graph = as_graph(&clos);
    let flows: Vec<_> = (0..1024).map(|h| (HostId(h), HostId((h + 32) % 1024), 512 * 4160)).collect();
    let bound = graph.busiest_link_bound(&flows);
    assert_eq!(bound.time, Span::from_ps(1_363_148_800));
    assert_eq!(bound.at.to_string(), "4 links from tor0");
}

/// A graph of switches joined by a random tree and further links, with hosts at random switches.
fn random_graph(switches: u32, tree: &[u32], more: &[(u32, u32)], hosts: &[u32]) -> GraphSpec {
    let switch = |s: u32| Node::Switch(SwitchId(s % switches));
    let cable = |a, b, n: usize| {
        CableSpec::new(a, b, Rate::from_gbps(100 >> (n % 3)), Span::from_ns(100 * (1 + n as u64 % 7)))
    };
    let mut cables: Vec<CableSpec> =
        (0..).zip(hosts).map(|(h, at)| cable(Node::Host(HostId(h)), switch(*at), 0)).collect();
    let tree = (1..switches).zip(tree).map(|(s, parent)| (s, parent % s));
    for (n, (a, b)) in tree.chain(more.iter().copied()).enumerate() {
        if a % switches != b % switches {
            cables.push(cable(switch(a), switch(b), n));
        }
    }
    GraphSpec {
        hosts: (0..hosts.len()).map(|h| format!("h{h}")).collect(),
        switches: (0..switches)
            .map(|s| SwitchSpec { name: format!("s{s}"), latency: Span::from_ns(u64::from(s)), group: None })
            .collect(),
        groups: Vec::new(),
        cables,
    }
}

/// The distance of every node from `to`, over links in either direction: an implementation of its own, which relaxes
/// the distances until nothing changes.
fn distances(fabric: &Topology, to: Node) -> impl Fn(Node) -> u32 {
    let index = |node: Node| match node {
        Node::Host(host) => host.0 as usize,
        Node::Switch(switch) => 10_000 + switch.0 as usize,
    };
    let mut known = vec![u32::MAX / 2; 20_000];
    known[index(to)] = 0;
    loop {
        let mut changed = false;
        for port in fabric.ports() {
            let through = known[index(port.peer)] + 1;
            let own = &mut known[index(port.owner)];
            changed |= through < *own;
            *own = through.min(*own);
        }
        if !changed {
            return move |node| known[index(node)];
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn each_switch_uses_all_ports_on_shortest_paths_and_no_other_port(
        switches in 1u32..12,
        tree in prop::collection::vec(any::<u32>(), 11),
        more in prop::collection::vec((0u32..12, 0u32..12), 0..16),
        hosts in prop::collection::vec(0u32..12, 2..8),
    ) {
        let fabric = Topology::from_graph("random", random_graph(switches, &tree, &more, &hosts)).unwrap();
        for dst in (0..fabric.hosts()).map(HostId) {
            let distance = distances(&fabric, Node::Host(dst));
            for switch in (0..switches).map(SwitchId) {
                let here = Node::Switch(switch);
                let expected: Vec<PortId> = fabric
                    .ports_of(switch)
                    .iter()
                    .filter(|port| {
                        let peer = fabric.port(*port).peer;
                        // Hosts forward nothing.
                        (peer == Node::Host(dst) || matches!(peer, Node::Switch(_)))
                            && distance(peer) + 1 == distance(here)
                    })
                    .collect();
                prop_assert!(!expected.is_empty());
                // Every hop comes closer, so no path has a loop.
                prop_assert_eq!(ports(&fabric, switch, dst), expected);
            }
            for src in (0..fabric.hosts()).map(HostId).filter(|src| *src != dst) {
                let hops = distance(Node::Host(src));
                prop_assert_eq!(fabric.path_hops(src, dst), hops);
                prop_assert_eq!(u32::from(fabric.distances(src).switches_to(dst)), hops - 1);
                check_slowest(&fabric, src, dst)?;
                let rtt = fabric.pair_rtt(src, dst, DATA, ACK);
                prop_assert_eq!(rtt, fabric.pair_rtt(dst, src, DATA, ACK));
                prop_assert!(fabric.diameter_hops() >= hops);
                prop_assert!(fabric.network_rtt(DATA, ACK) >= rtt);
                if fabric.group_of(src) == fabric.group_of(dst) {
                    prop_assert!(fabric.group_rtt(DATA, ACK) >= rtt);
                }
            }
        }
    }

    #[test]
    fn links_are_found_by_their_names(
        switches in 2u32..6,
        tree in prop::collection::vec(any::<u32>(), 5),
        more in prop::collection::vec((0u32..6, 0u32..6), 0..16),
    ) {
        let graph = Topology::from_graph("random", random_graph(switches, &tree, &more, &[0, 1, 1])).unwrap();
        for fabric in [graph, bundled()] {
            let mut names = BTreeSet::new();
            for id in (0..fabric.ports().len() as u32).map(PortId) {
                let one = fabric.link_named(&fabric.direction_name(id)).unwrap();
                prop_assert_eq!((one.port, one.one_way), (id, true));
                let both = fabric.link_named(&fabric.link_name(id)).unwrap();
                prop_assert!(!both.one_way && (both.port == id || both.port == fabric.port(id).reverse));
                names.insert(fabric.link_name(id));
            }
            prop_assert_eq!(names.len() * 2, fabric.ports().len());
        }
    }
}

/// Bytes of the packets for which paths are compared.
const DATA: u64 = 4096 + 138;
const ACK: u64 = 98;

/// Checks that the slowest path is one of the shortest, and that none of these has a longer round trip.
fn check_slowest(fabric: &Topology, src: HostId, dst: HostId) -> Result<(), TestCaseError> {
    let cost = |port: PortId| {
        let spec = fabric.port(port);
        let switching = match spec.peer {
            Node::Switch(switch) => fabric.switch_latency(switch),
            Node::Host(_) => Span::ZERO,
        };
        (spec.latency + switching).times(2) + spec.rate.time_for(DATA) + spec.rate.time_for(ACK)
    };
    let mut most = Span::ZERO;
    let mut ahead = vec![(fabric.nic(src), cost(fabric.nic(src)))];
    while let Some((port, sum)) = ahead.pop() {
        match fabric.port(port).peer {
            Node::Host(_) => most = most.max(sum),
            Node::Switch(switch) => {
                ahead.extend(fabric.next_ports(switch, dst).iter().map(|next| (next, sum + cost(next))));
            }
        }
    }
    let slowest: Vec<PortId> = fabric.slowest_path(src, dst).collect();
    prop_assert_eq!(slowest.len() as u32, fabric.path_hops(src, dst));
    prop_assert!(slowest.windows(2).all(|pair| fabric.port(pair[0]).peer == fabric.port(pair[1]).owner));
    prop_assert_eq!(slowest.iter().fold(Span::ZERO, |sum, port| sum + cost(*port)), most);
    prop_assert_eq!(fabric.pair_rtt(src, dst, DATA, ACK), most);
    Ok(())
}

#[test]
fn graphs_that_are_no_fabrics_are_refused_with_the_part_that_is_wrong() {
    let good = || random_graph(3, &[0, 1], &[], &[0, 2]);
    let refusal = |change: &dyn Fn(&mut GraphSpec)| {
        let mut spec = good();
        change(&mut spec);
        let error = Topology::from_graph("test", spec).unwrap_err();
        (error.part, error.reason)
    };
    let host = |h| Node::Host(HostId(h));
    let switch = |s| Node::Switch(SwitchId(s));
    let cable = |a, b| CableSpec::new(a, b, Rate::from_gbps(100), Span::ZERO);
    type Change = Box<dyn Fn(&mut GraphSpec)>;
    let cases: [(GraphPart, &str, Change); 13] = [
        (
            GraphPart::Whole,
            "1 hosts; expected 2 to 1048576",
            Box::new(|s| {
                s.hosts.pop();
                s.cables.remove(1);
            }),
        ),
        (
            GraphPart::Host(1),
            "host `h1` has no link; expected one to a switch",
            Box::new(|s| {
                s.cables.remove(1);
            }),
        ),
        (
            GraphPart::Cable(4),
            "host `h1` has two links; expected one",
            Box::new(move |s| s.cables.push(cable(host(1), switch(0)))),
        ),
        (
            GraphPart::Cable(4),
            "a link joins two hosts; expected a switch at one end at least",
            Box::new(move |s| s.cables.push(cable(host(1), host(0)))),
        ),
        (
            GraphPart::Cable(4),
            "a link leads from a switch to itself; expected two different ends",
            Box::new(move |s| s.cables.push(cable(switch(1), switch(1)))),
        ),
        (
            GraphPart::Cable(4),
            "the link ends at a node that does not exist",
            Box::new(move |s| s.cables.push(cable(switch(1), switch(7)))),
        ),
        (
            GraphPart::Host(1),
            "there is no path between hosts `h0` and `h1`",
            Box::new(|s| {
                s.cables.remove(3);
            }),
        ),
        (
            GraphPart::Switch(3),
            "switch `s3` has no path to the hosts",
            Box::new(|s| s.switches.push(SwitchSpec { name: "s3".into(), ..s.switches[0].clone() })),
        ),
        (
            GraphPart::Switch(1),
            "there are two nodes called `s0`; expected a name of its own for each",
            Box::new(|s| s.switches[1].name = "s0".into()),
        ),
        (
            GraphPart::Switch(1),
            "`a-b`: expected a name: a letter, then letters, digits, `_` and `.`",
            Box::new(|s| s.switches[1].name = "a-b".into()),
        ),
        (
            GraphPart::Cable(1),
            "the link of host `h1` has 25000000000 bit/s, that of `h0` 100000000000; expected one rate for the links of all hosts",
            Box::new(|s| s.cables[1].rate = Rate::from_gbps(25)),
        ),
        (
            GraphPart::Cable(2),
            "the rate of a link must be above zero",
            Box::new(|s| s.cables[2].rate = Rate::from_bps(0)),
        ),
        (
            GraphPart::Cable(2),
            "ECN marking begins above the length from which every packet is marked",
            Box::new(|s| s.cables[2].ecn = [Some((2, 1)); 2]),
        ),
    ];
    for (part, reason, change) in cases {
        assert_eq!(refusal(&*change), (part, reason.to_owned()));
    }
}

#[test]
fn a_path_of_more_switches_than_a_ttl_allows_is_refused() {
    assert_eq!(build("parking-lot:hops=62").diameter_hops(), 64);
    let error = "parking-lot:hops=63".parse::<TopologySpec>().unwrap().build().unwrap_err();
    assert_eq!(
        error.to_string(),
        "a path of 64 switches, as between host0 and host1; expected at most 63, as the TTL of frames is 64"
    );
}

#[test]
fn what_names_tiers_is_refused_in_a_graph() {
    let bell = build("dumbbell:hosts=2");
    let degradation: crate::link_events::Degradation = "tier=0,links=1".parse().unwrap();
    let refusal = degradation.ports(&bell).unwrap_err().to_string();
    assert!(refusal.starts_with("`tier=0`: expected a folded Clos"), "{refusal}");
    let event = |text| crate::link_events::parse_link_events("e", text, &bell);
    let refusal = event("1us tier=0 switch=0 link=0 fail").unwrap_err().to_string();
    assert!(refusal.starts_with("e:1:5: `tier=0`: expected link=A-B or host=N"), "{refusal}");
    let refusal = event("1us link=left-up fail").unwrap_err().to_string();
    assert_eq!(refusal, "e:1:5: `link=left-up`: expected a node of the topology instead of `up`");
    let refusal = event("1us link=left>right dir=up fail").unwrap_err().to_string();
    assert!(refusal.starts_with("e:1:21: `dir=up`: expected a change of the link"), "{refusal}");
    let text = "1us link=left>right fail\n2us link=left-right restore\n3us host=1 dir=down fail\n";
    let mut written = String::new();
    for event in event(text).unwrap() {
        crate::link_events::write_link_event(&event, &bell, &mut written).unwrap();
        written.push('\n');
    }
    assert_eq!(written, text);
}

#[test]
fn link_names_that_do_not_exist_are_refused_with_what_was_expected() {
    let refusal = |fabric: &Topology, name| fabric.link_named(name).unwrap_err().to_string();
    let bell = build("dumbbell:hosts=2");
    assert_eq!(bell.link_name(bell.link_named("right>left").unwrap().port), "left-right");
    assert_eq!(refusal(&bell, "left-up"), "expected a node of the topology instead of `up`");
    assert_eq!(
        refusal(&bell, "host0-right"),
        "expected two nodes that a link joins; there is none between host0 and right"
    );
    assert_eq!(
        refusal(&bell, "left"),
        "expected A-B (both directions) or A>B (one), with :N behind it for one of several links"
    );
    assert_eq!(
        refusal(&bell, "left-right:1"),
        "expected a number below 1, as left and right are joined by so many links"
    );
    let dc = build("two-dc:k=4");
    assert_eq!(
        refusal(&dc, "dc0.border0-dc1.border0"),
        "expected :0 to :7 behind the name, as dc0.border0 and dc1.border0 are joined by 8 links"
    );
    let clos = bundled();
    assert_eq!(clos.link_named("tor3>agg2:1").unwrap().port, clos.link_at(0, 3, 1).unwrap());
    assert_eq!(
        refusal(&clos, "tor9-agg0"),
        "expected hostN, torN, aggN or coreN of the topology instead of `tor9`"
    );
}

/// So many that 16 bits do not hold their number.
#[test]
fn a_chain_of_65_536_switches_is_refused() {
    const SWITCHES: u32 = 1 << 16;
    let switch = |s: u32| SwitchSpec { name: format!("s{s}"), latency: Span::ZERO, group: None };
    let cable = |a, b| CableSpec::new(a, b, Rate::from_gbps(100), Span::ZERO);
    let ends =
        [(0, 0), (1, SWITCHES - 1)].map(|(h, s)| cable(Node::Host(HostId(h)), Node::Switch(SwitchId(s))));
    let chain = (1..SWITCHES).map(|s| cable(Node::Switch(SwitchId(s - 1)), Node::Switch(SwitchId(s))));
    let spec = GraphSpec {
        hosts: vec!["h0".into(), "h1".into()],
        switches: (0..SWITCHES).map(switch).collect(),
        groups: Vec::new(),
        cables: ends.into_iter().chain(chain).collect(),
    };
    let error = Topology::from_graph("chain", spec).unwrap_err();
    assert!(error.reason.starts_with("a path of 65536 switches, as between h0 and h1"), "{error}");
}
