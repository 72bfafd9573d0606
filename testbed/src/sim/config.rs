//! The configuration of a run.

use std::sync::Arc;

use weft_cc::constant_rate::ConstantRate;
use weft_cc::registry::Needs;
use weft_cc::{CcChoice, CcParams, Delays, Rate, Span, Time};
use weft_stack::fep::{
    BusyTimeout, CallError, ConfigError, ConnectOptions, ConnectionId, Fep, FepConfig, TrafficClass, Windows,
    Zone, ZoneId, Zones,
};
use weft_stack::packet::Addr;
use weft_stack::pdc::PdcConfig;
use weft_stack::spray::LbChoice;
use weft_stack::wire::class::PRIORITIES;
use weft_stack::wire::pds::DeliveryMode;
use weft_stack::wire::{MAX_IPV4_HEADERS, crc};

use super::faults::Share;
use super::receiver::HostModel;
use crate::goal::Job;
use crate::switch::{PhantomConfig, QueueConfig, Routing};
use crate::topology::{HostId, PortId, Reach, Topology};
use crate::workload::{Background, Connection, Workload};

/// Bytes that a packet takes on the wire beyond its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overhead {
    /// The real headers over Ethernet, IPv4 and UDP, with preamble, FCS and inter-packet gap.
    Auto,
    /// A fixed number of bytes. Control packets and trimmed packets take exactly that many.
    Fixed(u32),
}

/// The payload of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadMode {
    /// Packets carry only a length.
    Virtual,
    /// Packets carry bytes, which are compared at the receiver.
    Real,
}

/// Where switches begin to mark packets, and where they mark every packet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Thresholds {
    /// Fractions of the BDP, rounded up to whole packets.
    Bdp(f64, f64),
    /// Bytes on the wire.
    Bytes(u64, u64),
}

/// Phantom queues, see [`PhantomConfig`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PhantomQueues {
    /// The fraction of the link's rate at which a phantom queue drains.
    pub drain: f64,
    /// Marking thresholds; `None`: those of the port's queue.
    pub ecn: Option<Thresholds>,
}

/// Settings of the output ports of one class ([`Topology::classes`]).
#[derive(Clone, Debug, PartialEq, Default)]
pub struct PortClass {
    /// The name of the class.
    pub name: String,
    /// Size of their data queues, bytes; `None`: as of other ports.
    pub queue_bytes: Option<u64>,
    /// Their ECN marking thresholds; `None`: as of other ports.
    pub ecn: Option<Thresholds>,
    /// Their phantom queues; `None`: as of other ports.
    pub phantom: Option<PhantomQueues>,
}

/// The algorithms towards the hosts of one zone.
#[derive(Clone, Debug)]
pub struct Algorithms {
    /// Congestion control.
    pub cc: CcChoice,
    /// Load balancing.
    pub lb: LbChoice,
}

/// Times that endpoints wait; `None`: what fits the fabric or, where that does not matter, the default of endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Timers {
    /// [`PdcConfig::rto_init`]. By default the time to drain full queues, and a round trip.
    pub rto_init: Option<Span>,
    /// [`FepConfig::idle_timeout`].
    pub idle_timeout: Option<Span>,
}

