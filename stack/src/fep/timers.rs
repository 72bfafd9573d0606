//! What is done when time passes.
//!
//! Wake-ups are lazy: the wheel holds for each owner at least one entry at or before its deadline, and
//! an entry that comes too early is filed again. Deadlines that move later, as they do with every
//! acknowledgement, cost nothing.

use weft_cc::Time;

use super::{Failure, Fep};
use crate::event::Event;
use crate::packet::Addr;
use crate::pdc::{Overdue, TxPdc};
use crate::spray::PathFeedback;
use crate::table::Key;
use crate::wire::pds::{ControlKind, Psn};

/// Whose timer it is.
#[derive(Clone, Copy, Debug)]
pub(super) enum TimerKey {
    /// A connection: retransmission, probe, pause.
    Connection(Key),
    /// A congestion context: pacing.
    Context(Key),
    /// A PDC that a peer has opened: is the peer still there?
    Target(Key),
    /// The memory of closed PDCs.
    Closed,
    /// The credit scheduler.
    Credit,
    /// Senders that asked for credit and never opened a PDC.
    Knocking,
}

impl Fep {
    /// When [`Fep::on_timeout`] wants to be called; nothing while only packets can change anything.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.wheel.next_deadline()
    }

    /// Time has passed.
    pub fn on_timeout(&mut self, now: Time) {
        let mut due = std::mem::take(&mut self.due);
        self.wheel.expire(now, &mut due);
        for key in due.drain(..) {
            match key {
                TimerKey::Connection(key) => self.on_connection_timer(now, key),
                TimerKey::Context(key) => {
                    if let Some(context) = self.contexts.get_mut(key) {
                        context.timer = None;
                    }
                    self.unblock(key);
                }
                TimerKey::Target(key) => self.on_target_timer(now, key),
                TimerKey::Closed => {
                    self.targets.forget_closed(now);
                    if let Some(&(until, _)) = self.targets.closing_order.front() {
                        self.wheel.insert(until, TimerKey::Closed);
                    }
                }
                TimerKey::Knocking => self.sweep_knocking(now),
                TimerKey::Credit => {
                    if let Some(granter) = &mut self.granter {
                        granter.timer = None;
                    }
                }
            }
        }
        self.due = due;
        self.grant_credit(now);
    }

    /// Makes sure that connection `key` is looked at by `at`.
    pub(super) fn wake_connection(&mut self, key: Key, at: Time) {
        if let Some(connection) = self.connections.get_mut(key) {
            connection.wake(&mut self.wheel, key, at);
        }
    }

    /// Makes sure that a connection that has just sent, or heard, is looked at before anything of it can be overdue.
    pub(super) fn watch(&mut self, now: Time, key: Key) {
        self.wake_connection(key, now + self.config.pdc.rto_init);
    }

    fn on_connection_timer(&mut self, now: Time, key: Key) {
        let config = self.config.pdc;
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.timer.is_some_and(|timer| now.is_before(timer)) {
            return;
        }
        connection.timer = None;
        let Some(context) = self.contexts.get_mut(connection.context) else { return };
        let pdc = connection.pdc.id;
        let mut expired = Vec::new();
        let overdue = context.track(&mut connection.pdc, |pdc| {
            pdc.on_timer(now, &config, |psn, record| expired.push((psn, *record)))
        });
        for (psn, record) in expired {
            context.on_timeout(now, u64::from(record.bytes));
            context.path_feedback(now, record.entropy, PathFeedback::Timeout);
            self.events.emit(now, Event::Timeout { pdc, psn, count: record.timeouts });
        }
        match overdue {
            Overdue::Failed(psn) => {
                let failure = self.no_answer(now, key, psn);
                return self.fail(now, key, failure);
            }
            Overdue::AskForAck => {
                connection.cleared = None;
                self.send_control(now, key, ControlKind::AckRequest, 0, 0);
            }
            Overdue::Resend => {
                let context = connection.context;
                self.leave_path(now, key);
                self.unblock(context);
            }
            Overdue::Nothing => {}
        }
        self.on_secondary_timers(now, key);
        self.make_ready(key);
        if let Some(at) = self.connections.get(key).and_then(|c| c.pdc.deadline(&config)) {
            self.wake_connection(key, at);
        }
    }

    /// A packet of a ROD connection has timed out: its one path may have failed, so it takes another.
    ///
    /// Everything that was in flight goes again on the new path, in order of PSNs, so that what is in flight
    /// is on one path still, and a ROD_OOO still judges nothing but what left before the refused packet.
    /// Copies that the old path delivers late are harmless: a target takes packets in order of PSNs
    /// whatever way they come, and NACKs that echo the old entropy, or no RETX, speak of an earlier
    /// transmission and are ignored.
    fn leave_path(&mut self, now: Time, key: Key) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let Some(context) = self.contexts.get_mut(connection.context) else { return };
        let Some(entropy) = &mut connection.fixed_entropy else { return };
        *entropy = context.next_entropy(now, true);
        context.track(&mut connection.pdc, TxPdc::lose_all);
    }

    /// Probes, requests for credit, the end of a pause.
    fn on_secondary_timers(&mut self, now: Time, key: Key) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let Some(context) = self.contexts.get(connection.context) else { return };
        if connection.probe_at.is_some_and(|at| now.is_at_or_after(at)) {
            // Probes go before data: where the way is longer or slower than thought they must not fill it.
            let doubled = 1 << connection.unanswered_probes.min(10);
            connection.unanswered_probes = connection.unanswered_probes.saturating_add(1);
            let retry = now + context.snapshot().base_rtt.times(5 * doubled);
            connection.probe_at = (!connection.pdc.is_idle()).then_some(retry);
            if connection.probe_at.is_some() {
                let opaque = connection.pdc.send_probe(now);
                let base = connection.pdc.first_unacknowledged();
                self.send_control(now, key, ControlKind::Probe, base.0, opaque);
            }
        }
        let Some(connection) = self.connections.get_mut(key) else { return };
        if let Some(wait) = connection.credit_wait.as_mut().filter(|wait| now.is_at_or_after(wait.ask_at)) {
            wait.ask_at = now + self.config.pdc.rto_init;
            let waited = now.since(wait.since);
            if !connection.has_work() {
                connection.credit_wait = None;
            } else if waited > self.config.busy_timeout {
                let (pdc, peer) = (connection.pdc.id, connection.pdc.peer);
                let psn = connection.pdc.first_unacknowledged();
                return self.fail(now, key, Failure::NoCredit { pdc, peer, psn, waited });
            } else {
                self.request_credit(now, key);
            }
        }
        let Some(connection) = self.connections.get(key) else { return };
        let pause = connection.pause.as_ref().map(|busy| busy.until).filter(|until| now.is_before(*until));
        let ask_at = connection.credit_wait.map(|wait| wait.ask_at);
        for at in [connection.probe_at, ask_at, pause].into_iter().flatten() {
            self.wake_connection(key, at);
        }
    }

    fn no_answer(&self, now: Time, key: Key, psn: Psn) -> Failure {
        let connection = self.connections.get(key);
        let (pdc, peer) = connection.map_or((Default::default(), Addr(0)), |c| (c.pdc.id, c.pdc.peer));
        let (since, sent) = connection.and_then(|c| c.pdc.waiting_since(psn)).unwrap_or((now, 0));
        Failure::NoAnswer { pdc, peer, psn, waited: now.since(since), sent }
    }

    /// A PDC that has been silent for the idle time is asked about, after twice that it is given up.
    fn on_target_timer(&mut self, now: Time, key: Key) {
        let idle = self.config.idle_timeout;
        let Some(target) = self.targets.table.get(key) else { return };
        let silent_since = target.pdc.last_heard;
        let limit = if target.asked { idle.times(2) } else { idle };
        if now.is_before(silent_since + limit) {
            self.wheel.insert(silent_since + limit, TimerKey::Target(key));
        } else if target.asked {
            self.remove_target(now, key);
        } else {
            self.request_close(now, key);
            self.wheel.insert(silent_since + idle.times(2), TimerKey::Target(key));
        }
    }
}
