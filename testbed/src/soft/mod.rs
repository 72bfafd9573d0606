//! A fabric of software switches between [`Port`]s: the same topologies, switches and faults as in
//! [`crate::sim`], with real frames, driven by whoever has a clock.
//!
//! ```text
//!   host ─ port ─▶ link ─▶ switch: TTL, route, EgressQueue ─▶ link ─▶ … ─▶ link ─▶ port ─ host
//! ```
//!
//! [`SoftFabric::poll`] does all that was to happen until the time that it is given, in the order of that
//! time: packets leave when the one before them has left, arrive when the link's delay is over, and are
//! marked, trimmed and spread as in simulation, however late the call comes. Only what crosses a port is
//! late with it: frames of hosts count as sent when a call finds them, and arrive with the call that finds them
//! due. So with a virtual clock the fabric is the simulator's, and in real time it is as good as its thread is
//! punctual ([`SoftCounters::latest`]).
//!
//! Frames are copied into the fabric's own buffers when they leave a host, and are not copied again but to be cut or
//! duplicated. Nothing here reads a clock, waits, or draws from a generator that is not its own.
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
use weft_stack::pdc::PdcConfig;
use weft_stack::port::{PoolError, Port, RxBurst};
use weft_stack::rng::Rng;
use weft_stack::wire::class::{DscpClasses, TrimPoint};
use weft_stack::wire::edit::{decrement_ttl, mark_ce};
use weft_stack::wire::ethernet;
use weft_stack::wire::trim::{TrimFormat, TrimOutcome, TrimPolicy, trim_frame};

use self::attached::{AttachedHost, MAX_WAITING};
use self::frame_store::{FrameLimits, FrameStore};
use self::outlet::{Delivery, Outlet, Sender};
use self::ticket::{FrameHeaders, Ticket};
use crate::sim::{
    FaultPlan, LinkChange, LinkSpec, Links, MIN_FRAME, RunConfig, RunError, changes, mark_seed,
};
use crate::switch::{EgressQueue, Enqueued, Hasher, Queued};
use crate::topology::{HostId, Node, PortId, Router, SwitchId, Topology};

/// The stream of the generator that chooses the bits that flip.
const FLIPS: u64 = u64::MAX - 1;

/// What the run's configuration does not say about switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SoftOptions {
    /// Which of the two forms trimmed frames have.
    pub trim_format: TrimFormat,
    /// The DSCPs of the fabric's classes.
    pub classes: DscpClasses,
    /// Damaged frames end at the host's link, as in simulation: for ports that write checksums of their own, behind
    /// which nobody could see the damage.
    pub discard_damaged: bool,
}

/// The configuration of endpoints at the ports of a fabric: the simulator's, but with a retransmission timeout
/// four times as long. In real time a thread may be without its core for some milliseconds, during which
/// nothing is lost; and a fabric that trims has little use for timeouts.
pub fn endpoint(config: &RunConfig) -> FepConfig {
    let base = config.endpoint();
    FepConfig { pdc: PdcConfig { rto_init: base.pdc.rto_init.times(4), ..base.pdc }, ..base }
}

/// A fabric that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SoftError {
    /// The links are not as the faults have it.
    #[error(transparent)]
    Run(#[from] RunError),
    /// No memory for frames.
    #[error(transparent)]
    Memory(#[from] PoolError),
    /// A host that is not there.
    #[error("there is no host {0}")]
    NoSuchHost(u32),
    /// A host has its port already.
    #[error("host {0} is attached already")]
    Attached(u32),
    /// Another host has this address.
    #[error("{0} is another host's address")]
    AddressTaken(IpAddr),
}

/// What the fabric has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SoftCounters {
    /// Frames that hosts have sent.
    pub entered: u64,
    /// Frames that have arrived at hosts.
    pub delivered: u64,
    /// Frames trimmed by switches.
    pub trimmed: u64,
    /// Frames dropped for want of room in a queue.
    pub dropped: u64,
    /// Frames marked by switches, whether or not they say so: those of senders that do not react to marks do not.
    pub marked: u64,
    /// Frames lost on links.
    pub lost: u64,
    /// Frames of which links have flipped a bit.
    pub corrupted: u64,
    /// Damaged frames that were not handed to a host ([`SoftOptions::discard_damaged`]).
    pub discarded: u64,
    /// Frames dropped because they are no IP, for no host that is attached, or out of hops.
    pub refused: u64,
    /// Frames dropped for want of a buffer, in the fabric or at the host they were for.
    pub starved: u64,
    /// How much later than it should something has happened, at most.
    pub latest: Span,
    /// Things that have happened, and the sum of their delays: the mean delay is their quotient.
    pub events: u64,
    /// See [`SoftCounters::events`].
    pub lateness: Span,
}

