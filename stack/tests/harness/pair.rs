//! Two endpoints, and a channel between them that does what the test says.

use weft_stack::buffer::Buffer;
use weft_stack::fep::{
    Completion, ConnectOptions, ConnectionId, Fep, FepConfig, PayloadRef, Rights, Send, SendError, SendId,
};
use weft_stack::packet::{Addr, Class, Packet, Payload};
use weft_stack::wire::pds::{NextHeader, Pds};
use weft_stack::wire::ses::Ses;
use weft_stack::{Span, Time};

use super::{Alone, exposure, fep, impatient_config};

/// A packet on its way.
#[derive(Debug)]
pub(crate) struct Transit {
    pub(crate) packet: Packet,
    payload: Buffer,
    pub(crate) sent_at: Time,
}

impl Transit {
    /// Another packet that is equal to this one.
    pub(crate) fn duplicate(&self) -> Transit {
        let payload = match &self.payload {
            Buffer::Heap(bytes) => Buffer::Heap(bytes.clone()),
            Buffer::Virtual(len) => Buffer::Virtual(*len),
            other => panic!("packets on their way do not hold {other:?}"),
        };
        Transit { packet: self.packet, payload, sent_at: self.sent_at }
    }

    /// Whether switches can trim it: a request, or a response with data, that has not been trimmed.
    pub(crate) fn is_data(&self) -> bool {
        let carries_data = matches!(self.packet.pds, Pds::Request(_)) || self.is_response();
        carries_data && self.packet.net.class == Class::Data
    }

    /// Whether it is a response with data, which may have been trimmed.
    pub(crate) fn is_response(&self) -> bool {
        matches!(&self.packet.pds, Pds::Ack(ack) if ack.next == NextHeader::ResponseData)
    }

    /// Takes the payload away as switches do, and gives the packet the trimmed `class`.
    pub(crate) fn trim(&mut self, class: Class) {
        self.packet.net.class = class;
        self.packet.ses = Ses::None;
        self.payload = Buffer::Heap(Vec::new());
    }

    /// Marks the packet as congested (CE).
    pub(crate) fn mark(&mut self) {
        self.packet.net.ecn = true;
    }
}

/// Endpoints 0 and 1, their common clock, and the packets between them, in the order in which they were sent.
///
/// Loss, duplication and reordering are what a test does to [`wire`](Pair::wire).
pub(crate) struct Pair {
    pub(crate) feps: [Fep; 2],
    pub(crate) now: Time,
    pub(crate) wire: Vec<Transit>,
    /// Packets that have arrived, and the bytes of their payloads.
    pub(crate) arrived: (u64, u64),
    /// The last packet of each endpoint, and where its payload was. The next one is written over it, as in a worker.
    last: [(Packet, PayloadRef); 2],
}

impl Pair {
    /// Two equal endpoints. The clock starts at [`Time::ZERO`].
    pub(crate) fn new(config: &FepConfig) -> Pair {
        Pair::of([0, 1].map(|n| fep(n, config.clone(), 3, Time::ZERO)), Time::ZERO)
    }

    /// Two that give up soon: with [`impatient_config`].
    pub(crate) fn impatient() -> Pair {
        Pair::new(&impatient_config())
    }

    /// Two equal endpoints, of which endpoint 1 has an [`exposure`].
    pub(crate) fn exposing(config: &FepConfig, bytes: Vec<u8>, rights: Rights) -> Pair {
        let mut pair = Pair::new(config);
        pair.feps[1].expose(0, exposure(bytes, rights)).unwrap();
        pair
    }

    /// These endpoints, whose addresses are 0 and 1.
    pub(crate) fn of(feps: [Fep; 2], now: Time) -> Pair {
        let last = [(Packet::BLANK, PayloadRef::NONE); 2];
        Pair { feps, now, wire: Vec::new(), arrived: (0, 0), last }
    }

    /// Endpoint 0, whose peer has died.
    pub(crate) fn without_peer(self) -> Alone {
        let [fep, _] = self.feps;
        Alone { fep, now: self.now }
    }

    /// Opens a connection from endpoint 0 to endpoint 1.
    pub(crate) fn connect(&mut self) -> ConnectionId {
        self.connect_from(0, ConnectOptions::default())
    }

    /// Opens a connection from endpoint `from` to the other one.
    pub(crate) fn connect_from(&mut self, from: usize, options: ConnectOptions) -> ConnectionId {
        self.feps[from].connect(self.now, Addr(1 - from as u32), options).unwrap()
    }

    /// Endpoint 0 posts a message.
    pub(crate) fn post_send(&mut self, connection: ConnectionId, send: Send) -> SendId {
        self.feps[0].post_send(connection, send).unwrap()
    }

    /// Endpoint 0 closes a connection, and all packets that follow from that are exchanged.
    pub(crate) fn close(&mut self, connection: ConnectionId) {
        self.feps[0].close(self.now, connection).unwrap();
        self.exchange();
    }

    /// The next packet that endpoint `from` sends now.
    pub(crate) fn transmit(&mut self, from: usize) -> Option<Transit> {
        let (packet, payload) = &mut self.last[from];
        let before = (*packet, payload.len());
        if !self.feps[from].poll_transmit_into(self.now, packet, payload) {
            assert_eq!((*packet, payload.len()), before, "nothing is written if there is no packet");
            return None;
        }
        assert_eq!(payload.len(), packet.payload_len, "the payload is as long as the packet says");
        let (packet, payload) = self.last[from];
        let payload = match self.feps[from].payload(&payload) {
            Payload::Bytes(bytes) => Buffer::Heap(bytes.to_vec()),
            Payload::Virtual(len) => Buffer::Virtual(len),
            Payload::Region(_) => panic!("the messages of a pair are bytes of the heap, or virtual"),
        };
        assert_eq!(payload.len(), packet.payload_len, "the bytes are as many");
        assert_eq!(packet.net.src, Addr(from as u32));
        Some(Transit { packet, payload, sent_at: self.now })
    }

