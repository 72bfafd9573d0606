//! Packets that are read together share acknowledgements.

use weft_cc::{Needs, Span};

use super::samples::{MTU, PACKET, Pair, pair, send, send_more, transmit_all, us};
use crate::fep::ConnectOptions;
use crate::packet::{Addr, Packet, Payload};
use crate::rng::Rng;
use crate::wire::pds::{AckTrigger, Pds, Psn};

/// An algorithm that has each packet acknowledged with an echo of its delay.
const ECHO: Needs = Needs { ack_each: true, hops: true, ..Needs::NONE };

/// A pair whose sender has a window of `window` packets and has heard of the receiver, and `packets` further packets.
fn pair_with_packets(window: u64, needs: Needs, packets: usize) -> (Pair, Vec<Packet>) {
    let mut pair = pair(window, needs);
    let first = send(&mut pair, 1);
    read(&mut pair, &first);
    let acks = transmit_all(&mut pair.receiver, us(5));
    hand_back(&mut pair, &acks);
    let packets = send_more(&mut pair, packets);
    pair.told.lock().unwrap().acks.clear();
    (pair, packets)
}

/// The receiver reads `packets` together.
fn read(pair: &mut Pair, packets: &[Packet]) {
    pair.receiver.begin_burst();
    for packet in packets {
        pair.receiver.on_packet(us(5), packet, Payload::Bytes(&[1; MTU]));
    }
    pair.receiver.end_burst(us(5), Span::ZERO);
}

fn hand_back(pair: &mut Pair, acks: &[Packet]) {
    for ack in acks {
        pair.sender.on_packet(us(10), ack, Payload::EMPTY);
    }
}

/// The PSN that an acknowledgement answers.
fn answered(packet: &Packet) -> Psn {
    let Pds::Ack(ack) = &packet.pds else { panic!("{packet:?}") };
    let AckTrigger::Psn(offset) = ack.trigger else { panic!("{ack:?}") };
    ack.cack_psn.offset(offset.into())
}

fn psn(packet: &Packet) -> Psn {
    let Pds::Request(request) = &packet.pds else { panic!("{packet:?}") };
    request.psn
}

#[test]
fn a_burst_has_one_acknowledgement_which_is_that_of_its_last_packet() {
    let (mut pair, packets) = pair_with_packets(64, ECHO, 8);
    pair.receiver.begin_burst();
    for (n, packet) in (0..).zip(&packets) {
        let mut packet = *packet;
        packet.net.hops = 3;
        pair.receiver.on_packet_after(us(100), Span::from_us(32 - n), &packet, Payload::Bytes(&[1; MTU]));
    }
    pair.receiver.end_burst(us(100), Span::from_us(7));
    let acks = transmit_all(&mut pair.receiver, us(100));
    assert_eq!(acks.iter().map(answered).collect::<Vec<_>>(), [psn(&packets[7])]);
    assert_eq!(pair.receiver.counters().acks_sent, 2, "that of the first packet and this one");
    pair.sender.on_packet(us(150), &acks[0], Payload::EMPTY);
    let told = pair.told.lock().unwrap();
    let [sample] = told.acks[..] else { panic!("{:?}", told.acks) };
    assert_eq!((u64::from(sample.newly_received), sample.in_flight), (8 * PACKET, 0));
    assert_eq!(sample.rtt, Some(Span::from_us(150 - 32)));
    assert_eq!(
        sample.hosts.unwrap().remote_queueing,
        Span::from_us(32),
        "25 of the last packet, 7 of the burst"
    );
    assert_eq!(told.hops, [3]);
}

#[test]
fn only_packets_that_ask_for_an_echo_share_acknowledgements() {
    let (mut pair, packets) = pair_with_packets(64, Needs { hops: false, ..ECHO }, 8);
    read(&mut pair, &packets);
    let acks = transmit_all(&mut pair.receiver, us(5));
    assert_eq!(acks.iter().map(answered).collect::<Vec<_>>(), packets.iter().map(psn).collect::<Vec<_>>());
}

#[test]
fn packets_that_were_not_read_together_are_acknowledged_at_once() {
    let (mut pair, packets) = pair_with_packets(64, ECHO, 3);
    for packet in &packets {
        pair.receiver.on_packet(us(5), packet, Payload::Bytes(&[1; MTU]));
    }
    assert_eq!(transmit_all(&mut pair.receiver, us(5)).len(), 3);
}

