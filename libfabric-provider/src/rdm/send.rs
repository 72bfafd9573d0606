//! Messages to send.

use std::time::Instant;

use bytes::Bytes;
use weft::core::wire::ses::ReturnCode;
use weft::{Endpoint, Error, MAX_COPY, MAX_MESSAGE, OperationId, SendBuffer, SendError, SendOptions, Source};

use super::backlog::Unsent;
use super::budgets::unstamped;
use super::connections::Returned;
use super::stand_in::bytes_of;
use super::{Bindings, Operation, Rdm, State, Wanted, report};
use crate::abi::AppBytes;
use crate::error::{FiError, lock};
use crate::kind::Kind;
use crate::queue::Problem;
use crate::sys::{self, fi_addr_t};

/// The longest message that can be injected, bytes: that is copied at the call.
pub(crate) const INJECT_SIZE: usize = MAX_COPY;
/// The bit of the header data that says that the low 32 bits are the sender's.
pub(super) const HAS_DATA: u64 = 1 << 32;

/// A message to send.
pub(crate) struct Outgoing {
    pub(crate) bytes: OutgoingBytes,
    pub(crate) to: fi_addr_t,
    pub(crate) tag: Option<u64>,
    pub(crate) data: Option<u64>,
    pub(crate) context: usize,
    pub(crate) wanted: Wanted,
    /// More will follow at once: nothing has to leave yet.
    pub(crate) more: bool,
}

/// The bytes of a message.
pub(crate) enum OutgoingBytes {
    /// To be sent from where they are.
    Lent(AppBytes),
    /// To be copied at the call.
    Injected(AppBytes),
    /// Several pieces, to be put together at the call.
    Gathered(Vec<AppBytes>),
    /// Copied already.
    Copied(Bytes),
}

impl OutgoingBytes {
    pub(super) fn len(&self) -> usize {
        match self {
            OutgoingBytes::Lent(bytes) | OutgoingBytes::Injected(bytes) => bytes.as_ref().len(),
            OutgoingBytes::Gathered(pieces) => len_of(pieces),
            OutgoingBytes::Copied(bytes) => bytes.len(),
        }
    }

    /// Those that are not lent are copied.
    ///
    /// # Errors
    /// [`FiError::NO_MEMORY`] if there is no memory for the pieces together.
    pub(crate) fn into_bytes(self) -> Result<Bytes, FiError> {
        Ok(match self {
            OutgoingBytes::Lent(bytes) => Bytes::from_owner(bytes),
            OutgoingBytes::Injected(bytes) => Bytes::copy_from_slice(bytes.as_ref()),
            OutgoingBytes::Gathered(pieces) => gather(&pieces)?.into(),
            OutgoingBytes::Copied(bytes) => bytes,
        })
    }
}

fn len_of(pieces: &[AppBytes]) -> usize {
    pieces.iter().map(|piece| piece.as_ref().len()).sum()
}

/// A copy of all pieces, one after the other.
fn gather(pieces: &[AppBytes]) -> Result<Vec<u8>, FiError> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len_of(pieces)).map_err(|_| FiError::NO_MEMORY)?;
    pieces.iter().for_each(|piece| bytes.extend_from_slice(piece.as_ref()));
    Ok(bytes)
}

impl OutgoingBytes {
    /// What `endpoint` sends them from. A worker elsewhere cannot read memory of this process: the endpoint copies such bytes
    /// when they are posted.
    ///
    /// # Errors
    /// As [`OutgoingBytes::into_bytes`].
    pub(super) fn into_buffer(self, endpoint: &Endpoint) -> Result<SendBuffer, FiError> {
        Ok(match self {
            OutgoingBytes::Lent(bytes) if endpoint.worker().is_some() => {
                bytes.lend().map_or_else(|| SendBuffer::from(Bytes::new()), SendBuffer::Memory)
            }
            bytes => bytes.into_bytes()?.into(),
        })
    }
}

