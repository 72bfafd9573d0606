//! Reads of a peer's memory: every byte arrives as it was, once, or the read fails with a reason.

use crate::harness;
use std::collections::BTreeMap;

use crate::harness::{
    Alone, KEY, MTU, Pair, Results, START, Transit, WorkerPair, config, content, exposure, fep, forge,
    impatient_config, params, untagged, worker,
};
use weft_stack::buffer::Buffer;
use weft_stack::cc::CcChoice;
use weft_stack::fep::{
    CallError, Completion, ConnectOptions, ConnectionId, ExposeError, ExposeRefusal, Exposure, Failure,
    FepConfig, Limits, Read, ReadFault, ReadId, Receive, Rights,
};
use weft_stack::packet::{Addr, Class, Network, Packet, Payload};
use weft_stack::pdc::RodReceive;
use weft_stack::port::memory::{MemoryConfig, pair as memory_pair};
use weft_stack::region::Region;
use weft_stack::rng::Rng;
use weft_stack::ses::Source;
use weft_stack::spray::Entropy;
use weft_stack::wire::pds::{Ack, ControlKind, DeliveryMode, Nack, NackCode, NextHeader, Pds, Request};
use weft_stack::wire::ses::{Opcode, RequestFlags, ReturnCode, Ses};
use weft_stack::worker::LinkConfig;
use weft_stack::{Span, Time};

fn read(offset: u64, len: usize, context: u64) -> Read {
    Read { buffer: Buffer::Heap(vec![0; len]), key: KEY, offset, context }
}

fn post_read(pair: &mut Pair, connection: ConnectionId, read: Read) -> ReadId {
    pair.feps[0].post_read(connection, read).unwrap()
}

/// The bytes of the only read of endpoint 0 that has ended, or why it failed.
fn result(pair: &mut Pair) -> Result<Vec<u8>, ReadFault> {
    let mut completions = pair.completions(0);
    assert_eq!(completions.len(), 1, "{completions:?}");
    outcome(completions.remove(0)).1
}

fn outcome(completion: Completion) -> (u64, Result<Vec<u8>, ReadFault>) {
    match completion {
        Completion::Read { context, buffer: Buffer::Heap(bytes), result, .. } => {
            (context, result.map(|()| bytes).map_err(|error| error.why))
        }
        other => panic!("no read: {other:?}"),
    }
}

/// What a channel does to packets: probabilities.
#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    lose: f64,
    copy: f64,
    trim: f64,
    mark: f64,
}

/// Lets time pass until endpoint 0 has reported `count` completions. Packets take 5 to 10 µs, so that they overtake each other,
/// and copies up to 200 µs.
fn run(pair: &mut Pair, rng: &mut Rng, faults: Faults, count: usize) -> Vec<Completion> {
    let happens = |rng: &mut Rng, p: f64| (rng.next_u64() as f64) < p * u64::MAX as f64;
    pair.run_until_done(count, Span::from_ms(2_000), |now, mut transit, under_way| {
        if transit.is_data() && happens(rng, faults.trim) {
            transit.trim(if rng.next_u64().is_multiple_of(2) {
                Class::Trimmed
            } else {
                Class::TrimmedLastHop
            });
        }
        if transit.packet.net.class == Class::Data && happens(rng, faults.mark) {
            transit.mark();
        }
        if happens(rng, faults.copy) {
            let late = Span::from_ns(5_000 + rng.next_u64() % 200_000);
            under_way.push((now + late, transit.duplicate()));
        }
        if !happens(rng, faults.lose) {
            under_way.push((now + Span::from_ns(5_000 + rng.next_u64() % 5_000), transit));
        }
    })
}

