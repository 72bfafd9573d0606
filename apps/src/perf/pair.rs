//! Both ends of a test in this process.

use super::args::{PairArgs, PairLink};
use super::client::Client;
use super::drive::{self, End};
use super::plan::Test;
use super::report::{EndReport, Expected, Report};
use super::server::{Server, ServerOptions};
use super::setup::{self, EndSetup};
use super::{Output, check_cores, conclude, pin};
use crate::Failure;
use crate::interrupt::Interrupt;
use crate::port_spec::{AnyPort, OpenPort, PeerSpec};
use crate::trace;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::thread;
use weft::{Addr, Endpoint, Memory};
use weft_stack::port::memory::{self, MemoryConfig};
use weft_stack::port::udp::{UdpConfig, UdpPort};
use weft_stack::worker::Strangers;

/// Frames that each direction of a link in memory holds.
const RING: usize = 1024;
/// The aim for cycles of a data packet of 4 KiB when one core drives both ends, acknowledgements and copies included.
const CYCLES_WANTED: f64 = 1000.0;

/// Runs the test.
pub(super) fn run(args: &PairArgs) -> Result<(), Failure> {
    check_cores(&args.end, args.threads.into())?;
    let mut output = Output::open(&args.output)?;
    let trace = args.trace.begin(&[])?;
    let [mut client, server] = open(args.between, args.mtu)?;
    let setup = EndSetup::new(&args.end, &[], &client)?;
    let cc = setup.cc_towards(server.info.host.ip);
    let test = Test::new(&args.test, setup.setup.payload, setup.setup.longest_payload, cc)
        .map_err(Failure::Usage)?;
    let memory = setup::memory(super::client::memory_of(&test), &mut client.port)?;
    let ips = [client.info.host.ip, server.info.host.ip];
    let worker = |open, own: u32| {
        let peer = PeerSpec::from(ips[1 - own as usize]);
        setup.worker(open, Addr(own), &[(Addr(1 - own), peer)], Strangers::Refuse)
    };
    let mut workers = [worker(client, 0)?, worker(server, 1)?];
    for (worker, own) in workers.iter_mut().zip(0..) {
        trace::attach(trace.as_ref(), worker, own);
    }
    let one_core = args.threads == 1;
    if !one_core {
        workers.iter_mut().for_each(|worker| worker.set_idle(args.end.idle.into()));
    }
    let notices = setup.notices(&workers[0]);
    let [client, server] = workers;
    let mut endpoints = [setup::endpoint(client, memory)?, setup::endpoint(server, Memory::default())?];
    let pair = Pair { args, setup: &setup, test: &test, interrupt: Interrupt::on_signals()? };
    let (client, seen, end) =
        if one_core { pair.on_one_thread(&mut endpoints)? } else { pair.on_two_threads(&mut endpoints)? };
    let link = match args.between {
        PairLink::Memory => "memory",
        PairLink::Ring => "ring",
        PairLink::Udp => "udp",
    };
    let whole_packets =
        one_core && args.between == PairLink::Ring && setup.setup.payload == 4096 && test.size >= 4096;
    let expected = Expected {
        cycles_per_packet: whole_packets.then_some(CYCLES_WANTED),
        ..Expected::on(setup.setup.link.known(), &test, setup.setup.overhead.into())
    };
    let report = Report {
        client: Some(client.report()),
        server: seen,
        latency: client.latency(),
        congestion: client.congestion(),
        one_core,
        notices,
        ..Report::new(&test, link, "this process", expected)
    };
    let cut = (end == End::Interrupted).then_some(&pair.interrupt);
    trace::end(trace, conclude(&mut output, &report, &client, cut))
}

/// A test between two ends here.
struct Pair<'a> {
    args: &'a PairArgs,
    setup: &'a EndSetup,
    test: &'a Test,
    interrupt: Interrupt,
}

/// The client, what the server has seen, and how the test has ended.
type Outcome = Result<(Client, Option<EndReport>, End), Failure>;

