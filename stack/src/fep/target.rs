//! The receiving half of an endpoint: the PDCs that peers have opened, the receives of its processes, and the
//! scheduler that grants credit.

use core::num::NonZeroU32;

use weft_cc::{DataSample, ReceiverAlgorithm, Span, Time, Trim};

use super::acquaintance::Proof;
use super::admit::admit_access;
use super::core::Core;
use super::credit::{Ends, Granter, Heard, Joined};
use super::owed::owe;
use super::peer_usage::PeerUsage;
use super::process::Processes;
use super::target_pdc::{Origin, Stray, TargetPdc};
use super::target_pdcs::{Ended, TargetPdcs, established};
use super::timers::TimerKey;
use super::zone::Zone;
use super::{CallError, FepConfig, Limits, PostError, Receive};
use crate::event::Event;
use crate::packet::{Addr, Class, Packet, Payload};
use crate::pdc::{Answer, Arrival, RodReceive, Trigger};
use crate::rng::Rng;
use crate::ses::{
    Delivery, EarlyMessage, HAND_OVER, MessageName, Part, Placed, ReceiveId, Receives, Refusal, Room, Source,
    respond,
};
use crate::table::Key;
use crate::wire::nominal_overhead;
use crate::wire::pds::{
    Control, ControlKind, DeliveryMode, Destination, Nack, NackCode, NextHeader, PdcId, Pds, Psn, Request,
};
use crate::wire::ses::{Opcode, ReturnCode, Ses, StandardRequest};

/// The receiving half of an endpoint.
// In order of use; the first fields share a cache line with the end of the initiator: see `Fep`.
#[repr(C)]
pub(super) struct Target {
    pub(super) pdcs: TargetPdcs,
    pub(super) granter: Option<Box<Granter>>,
    pub(super) processes: Processes,
    /// The slot of the PDC whose initiator is asked next to close it, when the endpoint is about to go.
    pub(super) next_to_ask: u32,
}

/// A PDC with at most so many messages that are incomplete, or have not had their turn, ends while the packet that
/// closes it is processed. An initiator that sends one message after the other, as weft's does, seldom leaves more
/// messages behind. A PDC whose initiator has not answered the question whether it is there keeps no more messages
/// than that: it may have to make room at any time, and so may other PDCs for each SYN that arrives.
const UNFINISHED_AT_ONCE: usize = 16;

impl Target {
    /// `rng` is the generator of the endpoint: the hash with which messages are looked up depends on it.
    pub(super) fn new(config: &FepConfig, rng: &Rng) -> Target {
        Target {
            granter: scheduler(config)
                .map(|algorithm| Box::new(Granter::new(algorithm, config.limits.credit_senders))),
            pdcs: TargetPdcs::default(),
            processes: Processes::new(&config.limits, rng.secret()),
            next_to_ask: 0,
        }
    }

    /// Checks that PDCs, and the room for messages, count as many incomplete messages as exist.
    #[cfg(test)]
    pub(super) fn check_incomplete(&self) {
        let (mut of_pdcs, mut of_sources) = (std::collections::BTreeMap::new(), super::Map::default());
        self.processes.iter().for_each(|receives| receives.count_incomplete(&mut of_pdcs, &mut of_sources));
        self.processes.room.check_incomplete(&of_sources, of_pdcs.keys().copied());
        for (_, pdc) in self.pdcs.table.iter() {
            let id = pdc.rx.id.0;
            let there: u16 = of_pdcs.extract_if((id, 0)..=(id, u16::MAX), |_, _| true).map(|one| one.1).sum();
            assert_eq!(pdc.order.incomplete(), there, "incomplete messages of {:?}", pdc.rx.id);
        }
        assert!(of_pdcs.is_empty(), "incomplete messages of PDCs that are gone: {of_pdcs:?}");
    }

    /// Brings what the next packet will probably need into the cache.
    pub(super) fn prefetch(&self) {
        self.pdcs.table.prefetch(0);
        self.processes.prefetch();
    }

    /// See [`Fep::post_receive_of`](super::Fep::post_receive_of).
    #[inline(always)]
    pub(super) fn post_receive(
        &mut self,
        core: &mut Core,
        process: u16,
        receive: Receive,
        many: Option<NonZeroU32>,
    ) -> Result<ReceiveId, PostError> {
        self.processes.post(core, process, receive, many)
    }

    /// See [`Fep::begin_close_process`](super::Fep::begin_close_process).
    pub(super) fn close_process(&mut self, core: &mut Core, process: u16) -> Result<(), CallError> {
        self.processes.close(process)?;
        if let Some(memory) = &mut self.processes.memory {
            if memory.withdraw_all(process) {
                core.abandon_any();
            }
            memory.writes.close(process);
        }
        Ok(())
    }

    /// See [`Fep::clear_away`](super::Fep::clear_away).
    pub(super) fn clear_away(&mut self, limits: &Limits, process: u16, budget: &mut i64) -> bool {
        if let Some(memory) = &mut self.processes.memory {
            let refuse = |name| refuse_rest(limits, &mut self.pdcs, name);
            if !memory.writes.clear_away(process, budget, refuse) {
                return false;
            }
        }
        self.processes.clear_away(process, budget, |name| {
            if let Some((_, pdc)) = self.pdcs.find(name.0) {
                pdc.order.end_incomplete();
            }
            refuse_rest(limits, &mut self.pdcs, name);
        })
    }

