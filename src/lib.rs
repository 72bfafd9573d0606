//! weft: userspace transport for lossy Ethernet fabrics, in the style of Ultra Ethernet Transport.
//!
//! Applications link this library and use [`Endpoint`]: it connects to peers, sends messages and receives them, over
//! kernel UDP, memif, DPDK or a running `weft serve`. "Write an application" (`docs/application.md`) introduces it, and
//! `examples/` has programs.
//!
//! # A first program
//!
//! It sends a message over kernel UDP and waits until the message has arrived. The receiver is in the same program here,
//! with its worker on a thread of its own. As a rule it is a program on another host, and the addresses are those of the
//! two hosts.
//!
//! ```
//! use std::time::Duration;
//! use weft::{Completion, Endpoint};
//!
//! const PATIENCE: Duration = Duration::from_secs(10);
//!
//! let mut receiver = Endpoint::builder("udp:127.20.0.12").on_thread(None).build()?;
//! receiver.receive(vec![0; 4096])?;
//!
//! let mut sender = Endpoint::builder("udp:127.20.0.11").build()?;
//! let peer = sender.peer("127.20.0.12")?;
//! let connection = sender.connect(peer)?;
//! sender.send(connection, b"hello")?;
//! while let Some(completion) = sender.wait(PATIENCE)? {
//!     if let Completion::Sent { result, .. } = completion {
//!         result?;
//!         break;
//!     }
//! }
//!
//! let completion = receiver.wait(PATIENCE)?.ok_or("nothing arrived")?;
//! assert_eq!(completion.message().ok_or("the receive failed")?, &b"hello"[..]);
//! sender.shutdown(PATIENCE)?;
//! receiver.shutdown(PATIENCE)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Units
//!
//! Lengths, sizes and offsets are bytes. Times for which the caller waits are [`Duration`](std::time::Duration)s.
//! Settings of the protocol are [`Span`]s (picoseconds, made by [`Span::from_us`] and the like) and [`Rate`]s (bits per
//! second).
//!
//! # Errors
//!
//! | from | error |
//! |---|---|
//! | [`Builder::build`] | [`BuildError`] |
//! | [`Endpoint::peer`] | [`PeerError`] |
//! | calls with a buffer | [`PostError`], which has an [`Error`] and hands the buffer back |
//! | other calls, and the `result` of a [`Completion`] | [`Error`] |
//!
//! [`Error::is_back_pressure`] says whether the same call can succeed later. No call panics because of what a peer or a
//! server does.
//!
//! # Where to find what
//!
//! | to | use |
//! |---|---|
//! | make an endpoint | [`Endpoint::builder`], [`Builder`] |
//! | set options of its link | [`Builder::mac`], [`Builder::vlan`], [`Builder::checksum`], [`Builder::crc`]; [`MacAddr`], [`VlanTag`], [`Checksum`] |
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
/// What [`Endpoint::peek`] does with the message that it finds.
pub use weft_stack::worker::session::Found;
pub use weft_stack::worker::{Checksum, Idle, IpPrefix};
pub use weft_stack::{Rate, Span, Time};
