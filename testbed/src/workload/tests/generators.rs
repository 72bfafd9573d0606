//! Tests of generated workloads.

use proptest::prelude::*;
use weft_cc::Time;
use weft_stack::rng::Rng;

use super::play;
use crate::topology::HostId;
use crate::workload::{Start, Workload, WorkloadSpec};

fn build(text: &str, hosts: Option<u32>, seed: u64) -> Workload {
    let spec: WorkloadSpec = text.parse().unwrap();
    spec.build(hosts, 1000, &mut Rng::new(seed, 0)).unwrap_or_else(|e| panic!("{text}: {e}"))
}

#[test]
fn an_incast_has_one_receiver_and_different_senders() {
    for (hosts, seed) in [(None, 1), (Some(33), 2), (Some(1024), 3)] {
        let workload = build("incast:32", hosts, seed);
        assert_eq!(workload.hosts(), hosts.unwrap_or(33));
        let receiver = workload.flows()[0].dst;
        let mut senders: Vec<HostId> = workload.flows().iter().map(|f| f.src).collect();
        assert!(workload.flows().iter().all(|f| f.dst == receiver && f.src != receiver && f.bytes == 1000));
        assert!(workload.flows().iter().all(|f| f.start == Start::At(Time::ZERO)));
        senders.sort_unstable();
        senders.dedup();
        assert_eq!(senders.len(), 32);
    }
}

#[test]
fn senders_of_an_incast_have_several_flows_that_start_by_themselves() {
    let workload = build("incast:3,flows=4,jitter=1ms", Some(5), 1);
    let mut senders: Vec<HostId> = workload.flows().iter().map(|f| f.src).collect();
    let mut starts: Vec<String> = workload.flows().iter().map(|f| format!("{:?}", f.start)).collect();
    assert_eq!(senders.len(), 12);
    senders.dedup();
    starts.sort();
    starts.dedup();
    assert_eq!((senders.len(), starts.len()), (3, 12));
    assert_eq!(build("incast:3,flows=1", Some(5), 7), build("incast:3", Some(5), 7));
}

#[test]
fn hosts_of_an_incast_may_be_named() {
    let workload = build("incast:2,from=4-6,to=5,flows=3,connections=2", Some(9), 3);
    let pairs: Vec<(u32, u32)> = workload.flows().iter().map(|f| (f.src.0, f.dst.0)).collect();
    assert!(pairs.iter().all(|(src, dst)| [4, 6].contains(src) && *dst == 5), "{pairs:?}");
    assert_eq!((pairs.len(), workload.connections().len()), (6, 4));
    // A drawn receiver is none of the hosts that send, while there are others.
    for seed in 0..20 {
        let workload = build("incast:1,from=7", None, seed);
        let flow = &workload.flows()[0];
        assert_eq!((workload.hosts(), flow.src), (8, HostId(7)));
        assert_ne!(flow.dst, HostId(7));
    }
    let spec: WorkloadSpec = "incast:3,from=4-6,to=5".parse().unwrap();
    assert_eq!(
        spec.build(Some(9), 1, &mut Rng::new(1, 0)).unwrap_err().to_string(),
        "from: 2 hosts beside the receiver; expected at least 3"
    );
    let refused = |text: &str| text.parse::<WorkloadSpec>().unwrap_err().to_string();
    assert_eq!(
        refused("incast:3,from=6-"),
        "from: `6-`; expected the number of a host, or a range such as 8-23"
    );
    assert_eq!(refused("incast:3,to=4294967295"), "to: `4294967295`; expected the number of a host");
}

#[test]
fn all_to_alls_keep_to_their_window_and_send_every_pair() {
    for (hosts, window) in [(2, 1), (5, 1), (16, 4), (16, 14), (16, 15), (16, 100), (9, 8)] {
        let workload = build(&format!("all-to-all:{window}"), Some(hosts), 3);
        assert_eq!(workload.flows().len(), (hosts * (hosts - 1)) as usize);
        let mut pairs: Vec<_> = workload.flows().iter().map(|f| (f.src, f.dst)).collect();
        pairs.sort_unstable();
        pairs.dedup();
        assert_eq!(pairs.len(), workload.flows().len(), "every pair once");
        let (mut most, mut at_start) = (0, 0);
        play(&workload, 4, |flow, running| {
            let src = |i: u32| workload.flows()[i as usize].src;
            most = most.max(running.iter().filter(|&&i| src(i) == src(flow)).count());
            at_start += usize::from(workload.flows()[flow as usize].start == Start::At(Time::ZERO));
        });
        let full = window.min(hosts - 1) as usize;
        assert_eq!((most, at_start), (full, full * hosts as usize), "{hosts} hosts, window {window}");
    }
}

