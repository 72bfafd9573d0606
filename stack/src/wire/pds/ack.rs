//! Reading and writing acknowledgements: ACK, ACK_CC and ACK_CCX.

use super::codec::{MARK, RETX, flag, prologue, wrong_type};
use super::view::{PacketType, PdsView};
use super::{Ack, AckCc, AckRequest, AckTrigger, CcState, DelayEcho, NsccState, PdcId, Psn};
use crate::wire::bytes::{be16, be32, be64, be128, head, put, room};
use crate::wire::error::{HeaderName, WireError, fits};

const HEADER: HeaderName = HeaderName::Ack;

/// A public reference implementation sets this otherwise reserved bit to announce four more bytes.
const EXPECTED_PSN: u16 = 0x40;
const PROBE: u16 = 0x08;
const REQUEST_SHIFT: u16 = 1;

const CC_TYPE_NSCC: u8 = 0;
const CC_TYPE_CREDIT: u8 = 1;

impl Ack {
    /// Bytes of ACK.
    pub const LEN: usize = 12;
    /// Bytes of ACK_CC.
    pub const CC_LEN: usize = 32;
    /// Bytes of ACK_CCX.
    pub const CCX_LEN: usize = 40;

    /// Whether this asks the initiator whether it has the PDC: it requests CLEAR, and answers the packet at CACK with RETX. It says
    /// nothing then of which transmission of that packet has arrived.
    #[inline]
    pub fn is_question(&self) -> bool {
        self.retx && self.request == AckRequest::Clear && self.trigger == AckTrigger::Psn(0)
    }

    /// Reads an acknowledgement.
    ///
    /// # Errors
    /// An undefined next header; the bit that one implementation uses to announce another word, whose offset differs
    /// between all sources; a view of another type.
    #[inline]
    pub fn parse(view: &PdsView<'_>) -> Result<Ack, WireError> {
        let cc = match view.packet_type() {
            PacketType::Ack => None,
            PacketType::AckCc => Some(AckCc::from_cc(head(view.header(), HEADER)?)),
            PacketType::AckCcx => Some(AckCc::from_ccx(head(view.header(), HEADER)?)),
            _ => return Err(wrong_type(HEADER, view)),
        };
        let b: &[u8; Ack::LEN] = head(view.header(), HEADER)?;
        let flags = u16::from(view.flags());
        if flags & EXPECTED_PSN != 0 {
            return Err(WireError::Unexpected {
                header: HEADER,
                offset: 1,
                expected: "no Expected_PSN word (flag 0x40)",
                found: u64::from(flags),
            });
        }
        Ok(Ack {
            next: view.next_header()?,
            ecn: flags & MARK != 0,
            retx: flags & RETX != 0,
            request: AckRequest::from_bits(flags >> REQUEST_SHIFT),
            trigger: if flags & PROBE != 0 {
                AckTrigger::Probe(be16(b, 2))
            } else {
                AckTrigger::Psn(be16(b, 2) as i16)
            },
            cack_psn: Psn(be32(b, 4)),
            spdcid: PdcId(be16(b, 8)),
            dpdcid: PdcId(be16(b, 10)),
            cc,
        })
    }

    #[inline]
    const fn packet_type(&self) -> PacketType {
        match self.cc {
            None => PacketType::Ack,
            Some(AckCc { state: CcState::Extended { .. }, .. }) => PacketType::AckCcx,
            Some(_) => PacketType::AckCc,
        }
    }

    /// Bytes that [`Ack::emit`] writes.
    #[inline]
    pub const fn encoded_len(&self) -> usize {
        self.packet_type().header_len()
    }

    /// Writes the acknowledgement; returns its length.
    ///
    /// # Errors
    /// No room; a congestion-control field too wide; a [`CcState::Other`] whose type is defined.
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, WireError> {
        let kind = self.packet_type();
        if let Some(cc) = &self.cc {
            cc.emit(buf)?;
        }
        let (probe, word) = match self.trigger {
            AckTrigger::Psn(offset) => (0, offset as u16),
            AckTrigger::Probe(opaque) => (PROBE, opaque),
        };
        let flags =
            flag(self.ecn, MARK) | flag(self.retx, RETX) | probe | self.request.to_bits() << REQUEST_SHIFT;
        let b: &mut [u8; Ack::LEN] = room(buf, HEADER)?;
        put(b, 0, prologue(kind, self.next as u8, flags));
        put(b, 2, word.to_be_bytes());
        put(b, 4, self.cack_psn.0.to_be_bytes());
        put(b, 8, self.spdcid.0.to_be_bytes());
        put(b, 10, self.dpdcid.0.to_be_bytes());
        Ok(kind.header_len())
    }
}

impl AckRequest {
    #[inline]
    const fn from_bits(bits: u16) -> AckRequest {
        match bits & 3 {
            0 => AckRequest::None,
            1 => AckRequest::Clear,
            2 => AckRequest::Close,
            _ => AckRequest::Reserved,
        }
    }

