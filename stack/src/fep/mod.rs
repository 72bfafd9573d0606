//! The fabric endpoint: all PDCs and congestion contexts of one address, the send scheduler, the
//! timers. A state machine without I/O.
//!
//! Four verbs drive it, and calling any of them early or twice is harmless:
//!
//! - [`Fep::on_packet`] or [`Fep::on_packet_after`] for every packet that arrives; packets that were read together can be put
//!   between [`Fep::begin_burst`] and [`Fep::end_burst`];
//! - [`Fep::poll_transmit`] when the port can take a packet, until it yields nothing; again after any
//!   other call that takes `&mut self`;
//! - [`Fep::on_timeout`] at [`Fep::poll_timeout`], which may have changed after any call that takes `&mut self`;
//! - [`Fep::poll_completion`] for results, until it yields nothing; after any of the above.
//!
//! Some calls do work that grows with what was posted. A driver that serves others meanwhile can have it done bit by bit, each
//! bit with a budget, and then makes the calls that go with it:
//!
//! | instead of | calls | and from then on, each time round its loop |
//! |---|---|---|
//! | [`Fep::abort`] | [`Fep::begin_abort`] | [`Fep::cancel_aborted`] as long as [`Fep::has_aborted`]: the connection does not end before, unless it fails |
//! | failing all messages of a connection with it | [`Fep::spread_failures`], once | the same; any verb can make a connection fail |
//! | [`Fep::close_process`] | [`Fep::begin_close_process`] | [`Fep::clear_away`] until it returns true: the number of the process is not free before |
//! | [`Fep::post_receive_many_of`] | [`Fep::begin_receive_many_of`] | [`Fep::gather`] until it returns true |
//! | a receive, a peek or a claim that ignores bits of the tag | [`Fep::look_ahead`] until it returns true | – |
//!
//! None of this work has a timer: [`Fep::poll_timeout`] does not announce it. A driver that calls none of the functions
//! in the second column has to do nothing.
//!
//! An endpoint is a router over two halves that do not know each other. The *initiator* sends messages and reads the
//! memory of peers: it owns connections, congestion contexts and what was posted. The *target* receives messages and
//! answers reads: it owns the PDCs that peers have opened, the receives of its processes and the memory that they expose,
//! and the credit scheduler. Both use the *core*: address and
//! configuration, timers, events, and the queues of control packets and completions.
//!
//! Datagrams, which belong to no PDC, are a small third part of their own.
//!
//! ```text
//!  initiator: post_send ─▶ connection (queue of messages) ─▶ scheduler ─▶ context (window, pacing, credit)
//!                          ─▶ spray (entropy) ─▶ pdc (PSN, record) ─▶ poll_transmit
//!             on_packet ─▶ ACK, NACK or credit ─▶ pdc and context ─▶ completion
//!  target:    on_packet ─▶ request ─▶ pdc (new? duplicate?) ─▶ ses (match, place) ─▶ completion
//!                                  └▶ ACK or NACK ─▶ control queue ─▶ poll_transmit
//!             on_packet ─▶ read ─▶ stored response ─▶ queue of replies ─▶ poll_transmit
//! ```
#![forbid(unsafe_code)]

mod abort;
mod access;
mod acquaintance;
mod admit;
mod api;
mod config;
mod connection;
mod context;
mod control_queue;
mod core;
mod credit;
mod datagram;
mod explain;
mod feedback;
mod footprint;
mod gaps;
mod initiator;
mod liveness;
mod memory;
mod owed;
mod payload;
mod pdcid;
mod peer_usage;
mod process;
mod read;
mod refused;
mod reply;
mod suspects;
mod target;
mod target_pdc;
mod target_pdcs;
#[cfg(test)]
mod tests;
mod timers;
mod transmit;
mod turns;
mod waiting;
mod wheel;
mod zone;

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::{Arc, Mutex};

use rustc_hash::FxHasher;
use weft_cc::{Span, Time};

