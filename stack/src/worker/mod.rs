//! The run-to-completion loop: one thread, one port, one endpoint.
//!
//! ```text
//!   clock (once) ─▶ port.receive ─▶ codec ─▶ fep.on_packet ─▶ … completions, for the owner to poll
//!                                            fep.on_timeout, if due
//!                   port.transmit ◀─ codec ◀─ fep.poll_transmit, until there is nothing or no room
//! ```
//!
//! A worker acts only when it is called. [`Worker::poll`] makes one turn of the loop and never waits; [`Worker::run`]
//! and [`Worker::run_until`] make as many turns as needed, and rest between turns according to [`Idle`]. Tests advance
//! the time with [`Worker::poll_at`]:
//!
//! ```
//! use std::sync::Arc;
//! use weft_stack::buffer::Buffer;
//! use weft_stack::cc::{CcChoice, CcParams, Delays, Rate, Span};
//! use weft_stack::fep::{Completion, ConnectOptions, Fep, FepConfig, Receive, Send};
//! use weft_stack::packet::Addr;
//! use weft_stack::port::memory::{MemoryConfig, pair};
//! use weft_stack::rng::Rng;
//! use weft_stack::ses::Matching;
//! use weft_stack::wire::ethernet::MacAddr;
//! use weft_stack::worker::{AddressBook, Clock, HostAddr, LinkConfig, Strangers, Worker};
//!
//! let clock = Clock::new();
//! let network = CcParams {
//!     mtu: 4096,
//!     overhead: 64,
//!     link_rate: Rate::from_gbps(100),
//!     network_rtt: Span::from_us(10),
//!     trimming: true,
//!     delays: Delays::Known,
//! };
//! let config = Arc::new(FepConfig::new(&CcChoice::default(), &network));
//! let host = |n: u8| HostAddr { mac: MacAddr([2, 0, 0, 0, 0, n]), ip: [10, 0, 0, n].into() };
//! let worker = |n: u8, port| {
//!     let fep = Fep::new(Addr(n.into()), config.clone(), Rng::new(1, n.into()), clock.now())?;
//!     let mut book = AddressBook::new(fep.addr(), host(n), 16, Strangers::Refuse)?;
//!     book.insert(Addr((1 - n).into()), host(1 - n))?;
//!     Ok::<_, Box<dyn std::error::Error>>(Worker::new(fep, port, book, LinkConfig::default(), clock)?)
//! };
//! let (left, right) = pair(&MemoryConfig::default())?;
//! let (mut alice, mut bob) = (worker(0, left)?, worker(1, right)?);
//!
//! let room = Buffer::Heap(vec![0; 5]);
//! let receive = Receive { buffer: room, from: None, matching: Matching::Untagged, context: 0 };
//! bob.fep_mut().post_receive(receive)?;
//! let connection = alice.fep_mut().connect(clock.now(), Addr(1), ConnectOptions::default())?;
//! let message = Send { buffer: Buffer::Heap(b"hello".to_vec()), tag: None, header_data: 0, context: 0 };
//! alice.fep_mut().post_send(connection, message)?;
//!
//! alice.poll();
//! bob.poll();
//! let Some(Completion::Received { buffer, .. }) = bob.fep_mut().poll_completion() else { panic!() };
//! assert_eq!(buffer, Buffer::Heap(b"hello".to_vec()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Nothing on this path allocates memory, locks, makes system calls or formats text once buffers have grown to the
//! size that the load needs, as long as the port does not and the worker does not sleep. Payload is copied at most
//! once on the way out, into a frame, and once on the way in, to its final address. Payload in a region is not copied
//! on the way out if the port can send it by reference and it needs no checksum. Tests count all this:
//! `worker_allocation.rs`, `worker_system_calls.rs`, `worker_copies.rs` and `copies.rs`, `worker_dpdk.rs`.
//!
//! # Backoff
//!
//! A worker with a core of its own polls all the time ([`Idle::Spin`]). On shared machines [`Idle::Adaptive`] lets it
//! poll for a while, then yield to other threads, then sleep until a frame arrives ([`crate::port::Port::waitable`]),
//! its next timer is due, or a thread that has put something into a ring uses its [`Waker`].
//!
//! # Time
//!
//! The [`Clock`] is read once a turn. All endpoints whose times are compared use copies of one clock.
//!
//! # Addresses
//!
//! The [`AddressBook`] holds the addresses of peers. A peer of which only the IP address is known is entered with
//! [`Worker::meet`], which resolves its Ethernet address by ARP or neighbour discovery ([`neighbours`]). Packets to the
//! endpoint itself never reach the port.
//!
//! # Many workers
//!
//! Workers share nothing. A [`Team`] runs several, each in a thread pinned to its core, with ports or
//! addresses of their own, or with the queues of one port: the queue to which a peer's packets come depends on
//! the addresses alone ([`steer`]).
#![deny(unsafe_code)]

