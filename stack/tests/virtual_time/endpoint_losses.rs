//! Loss recovery where switches drop: nothing is sent twice that was not lost, and what was lost is found soon.

use std::sync::{Arc, Mutex};

use crate::harness::{Pair, Transit, params};
use weft_stack::buffer::Buffer;
use weft_stack::cc::{AckSample, CcChoice, CcParams, CcSnapshot, LossSample, NackSample, SenderCc, Window};
use weft_stack::event::{Event, Recorder};
use weft_stack::fep::{Completion, FepConfig, Send};
use weft_stack::packet::Class;
use weft_stack::wire::pds::{Control, ControlKind, Pds, Psn};
use weft_stack::{Span, Time};

const RTT: Span = Span::from_us(10);
const HALF: Span = Span::from_us(5);
/// So long that no test gets there by a timeout.
const RTO: Span = Span::from_ms(10);

/// Losses are inferred. Packets hold 1,000 bytes, and windows 100,000.
fn config() -> FepConfig {
    let mut cc = CcChoice::parse("constant").unwrap();
    cc.set("window", "100000").unwrap();
    config_with(&cc)
}

fn config_with(cc: &CcChoice) -> FepConfig {
    let network = CcParams { mtu: 1_000, network_rtt: RTT, trimming: false, ..params() };
    let base = FepConfig::new(cc, &network);
    base.with_zones(|zone| zone.pdc.rto_init = RTO)
}

fn virtual_message(len: u32) -> Send {
    Send { buffer: Buffer::Virtual(len), tag: None, header_data: 0, context: 0 }
}

/// Two endpoints that have exchanged a message, with another one of `len` bytes posted.
fn sending(config: &FepConfig, len: u32) -> Pair {
    let mut pair = Pair::new(config);
    let connection = pair.connect();
    pair.post_send(connection, virtual_message(5_000));
    let until = pair.now + RTT.times(3);
    assert_eq!(pair.run(until, |_| Some(HALF)).len(), 1);
    pair.now = until;
    pair.post_send(connection, virtual_message(len));
    pair
}

fn is_data(transit: &Transit) -> bool {
    matches!(transit.packet.pds, Pds::Request(_))
}

fn sent_ok(done: &[(Time, Completion)]) -> Time {
    let [(at, Completion::Sent { result: Ok(()), .. })] = done else { panic!("{done:?}") };
    *at
}

/// The round trip takes ever longer, up to a hundred times, for all that travels in the class of data. Control packets
/// stay fast.
#[test]
fn nothing_is_taken_for_lost_while_queues_grow() {
    let mut pair = sending(&config(), 3_000_000);
    let began = pair.now;
    let done = pair.run(began + Span::from_ms(500), |transit| {
        let queue = transit.sent_at.since(began).times(4).max(Span::ZERO);
        let queue =
            if transit.packet.net.class == Class::Data { queue.min(RTT.times(100)) } else { Span::ZERO };
        Some(HALF + queue)
    });
    sent_ok(&done);
    let counters = pair.feps[0].counters();
    assert_eq!((counters.data_retransmitted, counters.losses_inferred, counters.timeouts), (0, 0, 0));
    assert_eq!(pair.feps[1].counters().duplicates_received, 0);
}

/// Paths differ by a round trip; the packets of each path stay in order.
#[test]
fn nothing_is_taken_for_lost_while_paths_differ() {
    let mut pair = sending(&config(), 3_000_000);
    let done = pair.run(pair.now + Span::from_ms(500), |transit| {
        let path = u64::from(transit.packet.net.entropy.0 % 5);
        let longer = if transit.packet.net.class == Class::Data { path } else { 0 };
        Some(HALF + Span::from_us(2 * longer))
    });
    sent_ok(&done);
    assert_eq!(pair.feps[1].counters().duplicates_received, 0);
}

/// The last packets of a message are lost once.
#[test]
fn the_end_of_a_message_is_recovered_in_a_few_round_trips() {
    for lost_packets in [1, 3, 20] {
        let mut pair = sending(&config(), 20_000);
        let posted = pair.now;
        let mut seen = 0;
        let done = pair.run(posted + Span::from_ms(500), |transit| {
            seen += u32::from(is_data(transit));
            let lost = is_data(transit) && (21 - lost_packets..=20).contains(&seen);
            (!lost).then_some(HALF)
        });
        let took = sent_ok(&done).since(posted);
        assert!((RTT.times(3)..RTT.mul_f64(4.2)).contains(&took), "{lost_packets} lost: {took}");
        let counters = pair.feps[0].counters();
        assert_eq!((counters.timeouts, counters.data_retransmitted), (0, u64::from(lost_packets)));
    }
}