    pub(super) fn on_request(
        &mut self,
        core: &mut Core,
        now: Time,
        packet: &Packet,
        request: &Request,
        payload: Payload<'_>,
    ) {
        if packet.net.class.is_trimmed() {
            return self.on_trimmed(core, now, packet, request);
        }
        let origin = (packet.net.src, request.spdcid);
        let (mut is_asked, mut to_ask) = (false, None);
        let found = match request.destination {
            Destination::Pdc(id) => {
                match established(&mut self.pdcs.table, &self.pdcs.half_open, id, origin, request.mode) {
                    Ok(pdc) => {
                        pdc.heard_by_name(core, now, &mut self.pdcs.half_open, &mut self.pdcs.usage);
                        Ok(pdc)
                    }
                    Err(code) => Err(Unopened::Refused(code)),
                }
            }
            Destination::Syn { psn_offset, .. } => {
                let start = request.psn.minus(u32::from(psn_offset));
                match self.open(core, now, origin, request, start) {
                    Ok(key) => match self.pdcs.table.get_mut(key) {
                        Some(pdc) => {
                            pdc.heard(now);
                            is_asked = pdc.proof() == Proof::Asked;
                            to_ask = (is_asked && pdc.asked == 0).then_some(core.control.len());
                            Ok(pdc)
                        }
                        None => Err(Unopened::Ignored("no PDC")),
                    },
                    Err(why) => Err(why),
                }
            }
        };
        let pdc = match found {
            Ok(pdc) => pdc,
            Err(Unopened::Refused(code)) => {
                let local = self.pdcs.of_origin(origin).map_or(PdcId(0), |(_, pdc)| pdc.rx.id);
                return refuse(core, now, packet, request, code, local, 0);
            }
            Err(Unopened::Ignored(why)) => return core.ignore(now, packet, why),
        };
        self.pdcs.usage.clear(
            &mut core.replies,
            pdc,
            request.psn.offset(i32::from(request.clear_psn_offset)),
        );
        match pdc.rx.classify(request.psn) {
            Arrival::New if is_asked && pdc.unfinished(&self.processes) >= UNFINISHED_AT_ONCE => {
                return refuse(core, now, packet, request, NackCode::NO_SES_MSG_AVAIL, pdc.rx.id, 0);
            }
            Arrival::New if pdc.order.is_full() => {
                return refuse(core, now, packet, request, NackCode::NO_SES_MSG_AVAIL, pdc.rx.id, 0);
            }
            Arrival::New => {}
            Arrival::Duplicate => {
                core.events.emit(
                    now,
                    Event::DuplicateReceived { peer: packet.net.src, pdc: pdc.rx.id, psn: request.psn },
                );
                let psn = request.psn;
                return pdc.acknowledge(core, now, packet, Trigger::Psn(psn), psn, request.retx);
            }
            Arrival::OutOfWindow => {
                let syn = matches!(request.destination, Destination::Syn { .. });
                let code = if syn { NackCode::INVALID_SYN } else { NackCode::PSN_OOR_WINDOW };
                return refuse(core, now, packet, request, code, pdc.rx.id, 0);
            }
        }
        let ordered = pdc.rx.mode == DeliveryMode::Rod;
        // If a copy of this packet is kept and its turn has come, that copy is delivered, and this one is not needed.
        if ordered && (request.psn != pdc.rx.expected() || pdc.has_early()) {
            return on_early(core, &mut self.pdcs.usage, pdc, now, packet, request, payload);
        }
        let (processes, usage) = (&mut self.processes, &mut self.pdcs.usage);
        let mut granter = self.granter.as_deref_mut();
        let granted = granter.as_deref_mut();
        if deliver(core, processes, usage, granted, pdc, now, packet, request, payload) && ordered {
            deliver_early(core, processes, granter, usage, pdc, now);
        }
        let put_off = pdc.puts_off_early();
        if let Some(first) = to_ask {
            // Only after the packet is accepted: the answer repeats what the question says of the packet.
            if !pdc.ask_with_last_ack(core, now, first) {
                pdc.ask(core, now);
            }
        }
        if let Some(id) = put_off {
            self.pdcs.put_off_early(id);
            self.note_put_off(core, now);
        }
    }

    /// Takes messages and packets that arrived early and were put off, as much as the share permits, of one PDC after the other.
    pub(super) fn take_put_off_early(&mut self, core: &mut Core, now: Time) {
        while core.early.is_left(now)
            && let Some(key) = self.pdcs.next_put_off_early()
        {
            let Some(pdc) = self.pdcs.table.get_mut(key) else { continue };
            pdc.takes_put_off();
            let (processes, usage) = (&mut self.processes, &mut self.pdcs.usage);
            take_turns(core, processes, pdc, now);
            deliver_early(core, processes, self.granter.as_deref_mut(), usage, pdc, now);
            if let Some(id) = pdc.puts_off_early() {
                self.pdcs.put_off_early(id);
            }
        }
    }

