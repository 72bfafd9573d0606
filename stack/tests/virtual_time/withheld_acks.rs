//! A target withholds acknowledgements for up to 16 KiB that it has accepted. No initiator may ever have to wait for a
//! withheld acknowledgement: where no packet is lost, every message is delivered without a timer, whichever packets are
//! trimmed or overtaken, and whatever the windows do meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::harness::{MTU, Pair, Transit, fep, params};
use weft_stack::buffer::Buffer;
use weft_stack::cc::{AckSample, CcChoice, CcParams, CcSnapshot, LossSample, NackSample, SenderCc, Window};
use weft_stack::fep::{
    BusyTimeout, Completion, ConnectOptions, ConnectionId, Exposure, FepConfig, Read, Receive, Rights, Send,
};
use weft_stack::packet::Class;
use weft_stack::pdc::{PdcConfig, RodReceive};
use weft_stack::rng::Rng;
use weft_stack::ses::Matching;
use weft_stack::wire::pds::{DeliveryMode, PdcId, Pds};
use weft_stack::{Span, Time};

/// Longer than any run, so that no retransmission timer expires.
const NEVER: Span = Span::from_ms(1_000_000);

/// A congestion control whose window jumps with every acknowledgement and NACK, as no sensible one does.
struct Jumps {
    rng: Rng,
    /// Bytes of a packet.
    packet: u64,
    /// The windows that it draws from, packets.
    windows: &'static [u64],
    window: u64,
}

impl Jumps {
    fn jump(&mut self) {
        let which = self.rng.below(self.windows.len() as u32) as usize;
        self.window = self.windows[which] * self.packet;
    }
}

impl SenderCc for Jumps {
    fn on_ack(&mut self, _: Time, _: &AckSample) {
        self.jump();
    }
    fn on_nack(&mut self, _: Time, _: &NackSample) {
        self.jump();
    }
    fn on_timeout(&mut self, _: Time, _: &LossSample) {
        panic!("a retransmission timer has expired");
    }
    fn window(&self) -> Window {
        Window(self.window)
    }
    fn expected_rtt(&self) -> Span {
        Span::from_us(20)
    }
    fn snapshot(&self) -> CcSnapshot {
        CcSnapshot { cwnd: self.window, ..CcSnapshot::default() }
    }
}

/// One run's settings, which follow from its seed.
struct Case {
    seed: u64,
    /// Probability that a data packet is trimmed.
    trim: f64,
    /// Probability that a data packet is marked as congested.
    mark: f64,
    /// Probability that a packet is 20 µs later than other packets.
    slow: f64,
    mtu: u32,
    windows: &'static [u64],
    rod: Option<RodReceive>,
    connections: usize,
    messages: u32,
}

fn pick<T: Copy>(rng: &mut Rng, from: &[T]) -> T {
    from[rng.below(from.len() as u32) as usize]
}

impl Case {
    fn new(seed: u64) -> Case {
        let rng = &mut Rng::new(seed, 1);
        Case {
            seed,
            trim: pick(rng, &[0.0, 0.05, 0.3, 0.6]),
            mark: pick(rng, &[0.0, 0.0, 0.2]),
            slow: pick(rng, &[0.0, 0.02, 0.2]),
            mtu: pick(rng, &[256, 1_000, 4_096, 9_000]),
            windows: pick(rng, &[&[1][..], &[0, 1, 2], &[1, 8], &[1, 2, 3, 4, 12, 40], &[1 << 20]]),
            rod: pick(rng, &[None, None, Some(RodReceive::GoBackN)]),
            connections: pick(rng, &[1, 1, 2, 5]),
            messages: pick(rng, &[1, 2, 6]),
        }
    }

    fn config(&self) -> FepConfig {
        let windows = self.windows;
        let seed = self.seed;
        let factory = move |params: &CcParams| {
            let window = 40 * params.wire_mtu();
            Box::new(Jumps { rng: Rng::new(seed, 2), packet: params.wire_mtu(), windows, window })
                as Box<dyn SenderCc + std::marker::Send>
        };
        let network = CcParams { mtu: self.mtu, network_rtt: Span::from_us(20), ..params() };
        let base = FepConfig::new(&CcChoice::custom("jumps", Arc::new(factory)), &network);
        let rod_receive = self.rod.unwrap_or(base.rod_receive);
        let base =
            base.with_zones(|zone| zone.pdc = PdcConfig { rto_init: NEVER, mp_range: 128, ..zone.pdc });
        FepConfig { rod_receive, idle_timeout: NEVER, busy_timeout: BusyTimeout::Endless, ..base }
    }
}

