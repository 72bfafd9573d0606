//! Compares the software fabric in virtual time with the simulator: the same network, workload and faults,
//! but with real frames through ports, checksums, and trimming and marking of bytes.

mod soft_network;

use soft_network::{Outcome, place, run, run_ranks};
use std::sync::Arc;
use weft_cc::{CcChoice, Span, Time};
use weft_stack::port::memory::MemoryPort;
use weft_stack::port::{Port, TxBurst};
use weft_stack::rng::Rng;
use weft_stack::spray::LbChoice;
use weft_stack::wire::class::DscpClasses;
use weft_stack::wire::trim::TrimFormat;
use weft_testbed::goal::{Collective, Costs, Job, Pattern, Placement};
use weft_testbed::link_events::parse_link_events;
use weft_testbed::sim::{
    FaultPlan, FlowRecord, LinkChange, LinkDirections, LinkFaults, Options, PayloadMode, PhantomQueues,
    RunConfig, RunReport, Thresholds, run_with,
};
use weft_testbed::soft::{HostPort, SoftCounters, SoftError, SoftFabric, SoftOptions, host_link};
use weft_testbed::topology::{HostId, PortId, TopologySpec};
use weft_testbed::workload::{CmOptions, Workload, WorkloadSpec, parse_cm};

/// 4 leaves, 4 spines and 16 hosts at 100 Gbit/s and 1 µs, slowed down 500 times.
const FABRIC: &str = "leaf-spine:hosts=16,leaves=4,spines=4,link=200M,latency=500us";

fn config(workload: Workload) -> RunConfig {
    let topology = FABRIC.parse::<TopologySpec>().unwrap().build().unwrap();
    RunConfig {
        payload: PayloadMode::Real,
        until: Some(Span::from_ms(600_000)),
        ..RunConfig::new(topology, workload)
    }
}

/// A generated workload, written as a connection matrix and read again.
fn matrix(kind: &str, bytes: u64) -> Workload {
    let spec: WorkloadSpec = kind.parse().unwrap();
    let generated = spec.build(Some(16), bytes, &mut Rng::new(1, u64::MAX)).unwrap();
    let mut text = String::new();
    generated.write_cm(&mut text).unwrap();
    parse_cm("test.cm", &text, CmOptions::default()).unwrap()
}

fn predicted(config: &RunConfig, faults: &FaultPlan) -> RunReport {
    run_with(config, Options { faults: faults.clone(), ..Options::default() }).unwrap()
}

/// Mean and maximum flow completion time, µs.
fn fct(flows: &[FlowRecord]) -> [f64; 2] {
    let times = || flows.iter().map(|flow| flow.end.unwrap().since(flow.start.unwrap()).as_us_f64());
    [times().sum::<f64>() / flows.len() as f64, times().fold(0.0, f64::max)]
}

/// Checks that no frame is unaccounted for.
fn is_conserved(outcome: &Outcome) {
    let fabric = &outcome.fabric;
    assert_eq!(outcome.left, 0);
    assert_eq!(fabric.entered, outcome.sent_by_hosts);
    assert_eq!(fabric.delivered, outcome.received_by_hosts);
    assert_eq!(fabric.entered, fabric.delivered + fabric.missing(), "{fabric:?}");
    assert_eq!(fabric.latest, Span::ZERO, "with a virtual clock no event is late");
    assert_eq!(fabric.starved + fabric.refused, 0, "{fabric:?}");
}

fn beside_the_simulator(config: &RunConfig, faults: &FaultPlan) -> (Outcome, RunReport) {
    let outcome = run(config, faults, SoftOptions::default());
    is_conserved(&outcome);
    let predicted = predicted(config, faults);
    for (real, expected) in fct(&outcome.flows).into_iter().zip(fct(&predicted.flows)) {
        let ratio = real / expected;
        assert!((ratio - 1.0).abs() < 0.25, "{real} µs instead of {expected} µs");
    }
    (outcome, predicted)
}

#[test]
fn an_incast_takes_the_simulated_time_and_is_trimmed() {
    for seed in 1..4 {
        let config = RunConfig { seed, ..config(matrix("incast:15", 1 << 20)) };
        let (outcome, predicted) = beside_the_simulator(&config, &FaultPlan::default());
        assert!(outcome.fabric.trimmed > 0 && predicted.packets.trimmed > 0);
        assert_eq!((outcome.fabric.trimmed, outcome.timeouts), (outcome.trimmed_received, 0));
        assert_eq!((outcome.fabric.missing(), outcome.malformed), (0, 0));
        assert!(outcome.marked_received > 0 && outcome.fabric.marked >= outcome.marked_received);
    }
}

