//! SYNs that ask for a PDC whose name another one has: forged ones, late ones, and those of a peer that was started anew.

use std::sync::Arc;

use crate::harness::{NO_LEAKS, Pair, SHORT_RTO, Transit, fep, impatient_config, message, receive_any};
use weft_stack::Time;
use weft_stack::buffer::Buffer;
use weft_stack::cc::CcChoice;
use weft_stack::fep::{Completion, ConnectOptions, Exposure, FepConfig, Read, Rights};
use weft_stack::wire::pds::{ControlKind, DeliveryMode, Destination, NackCode, Pds};

/// A data packet as a blind attacker makes it up, from one of the PDC: its names are small numbers, its PSN is not.
fn forge(like: &Transit, ahead: u32) -> Transit {
    let mut forged = like.duplicate();
    let Pds::Request(request) = &mut forged.packet.pds else { panic!("{like:?}") };
    request.psn = request.psn.plus(ahead);
    request.destination = Destination::Syn { use_reserved: false, psn_offset: 3 };
    forged
}

/// The PSN that a stray SYN has, from one of the live PDC: near it, and on the other side of the circle.
const STRAYS: [u32; 4] = [50, 1 << 15, 1 << 20, 1 << 31];

#[test]
fn a_forged_syn_does_not_disturb_a_transfer() {
    for ahead in STRAYS {
        for mode in [DeliveryMode::Rud, DeliveryMode::Rod] {
            let mut pair = Pair::impatient();
            pair.feps[1].post_receive(receive_any(60_000)).unwrap();
            let connection = pair.connect_from(0, ConnectOptions { mode, ..ConnectOptions::default() });
            pair.post_send(connection, message(60_000, 0));
            let first = pair.transmit(0).unwrap();
            pair.arrive(&first);
            let mut sent = 0;
            while let Some(transit) = pair.transmit(0) {
                pair.arrive(&forge(&first, ahead));
                pair.arrive(&transit);
                pair.flush(1);
                sent += 1;
            }
            // No timer expires: what the forged packets lead to takes no time from the transfer.
            assert!(sent > 10);
            assert_eq!(pair.sent_result(), Ok(()), "{ahead} {mode:?}");
            let done = pair.feps[1].poll_completion();
            assert!(
                matches!(&done, Some(Completion::Received { len: 60_000, result: Ok(()), .. })),
                "{done:?}"
            );
            assert_eq!(pair.feps[0].counters().data_retransmitted, 0);
        }
    }
}

#[test]
fn a_forged_syn_does_not_close_an_idle_connection() {
    for ahead in STRAYS {
        let mut pair = Pair::impatient();
        let connection = pair.connect();
        pair.post_send(connection, message(100, 0));
        let first = pair.transmit(0).unwrap();
        pair.arrive(&first);
        pair.exchange();
        assert_eq!(pair.sent_result(), Ok(()));
        // Again and again, for longer than a silent peer is waited for.
        for _ in 0..20 {
            pair.now += SHORT_RTO;
            pair.arrive(&forge(&first, ahead));
            pair.exchange();
        }
        pair.post_send(connection, message(100, 1));
        pair.exchange();
        assert_eq!(pair.sent_result(), Ok(()), "{ahead}");
        assert_eq!((pair.completions(0).len(), pair.feps[1].open_targets()), (0, 1));
    }
}

/// The reader has a request to send that would clear a response, but its window holds the request back. It must not
/// leave the target's question to that request.
#[test]
fn a_reader_whose_window_is_full_answers_a_challenge() {
    let mut cc = CcChoice::parse("constant").unwrap();
    cc.set("window", "2128").unwrap();
    let mut pair = Pair::new(&FepConfig::new(&cc, impatient_config().zones.default.cc.params()));
    pair.feps[1]
        .expose(
            0,
            Exposure {
                key: 1,
                buffer: Buffer::Heap(vec![7; 9_000]),
                base: 0,
                rights: Rights::READ,
                from: None,
            },
        )
        .unwrap();
    let connection = pair.connect();
    let read = Read { buffer: Buffer::Heap(vec![0; 9_000]), key: 1, offset: 0, context: 0 };
    pair.feps[0].post_read(connection, read).unwrap();
    let [first, second] = [0; 2].map(|side| pair.transmit(side).unwrap());
    pair.arrive(&first);
    let response = pair.transmit(1).unwrap();
    pair.arrive(&second);
    let _delayed = pair.transmit(1).unwrap();
    pair.arrive(&response);
    let lost = pair.transmit(0).unwrap();
    assert!(lost.is_data() && pair.transmit(0).is_none(), "the window is full again");
    pair.arrive(&forge(&first, 1 << 20));
    let question = pair.transmit(1).expect("a question");
    for _ in 0..2 {
        pair.arrive(&question);
        let answer = pair.transmit(0).expect("an answer to each question");
        let Pds::Control(control) = &answer.packet.pds else { panic!("{answer:?}") };
        assert_eq!(control.kind, ControlKind::ClearCommand);
    }
}

