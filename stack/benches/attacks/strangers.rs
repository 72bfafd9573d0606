//! Strangers who fill the address book of a server that learns its peers, with a worker and frames of its own.

use std::collections::VecDeque;

use weft_stack::buffer::Buffer;
use weft_stack::fep::{Completion, ConnectionId, Fep, Receive, Send};
use weft_stack::packet::Addr;
use weft_stack::rng::Rng;
use weft_stack::worker::Strangers;
use weft_stack::{Span, Time};

use crate::PARTS;
use crate::attached::{DESTINATION, Host, from_stranger, host_at};
use crate::honest::{LONG, PATIENCE, Stream, goodput, in_parts, median_of};
use crate::interface::{HALF_RTT, config, to_process};
use crate::net::{as_server, held_by_server, tagged};

/// Entries of the server's address book.
const BOOK: usize = 4096;
/// Strangers that have sent before anything is measured.
const STRANGERS: u32 = 6_000;
/// How often one more sends, or a client that the server knows.
const EVERY: Span = Span::from_us(10);
/// The time between two messages that are measured.
const REST: Span = Span::from_us(50);
/// The IP addresses of the server and of that client.
const SERVER: [u8; 4] = [10, 0, 0, 1];
const KNOWN: [u8; 4] = [10, 0, 1, 1];
/// The most frames that arrive in a turn.
const A_TURN: usize = 24;

impl Host {
    fn with(own: Addr, ip: [u8; 4], capacity: usize, strangers: Strangers) -> Host {
        let seed = Rng::new(1, u32::from_be_bytes(ip).into());
        let fep = Fep::new(own, config(|_| {}), seed, Time::ZERO).expect("it is valid");
        Host::new(own, fep, ip, capacity, strangers)
    }

    /// A client, with a connection to the server.
    fn client(ip: [u8; 4], now: Time) -> (Host, ConnectionId) {
        let mut host = Host::with(Addr(1), ip, 2, Strangers::Refuse);
        host.worker.book_mut().insert(Addr(0), host_at(SERVER)).expect("there is room");
        let connection = host.worker.fep_mut().connect(now, Addr(0), to_process(0)).expect("there is room");
        (host, connection)
    }
}

/// Who sends to the server besides.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Crowd {
    Nobody,
    Strangers,
    /// A client, with one connection.
    Known,
}

/// Tags, and contexts, of messages of the client of the crowd, and of short and long ones of the client.
const OF_CROWD: u64 = 1;
const SHORT: u64 = 7;
const LONG_ONE: u64 = 8;

fn send(len: usize, tag: u64) -> Send {
    Send { buffer: Buffer::Heap(vec![7; len]), tag: Some(tag), header_data: 0, context: tag }
}

/// A server and one client at a time, beside a crowd. Time goes on by what the server's turns take.
struct Network {
    server: Host,
    client: Host,
    connection: ConnectionId,
    ip: [u8; 4],
    /// The client of the crowd.
    known: (Host, ConnectionId),
    now: Time,
    to_server: VecDeque<(Time, Vec<u8>)>,
    to_client: VecDeque<(Time, Vec<u8>)>,
    to_known: VecDeque<(Time, Vec<u8>)>,
    /// A frame with which a stranger opens a PDC and leaves a message.
    syn: Vec<u8>,
    strangers: u32,
    next: Time,
    longest: core::time::Duration,
    crowd: Crowd,
    /// Bytes that the server had allocated before the strangers came.
    held_before: i64,
    /// Long messages that have arrived, of which the server has the completions.
    arrived: usize,
    /// Whether one of them has failed.
    has_failed: bool,
}

impl Network {
    fn new(crowd: Crowd) -> Network {
        let (mut stranger, connection) = Host::client([11, 0, 0, 1], Time::ZERO);
        let send = Send { buffer: Buffer::Heap(vec![9; 10]), tag: None, header_data: 0, context: 0 };
        stranger.worker.fep_mut().post_send(connection, send).expect("there is room");
        stranger.worker.poll_at(Time::ZERO);
        let syn = stranger.frames().pop().expect("a packet with SYN");
        let (client, connection) = Host::client([10, 0, 0, 2], Time::ZERO);
        let mut network = Network {
            server: Host::with(Addr(0), SERVER, BOOK, Strangers::Learn),
            client,
            connection,
            ip: [10, 0, 0, 2],
            known: Host::client(KNOWN, Time::ZERO),
            now: Time::ZERO,
            to_server: VecDeque::new(),
            to_client: VecDeque::new(),
            to_known: VecDeque::new(),
            syn,
            strangers: 0,
            next: Time::ZERO,
            longest: core::time::Duration::ZERO,
            crowd,
            held_before: 0,
            arrived: 0,
            has_failed: false,
        };
        // The client has a connection before they come.
        network.message();
        network.held_before = held_by_server();
        while crowd == Crowd::Strangers && network.strangers < STRANGERS {
            (0..8).for_each(|_| network.stranger());
            network.turn();
        }
        network
    }

    /// A host sends that has not sent before.
    fn stranger(&mut self) {
        self.strangers += 1;
        let frame = from_stranger(&self.syn, self.strangers);
        self.to_server.push_back((self.now + HALF_RTT, frame));
    }

    /// The client of the crowd sends a message, for which the server has a receive.
    fn known(&mut self) {
        self.receive(Buffer::Virtual(64), OF_CROWD);
        let (host, connection) = &mut self.known;
        host.worker.fep_mut().post_send(*connection, send(10, OF_CROWD)).expect("there is room");
    }

    /// The server has a receive for a message with this tag.
    fn receive(&mut self, buffer: Buffer, tag: u64) {
        let receive = Receive { buffer, from: None, matching: tagged(tag), context: tag };
        let server = self.server.worker.fep_mut();
        as_server(|| server.post_receive(receive)).0.expect("there is room");
    }

