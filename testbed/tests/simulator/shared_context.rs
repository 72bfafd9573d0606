//! Connections that share a congestion control context take turns. None of them starves or gives up.

use weft_cc::{CcChoice, Rate, Span};
use weft_testbed::sim::{self, RunConfig};
use weft_testbed::topology::Topology;
use weft_testbed::workload::{CmOptions, parse_cm};

/// Four hosts with links of `gbps` Gbit/s, and the connections of `matrix`.
fn config(matrix: &str, gbps: f64, cc: &str) -> RunConfig {
    let topology = Topology::default_for(4, Rate::from_bps((gbps * 1e9) as u64)).unwrap();
    let workload = parse_cm("two.cm", matrix, CmOptions::default()).unwrap();
    RunConfig { cc: CcChoice::parse(cc).unwrap(), paths: 16, ..RunConfig::new(topology, workload) }
}

/// Two flows between the same hosts together take longer than a connection may wait for credit.
#[test]
fn credit_received_by_another_connection_of_the_context_keeps_a_connection_alive() {
    let matrix = "Nodes 4\nConnections 2\n\
        0->1 id 1 start 0 size 100000000\n\
        0->1 id 2 start 0 size 100000000\n";
    let report = sim::run(&config(matrix, 0.1, "rccc"), &mut |_| ()).unwrap();
    assert!(report.is_complete(), "{:?}", report.stuck);
    assert!(
        report.end.as_ps() > 10_000_000_000_000,
        "the run must last longer than the bound on waiting for credit"
    );
}

/// The completion time of flow 2, which begins when flow 1 has ended. The sender's context and its credit
/// count live on, although the receiver has seen the last connection of the sender close.
fn second_flow(first: u64, cc: &str) -> Span {
    let matrix = format!(
        "Nodes 4\nConnections 2\nTriggers 1\n\
        0->1 id 1 start 0 size {first} send_done_trigger 1\n\
        0->1 id 2 trigger 1 size 2000000\n\
        trigger id 1 oneshot\n"
    );
    let report = sim::run(&config(&matrix, 100.0, cc), &mut |_| ()).unwrap();
    assert!(report.is_complete(), "{cc} after {first} B: {:?}", report.stuck);
    let flow = report.flows.iter().find(|flow| flow.id == 2).unwrap();
    flow.end.unwrap().since(flow.start.unwrap())
}

#[test]
fn credit_of_closed_connections_is_not_requested_again() {
    for first in [200_000, 20_000_000, 300_000_000] {
        let plain = second_flow(first, "nscc").as_ps();
        for cc in ["rccc", "nscc+rccc"] {
            let took = second_flow(first, cc).as_ps();
            assert!(took < plain * 13 / 10, "{cc} after {first} B: {took} ps, nscc {plain} ps");
        }
    }
}

/// The target closes a connection that is idle for ten seconds. The next message opens it again.
#[test]
fn a_connection_closed_for_idleness_opens_again() {
    let matrix = "Nodes 4\nConnections 3\n\
        0->1 id 1 msg 1 start 0 size 100000\n\
        0->1 id 1 msg 2 start 15000000 size 100000\n\
        0->1 id 1 msg 3 start 40000000 size 100000\n";
    for cc in ["nscc", "rccc"] {
        let report = sim::run(&config(matrix, 100.0, cc), &mut |_| ()).unwrap();
        assert!(report.is_complete(), "{cc}: {:?}", report.stuck);
        assert_eq!((&report.stuck[..], &report.leaks[..]), (&[][..], &[][..]), "{cc}");
    }
}
