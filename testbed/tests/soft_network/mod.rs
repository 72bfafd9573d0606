//! Workers at the ports of a software fabric, driven by a virtual clock, so that every run is repeatable.

use std::collections::BTreeMap;
use std::sync::Arc;

use weft_cc::{Span, Time};
use weft_stack::buffer::Buffer;
use weft_stack::fep::{Completion, ConnectionId, Fep, Receive, Send};
use weft_stack::packet::Addr;
use weft_stack::port::memory::MemoryPort;
use weft_stack::rng::Rng;
use weft_stack::ses::Matching;
use weft_stack::wire::class::DscpClasses;
use weft_stack::wire::ethernet::MacAddr;
use weft_stack::worker::{AddressBook, Clock, HostAddr, LinkConfig, Strangers, Worker};
use weft_testbed::goal::{HostRanks, RankRecord};
use weft_testbed::sim::{FaultPlan, FlowRecord, RunConfig};
use weft_testbed::soft::{HostPort, SoftCounters, SoftFabric, SoftOptions, endpoint, host_link};
use weft_testbed::topology::HostId;
use weft_testbed::workload::{Flow, Start, TriggerBank, TriggerIdx, payload};

/// Bytes added to the payload size for the MTU of the ports: more than the headers take.
const HEADERS: usize = 114;

/// The results of a run.
pub(crate) struct Outcome {
    pub(crate) flows: Vec<FlowRecord>,
    pub(crate) fabric: SoftCounters,
    /// Frames left in the fabric.
    pub(crate) left: usize,
    pub(crate) timeouts: u64,
    pub(crate) retransmitted: u64,
    pub(crate) trimmed_received: u64,
    pub(crate) marked_received: u64,
    /// Frames that endpoints refused as damaged.
    pub(crate) malformed: u64,
    /// Frames that the hosts' ports have sent and received.
    pub(crate) sent_by_hosts: u64,
    pub(crate) received_by_hosts: u64,
}

/// The addresses of a host.
pub(crate) fn place(host: u32) -> HostAddr {
    let n = host as u8;
    HostAddr { mac: MacAddr([2, 0, 0, 0, 1, n]), ip: [10, 0, 0, n + 1].into() }
}

struct Run<'a> {
    config: &'a RunConfig,
    fabric: SoftFabric<MemoryPort>,
    ends: Vec<Worker<HostPort>>,
    flows: Vec<FlowRecord>,
    /// For each flow, how often it has arrived.
    arrivals: Vec<u32>,
    /// Flows with a start time that have not started, the next one last.
    waiting: Vec<(Time, u32)>,
    triggers: TriggerBank,
    connections: BTreeMap<u32, (Option<ConnectionId>, u32)>,
    open: usize,
}

/// Runs the workload of `config` until all flows are done and all connections are closed. Panics if that
/// fails.
pub(crate) fn run(config: &RunConfig, plan: &FaultPlan, options: SoftOptions) -> Outcome {
    let mut run = Run::new(config, plan, options);
    let mut now = Time::ZERO;
    let limit = Time::ZERO + config.until.expect("a limit");
    while run.open > 0 {
        assert!(now.is_before(limit), "not done: {:?}", run.explain(now));
        run.run_at(now);
        now = run.next(now);
    }
    run.drain(now);
    run.outcome()
}

