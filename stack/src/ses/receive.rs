//! Matching and placement of messages that arrive.

use super::posted::PostedQueue;
use super::unexpected::Unexpected;
use super::{Map, Posted, ReceiveId};
use crate::buffer::Buffer;
use crate::heap;
use crate::packet::{Addr, Payload};
use crate::table::{Key, Table};
use crate::wire::pds::{NackCode, PdcId};
use crate::wire::ses::{List, Opcode, Placement, Response, ReturnCode, StandardRequest};

/// A message that has arrived, or will never arrive in full.
#[derive(Debug)]
pub struct Delivery {
    /// The receive that it matched.
    pub id: ReceiveId,
    /// The caller's value of that receive.
    pub context: u64,
    /// Address of the sender.
    pub peer: Addr,
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
}

impl Delivery {
    /// Whether the message was longer than the receive.
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

/// Identifies a message in progress: its PDC and its number there.
type MessageName = (PdcId, u16);

#[derive(Debug)]
struct Incoming {
    name: MessageName,
    peer: Addr,
    tag: Option<u64>,
    header_data: u64,
    total: u32,
    received: u32,
    buffer: Buffer,
    claim: Claim,
    /// The neighbours in the list of its PDC's incomplete messages, while it is in that list.
    neighbours: Option<Neighbours>,
}

/// The receive that a message in progress belongs to.
#[derive(Clone, Copy, Debug)]
enum Claim {
    /// A receive, with its caller's value.
    Of(ReceiveId, u64),
    /// No receive so far; with its number among unexpected messages.
    Unexpected(u64),
}

#[derive(Clone, Copy, Debug, Default)]
struct Neighbours {
    older: Option<Key>,
    newer: Option<Key>,
}

impl Incoming {
    fn is_complete(&self) -> bool {
        self.received == self.total
    }

    /// The delivery for its receive; `None` if it has matched none.
    fn into_delivery(self) -> Option<Delivery> {
        let complete = self.is_complete();
        let Claim::Of(id, context) = self.claim else { return None };
        Some(Delivery {
            id,
            context,
            peer: self.peer,
            tag: self.tag,
            header_data: self.header_data,
            len: self.total,
            buffer: self.buffer,
            complete,
        })
    }
}

/// The destination of a packet's payload, found by [`Receives::admit`].
#[derive(Clone, Copy, Debug)]
pub struct Place {
    message: Key,
    offset: u32,
}

/// All receives of an endpoint and the messages on their way into them.
#[derive(Debug, Default)]
pub struct Receives {
    messages: Table<Incoming>,
    /// The message of the last packet: the next packet most often belongs to it, too.
    last: Option<Key>,
    posted: PostedQueue,
    /// Messages in progress that have more than one packet.
    by_name: Map<MessageName, Key>,
    /// The newest message of each PDC's list of incomplete ones. Messages of one packet are in no list: they are
    /// complete as soon as they are placed. The lists are linked through the messages themselves, so that closing a
    /// PDC needs no walk over other PDCs' messages, and a message needs no allocation.
    newest_incomplete: Map<PdcId, Key>,
    /// Messages that have matched no receive.
    unexpected: Unexpected,
    /// Bytes held for unexpected messages, by sender.
    held: Map<Addr, u64>,
    hold_limit: u64,
    message_limit: usize,
}

impl Receives {
    /// An empty table. At most `hold_limit` bytes are kept of each sender's unexpected messages, and at most
    /// `message_limit` messages are in progress at once.
    pub fn new(hold_limit: u64, message_limit: usize) -> Receives {
        Receives { hold_limit, message_limit, ..Receives::default() }
    }

    /// Adds a receive, whose identifier must be larger than all before. Returns a message that was waiting for it, if
    /// that is complete.
    pub fn post(&mut self, posted: Posted) -> Option<Delivery> {
        let messages = &self.messages;
        let takes = |key| messages.get(key).is_some_and(|message| posted.takes(message.peer, message.tag));
        let Some(key) = self.unexpected.find(posted.from, posted.matching, takes) else {
            self.posted.push(posted);
            return None;
        };
        let message = self.messages.get_mut(key)?;
        let mut buffer = posted.buffer;
        // The bytes received so far are scattered over the held buffer; the rest goes straight to the new one.
        buffer.place(0, message.buffer.payload(0, message.total));
        message.buffer = buffer;
        if let Claim::Unexpected(arrival) = message.claim {
            self.unexpected.remove(arrival, message.peer, message.tag);
        }
        message.claim = Claim::Of(posted.id, posted.context);
        let (peer, total) = (message.peer, message.total);
        self.release(peer, total);
        self.messages.get(key)?.is_complete().then(|| self.finish(key)).flatten()
    }

    /// Removes and returns a receive that no message has matched.
    pub fn cancel(&mut self, id: ReceiveId) -> Option<Posted> {
        self.posted.cancel(id)
    }

