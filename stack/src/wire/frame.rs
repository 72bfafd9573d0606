//! Whole frames: Ethernet, IP, UDP, PDS, SES and payload at once.
//!
//! Headers and payload are written separately ([`emit_headers`], then the payload right after), so that the payload is
//! copied once or not at all. [`finish_checksums`] comes last, and only if the port does not compute the checksums
//! itself. Where a network's packets end with a CRC ([`crc`]), it counts as payload until it is filled in.

pub use super::class::{DscpClasses, PacketClass, Priority, TrimPoint};
pub use super::ethernet::{MacAddr, VlanTag};
pub use super::ip::{Ecn, IpAddrs};
pub use super::trim::{TrimFormat, TrimOutcome, TrimPolicy, trim_frame};
pub use super::udp::{UET_UDP_PORT, entropy_to_port, port_to_entropy};

use super::checksum;
use super::crc;
use super::error::{HeaderName, WireError, fits};
use super::ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, EthernetHeader, EthernetView};
use super::ipv4::{self, Ipv4Header};
use super::ipv6::Ipv6Header;
use super::network::Network;
use super::pds::{Pds, Request};
use super::prefix::{PREFIX_LEN, Prefix};
use super::ses::{Ses, StandardRequest};
use super::udp::{self, UdpHeader, UdpView};

/// Initial TTL or hop limit of weft's packets.
pub const DEFAULT_TTL: u8 = 64;

/// The contents of a frame's headers in front of PDS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameMeta {
    /// Source MAC address.
    pub src_mac: MacAddr,
    /// Destination MAC address.
    pub dst_mac: MacAddr,
    /// VLAN tag, if any.
    pub vlan: Option<VlanTag>,
    /// IP addresses.
    pub ip: IpAddrs,
    /// DSCP, 6 bits.
    pub dscp: u8,
    /// Congestion bits of IP.
    pub ecn: Ecn,
    /// TTL or hop limit: as received, or the initial value.
    pub ttl: u8,
    /// UDP source port, which carries the entropy; see [`entropy_to_port`].
    pub entropy_port: u16,
    /// Whether, and where, the payload was trimmed. In received frames derived from `dscp`; in emitted frames it must
    /// agree with `dscp`.
    pub trimmed: Option<TrimPoint>,
    /// Payload bytes that the packet had when it was sent: trimming leaves the UDP length alone. Ignored when an
    /// untrimmed frame is emitted. Extension headers count as payload, and so does a CRC in a trimmed frame that is emitted.
    pub original_payload_len: u32,
}

/// A parsed frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The contents of the headers in front of PDS.
    pub meta: FrameMeta,
    /// The PDS header.
    pub pds: Pds,
    /// The SES header; [`Ses::None`] also if trimming has cut it off.
    pub ses: Ses,
    /// The bytes after SES: an extension header if the opcode has one, then the payload. After TSS: the ciphertext and
    /// the tag. Empty in a trimmed frame.
    pub payload: &'a [u8],
}

/// The checksums that [`parse_frame`] verifies.
///
/// The default verifies all: without a CRC the UDP checksum is the only end-to-end protection, since each switch
/// recomputes Ethernet's. A trimmed frame's UDP checksum covers bytes that are gone, so it is never verified.
/// IPv4 senders may omit the UDP checksum (zero); over IPv6 zero is refused (RFC 8200 §8.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChecksumPolicy {
    /// Verify the IPv4 header checksum, except in trimmed frames whose total length was left alone: their checksum was
    /// left alone too, although the DSCP has changed.
    pub ipv4_header: bool,
    /// Verify the UDP checksum.
    pub udp: bool,
    /// Packets end with a CRC ([`crc`]), which is verified and removed.
    pub crc: bool,
}

impl ChecksumPolicy {
    /// Verify all.
    pub const VERIFY: ChecksumPolicy = ChecksumPolicy { ipv4_header: true, udp: true, crc: false };
    /// Verify no checksum: the port has verified the checksums.
    pub const OFFLOADED: ChecksumPolicy = ChecksumPolicy { ipv4_header: false, udp: false, crc: false };
}

impl Default for ChecksumPolicy {
    fn default() -> ChecksumPolicy {
        ChecksumPolicy::VERIFY
    }
}