#[test]
fn a_permutation_takes_the_simulated_time() {
    let (outcome, _) = beside_the_simulator(&config(matrix("permutation", 1 << 20)), &FaultPlan::default());
    assert_eq!((outcome.timeouts, outcome.fabric.missing()), (0, 0));
}

#[test]
fn an_all_to_all_takes_the_simulated_time() {
    let (outcome, _) = beside_the_simulator(&config(matrix("all-to-all:4", 100_000)), &FaultPlan::default());
    assert_eq!(outcome.flows.len(), 240);
    assert_eq!((outcome.timeouts, outcome.fabric.missing()), (0, 0));
}

#[test]
fn other_algorithms_and_balancers_take_the_simulated_time() {
    for (cc, lb) in [("rccc", "oblivious"), ("smartt", "ecmp"), ("nscc", "reps")] {
        let config = RunConfig {
            cc: CcChoice::parse(cc).unwrap(),
            lb: LbChoice::parse(lb).unwrap(),
            ..config(matrix("permutation", 400_000))
        };
        beside_the_simulator(&config, &FaultPlan::default());
    }
}

/// The same program with the same matching runs in both, with two ranks on each host: each rank finishes when the simulator
/// says.
#[test]
fn programs_take_the_simulated_time() {
    for pattern in Pattern::ALL.map(|(_, pattern)| pattern) {
        // Computation that takes about as long as the messages.
        let collective = Collective { pattern, ranks: 16, bytes: 40_000, iterations: 2, compute: 20_000_000 };
        let program = collective.program().unwrap();
        let job = Job::new("a.goal", program, 2, Placement::Block, Costs::default()).unwrap();
        let none = Workload::new(job.hosts(), Vec::new(), Vec::new(), Vec::new(), Vec::new()).unwrap();
        let config = RunConfig { job: Some(Arc::new(job)), ..config(none) };
        let simulated = predicted(&config, &FaultPlan::default());
        for (real, expected) in run_ranks(&config).iter().zip(&simulated.ranks) {
            let [found, end] = [real.end, expected.end].map(|end| end.unwrap().as_us_f64());
            assert!((found / end - 1.0).abs() < 0.05, "{pattern}: {real:?}, in simulation {expected:?}");
        }
    }
}

#[test]
fn phantom_queues_mark_although_no_packet_waits() {
    // One flow, so that no queue builds up anywhere.
    let plain = config(matrix("incast:1", 2 << 20));
    let phantom = Some(PhantomQueues { drain: 0.9, ecn: Some(Thresholds::Bdp(0.2, 0.8)) });
    let (outcome, _) = beside_the_simulator(&plain, &FaultPlan::default());
    assert_eq!(outcome.fabric.marked, 0);
    let (outcome, predicted) = beside_the_simulator(&RunConfig { phantom, ..plain }, &FaultPlan::default());
    assert!(outcome.fabric.marked > 20 && predicted.packets.ecn_marked > 20, "{:?}", outcome.fabric);
}

#[test]
fn both_formats_of_trimmed_frames_give_the_same_times() {
    let config = config(matrix("incast:7", 500_000));
    let times = [TrimFormat::LengthRewritten, TrimFormat::LengthKept].map(|trim_format| {
        let outcome =
            run(&config, &FaultPlan::default(), SoftOptions { trim_format, ..SoftOptions::default() });
        is_conserved(&outcome);
        assert!(outcome.trimmed_received > 0 && outcome.malformed == 0);
        fct(&outcome.flows)
    });
    assert_eq!(times[0], times[1], "the format has no other effect");
}

#[test]
fn other_dscp_classes_work() {
    let trimmable = [10, 20, 21, 22, 23, 24, 25, 26];
    let classes = DscpClasses { trimmable, trimmed: 12, trimmed_last_hop: 12, control: 40 };
    let options = SoftOptions { classes, ..SoftOptions::default() };
    let outcome = run(&config(matrix("incast:7", 500_000)), &FaultPlan::default(), options);
    assert!(outcome.trimmed_received > 0 && outcome.malformed == 0);
    assert_eq!(outcome.timeouts, 0);
}

