//! Tests of collective operations: what each rank sends, when, and what it knows.

use std::collections::BTreeSet;

use proptest::prelude::*;
use weft_cc::Span;
use weft_stack::rng::Rng;

use super::play;
use crate::workload::{Start, Workload, WorkloadSpec};

fn try_build(text: &str, hosts: u32) -> Result<Workload, String> {
    let spec: WorkloadSpec = text.parse().map_err(|e| format!("{e}"))?;
    spec.build(Some(hosts), 1000, &mut Rng::new(9, 0)).map_err(|e| e.to_string())
}

fn build(text: &str, hosts: u32) -> Workload {
    try_build(text, hosts).unwrap_or_else(|e| panic!("{text}: {e}"))
}

/// Lets `workload`, one all-reduce of whole vectors, run to its end in a random order, and checks that a rank sends only
/// what it has: a message up the tree or in an exchange carries the contributions that its sender has when it starts, and
/// in the end each rank has all of them.
fn reduces_everything(text: &str, hosts: u32, seed: u64) {
    let workload = build(text, hosts);
    let own = |host: u32| BTreeSet::from([host]);
    let mut known: Vec<BTreeSet<u32>> = (0..hosts).map(own).collect();
    let mut carried: Vec<Option<BTreeSet<u32>>> = vec![None; workload.flows().len()];
    let mut delivered = vec![false; workload.flows().len()];
    // `play` ends a flow before it starts others because of it: whoever does not run any more has arrived.
    let mut deliver = |carried: &[Option<BTreeSet<u32>>], known: &mut Vec<BTreeSet<u32>>, running: &[u32]| {
        for (i, what) in carried.iter().enumerate() {
            if let (Some(what), false) = (what, delivered[i] || running.contains(&(i as u32))) {
                delivered[i] = true;
                known[workload.flows()[i].dst.0 as usize].extend(what);
            }
        }
    };
    play(&workload, seed, |flow, running| {
        deliver(&carried, &mut known, running);
        carried[flow as usize] = Some(known[workload.flows()[flow as usize].src.0 as usize].clone());
    });
    deliver(&carried, &mut known, &[]);
    let all: BTreeSet<u32> = (0..hosts).collect();
    assert!(known.iter().all(|known| *known == all), "{text} on {hosts}: {known:?}");
}

#[test]
fn a_ring_sends_every_chunk_around_twice() {
    for hosts in [2, 3, 8, 13] {
        let workload = build("all-reduce:ring,size=1003", hosts);
        let n = u64::from(hosts);
        assert_eq!(workload.flows().len() as u64, 2 * n * (n - 1));
        assert_eq!(workload.connections().len() as u64, n);
        for host in 0..hosts {
            let own = workload.flows().iter().filter(|flow| flow.src.0 == host);
            assert!(own.clone().all(|flow| flow.dst.0 == (host + 1) % hosts));
            // Each chunk but one in each half, so that a rank sends 2 (n - 1) / n of the vector, give or take a byte a
            // step.
            let bytes: u64 = own.map(|flow| flow.bytes).sum();
            assert!(bytes.abs_diff(2 * (n - 1) * 1003 / n) <= 2 * n, "{bytes}");
        }
        let step: Vec<u64> = workload.flows()[..hosts as usize].iter().map(|flow| flow.bytes).collect();
        assert_eq!(step.iter().sum::<u64>(), 1003, "the chunks of a step are the vector");
        play(&workload, 3, |_, _| {});
    }
}

#[test]
fn every_rank_has_every_contribution_after_an_all_reduce() {
    for seed in 0..20 {
        for hosts in [2, 3, 4, 5, 7, 8, 12, 16] {
            reduces_everything("all-reduce:tree", hosts, seed);
        }
        for hosts in [2, 4, 8, 16] {
            reduces_everything("all-reduce:recursive-doubling", hosts, seed);
        }
    }
    // A chunk of a ring has passed all ranks when the first half is over.
    for hosts in [2, 3, 8] {
        reduces_everything("all-reduce:ring", hosts, 1);
    }
}

