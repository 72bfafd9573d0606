//! The send scheduler: processes take turns, and the connections of each, one packet a turn.

use weft_cc::{Span, Time};

use super::FepConfig;
use super::connection::{Connection, Standing, Unasked};
use super::context::{Asking, Context, Gate};
use super::core::{Core, control_packet};
use super::initiator::{Initiator, count_rivals};
use super::liveness::is_overdue;
use super::payload::PayloadRef;
use super::timers::TimerKey;
use super::turns::Turns;
use crate::event::Event;
use crate::packet::{Class, Network, Packet};
use crate::pdc::{PacketKind, PdcConfig, Probes, TxState};
use crate::ses::{Operation, Segment, SendMessage};
use crate::spray::Entropy;
use crate::table::{Key, Table};
use crate::wire::pds::{Control, ControlKind, NextHeader, Pds, Psn, Request, VendorFlags};
use crate::wire::ses::{Ses, StandardRequest};

/// The next packet that a connection has to send.
enum Next<'a> {
    Data(Data, &'a mut SendMessage),
    Close,
    /// Nothing until an acknowledgement or a timer changes that.
    Nothing,
}

/// A packet of a message or a read that could be sent.
#[derive(Clone, Copy)]
struct Data {
    /// The message.
    send: Key,
    segment: Segment,
    /// Whether it accesses the peer's memory.
    is_access: bool,
    /// Whether the packet asks for the segment, instead of carrying it.
    is_read: bool,
    /// The PSN of its first transmission, if it was sent before.
    again: Option<Psn>,
}

/// A connection that may send a packet, and what else of its initiator the packet needs: each looked up once.
struct Sender<'a> {
    key: Key,
    connection: &'a mut Connection,
    context: &'a mut Context,
    message: &'a mut SendMessage,
    /// [`Initiator::ready`].
    ready: &'a Turns,
    /// [`Initiator::stocked`].
    stocked: &'a mut u32,
}

/// Why a packet cannot leave now.
enum Held {
    /// Its context's gate is closed.
    Gate(Gate),
    /// The connection has been without an answer for too long.
    Overdue,
}

impl Initiator {
    /// Writes the next packet of a connection that may send to `packet`, and where its payload is to `payload`. Returns whether
    /// there is one.
    // Nearly all packets are parts of messages that are sent for the first time. They have their own copy of `send_data`,
    // without the branches of all others, and their connection need not leave the queue if no other waits.
    pub(super) fn poll_transmit(
        &mut self,
        core: &mut Core,
        now: Time,
        packet: &mut Packet,
        payload: &mut PayloadRef,
    ) -> bool {
        while let Some(key) = self.next(core, now) {
            let Initiator { ready, connections, contexts, sends, stocked, .. } = self;
            if let Some(connection) = connections.get_mut(key)
                && let Some((part, message)) = next_part(connection, sends, core.config.mtu)
                && let Some(context) = contexts.get_mut(connection.context)
            {
                let sender = Sender { key, connection, context, message, ready, stocked };
                match send_data(core, now, sender, part, packet, payload) {
                    Ok(()) => {
                        let waits = end_turn(&core.config, now, ready, key, connection, context);
                        if waits || context.trying == Some(key) {
                            let context = connection.context;
                            self.end_try(context, key, true);
                        }
                        return true;
                    }
                    Err(held) => {
                        connection.standing = Standing::Idle;
                        ready.pop_front();
                        self.hold_back(core, now, key, held);
                    }
                }
                continue;
            }
            self.ready.pop_front();
            if self.send_from(core, now, key, packet, payload) {
                return true;
            }
        }
        false
    }

    /// The connection whose turn it is at the link.
    #[inline(always)]
    fn next(&mut self, core: &mut Core, now: Time) -> Option<Key> {
        match self.ready.is_divided() {
            true => self.next_of_several(core, now),
            false => self.ready.front(),
        }
    }

    /// [`Initiator::next`] if there are several processes. A connection that has just got something to send gives its
    /// turn up if it has to wait for a turn at the gate.
    #[inline(never)]
    fn next_of_several(&mut self, core: &mut Core, now: Time) -> Option<Key> {
        loop {
            let key = self.ready.front()?;
            if !self.waits_behind_others(core, now, key) {
                return Some(key);
            }
        }
    }