/// The complete description of a run.
#[derive(Clone, Debug)]
pub struct RunConfig {
    /// The hosts, switches and links of the fabric.
    pub topology: Topology,
    /// The flows. Shared, not copied, because there may be millions.
    pub workload: Arc<Workload>,
    /// Ranks that execute a program, in place of flows: the workload has none then.
    pub job: Option<Arc<Job>>,
    /// Congestion control algorithm.
    pub cc: CcChoice,
    /// Load balancing algorithm.
    pub lb: LbChoice,
    /// Algorithms towards hosts of the sender's own group ([`Topology::group_of`]), which then make up a zone with its
    /// own base RTT; `None`: hosts are one zone, with [`RunConfig::cc`] and [`RunConfig::lb`].
    pub intra: Option<Algorithms>,
    /// Which connections share a congestion context.
    pub windows: Windows,
    /// Number of entropy values that the load balancer chooses from.
    pub paths: u16,
    /// Payload bytes of a full packet.
    pub mtu: u32,
    /// Bytes that packets take on the wire beyond their payload.
    pub wire_overhead: Overhead,
    /// Whether switches trim data packets that find no room; otherwise they drop them.
    pub trim: bool,
    /// Size of the data queue of each switch port, or of each priority there, bytes; `None`: 1 BDP, rounded up to whole packets.
    pub queue_bytes: Option<u64>,
    /// ECN marking thresholds; `None`: switches do not mark.
    pub ecn: Option<Thresholds>,
    /// Phantom queues beside the data queues of switches, if any.
    pub phantom: Option<PhantomQueues>,
    /// Number of priorities that switches tell apart, 1 to 8: each switch port has a data queue for each.
    pub priorities: u8,
    /// Classes of ports with settings of their own.
    pub port_classes: Vec<PortClass>,
    /// Whether packets carry real bytes.
    pub payload: PayloadMode,
    /// Seed of all random decisions.
    pub seed: u64,
    /// Virtual time at which the run is cut off, if it has not ended before.
    pub until: Option<Span>,
    /// Number of accepted bytes after which a receiver acknowledges.
    pub ack_every: u32,
    /// How long a connection may be without progress while its peer answers.
    pub busy_timeout: BusyTimeout,
    /// Delivery mode of all connections.
    pub mode: DeliveryMode,
    /// Whether packets end with a CRC-32C, where they are frames.
    pub crc: bool,
    /// Times that endpoints wait.
    pub timers: Timers,
    /// How switches choose among ports that lead to a destination equally well.
    pub routing: Routing,
    /// What hosts need to process received packets; `None`: no time.
    pub host: Option<HostModel>,
}

/// How the connections of a workload are opened.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    mode: DeliveryMode,
    /// The number of the zone of the first kind of background traffic.
    first_background: u8,
}

impl Opening {
    /// Opens `connection` to its destination, which is `peer` to its source's endpoint `fep`. Its traffic class is the
    /// number of its priority.
    ///
    /// # Errors
    /// As [`Fep::connect`].
    pub fn open(
        &self,
        connection: &Connection,
        now: Time,
        peer: Addr,
        fep: &mut Fep,
    ) -> Result<ConnectionId, CallError> {
        let class = TrafficClass(connection.priority.number());
        let options = ConnectOptions::default().mode(self.mode).class(class);
        match connection.background {
            None => fep.connect(now, peer, options),
            Some(kind) => {
                let zone = ZoneId::new(self.first_background + kind.index() as u8);
                fep.connect_in(zone, now, peer, options)
            }
        }
    }
}

/// Why a run is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// The workload has more hosts than the topology.
    #[error("the workload has {needed} hosts, the topology {present}")]
    Hosts {
        /// Hosts of the workload.
        needed: u32,
        /// Hosts of the topology.
        present: u32,
    },
    /// There are both flows and ranks.
    #[error("a run has flows or ranks with a program, not both")]
    FlowsAndRanks,
    /// The endpoints refuse their configuration.
    #[error(transparent)]
    Endpoint(#[from] ConfigError),
    /// An endpoint refuses the process of a rank.
    #[error(transparent)]
    Process(#[from] CallError),
    /// Packets would arrive at the instant at which they are sent, so there is no lookahead.
    #[error(
        "packets take no time over a link: give links a latency or a lower rate, or packets more overhead"
    )]
    NoLatency,
    /// Packets are to be trimmed where nobody trims.
    #[error(
        "a link event trim=P needs switches that trim, and a direction of the link in which a switch sends; expected \
         trimming to be on, and dir=down for the link of a host"
    )]
    NobodyTrims,
    /// Switch ports have more different queue configurations than one byte can number.
    #[error("switch ports have more than 256 different queue configurations")]
    QueueKinds,
    /// There are settings for a class of ports that the topology does not have.
    #[error("there are no ports of class `{class}`; the topology has the classes {known}")]
    NoSuchClass {
        /// The class.
        class: String,
        /// The classes of the topology.
        known: String,
    },
    /// Switches are to tell a number of priorities apart that they cannot.
    #[error("switches tell {0} priorities apart; expected 1 to {PRIORITIES}")]
    Priorities(u8),
    /// Flows have higher priorities than switches tell apart.
    #[error("flows need {needed} priorities, switches have {present}; expected at least {needed}")]
    TooFewPriorities {
        /// Priorities of the workload.
        needed: u8,
        /// Priorities of the switches.
        present: u8,
    },
    /// Background traffic has an entropy that balancers do not use.
    #[error(
        "background traffic takes path {path}, but there are {paths}; expected a number below that, or more paths"
    )]
    NoSuchPath {
        /// The entropy of the background traffic.
        path: u16,
        /// Number of entropies.
        paths: u16,
    },
    /// A failure names a link that does not exist.
    #[error("no link {link} at switch {switch} of tier {tier}")]
    NoSuchLink {
        /// The tier of the switch.
        tier: u8,
        /// The number of the switch within the tier.
        switch: u32,
        /// The number of the link at the switch.
        link: u32,
    },
}