    /// Only the header has arrived: ask for the packet again. Nothing else changes (UET trimming rules).
    #[inline(never)]
    fn on_trimmed(&mut self, core: &mut Core, now: Time, packet: &Packet, request: &Request) {
        let origin = (packet.net.src, request.spdcid);
        let key = self.pdcs.by_origin.get(&origin);
        let known = key.and_then(|&key| self.pdcs.table.get_mut(key));
        let local = known.as_ref().map_or(PdcId(0), |pdc| pdc.rx.id);
        let joined = known.as_ref().and_then(|pdc| pdc.joined);
        let (peer, psn) = (packet.net.src, request.psn);
        core.events.emit(now, Event::TrimmedReceived { peer, pdc: local, psn });
        let mut pdc = known.filter(|pdc| pdc.is_named_by(request));
        match &mut pdc {
            Some(pdc) if pdc.rx.classify(request.psn) == Arrival::Duplicate => {
                let psn = request.psn;
                return pdc.acknowledge(core, now, packet, Trigger::Psn(psn), psn, request.retx);
            }
            None if self.pdcs.closed.is_late(origin, request.psn) => {
                return core.ignore(now, packet, "late copy of a packet of a closed PDC");
            }
            _ => {}
        }
        refuse(core, now, packet, request, trim_code(packet.net.class), local, 0);
        if let Some(granter) = &mut self.granter {
            let bytes = packet.payload_len.saturating_add(core.config.overhead);
            note_arrival(granter, pdc, joined, now, packet, request, bytes);
        }
    }

    /// The PDC for a request with SYN. Its first PSN is `start`. The request opens it, or is a copy of a request that
    /// did.
    ///
    /// # Errors
    /// See [`Unopened`].
    #[inline(never)]
    fn open(
        &mut self,
        core: &mut Core,
        now: Time,
        origin: Origin,
        request: &Request,
        start: Psn,
    ) -> Result<Key, Unopened> {
        if let Some(why) = self.pdcs.closed.why_not(origin, request.psn, start) {
            return Err(Unopened::Ignored(why));
        }
        if let Some((key, pdc)) = self.pdcs.of_origin(origin) {
            if pdc.rx.start_psn != start {
                if pdc.is_over {
                    return Err(Unopened::Ignored("SYN for another PDC before the last one has ended"));
                }
                match pdc.on_stray_syn(core, now) {
                    Stray::Ignore => return Err(Unopened::Ignored("SYN for another PDC than the open one")),
                    Stray::Believe => {
                        self.end(core, now, key);
                        if self.pdcs.table.get(key).is_some() {
                            return Err(Unopened::Ignored(
                                "SYN for another PDC before the last one has ended",
                            ));
                        }
                    }
                }
            } else if pdc.rx.mode != request.mode {
                return Err(Unopened::Refused(NackCode::PDC_MODE_MISMATCH));
            } else {
                return Ok(key);
            }
        }
        let rto = core.zone(core.zone_of(origin.0)).pdc.rto_init;
        let oldest = self.pdcs.take_what_makes_room(&core.config.limits, now, origin.0, rto);
        if let Some(oldest) = oldest {
            let has_early = self.pdcs.table.get(oldest).is_some_and(|pdc| pdc.order.has_early());
            // They are matched before there is room: in later calls if no more may be in this turn.
            if has_early && !core.early.is_left(now) {
                self.end(core, now, oldest);
                return Err(Unopened::Refused(NackCode::NO_PDC_AVAIL));
            }
            self.remove(core, now, oldest);
        }
        let pdc = &core.zone(core.zone_of(origin.0)).pdc;
        let limits = &core.config.limits;
        let wary = self.pdcs.table.len() >= limits.most_pdcs() / 2
            || core.acquaintances.as_ref().is_some_and(|known| known.asks(origin.0));
        let opened = self.pdcs.open(pdc, limits, (wary, oldest.is_some()), now, origin, request.mode, start);
        let key = opened.map_err(Unopened::Refused)?;
        let proof = self.pdcs.name(&mut core.rng, key);
        core.note_opened(origin.0, proof);
        if self.pdcs.begin_timer(key.index) {
            core.wheel.insert(now + core.config.idle_timeout, TimerKey::Pdc(key.index));
        }
        Ok(key)
    }

    /// Processes a NACK from an initiator: it says that a PDC has no initiator any more, or that a response has lost
    /// its data. Returns false for all other NACKs, which are for initiators.
    pub(super) fn on_nack(&mut self, core: &mut Core, now: Time, packet: &Packet, nack: &Nack) -> bool {
        match nack.code {
            NackCode::INV_DPDCID => self.on_denial(core, now, packet, nack),
            NackCode::ACK_WITH_DATA => {
                let found = self.pdcs.find(nack.dpdcid).map(|(_, pdc)| pdc);
                let named = found.filter(|pdc| pdc.origin() == (packet.net.src, nack.spdcid));
                let Some(pdc) = named else { return false };
                pdc.repeat_response(core, now, packet, nack.psn, nack.retx);
                true
            }
            _ => false,
        }
    }

