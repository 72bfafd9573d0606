//! What a run consists of.

use std::sync::Arc;

use weft_cc::{CcChoice, CcParams, Rate, Span};
use weft_stack::fep::{ConfigError, FepConfig};
use weft_stack::pdc::PdcConfig;
use weft_stack::spray::LbChoice;
use weft_stack::wire::pds::DeliveryMode;

use super::faults::Share;
use crate::switch::{PhantomConfig, QueueConfig};
use crate::topology::Topology;
use crate::workload::Workload;

/// What a packet costs on the wire beyond its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overhead {
    /// Its true headers over Ethernet, IPv4 and UDP, with preamble, FCS and gap.
    Auto,
    /// So many bytes; control packets and trimmed ones cost exactly that.
    Fixed(u32),
}

/// What packets carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadMode {
    /// Only a length.
    Virtual,
    /// Bytes, compared at the receiver.
    Real,
}

/// Phantom queues, see [`PhantomConfig`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PhantomQueues {
    /// The part of a link's rate at which they drain.
    pub drain: f64,
    /// Thresholds of their marks as fractions of the BDP.
    pub ecn: (f64, f64),
}

/// A run, completely described.
#[derive(Clone, Debug)]
pub struct RunConfig {
    /// The fabric.
    pub topology: Topology,
    /// Who sends what to whom. Shared, not copied: it may have millions of flows.
    pub workload: Arc<Workload>,
    /// Congestion control.
    pub cc: CcChoice,
    /// Load balancing.
    pub lb: LbChoice,
    /// Entropies to choose from.
    pub paths: u16,
    /// Payload bytes of a full packet.
    pub mtu: u32,
    /// What packets cost beyond their payload.
    pub wire_overhead: Overhead,
    /// Whether switches trim; else they drop.
    pub trim: bool,
    /// Room for data in each switch port, bytes; `None`: 1 BDP, rounded up to whole packets.
    pub queue_bytes: Option<u64>,
    /// Thresholds of congestion marks as fractions of the BDP; `None`: none are set.
    pub ecn: Option<(f64, f64)>,
    /// Phantom queues beside the data queues of switches; `None`: there are none.
    pub phantom: Option<PhantomQueues>,
    /// What packets carry.
    pub payload: PayloadMode,
    /// Everything random follows from it.
    pub seed: u64,
    /// When the run is cut off.
    pub until: Option<Span>,
    /// Accepted bytes after which a receiver acknowledges.
    pub ack_every: u32,
    /// How connections deliver.
    pub mode: DeliveryMode,
}

/// A run that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// The workload does not fit.
    #[error("the workload has {needed} hosts, the topology {present}")]
    Hosts {
        /// Hosts of the workload.
        needed: u32,
        /// Hosts of the topology.
        present: u32,
    },
    /// Endpoints cannot be configured so.
    #[error(transparent)]
    Endpoint(#[from] ConfigError),
    /// Packets would arrive at the moment at which they are sent.
    #[error(
        "packets take no time over a link: give links a latency or a lower rate, or packets more overhead"
    )]
    NoLatency,
    /// Queues that are told apart by a byte.
    #[error("switch ports with more than 256 different queues")]
    QueueKinds,
    /// A failure names a link that is not there.
    #[error("no link {link} at switch {switch} of tier {tier}")]
    NoSuchLink {
        /// The tier.
        tier: u8,
        /// The switch within the tier.
        switch: u32,
        /// The link of the switch.
        link: u32,
    },
}

/// Headers of the network: preamble to gap, IPv4, UDP.
pub(super) const NETWORK_OVERHEAD: u32 = ETHERNET + IP_UDP;
/// The smallest frame with preamble and gap.
pub(crate) const MIN_FRAME: u32 = 84;
/// PDS bytes that trimming leaves.
pub(super) const TRIMMED_PDS: u32 = 16;

/// Preamble, start of frame, Ethernet header, FCS and gap.
const ETHERNET: u32 = 8 + 14 + 4 + 12;
/// IPv4 and UDP.
const IP_UDP: u32 = 20 + 8;
/// A RUD request with congestion control fields and a standard SES request.
const DATA_HEADERS: u32 = weft_stack::wire::MAX_HEADERS as u32;

/// Bytes of control and trimmed packets for each byte of data on a link that both would fill (UET asks
/// that the class of trimmed packets get at most half). Under strict priority trimmed headers starve
/// data for ever where many hosts meet a slow link.
const CONTROL_WEIGHT: u32 = 1;

impl RunConfig {
    /// A run of `workload` over `topology` with everything else as the command has it unless told otherwise.
    pub fn new(topology: Topology, workload: impl Into<Arc<Workload>>) -> RunConfig {
        RunConfig {
            topology,
            workload: workload.into(),
            cc: CcChoice::default(),
            lb: LbChoice::default(),
            // UET suggests 64 to 256; the balancers' public results are measured with 128.
            paths: 128,
            mtu: 4096,
            wire_overhead: Overhead::Auto,
            trim: true,
            queue_bytes: None,
            ecn: Some((0.2, 0.8)),
            phantom: None,
            payload: PayloadMode::Virtual,
            seed: 1,
            until: None,
            ack_every: 16 * 1024,
            mode: DeliveryMode::Rud,
        }
    }

