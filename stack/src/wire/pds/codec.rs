//! Reading and writing PDS headers. Acknowledgements are in [`ack`](super::ack).
//!
//! Reserved bits are written zero and ignored when read, but for those of [`vendor`](super::vendor).

use super::view::{PacketType, PdsView};
use super::{
    Control, ControlKind, DeliveryMode, Destination, Nack, NackCcx, NackCode, NextHeader, PdcId, Pds, Psn,
    Request, RequestCc, Rudi, Tss, Uud, VendorFlags,
};
use crate::wire::bytes::{be16, be24, be32, be64, be128, head, put, put24, room};
use crate::wire::error::{HeaderName, WireError, fits};

pub(super) const RETX: u16 = 0x10;
const AR: u16 = 0x08;
const SYN: u16 = 0x04;
/// M of ACK, NACK and RUDI_RESP.
pub(super) const MARK: u16 = 0x20;
const IS_ROD: u16 = 0x20;
const NT: u16 = 0x08;
/// TSS has no next header and no flags; these two bits take their place.
pub(super) const TSS_SP: u16 = 0x0400;
const TSS_AN: u16 = 0x0100;

/// All flags of the prologue.
const FLAGS: u16 = 0x7f;

const USE_RESERVED_PDC: u16 = 0x8000;
const PSN_OFFSET_BITS: u32 = 12;

#[inline]
pub(super) const fn prologue(kind: PacketType, next: u8, flags: u16) -> [u8; 2] {
    ((kind as u16) << 11 | (next as u16) << 7 | flags).to_be_bytes()
}

/// `bit` if `on`.
#[inline]
pub(super) const fn flag(on: bool, bit: u16) -> u16 {
    if on { bit } else { 0 }
}

impl Destination {
    #[inline]
    fn from_wire(syn: bool, word: u16) -> Destination {
        if syn {
            Destination::Syn {
                use_reserved: word & USE_RESERVED_PDC != 0,
                psn_offset: word & ((1 << PSN_OFFSET_BITS) - 1),
            }
        } else {
            Destination::Pdc(PdcId(word))
        }
    }

    /// The SYN flag and the word at offset 10.
    #[inline]
    fn to_wire(self, header: HeaderName) -> Result<(u16, u16), WireError> {
        match self {
            Destination::Pdc(PdcId(id)) => Ok((0, id)),
            Destination::Syn { use_reserved, psn_offset } => {
                fits(header, 10, "psn_offset", u64::from(psn_offset), PSN_OFFSET_BITS)?;
                Ok((SYN, flag(use_reserved, USE_RESERVED_PDC) | psn_offset))
            }
        }
    }
}

impl Request {
    /// Length without congestion-control fields, bytes.
    pub const LEN: usize = 12;
    /// Length with congestion-control fields, bytes.
    pub const CC_LEN: usize = 16;

    /// Reads a request.
    ///
    /// # Errors
    /// An undefined next header; a view of another type.
    #[inline]
    pub fn parse(view: &PdsView<'_>) -> Result<Request, WireError> {
        let (mode, with_cc) = match view.packet_type() {
            PacketType::RudReq => (DeliveryMode::Rud, false),
            PacketType::RodReq => (DeliveryMode::Rod, false),
            PacketType::RudCcReq => (DeliveryMode::Rud, true),
            PacketType::RodCcReq => (DeliveryMode::Rod, true),
            _ => return Err(wrong_type(HeaderName::Request, view)),
        };
        let cc = if with_cc {
            let b: &[u8; Request::CC_LEN] = head(view.header(), HeaderName::Request)?;
            Some(RequestCc { ccc_id: b[12], credit_target: be24(b, 13) })
        } else {
            None
        };
        let b: &[u8; Request::LEN] = head(view.header(), HeaderName::Request)?;
        Ok(Request { cc, ..Request::read(b, mode, view.next_header()?) })
    }

    /// Reads the most common kind of request: without congestion-control fields, in front of a standard SES header.
    /// `None` for any other.
    #[inline]
    pub(in crate::wire) fn parse_plain(b: &[u8; Request::LEN]) -> Option<Request> {
        const NEXT: NextHeader = NextHeader::RequestStandard;
        const RUD: u16 = u16::from_be_bytes(prologue(PacketType::RudReq, NEXT as u8, 0));
        const ROD: u16 = u16::from_be_bytes(prologue(PacketType::RodReq, NEXT as u8, 0));
        let mode = match be16(b, 0) & !FLAGS {
            RUD => DeliveryMode::Rud,
            ROD => DeliveryMode::Rod,
            _ => return None,
        };
        Some(Request::read(b, mode, NEXT))
    }

