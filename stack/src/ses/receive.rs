//! Matching and placement of messages that arrive.

mod copying;
mod dropping;
mod held;
mod many;
mod waiting;

use foldhash::fast::FixedState;

pub use self::dropping::LeftBehind;
pub use self::many::Deliveries;
pub use self::waiting::{Claim, Waiting};

use self::copying::{Copies, Partly};
pub(super) use self::many::Many;
use super::arrived::Arrived;
use super::order::Order;
use super::posted::PostedQueue;
use super::room::{Counts, Kept};
use super::senders::Senders;
use super::unexpected::{Places, Unexpected, Waits};
use super::{Map, Matching, Posted, ReceiveId, Room, Source};
use crate::buffer::Buffer;
use crate::packet::{Addr, Payload};
use crate::table::{Key, Table};
use crate::wire::pds::{NackCode, PdcId};
use crate::wire::ses::{Opcode, Placement, Response, ReturnCode, StandardRequest};

/// A message that has arrived, or will never arrive in full.
#[derive(Debug)]
pub struct Delivery {
    /// The receive that it matched.
    pub id: ReceiveId,
    /// The caller's value of that receive.
    pub context: u64,
    /// The sender.
    pub source: Source,
    /// The tag, if the message has one.
    pub tag: Option<u64>,
    /// The sender's 64 bits of header data.
    pub header_data: u64,
    /// Length of the message, bytes. A shorter buffer holds only its beginning.
    pub len: u32,
    /// The memory of the receive, with the bytes of the message.
    pub buffer: Buffer,
    /// Whether the whole message arrived.
    pub complete: bool,
    /// Whether the receive goes on: other messages have met it, or can.
    pub more: bool,
}

impl Delivery {
    /// Whether the message was longer than the receive.
    #[inline]
    pub fn is_truncated(&self) -> bool {
        self.buffer.len() < self.len
    }
}

/// Why a packet of a message is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Resources are exhausted for now; the sender retries later.
    Busy(NackCode),
    /// Its header contradicts itself or an earlier packet of the same message.
    Malformed(&'static str),
    /// The target does not support the operation; the message is answered with this code.
    Unsupported(ReturnCode),
}

/// What has become of a receive that was to be cancelled.
#[derive(Debug)]
pub enum Cancelled {
    /// It is gone, and no message had met it.
    Unused(Posted),
    /// It takes no further messages, and ends with the last of those that have met it.
    Ends,
    /// A message has met it, or it has ended.
    TooLate,
}

/// The cost, in bytes touched, of handing a message over to a receive that came later, or of dropping it; bytes that
/// are copied count besides. To copy so many bytes takes as long: with many messages, most of the memory that the
/// hand-over reads and frees is in no cache. Tests of sessions use a sixty-fourth of this cost, and of what an
/// application may cost in a turn.
pub(crate) const HAND_OVER: u64 = if cfg!(test) { 192 } else { 12 << 10 };

/// What has become of a message of which a part was placed.
#[derive(Debug)]
pub(crate) enum Placed {
    /// It lacks parts, or a receive.
    Waits,
    /// It is complete.
    Whole(Delivery),
    /// The same, but what had arrived before its receive, which has so many bytes, is copied in pieces.
    Copied {
        /// Bytes of the receive.
        room: u32,
    },
}

/// Identifies a message in progress: its PDC and its number there.
pub type MessageName = (PdcId, u16);

/// A [`MessageName`] that is hashed as one number.
type Packed = u32;

#[inline(always)]
fn packed((pdc, msg_id): MessageName) -> Packed {
    u32::from(pdc.0) << 16 | u32::from(msg_id)
}

#[derive(Debug)]
struct Incoming {
    name: MessageName,
    source: Source,
    tag: Option<u64>,
    header_data: u64,
    total: u32,
    arrived: Arrived,
    destination: Destination,
    /// The neighbours in the list of its PDC's incomplete messages, while it is in that list. Messages of one packet are in no list
    /// unless their payload is refused: they are complete as soon as they are placed. The lists are linked through the messages
    /// themselves, and the [`Room`] has their ends, so that closing a PDC needs no walk over other PDCs' messages, and a message
    /// needs no allocation.
    neighbours: Option<Neighbours>,
    /// Its places among those that wait for a receive, while it does.
    places: Places,
    /// Whether its header data is known.
    has_header_data: bool,
    /// Which accounts the message counts for while it is incomplete.
    counts: Counts,
}