    /// Connection `key`, whose turn it is at the link, may have been idle until now. If it has a new message, and its window is
    /// one of several processes, and others wait for it, the connection waits behind those of its process, whether there is
    /// room now or not: otherwise a process could have more than its part of the window with single packets of many
    /// connections, for which the others had to wait. Returns whether it does.
    fn waits_behind_others(&mut self, core: &mut Core, now: Time, key: Key) -> bool {
        let Initiator { ready, connections, contexts, .. } = self;
        let Some(connection) = connections.get_mut(key) else { return false };
        if connection.standing != Standing::New {
            return false;
        }
        connection.standing = Standing::Ready;
        let context_key = connection.context;
        let Some(context) = contexts.get_mut(context_key) else { return false };
        let is_shared = context.has_blocked() && context.blocked.is_divided();
        // A packet that is sent again has had its turn at the gate. If the gate is closed, the connection finds this
        // out itself when it tries to send.
        let has_new = connection.sends_soon() && !connection.pdc.has_lost();
        if !is_shared || !has_new || !context.is_open(&core.config, now) {
            return false;
        }
        ready.pop_front();
        connection.standing = Standing::Blocked;
        if connection.pdc.is_idle() {
            connection.take_turn(now, context.progress_at);
        }
        context.blocked.push_back(key, connection.source);
        self.unblock(&core.config, context_key);
        true
    }

    /// Sends a packet of connection `key`, which has just been taken from the queue, if its own window and its context
    /// permit; queues the connection again if it has more to send. Returns whether it has sent one.
    #[inline(never)]
    fn send_from(
        &mut self,
        core: &mut Core,
        now: Time,
        key: Key,
        packet: &mut Packet,
        payload: &mut PayloadRef,
    ) -> bool {
        let Initiator { ready, connections, contexts, sends, stocked, .. } = self;
        let Some(connection) = connections.get_mut(key) else { return false };
        let context_key = connection.context;
        connection.standing = Standing::Idle;
        let (data, message) = match choose(now, connection, sends, core.config.mtu) {
            Next::Data(data, message) => (data, message),
            Next::Close => return self.send_no_data(core, now, key, true, packet, payload),
            Next::Nothing => return self.send_no_data(core, now, key, false, packet, payload),
        };
        let Some(context) = contexts.get_mut(context_key) else { return false };
        let sender = Sender { key, connection, context, message, ready, stocked };
        match send_data(core, now, sender, data, packet, payload) {
            Ok(()) => {
                let waits = ready.is_divided()
                    && wait_again(&core.config, now, ready.is_empty(), key, connection, context);
                if !waits {
                    connection.stay_ready(ready, key);
                }
                ready.pass(connection.source);
                if waits || context.trying == Some(key) {
                    self.end_try(context_key, key, true);
                }
                true
            }
            Err(held) => {
                self.hold_back(core, now, key, held);
                false
            }
        }
    }

    /// Does what a connection has to do instead of sending.
    #[inline(never)]
    fn hold_back(&mut self, core: &mut Core, now: Time, key: Key, held: Held) {
        match held {
            Held::Gate(gate) => self.block(core, now, key, gate),
            Held::Overdue => self.wait_for_end(core, now, key),
        }
    }

