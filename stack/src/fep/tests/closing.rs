//! PDCs that their initiators close.

use weft_cc::{Needs, Span};

use super::early::{close, packet, received, template};
use super::samples::{MTU, pair, transmit_all, us};
use super::{fep, message};
use crate::buffer::Buffer;
use crate::fep::core::EarlyShare;
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

/// Bytes of each early message, and how many of them a PDC has that ends with the packet which closes it.
const EARLY: u32 = 16_000;
const EARLY_EACH: u16 = 16;
/// Bytes and messages that a turn, or a call, may take: of each half the last message may exceed it.
const A_TURN: u64 = EarlyShare::OF_A_TURN + 2 * EARLY as u64 + 300;

/// An endpoint with as many receives as there are early messages, on PDCs the first packet of each of which is missing.
fn fep_with_early(limits: Limits, pdcs: u16) -> Fep {
    let template = template();
    let mut fep = fep(limits);
    for _ in 0..pdcs * EARLY_EACH {
        fep.post_receive(receive(EARLY)).unwrap();
    }
    for pdc in 1..=pdcs {
        for number in 1..=EARLY_EACH {
            let mut whole = packet(&template, DeliveryMode::Rud, pdc, number);
            let Ses::Standard(header) = &mut whole.ses else { panic!("{whole:?} is no message") };
            header.request_length = EARLY;
            whole.payload_len = EARLY;
            fep.on_packet(us(0), &whole, Payload::Virtual(EARLY));
            super::early::transmit_all(&mut fep);
        }
    }
    assert_eq!((fep.open_targets(), fep.poll_completion().is_some()), (pdcs.into(), false));
    fep
}

/// They are copied to receives as the PDCs end.
#[test]
fn early_messages_of_pdcs_that_are_closed_together_are_copied_bit_by_bit() {
    const PDCS: u16 = 64;
    let template = template();
    let mut fep = fep_with_early(Limits::default(), PDCS);
    let steps = steps::of(|| {
        for pdc in 1..=PDCS {
            fep.on_packet(us(0), &close(&template, pdc, 0), Payload::EMPTY);
        }
    });
    assert!(steps <= A_TURN, "{steps}");
    super::early::transmit_all(&mut fep);
    fep.check_accounts();
    // One that is over accepts nothing, so that nothing gets behind what is left of it.
    let refused = fep.counters().nacks_sent;
    let last = packet(&template, DeliveryMode::Rud, PDCS, EARLY_EACH + 1);
    fep.on_packet(us(0), &last, Payload::Virtual(0));
    assert_eq!(fep.counters().nacks_sent - refused, 1);
    let mut calls = 0;
    while fep.poll_timeout().is_some_and(|at| at == us(0)) {
        let steps = steps::of(|| fep.on_timeout(us(0)));
        assert!(steps <= A_TURN, "{steps}");
        super::early::transmit_all(&mut fep);
        fep.check_accounts();
        calls += 1;
    }
    let all = u64::from(PDCS * EARLY_EACH) * (u64::from(EARLY) + EarlyShare::EACH);
    assert!(calls <= all.div_ceil(EarlyShare::OF_A_TURN), "{calls}");
    assert_eq!(fep.open_targets(), 0);
    let tags = received(&mut fep);
    for pdc in 1..=PDCS {
        let of_pdc = tags.iter().filter(|tag| **tag >> 16 == pdc.into()).map(|tag| *tag as u16);
        assert!(of_pdc.eq(1..=EARLY_EACH), "those of PDC {pdc} are in order");
    }
}

/// Each would be copied for a packet, if there were not too many.
#[test]
fn half_open_pdcs_with_early_messages_make_room_for_few_in_a_turn() {
    const PDCS: u16 = 64;
    let template = template();
    let limits = Limits { half_open_pdcs: PDCS.into(), ..Limits::default() };
    let mut fep = fep_with_early(limits, PDCS);
    let mut syns = |now, pdcs: std::ops::RangeInclusive<u16>| {
        let refused = fep.counters().nacks_sent;
        let steps = steps::of(|| {
            for pdc in pdcs {
                fep.on_packet(now, &packet(&template, DeliveryMode::Rud, pdc, 0), Payload::Virtual(0));
                super::early::transmit_all(&mut fep);
            }
        });
        fep.check_accounts();
        (steps, fep.counters().nacks_sent - refused)
    };
    let most = EarlyShare::OF_A_TURN + u64::from(EARLY_EACH) * u64::from(EARLY) + 300;
    let (steps, refused) = syns(us(1), PDCS + 1..=PDCS + 8);
    assert!(steps <= most && refused == 7, "{steps}, {refused}");
    let (steps, refused) = syns(us(2), PDCS + 8..=PDCS + 8);
    assert!(steps <= most && refused == 0, "{steps}, {refused}");
}
