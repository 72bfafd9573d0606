//! ARP, neighbour discovery and echo, as bytes.
//!
//! smoltcp reads and writes the packets; Ethernet headers, which may have a tag, are this crate's own.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, Icmpv4Packet, Icmpv4Repr, Icmpv6Packet, Icmpv6Repr,
    IpProtocol, Ipv4Packet, Ipv4Repr, Ipv6Packet, Ipv6Repr, NdiscNeighborFlags, NdiscRepr,
    RawHardwareAddress,
};

use crate::wire::ethernet::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, EthernetHeader, EthernetView, HEADER_LEN, MacAddr, VLAN_TAG_LEN, VlanTag,
};
use crate::worker::HostAddr;

const ETHERTYPE_ARP: u16 = 0x0806;
const BROADCAST: MacAddr = MacAddr([0xff; 6]);
/// Shows that a packet has passed no router (RFC 4861 §7.1).
const UNROUTED: u8 = 255;
/// Hops that answers to echo requests start with.
const ECHO_HOPS: u8 = 64;
const IPV4: usize = 20;
const IPV6: usize = 40;
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// The sender of our frames, and the VLAN tag that they carry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Speaker {
    pub(super) host: HostAddr,
    pub(super) vlan: Option<VlanTag>,
}

/// The content of a frame of these protocols.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Heard<'a> {
    /// The Ethernet address that the frame claims for an IP address. Any host can claim any address.
    pub(super) told: Option<HostAddr>,
    /// The answer that it asks for.
    pub(super) answer: Option<Answer<'a>>,
}

/// An answer to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer<'a> {
    /// By ARP: where this endpoint is.
    Arp { to: HostAddr },
    /// By neighbour discovery; to all nodes if the host that asks has no address yet.
    Advert { to: HostAddr, solicited: bool },
    /// The same bytes back.
    Echo { to: HostAddr, ident: u16, seq: u16, data: &'a [u8] },
}

/// Reads a frame. `None` if it is of another protocol, or not for `own`.
pub(super) fn hear<'a>(frame: &'a [u8], own: &Speaker) -> Option<Heard<'a>> {
    let eth = EthernetView::new_checked(frame).ok()?;
    let id = |tag: Option<VlanTag>| tag.map_or(0, |tag| tag.id);
    let for_us = eth.dst() == own.host.mac || eth.dst().0[0] & 1 != 0;
    // A tag with id 0 has a priority only.
    if !for_us || !is_unicast(eth.src()) || id(eth.vlan()) != id(own.vlan) {
        return None;
    }
    match (eth.ethertype(), own.host.ip) {
        (ETHERTYPE_ARP, IpAddr::V4(ip)) => Some(hear_arp(eth.payload(), ip).unwrap_or_default()),
        (ETHERTYPE_IPV4, IpAddr::V4(ip)) => hear_ipv4(&eth, ip),
        (ETHERTYPE_IPV6, IpAddr::V6(ip)) => hear_ipv6(&eth, ip),
        _ => None,
    }
}

pub(super) fn is_unicast(mac: MacAddr) -> bool {
    mac.0[0] & 1 == 0 && mac != MacAddr::default()
}

fn hear_arp(packet: &[u8], own: Ipv4Addr) -> Option<Heard<'static>> {
    let arp = ArpRepr::parse(&ArpPacket::new_checked(packet).ok()?).ok()?;
    let ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr,
        source_protocol_addr: ip,
        target_protocol_addr: target,
        ..
    } = arp
    else {
        return None;
    };
    let from = HostAddr { mac: MacAddr(source_hardware_addr.0), ip: ip.into() };
    if !is_unicast(from.mac) || ip == own || ip.is_multicast() || ip.is_broadcast() {
        return None;
    }
    // A probe has no address yet (RFC 5227 §2.1.1), so it tells none; but it is answered.
    let told = (!ip.is_unspecified()).then_some(from);
    let asks = operation == ArpOperation::Request && target == own;
    Some(Heard { told, answer: asks.then_some(Answer::Arp { to: from }) })
}

fn hear_ipv4<'a>(eth: &EthernetView<'a>, own: Ipv4Addr) -> Option<Heard<'a>> {
    let packet = Ipv4Packet::new_checked(eth.payload()).ok()?;
    if packet.next_header() != IpProtocol::Icmp {
        return None;
    }
    let src = packet.src_addr();
    let wanted = packet.dst_addr() == own && packet.verify_checksum();
    // Fragments are not put together, and groups get no answer (RFC 1122 §3.2.2.6).
    let whole = !packet.more_frags() && packet.frag_offset() == 0;
    let from_one = !src.is_multicast() && !src.is_broadcast() && !src.is_unspecified() && src != own;
    if !wanted || !whole || !from_one || eth.dst().0[0] & 1 != 0 {
        return Some(Heard::default());
    }
    let icmp = Icmpv4Packet::new_checked(packet.payload()).ok()?;
    let answer = match Icmpv4Repr::parse(&icmp, &ChecksumCapabilities::default()) {
        Ok(Icmpv4Repr::EchoRequest { ident, seq_no, data }) => {
            Some(Answer::Echo { to: HostAddr { mac: eth.src(), ip: src.into() }, ident, seq: seq_no, data })
        }
        _ => None,
    };
    Some(Heard { told: None, answer })
}

