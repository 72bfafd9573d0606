//! The side that accesses a peer's memory.

use std::collections::HashMap;

use bytes::Bytes;
use weft::core::wire::ses::ReturnCode;
use weft::{Atomic, Error, MemorySlice, OperationId, ReadFault, RemoteMemory, Source};

use super::super::connections::Returned;
use super::super::operation::Piece;
use super::super::pending::TO_ONE;
use super::super::remote::{AtomicCall, What};
use super::super::stand_in::{Named, Untaken};
use super::super::{Room, State};
use super::lanes::Next;
use super::wire::{ANSWER, Answer, Kind, REQUEST, Request};
use super::{ANSWERS, Carrier, Inner, PIECE, REQUESTS, VALUES};
use crate::error::FiError;
use crate::random;

/// An access that is under way.
#[derive(Debug)]
pub(super) struct Carried {
    /// The application's operation.
    operation: usize,
    pub(super) peer: Source,
    memory: RemoteMemory,
    kind: Kind,
    /// What is written, or the operands.
    bytes: Bytes,
    /// Beside a write; or the number of the notice that a message is done.
    data: Option<u64>,
    total: u32,
    /// Bytes that were asked for; none before the first piece, which may have no bytes.
    asked: Option<u32>,
    /// Pieces that the peer did not have the requests for, where they begin and their lengths: they are asked for again.
    again: Vec<(u32, u32)>,
    /// Pieces that were asked for and have not ended.
    under_way: usize,
    /// Whether the owner is to be told when all pieces have been done.
    counts: bool,
    /// Whether it has been.
    is_told: bool,
    /// Why the sender of a message may not have got its notice: that was not sent, or has no answer.
    untold: Option<FiError>,
    /// How often it was told in vain before.
    tries: u32,
    /// Whether it is in the lane of its peer.
    pub(super) queued: bool,
    error: Option<FiError>,
}

/// A notice to the sender of a message, which has to be told again that the message is done.
#[derive(Debug)]
pub(in super::super) struct Notice {
    named: Named,
    /// The same each time that it is sent.
    number: u64,
    tries: u32,
}

/// Notices tell the sender of a message that its receiver has received or dropped it. This counts them, and keeps those that
/// could not be delivered.
#[derive(Debug, Default)]
pub(in super::super) struct Notices {
    /// Notices that have failed and will be sent again.
    again: Vec<Notice>,
    counts: HashMap<Source, Counts>,
}

/// How many notices to one peer there are.
#[derive(Debug, Default, PartialEq)]
struct Counts {
    /// Notices that wait to be sent again.
    waiting: usize,
    under_way: usize,
}

/// The most notices to one peer that are under way, and the most that wait to be sent again: as many as it may have messages.
const NOTICES: usize = TO_ONE;

impl Notices {
    /// One to `peer` is sent. Returns false if it has as many under way as it may.
    fn begin(&mut self, peer: Source) -> bool {
        add_one(&mut self.counts.entry(peer).or_default().under_way)
    }

    /// One to `peer` is under way no more.
    fn end(&mut self, peer: Source) {
        self.change(peer, |counts| counts.under_way = counts.under_way.saturating_sub(1));
    }

    /// Changes the counts of a peer that has any.
    fn change(&mut self, peer: Source, change: impl FnOnce(&mut Counts)) {
        let Some(counts) = self.counts.get_mut(&peer) else { return };
        change(counts);
        if *counts == Counts::default() {
            self.counts.remove(&peer);
        }
    }

    /// Keeps one that is to be sent again.
    fn keep(&mut self, notice: Notice) {
        if add_one(&mut self.counts.entry(notice.named.peer).or_default().waiting) {
            self.again.push(notice);
        }
    }

    /// Takes all notices that wait to be sent again.
    fn take(&mut self) -> Vec<Notice> {
        let all = std::mem::take(&mut self.again);
        for notice in &all {
            self.change(notice.named.peer, |counts| counts.waiting = counts.waiting.saturating_sub(1));
        }
        all
    }

    #[cfg(test)]
    pub(in super::super) fn len(&self) -> usize {
        self.again.len()
    }
}

