//! Messages of one connection meet receives in the order in which they were sent, whatever happens to their packets: see
//! docs/decisions/0048-messages-match-in-order.md. The design has a model of its own in `matching_model.rs`.

use crate::harness;
use crate::harness::{Pair, START, fep, params, untagged};
use proptest::prelude::*;
use weft_stack::Span;
use weft_stack::buffer::Buffer;
use weft_stack::cc::{CcChoice, CcParams};
use weft_stack::fep::{
    Completion, ConnectOptions, ConnectionId, FepConfig, Limits, Receive, ReceiveError, Send,
};
use weft_stack::packet::Addr;
use weft_stack::ses::{Matching, Source};
use weft_stack::wire::pds::{NackCode, Pds};

/// Payload of a full packet, bytes.
const MTU: u32 = 100;

/// A target that keeps `bytes` of messages without a receive, and knows `messages` of them.
fn config(bytes: u64, messages: u32) -> FepConfig {
    let mut cc = CcChoice::parse("constant").unwrap();
    cc.set("window", "1000000").unwrap();
    let params = CcParams { mtu: MTU, network_rtt: Span::from_us(5), ..params() };
    let base = FepConfig::new(&cc, &params).with_zones(|zone| {
        (zone.pdc.rto_init, zone.pdc.max_retries) = (Span::from_us(10), 200);
    });
    let limits = Limits {
        unexpected_bytes_per_peer: bytes,
        unexpected_messages_per_peer: messages,
        ..Limits::default()
    };
    let long = Span::from_ms(1_000_000_000);
    FepConfig { limits, busy_timeout: long.into(), idle_timeout: long, ..base }
}

/// Messages are told apart by their header data, which has the process that sends them above the number.
fn message(number: usize, len: u32, tag: Option<u64>) -> Send {
    Send { tag, header_data: number as u64, ..untagged(vec![number as u8; len as usize], 0) }
}

/// Processes of the sender, each with a connection of its own.
const PROCESSES: [u16; 2] = [0, 7];

fn source(process: u16) -> Source {
    Source { peer: Addr(0), process }
}

/// What a receive asks for: the process that the message comes from, and its tag.
type Wanted = (u16, Matching);

fn exactly(tag: Option<u64>) -> Matching {
    tag.map_or(Matching::Untagged, |tag| Matching::Tagged { tag, ignore: 0 })
}

const ANY_TAG: Matching = Matching::Tagged { tag: 0, ignore: u64::MAX };

fn takes(matching: Matching, tag: Option<u64>) -> bool {
    match (matching, tag) {
        (Matching::Untagged, None) => true,
        (Matching::Tagged { tag, ignore }, Some(theirs)) => (tag ^ theirs) & !ignore == 0,
        _ => false,
    }
}

/// The message that each receive gets where nothing is overtaken: the first of its sender that is left.
fn reference(receives: &[Wanted], messages: &[(u16, Option<u64>)]) -> Vec<Option<usize>> {
    let mut is_taken = vec![false; messages.len()];
    let take = |(from, matching): &Wanted| {
        let is_wanted = |(process, tag): (u16, Option<u64>)| process == *from && takes(*matching, tag);
        let first = (0..messages.len()).find(|&m| !is_taken[m] && is_wanted(messages[m]))?;
        is_taken[first] = true;
        Some(first)
    };
    receives.iter().map(take).collect()
}

fn post(pair: &mut Pair, matching: Matching, number: usize) {
    post_for(pair, None, matching, number);
}

fn post_for(pair: &mut Pair, from: Option<Source>, matching: Matching, number: usize) {
    let buffer = Buffer::Heap(vec![0xff; 400]);
    pair.feps[1].post_receive(Receive { buffer, from, matching, context: number as u64 }).unwrap();
}

/// Receives that have completed: which receive got which message. Each names the process that sent it.
fn received(pair: &mut Pair) -> Vec<(usize, usize)> {
    let all = pair.completions(1).into_iter().filter_map(|completion| match completion {
        Completion::Received {
            context,
            source: from,
            header_data,
            len,
            buffer: Buffer::Heap(bytes),
            result,
            ..
        } => {
            let (process, number) = ((header_data >> 32) as u16, header_data as u32);
            assert_eq!((result, from), (Ok(()), Some(source(process))));
            assert!(bytes[..len as usize].iter().all(|byte| u32::from(*byte) == number));
            Some((context as usize, number as usize))
        }
        _ => None,
    });
    all.collect()
}

