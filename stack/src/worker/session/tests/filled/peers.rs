//! How peers 2 and 3 fill limits.

use core::ops::Range;

use weft_cc::Time;

use super::*;
use crate::fep::{CONTEXTS_PER_PEER, Datagram, QUESTIONS_PER_CALL, REFUSED_PER_PDC, SILENT_PER_CALL};
use crate::packet::{Class, Network};
use crate::spray::Entropy;
use crate::wire::class::Priority;
use crate::wire::pds::{
    Control, ControlKind, Destination, NextHeader, PdcId, Pds, Psn, Request as PdsRequest, VendorFlags,
};
use crate::wire::ses::{Opcode, Placement, RequestFlags, Ses, StandardRequest};

/// The length of a message of which all packets are lost.
const LOST: u32 = 777;

/// Processes for datagrams only have all places that are left. Two peers flood them, and send them messages that they do not
/// take.
pub(super) fn processes_for_datagrams(fabric: &mut Fabric) {
    for guest in 2..APPLICATIONS {
        let config = SessionConfig { operations: 8, connections: 1, only_datagrams: true, ..SMALL };
        fabric.join_as(config);
        for _ in 0..8 {
            fabric.guests[guest].client.receive_datagram(extent(0, 1), 0).unwrap();
        }
        run(fabric, 2);
        let process = process_of(fabric, guest);
        for _ in 0..40 {
            let buffer = Buffer::Virtual(1);
            let datagram = Datagram { buffer, peer: Addr(0), process, header_data: 0, context: 0 };
            fabric.feps[guest].post_datagram_of(0, datagram).unwrap();
        }
        let id = connect_to(fabric, guest, process, DeliveryMode::Rud);
        (0..20).for_each(|_| post(fabric, guest, id, 1, None));
    }
    let one = SessionConfig { operations: 1, connections: 1, only_datagrams: true, ..SMALL };
    let refused = fabric.sessions.open(&mut fabric.feps[0], &one, None);
    assert!(matches!(refused, Err(OpenError::Full(APPLICATIONS))));
    until(fabric, "the last datagram", |fabric| {
        let counters = fabric.feps[0].counters();
        (counters.datagrams_received, counters.datagrams_dropped) == (2 * 8, 2 * 32)
    });
}

/// Some peers send messages of `len` bytes to an application, which receives none of them, until no more are taken.
fn unexpected(fabric: &mut Fabric, peers: Range<usize>, guest: usize, len: u32) {
    let process = process_of(fabric, guest);
    for peer in peers {
        let id = connect_to(fabric, peer, process, DeliveryMode::Rud);
        (0..60).for_each(|_| post(fabric, peer, id, len, Some(9)));
    }
    until_refused(fabric);
    run(fabric, 300);
}

fn until_refused(fabric: &mut Fabric) {
    let before = fabric.feps[0].counters().nacks_sent;
    until(fabric, "a refusal", |fabric| fabric.feps[0].counters().nacks_sent > before);
}

pub(super) fn unexpected_messages(fabric: &mut Fabric) {
    unexpected(fabric, 2..4, HOG, 1);
    // The hog may have its part and half of the rest, and two peers that take what they can two thirds of that, or a little
    // more: messages that arrive before their turn have reserved places.
    let (messages, ..) = fabric.feps[0].check_accounts();
    assert!((22..=35).contains(&messages), "{messages}");
}

pub(super) fn unexpected_bytes(fabric: &mut Fabric) {
    unexpected(fabric, 2..4, HOG, 2000);
    let (_, bytes, _) = fabric.feps[0].check_accounts();
    assert!((18_000..=35_000).contains(&bytes), "{bytes}");
}

/// Here alice herself gets more messages of a peer than she wants; those of her own peer have room beside them.
pub(super) fn unexpected_messages_of_a_peer(fabric: &mut Fabric) {
    unexpected(fabric, 2..3, ALICE, 1);
    let (messages, ..) = fabric.feps[0].check_accounts();
    assert!((16..=20).contains(&messages), "{messages}");
}

