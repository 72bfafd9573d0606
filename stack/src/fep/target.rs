//! The receiving half of an endpoint: the PDCs that peers have opened, the receives of its processes, and the
//! scheduler that grants credit.

use weft_cc::{DataSample, Time};

use super::core::Core;
use super::credit::Granter;
use super::process::Processes;
use super::target_pdc::{Origin, PeerUsage, TargetPdc, TargetPdcs, established};
use super::timers::TimerKey;
use super::{CallError, FepConfig, PostError, Receive};
use crate::event::Event;
use crate::packet::{Addr, Class, Packet, Payload};
use crate::pdc::{Arrival, RodReceive, Trigger};
use crate::ses::{Delivery, ReceiveId, Receives, Refusal, respond};
use crate::table::Key;
use crate::wire::pds::{
    Control, ControlKind, DeliveryMode, Destination, Nack, NackCode, NextHeader, PdcId, Pds, Psn, Request,
};
use crate::wire::ses::{ReturnCode, Ses, StandardRequest};

/// The receiving half of an endpoint.
// In order of use; the first fields share a cache line with the end of the initiator: see `Fep`.
#[repr(C)]
pub(super) struct Target {
    pub(super) granter: Option<Box<Granter>>,
    pub(super) pdcs: TargetPdcs,
    pub(super) processes: Processes,
}

impl Target {
    pub(super) fn new(config: &FepConfig) -> Target {
        Target {
            granter: config.cc.receiver().map(|algorithm| Box::new(Granter::new(algorithm))),
            pdcs: TargetPdcs::default(),
            processes: Processes::new(&config.limits),
        }
    }

    /// Brings what the next packet will probably need into the cache.
    pub(super) fn prefetch(&self) {
        self.pdcs.table.prefetch(0);
        self.processes.prefetch();
    }

    /// See [`Fep::post_receive_of`](super::Fep::post_receive_of).
    pub(super) fn post_receive(
        &mut self,
        core: &mut Core,
        process: u16,
        receive: Receive,
    ) -> Result<ReceiveId, PostError> {
        self.processes.post(core, process, receive)
    }

    /// See [`Fep::close_process`](super::Fep::close_process).
    pub(super) fn close_process(&mut self, config: &FepConfig, process: u16) -> Result<(), CallError> {
        let receives = self.processes.close(process)?;
        for (pdc, msg_id) in receives.incomplete() {
            if let Some((_, pdc)) = self.pdcs.find(pdc) {
                let expected = pdc.rx.expected();
                pdc.refuse_rest(&config.pdc, msg_id, expected);
            }
        }
        Ok(())
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
        let found = match request.destination {
            Destination::Pdc(id) => established(&mut self.pdcs.table, id, origin, request.mode).map_err(Some),
            Destination::Syn { psn_offset, .. } => {
                let start = request.psn.minus(u32::from(psn_offset));
                match self.open(core, now, origin, request, start) {
                    Ok(key) => self.pdcs.table.get_mut(key).ok_or(None),
                    Err(code) => Err(code),
                }
            }
        };
        let pdc = match found {
            Ok(pdc) => pdc,
            Err(Some(code)) => {
                let local = self.pdcs.of_origin(origin).map_or(PdcId(0), |(_, pdc)| pdc.rx.id);
                return refuse(core, now, packet, request, code, local, 0);
            }
            Err(None) => return core.ignore(now, packet, "late copy of a packet of a closed PDC"),
        };
        pdc.heard(now);
        pdc.rx.clear(request.psn.offset(i32::from(request.clear_psn_offset)));
        match pdc.rx.classify(request.psn) {
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
        if ordered && request.psn != pdc.rx.expected() {
            return on_early(core, &mut self.pdcs.usage, pdc, now, packet, request, payload);
        }
        let (processes, mut granter) = (&mut self.processes, self.granter.as_deref_mut());
        let granted = granter.as_deref_mut();
        if deliver(core, processes, granted, pdc, now, packet, request, payload) && ordered {
            deliver_early(core, processes, granter, &mut self.pdcs.usage, pdc, now);
        }
    }

    /// Only the header has arrived: ask for the packet again. Nothing else changes (UET trimming rules).
    #[inline(never)]
    fn on_trimmed(&mut self, core: &mut Core, now: Time, packet: &Packet, request: &Request) {
        let origin = (packet.net.src, request.spdcid);
        let key = self.pdcs.by_origin.get(&origin);
        let known = key.and_then(|&key| self.pdcs.table.get_mut(key));
        let local = known.as_ref().map_or(PdcId(0), |pdc| pdc.rx.id);
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
            note_arrival(granter, pdc, now, packet, request, bytes, true);
        }
    }