/// Reads of random ranges, with messages between them.
fn read_at_random(config: &FepConfig, mode: DeliveryMode, faults: Faults, seed: u64) {
    const READS: usize = 12;
    let memory = content(seed, 300_000);
    let mut pair = Pair::exposing(config, memory.clone(), Rights::READ);
    let mut rng = Rng::new(seed, 1);
    let connection = pair.connect_from(0, ConnectOptions::default().mode(mode));
    let (mut expected, mut messages) = (BTreeMap::new(), BTreeMap::new());
    for context in 0..READS as u64 {
        let offset = rng.next_u64() as usize % memory.len();
        let len = match context {
            0 => 0,
            1 => MTU as usize,
            _ => rng.next_u64() as usize % (memory.len() - offset).min(60_000),
        }
        .min(memory.len() - offset);
        expected.insert(context, &memory[offset..offset + len]);
        post_read(&mut pair, connection, read(offset as u64, len, context));
        // Messages meet receives in their order, whatever overtakes what.
        let message = content(context, 8_000 + context as usize);
        pair.feps[1].post_receive(Receive { context, ..harness::receive_any(message.len()) }).unwrap();
        pair.post_send(connection, untagged(message.clone(), context));
        messages.insert(context, message);
    }
    let mut sent = 0;
    for completion in run(&mut pair, &mut rng, faults, 2 * READS) {
        if let Completion::Sent { result, .. } = &completion {
            assert_eq!(*result, Ok(()));
            sent += 1;
            continue;
        }
        let (context, result) = outcome(completion);
        let bytes = result.unwrap_or_else(|error| panic!("read {context}: {error}"));
        let wanted = expected.remove(&context).expect("each read ends once");
        assert!(bytes == wanted, "read {context} brought other bytes, seed {seed}");
    }
    assert_eq!((sent, expected.len()), (READS, 0));
    let received = pair.completions(1);
    assert_eq!(received.len(), READS);
    for (n, completion) in received.into_iter().enumerate() {
        let Completion::Received { context, buffer: Buffer::Heap(bytes), len, result: Ok(()), .. } =
            completion
        else {
            panic!("message {n} is not received")
        };
        let message = messages.remove(&context).expect("each receive ends once");
        assert_eq!(len, message.len() as u32, "message {context}");
        assert!(bytes == message, "message {context} brought other bytes, seed {seed}");
    }
    pair.feps[0].close(pair.now, connection).unwrap();
    let closed = run(&mut pair, &mut rng, faults, 1);
    assert!(matches!(closed[0], Completion::Closed { result: Ok(()), .. }), "{closed:?}");
    assert_eq!((pair.leaks(0), pair.leaks(1)), (vec![], vec![]));
}

#[test]
fn random_ranges_are_read_over_a_channel_without_faults() {
    for mode in [DeliveryMode::Rud, DeliveryMode::Rod] {
        read_at_random(&config(true), mode, Faults::default(), 1);
    }
}

#[test]
fn random_ranges_are_read_over_a_channel_that_loses_copies_trims_marks_and_reorders() {
    let faults = Faults { lose: 0.03, copy: 0.05, trim: 0.05, mark: 0.1 };
    for seed in 0..6 {
        read_at_random(&config(true), DeliveryMode::Rud, faults, seed);
        let ordered = FepConfig { rod_receive: RodReceive::Reorder, ..config(true) };
        read_at_random(&ordered, DeliveryMode::Rod, faults, seed);
        let inferring = config(false).with_zones(|zone| zone.pdc.infer_loss = true);
        read_at_random(&inferring, DeliveryMode::Rud, Faults { trim: 0.0, ..faults }, seed);
    }
}

#[test]
fn random_ranges_are_read_under_every_kind_of_congestion_control() {
    let faults = Faults { trim: 0.02, lose: 0.01, ..Faults::default() };
    for name in ["smartt", "dctcp", "rccc", "nscc+rccc", "constant"] {
        let config = harness::config_with(&CcChoice::parse(name).unwrap(), MTU, true);
        read_at_random(&config, DeliveryMode::Rud, faults, 7);
    }
}

