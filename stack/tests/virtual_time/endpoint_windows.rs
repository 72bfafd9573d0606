//! Windows per connection, and windows that the connections of a pair of endpoints share.

use crate::harness;
use std::collections::BTreeSet;

use crate::harness::{Alone, Pair, fep, params, receive_any};
use weft_stack::Time;
use weft_stack::buffer::Buffer;
use weft_stack::cc::CcChoice;
use weft_stack::event::{Event, Recorder};
use weft_stack::fep::{
    Completion, ConnectOptions, ConnectionId, Failure, FepConfig, Send, SendId, TrafficClass, Windows,
};
use weft_stack::packet::{Addr, Network, Packet};
use weft_stack::wire::pds::{Control, ControlKind, Destination, PdcId, Pds};

/// Two packets of window, unless `cc` uses credit.
fn config(cc: &str, windows: Windows) -> FepConfig {
    let mut cc = CcChoice::parse(cc).unwrap();
    if cc.name() == "constant" {
        cc.set("window", &(2 * params().wire_mtu()).to_string()).unwrap();
    }
    FepConfig { windows, ..FepConfig::new(&cc, &params()) }
}

fn message(len: u32) -> Send {
    Send { buffer: Buffer::Virtual(len), tag: None, header_data: 0, context: 0 }
}

fn contexts(alone: &Alone) -> Vec<String> {
    alone.leaks().into_iter().filter(|what| what.contains("contexts")).collect()
}

#[test]
fn each_connection_has_a_window_or_a_pair_shares_one() {
    for (windows, sent) in [(Windows::Flow, 6), (Windows::Pair, 2)] {
        let mut alone = Alone::new(config("constant", windows));
        for _ in 0..3 {
            let connection = alone.connect();
            alone.post_send(connection, message(10 * harness::MTU));
        }
        assert_eq!(alone.transmit_all().len(), sent, "{windows:?}");
    }
}

#[test]
fn a_context_ends_with_its_last_connection() {
    for (windows, of_three) in [(Windows::Flow, "3"), (Windows::Pair, "1")] {
        let mut alone = Alone::new(config("constant", windows));
        let connections = [(); 3].map(|()| alone.connect());
        assert!(contexts(&alone)[0].starts_with(of_three), "{windows:?}: {:?}", contexts(&alone));
        for connection in connections {
            alone.fep.close(alone.now, connection).unwrap();
        }
        assert_eq!(alone.leaks(), [""; 0], "{windows:?}");
    }
}

#[test]
fn classes_have_windows_of_their_own() {
    let mut alone = Alone::new(config("constant", Windows::Pair));
    for class in [0, 0, 7] {
        let options = ConnectOptions { class: TrafficClass(class), ..ConnectOptions::default() };
        alone.fep.connect(alone.now, Addr(1), options).unwrap();
    }
    assert!(contexts(&alone)[0].starts_with("2 congestion contexts"), "{:?}", contexts(&alone));
}

/// The CCC_IDs of the first packets of `connections` connections to `peer`, in order.
fn ccc_ids(alone: &mut Alone, peer: u32, connections: usize) -> Vec<u8> {
    for _ in 0..connections {
        let connection = alone.fep.connect(alone.now, Addr(peer), ConnectOptions::default()).unwrap();
        alone.post_send(connection, message(100));
    }
    let id = |pds| match pds {
        Pds::Request(request) => request.cc.expect("credit is in use").ccc_id,
        other => panic!("{other:?}"),
    };
    alone.transmit_all().into_iter().map(|packet| id(packet.pds)).collect()
}

#[test]
fn targets_can_tell_256_contexts_of_a_peer_apart_and_further_connections_share_them_evenly() {
    let mut alone = Alone::new(config("rccc", Windows::Flow));
    let first = ccc_ids(&mut alone, 1, 256);
    assert_eq!(first.iter().collect::<BTreeSet<_>>().len(), 256);
    // Those that share a context send as much as it has credit for.
    let further = ccc_ids(&mut alone, 1, 512);
    for id in 0..=u8::MAX {
        assert!(further.iter().filter(|other| **other == id).count() <= 2, "{id}");
    }
    assert_eq!(contexts(&alone), ["256 congestion contexts", "256 names of congestion contexts"]);
    assert_eq!(ccc_ids(&mut alone, 2, 1).len(), 1, "another peer has names of its own");
}