    #[inline]
    fn read(b: &[u8; Request::LEN], mode: DeliveryMode, next: NextHeader) -> Request {
        let flags = be16(b, 0);
        Request {
            mode,
            next,
            retx: flags & RETX != 0,
            ack_request: flags & AR != 0,
            clear_psn_offset: be16(b, 2) as i16,
            psn: Psn(be32(b, 4)),
            spdcid: PdcId(be16(b, 8)),
            destination: Destination::from_wire(flags & SYN != 0, be16(b, 10)),
            vendor: VendorFlags::from_prologue(flags),
            cc: None,
        }
    }

    /// Bytes that [`Request::emit`] writes.
    #[inline]
    pub const fn encoded_len(&self) -> usize {
        if self.cc.is_some() { Request::CC_LEN } else { Request::LEN }
    }

    /// Writes the request; returns its length.
    ///
    /// # Errors
    /// No room; `psn_offset` or `credit_target` too wide.
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, WireError> {
        let kind = match (self.mode, self.cc.is_some()) {
            (DeliveryMode::Rud, false) => PacketType::RudReq,
            (DeliveryMode::Rod, false) => PacketType::RodReq,
            (DeliveryMode::Rud, true) => PacketType::RudCcReq,
            (DeliveryMode::Rod, true) => PacketType::RodCcReq,
        };
        let (syn, target) = self.destination.to_wire(HeaderName::Request)?;
        if let Some(cc) = self.cc {
            fits(HeaderName::Request, 13, "credit_target", u64::from(cc.credit_target), 24)?;
            let b: &mut [u8; Request::CC_LEN] = room(buf, HeaderName::Request)?;
            b[12] = cc.ccc_id;
            put24(b, 13, cc.credit_target);
        }
        self.write(room(buf, HeaderName::Request)?, prologue(kind, self.next as u8, syn), target);
        Ok(self.encoded_len())
    }

    /// Writes a request of the kind that [`Request::parse_plain`] reads. Returns whether it is of that kind, and its values fit
    /// in their fields; if not, `b` is as it was.
    #[inline(always)]
    pub(in crate::wire) fn write_plain(&self, b: &mut [u8; Request::LEN]) -> bool {
        const NEXT: NextHeader = NextHeader::RequestStandard;
        let (NEXT, None, Ok((syn, target))) =
            (self.next, self.cc, self.destination.to_wire(HeaderName::Request))
        else {
            return false;
        };
        let kind = match self.mode {
            DeliveryMode::Rud => PacketType::RudReq,
            DeliveryMode::Rod => PacketType::RodReq,
        };
        self.write(b, prologue(kind, NEXT as u8, syn), target);
        true
    }

    /// Writes all but the congestion-control fields. `prologue` lacks the flags that are fields of the request.
    #[inline(always)]
    fn write(&self, b: &mut [u8; Request::LEN], prologue: [u8; 2], target: u16) {
        let flags = flag(self.retx, RETX) | flag(self.ack_request, AR) | u16::from(self.vendor.bits());
        let prologue = u16::from_be_bytes(prologue) | flags;
        let clear = self.clear_psn_offset as u16;
        let first = u64::from(prologue) << 48 | u64::from(clear) << 32 | u64::from(self.psn.0);
        put(b, 0, first.to_be_bytes());
        put(b, 8, (u32::from(self.spdcid.0) << 16 | u32::from(target)).to_be_bytes());
    }
}

impl Nack {
    /// Bytes of NACK.
    pub const LEN: usize = 16;
    /// Bytes of NACK_CCX.
    pub const CCX_LEN: usize = 32;

    /// Reads a NACK. Codes that are not defined are kept.
    ///
    /// # Errors
    /// An undefined next header; a view of another type.
    pub fn parse(view: &PdsView<'_>) -> Result<Nack, WireError> {
        let ccx = match view.packet_type() {
            PacketType::Nack => None,
            PacketType::NackCcx => {
                let b: &[u8; Nack::CCX_LEN] = head(view.header(), HeaderName::Nack)?;
                Some(NackCcx { kind: b[16] >> 4, bits: (be128(b, 16) & NACK_CCX_MASK).into() })
            }
            _ => return Err(wrong_type(HeaderName::Nack, view)),
        };
        let b: &[u8; Nack::LEN] = head(view.header(), HeaderName::Nack)?;
        let flags = u16::from(view.flags());
        Ok(Nack {
            next: view.next_header()?,
            ecn: flags & MARK != 0,
            retx: flags & RETX != 0,
            rudi: flags & NT != 0,
            code: NackCode(b[2]),
            vendor_code: b[3],
            psn: Psn(be32(b, 4)),
            spdcid: PdcId(be16(b, 8)),
            dpdcid: PdcId(be16(b, 10)),
            payload: be32(b, 12),
            ccx,
        })
    }

