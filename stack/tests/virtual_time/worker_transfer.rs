//! Two endpoints over a link in memory that loses, duplicates, reorders, delays and damages frames: every message
//! arrives once and as it was sent, and the endpoints keep nothing.

use crate::harness::{MTU, Results, START, WorkerPair, config, content, worker};
use weft_stack::Span;
use weft_stack::event::{Counters, Event, Recorder};
use weft_stack::fep::FepConfig;
use weft_stack::pdc::RodReceive;
use weft_stack::port::faulty::{Faults, FaultyPort};
use weft_stack::port::memory::{MemoryConfig, MemoryPort, pair};
use weft_stack::rng::Rng;
use weft_stack::wire::pds::{ControlKind, DeliveryMode};
use weft_stack::worker::LinkConfig;

type Port = FaultyPort<MemoryPort>;

/// More turns than the slowest case takes, by far.
const MAX_TURNS: u32 = 2_000_000;
const MAX_TIME: Span = Span::from_ms(60_000);

/// Runs of each case, with different random faults.
const SEEDS: u64 = 5;

const SIZES: [usize; 8] =
    [0, 1, MTU as usize - 1, MTU as usize, MTU as usize + 1, 0, 3 * MTU as usize, 1 << 20];

fn faulty_pair(config: &FepConfig, faults: Faults, v6: bool, seed: u64) -> WorkerPair<Port, Port> {
    let (left, right) = pair(&MemoryConfig::default()).unwrap();
    let port = |port, stream| FaultyPort::new(port, faults, Rng::new(seed, stream)).unwrap();
    let side = |own, end| worker(own, port(end, u64::from(own)), config, LinkConfig::default(), v6);
    WorkerPair::new(side(0, left), side(1, right))
}

/// The tag of message `n` from `side`.
fn tag(side: u32, n: usize) -> u64 {
    u64::from(side) << 32 | n as u64
}

/// Sends messages of all sizes both ways at once, half of them before their receives are posted,
/// then closes.
fn transfer(pair: &mut WorkerPair<Port, Port>, mode: DeliveryMode) -> Results {
    let mut results = Results::default();
    let connections = [pair.connect(0, mode), pair.connect(1, mode)];
    let post = |pair: &mut WorkerPair<Port, Port>, odd: usize| {
        for side in [0, 1] {
            for (n, len) in SIZES.iter().enumerate().filter(|(n, _)| n % 2 == odd) {
                pair.post_receive(1 - side, tag(side, n), *len);
            }
        }
    };
    post(pair, 1);
    for side in [0, 1] {
        for (n, len) in SIZES.iter().enumerate() {
            let tag = tag(side, n);
            pair.post_send(side, connections[side as usize], tag, content(tag, *len));
        }
    }
    for _ in 0..20 {
        pair.turn();
    }
    post(pair, 0);
    run(pair, &mut results, |results| results.sent.len() >= 2 * SIZES.len());
    for side in [0, 1] {
        let now = pair.now;
        pair.fep(side).close(now, connections[side as usize]).unwrap();
    }
    run(pair, &mut results, |results| results.closed.len() == 2);
    // Late packets and duplicates arrive now.
    for _ in 0..2_000 {
        pair.turn();
    }
    results.collect(pair);
    results
}

fn run(pair: &mut WorkerPair<Port, Port>, results: &mut Results, done: impl Fn(&Results) -> bool) {
    for _ in 0..MAX_TURNS {
        pair.turn();
        results.collect(pair);
        if done(results) {
            return;
        }
        assert!(pair.now.since(START) < MAX_TIME, "{}", stuck(pair, results));
    }
    panic!("{}", stuck(pair, results));
}

fn stuck(pair: &mut WorkerPair<Port, Port>, results: &Results) -> String {
    let now = pair.now;
    let waits: Vec<String> = [0, 1].into_iter().flat_map(|side| pair.fep(side).explain(now)).collect();
    let (sent, received) = (results.sent.len(), results.received.len());
    format!("at {now}: {sent} sent, {received} received, {} closed; {waits:#?}", results.closed.len())
}

fn check(pair: &mut WorkerPair<Port, Port>, results: &Results) {
    let failed: Vec<_> = results.sent.iter().filter(|(.., result)| result.is_err()).collect();
    assert!(failed.is_empty(), "{failed:?}");
    let mut arrived: Vec<_> = results.received.iter().map(|(side, tag, ..)| (1 - side, *tag)).collect();
    arrived.sort_unstable();
    let expected: Vec<_> =
        [0, 1].into_iter().flat_map(|side| (0..SIZES.len()).map(move |n| (side, tag(side, n)))).collect();
    assert_eq!(arrived, expected, "every message once");
    for (_, tag, header_data, bytes) in &results.received {
        let n = (*tag & 0xffff_ffff) as usize;
        assert!(*bytes == content(*tag, SIZES[n]), "message {n} arrived as sent");
        assert_eq!(*header_data, !tag);
    }
    for side in [0, 1] {
        let left: Vec<String> = pair.fep(side).leaks().collect();
        assert!(left.is_empty(), "endpoint {side}: {left:?}");
    }
    for counters in [pair.a.counters(), pair.b.counters()] {
        assert_eq!((counters.misdirected, counters.strangers, counters.unsendable), (0, 0, 0));
    }
}

