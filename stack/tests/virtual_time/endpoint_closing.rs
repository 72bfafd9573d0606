//! Connections that close while copies of their packets are late, and PDCs that are used again.

use std::collections::BTreeSet;

use crate::harness::forge::{nack, syn};
use crate::harness::{Alone, NO_LEAKS, Pair, impatient_config, message, receive_any};
use weft_stack::buffer::Buffer;
use weft_stack::fep::{Completion, Failure, Fep, FepConfig, Limits, SendError};
use weft_stack::packet::{Addr, Packet, Payload};
use weft_stack::wire::pds::{AckRequest, Control, ControlKind, Destination, NackCode, PdcId, Pds, Psn};
use weft_stack::wire::ses::Ses;
use weft_stack::{Span, Time};

/// The target has forgotten the PDC when a copy of CLOSE_CMD arrives, and its NACK overtakes the answer to the first.
#[test]
fn a_connection_closes_although_its_close_command_was_duplicated() {
    let mut pair = Pair::impatient();
    let connection = pair.connect();
    pair.post_send(connection, message(10, 0));
    pair.exchange();
    pair.feps[0].close(pair.now, connection).unwrap();
    let close = pair.transmit(0).unwrap().packet;
    assert!(matches!(&close.pds, Pds::Control(control) if control.kind == ControlKind::CloseCommand));
    pair.feps[0].on_packet(pair.now, &nack(&close, NackCode::INV_DPDCID), Payload::EMPTY);
    let done = pair.completions(0);
    assert!(
        matches!(&done[..], [Completion::Sent { .. }, Completion::Closed { result: Ok(()), .. }]),
        "{done:?}"
    );
}

#[test]
fn closing_a_connection_whose_messages_were_all_cancelled_sends_nothing() {
    let mut alone = Alone::impatient();
    let connection = alone.connect();
    let message = alone.post_send(connection, message(10, 0));
    alone.fep.close(alone.now, connection).unwrap();
    alone.fep.cancel_send(message).unwrap();
    assert!(alone.transmit().is_none());
    let done = alone.completions();
    assert!(matches!(done.last(), Some(Completion::Closed { result: Ok(()), .. })), "{done:?}");
    assert_eq!(alone.leaks(), NO_LEAKS);
}

/// Later connections may use the PDCIDs and message numbers of messages for which no receive is posted yet.
#[test]
fn unexpected_messages_survive_the_reuse_of_their_pdcid_and_message_number() {
    let mut pair = Pair::impatient();
    let lengths = [10usize, 20, 0, 30];
    for (i, len) in lengths.into_iter().enumerate() {
        let connection = pair.connect();
        pair.post_send(connection, message(len, i as u64));
        pair.exchange();
        pair.close(connection);
        let done = pair.completions(0);
        let fine = matches!(
            &done[..],
            [Completion::Sent { result: Ok(()), .. }, Completion::Closed { result: Ok(()), .. }]
        );
        assert!(fine, "{done:?}");
    }
    for len in lengths {
        pair.feps[1].post_receive(receive_any(len)).unwrap();
        let done = pair.feps[1].poll_completion();
        let Some(Completion::Received { buffer, result: Ok(()), .. }) = done else { panic!("{done:?}") };
        assert_eq!(buffer, Buffer::Heap(vec![7; len]));
    }
    assert_eq!(pair.leaks(1), NO_LEAKS);
}

/// A copy of the first packet of a closed PDC arrives when another PDC uses its number.
#[test]
fn late_copies_from_a_closed_pdc_do_not_disturb_its_successor() {
    let mut pair = Pair::impatient();
    let mut late = Vec::new();
    for _ in 0..3 {
        let connection = pair.connect();
        pair.post_send(connection, message(10, 0));
        let first = pair.transmit(0).unwrap();
        pair.arrive(&first);
        for old in &late {
            pair.arrive(old);
        }
        late.push(first);
        pair.post_send(connection, message(20, 0));
        pair.exchange();
        pair.close(connection);
        let done = pair.completions(0);
        assert!(matches!(&done[..], [.., Completion::Closed { result: Ok(()), .. }]), "{done:?}");
    }
    assert_eq!(pair.leaks(1), ["6 messages on their way in"], "no message arrives twice");
}

