//! The send scheduler: control packets first, then the connections in turn, a packet each.

use weft_cc::Time;

use super::connection::{Connection, CreditWait, Standing};
use super::context::{Context, Gate};
use super::timers::TimerKey;
use super::{Fep, wire_size};
use crate::buffer::Buffer;
use crate::event::Event;
use crate::packet::{Addr, Class, Network, Packet, Payload};
use crate::pdc::{PacketKind, TxState};
use crate::region::RegionSlice;
use crate::ses::{Segment, SendMessage};
use crate::spray::Entropy;
use crate::table::{Key, Table};
use crate::wire::pds::{Control, ControlKind, DeliveryMode, NextHeader, Pds, Psn, Request};
use crate::wire::ses::{Ses, StandardRequest};

/// A packet to put on the wire.
#[derive(Clone, Copy, Debug)]
pub struct Transmit {
    /// Its headers.
    pub packet: Packet,
    /// Its payload; ask [`Fep::payload`] for the bytes before the next call that takes `&mut self`.
    pub payload: PayloadRef,
}

/// Where a packet's payload is.
#[derive(Clone, Copy, Debug)]
pub struct PayloadRef {
    send: Option<Key>,
    offset: u32,
    len: u32,
}

impl PayloadRef {
    pub(super) const NONE: PayloadRef = PayloadRef { send: None, offset: 0, len: 0 };

    pub(super) fn resolve(self, sends: &Table<SendMessage>) -> Payload<'_> {
        match self.send.and_then(|key| sends.get(key)) {
            Some(message) => message.buffer.payload(self.offset, self.len),
            None => Payload::EMPTY,
        }
    }

    /// The same bytes with a share in their memory, if that can be shared.
    #[inline]
    pub(super) fn share(self, sends: &Table<SendMessage>) -> Option<RegionSlice> {
        match &sends.get(self.send?)?.buffer {
            Buffer::Region(slice) => Some(slice.part(self.offset, self.len)),
            Buffer::Heap(_) | Buffer::Virtual(_) | Buffer::Bytes(_) | Buffer::BytesMut(_) => None,
        }
    }

    /// Its length, bytes.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// What a connection would send next.
enum Next {
    Data(Data),
    Close,
    /// Nothing, until an acknowledgement or a timer changes that.
    Nothing,
}

/// A data packet that could leave.
#[derive(Clone, Copy)]
struct Data {
    /// The message, as the endpoint numbers its sends.
    send: u32,
    segment: Segment,
    /// Its number, if it was sent before.
    again: Option<Psn>,
}

impl Fep {
    /// Whether [`Fep::poll_transmit`] is worth a call. It may still yield nothing.
    pub fn wants_to_transmit(&self) -> bool {
        !self.control.is_empty() || !self.ready.is_empty()
    }

    /// The next packet to put on the wire, if there is one.
    pub fn poll_transmit(&mut self, now: Time) -> Option<Transmit> {
        let mut packet = Packet::BLANK;
        let payload = self.poll_transmit_into(now, &mut packet)?;
        Some(Transmit { packet, payload })
    }

    /// As [`Fep::poll_transmit`], with the headers written to where the caller wants them: `packet` changes
    /// only if there is one.
    pub fn poll_transmit_into(&mut self, now: Time, packet: &mut Packet) -> Option<PayloadRef> {
        if let Some(control) = self.control.pop_front() {
            control.write_to(packet);
            if self.control.is_empty() {
                // Back to the start of its memory, which is in the cache.
                self.control.clear();
            }
            return Some(PayloadRef::NONE);
        }
        while let Some(key) = self.ready.pop_front() {
            let payload = self.send_from(now, key, packet);
            if payload.is_some() {
                return payload;
            }
        }
        None
    }

