//! Connections that pause because their targets are busy.

use weft_cc::Time;

use super::{fep, message};
use crate::fep::target::nack;
use crate::fep::{ConnectOptions, Limits};
use crate::packet::{Addr, Network, Packet, Payload};
use crate::steps;
use crate::wire::pds::{NackCode, Pds, Psn};
use crate::wire::ses::Ses;

/// The target has one packet, refuses another one, and is silent then.
#[test]
fn a_window_that_expires_during_a_pause_takes_few_steps_for_each_packet() {
    let [mut sender, mut target] = [(); 2].map(|()| fep(Limits::default()));
    let connection = sender.connect(Time::ZERO, Addr(1), ConnectOptions::default()).unwrap();
    (0..1_000).for_each(|_| _ = sender.post_send(connection, message(1)).unwrap());
    let first = sender.poll_transmit(Time::ZERO).unwrap().packet;
    let Pds::Request(request) = first.pds else { panic!("{first:?} is no request") };
    let mut sent = 1;
    while sender.poll_transmit(Time::ZERO).is_some() {
        sent += 1;
    }
    target.on_packet(Time::ZERO, &first, Payload::Virtual(1));
    let answer = target.poll_transmit(Time::ZERO).unwrap().packet;
    let Pds::Ack(ack) = answer.pds else { panic!("{answer:?} is no acknowledgement") };
    let net = Network { src: Addr(1), ..answer.net };
    sender.on_packet(Time::ZERO, &Packet { net, ..answer }, Payload::EMPTY);
    while sender.poll_transmit(Time::ZERO).is_some() {
        sent += 1;
    }
    assert!(sent > 100, "{sent}");
    let refusal = nack(NackCode::NO_PKT_BUFFER, Psn(request.psn.0 + 1), request.spdcid, ack.spdcid);
    let refusal = Packet { net, payload_len: 0, pds: Pds::Nack(refusal), ses: Ses::None };
    sender.on_packet(Time::ZERO, &refusal, Payload::EMPTY);

    let (mut most, mut calls) = (0, 0);
    while most == 0 {
        let now = sender.poll_timeout().unwrap();
        most = steps::of(|| sender.on_timeout(now));
        calls += 1;
        assert!(calls < 100, "nothing expires");
    }
    assert!((sent / 2..8 * sent).contains(&most), "{most} for {sent} packets");
}
