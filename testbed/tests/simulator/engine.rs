//! Tests of the engine: threads, samples and traces do not change results, and links follow their events.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use weft_cc::{Rate, Span, Time};
use weft_stack::event::{Record, Selection, json};
use weft_stack::rng::Rng;
use weft_stack::wire::pds::PdcId;
use weft_testbed::sim::{
    FaultCounters, FaultPlan, FlowSample, LinkChange, LinkDirections, LinkEvent, Options, Overhead,
    PortSample, RunConfig, RunReport, SampleSink, Sampling, TraceSink, Tracing, run_with,
};
use weft_testbed::topology::{HostId, Topology, TopologySpec};
use weft_testbed::workload::{CmOptions, Workload, WorkloadSpec, parse_cm};

fn config(topology: &str, workload: &str, bytes: u64, seed: u64) -> RunConfig {
    let spec: TopologySpec = topology.parse().unwrap();
    let topology: Topology = spec.build().unwrap();
    let spec: WorkloadSpec = workload.parse().unwrap();
    let workload: Workload = spec.build(Some(topology.hosts()), bytes, &mut Rng::new(seed, 1)).unwrap();
    let wire_overhead = Overhead::Fixed(64);
    RunConfig { paths: 32, wire_overhead, seed, ..RunConfig::new(topology, workload) }
}

const LEAF_SPINE: &str = "leaf-spine:hosts=64,leaves=8,spines=4,oversub=2,link=100G,latency=1us";

fn finished(config: &RunConfig, options: Options<'_>) -> RunReport {
    let report = run_with(config, options).unwrap();
    assert!(report.is_complete() && report.leaks.is_empty(), "{:?} {:?}", report.stuck, report.leaks);
    report
}

fn with_faults(config: &RunConfig, events: Vec<LinkEvent>) -> RunReport {
    let faults = FaultPlan { events, ..FaultPlan::default() };
    finished(config, Options { faults, ..Options::default() })
}

/// Keeps all samples.
#[derive(Default, PartialEq, Debug)]
struct Kept {
    ports: Vec<(Time, PortSample)>,
    flows: Vec<(Time, FlowSample)>,
    intervals: Vec<Range<Time>>,
}

impl SampleSink for Kept {
    fn sample(&mut self, interval: Range<Time>, ports: &[PortSample], flows: &[FlowSample]) {
        let at = interval.end;
        self.intervals.push(interval);
        self.ports.extend(ports.iter().map(|sample| (at, *sample)));
        self.flows.extend(flows.iter().map(|sample| (at, *sample)));
    }
}

fn sampled(config: &RunConfig, every: Span, threads: usize) -> (RunReport, Kept) {
    let mut kept = Kept::default();
    let sampling = Some(Sampling { every, sink: &mut kept });
    let report = finished(config, Options { threads, sampling, ..Options::default() });
    (report, kept)
}

#[test]
fn any_number_of_threads_gives_the_same_results() {
    let fat_tree = "fat-tree:k=4,hosts=16,link=100G,latency=500ns";
    for (topology, workload) in
        [(LEAF_SPINE, "permutation"), (LEAF_SPINE, "incast:40"), (fat_tree, "all-to-all:2")]
    {
        let config = config(topology, workload, 300_000, 3);
        let one = finished(&config, Options::default());
        for threads in [2, 3, 8, 100] {
            let many = finished(&config, Options { threads, ..Options::default() });
            assert_eq!(one, many, "{workload} with {threads} threads");
        }
    }
}

