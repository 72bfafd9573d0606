//! Two endpoints and a channel that a string of bytes controls: it delivers packets in any order, drops, copies, trims
//! and marks them, lets time pass, calls the verbs early, twice and in any order, and forges packets. When the bytes
//! are used up the channel becomes fair, and everything that was posted has to complete.
//!
//! That model gives nothing up, so it cannot find what waits for too long. [`liveness`] is another, with the timers of
//! production.
//!
//! A property test and a fuzz target share this.

mod hostile;
mod ledger;
mod liveness;

use std::sync::Arc;

use crate::harness::{self, Pair, params};
use ledger::{Ledger, MEMORY};
pub(crate) use liveness::every_message_ends;
use weft_cc::registry::all_names;
use weft_cc::{CcChoice, CcParams, Span, Time};
use weft_stack::fep::{BusyTimeout, ConnectOptions, ConnectionId, FepConfig, Limits, TrafficClass};
use weft_stack::packet::{Addr, Class};
use weft_stack::pdc::{PdcConfig, RodReceive};
use weft_stack::spray::LbChoice;
use weft_stack::spray::registry::BALANCERS;
use weft_stack::wire::pds::DeliveryMode;

/// Packets older than this never arrive. Targets remember closed PDCs for twice as long.
const LIFETIME: Span = Span::from_ms(50);
const TIME_WAIT: Span = Span::from_ms(100);
/// Eleven days, which no string of bytes lasts, so that no peer seems dead.
const IDLE: Span = Span::from_ms(1_000_000_000);
/// More retries than any string of bytes can make fail.
const RETRIES: u8 = 250;
/// Over the fair channel everything completes within this, which is a dozen times the longest back-off.
const PATIENCE: Span = Span::from_ms(120_000);
/// The source address of forged packets.
const HOSTILE: Addr = Addr(2);

/// Decisions of one byte each. When the bytes are used up, every decision is 0.
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

/// The endpoints and the packets between them, and the messages that were posted.
struct World {
    pair: Pair,
    connections: Vec<(usize, ConnectionId)>,
    ledger: Ledger,
    mtu: u32,
    /// Whether a forged packet has arrived.
    forged: bool,
}

/// Any congestion control. Those of the recorded strings of bytes come first.
fn congestion_control(choices: &mut Choices<'_>) -> CcChoice {
    const FIRST: [&str; 6] = ["nscc", "smartt", "constant", "rccc", "nscc+rccc", "dctcp"];
    let others = all_names().into_iter().filter(|name| !FIRST.contains(&name.as_str()));
    let names: Vec<String> = FIRST.into_iter().map(str::to_owned).chain(others).collect();
    CcChoice::parse(&names[choices.below(names.len())]).unwrap()
}

fn config(choices: &mut Choices<'_>) -> FepConfig {
    let cc = congestion_control(choices);
    let params = CcParams {
        mtu: choices.pick(&[1, 7, 64, 1_000]),
        network_rtt: Span::from_us(5),
        trimming: choices.byte() & 1 == 0,
        ..params()
    };
    let base = FepConfig::new(&cc, &params).with_zones(|zone| {
        zone.lb = LbChoice::parse(BALANCERS[choices.below(BALANCERS.len())].name).unwrap();
        zone.paths = choices.pick(&[1, 4, 256]);
        zone.pdc = PdcConfig {
            mp_range: 128,
            rto_init: Span::from_us(10),
            max_retries: RETRIES,
            ack_bytes: choices.pick(&[1, 4_096, 16_384]),
            ..zone.pdc
        };
    });
    FepConfig {
        rod_receive: choices.pick(&[RodReceive::GoBackN, RodReceive::Reorder]),
        limits: Limits {
            unexpected_bytes_per_peer: choices.pick(&[1 << 20, 6_000]),
            response_bytes_per_peer: choices.pick(&[1 << 20, 3_000]),
            control_queue: choices.pick(&[1 << 16, 4]),
            reorder_packets: choices.pick(&[256, 2]),
            pdcs_per_peer: 6,
            ..Limits::default()
        },
        idle_timeout: IDLE,
        time_wait: TIME_WAIT,
        busy_timeout: BusyTimeout::Endless,
        ..base
    }
}

