use super::super::client::{Client, memory_of};
use super::super::mode::Mode;
use super::super::plan::{Limit, Test};
use super::super::report::EndReport;
use super::super::server::{Server, ServerOptions};
use super::super::setup;
use super::*;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use weft::port::AnyPort;
use weft::{Addr, Memory};
use weft_cc::{CcChoice, CcParams, Delays, Rate};
use weft_stack::fep::{Fep, FepConfig};
use weft_stack::port::memory::{self, MemoryConfig, MemoryPort};
use weft_stack::port::{Frame, Port, RxBurst, TxBurst};
use weft_stack::rng::Rng;
use weft_stack::wire::class::DscpClasses;
use weft_stack::wire::ethernet::MacAddr;
use weft_stack::wire::frame::{ChecksumPolicy, parse_frame};
use weft_stack::wire::pds::Pds;
use weft_stack::worker::{AddressBook, HostAddr, Idle, LinkConfig, Strangers, Worker};

/// Longer than this machine ever takes the processor away.
const PATIENCE: Span = Span::from_ms(30_000);

/// The network between client and server. It loses each acknowledgement on its way to the client once: that of a packet's
/// first transmission.
struct Network {
    client: MemoryPort,
    server: MemoryPort,
    lost: u64,
}

impl Network {
    /// Carries frames until `stop` is set. Returns how many it has lost.
    fn run(mut self, stop: &AtomicBool) -> u64 {
        let mut arrived = RxBurst::new();
        let mut to_client = TxBurst::new(&self.client);
        let mut to_server = TxBurst::new(&self.server);
        while !stop.load(Ordering::Relaxed) {
            self.client.receive(&mut arrived);
            arrived.drain().for_each(|frame| to_server.push(frame).expect("both rings are of one size"));
            self.server.receive(&mut arrived);
            for frame in arrived.drain() {
                if is_first_answer(&frame) {
                    self.lost += 1;
                } else {
                    to_client.push(frame).expect("both rings are of one size");
                }
            }
            while !to_client.is_empty() || !to_server.is_empty() {
                self.client.transmit(&mut to_client);
                self.server.transmit(&mut to_server);
            }
            thread::yield_now();
        }
        self.lost
    }
}

fn is_first_answer(frame: &Frame) -> bool {
    let parsed = parse_frame(frame, &DscpClasses::default(), ChecksumPolicy::OFFLOADED);
    matches!(parsed.expect("weft has sent it").pds, Pds::Ack(ack) if !ack.retx)
}

fn endpoint(port: MemoryPort, own: u32) -> Endpoint {
    let host = |n: u32| HostAddr {
        mac: MacAddr([2, 0, 0, 0, 0, n as u8 + 1]),
        ip: IpAddr::from([10, 0, 0, n as u8 + 1]),
    };
    let params = CcParams {
        mtu: 4096,
        overhead: 100,
        link_rate: Rate::from_gbps(10),
        network_rtt: Span::from_us(100),
        trimming: false,
        delays: Delays::Known,
    };
    let config = FepConfig::new(&CcChoice::default(), &params)
        .with_zones(|zone| zone.pdc.rto_init = Span::from_ms(50));
    let clock = Clock::new();
    let fep = Fep::new(Addr(own), Arc::new(config), Rng::new(7, own.into()), clock.now()).unwrap();
    let mut book = AddressBook::new(Addr(own), host(own), 2, Strangers::Refuse).unwrap();
    book.insert(Addr(1 - own), host(1 - own)).unwrap();
    let mut port = AnyPort::Memory(Box::new(port));
    let memory = Memory::for_port(memory_of(&test()), &mut port).unwrap();
    let mut worker = Worker::new(fep, port, book, LinkConfig::default(), clock).unwrap();
    worker.set_idle(Idle::ADAPTIVE);
    setup::endpoint(worker, memory).unwrap()
}

fn open_targets(endpoint: &Endpoint) -> usize {
    endpoint.worker().unwrap().fep().open_targets()
}

