//! Datagrams: messages of one packet that nobody acknowledges or sends again (UUD in UET).
//!
//! A datagram belongs to no PDC and to no connection. It takes its turn with the packets of connections, leaves once, with
//! an entropy drawn at random, and is complete then. At its target it meets the oldest of the datagram receives of its
//! process, and is dropped and counted if there is none: it never waits, and never meets a receive of messages. So datagrams
//! that nobody wants take no memory, and cause no packet.
//!
//! No congestion control limits them, as nothing comes back that could tell it anything: they leave as fast as the port takes
//! them. Processes take turns: each of those that datagrams wait of sends one, and then as many other packets leave as there
//! are processes whose connections wait, one at least.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use weft_cc::Time;

use super::abort::{COST, GONE};
use super::config::FepConfig;
use super::core::Core;
use super::gaps::{Entry, Gaps, take_first};
use super::initiator::{Initiator, fail_send};
use super::payload::PayloadRef;
use super::process::{Processes, process_of};
use super::{
    CallError, Completion, Fep, MAX_PROCESS, Map, PostError, ReceiveError, Resource, SendError, SendId,
};
use crate::buffer::Buffer;
use crate::event::Event;
use crate::heap;
use crate::packet::{Addr, Class, Packet, Payload};
use crate::ses::{Delivery, Operation, ReceiveId, SendMessage, Source};
use crate::spray::Entropy;
use crate::table::{Key, Table};
use crate::wire::pds::{NextHeader, Pds, Uud};
use crate::wire::ses::{Opcode, Placement, RequestFlags, Ses, StandardRequest};

/// The connection that a datagram names among messages to send: none has this number.
const NO_CONNECTION: u16 = u16::MAX;

/// A datagram to send.
#[derive(Debug)]
pub struct Datagram {
    /// Its bytes; no more than a packet carries ([`FepConfig::mtu`]).
    pub buffer: Buffer,
    /// The peer that it is for.
    pub peer: Addr,
    /// The peer's process that it is for, at most [`MAX_PROCESS`].
    pub process: u16,
    /// 64 bits of header data for the receiver's completion.
    pub header_data: u64,
    /// The caller's value, returned with the completion.
    pub context: u64,
}

/// A receive of one datagram, from any sender.
#[derive(Debug)]
pub struct DatagramReceive {
    /// The buffer that the datagram is placed in.
    pub buffer: Buffer,
    /// The caller's value, returned with the completion.
    pub context: u64,
}

/// The datagrams of an endpoint that wait to leave, and its receives of datagrams.
#[derive(Debug, Default)]
pub(super) struct Datagrams {
    /// Those of each process that wait. A queue stays when it is empty, until its process is closed.
    queues: Map<u16, Queue>,
    /// The processes whose turn comes, in the order of their turns.
    order: VecDeque<u16>,
    /// The datagram that [`Fep::poll_transmit_into`] has written last. It ends with the next call, because until then
    /// the caller reads its bytes.
    handed_out: Option<Key>,
    /// How many processes still have their turn in this round.
    left_in_round: usize,
    /// How many other packets have their turn before the next datagram, if there are any.
    others_turns: usize,
    /// The receives of each process. The name of a receive is greater than those of older ones.
    receives: Map<u16, BTreeMap<ReceiveId, DatagramReceive>>,
    /// Processes that receive datagrams and nothing else.
    only: BTreeSet<u16>,
    /// What processes that are closed have left behind, until it has ended. No other process has the number meanwhile.
    closing: Map<u16, LeftBehind>,
}

/// The datagrams and receives of a process that is closed.
#[derive(Debug)]
struct LeftBehind {
    waiting: VecDeque<Outgoing>,
    receives: BTreeMap<ReceiveId, DatagramReceive>,
}

/// The memory that dropping a receive touches, bytes: it is taken out of a tree.
const DROP: i64 = 1 << 10;

/// The datagrams of one process that wait for the port, in order.
#[derive(Debug, Default)]
struct Queue {
    /// Datagrams that were cancelled leave gaps, except at either end.
    waiting: VecDeque<Outgoing>,
    gaps: Gaps,
    /// Whether its process is among those whose turn comes: as soon as there is one, and until its turn finds none.
    has_turn: bool,
}

/// A queue that is empty keeps room for as many datagrams.
const SPARE: usize = 16;

/// A datagram that waits for the port.
#[derive(Debug)]
struct Outgoing {
    send: Key,
    peer: Addr,
    process: u16,
    source: u16,
    /// The job that its process belonged to when it was posted; 0 for none.
    job: u32,
}