/// Start_PSN is at least 2¹⁶ from the last PSN that the PDCID was used with.
#[test]
fn a_reused_pdcid_starts_far_from_its_last_psn() {
    let mut alone = Alone::impatient();
    let mut last: Option<Psn> = None;
    for _ in 0..2_000 {
        let connection = alone.connect();
        alone.post_send(connection, message(10, 0));
        let packet = alone.transmit().unwrap();
        let Pds::Request(request) = &packet.pds else { panic!("{packet:?}") };
        assert_eq!(request.spdcid, PdcId(1));
        assert!(last.is_none_or(|last| request.psn.distance(last).unsigned_abs() >= 1 << 16));
        last = Some(request.psn);
        alone.arrive(&nack(&packet, NackCode::CLOSING), &[]);
    }
}

/// A copy of an acknowledgement that says TOO_LONG arrives when another message uses its PDCID and message number.
#[test]
fn a_late_refusal_does_not_fail_a_later_message() {
    let mut pair = Pair::impatient();
    pair.feps[1].post_receive(receive_any(5)).unwrap();
    let first = pair.connect();
    pair.post_send(first, message(10, 0));
    let request = pair.transmit(0).unwrap();
    pair.arrive(&request);
    let refusal = pair.transmit(1).unwrap();
    assert!(matches!(&refusal.packet.ses, Ses::Response(_)), "{refusal:?}");
    pair.arrive(&refusal);
    assert!(matches!(pair.sent_result(), Err(SendError::Answered(_))));
    pair.exchange();
    pair.close(first);
    assert!(matches!(pair.feps[0].poll_completion(), Some(Completion::Closed { result: Ok(()), .. })));

    pair.feps[1].post_receive(receive_any(10)).unwrap();
    let second = pair.connect();
    pair.post_send(second, message(10, 0));
    let transit = pair.transmit(0).unwrap();
    let Pds::Request(request) = &transit.packet.pds else { panic!("{transit:?}") };
    assert_eq!(request.spdcid, PdcId(1), "the same PDCID");
    pair.arrive(&refusal);
    pair.arrive(&transit);
    pair.exchange();
    assert_eq!(pair.sent_result(), Ok(()));
}

/// A peer asks with CLOSE_REQ, as idle targets do, or in an acknowledgement.
#[test]
fn a_close_that_the_peer_asked_for_is_reported_as_closed_by_the_peer() {
    for in_ack in [false, true] {
        let mut pair = Pair::impatient();
        let connection = pair.connect();
        pair.post_send(connection, message(10, 0));
        if in_ack {
            let request = pair.transmit(0).unwrap();
            pair.arrive(&request);
            let mut answer = pair.transmit(1).unwrap();
            let Pds::Ack(ack) = &mut answer.packet.pds else { panic!("{answer:?}") };
            ack.request = AckRequest::Close;
            pair.arrive(&answer);
        } else {
            pair.exchange();
            pair.expire_at(1, pair.now + pair.feps[1].config().idle_timeout);
        }
        pair.exchange();
        assert_eq!(pair.sent_result(), Ok(()));
        let done = pair.feps[0].poll_completion();
        let Some(Completion::Closed { id, result, .. }) = done else { panic!("{done:?}") };
        assert_eq!((id, result), (connection, Err(Failure::ClosedByPeer { pdc: PdcId(1), peer: Addr(1) })));
        assert_eq!(pair.leaks(0), NO_LEAKS);
    }
}

/// What counts is the time since the close began, not since the last message.
#[test]
fn a_close_after_a_long_idle_time_survives_the_loss_of_its_first_packet() {
    let idle = impatient_config().idle_timeout;
    let mut pair = Pair::new(&FepConfig { busy_timeout: idle.into(), ..impatient_config() });
    let connection = pair.connect();
    pair.post_send(connection, message(10, 0));
    pair.exchange();
    assert_eq!(pair.sent_result(), Ok(()));
    pair.expire_at(1, pair.now + idle);
    assert!(pair.flush(1), "the target asks for the close");
    let lost = pair.transmit(0).unwrap().packet;
    assert!(matches!(&lost.pds, Pds::Control(control) if control.kind == ControlKind::CloseCommand));
    while pair.wire.is_empty() && !pair.put_on_wire(0) {
        let due = pair.feps[0].poll_timeout().unwrap();
        pair.expire_at(0, due);
        if let Some(done) = pair.feps[0].poll_completion() {
            panic!("{done:?}");
        }
    }
    let again = pair.wire.remove(0);
    pair.arrive(&again);
    pair.exchange();
    let done = pair.feps[0].poll_completion();
    assert!(
        matches!(done, Some(Completion::Closed { result: Err(Failure::ClosedByPeer { .. }), .. })),
        "{done:?}"
    );
}

