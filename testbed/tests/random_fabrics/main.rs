//! Random small fabrics whose links lose, corrupt, duplicate and reorder packets, or fail for long packets only, in one
//! direction only, for a time or for ever. After every run each flow is done with its bytes compared; or it has ended
//! with an error that a lasting fault explains, within the bound that follows from the configuration; and nothing is
//! left over.
//!
//! The cases are the same in every run. `WEFT_FABRIC_CASES` sets the number of cases of each kind,
//! `WEFT_FABRIC_SEED` draws other cases.

mod case;
mod oracle;

use std::cell::Cell;

use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

use weft_stack::fep::Windows;
use weft_stack::spray::registry::BALANCERS;
use weft_stack::wire::pds::DeliveryMode;
use weft_testbed::sim::{LinkChange, Options, Tracing, run_with};

use weft_testbed::switch::Routing;

use case::{Begin, Case, FaultCase, FlowCase, Outage, Size, algorithms, cases};
use oracle::Witness;

/// Runs `case` until nothing happens any more, and checks what must be true then. Returns the packets of data that were
/// sent, and the payload of flows that are done, bytes.
fn check(case: &Case) -> Result<(u64, u64), TestCaseError> {
    let config = case.config();
    let faults = case.fault_plan(&config);
    let run = |threads, tracing| {
        let options =
            Options { faults: faults.clone(), settle: true, threads, tracing, ..Options::default() };
        run_with(&config, options).unwrap()
    };
    let mut witness = Witness::default();
    let tracing = Tracing { selection: Default::default(), sink: &mut witness };
    let report = run(1, case.has_lasting_faults().then_some(tracing));
    if case.seed.is_multiple_of(16) {
        // Only in some cases, because threads that wait for each other on busy processors are slow.
        assert_eq!(report, run(2, None), "with two threads");
    }
    oracle::check(case, &config, &report, &witness)?;
    let done = report.flows.iter().filter(|flow| flow.end.is_some()).map(|flow| flow.bytes);
    Ok((report.packets.data + report.packets.retransmitted, done.sum()))
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect(variable))
}

/// Runs many cases, each drawn from `salt` and the seed.
fn explore(trim: bool) {
    let mut seed = [u8::from(trim); 32];
    seed[8..16].copy_from_slice(&number("WEFT_FABRIC_SEED", 0).to_le_bytes());
    let config = Config {
        cases: number("WEFT_FABRIC_CASES", 1_000) as u32,
        failure_persistence: None,
        max_shrink_time: 60_000,
        ..Config::default()
    };
    let (runs, packets, bytes) = (config.cases, Cell::new(0), Cell::new(0));
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    let run = |case: Case| {
        let (sent, done) = check(&case)?;
        packets.set(packets.get() + sent);
        bytes.set(bytes.get() + done);
        Ok(())
    };
    if let Err(error) = runner.run(&cases(trim), run) {
        panic!("{error}");
    }
    // For scripts/soak.sh.
    println!("{runs} cases: {} packets, {} bytes", packets.get(), bytes.get());
}

#[test]
fn every_message_arrives_once_over_fabrics_that_trim() {
    explore(true);
}

#[test]
fn every_message_arrives_once_over_fabrics_that_drop() {
    explore(false);
}

/// An incast and its reverse, with every fault; 30 % of the exchanges over the longest path are lost.
fn small_case(cc: &'static str, lb: &'static str, trim: bool, mode: DeliveryMode) -> Case {
    let pairs = vec![(1, 6), (2, 5), (3, 4), (0, 2), (6, 0)];
    let size = |i: usize| match i {
        0 => Size::Bytes(0),
        1 => Size::Packets(1, 1),
        _ => Size::Bytes(20_000),
    };
    let flows = (0..10).map(|i| FlowCase {
        pair: i,
        size: size(i),
        begin: if i < 7 { Begin::AtNs(0) } else { Begin::AfterReceived(i - 7) },
    });
    Case {
        topology: "leaf-spine:hosts=8,leaves=2,spines=2,link=100G,latency=500ns".to_owned(),
        flows: flows.collect(),
        pairs,
        generated: None,
        cc,
        lb,
        paths: 16,
        trim,
        mode,
        windows: Windows::Pair,
        mtu: 1_024,
        queue_packets: Some(if trim { 8 } else { 64 }),
        ecn: true,
        ack_every: 16_384,
        production_timers: false,
        host: None,
        routing: Routing::Ecmp,
        priorities: 1,
        faults: FaultCase {
            loss: 0.2,
            corrupt: 0.1,
            duplicate: 0.05,
            reorder: 0.1,
            delay_ns: 3_000,
            outages: vec![Outage {
                port: 20,
                one_way: false,
                change: LinkChange::Fail,
                begin: 0.05,
                length: Some(1.0),
            }],
        },
        seed: 7,
    }
}

#[test]
fn every_algorithm_works_with_every_balancer_and_switch() {
    for algorithm in algorithms() {
        for balancer in BALANCERS {
            for trim in [true, false] {
                for mode in [DeliveryMode::Rud, DeliveryMode::Rod] {
                    let fitting = small_case(algorithm, balancer.name, trim, mode);
                    let production = Case { production_timers: true, ..fitting.clone() };
                    for case in [fitting, production] {
                        if let Err(error) = check(&case) {
                            panic!("{error}\n{case:#?}");
                        }
                    }
                }
            }
        }
    }
}