    /// Sends a packet of connection `key`, which has just left the queue, if its own window and its context
    /// let it, and queues it again if it has more.
    // Every packet passes here, so connection, context and message are looked up once.
    #[inline]
    fn send_from(&mut self, now: Time, key: Key, packet: &mut Packet) -> Option<PayloadRef> {
        let connection = self.connections.get_mut(key)?;
        let context_key = connection.context;
        connection.standing = Standing::Idle;
        let data = match choose(now, connection, &self.sends, self.config.mtu) {
            Next::Data(data) => data,
            other => return self.send_no_data(now, key, context_key, &other, packet),
        };
        let context = self.contexts.get_mut(context_key)?;
        let bytes = data.segment.len + self.config.overhead;
        let gate = context.gate(now, u64::from(bytes));
        if gate != Gate::Open {
            self.block(now, key, gate);
            return None;
        }
        let (send, message) = self.sends.at_mut(data.send)?;
        let (psn, entropy) = depart(now, connection, context, message, &data, bytes);
        let ends = connection.queue.is_empty() && !connection.pdc.has_lost();
        let stops = ends || context.is_spent(u64::from(bytes)) || !connection.pdc.may_send_new();
        let ack_request = data.again.is_some() || stops;
        if ack_request {
            context.on_ask(connection.pdc.id, psn);
        }
        let Segment { offset, len } = data.segment;
        *packet = Packet {
            net: network(self.addr, connection.pdc.peer, entropy, Class::Data),
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
                cc: context.request_cc(connection.pdc.lost_bytes()),
            }),
            ses: Ses::Standard(StandardRequest {
                pid_on_fep: connection.process,
                ..message.request(self.addr.0, offset, len)
            }),
        };
        let (pdc, retransmission) = (connection.pdc.id, data.again.is_some());
        self.events.emit(now, Event::DataSent { pdc, psn, len, entropy, retransmission });
        connection.wake(&mut self.wheel, key, now + self.config.pdc.rto_init);
        connection.make_ready(&mut self.ready, key);
        if context.trying == Some(key) {
            self.end_try(context_key, key);
        }
        Some(PayloadRef { send: Some(send), offset, len })
    }

    /// [`Fep::send_from`] where there is no data to send.
    #[inline(never)]
    fn send_no_data(
        &mut self,
        now: Time,
        key: Key,
        context: Key,
        next: &Next,
        packet: &mut Packet,
    ) -> Option<PayloadRef> {
        let mut payload = None;
        if matches!(next, Next::Close) {
            if self.connections.get(key)?.pdc.is_unused() {
                // All its messages were cancelled: the target has never heard of it.
                self.remove_connection(now, key, Ok(()));
            } else {
                payload = self.send_close(now, key, packet);
                self.make_ready(key);
            }
        }
        self.end_try(context, key);
        payload
    }

    /// If connection `key` was the one to try the gate of `context` and was not stopped there, the next one
    /// that waits tries at once: the order is the same as if all that waited had been queued together.
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
    fn block(&mut self, now: Time, key: Key, gate: Gate) {
        let Some(context_key) = self.connections.get(key).map(|connection| connection.context) else {
            return;
        };
        let asks = gate == Gate::Window && self.must_ask(context_key);
        let Some(connection) = self.connections.get_mut(key) else { return };
        let Some(context) = self.contexts.get_mut(context_key) else { return };
        if asks {
            context.asks = true;
            connection.standing = Standing::Ready;
            return self.ready.push_front(key);
        }
        connection.standing = Standing::Blocked;
        // Who tried and was stopped keeps its place.
        match context.trying == Some(key) {
            true => context.blocked.push_front(key),
            false => context.blocked.push_back(key),
        }
        match gate {
            Gate::Until(at) if context.timer.is_none_or(|timer| at.is_before(timer)) => {
                context.timer = Some(at);
                self.wheel.insert(at, TimerKey::Context(context_key));
            }
            Gate::Credit if connection.credit_wait.is_none() => {
                let ask_at = now + self.config.pdc.rto_init;
                connection.credit_wait = Some(CreditWait { since: now, ask_at });
                connection.wake(&mut self.wheel, key, ask_at);
            }
            _ => {}
        }
        context.trying.take_if(|trying| *trying == key);
    }

    /// Whether all that `context` has in flight may have arrived, at targets that keep quiet about less than
    /// their threshold each, and nothing is on its way that would make them speak: windows can shrink after
    /// packets have left that do not ask, and the packet that asked can be trimmed, or overtake others.
    #[inline(never)]
    pub(super) fn must_ask(&self, context_key: Key) -> bool {
        let Some(context) = self.contexts.get(context_key) else { return false };
        if context.in_flight() >= u64::from(self.config.pdc.ack_bytes) * u64::from(context.users) {
            return false;
        }
        let (pdc, psn) = context.asked();
        let asker = u32::from(pdc.0).checked_sub(1).and_then(|index| self.connections.at(index));
        !asker.is_some_and(|(_, c)| c.context == context_key && c.pdc.is_in_flight(psn))
    }

    fn send_close(&mut self, now: Time, key: Key, packet: &mut Packet) -> Option<PayloadRef> {
        let connection = self.connections.get_mut(key)?;
        let context = self.contexts.get_mut(connection.context)?;
        let entropy = context.next_entropy(now, false);
        let retx = connection.pdc.has_lost();
        let psn = if retx {
            let psn = connection.pdc.peek_lost()?.0;
            connection.pdc.resend(now, entropy);
            psn
        } else {
            connection.pdc.state = TxState::Closing;
            connection.pdc.send_new(now, PacketKind::Close, 0, entropy)
        };
        let control = Control {
            kind: ControlKind::CloseCommand,
            retx,
            ack_request: true,
            psn,
            payload: 0,
            ..blank_control(connection, psn)
        };
        *packet = control_packet(network(self.addr, connection.pdc.peer, entropy, Class::Control), control);
        let peer = connection.pdc.peer;
        self.events.emit(now, Event::ControlSent { peer, kind: ControlKind::CloseCommand });
        self.watch(now, key);
        Some(PayloadRef::NONE)
    }

    /// Queues a control packet of connection `key`.
    pub(super) fn send_control(&mut self, now: Time, key: Key, kind: ControlKind, payload: u32, opaque: u16) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let Some(context) = self.contexts.get_mut(connection.context) else { return };
        let entropy = context.next_entropy(now, false);
        let psn = match kind {
            // All have arrived: ask about the last one.
            ControlKind::AckRequest => connection.pdc.next_psn().minus(1),
            _ => connection.pdc.first_unacknowledged(),
        };
        let control = Control { kind, psn, payload, probe_opaque: opaque, ..blank_control(connection, psn) };
        let net = network(self.addr, connection.pdc.peer, entropy, Class::Control);
        self.events.emit(now, Event::ControlSent { peer: net.dst, kind });
        self.push_control(control_packet(net, control));
    }

    /// Queues a packet for the control class. When the queue is full the packet is dropped, as a
    /// switch might have done: acknowledgements are cumulative and everything else is repeated.
    pub(super) fn push_control(&mut self, packet: Packet) {
        if self.control.len() < self.config.limits.control_queue {
            self.control.push_back(packet);
        }
    }

    /// Asks the target for credit.
    pub(super) fn request_credit(&mut self, now: Time, key: Key) {
        let Some(connection) = self.connections.get(key) else { return };
        let lost = connection.pdc.lost_bytes();
        let Some(context) = self.contexts.get_mut(connection.context) else { return };
        let ccc_id = u16::from(context.class.0);
        if let Some(target) = context.credit_target(lost) {
            self.send_control(now, key, ControlKind::CreditRequest, target, ccc_id);
        }
    }
}

