//! Matching and placement of messages that arrive.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;

use rustc_hash::FxHasher;

use crate::buffer::Buffer;
use crate::packet::{Addr, Payload};
use crate::table::{Key, Table};
use crate::wire::pds::{NackCode, PdcId};
use crate::wire::ses::{List, Opcode, Placement, Response, ReturnCode, StandardRequest};

type Map<K, V> = HashMap<K, V, BuildHasherDefault<FxHasher>>;

/// Names a posted receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReceiveId(pub u64);

/// Which messages a receive takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matching {
    /// Untagged messages.
    Untagged,
    /// Tagged messages whose tag equals `tag` in the bits that `ignore` leaves.
    Tagged {
        /// The tag wanted.
        tag: u64,
        /// Bits that do not matter.
        ignore: u64,
    },
}

/// A receive: memory for one message.
#[derive(Debug)]
pub struct Posted {
    /// Its name.
    pub id: ReceiveId,
    /// Takes messages of this sender only.
    pub from: Option<Addr>,
    /// Takes these messages only.
    pub matching: Matching,
    /// Where they go.
    pub buffer: Buffer,
    /// The caller's word, handed back at completion.
    pub context: u64,
}

impl Posted {
    fn takes(&self, peer: Addr, tag: Option<u64>) -> bool {
        let matches = match (self.matching, tag) {
            (Matching::Untagged, None) => true,
            (Matching::Tagged { tag, ignore }, Some(theirs)) => (tag ^ theirs) & !ignore == 0,
            _ => false,
        };
        matches && self.from.is_none_or(|from| from == peer)
    }
}

/// A message that has arrived, or will never.
#[derive(Debug)]
pub struct Delivery {
    /// The receive it met.
    pub id: ReceiveId,
    /// That receive's word.
    pub context: u64,
    /// Who sent it.
    pub peer: Addr,
    /// Its tag.
    pub tag: Option<u64>,
    /// The sender's 64 bits.
    pub header_data: u64,
    /// Its length; the buffer holds less if it was shorter.
    pub len: u32,
    /// Its bytes.
    pub buffer: Buffer,
    /// Whether all of it arrived.
    pub complete: bool,
}

impl Delivery {
    /// Whether the message was longer than the receive.
    pub fn is_truncated(&self) -> bool {
        self.buffer.len() < self.len
    }
}

/// Why a packet of a message cannot be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Try again later.
    Busy(NackCode),
    /// Its header contradicts itself or an earlier packet of the same message.
    Malformed(&'static str),
    /// The target does not do this; the message is answered with this code.
    Unsupported(ReturnCode),
}