#[test]
fn a_target_answers_with_an_error_what_it_cannot_read() {
    let mut pair = Pair::exposing(&impatient_config(), content(1, 5_000), Rights::READ);
    let private = Exposure { key: 2, from: Some(Addr(7).into()), ..exposure(vec![1; 10], Rights::READ) };
    pair.feps[1].expose(0, private).unwrap();
    pair.feps[1].open_process(3).unwrap();
    let to_0 = pair.connect();
    let to_3 = pair.connect_from(0, ConnectOptions::default().process(3));
    let to_4 = pair.connect_from(0, ConnectOptions::default().process(4));
    let cases = [
        (to_0, read(5_000, 0, 0), None),
        (to_0, read(4_999, 1, 0), None),
        (to_0, read(4_999, 2, 0), Some(ReturnCode::AT_OUT_OF_RANGE)),
        (to_0, read(u64::MAX, 1, 0), Some(ReturnCode::AT_OUT_OF_RANGE)),
        (to_0, read(0, 9_000, 0), Some(ReturnCode::AT_OUT_OF_RANGE)),
        (to_0, Read { key: 1, ..read(0, 1, 0) }, Some(ReturnCode::BAD_MKEY)),
        (to_0, Read { key: 2, ..read(0, 1, 0) }, Some(ReturnCode::PERM_VIOLATION)),
        (to_3, read(0, 1, 0), Some(ReturnCode::BAD_MKEY)),
        (to_4, read(0, 1, 0), Some(ReturnCode::BAD_PID)),
    ];
    for (connection, read, code) in cases {
        let what = format!("{read:?}");
        post_read(&mut pair, connection, read);
        pair.exchange();
        let refused = result(&mut pair).err();
        assert_eq!(refused, code.map(ReadFault::Answered), "{what}");
    }
    post_read(&mut pair, to_0, read(77, 9_000, 0));
    pair.exchange();
    let Some(Completion::Read { result: Err(error), .. }) = pair.feps[0].poll_completion() else { panic!() };
    assert_eq!(
        error.to_string(),
        "reading from offset 77 of memory 0x5eed000000000001: the target answered with return code 0x0c \
         (AT_OUT_OF_RANGE: the range goes beyond the end of the memory)"
    );
}

#[test]
fn memory_for_one_process_is_read_by_no_other_of_the_same_endpoint() {
    let mut pair = Pair::impatient();
    let from = Source { peer: Addr(0), process: 3 };
    pair.feps[1].expose(0, Exposure { from: Some(from), ..exposure(vec![7; 10], Rights::READ) }).unwrap();
    for (process, expected) in
        [(0, Err(ReadFault::Answered(ReturnCode::PERM_VIOLATION))), (3, Ok(vec![7; 10]))]
    {
        let options = ConnectOptions::default();
        let connection = pair.feps[0].connect_of(process, pair.now, Addr(1), options).unwrap();
        post_read(&mut pair, connection, read(0, 10, 0));
        pair.exchange();
        assert_eq!(result(&mut pair), expected, "process {process}");
    }
}

#[test]
fn a_read_longer_than_the_target_s_packets_is_answered_with_unsupported_size() {
    let short = FepConfig { mtu: 500, ..impatient_config() };
    let feps = [fep(0, impatient_config(), 3, Time::ZERO), fep(1, short, 3, Time::ZERO)];
    let mut pair = Pair::of(feps, Time::ZERO);
    pair.feps[1].expose(0, exposure(vec![0; 2_000], Rights::READ)).unwrap();
    let connection = pair.connect();
    post_read(&mut pair, connection, read(0, 501, 0));
    pair.exchange();
    assert_eq!(result(&mut pair), Err(ReadFault::Answered(ReturnCode::UNSUPPORTED_SIZE)));
}