/// Runs every mode over links with these faults.
fn all_modes(faults: Faults, v6: bool, seed: u64) {
    let modes = [
        (DeliveryMode::Rud, RodReceive::GoBackN),
        (DeliveryMode::Rod, RodReceive::GoBackN),
        (DeliveryMode::Rod, RodReceive::Reorder),
    ];
    for (mode, rod_receive) in modes {
        for trimming in [false, true] {
            let base = config(trimming);
            let config = FepConfig { rod_receive, ..base };
            let mut pair = faulty_pair(&config, faults, v6, seed);
            let results = transfer(&mut pair, mode);
            check(&mut pair, &results);
            assert_faults_struck(&pair, faults);
        }
    }
}

/// Checks that each fault has struck, since otherwise the test would show nothing.
fn assert_faults_struck(pair: &WorkerPair<Port, Port>, faults: Faults) {
    let (a, b) = (pair.a.port().fault_counts(), pair.b.port().fault_counts());
    for (p, struck) in [
        (faults.drop, a.dropped + b.dropped),
        (faults.corrupt, a.corrupted + b.corrupted),
        (faults.duplicate, a.duplicated + b.duplicated),
        (faults.reorder, a.reordered + b.reordered),
        (faults.delay, a.delayed + b.delayed),
    ] {
        assert_eq!(p > 0.0, struck > 0, "probability {p}, {struck} times");
    }
    // Receivers notice nearly all damage, since checksums cover everything but Ethernet addresses. A damaged frame may
    // have been duplicated.
    let (seen, struck) =
        (pair.a.counters().malformed + pair.b.counters().malformed, a.corrupted + b.corrupted);
    assert!(struck / 2 <= seen && seen <= 2 * struck, "{seen} of {struck} damaged frames were noticed");
}

#[test]
fn messages_arrive_over_links_without_faults() {
    all_modes(Faults::default(), false, 1);
}

#[test]
fn messages_survive_one_percent_loss_and_all_other_faults() {
    let faults =
        Faults { drop: 0.01, corrupt: 0.02, duplicate: 0.05, reorder: 0.05, delay: 0.02, delay_frames: 40 };
    (0..SEEDS).for_each(|seed| all_modes(faults, false, seed));
}

#[test]
fn messages_survive_ten_percent_loss_and_all_other_faults() {
    let faults =
        Faults { drop: 0.10, corrupt: 0.02, duplicate: 0.05, reorder: 0.05, delay: 0.02, delay_frames: 40 };
    (0..SEEDS).for_each(|seed| all_modes(faults, false, seed));
}

#[test]
fn messages_survive_loss_over_ipv6() {
    let faults = Faults { drop: 0.05, ..Faults::default() };
    all_modes(faults, true, 1);
}

#[test]
fn a_run_repeats_exactly_with_the_same_seed() {
    let faults = Faults { drop: 0.05, duplicate: 0.05, reorder: 0.1, ..Faults::default() };
    let run = || {
        let mut pair = faulty_pair(&config(false), faults, false, 5);
        let recorder = Recorder::default();
        for side in [0, 1] {
            pair.fep(side).subscribe(recorder.subscriber(side).unwrap());
        }
        transfer(&mut pair, DeliveryMode::Rud);
        let records = recorder.take();
        for side in [0, 1] {
            let of_side: Vec<&Event> = records.iter().filter(|r| r.host == side).map(|r| &r.event).collect();
            assert_counted(pair.fep(side).counters(), &of_side);
        }
        (pair.now, records, pair.a.port().fault_counts())
    };
    // Every event at the same time, not only as many of them.
    assert!(run() == run());
}

/// Checks that each counter is the number of its events.
fn assert_counted(counters: &Counters, events: &[&Event]) {
    let count = |name: &str| events.iter().filter(|event| event.name() == name).count() as u64;
    let repeated = |event: &&&Event| matches!(event, Event::DataSent { retransmission: true, .. });
    let probe = |event: &&&Event| matches!(event, Event::ControlSent { kind: ControlKind::Probe, .. });
    let marked = |event: &&&Event| matches!(event, Event::DataReceived { ecn: true, .. });
    let data_retransmitted = events.iter().filter(repeated).count() as u64;
    let expected = Counters {
        data_sent: count("data_sent") - data_retransmitted,
        data_retransmitted,
        data_received: count("data_received"),
        ecn_received: events.iter().filter(marked).count() as u64,
        duplicates_received: count("duplicate_received"),
        trimmed_received: count("trimmed_received"),
        acks_sent: count("ack_sent"),
        acks_received: count("ack_received"),
        nacks_sent: count("nack_sent"),
        nacks_received: count("nack_received"),
        control_sent: count("control_sent"),
        control_dropped: count("control_dropped"),
        probes_sent: events.iter().filter(probe).count() as u64,
        losses_inferred: count("loss_inferred"),
        losses_spurious: count("spurious_loss"),
        timeouts: count("timeout"),
        ignored: count("ignored"),
        datagrams_sent: count("datagram_sent"),
        datagrams_received: count("datagram_received"),
        datagrams_dropped: count("datagram_dropped"),
    };
    assert_eq!(*counters, expected);
    assert!(counters.data_retransmitted > 0 && counters.duplicates_received > 0, "faults struck");
}