    /// Number of receives that no message has matched.
    pub fn posted(&self) -> usize {
        self.posted.len()
    }

    /// Number of messages in progress, including unexpected ones.
    pub fn under_way(&self) -> usize {
        self.messages.len()
    }

    /// Number of messages that have matched no receive.
    pub fn unexpected(&self) -> usize {
        self.unexpected.len()
    }

    /// The PDC and number of each message that has partly arrived.
    pub(crate) fn incomplete(&self) -> impl Iterator<Item = (PdcId, u16)> {
        self.messages.iter().map(|(_, message)| message).filter(|m| !m.is_complete()).map(|m| m.name)
    }

    /// Copies the payload of a packet of `pdc` into the receive that accepts it, if the packet is a whole message.
    /// Returns `None` and changes nothing otherwise, or if no receive accepts it; then [`Receives::admit`] decides.
    #[inline]
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
        let named = || self.by_name.contains_key(&(pdc, request.msg_id));
        if payload.len() != total || self.messages.len() >= self.message_limit || named() {
            return None;
        }
        let Posted { id, mut buffer, context, .. } = self.posted.take(peer, tag)?;
        buffer.place(0, payload);
        Some(Delivery { id, context, peer, tag, header_data, len: total, buffer, complete: true })
    }

    /// Finds the destination of the payload of a packet of `pdc`; matches a receive if it is the first of its message.
    pub fn admit(
        &mut self,
        peer: Addr,
        pdc: PdcId,
        request: &StandardRequest,
        payload: Payload<'_>,
    ) -> Result<Place, Refusal> {
        let tag = match request.opcode {
            Opcode::SEND => None,
            Opcode::TAGGED_SEND => Some(request.match_bits),
            _ => return Err(Refusal::Unsupported(ReturnCode::UNSUPPORTED_OP)),
        };
        let offset = match request.placement {
            Placement::Start { .. } => 0,
            Placement::Continue { payload_len, msg_offset } if u32::from(payload_len) == payload.len() => {
                msg_offset
            }
            Placement::Continue { .. } => {
                return Err(Refusal::Malformed("payload_len is not the payload's length"));
            }
        };
        if offset.checked_add(payload.len()).is_none_or(|end| end > request.request_length) {
            return Err(Refusal::Malformed("payload beyond the end of its message"));
        }
        if payload.is_empty() && request.request_length > 0 {
            return Err(Refusal::Malformed("no payload"));
        }
        let name = (pdc, request.msg_id);
        let message = match self.last.filter(|last| self.is_under_way(*last, name)) {
            Some(key) => key,
            None => match self.by_name.get(&name) {
                Some(&key) => key,
                None => self.begin(name, peer, tag, request, payload)?,
            },
        };
        self.last = Some(message);
        match self.messages.get(message) {
            Some(known)
                if known.total == request.request_length && known.received <= known.total - payload.len() =>
            {
                Ok(Place { message, offset })
            }
            _ => Err(Refusal::Malformed("not the length of the message it names")),
        }
    }

    /// Whether message `key` is the incomplete message `name`. (A complete message may wait for a receive while
    /// another one has its name already.)
    fn is_under_way(&self, key: Key, name: MessageName) -> bool {
        self.messages.get(key).is_some_and(|message| message.name == name && !message.is_complete())
    }

    /// Prefetches the state that the next packet will probably need.
    pub(crate) fn prefetch(&self) {
        self.messages.prefetch(self.last.map_or(0, |last| last.index));
    }

    /// Copies a payload to its destination from [`Receives::admit`]. Returns the message if that completes it.
    #[inline]
    pub fn place(
        &mut self,
        place: Place,
        request: &StandardRequest,
        payload: Payload<'_>,
    ) -> Option<Delivery> {
        let message = self.messages.get_mut(place.message)?;
        message.buffer.place(place.offset, payload);
        message.received += payload.len();
        if let Placement::Start { header_data } = request.placement {
            message.header_data = header_data;
        }
        if !message.is_complete() {
            return None;
        }
        let (name, expected) = (message.name, matches!(message.claim, Claim::Of(..)));
        if payload.len() == message.total {
            // The message had only this packet, so it has no entry by name and is in no list.
            return if expected { self.messages.remove(place.message)?.into_delivery() } else { None };
        }
        self.unlist(place.message);
        if expected {
            return self.finish(place.message);
        }
        // It waits for a receive, perhaps for long. Meanwhile its PDC may close, or reuse its number for another
        // message.
        self.by_name.remove(&name);
        None
    }

    /// Abandons the incomplete messages of `pdc`, in the order in which they began.
    pub fn abandon(&mut self, pdc: PdcId) -> Vec<Delivery> {
        let (mut deliveries, mut next) = (Vec::new(), self.newest_incomplete.remove(&pdc));
        while let Some(message) = next.and_then(|key| self.messages.remove(key)) {
            next = message.neighbours.and_then(|neighbours| neighbours.older);
            self.by_name.remove(&message.name);
            if let Claim::Unexpected(arrival) = message.claim {
                self.unexpected.remove(arrival, message.peer, message.tag);
                self.release(message.peer, message.total);
            }
            deliveries.extend(message.into_delivery());
        }
        deliveries.reverse();
        deliveries
    }

