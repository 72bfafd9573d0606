//! Timers of connections, contexts, PDCs and credit.
//!
//! Wake-ups are lazy: for each owner the wheel holds at least one entry at or before its deadline, and an entry that
//! comes due too early is inserted again. Deadlines that move later, as they do with every acknowledgement, cost
//! nothing.

use weft_cc::{Span, Time};

use super::connection::{Connection, Standing};
use super::context::Context;
use super::core::{Core, EarlyShare};
use super::initiator::Initiator;
use super::liveness::Others;
use super::target::Target;
use super::transmit::{request_credit, send_control, send_probes};
use super::{Fep, liveness};
use crate::event::Event;
use crate::pdc::{Overdue, PdcConfig, ProbesDue, TxPdc, TxRecord};
use crate::spray::PathFeedback;
use crate::table::Key;
use crate::wire::pds::{ControlKind, PdcId, Psn};

/// PDCs that end in a call because their peers have been silent, or were given up, or in the middle of many messages.
pub const SILENT_PER_CALL: usize = 8;
/// Messages, writes and early packets that go with them in a call, but for those of the last one.
pub const MESSAGES_PER_CALL: usize = 2048;
/// Initiators that have been silent and are asked in a call whether they are there.
pub const QUESTIONS_PER_CALL: usize = 64;
/// Connections whose timers are due and are handled in a call, or that end with them.
pub const CONNECTIONS_PER_CALL: usize = 64;
/// Packets of these that are not acknowledged, and looks at connections that may have to end with them, but for those of the last one.
pub const PACKETS_PER_CALL: usize = 2048;

/// Slots of PDCs in which a call looks for those of peers that were given up.
const LOOKS_PER_CALL: usize = 1024;

/// The work that one call of [`Fep::on_timeout`] may still do. The timers of thousands of connections can expire together, and thousands
/// of PDCs can lose their peers together. Each connection has up to a window of packets, and each PDC up to two windows of messages of
/// which parts are missing.
struct Share {
    /// Connections whose timers may be handled, or that may end.
    connections: usize,
    /// Their packets, and connections behind them, that may be looked at, but for those of the last one.
    packets: usize,
    /// PDCs that may end.
    ends: usize,
    /// Messages, writes and early packets that may go with them, but for those of the last one.
    messages: usize,
    /// Initiators that may be asked whether they are there.
    questions: usize,
    /// Slots in which it may look for PDCs of peers that were given up.
    looks: usize,
}

impl Share {
    const OF_A_CALL: Share = Share {
        connections: CONNECTIONS_PER_CALL,
        packets: PACKETS_PER_CALL,
        ends: SILENT_PER_CALL,
        messages: MESSAGES_PER_CALL,
        questions: QUESTIONS_PER_CALL,
        looks: LOOKS_PER_CALL,
    };

    fn may_end(&self) -> bool {
        self.ends > 0 && self.messages > 0
    }

    fn has_connections(&self) -> bool {
        self.connections > 0 && self.packets > 0
    }

    /// The timer of a connection with so many packets is handled.
    fn note_connection(&mut self, packets: usize) {
        self.connections -= 1;
        self.packets = self.packets.saturating_sub(packets);
    }

    /// Others have ended with it.
    fn note_others(&mut self, others: &Others) {
        self.connections = self.connections.saturating_sub(others.connections);
        self.packets = self.packets.saturating_sub(others.steps);
    }

    /// A PDC ends, and so many messages with it.
    fn note_end(&mut self, messages: usize) {
        self.ends -= 1;
        self.messages = self.messages.saturating_sub(messages);
    }
}

/// The owner of a timer.
#[derive(Clone, Copy, Debug)]
pub(super) enum TimerKey {
    /// A connection: retransmission, probes, pauses.
    Connection(Key),
    /// A congestion context: pacing.
    Context(Key),
    /// The PDC in this slot, which a peer has opened: detects that the peer is gone.
    Pdc(u32),
    /// What has been put off of PDCs whose peers are silent, or were given up, or that are over.
    PutOff,
    /// Connections whose timers were due in an earlier call.
    Late,
    /// The records of closed PDCs.
    Closed,
    /// The credit scheduler.
    Credit,
    /// Senders that asked for credit and have not opened a PDC.
    PendingCredit,
}

