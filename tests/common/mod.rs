//! The settings and checks that all tests of simulation results share.

use weft::Span;
use weft::cc::CcChoice;
use weft_testbed::sim::{self, FaultPlan, Options, Overhead, RunConfig, RunReport};
use weft_testbed::topology::Topology;
use weft_testbed::workload::Workload;

/// The settings of the reference's runs, from which the tests start: packets of 4150 bytes on the wire, 64 of them
/// headers; trimming; queues of one bandwidth-delay product, marked from a fifth to four fifths.
pub(crate) fn config(topology: Topology, workload: Workload, cc: &str) -> RunConfig {
    RunConfig {
        cc: CcChoice::parse(cc).expect("a known congestion control"),
        mtu: 4086,
        wire_overhead: Overhead::Fixed(64),
        seed: 13,
        until: Some(Span::from_ms(100)),
        ..RunConfig::new(topology, workload)
    }
}

/// Runs `config`, and checks that every message is delivered as it was sent and that the endpoints keep nothing.
pub(crate) fn run(config: &RunConfig, faults: &FaultPlan) -> RunReport {
    let report = sim::run_with(config, Options { faults: faults.clone(), ..Options::default() })
        .expect("a run that can be");
    assert!(report.is_complete(), "{:?}", report.stuck);
    assert_eq!((report.payload_errors.as_slice(), report.leaks.as_slice()), (&[][..], &[][..]));
    report
}