/// One packet is lost in the middle of many, in a window that a bitmap does not cover.
#[test]
fn a_loss_in_the_middle_is_recovered_in_two_round_trips() {
    let mut pair = sending(&config(), 1_000_000);
    let recorder = Recorder::default();
    pair.feps[0].subscribe(recorder.subscriber(0).unwrap());
    let mut seen = 0;
    let done = pair.run(pair.now + Span::from_ms(500), |transit| {
        seen += u32::from(is_data(transit));
        (!is_data(transit) || seen != 300).then_some(HALF)
    });
    sent_ok(&done);
    let records = recorder.take();
    let lost = records.iter().find_map(|r| match r.event {
        Event::LossInferred { psn, .. } => Some((r.at, psn)),
        _ => None,
    });
    let (found_at, lost) = lost.expect("a loss");
    let sent_at = records.iter().find_map(|r| match r.event {
        Event::DataSent { psn, .. } if psn == lost => Some(r.at),
        _ => None,
    });
    let took = found_at.since(sent_at.unwrap());
    assert!((RTT..RTT.mul_f64(2.6)).contains(&took), "{took}");
    let counters = pair.feps[0].counters();
    assert_eq!((counters.data_retransmitted, counters.losses_inferred, counters.timeouts), (1, 1, 0));
}

fn probe(transit: &Transit) -> Option<&Control> {
    match &transit.packet.pds {
        Pds::Control(control) if control.kind == ControlKind::Probe => Some(control),
        _ => None,
    }
}

/// Probes go the way of what they ask about, and queue with it.
#[test]
fn a_probe_travels_as_the_oldest_packet_in_flight_did() {
    let mut pair = sending(&config(), 20_000);
    let (mut seen, mut sent, mut probes) = (0, Vec::new(), Vec::new());
    pair.run(pair.now + Span::from_ms(500), |transit| {
        let net = transit.packet.net;
        if let Pds::Request(request) = &transit.packet.pds {
            seen += 1;
            sent.push((request.psn, net));
        }
        probes.extend(probe(transit).map(|control| (Psn(control.payload), net)));
        (!is_data(transit) || !(18..=20).contains(&seen)).then_some(HALF)
    });
    let [(asked, net)] = probes[..] else { panic!("{probes:?}") };
    assert!((asked.distance(sent[0].0)) < 18, "the first packet not known to have arrived");
    assert!(sent.contains(&(asked, net)), "{net:?}");
}

/// A packet is late beyond all experience. Its copy arrives too, which is noticed, and more time is given from then on.
#[test]
fn a_late_packet_taken_for_lost_is_counted_and_widens_the_leeway() {
    let mut pair = sending(&config(), 10_000_000);
    let mut seen = 0;
    let done = pair.run(pair.now + Span::from_ms(500), |transit| {
        seen += u32::from(is_data(transit));
        let late = is_data(transit) && seen % 200 == 100;
        Some(if late { HALF + Span::from_us(14) } else { HALF })
    });
    sent_ok(&done);
    let counters = pair.feps[0].counters();
    assert!(seen / 200 > 49 && (1..=10).contains(&counters.losses_spurious), "{counters:?}");
    assert_eq!(counters.losses_spurious, counters.losses_inferred);
    assert_eq!(counters.losses_spurious, pair.feps[1].counters().duplicates_received);
}

#[test]
fn unanswered_probes_are_rare_and_use_other_paths() {
    let mut pair = sending(&config(), 20_000);
    let death = pair.now;
    let mut probes = Vec::new();
    pair.run(death + RTO, |transit| {
        if probe(transit).is_some() {
            probes.push(transit.packet.net.entropy);
        }
        None
    });
    assert!((5..=10).contains(&probes.len()), "{} probes in {RTO}", probes.len());
    assert!(probes.iter().any(|entropy| *entropy != probes[0]));
}

/// A fixed window that writes down the timeouts that it hears of.
struct Listener {
    heard: Arc<Mutex<Vec<(Time, LossSample)>>>,
}

impl SenderCc for Listener {
    fn on_ack(&mut self, _now: Time, _ack: &AckSample) {}
    fn on_nack(&mut self, _now: Time, _nack: &NackSample) {}
    fn on_timeout(&mut self, now: Time, lost: &LossSample) {
        self.heard.lock().unwrap().push((now, *lost));
    }
    fn window(&self) -> Window {
        Window(8 * 1_064)
    }
    fn expected_rtt(&self) -> Span {
        RTT
    }
    fn snapshot(&self) -> CcSnapshot {
        CcSnapshot::default()
    }
}

/// Four connections with two packets each: all expire in one round, four rounds in a row.
#[test]
fn algorithms_hear_of_rounds_of_timeouts_not_of_packets() {
    for trimming in [true, false] {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let listener = Listener { heard: heard.clone() };
        let factory = Arc::new(move |_: &CcParams| -> Box<dyn SenderCc + std::marker::Send> {
            Box::new(Listener { heard: listener.heard.clone() })
        });
        let base = config_with(&CcChoice::custom("listener", factory));
        let mut pair = Pair::new(&base.with_zones(|zone| zone.pdc.infer_loss = !trimming));
        for _ in 0..4 {
            let connection = pair.connect();
            pair.post_send(connection, virtual_message(2_000));
        }
        pair.run(Time::ZERO + RTO.times(14), |_| None);
        let heard = heard.lock().unwrap();
        let rounds: Vec<u32> = heard.iter().map(|(_, lost)| lost.expiries).collect();
        assert_eq!(rounds, [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4], "trimming {trimming}");
        assert!(heard.iter().all(|(_, lost)| lost.bytes == 2 * 1_064));
    }
}