pub use access::{AccessError, AccessId, AccessKind, Accessed, Atomic, AtomicError, Rights, Write, Written};
pub use acquaintance::Standing;
pub use api::{
    CallError, Completion, ConnectOptions, ConnectionId, Failure, PeerRefusal, PostError, QUESTIONS, Receive,
    ReceiveError, Resource, Send, SendError, SendId, Unreachable,
};
pub use config::{BusyTimeout, ConfigError, FepConfig, Limits, Windows};
pub use context::TrafficClass;
pub use control_queue::FEW as CONTROL_IN_ORDER;
pub use credit::CONTEXTS_PER_PEER;
pub use datagram::{Datagram, DatagramReceive};
pub use explain::Wait;
pub use footprint::Footprint;
pub use owed::COMPLETED_PER_BURST;
pub use payload::{PayloadRef, Transmit};
pub use read::{ExposeError, ExposeRefusal, Exposure, Read, ReadError, ReadFault, ReadId};
pub use refused::FEW as REFUSED_PER_PDC;
pub use timers::{
    CONNECTIONS_PER_CALL, MESSAGES_PER_CALL, PACKETS_PER_CALL, QUESTIONS_PER_CALL, SILENT_PER_CALL,
};
pub use zone::{Zone, ZoneId, ZoneMap, ZoneTable, Zones};

pub use crate::wire::ses::{JobId, MAX_PROCESS};

pub(crate) use self::core::Abandoned;
use self::core::Core;
use crate::buffer::Buffer;
use crate::event::{Counters, Subscriber};
use crate::packet::{Addr, Packet, Payload};
use crate::region::RegionSlice;
use crate::rng::Rng;
use crate::ses::{Cancelled, ReceiveId};
use crate::wire::pds::{ControlKind, Pds};
use context::Context;
use datagram::{Datagrams, on_datagram};
use initiator::Initiator;
use target::Target;

type Map<K, V> = HashMap<K, V, BuildHasherDefault<FxHasher>>;

/// The cost, in bytes touched, of ending a message that has not been sent.
pub(crate) const END_COST: i64 = abort::COST;

/// Room behind the core that puts the queue of the initiator at the end of a cache line.
const LEAD: usize = (64 + 48 - size_of::<Core>() % 64) % 64;

/// One fabric endpoint.
// If many endpoints take turns, each cache line that a packet needs is a miss. So the fields of all three parts are in
// the order of use, and what a packet needs lies on few lines: the start of the core with the counters of data and
// acknowledgements and the next deadline; the two lines of the initiator that an outgoing data packet needs; and one
// line that holds the end of the initiator, for acknowledgements, and the start of the target. A test checks this
// layout.
#[repr(C, align(64))]
pub struct Fep {
    core: Core,
    _lead: [u8; LEAD],
    /// `None` until the application has posted a datagram or a receive of datagrams.
    datagrams: Option<Box<Datagrams>>,
    initiator: Initiator,
    target: Target,
}

impl Fep {
    /// An endpoint with address `addr`. Everything random in it comes from `rng`; time begins at `now`.
    ///
    /// # Errors
    /// A configuration that cannot work.
    pub fn new(addr: Addr, config: Arc<FepConfig>, rng: Rng, now: Time) -> Result<Fep, ConfigError> {
        config.validate()?;
        Ok(Fep {
            target: Target::new(&config, &rng),
            _lead: [0; LEAD],
            initiator: Initiator::new(),
            core: Core::new(addr, config, rng, now),
            datagrams: None,
        })
    }

    /// Brings what the next call will probably need into the cache: the state of the first connections each
    /// way, which is all there is in most of many endpoints. The endpoint's own lines must be there already.
    pub fn prefetch(&self) {
        self.initiator.prefetch();
        self.target.prefetch();
    }

    /// The address of the endpoint.
    pub fn addr(&self) -> Addr {
        self.core.addr
    }