    /// Connection `key` is overdue. Its timer gives it up, since only so many may end in a turn; those behind it wait for that.
    #[cold]
    fn wait_for_end(&mut self, core: &mut Core, now: Time, key: Key) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.standing = Standing::Overdue;
        connection.wake(&mut core.wheel, key, now);
    }

    /// The peer of connection `key`, which was overdue, has been heard before its timer: it sends again.
    #[cold]
    pub(super) fn go_on(&mut self, key: Key) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.standing = Standing::Idle;
        // It has had its turn at the gate, and may still hold it: if it queued there again as a new one does, it would wait behind
        // those that wait for it to try.
        connection.stay_ready(&mut self.ready, key);
        if connection.standing == Standing::Idle {
            // Its messages were cancelled, so it has nothing to send.
            let context = connection.context;
            self.end_try(context, key, false);
        }
    }

    /// [`Initiator::send_from`] for a connection without data to send.
    #[inline(never)]
    fn send_no_data(
        &mut self,
        core: &mut Core,
        now: Time,
        key: Key,
        closes: bool,
        packet: &mut Packet,
        payload: &mut PayloadRef,
    ) -> bool {
        let Some(connection) = self.connections.get_mut(key) else { return false };
        let context_key = connection.context;
        let mut is_sent = false;
        if closes {
            if connection.pdc.is_unused() {
                // All its messages were cancelled, and the target has received no packet of it.
                self.remove_connection(core, now, key, Ok(()));
            } else {
                if let Some(context) = self.contexts.get_mut(context_key)
                    && send_close(core, now, key, connection, context, packet)
                {
                    *payload = PayloadRef::NONE;
                    is_sent = true;
                }
                connection.make_ready(&mut self.ready, key);
                self.ready.pass(connection.source);
            }
        }
        self.end_try(context_key, key, false);
        is_sent
    }

    /// If connection `key` was trying the gate of `context` and passed it, the next waiting connection tries at once.
    /// The order is the same as if all waiting connections of a process had been queued together. If the connection
    /// `has_sent` what the gate is there for, its process has used its turn at the gate, and the next one tries also if
    /// none was trying.
    fn end_try(&mut self, context_key: Key, key: Key, has_sent: bool) {
        let Some(context) = self.contexts.get_mut(context_key) else { return };
        if context.trying.is_some_and(|trying| trying != key) || context.trying.is_none() && !has_sent {
            return;
        }
        context.trying = None;
        if has_sent && let Some(connection) = self.connections.get(key) {
            context.blocked.pass(connection.source);
        }
        if let Some((next, process)) = self.let_try(context_key) {
            self.ready.push_next(next, process);
        }
    }

    /// Parks a connection until its context's gate opens.
    #[inline]
    fn block(&mut self, core: &mut Core, now: Time, key: Key, gate: Gate) {
        let Some(context_key) = self.connections.get(key).map(|connection| connection.context) else {
            return;
        };
        let asks = gate == Gate::Window && self.must_ask(&core.config, context_key);
        let Some(connection) = self.connections.get_mut(key) else { return };
        let Some(context) = self.contexts.get_mut(context_key) else { return };
        if asks {
            context.asks = Asking::Next;
            connection.standing = Standing::Ready;
            return self.ready.push_front(key, connection.source);
        }
        connection.standing = Standing::Blocked;
        if connection.pdc.is_idle() {
            connection.take_turn(now, context.progress_at);
        }
        // A connection that tried in vain keeps its place.
        match context.trying == Some(key) {
            true => context.blocked.push_front(key, connection.source),
            false => context.blocked.push_back(key, connection.source),
        }
        match gate {
            Gate::Until(at) if context.timer.is_none_or(|timer| at.is_before(timer)) => {
                context.timer = Some(at);
                core.wheel.insert(at, TimerKey::Context(context_key));
            }
            Gate::Credit if connection.ask_at.is_none() => {
                let ask_at = now + connection.look_wait(core.zone(context.zone).pdc.rto_init);
                connection.ask_at = Some(ask_at);
                connection.wake(&mut core.wheel, key, ask_at);
            }
            _ => {}
        }
        context.trying.take_if(|trying| *trying == key);
    }
}

