//! Aborts connections: their messages of which nothing has left are cancelled, at once or bit by bit. Those of connections
//! that have failed end in the same way, where that is asked for.

use std::collections::VecDeque;

use weft_cc::Time;

use super::core::Core;
use super::gaps::take_first;
use super::initiator::{Initiator, complete_send, fail_send};
use super::turns::Turns;
use super::{CallError, Completion, ConnectionId, Failure, Fep, Map, SendError};
use crate::heap;
use crate::packet::Addr;
use crate::pdc::TxState;
use crate::table::Key;
use crate::wire::ses::ReturnCode;

/// The memory that cancelling a message touches, and reporting that, as what messages that wait count for.
pub(super) const COST: i64 = 2 << 10;
/// The memory that is touched to find that a message has been cancelled meanwhile.
pub(super) const GONE: i64 = 64;
/// What is spent on a connection before the next one has its turn.
const PIECE: i64 = 4 * COST;
/// The memory that is touched to find that a connection has failed meanwhile.
const SEARCH: i64 = 256;

/// Connections that are being aborted, or have failed, and their messages that are to end. Processes take turns, and the
/// connections of each.
#[derive(Debug, Default)]
pub(super) struct Aborts {
    /// Connections whose messages are below, and some whose messages have ended at once.
    turns: Turns,
    endings: Map<Key, Ending>,
    /// Whether the messages of connections that fail end bit by bit.
    spreads: bool,
}

/// What is left of a connection.
#[derive(Debug)]
struct Ending {
    process: u16,
    messages: VecDeque<Key>,
    /// What becomes of them.
    error: SendError,
    /// The peer of a connection that has failed, and why. There is no such connection any more, but its end is not told before
    /// that of its messages.
    failed: Option<(Addr, Failure)>,
}

impl Aborts {
    /// The messages of connection `key` are to end.
    fn add(&mut self, key: Key, ending: Ending) {
        if !self.turns.is_divided() {
            self.turns.divide(ending.process);
        }
        self.turns.push_back(key, ending.process);
        self.endings.insert(key, ending);
    }

    /// Takes the messages of connection `key`.
    fn take(&mut self, key: Key) -> Option<VecDeque<Key>> {
        let ending = self.endings.remove(&key);
        self.forget_if_empty();
        ending.map(|ending| ending.messages)
    }

    fn forget_if_empty(&mut self) {
        if self.endings.is_empty() {
            // Those that wait for their turns have no messages, and what the others needed is not needed any more.
            *self = Aborts { spreads: self.spreads, ..Aborts::default() };
        }
    }

    /// Whether the messages of connections that fail end bit by bit.
    pub(super) fn spreads(&self) -> bool {
        self.spreads
    }

    /// Connection `key` of `process` has failed, and is about to be removed, while these messages wait to be sent: they are to
    /// end, or those of its abort.
    pub(super) fn fail(&mut self, key: Key, process: u16, messages: VecDeque<Key>, failed: (Addr, Failure)) {
        match self.endings.get_mut(&key) {
            Some(ending) => ending.failed = Some(failed),
            None if messages.is_empty() => {}
            None => {
                let error = SendError::Failed(failed.1);
                self.add(key, Ending { process, messages, error, failed: Some(failed) });
            }
        }
    }

    /// Whether the end of connection `key`, which has failed, is told when its messages have ended.
    pub(super) fn tells_end_of(&self, key: Key) -> bool {
        self.endings.get(&key).is_some_and(|ending| ending.failed.is_some())
    }

    /// Bytes of heap held.
    pub(super) fn heap_bytes(&self) -> u64 {
        let messages: u64 = self.endings.values().map(|ending| heap::of_deque(&ending.messages)).sum();
        self.turns.heap_bytes() + heap::of_map(&self.endings) + messages
    }
}

impl Fep {
    /// As [`Fep::abort`]; the messages of which nothing has left are cancelled by [`Fep::cancel_aborted`]. Until that is done,
    /// the connection does not end, unless it fails. The endpoint has no timer for that: who begins an abort goes on calling
    /// [`Fep::cancel_aborted`], and does not sleep, until it returns 0.
    ///
    /// [`Fep::spread_failures`] has the messages of connections that fail end in the same way.
    ///
    /// # Errors
    /// As [`Fep::abort`].
    pub fn begin_abort(&mut self, now: Time, id: ConnectionId) -> Result<(), CallError> {
        self.initiator.begin_abort(&mut self.core, now, id)
    }

    /// From now on the messages of a connection that fails end bit by bit, by [`Fep::cancel_aborted`], but for those of which a
    /// packet is under way; then comes [`Completion::Closed`]. The caller goes on calling that, as after [`Fep::begin_abort`],
    /// whenever a connection may have failed.
    pub fn spread_failures(&mut self) {
        self.core.aborts.spreads = true;
    }

    /// Whether messages of connection `id` are still to be cancelled because it was aborted.
    pub fn is_aborting(&self, id: ConnectionId) -> bool {
        self.initiator.connections.get(id.0).is_some_and(|connection| connection.aborting)
    }

    /// Whether there is something for [`Fep::cancel_aborted`] to do.
    pub fn has_aborted(&self) -> bool {
        !self.core.aborts.endings.is_empty()
    }