mod affinity;
mod backoff;
mod book;
mod clock;
mod codec;
#[cfg(test)]
mod copies;
mod credentials;
mod forget;
mod ip_prefix;
mod loopback;
pub mod neighbours;
mod places;
mod predict;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod properties;
mod resolutions;
pub mod ring;
pub mod session;
pub mod steer;
mod team;
#[cfg(test)]
mod tests;
mod turn;
mod wait;

pub use affinity::{CoreListError, PinError, parse_cores, pin_to, usable_cores};
pub use backoff::{Idle, TimedOut};
pub use book::{AddressBook, BookError, BookRoom, HostAddr, Route, Strangers};
pub use clock::{Clock, ClockSource, Unfit};
pub use codec::{Checksum, Codec, LinkConfig, ReadError, WriteError};
pub use ip_prefix::{IpPrefix, PrefixError, PrefixZones};
pub use steer::Steering;
pub use team::{Team, TeamError, WorkerSpec};
pub use turn::{PACKETS_PER_TURN, TurnResult};
pub use wait::Waker;

use weft_cc::Time;

use self::backoff::Backoff;
use self::loopback::Loopback;
use self::neighbours::Neighbours;
use self::predict::Predictions;
use crate::fep::Fep;
use crate::packet::{Addr, Packet};
use crate::port::{BURST, FramePool, Port, RxBurst, TxBurst};
use crate::wire::class::ClassError;
use crate::wire::ethernet::{HEADER_LEN as ETHERNET, VLAN_TAG_LEN};
use crate::wire::udp::HEADER_LEN as UDP;
use crate::wire::{MAX_HEADERS, crc};

/// One endpoint at one port.
pub struct Worker<P> {
    fep: Fep,
    port: P,
    book: AddressBook,
    codec: Codec,
    neighbours: Neighbours,
    clock: Clock,
    /// The last time of the clock. The endpoint's time never goes back, even if the clock does.
    shown: Time,
    idle: Idle,
    backoff: Backoff,
    /// Frames that have arrived. Those that a turn does not read stay here for the next one.
    rx: RxBurst,
    /// When the port handed them over.
    rx_at: Time,
    /// Buffers for frames that have to be copied into one piece. Not the port's, which may have none left.
    whole: FramePool,
    /// Frames to be sent. Frames that the port has no room for stay here for the next turn.
    tx: TxBurst,
    /// Packets to the endpoint itself.
    loopback: Loopback,
    /// The headers of the packet that is being written.
    scratch: Packet,
    /// The headers of the packet that is being read.
    arrived: Packet,
    /// The headers that the next frames will probably have.
    expected: Predictions,
    /// Bytes of the longest frame that the endpoint sends.
    longest: usize,
    /// Whether payload can be sent by reference: the port can do so, and it needs no checksum.
    attaches: bool,
    counters: WorkerCounters,
    last_read_error: Option<ReadError>,
    last_write_error: Option<WriteError>,
    /// Since when frames have waited without the port taking any.
    stuck_since: Option<Time>,
}

/// Counts of what a worker has dropped, and of how it sent. [`Fep::counters`] and [`Port::counters`] count what passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerCounters {
    /// Turns of the loop.
    pub polls: u64,
    /// Frames that were damaged, or of another protocol.
    pub malformed: u64,
    /// Frames for other IP addresses.
    pub misdirected: u64,
    /// Frames from senders that are not in the address book.
    pub strangers: u64,
    /// Peers that the address book has forgotten to make room for others.
    pub forgotten: u64,
    /// Frames of ARP, neighbour discovery and ICMP, which the worker handles itself.
    pub neighbours: u64,
    /// Packets whose payload was sent by reference, without a copy into a frame.
    pub attached: u64,
    /// Frames that arrived in pieces and had to be copied into one buffer: the first frame of a peer, and frames with
    /// unusual headers (IPv6, a tag, a UDP checksum, trimmed).
    pub gathered: u64,
    /// Packets that could not be written.
    pub unsendable: u64,
    /// Packets to peers whose Ethernet address is not known yet. They are lost for the endpoint, whose timers
    /// retransmit them.
    pub unresolved: u64,
    /// Frames that the port did not take for a second. They are lost for the endpoint.
    pub not_taken: u64,
    /// How often the port's pool had no buffer for a packet to be sent.
    pub pool_empty: u64,
}

