//! Applications that share an endpoint: each is a process of its own to peers, and has its own receives.
//!
//! A message names the process it is for (PIDonFEP in UET). One for a process that does not exist, or not
//! any more, is answered with BAD_PID, which its sender hears as an error. Process 0 is open from the beginning.

use std::collections::btree_map::Entry;

use weft_cc::Time;

use super::{CallError, ConnectionId, Fep, MAX_PROCESS, PostError, Receive, Resource, SendError};
use crate::pdc::TxState;
use crate::ses::{Posted, ReceiveId, Receives};
use crate::wire::ses::ReturnCode;

impl Fep {
    /// Lets messages for process `process` in, which is not open. What one sender may leave unexpected counts
    /// for each process anew.
    ///
    /// # Errors
    /// [`CallError::ProcessOpen`]; [`CallError::NoSuchProcess`] if the number is too large.
    pub fn open_process(&mut self, process: u16) -> Result<(), CallError> {
        if process == 0 && self.zero_closed {
            self.zero_closed = false;
            return Ok(());
        }
        if process > MAX_PROCESS {
            return Err(CallError::NoSuchProcess(process));
        }
        let fresh = self.fresh_receives();
        match self.processes.entry(process) {
            Entry::Vacant(entry) if process != 0 => {
                entry.insert(fresh);
                Ok(())
            }
            _ => Err(CallError::ProcessOpen(process)),
        }
    }

    /// Forgets process `process`: its receives, posted or met, and messages kept for it are dropped without
    /// completions. Senders get an error for each message of which not all has been acknowledged; the rest of such
    /// a message is refused even if another process opens under the number meanwhile.
    ///
    /// # Errors
    /// [`CallError::ProcessNotOpen`].
    pub fn close_process(&mut self, process: u16) -> Result<(), CallError> {
        let receives = match process {
            0 if !self.zero_closed => {
                self.zero_closed = true;
                let fresh = self.fresh_receives();
                std::mem::replace(&mut self.receives, fresh)
            }
            _ => self.processes.remove(&process).ok_or(CallError::ProcessNotOpen(process))?,
        };
        for (pdc, msg_id) in receives.incomplete() {
            let key = self.targets.find(pdc).map(|(key, _)| key);
            if let Some(target) = key.and_then(|key| self.targets.table.get_mut(key)) {
                let expected = target.pdc.expected();
                target.refuse_rest(&self.config.pdc, msg_id, expected);
            }
        }
        Ok(())
    }

    /// As [`Fep::post_receive`], for messages to process `process`.
    ///
    /// # Errors
    /// [`CallError::Limit`] when too many wait, [`CallError::ProcessNotOpen`] if it is not open.
    pub fn post_receive_of(&mut self, process: u16, receive: Receive) -> Result<ReceiveId, PostError> {
        let receives = match process {
            0 if !self.zero_closed => &mut self.receives,
            _ => match self.processes.get_mut(&process) {
                Some(receives) => receives,
                None => {
                    return Err(PostError { error: CallError::ProcessNotOpen(process), buffer: receive.buffer });
                }
            },
        };
        let limit = self.config.limits.receives;
        if receives.posted() >= limit {
            let error = CallError::Limit { what: Resource::Receives, limit };
            return Err(PostError { error, buffer: receive.buffer });
        }
        let id = ReceiveId(self.next_receive);
        self.next_receive += 1;
        let Receive { buffer, from, matching, context } = receive;
        if let Some(delivery) = receives.post(Posted { id, from, matching, buffer, context }) {
            self.complete_receive(delivery);
        }
        Ok(id)
    }

    /// Closes a connection without sending what waits in it, even if it is being closed already. Messages not
    /// begun complete as cancelled, one that is begun as answered with CANCELLED once what has left is
    /// acknowledged. Then the target is told to close, and ends its receive with
    /// [`ReceiveError::PeerLost`](super::ReceiveError::PeerLost).
    ///
    /// # Errors
    /// [`CallError::NotOpen`] if it never was open, or is all but closed.
    pub fn abort(&mut self, now: Time, id: ConnectionId) -> Result<(), CallError> {
        let connection = self
            .connections
            .get(id.0)
            .filter(|connection| matches!(connection.pdc.state, TxState::Open | TxState::Draining));
        let connection = connection.ok_or(CallError::NotOpen)?;
        let (backlog, context) = (super::transmit::backlog(self, connection), connection.context);
        if let Some(context) = self.contexts.get_mut(context) {
            context.backlog = context.backlog.saturating_sub(backlog);
        }
        let Some(connection) = self.connections.get_mut(id.0) else { return Err(CallError::NotOpen) };
        connection.pdc.state = TxState::Draining;
        for send in std::mem::take(&mut connection.queue) {
            match self.sends.get_mut(send) {
                Some(message) if message.is_untouched() => {
                    self.fail_send(send, SendError::Cancelled);
                }
                Some(message) => {
                    message.cut_short();
                    message.refusal.get_or_insert(ReturnCode::CANCELLED);
                    if message.is_delivered() {
                        self.complete_send(send);
                    }
                }
                None => {}
            }
        }
        match self.connections.get(id.0) {
            Some(connection) if connection.pdc.is_unused() => self.remove_connection(now, id.0, Ok(())),
            _ => self.make_ready(id.0),
        }
        Ok(())
    }

    fn fresh_receives(&self) -> Receives {
        let limits = &self.config.limits;
        Receives::new(limits.unexpected_bytes_per_peer, limits.messages)
    }

    /// The receives of all processes.
    pub(super) fn all_receives(&self) -> impl Iterator<Item = &Receives> {
        std::iter::once(&self.receives).chain(self.processes.values())
    }
}