/// Otherwise the target forgets the PDC while its initiator still has it, and the next message fails.
#[test]
fn a_request_to_close_is_repeated_until_it_is_answered() {
    let mut pair = Pair::impatient();
    let idle = impatient_config().idle_timeout;
    pair.feps[1].post_receive(receive_any(10)).unwrap();
    let connection = pair.connect();
    pair.post_send(connection, message(10, 0));
    let mut asked = Vec::new();
    let done = pair.run(Time::ZERO + idle.times(3), |transit| {
        let asks = matches!(&transit.packet.pds, Pds::Control(c) if c.kind == ControlKind::CloseRequest);
        asked.extend(asks.then_some(transit.sent_at));
        (!asks || asked.len() > 6).then_some(Span::from_us(1))
    });
    let closed = |(_, done): &(Time, Completion)| {
        matches!(done, Completion::Closed { result: Err(Failure::ClosedByPeer { .. }), .. })
    };
    assert!(done.iter().any(closed), "{done:?}");
    assert_eq!(asked.len(), 7);
    assert!(asked.iter().all(|at| at.since(Time::ZERO) < idle.times(2)), "{asked:?}");
    assert_eq!((pair.leaks(0), pair.leaks(1)), (vec![], vec![]));
}

/// Otherwise the next message of the peer would be refused by an endpoint that comes at the same address later.
#[test]
fn an_endpoint_that_is_about_to_go_has_idle_connections_closed() {
    let mut pair = Pair::impatient();
    let connections = [pair.connect(), pair.connect()];
    for connection in connections {
        pair.post_send(connection, message(10, 0));
    }
    pair.exchange();
    assert_eq!((pair.sent_result(), pair.sent_result()), (Ok(()), Ok(())));
    // One has something to send when the request comes.
    pair.post_send(connections[1], message(10, 0));
    pair.feps[1].ask_to_close(pair.now);
    pair.exchange();
    let done = pair.completions(0);
    let is_closed = |done: &Completion, connection| match done {
        Completion::Closed { id, result, .. } => {
            *id == connection && matches!(result, Err(Failure::ClosedByPeer { .. }))
        }
        _ => false,
    };
    assert!(done.len() == 2 && done.iter().any(|done| is_closed(done, connections[0])), "{done:?}");
    assert!(done.iter().any(|done| matches!(done, Completion::Sent { result: Ok(()), .. })), "{done:?}");
    // It is asked again, after a retransmission timeout.
    pair.feps[1].ask_to_close(pair.now);
    assert!(pair.transmit(1).is_none());
    pair.now += impatient_config().zones.longest_rto();
    pair.feps[1].ask_to_close(pair.now);
    pair.exchange();
    let done = pair.completions(0);
    assert!(matches!(&done[..], [done] if is_closed(done, connections[1])), "{done:?}");
    assert_eq!(pair.feps[1].open_targets(), 0);
}

fn with_idle_connections(count: usize) -> Pair {
    let mut pair = Pair::impatient();
    for _ in 0..count {
        let connection = pair.connect();
        pair.post_send(connection, message(10, 0));
    }
    pair.exchange();
    pair
}

/// A peer may have thousands of PDCs, and there is room for so many control packets only.
#[test]
fn an_endpoint_that_is_about_to_go_asks_64_initiators_at_once() {
    let mut pair = with_idle_connections(100);
    for left in [36, 0] {
        pair.feps[1].ask_to_close(pair.now);
        pair.exchange();
        assert_eq!(pair.feps[1].open_targets(), left);
    }
}

/// Initiators that do not answer keep no others from being asked.
#[test]
fn an_endpoint_that_is_about_to_go_asks_all_initiators_in_turn() {
    let mut pair = with_idle_connections(100);
    let mut asked = BTreeSet::new();
    for _ in 0..2 {
        pair.feps[1].ask_to_close(pair.now);
        while let Some(lost) = pair.transmit(1) {
            let Pds::Control(Control { spdcid, .. }) = lost.packet.pds else { panic!("{:?}", lost.packet) };
            asked.insert(spdcid);
        }
        pair.now += impatient_config().zones.longest_rto();
    }
    assert_eq!(asked.len(), 100);
}

