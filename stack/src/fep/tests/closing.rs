//! PDCs that their initiators close.

use weft_cc::{Needs, Span};

use super::early::{close, packet, template};
use super::samples::{MTU, pair, transmit_all, us};
use super::{fep, message};
use crate::buffer::Buffer;
use crate::fep::{Completion, ConnectOptions, Fep, Limits, MAX_PROCESS, Receive, ReceiveError};
use crate::packet::{Addr, Packet, Payload};
use crate::ses::Matching;
use crate::steps;
use crate::wire::pds::DeliveryMode;
use crate::wire::ses::Ses;

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

/// A receive of `len` bytes that takes any tagged message.
fn receive(len: u32) -> Receive {
    let matching = Matching::Tagged { tag: 0, ignore: u64::MAX };
    Receive { buffer: Buffer::Virtual(len), from: None, matching, context: 0 }
}

/// The processes that the messages are for have receives, or are closed, or have neither.
#[test]
fn only_processes_with_incomplete_messages_of_a_pdc_are_looked_at_when_it_closes() {
    const PDCS: u16 = 8;
    const PROCESSES: [u16; 3] = [0, 500, 1_000];
    let template = template();
    let mut fep = fep(Limits::default());
    (1..=1_000).for_each(|process| fep.open_process(process).unwrap());
    for process in [0, 500].into_iter().flat_map(|process| [process; PDCS as usize]) {
        fep.post_receive_of(process, receive(2)).unwrap();
    }
    for pdc in 1..=PDCS {
        // Each has a second message for the last process, and that is complete.
        for (number, process) in (0..).zip(PROCESSES.into_iter().chain([1_000])) {
            let mut first = packet(&template, DeliveryMode::Rud, pdc, number);
            let Ses::Standard(header) = &mut first.ses else { panic!("{first:?} is no message") };
            header.pid_on_fep = process;
            header.request_length = if number < 3 { 2 } else { 1 };
            first.payload_len = 1;
            fep.on_packet(us(0), &first, Payload::Virtual(1));
            super::early::transmit_all(&mut fep);
        }
    }
    fep.begin_close_process(500).unwrap();
    fep.check_accounts();
    for pdc in (1..=PDCS).rev() {
        let steps = steps::of(|| fep.on_packet(us(0), &close(&template, pdc, 4), Payload::EMPTY));
        assert_eq!(steps, PROCESSES.len() as u64);
        super::early::transmit_all(&mut fep);
        fep.check_accounts();
    }
    assert_eq!(fep.open_targets(), 0);
    let lost = std::iter::from_fn(|| fep.poll_completion()).filter(|completion| {
        matches!(completion, Completion::Received { result: Err(ReceiveError::PeerLost), .. })
    });
    assert_eq!(lost.count(), PDCS.into(), "the receives of process 0; those of process 500 are gone");
    assert_eq!(fep.kept_messages_of(1_000, Addr(1)), PDCS.into(), "the complete ones");
}
