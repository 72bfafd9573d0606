//! Links and switches, and the loop that moves packets over them.

use weft_cc::{PS_PER_SEC, Rate, Span, Time};
use weft_stack::fep::Transmit;
use weft_stack::packet::{Class, Packet, Payload};
use weft_stack::rng::Rng;
use weft_stack::wire::pds::Pds;
use weft_stack::wire::ses::Ses;

use super::agenda::{Agenda, Batch, Event};
use super::config::{Overhead, RunConfig, RunError};
use super::faults::{FaultPlan, LinkChange, LinkEvent, LinkFaults};
use super::hosts::Hosts;
use super::packets::{Packets, Transit};
use super::report::{PacketCounters, Progress, RunReport};
use crate::switch::{EgressQueue, Enqueued, Hasher, QueueConfig, Queued, flow_hash};
use crate::topology::{HostId, Node, PortId, SwitchId, Topology};

/// An output port with its link.
struct Port {
    /// When the last packet's last bit leaves.
    busy_until: Time,
    /// Time from the last bit's departure to the arrival in the peer's queue.
    latency: Span,
    peer: Node,
    /// Index of the queue configuration.
    config: u8,
    /// Whether a PortFree event is on the agenda.
    waking: bool,
    up: bool,
    queue: EgressQueue<Transit>,
    rate: LinkRate,
    /// Draws of chance so far, where the link misbehaves.
    draws: u64,
}

/// How long bytes take.
#[derive(Clone, Copy)]
enum LinkRate {
    /// So many picoseconds for each byte, exactly, as at 100 Gbit/s.
    PerByte(u64),
    /// Not a whole number of them.
    Other(Rate),
}

impl LinkRate {
    fn new(rate: Rate) -> LinkRate {
        match rate.as_bps() {
            bps if bps > 0 && (8 * PS_PER_SEC).is_multiple_of(bps) => LinkRate::PerByte(8 * PS_PER_SEC / bps),
            _ => LinkRate::Other(rate),
        }
    }

    #[inline]
    fn time_for(self, bytes: u32) -> Span {
        match self {
            LinkRate::PerByte(ps) => Span::from_ps(ps * u64::from(bytes)),
            LinkRate::Other(rate) => rate.time_for(u64::from(bytes)),
        }
    }
}

/// The whole system.
pub(super) struct Fabric {
    topology: Topology,
    overhead: Overhead,
    agenda: Agenda,
    packets: Packets,
    ports: Vec<Port>,
    /// The few different queue configurations.
    queues: Vec<QueueConfig>,
    hashers: Vec<Hasher>,
    hosts: Hosts,
    seed: u64,
    faults: LinkFaults,
    link_events: Vec<LinkEvent>,
    batch: Batch,
    started: Vec<u32>,
    events: u64,
    dropped: u64,
    bound: (Span, String),
}

/// Headers of the network: preamble to gap, IPv4, UDP.
const NETWORK_OVERHEAD: u32 = 38 + 28;
/// The smallest frame with preamble and gap.
const MIN_FRAME: u32 = 84;
/// PDS bytes that trimming leaves.
const TRIMMED_PDS: u32 = 16;

impl Fabric {
    pub(super) fn new(config: &RunConfig, faults: &FaultPlan) -> Result<Fabric, RunError> {
        let topology = config.topology.clone();
        let (needed, present) = (config.workload.hosts(), topology.hosts());
        if needed > present {
            return Err(RunError::Hosts { needed, present });
        }
        let mut queues = Vec::new();
        let ports = (0..topology.ports().len() as u32)
            .map(|id| Port::new(config, &topology, PortId(id), &mut queues))
            .collect();
        let mut fabric = Fabric {
            overhead: config.wire_overhead,
            agenda: Agenda::new(),
            packets: Packets::default(),
            ports,
            queues,
            hashers: (0..topology.switches()).map(|s| Hasher::new(config.seed, s)).collect(),
            hosts: Hosts::new(config)?,
            faults: faults.all_links,
            link_events: faults.events.clone(),
            seed: config.seed,
            batch: Batch::default(),
            started: Vec::new(),
            events: 0,
            dropped: 0,
            bound: bound(config),
            topology,
        };
        fabric.schedule(config)?;
        Ok(fabric)
    }

