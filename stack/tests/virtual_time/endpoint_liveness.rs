//! Connections end within the bounds that the documentation states, whatever their peer and the path to it do.

use std::sync::Arc;

use crate::harness::forge::nack;
use crate::harness::{Alone, Pair, SHORT_RTO, Transit, fep, params, receive_any};
use weft_stack::buffer::Buffer;
use weft_stack::cc::{CcChoice, CcParams, Credit, DataSample, ReceiverCc, SenderId};
use weft_stack::event::Recorder;
use weft_stack::fep::{
    BusyTimeout, CallError, Completion, ConnectOptions, ConnectionId, Failure, FepConfig, Limits, Receive,
    Send, SendError,
};
use weft_stack::packet::{Addr, Packet, Payload};
use weft_stack::rng::Rng;
use weft_stack::ses::Matching;
use weft_stack::wire::pds::{ControlKind, DeliveryMode, NackCode, PdcId, Pds, Psn};
use weft_stack::{Span, Time};

/// The time in which a packet reaches the other endpoint.
const DELAY: Span = Span::from_ns(500);
/// The silence after which a peer is given up.
const SILENCE: Span = Span::from_ps(SHORT_RTO.as_ps() * 63);
/// The time without progress after which a connection is given up.
const PATIENCE: Span = Span::from_ms(10);
const LONG_AFTER: Span = Span::from_ms(1_000);

/// A configuration that gives up soon: [`SILENCE`] and [`PATIENCE`]. Packets hold 1,000 bytes.
fn config(cc: &str, trimming: bool) -> FepConfig {
    let network = CcParams { mtu: 1_000, network_rtt: Span::from_us(2), trimming, ..params() };
    let base = FepConfig::new(&CcChoice::parse(cc).unwrap(), &network);
    FepConfig { busy_timeout: PATIENCE.into(), ..base.with_zones(|zone| zone.pdc.rto_init = SHORT_RTO) }
}

fn virtual_message(len: u32) -> Send {
    Send { buffer: Buffer::Virtual(len), tag: None, header_data: 0, context: 0 }
}

fn post_on(pair: &mut Pair, ids: &[ConnectionId], len: u32) {
    for id in ids {
        pair.post_send(*id, virtual_message(len));
    }
}

fn failure(completion: &Completion) -> Option<Failure> {
    match completion {
        Completion::Closed { result: Err(failure), .. } => Some(*failure),
        _ => None,
    }
}

/// When connections were given up, after `since`, and why.
fn failures(done: &[(Time, Completion)], since: Time) -> Vec<(Span, Failure)> {
    done.iter().filter_map(|(at, done)| Some((at.since(since), failure(done)?))).collect()
}

/// Every setting that liveness must not depend on.
fn settings() -> impl Iterator<Item = (&'static str, bool, usize)> {
    let algorithms = ["nscc", "smartt", "constant", "rccc", "nscc+rccc"];
    let cases = algorithms.into_iter().flat_map(|cc| [(cc, true), (cc, false)]);
    cases.flat_map(|(cc, trimming)| [1, 8, 64, 512].map(|connections| (cc, trimming, connections)))
}

#[test]
fn all_connections_to_a_dead_peer_are_given_up_after_the_same_silence() {
    for (cc, trimming, connections) in settings() {
        for greeted in [false, true] {
            let mut pair = Pair::new(&config(cc, trimming));
            let ids: Vec<_> = (0..connections).map(|_| pair.connect()).collect();
            if greeted {
                post_on(&mut pair, &ids, 1);
                let until = pair.now + Span::from_ms(5);
                pair.run(until, |_| Some(DELAY));
                pair.now = until;
            }
            post_on(&mut pair, &ids, 64 * 1024);
            let died = pair.now;
            let done = pair.run(died + LONG_AFTER, |_| None);
            let case = format!("{cc}, trimming {trimming}, {connections} connections, greeted {greeted}");
            let failed = failures(&done, died);
            assert_eq!(failed.len(), connections, "{case}: {:?}", pair.explain());
            for (after, why) in failed {
                assert!(matches!(why, Failure::NoAnswer { .. }), "{case}: {why}");
                assert!((SILENCE..=SILENCE + SHORT_RTO).contains(&after), "{case}: {after}");
            }
            assert_eq!(pair.leaks(0), Vec::<String>::new(), "{case}");
        }
    }
}

/// The time without progress is for peers that answer, so it does not end the wait for one that is dead.
#[test]
fn a_dead_peer_gave_no_answer_even_if_busy_ones_are_given_up_sooner() {
    for trimming in [true, false] {
        let patience = SILENCE.mul_f64(0.25);
        let mut pair = Pair::new(&FepConfig { busy_timeout: patience.into(), ..config("nscc", trimming) });
        let connection = pair.connect();
        post_on(&mut pair, &[connection], 1_000_000);
        let death = Time::ZERO + Span::from_us(20);
        let done = pair.run(death + LONG_AFTER, |transit| transit.sent_at.is_before(death).then_some(DELAY));
        let [(after, Failure::NoAnswer { .. })] = failures(&done, death)[..] else { panic!("{done:?}") };
        let latest = patience + SHORT_RTO.times(4);
        assert!((patience..=latest).contains(&after), "trimming {trimming}: {after}");
    }
}