fn hear_ipv6<'a>(eth: &EthernetView<'a>, own: Ipv6Addr) -> Option<Heard<'a>> {
    let packet = Ipv6Packet::new_checked(eth.payload()).ok()?;
    if packet.next_header() != IpProtocol::Icmpv6 {
        return None;
    }
    let (src, dst) = (packet.src_addr(), packet.dst_addr());
    if src.is_multicast() || src == own {
        return Some(Heard::default());
    }
    let icmp = Icmpv6Packet::new_checked(packet.payload()).ok()?;
    if icmp.msg_code() != 0 {
        return Some(Heard::default());
    }
    let from = HostAddr { mac: eth.src(), ip: src.into() };
    let heard = match Icmpv6Repr::parse(&src, &dst, &icmp, &ChecksumCapabilities::default()) {
        Ok(Icmpv6Repr::Ndisc(ndisc)) if packet.hop_limit() == UNROUTED => hear_ndisc(&ndisc, from, own),
        Ok(Icmpv6Repr::EchoRequest { ident, seq_no, data }) if dst == own && !src.is_unspecified() => {
            Heard { told: None, answer: Some(Answer::Echo { to: from, ident, seq: seq_no, data }) }
        }
        _ => Heard::default(),
    };
    Some(heard)
}

fn hear_ndisc(ndisc: &NdiscRepr<'_>, from: HostAddr, own: Ipv6Addr) -> Heard<'static> {
    match *ndisc {
        NdiscRepr::NeighborSolicit { target_addr, lladdr } if target_addr == own => {
            // A host that checks whether an address is free has no address itself (RFC 4862 §5.4.2).
            if from.ip.is_unspecified() {
                let to = HostAddr { mac: group_mac(ALL_NODES), ip: ALL_NODES.into() };
                return Heard { told: None, answer: Some(Answer::Advert { to, solicited: false }) };
            }
            let to = HostAddr { mac: lladdr.and_then(unicast_mac).unwrap_or(from.mac), ..from };
            Heard { told: Some(to), answer: Some(Answer::Advert { to, solicited: true }) }
        }
        // A group address names no host (RFC 4861 §7.1.2).
        NdiscRepr::NeighborAdvert { target_addr, lladdr: Some(lladdr), .. }
            if target_addr != own && !target_addr.is_multicast() && !target_addr.is_unspecified() =>
        {
            let told = unicast_mac(lladdr).map(|mac| HostAddr { mac, ip: target_addr.into() });
            Heard { told, answer: None }
        }
        _ => Heard::default(),
    }
}

fn unicast_mac(address: RawHardwareAddress) -> Option<MacAddr> {
    let mac = MacAddr(address.as_bytes().try_into().ok()?);
    is_unicast(mac).then_some(mac)
}

/// The Ethernet address of an IPv6 group (RFC 2464 §7).
fn group_mac(group: Ipv6Addr) -> MacAddr {
    let [.., a, b, c, d] = group.octets();
    MacAddr([0x33, 0x33, a, b, c, d])
}

/// The group that the owner of `ip` listens to (RFC 4291 §2.7.1).
fn solicited_node(ip: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = ip.octets();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from(b) << 8 | u16::from(c))
}

/// Bytes enough for any frame of this module but an answer to a longer echo request.
const ENOUGH: usize = HEADER_LEN + VLAN_TAG_LEN + IPV6 + 32;

/// Bytes of a buffer for the frame that asks for an Ethernet address.
pub(super) const QUESTION: usize = ENOUGH;

/// Bytes of a buffer for `answer`.
pub(super) fn room_for(answer: &Answer<'_>) -> usize {
    match answer {
        Answer::Echo { data, .. } => ENOUGH + data.len(),
        _ => ENOUGH,
    }
}

/// Writes the frame that asks where `ip` is, and returns its length; `None` if the two are of different
/// versions, or `buf` is too short.
pub(super) fn ask(own: &Speaker, ip: IpAddr, buf: &mut [u8]) -> Option<usize> {
    match (own.host.ip, ip) {
        (IpAddr::V4(from), IpAddr::V4(target)) => {
            let arp = ArpRepr::EthernetIpv4 {
                operation: ArpOperation::Request,
                source_hardware_addr: EthernetAddress(own.host.mac.0),
                source_protocol_addr: from,
                target_hardware_addr: EthernetAddress([0; 6]),
                target_protocol_addr: target,
            };
            write_arp(own, BROADCAST, &arp, buf)
        }
        (IpAddr::V6(_), IpAddr::V6(target)) => {
            let lladdr = Some(EthernetAddress(own.host.mac.0).into());
            let group = solicited_node(target);
            let to = HostAddr { mac: group_mac(group), ip: group.into() };
            let ask = Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit { target_addr: target, lladdr });
            write_icmpv6(own, &to, &ask, UNROUTED, buf)
        }
        _ => None,
    }
}

