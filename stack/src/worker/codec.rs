//! The codec between packets and frames.

use core::net::IpAddr;

use super::book::{AddressBook, BookError, HostAddr, Route};
use super::predict::{Predicted, Predictions};
use crate::packet::{Addr, Class, Network, Packet, Payload};
use crate::port::{ChecksumOffload, ChecksumStatus, Frame, PortCaps};
use crate::region::RegionBytes;
use crate::spray::Entropy;
use crate::wire::WireError;
use crate::wire::class::PRIORITIES;
use crate::wire::crc;
use crate::wire::frame::{
    ChecksumPolicy, DEFAULT_TTL, DscpClasses, Ecn, FrameMeta, IpAddrs, PacketClass, Priority, UdpChecksum,
    VlanTag, emit_headers, emit_headers_behind, emit_headers_with_ipv4_checksum, entropy_to_port,
    fill_udp_checksum, fill_udp_checksum_at, parse_delivery, parse_frame,
};
use crate::wire::prefix;
use crate::wire::udp::ENTROPY_COUNT;

/// The settings that all frames of a link have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LinkConfig {
    /// The DSCPs of the fabric's classes.
    pub classes: DscpClasses,
    /// The VLAN tag of frames that are sent. Packets that arrive may have any tag, or none, because cards and switch
    /// ports remove tags. Only [questions for addresses](super::neighbours) are answered for this tag alone.
    pub vlan: Option<VlanTag>,
    /// The packets that are sent with a UDP checksum.
    pub checksum: Checksum,
}

/// The packets that are sent with a UDP checksum. IPv6 requires it for all; every packet that arrives with one is
/// checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Checksum {
    /// Packets that can be damaged on their way, as far as the port knows ([`PortCaps::in_memory`]).
    #[default]
    WhereNeeded,
    /// All packets: for ports in memory whose peer forwards frames over a wire.
    Always,
    /// None, where IPv4 allows that: relies on the frame check sequence of each link.
    Never,
}

/// Writes packets as frames and reads frames as packets.
#[derive(Clone, Copy, Debug)]
pub struct Codec {
    link: LinkConfig,
    /// Bytes of the CRC at the end of packets: 0 or [`crc::LEN`].
    trailer: usize,
    offload_v4: bool,
    offload_v6: bool,
    /// Whether IPv4 packets leave without a UDP checksum.
    without_udp_v4: bool,
    /// The traffic classes (DSCP and ECN) of data, by priority, and of control packets, where headers are
    /// [plain](Codec::write_plain).
    plain: Option<([u8; PRIORITIES], u8)>,
}

/// Whether the port or software computes the checksums of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fill {
    /// The port, both.
    Port,
    /// Software; [`UdpChecksum::None`] omits the UDP checksum.
    Software(UdpChecksum),
}

