//! What attacks by peers and applications cost the others at a server: the program of `scripts/bench-attacks.sh`.
//!
//! An endpoint serves applications, one of which, alice, exchanges messages with a peer. Beside them an attack goes on. Only
//! what the server does is timed, not the attackers, so that one thread plays all of them. Everything is measured without
//! and with the attack in turn, and medians are told, because on a shared machine some turns are interrupted. An attack that
//! comes to an end by itself is prepared anew in each round, and begins with the first round trip.
//! `attacks [ROUNDS] [NAME…]` prints a line for each attack; `attacks list` their names.

use core::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_stack::buffer::Buffer;
use weft_stack::cc::{CcChoice, CcParams, Delays};
use weft_stack::fep::{Completion, ConnectOptions, ConnectionId, Fep, FepConfig, Receive, Send};
use weft_stack::packet::{Addr, Class, Network, Packet, Payload};
use weft_stack::rng::Rng;
use weft_stack::ses::Matching;
use weft_stack::spray::Entropy;
use weft_stack::wire::class::Priority;
use weft_stack::wire::pds::{DeliveryMode, Destination, NextHeader, PdcId, Pds, Psn, Request, VendorFlags};
use weft_stack::wire::ses::{Opcode, Placement, RequestFlags, Ses, StandardRequest};
use weft_stack::worker::session::{
    Client, ClientError, ConnectionHandle, Event, Extent, OperationHandle, Report, SessionConfig, Sessions,
};
use weft_stack::{Rate, Span, Time};

/// The honest peer.
const PEER: u32 = 1;
/// A peer to which nothing gets through, as to all with larger numbers.
const SILENT: u32 = 99;
/// Packets of each endpoint in a turn.
const BURST: usize = 32;
const PINGS: u64 = 2_000;
/// Round trips beside an attack that comes to an end: fewer than it lasts for.
const PINGS_MEANWHILE: u64 = 150;
const LONG_MESSAGES: usize = 200;
/// Long messages of which goodput is the mean.
const GROUP: usize = 20;
const LONG: u32 = 64 << 10;
const JOINS: u32 = 50;
/// Applications that do nothing, in the attack on them.
const IDLE: usize = 16;
/// Long messages that wait, in the attack with them, and bytes of each.
const WAITING_LONG: usize = 32;
const VERY_LONG: u32 = 2 << 20;

/// An application or a peer that wants to harm the others.
struct Attack {
    name: &'static str,
    /// Prepares it, as far as that takes.
    begin: fn(&mut Net),
    /// What it does in each turn.
    go_on: fn(&mut Net),
    /// Whether it comes to an end.
    ends: bool,
}

impl Attack {
    const fn new(name: &'static str, begin: fn(&mut Net), go_on: fn(&mut Net)) -> Attack {
        Attack { name, begin, go_on, ends: false }
    }

    /// One that has its effect once: `strike` does something the first time.
    const fn once(name: &'static str, begin: fn(&mut Net), strike: fn(&mut Net)) -> Attack {
        Attack { name, begin, go_on: strike, ends: true }
    }
}

const ATTACKS: [Attack; 13] = [
    // 16 peers have left as many messages as they may with an application that receives none, and go on.
    Attack::new("unreceived-messages", unreceived, |_| {}),
    // 16 applications that do nothing, to which nobody sends.
    Attack::new("applications", applications, |_| {}),
    // One peer has left as many bytes as it may with each of 16 applications that receive none.
    Attack::new("idle-applications", idle_applications, |_| {}),
    // One packet in each turn asks for a PDC; none of them hears of its own.
    Attack::new("syns", |_| {}, |net| net.syn(|n| (SILENT + n % 50, n as u16, 0))),
    // One packet in each turn replaces the PDC of the one before.
    Attack::new("replaced-pdcs", |_| {}, |net| net.syn(|n| (SILENT, 1, n.wrapping_mul(1 << 20)))),
    // 64 kinds of receives, and a message in each turn that is none of them.
    Attack::new("kinds-of-receives", kinds, |net| net.hostile_send()),
    // Receives that ignore bits of the tag and fit none of 60,000 messages that wait.
    Attack::new("masked-receives", waiting, masked_receives),
    // A receive for many messages that takes all that 16 peers may leave.
    Attack::once("receive-for-many", unreceived, receive_for_many),
    // Receives for 32 messages of 2 MiB that have waited.
    Attack::once("long-messages", long_messages, receive_long_messages),
    // An application leaves for which 16 peers have left as many messages as they may.
    Attack::once("left-behind", unreceived, leave),
    // All connections to alice's peer that one application may have, each with a byte in some turn.
    Attack::new("connections", connections, bytes_in_turn),
    // As many messages as an application may post, to a peer that never answers.
    Attack::new("operations", operations, |_| {}),
    // 60,000 receives, which are cancelled and posted again.
    Attack::new("cancels", many_receives, cancels),
];

