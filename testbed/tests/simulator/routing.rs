//! Switches that choose among equal ports by their queues, and packets that name their paths.

use weft_cc::Span;
use weft_stack::rng::Rng;
use weft_stack::spray::LbChoice;
use weft_testbed::sim::{LinkMeasures, Options, RunConfig, RunReport, run_with};
use weft_testbed::switch::Routing;
use weft_testbed::topology::{HostId, Node, TopologySpec};
use weft_testbed::workload::{CmOptions, WorkloadSpec, parse_cm};

fn run(config: &RunConfig, threads: usize) -> RunReport {
    let report = run_with(config, Options { threads, ..Options::default() }).unwrap();
    assert!(report.is_complete(), "{:?}", report.stuck);
    report
}

fn slowest(report: &RunReport) -> f64 {
    let times = report.flows.iter().map(|flow| flow.end.unwrap().since(flow.start.unwrap()));
    times.max().unwrap_or(Span::ZERO).as_us_f64()
}

/// A permutation of 64 hosts, 1 MB each, whose flows have one entropy each.
fn permutation(topology: &str, routing: &str) -> RunConfig {
    let workload: WorkloadSpec = "permutation".parse().unwrap();
    let workload = workload.build(Some(64), 1_000_000, &mut Rng::new(3, 3)).unwrap();
    let topology = topology.parse::<TopologySpec>().unwrap().build().unwrap();
    let (lb, routing) = (LbChoice::parse("ecmp").unwrap(), routing.parse().unwrap());
    RunConfig { lb, routing, ..RunConfig::new(topology, workload) }
}

#[test]
fn adaptive_routing_resolves_the_collisions_of_ecmp() {
    for topology in ["leaf-spine:hosts=64,leaves=8,spines=8,link=100G", "fat-tree:hosts=64,link=100G"] {
        let ecmp = run(&permutation(topology, "ecmp"), 1);
        for routing in ["adaptive:least-queue", "adaptive:quantised", "adaptive:least-queue,sticky=5us"] {
            let config = permutation(topology, routing);
            let adaptive = run(&config, 1);
            assert!(
                slowest(&adaptive) < 0.75 * slowest(&ecmp),
                "{routing} on {topology}: {} µs, ECMP: {} µs",
                slowest(&adaptive),
                slowest(&ecmp)
            );
            for threads in [2, 3] {
                assert_eq!(run(&config, threads), adaptive, "{routing} with {threads} threads");
            }
        }
    }
}

/// One flow of 400 packets from the first to the last host, in turn over as many entropies as there are paths.
fn round_robin(topology: &str, paths: u16, lb: &str) -> (RunConfig, RunReport) {
    let topology = topology.parse::<TopologySpec>().unwrap().build().unwrap();
    let last = topology.hosts() - 1;
    let matrix = format!("Nodes {}\nConnections 1\n0->{last} id 1 start 0 size {}\n", last + 1, 400 * 4096);
    let workload = parse_cm("one.cm", &matrix, CmOptions::default()).unwrap();
    let mut lb_choice = LbChoice::parse(lb.split(' ').next().unwrap()).unwrap();
    if let Some((key, value)) = lb.split_once(' ').and_then(|(_, setting)| setting.split_once('=')) {
        lb_choice.set(key, value).unwrap();
    }
    let base = RunConfig::new(topology, workload);
    let config = RunConfig { lb: lb_choice, paths, routing: Routing::Exact, ..base };
    let report = run(&config, 1);
    assert_eq!(run(&config, 2), report);
    assert_eq!(report.packets.retransmitted, 0);
    (config, report)
}

/// The links between switches that have carried data, and how many full packets each. Those that only carried
/// acknowledgements have sent fewer bytes than ten such packets.
fn loaded(config: &RunConfig, report: &RunReport) -> Vec<(LinkMeasures, u64)> {
    let links = &report.measures.as_ref().unwrap().links;
    let between = links.iter().filter(|link| {
        let port = config.topology.port(link.port);
        matches!((port.owner, port.peer), (Node::Switch(_), Node::Switch(_)))
    });
    let packets = between.map(|link| (*link, link.sent_bytes / config.wire_mtu()));
    packets.filter(|(_, packets)| *packets >= 10).collect()
}

#[test]
fn exact_paths_are_used_equally_by_a_round_robin_over_entropies() {
    for (topology, paths, hops) in [
        ("leaf-spine:hosts=16,leaves=4,spines=4,link=100G", 4, 2),
        ("leaf-spine:hosts=16,leaves=4,spines=2,bundle=2,link=100G", 8, 2),
        ("fat-tree:k=4,link=100G", 4, 4),
        ("fat-tree:k=8,link=100G", 16, 4),
    ] {
        let (config, report) = round_robin(topology, paths, "round-robin");
        let loaded = loaded(&config, &report);
        // Of each packet every link between switches on its way counts once.
        let total: u64 = loaded.iter().map(|(_, packets)| packets).sum();
        assert_eq!(total, 400 * hops, "{topology}: {loaded:?}");
        for tier_and_direction in loaded.chunk_by(|(a, _), (b, _)| {
            let [a, b] = [a, b].map(|link| config.topology.port(link.port));
            (a.tier, a.direction, a.owner) == (b.tier, b.direction, b.owner)
        }) {
            let counts: Vec<u64> = tier_and_direction.iter().map(|(_, packets)| *packets).collect();
            assert!(counts.iter().all(|count| *count == counts[0]), "{topology}: {tier_and_direction:?}");
        }
        // Every uplink of the first ToR has its share.
        let up = config.topology.up_ports(config.topology.tor_of(HostId(0)));
        let used = loaded.iter().filter(|(link, _)| up.contains(link.port)).count();
        assert_eq!(used as u32, up.count, "{topology}");
    }
}

#[test]
fn a_flow_can_be_pinned_to_any_path() {
    let mut seen = Vec::new();
    for path in 0..16 {
        let (config, report) = round_robin("fat-tree:k=8,link=100G", 16, &format!("ecmp entropy={path}"));
        let loaded = loaded(&config, &report);
        let counts: Vec<u64> = loaded.iter().map(|(_, packets)| *packets).collect();
        assert_eq!(counts, [400; 4], "path {path}: one link of each tier in each direction");
        seen.push(loaded.iter().map(|(link, _)| link.port).collect::<Vec<_>>());
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 16, "each number is another path");
}
