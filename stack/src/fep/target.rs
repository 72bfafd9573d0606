//! What a target does with requests and control packets.

use std::collections::VecDeque;

use weft_cc::{DataSample, Time};

use super::refused::Refused;
use super::timers::TimerKey;
use super::transmit::{control_packet, network};
use super::{Fep, Map};
use crate::event::Event;
use crate::heap;
use crate::packet::{Addr, Class, Packet, Payload};
use crate::pdc::{Arrival, PdcConfig, RodReceive, RxPdc, Trigger};
use crate::ses::{Delivery, Receives, Refusal, respond};
use crate::table::{Key, Table};
use crate::wire::pds::{
    Ack, Control, ControlKind, DeliveryMode, Destination, Nack, NackCode, NextHeader, PdcId, Pds, Psn,
    Request,
};
use crate::wire::ses::{ReturnCode, Ses, StandardRequest};

/// Names an initiator's PDC from the target's side.
type Origin = (Addr, PdcId);

/// One PDC that a peer has opened.
// In the order of use: every packet needs the first two cache lines of its slot.
#[repr(C)]
pub(super) struct Target {
    pub(super) pdc: RxPdc,
    /// Whether the initiator has been asked if it is still there.
    pub(super) asked: bool,
    /// Messages that are not taken to their end, if there ever were any.
    refused: Option<Box<Refused>>,
    /// The initiator's congestion context, once a request has told.
    pub(super) ccc_id: Option<u8>,
    /// ROD packets that arrived early.
    early: VecDeque<Early>,
}

impl Target {
    /// The initiator is there, whatever its packet is good for.
    fn heard(&mut self, now: Time) {
        self.pdc.last_heard = now;
        self.asked = false;
    }

    /// Whether a packet is the rest of a message that is not taken to its end.
    #[inline]
    fn has_refused(&self, ses: &Ses, psn: Psn) -> bool {
        let refused = self.refused.as_deref();
        refused
            .is_some_and(|refused| matches!(ses, Ses::Standard(header) if refused.holds(header.msg_id, psn)))
    }

    /// Notes that the message of packet `psn` is not taken to its end.
    #[cold]
    pub(super) fn refuse_rest(&mut self, config: &PdcConfig, msg_id: u16, psn: Psn) {
        let refused = self.refused.get_or_insert_with(|| Box::new(Refused::new(config.mp_range)));
        refused.add(msg_id, psn, self.pdc.expected());
    }
}

/// All PDCs that peers have opened.
#[derive(Default)]
pub(super) struct Targets {
    pub(super) table: Table<Target>,
    by_origin: Map<Origin, Key>,
    per_peer: Map<Addr, Holdings>,
    /// PDCs closed a while ago: late copies of their packets must not open them again.
    closed: Map<Origin, Vec<Closed>>,
    pub(super) closing_order: VecDeque<(Time, Origin)>,
}

/// What one peer uses up here.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Holdings {
    /// PDCs that are open.
    open: u32,
    /// Entries in [`Targets::closing_order`].
    remembered: u32,
    /// Bytes that its early ROD packets take.
    early_bytes: u64,
}

/// A ROD packet that arrived early.
struct Early {
    psn: Psn,
    packet: Packet,
    bytes: Box<[u8]>,
}

impl Early {
    /// Bytes it takes.
    fn cost(&self) -> u64 {
        (size_of::<Early>() + self.bytes.len()) as u64
    }
}

/// Closed PDCs of one PDCID that are remembered. Each took a round trip at least: no copy is so many
/// of them late, and a peer that opens and closes all the time costs no more than this.
const REMEMBERED: usize = 64;

/// The PSNs that a closed PDC used.
#[derive(Clone, Copy)]
struct Closed {
    start: Psn,
    end: Psn,
    until: Time,
}

impl Targets {
    pub(super) fn find(&self, id: PdcId) -> Option<(Key, &Target)> {
        self.table.at(u32::from(id.0).checked_sub(1)?)
    }

