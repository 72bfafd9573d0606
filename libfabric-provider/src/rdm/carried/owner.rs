//! The side whose memory is accessed.
//!
//! A request is done as soon as it arrives, if there is memory for its answer. If its asker has had its share of that, or the
//! application has not read its queue, the request waits on the heap ([`held`](super::held)): what others ask for is done
//! meanwhile. Askers have no more than [`WINDOW`] requests without an answer; what one sends beyond that is dropped.
//! Requests that are not here any more are answered when their asker asks for them.

use std::collections::{HashMap, VecDeque};
use std::sync::PoisonError;

use weft::core::wire::ses::ReturnCode;
use weft::core::{Accessed, Buffer, Payload, apply};
use weft::{AtomicOp, Endpoint, Error, MemorySlice, Source, Written};

use super::super::State;
use super::super::connections::Returned;
use super::super::stand_in::Named;
use super::held::Held;
use super::wire::{ANSWER, Answer, Kind, REQUEST, Request};
use super::{ANSWERS, Carrier, Inner, PIECE, REQUESTS, VALUES, WINDOW};
use crate::error::FiError;
use crate::memory::{Registration, lock_of_atomics};

/// Askers whose requests that wait are looked at in one turn.
const LOOKS: usize = 64;

impl Carrier {
    /// Memory for an answer to `asker`, unless that has as much as it leaves to all others.
    fn room_for(&mut self, endpoint: &mut Endpoint, asker: Source) -> Option<MemorySlice> {
        let used = self.shares.get(&asker).copied().unwrap_or(0);
        if used >= self.free.len() {
            return None;
        }
        endpoint.memory().set_len(self.free.last_mut()?, ANSWER as u32 + self.long_piece).ok()?;
        *self.shares.entry(asker).or_default() += 1;
        self.free.pop()
    }

    /// Whether a request waits here, or its answer is under way.
    fn has(&self, asker: Source, number: u32) -> bool {
        self.held.has(asker, number)
            || self.unsent.iter().any(|(peer, other, _)| (*peer, *other) == (asker, number))
            || self.answers.iter().any(|answer| *answer == (asker, number))
    }

    /// Takes the memory of an answer back.
    fn free_answer(&mut self, asker: Source, slice: MemorySlice) {
        self.free.push(slice);
        if let Some(count) = self.shares.get_mut(&asker) {
            *count -= 1;
            if *count == 0 {
                self.shares.remove(&asker);
            }
        }
    }
}

/// Where the bytes are that a request accesses.
///
/// # Errors
/// The code to answer with.
fn find<'a>(
    exposed: &'a HashMap<u64, Registration>,
    request: &Request,
) -> Result<(&'a Registration, u32), ReturnCode> {
    let memory = exposed.get(&request.key).ok_or(ReturnCode::BAD_MKEY)?;
    let rights = memory.rights;
    let may = match request.kind {
        Kind::Read => rights.read,
        Kind::Write => rights.write,
        // One that only fetches is a read.
        Kind::Atomic { op: AtomicOp::READ, compare: None, .. } => rights.read,
        Kind::Atomic { fetch, .. } => rights.atomic && (rights.read || !fetch),
        Kind::Question { .. } | Kind::Message { .. } | Kind::Here { .. } => false,
    };
    if !may {
        return Err(ReturnCode::PERM_VIOLATION);
    }
    let len = memory.bytes.as_ref().map_or(0, |bytes| bytes.len());
    let at = request.offset.checked_sub(memory.base).ok_or(ReturnCode::AT_OUT_OF_RANGE)?;
    let end = at.checked_add(request.total.into());
    if end.is_none_or(|end| end > u64::from(len)) {
        return Err(ReturnCode::AT_OUT_OF_RANGE);
    }
    // It is at most the length of the memory, which has 32 bits.
    Ok((memory, at as u32 + request.at))
}