#[test]
fn a_burst_that_nobody_ends_ends_before_the_next_packet_leaves() {
    let (mut pair, packets) = pair_with_packets(64, ECHO, 3);
    pair.receiver.begin_burst();
    for packet in &packets {
        pair.receiver.on_packet(us(5), packet, Payload::Bytes(&[1; MTU]));
    }
    assert!(pair.receiver.wants_to_transmit());
    assert_eq!(transmit_all(&mut pair.receiver, us(5)).len(), 1);
    assert!(!pair.receiver.wants_to_transmit());
}

#[test]
fn marked_packets_copies_and_retransmissions_have_acknowledgements_of_their_own() {
    let (mut pair, mut packets) = pair_with_packets(64, ECHO, 6);
    packets[1].net.ecn = true;
    let Pds::Request(request) = &mut packets[2].pds else { panic!("no request") };
    request.retx = true;
    let burst = [&packets[..5], &packets[3..4]].concat();
    read(&mut pair, &burst);
    let acks = transmit_all(&mut pair.receiver, us(5));
    let named: Vec<_> = acks.iter().map(answered).collect();
    let own = [1, 2, 3].map(|n| psn(&packets[n]));
    assert_eq!(named, [&own[..], &[psn(&packets[4])]].concat());
    let flags = acks.iter().map(|ack| match &ack.pds {
        Pds::Ack(ack) => (ack.ecn, ack.retx),
        _ => panic!("no acknowledgement"),
    });
    assert_eq!(flags.collect::<Vec<_>>(), [(true, false), (false, true), (false, false), (false, false)]);
}

#[test]
fn each_connection_has_an_acknowledgement_of_its_own() {
    let (mut pair, packets) = pair_with_packets(64, ECHO, 4);
    let other = pair.sender.connect(us(0), Addr(1), ConnectOptions::default()).unwrap();
    pair.sender.post_send(other, super::message(4 * MTU)).unwrap();
    let others = transmit_all(&mut pair.sender, us(0));
    let mixed: Vec<_> = packets.iter().zip(&others).flat_map(|(a, b)| [*a, *b]).collect();
    read(&mut pair, &mixed);
    let acks = transmit_all(&mut pair.receiver, us(5));
    assert_eq!(acks.iter().map(answered).collect::<Vec<_>>(), [psn(&packets[3]), psn(&others[3])]);
    hand_back(&mut pair, &acks);
    assert_eq!(pair.told.lock().unwrap().acks.last().unwrap().in_flight, 0);
}

#[test]
fn a_connection_that_ends_in_the_burst_owes_nothing_to_the_next_one_of_its_number() {
    let (mut pair, packets) = pair_with_packets(64, ECHO, 1);
    pair.receiver.begin_burst();
    pair.receiver.on_packet(us(5), &packets[0], Payload::Bytes(&[1; MTU]));
    let crate::fep::Fep { core, target, .. } = &mut pair.receiver;
    let key = target.pdcs.table.iter().next().unwrap().0;
    target.remove(core, us(5), key);
    pair.receiver.end_burst(us(5), Span::ZERO);
    assert_eq!(transmit_all(&mut pair.receiver, us(5)), []);
}

/// Whatever is lost, and in whichever order packets come and are read together: after each burst the sender knows of each
/// packet that has arrived, as if each had been acknowledged.
#[test]
fn shared_acknowledgements_name_every_packet() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed, 0);
        let (mut pair, mut packets) = pair_with_packets(400, ECHO, 400);
        // Up to 200 packets may overtake another one.
        let reach = 1 + rng.below(200);
        for from in 0..packets.len() {
            let to = (from + rng.below(reach) as usize).min(packets.len() - 1);
            packets.swap(from, to);
        }
        packets.retain(|_| !rng.chance(0.05));
        let mut arrived = 0;
        while arrived < packets.len() {
            let end = (arrived + 1 + rng.below(32) as usize).min(packets.len());
            read(&mut pair, &packets[arrived..end]);
            let acks = transmit_all(&mut pair.receiver, us(5));
            assert!(acks.len() <= end - arrived);
            hand_back(&mut pair, &acks);
            let missing = |packet: &Packet| {
                let connection = pair.sender.initiator.connections.at(0).unwrap().1;
                connection.pdc.unanswered(psn(packet)).is_some()
            };
            let unknown = packets[..end].iter().filter(|packet| missing(packet)).count();
            assert_eq!(
                unknown,
                0,
                "seed {seed}, packets {arrived} to {end}: {} acknowledgements",
                acks.len()
            );
            assert!(packets[end..].iter().all(missing), "seed {seed}");
            arrived = end;
        }
    }
}
