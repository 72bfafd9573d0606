//! How an initiator takes in acknowledgements, NACKs, credit and the requests of targets.

use weft_cc::{AckSample, HostReport, NackCause, NackSample, Span, Time};

use super::connection::{Busy, Connection};
use super::context::Context;
use super::core::Core;
use super::initiator::{Initiator, complete_send, count_rivals, unsent_bytes};
use super::liveness::is_overdue;
use super::target::{nack, trim_code};
use super::transmit::{poll_interval, send_control};
use super::turns::Turns;
use super::{Failure, FepConfig};
use crate::event::Event;
use crate::packet::{Addr, Packet, Payload};
use crate::pdc::{Evidence, NackOutcome, PacketKind, PdcConfig, TxPdc, TxRecord, TxState};
use crate::ses::SendMessage;
use crate::spray::PathFeedback;
use crate::table::{Key, Table};
use crate::wire::pds::{
    Ack, AckCc, AckRequest, AckTrigger, CcState, Control, ControlKind, DeliveryMode, Destination, Nack,
    NackCode, NextHeader, PdcId, Psn,
};
use crate::wire::ses::{ReturnCode, Ses};

/// The reaction of an initiator to a NACK code.
enum Verdict {
    /// The payload was cut off on the way.
    Trimmed(NackCause),
    /// Send it again: the target could not take it in this order, or lost it.
    Again,
    /// Send it again later.
    Busy,
    /// The target has the packet, but its response is not ready. The timer asks again.
    Patience,
    /// Give the PDC up.
    Fatal,
}

/// NACK codes 0E 0F 10 11 13 16 19 close the PDC, the others lead to retransmission, at once or,
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
        | NackCode::PDC_MODE_MISMATCH
        | NackCode::UNEXP_EVENT
        | NackCode::EXP_FATAL => Verdict::Fatal,
        code if code.asks_to_wait() => Verdict::Busy,
        NackCode::RCVD_SES_PROCG => Verdict::Patience,
        _ => Verdict::Again,
    }
}

