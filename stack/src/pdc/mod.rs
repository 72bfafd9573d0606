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

mod bitmap;
mod loss;
mod record;
mod rx;
mod tx;

pub use loss::LossRecovery;
pub use record::{PacketKind, TxRecord};
pub use rx::{Arrival, RxPdc, StoredResponse, Trigger};
pub use tx::{AckOutcome, NackOutcome, Overdue, TxPdc, TxState};

use weft_cc::Span;

/// Settings of packet delivery.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PdcConfig {
    /// Packets that may be outstanding beyond CACK (MP_RANGE): the size of the target's bitmap and of
    /// the initiator's ring. A multiple of 128, from 128 to 32,640.
    pub mp_range: u32,
    /// First retransmission timeout; it doubles with every expiry of the same packet.
    pub rto_init: Span,
    /// Expiries of one packet after which the PDC fails.
    pub max_retries: u8,
    /// Accepted bytes after which an acknowledgement is due; every packet counts at least 1 KiB.
    pub ack_bytes: u32,
    /// How a ROD target treats packets that arrive early.
    pub rod_receive: RodReceive,
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

/// The smallest MP_RANGE, packets: `mpr` counts in units of it.
pub const MIN_MP_RANGE: u32 = 128;

/// Smallest count of a packet towards the acknowledgement threshold, bytes.
pub const ACK_MIN_PACKET: u32 = 1024;

impl Default for PdcConfig {
    fn default() -> PdcConfig {
        PdcConfig {
            mp_range: 512,
            rto_init: Span::from_us(100),
            max_retries: 5,
            ack_bytes: 16 * 1024,
            rod_receive: RodReceive::GoBackN,
            infer_loss: false,
        }
    }
}