    fn schedule(&mut self, config: &RunConfig) -> Result<(), RunError> {
        for (flow, at) in self.hosts.starts() {
            self.agenda.at(at, Event::Start(flow));
        }
        for (index, event) in self.link_events.iter().enumerate() {
            self.agenda.at(event.at, Event::Link(index as u32));
        }
        for failure in config.workload.failures() {
            let (tier, switch, link) = (failure.tier, failure.switch, failure.link);
            let port = self.topology.link_at(tier, switch, link);
            let port = port.ok_or(RunError::NoSuchLink { tier, switch, link })?;
            self.set_link(port, LinkChange::Fail);
        }
        Ok(())
    }

    /// Handles everything that happens at the next instant and returns it; nothing at the end.
    pub(super) fn step(&mut self, until: Option<Time>) -> Option<Time> {
        if self.hosts.is_done() {
            return None;
        }
        let mut batch = std::mem::take(&mut self.batch);
        let now = self.agenda.next(until, &mut batch)?;
        self.events += batch.len() as u64;
        for &event in &batch {
            match event {
                Event::Arrival(port, transit) => self.arrive(now, port, transit),
                Event::PortFree(port) => self.port_free(now, port),
                Event::Timer(host) => self.timer(now, host),
                Event::Start(flow) => self.start(now, flow),
                Event::Link(index) => {
                    let LinkEvent { port, change, .. } = self.link_events[index as usize];
                    self.set_link(port, change);
                }
            }
        }
        self.batch = batch;
        Some(now)
    }

    pub(super) fn events(&self) -> u64 {
        self.events
    }

    pub(super) fn progress(&self, now: Time) -> Progress {
        let (flows_done, flows_total) = (self.hosts.flows_done, self.hosts.flows.len() as u64);
        Progress { now, flows_done, flows_total, events: self.events }
    }

    fn start(&mut self, now: Time, flow: u32) {
        let host = self.hosts.start(now, flow);
        self.serve_host(now, host);
    }

    fn timer(&mut self, now: Time, host: u32) {
        let timer = &mut self.hosts.timers[host as usize];
        if timer.is_some_and(|at| at == now) {
            *timer = None;
        }
        self.hosts.feps[host as usize].on_timeout(now);
        self.serve_host(now, host);
    }

    fn port_free(&mut self, now: Time, port: u32) {
        let state = &mut self.ports[port as usize];
        if now.is_before(state.busy_until) {
            // A packet that arrived at this very instant was faster and has set another wake-up.
            return;
        }
        state.waking = false;
        match self.topology.port(PortId(port)).owner {
            Node::Host(host) => self.transmit(now, host.0),
            Node::Switch(_) => self.serve_port(now, port),
        }
    }

    /// A packet arrives at the far end of link `port`.
    #[inline]
    fn arrive(&mut self, now: Time, port: u32, transit: Transit) {
        match self.ports[port as usize].peer {
            Node::Switch(switch) => self.forward(now, switch, transit),
            Node::Host(host) => self.deliver(now, host, &transit),
        }
    }

    /// A switch puts the packet into one of its output queues.
    fn forward(&mut self, now: Time, switch: SwitchId, mut transit: Transit) {
        transit.hops = transit.hops.saturating_add(1);
        let choices = self.topology.next_ports(switch, HostId(transit.dst));
        let choice = match choices.count {
            1 => 0,
            count => self.hashers[switch.0 as usize].choose(transit.flow_hash, count),
        };
        let id = choices.nth(choice).0;
        let port = &mut self.ports[id as usize];
        let config = &self.queues[usize::from(port.config)];
        match port.queue.enqueue(config, transit) {
            Enqueued::Whole => {}
            Enqueued::Trimmed => self.packets.trim(transit.content),
            Enqueued::Dropped => {
                self.packets.remove(transit.content);
                self.dropped += 1;
                return;
            }
        }
        self.serve_port(now, id);
    }

    /// Sends the next packet of a switch port if the link is free.
    fn serve_port(&mut self, now: Time, id: u32) {
        let port = &mut self.ports[id as usize];
        if now.is_before(port.busy_until) {
            if !port.waking {
                port.waking = true;
                self.agenda.at(port.busy_until, Event::PortFree(id));
            }
            return;
        }
        let Some(transit) = port.queue.dequeue(&self.queues[usize::from(port.config)]) else { return };
        let more = !port.queue.is_empty();
        self.launch(now, id, transit, more);
    }

