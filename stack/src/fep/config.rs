//! The configuration of an endpoint.

use weft_cc::{CcChoice, CcParams, PreparedCc, Span};

use crate::pdc::PdcConfig;
use crate::ses::MAX_SEGMENT;
use crate::spray::LbChoice;

/// Configuration of an endpoint. One value serves any number of endpoints.
#[derive(Clone)]
pub struct FepConfig {
    /// Largest payload of a packet, bytes; at most 16,383.
    pub mtu: u32,
    /// Bytes that every data packet counts for in windows beyond its payload. Must be equal at both ends.
    pub overhead: u32,
    /// Settings of packet delivery.
    pub pdc: PdcConfig,
    /// Congestion control of new contexts.
    pub cc: PreparedCc,
    /// Load balancing of new contexts.
    pub lb: LbChoice,
    /// Number of entropies to choose from, 1 to 16,384.
    pub paths: u16,
    /// Limits on memory.
    pub limits: Limits,
    /// Time of silence after which a target asks whether its initiator is alive; after twice that time it gives the
    /// PDC up.
    pub idle_timeout: Span,
    /// How long a target remembers a closed PDC, to distinguish late copies of its packets from a new PDC.
    pub time_wait: Span,
    /// Time after which an initiator gives up a connection without progress, because of refusals, a busy target or
    /// missing credit.
    pub busy_timeout: Span,
}

/// Limits on memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections that this endpoint opens.
    pub connections: usize,
    /// PDCs that one peer may open: the share of [`Limits::pdcs`] that a single peer can take from all peers.
    pub pdcs_per_peer: u32,
    /// PDCs that all peers together may open; at most 65,535, as PDCIDs have 16 bits. None are reserved for a peer: if
    /// this is less than the number of peers times [`Limits::pdcs_per_peer`], many peers together can leave none for
    /// another, which receives NO_PDC_AVAIL and retries.
    pub pdcs: usize,
    /// PDCs of one peer that are open, or closed and remembered for [`FepConfig::time_wait`]. Divided by that time, it
    /// is the rate at which a peer can open and close PDCs; beyond that rate it receives NO_PDC_AVAIL.
    pub closed_pdcs_per_peer: u32,
    /// Messages that are posted and not yet delivered.
    pub sends: usize,
    /// Receives of one process that are posted and have matched no message.
    pub receives: usize,
    /// Messages that are arriving for one process.
    pub messages: usize,
    /// Bytes kept of one peer's unexpected messages. The same limit applies separately to its ROD packets that arrived
    /// early.
    pub unexpected_bytes_per_peer: u64,
    /// Acknowledgements, NACKs and control packets waiting for the port.
    pub control_queue: usize,
    /// Packets that a ROD target keeps for one PDC until the missing ones before them arrive.
    pub reorder_packets: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 60_000,
            pdcs_per_peer: 4_096,
            pdcs: 60_000,
            closed_pdcs_per_peer: 1 << 16,
            sends: 1 << 20,
            receives: 1 << 20,
            messages: 1 << 20,
            unexpected_bytes_per_peer: 64 << 20,
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
}

impl FepConfig {
    /// The default configuration for a network with the parameters `params`.
    pub fn new(cc: &CcChoice, params: &CcParams) -> FepConfig {
        FepConfig {
            mtu: params.mtu,
            overhead: params.overhead,
            pdc: PdcConfig { infer_loss: !params.trimming, ..PdcConfig::default() },
            cc: cc.prepare(params),
            lb: LbChoice::default(),
            paths: 128,
            limits: Limits::default(),
            idle_timeout: Span::from_ms(10_000),
            time_wait: Span::from_ms(100),
            busy_timeout: Span::from_ms(10_000),
        }
    }

    /// Checks that every value is in its range.
    ///
    /// # Errors
    /// The first value that is out of range, with its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if !(1..=MAX_SEGMENT).contains(&self.mtu) {
            return Err(ConfigError::Mtu(self.mtu));
        }
        if !(1..=16_384).contains(&self.paths) {
            return Err(ConfigError::Paths(self.paths));
        }
        let range = self.pdc.mp_range;
        if !(128..=32_640).contains(&range) || !range.is_multiple_of(128) {
            return Err(ConfigError::MpRange(range));
        }
        Ok(())
    }
}