/// Adds one to a count of notices, unless there are as many as a peer may have.
fn add_one(count: &mut usize) -> bool {
    let may_begin = *count < NOTICES;
    *count += usize::from(may_begin);
    may_begin
}

/// How often one is sent, 2 s after it has failed. A sender that cannot be reached for so long has found that out by its questions.
const TRIES: u32 = 32;

/// A piece that was asked for.
#[derive(Debug)]
pub(super) struct Ask {
    access: usize,
    pub(super) peer: Source,
    at: u32,
    len: u32,
    pub(super) is_read: bool,
    /// The request, until it is posted.
    request: Option<MemorySlice>,
    /// The receive of the answer, until that has ended.
    pub(super) room: Option<OperationId>,
    /// Whether the request has been delivered, or never will be.
    pub(super) is_sent: bool,
    pub(super) number: u32,
    /// Whether the owner had the request when it was asked last.
    was_there: bool,
    /// Whether it has waited since one of the times at which memory is taken away.
    pub(super) is_old: bool,
    /// Whether its memory was taken away, or is being: the receive of the answer is posted again later.
    pub(super) is_withdrawn: bool,
    /// Whether the owner has lost it, and it may be asked for again.
    is_lost: bool,
    /// Whether the owner has said anything.
    is_answered: bool,
    /// Bytes at the end of it that the answer has left out, as its owner has shorter pieces.
    missing: u32,
    pub(super) error: Option<FiError>,
}

impl Ask {
    /// The owner, if it has the request and owes the answer.
    pub(super) fn waits_for(&self) -> Option<Source> {
        (self.is_sent && (self.room.is_some() || self.is_withdrawn)).then_some(self.peer)
    }

    /// Whether it has no memory, and waits for some for its answer.
    fn is_without_memory(&self) -> bool {
        self.is_withdrawn && self.room.is_none()
    }
}

impl Carried {
    /// The next piece to ask for: where it begins, and its length. The last piece of a write with data waits for the others, and so
    /// does the notice for an owner that counts, a piece of no bytes.
    pub(super) fn next(&self, long_piece: u32) -> Option<(u32, u32)> {
        let at = self.asked.unwrap_or(0);
        if self.error.is_some() {
            return None;
        }
        if let Some(piece) = self.again.last() {
            return Some(*piece);
        }
        if self.asked == Some(self.total) {
            return (self.owes_notice() && self.under_way == 0).then_some((at, 0));
        }
        let is_of_message = matches!(self.kind, Kind::Message { .. });
        let len = (self.total - at).min(if is_of_message { long_piece } else { PIECE });
        let waits = !is_of_message && self.data.is_some() && at + len == self.total && self.under_way > 0;
        (!waits).then_some((at, len))
    }

    fn owes_notice(&self) -> bool {
        self.counts && !self.is_told
    }

    fn has_ended(&self) -> bool {
        let is_done = self.asked == Some(self.total) && self.again.is_empty() && !self.owes_notice();
        self.under_way == 0 && (self.error.is_some() || is_done)
    }
}

impl Carrier {
    pub(super) fn give_back(&mut self, is_large: bool, slice: MemorySlice) {
        if is_large { self.large.push(slice) } else { self.small.push(slice) }
    }

    /// Whether a request or an answer to `peer` waits to be sent.
    pub(in super::super) fn waits_for(&self, peer: Source) -> bool {
        self.unsent.iter().any(|(asker, ..)| *asker == peer)
            || self.asks.iter().any(|ask| ask.peer == peer && ask.request.is_some())
    }
}

#[cfg(test)]
impl Carrier {
    /// Whether all requests have been delivered, and whether all pieces of an access were asked for.
    pub(in super::super) fn asked(&self) -> (bool, bool) {
        let is_asked_for = |carried: &Carried| carried.asked == Some(carried.total);
        (self.asks.iter().all(|ask| ask.is_sent), self.accesses.iter().any(is_asked_for))
    }
}

