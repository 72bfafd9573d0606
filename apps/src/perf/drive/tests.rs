use super::super::client::Client;
use super::super::plan::{Limit, Mode, Test};
use super::super::report::EndReport;
use super::super::server::{Server, ServerOptions};
use super::*;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::thread;
use weft_cc::{CcChoice, CcParams, Rate};
use weft_stack::fep::{Fep, FepConfig};
use weft_stack::packet::Addr;
use weft_stack::pdc::PdcConfig;
use weft_stack::port::memory::{self, MemoryConfig, MemoryPort};
use weft_stack::port::{FramePool, PortCaps, PortCounters, RxBurst, TxBurst};
use weft_stack::rng::Rng;
use weft_stack::wire::class::DscpClasses;
use weft_stack::wire::ethernet::MacAddr;
use weft_stack::wire::frame::{ChecksumPolicy, parse_frame};
use weft_stack::wire::pds::Pds;
use weft_stack::worker::{AddressBook, Clock, HostAddr, Idle, LinkConfig, Strangers};

/// Longer than this machine ever takes the processor away.
const PATIENCE: Span = Span::from_ms(30_000);

/// A port that loses each acknowledgement once: that of a packet's first transmission.
struct Forgetful {
    inner: MemoryPort,
    arrived: RxBurst,
    lost: u64,
}

impl Forgetful {
    fn is_first_answer(frame: &[u8]) -> bool {
        let parsed = parse_frame(frame, &DscpClasses::default(), ChecksumPolicy::OFFLOADED);
        matches!(parsed.expect("weft has sent it").pds, Pds::Ack(ack) if !ack.retx)
    }
}

impl Port for Forgetful {
    fn receive(&mut self, burst: &mut RxBurst) -> usize {
        self.inner.receive(&mut self.arrived);
        let mut count = 0;
        for frame in self.arrived.drain() {
            if Forgetful::is_first_answer(&frame) {
                self.lost += 1;
            } else {
                burst.push(frame).expect("it is as large as the other one");
                count += 1;
            }
        }
        count
    }

    fn transmit(&mut self, burst: &mut TxBurst) -> usize {
        self.inner.transmit(burst)
    }

    fn capabilities(&self) -> PortCaps {
        self.inner.capabilities()
    }

    fn pool(&self) -> FramePool {
        self.inner.pool()
    }

    fn counters(&self) -> PortCounters {
        self.inner.counters()
    }
}

fn worker<P: Port>(port: P, own: u32) -> Worker<P> {
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
    };
    let base = FepConfig::new(&CcChoice::default(), &params);
    let config = FepConfig { pdc: PdcConfig { rto_init: Span::from_ms(50), ..base.pdc }, ..base };
    let clock = Clock::new();
    let fep = Fep::new(Addr(own), Arc::new(config), Rng::new(7, own.into()), clock.now()).unwrap();
    let mut book = AddressBook::new(Addr(own), host(own), 2, Strangers::Refuse).unwrap();
    book.insert(Addr(1 - own), host(1 - own)).unwrap();
    let mut worker = Worker::new(fep, port, book, LinkConfig::default(), clock).unwrap();
    worker.set_idle(Idle::ADAPTIVE);
    worker
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

fn client<P: Port>(worker: &mut Worker<P>) -> Client {
    let now = worker.clock().now();
    let memory = super::super::client::memory(&test(), worker.port_mut()).unwrap();
    Client::new(test(), memory, Addr(1), "the server".to_owned(), PATIENCE, now)
}

/// Runs the server until it ends, and returns what it has seen and how many PDCs of the client it leaves.
fn serve(worker: &mut Worker<MemoryPort>) -> (Option<EndReport>, usize) {
    let seen = Mutex::new(None);
    let options = ServerOptions {
        once: true,
        wait: Some(PATIENCE),
        memory: u64::MAX,
        credit: false,
        payload: 4096,
        room: 4096,
        patience: PATIENCE,
        shares_thread: true,
    };
    let sink = Box::new(|_: &Test, _: &str, report| {
        *seen.lock().unwrap() = Some(report);
        Ok(())
    });
    let mut server = Server::new(options, sink, worker.clock().now());
    run(worker, &mut server, PATIENCE, &Stop::default()).expect("the server has all it waits for");
    drop(server);
    (seen.into_inner().unwrap(), worker.fep().open_targets())
}

#[test]
fn a_server_stays_until_its_client_knows_that_all_has_arrived() {
    let (a, b) = memory::pair(&MemoryConfig::default()).unwrap();
    let mut here = worker(Forgetful { inner: a, arrived: RxBurst::new(), lost: 0 }, 0);
    let server = thread::spawn(move || serve(&mut worker(b, 1)));
    let mut client = client(&mut here);
    run(&mut here, &mut client, PATIENCE, &Stop::default()).expect("nothing is lost for good");
    let (seen, left) = server.join().unwrap();
    assert_eq!(seen.map(|report| (report.arrived, report.verified_bytes)), Some((3, 60_000)));
    assert_eq!(client.server_report().map(|report| report.wrong_bytes), Some(0));
    assert_eq!(left, 0, "no PDC of the client is left without an answer");
    assert_eq!(here.fep().open_targets(), 0);
    assert!(here.port().lost >= 3, "requests, messages and farewells were acknowledged twice");
}

#[test]
fn a_client_that_has_died_is_not_waited_for_longer_than_patience_lasts() {
    let (a, b) = memory::pair(&MemoryConfig::default()).unwrap();
    let (mut here, mut there) = (worker(a, 0), worker(b, 1));
    // What it has sent is there, and its PDC stays open.
    let mut client = client(&mut here);
    let begin = here.clock().now();
    while there.fep().open_targets() == 0 {
        let now = here.clock().now();
        assert!(now.since(begin) < PATIENCE, "it has asked for its test");
        here.poll_at(now);
        client.step(&mut here, now).unwrap();
        there.poll_at(there.clock().now());
    }
    drop(here);
    let (begin, patience) = (there.clock().now(), Span::from_ms(300));
    farewell(&mut there, begin, patience, &Stop::default());
    assert_eq!(there.fep().open_targets(), 1);
    assert!(there.clock().now().since(begin) >= patience);
}
