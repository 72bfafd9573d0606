//! What the tests of simulation results share.

use weft::Span;
use weft::cc::CcChoice;
use weft_testbed::sim::{self, FaultPlan, Options, Overhead, RunConfig, RunReport};
use weft_testbed::topology::Topology;
use weft_testbed::workload::Workload;

/// The settings that the tests start from: those of the reference's runs. Packets of 4150 bytes on the wire, 64
/// of them headers; trimming; queues of one bandwidth-delay product, marked between a fifth and four.
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

/// Runs `config`, which must end with every message delivered, as it was sent, and nothing left over.
pub(crate) fn run(config: &RunConfig, faults: &FaultPlan) -> RunReport {
    let report = sim::run_with(config, Options { faults: faults.clone(), ..Options::default() })
        .expect("a run that can be");
    assert!(report.is_complete(), "{:?}", report.stuck);
    assert_eq!((report.payload_errors.as_slice(), report.leaks.as_slice()), (&[][..], &[][..]));
    report
}