#[test]
fn keys_name_one_memory_of_a_process_at_a_time() {
    let mut pair = Pair::exposing(&impatient_config(), vec![1; 10], Rights::READ);
    let fep = &mut pair.feps[1];
    let again = fep.expose(0, exposure(vec![2; 5], Rights::READ));
    let refused = ExposeError { why: ExposeRefusal::KeyInUse(KEY), buffer: Buffer::Heap(vec![2; 5]) };
    assert_eq!(again, Err(refused));
    let closed = fep.expose(9, exposure(vec![2; 5], Rights::READ)).unwrap_err();
    assert_eq!(closed.why, ExposeRefusal::ProcessNotOpen(9));
    fep.open_process(9).unwrap();
    fep.expose(9, exposure(vec![9; 5], Rights::READ)).unwrap();
    assert_eq!(fep.withdraw(0, KEY), Some(Buffer::Heap(vec![1; 10])));
    assert_eq!(fep.withdraw(0, KEY), None);
    let connection = pair.connect_from(0, ConnectOptions::default().process(9));
    post_read(&mut pair, connection, read(1, 3, 0));
    pair.exchange();
    assert_eq!(result(&mut pair), Ok(vec![9; 3]));
    pair.feps[1].close_process(9).unwrap();
    pair.feps[1].open_process(9).unwrap();
    post_read(&mut pair, connection, read(1, 3, 0));
    pair.exchange();
    assert_eq!(result(&mut pair), Err(ReadFault::Answered(ReturnCode::BAD_MKEY)));
}

/// The response is stored when the memory goes; a request that was lost comes only later.
#[test]
fn no_byte_of_withdrawn_memory_leaves() {
    let mut pair = Pair::exposing(&impatient_config(), vec![7; 3_000], Rights::READ);
    let connection = pair.connect();
    post_read(&mut pair, connection, read(0, 3_000, 0));
    pair.flush(0);
    assert!(!pair.feps[1].take_abandoned());
    assert_eq!(pair.feps[1].withdraw(0, KEY), Some(Buffer::Heap(vec![7; 3_000])));
    assert!(pair.feps[1].take_abandoned(), "frames that have not left are recalled");
    while let Some(transit) = pair.transmit(1) {
        assert_eq!(transit.packet.payload_len, 0);
        pair.arrive(&transit);
    }
    pair.exchange();
    assert_eq!(result(&mut pair), Err(ReadFault::Answered(ReturnCode::BAD_MKEY)));
}

/// All requests of a window are in flight, and each is for a packet.
#[test]
fn requests_count_for_the_bytes_that_they_ask_for() {
    let mut cc = CcChoice::parse("constant").unwrap();
    cc.set("window", "21280").unwrap();
    let network = *impatient_config().zones.default.cc.params();
    let mut pair = Pair::exposing(&FepConfig::new(&cc, &network), vec![7; 100_000], Rights::READ);
    let connection = pair.connect();
    post_read(&mut pair, connection, read(0, 100_000, 0));
    let mut requests: Vec<Transit> = std::iter::from_fn(|| pair.transmit(0)).collect();
    assert_eq!(requests.len(), 20, "of 1,000 bytes and 64 each");
    for (n, transit) in requests.iter().enumerate() {
        let Ses::Standard(request) = &transit.packet.ses else { panic!("{transit:?}") };
        assert_eq!((request.opcode, request.request_length), (Opcode::READ, 1_000));
        assert_eq!((request.buffer_offset, request.msg_id), (n as u64 * 1_000, n as u16));
        assert_eq!((request.match_bits, transit.packet.payload_len), (KEY, 0));
    }
    pair.arrive(&requests.remove(0));
    let answer = pair.transmit(1).expect("a response");
    assert_eq!((answer.packet.payload_len, answer.packet.net.class), (1_000, Class::Data));
    pair.arrive(&answer);
    assert_eq!(std::iter::from_fn(|| pair.transmit(0)).count(), 1, "an answer makes room for a request");
}

/// A switch cuts off the data. The reader sends no NACK, but its request again; and the target keeps the response.
#[test]
fn the_request_of_a_trimmed_response_is_repeated() {
    for class in [Class::Trimmed, Class::TrimmedLastHop] {
        let mut pair = Pair::exposing(&config(true), content(2, 1_000), Rights::READ);
        let connection = pair.connect();
        post_read(&mut pair, connection, read(100, 500, 0));
        pair.flush(0);
        let mut response = pair.transmit(1).unwrap();
        assert!(response.is_response() && response.is_data());
        response.trim(class);
        pair.arrive(&response);
        let again = pair.transmit(0).expect("the request");
        assert!(matches!(&again.packet.pds, Pds::Request(request) if request.retx));
        assert!(pair.transmit(0).is_none(), "and no NACK");
        pair.arrive(&again);
        pair.exchange();
        assert_eq!(result(&mut pair).as_deref(), Ok(&content(2, 1_000)[100..600]));
        assert_eq!(pair.feps[0].counters().trimmed_received, 1);
    }
}

