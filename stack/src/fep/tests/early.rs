//! Messages and packets that arrive early, on many PDCs, and all that are missing arrive in one turn.

use weft_cc::Time;

use super::{fep, fep_with, message};
use crate::buffer::Buffer;
use crate::fep::core::EarlyShare;
use crate::fep::{Completion, ConnectOptions, Fep, Limits, Receive, Send};
use crate::packet::{Addr, Network, Packet, Payload};
use crate::pdc::RodReceive;
use crate::ses::Matching;
use crate::steps;
use crate::wire::pds::{Control, ControlKind, DeliveryMode, Destination, PdcId, Pds, Psn};
use crate::wire::ses::{Placement, Ses};

/// PDCs of a peer, and the messages of each of which all but the first one arrive early.
const PDCS: u16 = 32;
const EACH: u16 = 250;
/// Messages and packets that may be taken in a turn: these are empty.
const A_TURN: u64 = EarlyShare::OF_A_TURN.div_ceil(EarlyShare::EACH);

/// A peer's packet that opens a PDC and leaves an empty message.
pub(super) fn template() -> Packet {
    let mut peer = fep(Limits::default());
    let connection = peer.connect(Time::ZERO, Addr(1), ConnectOptions::default()).unwrap();
    peer.post_send(connection, Send { tag: Some(0), ..message(0) }).unwrap();
    let Packet { net, payload_len, pds, ses } = peer.poll_transmit(Time::ZERO).unwrap().packet;
    let net = Network { src: Addr(1), dst: Addr(0), ..net };
    Packet { net, payload_len, pds, ses }
}

/// Message `number` of PDC `pdc`, whose tag names both.
pub(super) fn packet(template: &Packet, mode: DeliveryMode, pdc: u16, number: u16) -> Packet {
    let mut packet = *template;
    let (Pds::Request(request), Ses::Standard(header)) = (&mut packet.pds, &mut packet.ses) else {
        panic!("{template:?} is no message")
    };
    request.mode = mode;
    request.psn = Psn(number.into());
    request.spdcid = PdcId(pdc);
    request.destination = Destination::Syn { use_reserved: false, psn_offset: number };
    header.msg_id = number;
    header.match_bits = u64::from(pdc) << 16 | u64::from(number);
    packet
}

/// The command with this PSN that closes a PDC.
pub(super) fn close(template: &Packet, pdc: u16, psn: u16) -> Packet {
    let control = Control {
        kind: ControlKind::CloseCommand,
        rod: false,
        retx: false,
        ack_request: true,
        probe_opaque: 0,
        psn: Psn(psn.into()),
        spdcid: PdcId(pdc),
        destination: Destination::Syn { use_reserved: false, psn_offset: psn },
        payload: 0,
    };
    Packet { payload_len: 0, pds: Pds::Control(control), ses: Ses::None, ..*template }
}

/// A receive of an empty message of any tag.
fn any_receive(context: u64) -> Receive {
    let matching = Matching::Tagged { tag: 0, ignore: u64::MAX };
    Receive { buffer: Buffer::Virtual(0), from: None, matching, context }
}

/// Takes what the endpoint sends, so that its queues have room.
pub(super) fn transmit_all(fep: &mut Fep) {
    while fep.poll_transmit(Time::ZERO).is_some() {}
}

/// The tags of the messages that receives have got.
pub(super) fn received(fep: &mut Fep) -> Vec<u64> {
    let tag = |completion| match completion {
        Completion::Received { tag, result: Ok(()), .. } => tag,
        _ => None,
    };
    std::iter::from_fn(|| fep.poll_completion()).filter_map(tag).collect()
}

/// A peer may have a window of early messages on each of its PDCs, and send all that they wait for at once.
#[test]
fn what_arrived_early_is_taken_bit_by_bit_and_in_order() {
    let template = template();
    for mode in [DeliveryMode::Rud, DeliveryMode::Rod] {
        let mut fep = fep_with(|config| config.rod_receive = RodReceive::Reorder);
        let on_packet = |fep: &mut Fep, packet: &Packet| {
            fep.on_packet(Time::ZERO, packet, Payload::Virtual(0));
        };
        for context in 0..u64::from(PDCS) * u64::from(EACH + 1) {
            fep.post_receive(any_receive(context)).unwrap();
        }
        for pdc in 1..=PDCS {
            for number in 1..EACH {
                on_packet(&mut fep, &packet(&template, mode, pdc, number));
                transmit_all(&mut fep);
            }
        }
        assert_eq!(received(&mut fep), [0; 0]);

        let steps = steps::of(|| {
            (1..=PDCS).for_each(|pdc| on_packet(&mut fep, &packet(&template, mode, pdc, 0)));
        });
        assert_eq!(steps, A_TURN, "{mode:?}");
        transmit_all(&mut fep);
        // What comes now stays behind them, and a PDC that is closed leaves them to their receives.
        on_packet(&mut fep, &packet(&template, mode, PDCS, EACH));
        if mode == DeliveryMode::Rud {
            on_packet(&mut fep, &close(&template, PDCS, EACH + 1));
        }
        let mut tags = received(&mut fep);
        while fep.poll_timeout().is_some_and(|at| at == Time::ZERO) {
            let steps = steps::of(|| fep.on_timeout(Time::ZERO));
            assert!(steps <= A_TURN, "{steps} in {mode:?}");
            transmit_all(&mut fep);
            tags.extend(received(&mut fep));
        }
        assert_eq!(tags.len(), usize::from(PDCS * EACH) + 1);
        for pdc in 1..=PDCS {
            let of_pdc = tags.iter().filter(|tag| **tag >> 16 == pdc.into()).map(|tag| *tag as u16);
            let last = if pdc == PDCS { EACH } else { EACH - 1 };
            assert!(of_pdc.eq(0..=last), "those of PDC {pdc} are in order in {mode:?}");
        }
    }
}