#[test]
fn iterations_follow_each_other_after_the_computation() {
    for (text, flows) in [
        ("all-reduce:ring,iterations=3,compute=5us", 2 * 8 * 7),
        ("all-reduce:tree,iterations=3,compute=5us", 2 * 7),
        ("all-reduce:recursive-doubling,iterations=3,compute=5us", 8 * 3),
        ("all-to-all:2,iterations=3,compute=5us", 8 * 7),
        ("all-to-all:7,iterations=3,compute=5us", 8 * 7),
    ] {
        let workload = build(text, 8);
        assert_eq!(workload.tasks().len(), 3);
        assert!(workload.tasks().iter().all(|task| task.flows == flows), "{text}");
        assert_eq!(workload.flows().len(), 3 * flows as usize);
        assert!(workload.flows().iter().all(|flow| matches!(flow.start, Start::Trigger(_))));
        let delays = workload.triggers().iter().filter(|trigger| trigger.delay == Span::from_us(5));
        assert_eq!(delays.count(), 2 * 8, "{text}: every rank computes between iterations");
        assert_eq!(workload.triggers().iter().filter(|trigger| trigger.at.is_some()).count(), 8);
        play(&workload, 4, |_, _| {});
        // Iterations share their connections.
        let once = build(&text.replace("iterations=3", "iterations=1"), 8);
        assert_eq!(once.connections(), workload.connections(), "{text}");
    }
}

#[test]
fn ranks_are_the_hosts_that_are_asked_for() {
    let hosts = |text: &str| {
        let flows = build(text, 16).flows().to_vec();
        flows.iter().map(|flow| flow.src.0).collect::<BTreeSet<u32>>()
    };
    assert_eq!(hosts("all-reduce:ring"), (0..16).collect());
    assert_eq!(hosts("all-reduce:ring,ranks=4"), (0..4).collect());
    assert_eq!(hosts("all-reduce:tree,ranks=5-9"), (5..10).collect());
    assert_eq!(hosts("all-to-all:1,ranks=8-15,order=random"), (8..16).collect());
    let first = |text: &str| build(text, 16).flows()[0].dst.0;
    assert_eq!(first("all-reduce:ring,ranks=4-7"), 5);
    assert_ne!(build("all-reduce:ring,order=random", 16), build("all-reduce:ring", 16));
}

#[test]
fn impossible_collectives_are_refused() {
    for (text, message) in [
        ("all-reduce", "expected all-reduce:ring, all-reduce:tree or all-reduce:recursive-doubling, not ``"),
        (
            "all-reduce:star",
            "expected all-reduce:ring, all-reduce:tree or all-reduce:recursive-doubling, not `star`",
        ),
        (
            "all-reduce:ring,ranks=1",
            "ranks: `1`; expected a number of hosts such as 16, or a range such as 8-23",
        ),
        (
            "all-reduce:ring,ranks=5-5",
            "ranks: `5-5`; expected a number of hosts such as 16, or a range such as 8-23",
        ),
        ("all-reduce:ring,ranks=9-16", "all-reduce:ring,ranks=9-16 needs at least 17 hosts, there are 16"),
        (
            "all-reduce:recursive-doubling,ranks=12",
            "ranks: 12 ranks; expected a power of two for recursive doubling",
        ),
        ("all-reduce:ring,order=up", "order: `up`; expected hosts or random"),
        ("all-reduce:ring,iterations=0", "iterations: `0`; expected a whole number above zero"),
        ("all-reduce:ring,iterations=40000", "about 19200000 flows are too many; expected at most 16777216"),
        (
            "all-to-all:4,window=3",
            "all-to-all has no key `window`; expected one of: size, start, jitter, iterations, compute, ranks, order, \
             priority",
        ),
    ] {
        assert_eq!(try_build(text, 16).unwrap_err(), message);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn every_flow_of_a_collective_starts_once_whatever_ends_first(
        kind in 0usize..4, hosts in 2u32..20, iterations in 1u32..4, seed in any::<u64>()
    ) {
        let hosts = if kind == 2 { hosts.next_power_of_two() } else { hosts };
        let name = ["all-reduce:ring", "all-reduce:tree", "all-reduce:recursive-doubling", "all-to-all:3"][kind];
        let workload = build(&format!("{name},iterations={iterations},compute=1us,jitter=2us"), hosts);
        play(&workload, seed, |_, _| {});
    }
}