#[test]
fn sampling_does_not_change_results_and_samples_add_up() {
    let config = config(LEAF_SPINE, "permutation", 1_000_000, 5);
    let plain = finished(&config, Options::default());
    let (report, kept) = sampled(&config, Span::from_us(7), 1);
    assert_eq!(report, plain);
    let (report, with_threads) = sampled(&config, Span::from_us(7), 3);
    assert_eq!((&report, &with_threads), (&plain, &kept));

    // All intervals have the same length, except the last one, which ends with the run.
    let last = kept.ports.iter().map(|(at, _)| at.as_ps()).max().unwrap();
    let whole = |at: u64| at.is_multiple_of(7_000_000);
    assert!(kept.ports.iter().all(|(at, _)| whole(at.as_ps()) || at.as_ps() == last));
    assert!(kept.flows.iter().all(|(at, _)| whole(at.as_ps()) || at.as_ps() == last));
    assert!(kept.ports.iter().any(|(_, sample)| sample.data_bytes > 0), "oversubscribed: queues build up");
    // Bytes that a host's link can carry in an interval, plus the packet begun in it.
    let most = Rate::from_gbps(100).bytes_in(Span::from_us(7)) + 4160;
    assert!(kept.ports.iter().all(|(_, sample)| sample.sent_bytes <= most));
    // The queues do not overflow, so nothing is retransmitted.
    assert_eq!(received(&kept, &plain), sizes(&plain));
}

/// For each flow, the sum of the received bytes in all samples.
fn received(kept: &Kept, report: &RunReport) -> Vec<u64> {
    let mut received = vec![0; report.flows.len()];
    kept.flows.iter().for_each(|(_, sample)| received[sample.flow as usize] += sample.received_bytes);
    received
}

fn sizes(report: &RunReport) -> Vec<u64> {
    report.flows.iter().map(|flow| flow.bytes).collect()
}

#[test]
fn the_incomplete_last_interval_is_sampled() {
    let config = config(LEAF_SPINE, "permutation", 300_000, 5);
    for (every, instants) in [(Span::from_us(60), 2..10), (Span::from_ms(60), 1..2)] {
        let (report, kept) = sampled(&config, every, 1);
        assert_eq!(received(&kept, &report), sizes(&report), "every {every:?}");
        let mut times: Vec<u64> = kept.ports.iter().map(|(at, _)| at.as_ps()).collect();
        times.dedup();
        assert!(times.is_sorted() && instants.contains(&times.len()), "{times:?}");
        assert!(*times.last().unwrap() >= report.end.as_ps(), "{times:?}, end {:?}", report.end);
        assert_eq!(sampled(&config, every, 3), (report, kept));
    }
}

#[test]
fn a_sample_after_an_idle_time_is_of_its_own_interval_only() {
    let text = "Nodes 64\nConnections 2\n1->40 start 1000 size 900000\n2->50 start 3010 size 900000\n";
    let workload = parse_cm("late.cm", text, CmOptions::default()).unwrap();
    let config = RunConfig { workload: workload.into(), ..config(LEAF_SPINE, "permutation", 1, 5) };
    let (report, kept) = sampled(&config, Span::from_us(50), 1);
    // The first interval is always sampled. Then nothing happens before the first flow.
    assert_eq!(kept.intervals[..2], [at_us(0)..at_us(50), at_us(1_000)..at_us(1_050)]);
    let last = kept.intervals.last().unwrap().end;
    for interval in &kept.intervals {
        assert!(interval.start.as_ps().is_multiple_of(50_000_000), "{interval:?}");
        let whole = interval.end.since(interval.start) == Span::from_us(50);
        assert!(
            whole || interval.end == last && interval.start.as_ps() < interval.end.as_ps(),
            "{interval:?}"
        );
    }
    let apart = kept.intervals.windows(2).filter(|pair| pair[0].end != pair[1].start);
    let after_idle: Vec<Time> = apart.map(|pair| pair[1].start).collect();
    assert_eq!(
        (after_idle[0], after_idle.last()),
        (at_us(1_000), Some(&at_us(3_000))),
        "{:?}",
        kept.intervals
    );
    // What a link can carry in the interval of the sample, and the packet begun in it.
    let most = Rate::from_gbps(100).bytes_in(Span::from_us(50)) + 4160;
    assert!(kept.ports.iter().all(|(_, sample)| sample.sent_bytes <= most));
    assert_eq!(received(&kept, &report), sizes(&report));
    assert_eq!(sampled(&config, Span::from_us(50), 3), (report, kept));
}

fn at_us(us: u64) -> Time {
    Time::ZERO + Span::from_us(us)
}