/// Two endpoints and a network that delays, trims and marks packets, and loses none.
struct Network {
    case: Case,
    rng: Rng,
    pair: Pair,
    /// Packets by the time of their arrival (ps), then in the order in which they were sent.
    wire: BTreeMap<(u64, u64), Transit>,
    sent: u64,
    /// When the last packet of each ROD PDC arrives (ps): all packets of such a PDC take the same path.
    in_order: BTreeMap<PdcId, u64>,
}

impl Network {
    fn new(case: Case) -> Network {
        let config = Arc::new(case.config());
        let feps = [0, 1].map(|n| fep(n, config.clone(), case.seed, Time::ZERO));
        Network {
            rng: Rng::new(case.seed, 3),
            pair: Pair::of(feps, Time::ZERO),
            wire: BTreeMap::new(),
            sent: 0,
            in_order: BTreeMap::new(),
            case,
        }
    }

    /// Posts all messages; returns how many.
    fn post(&mut self) -> u64 {
        let mode = if self.case.rod.is_some() { DeliveryMode::Rod } else { DeliveryMode::Rud };
        let options = ConnectOptions { mode, ..ConnectOptions::default() };
        let connect = |_| self.pair.connect_from(0, options);
        let connections: Vec<ConnectionId> = (0..self.case.connections).map(connect).collect();
        let mut tag = 0;
        for connection in connections {
            for _ in 0..self.case.messages {
                let packets = pick(&mut self.rng, &[1, 3, 4, 9, 60, 300]);
                let len = packets * self.case.mtu - pick(&mut self.rng, &[0, 1, self.case.mtu - 1]);
                let buffer = || Buffer::Virtual(len);
                let send = Send { buffer: buffer(), tag: Some(tag), header_data: 0, context: 0 };
                self.pair.post_send(connection, send);
                let matching = Matching::Tagged { tag, ignore: 0 };
                let receive = Receive { buffer: buffer(), from: None, matching, context: 0 };
                self.pair.feps[1].post_receive(receive).unwrap();
                tag += 1;
            }
        }
        tag
    }

    /// Both endpoints send all packets that may leave now.
    fn transmit(&mut self) {
        for from in 0..2 {
            while let Some(transit) = self.pair.transmit(from) {
                self.put_on_wire(transit);
            }
        }
    }

    fn put_on_wire(&mut self, mut transit: Transit) {
        let mut delay = Span::from_us(5).as_ps() + u64::from(self.rng.below(15_000_000));
        if self.rng.chance(self.case.slow) {
            // No more than this: an endpoint ignores a NACK that takes less than an eighth of its fastest answer.
            delay += Span::from_us(20).as_ps();
        }
        let mut arrival = self.pair.now.since(Time::ZERO).as_ps() + delay;
        if transit.is_data() {
            if self.rng.chance(self.case.trim) {
                transit.trim(Class::Trimmed);
            } else if let Pds::Request(request) = &transit.packet.pds
                && request.mode == DeliveryMode::Rod
            {
                let last = self.in_order.entry(request.spdcid).or_default();
                arrival = arrival.max(*last);
                *last = arrival;
            }
            transit.packet.net.ecn = self.rng.chance(self.case.mark);
        }
        self.sent += 1;
        self.wire.insert((arrival, self.sent), transit);
    }

    /// The next packet arrives. False if there is none.
    fn deliver(&mut self) -> bool {
        let Some(((arrival, _), transit)) = self.wire.pop_first() else { return false };
        self.pair.now = Time::ZERO + Span::from_ps(arrival);
        self.pair.arrive(&transit);
        true
    }

    /// Counts the messages of which the sender has learned that they have arrived.
    fn delivered(&mut self) -> u64 {
        let completions = self.pair.completions(0);
        completions.iter().filter(|done| matches!(done, Completion::Sent { result: Ok(()), .. })).count()
            as u64
    }