impl Entry for Outgoing {
    #[inline]
    fn key(&self) -> Key {
        self.send
    }

    #[inline]
    fn set_key(&mut self, key: Key) {
        self.send = key;
    }
}

impl Datagrams {
    /// Bytes of heap held, without payload.
    pub(super) fn heap_bytes(&self) -> u64 {
        let closing = || self.closing.values();
        let receives = self.receives.values().chain(closing().map(|left| &left.receives)).map(heap::of_tree);
        let waiting = self.queues.values().map(|queue| &queue.waiting);
        let queues = waiting.chain(closing().map(|left| &left.waiting)).map(heap::of_deque);
        size_of_val(self) as u64
            + heap::of_map(&self.queues)
            + queues.sum::<u64>()
            + heap::of_deque(&self.order)
            + heap::of_map(&self.receives)
            + heap::of_map(&self.closing)
            + (self.only.len() * size_of::<u16>()) as u64
            + receives.sum::<u64>()
    }

    /// Bytes of the memory of receives.
    pub(super) fn payload_bytes(&self) -> u64 {
        let closing = self.closing.values().map(|left| &left.receives);
        let receives = self.receives.values().chain(closing).flat_map(BTreeMap::values);
        receives.map(|receive| heap::of_buffer(&receive.buffer)).sum()
    }

    /// How many receives are posted.
    pub(super) fn posted(&self) -> usize {
        let closing = self.closing.values().map(|left| &left.receives);
        self.receives.values().chain(closing).map(BTreeMap::len).sum()
    }

    /// Whether a process that is closed has left something behind that has not ended.
    pub(super) fn has_left(&self, process: u16) -> bool {
        self.closing.contains_key(&process)
    }

    /// Whether `process` receives datagrams and nothing else.
    pub(super) fn is_only(&self, process: u16) -> bool {
        self.only.contains(&process)
    }

    /// How many processes receive datagrams and nothing else.
    pub(super) fn processes(&self) -> usize {
        self.only.len()
    }

    fn push(&mut self, outgoing: Outgoing) {
        let process = outgoing.source;
        let queue = self.queues.entry(process).or_default();
        queue.waiting.push_back(outgoing);
        if !std::mem::replace(&mut queue.has_turn, true) {
            self.order.push_back(process);
        }
    }

    /// Takes out the oldest that waits to leave of the process whose turn it is.
    fn next(&mut self) -> Option<Outgoing> {
        if self.left_in_round == 0 || self.left_in_round > self.order.len() {
            self.left_in_round = self.order.len();
        }
        while let Some(process) = self.order.pop_front() {
            self.left_in_round = self.left_in_round.saturating_sub(1);
            let Some(queue) = self.queues.get_mut(&process) else { continue };
            let next = queue.next();
            queue.has_turn = !queue.waiting.is_empty();
            if queue.has_turn {
                self.order.push_back(process);
            }
            if next.is_some() {
                return next;
            }
        }
        None
    }

    /// Whether it is the turn of other packets, if there are any.
    fn leaves_turn(&mut self) -> bool {
        let leaves = self.others_turns > 0 && !self.order.is_empty();
        self.others_turns = if leaves { self.others_turns - 1 } else { 0 };
        leaves
    }

    /// A datagram leaves while connections of so many processes wait.
    fn note_turn(&mut self, others: usize) {
        if self.left_in_round == 0 {
            self.others_turns = others.max(1);
        }
    }

    /// Takes out datagram `key` of `process`, which has `place` in its queue.
    fn withdraw(&mut self, sends: &mut Table<SendMessage>, process: u16, key: Key, place: u32) {
        if let Some(queue) = self.queues.get_mut(&process) {
            queue.gaps.withdraw(&mut queue.waiting, sends, key, place);
            queue.give_back();
        }
    }

    /// Takes out those of a process that wait.
    fn take_queue(&mut self, process: u16) -> VecDeque<Outgoing> {
        let Some(queue) = self.queues.remove(&process) else { return VecDeque::new() };
        if queue.has_turn {
            self.order.retain(|waits| *waits != process);
        }
        queue.waiting
    }

    /// Checks what is counted against what is there.
    #[cfg(test)]
    fn check(&self, sends: &Table<SendMessage>) {
        for (process, queue) in &self.queues {
            queue.gaps.check(&queue.waiting, sends);
            let turns = self.order.iter().filter(|waits| *waits == process).count();
            assert_eq!(turns, usize::from(queue.has_turn), "turns of process {process}");
            assert!(queue.has_turn || queue.waiting.is_empty(), "process {process} waits without a turn");
            let of_others = |outgoing: &Outgoing| outgoing.source != *process;
            assert!(!queue.waiting.iter().any(of_others));
        }
        assert!(self.order.iter().all(|process| self.queues.contains_key(process)));
    }
}

