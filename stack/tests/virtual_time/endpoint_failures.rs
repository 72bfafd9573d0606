//! An endpoint whose peer is dead, refuses its packets, or cannot be reached over the path that was chosen.

use crate::harness::forge::nack;
use crate::harness::{Alone, NO_LEAKS, Pair, SHORT_RTO, impatient_config, message, params};
use weft_stack::cc::{CcChoice, CcParams};
use weft_stack::event::{Event, Recorder};
use weft_stack::fep::{CallError, Completion, ConnectOptions, Failure, FepConfig, SendError};
use weft_stack::packet::{Addr, Payload};
use weft_stack::pdc::RodReceive;
use weft_stack::wire::pds::{ControlKind, DeliveryMode, NackCode, PdcId, Pds, Psn};
use weft_stack::{Span, Time};

#[test]
fn a_peer_that_never_answers_fails_the_connection_after_63_timeouts() {
    let mut alone = Alone::impatient();
    let connection = alone.connect();
    let ids: Vec<_> = (0..3).map(|i| alone.post_send(connection, message(2_500, i))).collect();
    let mut first = None;
    let mut sent = 0;
    let done = alone.run(Span::from_ms(1), |packet| {
        let Pds::Request(request) = &packet.pds else { panic!("{packet:?}") };
        first.get_or_insert(request.psn);
        sent += u32::from(first == Some(request.psn));
        None
    });
    assert_eq!(sent, 17, "after 0, 1, 3, 7, 11, … timeouts");
    let failure = Failure::NoAnswer {
        pdc: PdcId(1),
        peer: Addr(1),
        psn: first.unwrap(),
        waited: SHORT_RTO.times(63),
        sent: 17,
    };
    let mut completions = done.iter();
    for id in ids {
        let Some(Completion::Sent { id: done, result, .. }) = completions.next() else { panic!("{done:?}") };
        assert_eq!((*done, *result), (id, Err(SendError::Failed(failure))));
    }
    let Some(Completion::Closed { id, result, .. }) = completions.next() else { panic!("{done:?}") };
    assert_eq!((*id, *result), (connection, Err(failure)));
    assert!(completions.next().is_none());
    assert_eq!(alone.leaks(), NO_LEAKS);
    assert_eq!(alone.fep.close(alone.now, connection), Err(CallError::NotOpen));
    assert_eq!(alone.fep.post_send(connection, message(1, 0)).unwrap_err().error, CallError::NotOpen);
}

#[test]
fn closing_fails_if_the_peer_has_died() {
    let mut pair = Pair::impatient();
    let connection = pair.connect();
    pair.post_send(connection, message(10, 0));
    pair.exchange();
    pair.feps[0].close(pair.now, connection).unwrap();
    let mut alone = pair.without_peer();
    let done = alone.run(Span::from_ms(1), |_| None);
    let closed = |c: &Completion| {
        matches!(c, Completion::Closed { result: Err(Failure::NoAnswer { sent: 17, .. }), .. })
    };
    assert!(done.iter().any(closed), "{done:?}");
    assert_eq!(alone.leaks(), NO_LEAKS);
}

/// An initiator's reaction to a NACK code.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Reaction {
    /// It gives the PDC up.
    Close,
    /// It retransmits the packet at once.
    Retransmit,
    /// It retransmits the packet one timeout after the NACK.
    Pause,
    /// It leaves the packet to the retransmission timer.
    Timer,
}

/// An open implementation closes the PDC after 0E 0F 10 11 13 15 16 19 and retransmits after the others. The pauses are
/// this implementation's choice.
const REACTIONS: [(u8, Reaction); 28] = [
    (0x01, Reaction::Retransmit),
    (0x02, Reaction::Retransmit),
    (0x03, Reaction::Retransmit),
    (0x04, Reaction::Pause),
    (0x05, Reaction::Pause),
    (0x06, Reaction::Pause),
    (0x07, Reaction::Pause),
    (0x08, Reaction::Pause),
    (0x09, Reaction::Pause),
    (0x0a, Reaction::Pause),
    (0x0b, Reaction::Pause),
    (0x0c, Reaction::Retransmit),
    (0x0d, Reaction::Retransmit),
    (0x0e, Reaction::Close),
    (0x0f, Reaction::Close),
    (0x10, Reaction::Close),
    (0x11, Reaction::Close),
    (0x12, Reaction::Retransmit),
    (0x13, Reaction::Close),
    (0x14, Reaction::Retransmit),
    (0x15, Reaction::Pause),
    (0x16, Reaction::Close),
    (0x17, Reaction::Retransmit),
    (0x18, Reaction::Timer),
    (0x19, Reaction::Close),
    (0x1a, Reaction::Retransmit),
    (0xfd, Reaction::Retransmit),
    (0xff, Reaction::Close),
];

