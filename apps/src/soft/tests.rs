//! Hosts in threads of this process. No result here depends on the speed of the machine.

use super::*;
use crate::live::tests::config as two_tiers;
use weft_cc::Span;
use weft_testbed::sim::{LinkFaults, Thresholds};
use weft_testbed::topology::TopologySpec;

const INCAST: &str = "Nodes 16\nConnections 3\n\
    4->0 id 1 start 0 size 200000\n8->0 id 2 start 0 size 200000\n12->0 id 3 start 0 size 200000\n";

fn config(matrix: &str) -> RunConfig {
    let spec: TopologySpec = DEFAULT_TOPOLOGY.parse().unwrap();
    RunConfig {
        topology: spec.build().unwrap().slowed(500),
        trim: true,
        ecn: Some(Thresholds::Bdp(0.2, 0.8)),
        ..two_tiers(matrix)
    }
}

fn whole(config: &RunConfig, faults: &FaultPlan) -> RunReport {
    let (report, counters) = run(config, faults, None, &mut |_| (), &Interrupt::default()).unwrap();
    assert!(report.is_complete(), "{:?}", report.stuck);
    assert_eq!((report.payload_errors.len(), report.leaks.len()), (0, 0), "{report:?}");
    let notes = notes(&counters);
    assert!(notes[0].starts_with("the switches were "), "{notes:?}");
    report
}

#[test]
fn the_report_counts_trimmed_packets() {
    // One packet fits a queue.
    let config = RunConfig { queue_bytes: Some(5_000), ..config(INCAST) };
    let report = whole(&config, &FaultPlan::default());
    assert_eq!((report.endpoints, report.packets.data), (4, 3 * 49));
    let packets = &report.packets;
    // Each trimmed packet is answered by a NACK, or had arrived before: then a timer had sent it again.
    assert!(packets.trimmed > 0 && packets.trimmed <= packets.nacks + report.timeouts, "{report:?}");
}

#[test]
fn packets_lost_on_links_are_sent_again() {
    let all_links = LinkFaults { loss: 0.02, corrupt: 0.02, ..LinkFaults::default() };
    let report = whole(&config(INCAST), &FaultPlan { all_links, ..FaultPlan::default() });
    assert!(report.packets.dropped > 0 && report.packets.retransmitted > 0, "{report:?}");
}

#[test]
fn flows_take_at_least_the_time_of_their_link() {
    let report = whole(&config(INCAST), &FaultPlan::default());
    let last = report.flows.iter().filter_map(|flow| flow.end).reduce(Time::latest).unwrap();
    let first = report.flows.iter().filter_map(|flow| flow.start).reduce(Time::earliest).unwrap();
    // 600 kB over 200 Mbit/s.
    assert!(last.since(first) > Span::from_ms(24), "{:?}", last.since(first));
}

#[test]
fn the_default_slow_motion_suits_two_cores() {
    let slow_of = |text: &str, mtu, processes| {
        let topology = text.parse::<TopologySpec>().unwrap().build().unwrap();
        slow_motion(&topology, mtu, processes)
    };
    let slow = |text: &str, mtu| slow_of(text, mtu, false);
    assert_eq!(slow_of(DEFAULT_TOPOLOGY, 4_096, true), 2_000);
    assert_eq!(slow(DEFAULT_TOPOLOGY, 4_096), 500);
    assert_eq!(slow(DEFAULT_TOPOLOGY, 9_000), 500);
    assert_eq!(slow(DEFAULT_TOPOLOGY, 1_024), 2_000);
    assert_eq!(slow("leaf-spine:hosts=16,leaves=4,link=200M", 4_096), 1);
    assert_eq!(slow("leaf-spine:hosts=64,leaves=4,link=200M", 4_096), 4);
}

#[test]
fn hosts_have_addresses_of_their_own() {
    let places: Vec<HostAddr> = [0, 1, 255, 256, 65_535, (1 << 20) - 1].map(address).to_vec();
    for (n, place) in places.iter().enumerate() {
        assert!(places[..n].iter().all(|other| other.ip != place.ip && other.mac != place.mac));
    }
    assert_eq!(places[0].ip, IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)));
}
