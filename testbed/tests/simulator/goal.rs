//! Programs in simulation: closed forms of collectives, costs of a rank's work, matching, and what is said of programs
//! that do not finish.

use std::sync::Arc;

use proptest::prelude::*;
use weft_cc::{Span, Time};
use weft_stack::rng::Rng;
use weft_testbed::goal::{Collective, Costs, Job, Pattern, Placement, Program, parse_goal};
use weft_testbed::sim::{
    FaultPlan, LinkChange, LinkDirections, LinkEvent, Options, PayloadMode, RunConfig, RunReport, run_with,
};
use weft_testbed::topology::{HostId, TopologySpec};
use weft_testbed::workload::{Setting, Workload, WorkloadSpec};

fn config(job: Job, topology: &str) -> RunConfig {
    let topology: TopologySpec = topology.parse().unwrap();
    let none = Workload::new(job.hosts(), Vec::new(), Vec::new(), Vec::new(), Vec::new()).unwrap();
    RunConfig { job: Some(Arc::new(job)), ..RunConfig::new(topology.build().unwrap(), none) }
}

fn run(config: &RunConfig) -> RunReport {
    run_with(config, Options::default()).unwrap()
}

/// A job with `ranks` ranks on each host.
fn job(program: Program, ranks: u32, placement: Placement, costs: Costs) -> Job {
    Job::new("a.goal", program, ranks, placement, costs).unwrap()
}

/// Runs a text with one rank on each host of a leaf.
fn run_text(text: &str, costs: Costs) -> RunReport {
    run(&config(job(parse_goal("a.goal", text).unwrap(), 1, Placement::Block, costs), LEAF))
}

const LEAF: &str = "leaf-spine:hosts=8,leaves=2,spines=2";

fn is_whole(report: &RunReport) {
    assert!(report.is_complete() && report.stuck.is_empty(), "{:?}", report.stuck);
    assert_eq!((report.payload_errors.len(), report.leaks.len()), (0, 0), "{report:?}");
}

/// The ends of all ranks, ps.
fn ends(report: &RunReport) -> Vec<u64> {
    report.ranks.iter().map(|rank| rank.end.unwrap().as_ps()).collect()
}

/// The time of a message of one packet from `a` to `b` in an idle fabric, ps: each link takes its latency, and the time for
/// the whole packet.
fn message(config: &RunConfig, (a, b): (u32, u32), bytes: u32) -> u64 {
    let hops = u64::from(config.topology.distances(HostId(a)).switches_to(HostId(b))) + 1;
    hops * (serialization(config, bytes) + Span::from_us(1).as_ps())
}

fn serialization(config: &RunConfig, bytes: u32) -> u64 {
    config.topology.host_rate().time_for(u64::from(bytes + config.data_overhead())).as_ps()
}

/// Asserts that `found` is within 1 % of `expected`.
fn is_close(found: u64, expected: u64, what: &str) {
    assert!(found.abs_diff(expected) * 100 <= expected, "{what}: {found} ps, expected {expected} ps");
}

fn collective(pattern: Pattern, ranks: u32, bytes: u32) -> RunConfig {
    let program = Collective { pattern, ranks, bytes, iterations: 1, compute: 0 }.program().unwrap();
    config(job(program, 1, Placement::Block, Costs::default()), &format!("fat-tree:hosts={ranks}"))
}

#[test]
fn an_all_reduce_around_a_ring_takes_the_time_of_its_longest_chain_of_messages() {
    for n in [2, 3, 8, 64] {
        let config = collective(Pattern::Ring, n, n * 256);
        let report = run(&config);
        is_whole(&report);
        // What ends at a rank has come through the 2 (n - 1) ranks before it.
        let chain = |end: u32| -> u64 {
            (0..2 * (n - 1))
                .map(|back| (end + 2 * n - back) % n)
                .map(|to| message(&config, ((to + n - 1) % n, to), 256))
                .sum()
        };
        let expected = (0..n).map(chain).max().unwrap();
        is_close(*ends(&report).iter().max().unwrap(), expected, &format!("{n} ranks"));
        assert_eq!(report.flows.len() as u32, 2 * n * (n - 1));
    }
}

