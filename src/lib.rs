//! weft: userspace transport for lossy Ethernet fabrics, in the style of Ultra Ethernet Transport.
//!
//! This is the library that applications link; what is in it lives in `weft-stack` and `weft-cc`.
//!
//! | to | use |
//! |---|---|
//! | set up an endpoint | [`FepConfig`], [`Limits`], [`cc::CcChoice`] (congestion control), [`spray::LbChoice`] (load balancing) |
//! | talk to peers | [`Fep`], [`ConnectOptions`], [`Send`], [`Receive`], [`Buffer`], [`Completion`] |
//! | drive an endpoint | [`Fep`]'s four verbs, [`Transmit`], [`Packet`], [`Payload`], [`Time`], [`Span`] |
//! | move packets | [`worker`] (drives an endpoint over a port in real time), [`port`], and [`wire`] for their bytes |
//! | see what happens | [`event`] |
//! | add an algorithm of one's own | [`cc::SenderCc`], [`cc::ReceiverCc`], [`spray::PathSelector`] |
//!
//! # An exchange in memory
//!
//! An endpoint does no I/O and reads no clock: whoever drives it hands packets and the time to it. Here
//! two endpoints exchange a message, joined by nothing but a loop that lets a microsecond pass each turn.
//!
//! ```
//! use std::sync::Arc;
//! use weft::cc::{CcChoice, CcParams};
//! use weft::{
//!     Addr, Buffer, Completion, ConnectOptions, Fep, FepConfig, Matching, Rate, Receive, Rng, Send, Span, Time,
//! };
//!
//! /// Carries what `from` has to send to `to`.
//! fn carry(now: Time, from: &mut Fep, to: &mut Fep) {
//!     while let Some(out) = from.poll_transmit(now) {
//!         to.on_packet(now, &out.packet, from.payload(out.payload));
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let network = CcParams {
//!     mtu: 4096,
//!     overhead: 64,
//!     link_rate: Rate::from_gbps(100),
//!     network_rtt: Span::from_us(2),
//!     trimming: true,
//! };
//! let config = Arc::new(FepConfig::new(&CcChoice::parse("nscc")?, &network));
//! let mut now = Time::ZERO;
//! let mut alice = Fep::new(Addr(0), config.clone(), Rng::new(1, 0), now)?;
//! let mut bob = Fep::new(Addr(1), config, Rng::new(1, 1), now)?;
//!
//! let (from, matching) = (None, Matching::Untagged);
//! bob.post_receive(Receive { buffer: Buffer::Heap(vec![0; 100_000]), from, matching, context: 0 })?;
//! let connection = alice.connect(now, Addr(1), ConnectOptions::default())?;
//! let message = vec![42; 100_000];
//! let buffer = Buffer::Heap(message.clone());
//! alice.post_send(connection, Send { buffer, tag: None, header_data: 7, context: 0 })?;
//!
//! let (mut sent, mut received) = (false, None);
//! while !sent || received.is_none() {
//!     now += Span::from_us(1);
//!     alice.on_timeout(now);
//!     bob.on_timeout(now);
//!     carry(now, &mut alice, &mut bob);
//!     carry(now, &mut bob, &mut alice);
//!     while let Some(completion) = alice.poll_completion() {
//!         sent |= matches!(completion, Completion::Sent { result: Ok(()), .. });
//!     }
//!     while let Some(completion) = bob.poll_completion() {
//!         if let Completion::Received { buffer, header_data, result: Ok(()), .. } = completion {
//!             received = Some((buffer, header_data));
//!         }
//!     }
//!     assert!(now.is_before(Time::ZERO + Span::from_ms(1)), "100 kB take some 10 µs");
//! }
//! assert_eq!(received, Some((Buffer::Heap(message), 7)));
//! # Ok(())
//! # }
//! ```
//!
//! The repository's `examples/custom_cc.rs` runs a congestion control of one's own in a simulated fabric.
#![forbid(unsafe_code)]

mod version;

pub use version::{Version, version};

pub use weft_stack::buffer::{Buffer, MAX_MESSAGE};
pub use weft_stack::fep::{
    CallError, Completion, ConfigError, ConnectOptions, ConnectionId, Failure, Fep, FepConfig, Limits,
    PayloadRef, PostError, Receive, ReceiveError, Send, SendError, SendId, TrafficClass, Transmit,
};
pub use weft_stack::packet::{Addr, Packet, Payload};
pub use weft_stack::pdc::PdcConfig;
pub use weft_stack::rng::Rng;
pub use weft_stack::ses::{Matching, ReceiveId};
pub use weft_stack::wire::pds::DeliveryMode;
pub use weft_stack::{Rate, Span, Time};

/// Congestion control: the traits, and the registry of algorithms by name.
pub use weft_stack::cc;
pub use weft_stack::{event, port, spray, wire, worker};
