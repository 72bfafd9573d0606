//! `--on loopback`: a part of the workload between two endpoints in this process, over a pair of DPDK
//! `net_ring` devices: real frames in real mbufs, real payload, compared byte by byte, in real time.
//!
//! Two endpoints are two hosts: of the workload those flows run that go from the first flow's source to
//! its destination, or back. They start at their times; those that wait for another flow start at once,
//! because what they wait for may not be here.
//!
//! One thread drives both ends in turn, so that a round trip is one turn of the loop and the run needs
//! one core. There is no link: nothing bounds the rate but the CPU.

use crate::Failure;
use std::collections::BTreeMap;
use std::sync::Arc;
use weft_cc::{CcParams, Span, Time};
use weft_stack::buffer::Buffer;
use weft_stack::fep::{Completion, ConnectOptions, ConnectionId, Fep, FepConfig, Receive, Send};
use weft_stack::packet::Addr;
use weft_stack::pdc::PdcConfig;
use weft_stack::port::Port;
use weft_stack::rng::Rng;
use weft_stack::ses::Matching;
use weft_stack::wire::ethernet::MacAddr;
use weft_stack::worker::{AddressBook, Clock, Host, LinkConfig, Strangers, Worker};
use weft_testbed::sim::{FlowRecord, PacketCounters, Progress, RunConfig, RunReport};
use weft_testbed::workload::{Flow, Start, Workload};

/// What congestion control takes for the round-trip time of an idle network: some turns of the loop,
/// each of which copies and checks a burst of frames in both directions.
const NETWORK_RTT: Span = Span::from_us(100);
/// The system may take the CPU away for this long without anything being lost.
const RTO: Span = Span::from_ms(20);
/// Silence after which the run is given up.
const SILENCE: Span = Span::from_ms(10_000);
/// Turns of the loop between two calls of the progress callback.
const PROGRESS_INTERVAL: u64 = 1 << 12;
/// Ethernet, IPv4, UDP and the longest headers of a data packet.
const HEADERS: u32 = 14 + 20 + 8 + 16 + 44;
/// The generator's stream that fills flow `n` is this plus `n`; lower ones are the endpoints'.
const PAYLOAD_STREAM: u64 = 1 << 32;

/// The two hosts of `workload` that a loopback runs: its first flow's source and destination.
pub(crate) fn first_pair(workload: &Workload) -> Option<[u32; 2]> {
    workload.flows().first().map(|flow| [flow.src.0, flow.dst.0])
}

/// Runs the flows between the first two hosts over DPDK.
#[cfg(feature = "dpdk")]
pub(crate) fn run(config: &RunConfig, progress: &mut dyn FnMut(&Progress)) -> Result<RunReport, Failure> {
    let (ports, pool) = ring_pair(config.mtu).map_err(|e| Failure::Run(format!("--on loopback: {e}")))?;
    let mut transfer = Transfer::new(config, ports)?;
    transfer.run(config.until, progress);
    let mut report = transfer.into_report();
    // The ports are closed: every mbuf must be back.
    let missing = pool.capacity() - pool.available();
    if missing > 0 {
        report.leaks.push(format!("{missing} mbufs"));
    }
    Ok(report)
}

/// Says why not.
#[cfg(not(feature = "dpdk"))]
pub(crate) fn run(_config: &RunConfig, _progress: &mut dyn FnMut(&Progress)) -> Result<RunReport, Failure> {
    Err(Failure::Run(
        "--on loopback needs DPDK, and this weft was built without its feature `dpdk`".to_owned(),
    ))
}

#[cfg(feature = "dpdk")]
type RingPair = ([weft_stack::port::dpdk::DpdkPort; 2], weft_stack::port::dpdk::MbufPool);

#[cfg(feature = "dpdk")]
fn ring_pair(mtu: u32) -> Result<RingPair, weft_stack::port::dpdk::DpdkError> {
    use weft_stack::port::dpdk::{DpdkPort, DpdkPortConfig, Eal, EalOptions, MbufPool, MbufPoolConfig};
    const RING: u32 = 1024;
    // A payload that no packet can have is refused by the endpoint, after this.
    let frame = u16::try_from(mtu + HEADERS).unwrap_or(u16::MAX / 2);
    let eal = Eal::init(&EalOptions::default())?;
    // Both rings full, both bursts, and what is being received.
    let pool_config = MbufPoolConfig { buffers: 4 * RING, buffer_size: frame, ..MbufPoolConfig::default() };
    let pool = MbufPool::create(eal, "loopback", &pool_config)?;
    let port_config = DpdkPortConfig { mtu: frame - 14, ..DpdkPortConfig::default() };
    let (a, b) = DpdkPort::ring_pair(eal, "loopback", RING, pool, &port_config)?;
    Ok(([a, b], pool))
}