/// Writes the packet `data` of `sender` to `packet`, and where its payload is to `payload`, if its own window and its context
/// permit.
#[inline(always)]
fn send_data(
    core: &mut Core,
    now: Time,
    sender: Sender<'_>,
    data: Data,
    packet: &mut Packet,
    payload: &mut PayloadRef,
) -> Result<(), Held> {
    let Sender { key, connection, context, message, ready, stocked } = sender;
    // A read counts for the bytes that it asks for: they will pass the bottleneck between the target and here, and the
    // window limits how many are on that way.
    let overhead = core.config.overhead;
    let bytes = data.segment.len + overhead;
    let gate = context.gate(&core.config, now, u64::from(bytes));
    if gate != Gate::Open {
        return Err(Held::Gate(gate));
    }
    // A target that has acknowledged nothing may have forgotten the PDC by now. A connection that has waited for the gate may be overdue
    // although its timer has not been handled yet.
    if (connection.pdc.is_unheard() || context.trying == Some(key))
        && is_overdue(&core.config, now, connection, context)
    {
        return Err(Held::Overdue);
    }
    let (psn, entropy) = depart(now, connection, context, message, &data, overhead);
    let ends = connection.queue.is_empty() && !connection.pdc.has_lost();
    let stops = ends || context.is_spent(u64::from(bytes)) || !connection.pdc.may_send_new();
    let asks = context.asks == Asking::Each || connection.pause.is_some();
    // The answer to a read comes at once whatever its request says.
    let mut ack_request = data.again.is_some() || stops || asks || data.is_read;
    if context.users > 1 {
        ack_request = asks_for_its_share(core, connection, context, ready, bytes, ack_request);
    }
    if ack_request {
        context.on_ask(connection.pdc.id, psn);
    }
    let Segment { offset, len } = data.segment;
    let rivals = if context.needs_credit() { count_rivals(stocked, context) } else { 0 };
    *packet = Packet {
        net: data_network(core, connection, entropy),
        payload_len: len,
        pds: Pds::Request(Request {
            mode: connection.pdc.mode,
            next: NextHeader::RequestStandard,
            retx: data.again.is_some(),
            ack_request,
            clear_psn_offset: clear_offset(connection, psn),
            psn,
            spdcid: connection.pdc.id,
            destination: connection.pdc.destination(psn),
            vendor: VendorFlags::NONE,
            cc: context.request_cc(connection.pdc.lost_bytes(), rivals),
        }),
        ses: Ses::Standard(StandardRequest {
            pid_on_fep: connection.process,
            job_id: if core.has_jobs { connection.job } else { 0 },
            ..message.request(connection.source, offset, len)
        }),
    };
    if connection.pdc.flags != VendorFlags::NONE {
        set_flags(packet, connection.pdc.flags);
    }
    *payload = PayloadRef::of_message(data.send, offset, len);
    if data.is_access {
        access_instead(packet, payload, connection, message, &data);
    }
    let (pdc, retransmission) = (connection.pdc.id, data.again.is_some());
    core.events.emit(now, Event::DataSent { pdc, psn, len: payload.len(), entropy, retransmission });
    let PdcConfig { infer_loss, rto_init, .. } = core.zone(context.zone).pdc;
    if infer_loss && connection.probe_at.is_none() {
        schedule_probe(core, now, key, connection, context);
    }
    if connection.pause.is_some() {
        poll_busy_target(&core.config, now, connection, context);
    }
    connection.wake(&mut core.wheel, key, now + rto_init);
    Ok(())
}

/// Whether a packet of `bytes`, which has just left on a connection that shares its context with others, asks for an
/// acknowledgement: if it `asks` anyway, or if it and the packets before it that did not ask are more than the share of
/// one connection. `ready` are the connections that wait for the link.
#[inline(never)]
fn asks_for_its_share(
    core: &Core,
    connection: &mut Connection,
    context: &Context,
    ready: &Turns,
    bytes: u32,
    asks: bool,
) -> bool {
    if asks {
        connection.unasked = Unasked::NONE;
        return true;
    }
    let unasked = connection.unasked.plus(bytes);
    let sharing = context.sharing(ready.len());
    let exceeds = sharing > 1 && {
        let limit = context.window().min(core.zone(context.zone).cc.params().network_bdp());
        Context::exceeds_share(unasked.bytes(), limit, sharing) || context.ends_credit_within(sharing - 1)
    };
    connection.unasked = if exceeds { Unasked::NONE } else { unasked };
    exceeds
}

/// Connection `key`, whose turn it was, has sent a packet: it waits for its next turn if it has more to send, or leaves.
/// Returns whether it waits for the gate.
#[inline]
fn end_turn(
    config: &FepConfig,
    now: Time,
    ready: &mut Turns,
    key: Key,
    connection: &mut Connection,
    context: &mut Context,
) -> bool {
    let waits = ready.is_divided() && wait_again(config, now, ready.len() == 1, key, connection, context);
    let stays = !waits && connection.has_work();
    if !waits {
        connection.standing = if stays { Standing::Ready } else { Standing::Idle };
    }
    ready.end_turn(connection.source, stays);
    waits
}

