//! weft: userspace transport for lossy Ethernet fabrics, in the style of Ultra Ethernet Transport.
//!
//! This is the library that applications link. They use [`Endpoint`]: it connects to peers, sends messages and receives
//! them, over kernel UDP, memif, DPDK or a running `weft serve`. "Write an application" (`docs/application.md`) introduces it,
//! and `examples/` has programs.
//!
//! | to | use |
//! |---|---|
//! | make an endpoint | [`Endpoint::builder`], [`Builder`] |
//! | say more about its link | [`Builder::mac`], [`Builder::vlan`], [`Builder::checksum`], [`Builder::crc`]; [`MacAddr`], [`VlanTag`], [`Checksum`] |
//! | talk to peers | [`Endpoint`], [`SendBuffer`], [`ReceiveBuffer`], [`Completion`] |
//! | choose or write a congestion control | [`cc`] |
//! | open ports by their names | [`port`] |
//! | drive the protocol without any of this | [`core`](mod@core) |
#![forbid(unsafe_code)]

pub mod core;
mod endpoint;
pub mod port;
mod version;

pub use endpoint::{
    BuildError, Builder, Completion, ConnectionId, Endpoint, Error, MAX_COPY, Memory, MemorySlice,
    OperationId, PeerError, PostError, ReceiveBuffer, ReceiveOptions, RemoteMemory, SendBuffer, SendOptions,
    ZoneSettings,
};
pub use version::{Version, version};

pub use weft_stack::buffer::{MAX_MESSAGE, OwnedBytes, Split};
/// Congestion control: the traits, and the registry of algorithms by name.
pub use weft_stack::cc;
pub use weft_stack::fep::{
    Atomic, AtomicError, BusyTimeout, CallError, ConnectOptions, ExposeRefusal, Failure, JobId, Limits,
    MAX_PROCESS, PeerRefusal, ReadFault, ReceiveError, Resource, Rights, SendError, TrafficClass,
    Unreachable, Windows, Written,
};
pub use weft_stack::packet::Addr;
pub use weft_stack::ses::{Claim, MAX_SEGMENT, Matching, Source, Waiting};
pub use weft_stack::wire::ethernet::{MacAddr, VlanTag};
pub use weft_stack::wire::pds::DeliveryMode;
pub use weft_stack::wire::ses::{AtomicOp, AtomicType};
/// What becomes of a message that is found.
pub use weft_stack::worker::session::Found;
pub use weft_stack::worker::{Checksum, Idle, IpPrefix};
pub use weft_stack::{Rate, Span, Time};