/// The next timer of either endpoint expires.
fn expire_next(pair: &mut Pair) {
    let at = pair.next_timer().expect("something is outstanding").latest(pair.now);
    pair.expire_at(0, at);
    pair.expire_at(1, at);
}

/// What happens next.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The sender's next packet leaves.
    Leave,
    /// The packet at this part of those on their way, in 1/2⁶⁴, arrives, and the target answers.
    Arrive(u64),
    /// The packet at this part of those on their way is lost.
    Lose(u64),
    Post,
    Expire,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => Just(Step::Leave),
        6 => any::<u64>().prop_map(Step::Arrive),
        1 => any::<u64>().prop_map(Step::Lose),
        1 => Just(Step::Post),
        1 => Just(Step::Expire),
    ]
}

/// The receives that are posted one after the other.
struct Receiver {
    receives: Vec<Wanted>,
    posted: usize,
}

impl Receiver {
    fn post_next(&mut self, pair: &mut Pair) {
        if let Some((process, matching)) = self.receives.get(self.posted) {
            post_for(pair, Some(source(*process)), *matching, self.posted);
            self.posted += 1;
        }
    }
}

fn place(part: u64, pair: &Pair) -> usize {
    ((u128::from(part) * pair.wire.len() as u128) >> 64) as usize
}

fn take_step(pair: &mut Pair, step: Step, receiver: &mut Receiver) {
    match step {
        Step::Leave => {
            pair.put_on_wire(0);
        }
        Step::Arrive(at) if !pair.wire.is_empty() => {
            let transit = pair.wire.remove(place(at, pair));
            pair.now += Span::from_ns(10);
            pair.arrive(&transit);
            pair.flush(1);
        }
        Step::Lose(at) if !pair.wire.is_empty() => {
            pair.wire.remove(place(at, pair));
        }
        Step::Post => receiver.post_next(pair),
        // Not those that end idle connections: the sender waits because this test does not let it send.
        Step::Expire if pair.next_timer().is_some_and(|at| at.since(pair.now) < Span::from_ms(10_000)) => {
            expire_next(pair);
        }
        _ => {}
    }
}

/// A process, tag and length of each message; how receives are shuffled, and which are for any tag.
type Messages = [(usize, Option<u64>, u32)];

/// The target keeps `bytes` of messages without a receive. A receive is posted when the one before is complete at the
/// latest: if refused messages were in the way of others, some cases would not end. Receives name their sender, as there
/// is no order between the connections of two processes.
fn check_order(
    messages: &Messages,
    (shuffle, wildcards): (u64, u16),
    bytes: u64,
    steps: &[Step],
) -> Result<(), TestCaseError> {
    let sent: Vec<_> = messages.iter().map(|(from, tag, _)| (PROCESSES[*from], *tag)).collect();
    let mut order: Vec<usize> = (0..sent.len()).collect();
    order.sort_by_key(|n| (*n as u64 + 1).wrapping_mul(shuffle | 1));
    let wanted = |n: &usize| match sent[*n] {
        (process, Some(_)) if wildcards >> *n & 1 == 1 => (process, ANY_TAG),
        (process, tag) => (process, exactly(tag)),
    };
    // Receives for any tag can take the messages of others, whose receives are left out.
    let mut receives: Vec<Wanted> = order.iter().map(wanted).collect();
    let expected = reference(&receives, &sent);
    let mut kept = expected.iter();
    receives.retain(|_| kept.next().is_some_and(Option::is_some));
    let left = (0..sent.len()).filter(|n| !expected.contains(&Some(*n)));
    receives.extend(left.map(|n| (sent[n].0, exactly(sent[n].1))));
    let expected: Vec<(usize, usize)> =
        reference(&receives, &sent).into_iter().map(Option::unwrap).enumerate().collect();

    let feps = [0, 1].map(|n| fep(n, config(bytes, sent.len() as u32), 3, START));
    let mut pair = Pair::of(feps, START);
    let connections = PROCESSES.map(|process| {
        pair.feps[0].connect_of(process, pair.now, Addr(1), ConnectOptions::default()).unwrap()
    });
    for (number, (from, tag, len)) in messages.iter().enumerate() {
        let message = message(number, *len, *tag);
        let header_data = message.header_data | u64::from(PROCESSES[*from]) << 32;
        pair.post_send(connections[*from], Send { header_data, ..message });
    }
    let mut receiver = Receiver { receives, posted: 0 };
    for step in steps {
        take_step(&mut pair, *step, &mut receiver);
    }
    let mut done = received(&mut pair);
    for _ in 0..20_000 {
        for transit in std::mem::take(&mut pair.wire) {
            pair.arrive(&transit);
        }
        pair.exchange();
        done.extend(received(&mut pair));
        match done.len() {
            all if all == sent.len() => break,
            complete if complete == receiver.posted => receiver.post_next(&mut pair),
            _ => expire_next(&mut pair),
        }
    }
    done.sort_unstable();
    prop_assert_eq!(done, expected, "{:?}", pair.explain());
    // A target that hears nothing for long has it closed.
    for connection in connections {
        if pair.feps[0].is_open(connection) {
            pair.close(connection);
        }
    }
    // A sender that was refused may be told to wait, with its CLOSE, too.
    for _ in 0..100 {
        if !pair.leaks(0).is_empty() {
            expire_next(&mut pair);
            pair.exchange();
        }
    }
    prop_assert_eq!(pair.leaks(0), [""; 0], "{:?}", pair.explain());
    prop_assert_eq!(pair.leaks(1), [""; 0]);
    Ok(())
}

