//! The headers in front of a datagram, which frames have and the kernel writes and strips.

use std::net::IpAddr;

use crate::port::MIN_FRAME;
use crate::wire::WireError;
use crate::wire::error::HeaderName;
use crate::wire::ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, EthernetHeader, EthernetView, MacAddr};
use crate::wire::ip::Ecn;
use crate::wire::ipv4::{HEADER_LEN as IPV4, Ipv4Header, Ipv4View};
use crate::wire::ipv6::{HEADER_LEN as IPV6, Ipv6Header, Ipv6View};
use crate::wire::udp::{HEADER_LEN as UDP, PROTOCOL, UET_UDP_PORT, UdpHeader, UdpView};

/// Bytes in front of a datagram's payload.
pub(super) fn len(v6: bool) -> usize {
    MIN_FRAME + if v6 { IPV6 } else { IPV4 } + UDP
}

/// The datagram that a frame is to become, from its headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outbound {
    pub(super) dst: IpAddr,
    pub(super) source_port: u16,
    /// DSCP and ECN, as in the IP header.
    pub(super) tos: u8,
    pub(super) ttl: u8,
    /// The UDP length field: more than the bytes present if the packet was trimmed.
    pub(super) udp_length: u16,
    /// Where the payload begins and ends in the frame.
    pub(super) begin: usize,
    pub(super) end: usize,
}

impl Outbound {
    /// Reads the headers of a frame to be sent. Checksums and Ethernet addresses are ignored: the kernel writes its
    /// own.
    #[inline]
    pub(super) fn read(frame: &[u8]) -> Result<Outbound, WireError> {
        let eth = EthernetView::new_checked(frame)?;
        let (dst, dscp, ecn, ttl, protocol, ip_len, body) = match eth.ethertype() {
            ETHERTYPE_IPV4 => {
                let ip = Ipv4View::new_trimmed(eth.payload())?;
                let dst = IpAddr::V4(ip.dst());
                (dst, ip.dscp(), ip.ecn(), ip.ttl(), ip.protocol(), ip.header_len(), ip.payload())
            }
            ETHERTYPE_IPV6 => {
                let ip = Ipv6View::new_trimmed(eth.payload())?;
                let dst = IpAddr::V6(ip.dst());
                (dst, ip.dscp(), ip.ecn(), ip.hop_limit(), ip.next_header(), IPV6, ip.payload())
            }
            other => return Err(not_ip(other)),
        };
        if protocol != PROTOCOL {
            return Err(not_udp(protocol));
        }
        let udp = UdpView::new_trimmed(body)?;
        let begin = eth.header_len() + ip_len + UDP;
        Ok(Outbound {
            dst,
            source_port: udp.src_port(),
            tos: dscp << 2 | ecn as u8,
            ttl,
            udp_length: udp.length(),
            begin,
            end: begin + udp.payload().len(),
        })
    }

    pub(super) fn dscp(&self) -> u8 {
        self.tos >> 2
    }
}

#[cold]
fn not_ip(found: u16) -> WireError {
    let expected = "IPv4 or IPv6, behind at most one VLAN tag";
    WireError::Unexpected { header: HeaderName::Ethernet, offset: 12, expected, found: u64::from(found) }
}

#[cold]
fn not_udp(found: u8) -> WireError {
    let expected = "UDP (17), and no extension header";
    WireError::Unexpected { header: HeaderName::Ipv4, offset: 9, expected, found: u64::from(found) }
}

/// The addresses and marks of a datagram that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Inbound {
    pub(super) src: IpAddr,
    pub(super) dst: IpAddr,
    pub(super) source_port: u16,
    pub(super) tos: u8,
    pub(super) ttl: u8,
}