impl Fep {
    /// When [`Fep::on_timeout`] is due; `None` while only packets and calls can cause work.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.core.wheel.next_deadline()
    }

    /// Does the work that is due by `now`, if any. If the timers of many connections expire together, if many PDCs have silent or lost
    /// peers, if many that asked for credit are silent, or if early messages were put off, a call may do only a part of the work: then
    /// [`Fep::poll_timeout`] is not after `now`, and the rest is for the next call.
    pub fn on_timeout(&mut self, now: Time) {
        let Fep { core, initiator, target, .. } = self;
        let mut share = Share::OF_A_CALL;
        let mut due = std::mem::take(&mut core.due);
        core.wheel.expire(now, &mut due);
        initiator.handle_late(core, now, &mut share);
        for key in due.drain(..) {
            match key {
                TimerKey::Connection(key) => initiator.on_connection_timer(core, now, key, &mut share),
                TimerKey::Context(key) => initiator.on_context_timer(core, key),
                TimerKey::Pdc(slot) => {
                    if !target.on_pdc_timer(core, now, slot, &mut share) {
                        target.pdcs.put_off_timer(slot);
                    }
                }
                TimerKey::Late => {}
                TimerKey::PutOff => target.do_put_off(core, now, &mut share),
                TimerKey::Closed => target.on_closed_timer(core, now),
                TimerKey::PendingCredit => target.on_pending_credit_timer(core, now),
                TimerKey::Credit => target.on_credit_timer(),
            }
        }
        core.due = due;
        if !core.late.is_empty() {
            core.wheel.insert(now, TimerKey::Late);
        }
        target.note_put_off(core, now);
        target.grant_credit(core, now);
    }

    /// Asks the initiators of all PDCs that peers have open here to close them, for an endpoint that is about to go: another one
    /// that is opened at its address later would refuse the next message on them. An initiator that has something to send goes on
    /// with it instead, and a request may be lost. So call this again and again until the endpoint goes: it asks each initiator
    /// once in a retransmission timeout at most, [`QUESTIONS_PER_CALL`] of them in a call, and all in turn.
    pub fn ask_to_close(&mut self, now: Time) {
        let Fep { core, target, .. } = self;
        let mut left = QUESTIONS_PER_CALL;
        let slots = target.pdcs.table.slots();
        for _ in 0..slots {
            let slot = if target.next_to_ask < slots { target.next_to_ask } else { 0 };
            target.next_to_ask = slot + 1;
            let Some((_, pdc)) = target.pdcs.table.at_mut(slot) else { continue };
            let rto = core.zone(core.zone_of(pdc.rx.peer)).pdc.rto_init;
            if pdc.asked_at.is_some_and(|at| now.is_before(at + rto)) {
                continue;
            }
            pdc.request_close(core, now);
            left -= 1;
            if left == 0 {
                return;
            }
        }
    }
}

impl Initiator {
    fn on_context_timer(&mut self, core: &Core, key: Key) {
        if let Some(context) = self.contexts.get_mut(key) {
            context.timer = None;
        }
        self.unblock(&core.config, key);
    }

    /// Handles timers of connections that were due in an earlier call.
    fn handle_late(&mut self, core: &mut Core, now: Time, share: &mut Share) {
        while share.has_connections()
            && let Some(key) = core.late.pop_front()
        {
            let Some(connection) = self.connections.get_mut(key) else { continue };
            core.late.pass(connection.source);
            connection.late = false;
            self.on_connection_timer(core, now, key, share);
        }
    }