    fn remove(&mut self, key: Key) -> Option<Target> {
        let target = self.table.remove(key)?;
        let pdc = &target.pdc;
        self.by_origin.remove(&(pdc.peer, pdc.peer_id));
        let early: u64 = target.early.iter().map(Early::cost).sum();
        self.charge(pdc.peer, |holdings| {
            holdings.open -= 1;
            holdings.early_bytes -= early;
        });
        Some(target)
    }

    fn holdings(&self, peer: Addr) -> Holdings {
        self.per_peer.get(&peer).copied().unwrap_or_default()
    }

    /// Changes what `peer` uses up, and forgets a peer that uses nothing.
    fn charge(&mut self, peer: Addr, change: impl FnOnce(&mut Holdings)) {
        let holdings = self.per_peer.entry(peer).or_default();
        change(holdings);
        if *holdings == Holdings::default() {
            self.per_peer.remove(&peer);
        }
    }

    /// Whether `psn` was used by a PDC of `origin` that is closed and remembered.
    fn is_late(&self, origin: Origin, psn: Psn) -> bool {
        let used = |closed: &Closed| !psn.is_before(closed.start) && psn.is_before(closed.end);
        self.closed.get(&origin).is_some_and(|all| all.iter().any(used))
    }

    /// Forgets the closed PDCs whose time has passed.
    pub(super) fn forget_closed(&mut self, now: Time) {
        while let Some(&(until, origin)) = self.closing_order.front()
            && now.is_at_or_after(until)
        {
            self.closing_order.pop_front();
            self.charge(origin.0, |holdings| holdings.remembered -= 1);
            if let Some(all) = self.closed.get_mut(&origin) {
                all.retain(|closed| now.is_before(closed.until));
                if all.is_empty() {
                    self.closed.remove(&origin);
                }
            }
        }
    }

    /// Bytes of heap held.
    pub(super) fn heap_bytes(&self) -> u64 {
        let early = |target: &Target| {
            let bytes = target.early.iter().map(|early| early.bytes.len() as u64);
            heap::of_deque(&target.early) + bytes.sum::<u64>()
        };
        let refused = |target: &Target| {
            target.refused.as_deref().map_or(0, |refused| size_of_val(refused) as u64 + refused.heap_bytes())
        };
        let targets =
            self.table.iter().map(|(_, target)| target.pdc.heap_bytes() + early(target) + refused(target));
        self.table.heap_bytes()
            + heap::of_map(&self.by_origin)
            + heap::of_map(&self.per_peer)
            + heap::of_map(&self.closed)
            + self.closed.values().map(heap::of_vec).sum::<u64>()
            + heap::of_deque(&self.closing_order)
            + targets.sum::<u64>()
    }
}

impl Fep {
    pub(super) fn on_request(&mut self, now: Time, packet: &Packet, request: &Request, payload: Payload<'_>) {
        if packet.net.class.is_trimmed() {
            return self.on_trimmed(now, packet, request);
        }
        let key = match self.target_for(now, packet, request) {
            Ok(key) => key,
            Err(Some(code)) => return self.refuse(now, packet, request, code, 0),
            Err(None) => return self.ignore(now, packet, "late copy of a packet of a closed PDC"),
        };
        let Some(target) = self.targets.table.get_mut(key) else { return };
        target.heard(now);
        target.pdc.clear(request.psn.offset(i32::from(request.clear_psn_offset)));
        let ordered = target.pdc.mode == DeliveryMode::Rod;
        match target.pdc.classify(request.psn) {
            Arrival::New => {}
            Arrival::Duplicate => {
                self.events.emit(now, Event::DuplicateReceived { peer: packet.net.src, psn: request.psn });
                return self.acknowledge(
                    now,
                    key,
                    packet,
                    Trigger::Psn(request.psn),
                    request.psn,
                    request.retx,
                );
            }
            Arrival::OutOfWindow => {
                let syn = matches!(request.destination, Destination::Syn { .. });
                let code = if syn { NackCode::INVALID_SYN } else { NackCode::PSN_OOR_WINDOW };
                return self.refuse(now, packet, request, code, 0);
            }
        }
        if ordered && request.psn != target.pdc.expected() {
            return self.on_early(now, key, packet, request, payload);
        }
        if self.deliver(now, key, packet, request, payload) && ordered {
            self.deliver_early(now, key);
        }
    }