/// From some moment on long packets vanish, while acknowledgements, probes and short messages still get through.
#[test]
fn a_black_hole_for_long_packets_is_found_and_named() {
    for (cc, trimming, connections) in settings().filter(|(_, _, connections)| *connections <= 64) {
        let mut pair = Pair::new(&config(cc, trimming));
        let ids: Vec<_> = (0..connections).map(|_| pair.connect()).collect();
        let hole = pair.now + Span::from_us(40);
        for id in &ids {
            pair.post_send(*id, virtual_message(1_000_000));
        }
        let mut sent = 0;
        let done = pair.run(Time::ZERO + LONG_AFTER, |transit| {
            sent += u32::from(transit.is_data());
            let passes = transit.packet.payload_len < 500 || transit.sent_at.is_before(hole);
            passes.then_some(DELAY)
        });
        let case = format!("{cc}, trimming {trimming}, {connections} connections");
        let failed = failures(&done, hole);
        assert_eq!(failed.len(), connections, "{case}: {:?}", pair.explain());
        for (after, why) in failed {
            assert!(
                after <= PATIENCE + SHORT_RTO.times(4),
                "{case}: {after}: {why} {:#?}",
                failures(&done, hole)
            );
            // Without trimming, probes are answered.
            let text = why.to_string();
            let named = text.contains("1000 bytes of payload") && text.contains("black hole");
            let blocked = text.contains("though the peer answers") || text.contains("no credit");
            let excused = connections > 1 || cc.contains("rccc");
            assert!(trimming || named || excused && blocked, "{case}: {text}");
        }
        assert!(sent < 100_000, "{case}: {sent} packets");
    }
}

/// A packet that is sent again and again in vain while probes are answered is suspected to be too long for a link. Fewer
/// transmissions, or a peer that answers something else, say nothing about its length.
#[test]
fn a_black_hole_is_suspected_only_where_short_packets_pass() {
    let text = |sent, probed| {
        let (pdc, peer, psn, waited) = (PdcId(1), Addr(2), Psn(3), PATIENCE);
        Failure::NoProgress { pdc, peer, psn, len: 1_000, sent, probed, waited }.to_string()
    };
    let facts = "PSN 3 with 1000 bytes of payload was sent 6 times and does not arrive for 10 ms";
    assert!(text(6, true).contains(facts) && text(6, true).contains("black hole"), "{}", text(6, true));
    assert!(text(6, false).contains(facts) && !text(6, false).contains("black hole"), "{}", text(6, false));
    assert!(!text(5, true).contains("black hole"), "{}", text(5, true));
}

/// A stream of messages that are short enough keeps arriving on the same congestion context.
#[test]
fn traffic_of_its_siblings_does_not_keep_a_stuck_connection_alive() {
    for (cc, trimming) in [("nscc", true), ("nscc", false), ("rccc", true), ("constant", false)] {
        let mut pair = Pair::new(&config(cc, trimming));
        let (stuck, lively) = (pair.connect(), pair.connect());
        pair.post_send(stuck, virtual_message(100_000));
        for _ in 0..2_000 {
            pair.post_send(lively, virtual_message(100));
        }
        let (mut done, mut end) = (Vec::new(), pair.now);
        while failures(&done, Time::ZERO).is_empty() && end.is_before(Time::ZERO + LONG_AFTER) {
            end += Span::from_us(100);
            pair.post_send(lively, virtual_message(100));
            done.extend(pair.run(end, |transit| (transit.packet.payload_len < 500).then_some(DELAY)));
            pair.now = end;
        }
        let failed = failures(&done, Time::ZERO);
        assert_eq!(failed.len(), 1, "{cc}, {trimming}: {failed:?}");
        assert!(failed[0].0 <= PATIENCE + SHORT_RTO.times(20), "{cc}, {trimming}: {failed:?}");
        assert!(pair.feps[0].is_open(lively));
    }
}

/// The others of its context get on, one packet at a time, and it waits for its turn to send again what was lost.
#[test]
fn a_connection_that_waits_with_a_lost_packet_behind_others_is_given_up_in_time() {
    let mut cc = CcChoice::parse("constant").unwrap();
    cc.set("window", "1").unwrap();
    let rto = SHORT_RTO.times(10);
    let network = CcParams { mtu: 1_000, network_rtt: Span::from_us(2), ..params() };
    let base = FepConfig::new(&cc, &network).with_zones(|zone| zone.pdc.rto_init = rto);
    let mut pair = Pair::new(&FepConfig { busy_timeout: PATIENCE.into(), ..base });
    let ids: Vec<_> = (0..300).map(|_| pair.connect()).collect();
    post_on(&mut pair, &ids[..1], 1);
    let greeted = pair.now + Span::from_ms(1);
    pair.run(greeted, |_| Some(DELAY));
    pair.now = greeted;
    post_on(&mut pair, &ids, 100);
    let slow = rto.mul_f64(0.9);
    let done = pair.run(greeted + LONG_AFTER, |transit| (transit.sent_at != greeted).then_some(slow));
    let failed = failures(&done, greeted);
    let given_up = |(_, why): &&(Span, Failure)| !matches!(why, Failure::ClosedByPeer { .. });
    let failed: Vec<_> = failed.iter().filter(given_up).collect();
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert!(failed[0].0 <= PATIENCE + rto.times(4), "{failed:?}");
}

/// Endpoint 1 keeps nothing of messages that nobody receives.
fn with_busy_target(config: FepConfig) -> Pair {
    let limits = Limits { unexpected_bytes_per_peer: 0, ..Limits::default() };
    let busy = FepConfig { limits, ..config.clone() };
    Pair::of([fep(0, config, 3, Time::ZERO), fep(1, busy, 3, Time::ZERO)], Time::ZERO)
}

