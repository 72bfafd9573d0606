//! Runs over graphs: the same as over the Clos that they describe, the same for any number of threads, and as long as
//! closed forms say.

use weft_cc::{CcChoice, Rate, Span};
use weft_stack::rng::Rng;
use weft_stack::spray::LbChoice;
use weft_testbed::sim::{Algorithms, Options, Overhead, RunConfig, RunReport, run_with};
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
    assert!(last < ideal.mul_f64(1.08), "{last}, ideal {ideal}");
}