    /// If `nack` says that a PDC has no initiator any more, forgets the PDC and returns true.
    fn on_denial(&mut self, core: &mut Core, now: Time, packet: &Packet, nack: &Nack) -> bool {
        let denied = self.pdcs.find(nack.dpdcid).filter(|(_, pdc)| pdc.is_denied(packet.net.src, nack));
        let Some((key, origin)) = denied.map(|(key, pdc)| (key, pdc.origin())) else { return false };
        // Only who has seen the question can have answered it: this Start_PSN is the initiator's, whoever else sends SYNs in
        // its name.
        if nack.payload != 0 && !self.pdcs.usage.of(origin.0).has_closed_too_many(&core.config.limits) {
            let forget_at = self.pdcs.expect_next(now, core.config.time_wait, origin, Psn(nack.payload));
            if let Some(at) = forget_at {
                core.wheel.insert(at, TimerKey::Closed);
            }
        }
        self.end(core, now, key);
        true
    }

    /// A control packet from the initiator of a PDC. None of them can open one.
    pub(super) fn on_control(&mut self, core: &mut Core, now: Time, packet: &Packet, control: &Control) {
        let origin = (packet.net.src, control.spdcid);
        if control.kind == ControlKind::CreditRequest {
            // The PDC need not be open: all its packets so far may have been trimmed.
            if self.pdcs.closed.is_late(origin, control.psn) {
                return core.ignore(now, packet, "late copy of a packet of a closed PDC");
            }
            if let Some(granter) = &mut self.granter {
                let name = (packet.net.src, control.probe_opaque as u8);
                let joined = self.pdcs.of_origin(origin).and_then(|(_, pdc)| pdc.joined);
                let pdc = Heard::of(control.spdcid, name.1, joined);
                granter.on_request(now, name, pdc, control.payload & 0xff_ffff);
            }
            return;
        }
        let found = match control.destination {
            Destination::Pdc(id) => self.pdcs.find(id),
            Destination::Syn { .. } => self.pdcs.of_origin(origin),
        };
        let Some((key, _)) = found.filter(|(_, pdc)| pdc.origin() == origin) else {
            if control.kind == ControlKind::CloseCommand || control.ack_request {
                let nack = nack(NackCode::INV_DPDCID, control.psn, control.spdcid, PdcId(0));
                core.send_nack(now, packet, Nack { retx: control.retx, ..nack });
            }
            return;
        };
        let named = matches!(control.destination, Destination::Pdc(_));
        let Some(pdc) = self.pdcs.table.get_mut(key) else { return };
        match named {
            true => pdc.heard_by_name(core, now, &mut self.pdcs.half_open, &mut self.pdcs.usage),
            false => pdc.heard(now),
        }
        match control.kind {
            ControlKind::AckRequest if pdc.rx.classify(control.psn) == Arrival::Duplicate => {
                pdc.acknowledge(core, now, packet, Trigger::Psn(control.psn), control.psn, control.retx);
            }
            ControlKind::AckRequest => {
                let nack = nack(NackCode::PKT_NOT_RCVD, control.psn, control.spdcid, pdc.rx.id);
                core.send_nack(now, packet, Nack { retx: control.retx, ..nack });
            }
            ControlKind::Probe => {
                let around = Psn(control.payload).plus(63);
                pdc.acknowledge(core, now, packet, Trigger::Probe(control.probe_opaque), around, false);
            }
            ControlKind::ClearCommand => {
                if let Some(pdc) = self.pdcs.table.get_mut(key) {
                    self.pdcs.usage.clear(&mut core.replies, pdc, Psn(control.payload));
                }
            }
            // A copy of the CLOSE_CMD: the acknowledgement of the first one was lost. The PDC has not had its turn to end.
            ControlKind::CloseCommand if pdc.is_over && control.psn.plus(1) == pdc.rx.expected() => {
                pdc.acknowledge(core, now, packet, Trigger::Psn(control.psn), control.psn, control.retx);
            }
            // An initiator closes a PDC only after everything is acknowledged, so this command is a stray.
            ControlKind::CloseCommand if control.psn != pdc.rx.expected() || pdc.is_over => {
                core.ignore(now, packet, "CLOSE_CMD before the end");
            }
            ControlKind::CloseCommand => {
                pdc.rx.accept(control.psn, 0, true);
                pdc.acknowledge(core, now, packet, Trigger::Psn(control.psn), control.psn, control.retx);
                // A late copy finds the PDC gone.
                self.end(core, now, key);
            }
            _ => {}
        }
    }

    /// Forgets the PDCs of `peer` that have been silent for so long, in later calls of
    /// [`Fep::on_timeout`](super::Fep::on_timeout). See [`Fep::give_up_peer`](super::Fep::give_up_peer).
    pub(super) fn give_up(&mut self, core: &mut Core, now: Time, peer: Addr, silence: Span) {
        self.pdcs.give_up(peer, now - silence);
        self.note_put_off(core, now);
    }

    /// The initiator of a PDC has closed it, or is gone. The PDC ends at once, or in later calls of
    /// [`Fep::on_timeout`](super::Fep::on_timeout) if it has many unfinished messages, or more to copy than may be copied in this
    /// turn: packets that are read together may close many such PDCs.
    fn end(&mut self, core: &mut Core, now: Time, key: Key) {
        let Some(pdc) = self.pdcs.table.get(key).filter(|pdc| !pdc.is_over) else { return };
        match pdc.unfinished(&self.processes) {
            0 => return self.remove(core, now, key),
            1..=UNFINISHED_AT_ONCE if self.end_in_part(core, now, key) => return,
            _ => {}
        }
        self.pdcs.put_off_end(key);
        self.note_put_off(core, now);
    }