    /// Puts a packet on the link of port `id`; `more`: wake the port when it has left.
    fn launch(&mut self, now: Time, id: u32, transit: Transit, more: bool) {
        let port = &mut self.ports[id as usize];
        let serialisation = port.rate.time_for(u32::from(transit.size));
        port.busy_until = now + serialisation;
        port.waking = more;
        if more {
            self.agenda.after(serialisation, Event::PortFree(id));
        }
        let (up, delay) = (port.up, serialisation + port.latency);
        if up && self.faults.is_none() {
            self.agenda.after(delay, Event::Arrival(id, transit));
        } else {
            self.launch_badly(now, id, transit, delay, up);
        }
    }

    /// As [`Fabric::launch`], over a link that is down or misbehaves.
    fn launch_badly(&mut self, now: Time, id: u32, mut transit: Transit, delay: Span, up: bool) {
        let faults = self.faults;
        // A generator for each link and draw: links do not disturb each other.
        let port = &mut self.ports[id as usize];
        port.draws += 1;
        let mut rng = Rng::new(self.seed ^ u64::from(id) << 32, port.draws);
        if !up || rng.chance(faults.loss) {
            self.packets.remove(transit.content);
            self.dropped += 1;
            return;
        }
        transit.corrupt |= rng.chance(faults.corrupt);
        if rng.chance(faults.duplicate) {
            let copy = self.packets.duplicate(transit);
            self.agenda.at(now + delay, Event::Arrival(id, copy));
        }
        let held_up = if rng.chance(faults.reorder) { rng.below(1 << 16) } else { 0 };
        let extra = faults.delay.mul_f64(f64::from(held_up) / 65_536.0);
        self.agenda.at(now + delay + extra, Event::Arrival(id, transit));
    }

    /// A host takes a packet in.
    fn deliver(&mut self, now: Time, host: HostId, transit: &Transit) {
        if transit.corrupt {
            // Checksums find it: to the endpoint it never arrived.
            self.dropped += 1;
            return self.packets.remove(transit.content);
        }
        let (packet, payload) = self.packets.arrived(transit);
        self.hosts.feps[host.0 as usize].on_packet(now, packet, payload);
        self.packets.remove(transit.content);
        self.serve_host(now, host.0);
    }

    /// Whatever happened to a host: takes results in, lets it send, sets its timer.
    fn serve_host(&mut self, now: Time, host: u32) {
        let mut started = std::mem::take(&mut self.started);
        self.hosts.collect(now, host, &mut started);
        self.transmit(now, host);
        for flow in started.drain(..) {
            self.start(now, flow);
        }
        self.started = started;
    }

    /// Lets a host send while its link is free, and keeps its timer in step.
    fn transmit(&mut self, now: Time, host: u32) {
        let nic = self.topology.nic(HostId(host)).0;
        let port = &mut self.ports[nic as usize];
        let fep = &mut self.hosts.feps[host as usize];
        if !now.is_before(port.busy_until) {
            if let Some(transmit) = fep.poll_transmit(now) {
                let more = fep.wants_to_transmit();
                let transit = self.pack(host, &transmit);
                self.launch(now, nic, transit, more);
            }
        } else if !port.waking && fep.wants_to_transmit() {
            port.waking = true;
            let at = port.busy_until;
            self.agenda.at(at, Event::PortFree(nic));
        }
        let due = self.hosts.feps[host as usize].poll_timeout();
        let timer = &mut self.hosts.timers[host as usize];
        if let Some(at) = due
            && timer.is_none_or(|known| at.is_before(known))
        {
            *timer = Some(at.latest(now));
            self.agenda.at(at, Event::Timer(host));
        }
    }

    /// Puts what a host sends among the packets on their way.
    fn pack(&mut self, host: u32, transmit: &Transmit) -> Transit {
        let packet = &transmit.packet;
        let bytes = match self.hosts.feps[host as usize].payload(transmit.payload) {
            Payload::Bytes(bytes) if !bytes.is_empty() => Some(bytes.into()),
            _ => None,
        };
        let (size, trimmed_size) = sizes(self.overhead, packet);
        Transit {
            content: self.packets.insert(packet, bytes),
            flow_hash: flow_hash(&packet.net),
            dst: packet.net.dst.0,
            size,
            trimmed_size,
            class: packet.net.class,
            hops: packet.net.hops,
            ecn: packet.net.ecn,
            corrupt: false,
        }
    }

