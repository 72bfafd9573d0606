//! UDP, whose source port carries the entropy.

use super::bytes::{be16, head, put, room};
use super::error::{HeaderName, WireError};
use crate::spray::Entropy;

const HEADER: HeaderName = HeaderName::Udp;

/// The UDP destination port of UET (IANA).
pub const UET_UDP_PORT: u16 = 4793;
/// Bytes of the UDP header.
pub const HEADER_LEN: usize = 8;
/// IP protocol number of UDP.
pub const PROTOCOL: u8 = 17;
/// IP protocol number of UET over native IP. None is assigned; this is an experimental number (RFC 3692) that a public
/// reference implementation uses by default. Operators may configure another.
pub const NATIVE_IP_PROTOCOL: u8 = 253;

/// The lowest UDP source port that stands for an entropy: the start of the ephemeral range (RFC 6335).
pub const ENTROPY_PORT_BASE: u16 = 0xc000;
/// How many entropies a UDP source port can carry.
pub const ENTROPY_COUNT: u16 = 0x4000;

/// The UDP source port of an entropy, of which the low 14 bits are used.
#[inline]
pub const fn entropy_to_port(entropy: Entropy) -> u16 {
    ENTROPY_PORT_BASE | entropy.0 & (ENTROPY_COUNT - 1)
}

/// The entropy that a UDP source port carries; `None` for a port that [`entropy_to_port`] never returns (another
/// implementation may use the whole range).
#[inline]
pub const fn port_to_entropy(port: u16) -> Option<Entropy> {
    if port >= ENTROPY_PORT_BASE { Some(Entropy(port & (ENTROPY_COUNT - 1))) } else { None }
}

/// Bytes known to hold a whole UDP header.
#[derive(Clone, Copy, Debug)]
pub struct UdpView<'a> {
    bytes: &'a [u8],
    fixed: &'a [u8; HEADER_LEN],
}

impl<'a> UdpView<'a> {
    /// Checks the header, and that the datagram is complete.
    ///
    /// # Errors
    /// Truncated; a length that does not cover the header.
    #[inline]
    pub fn new_checked(bytes: &'a [u8]) -> Result<UdpView<'a>, WireError> {
        let view = UdpView::new_trimmed(bytes)?;
        let needed = usize::from(view.length());
        if needed > bytes.len() {
            return Err(WireError::Truncated { header: HEADER, needed, found: bytes.len() });
        }
        Ok(view)
    }

    /// As [`UdpView::new_checked`], but the length may exceed `bytes`, as in every trimmed packet.
    ///
    /// # Errors
    /// Truncated inside the header; a length shorter than the header.
    #[inline]
    pub fn new_trimmed(bytes: &'a [u8]) -> Result<UdpView<'a>, WireError> {
        let view = UdpView { bytes, fixed: head(bytes, HEADER)? };
        if usize::from(view.length()) < HEADER_LEN {
            return Err(WireError::Unexpected {
                header: HEADER,
                offset: 4,
                expected: "a length of at least 8",
                found: u64::from(view.length()),
            });
        }
        Ok(view)
    }

    /// Source port, which carries the entropy.
    #[inline]
    pub fn src_port(&self) -> u16 {
        be16(self.fixed, 0)
    }

    /// Destination port.
    #[inline]
    pub fn dst_port(&self) -> u16 {
        be16(self.fixed, 2)
    }

    /// The length field: bytes of header and payload.
    #[inline]
    pub fn length(&self) -> u16 {
        be16(self.fixed, 4)
    }

    /// The checksum field; zero if there is no checksum.
    #[inline]
    pub fn checksum(&self) -> u16 {
        be16(self.fixed, 6)
    }

    /// Header and payload, up to the length field or the end of the bytes, whichever comes first.
    #[inline]
    pub fn datagram(&self) -> &'a [u8] {
        &self.bytes[..usize::from(self.length()).min(self.bytes.len())]
    }

    /// The payload, up to the length field or the end of the bytes, whichever comes first.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.datagram()[HEADER_LEN..]
    }
}

/// A UDP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpHeader {
    /// Source port, which carries the entropy.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Announced length of the payload, bytes; at most 65,527.
    pub payload_len: u16,
    /// The checksum; zero if there is none, or if it is still to be filled in.
    pub checksum: u16,
}

impl UdpHeader {
    /// Reads a header. Does not verify the checksum.
    ///
    /// # Errors
    /// None: the view has checked everything. The result type is that of all headers.
    #[inline]
    pub fn parse(view: &UdpView<'_>) -> Result<UdpHeader, WireError> {
        Ok(UdpHeader {
            src_port: view.src_port(),
            dst_port: view.dst_port(),
            payload_len: view.length() - HEADER_LEN as u16,
            checksum: view.checksum(),
        })
    }

    /// Bytes that [`UdpHeader::emit`] writes.
    #[inline]
    pub const fn encoded_len(&self) -> usize {
        HEADER_LEN
    }

    /// Writes the header.
    ///
    /// # Errors
    /// No room; payload too long.
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, WireError> {
        let length = u64::from(self.payload_len) + HEADER_LEN as u64;
        super::error::fits(HEADER, 4, "length", length, 16)?;
        let b: &mut [u8; HEADER_LEN] = room(buf, HEADER)?;
        put(b, 0, self.src_port.to_be_bytes());
        put(b, 2, self.dst_port.to_be_bytes());
        put(b, 4, (length as u16).to_be_bytes());
        put(b, 6, self.checksum.to_be_bytes());
        Ok(HEADER_LEN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entropy_maps_to_a_port_and_back() {
        for e in 0..ENTROPY_COUNT {
            let port = entropy_to_port(Entropy(e));
            assert_eq!(port, 0xc000 + e);
            assert_eq!(port_to_entropy(port), Some(Entropy(e)));
        }
        assert_eq!(port_to_entropy(0xbfff), None);
        assert_eq!(entropy_to_port(Entropy(0x4001)), 0xc001);
    }

    #[test]
    fn bytes_and_lengths() {
        let h = UdpHeader { src_port: 0xc123, dst_port: UET_UDP_PORT, payload_len: 2, checksum: 0xbeef };
        let mut b = [7; 10];
        assert_eq!(h.emit(&mut b), Ok(8));
        assert_eq!(b, [0xc1, 0x23, 0x12, 0xb9, 0, 10, 0xbe, 0xef, 7, 7]);
        let view = UdpView::new_checked(&b).unwrap();
        assert_eq!((UdpHeader::parse(&view), view.payload()), (Ok(h), &b[8..]));
        for len in 0..10 {
            assert!(matches!(UdpView::new_checked(&b[..len]), Err(WireError::Truncated { .. })));
            assert_eq!(UdpView::new_trimmed(&b[..len]).is_ok(), len >= 8);
        }
        b[5] = 7;
        assert!(matches!(UdpView::new_checked(&b), Err(WireError::Unexpected { offset: 4, found: 7, .. })));
        let long = UdpHeader { payload_len: 65528, ..h };
        assert!(matches!(long.emit(&mut b), Err(WireError::TooWide { .. })));
    }
}