/// Names a message under way: its PDC and its number there.
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
    /// The receive it met; none while it is unexpected.
    receive: Option<(ReceiveId, u64)>,
    /// While it is in the list of its PDC's incomplete messages: its neighbours there.
    neighbours: Option<Neighbours>,
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

    /// What its receive gets; none if it has met none.
    fn into_delivery(self) -> Option<Delivery> {
        let complete = self.is_complete();
        let (id, context) = self.receive?;
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

/// A place found for a packet's payload by [`Receives::admit`].
#[derive(Clone, Copy, Debug)]
pub struct Place {
    message: Key,
    offset: u32,
}

/// All receives of an endpoint and the messages on their way into them.
#[derive(Debug, Default)]
pub struct Receives {
    posted: VecDeque<Posted>,
    messages: Table<Incoming>,
    by_name: Map<MessageName, Key>,
    /// The newest message of each PDC's list of incomplete ones. Messages of one packet are in no list:
    /// they are complete as soon as they are placed. The lists run through the messages themselves, so
    /// that a PDC that closes costs no walk over other PDCs' messages and no message costs an allocation.
    newest_incomplete: Map<PdcId, Key>,
    /// Messages that have met no receive, in the order of their first packets.
    unexpected: VecDeque<Key>,
    /// Bytes held for messages that nobody has asked for, by sender.
    held: Map<Addr, u64>,
    hold_limit: u64,
    message_limit: usize,
}

impl Receives {
    /// No receives. At most `hold_limit` bytes are kept of each sender's unexpected messages, and
    /// at most `message_limit` messages are under way at once.
    pub fn new(hold_limit: u64, message_limit: usize) -> Receives {
        Receives { hold_limit, message_limit, ..Receives::default() }
    }

    /// Adds a receive. Hands back a message that was waiting for it, if that is complete.
    pub fn post(&mut self, posted: Posted) -> Option<Delivery> {
        let found = self.unexpected.iter().position(|&key| {
            self.messages.get(key).is_some_and(|message| posted.takes(message.peer, message.tag))
        });
        let Some(key) = found.and_then(|at| self.unexpected.remove(at)) else {
            self.posted.push_back(posted);
            return None;
        };
        let message = self.messages.get_mut(key)?;
        let mut buffer = posted.buffer;
        // What has arrived lies scattered over the kept buffer; the rest comes straight to the new one.
        buffer.place(0, message.buffer.payload(0, message.total));
        message.buffer = buffer;
        message.receive = Some((posted.id, posted.context));
        let (peer, total) = (message.peer, message.total);
        self.release(peer, total);
        self.messages.get(key)?.is_complete().then(|| self.finish(key)).flatten()
    }

    /// Takes a receive back that no message has met.
    pub fn cancel(&mut self, id: ReceiveId) -> Option<Posted> {
        let at = self.posted.iter().position(|posted| posted.id == id)?;
        self.posted.remove(at)
    }

    /// Receives that no message has met.
    pub fn posted(&self) -> usize {
        self.posted.len()
    }

    /// Messages under way, unexpected ones included.
    pub fn under_way(&self) -> usize {
        self.messages.len()
    }

    /// Finds the place for the payload of a packet of `pdc`; matches a receive if it is the first of its message.
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
        let message = match self.by_name.get(&name) {
            Some(&key) => key,
            None => self.begin(name, peer, tag, request, payload)?,
        };
        match self.messages.get(message) {
            Some(known)
                if known.total == request.request_length && known.received <= known.total - payload.len() =>
            {
                Ok(Place { message, offset })
            }
            _ => Err(Refusal::Malformed("not the length of the message it names")),
        }
    }

    /// Puts a payload where [`Receives::admit`] said. Hands the message back when that completes it.
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
        let (name, expected) = (message.name, message.receive.is_some());
        self.unlist(place.message);
        if expected {
            return self.finish(place.message);
        }
        // It waits for a receive, perhaps for long. Its PDC may close meanwhile, or number so many
        // messages that this number comes again.
        self.by_name.remove(&name);
        None
    }

    /// Gives up the incomplete messages of `pdc`, those that began first being the first.
    pub fn abandon(&mut self, pdc: PdcId) -> Vec<Delivery> {
        let (mut deliveries, mut next) = (Vec::new(), self.newest_incomplete.remove(&pdc));
        let mut unexpected = false;
        while let Some(message) = next.and_then(|key| self.messages.remove(key)) {
            next = message.neighbours.and_then(|neighbours| neighbours.older);
            self.by_name.remove(&message.name);
            if message.receive.is_none() {
                self.release(message.peer, message.total);
                unexpected = true;
            }
            deliveries.extend(message.into_delivery());
        }
        if unexpected {
            let messages = &self.messages;
            self.unexpected.retain(|&key| messages.get(key).is_some());
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

    /// Takes a message out of the list of its PDC's incomplete ones, if it is there.
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
        let matched = self.posted.iter().position(|posted| posted.takes(peer, tag));
        let (buffer, receive) = match matched.and_then(|at| self.posted.remove(at)) {
            Some(posted) => (posted.buffer, Some((posted.id, posted.context))),
            None => {
                let held = self.held.get(&peer).map_or(0, |held| *held) + quota(total);
                if held > self.hold_limit {
                    return Err(Refusal::Busy(NackCode::NO_PKT_BUFFER));
                }
                self.held.insert(peer, held);
                (Buffer::to_keep(total, payload), None)
            }
        };
        let unexpected = receive.is_none();
        let message = Incoming {
            name,
            peer,
            tag,
            header_data: 0,
            total,
            received: 0,
            buffer,
            receive,
            neighbours: None,
        };
        let key = self.messages.insert(message);
        self.by_name.insert(name, key);
        if payload.len() < total {
            self.list(key, name.0);
        }
        if unexpected {
            self.unexpected.push_back(key);
        }
        Ok(key)
    }

    /// Ends a complete message that has met a receive.
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
}