/// Parses a received frame.
///
/// `classes` decides whether the frame was trimmed. A trimmed frame may announce more bytes than it has, in its UDP
/// length and (if the switch leaves that alone) in its IP length. Its SES header is read if it is complete.
///
/// # Errors
/// Any error in a header, with its offset. In particular, the frame must be UDP to port 4793 over IPv4 without
/// fragmentation, or over IPv6 without extension headers, with at most one VLAN tag.
#[inline]
pub fn parse_frame<'a>(
    bytes: &'a [u8],
    classes: &DscpClasses,
    checksums: ChecksumPolicy,
) -> Result<Frame<'a>, WireError> {
    let eth = EthernetView::new_checked(bytes)?;
    let net = Network::open(&eth)?;
    let trimmed = classes.classify(net.dscp()).trim_point();
    let cut = net.announced_len() > net.payload().len();
    if trimmed.is_none() {
        net.check_length()?;
    }
    if checksums.ipv4_header && !cut {
        net.verify_checksum()?;
    }
    net.require_udp()?;
    let udp = match trimmed {
        None => UdpView::new_checked(net.payload())?,
        Some(_) => UdpView::new_trimmed(net.payload())?,
    };
    let ip = net.addrs();
    check_udp(&udp, &ip, checksums.udp && trimmed.is_none())?;
    let trailer = if checksums.crc { crc::LEN } else { 0 };
    let mut delivery = udp.payload();
    if checksums.crc && trimmed.is_none() {
        let udp_at = net.header_len() - ip.source_at();
        let from = eth.header_len() + ip.source_at();
        crc::verify(&bytes[from..from + udp_at + usize::from(udp.length())], udp_at)?;
        delivery = &delivery[..delivery.len() - crc::LEN];
    }
    let (pds, rest) = Pds::decode(delivery)?;
    let body = match trimmed {
        None => whole_body(&pds, rest)?,
        Some(_) => trimmed_body(&pds, rest, usize::from(udp.length()).saturating_sub(trailer))?,
    };
    let meta = FrameMeta {
        src_mac: eth.src(),
        dst_mac: eth.dst(),
        vlan: eth.vlan(),
        ip,
        dscp: net.dscp(),
        ecn: net.ecn(),
        ttl: net.ttl(),
        entropy_port: udp.src_port(),
        trimmed,
        original_payload_len: body.original_len as u32,
    };
    Ok(Frame { meta, pds, ses: body.ses, payload: body.payload })
}

/// Parses the bytes after the UDP header of an untrimmed frame: writes PDS and SES to `pds` and `ses`, and returns the
/// payload.
///
/// # Errors
/// As [`parse_frame`]; `pds` and `ses` are then arbitrary.
// Inlined always: every packet comes here, from one of two places.
#[inline(always)]
pub(crate) fn parse_delivery<'a>(
    bytes: &'a [u8],
    pds: &mut Pds,
    ses: &mut Ses,
) -> Result<&'a [u8], WireError> {
    // Fast path for the most common headers.
    if let Some((header, rest)) = bytes.split_first_chunk()
        && let Some(request) = Request::parse_plain(header)
        && let Some((header, payload)) = rest.split_first_chunk()
    {
        *pds = Pds::Request(request);
        *ses = Ses::Standard(StandardRequest::read(header));
        return Ok(payload);
    }
    parse_any_delivery(bytes, pds, ses)
}

#[inline(never)]
fn parse_any_delivery<'a>(bytes: &'a [u8], pds: &mut Pds, ses: &mut Ses) -> Result<&'a [u8], WireError> {
    let (header, rest) = Pds::decode(bytes)?;
    *pds = header;
    let (header, payload) = Ses::decode(pds.next_header(), rest)?;
    *ses = header;
    Ok(payload)
}

struct Body<'a> {
    ses: Ses,
    payload: &'a [u8],
    original_len: usize,
}

#[inline]
fn whole_body<'a>(pds: &Pds, rest: &'a [u8]) -> Result<Body<'a>, WireError> {
    let (ses, payload) = Ses::decode(pds.next_header(), rest)?;
    Ok(Body { ses, payload, original_len: payload.len() })
}

#[cold]
fn trimmed_body<'a>(pds: &Pds, rest: &'a [u8], udp_len: usize) -> Result<Body<'a>, WireError> {
    let next = pds.next_header();
    let headers = udp::HEADER_LEN + pds.encoded_len() + next.header_len();
    let original_len = udp_len.checked_sub(headers).ok_or(WireError::Unexpected {
        header: HeaderName::Udp,
        offset: 4,
        expected: "a length that covers the PDS and SES headers",
        found: udp_len as u64,
    })?;
    let ses = if rest.len() >= next.header_len() { Ses::decode(next, rest)?.0 } else { Ses::None };
    Ok(Body { ses, payload: &[], original_len })
}

