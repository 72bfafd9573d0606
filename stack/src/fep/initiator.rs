//! The sending half of an endpoint: connections, the congestion contexts they share, and the messages posted on them.
//!
//! Its verbs are in files of their own: [`transmit`](super::transmit) is the send scheduler,
//! [`feedback`](super::feedback) takes in acknowledgements and NACKs, [`timers`](super::timers) acts as time passes,
//! [`liveness`](super::liveness) gives up what makes no progress.

use weft_cc::{CcParams, Time};

use super::Resource;
use super::connection::{Connection, Standing};
use super::context::{Asking, Context};
use super::core::Core;
use super::gaps::Gaps;
use super::turns::Turns;
use super::{
    AccessId, Atomic, AtomicError, CallError, Completion, ConnectOptions, ConnectionId, Failure, FepConfig,
    MAX_PROCESS, Map, PostError, Read, ReadId, Send, SendError, SendId, TrafficClass, Windows, Write, Zone,
    ZoneId,
};
use crate::buffer::Buffer;
use crate::event::Event;
use crate::heap;
use crate::packet::Addr;
use crate::pdc::{TxPdc, TxState};
use crate::rng::Rng;
use crate::ses::{Operation, SendMessage};
use crate::spray::SelectorInput;
use crate::table::{Key, Table};
use crate::wire::nominal_overhead;
use crate::wire::pds::{DeliveryMode, PdcId, Psn, VendorFlags};

/// The sending half of an endpoint.
// In order of use; the last field is for acknowledgements, which need the next cache line anyway: see `Fep`.
#[repr(C)]
pub(super) struct Initiator {
    /// Connections that may send, in turn.
    pub(super) ready: Turns,
    pub(super) connections: Table<Connection>,
    pub(super) contexts: Table<Context>,
    pub(super) sends: Table<SendMessage>,
    /// Number of contexts that hold credit and have something to send.
    pub(super) stocked: u32,
    /// The process of all connections, as long as all belong to the same one.
    process: u16,
    /// The contexts that connections share, and those that targets know by their CCC_ID.
    by_ccc: Map<(Addr, u8), Key>,
    /// For each PDCID, less one, the first PSN that its last PDC did not use.
    last_psns: Vec<Psn>,
    /// Messages that the acknowledgement at hand completes; empty between calls, kept for its memory.
    pub(super) delivered: Vec<Key>,
}

impl Initiator {
    pub(super) fn new() -> Initiator {
        Initiator {
            ready: Turns::default(),
            connections: Table::default(),
            contexts: Table::default(),
            sends: Table::default(),
            stocked: 0,
            process: 0,
            by_ccc: Map::default(),
            last_psns: Vec::new(),
            delivered: Vec::new(),
        }
    }

    /// See [`Fep::connect_of`](super::Fep::connect_of), and [`Fep::connect_in`](super::Fep::connect_in) if there is a
    /// `zone`.
    pub(super) fn connect(
        &mut self,
        core: &mut Core,
        now: Time,
        process: u16,
        peer: Addr,
        zone: Option<ZoneId>,
        options: ConnectOptions,
    ) -> Result<ConnectionId, CallError> {
        let limit = core.config.limits.most_connections();
        if self.connections.len() >= limit {
            return Err(CallError::Limit { what: Resource::Connections, limit });
        }
        if let Some(&none) = [process, options.process].iter().find(|process| **process > MAX_PROCESS) {
            return Err(CallError::NoSuchProcess(none));
        }
        if self.connections.is_empty() && self.ready.is_empty() {
            self.ready.unite();
            self.process = process;
        } else if self.process != process {
            self.ready.divide(self.process);
        }
        let shares = zone.is_none() && core.config.windows == Windows::Pair;
        let zone = zone.unwrap_or_else(|| core.zone_of(peer));
        let context_key = self.context_for(core, now, (peer, zone), shares.then_some(options.class), process);
        let with_cc = self.contexts.get_mut(context_key).is_some_and(|context| context.needs_credit());
        let excess = nominal_overhead(with_cc, core.config.crc) as i32 - core.config.overhead as i32;
        let random = core.rng.next_u64() as u32;
        let priority = core.config.priority_of(options.class);
        let last_psns = &self.last_psns;
        let key = self.connections.insert_with(|key| {
            let last = last_psns.get(key.index as usize);
            let start_psn = last.map_or(Psn(random), |last| far_from(*last, random));
            let pdc = TxPdc::new(&core.zone(zone).pdc, peer, pdc_id(key), options.mode, start_psn);
            let mut pdc = pdc.with_nominal_excess(excess);
            if core.zone(zone).cc.needs().hops {
                pdc.flags = VendorFlags::DELAY_ECHO;
            }
            Connection {
                source: process,
                process: options.process,
                priority,
                patient: options.patient,
                ..Connection::new(pdc, context_key, now)
            }
        });
        if options.mode == DeliveryMode::Rod
            && let Some(connection) = self.connections.get_mut(key)
            && let Some(context) = self.contexts.get_mut(context_key)
        {
            connection.fixed_entropy = Some(context.next_entropy(now, false));
        }
        core.note_connected(peer);
        core.events.emit(now, Event::PdcOpened { peer, pdc: pdc_id(key), context: context_key.index });
        Ok(ConnectionId(key))
    }

