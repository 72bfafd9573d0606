//! A fabric of software switches between [`Port`]s: the same topologies, switches and faults as in
//! [`crate::sim`], with real frames. The caller supplies the clock.
//!
//! ```text
//!   host ─ port ─▶ link ─▶ switch: TTL, route, EgressQueue ─▶ link ─▶ … ─▶ link ─▶ port ─ host
//! ```
//!
//! [`SoftFabric::poll`] handles all events up to the given time, in time order: packets leave when the packet
//! before them has left, arrive when the link's delay is over, and are marked, trimmed and spread as in
//! simulation, however late the call comes. A late call only delays frames at the ports: frames from hosts
//! count as sent when a call finds them, and frames to hosts arrive with the first call after they are due.
//! So with a virtual clock the fabric behaves like the simulator's, and in real time its accuracy depends on
//! the punctuality of its thread ([`SoftCounters::latest`]).
//!
//! Frames are copied into the fabric's own buffers when they leave a host, and copied again only when they
//! are trimmed or duplicated. The fabric reads no clock, never waits, and uses only its own random
//! generators.
#![forbid(unsafe_code)]

mod attached;
mod frame_store;
mod host_port;
mod outlet;
mod ticket;

pub use host_port::{HostPort, host_link};

use core::net::IpAddr;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rustc_hash::FxHashMap;
use weft_cc::{Span, Time};
use weft_stack::fep::FepConfig;
use weft_stack::port::{PoolError, Port, RxBurst};
use weft_stack::rng::Rng;
use weft_stack::wire::class::{DscpClasses, TrimPoint};
use weft_stack::wire::edit::{decrement_ttl, mark_ce};
use weft_stack::wire::ethernet;
use weft_stack::wire::trim::{TrimFormat, TrimOutcome, TrimPolicy, trim_frame};

use self::attached::{AttachedHost, MAX_WAITING};
use self::frame_store::{FrameLimits, FrameStore};
use self::outlet::{LinkArrival, Outlet, Sender};
use self::ticket::{FrameHeaders, Ticket};
use crate::sim::{
    FaultPlan, LinkChange, LinkDirections, LinkSpec, Links, MIN_FRAME, RunConfig, RunError, changes,
    mark_seed,
};
use crate::switch::{EgressQueue, Enqueued, Hasher, Queued, Routing, Steering};
use crate::topology::{HostId, Node, PortId, Router, SwitchId, Topology};

/// The stream of the random generator that chooses which bits flip.
const FLIPS: u64 = u64::MAX - 1;

/// Options of the switches beyond the run's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SoftOptions {
    /// The format of trimmed frames.
    pub trim_format: TrimFormat,
    /// The DSCPs of the fabric's classes.
    pub classes: DscpClasses,
    /// Whether all damaged frames are discarded at the host's link, as in simulation. For ports that compute
    /// checksums anew, which would hide the damage. Frames that were trimmed before are discarded in any case.
    pub discard_damaged: bool,
}

/// The configuration of the endpoints of `hosts`, whose addresses are their places in this list, at the ports of a
/// fabric: the simulator's, but with a retransmission timeout four times as long. In real time a thread may lose its
/// core for some milliseconds, although no packet is lost; and a fabric that trims rarely needs timeouts.
pub fn endpoint(config: &RunConfig, hosts: impl IntoIterator<Item = HostId>) -> FepConfig {
    let simulated = config.endpoint_among(hosts);
    simulated.with_zones(|zone| zone.pdc.rto_init = zone.pdc.rto_init.times(4))
}

/// Why a fabric cannot be built or changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SoftError {
    /// The configuration or a fault does not fit the topology.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The frame buffers cannot be allocated.
    #[error(transparent)]
    Memory(#[from] PoolError),
    /// The host does not exist.
    #[error("host {0} does not exist")]
    NoSuchHost(u32),
    /// The host already has a port.
    #[error("host {0} is already attached")]
    Attached(u32),
    /// Another host has the address.
    #[error("{0} is the address of another host")]
    AddressTaken(IpAddr),
}