#[test]
fn an_all_reduce_over_a_tree_takes_the_time_of_its_deepest_path() {
    for n in [2u32, 3, 8, 64, 1024] {
        let config = collective(Pattern::Tree, n, 256);
        let report = run(&config);
        is_whole(&report);
        let children = |rank: u32| -> Vec<u32> {
            let bits = (0..32)
                .map(|bit| 1u32 << bit)
                .take_while(|bit| rank == 0 || *bit < rank & rank.wrapping_neg());
            bits.map(|bit| rank + bit).filter(|child| *child < n).collect()
        };
        // When each rank has reduced its subtree, and when it has the result.
        let (mut up, mut down) = (vec![0u64; n as usize], vec![0u64; n as usize]);
        for rank in (0..n).rev() {
            let arrivals = children(rank)
                .into_iter()
                .map(|child| up[child as usize] + message(&config, (child, rank), 256));
            up[rank as usize] = arrivals.max().unwrap_or(0);
        }
        down[0] = up[0];
        for rank in 0..n {
            // The largest subtree is sent to first; a send follows another one as soon as that has left.
            for (child, before) in children(rank).into_iter().rev().zip(0..) {
                let left = down[rank as usize] + before * serialization(&config, 256);
                down[child as usize] = left + message(&config, (rank, child), 256);
            }
        }
        is_close(*ends(&report).iter().max().unwrap(), *down.iter().max().unwrap(), &format!("{n} ranks"));
    }
}

#[test]
fn programs_of_collectives_take_as_long_as_the_built_in_ones() {
    for (pattern, built_in) in [
        (Pattern::Ring, "all-reduce:ring,size=1MB"),
        (Pattern::Tree, "all-reduce:tree,size=1MB"),
        (Pattern::RecursiveDoubling, "all-reduce:recursive-doubling,size=1MB"),
    ] {
        for n in [2, 8, 16] {
            let program = Collective { pattern, ranks: n, bytes: 1_000_000, iterations: 1, compute: 0 }
                .program()
                .unwrap();
            // Built-in trees send to the next child when the message to the one before has arrived.
            let costs = Costs { eager: 0, ..Costs::default() };
            let ranks =
                config(job(program, 1, Placement::Block, costs), "leaf-spine:hosts=16,leaves=2,spines=8");
            let spec: WorkloadSpec = built_in.parse().unwrap();
            let read = |_: &str| Err(String::new());
            let setting =
                Setting { hosts: n, topology: Some(&ranks.topology), bytes: 1, slow: 1, read: &read };
            let workload = WorkloadSpec::build_all(&[spec], &setting, |i| Rng::new(1, i as u64)).unwrap();
            let flows = RunConfig { job: None, workload: Arc::new(workload), ..ranks.clone() };
            let (flows, ranks) = (run(&flows), run(&ranks));
            is_whole(&flows);
            is_whole(&ranks);
            assert_eq!(flows.flows.len(), ranks.flows.len());
            // The end of a rank is that of its last operation, which may be the acknowledgement of a send.
            let end =
                |report: &RunReport| report.flows.iter().filter_map(|flow| flow.end).reduce(Time::latest);
            let [built_in_end, last] = [&flows, &ranks].map(|report| end(report).unwrap().as_ps());
            is_close(last, built_in_end, &format!("{pattern} of {n} ranks"));
        }
    }
}

#[test]
fn the_number_of_threads_and_the_bytes_of_messages_change_nothing() {
    let program = |pattern| {
        Collective { pattern, ranks: 32, bytes: 70_000, iterations: 2, compute: 500 }.program().unwrap()
    };
    for (pattern, placement) in
        [(Pattern::AllToAll, Placement::RoundRobin), (Pattern::RecursiveDoubling, Placement::Block)]
    {
        let config = config(job(program(pattern), 2, placement, Costs::default()), "fat-tree:hosts=16");
        let alone = run(&config);
        is_whole(&alone);
        let together = run_with(&config, Options { threads: 4, ..Options::default() }).unwrap();
        assert!(alone == together, "{pattern}");
        let real = run(&RunConfig { payload: PayloadMode::Real, ..config });
        is_whole(&real);
        assert_eq!(ends(&real), ends(&alone));
    }
}

#[test]
fn operations_of_a_processor_follow_one_another() {
    let text = "num_ranks 3\nrank 0 {\ncalc 1000\ncalc 2000\n}\nrank 1 {\ncalc 1000\ncalc 2000 cpu 1\n}\n\
        rank 2 {\na: calc 1000\nb: calc 10 cpu 1\nc: calc 20 cpu 2\nb irequires a\nc requires a\n}";
    let ns = |report: &RunReport| -> Vec<u64> { ends(report).iter().map(|ps| ps / 1000).collect() };
    assert_eq!(ns(&run_text(text, Costs::default())), [3000, 2000, 1020]);
    let costs = Costs { compute: "1.5".parse().unwrap(), ..Costs::default() };
    assert_eq!(ns(&run_text(text, costs)), [4500, 3000, 1530]);
    // A message waits for the computation that came first, at both ends.
    let text = "num_ranks 2\nrank 0 {\ncalc 50000\nsend 8b to 1\n}\nrank 1 {\nrecv 8b from 0\ncalc 90000\n}";
    let report = run_text(text, Costs { overhead: Span::from_ns(700), ..Costs::default() });
    assert_eq!(ns(&report), [50_700, 90_700]);
    assert_eq!(report.flows[0].start, Some(Time::ZERO + Span::from_ns(50_700)));
}