#[test]
fn in_each_round_of_an_all_to_all_every_host_has_one_sender() {
    let workload = build("all-to-all:1", Some(8), 3);
    for round in 0..7 {
        let mut receivers: Vec<u32> = (0..8).map(|h| workload.flows()[h * 7 + round].dst.0).collect();
        receivers.sort_unstable();
        assert_eq!(receivers, (0..8).collect::<Vec<_>>());
    }
}

#[test]
fn permutations_draw_derangements_with_equal_probability() {
    // Four hosts have nine derangements.
    let mut seen = std::collections::BTreeMap::new();
    for seed in 0..9000 {
        let workload = build("permutation", Some(4), seed);
        let dst: Vec<u32> = workload.flows().iter().map(|f| f.dst.0).collect();
        *seen.entry(dst).or_insert(0u32) += 1;
    }
    assert_eq!(seen.len(), 9);
    // Within six standard deviations (of 29.8) of 1000.
    assert!(seen.values().all(|&n| (820..1180).contains(&n)), "{seen:?}");
}

#[test]
fn flows_take_little_memory() {
    assert!(size_of::<crate::workload::Flow>() <= 64);
    assert_eq!(size_of::<crate::workload::Connection>(), 16);
}

#[test]
fn the_seed_determines_the_workload() {
    for text in ["incast:8", "permutation", "all-to-all:2"] {
        assert_eq!(build(text, Some(16), 5), build(text, Some(16), 5));
        assert_ne!(build(text, Some(16), 5), build(text, Some(16), 6));
    }
}

#[test]
fn descriptions_parse_and_print() {
    for text in ["incast:1", "incast:1023", "permutation", "all-to-all:4"] {
        assert_eq!(text.parse::<WorkloadSpec>().unwrap().to_string(), text);
    }
    for (text, message) in [
        (
            "broadcast:3",
            "`broadcast:3` is not a workload: expected incast, permutation, all-to-all, all-reduce, poisson, \
             lognormal, rpc, bursts, cbr",
        ),
        ("incast", "`incast` needs a number above zero, as in incast:8"),
        ("incast:0", "`incast` needs a number above zero, as in incast:8"),
        ("incast:+3", "`incast` needs a number above zero, as in incast:8"),
        ("all-to-all:x", "`all-to-all` needs a number above zero, as in all-to-all:8"),
        ("permutation:3", "permutation takes no number"),
    ] {
        assert_eq!(text.parse::<WorkloadSpec>().unwrap_err().to_string(), message);
    }
}

#[test]
fn impossible_workloads_are_refused() {
    let refusal = |text: &str, hosts, bytes| {
        let spec: WorkloadSpec = text.parse().unwrap();
        spec.build(hosts, bytes, &mut Rng::new(1, 0)).map(|w| w.hosts()).unwrap_err().to_string()
    };
    assert_eq!(refusal("permutation", None, 1), "permutation needs a number of hosts");
    assert_eq!(refusal("permutation", Some(1), 1), "permutation needs at least 2 hosts, there are 1");
    assert_eq!(refusal("all-to-all:1", Some(0), 1), "all-to-all:1 needs at least 2 hosts, there are 0");
    assert_eq!(refusal("incast:32", Some(32), 1), "incast:32 needs at least 33 hosts, there are 32");
    assert_eq!(refusal("incast:4294967295", None, 1), "incast:4294967295 needs a number of hosts");
    assert_eq!(
        refusal("incast:8000,flows=8000", None, 1),
        "about 64000000 flows are too many; expected at most 16777216"
    );
    assert_eq!(
        refusal("all-to-all:1", Some(8192), 1),
        "about 67100672 flows are too many; expected at most 16777216"
    );
    let message = refusal("permutation", Some(2), (1 << 56) + 1);
    assert_eq!(message, "72057594037927937 bytes are more than a flow can have (2^56)");
}

proptest! {
    #[test]
    fn permutations_use_each_host_twice(hosts in 2u32..300, seed in any::<u64>()) {
        let workload = build("permutation", Some(hosts), seed);
        let mut dst: Vec<u32> = workload.flows().iter().map(|f| f.dst.0).collect();
        let src: Vec<u32> = workload.flows().iter().map(|f| f.src.0).collect();
        prop_assert!(src.iter().zip(&dst).all(|(s, d)| s != d));
        dst.sort_unstable();
        prop_assert_eq!(&src, &(0..hosts).collect::<Vec<_>>());
        prop_assert_eq!(&dst, &src);
    }
}
