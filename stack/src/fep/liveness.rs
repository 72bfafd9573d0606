//! When a connection is given up. Two bounds, both from its last progress, which nothing else moves:
//!
//! - The peer is silent: it has owed an answer for [`PdcConfig::silence`](crate::pdc::PdcConfig::silence), and not one
//!   packet of it has come that belongs to a connection of the same congestion context. No single packet's bad luck can
//!   do that.
//! - The peer answers, but for [`FepConfig::busy_timeout`] no packet of the connection has arrived: the target refuses
//!   or is busy, grants no credit, or the path swallows packets of this size. This time may be endless, for all connections
//!   or for one ([`ConnectOptions::patient`](super::ConnectOptions::patient)). If the peer was silent for most of it, the error says that it gave no answer.
//!
//! A connection that waits behind others for the window, and has nothing under way, has no timer. Those that have waited
//! for as long are given up together with the one whose timer finds out: a few at once; if there are more, the next one gets a timer
//! that is due. Meanwhile none of them sends anything.
//!
//! Until the target has acknowledged something the second bound is at most twice [`FepConfig::idle_timeout`] after its
//! last refusal, if there was one: a target forgets a PDC after so long a silence, and packets that arrive later would open
//! it again and deliver their messages a second time. Here, as elsewhere, all endpoints of a network are taken to have
//! the same settings.

use weft_cc::{Span, Time};

use super::connection::{Connection, Standing};
use super::context::Context;
use super::core::Core;
use super::initiator::Initiator;
use super::{Failure, FepConfig};
use crate::pdc::PacketKind;
use crate::table::Key;

/// How many connections are given up at once with the one whose timer has found out.
const OTHERS: usize = 7;

/// Longer spans are no bounds: [`Time`] comes round.
const LONGEST: Span = Span::from_ps(1 << 62);

/// The cost of giving up a connection, besides the connection itself.
pub(super) struct Others {
    /// Connections that were given up with it.
    pub(super) connections: usize,
    /// Connections that were looked at, and packets of those that have ended.
    pub(super) steps: usize,
}

impl Initiator {
    /// Why connection `key` is to be given up now; `None` if it is not.
    pub(super) fn overdue(&self, config: &FepConfig, now: Time, key: Key) -> Option<Failure> {
        let connection = self.connections.get(key)?;
        let context = self.contexts.get(connection.context)?;
        if !is_overdue(config, now, connection, context) {
            return None;
        }
        let is_silent = is_silent(config, now, connection, context);
        Some(match is_silent || was_silent(now, connection, context) {
            true => no_answer(now, connection, context),
            false => no_progress(now, connection, context),
        })
    }

    /// Gives connection `key` up if it is overdue, and then those that have waited for the same gate as long in vain: [`OTHERS`] at
    /// most, and no more than `most`. If there are more, the next one has a timer that is due. `None` if it is not overdue.
    #[cold]
    pub(super) fn check_life(&mut self, core: &mut Core, now: Time, key: Key, most: usize) -> Option<Others> {
        let most = most.min(OTHERS);
        let failure = self.overdue(&core.config, now, key)?;
        let context = self.connections.get(key).and_then(|connection| self.contexts.get(connection.context));
        let mut steps = 0;
        let behind = context
            .into_iter()
            .flat_map(|context| context.trying.into_iter().chain(context.blocked.iter()))
            .inspect(|_| steps += 1)
            .filter(|sibling| *sibling != key)
            .filter_map(|sibling| Some((sibling, self.overdue(&core.config, now, sibling)?)));
        let mut behind: Vec<(Key, Failure)> = behind.take(most + 1).collect();
        if behind.len() > most
            && let Some((next, _)) = behind.pop()
            && let Some(connection) = self.connections.get_mut(next)
        {
            connection.wake(&mut core.wheel, next, now);
        }
        self.fail(core, now, key, failure);
        let connections = behind.len();
        for (sibling, failure) in behind {
            let pdc = self.connections.get(sibling).map(|connection| &connection.pdc);
            steps += pdc.map_or(0, |pdc| pdc.unacknowledged_psns());
            self.fail(core, now, sibling, failure);
        }
        Some(Others { connections, steps })
    }
}

/// Whether `connection` is to be given up now.
pub(super) fn is_overdue(config: &FepConfig, now: Time, connection: &Connection, context: &Context) -> bool {
    is_bounded(connection)
        && (is_silent(config, now, connection, context) || is_stuck(config, now, connection, context))
}

/// Whether the peer of `connection` has been silent for too long.
fn is_silent(config: &FepConfig, now: Time, connection: &Connection, context: &Context) -> bool {
    silent_until(config, connection, context).is_some_and(|end| now.is_at_or_after(end))
}