    fn on_connection_timer(&mut self, core: &mut Core, now: Time, key: Key, share: &mut Share) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.late || connection.timer.is_some_and(|timer| now.is_before(timer)) {
            return;
        }
        if !share.has_connections() {
            if !core.late.is_divided() {
                core.late.divide(connection.source);
            }
            core.late.push_back(key, connection.source);
            connection.late = true;
            return;
        }
        share.note_connection(connection.pdc.unacknowledged_psns());
        connection.timer = None;
        if let Some(others) = self.check_life(core, now, key, share.connections) {
            share.note_others(&others);
            return;
        }
        self.on_retransmission_timer(core, now, key);
        self.on_probe_timer(core, now, key);
        self.on_credit_wait(core, now, key);
        self.make_ready(key);
        // A packet that leaves sets the timer, so that it comes due once more after the last packet has been answered.
        if let Some(connection) = self.connections.get_mut(key) {
            connection.give_back();
        }
        if self.connections.get(key).is_some_and(|connection| connection.standing == Standing::Overdue) {
            self.go_on(key);
        }
        self.set_timer(core, now, key);
    }

    /// Has packets sent again that have waited too long for an answer.
    fn on_retransmission_timer(&mut self, core: &mut Core, now: Time, key: Key) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let Some(context) = self.contexts.get_mut(connection.context) else { return };
        let (rto, news) = timeout(&core.zone(context.zone).pdc, connection, context);
        let mut expired = Vec::new();
        let overdue = context.track(&mut connection.pdc, |pdc| {
            pdc.on_timer(now, rto, news, |psn, record| expired.push((psn, *record)))
        });
        match overdue {
            Overdue::Nothing => {}
            Overdue::AskForAck => {
                connection.cleared = None;
                context.await_answer(now);
                send_control(core, now, connection, context, ControlKind::AckRequest, 0, 0);
            }
            Overdue::Resend => {
                note_timeout(core, now, connection.pdc.id, context, &expired);
                // A poll without an answer is followed by one with another message, as one that was refused is.
                if connection.pause.is_some() {
                    connection.pdc.postpone(expired.iter().map(|(psn, _)| *psn));
                }
                leave_path(now, connection, context);
                let context = connection.context;
                self.unblock(&core.config, context);
            }
        }
    }

    /// Sends probes, if packets are overdue.
    fn on_probe_timer(&mut self, core: &mut Core, now: Time, key: Key) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let Some(context) = self.contexts.get_mut(connection.context) else { return };
        if connection.probe_at.is_none_or(|at| now.is_before(at)) {
            return;
        }
        let patience = context.patience(&core.zone(context.zone).pdc);
        connection.probe_at = match connection.pdc.poll_probes(now, &patience) {
            ProbesDue::Now(probes) => {
                send_probes(core, now, connection, context, &probes);
                Some(now + patience.reach)
            }
            ProbesDue::At(at) => Some(at),
            ProbesDue::Never => None,
        };
    }

    /// Asks for credit again, if it is time or the target is silent: before it is given up, some requests may be lost.
    fn on_credit_wait(&mut self, core: &mut Core, now: Time, key: Key) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.ask_at.is_none_or(|at| now.is_before(at)) {
            return;
        }
        let Some(context) = self.contexts.get_mut(connection.context) else { return };
        if !connection.has_work() || connection.is_paused(now) {
            connection.ask_at = None;
            return;
        }
        let pdc = &core.zone(context.zone).pdc;
        let asks = connection.asks_again() || context.is_silent(now, pdc);
        connection.looks = connection.looks.wrapping_add(1);
        connection.ask_at = Some(now + connection.look_wait(pdc.rto_init));
        if asks {
            request_credit(core, now, connection, context);
        }
    }

    /// Schedules the next wake-up of a connection. One with nothing unacknowledged that has no other timer waits for
    /// others, and is given up with them.
    fn set_timer(&mut self, core: &mut Core, now: Time, key: Key) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let Some(context) = self.contexts.get(connection.context) else { return };
        let (rto, news) = timeout(&core.zone(context.zone).pdc, connection, context);
        let times = [
            connection.pdc.deadline(rto, news),
            connection.probe_at,
            connection.ask_at,
            connection.pause.as_ref().map(|busy| busy.until).filter(|until| now.is_before(*until)),
        ];
        let next = times.into_iter().flatten().reduce(Time::earliest);
        if next.is_none() && connection.pdc.is_idle() {
            return;
        }
        let end = liveness::deadline(&core.config, connection, context);
        if let Some(at) = next.into_iter().chain(end).reduce(Time::earliest) {
            connection.wake(&mut core.wheel, key, at);
        }
    }
}

/// The retransmission timeout of `connection`, and the time from which it runs at the earliest. Where losses are
/// inferred, the timer is the last resort, for silence: it runs from the last packet that arrived (RFC 6298 §5.3).
fn timeout(config: &PdcConfig, connection: &Connection, context: &Context) -> (Span, Option<Time>) {
    (context.rto(config), config.infer_loss.then_some(connection.progress_at))
}

/// Tells congestion control once of all packets that have expired together, and the balancer of each.
#[cold]
fn note_timeout(core: &mut Core, now: Time, pdc: PdcId, context: &mut Context, expired: &[(Psn, TxRecord)]) {
    let bytes = expired.iter().map(|(_, record)| u64::from(record.bytes)).sum();
    if let Some(sent_at) = expired.iter().map(|(_, record)| record.sent_at).reduce(Time::latest) {
        context.on_timeout(now, bytes, sent_at);
    }
    for (psn, record) in expired {
        context.path_feedback(now, record.entropy, PathFeedback::Timeout);
        core.events.emit(now, Event::Timeout { pdc, psn: *psn, count: record.timeouts });
    }
}

/// A packet of a ROD connection has timed out: its one path may have failed, so the connection changes to another.
///
/// All packets in flight are retransmitted on the new path, in order of PSNs. So all packets in flight are still on
/// one path, and a ROD_OOO still concerns only packets sent before the refused one. Copies that the old path delivers
/// late are harmless: a target accepts packets in order of PSNs whatever path they take, and NACKs that echo the old
/// entropy, or no RETX, refer to an earlier transmission and are ignored.
fn leave_path(now: Time, connection: &mut Connection, context: &mut Context) {
    let Some(entropy) = &mut connection.fixed_entropy else { return };
    *entropy = context.next_entropy(now, true);
    context.track(&mut connection.pdc, TxPdc::lose_all);
}