/// Why a worker cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkerError {
    /// The port cannot send the endpoint's largest packets.
    #[error("the endpoint's frames have up to {needed} bytes, and the port sends {max}")]
    FrameTooLong {
        /// Bytes of the endpoint's longest frame.
        needed: usize,
        /// Bytes that the port can send.
        max: usize,
    },
    /// The address book is another endpoint's.
    #[error("the address book is endpoint {}'s, not endpoint {}'s", book.0, fep.0)]
    ForeignBook {
        /// The endpoint that the book belongs to.
        book: Addr,
        /// The endpoint that the worker was to run.
        fep: Addr,
    },
    /// The fabric's classes cannot be told apart.
    #[error(transparent)]
    Classes(#[from] ClassError),
}

impl<P: Port> Worker<P> {
    /// A worker for `fep` at `port`. `fep` must have been made with the time of `clock`.
    ///
    /// # Errors
    /// The parts do not fit each other; the error says which.
    pub fn new(
        mut fep: Fep,
        port: P,
        book: AddressBook,
        link: LinkConfig,
        clock: Clock,
    ) -> Result<Worker<P>, WorkerError> {
        link.classes.validate()?;
        if book.own() != fep.addr() {
            return Err(WorkerError::ForeignBook { book: book.own(), fep: fep.addr() });
        }
        fep.watch_peers();
        let tx = TxBurst::new(&port);
        let vlan = if link.vlan.is_some() { VLAN_TAG_LEN } else { 0 };
        let ip = if book.own_host().ip.is_ipv4() { 20 } else { 40 };
        let crc = if fep.config().crc { crc::LEN } else { 0 };
        let longest = ETHERNET + vlan + ip + UDP + MAX_HEADERS + fep.config().mtu as usize + crc;
        if longest > tx.max_frame() {
            return Err(WorkerError::FrameTooLong { needed: longest, max: tx.max_frame() });
        }
        let whole = FramePool::heap(BURST, tx.max_frame())
            .map_err(|_| WorkerError::FrameTooLong { needed: longest, max: tx.max_frame() })?;
        let codec = Codec::new(link, &port.capabilities()).with_crc(fep.config().crc);
        let ipv4 = book.own_host().ip.is_ipv4();
        Ok(Worker {
            attaches: port.capabilities().multi_segment && codec.leaves_payload_alone(ipv4),
            codec,
            neighbours: Neighbours::new(book.own_host(), link.vlan),
            fep,
            port,
            book,
            shown: clock.now(),
            clock,
            idle: Idle::Spin,
            backoff: Backoff::default(),
            rx: RxBurst::with_tails(),
            rx_at: Time::ZERO,
            whole,
            tx,
            loopback: Loopback::default(),
            scratch: Packet::BLANK,
            arrived: Packet::BLANK,
            expected: Predictions::new(),
            longest,
            counters: WorkerCounters::default(),
            last_read_error: None,
            last_write_error: None,
            stuck_since: None,
        })
    }

    /// The worker's endpoint.
    pub fn fep(&self) -> &Fep {
        &self.fep
    }

    /// The endpoint, to post messages and take completions. Packets that result are sent in the next turn.
    pub fn fep_mut(&mut self) -> &mut Fep {
        &mut self.fep
    }

    /// The worker's port.
    pub fn port(&self) -> &P {
        &self.port
    }

    /// The port, for example to change the behaviour of a test's port.
    pub fn port_mut(&mut self) -> &mut P {
        &mut self.port
    }

    /// The worker's address book.
    pub fn book(&self) -> &AddressBook {
        &self.book
    }

    /// The address book, to enter peers.
    pub fn book_mut(&mut self) -> &mut AddressBook {
        &mut self.book
    }

    /// The worker's clock.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// The worker's counters so far.
    pub fn counters(&self) -> WorkerCounters {
        self.counters
    }

    /// Why a frame was last dropped on arrival.
    pub fn last_read_error(&self) -> Option<ReadError> {
        self.last_read_error
    }

    /// Why a packet could last not be written.
    pub fn last_write_error(&self) -> Option<WriteError> {
        self.last_write_error
    }

    /// Takes the worker apart. Frames that wait for the port are dropped.
    pub fn into_parts(self) -> (Fep, P, AddressBook) {
        (self.fep, self.port, self.book)
    }
}