    /// Hands a new packet to the message layer, accepts it and acknowledges. False if it was refused.
    #[inline]
    fn deliver(
        &mut self,
        now: Time,
        key: Key,
        packet: &Packet,
        request: &Request,
        payload: Payload<'_>,
    ) -> bool {
        let Some(target) = self.targets.table.get_mut(key) else { return false };
        let local = target.pdc.id;
        let mut completed = None;
        let receives = match &packet.ses {
            ses if target.has_refused(ses, request.psn) => None,
            Ses::Standard(header) if header.pid_on_fep != 0 => self.processes.get_mut(&header.pid_on_fep),
            _ if self.zero_closed => None,
            _ => Some(&mut self.receives),
        };
        match &packet.ses {
            Ses::Standard(header) => match admit(receives, packet.net.src, local, header, payload) {
                Ok(delivery) => {
                    completed = delivery;
                    if let Some(delivery) = completed.as_ref().filter(|d| d.is_truncated()) {
                        let response = respond(header, ReturnCode::TOO_LONG, delivery.buffer.len());
                        target.pdc.store_response(request.psn, response);
                    }
                }
                Err(Refusal::Unsupported(code)) => {
                    target.pdc.store_response(request.psn, respond(header, code, 0));
                    if header.request_length > payload.len() {
                        target.refuse_rest(&self.config.pdc, header.msg_id, request.psn);
                    }
                }
                Err(Refusal::Busy(code)) => {
                    self.refuse(now, packet, request, code, 0);
                    return false;
                }
                Err(Refusal::Malformed(why)) => {
                    self.ignore(now, packet, why);
                    self.refuse(now, packet, request, NackCode::UNEXP_EVENT, 0);
                    return false;
                }
            },
            Ses::None => {}
            _ => {
                self.ignore(now, packet, "SES header not implemented");
                self.refuse(now, packet, request, NackCode::UNEXP_EVENT, 0);
                return false;
            }
        }
        let bytes = payload.len() + self.config.overhead;
        let answered = target.pdc.response(request.psn).is_some();
        let syn = matches!(request.destination, Destination::Syn { .. });
        let soon = request.ack_request || packet.net.ecn || syn || answered;
        let due = target.pdc.accept(now, request.psn, bytes, soon);
        let ecn = packet.net.ecn;
        self.events
            .emit(now, Event::DataReceived { peer: packet.net.src, pdc: local, psn: request.psn, ecn });
        if self.granter.is_some() {
            self.note_arrival(now, Some(key), packet, request, bytes, false);
        }
        if due {
            self.acknowledge(now, key, packet, Trigger::Psn(request.psn), request.psn, request.retx);
        }
        if let Some(delivery) = completed {
            self.complete_receive(delivery);
        }
        true
    }

    /// Tells the credit scheduler about a packet. `key` is its PDC, if that is open.
    fn note_arrival(
        &mut self,
        now: Time,
        key: Option<Key>,
        packet: &Packet,
        request: &Request,
        bytes: u32,
        trimmed: bool,
    ) {
        let (Some(granter), Some(cc)) = (&mut self.granter, &request.cc) else { return };
        let name = (packet.net.src, cc.ccc_id);
        if let Some(target) = key.and_then(|key| self.targets.table.get_mut(key))
            && target.ccc_id.is_none()
        {
            target.ccc_id = Some(cc.ccc_id);
            granter.join(now, name, request.spdcid);
        }
        let ecn = packet.net.ecn;
        let bytes = u64::from(bytes);
        let sample = DataSample { bytes, scheduled: true, ecn, trimmed, congested_sender: false };
        granter.on_data(now, name, request.spdcid, cc.credit_target, &sample);
    }