/// The reaction to `code` as the answer to the first packet of a message.
fn reaction_to(code: NackCode) -> Reaction {
    let mut alone = Alone::impatient();
    let connection = alone.connect();
    alone.post_send(connection, message(100, 0));
    let first = alone.transmit().expect("the message");
    let Pds::Request(request) = &first.pds else { panic!("{first:?}") };
    let refused_at = Time::ZERO + Span::from_us(2);
    alone.now = refused_at;
    alone.arrive(&nack(&first, code), &[]);
    if let Some(again) = alone.transmit() {
        let Pds::Request(again) = &again.pds else { panic!("{again:?}") };
        assert!(again.psn == request.psn && again.retx);
        return Reaction::Retransmit;
    }
    match &alone.completions()[..] {
        [
            Completion::Sent {
                result: Err(SendError::Failed(Failure::Refused { code: told, psn, .. })), ..
            },
            Completion::Closed { result: Err(_), .. },
        ] => {
            assert_eq!((*told, *psn), (code, request.psn));
            assert_eq!(alone.leaks(), NO_LEAKS);
            return Reaction::Close;
        }
        [] => {}
        other => panic!("{other:?}"),
    }
    let paused = alone.fep.explain(refused_at)[0].contains("put off");
    let since = if paused { refused_at } else { Time::ZERO };
    for (at, expected) in [(since + SHORT_RTO.minus(Span::from_ns(1)), false), (since + SHORT_RTO, true)] {
        alone.expire_at(at);
        assert_eq!(alone.transmit().is_some(), expected, "NACK {:#04x}", code.0);
    }
    if paused { Reaction::Pause } else { Reaction::Timer }
}

#[test]
fn an_initiator_reacts_to_every_nack_code_as_listed() {
    for (code, reaction) in REACTIONS {
        assert_eq!(reaction_to(NackCode(code)), reaction, "NACK {code:#04x}");
    }
}

/// The refusal of a packet's first transmission comes after its second has left. Nobody knows yet how that one fares, and
/// with RUD nothing behind it depends on it.
#[test]
fn a_late_refusal_for_lack_of_room_does_not_stop_an_unordered_connection() {
    let mut cc = CcChoice::parse("constant").unwrap();
    cc.set("window", "100000").unwrap();
    let config = FepConfig::new(&cc, impatient_config().zones.default.cc.params());
    let mut pair = Pair::new(&config);
    let connection = pair.connect();
    pair.post_send(connection, message(100, 0));
    let first = pair.transmit(0).unwrap();
    let rto = pair.feps[0].poll_timeout().unwrap();
    pair.expire_at(0, rto);
    let second = pair.transmit(0).unwrap();
    assert!(matches!(second.packet.pds, Pds::Request(request) if request.retx));
    let late = nack(&first.packet, NackCode::NO_PKT_BUFFER);
    pair.feps[0].on_packet(pair.now, &late, Payload::EMPTY);
    pair.post_send(connection, message(100, 1));
    assert!(pair.transmit(0).is_some(), "{:?}", pair.explain());
}

#[test]
fn a_target_that_stays_busy_fails_the_connection() {
    let mut alone = Alone::impatient();
    let connection = alone.connect();
    alone.post_send(connection, message(100, 0));
    let done = alone.run(Span::from_ms(100), |packet| Some(nack(packet, NackCode::NO_PKT_BUFFER)));
    let Some(Completion::Sent { result: Err(SendError::Failed(failure)), .. }) = done.first() else {
        panic!("{done:?}")
    };
    let busy =
        matches!(failure, Failure::Busy { pdc: PdcId(1), peer: Addr(1), code: NackCode::NO_PKT_BUFFER, .. });
    assert!(busy, "{failure:?}");
    assert_eq!(alone.leaks(), NO_LEAKS);
}

/// Each NACK asks for one more transmission, so without a bound the initiator would retransmit for ever.
#[test]
fn a_path_that_trims_every_packet_fails_the_connection() {
    let mut alone = Alone::impatient();
    let connection = alone.connect();
    alone.post_send(connection, message(100, 0));
    let mut sent = 0;
    let done = alone.run(Span::from_ms(100), |packet| {
        sent += 1;
        assert!(sent < 10_000, "the initiator does not give up");
        Some(nack(packet, NackCode::TRIMMED))
    });
    let Some(Completion::Sent { result: Err(SendError::Failed(failure)), .. }) = done.first() else {
        panic!("{done:?}")
    };
    assert!(
        matches!(failure, Failure::Busy { code: NackCode::TRIMMED, psn, .. } if psn != &Psn(0)),
        "{failure:?}"
    );
    assert_eq!(alone.leaks(), NO_LEAKS);
}