pub(super) fn unexpected_bytes_of_a_peer(fabric: &mut Fabric) {
    unexpected(fabric, 2..3, ALICE, 2000);
    let (_, bytes, _) = fabric.feps[0].check_accounts();
    assert!((14_000..=20_000).contains(&bytes), "{bytes}");
}

pub(super) fn pdcs_of_a_peer(fabric: &mut Fabric) {
    let hog = process_of(fabric, HOG);
    for _ in 0..20 {
        let id = connect_to(fabric, 2, hog, DeliveryMode::Rud);
        post(fabric, 2, id, 0, None);
    }
    until_refused(fabric);
    // The first that are refused are those beyond the half-open ones, until their initiators have answered.
    until(fabric, "the last PDC", |fabric| fabric.feps[0].open_targets() == 16);
    run(fabric, 300);
    assert_eq!(fabric.feps[0].open_targets(), 16);
}

/// Asks about a PDC that is not there.
const QUESTION: Control = Control {
    kind: ControlKind::AckRequest,
    rod: false,
    retx: false,
    ack_request: true,
    probe_opaque: 0,
    psn: Psn(1),
    spdcid: PdcId(1),
    destination: Destination::Pdc(PdcId(60_000)),
    payload: 0,
};

/// A control packet of peer 2 arrives.
fn arrives(fabric: &mut Fabric, control: Control) {
    let net = Network {
        src: Addr(2),
        dst: Addr(0),
        entropy: Entropy(0),
        class: Class::Control,
        priority: Priority::LOWEST,
        ecn: false,
        hops: 1,
    };
    fabric.arrive(&Packet { net, payload_len: 0, pds: Pds::Control(control), ses: Ses::None }, &[]);
}

/// Peer 2 asks about PDCs that are not there, twice as often as the endpoint's port sends answers.
fn asks_too_much(fabric: &mut Fabric) {
    for n in 0..64 {
        arrives(fabric, Control { spdcid: PdcId(n + 1), ..QUESTION });
    }
}

/// Peer 2 asks for more credit in each of its contexts than they have been granted, four of them in a turn.
fn asks_for_credit(fabric: &mut Fabric) {
    let turn = fabric.now.since(Time::ZERO).as_ps() / Span::from_us(1).as_ps();
    for n in 0..4 {
        let context = (4 * turn + n) as u8;
        let request = Control {
            kind: ControlKind::CreditRequest,
            ack_request: false,
            probe_opaque: context.into(),
            spdcid: PdcId(u16::from(context) + 1),
            payload: 1_000 + 100 * turn as u32,
            ..QUESTION
        };
        arrives(fabric, request);
    }
}

/// It gets more credit all the time, for none of which it sends anything.
pub(super) fn requests_for_credit(fabric: &mut Fabric) {
    fabric.meanwhile = Some(asks_for_credit);
    run(fabric, 64);
    let before = fabric.credits;
    run(fabric, 64);
    assert_eq!(fabric.feps[0].credit_senders(), CONTEXTS_PER_PEER);
    assert!(fabric.credits - before > 64, "{} packets of credit", fabric.credits - before);
}

pub(super) fn control_packets(fabric: &mut Fabric) {
    fabric.meanwhile = Some(asks_too_much);
    until(fabric, "a packet that is dropped", |fabric| fabric.feps[0].counters().control_dropped > 0);
}

/// Nothing that is sent to peer 3 arrives.
pub(super) fn peer_3_is_deaf(packet: &Packet) -> bool {
    packet.net.dst == Addr(3)
}

pub(super) fn half_open_pdcs(fabric: &mut Fabric) {
    fabric.lost.push(peer_3_is_deaf);
    let hog = process_of(fabric, HOG);
    for _ in 0..16 {
        let id = connect_to(fabric, 3, hog, DeliveryMode::Rud);
        post(fabric, 3, id, 0, None);
    }
    until_refused(fabric);
    assert_eq!(fabric.feps[0].open_targets(), 8);
}

