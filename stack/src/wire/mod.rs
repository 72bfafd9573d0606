//! Packet formats: Ethernet, IPv4 and IPv6, UDP, and the packet delivery sublayer (PDS) and semantic sublayer (SES) of
//! Ultra Ethernet Transport.
//!
//! Every header has two forms: a checked view over bytes, which validates lengths once, and a plain struct with
//! `parse`, `emit` and a length. [`frame`] combines them; [`trim`] and [`edit`] are the operations of a switch.
//! `docs/wire.md` has the layouts, the code points and the places where public sources disagree.
//!
//! Decoders return a [`WireError`] and never panic, whatever the bytes. Reserved bits are written as zero and ignored
//! when read. A value wider than its field is refused, never truncated.

#![forbid(unsafe_code)]

mod bytes;
pub mod checksum;
pub mod class;
pub mod crc;
pub mod edit;
pub mod error;
pub mod ethernet;
pub mod frame;
pub mod ip;
pub mod ipv4;
pub mod ipv6;
mod network;
pub mod pds;
pub mod prefix;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod properties;
pub mod ses;
pub mod trim;
pub mod udp;

#[cfg(test)]
mod tests;

pub use error::{HeaderName, WireError};

/// Longest PDS and SES headers of a data packet, bytes: a request with its congestion control part, and a standard
/// request. An ACK with a response is shorter.
pub const MAX_HEADERS: usize = pds::Request::CC_LEN + ses::StandardRequest::LEN;
/// Longest headers of a data packet from IPv4 on, bytes: a link's MTU must exceed the payload by this.
pub const MAX_IPV4_HEADERS: usize = ipv4::HEADER_LEN + udp::HEADER_LEN + MAX_HEADERS;

/// Nominal size of a data packet beyond its payload, bytes; `with_cc` says that its request has the congestion-control
/// fields, `crc` that the network's packets end with a CRC. The nominal size is the length in the UDP header + 40, whatever the version of IP (UET §3.6.12); both ends
/// count it for `rcvd_bytes`. What the fabric adds or leaves out on the way does not change it.
#[inline]
pub const fn nominal_overhead(with_cc: bool, crc: bool) -> u32 {
    let request = if with_cc { pds::Request::CC_LEN } else { pds::Request::LEN };
    let trailer = if crc { crc::LEN } else { 0 };
    (40 + udp::HEADER_LEN + request + ses::StandardRequest::LEN + trailer) as u32
}