    /// Only the header has arrived: ask for the packet again. Nothing else changes (UET trimming rules).
    #[inline(never)]
    fn on_trimmed(&mut self, now: Time, packet: &Packet, request: &Request) {
        self.events.emit(now, Event::TrimmedReceived { peer: packet.net.src, psn: request.psn });
        let known = self.targets.by_origin.get(&(packet.net.src, request.spdcid)).copied();
        let key = known.filter(|&key| self.is_target_of(key, request));
        if let Some(key) = key
            && self.targets.table.get(key).is_some_and(|t| t.pdc.classify(request.psn) == Arrival::Duplicate)
        {
            return self.acknowledge(now, key, packet, Trigger::Psn(request.psn), request.psn, request.retx);
        }
        if key.is_none() && self.targets.is_late((packet.net.src, request.spdcid), request.psn) {
            return self.ignore(now, packet, "late copy of a packet of a closed PDC");
        }
        self.refuse(now, packet, request, trim_code(packet.net.class), 0);
        let bytes = packet.payload_len.saturating_add(self.config.overhead);
        self.note_arrival(now, key, packet, request, bytes, true);
    }

    fn is_target_of(&self, key: Key, request: &Request) -> bool {
        self.targets.table.get(key).is_some_and(|target| match request.destination {
            Destination::Pdc(id) => target.pdc.id == id,
            Destination::Syn { psn_offset, .. } => {
                target.pdc.start_psn == request.psn.minus(u32::from(psn_offset))
            }
        })
    }

    /// A ROD packet that is not the next one.
    #[inline(never)]
    fn on_early(&mut self, now: Time, key: Key, packet: &Packet, request: &Request, payload: Payload<'_>) {
        let Some(target) = self.targets.table.get_mut(key) else { return };
        let expected = target.pdc.expected();
        if self.config.pdc.rod_receive == RodReceive::Reorder
            && self.keep_early(key, packet, request.psn, payload)
        {
            return;
        }
        self.refuse(now, packet, request, NackCode::ROD_OOO, expected.0);
    }

    /// Keeps a ROD packet until its turn comes. False if there is no room for it.
    fn keep_early(&mut self, key: Key, packet: &Packet, psn: Psn, payload: Payload<'_>) -> bool {
        let limits = &self.config.limits;
        let taken = self.targets.holdings(packet.net.src).early_bytes;
        let Some(target) = self.targets.table.get_mut(key) else { return false };
        let at = target.early.partition_point(|early| early.psn.is_before(psn));
        if target.early.get(at).is_some_and(|early| early.psn == psn) {
            return true;
        }
        let len = match payload {
            Payload::Bytes(_) | Payload::Region(_) => payload.len() as usize,
            Payload::Virtual(_) => 0,
        };
        let cost = (size_of::<Early>() + len) as u64;
        if target.early.len() >= limits.reorder_packets || taken + cost > limits.unexpected_bytes_per_peer {
            return false;
        }
        let bytes: Box<[u8]> = match payload {
            Payload::Bytes(bytes) => bytes.into(),
            Payload::Region(bytes) => {
                let mut copy = vec![0; len].into_boxed_slice();
                bytes.copy_to(&mut copy);
                copy
            }
            Payload::Virtual(_) => Box::default(),
        };
        target.early.insert(at, Early { psn, packet: *packet, bytes });
        self.targets.charge(packet.net.src, |holdings| holdings.early_bytes += cost);
        true
    }

    /// Delivers the kept ROD packets whose turn has come.
    #[inline(never)]
    fn deliver_early(&mut self, now: Time, key: Key) {
        while let Some(target) = self.targets.table.get_mut(key)
            && target.early.front().is_some_and(|early| early.psn == target.pdc.expected())
            && let Some(early) = target.early.pop_front()
        {
            let cost = early.cost();
            let Early { packet, bytes, .. } = early;
            self.targets.charge(packet.net.src, |holdings| holdings.early_bytes -= cost);
            let Pds::Request(request) = packet.pds else { return };
            let payload = match bytes.len() as u32 {
                len if len == packet.payload_len => Payload::Bytes(&bytes),
                _ => Payload::Virtual(packet.payload_len),
            };
            if !self.deliver(now, key, &packet, &request, payload) {
                return;
            }
        }
    }