/// Thresholds that no queue reaches.
const NO_MARKS: (u64, u64) = (u64::MAX - 1, u64::MAX);

/// Bytes of the network headers: Ethernet from preamble to gap, IPv4, UDP.
pub(super) const NETWORK_OVERHEAD: u32 = ETHERNET + IP_UDP;
/// Bytes of the smallest frame with preamble and gap.
pub(crate) const MIN_FRAME: u32 = 84;
/// PDS bytes that remain after trimming.
pub(super) const TRIMMED_PDS: u32 = 16;

/// Bytes of preamble, start-of-frame delimiter, Ethernet header, FCS and gap.
const ETHERNET: u32 = 8 + 14 + 4 + 12;
/// Bytes of the IPv4 and UDP headers.
const IP_UDP: u32 = 20 + 8;
/// Bytes of a RUD request with congestion control fields and of a standard SES request.
const DATA_HEADERS: u32 = weft_stack::wire::MAX_HEADERS as u32;

/// Bytes of control and trimmed packets sent per byte of data while both wait (UET asks that the class of
/// trimmed packets get at most half of the link). Under strict priority, trimmed headers would starve data
/// forever where many hosts share a slow link.
const CONTROL_WEIGHT: u32 = 1;

impl RunConfig {
    /// A run of `workload` over `topology` with the default of every option of `weft run`.
    pub fn new(topology: Topology, workload: impl Into<Arc<Workload>>) -> RunConfig {
        RunConfig {
            topology,
            workload: workload.into(),
            job: None,
            cc: CcChoice::default(),
            lb: LbChoice::default(),
            intra: None,
            windows: Windows::default(),
            // UET suggests 64 to 256; the published results of the balancers were measured with 128.
            paths: 128,
            mtu: 4096,
            wire_overhead: Overhead::Auto,
            trim: true,
            queue_bytes: None,
            ecn: Some(Thresholds::Bdp(0.2, 0.8)),
            phantom: None,
            priorities: 1,
            port_classes: Vec::new(),
            payload: PayloadMode::Virtual,
            seed: 1,
            until: None,
            ack_every: 16 * 1024,
            busy_timeout: BusyTimeout::default(),
            mode: DeliveryMode::Rud,
            crc: false,
            timers: Timers::default(),
            routing: Routing::default(),
            host: None,
        }
    }

    /// Bytes that a data packet takes on the wire beyond its payload.
    pub fn data_overhead(&self) -> u32 {
        match self.wire_overhead {
            Overhead::Fixed(bytes) => bytes,
            Overhead::Auto if self.uses_credit() => ETHERNET + IP_UDP + DATA_HEADERS,
            Overhead::Auto => ETHERNET + IP_UDP + DATA_HEADERS - 4,
        }
    }

    /// Whether credit is in use in any zone. Packets of all zones count for the same number of bytes.
    fn uses_credit(&self) -> bool {
        self.cc.uses_credit() || self.intra.as_ref().is_some_and(|intra| intra.cc.uses_credit())
    }

    /// Bytes that an acknowledgement takes on the wire.
    fn ack_size(&self) -> u32 {
        match self.wire_overhead {
            Overhead::Fixed(bytes) => bytes,
            Overhead::Auto => ETHERNET + IP_UDP + 32,
        }
    }

    /// Bytes that the smallest acknowledgement takes on the wire.
    pub(super) fn smallest_ack(&self) -> u32 {
        match self.wire_overhead {
            Overhead::Fixed(bytes) => bytes,
            Overhead::Auto => MIN_FRAME,
        }
    }

    /// Number of hosts that the run needs: those of the workload, and those with ranks.
    pub fn hosts(&self) -> u32 {
        self.workload.hosts().max(self.job.as_ref().map_or(0, |job| job.hosts()))
    }

