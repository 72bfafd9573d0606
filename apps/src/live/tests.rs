//! Endpoints over a pair of ports in memory, and over sockets.

use super::*;
use std::sync::atomic::Ordering;
use weft::core::Settings;
use weft_cc::{Rate, Span, Time};
use weft_stack::port::faulty::{FaultCounts, Faults, FaultyPort};
use weft_stack::port::memory::{MemoryConfig, MemoryPort, pair};
use weft_stack::rng::Rng;
use weft_stack::wire::ethernet::MacAddr;
use weft_stack::worker::HostAddr;
use weft_testbed::goal::{Costs, Job, Placement, parse_goal};
use weft_testbed::sim::{PayloadMode, RunReport};
use weft_testbed::topology::TopologySpec;
use weft_testbed::workload::{CmOptions, Workload, parse_cm};

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
    assert_eq!(hosts(&config(MATRIX)), [1, 2, 3]);
}

/// A program of two hosts with these ranks on each.
pub(crate) fn program(text: &str, per_host: u32) -> RunConfig {
    let program = parse_goal("a.goal", text).unwrap();
    let job = Job::new("a.goal", program, per_host, Placement::Block, Costs::default()).unwrap();
    let none = Workload::new(job.hosts(), Vec::new(), Vec::new(), Vec::new(), Vec::new()).unwrap();
    RunConfig {
        job: Some(Arc::new(job)),
        workload: none.into(),
        until: Some(Span::from_ms(60_000)),
        ..config("Nodes 2\nConnections 0\n")
    }
}

/// Runs the program of `config` on two hosts over ports in memory.
fn run_program(config: &RunConfig, faults: Faults) -> RunReport {
    run_program_watched(config, faults, &mut |_| (), &Interrupt::default())
}

/// Does the same with `progress`, until `interrupt`.
fn run_program_watched(
    config: &RunConfig,
    faults: Faults,
    progress: &mut dyn FnMut(&RunProgress),
    interrupt: &Interrupt,
) -> RunReport {
    let (a, b) = pair(&MemoryConfig::default()).unwrap();
    let end = |host: u32, port: MemoryPort| {
        let address =
            HostAddr { mac: MacAddr([2, 0, 0, 0, 0, host as u8]), ip: [127, 0, 0, 1 + host as u8].into() };
        let port = FaultyPort::new(port, faults, Rng::new(3, host.into())).unwrap();
        LiveHost { number: host, host: address, port }
    };
    let mut live = Live::new(config, &endpoints(config), vec![end(0, a), end(1, b)]).unwrap();
    live.run(progress, interrupt);
    live.into_report()
}

/// Four ranks on two hosts: computation, messages to the next rank and around, one of which is long, and receives from any
/// rank and of any tag, which messages of the same host meet as well.
const RANKS: &str = "num_ranks 4\n\
    rank 0 {\nc: calc 3000000\ns: send 100000b to 2 tag 5\ns requires c\na: recv 9b from -1 tag -1\n\
    b: recv 9b from -1 tag -1\nb requires a\n}\n\
    rank 1 {\nsend 9b to 0 tag 3\nr: recv 100000b from 2\n}\n\
    rank 2 {\nr: recv 100000b from 0 tag 5\ns: send 100000b to 1\ns requires r\nsend 4b to 3\n}\n\
    rank 3 {\nd: calc 1000000\nr: recv 4b from 2\ns: send 9b to 0 tag 4\ns requires r\ns requires d\n}\n";

