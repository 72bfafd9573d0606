//! More hosts than an address book holds send to an endpoint that learns its peers. They cost the others nothing.

use crate::attached::{DESTINATION, Host, from_stranger, host_at, stranger};
use crate::harness::{START, config, content, fep, receive_any};
use weft_stack::buffer::Buffer;
use weft_stack::fep::{CallError, Completion, ConnectOptions, ConnectionId, Receive, Send, Unreachable};
use weft_stack::packet::Addr;
use weft_stack::ses::Matching;
use weft_stack::worker::Strangers;
use weft_stack::{Span, Time};

/// Entries of the server's address book.
const BOOK: usize = 4096;
/// The tag of honest messages.
const TAG: u64 = 7;
/// Frames of strangers that arrive in a turn.
const A_TURN: u32 = 24;
/// The server's IP address.
const SERVER: [u8; 4] = [10, 0, 0, 1];

impl Host {
    fn with(own: Addr, ip: [u8; 4], capacity: usize, strangers: Strangers) -> Host {
        let fep = fep(own.0, config(true), u64::from(ip[3]), START);
        Host::new(own, fep, ip, capacity, strangers)
    }

    /// A client of the server.
    fn client(n: u8) -> Host {
        let mut host = Host::with(Addr(1), [10, 0, 0, n], 2, Strangers::Refuse);
        host.worker.book_mut().insert(Addr(0), host_at(SERVER)).unwrap();
        host
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
            server: Host::with(Addr(0), SERVER, BOOK, Strangers::Learn),
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
        from_stranger(&self.syn, self.strangers)
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
    let ip = std::net::IpAddr::from(stranger(network.strangers));
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
