//! Endpoints on machines that sleep: time that packets wait for a thread to wake up is no queue in the network.

use std::collections::VecDeque;
use std::sync::Arc;

use weft_stack::buffer::Buffer;
use weft_stack::cc::{CcChoice, CcParams, Delays};
use weft_stack::fep::{Completion, ConnectOptions, Fep, FepConfig, Receive, Send};
use weft_stack::packet::{Addr, Packet, Payload};
use weft_stack::rng::Rng;
use weft_stack::ses::Matching;
use weft_stack::{Rate, Span, Time};

const RATE: Rate = Rate::from_gbps(10);
/// One-way delay of the link.
const DELAY: Span = Span::from_us(2);
const OVERHEAD: u32 = 106;
const MESSAGE: u32 = 1 << 20;
const RUN: Span = Span::from_ms(50);

/// A host that sleeps when there is nothing to do.
struct Host {
    fep: Fep,
    inbox: VecDeque<(Time, Packet)>,
    wakes: Option<Time>,
    link_free: Time,
}

/// How long a host takes to wake up: mostly about 80 µs, but one time in twenty it was awake.
fn wake_up(rng: &mut Rng) -> Span {
    match rng.below(20) {
        0 => Span::from_us(1),
        _ => Span::from_us(u64::from(60 + rng.below(40))),
    }
}

/// The next packet that has arrived by `now`.
fn next_arrived(inbox: &mut VecDeque<(Time, Packet)>, now: Time) -> Option<(Time, Packet)> {
    inbox.front().filter(|(arrived, _)| now.is_at_or_after(*arrived))?;
    inbox.pop_front()
}

/// Goodput over a link of 10 Gbit/s between two hosts that sleep, in Gbit/s, and the least RTT that congestion control has
/// seen. `stamped`: whether ports tell how long packets have waited.
fn goodput(cc: &str, stamped: bool) -> (f64, Span) {
    let params = CcParams {
        mtu: 4096,
        overhead: OVERHEAD,
        link_rate: RATE,
        network_rtt: Span::from_us(100),
        trimming: false,
        delays: Delays::Known,
    };
    let config = FepConfig::new(&CcChoice::parse(cc).unwrap(), &params).with_zones(|zone| {
        zone.pdc.rto_init = Span::from_ms(100);
        zone.pdc.mp_range = 2048;
    });
    let config = Arc::new(config);
    let host = |n| Host {
        fep: Fep::new(Addr(n), config.clone(), Rng::new(1, n.into()), Time::ZERO).unwrap(),
        inbox: VecDeque::new(),
        wakes: Some(Time::ZERO),
        link_free: Time::ZERO,
    };
    let (mut hosts, mut rng) = ([host(0), host(1)], Rng::new(9, 9));
    let connection = hosts[0].fep.connect(Time::ZERO, Addr(1), ConnectOptions::default()).unwrap();
    let send = || Send { buffer: Buffer::Virtual(MESSAGE), tag: None, header_data: 0, context: 0 };
    let receive =
        || Receive { buffer: Buffer::Virtual(MESSAGE), from: None, matching: Matching::Untagged, context: 0 };
    for _ in 0..4 {
        hosts[1].fep.post_receive(receive()).unwrap();
        hosts[0].fep.post_send(connection, send()).unwrap();
    }
    let mut delivered = 0u64;
    loop {
        let due =
            |host: &Host| [host.wakes, host.fep.poll_timeout()].into_iter().flatten().reduce(Time::earliest);
        let (at, n) = match [due(&hosts[0]), due(&hosts[1])] {
            [Some(a), Some(b)] if b.is_before(a) => (b, 1),
            [Some(a), _] => (a, 0),
            [None, Some(b)] => (b, 1),
            [None, None] => panic!("{cc}: nothing is left to do after {delivered} messages"),
        };
        if at.since(Time::ZERO) > RUN {
            break;
        }
        let host = &mut hosts[n];
        host.wakes = None;
        while let Some((arrived, packet)) = next_arrived(&mut host.inbox, at) {
            let waited = if stamped { at.since(arrived) } else { Span::ZERO };
            host.fep.on_packet_after(at, waited, &packet, Payload::Virtual(packet.payload_len));
        }
        host.fep.on_timeout(at);
        while let Some(completion) = host.fep.poll_completion() {
            match completion {
                Completion::Sent { .. } => drop(host.fep.post_send(connection, send()).unwrap()),
                Completion::Received { .. } => {
                    delivered += 1;
                    host.fep.post_receive(receive()).unwrap();
                }
                other => panic!("{cc}: {other:?}"),
            }
        }
        let mut sent = Vec::new();
        while let Some(transmit) = host.fep.poll_transmit(at) {
            let size = u64::from(transmit.packet.payload_len + OVERHEAD);
            host.link_free = host.link_free.latest(at) + RATE.time_for(size);
            sent.push((host.link_free + DELAY, transmit.packet));
        }
        if let Some((arrived, _)) = host.inbox.front() {
            host.wakes = Some(*arrived + wake_up(&mut rng));
        }
        let other = &mut hosts[1 - n];
        if let (Some((arrived, _)), None) = (sent.first(), other.wakes) {
            other.wakes = Some(*arrived + wake_up(&mut rng));
        }
        other.inbox.extend(sent);
    }
    let base_rtt = hosts[0].fep.congestion(connection).unwrap().base_rtt;
    (delivered as f64 * f64::from(MESSAGE) * 8.0 / RUN.as_secs_f64() / 1e9, base_rtt)
}

#[test]
fn nscc_does_not_take_its_own_wake_ups_for_queues_where_ports_tell_them_apart() {
    let (blind, base_blind) = goodput("nscc", false);
    let (stamped, base) = goodput("nscc", true);
    let (constant, _) = goodput("constant", true);
    println!(
        "nscc {blind:.2} Gbit/s (base RTT {base_blind}), with timestamps {stamped:.2} ({base}); constant {constant:.2}"
    );
    assert!(
        blind < 0.6 * constant,
        "the case is too easy: {blind:.2} of {constant:.2} Gbit/s without timestamps"
    );
    assert!(stamped > 0.95 * constant, "{stamped:.2} Gbit/s, a constant window {constant:.2}");
}