#[test]
fn a_run_that_is_cut_off_is_sampled_at_the_cut() {
    let config = config(LEAF_SPINE, "permutation", 1_000_000, 5);
    for (until, every) in [(50, 7), (50, 25), (50, 50), (50, 100)] {
        let cut = RunConfig { until: Some(Span::from_us(until)), ..config.clone() };
        let mut kept = Kept::default();
        let sampling = Some(Sampling { every: Span::from_us(every), sink: &mut kept });
        let report = run_with(&cut, Options { sampling, ..Options::default() }).unwrap();
        let mut times: Vec<u64> = kept.ports.iter().map(|(at, _)| at.as_ps()).collect();
        times.dedup();
        let whole = (1..).map(|n| n * every).take_while(|us| *us < until);
        let expected: Vec<u64> = whole.chain([until]).map(|us| us * 1_000_000).collect();
        assert_eq!(times, expected, "every {every} µs");
        assert!(!report.is_complete());
    }
}

#[test]
fn a_run_without_flows_can_be_sampled() {
    let workload = parse_cm("empty.cm", "Nodes 4\nConnections 0\n", CmOptions::default()).unwrap();
    let topology = "leaf-spine:hosts=4,leaves=2,spines=1".parse::<TopologySpec>().unwrap().build().unwrap();
    let config = RunConfig::new(topology, workload);
    for until in [None, Some(Span::from_us(100)), Some(Span::MAX)] {
        for every in [Span::from_us(60), Span::MAX] {
            let (report, kept) = sampled(&RunConfig { until, ..config.clone() }, every, 2);
            assert_eq!((report.end, kept), (Time::ZERO, Kept::default()));
        }
    }
}

#[test]
fn link_changes_take_effect_at_their_time() {
    let config = config("leaf-spine:hosts=4,leaves=2,spines=1,link=100G,latency=1us", "incast:1", 4 << 20, 1);
    let port = config.topology.nic(HostId(config.workload.flows()[0].src.0));
    let link = LinkDirections::Both(port);
    let fct = |report: &RunReport| report.flows[0].end.unwrap().since(report.flows[0].start.unwrap());
    let at = |us| Time::ZERO + Span::from_us(us);
    let event = |us, change| LinkEvent { at: at(us), link, change };
    let plain = with_faults(&config, Vec::new());
    let alone = fct(&plain).as_us_f64();

    let half = LinkChange::Degrade(Rate::from_gbps(50));
    let slow = fct(&with_faults(&config, vec![event(0, half)])).as_us_f64();
    assert!((1.9..2.1).contains(&(slow / alone)), "{slow} µs instead of {alone} µs");
    // Half the rate for 100 µs costs 50 µs.
    let events = vec![event(200, LinkChange::Restore), event(100, half)];
    let dip = fct(&with_faults(&config, events)).as_us_f64();
    assert!((45.0..60.0).contains(&(dip - alone)), "{dip} µs instead of {alone} µs");

    let lossy =
        with_faults(&config, vec![event(50, LinkChange::Drop(0.05)), event(150, LinkChange::Restore)]);
    // 100 µs at line rate are 300 packets in each direction.
    assert!((5..60).contains(&lossy.packets.dropped), "{:?}", lossy.packets);
    assert!(lossy.packets.retransmitted > 0);
    let corrupt = with_faults(&config, vec![event(0, LinkChange::Corrupt(0.02))]);
    assert!((5..90).contains(&corrupt.packets.dropped), "{:?}", corrupt.packets);

    let outage = with_faults(&config, vec![event(100, LinkChange::Fail), event(140, LinkChange::Restore)]);
    assert!(fct(&outage).as_us_f64() > alone + 39.0 && outage.packets.dropped > 0);
    let late = with_faults(&config, vec![event(10_000, LinkChange::Fail)]);
    assert_eq!(late.flows, plain.flows, "no packet is in flight any more");
}

