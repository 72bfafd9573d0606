//! A peer can use up only its own share of a target, and windows and numbers hold at their limits.

use core::num::NonZeroU32;
use std::ops::RangeInclusive;

use crate::endpoint_ends::close_command;
use crate::harness::forge::syn;
use crate::harness::{Alone, Pair, SHORT_RTO, Transit, fep, impatient_config, message, params, receive_any};
use weft_stack::buffer::Buffer;
use weft_stack::cc::{CcChoice, CcParams};
use weft_stack::fep::{
    CallError, Completion, ConnectOptions, Exposure, FepConfig, Limits, Receive, ReceiveError, Resource,
    Rights, Send, SendError, Zone,
};
use weft_stack::packet::Packet;
use weft_stack::pdc::{BYTES_PER_PACKET, PdcConfig, RodReceive};
use weft_stack::ses::{Matching, ReceiveId};
use weft_stack::wire::pds::{AckRequest, DeliveryMode, Destination, NackCode, NextHeader, Pds, Psn};
use weft_stack::wire::ses::{Opcode, Placement, RequestFlags, ReturnCode, Ses, StandardRequest};
use weft_stack::{Span, Time};

#[test]
fn a_peer_uses_up_only_its_own_quota_of_pdcs_and_messages() {
    let limits = Limits {
        pdcs_per_peer: 4,
        unexpected_bytes_per_peer: 10_000,
        unexpected_messages_per_peer: 80,
        control_queue: 50,
        ..Limits::default()
    };
    let mut alone = Alone::new(FepConfig { limits, ..impatient_config() });
    for pdc in 1..=1_000 {
        alone.arrive(&syn(5, pdc, 0, 3_000), &[0; 100]);
        for msg_id in 1..10 {
            alone.arrive(&syn(5, pdc, msg_id, 3_000), &[0; 100]);
        }
    }
    let held = ["40 messages on their way in", "4 PDCs of peers"];
    assert_eq!(alone.leaks(), held, "all keep their places, and 3 times 3,000 bytes fit in 10,000");
    assert_eq!(alone.fep.footprint().payload, 9_000);
    assert_eq!(alone.transmit_all().len(), 50);
    // Messages of no bytes count as well.
    for msg_id in 0..1_000 {
        alone.arrive(&Packet { payload_len: 0, ..syn(7, 1, msg_id, 0) }, &[]);
    }
    let held = ["120 messages on their way in", "5 PDCs of peers"];
    assert_eq!(alone.leaks(), held, "a peer has 80 places");
    alone.transmit_all();
    alone.arrive(&syn(6, 1, 0, 3_000), &[0; 100]);
    let answer = alone.transmit().unwrap();
    assert!(matches!(answer.pds, Pds::Ack(_)), "other peers have their own share: {answer:?}");
}

/// Whether the message of 1 byte in `packet`, sent to process `process`, is acknowledged.
fn is_taken(alone: &mut Alone, mut packet: Packet, process: u16) -> bool {
    let Ses::Standard(header) = &mut packet.ses else { unreachable!() };
    (header.pid_on_fep, header.request_length) = (process, 1);
    packet.payload_len = 1;
    alone.arrive(&packet, &[0]);
    let answers = alone.transmit_all();
    match answers[0].pds {
        Pds::Ack(_) => true,
        Pds::Nack(nack) => {
            assert!(matches!(nack.code, NackCode::NO_SES_MSG_AVAIL | NackCode::NO_PKT_BUFFER), "{nack:?}");
            false
        }
        other => panic!("{other:?}"),
    }
}

/// Two peers send as many messages as they may, which nobody receives.
#[test]
fn peers_whose_messages_nobody_receives_leave_room_for_those_of_others() {
    let limits = Limits {
        processes: 1,
        unexpected_messages: 1_000,
        unexpected_messages_per_peer: 500,
        ..Limits::default()
    };
    let mut alone = Alone::new(FepConfig { limits, ..impatient_config() });
    let mut send =
        |peer, messages| (0..messages).filter(|n| is_taken(&mut alone, syn(peer, 1, *n, 1), 0)).count();
    assert_eq!(send(5, 600), 500, "its quota");
    assert_eq!(send(6, 600), 250, "half of the rest");
    assert_eq!([7, 8, 9].map(|peer| send(peer, 100)), [100, 75, 38], "everybody gets some");
    // A message that meets a receive needs no room, be it one packet or more.
    assert!(!is_taken(&mut alone, syn(5, 2, 0, 1), 0));
    for len in [1, 150] {
        let receive = Receive { matching: Matching::Tagged { tag: 3, ignore: 0 }, ..receive_any(200) };
        alone.fep.post_receive(receive).unwrap();
        let mut packet = syn(5, 100 + len, 0, len.into());
        let Ses::Standard(header) = &mut packet.ses else { unreachable!() };
        (header.opcode, header.match_bits) = (Opcode::TAGGED_SEND, 3);
        packet.payload_len = u32::from(len).min(100);
        alone.arrive(&packet, &[0; 100][..usize::from(len.min(100))]);
        let answers = alone.transmit_all();
        assert!(matches!(answers[0].pds, Pds::Ack(_)), "{len} bytes: {answers:?}");
    }
}

/// A packet of `src`, number `psn` of PDC `pdc`, that begins a message of two packets for a process that is not there.
fn for_nobody(src: u32, pdc: u16, psn: u32) -> Packet {
    let mut packet = syn(src, pdc, 0, 200);
    let Ses::Standard(header) = &mut packet.ses else { unreachable!() };
    // Numbers that have nothing to do with the order of the packets.
    (header.pid_on_fep, header.msg_id) = (9, (psn.wrapping_mul(40_503) >> 3) as u16);
    let Pds::Request(request) = &mut packet.pds else { unreachable!() };
    // All answers so far have arrived.
    (request.psn, request.clear_psn_offset) = (Psn(psn), -1);
    request.destination = Destination::Syn { use_reserved: false, psn_offset: psn as u16 };
    packet
}