/// The flows and the two endpoints that they run between.
struct Transfer<P> {
    ends: [Worker<P>; 2],
    clock: Clock,
    flows: Vec<Flow>,
    records: Vec<FlowRecord>,
    /// By the workload's number.
    connections: BTreeMap<u32, Connection>,
    /// Flows not started, by time; the next one is the last.
    waiting: Vec<(Time, usize)>,
    received: Vec<u8>,
    seed: u64,
    options: ConnectOptions,
    failures: Vec<String>,
    payload_errors: Vec<String>,
    /// When something last went forward.
    last_news: Time,
    data_received: u64,
}

struct Connection {
    id: Option<ConnectionId>,
    /// Flows that are not done.
    left: u32,
    open: bool,
}

impl<P: Port> Transfer<P> {
    fn new(config: &RunConfig, ports: [P; 2]) -> Result<Transfer<P>, Failure> {
        let failed = |error: &dyn std::fmt::Display| Failure::Run(format!("--on loopback: {error}"));
        let pair = first_pair(&config.workload).ok_or_else(|| failed(&"the workload has no flows"))?;
        let flows: Vec<Flow> = config.workload.flows().iter().filter(|f| joins(pair, f)).copied().collect();
        let clock = Clock::new();
        let endpoint = Arc::new(endpoint(config));
        let [a, b] = ports;
        let end = |side, port| worker(side, port, &endpoint, config.seed, clock).map_err(|e| failed(&e));
        let mut transfer = Transfer {
            ends: [end(0, a)?, end(1, b)?],
            clock,
            records: flows.iter().map(record).collect(),
            connections: connections(&flows),
            waiting: starts(&flows),
            received: vec![0; flows.len()],
            seed: config.seed,
            options: ConnectOptions { mode: config.mode, ..ConnectOptions::default() },
            failures: Vec::new(),
            payload_errors: Vec::new(),
            last_news: Time::ZERO,
            data_received: 0,
            flows,
        };
        transfer.post_receives(pair[0]);
        Ok(transfer)
    }

    /// Every flow's receive is posted before anything starts, tagged with the flow's index.
    fn post_receives(&mut self, first: u32) {
        for (index, flow) in self.flows.iter().enumerate() {
            let to = usize::from(flow.dst.0 != first);
            let receive = Receive {
                buffer: Buffer::Heap(vec![0; flow.bytes as usize]),
                from: Some(Addr(1 - to as u32)),
                matching: Matching::Tagged { tag: index as u64, ignore: 0 },
                context: index as u64,
            };
            if let Err(error) = self.ends[to].fep_mut().post_receive(receive) {
                self.failures.push(format!("flow {}: {error}", flow.id));
            }
        }
    }

    /// Turns the loop until all is done, `until` has passed, or nothing has gone forward for a while.
    fn run(&mut self, until: Option<Span>, progress: &mut dyn FnMut(&Progress)) {
        let (begin, mut turns) = (self.clock.now(), 0u64);
        self.last_news = begin;
        loop {
            let now = self.clock.now();
            let cut_off = until.is_some_and(|limit| now.since(begin) >= limit);
            if cut_off || self.is_done() || now.since(self.last_news) >= SILENCE {
                return;
            }
            self.turn(now);
            if turns.is_multiple_of(PROGRESS_INTERVAL) {
                progress(&self.progress(now));
            }
            turns += 1;
        }
    }

    fn turn(&mut self, now: Time) {
        while self.waiting.last().is_some_and(|(at, _)| now.is_at_or_after(*at)) {
            if let Some((_, index)) = self.waiting.pop() {
                self.start(now, index);
            }
        }
        for end in &mut self.ends {
            end.poll_at(now);
        }
        self.collect(now);
        let data = self.ends.iter().map(|end| end.fep().counters().data_received).sum();
        if data != self.data_received || !self.waiting.is_empty() {
            self.data_received = data;
            self.last_news = now;
        }
    }

