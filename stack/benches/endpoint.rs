//! Instructions that a packet costs an endpoint: the program that `scripts/bench-instructions.sh` runs under
//! callgrind.
//!
//! `endpoint CASE PAIRS COUNT` lets PAIRS senders stream to a receiver each, in virtual time and in turn, and passes
//! COUNT data packets of every pair through the functions `measured_…` below, which are all that callgrind counts. It
//! prints the number of calls of each function. One pair shows instructions; with many pairs the state is not in the
//! cache, as for the hosts of a simulation, which shows how many cache lines a call touches. `endpoint list` prints
//! the cases; without arguments each case runs once.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;

use weft_stack::buffer::Buffer;
use weft_stack::cc::{CcChoice, CcParams, Delays};
use weft_stack::fep::{ConnectOptions, ConnectionId, Fep, FepConfig, PayloadRef, Receive, Send};
use weft_stack::packet::{Addr, Packet, Payload};
use weft_stack::rng::Rng;
use weft_stack::ses::Matching;
use weft_stack::{Rate, Span, Time};

const PARAMS: CcParams = CcParams {
    mtu: 4096,
    overhead: 64,
    link_rate: Rate::from_gbps(400),
    network_rtt: Span::from_us(12),
    trimming: true,
    delays: Delays::Known,
};
const MESSAGE: u32 = 4 << 20;
/// Transmission time of one packet at 400 Gbit/s.
const PACKET_TIME: Span = Span::from_ps(83_200);
/// One-way delay, without [`jitter`].
const DELAY: Span = Span::from_us(5);
/// Data packets of each pair before counting starts, so that the window is full and timers run.
const WARM_UP: u64 = 256;

/// A case: the network's treatment of data packets.
struct Case {
    name: &'static str,
    /// Interval of packets with a congestion mark; 0 for none.
    mark_every: u64,
}

const CASES: [Case; 2] = [Case { name: "unmarked", mark_every: 0 }, Case { name: "marked", mark_every: 2 }];

/// Additional delay of a path, up to 2 µs: packets overtake each other as with spraying.
fn jitter(packet: &Packet) -> Span {
    Span::from_ns(u64::from(packet.net.entropy.0) * 787 % 2_000)
}

/// Number of calls of the measured functions.
#[derive(Default)]
struct Calls {
    send_data: u64,
    receive_data: u64,
    send_ack: u64,
    receive_ack: u64,
}

#[inline(never)]
fn measured_send_data(fep: &mut Fep, now: Time, packet: &mut Packet, payload: &mut PayloadRef) -> bool {
    fep.poll_transmit_into(now, packet, payload)
}

#[inline(never)]
fn measured_receive_data(fep: &mut Fep, now: Time, packet: &Packet, payload: Payload<'_>) {
    fep.on_packet(now, packet, payload);
}

#[inline(never)]
fn measured_send_ack(fep: &mut Fep, now: Time, packet: &mut Packet, payload: &mut PayloadRef) -> bool {
    // Without `black_box` the function equals `measured_send_data`, and compilers merge the two.
    fep.poll_transmit_into(black_box(now), packet, payload)
}

#[inline(never)]
fn measured_receive_ack(fep: &mut Fep, now: Time, packet: &Packet) {
    fep.on_packet(now, packet, Payload::EMPTY);
}

/// A sender, its receiver, and the stream between them.
struct Pair {
    sender: Fep,
    receiver: Fep,
    connection: ConnectionId,
    /// Whether the sender's port waits for a packet.
    idle: bool,
    messages: u64,
    /// Number of data packets that have arrived.
    arrived: u64,
}

impl Pair {
    fn new(config: &Arc<FepConfig>, number: u64) -> Pair {
        let fep = |addr| Fep::new(Addr(addr), config.clone(), Rng::new(number, addr.into()), Time::ZERO);
        let (mut sender, receiver) = (fep(0).expect("valid"), fep(1).expect("valid"));
        let connection = sender.connect(Time::ZERO, Addr(1), ConnectOptions::default()).expect("room");
        let mut pair = Pair { sender, receiver, connection, idle: false, messages: 0, arrived: 0 };
        (0..2).for_each(|_| pair.post());
        pair
    }

    /// Posts another message, and a receive for it before.
    fn post(&mut self) {
        let tag = self.messages;
        self.messages += 1;
        let buffer = || Buffer::Virtual(MESSAGE);
        let matching = Matching::Tagged { tag, ignore: 0 };
        let receive = Receive { buffer: buffer(), from: Some(Addr(0).into()), matching, context: tag };
        self.receiver.post_receive(receive).expect("room");
        let send = Send { buffer: buffer(), tag: Some(tag), header_data: tag, context: tag };
        self.sender.post_send(self.connection, send).expect("room");
    }

    fn is_warm(&self) -> bool {
        self.arrived >= WARM_UP
    }

    fn on_timers(&mut self, now: Time) {
        for fep in [&mut self.sender, &mut self.receiver] {
            if fep.poll_timeout().is_some_and(|at| now.is_at_or_after(at)) {
                fep.on_timeout(now);
            }
        }
    }

    /// Keeps two messages posted.
    fn on_completions(&mut self) {
        while self.sender.poll_completion().is_some() {
            self.post();
        }
        while self.receiver.poll_completion().is_some() {}
    }
}

enum Event {
    /// The port of a sender becomes free.
    Port,
    Data(Packet, u32),
    Ack(Packet),
}