/// A configuration that waits for a busy target without end, but not for a silent one.
fn patient(cc: &str, trimming: bool) -> FepConfig {
    FepConfig { busy_timeout: BusyTimeout::Endless, ..config(cc, trimming) }
}

/// Every algorithm's kind, with and without trimming, in both modes of delivery.
fn busy_settings() -> impl Iterator<Item = (&'static str, bool, DeliveryMode)> {
    let algorithms = ["nscc", "smartt", "constant", "rccc", "nscc+rccc"].into_iter();
    let cases = algorithms.flat_map(|cc| [true, false].map(|trimming| (cc, trimming)));
    cases.flat_map(|(cc, trimming)| [DeliveryMode::Rud, DeliveryMode::Rod].map(|mode| (cc, trimming, mode)))
}

#[test]
fn a_target_is_waited_for_without_end_where_that_is_asked_for() {
    const HOURS: u64 = 10;
    for (cc, trimming, mode) in busy_settings() {
        let mut pair = with_busy_target(patient(cc, trimming));
        let connection = pair.connect_from(0, ConnectOptions { mode, ..ConnectOptions::default() });
        pair.post_send(connection, virtual_message(100_000));
        let case = format!("{cc}, trimming {trimming}, {mode:?}");
        let freed = Time::ZERO + Span::from_ms(HOURS * 3_600_000);
        let (mut first, mut polls, mut questions) = (0, 0, 0);
        let done = pair.run(freed, |transit| {
            let is_early = transit.sent_at.is_before(Time::ZERO + LONG_AFTER);
            let count = match is_long_data(transit) {
                _ if is_early => &mut first,
                true => &mut polls,
                false => &mut questions,
            };
            *count += u64::from(transit.packet.net.src == Addr(0));
            Some(DELAY)
        });
        assert!(done.is_empty(), "{case}: {done:?}");
        assert!(pair.explain()[0].contains("has been put off by the target"), "{case}: {:?}", pair.explain());
        // A poll a second; where credit is in use, each costs some, and now and then more is asked for.
        let bounded = first <= 200 && (HOURS * 3_600 - 2..=HOURS * 3_600).contains(&polls);
        let counts = format!("{first} packets in the first second, then {polls} and {questions} questions");
        assert!(bounded && questions <= polls / 20, "{case}: {counts}");
        pair.now = freed;
        let buffer = Buffer::Virtual(100_000);
        let receive = Receive { buffer, from: None, matching: Matching::Untagged, context: 0 };
        pair.feps[1].post_receive(receive).unwrap();
        let done = pair.run(freed + LONG_AFTER.times(2), |_| Some(DELAY));
        assert!(
            matches!(done.first(), Some((_, Completion::Sent { result: Ok(()), .. }))),
            "{case}: {done:?}"
        );
    }
}

#[test]
fn a_patient_connection_waits_for_a_busy_target_until_it_is_aborted() {
    for (cc, trimming, mode) in busy_settings() {
        let mut pair = with_busy_target(config(cc, trimming));
        let options = ConnectOptions { mode, ..ConnectOptions::default() };
        let (hasty, patient) = (pair.connect_from(0, options), pair.connect_from(0, options.patient(true)));
        post_on(&mut pair, &[hasty, patient], 100_000);
        let case = format!("{cc}, trimming {trimming}, {mode:?}");
        let later = Time::ZERO + LONG_AFTER.times(20);
        let done = pair.run(later, |_| Some(DELAY));
        assert_eq!(failures(&done, Time::ZERO).len(), 1, "{case}: {done:?}");
        assert!(pair.feps[0].is_open(patient) && !pair.feps[0].is_open(hasty), "{case}");
        pair.now = later;
        pair.feps[0].abort(later, patient).unwrap();
        let done = pair.run(later + LONG_AFTER, |_| Some(DELAY));
        let [(after, Failure::Busy { .. })] = failures(&done, later)[..] else { panic!("{case}: {done:?}") };
        assert!(after <= PATIENCE, "{case}: {after}");
    }
}

#[test]
fn a_patient_connection_that_closes_is_not_waited_for_without_end() {
    let mut pair = with_busy_target(config("nscc", true));
    let options = ConnectOptions::default().patient(true);
    let (closing, waiting) = (pair.connect_from(0, options), pair.connect_from(0, options));
    let receive =
        Receive { buffer: Buffer::Virtual(100), from: None, matching: Matching::Untagged, context: 0 };
    pair.feps[1].post_receive(receive).unwrap();
    post_on(&mut pair, &[closing], 100);
    let later = Time::ZERO + LONG_AFTER;
    let done = pair.run(later, |_| Some(DELAY));
    assert!(done.iter().any(|(_, done)| matches!(done, Completion::Sent { result: Ok(()), .. })), "{done:?}");
    pair.now = later;
    // The target answers what is sent on the other connection, and takes no CLOSE.
    post_on(&mut pair, &[waiting], 100_000);
    pair.feps[0].close(later, closing).unwrap();
    let is_close = |transit: &Transit| match &transit.packet.pds {
        Pds::Control(control) => control.kind == ControlKind::CloseCommand,
        _ => false,
    };
    let mut closes = 0;
    let done = pair.run(later + LONG_AFTER, |transit| {
        closes += usize::from(is_close(transit));
        (!is_close(transit)).then_some(DELAY)
    });
    let closed = |done: &Completion| matches!(done, Completion::Closed { id, .. } if *id == closing);
    assert!(closes > 0 && done.iter().any(|(_, done)| closed(done)), "{closes} commands: {done:?}");
    assert!(pair.feps[0].is_open(waiting));
}