/// What an unexpected message of `len` bytes counts for in its sender's quota: at least what it takes
/// to know of it, so that no sender can use up the number of messages with empty ones.
fn quota(len: u32) -> u64 {
    u64::from(len).max(128)
}

/// The response that tells the sender of `request` how its message fared.
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
mod tests {
    use super::*;
    use crate::ses::SendMessage;

    fn receive(id: u64, matching: Matching, len: usize) -> Posted {
        Posted {
            id: ReceiveId(id),
            from: None,
            matching,
            buffer: Buffer::Heap(vec![0; len]),
            context: id * 10,
        }
    }

    fn send(len: usize, tag: Option<u64>, msg_id: u16) -> SendMessage {
        SendMessage::new(Buffer::Heap((0..len).map(|i| i as u8).collect()), tag, 77, 0, msg_id)
    }

    /// Delivers `message` in packets of `mtu` bytes, last packet first.
    fn deliver(receives: &mut Receives, message: &SendMessage, mtu: u32) -> Result<Vec<Delivery>, Refusal> {
        let len = message.buffer.len();
        let mut done = Vec::new();
        for offset in (0..len.max(1)).step_by(mtu as usize).rev() {
            let part = mtu.min(len - offset);
            let request = message.request(1, offset, part);
            let payload = message.buffer.payload(offset, part);
            let place = receives.admit(Addr(1), PdcId(1), &request, payload)?;
            done.extend(receives.place(place, &request, payload));
        }
        Ok(done)
    }

    #[test]
    fn expected_messages_land_in_their_receive() {
        let mut receives = Receives::new(1 << 20, 100);
        receives.post(receive(1, Matching::Untagged, 100));
        receives.post(receive(2, Matching::Tagged { tag: 0x12, ignore: 0xf }, 100));
        let message = send(100, Some(0x15), 3);
        let done = deliver(&mut receives, &message, 30).unwrap();
        assert_eq!(done.len(), 1);
        assert_eq!((done[0].id, done[0].context, done[0].header_data), (ReceiveId(2), 20, 77));
        assert_eq!(done[0].buffer, message.buffer);
        assert_eq!((receives.posted(), receives.under_way()), (1, 0));
    }

    #[test]
    fn unexpected_messages_wait_and_are_limited_by_sender() {
        let mut receives = Receives::new(300, 100);
        let message = send(200, None, 1);
        assert!(deliver(&mut receives, &message, 30).unwrap().is_empty());
        assert_eq!(
            deliver(&mut receives, &send(200, None, 2), 30).unwrap_err(),
            Refusal::Busy(NackCode::NO_PKT_BUFFER)
        );
        let done = receives.post(receive(5, Matching::Untagged, 200)).unwrap();
        assert_eq!(done.buffer, message.buffer);
        assert!(deliver(&mut receives, &send(200, None, 2), 30).is_ok(), "the quota is free again");
    }

    #[test]
    fn a_receive_posted_in_the_middle_gets_both_halves() {
        let mut receives = Receives::new(1 << 20, 100);
        let message = send(60, None, 1);
        let second = message.request(1, 30, 30);
        let place = receives.admit(Addr(1), PdcId(1), &second, message.buffer.payload(30, 30)).unwrap();
        assert!(receives.place(place, &second, message.buffer.payload(30, 30)).is_none());
        assert!(receives.post(receive(1, Matching::Untagged, 60)).is_none());
        let first = message.request(1, 0, 30);
        let place = receives.admit(Addr(1), PdcId(1), &first, message.buffer.payload(0, 30)).unwrap();
        let done = receives.place(place, &first, message.buffer.payload(0, 30)).unwrap();
        assert_eq!(done.buffer, message.buffer);
    }

    /// Delivers all packets of 30 bytes but the first.
    fn begin(receives: &mut Receives, pdc: u16, message: &SendMessage) {
        for offset in (30..message.buffer.len()).step_by(30) {
            let part = 30.min(message.buffer.len() - offset);
            let (request, payload) = (message.request(1, offset, part), message.buffer.payload(offset, part));
            let place = receives.admit(Addr(1), PdcId(pdc), &request, payload).unwrap();
            assert!(receives.place(place, &request, payload).is_none());
        }
    }

