//! Writes and atomic operations on a peer's memory: each is done once, whole, and only where it may.

use crate::harness;
use crate::harness::{KEY, MTU, Pair, config, content, exposure, receive_any};
use proptest::prelude::*;
use weft_stack::buffer::Buffer;
use weft_stack::fep::{
    AccessError, Accessed, Atomic, AtomicError, Completion, ConnectOptions, ConnectionId, ExposeRefusal,
    Exposure, FepConfig, Limits, Read, ReadFault, Rights, Write, Written,
};
use weft_stack::packet::{Addr, Class, Payload};
use weft_stack::rng::Rng;
use weft_stack::ses::Source;
use weft_stack::wire::pds::DeliveryMode;
use weft_stack::wire::ses::{AtomicOp, AtomicType, ReturnCode};
use weft_stack::{Span, Time};

fn write(offset: u64, bytes: Vec<u8>) -> Write {
    Write { buffer: Buffer::Heap(bytes), key: KEY, offset, data: None, context: offset }
}

fn add(offset: u64, operand: u64, fetch: bool) -> Atomic {
    Atomic {
        op: AtomicOp::SUM,
        datatype: AtomicType::UINT64,
        operands: operand.to_le_bytes().to_vec(),
        compare: None,
        fetch,
        key: KEY,
        offset,
        context: 0,
    }
}

/// The memory of endpoint 1, which exposes it no more.
fn memory(pair: &mut Pair) -> Vec<u8> {
    let Some(Buffer::Heap(bytes)) = pair.feps[1].withdraw(0, KEY) else { panic!("no memory") };
    bytes
}

/// What the accesses have come to that endpoint 0 has posted, all of which have ended.
fn ended(pair: &mut Pair) -> Vec<Result<Vec<u8>, AccessError>> {
    let outcome = |completion| match completion {
        Completion::Accessed { buffer: Buffer::Heap(bytes), result, .. } => result.map(|()| bytes),
        other => panic!("no access: {other:?}"),
    };
    pair.completions(0).into_iter().map(outcome).collect()
}

fn only_error(pair: &mut Pair) -> ReadFault {
    let mut all = ended(pair);
    assert_eq!(all.len(), 1);
    all.remove(0).unwrap_err().why
}

#[test]
fn a_write_of_several_packets_is_announced_once_when_all_of_it_is_there() {
    let mut pair = Pair::exposing(&config(true), vec![0; 100_000], Rights::ALL);
    let connection = pair.connect();
    let bytes = content(3, 5 * MTU as usize + 17);
    pair.feps[0].post_write(connection, Write { data: Some(99), ..write(1_000, bytes.clone()) }).unwrap();
    let mut packets = Vec::new();
    while let Some(transit) = pair.transmit(0) {
        packets.push(transit);
    }
    assert_eq!(packets.len(), 6);
    packets.rotate_left(2);
    for (n, packet) in packets.iter().enumerate() {
        assert_eq!(pair.completions(1).len(), 0, "{n} packets are not all");
        pair.arrive(packet);
        pair.arrive(&packet.duplicate());
    }
    let written = Written {
        process: 0,
        source: Source::from(Addr(0)),
        key: KEY,
        offset: 1_000,
        len: bytes.len() as u32,
        data: 99,
    };
    let [Completion::Written(seen)] = pair.completions(1)[..] else { panic!("not announced once") };
    assert_eq!(seen, written);
    pair.exchange();
    assert_eq!(ended(&mut pair), [Ok(bytes.clone())]);
    let memory = memory(&mut pair);
    assert_eq!(memory[1_000..1_000 + bytes.len()], bytes);
    assert!(memory[..1_000].iter().chain(&memory[1_000 + bytes.len()..]).all(|byte| *byte == 0));
}