    fn set_link(&mut self, port: PortId, change: LinkChange) {
        let reverse = self.topology.port(port).reverse;
        for port in [port, reverse] {
            self.ports[port.0 as usize].up = change != LinkChange::Fail;
        }
    }

    pub(super) fn into_report(self) -> RunReport {
        let now = self.agenda.now();
        let mut packets = PacketCounters { dropped: self.dropped, ..PacketCounters::default() };
        let mut timeouts = 0;
        for fep in &self.hosts.feps {
            let counters = fep.counters();
            packets.data += counters.data_sent;
            packets.retransmitted += counters.data_retransmitted;
            packets.acks += counters.acks_sent;
            packets.nacks += counters.nacks_sent;
            timeouts += counters.timeouts;
        }
        for port in &self.ports {
            packets.trimmed += port.queue.counters().trimmed;
            packets.ecn_marked += port.queue.counters().marked;
        }
        let done = self.hosts.is_done();
        let leaks = if done { self.hosts.leaks() } else { Vec::new() };
        RunReport {
            packets,
            timeouts,
            events: self.events,
            end: now,
            bound: self.bound,
            stuck: if done && self.hosts.failures.is_empty() { Vec::new() } else { self.hosts.explain(now) },
            payload_errors: self.hosts.payload_errors.clone(),
            leaks,
            flows: self.hosts.flows,
        }
    }
}

impl Queued for Transit {
    fn class(&self) -> Class {
        self.class
    }

    fn size(&self) -> u32 {
        u32::from(self.size)
    }

    fn trimmed_size(&self) -> u32 {
        u32::from(self.trimmed_size)
    }

    fn trim(&mut self, class: Class) {
        self.class = class;
        self.size = self.trimmed_size;
    }

    fn mark(&mut self) {
        self.ecn = true;
    }
}

impl Port {
    fn new(config: &RunConfig, topology: &Topology, id: PortId, queues: &mut Vec<QueueConfig>) -> Port {
        let spec = topology.port(id);
        let limit = config.queue_bytes.or(topology.queue_of(id)).unwrap_or_else(|| config.queue_bytes());
        let queue = config.queue(limit);
        let known = queues.iter().position(|other| *other == queue);
        let index = known.unwrap_or_else(|| {
            queues.push(queue);
            queues.len() - 1
        });
        let switching = match spec.peer {
            Node::Switch(switch) => topology.switch_latency(switch),
            Node::Host(_) => Span::ZERO,
        };
        let seed = config.seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ u64::from(id.0) << 32;
        Port {
            busy_until: Time::ZERO,
            latency: spec.latency + switching,
            peer: spec.peer,
            config: index as u8,
            waking: false,
            up: true,
            queue: EgressQueue::new(matches!(spec.peer, Node::Host(_)), seed),
            rate: LinkRate::new(spec.rate),
            draws: 0,
        }
    }
}

/// A packet's size on the wire, whole and trimmed.
fn sizes(overhead: Overhead, packet: &Packet) -> (u16, u16) {
    let fits = |bytes: u32| bytes.min(u32::from(u16::MAX)) as u16;
    match overhead {
        Overhead::Fixed(bytes) => (fits(packet.payload_len + bytes), fits(bytes)),
        Overhead::Auto => {
            let pds = match &packet.pds {
                Pds::Request(request) => 12 + if request.cc.is_some() { 4 } else { 0 },
                Pds::Ack(ack) => 12 + if ack.cc.is_some() { 20 } else { 0 },
                _ => 16,
            };
            let ses = match &packet.ses {
                Ses::None => 0,
                Ses::Standard(_) => 44,
                _ => 12,
            };
            let whole = NETWORK_OVERHEAD + pds + ses + packet.payload_len;
            (fits(whole.max(MIN_FRAME)), fits((NETWORK_OVERHEAD + TRIMMED_PDS).max(MIN_FRAME)))
        }
    }
}

/// The least time that the workload takes: its bytes with their headers over the busiest links.
fn bound(config: &RunConfig) -> (Span, String) {
    let wire = |bytes: u64| {
        let packets = bytes.div_ceil(u64::from(config.mtu)).max(1);
        bytes + packets * u64::from(config.data_overhead())
    };
    let flows: Vec<_> = config.workload.flows().iter().map(|f| (f.src, f.dst, wire(f.bytes))).collect();
    let bound = config.topology.busiest_link_bound(&flows);
    (bound.time, bound.at.to_string())
}