#[test]
fn connections_with_credit_of_their_own_deliver_everything() {
    let mut pair = Pair::new(&config("rccc", Windows::Flow));
    let connections: Vec<_> = (0..300).map(|_| pair.connect()).collect();
    for &connection in &connections {
        pair.post_send(connection, message(5_000));
        pair.feps[1].post_receive(receive_any(5_000)).unwrap();
    }
    let mut sent = 0;
    loop {
        pair.exchange();
        let done = |c: &Completion| matches!(c, Completion::Sent { result: Ok(()), .. });
        sent += pair.completions(0).iter().filter(|c| done(c)).count();
        if sent == connections.len() {
            break;
        }
        let at = pair.next_timer().expect("credit comes with time");
        pair.expire_at(0, at);
        pair.expire_at(1, at);
    }
    for connection in connections {
        pair.close(connection);
    }
    for fep in &pair.feps {
        assert_eq!(fep.leaks().collect::<Vec<_>>(), [""; 0]);
    }
}

/// Contexts named by the events of five connections.
fn named(windows: Windows) -> usize {
    let recorder = Recorder::default();
    let mut endpoint = fep(0, config("nscc", windows), 3, Time::ZERO);
    endpoint.subscribe(recorder.subscriber(0).unwrap());
    for _ in 0..5 {
        endpoint.connect(Time::ZERO, Addr(1), ConnectOptions::default()).unwrap();
    }
    let context = |event| match event {
        Event::PdcOpened { context, .. } => Some(context),
        _ => None,
    };
    recorder.take().into_iter().filter_map(|record| context(record.event)).collect::<BTreeSet<_>>().len()
}

#[test]
fn events_name_the_context_of_a_connection() {
    assert_eq!((named(Windows::Flow), named(Windows::Pair)), (5, 1));
}

#[test]
fn a_flow_with_a_window_of_its_own_takes_a_bounded_amount_of_memory() {
    let per_flow = |windows| {
        let held = |connections: u64| {
            let mut endpoint = fep(0, config("nscc", windows), 3, Time::ZERO);
            for _ in 0..connections {
                endpoint.connect(Time::ZERO, Addr(1), ConnectOptions::default()).unwrap();
            }
            endpoint.footprint().contexts
        };
        held(1 << 10) as f64 / f64::from(1 << 10)
    };
    let (own, shared) = (per_flow(Windows::Flow), per_flow(Windows::Pair));
    assert!(shared < 2.0, "{shared} B");
    assert!((128.0..=512.0).contains(&own), "{own} B");
}

/// Endpoint 0 with a connection that has delivered a message and waits for credit for another one, which is returned.
fn waiting_for_credit() -> (Alone, ConnectionId, SendId) {
    let mut pair = Pair::new(&config("rccc", Windows::Pair));
    let connection = pair.connect();
    pair.post_send(connection, message(100));
    pair.flush(0);
    while let Some(transit) = pair.transmit(1) {
        if matches!(transit.packet.pds, Pds::Ack(_)) {
            pair.arrive(&transit);
        }
    }
    let mut alone = pair.without_peer();
    let waiting = alone.post_send(connection, message(100));
    assert!(alone.transmit().is_none(), "{:?}", alone.fep.explain(alone.now));
    (alone, connection, waiting)
}

/// The control packets that leave within `count` retransmission timeouts, and when. Those for which there is an `answer` get it
/// at once.
fn control_packets_within(
    alone: &mut Alone,
    count: u64,
    answer: fn(&Packet, &Control) -> Option<Packet>,
) -> Vec<(Time, ControlKind)> {
    let end = alone.now + alone.fep.config().zones.longest_rto().times(count);
    let mut sent = Vec::new();
    while alone.now.is_before(end) {
        for packet in alone.transmit_all() {
            let Pds::Control(control) = &packet.pds else { continue };
            sent.push((alone.now, control.kind));
            if let Some(answer) = answer(&packet, control) {
                alone.arrive(&answer, &[]);
            }
        }
        if alone.fep.wants_to_transmit() {
            continue;
        }
        alone.now = alone.fep.poll_timeout().map_or(end, |at| at.earliest(end));
        alone.fep.on_timeout(alone.now);
    }
    sent
}