struct Net {
    server: Fep,
    sessions: Sessions,
    /// The honest peer, and the hostile ones behind it.
    peers: Vec<Fep>,
    start: Instant,
    alice: Client,
    to_peer: ConnectionHandle,
    from_peer: ConnectionId,
    hog: Client,
    hog_connections: Vec<ConnectionHandle>,
    hog_operations: Vec<OperationHandle>,
    /// Applications that do nothing.
    idle: Vec<Client>,
    hostile: Option<ConnectionId>,
    /// Packets on their way to the server.
    arriving: Vec<(Packet, Vec<u8>)>,
    count: u32,
    /// An attack that comes to an end has begun.
    has_struck: bool,
    spent: Duration,
    /// The time of each turn.
    turns: Vec<Duration>,
}

fn config() -> FepConfig {
    let network = CcParams {
        mtu: 4096,
        overhead: 64,
        link_rate: Rate::from_gbps(100),
        network_rtt: Span::from_us(10),
        trimming: true,
        delays: Delays::Known,
    };
    FepConfig::new(&CcChoice::default(), &network)
}

fn extent(len: u32) -> Extent {
    Extent { region: 0, offset: 0, len }
}

impl Net {
    fn new(peers: u32) -> Net {
        let config = Arc::new(config());
        let fep =
            |n| Fep::new(Addr(n), config.clone(), Rng::new(1, n.into()), Time::ZERO).expect("it is valid");
        let (mut server, mut sessions) = (fep(0), Sessions::new(64));
        server.close_process(0).expect("it was open");
        let few = SessionConfig { operations: 64, connections: 8, ..SessionConfig::default() };
        let many = SessionConfig { operations: 1 << 16, connections: 512, ..SessionConfig::default() };
        let mut alice = sessions.open(&mut server, &few, None).expect("there is room");
        let hog = sessions.open(&mut server, &many, None).expect("there is room");
        let mut peers: Vec<Fep> = (PEER..=peers.max(PEER)).map(fep).collect();
        let to_peer = alice.connect(Addr(PEER), ConnectOptions::default(), 0).expect("it has none");
        let options = ConnectOptions::default().process(alice.process());
        let from_peer = peers[0].connect(Time::ZERO, Addr(0), options).expect("it has none");
        Net {
            server,
            sessions,
            peers,
            start: Instant::now(),
            alice,
            to_peer,
            from_peer,
            hog,
            hog_connections: Vec::new(),
            hog_operations: Vec::new(),
            idle: Vec::new(),
            hostile: None,
            arriving: Vec::new(),
            count: 0,
            has_struck: false,
            spent: Duration::ZERO,
            turns: Vec::new(),
        }
    }

    fn now(&self) -> Time {
        Time::ZERO + Span::from_ns(self.start.elapsed().as_nanos() as u64)
    }