    fn turn(&mut self) {
        let now = self.now;
        if now.is_at_or_after(self.next) {
            self.next = now + EVERY;
            match self.crowd {
                Crowd::Nobody => {}
                Crowd::Strangers => self.stranger(),
                Crowd::Known => self.known(),
            }
        }
        for _ in 0..A_TURN {
            if self.to_server.front().is_none_or(|(at, _)| !now.is_at_or_after(*at)) {
                break;
            }
            let Some((_, frame)) = self.to_server.pop_front() else { break };
            self.server.send_to(&frame);
        }
        let worker = &mut self.server.worker;
        let (_, took) = as_server(|| worker.poll_at(now));
        self.longest = self.longest.max(took);
        self.now += Span::from_ns(took.as_nanos() as u64);
        for frame in self.server.frames() {
            let queue = match <[u8; 4]>::try_from(&frame[DESTINATION]) {
                Ok(KNOWN) => &mut self.to_known,
                Ok(to) if to == self.ip => &mut self.to_client,
                _ => continue,
            };
            queue.push_back((self.now + HALF_RTT, frame));
        }
        let others = [(&mut self.client, &mut self.to_client), (&mut self.known.0, &mut self.to_known)];
        for (host, to_host) in others {
            while to_host.front().is_some_and(|(at, _)| now.is_at_or_after(*at)) {
                let Some((_, frame)) = to_host.pop_front() else { break };
                host.send_to(&frame);
            }
            host.worker.poll_at(now);
            for frame in host.frames() {
                self.to_server.push_back((now + HALF_RTT, frame));
            }
        }
        while self.known.0.worker.fep_mut().poll_completion().is_some() {}
        let server = self.server.worker.fep_mut();
        while let Some(completion) = as_server(|| server.poll_completion()).0 {
            if let Completion::Received { context: LONG_ONE, result, .. } = &completion {
                (self.arrived, self.has_failed) = (self.arrived + 1, self.has_failed || result.is_err());
            }
            as_server(|| drop(completion));
        }
    }

    /// From sending a message to its acknowledgement, µs.
    fn message(&mut self) -> Option<f64> {
        let begin = self.now;
        self.receive(Buffer::Virtual(64), SHORT);
        self.client.worker.fep_mut().post_send(self.connection, send(64, SHORT)).ok()?;
        while self.now.since(begin) < PATIENCE {
            self.turn();
            while let Some(completion) = self.client.worker.fep_mut().poll_completion() {
                if let Completion::Sent { context: SHORT, result, .. } = completion {
                    return result.is_ok().then(|| self.now.since(begin).as_us_f64());
                }
            }
        }
        None
    }

    /// The same of a client that has not been there before.
    fn new_client(&mut self) -> Option<f64> {
        let [a, b, c, d] = self.ip;
        self.ip = if d < 250 { [a, b, c, d + 1] } else { [a, b, c + 1, 2] };
        (self.client, self.connection) = Host::client(self.ip, self.now);
        // Its memory has taken the place of the server's in the cache, as that of a host far away would not.
        self.wait(REST);
        self.message()
    }

    fn wait(&mut self, span: Span) {
        let end = self.now + span;
        while !self.now.is_at_or_after(end) {
            self.turn();
        }
    }
}

impl Stream for Network {
    fn now(&self) -> Time {
        self.now
    }

    fn send_long(&mut self) -> Option<()> {
        let buffer = as_server(|| Buffer::Heap(vec![0; LONG as usize])).0;
        self.receive(buffer, LONG_ONE);
        self.client.worker.fep_mut().post_send(self.connection, send(LONG as usize, LONG_ONE)).ok()?;
        Some(())
    }

    fn turn(&mut self) -> Option<usize> {
        Network::turn(self);
        while self.client.worker.fep_mut().poll_completion().is_some() {}
        (!self.has_failed).then(|| std::mem::take(&mut self.arrived))
    }
}

/// The median of what is measured so often, with some time in between.
fn median_every(
    network: &mut Network,
    measure: fn(&mut Network) -> Option<f64>,
    count: usize,
) -> Option<f64> {
    median_of(count, || {
        let result = measure(network);
        network.wait(REST);
        result
    })
}

/// Measures the service that a client gets beside each of the `crowds`, in turn. The values are in the order of [`crate::honest::ALL`].
/// Joins are NaN, as an endpoint without applications has none.
pub(crate) fn measure(crowds: &[Crowd]) -> Vec<Vec<Option<f64>>> {
    let mut networks: Vec<Network> = crowds.iter().map(|crowd| Network::new(*crowd)).collect();
    networks.iter_mut().for_each(|network| network.longest = core::time::Duration::ZERO);
    let round_trips =
        in_parts(&mut networks, PARTS, |network| median_every(network, Network::message, 400 / PARTS));
    let longest: Vec<_> = networks.iter().map(|network| network.longest.as_secs_f64() * 1e6).collect();
    let goodputs = in_parts(&mut networks, PARTS, |network| goodput(network, PARTS));
    // Counted from when the last one was prepared, so that this one's is its own.
    let held: Vec<_> = networks.iter().map(|network| held_by_server() - network.held_before).collect();
    let connections =
        in_parts(&mut networks, PARTS, |network| median_every(network, Network::new_client, 40 / PARTS));
    let megabytes = |bytes: i64| bytes.max(0) as f64 / 1e6;
    let of = |at: usize| {
        vec![
            round_trips[at],
            Some(longest[at]),
            goodputs[at],
            Some(megabytes(held[at])),
            connections[at],
            Some(f64::NAN),
        ]
    };
    (0..crowds.len()).map(of).collect()
}
