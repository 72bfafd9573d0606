//! What congestion control is told about packets and acknowledgements.

use std::sync::{Arc, Mutex};

use weft_cc::{
    AckSample, CcChoice, CcParams, CcSnapshot, LossSample, NackSample, Needs, Rate, SenderCc, SentPacket,
    Span, Time, Window,
};

use super::message;
use crate::fep::{Completion, ConnectOptions, Fep, FepConfig};
use crate::packet::{Addr, Class, Packet, Payload};
use crate::rng::Rng;
use crate::wire::pds::Pds;
use crate::wire::ses::Ses;

/// Bytes of a full packet's payload.
pub(super) const MTU: usize = 1024;
/// What a full packet counts for.
pub(super) const PACKET: u64 = 1024 + 64;

/// What a congestion control was told.
#[derive(Default)]
pub(super) struct Told {
    sent: Vec<SentPacket>,
    pub(super) acks: Vec<AckSample>,
    pub(super) hops: Vec<u8>,
}

/// A congestion control that keeps what it is told.
struct Listener {
    told: Arc<Mutex<Told>>,
    window: u64,
    /// The time between two packets, if they are paced.
    gap: Option<Span>,
    last_sent: Option<Time>,
}

impl SenderCc for Listener {
    fn on_send(&mut self, now: Time, packet: &SentPacket) {
        self.told.lock().unwrap().sent.push(*packet);
        self.last_sent = Some(now);
    }
    fn on_hops(&mut self, hops: u8) {
        self.told.lock().unwrap().hops.push(hops);
    }
    fn on_ack(&mut self, _: Time, ack: &AckSample) {
        self.told.lock().unwrap().acks.push(*ack);
    }
    /// The window shrinks to a packet, so that what is in flight is more than it holds.
    fn on_nack(&mut self, _: Time, _: &NackSample) {
        self.window = PACKET;
    }
    fn on_timeout(&mut self, _: Time, _: &LossSample) {}
    fn window(&self) -> Window {
        Window(self.window)
    }
    fn expected_rtt(&self) -> Span {
        Span::from_us(10)
    }
    fn next_departure(&self) -> Option<Time> {
        Some(self.last_sent? + self.gap?)
    }
    fn snapshot(&self) -> CcSnapshot {
        CcSnapshot::default()
    }
}

/// A sender with a window of `packets` that listens, and a receiver.
pub(super) struct Pair {
    pub(super) sender: Fep,
    pub(super) receiver: Fep,
    pub(super) told: Arc<Mutex<Told>>,
}

pub(super) fn pair(packets: u64, needs: Needs) -> Pair {
    pair_with(packets, needs, None, true)
}

/// The same; packets leave a `gap` apart, and switches trim if `trimming`.
fn pair_with(packets: u64, needs: Needs, gap: Option<Span>, trimming: bool) -> Pair {
    let told = Arc::new(Mutex::new(Told::default()));
    let listener = told.clone();
    let make = move |_: &CcParams| -> Box<dyn SenderCc + Send> {
        Box::new(Listener { told: listener.clone(), window: packets * PACKET, gap, last_sent: None })
    };
    let cc = CcChoice::custom("listener", Arc::new(make)).with_needs(needs);
    let network = CcParams {
        mtu: MTU as u32,
        overhead: 64,
        link_rate: Rate::from_gbps(10),
        network_rtt: Span::from_us(10),
        trimming,
        delays: weft_cc::Delays::Known,
    };
    let config = FepConfig::new(&cc, &network).with_zones(|zone| zone.pdc.rto_init = Span::from_ms(4));
    let config = Arc::new(config);
    let fep = |addr| Fep::new(Addr(addr), config.clone(), Rng::new(1, 0), Time::ZERO).unwrap();
    Pair { sender: fep(0), receiver: fep(1), told }
}

pub(super) fn us(us: u64) -> Time {
    Time::ZERO + Span::from_us(us)
}

