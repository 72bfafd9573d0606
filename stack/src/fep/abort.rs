//! Aborts connections: their messages of which nothing has left are cancelled, at once or bit by bit.

use std::collections::VecDeque;

use weft_cc::Time;

use super::core::Core;
use super::initiator::{Initiator, complete_send, fail_send};
use super::turns::Turns;
use super::{CallError, ConnectionId, Fep, Map, SendError};
use crate::heap;
use crate::pdc::TxState;
use crate::table::Key;
use crate::wire::ses::ReturnCode;

/// The memory that cancelling a message touches, and reporting that, as what messages that wait count for.
pub(super) const COST: i64 = 2 << 10;
/// What is spent on a connection before the next one has its turn.
const PIECE: i64 = 4 * COST;
/// The memory that is touched to find that a connection has failed meanwhile.
const SEARCH: i64 = 256;

/// Connections that are being aborted, and their messages that are to be cancelled. Processes take turns, and the connections of
/// each.
#[derive(Debug, Default)]
pub(super) struct Aborts {
    /// Connections whose messages are below, and some that have failed.
    turns: Turns,
    messages: Map<Key, VecDeque<Key>>,
}

impl Aborts {
    /// Connection `key` of `process` waits for its messages to be cancelled.
    fn add(&mut self, key: Key, process: u16, messages: VecDeque<Key>) {
        if !self.turns.is_divided() {
            self.turns.divide(process);
        }
        self.turns.push_back(key, process);
        self.messages.insert(key, messages);
    }

    /// Takes the messages of connection `key`.
    fn take(&mut self, key: Key) -> Option<VecDeque<Key>> {
        let messages = self.messages.remove(&key);
        if self.messages.is_empty() {
            // Those that wait for their turns have no messages, and what the others needed is not needed any more.
            *self = Aborts::default();
        }
        messages
    }

    /// Bytes of heap held.
    pub(super) fn heap_bytes(&self) -> u64 {
        let messages: u64 = self.messages.values().map(heap::of_deque).sum();
        self.turns.heap_bytes() + heap::of_map(&self.messages) + messages
    }
}

impl Fep {
    /// As [`Fep::abort`]; the messages of which nothing has left are cancelled by [`Fep::cancel_aborted`]. Until that is done,
    /// the connection does not end, unless it fails. The endpoint has no timer for that: who begins an abort goes on calling
    /// [`Fep::cancel_aborted`], and does not sleep, until it returns 0.
    ///
    /// # Errors
    /// As [`Fep::abort`].
    pub fn begin_abort(&mut self, now: Time, id: ConnectionId) -> Result<(), CallError> {
        self.initiator.begin_abort(&mut self.core, now, id)
    }

    /// Cancels messages of connections whose abort has begun, until that has touched `budget` bytes of memory, which are taken
    /// from it. Processes take turns, and the connections of each. Returns how many; 0 if none is left, or the budget is used up.
    pub fn cancel_aborted(&mut self, now: Time, budget: &mut i64) -> usize {
        self.initiator.cancel_aborted(&mut self.core, now, budget)
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
            messages.pop_front();
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
            core.aborts.add(id.0, connection.source, messages);
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

    fn cancel_aborted(&mut self, core: &mut Core, now: Time, budget: &mut i64) -> usize {
        let mut count = 0;
        while *budget > 0
            && let Some(key) = core.aborts.turns.pop_front()
        {
            let connection = self.connections.get(key).map(|connection| connection.source);
            let Some((process, mut messages)) = connection.zip(core.aborts.messages.remove(&key)) else {
                *budget -= SEARCH;
                // Others may wait behind it, so the turn was not idle.
                count += 1;
                continue;
            };
            let mut piece = PIECE.min(*budget);
            *budget -= piece;
            while piece > 0
                && let Some(send) = messages.pop_front()
            {
                piece -= COST;
                count += 1;
                fail_send(&mut self.sends, core, send, SendError::Cancelled);
            }
            *budget += piece;
            if messages.is_empty() {
                core.aborts.turns.pass(process);
                core.aborts.take(key);
                self.end_abort(core, now, key);
            } else {
                core.aborts.messages.insert(key, messages);
                core.aborts.turns.push_back(key, process);
                core.aborts.turns.pass(process);
            }
        }
        count
    }
}