fn test() -> Test {
    Test {
        mode: Mode::Throughput,
        size: 20_000,
        limit: Limit::Messages(3),
        warmup_us: 0,
        connections: 2,
        depth: 1,
        verify: true,
        payload: 4096,
        room: 4096,
        cc: "nscc".to_owned(),
        credit: false,
    }
}

fn client(test: Test, endpoint: &Endpoint) -> Client {
    Client::new(test, Addr(1), "the server".to_owned(), PATIENCE, clock(endpoint))
}

fn server(seen: &mut Option<EndReport>) -> Server<'_> {
    let options = ServerOptions {
        once: true,
        wait: Some(PATIENCE),
        memory: u64::MAX,
        payload: 4096,
        room: 4096,
        patience: PATIENCE,
        shares_thread: true,
    };
    let sink = Box::new(|_: &Test, _: &str, report| {
        *seen = Some(report);
        Ok(())
    });
    Server::new(options, sink, Clock::new().now())
}

/// Runs the server until it ends, and returns what it has seen and how many PDCs of the client it leaves.
fn serve(endpoint: &mut Endpoint) -> (Option<EndReport>, usize) {
    let mut seen = None;
    let ended = run(endpoint, &mut server(&mut seen), PATIENCE, &Interrupt::default());
    assert_eq!(ended.expect("the server has all it waits for"), End::Complete);
    (seen, open_targets(endpoint))
}

fn interrupted() -> Interrupt {
    let interrupt = Interrupt::default();
    interrupt.flag().store(true, Ordering::Relaxed);
    interrupt
}

#[test]
fn a_server_stays_until_its_client_knows_that_all_has_arrived() {
    let (a, b) = memory::pair(&MemoryConfig::default()).unwrap();
    let (c, d) = memory::pair(&MemoryConfig::default()).unwrap();
    let stop = AtomicBool::new(false);
    let mut here = endpoint(a, 0);
    thread::scope(|scope| {
        let network = scope.spawn(|| Network { client: b, server: c, lost: 0 }.run(&stop));
        let server = scope.spawn(|| serve(&mut endpoint(d, 1)));
        let mut client = client(test(), &here);
        let ended = run(&mut here, &mut client, PATIENCE, &Interrupt::default());
        assert_eq!(ended.expect("nothing is lost for good"), End::Complete);
        let (seen, left) = server.join().unwrap();
        stop.store(true, Ordering::Relaxed);
        assert_eq!(seen.map(|report| (report.arrived, report.verified_bytes)), Some((3, 60_000)));
        assert_eq!(client.server_report().map(|report| report.wrong_bytes), Some(0));
        assert_eq!(left, 0, "no PDC of the client is left without an answer");
        assert_eq!(open_targets(&here), 0);
        assert!(network.join().unwrap() >= 3, "requests, messages and farewells were acknowledged twice");
    });
}

#[test]
fn a_client_that_has_died_is_not_waited_for_longer_than_patience_lasts() {
    let (a, b) = memory::pair(&MemoryConfig::default()).unwrap();
    let (mut here, mut there) = (endpoint(a, 0), endpoint(b, 1));
    // Its message is there, and the PDC stays open.
    let connection = here.connect(Addr(1)).unwrap();
    here.send(connection, vec![0; 1]).unwrap();
    let begin = clock(&here).now();
    while open_targets(&there) == 0 {
        let now = clock(&here).now();
        assert!(now.since(begin) < PATIENCE, "it has sent a message");
        here.turn_at(now);
        there.turn_at(clock(&there).now());
    }
    drop(here);
    let (begin, patience) = (clock(&there).now(), Span::from_ms(300));
    farewell(&mut there, begin, patience, &Interrupt::default());
    assert_eq!(open_targets(&there), 1);
    assert!(clock(&there).now().since(begin) >= patience);
}