/// Where the payload of a message goes.
#[derive(Debug)]
enum Destination {
    /// The memory of the receive that the message has met, with its caller's value.
    Receive { id: ReceiveId, context: u64, buffer: Buffer },
    /// The same, where so much had arrived before that it is copied in pieces when all of the message is there.
    Partly(Box<Partly>),
    /// Memory that is the message's own until it meets a receive; `None` as long as its sender's quota has no room for
    /// it, so that its payload is refused.
    Own { wait: Wait, buffer: Option<Buffer> },
    /// Nobody wants it.
    Nowhere,
}

/// What a message without a receive waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// Its turn: messages of its PDC before it have not begun.
    Turn,
    /// A receive; with its number among unexpected messages.
    Receive(u64),
    /// The receive of the one who has claimed it.
    Claimed,
}

#[derive(Clone, Copy, Debug, Default)]
struct Neighbours {
    older: Option<Key>,
    newer: Option<Key>,
}

impl Waits for Incoming {
    fn places(&mut self) -> &mut Places {
        &mut self.places
    }
}

impl Incoming {
    fn is_complete(&self) -> bool {
        self.arrived.is_all(self.total)
    }

    /// The receive that the message has met.
    #[inline]
    fn receive(&self) -> Option<ReceiveId> {
        match &self.destination {
            Destination::Receive { id, .. } => Some(*id),
            Destination::Partly(partly) => Some(partly.id),
            Destination::Own { .. } | Destination::Nowhere => None,
        }
    }

    /// The message is complete or dropped: it does not count as incomplete for its sender any more.
    fn end_incomplete(&self, room: &mut Room) {
        if self.counts == Counts::ForSource {
            room.incomplete.remove(self.source);
        }
    }

    #[inline]
    fn note_header_data(&mut self, header_data: u64) {
        (self.header_data, self.has_header_data) = (header_data, true);
    }

    /// The delivery for its receive; `None` if it has matched none.
    fn into_delivery(self) -> Option<Delivery> {
        let complete = self.is_complete();
        let (id, context, buffer) = match self.destination {
            Destination::Receive { id, context, buffer } => (id, context, buffer),
            Destination::Partly(partly) => (partly.id, partly.context, partly.buffer),
            Destination::Own { .. } | Destination::Nowhere => return None,
        };
        Some(Delivery {
            id,
            context,
            source: self.source,
            tag: self.tag,
            header_data: self.header_data,
            len: self.total,
            buffer,
            complete,
            more: false,
        })
    }
}

/// A message begins without room for its payload. So it is incomplete, and must be one of those that may be.
#[cold]
fn may_lack_payload(counts: Option<Counts>) -> Result<(), Refusal> {
    counts.map(|_| ()).ok_or(Refusal::Busy(NackCode::NO_PKT_BUFFER))
}

/// The part of a message that a packet carries.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    tag: Option<u64>,
    /// The sender's header data, which the first packet carries.
    header_data: Option<u64>,
    offset: u32,
    /// Where the part ends in the message, bytes.
    end: u32,
    /// Length of the message, bytes.
    total: u32,
    payload: Payload<'a>,
}