impl Initiator {
    pub(super) fn on_ack(
        &mut self,
        core: &mut Core,
        now: Time,
        waited: Span,
        packet: &Packet,
        ack: &Ack,
        payload: Payload<'_>,
    ) {
        let with_data = matches!(ack.next, NextHeader::ResponseData | NextHeader::ResponseDataSmall);
        if with_data && packet.net.class.is_trimmed() {
            return self.on_trimmed_response(core, now, packet, ack);
        }
        let Initiator { connections, contexts, sends, delivered, .. } = self;
        let Some((key, connection)) = find(connections, ack.dpdcid, packet.net.src) else {
            return deny(core, now, packet, ack, Psn(0), "ACK for no connection of its sender");
        };
        let Some(context) = contexts.get_mut(connection.context) else { return };
        if !matches!(packet.ses, Ses::None) && connection.pdc.accepts(ack) {
            match take_response(sends, &connection.pdc, ack, &packet.ses, payload) {
                Outcome::Nothing => {}
                Outcome::Refused(send) => forgo_rest(&core.config, sends, send, connection, context),
                Outcome::Contradiction => {
                    return core.ignore(now, packet, "response with data that does not fit its request");
                }
            }
        }
        // A mark on a response with data counts as one on its request: the response passes the queues that the reader's
        // window is there to limit.
        let ecn = ack.ecn || with_data && packet.net.ecn;
        let mut was_spurious = false;
        let id = connection.pdc.id;
        let outcome = context.track(&mut connection.pdc, |pdc| {
            pdc.on_ack(now, ack, |psn, record, spurious| {
                if spurious {
                    core.events.emit(now, Event::SpuriousLoss { pdc: id, psn });
                    was_spurious = true;
                }
                note_arrived(sends, delivered, record);
            })
        });
        let Some(outcome) = outcome else {
            let why = "ACK outside what was sent";
            match connection.pdc.destination(ack.cack_psn) {
                Destination::Pdc(id) if id == ack.spdcid => core.ignore(now, packet, why),
                Destination::Pdc(_) => deny(core, now, packet, ack, Psn(0), why),
                Destination::Syn { .. } => {
                    deny(core, now, packet, ack, connection.pdc.start_psn(), why);
                    if ack.is_question() && try_again(core, now, connection, context) {
                        let context_key = connection.context;
                        self.unblock(&core.config, context_key);
                        self.make_ready(key);
                    }
                }
            }
            return;
        };
        context.hear(now);
        if outcome.progress || outcome.newly_received > 0 {
            connection.on_progress(now);
            context.progress_at = now;
        }
        let remote_queueing = match &ack.cc {
            Some(AckCc { state: CcState::Nscc(state), .. }) => state.service_span(),
            Some(cc) => heed_echo(connection, context, cc),
            None => Span::ZERO,
        };
        if let Some(rtt) = outcome.rtt {
            context.rtt.sample(now, rtt, waited + remote_queueing);
        }
        if was_spurious {
            context.rtt.on_spurious_loss();
        }
        let rtt = outcome.rtt;
        let (cack, remote, local) = (ack.cack_psn, remote_queueing, waited);
        core.events.emit(now, Event::AckReceived { pdc: id, cack, rtt, remote, local, ecn });
        if !outcome.probe {
            let feedback = if ecn { PathFeedback::Ecn } else { PathFeedback::Good };
            context.path_feedback(now, packet.net.entropy, feedback);
        }
        let flow_control = outcome.flow_control;
        let hosts = HostReport { remote_queueing, local_rx_delay: waited, flow_control };
        context.on_ack(
            now,
            &AckSample {
                newly_received: u32::try_from(outcome.newly_received).unwrap_or(u32::MAX),
                trigger_bytes: outcome.trigger_bytes,
                rtt: outcome.rtt.and_then(|rtt| less(rtt, waited + remote_queueing)),
                ecn,
                in_flight: context.in_flight(),
                out_of_order: outcome.out_of_order,
                hosts: hosts.if_any(),
            },
        );
        if let Some(total) = outcome.credit {
            connection.ask_at = None;
            context.on_credit_total(total);
        }
        let PdcConfig { infer_loss, rto_init, .. } = core.zone(context.zone).pdc;
        if infer_loss {
            connection.probed |= outcome.probe && !outcome.progress;
            let evidence = outcome.rtt.map(|_| connection.pdc.evidence(ack));
            look_for_losses(core, now, key, connection, context, evidence, outcome.progress);
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
        connection.wake(&mut core.wheel, key, now + rto_init);
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
        core.events.emit(now, Event::NackReceived { pdc: connection.pdc.id, psn: nack.psn, code: nack.code });
        self.on_refusal(core, now, key, packet, nack);
    }

    /// A switch has cut off the data of a response. The initiator sends no NACK: it sends the request again when its window
    /// permits, and the target repeats the response. So the window limits repeated data as it limits new data.
    #[cold]
    fn on_trimmed_response(&mut self, core: &mut Core, now: Time, packet: &Packet, ack: &Ack) {
        let found = find(&mut self.connections, ack.dpdcid, packet.net.src);
        let Some((key, connection)) = found.filter(|(_, connection)| connection.pdc.accepts(ack)) else {
            return core.ignore(now, packet, "trimmed response for no connection of its sender");
        };
        let (peer, pdc, context) = (packet.net.src, connection.pdc.id, connection.context);
        let psn = triggering(ack).filter(|psn| is_read(&connection.pdc, *psn));
        if let Some(psn) = psn {
            core.events.emit(now, Event::TrimmedReceived { peer, pdc, psn });
        }
        // This can be a copy that comes when the read is over. Even then its header may be the only one that brings its
        // news of other packets.
        self.on_header(core, now, key, ack);
        match psn {
            Some(psn) => {
                let nack = nack(trim_code(packet.net.class), psn, ack.dpdcid, ack.spdcid);
                let ecn = ack.ecn || packet.net.ecn;
                self.on_refusal(core, now, key, packet, &Nack { ecn, retx: ack.retx, ..nack });
            }
            None => core.ignore(now, packet, "trimmed response to no read that waits for one"),
        }
        // The header may have opened the window although the response answers an earlier transmission, or a read that is over.
        self.unblock(&core.config, context);
        self.make_ready(key);
    }

    /// Takes in what the header of a response without its data says of other packets than the one that it answers.
    #[cold]
    fn on_header(&mut self, core: &mut Core, now: Time, key: Key, ack: &Ack) {
        let Initiator { connections, contexts, sends, delivered, .. } = self;
        let Some(connection) = connections.get_mut(key) else { return };
        let Some(context) = contexts.get_mut(connection.context) else { return };
        let pdc_id = connection.pdc.id;
        let outcome = context.track(&mut connection.pdc, |pdc| {
            pdc.on_trimmed_response(now, ack, |psn, record, spurious| {
                if spurious {
                    core.events.emit(now, Event::SpuriousLoss { pdc: pdc_id, psn });
                }
                note_arrived(sends, delivered, record);
            })
        });
        let Some(outcome) = outcome else { return };
        context.hear(now);
        if outcome.progress || outcome.newly_received > 0 {
            connection.on_progress(now);
            context.progress_at = now;
            let newly_received = u32::try_from(outcome.newly_received).unwrap_or(u32::MAX);
            let (in_flight, out_of_order) = (context.in_flight(), outcome.out_of_order);
            // Its mark and its path are those of the trimmed packet, and are reported together with the trim.
            let (trigger_bytes, rtt, ecn, hosts) = (0, None, false, None);
            let sample =
                AckSample { newly_received, trigger_bytes, rtt, ecn, in_flight, out_of_order, hosts };
            context.on_ack(now, &sample);
        }
        if let Some(total) = outcome.credit {
            connection.ask_at = None;
            context.on_credit_total(total);
        }
        if core.zone(context.zone).pdc.infer_loss {
            look_for_losses(core, now, key, connection, context, None, outcome.progress);
        }
        delivered.drain(..).for_each(|send| complete_send(sends, core, send));
        if connection.pdc.state == TxState::Closed {
            let result = connection.close_result();
            self.remove_connection(core, now, key, result);
        }
    }

    /// A packet of connection `key`, or the response to it, has to be sent again, for the reason that `nack` gives.
    fn on_refusal(&mut self, core: &mut Core, now: Time, key: Key, packet: &Packet, nack: &Nack) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let (pdc, peer) = (connection.pdc.id, connection.pdc.peer);
        let verdict = verdict(nack.code);
        let Some(context) = self.contexts.get_mut(connection.context) else { return };
        context.hear(now);
        connection.refused = Some(nack.code);
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
        let outcome = context.track(&mut connection.pdc, |pdc| pdc.on_nack(now, nack, packet.net.entropy));
        let Some(outcome) = outcome else {
            // Whichever transmission this NACK answers, the target was busy. Without a pause a ROD connection would
            // send all packets behind the refused one again, as fast as the target refuses them.
            let ordered = connection.pdc.mode == DeliveryMode::Rod;
            if ordered && matches!(verdict, Verdict::Busy) && connection.pdc.is_in_flight(nack.psn) {
                put_off(core, now, key, connection, context, nack);
            }
            return core.ignore(now, packet, "NACK for an earlier transmission");
        };
        context.hear(now);
        context.on_feedback();
        let waits = match verdict {
            Verdict::Trimmed(cause) => {
                note_trim(now, context, nack, &outcome, cause);
                false
            }
            Verdict::Again if nack.code == NackCode::ROD_OOO => {
                // The packets before the refused one have been looked at, and are to be sent again.
                let looked_at = nack.psn.distance(connection.pdc.first_unacknowledged()).max(0) as u32;
                core.burst_ends_at = core.burst_ends_at.saturating_sub(looked_at);
                let config = &core.zone(context.zone).pdc;
                let rto = context.rto(config);
                let silence = config.silence(rto);
                if is_misled(now, connection, nack, &outcome, silence) {
                    let failure = Failure::FalseAck { pdc, peer, psn: Psn(nack.payload) };
                    return self.fail(core, now, key, failure);
                }
                connection.pdc.goes_back_in_vain(now, rto)
            }
            Verdict::Busy => true,
            _ => false,
        };
        if waits {
            put_off(core, now, key, connection, context, nack);
        }
        let context_key = connection.context;
        if is_overdue(&core.config, now, connection, context) {
            // Its timer gives it up, since only so many connections may end in a turn.
            connection.wake(&mut core.wheel, key, now);
            return;
        }
        self.unblock(&core.config, context_key);
        // A connection that was put off does not go on until its pause is over.
        if !waits {
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
            if !is_credit {
                let nack = nack(NackCode::INV_DPDCID, control.psn, control.spdcid, id);
                core.send_nack(now, packet, nack);
            }
            return core.ignore(now, packet, why);
        };
        let context_key = connection.context;
        if !is_credit {
            if !connection.pdc.is_named_by(control.spdcid, control.psn) {
                return core.ignore(
                    now,
                    packet,
                    "CLOSE_REQ that does not name the target's PDC and its CACK",
                );
            }
            if let Some(context) = self.contexts.get_mut(context_key) {
                context.hear(now);
            }
            if connection.close_at_peers_request() {
                connection.make_ready(&mut self.ready, key);
            }
            return;
        }
        connection.ask_at = None;
        if let Some(context) = self.contexts.get_mut(context_key) {
            context.hear(now);
            context.on_credit_total(control.payload & 0xff_ffff);
            count_rivals(&mut self.stocked, context);
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

/// A packet has arrived that has this `record`: its message may be `delivered`.
#[inline(always)]
fn note_arrived(sends: &mut Table<SendMessage>, delivered: &mut Vec<Key>, record: &TxRecord) {
    if let Some(send) = record.kind().send()
        && let Some((send, message)) = sends.at_mut(send)
    {
        message.unacknowledged -= 1;
        if message.is_delivered() {
            delivered.push(send);
        }
    }
}

/// Ignores an acknowledgement for another PDC than the one that has its PDCID, if any. If it asks for an answer, the
/// target is told that its PDC has no initiator any more. The payload, which UET leaves free here, is the Start_PSN of the
/// connection that is to be opened under the same PDCID, or 0 if there is none.
#[cold]
fn deny(core: &mut Core, now: Time, packet: &Packet, ack: &Ack, start: Psn, why: &'static str) {
    if ack.request == AckRequest::Clear {
        let nack = nack(NackCode::INV_DPDCID, ack.cack_psn, ack.spdcid, ack.dpdcid);
        core.send_nack(now, packet, Nack { payload: start.0, ..nack });
    }
    core.ignore(now, packet, why);
}

/// The target has asked about a PDC that somebody has opened in the name of `connection`, and has ignored what the connection has
/// sent. Returns whether that is sent again.
#[cold]
fn try_again(core: &Core, now: Time, connection: &mut Connection, context: &mut Context) -> bool {
    let least = Span::from_ps(core.zone(context.zone).pdc.rto_init.as_ps() / 64);
    context.track(&mut connection.pdc, |pdc| pdc.sends_first_again(now, least))
}

/// The part of an RTT that packets did not spend waiting in the hosts; none if the two contradict each other.
#[inline]
fn less(rtt: Span, waited: Span) -> Option<Span> {
    (waited <= rtt).then(|| rtt.minus(waited))
}

/// Does what an acknowledgement asks for.
#[inline(never)]
fn on_ack_request(
    core: &mut Core,
    now: Time,
    key: Key,
    connection: &mut Connection,
    context: &mut Context,
    ready: &mut Turns,
    ack: &Ack,
) {
    let clear = connection.pdc.clear_psn();
    let is_ahead = clear.distance(ack.cack_psn) > 0;
    match ack.request {
        // The target asks whether the connection is there (TargetPdc::on_stray_syn), and takes silence for a no. A request
        // may wait for the window longer than the target waits for an answer.
        AckRequest::Clear if ack.is_question() => {
            send_control(core, now, connection, context, ControlKind::ClearCommand, clear.0, 0);
        }
        // The next request will clear it.
        AckRequest::Clear if is_ahead && connection.sends_soon() => {}
        // A response stands just behind CACK: it can be cleared once we know everything up to it. With nothing to clear
        // the answer says that the connection is there.
        AckRequest::Clear if clear == ack.cack_psn || is_ahead && connection.cleared != Some(clear) => {
            connection.cleared = Some(clear);
            send_control(core, now, connection, context, ControlKind::ClearCommand, clear.0, 0);
        }
        AckRequest::Close
            if connection.pdc.is_named_by(ack.spdcid, ack.cack_psn)
                && connection.close_at_peers_request() =>
        {
            connection.make_ready(ready, key);
        }
        _ => {}
    }
}

/// Tells congestion control and balancer of a trimmed packet.
fn note_trim(now: Time, context: &mut Context, nack: &Nack, outcome: &NackOutcome, cause: NackCause) {
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

/// Whether the target of an ordered connection expects a packet that was acknowledged, by the target or by somebody in
/// its name, so that nobody sends it any more. A refusal that left before the packet came may arrive after the packet's
/// acknowledgement. So the refused packet must have left after that acknowledgement. If it is unknown which
/// transmission was refused, nothing must have arrived for as long as a peer may be silent.
#[cold]
fn is_misled(now: Time, connection: &Connection, nack: &Nack, outcome: &NackOutcome, silence: Span) -> bool {
    let stuck = now.since(connection.progress_at);
    let proves = outcome.rtt.map_or(stuck >= silence, |age| age < stuck);
    proves && connection.pdc.mode == DeliveryMode::Rod && connection.pdc.was_acknowledged(Psn(nack.payload))
}

/// The target lacks a resource, or refuses all of an ordered connection again and again: the connection pauses, and polls
/// it ever more rarely, with another message each time: the target may have a receive for one of them, or keep room for
/// what comes first. The refused bytes are no longer in flight, so the caller has to let other connections try; the
/// connection itself must not wait for a window that nothing will open.
fn put_off(
    core: &mut Core,
    now: Time,
    key: Key,
    connection: &mut Connection,
    context: &mut Context,
    nack: &Nack,
) {
    let code = nack.code;
    let first =
        Busy { code, since: now, refused_at: connection.progress_at, until: now, count: 0, polled: true };
    let busy = connection.pause.get_or_insert_with(|| Box::new(first));
    if code != NackCode::NO_PDC_AVAIL {
        busy.refused_at = now;
    }
    // Refusals of packets that left before the pause began do not lengthen it.
    if busy.polled {
        if busy.count > 0 {
            connection.pdc.postpone([nack.psn]);
        }
        let messages = connection.pdc.lost_messages();
        let until = busy.until.latest(now + poll_interval(&core.config, context, busy.count, messages));
        **busy = Busy { code, until, polled: false, ..**busy };
        connection.wake(&mut core.wheel, key, until);
    }
}

/// Infers losses after an acknowledgement, for fabrics that drop, and schedules the next look for overdue packets.
/// `evidence` is `None` if the RTT of what triggered it is not known.
#[inline(never)]
fn look_for_losses(
    core: &mut Core,
    now: Time,
    key: Key,
    connection: &mut Connection,
    context: &mut Context,
    evidence: Option<Evidence>,
    progress: bool,
) {
    let patience = context.patience(&core.zone(context.zone).pdc);
    if let Some(evidence) = evidence {
        let mut lost = Vec::new();
        context.track(&mut connection.pdc, |pdc| {
            pdc.infer_losses(now, evidence, patience.reach, |psn, record| lost.push((psn, *record)));
        });
        for (psn, record) in &lost {
            note_inferred_loss(core, now, connection.pdc.id, context, *psn, record);
        }
        if !lost.is_empty() {
            // The peer owes no answers to what is known to be lost.
            context.hear(now);
        }
    }
    if progress {
        connection.pdc.on_news();
    }
    connection.probe_at = connection.pdc.probe_not_before(&patience);
    if let Some(at) = connection.probe_at {
        connection.wake(&mut core.wheel, key, at);
    }
}

#[cold]
fn note_inferred_loss(
    core: &mut Core,
    now: Time,
    pdc: PdcId,
    context: &mut Context,
    psn: Psn,
    record: &TxRecord,
) {
    let (bytes, cause) = (u64::from(record.bytes), NackCause::InferredLoss);
    context.on_nack(now, NackSample { bytes, cause, ecn: false, rtt: None, in_flight: 0 });
    context.path_feedback(now, record.entropy, PathFeedback::Nack);
    core.events.emit(now, Event::LossInferred { pdc, psn });
}

/// The packet that triggered `ack`; `None` if that was a probe.
fn triggering(ack: &Ack) -> Option<Psn> {
    match ack.trigger {
        AckTrigger::Psn(offset) => Some(ack.cack_psn.offset(i32::from(offset))),
        AckTrigger::Probe(_) => None,
    }
}

/// Whether packet `psn` of `pdc` is a read that waits for its answer.
fn is_read(pdc: &TxPdc, psn: Psn) -> bool {
    pdc.unanswered(psn).is_some_and(|record| matches!(record.kind(), PacketKind::Read { .. }))
}

/// The meaning of a response for the message of its request.
enum Outcome {
    /// No more than its acknowledgement says.
    Nothing,
    /// The target takes no more of this message, or answers no more of this read.
    Refused(Key),
    /// It contradicts the request.
    Contradiction,
}

/// Takes in the response that came with `ack`: an error, or the bytes of a read. The packet that it answers must still
/// wait for an answer: message numbers come round, and copies come late.
#[inline(never)]
fn take_response(
    sends: &mut Table<SendMessage>,
    pdc: &TxPdc,
    ack: &Ack,
    response: &Ses,
    payload: Payload<'_>,
) -> Outcome {
    let Some(psn) = triggering(ack) else { return Outcome::Nothing };
    let Some(kind) = pdc.unanswered(psn).map(|record| record.kind()) else { return Outcome::Nothing };
    let Some((send, message)) = kind.send().and_then(|send| sends.at_mut(send)) else {
        return Outcome::Nothing;
    };
    let (msg_id, read) = match kind {
        PacketKind::Read { offset, len, .. } => {
            let (at, wanted) = message.room_for(offset, len);
            (message.read_id(offset), Some((at, wanted, len)))
        }
        _ => (message.msg_id, None),
    };
    let (code, names_it, len) = match response {
        Ses::Response(response) => (response.return_code, response.msg_id == msg_id, None),
        Ses::ResponseWithData(response) => {
            (response.return_code, response.read_request_msg_id == msg_id, Some(response.payload_len))
        }
        Ses::SmallResponseWithData(response) => {
            (response.return_code, response.original_request_psn == psn.0, Some(response.payload_len))
        }
        _ => return Outcome::Nothing,
    };
    match (code, len, read) {
        _ if !names_it && len.is_none() => Outcome::Nothing,
        _ if !names_it => Outcome::Contradiction,
        (ReturnCode::OK | ReturnCode::NULL, Some(present), Some((at, wanted, len))) => {
            if u32::from(present) != wanted || payload.len() != wanted {
                return Outcome::Contradiction;
            }
            message.buffer.place(at, payload);
            // All bytes that the request asked for have come back.
            message.read += len;
            Outcome::Nothing
        }
        (ReturnCode::OK | ReturnCode::NULL, Some(_), None) => Outcome::Contradiction,
        (ReturnCode::OK | ReturnCode::NULL, None, _) => Outcome::Nothing,
        (code, ..) => {
            message.refusal = Some(code);
            // An access is over with its first error. The rest of a message is refused only if its process is missing
            // or belongs to another job.
            let refuses_all = [ReturnCode::BAD_PID, ReturnCode::BAD_JOB_ID].contains(&code);
            let ends = message.is_access() || refuses_all;
            if ends { Outcome::Refused(send) } else { Outcome::Nothing }
        }
    }
}

/// Tells the algorithm how many switches a packet has passed, if `cc` is a delay echo. Returns the time that the packet has
/// waited at the target.
#[cold]
fn heed_echo(connection: &Connection, context: &mut Context, cc: &AckCc) -> Span {
    let Some(echo) = connection.pdc.echo(cc) else { return Span::ZERO };
    if echo.hops > 0 {
        context.on_hops(echo.hops);
    }
    echo.queued().unwrap_or(Span::ZERO)
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
    context.leave_backlog(connection, unsent_bytes(config, message));
    message.cut_short();
    let place = message.place;
    connection.withdraw(sends, send, place);
}