#[test]
fn each_access_is_counted_once_however_often_its_packets_come() {
    let mut pair = Pair::exposing(&config(true), vec![0; 100_000], Rights::ALL);
    let connection = pair.connect();
    let read = |len: usize| Read { buffer: Buffer::Heap(vec![0; len]), key: KEY, offset: 0, context: 0 };
    let fetch = |op| Atomic { op, ..add(8, 1, true) };
    let fep = &mut pair.feps[0];
    assert_eq!(fep.next_accessed(), None);
    fep.post_write(connection, write(1_000, content(3, 5 * MTU as usize + 17))).unwrap();
    fep.post_write(connection, write(1_000, content(4, 3))).unwrap();
    fep.post_write(connection, write(99_999, content(5, 3 * MTU as usize))).unwrap();
    fep.post_atomic(connection, add(8, 1, false)).unwrap();
    fep.post_atomic(connection, fetch(AtomicOp::SUM)).unwrap();
    fep.post_atomic(connection, fetch(AtomicOp::READ)).unwrap();
    fep.post_read(connection, read(6 * MTU as usize - 1)).unwrap();
    fep.post_read(connection, read(9)).unwrap();
    let mut packets = Vec::new();
    while let Some(transit) = pair.transmit(0) {
        packets.push(transit);
    }
    packets.rotate_left(3);
    for packet in &packets {
        pair.arrive(packet);
        pair.arrive(&packet.duplicate());
    }
    pair.exchange();
    let accessed = Accessed { process: 0, key: KEY, reads: 3, writes: 3, fetches: 1 };
    assert_eq!([(); 2].map(|()| pair.feps[1].next_accessed()), [Some(accessed), None]);
    // Counts of memory that is withdrawn go with it.
    pair.feps[0].post_atomic(connection, add(8, 1, false)).unwrap();
    pair.exchange();
    memory(&mut pair);
    assert_eq!(pair.feps[1].next_accessed(), None);
}

#[test]
fn what_is_not_permitted_gets_an_error_and_changes_no_byte() {
    let codes = [
        (Rights::ALL, KEY ^ 1, 0, ReturnCode::BAD_MKEY),
        (Rights::ALL, KEY, 90_000, ReturnCode::AT_OUT_OF_RANGE),
        (Rights::ALL, KEY, u64::MAX - 5, ReturnCode::AT_OUT_OF_RANGE),
        (Rights::READ, KEY, 0, ReturnCode::PERM_VIOLATION),
    ];
    for (rights, key, offset, code) in codes {
        let before = content(1, 100_000);
        let mut pair = Pair::exposing(&config(true), before.clone(), rights);
        let connection = pair.connect();
        // The beginning of a write lies in the memory even if its end does not.
        let bytes = vec![7; 20_000];
        let written = Write { key, data: Some(1), ..write(offset, bytes) };
        pair.feps[0].post_write(connection, written).unwrap();
        pair.exchange();
        assert_eq!(only_error(&mut pair), ReadFault::Answered(code));
        let offset = if offset == 90_000 { 99_993 } else { offset };
        pair.feps[0].post_atomic(connection, Atomic { key, ..add(offset, 1, true) }).unwrap();
        pair.exchange();
        assert_eq!(only_error(&mut pair), ReadFault::Answered(code));
        assert!(pair.completions(1).is_empty());
        // The connection goes on.
        pair.feps[1].post_receive(receive_any(3)).unwrap();
        let message =
            weft_stack::fep::Send { buffer: Buffer::Heap(vec![1; 3]), tag: None, header_data: 0, context: 0 };
        pair.post_send(connection, message);
        pair.exchange();
        assert!(matches!(pair.completions(1)[..], [Completion::Received { result: Ok(()), .. }]));
        assert_eq!(memory(&mut pair), before);
    }
}

#[test]
fn writes_that_announce_themselves_wait_until_the_application_takes_more() {
    let mut pair = Pair::exposing(&config(true), vec![0; 100], Rights::ALL);
    pair.feps[1].limit_announcements(0, KEY);
    pair.feps[1].allow_announcements(1);
    let connection = pair.connect();
    for n in 0..4 {
        let written = Write { data: Some(n), ..write(n, vec![n as u8 + 1; 1]) };
        pair.feps[0].post_write(connection, written).unwrap();
    }
    // One that announces nothing arrives all the same.
    pair.feps[0].post_write(connection, write(50, vec![50])).unwrap();
    let mut data = Vec::new();
    for (more, announced) in [(None, 1), (Some(0), 1), (Some(2), 3), (None, 3), (Some(7), 4)] {
        if let Some(more) = more {
            pair.feps[1].allow_announcements(more);
        }
        let ended = pair.run(pair.now + Span::from_ms(2_000), |_| Some(Span::from_us(5)));
        assert!(ended.iter().all(|(_, end)| matches!(end, Completion::Accessed { result: Ok(()), .. })));
        data.extend(pair.completions(1).into_iter().map(|completion| match completion {
            Completion::Written(written) => written.data,
            other => panic!("{other:?}"),
        }));
        assert_eq!(data.len(), announced);
    }
    data.sort_unstable();
    assert_eq!(data, [0, 1, 2, 3]);
    let memory = memory(&mut pair);
    assert_eq!((&memory[..4], memory[50]), (&[1, 2, 3, 4][..], 50));
}

