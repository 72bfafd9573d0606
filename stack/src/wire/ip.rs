//! Types that IPv4 and IPv6 have in common.

use core::net::{Ipv4Addr, Ipv6Addr};

/// Source and destination of a packet, both of the same IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IpAddrs {
    /// IPv4 addresses.
    V4 {
        /// Source address.
        src: Ipv4Addr,
        /// Destination address.
        dst: Ipv4Addr,
    },
    /// IPv6 addresses.
    V6 {
        /// Source address.
        src: Ipv6Addr,
        /// Destination address.
        dst: Ipv6Addr,
    },
}

impl IpAddrs {
    /// The addresses of a reply: source and destination exchanged.
    pub const fn reversed(self) -> IpAddrs {
        match self {
            IpAddrs::V4 { src, dst } => IpAddrs::V4 { src: dst, dst: src },
            IpAddrs::V6 { src, dst } => IpAddrs::V6 { src: dst, dst: src },
        }
    }

    /// Length of the IP header that weft emits for these addresses, bytes.
    pub const fn header_len(&self) -> usize {
        match self {
            IpAddrs::V4 { .. } => super::ipv4::HEADER_LEN,
            IpAddrs::V6 { .. } => super::ipv6::HEADER_LEN,
        }
    }

    /// Offset of the source address in the IP header.
    pub const fn source_at(&self) -> usize {
        match self {
            IpAddrs::V4 { .. } => 12,
            IpAddrs::V6 { .. } => 8,
        }
    }
}

/// The two ECN bits (RFC 3168).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Ecn {
    /// Not ECN-capable: the transport does not react to marks.
    #[default]
    NotEct = 0,
    /// ECN-capable, ECT(1).
    Ect1 = 1,
    /// ECN-capable, ECT(0); weft's packets carry it.
    Ect0 = 2,
    /// Congestion experienced.
    Ce = 3,
}

impl Ecn {
    /// The ECN bits of a traffic class: its low two bits.
    #[inline]
    pub const fn from_bits(bits: u8) -> Ecn {
        match bits & 3 {
            0 => Ecn::NotEct,
            1 => Ecn::Ect1,
            2 => Ecn::Ect0,
            _ => Ecn::Ce,
        }
    }

    /// Whether a switch marked the packet.
    #[inline]
    pub const fn is_ce(self) -> bool {
        matches!(self, Ecn::Ce)
    }
}

/// The traffic class byte: DSCP in the high six bits, ECN in the low two.
#[inline]
pub(super) const fn traffic_class(dscp: u8, ecn: Ecn) -> u8 {
    dscp << 2 | ecn as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ecn_bits() {
        for b in 0..=255u8 {
            assert_eq!(Ecn::from_bits(b) as u8, b & 3);
        }
        assert_eq!(traffic_class(46, Ecn::Ce), 0xbb);
    }
}
