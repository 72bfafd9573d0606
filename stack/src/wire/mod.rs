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