    fn start(&mut self, now: Time, index: usize) {
        let flow = self.flows[index];
        let from = usize::from(flow.src != self.flows[0].src);
        self.records[index].start = Some(now);
        let Some(connection) = self.connections.get_mut(&flow.connection) else { return };
        let fep = self.ends[from].fep_mut();
        let id = match connection.id {
            Some(id) => Ok(id),
            None => fep.connect(now, Addr(1 - from as u32), self.options),
        };
        let send = Send {
            buffer: Buffer::Heap(content(self.seed, index, flow.bytes)),
            tag: Some(index as u64),
            header_data: index as u64,
            context: index as u64,
        };
        let posted = id.and_then(|id| {
            connection.id = Some(id);
            fep.post_send(id, send)
        });
        if let Err(error) = posted {
            self.failures.push(format!("flow {}: {error}", flow.id));
            self.done_with(now, index);
        }
    }

    /// Closes the flow's connection if it was the last one.
    fn done_with(&mut self, now: Time, index: usize) {
        let flow = self.flows[index];
        let from = usize::from(flow.src != self.flows[0].src);
        let Some(connection) = self.connections.get_mut(&flow.connection) else { return };
        connection.left -= 1;
        if connection.left > 0 {
            return;
        }
        let closing = connection.id.map(|id| self.ends[from].fep_mut().close(now, id));
        // A connection that is not open any more has said so itself; one that never was cannot.
        connection.open &= matches!(closing, Some(Ok(())));
    }

    fn collect(&mut self, now: Time) {
        for side in 0..2 {
            while let Some(completion) = self.ends[side].fep_mut().poll_completion() {
                self.last_news = now;
                self.take_in(now, completion);
            }
        }
    }

    fn take_in(&mut self, now: Time, completion: Completion) {
        match completion {
            Completion::Sent { context, retransmissions, result, .. } => {
                let index = context as usize;
                let record = &mut self.records[index];
                record.retransmitted = u64::from(retransmissions);
                match result {
                    Ok(()) => record.end = Some(now),
                    Err(error) => self.failures.push(format!("flow {}: {error}", record.id)),
                }
                self.done_with(now, index);
            }
            Completion::Received { context, buffer, len, header_data, result, .. } => {
                let index = context as usize;
                self.received[index] = self.received[index].saturating_add(1);
                if let Err(error) = result {
                    let id = self.flows[index].id;
                    self.payload_errors.push(format!("flow {id}: receive: {error}"));
                }
                self.check(index, len, header_data, &buffer);
            }
            Completion::Closed { id, result, .. } => {
                if let Err(error) = result {
                    self.failures.push(error.to_string());
                }
                let closed = self.connections.values_mut().find(|c| c.id == Some(id) && c.open);
                if let Some(connection) = closed {
                    connection.open = false;
                }
            }
        }
    }

    fn check(&mut self, index: usize, len: u32, header_data: u64, buffer: &Buffer) {
        let flow = &self.flows[index];
        if self.received[index] > 1 {
            self.payload_errors.push(format!("flow {} arrived {} times", flow.id, self.received[index]));
        }
        if u64::from(len) != flow.bytes || header_data != index as u64 {
            self.payload_errors.push(format!("flow {} arrived as another message", flow.id));
        }
        let expected = Buffer::Heap(content(self.seed, index, flow.bytes));
        if *buffer != expected {
            self.payload_errors.push(format!("flow {}: its bytes are not those sent", flow.id));
        }
    }

    fn is_done(&self) -> bool {
        self.waiting.is_empty() && self.connections.values().all(|connection| !connection.open)
    }

    fn progress(&self, now: Time) -> Progress {
        Progress {
            now,
            flows_done: self.records.iter().filter(|flow| flow.end.is_some()).count() as u64,
            flows_total: self.records.len() as u64,
            events: self.frames(),
        }
    }

    /// Frames that have arrived at either end.
    fn frames(&self) -> u64 {
        self.ends.iter().map(|end| end.port().counters().rx_frames).sum()
    }

