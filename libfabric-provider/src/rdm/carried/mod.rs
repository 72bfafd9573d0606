//! Accesses to remote memory of an endpoint of a server: the server accesses nobody's memory, so the endpoints themselves ask
//! each other, and the owner of the memory accesses it, also while its application is away
//! ([decision 0097](../../../../docs/decisions/0097-accesses-through-servers-are-messages.md)).
//!
//! An access is cut into pieces. For each its endpoint posts a receive for the answer, then sends a request. So an
//! answer never waits for room, and a request is done as soon as it arrives. Both are messages whose tags no
//! application has, and lie in memory that is reserved for them: what is read or written is copied once on each side.

mod asker;
mod held;
mod lanes;
mod owner;
mod wire;

use std::collections::{HashMap, VecDeque};

use weft::{
    Completion, Endpoint, Found, Matching, Memory, MemorySlice, OperationId, ReceiveBuffer, ReceiveOptions,
    SendBuffer, SendOptions, Source, Waiting,
};

use self::asker::{Ask, Carried, Notices};
use self::held::AllHeld;
#[cfg(test)]
pub(super) use self::held::{MOST as HELD_BYTES, OWN as HELD_OWN};
use self::lanes::Lane;
use self::wire::{ANSWER, Kind, REQUEST, Request};
use super::budgets::Told;
use super::operation::Piece;
use super::{Operation, State};
use crate::error::FiError;
use crate::memory::Registration;
use crate::random;
use crate::slab::Slab;

/// The bit that only tags of requests and answers have.
pub(crate) const RESERVED_TAG: u64 = 1 << 63;
/// The tag of a request.
const REQUESTS: u64 = RESERVED_TAG;
/// The tag of the answer to request 0.
const ANSWERS: u64 = RESERVED_TAG | 1 << 32;
/// Bytes of the largest piece of an access.
const PIECE: u32 = 32 << 10;
/// Bytes of the largest piece of a message, where there is memory for some of them: the longest that there are [`FEW`] of. A fetch takes
/// a time for each piece rather than for each byte. The answers with longer ones fill a block of memory.
const LONG_PIECES: [u32; 3] = [(128 << 10) - ANSWER as u32, (64 << 10) - ANSWER as u32, PIECE];
/// Pieces that are worth more than longer ones.
const FEW: usize = 6;
/// Bytes of the values of the largest atomic operation.
const VALUES: u32 = 1024;
/// Pieces of the accesses of one endpoint to another that are asked for at a time.
pub(super) const WINDOW: usize = 8;

/// How an endpoint's memory for requests and answers is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Bytes of the largest piece of a message.
    pub(super) piece: u32,
    /// Pieces that are asked for at a time; there are twice as many requests of others, and answers.
    pub(super) count: usize,
    /// Bytes of an endpoint's memory that all this takes.
    bytes: u64,
}

impl Shape {
    /// Bytes of a request, and of a small one.
    const REQUESTS: [u32; 2] = [REQUEST as u32 + PIECE, REQUEST as u32 + VALUES];

    /// That of an endpoint with so many bytes of memory: an eighth of all, unless two pieces take more.
    pub(super) fn of(memory: usize) -> Shape {
        let with = |piece: u32| {
            let [request, small] = Self::REQUESTS;
            let lens = [(1, Self::large(piece)), (1, small), (2, request), (2, ANSWER as u32 + piece)];
            let each: u64 = lens.into_iter().map(|(count, len)| Memory::size_for(count, len)).sum();
            let count = (memory as u64 / 8 / each).clamp(2, 2 * WINDOW as u64);
            Shape { piece, count: count as usize, bytes: count * each }
        };
        LONG_PIECES.into_iter().map(with).find(|shape| shape.count >= FEW).unwrap_or_else(|| with(PIECE))
    }

    /// Bytes of a request that carries something, or of an answer that brings something.
    fn large(piece: u32) -> u32 {
        Self::REQUESTS[0].max(ANSWER as u32 + piece)
    }
}