    /// Ends a PDC as far as the share of early messages permits. Returns whether it is gone; otherwise it has early messages left.
    pub(super) fn end_in_part(&mut self, core: &mut Core, now: Time, key: Key) -> bool {
        let Some(pdc) = self.pdcs.table.get_mut(key) else { return true };
        let id = pdc.rx.id;
        self.processes.abandon(id, &mut pdc.order, |delivery| core.complete_receive(delivery));
        // A complete message has been acknowledged, so it is delivered although messages before it will never come.
        while core.early.is_left(now)
            && let Some(message) = pdc.order.next_early()
        {
            pass(&mut self.processes.room, pdc, message.msg_id);
            take_turn(core, &mut self.processes, id, message);
        }
        if pdc.order.has_early() {
            return false;
        }
        self.remove(core, now, key);
        true
    }

    /// Forgets a PDC that a peer has opened; messages that are incomplete will stay so.
    pub(super) fn remove(&mut self, core: &mut Core, now: Time, key: Key) {
        let Some((ended, forget_at)) = self.pdcs.close(key, now, core.config.time_wait) else { return };
        let Ended { id, origin: (peer, _), proof, joined, mut order } = ended;
        core.replies.forget(id);
        core.note_closed(peer, proof);
        core.owed.forget(id);
        if let Some(at) = forget_at {
            core.wheel.insert(at, TimerKey::Closed);
        }
        if let (Some(granter), Some(joined)) = (&mut self.granter, joined) {
            granter.leave(now, peer, joined);
        }
        self.processes.abandon(id, &mut order, |delivery| core.complete_receive(delivery));
        while let Some(message) = order.next_early() {
            take_turn(core, &mut self.processes, id, message);
        }
        self.processes.room.give_back(peer, order.take_places());
    }
}

/// The scheduler that grants credit to all senders: they share one link, whatever zones they are in. If several zones
/// have credit, it has the settings of the zone with the largest BDP, whose senders have to store the most.
fn scheduler(config: &FepConfig) -> Option<ReceiverAlgorithm> {
    let zones = config.zones.iter().filter(|zone| zone.cc.sender_credit().is_some());
    let bdp = |zone: &&Zone| zone.cc.params().network_bdp();
    zones.reduce(|a, b| if bdp(&b) > bdp(&a) { b } else { a })?.cc.receiver()
}

/// Refuses the packets of a message that have not arrived.
fn refuse_rest(limits: &Limits, pdcs: &mut TargetPdcs, (pdc, msg_id): MessageName) {
    let slot = pdcs.slot(pdc);
    if let Some((_, pdc)) = slot.and_then(|slot| pdcs.table.at_mut(slot)) {
        let expected = pdc.rx.expected();
        pdcs.usage.refuse_rest(limits, pdc, msg_id, expected);
    }
}

/// Why a request finds no PDC.
enum Unopened {
    /// It is answered with a NACK of this code.
    Refused(NackCode),
    /// It is not answered, for this reason.
    Ignored(&'static str),
}

/// Hands a new packet of `pdc` to the message layer, accepts it and acknowledges. False if it was refused.
// Inlined: it is called from two places, and nearly all packets pass the same one.
#[inline(always)]
#[expect(
    clippy::too_many_arguments,
    reason = "the parts of a target that a packet needs, each looked up once"
)]
fn deliver(
    core: &mut Core,
    processes: &mut Processes,
    usage: &mut PeerUsage,
    granter: Option<&mut Granter>,
    pdc: &mut TargetPdc,
    now: Time,
    packet: &Packet,
    request: &Request,
    payload: Payload<'_>,
) -> bool {
    let local = pdc.rx.id;
    match &packet.ses {
        Ses::Standard(header) => match admit(core, processes, usage, pdc, request.psn, header, payload) {
            Ok(Fit::Whole) => {}
            Ok(Fit::Beginning(room)) => {
                let response = respond(header, ReturnCode::TOO_LONG, room);
                usage.store(pdc, request.psn, Answer::Plain(response));
            }
            Err(Refusal::Unsupported(code)) => {
                usage.store(pdc, request.psn, Answer::Plain(respond(header, code, 0)));
                if header.request_length > payload.len() {
                    usage.refuse_rest(&core.config.limits, pdc, header.msg_id, request.psn);
                }
            }
            Err(Refusal::Busy(code)) => {
                refuse(core, now, packet, request, code, local, 0);
                // The message has its place in the order, even if its payload has not.
                if pdc.order.has_early() {
                    take_turns(core, processes, pdc, now);
                }
                return false;
            }
            Err(Refusal::Malformed(why)) => {
                core.ignore(now, packet, why);
                refuse(core, now, packet, request, NackCode::UNEXP_EVENT, local, 0);
                return false;
            }
        },
        Ses::None => {}
        _ => {
            core.ignore(now, packet, "SES header not implemented");
            refuse(core, now, packet, request, NackCode::UNEXP_EVENT, local, 0);
            return false;
        }
    }
    let len = payload.len();
    let answered = pdc.rx.response(request.psn).is_some();
    let syn = matches!(request.destination, Destination::Syn { .. });
    let soon = request.ack_request || packet.net.ecn || syn || answered;
    let nominal = len + nominal_overhead(request.cc.is_some(), core.config.crc);
    let due = pdc.rx.accept(request.psn, nominal, soon);
    let ecn = packet.net.ecn;
    core.events.emit(now, Event::DataReceived { peer: packet.net.src, pdc: local, psn: request.psn, ecn });
    if let Some(granter) = granter {
        let joined = pdc.joined;
        note_arrival(granter, Some(pdc), joined, now, packet, request, len + core.config.overhead);
    }
    if due && !(core.in_burst && !answered && owe(core, pdc, packet, request)) {
        pdc.acknowledge(core, now, packet, Trigger::Psn(request.psn), request.psn, request.retx);
    }
    if pdc.order.has_early() {
        take_turns(core, processes, pdc, now);
    }
    true
}