#[test]
fn a_target_repeats_a_response_for_a_copy_of_its_request_or_a_nack_until_it_is_cleared() {
    let mut pair = Pair::exposing(&config(true), content(2, 1_000), Rights::READ);
    let connection = pair.connect();
    post_read(&mut pair, connection, read(0, 1_000, 0));
    let request = pair.transmit(0).unwrap();
    pair.arrive(&request);
    let first = pair.transmit(1).unwrap();
    pair.arrive(&request);
    pair.arrive(&request);
    let second = pair.transmit(1).unwrap();
    assert!(second.is_response() && pair.transmit(1).is_none(), "a response waits for the port once");
    let (Pds::Ack(ack), Pds::Request(of)) = (&first.packet.pds, &request.packet.pds) else { panic!() };
    let code = NackCode::ACK_WITH_DATA;
    let Pds::Nack(nack) = forge::nack(&request.packet, code).pds else { panic!() };
    let nack = Nack { spdcid: of.spdcid, dpdcid: ack.spdcid, psn: of.psn, ..nack };
    let net = Network { class: Class::Control, ..request.packet.net };
    let nack = Packet { net, payload_len: 0, pds: Pds::Nack(nack), ses: Ses::None };
    let nobody = Packet { net: Network { src: Addr(5), ..net }, ..nack };
    pair.feps[1].on_packet(pair.now, &nobody, Payload::EMPTY);
    assert!(pair.transmit(1).is_none(), "another address");
    pair.feps[1].on_packet(pair.now, &nack, Payload::EMPTY);
    let third = pair.transmit(1).unwrap();
    assert!(third.is_response());
    pair.arrive(&third);
    assert_eq!(result(&mut pair), Ok(content(2, 1_000)));
    let clear = pair.transmit(0).unwrap();
    assert!(matches!(&clear.packet.pds, Pds::Control(c) if c.kind == ControlKind::ClearCommand));
    pair.arrive(&clear);
    pair.arrive(&request);
    let plain = pair.transmit(1).unwrap();
    assert!(matches!(&plain.packet.pds, Pds::Ack(ack) if ack.next == NextHeader::None));
    pair.arrive(&first);
    pair.arrive(&second);
    assert!(pair.completions(0).is_empty(), "copies of a response change nothing");
}

/// Requests clear the responses before them, so that a long read needs hardly any control packet.
#[test]
fn requests_clear_what_has_arrived() {
    let mut pair = Pair::exposing(&config(true), content(3, 2_000_000), Rights::READ);
    let connection = pair.connect();
    post_read(&mut pair, connection, read(0, 2_000_000, 0));
    let done = run(&mut pair, &mut Rng::new(1, 1), Faults::default(), 1);
    assert!(matches!(done[0], Completion::Read { result: Ok(()), retransmissions: 0, .. }));
    let counters = pair.feps[0].counters();
    assert!(counters.control_sent < 100, "{counters:?}");
}

/// A request of one packet for 1,000 bytes, as the only one of a peer that is no endpoint of weft's.
fn forged_read(src: u32, psn: u16) -> Packet {
    let mut packet = Packet { payload_len: 0, ..forge::syn(src, 1, psn, 1_000) };
    let Ses::Standard(header) = &mut packet.ses else { unreachable!() };
    (header.opcode, header.match_bits) = (Opcode::READ, KEY);
    header.flags = header.flags.with(RequestFlags::END_OF_MESSAGE);
    let Pds::Request(request) = &mut packet.pds else { unreachable!() };
    request.clear_psn_offset = -(psn as i16) - 1;
    packet
}

