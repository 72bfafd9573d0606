//! The configuration of an endpoint.

use weft_cc::{CcChoice, CcParams, Span};

use super::context::TrafficClass;
use super::zone::{Zone, Zones};
use crate::pdc::{MAX_FIRST_RANGE, RodReceive};
use crate::ses::MAX_SEGMENT;
use crate::wire::class::{PRIORITIES, Priority};
use crate::wire::ses::MAX_PROCESS;

/// Configuration of an endpoint. One value serves any number of endpoints.
#[derive(Clone)]
pub struct FepConfig {
    /// Largest payload of a packet, bytes; at most 16,383.
    pub mtu: u32,
    /// Bytes that every data packet counts for in windows beyond its payload. Must be equal at both ends of
    /// connections with receiver credit.
    pub overhead: u32,
    /// Whether packets end with a CRC-32C ([`wire::crc`](crate::wire::crc)): the same in a whole network. Packets of a
    /// simulation are no bytes and need none.
    pub crc: bool,
    /// What depends on the peer: congestion control, load balancing, packet delivery.
    pub zones: Zones,
    /// Which connections share a congestion context.
    pub windows: Windows,
    /// Number of priorities that the switches of the network tell apart, 1 to 8. A connection of traffic class `c` sends
    /// its data with priority `c`, or the highest if there are not so many.
    pub priorities: u8,
    /// The treatment of packets that arrive early on a ROD PDC.
    pub rod_receive: RodReceive,
    /// Limits on memory.
    pub limits: Limits,
    /// Time of silence after which a target asks whether its initiator is alive; after twice that time it gives the
    /// PDC up. Endpoints of one network should have the same.
    pub idle_timeout: Span,
    /// How long a target remembers a closed PDC, to distinguish late copies of its packets from a new PDC.
    pub time_wait: Span,
    /// Time after which an initiator gives up a connection without progress whose peer answers, because of refusals, a
    /// busy target, missing credit, or a path that loses its packets. Until the target has acknowledged a packet, twice
    /// the idle timeout after its last refusal is enough: a target forgets a PDC after so long a silence.
    pub busy_timeout: BusyTimeout,
}

/// How long a connection may be without progress while its peer answers. The silence of a peer ends it in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BusyTimeout {
    /// It is given up after this time.
    After(Span),
    /// It is never given up: for providers whose applications may take nothing for hours. [`Time`](weft_cc::Time) is
    /// circular, so one wait must end within 106 days.
    Endless,
}

impl BusyTimeout {
    /// The time after which a connection is given up, if there is one.
    pub fn bound(self) -> Option<Span> {
        match self {
            BusyTimeout::After(span) => Some(span),
            BusyTimeout::Endless => None,
        }
    }
}

impl Default for BusyTimeout {
    fn default() -> BusyTimeout {
        BusyTimeout::After(Span::from_ms(10_000))
    }
}

impl From<Span> for BusyTimeout {
    fn from(span: Span) -> BusyTimeout {
        BusyTimeout::After(span)
    }
}

/// Which connections share a congestion context, and with it a window, a load balancer and credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Windows {
    /// All connections to one peer in one traffic class, as a UET congestion control context serves a pair of FEPs.
    /// However many connections two endpoints have, they get one share of a bottleneck.
    #[default]
    Pair,
    /// Each connection has its own, as with TCP or Swift. Where a zone uses credit, requests name contexts by 8 bits:
    /// of more than 256 connections to one peer some share a context.
    Flow,
}

