//! Runs over graphs: the same as over the Clos that they describe, the same for any number of threads, and as long as
//! closed forms say.

use weft_cc::{CcChoice, Rate, Span};
use weft_stack::rng::Rng;
use weft_stack::spray::LbChoice;
use weft_testbed::sim::{
    Algorithms, Options, Overhead, PhantomQueues, PortClass, RunConfig, RunReport, Thresholds, run_with,
};
use weft_testbed::topology::{HostId, Topology, TopologySpec, parse_graph};
use weft_testbed::workload::{CmOptions, Workload, WorkloadSpec, parse_cm};

fn build(spec: &str) -> Topology {
    spec.parse::<TopologySpec>().unwrap().build().unwrap()
}

fn permutation(topology: &Topology, bytes: u64) -> Workload {
    let spec: WorkloadSpec = "permutation".parse().unwrap();
    spec.build(Some(topology.hosts()), bytes, &mut Rng::new(3, 1)).unwrap()
}

fn flows(topology: Topology, lines: &[String]) -> RunConfig {
    let matrix = format!("Nodes {}\nConnections {}\n{}\n", topology.hosts(), lines.len(), lines.join("\n"));
    let workload = parse_cm("test.cm", &matrix, CmOptions::default()).unwrap();
    RunConfig { wire_overhead: Overhead::Fixed(64), ..RunConfig::new(topology, workload) }
}

fn on_threads(config: &RunConfig, threads: usize) -> RunReport {
    let report = run_with(config, Options { threads, ..Options::default() }).unwrap();
    assert!(report.is_complete(), "{}: {:?}", config.topology.name(), report.stuck);
    report
}

fn time(report: &RunReport, flow: usize) -> Span {
    let flow = &report.flows[flow];
    flow.end.unwrap().since(flow.start.unwrap())
}

#[test]
fn a_run_over_a_clos_as_a_graph_is_the_same_to_the_last_event() {
    for spec in ["leaf-spine:hosts=16,leaves=4,spines=2", "fat-tree:k=4"] {
        let clos = build(spec);
        let graph = Topology::from_graph(clos.name(), clos.to_graph()).unwrap();
        let workload = permutation(&clos, 300_000);
        let [a, b] = [clos, graph].map(|topology| on_threads(&RunConfig::new(topology, workload.clone()), 1));
        assert!(a.packets.data > 1_000);
        assert_eq!((&a.flows, a.packets, a.events, a.end), (&b.flows, b.packets, b.events, b.end), "{spec}");
        assert_eq!(a.bound.0, b.bound.0);
    }
}

/// A triangle of switches, one with a tail, so that no colouring with two colours exists; links of different delays.
const TRIANGLE: &str = "\
switch a[0-2] latency=200ns
switch tail group=far
host h[0-8]
link h[0-2] a0
link h[3-5] a1
link h[6-7] a2
link h8 tail
link a0 a1 count=2 latency=3us
link a1 a2 latency=700ns
link a2 a0 rate=40G
link a2 tail latency=2ms rate=25G class=long
";

#[test]
fn any_number_of_threads_gives_the_same_run() {
    let fabrics = [
        parse_graph("triangle.graph", TRIANGLE).unwrap(),
        build("two-dc:k=4,border-links=2,border-latency=200us"),
        build("dumbbell:hosts=4,bottleneck=40G,delay=100us"),
        build("parking-lot:hops=3,bottleneck=40G"),
        // Has two sides.
        Topology::from_graph("graph", build("leaf-spine:hosts=12,leaves=4,spines=2").to_graph()).unwrap(),
    ];
    for topology in fabrics {
        let config = RunConfig::new(topology.clone(), permutation(&topology, 200_000));
        let one = on_threads(&config, 1);
        for threads in [2, 3] {
            assert_eq!(on_threads(&config, threads), one, "{}, {threads} threads", topology.name());
        }
    }
}

/// Full packets of a flow that no window holds up.
const PACKETS: u64 = 64;

/// The completion time of an idle flow of [`PACKETS`] full packets between two hosts: the round trip of the last packet
/// and its acknowledgement, behind the others at the slowest link.
fn ideal(topology: &Topology, src: u32, dst: u32, slowest: Rate, packets: u64) -> Span {
    topology.pair_rtt(HostId(src), HostId(dst), 4160, 64) + slowest.time_for(4160).times(packets - 1)
}