/// Endpoint 0 with an open PDC is replaced by another one at the same address, which uses the same PDCID.
fn restarted() -> Pair {
    let mut pair = Pair::impatient();
    let connection = pair.connect();
    pair.post_send(connection, message(100, 0));
    pair.exchange();
    assert_eq!(pair.sent_result(), Ok(()));
    pair.feps[0] = fep(0, Arc::new(impatient_config()), 77, pair.now);
    pair
}

#[test]
fn a_peer_that_was_started_anew_is_let_in_after_one_timeout() {
    let mut pair = restarted();
    let connection = pair.connect();
    pair.post_send(connection, message(30_000, 1));
    pair.exchange();
    let begin = pair.now;
    while pair.feps[0].poll_completion().is_none() {
        let at = pair.next_timer().unwrap();
        assert!(at.since(begin) <= SHORT_RTO, "{:?}", pair.explain());
        pair.now = at;
        (0..2).for_each(|side| pair.feps[side].on_timeout(at));
        pair.exchange();
    }
    pair.close(connection);
    assert_eq!(pair.feps[1].open_targets(), 0, "nothing of the old PDC is left");
}

/// The peer's new process says nothing to challenges, as implementations may that do not know them.
#[test]
fn a_peer_that_does_not_answer_challenges_is_let_in_before_it_gives_up() {
    let mut pair = restarted();
    let connection = pair.connect();
    pair.post_send(connection, message(3_000, 1));
    let begin = pair.now;
    loop {
        while let Some(transit) = pair.transmit(0) {
            if transit.is_data() {
                pair.arrive(&transit);
            }
        }
        pair.flush(1);
        match pair.feps[0].poll_completion() {
            Some(Completion::Sent { result, .. }) => break assert_eq!(result, Ok(())),
            Some(other) => panic!("{other:?}"),
            None => {}
        }
        let at = pair.next_timer().unwrap();
        pair.now = at;
        (0..2).for_each(|side| pair.feps[side].on_timeout(at));
    }
    assert!(pair.now.since(begin) <= SHORT_RTO.times(16), "{:?}", pair.now.since(begin));
}

/// A denial has to name the PSN of the challenge, which only who has received it knows.
#[test]
fn a_forged_denial_of_a_live_pdc_is_ignored() {
    let mut pair = restarted();
    let connection = pair.connect();
    pair.post_send(connection, message(100, 1));
    let syn = pair.transmit(0).unwrap();
    pair.arrive(&syn);
    pair.flush(1);
    let denial = pair.transmit(0).unwrap();
    for wrong in [true, false] {
        let mut denial = denial.duplicate();
        let Pds::Nack(nack) = &mut denial.packet.pds else { panic!("{denial:?}") };
        assert_eq!(nack.code, NackCode::INV_DPDCID);
        nack.psn = nack.psn.plus(u32::from(wrong));
        pair.arrive(&denial);
        assert_eq!(pair.feps[1].open_targets(), usize::from(wrong));
    }
}

/// Whoever asked for a PDC in the name of this endpoint, it is not here.
#[test]
fn a_request_to_close_an_unknown_pdc_is_denied() {
    let mut pair = restarted();
    let idle = pair.feps[1].config().idle_timeout;
    pair.expire_at(1, pair.now + idle);
    let ask = pair.transmit(1).unwrap();
    let Pds::Control(control) = &ask.packet.pds else { panic!("{ask:?}") };
    assert_eq!(control.kind, ControlKind::CloseRequest);
    pair.arrive(&ask);
    assert!(pair.flush(0), "there is an answer");
    assert_eq!(pair.feps[1].open_targets(), 0);
    pair.expire_at(1, Time::ZERO + idle + idle);
    assert_eq!(pair.leaks(1), ["1 messages on their way in"], "which has arrived");
    assert_eq!(pair.leaks(0), NO_LEAKS);
}
