//! Priorities of data in switches: what a flow of a high one waits for, what is left to one of a low one, and that a link
//! with something to send never rests.

use weft_cc::{CcChoice, Rate, Span};
use weft_stack::rng::Rng;
use weft_testbed::sim::{FlowRecord, Options, RunConfig, RunError, RunReport, Timers, run_with};
use weft_testbed::topology::{TopologySpec, parse_graph};
use weft_testbed::workload::{CmOptions, Setting, WorkloadSpec, parse_cm};

const LINK: Rate = Rate::from_gbps(100);
const PACKET: u64 = 4096;

/// A switch with five hosts and queues that no flow here fills. Windows are fixed, and longer than round trips.
fn star(flows: &[&str]) -> RunConfig {
    let topology = parse_graph("star.graph", "switch s\nhost h[0-4]\nlink h[0-4] s\n").unwrap();
    let text = format!("Nodes 5\nConnections {}\n{}\n", flows.len(), flows.join("\n"));
    let workload = parse_cm("star.cm", &text, CmOptions::default()).unwrap();
    let mut cc = CcChoice::parse("constant").unwrap();
    cc.set("window", "400KiB").unwrap();
    RunConfig {
        cc,
        priorities: 8,
        queue_bytes: Some(64 << 20),
        ecn: None,
        ..RunConfig::new(topology, workload)
    }
}

fn run(config: &RunConfig) -> Result<RunReport, RunError> {
    run_with(config, Options::default())
}

fn complete(config: &RunConfig) -> RunReport {
    let report = run(config).unwrap();
    assert!(report.is_complete() && report.packets.retransmitted == 0, "{report:?}");
    report
}

fn fct(flow: &FlowRecord) -> Span {
    flow.end.unwrap().since(flow.start.unwrap())
}

/// Two flows of low priority that fill a queue of 100 packets in front of host 0.
const LOW: [&str; 2] = ["1->0 id 1 start 0 size 2000000 prio 2", "2->0 id 2 start 0 size 2000000 prio 2"];

#[test]
fn a_flow_waits_for_one_packet_of_lower_priorities_at_most() {
    let packet = LINK.time_for(star(&LOW).wire_mtu());
    // Its acknowledgement waits for those of the other flows.
    let acks = LINK.time_for(2 * 128);
    for bytes in [1, PACKET, 50 * PACKET] {
        for start in [40, 71, 90] {
            let high = |prio| format!("3->0 id 3 start {start} size {bytes} prio {prio}");
            let alone = fct(&complete(&star(&[&high(3)])).flows[0]);
            let beside = |prio| fct(&complete(&star(&[LOW[0], LOW[1], &high(prio)])).flows[2]);
            let urgent = beside(3);
            assert!(
                urgent <= alone + packet + acks,
                "{bytes} bytes: {urgent:?}, and {alone:?} without others"
            );
            let in_turn = beside(2);
            assert!(in_turn > alone + packet.times(50), "in turn {in_turn:?}");
        }
    }
}

#[test]
fn a_flow_of_lower_priority_gets_what_is_left_and_the_link_never_rests() {
    let wire = |bytes: u64, config: &RunConfig| {
        LINK.time_for(bytes + bytes.div_ceil(PACKET) * u64::from(config.data_overhead()))
    };
    let sizes = [400 * PACKET, 300 * PACKET, 200 * PACKET];
    let [low, middle, high] = [(1, sizes[0], 0), (2, sizes[1], 4), (3, sizes[2], 7)]
        .map(|(from, size, prio)| format!("{from}->0 id {from} start 0 size {size} prio {prio}"));
    let config = star(&[&low, &middle, &high]);
    let report = complete(&config);
    let (packet, latency) =
        (LINK.time_for(config.wire_mtu()), fct(&complete(&star(&["4->0 id 1 start 0 size 1"])).flows[0]));
    let sent: Vec<Span> = sizes.iter().map(|size| wire(*size, &config)).collect();
    // Nothing of a flow passes while one of a higher priority has packets, but for one packet when it begins.
    let expected = [sent[2], sent[1] + sent[2], sent[0] + sent[1] + sent[2]];
    let seen = [2, 1, 0].map(|flow| fct(&report.flows[flow]));
    for (seen, expected) in seen.into_iter().zip(expected) {
        assert!(seen >= expected, "{seen:?} is less than {expected:?} on the link");
        assert!(seen <= expected + latency + packet.times(2), "{seen:?}, not {expected:?} and {latency:?}");
    }
}

