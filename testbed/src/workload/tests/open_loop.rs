//! Tests of flows that arrive at random: their load, times and hosts.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use weft_cc::{Span, Time};
use weft_stack::rng::Rng;

use crate::topology::{HostId, Topology, TopologySpec, parse_graph};
use crate::workload::{Setting, Start, TriggerIdx, Workload, WorkloadSpec, WorkloadSpecError};

const LEAF_SPINE: &str = "leaf-spine:hosts=32,leaves=4,oversub=2";

fn topology(text: &str) -> Topology {
    text.parse::<TopologySpec>().unwrap().build().unwrap()
}

fn try_build(specs: &[&str], fabric: &Topology, seed: u64) -> Result<Workload, (usize, WorkloadSpecError)> {
    let read = |name: &str| match name {
        "two.txt" => Ok("1000 50\n3000 50\n3000 100\n".to_owned()),
        "bad.txt" => Ok("1000 50\n900 100\n".to_owned()),
        _ => Err(format!("{name}: no such file")),
    };
    let specs: Result<Vec<WorkloadSpec>, _> = specs.iter().map(|text| text.parse()).collect();
    let setting =
        Setting { hosts: fabric.hosts(), topology: Some(fabric), bytes: 10_000, slow: 1, read: &read };
    WorkloadSpec::build_all(&specs.map_err(|e| (0, e))?, &setting, |i| Rng::new(seed, i as u64))
}

fn build(spec: &str, fabric: &Topology) -> Workload {
    try_build(&[spec], fabric, 5).unwrap_or_else(|(_, e)| panic!("{spec}: {e}"))
}

fn refusal(spec: &str) -> String {
    try_build(&[spec], &topology(LEAF_SPINE), 1).map(|w| w.flows().len()).unwrap_err().1.to_string()
}

fn starts(workload: &Workload) -> Vec<u64> {
    let at = |start| match start {
        Start::At(at) => Some(Time::as_ps(at)),
        Start::Trigger(_) => None,
    };
    workload.flows().iter().filter_map(|flow| at(flow.start)).collect()
}

/// Payload per host and time, as a share of 100 Gbit/s.
fn load(workload: &Workload, hosts: u32, time: Span) -> f64 {
    let bytes: u64 = workload.flows().iter().map(|flow| flow.bytes).sum();
    bytes as f64 * 8.0 / (f64::from(hosts) * time.as_secs_f64() * 100e9)
}

/// The number of arrivals varies by its square root, and sizes vary by themselves; with 300,000 flows, one per cent is
/// more than three standard deviations.
#[test]
fn the_offered_load_is_the_one_asked_for() {
    let fabric = topology(LEAF_SPINE);
    for spec in [
        "poisson:load=0.6,sizes=FbHdp,duration=200ms",
        "poisson:load=0.6,sizes=two.txt,duration=2ms",
        "lognormal:load=0.3,sigma=1,sizes=1000,duration=2ms",
        "lognormal:load=0.3,sigma=0,duration=20ms",
        "rpc:load=0.5,sizes=1000,response=500,duration=3ms",
        "bursts:senders=8,size=2000,load=0.1,duration=4ms",
        "bursts:senders=8,size=200,load=0.5,arrivals=poisson,duration=10ms",
    ] {
        let workload = build(spec, &fabric);
        let [asked, ms] = ["load=", "duration="].map(|key| {
            let rest = spec.split_once(key).unwrap().1;
            let number = rest.split([',', 'm']).next().unwrap();
            number.parse::<f64>().unwrap()
        });
        let offered = load(&workload, 32, Span::from_us(1000).mul_f64(ms));
        assert!((offered / asked - 1.0).abs() < 0.01, "{spec}: {offered}");
    }
}