/// A ROD packet that is not the next one: keeps it if that is configured and there is room, else refuses it.
#[inline(never)]
fn on_early(
    core: &mut Core,
    usage: &mut PeerUsage,
    pdc: &mut TargetPdc,
    now: Time,
    packet: &Packet,
    request: &Request,
    payload: Payload<'_>,
) {
    let keeps = core.config.rod_receive == RodReceive::Reorder;
    if !keeps || !pdc.keep_early(&core.config.limits, usage, packet, request.psn, payload) {
        let expected = pdc.rx.expected();
        refuse(core, now, packet, request, NackCode::ROD_OOO, pdc.rx.id, expected.0);
    }
}

/// Delivers the kept ROD packets whose turn has come.
#[inline(never)]
fn deliver_early(
    core: &mut Core,
    processes: &mut Processes,
    mut granter: Option<&mut Granter>,
    usage: &mut PeerUsage,
    pdc: &mut TargetPdc,
    now: Time,
) {
    while core.early.is_left(now)
        && let Some(early) = pdc.next_early(usage)
    {
        let Pds::Request(request) = &early.packet.pds else { return };
        let (granter, payload) = (granter.as_deref_mut(), early.payload());
        core.early.take(payload.len().into());
        if !deliver(core, processes, usage, granter, pdc, now, &early.packet, request, payload) {
            return;
        }
    }
}

/// Whether a message was longer than its receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fit {
    /// It was not, or that is not known: it is not complete yet, has no receive, or is an access.
    Whole,
    /// The message is complete, and longer than its receive, which has so many bytes.
    Beginning(u32),
}

/// Completes the receive of a message of `pdc`, or lets the message wait for others.
// The receive completes before the packet is acknowledged: to keep the delivery until then would move it once more.
#[inline(always)]
fn complete(
    core: &mut Core,
    receives: &mut Receives,
    room: &mut Room,
    pdc: &TargetPdc,
    delivery: Delivery,
) -> Fit {
    let fit = if delivery.is_truncated() { Fit::Beginning(delivery.buffer.len()) } else { Fit::Whole };
    match receives.is_copying() {
        true => complete_in_order(core, receives, room, pdc, delivery),
        false => core.complete_receive(delivery),
    }
    fit
}

/// As [`complete`], while other messages are being copied: those of a PDC with order come before the message.
#[cold]
#[inline(never)]
fn complete_in_order(
    core: &mut Core,
    receives: &mut Receives,
    room: &mut Room,
    pdc: &TargetPdc,
    delivery: Delivery,
) {
    let is_next = match pdc.rx.mode {
        DeliveryMode::Rod => receives.queue_up(room, pdc.rx.id, delivery),
        _ => Some(delivery),
    };
    if let Some(delivery) = is_next {
        core.complete_receive(delivery);
    }
}

