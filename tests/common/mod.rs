//! What the tests of simulation results share.

use weft::cc::CcChoice;
use weft::spray::LbChoice;
use weft::{DeliveryMode, Span};
use weft_testbed::sim::{self, FaultPlan, Options, Overhead, PayloadMode, RunConfig, RunReport};
use weft_testbed::topology::Topology;
use weft_testbed::workload::Workload;

/// The settings that the tests start from: those of the reference's runs. Packets of 4150 bytes on the wire, 64
/// of them headers; trimming; queues of one bandwidth-delay product, marked between a fifth and four.
pub(crate) fn config(topology: Topology, workload: Workload, cc: &str) -> RunConfig {
    RunConfig {
        topology,
        workload,
        cc: CcChoice::parse(cc).expect("a known congestion control"),
        lb: LbChoice::parse("mixed").expect("a known balancer"),
        paths: 128,
        mtu: 4086,
        wire_overhead: Overhead::Fixed(64),
        trim: true,
        queue_bytes: None,
        ecn: Some((0.2, 0.8)),
        payload: PayloadMode::Virtual,
        seed: 13,
        until: Some(Span::from_ms(100)),
        ack_every: 16_384,
        mode: DeliveryMode::Rud,
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