    /// Runs until no packet is under way. Returns whether the target withheld most acknowledgements.
    fn run(&mut self) -> bool {
        let posted = self.post();
        let mut delivered = 0;
        loop {
            self.transmit();
            delivered += self.delivered();
            assert!(self.sent < 1_000_000, "seed {}: the run does not end", self.case.seed);
            if !self.deliver() {
                break;
            }
        }
        let waiting = self.pair.feps[0].explain(self.pair.now);
        let seed = self.case.seed;
        assert_eq!(delivered, posted, "seed {seed}: no packet is under way, but {waiting:#?}");
        let counters = self.pair.feps[1].counters();
        2 * counters.acks_sent < counters.data_received
    }
}

/// Packets go back and forth between both endpoints until neither has any to send.
fn exchange(pair: &mut Pair) {
    loop {
        let mut is_quiet = true;
        for from in 0..2 {
            while let Some(transit) = pair.transmit(from) {
                pair.now += Span::from_us(1);
                pair.arrive(&transit);
                is_quiet = false;
            }
        }
        if is_quiet {
            return;
        }
    }
}

#[test]
fn a_packet_asks_if_the_next_turn_of_its_connection_is_far_away() {
    let mut largest = CcChoice::parse("constant").unwrap();
    largest.set("window_bdp", "1000").unwrap();
    for cc in [CcChoice::parse("constant").unwrap(), largest, CcChoice::parse("rccc").unwrap()] {
        let config = Arc::new(FepConfig::new(&cc, &params()));
        let feps = [0, 1].map(|n| fep(n, config.clone(), 1, Time::ZERO));
        let mut pair = Pair::of(feps, Time::ZERO);
        let connect = |_| pair.connect_from(0, ConnectOptions::default());
        let connections: Vec<ConnectionId> = (0..512).map(connect).collect();
        let post = |pair: &mut Pair, len: u32| {
            for &connection in &connections {
                let buffer = || Buffer::Virtual(len);
                pair.post_send(
                    connection,
                    Send { buffer: buffer(), tag: Some(1), header_data: 0, context: 0 },
                );
                let matching = Matching::Tagged { tag: 1, ignore: 0 };
                let receive = Receive { buffer: buffer(), from: None, matching, context: 0 };
                pair.feps[1].post_receive(receive).unwrap();
            }
        };
        // Their targets know them, so that nothing but their number makes the first packets of the long messages ask.
        post(&mut pair, 1);
        exchange(&mut pair);
        let sent = pair.completions(0).iter().filter(|done| matches!(done, Completion::Sent { .. })).count();
        assert_eq!(sent, connections.len());
        post(&mut pair, 40_000);
        for n in 0..6 {
            let transit = pair.transmit(0).unwrap_or_else(|| panic!("packet {n} does not leave"));
            let Pds::Request(request) = &transit.packet.pds else { continue };
            assert!(request.ack_request, "packet {n} with {:?}", cc.settings().first());
        }
    }
}

/// Short packets use up little credit, so that those of many connections need not ask.
#[test]
fn short_packets_that_share_credit_ask_no_more_than_without_credit() {
    let asking = |cc: &str| {
        let config = Arc::new(FepConfig::new(&CcChoice::parse(cc).unwrap(), &params()));
        let mut pair = Pair::of([0, 1].map(|n| fep(n, config.clone(), 1, Time::ZERO)), Time::ZERO);
        let connections: Vec<ConnectionId> = (0..64).map(|_| pair.connect()).collect();
        let (mut asking, mut requests) = (0, 0);
        for _ in 0..40 {
            for &connection in &connections {
                (0..8).for_each(|_| post(&mut pair, connection, 100));
            }
            let until = pair.now + Span::from_us(500);
            pair.run(until, |transit| {
                if let Pds::Request(request) = &transit.packet.pds {
                    requests += 1;
                    asking += u32::from(request.ack_request);
                }
                Some(Span::from_us(1))
            });
            pair.now = until;
        }
        assert_eq!(requests, 40 * 64 * 8, "with {cc}: {:#?}", pair.explain());
        asking
    };
    let (without, with) = (asking("constant"), asking("rccc"));
    assert!(with <= without + without / 4, "{with} ask with credit, {without} without");
}