/// Each packet begins a message for nobody: a peer keeps no more notes of them here than early packets, and each of its PDCs
/// goes on.
#[test]
fn notes_of_refused_messages_are_bounded_for_each_peer() {
    const PDCS: u16 = 40;
    const RANGE: u32 = 2_048;
    let limits = Limits { unexpected_bytes_per_peer: 100_000, ..Limits::default() };
    let config = FepConfig { limits, ..impatient_config() }.with_zones(|zone| zone.pdc.mp_range = RANGE);
    // In order, and each behind one that is missing.
    for first in [0, 1] {
        let mut alone = Alone::new(config.clone());
        let mut busy = 0;
        for pdc in 1..=PDCS {
            for psn in (first..4_000).filter(|psn| first == 0 || *psn < RANGE) {
                alone.arrive(&for_nobody(5, pdc, psn), &[0; 100]);
                let answers = alone.transmit_all();
                match &answers[0].pds {
                    Pds::Ack(_) => {}
                    Pds::Nack(nack) if first == 1 => {
                        assert_eq!(nack.code, NackCode::NO_GTD_DEL_AVAIL);
                        busy += 1;
                    }
                    other => panic!("packet {psn} of PDC {pdc}: {other:?}"),
                }
            }
        }
        if first == 0 {
            let held = alone.fep.footprint().targets / u64::from(PDCS);
            assert!(held < 8_000, "{held} bytes for each PDC");
        } else {
            let noted = u32::from(PDCS) * (RANGE - 1) - busy;
            assert!((2_000..2_100 + 16 * u32::from(PDCS)).contains(&noted), "{noted} of 100,000 bytes");
        }
        // Another peer has its own room, and every PDC goes on: with a message for nobody and one for somebody.
        let psn = if first == 0 { 4_000 } else { 0 };
        for (peer, pdc) in (1..=PDCS).map(|pdc| (5, pdc)).chain([(6, 1)]) {
            let psn = if peer == 6 { 0 } else { psn };
            alone.arrive(&for_nobody(peer, pdc, psn), &[0; 100]);
            assert!(matches!(alone.transmit_all()[0].pds, Pds::Ack(_)), "PDC {pdc} of {peer} goes on");
        }
    }
}

/// A message of one packet for nobody needs no note, so it is answered also where the peer has no room for another.
#[test]
fn whole_messages_for_nobody_are_answered_where_there_is_no_room_for_notes() {
    let limits = Limits { unexpected_bytes_per_peer: 3_000, ..Limits::default() };
    let config = FepConfig { limits, ..impatient_config() }.with_zones(|zone| zone.pdc.mp_range = 256);
    let mut alone = Alone::new(config);
    // The first packet is missing.
    let mut code = |packet: &Packet| {
        alone.arrive(packet, &[0; 100]);
        match &alone.transmit_all()[0].pds {
            Pds::Ack(ack) => {
                assert_eq!(ack.next, NextHeader::Response);
                None
            }
            Pds::Nack(nack) => Some(nack.code),
            other => panic!("{other:?}"),
        }
    };
    let noted = (1..200).take_while(|psn| code(&for_nobody(5, 1, *psn)).is_none()).count() as u32;
    assert!((60..80).contains(&noted), "{noted} notes of 48 bytes in 3,000, and 16 more");
    let mut whole = for_nobody(5, 1, noted + 1);
    let Ses::Standard(header) = &mut whole.ses else { unreachable!() };
    header.request_length = 100;
    assert_eq!(code(&whole), None, "it has no rest to be refused");
    assert_eq!(code(&for_nobody(5, 1, noted + 2)), Some(NackCode::NO_GTD_DEL_AVAIL));
}