    /// Bytes that a data packet costs beyond its payload.
    pub fn data_overhead(&self) -> u32 {
        match self.wire_overhead {
            Overhead::Fixed(bytes) => bytes,
            Overhead::Auto if self.cc.uses_credit() => ETHERNET + IP_UDP + DATA_HEADERS,
            Overhead::Auto => ETHERNET + IP_UDP + DATA_HEADERS - 4,
        }
    }

    /// Bytes that an acknowledgement costs.
    fn ack_size(&self) -> u32 {
        match self.wire_overhead {
            Overhead::Fixed(bytes) => bytes,
            Overhead::Auto => ETHERNET + IP_UDP + 32,
        }
    }

    /// Bytes of a full packet on the wire.
    pub fn wire_mtu(&self) -> u64 {
        u64::from(self.mtu) + u64::from(self.data_overhead())
    }

    /// Round-trip time of the longest path when idle.
    pub fn network_rtt(&self) -> Span {
        self.topology.network_rtt(self.wire_mtu(), u64::from(self.ack_size()))
    }

    /// Bandwidth-delay product of the longest path, bytes.
    pub fn bdp(&self) -> u64 {
        self.topology.host_rate().bytes_in(self.network_rtt())
    }

    /// Room for data in a switch port, bytes.
    pub fn queue_bytes(&self) -> u64 {
        let packet = self.wire_mtu();
        self.queue_bytes.unwrap_or_else(|| self.bdp().div_ceil(packet) * packet)
    }

    /// The thresholds of congestion marks, bytes, in whole packets.
    pub fn ecn_bytes(&self) -> (u64, u64) {
        self.ecn.map_or((u64::MAX - 1, u64::MAX), |thresholds| self.in_packets(thresholds))
    }

    /// The thresholds of the marks of phantom queues, bytes, in whole packets.
    pub fn phantom_bytes(&self) -> Option<(u64, u64)> {
        self.phantom.map(|phantom| self.in_packets(phantom.ecn))
    }

    /// Fractions of the BDP as bytes.
    fn in_packets(&self, (low, high): (f64, f64)) -> (u64, u64) {
        let packet = self.wire_mtu();
        let packets = self.bdp().div_ceil(packet) as f64;
        let bytes = |fraction: f64| (packets * fraction).ceil() as u64 * packet;
        (bytes(low), bytes(high))
    }

    /// The phantom queue of a port whose link has `rate` left, which is `share` of what it had.
    fn phantom(&self, rate: Rate, share: Share) -> Option<PhantomConfig> {
        let (low, high) = self.phantom_bytes()?;
        Some(PhantomConfig::new(rate, self.phantom?.drain, (share.of(low), share.of(high))))
    }

    /// The queue of a port whose link has `rate` left, which is `share` of what it had.
    pub(super) fn queue(&self, data_limit: u64, rate: Rate, share: Share) -> QueueConfig {
        let (ecn_low, ecn_high) = self.ecn_bytes();
        let data_limit = share.of(data_limit).max(data_limit.min(self.wire_mtu()));
        QueueConfig {
            data_limit,
            control_limit: data_limit.saturating_mul(2).max(64 * 1024),
            ecn_low: share.of(ecn_low),
            ecn_high: share.of(ecn_high),
            trim: self.trim,
            control_weight: Some(CONTROL_WEIGHT),
            phantom: self.phantom(rate, share),
        }
    }

    /// What congestion control is told about the network.
    pub fn cc_params(&self) -> CcParams {
        CcParams {
            mtu: self.mtu,
            overhead: self.data_overhead(),
            link_rate: self.topology.host_rate(),
            network_rtt: self.network_rtt(),
            trimming: self.trim,
            receiver_credit: self.cc.uses_credit(),
        }
    }

    /// The configuration of the endpoints.
    pub fn endpoint(&self) -> FepConfig {
        let slowest = self.topology.tiers().iter().map(|tier| tier.down_rate).min();
        let rate = slowest.unwrap_or(self.topology.host_rate());
        // Full queues of three hops in both directions, as public simulators have it, but never less
        // than the way there and back.
        let rto_init = Span::from_us(15).max(self.network_rtt()) + rate.time_for(self.queue_bytes()).times(6);
        // Four windows of 1.5 BDP: enough to go on while an old packet is sent again and again.
        let window = (self.bdp() * 6).div_ceil(self.wire_mtu()).clamp(512, 32_640);
        let base = FepConfig::new(&self.cc, &self.cc_params());
        FepConfig {
            lb: self.lb.clone(),
            paths: self.paths,
            pdc: PdcConfig {
                mp_range: (window as u32 / 128) * 128,
                rto_init,
                ack_bytes: self.ack_every,
                ..base.pdc
            },
            ..base
        }
    }
}