/// A window that shrinks to one packet when one is trimmed, or its timer expires.
struct Shrinks(Window, u64);

impl SenderCc for Shrinks {
    fn on_ack(&mut self, _: Time, _: &AckSample) {}
    fn on_nack(&mut self, _: Time, _: &NackSample) {
        self.0 = Window(self.1);
    }
    fn on_timeout(&mut self, _: Time, _: &LossSample) {
        self.0 = Window(self.1);
    }
    fn window(&self) -> Window {
        self.0
    }
    fn expected_rtt(&self) -> Span {
        Span::from_us(20)
    }
    fn snapshot(&self) -> CcSnapshot {
        CcSnapshot::default()
    }
}

/// A connection with a window that shrinks, whose target is known and exposes a buffer.
fn reader() -> (Pair, ConnectionId) {
    let factory = |params: &CcParams| {
        let packet = params.wire_mtu();
        Box::new(Shrinks(Window(8 * packet), packet)) as Box<dyn SenderCc + std::marker::Send>
    };
    let config = FepConfig::new(&CcChoice::custom("shrinks", Arc::new(factory)), &params());
    let mut pair = Pair::new(&FepConfig { busy_timeout: BusyTimeout::Endless, ..config });
    let exposure =
        Exposure { key: 7, buffer: Buffer::Virtual(1_000), base: 0, rights: Rights::READ, from: None };
    pair.feps[1].expose(0, exposure).unwrap();
    let connection = pair.connect();
    post(&mut pair, connection, 1);
    exchange(&mut pair);
    assert_eq!(pair.completions(0).len(), 1);
    (pair, connection)
}

/// Posts a message of `len` bytes, and a receive for it.
fn post(pair: &mut Pair, connection: ConnectionId, len: u32) {
    let buffer = || Buffer::Virtual(len);
    pair.post_send(connection, Send { buffer: buffer(), tag: None, header_data: 0, context: 0 });
    let receive = Receive { buffer: buffer(), from: None, matching: Matching::Untagged, context: 0 };
    pair.feps[1].post_receive(receive).unwrap();
}

fn post_read(pair: &mut Pair, connection: ConnectionId) {
    let read = Read { buffer: Buffer::Virtual(1_000), key: 7, offset: 0, context: 0 };
    pair.feps[0].post_read(connection, read).unwrap();
}

/// A target that has put what it had not acknowledged into a response with data says it once, whether the data arrives or not.
#[test]
fn a_response_acknowledges_other_packets_even_if_its_data_is_cut_off() {
    let (mut pair, connection) = reader();
    // 12 KiB before the read and as much behind it, of which no packet asks; the last one of the window asks.
    post(&mut pair, connection, 3 * MTU);
    post_read(&mut pair, connection);
    post(&mut pair, connection, 3 * MTU);
    post(&mut pair, connection, 4 * MTU);
    let mut packets: Vec<Transit> = std::iter::from_fn(|| pair.transmit(0)).collect();
    packets.last_mut().unwrap().trim(Class::Trimmed);
    let mut trimmed = 0;
    for packet in &packets {
        pair.arrive(packet);
        while let Some(mut answer) = pair.transmit(1) {
            if answer.is_response() {
                answer.trim(Class::Trimmed);
                trimmed += 1;
            }
            pair.arrive(&answer);
        }
    }
    assert_eq!((packets.len(), trimmed), (8, 1));
    exchange(&mut pair);
    assert_eq!(pair.completions(0).len(), 4, "{:#?}", pair.explain());
}

#[test]
fn a_copy_of_a_response_acknowledges_other_packets_even_if_its_data_is_cut_off() {
    let (mut pair, connection) = reader();
    post_read(&mut pair, connection);
    post(&mut pair, connection, 3 * MTU);
    post(&mut pair, connection, 3 * MTU);
    post(&mut pair, connection, 4 * MTU);
    let mut packets: Vec<Transit> = std::iter::from_fn(|| pair.transmit(0)).collect();
    packets.last_mut().unwrap().trim(Class::Trimmed);
    // The network has a second copy of the request, which arrives when the read is over.
    let copy = packets[0].duplicate();
    packets.insert(4, copy);
    let mut responses = 0;
    for packet in &packets {
        pair.arrive(packet);
        while let Some(mut answer) = pair.transmit(1) {
            if answer.is_response() {
                responses += 1;
                if responses == 2 {
                    answer.trim(Class::Trimmed);
                }
            }
            pair.arrive(&answer);
        }
    }
    assert_eq!((packets.len(), responses), (9, 2));
    exchange(&mut pair);
    assert_eq!(pair.completions(0).len(), 4, "{:#?}", pair.explain());
}