/// Counters of a fabric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SoftCounters {
    /// Frames that hosts have sent.
    pub entered: u64,
    /// Frames that have arrived at hosts.
    pub delivered: u64,
    /// Frames trimmed by switches.
    pub trimmed: u64,
    /// Frames dropped because a queue was full.
    pub dropped: u64,
    /// Frames that switches have marked. Frames of senders that do not support ECN count as well, although
    /// they cannot carry the mark.
    pub marked: u64,
    /// Frames lost on links.
    pub lost: u64,
    /// Frames in which a link has flipped a bit.
    pub corrupted: u64,
    /// Damaged frames discarded at a host's link, as no checksum would show the damage ([`SoftOptions::discard_damaged`]).
    pub discarded: u64,
    /// Frames dropped because they are not IP, have no attached host as destination, or have used up their
    /// TTL.
    pub refused: u64,
    /// Frames dropped because no buffer was free, in the fabric or at the destination host.
    pub starved: u64,
    /// The longest delay of an event.
    pub latest: Span,
    /// Number of events. [`SoftCounters::lateness`] divided by it is the mean delay of an event.
    pub events: u64,
    /// Sum of the delays of all events.
    pub lateness: Span,
}

impl SoftCounters {
    /// Number of frames that did not reach a host in any form.
    pub fn missing(&self) -> u64 {
        self.dropped + self.lost + self.discarded + self.refused + self.starved
    }
}

/// An event at a link. At one instant, packets arrive before packets leave, so that an arriving packet can be
/// the next to leave. The receiver's port decides the order of simultaneous arrivals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FabricEvent {
    /// A packet arrives. The receiver's port, and the sender's.
    Arrival(u32, u32),
    /// The link behind the port is free.
    Free(u32),
}

struct Switch {
    router: Router,
    hasher: Hasher,
    steering: Steering,
}

/// A fabric between ports of kind `P`, one for each host that takes part.
pub struct SoftFabric<P> {
    topology: Topology,
    options: SoftOptions,
    /// Whether the switches trim.
    trimming: bool,
    routing: Routing,
    seed: u64,
    /// Indexed by port number.
    outlets: Vec<Outlet>,
    switches: Vec<Switch>,
    /// Indexed by host number.
    hosts: Vec<Option<AttachedHost<P>>>,
    by_ip: FxHashMap<IpAddr, u32>,
    frames: FrameStore,
    agenda: BinaryHeap<Reverse<(u64, FabricEvent)>>,
    /// Future changes of links, the next one last.
    changes: Vec<(u64, LinkSpec, LinkChange)>,
    start: Time,
    /// Time since `start` up to which all events have been handled, ps.
    now: u64,
    flips: Rng,
    scratch: RxBurst,
    counters: SoftCounters,
}

impl<P: Port> SoftFabric<P> {
    /// Makes the fabric of `config` with the faults of `plan`. Its time begins at `start`.
    ///
    /// It uses the topology, queues, trimming and marking thresholds of `config`. Frames take their real size
    /// on Ethernet.
    ///
    /// # Errors
    /// A fault names a link that does not exist, or there is no memory for the frame buffers.
    pub fn new(
        config: &RunConfig,
        plan: &FaultPlan,
        options: SoftOptions,
        start: Time,
    ) -> Result<SoftFabric<P>, SoftError> {
        config.check_ports()?;
        let links = Links::new(config, plan);
        let mut changes = changes(&links, &plan.events)?;
        changes.reverse();
        let topology = config.topology.clone();
        let outlets: Vec<Outlet> =
            (0..topology.ports().len() as u32).map(|id| outlet(config, &links, PortId(id))).collect();
        let switch = |id| Switch {
            router: topology.router(id),
            hasher: Hasher::new(config.seed, id.0),
            steering: Steering::new(config.routing, config.seed, id.0),
        };
        Ok(SoftFabric {
            frames: FrameStore::new(&frame_limits(config, &outlets, &changes))?,
            outlets,
            switches: (0..topology.switches()).map(|id| switch(SwitchId(id))).collect(),
            hosts: (0..topology.hosts()).map(|_| None).collect(),
            by_ip: FxHashMap::default(),
            agenda: BinaryHeap::new(),
            changes,
            start,
            now: 0,
            flips: Rng::new(config.seed, FLIPS),
            scratch: RxBurst::new(),
            counters: SoftCounters::default(),
            seed: config.seed,
            trimming: config.trim,
            routing: config.routing,
            topology,
            options,
        })
    }

    /// Attaches `host`: frames for the address `ip` go to `port`.
    ///
    /// # Errors
    /// The host does not exist or is already attached, or another host has the address.
    pub fn attach(&mut self, host: HostId, ip: IpAddr, port: P) -> Result<(), SoftError> {
        let place = self.hosts.get_mut(host.0 as usize).ok_or(SoftError::NoSuchHost(host.0))?;
        if place.is_some() {
            return Err(SoftError::Attached(host.0));
        }
        if self.by_ip.contains_key(&ip) {
            return Err(SoftError::AddressTaken(ip));
        }
        self.by_ip.insert(ip, host.0);
        *place = Some(AttachedHost::new(port));
        Ok(())
    }

