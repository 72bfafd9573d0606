//! The flows between two endpoints whose ports are joined, driven by one thread in real time.

use super::first_pair;
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
use weft_testbed::workload::{Flow, Start, payload};

/// What congestion control takes for the round-trip time of an idle network: some turns of the loop,
/// each of which copies and checks a burst of frames in both directions.
const NETWORK_RTT: Span = Span::from_us(100);
/// The system may take the CPU away for this long without anything being lost.
const RTO: Span = Span::from_ms(100);
/// Silence after which the run is given up.
const SILENCE: Span = Span::from_ms(10_000);
/// Turns of the loop between two calls of the progress callback.
const PROGRESS_INTERVAL: u64 = 1 << 12;

/// The flows and the two endpoints that they run between.
pub(super) struct Transfer<P> {
    ends: [Worker<P>; 2],
    clock: Clock,
    flows: Vec<Flow>,
    records: Vec<FlowRecord>,
    /// By the workload's number.
    connections: BTreeMap<u32, Connection>,
    /// Flows not started, by time; the next one is the last.
    waiting: Vec<(Time, usize)>,
    memory: Vec<FlowMemory>,
    options: ConnectOptions,
    failures: Vec<String>,
    payload_errors: Vec<String>,
    /// When something last went forward.
    last_news: Time,
    data_received: u64,
}

/// A flow's bytes wherever they are not with an endpoint. They are made before the clock starts and
/// compared after the run, so that neither costs the flows time.
#[derive(Default)]
struct FlowMemory {
    to_send: Option<Buffer>,
    sent: Option<Buffer>,
    received: Option<Buffer>,
}

struct Connection {
    id: Option<ConnectionId>,
    /// Flows that are not done.
    left: u32,
    open: bool,
}

