//! IPv6. Extension headers are not interpreted: the caller sees the packet's next header, and refuses any other than
//! the transport that it expects.

use super::bytes::{be16, be32, head, put, room, take};
use super::error::{HeaderName, WireError, fits};
use super::ip::{Ecn, traffic_class};
use core::net::Ipv6Addr;

const HEADER: HeaderName = HeaderName::Ipv6;

/// Bytes of the fixed header.
pub const HEADER_LEN: usize = 40;

/// Bytes known to hold a whole IPv6 header of version 6.
#[derive(Clone, Copy, Debug)]
pub struct Ipv6View<'a> {
    bytes: &'a [u8],
    fixed: &'a [u8; HEADER_LEN],
}

impl<'a> Ipv6View<'a> {
    /// Checks the header, and that the packet is complete. `bytes` may be longer, because Ethernet pads.
    ///
    /// # Errors
    /// Truncated; wrong version.
    #[inline]
    pub fn new_checked(bytes: &'a [u8]) -> Result<Ipv6View<'a>, WireError> {
        let view = Ipv6View::new_trimmed(bytes)?;
        view.check_length()?;
        Ok(view)
    }

    /// Checks that the packet is as long as its payload length.
    #[inline]
    pub(super) fn check_length(&self) -> Result<(), WireError> {
        let (needed, found) = (HEADER_LEN + usize::from(self.payload_len()), self.bytes.len());
        if needed > found { Err(WireError::Truncated { header: HEADER, needed, found }) } else { Ok(()) }
    }

    /// As [`Ipv6View::new_checked`], but the payload length may exceed `bytes`, as in a trimmed packet whose switch
    /// leaves the field alone.
    ///
    /// # Errors
    /// Truncated inside the header; wrong version.
    #[inline]
    pub fn new_trimmed(bytes: &'a [u8]) -> Result<Ipv6View<'a>, WireError> {
        let fixed: &[u8; HEADER_LEN] = head(bytes, HEADER)?;
        if fixed[0] >> 4 != 6 {
            return Err(WireError::Unexpected {
                header: HEADER,
                offset: 0,
                expected: "version 6",
                found: u64::from(fixed[0] >> 4),
            });
        }
        Ok(Ipv6View { bytes, fixed })
    }

    #[inline]
    fn traffic_class(&self) -> u8 {
        (be16(self.fixed, 0) >> 4) as u8
    }

    /// DSCP, 6 bits.
    #[inline]
    pub fn dscp(&self) -> u8 {
        self.traffic_class() >> 2
    }

    /// ECN bits.
    #[inline]
    pub fn ecn(&self) -> Ecn {
        Ecn::from_bits(self.traffic_class())
    }

    /// Flow label, 20 bits.
    #[inline]
    pub fn flow_label(&self) -> u32 {
        be32(self.fixed, 0) & 0xf_ffff
    }

    /// The payload length field: bytes after the header.
    #[inline]
    pub fn payload_len(&self) -> u16 {
        be16(self.fixed, 4)
    }

    /// Protocol of the payload.
    #[inline]
    pub fn next_header(&self) -> u8 {
        self.fixed[6]
    }

    /// Hop limit.
    #[inline]
    pub fn hop_limit(&self) -> u8 {
        self.fixed[7]
    }

    /// Source address.
    #[inline]
    pub fn src(&self) -> Ipv6Addr {
        Ipv6Addr::from(take::<HEADER_LEN, 16>(self.fixed, 8))
    }

    /// Destination address.
    #[inline]
    pub fn dst(&self) -> Ipv6Addr {
        Ipv6Addr::from(take::<HEADER_LEN, 16>(self.fixed, 24))
    }

    /// The payload, up to the payload length or the end of the bytes, whichever comes first.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[HEADER_LEN..(HEADER_LEN + usize::from(self.payload_len())).min(self.bytes.len())]
    }
}

/// An IPv6 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Header {
    /// DSCP, 6 bits.
    pub dscp: u8,
    /// Congestion bits.
    pub ecn: Ecn,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Announced length of the payload, bytes.
    pub payload_len: u16,
    /// Protocol of the payload.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source address.
    pub src: Ipv6Addr,
    /// Destination address.
    pub dst: Ipv6Addr,
}