    /// Puts the next packet of endpoint `from` on the wire. Packets for other addresses are lost. False if there is
    /// no packet.
    pub(crate) fn put_on_wire(&mut self, from: usize) -> bool {
        let Some(transit) = self.transmit(from) else { return false };
        if (transit.packet.net.dst.0 as usize) < self.feps.len() {
            self.wire.push(transit);
        }
        true
    }

    /// A packet arrives now at the endpoint that it is for.
    pub(crate) fn arrive(&mut self, transit: &Transit) {
        let payload = match &transit.payload {
            Buffer::Heap(bytes) => Payload::Bytes(bytes),
            Buffer::Virtual(len) => Payload::Virtual(*len),
            other => panic!("packets on their way do not hold {other:?}"),
        };
        self.arrived = (self.arrived.0 + 1, self.arrived.1 + u64::from(payload.len()));
        self.feps[transit.packet.net.dst.0 as usize].on_packet(self.now, &transit.packet, payload);
    }

    /// All packets arrive that endpoint `from` sends now.
    pub(crate) fn flush(&mut self, from: usize) -> bool {
        let mut moved = false;
        while let Some(transit) = self.transmit(from) {
            self.arrive(&transit);
            moved = true;
        }
        moved
    }

    /// Moves packets both ways at this instant until both endpoints are silent.
    pub(crate) fn exchange(&mut self) {
        while self.flush(0) | self.flush(1) {}
    }

    /// Lets the timers of endpoint `side` expire that are due at `at`, which becomes the time.
    pub(crate) fn expire_at(&mut self, side: usize, at: Time) {
        self.now = at;
        self.feps[side].on_timeout(at);
    }

    /// The earliest timer of both endpoints.
    pub(crate) fn next_timer(&self) -> Option<Time> {
        self.feps.iter().filter_map(Fep::poll_timeout).reduce(Time::earliest)
    }

    /// Runs in virtual time until nothing more happens before `until`. `link` says how long each packet that leaves is
    /// under way; `None` if it is lost. Returns the completions of endpoint 0, with their times.
    pub(crate) fn run(
        &mut self,
        until: Time,
        mut link: impl FnMut(&Transit) -> Option<Span>,
    ) -> Vec<(Time, Completion)> {
        let mut done = Vec::new();
        let mut under_way: Vec<(Time, Transit)> = Vec::new();
        loop {
            for side in 0..2 {
                while let Some(transit) = self.transmit(side) {
                    if let Some(delay) = link(&transit) {
                        under_way.push((self.now + delay, transit));
                    }
                }
            }
            done.extend(self.completions(0).into_iter().map(|completion| (self.now, completion)));
            if !self.go_on(&mut under_way, until) {
                return done;
            }
        }
    }

    /// Runs in virtual time until endpoint 0 has reported `count` completions, for `span` at most. `channel` gets the time and
    /// each packet that leaves then, and adds to those that are under way what becomes of it, with the times of arrival.
    pub(crate) fn run_until_done(
        &mut self,
        count: usize,
        span: Span,
        mut channel: impl FnMut(Time, Transit, &mut Vec<(Time, Transit)>),
    ) -> Vec<Completion> {
        let end = self.now + span;
        let (mut done, mut under_way) = (Vec::new(), Vec::new());
        while done.len() < count {
            for side in 0..2 {
                while let Some(transit) = self.transmit(side) {
                    channel(self.now, transit, &mut under_way);
                }
            }
            done.extend(self.completions(0));
            if !self.go_on(&mut under_way, end) {
                break;
            }
        }
        assert_eq!(done.len(), count, "{:#?}", self.explain());
        done
    }

    /// Lets time pass until the next packet of those `under_way` arrives or the next timer expires. Returns false if nothing
    /// happens before `until`.
    fn go_on(&mut self, under_way: &mut Vec<(Time, Transit)>, until: Time) -> bool {
        let first = under_way.iter().map(|(at, _)| *at).reduce(Time::earliest);
        let next = first.into_iter().chain(self.next_timer()).reduce(Time::earliest);
        let Some(next) = next.filter(|at| at.is_before(until)) else { return false };
        self.now = next.latest(self.now);
        let now = self.now;
        for (_, transit) in under_way.extract_if(.., |(at, _)| now.is_at_or_after(*at)) {
            self.arrive(&transit);
        }
        self.feps.iter_mut().for_each(|fep| fep.on_timeout(now));
        true
    }

    pub(crate) fn completions(&mut self, side: usize) -> Vec<Completion> {
        std::iter::from_fn(|| self.feps[side].poll_completion()).collect()
    }

    /// The next completion of endpoint 0, which is of a message that it has sent.
    pub(crate) fn sent_result(&mut self) -> Result<(), SendError> {
        match self.feps[0].poll_completion() {
            Some(Completion::Sent { result, .. }) => result,
            other => panic!("expected that a message was sent, not {other:?}"),
        }
    }

    pub(crate) fn leaks(&self, side: usize) -> Vec<String> {
        self.feps[side].leaks().collect()
    }

    /// The events that both endpoints wait for, for messages about tests that fail.
    pub(crate) fn explain(&self) -> Vec<String> {
        self.feps.iter().flat_map(|fep| fep.explain(self.now)).collect()
    }
}
