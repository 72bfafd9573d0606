//! Queues over time by port and by switch, and the links that lost the packets of unfinished flows.

use weft_cc::{CcChoice, Span, Time};
use weft_testbed::sim::{
    FaultPlan, LinkChange, LinkDirections, LinkEvent, LinkFaults, Measures, Options, Overhead, RunConfig,
    RunReport, run_with,
};
use weft_testbed::topology::{HostId, SwitchId, TopologySpec};
use weft_testbed::workload::{CmOptions, parse_cm};

/// Bytes of a packet on the wire, and the time that it takes at 100 Gbit/s.
const PACKET: u64 = 4096 + 64;
const PACKET_TIME: Span = Span::from_ps(PACKET * 80);
/// Packets of each flow.
const COUNT: u64 = 20;

/// Flows of [`COUNT`] packets through one leaf, whose windows and queues bound nothing.
fn config(flows: &[(u32, u32)]) -> RunConfig {
    let topology = "leaf-spine:hosts=16,leaves=2,link=100G".parse::<TopologySpec>().unwrap().build().unwrap();
    let mut text = format!("Nodes 16\nConnections {}\n", flows.len());
    for (id, (src, dst)) in flows.iter().enumerate() {
        text += &format!("{src}->{dst} id {} start 0 size {}\n", id + 1, COUNT * 4096);
    }
    let workload = parse_cm("leaf.cm", &text, CmOptions::default()).unwrap();
    let mut cc = CcChoice::parse("constant").unwrap();
    cc.set("window", "10MB").unwrap();
    RunConfig {
        cc,
        wire_overhead: Overhead::Fixed(64),
        queue_bytes: Some(1 << 20),
        ..RunConfig::new(topology, workload)
    }
}

fn run(config: &RunConfig, faults: FaultPlan, threads: usize) -> RunReport {
    run_with(config, Options { faults, threads, measure: true, ..Options::default() }).unwrap()
}

fn measures(report: &RunReport) -> &Measures {
    report.measures.as_ref().expect("a simulation measures")
}

/// Two packets arrive in the time that one needs to leave, so that the queue grows to [`COUNT`] packets and shrinks
/// again: its integral over time is the square of that, in packets times their time.
#[test]
fn the_queue_of_a_port_has_the_length_that_arithmetic_says() {
    let config = config(&[(0, 2), (1, 2)]);
    let report = run(&config, FaultPlan::default(), 1);
    assert!(report.is_complete());
    let measures = measures(&report);
    let queued: Vec<_> = measures.links.iter().filter(|link| link.queue_max_bytes > 0).collect();
    let [link] = queued[..] else { panic!("one queue: {queued:?}") };
    assert_eq!(config.topology.port(link.port).peer, weft_testbed::topology::Node::Host(HostId(2)));
    assert_eq!(link.queue_max_bytes, COUNT * PACKET);
    let expected = (COUNT * COUNT * PACKET * PACKET_TIME.as_ps()) as f64 / measures.time.as_ps() as f64;
    assert!((link.queue_mean_bytes / expected - 1.0).abs() < 1e-12, "{} {expected}", link.queue_mean_bytes);
    assert_eq!((link.trimmed, link.dropped, link.lost), (0, 0, 0));
    // Data, and the few packets that open and close the connections, all of 64 B.
    assert!((2 * COUNT * PACKET..2 * COUNT * PACKET + 64 * 20).contains(&link.sent_bytes), "{link:?}");
}

/// By the arithmetic of the queue above, two packets that arrive together as the N-th of their flows wait for N − 1 and for
/// N others.
#[test]
fn round_trips_are_those_of_the_idle_network_and_the_time_in_the_queue() {
    let config = RunConfig { ack_every: 1, ..config(&[(0, 2), (1, 2)]) };
    let report = run(&config, FaultPlan::default(), 1);
    let rtts = report.rtts.expect("they are measured");
    // Two packets without data close the connections, when all is idle again.
    assert_eq!(rtts.count(), 2 * COUNT + 2);
    let idle = config.ideal_fct(HostId(0), HostId(2), 4096).as_us_f64();
    let (packet, close) = (PACKET_TIME.as_us_f64(), rtts.quantile(0.0).as_us_f64());
    let near = |measured: Span, us: f64| (measured.as_us_f64() / us - 1.0).abs() < 2e-3;
    assert!(close < idle, "{close} {idle}");
    assert!(near(rtts.quantile(0.06), idle), "{:?} {idle}", rtts.quantile(0.06));
    assert!(near(rtts.quantile(1.0), idle + COUNT as f64 * packet), "{:?}", rtts.quantile(1.0));
    let data = (2 * COUNT) as f64 * (idle + COUNT as f64 / 2.0 * packet);
    assert!(near(rtts.mean(), (data + 2.0 * close) / (2 * COUNT + 2) as f64), "{:?}", rtts.mean());
}