/// Where processes share a window, connection `key`, which has just sent a packet, waits for the gate together with those
/// that wait for it already: otherwise their processes could not tell whose turn it is. But if the gate is open, and other
/// connections wait for the link (it `is_alone` otherwise), what they share is the link: the connection stays there, and those
/// at the gate come to the link one by one. Returns whether it waits for the gate.
#[inline(never)]
fn wait_again(
    config: &FepConfig,
    now: Time,
    is_alone: bool,
    key: Key,
    connection: &mut Connection,
    context: &mut Context,
) -> bool {
    let waits = context.has_blocked()
        && context.blocked.is_divided()
        && connection.has_work()
        && (is_alone || !context.is_open(config, now));
    if waits {
        connection.standing = Standing::Blocked;
        context.blocked.push_back(key, connection.source);
    }
    waits
}

/// Writes the CLOSE_CMD of `connection` to `packet`: a new one, or a retransmission of a lost one. Returns whether
/// it has written one.
fn send_close(
    core: &mut Core,
    now: Time,
    key: Key,
    connection: &mut Connection,
    context: &mut Context,
    packet: &mut Packet,
) -> bool {
    let entropy = context.next_entropy(now, false);
    let retx = connection.pdc.has_lost();
    if connection.pdc.is_idle() {
        connection.take_turn(now, context.progress_at);
    }
    context.await_answer(now);
    let psn = if retx {
        let Some((psn, ..)) = connection.pdc.peek_lost() else { return false };
        connection.pdc.resend(now, entropy);
        psn
    } else {
        connection.pdc.state = TxState::Closing;
        // All messages of the connection have arrived, so it is patient no longer: it does not wait without end for a
        // target that ignores the command. The target has the usual time to answer, however long the connection has
        // waited for something else.
        if std::mem::take(&mut connection.patient) {
            connection.progress_at = now;
        }
        connection.pdc.send_new(now, PacketKind::Close, 0, entropy)
    };
    let kind = ControlKind::CloseCommand;
    let control = Control { kind, retx, ack_request: true, ..blank_control(connection, psn) };
    let peer = connection.pdc.peer;
    *packet = control_packet(core.network(peer, entropy, Class::Control), control);
    core.note_control(now, peer, &control);
    let rto = core.zone(context.zone).pdc.rto_init;
    connection.wake(&mut core.wheel, key, now + rto);
    true
}

/// Queues a control packet of `connection`.
pub(super) fn send_control(
    core: &mut Core,
    now: Time,
    connection: &Connection,
    context: &mut Context,
    kind: ControlKind,
    payload: u32,
    opaque: u16,
) {
    let entropy = context.next_entropy(now, false);
    let psn = match kind {
        // All packets have arrived: ask about the last one.
        ControlKind::AckRequest => connection.pdc.next_psn().minus(1),
        _ => connection.pdc.first_unacknowledged(),
    };
    let control = Control { kind, payload, probe_opaque: opaque, ..blank_control(connection, psn) };
    core.send_control(now, connection.pdc.peer, entropy, control);
}

/// Asks the target which packets have arrived, in the class of data and on the path of the packet that each probe asks
/// about: an answer tells no more than that of a packet sent now. If that brings nothing, other paths are tried.
pub(super) fn send_probes(
    core: &mut Core,
    now: Time,
    connection: &Connection,
    context: &mut Context,
    probes: &Probes,
) {
    for (base, opaque) in probes.iter() {
        let entropy = match connection.pdc.unanswered(base) {
            Some(record) if connection.pdc.probes_in_vain() <= 1 => record.entropy,
            _ => connection.fixed_entropy.unwrap_or_else(|| context.next_entropy(now, false)),
        };
        let kind = ControlKind::Probe;
        let control =
            Control { kind, payload: base.0, probe_opaque: opaque, ..blank_control(connection, base) };
        let peer = connection.pdc.peer;
        core.note_control(now, peer, &control);
        let net = data_network(core, connection, entropy);
        core.push_control(now, control_packet(net, control));
    }
    context.await_answer(now);
}

/// The network header of a packet of `connection` that takes the way of its data.
#[inline(always)]
fn data_network(core: &Core, connection: &Connection, entropy: Entropy) -> Network {
    let priority = connection.priority;
    Network { priority, ..core.network(connection.pdc.peer, entropy, Class::Data) }
}