impl Queue {
    /// Takes out the oldest.
    fn next(&mut self) -> Option<Outgoing> {
        let next = self.gaps.pop_front(&mut self.waiting);
        self.give_back();
        next
    }

    /// Gives back the memory of a long queue that is empty.
    fn give_back(&mut self) {
        if self.waiting.is_empty() && self.waiting.capacity() > SPARE {
            self.waiting = VecDeque::new();
        }
    }
}

impl Fep {
    /// Posts a datagram that process `process` of this endpoint sends. It leaves once, as soon as the port takes it, and
    /// [`Completion::Sent`] follows then: that says nothing about its arrival. If the address book has forgotten its peer by then, it
    /// is cancelled. It may be lost, overtake others, or arrive twice
    /// where the network duplicates packets.
    ///
    /// # Errors
    /// It is longer than a packet carries ([`CallError::DatagramTooLong`]), too many messages and datagrams wait
    /// ([`CallError::Limit`]), or a process has too large a number. The error hands the buffer back.
    pub fn post_datagram_of(&mut self, process: u16, datagram: Datagram) -> Result<SendId, PostError> {
        let Datagram { buffer, peer, process: to, header_data, context } = datagram;
        if let Err(error) = check(&self.core.config, self.initiator.sends.len(), [process, to], &buffer) {
            return Err(PostError { error, buffer });
        }
        let operation = Operation::Send { tag: None };
        let mut message = SendMessage::new(buffer, operation, header_data, context, NO_CONNECTION);
        message.msg_id = process;
        let job = if self.core.has_jobs { self.job_of(process) } else { 0 };
        let datagrams = self.datagrams.get_or_insert_default();
        let waiting = datagrams.queues.get(&process).map(|queue| &queue.waiting);
        message.place = waiting.map_or(0, |waiting| Gaps::next_place(waiting, &self.initiator.sends));
        let send = self.initiator.sends.insert(message);
        datagrams.push(Outgoing { send, peer, process: to, source: process, job });
        self.core.has_datagrams = true;
        Ok(SendId(send))
    }

    /// Closes process `process` for everything but datagrams: messages and accesses of peers are answered with BAD_PID, as if
    /// it were not open, so that a sender does not wait for a receive that never comes. Its number is in use until
    /// [`Fep::close_process`].
    ///
    /// What the process has posted before ends as it does there: its receives, those of datagrams included, are dropped
    /// without completions, and its datagrams that have not left complete as cancelled.
    ///
    /// # Errors
    /// [`CallError::ProcessNotOpen`].
    pub fn receive_only_datagrams(&mut self, process: u16) -> Result<(), CallError> {
        if !self.target.processes.is_open(process) {
            return Err(CallError::ProcessNotOpen(process));
        }
        let job = self.job_of(process);
        self.close_process(process)?;
        self.datagrams.get_or_insert_default().only.insert(process);
        self.target.processes.set_job(process, job);
        Ok(())
    }

    /// Process `process` is being closed: no datagram meets its receives any more, and its datagrams that have not left do not.
    pub(super) fn close_process_of_datagrams(&mut self, process: u16) {
        let Some(datagrams) = self.datagrams.as_deref_mut() else { return };
        datagrams.only.remove(&process);
        let waiting = datagrams.take_queue(process);
        let receives = datagrams.receives.remove(&process).unwrap_or_default();
        if !waiting.is_empty() || !receives.is_empty() {
            datagrams.closing.insert(process, LeftBehind { waiting, receives });
        }
    }

    /// Ends datagrams that process `process`, which is closed, has left behind, and its receives of datagrams. See
    /// [`Fep::clear_away`].
    pub(super) fn clear_datagrams_away(&mut self, process: u16, budget: &mut i64) -> bool {
        let Some(datagrams) = self.datagrams.as_deref_mut() else { return true };
        let Some(left) = datagrams.closing.get_mut(&process) else { return true };
        while *budget > 0 {
            if let Some(Outgoing { send, .. }) = take_first(&mut left.waiting) {
                let (sends, core) = (&mut self.initiator.sends, &mut self.core);
                *budget -= if fail_send(sends, core, send, SendError::Cancelled) { COST } else { GONE };
            } else if left.receives.pop_first().is_some() {
                *budget -= DROP;
            } else {
                datagrams.closing.remove(&process);
                return true;
            }
            #[cfg(test)]
            crate::steps::count(1);
        }
        false
    }