#[inline]
fn check_udp(udp: &UdpView<'_>, ip: &IpAddrs, verify: bool) -> Result<(), WireError> {
    if udp.dst_port() != UET_UDP_PORT {
        return Err(WireError::Unexpected {
            header: HeaderName::Udp,
            offset: 2,
            expected: "destination port 4793",
            found: u64::from(udp.dst_port()),
        });
    }
    if !verify {
        return Ok(());
    }
    match (udp.checksum(), ip) {
        (0, IpAddrs::V4 { .. }) => Ok(()),
        (0, IpAddrs::V6 { .. }) => Err(WireError::Unexpected {
            header: HeaderName::Udp,
            offset: 6,
            expected: "a checksum, which IPv6 requires",
            found: 0,
        }),
        (found, _) if !checksum::udp_is_valid(ip, udp.datagram()) => Err(WireError::Checksum {
            header: HeaderName::Udp,
            offset: 6,
            expected: right_udp_checksum(ip, udp.datagram(), found),
            found,
        }),
        _ => Ok(()),
    }
}

#[cold]
fn right_udp_checksum(ip: &IpAddrs, datagram: &[u8], found: u16) -> u16 {
    let sum = checksum::pseudo_header(ip, udp::PROTOCOL, datagram.len() as u16);
    match sum.with(datagram).with_word(!found).finish() {
        0 => 0xffff,
        c => c,
    }
}

/// Length of the headers that [`emit_headers`] writes, bytes.
#[inline]
pub fn headers_len(meta: &FrameMeta, pds: &Pds, ses: &Ses) -> usize {
    let ethernet = ethernet_header(meta).encoded_len();
    ethernet + meta.ip.header_len() + udp::HEADER_LEN + pds.encoded_len() + ses.encoded_len()
}

#[inline]
fn ethernet_header(meta: &FrameMeta) -> EthernetHeader {
    let ethertype = match meta.ip {
        IpAddrs::V4 { .. } => ETHERTYPE_IPV4,
        IpAddrs::V6 { .. } => ETHERTYPE_IPV6,
    };
    EthernetHeader { dst: meta.dst_mac, src: meta.src_mac, vlan: meta.vlan, ethertype }
}

/// Writes all headers of a frame and returns their length; the caller puts the payload of `payload_len` bytes after
/// them. Both checksums are left zero: see [`finish_checksums`].
///
/// With `meta.trimmed`, writes the frame as a switch that rewrites lengths would have left it: `payload_len` must be
/// zero, and `ses` may be [`Ses::None`] although PDS announces a header. IPv4 packets get identification 0 and DF,
/// IPv6 packets flow label 0: the entropy is in the UDP source port. The port pads frames to Ethernet's minimum.
///
/// # Errors
/// No room; a value too wide for its field, including the length of the packet; `ses` is not the header that `pds`
/// announces.
#[inline]
pub fn emit_headers(
    buf: &mut [u8],
    meta: &FrameMeta,
    pds: &Pds,
    ses: &Ses,
    payload_len: usize,
) -> Result<usize, WireError> {
    emit(buf, meta, pds, ses, payload_len, false)
}

/// As [`emit_headers`], but computes the IPv4 header checksum. The UDP checksum is left zero: see
/// [`fill_udp_checksum`].
///
/// # Errors
/// As [`emit_headers`].
#[inline]
pub fn emit_headers_with_ipv4_checksum(
    buf: &mut [u8],
    meta: &FrameMeta,
    pds: &Pds,
    ses: &Ses,
    payload_len: usize,
) -> Result<usize, WireError> {
    emit(buf, meta, pds, ses, payload_len, true)
}

#[inline]
fn emit(
    buf: &mut [u8],
    meta: &FrameMeta,
    pds: &Pds,
    ses: &Ses,
    payload_len: usize,
    ipv4_checksum: bool,
) -> Result<usize, WireError> {
    check_consistent(meta, pds, ses, payload_len)?;
    let present = pds.encoded_len() + ses.encoded_len() + payload_len;
    let announced = match meta.trimmed {
        None => present,
        Some(_) => pds.encoded_len() + pds.next_header().header_len() + meta.original_payload_len as usize,
    };
    let ip_payload = length16(present + udp::HEADER_LEN)?;
    let udp_payload = length16(announced + udp::HEADER_LEN)? - udp::HEADER_LEN as u16;

    let mut at = ethernet_header(meta).emit(buf)?;
    at += emit_ip(&mut buf[at..], meta, ip_payload, ipv4_checksum)?;
    let udp = UdpHeader {
        src_port: meta.entropy_port,
        dst_port: UET_UDP_PORT,
        payload_len: udp_payload,
        checksum: 0,
    };
    at += udp.emit(&mut buf[at..])?;
    at += pds.emit(&mut buf[at..])?;
    at += ses.emit(&mut buf[at..])?;
    Ok(at)
}