impl SoftCounters {
    /// Frames that did not reach a host whole, trimmed or damaged.
    pub fn missing(&self) -> u64 {
        self.dropped + self.lost + self.discarded + self.refused + self.starved
    }
}

/// What happens next at a link. At one instant packets arrive before others leave, so that they are in time to be
/// chosen; among arrivals the receiver's ports decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FabricEvent {
    /// A packet arrives; the receiver's port, and the sender's.
    Arrival(u32, u32),
    /// The link behind the port is free.
    Free(u32),
}

struct Switch {
    router: Router,
    hasher: Hasher,
}

/// A fabric between ports of kind `P`, one for each host that takes part.
pub struct SoftFabric<P> {
    topology: Topology,
    options: SoftOptions,
    seed: u64,
    /// By the port's number.
    outlets: Vec<Outlet>,
    switches: Vec<Switch>,
    /// By the host's number.
    hosts: Vec<Option<AttachedHost<P>>>,
    by_ip: FxHashMap<IpAddr, u32>,
    frames: FrameStore,
    agenda: BinaryHeap<Reverse<(u64, FabricEvent)>>,
    /// Changes of links, those to come: the next one is the last.
    changes: Vec<(u64, LinkSpec, LinkChange)>,
    start: Time,
    /// Time since `start` until which all has happened, ps.
    now: u64,
    flips: Rng,
    scratch: RxBurst,
    counters: SoftCounters,
}

impl<P: Port> SoftFabric<P> {
    /// The fabric that `config` describes, with what goes wrong in it, whose time begins at `start`.
    ///
    /// Of `config` it takes topology, queues, trimming and marks. Frames cost what they cost on Ethernet.
    ///
    /// # Errors
    /// Faults of links that there are not.
    pub fn new(
        config: &RunConfig,
        plan: &FaultPlan,
        options: SoftOptions,
        start: Time,
    ) -> Result<SoftFabric<P>, SoftError> {
        let links = Links::new(config, plan);
        let mut changes = changes(&links, &plan.events)?;
        changes.reverse();
        let topology = config.topology.clone();
        let outlets: Vec<Outlet> =
            (0..topology.ports().len() as u32).map(|id| outlet(config, &links, PortId(id))).collect();
        let switch = |id| Switch { router: topology.router(id), hasher: Hasher::new(config.seed, id.0) };
        Ok(SoftFabric {
            frames: FrameStore::new(&frame_limits(config, &outlets))?,
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
            topology,
            options,
        })
    }

    /// Gives `host` its port, and the address that frames for it have.
    ///
    /// # Errors
    /// No such host, or it or the address is taken.
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

    /// Time begins anew at `start`: for a fabric that was made some time before its run. Nothing may have
    /// happened yet.
    pub fn begin(&mut self, start: Time) {
        debug_assert!(self.now == 0 && self.counters.entered == 0, "it has begun");
        self.start = start;
    }

    /// Does what is to happen until `now`. Returns whether there was anything.
    pub fn poll(&mut self, now: Time) -> bool {
        let events = self.counters.events;
        self.run_until(now.since(self.start).as_ps().max(self.now));
        let mut some = self.pull();
        // What has been pulled may be without delay.
        self.run_until(self.now);
        some |= self.hosts.iter_mut().flatten().fold(false, |some, host| host.push() | some);
        some | (self.counters.events != events)
    }

    /// When something happens next, if no host sends anything before.
    pub fn poll_timeout(&self) -> Option<Time> {
        let event = self.agenda.peek().map(|Reverse((at, _))| *at);
        let change = self.changes.last().map(|(at, ..)| *at);
        let next = event.into_iter().chain(change).min()?;
        Some(self.start + Span::from_ps(next))
    }

    /// Something becomes of a link, in both directions, at once. `port` is either of its ends.
    ///
    /// # Errors
    /// There is no such link.
    pub fn change(&mut self, port: PortId, change: LinkChange) -> Result<(), SoftError> {
        let Some(spec) = self.topology.ports().get(port.0 as usize) else {
            return Err(SoftError::Run(RunError::NoSuchLink { tier: 0, switch: 0, link: port.0 }));
        };
        for id in [port, spec.reverse] {
            self.outlets[id.0 as usize].change(change);
        }
        Ok(())
    }

    /// What the fabric has done.
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

    /// Frames that are in queues and on links.
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

    /// Takes in what hosts have sent.
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

    /// The link behind `port` is free: the next packet leaves, if there is one.
    fn send(&mut self, now: u64, port: u32) {
        let Some(ticket) = self.next(now, port) else { return };
        let departure = self.outlets[port as usize].depart(now, ticket.size(), self.seed);
        self.agenda.push(Reverse((departure.free_at, FabricEvent::Free(port))));
        match departure.delivery {
            Some(delivery) => self.launch(port, &delivery, ticket),
            None => {
                self.counters.lost += 1;
                self.frames.take(ticket.slot);
            }
        }
    }