#[test]
fn switches_read_the_priority_from_the_frames() {
    // Two flows fill the queue in front of host 0 with about 100 packets.
    let flows = |prio: u8| {
        let text = format!(
            "Nodes 16\nConnections 3\n1->0 id 1 start 0 size 2000000 prio 2\n2->0 id 2 start 0 size 2000000 prio 2\n\
             3->0 id 3 start 40000 size 20000 prio {prio}\n"
        );
        let workload = parse_cm("test.cm", &text, CmOptions::default()).unwrap();
        let mut cc = CcChoice::parse("constant").unwrap();
        cc.set("window", "400KiB").unwrap();
        RunConfig { cc, priorities: 8, queue_bytes: Some(64 << 20), ecn: None, ..config(workload) }
    };
    let fcts = |prio| {
        let config = flows(prio);
        let outcome = run(&config, &FaultPlan::default(), SoftOptions::default());
        is_conserved(&outcome);
        assert_eq!((outcome.retransmitted, outcome.fabric.trimmed), (0, 0));
        let simulated = predicted(&config, &FaultPlan::default());
        [&outcome.flows, &simulated.flows].map(|flows| fct(&flows[2..])[0])
    };
    let config = flows(3);
    let packet = config.topology.host_rate().time_for(config.wire_mtu()).as_us_f64();
    let idle = config.topology.network_rtt(config.wire_mtu(), 128).as_us_f64() + 5.0 * packet;
    for (urgent, in_turn) in fcts(3).into_iter().zip(fcts(2)) {
        assert!(urgent < idle + 2.0 * packet, "{urgent} µs, and {idle} in an idle network");
        assert!(in_turn > urgent + 50.0 * packet, "{in_turn} µs in turn, {urgent} with a higher priority");
    }
}

#[test]
fn without_trimming_packets_are_dropped_and_retransmitted() {
    let config = RunConfig { trim: false, ..config(matrix("incast:15", 500_000)) };
    let outcome = run(&config, &FaultPlan::default(), SoftOptions::default());
    is_conserved(&outcome);
    assert!(outcome.fabric.dropped > 0 && outcome.fabric.trimmed == 0 && outcome.retransmitted > 0);
}

#[test]
fn packets_lost_while_a_link_is_down_are_retransmitted() {
    let config = config(matrix("permutation", 1 << 20));
    let text = "20ms tier=0 switch=1 link=2 fail\n200ms tier=0 switch=1 link=2 restore\n";
    let events = parse_link_events("test", text, &config.topology).unwrap();
    let plan = FaultPlan { events, ..FaultPlan::default() };
    let outcome = run(&config, &plan, SoftOptions::default());
    is_conserved(&outcome);
    assert!(outcome.fabric.lost > 0 && outcome.retransmitted > 0);
    assert_eq!(outcome.fabric.lost, outcome.fabric.missing());
}

#[test]
fn all_bytes_arrive_over_links_that_lose_and_damage_packets() {
    // One packet in a hundred on all links, or one in ten, in both directions, on the link that all flows
    // cross.
    for (word, p) in [("drop", 0.01), ("drop", 0.1), ("corrupt", 0.01), ("corrupt", 0.1)] {
        let config = config(matrix("incast:7", 200_000));
        let events = parse_link_events("test", &format!("0us host=0 {word}={p}"), &config.topology).unwrap();
        let everywhere = if p < 0.05 { p } else { 0.0 };
        let all_links = LinkFaults {
            loss: if word == "drop" { everywhere } else { 0.0 },
            corrupt: if word == "corrupt" { everywhere } else { 0.0 },
            duplicate: 0.05,
            reorder: 0.05,
            delay: Span::from_ms(2),
            ..LinkFaults::default()
        };
        let plan = FaultPlan { all_links, events, ..FaultPlan::default() };
        let outcome = run(&config, &plan, SoftOptions::default());
        let fabric = &outcome.fabric;
        assert_eq!(
            (fabric.lost > 20, outcome.malformed > 20),
            (word == "drop", word == "corrupt"),
            "{fabric:?}"
        );
        assert!(fabric.delivered + fabric.missing() > fabric.entered, "there are copies: {fabric:?}");
        assert_eq!(outcome.left, 0);
    }
}