    /// What connection `id` sends belongs to job `job`.
    pub(super) fn set_job(&mut self, id: ConnectionId, job: u32) {
        if let Some(connection) = self.connections.get_mut(id.0) {
            connection.job = job;
        }
    }

    /// The congestion context of a new connection to `peer` with the settings of `zone`, with one user more; made if it
    /// has to be. Connections of one class share one, those without a class have their own.
    fn context_for(
        &mut self,
        core: &mut Core,
        now: Time,
        (peer, zone): (Addr, ZoneId),
        class: Option<TrafficClass>,
        process: u16,
    ) -> Key {
        let credit = core.zone(zone).cc.sender_credit();
        let ccc_id = match class {
            Some(class) => Some(class.0),
            None => credit.is_some().then(|| self.free_ccc_id(peer)),
        };
        let shared = ccc_id.and_then(|ccc_id| self.by_ccc.get(&(peer, ccc_id)).copied());
        let key = shared.unwrap_or_else(|| {
            let rng = Rng::new(core.rng.next_u64(), u64::from(peer.0));
            let Zone { cc, lb, paths, .. } = core.zone(zone);
            let CcParams { trimming, network_rtt: base_rtt, .. } = *cc.params();
            let selector = lb.build(SelectorInput { paths: *paths, trimming, base_rtt, rng });
            let wire_mtu = core.config.mtu + core.config.overhead;
            let (name, ack_each) = (ccc_id.unwrap_or(0), cc.needs().ack_each);
            let mut context =
                Context::new(now, (peer, zone), name, cc.sender(), selector, credit, ack_each, wire_mtu);
            context.process = process;
            let key = self.contexts.insert(context);
            if let Some(ccc_id) = ccc_id {
                self.by_ccc.insert((peer, ccc_id), key);
            }
            key
        });
        if let Some(context) = self.contexts.get_mut(key) {
            context.users += 1;
            if context.process != process {
                context.blocked.divide(context.process);
            }
        }
        key
    }

    /// A CCC_ID that no context to `peer` has; if all are taken, one of those, chosen so that connections spread over
    /// them evenly.
    fn free_ccc_id(&self, peer: Addr) -> u8 {
        let first = self.connections.len() as u8;
        let mut ids = (0..=u8::MAX).map(|n| first.wrapping_add(n));
        ids.find(|id| !self.by_ccc.contains_key(&(peer, *id))).unwrap_or(first)
    }

    /// See [`Fep::is_open`](super::Fep::is_open).
    pub(super) fn is_open(&self, id: ConnectionId) -> bool {
        self.connections.get(id.0).is_some_and(|connection| connection.pdc.state == TxState::Open)
    }

    fn open_connection(&mut self, id: ConnectionId) -> Result<&mut Connection, CallError> {
        let connection = self.connections.get_mut(id.0);
        connection.filter(|connection| connection.pdc.state == TxState::Open).ok_or(CallError::NotOpen)
    }