struct Bench<'a> {
    case: &'a Case,
    pairs: Vec<Pair>,
    /// Ordered by time, then by order of insertion.
    agenda: BTreeMap<(u64, u64), (usize, Event)>,
    scheduled: u64,
    sent: u64,
    calls: Calls,
}

impl Bench<'_> {
    fn new(case: &Case, pairs: u64) -> Bench<'_> {
        let config = Arc::new(FepConfig::new(&CcChoice::default(), &PARAMS));
        let pairs = (0..pairs).map(|number| Pair::new(&config, number)).collect();
        Bench { case, pairs, agenda: BTreeMap::new(), scheduled: 0, sent: 0, calls: Calls::default() }
    }

    fn schedule(&mut self, at: Time, pair: usize, event: Event) {
        self.scheduled += 1;
        self.agenda.insert((at.as_ps(), self.scheduled), (pair, event));
    }

    /// Runs until every pair has passed `count` data packets after its warm-up.
    fn run(&mut self, count: u64) {
        for pair in 0..self.pairs.len() {
            self.schedule(Time::ZERO, pair, Event::Port);
        }
        let mut under_way = self.pairs.len();
        while under_way > 0
            && let Some(((at, _), (index, event))) = self.agenda.pop_first()
        {
            let now = Time::from_ps(at);
            match event {
                Event::Port => self.on_port(now, index),
                Event::Data(packet, len) => {
                    self.on_data(now, index, &packet, len);
                    let done = self.pairs[index].arrived == WARM_UP + count;
                    under_way -= usize::from(done);
                }
                Event::Ack(packet) => self.on_ack(now, index, &packet),
            }
            self.pairs[index].on_timers(now);
            self.pairs[index].on_completions();
            if self.pairs[index].idle && self.pairs[index].sender.wants_to_transmit() {
                self.on_port(now, index);
            }
        }
    }

    fn on_port(&mut self, now: Time, index: usize) {
        let pair = &mut self.pairs[index];
        pair.idle = !pair.sender.wants_to_transmit();
        if pair.idle {
            return;
        }
        let (mut packet, mut payload) = (Packet::BLANK, PayloadRef::NONE);
        let is_sent = if pair.is_warm() {
            let is_sent = measured_send_data(&mut pair.sender, now, &mut packet, &mut payload);
            self.calls.send_data += u64::from(is_sent);
            is_sent
        } else {
            pair.sender.poll_transmit_into(now, &mut packet, &mut payload)
        };
        if !is_sent {
            pair.idle = true;
            return;
        }
        self.sent += 1;
        packet.net.ecn = self.case.mark_every > 0 && self.sent.is_multiple_of(self.case.mark_every);
        let arrival = now + DELAY.plus(jitter(&packet));
        self.schedule(arrival, index, Event::Data(packet, payload.len()));
        self.schedule(now + PACKET_TIME, index, Event::Port);
    }

    fn on_data(&mut self, now: Time, index: usize, packet: &Packet, len: u32) {
        let pair = &mut self.pairs[index];
        let payload = Payload::Virtual(len);
        if pair.is_warm() {
            measured_receive_data(&mut pair.receiver, now, black_box(packet), payload);
            self.calls.receive_data += 1;
        } else {
            pair.receiver.on_packet(now, packet, payload);
        }
        pair.arrived += 1;
        while self.pairs[index].receiver.wants_to_transmit() {
            let pair = &mut self.pairs[index];
            let (mut packet, mut payload) = (Packet::BLANK, PayloadRef::NONE);
            let is_sent = if pair.is_warm() {
                self.calls.send_ack += 1;
                measured_send_ack(&mut pair.receiver, now, &mut packet, &mut payload)
            } else {
                pair.receiver.poll_transmit_into(now, &mut packet, &mut payload)
            };
            if !is_sent {
                break;
            }
            self.schedule(now + DELAY, index, Event::Ack(packet));
        }
    }

    fn on_ack(&mut self, now: Time, index: usize, packet: &Packet) {
        let pair = &mut self.pairs[index];
        if pair.is_warm() {
            measured_receive_ack(&mut pair.sender, now, black_box(packet));
            self.calls.receive_ack += 1;
        } else {
            pair.sender.on_packet(now, packet, Payload::EMPTY);
        }
    }
}

fn run(case: &Case, pairs: u64, count: u64) {
    let mut bench = Bench::new(case, pairs);
    bench.run(count);
    let losses = bench.pairs.iter().map(|pair| pair.sender.counters().data_retransmitted).sum::<u64>();
    assert_eq!(losses, 0, "nothing is lost, so nothing is sent again");
    let Calls { send_data, receive_data, send_ack, receive_ack } = bench.calls;
    println!("send_data {send_data}");
    println!("receive_data {receive_data}");
    println!("send_ack {send_ack}");
    println!("receive_ack {receive_ack}");
}

fn main() {
    // `cargo bench` and `cargo test` add flags of their own.
    let args: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["list"] => CASES.iter().for_each(|case| println!("{}", case.name)),
        [case, pairs, count] => {
            let case = CASES.iter().find(|c| c.name == case).expect("a case from `list`");
            let number = |text: &str| text.parse().expect("PAIRS and COUNT are numbers");
            run(case, number(pairs), number(count));
        }
        _ => CASES.iter().for_each(|case| run(case, 1, 1)),
    }
}