#[test]
fn the_queues_of_all_priorities_are_measured_and_add_up_to_that_of_the_port() {
    let high = ["1->0 id 3 start 40 size 400000 prio 5", "3->0 id 4 start 40 size 400000 prio 5"];
    let report = complete(&star(&[LOW[0], LOW[1], high[0], high[1]]));
    let measures = report.measures.unwrap();
    for link in &measures.links {
        let own: Vec<_> = measures.priorities.iter().filter(|queue| queue.port == link.port).collect();
        let sum: f64 = own.iter().map(|queue| queue.queue_mean_bytes).sum();
        assert!((sum - link.queue_mean_bytes).abs() <= 1e-9 * sum, "{link:?}: {own:?}");
        assert!(own.iter().all(|queue| queue.queue_max_bytes <= link.queue_max_bytes), "{link:?}: {own:?}");
    }
    let busiest = measures.links.iter().max_by(|a, b| a.queue_mean_bytes.total_cmp(&b.queue_mean_bytes));
    let port = busiest.unwrap().port;
    let of =
        |priority| measures.priorities.iter().find(|q| q.port == port && q.priority == priority).unwrap();
    let (low, high) = (of(2), of(5));
    assert!(low.queue_max_bytes > 10 * PACKET && high.queue_max_bytes > 10 * PACKET, "{low:?}, {high:?}");
    let others = measures.priorities.iter().filter(|queue| ![2, 5].contains(&queue.priority));
    assert!(others.clone().count() > 0 && others.map(|queue| queue.queue_max_bytes).sum::<u64>() == 0);
    // One priority has no queues beside that of the port.
    let one = complete(&RunConfig { priorities: 1, ..star(&["1->0 id 1 start 0 size 20000 prio 0"]) });
    assert!(one.measures.unwrap().priorities.is_empty());
}

#[test]
fn priorities_that_no_flow_has_change_nothing() {
    let flows = [1, 2, 3].map(|from| format!("{from}->0 id {from} start {from} size 3000000"));
    let base = star(&flows.each_ref().map(String::as_str));
    let report = |priorities| {
        // Without a fixed timeout it would follow from the time that all queues take to drain.
        let timers = Timers { rto_init: Some(Span::from_us(200)), ..Timers::default() };
        let defaults = RunConfig::new(base.topology.clone(), base.workload.clone());
        run(&RunConfig { priorities, timers, queue_bytes: Some(40_000), ..defaults }).unwrap()
    };
    let one = report(1);
    assert!(one.is_complete() && one.packets.trimmed > 0, "{:?}", one.packets);
    // But each has a queue by itself, which stays empty.
    let mut eight = report(8);
    let measures = eight.measures.as_mut().unwrap();
    for queue in measures.priorities.drain(..) {
        let port = &measures.links[queue.port.0 as usize];
        let expected =
            if queue.priority == 0 { (port.queue_max_bytes, port.queue_mean_bytes) } else { (0, 0.0) };
        assert_eq!((queue.queue_max_bytes, queue.queue_mean_bytes), expected, "{queue:?}");
    }
    assert_eq!(one, eight);
}

#[test]
fn runs_with_priorities_are_the_same_for_any_number_of_threads() {
    let topology: TopologySpec = "leaf-spine:hosts=32,leaves=4,oversub=4".parse().unwrap();
    let topology = topology.build().unwrap();
    let specs =
        ["permutation:size=300KB,priority=5", "incast:20,size=100KB", "incast:9,size=20KB,priority=7"];
    let specs = specs.map(|spec| spec.parse::<WorkloadSpec>().unwrap());
    let setting =
        Setting { hosts: 32, topology: Some(&topology), bytes: 1, slow: 1, read: &|_| Err(String::new()) };
    let rng = |i| Rng::new(1, i as u64);
    let workload = WorkloadSpec::build_all(&specs, &setting, rng).unwrap();
    assert_eq!(workload.priorities(), 8);
    let config = RunConfig { priorities: 8, ..RunConfig::new(topology, workload) };
    let report = |threads| run_with(&config, Options { threads, ..Options::default() }).unwrap();
    let one = report(1);
    assert!(one.is_complete() && one.packets.trimmed > 0, "{:?}", one.packets);
    assert_eq!(one, report(2));
    // The small flows of the highest priority are done long before those that they share a link with.
    let longest = |flows: std::ops::Range<usize>| one.flows[flows].iter().map(fct).max().unwrap();
    assert!(longest(52..61) < longest(32..52), "{:?}", longest(52..61));
    let few = RunConfig { priorities: 7, ..config.clone() };
    let refused = |config: &RunConfig| run(config).unwrap_err().to_string();
    assert_eq!(refused(&few), "flows need 8 priorities, switches have 7; expected at least 8");
    for priorities in [0, 9] {
        let none_such = RunConfig { priorities, ..config.clone() };
        let expected = format!("switches tell {priorities} priorities apart; expected 1 to 8");
        assert_eq!(refused(&none_such), expected);
    }
}