impl Rdm {
    /// Sends a message.
    ///
    /// # Errors
    /// [`FiError::AGAIN`] if there is no room for it now, [`FiError::NO_OPERATION`] if the endpoint was not opened for it.
    pub(crate) fn send(&self, message: Outgoing) -> Result<(), FiError> {
        self.caps.demand_messages(message.tag.is_some(), sys::FI_SEND)?;
        let more = message.more;
        let mut state = lock(&self.state)?;
        let posted = match self.caps.kind {
            Kind::Rdm => state.send(message),
            Kind::Datagram => state.send_datagram(message),
        };
        self.follow(&mut state, posted, more)
    }
}

impl State {
    fn send(&mut self, message: Outgoing) -> Result<(), FiError> {
        let Outgoing { bytes, to, tag, data, context, wanted, .. } = message;
        let binding = self.ready(|bindings| &bindings.transmit)?;
        if !binding.queue.has_room()? {
            return Err(FiError::AGAIN);
        }
        if tag.is_some_and(|tag| self.is_reserved(tag)) {
            return Err(FiError::INVALID);
        }
        let kind = if tag.is_some() { sys::FI_TAGGED } else { sys::FI_MSG };
        let (flags, reported) = (kind | sys::FI_SEND, wanted.is_reported(binding.selective));
        let order = self.backlog.next_order();
        let peer = self.peer(to)?;
        if !self.pending.admits(peer) {
            return Err(FiError::AGAIN);
        }
        let to = Some(peer);
        let injected = wanted.is_injected();
        let operation = Operation { context, flags, reported, injected, order, to, ..Operation::default() };
        let number = self.operations.insert(operation);
        let header_data = data.map_or(0, |data| HAS_DATA | data & u64::from(u32::MAX));
        let mut options = SendOptions::default().header_data(header_data).context(number as u64);
        options.tag = tag;
        match self.post(number, peer, bytes, options) {
            Ok(()) => {
                self.sends += 1;
                self.pending.begin(peer);
                Ok(())
            }
            Err(error) => {
                self.operations.remove(number);
                Err(error)
            }
        }
    }

    /// Posts the bytes on the connection to `peer`, or on a new one if that has been closed; or lets them wait for memory.
    fn post(
        &mut self,
        number: usize,
        peer: Source,
        bytes: OutgoingBytes,
        options: SendOptions,
    ) -> Result<(), FiError> {
        let len = bytes.len();
        if len as u64 > MAX_MESSAGE {
            return Err(FiError::TOO_LONG);
        }
        if !self.backlog.keeps_sends() {
            let Some(bytes) = self.stand_in_if_over(number, peer, bytes, options)? else { return Ok(()) };
            let posted = self.post_directly(peer, bytes, options);
            let id = posted.inspect_err(|error| self.pending.refuse(*error))?;
            self.posted(number, peer, id, options, len);
            self.count_sent(number, peer, len, false);
            return Ok(());
        }
        // Injected bytes are copied too, as a server may give them back unsent.
        let buffer = SendBuffer::from(bytes.into_bytes()?);
        let order = self.operations.get_mut(number).map_or(0, |operation| operation.order);
        let unsent = Unsent { number, peer, buffer, options, order };
        let waits = self.backlog.has_sends_to(peer) || self.peers.connections.holds_back(peer);
        let unsent = if waits { Some(unsent) } else { self.post_unsent(unsent, false)? };
        if let Some(unsent) = unsent {
            self.backlog.defer_send(unsent);
        }
        Ok(())
    }