#[test]
fn withdrawn_memory_is_not_written_to_even_under_a_key_that_is_used_again() {
    let mut pair = Pair::exposing(&config(true), vec![0; 50_000], Rights::ALL);
    let connection = pair.connect();
    pair.feps[0].post_write(connection, write(0, vec![7; 50_000])).unwrap();
    let first = pair.transmit(0).unwrap();
    pair.arrive(&first);
    assert_eq!(memory(&mut pair)[..MTU as usize], vec![7; MTU as usize]);
    let second = pair.transmit(0).unwrap();
    pair.arrive(&second);
    pair.feps[1].expose(0, exposure(vec![0; 50_000], Rights::ALL)).unwrap();
    pair.exchange();
    assert_eq!(only_error(&mut pair), ReadFault::Answered(ReturnCode::BAD_MKEY));
    assert_eq!(memory(&mut pair), vec![0; 50_000]);
}

#[test]
fn memory_for_one_peer_is_closed_to_others_and_read_only_memory_to_writes() {
    let mut pair = Pair::new(&config(true));
    let exposure =
        |buffer, rights| Exposure { key: KEY, buffer, base: 0, rights, from: Some(Addr(7).into()) };
    let constant = Buffer::Bytes(Box::new(bytes::Bytes::from_static(b"constant")));
    let refused = pair.feps[1].expose(0, exposure(constant, Rights::ALL)).unwrap_err();
    assert_eq!(refused.why, ExposeRefusal::ReadOnly);
    pair.feps[1].expose(0, exposure(Buffer::Heap(vec![0; 8]), Rights::ALL)).unwrap();
    let connection = pair.connect();
    pair.feps[0].post_write(connection, write(0, vec![1; 8])).unwrap();
    pair.exchange();
    assert_eq!(only_error(&mut pair), ReadFault::Answered(ReturnCode::PERM_VIOLATION));
    assert_eq!(memory(&mut pair), [0; 8]);
}

#[test]
fn operations_that_do_not_exist_are_not_posted() {
    let mut pair = Pair::exposing(&config(true), vec![0; 64], Rights::ALL);
    let connection = pair.connect();
    let post = |pair: &mut Pair, atomic| pair.feps[0].post_atomic(connection, atomic).unwrap_err();
    let unsupported = AtomicError::Unsupported { op: AtomicOp::BXOR, datatype: AtomicType::DOUBLE };
    let xor = Atomic { op: AtomicOp::BXOR, datatype: AtomicType::DOUBLE, ..add(0, 1, true) };
    assert_eq!(post(&mut pair, xor), unsupported);
    assert!(matches!(
        post(&mut pair, Atomic { compare: Some(1), ..add(0, 1, true) }),
        AtomicError::Unsupported { .. }
    ));
    let most = Atomic::most_values(AtomicOp::SUM, AtomicType::UINT64, MTU);
    assert_eq!(most, (MTU as usize - 4) / 8);
    let long = Atomic { operands: vec![0; 8 * (most + 1)], ..add(0, 1, true) };
    assert_eq!(post(&mut pair, long), AtomicError::Length { len: 8 * (most + 1), size: 8, most });
    assert!(matches!(
        post(&mut pair, Atomic { operands: vec![0; 7], ..add(0, 1, true) }),
        AtomicError::Length { .. }
    ));
}

#[test]
fn keys_differ_and_depend_on_the_seed() {
    let keys = |seed| {
        let mut fep = harness::fep(seed, config(true), u64::from(seed), Time::ZERO);
        (0..1_000).map(|_| fep.draw_key()).collect::<Vec<_>>()
    };
    let (mut all, again) = ([keys(1), keys(2)].concat(), keys(1));
    assert_eq!(all[..1_000], again);
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 2_000);
}

#[test]
fn a_peer_may_begin_only_so_many_writes_at_a_time() {
    let limits = Limits { unexpected_messages_per_peer: 2, ..Limits::default() };
    let mut pair = Pair::exposing(&FepConfig { limits, ..config(true) }, vec![0; 100_000], Rights::ALL);
    let connection = pair.connect();
    for n in 0..4 {
        pair.feps[0].post_write(connection, write(n * 10_000, vec![n as u8 + 1; MTU as usize + 1])).unwrap();
    }
    let mut packets = Vec::new();
    while let Some(transit) = pair.transmit(0) {
        packets.push(transit);
    }
    // The second halves come first: of the last writes there is no room for any state.
    let (last, first): (Vec<_>, Vec<_>) = packets.into_iter().enumerate().partition(|(n, _)| n % 2 == 1);
    last.iter().chain(&first).for_each(|(_, packet)| pair.arrive(packet));
    assert!(pair.feps[1].counters().nacks_sent > 0, "nothing was refused");
    let end = pair.now + Span::from_ms(1_000);
    let mut done = Vec::new();
    while done.len() < 4 && pair.now.is_before(end) {
        pair.exchange();
        done.extend(ended(&mut pair));
        pair.now += Span::from_us(100);
        let now = pair.now;
        pair.feps.iter_mut().for_each(|fep| fep.on_timeout(now));
    }
    assert!(done.len() == 4 && done.iter().all(Result::is_ok), "{done:?}");
    let memory = memory(&mut pair);
    for n in 0..4 {
        assert!(memory[n * 10_000..][..MTU as usize + 1].iter().all(|byte| *byte == n as u8 + 1));
    }
}