#[test]
fn ranks_compute_and_exchange_messages_in_real_time() {
    let faults = Faults { drop: 0.05, corrupt: 0.05, ..Faults::default() };
    for faults in [Faults::default(), faults] {
        let report = run_program(&program(RANKS, 2), faults);
        is_whole(&report);
        let ends: Vec<Span> = report.ranks.iter().map(|rank| rank.end.unwrap()).collect();
        let hosts: Vec<u32> = report.ranks.iter().map(|rank| rank.host).collect();
        assert_eq!(hosts, [0, 0, 1, 1]);
        // Computation takes its time, and ranks wait for the messages of those that compute.
        assert!(ends[0] >= Span::from_ms(3) && ends[2] >= ends[0].min(Span::from_ms(3)), "{ends:?}");
        assert!(ends[3] >= Span::from_ms(1) && ends[1] >= Span::from_ms(3), "{ends:?}");
        // Messages within a host do not count.
        let messages: Vec<(u64, u32, u32, u64)> =
            report.flows.iter().map(|flow| (flow.id, flow.src, flow.dst, flow.bytes)).collect();
        assert_eq!(messages, [(1, 0, 1, 100_000), (2, 1, 0, 100_000), (3, 1, 0, 9)]);
        assert!(report.end.since(Time::ZERO) >= *ends.iter().max().unwrap());
    }
}

/// The thread that drives the endpoints is not held up by a rank that computes for an hour. The run is interrupted as soon
/// as the messages have arrived.
#[test]
fn a_rank_computes_while_others_of_its_host_go_on() {
    let text = "num_ranks 3\nrank 0 {\ncalc 3600000000000\n}\n\
        rank 1 {\nsend 9b to 2\nr: recv 9b from 2\ns: send 9b to 2\ns requires r\n}\n\
        rank 2 {\nr: recv 9b from 1\ns: send 9b to 1\ns requires r\nrecv 9b from 1\n}\n";
    let interrupt = Interrupt::default();
    let mut watch = |progress: &RunProgress| {
        if progress.flows_done == 3 {
            interrupt.flag().store(true, Ordering::Relaxed);
        }
    };
    let report = run_program_watched(&program(text, 2), Faults::default(), &mut watch, &interrupt);
    assert!(interrupt.has_arrived(), "not all messages have arrived: {:?}", report.stuck);
    let finished: Vec<bool> = report.ranks.iter().map(|rank| rank.end.is_some()).collect();
    assert_eq!(finished[..2], [false, true], "{:?}", report.ranks);
}

#[test]
fn a_program_that_cannot_go_on_ends_with_the_run_and_says_who_waits_for_what() {
    let text = "num_ranks 2\nrank 0 {\nx: recv 9b from 1 tag 7\n}\nrank 1 {\nsend 9b to 0 tag 8\n}\n";
    let config = RunConfig { until: Some(Span::from_ms(200)), ..program(text, 1) };
    let report = run_program(&config, Faults::default());
    assert!(!report.is_complete());
    assert_eq!((report.ranks[0].end, report.ranks[1].end.is_some()), (None, true));
    let line = "rank 0 on host 0: `x: recv 9b from 1 tag 7` (a.goal:3) waits for a message";
    assert!(report.stuck.iter().any(|said| said == line), "{:?}", report.stuck);
}

#[test]
fn messages_that_no_receive_takes_are_left_over() {
    let text = "num_ranks 3\nrank 0 {\nsend 9b to 1\n}\nrank 1 {\n}\nrank 2 {\nsend 9b to 0\n}\n";
    let report = run_program(&program(text, 2), Faults::default());
    assert!(report.is_complete(), "{:?}", report.stuck);
    let said = |what: &str| report.leaks.iter().any(|line| line.contains(what));
    assert!(said("rank 1 on host 0: 1 messages of its host that no receive took"), "{:?}", report.leaks);
    assert!(report.leaks.iter().any(|line| line.starts_with("host 0: ")), "{:?}", report.leaks);
}

#[test]
fn ranks_that_only_compute_need_no_messages() {
    let report =
        run_program(&program("num_ranks 2\nrank 0 {\ncalc 5\n}\nrank 1 {\n}\n", 1), Faults::default());
    is_whole(&report);
    assert_eq!((report.ranks.len(), report.flows.len()), (2, 0));
}