#[test]
fn the_responses_to_one_peer_neither_displace_nor_delay_those_to_another() {
    let limits = Limits { control_queue: 8, ..Limits::default() };
    let mut alone = Alone::new(FepConfig { limits, ..impatient_config() });
    alone.fep.expose(0, exposure(vec![7; 1_000], Rights::READ)).unwrap();
    (0..100).for_each(|psn| alone.arrive(&forged_read(5, psn), &[]));
    alone.arrive(&forged_read(6, 0), &[]);
    let peers: Vec<u32> = alone.transmit_all().iter().map(|packet| packet.net.dst.0).collect();
    assert_eq!(peers.len(), 101);
    assert_eq!(peers.iter().position(|peer| *peer == 6), Some(1), "{peers:?}");
}

/// A reader whose first copy was trimmed takes an answer to that copy for a late one.
#[test]
fn a_response_that_waits_answers_the_latest_transmission_of_its_request() {
    let mut pair = Pair::exposing(&config(true), content(2, 1_000), Rights::READ);
    let connection = pair.connect();
    post_read(&mut pair, connection, read(0, 1_000, 0));
    let request = pair.transmit(0).unwrap();
    pair.arrive(&request);
    let Pds::Request(header) = request.packet.pds else { panic!() };
    let (retx, entropy) = (Pds::Request(Request { retx: true, ..header }), Entropy(77));
    let again =
        Packet { net: Network { entropy, ecn: true, ..request.packet.net }, pds: retx, ..request.packet };
    pair.feps[1].on_packet(pair.now, &again, Payload::EMPTY);
    // The network may deliver a copy of the first transmission later than the second one.
    pair.arrive(&request);
    let response = pair.transmit(1).unwrap();
    let Pds::Ack(ack) = &response.packet.pds else { panic!() };
    assert_eq!((ack.retx, ack.ecn, response.packet.net.entropy), (true, true, entropy));
    assert!(pair.transmit(1).is_none(), "a response waits for the port once");
}

#[test]
fn a_peer_makes_a_target_store_no_more_than_its_quota() {
    const QUOTA: u64 = 20_000;
    let limits = Limits { response_bytes_per_peer: QUOTA, ..Limits::default() };
    let mut alone = Alone::new(FepConfig { limits, ..impatient_config() });
    alone.fep.expose(0, exposure(vec![7; 1_000], Rights::READ)).unwrap();
    let mut ask = |src, psn| {
        alone.arrive(&forged_read(src, psn), &[]);
        alone.transmit_all()
    };
    let mut stored = 0;
    for psn in 0..100 {
        let answers = ask(5, psn);
        assert_eq!(answers.len(), 1);
        match &answers[0].pds {
            Pds::Ack(_) => stored += 1,
            Pds::Nack(nack) => assert_eq!(nack.code, NackCode::NO_GTD_DEL_AVAIL),
            other => panic!("{other:?}"),
        }
    }
    assert!((15..20).contains(&stored), "{stored} responses of 1,000 bytes");
    assert!(matches!(ask(6, 0)[0].pds, Pds::Ack(_)), "other peers have their own share");
    // The clear of all that was stored, with the next request.
    let mut next = forged_read(5, 100);
    let Pds::Request(header) = &mut next.pds else { unreachable!() };
    header.clear_psn_offset = stored - 1 - 100;
    alone.arrive(&next, &[]);
    assert!(matches!(alone.transmit_all()[0].pds, Pds::Ack(_)), "cleared responses make room");
}

#[test]
fn a_reader_that_exceeds_the_target_s_quota_gets_all_its_bytes() {
    let limits = Limits { response_bytes_per_peer: 12_000, ..Limits::default() };
    let mut pair = Pair::exposing(&FepConfig { limits, ..config(true) }, content(4, 400_000), Rights::READ);
    let connection = pair.connect();
    post_read(&mut pair, connection, read(0, 400_000, 0));
    let done = run(&mut pair, &mut Rng::new(1, 1), Faults::default(), 1);
    assert_eq!(outcome(done.into_iter().next().unwrap()).1, Ok(content(4, 400_000)));
    assert!(pair.feps[0].counters().nacks_received > 0, "the quota was reached");
}