    /// See [`Fep::post_send`](super::Fep::post_send).
    #[inline(always)]
    pub(super) fn post_send(
        &mut self,
        config: &FepConfig,
        id: ConnectionId,
        send: Send,
    ) -> Result<SendId, PostError> {
        let Send { buffer, tag, header_data, context } = send;
        let message =
            SendMessage::new(buffer, Operation::Send { tag }, header_data, context, id.0.index as u16);
        self.post(config, id, message).map(SendId)
    }

    /// See [`Fep::post_read`](super::Fep::post_read).
    pub(super) fn post_read(
        &mut self,
        config: &FepConfig,
        id: ConnectionId,
        read: Read,
    ) -> Result<ReadId, PostError> {
        let Read { buffer, key, offset, context } = read;
        if matches!(buffer, Buffer::Bytes(_)) {
            return Err(PostError { error: CallError::ReadOnly, buffer });
        }
        let operation = Operation::Read { key, offset, part: config.mtu };
        self.post(config, id, SendMessage::new(buffer, operation, 0, context, id.0.index as u16)).map(ReadId)
    }

    /// See [`Fep::post_write`](super::Fep::post_write).
    pub(super) fn post_write(
        &mut self,
        config: &FepConfig,
        id: ConnectionId,
        write: Write,
    ) -> Result<AccessId, PostError> {
        let Write { buffer, key, offset, data, context } = write;
        let operation = Operation::Write { key, offset, notify: data.is_some() };
        let message = SendMessage::new(buffer, operation, data.unwrap_or(0), context, id.0.index as u16);
        self.post(config, id, message).map(AccessId)
    }

    /// See [`Fep::post_atomic`](super::Fep::post_atomic).
    pub(super) fn post_atomic(
        &mut self,
        config: &FepConfig,
        id: ConnectionId,
        atomic: Atomic,
    ) -> Result<AccessId, AtomicError> {
        let context = atomic.context;
        let (payload, operation) = atomic.encode(config.mtu)?;
        let message = SendMessage::new(Buffer::Heap(payload), operation, 0, context, id.0.index as u16);
        self.post(config, id, message).map(AccessId).map_err(|refused| AtomicError::Call(refused.error))
    }

    // Inlined always: a message that is put together and then moved costs a store-forwarding stall (see `crate::prefetch`).
    #[inline(always)]
    fn post(
        &mut self,
        config: &FepConfig,
        id: ConnectionId,
        mut message: SendMessage,
    ) -> Result<Key, PostError> {
        let refuse = |error, buffer| Err(PostError { error, buffer });
        let limit = config.limits.sends;
        if self.sends.len() >= limit {
            return refuse(CallError::Limit { what: Resource::Messages, limit }, message.buffer);
        }
        if message.buffer.is_too_long() {
            return refuse(CallError::TooLong, message.buffer);
        }
        let open = self.connections.get_mut(id.0).filter(|c| c.pdc.state == TxState::Open);
        let Some(connection) = open else { return refuse(CallError::NotOpen, message.buffer) };
        // Whether its time without progress begins with this message: it has no other work.
        connection.rested |= connection.queue.is_empty() && connection.pdc.is_idle();
        if let Some(context) = self.contexts.get_mut(connection.context) {
            let bytes = unsent_bytes(config, &message);
            context.backlog += bytes;
            connection.backlog += bytes;
        }
        message.place = Gaps::next_place(&connection.queue, &self.sends);
        let key = self.sends.insert(message);
        connection.queue.push_back(key);
        connection.make_ready(&mut self.ready, id.0);
        Ok(key)
    }

