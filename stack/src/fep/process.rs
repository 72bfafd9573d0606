//! Applications that share an endpoint: each is a process of its own to peers, and has its own receives.
//!
//! A message names the process it is for (PIDonFEP in UET). A message for a process that does not exist, or no
//! longer does, is answered with BAD_PID, which its sender hears as an error. Process 0 is open from the beginning.

use core::num::NonZeroU32;
use std::collections::BTreeMap;

use super::config::Limits;
use super::core::Core;
use super::memory::ExposedMemory;
use super::read::{ExposeError, ExposeRefusal, Exposure};
use super::{CallError, MAX_PROCESS, PostError, Receive, Resource};
use crate::buffer::Buffer;
use crate::packet::Addr;
use crate::ses::{
    Cancelled, Claim, Deliveries, Delivery, EarlyMessage, LeftBehind, Matching, MessageName, Order, Posted,
    ReceiveId, Receives, Room, Source, Waiting,
};
use crate::wire::pds::PdcId;
use crate::wire::ses::StandardRequest;

/// The processes that are open, with their receives.
// In order of use: the rare things first, which puts process 0 at the start of a cache line: see `Fep`.
#[repr(C)]
pub(super) struct Processes {
    /// Processes other than 0, by their numbers: each packet and each command looks one up.
    others: Vec<Option<Box<Receives>>>,
    next_receive: u64,
    /// Process 0, while it is open.
    pub(super) zero: Option<Receives>,
    /// The room that all of them have for messages without a receive.
    pub(super) room: Room,
    /// The memory that processes expose; `None` if none ever did.
    pub(super) memory: Option<Box<ExposedMemory>>,
    /// What processes that are closed have left behind, until it is dropped. No other process has the number meanwhile.
    closing: BTreeMap<u16, LeftBehind>,
    /// The jobs of processes that belong to one.
    pub(super) jobs: BTreeMap<u16, u32>,
    /// How many processes are open.
    open: usize,
    /// The seed of the hash tables in which processes look up messages.
    seed: u64,
}

impl Processes {
    pub(super) fn new(limits: &Limits, seed: u64) -> Processes {
        let all = (limits.unexpected_messages, limits.unexpected_bytes);
        let per_peer = (limits.unexpected_messages_per_peer, limits.unexpected_bytes_per_peer);
        let room = Room::new(limits.processes, all, per_peer);
        Processes {
            others: Vec::new(),
            open: 1,
            room,
            zero: Some(Receives::new(0, seed)),
            next_receive: 0,
            memory: None,
            closing: BTreeMap::new(),
            jobs: BTreeMap::new(),
            seed,
        }
    }

    /// Process `process` belongs to this job; 0 for none.
    pub(super) fn set_job(&mut self, process: u16, job: u32) {
        match job {
            0 => _ = self.jobs.remove(&process),
            job => _ = self.jobs.insert(process, job),
        }
    }

    /// Whether the process that a request is for belongs to no job, or to that of the request.
    #[cold]
    #[inline(never)]
    pub(super) fn is_of_job(&self, header: &StandardRequest) -> bool {
        self.jobs.get(&header.pid_on_fep).is_none_or(|job| *job == header.job_id)
    }

    /// The receives of `process`, if it is open, and the room for messages without one.
    #[inline(always)]
    pub(super) fn get_mut(&mut self, process: u16) -> Option<(&mut Receives, &mut Room)> {
        let receives = match process {
            0 => self.zero.as_mut(),
            _ => self.others.get_mut(usize::from(process)).and_then(Option::as_deref_mut),
        };
        receives.map(|receives| (receives, &mut self.room))
    }

    /// The receives of `process`, if it is open.
    fn get(&self, process: u16) -> Option<&Receives> {
        match process {
            0 => self.zero.as_ref(),
            _ => self.others.get(usize::from(process)).and_then(Option::as_deref),
        }
    }

    /// See [`Fep::kept_of`](super::Fep::kept_of).
    pub(super) fn kept_of(&self, process: u16, peer: Addr) -> u64 {
        self.get(process).map_or(0, |receives| receives.kept_of(peer))
    }

    /// See [`Fep::kept_messages_of`](super::Fep::kept_messages_of).
    pub(super) fn kept_messages_of(&self, process: u16, peer: Addr) -> u32 {
        self.get(process).map_or(0, |receives| receives.kept_messages_of(&self.room, peer))
    }