    /// Posts a receive of one datagram to process `process`, of any sender. Datagrams meet the receives of their process in
    /// the order in which those were posted; [`Completion::Received`] brings them. Messages never meet these receives, and
    /// datagrams no others. [`Fep::cancel_receive`] takes it back.
    ///
    /// # Errors
    /// [`CallError::Limit`] when too many wait ([`Limits::receives`](super::Limits::receives), apart from those of messages),
    /// [`CallError::ProcessNotOpen`], or [`CallError::ReadOnly`] if the buffer is [`Buffer::Bytes`]. The error hands the buffer
    /// back.
    pub fn post_datagram_receive_of(
        &mut self,
        process: u16,
        receive: DatagramReceive,
    ) -> Result<ReceiveId, PostError> {
        let refuse = |error, buffer| Err(PostError { error, buffer });
        if matches!(receive.buffer, Buffer::Bytes(_)) {
            return refuse(CallError::ReadOnly, receive.buffer);
        }
        let is_open = |datagrams: &Datagrams| datagrams.is_only(process);
        if !self.target.processes.is_open(process) && !self.datagrams.as_deref().is_some_and(is_open) {
            return refuse(CallError::ProcessNotOpen(process), receive.buffer);
        }
        let receives = self.datagrams.get_or_insert_default().receives.entry(process).or_default();
        let limit = self.core.config.limits.receives;
        if receives.len() >= limit {
            return refuse(CallError::Limit { what: Resource::Receives, limit }, receive.buffer);
        }
        let id = self.target.processes.draw_receive_id(process);
        receives.insert(id, receive);
        Ok(id)
    }

    /// Takes back a datagram that has not left. False if there is none with this name.
    pub(super) fn cancel_datagram(&mut self, id: SendId) -> bool {
        let sends = &mut self.initiator.sends;
        let Some(message) = sends.get(id.0).filter(|message| message.connection == NO_CONNECTION) else {
            return false;
        };
        let (process, place) = (message.msg_id, message.place);
        let Some(datagrams) = self.datagrams.as_mut() else { return false };
        if datagrams.handed_out == Some(id.0) {
            return false;
        }
        datagrams.withdraw(sends, process, id.0, place);
        fail_send(sends, &mut self.core, id.0, SendError::Cancelled);
        true
    }

    /// The packet that [`Fep::poll_transmit_into`] has written last is a datagram, and cannot leave: it completes as cancelled, as it has
    /// not been sent. Its peer may not be in the address book any more, or no frame can have its headers.
    pub(crate) fn lose_datagram(&mut self) {
        let lost = self.datagrams.as_mut().and_then(|datagrams| datagrams.handed_out.take());
        if let Some(send) = lost {
            fail_send(&mut self.initiator.sends, &mut self.core, send, SendError::Cancelled);
        }
    }

    /// Takes back a receive of a datagram. False if there is none with this name.
    pub(super) fn cancel_datagram_receive(&mut self, id: ReceiveId) -> bool {
        let receives =
            self.datagrams.as_mut().and_then(|datagrams| datagrams.receives.get_mut(&process_of(id)));
        let receive = receives.and_then(|receives| receives.remove(&id));
        let Some(DatagramReceive { buffer, context }) = receive else { return false };
        self.core.completions.push_back(Completion::Received {
            id,
            context,
            source: None,
            tag: None,
            header_data: 0,
            len: 0,
            buffer,
            more: false,
            result: Err(ReceiveError::Cancelled),
        });
        true
    }

    /// Checks what is counted of datagrams against those that are there.
    #[cfg(test)]
    pub(crate) fn check_datagrams(&self) {
        if let Some(datagrams) = &self.datagrams {
            datagrams.check(&self.initiator.sends);
        }
    }

    /// Writes the next datagram to `packet`, and where its payload is to `payload`, unless it is the turn of other packets, and
    /// they have had none of it yet (`is_asked_again`). Returns whether there is one.
    #[cold]
    #[inline(never)]
    pub(super) fn poll_datagram(
        &mut self,
        now: Time,
        packet: &mut Packet,
        payload: &mut PayloadRef,
        is_asked_again: bool,
    ) -> bool {
        let Some(datagrams) = self.datagrams.as_mut() else { return false };
        end_handed_out(&mut self.core, &mut self.initiator, datagrams);
        if !is_asked_again && datagrams.leaves_turn() {
            return false;
        }
        let Some(outgoing) = datagrams.next() else {
            self.core.has_datagrams = false;
            return false;
        };
        datagrams.note_turn(self.initiator.ready.processes());
        datagrams.handed_out = Some(outgoing.send);
        let Some(sent) = send(&mut self.core, &self.initiator, now, &outgoing, packet) else { return false };
        *payload = sent;
        true
    }
}