/// Why a frame that arrived was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The frame is not a well-formed one of this protocol.
    #[error(transparent)]
    Malformed(#[from] WireError),
    /// The frame is for another IP address.
    #[error("the frame is for {0}")]
    Misdirected(IpAddr),
    /// The frame has the endpoint's own address as its sender.
    #[error("the frame is from {0}, which is this endpoint")]
    Own(IpAddr),
    /// The sender is not in the address book.
    #[error(transparent)]
    Stranger(#[from] BookError),
}

/// Why a packet could not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The destination is not in the address book.
    #[error("endpoint {} is not in the address book", .0.0)]
    UnknownPeer(Addr),
    /// The destination is in the address book, but its Ethernet address is not known yet.
    #[error("the Ethernet address of endpoint {}, {ip}, is not known", peer.0)]
    Unresolved {
        /// Endpoint address of the destination.
        peer: Addr,
        /// IP address of the destination.
        ip: IpAddr,
    },
    /// A header could not be written.
    #[error(transparent)]
    Header(#[from] WireError),
    /// The payload has only a length, and real frames carry bytes; or it is not as long as the headers say.
    #[error("a payload of {announced} bytes is announced, and {present} are there")]
    Payload {
        /// Bytes that the headers announce.
        announced: u32,
        /// Bytes that are present.
        present: u32,
    },
    /// The frame does not fit the buffer.
    #[error("a frame of {needed} bytes does not fit a buffer of {room}")]
    TooLong {
        /// Bytes of the frame.
        needed: usize,
        /// Bytes of the buffer.
        room: usize,
    },
}

const DATA_ECN: Ecn = Ecn::Ect0;
/// Not ECN-capable: no sender slows down for marks on control packets.
const CONTROL_ECN: Ecn = Ecn::NotEct;

impl Codec {
    /// A codec for frames of `link` over a port with these capabilities.
    pub fn new(link: LinkConfig, caps: &PortCaps) -> Codec {
        let without_udp_v4 = match link.checksum {
            Checksum::WhereNeeded => caps.in_memory,
            Checksum::Always => false,
            Checksum::Never => true,
        };
        let data = link.classes.trimmable.map(|dscp| dscp << 2 | DATA_ECN as u8);
        let control = link.classes.control << 2 | CONTROL_ECN as u8;
        let is_plain = link.vlan.is_none() && link.classes.validate().is_ok();
        Codec {
            link,
            trailer: 0,
            offload_v4: caps.tx_ipv4_checksum && caps.tx_udp_checksum,
            offload_v6: caps.tx_udp_checksum,
            without_udp_v4,
            plain: is_plain.then_some((data, control)),
        }
    }

    /// As it is, for a network whose packets end with a CRC, or not. Where it is `on`, the CRC is verified instead of the
    /// UDP checksum, which is still sent.
    pub fn with_crc(self, on: bool) -> Codec {
        Codec { trailer: if on { crc::LEN } else { 0 }, ..self }
    }

    /// Writes `packet` with `payload` into `frame`, a buffer that is long enough, and cuts that to the
    /// frame's length. The payload is copied once; checksums are computed, left to the port, or left out.
    ///
    /// # Errors
    /// Why it cannot be written; the buffer's content is then arbitrary.
    #[inline]
    pub fn write(
        &self,
        book: &AddressBook,
        packet: &Packet,
        payload: Payload<'_>,
        frame: &mut Frame,
    ) -> Result<(), WriteError> {
        let present = match payload {
            Payload::Bytes(_) | Payload::Region(_) => payload.len() as usize,
            Payload::Virtual(0) => 0,
            Payload::Virtual(_) => return Err(payload_error(packet, 0)),
        };
        let Some((headers, ip)) = self.write_plain(book, packet, present, frame)? else {
            return self.write_any(book, packet, present, payload, frame);
        };
        put_payload(frame, headers, present, payload, self.trailer)?;
        if self.trailer > 0 {
            crc::fill(&mut frame[prefix::SOURCE..], prefix::UDP - prefix::SOURCE)?;
        }
        if self.without_udp_v4 { Ok(()) } else { self.fill_plain(ip, frame) }
    }

    /// Writes the headers of `packet` except the UDP checksum, if they are plain: IPv4, untagged, not trimmed and not
    /// marked. Returns their length and the IP addresses. The headers in front of PDS are copied from the route's
    /// prefix.
    #[inline(always)]
    fn write_plain<'a>(
        &self,
        book: &'a AddressBook,
        packet: &Packet,
        present: usize,
        frame: &mut Frame,
    ) -> Result<Option<(usize, &'a IpAddrs)>, WriteError> {
        let net = &packet.net;
        let traffic_class = match (self.plain, net.class) {
            (Some((data, _)), Class::Data) => data[usize::from(net.priority.number())],
            (Some((_, control)), Class::Control) => control,
            _ => return Ok(None),
        };
        let as_sent = !net.ecn && net.hops == 0;
        let Some(Route { prefix: Some(prefix), ip, .. }) = book.route(net.dst).filter(|_| as_sent) else {
            return Ok(None);
        };
        if present != packet.payload_len as usize {
            return Err(payload_error(packet, present));
        }
        let varying = (traffic_class, entropy_to_port(net.entropy));
        let body = present + self.trailer;
        let headers = emit_headers_behind(frame, prefix, varying, &packet.pds, &packet.ses, body)?;
        Ok(Some((headers, ip)))
    }

    /// Fills UDP's checksum in behind [`Codec::write_plain`], or leaves both checksums to the port.
    #[inline(never)]
    fn fill_plain(&self, ip: &IpAddrs, frame: &mut Frame) -> Result<(), WriteError> {
        let udp = match self.fill(true, false, frame) {
            Fill::Software(udp) => udp,
            Fill::Port => {
                frame[prefix::IPV4_CHECKSUM].fill(0);
                UdpChecksum::PseudoHeader
            }
        };
        Ok(fill_udp_checksum_at(frame, prefix::UDP, ip, udp)?)
    }

    /// [`Codec::write`] for packets that are not plain.
    #[inline(never)]
    pub(super) fn write_any(
        &self,
        book: &AddressBook,
        packet: &Packet,
        present: usize,
        payload: Payload<'_>,
        frame: &mut Frame,
    ) -> Result<(), WriteError> {
        let meta = self.meta(book, packet)?;
        let (headers, fill) = self.headers(&meta, packet, present, frame)?;
        let trailer = if meta.trimmed.is_some() { 0 } else { self.trailer };
        put_payload(frame, headers, present, payload, trailer)?;
        if trailer > 0 {
            let source_at = self.ip_at() + meta.ip.source_at();
            crc::fill(&mut frame[source_at..], meta.ip.header_len() - meta.ip.source_at())?;
        }
        match fill {
            Fill::Port => Ok(fill_udp_checksum(frame, &meta, UdpChecksum::PseudoHeader)?),
            Fill::Software(UdpChecksum::None) => Ok(()),
            Fill::Software(udp) => Ok(fill_udp_checksum(frame, &meta, udp)?),
        }
    }

    /// Whether packets over this version of IP can be written without reading their payload.
    #[inline]
    pub(super) fn leaves_payload_alone(&self, ipv4: bool) -> bool {
        ipv4 && self.without_udp_v4 && self.trailer == 0
    }

    /// Writes the headers of `packet` and cuts `frame` behind them; the caller appends the payload of `present`
    /// bytes. Only where [`Codec::leaves_payload_alone`].
    ///
    /// # Errors
    /// As [`Codec::write`].
    #[inline]
    pub(super) fn write_headers(
        &self,
        book: &AddressBook,
        packet: &Packet,
        present: u32,
        frame: &mut Frame,
    ) -> Result<(), WriteError> {
        let headers = match self.write_plain(book, packet, present as usize, frame)? {
            Some((headers, _)) => headers,
            None => {
                let meta = self.meta(book, packet)?;
                let (headers, fill) = self.headers(&meta, packet, present as usize, frame)?;
                debug_assert_eq!(fill, Fill::Software(UdpChecksum::None));
                headers
            }
        };
        frame.truncate(headers);
        Ok(())
    }

    /// Writes headers, with the IPv4 checksum if software computes it. Returns their length, and who computes the other
    /// checksums.
    #[inline]
    fn headers(
        &self,
        meta: &FrameMeta,
        packet: &Packet,
        present: usize,
        frame: &mut Frame,
    ) -> Result<(usize, Fill), WriteError> {
        if !packet.net.class.is_trimmed() && present != packet.payload_len as usize {
            return Err(payload_error(packet, present));
        }
        let ipv4 = matches!(meta.ip, IpAddrs::V4 { .. });
        let fill = self.fill(ipv4, meta.trimmed.is_some(), frame);
        let body = if meta.trimmed.is_some() { present } else { present + self.trailer };
        let headers = match fill {
            Fill::Port => emit_headers(frame, meta, &packet.pds, &packet.ses, body)?,
            Fill::Software(_) => {
                emit_headers_with_ipv4_checksum(frame, meta, &packet.pds, &packet.ses, body)?
            }
        };
        Ok((headers, fill))
    }

    /// Reads a frame that arrived. The payload is a part of the frame: nothing is copied.
    ///
    /// # Errors
    /// Why it has to be dropped.
    #[inline]
    pub fn read<'a>(
        &self,
        book: &mut AddressBook,
        frame: &'a Frame,
    ) -> Result<(Packet, &'a [u8]), ReadError> {
        let mut packet = Packet::BLANK;
        let payload = self.read_any(book, &mut Predictions::default(), frame, &mut packet)?;
        Ok((packet, payload))
    }

    /// Reads a frame whose payload is [in another place](Frame::bytes_from), if its headers are as predicted (`next`)
    /// and it has no checksum over the payload. After `None` the frame may still be valid.
    #[inline]
    pub(super) fn read_with_tail<'a>(
        &self,
        book: &AddressBook,
        next: &Predictions,
        frame: &'a Frame,
        packet: &mut Packet,
    ) -> Option<RegionBytes<'a>> {
        if self.trailer > 0 {
            return None;
        }
        let predicted = next.of(frame)?.check_head(frame, frame.total_len() - frame.len())?;
        let class = class_of(&self.link.classes, predicted.traffic_class >> 2);
        if class.0.is_trimmed() {
            return None;
        }
        let rest = parse_delivery(predicted.body, &mut packet.pds, &mut packet.ses).ok()?;
        let payload = frame.bytes_from(frame.len() - rest.len())?;
        self.fill_in(book, packet, class, &predicted);
        packet.payload_len = payload.len();
        Some(payload)
    }

    /// Reads a frame whose headers are as predicted (`next`), and writes them to `packet`. After `None` the frame may
    /// still be valid, and `packet` is arbitrary.
    // Into `packet` instead of a result: see store-forwarding stalls in `port/borrowed.rs`.
    #[inline]
    pub(super) fn read_expected<'a>(
        &self,
        book: &AddressBook,
        next: &Predictions,
        frame: &'a Frame,
        packet: &mut Packet,
    ) -> Option<&'a [u8]> {
        let predicted = next.of(frame)?.check(frame, self.checksums_of(frame))?;
        let class = class_of(&self.link.classes, predicted.traffic_class >> 2);
        if class.0.is_trimmed() {
            return None;
        }
        let payload = parse_delivery(predicted.body, &mut packet.pds, &mut packet.ses).ok()?;
        self.fill_in(book, packet, class, &predicted);
        packet.payload_len = payload.len() as u32;
        Some(payload)
    }

    #[inline]
    fn fill_in(
        &self,
        book: &AddressBook,
        packet: &mut Packet,
        (class, priority): (Class, Priority),
        predicted: &Predicted<'_>,
    ) {
        let &Predicted { src, hops, traffic_class, src_port, .. } = predicted;
        let ecn = Ecn::from_bits(traffic_class).is_ce();
        let (dst, entropy) = (book.own(), entropy_of(src_port));
        packet.net = Network { src, dst, entropy, class, priority, ecn, hops };
    }

    /// As [`Codec::read`], but writes the headers to `packet`, and predicts the headers of the sender's next frame in
    /// `next`.
    ///
    /// # Errors
    /// As [`Codec::read`]; `packet` is then as it was.
    #[inline(never)]
    pub(super) fn read_any<'a>(
        &self,
        book: &mut AddressBook,
        next: &mut Predictions,
        frame: &'a Frame,
        packet: &mut Packet,
    ) -> Result<&'a [u8], ReadError> {
        let parsed = parse_frame(frame, &self.link.classes, self.checksums_of(frame))?;
        let meta = &parsed.meta;
        let (src, dst) = match meta.ip {
            IpAddrs::V4 { src, dst } => (IpAddr::V4(src), IpAddr::V4(dst)),
            IpAddrs::V6 { src, dst } => (IpAddr::V6(src), IpAddr::V6(dst)),
        };
        if dst != book.own_host().ip {
            return Err(ReadError::Misdirected(dst));
        }
        // Packets of the endpoint to itself pass no port: these are somebody's who has its address.
        if src == dst || src == book.called() {
            return Err(ReadError::Own(src));
        }
        let src = book.sender(HostAddr { mac: meta.src_mac, ip: src })?;
        let (class, priority) = class_of(&self.link.classes, meta.dscp);
        let net = Network {
            src,
            dst: book.own(),
            entropy: entropy_of(meta.entropy_port),
            class,
            priority,
            ecn: meta.ecn.is_ce(),
            hops: DEFAULT_TTL.saturating_sub(meta.ttl),
        };
        if meta.trimmed.is_none() {
            next.learn(frame, meta.ip, src);
        }
        *packet = Packet { net, payload_len: meta.original_payload_len, pds: parsed.pds, ses: parsed.ses };
        Ok(parsed.payload)
    }

    // Inlined always: see store-forwarding stalls in `port/borrowed.rs`.
    #[inline(always)]
    fn meta(&self, book: &AddressBook, packet: &Packet) -> Result<FrameMeta, WriteError> {
        let net = &packet.net;
        let &Route { src_mac, dst_mac, ip, .. } =
            book.route(net.dst).ok_or_else(|| no_route(book, net.dst))?;
        let class = match net.class {
            Class::Data => PacketClass::Trimmable(net.priority),
            Class::Trimmed => PacketClass::Trimmed,
            Class::TrimmedLastHop => PacketClass::TrimmedLastHop,
            Class::Control => PacketClass::Control,
        };
        Ok(FrameMeta {
            src_mac,
            dst_mac,
            vlan: self.link.vlan,
            ip,
            dscp: self.link.classes.dscp(class),
            ecn: match (net.ecn, net.class) {
                (true, _) => Ecn::Ce,
                (false, Class::Control) => CONTROL_ECN,
                (false, _) => DATA_ECN,
            },
            ttl: DEFAULT_TTL.saturating_sub(net.hops),
            entropy_port: entropy_to_port(net.entropy),
            trimmed: class.trim_point(),
            original_payload_len: packet.payload_len + self.trailer as u32,
        })
    }

    #[inline]
    fn fill(&self, ipv4: bool, is_trimmed: bool, frame: &mut Frame) -> Fill {
        // A trimmed frame has no valid UDP checksum, because its payload is gone. No port can be asked to omit it.
        if is_trimmed || (ipv4 && self.without_udp_v4) {
            return Fill::Software(UdpChecksum::None);
        }
        if if ipv4 { self.offload_v4 } else { self.offload_v6 } {
            let l3_len = if ipv4 { 20 } else { 40 };
            if frame.offload_checksums(&ChecksumOffload {
                l2_len: self.ip_at() as u8,
                l3_len,
                ipv4,
                udp: true,
            }) {
                return Fill::Port;
            }
        }
        Fill::Software(UdpChecksum::Full)
    }

    /// Offset of the IP header in frames that are sent.
    #[inline]
    fn ip_at(&self) -> usize {
        if self.link.vlan.is_some() { 18 } else { 14 }
    }

    /// The checksums to verify. A port calls the UDP checksum of a trimmed frame bad, so only `Good` is relied on. The CRC
    /// covers all that the UDP checksum does.
    #[inline]
    fn checksums_of(&self, frame: &Frame) -> ChecksumPolicy {
        let policy = match frame.checksum_status() {
            ChecksumStatus::Good => ChecksumPolicy::OFFLOADED,
            ChecksumStatus::Unknown | ChecksumStatus::Bad => ChecksumPolicy::VERIFY,
        };
        let crc = self.trailer > 0;
        ChecksumPolicy { udp: policy.udp && !crc, crc, ..policy }
    }
}

