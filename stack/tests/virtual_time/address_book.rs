//! More hosts than an address book holds send to an endpoint that learns its peers. They cost the others nothing.

use crate::harness::{START, config, content, fep, receive_any};
use weft_stack::buffer::Buffer;
use weft_stack::fep::{CallError, Completion, ConnectOptions, ConnectionId, Receive, Send, Unreachable};
use weft_stack::packet::Addr;
use weft_stack::port::memory::{MemoryConfig, MemoryPort, pair};
use weft_stack::port::{Port, RxBurst, TxBurst};
use weft_stack::ses::Matching;
use weft_stack::wire::ethernet::MacAddr;
use weft_stack::worker::{AddressBook, Clock, HostAddr, LinkConfig, Strangers, Worker};
use weft_stack::{Span, Time};

/// Entries of the server's address book.
const BOOK: usize = 4096;
/// The tag of honest messages.
const TAG: u64 = 7;
/// Frames of strangers that arrive in a turn.
const A_TURN: u32 = 24;
/// Where addresses stand in a frame.
const SOURCE: std::ops::Range<usize> = 26..30;
const DESTINATION: std::ops::Range<usize> = 30..34;

/// A host with a worker, and the other end of its link.
struct Host {
    worker: Worker<MemoryPort>,
    card: MemoryPort,
    tx: TxBurst,
}

impl Host {
    fn new(own: Addr, ip: [u8; 4], capacity: usize, strangers: Strangers) -> Host {
        let (port, card) = pair(&MemoryConfig::default()).unwrap();
        let [.., n] = ip;
        let at = HostAddr { mac: MacAddr([2, 0, 0, 0, 0, n]), ip: ip.into() };
        let book = AddressBook::new(own, at, capacity, strangers).unwrap();
        let fep = fep(own.0, config(true), u64::from(n), START);
        let worker = Worker::new(fep, port, book, LinkConfig::default(), Clock::new()).unwrap();
        Host { worker, tx: TxBurst::new(&card), card }
    }

    /// A client of the server.
    fn client(n: u8) -> Host {
        let mut host = Host::new(Addr(1), [10, 0, 0, n], 2, Strangers::Refuse);
        let server = HostAddr { mac: MacAddr([2, 0, 0, 0, 0, 1]), ip: [10, 0, 0, 1].into() };
        host.worker.book_mut().insert(Addr(0), server).unwrap();
        host
    }

    fn send_to(&mut self, frame: &[u8]) {
        let mut buffer = self.tx.reserve(frame.len()).expect("the card has buffers");
        buffer.copy_from_slice(frame);
        buffer.commit();
        self.card.transmit(&mut self.tx);
    }

    fn frames(&mut self) -> Vec<Vec<u8>> {
        let mut rx = RxBurst::new();
        self.card.receive(&mut rx);
        rx.drain().map(|frame| frame.to_vec()).collect()
    }

    fn connect(&mut self, now: Time) -> ConnectionId {
        self.worker.connect(now, Addr(0), ConnectOptions::default()).unwrap()
    }

    fn send(&mut self, connection: ConnectionId, seed: u64) {
        let send = Send {
            buffer: Buffer::Heap(content(seed, 3_000)),
            tag: Some(TAG),
            header_data: seed,
            context: 0,
        };
        self.worker.fep_mut().post_send(connection, send).unwrap();
    }
}

/// A server, its clients, and strangers.
struct Network {
    server: Host,
    clients: Vec<Host>,
    now: Time,
    /// A frame with which a stranger opens a PDC and leaves a message.
    syn: Vec<u8>,
    strangers: u32,
    /// The senders of honest messages, and the numbers that made their content.
    received: Vec<(Addr, u64)>,
}

impl Network {
    fn new(clients: u8) -> Network {
        let mut stranger = Host::client(200);
        let connection = stranger.connect(START);
        let send = Send { buffer: Buffer::Heap(vec![9; 10]), tag: None, header_data: 0, context: 0 };
        stranger.worker.fep_mut().post_send(connection, send).unwrap();
        stranger.worker.poll_at(START);
        let syn = stranger.frames().pop().expect("a packet with SYN");
        Network {
            server: Host::new(Addr(0), [10, 0, 0, 1], BOOK, Strangers::Learn),
            clients: (0..clients).map(|n| Host::client(n + 2)).collect(),
            now: START,
            syn,
            strangers: 0,
            received: Vec::new(),
        }
    }

    /// The frame of a stranger that has not sent before.
    fn next_stranger(&mut self) -> Vec<u8> {
        self.strangers += 1;
        let mut frame = self.syn.clone();
        frame[SOURCE].copy_from_slice(&(0x0b00_0000 + self.strangers).to_be_bytes());
        frame[24..26].fill(0);
        let words = frame[14..34].as_chunks::<2>().0.iter().map(|word| u32::from(u16::from_be_bytes(*word)));
        let sum: u32 = words.sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        let checksum = !((folded & 0xffff) + (folded >> 16)) as u16;
        frame[24..26].copy_from_slice(&checksum.to_be_bytes());
        // No UDP checksum.
        frame[40..42].fill(0);
        frame
    }