/// The link of the sender loses packets by their size, in the direction in which it is told to.
#[test]
fn links_lose_long_packets_in_one_direction() {
    let config = config("leaf-spine:hosts=4,leaves=2,spines=1,link=100G,latency=1us", "incast:1", 4 << 20, 1);
    let up = config.topology.nic(HostId(config.workload.flows()[0].src.0));
    let down = config.topology.port(up).reverse;
    let run = |from, change| {
        let event = LinkEvent { at: Time::ZERO, link: LinkDirections::From(from), change };
        let faults = FaultPlan { events: vec![event], ..FaultPlan::default() };
        let until = Some(Span::from_ms(1));
        run_with(&RunConfig { until, ..config.clone() }, Options { faults, ..Options::default() }).unwrap()
    };
    let whole = u32::try_from(config.wire_mtu()).unwrap();
    let data = (4 << 20) / u64::from(config.mtu);

    let passing = run(up, LinkChange::DropOver(whole));
    assert!(passing.is_complete() && passing.faults == FaultCounters::default(), "{:?}", passing.faults);
    let back = run(down, LinkChange::DropOver(whole - 1));
    assert!(back.is_complete() && back.faults.lost == 0, "only acknowledgements return: {:?}", back.faults);
    let hole = run(up, LinkChange::DropOver(whole - 1));
    assert!(!hole.is_complete() && hole.packets.acks == 0, "{:?}", hole.packets);
    assert_eq!(hole.faults.lost, hole.packets.data + hole.packets.retransmitted);

    // A packet has 33,280 bits, an acknowledgement 512.
    let lost = |report: &RunReport| report.faults.lost as f64 / data as f64;
    let forth = run(up, LinkChange::BitErrors(1e-6));
    assert!(forth.is_complete() && (0.02..0.05).contains(&lost(&forth)), "{:?}", forth.faults);
    let back = run(down, LinkChange::BitErrors(1e-6));
    assert!(back.is_complete() && lost(&back) < 0.01, "{:?}", back.faults);
    let noise = run(up, LinkChange::BitErrors(1.0));
    assert!(!noise.is_complete() && noise.packets.acks == 0, "{:?}", noise.packets);
}

/// 1.25 MB at 800 Gbit/s are 306 packets: 13 µs, and 12 µs until the first answer.
#[test]
fn a_flow_of_one_window_takes_one_round_trip() {
    let matrix = "Nodes 16\nConnections 1\n0->15 id 1 start 0 size 1250000\n";
    let workload = parse_cm("one.cm", matrix, CmOptions::default()).unwrap();
    let topology = Topology::default_for(16, Rate::from_gbps(800)).unwrap();
    let report = finished(&RunConfig::new(topology, workload), Options::default());
    let flow = &report.flows[0];
    let time = flow.end.unwrap().since(flow.start.unwrap());
    assert!(time < Span::from_us(27), "{time}");
}

#[test]
fn a_run_is_cut_off_at_the_given_time() {
    let full = config(LEAF_SPINE, "permutation", 1_000_000, 5);
    let cut = RunConfig { until: Some(Span::from_us(50)), ..full.clone() };
    let report = run_with(&cut, Options::default()).unwrap();
    assert_eq!(report.end, Time::ZERO + Span::from_us(50));
    assert!(!report.is_complete() && !report.stuck.is_empty());
    let whole = run_with(&full, Options::default()).unwrap();
    let early = |report: &RunReport| {
        let ends = report.flows.iter().filter_map(|flow| flow.end);
        ends.filter(|end| end.as_ps() <= 50_000_000).count()
    };
    assert_eq!(early(&report), early(&whole));
    let never = RunConfig { until: Some(Span::MAX), ..full };
    assert_eq!(run_with(&never, Options::default()).unwrap(), whole);
}

/// Asks for the end of the run with its third sample.
struct Stopper<'a> {
    stop: &'a AtomicBool,
    kept: Kept,
}

impl SampleSink for Stopper<'_> {
    fn sample(&mut self, interval: Range<Time>, ports: &[PortSample], flows: &[FlowSample]) {
        let at = interval.end;
        self.kept.sample(interval, ports, flows);
        self.stop.store(at.as_ps() >= 15_000_000, Ordering::Relaxed);
    }
}

