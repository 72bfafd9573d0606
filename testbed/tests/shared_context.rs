//! Connections that share a congestion context take turns; none of them starves or gives up.

use weft_cc::{CcChoice, Rate};
use weft_stack::spray::LbChoice;
use weft_stack::wire::pds::DeliveryMode;
use weft_testbed::sim::{self, Overhead, PayloadMode, RunConfig};
use weft_testbed::topology::Topology;
use weft_testbed::workload::{CmOptions, parse_cm};

/// Two flows between the same hosts last longer together than a connection may wait for credit.
#[test]
fn credit_that_arrives_through_another_connection_counts() {
    let matrix = "Nodes 4\nConnections 2\n\
        0->1 id 1 start 0 size 100000000\n\
        0->1 id 2 start 0 size 100000000\n";
    let config = RunConfig {
        topology: Topology::default_for(4, Rate::from_bps(100_000_000)).unwrap(),
        workload: parse_cm("two.cm", matrix, CmOptions::default()).unwrap(),
        cc: CcChoice::parse("rccc").unwrap(),
        lb: LbChoice::default(),
        paths: 16,
        mtu: 4096,
        wire_overhead: Overhead::Auto,
        trim: true,
        queue_bytes: None,
        ecn: Some((0.2, 0.8)),
        payload: PayloadMode::Virtual,
        seed: 1,
        until: None,
        ack_every: 16 * 1024,
        mode: DeliveryMode::Rud,
    };
    let report = sim::run(&config, &mut |_| ()).unwrap();
    assert!(report.is_complete(), "{:?}", report.stuck);
    assert!(report.end.as_ps() > 10_000_000_000_000, "shorter than the bound it is about");
}