/// Sets the flags of a request that are weft's own. Few connections have any, so the others write the headers with
/// constants.
#[cold]
fn set_flags(packet: &mut Packet, flags: VendorFlags) {
    if let Pds::Request(request) = &mut packet.pds {
        request.vendor = flags;
    }
}

/// Turns the packet of a message into the packet of an access, with its payload.
#[inline(never)]
fn access_instead(
    packet: &mut Packet,
    payload: &mut PayloadRef,
    connection: &Connection,
    message: &SendMessage,
    data: &Data,
) {
    let Segment { offset, len } = data.segment;
    if let Some(request) = message.access_request(connection.source, offset, len) {
        packet.ses = Ses::Standard(StandardRequest {
            pid_on_fep: connection.process,
            job_id: connection.job,
            ..request
        });
    }
    *payload = match message.operation {
        Operation::Read { .. } => PayloadRef::NONE,
        Operation::Atomic { carried, .. } => PayloadRef::of_message(data.send, offset, carried.into()),
        Operation::Write { .. } | Operation::Send { .. } => PayloadRef::of_message(data.send, offset, len),
    };
    packet.payload_len = payload.len();
}

/// A packet has just left, and nothing else will ask about it.
#[inline(never)]
fn schedule_probe(core: &mut Core, now: Time, key: Key, connection: &mut Connection, context: &Context) {
    let at = now + context.rtt.probe_wait();
    connection.probe_at = Some(at);
    connection.wake(&mut core.wheel, key, at);
}

/// A packet has just left although the target is busy: no other leaves before its answer or the next poll.
#[cold]
fn poll_busy_target(config: &FepConfig, now: Time, connection: &mut Connection, context: &Context) {
    if let Some(busy) = connection.pause.as_deref_mut() {
        let messages = connection.pdc.lost_messages();
        busy.poll(now, poll_interval(config, context, busy.count, messages));
    }
}

/// The longest time between two polls of a busy target with the same message, however long it is waited for.
const LONGEST_POLL: Span = Span::from_ms(1_000);

/// How long to wait after a number of `polls` that a busy target has refused: RTO · 2^polls, at most a sixteenth of
/// the time after which it is given up, and [`LONGEST_POLL`]. In about that time each of the `messages` that wait has its
/// turn, unless RTO is longer than its share.
pub(super) fn poll_interval(config: &FepConfig, context: &Context, polls: u32, messages: u32) -> Span {
    let rto = context.rto(&config.zones.get(context.zone).pdc);
    let sixteenth = config.busy_timeout.bound().map(|bound| Span::from_ps(bound.as_ps() / 16));
    let longest = sixteenth.map_or(LONGEST_POLL, |sixteenth| sixteenth.min(LONGEST_POLL));
    let share = Span::from_ps(longest.as_ps() / u64::from(messages));
    rto.times(1 << polls.min(32)).min(share.max(rto))
}

/// Asks the target of `connection` for credit.
pub(super) fn request_credit(core: &mut Core, now: Time, connection: &Connection, context: &mut Context) {
    let ccc_id = u16::from(context.ccc_id);
    if let Some(target) = context.credit_target(connection.pdc.lost_bytes(), 0) {
        context.await_answer(now);
        send_control(core, now, connection, context, ControlKind::CreditRequest, target, ccc_id);
    }
}

/// The next part of a message that `connection` would send if its context permitted; `None` if that would be anything
/// else, or nothing.
#[inline(always)]
fn next_part<'a>(
    connection: &Connection,
    sends: &'a mut Table<SendMessage>,
    mtu: u32,
) -> Option<(Data, &'a mut SendMessage)> {
    if connection.pause.is_some() || connection.pdc.has_lost() {
        return None;
    }
    let &send = connection.queue.front()?;
    let message = sends.get_mut(send).filter(|message| !message.is_access())?;
    let segment = message.peek(mtu).filter(|_| connection.pdc.may_send_new())?;
    Some((Data { send, segment, is_access: false, is_read: false, again: None }, message))
}