#[derive(Debug)]
pub(super) struct Carrier {
    /// Bytes of the endpoint's memory that are its own.
    pub(super) bytes: u64,
    /// Bytes of the largest piece of a message that this endpoint asks for, or answers with.
    long_piece: u32,
    /// Memory for requests that carry something, or answers that bring something.
    large: Vec<MemorySlice>,
    /// Memory for the others, one for each of the former.
    small: Vec<MemorySlice>,
    /// How many there are of each.
    pieces: usize,
    accesses: Slab<Carried>,
    lanes: HashMap<Source, Lane>,
    /// Lanes with something to ask for, in turn, and those of peers that are silent.
    turns: VecDeque<Source>,
    silent_turns: VecDeque<Source>,
    /// Pieces of peers that are silent which have memory.
    silent_holds: usize,
    asks: Slab<Ask>,
    /// Requests that the ring of commands had no room for.
    unposted: VecDeque<usize>,
    /// The number of the next request. The first one is random, so that an answer which a process that is gone was owed is none
    /// to its successor with the same number, also if both were forked from one process.
    next: u32,
    /// Notices to senders of messages that are to be sent again.
    pub(super) notices: Notices,
    /// The look for answers that nobody waits for, if one is under way, and what becomes of the one that it finds.
    sweep: Option<Found>,

    exposed: HashMap<u64, Registration>,
    /// Memory for requests that is to be posted, or posted again.
    rooms: Vec<MemorySlice>,
    held: AllHeld,
    /// Memory for answers.
    free: Vec<MemorySlice>,
    /// Answers that the ring of commands had no room for.
    unsent: VecDeque<(Source, u32, MemorySlice)>,
    /// Answers that have been posted: to whom, and to which request.
    answers: Slab<(Source, u32)>,
    /// How many of them, and of those that have not been posted, each asker has.
    shares: HashMap<Source, usize>,
}

/// An operation of the endpoint that is none of the application's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Inner {
    /// The receive of a request.
    Room,
    /// The sending of a request.
    Request(usize),
    /// The receive of its answer.
    AnswerRoom(usize),
    /// The sending of an answer.
    Answer(usize),
    /// The look for an answer that nobody waits for.
    Sweep,
}

/// The bit that only contexts of such operations have.
const INNER: u64 = 1 << 63;

impl Inner {
    fn context(self) -> u64 {
        let (kind, number) = match self {
            Inner::Room => (0, 0),
            Inner::Request(number) => (1, number),
            Inner::AnswerRoom(number) => (2, number),
            Inner::Answer(number) => (3, number),
            Inner::Sweep => (4, 0),
        };
        INNER | kind << 60 | number as u64
    }

    fn of(context: u64) -> Option<Inner> {
        let number = (context & u64::from(u32::MAX)) as usize;
        match context >> 60 {
            0b1000 => Some(Inner::Room),
            0b1001 => Some(Inner::Request(number)),
            0b1010 => Some(Inner::AnswerRoom(number)),
            0b1011 => Some(Inner::Answer(number)),
            0b1100 => Some(Inner::Sweep),
            _ => None,
        }
    }
}

impl Carrier {
    /// How many requests wait, and how many were dropped.
    #[cfg(test)]
    pub(super) fn held(&self) -> (usize, u64) {
        (self.held.len(), self.held.dropped())
    }

    /// Bytes of the largest piece of a message.
    #[cfg(test)]
    pub(super) fn long_piece(&mut self) -> &mut u32 {
        &mut self.long_piece
    }

    /// Pieces for which there is memory. A piece takes one slice of each kind. One comes back when the request is delivered, the other
    /// one with the answer.
    pub(super) fn free_pieces(&self) -> usize {
        self.large.len().min(self.small.len())
    }

    /// Whether a look for answers that nobody waits for is under way.
    pub(super) fn sweeps(&self) -> bool {
        self.sweep.is_some()
    }

    /// The memory for answers.
    #[cfg(test)]
    pub(super) fn answer_memory(&mut self) -> &mut Vec<MemorySlice> {
        &mut self.free
    }