    /// Posts a message that no other one to its peer waits before, or what stands for it: for one that is too long for the memory or
    /// the budget, or that `has_waited` for these. Gives it back if there is no room for it yet.
    pub(super) fn post_unsent(
        &mut self,
        unsent: Unsent,
        has_waited: bool,
    ) -> Result<Option<Unsent>, FiError> {
        let Unsent { number, peer, mut buffer, options, order } = unsent;
        // Bytes that lie in the server's memory already need no further memory.
        let len = if let SendBuffer::Bytes(bytes) = &buffer { bytes.len() } else { 0 };
        let is_counted = options.tag.is_some() && self.carrier.is_some();
        // A message that is too short for a stand-in does not wait for a budget.
        let is_new = is_new(&options);
        let may_stand_in = self.may_stand_in(peer, options.tag, len);
        let never = self.has_to_be_fetched(peer, &options, len);
        let is_unsure = self.awaits_length(peer, &options, len);
        let has_no_room = is_counted && !self.budgets.has_room(peer, len);
        let waits = is_unsure || is_new && may_stand_in && (never || has_no_room);
        let stands = may_stand_in && (has_waited || never);
        if waits && (is_unsure && !stands || !self.backlog.never_holds(len)) {
            self.ask_for_budget(peer, Some(len));
        }
        if is_unsure && !stands {
            // The peer says how long messages may be when it says which process it is.
            return match self.life_to_send_to(peer) {
                Ok(_) | Err(FiError::AGAIN) => Ok(Some(Unsent { number, peer, buffer, options, order })),
                Err(error) => Err(error),
            };
        }
        if !waits && !self.backlog.is_full(len) && !self.backlog.is_over_share(peer, len) {
            let size = buffer.len();
            let mut stamped = options;
            if is_counted && is_new {
                stamped = options.header_data(self.budgets.stamped(peer, options.header_data));
            }
            match self.post_buffer(peer, buffer, stamped) {
                Ok(id) => {
                    self.posted(number, peer, id, stamped, len);
                    if is_counted && is_new {
                        self.budgets.spend(peer, size);
                        self.ask_for_budget(peer, None);
                    }
                    return Ok(None);
                }
                Err((FiError::AGAIN, back)) => buffer = back,
                Err((error, back)) => {
                    self.backlog.take_sent(back);
                    return Err(error);
                }
            }
        }
        // To a peer that was refused it is a try, and not a second one.
        let connections = &self.peers.connections;
        if stands && (!connections.is_refused(peer) || connections.may_try(Instant::now(), peer)) {
            match bytes_of(buffer) {
                Ok(bytes) => match self.post_stand_in(number, peer, bytes, options) {
                    Ok(()) => return Ok(None),
                    Err((FiError::AGAIN, bytes)) => buffer = bytes.into(),
                    Err((error, _)) => return Err(error),
                },
                Err(back) => buffer = back,
            }
        }
        Ok(Some(Unsent { number, peer, buffer, options, order }))
    }

    /// Whether a message of `len` bytes is not sent to `peer` at once, since it is too long for the memory of this process or of the peer,
    /// or for the peer's server, or the peer has not yet said how long messages may be.
    pub(super) fn has_to_be_fetched(&self, peer: Source, options: &SendOptions, len: usize) -> bool {
        let is_new = is_new(options);
        let is_too_long = || self.budgets.is_too_long(peer, len) || self.awaits_length(peer, options, len);
        let has_no_room = || options.tag.is_some() && self.budgets.never_has_room(peer, len);
        self.backlog.never_holds(len) || self.carrier.is_some() && is_new && (is_too_long() || has_no_room())
    }

    /// Whether a message of `len` bytes waits until `peer` has said how long messages may be.
    pub(super) fn awaits_length(&self, peer: Source, options: &SendOptions, len: usize) -> bool {
        self.carrier.is_some() && is_new(options) && self.budgets.may_be_too_long(peer, len)
    }

    /// A message was posted, with so many bytes of a server's memory if there is one.
    pub(super) fn posted(
        &mut self,
        number: usize,
        peer: Source,
        id: OperationId,
        options: SendOptions,
        len: usize,
    ) {
        self.peers.connections.begin(peer);
        let memory = self.backlog.begin_send(peer, len);
        if let Some(operation) = self.operations.get_mut(number) {
            (operation.id, operation.sending, operation.memory) = (Some(id), Some((peer, options)), memory);
        }
    }