/// A receiver that grants no credit.
struct Mean;

impl ReceiverCc for Mean {
    fn on_demand(&mut self, _: Time, _: SenderId, _: u64) {}
    fn on_data(&mut self, _: Time, _: SenderId, _: &DataSample) {}
    fn on_leave(&mut self, _: Time, _: SenderId) {}
    fn poll_credit(&mut self, _: Time) -> Option<Credit> {
        None
    }
    fn poll_timeout(&self) -> Option<Time> {
        None
    }
    fn outstanding(&self, _: SenderId) -> u64 {
        0
    }
}

/// What ends a connection whose last message has waited in vain.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    /// It is closed, and the message cancelled.
    Close,
    /// It is aborted.
    Abort,
    /// Its abort begins at once, and is done after a time in which others fail.
    LateAbort,
}

#[test]
fn a_connection_that_has_waited_for_long_may_lose_its_first_close() {
    let network = CcParams { mtu: 1_000, network_rtt: Span::from_us(2), ..params() };
    let cc = CcChoice::parse("rccc").unwrap();
    let cc = cc.with_custom_receiver(Arc::new(|_: &CcParams| {
        Box::new(Mean) as Box<dyn ReceiverCc + std::marker::Send>
    }));
    let base = FepConfig::new(&cc, &network).with_zones(|zone| zone.pdc.rto_init = SHORT_RTO);
    let cases = [(End::Close, true), (End::Abort, true), (End::LateAbort, true), (End::LateAbort, false)];
    for (end, patient) in cases {
        let mut pair = Pair::new(&FepConfig { busy_timeout: PATIENCE.into(), ..base.clone() });
        let connection = pair.connect_from(0, ConnectOptions::default().patient(patient));
        // The first message needs no credit.
        pair.feps[1].post_receive(receive_any(100)).unwrap();
        post_on(&mut pair, &[connection], 100);
        let done = pair.run(Time::ZERO + Span::from_ms(1), |_| Some(DELAY));
        assert!(matches!(done[..], [(_, Completion::Sent { result: Ok(()), .. })]), "{done:?}");
        let waiting = pair.post_send(connection, virtual_message(100));
        let wait = if patient { PATIENCE.times(20) } else { PATIENCE.minus(Span::from_ms(2)) };
        let later = Time::ZERO + wait;
        let done = pair.run(later, |_| Some(DELAY));
        assert!(done.is_empty() && pair.feps[0].is_open(connection), "{end:?}: {done:?}");
        pair.now = later;
        match end {
            End::Close => {
                pair.feps[0].close(later, connection).unwrap();
                pair.feps[0].cancel_send(waiting).unwrap();
            }
            End::Abort => pair.feps[0].abort(later, connection).unwrap(),
            End::LateAbort => {
                pair.feps[0].begin_abort(later, connection).unwrap();
                let done = pair.run(later + PATIENCE.times(3), |_| Some(DELAY));
                assert!(done.is_empty(), "{end:?}: {done:?}");
                pair.now = later + PATIENCE.times(3);
                assert_eq!(pair.feps[0].cancel_aborted(pair.now, &mut { 1 }), 1);
            }
        }
        let mut closes = 0;
        let done = pair.run(pair.now + PATIENCE, |transit| {
            let is_close =
                matches!(&transit.packet.pds, Pds::Control(control) if control.kind == ControlKind::CloseCommand);
            closes += u32::from(is_close);
            (!is_close || closes > 1).then_some(DELAY)
        });
        assert_eq!(closes, 2, "{end:?}: the lost one is sent again");
        assert!(
            matches!(done.last(), Some((_, Completion::Closed { result: Ok(()), .. }))),
            "{end:?}: {done:?}"
        );
    }
}

#[test]
fn the_silence_of_a_busy_target_ends_an_endless_wait() {
    for (cc, trimming, mode) in busy_settings() {
        let mut pair = with_busy_target(patient(cc, trimming));
        let connection = pair.connect_from(0, ConnectOptions { mode, ..ConnectOptions::default() });
        pair.post_send(connection, virtual_message(100_000));
        let death = Time::ZERO + Span::from_ms(60_000);
        assert!(pair.run(death, |_| Some(DELAY)).is_empty());
        pair.now = death;
        let done = pair.run(death + LONG_AFTER.times(10), |_| None);
        let case = format!("{cc}, trimming {trimming}, {mode:?}");
        let [(after, Failure::NoAnswer { .. })] = failures(&done, death)[..] else {
            panic!("{case}: {done:?} {:?}", pair.explain())
        };
        // The next poll, at most a second later, is the first packet that gets no answer.
        assert!(after <= Span::from_ms(1_000).plus(SILENCE).plus(SHORT_RTO), "{case}: {after}");
    }
}

fn is_long_data(transit: &Transit) -> bool {
    transit.is_data() && transit.packet.payload_len > 0
}

#[test]
fn a_target_that_stays_busy_is_polled_and_given_up() {
    for cc in ["nscc", "smartt", "constant", "rccc", "nscc+rccc"] {
        for trimming in [true, false] {
            for mode in [DeliveryMode::Rud, DeliveryMode::Rod] {
                let mut pair = with_busy_target(config(cc, trimming));
                let connection = pair.connect_from(0, ConnectOptions { mode, ..ConnectOptions::default() });
                pair.post_send(connection, virtual_message(100_000));
                let (mut first, mut polls) = (0, 0);
                let done = pair.run(Time::ZERO + LONG_AFTER, |transit| {
                    let early = transit.sent_at.is_before(Time::ZERO + SHORT_RTO);
                    *(if early { &mut first } else { &mut polls }) +=
                        u32::from(transit.packet.net.src == Addr(0));
                    Some(DELAY)
                });
                let case = format!("{cc}, trimming {trimming}, {mode:?}: {first} and {polls} packets");
                let failed = failures(&done, Time::ZERO);
                let busy = matches!(failed[..], [(_, Failure::Busy { .. })]);
                assert!(busy, "{case}: {failed:?} {:?}", pair.explain());
                assert!(failed[0].0 <= PATIENCE + SHORT_RTO.times(4), "{case}: {failed:?}");
                assert!(polls <= 64, "{case}");
            }
        }
    }
}