    /// The configuration of the endpoint.
    pub fn config(&self) -> &FepConfig {
        &self.core.config
    }

    /// Opens a connection of process 0. Nothing is sent until there is a message. After a silence as long as the
    /// target's idle timeout it is closed, with [`Failure::ClosedByPeer`].
    ///
    /// # Errors
    /// [`CallError::Limit`] when there are too many, [`CallError::NoSuchProcess`] if its number is too large.
    pub fn connect(
        &mut self,
        now: Time,
        peer: Addr,
        options: ConnectOptions,
    ) -> Result<ConnectionId, CallError> {
        self.connect_of(0, now, peer, options)
    }

    /// As [`Fep::connect`], for messages that process `process` of this endpoint sends: receivers see this process as
    /// their sender ([`Source`](crate::ses::Source)). A program that offers this call to applications must not let them
    /// choose the number.
    ///
    /// # Errors
    /// As [`Fep::connect`]; [`CallError::NoSuchProcess`] also if `process` is too large.
    pub fn connect_of(
        &mut self,
        process: u16,
        now: Time,
        peer: Addr,
        options: ConnectOptions,
    ) -> Result<ConnectionId, CallError> {
        self.open_connection(now, process, peer, None, options)
    }

    /// A connection of process `process`, with the settings of `zone` if there is one.
    fn open_connection(
        &mut self,
        now: Time,
        process: u16,
        peer: Addr,
        zone: Option<ZoneId>,
        options: ConnectOptions,
    ) -> Result<ConnectionId, CallError> {
        let id = self.initiator.connect(&mut self.core, now, process, peer, zone, options)?;
        if self.core.has_jobs {
            self.initiator.set_job(id, self.job_of(process));
        }
        Ok(id)
    }

    /// Process `process` belongs to job `job` from now on, or to none with job 0: requests of other jobs for it are
    /// answered with BAD_JOB_ID, and what it sends on connections that it opens from now on, and its datagrams, carry
    /// the job. A process of no job takes requests of any job. This separates jobs that share hosts; it does not
    /// protect from hosts that lie.
    ///
    /// # Errors
    /// [`CallError::ProcessNotOpen`].
    pub fn set_job(&mut self, process: u16, job: JobId) -> Result<(), CallError> {
        let job = job.get();
        let processes = &mut self.target.processes;
        if !processes.is_open(process) && !self.datagrams.as_deref().is_some_and(|d| d.is_only(process)) {
            return Err(CallError::ProcessNotOpen(process));
        }
        processes.set_job(process, job);
        self.core.has_jobs |= job != 0;
        Ok(())
    }

    /// The job that process `process` belongs to; 0 for none.
    fn job_of(&self, process: u16) -> u32 {
        self.target.processes.jobs.get(&process).copied().unwrap_or(0)
    }

    /// As [`Fep::connect`], but with the settings of `zone` instead of those of the zone that the peer is in, and with a
    /// congestion context of its own: for traffic that is to behave unlike all other traffic to the same peer.
    ///
    /// # Errors
    /// As [`Fep::connect`].
    pub fn connect_in(
        &mut self,
        zone: ZoneId,
        now: Time,
        peer: Addr,
        options: ConnectOptions,
    ) -> Result<ConnectionId, CallError> {
        self.open_connection(now, 0, peer, Some(zone), options)
    }

    /// Whether a connection takes messages.
    pub fn is_open(&self, id: ConnectionId) -> bool {
        self.initiator.is_open(id)
    }

    /// Posts a message. It leaves as soon as congestion control and the messages before it allow.
    ///
    /// # Errors
    /// The connection is not open ([`CallError::NotOpen`]), too many messages wait ([`CallError::Limit`], which is normal
    /// back-pressure: try again after a completion), or the message is too long ([`CallError::TooLong`]). The
    /// error hands the buffer back.
    // Inlined always, with what it calls: a message that is passed in memory costs a store-forwarding stall (see `crate::prefetch`).
    #[inline(always)]
    pub fn post_send(&mut self, connection: ConnectionId, send: Send) -> Result<SendId, PostError> {
        self.initiator.post_send(&self.core.config, connection, send)
    }

