//! The fabric endpoint: all PDCs and congestion contexts of one address, the send scheduler, the
//! timers. A state machine without I/O.
//!
//! Four verbs drive it, and calling any of them early or twice is harmless:
//!
//! - [`Fep::on_packet`] for every packet that arrives;
//! - [`Fep::poll_transmit`] when the port can take a packet, until it yields nothing; again after any
//!   other call that takes `&mut self`;
//! - [`Fep::on_timeout`] at [`Fep::poll_timeout`], which may have changed after any call that takes `&mut self`;
//! - [`Fep::poll_completion`] for results, until it yields nothing; after any of the above.
//!
//! ```text
//!  post_send ─▶ connection (queue of messages) ─▶ scheduler ─▶ context (window, pacing, credit)
//!               ─▶ spray (entropy) ─▶ pdc (PSN, record) ─▶ poll_transmit
//!  on_packet ─▶ pdc (new? duplicate?) ─▶ ses (match, place) ─▶ completion
//!            └▶ ACK or NACK ─▶ control queue ─▶ poll_transmit
//! ```
#![forbid(unsafe_code)]

mod api;
mod config;
mod connection;
mod context;
mod credit;
mod explain;
mod footprint;
mod hold;
mod initiator;
mod process;
mod refused;
mod target;
mod timers;
mod transmit;
mod wheel;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::sync::Arc;

use rustc_hash::FxHasher;
use weft_cc::Time;

pub use api::{
    CallError, Completion, ConnectOptions, ConnectionId, Failure, MAX_PROCESS, PeerRefusal, PostError, QUESTIONS,
    Receive, ReceiveError, Resource, Send, SendError, SendId, Unreachable,
};
pub use config::{ConfigError, FepConfig, Limits};
pub use context::TrafficClass;
pub use explain::Wait;
pub use footprint::Footprint;
pub use transmit::{PayloadRef, Transmit};

use crate::buffer::{Buffer, MAX_MESSAGE};
use crate::event::{Counters, Event, Events, Subscriber};
use crate::packet::{Addr, Packet, Payload};
use crate::pdc::{TxPdc, TxState};
use crate::region::RegionSlice;
use crate::rng::Rng;
use crate::ses::{Delivery, ReceiveId, Receives, SendMessage};
use crate::table::{Key, Table};
use crate::wire::pds::{DeliveryMode, PdcId, Pds, Psn};
use connection::{Connection, Standing};
use context::Context;
use credit::Granter;
use target::Targets;
use timers::TimerKey;
use wheel::Wheel;

type Map<K, V> = HashMap<K, V, BuildHasherDefault<FxHasher>>;

/// One fabric endpoint.
// In the order of use: where many endpoints take turns, each cache line that a packet needs is a miss.
#[repr(C, align(64))]
pub struct Fep {
    config: Arc<FepConfig>,
    addr: Addr,
    /// Whether process 0 is closed.
    zero_closed: bool,
    /// Whether memory has been handed back of which packets may be under way.
    abandoned: bool,
    granter: Option<Box<Granter>>,
    /// Connections that may send, in turn.
    ready: VecDeque<Key>,
    connections: Table<Connection>,
    contexts: Table<Context>,
    sends: Table<SendMessage>,
    /// Acknowledgements, NACKs and control packets that wait for the port.
    control: VecDeque<Packet>,
    /// Messages delivered by the acknowledgement at hand; empty in between, kept for its memory.
    delivered: Vec<Key>,
    events: Events,
    wheel: Wheel<TimerKey>,
    targets: Targets,
    receives: Receives,
    completions: VecDeque<Completion>,
    due: Vec<TimerKey>,
    by_peer: Map<(Addr, TrafficClass), Key>,
    /// Receives of processes other than 0.
    processes: BTreeMap<u16, Receives>,
    /// For each PDCID, less one, the first PSN that its last PDC did not use.
    last_psns: Vec<Psn>,
    next_receive: u64,
    rng: Rng,
}

impl Fep {
    /// An endpoint with address `addr`. Everything random in it comes from `rng`; time begins at `now`.
    ///
    /// # Errors
    /// A configuration that cannot work.
    pub fn new(addr: Addr, config: Arc<FepConfig>, rng: Rng, now: Time) -> Result<Fep, ConfigError> {
        config.validate()?;
        Ok(Fep {
            addr,
            rng,
            connections: Table::default(),
            last_psns: Vec::new(),
            contexts: Table::default(),
            by_peer: Map::default(),
            sends: Table::default(),
            receives: Receives::new(config.limits.unexpected_bytes_per_peer, config.limits.messages),
            processes: BTreeMap::new(),
            zero_closed: false,
            abandoned: false,
            next_receive: 0,
            targets: Targets::default(),
            granter: config.cc.receiver().map(|algorithm| Box::new(Granter::new(algorithm))),
            control: VecDeque::new(),
            ready: VecDeque::new(),
            wheel: Wheel::new(now),
            due: Vec::new(),
            delivered: Vec::new(),
            completions: VecDeque::new(),
            events: Events::default(),
            config,
        })
    }