    /// Ends messages of connections whose abort has begun, or that have failed, until that has touched `budget` bytes of memory,
    /// which are taken from it. Processes take turns, and the connections of each. Returns how many; 0 if none is left, or the
    /// budget is used up.
    pub fn cancel_aborted(&mut self, now: Time, budget: &mut i64) -> usize {
        std::iter::from_fn(|| self.cancel_some_aborted(now, budget)).map(|(_, count)| count).sum()
    }

    /// As [`Fep::cancel_aborted`], of one connection, whose turn it is, and a few of its messages. Returns which, and how many.
    pub fn cancel_some_aborted(&mut self, now: Time, budget: &mut i64) -> Option<(ConnectionId, usize)> {
        self.initiator.cancel_piece(&mut self.core, now, budget)
    }
}

impl Initiator {
    /// See [`Fep::abort`](super::Fep::abort).
    pub(super) fn abort(&mut self, core: &mut Core, now: Time, id: ConnectionId) -> Result<(), CallError> {
        self.begin_abort(core, now, id)?;
        self.cancel_rest(core, id.0);
        self.end_abort(core, now, id.0);
        Ok(())
    }

    fn begin_abort(&mut self, core: &mut Core, now: Time, id: ConnectionId) -> Result<(), CallError> {
        let Initiator { connections, contexts, sends, .. } = self;
        let connection = connections.get_mut(id.0);
        let connection = connection.filter(|c| matches!(c.pdc.state, TxState::Open | TxState::Draining));
        let connection = connection.ok_or(CallError::NotOpen)?;
        if connection.aborting {
            return Ok(());
        }
        if let Some(context) = contexts.get_mut(connection.context) {
            // None of it leaves any more, so that no credit is asked for it.
            let bytes = connection.backlog;
            context.leave_backlog(connection, bytes);
        }
        connection.pdc.state = TxState::Draining;
        // Nobody waits for it any more.
        connection.patient = false;
        let mut messages = std::mem::take(&mut connection.queue);
        // Some of the first one may have left. Those that were withdrawn are not there.
        while let Some(&first) = messages.front()
            && !sends.get(first).is_some_and(|message| message.is_untouched())
        {
            take_first(&mut messages);
            let Some(message) = sends.get_mut(first) else { continue };
            message.cut_short();
            message.refusal.get_or_insert(ReturnCode::CANCELLED);
            if message.is_delivered() {
                complete_send(sends, core, first);
            }
        }
        connection.aborting = true;
        let is_done = messages.is_empty();
        if !is_done {
            let (process, error) = (connection.source, SendError::Cancelled);
            core.aborts.add(id.0, Ending { process, messages, error, failed: None });
        }
        self.leave_gate(&core.config, id.0);
        if is_done {
            self.end_abort(core, now, id.0);
        }
        Ok(())
    }

    /// All messages of connection `key` that had to be cancelled are.
    fn end_abort(&mut self, core: &mut Core, now: Time, key: Key) {
        let Some(connection) = self.connections.get_mut(key).filter(|connection| connection.aborting) else {
            return;
        };
        connection.aborting = false;
        // Its target has the time for CLOSE_CMD that others have, however long the connection has waited.
        connection.rested |= connection.wants_close();
        match connection.pdc.is_unused() {
            true => self.remove_connection(core, now, key, Ok(())),
            false => self.make_ready(key),
        }
    }

    /// Cancels all messages of connection `key` that an abort has left to be cancelled.
    pub(super) fn cancel_rest(&mut self, core: &mut Core, key: Key) {
        for send in core.aborts.take(key).into_iter().flatten() {
            fail_send(&mut self.sends, core, send, SendError::Cancelled);
        }
    }

    fn cancel_piece(
        &mut self,
        core: &mut Core,
        now: Time,
        budget: &mut i64,
    ) -> Option<(ConnectionId, usize)> {
        if *budget <= 0 {
            return None;
        }
        let key = core.aborts.turns.pop_front()?;
        let Some(mut ending) = core.aborts.endings.remove(&key) else {
            *budget -= SEARCH;
            // Others may wait behind it, so the turn was not idle.
            return Some((ConnectionId(key), 1));
        };
        let mut piece = PIECE.min(*budget);
        *budget -= piece;
        let mut count = 0;
        while piece > 0
            && let Some(send) = take_first(&mut ending.messages)
        {
            count += 1;
            piece -= if fail_send(&mut self.sends, core, send, ending.error) { COST } else { GONE };
        }
        *budget += piece;
        let process = ending.process;
        if ending.messages.is_empty() {
            core.aborts.turns.pass(process);
            core.aborts.forget_if_empty();
            match ending.failed {
                Some((peer, failure)) => {
                    let (id, result) = (ConnectionId(key), Err(failure));
                    core.completions.push_back(Completion::Closed { id, peer, result });
                }
                None => self.end_abort(core, now, key),
            }
        } else {
            core.aborts.endings.insert(key, ending);
            core.aborts.turns.push_back(key, process);
            core.aborts.turns.pass(process);
        }
        Some((ConnectionId(key), count))
    }
}