    /// Posts a read of as many bytes of the peer's memory as its buffer has. It is done in requests of at most a
    /// packet's payload each, and completes with [`Completion::Read`] once all requests that have left are answered.
    /// After an error no further requests leave, and the completion has the first error. A request counts for the bytes
    /// that it asks for in the window of the connection, from its departure on. Requests leave in turn with the
    /// messages of the connection, and do not wait for them to arrive. Messages posted after a read meet their receives
    /// once the target has admitted it, which takes longer while the target is busy
    /// ([`Limits::response_bytes_per_peer`]); they do not wait for its bytes.
    ///
    /// # Errors
    /// As [`Fep::post_send`]; [`CallError::ReadOnly`] if the buffer is [`Buffer::Bytes`].
    pub fn post_read(&mut self, connection: ConnectionId, read: Read) -> Result<ReadId, PostError> {
        self.initiator.post_read(&self.core.config, connection, read)
    }

    /// Posts a write to the peer's memory. Its packets go straight to their places, in any order; it completes with
    /// [`Completion::Accessed`] once all bytes are there. It leaves in turn with the messages and other accesses of the
    /// connection and takes a place in their order, but only its completion says that it is done: messages posted after it
    /// may meet their receives before its bytes are there, and later accesses to the same memory may come first.
    ///
    /// # Errors
    /// As [`Fep::post_send`].
    pub fn post_write(&mut self, connection: ConnectionId, write: Write) -> Result<AccessId, PostError> {
        self.initiator.post_write(&self.core.config, connection, write)
    }

    /// Posts an atomic operation on the peer's memory. It is done exactly once however often its packet is sent, unless the
    /// connection fails: then once or not at all. It completes with [`Completion::Accessed`]. Its order is as that of writes.
    ///
    /// # Errors
    /// There is no such operation, its operands do not fit, or the connection takes nothing.
    pub fn post_atomic(&mut self, connection: ConnectionId, atomic: Atomic) -> Result<AccessId, AtomicError> {
        self.initiator.post_atomic(&self.core.config, connection, atomic)
    }

    /// Takes back a write or an atomic operation of which no packet has been sent; it completes as cancelled.
    ///
    /// # Errors
    /// [`CallError::TooLate`] once its first packet has left.
    pub fn cancel_access(&mut self, id: AccessId) -> Result<(), CallError> {
        self.initiator.cancel_send(&mut self.core, SendId(id.0))
    }

    /// A key for memory to expose, of 64 bits, which nobody can guess who does not know the seed of the endpoint's
    /// generator; nor from other keys.
    pub fn draw_key(&mut self) -> u64 {
        let Fep { core, target, .. } = self;
        target.processes.memory.get_or_insert_default().draw_key(&mut core.rng)
    }

    /// Takes back a read of which no request has been sent; it completes as cancelled.
    ///
    /// # Errors
    /// [`CallError::TooLate`] once its first request has left.
    pub fn cancel_read(&mut self, id: ReadId) -> Result<(), CallError> {
        self.initiator.cancel_send(&mut self.core, SendId(id.0))
    }

    /// Lets peers access memory of process `process` until [`Fep::withdraw`], or until the process is closed. The memory is
    /// lent to each packet that leaves, not copied, and written to as packets arrive. Atomic operations are atomic to each
    /// other and to reads and writes of peers, as far as they come to this endpoint, or to each other at endpoints that share
    /// a lock ([`Fep::share_atomics`]); not to what the process itself does with the memory meanwhile.
    ///
    /// # Errors
    /// Why it is refused. The error hands the buffer back.
    pub fn expose(&mut self, process: u16, exposure: Exposure) -> Result<(), ExposeError> {
        self.target.processes.expose(process, exposure)
    }