    fn post_directly(
        &mut self,
        peer: Source,
        bytes: OutgoingBytes,
        options: SendOptions,
    ) -> Result<OperationId, FiError> {
        let endpoint = self.endpoint.as_mut().ok_or(FiError::BAD_STATE)?;
        if let OutgoingBytes::Injected(bytes) = bytes {
            return self.peers.connections.post(endpoint, peer, |endpoint, connection| {
                match endpoint.send_copy(connection, bytes.as_ref(), options) {
                    // The endpoint's memory for copies may be full of messages to peers that take none.
                    Err(full @ Error::MemoryFull(_)) => {
                        let copy = gather(std::slice::from_ref(&bytes)).map_err(|_| full)?;
                        endpoint.send_with(connection, copy, options).map_err(|refused| refused.error)
                    }
                    posted => posted,
                }
            });
        }
        let buffer = bytes.into_buffer(endpoint)?;
        self.post_buffer(peer, buffer, options).map_err(|(error, _)| error)
    }

    /// The application may free the memory of a message that has ended: packets that still wait and refer to it, as they were
    /// to be sent once more, are dropped.
    pub(super) fn take_back(&mut self, buffer: &SendBuffer) {
        if let SendBuffer::Memory(memory) = buffer
            && memory.is_shared()
            && let Some(worker) = self.endpoint.as_mut().and_then(Endpoint::worker_mut)
        {
            worker.recall();
        }
    }

    /// Posts the buffer, or gives it back.
    pub(super) fn post_buffer(
        &mut self,
        peer: Source,
        buffer: SendBuffer,
        options: SendOptions,
    ) -> Result<OperationId, (FiError, SendBuffer)> {
        let Some(endpoint) = &mut self.endpoint else { return Err((FiError::BAD_STATE, buffer)) };
        self.peers.connections.post_buffer(endpoint, peer, buffer, options)
    }

    /// Posts a message again that came back unsent, since its connection had been closed; or gives it back.
    fn post_again(&mut self, number: usize, buffer: SendBuffer) -> Result<(), (FiError, SendBuffer)> {
        let Some(operation) = self.operations.get_mut(number) else { return Err((FiError::OTHER, buffer)) };
        let Some((peer, options)) = operation.sending else { return Err((FiError::OTHER, buffer)) };
        let order = operation.order;
        self.backlog.end_send(peer, operation.memory.take());
        let len = if let SendBuffer::Bytes(bytes) = &buffer { bytes.len() } else { 0 };
        // Behind those that have come back before.
        let waits = self.backlog.has_returned(peer) || self.peers.connections.is_refused(peer);
        let posted =
            if waits { Err((FiError::AGAIN, buffer)) } else { self.post_buffer(peer, buffer, options) };
        match posted {
            Ok(id) => self.posted(number, peer, id, options, len),
            Err((FiError::AGAIN, buffer)) => {
                // It is not at the server any more: a cancel takes it from its line.
                if let Some(operation) = self.operations.get_mut(number) {
                    operation.id = None;
                }
                let waiting = self.wait_again(Unsent { number, peer, buffer, options, order });
                waiting.map_err(|error| (error, SendBuffer::Copied))?;
            }
            Err(failed) => return Err(failed),
        }
        Ok(())
    }

    /// A message has ended.
    pub(super) fn end_send(
        &mut self,
        number: usize,
        buffer: SendBuffer,
        mut result: Result<(), Error>,
    ) -> Result<(), FiError> {
        let operation = self.operations.get_mut(number);
        if let Some(peer) = operation.as_ref().and_then(|operation| operation.asks) {
            let says_here = self.operations.remove(number).and_then(|operation| operation.says_here);
            let returned = self.peers.beside.end(peer, &result);
            let is_back = matches!(returned, Some(Returned::Again));
            if let Some(Returned::Failed(why)) = returned {
                result = Err(why);
            }
            match says_here {
                Some(question) => self.question_answered(peer, question, is_back),
                None if is_back => {
                    self.budgets.is_unasked(peer);
                    self.stand_ins.ask_again(peer);
                }
                None => self.has_asked(peer, &result)?,
            }
            return self.answered(peer, result);
        }
        let counted = operation.as_ref().and_then(|operation| operation.counted);
        let sending = operation.and_then(|operation| operation.sending);
        let returned = sending.and_then(|(peer, _)| self.peers.connections.end(peer, &result));
        let (mut buffer, mut error) = (buffer, None);
        match returned {
            Some(Returned::Again) => match self.post_again(number, buffer) {
                Ok(()) => return Ok(()),
                Err((why, back)) => (error, buffer) = (Some(why), back),
            },
            Some(Returned::Failed(why)) => result = Err(why),
            None => {}
        }
        if counted.is_some_and(|counted| self.eager.end(counted))
            && let Some((peer, _)) = sending
        {
            // Who cannot be asked now is asked when that matters.
            let _ = self.ask_for_room(peer);
        }
        self.take_back(&buffer);
        let len = buffer.len();
        self.backlog.take_sent(buffer);
        let Some(result) = self.delivered(number, result)? else { return Ok(()) };
        let failure = match result {
            // It has arrived, as far as its sender is concerned: the receiver has an error entry.
            Ok(()) | Err(Error::Send(SendError::Answered(ReturnCode::TOO_LONG))) => None,
            Err(why) => Some(error.unwrap_or_else(|| FiError::from(&why))),
        };
        if let (Some((peer, options)), Some(error)) = (sending, failure) {
            if error == FiError::CANCELED {
                self.budgets.refund(peer, options.header_data, len);
            } else if error.says_that_the_peer_is_gone() {
                // Another process may get its number, and may have less memory.
                self.budgets.forget(peer);
            } else {
                self.budgets.renew(peer, options.header_data);
            }
        }
        self.end_sent(number, failure)
    }

