//! Responses with data on their way out: the acknowledgements that carry payload.
//!
//! They are data to the network: switches may trim and mark them. So they wait in a queue of their own and take turns
//! with the packets of connections, where acknowledgements without data leave before both.

use weft_cc::{Span, Time};

use super::core::Core;
use super::memory::ExposedMemory;
use super::target::Target;
use super::target_pdc::{Cause, TargetPdc};
use super::transmit::PayloadRef;
use crate::buffer::Buffer;
use crate::event::Event;
use crate::packet::{Class, Network, Packet};
use crate::pdc::{Answer, Trigger};
use crate::wire::pds::{Ack, NextHeader, PdcId, Pds, Psn};
use crate::wire::ses::{Response, ResponseWithData, ReturnCode, Ses};

/// The response opcode of a response without data.
const RESPONSE: u8 = 1;

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

impl Target {
    /// Writes the next response with data to `packet`.
    pub(super) fn poll_reply(
        &mut self,
        core: &mut Core,
        now: Time,
        packet: &mut Packet,
    ) -> Option<PayloadRef> {
        while let Some(reply) = core.replies.pop_front() {
            let found = self.pdcs.find(reply.pdc).filter(|(_, pdc)| pdc.rx.peer == reply.net.src);
            let Some((_, pdc)) = found else { continue };
            let memory = self.processes.memory.as_deref();
            if let Some(payload) = send(core, now, pdc, memory, &reply, packet) {
                return Some(payload);
            }
        }
        None
    }

    /// The memory that the response stored for packet `psn` of PDC `pdc` sends from, and the offset there.
    pub(super) fn response_data(&self, pdc: PdcId, psn: Psn) -> Option<(&Buffer, u32)> {
        let (_, pdc) = self.pdcs.table.at(u32::from(pdc.0).checked_sub(1)?)?;
        let Answer::Memory { memory, offset, .. } = pdc.rx.response(psn)?.answer else { return None };
        Some((self.processes.memory.as_deref()?.get(memory)?, offset))
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
    let stored = pdc.rx.response_mut(reply.psn)?;
    stored.waits = false;
    let Answer::Memory { header, memory, .. } = stored.answer else { return None };
    let is_there = exposed.is_some_and(|exposed| exposed.get(memory).is_some());
    let (ses, next, class, payload) = if is_there {
        let payload = PayloadRef::of_response(reply.pdc, reply.psn, header.payload_len.into());
        (Ses::ResponseWithData(header), NextHeader::ResponseData, Class::Data, payload)
    } else {
        (Ses::Response(withdrawn(&header)), NextHeader::Response, Class::Control, PayloadRef::NONE)
    };
    // The time in the queue is this host's, not the network's.
    let waited = now.since(reply.at) + reply.waited;
    let ack = pdc.build_ack(Trigger::Psn(reply.psn), reply.psn, reply.cause, waited);
    core.events.emit(now, Event::AckSent { peer: pdc.rx.peer, pdc: reply.pdc, cack: ack.cack_psn });
    let net = core.network(reply.net.src, reply.net.entropy, class);
    *packet = Packet { net, payload_len: payload.len(), pds: Pds::Ack(Ack { next, ..ack }), ses };
    Some(payload)
}

/// What a reader is told whose bytes were withdrawn before they had all left.
fn withdrawn(header: &ResponseWithData) -> Response {
    Response {
        list: header.list,
        opcode: RESPONSE,
        version: 0,
        return_code: ReturnCode::BAD_MKEY,
        msg_id: header.msg_id,
        ri_generation: 0,
        job_id: header.job_id,
        modified_length: 0,
    }
}