/// Nothing that is sent to peer 2 arrives.
fn peer_2_is_deaf(packet: &Packet) -> bool {
    packet.net.dst == Addr(2)
}

/// Two peers have as many as there may be of all. Those of alice's peer get the places of the oldest.
pub(super) fn half_open_pdcs_of_all(fabric: &mut Fabric) {
    fabric.lost = vec![peer_2_is_deaf, peer_3_is_deaf];
    let hog = process_of(fabric, HOG);
    for peer in [2, 3].repeat(8) {
        let id = connect_to(fabric, peer, hog, DeliveryMode::Rud);
        post(fabric, peer, id, 0, None);
    }
    until(fabric, "the last place", |fabric| fabric.feps[0].open_targets() == HALF_OPEN);
}

pub(super) fn remembered_pdcs(fabric: &mut Fabric) {
    let before = fabric.feps[0].counters().nacks_sent;
    let hog = process_of(fabric, HOG);
    for _ in 0..100 {
        let id = connect_to(fabric, 2, hog, DeliveryMode::Rud);
        post(fabric, 2, id, 0, None);
        fabric.feps[2].close(fabric.now, id).unwrap();
        run(fabric, 20);
        let _ = fabric.guests[HOG].client.receive(extent(0, 1), None, Matching::Untagged, 0);
    }
    assert!(fabric.feps[0].counters().nacks_sent > before, "the last ones are put off");
}

/// The first message of an ordered connection is lost again and again; those behind it have `len` bytes.
fn early(fabric: &mut Fabric, len: u32) {
    fabric.lost.push(|packet| matches!(&packet.ses, Ses::Standard(header) if header.request_length == LOST));
    let hog = process_of(fabric, HOG);
    let id = connect_to(fabric, 2, hog, DeliveryMode::Rod);
    post(fabric, 2, id, LOST, None);
    (0..40).for_each(|_| post(fabric, 2, id, len, None));
    until_refused(fabric);
}

/// Sixteen of them take no more than half of the bytes that a peer may have.
pub(super) fn early_packets(fabric: &mut Fabric) {
    early(fabric, 100);
}

/// Sixteen of them would take more than the 12,000 bytes that a peer may have.
pub(super) fn bytes_of_early_packets(fabric: &mut Fabric) {
    early(fabric, 1000);
}

pub(super) fn stored_responses(fabric: &mut Fabric) {
    fabric.lost.push(peer_3_is_deaf);
    let id = connect_to(fabric, 3, NOBODY, DeliveryMode::Rud);
    (0..100).for_each(|_| post(fabric, 3, id, 0, None));
    until_refused(fabric);
}

/// The hog posts receives that are too short for the messages of peer 3.
pub(super) fn short_receives(fabric: &mut Fabric) {
    for _ in 0..80 {
        fabric.guests[HOG].client.receive(extent(0, 1), None, Matching::Untagged, 0).unwrap();
    }
    run(fabric, 4);
    fabric.lost.push(peer_3_is_deaf);
    let id = connect_to(fabric, 3, process_of(fabric, HOG), DeliveryMode::Rud);
    (0..80).for_each(|_| post(fabric, 3, id, 2, None));
    run(fabric, 20);
    assert!(fabric.feps[0].counters().nacks_sent > 0, "all of them have been answered");
}