impl Inbound {
    /// Writes the headers in front of `present` bytes of payload, with a UDP length field that announces `announced`
    /// bytes. Checksums are left zero: the kernel has verified them.
    ///
    /// # Errors
    /// A length that no field holds.
    #[inline]
    pub(super) fn write(&self, frame: &mut [u8], present: usize, announced: usize) -> Result<(), WireError> {
        let too_long = || WireError::Unexpected {
            header: HeaderName::Udp,
            offset: 4,
            expected: "a payload of at most 65527 bytes",
            found: present.max(announced) as u64,
        };
        let ip_payload = u16::try_from(present + UDP).map_err(|_| too_long())?;
        let announced = u16::try_from(announced).map_err(|_| too_long())?;
        let ethertype = if self.dst.is_ipv4() { ETHERTYPE_IPV4 } else { ETHERTYPE_IPV6 };
        let (src, dst) = (mac_of(self.src), mac_of(self.dst));
        let mut at = EthernetHeader { dst, src, vlan: None, ethertype }.emit(frame)?;
        at += self.write_ip(&mut frame[at..], ip_payload)?;
        let (src_port, dst_port) = (self.source_port, UET_UDP_PORT);
        UdpHeader { src_port, dst_port, payload_len: announced, checksum: 0 }.emit(&mut frame[at..])?;
        Ok(())
    }

    #[inline]
    fn write_ip(&self, buf: &mut [u8], payload_len: u16) -> Result<usize, WireError> {
        let (dscp, ecn, ttl) = (self.tos >> 2, Ecn::from_bits(self.tos), self.ttl);
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Ipv4Header {
                dscp,
                ecn,
                identification: 0,
                dont_fragment: true,
                ttl,
                protocol: PROTOCOL,
                src,
                dst,
                payload_len,
            }
            .emit(buf),
            (src, dst) => Ipv6Header {
                dscp,
                ecn,
                flow_label: 0,
                payload_len,
                next_header: PROTOCOL,
                hop_limit: ttl,
                src: to_v6(src),
                dst: to_v6(dst),
            }
            .emit(buf),
        }
    }
}

fn to_v6(ip: IpAddr) -> std::net::Ipv6Addr {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// The Ethernet address that frames of a UDP port give `ip`: locally administered, the same everywhere.
/// No such address is on any link.
pub fn mac_of(ip: IpAddr) -> MacAddr {
    let [a, b, c, d] = match ip {
        IpAddr::V4(v4) => v4.octets(),
        IpAddr::V6(v6) => {
            let [.., a, b, c, d] = v6.octets();
            [a, b, c, d]
        }
    };
    MacAddr([2, 0, a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inbound(v6: bool) -> Inbound {
        let ip = |n: u8| -> IpAddr {
            if v6 { format!("fd00::{n}").parse().unwrap() } else { [10, 0, 0, n].into() }
        };
        Inbound { src: ip(1), dst: ip(2), source_port: 0xc003, tos: 46 << 2 | 3, ttl: 61 }
    }

    #[test]
    fn what_is_written_is_read() {
        for v6 in [false, true] {
            let mut frame = vec![0; len(v6) + 100];
            inbound(v6).write(&mut frame, 100, 100).unwrap();
            let read = Outbound::read(&frame).unwrap();
            assert_eq!((read.dst, read.source_port), (inbound(v6).dst, 0xc003));
            assert_eq!((read.tos, read.ttl, read.dscp()), (46 << 2 | 3, 61, 46));
            assert_eq!((read.begin, read.end, read.udp_length), (len(v6), len(v6) + 100, 108));
        }
    }

    #[test]
    fn a_trimmed_length_survives() {
        let mut frame = vec![0; len(false) + 60];
        inbound(false).write(&mut frame, 60, 4000).unwrap();
        let read = Outbound::read(&frame).unwrap();
        assert_eq!((read.udp_length, read.end - read.begin), (4008, 60));
    }

    #[test]
    fn malformed_datagrams_are_refused() {
        assert!(Outbound::read(&[0; 14]).is_err());
        assert!(Outbound::read(&[0; 60]).is_err());
        let mut frame = vec![0; len(false) + 10];
        inbound(false).write(&mut frame, 10, 10).unwrap();
        for end in 0..len(false) {
            assert!(Outbound::read(&frame[..end]).is_err());
        }
        frame[23] = 6;
        assert!(Outbound::read(&frame).is_err(), "TCP");
        assert!(inbound(false).write(&mut frame, 65_528, 65_528).is_err());
        assert!(inbound(false).write(&mut frame, 10, 65_528).is_err());
    }
}