impl World {
    fn new(choices: &mut Choices<'_>) -> World {
        let config = Arc::new(config(choices));
        // The clock wraps around soon, later, or not at all while the test runs.
        let now = Time::from_ps(choices.pick(&[0, u64::MAX - 3_000_000, u64::MAX - 50_000_000_000, 1 << 63]));
        let mut feps = [0, 1].map(|n| harness::fep(n, config.clone(), 11, now));
        Ledger::expose(&mut feps);
        World {
            pair: Pair::of(feps, now),
            connections: Vec::new(),
            ledger: Ledger::default(),
            mtu: config.mtu,
            forged: false,
        }
    }

    /// Does one thing, which the next byte chooses.
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
            26 => self.pair.feps[choices.below(2)].on_timeout(self.pair.now),
            27 => self.advance(Span::from_us(u64::from(choices.byte()))),
            28 => self.lose_all(),
            29 => self.read(choices),
            _ => hostile::strike(self, choices),
        }
        self.ledger.collect(&mut self.pair.feps);
    }

    /// Posts a message on a connection.
    fn send(&mut self, choices: &mut Choices<'_>) {
        let (fep, id) = self.connection(choices);
        let len = self.len(choices);
        self.ledger.send(&mut self.pair.feps, fep, id, len);
    }

    /// Posts a read on a connection.
    fn read(&mut self, choices: &mut Choices<'_>) {
        let (fep, id) = self.connection(choices);
        let offset = choices.word() % MEMORY;
        let len = self.len(choices).min(MEMORY - offset);
        self.ledger.read(&mut self.pair.feps[fep], id, offset, len);
    }

    /// A connection, perhaps a new one.
    fn connection(&mut self, choices: &mut Choices<'_>) -> (usize, ConnectionId) {
        let new = self.connections.is_empty() || choices.byte().is_multiple_of(8);
        if new {
            let fep = choices.below(2);
            let mode = choices.pick(&[DeliveryMode::Rud, DeliveryMode::Rud, DeliveryMode::Rod]);
            let options =
                ConnectOptions { mode, class: TrafficClass(choices.byte() % 2), ..ConnectOptions::default() };
            let id = self.pair.feps[fep].connect(self.pair.now, Addr(1 - fep as u32), options).unwrap();
            self.connections.push((fep, id));
        }
        if new {
            self.connections[self.connections.len() - 1]
        } else {
            self.connections[choices.below(self.connections.len())]
        }
    }

    /// The length of a message or a read.
    fn len(&self, choices: &mut Choices<'_>) -> u32 {
        match choices.byte() % 6 {
            0 => 0,
            1 => 1,
            2 => self.mtu + u32::from(choices.byte() % 3) - 1,
            3 => u32::from(choices.byte()),
            4 => self.mtu * u32::from(choices.byte() % 32),
            _ => (u32::from(choices.byte()) * 16).min(self.mtu * 200),
        }
    }

    fn receive(&mut self, choices: &mut Choices<'_>) {
        let short = choices.byte().is_multiple_of(8);
        let which = choices.byte();
        self.ledger.receive(&mut self.pair.feps, usize::from(which), short);
    }

    fn cancel(&mut self, choices: &mut Choices<'_>) {
        let which = usize::from(choices.byte());
        if choices.byte() & 1 == 0 {
            self.ledger.cancel_send(&mut self.pair.feps, which);
        } else {
            self.ledger.cancel_receive(&mut self.pair.feps, which);
        }
    }

    fn close(&mut self, choices: &mut Choices<'_>) {
        if !self.connections.is_empty() {
            let at = choices.below(self.connections.len());
            let (fep, id) = self.connections.swap_remove(at);
            self.ledger.close(&mut self.pair.feps[fep], self.pair.now, id);
        }
    }

    fn transmit(&mut self, choices: &mut Choices<'_>) {
        let fep = choices.below(2);
        for _ in 0..=choices.byte() % 8 {
            self.pair.put_on_wire(fep);
        }
    }

    fn deliver(&mut self, choices: &mut Choices<'_>) {
        if !self.pair.wire.is_empty() {
            let transit = self.pair.wire.remove(choices.below(self.pair.wire.len()));
            self.pair.arrive(&transit);
        }
    }

    /// Everything on the wire arrives, in order or in reverse.
    fn burst(&mut self, choices: &mut Choices<'_>) {
        let mut all = std::mem::take(&mut self.pair.wire);
        if choices.byte() & 1 == 0 {
            all.reverse();
        }
        for transit in all {
            self.pair.arrive(&transit);
        }
    }

    /// Drops, copies or marks a packet.
    fn disturb(&mut self, choices: &mut Choices<'_>) {
        let wire = &mut self.pair.wire;
        if wire.is_empty() {
            return;
        }
        let at = choices.below(wire.len());
        match choices.byte() % 3 {
            0 => drop(wire.remove(at)),
            1 => wire.push(wire[at].duplicate()),
            _ => wire[at].mark(),
        }
    }

    fn trim(&mut self, choices: &mut Choices<'_>) {
        let wire = &mut self.pair.wire;
        if wire.is_empty() {
            return;
        }
        let at = choices.below(wire.len());
        if wire[at].is_data() {
            wire[at].trim(choices.pick(&[Class::Trimmed, Class::TrimmedLastHop]));
        }
    }

    fn lose_all(&mut self) {
        self.pair.wire.clear();
    }

    fn advance(&mut self, span: Span) {
        self.pair.now += span;
        let now = self.pair.now;
        self.pair.wire.retain(|transit| now.since(transit.sent_at) < LIFETIME);
    }

    /// Lets the next timer expire.
    fn expire(&mut self) {
        let Some(at) = self.pair.next_timer() else { return };
        let ahead = at.since(self.pair.now);
        // The longest back-off is ten seconds. Later timers only ask whether the peer is still there.
        if ahead < Span::from_ms(60_000) {
            self.advance(ahead);
            for fep in &mut self.pair.feps {
                fep.on_timeout(self.pair.now);
            }
        }
    }

    /// Closes everything over a fair channel, and checks the result.
    fn finish(&mut self) {
        self.ledger.receive_the_rest(&mut self.pair.feps);
        for (fep, id) in std::mem::take(&mut self.connections) {
            self.ledger.close(&mut self.pair.feps[fep], self.pair.now, id);
        }
        self.run_until_done();
        self.ledger.check();
        self.ledger.cancel_the_rest(&mut self.pair.feps);
        // In the end the endpoints forget closed PDCs, and PDCs that were forged.
        for _ in 0..4 {
            self.pair.now += IDLE;
            self.pair.feps.iter_mut().for_each(|fep| fep.on_timeout(self.pair.now));
            (0..2).for_each(|fep| while self.pair.put_on_wire(fep) {});
        }
        for fep in &self.pair.feps {
            // Forged messages without a posted receive stay, within the sender's quota.
            let tolerated = |what: &String| self.forged && what.ends_with("messages on their way in");
            let leaks: Vec<String> = fep.leaks().filter(|what| !tolerated(what)).collect();
            assert!(leaks.is_empty(), "endpoint {}: {leaks:?}", fep.addr().0);
        }
    }

    /// Runs over a channel that keeps order and loses nothing, until everything has completed.
    fn run_until_done(&mut self) {
        let began = self.pair.now;
        let mut steps = 0;
        while !self.ledger.is_done() {
            while self.pair.put_on_wire(0) || self.pair.put_on_wire(1) {}
            if self.pair.wire.is_empty() {
                self.expire();
            } else {
                let transit = self.pair.wire.remove(0);
                self.advance(Span::from_ns(100));
                self.pair.arrive(&transit);
            }
            self.ledger.collect(&mut self.pair.feps);
            steps += 1;
            let in_time = self.pair.now.since(began) < PATIENCE && steps < 400_000;
            assert!(in_time, "after {steps} steps: {:#?}\n{:#?}", self.pair.explain(), self.ledger.open());
        }
    }
}

/// Whatever the channel does, every message arrives once with the bytes that were sent, every read brings its bytes, every connection closes, the
/// endpoints keep nothing, and nothing panics. Returns the packets that arrived, and the bytes of their payloads.
pub(crate) fn every_message_arrives_once(bytes: &[u8]) -> (u64, u64) {
    let mut choices = Choices(bytes);
    let mut world = World::new(&mut choices);
    while !choices.is_empty() {
        world.step(&mut choices);
    }
    world.finish();
    world.pair.arrived
}
