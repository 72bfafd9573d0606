//! Messages that wait for receives: what a process may do with them.

use ::core::num::NonZeroU32;

use super::{CallError, Fep, PostError, Receive};
use crate::buffer::Buffer;
use crate::ses::{Claim, Matching, ReceiveId, Source, Waiting};

impl Fep {
    /// Posts a receive for many messages to process `process`. Each gets the beginning of what is left of the buffer, as
    /// many bytes as it has; the receive takes no further ones once fewer than `least` bytes are left. A message that is
    /// longer than what is left gets all of it, and is truncated. The receive has a completion for each message, with
    /// the part of the buffer; that which says that there are no more comes when all its messages have ended.
    ///
    /// # Errors
    /// As [`Fep::post_receive_of`]; [`CallError::NotDivisible`] if the buffer is a vector, or [`Buffer::Owned`] that cannot be
    /// split.
    pub fn post_receive_many_of(
        &mut self,
        process: u16,
        receive: Receive,
        least: NonZeroU32,
    ) -> Result<ReceiveId, PostError> {
        let id = self.begin_receive_many_of(process, receive, least)?;
        self.gather(process, &mut { i64::MAX });
        Ok(id)
    }

    /// As [`Fep::post_receive_many_of`]; the messages that wait are given to it by [`Fep::gather`].
    ///
    /// # Errors
    /// As [`Fep::post_receive_many_of`].
    pub fn begin_receive_many_of(
        &mut self,
        process: u16,
        receive: Receive,
        least: NonZeroU32,
    ) -> Result<ReceiveId, PostError> {
        self.target.post_receive(&mut self.core, process, receive, Some(least))
    }

    /// Gives the messages that wait to the receive for many messages that process `process` has begun last, until that has
    /// touched `budget` bytes of memory, which are taken from it. Returns whether it is done: nothing waits for the receive
    /// any more. Another receive that is posted before does all that is left.
    pub fn gather(&mut self, process: u16, budget: &mut i64) -> bool {
        self.target.processes.gather(&mut self.core, process, budget)
    }

    /// From now on a message that has waited for its receive is copied to it in pieces, by [`Fep::copy`], if there are more than
    /// `longest` bytes to copy, and completes with the last of them. The caller goes on calling that, and does not sleep, as long as
    /// [`Fep::has_copies`] says so.
    pub fn spread_copies(&mut self, longest: u32) {
        self.target.processes.room.limit_copies(longest);
    }

    /// Whether there is something for [`Fep::copy`] to do.
    #[inline]
    pub fn is_copying(&self, process: u16) -> bool {
        self.target.processes.is_copying(process)
    }

    /// Whether there is something for [`Fep::copy`] to do for any process.
    #[inline]
    pub fn has_copies(&self) -> bool {
        self.target.processes.room.has_copies()
    }

    /// Copies messages to the receives of process `process` that they have waited for, in the order in which they met, until that has
    /// touched `budget` bytes of memory, which are taken from it. Returns whether it is done. A receive that is posted before, or a
    /// message that is claimed and received, does all that is left. Messages that arrive on a connection with order
    /// ([`DeliveryMode::Rod`](crate::wire::pds::DeliveryMode::Rod)) do not complete before those of it that are copied.
    pub fn copy(&mut self, process: u16, budget: &mut i64) -> bool {
        self.target.processes.copy(&mut self.core, process, budget)
    }

    /// Lets receives for many messages of process `process` take only `further` messages from here on. Beyond that they are *held*:
    /// messages that would meet one are refused, and so are those that arrive before others of their connection, if one of the receives
    /// could take them. Their senders try again. Messages that have arrived already are taken all the same, and count: those that wait when
    /// such a receive is posted, and those whose turn comes. One of several packets counts when all of it is there, or no more of it will
    /// come. Until then a peer has as many of these as it leaves to others, of what may be taken, or four. Without this there is no bound.
    pub fn limit_many(&mut self, process: u16, further: u64) {
        self.target.processes.limit_many(process, further);
    }

    /// Lets receives for many messages of process `process` take `more` further messages than they may now.
    pub fn allow_many(&mut self, process: u16, more: u64) {
        self.target.processes.allow_many(process, more);
    }

