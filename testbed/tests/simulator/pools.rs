//! Messages that share several connections: in turn, or each on the least loaded one.

use weft_cc::{CcChoice, Span};
use weft_stack::fep::Windows;
use weft_stack::rng::Rng;
use weft_testbed::sim::{FlowRecord, Options, RunConfig, RunReport, run_with};
use weft_testbed::topology::TopologySpec;
use weft_testbed::workload::{CmOptions, Setting, WorkloadSpec, parse_cm};

/// Each connection has a window of two packets, which takes it far below the rate of its link.
fn config(text: &str) -> RunConfig {
    let topology = "leaf-spine:hosts=8,leaves=2,link=100G".parse::<TopologySpec>().unwrap().build().unwrap();
    let workload = parse_cm("pool.cm", text, CmOptions::default()).unwrap();
    let mut cc = CcChoice::parse("constant").unwrap();
    cc.set("window", "8400").unwrap();
    RunConfig { cc, windows: Windows::Flow, ..RunConfig::new(topology, workload) }
}

fn run(config: &RunConfig, threads: usize) -> RunReport {
    let report = run_with(config, Options { threads, ..Options::default() }).unwrap();
    assert!(report.is_complete(), "{report:?}");
    report
}

fn fct(flow: &FlowRecord) -> Span {
    flow.end.unwrap().since(flow.start.unwrap())
}

/// A message of 400 packets, and two of one packet each while it is under way. Of two connections that take turns, the
/// third message gets the first one's again and waits behind it.
#[test]
fn a_message_takes_the_connection_with_the_fewest_bytes_outstanding() {
    let turns = config(
        "Nodes 8\nConnections 3\n0->4 id 1 start 0 size 1638400\n0->4 id 2 start 50 size 4096\n\
         0->4 id 1 msg start 100 size 4096\n",
    );
    let pool = config(
        "Nodes 8\nConnections 3\n0->4 id 1 start 0 size 1638400 pool 2\n0->4 id 1 msg start 50 size 4096 pool 2\n\
         0->4 id 1 msg start 100 size 4096 pool 2\n",
    );
    let (turns, pool) = (run(&turns, 1), run(&pool, 1));
    assert_eq!(
        turns.flows.iter().take(2).map(fct).collect::<Vec<_>>(),
        pool.flows.iter().take(2).map(fct).collect::<Vec<_>>()
    );
    let alone = fct(&pool.flows[1]);
    assert_eq!(fct(&pool.flows[2]), alone, "the second connection is idle again");
    assert!(fct(&turns.flows[2]) > alone.times(10), "{:?}", fct(&turns.flows[2]));
}

/// Three messages at once take three connections, a fourth one that with the smallest message.
#[test]
fn bytes_count_and_not_messages() {
    let config = config(
        "Nodes 8\nConnections 4\n0->4 id 1 start 0 size 400000 pool 3\n0->4 id 1 msg start 0 size 800000 pool 3\n\
         0->4 id 1 msg start 0 size 200000 pool 3\n0->4 id 1 msg start 1 size 4096 pool 3\n",
    );
    let report = run(&config, 1);
    let ends: Vec<u64> = report.flows.iter().map(|flow| flow.end.unwrap().as_ps()).collect();
    assert!(ends[3] > ends[2] && ends[3] < ends[0] && ends[0] < ends[1], "{ends:?}");
}

#[test]
fn a_generated_pool_of_the_least_loaded_connection_delays_messages_less_than_turns_do() {
    let topology = "leaf-spine:hosts=8,leaves=2,link=100G".parse::<TopologySpec>().unwrap().build().unwrap();
    let report = |pick: &str| {
        let text = format!("poisson:load=0.1,sizes=sizes.txt,flows=600,connections=3,pick={pick}");
        let read = |_: &str| Ok("1000 90\n1000000 90\n1000000 100\n".to_owned());
        let setting = Setting { hosts: 2, topology: Some(&topology), bytes: 1, slow: 1, read: &read };
        let specs: [WorkloadSpec; 1] = [text.parse().unwrap()];
        let workload = WorkloadSpec::build_all(&specs, &setting, |_| Rng::new(1, 0)).unwrap();
        let mut cc = CcChoice::parse("constant").unwrap();
        cc.set("window", "40000").unwrap();
        let config = RunConfig { cc, windows: Windows::Flow, ..RunConfig::new(topology.clone(), workload) };
        let one = run(&config, 1);
        assert_eq!(one, run(&config, 2), "two threads");
        one
    };
    // The mean of the small messages, which wait behind large ones.
    let mean = |report: &RunReport| {
        let small: Vec<f64> =
            report.flows.iter().filter(|f| f.bytes == 1_000).map(|f| fct(f).as_us_f64()).collect();
        small.iter().sum::<f64>() / small.len() as f64
    };
    let (turns, least) = (mean(&report("turn")), mean(&report("least-loaded")));
    assert!(least < 0.8 * turns, "{least} µs, in turn {turns} µs");
}

#[test]
fn wrong_pools_say_what_was_expected() {
    let refusal = |settings: &str| {
        let spec = format!("poisson:load=0.1,flows=3,{settings}");
        spec.parse::<WorkloadSpec>().unwrap_err().to_string()
    };
    assert_eq!(refusal("pick=least-loaded"), "pick: expected connections=N with it");
    assert_eq!(refusal("connections=2,pick=best"), "pick: `best`; expected turn or least-loaded");
    assert_eq!(
        refusal("connections=65536,pick=least-loaded"),
        "connections: `65536`; expected at most 65535"
    );
}
