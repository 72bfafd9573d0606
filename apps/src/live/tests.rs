//! Endpoints over a pair of ports in memory, and over sockets.

use super::*;
use weft::core::Settings;
use weft_cc::{Rate, Span, Time};
use weft_stack::port::faulty::{FaultCounts, Faults, FaultyPort};
use weft_stack::port::memory::{MemoryConfig, MemoryPort, pair};
use weft_stack::rng::Rng;
use weft_stack::wire::ethernet::MacAddr;
use weft_stack::worker::HostAddr;
use weft_testbed::sim::{PayloadMode, RunReport};
use weft_testbed::topology::TopologySpec;
use weft_testbed::workload::{CmOptions, parse_cm};

const MATRIX: &str = "Nodes 4\nConnections 6\nTriggers 2\n\
    1->2 id 1 start 0 size 100000 send_done_trigger 1\n\
    3->1 id 2 start 0 size 5 send_done_trigger 2\n\
    2->1 id 3 trigger 1 size 70000\n\
    1->2 id 4 start 2000 size 0\n\
    2->3 id 5 start 0 size 5\n\
    2->1 id 6 trigger 2 size 9\n\
    trigger id 1 oneshot\n\
    trigger id 2 oneshot\n";

pub(crate) fn config(matrix: &str) -> RunConfig {
    let spec: TopologySpec = "fat-tree:hosts=4".parse().unwrap();
    let workload = parse_cm("test.cm", matrix, CmOptions::default()).unwrap();
    RunConfig {
        paths: 16,
        trim: false,
        ecn: None,
        payload: PayloadMode::Real,
        ..RunConfig::new(spec.build().unwrap(), workload)
    }
}

fn endpoints(config: &RunConfig) -> Arc<FepConfig> {
    configure(config, 16, Settings { link: Some(Rate::from_gbps(100)), ..Settings::default() }).unwrap()
}

/// Runs what `config`'s workload has between hosts 1 and 2.
fn run(config: &RunConfig, faults: Faults) -> (RunReport, FaultCounts) {
    let (a, b) = pair(&MemoryConfig::default()).unwrap();
    let end = |host: u32, port: MemoryPort| {
        let n = host as u8;
        let address = HostAddr { mac: MacAddr([2, 0, 0, 0, 0, n]), ip: [127, 0, 0, n].into() };
        let port = FaultyPort::new(port, faults, Rng::new(3, host.into())).unwrap();
        LiveHost { number: host, host: address, port }
    };
    let mut live = Live::new(config, &endpoints(config), vec![end(1, a), end(2, b)]).unwrap();
    live.run(&mut |_| (), &Interrupt::default());
    let struck = live.ports().next().unwrap().fault_counts();
    (live.into_report(), struck)
}

fn is_whole(report: &RunReport) {
    assert!(report.is_complete(), "{:?}", report.stuck);
    assert_eq!((report.payload_errors.len(), report.leaks.len()), (0, 0), "{report:?}");
}

#[test]
fn only_flows_between_participating_hosts_run() {
    let (report, _) = run(&config(MATRIX), Faults::default());
    let ids: Vec<u64> = report.flows.iter().map(|flow| flow.id).collect();
    assert_eq!(ids, [1, 3, 4, 6]);
    is_whole(&report);
    assert_eq!(report.packets.data, 25 + 18 + 1 + 1);
    assert_eq!(report.endpoints, 2);
}

#[test]
fn flows_wait_only_for_flows_that_take_part() {
    let (report, _) = run(&config(MATRIX), Faults::default());
    let [first, after, later, alone] = &report.flows[..] else { panic!("four flows") };
    assert!(after.start.unwrap().is_at_or_after(first.end.unwrap()), "it waits for the trigger");
    assert_eq!(alone.start, first.start, "the flow that it waits for does not take part");
    // Its time counts from the start of the run, which the first flow may miss by a little.
    assert!(later.start.unwrap().since(Time::ZERO) >= Span::from_us(2000));
}

#[test]
fn lost_and_damaged_packets_are_sent_again() {
    let faults = Faults { drop: 0.1, corrupt: 0.1, ..Faults::default() };
    for crc in [false, true] {
        let config = RunConfig { until: Some(Span::from_ms(60_000)), crc, ..config(MATRIX) };
        let (report, struck) = run(&config, faults);
        is_whole(&report);
        assert!(report.packets.retransmitted > 0 && report.packets.dropped > 0);
        assert!(struck.dropped > 0 && struck.corrupted > 0, "{struck:?}");
    }
}

#[test]
fn a_run_over_a_dead_link_ends_and_lists_the_waiting_flows() {
    let faults = Faults { drop: 1.0, ..Faults::default() };
    let (report, _) = run(&RunConfig { until: Some(Span::from_ms(50)), ..config(MATRIX) }, faults);
    assert!(report.flows.iter().all(|flow| flow.end.is_none()));
    let said = |what: &str| report.stuck.iter().any(|line| line.contains(what));
    assert!(said("waits for an acknowledgement") && said("flow 3 from host 2 has not been started"));
}

#[test]
fn a_workload_without_flows_is_refused() {
    let (a, _b) = pair(&MemoryConfig::default()).unwrap();
    let config = config(MATRIX);
    let host = HostAddr { mac: MacAddr([2; 6]), ip: [127, 0, 0, 1].into() };
    let host = LiveHost { number: 1, host, port: a };
    let error = Live::new(&config, &endpoints(&config), vec![host]).err().unwrap();
    assert_eq!(error.to_string(), "the workload has no flows");
}

#[test]
fn only_hosts_with_flows_are_listed() {
    assert_eq!(hosts(&config(MATRIX).workload), [1, 2, 3]);
}