/// Whoever knows that a peer is gone need not wait for twice the idle time. One that was heard just now is not.
#[test]
fn a_peer_that_is_given_up_leaves_no_receive_that_waits_for_the_rest_of_a_message() {
    let mut pair = Pair::impatient();
    let silence = Span::from_ms(2);
    assert!(silence < impatient_config().idle_timeout);
    pair.feps[1].post_receive(receive_any(100_000)).unwrap();
    let connection = pair.connect();
    pair.post_send(connection, message(100_000, 0));
    let first = pair.transmit(0).unwrap();
    pair.arrive(&first);
    let heard = pair.now;
    pair.feps[1].give_up_peer(heard + Span::from_ms(1), Addr(0), silence);
    pair.feps[1].give_up_peer(heard + silence, Addr(7), silence);
    pair.feps[1].on_timeout(heard + silence);
    assert!(pair.completions(1).is_empty());
    pair.feps[1].give_up_peer(heard + silence, Addr(0), silence);
    assert!(pair.feps[1].poll_timeout().is_some_and(|at| at == heard + silence));
    pair.feps[1].on_timeout(heard + silence);
    let ended = pair.completions(1);
    assert!(matches!(ended[..], [Completion::Received { result: Err(_), .. }]), "{ended:?}");
}

/// A peer that repeats itself is alive, even if none of its packets is new.
#[test]
fn duplicates_keep_a_pdc_open() {
    let mut alone = Alone::impatient();
    let idle = alone.fep.config().idle_timeout;
    let half = Span::from_ps(idle.as_ps() / 2);
    let packet = syn(5, 1, 0, 3_000);
    alone.arrive(&packet, &[0; 100]);
    let is_open = |fep: &Fep| fep.leaks().any(|what| what.contains("PDCs of peers"));
    for halves in 1..=12u64 {
        alone.expire_at(Time::ZERO + half.times(halves));
        if [3, 6].contains(&halves) {
            alone.arrive(&packet, &[0; 100]);
        }
        let now = format!("at {halves} half idle times; the last packet comes at 6, and the PDC ends at 10");
        assert_eq!(is_open(&alone.fep), halves < 10, "{now}");
    }
}

/// CLOSE_CMD of the peer's PDC `pdc` to the target's PDC `to`.
fn close_command(pdc: u16, to: PdcId) -> Packet {
    let control = Control {
        kind: ControlKind::CloseCommand,
        rod: false,
        retx: false,
        ack_request: true,
        probe_opaque: 0,
        psn: Psn(1),
        spdcid: PdcId(pdc),
        destination: Destination::Pdc(to),
        payload: 0,
    };
    Packet { payload_len: 0, pds: Pds::Control(control), ses: Ses::None, ..syn(5, pdc, 0, 100) }
}

/// The target's answer to a peer that opens a PDC: the target's PDCID, or the code of a NACK.
fn try_open(alone: &mut Alone, src: u32, pdc: u16) -> Result<PdcId, NackCode> {
    alone.arrive(&syn(src, pdc, 0, 100), &[0; 100]);
    match alone.transmit().expect("an answer").pds {
        Pds::Ack(ack) => Ok(ack.spdcid),
        Pds::Nack(nack) => Err(nack.code),
        other => panic!("{other:?}"),
    }
}

/// A target remembers a limited number of closed PDCs. It refuses new ones beyond that, rather than forget.
#[test]
fn a_target_refuses_new_pdcs_when_it_remembers_too_many_closed_ones() {
    let limits = Limits { closed_pdcs_per_peer: 3, ..Limits::default() };
    let mut alone = Alone::new(FepConfig { limits, ..impatient_config() });
    for pdc in 1..=3 {
        let id = try_open(&mut alone, 5, pdc).unwrap();
        alone.arrive(&close_command(pdc, id), &[]);
        assert!(matches!(alone.transmit().unwrap().pds, Pds::Ack(_)));
    }
    assert_eq!(try_open(&mut alone, 5, 4), Err(NackCode::NO_PDC_AVAIL));
    assert!(try_open(&mut alone, 6, 4).is_ok(), "other peers have their own share");
    alone.arrive(&syn(5, 1, 0, 100), &[0; 100]);
    assert!(alone.transmit().is_none(), "the target still remembers the first one");
    alone.expire_at(Time::ZERO + alone.fep.config().time_wait);
    assert!(try_open(&mut alone, 5, 4).is_ok());
}
