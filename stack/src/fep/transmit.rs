//! The send scheduler: control packets first, then the connections in turn, a packet each.

use weft_cc::Time;

use super::connection::{Connection, CreditWait, Standing};
use super::context::Gate;
use super::timers::TimerKey;
use super::{Fep, wire_size};
use crate::event::Event;
use crate::packet::{Addr, Class, Network, Packet, Payload};
use crate::pdc::{PacketKind, TxState};
use crate::ses::SendMessage;
use crate::spray::Entropy;
use crate::table::{Key, Table};
use crate::wire::pds::{Control, ControlKind, DeliveryMode, NextHeader, Pds, Psn, Request, RequestCc};
use crate::wire::ses::Ses;

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
    Resend(Psn, PacketKind),
    New(PacketKind, Key),
    Close,
    /// Nothing, until an acknowledgement or a timer changes that.
    Nothing,
}

impl Fep {
    /// Whether [`Fep::poll_transmit`] is worth a call. It may still yield nothing.
    pub fn wants_to_transmit(&self) -> bool {
        !self.control.is_empty() || !self.ready.is_empty()
    }

    /// The next packet to put on the wire, if there is one.
    pub fn poll_transmit(&mut self, now: Time) -> Option<Transmit> {
        if let Some(packet) = self.control.pop_front() {
            return Some(Transmit { packet, payload: PayloadRef::NONE });
        }
        while let Some(key) = self.ready.pop_front() {
            if let Some(transmit) = self.send_from(now, key) {
                return Some(transmit);
            }
        }
        None
    }

    /// Sends a packet of connection `key`, which has just left the queue. If it was the one to try its
    /// context's gate and was not stopped there, the next one that waits tries at once: the order is the
    /// same as if all that waited had been queued together.
    fn send_from(&mut self, now: Time, key: Key) -> Option<Transmit> {
        let context_key = self.connections.get(key)?.context;
        let transmit = self.try_send(now, key);
        if let Some(context) = self.contexts.get_mut(context_key).filter(|c| c.trying == Some(key)) {
            context.trying = None;
            let stopped = self.connections.get(key).is_some_and(|c| c.standing == Standing::Blocked);
            if !stopped && let Some(next) = self.let_try(context_key) {
                self.ready.push_front(next);
            }
        }
        transmit
    }

    /// Sends a packet of connection `key` if its own window and its context let it, and queues it again if
    /// it has more.
    fn try_send(&mut self, now: Time, key: Key) -> Option<Transmit> {
        let connection = self.connections.get_mut(key)?;
        connection.standing = Standing::Idle;
        if connection.is_held(now) {
            return None;
        }
        let next = choose(connection, &self.sends, self.config.mtu);
        let kind = match next {
            Next::Resend(_, kind) | Next::New(kind, _) => kind,
            Next::Close if connection.pdc.is_unused() => {
                // All its messages were cancelled: the target has never heard of it.
                self.remove_connection(now, key, Ok(()));
                return None;
            }
            Next::Close => PacketKind::Close,
            Next::Nothing => return None,
        };
        let bytes = match kind {
            PacketKind::Data { len, .. } => len + self.config.overhead,
            PacketKind::Close => 0,
        };
        let context = self.contexts.get(connection.context)?;
        match context.gate(now, u64::from(bytes)) {
            _ if kind == PacketKind::Close => {}
            Gate::Open => {}
            gate => {
                self.block(now, key, gate);
                return None;
            }
        }
        let transmit = match kind {
            PacketKind::Close => self.send_close(now, key),
            PacketKind::Data { .. } => self.send_data(now, key, next, bytes),
        };
        self.make_ready(key);
        transmit
    }