    /// 10 µs, in which `strangers` of them send.
    fn turn(&mut self, strangers: u32) {
        self.now += Span::from_us(10);
        for _ in 0..strangers {
            let frame = self.next_stranger();
            self.server.send_to(&frame);
        }
        let tagged = Receive { matching: Matching::Tagged { tag: TAG, ignore: 0 }, ..receive_any(4_000) };
        self.server.worker.fep_mut().post_receive(tagged).unwrap();
        for client in &mut self.clients {
            client.worker.poll_at(self.now);
            for frame in client.frames() {
                self.server.send_to(&frame);
            }
        }
        while self.server.worker.poll_at(self.now).received > 0 {}
        while let frames = self.server.frames()
            && !frames.is_empty()
        {
            for frame in frames {
                let [10, 0, 0, n] = frame[DESTINATION] else { continue };
                self.clients[usize::from(n) - 2].send_to(&frame);
            }
            self.server.worker.poll_at(self.now);
        }
        while let Some(completion) = self.server.worker.fep_mut().poll_completion() {
            let Completion::Received { source, buffer: Buffer::Heap(bytes), len, header_data, .. } =
                completion
            else {
                continue;
            };
            assert_eq!(bytes[..len as usize], content(header_data, 3_000));
            self.received.push((source.unwrap().peer, header_data));
        }
        for client in &mut self.clients {
            while let Some(completion) = client.worker.fep_mut().poll_completion() {
                match completion {
                    Completion::Sent { result, .. } => assert_eq!(result, Ok(())),
                    Completion::Closed { result, .. } => assert_eq!(result, Ok(())),
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    fn rest(&mut self, span: Span) {
        for _ in 0..5 {
            self.turn(0);
        }
        self.now += span;
        self.turn(0);
    }

    fn name_of(&self, client: usize) -> Option<Addr> {
        self.server.worker.book().find([10, 0, 0, client as u8 + 2].into())
    }
}

#[test]
fn six_thousand_strangers_neither_keep_a_new_client_out_nor_cost_an_old_one_its_place() {
    const STRANGERS: u32 = 6_000;
    let mut network = Network::new(4);
    let now = network.now;
    // One client has a connection all the time, another closes its own and is quiet, a third has sent one packet on its own.
    let [steady, quiet, rare] = [0, 1, 3].map(|client| network.clients[client].connect(now));
    network.clients[0].send(steady, 1);
    network.clients[1].send(quiet, 2);
    network.clients[3].send(rare, 3);
    network.turn(0);
    network.clients[1].worker.fep_mut().close(now, quiet).unwrap();
    network.rest(Span::from_ms(200));
    let names = [0, 1, 3].map(|client| network.name_of(client));
    let mut expected = vec![(names[0].unwrap(), 1)];

    let mut sent = 100;
    let mut new = None;
    while network.strangers < STRANGERS {
        if network.strangers.is_multiple_of(10 * A_TURN) {
            network.clients[0].send(steady, sent);
            expected.push((names[0].unwrap(), sent));
            sent += 1;
        }
        if network.strangers >= STRANGERS - 1_000 && new.is_none() {
            let now = network.now;
            new = Some(network.clients[2].connect(now));
        }
        if let Some(new) = new {
            network.clients[2].send(new, sent);
            sent += 1;
        }
        network.turn(A_TURN);
    }
    network.rest(Span::from_ms(1));
    let newcomer = network.name_of(2).expect("the new client is in the book");
    let of = |network: &Network, peer| network.received.iter().filter(|message| message.0 == peer).count();
    assert!(of(&network, newcomer) >= 40, "all that the new client has sent");
    assert_eq!(network.received.len(), 3 + (sent - 100) as usize, "no message is lost or comes twice");
    let steadily: Vec<_> = network.received.iter().filter(|message| message.0 == names[0].unwrap()).collect();
    assert!(expected.iter().filter(|message| message.0 == names[0].unwrap()).eq(steadily));
    assert_eq!([0, 1, 3].map(|client| network.name_of(client)), names, "they keep their places");
    let counters = network.server.worker.counters();
    assert_eq!((counters.strangers, counters.malformed), (0, 0));
    assert_eq!(counters.forgotten, u64::from(network.strangers) + 5 - BOOK as u64);
    assert_eq!(counters.unsendable, 0, "no answer is left for one that is forgotten");

    // The quiet one comes again, and has the name that it had.
    let now = network.now;
    let again = network.clients[1].connect(now);
    network.clients[1].send(again, 4);
    network.clients[3].send(rare, 5);
    network.turn(A_TURN);
    network.turn(0);
    for message in [(names[1].unwrap(), 4), (names[2].unwrap(), 5)] {
        assert!(network.received.contains(&message), "{message:?}");
    }
}

#[test]
fn the_name_of_a_peer_that_was_forgotten_is_refused() {
    let mut network = Network::new(1);
    // Strangers that came before the book was half full were not asked whether they are there, so that they may be.
    while network.strangers <= BOOK as u32 / 2 {
        network.turn(A_TURN);
    }
    let ip = std::net::IpAddr::from((0x0b00_0000 + network.strangers).to_be_bytes());
    let name = network.server.worker.book().find(ip).expect("the last stranger");
    while network.server.worker.book().find(ip).is_some() {
        assert!(network.strangers < 3 * BOOK as u32, "it stays");
        network.turn(A_TURN);
    }
    let now = network.now;
    let refused = network.server.worker.connect(now, name, ConnectOptions::default());
    assert_eq!(refused, Err(CallError::Unreachable { peer: name, why: Unreachable::Unknown(name) }));
    assert!(network.server.worker.book().is_forgotten(name));
}