/// Limits on memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections that this endpoint opens; at most 65,535, as PDCIDs have 16 bits.
    pub connections: usize,
    /// PDCs that one peer may open: the share of [`Limits::pdcs`] that a single peer can take from all peers.
    pub pdcs_per_peer: u32,
    /// PDCs that all peers together may open; at most 65,535, as PDCIDs have 16 bits. None are reserved for a peer, but a peer
    /// may have no more than it leaves to all others: beyond that it receives NO_PDC_AVAIL and retries.
    pub pdcs: usize,
    /// Half-open PDCs of all peers together: those whose initiator has not named the PDCID that it got from here, so that
    /// nothing shows that it is where its packets say. While there are more than half as many, the initiator of a new one
    /// is asked at once whether it is there, and of those that were asked and have not answered, the oldest makes room
    /// when there are too many PDCs.
    pub half_open_pdcs: usize,
    /// Half-open PDCs of one peer. While there are more than half as many, the initiator of a new one is asked.
    pub half_open_pdcs_per_peer: u32,
    /// PDCs of one peer that are open, or closed and remembered for [`FepConfig::time_wait`]. Divided by that time, it
    /// is the rate at which a peer can open and close PDCs; beyond that rate it receives NO_PDC_AVAIL.
    pub closed_pdcs_per_peer: u32,
    /// Congestion contexts of peers that have asked for credit here and have no PDC open. Beyond that the one that has had none
    /// for longest makes room. A peer can have 256.
    pub credit_senders: usize,
    /// Messages that are posted and not yet delivered.
    pub sends: usize,
    /// Receives of one process that are posted and have matched no message.
    pub receives: usize,
    /// Kinds of receives of one process: masks of ignored bits of tags, with or without a sender. A message is looked up once for
    /// each. The oldest eight receives do not count.
    pub receive_kinds: usize,
    /// Processes that may be open at a time.
    pub processes: usize,
    /// Messages that have met no receive, of all processes and peers together. Those that meet a receive as they arrive
    /// do not count. Half of them are reserved for processes, in even parts for as many as may be open. Of the other half a
    /// process may have as many as it leaves; and of what its process may have, a peer. The same limit applies separately to
    /// messages of which a part has arrived, whether they have met receives or not, beyond 16 of each PDC: of these a peer may
    /// have as many as it leaves. It applies once more to writes of which a part has arrived, in the same way.
    pub unexpected_messages: usize,
    /// Bytes kept of such messages, shared in the same way.
    pub unexpected_bytes: u64,
    /// Messages of one peer that have met no receive of one process. A peer whose messages exceed it receives
    /// NO_SES_MSG_AVAIL and retries: so many messages can be left waiting while a receive is for a later one of the
    /// same connection. What counts is the mean of what the process has that sends and what all processes of the peer have, so that
    /// one which uses up the limit leaves as much again to the others. The same limit applies separately to the peer's messages to all processes of which a part has arrived,
    /// beyond 16 of each PDC; a PDC may have no more of them than twice its [`PdcConfig::mp_range`](crate::pdc::PdcConfig::mp_range).
    /// Writes of the peer of which a part has arrived have these limits too, whichever of its processes they come from. Those that
    /// begin with a packet in order are the 16 of their PDC.
    pub unexpected_messages_per_peer: u32,
    /// Bytes kept of one peer's messages that have met no receive of one process. The payload of further messages is
    /// refused with NO_PKT_BUFFER until there is room or a receive for it. What counts is the mean, as for messages. The same limit applies separately to the
    /// peer's ROD packets that arrived early.
    pub unexpected_bytes_per_peer: u64,
    /// Bytes kept of early ROD packets of all peers together. A peer may have as many as it leaves.
    pub reorder_bytes: u64,
    /// Bytes that the responses stored for one peer count for until it clears them: their own, and those of the data that
    /// they promise, which is not copied. Further reads of the peer, and messages that would be answered with an error, are
    /// refused with NO_GTD_DEL_AVAIL, and it retries; except for one in each PDC, the first that is not cleared, without
    /// which none of the others ever would be, and one message that is longer than its receive in each PDC without stored
    /// responses. It bounds the responses that wait for the port, too.
    pub response_bytes_per_peer: u64,
    /// Bytes that the responses stored for all peers together count for. A peer may have as many as it leaves; beyond that
    /// it is refused as for [`Limits::response_bytes_per_peer`], with the same exceptions.
    pub response_bytes: u64,
    /// Acknowledgements, NACKs and control packets that wait for the port. Once more than [`CONTROL_IN_ORDER`](super::CONTROL_IN_ORDER)
    /// wait, a peer may have as many as it leaves; others for it are dropped.
    pub control_queue: usize,
    /// Packets that a ROD target keeps for one PDC until the missing ones before them arrive.
    pub reorder_packets: usize,
}

impl Limits {
    /// The PDCs that peers can have open at most.
    pub(crate) fn most_pdcs(&self) -> usize {
        self.pdcs.min(usize::from(u16::MAX))
    }