    /// Parks a connection until its context's gate opens.
    fn block(&mut self, now: Time, key: Key, gate: Gate) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let context_key = connection.context;
        let Some(context) = self.contexts.get_mut(context_key) else { return };
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
                self.wake_connection(key, ask_at);
            }
            _ => {}
        }
    }

    fn send_data(&mut self, now: Time, key: Key, next: Next, bytes: u32) -> Option<Transmit> {
        let connection = self.connections.get_mut(key)?;
        let context = self.contexts.get_mut(connection.context)?;
        let retx = matches!(next, Next::Resend(..));
        let entropy = match connection.fixed_entropy {
            Some(entropy) => entropy,
            None => context.next_entropy(now, retx),
        };
        if connection.pdc.is_idle() {
            connection.progress_at = now;
        }
        let (psn, kind) = match next {
            Next::Resend(psn, kind) => {
                context.track(&mut connection.pdc, |pdc| pdc.resend(now, entropy));
                (psn, kind)
            }
            Next::New(kind, send) => {
                let psn = context.track(&mut connection.pdc, |pdc| pdc.send_new(now, kind, bytes, entropy));
                cut(connection, &mut self.sends, send, kind);
                context.backlog = context.backlog.saturating_sub(u64::from(bytes));
                (psn, kind)
            }
            Next::Close | Next::Nothing => return None,
        };
        let PacketKind::Data { send, offset, len } = kind else { return None };
        let (send_key, message) = self.sends.at_mut(send)?;
        message.retransmissions += u32::from(retx);
        context.on_send(now, u64::from(bytes), retx);
        connection.credit_wait = None;
        let lost = connection.pdc.lost_bytes();
        let cc = context
            .credit_target(lost)
            .map(|credit_target| RequestCc { ccc_id: context.class.0, credit_target });
        let ends = connection.queue.is_empty() && !connection.pdc.has_lost();
        let request = Request {
            mode: connection.pdc.mode,
            next: NextHeader::RequestStandard,
            retx,
            ack_request: retx || ends || context.is_spent(u64::from(bytes)),
            clear_psn_offset: clear_offset(connection, psn),
            psn,
            spdcid: connection.pdc.id,
            destination: connection.pdc.destination(psn),
            cc,
        };
        let packet = Packet {
            net: network(self.addr, connection.pdc.peer, entropy, Class::Data),
            payload_len: len,
            pds: Pds::Request(request),
            ses: Ses::Standard(message.request(self.addr.0, offset, len)),
        };
        let pdc = connection.pdc.id;
        self.events.emit(now, Event::DataSent { pdc, psn, len, entropy, retransmission: retx });
        self.watch(now, key);
        Some(Transmit { packet, payload: PayloadRef { send: Some(send_key), offset, len } })
    }

    fn send_close(&mut self, now: Time, key: Key) -> Option<Transmit> {
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
        let packet =
            control_packet(network(self.addr, connection.pdc.peer, entropy, Class::Control), control);
        let peer = connection.pdc.peer;
        self.events.emit(now, Event::ControlSent { peer, kind: ControlKind::CloseCommand });
        self.watch(now, key);
        Some(Transmit { packet, payload: PayloadRef::NONE })
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
fn choose(connection: &Connection, sends: &Table<SendMessage>, mtu: u32) -> Next {
    if let Some((psn, record)) = connection.pdc.peek_lost() {
        return match record.kind {
            PacketKind::Close => Next::Close,
            data => Next::Resend(psn, data),
        };
    }
    if connection.wants_close() {
        return if connection.pdc.may_send_new() { Next::Close } else { Next::Nothing };
    }
    let Some(&send) = connection.queue.front() else { return Next::Nothing };
    let Some(segment) = sends.get(send).and_then(|message| message.peek(mtu)) else { return Next::Nothing };
    if !connection.pdc.may_send_new() {
        return Next::Nothing;
    }
    Next::New(PacketKind::Data { send: send.index, offset: segment.offset, len: segment.len }, send)
}

/// Marks the packet `kind` of message `send` as cut.
fn cut(connection: &mut Connection, sends: &mut Table<SendMessage>, send: Key, kind: PacketKind) {
    let PacketKind::Data { offset, len, .. } = kind else { return };
    let Some(message) = sends.get_mut(send) else { return };
    let last = offset + len == message.buffer.len();
    message.cut(crate::ses::Segment { offset, len, last });
    if last {
        connection.queue.pop_front();
    }
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
