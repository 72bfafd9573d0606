//! Background traffic at a constant rate: its rate, its path, and what is left to others.

use weft_stack::rng::Rng;
use weft_testbed::sim::{Options, Overhead, RunConfig, RunReport, run_with};
use weft_testbed::switch::Routing;
use weft_testbed::topology::{HostId, Node, SwitchId, TopologySpec};
use weft_testbed::workload::{Setting, Workload, WorkloadSpec};

const PAYLOAD: u64 = 4096;
const PACKET: u64 = PAYLOAD + 64;

fn config(fabric: &str, specs: &[&str]) -> RunConfig {
    let topology = fabric.parse::<TopologySpec>().unwrap().build().unwrap();
    let workload = workload(specs, 1);
    RunConfig { wire_overhead: Overhead::Fixed(64), ..RunConfig::new(topology, workload) }
}

fn workload(specs: &[&str], slow: u32) -> Workload {
    let specs: Vec<WorkloadSpec> = specs.iter().map(|spec| spec.parse().unwrap()).collect();
    let read = |_: &str| Err(String::new());
    let setting = Setting { hosts: 8, topology: None, bytes: 1, slow, read: &read };
    WorkloadSpec::build_all(&specs, &setting, |i| Rng::new(1, i as u64)).unwrap()
}

fn run(config: &RunConfig, threads: usize) -> RunReport {
    run_with(config, Options { threads, ..Options::default() }).unwrap()
}

/// Payload in bits per second of flow `index` from its start to its end, without the round trip of its last packet.
fn rate(report: &RunReport, config: &RunConfig, index: usize) -> f64 {
    let flow = &report.flows[index];
    let last = (flow.bytes - 1) % PAYLOAD + 1;
    let alone = config.ideal_fct(HostId(flow.src), HostId(flow.dst), last);
    let time = flow.end.unwrap().since(flow.start.unwrap()).minus(alone);
    (flow.bytes - last) as f64 * 8.0 / time.as_secs_f64()
}

#[test]
fn a_flow_keeps_its_rate_and_all_its_packets_take_its_path() {
    for (path, rate_text, bps) in [(0, "1G", 1e9), (2, "33.3G", 33.3e9), (3, "90G", 90e9)] {
        let spec = format!("cbr:from=1,to=6,rate={rate_text},duration=2ms,path={path}");
        let base = config("leaf-spine:hosts=8,leaves=2,spines=4,link=100G", &[&spec]);
        let config = RunConfig { routing: Routing::Exact, ..base };
        let report = run(&config, 1);
        assert!(report.is_complete() && report.packets.retransmitted == 0, "{report:?}");
        let seen = rate(&report, &config, 0);
        assert!((seen / bps - 1.0).abs() < 1e-3, "{seen} bit/s, not {rate_text}");
        let bytes = report.flows[0].bytes;
        let sent = bytes + bytes.div_ceil(PAYLOAD) * 64;
        let links = report.measures.as_ref().unwrap().links.iter().map(|link| {
            let port = config.topology.port(link.port);
            (port.owner, port.peer, link.sent_bytes)
        });
        // Up from the leaf of host 1 to the spines, in the order of their numbers.
        let up: Vec<u64> = links
            .filter(|(from, to, _)| *from == Node::Switch(SwitchId(0)) && matches!(to, Node::Switch(_)))
            .map(|(.., bytes)| bytes)
            .collect();
        assert_eq!(up.len(), 4);
        for (spine, bytes) in (0..).zip(up) {
            let data = if spine == path { sent } else { 0 };
            assert!((data..data + 64 * 8).contains(&bytes), "spine {spine}: {bytes} bytes, of data {data}");
        }
    }
}

