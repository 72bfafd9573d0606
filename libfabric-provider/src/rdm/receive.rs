//! Receives, and the messages that they get.

use weft::{Completion, Error, Matching, ReceiveError};

use super::backlog::Space;
use super::looks::Filter;
use super::operation::Piece;
use super::stand_in::Untaken;
use super::waiting::Claimed;
use super::{Binding, Bindings, Operation, RECEIVES, Rdm, State, Wanted, report};
use crate::abi::AppRoom;
use crate::error::{FiError, lock};
use crate::kind::Kind;
use crate::queue::Problem;
use crate::sys::{self, FI_ADDR_NOTAVAIL, FI_ADDR_UNSPEC, fi_addr_t};

/// A receive to post.
pub(crate) struct Incoming {
    pub(crate) room: Room,
    pub(crate) from: fi_addr_t,
    pub(crate) matching: Matching,
    pub(crate) context: usize,
    pub(crate) wanted: Wanted,
    pub(crate) which: Which,
}

/// Where a message is received.
pub(crate) enum Room {
    One(AppRoom),
    /// One piece after the other.
    Several(Vec<AppRoom>),
}

/// Which messages a receive gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// The first that matches.
    First,
    /// One after the other, until too little room is left.
    Many,
    /// The one that was claimed with the same context.
    Claimed,
}

impl Room {
    pub(super) fn len(&self) -> usize {
        match self {
            Room::One(room) => room.as_ref().len(),
            Room::Several(rooms) => rooms.iter().map(|room| room.as_ref().len()).sum(),
        }
    }

    /// Where it begins, as completions say it.
    pub(super) fn address(&self) -> usize {
        match self {
            Room::One(room) => room.address(),
            Room::Several(rooms) => rooms.first().map_or(0, AppRoom::address),
        }
    }
}

impl Rdm {
    /// Posts a receive.
    ///
    /// # Errors
    /// [`FiError::AGAIN`] if there is no room for it now, [`FiError::NO_OPERATION`] if the endpoint was not opened for it.
    pub(crate) fn receive(&self, receive: Incoming) -> Result<(), FiError> {
        self.caps.demand_messages(receive.matching != Matching::Untagged, sys::FI_RECV)?;
        let mut state = lock(&self.state)?;
        let posted = match self.caps.kind {
            Kind::Rdm => state.receive(receive, self.caps.directed),
            Kind::Datagram => state.receive_datagram(receive),
        };
        self.follow(&mut state, posted, true)
    }
}

impl State {
    fn receive(&mut self, receive: Incoming, directed: bool) -> Result<(), FiError> {
        let Incoming { room, from, matching, context, wanted, which } = receive;
        let binding = self.ready(|bindings| &bindings.receive)?;
        if self.receives >= RECEIVES || !binding.queue.has_room()? {
            return Err(FiError::AGAIN);
        }
        let matching = self.unreserved(matching)?;
        let kind = if matching == Matching::Untagged { sys::FI_MSG } else { sys::FI_TAGGED };
        let from = if directed && from != FI_ADDR_UNSPEC { Some(self.peer(from)?) } else { None };
        let (filter, len, many) = (Filter { from, matching }, room.len(), which == Which::Many);
        if many && (self.backlog.has_all_receives(true) || self.backlog.is_behind(filter)) {
            // It would take the messages of what waits, or has no place at the server.
            return Err(FiError::AGAIN);
        }
        let claimed = match which {
            Which::Claimed => Some(self.claims.remove(&context).ok_or(FiError::NO_ENTRY)?),
            Which::First | Which::Many => None,
        };
        let (flags, reported) = (kind | sys::FI_RECV, wanted.is_reported(binding.selective));
        let buf = room.address();
        let mut operation = Operation { context, flags, buf, reported, many, from, ..Operation::default() };
        let space = match room {
            Room::One(room) => Space::One(room),
            Room::Several(rooms) => {
                operation.pieces = rooms.into_iter().map(Piece).collect();
                Space::Several(len)
            }
        };
        if let Some(Claimed { claim, message }) = claimed {
            let number = self.operations.insert(operation);
            self.receives += 1;
            let stands = self.is_stand_in(&message);
            self.backlog.claim(number, space, claim, &message, stands);
            return self.resume_claimed();
        }
        if !many && self.delays_receive(filter, len) {
            let number = self.operations.insert(operation);
            self.receives += 1;
            self.backlog.defer_receive(number, filter, space);
            return Ok(());
        }
        let room = space.whole()?;
        operation.memory = if many {
            self.allow_many()?;
            self.backlog.begin_many(len)?
        } else {
            self.backlog.begin_receive(len)
        };
        operation.kind = self.backlog.begin_kind(filter);
        let (memory, kind) = (operation.memory, operation.kind);
        let number = self.operations.insert(operation);
        let endpoint = self.endpoint.as_mut().ok_or(FiError::BAD_STATE)?;
        let options = filter.options().context(number as u64);
        let posted = if many {
            endpoint.receive_many(room, self.least, options)
        } else {
            endpoint.receive_with(room, options)
        };
        let noted = self.note_posted(number, posted.map_err(|refused| FiError::from(&refused.error)));
        match noted {
            Ok(()) => self.receives += 1,
            Err(_) => {
                self.backlog.end_receive(memory, many);
                self.backlog.end_kind(kind);
            }
        }
        noted
    }