/// As [`emit_headers_with_ipv4_checksum`], for packets whose headers up to UDP come from `prefix`, apart from the
/// traffic class (DSCP and ECN) and the source port.
///
/// # Errors
/// As [`emit_headers`].
// Inlined always: every packet comes here, from one of two places.
#[inline(always)]
pub(crate) fn emit_headers_behind(
    buf: &mut [u8],
    prefix: &Prefix,
    varying: (u8, u16),
    pds: &Pds,
    ses: &Ses,
    payload_len: usize,
) -> Result<usize, WireError> {
    if emit_plain_headers(buf, prefix, varying, pds, ses, payload_len) {
        return Ok(PLAIN_LEN);
    }
    emit_any_headers(buf, prefix, varying, pds, ses, payload_len)
}

/// Length of the most common headers: a prefix, a request and a standard SES header.
const PLAIN_LEN: usize = PREFIX_LEN + Request::LEN + StandardRequest::LEN;

/// [`emit_headers_behind`] for the most common headers, all at fixed places. Returns whether they are of that kind, and
/// nothing is wrong with them; if not, `buf` is arbitrary.
#[inline(always)]
fn emit_plain_headers(
    buf: &mut [u8],
    prefix: &Prefix,
    (traffic_class, src_port): (u8, u16),
    pds: &Pds,
    ses: &Ses,
    payload_len: usize,
) -> bool {
    let (Pds::Request(request), Ses::Standard(standard)) = (pds, ses) else { return false };
    let Some(headers) = buf.first_chunk_mut::<PLAIN_LEN>() else { return false };
    let Some((head, rest)) = headers.split_first_chunk_mut() else { return false };
    let Some((request_at, rest)) = rest.split_first_chunk_mut() else { return false };
    let Some(standard_at) = rest.first_chunk_mut() else { return false };
    request.write_plain(request_at)
        && standard.write(standard_at).is_ok()
        && prefix.write(head, traffic_class, src_port, PLAIN_LEN - PREFIX_LEN + payload_len).is_ok()
}

/// [`emit_headers_behind`] for any headers.
#[inline(never)]
fn emit_any_headers(
    buf: &mut [u8],
    prefix: &Prefix,
    (traffic_class, src_port): (u8, u16),
    pds: &Pds,
    ses: &Ses,
    payload_len: usize,
) -> Result<usize, WireError> {
    let room = buf.len();
    let no_room = WireError::NoRoom { header: HeaderName::Udp, needed: PREFIX_LEN, room };
    let (head, rest) = buf.split_first_chunk_mut().ok_or(no_room)?;
    check_announced(pds, ses)?;
    let at = pds.emit(rest)?;
    let delivery = at + ses.emit(&mut rest[at..])?;
    prefix.write(head, traffic_class, src_port, delivery + payload_len)?;
    Ok(PREFIX_LEN + delivery)
}

#[inline]
fn check_consistent(meta: &FrameMeta, pds: &Pds, ses: &Ses, payload_len: usize) -> Result<(), WireError> {
    let cut_off = meta.trimmed.is_some() && matches!(ses, Ses::None);
    if !cut_off {
        check_announced(pds, ses)?;
    }
    if meta.trimmed.is_some() && payload_len != 0 {
        return Err(WireError::Inconsistent {
            header: HeaderName::Udp,
            offset: 4,
            expected: "no payload in a trimmed frame",
        });
    }
    Ok(())
}

/// Checks that `ses` is the header that `pds` announces.
#[inline]
fn check_announced(pds: &Pds, ses: &Ses) -> Result<(), WireError> {
    if ses.next_header() == pds.next_header() {
        return Ok(());
    }
    let expected = "the next header that the SES header is";
    Err(WireError::Inconsistent { header: HeaderName::PdsPrologue, offset: 0, expected })
}

#[inline]
fn length16(len: usize) -> Result<u16, WireError> {
    fits(HeaderName::Udp, 4, "length", len as u64, 16)?;
    Ok(len as u16)
}

