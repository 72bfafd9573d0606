//! If switches trim and no link loses packets, no retransmission timer ever expires: neither when a window shrinks to one
//! packet while the target has not yet acknowledged the packets it has accepted, nor when many targets withhold
//! acknowledgements of one window.

use weft_cc::{CcChoice, Span, Time};
use weft_stack::rng::Rng;
use weft_testbed::sim::{self, RunConfig, RunReport};
use weft_testbed::topology::TopologySpec;
use weft_testbed::workload::WorkloadSpec;

/// 16 hosts at 100 Gbit/s with 1 µs links; the same fabric 500 times slower; and an oversubscribed fabric.
const FABRICS: [&str; 3] = [
    "leaf-spine:hosts=16,leaves=4,spines=4",
    "leaf-spine:hosts=16,leaves=4,spines=4,link=200M,latency=500us",
    "leaf-spine:hosts=16,leaves=4,spines=1",
];

fn incast(fabric: &str, cc: &str, bytes: u64, seed: u64) -> RunReport {
    let topology = fabric.parse::<TopologySpec>().unwrap().build().unwrap();
    let spec: WorkloadSpec = "incast:15".parse().unwrap();
    let workload = spec.build(Some(16), bytes, &mut Rng::new(seed, u64::MAX)).unwrap();
    let cc = CcChoice::parse(cc).unwrap();
    let report =
        sim::run(&RunConfig { cc, seed, ..RunConfig::new(topology, workload) }, &mut |_| ()).unwrap();
    assert!(report.is_complete() && report.packets.dropped == 0, "{:?}", report.stuck);
    report
}

#[test]
fn an_incast_is_trimmed_and_never_waits_for_a_timer() {
    for fabric in FABRICS {
        for cc in ["nscc", "smartt", "constant", "rccc", "nscc+rccc", "smartt+rccc"] {
            for (bytes, seeds) in [(64 << 10, 8), (200_000, 8), (1 << 20, 6)] {
                let reports: Vec<RunReport> =
                    (1..=seeds).map(|seed| incast(fabric, cc, bytes, seed)).collect();
                let timeouts: Vec<u64> = reports.iter().map(|report| report.timeouts).collect();
                assert!(timeouts.iter().all(|n| *n == 0), "{fabric} {cc} {bytes} B: {timeouts:?}");
                assert!(reports.iter().any(|report| report.packets.trimmed > 0), "{fabric} {cc} {bytes} B");
            }
        }
    }
}

/// Host 1 sends `bytes` on each of `connections` to host 0, which share a window.
fn pair(cc: &str, connections: u32, bytes: u64) -> RunReport {
    let topology = "leaf-spine:hosts=4,leaves=2".parse::<TopologySpec>().unwrap().build().unwrap();
    let spec: WorkloadSpec = format!("incast:1,from=1,to=0,flows={connections}").parse().unwrap();
    let workload = spec.build(Some(4), bytes, &mut Rng::new(1, u64::MAX)).unwrap();
    let (name, window) = cc.split_once(" of 1000 BDP").map_or((cc, None), |(name, _)| (name, Some("1000")));
    let mut cc = CcChoice::parse(name).unwrap();
    window.into_iter().for_each(|window| cc.set("window_bdp", window).unwrap());
    let report = sim::run(&RunConfig { cc, ..RunConfig::new(topology, workload) }, &mut |_| ()).unwrap();
    assert!(report.is_complete() && report.packets.dropped == 0, "{:?}", report.stuck);
    report
}

/// Bytes in a millisecond.
fn goodput(report: &RunReport) -> u64 {
    let bytes: u64 = report.flows.iter().map(|flow| flow.bytes).sum();
    let time = report.flows.iter().filter_map(|flow| flow.end).map(|end| end.since(Time::ZERO)).max();
    bytes * Span::from_ms(1).as_ps() / time.unwrap().as_ps()
}

#[test]
fn connections_that_share_a_window_do_not_wait_for_each_others_acknowledgements() {
    for cc in [
        "nscc",
        "smartt",
        "dctcp",
        "swift",
        "lswift",
        "mswift",
        "constant",
        "constant of 1000 BDP",
        "rccc",
        "nscc+rccc",
        "smartt+rccc",
    ] {
        let alone = pair(cc, 1, 2_000_000);
        for connections in [2, 3, 4, 6, 8, 16, 64, 256, 512] {
            let shared = pair(cc, connections, 2_000_000.min(128_000_000 / u64::from(connections)));
            let (reached, limit) = (goodput(&shared), goodput(&alone) * 95 / 100);
            assert_eq!(shared.timeouts, 0, "{cc}, {connections} connections");
            assert!(reached >= limit, "{cc}, {connections} connections: {reached} of {limit}");
        }
    }
}

/// So many hosts send `bytes` each to one, in even parts over `connections` each, which share a window or credit.
fn large_incast(fabric: &str, cc: &str, senders: u32, connections: u32, bytes: u64) -> RunReport {
    let topology = fabric.parse::<TopologySpec>().unwrap().build().unwrap();
    let spec: WorkloadSpec = format!("incast:{senders},flows={connections}").parse().unwrap();
    let workload = spec.build(Some(80), bytes / u64::from(connections), &mut Rng::new(1, u64::MAX)).unwrap();
    let cc = CcChoice::parse(cc).unwrap();
    let report = sim::run(&RunConfig { cc, ..RunConfig::new(topology, workload) }, &mut |_| ()).unwrap();
    assert!(report.is_complete() && report.packets.dropped == 0, "{:?}", report.stuck);
    report
}

/// 80 hosts at 100 Gbit/s, and the same 500 times slower.
const LARGE: [&str; 2] = [
    "leaf-spine:hosts=80,leaves=5,spines=16",
    "leaf-spine:hosts=80,leaves=5,spines=16,link=200M,latency=500us",
];

/// Timers that may expire in a large incast: the packet that asks may be trimmed, and wait for credit, or for the turns of others at
/// a window of one packet, for longer than a timer does. Without what this test is about there were thousands.
const FEW: u64 = 10;

/// Each sender gets credit for four packets at a time, which comes as rarely as its timers expire; or has a window of one packet
/// most of the time, as all of its packets were trimmed.
#[test]
fn connections_of_a_large_incast_do_not_wait_for_each_others_acknowledgements() {
    for fabric in LARGE {
        for cc in ["rccc", "nscc+rccc", "smartt+rccc", "nscc", "smartt"] {
            let alone = large_incast(fabric, cc, 64, 1, 500_000);
            for connections in [2, 3, 4, 8] {
                let shared = large_incast(fabric, cc, 64, connections, 500_000);
                let (reached, limit) = (goodput(&shared), goodput(&alone) * 95 / 100);
                let case = format!("{fabric} {cc}, {connections} connections");
                assert!(shared.timeouts <= FEW, "{case}: {} timeouts", shared.timeouts);
                assert!(reached >= limit, "{case}: {reached} of {limit}");
                assert!(shared.packets.trimmed > 1_000, "{case}");
            }
        }
    }
}

#[test]
fn a_connection_that_has_a_window_to_itself_asks_for_few_acknowledgements() {
    // One for 16 KiB, which are four packets; one for the SYN; those of packets that are the last in the window.
    for cc in ["nscc", "smartt", "constant"] {
        let alone = pair(cc, 1, 2_000_000);
        let (acks, packets) = (alone.packets.acks, alone.packets.data);
        assert!(acks <= packets / 4 + packets / 32, "{cc}: {acks} ACKs of {packets} packets");
    }
}