/// What happens to each packet, with these probabilities in per cent.
#[derive(Clone, Copy, Debug)]
struct Faults {
    lose: u64,
    copy: u64,
    trim: u64,
}

/// Lets time pass until endpoint 0 has reported `count` completions. Packets take 5 to 30 µs, so that they overtake each
/// other, and copies up to 200 µs.
fn run(pair: &mut Pair, rng: &mut Rng, faults: Faults, count: usize) -> Vec<Completion> {
    pair.run_until_done(count, Span::from_ms(4_000), |now, mut transit, under_way| {
        if transit.is_data() && rng.next_u64() % 100 < faults.trim {
            transit.trim(Class::Trimmed);
        }
        if rng.next_u64() % 100 < faults.copy {
            let late = Span::from_ns(5_000 + rng.next_u64() % 200_000);
            under_way.push((now + late, transit.duplicate()));
        }
        if rng.next_u64() % 100 >= faults.lose {
            under_way.push((now + Span::from_ns(5_000 + rng.next_u64() % 25_000), transit));
        }
    })
}

/// Bytes from here on are written to and read, those before are counters.
const COUNTERS: usize = 64;
const MEMORY: usize = 60_000;
/// The parts of memory that the accesses of a round touch, so that no two of them touch the same bytes.
const PARTS: usize = 6;

#[derive(Clone, Debug)]
enum Step {
    Write {
        at: usize,
        len: usize,
        announced: bool,
    },
    Read {
        at: usize,
        len: usize,
    },
    /// Adds one to a counter.
    Count {
        counter: usize,
        fetch: bool,
    },
    /// Sets the last counter, which nothing else touches, if it has the value that it should have.
    Swap,
}

fn step() -> impl Strategy<Value = Step> {
    let part = (MEMORY - COUNTERS) / PARTS;
    let range = move || (0..part).prop_flat_map(move |at| (Just(at), 0..=part - at));
    prop_oneof![
        3 => (range(), any::<bool>()).prop_map(|((at, len), announced)| Step::Write { at, len, announced }),
        2 => range().prop_map(|(at, len)| Step::Read { at, len }),
        4 => (0..COUNTERS / 8 - 1, any::<bool>()).prop_map(|(counter, fetch)| Step::Count { counter, fetch }),
        1 => Just(Step::Swap),
    ]
}

