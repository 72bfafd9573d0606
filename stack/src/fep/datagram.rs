//! Datagrams: messages of one packet that nobody acknowledges or sends again (UUD in UET).
//!
//! A datagram belongs to no PDC and to no connection. It takes its turn with the packets of connections, leaves once, with
//! an entropy drawn at random, and is complete then. At its target it meets the oldest of the datagram receives of its
//! process, and is dropped and counted if there is none: it never waits, and never meets a receive of messages. So datagrams
//! that nobody wants take no memory, and cause no packet.
//!
//! No congestion control limits them, as nothing comes back that could tell it anything: they leave as fast as the port takes
//! them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use weft_cc::Time;

use super::config::FepConfig;
use super::core::Core;
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
use crate::wire::ses::{Opcode, Placement, Ses, StandardRequest};

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
    /// Those that were cancelled have no message any more.
    waiting: VecDeque<Outgoing>,
    /// How many of those were cancelled.
    cancelled: usize,
    /// The one that [`Fep::poll_transmit_into`] has returned last. It ends with the next call: until then the caller reads
    /// its bytes.
    handed_out: Option<Key>,
    /// Whether the last packet was a datagram: the next one is not, if there is any other.
    was_last: bool,
    /// The receives of each process. The name of a receive is greater than those of older ones.
    receives: Map<u16, BTreeMap<ReceiveId, DatagramReceive>>,
    /// Processes that receive datagrams and nothing else.
    only: BTreeSet<u16>,
}

/// A datagram that waits for the port.
#[derive(Debug)]
struct Outgoing {
    send: Key,
    peer: Addr,
    process: u16,
    source: u16,
}

impl Datagrams {
    /// Bytes of heap held, without payload.
    pub(super) fn heap_bytes(&self) -> u64 {
        let receives = self.receives.values().map(heap::of_tree);
        size_of_val(self) as u64
            + heap::of_deque(&self.waiting)
            + heap::of_map(&self.receives)
            + (self.only.len() * size_of::<u16>()) as u64
            + receives.sum::<u64>()
    }

    /// Bytes of the memory of receives.
    pub(super) fn payload_bytes(&self) -> u64 {
        let receives = self.receives.values().flat_map(BTreeMap::values);
        receives.map(|receive| heap::of_buffer(&receive.buffer)).sum()
    }

    /// Forgets the receives of a process that is closed.
    pub(super) fn close_process(&mut self, process: u16) {
        self.receives.remove(&process);
        self.only.remove(&process);
    }

    /// Whether `process` receives datagrams and nothing else.
    pub(super) fn is_only(&self, process: u16) -> bool {
        self.only.contains(&process)
    }

    /// Takes out the oldest that waits to leave.
    fn next(&mut self, sends: &Table<SendMessage>) -> Option<Outgoing> {
        while let Some(outgoing) = self.waiting.pop_front() {
            if sends.get(outgoing.send).is_some() {
                return Some(outgoing);
            }
            self.cancelled = self.cancelled.saturating_sub(1);
        }
        None
    }

    /// Notes that a waiting datagram was cancelled. The entries of cancelled ones are removed together, when they are more than
    /// half of the queue.
    fn forget_one(&mut self, sends: &Table<SendMessage>) {
        self.cancelled += 1;
        if self.cancelled > self.waiting.len() / 2 {
            #[cfg(test)]
            crate::steps::count(self.waiting.len());
            self.waiting.retain(|outgoing| sends.get(outgoing.send).is_some());
            self.cancelled = 0;
        }
    }
}

impl Fep {
    /// Posts a datagram that process `process` of this endpoint sends. It leaves once, as soon as the port takes it, and
    /// [`Completion::Sent`] follows then: that says nothing about its arrival. It may be lost, overtake others, or arrive twice
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
        let message = SendMessage::new(buffer, operation, header_data, context, NO_CONNECTION);
        let send = self.initiator.sends.insert(message);
        let outgoing = Outgoing { send, peer, process: to, source: process };
        self.datagrams.get_or_insert_default().waiting.push_back(outgoing);
        self.core.has_datagrams = true;
        Ok(SendId(send))
    }

    /// Closes process `process` for everything but datagrams: messages and accesses of peers are answered with BAD_PID, as if
    /// it were not open, so that a sender does not wait for a receive that never comes.
    ///
    /// # Errors
    /// [`CallError::ProcessNotOpen`].
    pub fn receive_only_datagrams(&mut self, process: u16) -> Result<(), CallError> {
        let job = self.job_of(process);
        self.close_process(process)?;
        self.datagrams.get_or_insert_default().only.insert(process);
        self.target.processes.set_job(process, job);
        Ok(())
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
        let is_datagram = sends.get(id.0).is_some_and(|message| message.connection == NO_CONNECTION);
        let Some(datagrams) = self.datagrams.as_mut().filter(|_| is_datagram) else { return false };
        if datagrams.handed_out == Some(id.0) {
            return false;
        }
        fail_send(sends, &mut self.core, id.0, SendError::Cancelled);
        datagrams.forget_one(sends);
        true
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

    /// The next datagram, unless the last packet was one: then it is the turn of others, if there are any.
    #[cold]
    #[inline(never)]
    pub(super) fn poll_datagram(&mut self, now: Time, packet: &mut Packet) -> Option<PayloadRef> {
        let datagrams = self.datagrams.as_mut()?;
        end_handed_out(&mut self.core, &mut self.initiator, datagrams);
        if std::mem::take(&mut datagrams.was_last) && !datagrams.waiting.is_empty() {
            return None;
        }
        let Some(outgoing) = datagrams.next(&self.initiator.sends) else {
            self.core.has_datagrams = false;
            return None;
        };
        let job = if self.core.has_jobs { self.job_of(outgoing.source) } else { 0 };
        let datagrams = self.datagrams.as_mut()?;
        datagrams.was_last = true;
        datagrams.handed_out = Some(outgoing.send);
        send(&mut self.core, &self.initiator, now, &outgoing, job, packet)
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
    job: u32,
    packet: &mut Packet,
) -> Option<PayloadRef> {
    let &Outgoing { send, peer, process, source } = outgoing;
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
    let header_data = if header.flags.header_data { header_data } else { 0 };
    let is_whole = header.flags.end_of_message && header.request_length == payload.len();
    (header.opcode == Opcode::DATAGRAM_SEND && is_whole).then_some((header, header_data))
}