impl State {
    /// Begins an access.
    ///
    /// # Errors
    /// There is no such atomic operation.
    pub(in super::super) fn carry(
        &mut self,
        peer: Source,
        memory: RemoteMemory,
        what: What,
        number: usize,
    ) -> Result<(), FiError> {
        self.hand_over(peer, memory, what, number)?;
        // It is under way, whatever happens to others.
        let _ = self.ask_for_pieces();
        Ok(())
    }

    /// As [`State::carry`], but asks for nothing yet: that is for the next turn.
    pub(in super::super) fn hand_over(
        &mut self,
        peer: Source,
        memory: RemoteMemory,
        what: What,
        number: usize,
    ) -> Result<(), FiError> {
        let operation = self.operations.get_mut(number).ok_or(FiError::OTHER)?;
        let pieces = |room| match room {
            Room::One(room) => vec![Piece(room)],
            Room::Several(rooms) => rooms.into_iter().map(Piece).collect(),
        };
        let (kind, bytes, data, total) = match what {
            What::Read(room) => {
                operation.pieces = pieces(room);
                let len = operation.pieces.iter().map(|Piece(room)| room.as_ref().len()).sum();
                (Kind::Read, Bytes::new(), None, len)
            }
            What::Write { bytes, data } => {
                let bytes = bytes.into_bytes()?;
                let len = bytes.len();
                (Kind::Write, bytes, data.map(|data| data & u64::from(u32::MAX)), len)
            }
            What::Atomic(AtomicCall { op, datatype, operands, compare, room }) => {
                let size = datatype.size().ok_or(FiError::NO_OPERATION)?;
                let most = Atomic::most_values(op, datatype, VALUES);
                if most == 0 || compare.is_some() != op.has_operands() {
                    return Err(FiError::NO_OPERATION);
                }
                let (len, is_one) = (operands.len(), compare.is_some());
                if len == 0 || !len.is_multiple_of(size) || len > VALUES as usize || is_one && len != size {
                    return Err(FiError::INVALID);
                }
                let fetch = room.is_some();
                operation.pieces = room.map(pieces).unwrap_or_default();
                (Kind::Atomic { op, datatype, compare, fetch }, operands.into(), None, len)
            }
        };
        let total = u32::try_from(total).map_err(|_| FiError::TOO_LONG)?;
        let access = Carried {
            operation: number,
            peer,
            memory,
            kind,
            bytes,
            data,
            total,
            asked: None,
            again: Vec::new(),
            under_way: 0,
            counts: false,
            is_told: false,
            untold: None,
            tries: 0,
            queued: false,
            error: None,
        };
        let carrier = self.carrier.as_mut().ok_or(FiError::NOT_THERE)?;
        let access = carrier.accesses.insert(access);
        carrier.enqueue(access);
        Ok(())
    }

    /// Fetches the bytes from `begin` to `total` of a message for receive `number`, and tells its sender then.
    pub(in super::super) fn begin_fetch(&mut self, number: usize, named: Named, begin: u32, total: u32) {
        self.begin_message(number, named, [begin, total], random::number(), 0);
    }

    /// Tells the sender of a message that it is done, or why it was not taken.
    pub(in super::super) fn tell(&mut self, named: Named) {
        match self.carrier {
            Some(_) => self.begin_notice(Notice { named, number: random::number(), tries: 0 }),
            None => self.tell_by_note(named),
        }
    }

    fn begin_notice(&mut self, notice: Notice) {
        let Some(carrier) = &mut self.carrier else { return };
        let Notice { named, number, tries } = notice;
        if carrier.notices.begin(named.peer) {
            self.begin_message(usize::MAX, named, [0, 0], number, tries);
        } else {
            carrier.notices.keep(notice);
        }
    }

    fn begin_message(
        &mut self,
        operation: usize,
        named: Named,
        [begin, total]: [u32; 2],
        notice: u64,
        tries: u32,
    ) {
        let Some(carrier) = &mut self.carrier else { return };
        let access = carrier.accesses.insert(Carried {
            operation,
            peer: named.peer,
            memory: RemoteMemory { key: named.header_data, offset: named.tag },
            kind: Kind::Message { end: named.end, untaken: named.untaken },
            bytes: Bytes::new(),
            data: Some(notice),
            total,
            asked: Some(begin),
            again: Vec::new(),
            under_way: 0,
            counts: true,
            is_told: false,
            untold: None,
            tries,
            queued: false,
            error: None,
        });
        carrier.enqueue(access);
        // It is under way, whatever happens to others.
        let _ = self.ask_for_pieces();
    }

