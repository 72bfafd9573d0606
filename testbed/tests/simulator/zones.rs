//! Hosts of the sender's own pod and all others as zones of their own, and windows per flow.

use std::collections::{BTreeMap, BTreeSet};

use weft_cc::{CcChoice, Rate, Span};
use weft_stack::event::{Event, Record};
use weft_stack::fep::Windows;
use weft_stack::spray::LbChoice;
use weft_testbed::sim::{self, Algorithms, Options, RunConfig, RunReport, TraceSink, Tracing};
use weft_testbed::topology::{Topology, TopologySpec};
use weft_testbed::workload::{CmOptions, parse_cm};

fn topology(spec: &str) -> Topology {
    spec.parse::<TopologySpec>().unwrap().build().unwrap()
}

fn config(topology: Topology, matrix: &str) -> RunConfig {
    let workload = parse_cm("test.cm", matrix, CmOptions::default()).unwrap();
    RunConfig { paths: 16, ..RunConfig::new(topology, workload) }
}

fn finished(config: &RunConfig) -> RunReport {
    let report = sim::run(config, &mut |_| ()).unwrap();
    assert!(report.is_complete(), "{:?}", report.stuck);
    report
}

/// The completion times of flows, by their identifiers.
fn times(report: &RunReport) -> BTreeMap<u64, Span> {
    report.flows.iter().map(|flow| (flow.id, flow.end.unwrap().since(flow.start.unwrap()))).collect()
}

/// `constant` with a window of `packets` full packets.
fn constant(packets: u64) -> CcChoice {
    let mut cc = CcChoice::parse("constant").unwrap();
    cc.set("window", &(packets * 4_300).to_string()).unwrap();
    cc
}

/// Pods of four hosts: flow 1 stays in its pod, flow 2 leaves it.
const NEAR_AND_FAR: &str = "Nodes 16\nConnections 2\n\
    0->2 id 1 start 0 size 200000\n\
    4->12 id 2 start 0 size 200000\n";

#[test]
fn flows_within_a_pod_have_algorithms_of_their_own() {
    let fat_tree = topology("fat-tree:hosts=16");
    let base = config(fat_tree, NEAR_AND_FAR);
    let with = |near: u64, far: u64| {
        let intra = Some(Algorithms { cc: constant(near), lb: LbChoice::default() });
        times(&finished(&RunConfig { cc: constant(far), intra, ..base.clone() }))
    };
    let (slow, fast) = (with(1, 1), with(32, 32));
    assert!(slow[&1] > fast[&1].times(4) && slow[&2] > fast[&2].times(4), "{slow:?} {fast:?}");
    assert_eq!(with(1, 32), BTreeMap::from([(1, slow[&1]), (2, fast[&2])]));
    assert_eq!(with(32, 1), BTreeMap::from([(1, fast[&1]), (2, slow[&2])]));
}

#[test]
fn zones_have_the_round_trip_time_of_their_longest_path() {
    for spec in ["fat-tree:hosts=16", "leaf-spine:hosts=16,leaves=4,spines=4"] {
        let base = config(topology(spec), NEAR_AND_FAR);
        let one = base.endpoint().zones;
        let intra = Some(Algorithms { cc: CcChoice::default(), lb: LbChoice::default() });
        let two = RunConfig { intra, ..base }.endpoint().zones;
        let zone = |own, peer| {
            two.get(two.map.zone_of(weft_stack::packet::Addr(own), weft_stack::packet::Addr(peer)))
        };
        let (near, far) = (zone(0, 3), zone(0, 4));
        let rtt = |zone: &weft_stack::fep::Zone| zone.cc.params().network_rtt;
        assert_eq!(rtt(far), rtt(&one.default), "{spec}: the longest path of all");
        assert!(rtt(near) < rtt(far), "{spec}");
        assert!(near.pdc.rto_init <= far.pdc.rto_init && far.pdc == one.default.pdc, "{spec}");
    }
}

