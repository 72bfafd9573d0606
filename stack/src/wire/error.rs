//! Errors of reading and writing headers.

use core::fmt;

/// The header that an error concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HeaderName {
    /// Ethernet, its VLAN tag included.
    Ethernet,
    /// IPv4, its options included.
    Ipv4,
    /// IPv6.
    Ipv6,
    /// UDP.
    Udp,
    /// The prologue that every PDS header begins with.
    PdsPrologue,
    /// The PDS security header.
    Tss,
    /// RUD_REQ, ROD_REQ, RUD_CC_REQ, ROD_CC_REQ.
    Request,
    /// RUDI_REQ, RUDI_RESP.
    Rudi,
    /// UUD_REQ.
    Uud,
    /// ACK, ACK_CC, ACK_CCX.
    Ack,
    /// NACK, NACK_CCX.
    Nack,
    /// CP.
    Control,
    /// SES standard request.
    SesStandard,
    /// SES small request.
    SesSmall,
    /// SES medium request.
    SesMedium,
    /// SES response without data.
    SesResponse,
    /// SES response with data.
    SesResponseData,
    /// SES small response with data.
    SesResponseDataSmall,
    /// SES rendezvous extension.
    SesRendezvous,
    /// SES atomic extension, with or without the operands of a compare-and-swap.
    SesAtomic,
}

impl HeaderName {
    /// The name in the notation of the specifications.
    pub const fn as_str(self) -> &'static str {
        match self {
            HeaderName::Ethernet => "Ethernet",
            HeaderName::Ipv4 => "IPv4",
            HeaderName::Ipv6 => "IPv6",
            HeaderName::Udp => "UDP",
            HeaderName::PdsPrologue => "PDS prologue",
            HeaderName::Tss => "PDS TSS",
            HeaderName::Request => "PDS request",
            HeaderName::Rudi => "PDS RUDI",
            HeaderName::Uud => "PDS UUD",
            HeaderName::Ack => "PDS ACK",
            HeaderName::Nack => "PDS NACK",
            HeaderName::Control => "PDS CP",
            HeaderName::SesStandard => "SES standard request",
            HeaderName::SesSmall => "SES small request",
            HeaderName::SesMedium => "SES medium request",
            HeaderName::SesResponse => "SES response",
            HeaderName::SesResponseData => "SES response with data",
            HeaderName::SesResponseDataSmall => "SES small response with data",
            HeaderName::SesRendezvous => "SES rendezvous extension",
            HeaderName::SesAtomic => "SES atomic extension",
        }
    }
}

impl fmt::Display for HeaderName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why bytes were rejected, or a header could not be written. Offsets count from the start of the named header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The packet ends inside a header, or before the end that a length field announces.
    #[error("{header}: {needed} bytes expected, {found} present")]
    Truncated {
        /// The header that ends early.
        header: HeaderName,
        /// Number of bytes that the header needs.
        needed: usize,
        /// Number of bytes that are present.
        found: usize,
    },
    /// A field has a value that is undefined, or that weft does not accept.
    #[error("{header}, byte {offset}: expected {expected}, found {found:#x}")]
    Unexpected {
        /// The header with the field.
        header: HeaderName,
        /// Offset of the field's first byte.
        offset: usize,
        /// The values that would have been accepted.
        expected: &'static str,
        /// The field's value.
        found: u64,
    },
    /// A checksum does not agree with the bytes it covers.
    #[error("{header}, byte {offset}: checksum {expected:#06x} expected, found {found:#06x}")]
    Checksum {
        /// The header that carries the checksum.
        header: HeaderName,
        /// Offset of the checksum field.
        offset: usize,
        /// The checksum of the bytes present.
        expected: u16,
        /// The checksum carried.
        found: u16,
    },
    /// The CRC-32C behind the payload does not agree with the packet.
    #[error("CRC-32C {expected:#010x} expected, found {found:#010x}: damage, or a peer that sends none")]
    Crc {
        /// The CRC of the bytes present.
        expected: u32,
        /// The CRC carried.
        found: u32,
    },
    /// Emitting: the buffer is too short.
    #[error("{header}: {needed} bytes needed to emit, room for {room}")]
    NoRoom {
        /// The header that does not fit.
        header: HeaderName,
        /// Bytes that it needs.
        needed: usize,
        /// Number of bytes that are available.
        room: usize,
    },
    /// Emitting: a value is wider than its field.
    #[error("{header}, byte {offset}: {field} is {found:#x}, its field has {bits} bits")]
    TooWide {
        /// The header with the field.
        header: HeaderName,
        /// Offset of the field's first byte.
        offset: usize,
        /// Name of the field.
        field: &'static str,
        /// Width of the field, bits.
        bits: u32,
        /// The value that does not fit.
        found: u64,
    },
    /// Emitting: two parts of the header or frame contradict each other.
    #[error("{header}, byte {offset}: contradiction, expected {expected}")]
    Inconsistent {
        /// The header with the field.
        header: HeaderName,
        /// Offset of the field that would be written wrong.
        offset: usize,
        /// The condition that is violated.
        expected: &'static str,
    },
}

/// `Err` unless `value` fits in `bits` bits: no value is ever truncated silently.
#[inline]
pub(super) const fn fits(
    header: HeaderName,
    offset: usize,
    field: &'static str,
    value: u64,
    bits: u32,
) -> Result<(), WireError> {
    if value >> bits == 0 {
        Ok(())
    } else {
        Err(WireError::TooWide { header, offset, field, bits, found: value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_names_header_place_expectation_and_finding() {
        let e = WireError::Unexpected {
            header: HeaderName::Udp,
            offset: 2,
            expected: "destination port 4793",
            found: 53,
        };
        assert_eq!(e.to_string(), "UDP, byte 2: expected destination port 4793, found 0x35");
    }

    #[test]
    fn values_wider_than_their_field_are_refused() {
        assert!(fits(HeaderName::Request, 0, "x", 0xfff, 12).is_ok());
        assert!(matches!(
            fits(HeaderName::Request, 0, "x", 0x1000, 12),
            Err(WireError::TooWide { bits: 12, found: 0x1000, .. })
        ));
    }
}