/// When `connection` will be given up if nothing changes; `None` while nothing is expected of its peer, or where a peer
/// that answers is waited for without end.
pub(super) fn deadline(config: &FepConfig, connection: &Connection, context: &Context) -> Option<Time> {
    if !is_bounded(connection) {
        return None;
    }
    let ends = [silent_until(config, connection, context), stuck_until(config, connection, context)];
    ends.into_iter().flatten().reduce(Time::earliest)
}

/// Whether it waits for its peer. One that has just got work or is held back by its owner does not.
fn is_bounded(connection: &Connection) -> bool {
    connection.is_waiting() && !connection.rested && connection.standing != Standing::Held
}

/// When the peer's silence ends the connection; `None` while the peer owes no answer.
fn silent_until(config: &FepConfig, connection: &Connection, context: &Context) -> Option<Time> {
    let pdc = &config.zones.get(context.zone).pdc;
    Some(silent_since(connection, context)? + pdc.silence(context.rto(pdc)))
}

/// Whether the peer has said nothing at all for most of the time that the connection has made no progress.
fn was_silent(now: Time, connection: &Connection, context: &Context) -> bool {
    let stuck = now.since(stuck_since(connection, context));
    silent_since(connection, context).is_some_and(|since| now.since(since).times(2) > stuck)
}

fn silent_since(connection: &Connection, context: &Context) -> Option<Time> {
    context.silent_since.map(|since| since.latest(connection.progress_at))
}

/// When the lack of progress ends the connection; `None` if it does not.
fn stuck_until(config: &FepConfig, connection: &Connection, context: &Context) -> Option<Time> {
    let forgotten = connection.pdc.is_unheard().then(|| forgotten_at(config, connection, context));
    forgotten.into_iter().chain(busy_until(config, connection, context)).reduce(Time::earliest)
}

/// When the peer has been busy for too long; `None` where it is waited for without end.
fn busy_until(config: &FepConfig, connection: &Connection, context: &Context) -> Option<Time> {
    if connection.patient {
        return None;
    }
    Some(stuck_since(connection, context) + config.busy_timeout.bound()?.min(LONGEST))
}

/// When a target that has acknowledged nothing may have forgotten the PDC. Its refusals show that it has not, except for
/// those that say that it has none.
fn forgotten_at(config: &FepConfig, connection: &Connection, context: &Context) -> Time {
    let since = stuck_since(connection, context);
    let refused_at = connection.pause.as_ref().map_or(since, |busy| busy.refused_at.latest(since));
    refused_at + config.idle_timeout.times(2).min(LONGEST)
}

/// Whether `connection` has made no progress for too long.
#[inline]
fn is_stuck(config: &FepConfig, now: Time, connection: &Connection, context: &Context) -> bool {
    stuck_until(config, connection, context).is_some_and(|end| now.is_at_or_after(end))
}

/// While nothing of a connection is under way, it waits for its turn: the progress of its context is its own.
fn stuck_since(connection: &Connection, context: &Context) -> Time {
    match connection.pdc.is_idle() {
        true => connection.progress_at.latest(context.progress_at),
        false => connection.progress_at,
    }
}

fn no_answer(now: Time, connection: &Connection, context: &Context) -> Failure {
    let pdc = &connection.pdc;
    let psn = pdc.first_unacknowledged();
    let since = silent_since(connection, context).unwrap_or(now);
    let sent = pdc.waiting_since(psn).map_or(0, |(_, sent)| sent);
    Failure::NoAnswer { pdc: pdc.id, peer: pdc.peer, psn, waited: now.since(since), sent }
}

fn no_progress(now: Time, connection: &Connection, context: &Context) -> Failure {
    let (pdc, peer) = (connection.pdc.id, connection.pdc.peer);
    let psn = connection.pdc.first_unacknowledged();
    let waited = now.since(stuck_since(connection, context));
    if let Some(code) = connection.pause.as_ref().map(|busy| busy.code).or(connection.refused) {
        return Failure::Busy { pdc, peer, psn, code, waited };
    }
    let record = connection.pdc.unanswered(psn);
    // A packet that was sent again in vain is what the connection waits for, even if it lacks credit as well.
    if connection.ask_at.is_some() && record.is_none_or(|record| record.transmissions < 2) {
        return Failure::NoCredit { pdc, peer, psn, waited };
    }
    let len = match record.map(|record| record.kind()) {
        Some(PacketKind::Data { len, .. }) => len,
        Some(PacketKind::Read { .. } | PacketKind::Close) | None => 0,
    };
    let sent = record.map_or(0, |record| record.transmissions);
    Failure::NoProgress { pdc, peer, psn, len, sent, probed: connection.probed, waited }
}