    /// Performs atomic operations on exposed memory under this lock from here on. Those of endpoints with the same lock are atomic
    /// to each other, so that they may expose the same memory. Each holds it while it reads, computes and writes the values of one
    /// packet, which is all that another one waits for.
    pub fn share_atomics(&mut self, lock: Arc<Mutex<()>>) {
        self.target.processes.memory.get_or_insert_default().share_atomics(lock);
    }

    /// Writes to the memory that process `process` exposes under `key` announce themselves ([`Completion::Written`]) only as often as
    /// [`Fep::allow_announcements`] has allowed. Further ones are refused, and their senders try again.
    pub fn limit_announcements(&mut self, process: u16, key: u64) {
        if let Some(memory) = &mut self.target.processes.memory {
            memory.limit_announcements(process, key);
        }
    }

    /// Lets `more` further writes announce themselves to memory of which that is [limited](Fep::limit_announcements).
    pub fn allow_announcements(&mut self, more: usize) {
        self.target.processes.memory.get_or_insert_default().allow_announcements(more);
    }

    /// Takes back the memory that process `process` exposes under `key`; `None` if there is none. No packet that leaves
    /// from now on has bytes of it: requests that have not been answered are answered with BAD_MKEY.
    ///
    /// Packets that have left may refer to a [`Buffer::Region`] still, where a port attaches memory instead of copying it:
    /// bytes written to it now may reach a reader. Write to it only once the port has sent or recalled them
    /// ([`Fep::take_abandoned`]). A [`Worker`](crate::worker::Worker) recalls them at the end of its next turn.
    pub fn withdraw(&mut self, process: u16, key: u64) -> Option<Buffer> {
        let buffer = self.target.processes.memory.as_mut()?.withdraw(process, key)?;
        self.core.abandon(&buffer);
        Some(buffer)
    }

    /// Bytes kept of messages of `peer` to process `process` that have met no receive. Of each peer's there may be
    /// [`Limits::unexpected_bytes_per_peer`].
    pub fn kept_of(&self, process: u16, peer: Addr) -> u64 {
        self.target.processes.kept_of(process, peer)
    }

    /// Messages of `peer` to process `process` that have met no receive, and messages to any process that have arrived
    /// before their turn, with as many more as are missing before them. There may be
    /// [`Limits::unexpected_messages_per_peer`] of each peer.
    pub fn kept_messages_of(&self, process: u16, peer: Addr) -> u32 {
        self.target.processes.kept_messages_of(process, peer)
    }

    /// How often peers have accessed exposed memory. Each call returns the count of one piece of memory that was
    /// accessed since it was last returned; `None` if there is no such piece left. Counts that were not fetched when
    /// the memory is withdrawn are forgotten.
    pub fn next_accessed(&mut self) -> Option<Accessed> {
        self.target.processes.memory.as_deref_mut()?.next_accessed()
    }

    /// Posts a receive for messages to process 0.
    ///
    /// # Errors
    /// As [`Fep::post_receive_of`].
    #[inline(always)]
    pub fn post_receive(&mut self, receive: Receive) -> Result<ReceiveId, PostError> {
        self.post_receive_of(0, receive)
    }

    /// Posts a receive for messages to process `process`.
    ///
    /// # Errors
    /// [`CallError::Limit`] when too many wait, [`CallError::ProcessNotOpen`] if it is not open,
    /// [`CallError::ReadOnly`] if the buffer is [`Buffer::Bytes`],
    /// [`CallError::NoSuchProcess`] if no sender can have the number in `receive.from`. The error hands the buffer back.
    // Inlined always, with what it calls, as `Fep::post_send`.
    #[inline(always)]
    pub fn post_receive_of(&mut self, process: u16, receive: Receive) -> Result<ReceiveId, PostError> {
        self.target.post_receive(&mut self.core, process, receive, None)
    }