    /// See [`Fep::cancel_send`](super::Fep::cancel_send).
    pub(super) fn cancel_send(&mut self, core: &mut Core, id: SendId) -> Result<(), CallError> {
        let message = self.sends.get(id.0).filter(|message| message.is_untouched());
        let message = message.ok_or(CallError::TooLate)?;
        let (bytes, place) = (unsent_bytes(&core.config, message), message.place);
        let Some((key, connection)) = self.connections.at_mut(message.connection.into()) else {
            return Err(CallError::TooLate);
        };
        let is_its = connection.withdraw(&mut self.sends, id.0, place);
        if !is_its && !connection.aborting {
            // Its connection has failed, so the message is about to end.
            return Err(CallError::TooLate);
        }
        // The messages of a connection that is being aborted have left the backlog already.
        if is_its && let Some(context) = self.contexts.get_mut(connection.context) {
            context.leave_backlog(connection, bytes);
        }
        fail_send(&mut self.sends, core, id.0, SendError::Cancelled);
        if connection.wants_close() {
            // A closing connection ends with its last message, even while it is held. Its target has the time for CLOSE_CMD that
            // others have, however long the message has waited.
            connection.rested = true;
            connection.release();
        }
        self.leave_gate(&core.config, key);
        self.make_ready(key);
        Ok(())
    }

    /// See [`Fep::hold`](super::Fep::hold).
    pub(super) fn hold(&mut self, id: ConnectionId) -> Result<(), CallError> {
        let connection = self.open_connection(id)?;
        let is_queued = !matches!(connection.standing, Standing::Idle | Standing::Held);
        if is_queued || !connection.pdc.is_unused() || !connection.queue.is_empty() {
            return Err(CallError::TooLate);
        }
        connection.standing = Standing::Held;
        Ok(())
    }

    /// See [`Fep::release`](super::Fep::release).
    pub(super) fn release(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(id.0)
            && connection.release()
        {
            connection.make_ready(&mut self.ready, id.0);
        }
    }

    /// See [`Fep::close`](super::Fep::close).
    pub(super) fn close(&mut self, core: &mut Core, now: Time, id: ConnectionId) -> Result<(), CallError> {
        let connection = self.open_connection(id)?;
        connection.pdc.state = TxState::Draining;
        connection.rested |= connection.wants_close();
        if connection.pdc.is_unused() && connection.queue.is_empty() {
            // The target has never heard of it.
            self.remove_connection(core, now, id.0, Ok(()));
        } else {
            self.make_ready(id.0);
        }
        Ok(())
    }