impl<'a> Part<'a> {
    /// The part that a packet with this header and payload carries.
    ///
    /// # Errors
    /// The operation is not supported, or the header does not describe the payload.
    // Always inlined: see `Receives::find`.
    #[inline(always)]
    pub fn new(request: &StandardRequest, payload: Payload<'a>) -> Result<Part<'a>, Refusal> {
        let tag = match request.opcode {
            Opcode::SEND => None,
            Opcode::TAGGED_SEND => Some(request.match_bits),
            _ => return Err(Refusal::Unsupported(ReturnCode::UNSUPPORTED_OP)),
        };
        Part::tagged(request, payload, tag)
    }

    /// The part of a write that a packet carries: written to memory, and matched by nothing.
    ///
    /// # Errors
    /// The header does not describe the payload.
    pub(crate) fn of_write(request: &StandardRequest, payload: Payload<'a>) -> Result<Part<'a>, Refusal> {
        Part::tagged(request, payload, None)
    }

    #[inline(always)]
    fn tagged(
        request: &StandardRequest,
        payload: Payload<'a>,
        tag: Option<u64>,
    ) -> Result<Part<'a>, Refusal> {
        let len = payload.len();
        let (offset, header_data) = match request.placement {
            Placement::Start { header_data } => (0, Some(header_data)),
            Placement::Continue { payload_len, msg_offset } if u32::from(payload_len) == len => {
                (msg_offset, None)
            }
            Placement::Continue { .. } => {
                return Err(Refusal::Malformed("payload_len is not the payload's length"));
            }
        };
        let total = request.request_length;
        let Some(end) = offset.checked_add(len).filter(|end| *end <= total) else {
            return Err(Refusal::Malformed("payload beyond the end of its message"));
        };
        if len == 0 && total > 0 {
            return Err(Refusal::Malformed("no payload"));
        }
        Ok(Part { tag, header_data, offset, end, total, payload })
    }

    /// Where the part begins and ends in the message, and the length of that, bytes.
    pub(crate) fn extent(&self) -> (u32, u32, u32) {
        (self.offset, self.end, self.total)
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.end - self.offset == self.total
    }
}

/// All receives of a process of an endpoint and the messages on their way into them.
#[derive(Debug, Default)]
pub struct Receives {
    messages: Table<Incoming>,
    /// The message of the last packet: the next packet most often belongs to it, too.
    last: Option<Key>,
    posted: PostedQueue,
    /// The receives for many messages that have not ended.
    many: Many,
    /// The newest receive, if it is one for many messages and has not yet looked at all waiting messages.
    gathering: Option<Box<Posted>>,
    /// The cost, in bytes touched, of handing over the messages that have arrived since `gathering` last looked.
    arrived: u64,
    /// Messages that further packets may name, or that wait for their turn. With a hash that peers do not know: they choose the
    /// numbers of messages, tens of thousands of which may be here, and could choose those of equal hashes otherwise.
    by_name: Map<Packed, Key, FixedState>,
    /// Messages that wait for a receive.
    unexpected: Unexpected,
    /// Complete messages that are copied to their receives in pieces, and those that wait behind them.
    copies: Option<Box<Copies>>,
    /// What each sender has of the endpoint's [`Room`].
    kept: Senders<Kept>,
    process: u16,
}

impl Receives {
    /// No receives of `process`. Messages are looked up with a hash that depends on `seed`.
    pub fn new(process: u16, seed: u64) -> Receives {
        let by_name = Map::with_hasher(FixedState::with_seed(seed));
        Receives { process, by_name, ..Receives::default() }
    }

    /// Whether a receive for messages of `from` that are `matching` may be added: one of a new kind is allowed only if
    /// there are fewer than `most` kinds.
    #[inline]
    pub fn takes_kind(&self, from: Option<Source>, matching: Matching, most: usize) -> bool {
        self.posted.takes_kind(from, matching, most)
    }

    /// Adds a receive of one message, whose identifier must be larger than all before. Returns a message that was waiting
    /// for it, if that is complete.
    #[inline(always)]
    pub fn post(&mut self, room: &mut Room, posted: Posted) -> Option<Delivery> {
        let Some(key) = self.first_waiting(posted.from, posted.matching) else {
            self.posted.push(posted);
            return None;
        };
        // The parts are passed one by one: the whole receive would be put together for this call in any case, and then
        // moved to where it waits.
        let Posted { id, context, buffer, .. } = posted;
        self.hand_over(room, key, (id, context), buffer)
    }

    /// Gives a message to the receive that takes it. Returns it if it is complete, unless it is to be copied in pieces.
    fn hand_over(
        &mut self,
        room: &mut Room,
        key: Key,
        (id, context): (ReceiveId, u64),
        mut buffer: Buffer,
    ) -> Option<Delivery> {
        let message = self.messages.get_mut(key)?;
        let (source, tag, places) = (message.source, message.tag, message.places);
        room.touched += HAND_OVER;
        let (wait, kept) = match &mut message.destination {
            Destination::Own { wait, buffer } => (Some(*wait), buffer.take()),
            Destination::Receive { .. } | Destination::Partly(_) | Destination::Nowhere => (None, None),
        };
        let mut bytes = if kept.is_some() { u64::from(message.total) } else { 0 };
        // What has been received so far is scattered over this part of the message's memory; what lies behind it goes
        // straight to the receive.
        let end = message.arrived.reach(message.total);
        let copied = end.min(buffer.len());
        message.destination = match kept {
            Some(kept) if copied > room.longest_copy => {
                // The memory counts until the message is copied.
                bytes = 0;
                Destination::Partly(Box::new(Partly { id, context, buffer, kept, end }))
            }
            Some(kept) => {
                #[cfg(test)]
                crate::steps::count(copied as usize);
                buffer.place(0, kept.payload(0, copied));
                room.touched += u64::from(copied).max(bytes / 16);
                Destination::Receive { id, context, buffer }
            }
            None => Destination::Receive { id, context, buffer },
        };
        let complete = message.is_complete();
        let unexpected = match wait {
            Some(Wait::Receive(arrival)) => {
                self.unexpected.remove(&mut self.messages, places, arrival, source, tag);
                1
            }
            Some(Wait::Claimed) => 1,
            Some(Wait::Turn) | None => 0,
        };
        self.release(room, source, Kept { unexpected, bytes });
        complete.then(|| self.finish(room, key)).flatten()
    }