pub(super) fn transmit_all(fep: &mut Fep, now: Time) -> Vec<Packet> {
    std::iter::from_fn(|| fep.poll_transmit(now)).map(|transmit| transmit.packet).collect()
}

/// Posts a message of `packets` and returns its packets, as far as the window allows.
pub(super) fn send(pair: &mut Pair, packets: usize) -> Vec<Packet> {
    let connection = pair.sender.connect(Time::ZERO, Addr(1), ConnectOptions::default()).unwrap();
    pair.sender.post_send(connection, message(packets * MTU)).unwrap();
    transmit_all(&mut pair.sender, Time::ZERO)
}

/// Hands `packets` to the receiver at once, with a mark on those whose numbers `marked` has, and the acknowledgements back.
fn deliver(pair: &mut Pair, packets: &[Packet], marked: &[usize]) {
    for (n, packet) in packets.iter().enumerate() {
        let mut packet = *packet;
        packet.net.ecn = marked.contains(&n);
        pair.receiver.on_packet(us(5), &packet, Payload::Bytes(&[1; MTU]));
        for ack in transmit_all(&mut pair.receiver, us(5)) {
            pair.sender.on_packet(us(10), &ack, Payload::EMPTY);
        }
    }
}

#[test]
fn time_in_hosts_is_no_part_of_the_rtt() {
    let mut pair = pair(10, Needs::NONE);
    let packet = send(&mut pair, 1)[0];
    pair.receiver.on_packet_after(us(100), Span::from_us(32), &packet, Payload::Bytes(&[1; MTU]));
    let ack = transmit_all(&mut pair.receiver, us(100))[0];
    pair.sender.on_packet_after(us(150), Span::from_us(20), &ack, Payload::EMPTY);
    let told = pair.told.lock().unwrap();
    let [sample] = told.acks[..] else { panic!("{:?}", told.acks) };
    let hosts = sample.hosts.unwrap();
    assert_eq!((hosts.remote_queueing, hosts.local_rx_delay), (Span::from_us(32), Span::from_us(20)));
    assert_eq!(sample.rtt, Some(Span::from_us(98)));
}

#[test]
fn an_rtt_shorter_than_the_time_in_hosts_is_no_measurement() {
    let mut pair = pair(10, Needs::NONE);
    let packet = send(&mut pair, 1)[0];
    pair.receiver.on_packet_after(us(10), Span::from_ms(900), &packet, Payload::Bytes(&[1; MTU]));
    let ack = transmit_all(&mut pair.receiver, us(10))[0];
    pair.sender.on_packet(us(15), &ack, Payload::EMPTY);
    let sample = pair.told.lock().unwrap().acks[0];
    assert_eq!(sample.rtt, None);
    let remote = sample.hosts.unwrap().remote_queueing;
    assert_eq!(remote, Span::from_ns(128 * 0xffff), "more than the field can say");
}

#[test]
fn an_acknowledgement_says_the_size_and_the_mark_of_the_packet_that_triggered_it() {
    let mut pair = pair(64, Needs::NONE);
    let packets = send(&mut pair, 40);
    // The first packet carries SYN, the last one asks; a mark is reported at once.
    deliver(&mut pair, &packets, &[30]);
    let told = pair.told.lock().unwrap();
    let marked: Vec<_> = told.acks.iter().filter(|ack| ack.ecn).collect();
    assert_eq!(marked.len(), 1);
    assert_eq!(u64::from(marked[0].trigger_bytes), PACKET);
    let received: u64 = told.acks.iter().map(|ack| u64::from(ack.newly_received)).sum();
    let triggers: u64 = told.acks.iter().map(|ack| u64::from(ack.trigger_bytes)).sum();
    assert_eq!(triggers, told.acks.len() as u64 * PACKET);
    assert!(received >= 40 * PACKET, "{received}");
}