#[test]
fn a_target_that_was_busy_for_a_while_gets_everything() {
    for trimming in [true, false] {
        for mode in [DeliveryMode::Rud, DeliveryMode::Rod] {
            let mut pair = with_busy_target(config("nscc", trimming));
            let connection = pair.connect_from(0, ConnectOptions { mode, ..ConnectOptions::default() });
            pair.post_send(connection, virtual_message(100_000));
            let freed = Time::ZERO + Span::from_ms(6);
            assert!(pair.run(freed, |_| Some(DELAY)).is_empty());
            pair.now = freed;
            let buffer = Buffer::Virtual(100_000);
            let receive = Receive { buffer, from: None, matching: Matching::Untagged, context: 0 };
            pair.feps[1].post_receive(receive).unwrap();
            let done = pair.run(freed + LONG_AFTER, |_| Some(DELAY));
            let Some((at, Completion::Sent { result: Ok(()), .. })) = done.first() else {
                panic!("{done:?}")
            };
            assert!(at.since(freed) < PATIENCE, "{at}: polls are never a sixteenth of the patience apart");
        }
    }
}

/// The response is long in coming, and the target says so whenever it is asked.
#[test]
fn a_target_that_works_on_the_response_is_waited_for_as_long_as_a_busy_one() {
    let mut alone = Alone::impatient();
    let connection = alone.connect();
    alone.post_send(connection, virtual_message(100));
    let done = alone.run(LONG_AFTER, |packet| Some(nack(packet, NackCode::RCVD_SES_PROCG)));
    let failed = done.iter().find_map(failure).expect("the connection ends");
    let busy = matches!(failed, Failure::Busy { code: NackCode::RCVD_SES_PROCG, .. });
    assert!(
        busy && alone.now.since(Time::ZERO) < PATIENCE + SHORT_RTO.times(16),
        "{failed} at {}",
        alone.now
    );
}

/// With three of ten packets lost each way, single packets are lost many times in a row.
#[test]
fn one_packets_bad_luck_does_not_end_a_connection() {
    for (seed, trimming) in (0..20).flat_map(|seed| [(seed, true), (seed, false)]) {
        let mut rng = Rng::new(seed, 0);
        let mut pair = Pair::new(&config("nscc", trimming));
        let ids: Vec<ConnectionId> = (0..8).map(|_| pair.connect()).collect();
        for id in &ids {
            pair.post_send(*id, virtual_message(100_000));
        }
        let done = pair.run(Time::ZERO + LONG_AFTER, |_| (!rng.chance(0.3)).then_some(DELAY));
        let sent = done.iter().filter(|(_, c)| matches!(c, Completion::Sent { result: Ok(()), .. })).count();
        assert_eq!(sent, 8, "seed {seed}, trimming {trimming}: {done:?}");
    }
}

/// Work that comes after a long rest has its own time.
#[test]
fn a_rest_does_not_count_as_time_without_progress() {
    for trimming in [true, false] {
        let idle = Span::from_ms(100_000);
        let mut pair = Pair::new(&FepConfig { idle_timeout: idle, ..config("nscc", trimming) });
        let connection = pair.connect();
        for _ in 0..3 {
            let until = pair.now + PATIENCE.times(3);
            pair.post_send(connection, virtual_message(20_000));
            let mut lost = 0;
            let done = pair.run(until, |transit| {
                lost += u32::from(is_long_data(transit));
                (lost != 20).then_some(DELAY)
            });
            assert!(matches!(done[..], [(_, Completion::Sent { result: Ok(()), .. })]), "{done:?}");
            pair.now = until;
        }
    }
}

/// A peer is known by its answers to any connection of the same context.
#[test]
fn a_connection_without_luck_lives_as_long_as_the_peer_answers_others() {
    let mut pair = Pair::new(&config("constant", true));
    let (unlucky, lucky) = (pair.connect(), pair.connect());
    pair.post_send(unlucky, virtual_message(100));
    let healed = Time::ZERO + SILENCE.times(4);
    let mut end = pair.now;
    let mut done = Vec::new();
    while end.is_before(healed + SILENCE) {
        end += SHORT_RTO;
        pair.post_send(lucky, virtual_message(100));
        done.extend(pair.run(end, |transit| {
            let of_unlucky = matches!(&transit.packet.pds, Pds::Request(request) if request.spdcid.0 == 1);
            (!of_unlucky || transit.sent_at.is_at_or_after(healed)).then_some(DELAY)
        }));
        pair.now = end;
    }
    assert_eq!(failures(&done, Time::ZERO), []);
    assert_eq!(pair.explain(), Vec::<String>::new());
}