    /// Sets a new start time, for a fabric that was made some time before its run. No frame may have entered
    /// yet.
    pub fn begin(&mut self, start: Time) {
        debug_assert!(self.now == 0 && self.counters.entered == 0, "it has begun");
        self.start = start;
    }

    /// Handles all events up to `now`. Returns whether there were any.
    pub fn poll(&mut self, now: Time) -> bool {
        let events = self.counters.events;
        self.run_until(now.since(self.start).as_ps().max(self.now));
        let mut some = self.pull();
        // Frames just pulled may be due at once.
        self.run_until(self.now);
        some |= self.hosts.iter_mut().flatten().fold(false, |some, host| host.push() | some);
        some | (self.counters.events != events)
    }

    /// The time of the next event, if no host sends anything before.
    pub fn poll_timeout(&self) -> Option<Time> {
        let event = self.agenda.peek().map(|Reverse((at, _))| *at);
        let change = self.changes.last().map(|(at, ..)| *at);
        let next = event.into_iter().chain(change).min()?;
        Some(self.start + Span::from_ps(next))
    }

    /// Changes a link, or one direction of it, at once.
    ///
    /// # Errors
    /// The link does not exist, or packets are to be trimmed where nobody trims.
    pub fn change(&mut self, link: LinkDirections, change: LinkChange) -> Result<(), SoftError> {
        let (LinkDirections::Both(port) | LinkDirections::From(port)) = link;
        if port.0 as usize >= self.outlets.len() {
            return Err(SoftError::Run(RunError::NoSuchLink { tier: 0, switch: 0, link: port.0 }));
        }
        change.check(link, &self.topology, self.trimming).map_err(SoftError::Run)?;
        for port in link.ports(&self.topology) {
            self.outlets[port.0 as usize].change(change);
        }
        Ok(())
    }

    /// The counters of the fabric.
    pub fn counters(&self) -> SoftCounters {
        let mut counters = self.counters;
        for outlet in &self.outlets {
            if let Sender::Switch { queue, .. } = &outlet.sender {
                let port = queue.counters();
                counters.trimmed += port.trimmed;
                counters.dropped += port.dropped;
                counters.marked += port.marked;
            }
        }
        counters
    }

    /// Number of frames in queues and on links.
    pub fn frames(&self) -> usize {
        self.frames.len()
    }

    /// The fabric's port of `host`, if it is attached.
    pub fn port(&self, host: HostId) -> Option<&P> {
        self.hosts.get(host.0 as usize)?.as_ref().map(|host| &host.port)
    }

    fn run_until(&mut self, end: u64) {
        loop {
            let event = self.agenda.peek().map_or(u64::MAX, |Reverse((at, _))| *at);
            match self.changes.last() {
                Some(&(at, spec, change)) if at <= event && at <= end => {
                    self.outlets[spec.id as usize].change(change);
                    self.changes.pop();
                }
                _ if event <= end => self.step(end),
                _ => break,
            }
        }
        self.now = end;
    }

    fn step(&mut self, now: u64) {
        let Some(Reverse((at, event))) = self.agenda.pop() else { return };
        let late = Span::from_ps(now - at);
        self.counters.events += 1;
        self.counters.lateness = self.counters.lateness + late;
        self.counters.latest = self.counters.latest.max(late);
        match event {
            FabricEvent::Arrival(_, port) => {
                let outlet = &mut self.outlets[port as usize];
                let Some(ticket) = outlet.arrival() else { return };
                match outlet.to {
                    Node::Host(host) => self.deliver(host, ticket),
                    Node::Switch(switch) => self.forward(at, switch, ticket),
                }
            }
            FabricEvent::Free(port) => {
                self.outlets[port as usize].busy = false;
                self.send(at, port);
            }
        }
    }

    /// Receives frames from the hosts.
    fn pull(&mut self) -> bool {
        let mut some = false;
        for host in 0..self.hosts.len() as u32 {
            let Some(attached) = &mut self.hosts[host as usize] else { continue };
            some |= attached.pull(&mut self.scratch);
            let nic = self.topology.nic(HostId(host)).0;
            if !self.outlets[nic as usize].busy {
                self.send(self.now, nic);
            }
        }
        some
    }