    /// Brings what the next call will probably need into the cache: the state of the first connections each
    /// way, which is all there is in most of many endpoints. Its own lines must be there already.
    pub fn prefetch(&self) {
        self.connections.prefetch(0);
        self.contexts.prefetch(0);
        self.sends.prefetch(0);
        self.targets.table.prefetch(0);
        self.receives.prefetch();
    }

    /// Its address.
    pub fn addr(&self) -> Addr {
        self.addr
    }

    /// How it behaves.
    pub fn config(&self) -> &FepConfig {
        &self.config
    }

    /// Opens a connection. Nothing is sent until there is a message. After a silence as long as the
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
        let limit = self.config.limits.connections.min(usize::from(u16::MAX));
        if self.connections.len() >= limit {
            return Err(CallError::Limit { what: Resource::Connections, limit });
        }
        if options.process > MAX_PROCESS {
            return Err(CallError::NoSuchProcess(options.process));
        }
        let context = self.context_for(peer, options.class);
        let random = self.rng.next_u64() as u32;
        let (config, last_psns) = (&self.config, &self.last_psns);
        let key = self.connections.insert_with(|key| {
            let last = last_psns.get(key.index as usize);
            let start_psn = last.map_or(Psn(random), |last| far_from(*last, random));
            let id = PdcId((key.index + 1) as u16);
            let pdc = TxPdc::new(&config.pdc, peer, id, options.mode, start_psn);
            Connection { process: options.process, ..Connection::new(pdc, context, now) }
        });
        if options.mode == DeliveryMode::Rod
            && let Some(connection) = self.connections.get_mut(key)
            && let Some(context) = self.contexts.get_mut(context)
        {
            connection.fixed_entropy = Some(context.next_entropy(now, false));
        }
        self.events.emit(now, Event::PdcOpened { peer, pdc: PdcId((key.index + 1) as u16) });
        Ok(ConnectionId(key))
    }

    /// Whether a connection takes messages.
    pub fn is_open(&self, id: ConnectionId) -> bool {
        self.connections.get(id.0).is_some_and(|connection| connection.pdc.state == TxState::Open)
    }

    /// Posts a message. It leaves as soon as congestion control and the messages before it allow.
    ///
    /// # Errors
    /// The connection is not open, too many messages wait, or this one is too long. The message is
    /// dropped with the error.
    pub fn post_send(&mut self, connection: ConnectionId, send: Send) -> Result<SendId, PostError> {
        let limit = self.config.limits.sends;
        if self.sends.len() >= limit {
            let error = CallError::Limit { what: Resource::Messages, limit };
            return Err(PostError { error, buffer: send.buffer });
        }
        if matches!(&send.buffer, Buffer::Heap(bytes) if bytes.len() as u64 > MAX_MESSAGE) {
            return Err(PostError { error: CallError::TooLong, buffer: send.buffer });
        }
        let open = self.connections.get_mut(connection.0).filter(|c| c.pdc.state == TxState::Open);
        let Some(connection_state) = open else {
            return Err(PostError { error: CallError::NotOpen, buffer: send.buffer });
        };
        let msg_id = connection_state.next_msg_id;
        connection_state.next_msg_id = msg_id.wrapping_add(1);
        if let Some(context) = self.contexts.get_mut(connection_state.context) {
            context.backlog += wire_size(&self.config, send.buffer.len());
        }
        let message = SendMessage::new(send.buffer, send.tag, send.header_data, send.context, msg_id);
        let id = self.sends.insert(message);
        connection_state.queue.push_back(id);
        self.make_ready(connection.0);
        Ok(SendId(id))
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// [`CallError::Limit`] when too many wait.
    pub fn post_receive(&mut self, receive: Receive) -> Result<ReceiveId, PostError> {
        self.post_receive_of(0, receive)
    }

    /// Takes a message back of which nothing has been sent; it completes as cancelled.
    ///
    /// # Errors
    /// [`CallError::TooLate`] once its first packet has left.
    pub fn cancel_send(&mut self, id: SendId) -> Result<(), CallError> {
        if !self.sends.get(id.0).is_some_and(SendMessage::is_untouched) {
            return Err(CallError::TooLate);
        }
        let holder = self.connections.iter().find(|(_, c)| c.queue.contains(&id.0)).map(|(key, _)| key);
        if let Some(connection) = holder.and_then(|key| self.connections.get_mut(key)) {
            connection.queue.retain(|&other| other != id.0);
            if let (Some(context), Some(message)) =
                (self.contexts.get_mut(connection.context), self.sends.get(id.0))
            {
                context.backlog -= wire_size(&self.config, message.buffer.len());
            }
        }
        self.fail_send(id.0, SendError::Cancelled);
        if let Some(key) = holder {
            // It may have been all that stood between a closing connection and its end, also if that is held.
            if self.connections.get(key).is_some_and(Connection::wants_close) {
                self.release(ConnectionId(key));
            }
            self.make_ready(key);
        }
        Ok(())
    }

    /// Takes a receive back that no message has met; it completes as cancelled.
    ///
    /// # Errors
    /// [`CallError::TooLate`] once a message has met it.
    pub fn cancel_receive(&mut self, id: ReceiveId) -> Result<(), CallError> {
        let posted = self.receives.cancel(id);
        let posted = posted.or_else(|| self.processes.values_mut().find_map(|receives| receives.cancel(id)));
        let posted = posted.ok_or(CallError::TooLate)?;
        self.completions.push_back(Completion::Received {
            id,
            context: posted.context,
            peer: None,
            tag: None,
            header_data: 0,
            len: 0,
            buffer: posted.buffer,
            result: Err(ReceiveError::Cancelled),
        });
        Ok(())
    }

    /// How many PDCs of peers are open here. Their initiators may not know yet that all they sent has arrived: an
    /// endpoint that goes while there are any may leave them without an answer.
    pub fn open_targets(&self) -> usize {
        self.targets.table.len()
    }

    /// Closes a connection once its messages are sent. [`Completion::Closed`] tells when.
    ///
    /// # Errors
    /// [`CallError::NotOpen`] if it is not open.
    pub fn close(&mut self, now: Time, id: ConnectionId) -> Result<(), CallError> {
        let open = self.connections.get_mut(id.0).filter(|c| c.pdc.state == TxState::Open);
        let connection = open.ok_or(CallError::NotOpen)?;
        connection.pdc.state = TxState::Draining;
        if connection.pdc.is_unused() && connection.queue.is_empty() {
            // The target has never heard of it.
            self.remove_connection(now, id.0, Ok(()));
        } else {
            self.make_ready(id.0);
        }
        Ok(())
    }

    /// A packet has arrived. `payload` is empty for control packets and trimmed ones.
    pub fn on_packet(&mut self, now: Time, packet: &Packet, payload: Payload<'_>) {
        match &packet.pds {
            Pds::Request(request) => self.on_request(now, packet, request, payload),
            Pds::Ack(ack) => self.on_ack(now, packet, ack),
            Pds::Nack(nack) => self.on_nack(now, packet, nack),
            Pds::Control(control) => self.on_control(now, packet, control),
            Pds::Tss(_) | Pds::Rudi(_) | Pds::Uud(_) => self.ignore(now, packet, "PDS type not implemented"),
        }
        if self.granter.is_some() {
            self.grant_credit(now);
        }
    }

    /// The next result.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    /// What has happened so far, in numbers.
    pub fn counters(&self) -> &Counters {
        self.events.counters()
    }

    /// Sends all later events to `subscriber`.
    pub fn subscribe(&mut self, subscriber: Box<dyn Subscriber + std::marker::Send>) {
        self.events.subscribe(subscriber);
    }

    /// The congestion controller's state of `connection`, for traces.
    pub fn congestion(&self, connection: ConnectionId) -> Option<weft_cc::CcSnapshot> {
        let connection = self.connections.get(connection.0)?;
        self.contexts.get(connection.context).map(Context::snapshot)
    }

    /// The bytes that a [`Transmit`] refers to.
    pub fn payload(&self, at: PayloadRef) -> Payload<'_> {
        at.resolve(&self.sends)
    }

    /// The bytes that a [`Transmit`] refers to, with a share in their memory: they stay where they are as long as
    /// it is held, also when the message is over. `None` for memory that cannot be shared.
    pub fn share_payload(&self, at: PayloadRef) -> Option<RegionSlice> {
        at.share(&self.sends)
    }

    /// Whether messages have failed since the last call. Their memory is the application's again, though packets that
    /// refer to it may be under way still: who has sent them must see to it that they do not arrive.
    #[inline]
    pub fn take_abandoned(&mut self) -> bool {
        core::mem::take(&mut self.abandoned)
    }

    fn context_for(&mut self, peer: Addr, class: TrafficClass) -> Key {
        let key = match self.by_peer.get(&(peer, class)) {
            Some(&key) => key,
            None => {
                let config = &self.config;
                let rng = Rng::new(self.rng.next_u64(), u64::from(peer.0));
                let params = config.cc.params();
                let selector = config.lb.build(config.paths, params.trimming, rng);
                let (cc, credit) = (config.cc.sender(), config.cc.sender_credit());
                let context = Context::new(peer, class, cc, selector, credit, params.wire_mtu());
                let key = self.contexts.insert(context);
                self.by_peer.insert((peer, class), key);
                key
            }
        };
        if let Some(context) = self.contexts.get_mut(key) {
            context.users += 1;
        }
        key
    }

    /// Puts a connection into the scheduler's queue if it has something to send.
    fn make_ready(&mut self, key: Key) {
        if let Some(connection) = self.connections.get_mut(key) {
            connection.make_ready(&mut self.ready, key);
        }
    }

    /// The gate of a context may have opened: lets the first connection that waits for it try. If the gate
    /// lets it through, or it has nothing to send any more, [`Fep::send_from`] lets the next one try, so
    /// that an acknowledgement costs as much as it sets free, however many wait.
    fn unblock(&mut self, context: Key) {
        let Some(state) = self.contexts.get(context).filter(|context| context.has_blocked()) else { return };
        if state.is_full() && !self.must_ask(context) {
            return;
        }
        if let Some(key) = self.let_try(context) {
            self.ready.push_back(key);
        }
    }

    /// Takes the next connection to try the gate of `context` from those that wait, unless one tries.
    fn let_try(&mut self, context: Key) -> Option<Key> {
        let context = self.contexts.get_mut(context)?;
        while context.trying.is_none()
            && let Some(key) = context.blocked.pop_front()
        {
            if let Some(connection) = self.connections.get_mut(key) {
                connection.standing = Standing::Ready;
                context.trying = Some(key);
                return Some(key);
            }
        }
        None
    }

    /// All of a message has arrived, and has been answered if it has not been taken.
    #[inline]
    fn complete_send(&mut self, key: Key) {
        let Some(message) = self.sends.remove(key) else { return };
        // Spelled out for each: a result made beforehand is waited for when it is moved.
        match message.refusal {
            None => self.completions.push_back(message.into_completion(key, Ok(()))),
            Some(code) => {
                self.completions.push_back(message.into_completion(key, Err(SendError::Answered(code))));
            }
        }
    }

    /// A message fails.
    #[cold]
    fn fail_send(&mut self, key: Key, error: SendError) {
        if let Some(message) = self.sends.remove(key) {
            self.completions.push_back(message.into_completion(key, Err(error)));
        }
    }

    fn complete_receive(&mut self, delivery: Delivery) {
        let result = match &delivery {
            d if !d.complete => Err(ReceiveError::PeerLost),
            d if d.is_truncated() => Err(ReceiveError::Truncated { len: d.len, room: d.buffer.len() }),
            _ => Ok(()),
        };
        self.completions.push_back(Completion::Received {
            id: delivery.id,
            context: delivery.context,
            peer: Some(delivery.peer),
            tag: delivery.tag,
            header_data: delivery.header_data,
            len: delivery.len,
            buffer: delivery.buffer,
            result,
        });
    }

    /// Forgets a connection, and its context if it was the last one to use it.
    fn remove_connection(&mut self, now: Time, key: Key, result: Result<(), Failure>) {
        let Some(connection) = self.connections.remove(key) else { return };
        let peer = connection.pdc.peer;
        let slot = key.index as usize;
        self.last_psns.resize(self.last_psns.len().max(slot + 1), Psn(0));
        self.last_psns[slot] = connection.pdc.next_psn();
        if let Some(context) = self.contexts.get_mut(connection.context) {
            context.forget(&connection.pdc);
            context.users -= 1;
            if context.users == 0 {
                self.by_peer.remove(&(context.peer, context.class));
                self.contexts.remove(connection.context);
            } else if context.trying == Some(key) {
                // It will not: the next one has to.
                context.trying = None;
                self.unblock(connection.context);
            }
        }
        self.events.emit(now, Event::PdcClosed { peer, pdc: connection.pdc.id });
        self.completions.push_back(Completion::Closed { id: ConnectionId(key), peer, result });
    }

    #[cold]
    fn ignore(&mut self, now: Time, packet: &Packet, why: &'static str) {
        self.events.emit(now, Event::Ignored { peer: packet.net.src, why });
    }
}

/// A Start_PSN drawn by `random`. It has to be at least 2¹⁶ from the last one used; with twice that, so are
/// its neighbours. And it has to lie outside what the target remembers of the last PDC, 2³⁰ PSNs at most.
fn far_from(last: Psn, random: u32) -> Psn {
    const APART: u32 = 1 << 17;
    const REMEMBERED: u32 = 1 << 30;
    last.plus(APART + random % (u32::MAX - REMEMBERED - 2 * APART))
}

/// Bytes that `payload` bytes count for in windows and credit when cut into packets.
fn wire_size(config: &FepConfig, payload: u32) -> u64 {
    // Most messages are one packet, and a division takes longer than all else here.
    let packets = if payload <= config.mtu { 1 } else { u64::from(payload.div_ceil(config.mtu)) };
    u64::from(payload) + packets * u64::from(config.overhead)
}