#[test]
fn the_greatest_total_of_a_switch_is_that_of_one_instant() {
    let total = |flows: &[(u32, u32)]| {
        let report = run(&config(flows), FaultPlan::default(), 1);
        let leaf = measures(&report).switches[0];
        assert_eq!(leaf.switch, SwitchId(0));
        leaf.queue_max_bytes.expect("it is measured")
    };
    // The queues towards two hosts grow at the same time.
    assert_eq!(total(&[(0, 2), (1, 2), (4, 3), (5, 3)]), 2 * COUNT * PACKET);
    // Packets from the other leaf arrive microseconds later, when the other queue is shorter again.
    let staggered = total(&[(0, 2), (1, 2), (8, 3), (9, 3)]);
    assert!((COUNT * PACKET + 1..2 * COUNT * PACKET).contains(&staggered), "{staggered}");
    let together = run(&config(&[(0, 2), (1, 2), (8, 3), (9, 3)]), FaultPlan::default(), 1);
    let mean: f64 = measures(&together).links.iter().map(|link| link.queue_mean_bytes).sum();
    let of_switches: f64 = measures(&together).switches.iter().map(|switch| switch.queue_mean_bytes).sum();
    assert!((mean / of_switches - 1.0).abs() < 1e-9, "every port belongs to a switch: {mean} {of_switches}");
}

#[test]
fn measures_do_not_depend_on_threads_and_change_no_result() {
    let mut config = config(&[(0, 2), (1, 2), (8, 2), (9, 2), (2, 10), (3, 10)]);
    config.queue_bytes = Some(10 * PACKET);
    let all_links = LinkFaults { loss: 0.02, ..LinkFaults::default() };
    let faults = || FaultPlan { all_links, ..FaultPlan::default() };
    let one = run(&config, faults(), 1);
    let (trimmed, lost) =
        measures(&one).links.iter().fold((0, 0), |(t, l), link| (t + link.trimmed, l + link.lost));
    assert_eq!((trimmed, lost), (one.packets.trimmed, one.faults.lost));
    assert!(trimmed > 0 && lost > 0, "{trimmed} {lost}");
    assert_eq!(run(&config, faults(), 2), one);
    let mut plain = run_with(&config, Options { faults: faults(), ..Options::default() }).unwrap();
    assert!(measures(&plain).switches.iter().all(|switch| switch.queue_max_bytes.is_none()));
    assert!(plain.rtts.is_none());
    plain.measures = one.measures.clone();
    plain.rtts = one.rtts.clone();
    assert_eq!(plain, one);
}

#[test]
fn an_unfinished_flow_names_the_link_that_lost_its_last_packet() {
    let mut config = config(&[(0, 9), (1, 2)]);
    config.until = Some(Span::from_us(400));
    let to_host = config.topology.port(config.topology.nic(HostId(9))).reverse;
    let down = Time::ZERO + Span::from_us(4);
    let events = vec![LinkEvent { at: down, link: LinkDirections::From(to_host), change: LinkChange::Fail }];
    let faults = || FaultPlan { events: events.clone(), ..FaultPlan::default() };
    let report = run(&config, faults(), 1);
    let [unfinished] = measures(&report).unfinished[..] else { panic!("{:?}", measures(&report).unfinished) };
    let loss = unfinished.last_loss.expect("packets were lost");
    assert_eq!((unfinished.flow, loss.port, loss.down_since), (0, to_host, Some(down)));
    assert!(loss.at.since(down) > Span::ZERO, "{loss:?}");
    assert_eq!(run(&config, faults(), 2), report);
}