impl Pair<'_> {
    fn on_one_thread(&self, endpoints: &mut [Endpoint; 2]) -> Outcome {
        pin(&self.args.end, 0)?;
        let mut seen = None;
        let mut client = self.client(&endpoints[0]);
        let mut server = self.server(&endpoints[1], &mut seen);
        let end = drive::run_both(endpoints, &mut client, &mut server, &self.interrupt)?;
        drop(server);
        Ok((client, seen, end))
    }

    fn on_two_threads(&self, endpoints: &mut [Endpoint; 2]) -> Outcome {
        let (end, patience) = (&self.args.end, self.args.end.patience);
        let seen = Mutex::new(None);
        let [first, second] = endpoints;
        let mut client = self.client(first);
        let (sent, received) = thread::scope(|scope| {
            let receiving = scope.spawn(|| {
                let _lcore = lcore()?;
                pin(end, 1)?;
                let mut report = None;
                // The client tells it when a signal has come.
                let mut server = self.server(second, &mut report);
                let ran = drive::run(second, &mut server, patience, &Interrupt::default());
                drop(server);
                *seen.lock().unwrap_or_else(PoisonError::into_inner) = report;
                ran
            });
            let sent = pin(end, 0).and_then(|()| drive::run(first, &mut client, patience, &self.interrupt));
            (sent, receiving.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        let end = sent?;
        if end == End::Complete {
            received?;
        }
        Ok((client, seen.into_inner().unwrap_or_else(PoisonError::into_inner), end))
    }

    fn client(&self, endpoint: &Endpoint) -> Client {
        let (patience, clock) = (self.args.end.patience, drive::clock(endpoint));
        Client::new(self.test.clone(), Addr(1), "the server".to_owned(), patience, clock)
    }

    fn server<'a>(&self, endpoint: &Endpoint, seen: &'a mut Option<EndReport>) -> Server<'a> {
        let options = ServerOptions {
            once: true,
            wait: Some(self.args.end.patience),
            memory: u64::MAX,
            payload: self.setup.setup.payload,
            room: self.setup.setup.longest_payload,
            patience: self.args.end.patience,
            shares_thread: self.args.threads == 1,
        };
        let sink = Box::new(move |_: &Test, _: &str, report| {
            *seen = Some(report);
            Ok(())
        });
        Server::new(options, sink, drive::clock(endpoint).now())
    }
}

/// Makes the thread one that DPDK's pools have a cache for, if DPDK runs.
#[cfg(feature = "dpdk")]
fn lcore() -> Result<Option<weft_stack::port::dpdk::LcoreGuard>, Failure> {
    let guard = weft_stack::port::dpdk::Eal::get().map(|eal| eal.register_thread()).transpose();
    guard.map_err(|error| Failure::Run(error.to_string()))
}

#[cfg(not(feature = "dpdk"))]
fn lcore() -> Result<Option<core::convert::Infallible>, Failure> {
    Ok(None)
}

fn open(link: PairLink, mtu: u16) -> Result<[OpenPort; 2], Failure> {
    let ports = match link {
        PairLink::Memory => in_memory(mtu),
        PairLink::Ring => over_rings(mtu),
        PairLink::Udp => over_udp(mtu),
    };
    let [a, b] = ports.map_err(|error| Failure::Run(format!("--port: {error}")))?;
    Ok([OpenPort::in_process(a, 1), OpenPort::in_process(b, 2)])
}

type Ports = Result<[AnyPort; 2], Box<dyn std::error::Error>>;

fn in_memory(mtu: u16) -> Ports {
    let config = MemoryConfig { mtu: mtu.into(), ring: RING, ..MemoryConfig::default() };
    let (a, b) = memory::pair(&config)?;
    Ok([AnyPort::Memory(Box::new(a)), AnyPort::Memory(Box::new(b))])
}

fn over_udp(mtu: u16) -> Ports {
    let port = |n| {
        let alias = Some(IpAddr::from([127, 0, 0, n]));
        UdpPort::open(&UdpConfig { alias, mtu: mtu.into(), ..UdpConfig::default() }.with_free_ports())
    };
    let (mut a, mut b) = (port(1)?, port(2)?);
    a.meet(&b.as_peer())?;
    b.meet(&a.as_peer())?;
    Ok([AnyPort::Udp(Box::new(a)), AnyPort::Udp(Box::new(b))])
}

#[cfg(feature = "dpdk")]
fn over_rings(mtu: u16) -> Ports {
    use weft_stack::port::MIN_FRAME;
    use weft_stack::port::dpdk::{DpdkPort, DpdkPortConfig, Eal, EalOptions, MbufPool, MbufPoolConfig};
    let eal = Eal::init(&EalOptions::default())?;
    let buffer_size = mtu.saturating_add(MIN_FRAME as u16);
    // Both rings full, both bursts, and what is being received.
    let config = MbufPoolConfig { buffers: 4 * RING as u32, buffer_size, ..MbufPoolConfig::default() };
    let pool = MbufPool::create(eal, "pair", &config)?;
    let config = DpdkPortConfig { mtu, ..DpdkPortConfig::default() };
    let (a, b) = DpdkPort::ring_pair(eal, "pair", RING as u32, pool, &config)?;
    Ok([AnyPort::Dpdk(Box::new(a)), AnyPort::Dpdk(Box::new(b))])
}

#[cfg(not(feature = "dpdk"))]
fn over_rings(_mtu: u16) -> Ports {
    Err("ring: this weft was built without its feature `dpdk`".into())
}
