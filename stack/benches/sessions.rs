//! Instructions that a message of an application costs the server of its session: the program that
//! `scripts/bench-instructions.sh sessions` runs under callgrind.
//!
//! `sessions CASE COUNT` passes COUNT messages of 64 bytes between an application of a server and an endpoint without one, as many
//! under way as the server takes from an application in a turn, on one thread. All that the server does for them is in [`serve`],
//! which is what callgrind counts: sessions, endpoint, headers and a port in memory. `sessions list` prints the cases; without
//! arguments each case runs once.

#[path = "../tests/harness/mod.rs"]
mod harness;

use harness::{config, message, worker_in_real_time};
use weft_stack::buffer::Buffer;
use weft_stack::fep::{Completion, ConnectOptions, Receive, Send};
use weft_stack::packet::Addr;
use weft_stack::port::memory::{MemoryConfig, MemoryPort, pair};
use weft_stack::ses::Matching;
use weft_stack::worker::session::{Client, Extent, Report, SessionConfig, Sessions};
use weft_stack::worker::{Clock, Worker};

const MESSAGE: u32 = 64;
/// The bytes of each message.
const CONTENT: [u8; MESSAGE as usize] = [7; MESSAGE as usize];
/// Messages under way.
const BURST: u64 = 32;
/// The application, at the server's endpoint.
const PROCESS: u16 = 1;
/// The application's memory for a message.
const EXTENT: Extent = Extent { region: 0, offset: 0, len: MESSAGE };
/// A run takes no more turns than this and one for each message.
const PATIENCE: u64 = 1_000_000;

/// A case: what the application does, and which messages its receives take.
struct Case {
    name: &'static str,
    sends: bool,
    matching: Matching,
}

const CASES: [Case; 3] = [
    Case { name: "send", sends: true, matching: Matching::Untagged },
    Case { name: "receive", sends: false, matching: Matching::Untagged },
    Case { name: "receive-any-tag", sends: false, matching: Matching::Tagged { tag: 0, ignore: u64::MAX } },
];

/// A turn of the server's loop.
#[inline(never)]
fn serve(server: &mut Worker<MemoryPort>, sessions: &mut Sessions, clock: &Clock) {
    server.poll();
    sessions.serve(server, clock.now());
}

/// The server with its application, the other endpoint, and the messages so far.
struct Bench {
    case: &'static Case,
    server: Worker<MemoryPort>,
    sessions: Sessions,
    application: Client,
    other: Worker<MemoryPort>,
    clock: Clock,
    posted: u64,
    sent: u64,
    received: u64,
}

impl Bench {
    fn new(case: &'static Case) -> Bench {
        let clock = Clock::new();
        let (a, b) = pair(&MemoryConfig::default()).expect("memory");
        let worker = |own, port| worker_in_real_time(own, 2, port, config(true), clock);
        let (mut server, other) = (worker(0, a), worker(1, b));
        server.fep_mut().close_process(0).expect("open");
        let mut sessions = Sessions::new(4);
        let application = sessions.open(server.fep_mut(), &SessionConfig::default(), Some(PROCESS));
        let application = application.expect("room");
        Bench { case, server, sessions, application, other, clock, posted: 0, sent: 0, received: 0 }
    }

    fn run(&mut self, count: u64) {
        self.application.write(0, &CONTENT).expect("memory");
        (0..BURST).for_each(|_| self.post_receive());
        let mut send: Box<dyn FnMut(&mut Bench)> = if self.case.sends {
            let connection = self.application.connect(Addr(1), ConnectOptions::default(), 0).expect("room");
            Box::new(move |bench| {
                bench.application.send(connection, EXTENT, None, 0, 0).expect("room");
            })
        } else {
            let options = ConnectOptions { process: PROCESS, ..ConnectOptions::default() };
            let connection = self.other.fep_mut().connect(self.clock.now(), Addr(0), options).expect("room");
            let tag = (self.case.matching != Matching::Untagged).then_some(5);
            Box::new(move |bench| {
                let send = Send { tag, ..message(MESSAGE as usize, 0) };
                bench.other.fep_mut().post_send(connection, send).expect("room");
            })
        };
        // So that no message comes before its receive.
        self.turn();
        let mut turns = 0;
        while self.sent < count || self.received < count {
            while self.posted < count.min(self.received.min(self.sent) + BURST) {
                send(self);
                self.posted += 1;
            }
            self.turn();
            turns += 1;
            assert!(turns < PATIENCE + count, "{} of {count} messages were received", self.received);
        }
    }

    fn post_receive(&mut self) {
        let matching = self.case.matching;
        if self.case.sends {
            let buffer = Buffer::Heap(vec![0; MESSAGE as usize]);
            let receive = Receive { buffer, from: None, matching, context: 0 };
            self.other.fep_mut().post_receive(receive).expect("room");
        } else {
            self.application.receive(EXTENT, None, matching, 0).expect("room");
        }
    }

    fn turn(&mut self) {
        serve(&mut self.server, &mut self.sessions, &self.clock);
        self.other.poll();
        while let Some(completion) = self.other.fep_mut().poll_completion() {
            match completion {
                Completion::Sent { result: Ok(()), .. } => self.sent += 1,
                Completion::Received { buffer: Buffer::Heap(bytes), result: Ok(()), .. } => {
                    assert_eq!(bytes, CONTENT);
                    self.received += 1;
                    self.post_receive();
                }
                other => panic!("{other:?}"),
            }
        }
        while let Some(event) = self.application.poll().expect("the server is there") {
            match event.report {
                Report::Connected { .. } => {}
                Report::Sent { result: Ok(()), .. } => self.sent += 1,
                Report::Received { len: MESSAGE, result: Ok(()), .. } => {
                    self.received += 1;
                    self.post_receive();
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["list"] => CASES.iter().for_each(|case| println!("{}", case.name)),
        [] => CASES.iter().for_each(|case| Bench::new(case).run(64)),
        [name, count] => match CASES.iter().find(|case| case.name == name) {
            Some(case) => Bench::new(case).run(count.parse().expect("COUNT is a number")),
            None => panic!("there is no case {name}; `sessions list` prints them"),
        },
        _ => panic!("usage: sessions [list | CASE COUNT]"),
    }
}
