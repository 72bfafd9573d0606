//! Messages that wait for receives: looking for them, claiming and discarding them (FI_PEEK, FI_CLAIM, FI_DISCARD).

use std::num::NonZeroU32;

use weft::{Claim, Found, Matching, Waiting};

use super::looks::Filter;
use super::stand_in::Named;
use super::{Bindings, Operation, RECEIVES, Rdm, State, Wanted, report};
use crate::error::{FiError, lock};
use crate::queue::Problem;
use crate::sys::{self, FI_ADDR_UNSPEC, fi_addr_t};

/// A message that was claimed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claimed {
    pub(super) claim: Claim,
    pub(super) message: Waiting,
}

/// A look at the messages that wait.
pub(crate) struct Peek {
    pub(crate) from: fi_addr_t,
    pub(crate) matching: Matching,
    pub(crate) found: Found,
    pub(crate) context: usize,
    pub(crate) wanted: Wanted,
}

impl Rdm {
    /// Looks for a message that waits, after the endpoint has worked. The entry follows: an error entry with -FI_ENOMSG if
    /// there is none.
    ///
    /// # Errors
    /// [`FiError::AGAIN`] if there is no room for it now, [`FiError::NO_OPERATION`] if the endpoint was not opened for it.
    pub(crate) fn peek(&self, peek: Peek) -> Result<(), FiError> {
        self.caps.demand_messages(peek.matching != Matching::Untagged, sys::FI_RECV)?;
        let mut state = lock(&self.state)?;
        // What has arrived counts.
        let worked = state.work(self.caps.names_source);
        let posted = worked.and_then(|()| state.peek(peek, self.caps.directed));
        self.follow(&mut state, posted, true)
    }

    /// Drops the message that was claimed with this context. The entry follows.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn discard(&self, matching: Matching, context: usize, wanted: Wanted) -> Result<(), FiError> {
        let mut state = lock(&self.state)?;
        let posted = state.discard(matching, context, wanted, self.caps.names_source);
        self.follow(&mut state, posted, true)
    }

    /// Bytes that a receive for many messages has left at least while it goes on.
    pub(crate) fn least(&self) -> Result<u32, FiError> {
        Ok(lock(&self.state)?.least.get())
    }

    /// Sets what [`Rdm::least`] says, for receives that are posted from now on. At least one byte is left in any case.
    pub(crate) fn set_least(&self, least: u32) -> Result<(), FiError> {
        lock(&self.state)?.least = NonZeroU32::new(least).unwrap_or(NonZeroU32::MIN);
        Ok(())
    }
}

impl State {
    pub(super) fn peek(&mut self, peek: Peek, directed: bool) -> Result<(), FiError> {
        let Peek { from, matching, found, context, wanted } = peek;
        let binding = self.ready(|bindings| &bindings.receive)?;
        if self.receives >= RECEIVES || !binding.queue.has_room()? {
            return Err(FiError::AGAIN);
        }
        let matching = self.unreserved(matching)?;
        if found == Found::IsClaimed && self.claims.contains_key(&context) {
            return Err(FiError::BUSY);
        }
        let from = if directed && from != FI_ADDR_UNSPEC { Some(self.peer(from)?) } else { None };
        let filter = Filter { from, matching };
        let reported = wanted.is_reported(binding.selective);
        let drops = found == Found::IsDiscarded;
        let number = self.operations.insert(Operation { drops, ..operation(matching, context, reported) });
        self.receives += 1;
        if self.backlog.is_behind(filter) {
            self.backlog.defer_look(number, filter, found);
            // It is under way, whatever happens to others.
            let _ = self.look();
            return Ok(());
        }
        let endpoint = self.endpoint.as_mut().ok_or(FiError::BAD_STATE)?;
        let posted = endpoint.peek(filter.options().context(number as u64), found);
        posted.map(|_| ()).map_err(|error| {
            self.operations.remove(number);
            self.receives -= 1;
            FiError::from(&error)
        })
    }

    /// The look number `number` has ended.
    pub(super) fn end_peek(
        &mut self,
        number: usize,
        found: Result<Option<Waiting>, FiError>,
        claim: Option<Claim>,
        names_source: bool,
    ) -> Result<(), FiError> {
        self.receives = self.receives.saturating_sub(1);
        let Some(operation) = self.operations.remove(number) else { return Ok(()) };
        let message = found.and_then(|message| message.ok_or(FiError::NO_MESSAGE));
        if let (Ok(message), Some(claim)) = (message, claim) {
            self.claims.insert(operation.context, Claimed { claim, message });
        }
        if let (Ok(message), true) = (message, operation.drops) {
            self.tell_dropped(&message);
        }
        self.report_waiting(&operation, message, names_source)
    }

    /// Whether a message that waits stands for a longer one.
    pub(super) fn is_stand_in(&self, message: &Waiting) -> bool {
        self.stands_for(message.header_data, message.len).is_some()
    }

    /// A message was dropped: the sender of one that something stands for waits for that.
    fn tell_dropped(&mut self, message: &Waiting) {
        self.has_taken(message.source, message.header_data, message.len);
        if self.is_stand_in(message) {
            let Waiting { source, tag, header_data, .. } = *message;
            self.tell(Named::new(source, tag, header_data, None));
        }
    }

    fn discard(
        &mut self,
        matching: Matching,
        context: usize,
        wanted: Wanted,
        names_source: bool,
    ) -> Result<(), FiError> {
        let binding = self.ready(|bindings| &bindings.receive)?;
        let claimed = *self.claims.get(&context).ok_or(FiError::NO_ENTRY)?;
        let endpoint = self.endpoint.as_mut().ok_or(FiError::BAD_STATE)?;
        // One that is lost is as good as discarded.
        if let Err(error) = endpoint.discard(claimed.claim)
            && error.is_back_pressure()
        {
            return Err(FiError::AGAIN);
        }
        self.claims.remove(&context);
        self.tell_dropped(&claimed.message);
        let operation = operation(matching, context, wanted.is_reported(binding.selective));
        self.report_waiting(&operation, Ok(claimed.message), names_source)
    }

    /// The entry of an operation that has looked at a message, which no counter counts: none was received.
    fn report_waiting(
        &mut self,
        operation: &Operation,
        message: Result<Waiting, FiError>,
        names_source: bool,
    ) -> Result<(), FiError> {
        let problem = message.err().map(|error| Problem { error, beyond: 0 });
        let mut entry = operation.entry(problem);
        if let Ok(message) = message {
            let whole = self.stands_for(message.header_data, message.len);
            entry.len = whole.unwrap_or(message.len) as usize;
            entry.take_envelope(message.tag, message.header_data);
            if names_source {
                entry.source = self.number_of(message.source)?;
            }
        }
        let Bindings { receive, .. } = &self.bindings;
        report(receive, &None, operation.reported, entry)
    }
}

/// A look at messages that wait, or the end of one.
fn operation(matching: Matching, context: usize, reported: bool) -> Operation {
    let kind = if matching == Matching::Untagged { sys::FI_MSG } else { sys::FI_TAGGED };
    let flags = kind | sys::FI_RECV;
    Operation { context, flags, reported, ..Operation::default() }
}
