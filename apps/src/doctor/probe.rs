//! The probes that the doctor sends over a path: UDP datagrams to weft's port that are not packets of the protocol, so
//! an endpoint that receives one drops it.

use std::net::IpAddr;
use thiserror::Error;
use weft_stack::port::{Frame, MIN_FRAME};
use weft_stack::spray::Entropy;
use weft_stack::wire::WireError;
use weft_stack::wire::ethernet::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, EthernetHeader, EthernetView, VLAN_TAG_LEN, VlanTag,
};
use weft_stack::wire::frame::{
    ChecksumFill, DEFAULT_TTL, Ecn, UET_UDP_PORT, entropy_to_port, finish_checksums,
};
use weft_stack::wire::ipv4::{HEADER_LEN as IPV4, Ipv4Header, Ipv4View};
use weft_stack::wire::ipv6::{HEADER_LEN as IPV6, Ipv6Header, Ipv6View};
use weft_stack::wire::trim::MIN_IP_PAYLOAD_UDP;
use weft_stack::wire::udp::{HEADER_LEN as UDP, PROTOCOL, UdpHeader, UdpView};
use weft_stack::worker::HostAddr;

const MAGIC: [u8; 6] = *b"weftpr";
const VERSION: u8 = 2;
/// Bytes of a probe without its padding.
const LEN: usize = 32;
/// Bytes at the beginning of a probe that hold its kind, session and number: all that is left after a switch has
/// trimmed it as far as it may.
const TRIMMED_LEN: usize = MIN_IP_PAYLOAD_UDP - UDP;

/// The purpose of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Requests a response that says how this probe arrived.
    Request,
    /// The response, sent with the DSCP and ECN with which the request arrived.
    Response,
    /// Starts a count at zero.
    Start,
    /// Is counted, without a response.
    Burst,
    /// Requests the counts.
    CountRequest,
    /// The response with the counts.
    CountResponse,
}

impl Kind {
    const ALL: [Kind; 6] =
        [Kind::Request, Kind::Response, Kind::Start, Kind::Burst, Kind::CountRequest, Kind::CountResponse];
}

/// A packet of the doctor's path checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Probe {
    pub(super) kind: Kind,
    /// Identifies a check and, within it, a burst; the first value is random.
    pub(super) session: u32,
    /// Identifies a request; the position in a burst.
    pub(super) number: u32,
    /// In a response: DSCP and ECN with which the request arrived.
    pub(super) tos: u8,
    /// In a response: bytes of the IP packet in which the request arrived.
    pub(super) length: u32,
    /// Frames of a burst that arrived whole.
    pub(super) whole: u16,
    /// Frames of a burst that arrived trimmed.
    pub(super) trimmed: u16,
    /// Frames that the receiving port has dropped since the burst began.
    pub(super) missed: u16,
}

/// Why a frame is not a probe.
#[derive(Debug, Error)]
pub(super) enum NoProbe {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("it is not one of the doctor's, or of another version")]
    Foreign,
}

impl Probe {
    pub(super) fn new(kind: Kind, session: u32, number: u32) -> Probe {
        Probe { kind, session, number, tos: 0, length: 0, whole: 0, trimmed: 0, missed: 0 }
    }

    fn encode(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        let kind = Kind::ALL.iter().position(|kind| *kind == self.kind).unwrap_or(0) as u8;
        bytes[..6].copy_from_slice(&MAGIC);
        bytes[6..8].copy_from_slice(&[VERSION, kind]);
        bytes[8..12].copy_from_slice(&self.session.to_be_bytes());
        bytes[12..TRIMMED_LEN].copy_from_slice(&self.number.to_be_bytes());
        bytes[16..20].copy_from_slice(&self.length.to_be_bytes());
        bytes[20..22].copy_from_slice(&self.whole.to_be_bytes());
        bytes[22..24].copy_from_slice(&self.trimmed.to_be_bytes());
        bytes[24..26].copy_from_slice(&self.missed.to_be_bytes());
        bytes[26] = self.tos;
        bytes
    }

