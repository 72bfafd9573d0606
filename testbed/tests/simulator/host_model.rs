//! Hosts that take time to process what they receive, beside what queueing theory says of them.

use std::fmt::Write;
use std::sync::{Arc, Mutex};

use weft_cc::{
    AckSample, CcChoice, CcParams, CcSnapshot, LossSample, NackSample, Rate, SenderCc, Span, Time, Window,
};
use weft_stack::rng::Rng;
use weft_stack::spray::LbChoice;
use weft_testbed::sim::{HostModel, Options, Overhead, RunConfig, RunReport, run_with};
use weft_testbed::topology::TopologySpec;
use weft_testbed::workload::{CmOptions, WorkloadSpec, parse_cm};

const FABRIC: &str = "leaf-spine:hosts=16,leaves=4,spines=4,link=100G,latency=1us";

fn config(matrix: &str, host: Option<HostModel>) -> RunConfig {
    let topology = FABRIC.parse::<TopologySpec>().unwrap().build().unwrap();
    let workload = parse_cm("hosts.cm", matrix, CmOptions::default()).unwrap();
    let wire_overhead = Overhead::Fixed(64);
    RunConfig { host, wire_overhead, ..RunConfig::new(topology, workload) }
}

fn run(config: &RunConfig, threads: usize) -> RunReport {
    let report = run_with(config, Options { threads, ..Options::default() }).unwrap();
    assert!(report.is_complete(), "{:?}", report.stuck);
    report
}

fn fct(report: &RunReport) -> Span {
    report.flows[0].end.unwrap().since(report.flows[0].start.unwrap())
}

fn per_packet(time: Span) -> HostModel {
    HostModel { rate: None, per_packet: time, queue_bytes: HostModel::QUEUE_BYTES }
}

#[test]
fn an_idle_host_adds_what_a_packet_and_its_answer_cost() {
    let matrix = "Nodes 16\nConnections 1\n0->15 id 1 start 0 size 1000\n";
    let alone = fct(&run(&config(matrix, None), 1));
    let packet = Span::from_ns(700);
    assert_eq!(fct(&run(&config(matrix, Some(per_packet(packet))), 1)), alone + packet.times(2));
    let rate = Rate::from_gbps(20);
    let model = HostModel { rate: Some(rate), ..per_packet(packet) };
    let bytes = rate.time_for(1_064) + rate.time_for(64);
    assert_eq!(fct(&run(&config(matrix, Some(model)), 1)), alone + packet.times(2) + bytes);
}

/// A wide window that writes down the acknowledgements that it hears of.
struct Listener {
    heard: Arc<Mutex<Vec<AckSample>>>,
    rtt: Span,
}

impl SenderCc for Listener {
    fn on_ack(&mut self, _now: Time, ack: &AckSample) {
        self.heard.lock().unwrap().push(*ack);
    }
    fn on_nack(&mut self, _now: Time, _nack: &NackSample) {}
    fn on_timeout(&mut self, _now: Time, _lost: &LossSample) {}
    fn window(&self) -> Window {
        Window(1 << 20)
    }
    fn expected_rtt(&self) -> Span {
        self.rtt
    }
    fn snapshot(&self) -> CcSnapshot {
        CcSnapshot::default()
    }
}

/// What congestion control hears while ten packets find an idle host, and wait there for each other.
fn heard(host: Option<HostModel>) -> Vec<AckSample> {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let shared = heard.clone();
    let factory = Arc::new(move |params: &CcParams| -> Box<dyn SenderCc + Send> {
        Box::new(Listener { heard: shared.clone(), rtt: params.network_rtt })
    });
    let matrix = "Nodes 16\nConnections 1\n0->15 id 1 start 0 size 40960\n";
    let cc = CcChoice::custom("listener", factory);
    run(&RunConfig { cc, ack_every: 1, lb: LbChoice::parse("ecmp").unwrap(), ..config(matrix, host) }, 1);
    let heard = heard.lock().unwrap();
    heard.clone()
}

