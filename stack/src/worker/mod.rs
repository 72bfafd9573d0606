//! The run-to-completion loop: one thread, one port, one endpoint.
//!
//! ```text
//!   clock (once) ─▶ port.receive ─▶ codec ─▶ fep.on_packet ─▶ … completions, for the owner to poll
//!                                            fep.on_timeout, if due
//!                   port.transmit ◀─ codec ◀─ fep.poll_transmit, until there is nothing or no room
//! ```
//!
//! A [`Worker`] never waits, and between its owner's calls nothing happens. [`Worker::poll`] makes one
//! turn of the loop, [`Worker::run_until`] as many as it takes; tests give the time themselves with
//! [`Worker::poll_at`]:
//!
//! ```
//! use std::sync::Arc;
//! use weft_stack::buffer::Buffer;
//! use weft_stack::cc::{CcChoice, CcParams, Rate, Span};
//! use weft_stack::fep::{Completion, ConnectOptions, Fep, FepConfig, Receive, Send};
//! use weft_stack::packet::Addr;
//! use weft_stack::port::memory::{MemoryConfig, pair};
//! use weft_stack::rng::Rng;
//! use weft_stack::ses::Matching;
//! use weft_stack::wire::ethernet::MacAddr;
//! use weft_stack::worker::{AddressBook, Clock, Host, LinkConfig, Strangers, Worker};
//!
//! let clock = Clock::new();
//! let network = CcParams {
//!     mtu: 4096,
//!     overhead: 64,
//!     link_rate: Rate::from_gbps(100),
//!     network_rtt: Span::from_us(10),
//!     trimming: true,
//!     receiver_credit: false,
//! };
//! let config = Arc::new(FepConfig::new(&CcChoice::default(), &network));
//! let host = |n: u8| Host { mac: MacAddr([2, 0, 0, 0, 0, n]), ip: [10, 0, 0, n].into() };
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
//! Nothing on this path allocates memory, locks, makes system calls or formats text once buffers have
//! grown to what the load needs; `tests/worker_allocation.rs` holds it to the first.
#![forbid(unsafe_code)]

mod affinity;
mod book;
mod clock;
mod codec;
#[cfg(test)]
mod tests;

pub use affinity::{PinError, pin_to, usable_cores};
pub use book::{AddressBook, BookError, Host, Strangers};
pub use clock::Clock;
pub use codec::{Codec, LinkConfig, ReadError, WriteError};

use weft_cc::{Span, Time};

use crate::fep::Fep;
use crate::packet::{Addr, Payload};
use crate::port::{Port, RxBurst, TxBurst};
use crate::wire::class::ClassError;
use crate::wire::ethernet::{HEADER_LEN as ETHERNET, VLAN_TAG_LEN};
use crate::wire::udp::HEADER_LEN as UDP;

/// The longest PDS and SES headers of a data packet: a request with its congestion control part, and a
/// standard request. An ACK with a response is shorter.
const UET_HEADERS: usize = 16 + 44;

/// One endpoint at one port.
pub struct Worker<P> {
    fep: Fep,
    port: P,
    book: AddressBook,
    codec: Codec,
    clock: Clock,
    rx: RxBurst,
    /// Frames that the port had no room for stay here for the next turn.
    tx: TxBurst,
    /// Bytes of the longest frame that the endpoint sends.
    longest: usize,
    counters: WorkerCounters,
    last_read_error: Option<ReadError>,
    last_write_error: Option<WriteError>,
}

/// What a worker has dropped. What passed is in [`Fep::counters`] and [`Port::counters`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerCounters {
    /// Turns of the loop.
    pub polls: u64,
    /// Frames that were damaged, or of another protocol.
    pub malformed: u64,
    /// Frames for other IP addresses.
    pub misdirected: u64,
    /// Frames of senders that are not in the address book.
    pub strangers: u64,
    /// Packets that could not be written.
    pub unsendable: u64,
    /// Times that the port's pool had no buffer for a packet that wanted to leave.
    pub pool_empty: u64,
}

/// What one turn of the loop did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Frames that arrived.
    pub received: usize,
    /// Frames that the port took.
    pub sent: usize,
    /// Whether a timer was due.
    pub timers: bool,
}

impl Progress {
    /// Whether nothing happened.
    pub fn is_idle(&self) -> bool {
        *self == Progress::default()
    }
}

/// A worker that cannot work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkerError {
    /// The port cannot send the endpoint's largest packets.
    #[error("the endpoint's frames have up to {needed} bytes, and the port sends {max}")]
    FrameTooLong {
        /// Bytes of the longest frame.
        needed: usize,
        /// Bytes that the port can send.
        max: usize,
    },
    /// The address book is another endpoint's.
    #[error("the address book is endpoint {}'s, not endpoint {}'s", book.0, fep.0)]
    ForeignBook {
        /// Whose book it is.
        book: Addr,
        /// The endpoint.
        fep: Addr,
    },
    /// The fabric's classes cannot be told apart.
    #[error(transparent)]
    Classes(#[from] ClassError),
}

/// [`Worker::run_until`] has reached its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not done after {0}")]
pub struct TimedOut(pub Span);