#[test]
fn a_peer_that_dies_while_packets_are_under_way_is_missed_from_its_last_answer_on() {
    let mut pair = Pair::new(&config("constant", true));
    let connection = pair.connect();
    pair.post_send(connection, virtual_message(1_000_000));
    let recorder = Recorder::default();
    pair.feps[0].subscribe(recorder.subscriber(0).unwrap());
    let death = Time::ZERO + Span::from_us(20);
    let half = Time::ZERO + SILENCE.mul_f64(0.5);
    assert!(pair.run(half, |transit| transit.sent_at.is_before(death).then_some(DELAY)).is_empty());
    assert!(pair.explain()[0].contains("; it is given up in 3"), "{:?}", pair.explain());
    let done = pair.run(Time::ZERO + LONG_AFTER, |_| None);
    let heard = recorder
        .take()
        .iter()
        .filter(|r| r.event.name() == "ack_received")
        .map(|r| r.at)
        .next_back()
        .unwrap();
    let [(after, Failure::NoAnswer { waited, peer: Addr(1), sent, .. })] = failures(&done, heard)[..] else {
        panic!("{done:?}")
    };
    assert_eq!((after, waited), (SILENCE, SILENCE));
    assert!(sent >= 8, "{sent} transmissions");
    let result = done.iter().find_map(|(_, done)| match done {
        Completion::Sent { result, .. } => Some(*result),
        _ => None,
    });
    assert!(matches!(result, Some(Err(SendError::Failed(Failure::NoAnswer { .. })))), "{result:?}");
}

/// Counts of one turn of a worker's loop, in which the endpoint sends packets, receives the answers and handles its timers.
struct Turn {
    /// Packets that have left.
    sent: usize,
    /// Connections that have failed.
    failed: usize,
}

/// Runs turns until there is nothing left to send and no timer. `answer` returns the answer to a packet, which arrives in the same turn.
fn turns(alone: &mut Alone, answer: fn(&Packet) -> Option<Packet>) -> Vec<Turn> {
    let mut turns = Vec::new();
    loop {
        let sent = alone.transmit_all();
        alone.now += Span::from_us(2);
        for answer in sent.iter().filter_map(answer) {
            alone.arrive(&answer, &[]);
        }
        match alone.fep.poll_timeout() {
            Some(at) if sent.is_empty() || alone.now.is_at_or_after(at) => {
                alone.expire_at(at.latest(alone.now))
            }
            None if sent.is_empty() => return turns,
            _ => {}
        }
        let failed = alone.completions().iter().filter(|done| failure(done).is_some()).count();
        turns.push(Turn { sent: sent.len(), failed });
        assert!(turns.len() < 100_000, "something is always to be done");
    }
}

/// Connections to one peer, which is silent or has everything sent again. Most of them wait for the window.
#[test]
fn connections_that_fail_together_end_in_several_turns_in_which_none_of_them_sends() {
    const CONNECTIONS: usize = 500;
    let refused = |packet: &Packet| Some(nack(packet, NackCode::TRIMMED));
    let answers: [fn(&Packet) -> Option<Packet>; 2] = [|_| None, refused];
    for (answer, len) in answers.into_iter().flat_map(|answer| [(answer, 64), (answer, 64 * 1024)]) {
        let mut alone = Alone::new(config("nscc", true));
        for _ in 0..CONNECTIONS {
            let connection = alone.connect();
            alone.post_send(connection, virtual_message(len));
        }
        let turns = turns(&mut alone, answer);
        let begin = turns.iter().position(|turn| turn.failed > 0).expect("they fail");
        let end = turns.iter().rposition(|turn| turn.failed > 0).expect("they fail");
        let ends = &turns[begin..=end];
        let most = ends.iter().map(|turn| turn.failed).max();
        assert!(most <= Some(64), "messages of {len} bytes: {most:?} in a turn");
        assert_eq!(ends.iter().map(|turn| turn.failed).sum::<usize>(), CONNECTIONS);
        assert!(ends.len() <= CONNECTIONS / 8, "messages of {len} bytes: {} turns", ends.len());
        // In the first one some were sent before.
        let sent: usize = ends[1..].iter().map(|turn| turn.sent).sum();
        assert_eq!(sent, 0, "messages of {len} bytes: packets for a peer that is given up");
        assert_eq!(alone.leaks(), [""; 0]);
    }
}

/// As above, but for the first message of each connection, which the peer has acknowledged: it has heard of them all.
#[test]
fn connections_that_the_peer_knows_and_that_fail_together_end_in_several_turns() {
    const CONNECTIONS: usize = 500;
    let refused = |packet: &Packet| Some(nack(packet, NackCode::TRIMMED));
    let answers: [fn(&Packet) -> Option<Packet>; 2] = [|_| None, refused];
    for (answer, len) in answers.into_iter().flat_map(|answer| [(answer, 64), (answer, 64 * 1024)]) {
        let mut pair = Pair::new(&config("nscc", true));
        let connections: Vec<_> = (0..CONNECTIONS).map(|_| pair.connect()).collect();
        post_on(&mut pair, &connections, 1);
        let start = Time::ZERO + Span::from_ms(1);
        pair.run(start, |_| Some(DELAY));
        let mut alone = pair.without_peer();
        alone.now = start;
        for connection in connections {
            alone.post_send(connection, virtual_message(len));
        }
        let turns = turns(&mut alone, answer);
        let most = turns.iter().map(|turn| turn.failed).max();
        assert!(most <= Some(64), "messages of {len} bytes: {most:?} in a turn");
        assert_eq!(turns.iter().map(|turn| turn.failed).sum::<usize>(), CONNECTIONS);
        assert_eq!(alone.leaks(), [""; 0]);
    }
}

