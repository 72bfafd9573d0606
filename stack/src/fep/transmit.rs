//! The send scheduler: connections take turns, one packet each.

use weft_cc::{Span, Time};

use super::FepConfig;
use super::connection::{Connection, Standing};
use super::context::{Asking, Context, Gate};
use super::core::{Core, control_packet};
use super::initiator::{Initiator, count_rivals};
use super::liveness::is_stuck;
use super::target::Target;
use super::timers::TimerKey;
use crate::buffer::Buffer;
use crate::event::Event;
use crate::packet::{Class, Packet, Payload};
use crate::pdc::{PacketKind, PdcConfig, Probes, TxState};
use crate::region::RegionSlice;
use crate::ses::{Segment, SendMessage};
use crate::spray::Entropy;
use crate::table::{Key, Table};
use crate::wire::pds::{Control, ControlKind, NextHeader, PdcId, Pds, Psn, Request, VendorFlags};
use crate::wire::ses::{Ses, StandardRequest};

/// A packet to put on the wire.
#[derive(Clone, Copy, Debug)]
pub struct Transmit {
    /// The packet's headers.
    pub packet: Packet,
    /// Its payload; ask [`Fep::payload`](super::Fep::payload) for the bytes before the next call that takes `&mut self`.
    pub payload: PayloadRef,
}

/// Reference to a packet's payload.
#[derive(Clone, Copy, Debug)]
pub struct PayloadRef {
    source: Source,
    len: u32,
}

/// Where the payload of a packet lies.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// It has none.
    Nothing,
    /// In the buffer of a message, at this offset.
    Message { send: Key, offset: u32 },
    /// Where the response says that is stored for this PSN of a PDC that a peer has opened.
    Response { pdc: PdcId, psn: Psn },
}

impl PayloadRef {
    pub(super) const NONE: PayloadRef = PayloadRef { source: Source::Nothing, len: 0 };

    /// The `len` bytes of the response that is stored for packet `psn` of the target's PDC `pdc`.
    pub(super) fn of_response(pdc: PdcId, psn: Psn, len: u32) -> PayloadRef {
        PayloadRef { source: Source::Response { pdc, psn }, len }
    }

    #[inline]
    pub(super) fn resolve<'a>(self, sends: &'a Table<SendMessage>, target: &'a Target) -> Payload<'a> {
        match self.source {
            Source::Message { send, offset } => match sends.get(send) {
                Some(message) => message.buffer.payload(offset, self.len),
                None => Payload::EMPTY,
            },
            Source::Response { pdc, psn } => match target.response_data(pdc, psn) {
                Some((buffer, offset)) => buffer.payload(offset, self.len),
                None => Payload::EMPTY,
            },
            Source::Nothing => Payload::EMPTY,
        }
    }

    /// A shared reference to the same bytes, if their memory can be shared.
    #[inline]
    pub(super) fn share(self, sends: &Table<SendMessage>, target: &Target) -> Option<RegionSlice> {
        let (buffer, offset) = match self.source {
            Source::Message { send, offset } => (&sends.get(send)?.buffer, offset),
            Source::Response { pdc, psn } => target.response_data(pdc, psn)?,
            Source::Nothing => return None,
        };
        match buffer {
            Buffer::Region(slice) => Some(slice.part(offset, self.len)),
            Buffer::Heap(_) | Buffer::Virtual(_) | Buffer::Bytes(_) | Buffer::BytesMut(_) => None,
        }
    }

    /// Length of the payload, bytes.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether the payload is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// The next packet that a connection has to send.
enum Next {
    Data(Data),
    Close,
    /// Nothing until an acknowledgement or a timer changes that.
    Nothing,
}

/// A packet of a message or a read that could be sent.
#[derive(Clone, Copy)]
struct Data {
    /// The message, as numbered by the endpoint.
    send: u32,
    segment: Segment,
    /// Whether it asks for the segment, instead of carrying it.
    is_read: bool,
    /// The PSN of its first transmission, if it was sent before.
    again: Option<Psn>,
}

impl Initiator {
    /// Writes the next packet of a connection that may send to `packet`.
    pub(super) fn poll_transmit(
        &mut self,
        core: &mut Core,
        now: Time,
        packet: &mut Packet,
    ) -> Option<PayloadRef> {
        while let Some(key) = self.ready.pop_front() {
            let payload = self.send_from(core, now, key, packet);
            if payload.is_some() {
                return payload;
            }
        }
        None
    }