    /// The probe in `bytes`. A probe of a burst may have been trimmed down to its first bytes.
    fn decode(bytes: &[u8]) -> Option<Probe> {
        let kept: &[u8; TRIMMED_LEN] = bytes.first_chunk()?;
        if kept[..6] != MAGIC || kept[6] != VERSION {
            return None;
        }
        let kind = *Kind::ALL.get(usize::from(kept[7]))?;
        let mut all = [0; LEN];
        match bytes.first_chunk::<LEN>() {
            Some(whole) => all = *whole,
            None if kind == Kind::Burst => all[..TRIMMED_LEN].copy_from_slice(kept),
            None => return None,
        }
        let u16_at = |at: usize| u16::from_be_bytes([all[at], all[at + 1]]);
        let u32_at = |at: usize| u32::from_be_bytes([all[at], all[at + 1], all[at + 2], all[at + 3]]);
        Some(Probe {
            kind,
            session: u32_at(8),
            number: u32_at(12),
            length: u32_at(16),
            whole: u16_at(20),
            trimmed: u16_at(22),
            missed: u16_at(24),
            tos: all[26],
        })
    }
}

/// Bytes of the shortest IP packet that holds a probe.
pub(super) fn shortest(v6: bool) -> usize {
    (if v6 { IPV6 } else { IPV4 }) + UDP + LEN
}

/// Writes a packet with `probe` into `frame`, and fills the rest with zeros.
pub(super) fn write(
    frame: &mut Frame,
    from: HostAddr,
    to: HostAddr,
    vlan: Option<VlanTag>,
    tos: u8,
    probe: &Probe,
) -> Result<(), WireError> {
    frame.fill(0);
    let (dscp, ecn) = (tos >> 2, ecn_of(tos));
    let ethertype = if from.ip.is_ipv4() { ETHERTYPE_IPV4 } else { ETHERTYPE_IPV6 };
    let mut at = EthernetHeader { dst: to.mac, src: from.mac, vlan, ethertype }.emit(frame)?;
    let len = |before: usize| u16::try_from(frame.len() - before).unwrap_or(u16::MAX);
    let (v4_len, v6_len) = (len(at + IPV4), len(at + IPV6));
    at += match (from.ip, to.ip) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let header = Ipv4Header {
                dscp,
                ecn,
                identification: 0,
                dont_fragment: true,
                ttl: DEFAULT_TTL,
                protocol: PROTOCOL,
                src,
                dst,
                payload_len: v4_len,
            };
            header.emit(&mut frame[at..])?
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let header = Ipv6Header {
                dscp,
                ecn,
                flow_label: 0,
                payload_len: v6_len,
                next_header: PROTOCOL,
                hop_limit: DEFAULT_TTL,
                src,
                dst,
            };
            header.emit(&mut frame[at..])?
        }
        // Not reached: the port has refused a peer of the other IP version.
        _ => 0,
    };
    let payload_len = u16::try_from(frame.len() - at - UDP).unwrap_or(u16::MAX);
    let src_port = entropy_to_port(Entropy(0));
    at += UdpHeader { src_port, dst_port: UET_UDP_PORT, payload_len, checksum: 0 }.emit(&mut frame[at..])?;
    frame[at..at + LEN].copy_from_slice(&probe.encode());
    finish_checksums(frame, ChecksumFill::default())
}

/// A probe that has arrived, with facts from the headers of its packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReceivedProbe {
    pub(super) probe: Probe,
    pub(super) from: HostAddr,
    /// DSCP and ECN.
    pub(super) tos: u8,
    /// Number of routers on the way.
    pub(super) hops: u8,
    /// Bytes of the IP packet as it arrived.
    pub(super) length: u32,
    /// Whether the packet was longer when it was sent.
    pub(super) cut: bool,
}

/// Reads a frame that arrived, whole or trimmed.
pub(super) fn read(frame: &[u8]) -> Result<ReceivedProbe, NoProbe> {
    let eth = EthernetView::new_checked(frame)?;
    let (src, dscp, ecn, ttl, protocol, header, body) = match eth.ethertype() {
        ETHERTYPE_IPV4 => {
            let ip = Ipv4View::new_trimmed(eth.payload())?;
            let src = IpAddr::V4(ip.src());
            (src, ip.dscp(), ip.ecn(), ip.ttl(), ip.protocol(), ip.header_len(), ip.payload())
        }
        ETHERTYPE_IPV6 => {
            let ip = Ipv6View::new_trimmed(eth.payload())?;
            (IpAddr::V6(ip.src()), ip.dscp(), ip.ecn(), ip.hop_limit(), ip.next_header(), IPV6, ip.payload())
        }
        _ => return Err(NoProbe::Foreign),
    };
    if protocol != PROTOCOL {
        return Err(NoProbe::Foreign);
    }
    let udp = UdpView::new_trimmed(body)?;
    Ok(ReceivedProbe {
        probe: Probe::decode(udp.payload()).ok_or(NoProbe::Foreign)?,
        from: HostAddr { mac: eth.src(), ip: src },
        tos: dscp << 2 | ecn as u8,
        hops: DEFAULT_TTL.saturating_sub(ttl),
        length: (header + UDP + udp.payload().len()) as u32,
        cut: udp.payload().len() + UDP < usize::from(udp.length()),
    })
}