    /// That of `endpoint`; none if its worker accesses memory itself.
    ///
    /// # Errors
    /// There is too little memory.
    pub(super) fn new(endpoint: &mut Endpoint) -> Result<Option<Box<Carrier>>, FiError> {
        if endpoint.worker().is_some() {
            return Ok(None);
        }
        let Shape { piece: long_piece, count, bytes } = Shape::of(endpoint.memory().size());
        let [request, small] = Shape::REQUESTS;
        let mut slices = |count: usize, len: u32| -> Result<Vec<MemorySlice>, FiError> {
            let slices = (0..count).map(|_| endpoint.memory().allocate(len));
            slices.collect::<Result<_, _>>().map_err(|error| FiError::from(&error))
        };
        Ok(Some(Box::new(Carrier {
            bytes,
            long_piece,
            large: slices(count, Shape::large(long_piece))?,
            small: slices(count, small)?,
            pieces: count,
            accesses: Slab::default(),
            lanes: HashMap::new(),
            turns: VecDeque::new(),
            silent_turns: VecDeque::new(),
            silent_holds: 0,
            asks: Slab::default(),
            unposted: VecDeque::new(),
            next: random::number() as u32,
            notices: Notices::default(),
            sweep: None,
            exposed: HashMap::new(),
            rooms: slices(2 * count, request)?,
            held: AllHeld::default(),
            free: slices(2 * count, ANSWER as u32 + long_piece)?,
            unsent: VecDeque::new(),
            answers: Slab::default(),
            shares: HashMap::new(),
        })))
    }
}

impl State {
    /// Takes the end of an operation that is none of the application's. Gives back any other.
    pub(super) fn end_inner(
        &mut self,
        completion: Completion,
        names_source: bool,
    ) -> Result<Option<Completion>, FiError> {
        match completion {
            Completion::Sent { context, .. } | Completion::Received { context, .. }
                if Inner::of(context).is_none() =>
            {
                Ok(Some(completion))
            }
            Completion::Sent { context, buffer: SendBuffer::Memory(slice), result, .. } => {
                match Inner::of(context) {
                    Some(Inner::Request(ask)) => self.requested(ask, slice, result)?,
                    Some(Inner::Answer(answer)) => self.answer_ended(answer, slice, result),
                    _ => {}
                }
                Ok(None)
            }
            Completion::Received {
                context,
                source,
                len,
                buffer: ReceiveBuffer::Memory(slice),
                result,
                ..
            } => {
                match (Inner::of(context), source) {
                    (Some(Inner::Room), Some(source)) if result.is_ok() => {
                        self.take_request(source, slice, len, names_source)?;
                    }
                    (Some(Inner::Room), _) => self.put_room(slice),
                    (Some(Inner::AnswerRoom(ask)), _) => self.answered_ask(ask, slice, len, result)?,
                    _ => {}
                }
                Ok(None)
            }
            Completion::Peeked { context, message, .. } if Inner::of(context) == Some(Inner::Sweep) => {
                self.swept(message).map(|()| None)
            }
            other => Ok(Some(other)),
        }
    }

    /// Drops an answer that nobody waits for: its access has failed, or nobody has asked. Every other answer meets its receive, which
    /// was posted before it was asked for, as long as no receive has been taken back. Where some have been, a look tells first
    /// which answer it is.
    pub(in super::super) fn sweep(&mut self) -> Result<(), FiError> {
        let is_any = Matching::Tagged { tag: ANSWERS, ignore: u32::MAX.into() };
        let are_awaited = self.carrier.as_ref().is_some_and(|carrier| carrier.has_withdrawn());
        self.look_for_answers(None, is_any, if are_awaited { Found::Stays } else { Found::IsDiscarded })
    }

    fn look_for_answers(
        &mut self,
        from: Option<Source>,
        matching: Matching,
        found: Found,
    ) -> Result<(), FiError> {
        let (Some(carrier), Some(endpoint)) = (&mut self.carrier, &mut self.endpoint) else { return Ok(()) };
        if carrier.sweep.is_some() {
            return Ok(());
        }
        let mut options = ReceiveOptions::default().context(Inner::Sweep.context());
        (options.matching, options.from) = (matching, from);
        match endpoint.peek(options, found) {
            Ok(_) => carrier.sweep = Some(found),
            // The next time.
            Err(error) if error.is_back_pressure() => {}
            Err(error) => return Err(FiError::from(&error)),
        }
        Ok(())
    }