    /// Holds receives for many messages of process `process` whatever [`Fep::limit_many`] says, or does not any more.
    pub fn hold_many(&mut self, process: u16, holds: bool) {
        self.target.processes.hold_many(process, holds);
    }

    /// Looks for the message to process `process` that waits for a receive like this, until that has touched `budget` bytes
    /// of memory, which are taken from it. Returns whether the search is over: if so, a receive that is posted now, or
    /// [`Fep::peek`] or [`Fep::claim`], finds it at once; if not, the next call goes on. Only receives that ignore bits of
    /// the tag have to look at messages one by one.
    #[inline]
    pub fn look_ahead(
        &mut self,
        process: u16,
        from: Option<Source>,
        matching: Matching,
        budget: &mut i64,
    ) -> bool {
        let processes = &mut self.target.processes;
        matching.is_exact()
            || processes.room.keeps_none()
            || processes.look_ahead(process, from, matching, budget)
    }

    /// What it has cost so far to hand messages over to receives that were posted later, to copy and to discard messages, in bytes of
    /// memory touched.
    pub fn touched(&self) -> u64 {
        self.target.processes.room.touched()
    }

    /// As [`Fep::close_process`]; the receives of the process, the messages kept for it and its datagrams that have not left end
    /// with [`Fep::clear_away`]. Until that is done, they count as the process's, and no other one can be opened under its
    /// number.
    ///
    /// # Errors
    /// As [`Fep::close_process`].
    pub fn begin_close_process(&mut self, process: u16) -> Result<(), CallError> {
        if self.datagrams.as_deref().is_some_and(|datagrams| datagrams.is_only(process)) {
            self.target.processes.set_job(process, 0);
        } else {
            self.target.close_process(&mut self.core, process)?;
        }
        self.close_process_of_datagrams(process);
        Ok(())
    }

    /// Ends what process `process` had when it was closed, until that has touched `budget` bytes of memory, which are taken from
    /// it: receives, messages and writes are dropped, datagrams complete as cancelled. Returns whether nothing is left.
    pub fn clear_away(&mut self, process: u16, budget: &mut i64) -> bool {
        self.target.clear_away(&self.core.config.limits, process, budget)
            && self.clear_datagrams_away(process, budget)
    }

    /// The first message to process `process` that waits for a receive like this, of `from` or any sender. It stays where
    /// it is: a receive posted now would get it. A message waits once its first packet is here and those of all messages
    /// before it on their connection, even if its payload was refused for want of room.
    ///
    /// # Errors
    /// [`CallError::ProcessNotOpen`].
    pub fn peek(
        &mut self,
        process: u16,
        from: Option<Source>,
        matching: Matching,
    ) -> Result<Option<Waiting>, CallError> {
        self.target.processes.peek(process, from, matching)
    }

    /// As [`Fep::peek`]; the message waits for [`Fep::receive_claimed`] or [`Fep::discard`] from now on, and no other receive
    /// gets it. It takes its sender's room meanwhile.
    ///
    /// # Errors
    /// As [`Fep::peek`].
    pub fn claim(
        &mut self,
        process: u16,
        from: Option<Source>,
        matching: Matching,
    ) -> Result<Option<(Claim, Waiting)>, CallError> {
        self.target.processes.claim(process, from, matching)
    }

    /// Receives the message that process `process` has claimed. It cannot be cancelled.
    ///
    /// # Errors
    /// [`CallError::NotClaimed`], [`CallError::ProcessNotOpen`], or [`CallError::ReadOnly`] if the buffer is [`Buffer::Bytes`].
    /// The error hands the buffer back.
    pub fn receive_claimed(
        &mut self,
        process: u16,
        claim: Claim,
        buffer: Buffer,
        context: u64,
    ) -> Result<ReceiveId, PostError> {
        self.target.processes.receive_claimed(&mut self.core, process, claim, (buffer, context))
    }

    /// Drops the message that process `process` has claimed. Its sender hears that it was delivered.
    ///
    /// # Errors
    /// [`CallError::NotClaimed`], [`CallError::ProcessNotOpen`].
    pub fn discard(&mut self, process: u16, claim: Claim) -> Result<(), CallError> {
        self.target.processes.discard(process, claim)
    }
}