/// A message that overtakes another one may need room for both, even if receives are there: while there is none it is put off
/// until the other one has arrived. In their order both need none.
#[test]
fn a_message_that_overtakes_is_put_off_while_there_is_no_room_for_those_before_it() {
    let limits = Limits { processes: 3, unexpected_messages: 24, ..Limits::default() };
    for is_full in [false, true] {
        let mut alone = Alone::new(FepConfig { limits, ..impatient_config() });
        (1..3).for_each(|process| alone.fep.open_process(process).unwrap());
        // Two processes receive nothing, and many peers send to them.
        for process in (1..3).filter(|_| is_full) {
            for peer in (10..30).chain(10..30) {
                let pdc = alone.fep.open_targets() as u16 + 1;
                is_taken(&mut alone, syn(peer, pdc, 0, 1), process);
            }
        }
        for context in 0..2 {
            alone.fep.post_receive(Receive { context, ..receive_any(100) }).unwrap();
        }
        let mut send = |number: u16| {
            alone.arrive(&syn(5, 99, number, 100), &[number as u8 + 1; 100]);
            match alone.transmit_all()[0].pds {
                Pds::Ack(_) => true,
                Pds::Nack(nack) => {
                    assert_eq!(nack.code, NackCode::NO_SES_MSG_AVAIL);
                    false
                }
                other => panic!("{other:?}"),
            }
        };
        let taken = [1, 0, 1].map(&mut send);
        assert_eq!(taken, [!is_full, true, true], "is full: {is_full}");
        let received: Vec<_> = alone
            .completions()
            .into_iter()
            .map(|done| match done {
                Completion::Received { context, buffer: Buffer::Heap(bytes), result: Ok(()), .. } => {
                    (context, bytes)
                }
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(received, [(0, vec![1; 100]), (1, vec![2; 100])]);
    }
}

/// Processes that receive nothing hold no more together than the endpoint may keep, and no process is without its part.
#[test]
fn unexpected_messages_are_bounded_for_all_processes_together() {
    const BYTES: u64 = 100_000;
    let limits = Limits {
        processes: 20,
        unexpected_bytes: BYTES,
        unexpected_bytes_per_peer: 10_000,
        unexpected_messages: 4_000,
        ..Limits::default()
    };
    let mut alone = Alone::new(FepConfig { limits, ..impatient_config() });
    (1..20).for_each(|process| alone.fep.open_process(process).unwrap());
    let full = CallError::Limit { what: Resource::Processes, limit: 20 };
    assert_eq!(alone.fep.open_process(20), Err(full));
    for process in 0..19 {
        for peer in 0..10 {
            for n in 0..110 {
                let pdc = 1 + process * 10;
                let mut packet = syn(100 + peer, pdc, n, 100);
                let Ses::Standard(header) = &mut packet.ses else { unreachable!() };
                header.pid_on_fep = process;
                alone.arrive(&packet, &[0; 100]);
            }
        }
        alone.transmit_all();
        assert!(alone.fep.footprint().payload <= BYTES);
    }
    let held = alone.fep.footprint().payload;
    assert!(held > BYTES * 9 / 10, "{held} of {BYTES} bytes are in use");
    // The last process has its part: a fortieth of the bytes, and as many messages.
    let taken = (0..100).filter(|n| is_taken(&mut alone, syn(7, 1, *n, 1), 19)).count();
    assert_eq!(taken, 50, "of its 100 messages a peer leaves as many as it takes");
    // What a process held is free again when it is closed.
    for process in 0..19 {
        alone.fep.close_process(process).unwrap();
    }
    let held = alone.fep.footprint().payload;
    assert!(held <= 100, "{held}");
    alone.fep.open_process(0).unwrap();
    assert!(is_taken(&mut alone, syn(8, 1, 0, 1), 0));
}

#[test]
fn a_process_cannot_have_more_kinds_of_receives_than_a_message_is_compared_with_at_once() {
    let mut alone = Alone::impatient();
    alone.fep.open_process(1).unwrap();
    let receive = |ignore| Receive { matching: Matching::Tagged { tag: 0, ignore }, ..receive_any(10) };
    let refused: Vec<_> =
        (0..65_000).filter_map(|mask| alone.fep.post_receive(receive(mask)).err()).collect();
    assert_eq!(refused.len(), 65_000 - 64 - 8);
    let kinds = CallError::Limit { what: Resource::ReceiveKinds, limit: 64 };
    assert!(refused.iter().all(|refused| refused.error == kinds && refused.buffer.len() == 10));
    for _ in 0..1_000 {
        alone.fep.post_receive(receive(20)).expect("a kind that is there");
    }
    alone.fep.post_receive_of(1, receive(99_999)).expect("another process has its own kinds");
}

const KEY: u64 = 7;

/// Exposes some memory under [`KEY`].
pub(crate) fn expose(alone: &mut Alone) {
    let buffer = Buffer::Heap(vec![0; 1_000]);
    let exposure = Exposure { key: KEY, buffer, base: 0, rights: Rights::ALL, from: None };
    alone.fep.expose(0, exposure).unwrap();
}

/// A peer may have many writes under way to the memory of a process that is closed.
#[test]
fn writes_to_a_process_that_is_closed_end_in_several_calls() {
    let mut alone = Alone::new(impatient_config());
    expose(&mut alone);
    // The first packet comes last, so that all of them count.
    assert!((1..=100).chain([0]).all(|psn| begins(&mut alone, &half_write(5, 1, psn))));
    alone.fep.begin_close_process(0).unwrap();
    let mut calls = 1;
    while !alone.fep.clear_away(0, &mut { 4096 }) {
        calls += 1;
        assert!(alone.fep.open_process(0).is_err(), "its number is not free");
        assert!(calls < 100, "it does not end");
    }
    assert_eq!(calls, 26, "four in each");
    alone.fep.open_process(0).unwrap();
    expose(&mut alone);
    // The rest of each goes to no other process.
    for psn in 101..=201 {
        let mut rest = half_write(5, 1, psn);
        let Ses::Standard(header) = &mut rest.ses else { unreachable!() };
        header.msg_id = psn as u16 - 101;
        header.placement = Placement::Continue { payload_len: 100, msg_offset: 100 };
        alone.arrive(&rest, &[0; 100]);
        let answer = alone.transmit_all()[0].ses;
        assert!(
            matches!(answer, Ses::Response(response) if response.return_code == ReturnCode::BAD_MKEY),
            "{psn}: {answer:?}"
        );
    }
}

/// Errors are kept until the peer has cleared them, as the answers to its reads are.
#[test]
fn a_peer_makes_a_target_store_no_more_errors_than_its_quota() {
    let limits = Limits { response_bytes_per_peer: 1_000, ..Limits::default() };
    let faulty: [fn(&mut StandardRequest); 5] = [
        // It is longer than its receive.
        |_| {},
        |header| header.pid_on_fep = 9,
        |header| header.opcode = Opcode::WRITE,
        |header| header.opcode = Opcode::ATOMIC,
        // Its operands are not as long as it says, which shows only when it is to be performed.
        |header| {
            (header.opcode, header.flags) = (Opcode::ATOMIC, RequestFlags::WHOLE_MESSAGE);
            header.match_bits = KEY;
        },
    ];
    for make_faulty in faulty {
        let mut alone = Alone::new(FepConfig { limits, ..impatient_config() });
        expose(&mut alone);
        (0..200).for_each(|_| _ = alone.fep.post_receive(receive_any(99)).unwrap());
        let mut send = |src, msg_id, clear| {
            let mut packet = syn(src, 1, msg_id, 100);
            let Pds::Request(request) = &mut packet.pds else { unreachable!() };
            request.clear_psn_offset = clear;
            let Ses::Standard(header) = &mut packet.ses else { unreachable!() };
            make_faulty(header);
            alone.arrive(&packet, &[0; 100]);
            let answers = alone.transmit_all();
            assert_eq!(answers.len(), 1);
            match &answers[0].pds {
                Pds::Ack(ack) => assert_eq!(ack.next, NextHeader::Response),
                Pds::Nack(nack) => assert_eq!(nack.code, NackCode::NO_GTD_DEL_AVAIL),
                other => panic!("{other:?}"),
            }
            matches!(answers[0].pds, Pds::Ack(_))
        };
        let stored = (0..100).filter(|n| send(5, *n, -(*n as i16) - 1)).count();
        assert!((5..50).contains(&stored), "{stored} errors");
        assert!(send(6, 0, -1), "other peers have their own share");
        let first = stored as u16;
        assert!(send(5, first, -1), "cleared errors make room");
    }
}

/// The messages between them are delivered in their order, none is given up, and each error is reported.
#[test]
fn a_sender_whose_errors_exceed_the_target_s_quota_hears_all_of_them() {
    let too_long = Err(SendError::Answered(ReturnCode::TOO_LONG));
    let cases = [(2_500, 2_500, Ok(())), (2_500, 2_499, too_long), (900, 899, too_long)];
    for (mode, (len, room, heard)) in
        [DeliveryMode::Rud, DeliveryMode::Rod].into_iter().flat_map(|mode| cases.map(|case| (mode, case)))
    {
        let limits = Limits { response_bytes_per_peer: 300, ..Limits::default() };
        let mut pair = Pair::new(&FepConfig { limits, ..impatient_config() });
        let [nobody, somebody] =
            [4, 0].map(|process| pair.connect_from(0, ConnectOptions::default().mode(mode).process(process)));
        for context in 0..50 {
            let receive = Receive { context, ..receive_any(room) };
            pair.feps[1].post_receive(receive).unwrap();
            pair.post_send(nobody, message(len, 0));
            pair.post_send(somebody, message(len, 1));
        }
        let done = pair.run(Time::ZERO + Span::from_ms(500), |_| Some(Span::from_us(5)));
        assert!(pair.feps[0].counters().nacks_received > 0, "the quota was reached");
        let mut sent = [0, 0];
        for (_, completion) in done {
            let Completion::Sent { context, result, .. } = completion else { panic!("{completion:?}") };
            let expected = [Err(SendError::Answered(ReturnCode::BAD_PID)), heard];
            assert_eq!(result, expected[context as usize]);
            sent[context as usize] += 1;
        }
        assert_eq!((sent, pair.completions(1).len()), ([50, 50], 50), "{:?}", pair.explain());
    }
}

/// One peer opens PDC after PDC and sends all packets of each except the first.
#[test]
fn a_peer_uses_up_only_its_own_quota_of_early_packets() {
    const QUOTA: u64 = 100_000;
    const LEN: u32 = 1_000;
    let limits = Limits { unexpected_bytes_per_peer: QUOTA, ..Limits::default() };
    let mut alone = Alone::new(FepConfig { limits, rod_receive: RodReceive::Reorder, ..impatient_config() });
    let packet = |src, pdc, psn| {
        let mut packet = Packet { payload_len: LEN, ..syn(src, pdc, psn, LEN) };
        let Pds::Request(request) = &mut packet.pds else { unreachable!() };
        request.mode = DeliveryMode::Rod;
        packet
    };
    let mut give = |src, pdc, psn| {
        alone.arrive(&packet(src, pdc, psn), &[7; LEN as usize]);
        alone.transmit_all()
    };
    let is_refusal = |pds: &Pds| matches!(pds, Pds::Nack(nack) if nack.code == NackCode::ROD_OOO);
    let refused = |answers: &[Packet]| answers.len() == 1 && is_refusal(&answers[0].pds);
    let mut kept = 0;
    for pdc in 1..=20 {
        for psn in 1..=20 {
            kept += u64::from(!refused(&give(5, pdc, psn)));
        }
    }
    assert!((QUOTA / 2..QUOTA).contains(&(kept * u64::from(LEN))), "{kept} packets of {LEN} bytes");
    assert!(give(6, 1, 1).is_empty(), "other peers have their own share");
    // Delivered packets make room: the target takes all of the first PDC, and later packets of the last one.
    assert!(refused(&give(5, 20, 1)));
    assert!(
        give(5, 1, 0).len() >= 20,
        "the first packet and the packets that waited for it are acknowledged"
    );
    assert!(give(5, 20, 1).is_empty());
}

/// Peers, each of which stays below its own quota, make the target keep no more early packets and responses together than
/// the endpoint may, and every one of them gets some.
#[test]
fn many_peers_make_a_target_keep_no_more_than_the_endpoint_may() {
    const ALL: u64 = 100_000;
    const LEN: u32 = 1_000;
    let limits = Limits { reorder_bytes: ALL, response_bytes: 2_000, ..Limits::default() };
    let mut alone = Alone::new(FepConfig { limits, rod_receive: RodReceive::Reorder, ..impatient_config() });
    let keep = |alone: &mut Alone, src, pdc, psn| {
        let mut packet = Packet { payload_len: LEN, ..syn(src, pdc, psn, LEN) };
        let Pds::Request(request) = &mut packet.pds else { unreachable!() };
        request.mode = DeliveryMode::Rod;
        alone.arrive(&packet, &[7; LEN as usize]);
        alone.transmit_all().is_empty()
    };
    let mut total = 0;
    // Each takes half of what the one before it has left: at least two packets, for five peers.
    for peer in 5..10 {
        let kept = (1..=200).filter(|psn| keep(&mut alone, peer, 1, *psn)).count() as u64;
        assert!(kept > 0, "peer {peer} gets nothing: {total} packets are kept");
        total += kept;
        assert!(total * u64::from(LEN) < ALL, "{total} packets of {LEN} bytes");
    }
    assert!(total * u64::from(LEN) > ALL / 2, "{total} packets of {LEN} bytes");
    // What a peer's packets had is free again once they are delivered.
    (5..10).for_each(|peer| assert!(!keep(&mut alone, peer, 1, 0), "the first packet is acknowledged"));
    let again = (1..=200).filter(|psn| keep(&mut alone, 20, 1, *psn)).count() as u64;
    assert!(again * u64::from(LEN) > ALL / 3, "{again} packets of {LEN} bytes");

    let mut store = |src, msg_id: u16| {
        let mut packet = syn(src, 2, msg_id, 100);
        let Pds::Request(request) = &mut packet.pds else { unreachable!() };
        request.clear_psn_offset = -(msg_id as i16) - 1;
        let Ses::Standard(header) = &mut packet.ses else { unreachable!() };
        header.pid_on_fep = 9;
        alone.arrive(&packet, &[0; 100]);
        matches!(alone.transmit_all()[0].pds, Pds::Ack(_))
    };
    let stored: Vec<usize> = (30..40).map(|peer| (0..200).filter(|n| store(peer, *n)).count()).collect();
    assert!(stored[0] > stored[1] && stored[1] > stored[2], "each takes no more than it leaves: {stored:?}");
    assert!(stored.iter().all(|stored| *stored > 0), "the first of each PDC is always answered: {stored:?}");
}

/// The target's window may be smaller than the first burst: it refuses the rest, and gets it again. `psn_offset` has 12
/// bits.
#[test]
fn a_first_burst_may_be_4096_packets_whatever_window_the_target_has() {
    let network = CcParams { mtu: 1, network_rtt: Span::from_us(5), ..params() };
    let mut cc = CcChoice::parse("constant").unwrap();
    cc.set("window", "100000000").unwrap();
    for (ours, theirs) in [(512, 128), (32_640, 128), (32_640, 32_640), (128, 512)] {
        let feps = [(0, ours), (1, theirs)].map(|(n, mp_range)| {
            let change = |zone: &mut Zone| {
                zone.pdc = PdcConfig { mp_range, rto_init: SHORT_RTO, ..zone.pdc };
            };
            fep(n, FepConfig::new(&cc, &network).with_zones(change), 3, Time::ZERO)
        });
        let mut pair = Pair::of(feps, Time::ZERO);
        let connection = pair.connect();
        pair.post_send(connection, message(10_000, 0));
        let mut burst: Vec<_> = std::iter::from_fn(|| pair.transmit(0)).collect();
        assert_eq!(burst.len(), 4_096.min(ours as usize));
        // The last packet arrives first, and so on.
        burst.reverse();
        burst.iter().for_each(|transit| pair.arrive(transit));
        pair.exchange();
        let mut done = pair.completions(0);
        while done.is_empty() {
            let at = pair.next_timer().unwrap();
            assert!(at.since(Time::ZERO) < SHORT_RTO.times(200), "{:?}", pair.explain());
            pair.expire_at(0, at);
            pair.exchange();
            done = pair.completions(0);
        }
        assert!(
            matches!(&done[..], [Completion::Sent { result: Ok(()), .. }]),
            "{ours} to {theirs}: {done:?}"
        );
    }
}

#[test]
fn message_numbers_wrap_around_while_the_first_message_still_waits() {
    let mut pair = Pair::impatient();
    let connection = pair.connect();
    for number in 0..70_000u64 {
        if number > 0 {
            let (buffer, matching) = (Buffer::Heap(vec![0; 3]), Matching::Tagged { tag: 1, ignore: 0 });
            let receive = Receive { buffer, from: None, matching, context: number };
            pair.feps[1].post_receive(receive).unwrap();
        }
        let tag = Some(u64::from(number > 0));
        pair.post_send(connection, Send { tag, ..message(1 + (number % 3) as usize, number) });
        pair.exchange();
        let Some(Completion::Sent { context, result: Ok(()), .. }) = pair.feps[0].poll_completion() else {
            panic!("message {number} is not acknowledged")
        };
        assert_eq!(context, number);
        let received = match pair.feps[1].poll_completion() {
            Some(Completion::Received { context, len, result: Ok(()), .. }) => {
                Some((context, u64::from(len)))
            }
            _ => None,
        };
        assert_eq!(received, (number > 0).then_some((number, 1 + number % 3)));
    }
}

/// The port takes nothing while a peer's packets arrive.
#[test]
fn a_full_control_queue_is_counted_and_explained() {
    let limits = Limits { control_queue: 3, ..Limits::default() };
    let mut alone = Alone::new(FepConfig { limits, ..impatient_config() });
    for pdc in 1..=5 {
        alone.arrive(&syn(5, pdc, 0, 100), &[0; 100]);
    }
    assert_eq!(alone.transmit_all().len(), 3);
    let counters = *alone.fep.counters();
    assert_eq!((counters.acks_sent, counters.control_dropped), (5, 2));
    assert_eq!(
        alone.fep.explain(alone.now),
        [
            "endpoint 0: 2 acknowledgements, NACKs and control packets were dropped: 3 may wait for the port, and of one peer as \
             many as it leaves to others"
        ]
    );
}

/// A PDC makes room for another one, which gets its PDCID. An acknowledgement of the first still waits, and that of the second has
/// found the queue full.
#[test]
fn no_acknowledgement_of_a_former_pdc_asks_for_another_one() {
    let limits = Limits { half_open_pdcs: 2, control_queue: 2, ..Limits::default() };
    let mut alone = Alone::new(FepConfig { limits, ..impatient_config() });
    alone.arrive(&syn(5, 1, 0, 100), &[0; 100]);
    alone.transmit_all();
    // The second copy has an acknowledgement of its own, which asks nothing.
    for pdc in [2, 2, 3] {
        alone.arrive(&syn(6, pdc, 0, 100), &[0; 100]);
    }
    assert!(
        alone.leaks().contains(&"2 PDCs of peers".to_owned()),
        "the third one is there instead of the second"
    );
    let acks = alone.transmit_all().into_iter().map(|packet| match packet.pds {
        Pds::Ack(ack) => (ack.dpdcid.0, ack.spdcid.0, ack.request),
        other => panic!("{other:?}"),
    });
    assert!(acks.eq([(2, 2, AckRequest::Clear), (2, 2, AckRequest::None)]));
    // The third one gets the same PDCID.
    alone.arrive(&syn(6, 3, 0, 100), &[0; 100]);
    let ack = alone.transmit().unwrap();
    assert!(matches!(ack.pds, Pds::Ack(ack) if (ack.dpdcid.0, ack.spdcid.0) == (3, 2)), "{ack:?}");
}

/// One connection cancels its message while it waits for its turn.
#[test]
fn connections_that_share_a_window_take_turns() {
    let mut cc = CcChoice::parse("constant").unwrap();
    cc.set("window", "2128").unwrap();
    let mut pair = Pair::new(&FepConfig::new(&cc, impatient_config().zones.default.cc.params()));
    let connections: Vec<_> = (0..6).map(|_| pair.connect()).collect();
    let sends: Vec<_> = connections.iter().map(|&c| pair.post_send(c, message(4_000, 0))).collect();
    while pair.put_on_wire(0) {}
    assert_eq!(pair.wire.len(), 2, "the window has room for two packets");
    pair.feps[0].cancel_send(sends[2]).unwrap();
    let mut order = Vec::new();
    while !pair.wire.is_empty() {
        let transit = pair.wire.remove(0);
        let Pds::Request(request) = &transit.packet.pds else { panic!("{transit:?}") };
        order.push(request.spdcid.0);
        pair.now += Span::from_ns(100);
        pair.arrive(&transit);
        // Packets that are not acknowledged at once are acknowledged with the next.
        pair.flush(1);
        while pair.put_on_wire(0) {}
    }
    assert_eq!(order, [1, 2, 4, 5, 6].repeat(4));
}

/// Packet `psn` of PDC `pdc` of process `initiator` of peer `src`: the first of two of a message for `process`.
fn half_for(src: u32, initiator: u32, pdc: u16, psn: u32, process: u16) -> Packet {
    let mut packet = syn(src, pdc, psn as u16, 200);
    let Ses::Standard(header) = &mut packet.ses else { unreachable!() };
    (header.pid_on_fep, header.initiator) = (process, initiator);
    let Pds::Request(request) = &mut packet.pds else { unreachable!() };
    request.psn = Psn(psn);
    packet
}

/// Whether the first packet of a message is acknowledged.
pub(crate) fn begins(alone: &mut Alone, packet: &Packet) -> bool {
    alone.arrive(packet, &[0; 100]);
    match alone.transmit_all()[0].pds {
        Pds::Ack(_) => true,
        Pds::Nack(nack) => {
            assert_eq!(nack.code, NackCode::NO_SES_MSG_AVAIL);
            false
        }
        other => panic!("{other:?}"),
    }
}

/// All of them end in one turn when the PDC is closed.
#[test]
fn a_pdc_has_no_more_incomplete_messages_than_twice_its_window() {
    let limits = Limits { processes: 3, ..Limits::default() };
    let config = FepConfig { limits, ..impatient_config() }.with_zones(|zone| zone.pdc.mp_range = 128);
    let mut alone = Alone::new(config);
    (1..3).for_each(|process| alone.fep.open_process(process).unwrap());
    let message = |psn: &u32| begins(&mut alone, &half_for(5, 0, 1, *psn, *psn as u16 % 3));
    let begun = (0..900).take_while(message).count();
    assert_eq!(begun, 256, "to all processes together");
    assert_eq!(alone.leaks(), ["256 messages on their way in", "1 PDCs of peers"]);
    let again = half_for(5, 0, 1, 256, 0);
    assert!(!begins(&mut alone, &again));
    // One that is complete makes room for another one.
    let mut second = half_for(5, 0, 1, 257, 0);
    let Ses::Standard(header) = &mut second.ses else { unreachable!() };
    (header.msg_id, header.placement) = (0, Placement::Continue { payload_len: 100, msg_offset: 100 });
    assert!(begins(&mut alone, &second) && begins(&mut alone, &again));
    assert!(!begins(&mut alone, &half_for(5, 0, 1, 258, 0)));
    assert!(begins(&mut alone, &half_for(5, 0, 2, 0, 0)), "another PDC has its own");
}

/// Messages that meet a receive for many, or that were dropped, take no room of those without a receive.
#[test]
fn incomplete_messages_are_bounded_for_each_peer() {
    const PDCS: u16 = 20;
    let limits =
        Limits { unexpected_messages: 1_000, unexpected_messages_per_peer: 100, ..Limits::default() };
    for drops in [false, true] {
        let mut alone = Alone::new(FepConfig { limits, ..impatient_config() });
        if !drops {
            let buffer = Buffer::BytesMut(Box::new(bytes::BytesMut::zeroed(1 << 20)));
            let receive = Receive { buffer, ..receive_any(0) };
            alone.fep.post_receive_many_of(0, receive, NonZeroU32::new(200).unwrap()).unwrap();
        }
        let mut send = |peer, initiator, pdc: u16, messages: u32| {
            let begin = |psn: &u32| {
                let begun = begins(&mut alone, &half_for(peer, initiator, pdc, *psn, 0));
                if begun && drops {
                    let (claim, _) = alone.fep.claim(0, None, Matching::Untagged).unwrap().unwrap();
                    alone.fep.discard(0, claim).unwrap();
                }
                begun
            };
            (0..messages).filter(begin).count()
        };
        let begun: usize = (1..=PDCS).map(|pdc| send(5, 0, pdc, 50)).sum();
        assert_eq!(begun, 16 * usize::from(PDCS) + 100, "16 of each PDC, and its limit");
        assert_eq!(send(5, 0, 100, 50), 16, "further PDCs have few");
        assert_eq!(send(5, 1, 101, 100), 16 + 50, "another process of the peer has half of as many again");
        assert_eq!(send(6, 0, 1, 200), 116, "and another peer its own");
    }
}

/// As [`half_for`], but of a write to the memory of [`KEY`].
pub(crate) fn half_write(src: u32, pdc: u16, psn: u32) -> Packet {
    let mut packet = half_for(src, 0, pdc, psn, 0);
    let Ses::Standard(header) = &mut packet.ses else { unreachable!() };
    (header.opcode, header.match_bits) = (Opcode::WRITE, KEY);
    packet
}

/// All of them end in one turn when the PDC is closed, whatever the order in which they began.
#[test]
fn a_pdc_has_no_more_writes_under_way_than_twice_its_window() {
    for in_order in [true, false] {
        let mut alone = Alone::new(
            impatient_config().with_zones(|zone| zone.pdc = PdcConfig { mp_range: 128, ..zone.pdc }),
        );
        expose(&mut alone);
        let first = u32::from(!in_order);
        // A window at a time, of which the first packet comes last.
        let mut psns: Vec<u32> = (0..896).collect();
        psns.chunks_mut(128).for_each(|window| window.rotate_left(first as usize));
        let begun = psns.iter().take_while(|psn| begins(&mut alone, &half_write(5, 1, **psn))).count();
        assert_eq!(begun, 256, "in order: {in_order}");
    }
}

/// They are counted beside messages, by the same limits.
#[test]
fn writes_under_way_are_bounded_for_each_peer_and_for_all_together() {
    const PDCS: u16 = 20;
    let limits =
        Limits { unexpected_messages: 1_000, unexpected_messages_per_peer: 100, ..Limits::default() };
    let mut alone = Alone::new(FepConfig { limits, ..impatient_config() });
    expose(&mut alone);
    let mut send = |peer, pdc: u16, psns: RangeInclusive<u32>| {
        psns.filter(|psn| begins(&mut alone, &half_write(peer, pdc, *psn))).count()
    };
    let begun: usize = (1..=PDCS).map(|pdc| send(5, pdc, 0..=49)).sum();
    assert_eq!(
        begun,
        16 * usize::from(PDCS) + 100,
        "16 of each PDC whose packets come in order, and its limit"
    );
    assert_eq!(send(5, 100, 1..=50), 0, "further PDCs begin none out of order");
    assert_eq!(send(5, 101, 0..=49), 16, "and few in order");
    let counted: Vec<usize> = (6..40).map(|peer| send(peer, 1, 1..=200)).collect();
    assert_eq!(counted[..8], [100; 8], "other peers have their own");
    assert_eq!(counted[8..12], [50, 25, 12, 6], "and leave as many as they take of what there is");
    assert!(counted.iter().sum::<usize>() < 900, "{counted:?}");
}

/// Messages of a process without room for entries of them. Those that have been acknowledged before their turn are taken all the same.
#[test]
fn receives_for_many_messages_take_as_many_as_they_are_allowed_to() {
    let mut alone = Alone::new(impatient_config());
    alone.fep.limit_many(0, 3);
    let buffer = Buffer::BytesMut(Box::new(bytes::BytesMut::zeroed(100)));
    let receive = Receive { buffer, context: 1, ..receive_any(0) };
    let many = alone.fep.post_receive_many_of(0, receive, NonZeroU32::MIN).unwrap();
    alone.fep.post_receive(Receive { context: 2, ..receive_any(1) }).unwrap();
    let taken = |alone: &mut Alone, psn| is_taken(alone, half_for(5, 0, 1, psn, 0), 0);
    let received = |alone: &mut Alone| {
        let ends = std::iter::from_fn(|| alone.fep.poll_completion());
        let context = |end| match end {
            Completion::Received { context, .. } => context,
            other => panic!("{other:?}"),
        };
        ends.map(context).collect::<Vec<_>>()
    };
    assert!([0, 1].iter().all(|psn| taken(&mut alone, *psn)));
    // Two arrive before their turn, while a third message may be taken.
    assert!([3, 4, 2].iter().all(|psn| taken(&mut alone, *psn)));
    assert_eq!(received(&mut alone), [1; 5]);
    // None goes to the receive behind, and none is kept.
    assert!(![5, 6, 5].iter().any(|psn| taken(&mut alone, *psn)));
    alone.fep.allow_many(0, 2);
    assert!(!taken(&mut alone, 5), "the two from before count");
    alone.fep.allow_many(0, 1);
    assert!(taken(&mut alone, 5) && !taken(&mut alone, 6));
    assert_eq!(received(&mut alone), [1]);
    // Other receives are not held.
    alone.fep.cancel_receive(many).unwrap();
    assert!(taken(&mut alone, 6));
    assert_eq!(received(&mut alone), [1, 2]);
    assert!(taken(&mut alone, 7), "it waits for a receive");
    assert_eq!(received(&mut alone), [0; 0]);
}

/// A receive for many messages of so many bytes together.
fn post_many(alone: &mut Alone, len: usize, matching: Matching) -> ReceiveId {
    let buffer = Buffer::BytesMut(Box::new(bytes::BytesMut::zeroed(len)));
    let receive = Receive { buffer, matching, ..receive_any(0) };
    alone.fep.post_receive_many_of(0, receive, NonZeroU32::MIN).unwrap()
}

/// Packet `psn` of PDC `pdc` of peer `src`: the second of two of message `msg_id`.
fn other_half(src: u32, pdc: u16, psn: u32, msg_id: u16) -> Packet {
    let mut packet = half_for(src, 0, pdc, psn, 0);
    let Ses::Standard(header) = &mut packet.ses else { unreachable!() };
    (header.msg_id, header.placement) = (msg_id, Placement::Continue { payload_len: 100, msg_offset: 100 });
    packet
}

/// The ends of receives: whether all of the message has arrived.
fn ends(alone: &mut Alone) -> Vec<bool> {
    let completions = std::iter::from_fn(|| alone.fep.poll_completion());
    let is_whole = |completion| match completion {
        Completion::Received { result, .. } => result.is_ok(),
        other => panic!("{other:?}"),
    };
    completions.map(is_whole).collect()
}

/// Messages of two packets of which the second does not come: they take nothing of what messages of others may have.
#[test]
fn messages_that_do_not_end_hold_receives_for_many_messages_for_nobody_else() {
    const ALLOWED: u64 = 64;
    let mut alone = Alone::new(impatient_config());
    alone.fep.limit_many(0, ALLOWED);
    post_many(&mut alone, 1 << 20, Matching::Untagged);
    let begin = |alone: &mut Alone, src| {
        (0..ALLOWED as u32).take_while(|psn| begins(alone, &half_for(src, 0, 1, *psn, 0))).count()
    };
    let begun: Vec<_> = (5..25).map(|src| begin(&mut alone, src)).collect();
    assert_eq!(begun[..4], [32, 16, 8, 4], "no more than it leaves to others");
    assert_eq!(begun[4..], [4; 16], "and each is sure of four");
    // All that is allowed is there for messages that end, of these peers as of others.
    let whole = |alone: &mut Alone, src, psn| is_taken(alone, half_for(src, 0, 1, psn, 0), 0);
    assert!((32..48).all(|psn| whole(&mut alone, 5, psn)));
    assert!((0..47).all(|psn| whole(&mut alone, 100, psn)));
    assert!(
        begins(&mut alone, &half_for(100, 0, 1, 47, 0)) && begins(&mut alone, &other_half(100, 1, 48, 47))
    );
    assert_eq!(ends(&mut alone), [true; ALLOWED as usize]);
    assert!(!whole(&mut alone, 100, 49) && !begins(&mut alone, &half_for(100, 0, 1, 49, 0)));
    assert!(!whole(&mut alone, 101, 0) && !begins(&mut alone, &half_for(101, 0, 1, 0, 0)));
    // Those that have begun end all the same, and count then, whether all of them arrives or not.
    assert!((0..32).all(|msg_id| begins(&mut alone, &other_half(5, 1, 48 + u32::from(msg_id), msg_id))));
    alone.arrive(&close_command(6, 1, 16), &[]);
    alone.transmit_all();
    let ended = ends(&mut alone);
    assert_eq!(ended, [[true; 32].as_slice(), &[false; 16]].concat());
    alone.fep.allow_many(0, 48);
    assert!(!whole(&mut alone, 100, 49));
    alone.fep.allow_many(0, 1);
    assert!(whole(&mut alone, 100, 49) && !whole(&mut alone, 100, 50));
}

/// Messages that begin before their turn, while receives for many messages take none.
#[test]
fn messages_that_come_early_are_refused_only_if_a_receive_for_many_messages_could_take_them() {
    let tagged = |tag| Matching::Tagged { tag, ignore: 0 };
    // None, one, and so many that they are looked up.
    for others in [0, 20] {
        let mut alone = Alone::new(impatient_config());
        alone.fep.limit_many(0, 0);
        let mut psn = 0;
        let mut is_early_taken = |alone: &mut Alone, tag: Option<u64>| {
            // The packet before it never arrives.
            psn += 1;
            let mut packet = half_for(5, 0, psn as u16, 1, 0);
            let Ses::Standard(header) = &mut packet.ses else { unreachable!() };
            if let Some(tag) = tag {
                (header.opcode, header.match_bits) = (Opcode::TAGGED_SEND, tag);
            }
            is_taken(alone, packet, 0)
        };
        for tag in 100..100 + others {
            alone.fep.post_receive(Receive { matching: tagged(tag), ..receive_any(1) }).unwrap();
        }
        assert!(is_early_taken(&mut alone, Some(7)) && is_early_taken(&mut alone, None), "{others}");
        let many = [7, 7, 8].map(|tag| post_many(&mut alone, 100, tagged(tag)));
        assert!(!is_early_taken(&mut alone, Some(7)) && !is_early_taken(&mut alone, Some(8)), "{others}");
        assert!(is_early_taken(&mut alone, Some(9)) && is_early_taken(&mut alone, None), "{others}");
        alone.fep.cancel_receive(many[0]).unwrap();
        assert!(!is_early_taken(&mut alone, Some(7)), "{others}");
        alone.fep.cancel_receive(many[1]).unwrap();
        assert!(is_early_taken(&mut alone, Some(7)) && !is_early_taken(&mut alone, Some(8)), "{others}");
        assert_eq!(ends(&mut alone), [false; 2], "they were cancelled");
        // One that has taken all that it can is none any more.
        alone.fep.allow_many(0, 1);
        let mut last = half_for(6, 0, 1, 0, 0);
        let Ses::Standard(header) = &mut last.ses else { unreachable!() };
        (header.opcode, header.match_bits) = (Opcode::TAGGED_SEND, 8);
        header.request_length = 100;
        alone.arrive(&last, &[0; 100]);
        alone.transmit_all();
        assert_eq!(ends(&mut alone), [true], "{others}");
        assert!(is_early_taken(&mut alone, Some(8)), "{others}");
    }
}

/// A long part of a message has arrived when its receive comes, so that it is copied in pieces once all is there. Its sender hears
/// at once how much the receive takes, as that of any other message.
#[test]
fn the_sender_of_a_message_that_is_copied_in_pieces_hears_how_much_was_taken() {
    for longest in [u32::MAX, 100] {
        for (room, taken) in [(500, Some(500)), (3_000, None)] {
            let mut pair = Pair::impatient();
            pair.feps[1].spread_copies(longest);
            let connection = pair.connect();
            pair.post_send(connection, message(3_000, 0));
            let packets: Vec<_> = std::iter::from_fn(|| pair.transmit(0)).collect();
            assert_eq!(packets.len(), 3);
            packets[..2].iter().for_each(|packet| pair.arrive(packet));
            pair.feps[1].post_receive(receive_any(room)).unwrap();
            pair.arrive(&packets[2]);
            assert_eq!(pair.feps[1].has_copies(), longest == 100);
            let answers: Vec<_> = std::iter::from_fn(|| pair.transmit(1)).collect();
            let responses: Vec<_> = answers
                .iter()
                .filter_map(|transit| match transit.packet.ses {
                    Ses::Response(response) => Some((response.return_code, response.modified_length)),
                    _ => None,
                })
                .collect();
            assert_eq!(
                responses,
                taken.map(|taken| (ReturnCode::TOO_LONG, taken)).into_iter().collect::<Vec<_>>()
            );
            answers.iter().for_each(|answer| pair.arrive(answer));
            pair.exchange();
            let heard = taken.map_or(Ok(()), |_| Err(SendError::Answered(ReturnCode::TOO_LONG)));
            assert_eq!(pair.sent_result(), heard);
            while !pair.feps[1].copy(0, &mut { 200 }) {}
            let received = pair.completions(1);
            let [Completion::Received { buffer: Buffer::Heap(bytes), result, .. }] = &received[..] else {
                panic!("{received:?}")
            };
            let cut_off = taken.map_or(Ok(()), |room| Err(ReceiveError::Truncated { len: 3_000, room }));
            assert_eq!((*result, bytes), (cut_off, &vec![7; room]));
        }
    }
}

/// A connection has had 10,000 messages waiting, and a window of 2,000 packets, all of which were lost.
#[test]
fn a_connection_gives_back_the_memory_that_messages_and_packets_in_flight_have_needed() {
    let mut cc = CcChoice::parse("constant").unwrap();
    cc.set("window", &(2_000 * params().wire_mtu()).to_string()).unwrap();
    let config = FepConfig::new(&cc, &params()).with_zones(|zone| zone.pdc.mp_range = 2_048);
    let mut pair = Pair::new(&config);
    let connection = pair.connect();
    let of_an_exchange = |pair: &mut Pair, messages: usize, loses: bool| {
        for _ in 0..messages {
            pair.post_send(connection, message(params().mtu as usize, 0));
        }
        let (begin, mut most, mut done) = (pair.now, 0, 0);
        let end = begin + Span::from_ms(1_000);
        while pair.now.is_before(end) {
            let lost_until = begin + Span::from_us(if loses { 100 } else { 0 });
            let next = pair.now + Span::from_us(500);
            let link =
                |transit: &Transit| (!transit.sent_at.is_before(lost_until)).then_some(Span::from_us(5));
            done += pair.run(next, link).len();
            pair.now = next;
            most = most.max(pair.feps[0].footprint().connections);
        }
        assert_eq!(done, messages);
        (pair.feps[0].footprint().connections, most)
    };
    let (before, _) = of_an_exchange(&mut pair, 1, false);
    let (after, most) = of_an_exchange(&mut pair, 10_000, true);
    let needed = before + 10_000 * 8 + 2_000 * 32;
    let allowed = before + 10_000 * 16 + 2_048 * BYTES_PER_PACKET + 2_048 / 8;
    assert!((needed..=allowed).contains(&most), "{most} bytes, {before} before");
    // Room for 128 packets stays, and a bit for each packet of the window.
    assert!(after <= before + 128 * 32 + 2_048 / 8, "{after} bytes, {before} before");
}