/// Posts the steps of a round, and checks what they have come to against `model`.
fn round(
    pair: &mut Pair,
    connection: ConnectionId,
    rng: &mut Rng,
    faults: Faults,
    steps: &[Step],
    model: &mut [u8],
) {
    let (mut fetched, mut announced) = (vec![Vec::new(); COUNTERS / 8], 0);
    let before = model.to_vec();
    let counter = |bytes: &[u8], n: usize| u64::from_le_bytes(bytes[8 * n..][..8].try_into().unwrap());
    let mut counts = [0; COUNTERS / 8];
    let (mut expected, mut part, mut swapped) = (Vec::new(), 0, false);
    for (n, step) in steps.iter().enumerate() {
        let fep = &mut pair.feps[0];
        let context = n as u64;
        match *step {
            Step::Write { .. } | Step::Read { .. } if part == PARTS => continue,
            Step::Swap if swapped => continue,
            Step::Write { at, len, announced: data } => {
                let at = COUNTERS + part * ((MEMORY - COUNTERS) / PARTS) + at;
                let bytes = content(rng.next_u64(), len);
                model[at..at + len].copy_from_slice(&bytes);
                let data = data.then_some(context);
                announced += usize::from(data.is_some());
                let write = Write { buffer: Buffer::Heap(bytes), key: KEY, offset: at as u64, data, context };
                fep.post_write(connection, write).unwrap();
                part += 1;
            }
            Step::Read { at, len } => {
                let at = COUNTERS + part * ((MEMORY - COUNTERS) / PARTS) + at;
                let (buffer, offset) = (Buffer::Heap(vec![0; len]), at as u64);
                fep.post_read(connection, Read { buffer, key: KEY, offset, context }).unwrap();
                expected.push((context, before[at..at + len].to_vec()));
                part += 1;
            }
            Step::Count { counter, fetch } => {
                let atomic = Atomic { context, ..add(8 * counter as u64, 1, fetch) };
                fep.post_atomic(connection, atomic).unwrap();
                counts[counter] += 1;
            }
            Step::Swap => {
                let last = COUNTERS / 8 - 1;
                let now = counter(model, last);
                let atomic = Atomic {
                    op: AtomicOp::COMPARE_SWAP,
                    operands: (now + 3).to_le_bytes().to_vec(),
                    compare: Some(now.into()),
                    context,
                    ..add(8 * last as u64, 0, true)
                };
                fep.post_atomic(connection, atomic).unwrap();
                model[8 * last..][..8].copy_from_slice(&(now + 3).to_le_bytes());
                expected.push((context, now.to_le_bytes().to_vec()));
                swapped = true;
            }
        }
    }
    for (n, count) in counts.iter().enumerate() {
        let sum = counter(model, n) + count;
        model[8 * n..][..8].copy_from_slice(&sum.to_le_bytes());
    }
    let posted = steps.len() - skipped(steps);
    for completion in run(pair, rng, faults, posted) {
        let (context, bytes) = match completion {
            Completion::Read { context, buffer: Buffer::Heap(bytes), result: Ok(()), .. } => (context, bytes),
            Completion::Accessed { context, buffer: Buffer::Heap(bytes), result: Ok(()), .. } => {
                (context, bytes)
            }
            other => panic!("{other:?}"),
        };
        match steps[context as usize] {
            Step::Count { counter, fetch: true } => {
                fetched[counter].push(u64::from_le_bytes(bytes.try_into().unwrap()));
            }
            Step::Count { fetch: false, .. } => assert!(bytes.is_empty()),
            Step::Write { .. } => {}
            Step::Read { .. } | Step::Swap => {
                let at = expected.iter().position(|(other, _)| *other == context).unwrap();
                assert_eq!(bytes, expected.remove(at).1, "step {context}");
            }
        }
    }
    for (n, mut seen) in fetched.into_iter().enumerate() {
        let (count, first) = (seen.len(), counter(&before, n));
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), count, "two additions of one have found the same value");
        assert!(seen.iter().all(|value| (first..first + counts[n]).contains(value)));
    }
    let mut values: Vec<_> = pair.completions(1);
    values.retain(|completion| matches!(completion, Completion::Written(_)));
    assert_eq!(values.len(), announced);
    let buffer = pair.feps[1].withdraw(0, KEY).unwrap();
    let Payload::Bytes(bytes) = buffer.payload(0, MEMORY as u32) else { panic!("memory of the heap") };
    assert!(bytes == model, "the memory is not what the model says");
    pair.feps[1].expose(0, Exposure { key: KEY, buffer, base: 0, rights: Rights::ALL, from: None }).unwrap();
}

/// Steps that a round leaves out, as they would touch bytes of others.
fn skipped(steps: &[Step]) -> usize {
    let of = |is: fn(&Step) -> bool, most: usize| {
        steps.iter().filter(|step| is(step)).count().saturating_sub(most)
    };
    of(|step| matches!(step, Step::Write { .. } | Step::Read { .. }), PARTS)
        + of(|step| matches!(step, Step::Swap), 1)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn memory_is_as_if_each_access_had_been_done_once(
        seed: u64,
        ordered: bool,
        (lose, copy, trim) in (0u64..15, 0u64..15, 0u64..25),
        rounds in prop::collection::vec(prop::collection::vec(step(), 1..30), 1..4),
    ) {
        let mode = if ordered { DeliveryMode::Rod } else { DeliveryMode::Rud };
        let mut model = vec![0; COUNTERS];
        model.extend(content(seed, MEMORY - COUNTERS));
        let mut pair = Pair::exposing(&config(true), model.clone(), Rights::ALL);
        let mut rng = Rng::new(seed, 1);
        let connection = pair.connect_from(0, ConnectOptions::default().mode(mode));
        for steps in &rounds {
            round(&mut pair, connection, &mut rng, Faults { lose, copy, trim }, steps, &mut model);
        }
        pair.feps[0].close(pair.now, connection).unwrap();
        prop_assert_eq!(run(&mut pair, &mut rng, Faults { lose, copy, trim }, 1).len(), 1);
        prop_assert_eq!(pair.feps[1].open_targets(), 0);
    }
}
