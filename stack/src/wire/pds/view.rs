//! The prologue, and a checked view of any PDS header.

use super::NextHeader;
use crate::wire::bytes::{be16, head};
use crate::wire::error::{HeaderName, WireError};

/// Bytes of the prologue.
pub const PROLOGUE_LEN: usize = 2;

/// PDS types (prologue bits 15–11).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PacketType {
    /// The security header.
    Tss = 1,
    /// Reliable unordered request.
    RudReq = 2,
    /// Reliable ordered request.
    RodReq = 3,
    /// Reliable unordered request for idempotent operations.
    RudiReq = 4,
    /// Response to such a request.
    RudiResp = 5,
    /// Unreliable unordered request.
    UudReq = 6,
    /// Acknowledgement.
    Ack = 7,
    /// Acknowledgement with congestion control.
    AckCc = 8,
    /// Acknowledgement with extended congestion control.
    AckCcx = 9,
    /// Negative acknowledgement.
    Nack = 10,
    /// Control packet.
    Control = 11,
    /// Negative acknowledgement with extension.
    NackCcx = 12,
    /// Reliable unordered request with congestion control.
    RudCcReq = 13,
    /// Reliable ordered request with congestion control.
    RodCcReq = 14,
}

impl PacketType {
    /// From the five type bits; `None` for the values that are not defined.
    #[inline]
    pub const fn from_bits(bits: u8) -> Option<PacketType> {
        Some(match bits {
            1 => PacketType::Tss,
            2 => PacketType::RudReq,
            3 => PacketType::RodReq,
            4 => PacketType::RudiReq,
            5 => PacketType::RudiResp,
            6 => PacketType::UudReq,
            7 => PacketType::Ack,
            8 => PacketType::AckCc,
            9 => PacketType::AckCcx,
            10 => PacketType::Nack,
            11 => PacketType::Control,
            12 => PacketType::NackCcx,
            13 => PacketType::RudCcReq,
            14 => PacketType::RodCcReq,
            _ => return None,
        })
    }

    /// Bytes of the header, prologue included; for TSS without its optional source id.
    #[inline]
    pub const fn header_len(self) -> usize {
        match self {
            PacketType::UudReq => 4,
            PacketType::RudiReq | PacketType::RudiResp => 8,
            PacketType::RudReq | PacketType::RodReq | PacketType::Ack | PacketType::Tss => 12,
            PacketType::RudCcReq | PacketType::RodCcReq | PacketType::Nack | PacketType::Control => 16,
            PacketType::AckCc | PacketType::NackCcx => 32,
            PacketType::AckCcx => 40,
        }
    }

    /// The name of the header.
    pub const fn header(self) -> HeaderName {
        match self {
            PacketType::Tss => HeaderName::Tss,
            PacketType::RudReq | PacketType::RodReq | PacketType::RudCcReq | PacketType::RodCcReq => {
                HeaderName::Request
            }
            PacketType::RudiReq | PacketType::RudiResp => HeaderName::Rudi,
            PacketType::UudReq => HeaderName::Uud,
            PacketType::Ack | PacketType::AckCc | PacketType::AckCcx => HeaderName::Ack,
            PacketType::Nack | PacketType::NackCcx => HeaderName::Nack,
            PacketType::Control => HeaderName::Control,
        }
    }
}

/// Bytes known to hold a whole PDS header of a defined type.
#[derive(Clone, Copy, Debug)]
pub struct PdsView<'a> {
    kind: PacketType,
    prologue: u16,
    header: &'a [u8],
    rest: &'a [u8],
}

impl<'a> PdsView<'a> {
    /// Checks the type and the length.
    ///
    /// # Errors
    /// [`WireError::Truncated`]; [`WireError::Unexpected`] for a type that is not defined.
    #[inline]
    pub fn new_checked(bytes: &'a [u8]) -> Result<PdsView<'a>, WireError> {
        let prologue = be16(head::<PROLOGUE_LEN>(bytes, HeaderName::PdsPrologue)?, 0);
        let Some(kind) = PacketType::from_bits((prologue >> 11) as u8) else {
            return Err(WireError::Unexpected {
                header: HeaderName::PdsPrologue,
                offset: 0,
                expected: "a PDS type between 1 and 14",
                found: u64::from(prologue >> 11),
            });
        };
        let ssi = kind == PacketType::Tss && prologue & super::codec::TSS_SP != 0;
        let needed = kind.header_len() + if ssi { 4 } else { 0 };
        let Some((header, rest)) = bytes.split_at_checked(needed) else {
            return Err(WireError::Truncated { header: kind.header(), needed, found: bytes.len() });
        };
        Ok(PdsView { kind, prologue, header, rest })
    }

    /// The packet's PDS type.
    #[inline]
    pub fn packet_type(&self) -> PacketType {
        self.kind
    }

    /// Prologue bits 10–7: the next header or, in a CP, its type. Meaningless in TSS.
    #[inline]
    pub fn next_or_control(&self) -> u8 {
        (self.prologue >> 7 & 0xf) as u8
    }

    /// Prologue bits 6–0. Meaningless in TSS.
    #[inline]
    pub fn flags(&self) -> u8 {
        (self.prologue & 0x7f) as u8
    }

    /// The bytes of the header.
    #[inline]
    pub fn header(&self) -> &'a [u8] {
        self.header
    }

    /// The bytes after the header.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.rest
    }

    /// The next header.
    ///
    /// # Errors
    /// [`WireError::Unexpected`] for a value that is not defined.
    #[inline]
    pub fn next_header(&self) -> Result<NextHeader, WireError> {
        let bits = self.next_or_control();
        NextHeader::from_bits(bits).ok_or(WireError::Unexpected {
            header: self.kind.header(),
            offset: 0,
            expected: "a next header between 0 and 6",
            found: u64::from(bits),
        })
    }
}

impl NextHeader {
    /// From the four bits of the prologue; `None` for the values that are not defined.
    #[inline]
    pub const fn from_bits(bits: u8) -> Option<NextHeader> {
        Some(match bits {
            0 => NextHeader::None,
            1 => NextHeader::RequestSmall,
            2 => NextHeader::RequestMedium,
            3 => NextHeader::RequestStandard,
            4 => NextHeader::Response,
            5 => NextHeader::ResponseData,
            6 => NextHeader::ResponseDataSmall,
            _ => return None,
        })
    }

    /// Length of the SES header that this value announces, bytes.
    #[inline]
    pub const fn header_len(self) -> usize {
        match self {
            NextHeader::None => 0,
            NextHeader::RequestSmall | NextHeader::ResponseData => 20,
            NextHeader::RequestMedium => 32,
            NextHeader::RequestStandard => 44,
            NextHeader::Response | NextHeader::ResponseDataSmall => 12,
        }
    }
}