#[test]
fn packets_are_trimmed_at_random_as_in_the_simulator() {
    let config = config(matrix("permutation", 1 << 20));
    let lines: String = (0..16).map(|host| format!("0us host={host} dir=down trim=0.05\n")).collect();
    let events = parse_link_events("test", &lines, &config.topology).unwrap();
    let plan = FaultPlan { events, ..FaultPlan::default() };
    let (outcome, predicted) = beside_the_simulator(&config, &plan);
    assert!(outcome.fabric.trimmed > 50 && outcome.timeouts == 0, "{:?}", outcome.fabric);
    assert_eq!(outcome.fabric.trimmed, outcome.trimmed_received);
    let ratio = outcome.fabric.trimmed as f64 / predicted.packets.trimmed as f64;
    assert!((0.8..1.25).contains(&ratio), "{ratio}");
}

/// The UDP checksum of a trimmed frame tells nothing, so that its endpoint could not reject it.
#[test]
fn trimmed_frames_that_are_damaged_reach_no_host() {
    let config = config(matrix("incast:7", 1 << 20));
    let lines = "0us host=0 dir=down trim=0.2\n0us host=0 dir=down corrupt=0.2";
    let events = parse_link_events("test", lines, &config.topology).unwrap();
    let outcome = run(&config, &FaultPlan { events, ..FaultPlan::default() }, SoftOptions::default());
    is_conserved(&outcome);
    let SoftCounters { trimmed, corrupted, discarded, .. } = outcome.fabric;
    assert!(discarded > 20 && outcome.malformed > 20, "{:?}", outcome.fabric);
    assert_eq!(corrupted, discarded + outcome.malformed);
    assert_eq!(trimmed, discarded + outcome.trimmed_received);
}

/// A fabric with ports for hosts 0 and 1.
fn two_hosts() -> (SoftFabric<MemoryPort>, [HostPort; 2]) {
    let config = config(matrix("permutation", 1));
    let mut fabric =
        SoftFabric::new(&config, &FaultPlan::default(), SoftOptions::default(), Time::ZERO).unwrap();
    let ports = [0, 1].map(|host| {
        let (port, inner) = host_link(4_210, place(host).mac.0, 2).unwrap();
        fabric.attach(HostId(host), place(host).ip, inner).unwrap();
        port
    });
    (fabric, ports)
}

#[test]
fn a_host_is_attached_once_and_addresses_are_unique() {
    let (mut fabric, _ports) = two_hosts();
    let mut attach = |host: u32, at: u32| {
        let (_, inner) = host_link(4_210, place(host).mac.0, 1).unwrap();
        fabric.attach(HostId(host), place(at).ip, inner).unwrap_err()
    };
    assert_eq!(attach(0, 5), SoftError::Attached(0));
    assert_eq!(attach(2, 1), SoftError::AddressTaken(place(1).ip));
    assert_eq!(attach(16, 5), SoftError::NoSuchHost(16));
    assert!(fabric.change(LinkDirections::Both(PortId(10_000)), LinkChange::Fail).is_err());
}

#[test]
fn frames_without_a_reachable_destination_are_refused() {
    let (mut fabric, [mut port, _other]) = two_hosts();
    let mut tx = TxBurst::new(&port);
    // A frame that is not IP; an IPv4 packet to an unknown address; and one whose TTL runs out.
    for bytes in [[0u8; 60], ip_to([10, 0, 9, 9], 64), ip_to([10, 0, 0, 2], 1)] {
        let mut frame = tx.reserve(60).unwrap();
        frame.copy_from_slice(&bytes);
        frame.commit();
        port.transmit(&mut tx);
        let mut now = Time::ZERO + Span::from_ms(100).times(fabric.counters().entered);
        fabric.poll(now);
        while let Some(next) = fabric.poll_timeout() {
            now = next;
            fabric.poll(now);
        }
    }
    let counters = fabric.counters();
    assert_eq!((counters.entered, counters.refused, counters.delivered), (3, 3, 0), "{counters:?}");
    assert_eq!(fabric.frames(), 0);
}

/// An empty IPv4 packet from host 0 to `dst` with the given TTL.
fn ip_to(dst: [u8; 4], ttl: u8) -> [u8; 60] {
    let mut frame = [0; 60];
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    frame[14..34].copy_from_slice(&[0x45, 0, 0, 20, 0, 0, 0, 0, ttl, 200, 0, 0, 10, 0, 0, 1, 0, 0, 0, 0]);
    frame[30..34].copy_from_slice(&dst);
    frame
}