    fn finish(receives: &mut Receives, pdc: u16, message: &SendMessage) -> Option<Delivery> {
        let (request, payload) = (message.request(1, 0, 30), message.buffer.payload(0, 30));
        let place = receives.admit(Addr(1), PdcId(pdc), &request, payload).unwrap();
        receives.place(place, &request, payload)
    }

    #[test]
    fn a_pdc_that_closes_takes_its_incomplete_messages_along_and_no_others() {
        // Every choice of messages that complete before the close, from either end of the list or within.
        for completed in 0..1u16 << 5 {
            let mut receives = Receives::new(1 << 20, 100);
            for id in 1..=4 {
                receives.post(receive(id, Matching::Tagged { tag: id, ignore: 0 }, 60));
            }
            // Message 5 of PDC 1 meets no receive.
            let messages: Vec<_> = (1..=5).map(|id| send(60, Some(id), id as u16)).collect();
            let stranger = send(60, Some(9), 1);
            for message in &messages {
                begin(&mut receives, 1, message);
            }
            begin(&mut receives, 2, &stranger);
            let (done, left): (Vec<usize>, Vec<usize>) = (0..5).partition(|&i| completed >> i & 1 == 1);
            for &i in &done {
                assert_eq!(finish(&mut receives, 1, &messages[i]).is_some(), i < 4);
            }
            let abandoned: Vec<u64> = receives.abandon(PdcId(1)).iter().map(|lost| lost.id.0).collect();
            let expected: Vec<u64> = left.iter().filter(|&&i| i < 4).map(|&i| i as u64 + 1).collect();
            assert_eq!(abandoned, expected, "{completed:#b}");
            let kept = usize::from(done.contains(&4));
            assert_eq!((receives.under_way(), receives.unexpected.len()), (1 + kept, 1 + kept));
            assert!(receives.abandon(PdcId(1)).is_empty());
            // The other PDC's message is as it was, and the numbers of the abandoned ones are free again.
            assert!(finish(&mut receives, 2, &stranger).is_none());
            let whole = receives.post(receive(9, Matching::Tagged { tag: 9, ignore: 0 }, 60)).unwrap();
            assert_eq!(whole.buffer, stranger.buffer);
            begin(&mut receives, 1, &messages[0]);
            assert!(receives.abandon(PdcId(1)).is_empty(), "it has met no receive");
            assert_eq!(receives.under_way(), kept);
            assert!(receives.by_name.is_empty() && receives.newest_incomplete.is_empty());
            assert_eq!(receives.held.len(), kept);
        }
    }

    #[test]
    fn short_receives_are_filled_and_say_so() {
        let mut receives = Receives::new(1 << 20, 100);
        receives.post(receive(1, Matching::Untagged, 40));
        let done = deliver(&mut receives, &send(100, None, 1), 30).unwrap();
        assert!(done[0].is_truncated());
        assert_eq!((done[0].len, done[0].buffer.len()), (100, 40));
    }

    #[test]
    fn contradictory_headers_are_refused() {
        let mut receives = Receives::new(1 << 20, 1);
        let message = send(100, None, 1);
        let good = message.request(1, 30, 30);
        receives.admit(Addr(1), PdcId(1), &good, message.buffer.payload(30, 30)).unwrap();
        let mut bad = good;
        bad.request_length = 99;
        let refusal = receives.admit(Addr(1), PdcId(1), &bad, message.buffer.payload(30, 30)).unwrap_err();
        assert!(matches!(refusal, Refusal::Malformed(_)));
        let mut bad = good;
        bad.placement = Placement::Continue { payload_len: 30, msg_offset: u32::MAX - 3 };
        let refusal = receives.admit(Addr(1), PdcId(1), &bad, message.buffer.payload(30, 30)).unwrap_err();
        assert!(matches!(refusal, Refusal::Malformed(_)));
        let other = receives.admit(Addr(1), PdcId(2), &good, message.buffer.payload(30, 30)).unwrap_err();
        assert_eq!(other, Refusal::Busy(NackCode::NO_SES_MSG_AVAIL));
        let mut read = good;
        read.opcode = Opcode::READ;
        let refusal = receives.admit(Addr(1), PdcId(1), &read, Payload::EMPTY).unwrap_err();
        assert_eq!(refusal, Refusal::Unsupported(ReturnCode::UNSUPPORTED_OP));
    }
}