    /// A turn of the server's loop, and what the others do meanwhile.
    fn turn(&mut self) {
        let (now, begin) = (self.now(), Instant::now());
        self.sessions.serve(&mut self.server, now);
        if self.server.poll_timeout().is_some_and(|at| now.is_at_or_after(at)) {
            self.server.on_timeout(now);
        }
        for (packet, payload) in self.arriving.drain(..) {
            self.server.on_packet(now, &packet, Payload::Bytes(&payload));
        }
        let leaving = transmit(&mut self.server, now);
        let took = begin.elapsed();
        self.spent += took;
        self.turns.push(took);
        for (packet, payload) in leaving {
            let to = packet.net.dst.0.checked_sub(PEER).and_then(|at| self.peers.get_mut(at as usize));
            if let Some(fep) = to {
                fep.on_packet(now, &packet, Payload::Bytes(&payload));
            }
        }
        for fep in &mut self.peers {
            if fep.poll_timeout().is_some_and(|at| now.is_at_or_after(at)) {
                fep.on_timeout(now);
            }
            self.arriving.extend(transmit(fep, now));
        }
        while self.sessions.poll_ended().is_some() {}
        for fep in &mut self.peers[1..] {
            while fep.poll_completion().is_some() {}
        }
        while let Some(event) = self.hog.poll().expect("the server is there") {
            if let Report::Received { result: Err(_), .. } = event.report {
                self.count = self.count.wrapping_add(1);
            }
        }
    }

    /// A packet with SYN, made up of a number: its sender, the PDCID there and the PSN.
    fn syn(&mut self, of: impl Fn(u32) -> (u32, u16, u32)) {
        self.count = self.count.wrapping_add(1);
        let (src, pdc, psn) = of(self.count);
        let process = self.hog.process();
        self.arriving.push((syn(src, pdc, psn, process), vec![0]));
    }

    /// A hostile peer sends a message of a byte to the hog.
    fn hostile_send(&mut self) {
        if let Some(connection) = self.hostile {
            let send = Send { buffer: Buffer::Heap(vec![0]), tag: Some(0x55), header_data: 0, context: 0 };
            let _ = self.peers[1].post_send(connection, send);
        }
    }