impl Ipv6Header {
    /// Reads a header.
    ///
    /// # Errors
    /// [`WireError::Unexpected`] for an extension header: weft accepts none.
    #[inline]
    pub fn parse(view: &Ipv6View<'_>) -> Result<Ipv6Header, WireError> {
        no_extension(view.next_header())?;
        Ok(Ipv6Header {
            dscp: view.dscp(),
            ecn: view.ecn(),
            flow_label: view.flow_label(),
            payload_len: view.payload_len(),
            next_header: view.next_header(),
            hop_limit: view.hop_limit(),
            src: view.src(),
            dst: view.dst(),
        })
    }

    /// Bytes that [`Ipv6Header::emit`] writes.
    #[inline]
    pub const fn encoded_len(&self) -> usize {
        HEADER_LEN
    }

    /// Writes the header.
    ///
    /// # Errors
    /// No room; DSCP or flow label too wide; a next header that is an extension.
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, WireError> {
        no_extension(self.next_header)?;
        fits(HEADER, 0, "DSCP", u64::from(self.dscp), 6)?;
        fits(HEADER, 1, "flow label", u64::from(self.flow_label), 20)?;
        let b: &mut [u8; HEADER_LEN] = room(buf, HEADER)?;
        let class = u32::from(traffic_class(self.dscp, self.ecn));
        put(b, 0, (6 << 28 | class << 20 | self.flow_label).to_be_bytes());
        put(b, 4, self.payload_len.to_be_bytes());
        b[6] = self.next_header;
        b[7] = self.hop_limit;
        put(b, 8, self.src.octets());
        put(b, 24, self.dst.octets());
        Ok(HEADER_LEN)
    }
}

/// Refuses the extension headers of the IANA registry "IPv6 Extension Header Types", except the two experimental
/// numbers, one of which native IP uses.
#[inline]
fn no_extension(next_header: u8) -> Result<(), WireError> {
    match next_header {
        0 | 43 | 44 | 50 | 51 | 60 | 135 | 139 | 140 => Err(WireError::Unexpected {
            header: HEADER,
            offset: 6,
            expected: "no extension header",
            found: u64::from(next_header),
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Ipv6Header {
        Ipv6Header {
            dscp: 8,
            ecn: Ecn::Ce,
            flow_label: 0xabcde,
            payload_len: 3,
            next_header: 17,
            hop_limit: 63,
            src: Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1),
            dst: Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2),
        }
    }

    #[test]
    fn an_emitted_header_has_known_bytes_and_parses_back() {
        let mut b = [0xee; 43];
        assert_eq!(header().emit(&mut b), Ok(40));
        assert_eq!(b[..8], [0x62, 0x3a, 0xbc, 0xde, 0, 3, 17, 63]);
        let view = Ipv6View::new_checked(&b).unwrap();
        assert_eq!(Ipv6Header::parse(&view), Ok(header()));
        assert_eq!(view.payload(), [0xee; 3]);
        for len in 0..43 {
            assert!(matches!(Ipv6View::new_checked(&b[..len]), Err(WireError::Truncated { .. })));
            assert_eq!(Ipv6View::new_trimmed(&b[..len]).is_ok(), len >= 40);
        }
    }

    #[test]
    fn short_packets_wrong_versions_and_extensions_are_refused() {
        let mut b = [0; 43];
        assert!(matches!(
            Ipv6Header { flow_label: 1 << 20, ..header() }.emit(&mut b),
            Err(WireError::TooWide { .. })
        ));
        header().emit(&mut b).unwrap();
        b[6] = 44;
        let view = Ipv6View::new_checked(&b).unwrap();
        assert!(matches!(Ipv6Header::parse(&view), Err(WireError::Unexpected { offset: 6, found: 44, .. })));
        b[0] = 0x40;
        assert!(matches!(Ipv6View::new_checked(&b), Err(WireError::Unexpected { offset: 0, .. })));
    }
}