/// The endpoint takes what has been put off, and what it sends is dropped.
fn take_all(fep: &mut Fep) {
    while fep.poll_timeout().is_some_and(|at| at == Time::ZERO) {
        fep.on_timeout(Time::ZERO);
        transmit_all(fep);
    }
}

/// Packets of a PDC arrive one after the other. Returns how many of them are refused.
fn refused(fep: &mut Fep, packets: impl Iterator<Item = Packet>) -> u64 {
    let before = fep.counters().nacks_sent;
    for packet in packets {
        fep.on_packet(Time::ZERO, &packet, Payload::Virtual(0));
        transmit_all(fep);
    }
    fep.counters().nacks_sent - before
}

/// They have come in their turn, but those before them have not been matched yet.
#[test]
fn messages_behind_those_that_are_put_off_need_places() {
    let template = template();
    const MORE: u16 = 20;
    let mut fep = fep(Limits { unexpected_messages_per_peer: u32::from(EACH + MORE), ..Limits::default() });
    let mut arrive = |numbers: &mut dyn Iterator<Item = u16>| {
        refused(&mut fep, numbers.map(|number| packet(&template, DeliveryMode::Rud, 1, number)))
    };
    assert_eq!(arrive(&mut (1..EACH)), 0);
    assert_eq!(arrive(&mut (0..1)), 0);
    assert_eq!(arrive(&mut (EACH..EACH + 2 * MORE)), MORE.into());
    take_all(&mut fep);
    assert_eq!(fep.kept_messages_of(0, Addr(1)), u32::from(EACH + MORE));
}

/// Others use up what may be done in a turn, and packets go on to arrive in it.
#[test]
fn no_more_messages_of_a_pdc_are_put_off_than_twice_its_window() {
    let template = template();
    let mut most = 0;
    let mut fep = fep_with(|config| most = 2 * config.zones.default.pdc.mp_range as u16);
    let of_pdc = |pdc, number| packet(&template, DeliveryMode::Rud, pdc, number);
    assert_eq!(refused(&mut fep, (1..EACH).map(|number| of_pdc(1, number))), 0);
    assert_eq!(refused(&mut fep, [of_pdc(2, 1), of_pdc(1, 0), of_pdc(2, 0)].into_iter()), 0);
    assert_eq!(refused(&mut fep, (2..most + 1).map(|number| of_pdc(2, number))), 0);
    assert_eq!(refused(&mut fep, [of_pdc(2, most + 1)].into_iter()), 1);
    take_all(&mut fep);
    assert_eq!(refused(&mut fep, [of_pdc(2, most + 1)].into_iter()), 0);
}

/// One packet reserves places for all messages that could come before its own. It may be sent in the name of any host.
#[test]
fn peers_that_reserve_all_places_they_can_leave_some_to_peers_that_are_there() {
    let template = template();
    const OFFSET: u16 = 100;
    // Half of them is reserved for the two processes.
    let mut fep = fep(Limits { processes: 2, unexpected_messages: 8_192, ..Limits::default() });
    let of_peer = |peer, pdc, number| {
        let packet = packet(&template, DeliveryMode::Rud, pdc, number);
        Packet { net: Network { src: Addr(peer), ..packet.net }, ..packet }
    };
    let mut reserved = [0; 4];
    for (peer, reserved) in (1..).zip(&mut reserved) {
        let is_taken = |pdc: &u16| refused(&mut fep, [of_peer(peer, *pdc, OFFSET)].into_iter()) == 0;
        *reserved = (1..500).take_while(is_taken).count() as u32 * (u32::from(OFFSET) + 1);
    }
    let (_, _, early) = fep.check_accounts();
    assert_eq!(u64::from(reserved.iter().sum::<u32>()), early);
    assert!(reserved.is_sorted_by(|more, fewer| more >= fewer) && reserved[1] > 0, "{reserved:?}");
    assert!(early <= 4_096 / 4, "{early} of what is reserved for no process");

    fep.on_packet(Time::ZERO, &of_peer(5, 1, 0), Payload::Virtual(0));
    let Pds::Ack(ack) = fep.poll_transmit(Time::ZERO).unwrap().packet.pds else { panic!("it was refused") };
    let named = |number| {
        let mut packet = of_peer(5, 1, number);
        let Pds::Request(request) = &mut packet.pds else { unreachable!() };
        request.destination = Destination::Pdc(ack.spdcid);
        packet
    };
    assert_eq!(refused(&mut fep, [named(300), named(1)].into_iter()), 0);
}