    /// Bytes that [`Nack::emit`] writes.
    #[inline]
    pub const fn encoded_len(&self) -> usize {
        if self.ccx.is_some() { Nack::CCX_LEN } else { Nack::LEN }
    }

    /// Writes the NACK; returns its length.
    ///
    /// # Errors
    /// No room; an extension too wide.
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, WireError> {
        let mut kind = PacketType::Nack;
        if let Some(ccx) = self.ccx {
            kind = PacketType::NackCcx;
            fits(HeaderName::Nack, 16, "nccx_type", u64::from(ccx.kind), 4)?;
            fits(HeaderName::Nack, 16, "nack_ccx_state", ccx.bits.high, 60)?;
            let b: &mut [u8; Nack::CCX_LEN] = room(buf, HeaderName::Nack)?;
            put(b, 16, (u128::from(ccx.kind) << 124 | u128::from(ccx.bits)).to_be_bytes());
        }
        let flags = flag(self.ecn, MARK) | flag(self.retx, RETX) | flag(self.rudi, NT);
        let b: &mut [u8; Nack::LEN] = room(buf, HeaderName::Nack)?;
        put(b, 0, prologue(kind, self.next as u8, flags));
        b[2] = self.code.0;
        b[3] = self.vendor_code;
        put(b, 4, self.psn.0.to_be_bytes());
        put(b, 8, self.spdcid.0.to_be_bytes());
        put(b, 10, self.dpdcid.0.to_be_bytes());
        put(b, 12, self.payload.to_be_bytes());
        Ok(self.encoded_len())
    }
}

const NACK_CCX_MASK: u128 = u128::MAX >> 4;

impl ControlKind {
    /// From the four bits of the prologue; `None` for the values that are not defined.
    pub const fn from_bits(bits: u8) -> Option<ControlKind> {
        Some(match bits {
            0 => ControlKind::Noop,
            1 => ControlKind::AckRequest,
            2 => ControlKind::ClearCommand,
            3 => ControlKind::ClearRequest,
            4 => ControlKind::CloseCommand,
            5 => ControlKind::CloseRequest,
            6 => ControlKind::Probe,
            7 => ControlKind::Credit,
            8 => ControlKind::CreditRequest,
            9 => ControlKind::Negotiation,
            _ => return None,
        })
    }
}

impl Control {
    /// Bytes of the header.
    pub const LEN: usize = 16;

    /// Reads a control packet.
    ///
    /// # Errors
    /// An undefined control type; a view of another type.
    pub fn parse(view: &PdsView<'_>) -> Result<Control, WireError> {
        if view.packet_type() != PacketType::Control {
            return Err(wrong_type(HeaderName::Control, view));
        }
        let b: &[u8; Control::LEN] = head(view.header(), HeaderName::Control)?;
        let kind = view.next_or_control();
        let kind = ControlKind::from_bits(kind).ok_or(WireError::Unexpected {
            header: HeaderName::Control,
            offset: 0,
            expected: "a control type between 0 and 9",
            found: u64::from(kind),
        })?;
        // No source says where the credit is in the payload: weft uses the low 24 bits and reserves the rest.
        let payload_mask = if kind == ControlKind::Credit { 0xff_ffff } else { u32::MAX };
        let flags = u16::from(view.flags());
        Ok(Control {
            kind,
            rod: kind.states_mode() && flags & IS_ROD != 0,
            retx: flags & RETX != 0,
            ack_request: flags & AR != 0,
            probe_opaque: be16(b, 2),
            psn: Psn(be32(b, 4)),
            spdcid: PdcId(be16(b, 8)),
            destination: Destination::from_wire(flags & SYN != 0, be16(b, 10)),
            payload: be32(b, 12) & payload_mask,
        })
    }