/// Bytes of the Ethernet frame with an IP packet of `packet` bytes.
pub(super) fn frame_len(packet: usize, vlan: Option<VlanTag>) -> usize {
    packet + MIN_FRAME + vlan.map_or(0, |_| VLAN_TAG_LEN)
}

fn ecn_of(tos: u8) -> Ecn {
    match tos & 3 {
        0 => Ecn::NotEct,
        1 => Ecn::Ect1,
        2 => Ecn::Ect0,
        _ => Ecn::Ce,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weft_stack::port::FramePool;
    use weft_stack::wire::ethernet::MacAddr;
    use weft_stack::wire::frame::{DscpClasses, TrimFormat, TrimOutcome, TrimPoint, TrimPolicy, trim_frame};

    fn host(n: u8, v6: bool) -> HostAddr {
        let ip = if v6 { format!("fd00::{n}").parse().unwrap() } else { [10, 0, 0, n].into() };
        HostAddr { mac: MacAddr([2, 0, 0, 0, 0, n]), ip }
    }

    fn written(v6: bool, tos: u8, packet: usize, probe: &Probe) -> Frame {
        written_with(None, v6, tos, packet, probe)
    }

    fn written_with(vlan: Option<VlanTag>, v6: bool, tos: u8, packet: usize, probe: &Probe) -> Frame {
        let len = frame_len(packet, vlan);
        let mut frame = FramePool::heap(1, len).unwrap().allocate(len).unwrap();
        write(&mut frame, host(1, v6), host(2, v6), vlan, tos, probe).unwrap();
        frame
    }

    proptest! {
        #[test]
        fn probes_survive_the_wire(
            kind in 0usize..6, numbers: (u32, u32, u32), counts: (u16, u16, u16), seen: u8, tos: u8, v6: bool, tagged: bool,
            more in 0usize..8000
        ) {
            let probe = Probe {
                kind: Kind::ALL[kind],
                session: numbers.0,
                number: numbers.1,
                tos: seen,
                length: numbers.2,
                whole: counts.0,
                trimmed: counts.1,
                missed: counts.2,
            };
            let packet = shortest(v6) + more;
            let vlan = tagged.then_some(VlanTag { priority: 3, drop_eligible: false, id: 7 });
            let frame = written_with(vlan, v6, tos, packet, &probe);
            prop_assert_eq!(EthernetView::new_checked(&frame[..]).unwrap().vlan(), vlan);
            let received = read(&frame).unwrap();
            let expected =
                ReceivedProbe { probe, from: host(1, v6), tos, hops: 0, length: packet as u32, cut: false };
            prop_assert_eq!(received, expected);
        }

        #[test]
        fn arbitrary_bytes_are_refused_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(read(&bytes).is_err());
        }
    }

    #[test]
    fn probes_of_a_burst_survive_the_shortest_trimming() {
        let classes = DscpClasses::default();
        for (v6, format, point, size) in [
            (false, TrimFormat::LengthRewritten, TrimPoint::Fabric, 0),
            (false, TrimFormat::LengthKept, TrimPoint::LastHop, 0),
            (true, TrimFormat::LengthRewritten, TrimPoint::LastHop, 0),
            (true, TrimFormat::LengthKept, TrimPoint::Fabric, 0),
            (false, TrimFormat::LengthRewritten, TrimPoint::Fabric, 128),
        ] {
            let probe = Probe::new(Kind::Burst, 7, 3);
            let mut frame = written(v6, classes.trimmable[0] << 2, 4000, &probe);
            let policy = TrimPolicy { size, format, point };
            let Ok(TrimOutcome::Trimmed(end)) = trim_frame(&mut frame, &classes, &policy) else {
                panic!("{policy:?} trims")
            };
            frame.truncate(end);
            let received = read(&frame).unwrap();
            assert_eq!((received.probe, received.cut), (probe, true), "{policy:?}");
            assert_eq!(received.tos >> 2, classes.dscp(point.class()), "{policy:?}");
            assert_eq!(frame_len(received.length as usize, None), end, "{policy:?}");
        }
    }

    #[test]
    fn truncated_requests_and_responses_are_refused() {
        for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::Burst) {
            let mut frame = written(false, 0, 4000, &Probe::new(kind, 7, 3));
            frame.truncate(frame_len(shortest(false), None) - 1);
            assert!(matches!(read(&frame), Err(NoProbe::Foreign)), "{kind:?}");
        }
    }
}
