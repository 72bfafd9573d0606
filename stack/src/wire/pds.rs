//! The packet delivery sublayer: requests, acknowledgements, NACKs and control packets.

mod ack;
mod codec;
mod vendor;
mod view;

#[cfg(test)]
pub(crate) mod tests;

pub use vendor::{BlockLoss, DelayEcho, VendorFlags};
pub use view::{PROLOGUE_LEN, PacketType, PdsView};

use core::cmp::Ordering;

use weft_cc::{FlowControl, Span};

/// A packet sequence number. It wraps: compare only with the methods of this type, which are valid for numbers less
/// than 2³¹ apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Psn(pub u32);

impl Psn {
    /// `self + n`, modulo 2³².
    #[inline]
    pub const fn plus(self, n: u32) -> Psn {
        Psn(self.0.wrapping_add(n))
    }

    /// `self − n`, modulo 2³².
    #[inline]
    pub const fn minus(self, n: u32) -> Psn {
        Psn(self.0.wrapping_sub(n))
    }

    /// `self + offset`, modulo 2³².
    #[inline]
    pub const fn offset(self, offset: i32) -> Psn {
        Psn(self.0.wrapping_add(offset as u32))
    }

    /// Distance from `other` to `self`, positive if `self` is later.
    #[inline]
    pub const fn distance(self, other: Psn) -> i32 {
        self.0.wrapping_sub(other.0) as i32
    }

    /// Whether `self` lies before `other`.
    #[inline]
    pub const fn is_before(self, other: Psn) -> bool {
        self.distance(other) < 0
    }

    /// Serial-number order relative to `other`.
    #[inline]
    pub fn circular_cmp(self, other: Psn) -> Ordering {
        self.distance(other).cmp(&0)
    }
}

/// The identifier of a PDC at one end. 0 is reserved for no PDC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct PdcId(pub u16);

/// Header after the PDS header (prologue bits 10–7 of packets other than CP).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum NextHeader {
    /// No header follows.
    #[default]
    None = 0,
    /// A small request.
    RequestSmall = 1,
    /// A medium request.
    RequestMedium = 2,
    /// A standard request.
    RequestStandard = 3,
    /// A response.
    Response = 4,
    /// A response with data.
    ResponseData = 5,
    /// A small response with data.
    ResponseDataSmall = 6,
}

/// Delivery mode of a PDC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum DeliveryMode {
    /// Reliable, unordered: sprayed over many entropies, delivered on arrival, retransmitted selectively.
    #[default]
    Rud,
    /// Reliable, ordered: all packets use one entropy.
    Rod,
}

/// The last 16 bits of a request or control packet that names a PDC at the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The target's PDCID is known.
    Pdc(PdcId),
    /// The target's PDCID is not known yet (SYN): create a PDC whose Start_PSN is this packet's PSN − `psn_offset`.
    Syn {
        /// Use the PDC reserved for this purpose (`use_rsv_pdc`); in a CP the high info bit.
        use_reserved: bool,
        /// Distance from Start_PSN, 12 bits.
        psn_offset: u16,
    },
}

/// RUD_REQ, ROD_REQ and their forms with congestion-control fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// RUD or ROD.
    pub mode: DeliveryMode,
    /// Type of the SES header that follows.
    pub next: NextHeader,
    /// This is a retransmission.
    pub retx: bool,
    /// An acknowledgement is requested at once (AR).
    pub ack_request: bool,
    /// CLEAR_PSN − PSN.
    pub clear_psn_offset: i16,
    /// The packet's sequence number.
    pub psn: Psn,
    /// The sender's PDCID.
    pub spdcid: PdcId,
    /// The target's PDC.
    pub destination: Destination,
    /// Flags in bits that the standard reserves.
    pub vendor: VendorFlags,
    /// Present in RUD_CC and ROD_CC requests.
    pub cc: Option<RequestCc>,
}

/// The congestion-control fields of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestCc {
    /// Identifier of the sender's congestion context that this packet belongs to.
    pub ccc_id: u8,
    /// Total credit wanted, units of 256 B, modulo 2²⁴.
    pub credit_target: u32,
}

/// Request of an acknowledgement to the sender (REQ field).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum AckRequest {
    /// No request.
    #[default]
    None,
    /// Clear the guaranteed-delivery responses.
    Clear,
    /// Close the PDC.
    Close,
    /// The reserved value 3.
    Reserved,
}

