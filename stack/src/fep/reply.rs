//! Responses with data on their way out: the acknowledgements that carry payload.
//!
//! They are data to the network: switches may trim and mark them. So they wait in queues of their own and take turns
//! with the packets of connections, where acknowledgements without data leave before both. Each PDC has a queue, and the
//! queues take turns too: what one PDC reads does not delay the others for longer than that.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;

use weft_cc::{Span, Time};

use super::Map;
use super::core::Core;
use super::memory::ExposedMemory;
use super::payload::PayloadRef;
use super::target::Target;
use super::target_pdc::{Cause, TargetPdc};
use crate::buffer::Buffer;
use crate::event::Event;
use crate::heap;
use crate::packet::{Class, Network, Packet};
use crate::pdc::{Answer, Trigger};
use crate::wire::pds::{Ack, NextHeader, PdcId, Pds, Psn};
use crate::wire::ses::{Response, ReturnCode, Ses};

/// A stored response that waits for the port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reply {
    /// The target's PDCID, and the PSN of the request.
    pub(super) pdc: PdcId,
    pub(super) psn: Psn,
    /// The packet that it answers.
    pub(super) net: Network,
    pub(super) cause: Cause,
    /// When that packet arrived, and how long it had waited in this host by then.
    pub(super) at: Time,
    pub(super) waited: Span,
}

/// The responses with data that wait for the port. Each of them is stored, and leaves here when it is cleared: their number
/// is bounded by the quota of stored responses.
#[derive(Default)]
pub(super) struct Replies {
    /// The PDCs that have an entry in `waiting`, in the order of their turns.
    turns: VecDeque<PdcId>,
    /// The responses of each PDC, in order of PSNs. There are none if they were cleared before the turn of their PDC.
    waiting: Map<PdcId, VecDeque<Reply>>,
}

impl Replies {
    /// Whether no PDC waits for its turn.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Number of responses that wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.values().map(VecDeque::len).sum()
    }

    /// Queues `reply`. If the response waits already, it leaves once, as the answer to the latest transmission of its
    /// request: its initiator takes the answer to an earlier one for a late packet.
    pub(super) fn push(&mut self, reply: Reply) {
        let waiting = match self.waiting.entry(reply.pdc) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                self.turns.push_back(reply.pdc);
                entry.insert(VecDeque::new())
            }
        };
        let at = waiting.partition_point(|other| other.psn.is_before(reply.psn));
        match waiting.get_mut(at).filter(|other| other.psn == reply.psn) {
            Some(other) if reply.cause.retx => *other = reply,
            // The network has copied a transmission.
            Some(_) => {}
            None => waiting.insert(at, reply),
        }
    }

    /// The next response to send.
    fn pop(&mut self) -> Option<Reply> {
        while let Some(pdc) = self.turns.pop_front() {
            let Entry::Occupied(mut waiting) = self.waiting.entry(pdc) else { continue };
            let reply = waiting.get_mut().pop_front();
            match waiting.get().is_empty() {
                true => drop(waiting.remove()),
                false => self.turns.push_back(pdc),
            }
            if reply.is_some() {
                return reply;
            }
        }
        None
    }

    /// Drops the responses of `pdc` up to packet `psn`: its initiator has them.
    pub(super) fn clear(&mut self, pdc: PdcId, psn: Psn) {
        let Some(waiting) = self.waiting.get_mut(&pdc) else { return };
        while waiting.front().is_some_and(|reply| !psn.is_before(reply.psn)) {
            waiting.pop_front();
        }
    }

    /// Drops the responses of `pdc`, which is closed.
    pub(super) fn forget(&mut self, pdc: PdcId) {
        self.waiting.get_mut(&pdc).into_iter().for_each(VecDeque::clear);
    }

    /// Bytes of heap held.
    pub(super) fn heap_bytes(&self) -> u64 {
        let waiting = self.waiting.values().map(heap::of_deque);
        heap::of_deque(&self.turns) + heap::of_map(&self.waiting) + waiting.sum::<u64>()
    }
}

impl Target {
    /// Writes the next response with data to `packet`, and where its payload is to `payload`. Returns whether there is one.
    pub(super) fn poll_reply(
        &mut self,
        core: &mut Core,
        now: Time,
        packet: &mut Packet,
        payload: &mut PayloadRef,
    ) -> bool {
        while let Some(reply) = core.replies.pop() {
            let found = self.pdcs.find(reply.pdc).filter(|(_, pdc)| pdc.rx.peer == reply.net.src);
            let Some((_, pdc)) = found else { continue };
            let memory = self.processes.memory.as_deref();
            if let Some(sent) = send(core, now, pdc, memory, &reply, packet) {
                *payload = sent;
                return true;
            }
        }
        false
    }

    /// The memory that the response stored for packet `psn` of PDC `pdc` sends from, and the offset there.
    pub(super) fn response_data(&self, pdc: PdcId, psn: Psn) -> Option<(&Buffer, u32)> {
        let (_, pdc) = self.pdcs.table.at(self.pdcs.slot(pdc)?)?;
        match &pdc.rx.response(psn)?.answer {
            Answer::Plain(_) => None,
            Answer::Fetched { data, .. } => Some((data, 0)),
            Answer::Memory { memory, offset, .. } => {
                Some((self.processes.memory.as_deref()?.get(*memory)?, *offset))
            }
        }
    }
}

/// Writes the response that `reply` stands for to `packet`. `None` if it has been cleared meanwhile.
fn send(
    core: &mut Core,
    now: Time,
    pdc: &mut TargetPdc,
    exposed: Option<&ExposedMemory>,
    reply: &Reply,
    packet: &mut Packet,
) -> Option<PayloadRef> {
    let (header, is_there) = match pdc.rx.response(reply.psn)?.answer {
        Answer::Plain(_) => return None,
        Answer::Fetched { header, .. } => (header, true),
        Answer::Memory { header, memory, .. } => {
            (header, exposed.is_some_and(|exposed| exposed.get(memory).is_some()))
        }
    };
    let (ses, next, class, payload) = if is_there {
        let payload = PayloadRef::of_response(reply.pdc, reply.psn, header.payload_len.into());
        (Ses::ResponseWithData(header), NextHeader::ResponseData, Class::Data, payload)
    } else {
        let withdrawn = Response::new(header.msg_id, header.job_id, ReturnCode::BAD_MKEY);
        (Ses::Response(withdrawn), NextHeader::Response, Class::Control, PayloadRef::NONE)
    };
    // The time in the queue is this host's, not the network's.
    let waited = now.since(reply.at) + reply.waited;
    let ack = pdc.build_ack(Trigger::Psn(reply.psn), reply.psn, reply.cause, waited);
    core.events.emit(now, Event::AckSent { peer: pdc.rx.peer, pdc: reply.pdc, cack: ack.cack_psn });
    let priority = reply.net.priority;
    let net = Network { priority, ..core.network(reply.net.src, reply.net.entropy, class) };
    *packet = Packet { net, payload_len: payload.len(), pds: Pds::Ack(Ack { next, ..ack }), ses };
    Some(payload)
}