    /// A look for answers has ended.
    fn swept(&mut self, found: Option<Waiting>) -> Result<(), FiError> {
        let what = self.carrier.as_mut().and_then(|carrier| carrier.sweep.take());
        match found {
            Some(Waiting { source, tag: Some(tag), .. }) if what == Some(Found::Stays) => {
                match self.has_come(source, tag as u32)? {
                    None => {
                        let it = Matching::Tagged { tag, ignore: 0 };
                        self.look_for_answers(Some(source), it, Found::IsDiscarded)
                    }
                    Some(true) => self.sweep(),
                    // There is no memory for it. Those behind it are looked for the next time.
                    Some(false) => Ok(()),
                }
            }
            // There may be more.
            Some(_) => self.sweep(),
            None => Ok(()),
        }
    }

    /// Whether the application may not use this tag.
    pub(super) fn is_reserved(&self, tag: u64) -> bool {
        self.carrier.is_some() && tag & RESERVED_TAG != 0
    }

    /// The same messages, without those that are none of the application's.
    ///
    /// # Errors
    /// There are none left.
    pub(super) fn unreserved(&self, matching: Matching) -> Result<Matching, FiError> {
        match matching {
            Matching::Tagged { tag, ignore } if self.carrier.is_some() => {
                if self.is_reserved(tag & !ignore) {
                    return Err(FiError::INVALID);
                }
                Ok(Matching::Tagged { tag: tag & !RESERVED_TAG, ignore: ignore & !RESERVED_TAG })
            }
            other => Ok(other),
        }
    }

    /// Whether accesses are under way, or answers that have not been posted.
    pub(super) fn carries(&self) -> bool {
        let is_busy =
            |carrier: &Carrier| carrier.accesses.iter().next().is_some() || !carrier.unsent.is_empty();
        self.carrier.as_deref().is_some_and(is_busy)
    }

    /// Posts what there is room for: memory for requests, answers, and requests.
    pub(super) fn carry_on(&mut self, names_source: bool) -> Result<(), FiError> {
        if self.carrier.is_none() {
            self.carry_notes();
            return Ok(());
        }
        // Each goes on whatever has become of the others: when the server is gone, accesses that wait here end only so.
        let posted = self.post_rooms();
        self.send_answers();
        self.answer_questions();
        let served = self.serve_held(names_source);
        let asked = self.ask_for_pieces();
        posted.and(served).and(asked)
    }

    /// Sends a message that is none of the application's; gives it back if it is not sent.
    fn post_inner(
        &mut self,
        peer: Source,
        slice: MemorySlice,
        tag: u64,
        inner: Inner,
    ) -> Result<(), (FiError, Option<MemorySlice>)> {
        let options = SendOptions::default().tag(tag).context(inner.context());
        let posted = self.post_beside(peer, slice.into(), options);
        posted.map_err(|(error, buffer)| match buffer {
            SendBuffer::Memory(slice) => (error, Some(slice)),
            _ => (error, None),
        })
    }

    /// Posts a message on the connection to `peer` that no message of the application is on: those may wait there until
    /// the peer receives them.
    fn post_beside(
        &mut self,
        peer: Source,
        buffer: SendBuffer,
        options: SendOptions,
    ) -> Result<(), (FiError, SendBuffer)> {
        let Some(endpoint) = &mut self.endpoint else { return Err((FiError::BAD_STATE, buffer)) };
        let connections = &mut self.peers.beside;
        if !connections.may_post(peer) {
            return Err((FiError::AGAIN, buffer));
        }
        let is_refused = connections.is_refused(peer);
        connections.post_buffer(endpoint, peer, buffer, options)?;
        connections.begin(peer);
        if is_refused {
            connections.tries(peer);
        }
        Ok(())
    }