#[test]
fn congestion_does_not_slow_it_down_and_others_get_the_remainder() {
    let specs = ["cbr:from=0,to=4,rate=40G,duration=4ms", "incast:1,size=20MB"];
    let mut config = config("dumbbell:hosts=4,bottleneck=100G", &specs);
    // The other flow shares the bottleneck with it.
    let text = "Nodes 8\nConnections 2\n0->4 id 1 start 0 size 20000000 rate 40000000000\n1->5 id 2 start 0 size 26000000\n";
    config.workload = parse(text).into();
    let report = run(&config, 1);
    assert!(report.is_complete());
    let [background, other] = [0, 1].map(|flow| rate(&report, &config, flow));
    // Its last packet waits in the queue.
    assert!((background / 40e9 - 1.0).abs() < 5e-3, "{background} bit/s");
    let goodput = 100e9 * PAYLOAD as f64 / PACKET as f64 - 40e9;
    assert!(other < goodput * 1.01 && other > goodput * 0.9, "{other} bit/s of {goodput}");
}

fn parse(text: &str) -> Workload {
    weft_testbed::workload::parse_cm("test.cm", text, Default::default()).unwrap()
}

#[test]
fn flows_of_different_rates_between_the_same_hosts_do_not_share_a_window() {
    let text = "Nodes 8\nConnections 3\n0->4 id 1 start 0 size 2000000 rate 10000000000 path 1\n\
        0->4 id 2 start 0 size 4000000 rate 20000000000 path 2\n0->4 id 3 start 0 size 1000000\n";
    let mut config = config("leaf-spine:hosts=8,leaves=2,spines=4,link=100G", &["incast:1"]);
    config.workload = parse(text).into();
    let report = run(&config, 1);
    for (flow, expected) in [(0, 10e9), (1, 20e9)] {
        let seen = rate(&report, &config, flow);
        assert!((seen / expected - 1.0).abs() < 5e-3, "flow {flow}: {seen} bit/s");
    }
    assert_eq!(report, run(&config, 2));
}

#[test]
fn rates_follow_a_slower_fabric_and_paths_are_those_that_there_are() {
    let specs =
        ["cbr:from=1,to=6,rate=10G,duration=1ms,path=3", "cbr:from=6,to=1,rate=10G,duration=1ms,path=3"];
    let slow = workload(&specs, 500);
    let [kind] = slow.backgrounds() else { panic!("one kind: {:?}", slow.backgrounds()) };
    assert_eq!((kind.rate.as_bps(), kind.path, slow.flows()[1].bytes), (20_000_000, Some(3), 2_500));
    let few = RunConfig { paths: 3, ..config("leaf-spine:hosts=8,leaves=2,spines=4", &specs) };
    assert_eq!(
        run_with(&few, Options::default()).unwrap_err().to_string(),
        "background traffic takes path 3, but there are 3; expected a number below that, or more paths"
    );
}

#[test]
fn wrong_descriptions_say_what_was_expected() {
    let refusal = |settings: &str| {
        let spec = format!("cbr:{settings}");
        let built = spec.parse::<WorkloadSpec>().and_then(|spec| spec.build(Some(8), 1, &mut Rng::new(1, 1)));
        built.unwrap_err().to_string()
    };
    for (settings, expected) in [
        ("to=1,rate=1G,duration=1ms", "expected from=HOST"),
        ("from=0,to=1,duration=1ms", "expected rate=RATE"),
        ("from=0,to=1,rate=1G", "expected duration=TIME"),
        ("from=0,to=0,rate=1G,duration=1ms", "to: expected another host than `from`"),
        ("from=a,to=1,rate=1G,duration=1ms", "from: `a`; expected the number of a host"),
        ("from=0,to=1,rate=1G,duration=1ms,path=16384", "path: `16384`; expected a number from 0 to 16383"),
        ("from=0,to=9,rate=1G,duration=1ms", "needs at least 10 hosts, there are 8"),
        ("from=0,to=1,rate=1G,duration=1ns", "duration: 0 bytes at this rate; expected 1 to"),
    ] {
        assert!(refusal(settings).contains(expected), "{settings}: {}", refusal(settings));
    }
}