    #[inline]
    const fn to_bits(self) -> u16 {
        match self {
            AckRequest::None => 0,
            AckRequest::Clear => 1,
            AckRequest::Close => 2,
            AckRequest::Reserved => 3,
        }
    }
}

impl AckCc {
    #[inline]
    fn from_cc(b: &[u8; Ack::CC_LEN]) -> AckCc {
        AckCc::common(b, CcState::from_wire(b[12] >> 4, be64(b, 24)))
    }

    #[inline]
    fn from_ccx(b: &[u8; Ack::CCX_LEN]) -> AckCc {
        AckCc::common(b, CcState::Extended { kind: b[12] >> 4, bits: be128(b, 24).into() })
    }

    #[inline]
    fn common<const N: usize>(b: &[u8; N], state: CcState) -> AckCc {
        AckCc {
            flags: b[12] & 0xf,
            mpr: b[13],
            sack_psn_offset: be16(b, 14) as i16,
            sack_bitmap: be64(b, 16),
            state,
        }
    }

    /// Writes all but the first 12 bytes.
    #[inline]
    fn emit(&self, buf: &mut [u8]) -> Result<(), WireError> {
        fits(HEADER, 12, "cc_flags", u64::from(self.flags), 4)?;
        let kind = match self.state {
            CcState::Extended { kind, bits } => {
                let b: &mut [u8; Ack::CCX_LEN] = room(buf, HEADER)?;
                put(b, 24, u128::from(bits).to_be_bytes());
                kind
            }
            state => {
                let (kind, bits) = state.to_wire()?;
                let b: &mut [u8; Ack::CC_LEN] = room(buf, HEADER)?;
                put(b, 24, bits.to_be_bytes());
                kind
            }
        };
        fits(HEADER, 12, "cc_type", u64::from(kind), 4)?;
        let b: &mut [u8; Ack::CC_LEN] = room(buf, HEADER)?;
        b[12] = kind << 4 | self.flags;
        b[13] = self.mpr;
        put(b, 14, self.sack_psn_offset.to_be_bytes());
        put(b, 16, self.sack_bitmap.to_be_bytes());
        Ok(())
    }
}

impl CcState {
    /// State from the 64 bits of ACK_CC.
    #[inline]
    fn from_wire(kind: u8, bits: u64) -> CcState {
        let ooo_count = bits as u16;
        match kind {
            CC_TYPE_NSCC => CcState::Nscc(NsccState {
                service_time: (bits >> 48) as u16,
                restore_cwnd: bits >> 47 & 1 != 0,
                rcv_cwnd_pend: (bits >> 40 & 0x7f) as u8,
                rcvd_bytes: (bits >> 16 & 0xff_ffff) as u32,
                ooo_count,
            }),
            CC_TYPE_CREDIT => CcState::Credit { credit: (bits >> 40) as u32, ooo_count },
            DelayEcho::CC_TYPE => CcState::DelayEcho(DelayEcho::from_bits(bits)),
            _ => CcState::Other { kind, bits },
        }
    }

    /// cc_type and the 64 bits of ACK_CC.
    #[inline]
    fn to_wire(self) -> Result<(u8, u64), WireError> {
        match self {
            CcState::Nscc(s) => {
                fits(HEADER, 26, "rcv_cwnd_pend", u64::from(s.rcv_cwnd_pend), 7)?;
                fits(HEADER, 27, "rcvd_bytes", u64::from(s.rcvd_bytes), 24)?;
                let bits = u64::from(s.service_time) << 48
                    | u64::from(s.restore_cwnd) << 47
                    | u64::from(s.rcv_cwnd_pend) << 40
                    | u64::from(s.rcvd_bytes) << 16
                    | u64::from(s.ooo_count);
                Ok((CC_TYPE_NSCC, bits))
            }
            CcState::Credit { credit, ooo_count } => {
                fits(HEADER, 24, "credit", u64::from(credit), 24)?;
                Ok((CC_TYPE_CREDIT, u64::from(credit) << 40 | u64::from(ooo_count)))
            }
            CcState::DelayEcho(echo) => {
                fits(HEADER, 24, "rcvd_bytes", u64::from(echo.rcvd_bytes), 24)?;
                Ok((DelayEcho::CC_TYPE, echo.to_bits()))
            }
            CcState::Other { kind: CC_TYPE_NSCC | CC_TYPE_CREDIT | DelayEcho::CC_TYPE, .. }
            | CcState::Extended { .. } => Err(WireError::Inconsistent {
                header: HEADER,
                offset: 12,
                expected: "the state's own variant for cc_type 0, 1 and 15",
            }),
            CcState::Other { kind, bits } => Ok((kind, bits)),
        }
    }
}