#[test]
fn an_algorithm_that_needs_it_has_every_packet_acknowledged() {
    for (ack_each, expected) in [(false, 1..8), (true, 8..9)] {
        let mut pair = pair(64, Needs { ack_each, ..Needs::NONE });
        // After the answer to the first packet no packet carries SYN, which would be acknowledged at once.
        let first = send(&mut pair, 1);
        deliver(&mut pair, &first, &[]);
        pair.told.lock().unwrap().acks.clear();
        let packets = send_more(&mut pair, 8);
        let asking = packets.iter().filter(|p| matches!(&p.pds, Pds::Request(r) if r.ack_request)).count();
        deliver(&mut pair, &packets, &[]);
        let acks = pair.told.lock().unwrap().acks.len();
        assert!(expected.contains(&asking) && expected.contains(&acks), "{asking} asked, {acks} answers");
    }
}

#[test]
fn no_packet_passes_the_window_where_every_packet_asks_for_an_acknowledgement() {
    for (ack_each, expected) in [(false, 1), (true, 0)] {
        let mut pair = pair(4, Needs { ack_each, ..Needs::NONE });
        let first = send(&mut pair, 1);
        deliver(&mut pair, &first, &[]);
        let mut last = *send_more(&mut pair, 8).last().unwrap();
        // The packet that fills the window is trimmed; three are in flight, and the window has shrunk to one.
        (last.net.class, last.ses) = (Class::Trimmed, Ses::None);
        pair.receiver.on_packet(us(5), &last, Payload::EMPTY);
        let nack = transmit_all(&mut pair.receiver, us(5))[0];
        pair.sender.on_packet(us(10), &nack, Payload::EMPTY);
        let passed = transmit_all(&mut pair.sender, us(10)).len();
        assert_eq!(passed, expected, "all of the packets in flight ask: {ack_each}");
    }
}

#[test]
fn an_algorithm_that_needs_it_hears_how_many_switches_a_packet_has_passed() {
    for (hops, passed, expected) in [(false, 3, &[][..]), (true, 3, &[3]), (true, 0, &[])] {
        let mut pair = pair(10, Needs { hops, ..Needs::NONE });
        let mut packet = send(&mut pair, 1)[0];
        packet.net.hops = passed;
        pair.receiver.on_packet_after(us(100), Span::from_us(32), &packet, Payload::Bytes(&[1; MTU]));
        let ack = transmit_all(&mut pair.receiver, us(100))[0];
        pair.sender.on_packet(us(150), &ack, Payload::EMPTY);
        let told = pair.told.lock().unwrap();
        let sample = told.acks[0];
        assert_eq!(told.hops, expected, "{passed} passed");
        // The rest is told either way.
        assert_eq!(sample.hosts.unwrap().remote_queueing, Span::from_us(32));
        assert_eq!((u64::from(sample.newly_received), sample.rtt), (PACKET, Some(Span::from_us(118))));
    }
}

#[test]
fn a_packet_whose_timer_has_expired_does_not_wait_for_its_departure() {
    let mut pair = pair_with(10, Needs::NONE, Some(Span::from_ms(1_000_000)), true);
    assert_eq!(send(&mut pair, 3).len(), 1, "the others wait");
    let mut sent = Vec::new();
    while let Some(at) = pair.sender.poll_timeout().filter(|at| at.is_before(us(100_000_000))) {
        pair.sender.on_timeout(at);
        sent.extend(transmit_all(&mut pair.sender, at).into_iter().map(|packet| (at, packet)));
        if sent.len() == 3 {
            break;
        }
    }
    let again = |packet: &Packet| matches!(&packet.pds, Pds::Request(request) if request.retx);
    assert!(sent.len() == 3 && sent.iter().all(|(_, packet)| again(packet)), "{sent:?}");
    // After an answer, packets wait for their departure again.
    let (at, packet) = sent[2];
    pair.receiver.on_packet(at, &packet, Payload::Bytes(&[1; MTU]));
    for ack in transmit_all(&mut pair.receiver, at) {
        pair.sender.on_packet(at + Span::from_us(5), &ack, Payload::EMPTY);
    }
    assert_eq!(transmit_all(&mut pair.sender, at + Span::from_us(5)), []);
}