    /// The receives of all processes, those included that have left messages behind.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Receives> {
        self.open_ones().chain(self.closing.values().map(LeftBehind::messages))
    }

    /// How many processes are open, or have left messages behind.
    fn count(&self) -> usize {
        self.open + self.closing.len()
    }

    /// The receives of the processes that are open.
    fn open_ones(&self) -> impl Iterator<Item = &Receives> {
        self.zero.iter().chain(self.others.iter().flatten().map(Box::as_ref))
    }

    /// Bytes of heap allocated for posted receives of all processes, those that are closed included, without their memory.
    pub(super) fn posted_bytes(&self) -> u64 {
        let closing = self.closing.values().map(LeftBehind::posted_bytes);
        self.open_ones().map(Receives::posted_bytes).chain(closing).sum()
    }

    /// Bytes of the memory of posted receives and messages of all processes, those that are closed included.
    pub(super) fn payload_bytes(&self) -> u64 {
        let closing = self.closing.values().map(LeftBehind::payload_bytes);
        self.open_ones().map(Receives::payload_bytes).chain(closing).sum()
    }

    /// See [`Fep::open_process`](super::Fep::open_process). `others` processes count as open besides.
    pub(super) fn open(&mut self, limits: &Limits, process: u16, others: usize) -> Result<(), CallError> {
        if process > MAX_PROCESS {
            return Err(CallError::NoSuchProcess(process));
        }
        if self.is_open(process) || self.closing.contains_key(&process) {
            return Err(CallError::ProcessOpen(process));
        }
        let limit = limits.processes;
        if self.count() + others >= limit {
            return Err(CallError::Limit { what: Resource::Processes, limit });
        }
        let receives = Receives::new(process, self.seed);
        self.open += 1;
        if process == 0 {
            self.zero = Some(receives);
            return Ok(());
        }
        let place = usize::from(process);
        if place >= self.others.len() {
            self.others.resize_with(place + 1, || None);
        }
        self.others[place] = Some(Box::new(receives));
        Ok(())
    }

    /// Closes `process`. Its messages and receives are left.
    ///
    /// # Errors
    /// [`CallError::ProcessNotOpen`].
    pub(super) fn close(&mut self, process: u16) -> Result<(), CallError> {
        let receives = match process {
            0 => self.zero.take(),
            _ => self.others.get_mut(usize::from(process)).and_then(Option::take).map(|receives| *receives),
        };
        let receives = receives.ok_or(CallError::ProcessNotOpen(process))?;
        self.open -= 1;
        self.jobs.remove(&process);
        self.closing.insert(process, receives.close());
        Ok(())
    }

    /// Whether a message to `process`, which is closed, has begun before that, and parts of it are missing.
    #[cold]
    pub(super) fn has_left(&self, process: u16, message: MessageName) -> bool {
        self.closing.get(&process).is_some_and(|left| left.lacks(message))
    }

    /// Drops messages and receives of `process`, which is closed. See [`Fep::clear_away`](super::Fep::clear_away).
    pub(super) fn clear_away(
        &mut self,
        process: u16,
        budget: &mut i64,
        refuse: impl FnMut(MessageName),
    ) -> bool {
        let Some(left) = self.closing.get_mut(&process) else { return true };
        let is_done = left.drop_some(&mut self.room, budget, refuse);
        if is_done {
            self.closing.remove(&process);
        }
        is_done
    }

    /// Whether `process` is open.
    pub(super) fn is_open(&self, process: u16) -> bool {
        self.get(process).is_some()
    }

    /// See [`Fep::expose`](super::Fep::expose).
    pub(super) fn expose(&mut self, process: u16, exposure: Exposure) -> Result<(), ExposeError> {
        if !self.is_open(process) {
            return Err(ExposeError { why: ExposeRefusal::ProcessNotOpen(process), buffer: exposure.buffer });
        }
        self.memory.get_or_insert_default().expose(process, exposure)
    }

    /// Posts a receive, of one message or, until fewer bytes are left than `many` says, of many. A message that was waiting
    /// for it completes if all of it is there.
    #[inline(always)]
    pub(super) fn post(
        &mut self,
        core: &mut Core,
        process: u16,
        receive: Receive,
        many: Option<NonZeroU32>,
    ) -> Result<ReceiveId, PostError> {
        let Receive { buffer, from, matching, context } = receive;
        if let Some(process) = from.map(|source| source.process).filter(|process| *process > MAX_PROCESS) {
            return Err(PostError { error: CallError::NoSuchProcess(process), buffer });
        }
        if matches!(buffer, Buffer::Bytes(_)) {
            return Err(PostError { error: CallError::ReadOnly, buffer });
        }
        if many.is_some() && !buffer.can_split() {
            return Err(PostError { error: CallError::NotDivisible, buffer });
        }
        let id = receive_id(process, self.next_receive);
        let Some((receives, room)) = self.get_mut(process) else {
            return Err(PostError { error: CallError::ProcessNotOpen(process), buffer });
        };
        let limit = core.config.limits.receives;
        if receives.posted() >= limit {
            return Err(PostError { error: CallError::Limit { what: Resource::Receives, limit }, buffer });
        }
        let limit = core.config.limits.receive_kinds;
        if !receives.takes_kind(from, matching, limit) {
            return Err(PostError {
                error: CallError::Limit { what: Resource::ReceiveKinds, limit },
                buffer,
            });
        }
        if receives.is_gathering() || receives.is_copying() {
            // These come first.
            complete_all(core, receives.gather(room, &mut { i64::MAX }));
        }
        if many.is_some() {
            receives.post_many(Posted { id, from, matching, buffer, context, many });
        } else if let Some(delivery) =
            receives.post(room, Posted { id, from, matching, buffer, context, many: None })
        {
            core.complete_receive(delivery);
        }
        self.next_receive += 1;
        Ok(id)
    }

    /// An identifier for a receive of `process` that no other receive of the endpoint has.
    pub(super) fn draw_receive_id(&mut self, process: u16) -> ReceiveId {
        self.next_receive += 1;
        receive_id(process, self.next_receive - 1)
    }

    /// See [`Fep::gather`](super::Fep::gather).
    pub(super) fn gather(&mut self, core: &mut Core, process: u16, budget: &mut i64) -> bool {
        let Some((receives, room)) = self.get_mut(process).filter(|(r, _)| r.is_gathering()) else {
            return true;
        };
        complete_all(core, receives.gather(room, budget));
        !receives.is_gathering()
    }

    /// See [`Fep::is_copying`](super::Fep::is_copying).
    #[inline]
    pub(super) fn is_copying(&self, process: u16) -> bool {
        self.room.has_copies() && self.is_copying_one(process)
    }

    #[cold]
    fn is_copying_one(&self, process: u16) -> bool {
        self.get(process).is_some_and(Receives::is_copying)
    }

    /// See [`Fep::copy`](super::Fep::copy).
    pub(super) fn copy(&mut self, core: &mut Core, process: u16, budget: &mut i64) -> bool {
        let Some((receives, room)) = self.get_mut(process) else { return true };
        complete_all(core, receives.copy(room, budget));
        !receives.is_copying()
    }

    /// See [`Fep::limit_many`](super::Fep::limit_many).
    pub(super) fn limit_many(&mut self, process: u16, further: u64) {
        if let Some((receives, _)) = self.get_mut(process) {
            receives.limit_many(further);
        }
    }

    /// See [`Fep::allow_many`](super::Fep::allow_many).
    pub(super) fn allow_many(&mut self, process: u16, more: u64) {
        if let Some((receives, _)) = self.get_mut(process) {
            receives.allow_many(more);
        }
    }

    /// See [`Fep::hold_many`](super::Fep::hold_many).
    pub(super) fn hold_many(&mut self, process: u16, holds: bool) {
        if let Some((receives, _)) = self.get_mut(process) {
            receives.hold_many(holds);
        }
    }

    /// Takes a receive back that no message has met. See [`Receives::cancel`].
    pub(super) fn cancel(&mut self, id: ReceiveId) -> Cancelled {
        self.get_mut(process_of(id)).map_or(Cancelled::TooLate, |(receives, _)| receives.cancel(id))
    }

    /// See [`Fep::peek`](super::Fep::peek).
    pub(super) fn peek(
        &mut self,
        process: u16,
        from: Option<Source>,
        matching: Matching,
    ) -> Result<Option<Waiting>, CallError> {
        let (receives, _) = self.get_mut(process).ok_or(CallError::ProcessNotOpen(process))?;
        Ok(receives.peek(from, matching))
    }

    /// See [`Fep::look_ahead`](super::Fep::look_ahead).
    pub(super) fn look_ahead(
        &mut self,
        process: u16,
        from: Option<Source>,
        matching: Matching,
        budget: &mut i64,
    ) -> bool {
        self.get_mut(process).is_none_or(|(receives, _)| receives.look_ahead(from, matching, budget))
    }

    /// See [`Fep::claim`](super::Fep::claim).
    pub(super) fn claim(
        &mut self,
        process: u16,
        from: Option<Source>,
        matching: Matching,
    ) -> Result<Option<(Claim, Waiting)>, CallError> {
        let (receives, _) = self.get_mut(process).ok_or(CallError::ProcessNotOpen(process))?;
        Ok(receives.claim(from, matching))
    }

    /// See [`Fep::receive_claimed`](super::Fep::receive_claimed).
    pub(super) fn receive_claimed(
        &mut self,
        core: &mut Core,
        process: u16,
        claim: Claim,
        (buffer, context): (Buffer, u64),
    ) -> Result<ReceiveId, PostError> {
        if matches!(buffer, Buffer::Bytes(_)) {
            return Err(PostError { error: CallError::ReadOnly, buffer });
        }
        let id = receive_id(process, self.next_receive);
        let Some((receives, room)) = self.get_mut(process) else {
            return Err(PostError { error: CallError::ProcessNotOpen(process), buffer });
        };
        // The message has matched it already.
        let matching = Matching::Untagged;
        let posted = Posted { id, from: None, matching, buffer, context, many: None };
        if receives.is_copying() {
            // That comes first.
            complete_all(core, receives.copy(room, &mut { i64::MAX }));
        }
        match receives.receive_claimed(room, claim, posted) {
            Ok(None) => {}
            Ok(Some(delivery)) => core.complete_receive(delivery),
            Err(posted) => return Err(PostError { error: CallError::NotClaimed, buffer: posted.buffer }),
        }
        self.next_receive += 1;
        Ok(id)
    }

    /// See [`Fep::discard`](super::Fep::discard).
    pub(super) fn discard(&mut self, process: u16, claim: Claim) -> Result<(), CallError> {
        let (receives, room) = self.get_mut(process).ok_or(CallError::ProcessNotOpen(process))?;
        if receives.discard(room, claim) { Ok(()) } else { Err(CallError::NotClaimed) }
    }

    /// The turn of an early message of `pdc` has come. Returns it if that completes a receive.
    pub(super) fn take_turn(&mut self, pdc: PdcId, message: EarlyMessage) -> Option<Delivery> {
        let (receives, room) = self.get_mut(message.process?)?;
        receives.take_turn(room, (pdc, message.msg_id))
    }

    /// Gives up the incomplete messages and writes of `pdc`, which has this `order`, and hands each message that has met a receive
    /// to `delivered`.
    pub(super) fn abandon(&mut self, pdc: PdcId, order: &mut Order, mut delivered: impl FnMut(Delivery)) {
        if let Some(memory) = &mut self.memory {
            memory.writes.forget(pdc);
        }
        if !order.end_all_incomplete() {
            return;
        }
        while let Some(process) = self.room.process_with_incomplete(pdc) {
            #[cfg(test)]
            crate::steps::count(1);
            if let Some((receives, room)) = self.get_mut(process) {
                receives.abandon(room, pdc).into_iter().for_each(&mut delivered);
            } else if let Some(left) = self.closing.get_mut(&process) {
                left.forget(&mut self.room, pdc);
            } else {
                return;
            }
        }
    }

    /// Checks that the room that processes have is counted right, and returns what is used of it.
    #[cfg(test)]
    pub(super) fn check(&self, limits: &Limits) -> (u64, u64, u64) {
        assert_eq!(self.count(), self.iter().count());
        self.room.check(limits.processes, (limits.unexpected_messages, limits.unexpected_bytes));
        let of_each = self.iter().map(|receives| receives.check(&self.room));
        let there = of_each.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
        let used = self.room.used();
        assert_eq!((used.0, used.1), there, "nothing is counted for a process that is closed");
        used
    }

    /// Brings what the next packet for process 0 will probably need into the cache.
    pub(super) fn prefetch(&self) {
        if let Some(receives) = &self.zero {
            receives.prefetch();
        }
    }
}

fn complete_all(core: &mut Core, deliveries: Deliveries) {
    deliveries.into_iter().for_each(|delivery| core.complete_receive(delivery));
}

/// Receives of a process have identifiers that grow, and those of different processes differ in the bits from here on.
const PROCESS_BITS: u32 = 52;

fn receive_id(process: u16, number: u64) -> ReceiveId {
    ReceiveId(u64::from(process) << PROCESS_BITS | number)
}

pub(super) fn process_of(id: ReceiveId) -> u16 {
    (id.0 >> PROCESS_BITS) as u16
}