#[inline]
fn emit_ip(
    buf: &mut [u8],
    meta: &FrameMeta,
    payload_len: u16,
    ipv4_checksum: bool,
) -> Result<usize, WireError> {
    let FrameMeta { dscp, ecn, ttl, .. } = *meta;
    match meta.ip {
        IpAddrs::V4 { src, dst } => {
            let header = Ipv4Header {
                dscp,
                ecn,
                identification: 0,
                dont_fragment: true,
                ttl,
                protocol: udp::PROTOCOL,
                src,
                dst,
                payload_len,
            };
            if ipv4_checksum { header.emit_with_checksum(buf) } else { header.emit(buf) }
        }
        IpAddrs::V6 { src, dst } => Ipv6Header {
            dscp,
            ecn,
            flow_label: 0,
            payload_len,
            next_header: udp::PROTOCOL,
            hop_limit: ttl,
            src,
            dst,
        }
        .emit(buf),
    }
}

/// The value that [`finish_checksums`] puts in the UDP checksum field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum UdpChecksum {
    /// The checksum over pseudo-header and datagram.
    #[default]
    Full,
    /// The folded sum of the pseudo-header, for a port that adds the rest.
    PseudoHeader,
    /// Zero, which means no checksum. IPv6 requires a checksum, so there the same as [`UdpChecksum::Full`].
    None,
}

/// The checksums that [`finish_checksums`] fills in. The default computes all in software; [`UdpChecksum::None`] saves
/// the pass over the payload where Ethernet's frame check is enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChecksumFill {
    /// Whether to fill the IPv4 header checksum in.
    pub ipv4_header: bool,
    /// How to fill in the UDP checksum.
    pub udp: UdpChecksum,
}

impl Default for ChecksumFill {
    fn default() -> ChecksumFill {
        ChecksumFill { ipv4_header: true, udp: UdpChecksum::Full }
    }
}

/// Fills in the checksums of a complete frame: headers written by [`emit_headers`], then the payload. The UDP checksum
/// of a trimmed frame is left alone, because it covers bytes that are gone.
///
/// # Errors
/// The bytes are not such a frame.
pub fn finish_checksums(frame: &mut [u8], fill: ChecksumFill) -> Result<(), WireError> {
    let eth = EthernetView::new_checked(frame)?;
    let net = Network::open(&eth)?;
    net.check_length()?;
    net.require_udp()?;
    let udp = UdpView::new_trimmed(net.payload())?;
    let (ip, len) = (net.addrs(), usize::from(udp.length()));
    let is_cut = len > net.payload().len();
    let ip_at = eth.header_len();
    let udp_at = ip_at + net.header_len();

    if fill.ipv4_header && matches!(ip, IpAddrs::V4 { .. }) {
        ipv4::fill_checksum(&mut frame[ip_at..])?;
    }
    if !is_cut {
        fill_udp(&mut frame[udp_at..udp_at + len], &ip, fill.udp);
    }
    Ok(())
}

/// Fills in the UDP checksum of a complete, untrimmed frame whose headers were emitted for `meta`. Same result as
/// [`finish_checksums`] for the UDP checksum, without parsing the headers again.
///
/// # Errors
/// The frame is shorter than these headers.
#[inline]
pub fn fill_udp_checksum(frame: &mut [u8], meta: &FrameMeta, fill: UdpChecksum) -> Result<(), WireError> {
    let at = ethernet_header(meta).encoded_len() + meta.ip.header_len();
    fill_udp_checksum_at(frame, at, &meta.ip, fill)
}

/// As [`fill_udp_checksum`], for a frame whose UDP header begins at offset `at`.
///
/// # Errors
/// As [`fill_udp_checksum`].
#[inline]
pub(crate) fn fill_udp_checksum_at(
    frame: &mut [u8],
    at: usize,
    ip: &IpAddrs,
    fill: UdpChecksum,
) -> Result<(), WireError> {
    let (needed, found) = (at + udp::HEADER_LEN, frame.len());
    let short = WireError::Truncated { header: HeaderName::Udp, needed, found };
    let datagram = frame.get_mut(at..).filter(|datagram| datagram.len() >= udp::HEADER_LEN).ok_or(short)?;
    fill_udp(datagram, ip, fill);
    Ok(())
}

/// Fills in the checksum of `datagram`, which holds a whole UDP header.
fn fill_udp(datagram: &mut [u8], ip: &IpAddrs, fill: UdpChecksum) {
    datagram[6..8].fill(0);
    let value = match (fill, ip) {
        (UdpChecksum::None, IpAddrs::V4 { .. }) => 0,
        (UdpChecksum::PseudoHeader, _) => {
            checksum::pseudo_header(ip, udp::PROTOCOL, datagram.len() as u16).fold()
        }
        _ => checksum::udp(ip, datagram),
    };
    datagram[6..8].copy_from_slice(&value.to_be_bytes());
}