/// Does what a request with these bytes asks for, and writes what comes back to `answer`, behind its head. Returns how many
/// bytes come back.
///
/// # Errors
/// The code to answer with. No byte has changed then.
fn perform(
    exposed: &HashMap<u64, Registration>,
    request: &Request,
    bytes: Payload<'_>,
    answer: &MemorySlice,
) -> Result<u32, ReturnCode> {
    let (memory, at) = find(exposed, request)?;
    let Some(memory) = &memory.bytes else { return Ok(0) };
    let mut buffer = Buffer::Region(memory.clone());
    match request.kind {
        Kind::Question { .. } | Kind::Message { .. } | Kind::Here { .. } => Err(ReturnCode::UNSUPPORTED_OP),
        Kind::Read if request.len > PIECE => Err(ReturnCode::UNSUPPORTED_SIZE),
        Kind::Read => {
            answer.copy_from(ANSWER as u32, memory.bytes(at, at + request.len));
            Ok(request.len)
        }
        Kind::Write => {
            buffer.place(at, bytes);
            Ok(0)
        }
        Kind::Atomic { .. } if request.len > VALUES => Err(ReturnCode::AMO_UNSUPPORTED_SIZE),
        Kind::Atomic { op, datatype, compare, fetch } => {
            let mut operands = vec![0; request.len as usize];
            copy_to(bytes, &mut operands);
            // A thread that has panicked under the lock has left nothing behind but bytes.
            let others_wait = lock_of_atomics().lock().unwrap_or_else(PoisonError::into_inner);
            let mut before = vec![0; request.len as usize];
            memory.read(at, &mut before);
            let mut swap = [0; 16];
            if compare.is_some() {
                let len = operands.len().min(swap.len());
                swap[..len].copy_from_slice(&operands[..len]);
            }
            let swap = compare.map(|compare| (compare, u128::from_le_bytes(swap)));
            let mut after = before.clone();
            apply(op, datatype, &mut after, &operands, swap)?;
            if after != before {
                buffer.place(at, Payload::Bytes(&after));
            }
            drop(others_wait);
            if !fetch {
                return Ok(0);
            }
            answer.write(ANSWER as u32, &before);
            Ok(request.len)
        }
    }
}

impl Request {
    /// Whether all of the access has been done when this piece is: it is all of it, the one with data, which waits for the others, or
    /// the notice behind them.
    fn ends_access(&self) -> bool {
        self.len == self.total || self.data.is_some() || self.is_done
    }

    /// The message that `from` asks for, if it asks for one.
    fn message_for(&self, from: Source) -> Option<Named> {
        let Kind::Message { end, untaken } = self.kind else { return None };
        Some(Named { peer: from, tag: self.offset, header_data: self.key, end, untaken })
    }

    fn accessed(&self) -> Accessed {
        let none = Accessed { key: self.key, ..Accessed::default() };
        match self.kind {
            Kind::Read | Kind::Atomic { op: AtomicOp::READ, .. } => Accessed { reads: 1, ..none },
            Kind::Atomic { fetch: true, .. } => Accessed { fetches: 1, ..none },
            _ => Accessed { writes: 1, ..none },
        }
    }
}

fn copy_to(bytes: Payload<'_>, place: &mut [u8]) {
    match bytes {
        Payload::Bytes(bytes) => place.copy_from_slice(bytes),
        Payload::Region(bytes) => bytes.copy_to(place),
        Payload::Virtual(_) => {}
    }
}

impl State {
    /// Takes back memory that peers could access.
    /// Returns false if the endpoint's worker does that itself.
    pub(in super::super) fn withdraw_carried(&mut self, key: u64) -> bool {
        let Some(carrier) = &mut self.carrier else { return false };
        carrier.exposed.remove(&key);
        true
    }

    /// Lets peers access memory. Returns false if the endpoint's worker does that itself.
    pub(in super::super) fn expose_carried(&mut self, registration: &Registration) -> bool {
        let Some(carrier) = &mut self.carrier else { return false };
        carrier.exposed.insert(registration.key, registration.clone());
        true
    }

    /// Posts the memory for requests.
    pub(super) fn post_rooms(&mut self) -> Result<(), FiError> {
        while let Some(room) = self.carrier.as_mut().and_then(|carrier| carrier.rooms.pop()) {
            match self.post_inner_room(room, REQUEST as u32 + PIECE, REQUESTS, None, Inner::Room) {
                Ok(_) => {}
                Err((error, room)) => {
                    room.into_iter().for_each(|room| self.put_room(room));
                    return if error == FiError::AGAIN { Ok(()) } else { Err(error) };
                }
            }
        }
        Ok(())
    }

