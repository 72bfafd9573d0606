//! The protocol core and all that drives it: for simulators, and for programs that put endpoints together themselves.
//!
//! | to | use |
//! |---|---|
//! | configure an endpoint | [`FepConfig`], [`Zone`], [`PdcConfig`], [`Limits`], [`cc::CcChoice`](crate::cc::CcChoice), [`spray::LbChoice`] |
//! | run one without I/O | [`Fep`] and its four verbs, [`Transmit`], [`Packet`], [`Payload`] |
//! | run one over a port | [`worker::Worker`], [`port::Port`], [`wire`] |
//! | put a worker together from settings | [`Builder::build_worker`](crate::Builder::build_worker), [`Settings`], [`Setup`], [`Attachment`] |
//! | see what happens | [`event`], [`Fep::explain`] |
//!
//! # The calls that each call makes necessary
//!
//! A [`Fep`] does nothing between calls. Its driver makes these, in this order, each time round its loop:
//!
//! 1. **[`Fep::on_packet`]** for each packet that has arrived. It can produce packets to send (acknowledgements, data that
//!    a window held back), completions, and an earlier timer.
//! 2. **[`Fep::on_timeout`]** if the time that [`Fep::poll_timeout`] told has come. It can produce packets to send,
//!    completions, and another timer.
//! 3. **Calls of the application**: [`Fep::connect`], [`Fep::post_send`], [`Fep::post_read`], [`Fep::close`], [`Fep::abort`],
//!    [`Fep::cancel_send`], [`Fep::release`] can produce packets to send and an earlier timer; [`Fep::post_receive`], the
//!    cancelling and the closing calls can produce completions. After [`Fep::begin_abort`], and in any case after
//!    [`Fep::spread_failures`], which have messages end bit by bit, [`Fep::cancel_aborted`] belongs here as long as
//!    [`Fep::has_aborted`] is true: it produces completions, and packets that close connections. There is no timer for that, so
//!    the driver must not sleep meanwhile. Who calls neither of the two does not need it.
//! 4. **[`Fep::poll_transmit`]** until it returns `None`, or the port has no room. After each of 1 to 3 there may be something
//!    again; [`Fep::wants_to_transmit`] tells at little cost. The payload of a [`Transmit`] is looked up
//!    ([`Fep::payload`]) before the next call of any other verb. It can produce an earlier timer.
//! 5. **[`Fep::take_abandoned`]** after 1, 2 and the calls that abort, withdraw memory or close a process, if packets may refer
//!    to buffers (attached payload): if it is true, packets that have not left are recalled before completions are polled.
//! 6. **[`Fep::poll_completion`]** until it returns `None`: after each of 1 to 3.
//! 7. **[`Fep::poll_timeout`]** last, for the time of the next 2; every other call can change it.
//!
//! Every verb may be called early or twice: nothing happens then. Times never go back. A [`worker::Worker`] does all of this
//! but 3 and 6, which are left to its owner.
//!
//! # An exchange in memory
//!
//! An endpoint does no I/O and reads no clock: its caller passes packets and the time to it. Here
//! two endpoints exchange a message, joined by nothing but a loop that lets a microsecond pass each turn.
//!
//! ```
//! use std::sync::Arc;
//! use weft::cc::{CcChoice, CcParams, Delays};
//! use weft::core::{Buffer, Completion, Fep, FepConfig, Receive, Rng, Send};
//! use weft::{Addr, ConnectOptions, Matching, Rate, Span, Time};
//!
//! /// Carries what `from` has to send to `to`.
//! fn carry(now: Time, from: &mut Fep, to: &mut Fep) {
//!     while let Some(out) = from.poll_transmit(now) {
//!         to.on_packet(now, &out.packet, from.payload(&out.payload));
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
//!     delays: Delays::Known,
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

pub use weft_stack::buffer::{Buffer, MAX_MESSAGE};
pub use weft_stack::fep::{
    AccessError, AccessId, AccessKind, Accessed, Atomic, AtomicError, BusyTimeout, COMPLETED_PER_BURST,
    CONNECTIONS_PER_CALL, CONTEXTS_PER_PEER, CONTROL_IN_ORDER, Completion, ConfigError, ConnectionId,
    Datagram, DatagramReceive, ExposeError, ExposeRefusal, Exposure, Fep, FepConfig, Limits,
    MESSAGES_PER_CALL, PACKETS_PER_CALL, PayloadRef, PostError, QUESTIONS_PER_CALL, REFUSED_PER_PDC, Read,
    ReadError, ReadFault, ReadId, Receive, Rights, SILENT_PER_CALL, Send, SendId, TrafficClass, Transmit,
    Windows, Write, Written, Zone, ZoneId, ZoneMap, Zones,
};
pub use weft_stack::packet::{Packet, Payload};
pub use weft_stack::pdc::{BYTES_PER_PACKET, PdcConfig};
pub use weft_stack::rng::Rng;
pub use weft_stack::ses::{FEW_INCOMPLETE as INCOMPLETE_PER_PDC, ReceiveId, apply};
pub use weft_stack::{event, port, region, spray, wire, worker};

pub use crate::endpoint::{Attachment, BOOK, LinkRate, Settings, Setup, ZoneSettings};