    pub(super) fn on_control(&mut self, now: Time, packet: &Packet, control: &Control) {
        match control.kind {
            ControlKind::Credit => {
                if let Destination::Pdc(id) = control.destination {
                    self.on_credit(now, packet, id, control.payload & 0xff_ffff);
                }
            }
            ControlKind::CloseRequest => {
                if let Destination::Pdc(id) = control.destination {
                    self.on_close_request(now, packet, id);
                }
            }
            ControlKind::CreditRequest => {
                // The PDC need not be open: all its packets so far may have been trimmed.
                if self.targets.is_late((packet.net.src, control.spdcid), control.psn) {
                    return self.ignore(now, packet, "late copy of a packet of a closed PDC");
                }
                if let Some(granter) = &mut self.granter {
                    let name = (packet.net.src, control.probe_opaque as u8);
                    granter.on_request(now, name, control.spdcid, control.payload & 0xff_ffff);
                }
            }
            _ => self.on_target_control(now, packet, control),
        }
    }

    /// Control packets from an initiator to its target. A probe, and any of these, cannot create a PDC.
    fn on_target_control(&mut self, now: Time, packet: &Packet, control: &Control) {
        let key = match control.destination {
            Destination::Pdc(id) => self.targets.find(id).map(|(key, _)| key),
            Destination::Syn { .. } => self.targets.by_origin.get(&(packet.net.src, control.spdcid)).copied(),
        };
        let belongs =
            |target: &&mut Target| target.pdc.peer == packet.net.src && target.pdc.peer_id == control.spdcid;
        let Some(target) = key.and_then(|key| self.targets.table.get_mut(key)).filter(belongs) else {
            if control.kind == ControlKind::CloseCommand || control.ack_request {
                let code = NackCode::INV_DPDCID;
                self.push_nack(now, packet, code, control.psn, control.spdcid, PdcId(0), control.retx, 0);
            }
            return;
        };
        let Some(key) = key else { return };
        target.heard(now);
        match control.kind {
            ControlKind::AckRequest => match target.pdc.classify(control.psn) {
                Arrival::Duplicate => {
                    let psn = control.psn;
                    self.acknowledge(now, key, packet, Trigger::Psn(psn), psn, control.retx);
                }
                _ => {
                    let (id, psn) = (target.pdc.id, control.psn);
                    let code = NackCode::PKT_NOT_RCVD;
                    self.push_nack(now, packet, code, psn, control.spdcid, id, control.retx, 0);
                }
            },
            ControlKind::Probe => {
                let around = Psn(control.payload).plus(63);
                self.acknowledge(now, key, packet, Trigger::Probe(control.probe_opaque), around, false);
            }
            ControlKind::ClearCommand => target.pdc.clear(Psn(control.payload)),
            ControlKind::CloseCommand => self.close_target(now, key, packet, control),
            _ => {}
        }
    }

    /// CLOSE_CMD: acknowledge, then forget; a late copy finds the PDC gone.
    fn close_target(&mut self, now: Time, key: Key, packet: &Packet, control: &Control) {
        let Some(target) = self.targets.table.get_mut(key) else { return };
        if control.psn != target.pdc.expected() {
            // The initiator closes only after everything is acknowledged: this is a stray.
            return self.ignore(now, packet, "CLOSE_CMD before the end");
        }
        target.pdc.accept(now, control.psn, 0, true);
        self.acknowledge(now, key, packet, Trigger::Psn(control.psn), control.psn, control.retx);
        self.remove_target(now, key);
    }

