//! Fast hosts over slow uplinks: trimmed headers alone can fill such a link. Data must get through.

use weft_cc::{CcChoice, Span};
use weft_stack::rng::Rng;
use weft_stack::spray::LbChoice;
use weft_stack::wire::pds::DeliveryMode;
use weft_testbed::sim::{self, Overhead, PayloadMode, RunConfig};
use weft_testbed::topology::TopologySpec;
use weft_testbed::workload::WorkloadSpec;

#[test]
fn trimmed_headers_do_not_starve_data() {
    let topology: TopologySpec =
        "leaf-spine:hosts=64,leaves=2,spines=1,link=800G,uplink=10G".parse().unwrap();
    let workload: WorkloadSpec = "permutation".parse().unwrap();
    for cc in ["constant", "rccc", "nscc"] {
        let config = RunConfig {
            topology: topology.build().unwrap(),
            workload: workload.build(Some(64), 100_000, &mut Rng::new(1, 0)).unwrap(),
            cc: CcChoice::parse(cc).unwrap(),
            lb: LbChoice::default(),
            paths: 16,
            mtu: 256,
            wire_overhead: Overhead::Fixed(64),
            trim: true,
            queue_bytes: None,
            ecn: Some((0.2, 0.8)),
            payload: PayloadMode::Virtual,
            seed: 1,
            until: Some(Span::from_ms(1_000)),
            ack_every: 16 * 1024,
            mode: DeliveryMode::Rud,
        };
        let report = sim::run(&config, &mut |_| ()).unwrap();
        assert!(report.is_complete(), "{cc}: {:?}", &report.stuck[..report.stuck.len().min(5)]);
    }
}