impl Target {
    fn on_closed_timer(&mut self, core: &mut Core, now: Time) {
        if let Some(until) = self.pdcs.forget_closed(now) {
            core.wheel.insert(until, TimerKey::Closed);
        }
    }

    fn on_credit_timer(&mut self) {
        if let Some(granter) = &mut self.granter {
            granter.timer = None;
        }
    }

    /// Asks whether the initiator of a PDC is alive after the idle time, again and again while no answer comes, and gives
    /// the PDC up after twice that time. Were it asked only once and the question lost, it would keep the PDC, and its
    /// next message would fail.
    ///
    /// Each slot has at most one entry in the wheel, however often its PDC makes room for another one: that finds the entry of the
    /// one before, which was set to the idle time from then at the latest, and so comes due before it needs one.
    ///
    /// Returns false if that is more than the `share` of this call permits.
    fn on_pdc_timer(&mut self, core: &mut Core, now: Time, slot: u32, share: &mut Share) -> bool {
        let idle = core.config.idle_timeout;
        let Some((key, pdc)) = self.pdcs.table.at_mut(slot) else {
            self.pdcs.end_timer(slot);
            return true;
        };
        let end = pdc.rx.last_heard + idle.times(2);
        if pdc.asked > 0 && now.is_at_or_after(end) {
            if !share.may_end() {
                return false;
            }
            self.pdcs.end_timer(slot);
            if !self.end_of_share(core, now, key, share) {
                self.pdcs.put_off_end(key);
            }
            return true;
        }
        let rto = core.zone(core.zone_of(pdc.rx.peer)).pdc.rto_init;
        if now.is_at_or_after(pdc.ask_at(idle, rto)) {
            if share.questions == 0 {
                return false;
            }
            share.questions -= 1;
            pdc.request_close(core, now);
        }
        let next = pdc.ask_at(idle, rto);
        let next = if pdc.asked > 0 { next.earliest(end) } else { next };
        core.wheel.insert(next, TimerKey::Pdc(slot));
        true
    }

    /// Does what has been put off, as much as in a call. A PDC whose peer has been heard of since, or another one in its slot, gets
    /// its timer back.
    #[cold]
    fn do_put_off(&mut self, core: &mut Core, now: Time, share: &mut Share) {
        self.pdcs.begin_put_off();
        // No kind waits for the others, however many there are: half of the share is for PDCs that end.
        core.early = EarlyShare::first_half(now);
        self.take_put_off_early(core, now);
        core.early.add_half();
        self.end_over(core, now, SILENT_PER_CALL / 2, share);
        self.end_given_up(core, now, SILENT_PER_CALL / 4, share);
        for _ in 0..share.ends + share.questions {
            let Some(slot) = self.pdcs.next_put_off() else { break };
            if !self.on_pdc_timer(core, now, slot, share) {
                self.pdcs.put_off_again(slot);
                break;
            }
        }
        self.end_over(core, now, SILENT_PER_CALL, share);
        self.end_given_up(core, now, SILENT_PER_CALL, share);
        // The rest of the share.
        self.take_put_off_early(core, now);
    }

    /// Ends PDCs of peers that were given up, `most` of them.
    fn end_given_up(&mut self, core: &mut Core, now: Time, most: usize, share: &mut Share) {
        for _ in 0..most {
            if !share.may_end() {
                return;
            }
            let Some((key, _)) = self.pdcs.next_given_up(&mut share.looks) else { return };
            if !self.end_of_share(core, now, key, share) {
                self.pdcs.put_off_end(key);
            }
        }
    }

    /// Ends PDCs that are over, `most` of them.
    fn end_over(&mut self, core: &mut Core, now: Time, most: usize, share: &mut Share) {
        for _ in 0..most {
            if !share.may_end() {
                return;
            }
            let Some((key, _)) = self.pdcs.next_over() else { return };
            if !self.end_of_share(core, now, key, share) {
                self.pdcs.put_off_end_again(key);
            }
        }
    }

    /// Ends a PDC as far as its early messages may be taken now, and counts in `share` what ends with it. Returns whether it is gone.
    fn end_of_share(&mut self, core: &mut Core, now: Time, key: Key, share: &mut Share) -> bool {
        let unfinished =
            |target: &Target| target.pdcs.table.get(key).map_or(0, |pdc| pdc.unfinished(&target.processes));
        let before = unfinished(self);
        let is_gone = self.end_in_part(core, now, key);
        let ended = before.saturating_sub(unfinished(self));
        if is_gone || ended > 0 {
            share.note_end(ended);
        }
        is_gone
    }

    /// Sees to it that there is a later call for what has been put off: one entry in the wheel for all of it, which is due.
    #[inline]
    pub(super) fn note_put_off(&mut self, core: &mut Core, now: Time) {
        if self.pdcs.must_note_put_off() {
            core.wheel.insert(now, TimerKey::PutOff);
        }
    }
}