    /// Forgets a PDC that a peer has opened; messages that are incomplete will stay so.
    pub(super) fn remove_target(&mut self, now: Time, key: Key) {
        let Some(target) = self.targets.remove(key) else { return };
        let pdc = &target.pdc;
        let origin = (pdc.peer, pdc.peer_id);
        let until = now + self.config.time_wait;
        let (start, end) = pdc.used();
        let closed = Closed { start, end, until };
        let former = self.targets.closed.entry(origin).or_insert_with(|| Vec::with_capacity(1));
        if former.len() == REMEMBERED {
            former.remove(0);
        }
        former.push(closed);
        if self.targets.closing_order.is_empty() {
            self.wheel.insert(until, TimerKey::Closed);
        }
        self.targets.closing_order.push_back((until, origin));
        self.targets.charge(origin.0, |holdings| holdings.remembered += 1);
        if let (Some(granter), Some(ccc_id)) = (&mut self.granter, target.ccc_id) {
            granter.leave(now, (pdc.peer, ccc_id), pdc.peer_id);
        }
        for delivery in self.receives.abandon(pdc.id) {
            self.complete_receive(delivery);
        }
        if !self.processes.is_empty() {
            let deliveries = self.processes.values_mut().flat_map(|receives| receives.abandon(pdc.id));
            for delivery in deliveries.collect::<Vec<_>>() {
                self.complete_receive(delivery);
            }
        }
    }

    /// The target's PDC for a request, created if this is a SYN; else the NACK code to answer with,
    /// or nothing where silence is right.
    #[inline]
    fn target_for(&mut self, now: Time, packet: &Packet, request: &Request) -> Result<Key, Option<NackCode>> {
        let origin = (packet.net.src, request.spdcid);
        let id = match request.destination {
            Destination::Pdc(id) => id,
            Destination::Syn { psn_offset, .. } => {
                return self.target_of_syn(now, origin, request, request.psn.minus(u32::from(psn_offset)));
            }
        };
        let Some((key, target)) = self.targets.find(id) else {
            return Err(Some(NackCode::INV_DPDCID));
        };
        if (target.pdc.peer, target.pdc.peer_id) != origin {
            return Err(Some(NackCode::PDC_HDR_MISMATCH));
        }
        if target.pdc.mode != request.mode {
            return Err(Some(NackCode::PDC_MODE_MISMATCH));
        }
        Ok(key)
    }

    /// [`Fep::target_for`] for a request that opens a PDC whose first PSN is `start`, or a copy of one that did.
    #[inline(never)]
    fn target_of_syn(
        &mut self,
        now: Time,
        origin: Origin,
        request: &Request,
        start: Psn,
    ) -> Result<Key, Option<NackCode>> {
        // Before anything else: a late copy must not take the place of a PDC that is open.
        if self.targets.is_late(origin, request.psn) {
            return Err(None);
        }
        let Some(&key) = self.targets.by_origin.get(&origin) else {
            return self.create_target(now, origin, request.mode, start);
        };
        let Some(target) = self.targets.table.get(key) else { return Err(None) };
        let apart = start.distance(target.pdc.start_psn).unsigned_abs();
        match apart {
            0 if target.pdc.mode != request.mode => Err(Some(NackCode::PDC_MODE_MISMATCH)),
            0 => Ok(key),
            // The initiator starts new PDCs at least 2¹⁶ away from its last: it has lost the old one.
            _ if start.distance(target.pdc.expected()).unsigned_abs() >= 1 << 16 && apart >= 1 << 16 => {
                self.remove_target(now, key);
                self.create_target(now, origin, request.mode, start)
            }
            _ => Err(Some(NackCode::INVALID_SYN)),
        }
    }

    fn create_target(
        &mut self,
        now: Time,
        origin: Origin,
        mode: DeliveryMode,
        start: Psn,
    ) -> Result<Key, Option<NackCode>> {
        let limits = &self.config.limits;
        let of_peer = self.targets.holdings(origin.0);
        // Each open PDC will have to be remembered.
        let to_remember = of_peer.open + of_peer.remembered;
        if of_peer.open >= limits.pdcs_per_peer
            || to_remember >= limits.closed_pdcs_per_peer
            || self.targets.table.len() >= limits.pdcs.min(usize::from(u16::MAX))
        {
            return Err(Some(NackCode::NO_PDC_AVAIL));
        }
        self.targets.charge(origin.0, |holdings| holdings.open += 1);
        let config = &self.config.pdc;
        let key = self.targets.table.insert_with(|key| Target {
            pdc: RxPdc::new(config, origin.0, origin.1, PdcId((key.index + 1) as u16), mode, start, now),
            ccc_id: None,
            early: VecDeque::new(),
            asked: false,
            refused: None,
        });
        self.targets.by_origin.insert(origin, key);
        self.wheel.insert(now + self.config.idle_timeout, TimerKey::Target(key));
        Ok(key)
    }