/// Two connections share a congestion context and its window. The target pauses one of them with all that it has in
/// flight. The other one has to go on at once, and the first one after the pause.
#[test]
fn a_connection_that_pauses_gives_its_share_of_the_window_back() {
    let mut alone = Alone::impatient();
    let (a, b) = (alone.connect(), alone.connect());
    alone.post_send(a, message(400_000, 0));
    let in_flight = alone.transmit_all();
    alone.post_send(b, message(100, 1));
    assert!(alone.transmit().is_none(), "the window is full");
    let refused_at = Time::ZERO + Span::from_us(2);
    alone.now = refused_at;
    for packet in &in_flight {
        alone.arrive(&nack(packet, NackCode::NO_RESOURCE), &[]);
    }
    let next = alone.transmit().expect("nothing is in flight, so the other connection may send");
    assert!(matches!(&next.pds, Pds::Request(request) if request.spdcid == PdcId(2)));
    alone.expire_at(refused_at + SHORT_RTO);
    let first = alone.transmit().expect("the pause is over");
    assert!(matches!(&first.pds, Pds::Request(request) if request.spdcid == PdcId(1) && request.retx));
}

/// Unanswered probes must become rare, or they add to what keeps the answers away.
#[test]
fn unanswered_probes_back_off() {
    let network = CcParams { mtu: 1_000, network_rtt: Span::from_ns(500), trimming: false, ..params() };
    let base = FepConfig::new(&CcChoice::parse("constant").unwrap(), &network);
    let mut pair = Pair::new(&base.with_zones(|zone| zone.pdc.rto_init = Span::from_ms(1)));
    let connection = pair.connect();
    pair.post_send(connection, message(4_000, 0));
    // Only the first packet arrives, and its answer.
    let first = pair.transmit(0).unwrap();
    pair.arrive(&first);
    while pair.transmit(0).is_some() {}
    let answer = pair.transmit(1).unwrap();
    pair.now += Span::from_ns(500);
    pair.arrive(&answer);
    let mut probes = 0;
    pair.without_peer().run(Span::from_us(900), |packet| {
        probes +=
            u32::from(matches!(&packet.pds, Pds::Control(control) if control.kind == ControlKind::Probe));
        None
    });
    assert!((6..12).contains(&probes), "{probes} probes in 900 µs; the first one is due after about 1 µs");
}

/// A ROD connection uses one path. If that path drops every packet, the connection must find another path.
#[test]
fn a_rod_connection_leaves_a_path_that_has_failed() {
    for rod_receive in [RodReceive::GoBackN, RodReceive::Reorder] {
        let mut pair = Pair::new(&FepConfig { rod_receive, ..impatient_config() });
        let options = ConnectOptions { mode: DeliveryMode::Rod, ..ConnectOptions::default() };
        let connection = pair.connect_from(0, options);
        pair.post_send(connection, message(20_000, 0));
        // The path takes five packets, spread over time, and fails.
        let (mut failed, mut sent) = (None, 0);
        while let Some(transit) = pair.transmit(0) {
            let entropy = transit.packet.net.entropy;
            assert_eq!(*failed.get_or_insert(entropy), entropy, "the connection uses one path");
            sent += 1;
            pair.now += Span::from_ns(90);
            if sent <= 5 {
                pair.arrive(&transit);
            }
        }
        pair.flush(1);
        let recorder = Recorder::default();
        pair.feps[0].subscribe(recorder.subscriber(0).unwrap());
        while pair.leaks(0).iter().any(|what| what.contains("messages")) {
            while let Some(transit) = pair.transmit(0) {
                if matches!(transit.packet.pds, Pds::Request(_)) && Some(transit.packet.net.entropy) != failed
                {
                    pair.arrive(&transit);
                }
            }
            pair.flush(1);
            match pair.feps[0].poll_timeout() {
                Some(at) => pair.expire_at(0, at.latest(pair.now)),
                None => break,
            }
        }
        assert_eq!(pair.sent_result(), Ok(()));
        let resent: Vec<_> = recorder
            .take()
            .iter()
            .filter_map(|record| match record.event {
                Event::DataSent { psn, entropy, .. } if Some(entropy) != failed => Some((entropy, psn)),
                _ => None,
            })
            .collect();
        assert!(resent.len() > 1);
        assert!(resent.iter().all(|(entropy, _)| *entropy == resent[0].0), "one path again: {resent:?}");
        assert!(resent.is_sorted_by_key(|(_, psn)| psn.distance(resent[0].1)), "in order: {resent:?}");
        assert_eq!(pair.feps[1].counters().duplicates_received, 0, "nothing arrives twice");
    }
}