    /// Sends a packet of connection `key`, which has just been taken from the queue, if its own window and its context
    /// permit; queues the connection again if it has more to send.
    // Every packet takes this path, so connection, context and message are looked up only once.
    #[inline]
    fn send_from(&mut self, core: &mut Core, now: Time, key: Key, packet: &mut Packet) -> Option<PayloadRef> {
        let connection = self.connections.get_mut(key)?;
        let context_key = connection.context;
        connection.standing = Standing::Idle;
        let data = match choose(now, connection, &self.sends, core.config.mtu) {
            Next::Data(data) => data,
            other => return self.send_no_data(core, now, key, &other, packet),
        };
        let context = self.contexts.get_mut(context_key)?;
        // A read counts for the bytes that it asks for: they will pass the bottleneck between the target and here, and the
        // window limits how many are on that way.
        let bytes = data.segment.len + core.config.overhead;
        let gate = context.gate(now, u64::from(bytes));
        if gate != Gate::Open {
            self.block(core, now, key, gate);
            return None;
        }
        if connection.pdc.is_unheard() && is_stuck(&core.config, now, connection, context) {
            self.check_life(core, now, key);
            return None;
        }
        let (send, message) = self.sends.at_mut(data.send)?;
        let overhead = core.config.overhead;
        let (psn, entropy) = depart(now, connection, context, message, &data, overhead);
        let ends = connection.queue.is_empty() && !connection.pdc.has_lost();
        let stops = ends || context.is_spent(u64::from(bytes)) || !connection.pdc.may_send_new();
        let asks = context.asks == Asking::Each || connection.pause.is_some();
        // The answer to a read comes at once whatever its request says.
        let ack_request = data.again.is_some() || stops || asks || data.is_read;
        if ack_request {
            context.on_ask(connection.pdc.id, psn);
        }
        let Segment { offset, len } = data.segment;
        let rivals = if context.needs_credit() { count_rivals(&mut self.stocked, context) } else { 0 };
        *packet = Packet {
            net: core.network(connection.pdc.peer, entropy, Class::Data),
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
                ..message.request(connection.source, offset, len)
            }),
        };
        let source = match data.is_read {
            true => {
                ask_instead(packet, connection, message, data.segment);
                Source::Nothing
            }
            false => Source::Message { send, offset },
        };
        let payload = PayloadRef { source, len: packet.payload_len };
        let (pdc, retransmission) = (connection.pdc.id, data.again.is_some());
        core.events.emit(now, Event::DataSent { pdc, psn, len: payload.len, entropy, retransmission });
        let PdcConfig { infer_loss, rto_init, .. } = core.zone(context.zone).pdc;
        if infer_loss && connection.probe_at.is_none() {
            schedule_probe(core, now, key, connection, context);
        }
        if connection.pause.is_some() {
            poll_busy_target(&core.config, now, connection, context);
        }
        connection.wake(&mut core.wheel, key, now + rto_init);
        connection.make_ready(&mut self.ready, key);
        if context.trying == Some(key) {
            self.end_try(context_key, key);
        }
        Some(payload)
    }

    /// [`Initiator::send_from`] for a connection without data to send.
    #[inline(never)]
    fn send_no_data(
        &mut self,
        core: &mut Core,
        now: Time,
        key: Key,
        next: &Next,
        packet: &mut Packet,
    ) -> Option<PayloadRef> {
        let connection = self.connections.get_mut(key)?;
        let context_key = connection.context;
        let mut payload = None;
        if matches!(next, Next::Close) {
            if connection.pdc.is_unused() {
                // All its messages were cancelled, and the target has received no packet of it.
                self.remove_connection(core, now, key, Ok(()));
            } else {
                if let Some(context) = self.contexts.get_mut(context_key) {
                    payload = send_close(core, now, key, connection, context, packet);
                }
                connection.make_ready(&mut self.ready, key);
            }
        }
        self.end_try(context_key, key);
        payload
    }

    /// If connection `key` was trying the gate of `context` and passed it, the next waiting connection tries at once.
    /// The order is the same as if all waiting connections had been queued together.
    fn end_try(&mut self, context_key: Key, key: Key) {
        let Some(context) = self.contexts.get_mut(context_key).filter(|c| c.trying == Some(key)) else {
            return;
        };
        context.trying = None;
        if context.blocked.is_empty() {
            return;
        }
        let stopped = self.connections.get(key).is_some_and(|c| c.standing == Standing::Blocked);
        if !stopped && let Some(next) = self.let_try(context_key) {
            self.ready.push_front(next);
        }
    }

    /// Parks a connection until its context's gate opens.
    #[inline(never)]
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
            return self.ready.push_front(key);
        }
        connection.standing = Standing::Blocked;
        if connection.pdc.is_idle() {
            connection.take_turn(now, context.progress_at);
        }
        // A connection that tried in vain keeps its place.
        match context.trying == Some(key) {
            true => context.blocked.push_front(key),
            false => context.blocked.push_back(key),
        }
        match gate {
            Gate::Until(at) if context.timer.is_none_or(|timer| at.is_before(timer)) => {
                context.timer = Some(at);
                core.wheel.insert(at, TimerKey::Context(context_key));
            }
            Gate::Credit if connection.ask_at.is_none() => {
                let ask_at = now + core.zone(context.zone).pdc.rto_init;
                connection.ask_at = Some(ask_at);
                connection.wake(&mut core.wheel, key, ask_at);
            }
            _ => {}
        }
        context.trying.take_if(|trying| *trying == key);
    }
}