/// Of two processes of a peer one may have used up its part of the memory for messages without a receive. An empty message needs none.
#[test]
fn an_empty_message_that_finds_no_memory_is_delivered_once() {
    check_order(&[(1, None, 232), (0, None, 0), (1, None, 0), (0, None, 137)], (0, 0), 300, &[]).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// The target keeps the payload of a few messages, or of none.
    #[test]
    fn messages_meet_receives_in_the_order_in_which_they_were_sent(
        messages in prop::collection::vec((0..2usize, prop::option::weighted(0.8, 1u64..4), 0u32..350), 1..12),
        choices in (any::<u64>(), any::<u16>()),
        bytes in prop_oneof![Just(0u64), Just(300), Just(1_000_000)],
        steps in prop::collection::vec(step(), 0..150),
    ) {
        check_order(&messages, choices, bytes, &steps)?;
    }
}

/// Its last message has arrived when a copy of it is refused.
#[test]
fn a_sender_that_is_told_to_wait_closes_its_connection_then() {
    use Step::{Arrive, Expire, Leave, Post};
    let mut steps =
        vec![Leave, Leave, Leave, Leave, Leave, Expire, Leave, Leave, Arrive(0), Leave, Leave, Leave];
    steps.extend([
        Arrive(4099276460824344804),
        Arrive(6917529027641081856),
        Arrive(13176245766935394012),
        Post,
    ]);
    steps.extend([Leave; 4]);
    check_order(&[(0, None, 201), (1, None, 101)], (0, 0), 0, &steps).unwrap();
}

/// Polls for room must come to the one message that a receive waits for.
#[test]
fn polls_reach_the_message_that_a_receive_waits_for() {
    use Step::{Arrive, Expire, Leave, Lose, Post};
    let messages = [
        (0, Some(3), 101),
        (0, Some(1), 101),
        (0, Some(1), 101),
        (0, Some(1), 101),
        (0, None, 91),
        (0, None, 0),
        (0, None, 0),
        (0, None, 0),
        (0, None, 8),
        (0, Some(3), 0),
    ];
    let mut steps =
        vec![Leave, Leave, Leave, Leave, Post, Leave, Leave, Arrive(12297829382473034411), Expire];
    steps.extend([Leave, Leave, Leave, Arrive(0), Leave, Lose(2305843009213693952), Leave]);
    steps.extend([Arrive(4611686018427387904), Leave, Leave, Arrive(4099276460824344804)]);
    steps.extend([Leave; 6]);
    steps.extend([Arrive(0), Arrive(7094901566811366007)]);
    check_order(&messages, (16602069666338596454, 0), 300, &steps).unwrap();
}

