//! Two data centres, dumbbells and parking lots.

use weft_cc::{Rate, Span};

use crate::topology::{Cut, HostId, Node, PortId, Reach, Topology, TopologySpec};

fn build(spec: &str) -> Topology {
    spec.parse::<TopologySpec>().unwrap().build().unwrap()
}

fn class(fabric: &Topology, port: PortId) -> &str {
    fabric.classes()[fabric.class_of(port).unwrap()]
}

#[test]
fn two_data_centres_are_those_of_uno() {
    // Two 8-ary fat trees, eight links from each core to its border switch, eight links between these (Uno, section 5.1).
    let fabric = build("two-dc:k=8,core-links=8,border-links=8,rtt-ratio=128");
    assert_eq!((fabric.hosts(), fabric.switches()), (256, 2 * 81));
    let (near, far) = (HostId(127), HostId(128));
    assert_eq!((fabric.group_of(HostId(0)), fabric.group_of(near), fabric.group_of(far)), (0, 0, 1));
    assert_eq!((fabric.path_hops(HostId(0), near), fabric.path_hops(HostId(0), far)), (6, 9));
    assert_eq!(fabric.path_latency(HostId(0), near), Span::from_us(6));
    assert_eq!(fabric.path_latency(HostId(0), far), Span::from_us(6 * 128));
    let border = fabric
        .ports_between(fabric.node_named("dc0.border0").unwrap(), fabric.node_named("dc1.border0").unwrap());
    let border: Vec<PortId> = border.collect();
    assert_eq!(border.len(), 8);
    for port in &border {
        assert_eq!((class(&fabric, *port), fabric.reach_of(*port)), ("border", Reach::Network));
        assert_eq!(fabric.port(*port).latency, Span::from_us(6 * 128 - 8));
    }
    let Node::Switch(first) = fabric.port(border[0]).owner else { panic!("a switch") };
    let towards: Vec<PortId> = fabric.next_ports(first, far).iter().collect();
    assert_eq!(towards, border);
    assert_eq!(
        fabric.next_ports(first, near).len(),
        128,
        "each of 16 cores leads to the host's pod, by eight links"
    );
}

#[test]
fn eight_flows_between_data_centres_are_bound_by_their_hosts_and_sixteen_by_the_border() {
    let fabric = build("two-dc:k=4,core-links=4,border-links=8");
    let flows = |n| (0..n).map(|h| (HostId(h), HostId(16 + h), 1_250_000)).collect::<Vec<_>>();
    let eight = fabric.busiest_link_bound(flows(8));
    assert_eq!((eight.time, eight.at), (Span::from_us(100), Cut::FromHost(HostId(0))));
    let sixteen = fabric.busiest_link_bound(flows(16));
    assert_eq!(
        (sixteen.time, sixteen.at.to_string()),
        (Span::from_us(200), "8 links dc0.border0>dc1.border0".into())
    );
    // Four cores have one link each to the border switch.
    let thin = build("two-dc:k=4").busiest_link_bound(flows(16));
    assert_eq!((thin.time, thin.at.to_string()), (Span::from_us(400), "4 links to dc0.border0".into()));
}

#[test]
fn two_data_centres_may_have_two_tiers_and_several_border_switches() {
    let fabric = build("two-dc:hosts=8,leaves=2,spines=2,border-switches=2,border-links=1,border-link=400G");
    assert_eq!((fabric.hosts(), fabric.switches()), (16, 2 * (2 + 2 + 2)));
    let spine = fabric.node_named("dc0.agg0").unwrap();
    let Node::Switch(spine) = spine else { panic!("a switch") };
    assert_eq!(fabric.next_ports(spine, HostId(8)).len(), 2, "both border switches");
    assert_eq!(fabric.path_latency(HostId(0), HostId(15)), Span::from_us(6) + Span::from_ms(1));
}