#[test]
fn zones_with_equal_settings_change_nothing_but_the_base_round_trip_time() {
    let base = config(topology("fat-tree:hosts=16"), NEAR_AND_FAR);
    let base = RunConfig { cc: constant(8), ..base };
    let intra = Some(Algorithms { cc: constant(8), lb: LbChoice::default() });
    let two = finished(&RunConfig { intra, ..base.clone() });
    assert_eq!(two.flows, finished(&base).flows);
}

/// The congestion contexts that each host has opened.
#[derive(Default)]
struct Contexts(BTreeSet<(u32, u32)>);

impl TraceSink for Contexts {
    fn records(&mut self, records: &[Record]) {
        self.0.extend(records.iter().filter_map(|record| match record.event {
            Event::PdcOpened { context, .. } => Some((record.host, context)),
            _ => None,
        }));
    }
}

/// `flows` flows of `bytes` from each of `senders` hosts to host 0.
fn incast(senders: u32, flows: u32, bytes: u64) -> RunConfig {
    let mut matrix = format!("Nodes {}\nConnections {}\n", senders + 1, senders * flows);
    for n in 0..senders * flows {
        matrix += &format!("{}->0 id {} start 0 size {bytes}\n", 1 + n % senders, n + 1);
    }
    config(Topology::default_for(senders + 1, Rate::from_gbps(100)).unwrap(), &matrix)
}

#[test]
fn five_thousand_flows_of_fifty_hosts_have_five_thousand_windows() {
    for (windows, contexts) in [(Windows::Flow, 5_000), (Windows::Pair, 50)] {
        let mut seen = Contexts::default();
        let tracing = Some(Tracing { selection: Default::default(), sink: &mut seen });
        let config = RunConfig { windows, ..incast(50, 100, 8_192) };
        let report = sim::run_with(&config, Options { tracing, ..Options::default() }).unwrap();
        assert!(report.is_complete(), "{windows:?}: {:?}", report.stuck);
        assert_eq!(seen.0.len(), contexts, "{windows:?}");
    }
}

#[test]
fn credit_is_granted_to_each_window() {
    for cc in ["rccc", "nscc+rccc"] {
        let cc = CcChoice::parse(cc).unwrap();
        finished(&RunConfig { cc, windows: Windows::Flow, ..incast(8, 40, 20_000) });
    }
}

/// Jain's index of the rates of flows: 1 if all are equal, 1/n if one of n has everything.
fn jain(report: &RunReport) -> f64 {
    let rates = || report.flows.iter().map(|f| f.bytes as f64 / times(report)[&f.id].as_secs_f64());
    let (sum, squares) = (rates().sum::<f64>(), rates().map(|rate| rate * rate).sum::<f64>());
    sum * sum / (squares * report.flows.len() as f64)
}

/// One host sends one flow and another one nine: pairs get equal shares, or flows do.
#[test]
fn windows_of_their_own_give_flows_equal_shares() {
    let mut matrix = "Nodes 4\nConnections 10\n1->0 id 1 start 0 size 1000000\n".to_owned();
    for id in 2..=10 {
        matrix += &format!("2->0 id {id} start 0 size 1000000\n");
    }
    let base = config(Topology::default_for(4, Rate::from_gbps(100)).unwrap(), &matrix);
    let [flow, pair] =
        [Windows::Flow, Windows::Pair].map(|windows| finished(&RunConfig { windows, ..base.clone() }));
    assert!(jain(&flow) > 0.85 && jain(&pair) < 0.7, "{} {}", jain(&flow), jain(&pair));
    // With a share of a half, the lone flow ends after a fifth of the time in which all end.
    let lone = |report: &RunReport| times(report)[&1].as_secs_f64() / report.end.as_ps() as f64 * 1e12;
    assert!(lone(&flow) > 0.7 && lone(&pair) < 0.4, "{} {}", lone(&flow), lone(&pair));
}
