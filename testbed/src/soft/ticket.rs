//! Tickets: the fields of a frame that switches use, read once when the frame enters the fabric.

use core::net::IpAddr;

use weft_stack::packet::{Addr, Class, Network};
use weft_stack::spray::Entropy;
use weft_stack::wire::class::{DscpClasses, PacketClass, Priority};
use weft_stack::wire::ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, EthernetView};
use weft_stack::wire::ipv4::Ipv4View;
use weft_stack::wire::ipv6::{self, Ipv6View};
use weft_stack::wire::trim::{MIN_IP_PAYLOAD_NATIVE, MIN_IP_PAYLOAD_UDP};
use weft_stack::wire::udp::{self, UdpView, port_to_entropy};

use crate::sim::MIN_FRAME;
use crate::switch::{Queued, flow_hash};

/// Bytes that a frame takes on the wire besides its own: preamble, start-of-frame delimiter, frame check
/// sequence and gap.
const AROUND: u32 = 8 + 4 + 12;

/// Represents a frame in queues and on links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    /// The slot of the frame in the frame store.
    pub(super) slot: u32,
    /// The hash of addresses and entropy; with [`Routing::Exact`](crate::switch::Routing::Exact) what is left of the path's
    /// number.
    pub(super) flow_hash: u32,
    /// The destination host.
    pub(super) dst: u32,
    size: u32,
    trimmed_size: u32,
    class: Class,
    priority: Priority,
    /// Whether a queue has marked the packet and the mark is not written into the frame yet.
    pub(super) to_be_marked: bool,
    damaged: bool,
}

impl Ticket {
    /// The ticket of a copy of the frame in `slot`.
    pub(super) fn at(self, slot: u32) -> Ticket {
        Ticket { slot, ..self }
    }

    /// Records that a link flips a bit. Returns false if one has been flipped before: a second flip could
    /// cancel the first in the UDP checksum. Ethernet's frame check sequence would detect that, but is not
    /// computed here.
    ///
    /// Damaged frames are dropped rather than trimmed, because a switch that trims would write a correct
    /// check sequence.
    pub(super) fn damage(&mut self) -> bool {
        self.trimmed_size = self.size;
        !std::mem::replace(&mut self.damaged, true)
    }

    /// Whether a link has flipped a bit of the frame.
    pub(super) fn is_damaged(&self) -> bool {
        self.damaged
    }
}

impl Queued for Ticket {
    #[inline]
    fn class(&self) -> Class {
        self.class
    }

    #[inline]
    fn priority(&self) -> Priority {
        self.priority
    }

    #[inline]
    fn size(&self) -> u32 {
        self.size
    }

    #[inline]
    fn trimmed_size(&self) -> u32 {
        self.trimmed_size
    }

    #[inline]
    fn trim(&mut self, class: Class) {
        (self.class, self.size) = (class, self.trimmed_size);
    }

    #[inline]
    fn mark(&mut self) {
        self.to_be_marked = true;
    }
}

/// The header fields of a frame.
pub(super) struct FrameHeaders {
    pub(super) src: IpAddr,
    pub(super) dst: IpAddr,
    dscp: u8,
    entropy: Entropy,
    /// Bytes of the frame, and bytes that would remain after trimming.
    len: usize,
    trimmed_len: usize,
}

impl FrameHeaders {
    /// Reads the headers of `frame`; `None` if it carries no IP packet.
    pub(super) fn read(frame: &[u8]) -> Option<FrameHeaders> {
        let eth = EthernetView::new_checked(frame).ok()?;
        let (src, dst, dscp, header, protocol, rest): (IpAddr, IpAddr, _, _, _, _) = match eth.ethertype() {
            ETHERTYPE_IPV4 => {
                let ip = Ipv4View::new_trimmed(eth.payload()).ok()?;
                (ip.src().into(), ip.dst().into(), ip.dscp(), ip.header_len(), ip.protocol(), ip.payload())
            }
            ETHERTYPE_IPV6 => {
                let ip = Ipv6View::new_trimmed(eth.payload()).ok()?;
                let (src, dst) = (ip.src().into(), ip.dst().into());
                (src, dst, ip.dscp(), ipv6::HEADER_LEN, ip.next_header(), ip.payload())
            }
            _ => return None,
        };
        let (entropy, kept) = match protocol {
            udp::PROTOCOL => (entropy(rest), MIN_IP_PAYLOAD_UDP),
            _ => (Entropy(0), MIN_IP_PAYLOAD_NATIVE),
        };
        let trimmed_len = eth.header_len() + header + kept;
        Some(FrameHeaders { src, dst, dscp, entropy, len: frame.len(), trimmed_len })
    }

    /// The number of the path that the frame takes with [`Routing::Exact`](crate::switch::Routing::Exact).
    pub(super) fn path_number(&self) -> u32 {
        u32::from(self.entropy.0)
    }

    /// The ticket of the frame in `slot`, which goes from host `src` to host `dst`.
    pub(super) fn ticket(&self, classes: &DscpClasses, slot: u32, src: u32, dst: u32) -> Ticket {
        let lowest = Priority::LOWEST;
        let (class, priority, trimmable) = match classes.classify(self.dscp) {
            PacketClass::Trimmable(priority) => (Class::Data, priority, true),
            PacketClass::Control => (Class::Control, lowest, false),
            PacketClass::Trimmed => (Class::Trimmed, lowest, false),
            PacketClass::TrimmedLastHop => (Class::TrimmedLastHop, lowest, false),
            PacketClass::Other(_) => (Class::Data, lowest, false),
        };
        let (src, to, entropy) = (Addr(src), Addr(dst), self.entropy);
        let net = Network { src, dst: to, entropy, class, priority, ecn: false, hops: 0 };
        let size = on_the_wire(self.len);
        Ticket {
            slot,
            flow_hash: flow_hash(&net),
            dst,
            size,
            trimmed_size: if trimmable { on_the_wire(self.trimmed_len).min(size) } else { size },
            class,
            priority,
            to_be_marked: false,
            damaged: false,
        }
    }
}

/// The entropy in the UDP source port. Other implementations may use all port numbers.
fn entropy(datagram: &[u8]) -> Entropy {
    let port = UdpView::new_trimmed(datagram).map_or(0, |udp| udp.src_port());
    port_to_entropy(port).unwrap_or(Entropy(port))
}

/// Bytes that a frame of `len` bytes takes on the wire.
fn on_the_wire(len: usize) -> u32 {
    (len as u32 + AROUND).max(MIN_FRAME)
}
