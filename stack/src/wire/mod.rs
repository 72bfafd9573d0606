//! What travels: Ethernet, IPv4 and IPv6, UDP, the packet delivery sublayer (PDS) and the semantic
//! sublayer (SES) of Ultra Ethernet Transport.
//!
//! Every header exists twice: as a checked view over bytes, which validates lengths once, and as a
//! plain struct with `parse`, `emit` and a length. [`frame`] puts them together; [`trim`] and
//! [`edit`] are the switch's side. `docs/wire.md` has the layouts, the code points and the places
//! where public sources disagree.
//!
//! Decoders return a [`WireError`] and never panic, whatever the bytes. Reserved bits are written
//! zero and ignored when read. A value wider than its field is refused, never cut off.

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

/// Bytes of the longest PDS and SES headers of a data packet: a request with its congestion control part, and a
/// standard request. An ACK with a response is shorter.
pub const MAX_HEADERS: usize = pds::Request::CC_LEN + ses::StandardRequest::LEN;
/// Bytes of a data packet's longest headers from IPv4 on: what the MTU of a link needs beyond the payload.
pub const MAX_IPV4_HEADERS: usize = ipv4::HEADER_LEN + udp::HEADER_LEN + MAX_HEADERS;