#[test]
fn a_dumbbell_has_one_bottleneck() {
    let fabric = build("dumbbell:hosts=3,bottleneck=10G,delay=5ms,link=25G,latency=2us,switch-latency=500ns");
    assert_eq!((fabric.hosts(), fabric.switches(), fabric.ports().len()), (6, 2, 14));
    assert_eq!(fabric.path_latency(HostId(0), HostId(2)), Span::from_ns(4_500));
    assert_eq!(fabric.path_latency(HostId(0), HostId(3)), Span::from_ns(5_000 + 5_000_000));
    // 1250 B: 400 ns at 25G, 1 µs at 10G.
    assert_eq!(
        fabric.pair_rtt(HostId(0), HostId(3), 1250, 1250),
        Span::from_ns(2 * (5_005_000 + 400 + 1_000 + 400))
    );
    assert_eq!(fabric.network_rtt(1250, 1250), fabric.pair_rtt(HostId(0), HostId(3), 1250, 1250));
    assert_eq!(fabric.group_rtt(1250, 1250), fabric.pair_rtt(HostId(0), HostId(1), 1250, 1250));
    assert_eq!(fabric.slowest_rate(), Rate::from_gbps(10));
    let bound =
        fabric.busiest_link_bound([(HostId(0), HostId(3), 1_250_000), (HostId(1), HostId(4), 1_250_000)]);
    assert_eq!((bound.time, bound.at.to_string()), (Span::from_ms(2), "link left>right".into()));
}

#[test]
fn a_parking_lot_has_a_pair_for_each_link_and_one_for_all() {
    let fabric = build("parking-lot:hops=3,bottleneck=50G");
    assert_eq!((fabric.hosts(), fabric.switches()), (8, 4));
    assert_eq!(fabric.path_hops(HostId(0), HostId(1)), 5);
    for hop in 0..3 {
        let (source, sink) = (HostId(2 + 2 * hop), HostId(3 + 2 * hop));
        assert_eq!(fabric.path_hops(source, sink), 3);
        let path: Vec<PortId> = fabric.slowest_path(source, sink).collect();
        assert_eq!(fabric.direction_name(path[1]), format!("s{hop}>s{}", hop + 1));
        let flows = [(HostId(0), HostId(1), 625_000), (source, sink, 625_000)];
        let bound = fabric.busiest_link_bound(flows);
        assert_eq!(
            (bound.time, bound.at.to_string()),
            (Span::from_us(200), format!("link s{hop}>s{}", hop + 1))
        );
    }
    assert_eq!(build("parking-lot:hops=2,cross=3").hosts(), 2 + 2 * 3 * 2);
}

#[test]
fn descriptions_of_graphs_survive_being_printed() {
    for text in [
        "two-dc:k=8",
        "two-dc:k=4,hosts=10,oversub=2,border-links=128,core-links=8,border-link=400G,border-latency=3ms",
        "two-dc:hosts=8,leaves=2,uplink=400G,border-switches=2,rtt-ratio=8",
        "dumbbell:hosts=4",
        "dumbbell:hosts=4,bottleneck=10G,delay=20ms,link=25G,latency=0,switch-latency=1us",
        "parking-lot:hops=3",
        "parking-lot:hops=3,cross=2,bottleneck=10G,delay=1ms,latency=5us",
    ] {
        let spec: TopologySpec = text.parse().unwrap();
        assert_eq!(spec.to_string().parse(), Ok(spec), "{text}");
        assert_eq!(spec.build().unwrap().name(), spec.to_string());
    }
}

#[test]
fn contradictions_in_descriptions_of_graphs_are_refused() {
    for (text, message) in [
        ("two-dc:border-links=8", "fat-tree needs k=K or hosts=H"),
        (
            "two-dc:k=4,border-latency=1ms,rtt-ratio=8",
            "border-latency and rtt-ratio say the same thing: expected one of them",
        ),
        (
            "two-dc:k=4,rtt-ratio=1",
            "rtt-ratio: 1 is too low: the links besides the border links take longer already",
        ),
        ("two-dc:k=4,border-links=4000000000", "too many links of border switches"),
        ("dumbbell:bottleneck=10G", "dumbbell needs hosts=N, for each side"),
        ("dumbbell:hosts=1000000", "2000000 hosts; expected at most 1048576"),
        ("parking-lot:cross=2", "parking-lot needs hops=N"),
        (
            "parking-lot:hops=4294967295,cross=4294967295",
            "18446744073709551615 hosts; expected at most 1048576",
        ),
        (
            "dumbbell:hosts=2,rtt=1ms",
            "dumbbell has no key `rtt`: it has hosts, bottleneck, delay, link, latency, switch-latency",
        ),
    ] {
        let error = text.parse::<TopologySpec>().and_then(|spec| spec.build()).map(|t| t.name().to_owned());
        assert_eq!(error.expect_err(text).to_string(), message, "{text}");
    }
}