/// Of uniform traffic between 4 leaves of 8 hosts, 24/31 leave their leaf. Half as many uplinks as hosts carry it.
#[test]
fn the_load_of_the_core_counts_what_leaves_the_leaves() {
    let fabric = topology(LEAF_SPINE);
    let uniform = build("poisson:load=0.5,of=core,sizes=1000,duration=20ms", &fabric);
    let expected = 0.5 * 0.5 / (24.0 / 31.0);
    assert!((load(&uniform, 32, Span::from_us(20_000)) / expected - 1.0).abs() < 0.01);
    let far = build("poisson:load=0.5,of=core,intra=0,sizes=1000,duration=20ms", &fabric);
    assert!((load(&far, 32, Span::from_us(20_000)) / 0.25 - 1.0).abs() < 0.01);
    // In a fat tree with two ToRs a pod and aggregation switches oversubscribed 2:1, the cores fill first.
    let tree = topology("fat-tree:k=4,agg-oversub=2");
    let uniform = build("poisson:load=0.5,of=core,sizes=1000,duration=20ms", &tree);
    let expected = 0.5 * 0.5 / (12.0 / 15.0);
    assert!((load(&uniform, 16, Span::from_us(20_000)) / expected - 1.0).abs() < 0.01);
    assert_eq!(
        refusal("poisson:load=1,of=core,intra=1,flows=1"),
        "of: no flow leaves its ToR; expected host"
    );
}

#[test]
fn times_between_arrivals_follow_their_distribution() {
    let fabric = topology("leaf-spine:hosts=2,leaves=1,spines=1");
    let moments = |spec: &str| {
        let workload = build(spec, &fabric);
        let mut last = BTreeMap::new();
        let mut gaps = Vec::new();
        for flow in workload.flows() {
            let Start::At(at) = flow.start else { continue };
            let before = last.insert(flow.src, at).unwrap_or(Time::ZERO);
            gaps.push(at.since(before).as_us_f64());
        }
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean) * (gap - mean)).sum::<f64>() / gaps.len() as f64;
        (mean, variance.sqrt() / mean, gaps)
    };
    // 10,000 bytes at a load of 0.1 come every 8 µs. The times of a Poisson process vary as much as their mean.
    let (mean, variation, mut gaps) = moments("poisson:load=0.1,flows=200000");
    assert!((mean - 8.0).abs() < 0.08 && (variation - 1.0).abs() < 0.02, "{mean} {variation}");
    gaps.sort_by(f64::total_cmp);
    let distance = gaps.iter().enumerate().map(|(i, gap)| {
        let share = 1.0 - libm::exp(-gap / 8.0);
        (share - i as f64 / gaps.len() as f64).abs()
    });
    assert!(distance.fold(0.0, f64::max) < 1.95 / (gaps.len() as f64).sqrt());
    // exp(σ²) - 1 is the square of the coefficient of variation of a lognormal variate.
    let (mean, variation, _) = moments("lognormal:load=0.1,sigma=1,flows=400000");
    let expected = (libm::exp(1.0) - 1.0).sqrt();
    assert!((mean - 8.0).abs() < 0.08 && (variation / expected - 1.0).abs() < 0.03, "{mean} {variation}");
    let (mean, variation, _) = moments("lognormal:load=0.1,sigma=0,flows=1000");
    assert!((mean - 8.0).abs() < 0.001 && variation < 1e-6, "{mean} {variation}");
}

#[test]
fn sources_and_destinations_are_uniform_or_as_the_zones_say() {
    let fabric = topology(LEAF_SPINE);
    let of = |spec: &str| {
        let workload = build(spec, &fabric);
        let mut pairs: BTreeMap<(u32, u32), u32> = BTreeMap::new();
        workload.flows().iter().for_each(|flow| *pairs.entry((flow.src.0, flow.dst.0)).or_default() += 1);
        pairs
    };
    let mut uniform = of("poisson:load=0.5,flows=99200");
    assert_eq!(uniform.len(), 32 * 31);
    // A hundred flows a pair, within six standard deviations.
    assert!(uniform.values().all(|n| (40..160).contains(n)), "{uniform:?}");
    uniform = of("poisson:load=0.5,intra=0.8,flows=99200");
    let near = |(src, dst): &(u32, u32)| src / 8 == dst / 8;
    let intra: u32 = uniform.iter().filter(|(pair, _)| near(pair)).map(|(_, n)| n).sum();
    assert!((f64::from(intra) / 99_200.0 - 0.8).abs() < 0.005, "{intra}");
    assert_eq!(uniform.len(), 32 * 31);
    assert!(of("poisson:load=0.5,intra=1,flows=9000").keys().all(near));
    assert!(!of("poisson:load=0.5,intra=0,flows=9000").keys().any(near));
}