#[test]
fn a_read_of_a_dead_peer_fails_and_is_explained() {
    let mut pair = Pair::exposing(&impatient_config(), vec![0; 10], Rights::READ);
    let connection = pair.connect();
    post_read(&mut pair, connection, read(3, 5_000, 8));
    let mut alone = pair.without_peer();
    alone.transmit_all();
    let text = alone.fep.explain(alone.now).join("\n");
    assert!(text.contains("it reads from offset 3 of memory 0x5eed000000000001"), "{text}");
    let done = alone.run(Span::from_ms(1_000), |_| None);
    let [Completion::Read { context: 8, result: Err(error), .. }, Completion::Closed { .. }] = &done[..]
    else {
        panic!("{done:?}")
    };
    assert!(matches!(error.why, ReadFault::Failed(Failure::NoAnswer { .. })), "{error}");
    assert_eq!(alone.leaks(), [""; 0]);
}

#[test]
fn a_read_ends_when_it_is_cancelled_aborted_or_closed() {
    let mut cc = CcChoice::parse("constant").unwrap();
    cc.set("window", "2000").unwrap();
    let config = FepConfig::new(&cc, impatient_config().zones.default.cc.params());
    let mut pair = Pair::exposing(&config, vec![7; 9_000], Rights::READ);
    let connection = pair.connect();
    let first = post_read(&mut pair, connection, read(0, 9_000, 1));
    let second = post_read(&mut pair, connection, read(0, 9_000, 2));
    let request = pair.transmit(0).unwrap();
    assert_eq!(pair.feps[0].cancel_read(first), Err(CallError::TooLate));
    assert_eq!(pair.feps[0].cancel_read(second), Ok(()));
    assert_eq!(outcome(pair.completions(0).remove(0)), (2, Err(ReadFault::Cancelled)));
    pair.feps[0].abort(pair.now, connection).unwrap();
    pair.arrive(&request);
    pair.exchange();
    let done = pair.completions(0);
    let [Completion::Read { context: 1, result: Err(error), .. }, Completion::Closed { result: Ok(()), .. }] =
        &done[..]
    else {
        panic!("{done:?}")
    };
    assert_eq!(error.why, ReadFault::Answered(ReturnCode::CANCELLED));
    assert_eq!(error.why.to_string(), "cancelled after a part of it had been sent");
    let closing = pair.connect();
    post_read(&mut pair, closing, read(0, 9_000, 3));
    pair.feps[0].close(pair.now, closing).unwrap();
    pair.exchange();
    let mut done = pair.completions(0);
    assert!(matches!(done.pop(), Some(Completion::Closed { result: Ok(()), .. })));
    assert_eq!(outcome(done.remove(0)), (3, Ok(vec![7; 9_000])));
    assert_eq!((pair.leaks(0), pair.leaks(1)), (vec![], vec![]));
}

/// A peer that does not know READ, or breaks the rules, acknowledges the request and sends nothing, or other bytes.
#[test]
fn an_acknowledgement_without_the_data_completes_no_read() {
    let mut pair = Pair::exposing(&impatient_config(), vec![7; 600], Rights::READ);
    let connection = pair.connect();
    post_read(&mut pair, connection, read(0, 600, 0));
    pair.flush(0);
    let response = pair.transmit(1).unwrap();
    let mut short = response.packet;
    let Ses::ResponseWithData(header) = &mut short.ses else { panic!() };
    header.payload_len = 599;
    let fep = &mut pair.feps[0];
    fep.on_packet(pair.now, &short, Payload::Bytes(&[1; 599]));
    assert_eq!((fep.counters().ignored, fep.poll_completion().is_none()), (1, true));
    let Pds::Ack(ack) = response.packet.pds else { panic!() };
    let pds = Pds::Ack(Ack { next: NextHeader::None, ..ack });
    let bare = Packet { payload_len: 0, pds, ses: Ses::None, ..response.packet };
    fep.on_packet(pair.now, &bare, Payload::EMPTY);
    assert_eq!(result(&mut pair), Err(ReadFault::NoData));
}

