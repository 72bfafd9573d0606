//! A server, its applications and their peers in one thread. Time is that of the server alone: it goes on by what the
//! server's turns take, as if all others had processors of their own. Peers hear and answer also in the middle of a turn, and what
//! the honest peer sends for a measurement leaves there. Otherwise a round trip would take a whole number of turns, and shorter turns
//! could make it longer. Alice, whose rings the server looks at once in a turn, acts between two turns.

use std::cell::Cell;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use weft_stack::buffer::Buffer;
use weft_stack::fep::{Completion, ConnectOptions, ConnectionId, Fep, Limits, Receive, Send};
use weft_stack::packet::{Addr, Packet, Payload};
use weft_stack::rng::Rng;
use weft_stack::ses::Matching;
use weft_stack::worker::session::{Client, ClientError, Event, Extent, SessionConfig, Sessions};
use weft_stack::{Span, Time};

use crate::held::held;
use crate::interface::{
    ConnectionHandle, Forged, HALF_RTT, MOST_CONNECTIONS, OperationHandle, config, forged, session,
    to_process,
};
use crate::joiner::Joiner;

/// The honest peer. Hostile ones follow.
pub(crate) const PEER: u32 = 1;
/// The number of hostile peers.
pub(crate) const HOSTILE: u32 = 16;
/// A peer to which nothing gets through, as to all with larger numbers.
pub(crate) const SILENT: u32 = 99;
/// Packets of each endpoint in a turn.
const BURST: usize = 32;
/// The longest payload of a packet.
const MTU: usize = 4096;

thread_local! {
    /// Bytes that the server has allocated and not freed.
    static OF_SERVER: Cell<i64> = const { Cell::new(0) };
}

/// Does something as the server, and counts its memory. Returns the time that it took.
pub(crate) fn as_server<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let before = held();
    let begin = Instant::now();
    let done = work();
    let took = begin.elapsed();
    OF_SERVER.set(OF_SERVER.get() + held() - before);
    (done, took)
}

/// Bytes that the server has allocated and not freed.
pub(crate) fn held_by_server() -> i64 {
    OF_SERVER.get()
}

/// An application that may want to harm the others.
pub(crate) struct Hog {
    pub client: Client,
    pub connections: Vec<ConnectionHandle>,
    pub operations: Vec<OperationHandle>,
}

/// Packets that will arrive at some time, in its order.
type Wire = VecDeque<(Time, Packet, Vec<u8>)>;

pub(crate) struct Net {
    pub server: Fep,
    pub sessions: Sessions,
    /// The honest peer, and the hostile ones behind it.
    pub peers: Vec<Fep>,
    pub now: Time,
    pub alice: Client,
    pub to_peer: ConnectionHandle,
    pub from_peer: ConnectionId,
    pub hogs: Vec<Hog>,
    pub hostile: Vec<ConnectionId>,
    joiner: Option<Joiner>,
    to_server: Wire,
    to_peers: Wire,
    rng: Rng,
    /// Tags of messages that the honest peer has received, and when.
    at_peer: VecDeque<(u64, Time)>,
    /// Buffers for the packets of a turn.
    burst: Vec<(Packet, Vec<u8>)>,
    /// Packets that are lost on their way to the server, and from it.
    pub is_lost: fn(&Packet) -> bool,
    pub is_lost_by_peer: fn(&Packet) -> bool,
    /// What an attack counts.
    pub count: u32,
    /// The next time for something that an attack does at a rate.
    next: Time,
    /// Messages that hogs have received.
    pub received: u64,
    /// The longest turn.
    pub longest: Duration,
    held_before: i64,
    serial: u64,
}

/// Some of the application's memory.
pub(crate) fn extent(len: u32) -> Extent {
    Extent { region: 0, offset: 0, len }
}

/// A kind of receives that takes messages with this tag.
pub(crate) fn tagged(tag: u64) -> Matching {
    Matching::Tagged { tag, ignore: 0 }
}

/// A message without bytes of its own.
pub(crate) fn virtual_send(len: u32, tag: Option<u64>) -> Send {
    Send { buffer: Buffer::Virtual(len), tag, header_data: 0, context: 0 }
}