#[test]
fn arrivals_keep_to_their_number_and_duration() {
    let fabric = topology(LEAF_SPINE);
    assert_eq!(build("poisson:load=0.1,flows=77", &fabric).flows().len(), 77);
    assert_eq!(build("rpc:load=0.1,flows=77", &fabric).flows().len(), 154);
    assert_eq!(build("bursts:senders=3,every=5us,bursts=7", &fabric).flows().len(), 21);
    let late = starts(&build("poisson:load=0.5,duration=50us,start=1ms", &fabric));
    assert!(late.iter().all(|at| (1_000_000_000..1_050_000_000).contains(at)), "{late:?}");
    assert!(late.is_sorted() && late.len() > 500);
    let bursts = starts(&build("bursts:senders=2,every=10us,duration=45us", &fabric));
    assert_eq!(bursts, [10, 10, 20, 20, 30, 30, 40, 40].map(|us| us * 1_000_000));
    let jittered = starts(&build("bursts:senders=20,every=10us,bursts=1,jitter=1us", &fabric));
    assert!(jittered.iter().all(|at| (10_000_000..=11_000_000).contains(at)));
    assert!(jittered.iter().collect::<BTreeSet<_>>().len() > 15);
}

#[test]
fn a_response_starts_when_its_server_has_the_request_and_has_computed() {
    let fabric = topology(LEAF_SPINE);
    let workload = build("rpc:load=0.1,sizes=100,response=two.txt,service=3us,flows=1000", &fabric);
    let mut sizes = BTreeSet::new();
    assert_eq!(workload.tasks().len(), 1000);
    for (i, pair) in workload.flows().chunks(2).enumerate() {
        let [request, response] = pair else { panic!("pairs") };
        let trigger = TriggerIdx::new(i as u32).unwrap();
        assert_eq!((request.src, request.dst), (response.dst, response.src));
        assert_eq!((request.on_received, response.start), (Some(trigger), Start::Trigger(trigger)));
        assert_eq!(workload.triggers()[i].delay, Span::from_us(3));
        assert_eq!(workload.task_of(2 * i as u32 + 1), Some(i));
        sizes.insert(response.bytes);
    }
    assert_eq!(Vec::from_iter(sizes), [1000, 3000]);
}

#[test]
fn a_burst_has_one_receiver_and_different_senders() {
    let fabric = topology(LEAF_SPINE);
    let workload = build("bursts:senders=31,every=10us,bursts=100", &fabric);
    let mut receivers = BTreeSet::new();
    for burst in workload.flows().chunks(31) {
        let senders: BTreeSet<HostId> = burst.iter().map(|flow| flow.src).collect();
        assert!(burst.iter().all(|flow| flow.dst == burst[0].dst));
        assert!(senders.len() == 31 && !senders.contains(&burst[0].dst));
        receivers.insert(burst[0].dst);
    }
    assert!(receivers.len() > 20);
    assert_eq!(workload.tasks().len(), 100);
    assert_eq!((workload.task_of(30), workload.task_of(31)), (Some(0), Some(1)));
}

#[test]
fn flows_of_a_pair_take_turns_on_its_connections() {
    let fabric = topology("leaf-spine:hosts=2,leaves=1,spines=1");
    let workload = build("poisson:load=0.5,connections=3,flows=1000", &fabric);
    assert_eq!(workload.connections().len(), 6);
    for src in [0, 1] {
        let used: Vec<u32> =
            workload.flows().iter().filter(|f| f.src.0 == src).map(|f| f.connection).collect();
        assert!(used.windows(4).all(|four| four[3] == four[0] && four[0] != four[1] && four[1] != four[2]));
    }
    assert_eq!(build("poisson:load=0.5,flows=1000", &fabric).connections().len(), 1000);
}

