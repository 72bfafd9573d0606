//! Either IP header behind an Ethernet header, for the functions on whole frames.

use super::error::{HeaderName, WireError};
use super::ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, EthernetView};
use super::ip::{Ecn, IpAddrs};
use super::ipv4::Ipv4View;
use super::ipv6::{self, Ipv6View};
use super::udp;

/// A checked IP header whose length field has not been compared with the bytes present.
#[derive(Clone, Copy, Debug)]
pub(super) enum Network<'a> {
    V4(Ipv4View<'a>),
    V6(Ipv6View<'a>),
}

impl<'a> Network<'a> {
    /// The IP header behind `eth`.
    #[inline]
    pub(super) fn open(eth: &EthernetView<'a>) -> Result<Network<'a>, WireError> {
        match eth.ethertype() {
            ETHERTYPE_IPV4 => Ipv4View::new_trimmed(eth.payload()).map(Network::V4),
            ETHERTYPE_IPV6 => Ipv6View::new_trimmed(eth.payload()).map(Network::V6),
            other => Err(WireError::Unexpected {
                header: HeaderName::Ethernet,
                offset: eth.header_len() - 2,
                expected: "IPv4 or IPv6, behind at most one VLAN tag",
                found: u64::from(other),
            }),
        }
    }

    #[inline]
    pub(super) fn check_length(&self) -> Result<(), WireError> {
        match self {
            Network::V4(v) => v.check_length(),
            Network::V6(v) => v.check_length(),
        }
    }

    #[inline]
    pub(super) fn verify_checksum(&self) -> Result<(), WireError> {
        match self {
            Network::V4(v) => v.verify_checksum(),
            Network::V6(_) => Ok(()),
        }
    }

    #[inline]
    pub(super) fn require_udp(&self) -> Result<(), WireError> {
        let (header, offset) = match self {
            Network::V4(_) => (HeaderName::Ipv4, 9),
            Network::V6(_) => (HeaderName::Ipv6, 6),
        };
        let found = u64::from(self.protocol());
        if self.protocol() == udp::PROTOCOL {
            return Ok(());
        }
        Err(WireError::Unexpected { header, offset, expected: "UDP (17), and no extension header", found })
    }

    #[inline]
    pub(super) fn protocol(&self) -> u8 {
        match self {
            Network::V4(v) => v.protocol(),
            Network::V6(v) => v.next_header(),
        }
    }

    #[inline]
    pub(super) fn addrs(&self) -> IpAddrs {
        match self {
            Network::V4(v) => IpAddrs::V4 { src: v.src(), dst: v.dst() },
            Network::V6(v) => IpAddrs::V6 { src: v.src(), dst: v.dst() },
        }
    }

    #[inline]
    pub(super) fn dscp(&self) -> u8 {
        match self {
            Network::V4(v) => v.dscp(),
            Network::V6(v) => v.dscp(),
        }
    }

    #[inline]
    pub(super) fn ecn(&self) -> Ecn {
        match self {
            Network::V4(v) => v.ecn(),
            Network::V6(v) => v.ecn(),
        }
    }

    #[inline]
    pub(super) fn ttl(&self) -> u8 {
        match self {
            Network::V4(v) => v.ttl(),
            Network::V6(v) => v.hop_limit(),
        }
    }

    #[inline]
    pub(super) fn header_len(&self) -> usize {
        match self {
            Network::V4(v) => v.header_len(),
            Network::V6(_) => ipv6::HEADER_LEN,
        }
    }

    /// Announced number of bytes after the header.
    #[inline]
    pub(super) fn announced_len(&self) -> usize {
        match self {
            Network::V4(v) => usize::from(v.total_len()) - v.header_len(),
            Network::V6(v) => usize::from(v.payload_len()),
        }
    }

    /// The bytes after the header that are present.
    #[inline]
    pub(super) fn payload(&self) -> &'a [u8] {
        match self {
            Network::V4(v) => v.payload(),
            Network::V6(v) => v.payload(),
        }
    }
}