    /// Gives a connection up: everything that waits in it fails, or will.
    pub(super) fn fail(&mut self, core: &mut Core, now: Time, key: Key, failure: Failure) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let context_key = connection.context;
        if let Some(context) = self.contexts.get_mut(context_key) {
            let bytes = connection.backlog;
            context.leave_backlog(connection, bytes);
        }
        let error = SendError::Failed(failure);
        let mut waiting = std::mem::take(&mut connection.queue);
        if !core.aborts.spreads() {
            for send in waiting.drain(..) {
                fail_send(&mut self.sends, core, send, error);
            }
        }
        // A message that has failed is no longer in the table, so each fails once, however many packets it has.
        for record in connection.pdc.unacknowledged() {
            if let Some(send) = record.kind().send()
                && let Some((send, _)) = self.sends.at(send)
            {
                fail_send(&mut self.sends, core, send, error);
            }
        }
        if core.aborts.spreads() {
            core.aborts.fail(key, connection.source, waiting, (connection.pdc.peer, failure));
        } else if connection.aborting {
            self.cancel_rest(core, key);
        }
        self.remove_connection(core, now, key, Err(failure));
        // The bytes that were in flight are gone, so other packets have room in the window.
        self.unblock(&core.config, context_key);
    }

    /// Forgets a connection, and its context if it was the last one to use it.
    pub(super) fn remove_connection(
        &mut self,
        core: &mut Core,
        now: Time,
        key: Key,
        result: Result<(), Failure>,
    ) {
        let Some(connection) = self.connections.remove(key) else { return };
        let peer = connection.pdc.peer;
        let slot = key.index as usize;
        self.last_psns.resize(self.last_psns.len().max(slot + 1), Psn(0));
        self.last_psns[slot] = connection.pdc.next_psn();
        if let Some(context) = self.contexts.get_mut(connection.context) {
            context.forget(&connection.pdc);
            context.users -= 1;
            if context.users == 0 {
                self.stocked -= u32::from(context.stocked);
                let name = (context.peer, context.ccc_id);
                if self.by_ccc.get(&name) == Some(&connection.context) {
                    self.by_ccc.remove(&name);
                }
                self.contexts.remove(connection.context);
            } else if context.trying == Some(key) {
                // This connection will not try the gate any more: the next one has to.
                context.trying = None;
                self.unblock(&core.config, connection.context);
            }
        }
        core.note_disconnected(peer);
        core.events.emit(now, Event::PdcClosed { peer, pdc: connection.pdc.id });
        if !core.aborts.tells_end_of(key) {
            core.completions.push_back(Completion::Closed { id: ConnectionId(key), peer, result });
        }
    }

    /// Puts a connection into the scheduler's queue if it has something to send.
    pub(super) fn make_ready(&mut self, key: Key) {
        if let Some(connection) = self.connections.get_mut(key) {
            connection.make_ready(&mut self.ready, key);
        }
    }

    /// The gate of a context may have opened: lets the first connection that waits for it try. If the gate
    /// lets it through, or it has nothing to send any more, [`Initiator::poll_transmit`] lets the next one try, so
    /// that an acknowledgement costs as much as it sets free, however many wait.
    pub(super) fn unblock(&mut self, config: &FepConfig, context: Key) {
        let Some(state) = self.contexts.get(context).filter(|context| context.has_blocked()) else { return };
        if state.is_full() && !self.must_ask(config, context) {
            return;
        }
        if let Some((key, process)) = self.let_try(context) {
            self.ready.push_soon(key, process);
        }
    }

    /// Messages of connection `key` were withdrawn. If it waits for the gate and has nothing left that has to pass it, it
    /// leaves its place to those behind it: without data it asks for no credit, and CLOSE_CMD needs none.
    pub(super) fn leave_gate(&mut self, config: &FepConfig, key: Key) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let has_data = connection.pdc.has_lost() || !connection.queue.is_empty();
        if connection.standing != Standing::Blocked || has_data {
            return;
        }
        connection.standing = Standing::Idle;
        connection.ask_at = None;
        let (context_key, process) = (connection.context, connection.source);
        if let Some(context) = self.contexts.get_mut(context_key) {
            context.blocked.remove(key, process);
        }
        self.unblock(config, context_key);
    }

    /// Unless a connection tries the gate of `context` already, takes the next one from those that wait, to try it.
    /// Returns the connection and its process.
    pub(super) fn let_try(&mut self, context: Key) -> Option<(Key, u16)> {
        let context = self.contexts.get_mut(context)?;
        while context.trying.is_none()
            && let Some(key) = context.blocked.pop_front()
        {
            if let Some(connection) = self.connections.get_mut(key) {
                connection.standing = Standing::Ready;
                context.trying = Some(key);
                return Some((key, connection.source));
            }
        }
        None
    }

    /// Whether all that `context` has in flight may have arrived without being acknowledged: targets acknowledge
    /// nothing as long as they have less than their threshold, and no packet is in flight that asks for an
    /// acknowledgement. This happens because windows can shrink after packets have left that do not ask, and because
    /// the packet that asked can be trimmed, or overtake other packets.
    #[inline(never)]
    pub(super) fn must_ask(&self, config: &FepConfig, context_key: Key) -> bool {
        let Some(context) = self.contexts.get(context_key) else { return false };
        if context.asks == Asking::Each {
            return false;
        }
        let ack_bytes = config.zones.get(context.zone).pdc.ack_bytes;
        if context.in_flight() >= u64::from(ack_bytes) * u64::from(context.active()) {
            return false;
        }
        let (pdc, psn) = context.asked();
        let asker = u32::from(pdc.0).checked_sub(1).and_then(|index| self.connections.at(index));
        !asker.is_some_and(|(_, c)| c.context == context_key && c.pdc.is_in_flight(psn))
    }

    /// Brings the state of the first connection into the cache.
    pub(super) fn prefetch(&self) {
        self.connections.prefetch(0);
        self.contexts.prefetch(0);
        self.sends.prefetch(0);
    }

    /// Names of congestion contexts.
    pub(super) fn names(&self) -> usize {
        self.by_ccc.len()
    }

    /// Bytes of heap held by connections.
    pub(super) fn connection_bytes(&self) -> u64 {
        let connections = self.connections.iter().map(|(_, connection)| connection.heap_bytes());
        self.connections.heap_bytes() + connections.sum::<u64>()
    }

    /// Bytes of heap held by congestion contexts.
    pub(super) fn context_bytes(&self) -> u64 {
        let contexts = self.contexts.iter().map(|(_, context)| context.heap_bytes());
        self.contexts.heap_bytes() + heap::of_map(&self.by_ccc) + contexts.sum::<u64>()
    }

    /// Bytes of heap held by its queues, and by what it remembers of closed connections.
    pub(super) fn queue_bytes(&self) -> u64 {
        heap::of_vec(&self.last_psns) + self.ready.heap_bytes() + heap::of_vec(&self.delivered)
    }
}

