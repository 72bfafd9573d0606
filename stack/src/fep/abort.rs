//! Aborts connections: their messages of which nothing has left are cancelled, at once or bit by bit.

use std::collections::VecDeque;

use weft_cc::Time;

use super::core::Core;
use super::initiator::{Initiator, complete_send, fail_send, unsent_bytes};
use super::{CallError, ConnectionId, Fep, SendError};
use crate::heap;
use crate::pdc::TxState;
use crate::table::Key;
use crate::wire::ses::ReturnCode;

/// The memory that cancelling a message touches, and reporting that, as what messages that wait count for.
const COST: i64 = 2 << 10;

/// A connection that is being aborted, and its messages that are to be cancelled.
#[derive(Debug)]
pub(super) struct Aborted {
    connection: Key,
    messages: VecDeque<Key>,
}

impl Aborted {
    /// Bytes of heap held.
    pub(super) fn heap_bytes(&self) -> u64 {
        heap::of_deque(&self.messages)
    }
}

impl Fep {
    /// As [`Fep::abort`]; the messages of which nothing has left are cancelled by [`Fep::cancel_aborted`]. Until that is done,
    /// the connection does not end, unless it fails.
    ///
    /// # Errors
    /// As [`Fep::abort`].
    pub fn begin_abort(&mut self, now: Time, id: ConnectionId) -> Result<(), CallError> {
        self.initiator.begin_abort(&mut self.core, now, id)
    }

    /// Cancels messages of connections whose abort has begun, until that has touched `budget` bytes of memory, which are taken
    /// from it. Returns how many.
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
            if let Some(context) = contexts.get_mut(connection.context) {
                context.backlog = context.backlog.saturating_sub(unsent_bytes(&core.config, message));
            }
            message.cut_short();
            message.refusal.get_or_insert(ReturnCode::CANCELLED);
            if message.is_delivered() {
                complete_send(sends, core, first);
            }
        }
        connection.aborting = true;
        let is_done = messages.is_empty();
        if !is_done {
            core.aborted.push_back(Aborted { connection: id.0, messages });
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
        match connection.pdc.is_unused() {
            true => self.remove_connection(core, now, key, Ok(())),
            false => self.make_ready(key),
        }
    }

    /// Cancels all messages of connection `key` that an abort has left to be cancelled.
    pub(super) fn cancel_rest(&mut self, core: &mut Core, key: Key) {
        if let Some(place) = core.aborted.iter().position(|aborted| aborted.connection == key)
            && let Some(mut aborted) = core.aborted.remove(place)
        {
            self.cancel(core, &mut aborted, &mut { i64::MAX });
        }
    }

    fn cancel_aborted(&mut self, core: &mut Core, now: Time, budget: &mut i64) -> usize {
        let mut count = 0;
        while *budget > 0
            && let Some(mut aborted) = core.aborted.pop_front()
        {
            count += self.cancel(core, &mut aborted, budget);
            match aborted.messages.is_empty() {
                true => self.end_abort(core, now, aborted.connection),
                false => core.aborted.push_front(aborted),
            }
        }
        count
    }

    /// Cancels messages of a connection until that has touched `budget` bytes. Returns how many.
    fn cancel(&mut self, core: &mut Core, aborted: &mut Aborted, budget: &mut i64) -> usize {
        let context_key = self.connections.get(aborted.connection).map(|connection| connection.context);
        let (mut count, mut bytes) = (0, 0);
        while *budget > 0
            && let Some(send) = aborted.messages.pop_front()
        {
            *budget -= COST;
            count += 1;
            bytes += self.sends.get(send).map_or(0, |message| unsent_bytes(&core.config, message));
            fail_send(&mut self.sends, core, send, SendError::Cancelled);
        }
        if let Some(context) = context_key.and_then(|key| self.contexts.get_mut(key)) {
            context.backlog = context.backlog.saturating_sub(bytes);
        }
        count
    }
}