impl<P: Port> Worker<P> {
    /// A worker for `fep` at `port`. `fep` must have been made with the time of `clock`.
    ///
    /// # Errors
    /// Parts that do not fit each other.
    pub fn new(
        fep: Fep,
        port: P,
        book: AddressBook,
        link: LinkConfig,
        clock: Clock,
    ) -> Result<Worker<P>, WorkerError> {
        link.classes.validate()?;
        if book.own() != fep.addr() {
            return Err(WorkerError::ForeignBook { book: book.own(), fep: fep.addr() });
        }
        let tx = TxBurst::new(&port);
        let vlan = if link.vlan.is_some() { VLAN_TAG_LEN } else { 0 };
        let ip = if book.own_host().ip.is_ipv4() { 20 } else { 40 };
        let longest = ETHERNET + vlan + ip + UDP + UET_HEADERS + fep.config().mtu as usize;
        if longest > tx.max_frame() {
            return Err(WorkerError::FrameTooLong { needed: longest, max: tx.max_frame() });
        }
        Ok(Worker {
            codec: Codec::new(link, &port.capabilities()),
            fep,
            port,
            book,
            clock,
            rx: RxBurst::new(),
            tx,
            longest,
            counters: WorkerCounters::default(),
            last_read_error: None,
            last_write_error: None,
        })
    }

    /// The endpoint.
    pub fn fep(&self) -> &Fep {
        &self.fep
    }

    /// The endpoint, to post messages and take completions. What that sets in motion leaves with the next turn.
    pub fn fep_mut(&mut self) -> &mut Fep {
        &mut self.fep
    }

    /// The port.
    pub fn port(&self) -> &P {
        &self.port
    }

    /// The port, say to change what a test's port does.
    pub fn port_mut(&mut self) -> &mut P {
        &mut self.port
    }

    /// The address book.
    pub fn book(&self) -> &AddressBook {
        &self.book
    }

    /// The address book, to enter peers.
    pub fn book_mut(&mut self) -> &mut AddressBook {
        &mut self.book
    }

    /// The clock.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// What was dropped.
    pub fn counters(&self) -> WorkerCounters {
        self.counters
    }

    /// Why the last frame that was dropped on arrival was.
    pub fn last_read_error(&self) -> Option<ReadError> {
        self.last_read_error
    }

    /// Why the last packet that could not be written could not.
    pub fn last_write_error(&self) -> Option<WriteError> {
        self.last_write_error
    }

    /// The parts; frames that wait for the port are dropped.
    pub fn into_parts(self) -> (Fep, P, AddressBook) {
        (self.fep, self.port, self.book)
    }

    /// One turn of the loop, at the time of the clock.
    #[inline]
    pub fn poll(&mut self) -> Progress {
        let now = self.clock.now();
        self.poll_at(now)
    }

    /// One turn of the loop at `now`, which must not lie before that of an earlier turn.
    pub fn poll_at(&mut self, now: Time) -> Progress {
        self.counters.polls += 1;
        let received = self.receive(now);
        let timers = self.fep.poll_timeout().is_some_and(|at| now.is_at_or_after(at));
        if timers {
            self.fep.on_timeout(now);
        }
        let sent = self.transmit(now);
        Progress { received, sent, timers }
    }

    /// Turns the loop, calling `step` after each turn, until that returns true.
    ///
    /// # Errors
    /// `limit` has passed.
    pub fn run_until(
        &mut self,
        limit: Span,
        mut step: impl FnMut(&mut Fep, Time) -> bool,
    ) -> Result<(), TimedOut> {
        let start = self.clock.now();
        loop {
            let now = self.clock.now();
            let progress = self.poll_at(now);
            if step(&mut self.fep, now) {
                return Ok(());
            }
            if now.since(start) >= limit {
                return Err(TimedOut(limit));
            }
            if progress.is_idle() {
                std::hint::spin_loop();
            }
        }
    }

    #[inline]
    fn receive(&mut self, now: Time) -> usize {
        let count = self.port.receive(&mut self.rx);
        for frame in self.rx.drain() {
            match self.codec.read(&mut self.book, &frame) {
                Ok((packet, payload)) => self.fep.on_packet(now, &packet, Payload::Bytes(payload)),
                Err(error) => {
                    self.counters.count(&error);
                    self.last_read_error = Some(error);
                }
            }
        }
        count
    }

    #[inline]
    fn transmit(&mut self, now: Time) -> usize {
        let mut sent = 0;
        loop {
            let more = self.fill(now);
            sent += self.port.transmit(&mut self.tx);
            if !more || !self.tx.is_empty() {
                return sent;
            }
        }
    }

    /// Fills the burst. Returns whether there may be more than it holds.
    #[inline]
    fn fill(&mut self, now: Time) -> bool {
        while self.fep.wants_to_transmit() {
            if self.tx.room() == 0 {
                return true;
            }
            // The buffer comes first: a packet that has left the endpoint must not be without one.
            let Ok(mut frame) = self.tx.reserve(self.longest) else {
                self.counters.pool_empty += 1;
                return false;
            };
            let Some(transmit) = self.fep.poll_transmit(now) else { return false };
            let payload = self.fep.payload(transmit.payload);
            match self.codec.write(&self.book, &transmit.packet, payload, &mut frame) {
                Ok(()) => frame.commit(),
                Err(error) => {
                    // To the endpoint it is lost; its timers deal with that.
                    self.counters.unsendable += 1;
                    self.last_write_error = Some(error);
                }
            }
        }
        false
    }
}

impl WorkerCounters {
    #[cold]
    fn count(&mut self, error: &ReadError) {
        let counter = match error {
            ReadError::Malformed(_) => &mut self.malformed,
            ReadError::Misdirected(_) => &mut self.misdirected,
            ReadError::Stranger(_) => &mut self.strangers,
        };
        *counter += 1;
    }
}