/// Endpoint 1 sends a long message of its own while it answers a long read.
#[test]
fn responses_take_turns_with_messages() {
    let mut cc = CcChoice::parse("constant").unwrap();
    cc.set("window", "100000000").unwrap();
    let mut pair = Pair::exposing(&FepConfig::new(&cc, &params()), vec![7; 200_000], Rights::READ);
    let connection = pair.connect();
    post_read(&mut pair, connection, read(0, 200_000, 0));
    pair.flush(0);
    let back = pair.connect_from(1, ConnectOptions::default());
    pair.feps[1].post_send(back, untagged(vec![1; 200_000], 0)).unwrap();
    let order: Vec<bool> =
        std::iter::from_fn(|| pair.transmit(1)).map(|transit| transit.is_response()).collect();
    assert_eq!(order.len(), 2 * 200_000usize.div_ceil(MTU as usize));
    assert!(order.chunks(2).all(|two| two == [true, false]), "{order:?}");
}

/// Ports that can send from several buffers need not copy the payload.
#[test]
fn responses_share_the_exposed_region() {
    let region = Region::allocate(1_000).unwrap();
    let buffer = Buffer::Region(region.slice(0, 1_000).unwrap());
    let mut pair = Pair::new(&config(true));
    pair.feps[1].expose(0, Exposure { key: KEY, buffer, base: 0, rights: Rights::READ, from: None }).unwrap();
    let connection = pair.connect();
    post_read(&mut pair, connection, read(100, 500, 0));
    pair.flush(0);
    let response = pair.feps[1].poll_transmit(pair.now).unwrap();
    let shared = pair.feps[1].share_payload(&response.payload);
    assert_eq!((shared.map(|slice| slice.len()), response.payload.len()), (Some(500), 500));
}

/// The response is copied from the exposed region to the frame, and from the frame to the reader's region.
#[test]
fn regions_are_read_over_a_port() {
    let (left, right) = memory_pair(&MemoryConfig::default()).unwrap();
    let side = |own, port| worker(own, port, &config(true), LinkConfig::default(), false);
    let mut pair = WorkerPair::new(side(0, left), side(1, right));
    let (memory, place) = (Region::allocate(100_000).unwrap(), Region::allocate(50_000).unwrap());
    memory.slice(0, 100_000).unwrap().write(0, &content(5, 100_000));
    let buffer = Buffer::Region(memory.slice(0, 100_000).unwrap());
    pair.fep(1)
        .expose(0, Exposure { key: KEY, buffer, base: 0, rights: Rights::READ, from: Some(Addr(0).into()) })
        .unwrap();
    let connection = pair.connect(0, DeliveryMode::Rud);
    let buffer = Buffer::Region(place.slice(0, 50_000).unwrap());
    let read = Read { buffer, key: KEY, offset: 12_345, context: 1 };
    pair.fep(0).post_read(connection, read).unwrap();
    let mut results = Results::default();
    while results.read.is_empty() {
        pair.turn();
        results.collect(&mut pair);
        assert!(pair.now.since(START) < Span::from_ms(100), "{:?}", pair.a.fep().explain(pair.now));
    }
    let [(0, 1, buffer, Ok(()))] = &results.read[..] else { panic!("{results:?}") };
    let mut bytes = vec![0; 50_000];
    buffer.payload(0, 50_000).copy_to(&mut bytes);
    assert!(bytes == content(5, 100_000)[12_345..62_345]);
}

#[test]
fn nothing_is_read_or_received_into_memory_that_can_only_be_sent() {
    let mut pair = Pair::exposing(&config(true), vec![1; 10], Rights::READ);
    let connection = pair.connect();
    let shared = || Buffer::Bytes(Box::new(bytes::Bytes::from_static(b"constant")));
    let refused = pair.feps[0].post_read(connection, Read { buffer: shared(), ..read(0, 0, 0) }).unwrap_err();
    assert_eq!((refused.error, refused.buffer), (CallError::ReadOnly, shared()));
    let receive = weft_stack::fep::Receive { buffer: shared(), ..harness::receive_any(0) };
    let refused = pair.feps[0].post_receive(receive).unwrap_err();
    assert_eq!((refused.error, refused.buffer), (CallError::ReadOnly, shared()));
}