    /// Sends the next packet of `port`, whose link is free, if there is one.
    fn send(&mut self, now: u64, port: u32) {
        let Some(ticket) = self.next(now, port) else { return };
        let departure = self.outlets[port as usize].depart(now, ticket.size(), self.seed);
        self.agenda.push(Reverse((departure.free_at, FabricEvent::Free(port))));
        match departure.arrival {
            Some(arrival) => self.launch(port, &arrival, ticket),
            None => {
                self.counters.lost += 1;
                self.frames.take(ticket.slot);
            }
        }
    }

    /// Takes the next packet of `port`.
    fn next(&mut self, now: u64, port: u32) -> Option<Ticket> {
        match &mut self.outlets[port as usize].sender {
            Sender::Host(host) => {
                let host = *host;
                self.next_of_host(host)
            }
            Sender::Switch { queue, config } => {
                let mut ticket = queue.dequeue(config, now)?;
                if std::mem::take(&mut ticket.to_be_marked)
                    && let Some(frame) = self.frames.frame(ticket.slot)
                {
                    // A frame with damaged headers cannot be marked; the receiver detects the damage.
                    let _ = mark_ce(frame);
                }
                Some(ticket)
            }
        }
    }

    fn next_of_host(&mut self, host: u32) -> Option<Ticket> {
        let attached = self.hosts[host as usize].as_mut()?;
        while let Some(frame) = attached.next() {
            self.counters.entered += 1;
            let headers = FrameHeaders::read(frame);
            let resolved = headers.and_then(|headers| {
                let (src, dst) = (self.by_ip.get(&headers.src)?, self.by_ip.get(&headers.dst)?);
                Some((headers, *src, *dst))
            });
            let Some((headers, src, dst)) = resolved else {
                self.counters.refused += 1;
                continue;
            };
            match self.frames.admit(frame) {
                Some(slot) => {
                    let mut ticket = headers.ticket(&self.options.classes, slot, src, dst);
                    if self.routing == Routing::Exact {
                        ticket.flow_hash = headers.path_number();
                    }
                    return Some(ticket);
                }
                None => self.counters.starved += 1,
            }
        }
        None
    }

    /// Puts a packet on the link behind `port`.
    fn launch(&mut self, port: u32, arrival: &LinkArrival, mut ticket: Ticket) {
        if arrival.corrupt {
            self.flip(&mut ticket);
        }
        if arrival.duplicate {
            match self.frames.duplicate(ticket.slot) {
                Some(slot) => self.carry(port, arrival.on_time, ticket.at(slot)),
                None => self.counters.starved += 1,
            }
        }
        self.carry(port, arrival.at, ticket);
    }

    fn carry(&mut self, port: u32, at: u64, ticket: Ticket) {
        let outlet = &mut self.outlets[port as usize];
        outlet.carry(at, ticket);
        self.agenda.push(Reverse((at, FabricEvent::Arrival(outlet.rank, port))));
    }

    /// Flips a bit behind the Ethernet header, where checksums detect it. Switches still forward the frame to
    /// its destination, because they read the ticket.
    fn flip(&mut self, ticket: &mut Ticket) {
        if !ticket.damage() {
            return;
        }
        self.counters.corrupted += 1;
        let Some(frame) = self.frames.frame(ticket.slot) else { return };
        let bits = (frame.len() - ethernet::HEADER_LEN) as u32 * 8;
        if bits > 0 {
            let bit = self.flips.below(bits) as usize;
            frame[ethernet::HEADER_LEN + bit / 8] ^= 1 << (bit % 8);
        }
    }

    fn deliver(&mut self, host: HostId, ticket: Ticket) {
        let Some(frame) = self.frames.take(ticket.slot) else { return };
        // The UDP checksum of a trimmed frame is that of the whole one, so that its host could not see the damage. A link drops
        // such a frame by Ethernet's check sequence.
        let is_trimmed = ticket.class().is_trimmed();
        if ticket.is_damaged() && (is_trimmed || self.options.discard_damaged) {
            self.counters.discarded += 1;
            return;
        }
        let taken = self.hosts[host.0 as usize].as_mut().is_some_and(|host| host.deliver(frame));
        match taken {
            true => self.counters.delivered += 1,
            false => self.counters.starved += 1,
        }
    }

