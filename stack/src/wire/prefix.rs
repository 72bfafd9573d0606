//! The headers in front of PDS, prepared once for all packets from one host to another: each packet only fills in its
//! own fields.
//!
//! Only for the most common frames: IPv4, untagged, not trimmed.

use core::net::Ipv4Addr;

use super::bytes::put;
use super::checksum::Sum;
use super::error::{HeaderName, WireError, fits};
use super::ethernet::{self, ETHERTYPE_IPV4, EthernetHeader, MacAddr};
use super::frame::{DEFAULT_TTL, UET_UDP_PORT};
use super::ip::Ecn;
use super::ipv4::{self, Ipv4Header};
use super::udp::{self, UdpHeader};

const IP: usize = ethernet::HEADER_LEN;
/// Offset of the source address.
pub const SOURCE: usize = IP + 12;
/// Offset of the UDP header.
pub const UDP: usize = IP + ipv4::HEADER_LEN;
/// Offset of the IPv4 header checksum.
pub const IPV4_CHECKSUM: core::ops::Range<usize> = IP + 10..IP + 12;

/// Length of all three headers, bytes.
pub const PREFIX_LEN: usize = UDP + udp::HEADER_LEN;

/// Ethernet, IPv4 and UDP headers of packets from one host to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The header bytes; zero in fields that differ from packet to packet: traffic class, total length, header
    /// checksum; source port and UDP length.
    bytes: [u8; PREFIX_LEN],
    /// Sum of the IPv4 header in `bytes`.
    sum: Sum,
}

impl Prefix {
    /// The headers of packets from `src` at `src_mac` to `dst` at `dst_mac`.
    pub fn new(src_mac: MacAddr, dst_mac: MacAddr, src: Ipv4Addr, dst: Ipv4Addr) -> Prefix {
        let ethernet = EthernetHeader { dst: dst_mac, src: src_mac, vlan: None, ethertype: ETHERTYPE_IPV4 };
        let ip = Ipv4Header {
            dscp: 0,
            ecn: Ecn::NotEct,
            identification: 0,
            dont_fragment: true,
            ttl: DEFAULT_TTL,
            protocol: udp::PROTOCOL,
            src,
            dst,
            payload_len: 0,
        };
        let udp = UdpHeader { src_port: 0, dst_port: UET_UDP_PORT, payload_len: 0, checksum: 0 };
        let mut bytes = [0; PREFIX_LEN];
        let written =
            ethernet.emit(&mut bytes).and(ip.emit(&mut bytes[IP..])).and(udp.emit(&mut bytes[UDP..]));
        debug_assert!(written.is_ok(), "the buffer is long enough, and all values fit");
        put(&mut bytes, IP + 2, [0; 2]);
        put(&mut bytes, UDP + 4, [0; 2]);
        Prefix { bytes, sum: Sum::default().with(&bytes[IP..UDP]) }
    }

    /// Writes the headers of a packet with this traffic class (DSCP and ECN) and source port (its entropy) in front of
    /// `body` bytes. Leaves the UDP checksum out.
    ///
    /// # Errors
    /// The packet is longer than its length fields can express.
    #[inline(always)]
    pub fn write(
        &self,
        buf: &mut [u8; PREFIX_LEN],
        traffic_class: u8,
        src_port: u16,
        body: usize,
    ) -> Result<(), WireError> {
        let total = (PREFIX_LEN - IP + body) as u64;
        fits(HeaderName::Ipv4, 2, "total length", total, 16)?;
        let (total, udp) = (total as u16, (udp::HEADER_LEN + body) as u16);
        *buf = self.bytes;
        buf[IP + 1] = traffic_class;
        put(buf, IP + 2, total.to_be_bytes());
        put(
            buf,
            IPV4_CHECKSUM.start,
            self.sum.with_word(traffic_class.into()).with_word(total).finish().to_be_bytes(),
        );
        put(buf, UDP, src_port.to_be_bytes());
        put(buf, UDP + 4, udp.to_be_bytes());
        Ok(())
    }
}
