//! What an initiator does with acknowledgements, NACKs and the requests of targets.

use weft_cc::{AckSample, NackCause, NackSample, Time};

use super::connection::{Busy, Connection};
use super::context::Context;
use super::{Failure, Fep, FepConfig, SendError, wire_size};
use crate::event::Event;
use crate::packet::Packet;
use crate::pdc::{PacketKind, TxPdc, TxState};
use crate::ses::SendMessage;
use crate::spray::PathFeedback;
use crate::table::{Key, Table};
use crate::wire::pds::{Ack, AckRequest, AckTrigger, ControlKind, Nack, NackCode, PdcId, Psn};
use crate::wire::ses::{Response, ReturnCode, Ses};

/// What a NACK code means for an initiator.
enum Verdict {
    /// The payload was cut off on the way.
    Trimmed(NackCause),
    /// Send it again: the target could not take it in this order, or lost it.
    Again,
    /// Send it again later.
    Busy,
    /// The packet is there; its response is not ready. The timer asks again.
    Patience,
    /// Give the PDC up.
    Fatal,
}

/// NACK codes 0E 0F 10 11 13 15 16 19 close the PDC, the others lead to retransmission, at once or,
/// where the target lacks something, later.
fn verdict(code: NackCode) -> Verdict {
    match code {
        NackCode::TRIMMED => Verdict::Trimmed(NackCause::Trimmed),
        NackCode::TRIMMED_LASTHOP => Verdict::Trimmed(NackCause::TrimmedLastHop),
        NackCode::INV_DPDCID
        | NackCode::PDC_HDR_MISMATCH
        | NackCode::CLOSING
        | NackCode::CLOSING_IN_ERR
        | NackCode::GTD_RESP_UNAVAIL
        | NackCode::INVALID_SYN
        | NackCode::PDC_MODE_MISMATCH
        | NackCode::UNEXP_EVENT
        | NackCode::EXP_FATAL => Verdict::Fatal,
        NackCode::NO_PDC_AVAIL
        | NackCode::NO_CCC_AVAIL
        | NackCode::NO_BITMAP
        | NackCode::NO_PKT_BUFFER
        | NackCode::NO_GTD_DEL_AVAIL
        | NackCode::NO_SES_MSG_AVAIL
        | NackCode::NO_RESOURCE
        | NackCode::PSN_OOR_WINDOW => Verdict::Busy,
        NackCode::RCVD_SES_PROCG => Verdict::Patience,
        _ => Verdict::Again,
    }
}

impl Fep {
    /// The connection whose PDC is `id`, if it goes to where the packet comes from.
    fn connection_of(&self, id: PdcId, packet: &Packet) -> Option<Key> {
        let (key, connection) = self.connections.at(u32::from(id.0).checked_sub(1)?)?;
        (connection.pdc.peer == packet.net.src).then_some(key)
    }

    pub(super) fn on_ack(&mut self, now: Time, packet: &Packet, ack: &Ack) {
        let found = u32::from(ack.dpdcid.0).checked_sub(1).and_then(|index| self.connections.at_mut(index));
        let Some((key, connection)) = found.filter(|(_, c)| c.pdc.peer == packet.net.src) else {
            return self.ignore(now, packet, "ACK for no connection of its sender");
        };
        let context_key = connection.context;
        let Some(context) = self.contexts.get_mut(context_key) else { return };
        let delivered = &mut self.delivered;
        let sends = &mut self.sends;
        if let Ses::Response(response) = &packet.ses
            && !matches!(response.return_code, ReturnCode::OK | ReturnCode::NULL)
            && connection.pdc.accepts(ack)
        {
            let refused = note_refusal(sends, &connection.pdc, ack, response);
            if let Some(send) = refused.filter(|_| response.return_code == ReturnCode::BAD_PID) {
                forgo_rest(&self.config, sends, send, connection, context);
            }
        }
        let mut progress = false;
        let outcome = context.track(&mut connection.pdc, |pdc| {
            pdc.on_ack(now, ack, |record| {
                progress = true;
                if let PacketKind::Data { send, .. } = record.kind()
                    && let Some((send, message)) = sends.at_mut(send)
                {
                    message.unacknowledged -= 1;
                    if message.is_delivered() {
                        delivered.push(send);
                    }
                }
            })
        });
        let Some(outcome) = outcome else {
            return self.ignore(now, packet, "ACK outside what was sent");
        };
        connection.pause.take_if(|busy| now.is_at_or_after(busy.until));
        if progress {
            connection.progress_at = now;
        }
        let pdc = connection.pdc.id;
        self.events.emit(now, Event::AckReceived { pdc, cack: ack.cack_psn, rtt: outcome.rtt, ecn: ack.ecn });
        if outcome.probe.is_none() {
            let feedback = if ack.ecn { PathFeedback::Ecn } else { PathFeedback::Good };
            context.path_feedback(now, packet.net.entropy, feedback);
        }
        context.on_ack(
            now,
            AckSample {
                newly_received: outcome.newly_received,
                rtt: outcome.rtt,
                ecn: ack.ecn,
                in_flight: 0,
                out_of_order: outcome.out_of_order,
                hops: None,
                remote_queueing: None,
                local_rx_delay: None,
                receiver_window: outcome.receiver_window,
            },
        );
        if self.config.pdc.infer_loss {
            self.look_for_losses(now, key, outcome.out_of_order, outcome.probe);
        }
        if !self.delivered.is_empty() {
            self.complete_delivered();
        }
        self.after_feedback(now, key, ack);
    }

