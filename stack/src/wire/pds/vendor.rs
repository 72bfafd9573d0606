//! What weft adds to PDS headers, in places that the standard reserves or leaves to vendors: all of it is here. A peer
//! that knows nothing of it is not disturbed: requests ask with bits that it ignores, and answers come to those who ask.

use weft_cc::Span;

use super::{Nack, NackCode, NsccState, Psn};

/// Flags of a request, in the bits of its prologue that the standard reserves. They are in the first two bytes, so they
/// survive trimming.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct VendorFlags(u8);

impl VendorFlags {
    /// None.
    pub const NONE: VendorFlags = VendorFlags(0);
    /// The acknowledgement of this packet is to carry a [`DelayEcho`].
    pub const DELAY_ECHO: VendorFlags = VendorFlags(0x40);
    /// The sender holds more credit than it can use (SIRD's csn).
    pub const CONGESTED_SENDER: VendorFlags = VendorFlags(0x20);
    /// The packet was sent without credit.
    pub const UNSCHEDULED: VendorFlags = VendorFlags(0x02);
    /// The packet belongs to a coded block.
    pub const CODED: VendorFlags = VendorFlags(0x01);

    /// All four bits of the prologue.
    const ALL: u8 = 0x63;

    /// The flags among the seven flag bits of a prologue.
    #[inline]
    pub(super) const fn from_prologue(flags: u16) -> VendorFlags {
        VendorFlags(flags as u8 & VendorFlags::ALL)
    }

    /// The bits of the prologue.
    #[inline]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// These flags and those of `other`.
    #[inline]
    pub const fn with(self, other: VendorFlags) -> VendorFlags {
        VendorFlags(self.0 | other.0)
    }

    /// Whether all flags of `other` are among these.
    #[inline]
    pub const fn has(self, other: VendorFlags) -> bool {
        self.0 & other.0 == other.0
    }
}

/// State of ACK_CC with cc_type 15, which the standard leaves to vendors: where the delay of the packet arose. Only for
/// packets that ask for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DelayEcho {
    /// As [`NsccState::rcvd_bytes`]: what has arrived does not depend on the kind of acknowledgement.
    pub rcvd_bytes: u32,
    /// Switches that the packet has passed; 0 if unknown.
    pub hops: u8,
    /// Time from the packet's arrival at the host to its acknowledgement, units of 32 ns; 0xFFFE if longer than the field
    /// can express, 0xFFFF if unknown.
    pub remote_queueing: u16,
    /// As [`NsccState::ooo_count`].
    pub ooo_count: u16,
}

impl DelayEcho {
    /// cc_type.
    pub const CC_TYPE: u8 = 15;
    /// `remote_queueing` if nobody measured it.
    pub const UNKNOWN: u16 = 0xffff;
    /// The unit of `remote_queueing`.
    pub const UNIT: Span = Span::from_ns(32);

    /// The echo for a packet that has passed `hops` switches and waited for `queued`, with the counts of `state`.
    pub fn of(state: &NsccState, hops: u8, queued: Option<Span>) -> DelayEcho {
        let units = |span: Span| (span.as_ps() / DelayEcho::UNIT.as_ps()).min(0xfffe) as u16;
        DelayEcho {
            rcvd_bytes: state.rcvd_bytes,
            hops,
            remote_queueing: queued.map_or(DelayEcho::UNKNOWN, units),
            ooo_count: state.ooo_count,
        }
    }

    /// `remote_queueing` as a time; none if unknown.
    pub fn queued(&self) -> Option<Span> {
        let known = self.remote_queueing != DelayEcho::UNKNOWN;
        known.then(|| DelayEcho::UNIT.times(u64::from(self.remote_queueing)))
    }

    /// From the 64 bits of ACK_CC.
    #[inline]
    pub(super) const fn from_bits(bits: u64) -> DelayEcho {
        DelayEcho {
            rcvd_bytes: (bits >> 40) as u32,
            hops: (bits >> 32) as u8,
            remote_queueing: (bits >> 16) as u16,
            ooo_count: bits as u16,
        }
    }

    /// The 64 bits of ACK_CC. `rcvd_bytes` has 24 bits.
    #[inline]
    pub(super) const fn to_bits(self) -> u64 {
        (self.rcvd_bytes as u64) << 40
            | (self.hops as u64) << 32
            | (self.remote_queueing as u64) << 16
            | self.ooo_count as u64
    }
}

/// Several packets that the receiver infers to be lost, in one NACK: those missing from a coded block.
///
/// The NACK is RCVR_INFER_LOSS with the PSN of the first of them, as for a single packet; the vendor code says that the
/// payload names the others. A peer that does not know it sends the first one again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockLoss {
    /// The first missing packet.
    pub first: Psn,
    /// Bit i stands for the packet `first` + i. Bit 0 is set.
    pub missing: u32,
}

impl BlockLoss {
    /// vendor_code of a NACK whose payload is such a bitmap.
    pub const VENDOR_CODE: u8 = 1;

    /// The packets that `nack` names, if it is one of these.
    pub fn of(nack: &Nack) -> Option<BlockLoss> {
        let is_one = nack.code == NackCode::RCVR_INFER_LOSS
            && nack.vendor_code == BlockLoss::VENDOR_CODE
            && !nack.rudi
            && nack.payload & 1 == 1;
        is_one.then_some(BlockLoss { first: nack.psn, missing: nack.payload })
    }

    /// `nack` with these packets instead of its own.
    pub fn nack(self, nack: &Nack) -> Nack {
        Nack {
            code: NackCode::RCVR_INFER_LOSS,
            vendor_code: BlockLoss::VENDOR_CODE,
            rudi: false,
            psn: self.first,
            payload: self.missing | 1,
            ..*nack
        }
    }

    /// The missing packets.
    pub fn psns(self) -> impl Iterator<Item = Psn> {
        (0..32).filter(move |bit| self.missing >> bit & 1 == 1).map(move |bit| self.first.plus(bit))
    }
}
