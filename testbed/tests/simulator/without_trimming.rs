//! Fabrics that drop instead of trimming: nothing is sent twice that was not dropped, and overload is survived.

use weft_cc::registry::all_names;
use weft_cc::{CcChoice, Rate, Span};
use weft_stack::rng::Rng;
use weft_stack::spray::LbChoice;
use weft_stack::spray::registry::BALANCERS;
use weft_stack::wire::pds::DeliveryMode;
use weft_testbed::sim::{self, RunConfig, RunReport};
use weft_testbed::topology::Topology;
use weft_testbed::workload::WorkloadSpec;

/// The fabric of `weft run` for so many hosts.
fn config(workload: &str, hosts: u32, bytes: u64) -> RunConfig {
    let spec: WorkloadSpec = workload.parse().unwrap();
    let workload = spec.build(Some(hosts), bytes, &mut Rng::new(1, 0)).unwrap();
    let topology = Topology::default_for(hosts, Rate::from_gbps(100)).unwrap();
    RunConfig { trim: false, until: Some(Span::from_ms(1_000)), ..RunConfig::new(topology, workload) }
}

fn with(config: &RunConfig, cc: &str, lb: &str) -> RunConfig {
    RunConfig { cc: CcChoice::parse(cc).unwrap(), lb: LbChoice::parse(lb).unwrap(), ..config.clone() }
}

fn run(config: &RunConfig) -> RunReport {
    let report = sim::run(config, &mut |_| ()).unwrap();
    let name = format!("{}, {}", config.cc.name(), config.lb.name());
    assert!(report.is_complete(), "{name}: {:?}", &report.stuck[..report.stuck.len().min(5)]);
    report
}

/// How many times longer than its bound a run took.
fn excess(report: &RunReport) -> f64 {
    report.end.since(weft_cc::Time::ZERO).as_us_f64() / report.bound.0.as_us_f64()
}

#[test]
fn where_queues_have_room_nothing_is_sent_twice() {
    for (senders, cc, lb) in [
        (31, "nscc", "mixed"),
        (31, "smartt", "mixed"),
        (127, "nscc", "mixed"),
        (127, "smartt", "mixed"),
        (127, "rccc", "mixed"),
        (127, "constant", "ecmp"),
    ] {
        let base = config(&format!("incast:{senders}"), senders + 1, 256 * 1024);
        let mut config = RunConfig { queue_bytes: Some(32 << 20), ..with(&base, cc, lb) };
        if cc == "constant" {
            config.cc.set("window", "20000").unwrap();
        }
        let report = run(&config);
        let case = format!("{senders}:1, {cc}, {lb}: {:?}", report.packets);
        println!("{case}, {:?}, {:.3} times the bound", report.end, excess(&report));
        assert_eq!((report.packets.retransmitted, report.packets.dropped), (0, 0), "{case}");
        assert!(excess(&report) < 1.3, "{case}: {} times the bound", excess(&report));
    }
}

#[test]
fn sprayed_permutations_with_room_send_nothing_twice() {
    for balancer in BALANCERS {
        let base = config("permutation", 64, 1 << 20);
        let report =
            run(&RunConfig { queue_bytes: Some(32 << 20), ..with(&base, "constant", balancer.name) });
        let packets = report.packets;
        assert_eq!((packets.retransmitted, packets.dropped), (0, 0), "{}: {packets:?}", balancer.name);
    }
}

#[test]
fn an_incast_over_shallow_queues_completes_with_every_algorithm() {
    for algorithm in all_names() {
        for mode in [DeliveryMode::Rud, DeliveryMode::Rod] {
            let base = config("incast:127", 128, 256 * 1024);
            let report = run(&RunConfig { mode, ..with(&base, &algorithm, "mixed") });
            let excess = excess(&report);
            println!("{algorithm}, {mode:?}: {excess:.2} times the bound, {:?}", report.packets);
            assert!(report.packets.dropped > 0 || algorithm.contains("rccc"));
        }
    }
}
