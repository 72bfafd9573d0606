//! Overload so high that trimmed headers alone can fill a link. Data must still get through.

use weft_cc::{CcChoice, Rate, Span};
use weft_stack::rng::Rng;
use weft_stack::wire::pds::DeliveryMode;
use weft_testbed::sim::{self, Overhead, RunConfig};
use weft_testbed::topology::{Topology, TopologySpec};
use weft_testbed::workload::{Workload, WorkloadSpec};

fn config(topology: Topology, workload: Workload, cc: &str) -> RunConfig {
    RunConfig {
        cc: CcChoice::parse(cc).unwrap(),
        paths: 16,
        wire_overhead: Overhead::Fixed(64),
        until: Some(Span::from_ms(1_000)),
        ..RunConfig::new(topology, workload)
    }
}

fn workload(spec: &str, hosts: u32, bytes: u64) -> Workload {
    let spec: WorkloadSpec = spec.parse().unwrap();
    spec.build(Some(hosts), bytes, &mut Rng::new(1, 0)).unwrap()
}

fn completes(config: &RunConfig) {
    let report = sim::run(config, &mut |_| ()).unwrap();
    let cc = config.cc.name();
    assert!(report.is_complete(), "{cc}: {:?}", &report.stuck[..report.stuck.len().min(5)]);
}

/// Fast hosts share a slow uplink, with packets that are barely longer than their headers.
#[test]
fn flows_over_slow_uplinks_complete() {
    for cc in ["constant", "rccc", "nscc"] {
        let spec: TopologySpec =
            "leaf-spine:hosts=64,leaves=2,spines=1,link=800G,uplink=10G".parse().unwrap();
        let config = config(spec.build().unwrap(), workload("permutation", 64, 100_000), cc);
        completes(&RunConfig { mtu: 256, ..config });
    }
}

/// In order, over a network that trims: the packets behind a trimmed one are refused for their order. Sent again at
/// once, they would fill the slow link's queue and have the packet trimmed that the target waits for.
#[test]
fn ordered_flows_over_slow_uplinks_complete() {
    for cc in ["constant", "rccc", "nscc", "smartt", "nscc+rccc"] {
        let spec: TopologySpec = "leaf-spine:hosts=4,leaves=2,spines=1,uplink=10G".parse().unwrap();
        let config = config(spec.build().unwrap(), workload("permutation", 4, 500_000), cc);
        let (mode, until) = (DeliveryMode::Rod, Some(Span::from_ms(20)));
        completes(&RunConfig { mode, until, ..config });
    }
}

/// The minimum windows of the senders add up to dozens of times the capacity of the network.
#[test]
fn an_incast_of_thousands_completes() {
    let topology = Topology::default_for(3001, Rate::from_gbps(100)).unwrap();
    completes(&config(topology, workload("incast:3000", 3001, 20_000), "nscc"));
}