    /// Posts a receive that is none of the application's; gives the memory back if it is not posted.
    fn post_inner_room(
        &mut self,
        mut slice: MemorySlice,
        len: u32,
        tag: u64,
        from: Option<Source>,
        inner: Inner,
    ) -> Result<OperationId, (FiError, Option<MemorySlice>)> {
        let Some(endpoint) = &mut self.endpoint else { return Err((FiError::BAD_STATE, Some(slice))) };
        if let Err(error) = endpoint.memory().set_len(&mut slice, len) {
            return Err((FiError::from(&error), Some(slice)));
        }
        let mut options = ReceiveOptions::default().context(inner.context());
        (options.matching, options.from) = (Matching::Tagged { tag, ignore: 0 }, from);
        endpoint.receive_with(slice, options).map_err(|refused| match refused.buffer {
            ReceiveBuffer::Memory(slice) => (FiError::from(&refused.error), Some(slice)),
            _ => (FiError::from(&refused.error), None),
        })
    }

    /// Asks whether a peer is there, by a message that is delivered if it is.
    pub(super) fn post_question(&mut self, number: usize, peer: Source) -> Result<(), FiError> {
        let question = self.question(peer);
        self.post_note(number, peer, question)
    }

    /// Says which process this is, in answer to question `question`.
    pub(super) fn post_here(&mut self, operation: usize, peer: Source, question: u32) -> Result<(), FiError> {
        if self.carrier.is_none() {
            return self.write_here(operation, peer, question);
        }
        let kind = Kind::Here { life: self.stand_ins.life() };
        let here = Request { kind, number: question, ..Request::QUESTION };
        let longest = self.backlog.longest().map_or(0, |longest| longest as u32);
        let here = here.telling(&Told { longest, ..self.takings.told(peer) });
        self.post_note(operation, peer, here.emit().to_vec())
    }

    fn post_note(&mut self, number: usize, peer: Source, bytes: Vec<u8>) -> Result<(), FiError> {
        let options = SendOptions::default().tag(REQUESTS).context(number as u64);
        self.post_beside(peer, bytes::Bytes::from(bytes).into(), options).map_err(|(error, _)| error)
    }

    /// The owners that owe answers.
    pub(super) fn owe_answers(&self) -> impl Iterator<Item = Source> {
        self.carrier.iter().flat_map(|carrier| carrier.asks.iter()).filter_map(Ask::waits_for)
    }
}

impl Operation {
    /// Whether what an access brings belongs to its memory.
    fn takes_bytes(&self) -> bool {
        !self.pieces.is_empty() || self.fetched.is_some()
    }

    /// Copies `len` bytes of `slice` behind `from` to the pieces of memory of a read, from byte `at` on.
    fn scatter_piece(&mut self, slice: &MemorySlice, from: u32, at: u32, len: u32) {
        if let Some(room) = self.fetched.as_mut().and_then(|fetched| fetched.room(at, len)) {
            slice.read(from, room);
            return;
        }
        let (mut skip, mut from, mut left) = (at as usize, from, len as usize);
        for Piece(room) in &mut self.pieces {
            let room = room.as_mut();
            let begin = skip.min(room.len());
            skip -= begin;
            let count = left.min(room.len() - begin);
            slice.read(from, &mut room[begin..begin + count]);
            (from, left) = (from + count as u32, left - count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_memory_has_more_bytes_of_pieces_and_they_take_at_most_an_eighth() {
        let (mut before, short) = (0, ANSWER as u32);
        let shapes = [
            (1, PIECE, 2),
            (8, PIECE, 5),
            (12, PIECE, 8),
            (13, (64 << 10) - short, 6),
            (21, (64 << 10) - short, 10),
            (22, (128 << 10) - short, 6),
            (56, (128 << 10) - short, 15),
            (57, (128 << 10) - short, 15),
            (58, (128 << 10) - short, 16),
            (256, (128 << 10) - short, 16),
        ];
        for (mib, piece, count) in shapes {
            let shape = Shape::of(mib << 20);
            assert_eq!((shape.piece, shape.count), (piece, count), "{mib} MiB");
            assert!(shape.bytes <= (mib << 17) as u64 || count == 2, "{mib} MiB: {} bytes", shape.bytes);
            let all = piece as usize * count;
            assert!(all >= before, "{mib} MiB");
            before = all;
        }
        // Two pieces take more than an eighth, and still leave something beside two quarters.
        assert!(Shape::of(1 << 20).bytes < 384 << 10);
        assert_eq!(Shape::of(256 << 20).bytes, 16 * ((128 + 1 + 2 * 36 + 2 * 128) * 1024 + 128));
    }
}