    /// Sends the notices again that may not have arrived.
    pub(in super::super) fn repeat_notices(&mut self) {
        let notices = self.carrier.as_mut().map(|carrier| carrier.notices.take());
        notices.into_iter().flatten().for_each(|notice| self.begin_notice(notice));
    }

    /// Keeps a notice that may not have arrived for [`State::repeat_notices`], unless there is nobody to be told.
    fn keep_notice(&mut self, mut notice: Notice, why: FiError) {
        let Some(carrier) = &mut self.carrier else { return };
        notice.tries += 1;
        let is_over = why == FiError::REFUSED || why == FiError::GONE || notice.tries >= TRIES;
        if !is_over {
            carrier.notices.keep(notice);
        }
    }

    /// Asks for as many pieces as there are memory and windows for, of the peers in turn.
    pub(super) fn ask_for_pieces(&mut self) -> Result<(), FiError> {
        let mut failed = Vec::new();
        let asked = self.ask_in_turn(&mut failed);
        // Only then: the end of one may lead here again, which must not go on from one to the next.
        let ended = failed.into_iter().try_for_each(|access| self.end_if_done(access));
        asked.and(ended)
    }

    /// As [`State::ask_for_pieces`], but accesses that have `failed` have not ended yet.
    fn ask_in_turn(&mut self, failed: &mut Vec<usize>) -> Result<(), FiError> {
        self.post_requests()?;
        while let Some(peer) = self.carrier.as_mut().and_then(|carrier| carrier.next_lane()) {
            let mut may_go_on = true;
            while may_go_on
                && let Some(next) = self.carrier.as_mut().and_then(|carrier| carrier.next_of(peer))
            {
                may_go_on = match next {
                    Next::Answer(ask) => self.wait_for_answer(ask)?,
                    Next::Piece(access, at, len) => self.ask_for(access, (at, len), failed)?,
                };
            }
            if let Some(carrier) = &mut self.carrier {
                carrier.enqueue_lane(peer);
            }
            if !may_go_on {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Asks for a piece, which begins at `at` and has `len` bytes. Returns false if there is no room for that now.
    fn ask_for(
        &mut self,
        access: usize,
        (at, len): (u32, u32),
        failed: &mut Vec<usize>,
    ) -> Result<bool, FiError> {
        let Some(carrier) = &mut self.carrier else { return Ok(false) };
        let Some(carried) = carrier.accesses.get_mut(access) else { return Ok(true) };
        let Some(large) = carrier.large.pop() else { return Ok(false) };
        let Some(small) = carrier.small.pop() else {
            carrier.large.push(large);
            return Ok(false);
        };
        let (peer, is_read) = (carried.peer, carried.kind.brings());
        // None of the other pieces has no bytes then.
        let is_done = carried.asked == Some(carried.total) && len == 0;
        let is_again = !carried.again.is_empty();
        let (mut request, answer) = if is_read { (small, large) } else { (large, small) };
        let number = carrier.next;
        carrier.next = carrier.next.wrapping_add(1);
        let head = Request {
            kind: carried.kind,
            number,
            key: carried.memory.key,
            offset: carried.memory.offset,
            total: carried.total,
            at,
            len,
            data: carried.data.filter(|_| at + len == carried.total),
            is_done,
        };
        let carries = if head.carries() { len } else { 0 };
        let endpoint = self.endpoint.as_mut().ok_or(FiError::BAD_STATE)?;
        endpoint.memory().set_len(&mut request, REQUEST as u32 + carries).map_err(|_| FiError::OTHER)?;
        request.write(0, &head.emit());
        if carries > 0 {
            request.write(REQUEST as u32, &carried.bytes[at as usize..(at + len) as usize]);
        }
        let ask = carrier.asks.insert(Ask {
            access,
            peer,
            at,
            len,
            is_read,
            request: None,
            room: None,
            is_sent: false,
            number,
            was_there: false,
            is_old: false,
            is_withdrawn: false,
            is_lost: false,
            is_answered: false,
            missing: 0,
            error: None,
        });
        let posted = self.post_answer_room(ask, answer);
        let Some(carrier) = &mut self.carrier else { return Ok(false) };
        match posted {
            Ok(room) => {
                if let Some(ask) = carrier.asks.get_mut(ask) {
                    (ask.room, ask.request) = (Some(room), Some(request));
                }
                if let Some(carried) = carrier.accesses.get_mut(access) {
                    carried.under_way += 1;
                    if is_again {
                        carried.again.pop();
                    } else {
                        carried.asked = Some(at + len);
                    }
                    carried.is_told |= is_done;
                }
                carrier.hold(peer);
                carrier.lanes.entry(peer).or_default().window += 1;
                self.post_request(ask).map(|()| true)
            }
            Err((error, answer)) => {
                carrier.asks.remove(ask);
                carrier.give_back(!is_read, request);
                answer.into_iter().for_each(|answer| carrier.give_back(is_read, answer));
                if error == FiError::AGAIN {
                    return Ok(false);
                }
                if let Some(carried) = carrier.accesses.get_mut(access) {
                    if is_done && matches!(carried.kind, Kind::Message { .. }) {
                        // All that it wanted is there.
                        (carried.is_told, carried.untold) = (true, Some(error));
                    } else {
                        carried.error = Some(error);
                    }
                }
                carrier.dequeue(access);
                failed.push(access);
                Ok(true)
            }
        }
    }

    /// Posts the receive of an answer.
    pub(super) fn post_answer_room(
        &mut self,
        ask: usize,
        slice: MemorySlice,
    ) -> Result<OperationId, (FiError, Option<MemorySlice>)> {
        let asked = self.carrier.as_mut().and_then(|carrier| carrier.asks.get_mut(ask));
        let Some(&mut Ask { number, len, is_read, peer, .. }) = asked else {
            return Err((FiError::OTHER, Some(slice)));
        };
        let most = ANSWER as u32 + if is_read { len } else { VALUES };
        let (tag, inner) = (ANSWERS + u64::from(number), Inner::AnswerRoom(ask));
        self.post_inner_room(slice, most, tag, Some(peer), inner)
    }

    /// Sends the requests that have not been, as far as there is room.
    fn post_requests(&mut self) -> Result<(), FiError> {
        let unposted = self.carrier.as_mut().map(|carrier| std::mem::take(&mut carrier.unposted));
        // A peer to which nothing can be posted now holds up no other one.
        unposted.into_iter().flatten().map(|ask| self.post_request(ask)).fold(Ok(()), Result::and)
    }

    /// Sends a request; it waits if there is no room for it now.
    fn post_request(&mut self, ask: usize) -> Result<(), FiError> {
        let asked = self.carrier.as_mut().and_then(|carrier| carrier.asks.get_mut(ask));
        let Some((Some(request), peer)) = asked.map(|asked| (asked.request.take(), asked.peer)) else {
            return Ok(());
        };
        match self.post_inner(peer, request, REQUESTS, Inner::Request(ask)) {
            Ok(()) => Ok(()),
            Err((FiError::AGAIN, request)) => {
                let Some(carrier) = &mut self.carrier else { return Ok(()) };
                if let Some(asked) = carrier.asks.get_mut(ask) {
                    asked.request = request;
                    carrier.unposted.push_back(ask);
                }
                Ok(())
            }
            Err((error, request)) => self.fail_ask(ask, request, error),
        }
    }

    /// A request has been delivered, or not.
    pub(super) fn requested(
        &mut self,
        ask: usize,
        slice: MemorySlice,
        result: Result<(), Error>,
    ) -> Result<(), FiError> {
        let Some(carrier) = &mut self.carrier else { return Ok(()) };
        let Some(asked) = carrier.asks.get_mut(ask) else { return Ok(()) };
        let result = match self.peers.beside.end(asked.peer, &result) {
            Some(Returned::Again) if asked.error.is_none() => {
                asked.request = Some(slice);
                carrier.unposted.push_back(ask);
                return Ok(());
            }
            Some(Returned::Failed(why)) => Err(why),
            _ => result,
        };
        match result {
            Ok(()) => {
                asked.is_sent = true;
                let is_read = asked.is_read;
                carrier.give_back(!is_read, slice);
                self.end_ask(ask)
            }
            Err(error) => self.fail_ask(ask, Some(slice), FiError::from(&error)),
        }
    }

    /// No answer will come: the receive of it is taken back.
    pub(super) fn fail_ask(
        &mut self,
        ask: usize,
        request: Option<MemorySlice>,
        error: FiError,
    ) -> Result<(), FiError> {
        let Some(carrier) = &mut self.carrier else { return Ok(()) };
        let Some(asked) = carrier.asks.get_mut(ask) else { return Ok(()) };
        asked.is_sent = true;
        if asked.room.is_some() || asked.is_withdrawn {
            asked.error.get_or_insert(error);
        }
        let was_without = asked.is_without_memory();
        asked.is_withdrawn = false;
        let (is_read, room, peer) = (asked.is_read, asked.room, asked.peer);
        if let (true, Some(lane)) = (was_without, carrier.lanes.get_mut(&peer)) {
            lane.withdrawn.retain(|other| *other != ask);
            // Its end counts as that of one with memory.
            carrier.hold(peer);
        }
        request.into_iter().for_each(|slice| carrier.give_back(!is_read, slice));
        if let (Some(room), Some(endpoint)) = (room, &mut self.endpoint) {
            // One that an answer has met ends with that.
            let _ = endpoint.cancel(room);
        }
        self.end_ask(ask)
    }

    /// A question to `peer`, which names the requests that it has not answered since the last one.
    pub(super) fn question(&mut self, peer: Source) -> Vec<u8> {
        let mut numbers = Vec::new();
        let has_memory =
            |carrier: &&mut Box<Carrier>| carrier.lanes.get(&peer).is_some_and(|lane| lane.holds > 0);
        let asks = self.carrier.as_mut().filter(has_memory).map(|carrier| &mut carrier.asks);
        for ask in asks.into_iter().flat_map(|asks| asks.iter_mut()) {
            // One whose answer may be here already is not named.
            let waits = ask.waits_for() == Some(peer) && !ask.is_without_memory();
            if waits && std::mem::replace(&mut ask.was_there, true) {
                numbers.extend(ask.number.to_le_bytes());
            }
        }
        let len = numbers.len() as u32;
        let kind = Kind::Question { life: self.stand_ins.asks_life(peer) };
        let number = self.stand_ins.next_question();
        let question = Request { kind, number, total: len, len, ..Request::QUESTION };
        let mut bytes = question.wanting(self.budgets.question(peer, number)).emit().to_vec();
        bytes.extend(numbers);
        bytes
    }

    /// There is no connection to `peer`, and there will be none: requests and answers that wait for one are dropped.
    pub(in super::super) fn give_up_requests(&mut self, peer: Source, error: FiError) -> Result<(), FiError> {
        self.drop_answers(peer);
        let Some(carrier) = &mut self.carrier else { return Ok(()) };
        let mut requests = Vec::new();
        for ask in std::mem::take(&mut carrier.unposted) {
            match carrier.asks.get_mut(ask) {
                Some(asked) if asked.peer == peer => requests.push((ask, asked.request.take())),
                _ => carrier.unposted.push_back(ask),
            }
        }
        requests.into_iter().try_for_each(|(ask, request)| self.fail_ask(ask, request, error))
    }

    /// A peer is gone: the answers that it owes will not come.
    pub(in super::super) fn fail_asks_of(&mut self, peer: Source, error: FiError) -> Result<(), FiError> {
        let owes = |ask: &Ask| ask.waits_for() == Some(peer);
        let asks = self.carrier.as_ref().map_or_else(Vec::new, |carrier| carrier.asks.numbers(owes));
        asks.into_iter().try_for_each(|ask| self.fail_ask(ask, None, error))
    }

    /// The receive of an answer has ended.
    pub(super) fn answered_ask(
        &mut self,
        ask: usize,
        slice: MemorySlice,
        len: u32,
        result: Result<(), Error>,
    ) -> Result<(), FiError> {
        let Some(carrier) = &mut self.carrier else { return Ok(()) };
        let Some(asked) = carrier.asks.get_mut(ask) else { return Ok(()) };
        asked.room = None;
        let result = result.map_err(|error| FiError::from(&error));
        if asked.is_withdrawn && result == Err(FiError::CANCELED) {
            let (is_read, peer) = (asked.is_read, asked.peer);
            if let Some(lane) = carrier.lanes.get_mut(&peer) {
                lane.withdrawn.push_back(ask);
            }
            carrier.give_back(is_read, slice);
            carrier.release(peer);
            carrier.enqueue_lane(peer);
            return Ok(());
        }
        asked.is_withdrawn = false;
        let mut head = [0; ANSWER];
        slice.read(0, &mut head);
        let answer = result.and_then(|()| Answer::parse(&head, len).ok_or(FiError::OTHER));
        let peer = asked.peer;
        let mut carried = carrier.accesses.get_mut(asked.access);
        if let (Some(carried), Ok(Answer { counts: true, .. })) = (&mut carried, answer) {
            // The last piece of a write with data tells it, and so does the only one.
            carried.counts |= carried.data.is_none() && asked.len < carried.total;
        }
        asked.is_answered = answer.is_ok();
        // Pieces of a message may be read twice, and its sender may be told twice that it has arrived.
        let is_of_message = matches!(&carried, Some(Carried { kind: Kind::Message { .. }, .. }));
        let operation = carried.and_then(|carried| self.operations.get_mut(carried.operation));
        match (answer, operation) {
            (Ok(Answer { code: ReturnCode::OK, len, .. }), Some(operation)) => {
                // No provider has shorter pieces.
                let is_part = is_of_message && len >= PIECE && len < asked.len;
                if len == asked.len || is_part {
                    operation.scatter_piece(&slice, ANSWER as u32, asked.at, len);
                    asked.missing = asked.len - len;
                } else if operation.takes_bytes() && asked.error.is_none() {
                    asked.error = Some(FiError::OTHER);
                }
            }
            (Ok(Answer { code: ReturnCode::OK, .. }), None) => {}
            (Ok(Answer { code: ReturnCode::BAD_PID, .. }), _) if is_of_message => {
                asked.is_lost = asked.error.is_none();
            }
            (Ok(Answer { code, .. }), _) => {
                let refused = Error::Access(ReadFault::Answered(code));
                asked.error.get_or_insert(FiError::from(&refused));
            }
            (Err(error), _) => {
                asked.error.get_or_insert(error);
            }
        }
        let is_read = asked.is_read;
        carrier.give_back(is_read, slice);
        if answer.is_ok() {
            carrier.set_silent(peer, false);
        }
        self.end_ask(ask)
    }

    /// Ends a piece, if both its request and its answer have ended.
    fn end_ask(&mut self, ask: usize) -> Result<(), FiError> {
        let Some(carrier) = &mut self.carrier else { return Ok(()) };
        let has_ended = |asked: &mut Ask| asked.is_sent && asked.room.is_none() && !asked.is_withdrawn;
        if !carrier.asks.get_mut(ask).is_some_and(has_ended) {
            return Ok(());
        }
        let Some(ended) = carrier.asks.remove(ask) else { return Ok(()) };
        let Ask { access, peer, at, len, is_lost, is_answered, missing, error, .. } = ended;
        if let Some(lane) = carrier.lanes.get_mut(&peer) {
            lane.window -= 1;
        }
        carrier.release(peer);
        carrier.enqueue_lane(peer);
        let Some(carried) = carrier.accesses.get_mut(access) else { return Ok(()) };
        carried.under_way -= 1;
        let is_notice = matches!(carried.kind, Kind::Message { .. }) && len == 0 && carried.is_told;
        match error {
            Some(error) if is_notice => carried.untold = (!is_answered).then_some(error),
            error => carried.error = carried.error.or(error),
        }
        if missing > 0 {
            carried.again.push((at + len - missing, missing));
        }
        if is_lost {
            if len > 0 { carried.again.push((at, len)) } else { carried.is_told = false }
        }
        if carried.next(carrier.long_piece).is_some() {
            carrier.enqueue(access);
        }
        self.end_if_done(access)
    }

    /// Ends an access of which nothing is left to be done.
    fn end_if_done(&mut self, access: usize) -> Result<(), FiError> {
        let Some(carrier) = &mut self.carrier else { return Ok(()) };
        if !carrier.accesses.get_mut(access).is_some_and(|carried| carried.has_ended()) {
            return Ok(());
        }
        carrier.dequeue(access);
        self.end_carried(access)
    }

    /// Ends the access of operation `number` as cancelled if nothing was asked for yet; else it goes on. Returns false if that is none.
    pub(in super::super) fn cancel_access(&mut self, number: usize) -> Result<bool, FiError> {
        let Some(carrier) = &mut self.carrier else { return Ok(false) };
        let is_it =
            |carried: &Carried| carried.operation == number && !matches!(carried.kind, Kind::Message { .. });
        let Some(access) = carrier.accesses.position(is_it) else { return Ok(false) };
        let Some(carried) = carrier.accesses.get_mut(access) else { return Ok(false) };
        if carried.asked.is_some() || carried.under_way > 0 || carried.error.is_some() {
            return Ok(true);
        }
        carried.error = Some(FiError::CANCELED);
        // Its lane may be full for as long as the peer answers nothing.
        carrier.dequeue(access);
        self.end_carried(access).map(|()| true)
    }

    fn end_carried(&mut self, access: usize) -> Result<(), FiError> {
        let carried = self.carrier.as_mut().and_then(|carrier| carrier.accesses.remove(access));
        let Some(Carried { operation: number, peer, memory, kind, data, untold, tries, error, .. }) = carried
        else {
            return Ok(());
        };
        if let Kind::Message { end, untaken } = kind {
            let named = Named { peer, tag: memory.offset, header_data: memory.key, end, untaken };
            if number == usize::MAX
                && let Some(carrier) = &mut self.carrier
            {
                carrier.notices.end(peer);
            }
            if let (Some(why), Some(number)) = (untold, data) {
                self.keep_notice(Notice { named, number, tries }, why);
            } else if error.is_some() && number != usize::MAX {
                // Its sender need not wait for a receive that has failed.
                self.tell(Named { untaken: Some(Untaken::Aborted), ..named });
            }
            return self.end_fetch(number, error);
        }
        let went_on = if error.is_none() { self.go_on(number, &mut None) } else { Ok(false) };
        if went_on == Ok(true) {
            return Ok(());
        }
        let Some(operation) = self.operations.remove(number) else { return Ok(()) };
        self.sends = self.sends.saturating_sub(1);
        self.end_pending(&operation);
        self.report_access(&operation, went_on.err().or(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_takes_no_notices_leaves_room_for_those_to_others() {
        let mut notices = Notices::default();
        let peers = [1, 2].map(|process| Source { peer: weft::Addr(1), process });
        let notice = |peer, number| {
            let named = Named::new(peer, Some(5), 0, None);
            Notice { named, number, tries: 1 }
        };
        for number in 0..TO_ONE as u64 + 9 {
            notices.keep(notice(peers[0], number));
        }
        notices.keep(notice(peers[1], 7));
        assert_eq!(notices.len(), TO_ONE + 1);
        // Those that are under way are others.
        assert!((0..TO_ONE).all(|_| notices.begin(peers[0])) && !notices.begin(peers[0]));
        assert!(notices.begin(peers[1]));
        assert_eq!(notices.take().len(), TO_ONE + 1);
        (0..TO_ONE).for_each(|_| notices.end(peers[0]));
        notices.end(peers[1]);
        assert!(notices.counts.is_empty() && notices.len() == 0);
    }
}