/// One connection polls at the end of each RTO if its refusals do not count: see the next test. The other one, which a receive
/// waits for, polls ever more rarely.
#[test]
fn polls_of_two_connections_reach_the_message_that_a_receive_waits_for() {
    use Step::{Arrive, Expire, Leave};
    let mut steps = vec![Leave; 6];
    steps.extend([Arrive(0), Arrive(3689348814741910324), Leave, Arrive(0), Arrive(12297829382473034411)]);
    steps.extend([
        Expire,
        Expire,
        Expire,
        Leave,
        Leave,
        Leave,
        Expire,
        Leave,
        Leave,
        Leave,
        Leave,
        Arrive(0),
    ]);
    let messages = [
        (1, Some(1), 0),
        (1, Some(1), 201),
        (0, None, 0),
        (0, Some(1), 1),
        (1, Some(1), 101),
        (0, Some(1), 1),
        (1, Some(1), 301),
        (1, None, 0),
        (1, None, 0),
    ];
    check_order(&messages, (4611686018427387904, 0), 0, &steps).unwrap();
}

/// Answers took 8 µs. From the one on that ends the pause of a connection they come at once.
#[test]
fn polls_are_ever_further_apart_when_refusals_come_sooner_than_any_answer_before() {
    let mut pair = Pair::new(&config(0, 8));
    let connection = pair.connect_from(0, ConnectOptions::default());
    for (number, tag) in [(0, 0), (1, 1), (2, 2)] {
        pair.post_send(connection, message(number, 50, Some(tag)));
    }
    post(&mut pair, exactly(Some(0)), 0);
    send_all(&mut pair);
    pair.now += Span::from_us(8);
    let codes = [(); 3].map(|()| refusals(&mut pair, 0));
    assert_eq!(codes, [vec![], vec![NackCode::NO_PKT_BUFFER], vec![NackCode::NO_PKT_BUFFER]]);
    assert_eq!(received(&mut pair), [(0, 0)]);
    post(&mut pair, exactly(Some(2)), 1);
    let mut is_taken = false;
    let mut polls = Vec::new();
    while polls.len() < 10 {
        expire_next(&mut pair);
        send_all(&mut pair);
        while !pair.wire.is_empty() {
            if is_taken {
                polls.push(pair.now);
            } else {
                pair.now += Span::from_us(8);
            }
            refusals(&mut pair, 0);
            is_taken |= !received(&mut pair).is_empty();
            send_all(&mut pair);
        }
    }
    let waits: Vec<Span> = polls.windows(2).map(|polls| polls[1].since(polls[0])).collect();
    assert!(waits.windows(2).all(|waits| waits[1].as_ps() > waits[0].as_ps() * 3 / 2), "{waits:?}");
}

/// Puts all packets of endpoint 0 on the wire.
fn send_all(pair: &mut Pair) {
    while pair.put_on_wire(0) {}
}

/// The codes of the NACKs that endpoint 1 answers with when packet `at` of those on the wire arrives.
fn refusals(pair: &mut Pair, at: usize) -> Vec<NackCode> {
    let transit = pair.wire.remove(at);
    pair.arrive(&transit);
    let mut codes = Vec::new();
    while let Some(answer) = pair.transmit(1) {
        if let Pds::Nack(nack) = &answer.packet.pds {
            codes.push(nack.code);
        }
        pair.arrive(&answer);
    }
    codes
}

fn pair_with_messages(config: &FepConfig, lens: &[u32]) -> (Pair, ConnectionId) {
    let mut pair = Pair::new(config);
    let connection = pair.connect_from(0, ConnectOptions::default());
    for (number, len) in lens.iter().enumerate() {
        pair.post_send(connection, message(number, *len, None));
    }
    (pair, connection)
}

#[test]
fn a_message_that_overtakes_another_waits_for_it() {
    let (mut pair, connection) = pair_with_messages(&config(1_000, 8), &[50, 50, 50]);
    for number in 0..3 {
        post(&mut pair, Matching::Untagged, number);
    }
    send_all(&mut pair);
    assert_eq!((refusals(&mut pair, 2), refusals(&mut pair, 1)), (vec![], vec![]));
    assert_eq!(received(&mut pair), []);
    refusals(&mut pair, 0);
    assert_eq!(received(&mut pair), [(0, 0), (1, 1), (2, 2)]);
    pair.exchange();
    pair.close(connection);
    assert_eq!(pair.leaks(1), [""; 0]);
}