/// Counts `context` among those that hold credit and have something to send, if it is one of them now. Returns the
/// number of the others.
#[inline]
pub(super) fn count_rivals(stocked: &mut u32, context: &mut Context) -> u32 {
    let others = *stocked - u32::from(context.stocked);
    context.stocked = context.is_stocked();
    *stocked = others + u32::from(context.stocked);
    others
}

/// All of a message has arrived, and has been answered if the target did not take it.
#[inline]
pub(super) fn complete_send(sends: &mut Table<SendMessage>, core: &mut Core, key: Key) {
    match sends.get(key) {
        Some(message) if message.is_access() || message.refusal.is_some() => complete_other(sends, core, key),
        _ => {
            // The completion is made from the message in its final place: to move either of them first would cost more.
            let Some(message) = sends.remove(key) else { return };
            core.completions.push_back(message.sent(key, Ok(())));
        }
    }
}

/// As [`complete_send`], for an access, or what was answered.
#[inline(never)]
fn complete_other(sends: &mut Table<SendMessage>, core: &mut Core, key: Key) {
    if let Some(message) = sends.remove(key) {
        let result = message.refusal.map_or(Ok(()), |code| Err(SendError::Answered(code)));
        core.completions.push_back(message.into_completion(key, result));
    }
}

/// A message fails. Its memory goes back to the application. Returns whether there was such a message.
#[cold]
pub(super) fn fail_send(sends: &mut Table<SendMessage>, core: &mut Core, key: Key, error: SendError) -> bool {
    let Some(message) = sends.remove(key) else { return false };
    if !message.is_untouched() {
        core.abandon(&message.buffer);
    }
    core.completions.push_back(message.into_completion(key, Err(error)));
    true
}

/// The PDCID of connection `key`.
fn pdc_id(key: Key) -> PdcId {
    PdcId((key.index + 1) as u16)
}

/// A Start_PSN drawn by `random`. It has to be at least 2¹⁶ from the last PSN used; this one is at least twice as far,
/// so that its neighbours are far enough as well. And it has to lie outside the PSNs that the target remembers of the
/// last PDC, 2³⁰ at most.
fn far_from(last: Psn, random: u32) -> Psn {
    const APART: u32 = 1 << 17;
    const REMEMBERED: u32 = 1 << 30;
    last.plus(APART + random % (u32::MAX - REMEMBERED - 2 * APART))
}

/// Bytes that the part of a message that has not left needs credit for. The requests of a read carry none of its bytes.
#[inline(always)]
pub(super) fn unsent_bytes(config: &FepConfig, message: &SendMessage) -> u64 {
    let remaining = message.remaining();
    let read = if message.is_read() { u64::from(remaining) } else { 0 };
    wire_size(config, remaining) - read
}

/// Bytes that `payload` bytes count for in windows and credit when cut into packets.
#[inline(always)]
fn wire_size(config: &FepConfig, payload: u32) -> u64 {
    // Most messages are one packet, and a division takes longer than all else here.
    let packets = if payload <= config.mtu { 1 } else { u64::from(payload.div_ceil(config.mtu)) };
    u64::from(payload) + packets * u64::from(config.overhead)
}
