//! PDCs that their initiators close.

use weft_cc::{Needs, Span};

use super::message;
use super::samples::{MTU, pair, transmit_all, us};
use crate::fep::{ConnectOptions, Fep, MAX_PROCESS};
use crate::packet::{Addr, Packet, Payload};
use crate::steps;

fn read(fep: &mut Fep, now: weft_cc::Time, packets: &[Packet]) {
    for packet in packets {
        fep.on_packet(now, packet, Payload::Bytes(&[1; MTU][..packet.payload_len as usize]));
    }
    if fep.poll_timeout().is_some_and(|at| now.is_at_or_after(at)) {
        fep.on_timeout(now);
    }
}

/// As many as packets are read together, at an endpoint with as many processes as there can be.
#[test]
fn processes_are_not_looked_at_for_pdcs_that_are_closed_without_incomplete_messages() {
    const PDCS: usize = 32;
    let mut pair = pair(64, Needs::NONE);
    (1..=MAX_PROCESS).for_each(|process| pair.receiver.open_process(process).unwrap());
    for _ in 0..PDCS {
        let connection = pair.sender.connect(us(0), Addr(1), ConnectOptions::default()).unwrap();
        pair.sender.post_send(connection, message(MTU)).unwrap();
        pair.sender.close(us(0), connection).unwrap();
    }
    let (mut steps, mut most, mut now) = (0, 0, us(0));
    for _ in 0..200 {
        now += Span::from_us(50);
        let packets = transmit_all(&mut pair.sender, now);
        steps += steps::of(|| read(&mut pair.receiver, now, &packets));
        most = most.max(pair.receiver.open_targets());
        let answers = transmit_all(&mut pair.receiver, now);
        read(&mut pair.sender, now, &answers);
    }
    assert_eq!((most, pair.receiver.open_targets()), (PDCS, 0), "all were open, and are closed");
    assert!(steps < u64::from(MAX_PROCESS), "{steps}");
}
