//! What an initiator remembers of each packet that is not acknowledged: 40 bytes, no payload.

use weft_cc::{Span, Time};

use crate::spray::Entropy;

/// What a PSN was spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketKind {
    /// A part of a message.
    Data {
        /// The message, as the endpoint numbers its sends.
        send: u32,
        /// Where the part begins, bytes.
        offset: u32,
        /// Its length, bytes.
        len: u32,
    },
    /// A CLOSE_CMD.
    Close,
}

/// Where a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Sent, nothing heard.
    InFlight,
    /// Known not to have arrived; waits to be sent again.
    Lost,
    /// The target has it.
    Acked,
}

/// One packet that was sent.
#[derive(Clone, Copy, Debug)]
pub struct TxRecord {
    /// What it carries.
    pub kind: PacketKind,
    /// When it was last sent.
    pub sent_at: Time,
    /// Bytes it counts for in windows.
    pub bytes: u32,
    /// The entropy it was last sent with.
    pub entropy: Entropy,
    /// Times it was sent.
    pub transmissions: u8,
    /// Times its retransmission timer expired.
    pub timeouts: u8,
    pub(super) state: State,
}

impl TxRecord {
    /// When its retransmission timer expires: RTO_INIT · 2^timeouts after it was sent.
    pub(super) fn deadline(&self, rto_init: Span) -> Time {
        self.sent_at + rto_init.times(1 << self.timeouts.min(20))
    }
}