#[test]
fn a_peer_is_not_silent_while_a_lost_packet_waits_for_its_departure() {
    const GAP: Span = Span::from_ms(300);
    let mut pair = pair_with(10, Needs::NONE, Some(GAP), false);
    let config = pair.sender.config();
    let pdc = config.zones.iter().next().unwrap().pdc;
    let bounds = [pdc.silence(pdc.rto_init), config.busy_timeout.bound().unwrap()];
    assert!(bounds[0] < GAP && GAP < bounds[1], "{bounds:?}");
    let mut packets = send(&mut pair, 2);
    let (mut now, mut data) = (Time::ZERO, Vec::new());
    let done = loop {
        for packet in packets {
            let is_data = matches!(packet.pds, Pds::Request(_));
            data.extend(is_data.then_some(now));
            // The second packet is lost; all probes are answered.
            if is_data && data.len() == 2 {
                continue;
            }
            pair.receiver.on_packet(now, &packet, Payload::Bytes(&[1; MTU]));
            for answer in transmit_all(&mut pair.receiver, now) {
                pair.sender.on_packet(now + Span::from_us(10), &answer, Payload::EMPTY);
            }
        }
        if let Some(done) = pair.sender.poll_completion() {
            break done;
        }
        now = pair.sender.poll_timeout().unwrap();
        pair.sender.on_timeout(now);
        packets = transmit_all(&mut pair.sender, now);
    };
    let Completion::Sent { result, .. } = done else { panic!("the connection is over") };
    assert_eq!(result, Ok(()));
    let [first, second, third] = data[..] else { panic!("{data:?}") };
    assert_eq!([second.since(first), third.since(second)], [GAP; 2]);
}

#[test]
fn gaps_between_packets_are_short_beside_the_time_after_which_a_connection_is_given_up() {
    let each = Needs { ack_each: true, ..Needs::NONE };
    let mut pair = pair_with(10, each, Some(Span::from_ms(1_000_000)), true);
    let packets = send(&mut pair, 3);
    deliver(&mut pair, &packets, &[]);
    let bound = pair.sender.config().busy_timeout.bound().unwrap();
    let mut sent_at = us(10);
    for _ in 0..2 {
        let packets = loop {
            let now = pair.sender.poll_timeout().unwrap();
            pair.sender.on_timeout(now);
            let mut packets = transmit_all(&mut pair.sender, now);
            packets.retain(|packet| matches!(packet.pds, Pds::Request(_)));
            if !packets.is_empty() {
                assert_eq!(now.since(sent_at).times(16), bound);
                sent_at = now;
                break packets;
            }
        };
        pair.receiver.on_packet(sent_at, &packets[0], Payload::Bytes(&[1; MTU]));
        for ack in transmit_all(&mut pair.receiver, sent_at) {
            pair.sender.on_packet(sent_at, &ack, Payload::EMPTY);
        }
    }
    assert!(matches!(pair.sender.poll_completion(), Some(Completion::Sent { result: Ok(()), .. })));
}

/// Posts another message on the connection that [`send`] has opened.
pub(super) fn send_more(pair: &mut Pair, packets: usize) -> Vec<Packet> {
    let connection = pair.sender.initiator.connections.at(0).map(|(key, _)| crate::fep::ConnectionId(key));
    pair.sender.post_send(connection.unwrap(), message(packets * MTU)).unwrap();
    transmit_all(&mut pair.sender, Time::ZERO)
}

#[test]
fn the_application_limits_a_sender_that_has_sent_all_and_has_room() {
    let limited = |window, packets| {
        let mut pair = pair(window, Needs::NONE);
        send(&mut pair, packets);
        let told = pair.told.lock().unwrap();
        told.sent.iter().map(|packet| packet.app_limited).collect::<Vec<_>>()
    };
    assert_eq!(limited(4, 3), [false, false, true]);
    assert_eq!(limited(3, 3), [false; 3], "the window is full");
    assert_eq!(limited(2, 3), [false; 2], "the window is smaller than the message");
}