    /// Writes the control packet; returns its length.
    ///
    /// # Errors
    /// No room; `psn_offset` too wide; a CREDIT whose payload exceeds 24 bits; ISROD in a kind that does not have it.
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, WireError> {
        if self.rod && !self.kind.states_mode() {
            return Err(WireError::Inconsistent {
                header: HeaderName::Control,
                offset: 1,
                expected: "ISROD in NOOP and NEGOTIATION only",
            });
        }
        let (syn, target) = self.destination.to_wire(HeaderName::Control)?;
        if self.kind == ControlKind::Credit {
            fits(HeaderName::Control, 12, "credit", u64::from(self.payload), 24)?;
        }
        let flags = flag(self.rod, IS_ROD) | flag(self.retx, RETX) | flag(self.ack_request, AR) | syn;
        let b: &mut [u8; Control::LEN] = room(buf, HeaderName::Control)?;
        put(b, 0, prologue(PacketType::Control, self.kind as u8, flags));
        put(b, 2, self.probe_opaque.to_be_bytes());
        put(b, 4, self.psn.0.to_be_bytes());
        put(b, 8, self.spdcid.0.to_be_bytes());
        put(b, 10, target.to_be_bytes());
        put(b, 12, self.payload.to_be_bytes());
        Ok(Control::LEN)
    }
}

impl Rudi {
    /// Bytes of the header.
    pub const LEN: usize = 8;

    /// Reads a RUDI header.
    ///
    /// # Errors
    /// An undefined next header; a view of another type.
    pub fn parse(view: &PdsView<'_>) -> Result<Rudi, WireError> {
        let response = match view.packet_type() {
            PacketType::RudiReq => false,
            PacketType::RudiResp => true,
            _ => return Err(wrong_type(HeaderName::Rudi, view)),
        };
        let b: &[u8; Rudi::LEN] = head(view.header(), HeaderName::Rudi)?;
        let flags = u16::from(view.flags());
        Ok(Rudi {
            response,
            next: view.next_header()?,
            ecn: flags & MARK != 0,
            retx: flags & RETX != 0,
            pkt_id: be32(b, 4),
        })
    }

    /// Writes the header; returns its length.
    ///
    /// # Errors
    /// [`WireError::NoRoom`].
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, WireError> {
        let kind = if self.response { PacketType::RudiResp } else { PacketType::RudiReq };
        let b: &mut [u8; Rudi::LEN] = room(buf, HeaderName::Rudi)?;
        let flags = flag(self.ecn, MARK) | flag(self.retx, RETX);
        put(b, 0, prologue(kind, self.next as u8, flags));
        put(b, 2, [0; 2]);
        put(b, 4, self.pkt_id.to_be_bytes());
        Ok(Rudi::LEN)
    }
}

impl Uud {
    /// Bytes of the header.
    pub const LEN: usize = 4;

    /// Reads a UUD header.
    ///
    /// # Errors
    /// An undefined next header; a view of another type.
    pub fn parse(view: &PdsView<'_>) -> Result<Uud, WireError> {
        match view.packet_type() {
            PacketType::UudReq => Ok(Uud { next: view.next_header()? }),
            _ => Err(wrong_type(HeaderName::Uud, view)),
        }
    }

    /// Writes the header; returns its length.
    ///
    /// # Errors
    /// [`WireError::NoRoom`].
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, WireError> {
        let b: &mut [u8; Uud::LEN] = room(buf, HeaderName::Uud)?;
        put(b, 0, prologue(PacketType::UudReq, self.next as u8, 0));
        put(b, 2, [0; 2]);
        Ok(Uud::LEN)
    }
}

impl Tss {
    /// Length without the source id, bytes.
    pub const LEN: usize = 12;
    /// Length with the source id, bytes.
    pub const SSI_LEN: usize = 16;

    /// Reads a security header.
    ///
    /// # Errors
    /// A view of another type.
    pub fn parse(view: &PdsView<'_>) -> Result<Tss, WireError> {
        if view.packet_type() != PacketType::Tss {
            return Err(wrong_type(HeaderName::Tss, view));
        }
        let b: &[u8; Tss::LEN] = head(view.header(), HeaderName::Tss)?;
        let first = be16(b, 0);
        let (ssi, tail) = if first & TSS_SP != 0 {
            let b: &[u8; Tss::SSI_LEN] = head(view.header(), HeaderName::Tss)?;
            (Some(be32(b, 4)), be64(b, 8))
        } else {
            (None, be64(b, 4))
        };
        Ok(Tss {
            an: first & TSS_AN != 0,
            sdi: be24(b, 1),
            ssi,
            epoch: (tail >> 48) as u16,
            counter: tail & COUNTER_MASK,
        })
    }

    /// Bytes that [`Tss::emit`] writes.
    pub const fn encoded_len(&self) -> usize {
        if self.ssi.is_some() { Tss::SSI_LEN } else { Tss::LEN }
    }

