//! Peers in different zones: windows, timeouts, ranges and credit follow the zone of each peer.

use std::sync::Arc;

use crate::harness::{fep, params};
use weft_stack::buffer::Buffer;
use weft_stack::cc::{CcChoice, CcParams};
use weft_stack::fep::{ConnectOptions, ConnectionId, Fep, FepConfig, Send, Zone, ZoneMap};
use weft_stack::packet::{Addr, Payload};
use weft_stack::pdc::PdcConfig;
use weft_stack::wire::pds::{ControlKind, Destination, Pds};
use weft_stack::{Span, Time};

const FAR_RTT: Span = Span::from_ms(1);
const FAR_RTO: Span = Span::from_ms(5);
const NEAR_RTO: Span = Span::from_us(50);

/// Endpoints 0 and 1 are near to one another; the others are far, and `far` and `near` are the algorithms.
fn config(near: &str, far: &str) -> Arc<FepConfig> {
    let near = Zone::new(&CcChoice::parse(near).unwrap(), &params());
    let near = Zone { pdc: PdcConfig { rto_init: NEAR_RTO, mp_range: 256, ..near.pdc }, ..near };
    let distant = CcParams { network_rtt: FAR_RTT, trimming: false, ..params() };
    let mut config = FepConfig::new(&CcChoice::parse(far).unwrap(), &distant);
    let pdc = &mut config.zones.default.pdc;
    (pdc.rto_init, pdc.mp_range) = (FAR_RTO, 2_048);
    let within = config.zones.add(near).unwrap();
    config.zones.map = ZoneMap::Groups { of: Arc::new([0, 0, 1]), within };
    Arc::new(config)
}

fn connect(fep: &mut Fep, peer: u32, bytes: u32) -> ConnectionId {
    let id = fep.connect(Time::ZERO, Addr(peer), ConnectOptions::default()).unwrap();
    let send = Send { buffer: Buffer::Virtual(bytes), tag: None, header_data: 0, context: 0 };
    fep.post_send(id, send).unwrap();
    id
}

fn cwnd(fep: &Fep, id: ConnectionId) -> u64 {
    fep.congestion(id).unwrap().cwnd
}

/// What leaves endpoint 0 while `peer` does not answer a packet, and when, until the packet itself leaves again; the
/// kind of control packets.
fn until_resent(config: &Arc<FepConfig>, peer: u32) -> Vec<(Span, Option<ControlKind>)> {
    let mut sender = fep(0, config.clone(), 1, Time::ZERO);
    connect(&mut sender, peer, 100);
    assert!(sender.poll_transmit(Time::ZERO).is_some());
    let mut left: Vec<(Span, Option<ControlKind>)> = Vec::new();
    while left.last().is_none_or(|(_, control)| control.is_some()) {
        let now = sender.poll_timeout().expect("something is outstanding");
        sender.on_timeout(now);
        while let Some(sent) = sender.poll_transmit(now) {
            let control = match sent.packet.pds {
                Pds::Control(control) => Some(control.kind),
                Pds::Request(_) => None,
                other => panic!("{other:?}"),
            };
            left.push((now.since(Time::ZERO), control));
        }
    }
    left
}

#[test]
fn the_first_window_and_the_timeout_are_those_of_the_peers_zone() {
    let config = config("nscc", "constant");
    // The near zone trims: silence ends with the retransmission timeout.
    assert_eq!(until_resent(&config, 1), [(NEAR_RTO, None)]);
    // The far zone drops: probes leave after two round trips, and after a reach of 1.5 more.
    let probe = Some(ControlKind::Probe);
    let (first, second) = (FAR_RTT.times(2), Span::from_us(3_500));
    assert_eq!(until_resent(&config, 2), [(first, probe), (second, probe), (FAR_RTO, None)]);

    // The timers of one endpoint are those of each peer.
    let mut sender = fep(0, config.clone(), 1, Time::ZERO);
    let far = connect(&mut sender, 2, 100);
    assert!(sender.poll_transmit(Time::ZERO).is_some());
    assert_eq!(sender.poll_timeout(), Some(Time::ZERO + FAR_RTT.times(2)));
    let near = connect(&mut sender, 1, 100);
    assert!(sender.poll_transmit(Time::ZERO).is_some());
    assert_eq!(sender.poll_timeout(), Some(Time::ZERO + NEAR_RTO));

    let alone = |cc: &str, params: &CcParams| CcChoice::parse(cc).unwrap().sender(params);
    use weft_stack::cc::SenderCc;
    assert_eq!(cwnd(&sender, near), alone("nscc", &params()).snapshot().cwnd);
    let distant = CcParams { network_rtt: FAR_RTT, ..params() };
    assert_eq!(cwnd(&sender, far), alone("constant", &distant).snapshot().cwnd);

    // Seen from endpoint 2, all others are far.
    let mut other = fep(2, config, 1, Time::ZERO);
    let id = connect(&mut other, 1, 100);
    assert_eq!(cwnd(&other, id), cwnd(&sender, far));
}

/// The MP_RANGE that `target` announces to `from`, packets.
fn announced(config: &Arc<FepConfig>, from: u32, target: u32) -> u32 {
    let (mut sender, mut receiver) =
        (fep(from, config.clone(), 1, Time::ZERO), fep(target, config.clone(), 1, Time::ZERO));
    connect(&mut sender, target, 100);
    let syn = sender.poll_transmit(Time::ZERO).unwrap().packet;
    receiver.on_packet(Time::ZERO, &syn, Payload::Virtual(100));
    match receiver.poll_transmit(Time::ZERO).unwrap().packet.pds {
        Pds::Ack(ack) => u32::from(ack.cc.unwrap().mpr) * 128,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_target_announces_the_range_of_its_initiators_zone() {
    let config = config("nscc", "nscc");
    assert_eq!(announced(&config, 0, 1), 256);
    assert_eq!(announced(&config, 0, 2), 2_048);
    assert_eq!(announced(&config, 2, 1), 2_048);
}

#[test]
fn packets_ask_for_credit_only_where_the_zone_uses_it() {
    for (near, far) in [("rccc", "nscc"), ("nscc", "nscc+rccc")] {
        let mut sender = fep(0, config(near, far), 1, Time::ZERO);
        for (peer, cc) in [(1, near), (2, far)] {
            connect(&mut sender, peer, 100);
            let packet = sender.poll_transmit(Time::ZERO).unwrap().packet;
            let Pds::Request(request) = packet.pds else { panic!("{packet:?}") };
            assert!(matches!(request.destination, Destination::Syn { .. }));
            assert_eq!(request.cc.is_some(), cc.contains("rccc"), "{cc} to {peer}");
        }
    }
}