    /// Queues an acknowledgement, with the response kept for the packet that triggers it.
    fn acknowledge(
        &mut self,
        now: Time,
        key: Key,
        packet: &Packet,
        trigger: Trigger,
        around: Psn,
        retx: bool,
    ) {
        let Some(target) = self.targets.table.get_mut(key) else { return };
        let ack = target.pdc.acknowledge(trigger, around, packet.net.ecn, retx);
        let response = match trigger {
            Trigger::Psn(psn) => target.pdc.response(psn).copied(),
            Trigger::Probe(_) => None,
        };
        let (ses, next) = match response {
            Some(response) => (Ses::Response(response), NextHeader::Response),
            None => (Ses::None, NextHeader::None),
        };
        let ack = Ack { next, ..ack };
        self.events.emit(now, Event::AckSent { peer: packet.net.src, cack: ack.cack_psn });
        // The entropy is echoed: the initiator learns how the path of the packet fares.
        let net = network(self.addr, packet.net.src, packet.net.entropy, Class::Control);
        self.push_control(Packet { net, payload_len: 0, pds: Pds::Ack(ack), ses });
    }

    #[inline(never)]
    fn refuse(&mut self, now: Time, packet: &Packet, request: &Request, code: NackCode, payload: u32) {
        let local = self.targets.by_origin.get(&(packet.net.src, request.spdcid));
        let local = local.and_then(|&key| self.targets.table.get(key)).map_or(PdcId(0), |t| t.pdc.id);
        self.push_nack(now, packet, code, request.psn, request.spdcid, local, request.retx, payload);
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of a NACK, each from another place")]
    fn push_nack(
        &mut self,
        now: Time,
        packet: &Packet,
        code: NackCode,
        psn: Psn,
        dpdcid: PdcId,
        spdcid: PdcId,
        retx: bool,
        payload: u32,
    ) {
        let nack = Nack {
            next: NextHeader::None,
            ecn: packet.net.ecn,
            retx,
            rudi: false,
            code,
            vendor_code: 0,
            psn,
            spdcid,
            dpdcid,
            payload,
            ccx: None,
        };
        self.events.emit(now, Event::NackSent { peer: packet.net.src, psn, code });
        let net = network(self.addr, packet.net.src, packet.net.entropy, Class::Control);
        self.push_control(Packet { net, payload_len: 0, pds: Pds::Nack(nack), ses: Ses::None });
    }

    /// Asks the initiator of a silent PDC to close it.
    pub(super) fn request_close(&mut self, now: Time, key: Key) {
        let Some(target) = self.targets.table.get_mut(key) else { return };
        target.asked = true;
        let pdc = &target.pdc;
        let control = Control {
            kind: ControlKind::CloseRequest,
            rod: pdc.mode == DeliveryMode::Rod,
            retx: false,
            ack_request: false,
            probe_opaque: 0,
            psn: pdc.cack(),
            spdcid: pdc.id,
            destination: Destination::Pdc(pdc.peer_id),
            payload: 0,
        };
        let net = network(self.addr, pdc.peer, crate::spray::Entropy(0), Class::Control);
        self.events.emit(now, Event::ControlSent { peer: net.dst, kind: ControlKind::CloseRequest });
        self.push_control(control_packet(net, control));
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

fn trim_code(class: Class) -> NackCode {
    match class {
        Class::TrimmedLastHop => NackCode::TRIMMED_LASTHOP,
        _ => NackCode::TRIMMED,
    }
}