    /// As [`Receives::hand_over`], for callers that have the whole receive.
    fn hand_over_to(&mut self, room: &mut Room, key: Key, posted: Posted) -> Option<Delivery> {
        let Posted { id, context, buffer, many, .. } = posted;
        let incomplete = self.messages.get(key).filter(|message| many.is_some() && !message.is_complete());
        if let Some(source) = incomplete.map(|message| message.source) {
            self.many.begin_incomplete(source);
        }
        self.hand_over(room, key, (id, context), buffer)
    }

    /// Removes and returns a receive that no message has matched. One for many messages, of which some have matched it,
    /// takes no further ones from now on, and ends with the last of them.
    pub fn cancel(&mut self, id: ReceiveId) -> Cancelled {
        let gathering = self.gathering.take_if(|posted| posted.id == id).map(|posted| *posted);
        match gathering.or_else(|| self.posted.cancel(id)) {
            Some(posted) if posted.many.is_some() && self.many.end(id) => Cancelled::Ends,
            Some(posted) => Cancelled::Unused(posted),
            None => Cancelled::TooLate,
        }
    }

    /// Number of receives that no message has matched.
    #[inline]
    pub fn posted(&self) -> usize {
        self.posted.len() + usize::from(self.gathering.is_some())
    }

    /// Number of messages in progress, including those without a receive, and those that are copied to theirs.
    pub fn under_way(&self) -> usize {
        self.messages.len() + self.copies.as_ref().map_or(0, |copies| copies.len())
    }

    /// Number of messages that wait for a receive.
    pub fn unexpected(&self) -> usize {
        self.unexpected.len()
    }

    /// Copies the payload of a packet of `pdc` into the receive that accepts it, if the packet is a whole message,
    /// whose turn it must be. Returns `None` and changes nothing otherwise, or if no receive accepts it.
    // Always inlined: what it returns goes to where the caller wants it.
    #[inline(always)]
    pub fn deliver_whole(
        &mut self,
        peer: Addr,
        pdc: PdcId,
        request: &StandardRequest,
        payload: Payload<'_>,
    ) -> Option<Delivery> {
        let tag = match request.opcode {
            Opcode::SEND => None,
            Opcode::TAGGED_SEND => Some(request.match_bits),
            _ => return None,
        };
        let Placement::Start { header_data } = request.placement else { return None };
        let total = request.request_length;
        if payload.len() != total || self.by_name.contains_key(&packed((pdc, request.msg_id))) {
            return None;
        }
        let source = Source::of_message(peer, request.initiator);
        let take = |posted: &mut Posted| {
            posted.buffer.place(0, payload);
            (posted.id, posted.context, posted.take_buffer())
        };
        let (id, context, buffer) =
            self.posted.take_with(source, tag, (total, true), &mut self.many, take)?;
        let more = self.many.conclude(id);
        Some(Delivery { id, context, source, tag, header_data, len: total, buffer, complete: true, more })
    }

    /// The message `name`, if it has begun and packets of it may be missing.
    // Always inlined: every packet of data comes here, from one of two places.
    #[inline(always)]
    pub fn find(&self, name: MessageName) -> Option<Key> {
        // A complete message may wait for a receive while another one has its name already.
        let is_it = |message: &Incoming| message.name == name && !message.is_complete();
        match self.last {
            Some(last) if self.messages.get(last).is_some_and(is_it) => Some(last),
            _ => self.by_name.get(&packed(name)).copied(),
        }
    }