/// A configuration with a constant window of more than 200 packets.
fn wide() -> FepConfig {
    let network = CcParams { mtu: 1_000, network_rtt: Span::from_us(20), ..params() };
    let base = FepConfig::new(&CcChoice::parse("constant").unwrap(), &network);
    base.with_zones(|zone| zone.pdc.rto_init = SHORT_RTO)
}

/// For each connection that fails, those that wait for the window are looked at, as they may have to end with it.
#[test]
fn connections_that_fail_before_many_others_end_in_several_turns() {
    const MANY: usize = 4_000;
    let mut alone = Alone::new(wide());
    let post = |alone: &mut Alone, connections: usize| {
        for _ in 0..connections {
            let connection = alone.connect();
            alone.post_send(connection, virtual_message(1_000));
        }
        alone.transmit_all().len()
    };
    assert_eq!(post(&mut alone, 200), 200, "their packets are under way");
    alone.now = Time::ZERO + SILENCE.mul_f64(0.5);
    assert!(post(&mut alone, MANY) < MANY / 10, "most wait");
    let failed: Vec<usize> = turns(&mut alone, |_| None).iter().map(|turn| turn.failed).collect();
    let first = failed.iter().find(|failed| **failed > 0);
    assert!(first <= Some(&8), "{first:?} in a turn");
    assert_eq!(failed.iter().sum::<usize>(), 200 + MANY);
}

/// Connections that wait for the window are overdue, and wait for their timers. Before these, the peer confirms a CLOSE_CMD, so that it
/// is not silent any more.
#[test]
fn connections_that_were_overdue_send_when_the_peer_is_heard_before_their_timers() {
    for processes in [1, 2] {
        overdue_connections_send_when_the_peer_is_heard(processes);
    }
}

fn overdue_connections_send_when_the_peer_is_heard(processes: u16) {
    const MANY: usize = 3_000;
    let mut pair = Pair::new(&wide());
    let sibling = pair.connect();
    post_on(&mut pair, &[sibling], 1);
    pair.run(Time::ZERO + SHORT_RTO, |_| Some(DELAY));
    let mut alone = pair.without_peer();
    alone.now = Time::ZERO + SHORT_RTO;
    for process in 1..processes {
        alone.fep.open_process(process).unwrap();
    }
    let all: Vec<ConnectionId> = (0..processes)
        .cycle()
        .take(MANY)
        .map(|process| alone.fep.connect_of(process, alone.now, Addr(1), ConnectOptions::default()).unwrap())
        .collect();
    for connection in &all {
        alone.post_send(*connection, virtual_message(1_000));
    }
    let sent = alone.transmit_all().len();
    assert!((100..MANY / 10).contains(&sent), "{sent} are under way, the others wait");
    // The sibling waits for an answer for a shorter time.
    alone.now += SILENCE.mul_f64(0.5);
    alone.fep.close(alone.now, sibling).unwrap();
    let is_close =
        |packet: &Packet| matches!(&packet.pds, Pds::Control(it) if it.kind == ControlKind::CloseCommand);
    let close = alone.transmit_all().into_iter().find(is_close).expect("CLOSE_CMD leaves");
    let mut failed = 0;
    while failed < 1_000 {
        let at = alone.fep.poll_timeout().expect("they fail");
        alone.expire_at(at.latest(alone.now));
        failed += alone.completions().iter().filter(|done| failure(done).is_some()).count();
        alone.transmit_all();
    }
    assert!(failed < MANY, "some wait");
    alone.arrive(&nack(&close, NackCode::INV_DPDCID), &[]);
    let mut sent = 0;
    while alone.fep.poll_timeout().is_some_and(|at| alone.now.is_at_or_after(at)) {
        alone.fep.on_timeout(alone.now);
        sent += alone.transmit_all().len();
    }
    assert!(sent > 0, "their timers let the first of them try, and it sends");
    let later: usize = turns(&mut alone, |_| None).iter().map(|turn| turn.failed).sum();
    assert_eq!(failed + later, MANY, "each fails");
}

/// Connections of two processes wait for a window that another one has used up. All have made no progress for too long when a
/// packet of one arrives that is waited for without end. The connection whose turn it is at the window was overdue until then:
/// it must not wait behind the others as one does that has just got a message, since they wait for it.
#[test]
fn a_connection_that_was_overdue_does_not_wait_behind_those_that_wait_for_it() {
    const MANY: usize = 20;
    // They are given up before anything is sent again.
    let config = FepConfig { busy_timeout: SHORT_RTO.mul_f64(0.5).into(), ..wide() };
    let mut peer = fep(1, config.clone(), 3, Time::ZERO);
    peer.post_receive(receive_any(1_000)).unwrap();
    let mut alone = Alone::new(config);
    let connect = |alone: &mut Alone, process: u16, patient: bool| {
        let options = ConnectOptions::default().patient(patient);
        alone.fep.connect_of(process, alone.now, Addr(1), options).unwrap()
    };
    let long = connect(&mut alone, 0, false);
    alone.post_send(long, virtual_message(1_000));
    assert_eq!(alone.transmit_all().len(), 1);
    alone.now += Span::from_us(1);
    let patient = connect(&mut alone, 0, true);
    alone.post_send(patient, virtual_message(1_000));
    let [first] = alone.transmit_all()[..] else { panic!("one packet leaves") };
    alone.post_send(long, virtual_message(1_000_000));
    assert!(alone.transmit_all().len() < 1_000, "the window is full");
    alone.fep.open_process(1).unwrap();
    for process in [0, 1].into_iter().cycle().take(MANY) {
        let connection = connect(&mut alone, process, false);
        alone.post_send(connection, virtual_message(1_000));
    }
    assert_eq!(alone.transmit_all().len(), 0, "they wait");
    alone.expire_at(Time::ZERO + SHORT_RTO);
    let failed = alone.completions().iter().filter(|done| failure(done).is_some()).count();
    assert!((1..MANY).contains(&failed), "{failed} have failed, the others wait");
    assert_eq!(alone.transmit_all().len(), 0, "the first of them is overdue");
    peer.on_packet(alone.now, &first, Payload::Virtual(first.payload_len));
    let answer = peer.poll_transmit(alone.now).expect("an acknowledgement");
    alone.arrive(&answer.packet, &[]);
    alone.fep.on_timeout(alone.now);
    // Among those that have failed is the one that had the window.
    assert_eq!(alone.transmit_all().len(), MANY + 1 - failed, "all others send");
}

