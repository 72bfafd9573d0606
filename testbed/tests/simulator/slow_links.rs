//! Links that are slow from the start: their rate, their queues, and later changes.

use std::ops::Range;
use weft_cc::{Rate, Span, Time};
use weft_stack::rng::Rng;
use weft_testbed::link_events::Degradation;
use weft_testbed::sim::{
    FaultPlan, FlowSample, LinkChange, LinkDirections, LinkEvent, Options, Overhead, PortSample, RunConfig,
    RunError, RunReport, SampleSink, Sampling, Share, SlowPort, run_with,
};
use weft_testbed::topology::{HostId, PortId, TopologySpec};
use weft_testbed::workload::WorkloadSpec;

const PACKET: u64 = 4096 + 64;

fn config(topology: &str, workload: &str, bytes: u64) -> RunConfig {
    let topology = topology.parse::<TopologySpec>().unwrap().build().unwrap();
    let spec: WorkloadSpec = workload.parse().unwrap();
    let workload = spec.build(Some(topology.hosts()), bytes, &mut Rng::new(3, 1)).unwrap();
    RunConfig {
        paths: 32,
        wire_overhead: Overhead::Fixed(64),
        queue_bytes: Some(40 * PACKET),
        seed: 3,
        ..RunConfig::new(topology, workload)
    }
}

fn degraded(config: &RunConfig, degradation: &str) -> FaultPlan {
    let degradation: Degradation = degradation.parse().unwrap();
    FaultPlan { slow: degradation.ports(&config.topology).unwrap(), ..FaultPlan::default() }
}

fn finished(config: &RunConfig, options: Options<'_>) -> RunReport {
    let report = run_with(config, options).unwrap();
    assert!(report.is_complete() && report.leaks.is_empty(), "{:?} {:?}", report.stuck, report.leaks);
    report
}

fn with_faults(config: &RunConfig, faults: &FaultPlan) -> RunReport {
    finished(config, Options { faults: faults.clone(), ..Options::default() })
}

fn last(report: &RunReport) -> f64 {
    let ends = report.flows.iter().filter_map(|flow| flow.end);
    ends.map(|end| end.since(Time::ZERO).as_us_f64()).fold(0.0, f64::max)
}

/// For each port, the longest data queue in any sample, bytes.
struct Longest(Vec<u32>);

impl SampleSink for Longest {
    fn sample(&mut self, _: Range<Time>, ports: &[PortSample], _: &[FlowSample]) {
        for port in ports {
            let longest = &mut self.0[port.port as usize];
            *longest = (*longest).max(port.data_bytes);
        }
    }
}

#[test]
fn a_degraded_link_is_slower_by_the_given_factor() {
    let config = config("leaf-spine:hosts=2,leaves=2,spines=1,link=100G,latency=1us", "incast:1", 4 << 20);
    let alone = last(&with_faults(&config, &FaultPlan::default()));
    for (percent, factor) in [("50%", 2.0), ("25%", 4.0), ("10%", 10.0), ("100%", 1.0)] {
        let slow = last(&with_faults(&config, &degraded(&config, &format!("tier=0,links=1,rate={percent}"))));
        // The propagation time does not depend on the rate, so the ratio is only approximate.
        assert!((slow / alone / factor - 1.0).abs() < 0.08, "{percent}: {slow} µs instead of {alone} µs");
    }
}

#[test]
fn a_restored_link_is_as_slow_as_at_the_start() {
    let config = config("leaf-spine:hosts=2,leaves=2,spines=1,link=100G,latency=1us", "incast:1", 4 << 20);
    let slow = degraded(&config, "tier=0,links=1,rate=50%");
    // The path crosses the links of both leaves.
    let event = |us, change| {
        let at = Time::ZERO + Span::from_us(us);
        slow.slow.iter().step_by(2).map(move |slow| LinkEvent {
            at,
            link: LinkDirections::Both(slow.port),
            change,
        })
    };
    let restored = FaultPlan { events: event(100, LinkChange::Restore).collect(), ..slow.clone() };
    let plain = with_faults(&config, &slow);
    assert_eq!(
        with_faults(&config, &restored).flows,
        plain.flows,
        "restoring an unchanged link has no effect"
    );
    let whole = event(100, LinkChange::Degrade(Rate::from_gbps(100)));
    let events = whole.chain(event(200, LinkChange::Restore)).collect();
    let faster = with_faults(&config, &FaultPlan { events, ..slow.clone() });
    // 100 µs at twice the rate save at most 100 µs, less the time that congestion control needs to adapt.
    let saved = last(&plain) - last(&faster);
    assert!((50.0..101.0).contains(&saved), "{saved} µs");
}

#[test]
fn the_queues_of_slow_links_shrink_with_them() {
    let config =
        config("leaf-spine:hosts=64,leaves=4,spines=4,link=100G,latency=1us", "permutation", 1 << 20);
    let faults = degraded(&config, "tier=0,links=1,rate=25%");
    let mut longest = Longest(vec![0; config.topology.ports().len()]);
    let sampling = Some(Sampling { every: Span::from_ns(500), sink: &mut longest });
    let slow: Vec<PortId> = faults.slow.iter().map(|slow| slow.port).collect();
    let sampled = finished(&config, Options { faults: faults.clone(), sampling, ..Options::default() });
    assert_eq!(sampled, finished(&config, Options { faults, threads: 4, ..Options::default() }));
    let of_slow = slow.iter().map(|port| u64::from(longest.0[port.0 as usize])).max().unwrap();
    let of_all = u64::from(*longest.0.iter().max().unwrap());
    assert!(of_slow > 8 * PACKET && of_slow <= 10 * PACKET, "{of_slow} bytes in queues of slow links");
    assert!(of_all > 20 * PACKET, "{of_all} bytes elsewhere");
}

#[test]
fn the_queue_of_a_very_slow_link_still_holds_a_packet() {
    let config = config("leaf-spine:hosts=8,leaves=2,spines=1,link=100G,latency=1us", "incast:7", 50_000);
    let report = with_faults(&config, &degraded(&config, "tier=0,links=1,rate=1%"));
    let slowest = Rate::from_gbps(4).time_for(7 * 50_000).as_us_f64();
    assert!(last(&report) < 10.0 * slowest, "{} µs", last(&report));
}

#[test]
fn more_than_256_queue_configurations_are_refused() {
    let config = config("leaf-spine:hosts=600,leaves=2,spines=1,link=100G,latency=1us", "incast:1", 1000);
    let slow = (0..300).map(|host| SlowPort {
        port: config.topology.port(config.topology.nic(HostId(host))).reverse,
        share: Share::from_millionths(500_000 + 1000 * u64::from(host)).unwrap(),
    });
    let faults = FaultPlan { slow: slow.collect(), ..FaultPlan::default() };
    let refused = run_with(&config, Options { faults, ..Options::default() }).map(drop);
    assert_eq!(refused, Err(RunError::QueueKinds));
}