/// ACK, ACK_CC and ACK_CCX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// Type of the SES header that follows.
    pub next: NextHeader,
    /// The packet that triggered this arrived with a congestion mark (M).
    pub ecn: bool,
    /// The packet that triggered this was a retransmission.
    pub retx: bool,
    /// The receiver's request to the sender.
    pub request: AckRequest,
    /// The packet that triggered this.
    pub trigger: AckTrigger,
    /// Cumulative acknowledgement: all packets up to this PSN have arrived.
    pub cack_psn: Psn,
    /// The PDCID of the end that acknowledges.
    pub spdcid: PdcId,
    /// The PDCID of the end that sent the packet.
    pub dpdcid: PdcId,
    /// The congestion-control part of ACK_CC and ACK_CCX.
    pub cc: Option<AckCc>,
}

/// The packet that an acknowledgement answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckTrigger {
    /// A request: its PSN − CACK_PSN, 16 bits signed.
    Psn(i16),
    /// A probe (P flag): the probe's opaque value.
    Probe(u16),
}

/// The congestion-control part of an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckCc {
    /// Flags, 4 bits; none is assigned.
    pub flags: u8,
    /// Maximum PSN range, units of 128 packets.
    pub mpr: u8,
    /// SACK base − CACK_PSN.
    pub sack_psn_offset: i16,
    /// Bit i stands for the packet with PSN SACK base + i; a zero bit carries no information.
    pub sack_bitmap: u64,
    /// Congestion-control state of the receiver.
    pub state: CcState,
}

/// The `cc_state` of ACK_CC and ACK_CCX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CcState {
    /// cc_type 0.
    Nscc(NsccState),
    /// cc_type 1.
    Credit {
        /// Total credit granted, units of 256 B, modulo 2²⁴.
        credit: u32,
        /// As in [`NsccState::ooo_count`].
        ooo_count: u16,
    },
    /// cc_type 15, for requests with [`VendorFlags::DELAY_ECHO`].
    DelayEcho(DelayEcho),
    /// A type that weft does not interpret, with its 64 bits.
    Other {
        /// cc_type, 4 bits: 2 to 14.
        kind: u8,
        /// The uninterpreted bits.
        bits: u64,
    },
    /// ACK_CCX, whose types no source defines: 128 bits.
    Extended {
        /// cc_type, 4 bits.
        kind: u8,
        /// The uninterpreted bits.
        bits: Bits128,
    },
}

/// NSCC's report from receiver to sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct NsccState {
    /// Time from the packet's arrival to the acknowledgement, units of 128 ns; 0 if unknown, 0xFFFF if longer than the
    /// field can express.
    pub service_time: u16,
    /// Restore the window that the sender had before the penalty (rc).
    pub restore_cwnd: bool,
    /// Penalty on the sender's window, 7 bits: the window loses this share of the newly received bytes, in 1/128. 0 is
    /// no effect, and what receivers without flow control send (UET §3.6.13.2).
    pub rcv_cwnd_pend: u8,
    /// Total bytes received, units of 256 B, rounded up, modulo 2²⁴.
    pub rcvd_bytes: u32,
    /// Packets received beyond the first missing one; 0xFFFF if unknown.
    pub ooo_count: u16,
}

/// The unit of `service_time`.
const SERVICE_TIME_UNIT: Span = Span::from_ns(128);

impl NsccState {
    /// The receiver's request concerning the window.
    #[inline]
    pub fn flow_control(&self) -> FlowControl {
        match (self.rcv_cwnd_pend, self.restore_cwnd) {
            (0, false) => FlowControl::Off,
            (0, true) => FlowControl::Restore,
            (share, _) => FlowControl::Penalty(share),
        }
    }

    /// The `service_time` that says `waited`: rounded up, 0 for no time at all, which stands for "unknown".
    #[inline]
    pub fn service_time_of(waited: Span) -> u16 {
        waited.as_ps().div_ceil(SERVICE_TIME_UNIT.as_ps()).min(0xffff) as u16
    }

    /// Time from the packet's arrival to the acknowledgement; zero if unknown, and no more than 8.4 ms.
    #[inline]
    pub fn service_span(&self) -> Span {
        SERVICE_TIME_UNIT.times(self.service_time.into())
    }
}