/// A message of a closing connection waits for the window, which another connection has used up, and is cancelled when the peer has
/// been silent for long.
#[test]
fn a_closing_connection_whose_last_message_is_cancelled_waits_for_the_answer_to_close_cmd_as_long_as_others()
{
    let mut pair = Pair::new(&wide());
    let connection = pair.connect();
    post_on(&mut pair, &[connection], 1);
    pair.run(Time::ZERO + SHORT_RTO, |_| Some(DELAY));
    let mut alone = pair.without_peer();
    alone.now = Time::ZERO + SHORT_RTO;
    let other = alone.connect();
    alone.post_send(other, virtual_message(1_000_000));
    let sent = alone.transmit_all().len();
    assert!((100..1_000).contains(&sent), "{sent} packets have the window");
    let message = alone.post_send(connection, virtual_message(1_000));
    alone.fep.close(alone.now, connection).unwrap();
    assert_eq!(alone.transmit_all().len(), 0, "the message waits");
    let cancelled_at = alone.now + SILENCE.mul_f64(0.5);
    alone.now = cancelled_at;
    alone.fep.cancel_send(message).unwrap();
    let closed = loop {
        alone.transmit_all();
        let at = alone.fep.poll_timeout().expect("it is given up");
        alone.expire_at(at.latest(alone.now));
        let of_connection =
            |done: &Completion| matches!(done, Completion::Closed { id, .. } if *id == connection);
        if alone.completions().iter().any(of_connection) {
            break alone.now.since(cancelled_at);
        }
    };
    assert!((SILENCE..=SILENCE + SHORT_RTO).contains(&closed), "{closed}");
}

/// A connection whose only message was cancelled is still among those whose turn comes.
#[test]
fn a_connection_that_has_had_a_message_is_not_held() {
    let mut alone = Alone::new(wide());
    let connection = alone.connect();
    let message = alone.post_send(connection, virtual_message(1));
    alone.fep.cancel_send(message).unwrap();
    assert_eq!(alone.fep.hold(connection), Err(CallError::TooLate));
    alone.post_send(connection, virtual_message(1));
    assert_eq!(alone.transmit_all().len(), 1);
}

/// Connections of one process to as many peers, which fail at the same time as one of another process.
#[test]
fn timers_of_processes_that_expire_together_have_turns() {
    let mut alone = Alone::new(config("nscc", true));
    for process in [1, 2] {
        alone.fep.open_process(process).unwrap();
    }
    let mut of = |process: u16, peer: u32| {
        let connection =
            alone.fep.connect_of(process, alone.now, Addr(peer), ConnectOptions::default()).unwrap();
        alone.fep.post_send(connection, virtual_message(1)).unwrap();
        connection
    };
    for peer in 1..=500 {
        of(1, peer);
    }
    let other = of(2, 501);
    let mut calls = 0;
    loop {
        alone.transmit_all();
        let at = alone.fep.poll_timeout().expect("the connections fail");
        alone.expire_at(at.latest(alone.now));
        let ended: Vec<_> = alone
            .completions()
            .into_iter()
            .filter_map(|done| match done {
                Completion::Closed { id, .. } => Some(id),
                _ => None,
            })
            .collect();
        calls += usize::from(!ended.is_empty());
        if ended.contains(&other) {
            break;
        }
    }
    assert!(calls <= 2, "it has waited for {calls} calls");
}

/// How many packets time out in each call of `Fep::on_timeout`, if `connections` to as many peers send a message of `len` bytes each at
/// the same time, and nothing is answered.
fn timeouts_by_call(connections: u32, len: u32) -> Vec<u64> {
    let mut alone = Alone::new(wide());
    for peer in 1..=connections {
        let connection = alone.fep.connect(alone.now, Addr(peer), ConnectOptions::default()).unwrap();
        alone.post_send(connection, virtual_message(len));
    }
    alone.transmit_all();
    alone.now = Time::ZERO + SHORT_RTO.times(2);
    let mut timeouts = Vec::new();
    while alone.fep.poll_timeout().is_some_and(|at| alone.now.is_at_or_after(at)) {
        let before = alone.fep.counters().timeouts;
        alone.fep.on_timeout(alone.now);
        timeouts.push(alone.fep.counters().timeouts - before);
        assert!(timeouts.len() < 1_000, "something is always due");
    }
    timeouts
}

#[test]
fn timers_that_expire_together_are_handled_in_several_calls() {
    assert_eq!(timeouts_by_call(300, 1), [64, 64, 64, 64, 44]);
    let long = timeouts_by_call(30, 200_000);
    assert!(long.iter().all(|packets| *packets < 2_048 + 200), "{long:?}");
    assert_eq!(long.iter().sum::<u64>(), 30 * 200);
}