/// Puts the payload behind the headers, and cuts the frame `trailer` bytes behind it.
#[inline]
fn put_payload(
    frame: &mut Frame,
    headers: usize,
    present: usize,
    payload: Payload<'_>,
    trailer: usize,
) -> Result<(), WriteError> {
    let (len, room) = (headers + present + trailer, frame.len());
    let place = frame.get_mut(headers..len).ok_or(WriteError::TooLong { needed: len, room })?;
    payload.copy_to(&mut place[..present]);
    frame.truncate(len);
    Ok(())
}

#[cold]
fn no_route(book: &AddressBook, peer: Addr) -> WriteError {
    match book.ip(peer) {
        Some(ip) => WriteError::Unresolved { peer, ip },
        None => WriteError::UnknownPeer(peer),
    }
}

#[cold]
fn payload_error(packet: &Packet, present: usize) -> WriteError {
    WriteError::Payload { announced: packet.payload_len, present: present as u32 }
}

/// Another implementation may use all 16 bits: its acknowledgements do not name our entropies.
#[inline]
fn entropy_of(port: u16) -> Entropy {
    Entropy(port & (ENTROPY_COUNT - 1))
}

/// A DSCP that is not one of the fabric's may have been rewritten on the way: it tells nothing.
#[inline]
fn class_of(classes: &DscpClasses, dscp: u8) -> (Class, Priority) {
    match classes.classify(dscp) {
        PacketClass::Trimmable(priority) => (Class::Data, priority),
        PacketClass::Control => (Class::Control, Priority::LOWEST),
        PacketClass::Trimmed => (Class::Trimmed, Priority::LOWEST),
        PacketClass::TrimmedLastHop => (Class::TrimmedLastHop, Priority::LOWEST),
        PacketClass::Other(_) => (Class::Data, Priority::LOWEST),
    }
}