/// What `connection` would send if its context let it.
#[inline]
fn choose(now: Time, connection: &Connection, sends: &Table<SendMessage>, mtu: u32) -> Next {
    if connection.is_paused(now) {
        return Next::Nothing;
    }
    if connection.pdc.has_lost() {
        return choose_lost(connection);
    }
    if connection.wants_close() {
        return if connection.pdc.may_send_new() { Next::Close } else { Next::Nothing };
    }
    let Some(&send) = connection.queue.front() else { return Next::Nothing };
    let Some(segment) = sends.get(send).and_then(|message| message.peek(mtu)) else { return Next::Nothing };
    if !connection.pdc.may_send_new() {
        return Next::Nothing;
    }
    Next::Data(Data { send: send.index, segment, again: None })
}

/// What is to be sent again next.
#[cold]
fn choose_lost(connection: &Connection) -> Next {
    match connection.pdc.peek_lost().map(|(psn, record)| (psn, record.kind())) {
        Some((psn, PacketKind::Data { send, offset, len })) => {
            Next::Data(Data { send, segment: Segment { offset, len }, again: Some(psn) })
        }
        Some((_, PacketKind::Close)) => Next::Close,
        None => Next::Nothing,
    }
}

/// Takes a packet that leaves now into the books of its connection, context and message. Returns its number
/// and its entropy.
#[inline]
fn depart(
    now: Time,
    connection: &mut Connection,
    context: &mut Context,
    message: &mut SendMessage,
    data: &Data,
    bytes: u32,
) -> (Psn, Entropy) {
    let entropy = match connection.fixed_entropy {
        Some(entropy) => entropy,
        None => context.next_entropy(now, data.again.is_some()),
    };
    if connection.pdc.is_idle() {
        connection.progress_at = now;
    }
    let psn = match data.again {
        Some(psn) => {
            context.track(&mut connection.pdc, |pdc| pdc.resend(now, entropy));
            message.retransmissions += 1;
            psn
        }
        None => {
            let Segment { offset, len } = data.segment;
            let kind = PacketKind::Data { send: data.send, offset, len };
            let psn = context.track(&mut connection.pdc, |pdc| pdc.send_new(now, kind, bytes, entropy));
            context.backlog = context.backlog.saturating_sub(u64::from(bytes));
            message.cut(data.segment);
            if message.is_cut() {
                connection.queue.pop_front();
            }
            psn
        }
    };
    context.on_send(now, u64::from(bytes), data.again.is_some());
    if context.needs_credit() {
        connection.credit_wait = None;
    }
    (psn, entropy)
}

/// CLEAR_PSN − PSN; MP_RANGE, at most 32,640, keeps it in 16 bits.
fn clear_offset(connection: &Connection, psn: Psn) -> i16 {
    connection.pdc.clear_psn().distance(psn).clamp(-32_768, 32_767) as i16
}

fn blank_control(connection: &Connection, psn: Psn) -> Control {
    Control {
        kind: ControlKind::Noop,
        rod: connection.pdc.mode == DeliveryMode::Rod,
        retx: false,
        ack_request: false,
        probe_opaque: 0,
        psn,
        spdcid: connection.pdc.id,
        destination: connection.pdc.destination(psn),
        payload: 0,
    }
}

pub(super) fn network(src: Addr, dst: Addr, entropy: Entropy, class: Class) -> Network {
    Network { src, dst, entropy, class, ecn: false, hops: 0 }
}

pub(super) fn control_packet(net: Network, control: Control) -> Packet {
    Packet { net, payload_len: 0, pds: Pds::Control(control), ses: Ses::None }
}

/// Bytes that the messages waiting in `connection` count for.
pub(super) fn backlog(fep: &Fep, connection: &Connection) -> u64 {
    let messages = connection.queue.iter().filter_map(|&key| fep.sends.get(key));
    messages.map(|message| wire_size(&fep.config, message.remaining())).sum()
}