    /// Completes the messages that the acknowledgement at hand is the last one of.
    fn complete_delivered(&mut self) {
        let mut delivered = std::mem::take(&mut self.delivered);
        for send in delivered.drain(..) {
            self.complete_send(send);
        }
        self.delivered = delivered;
    }

    /// What any acknowledgement may set in motion.
    #[inline]
    fn after_feedback(&mut self, now: Time, key: Key, ack: &Ack) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.pdc.state == TxState::Closed {
            let result = connection.close_result();
            return self.remove_connection(now, key, result);
        }
        if ack.request != AckRequest::None {
            return self.after_request(now, key, ack);
        }
        let context = connection.context;
        connection.wake(&mut self.wheel, key, now + self.config.pdc.rto_init);
        self.unblock(context);
        self.make_ready(key);
    }

    /// [`Fep::after_feedback`] for an acknowledgement that asks for something.
    #[inline(never)]
    fn after_request(&mut self, now: Time, key: Key, ack: &Ack) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let context = connection.context;
        let clear = connection.pdc.clear_psn();
        match ack.request {
            // A response stands just behind CACK: it can be cleared once we know everything up to it.
            AckRequest::Clear if clear.distance(ack.cack_psn) > 0 && connection.cleared != Some(clear) => {
                connection.cleared = Some(clear);
                self.send_control(now, key, ControlKind::ClearCommand, clear.0, 0);
            }
            AckRequest::Close => self.close_at_peers_request(key),
            _ => {}
        }
        self.watch(now, key);
        self.unblock(context);
        self.make_ready(key);
    }

    pub(super) fn on_nack(&mut self, now: Time, packet: &Packet, nack: &Nack) {
        let Some(key) = self.connection_of(nack.dpdcid, packet).filter(|_| !nack.rudi) else {
            return self.ignore(now, packet, "NACK for no connection of its sender");
        };
        let Some(connection) = self.connections.get_mut(key) else { return };
        // Late NACKs of a PDC that had this identifier before speak of PSNs far away.
        if connection.pdc.waiting_since(nack.psn).is_none() {
            return self.ignore(now, packet, "NACK for a packet that is not outstanding");
        }
        let pdc = connection.pdc.id;
        self.events.emit(now, Event::NackReceived { pdc, psn: nack.psn, code: nack.code });
        match verdict(nack.code) {
            Verdict::Fatal
                if connection.pdc.state == TxState::Closing
                    && matches!(nack.code, NackCode::INV_DPDCID | NackCode::CLOSING) =>
            {
                // The target has closed and forgotten; its answer was lost, or the answer to a copy overtook it.
                let result = connection.close_result();
                self.remove_connection(now, key, result);
            }
            Verdict::Fatal => {
                let peer = packet.net.src;
                self.fail(now, key, Failure::Refused { pdc, peer, psn: nack.psn, code: nack.code });
            }
            Verdict::Trimmed(cause) => self.resend_refused(now, key, packet, nack, Some(cause)),
            Verdict::Again => self.resend_refused(now, key, packet, nack, None),
            Verdict::Busy => self.put_off(now, key, packet, nack),
            Verdict::Patience => {}
        }
    }

    /// Sends the refused packet again; `cause` is what congestion control should think of it.
    fn resend_refused(
        &mut self,
        now: Time,
        key: Key,
        packet: &Packet,
        nack: &Nack,
        cause: Option<NackCause>,
    ) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let context_key = connection.context;
        let Some(context) = self.contexts.get_mut(context_key) else { return };
        let outcome = context.track(&mut connection.pdc, |pdc| pdc.on_nack(now, nack, packet.net.entropy));
        let Some(outcome) = outcome else {
            return self.ignore(now, packet, "NACK for an earlier transmission");
        };
        let waited = now.since(connection.progress_at);
        if waited > self.config.busy_timeout {
            let (pdc, peer) = (connection.pdc.id, packet.net.src);
            return self.fail(now, key, Failure::Busy { pdc, peer, psn: nack.psn, code: nack.code, waited });
        }
        context.on_feedback();
        if let Some(cause) = cause {
            let (bytes, rtt) = (outcome.bytes, outcome.rtt);
            context.on_nack(now, NackSample { bytes, cause, ecn: nack.ecn, rtt, in_flight: 0 });
            // The last hop is the receiver's own link: no other path avoids it.
            let feedback = match cause {
                NackCause::TrimmedLastHop if nack.ecn => PathFeedback::Ecn,
                NackCause::TrimmedLastHop => PathFeedback::Good,
                _ => PathFeedback::Nack,
            };
            context.path_feedback(now, outcome.entropy, feedback);
        }
        self.unblock(context_key);
        self.make_ready(key);
    }

    /// The target lacks something: pause, longer each time, and give up when it lasts.
    fn put_off(&mut self, now: Time, key: Key, packet: &Packet, nack: &Nack) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let context_key = connection.context;
        let Some(context) = self.contexts.get_mut(context_key) else { return };
        if context.track(&mut connection.pdc, |pdc| pdc.on_nack(now, nack, packet.net.entropy)).is_none() {
            return self.ignore(now, packet, "NACK for an earlier transmission");
        }
        context.on_feedback();
        let busy = connection.pause.as_deref().copied().unwrap_or(Busy {
            code: nack.code,
            since: now,
            until: now,
            count: 0,
        });
        let waited = now.since(busy.since);
        if waited > self.config.busy_timeout {
            let (pdc, peer) = (connection.pdc.id, packet.net.src);
            return self.fail(now, key, Failure::Busy { pdc, peer, psn: nack.psn, code: nack.code, waited });
        }
        // Refusals of packets that left before the pause began do not lengthen it.
        if now.is_at_or_after(busy.until) {
            let pause = self.config.pdc.rto_init.times(1 << busy.count.min(6));
            let until = now + pause;
            let count = busy.count + 1;
            connection.pause = Some(Box::new(Busy { code: nack.code, until, count, ..busy }));
            self.wake_connection(key, until);
        }
        // What was refused is no longer in flight: that may have been all that others waited for, and
        // this connection itself must not wait for a window that nothing will open.
        self.unblock(context_key);
    }

    /// Infers losses after an acknowledgement, for fabrics that drop.
    #[inline(never)]
    fn look_for_losses(&mut self, now: Time, key: Key, out_of_order: u16, probe: Option<u16>) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let Some(context) = self.contexts.get_mut(connection.context) else { return };
        let mut lost = Vec::new();
        let window = context.window_packets().min(f64::from(self.config.pdc.mp_range));
        let snapshot = context.snapshot();
        context.track(&mut connection.pdc, |pdc| {
            let mut note = |psn: Psn, record: &crate::pdc::TxRecord| lost.push((psn, *record));
            match probe.and_then(|opaque| pdc.take_probe(opaque)) {
                // A quick answer says that the queues are empty.
                Some(sent_at) if now.since(sent_at) < snapshot.base_rtt + snapshot.target => {
                    pdc.lose_before_probe(now, sent_at, &mut note);
                }
                _ => pdc.infer_losses(now, out_of_order, window, &mut note),
            }
        });
        let pdc = connection.pdc.id;
        for (psn, record) in lost {
            let bytes = u64::from(record.bytes);
            let sample =
                NackSample { bytes, cause: NackCause::InferredLoss, ecn: false, rtt: None, in_flight: 0 };
            context.on_nack(now, sample);
            context.path_feedback(now, record.entropy, PathFeedback::Nack);
            self.events.emit(now, Event::LossInferred { pdc, psn });
        }
        let first_probe = if connection.queue.is_empty() {
            snapshot.base_rtt + snapshot.target
        } else {
            snapshot.base_rtt.times(3)
        };
        connection.unanswered_probes = 0;
        connection.probe_at = (!connection.pdc.is_idle()).then_some(now + first_probe);
        if let Some(at) = connection.probe_at {
            self.wake_connection(key, at);
        }
    }

    /// Gives a connection up: everything that waits in it fails.
    pub(super) fn fail(&mut self, now: Time, key: Key, failure: Failure) {
        let Some(connection) = self.connections.get(key) else { return };
        let backlog = super::transmit::backlog(self, connection);
        let mut waiting: Vec<Key> = connection.queue.iter().copied().collect();
        for record in connection.pdc.unacknowledged() {
            if let PacketKind::Data { send, .. } = record.kind()
                && let Some((send, _)) = self.sends.at(send)
                && !waiting.contains(&send)
            {
                waiting.push(send);
            }
        }
        let context_key = connection.context;
        if let Some(context) = self.contexts.get_mut(context_key) {
            context.backlog = context.backlog.saturating_sub(backlog);
        }
        let has_left = |key: &Key| self.sends.get(*key).is_some_and(|message| !message.is_untouched());
        self.abandoned |= waiting.iter().any(has_left);
        for send in waiting {
            self.fail_send(send, SendError::Failed(failure));
        }
        self.remove_connection(now, key, Err(failure));
        // The bytes that were in flight made room for others.
        self.unblock(context_key);
    }

    /// The target wants the PDC closed: do so unless there is something to send.
    pub(super) fn close_at_peers_request(&mut self, key: Key) {
        if let Some(connection) = self.connections.get_mut(key)
            && connection.pdc.state == TxState::Open
            && connection.queue.is_empty()
            && connection.pdc.is_idle()
        {
            connection.pdc.state = TxState::Draining;
            connection.closed_by_peer = true;
            self.make_ready(key);
        }
    }

    /// A credit packet has arrived.
    pub(super) fn on_credit(&mut self, now: Time, packet: &Packet, pdc: PdcId, total: u32) {
        let Some(key) = self.connection_of(pdc, packet) else {
            return self.ignore(now, packet, "credit for no connection of its sender");
        };
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.credit_wait = None;
        let context_key = connection.context;
        if let Some(credit) = self.contexts.get_mut(context_key).and_then(|c| c.credit.as_mut()) {
            credit.on_credit_total(total);
            self.unblock(context_key);
        }
    }

    /// The target asks for a connection to be closed.
    pub(super) fn on_close_request(&mut self, now: Time, packet: &Packet, pdc: PdcId) {
        match self.connection_of(pdc, packet) {
            Some(key) => self.close_at_peers_request(key),
            None => self.ignore(now, packet, "CLOSE_REQ for no connection of its sender"),
        }
    }
}

/// Remembers that the target answered with an error to the message whose packet triggered `ack`. The
/// packet must still wait for its answer: message numbers come round, and copies come late.
///
/// Returns the message.
fn note_refusal(sends: &mut Table<SendMessage>, pdc: &TxPdc, ack: &Ack, response: &Response) -> Option<Key> {
    let AckTrigger::Psn(offset) = ack.trigger else { return None };
    let record = pdc.unanswered(ack.cack_psn.offset(i32::from(offset)))?;
    let PacketKind::Data { send, .. } = record.kind() else { return None };
    let (send, message) = sends.at_mut(send).filter(|(_, message)| message.msg_id == response.msg_id)?;
    message.refusal = Some(response.return_code);
    Some(send)
}

/// What has not left of message `send` stays here: nobody takes it.
#[cold]
fn forgo_rest(
    config: &FepConfig,
    sends: &mut Table<SendMessage>,
    send: Key,
    connection: &mut Connection,
    context: &mut Context,
) {
    let Some(message) = sends.get_mut(send).filter(|message| !message.is_cut()) else { return };
    context.backlog = context.backlog.saturating_sub(wire_size(config, message.remaining()));
    message.cut_short();
    connection.queue.retain(|other| *other != send);
}