    /// The connections that there can be at most.
    pub(crate) fn most_connections(&self) -> usize {
        self.connections.min(usize::from(u16::MAX))
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 60_000,
            pdcs_per_peer: 4_096,
            pdcs: 60_000,
            half_open_pdcs: 30_000,
            credit_senders: 1 << 16,
            half_open_pdcs_per_peer: 2_048,
            closed_pdcs_per_peer: 1 << 16,
            sends: 1 << 20,
            receives: 1 << 20,
            receive_kinds: 64,
            processes: usize::from(MAX_PROCESS) + 1,
            unexpected_messages: 1 << 20,
            unexpected_bytes: 4 << 30,
            unexpected_messages_per_peer: 1 << 16,
            unexpected_bytes_per_peer: 64 << 20,
            reorder_bytes: 4 << 30,
            response_bytes_per_peer: 64 << 20,
            response_bytes: 16 << 30,
            control_queue: 1 << 16,
            reorder_packets: 256,
        }
    }
}

/// Errors in a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The payload size is 0 or exceeds the 14 bits of `payload_len`.
    #[error("mtu is {0}; a packet's payload is 1 to {MAX_SEGMENT} bytes")]
    Mtu(u32),
    /// The number of paths is 0 or exceeds the 14 bits that a source port has for entropies.
    #[error("paths is {0}; there can be 1 to 16384")]
    Paths(u16),
    /// `mp_range` cannot be expressed by `mpr`, which counts units of 128 packets in 8 bits.
    #[error("mp_range is {0}; it is a multiple of 128 from 128 to 32640")]
    MpRange(u32),
    /// `first_range` cannot be expressed by `psn_offset`, which has 12 bits.
    #[error("first_range is {0}; it is 1 to {MAX_FIRST_RANGE}")]
    FirstRange(u32),
    /// The number of zones exceeds what one byte can number.
    #[error("there can be 256 zones")]
    Zones,
    /// The number of priorities is 0, or exceeds what a fabric's DSCPs tell apart.
    #[error("priorities is {0}; there can be 1 to {PRIORITIES}")]
    Priorities(u8),
}

/// How many of the longest gaps between packets fit in the time after which a connection without progress is given up: so
/// many packets in a row have to be lost.
const GAPS_BEFORE_THE_END: u64 = 16;
/// No gap is longer, even where a connection may be without progress for longer or for ever: one round trip of 50 ms would hold
/// packets back for 50 s each once Swift's window is a thousandth of a packet.
const LONGEST_GAP: Span = Span::from_ms(1_000);

impl FepConfig {
    /// The longest time that congestion control may keep a packet back while nothing is in flight.
    pub(super) fn longest_gap(&self) -> Span {
        let forgotten = self.idle_timeout.times(2);
        let end = self.busy_timeout.bound().map_or(forgotten, |bound| bound.min(forgotten));
        Span::from_ps(end.as_ps() / GAPS_BEFORE_THE_END).min(LONGEST_GAP)
    }

    /// The default configuration for a network with the parameters `params`.
    pub fn new(cc: &CcChoice, params: &CcParams) -> FepConfig {
        FepConfig {
            mtu: params.mtu,
            overhead: params.overhead,
            crc: false,
            zones: Zones::one(Zone::new(cc, params)),
            windows: Windows::default(),
            priorities: 1,
            rod_receive: RodReceive::GoBackN,
            limits: Limits::default(),
            idle_timeout: Span::from_ms(10_000),
            time_wait: Span::from_ms(100),
            busy_timeout: BusyTimeout::default(),
        }
    }

    /// This configuration after `change` of every zone.
    #[must_use]
    pub fn with_zones(mut self, change: impl FnMut(&mut Zone)) -> FepConfig {
        self.zones.iter_mut().for_each(change);
        self
    }

    /// Checks that every value is in its range.
    ///
    /// # Errors
    /// The first value that is out of range, with its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if !(1..=MAX_SEGMENT).contains(&self.mtu) {
            return Err(ConfigError::Mtu(self.mtu));
        }
        if !(1..=PRIORITIES as u8).contains(&self.priorities) {
            return Err(ConfigError::Priorities(self.priorities));
        }
        self.zones.iter().try_for_each(Zone::validate)
    }

    /// The priority of data in a traffic class.
    pub(super) fn priority_of(&self, class: TrafficClass) -> Priority {
        Priority::new(class.0.min(self.priorities.saturating_sub(1))).unwrap_or_default()
    }
}