#[test]
fn a_client_says_that_a_message_does_not_come_back_from_a_server_that_has_acknowledged_it() {
    let (a, b) = memory::pair(&MemoryConfig::default()).unwrap();
    let mut ends = [endpoint(a, 0), endpoint(b, 1)];
    let mut seen = None;
    let ping_pong = Test { mode: Mode::Latency, connections: 1, limit: Limit::Messages(1_000), ..test() };
    let patience = Span::from_ms(500);
    let mut client = Client::new(ping_pong, Addr(1), "the server".to_owned(), patience, clock(&ends[0]));
    let mut server = server(&mut seen);
    let failure = loop {
        let now = clock(&ends[0]).now();
        for end in &mut ends {
            end.turn_at(now);
        }
        // Its endpoint goes on to acknowledge packets when the server no longer sends messages back.
        if client.report().arrived < 10 {
            server.step(&mut ends[1], now).unwrap();
        }
        if let Err(failure) = client.step(&mut ends[0], now) {
            break failure.to_string();
        }
    };
    let waits = "nothing heard of the server for 500 ms while waiting for 1 of 11 messages to come back";
    assert_eq!(failure, format!("{waits}\n  no message to it waits for an acknowledgement"));
}

#[test]
fn a_client_that_is_interrupted_waits_for_messages_under_way_and_for_the_servers_report() {
    let (a, b) = memory::pair(&MemoryConfig::default()).unwrap();
    let mut ends = [endpoint(a, 0), endpoint(b, 1)];
    let mut seen = None;
    let mut client = client(Test { limit: Limit::Microseconds(3_600_000_000), ..test() }, &ends[0]);
    let mut server = server(&mut seen);
    // Until messages flow.
    while client.report().arrived < 10 {
        let now = clock(&ends[0]).now();
        for end in &mut ends {
            end.turn_at(now);
        }
        client.step(&mut ends[0], now).unwrap();
        server.step(&mut ends[1], now).unwrap();
    }
    assert!(!client.has_measured());
    let end = run_both(&mut ends, &mut client, &mut server, &interrupted()).unwrap();
    drop(server);
    assert_eq!(end, End::Interrupted);
    let (sent, seen) = (client.report(), seen.expect("the server has reported"));
    assert!(client.has_measured() && sent.messages >= 10, "{sent:?}");
    assert_eq!((sent.arrived, seen.wrong_messages, seen.wrong_bytes), (seen.arrived, 0, 0), "{seen:?}");
    assert_eq!(client.server_report(), Some(seen));
}

#[test]
fn a_client_that_is_interrupted_does_not_wait_for_a_server_that_is_gone() {
    let (a, b) = memory::pair(&MemoryConfig::default()).unwrap();
    let mut here = endpoint(a, 0);
    let begin = Clock::new().now();
    let mut client = client(test(), &here);
    assert_eq!(run(&mut here, &mut client, PATIENCE, &interrupted()).unwrap(), End::Interrupted);
    assert!(Clock::new().now().since(begin) < PATIENCE && !client.has_measured());
    drop(b);
}

#[test]
fn a_server_that_is_interrupted_reports_what_has_arrived_and_tells_its_client() {
    let (a, b) = memory::pair(&MemoryConfig::default()).unwrap();
    let (mut here, mut there) = (endpoint(a, 0), endpoint(b, 1));
    let mut seen = None;
    let mut client = client(Test { limit: Limit::Microseconds(3_600_000_000), ..test() }, &here);
    let mut server = server(&mut seen);
    let mut turn = |here: &mut Endpoint, there: &mut Endpoint, server: &mut Server<'_>| {
        let now = clock(here).now();
        here.turn_at(now);
        there.turn_at(now);
        server.step(there, now).unwrap();
        (client.step(here, now), client.report().arrived)
    };
    while turn(&mut here, &mut there, &mut server).1 < 10 {}
    server.interrupt(&mut there, Clock::new().now()).unwrap();
    let told = loop {
        if let (Err(told), _) = turn(&mut here, &mut there, &mut server) {
            break told.to_string();
        }
    };
    drop(server);
    assert_eq!(told, "the server has ended the test: the server was interrupted");
    assert!(seen.is_some_and(|report| report.arrived >= 10));
}
