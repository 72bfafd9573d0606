//! Timers of connections, contexts, PDCs and credit.
//!
//! Wake-ups are lazy: for each owner the wheel holds at least one entry at or before its deadline, and an entry that
//! comes due too early is inserted again. Deadlines that move later, as they do with every acknowledgement, cost
//! nothing.

use weft_cc::Time;

use super::connection::Connection;
use super::context::Context;
use super::core::Core;
use super::initiator::Initiator;
use super::target::Target;
use super::transmit::{request_credit, send_control};
use super::{Failure, Fep};
use crate::event::Event;
use crate::pdc::{Overdue, TxPdc};
use crate::spray::PathFeedback;
use crate::table::Key;
use crate::wire::pds::{ControlKind, Psn};

/// The owner of a timer.
#[derive(Clone, Copy, Debug)]
pub(super) enum TimerKey {
    /// A connection: retransmission, probes, pauses.
    Connection(Key),
    /// A congestion context: pacing.
    Context(Key),
    /// A PDC that a peer has opened: detects that the peer is gone.
    Pdc(Key),
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

    /// Does the work that is due by `now`, if any.
    pub fn on_timeout(&mut self, now: Time) {
        let Fep { core, initiator, target } = self;
        let mut due = std::mem::take(&mut core.due);
        core.wheel.expire(now, &mut due);
        for key in due.drain(..) {
            match key {
                TimerKey::Connection(key) => initiator.on_connection_timer(core, now, key),
                TimerKey::Context(key) => initiator.on_context_timer(core, key),
                TimerKey::Pdc(key) => target.on_pdc_timer(core, now, key),
                TimerKey::Closed => target.on_closed_timer(core, now),
                TimerKey::PendingCredit => target.on_pending_credit_timer(core, now),
                TimerKey::Credit => target.on_credit_timer(),
            }
        }
        core.due = due;
        target.grant_credit(core, now);
    }
}

impl Initiator {
    fn on_context_timer(&mut self, core: &Core, key: Key) {
        if let Some(context) = self.contexts.get_mut(key) {
            context.timer = None;
        }
        self.unblock(&core.config, key);
    }

    fn on_connection_timer(&mut self, core: &mut Core, now: Time, key: Key) {
        let config = core.config.pdc;
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.timer.is_some_and(|timer| now.is_before(timer)) {
            return;
        }
        connection.timer = None;
        let context_key = connection.context;
        let Some(context) = self.contexts.get_mut(context_key) else { return };
        let pdc = connection.pdc.id;
        let mut expired = Vec::new();
        let overdue = context.track(&mut connection.pdc, |pdc| {
            pdc.on_timer(now, &config, |psn, record| expired.push((psn, *record)))
        });
        for (psn, record) in expired {
            context.on_timeout(now, u64::from(record.bytes));
            context.path_feedback(now, record.entropy, PathFeedback::Timeout);
            core.events.emit(now, Event::Timeout { pdc, psn, count: record.timeouts });
        }
        match overdue {
            Overdue::Failed(psn) => {
                let failure = no_answer(now, &connection.pdc, psn);
                return self.fail(core, now, key, failure);
            }
            Overdue::AskForAck => {
                connection.cleared = None;
                send_control(core, now, connection, context, ControlKind::AckRequest, 0, 0);
            }
            Overdue::Resend => {
                leave_path(now, connection, context);
                self.unblock(&core.config, context_key);
            }
            Overdue::Nothing => {}
        }
        self.on_secondary_timers(core, now, key);
        if let Some(connection) = self.connections.get_mut(key) {
            connection.make_ready(&mut self.ready, key);
            if let Some(at) = connection.pdc.deadline(&config) {
                connection.wake(&mut core.wheel, key, at);
            }
        }
    }

    /// Sends probes and requests for credit, and ends pauses.
    fn on_secondary_timers(&mut self, core: &mut Core, now: Time, key: Key) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let Some(context) = self.contexts.get_mut(connection.context) else { return };
        if connection.probe_at.is_some_and(|at| now.is_at_or_after(at)) {
            // Probes have priority over data. If the path is longer or slower than assumed, they must not fill it.
            let doubled = 1 << connection.unanswered_probes.min(10);
            connection.unanswered_probes = connection.unanswered_probes.saturating_add(1);
            let retry = now + context.snapshot().base_rtt.times(5 * doubled);
            connection.probe_at = (!connection.pdc.is_idle()).then_some(retry);
            if connection.probe_at.is_some() {
                let opaque = connection.pdc.send_probe(now);
                let base = connection.pdc.first_unacknowledged();
                send_control(core, now, connection, context, ControlKind::Probe, base.0, opaque);
            }
        }
        if let Some(wait) = connection.credit_wait.as_mut().filter(|wait| now.is_at_or_after(wait.ask_at)) {
            wait.ask_at = now + core.config.pdc.rto_init;
            let waited = now.since(wait.since);
            if !connection.has_work() {
                connection.credit_wait = None;
            } else if waited > core.config.busy_timeout {
                let (pdc, peer) = (connection.pdc.id, connection.pdc.peer);
                let psn = connection.pdc.first_unacknowledged();
                return self.fail(core, now, key, Failure::NoCredit { pdc, peer, psn, waited });
            } else {
                request_credit(core, now, connection, context);
            }
        }
        let pause = connection.pause.as_ref().map(|busy| busy.until).filter(|until| now.is_before(*until));
        let ask_at = connection.credit_wait.map(|wait| wait.ask_at);
        for at in [connection.probe_at, ask_at, pause].into_iter().flatten() {
            connection.wake(&mut core.wheel, key, at);
        }
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

fn no_answer(now: Time, pdc: &TxPdc, psn: Psn) -> Failure {
    let (since, sent) = pdc.waiting_since(psn).unwrap_or((now, 0));
    Failure::NoAnswer { pdc: pdc.id, peer: pdc.peer, psn, waited: now.since(since), sent }
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

    /// Asks whether the initiator of a PDC is alive after the idle time, and gives the PDC up after twice that time.
    fn on_pdc_timer(&mut self, core: &mut Core, now: Time, key: Key) {
        let idle = core.config.idle_timeout;
        let Some(pdc) = self.pdcs.table.get_mut(key) else { return };
        let silent_since = pdc.rx.last_heard;
        let limit = if pdc.asked { idle.times(2) } else { idle };
        if now.is_before(silent_since + limit) {
            core.wheel.insert(silent_since + limit, TimerKey::Pdc(key));
        } else if pdc.asked {
            self.remove(core, now, key);
        } else {
            pdc.request_close(core, now);
            core.wheel.insert(silent_since + idle.times(2), TimerKey::Pdc(key));
        }
    }
}