#[test]
fn a_run_that_is_stopped_ends_as_one_with_that_limit() {
    let config = config(LEAF_SPINE, "permutation", 1_000_000, 5);
    let every = Span::from_us(5);
    for threads in [1, 3] {
        let stop = AtomicBool::new(false);
        let mut sink = Stopper { stop: &stop, kept: Kept::default() };
        let sampling = Some(Sampling { every, sink: &mut sink });
        let options = Options { threads, sampling, stop: Some(&stop), ..Options::default() };
        let stopped = run_with(&config, options).unwrap();
        assert!(!stopped.is_complete() && !stopped.stuck.is_empty());
        let end = stopped.end.since(Time::ZERO);
        assert!(end > Span::from_us(15) && end < Span::from_us(25), "{end:?}");

        let limited = RunConfig { until: Some(end), ..config.clone() };
        let mut kept = Kept::default();
        let sampling = Some(Sampling { every, sink: &mut kept });
        let options = Options { threads, sampling, ..Options::default() };
        assert_eq!(run_with(&limited, options).unwrap(), stopped);
        assert_eq!(kept, sink.kept);
    }
}

/// Two flows of one connection: nothing of the first arrives, and the connection fails long before the second
/// starts. The second flow opens it again, and the run does not end before.
#[test]
fn a_failed_connection_is_opened_again_for_its_next_flow() {
    let matrix = "Nodes 4\nConnections 2\n0->3 id 1 start 0 size 10000\n\
        0->3 id 1 msg 1 start 50000 size 10000\n";
    let topology = "leaf-spine:hosts=4,leaves=2,spines=1".parse::<TopologySpec>().unwrap().build().unwrap();
    let workload = parse_cm("again.cm", matrix, CmOptions::default()).unwrap();
    let config = RunConfig::new(topology, workload);
    let link = LinkDirections::Both(config.topology.nic(HostId(0)));
    let change = |ms, change| LinkEvent { at: Time::ZERO + Span::from_ms(ms), link, change };
    let events = vec![change(0, LinkChange::Fail), change(40, LinkChange::Restore)];
    let faults = FaultPlan { events, ..FaultPlan::default() };
    for threads in [1, 2] {
        let report =
            run_with(&config, Options { faults: faults.clone(), threads, ..Options::default() }).unwrap();
        assert!(report.flows[0].end.is_none() && report.flows[1].end.is_some(), "{:?}", report.stuck);
        assert!(report.stuck.iter().any(|line| line.contains("no answer")), "{:?}", report.stuck);
    }
}

fn on_leaf_spine(topology: &str, matrix: &str) -> RunConfig {
    let topology = topology.parse::<TopologySpec>().unwrap().build().unwrap();
    RunConfig::new(topology, parse_cm("matrix.cm", matrix, CmOptions::default()).unwrap())
}

/// Runs `config` with a permanent failure of the link of `host`.
fn host_fails(config: &RunConfig, at: Span, host: u32) -> RunReport {
    let link = LinkDirections::Both(config.topology.nic(HostId(host)));
    let event = LinkEvent { at: Time::ZERO + at, link, change: LinkChange::Fail };
    let faults = FaultPlan { events: vec![event], ..FaultPlan::default() };
    run_with(config, Options { faults, ..Options::default() }).unwrap()
}

#[test]
fn an_interrupted_flow_does_not_count_as_received() {
    let matrix = "Nodes 4\nConnections 2\nTriggers 1\n\
        0->1 id 1 start 0 size 1000000 recv_done_trigger 1\n\
        1->2 id 2 trigger 1 size 10000\n\
        trigger id 1 oneshot\n";
    let config = on_leaf_spine("leaf-spine:hosts=4,leaves=2,spines=1", matrix);
    let report = host_fails(&config, Span::from_us(30), 0);
    assert_eq!(report.flows[1].start, None, "it waits for a flow that never arrives");
    assert!(report.flows[0].end.is_none() && report.payload_errors.is_empty(), "{report:?}");
    assert!(report.stuck.iter().any(|line| line.starts_with("flow 1: receive: ")), "{:?}", report.stuck);
}