    /// Forwards a packet that has arrived at a switch.
    fn forward(&mut self, now: u64, switch: SwitchId, mut ticket: Ticket) {
        let hops_left = self.frames.frame(ticket.slot).map(|frame| decrement_ttl(frame));
        if !matches!(hops_left, Some(Ok(1..))) {
            self.counters.refused += 1;
            self.frames.take(ticket.slot);
            return;
        }
        let Switch { router, hasher, steering } = &mut self.switches[switch.0 as usize];
        let ports = router.next_ports(HostId(ticket.dst));
        let choice = match ports.len() {
            1 => 0,
            count => {
                let packet = ticket;
                let backlogs = ports.iter().map(|port| self.outlets[port.0 as usize].backlog(now, &packet));
                steering.choose(*hasher, now, &mut ticket.flow_hash, count, backlogs)
            }
        };
        let port = ports.nth(choice).0;
        let outlet = &mut self.outlets[port as usize];
        let last_hop = matches!(outlet.to, Node::Host(_));
        let is_trimmed = outlet.draws_trim(self.seed, &ticket);
        let Sender::Switch { queue, config } = &mut outlet.sender else { return };
        let enqueued = match is_trimmed {
            false => queue.enqueue(config, now, ticket),
            true => queue.enqueue_trimmed(config, now, ticket),
        };
        match enqueued {
            Enqueued::Whole => {}
            Enqueued::Trimmed => self.trim(ticket.slot, last_hop),
            Enqueued::Dropped => {
                self.frames.take(ticket.slot);
            }
        }
        if !self.outlets[port as usize].busy {
            self.send(now, port);
        }
    }

    /// Trims the frame as the queue has trimmed its ticket.
    fn trim(&mut self, slot: u32, last_hop: bool) {
        let Some(frame) = self.frames.frame(slot) else { return };
        let point = if last_hop { TrimPoint::LastHop } else { TrimPoint::Fabric };
        let policy = TrimPolicy { size: 0, format: self.options.trim_format, point };
        let outcome = trim_frame(frame, &self.options.classes, &policy);
        debug_assert!(
            matches!(outcome, Ok(TrimOutcome::Trimmed(_))),
            "a ticket says that the frame can be trimmed: {outcome:?}"
        );
        if let Ok(TrimOutcome::Trimmed(len)) = outcome {
            self.frames.cut(slot, len);
        }
    }
}

fn outlet(config: &RunConfig, links: &Links<'_>, id: PortId) -> Outlet {
    let port = config.topology.port(id);
    let sender = match port.owner {
        Node::Host(host) => Sender::Host(host.0),
        Node::Switch(_) => {
            let last_hop = matches!(port.peer, Node::Host(_));
            let queue_config = links.queue(id);
            let queue = EgressQueue::new(&queue_config, last_hop, mark_seed(config.seed, id));
            Sender::Switch { queue, config: queue_config }
        }
    };
    Outlet::new(sender, port.peer, port.reverse, links.spec(id))
}

/// The number of buffers for all frames that queues and links can hold, given what `changes` will happen to links.
fn frame_limits(
    config: &RunConfig,
    outlets: &[Outlet],
    changes: &[(u64, LinkSpec, LinkChange)],
) -> FrameLimits {
    /// Frames in bursts and at hosts.
    const SPARE: u64 = 512;
    /// Bytes of Ethernet with a VLAN tag, IPv6, UDP and the longest headers of a data packet, rounded up.
    const HEADERS: usize = 128;
    /// Maximum number of buffers of each size.
    const MAX: u64 = 1 << 18;
    let mut delays = vec![Span::ZERO; outlets.len()];
    for (_, spec, change) in changes {
        if let LinkChange::Delay(delay) = change {
            let longest = &mut delays[spec.id as usize];
            *longest = (*longest).max(*delay);
        }
    }
    let (mut large, mut small) = (SPARE, SPARE);
    for (outlet, delay) in outlets.iter().zip(delays) {
        if matches!(outlet.to, Node::Host(_)) {
            large += MAX_WAITING as u64;
            small += MAX_WAITING as u64;
        }
        let on_link = outlet.capacity(delay);
        large = large.saturating_add(on_link.div_ceil(config.wire_mtu()) + 1);
        small = small.saturating_add(on_link.div_ceil(u64::from(MIN_FRAME)) + 1);
        if let Sender::Switch { config: queue, .. } = &outlet.sender {
            large += u64::from(queue.priorities) * (queue.data_limit.div_ceil(config.wire_mtu()) + 1);
            small += queue.control_limit.div_ceil(u64::from(MIN_FRAME)) + 1;
        }
    }
    let longest = config.mtu as usize + HEADERS;
    FrameLimits { large: large.min(MAX) as usize, small: small.min(MAX) as usize, longest }
}