    /// Takes back a message of which nothing has been sent; it completes as cancelled. The cost grows with the
    /// messages that wait in its connection, not with other connections.
    ///
    /// # Errors
    /// [`CallError::TooLate`] once its first packet has left.
    pub fn cancel_send(&mut self, id: SendId) -> Result<(), CallError> {
        if self.core.has_datagrams && self.cancel_datagram(id) {
            return Ok(());
        }
        self.initiator.cancel_send(&mut self.core, id)
    }

    /// Gives up messages of `peer` of which a part is missing, as the caller knows that it is gone: PDCs that it has opened, and that
    /// have been silent for at least `silence`, are forgotten, and receives that their messages have met complete as failed. Without
    /// this call that happens after twice [`FepConfig::idle_timeout`]. Connections of a peer
    /// that is there after all fail, and it opens others.
    pub fn give_up_peer(&mut self, now: Time, peer: Addr, silence: Span) {
        self.target.give_up(&mut self.core, now, peer, silence);
    }

    /// Takes back a receive that no message has met; it completes as cancelled. A receive for many messages that some have
    /// met takes no further ones, and ends with the last of those.
    ///
    /// # Errors
    /// [`CallError::TooLate`] once a message has met it, or the last of many.
    pub fn cancel_receive(&mut self, id: ReceiveId) -> Result<(), CallError> {
        let posted = match self.target.processes.cancel(id) {
            Cancelled::Unused(posted) => posted,
            Cancelled::Ends => return Ok(()),
            Cancelled::TooLate if self.cancel_datagram_receive(id) => return Ok(()),
            Cancelled::TooLate => return Err(CallError::TooLate),
        };
        self.core.completions.push_back(Completion::Received {
            id,
            context: posted.context,
            source: None,
            tag: None,
            header_data: 0,
            len: 0,
            buffer: posted.buffer,
            more: false,
            result: Err(ReceiveError::Cancelled),
        });
        Ok(())
    }

    /// How many PDCs peers have open here. Their initiators may not know yet that all they sent has arrived: an
    /// endpoint that goes while there are any may leave them without an answer.
    pub fn open_targets(&self) -> usize {
        self.target.pdcs.table.len()
    }

    /// Keeps back what is posted on a connection until [`Fep::release`]: for a peer whose route is not known yet.
    /// The connection can be closed and aborted meanwhile; one that is closed with messages in it ends after its
    /// release, or once they are all cancelled.
    ///
    /// # Errors
    /// [`CallError::NotOpen`] if it is not open, [`CallError::TooLate`] once something has been posted on it.
    pub fn hold(&mut self, id: ConnectionId) -> Result<(), CallError> {
        self.initiator.hold(id)
    }

    /// Lets go what was kept back. Does nothing if the connection is not held.
    pub fn release(&mut self, id: ConnectionId) {
        self.initiator.release(id);
    }

    /// Closes a connection once its messages are sent. [`Completion::Closed`] tells when.
    ///
    /// # Errors
    /// [`CallError::NotOpen`] if it is not open.
    pub fn close(&mut self, now: Time, id: ConnectionId) -> Result<(), CallError> {
        self.initiator.close(&mut self.core, now, id)
    }

    /// Closes a connection without sending what waits in it, even if it is being closed already. Messages that have
    /// not begun complete as cancelled; one that has begun completes as answered with CANCELLED, once what has
    /// left is acknowledged. Then the target is told to close, and ends its receive with
    /// [`ReceiveError::PeerLost`].
    ///
    /// # Errors
    /// [`CallError::NotOpen`] if it never was open, or is all but closed.
    pub fn abort(&mut self, now: Time, id: ConnectionId) -> Result<(), CallError> {
        self.initiator.abort(&mut self.core, now, id)
    }