    /// Prefetches the state that the next packet will probably need.
    pub(crate) fn prefetch(&self) {
        self.messages.prefetch(self.last.map_or(0, |last| last.index));
    }

    /// Whether `source` may have `more` messages without a receive.
    pub fn has_room(&self, room: &Room, source: Source, more: u32) -> bool {
        room.has_messages(self.process, source, &self.kept, more)
    }

    /// A message begins, and it is its turn: finds its receive. Without one, it waits for it as an unexpected message
    /// if a place is reserved in the `order` of its PDC or there is one for it; its payload is kept if its sender's quota
    /// permits. Unless it `is_whole` it is found again by its name, also if `part` is all of it: that may be refused.
    ///
    /// # Errors
    /// No receive takes it, and there is no room for it; its receive is one for many messages, and those are held; or too many
    /// messages are incomplete.
    pub(crate) fn begin(
        &mut self,
        name: MessageName,
        source: Source,
        part: &Part<'_>,
        is_whole: bool,
        room: &mut Room,
        order: &mut Order,
    ) -> Result<Key, Refusal> {
        let counts = room.place_for_incomplete(order, source);
        if counts.is_none() && !is_whole {
            return Err(Refusal::Busy(NackCode::NO_SES_MSG_AVAIL));
        }
        let len = (part.total, is_whole);
        let take =
            |posted: &mut Posted| (posted.id, posted.context, posted.take_buffer(), posted.many.is_some());
        let destination = match self.posted.take_with(source, part.tag, len, &mut self.many, take) {
            Some((id, context, buffer, is_for_many)) => {
                if is_for_many && !is_whole {
                    self.many.begin_incomplete(source);
                }
                Destination::Receive { id, context, buffer }
            }
            // The message has met a receive for many messages that is held, so it has to be sent again.
            None if self.many.hold(source, is_whole) && self.posted.accepts(source, part.tag) => {
                return Err(Refusal::Busy(NackCode::NO_SES_MSG_AVAIL));
            }
            None if order.has_place() || self.has_room(room, source, 1) => {
                let buffer = self.keep(room, source, part, 1);
                if buffer.is_none() {
                    may_lack_payload(counts)?;
                    self.kept.add(source, Kept { unexpected: 1, bytes: 0 });
                }
                room.messages.put(self.process, 1);
                Destination::Own { wait: Wait::Receive(self.unexpected.next_arrival()), buffer }
            }
            None => return Err(Refusal::Busy(NackCode::NO_SES_MSG_AVAIL)),
        };
        Ok(self.insert(name, source, (part, is_whole), destination, (room, order, counts)))
    }

    /// A message begins before its turn. It must have room.
    ///
    /// # Errors
    /// Too many messages are incomplete; or receives for many messages are held, and one of them might have to take the message when
    /// its turn comes.
    pub(crate) fn begin_early(
        &mut self,
        name: MessageName,
        source: Source,
        part: &Part<'_>,
        room: &mut Room,
        order: &mut Order,
    ) -> Result<Key, Refusal> {
        let counts = room.place_for_incomplete(order, source);
        let is_whole = part.is_whole();
        if counts.is_none() && !is_whole || self.holds_early(source, part.tag, is_whole) {
            return Err(Refusal::Busy(NackCode::NO_SES_MSG_AVAIL));
        }
        let buffer = self.keep(room, source, part, 0);
        if buffer.is_none() {
            may_lack_payload(counts)?;
        }
        let destination = Destination::Own { wait: Wait::Turn, buffer };
        Ok(self.insert(name, source, (part, is_whole), destination, (room, order, counts)))
    }