    /// Writes the header; returns its length. The 16 B tag behind the payload is not included.
    ///
    /// # Errors
    /// No room; `sdi` or `counter` too wide.
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, WireError> {
        fits(HeaderName::Tss, 1, "sdi", u64::from(self.sdi), 24)?;
        fits(HeaderName::Tss, self.encoded_len() - 6, "counter", self.counter, 48)?;
        let tail = (u64::from(self.epoch) << 48 | self.counter).to_be_bytes();
        if let Some(ssi) = self.ssi {
            let b: &mut [u8; Tss::SSI_LEN] = room(buf, HeaderName::Tss)?;
            put(b, 4, ssi.to_be_bytes());
            put(b, 8, tail);
        } else {
            let b: &mut [u8; Tss::LEN] = room(buf, HeaderName::Tss)?;
            put(b, 4, tail);
        }
        let b: &mut [u8; Tss::LEN] = room(buf, HeaderName::Tss)?;
        put(b, 0, prologue(PacketType::Tss, 0, flag(self.ssi.is_some(), TSS_SP) | flag(self.an, TSS_AN)));
        put24(b, 1, self.sdi);
        Ok(self.encoded_len())
    }
}

const COUNTER_MASK: u64 = (1 << 48) - 1;

#[cold]
pub(super) fn wrong_type(header: HeaderName, view: &PdsView<'_>) -> WireError {
    let expected = "a packet of this header's type";
    WireError::Unexpected { header, offset: 0, expected, found: view.packet_type() as u64 }
}

impl Pds {
    /// Reads the header that the view holds.
    ///
    /// # Errors
    /// An undefined next header, control type or flag.
    #[inline]
    pub fn parse(view: &PdsView<'_>) -> Result<Pds, WireError> {
        Ok(match view.packet_type() {
            PacketType::RudReq | PacketType::RodReq | PacketType::RudCcReq | PacketType::RodCcReq => {
                Pds::Request(Request::parse(view)?)
            }
            PacketType::Ack | PacketType::AckCc | PacketType::AckCcx => Pds::Ack(super::Ack::parse(view)?),
            PacketType::Nack | PacketType::NackCcx => Pds::Nack(Nack::parse(view)?),
            PacketType::Control => Pds::Control(Control::parse(view)?),
            PacketType::RudiReq | PacketType::RudiResp => Pds::Rudi(Rudi::parse(view)?),
            PacketType::UudReq => Pds::Uud(Uud::parse(view)?),
            PacketType::Tss => Pds::Tss(Tss::parse(view)?),
        })
    }

    /// Reads the header at the start of `bytes`; also returns the bytes after it.
    ///
    /// # Errors
    /// As [`PdsView::new_checked`] and [`Pds::parse`].
    #[inline]
    pub fn decode(bytes: &[u8]) -> Result<(Pds, &[u8]), WireError> {
        let view = PdsView::new_checked(bytes)?;
        Ok((Pds::parse(&view)?, view.payload()))
    }

    /// Bytes that [`Pds::emit`] writes.
    #[inline]
    pub const fn encoded_len(&self) -> usize {
        match self {
            Pds::Tss(h) => h.encoded_len(),
            Pds::Request(h) => h.encoded_len(),
            Pds::Rudi(_) => Rudi::LEN,
            Pds::Uud(_) => Uud::LEN,
            Pds::Ack(h) => h.encoded_len(),
            Pds::Nack(h) => h.encoded_len(),
            Pds::Control(_) => Control::LEN,
        }
    }

    /// Writes the header; returns its length.
    ///
    /// # Errors
    /// No room; a value too wide for its field.
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, WireError> {
        match self {
            Pds::Request(h) => h.emit(buf),
            Pds::Ack(h) => h.emit(buf),
            Pds::Nack(h) => h.emit(buf),
            Pds::Control(h) => h.emit(buf),
            Pds::Rudi(h) => h.emit(buf),
            Pds::Uud(h) => h.emit(buf),
            Pds::Tss(h) => h.emit(buf),
        }
    }

    /// Type of the SES header that follows. No header follows a CP, and the bytes after TSS are encrypted.
    #[inline]
    pub const fn next_header(&self) -> NextHeader {
        match self {
            Pds::Request(h) => h.next,
            Pds::Ack(h) => h.next,
            Pds::Nack(h) => h.next,
            Pds::Rudi(h) => h.next,
            Pds::Uud(h) => h.next,
            Pds::Tss(_) | Pds::Control(_) => NextHeader::None,
        }
    }
}