    /// Asks `peer` what it has taken if that matters, for a message of `waiting` bytes or for those to come. One that may be too long also
    /// needs to know which process the peer is, for which one question will do.
    fn ask_for_budget(&mut self, peer: Source, waiting: Option<usize>) {
        if !self.budgets.asks(peer, waiting) {
            return;
        }
        let is_unsure = waiting.is_some_and(|len| self.budgets.may_be_too_long(peer, len));
        let asks_life = is_unsure && self.stand_ins.begin_asking_life(peer);
        if self.ask(peer).is_err() {
            self.budgets.is_unasked(peer);
            if asks_life {
                self.stand_ins.ask_again(peer);
            }
        }
    }

    /// A message with a tag was taken from `sender`, or dropped: the sender may have asked to be told.
    pub(super) fn has_taken(&mut self, sender: Source, header_data: u64, len: u32) {
        if self.carrier.is_some()
            && let Some(question) = self.takings.take(sender, header_data, len)
        {
            self.say_here(sender, question);
        }
    }

    /// The message of operation `number` has arrived, or has failed.
    pub(super) fn end_sent(&mut self, number: usize, failure: Option<FiError>) -> Result<(), FiError> {
        self.sends = self.sends.saturating_sub(1);
        let Some(operation) = self.operations.remove(number) else { return Ok(()) };
        if let Some((peer, _)) = operation.sending {
            self.backlog.end_send(peer, operation.memory);
        }
        self.end_pending(&operation);
        let problem = failure.map(|error| Problem { error, beyond: 0 });
        let entry = operation.entry(problem);
        let Bindings { transmit, sent, .. } = &self.bindings;
        report(transmit, sent, operation.reported, entry)
    }
}

/// Whether a message has not been sent at once before. One that has come back unsent has been counted already.
fn is_new(options: &SendOptions) -> bool {
    unstamped(options.header_data) == options.header_data
}

#[cfg(test)]
pub(super) mod tests {
    use std::ptr::NonNull;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use weft::core::region::Region;
    use weft::{Matching, MemorySlice};

    use super::super::pending::TO_ONE;
    use super::super::{DEPTH, Incoming, Room, Which};
    use super::*;
    use crate::abi::AppRoom;
    use crate::addresses::Addresses;
    use crate::place::Place;
    use crate::queue::Queue;
    use crate::rdm::{Binding, Caps};
    use crate::sys::FI_ADDR_UNSPEC;
    use crate::wake::Deadline;

    pub(in super::super) fn endpoint() -> Rdm {
        let endpoint = Endpoint::builder("udp:127.0.0.1,shared=on").build().unwrap();
        let rdm = Rdm::new(endpoint, &Place::OwnPorts, Caps::of(Kind::Rdm, 0)).unwrap();
        let binding = || Some(Binding { queue: Arc::new(Queue::new(4, false).unwrap()), selective: true });
        let addresses = Some(Arc::new(Addresses::default()));
        lock(&rdm.state).unwrap().bindings =
            Bindings { transmit: binding(), receive: binding(), addresses, ..Bindings::default() };
        rdm.enable().unwrap();
        rdm
    }