impl Net {
    pub(crate) fn new(limits: fn(&mut Limits)) -> Net {
        let config = config(limits);
        let fep = |n: u32| {
            Fep::new(Addr(n), config.clone(), Rng::new(1, n.into()), Time::ZERO).expect("it is valid")
        };
        let ((mut server, mut sessions), _) = as_server(|| (fep(0), Sessions::new(64)));
        server.close_process(0).expect("it was open");
        let mut alice = sessions.open(&mut server, &alice_session(), None).expect("there is room");
        let mut peers: Vec<Fep> = (PEER..=PEER + HOSTILE).map(fep).collect();
        let to_peer = alice.connect(Addr(PEER), ConnectOptions::default(), 0).expect("it has none");
        let from_peer =
            peers[0].connect(Time::ZERO, Addr(0), to_process(alice.process())).expect("it has none");
        let mut net = Net {
            server,
            sessions,
            peers,
            now: Time::ZERO,
            alice,
            to_peer,
            from_peer,
            hogs: Vec::new(),
            hostile: Vec::new(),
            joiner: None,
            to_server: Wire::new(),
            to_peers: Wire::new(),
            rng: Rng::new(1, 1 << 32),
            at_peer: VecDeque::new(),
            burst: (0..BURST).map(|_| (forged(&Forged::NONE), Vec::with_capacity(MTU))).collect(),
            is_lost: |_| false,
            is_lost_by_peer: |_| false,
            count: 0,
            next: Time::ZERO,
            received: 0,
            longest: Duration::ZERO,
            held_before: 0,
            serial: 1 << 32,
        };
        net.hog_with(64 << 20, 1 << 16, MOST_CONNECTIONS);
        net.held_before = OF_SERVER.get();
        net
    }

    /// Another application joins. Returns whether it may.
    pub(crate) fn hog(&mut self, operations: u32, connections: u32) -> bool {
        self.hog_with(1 << 20, operations, connections)
    }

    fn hog_with(&mut self, memory: u32, operations: u32, connections: u32) -> bool {
        let config = SessionConfig { memory, ..session(operations, connections) };
        let before = OF_SERVER.get();
        let joined = self.join(&config);
        self.held_before += OF_SERVER.get() - before;
        let Some((client, _)) = joined else { return false };
        self.hogs.push(Hog { client, connections: Vec::new(), operations: Vec::new() });
        true
    }

    /// An application joins, if there is room, in so much of the server's time.
    pub(crate) fn join(&mut self, config: &SessionConfig) -> Option<(Client, Duration)> {
        let (client, took) = as_server(|| self.sessions.open(&mut self.server, config, None));
        self.pass(took);
        Some((client.ok()?, took))
    }

    /// From now on an application joins with `config` and leaves, over and over.
    pub(crate) fn let_join(&mut self, config: SessionConfig) {
        self.joiner = Some(Joiner::start(config));
    }

    /// From now on so many sockets are connected to the server's, and say nothing.
    pub(crate) fn let_connect(&mut self, sockets: usize) {
        self.joiner = Some(Joiner::silent(alice_session(), sockets));
    }

    /// From now on there is a socket at which others can join with up to `config`. Returns its path.
    pub(crate) fn let_nobody_join(&mut self, config: SessionConfig) -> PathBuf {
        self.joiner.insert(Joiner::nobody(config)).path()
    }

    /// Where applications join.
    pub(crate) fn path_of_listener(&self) -> Option<PathBuf> {
        self.joiner.as_ref().map(Joiner::path)
    }

    /// The server attends to them, as it does in each turn.
    pub(crate) fn attend(&mut self) {
        let (sessions, server, now) = (&mut self.sessions, &mut self.server, self.now);
        let Some(joiner) = &mut self.joiner else { return };
        let ((), took) = as_server(|| joiner.attend(sessions, server, now));
        self.longest = self.longest.max(took);
        self.pass(took);
    }