#[test]
fn ranks_of_one_host_exchange_messages_through_memory() {
    let text = "num_ranks 2\nrank 0 {\nsend 1000b to 1 tag 3\ns: send 70000b to 1\nc: calc 7 cpu 1\nc requires s\n}\n\
        rank 1 {\na: recv 70000b from -1\nb: recv 1000b from 0 tag -1\nb requires a\n}";
    let program = || parse_goal("a.goal", text).unwrap();
    let report = run(&config(job(program(), 2, Placement::Block, Costs::default()), LEAF));
    is_whole(&report);
    // Both are copied one after the other at 25 bytes a nanosecond; the second one is a rendezvous.
    assert_eq!(ends(&report), [3_347_000, 3_340_000]);
    assert_eq!((report.flows.len(), report.packets.data), (0, 0));
}

#[test]
fn a_short_send_finishes_at_once_and_a_long_one_with_its_message() {
    let text = "num_ranks 2\nrank 0 {\ns: send 5000b to 1\nc: calc 1 cpu 1\nc requires s\n}\nrank 1 {\nrecv 5000b from 0\n}";
    let eager = run_text(text, Costs::default());
    let late = run_text(text, Costs { eager: 5000, ..Costs::default() });
    assert_eq!(ends(&eager)[0], 1000);
    assert_eq!(ends(&late)[0], late.flows[0].end.unwrap().as_ps() + 1000);
    assert!(ends(&late)[0] > ends(&late)[1]);
}

#[test]
fn a_receive_for_any_rank_takes_messages_of_its_own_host_and_of_others() {
    let text = "num_ranks 4\nrank 0 {\na: recv 9b from -1 tag -1\nb: recv 8b from -1 tag 2\nc: recv 9b from -1\nb requires a\nc requires b\n}\n\
        rank 1 {\nsend 8b to 0 tag 2\n}\nrank 2 {\nw: calc 3000000\ns: send 9b to 0\ns requires w\n}\nrank 3 {\nsend 9b to 0 tag 5\n}";
    for placement in [Placement::Block, Placement::RoundRobin] {
        for ranks in [1, 2, 4] {
            let config =
                config(job(parse_goal("a.goal", text).unwrap(), ranks, placement, Costs::default()), LEAF);
            let report = run(&config);
            // Rank 1 or rank 3 is first; the receive that is left is for the other one, or for nobody.
            let first = report.ranks.iter().filter(|rank| rank.end.is_none()).count();
            assert!(first <= 1, "{:?}", report.stuck);
            assert_eq!(first == 0, report.stuck.is_empty());
        }
    }
}

#[test]
fn a_program_that_does_not_finish_says_which_rank_waits_for_what() {
    let text = "num_ranks 3\nrank 0 {\nx: recv 8b from 1 tag 7\nlater: send 4b to 2\nlater requires x\n}\n\
        rank 1 {\nsend 8b to 0 tag 8\n}\nrank 2 {\nrecv 4b from -1\n}";
    let report = run_text(text, Costs::default());
    assert_eq!(
        report.stuck.to_vec()[..2],
        [
            "rank 0 on host 0: `x: recv 8b from 1 tag 7` (a.goal:3) waits for a message",
            "rank 2 on host 2: `recv 4b from -1` (a.goal:11) waits for a message",
        ]
    );
    assert!(!report.is_complete());
    let long = "num_ranks 2\nrank 0 {\nsend 9b to 1\n}\nrank 1 {\nr: recv 8b from 0\n}";
    let report = run_text(long, Costs::default());
    assert!(
        report.stuck[0].contains("`r: recv 8b from 0` (a.goal:6): the message has 9 bytes, the receive 8"),
        "{:?}",
        report.stuck
    );
}

#[test]
fn an_unfinished_message_names_the_link_that_lost_its_last_packet() {
    // The second rank of each host; that link loses packets of the first ranks as well, later.
    let text = "num_ranks 4\nrank 0 {\nc: calc 50000\ns: send 9b to 2\ns requires c\n}\n\
        rank 1 {\nsend 9b to 3\n}\nrank 2 {\nrecv 9b from 0\n}\nrank 3 {\nrecv 9b from 1\n}";
    let job = job(parse_goal("a.goal", text).unwrap(), 2, Placement::Block, Costs::default());
    let mut config = config(job, LEAF);
    config.until = Some(Span::from_us(100));
    let to_host = config.topology.port(config.topology.nic(HostId(1))).reverse;
    let change = LinkEvent { at: Time::ZERO, link: LinkDirections::From(to_host), change: LinkChange::Fail };
    let faults = || FaultPlan { events: vec![change], ..FaultPlan::default() };
    let report =
        |threads| run_with(&config, Options { faults: faults(), threads, ..Options::default() }).unwrap();
    let whole = report(1);
    let losses =
        whole.measures.as_ref().unwrap().unfinished.iter().map(|one| (one.flow, one.last_loss.unwrap()));
    let [first, second] = losses.collect::<Vec<_>>()[..] else { panic!("{whole:?}") };
    assert_eq!((first.0, second.0), (0, 1));
    for (_, loss) in [first, second] {
        assert_eq!((loss.port, loss.down_since), (to_host, Some(Time::ZERO)));
    }
    assert!(first.1.at.since(Time::ZERO) > Span::from_us(50), "after its computation: {first:?}");
    assert!(first.1.at != second.1.at, "each pair of ranks has its own: {first:?} {second:?}");
    assert_eq!(report(2), whole);
}