    /// The two ends of a memif whose rings hold two frames.
    fn memif() -> (State, Endpoint) {
        let open = |ip: &str, role: &str| {
            let name = format!("weft-take-back-{}", std::process::id());
            Endpoint::builder(format!("memif:@{name},role={role},rsize=1,ip={ip}")).build().unwrap()
        };
        (State::new(Some(open("10.0.0.1", "server"))), open("10.0.0.2", "client"))
    }

    fn foreign() -> Region {
        let bytes = Box::leak(vec![7u8; 64 << 10].into_boxed_slice());
        let (base, len) = (NonNull::new(bytes.as_mut_ptr()).unwrap(), bytes.len());
        // SAFETY: the bytes stay for ever.
        unsafe { Region::foreign(base, len, Box::new(())) }.unwrap()
    }

    #[test]
    fn packets_that_wait_and_refer_to_memory_that_is_taken_back_are_dropped() {
        let (mut state, mut b) = memif();
        let peer = state.endpoint.as_mut().unwrap().peer("10.0.0.2").unwrap();
        let peer = Source { peer, process: 0 };
        let (region, begin) = (foreign(), Instant::now());
        let slice =
            |region: &Region| SendBuffer::Memory(MemorySlice::lent(region.slice(0, 64 << 10).unwrap()));
        // The link comes up, and the first message opens the connection.
        state.post_buffer(peer, vec![1].into(), SendOptions::default().context(1)).unwrap();
        b.receive(vec![0]).unwrap();
        while b.poll().unwrap().is_none() {
            state.work(false).unwrap();
            assert!(begin.elapsed() < Duration::from_secs(60), "no message arrives");
        }
        let taken_back = slice(&region);
        let unused = region.holders() + 1;
        state.post_buffer(peer, slice(&region), SendOptions::default().context(2)).unwrap();
        let waits = |state: &mut State| {
            // The peer takes nothing: packets fill the ring, and others wait.
            (0..10).for_each(|_| state.work(false).unwrap());
            region.holders() > unused
        };
        while !waits(&mut state) {
            assert!(begin.elapsed() < Duration::from_secs(60), "no packet waits");
        }
        // Memory that nobody else refers to costs nobody a packet.
        let other = foreign();
        let alone = slice(&other);
        drop(other);
        state.take_back(&alone);
        assert!(region.holders() > unused, "a packet of another message was dropped");
        state.take_back(&taken_back);
        assert_eq!(region.holders(), unused, "a packet still waits");
    }

    /// A message without a tag to `to`, which has no entry.
    fn message(bytes: OutgoingBytes, to: fi_addr_t, wanted: Wanted) -> Outgoing {
        Outgoing { bytes, to, tag: None, data: None, context: 0, wanted, more: false }
    }

    /// A call of `fi_inject`.
    fn inject(from: &Rdm, to: fi_addr_t, bytes: &'static [u8]) -> Result<(), FiError> {
        // SAFETY: the bytes stay as they are for ever.
        let bytes = unsafe { AppBytes::new(bytes.as_ptr().cast(), bytes.len()) };
        from.send(message(OutgoingBytes::Injected(bytes), to, Wanted::Never))
    }

    /// Where `from` sends messages for `to`.
    fn address(from: &Rdm, to: &Rdm) -> fi_addr_t {
        lock(&from.state).unwrap().bindings.addresses.as_ref().unwrap().insert(to.local).unwrap()
    }

