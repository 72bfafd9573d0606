//! Both ends of a test in this process.

use super::args::{PairArgs, PairLink};
use super::client::Client;
use super::drive::{self, Stop};
use super::endpoint::Endpoint;
use super::plan::Test;
use super::report::{EndReport, Expected, Report};
use super::server::{Server, ServerOptions};
use super::{Output, check_cores, pin};
use crate::Failure;
use crate::port_spec::{AnyPort, OpenPort, PeerSpec};
use crate::trace;
use std::net::IpAddr;
use std::sync::Mutex;
use std::thread;
use weft_stack::packet::Addr;
use weft_stack::port::memory::{self, MemoryConfig};
use weft_stack::port::udp::{UdpConfig, UdpPort};
use weft_stack::worker::{Strangers, Worker};

/// Frames that each direction of a link in memory holds.
const RING: usize = 1024;
/// What a data packet of 4 KiB may cost when one core drives both ends, acknowledgements and copies included.
const CYCLES_WANTED: f64 = 1000.0;

/// Runs the test.
pub(super) fn run(args: &PairArgs) -> Result<(), Failure> {
    check_cores(&args.end, args.threads.into())?;
    let mut output = Output::open(&args.output)?;
    let trace = args.trace.begin(&[])?;
    let ends = open(args.between, args.mtu)?;
    let endpoint = Endpoint::new(&args.end, &ends[0])?;
    let test = Test::new(&args.test, endpoint.setup.payload, endpoint.setup.longest_payload, &endpoint.cc)
        .map_err(Failure::Usage)?;
    let ips = [ends[0].info.host.ip, ends[1].info.host.ip];
    let [client, server] = ends;
    let worker = |open, own: u32| {
        let peer = PeerSpec { ip: ips[1 - own as usize], mac: None };
        endpoint.worker(open, Addr(own), &[(Addr(1 - own), peer)], Strangers::Refuse)
    };
    let mut workers = [worker(client, 0)?, worker(server, 1)?];
    for (worker, own) in workers.iter_mut().zip(0..) {
        trace::attach(trace.as_ref(), worker, own);
    }
    let one_core = args.threads == 1;
    let (client, seen) = if one_core {
        on_one_thread(args, &test, &mut workers, &endpoint)?
    } else {
        on_two_threads(args, &test, &mut workers, &endpoint)?
    };
    let link = match args.between {
        PairLink::Memory => "memory",
        PairLink::Ring => "ring",
        PairLink::Udp => "udp",
    };
    let whole_packets =
        one_core && args.between == PairLink::Ring && endpoint.setup.payload == 4096 && test.size >= 4096;
    let expected = Expected {
        cycles_per_packet: whole_packets.then_some(CYCLES_WANTED),
        ..Expected::on(endpoint.setup.link.known(), &test, endpoint.setup.overhead.into())
    };
    let report = Report {
        client: Some(client.report()),
        server: seen,
        latency: client.latency(),
        congestion: client.congestion(),
        one_core,
        notices: endpoint.notices(&workers[0]),
        ..Report::new(&test, link, "this process", expected)
    };
    output.report(&report)?;
    trace::end(trace, report.fault().map_or(Ok(()), |fault| Err(Failure::Run(fault))))
}

type Outcome = Result<(Client, Option<EndReport>), Failure>;

fn on_one_thread(
    args: &PairArgs,
    test: &Test,
    workers: &mut [Worker<AnyPort>; 2],
    endpoint: &Endpoint,
) -> Outcome {
    pin(&args.end, 0)?;
    let mut seen = None;
    let mut client = client(args, test, &mut workers[0])?;
    let mut server = server(args, endpoint, &workers[1], &mut seen);
    drive::run_both(workers, &mut client, &mut server)?;
    drop(server);
    Ok((client, seen))
}

fn on_two_threads(
    args: &PairArgs,
    test: &Test,
    workers: &mut [Worker<AnyPort>; 2],
    endpoint: &Endpoint,
) -> Outcome {
    let seen = Mutex::new(None);
    for worker in workers.iter_mut() {
        worker.set_idle(args.end.idle.into());
    }
    let [first, second] = workers;
    let mut client = client(args, test, first)?;
    let outcome = thread::scope(|scope| {
        let receiving = scope.spawn(|| {
            let _lcore = lcore()?;
            pin(&args.end, 1)?;
            let mut report = None;
            let ran = drive::run(
                second,
                &mut server(args, endpoint, second, &mut report),
                args.end.patience,
                &Stop::default(),
            );
            *seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = report;
            ran
        });
        let sent = pin(&args.end, 0)
            .and_then(|()| drive::run(first, &mut client, args.end.patience, &Stop::default()));
        let received = receiving.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        sent.and(received)
    });
    outcome?;
    Ok((client, seen.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)))
}

fn client(args: &PairArgs, test: &Test, worker: &mut Worker<AnyPort>) -> Result<Client, Failure> {
    let (memory, now) = (super::client::memory(test, worker.port_mut())?, worker.clock().now());
    Ok(Client::new(test.clone(), memory, Addr(1), "the server".to_owned(), args.end.patience, now))
}

fn server<'a>(
    args: &PairArgs,
    endpoint: &Endpoint,
    worker: &Worker<AnyPort>,
    seen: &'a mut Option<EndReport>,
) -> Server<'a> {
    let options = ServerOptions {
        once: true,
        wait: Some(args.end.patience),
        memory: u64::MAX,
        credit: endpoint.cc.uses_credit(),
        payload: endpoint.setup.payload,
        room: endpoint.setup.longest_payload,
        patience: args.end.patience,
        shares_thread: args.threads == 1,
    };
    let sink = Box::new(move |_: &Test, _: &str, report| {
        *seen = Some(report);
        Ok(())
    });
    Server::new(options, sink, worker.clock().now())
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