    /// The PDC for a request with SYN, which opens one whose first PSN is `start`, or is a copy of one that did.
    ///
    /// # Errors
    /// The NACK code to answer with, or `None` where silence is right.
    #[inline(never)]
    fn open(
        &mut self,
        core: &mut Core,
        now: Time,
        origin: Origin,
        request: &Request,
        start: Psn,
    ) -> Result<Key, Option<NackCode>> {
        // Before anything else: a late copy must not take the place of a PDC that is open.
        if self.pdcs.closed.is_late(origin, request.psn) {
            return Err(None);
        }
        if let Some((key, pdc)) = self.pdcs.of_origin(origin) {
            let apart = start.distance(pdc.rx.start_psn).unsigned_abs();
            match apart {
                0 if pdc.rx.mode != request.mode => return Err(Some(NackCode::PDC_MODE_MISMATCH)),
                0 => return Ok(key),
                // The initiator starts new PDCs at least 2¹⁶ away from its last: it has lost the old one.
                _ if start.distance(pdc.rx.expected()).unsigned_abs() >= 1 << 16 && apart >= 1 << 16 => {
                    self.remove(core, now, key);
                }
                _ => return Err(Some(NackCode::INVALID_SYN)),
            }
        }
        let config = &core.config;
        let key =
            self.pdcs.open(&config.pdc, &config.limits, now, origin, request.mode, start).map_err(Some)?;
        core.wheel.insert(now + core.config.idle_timeout, TimerKey::Pdc(key));
        Ok(key)
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
                granter.on_request(now, name, control.spdcid, control.payload & 0xff_ffff);
            }
            return;
        }
        let found = match control.destination {
            Destination::Pdc(id) => self.pdcs.find(id),
            Destination::Syn { .. } => self.pdcs.of_origin(origin),
        };
        let Some((key, pdc)) = found.filter(|(_, pdc)| pdc.origin() == origin) else {
            if control.kind == ControlKind::CloseCommand || control.ack_request {
                let nack = nack(NackCode::INV_DPDCID, control.psn, control.spdcid, PdcId(0));
                core.send_nack(now, packet, Nack { retx: control.retx, ..nack });
            }
            return;
        };
        pdc.heard(now);
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
            ControlKind::ClearCommand => pdc.rx.clear(Psn(control.payload)),
            // The initiator closes only after everything is acknowledged: this is a stray.
            ControlKind::CloseCommand if control.psn != pdc.rx.expected() => {
                core.ignore(now, packet, "CLOSE_CMD before the end");
            }
            ControlKind::CloseCommand => {
                pdc.rx.accept(now, control.psn, 0, true);
                pdc.acknowledge(core, now, packet, Trigger::Psn(control.psn), control.psn, control.retx);
                // A late copy finds the PDC gone.
                self.remove(core, now, key);
            }
            _ => {}
        }
    }

    /// Forgets a PDC that a peer has opened; messages that are incomplete will stay so.
    pub(super) fn remove(&mut self, core: &mut Core, now: Time, key: Key) {
        let Some((pdc, forget_at)) = self.pdcs.close(key, now, core.config.time_wait) else { return };
        if let Some(at) = forget_at {
            core.wheel.insert(at, TimerKey::Closed);
        }
        if let (Some(granter), Some(ccc_id)) = (&mut self.granter, pdc.ccc_id) {
            granter.leave(now, (pdc.rx.peer, ccc_id), pdc.rx.peer_id);
        }
        self.processes.abandon(pdc.rx.id, |delivery| core.complete_receive(delivery));
    }
}