#[test]
fn workloads_that_are_laid_over_one_another_do_not_change_each_other() {
    let fabric = topology(LEAF_SPINE);
    let (poisson, bursts) = ("poisson:load=0.1,flows=50", "bursts:senders=4,every=3us,bursts=5");
    let both = try_build(&[poisson, bursts], &fabric, 5).unwrap();
    let alone = build(poisson, &fabric);
    assert_eq!(both.flows()[..50], *alone.flows());
    assert_eq!(both.flows().len(), 70);
    assert_eq!(both.tasks()[0].source, 1);
    assert_eq!(both.sources(), [poisson, bursts]);
}

/// The group of a host.
type GroupOf = fn(u32) -> u32;

/// The zones of a graph are the groups of its switches: data centres, sides, or switches alone.
#[test]
fn zones_of_graphs_are_their_groups() {
    let sites = include_str!("../../../data/topologies/two_sites.graph");
    let fabrics: [(Topology, GroupOf); 5] = [
        (topology("two-dc:k=4"), |host| host / 16),
        (topology("two-dc:hosts=8,leaves=4,spines=2"), |host| host / 8),
        (topology("dumbbell:hosts=4"), |host| host / 4),
        (topology("parking-lot:hops=2"), |host| [0, 2, 0, 1, 1, 2][host as usize]),
        (parse_graph("two_sites.graph", sites).unwrap(), |host| host / 4),
    ];
    for (fabric, group) in fabrics {
        let intra = |spec: &str| {
            let workload = build(spec, &fabric);
            let near = workload.flows().iter().filter(|flow| group(flow.src.0) == group(flow.dst.0)).count();
            near as f64 / workload.flows().len() as f64
        };
        let share = intra("poisson:load=0.5,intra=0.8,flows=50000");
        assert!((share - 0.8).abs() < 0.01, "{}: {share}", fabric.name());
        assert_eq!(intra("rpc:load=0.5,intra=1,flows=1000"), 1.0, "{}", fabric.name());
        assert_eq!(intra("lognormal:load=0.5,intra=0,flows=1000"), 0.0, "{}", fabric.name());
        let offered = load(
            &build("poisson:load=0.6,intra=0.3,duration=40ms", &fabric),
            fabric.hosts(),
            Span::from_ms(40),
        );
        assert!((offered / 0.6 - 1.0).abs() < 0.02, "{}: {offered}", fabric.name());
    }
}

#[test]
fn zones_that_a_graph_does_not_have_are_refused_and_so_is_its_core() {
    let one = "switch a group=g\nswitch b group=g\nhost h[0-1]\nlink h0 a\nlink h1 b\nlink a b\n";
    let one = parse_graph("one.graph", one).unwrap();
    let alone = topology("dumbbell:hosts=1");
    let refusal = |fabric, spec| try_build(&[spec], fabric, 1).unwrap_err().1.to_string();
    for (fabric, spec, message) in [
        (&one, "poisson:load=0.5,intra=0.5,flows=3", "intra: all hosts are of one group; expected 1"),
        (
            &alone,
            "poisson:load=0.5,intra=0.5,flows=3",
            "intra: host 0 has no other host in its group; expected 0",
        ),
        (
            &alone,
            "poisson:load=0.5,of=core,flows=3",
            "of: a graph has no tier that counts as its core; expected host",
        ),
    ] {
        assert_eq!(refusal(fabric, spec), message);
    }
    assert_eq!(build("poisson:load=0.5,intra=1,flows=3", &one).flows().len(), 3);
    assert_eq!(build("poisson:load=0.5,intra=0,flows=3", &alone).flows().len(), 3);
}