fn unthrottled(config: RunConfig) -> RunConfig {
    let mut cc = CcChoice::parse("constant").unwrap();
    cc.set("window", "100000000").unwrap();
    RunConfig { cc, ..config }
}

#[test]
fn idle_flows_take_as_long_as_their_path_and_its_slowest_link() {
    let slow = Rate::from_gbps(10);
    for (spec, src, dst) in [
        ("dumbbell:hosts=2,bottleneck=10G,delay=5ms,latency=3us", 0, 2),
        ("dumbbell:hosts=2,bottleneck=10G,delay=5ms,latency=3us,switch-latency=1us", 1, 3),
        ("parking-lot:hops=4,bottleneck=10G,delay=50us", 0, 1),
        ("parking-lot:hops=4,bottleneck=10G,delay=50us", 6, 7),
    ] {
        let topology = build(spec);
        let config = flows(topology, &[format!("{src}->{dst} id 1 start 0 size {}", PACKETS * 4096)]);
        let report = on_threads(&unthrottled(config.clone()), 1);
        assert_eq!(
            time(&report, 0),
            ideal(&config.topology, src, dst, slow, PACKETS),
            "{spec}: {src} to {dst}"
        );
    }
}

/// The ways of packets part in the data centres and meet again at the border.
#[test]
fn an_idle_flow_over_a_slow_border_takes_its_ideal_time() {
    for spec in [
        "two-dc:k=4,border-latency=10us,border-links=1,border-link=25G",
        "two-dc:k=4,border-latency=10us,border-links=2,border-link=10G",
    ] {
        let config = flows(build(spec), &["0->31 id 1 start 0 size 20000000".to_owned()]);
        let config = RunConfig { queue_bytes: Some(100_000_000), ..unthrottled(config) };
        let report = on_threads(&config, 1);
        let ideal = config.ideal_fct(HostId(0), HostId(31), 20_000_000);
        let slowdown = time(&report, 0).as_us_f64() / ideal.as_us_f64();
        // Packets spread over two links by chance: the longer queue has a few percent more than half of them.
        assert!((0.999..1.05).contains(&slowdown), "{spec}: {slowdown}");
    }
}

/// The first link of the quickest way has the longer delay.
#[test]
fn the_ideal_time_is_that_of_the_quickest_way_as_a_whole() {
    let fabric = "\
switch a
switch b
switch c
switch d
host h[0-1]
link h0 a latency=1us
link h1 d latency=1us
link a b latency=1us
link b d latency=10ms
link a c latency=2us
link c d latency=1us
";
    let topology = parse_graph("ways.graph", fabric).unwrap();
    let rate = topology.host_rate();
    let config = flows(topology, &["0->1 id 1 start 0 size 4096".to_owned()]);
    let ideal = config.ideal_delivery(HostId(0), HostId(1), 4096);
    assert_eq!(ideal, rate.time_for(4160).times(4) + Span::from_us(5));
}

/// `nscc` in both zones.
fn with_zones(config: RunConfig) -> RunConfig {
    let intra = Some(Algorithms { cc: CcChoice::default(), lb: LbChoice::default() });
    RunConfig { intra, ..config }
}

#[test]
fn flows_within_and_between_data_centres_take_as_long_as_their_own_paths() {
    let topology = build("two-dc:k=4,core-links=2,rtt-ratio=128");
    let line = |id: u32, src: u32, dst: u32| format!("{src}->{dst} id {id} start 0 size {}", PACKETS * 4096);
    let config = with_zones(flows(topology, &[line(1, 0, 15), line(2, 4, 31), line(3, 16, 17)]));
    let report = on_threads(&config, 1);
    for (flow, (src, dst)) in [(0, 15), (4, 31), (16, 17)].into_iter().enumerate() {
        let ideal = ideal(&config.topology, src, dst, Rate::from_gbps(100), PACKETS);
        let taken = time(&report, flow);
        assert!(taken >= ideal && taken < ideal.mul_f64(1.01), "{src} to {dst}: {taken}, ideal {ideal}");
    }
    let zones = config.endpoint().zones;
    let zone = |own, peer| {
        zones.get(zones.map.zone_of(weft_stack::packet::Addr(own), weft_stack::packet::Addr(peer)))
    };
    let (near, far) = (zone(0, 15), zone(0, 16));
    let rtt = |zone: &weft_stack::fep::Zone| zone.cc.params().network_rtt;
    assert_eq!(rtt(near), config.topology.pair_rtt(HostId(0), HostId(15), 4160, 64));
    assert_eq!(rtt(far), config.topology.pair_rtt(HostId(0), HostId(16), 4160, 64));
    // Six queues of one BDP of the zone's own, and a round trip.
    assert!(near.pdc.rto_init < Span::from_us(200), "{}", near.pdc.rto_init);
    assert!(far.pdc.rto_init > Span::from_us(6 * 128 * 2));
}