#[test]
fn acknowledgements_tell_the_time_in_hosts_and_round_trips_do_not_contain_it() {
    let service = Span::from_us(10);
    let (without, with) = (heard(None), heard(Some(per_packet(service))));
    assert!(without.len() >= 10 && without.iter().all(|ack| ack.hosts.is_none()), "{without:?}");
    // 4,160 bytes take 0.33 µs at 100 Gbit/s: packet n waits for n others, for 10 µs each. Acknowledgements tell that in
    // units of 128 ns, and find an idle host.
    let mut waits = Vec::new();
    for (ack, alone) in with.iter().zip(&without) {
        let hosts = ack.hosts.expect("the hosts take time");
        assert_eq!(hosts.local_rx_delay, service);
        waits.push(hosts.remote_queueing.as_us_f64());
        let (rtt, alone) = (ack.rtt.expect("a sample"), alone.rtt.expect("a sample"));
        assert!(rtt.as_ps().abs_diff(alone.as_ps()) <= 128_000, "{rtt} instead of {alone}");
    }
    for (n, wait) in waits.iter().take(10).enumerate() {
        let expected = 10.0 + n as f64 * (10.0 - 0.33);
        assert!((wait - expected).abs() < 0.3, "packet {n}: {wait} instead of {expected} µs");
    }
}

#[test]
fn a_host_without_cost_changes_nothing() {
    let workload: WorkloadSpec = "incast:12".parse().unwrap();
    let workload = workload.build(Some(16), 300_000, &mut Rng::new(1, 1)).unwrap();
    let topology = FABRIC.parse::<TopologySpec>().unwrap().build().unwrap();
    let plain = RunConfig::new(topology, workload);
    let free = HostModel { queue_bytes: u64::MAX >> 1, ..per_packet(Span::ZERO) };
    // The timeout follows from the size of the queue, so it is given.
    let timers = weft_testbed::sim::Timers { rto_init: Some(Span::from_us(200)), ..plain.timers };
    let plain = RunConfig { timers, ..plain };
    let without = run(&plain, 1);
    let with = run(&RunConfig { host: Some(free), ..plain }, 1);
    assert_eq!(with.hosts.map(|hosts| (hosts.dropped, hosts.waited_max)), Some((0, Span::ZERO)));
    assert_eq!((with.flows, with.packets), (without.flows, without.packets));
}

/// Poisson arrivals of packets that each cost the same: M/D/1. A packet's mean time in the host is
/// s · (1 + ρ / (2 · (1 − ρ))). Its acknowledgement meets the same queue with an eighth of the load at its sender.
#[test]
fn packets_wait_in_hosts_as_in_an_m_d_1_queue() {
    let (senders, messages, service) = (8, 24_000, Span::from_us(1));
    for load in [0.3, 0.7] {
        let mut rng = Rng::new(11, 3);
        let mut matrix = format!("Nodes 16\nConnections {messages}\n");
        let mut now = 0.0;
        for message in 1..=messages {
            let uniform = (f64::from(rng.below(u32::MAX)) + 1.0) / f64::from(u32::MAX);
            now -= uniform.ln() / load;
            let sender = 1 + rng.below(senders);
            writeln!(matrix, "{sender}->0 id {sender} msg {message} start {now:.6} size 64").unwrap();
        }
        let config = RunConfig { ack_every: 1, ..config(&matrix, Some(per_packet(service))) };
        let report = run(&config, 1);
        let hosts = report.hosts.unwrap();
        assert_eq!((hosts.dropped, report.packets.retransmitted), (0, 0));
        let factor = |load: f64| 1.0 + load / (2.0 * (1.0 - load));
        let expected = (factor(load) + factor(load / f64::from(senders))) / 2.0;
        let measured = hosts.waited_mean().as_us_f64();
        assert!((measured / expected - 1.0).abs() < 0.05, "load {load}: {measured} instead of {expected} µs");
    }
}

#[test]
fn a_host_slower_than_its_link_sets_the_pace_and_drops_what_finds_no_room() {
    let matrix =
        "Nodes 16\nConnections 2\n0->15 id 1 start 0 size 8000000\n1->15 id 2 start 0 size 8000000\n";
    let rate = Rate::from_gbps(40);
    let model = |queue_bytes| HostModel { rate: Some(rate), per_packet: Span::ZERO, queue_bytes };
    let bound = rate.time_for(16_000_000);
    let roomy = run(&config(matrix, Some(model(4 << 20))), 1);
    assert_eq!(roomy.hosts.unwrap().dropped, 0, "{:?}", roomy.hosts);
    let end = roomy.flows.iter().filter_map(|flow| flow.end).map(|end| end.as_ps()).max().unwrap();
    assert!((1.0..1.3).contains(&(end as f64 / bound.as_ps() as f64)), "{end} ps instead of {bound}");

    let tight = config(matrix, Some(model(20_000)));
    let report = run(&tight, 1);
    let hosts = report.hosts.unwrap();
    assert!(hosts.dropped > 0 && hosts.dropped <= report.packets.dropped, "{hosts:?}");
    assert!(hosts.queue_max_bytes <= 20_000, "{hosts:?}");
    assert_eq!(run(&tight, 3), report);
}