#[test]
fn a_cancelled_message_leaves_no_gap() {
    let (mut pair, connection) = pair_with_messages(&config(1_000, 8), &[50]);
    let cancelled = pair.post_send(connection, message(1, 50, None));
    pair.post_send(connection, message(2, 50, None));
    pair.feps[0].cancel_send(cancelled).unwrap();
    send_all(&mut pair);
    for number in 0..2 {
        post(&mut pair, Matching::Untagged, number);
        refusals(&mut pair, 0);
    }
    assert_eq!(received(&mut pair), [(0, 0), (1, 2)]);
}

#[test]
fn an_endpoint_says_how_much_it_keeps_of_a_peers_messages_until_they_are_received() {
    let (mut pair, _) = pair_with_messages(&config(1_000, 8), &[300, 250]);
    pair.exchange();
    let kept = |pair: &Pair| [Addr(0), Addr(1)].map(|peer| pair.feps[1].kept_of(0, peer));
    let messages = |pair: &Pair| [Addr(0), Addr(1)].map(|peer| pair.feps[1].kept_messages_of(0, peer));
    assert_eq!((kept(&pair), pair.feps[1].kept_of(7, Addr(0))), ([550, 0], 0));
    assert_eq!((messages(&pair), pair.feps[1].kept_messages_of(7, Addr(0))), ([2, 0], 0));
    for (number, left) in [(0, (250, 1)), (1, (0, 0))] {
        post(&mut pair, Matching::Untagged, number);
        assert_eq!((kept(&pair), messages(&pair)), ([left.0, 0], [left.1, 0]));
    }
    assert_eq!(received(&mut pair), [(0, 0), (1, 1)]);
}

/// An early message takes no place that those before it need.
#[test]
fn early_messages_reserve_places_for_those_before_them() {
    let (mut pair, _) = pair_with_messages(&config(1_000, 2), &[50, 50, 50]);
    send_all(&mut pair);
    assert_eq!(
        refusals(&mut pair, 2),
        [NackCode::NO_SES_MSG_AVAIL],
        "two messages before it would need a place"
    );
    assert_eq!(refusals(&mut pair, 1), []);
    assert_eq!(pair.feps[1].kept_messages_of(0, Addr(0)), 2, "the missing one counts");
    assert_eq!(refusals(&mut pair, 0), [], "its place was reserved");
    assert_eq!(pair.feps[1].kept_messages_of(0, Addr(0)), 2);
    let under_way: Vec<String> = pair.leaks(1).into_iter().filter(|what| what.contains("messages")).collect();
    assert_eq!(under_way, ["2 messages on their way in"]);
}

/// The process that a message is for may not exist. Messages behind it do not wait for it.
#[test]
fn a_message_that_no_process_takes_is_passed_over() {
    // The packets arrive in each order; the last one finds the process open.
    for (order, last) in [([0, 0, 0], 2), ([2, 1, 0], 0), ([1, 1, 0], 0)] {
        let mut pair = Pair::new(&config(1_000, 8));
        let connection = pair.connect_from(0, ConnectOptions::default().process(7));
        for number in 0..3 {
            pair.post_send(connection, message(number, 50, None));
        }
        send_all(&mut pair);
        refusals(&mut pair, order[0]);
        refusals(&mut pair, order[1]);
        pair.feps[1].open_process(7).unwrap();
        let receive = Receive { buffer: Buffer::Heap(vec![0; 400]), ..harness::receive_any(0) };
        pair.feps[1].post_receive_of(7, receive).unwrap();
        refusals(&mut pair, order[2]);
        assert_eq!(received(&mut pair), [(0, last)]);
    }
}

/// A message that has arrived was acknowledged, so it counts even if the one before it never comes.
#[test]
fn early_messages_of_a_peer_that_is_gone_are_delivered() {
    let (mut pair, _) = pair_with_messages(&config(1_000, 8), &[50, 50, 150]);
    for number in 0..3 {
        post(&mut pair, Matching::Untagged, number);
    }
    send_all(&mut pair);
    refusals(&mut pair, 1);
    refusals(&mut pair, 1);
    assert_eq!(received(&mut pair), []);
    let idle = pair.feps[1].config().idle_timeout;
    for _ in 0..2 {
        let at = pair.now + idle;
        pair.expire_at(1, at);
    }
    let done: Vec<_> = pair
        .completions(1)
        .into_iter()
        .map(|completion| match completion {
            Completion::Received { context, header_data, result, .. } => (context, header_data, result),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        done,
        [(0, 1, Ok::<(), ReceiveError>(()))],
        "nothing of the last message can be told to be in order"
    );
}