#[test]
fn messages_that_no_receive_takes_are_left_over() {
    let text = "num_ranks 3\nrank 0 {\nsend 8b to 1\nsend 8b to 2\n}\nrank 1 {\n}\nrank 2 {\n}";
    let program = parse_goal("a.goal", text).unwrap();
    let report = run(&config(job(program, 2, Placement::Block, Costs::default()), LEAF));
    assert!(report.is_complete());
    assert!(
        report.leaks.iter().any(|leak| leak.contains("rank 1 on host 0: 1 messages")),
        "{:?}",
        report.leaks
    );
    assert!(report.leaks.iter().any(|leak| leak.starts_with("endpoint 1:")), "{:?}", report.leaks);
}

#[test]
fn sends_that_exceed_the_room_of_a_receiver_arrive_when_receives_are_posted() {
    let mut text = String::from("num_ranks 2\nrank 0 {\n");
    (0..300).for_each(|i| text += &format!("send {}b to 1 tag {}\n", 400_000 + i, i % 3));
    text += "}\nrank 1 {\nw: calc 9000000\n";
    (0..300).for_each(|i| text += &format!("r{i}: recv 500000b from 0 tag {}\nr{i} requires w\n", i % 3));
    text += "}\n";
    let report = run_text(&text, Costs::default());
    is_whole(&report);
}

/// A message of a random program: its ranks, tag, length, and whether its receive names the source and the tag.
type RandomMessage = (u32, u32, u32, u32, bool, bool);

fn random_program(ranks: u32, messages: &[RandomMessage], waits: &[(u32, u32, bool)]) -> String {
    let mut text = format!("num_ranks {ranks}\n");
    for rank in 0..ranks {
        text += &format!("rank {rank} {{\n");
        let mut count = 0;
        let mut push = |statement: String, text: &mut String| {
            *text += &format!("l{count}: {statement} cpu {}\n", count % 2);
            count += 1;
        };
        for (from, to, tag, bytes, names_source, names_tag) in messages {
            if from % ranks == rank {
                push(format!("send {bytes}b to {} tag {tag}", to % ranks), &mut text);
            }
            if to % ranks == rank {
                let source = if *names_source { (from % ranks).to_string() } else { "-1".into() };
                let tag = if *names_tag { tag.to_string() } else { "-1".into() };
                push(format!("recv 200000b from {source} tag {tag}"), &mut text);
            }
        }
        push("calc 300".into(), &mut text);
        for (a, b, finish) in waits {
            let (a, b) = (a % count, b % count);
            if a != b {
                let word = if *finish { "requires" } else { "irequires" };
                text += &format!("l{} {word} l{}\n", a.max(b), a.min(b));
            }
        }
        text += "}\n";
    }
    text
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_random_program_finishes_or_says_who_waits(
        (ranks, per_host) in (2u32..7, 1u32..4),
        round_robin in any::<bool>(),
        messages in prop::collection::vec((0u32..8, 0u32..8, 0u32..3, 0u32..150_000, any::<bool>(), any::<bool>()), 0..20),
        waits in prop::collection::vec((0u32..16, 0u32..16, any::<bool>()), 0..6),
    ) {
        let text = random_program(ranks, &messages, &waits);
        let placement = if round_robin { Placement::RoundRobin } else { Placement::Block };
        let job = job(parse_goal("a.goal", &text).unwrap(), per_host, placement, Costs::default());
        let report = run(&RunConfig { payload: PayloadMode::Real, ..config(job, LEAF) });
        prop_assert_eq!(&report.payload_errors, &Vec::<String>::new());
        let says = report.stuck.iter().filter(|line| line.starts_with("rank ")).count();
        let waiting = report.ranks.iter().filter(|rank| rank.end.is_none()).count();
        prop_assert_eq!(says == 0, waiting == 0, "{:?}", report.stuck);
        // Without wildcards and dependencies, every message meets its receive.
        if waits.is_empty() && messages.iter().all(|(.., source, tag)| *source && *tag) {
            prop_assert!(report.is_complete(), "{:?} {}", report.stuck, text);
        }
    }
}