/// The next packet that `connection` would send if its context permitted.
fn choose<'a>(now: Time, connection: &Connection, sends: &'a mut Table<SendMessage>, mtu: u32) -> Next<'a> {
    if connection.is_paused(now) {
        return Next::Nothing;
    }
    if connection.pdc.has_lost() && !connection.polls_with_new_data() {
        return choose_lost(connection, sends);
    }
    if connection.wants_close() {
        return if connection.pdc.may_send_new() { Next::Close } else { Next::Nothing };
    }
    let Some(&send) = connection.queue.front() else { return Next::Nothing };
    let Some(message) = sends.get_mut(send) else { return Next::Nothing };
    let Some(segment) = message.peek(mtu) else { return Next::Nothing };
    if !connection.pdc.may_send_new() {
        return Next::Nothing;
    }
    let (is_access, is_read) = (message.is_access(), message.is_read());
    Next::Data(Data { send, segment, is_access, is_read, again: None }, message)
}

/// The next packet to retransmit.
#[cold]
fn choose_lost<'a>(connection: &Connection, sends: &'a mut Table<SendMessage>) -> Next<'a> {
    if connection.pdc.is_draining() {
        return Next::Nothing;
    }
    let Some((psn, record)) = connection.pdc.peek_lost() else { return Next::Nothing };
    let (send, segment, is_read) = match record.kind() {
        PacketKind::Data { send, offset, len } => (send, Segment { offset, len }, false),
        PacketKind::Read { send, offset, len } => (send, Segment { offset, len }, true),
        PacketKind::Close => return Next::Close,
    };
    match sends.at_mut(send) {
        Some((send, message)) => {
            let is_access = message.is_access();
            Next::Data(Data { send, segment, is_access, is_read, again: Some(psn) }, message)
        }
        None => Next::Nothing,
    }
}

/// Records in connection, context and message that a packet is sent now, which counts for `overhead` bytes beyond its
/// segment. Returns its PSN and its entropy.
#[inline(always)]
fn depart(
    now: Time,
    connection: &mut Connection,
    context: &mut Context,
    message: &mut SendMessage,
    data: &Data,
    overhead: u32,
) -> (Psn, Entropy) {
    let bytes = data.segment.len + overhead;
    // Credit counts only bytes that go to the target, so not those that a read asks for.
    let carried = u64::from(if data.is_read { overhead } else { bytes });
    let entropy = match connection.fixed_entropy {
        Some(entropy) => entropy,
        None => context.next_entropy(now, data.again.is_some()),
    };
    if connection.pdc.is_idle() {
        connection.take_turn(now, context.progress_at);
    }
    let psn = match data.again {
        Some(psn) => {
            context.track(&mut connection.pdc, |pdc| pdc.resend(now, entropy));
            message.retransmissions += 1;
            psn
        }
        None => {
            let Segment { offset, len } = data.segment;
            let id = connection.next_msg_id;
            if offset == 0 {
                // Not earlier: a message that is cancelled would leave a hole in the order that its target keeps.
                message.msg_id = id;
            }
            if offset == 0 || data.is_read {
                connection.next_msg_id = id.wrapping_add(1);
            }
            let kind = match data.is_read {
                true => PacketKind::Read { send: data.send.index, offset, len },
                false => PacketKind::Data { send: data.send.index, offset, len },
            };
            let psn = context.send_new(&mut connection.pdc, now, kind, bytes, entropy);
            context.leave_backlog(connection, carried);
            message.cut(data.segment);
            if message.is_cut() {
                connection.pop_message();
            }
            psn
        }
    };
    context.on_send(now, u64::from(bytes), carried, data.again.is_some());
    if context.needs_credit() {
        connection.ask_at = None;
        connection.looks = 0;
    }
    (psn, entropy)
}

/// CLEAR_PSN − PSN of a packet beyond it, which fits in 16 bits because MP_RANGE is at most 32,640.
fn clear_offset(connection: &Connection, psn: Psn) -> i16 {
    connection.pdc.clear_psn().distance(psn).max(-32_768) as i16
}

fn blank_control(connection: &Connection, psn: Psn) -> Control {
    Control {
        kind: ControlKind::Noop,
        rod: false,
        retx: false,
        ack_request: false,
        probe_opaque: 0,
        psn,
        spdcid: connection.pdc.id,
        destination: connection.pdc.destination(psn),
        payload: 0,
    }
}