    /// Opens process `process`: messages for it are taken from now on. Each process has its own quota for the
    /// unexpected messages of a sender.
    ///
    /// # Errors
    /// [`CallError::ProcessOpen`]; [`CallError::Limit`] if [`Limits::processes`] are open; [`CallError::NoSuchProcess`]
    /// if the number is too large.
    pub fn open_process(&mut self, process: u16) -> Result<(), CallError> {
        let datagrams = self.datagrams.as_deref();
        if datagrams.is_some_and(|datagrams| datagrams.is_only(process) || datagrams.has_left(process)) {
            return Err(CallError::ProcessOpen(process));
        }
        let others = datagrams.map_or(0, Datagrams::processes);
        self.target.processes.open(&self.core.config.limits, process, others)
    }

    /// Closes process `process`: its receives, posted or met, and messages kept for it are dropped without
    /// completions, and its datagrams that have not left complete as cancelled. Senders get an error for each message that
    /// was not acknowledged in full; the rest of such a message is refused even if another process opens under the number
    /// meanwhile.
    ///
    /// # Errors
    /// [`CallError::ProcessNotOpen`].
    pub fn close_process(&mut self, process: u16) -> Result<(), CallError> {
        self.begin_close_process(process)?;
        self.clear_away(process, &mut { i64::MAX });
        Ok(())
    }

    /// A packet has arrived. `payload` is empty for control packets and trimmed ones.
    pub fn on_packet(&mut self, now: Time, packet: &Packet, payload: Payload<'_>) {
        self.on_packet_after(now, Span::ZERO, packet, payload);
    }

    /// As [`Fep::on_packet`] for a packet that arrived at this host `waited` before `now`, if its port can tell
    /// ([`PortCaps::timestamps`](crate::port::PortCaps::timestamps)). That time is no part of the RTTs that congestion
    /// control sees, here or, as far as acknowledgements report it, at the peer.
    #[inline]
    pub fn on_packet_after(&mut self, now: Time, waited: Span, packet: &Packet, payload: Payload<'_>) {
        let Fep { core, initiator, target, .. } = self;
        core.waited = waited;
        match &packet.pds {
            Pds::Request(request) => target.on_request(core, now, packet, request, payload),
            Pds::Ack(ack) => initiator.on_ack(core, now, waited, packet, ack, payload),
            Pds::Nack(nack) if target.on_nack(core, now, packet, nack) => {}
            Pds::Nack(nack) => initiator.on_nack(core, now, packet, nack),
            Pds::Control(control) => match control.kind {
                ControlKind::Credit | ControlKind::CloseRequest => {
                    initiator.on_control(core, now, packet, control);
                }
                _ => target.on_control(core, now, packet, control),
            },
            Pds::Uud(_) => {
                let (datagrams, processes) = (self.datagrams.as_deref_mut(), &target.processes);
                return on_datagram(core, datagrams, processes, now, packet, payload);
            }
            Pds::Tss(_) | Pds::Rudi(_) => core.ignore(now, packet, "PDS type not implemented"),
        }
        if target.grants_credit() {
            target.grant_credit(core, now);
        }
    }

    /// Whether [`Fep::poll_transmit`] is worth a call. It may still yield nothing.
    pub fn wants_to_transmit(&self) -> bool {
        !self.core.control.is_empty()
            || !self.initiator.ready.is_empty()
            || !self.core.replies.is_empty()
            || self.core.in_burst
            || self.core.has_datagrams
    }

    /// The next packet to put on the wire, if there is one: control packets first, then those of connections, responses
    /// with data and datagrams in turn.
    pub fn poll_transmit(&mut self, now: Time) -> Option<Transmit> {
        let (mut packet, mut payload) = (Packet::BLANK, PayloadRef::NONE);
        self.poll_transmit_into(now, &mut packet, &mut payload).then_some(Transmit { packet, payload })
    }

    /// As [`Fep::poll_transmit`], with the headers and the reference to the payload written to where the caller wants them:
    /// `packet` and `payload` change only if there is one. Returns whether there is.
    pub fn poll_transmit_into(&mut self, now: Time, packet: &mut Packet, payload: &mut PayloadRef) -> bool {
        if self.core.in_burst {
            self.end_burst(now, Span::ZERO);
        }
        let control = &mut self.core.control;
        if write_control(control.pop(), packet, payload)
            || control.takes_turns() && write_control(control.pop_in_turn(), packet, payload)
            || self.poll_data(now, packet, payload)
        {
            return true;
        }
        let control = &mut self.core.control;
        control.takes_turns() && write_control(control.pop_of_next_peer(), packet, payload)
    }