/// NACK and NACK_CCX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nack {
    /// Type of the SES header that follows.
    pub next: NextHeader,
    /// The packet arrived with a congestion mark (M).
    pub ecn: bool,
    /// The packet was a retransmission.
    pub retx: bool,
    /// The packet was RUDI: `psn` is its pkt_id (NT).
    pub rudi: bool,
    /// Reason for refusing the packet.
    pub code: NackCode,
    /// Vendor-defined detail; weft's are in [`BlockLoss`].
    pub vendor_code: u8,
    /// PSN of the refused packet.
    pub psn: Psn,
    /// PDCID of the end that refuses; 0 if it has none.
    pub spdcid: PdcId,
    /// The PDCID of the end that sent the packet.
    pub dpdcid: PdcId,
    /// Depends on the code; for ROD_OOO the expected PSN, for NEW_START_PSN the Start_PSN to use.
    pub payload: u32,
    /// The extension of NACK_CCX.
    pub ccx: Option<NackCcx>,
}

/// The extension of NACK_CCX; no source defines its types. (nccx_type 4 bits in the first byte, then the rest.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NackCcx {
    /// nccx_type, 4 bits.
    pub kind: u8,
    /// The remaining 124 bits, right-aligned.
    pub bits: Bits128,
}

/// 128 uninterpreted bits, in two words: the alignment of a `u128` would make every header struct larger, and those
/// are copied along the fast path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Bits128 {
    /// The upper half.
    pub high: u64,
    /// The lower half.
    pub low: u64,
}

impl From<u128> for Bits128 {
    #[inline]
    fn from(bits: u128) -> Bits128 {
        Bits128 { high: (bits >> 64) as u64, low: bits as u64 }
    }
}

impl From<Bits128> for u128 {
    #[inline]
    fn from(bits: Bits128) -> u128 {
        u128::from(bits.high) << 64 | u128::from(bits.low)
    }
}

/// Why a packet was refused. Unknown codes are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NackCode(pub u8);

/// CP: a control packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    /// Type of the control packet.
    pub kind: ControlKind,
    /// The PDC is a ROD one (ISROD). Only NOOP and NEGOTIATION say so; it is false in control packets of other kinds,
    /// whose PDC is known.
    pub rod: bool,
    /// This is a retransmission.
    pub retx: bool,
    /// An acknowledgement is requested (AR).
    pub ack_request: bool,
    /// Echoed in the acknowledgement of a probe.
    pub probe_opaque: u16,
    /// The PSN that the packet consumes or refers to.
    pub psn: Psn,
    /// The sender's PDCID.
    pub spdcid: PdcId,
    /// The target's PDC.
    pub destination: Destination,
    /// Depends on the kind.
    pub payload: u32,
}

/// Control packet types (ctl_type, 4 bits).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ControlKind {
    /// No operation.
    Noop = 0,
    /// Acknowledge now.
    AckRequest = 1,
    /// Guaranteed-delivery responses up to PSN `payload` may be forgotten.
    ClearCommand = 2,
    /// Please send a clear command.
    ClearRequest = 3,
    /// Close the PDC; consumes a PSN.
    CloseCommand = 4,
    /// Please send a close command.
    CloseRequest = 5,
    /// A probe; payload: the SACK base PSN that the acknowledgement must use.
    Probe = 6,
    /// Credit; payload: the total credit granted, units of 256 B, modulo 2²⁴, in the low 24 bits.
    Credit = 7,
    /// Request for credit.
    CreditRequest = 8,
    /// Negotiation.
    Negotiation = 9,
}

impl ControlKind {
    /// Whether ISROD means something in packets of this kind: they may speak of a PDC that does not exist yet.
    #[inline]
    pub const fn states_mode(self) -> bool {
        matches!(self, ControlKind::Noop | ControlKind::Negotiation)
    }
}

/// RUDI_REQ and RUDI_RESP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rudi {
    /// A response, not a request.
    pub response: bool,
    /// Type of the SES header that follows.
    pub next: NextHeader,
    /// The request arrived with a congestion mark (responses only).
    pub ecn: bool,
    /// This is a retransmission.
    pub retx: bool,
    /// Identifier of the packet.
    pub pkt_id: u32,
}

/// UUD_REQ: unreliable, unordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uud {
    /// Type of the SES header that follows.
    pub next: NextHeader,
}

/// The security header (TSS). Parsed so that tools can name it; weft never decrypts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tss {
    /// Association number.
    pub an: bool,
    /// Secure domain, 24 bits.
    pub sdi: u32,
    /// Source id, if present (sp).
    pub ssi: Option<u32>,
    /// Key epoch.
    pub epoch: u16,
    /// Packet counter, 48 bits.
    pub counter: u64,
}