    /// Lets receives for many messages take as many further ones as the queue of their entries has room for: one without bytes takes
    /// nothing of their memory. The first time, which may be refused, says that there is a bound at all.
    pub(super) fn allow_many(&mut self) -> Result<(), FiError> {
        let State { endpoint: Some(endpoint), bindings, expected_many, .. } = self else { return Ok(()) };
        let Some(Binding { queue, .. }) = &bindings.receive else { return Ok(()) };
        let (expected, is_first) = (expected_many.unwrap_or(0), expected_many.is_none());
        // A server is not told of each entry that the application has read.
        if expected > queue.size() as i64 / 2 {
            return Ok(());
        }
        let more = (queue.room()? as i64 - expected).max(0);
        if more == 0 && !is_first {
            return Ok(());
        }
        match endpoint.allow_many(more as u64) {
            Ok(()) => *expected_many = Some(expected + more),
            Err(error) if is_first => return Err(FiError::from(&error)),
            // The next time; if the server is gone, the endpoint's work says so.
            Err(_) => {}
        }
        Ok(())
    }

    /// A receive has ended, or got one of many messages.
    pub(super) fn end_receive(&mut self, completion: Completion, names_source: bool) -> Result<(), FiError> {
        let Completion::Received { context, source, tag, header_data, len, buffer, more, result, .. } =
            completion
        else {
            return Ok(());
        };
        let number = context as usize;
        if let Some(expected) = &mut self.expected_many
            && !matches!(result, Err(Error::Receive(ReceiveError::Cancelled)))
            && self.operations.get_mut(number).is_some_and(|operation| operation.many)
        {
            *expected -= 1;
        }
        let arrived = match result {
            Ok(()) => len,
            Err(Error::Receive(ReceiveError::Truncated { len, .. })) => len,
            Err(_) => 0,
        };
        if let (Some(source), Ok(()) | Err(Error::Receive(ReceiveError::Truncated { .. }))) =
            (source, &result)
        {
            self.has_taken(source, header_data, arrived);
        }
        let whole = self.stands_for(header_data, arrived);
        let is_many =
            whole.is_some() && self.operations.get_mut(number).is_some_and(|operation| operation.many);
        if let (Some(whole), Some(source)) = (whole, source) {
            let mut named =
                State::named(source, tag, header_data, &buffer, if result.is_ok() { len } else { 0 });
            if result.is_ok() && !is_many {
                let source = names_source.then(|| self.number_of(named.peer).unwrap_or(FI_ADDR_NOTAVAIL));
                self.fetch(number, named, whole, buffer, source);
                return Ok(());
            }
            // The receive has less room than the stand-in has bytes, and all of the message's bytes that it can have; or it is one for
            // many messages, which has not the room that the message needs.
            named.untaken = is_many.then_some(Untaken::TooLong);
            self.tell(named);
        }
        let Some(operation) = self.operations.get_mut(number) else { return Ok(()) };
        let room = buffer.len();
        operation.scatter(&buffer, len as usize);
        let problem = result.err().map(|error| match error {
            Error::Receive(ReceiveError::Truncated { len, room }) => {
                let len = whole.unwrap_or(len);
                Problem { error: FiError::from(&error), beyond: (len - room) as usize }
            }
            _ => Problem { error: operation.given_up.unwrap_or(FiError::from(&error)), beyond: 0 },
        });
        let problem = match whole {
            Some(_) if is_many => Some(Problem { error: FiError::TOO_LONG, beyond: 0 }),
            _ => problem,
        };
        let mut entry = operation.entry(problem);
        entry.len = (len as usize).min(room);
        let mut reported = operation.reported;
        if operation.many {
            if let Some(bytes) = buffer.as_slice() {
                entry.buf = bytes.as_ptr().addr();
            }
            if !more {
                entry.flags |= sys::FI_MULTI_RECV;
                // The application has to know that the buffer is its own again.
                reported = true;
            }
        }
        if !more {
            self.backlog.end_receive(operation.memory, operation.many);
            self.backlog.end_kind(operation.kind);
            self.backlog.take_received(buffer);
            self.operations.remove(number);
            self.receives = self.receives.saturating_sub(1);
        }
        entry.take_envelope(tag, header_data);
        if let (true, Some(source)) = (names_source, source) {
            entry.source = self.number_of(source)?;
        }
        let Bindings { receive, received, .. } = &self.bindings;
        report(receive, received, reported, entry)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use super::super::send::tests::endpoint;
    use super::super::{Outgoing, OutgoingBytes};
    use super::*;

    /// The queue has room for four entries, and messages of a receive for many have none. Nothing but a message lets the endpoint work,
    /// and none comes while receives are held.
    #[test]
    fn a_turn_that_has_used_up_what_receives_for_many_may_take_allows_more() {
        const COUNT: usize = 40;
        let (a, b) = (endpoint(), endpoint());
        let to = lock(&a.state).unwrap().bindings.addresses.as_ref().unwrap().insert(b.local()).unwrap();
        b.set_least(1).unwrap();
        let mut room = [0u8; COUNT];
        // SAFETY: the room outlives the receive, and nobody else uses it meanwhile.
        let room = Room::One(unsafe { AppRoom::new(room.as_mut_ptr().cast(), room.len()) });
        let (from, matching, wanted, which) =
            (FI_ADDR_UNSPEC, Matching::Untagged, Wanted::AsBound, Which::Many);
        b.receive(Incoming { room, from, matching, context: 1, wanted, which }).unwrap();
        let allowed = || lock(&b.state).unwrap().expected_many.unwrap();
        assert_eq!(allowed(), 4);
        let (begin, mut sent) = (Instant::now(), 0);
        while lock(&b.state).unwrap().receives > 0 {
            let bytes = OutgoingBytes::Copied(vec![7].into());
            let (data, wanted) = (None, Wanted::Never);
            if sent < COUNT {
                let message = Outgoing { bytes, to, tag: None, data, context: 0, wanted, more: false };
                sent += usize::from(a.send(message).is_ok());
            }
            a.progress().unwrap();
            // Messages come together.
            if sent % 8 == 0 {
                b.progress().unwrap();
                assert!(allowed() > 2, "{} after {sent} messages", allowed());
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "{sent} messages");
        }
    }

    /// Receives for many messages may be held until there is room in the queue, which there is after the read.
    #[test]
    fn an_endpoint_works_when_a_queue_was_read_that_it_has_filled_only_then() {
        const SIZE: usize = 4;
        let (a, b) = (endpoint(), Arc::new(endpoint()));
        let to = lock(&a.state).unwrap().bindings.addresses.as_ref().unwrap().insert(b.local()).unwrap();
        let queue = lock(&b.state).unwrap().bindings.receive.as_ref().unwrap().queue.clone();
        assert_eq!(queue.size(), SIZE);
        queue.endpoints().attach(&b).unwrap();
        let mut room = [0u8; 1];
        // SAFETY: the room outlives the receive, and nobody else uses it meanwhile.
        let room = Room::One(unsafe { AppRoom::new(room.as_mut_ptr().cast(), room.len()) });
        let (from, matching, wanted, which) =
            (FI_ADDR_UNSPEC, Matching::Untagged, Wanted::Always, Which::First);
        b.receive(Incoming { room, from, matching, context: 1, wanted, which }).unwrap();
        let bytes = OutgoingBytes::Copied(vec![7].into());
        let message =
            Outgoing { bytes, to, tag: None, data: None, context: 0, wanted: Wanted::Never, more: false };
        a.send(message).unwrap();
        let begin = Instant::now();
        loop {
            a.progress().unwrap();
            for _ in 1..SIZE {
                queue.push(Operation::default().entry(None)).unwrap();
            }
            let before = b.attention().0;
            let read = queue.read(SIZE, |_, _| {}).unwrap();
            let turns = b.attention().0 - before;
            if read == SIZE {
                assert_eq!(turns, 2, "one that has filled the queue, and one when there was room again");
                break;
            }
            assert_eq!((read, turns), (SIZE - 1, 1));
            assert!(begin.elapsed() < Duration::from_secs(60), "the message does not arrive");
        }
    }
}