/// Writes an answer, and returns its length; `None` if it is of another version of IP, or `buf` is too short.
pub(super) fn reply(own: &Speaker, answer: &Answer<'_>, buf: &mut [u8]) -> Option<usize> {
    match (*answer, own.host.ip) {
        (Answer::Arp { to: HostAddr { mac, ip: IpAddr::V4(ip) } }, IpAddr::V4(from)) => {
            let arp = ArpRepr::EthernetIpv4 {
                operation: ArpOperation::Reply,
                source_hardware_addr: EthernetAddress(own.host.mac.0),
                source_protocol_addr: from,
                target_hardware_addr: EthernetAddress(mac.0),
                target_protocol_addr: ip,
            };
            write_arp(own, mac, &arp, buf)
        }
        (Answer::Advert { to, solicited }, IpAddr::V6(target_addr)) => {
            let mut flags = NdiscNeighborFlags::OVERRIDE;
            flags.set(NdiscNeighborFlags::SOLICITED, solicited);
            let lladdr = Some(EthernetAddress(own.host.mac.0).into());
            let advert = Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert { flags, target_addr, lladdr });
            write_icmpv6(own, &to, &advert, UNROUTED, buf)
        }
        (Answer::Echo { to, ident, seq, data }, IpAddr::V6(_)) => {
            write_icmpv6(own, &to, &Icmpv6Repr::EchoReply { ident, seq_no: seq, data }, ECHO_HOPS, buf)
        }
        (Answer::Echo { to, ident, seq, data }, IpAddr::V4(_)) => {
            write_icmpv4(own, &to, &Icmpv4Repr::EchoReply { ident, seq_no: seq, data }, buf)
        }
        _ => None,
    }
}

fn ethernet(own: &Speaker, dst: MacAddr, ethertype: u16, buf: &mut [u8]) -> Option<usize> {
    EthernetHeader { dst, src: own.host.mac, vlan: own.vlan, ethertype }.emit(buf).ok()
}

fn write_arp(own: &Speaker, dst: MacAddr, arp: &ArpRepr, buf: &mut [u8]) -> Option<usize> {
    let at = ethernet(own, dst, ETHERTYPE_ARP, buf)?;
    let end = at + arp.buffer_len();
    arp.emit(&mut ArpPacket::new_unchecked(buf.get_mut(at..end)?));
    Some(end)
}

fn write_icmpv4(own: &Speaker, to: &HostAddr, icmp: &Icmpv4Repr<'_>, buf: &mut [u8]) -> Option<usize> {
    let (IpAddr::V4(src_addr), IpAddr::V4(dst_addr)) = (own.host.ip, to.ip) else { return None };
    let (sums, payload_len) = (ChecksumCapabilities::default(), icmp.buffer_len());
    let ip =
        Ipv4Repr { src_addr, dst_addr, next_header: IpProtocol::Icmp, payload_len, hop_limit: ECHO_HOPS };
    let at = ethernet(own, to.mac, ETHERTYPE_IPV4, buf)?;
    let packet = buf.get_mut(at..at + IPV4 + payload_len)?;
    ip.emit(&mut Ipv4Packet::new_unchecked(&mut *packet), &sums);
    icmp.emit(&mut Icmpv4Packet::new_unchecked(&mut packet[IPV4..]), &sums);
    Some(at + IPV4 + payload_len)
}

fn write_icmpv6(
    own: &Speaker,
    to: &HostAddr,
    icmp: &Icmpv6Repr<'_>,
    hop_limit: u8,
    buf: &mut [u8],
) -> Option<usize> {
    let (IpAddr::V6(src_addr), IpAddr::V6(dst_addr)) = (own.host.ip, to.ip) else { return None };
    let (sums, payload_len) = (ChecksumCapabilities::default(), icmp.buffer_len());
    let ip = Ipv6Repr { src_addr, dst_addr, next_header: IpProtocol::Icmpv6, payload_len, hop_limit };
    let at = ethernet(own, to.mac, ETHERTYPE_IPV6, buf)?;
    let packet = buf.get_mut(at..at + IPV6 + payload_len)?;
    ip.emit(&mut Ipv6Packet::new_unchecked(&mut *packet));
    icmp.emit(&src_addr, &dst_addr, &mut Icmpv6Packet::new_unchecked(&mut packet[IPV6..]), &sums);
    Some(at + IPV6 + payload_len)
}