    /// Writes the next packet of a connection, a response or a datagram to `packet`, and where its payload is to `payload`. Returns
    /// whether there is one.
    #[inline(always)]
    fn poll_data(&mut self, now: Time, packet: &mut Packet, payload: &mut PayloadRef) -> bool {
        if self.core.has_datagrams && self.poll_datagram(now, packet, payload, false) {
            return true;
        }
        let Fep { core, initiator, target, .. } = self;
        if !core.replies.is_empty() && !std::mem::take(&mut core.replied) {
            core.replied = target.poll_reply(core, now, packet, payload);
            if core.replied {
                return true;
            }
        }
        if initiator.poll_transmit(core, now, packet, payload) {
            return true;
        }
        if !core.replies.is_empty() {
            return target.poll_reply(core, now, packet, payload);
        }
        // No other packet leaves now, so a datagram may leave although it was not the turn of datagrams.
        core.has_datagrams && self.poll_datagram(now, packet, payload, true)
    }

    /// The next result.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.core.completions.pop_front()
    }

    /// Counts of what has happened so far.
    pub fn counters(&self) -> &Counters {
        self.core.events.counters()
    }

    /// Sends all later events to `subscriber`.
    pub fn subscribe(&mut self, subscriber: Box<dyn Subscriber + std::marker::Send>) {
        self.core.events.subscribe(subscriber);
    }

    /// The state of the congestion controller that `connection` uses, for traces. `None` if it is closed.
    pub fn congestion(&self, connection: ConnectionId) -> Option<weft_cc::CcSnapshot> {
        let connection = self.initiator.connections.get(connection.0)?;
        self.initiator.contexts.get(connection.context).map(Context::snapshot)
    }

    /// Bytes in flight of the congestion context that `connection` uses, and the RTTs that it has measured, for traces.
    /// `None` if the connection is closed.
    pub fn flight(&self, connection: ConnectionId) -> Option<(u64, &crate::pdc::RttEstimator)> {
        let connection = self.initiator.connections.get(connection.0)?;
        let context = self.initiator.contexts.get(connection.context)?;
        Some((context.in_flight(), &context.rtt))
    }

    /// The bytes that a [`Transmit`] refers to.
    #[inline]
    pub fn payload(&self, at: &PayloadRef) -> Payload<'_> {
        at.resolve(&self.initiator.sends, &self.target)
    }

    /// The bytes that a [`Transmit`] refers to, with a share in their memory: they stay where they are as long as
    /// the share is held, even when the message is over. `None` for memory that cannot be shared.
    pub fn share_payload(&self, at: &PayloadRef) -> Option<RegionSlice> {
        at.share(&self.initiator.sends, &self.target)
    }

    /// Whether messages have failed, or memory was withdrawn, since the last call. Their memory is the application's again, though packets that
    /// refer to it may be under way still: the caller that sent them must make sure that they do not arrive.
    #[inline]
    pub fn take_abandoned(&mut self) -> bool {
        self.core.take_abandoned().is_some()
    }

    /// As [`Fep::take_abandoned`], with that memory.
    #[inline]
    pub(crate) fn take_abandoned_memory(&mut self) -> Option<Abandoned> {
        self.core.take_abandoned()
    }
}

/// Writes `control` to `packet`, if there is one; it has no payload. Returns whether there is.
#[inline(always)]
fn write_control(control: Option<Packet>, packet: &mut Packet, payload: &mut PayloadRef) -> bool {
    let Some(control) = control else { return false };
    control.write_to(packet);
    *payload = PayloadRef::NONE;
    true
}