    /// The packet that leaves next by `port`.
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
                    // Damaged headers cannot be marked; the receiver finds the damage.
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
                Some(slot) => return Some(headers.ticket(&self.options.classes, slot, src, dst)),
                None => self.counters.starved += 1,
            }
        }
        None
    }

    /// A packet is on the link behind `port`.
    fn launch(&mut self, port: u32, delivery: &Delivery, mut ticket: Ticket) {
        if delivery.corrupt {
            self.flip(&mut ticket);
        }
        if delivery.duplicate {
            match self.frames.duplicate(ticket.slot) {
                Some(slot) => self.carry(port, delivery.on_time, ticket.at(slot)),
                None => self.counters.starved += 1,
            }
        }
        self.carry(port, delivery.at, ticket);
    }

    fn carry(&mut self, port: u32, at: u64, ticket: Ticket) {
        let outlet = &mut self.outlets[port as usize];
        outlet.carry(at, ticket);
        self.agenda.push(Reverse((at, FabricEvent::Arrival(outlet.rank, port))));
    }

    /// Flips a bit behind the Ethernet header, where checksums find it. Switches have read the header once and
    /// forward the frame to where it was for.
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
        if self.options.discard_damaged && ticket.is_damaged() {
            self.counters.discarded += 1;
            return;
        }
        let taken = self.hosts[host.0 as usize].as_mut().is_some_and(|host| host.deliver(frame));
        match taken {
            true => self.counters.delivered += 1,
            false => self.counters.starved += 1,
        }
    }

    /// A packet has arrived at a switch.
    fn forward(&mut self, now: u64, switch: SwitchId, ticket: Ticket) {
        let hops_left = self.frames.frame(ticket.slot).map(|frame| decrement_ttl(frame));
        if !matches!(hops_left, Some(Ok(1..))) {
            self.counters.refused += 1;
            self.frames.take(ticket.slot);
            return;
        }
        let switch = &self.switches[switch.0 as usize];
        let choices = switch.router.next_ports(HostId(ticket.dst));
        let choice = match choices.count {
            1 => 0,
            count => switch.hasher.choose(ticket.flow_hash, count),
        };
        let port = choices.nth(choice).0;
        let outlet = &mut self.outlets[port as usize];
        let last_hop = matches!(outlet.to, Node::Host(_));
        let Sender::Switch { queue, config } = &mut outlet.sender else { return };
        match queue.enqueue(config, now, ticket) {
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

    /// Does to the frame what the queue has done to its ticket.
    fn trim(&mut self, slot: u32, last_hop: bool) {
        let Some(frame) = self.frames.frame(slot) else { return };
        let point = if last_hop { TrimPoint::LastHop } else { TrimPoint::Fabric };
        let policy = TrimPolicy { size: 0, format: self.options.trim_format, point };
        let outcome = trim_frame(frame, &self.options.classes, &policy);
        debug_assert!(matches!(outcome, Ok(TrimOutcome::Trimmed(_))), "tickets tell: {outcome:?}");
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
            let queue = EgressQueue::new(last_hop, mark_seed(config.seed, id));
            Sender::Switch { queue, config: links.queue(id) }
        }
    };
    Outlet::new(sender, port.peer, port.reverse, links.spec(id))
}

/// Buffers for all that queues and links can hold.
fn frame_limits(config: &RunConfig, outlets: &[Outlet]) -> FrameLimits {
    /// Frames in bursts, and in the hands of hosts.
    const SPARE: u64 = 512;
    /// Ethernet with a tag, IPv6, UDP, and the longest headers of a data packet, rounded up.
    const HEADERS: usize = 128;
    /// Beyond this, buffers are shared.
    const MAX: u64 = 1 << 18;
    let (mut large, mut small) = (SPARE, SPARE);
    for outlet in outlets {
        if matches!(outlet.to, Node::Host(_)) {
            large += MAX_WAITING as u64;
            small += MAX_WAITING as u64;
        }
        let on_link = outlet.capacity();
        large += on_link.div_ceil(config.wire_mtu()) + 1;
        small += on_link.div_ceil(u64::from(MIN_FRAME)) + 1;
        if let Sender::Switch { config: queue, .. } = &outlet.sender {
            large += queue.data_limit.div_ceil(config.wire_mtu()) + 1;
            small += queue.control_limit.div_ceil(u64::from(MIN_FRAME)) + 1;
        }
    }
    let longest = config.mtu as usize + HEADERS;
    FrameLimits { large: large.min(MAX) as usize, small: small.min(MAX) as usize, longest }
}