impl<P: Port> Transfer<P> {
    pub(super) fn new(config: &RunConfig, ports: [P; 2]) -> Result<Transfer<P>, Failure> {
        let failed = |error: &dyn std::fmt::Display| Failure::Run(format!("--on loopback: {error}"));
        let pair = first_pair(&config.workload).ok_or_else(|| failed(&"the workload has no flows"))?;
        let flows: Vec<Flow> = config.workload.flows().iter().filter(|f| joins(pair, f)).copied().collect();
        let memory = (0..).zip(&flows).map(|(n, flow)| FlowMemory {
            to_send: Some(Buffer::Heap(payload(n, flow.bytes as u32))),
            ..FlowMemory::default()
        });
        let memory = memory.collect();
        let clock = Clock::new();
        let endpoint = Arc::new(endpoint(config));
        let [a, b] = ports;
        let end = |side, port| worker(side, port, &endpoint, config.seed, clock).map_err(|e| failed(&e));
        let mut transfer = Transfer {
            ends: [end(0, a)?, end(1, b)?],
            clock,
            records: flows.iter().map(FlowRecord::new).collect(),
            connections: connections(&flows),
            waiting: starts(&flows),
            memory,
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
    pub(super) fn run(&mut self, until: Option<Span>, progress: &mut dyn FnMut(&Progress)) {
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
            buffer: self.memory[index].to_send.take().unwrap_or(Buffer::Virtual(0)),
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
            Completion::Sent { context, retransmissions, buffer, result, .. } => {
                let index = context as usize;
                let record = &mut self.records[index];
                record.retransmitted = u64::from(retransmissions);
                match result {
                    Ok(()) => {
                        record.end = Some(now);
                        self.memory[index].sent = Some(buffer);
                    }
                    Err(error) => self.failures.push(format!("flow {}: {error}", record.id)),
                }
                self.done_with(now, index);
            }
            Completion::Received { context, buffer, len, header_data, result, .. } => {
                let flow = &self.flows[context as usize];
                if let Err(error) = result {
                    self.payload_errors.push(format!("flow {}: receive: {error}", flow.id));
                }
                if u64::from(len) != flow.bytes || header_data != context {
                    self.payload_errors.push(format!("flow {} arrived as another message", flow.id));
                }
                if self.memory[context as usize].received.replace(buffer).is_some() {
                    self.payload_errors.push(format!("flow {} arrived twice", flow.id));
                }
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

    /// Compares what has arrived with what was sent.
    fn compare(&mut self) {
        for (flow, memory) in self.flows.iter().zip(&self.memory) {
            match (&memory.sent, &memory.received) {
                (Some(sent), Some(received)) if sent != received => {
                    self.payload_errors.push(format!("flow {}: its bytes are not those sent", flow.id));
                }
                (Some(_), None) => self.payload_errors.push(format!("flow {} never arrived", flow.id)),
                _ => {}
            }
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
    pub(super) fn into_report(mut self) -> RunReport {
        let end = self.clock.now();
        self.compare();
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
            endpoints: self.ends.len() as u32,
            footprint: self.ends.iter().map(|worker| worker.fep().footprint()).sum(),
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

#[cfg(test)]
mod tests {
    use super::*;
    use weft_stack::port::faulty::{Faults, FaultyPort};
    use weft_stack::port::memory::{MemoryConfig, pair};
    use weft_stack::spray::LbChoice;
    use weft_stack::wire::pds::DeliveryMode;
    use weft_testbed::sim::{Overhead, PayloadMode};
    use weft_testbed::topology::TopologySpec;
    use weft_testbed::workload::{CmOptions, parse_cm};

    const MATRIX: &str = "Nodes 4\nConnections 5\nTriggers 1\n\
        1->2 id 1 start 0 size 100000 send_done_trigger 1\n\
        3->1 id 2 start 0 size 5\n\
        2->1 id 3 trigger 1 size 70000\n\
        1->2 id 4 start 2000 size 0\n\
        2->3 id 5 start 0 size 5\n\
        trigger id 1 oneshot\n";

    fn config() -> RunConfig {
        let spec: TopologySpec = "fat-tree:hosts=4".parse().unwrap();
        RunConfig {
            topology: spec.build().unwrap(),
            workload: parse_cm("test.cm", MATRIX, CmOptions::default()).unwrap(),
            cc: weft_cc::CcChoice::default(),
            lb: LbChoice::default(),
            paths: 16,
            mtu: 4096,
            wire_overhead: Overhead::Auto,
            trim: false,
            queue_bytes: None,
            ecn: None,
            payload: PayloadMode::Real,
            seed: 1,
            until: None,
            ack_every: 16_384,
            mode: DeliveryMode::Rud,
        }
    }

    fn run(faults: Faults, until: Option<Span>) -> RunReport {
        let (a, b) = pair(&MemoryConfig::default()).unwrap();
        let faulty = |port, stream| FaultyPort::new(port, faults, Rng::new(3, stream)).unwrap();
        let mut transfer = Transfer::new(&config(), [faulty(a, 0), faulty(b, 1)]).unwrap();
        transfer.run(until, &mut |_| ());
        transfer.into_report()
    }

    #[test]
    fn the_first_pairs_flows_run_both_ways_and_no_others() {
        let report = run(Faults::default(), None);
        let ids: Vec<u64> = report.flows.iter().map(|flow| flow.id).collect();
        assert_eq!(ids, [1, 3, 4]);
        assert!(report.is_complete(), "{:?}", report.stuck);
        assert_eq!((report.payload_errors.len(), report.leaks.len()), (0, 0), "{report:?}");
        assert_eq!(report.packets.data, 25 + 18 + 1);
        assert_eq!(report.flows[1].start, report.flows[0].start, "what waits for a trigger starts at once");
    }

    #[test]
    fn losses_are_repaired() {
        let report =
            run(Faults { drop: 0.1, corrupt: 0.1, ..Faults::default() }, Some(Span::from_ms(60_000)));
        assert!(report.is_complete(), "{:?}", report.stuck);
        assert!(report.packets.retransmitted > 0 && report.packets.dropped > 0);
        assert_eq!((report.payload_errors.len(), report.leaks.len()), (0, 0), "{report:?}");
    }

    #[test]
    fn a_dead_link_ends_the_run_and_is_named() {
        let report = run(Faults { drop: 1.0, ..Faults::default() }, Some(Span::from_ms(50)));
        assert!(report.flows.iter().all(|flow| flow.end.is_none()));
        assert!(report.stuck.iter().any(|line| line.contains("waits for an acknowledgement")), "{report:?}");
    }
}