impl<'a> Run<'a> {
    fn new(config: &'a RunConfig, plan: &FaultPlan, options: SoftOptions) -> Run<'a> {
        let hosts = config.topology.hosts();
        let mut fabric = SoftFabric::new(config, plan, options, Time::ZERO).unwrap();
        let ends = (0..hosts).map(|host| end(config, host, options.classes, &mut fabric)).collect();
        let flows = config.workload.flows();
        let starts = flows.iter().zip(0..).filter_map(|(flow, index)| match flow.start {
            Start::At(at) => Some((at, index)),
            Start::Trigger(_) => None,
        });
        let mut waiting: Vec<(Time, u32)> = starts.collect();
        waiting.sort_by_key(|(at, index)| std::cmp::Reverse((at.as_ps(), *index)));
        let mut connections = BTreeMap::new();
        for flow in flows {
            connections.entry(flow.connection).or_insert((None, 0)).1 += 1;
        }
        Run {
            fabric,
            ends,
            flows: flows.iter().map(FlowRecord::new).collect(),
            arrivals: vec![0; flows.len()],
            waiting,
            triggers: TriggerBank::new(&config.workload),
            open: connections.len(),
            connections,
            config,
        }
    }

    /// Handles all events at `now`.
    fn run_at(&mut self, now: Time) {
        loop {
            let mut some = self.fabric.poll(now);
            while let Some((_, index)) = self.waiting.pop_if(|(at, _)| now.is_at_or_after(*at)) {
                self.start(now, index);
                some = true;
            }
            for host in 0..self.ends.len() {
                some |= !self.ends[host].poll_at(now).is_idle();
                while let Some(completion) = self.ends[host].fep_mut().poll_completion() {
                    self.take_in(now, host, completion);
                    some = true;
                }
            }
            if !some {
                return;
            }
        }
    }

    /// The time of the next event.
    fn next(&self, now: Time) -> Time {
        let timers = self.ends.iter().filter_map(|end| end.fep().poll_timeout());
        let next = timers.chain(self.fabric.poll_timeout()).chain(self.waiting.last().map(|(at, _)| *at));
        next.reduce(Time::earliest).expect("something is to happen").latest(now + Span::from_ps(1))
    }

    fn flow(&self, index: u32) -> Flow {
        self.config.workload.flows()[index as usize]
    }

    fn start(&mut self, now: Time, index: u32) {
        let flow = self.flow(index);
        self.flows[index as usize].start = Some(now);
        let tag = u64::from(index);
        let receive = Receive {
            buffer: Buffer::Heap(vec![0xa5; flow.bytes as usize]),
            from: Some(Addr(flow.src.0).into()),
            matching: Matching::Tagged { tag, ignore: 0 },
            context: tag,
        };
        self.ends[flow.dst.0 as usize].fep_mut().post_receive(receive).unwrap();
        let fep = self.ends[flow.src.0 as usize].fep_mut();
        let (id, _) = self.connections.get_mut(&flow.connection).unwrap();
        let connection = self.config.workload.connections()[flow.connection as usize];
        let opening = self.config.opening();
        let id = *id.get_or_insert_with(|| opening.open(&connection, now, Addr(flow.dst.0), fep).unwrap());
        let buffer = Buffer::Heap(payload(tag, flow.bytes as u32));
        fep.post_send(id, Send { buffer, tag: Some(tag), header_data: tag, context: tag }).unwrap();
    }

    fn take_in(&mut self, now: Time, host: usize, completion: Completion) {
        match completion {
            Completion::Sent { context, result, retransmissions, .. } => {
                assert_eq!(result, Ok(()), "flow {context}");
                let record = &mut self.flows[context as usize];
                (record.end, record.retransmitted) = (Some(now), u64::from(retransmissions));
                let flow = self.flow(context as u32);
                let (id, left) = self.connections.get_mut(&flow.connection).unwrap();
                *left -= 1;
                if *left == 0 {
                    self.ends[host].fep_mut().close(now, id.unwrap()).unwrap();
                }
                self.activate(now, flow.on_sent);
            }
            Completion::Received { context, buffer, header_data, result, .. } => {
                assert_eq!((result, header_data), (Ok(()), context));
                let flow = self.flow(context as u32);
                let sent = Buffer::Heap(payload(context, flow.bytes as u32));
                assert!(buffer == sent, "the bytes of flow {context} are not those sent");
                self.arrivals[context as usize] += 1;
                self.activate(now, flow.on_received);
            }
            Completion::Read { .. } | Completion::Accessed { .. } | Completion::Written(_) => {
                panic!("nothing was read")
            }
            Completion::Closed { result, .. } => {
                assert_eq!(result, Ok(()));
                self.open -= 1;
            }
        }
    }

    fn activate(&mut self, now: Time, trigger: Option<TriggerIdx>) {
        let Some(trigger) = trigger else { return };
        let config = self.config;
        let Some(fired) = self.triggers.activate(&config.workload, trigger) else { return };
        assert!(fired.delay == Span::ZERO && fired.then.is_none(), "this network has no delays");
        fired.flows.iter().for_each(|index| self.start(now, *index));
    }

    /// Runs until all frames in flight have arrived.
    fn drain(&mut self, mut now: Time) {
        while self.fabric.frames() > 0 {
            now = now.latest(self.fabric.poll_timeout().expect("frames are on their way"));
            self.run_at(now);
        }
    }

    fn explain(&self, now: Time) -> Vec<String> {
        self.ends.iter().flat_map(|end| end.fep().explain(now)).take(20).collect()
    }

    fn outcome(self) -> Outcome {
        assert!(self.arrivals.iter().all(|times| *times == 1), "{:?}", self.arrivals);
        for end in &self.ends {
            assert_eq!(end.fep().leaks().next(), None, "endpoint {}", end.fep().addr().0);
        }
        use weft_stack::port::Port as _;
        let sum = |of: &dyn Fn(&Worker<HostPort>) -> u64| self.ends.iter().map(of).sum::<u64>();
        Outcome {
            fabric: self.fabric.counters(),
            left: self.fabric.frames(),
            timeouts: sum(&|end| end.fep().counters().timeouts),
            retransmitted: sum(&|end| end.fep().counters().data_retransmitted),
            trimmed_received: sum(&|end| end.fep().counters().trimmed_received),
            marked_received: sum(&|end| end.fep().counters().ecn_received),
            malformed: sum(&|end| end.counters().malformed),
            sent_by_hosts: sum(&|end| end.port().counters().tx_frames),
            received_by_hosts: sum(&|end| end.port().counters().rx_frames),
            flows: self.flows,
        }
    }
}

/// An endpoint at a port of the fabric with one buffer, so that it sends no packet ahead of the link.
fn end(
    config: &RunConfig,
    host: u32,
    classes: DscpClasses,
    fabric: &mut SoftFabric<MemoryPort>,
) -> Worker<HostPort> {
    let own = place(host);
    let (port, inner) = host_link(config.mtu as usize + HEADERS, own.mac.0, 1).unwrap();
    fabric.attach(HostId(host), own.ip, inner).unwrap();
    let hosts = config.topology.hosts();
    let mut book = AddressBook::new(Addr(host), own, hosts as usize, Strangers::Refuse).unwrap();
    (0..hosts).for_each(|peer| book.insert(Addr(peer), place(peer)).unwrap());
    let rng = Rng::new(config.seed, u64::from(host));
    let endpoint = Arc::new(endpoint(config, (0..hosts).map(HostId)));
    let fep = Fep::new(Addr(host), endpoint, rng, Time::ZERO).unwrap();
    let link = LinkConfig { classes, ..LinkConfig::default() };
    Worker::new(fep, port, book, link, Clock::system(Time::ZERO)).unwrap()
}

/// Runs the program of `config` until all ranks have finished and all connections are closed. Panics if that fails, or if
/// bytes arrive other than they were sent. Returns the ranks in their order.
pub(crate) fn run_ranks(config: &RunConfig) -> Vec<RankRecord> {
    let job = config.job.as_ref().expect("a program");
    let options = SoftOptions::default();
    let mut fabric = SoftFabric::new(config, &FaultPlan::default(), options, Time::ZERO).unwrap();
    let host = |number| {
        let mut end = end(config, number, options.classes, &mut fabric);
        let ranks = HostRanks::new(job, number, config.mode, true, end.fep_mut()).unwrap();
        (end, ranks)
    };
    let mut hosts: Vec<_> = (0..config.topology.hosts()).map(host).collect();
    let mut now = Time::ZERO;
    let limit = Time::ZERO + config.until.expect("a limit");
    while !hosts.iter().all(|(_, ranks)| ranks.is_done()) {
        assert!(
            now.is_before(limit),
            "{:?}",
            hosts.iter().flat_map(|(_, ranks)| ranks.waits()).collect::<Vec<_>>()
        );
        loop {
            let mut some = fabric.poll(now);
            for (end, ranks) in &mut hosts {
                some |= !end.poll_at(now).is_idle();
                while let Some(completion) = end.fep_mut().poll_completion() {
                    ranks.on_completion(now, completion, end.fep_mut());
                    some = true;
                }
                if ranks.poll_timeout().is_some_and(|at| now.is_at_or_after(at)) {
                    ranks.on_timeout(now, end.fep_mut());
                    some = true;
                }
            }
            if !some {
                break;
            }
        }
        let timers = hosts.iter().flat_map(|(end, ranks)| [end.fep().poll_timeout(), ranks.poll_timeout()]);
        let next = timers.flatten().chain(fabric.poll_timeout()).reduce(Time::earliest);
        now = next.expect("something is to happen").latest(now + Span::from_ps(1));
    }
    for (_, ranks) in &hosts {
        assert_eq!((ranks.failures(), ranks.wrong(), ranks.leaks().next()), (&[][..], &[][..], None));
    }
    let mut records: Vec<RankRecord> = hosts.iter().flat_map(|(_, ranks)| ranks.ranks()).collect();
    records.sort_unstable_by_key(|record| record.rank);
    records
}