    /// Executes commands of the hog until `is_done`.
    fn hog_does(&mut self, mut command: impl FnMut(&mut Net) -> Result<bool, ClientError>) {
        loop {
            match command(self) {
                Ok(true) | Err(ClientError::Exhausted { .. }) => return,
                Ok(false) => {}
                Err(ClientError::Full) => self.turn(),
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// The server's time for a round trip, that which one turn in a hundred exceeds, and that of the longest turn, µs.
    fn ping(&mut self, count: u64, go_on: fn(&mut Net)) -> [f64; 3] {
        self.turns.clear();
        let mut pings = Vec::new();
        for n in 0..count {
            self.spent = Duration::ZERO;
            self.alice.receive(extent(64), None, Matching::Untagged, n).expect("it has room");
            self.peer_receives(64);
            self.alice.send(self.to_peer, extent(64), None, 0, n).expect("it has room");
            let mut ended = 0;
            while ended < 2 {
                go_on(self);
                self.turn();
                if self.peer_received() {
                    self.peer_sends(64);
                }
                while let Some(event) = self.alice_event() {
                    ended += u64::from(is_good(&event));
                }
            }
            pings.push(self.spent.as_secs_f64() * 1e6);
        }
        let turns: Vec<f64> = self.turns.iter().map(|turn| turn.as_secs_f64() * 1e6).collect();
        [quantile(pings, 0.5), quantile(turns.clone(), 0.99), quantile(turns, 1.0)]
    }

    /// Goodput of long messages to alice in the server's time, Gbit/s.
    fn goodput(&mut self, go_on: fn(&mut Net)) -> f64 {
        self.spent = Duration::ZERO;
        let (mut posted, mut received, mut at) = (0, 0, Vec::new());
        while received < LONG_MESSAGES {
            if posted < LONG_MESSAGES.min(received + 8) {
                self.alice.receive(extent(LONG), None, Matching::Untagged, 0).expect("it has room");
                self.peer_sends(LONG);
                posted += 1;
            }
            go_on(self);
            self.turn();
            self.peer_received();
            while let Some(event) = self.alice_event() {
                received += usize::from(is_good(&event));
            }
            at.resize(received, self.spent);
        }
        let groups = at.iter().zip(&at[GROUP..]).step_by(GROUP).map(|(from, to)| (*to - *from).as_secs_f64());
        let bits = (GROUP * LONG as usize * 8) as f64;
        quantile(groups.map(|took| bits / took / 1e9).collect(), 0.5)
    }

    /// Joins in a second of the server's time: each is followed by a turn, and leaves again.
    fn joins(&mut self, go_on: fn(&mut Net)) -> f64 {
        let mut joins = Vec::new();
        let config = SessionConfig { memory: 1 << 16, ..SessionConfig::default() };
        for _ in 0..JOINS {
            let begin = Instant::now();
            let client = self.sessions.open(&mut self.server, &config, None).expect("there is room");
            self.spent = begin.elapsed();
            drop(client);
            go_on(self);
            self.turn();
            joins.push(1.0 / self.spent.as_secs_f64());
        }
        quantile(joins, 0.5)
    }

    fn alice_event(&mut self) -> Option<Event> {
        self.alice.poll().expect("the server is there")
    }

    fn peer_sends(&mut self, len: u32) {
        let send =
            Send { buffer: Buffer::Heap(vec![7; len as usize]), tag: None, header_data: 0, context: 0 };
        self.peers[0].post_send(self.from_peer, send).expect("it has room");
    }

    fn peer_receives(&mut self, len: u32) {
        let buffer = Buffer::Heap(vec![0; len as usize]);
        let receive = Receive { buffer, from: None, matching: Matching::Untagged, context: 0 };
        self.peers[0].post_receive(receive).expect("it has room");
    }

    fn peer_received(&mut self) -> bool {
        let mut received = false;
        while let Some(completion) = self.peers[0].poll_completion() {
            received |= matches!(completion, Completion::Received { tag: None, result: Ok(()), .. });
        }
        received
    }
}

fn is_good(event: &Event) -> bool {
    match event.report {
        Report::Received { result: Ok(()), .. } | Report::Sent { result: Ok(()), .. } => true,
        Report::Connected { .. } => false,
        other => panic!("{other:?}"),
    }
}

fn transmit(fep: &mut Fep, now: Time) -> Vec<(Packet, Vec<u8>)> {
    let mut packets = Vec::new();
    while packets.len() < BURST
        && let Some(transmit) = fep.poll_transmit(now)
    {
        let payload = fep.payload(transmit.payload);
        let mut bytes = vec![0; payload.len() as usize];
        payload.copy_to(&mut bytes);
        packets.push((transmit.packet, bytes));
    }
    packets
}

fn syn(src: u32, pdc: u16, psn: u32, process: u16) -> Packet {
    let request = Request {
        mode: DeliveryMode::Rud,
        next: NextHeader::RequestStandard,
        retx: false,
        ack_request: true,
        clear_psn_offset: -1,
        psn: Psn(psn),
        spdcid: PdcId(pdc),
        destination: Destination::Syn { use_reserved: false, psn_offset: 0 },
        vendor: VendorFlags::NONE,
        cc: None,
    };
    let ses = StandardRequest {
        opcode: Opcode::TAGGED_SEND,
        flags: RequestFlags::START_OF_MESSAGE,
        msg_id: 0,
        ri_generation: 0,
        job_id: 0,
        pid_on_fep: process,
        resource_index: 0,
        buffer_offset: 0,
        initiator: 0,
        match_bits: 0,
        placement: Placement::Start { header_data: 0 },
        request_length: 1,
    };
    let (src, dst, entropy) = (Addr(src), Addr(0), Entropy(0));
    let net =
        Network { src, dst, entropy, class: Class::Data, priority: Priority::LOWEST, ecn: false, hops: 0 };
    Packet { net, payload_len: 1, pds: Pds::Request(request), ses: Ses::Standard(ses) }
}

/// Each hostile peer sends `each` messages to the hog; waits until the server has heard of most of them.
fn leave_waiting(net: &mut Net, each: u64) {
    let options = ConnectOptions::default().process(net.hog.process());
    let now = net.now();
    for peer in &mut net.peers[1..] {
        let connection = peer.connect(now, Addr(0), options).expect("it has none");
        for tag in 0..each {
            let send =
                Send { buffer: Buffer::Heap(vec![0]), tag: Some(tag << 8), header_data: 0, context: 0 };
            peer.post_send(connection, send).expect("it has room");
        }
    }
    until_refused(net, 1_000);
}

/// Goes on until nothing arrives any more, or so many packets have been refused.
fn until_refused(net: &mut Net, nacks: u64) {
    let mut idle = 0;
    while idle < 2_000 && net.server.counters().nacks_sent < nacks {
        let before = net.server.counters().data_received;
        net.turn();
        idle = if net.server.counters().data_received == before { idle + 1 } else { 0 };
    }
}

fn unreceived(net: &mut Net) {
    leave_waiting(net, 40_000);
}

/// The application says that it wants all of them at once.
fn receive_for_many(net: &mut Net) {
    if !std::mem::replace(&mut net.has_struck, true) {
        let all = Matching::Tagged { tag: 0, ignore: u64::MAX };
        net.hog.receive_many(extent(1 << 20), None, all, NonZeroU32::MIN, 0).expect("it has room");
    }
}

fn long_messages(net: &mut Net) {
    let options = ConnectOptions::default().process(net.hog.process());
    let now = net.now();
    for peer in &mut net.peers[1..=WAITING_LONG / 8] {
        let connection = peer.connect(now, Addr(0), options).expect("it has none");
        for _ in 0..8 {
            let send = Send { buffer: Buffer::Virtual(VERY_LONG), tag: None, header_data: 0, context: 0 };
            peer.post_send(connection, send).expect("it has room");
        }
    }
    until_refused(net, 1);
    assert_eq!(net.server.counters().nacks_sent, 0, "all of them wait");
}

fn receive_long_messages(net: &mut Net) {
    if !std::mem::replace(&mut net.has_struck, true) {
        for n in 0..WAITING_LONG as u64 {
            net.hog.receive(extent(VERY_LONG), None, Matching::Untagged, n).expect("it has room");
        }
    }
}

/// The application leaves; a smaller one comes in its stead.
fn leave(net: &mut Net) {
    if !std::mem::replace(&mut net.has_struck, true) {
        let config = SessionConfig { memory: 1 << 16, ..SessionConfig::default() };
        net.hog = net.sessions.open(&mut net.server, &config, None).expect("there is room");
    }
}

fn applications(net: &mut Net) {
    let config = SessionConfig { memory: 1 << 16, ..SessionConfig::default() };
    for _ in 0..IDLE {
        net.idle.push(net.sessions.open(&mut net.server, &config, None).expect("there is room"));
    }
}

fn idle_applications(net: &mut Net) {
    applications(net);
    let now = net.now();
    for at in 0..IDLE {
        let options = ConnectOptions::default().process(net.idle[at].process());
        let connection = net.peers[1].connect(now, Addr(0), options).expect("it has none");
        for _ in 0..(65 << 20) / LONG {
            let send = Send { buffer: Buffer::Virtual(LONG), tag: None, header_data: 0, context: 0 };
            net.peers[1].post_send(connection, send).expect("it has room");
        }
    }
    until_refused(net, 20_000);
}

fn waiting(net: &mut Net) {
    leave_waiting(net, 60_000 / 16);
}

fn kinds(net: &mut Net) {
    let mut mask = 0;
    net.hog_does(|net| {
        let matching = Matching::Tagged { tag: u64::MAX, ignore: 1 << mask | 1 << 63 };
        net.hog.receive(extent(1), None, matching, 0).map(|_| {
            mask += 1;
            mask == 60
        })
    });
    let options = ConnectOptions::default().process(net.hog.process());
    let now = net.now();
    net.hostile = net.peers[1].connect(now, Addr(0), options).ok();
}

fn masked_receives(net: &mut Net) {
    let matching = Matching::Tagged { tag: 0xff, ignore: !0xff };
    while let Ok(receive) = net.hog.receive(extent(1), None, matching, 0) {
        if net.hog.cancel(receive).is_err() {
            break;
        }
    }
}

fn connections(net: &mut Net) {
    net.hog_does(|net| {
        let connection = net.hog.connect(Addr(PEER), ConnectOptions::default(), 0)?;
        net.hog_connections.push(connection);
        Ok(false)
    });
    let buffer = || Buffer::Heap(vec![0]);
    for context in 0..10_000 {
        let receive = Receive {
            buffer: buffer(),
            from: None,
            matching: Matching::Tagged { tag: 1, ignore: 0 },
            context,
        };
        net.peers[0].post_receive(receive).expect("it has room");
    }
}

fn bytes_in_turn(net: &mut Net) {
    net.count = net.count.wrapping_add(1);
    let connection = net.hog_connections[net.count as usize % net.hog_connections.len()];
    let _ = net.hog.send(connection, extent(1), Some(1), 0, 0);
}

fn operations(net: &mut Net) {
    let connection = net.hog.connect(Addr(SILENT), ConnectOptions::default(), 0).expect("it has none");
    net.hog_does(|net| net.hog.send(connection, extent(1), None, 0, 0).map(|_| false));
}

fn many_receives(net: &mut Net) {
    net.hog_does(|net| {
        let receive = net.hog.receive(extent(1), None, Matching::Tagged { tag: u64::MAX, ignore: 0 }, 0)?;
        net.hog_operations.push(receive);
        Ok(net.hog_operations.len() == 60_000)
    });
}

/// Cancels the oldest receives, and posts as many.
fn cancels(net: &mut Net) {
    for _ in 0..16 {
        let at = net.count as usize % net.hog_operations.len();
        if net.hog.cancel(net.hog_operations[at]).is_ok() {
            net.count = net.count.wrapping_add(1);
        }
        let matching = Matching::Tagged { tag: u64::MAX, ignore: 0 };
        if let Ok(receive) = net.hog.receive(extent(1), None, matching, 0) {
            net.hog_operations[at] = receive;
        }
    }
}

/// Ping, a long turn and the longest in µs, goodput in Gbit/s, joins a second, megabytes.
fn measure(net: &mut Net, pings: u64, go_on: fn(&mut Net)) -> [f64; 6] {
    let [ping, long, longest] = net.ping(pings, go_on);
    let (goodput, joins) = (net.goodput(go_on), net.joins(go_on));
    [ping, long, longest, goodput, joins, net.server.footprint().total() as f64 / 1e6]
}

/// The value that this part of them does not exceed. There are some.
fn quantile(mut values: Vec<f64>, part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * part) as usize]
}

fn main() {
    let mut arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    if arguments.first().is_some_and(|first| first == "list") {
        ATTACKS.iter().for_each(|attack| println!("{}", attack.name));
        return;
    }
    let rounds = arguments.first().and_then(|first| first.parse::<usize>().ok());
    if rounds.is_some() {
        arguments.remove(0);
    }
    let rounds = rounds.unwrap_or(1).max(1);
    println!(
        "{:<20} {:>18} {:>18} {:>18} {:>18} {:>18} {:>18}",
        "attack", "ping µs", "turn (p99) µs", "longest turn µs", "Gbit/s", "joins/s", "MB"
    );
    for attack in
        ATTACKS.iter().filter(|a| arguments.is_empty() || arguments.iter().any(|name| name == a.name))
    {
        let new = || Net::new(1 + 16);
        let attacked = || {
            let mut net = new();
            (attack.begin)(&mut net);
            net
        };
        let pings = if attack.ends { PINGS_MEANWHILE } else { PINGS };
        let (mut calm, mut other) = (new(), attacked());
        let mut results: Vec<[[f64; 6]; 2]> = Vec::new();
        for round in 0..rounds {
            if attack.ends && round > 0 {
                other = attacked();
            }
            results.push([measure(&mut calm, pings, |_| {}), measure(&mut other, pings, attack.go_on)]);
        }
        print!("{:<20}", attack.name);
        for what in 0..6 {
            let [before, after] =
                [0, 1].map(|side| quantile(results.iter().map(|result| result[side][what]).collect(), 0.5));
            print!(" {:>18}", format!("{} → {}", short(before), short(after)));
        }
        println!();
    }
}

/// Three digits.
fn short(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}
