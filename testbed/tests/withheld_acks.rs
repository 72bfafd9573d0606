//! If switches trim and no link loses packets, no retransmission timer ever expires, even when a window
//! shrinks to one packet while the target has not yet acknowledged the packets it has accepted.

use weft_cc::CcChoice;
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