/// Puts the payload of packet `psn` among the receives of the process that it is for, and completes the receive of its
/// message when that is complete.
#[inline(always)]
fn admit(
    core: &mut Core,
    processes: &mut Processes,
    usage: &mut PeerUsage,
    pdc: &mut TargetPdc,
    psn: Psn,
    header: &StandardRequest,
    payload: Payload<'_>,
) -> Result<Fit, Refusal> {
    let msg_id = header.msg_id;
    // WRITE, READ, ATOMIC and FETCHING_ATOMIC.
    if header.opcode.0.wrapping_sub(Opcode::WRITE.0) < 4 {
        return admit_access(core, processes, usage, pdc, psn, header, payload).map(|()| Fit::Whole);
    }
    if core.has_jobs && !processes.is_of_job(header) {
        if pdc.has_refused(msg_id, psn) {
            return Err(error_or_busy(
                core,
                usage,
                pdc,
                (psn, payload.len()),
                header,
                ReturnCode::BAD_JOB_ID,
            ));
        }
        let bad_job = Refusal::Unsupported(ReturnCode::BAD_JOB_ID);
        return Err(turn_away(core, usage, &mut processes.room, pdc, (psn, payload.len()), header, bad_job));
    }
    if pdc.has_refused(msg_id, psn) {
        return Err(error_or_busy(core, usage, pdc, (psn, payload.len()), header, ReturnCode::BAD_PID));
    }
    let Some((receives, room)) = processes.get_mut(header.pid_on_fep) else {
        if processes.has_left(header.pid_on_fep, (pdc.rx.id, msg_id)) {
            let expected = pdc.rx.expected();
            usage.refuse_rest(&core.config.limits, pdc, msg_id, expected);
            return Err(error_or_busy(core, usage, pdc, (psn, payload.len()), header, ReturnCode::BAD_PID));
        }
        let bad_pid = Refusal::Unsupported(ReturnCode::BAD_PID);
        return Err(turn_away(core, usage, &mut processes.room, pdc, (psn, payload.len()), header, bad_pid));
    };
    if receives.is_copying() && pdc.rx.mode == DeliveryMode::Rod && receives.is_line_full(pdc.rx.id) {
        return Err(Refusal::Busy(NackCode::NO_SES_MSG_AVAIL));
    }
    // A message that turns out longer than its receive is answered. If there may be no room for that, a message of a single packet is
    // handled like a message of several: it meets its receive first, and then its packet may be refused.
    let is_whole = payload.len() == header.request_length
        && (header.request_length == 0 || may_answer(core, usage, pdc, psn));
    if is_whole
        && pdc.is_turn(msg_id, psn)
        && let Some(delivery) = receives.deliver_whole(pdc.rx.peer, pdc.rx.id, header, payload)
    {
        pass(room, pdc, msg_id);
        return Ok(complete(core, receives, room, pdc, delivery));
    }
    let part = match Part::new(header, payload) {
        Ok(part) => part,
        Err(why) => return Err(turn_away(core, usage, room, pdc, (psn, payload.len()), header, why)),
    };
    let message = match receives.find((pdc.rx.id, msg_id)) {
        Some(message) => message,
        None if pdc.is_turn(msg_id, psn) => begin(receives, room, pdc, header, &part, is_whole)?,
        None => begin_early(receives, room, pdc, psn, header, &part)?,
    };
    if pdc.rx.has_responses()
        && receives.ends_too_long(&pdc.order, message, &part)
        && !may_answer(core, usage, pdc, psn)
    {
        return Err(Refusal::Busy(NackCode::NO_GTD_DEL_AVAIL));
    }
    if !receives.place(room, &mut pdc.order, message, &part)? {
        return Ok(Fit::Whole);
    }
    Ok(match receives.complete(room, &mut pdc.order, message) {
        Placed::Waits => Fit::Whole,
        Placed::Whole(delivery) => complete(core, receives, room, pdc, delivery),
        // Its receive completes later, but its sender is not to wait for that.
        Placed::Copied { room } if room < header.request_length => Fit::Beginning(room),
        Placed::Copied { .. } => Fit::Whole,
    })
}

/// Whether the quota of the initiator of `pdc` has room for an answer of this cost to packet `psn`.
pub(super) fn may_store(core: &Core, usage: &PeerUsage, pdc: &TargetPdc, psn: Psn, cost: u64) -> bool {
    // Clears are cumulative: the responses behind a refused request stay until it is answered. So the first request that
    // is not cleared must get its answer whatever the others take.
    let is_first = psn == pdc.rx.cack().plus(1);
    is_first || usage.may_store(&core.config.limits, pdc.rx.peer, cost)
}

/// Whether it may be stored that the message which packet `psn` of `pdc` ends is longer than its receive. A PDC without stored
/// responses may always store one: most never have any, and their packets need no look at quotas.
#[inline]
fn may_answer(core: &Core, usage: &PeerUsage, pdc: &TargetPdc, psn: Psn) -> bool {
    !pdc.rx.has_responses() || may_store(core, usage, pdc, psn, Answer::PLAIN_COST)
}

/// The refusal of packet `psn`, which has `len` bytes of payload, with the error `code`. While there is no room to
/// store the error, or to note that the rest of the packet's message is refused, the packet is refused as busy instead.
#[cold]
pub(super) fn error_or_busy(
    core: &Core,
    usage: &PeerUsage,
    pdc: &TargetPdc,
    (psn, len): (Psn, u32),
    header: &StandardRequest,
    code: ReturnCode,
) -> Refusal {
    let may_refuse = header.request_length <= len
        || pdc.has_refused(header.msg_id, psn)
        || usage.may_refuse_rest(&core.config.limits, pdc, psn);
    match may_refuse && may_store(core, usage, pdc, psn, Answer::PLAIN_COST) {
        true => Refusal::Unsupported(code),
        false => Refusal::Busy(NackCode::NO_GTD_DEL_AVAIL),
    }
}

/// The refusal of packet `psn`, which has `len` bytes of payload, and whose message no process takes because of `why`.
/// Messages behind it do not wait for it, unless it is to be sent again.
#[cold]
fn turn_away(
    core: &Core,
    usage: &PeerUsage,
    room: &mut Room,
    pdc: &mut TargetPdc,
    (psn, len): (Psn, u32),
    header: &StandardRequest,
    why: Refusal,
) -> Refusal {
    let refusal = match why {
        Refusal::Unsupported(code) => error_or_busy(core, usage, pdc, (psn, len), header, code),
        why => why,
    };
    // One that is malformed, as one for which there is no room, is not accepted: it may come any number of times.
    if matches!(refusal, Refusal::Unsupported(_)) {
        pass_over(room, pdc, psn, header);
    }
    refusal
}

/// A message begins whose turn it is.
#[inline(never)]
fn begin(
    receives: &mut Receives,
    room: &mut Room,
    pdc: &mut TargetPdc,
    header: &StandardRequest,
    part: &Part<'_>,
    is_whole: bool,
) -> Result<Key, Refusal> {
    let msg_id = header.msg_id;
    let source = Source::of_message(pdc.rx.peer, header.initiator);
    let message = receives.begin((pdc.rx.id, msg_id), source, part, is_whole, room, &mut pdc.order)?;
    pass(room, pdc, msg_id);
    Ok(message)
}