    /// Megabytes that the server has allocated since the attack began, apart from what was reserved for those that joined.
    pub(crate) fn megabytes(&self) -> f64 {
        (OF_SERVER.get() - self.held_before).max(0) as f64 / 1e6
    }

    /// A tag that no other message has.
    pub(crate) fn tag(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    fn pass(&mut self, took: Duration) {
        self.now += Span::from_ns((took.as_nanos() as u64).max(1));
    }

    /// Whether it is time for what an attack does once in `span`.
    pub(crate) fn is_time(&mut self, span: Span) -> bool {
        let is_time = self.now.is_at_or_after(self.next);
        if is_time {
            // What was missed during a long turn is not made up for.
            self.next = if self.now.since(self.next) > span { self.now } else { self.next } + span;
        }
        is_time
    }

    /// A turn of the server's loop, and what the others do meanwhile.
    pub(crate) fn turn(&mut self) {
        let now = self.now;
        let due = self.to_server.iter().take(BURST).take_while(|(at, ..)| now.is_at_or_after(*at)).count();
        let arriving: Vec<_> = self.to_server.drain(..due).collect();
        let (server, sessions, burst) = (&mut self.server, &mut self.sessions, &mut self.burst);
        let (count, took) = as_server(|| {
            sessions.serve(server, now);
            if server.poll_timeout().is_some_and(|at| now.is_at_or_after(at)) {
                server.on_timeout(now);
            }
            for (_, packet, payload) in &arriving {
                server.on_packet(now, packet, Payload::Bytes(payload));
            }
            transmit(server, now, burst)
        });
        self.longest = self.longest.max(took);
        self.pass(took);
        while self.sessions.poll_ended().is_some() {}
        let arrival = self.now + HALF_RTT;
        let is_lost = self.is_lost_by_peer;
        for (packet, payload) in &self.burst[..count] {
            if !is_lost(packet) {
                self.to_peers.push_back((arrival, *packet, payload.clone()));
            }
        }
        self.peers_turn();
        for hog in &mut self.hogs {
            while let Ok(Some(event)) = hog.client.poll() {
                if let crate::interface::Heard::Done = crate::interface::heard(&event.report) {
                    self.received += 1;
                }
            }
        }
    }

    fn peers_turn(&mut self) {
        let now = self.now;
        while self.to_peers.front().is_some_and(|(at, ..)| now.is_at_or_after(*at)) {
            let Some((at, packet, payload)) = self.to_peers.pop_front() else { break };
            let Some(to) = packet.net.dst.0.checked_sub(PEER) else { continue };
            let Some(fep) = self.peers.get_mut(to as usize) else { continue };
            fep.on_packet(at, &packet, Payload::Bytes(&payload));
            while to == 0
                && let Some(completion) = fep.poll_completion()
            {
                if let Completion::Received { context, result: Ok(()), .. } = completion {
                    self.at_peer.push_back((context, at));
                }
            }
            self.peer_transmits(to as usize, at, at);
        }
        for at in 0..self.peers.len() {
            let fep = &mut self.peers[at];
            if fep.poll_timeout().is_some_and(|at| now.is_at_or_after(at)) {
                fep.on_timeout(now);
            }
            self.peer_transmits(at, now, now);
            while at > 0 && self.peers[at].poll_completion().is_some() {}
        }
    }

    /// Puts the packets that a peer has to send on the wire, as sent at `sent_at`.
    fn peer_transmits(&mut self, peer: usize, now: Time, sent_at: Time) {
        let mut burst = std::mem::take(&mut self.burst);
        let count = transmit(&mut self.peers[peer], now, &mut burst);
        for (packet, payload) in &burst[..count] {
            if !(self.is_lost)(packet) {
                self.send_to_server(sent_at, *packet, payload.clone());
            }
        }
        self.burst = burst;
    }

    /// A random time of less than `most`.
    pub(crate) fn random(&mut self, most: Span) -> Span {
        Span::from_ps(self.rng.next_u64() % most.as_ps())
    }

    /// Puts the packets that the honest peer has to send on the wire, as sent at `sent_at`, a time in the last turn.
    pub(crate) fn honest_peer_transmits(&mut self, sent_at: Time) {
        self.peer_transmits(0, self.now, sent_at);
    }

    /// Puts a packet for the server on the wire, as sent at `sent_at`. It overtakes no other.
    fn send_to_server(&mut self, sent_at: Time, packet: Packet, payload: Vec<u8>) {
        let at = sent_at + HALF_RTT;
        let at = self.to_server.back().map_or(at, |(last, ..)| at.latest(*last));
        self.to_server.push_back((at, packet, payload));
    }

    /// A forged packet is on its way.
    pub(crate) fn forge(&mut self, packet: Packet) {
        let payload = vec![0; packet.payload_len as usize];
        self.send_to_server(self.now, packet, payload);
    }

    /// Executes commands of a hog until `is_done`, or it may have no more.
    pub(crate) fn hog_does(
        &mut self,
        hog: usize,
        mut command: impl FnMut(&mut Hog) -> Result<bool, ClientError>,
    ) {
        loop {
            match command(&mut self.hogs[hog]) {
                Ok(false) => {}
                Err(ClientError::Full) => self.turn(),
                Ok(true) | Err(_) => return,
            }
        }
    }

    /// Turns for so long.
    pub(crate) fn wait(&mut self, span: Span) {
        let end = self.now + span;
        while !self.now.is_at_or_after(end) {
            self.turn();
        }
    }

    /// Turns until the server takes no more: it has refused so many packets, and its memory has not grown for
    /// 250 ms, which is longer than an RTO; or nothing has arrived for so long. Gives up after 20 s.
    pub(crate) fn until_full(&mut self, refused: u64) {
        const QUIET: Span = Span::from_ms(250);
        let begin = self.now;
        let (mut grown, mut heard, mut held, mut received) = (begin, begin, 0.0, 0);
        while self.now.since(begin) < Span::from_ms(20_000) && self.now.since(heard) < QUIET {
            self.turn();
            let counters = self.server.counters();
            if self.now.since(grown) >= QUIET && counters.nacks_sent >= refused {
                break;
            }
            if counters.data_received > received {
                (heard, received) = (self.now, counters.data_received);
            }
            if self.megabytes() > held * 1.002 {
                (grown, held) = (self.now, self.megabytes());
            }
        }
    }

    pub(crate) fn alice_event(&mut self) -> Option<Event> {
        self.alice.poll().expect("the server is there")
    }

    /// The honest peer sends alice a message. Returns whether it could be posted.
    pub(crate) fn peer_sends(&mut self, connection: ConnectionId, len: u32, tag: u64) -> bool {
        let buffer = Buffer::Heap(vec![7; len as usize]);
        let send = Send { buffer, tag: Some(tag), header_data: 0, context: 0 };
        self.peers[0].post_send(connection, send).is_ok()
    }

    pub(crate) fn peer_receives(&mut self, len: u32, tag: u64) {
        let buffer = Buffer::Heap(vec![0; len as usize]);
        let receive = Receive { buffer, from: None, matching: tagged(tag), context: tag };
        self.peers[0].post_receive(receive).expect("it has room");
    }

    /// The tag of a message that the honest peer has received, and when.
    pub(crate) fn peer_received(&mut self) -> Option<(u64, Time)> {
        self.at_peer.pop_front()
    }
}

fn alice_session() -> SessionConfig {
    SessionConfig { memory: 1 << 20, ..session(512, 8) }
}

/// Writes the packets that an endpoint sends in a turn into the buffers of a burst. Returns how many.
fn transmit(fep: &mut Fep, now: Time, burst: &mut [(Packet, Vec<u8>)]) -> usize {
    let mut count = 0;
    while let Some((packet, bytes)) = burst.get_mut(count)
        && let Some(transmit) = fep.poll_transmit(now)
    {
        let payload = fep.payload(&transmit.payload);
        // There is room: it allocates nothing.
        bytes.resize(payload.len() as usize, 0);
        payload.copy_to(bytes);
        *packet = transmit.packet;
        count += 1;
    }
    count
}