    /// Source, destination and bytes of each flow, or of each message between ranks of different hosts.
    pub fn transfers(&self) -> impl Iterator<Item = (HostId, HostId, u64)> + '_ {
        let flows = self.workload.flows().iter().map(|flow| (flow.src, flow.dst, flow.bytes));
        let messages = self.job.iter().flat_map(|job| {
            let host = |rank| HostId(job.host_of(rank));
            job.messages()
                .map(move |message| (host(message.from), host(message.to), u64::from(message.bytes)))
        });
        flows.chain(messages)
    }

    /// Bytes of the longest packet from IPv4 on, where packets are frames.
    pub fn longest_packet(&self) -> usize {
        self.mtu as usize + MAX_IPV4_HEADERS + if self.crc { crc::LEN } else { 0 }
    }

    /// Bytes of a full packet on the wire.
    pub fn wire_mtu(&self) -> u64 {
        u64::from(self.mtu) + u64::from(self.data_overhead())
    }

    /// Round-trip time of the longest path in an idle network.
    pub fn network_rtt(&self) -> Span {
        self.topology.network_rtt(self.wire_mtu(), u64::from(self.ack_size()))
    }

    /// Round-trip time of the longest path within a group of hosts ([`Topology::group_of`]) in an idle network.
    pub fn group_rtt(&self) -> Span {
        self.topology.group_rtt(self.wire_mtu(), u64::from(self.ack_size()))
    }

    fn rtt_of(&self, reach: Reach) -> Span {
        match reach {
            Reach::Network => self.network_rtt(),
            Reach::Group => self.group_rtt(),
        }
    }

    /// Bandwidth-delay product of the longest path, bytes.
    pub fn bdp(&self) -> u64 {
        self.bdp_of(Reach::Network)
    }

    /// Bandwidth-delay product of the longest path of the fabric or of a group, bytes.
    pub fn bdp_of(&self, reach: Reach) -> u64 {
        self.topology.host_rate().bytes_in(self.rtt_of(reach))
    }

    /// Size of the data queue of a switch port for which nothing else is said, bytes.
    pub fn queue_bytes(&self) -> u64 {
        self.usual_queue(Reach::Network)
    }

    fn usual_queue(&self, reach: Reach) -> u64 {
        let packet = self.wire_mtu();
        self.queue_bytes.unwrap_or_else(|| self.bdp_of(reach).div_ceil(packet) * packet)
    }

    /// The ECN marking thresholds in bytes of a switch port for which nothing else is said.
    pub fn ecn_bytes(&self) -> (u64, u64) {
        self.ecn.map_or(NO_MARKS, |thresholds| self.in_bytes(thresholds, Reach::Network))
    }

    /// The marking thresholds in bytes of phantom queues for which nothing else is said.
    pub fn phantom_bytes(&self) -> Option<(u64, u64)> {
        let thresholds = self.phantom?.ecn.or(self.ecn);
        Some(thresholds.map_or(NO_MARKS, |thresholds| self.in_bytes(thresholds, Reach::Network)))
    }

    fn in_bytes(&self, thresholds: Thresholds, reach: Reach) -> (u64, u64) {
        let packet = self.wire_mtu();
        let packets = self.bdp_of(reach).div_ceil(packet) as f64;
        let of_bdp = |fraction: f64| (packets * fraction).ceil() as u64 * packet;
        match thresholds {
            Thresholds::Bdp(low, high) => (of_bdp(low), of_bdp(high)),
            Thresholds::Bytes(low, high) => (low, high),
        }
    }

    /// The settings of the class of `port`, if it has its own.
    fn class_of(&self, port: PortId) -> Option<&PortClass> {
        if self.port_classes.is_empty() {
            return None;
        }
        let class = self.topology.classes().get(self.topology.class_of(port)?).copied()?;
        self.port_classes.iter().find(|own| own.name == class)
    }

    /// Size of the data queue of a switch port at its full rate, bytes: that of its class, that of all ports, or that of
    /// the topology's file, whichever is given, in this order; otherwise 1 BDP.
    pub fn queue_of(&self, port: PortId) -> u64 {
        let class = self.class_of(port).and_then(|class| class.queue_bytes);
        let given = class.or(self.queue_bytes).or_else(|| self.topology.queue_of(port));
        given.unwrap_or_else(|| self.usual_queue(self.topology.reach_of(port)))
    }

    /// The ECN marking thresholds of a switch port at its full rate, bytes: those of its class, of the topology's file, or
    /// of all ports, whichever are given, in this order.
    pub fn ecn_of(&self, port: PortId) -> (u64, u64) {
        let reach = self.topology.reach_of(port);
        if let Some(thresholds) = self.class_of(port).and_then(|class| class.ecn) {
            return self.in_bytes(thresholds, reach);
        }
        let file = self.topology.ecn_of(port);
        file.unwrap_or_else(|| self.ecn.map_or(NO_MARKS, |thresholds| self.in_bytes(thresholds, reach)))
    }

    /// The fraction of the link's rate at which the phantom queue of a switch port drains, and its marking thresholds at the
    /// full rate, bytes; `None` if it has none.
    pub fn phantom_of(&self, port: PortId) -> Option<(f64, (u64, u64))> {
        let phantom = self.class_of(port).and_then(|class| class.phantom).or(self.phantom)?;
        let own = phantom.ecn.map(|thresholds| self.in_bytes(thresholds, self.topology.reach_of(port)));
        Some((phantom.drain, own.unwrap_or_else(|| self.ecn_of(port))))
    }

    /// The queue of a switch port whose link has the remaining rate `rate`, which is `share` of the full rate.
    pub(super) fn queue(&self, port: PortId, rate: Rate, share: Share) -> QueueConfig {
        let (ecn_low, ecn_high) = self.ecn_of(port);
        let data_limit = self.queue_of(port);
        let data_limit = share.of(data_limit).max(data_limit.min(self.wire_mtu()));
        let phantom = self
            .phantom_of(port)
            .map(|(drain, (low, high))| PhantomConfig::new(rate, drain, (share.of(low), share.of(high))));
        QueueConfig {
            data_limit,
            control_limit: data_limit.saturating_mul(2).max(64 * 1024),
            ecn_low: share.of(ecn_low),
            ecn_high: share.of(ecn_high),
            trim: self.trim,
            control_weight: Some(CONTROL_WEIGHT),
            phantom,
            priorities: self.priorities,
        }
    }

    /// Refuses settings for classes of ports that the topology does not have, and priorities that switches do not have.
    pub(crate) fn check_ports(&self) -> Result<(), RunError> {
        let (needed, present) = (self.workload.priorities(), self.priorities);
        if !(1..=PRIORITIES).contains(&usize::from(present)) {
            return Err(RunError::Priorities(present));
        }
        if needed > present {
            return Err(RunError::TooFewPriorities { needed, present });
        }
        let named = self.workload.backgrounds().iter().filter_map(|kind| kind.path);
        if let Some(path) = named.max().filter(|path| *path >= self.paths) {
            return Err(RunError::NoSuchPath { path, paths: self.paths });
        }
        let known = self.topology.classes();
        match self.port_classes.iter().find(|class| !known.contains(&class.name.as_str())) {
            None => Ok(()),
            Some(class) => Err(RunError::NoSuchClass { class: class.name.clone(), known: known.join(", ") }),
        }
    }

    /// The time in which the queues of the port that takes longest can drain, of those that paths within `reach` may pass: for a group,
    /// all but those between two groups.
    fn longest_drain(&self, reach: Reach) -> Span {
        if !self.topology.is_graph() && self.port_classes.is_empty() {
            let drain = self.topology.slowest_rate().time_for(self.queue_bytes());
            return drain.times(u64::from(self.priorities));
        }
        let ports = (self.topology.hosts()..self.topology.ports().len() as u32).map(PortId);
        let within = ports.filter(|port| match reach {
            Reach::Network => true,
            Reach::Group => !self.topology.joins_groups(*port),
        });
        let drain = |port| self.topology.port(port).rate.time_for(self.queue_of(port));
        within.map(drain).max().unwrap_or(Span::ZERO).times(u64::from(self.priorities))
    }

    /// The network parameters for congestion control.
    pub fn cc_params(&self) -> CcParams {
        CcParams {
            mtu: self.mtu,
            overhead: self.data_overhead(),
            link_rate: self.topology.host_rate(),
            network_rtt: self.network_rtt(),
            trimming: self.trim,
            delays: Delays::Known,
        }
    }

    /// The configuration of the endpoints of all hosts, which have their hosts' numbers as addresses.
    pub fn endpoint(&self) -> FepConfig {
        self.endpoint_among((0..self.topology.hosts()).map(HostId))
    }

    /// The configuration of the endpoints of `hosts`, whose addresses are their places in this list.
    pub fn endpoint_among(&self, hosts: impl IntoIterator<Item = HostId>) -> FepConfig {
        let others = self.zone(&self.cc, &self.lb, Reach::Network);
        let mut zones = match &self.intra {
            None => Zones::one(others),
            Some(Algorithms { cc, lb }) => {
                let groups = hosts.into_iter().map(|host| self.topology.group_of(host));
                Zones::grouped(others, self.zone(cc, lb, Reach::Group), groups.collect())
            }
        };
        for kind in self.workload.backgrounds() {
            // At most `MAX_BACKGROUNDS`, so there are numbers for all.
            let _ = zones.add(self.background_zone(kind));
        }
        let base = FepConfig::new(&self.cc, &self.cc_params());
        // In slow motion an answer may take longer than the usual silence of a peer that has gone.
        let idle = base.idle_timeout.max(self.network_rtt().times(4));
        FepConfig {
            zones,
            windows: self.windows,
            priorities: self.priorities,
            idle_timeout: self.timers.idle_timeout.unwrap_or(idle),
            busy_timeout: self.busy_timeout,
            ..base
        }
    }

    /// How the connections of the workload are opened at endpoints of this run.
    pub fn opening(&self) -> Opening {
        Opening { mode: self.mode, first_background: 1 + u8::from(self.intra.is_some()) }
    }

    /// The settings of background traffic: those towards any host, but for its rate and path.
    fn background_zone(&self, kind: &Background) -> Zone {
        let rate = kind.rate;
        let cc = CcChoice::custom(
            "constant-rate",
            Arc::new(move |params| Box::new(ConstantRate::new(rate, params))),
        );
        // A slow flow asks for an answer to each packet: its timers would not wait for four packets, which are
        // acknowledged together otherwise.
        let cc = cc.with_needs(Needs { ack_each: true, ..Needs::NONE });
        let lb = LbChoice::one_path(kind.path);
        self.zone(&cc, &lb, Reach::Network)
    }

    /// The settings towards the hosts of one's own group, or all others.
    fn zone(&self, cc: &CcChoice, lb: &LbChoice, reach: Reach) -> Zone {
        let rtt = self.rtt_of(reach);
        // The time to drain full queues of three hops in both directions, as in public simulators, plus at
        // least one idle round trip; and that for full receive queues of both hosts.
        let in_hosts = self.host.map_or(Span::ZERO, |host| host.longest_wait(self.wire_mtu()).times(2));
        let fitting = Span::from_us(15).max(rtt) + self.longest_drain(reach).times(6) + in_hosts;
        let rto_init = self.timers.rto_init.unwrap_or(fitting);
        // Four windows of 1.5 BDP: enough to keep sending while an old packet is retransmitted repeatedly.
        let bdp = self.topology.host_rate().bytes_in(rtt);
        let window = (bdp * 6).div_ceil(self.wire_mtu()).clamp(512, 32_640);
        let base = Zone::new(cc, &CcParams { network_rtt: rtt, ..self.cc_params() });
        let mp_range = (window as u32 / 128) * 128;
        let pdc = PdcConfig { mp_range, rto_init, ack_bytes: self.ack_every, ..base.pdc };
        Zone { lb: lb.clone(), paths: self.paths, pdc, ..base }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::TopologySpec;
    use crate::workload::WorkloadSpec;
    use weft_stack::fep::ZoneId;
    use weft_stack::packet::Addr;
    use weft_stack::rng::Rng;

    #[test]
    fn hosts_keep_their_zones_wherever_they_stand_among_the_endpoints() {
        let topology: TopologySpec = "fat-tree:k=4".parse().unwrap();
        let workload: WorkloadSpec = "permutation".parse().unwrap();
        let workload = workload.build(Some(16), 1, &mut Rng::new(1, 1)).unwrap();
        let algorithms = Algorithms { cc: CcChoice::default(), lb: LbChoice::default() };
        let config =
            RunConfig { intra: Some(algorithms), ..RunConfig::new(topology.build().unwrap(), workload) };
        // Pods of four hosts.
        let zones = config.endpoint_among([9, 0, 10, 3].map(HostId)).zones;
        let is_near = |own, peer| zones.map.zone_of(Addr(own), Addr(peer)) != ZoneId::DEFAULT;
        assert!(is_near(0, 2) && is_near(1, 3));
        assert!(!is_near(0, 1) && !is_near(2, 3));
    }

    fn quiet(topology: Topology) -> RunConfig {
        let workload: WorkloadSpec = "permutation".parse().unwrap();
        let workload = workload.build(Some(topology.hosts()), 1, &mut Rng::new(1, 1)).unwrap();
        RunConfig::new(topology, workload)
    }

    fn rto(config: &RunConfig, reach: Reach) -> Span {
        config.zone(&config.cc, &config.lb, reach).pdc.rto_init
    }

    #[test]
    fn the_first_timeout_waits_for_the_receive_queues_of_both_hosts() {
        let config = quiet("fat-tree:k=4".parse::<TopologySpec>().unwrap().build().unwrap());
        let host = HostModel { rate: None, per_packet: Span::from_us(1), queue_bytes: 1 << 20 };
        let with = RunConfig { host: Some(host), ..config.clone() };
        let waits = host.longest_wait(config.wire_mtu()).times(2);
        assert!(waits > Span::from_us(400));
        for reach in [Reach::Group, Reach::Network] {
            assert_eq!(rto(&with, reach), rto(&config, reach) + waits);
        }
    }

    /// Neither the switches of a parking lot nor the spine declare a group.
    #[test]
    fn the_first_timeout_in_a_group_waits_for_queues_at_switches_of_no_group() {
        let lot: TopologySpec = "parking-lot:hops=3".parse().unwrap();
        let config = quiet(lot.build().unwrap());
        let drain = |config: &RunConfig, port| {
            config.topology.port(port).rate.time_for(config.queue_of(port)).times(6)
        };
        let to_host = config.topology.port(PortId(0)).reverse;
        assert!(rto(&config, Reach::Group) >= drain(&config, to_host));

        let text = "switch leaf[0-1] group=a\nswitch spine\nhost h[0-1]\nlink h0 leaf0\nlink h1 leaf1\n\
            link leaf[0-1] spine rate=1G\n";
        let config = quiet(crate::topology::parse_graph("spine.graph", text).unwrap());
        let up = config.topology.slowest_path(HostId(0), HostId(1)).nth(1).unwrap();
        assert!(rto(&config, Reach::Group) >= drain(&config, up));
    }

    #[test]
    fn phantom_queues_without_thresholds_have_those_of_their_ports() {
        let text = "switch a\nswitch b\nhost h0\nhost h1\nlink h0 a\nlink h1 b\n\
            link a b class=up/down ecn=1KB,2KB\n";
        let base = quiet(crate::topology::parse_graph("two.graph", text).unwrap());
        let own =
            PortClass { name: "down".into(), ecn: Some(Thresholds::Bytes(30, 40)), ..PortClass::default() };
        let phantom = Some(PhantomQueues { drain: 0.5, ecn: None });
        let ecn = Some(Thresholds::Bytes(10, 20));
        let config = RunConfig { phantom, ecn, port_classes: vec![own], ..base };
        let topology = &config.topology;
        let up = topology.slowest_path(HostId(0), HostId(1)).nth(1).unwrap();
        let (down, to_host) = (topology.port(up).reverse, topology.port(PortId(0)).reverse);
        assert_eq!(config.phantom_of(up), Some((0.5, (1_000, 2_000))), "the file's");
        assert_eq!(config.phantom_of(down), Some((0.5, (30, 40))), "the class's");
        assert_eq!(config.phantom_of(to_host), Some((0.5, (10, 20))), "those of all ports");
        assert_eq!(config.phantom_bytes(), Some((10, 20)));
    }

    #[test]
    fn a_peer_is_idle_after_some_round_trips_at_the_soonest() {
        let idle = |slow| {
            let fabric: TopologySpec = "dumbbell:hosts=2,bottleneck=10G,delay=100ms".parse().unwrap();
            let config = quiet(fabric.build().unwrap().slowed(slow));
            (config.endpoint().idle_timeout, config.network_rtt())
        };
        assert_eq!(idle(1).0, Span::from_ms(10_000));
        let (timeout, rtt) = idle(125);
        assert!(rtt > Span::from_ms(25_000) && timeout == rtt.times(4), "{timeout:?}");
    }
}
