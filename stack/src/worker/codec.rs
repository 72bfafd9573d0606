//! From packets to frames and back.

use core::net::IpAddr;

use super::book::{AddressBook, BookError, Host};
use crate::packet::{Addr, Class, Network, Packet, Payload};
use crate::port::{ChecksumOffload, ChecksumStatus, Frame, PortCaps};
use crate::spray::Entropy;
use crate::wire::WireError;
use crate::wire::frame::{
    ChecksumFill, ChecksumPolicy, DEFAULT_TTL, DscpClasses, Ecn, FrameMeta, IpAddrs, TrafficClass, TrimPoint,
    UdpChecksum, VlanTag, emit_headers, entropy_to_port, finish_checksums, parse_frame,
};
use crate::wire::udp::ENTROPY_COUNT;

/// What all frames of a link have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LinkConfig {
    /// The DSCPs of the fabric's classes.
    pub classes: DscpClasses,
    /// The tag that frames leave with. Those that arrive may have any, or none.
    pub vlan: Option<VlanTag>,
}

/// Writes packets as frames and reads frames as packets.
#[derive(Clone, Copy, Debug)]
pub struct Codec {
    link: LinkConfig,
    offload_v4: bool,
    offload_v6: bool,
}

/// Why a frame that arrived was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// It is no well-formed frame of this protocol.
    #[error(transparent)]
    Malformed(#[from] WireError),
    /// It is for another IP address.
    #[error("the frame is for {0}")]
    Misdirected(IpAddr),
    /// Its sender is not in the address book.
    #[error(transparent)]
    Stranger(#[from] BookError),
}

/// Why a packet could not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// Its destination is not in the address book.
    #[error("endpoint {} is not in the address book", .0.0)]
    UnknownPeer(Addr),
    /// Its destination is in the address book, but has not said its Ethernet address yet.
    #[error("the Ethernet address of endpoint {}, {ip}, is not known", peer.0)]
    Unresolved {
        /// The destination.
        peer: Addr,
        /// Its IP address.
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
        /// Bytes there are.
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

impl Codec {
    /// A codec for frames of `link` over a port that can do `caps`.
    pub fn new(link: LinkConfig, caps: &PortCaps) -> Codec {
        Codec {
            link,
            offload_v4: caps.tx_ipv4_checksum && caps.tx_udp_checksum,
            offload_v6: caps.tx_udp_checksum,
        }
    }

    /// Writes `packet` with `payload` into `frame`, a buffer that is long enough, and cuts that to the
    /// frame's length. The payload is copied once; checksums are computed, or left to the port.
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
        if !packet.net.class.is_trimmed() && present != packet.payload_len as usize {
            return Err(payload_error(packet, present));
        }
        let meta = self.meta(book, packet)?;
        let headers = emit_headers(frame, &meta, &packet.pds, &packet.ses, present)?;
        let len = headers + present;
        let room = frame.len();
        let place = frame.get_mut(headers..len).ok_or(WriteError::TooLong { needed: len, room })?;
        payload.copy_to(place);
        frame.truncate(len);
        self.checksums(&meta, frame)
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
        // Ports call a trimmed frame's UDP checksum bad, which it is: only their praise counts.
        let checksums = match frame.checksum_status() {
            ChecksumStatus::Good => ChecksumPolicy::OFFLOADED,
            ChecksumStatus::Unknown | ChecksumStatus::Bad => ChecksumPolicy::VERIFY,
        };
        let parsed = parse_frame(frame, &self.link.classes, checksums)?;
        let meta = &parsed.meta;
        let (src, dst) = match meta.ip {
            IpAddrs::V4 { src, dst } => (IpAddr::V4(src), IpAddr::V4(dst)),
            IpAddrs::V6 { src, dst } => (IpAddr::V6(src), IpAddr::V6(dst)),
        };
        if dst != book.own_host().ip {
            return Err(ReadError::Misdirected(dst));
        }
        let src = book.sender(Host { mac: meta.src_mac, ip: src })?;
        let net = Network {
            src,
            dst: book.own(),
            // Another implementation may use all 16 bits: its acknowledgements name none of our entropies.
            entropy: Entropy(meta.entropy_port & (ENTROPY_COUNT - 1)),
            class: class_of(&self.link.classes, meta.dscp),
            ecn: meta.ecn.is_ce(),
            hops: DEFAULT_TTL.saturating_sub(meta.ttl),
        };
        let packet = Packet { net, payload_len: meta.original_payload_len, pds: parsed.pds, ses: parsed.ses };
        Ok((packet, parsed.payload))
    }

    #[inline]
    fn meta(&self, book: &AddressBook, packet: &Packet) -> Result<FrameMeta, WriteError> {
        let net = &packet.net;
        let (src_mac, dst_mac, ip) = book.route(net.dst).ok_or_else(|| no_way(book, net.dst))?;
        let class = match net.class {
            Class::Data => TrafficClass::Trimmable,
            Class::Trimmed => TrafficClass::Trimmed,
            Class::TrimmedLastHop => TrafficClass::TrimmedLastHop,
            Class::Control => TrafficClass::Control,
        };
        Ok(FrameMeta {
            src_mac,
            dst_mac,
            vlan: self.link.vlan,
            ip,
            dscp: self.link.classes.dscp(class),
            ecn: match (net.ecn, net.class) {
                (true, _) => Ecn::Ce,
                // Nothing slows down for marks on these.
                (false, Class::Control) => Ecn::NotEct,
                (false, _) => Ecn::Ect0,
            },
            ttl: DEFAULT_TTL.saturating_sub(net.hops),
            entropy_port: entropy_to_port(net.entropy),
            trimmed: class.trim_point(),
            original_payload_len: packet.payload_len,
        })
    }

    #[inline]
    fn checksums(&self, meta: &FrameMeta, frame: &mut Frame) -> Result<(), WriteError> {
        let ipv4 = matches!(meta.ip, IpAddrs::V4 { .. });
        let offered = if ipv4 { self.offload_v4 } else { self.offload_v6 };
        // A trimmed frame's UDP checksum stays as it is, and no port can be told so.
        let offered = offered && meta.trimmed.is_none();
        let l2_len = if meta.vlan.is_some() { 18 } else { 14 };
        let request = ChecksumOffload { l2_len, l3_len: meta.ip.header_len() as u16, ipv4, udp: true };
        let fill = if offered && frame.offload_checksums(&request) {
            ChecksumFill { ipv4_header: false, udp: UdpChecksum::PseudoHeader }
        } else {
            ChecksumFill::default()
        };
        finish_checksums(frame, fill)?;
        Ok(())
    }
}

#[cold]
fn no_way(book: &AddressBook, peer: Addr) -> WriteError {
    match book.ip(peer) {
        Some(ip) => WriteError::Unresolved { peer, ip },
        None => WriteError::UnknownPeer(peer),
    }
}

#[cold]
fn payload_error(packet: &Packet, present: usize) -> WriteError {
    WriteError::Payload { announced: packet.payload_len, present: present as u32 }
}

/// A DSCP that the fabric does not know may have been rewritten on the way: it says nothing.
#[inline]
fn class_of(classes: &DscpClasses, dscp: u8) -> Class {
    match classes.classify(dscp) {
        TrafficClass::Control => Class::Control,
        other => match other.trim_point() {
            None => Class::Data,
            Some(TrimPoint::Fabric) => Class::Trimmed,
            Some(TrimPoint::LastHop) => Class::TrimmedLastHop,
        },
    }
}