/// The numbers of a PDC's messages are those of its initiator, which could give several messages the same.
#[test]
fn messages_of_equal_numbers_for_several_processes_need_a_place_each() {
    let template = template();
    const PROCESSES: u16 = 8;
    const MOST: u32 = 40;
    let limits = Limits { unexpected_messages_per_peer: MOST, ..Limits::default() };
    let mut fep = fep(limits);
    (1..PROCESSES).for_each(|process| fep.open_process(process).unwrap());
    let of_process = |process, msg_id, number| {
        let mut packet = packet(&template, DeliveryMode::Rud, 1, number);
        let Ses::Standard(header) = &mut packet.ses else { unreachable!() };
        (header.pid_on_fep, header.msg_id) = (process, msg_id);
        packet
    };
    let early = (1..200).map(|number| of_process(number % PROCESSES, 1 + number / PROCESSES, number));
    let taken = 199 - refused(&mut fep, early);
    let (_, _, places) = fep.check_accounts();
    assert_eq!((places, places), (taken, MOST.into()));
    // The one that they wait for meets a receive, and needs no place.
    fep.post_receive(any_receive(0)).unwrap();
    assert_eq!(refused(&mut fep, [of_process(0, 0, 0)].into_iter()), 0);
    take_all(&mut fep);
    let (kept, _, places) = fep.check_accounts();
    assert_eq!((kept, places), (taken, 0));
}

/// A packet is the beginning of one message after the other, and never accepted.
#[test]
fn messages_that_begin_in_their_turn_over_and_over_take_no_place_of_early_ones() {
    let template = template();
    let mut fep = fep(Limits::default());
    let of = |number| packet(&template, DeliveryMode::Rud, 1, number);
    assert_eq!(refused(&mut fep, [of(5), of(6)].into_iter()), 0);
    let malformed = (100..150).map(|msg_id| {
        let mut packet = of(0);
        let Ses::Standard(header) = &mut packet.ses else { unreachable!() };
        // No packet of any length but 5 begins there.
        header.placement = Placement::Continue { payload_len: 10, msg_offset: 15 };
        (header.msg_id, header.request_length) = (msg_id, 10_000);
        Packet { payload_len: 10, ..packet }
    });
    for packet in malformed {
        let ignored = fep.counters().ignored;
        fep.on_packet(Time::ZERO, &packet, Payload::Virtual(10));
        transmit_all(&mut fep);
        assert_eq!(fep.counters().ignored, ignored + 1);
        let (_, _, places) = fep.check_accounts();
        assert!(places >= 2, "{places} for two messages that are early");
    }
    assert_eq!(refused(&mut fep, (0..5).map(of)), 0);
    take_all(&mut fep);
    let (_, _, places) = fep.check_accounts();
    assert_eq!(places, 0);
}

/// One packet of 1 byte is as far ahead of the first missing one of its message as can be, and further.
#[test]
fn a_message_has_a_bit_for_each_packet_of_a_window_and_no_more() {
    let template = template();
    let mut window = 0;
    fep_with(|config| window = config.zones.default.pdc.mp_range);
    let arrive = |msg_offset| {
        let mut fep = fep(Limits::default());
        let mut packet = packet(&template, DeliveryMode::Rud, 1, 1);
        let Ses::Standard(header) = &mut packet.ses else { unreachable!() };
        header.placement = Placement::Continue { payload_len: 1, msg_offset };
        header.request_length = 40_000;
        fep.on_packet(Time::ZERO, &Packet { payload_len: 1, ..packet }, Payload::Virtual(1));
        (fep.footprint().messages, fep.counters().ignored)
    };
    let (near, ignored) = arrive(1);
    assert_eq!(ignored, 0);
    let (last, ignored) = arrive(window - 1);
    assert_eq!(ignored, 0);
    let (beyond, ignored) = arrive(window);
    assert_eq!(ignored, 1);
    let most = u64::from(window) / 8 + 64;
    assert!(last - near <= most && beyond - near <= most, "{near}, {last} and {beyond}, with {window}");
    let (far, ignored) = arrive(32_700);
    assert!(far - near <= most && ignored == 1, "{near} and {far}");
}
