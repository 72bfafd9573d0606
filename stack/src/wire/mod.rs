//! What travels: Ethernet, IPv4 and IPv6, UDP, the packet delivery sublayer (PDS) and the semantic
//! sublayer (SES) of Ultra Ethernet Transport.
//!
//! Every header exists as a plain struct; `pds` and `ses` hold the ones the protocol core works on.

pub mod pds;
pub mod ses;
