//! Workloads over sockets that lose, duplicate, swap and damage what arrives.

use super::sockets::{endpoints, live_hosts, open};
use crate::interrupt::Interrupt;
use crate::live::tests::program;
use crate::live::{Live, LiveHost, hosts};
use weft_cc::Span;
use weft_stack::port::faulty::{FaultCounts, Faults, FaultyPort};
use weft_stack::port::udp::UdpPort;
use weft_stack::rng::Rng;
use weft_testbed::goal::{Collective, Pattern};
use weft_testbed::sim::{RunConfig, RunReport};
use weft_testbed::workload::WorkloadSpec;

fn config(workload: &str, hosts: u32, size: u64) -> RunConfig {
    let spec: WorkloadSpec = workload.parse().unwrap();
    let workload = spec.build(Some(hosts), size, &mut Rng::new(4, 0)).unwrap();
    // Only what depends on the fabric's size is taken from the matrix.
    let base = crate::live::tests::config("Nodes 2\nConnections 1\n0->1 id 1 start 0 size 1\n");
    RunConfig { workload: workload.into(), paths: 4, until: Some(Span::from_ms(120_000)), ..base }
}

/// The receive buffer that hosts ask for by default, bytes.
const BUFFER: usize = 4 << 20;

/// Runs all flows of `config` with such receive buffers and these faults at every port.
fn run(config: &RunConfig, buffer: usize, faults: Faults) -> (RunReport, FaultCounts) {
    let hosts = hosts(config);
    let ports = open(config, hosts.len(), buffer).unwrap();
    let endpoints = endpoints(config, &ports).unwrap();
    let faulty = |LiveHost { number, host, port }| {
        let port = FaultyPort::new(port, faults, Rng::new(9, u64::from(number))).unwrap();
        LiveHost::<FaultyPort<UdpPort>> { number, host, port }
    };
    let hosts = live_hosts(hosts, ports).into_iter().map(faulty).collect();
    let mut live = Live::new(config, &endpoints, hosts).unwrap();
    live.run(&mut |_| (), &Interrupt::default());
    let struck = live.ports().map(FaultyPort::fault_counts).fold(FaultCounts::default(), add);
    (live.into_report(), struck)
}

fn add(a: FaultCounts, b: FaultCounts) -> FaultCounts {
    FaultCounts {
        dropped: a.dropped + b.dropped,
        corrupted: a.corrupted + b.corrupted,
        duplicated: a.duplicated + b.duplicated,
        reordered: a.reordered + b.reordered,
        delayed: a.delayed + b.delayed,
    }
}

/// Every byte arrives, whatever happens on the way.
fn survives(workload: &str, hosts: u32, faults: Faults) {
    let (report, struck) = run(&config(workload, hosts, 300_000), BUFFER, faults);
    assert!(report.is_complete(), "{workload}: {:?}", report.stuck);
    assert_eq!(report.payload_errors, [""; 0], "{workload}");
    assert_eq!(report.leaks, [""; 0], "{workload}");
    // A test shows nothing if its faults do not strike.
    let counted = [struck.dropped, struck.corrupted, struck.duplicated, struck.reordered];
    let asked = [faults.drop, faults.corrupt, faults.duplicate, faults.reorder];
    for (p, n) in asked.iter().zip(counted) {
        assert_eq!(*p > 0.0, n > 0, "{workload}: {struck:?} with {faults:?}");
    }
    assert_eq!(faults.drop + faults.corrupt > 0.0, report.packets.retransmitted > 0, "{workload}");
}

#[test]
fn all_bytes_arrive_with_one_percent_of_loss() {
    let faults = Faults { drop: 0.01, ..Faults::default() };
    survives("permutation", 8, faults);
    survives("incast:7", 8, faults);
}

#[test]
fn all_bytes_arrive_with_ten_percent_of_loss() {
    let faults = Faults { drop: 0.1, ..Faults::default() };
    survives("permutation", 8, faults);
    survives("incast:7", 8, faults);
    survives("all-to-all:2", 5, faults);
}

#[test]
fn all_bytes_arrive_with_duplicated_swapped_and_damaged_packets() {
    survives("incast:7", 8, Faults { duplicate: 0.05, corrupt: 0.02, ..Faults::default() });
    survives("permutation", 8, Faults { reorder: 0.1, corrupt: 0.02, ..Faults::default() });
}

#[test]
fn all_bytes_arrive_with_all_faults_at_once() {
    let faults =
        Faults { drop: 0.1, corrupt: 0.02, duplicate: 0.05, reorder: 0.05, delay: 0.02, delay_frames: 40 };
    survives("permutation", 8, faults);
    survives("all-to-all:4", 5, faults);
}

#[test]
fn windows_shrink_with_the_receive_buffer() {
    // An unprivileged process gets this much unless the system's limit has been raised.
    let (report, _) = run(&config("incast:7", 8, 1_000_000), 212_992, Faults::default());
    assert!(report.is_complete(), "{:?}", report.stuck);
    assert_eq!((report.payload_errors.len(), report.leaks.len()), (0, 0), "{report:?}");
    let packets = report.packets;
    assert!(packets.dropped < packets.data / 10, "the windows are larger than the buffers: {packets:?}");
}

#[test]
fn ranks_survive_sockets_that_lose_and_damage_packets() {
    let ring = Collective { pattern: Pattern::Ring, ranks: 8, bytes: 800_000, iterations: 1, compute: 0 };
    let mut text = String::new();
    ring.program().unwrap().write_goal(&mut text).unwrap();
    let config = RunConfig { paths: 4, ..program(&text, 2) };
    let faults = Faults { drop: 0.05, corrupt: 0.02, duplicate: 0.02, reorder: 0.05, ..Faults::default() };
    let (report, struck) = run(&config, BUFFER, faults);
    assert!(report.is_complete(), "{:?}", report.stuck);
    assert_eq!((report.payload_errors.len(), report.leaks.len()), (0, 0), "{report:?}");
    assert!(struck.dropped > 0 && report.packets.retransmitted > 0, "{struck:?}");
    assert_eq!((report.endpoints, report.ranks.len(), report.flows.len()), (4, 8, 4 * 14));
}