    pub(super) fn put_room(&mut self, room: MemorySlice) {
        if let Some(carrier) = &mut self.carrier {
            carrier.rooms.push(room);
        }
    }

    /// A message with the tag of requests has arrived.
    pub(super) fn take_request(
        &mut self,
        from: Source,
        room: MemorySlice,
        len: u32,
        names_source: bool,
    ) -> Result<(), FiError> {
        let mut head = [0; REQUEST];
        room.read(0, &mut head);
        let mut served = Ok(true);
        if let Some(request) = Request::parse(&head, len) {
            let carried = if request.carries() { request.len } else { 0 };
            let payload = || Payload::Region(room.bytes(REQUEST as u32, REQUEST as u32 + carried));
            let copied = || {
                let mut bytes = vec![0; carried as usize];
                copy_to(payload(), &mut bytes);
                bytes
            };
            match request.kind {
                Kind::Question { life } => {
                    self.deny(from, &copied());
                    let wanted = request.wanted();
                    if let Some(wanted) = wanted {
                        self.takings.ask(from, wanted, request.number);
                    }
                    if wanted.is_some() || life.is_some_and(|life| life != self.stand_ins.life()) {
                        self.say_here(from, request.number);
                    }
                }
                Kind::Here { life } => {
                    if let Some(told) = request.told() {
                        let answered = [request.number, self.stand_ins.coming_question()];
                        self.budgets.learn(from, life, &told, answered);
                    }
                    served = self.learn_life(from, life, request.number).map(|()| true);
                }
                _ => {
                    served = self.serve(from, &request, payload(), names_source);
                    if matches!(served, Ok(false)) {
                        self.hold(from, Held { request, bytes: copied() });
                    }
                }
            }
        }
        self.put_room(room);
        served.map(|_| ())
    }

    /// Answers those of the requests with these numbers that are not here: a process before this one had them, or their answers were
    /// lost. Where there is no memory for that now, the next question will do.
    fn deny(&mut self, from: Source, numbers: &[u8]) {
        for number in numbers.chunks_exact(4).take(WINDOW) {
            let number = u32::from_le_bytes([number[0], number[1], number[2], number[3]]);
            let (Some(carrier), Some(endpoint)) = (&mut self.carrier, &mut self.endpoint) else { return };
            if carrier.has(from, number) {
                continue;
            }
            let Some(mut answer) = carrier.room_for(endpoint, from) else { return };
            answer.write(0, &Answer { code: ReturnCode::BAD_PID, counts: false, len: 0 }.emit());
            answer.truncate(ANSWER as u32);
            self.send_answer(from, number, answer);
        }
    }

    fn hold(&mut self, from: Source, held: Held) {
        let Some(carrier) = &mut self.carrier else { return };
        let before = carrier.held.dropped();
        carrier.held.keep(from, held);
        let dropped = carrier.held.dropped();
        if dropped > before && dropped.is_power_of_two() {
            crate::log::info(&format!("{dropped} requests of peers that ask for too much were dropped"));
        }
    }

    /// Serves the requests that wait, as far as it can, of the askers in turn.
    pub(super) fn serve_held(&mut self, names_source: bool) -> Result<(), FiError> {
        let mut all = Ok(());
        for _ in 0..LOOKS {
            let Some(carrier) = self.carrier.as_mut().filter(|carrier| !carrier.free.is_empty()) else {
                break;
            };
            let Some((asker, waiting)) = carrier.held.take_next() else { break };
            let mut left = VecDeque::new();
            for held in waiting {
                match self.serve(asker, &held.request, Payload::Bytes(&held.bytes), names_source) {
                    Ok(false) => left.push_back(held),
                    served => all = all.and(served.map(|_| ())),
                }
            }
            if let Some(carrier) = &mut self.carrier {
                carrier.held.put_back(asker, left);
            }
        }
        all
    }