#[test]
fn what_makes_no_sense_is_refused() {
    for (spec, message) in [
        ("poisson:load=0.5", "expected duration=TIME or flows=N"),
        ("poisson:duration=1ms", "expected load=SHARE"),
        ("poisson:load=0.5,duration=1ms,flows=3", "duration: expected no flows as well"),
        ("poisson:load=0,flows=3", "load: `0`; expected a share above 0, at most 10, such as 0.6"),
        ("poisson:load=-1,flows=3", "load: `-1`; expected a share above 0, at most 10, such as 0.6"),
        ("poisson:load=0.5,flows=0", "flows: `0`; expected a whole number above zero"),
        ("poisson:load=0.5,duration=0us", "duration: expected a time above zero"),
        ("poisson:load=0.5,of=spine,flows=3", "of: `spine`; expected host or core"),
        ("poisson:load=0.5,intra=4,flows=3", "intra: `4`; expected a share from 0 to 1, such as 0.8"),
        ("poisson:load=0.5,load=0.6,flows=3", "`load` is given twice"),
        ("poisson:0.5,flows=3,load=0.1", "`0.5` is not of the form key=value"),
        ("poisson:load=0.1,flows", "`flows` is not of the form key=value"),
        (
            "poisson:load=0.5,sizes=0,flows=3",
            "load: flows of no bytes make no load; expected sizes above zero",
        ),
        ("poisson:load=0.5,sizes=none.txt,flows=3", "sizes: none.txt: no such file"),
        (
            "poisson:load=0.5,sizes=bad.txt,flows=3",
            "sizes: bad.txt:2: the size 900 is below that of the line before; expected sizes that do not fall",
        ),
        (
            "poisson:rate=3,flows=3",
            "poisson has no key `rate`; expected one of: load, of, sizes, duration, flows, start, intra, connections, pick, \
             priority",
        ),
        (
            "poisson:load=0.5,sizes=1,duration=1s",
            "about 200000000000 flows are too many; expected at most 16777216",
        ),
        ("lognormal:load=0.5,sigma=11,flows=3", "sigma: `11`; expected a number from 0 to 10, such as 2"),
        ("rpc:load=0.5,sigma=1,flows=3", "sigma: expected arrivals=lognormal with it"),
        ("rpc:load=0.5,arrivals=daily,flows=3", "arrivals: `daily`; expected poisson or lognormal"),
        ("bursts:senders=3,duration=1ms", "expected load=SHARE or every=TIME"),
        ("bursts:load=0.1,duration=1ms", "expected senders=N"),
        (
            "bursts:senders=32,load=0.1,duration=1ms",
            "bursts:senders=32,load=0.1,duration=1ms needs at least 33 hosts, there are 32",
        ),
        (
            "bursts:senders=3,size=0,load=0.1,bursts=2",
            "load: bursts would follow each other within a picosecond",
        ),
    ] {
        assert_eq!(refusal(spec), message);
    }
    let alone = topology("leaf-spine:hosts=4,leaves=4,spines=1");
    let refusal = |spec| try_build(&[spec], &alone, 1).unwrap_err().1.to_string();
    assert_eq!(
        refusal("poisson:load=0.5,intra=0.5,flows=3"),
        "intra: host 0 has no other host in its group; expected 0"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn flows_never_go_from_a_host_to_itself(
        hosts in 2u32..40, intra in prop::option::of(0u32..=10), seed in any::<u64>()
    ) {
        let leaves = if hosts.is_multiple_of(2) && hosts > 2 { 2 } else { 1 };
        let fabric = topology(&format!("leaf-spine:hosts={hosts},leaves={leaves},spines=1"));
        let intra = intra.map_or(String::new(), |tenths| format!(",intra={}", f64::from(tenths) / 10.0));
        // Workload::new refuses a flow from a host to itself; zones may be refused because there is only one.
        match try_build(&[&format!("poisson:load=0.5,flows=200{intra}")], &fabric, seed) {
            Ok(workload) => prop_assert_eq!(workload.flows().len(), 200),
            Err((_, error)) => prop_assert!(leaves == 1 && error.to_string().starts_with("intra: "), "{}", error),
        }
    }
}
