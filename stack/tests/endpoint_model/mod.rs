//! Endpoints joined by a channel that does whatever a string of bytes tells it to do: delivers any
//! packet in any order, drops, copies, trims and marks them, lets time pass, calls the verbs early,
//! twice and in any order, and forges packets. When the bytes are used up the channel is fair, and
//! everything that was asked for has to come to its end.
//!
//! Property tests and the fuzz target share this.

mod hostile;
mod ledger;

use std::sync::Arc;

use ledger::Ledger;
use weft_cc::{CcChoice, CcParams, Rate, Span, Time};
use weft_stack::fep::{ConnectOptions, ConnectionId, Fep, FepConfig, Limits, TrafficClass};
use weft_stack::packet::{Addr, Class, Packet, Payload};
use weft_stack::pdc::{PdcConfig, RodReceive};
use weft_stack::rng::Rng;
use weft_stack::spray::LbChoice;
use weft_stack::spray::registry::BALANCERS;
use weft_stack::wire::pds::{DeliveryMode, Pds};
use weft_stack::wire::ses::Ses;

/// Packets older than this never arrive: half of what targets remember closed PDCs for.
const LIFETIME: Span = Span::from_ms(50);
const TIME_WAIT: Span = Span::from_ms(100);
/// Eleven days: no string of bytes makes a peer look dead or busy for too long.
const IDLE: Span = Span::from_ms(1_000_000_000);
const FOREVER: Span = Span::from_ms(4_000_000_000);
/// More than any test drops of one packet.
const RETRIES: u8 = 250;
/// In the fair part everything is done within this: a dozen times the longest back-off.
const PATIENCE: Span = Span::from_ms(120_000);
/// The address that packets are forged from.
const HOSTILE: Addr = Addr(2);