/// Any PDS header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pds {
    /// Type 1: security header.
    Tss(Tss),
    /// Types 2, 3, 13 and 14: reliable requests.
    Request(Request),
    /// Types 4 and 5: requests for idempotent operations, and their responses.
    Rudi(Rudi),
    /// Type 6: unreliable request.
    Uud(Uud),
    /// Types 7, 8 and 9: acknowledgements.
    Ack(Ack),
    /// Types 10 and 12: negative acknowledgements.
    Nack(Nack),
    /// Type 11: control packet.
    Control(Control),
}

impl NackCode {
    /// A switch trimmed the packet.
    pub const TRIMMED: NackCode = NackCode(0x01);
    /// The last switch trimmed the packet.
    pub const TRIMMED_LASTHOP: NackCode = NackCode(0x02);
    /// Reserved since 1.0.3.
    pub const TRIMMED_ACK: NackCode = NackCode(0x03);
    /// No PDC is free.
    pub const NO_PDC_AVAIL: NackCode = NackCode(0x04);
    /// No congestion context is free.
    pub const NO_CCC_AVAIL: NackCode = NackCode(0x05);
    /// No receive bitmap is free.
    pub const NO_BITMAP: NackCode = NackCode(0x06);
    /// No packet buffer is free.
    pub const NO_PKT_BUFFER: NackCode = NackCode(0x07);
    /// No room for a guaranteed-delivery response.
    pub const NO_GTD_DEL_AVAIL: NackCode = NackCode(0x08);
    /// No message state is free.
    pub const NO_SES_MSG_AVAIL: NackCode = NackCode(0x09);
    /// Another resource is exhausted.
    pub const NO_RESOURCE: NackCode = NackCode(0x0a);
    /// The PSN lies outside the window.
    pub const PSN_OOR_WINDOW: NackCode = NackCode(0x0b);
    /// ROD: out of order; go back.
    pub const ROD_OOO: NackCode = NackCode(0x0d);
    /// No such PDC.
    pub const INV_DPDCID: NackCode = NackCode(0x0e);
    /// The PDC belongs to another initiator.
    pub const PDC_HDR_MISMATCH: NackCode = NackCode(0x0f);
    /// The PDC is closing.
    pub const CLOSING: NackCode = NackCode(0x10);
    /// The PDC is closing after an error.
    pub const CLOSING_IN_ERR: NackCode = NackCode(0x11);
    /// A probe or ACK_REQ names a packet that has not arrived.
    pub const PKT_NOT_RCVD: NackCode = NackCode(0x12);
    /// The guaranteed-delivery response is no longer available.
    pub const GTD_RESP_UNAVAIL: NackCode = NackCode(0x13);
    /// An ACK carries data although it must not.
    pub const ACK_WITH_DATA: NackCode = NackCode(0x14);
    /// An invalid SYN: outside the window, or for a PDC that is in use.
    pub const INVALID_SYN: NackCode = NackCode(0x15);
    /// RUD packet for a ROD PDC, or the reverse.
    pub const PDC_MODE_MISMATCH: NackCode = NackCode(0x16);
    /// Restart with the PSN in the payload.
    pub const NEW_START_PSN: NackCode = NackCode(0x17);
    /// The packet was received; its response is not ready.
    pub const RCVD_SES_PROCG: NackCode = NackCode(0x18);
    /// An unexpected event.
    pub const UNEXP_EVENT: NackCode = NackCode(0x19);
    /// The receiver infers that the packet is lost.
    pub const RCVR_INFER_LOSS: NackCode = NackCode(0x1a);
    /// Experimental, normal.
    pub const EXP_NORMAL: NackCode = NackCode(0xfd);
    /// Experimental, error.
    pub const EXP_ERROR: NackCode = NackCode(0xfe);
    /// Experimental, fatal.
    pub const EXP_FATAL: NackCode = NackCode(0xff);

    /// Whether a switch has trimmed the packet.
    pub fn says_that_it_was_trimmed(self) -> bool {
        matches!(self, NackCode::TRIMMED | NackCode::TRIMMED_LASTHOP)
    }

    /// Whether the target lacks something, so that the packet is to be sent again later.
    pub fn asks_to_wait(self) -> bool {
        matches!(
            self,
            NackCode::NO_PDC_AVAIL
                | NackCode::NO_CCC_AVAIL
                | NackCode::NO_BITMAP
                | NackCode::NO_PKT_BUFFER
                | NackCode::NO_GTD_DEL_AVAIL
                | NackCode::NO_SES_MSG_AVAIL
                | NackCode::NO_RESOURCE
                | NackCode::PSN_OOR_WINDOW
                // The code for a packet beyond the window that carries SYN.
                | NackCode::INVALID_SYN
        )
    }
}