/// Whether a datagram may be posted.
fn check(config: &FepConfig, sends: usize, processes: [u16; 2], buffer: &Buffer) -> Result<(), CallError> {
    if let Some(&none) = processes.iter().find(|process| **process > MAX_PROCESS) {
        return Err(CallError::NoSuchProcess(none));
    }
    if buffer.is_too_long() || buffer.len() > config.mtu {
        return Err(CallError::DatagramTooLong { most: config.mtu });
    }
    let limit = config.limits.sends;
    if sends >= limit {
        return Err(CallError::Limit { what: Resource::Messages, limit });
    }
    Ok(())
}

/// Completes the datagram that was handed out before: its bytes are the port's now, or lost.
fn end_handed_out(core: &mut Core, initiator: &mut Initiator, datagrams: &mut Datagrams) {
    if let Some(send) = datagrams.handed_out.take()
        && let Some(message) = initiator.sends.remove(send)
    {
        core.completions.push_back(message.into_completion(send, Ok(())));
    }
}

/// Writes the headers of a datagram to `packet`.
fn send(
    core: &mut Core,
    initiator: &Initiator,
    now: Time,
    outgoing: &Outgoing,
    packet: &mut Packet,
) -> Option<PayloadRef> {
    let &Outgoing { send, peer, process, source, job } = outgoing;
    let message = initiator.sends.get(send)?;
    let len = message.remaining();
    let paths = core.zone(core.zone_of(peer)).paths;
    let entropy = Entropy(core.rng.below(paths.into()) as u16);
    *packet = Packet {
        net: core.network(peer, entropy, Class::Data),
        payload_len: len,
        pds: Pds::Uud(Uud { next: NextHeader::RequestStandard }),
        ses: Ses::Standard(StandardRequest {
            opcode: Opcode::DATAGRAM_SEND,
            pid_on_fep: process,
            job_id: job,
            ..message.request(source, 0, len)
        }),
    };
    core.events.emit(now, Event::DatagramSent { peer, len, entropy });
    Some(PayloadRef::of_datagram(send, len))
}

/// A datagram has arrived: hands it to the oldest receive of its process, or drops it.
#[cold]
#[inline(never)]
pub(super) fn on_datagram(
    core: &mut Core,
    datagrams: Option<&mut Datagrams>,
    processes: &Processes,
    now: Time,
    packet: &Packet,
    payload: Payload<'_>,
) {
    let peer = packet.net.src;
    if packet.net.class.is_trimmed() {
        return core.events.emit(now, Event::DatagramDropped { peer, why: "trimmed" });
    }
    let Some((header, header_data)) = header_of(packet, payload) else {
        return core.ignore(now, packet, "UUD packet that is no whole datagram");
    };
    if !processes.is_of_job(header) {
        return core.events.emit(now, Event::DatagramDropped { peer, why: "another job" });
    }
    let receives = datagrams.and_then(|datagrams| datagrams.receives.get_mut(&header.pid_on_fep));
    let Some((id, DatagramReceive { mut buffer, context })) = receives.and_then(BTreeMap::pop_first) else {
        return core.events.emit(now, Event::DatagramDropped { peer, why: "no receive" });
    };
    buffer.place(0, payload);
    core.events.emit(now, Event::DatagramReceived { peer, len: payload.len() });
    core.complete_receive(Delivery {
        id,
        context,
        source: Source::of_message(peer, header.initiator),
        tag: None,
        header_data,
        len: payload.len(),
        buffer,
        complete: true,
        more: false,
    });
}

/// The header of a datagram, with its header data, 0 if it says that it has none; `None` if the packet is not a whole one.
fn header_of<'a>(packet: &'a Packet, payload: Payload<'_>) -> Option<(&'a StandardRequest, u64)> {
    let Ses::Standard(header) = &packet.ses else { return None };
    let Placement::Start { header_data } = header.placement else { return None };
    let header_data = if header.flags.has(RequestFlags::HEADER_DATA) { header_data } else { 0 };
    let is_whole = header.flags.has(RequestFlags::END_OF_MESSAGE) && header.request_length == payload.len();
    (header.opcode == Opcode::DATAGRAM_SEND && is_whole).then_some((header, header_data))
}
