//! The same seed gives the same numbers, to the last digit, on every machine: the results of small runs are compared
//! with the files in `tests/snapshots/`, whose names are those of the tests.
//!
//! A change that is meant to alter results rewrites the files, and the diff shows what it alters:
//! `WEFT_BLESS=1 cargo test -p weft --test snapshots`

mod common;

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use weft::core::Rng;
use weft::core::spray::LbChoice;
use weft::{DeliveryMode, Span, Time};
use weft_testbed::sim::{FaultPlan, FlowRecord, LinkFaults, Overhead, PayloadMode, RunConfig, RunReport};
use weft_testbed::topology::{Topology, TopologySpec};
use weft_testbed::workload::{CmOptions, Workload, WorkloadSpec, parse_cm};

#[test]
fn nscc_incast() {
    check("nscc_incast", &config("incast:8", 500_000, LEAF_SPINE, "nscc", "mixed"));
}

#[test]
fn nscc_reps_without_trimming() {
    let config = config("permutation", 1_000_000, FAT_TREE, "nscc", "reps");
    check("nscc_reps_without_trimming", &RunConfig { trim: false, wire_overhead: Overhead::Auto, ..config });
}

#[test]
fn smartt_oblivious_all_to_all() {
    let config = config("all-to-all:2", 100_000, LEAF_SPINE, "smartt", "oblivious");
    check("smartt_oblivious_all_to_all", &RunConfig { mtu: 4096, wire_overhead: Overhead::Auto, ..config });
}

#[test]
fn rccc_bitmap() {
    let config = config("permutation", 500_000, FAT_TREE, "rccc", "bitmap");
    check("rccc_bitmap", &RunConfig { wire_overhead: Overhead::Auto, ..config });
}

#[test]
fn nscc_with_rccc_oversubscribed() {
    check(
        "nscc_with_rccc_oversubscribed",
        &config("permutation", 500_000, OVERSUBSCRIBED, "nscc+rccc", "round-robin"),
    );
}

#[test]
fn in_order_delivery_of_real_payload() {
    let config = config("permutation", 300_000, LEAF_SPINE, "constant", "ecmp");
    let (payload, mode) = (PayloadMode::Real, DeliveryMode::Rod);
    check("in_order_delivery_of_real_payload", &RunConfig { payload, mode, ack_every: 4096, ..config });
}

/// Triggers, a barrier, and messages that share a connection.
#[test]
fn matrix_with_triggers() {
    let text = "Nodes 16\nConnections 5\nTriggers 2\n\
        0->5 id 1 start 0 size 200000 send_done_trigger 1\n\
        3->5 id 2 start 2 size 150000 send_done_trigger 1\n\
        5->9 id 3 trigger 1 size 300000 recv_done_trigger 2\n\
        9->0 id 4 trigger 2 size 70000\n\
        9->0 id 4 msg 2 trigger 2 size 1\n\
        trigger id 1 barrier count 2\n\
        trigger id 2 oneshot\n";
    let workload = parse_cm("inline", text, CmOptions::default()).expect("a valid matrix");
    let config = common::config(topology(LEAF_SPINE), workload, "smartt+rccc");
    check("matrix_with_triggers", &config);
}

#[test]
fn links_that_misbehave() {
    let links = LinkFaults {
        loss: 0.002,
        corrupt: 0.001,
        duplicate: 0.002,
        reorder: 0.01,
        delay: Span::from_us(3),
        ..LinkFaults::default()
    };
    let config = config("permutation", 200_000, LEAF_SPINE, "nscc", "mixed");
    check_with_faults(
        "links_that_misbehave",
        &RunConfig { payload: PayloadMode::Real, ..config },
        &FaultPlan { all_links: links, ..FaultPlan::default() },
    );
}

const LEAF_SPINE: &str = "leaf-spine:hosts=16,leaves=4,spines=4";
const OVERSUBSCRIBED: &str = "leaf-spine:hosts=16,leaves=4,oversub=4";
const FAT_TREE: &str = "fat-tree:hosts=16";

fn topology(spec: &str) -> Topology {
    spec.parse::<TopologySpec>().and_then(|spec| spec.build()).expect("a valid topology")
}

fn config(workload: &str, bytes: u64, fabric: &str, cc: &str, lb: &str) -> RunConfig {
    let spec: WorkloadSpec = workload.parse().expect("a valid workload");
    let topology = topology(fabric);
    let workload: Workload =
        spec.build(Some(topology.hosts()), bytes, &mut Rng::new(5, 0)).expect("a valid workload");
    let lb = LbChoice::parse(lb).expect("a known balancer");
    RunConfig { lb, ..common::config(topology, workload, cc) }
}

fn check(name: &str, config: &RunConfig) {
    check_with_faults(name, config, &FaultPlan::default());
}

fn check_with_faults(name: &str, config: &RunConfig, faults: &FaultPlan) {
    compare(name, &describe(config, &common::run(config, faults)));
}

/// Compares `text` with the snapshot `name`, or rewrites the snapshot.
fn compare(name: &str, text: &str) {
    let file =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots").join(name).with_extension("txt");
    if std::env::var_os("WEFT_BLESS").is_some_and(|value| value == "1") {
        fs::write(&file, text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        return;
    }
    let expected = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    assert!(
        text == expected,
        "{} differs (WEFT_BLESS=1 rewrites it)\n--- expected\n{expected}--- found\n{text}",
        file.display()
    );
}

/// The results of a run, without the time and memory that the engine has used.
fn describe(config: &RunConfig, report: &RunReport) -> String {
    let mut fcts: Vec<u64> = report.flows.iter().filter_map(fct_ps).collect();
    fcts.sort_unstable();
    let fct = |quantile: usize| fcts[(fcts.len() - 1) * quantile / 100];
    let packets = &report.packets;
    let lines = [
        ("fabric", config.topology.name().to_owned()),
        ("cc, lb", format!("{}, {}", config.cc.name(), config.lb.name())),
        ("flows", report.flows.len().to_string()),
        ("end", format!("{} ps", report.end.since(Time::ZERO).as_ps())),
        ("bound", format!("{} ps, {}", report.bound.0.as_ps(), report.bound.1)),
        ("fct", format!("min {} p50 {} max {} ps", fct(0), fct(50), fct(100))),
        ("flow hash", format!("{:016x}", hash(&report.flows))),
        ("data", format!("{} sent, {} again", packets.data, packets.retransmitted)),
        (
            "switches",
            format!(
                "{} trimmed, {} dropped, {} marked",
                packets.trimmed, packets.dropped, packets.ecn_marked
            ),
        ),
        ("answers", format!("{} ACKs, {} NACKs", packets.acks, packets.nacks)),
        ("timeouts", report.timeouts.to_string()),
    ];
    let mut text = String::new();
    for (key, value) in lines {
        writeln!(text, "{key:<10} {value}").expect("a string takes all");
    }
    text
}

fn fct_ps(flow: &FlowRecord) -> Option<u64> {
    Some(flow.end?.since(flow.start?).as_ps())
}

/// FNV-1a over the identity, times and retransmissions of every flow.
fn hash(flows: &[FlowRecord]) -> u64 {
    let words = flows.iter().flat_map(|flow| {
        let times = [flow.start, flow.end].map(|time| time.map_or(u64::MAX, Time::as_ps));
        [
            flow.id,
            u64::from(flow.src),
            u64::from(flow.dst),
            flow.bytes,
            times[0],
            times[1],
            flow.retransmitted,
        ]
    });
    words.flat_map(u64::to_le_bytes).fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