#[test]
fn a_host_that_fails_in_an_all_to_all_leaves_it_unfinished() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/data/matrices/alltoall_serial_16n.cm");
    let config = on_leaf_spine("leaf-spine:hosts=16,leaves=4", &std::fs::read_to_string(path).unwrap());
    let report = host_fails(&config, Span::from_us(100), 3);
    assert!(!report.is_complete() && !report.stuck.is_empty());
    assert_eq!((report.payload_errors, report.leaks), (Vec::new(), Vec::new()));
}

/// At whatever time a host fails: if all flows are done, the remains of their connections are not reported as
/// leaks.
#[test]
fn a_failure_while_connections_close_is_not_reported_as_a_leak() {
    let spec: WorkloadSpec = "permutation".parse().unwrap();
    let workload = spec.build(Some(4), 1_000_000, &mut Rng::new(1, 1)).unwrap();
    let config = RunConfig::new(Topology::default_for(4, Rate::from_gbps(100)).unwrap(), workload);
    let mut given_up = 0;
    for ns in (80_000..110_000).step_by(250) {
        let report = host_fails(&config, Span::from_ns(ns), 0);
        assert_eq!((report.leaks.len(), report.payload_errors.len()), (0, 0), "{ns} ns: {:?}", report.leaks);
        given_up += u32::from(report.is_complete() && !report.stuck.is_empty());
    }
    assert!(given_up > 0, "no failure met the closing handshake");
}

/// Keeps the lines of a trace, and the events in their order.
#[derive(Default)]
struct Trace {
    lines: String,
    records: Vec<Record>,
}

impl TraceSink for Trace {
    fn records(&mut self, records: &[Record]) {
        records.iter().for_each(|record| json::write_record(&mut self.lines, record));
        self.records.extend_from_slice(records);
    }
}

fn traced(config: &RunConfig, selection: Selection, threads: usize) -> (RunReport, Trace) {
    let mut trace = Trace::default();
    let tracing = Some(Tracing { selection: selection.into(), sink: &mut trace });
    let report = finished(config, Options { threads, tracing, ..Options::default() });
    (report, trace)
}

#[test]
fn any_number_of_threads_gives_the_same_trace_and_tracing_does_not_change_results() {
    // Many senders to one receiver, with short queues: packets are trimmed and sent again.
    let config = RunConfig { queue_bytes: Some(20_000), ..config(LEAF_SPINE, "incast:40", 60_000, 3) };
    let plain = finished(&config, Options::default());
    let (report, one) = traced(&config, Selection::default(), 1);
    assert_eq!(report, plain);
    let in_order = |a: &Record, b: &Record| (a.at.as_ps(), a.host) <= (b.at.as_ps(), b.host);
    assert!(one.records.is_sorted_by(in_order), "ordered by time and host");
    for threads in [2, 3, 8] {
        let (report, many) = traced(&config, Selection::default(), threads);
        assert_eq!(report, plain);
        assert!(many.lines == one.lines, "{threads} threads wrote another trace");
    }

    let count = |name| one.records.iter().filter(|record| record.event.name() == name).count() as u64;
    assert_eq!(count("data_sent"), report.packets.data + report.packets.retransmitted);
    assert_eq!(count("ack_sent"), report.packets.acks);
    assert_eq!(count("nack_sent"), report.packets.nacks);
    assert_eq!(count("timeout"), report.timeouts);
    assert!(count("trimmed_received") > 0, "queues overflowed");
}

#[test]
fn a_trace_contains_the_events_of_the_selected_hosts_and_pdcs() {
    let config = config(LEAF_SPINE, "permutation", 60_000, 3);
    let (_, all) = traced(&config, Selection::default(), 1);
    let hosts = Selection { hosts: Some([3, 17].into()), pdcs: None };
    let expected: Vec<_> = all.records.iter().copied().filter(|r| [3, 17].contains(&r.host)).collect();
    assert_eq!(traced(&config, hosts, 2).1.records, expected);
    let pdcs = Selection { hosts: Some([3].into()), pdcs: Some([PdcId(1)].into()) };
    let one = traced(&config, pdcs, 2).1.records;
    let is_selected = |record: &Record| record.host == 3 && record.event.pdc() == Some(PdcId(1));
    assert_eq!(one, expected.into_iter().filter(is_selected).collect::<Vec<_>>());
    assert!(!one.is_empty());
}
