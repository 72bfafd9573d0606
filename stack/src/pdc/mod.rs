//! Packet delivery contexts: reliable packets between two fabric endpoints.
//!
//! A PDC is one direction. Its *initiator* ([`TxPdc`]) numbers packets, remembers those it sent, and retransmits them
//! on request or on a timeout; its *target* ([`RxPdc`]) remembers the packets that have arrived and acknowledges them.
//! Neither holds payload.
//!
//! ```text
//!   initiator                                         target
//!   ─ request SYN, PSN s ──────────────────────────▶  creates the PDC, accepts
//!   ◀──────────────────── ACK: spdcid, CACK, SACK ──  "my PDCID is spdcid"
//!   ─ request to dpdcid, PSN s+1 … ────────────────▶  accepts, acknowledges every 16 KiB
//!   ─ request, trimmed on its way ─────────────────▶
//!   ◀───────────────────────────── NACK TRIMMED ────  sent again at once
//!   ─ CLOSE_CMD, PSN n ────────────────────────────▶
//!   ◀──────────────────────────────── ACK ──────────  both forget
//! ```
//!
//! PSNs on the initiator's side, in order:
//!
//! ```text
//!   … acknowledged │ una … in flight, sacked or to be resent … │ next …
//!                  └─ a ring of records, one per packet ───────┘
//! ```
//!
//! PSNs on the target's side:
//!
//! ```text
//!   … received │ CACK+1 (missing) … a bitmap … CACK + MP_RANGE │ refused
//! ```
#![forbid(unsafe_code)]

mod arrived;
mod bitmap;
mod loss;
mod record;
mod responses;
mod rtt;
mod rx;
mod tx;

pub(crate) use bitmap::Bitmap;
pub use loss::{LossRecovery, PROBE_REACH, Patience, Probes, ProbesDue};
pub(crate) use record::backed_off;
pub use record::{BYTES_PER_PACKET, MAX_DOUBLINGS, PacketKind, TxRecord};
pub use responses::{Answer, StoredResponse};
pub use rtt::RttEstimator;
pub use rx::{Arrival, RxPdc, Trigger};
pub use tx::{AckOutcome, Evidence, NackOutcome, Overdue, TxPdc, TxState};

use weft_cc::Span;

/// Settings of packet delivery, which may differ from peer to peer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PdcConfig {
    /// Packets that may be outstanding beyond CACK (MP_RANGE): the size of the target's bitmap and of
    /// the initiator's ring. A multiple of 128, from 128 to 32,640.
    pub mp_range: u32,
    /// Packets that may be sent before the target has answered, at most [`PdcConfig::mp_range`]: 1 to 4,096, because
    /// `psn_offset` has 12 bits. A target with a smaller range refuses those beyond it, and gets them again.
    pub first_range: u32,
    /// Least retransmission timeout (RTO_INIT). Where answers take longer the timeout follows them
    /// ([`RttEstimator::timeout`]). It doubles with every expiry of the same packet, [`MAX_DOUBLINGS`] times. The
    /// default, 100 ms, is longer than an operating system takes the processor away; simulated networks and pinned
    /// cores have less.
    pub rto_init: Span,
    /// How long a peer may be silent, as the number of timeouts that doubled without a bound: see
    /// [`PdcConfig::silence`]. Not a limit on the transmissions of one packet.
    pub max_retries: u8,
    /// Accepted bytes after which an acknowledgement is due; every packet counts at least 1 KiB.
    pub ack_bytes: u32,
    /// Infer losses from acknowledgements instead of waiting for NACKs: for fabrics that drop.
    pub infer_loss: bool,
}

/// How a ROD target treats packets that arrive early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RodReceive {
    /// Refuses them with ROD_OOO; the initiator goes back to the first missing one.
    GoBackN,
    /// Keeps them, payload included, until the missing ones arrive.
    Reorder,
}

/// Packets that can carry SYN: `psn_offset` has 12 bits.
pub const MAX_FIRST_RANGE: u32 = 1 << 12;

/// Smallest count of a packet towards the acknowledgement threshold, bytes.
pub const ACK_MIN_PACKET: u32 = 1024;

impl PdcConfig {
    /// How long a peer may owe an answer and say nothing before its connections are given up, if the retransmission
    /// timeout is `rto`: `rto` · (2^(max_retries + 1) − 1), 63 timeouts by default, at most 53 days.
    pub fn silence(&self, rto: Span) -> Span {
        let timeouts = (1 << (u32::from(self.max_retries) + 1).min(63)) - 1;
        rto.times(timeouts).min(Span::from_ps(1 << 62))
    }
}

impl Default for PdcConfig {
    fn default() -> PdcConfig {
        PdcConfig {
            mp_range: 512,
            first_range: MAX_FIRST_RANGE,
            rto_init: Span::from_ms(100),
            max_retries: 5,
            ack_bytes: 16 * 1024,
            infer_loss: false,
        }
    }
}