    /// Appends a message to the list of its PDC's incomplete ones.
    fn list(&mut self, key: Key, pdc: PdcId) {
        let older = self.newest_incomplete.insert(pdc, key);
        if let Some(neighbours) = self.neighbours_of(older) {
            neighbours.newer = Some(key);
        }
        if let Some(message) = self.messages.get_mut(key) {
            message.neighbours = Some(Neighbours { older, newer: None });
        }
    }

    /// Removes a message from the list of its PDC's incomplete ones, if it is there.
    fn unlist(&mut self, key: Key) {
        let Some(message) = self.messages.get_mut(key) else { return };
        let Some(Neighbours { older, newer }) = message.neighbours.take() else { return };
        let pdc = message.name.0;
        if let Some(neighbours) = self.neighbours_of(older) {
            neighbours.newer = newer;
        }
        if let Some(neighbours) = self.neighbours_of(newer) {
            neighbours.older = older;
        } else if let Some(older) = older {
            self.newest_incomplete.insert(pdc, older);
        } else {
            self.newest_incomplete.remove(&pdc);
        }
    }

    fn neighbours_of(&mut self, key: Option<Key>) -> Option<&mut Neighbours> {
        self.messages.get_mut(key?)?.neighbours.as_mut()
    }

    fn begin(
        &mut self,
        name: MessageName,
        peer: Addr,
        tag: Option<u64>,
        request: &StandardRequest,
        payload: Payload<'_>,
    ) -> Result<Key, Refusal> {
        if self.messages.len() >= self.message_limit {
            return Err(Refusal::Busy(NackCode::NO_SES_MSG_AVAIL));
        }
        let total = request.request_length;
        let (buffer, claim) = match self.posted.take(peer, tag) {
            Some(posted) => (posted.buffer, Claim::Of(posted.id, posted.context)),
            None => {
                let held = self.held.get(&peer).map_or(0, |held| *held) + quota(total);
                if held > self.hold_limit {
                    return Err(Refusal::Busy(NackCode::NO_PKT_BUFFER));
                }
                self.held.insert(peer, held);
                (Buffer::to_keep(total, payload), Claim::Unexpected(self.unexpected.next_arrival()))
            }
        };
        let message =
            Incoming { name, peer, tag, header_data: 0, total, received: 0, buffer, claim, neighbours: None };
        let key = self.messages.insert(message);
        if payload.len() < total {
            self.by_name.insert(name, key);
            self.list(key, name.0);
        }
        if let Claim::Unexpected(arrival) = claim {
            self.unexpected.insert(arrival, peer, tag, key);
        }
        Ok(key)
    }

    /// Finishes a complete message that has matched a receive.
    fn finish(&mut self, key: Key) -> Option<Delivery> {
        let message = self.messages.remove(key)?;
        if self.by_name.get(&message.name) == Some(&key) {
            self.by_name.remove(&message.name);
        }
        message.into_delivery()
    }

    fn release(&mut self, peer: Addr, bytes: u32) {
        if let Some(held) = self.held.get_mut(&peer) {
            *held = held.saturating_sub(quota(bytes));
            if *held == 0 {
                self.held.remove(&peer);
            }
        }
    }

    /// Bytes of heap allocated for posted receives, without their memory.
    pub(crate) fn posted_bytes(&self) -> u64 {
        self.posted.heap_bytes()
    }

    /// Bytes of heap allocated for messages in progress, without their contents.
    pub(crate) fn message_bytes(&self) -> u64 {
        self.messages.heap_bytes()
            + self.unexpected.heap_bytes()
            + heap::of_map(&self.by_name)
            + heap::of_map(&self.newest_incomplete)
            + heap::of_map(&self.held)
    }

    /// Bytes of the memory of posted receives and messages in progress.
    pub(crate) fn payload_bytes(&self) -> u64 {
        let messages = self.messages.iter().map(|(_, message)| heap::of_buffer(&message.buffer));
        self.posted.payload_bytes() + messages.sum::<u64>()
    }
}

/// Bytes that an unexpected message of `len` bytes counts for in its sender's quota: at least the memory of its state,
/// so that no sender can exhaust the number of messages with empty ones.
fn quota(len: u32) -> u64 {
    u64::from(len).max(128)
}

/// The response that tells the sender of `request` the result of its message.
pub(crate) fn respond(request: &StandardRequest, return_code: ReturnCode, modified_length: u32) -> Response {
    Response {
        list: List::Expected,
        opcode: 1,
        version: 0,
        return_code,
        msg_id: request.msg_id,
        ri_generation: request.ri_generation,
        job_id: request.job_id,
        modified_length,
    }
}

#[cfg(test)]
mod tests;