/// The peer `src` sends packet `psn` of its PDC `pdc`, whatever it has heard: the first byte of a message of `len` bytes.
fn begin(fabric: &mut Fabric, src: u32, (pdc, psn): (u16, u16), process: u16, len: u32) {
    let request = PdsRequest {
        mode: DeliveryMode::Rud,
        next: NextHeader::RequestStandard,
        retx: false,
        ack_request: true,
        // All answers so far have arrived.
        clear_psn_offset: -1,
        psn: Psn(psn.into()),
        spdcid: PdcId(pdc),
        destination: Destination::Syn { use_reserved: false, psn_offset: psn },
        vendor: VendorFlags::NONE,
        cc: None,
    };
    let message = StandardRequest {
        opcode: Opcode::SEND,
        flags: RequestFlags::START_OF_MESSAGE,
        msg_id: psn,
        ri_generation: 0,
        job_id: 0,
        pid_on_fep: process,
        resource_index: 0,
        buffer_offset: 0,
        initiator: 0,
        match_bits: 0,
        placement: Placement::Start { header_data: 0 },
        request_length: len,
    };
    let (src, dst, entropy) = (Addr(src), Addr(0), Entropy(0));
    let net =
        Network { src, dst, entropy, class: Class::Data, priority: Priority::LOWEST, ecn: false, hops: 0 };
    let (pds, ses) = (Pds::Request(request), Ses::Standard(message));
    fabric.arrive(&Packet { net, payload_len: 1, pds, ses }, &[0]);
}

fn nacks(fabric: &Fabric) -> u64 {
    fabric.feps[0].counters().nacks_sent
}

/// Peer 2 begins messages, which the hog discards. They count until all of them has arrived.
pub(super) fn incomplete_messages(fabric: &mut Fabric) {
    fabric.lost.push(peer_2_is_deaf);
    let hog = process_of(fabric, HOG);
    let mut begun = 0;
    for pdc in 1..=8 {
        for psn in 0..200 {
            let before = nacks(fabric);
            begin(fabric, 2, (pdc, psn), hog, 2);
            if nacks(fabric) > before {
                break;
            }
            begun += 1;
            fabric.guests[HOG].client.peek(None, Matching::Untagged, Found::IsDiscarded, 0).unwrap();
            run(fabric, 1);
        }
    }
    assert_eq!(begun, 8 * 16 + 40, "16 of each PDC, and its limit");
    assert_eq!(fabric.feps[0].check_accounts().0, 0, "they are no messages that wait");
}

/// Peer 2 begins messages for nobody, behind a packet that is missing.
pub(super) fn refused_notes(fabric: &mut Fabric) {
    fabric.lost.push(peer_2_is_deaf);
    let before = nacks(fabric);
    let mut noted = 0;
    for psn in 1..1_000 {
        begin(fabric, 2, (1, psn), NOBODY, 2);
        if nacks(fabric) > before {
            break;
        }
        noted += 1;
    }
    // A peer may have half of the 24,000 bytes, for notes of 48.
    let most = 250 + REFUSED_PER_PDC;
    assert!((250..=most + 1).contains(&noted), "{noted} notes");
    run(fabric, 20);
}

/// Peer 2 opens so many PDCs at a time, with a message each, and falls silent.
fn open_and_fall_silent(fabric: &mut Fabric, pdcs: u16) {
    fabric.lost.push(peer_2_is_deaf);
    let hog = process_of(fabric, HOG);
    (1..=pdcs).for_each(|pdc| begin(fabric, 2, (pdc, 0), hog, 1));
    assert_eq!(fabric.feps[0].open_targets(), usize::from(pdcs));
}

pub(super) fn silent_pdcs(fabric: &mut Fabric) {
    const PDCS: usize = 100;
    open_and_fall_silent(fabric, PDCS as u16);
    until_late(fabric, "the end of a PDC", |fabric| fabric.feps[0].open_targets() < PDCS);
    assert_eq!(fabric.feps[0].open_targets(), PDCS - SILENT_PER_CALL);
}

pub(super) fn questions(fabric: &mut Fabric) {
    const PDCS: usize = 2 * QUESTIONS_PER_CALL + 50;
    open_and_fall_silent(fabric, PDCS as u16);
    until_late(fabric, "a question that is left for the next turn", |fabric| {
        fabric.feps[0].poll_timeout().is_some_and(|at| fabric.now.is_at_or_after(at))
    });
    assert_eq!(fabric.feps[0].open_targets(), PDCS);
}