/// Hands a new packet of `pdc` to the message layer, accepts it and acknowledges. False if it was refused.
#[inline]
#[expect(
    clippy::too_many_arguments,
    reason = "the parts of a target that a packet needs, each looked up once"
)]
fn deliver(
    core: &mut Core,
    processes: &mut Processes,
    granter: Option<&mut Granter>,
    pdc: &mut TargetPdc,
    now: Time,
    packet: &Packet,
    request: &Request,
    payload: Payload<'_>,
) -> bool {
    let local = pdc.rx.id;
    let mut completed = None;
    match &packet.ses {
        Ses::Standard(header) => {
            let receives = match pdc.has_refused(header.msg_id, request.psn) {
                true => None,
                false => processes.get_mut(header.pid_on_fep),
            };
            match admit(receives, packet.net.src, local, header, payload) {
                Ok(delivery) => {
                    completed = delivery;
                    if let Some(delivery) = completed.as_ref().filter(|d| d.is_truncated()) {
                        let response = respond(header, ReturnCode::TOO_LONG, delivery.buffer.len());
                        pdc.rx.store_response(request.psn, response);
                    }
                }
                Err(Refusal::Unsupported(code)) => {
                    pdc.rx.store_response(request.psn, respond(header, code, 0));
                    if header.request_length > payload.len() {
                        pdc.refuse_rest(&core.config.pdc, header.msg_id, request.psn);
                    }
                }
                Err(Refusal::Busy(code)) => {
                    refuse(core, now, packet, request, code, local, 0);
                    return false;
                }
                Err(Refusal::Malformed(why)) => {
                    core.ignore(now, packet, why);
                    refuse(core, now, packet, request, NackCode::UNEXP_EVENT, local, 0);
                    return false;
                }
            }
        }
        Ses::None => {}
        _ => {
            core.ignore(now, packet, "SES header not implemented");
            refuse(core, now, packet, request, NackCode::UNEXP_EVENT, local, 0);
            return false;
        }
    }
    let bytes = payload.len() + core.config.overhead;
    let answered = pdc.rx.response(request.psn).is_some();
    let syn = matches!(request.destination, Destination::Syn { .. });
    let soon = request.ack_request || packet.net.ecn || syn || answered;
    let due = pdc.rx.accept(now, request.psn, bytes, soon);
    let ecn = packet.net.ecn;
    core.events.emit(now, Event::DataReceived { peer: packet.net.src, pdc: local, psn: request.psn, ecn });
    if let Some(granter) = granter {
        note_arrival(granter, Some(pdc), now, packet, request, bytes, false);
    }
    if due {
        pdc.acknowledge(core, now, packet, Trigger::Psn(request.psn), request.psn, request.retx);
    }
    if let Some(delivery) = completed {
        core.complete_receive(delivery);
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
    let keeps = core.config.pdc.rod_receive == RodReceive::Reorder;
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
    while let Some(early) = pdc.next_early(usage) {
        let Pds::Request(request) = &early.packet.pds else { return };
        let (granter, payload) = (granter.as_deref_mut(), early.payload());
        if !deliver(core, processes, granter, pdc, now, &early.packet, request, payload) {
            return;
        }
    }
}

/// Puts the payload of a packet among the receives of the process that it is for. Hands the message back when that
/// completes it.
#[inline(always)]
fn admit(
    receives: Option<&mut Receives>,
    peer: Addr,
    pdc: PdcId,
    header: &StandardRequest,
    payload: Payload<'_>,
) -> Result<Option<Delivery>, Refusal> {
    let receives = receives.ok_or(Refusal::Unsupported(ReturnCode::BAD_PID))?;
    let whole = receives.deliver_whole(peer, pdc, header, payload);
    if whole.is_some() {
        return Ok(whole);
    }
    let place = receives.admit(peer, pdc, header, payload)?;
    Ok(receives.place(place, header, payload))
}

/// Tells the credit scheduler about a packet of `bytes`, and of which PDC it is if that is open.
fn note_arrival(
    granter: &mut Granter,
    pdc: Option<&mut TargetPdc>,
    now: Time,
    packet: &Packet,
    request: &Request,
    bytes: u32,
    trimmed: bool,
) {
    let Some(cc) = &request.cc else { return };
    let name = (packet.net.src, cc.ccc_id);
    if let Some(pdc) = pdc.filter(|pdc| pdc.ccc_id.is_none()) {
        pdc.ccc_id = Some(cc.ccc_id);
        granter.join(now, name, request.spdcid);
    }
    let (bytes, ecn) = (u64::from(bytes), packet.net.ecn);
    let sample = DataSample { bytes, scheduled: true, ecn, trimmed, congested_sender: false };
    granter.on_data(now, name, request.spdcid, cc.credit_target, &sample);
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
fn nack(code: NackCode, psn: Psn, peer_id: PdcId, local: PdcId) -> Nack {
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

fn trim_code(class: Class) -> NackCode {
    match class {
        Class::TrimmedLastHop => NackCode::TRIMMED_LASTHOP,
        _ => NackCode::TRIMMED,
    }
}
