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

#[test]
fn a_connection_that_has_a_window_to_itself_asks_for_few_acknowledgements() {
    // One for 16 KiB, which are four packets; one for the SYN; those of packets that are the last in the window.
    for cc in ["nscc", "smartt", "constant"] {
        let alone = pair(cc, 1, 2_000_000);
        let (acks, packets) = (alone.packets.acks, alone.packets.data);
        assert!(acks <= packets / 4 + packets / 32, "{cc}: {acks} ACKs of {packets} packets");
    }
}