/// A message begins before its turn. Each message before it must find a place when it begins, so places are reserved
/// for them.
#[inline(never)]
fn begin_early(
    receives: &mut Receives,
    room: &mut Room,
    pdc: &mut TargetPdc,
    psn: Psn,
    header: &StandardRequest,
    part: &Part<'_>,
) -> Result<Key, Refusal> {
    let (peer, msg_id) = (pdc.rx.peer, header.msg_id);
    let places = pdc.order.missing_places(msg_id, psn, pdc.rx.expected());
    let source = Source::of_message(peer, header.initiator);
    if !receives.has_room(room, source, places) || !room.reserve(peer, places, !pdc.is_half_open()) {
        return Err(Refusal::Busy(NackCode::NO_SES_MSG_AVAIL));
    }
    let begun = receives.begin_early((pdc.rx.id, msg_id), source, part, room, &mut pdc.order);
    match begun {
        Ok(_) => pdc.order.add_early(Some(header.pid_on_fep), msg_id, psn, places),
        Err(_) => room.give_back(peer, places),
    }
    begun
}

/// A message begins that no process takes: messages behind it do not wait for it.
#[cold]
pub(super) fn pass_over(room: &mut Room, pdc: &mut TargetPdc, psn: Psn, header: &StandardRequest) {
    match pdc.is_turn(header.msg_id, psn) {
        true => pass(room, pdc, header.msg_id),
        false => pdc.order.add_early(None, header.msg_id, psn, 0),
    }
}

/// Message `msg_id` has begun, and it was its turn.
#[inline]
fn pass(room: &mut Room, pdc: &mut TargetPdc, msg_id: u16) {
    if pdc.order.pass(msg_id) {
        room.give_back(pdc.rx.peer, 1);
    }
}

/// Matches early messages whose turn has come, as many as in a turn of the worker's loop.
#[inline(never)]
fn take_turns(core: &mut Core, processes: &mut Processes, pdc: &mut TargetPdc, now: Time) {
    while core.early.is_left(now)
        && let Some(message) = pdc.order.next_due(pdc.rx.expected())
    {
        pass(&mut processes.room, pdc, message.msg_id);
        take_turn(core, processes, pdc.rx.id, message);
    }
    processes.room.give_back(pdc.rx.peer, pdc.order.take_places());
}

/// Matches an early message of `pdc`, and takes what that costs from the share of those.
fn take_turn(core: &mut Core, processes: &mut Processes, pdc: PdcId, message: EarlyMessage) {
    let touched = processes.room.touched();
    if let Some(delivery) = processes.take_turn(pdc, message) {
        core.complete_receive(delivery);
    }
    let touched = processes.room.touched() - touched;
    core.early.take(touched.saturating_sub(HAND_OVER));
}

/// Tells the credit scheduler about a packet of `bytes`, and about its PDC if that is open. That PDC has `joined` this
/// context.
fn note_arrival(
    granter: &mut Granter,
    pdc: Option<&mut TargetPdc>,
    mut joined: Option<Joined>,
    now: Time,
    packet: &Packet,
    request: &Request,
    bytes: u32,
) {
    let Some(cc) = &request.cc else { return };
    let name = (packet.net.src, cc.ccc_id);
    if let Some(pdc) = pdc.filter(|pdc| pdc.joined.is_none()) {
        joined = Some(granter.join(now, name, Ends { initiator: request.spdcid, target: pdc.rx.id }));
        pdc.joined = joined;
    }
    let trimmed = match packet.net.class {
        Class::TrimmedLastHop => Some(Trim::LastHop),
        class => class.is_trimmed().then_some(Trim::InFabric),
    };
    let (bytes, ecn) = (u64::from(bytes), packet.net.ecn);
    let sample = DataSample { bytes, scheduled: true, ecn, trimmed, congested_sender: false };
    let pdc = Heard::of(request.spdcid, cc.ccc_id, joined);
    granter.on_data(now, name, pdc, cc.credit_target, &sample);
}

/// Answers a request with a NACK. `local` is the PDCID here that its origin has open, 0 if none.
#[inline(never)]
fn refuse(
    core: &mut Core,
    now: Time,
    packet: &Packet,
    request: &Request,
    code: NackCode,
    local: PdcId,
    payload: u32,
) {
    let nack = nack(code, request.psn, request.spdcid, local);
    core.send_nack(now, packet, Nack { retx: request.retx, payload, ..nack });
}

/// A NACK for packet `psn` of the peer's PDC `peer_id`, which is `local` here.
pub(super) fn nack(code: NackCode, psn: Psn, peer_id: PdcId, local: PdcId) -> Nack {
    Nack {
        next: NextHeader::None,
        ecn: false,
        retx: false,
        rudi: false,
        code,
        vendor_code: 0,
        psn,
        spdcid: local,
        dpdcid: peer_id,
        payload: 0,
        ccx: None,
    }
}

/// The NACK code for a packet that arrived in this trimmed class.
pub(super) fn trim_code(class: Class) -> NackCode {
    match class {
        Class::TrimmedLastHop => NackCode::TRIMMED_LASTHOP,
        _ => NackCode::TRIMMED,
    }
}