#[test]
fn eight_flows_between_data_centres_fill_eight_border_links() {
    let topology = build("two-dc:k=8,core-links=8,border-links=8,rtt-ratio=128");
    const FLOW: u64 = 30_000;
    let lines: Vec<String> = (0..8)
        .map(|n| format!("{}->{} id {} start 0 size {}", 16 * n, 128 + 16 * n, n + 1, FLOW * 4096))
        .collect();
    let config = with_zones(flows(topology, &lines));
    let report = on_threads(&config, 1);
    let ideal = ideal(&config.topology, 0, 128, Rate::from_gbps(100), FLOW);
    let last = (0..8).map(|flow| time(&report, flow)).max().unwrap();
    assert!(last < ideal.mul_f64(1.15), "{last}, ideal {ideal}");
}

#[test]
fn classes_of_ports_have_queues_and_thresholds_of_their_own() {
    let topology = build("two-dc:k=4,border-latency=200us");
    let port = |name: &str| topology.link_named(name).unwrap().port;
    let (host, border) = (port("dc0.tor0>host0"), port("dc0.border0>dc1.border0:3"));
    let base = flows(topology.clone(), &["0->31 id 1 start 0 size 40960".to_owned()]);
    // Parts of the BDP are those of the group, or of the fabric where links lead out of it.
    let packets = |rtt: Span| Rate::from_gbps(100).bytes_in(rtt).div_ceil(4160);
    assert_eq!(base.queue_of(host), packets(base.group_rtt()) * 4160);
    assert_eq!(base.queue_of(border), packets(base.network_rtt()) * 4160);
    let class = PortClass {
        name: "border".to_owned(),
        queue_bytes: Some(64 << 20),
        ecn: Some(Thresholds::Bytes(1 << 20, 2 << 20)),
        phantom: None,
    };
    let config = RunConfig { port_classes: vec![class.clone()], ..base.clone() };
    assert_eq!((config.queue_of(host), config.ecn_of(host)), (base.queue_of(host), base.ecn_of(host)));
    assert_eq!((config.queue_of(border), config.ecn_of(border)), (64 << 20, (1 << 20, 2 << 20)));
    on_threads(&config, 1);
    let unknown = PortClass { name: "wan".to_owned(), ..class };
    let error = run_with(&RunConfig { port_classes: vec![unknown], ..base }, Options::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "there are no ports of class `wan`; the topology has the classes host, tor-up, agg-down, agg-up, core-down, \
         to-border, from-border, border"
    );
}

#[test]
fn a_phantom_queue_at_the_border_alone_marks_what_crosses_it() {
    let topology = build("dumbbell:hosts=2,bottleneck=100G,delay=100us");
    let lines = ["0->2 id 1 start 0 size 20000000".to_owned(), "1->0 id 2 start 0 size 2000000".to_owned()];
    let base = flows(topology, &lines);
    let phantom = |name: &str| {
        let queues = PhantomQueues { drain: 0.5, ecn: Some(Thresholds::Bytes(50_000, 100_000)) };
        let class = PortClass { name: name.to_owned(), phantom: Some(queues), ..PortClass::default() };
        on_threads(&RunConfig { port_classes: vec![class], ..unthrottled(base.clone()) }, 1)
            .packets
            .ecn_marked
    };
    let without = on_threads(&unthrottled(base.clone()), 1).packets.ecn_marked;
    assert_eq!(without, 0);
    let (border, hosts) = (phantom("bottleneck"), phantom("host"));
    // Nearly all of 4,883 packets between the sides; and those of the flow on one side as well.
    assert!((4_700..4_883).contains(&border), "{border}");
    assert!(hosts > border + 300, "{hosts}");
}