    /// Does what a request asks for, and answers. Returns false if that has to wait.
    fn serve(
        &mut self,
        from: Source,
        request: &Request,
        bytes: Payload<'_>,
        names_source: bool,
    ) -> Result<bool, FiError> {
        let message = request.message_for(from);
        if request.data.is_some() && message.is_none() {
            let binding = self.bindings.receive.as_ref();
            if !binding.map_or(Ok(true), |binding| binding.queue.has_room())? {
                return Ok(false);
            }
        }
        let counts = message.is_none() && self.bindings.count_accesses(request.key);
        let Some(carrier) = &mut self.carrier else { return Ok(true) };
        let endpoint = self.endpoint.as_mut().ok_or(FiError::BAD_STATE)?;
        let Some(mut answer) = carrier.room_for(endpoint, from) else { return Ok(false) };
        let done = match &message {
            Some(named @ Named { end: None, .. }) if request.is_done && request.len == 0 => {
                let alike = self.stand_ins.alike(named.peer, named.tag, named.header_data);
                let is_there = self.stand_ins.drop_one(&alike, request.data, named.untaken);
                is_there.then_some(0).ok_or(ReturnCode::BAD_MKEY)
            }
            Some(named) => {
                // Who has longer pieces asks for the rest.
                let len = request.len.min(carrier.long_piece);
                self.stand_ins.read(named, request.at, len, &answer, ANSWER as u32)
            }
            None => perform(&carrier.exposed, request, bytes, &answer),
        };
        let (code, len) = done.map_or_else(|code| (code, 0), |len| (ReturnCode::OK, len));
        answer.write(0, &Answer { code, counts, len }.emit());
        answer.truncate(ANSWER as u32 + len);
        self.send_answer(from, request.number, answer);
        if let Some(named) = message {
            let has_it = request.is_done && code == ReturnCode::OK;
            return if has_it { self.fetched_by_peer(&named).map(|()| true) } else { Ok(true) };
        }
        if counts && code == ReturnCode::OK && request.ends_access() {
            self.bindings.count(&request.accessed())?;
        }
        if let (ReturnCode::OK, Some(data)) = (code, request.data) {
            let (process, key, offset, len) = (0, request.key, request.offset, request.total);
            let written = Written { process, source: from, key, offset, len, data };
            self.announce(&written, names_source)?;
        }
        Ok(true)
    }

    /// Sends the answers that have not been, as far as there is room.
    pub(super) fn send_answers(&mut self) {
        let unsent = self.carrier.as_mut().map(|carrier| std::mem::take(&mut carrier.unsent));
        // A peer to which nothing can be posted now holds up no other one.
        for (peer, number, slice) in unsent.into_iter().flatten() {
            self.send_answer(peer, number, slice);
        }
    }

    /// Sends an answer; it waits if there is no room for it now.
    fn send_answer(&mut self, peer: Source, number: u32, slice: MemorySlice) {
        let Some(carrier) = &mut self.carrier else { return };
        let answer = carrier.answers.insert((peer, number));
        let posted = self.post_inner(peer, slice, ANSWERS + u64::from(number), Inner::Answer(answer));
        let (Err((error, slice)), Some(carrier)) = (posted, &mut self.carrier) else { return };
        carrier.answers.remove(answer);
        match slice {
            Some(slice) if error == FiError::AGAIN => carrier.unsent.push_back((peer, number, slice)),
            // Who asked cannot be reached now. If it still waits, it asks, and is told that the request is not here.
            Some(slice) => carrier.free_answer(peer, slice),
            None => {}
        }
    }

    /// Drops the answers to `peer` that wait.
    pub(super) fn drop_answers(&mut self, peer: Source) {
        let Some(carrier) = &mut self.carrier else { return };
        for (asker, number, slice) in std::mem::take(&mut carrier.unsent) {
            match asker == peer {
                true => carrier.free_answer(peer, slice),
                false => carrier.unsent.push_back((asker, number, slice)),
            }
        }
    }

    /// An answer has been delivered, or not.
    pub(super) fn answer_ended(&mut self, answer: usize, slice: MemorySlice, result: Result<(), Error>) {
        let Some(carrier) = &mut self.carrier else { return };
        let Some((peer, number)) = carrier.answers.remove(answer) else { return };
        match self.peers.beside.end(peer, &result) {
            Some(Returned::Again) => carrier.unsent.push_back((peer, number, slice)),
            _ => carrier.free_answer(peer, slice),
        }
    }
}