/// The timers of endpoint 0 expire that are due before `until`, and what it sends then is lost. Returns when the first
/// request left, if one did.
fn lose_all_until(pair: &mut Pair, until: Time) -> Option<Time> {
    while let Some(at) = pair.feps[0].poll_timeout().filter(|at| at.is_before(until)) {
        pair.expire_at(0, at);
        while let Some(transit) = pair.transmit(0) {
            if matches!(transit.packet.pds, Pds::Request(_)) {
                return Some(at);
            }
        }
    }
    None
}

/// The request of a read is late, and its timer expires behind a window that is full. The response, of which a switch leaves
/// the header, answers the transmission that was given up, and acknowledges what fills the window.
#[test]
fn a_connection_goes_on_when_the_header_of_a_late_response_opens_its_window() {
    let (mut pair, connection) = reader();
    post_read(&mut pair, connection);
    pair.transmit(0).unwrap();
    let expiry = lose_all_until(&mut pair, Time::ZERO + NEVER).expect("the read is sent again");

    let (mut pair, connection) = reader();
    post_read(&mut pair, connection);
    let late = pair.transmit(0).unwrap();
    let shortly_before = Time::ZERO + expiry.since(Time::ZERO).minus(Span::from_us(1));
    assert_eq!(lose_all_until(&mut pair, shortly_before), None);
    pair.now = shortly_before;
    post(&mut pair, connection, 3 * MTU);
    assert!(pair.flush(0));
    // The acknowledgement is lost.
    while pair.transmit(1).is_some() {}
    pair.expire_at(0, expiry);
    assert!(pair.transmit(0).is_none(), "the window is full: {:#?}", pair.explain());

    pair.arrive(&late);
    let mut response = pair.transmit(1).expect("a response");
    assert!(response.is_response());
    response.trim(Class::Trimmed);
    pair.arrive(&response);
    exchange(&mut pair);
    assert_eq!(pair.completions(0).len(), 2, "{:#?}", pair.explain());
}

/// A target acknowledges CLOSE_CMD with no response, but nothing that a peer says leaves a connection behind.
#[test]
fn a_header_of_a_response_that_acknowledges_the_close_ends_the_connection() {
    let (mut pair, connection) = reader();
    post_read(&mut pair, connection);
    assert!(pair.flush(0));
    let response = pair.transmit(1).expect("a response");
    pair.arrive(&response);
    exchange(&mut pair);
    pair.feps[0].close(pair.now, connection).unwrap();
    let close = pair.transmit(0).expect("CLOSE_CMD");
    let Pds::Control(control) = &close.packet.pds else { panic!("{close:?} is no CLOSE_CMD") };
    let mut header = response.duplicate();
    header.trim(Class::Trimmed);
    let Pds::Ack(ack) = &mut header.packet.pds else { panic!("{header:?} is no response") };
    ack.cack_psn = control.psn;
    pair.arrive(&header);
    let closed = |done: &Completion| matches!(done, Completion::Closed { result: Ok(()), .. });
    assert!(pair.completions(0).iter().any(closed), "{:#?}", pair.explain());
    assert_eq!(pair.leaks(0), Vec::<String>::new());
}

#[test]
fn no_message_waits_for_a_withheld_acknowledgement() {
    let cases = std::env::var("WEFT_WITHHELD_CASES").map_or(3_000, |text| text.parse().unwrap());
    let withheld = (0..cases).filter(|seed| Network::new(Case::new(*seed)).run()).count() as u64;
    // Packets that are overtaken, trimmed or sent with the last of a window are acknowledged at once, in most cases.
    assert!(withheld >= cases / 20, "{withheld} of {cases} cases withheld most acknowledgements");
}