    /// Closes the ports.
    fn into_report(mut self) -> RunReport {
        let end = self.clock.now();
        let (mut packets, mut timeouts) = (PacketCounters::default(), 0);
        for worker in &self.ends {
            let (fep, dropped, port) = (worker.fep().counters(), worker.counters(), worker.port().counters());
            packets.data += fep.data_sent;
            packets.retransmitted += fep.data_retransmitted;
            packets.dropped +=
                dropped.malformed + dropped.misdirected + dropped.strangers + dropped.unsendable;
            packets.dropped += port.rx_errors + port.rx_missed + port.tx_errors;
            packets.acks += fep.acks_sent;
            packets.nacks += fep.nacks_sent;
            packets.ecn_marked += fep.ecn_received;
            timeouts += fep.timeouts;
        }
        let done = self.is_done();
        let leaks = self.ends.iter().flat_map(|worker| worker.fep().leaks()).filter(|_| done).collect();
        RunReport {
            packets,
            timeouts,
            events: self.frames(),
            end,
            bound: (Span::ZERO, String::new()),
            stuck: self.stuck(end),
            leaks,
            flows: std::mem::take(&mut self.records),
            payload_errors: std::mem::take(&mut self.payload_errors),
        }
    }

    fn stuck(&mut self, now: Time) -> Vec<String> {
        let mut lines = std::mem::take(&mut self.failures);
        lines.extend(self.ends.iter().flat_map(|worker| worker.fep().explain(now)));
        let dropped = self.ends.iter().filter_map(Worker::last_read_error);
        lines.extend(dropped.map(|error| format!("the last frame dropped on arrival: {error}")));
        lines.extend(self.waiting.iter().map(|(_, index)| {
            let flow = &self.flows[*index];
            format!("flow {} from host {} has not been started", flow.id, flow.src.0)
        }));
        lines
    }
}

fn joins([a, b]: [u32; 2], flow: &Flow) -> bool {
    [(a, b), (b, a)].contains(&(flow.src.0, flow.dst.0))
}

fn record(flow: &Flow) -> FlowRecord {
    FlowRecord {
        id: u64::from(flow.id),
        src: flow.src.0,
        dst: flow.dst.0,
        bytes: flow.bytes,
        start: None,
        end: None,
        retransmitted: 0,
    }
}

fn connections(flows: &[Flow]) -> BTreeMap<u32, Connection> {
    let mut connections = BTreeMap::new();
    for flow in flows {
        let new = Connection { id: None, left: 0, open: true };
        connections.entry(flow.connection).or_insert(new).left += 1;
    }
    connections
}

/// Times of the flows with their indices, the earliest last.
fn starts(flows: &[Flow]) -> Vec<(Time, usize)> {
    let at = |flow: &Flow| match flow.start {
        Start::At(time) => time,
        Start::Trigger(_) => Time::ZERO,
    };
    let mut starts: Vec<_> = flows.iter().enumerate().map(|(index, flow)| (at(flow), index)).collect();
    starts.sort_by_key(|&(time, index)| std::cmp::Reverse((time.since(Time::ZERO), index)));
    starts
}

/// Bytes that differ from flow to flow and from place to place.
fn content(seed: u64, index: usize, len: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed, PAYLOAD_STREAM + index as u64);
    let mut bytes = vec![0; len as usize];
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&rng.next_u64().to_le_bytes()[..chunk.len()]);
    }
    bytes
}

/// The configuration of the endpoints: that of the run, but for what depends on the fabric.
fn endpoint(config: &RunConfig) -> FepConfig {
    let params = CcParams { network_rtt: NETWORK_RTT, ..config.cc_params() };
    let base = FepConfig::new(&config.cc, &params);
    let pdc = PdcConfig { mp_range: 2048, rto_init: RTO, ack_bytes: config.ack_every, ..base.pdc };
    FepConfig { lb: config.lb.clone(), paths: config.paths, pdc, ..base }
}

fn worker<P: Port>(
    side: u32,
    port: P,
    config: &Arc<FepConfig>,
    seed: u64,
    clock: Clock,
) -> Result<Worker<P>, Box<dyn std::error::Error>> {
    let fep = Fep::new(Addr(side), config.clone(), Rng::new(seed, u64::from(side)), clock.now())?;
    let mut book = AddressBook::new(Addr(side), host(side), 2, Strangers::Refuse)?;
    book.insert(Addr(1 - side), host(1 - side))?;
    Ok(Worker::new(fep, port, book, LinkConfig::default(), clock)?)
}

fn host(side: u32) -> Host {
    let n = side as u8 + 1;
    Host { mac: MacAddr([2, 0, 0, 0, 0, n]), ip: [127, 0, 0, n].into() }
}