/// The kinds of the control packets that leave within ten retransmission timeouts without an answer.
fn control_packets(alone: &mut Alone) -> Vec<ControlKind> {
    let sent = control_packets_within(alone, 10, |_, _| None);
    sent.into_iter().map(|(_, kind)| kind).collect()
}

#[test]
fn a_connection_that_no_longer_needs_credit_closes_without_it() {
    let (mut alone, connection, waiting) = waiting_for_credit();
    alone.fep.cancel_send(waiting).unwrap();
    alone.fep.close(alone.now, connection).unwrap();
    assert!(control_packets(&mut alone).contains(&ControlKind::CloseCommand), "cancelled, then closed");

    let (mut alone, connection, waiting) = waiting_for_credit();
    alone.fep.close(alone.now, connection).unwrap();
    alone.fep.cancel_send(waiting).unwrap();
    assert!(control_packets(&mut alone).contains(&ControlKind::CloseCommand), "closed, then cancelled");

    let (mut alone, connection, _) = waiting_for_credit();
    alone.fep.abort(alone.now, connection).unwrap();
    assert!(control_packets(&mut alone).contains(&ControlKind::CloseCommand), "aborted");
}

#[test]
fn a_message_after_a_cancelled_one_asks_for_credit_again() {
    let (mut alone, connection, waiting) = waiting_for_credit();
    alone.fep.cancel_send(waiting).unwrap();
    assert!(control_packets(&mut alone).is_empty(), "nothing to ask for");
    alone.post_send(connection, message(100));
    assert!(control_packets(&mut alone).contains(&ControlKind::CreditRequest));
}

/// The second connection stands behind the first, and waits only for its turn.
#[test]
fn a_connection_asks_for_credit_after_the_one_before_it_is_aborted() {
    let (mut alone, first, waiting) = waiting_for_credit();
    let second = alone.connect();
    alone.post_send(second, message(100));
    alone.fep.cancel_send(waiting).unwrap();
    alone.fep.abort(alone.now, first).unwrap();
    let kinds = control_packets(&mut alone);
    assert!(kinds.contains(&ControlKind::CloseCommand), "{kinds:?}");
    assert!(kinds.contains(&ControlKind::CreditRequest), "{kinds:?}");
}

/// The target says that it has granted no credit.
fn no_credit(request: &Packet, control: &Control) -> Option<Packet> {
    let credit = Control {
        kind: ControlKind::Credit,
        spdcid: PdcId(1),
        destination: Destination::Pdc(control.spdcid),
        payload: 0,
        ..*control
    };
    let net = Network { src: request.net.dst, dst: request.net.src, ..request.net };
    Some(Packet { net, pds: Pds::Control(credit), ..*request })
}

/// The times of the requests for credit among `sent` since `begin`, in retransmission timeouts.
fn request_times(alone: &Alone, begin: Time, sent: &[(Time, ControlKind)]) -> Vec<u64> {
    let rto = alone.fep.config().zones.longest_rto();
    let requests = sent.iter().filter(|(_, kind)| *kind == ControlKind::CreditRequest);
    requests.map(|(at, _)| at.since(begin).as_ps() / rto.as_ps()).collect()
}

/// A target that answers and grants nothing is asked less and less often. When it falls silent it is asked as often as a packet is sent
/// again, until it is given up after 63 timeouts. A context that several connections share asks no more than one of them.
#[test]
fn requests_for_credit_become_rare_while_the_target_answers_and_only_then() {
    for connections in [1, 3] {
        let (mut alone, first, _) = waiting_for_credit();
        for _ in 1..connections {
            let connection = alone.connect();
            alone.post_send(connection, message(100));
        }
        let begin = alone.now;
        let sent = control_packets_within(&mut alone, 30, no_credit);
        let mut times = request_times(&alone, begin, &sent);
        times.dedup();
        assert_eq!(times, [1, 3, 7, 15], "{connections} connections");

        let sent = control_packets_within(&mut alone, 65, |_, _| None);
        let times = request_times(&alone, begin, &sent);
        assert_eq!(times, (31..31 + 63).step_by(4).collect::<Vec<_>>(), "{connections} connections");
        let closed = alone.completions().into_iter().find_map(|completion| match completion {
            Completion::Closed { id, result, .. } if id == first => Some(result),
            _ => None,
        });
        assert!(matches!(closed, Some(Err(Failure::NoAnswer { .. }))), "{closed:?}");
    }
}