/// Writes the CLOSE_CMD of `connection` to `packet`: a new one, or a retransmission of a lost one.
fn send_close(
    core: &mut Core,
    now: Time,
    key: Key,
    connection: &mut Connection,
    context: &mut Context,
    packet: &mut Packet,
) -> Option<PayloadRef> {
    let entropy = context.next_entropy(now, false);
    let retx = connection.pdc.has_lost();
    if connection.pdc.is_idle() {
        connection.take_turn(now, context.progress_at);
    }
    context.await_answer(now);
    let psn = if retx {
        let psn = connection.pdc.peek_lost()?.0;
        connection.pdc.resend(now, entropy);
        psn
    } else {
        connection.pdc.state = TxState::Closing;
        connection.pdc.send_new(now, PacketKind::Close, 0, entropy)
    };
    let kind = ControlKind::CloseCommand;
    let control = Control { kind, retx, ack_request: true, ..blank_control(connection, psn) };
    let peer = connection.pdc.peer;
    *packet = control_packet(core.network(peer, entropy, Class::Control), control);
    core.note_control(now, peer, &control);
    let rto = core.zone(context.zone).pdc.rto_init;
    connection.wake(&mut core.wheel, key, now + rto);
    Some(PayloadRef::NONE)
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
        let net = core.network(peer, entropy, Class::Data);
        core.push_control(now, control_packet(net, control));
    }
    context.await_answer(now);
}

/// Turns the packet that would carry `segment` into the one that asks for it.
#[inline(never)]
fn ask_instead(packet: &mut Packet, connection: &Connection, message: &SendMessage, segment: Segment) {
    packet.payload_len = 0;
    if let Some(request) = message.read_request(connection.source, segment.offset, segment.len) {
        packet.ses = Ses::Standard(StandardRequest { pid_on_fep: connection.process, ..request });
    }
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

/// The next packet that `connection` would send if its context permitted.
#[inline]
fn choose(now: Time, connection: &Connection, sends: &Table<SendMessage>, mtu: u32) -> Next {
    if connection.is_paused(now) {
        return Next::Nothing;
    }
    if connection.pdc.has_lost() && !connection.polls_with_new_data() {
        return choose_lost(connection);
    }
    if connection.wants_close() {
        return if connection.pdc.may_send_new() { Next::Close } else { Next::Nothing };
    }
    let Some(&send) = connection.queue.front() else { return Next::Nothing };
    let Some(message) = sends.get(send) else { return Next::Nothing };
    let Some(segment) = message.peek(mtu) else { return Next::Nothing };
    if !connection.pdc.may_send_new() {
        return Next::Nothing;
    }
    Next::Data(Data { send: send.index, segment, is_read: message.is_read(), again: None })
}

/// The next packet to retransmit.
#[cold]
fn choose_lost(connection: &Connection) -> Next {
    if connection.pdc.is_draining() {
        return Next::Nothing;
    }
    match connection.pdc.peek_lost().map(|(psn, record)| (psn, record.kind())) {
        Some((psn, PacketKind::Data { send, offset, len })) => {
            Next::Data(Data { send, segment: Segment { offset, len }, is_read: false, again: Some(psn) })
        }
        Some((psn, PacketKind::Read { send, offset, len })) => {
            Next::Data(Data { send, segment: Segment { offset, len }, is_read: true, again: Some(psn) })
        }
        Some((_, PacketKind::Close)) => Next::Close,
        None => Next::Nothing,
    }
}

/// Records in connection, context and message that a packet is sent now, which counts for `overhead` bytes beyond its
/// segment. Returns its PSN and its entropy.
#[inline]
fn depart(
    now: Time,
    connection: &mut Connection,
    context: &mut Context,
    message: &mut SendMessage,
    data: &Data,
    overhead: u32,
) -> (Psn, Entropy) {
    let bytes = data.segment.len + overhead;
    // Credit is the target's, for what goes there.
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
                true => PacketKind::Read { send: data.send, offset, len },
                false => PacketKind::Data { send: data.send, offset, len },
            };
            let psn = context.track(&mut connection.pdc, |pdc| pdc.send_new(now, kind, bytes, entropy));
            context.backlog = context.backlog.saturating_sub(carried);
            message.cut(data.segment);
            if message.is_cut() {
                connection.queue.pop_front();
            }
            psn
        }
    };
    context.on_send(now, u64::from(bytes), carried, data.again.is_some());
    if context.needs_credit() {
        connection.ask_at = None;
    }
    (psn, entropy)
}

/// CLEAR_PSN − PSN, which fits in 16 bits because MP_RANGE is at most 32,640.
fn clear_offset(connection: &Connection, psn: Psn) -> i16 {
    connection.pdc.clear_psn().distance(psn).clamp(-32_768, 32_767) as i16
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