    fn insert(
        &mut self,
        name: MessageName,
        source: Source,
        (part, is_whole): (&Part<'_>, bool),
        destination: Destination,
        (room, order, counts): (&mut Room, &mut Order, Option<Counts>),
    ) -> Key {
        let wait = match &destination {
            Destination::Own { wait, .. } => Some(*wait),
            Destination::Receive { .. } | Destination::Partly(_) | Destination::Nowhere => None,
        };
        let is_refused = matches!(destination, Destination::Own { buffer: None, .. });
        let (tag, total) = (part.tag, part.total);
        let (header_data, has_header_data) = (part.header_data.unwrap_or(0), part.header_data.is_some());
        let (arrived, neighbours) = (Arrived::default(), None);
        let needs_more = !is_whole || is_refused;
        let counts = counts.filter(|_| needs_more).unwrap_or(Counts::ForPdc);
        let Receives { messages, unexpected, .. } = self;
        let mut places = Places::default();
        let key = messages.insert_with(|key| {
            if let Some(Wait::Receive(arrival)) = wait {
                places = unexpected.insert(arrival, source, tag, key);
            }
            Incoming {
                name,
                source,
                tag,
                header_data,
                total,
                arrived,
                destination,
                neighbours,
                places,
                has_header_data,
                counts,
            }
        });
        places.link(messages, key.index);
        if needs_more {
            self.list(room, key, name.0);
            order.add_incomplete();
            if counts == Counts::ForSource {
                room.incomplete.add(source);
            }
        }
        if needs_more || wait == Some(Wait::Turn) {
            self.by_name.insert(packed(name), key);
        }
        key
    }

    /// Memory for a message without a receive, if its sender's quota permits: then so many messages that wait for receives count for
    /// the sender besides.
    fn keep(&mut self, room: &mut Room, source: Source, part: &Part<'_>, unexpected: u32) -> Option<Buffer> {
        let bytes = u64::from(part.total);
        // An empty message needs none. It is complete without its packet, so if that were refused, it would be delivered again
        // when it comes once more.
        if bytes > 0 && !room.take_bytes(self.process, source, &self.kept, bytes) {
            return None;
        }
        let share = Kept { unexpected, bytes };
        if share != Kept::default() {
            self.kept.add(source, share);
        }
        Some(Buffer::to_keep(part.total, part.payload))
    }

    /// Whether message `key` is longer than the receive that it has met, and `part` is all that is missing of it.
    #[cold]
    pub(crate) fn ends_too_long(&self, order: &Order, key: Key, part: &Part<'_>) -> bool {
        let Some(message) = self.messages.get(key).filter(|message| message.total == part.total) else {
            return false;
        };
        let room = match &message.destination {
            Destination::Receive { buffer, .. } => buffer.len(),
            Destination::Partly(partly) => partly.buffer.len(),
            Destination::Own { .. } | Destination::Nowhere => return false,
        };
        let mut arrived = message.arrived.clone();
        room < message.total
            && arrived.add(part.total, part.offset, part.end, order)
            && arrived.is_all(part.total)
    }

    /// Copies a part of message `key` to its destination. Returns whether [`Receives::complete`] has to follow: the message is all
    /// there, and does not just go on waiting for a receive.
    ///
    /// # Errors
    /// It contradicts the parts before it, or the message has met no receive and there is no room for its payload.
    // Two outcomes, not three: most packets complete nothing, and one comparison tells that.
    #[inline]
    pub(crate) fn place(
        &mut self,
        room: &mut Room,
        order: &mut Order,
        key: Key,
        part: &Part<'_>,
    ) -> Result<bool, Refusal> {
        let Some(message) = self.messages.get_mut(key) else {
            return Err(Refusal::Malformed("not a message"));
        };
        if message.total != part.total {
            return Err(Refusal::Malformed("not the length of the message it names"));
        }
        self.last = Some(key);
        let buffer = match &mut message.destination {
            Destination::Receive { buffer, .. } | Destination::Own { buffer: Some(buffer), .. } => {
                Some(buffer)
            }
            Destination::Partly(partly) => Some(partly.place_of(part.offset)),
            Destination::Nowhere => None,
            Destination::Own { buffer: None, .. } => return self.place_refused(room, order, key, part),
        };
        if !message.arrived.add(message.total, part.offset, part.end, order) {
            return Err(Refusal::Malformed(
                "bytes that have arrived, no segment of its message, or too far ahead",
            ));
        }
        if let Some(buffer) = buffer {
            buffer.place(part.offset, part.payload);
        }
        if let Some(header_data) = part.header_data {
            message.note_header_data(header_data);
        }
        if !message.is_complete() {
            return Ok(false);
        }
        // One that came in one packet is in no list that it would have to leave.
        let waits = message.neighbours.is_none() && matches!(message.destination, Destination::Own { .. });
        if waits {
            let total = message.total;
            self.note_arrival(total);
        }
        Ok(!waits)
    }

    /// As [`Receives::place`], for a message whose payload was refused.
    #[cold]
    fn place_refused(
        &mut self,
        room: &mut Room,
        order: &mut Order,
        key: Key,
        part: &Part<'_>,
    ) -> Result<bool, Refusal> {
        let busy = Refusal::Busy(NackCode::NO_PKT_BUFFER);
        let message = self.messages.get_mut(key).ok_or(busy)?;
        // A peek at the message shows its header data even while there is no room for its payload.
        if let Some(header_data) = part.header_data {
            message.note_header_data(header_data);
        }
        let source = message.source;
        let kept = self.keep(room, source, part, 0).ok_or(busy)?;
        if let Some(Incoming { destination: Destination::Own { buffer, .. }, .. }) =
            self.messages.get_mut(key)
        {
            *buffer = Some(kept);
        }
        self.place(room, order, key, part)
    }

    /// All of message `key` has arrived. Returns it if it has met a receive, unless what had arrived before that is to be copied in
    /// pieces.
    // Not inlined into the code that every packet runs through.
    #[inline(never)]
    pub(crate) fn complete(&mut self, room: &mut Room, order: &mut Order, key: Key) -> Placed {
        let Some(message) = self.messages.get(key) else { return Placed::Waits };
        let (name, listed, total) = (message.name, message.neighbours.is_some(), message.total);
        if listed {
            order.end_incomplete();
            message.end_incomplete(room);
            if let Some(id) = message.receive() {
                self.many.end_incomplete(id, message.source);
            }
        }
        match &message.destination {
            Destination::Receive { .. } if !listed => {
                // The message had only this packet, so it has no entry by name.
                let delivery = self.messages.remove(key).and_then(|message| self.deliver(message));
                return delivery.map_or(Placed::Waits, Placed::Whole);
            }
            Destination::Partly(partly) => {
                let copied = Placed::Copied { room: partly.buffer.len() };
                self.unlist(room, key);
                return self.finish(room, key).map_or(copied, Placed::Whole);
            }
            Destination::Receive { .. } | Destination::Nowhere => {
                self.unlist(room, key);
                return self.finish(room, key).map_or(Placed::Waits, Placed::Whole);
            }
            // It waits for a receive, perhaps for long. Meanwhile its PDC may close, or reuse its number for another
            // message.
            Destination::Own { wait: Wait::Receive(_) | Wait::Claimed, .. } if listed => {
                self.by_name.remove(&packed(name));
            }
            Destination::Own { .. } => {}
        }
        self.note_arrival(total);
        if listed {
            self.unlist(room, key);
        }
        Placed::Waits
    }

    /// The turn of message `name` has come: finds its receive. Returns the message if it has met one and is complete, unless it
    /// is to be copied in pieces. Without a receive, it waits for it as an unexpected message.
    ///
    /// Nothing happens if the message of that name does not wait for its turn: a peer may use the number of a message
    /// that was refused again for another message, which has had its turn.
    pub fn take_turn(&mut self, room: &mut Room, name: MessageName) -> Option<Delivery> {
        let &key = self.by_name.get(&packed(name))?;
        let waits = |message: &&mut Incoming| {
            matches!(message.destination, Destination::Own { wait: Wait::Turn, .. })
        };
        let message = self.messages.get_mut(key).filter(waits)?;
        let (source, tag, total, complete) =
            (message.source, message.tag, message.total, message.is_complete());
        if let Some(posted) = self.take_for_arrived(source, tag, total) {
            return self.hand_over_to(room, key, posted);
        }
        let message = self.messages.get_mut(key)?;
        let arrival = self.unexpected.next_arrival();
        if let Destination::Own { wait, .. } = &mut message.destination {
            *wait = Wait::Receive(arrival);
        }
        message.places = self.unexpected.insert(arrival, source, tag, key);
        let places = message.places;
        places.link(&mut self.messages, key.index);
        room.messages.put(self.process, 1);
        self.kept.add(source, Kept { unexpected: 1, bytes: 0 });
        if complete {
            self.by_name.remove(&packed(name));
        }
        None
    }

    /// Abandons the incomplete messages of `pdc`, in the order in which they began. Behind messages of the PDC that are
    /// copied they wait for these, and are returned with them.
    pub fn abandon(&mut self, room: &mut Room, pdc: PdcId) -> Vec<Delivery> {
        let (mut deliveries, mut next) = (Vec::new(), room.newest_incomplete.remove(pdc, self.process));
        while let Some(message) = next.and_then(|key| self.messages.remove(key)) {
            next = message.neighbours.and_then(|neighbours| neighbours.older);
            self.by_name.remove(&packed(message.name));
            message.end_incomplete(room);
            if let Some(id) = message.receive() {
                self.many.end_incomplete(id, message.source);
            }
            if let Destination::Own { wait, buffer } = &message.destination {
                let bytes = if buffer.is_some() { message.total.into() } else { 0 };
                let unexpected = match *wait {
                    Wait::Receive(arrival) => {
                        let Incoming { places, source, tag, .. } = message;
                        self.unexpected.remove(&mut self.messages, places, arrival, source, tag);
                        1
                    }
                    Wait::Claimed => 1,
                    Wait::Turn => 0,
                };
                self.release(room, message.source, Kept { unexpected, bytes });
            } else if let Destination::Partly(_) = &message.destination {
                self.release(room, message.source, Kept { unexpected: 0, bytes: message.total.into() });
            }
            deliveries.extend(message.into_delivery());
        }
        // One by one: if a message waits for others, its receive has not ended with it.
        let end = |mut delivery: Delivery| {
            delivery.more = self.many.conclude(delivery.id);
            self.queue_up(room, pdc, delivery)
        };
        deliveries.into_iter().rev().filter_map(end).collect()
    }

    /// Appends a message to the list of its PDC's incomplete ones.
    fn list(&mut self, room: &mut Room, key: Key, pdc: PdcId) {
        let older = room.newest_incomplete.insert(pdc, self.process, key);
        if let Some(neighbours) = self.neighbours_of(older) {
            neighbours.newer = Some(key);
        }
        if let Some(message) = self.messages.get_mut(key) {
            message.neighbours = Some(Neighbours { older, newer: None });
        }
    }

    /// Removes a message from the list of its PDC's incomplete ones, if it is there.
    fn unlist(&mut self, room: &mut Room, key: Key) {
        let Some(message) = self.messages.get_mut(key) else { return };
        let Some(Neighbours { older, newer }) = message.neighbours.take() else { return };
        let pdc = message.name.0;
        if let Some(neighbours) = self.neighbours_of(older) {
            neighbours.newer = newer;
        }
        if let Some(neighbours) = self.neighbours_of(newer) {
            neighbours.older = older;
        } else if let Some(older) = older {
            room.newest_incomplete.insert(pdc, self.process, older);
        } else {
            room.newest_incomplete.remove(pdc, self.process);
        }
    }

    fn neighbours_of(&mut self, key: Option<Key>) -> Option<&mut Neighbours> {
        self.messages.get_mut(key?)?.neighbours.as_mut()
    }

    /// Finishes a complete message that has matched a receive. Returns it, unless it is to be copied in pieces.
    fn finish(&mut self, room: &mut Room, key: Key) -> Option<Delivery> {
        let message = self.take_by_name(key)?;
        if matches!(message.destination, Destination::Partly(_)) {
            self.begin_copy(room, message);
            return None;
        }
        self.deliver(message)
    }

    /// Takes message `key`, which is in no list of incomplete ones, out of those that packets may name.
    fn take_by_name(&mut self, key: Key) -> Option<Incoming> {
        let message = self.messages.remove(key)?;
        if self.by_name.get(&packed(message.name)) == Some(&key) {
            self.by_name.remove(&packed(message.name));
        }
        Some(message)
    }

    /// The delivery of a message for its receive, if it has met one.
    #[inline]
    fn deliver(&mut self, message: Incoming) -> Option<Delivery> {
        let mut delivery = message.into_delivery()?;
        delivery.more = self.many.conclude(delivery.id);
        Some(delivery)
    }

    /// Gives back what a message of `source` had.
    fn release(&mut self, room: &mut Room, source: Source, share: Kept) {
        room.messages.give_back(self.process, share.unexpected.into());
        room.bytes.give_back(self.process, share.bytes);
        if share != Kept::default() {
            self.kept.remove(source, share);
        }
    }
}

/// The response that tells the sender of `request` the result of its message.
pub(crate) fn respond(request: &StandardRequest, return_code: ReturnCode, modified_length: u32) -> Response {
    let response = Response::new(request.msg_id, request.job_id, return_code);
    Response { ri_generation: request.ri_generation, modified_length, ..response }
}

#[cfg(test)]
mod tests;