/// Decisions, one byte each; 0 when they are used up.
pub(crate) struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn below(&mut self, n: usize) -> usize {
        usize::from(self.byte()) % n.max(1)
    }

    fn word(&mut self) -> u32 {
        u32::from_le_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// A packet on its way.
#[derive(Clone, Debug)]
struct Transit {
    packet: Packet,
    payload: Vec<u8>,
    sent_at: Time,
}

/// Two endpoints, a channel and a forger.
struct World {
    now: Time,
    feps: Vec<Fep>,
    wire: Vec<Transit>,
    connections: Vec<(usize, ConnectionId)>,
    ledger: Ledger,
    mtu: u32,
    forged: bool,
}

fn config(choices: &mut Choices<'_>) -> FepConfig {
    let cc = CcChoice::parse(choices.pick(&["nscc", "smartt", "constant", "rccc", "nscc+rccc"])).unwrap();
    let params = CcParams {
        mtu: choices.pick(&[1, 7, 64, 1_000]),
        overhead: 64,
        link_rate: Rate::from_gbps(100),
        network_rtt: Span::from_us(5),
        trimming: choices.byte() & 1 == 0,
    };
    let base = FepConfig::new(&cc, &params);
    FepConfig {
        lb: LbChoice::parse(BALANCERS[choices.below(BALANCERS.len())].name).unwrap(),
        paths: choices.pick(&[1, 4, 256]),
        pdc: PdcConfig {
            mp_range: 128,
            rto_init: Span::from_us(10),
            max_retries: RETRIES,
            ack_bytes: choices.pick(&[1, 4_096, 16_384]),
            rod_receive: choices.pick(&[RodReceive::GoBackN, RodReceive::Reorder]),
            ..base.pdc
        },
        limits: Limits {
            unexpected_bytes_per_peer: choices.pick(&[1 << 20, 6_000]),
            control_queue: choices.pick(&[1 << 16, 4]),
            reorder_packets: choices.pick(&[256, 2]),
            pdcs_per_peer: 6,
            ..Limits::default()
        },
        idle_timeout: IDLE,
        time_wait: TIME_WAIT,
        busy_timeout: FOREVER,
        ..base
    }
}

impl World {
    fn new(choices: &mut Choices<'_>) -> World {
        let config = Arc::new(config(choices));
        // Time wraps around while the test runs, before it, or not at all.
        let now = Time::from_ps(choices.pick(&[0, u64::MAX - 3_000_000, u64::MAX - 50_000_000_000, 1 << 63]));
        let fep = |i: u32| Fep::new(Addr(i), config.clone(), Rng::new(11, u64::from(i)), now).unwrap();
        World {
            now,
            feps: vec![fep(0), fep(1)],
            wire: Vec::new(),
            connections: Vec::new(),
            ledger: Ledger::default(),
            mtu: config.mtu,
            forged: false,
        }
    }

    /// One thing happens.
    fn step(&mut self, choices: &mut Choices<'_>) {
        match choices.byte() % 32 {
            0..=2 => self.send(choices),
            3..=4 => self.receive(choices),
            5..=9 => self.transmit(choices),
            10..=16 => self.deliver(choices),
            17..=18 => self.disturb(choices),
            19..=20 => self.expire(),
            21 => self.advance(Span::from_ns(40 * u64::from(choices.byte()))),
            22 => self.trim(choices),
            23 => self.burst(choices),
            24 => self.cancel(choices),
            25 => self.close(choices),
            26 => self.feps[choices.below(2)].on_timeout(self.now),
            27 => self.advance(Span::from_us(u64::from(choices.byte()))),
            28 => self.lose_all(),
            _ => hostile::strike(self, choices),
        }
        self.ledger.collect(&mut self.feps);
    }

    /// Posts a message on a connection, perhaps on a new one.
    fn send(&mut self, choices: &mut Choices<'_>) {
        let new = self.connections.is_empty() || choices.byte().is_multiple_of(8);
        if new {
            let fep = choices.below(2);
            let mode = choices.pick(&[DeliveryMode::Rud, DeliveryMode::Rud, DeliveryMode::Rod]);
            let options =
                ConnectOptions { mode, class: TrafficClass(choices.byte() % 2), ..ConnectOptions::default() };
            let id = self.feps[fep].connect(self.now, Addr(1 - fep as u32), options).unwrap();
            self.connections.push((fep, id));
        }
        let (fep, id) = if new {
            self.connections[self.connections.len() - 1]
        } else {
            self.connections[choices.below(self.connections.len())]
        };
        let len = match choices.byte() % 6 {
            0 => 0,
            1 => 1,
            2 => self.mtu + u32::from(choices.byte() % 3) - 1,
            3 => u32::from(choices.byte()),
            4 => self.mtu * u32::from(choices.byte() % 32),
            _ => (u32::from(choices.byte()) * 16).min(self.mtu * 200),
        };
        self.ledger.send(&mut self.feps, fep, id, len);
    }

    fn receive(&mut self, choices: &mut Choices<'_>) {
        let short = choices.byte().is_multiple_of(8);
        let which = choices.byte();
        self.ledger.receive(&mut self.feps, usize::from(which), short);
    }

    fn cancel(&mut self, choices: &mut Choices<'_>) {
        let which = usize::from(choices.byte());
        if choices.byte() & 1 == 0 {
            self.ledger.cancel_send(&mut self.feps, which);
        } else {
            self.ledger.cancel_receive(&mut self.feps, which);
        }
    }

    fn close(&mut self, choices: &mut Choices<'_>) {
        if !self.connections.is_empty() {
            let at = choices.below(self.connections.len());
            let (fep, id) = self.connections.swap_remove(at);
            self.ledger.close(&mut self.feps[fep], self.now, id);
        }
    }

    fn transmit(&mut self, choices: &mut Choices<'_>) {
        let fep = choices.below(2);
        for _ in 0..=choices.byte() % 8 {
            self.put_on_wire(fep);
        }
    }

    fn put_on_wire(&mut self, fep: usize) -> bool {
        let Some(transmit) = self.feps[fep].poll_transmit(self.now) else { return false };
        let payload = match self.feps[fep].payload(transmit.payload) {
            Payload::Bytes(bytes) => bytes.to_vec(),
            Payload::Virtual(_) | Payload::Region(_) => panic!("all payloads are bytes here"),
        };
        assert_eq!(payload.len(), transmit.packet.payload_len as usize);
        assert_eq!(transmit.packet.net.src, Addr(fep as u32));
        if transmit.packet.net.dst != HOSTILE {
            self.wire.push(Transit { packet: transmit.packet, payload, sent_at: self.now });
        }
        true
    }

    fn arrive(&mut self, transit: &Transit) {
        let fep = &mut self.feps[transit.packet.net.dst.0 as usize];
        fep.on_packet(self.now, &transit.packet, Payload::Bytes(&transit.payload));
    }

    fn deliver(&mut self, choices: &mut Choices<'_>) {
        if !self.wire.is_empty() {
            let transit = self.wire.remove(choices.below(self.wire.len()));
            self.arrive(&transit);
        }
    }

    /// Everything on the wire arrives, in order or in reverse.
    fn burst(&mut self, choices: &mut Choices<'_>) {
        let mut all = std::mem::take(&mut self.wire);
        if choices.byte() & 1 == 0 {
            all.reverse();
        }
        for transit in all {
            self.arrive(&transit);
        }
    }

    /// Drops, copies or marks a packet.
    fn disturb(&mut self, choices: &mut Choices<'_>) {
        if self.wire.is_empty() {
            return;
        }
        let at = choices.below(self.wire.len());
        match choices.byte() % 3 {
            0 => drop(self.wire.remove(at)),
            1 => self.wire.push(self.wire[at].clone()),
            _ => self.wire[at].packet.net.ecn = true,
        }
    }

    fn trim(&mut self, choices: &mut Choices<'_>) {
        if self.wire.is_empty() {
            return;
        }
        let at = choices.below(self.wire.len());
        let transit = &mut self.wire[at];
        if matches!(transit.packet.pds, Pds::Request(_)) && transit.packet.net.class == Class::Data {
            transit.packet.net.class = choices.pick(&[Class::Trimmed, Class::TrimmedLastHop]);
            transit.packet.ses = Ses::None;
            transit.payload.clear();
        }
    }

    fn lose_all(&mut self) {
        self.wire.clear();
    }

    fn advance(&mut self, span: Span) {
        self.now += span;
        let now = self.now;
        self.wire.retain(|transit| now.since(transit.sent_at) < LIFETIME);
    }

    /// The next timer expires.
    fn expire(&mut self) {
        let deadlines = self.feps.iter().filter_map(Fep::poll_timeout);
        let Some(at) = deadlines.reduce(|a, b| a.earliest(b)) else { return };
        let ahead = at.since(self.now);
        // The longest back-off is ten seconds; whether a peer is still there is not asked here.
        if ahead < Span::from_ms(60_000) {
            self.advance(ahead);
            for fep in &mut self.feps {
                fep.on_timeout(self.now);
            }
        }
    }

    /// From here on nothing goes wrong any more.
    fn finish(&mut self) {
        self.ledger.receive_the_rest(&mut self.feps);
        for (fep, id) in std::mem::take(&mut self.connections) {
            self.ledger.close(&mut self.feps[fep], self.now, id);
        }
        let began = self.now;
        self.run_until(|world| world.ledger.is_done());
        self.ledger.check();
        assert!(self.now.since(began) < PATIENCE);
        self.ledger.cancel_the_rest(&mut self.feps);
        // What is only remembered for a while, and what was forged, is forgotten in the end.
        for _ in 0..4 {
            self.now += IDLE;
            self.feps.iter_mut().for_each(|fep| fep.on_timeout(self.now));
            (0..2).for_each(|fep| while self.put_on_wire(fep) {});
        }
        for fep in &self.feps {
            // Forged messages that nobody asks for stay, within the sender's quota.
            let tolerated = |what: &String| self.forged && what.ends_with("messages on their way in");
            let leaks: Vec<String> = fep.leaks().filter(|what| !tolerated(what)).collect();
            assert!(leaks.is_empty(), "endpoint {}: {leaks:?}", fep.addr().0);
        }
    }

    /// A channel that keeps order and loses nothing.
    fn run_until(&mut self, done: impl Fn(&World) -> bool) {
        let began = self.now;
        let mut steps = 0;
        while !done(self) {
            while self.put_on_wire(0) || self.put_on_wire(1) {}
            if self.wire.is_empty() {
                self.expire();
            } else {
                let transit = self.wire.remove(0);
                self.advance(Span::from_ns(100));
                self.arrive(&transit);
            }
            self.ledger.collect(&mut self.feps);
            steps += 1;
            let in_time = self.now.since(began) < PATIENCE && steps < 400_000;
            assert!(in_time, "after {steps} steps: {:#?}\n{:#?}", self.explain(), self.ledger.open());
        }
    }

    fn explain(&self) -> Vec<String> {
        self.feps.iter().flat_map(|fep| fep.explain(self.now)).collect()
    }
}

/// Whatever the channel does, every message arrives once and byte-identical, every connection
/// closes, nothing is left over, and nothing panics.
pub(crate) fn every_message_arrives_once(bytes: &[u8]) {
    let mut choices = Choices(bytes);
    let mut world = World::new(&mut choices);
    while !choices.is_empty() {
        world.step(&mut choices);
    }
    world.finish();
}