    /// As many messages as `fi_getinfo` promises are under way to a peer that takes no turn.
    #[test]
    fn injected_messages_that_a_peer_does_not_take_leave_room_for_those_to_others() {
        static BYTES: [u8; INJECT_SIZE] = [7; INJECT_SIZE];
        let (a, silent, other) = (endpoint(), endpoint(), endpoint());
        let (to_silent, to_other) = (address(&a, &silent), address(&a, &other));
        for n in 0..DEPTH {
            assert_eq!(inject(&a, to_silent, &BYTES), Ok(()), "number {n}");
        }
        assert_eq!(inject(&a, to_other, &BYTES), Ok(()));
        let mut room = [0u8; INJECT_SIZE];
        // SAFETY: the room outlives the receive, and nobody else uses it meanwhile.
        let place = Room::One(unsafe { AppRoom::new(room.as_mut_ptr().cast(), room.len()) });
        let (from, matching, wanted, which) =
            (FI_ADDR_UNSPEC, Matching::Untagged, Wanted::AsBound, Which::First);
        other.receive(Incoming { room: place, from, matching, context: 1, wanted, which }).unwrap();
        let begin = Instant::now();
        while lock(&other.state).unwrap().receives > 0 {
            [&a, &other].iter().for_each(|rdm| rdm.progress().unwrap());
            assert!(begin.elapsed() < Duration::from_secs(60), "the message does not arrive");
        }
        assert_eq!(room, BYTES);
    }

    /// No thread but the one that sends lets the endpoint work, and it does nothing but repeat what was refused. There is room
    /// for so many messages at a time.
    #[test]
    fn a_send_that_is_repeated_finds_room_by_itself() {
        let (a, b) = (endpoint(), endpoint());
        let to = address(&a, &b);
        let (begin, mut refused) = (Instant::now(), 0);
        for _ in 0..TO_ONE + 1000 {
            while let Err(error) = inject(&a, to, &[]) {
                assert_eq!(error, FiError::AGAIN);
                refused += 1;
                // The peer keeps messages for which there is no receive.
                b.progress().unwrap();
                assert!(begin.elapsed() < Duration::from_secs(60), "no room is given back");
            }
        }
        assert!(refused > 0, "there was room for all at once");
    }

    /// The messages have no entries. There is no room for more of them while the peer takes no turn.
    #[test]
    fn a_program_that_sleeps_after_a_refused_call_is_woken_when_there_is_room_again() {
        for is_injected in [false, true] {
            let (a, b) = (Arc::new(endpoint()), endpoint());
            let to = address(&a, &b);
            let queue = Arc::new(Queue::new(4, true).unwrap());
            queue.endpoints().attach(&a).unwrap();
            let transmit = Some(Binding { queue: queue.clone(), selective: true });
            lock(&a.state).unwrap().bindings.transmit = transmit;
            let send = || match is_injected {
                true => inject(&a, to, &[]),
                false => a.send(message(OutgoingBytes::Copied(Bytes::new()), to, Wanted::AsBound)),
            };
            let mut sent = 0;
            while send().is_ok() {
                sent += 1;
                assert!(sent <= TO_ONE);
            }
            let (begin, mut is_woken) = (Instant::now(), false);
            std::thread::scope(|scope| {
                let sleeper = scope.spawn(|| queue.read_within(Deadline::after(-1), 1, |_, _| ()));
                while !sleeper.is_finished() && begin.elapsed() < Duration::from_secs(60) {
                    if a.attention().1 {
                        b.progress().unwrap();
                    }
                }
                is_woken = sleeper.is_finished();
                queue.wake_all().unwrap();
                assert_eq!(sleeper.join().unwrap(), Err(FiError::AGAIN));
            });
            assert!(is_woken, "after {sent} messages");
            assert_eq!(send(), Ok(()));
        }
    }

    /// Each queue has room for four entries.
    #[test]
    fn no_more_operations_can_be_posted_than_their_queues_have_room_for() {
        let a = endpoint();
        assert_eq!(a.left(), Ok((4, 4)));
        let bindings = lock(&a.state).unwrap().bindings.clone();
        let [transmit, receive] = [bindings.transmit, bindings.receive].map(|binding| binding.unwrap().queue);
        let entry = || Operation::default().entry(None);
        transmit.push(entry()).unwrap();
        (0..5).for_each(|_| receive.push(entry()).unwrap());
        assert_eq!(a.left(), Ok((3, 0)));
        lock(&a.state).unwrap().bindings = Bindings::default();
        assert_eq!(a.left(), Ok((0, 0)));
    }
}
