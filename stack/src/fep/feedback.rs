//! How an initiator takes in acknowledgements, NACKs, credit and the requests of targets.

use std::collections::VecDeque;

use weft_cc::{AckSample, NackCause, NackSample, Time};

use super::connection::{Busy, Connection};
use super::context::Context;
use super::core::Core;
use super::initiator::{Initiator, complete_send, wire_size};
use super::transmit::send_control;
use super::{Failure, FepConfig};
use crate::event::Event;
use crate::packet::{Addr, Packet};
use crate::pdc::{NackOutcome, PacketKind, TxPdc, TxState};
use crate::ses::SendMessage;
use crate::spray::PathFeedback;
use crate::table::{Key, Table};
use crate::wire::pds::{
    Ack, AckRequest, AckTrigger, Control, ControlKind, Destination, Nack, NackCode, PdcId, Psn,
};
use crate::wire::ses::{Response, ReturnCode, Ses};

/// The reaction of an initiator to a NACK code.
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

impl Initiator {
    pub(super) fn on_ack(&mut self, core: &mut Core, now: Time, packet: &Packet, ack: &Ack) {
        let Initiator { connections, contexts, sends, delivered, .. } = self;
        let Some((key, connection)) = find(connections, ack.dpdcid, packet.net.src) else {
            return core.ignore(now, packet, "ACK for no connection of its sender");
        };
        let Some(context) = contexts.get_mut(connection.context) else { return };
        if let Ses::Response(response) = &packet.ses
            && !matches!(response.return_code, ReturnCode::OK | ReturnCode::NULL)
            && connection.pdc.accepts(ack)
        {
            let refused = note_refusal(sends, &connection.pdc, ack, response);
            if let Some(send) = refused.filter(|_| response.return_code == ReturnCode::BAD_PID) {
                forgo_rest(&core.config, sends, send, connection, context);
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
            return core.ignore(now, packet, "ACK outside what was sent");
        };
        connection.pause.take_if(|busy| now.is_at_or_after(busy.until));
        if progress {
            connection.progress_at = now;
        }
        let pdc = connection.pdc.id;
        core.events.emit(now, Event::AckReceived { pdc, cack: ack.cack_psn, rtt: outcome.rtt, ecn: ack.ecn });
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
        if core.config.pdc.infer_loss {
            look_for_losses(core, now, key, connection, context, outcome.out_of_order, outcome.probe);
        }
        if !delivered.is_empty() {
            delivered.drain(..).for_each(|send| complete_send(sends, core, send));
        }
        if connection.pdc.state == TxState::Closed {
            let result = connection.close_result();
            return self.remove_connection(core, now, key, result);
        }
        if ack.request != AckRequest::None {
            on_ack_request(core, now, key, connection, context, &mut self.ready, ack);
        }
        connection.wake(&mut core.wheel, key, now + core.config.pdc.rto_init);
        if !context.has_blocked() {
            return connection.make_ready(&mut self.ready, key);
        }
        let context = connection.context;
        self.unblock(&core.config, context);
        self.make_ready(key);
    }

    pub(super) fn on_nack(&mut self, core: &mut Core, now: Time, packet: &Packet, nack: &Nack) {
        let found = find(&mut self.connections, nack.dpdcid, packet.net.src);
        let Some((key, connection)) = found.filter(|_| !nack.rudi) else {
            return core.ignore(now, packet, "NACK for no connection of its sender");
        };
        // Late NACKs of a PDC that had this identifier before speak of PSNs far away.
        if connection.pdc.waiting_since(nack.psn).is_none() {
            return core.ignore(now, packet, "NACK for a packet that is not outstanding");
        }
        let (pdc, peer) = (connection.pdc.id, connection.pdc.peer);
        core.events.emit(now, Event::NackReceived { pdc, psn: nack.psn, code: nack.code });
        let verdict = verdict(nack.code);
        match verdict {
            Verdict::Patience => return,
            Verdict::Fatal
                if connection.pdc.state == TxState::Closing
                    && matches!(nack.code, NackCode::INV_DPDCID | NackCode::CLOSING) =>
            {
                // The target has closed and forgotten; its answer was lost, or the answer to a copy overtook it.
                let result = connection.close_result();
                return self.remove_connection(core, now, key, result);
            }
            Verdict::Fatal => {
                let failure = Failure::Refused { pdc, peer, psn: nack.psn, code: nack.code };
                return self.fail(core, now, key, failure);
            }
            Verdict::Trimmed(_) | Verdict::Again | Verdict::Busy => {}
        }
        let Some(context) = self.contexts.get_mut(connection.context) else { return };
        let outcome = context.track(&mut connection.pdc, |pdc| pdc.on_nack(now, nack, packet.net.entropy));
        let Some(outcome) = outcome else {
            return core.ignore(now, packet, "NACK for an earlier transmission");
        };
        let resent = match verdict {
            Verdict::Trimmed(cause) => resend(core, now, connection, context, nack, &outcome, Some(cause)),
            Verdict::Busy => put_off(core, now, key, connection, context, nack),
            _ => resend(core, now, connection, context, nack, &outcome, None),
        };
        let context = connection.context;
        match resent {
            Ok(()) => self.unblock(&core.config, context),
            Err(failure) => return self.fail(core, now, key, failure),
        }
        // A connection that was put off does not go on until its pause is over.
        if !matches!(verdict, Verdict::Busy) {
            self.make_ready(key);
        }
    }

    /// A control packet from the target of a connection: credit, or the request to close.
    pub(super) fn on_control(&mut self, core: &mut Core, now: Time, packet: &Packet, control: &Control) {
        let Destination::Pdc(id) = control.destination else { return };
        let is_credit = control.kind == ControlKind::Credit;
        let Some((key, connection)) = find(&mut self.connections, id, packet.net.src) else {
            let why = match is_credit {
                true => "credit for no connection of its sender",
                false => "CLOSE_REQ for no connection of its sender",
            };
            return core.ignore(now, packet, why);
        };
        if !is_credit {
            if connection.close_at_peers_request() {
                connection.make_ready(&mut self.ready, key);
            }
            return;
        }
        connection.credit_wait = None;
        let context_key = connection.context;
        if let Some(credit) = self.contexts.get_mut(context_key).and_then(|c| c.credit.as_mut()) {
            credit.on_credit_total(control.payload & 0xff_ffff);
            self.unblock(&core.config, context_key);
        }
    }
}

/// The connection whose PDC is `id`, if it goes to `peer`.
#[inline]
fn find(connections: &mut Table<Connection>, id: PdcId, peer: Addr) -> Option<(Key, &mut Connection)> {
    let found = connections.at_mut(u32::from(id.0).checked_sub(1)?)?;
    (found.1.pdc.peer == peer).then_some(found)
}

/// Does what an acknowledgement asks for.
#[inline(never)]
fn on_ack_request(
    core: &mut Core,
    now: Time,
    key: Key,
    connection: &mut Connection,
    context: &mut Context,
    ready: &mut VecDeque<Key>,
    ack: &Ack,
) {
    let clear = connection.pdc.clear_psn();
    match ack.request {
        // A response stands just behind CACK: it can be cleared once we know everything up to it.
        AckRequest::Clear if clear.distance(ack.cack_psn) > 0 && connection.cleared != Some(clear) => {
            connection.cleared = Some(clear);
            send_control(core, now, connection, context, ControlKind::ClearCommand, clear.0, 0);
        }
        AckRequest::Close if connection.close_at_peers_request() => connection.make_ready(ready, key),
        _ => {}
    }
}

/// Has the refused packet sent again; `cause` is for congestion control.
///
/// # Errors
/// The target has refused everything for too long.
fn resend(
    core: &Core,
    now: Time,
    connection: &Connection,
    context: &mut Context,
    nack: &Nack,
    outcome: &NackOutcome,
    cause: Option<NackCause>,
) -> Result<(), Failure> {
    let waited = now.since(connection.progress_at);
    if waited > core.config.busy_timeout {
        let (pdc, peer) = (connection.pdc.id, connection.pdc.peer);
        return Err(Failure::Busy { pdc, peer, psn: nack.psn, code: nack.code, waited });
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
    Ok(())
}

/// The target lacks a resource: the connection pauses, longer each time. The refused bytes are no longer in flight,
/// so the caller has to let other connections try; the connection itself must not wait for a window that nothing will
/// open.
///
/// # Errors
/// The target has lacked it for too long.
fn put_off(
    core: &mut Core,
    now: Time,
    key: Key,
    connection: &mut Connection,
    context: &mut Context,
    nack: &Nack,
) -> Result<(), Failure> {
    context.on_feedback();
    let first = Busy { code: nack.code, since: now, until: now, count: 0 };
    let busy = connection.pause.as_deref().copied().unwrap_or(first);
    let waited = now.since(busy.since);
    if waited > core.config.busy_timeout {
        let (pdc, peer) = (connection.pdc.id, connection.pdc.peer);
        return Err(Failure::Busy { pdc, peer, psn: nack.psn, code: nack.code, waited });
    }
    // Refusals of packets that left before the pause began do not lengthen it.
    if now.is_at_or_after(busy.until) {
        let until = now + core.config.pdc.rto_init.times(1 << busy.count.min(6));
        let count = busy.count + 1;
        connection.pause = Some(Box::new(Busy { code: nack.code, until, count, ..busy }));
        connection.wake(&mut core.wheel, key, until);
    }
    Ok(())
}

/// Infers losses after an acknowledgement, for fabrics that drop.
#[inline(never)]
fn look_for_losses(
    core: &mut Core,
    now: Time,
    key: Key,
    connection: &mut Connection,
    context: &mut Context,
    out_of_order: u16,
    probe: Option<u16>,
) {
    let mut lost = Vec::new();
    let window = context.window_packets().min(f64::from(core.config.pdc.mp_range));
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
        core.events.emit(now, Event::LossInferred { pdc, psn });
    }
    let first_probe = match connection.queue.is_empty() {
        true => snapshot.base_rtt + snapshot.target,
        false => snapshot.base_rtt.times(3),
    };
    connection.unanswered_probes = 0;
    connection.probe_at = (!connection.pdc.is_idle()).then_some(now + first_probe);
    if let Some(at) = connection.probe_at {
        connection.wake(&mut core.wheel, key, at);
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

/// Drops the part of message `send` that has not left: the target does not take it.
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
