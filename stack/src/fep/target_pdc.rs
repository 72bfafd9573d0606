//! The PDCs that peers have opened here, and what is remembered of those that are closed.

use std::collections::VecDeque;

use weft_cc::{Span, Time};

use super::Map;
use super::acquaintance::Proof;
use super::config::Limits;
use super::core::Core;
use super::owed::OwedAck;
use super::pdcid::{self, DrawnIds};
use super::refused::Refused;
use super::reply::{Replies, Reply};
use crate::event::Event;
use crate::heap;
use crate::packet::{Addr, Class, Network, Packet, Payload};
use crate::pdc::{Answer, PdcConfig, RxPdc, Trigger};
use crate::rng::Rng;
use crate::ses::Order;
use crate::spray::Entropy;
use crate::table::{Key, Table};
use crate::wire::pds::{
    Ack, AckCc, AckRequest, CcState, Control, ControlKind, DelayEcho, DeliveryMode, Destination, Nack,
    NackCode, NextHeader, NsccState, PdcId, Pds, Psn, Request, VendorFlags,
};
use crate::wire::ses::Ses;

/// Names an initiator's PDC from the target's side.
pub(super) type Origin = (Addr, PdcId);

/// One PDC that a peer has opened.
// In order of use: every packet needs the first two cache lines of its slot.
#[repr(C)]
pub(super) struct TargetPdc {
    pub(super) rx: RxPdc,
    /// How often the initiator has been asked whether it is still there, since it was last heard; while the PDC is half-open,
    /// since it was opened.
    pub(super) asked: u8,
    /// Whether its initiator has named it by the PDCID that it got from here. Until then it is half-open.
    proof: Proof,
    /// The place that its messages have reached in their order.
    pub(super) order: Order,
    /// Messages whose rest is refused; `None` if there never were any.
    refused: Option<Box<Refused>>,
    /// The initiator's congestion context, once a request has told.
    pub(super) ccc_id: Option<u8>,
    /// ROD packets that arrived early, in order of PSNs.
    pub(super) early: VecDeque<Early>,
    /// When the initiator was last asked.
    asked_at: Option<Time>,
}

/// What to do about a SYN that asks for another PDC under the name of one that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stray {
    /// The open PDC's initiator has been asked just now, or still has time to answer.
    Ignore,
    /// The open PDC's initiator is gone: the other PDC takes its place.
    Believe,
}

/// Questions that an initiator leaves unanswered before it is taken for gone.
const QUESTIONS: u8 = 4;

impl TargetPdc {
    pub(super) fn new(
        config: &PdcConfig,
        origin: Origin,
        id: PdcId,
        mode: DeliveryMode,
        start: Psn,
        now: Time,
    ) -> TargetPdc {
        TargetPdc {
            rx: RxPdc::new(config, origin.0, origin.1, id, mode, start, now),
            asked: 0,
            proof: Proof::None,
            asked_at: None,
            order: Order::default(),
            refused: None,
            ccc_id: None,
            early: VecDeque::new(),
        }
    }

    /// The initiator's address and its PDCID.
    pub(super) fn origin(&self) -> Origin {
        (self.rx.peer, self.rx.peer_id)
    }

    /// Whether a request of the same origin is for this PDC, and not for one before or after it.
    pub(super) fn is_named_by(&self, request: &Request) -> bool {
        match request.destination {
            Destination::Pdc(id) => self.rx.id == id,
            Destination::Syn { psn_offset, .. } => {
                self.rx.start_psn == request.psn.minus(u32::from(psn_offset))
            }
        }
    }

    /// The initiator has named the PDC by the PDCID that it got from here.
    #[inline]
    pub(super) fn heard_by_name(
        &mut self,
        core: &mut Core,
        now: Time,
        half_open: &mut Option<Box<HalfOpen>>,
        usage: &mut PeerUsage,
    ) {
        if self.is_half_open() {
            note_proven(core, half_open, usage, self);
        }
        self.rx.last_heard = now;
        self.asked = 0;
    }

    /// The initiator is there, even if nothing comes of its packet; or, if the PDC is half-open, somebody in its name.
    #[inline]
    pub(super) fn heard(&mut self, now: Time) {
        self.rx.last_heard = now;
        if !self.is_half_open() {
            self.asked = 0;
        }
    }

    #[inline]
    fn is_half_open(&self) -> bool {
        self.proof != Proof::Given
    }

    /// What its initiator has shown.
    pub(super) fn proof(&self) -> Proof {
        self.proof
    }

    /// Whether packet `psn` belongs to a message `msg_id` whose rest is refused.
    #[inline]
    pub(super) fn has_refused(&self, msg_id: u16, psn: Psn) -> bool {
        self.refused.as_deref().is_some_and(|refused| refused.holds(msg_id, psn))
    }

    /// Refuses the rest of the message that packet `psn` belongs to.
    #[cold]
    pub(super) fn refuse_rest(&mut self, msg_id: u16, psn: Psn) {
        let mp_range = self.rx.mp_range();
        let refused = self.refused.get_or_insert_with(|| Box::new(Refused::new(mp_range)));
        refused.add(msg_id, psn, self.rx.expected());
    }

    /// Queues an acknowledgement that answers `packet`, with the response kept for the packet that triggers it.
    pub(super) fn acknowledge(
        &mut self,
        core: &mut Core,
        now: Time,
        packet: &Packet,
        trigger: Trigger,
        around: Psn,
        retx: bool,
    ) {
        let answer = match trigger {
            Trigger::Psn(psn) => self.rx.response(psn).map(|stored| &stored.answer),
            Trigger::Probe(_) => None,
        };
        let cause = Cause::of(packet, retx);
        let (ses, next) = match answer {
            Some(Answer::Memory { .. } | Answer::Fetched { .. }) => {
                return self.queue_reply(core, now, packet, around, cause);
            }
            Some(Answer::Plain(response)) => (Ses::Response(*response), NextHeader::Response),
            None => (Ses::None, NextHeader::None),
        };
        let ack = self.build_ack(trigger, around, cause, core.waited);
        send_ack(core, now, packet.net, Ack { next, ..ack }, ses);
    }

    /// Queues the acknowledgement that `owed` stands for.
    pub(super) fn acknowledge_owed(&mut self, core: &mut Core, now: Time, owed: &OwedAck) {
        let ack = self.build_ack(Trigger::Psn(owed.psn), owed.psn, owed.cause, owed.waited);
        send_ack(core, now, owed.net, ack, Ses::None);
    }

    /// The acknowledgement of a packet that has waited in this host for so long; zero if nobody measured it.
    // Always inlined: one of its two callers sends nearly all acknowledgements.
    #[inline(always)]
    pub(super) fn build_ack(&mut self, trigger: Trigger, around: Psn, cause: Cause, waited: Span) -> Ack {
        let mut ack = self.rx.acknowledge(trigger, around, cause.ecn, cause.retx);
        if let Some(AckCc { state: CcState::Nscc(state), .. }) = &mut ack.cc {
            state.service_time = NsccState::service_time_of(waited);
        }
        if let Some(hops) = cause.echo {
            echo(&mut ack, hops, waited);
        }
        ack
    }

    /// Queues the response with data to packet `psn`, as the answer to `packet`.
    #[inline(never)]
    fn queue_reply(&self, core: &mut Core, now: Time, packet: &Packet, psn: Psn, cause: Cause) {
        let (pdc, net) = (self.rx.id, packet.net);
        core.replies.push(Reply { pdc, psn, net, cause, at: now, waited: core.waited });
    }

    /// The initiator has lost the data of the response to packet `psn`: it is sent again.
    pub(super) fn repeat_response(
        &mut self,
        core: &mut Core,
        now: Time,
        packet: &Packet,
        psn: Psn,
        retx: bool,
    ) {
        if self.rx.response(psn).is_some() {
            self.acknowledge(core, now, packet, Trigger::Psn(psn), psn, retx);
        }
    }

    /// A SYN has arrived in the name of this PDC's initiator, for another PDC. Anybody can have sent it, so it proves
    /// nothing; but its sender may have been started anew. The initiator is asked, at most once in a retransmission
    /// timeout, with an acknowledgement as in RFC 5961 §4.2: one that asks for CLEAR, which an initiator that has the PDC
    /// answers with CLEAR_CMD, and one that has not with INV_DPDCID.
    #[cold]
    pub(super) fn on_stray_syn(&mut self, core: &mut Core, now: Time) -> Stray {
        let rto = core.zone(core.zone_of(self.rx.peer)).pdc.rto_init;
        if self.asked_at.is_some_and(|at| now.is_before(at + rto)) {
            return Stray::Ignore;
        }
        if self.asked >= QUESTIONS {
            return Stray::Believe;
        }
        self.ask(core, now);
        Stray::Ignore
    }

    /// Asks the initiator whether it has the PDC.
    #[cold]
    pub(super) fn ask(&mut self, core: &mut Core, now: Time) {
        self.note_asked(now);
        let cack = self.rx.cack();
        // An answer to no transmission in particular: with RETX, no RTT is taken of it.
        let ack = self.rx.acknowledge(Trigger::Psn(cack), cack, false, true);
        let ack = Ack { request: AckRequest::Clear, ..ack };
        let peer = self.rx.peer;
        core.events.emit(now, Event::AckSent { peer, pdc: self.rx.id, cack });
        let net = core.network(peer, Entropy(0), Class::Control);
        core.push_control(now, Packet { net, payload_len: 0, pds: Pds::Ack(ack), ses: Ses::None });
    }

    /// Whether NACK `nack` of `peer` denies that there is this PDC at its initiator: it answers a question, and knows
    /// the PSN that this named.
    pub(super) fn is_denied(&self, peer: Addr, nack: &Nack) -> bool {
        self.asked > 0 && self.origin() == (peer, nack.spdcid) && nack.psn == self.rx.cack()
    }

    fn note_asked(&mut self, now: Time) {
        self.asked = self.asked.saturating_add(1);
        self.asked_at = Some(now);
    }

    /// When to ask the initiator to close the PDC if it stays silent: after `idle`, then after `rto`, doubled each time, up
    /// to a quarter of `idle`.
    pub(super) fn ask_at(&self, idle: Span, rto: Span) -> Time {
        let first = self.rx.last_heard + idle;
        let Some(asked_at) = self.asked_at.filter(|_| self.asked > 0) else { return first };
        let doublings = u32::from(self.asked - 1).min(32);
        let rest = rto.times(1 << doublings).min(Span::from_ps(idle.as_ps() / 4));
        (asked_at + rest).latest(first)
    }

    /// Asks the initiator to close the PDC, which has been silent.
    pub(super) fn request_close(&mut self, core: &mut Core, now: Time) {
        self.note_asked(now);
        let control = Control {
            kind: ControlKind::CloseRequest,
            rod: false,
            retx: false,
            ack_request: false,
            probe_opaque: 0,
            psn: self.rx.cack(),
            spdcid: self.rx.id,
            destination: Destination::Pdc(self.rx.peer_id),
            payload: 0,
        };
        core.send_control(now, self.rx.peer, Entropy(0), control);
    }

    /// Keeps a ROD packet until its turn comes. False if there is no room for it.
    pub(super) fn keep_early(
        &mut self,
        limits: &Limits,
        usage: &mut PeerUsage,
        packet: &Packet,
        psn: Psn,
        payload: Payload<'_>,
    ) -> bool {
        let at = self.early.partition_point(|early| early.psn.is_before(psn));
        if self.early.get(at).is_some_and(|early| early.psn == psn) {
            return true;
        }
        let len = match payload {
            Payload::Bytes(_) | Payload::Region(_) => payload.len() as usize,
            Payload::Virtual(_) => 0,
        };
        let cost = (size_of::<Early>() + len) as u64;
        if self.early.len() >= limits.reorder_packets || !usage.may_keep(limits, packet.net.src, cost) {
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
        self.early.insert(at, Early { psn, packet: *packet, bytes });
        usage.change(packet.net.src, |used| used.early_bytes += cost);
        true
    }

    /// The kept ROD packet whose turn has come, if there is one.
    pub(super) fn next_early(&mut self, usage: &mut PeerUsage) -> Option<Early> {
        let expected = self.rx.expected();
        self.early.front().filter(|early| early.psn == expected)?;
        let early = self.early.pop_front()?;
        usage.change(early.packet.net.src, |used| used.early_bytes -= early.cost());
        Some(early)
    }

    /// Bytes of heap held.
    fn heap_bytes(&self) -> u64 {
        let early = self.early.iter().map(|early| early.bytes.len() as u64);
        let refused = self.refused.as_deref();
        self.rx.heap_bytes()
            + self.order.heap_bytes()
            + heap::of_deque(&self.early)
            + early.sum::<u64>()
            + refused.map_or(0, |refused| size_of_val(refused) as u64 + refused.heap_bytes())
    }
}

/// Queues `ack`, which answers a packet with the network header `net`.
#[inline(always)]
fn send_ack(core: &mut Core, now: Time, net: Network, ack: Ack, ses: Ses) {
    core.events.emit(now, Event::AckSent { peer: net.src, pdc: ack.spdcid, cack: ack.cack_psn });
    // The entropy is echoed: the initiator learns how the path of the packet fares.
    let net = core.network(net.src, net.entropy, Class::Control);
    core.push_control(now, Packet { net, payload_len: 0, pds: Pds::Ack(ack), ses });
}

/// What an acknowledgement says of the packet that it answers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cause {
    /// It carried a congestion mark.
    ecn: bool,
    /// It was a retransmission.
    pub(super) retx: bool,
    /// It asks for an echo, and has passed so many switches.
    echo: Option<u8>,
}

impl Cause {
    /// Of a packet whose acknowledgement may stand for those of others beside it; `None` if it says what theirs do not.
    #[inline]
    pub(super) fn plain(packet: &Packet, request: &Request) -> Option<Cause> {
        let cause = Cause::of(packet, request.retx);
        (cause.echo.is_some() && !cause.ecn && !cause.retx).then_some(cause)
    }

    #[inline]
    fn of(packet: &Packet, retx: bool) -> Cause {
        let asks =
            matches!(&packet.pds, Pds::Request(request) if request.vendor.has(VendorFlags::DELAY_ECHO));
        Cause { ecn: packet.net.ecn, retx, echo: asks.then_some(packet.net.hops) }
    }
}

/// Turns `ack` into the acknowledgement of a packet that asked for an echo.
#[cold]
fn echo(ack: &mut Ack, hops: u8, waited: Span) {
    if let Some(cc) = &mut ack.cc
        && let CcState::Nscc(state) = &cc.state
    {
        // As for `service_time`, no time at all says that nobody measured it.
        let queued = (waited > Span::ZERO).then_some(waited);
        cc.state = CcState::DelayEcho(DelayEcho::of(state, hops, queued));
    }
}

/// A ROD packet that arrived early.
pub(super) struct Early {
    psn: Psn,
    pub(super) packet: Packet,
    bytes: Box<[u8]>,
}

impl Early {
    /// Bytes that it takes.
    fn cost(&self) -> u64 {
        (size_of::<Early>() + self.bytes.len()) as u64
    }

    /// Its payload as it arrived.
    pub(super) fn payload(&self) -> Payload<'_> {
        match self.bytes.len() as u32 {
            len if len == self.packet.payload_len => Payload::Bytes(&self.bytes),
            _ => Payload::Virtual(self.packet.payload_len),
        }
    }
}

/// All PDCs that peers have opened.
// In order of use: most packets need the table only.
#[derive(Default)]
#[repr(C)]
pub(super) struct TargetPdcs {
    pub(super) table: Table<TargetPdc>,
    pub(super) by_origin: Map<Origin, Key>,
    pub(super) usage: PeerUsage,
    pub(super) closed: ClosedPdcs,
    /// `None` until there is a PDC.
    pub(super) half_open: Option<Box<HalfOpen>>,
}

impl TargetPdcs {
    /// The PDC with PDCID `id`.
    pub(super) fn find(&mut self, id: PdcId) -> Option<(Key, &mut TargetPdc)> {
        let slot = self.slot(id)?;
        self.table.at_mut(slot)
    }

    /// The slot of the PDC with PDCID `id`.
    #[inline]
    pub(super) fn slot(&self, id: PdcId) -> Option<u32> {
        slot_of(&self.table, &self.half_open, id)
    }

    /// The PDC that `origin` has open here.
    pub(super) fn of_origin(&mut self, origin: Origin) -> Option<(Key, &mut TargetPdc)> {
        let &key = self.by_origin.get(&origin)?;
        self.table.get_mut(key).map(|pdc| (key, pdc))
    }

    /// Opens a PDC, which [`TargetPdcs::name`] then gives its PDCID. Its initiator is to be asked whether it is there if there
    /// are many half-open ones, or the caller is `wary` of the peer.
    ///
    /// # Errors
    /// The NACK code to answer with: there are too many.
    #[expect(clippy::too_many_arguments, reason = "the parts of the request that opens it")]
    pub(super) fn open(
        &mut self,
        pdc: &PdcConfig,
        limits: &Limits,
        wary: bool,
        now: Time,
        origin: Origin,
        mode: DeliveryMode,
        start: Psn,
    ) -> Result<Key, NackCode> {
        if self.is_full(limits) || self.usage.is_at_limit(limits, origin.0) {
            return Err(NackCode::NO_PDC_AVAIL);
        }
        let used = self.usage.of(origin.0);
        self.usage.change(origin.0, |used| {
            used.open += 1;
            used.half_open += 1;
        });
        self.half_open.get_or_insert_default().count += 1;
        let asks = wary
            || used.half_open >= limits.half_open_pdcs_per_peer / 2
            || self.half_open_count() > limits.half_open_pdcs / 2;
        let proof = if asks { Proof::Asked } else { Proof::None };
        let key = self.table.insert_with(|key| TargetPdc {
            proof,
            ..TargetPdc::new(pdc, origin, pdcid::of_slot(key.index), mode, start, now)
        });
        self.by_origin.insert(origin, key);
        if asks {
            self.half_open.get_or_insert_default().suspect(&self.table, key);
        }
        Ok(key)
    }

    /// Gives PDC `key`, which is new, its PDCID.
    pub(super) fn name(&mut self, rng: &mut Rng, key: Key) {
        let TargetPdcs { table, half_open, .. } = self;
        let in_slot = |slot| slot != key.index && has_id_of_slot(table, slot);
        let id = half_open.get_or_insert_default().drawn.choose(rng, key, table.len(), in_slot);
        if let Some(pdc) = table.get_mut(key) {
            pdc.rx.id = id;
        }
    }

    /// Whether there can be no further PDC of any peer.
    pub(super) fn is_full(&self, limits: &Limits) -> bool {
        self.table.len() >= limits.most_pdcs() || self.half_open_count() >= limits.half_open_pdcs
    }

    fn half_open_count(&self) -> usize {
        self.half_open.as_ref().map_or(0, |half_open| half_open.count as usize)
    }

    /// Whether PDC `key`, if it has just been opened, is one whose initiator is to be asked.
    pub(super) fn is_suspect(&self, key: Key) -> bool {
        self.half_open.as_ref().is_some_and(|half_open| half_open.suspects.back() == Some(&key))
    }

    /// Takes out the half-open PDC that has been suspect for longest.
    #[cold]
    pub(super) fn take_oldest_suspect(&mut self) -> Option<Key> {
        let (suspects, table) = (&mut self.half_open.as_mut()?.suspects, &self.table);
        std::iter::from_fn(|| suspects.pop_front()).find(|&key| is_half_open(table, key))
    }

    /// Closes a PDC and remembers it for `time_wait`. Returns when to forget one again if none was remembered so far.
    pub(super) fn close(
        &mut self,
        key: Key,
        now: Time,
        time_wait: Span,
    ) -> Option<(TargetPdc, Option<Time>)> {
        let pdc = self.table.remove(key)?;
        let origin = pdc.origin();
        self.by_origin.remove(&origin);
        let early: u64 = pdc.early.iter().map(Early::cost).sum();
        let responses = pdc.rx.response_cost();
        let half_open = u32::from(pdc.is_half_open());
        if let Some(all) = &mut self.half_open {
            all.count -= half_open;
            all.drawn.release(pdc.rx.id);
        }
        self.usage.change(origin.0, |used| {
            used.open -= 1;
            used.half_open -= half_open;
            used.remembered += 1;
            used.early_bytes -= early;
            used.response_bytes -= responses;
        });
        let until = now + time_wait;
        let is_first = self.closed.remember(origin, pdc.rx.used(), until);
        Some((pdc, is_first.then_some(until)))
    }

    /// Forgets the closed PDCs whose time has passed. Returns when the next one is due.
    pub(super) fn forget_closed(&mut self, now: Time) -> Option<Time> {
        self.closed.forget(now, |peer| self.usage.change(peer, |used| used.remembered -= 1))
    }

    /// Bytes of heap held.
    pub(super) fn heap_bytes(&self) -> u64 {
        let pdcs = self.table.iter().map(|(_, pdc)| pdc.heap_bytes());
        self.table.heap_bytes()
            + heap::of_map(&self.by_origin)
            + heap::of_map(&self.usage.peers)
            + self.closed.heap_bytes()
            + self.half_open.as_deref().map_or(0, HalfOpen::heap_bytes)
            + pdcs.sum::<u64>()
    }
}

/// Half-open PDCs: those whose initiator has not shown that it gets what is sent to it. Anybody can open them with a
/// packet each, in the name of any host.
#[derive(Default)]
pub(super) struct HalfOpen {
    count: u32,
    /// PDCs that were opened while there were many, in order, whose initiators are asked whether they are there. Some
    /// have answered, or are gone.
    suspects: VecDeque<Key>,
    /// PDCIDs that are not the numbers of their slots.
    drawn: DrawnIds,
}

impl HalfOpen {
    /// PDC `key` of `table` has been opened while there are many.
    #[cold]
    fn suspect(&mut self, table: &Table<TargetPdc>, key: Key) {
        if self.suspects.len() > 64 + 2 * self.count as usize {
            self.suspects.retain(|&key| is_half_open(table, key));
        }
        self.suspects.push_back(key);
    }

    /// Bytes of heap held, its own included.
    fn heap_bytes(&self) -> u64 {
        size_of::<HalfOpen>() as u64 + heap::of_deque(&self.suspects) + self.drawn.heap_bytes()
    }
}

fn is_half_open(table: &Table<TargetPdc>, key: Key) -> bool {
    table.get(key).is_some_and(TargetPdc::is_half_open)
}

#[cold]
fn note_proven(
    core: &mut Core,
    half_open: &mut Option<Box<HalfOpen>>,
    usage: &mut PeerUsage,
    pdc: &mut TargetPdc,
) {
    core.note_proven(pdc.rx.peer, pdc.proof);
    pdc.proof = Proof::Given;
    if let Some(half_open) = half_open {
        half_open.count -= 1;
    }
    usage.change(pdc.rx.peer, |used| used.half_open -= 1);
}

/// Whether there is a PDC in `slot` whose PDCID is the number of the slot.
#[inline]
fn has_id_of_slot(table: &Table<TargetPdc>, slot: u32) -> bool {
    table.at(slot).is_some_and(|(_, pdc)| pdc.rx.id == pdcid::of_slot(slot))
}

/// The slot of the PDC with PDCID `id`.
#[inline]
fn slot_of(table: &Table<TargetPdc>, half_open: &Option<Box<HalfOpen>>, id: PdcId) -> Option<u32> {
    let slot = u32::from(id.0).checked_sub(1)?;
    if has_id_of_slot(table, slot) {
        return Some(slot);
    }
    half_open.as_ref()?.drawn.slot(id)
}

/// The PDC with PDCID `id` for a request of `origin`.
///
/// # Errors
/// The NACK code to answer with.
#[inline]
pub(super) fn established<'a>(
    table: &'a mut Table<TargetPdc>,
    half_open: &Option<Box<HalfOpen>>,
    id: PdcId,
    origin: Origin,
    mode: DeliveryMode,
) -> Result<&'a mut TargetPdc, NackCode> {
    let found = slot_of(table, half_open, id).and_then(|slot| table.at_mut(slot));
    let Some((_, pdc)) = found else { return Err(NackCode::INV_DPDCID) };
    if pdc.origin() != origin {
        return Err(NackCode::PDC_HDR_MISMATCH);
    }
    if pdc.rx.mode != mode {
        return Err(NackCode::PDC_MODE_MISMATCH);
    }
    Ok(pdc)
}

/// The resources that each peer uses here.
#[derive(Default)]
pub(super) struct PeerUsage {
    /// A peer that uses none has no entry. The bytes of all peers together are under `None`, because two more numbers here
    /// would move what follows to other cache lines.
    peers: Map<Option<Addr>, Usage>,
}

/// The resources that one peer uses here.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Usage {
    /// PDCs that are open, and those of them that are half-open.
    open: u32,
    half_open: u32,
    /// PDCs that are closed and remembered.
    remembered: u32,
    /// Bytes that its early ROD packets take.
    early_bytes: u64,
    /// Bytes that the responses stored for it count for.
    response_bytes: u64,
}

impl PeerUsage {
    fn of(&self, peer: Addr) -> Usage {
        self.peers.get(&Some(peer)).copied().unwrap_or_default()
    }

    /// The bytes of all peers; PDCs are not counted here.
    fn of_all(&self) -> Usage {
        self.peers.get(&None).copied().unwrap_or_default()
    }

    /// Whether closed PDCs of `peer` are remembered.
    pub(super) fn remembers(&self, peer: Addr) -> bool {
        self.of(peer).remembered > 0
    }

    /// Whether `peer` can open no further PDC.
    pub(super) fn is_at_limit(&self, limits: &Limits, peer: Addr) -> bool {
        let used = self.of(peer);
        // Each open PDC will have to be remembered.
        used.open >= limits.pdcs_per_peer
            || used.half_open >= limits.half_open_pdcs_per_peer
            || used.open + used.remembered >= limits.closed_pdcs_per_peer
    }

    /// Whether a response that counts for `cost` bytes may be stored for `peer`.
    pub(super) fn may_store(&self, limits: &Limits, peer: Addr, cost: u64) -> bool {
        let wanted = self.of(peer).response_bytes.saturating_add(cost);
        wanted <= limits.response_bytes_per_peer
            && leaves_as_much(limits.response_bytes, self.of_all().response_bytes, cost, wanted)
    }

    /// Whether an early ROD packet of `peer` that takes `cost` bytes may be kept.
    fn may_keep(&self, limits: &Limits, peer: Addr, cost: u64) -> bool {
        let wanted = self.of(peer).early_bytes.saturating_add(cost);
        wanted <= limits.unexpected_bytes_per_peer
            && leaves_as_much(limits.reorder_bytes, self.of_all().early_bytes, cost, wanted)
    }

    /// Stores `answer` to packet `psn` of `pdc`.
    pub(super) fn store(&mut self, pdc: &mut TargetPdc, psn: Psn, answer: Answer) {
        self.change(pdc.rx.peer, |used| used.response_bytes += answer.cost());
        pdc.rx.store_response(psn, answer);
    }

    /// The initiator of `pdc` has all responses up to `psn`: they are stored no more, and do not leave again.
    #[inline]
    pub(super) fn clear(&mut self, replies: &mut Replies, pdc: &mut TargetPdc, psn: Psn) {
        let freed = pdc.rx.clear(psn);
        if freed > 0 {
            replies.clear(pdc.rx.id, psn);
            self.change(pdc.rx.peer, |used| used.response_bytes -= freed);
        }
    }

    /// Checks that no peer, and not all of them together, have more than `limits` permit, and that nothing is counted that
    /// is not there; `open` is the number of PDCs.
    #[cfg(test)]
    pub(super) fn check(&self, limits: &Limits, open: usize) {
        let peers = || self.peers.iter().filter(|(peer, _)| peer.is_some()).map(|(_, usage)| usage);
        assert_eq!(peers().map(|used| used.open as usize).sum::<usize>(), open);
        assert!(open <= limits.most_pdcs());
        let (mut early, mut responses) = (0, 0);
        for used in peers() {
            assert!(used.half_open <= used.open && used.half_open <= limits.half_open_pdcs_per_peer);
            assert!(used.open <= limits.pdcs_per_peer);
            assert!(used.open + used.remembered <= limits.closed_pdcs_per_peer);
            early += used.early_bytes;
            responses += used.response_bytes;
        }
        assert_eq!((early, responses), (self.of_all().early_bytes, self.of_all().response_bytes));
        assert!(early <= limits.reorder_bytes);
    }

    fn change(&mut self, peer: Addr, change: impl FnOnce(&mut Usage)) {
        let usage = self.peers.entry(Some(peer)).or_default();
        let before = *usage;
        change(usage);
        let after = *usage;
        if after == Usage::default() {
            self.peers.remove(&Some(peer));
        }
        let bytes = |usage: Usage| (usage.early_bytes, usage.response_bytes);
        if bytes(before) != bytes(after) {
            let all = self.peers.entry(None).or_default();
            all.early_bytes = all.early_bytes - before.early_bytes + after.early_bytes;
            all.response_bytes = all.response_bytes - before.response_bytes + after.response_bytes;
            if *all == Usage::default() {
                self.peers.remove(&None);
            }
        }
    }
}

/// Whether a peer that takes `more` of `limit`, of which all peers have `taken`, and has `wanted` then, leaves as much to
/// the others: so there is always something left for the next.
fn leaves_as_much(limit: u64, taken: u64, more: u64, wanted: u64) -> bool {
    limit.checked_sub(taken).and_then(|free| free.checked_sub(more)).is_some_and(|left| wanted <= left)
}

/// PDCs closed a while ago: late copies of their packets must not open them again.
#[derive(Default)]
#[repr(C)]
pub(super) struct ClosedPdcs {
    by_origin: Map<Origin, Vec<Closed>>,
    /// When each is forgotten, in order.
    order: VecDeque<(Time, Origin)>,
}

/// The PSNs that a closed PDC used.
#[derive(Clone, Copy)]
struct Closed {
    start: Psn,
    end: Psn,
    until: Time,
}

/// Closed PDCs of one PDCID that are remembered. Each took a round trip at least: no copy is so many
/// of them late, and a peer that opens and closes all the time costs no more than this.
const REMEMBERED: usize = 64;

impl ClosedPdcs {
    /// Whether `psn` was used by a PDC of `origin` that is closed and remembered.
    pub(super) fn is_late(&self, origin: Origin, psn: Psn) -> bool {
        let used = |closed: &Closed| !psn.is_before(closed.start) && psn.is_before(closed.end);
        self.by_origin.get(&origin).is_some_and(|all| all.iter().any(used))
    }

    /// Remembers a PDC of `origin` that used the PSNs from the first of `used` to before the second. Returns
    /// whether it is the only one remembered.
    fn remember(&mut self, origin: Origin, (start, end): (Psn, Psn), until: Time) -> bool {
        let former = self.by_origin.entry(origin).or_insert_with(|| Vec::with_capacity(1));
        if former.len() == REMEMBERED {
            former.remove(0);
        }
        former.push(Closed { start, end, until });
        let is_first = self.order.is_empty();
        self.order.push_back((until, origin));
        is_first
    }

    /// Forgets those whose time has passed, calling `forgotten` with the peer of each. Returns when the next is due.
    fn forget(&mut self, now: Time, mut forgotten: impl FnMut(Addr)) -> Option<Time> {
        while let Some(&(until, origin)) = self.order.front() {
            if now.is_before(until) {
                return Some(until);
            }
            self.order.pop_front();
            forgotten(origin.0);
            if let Some(all) = self.by_origin.get_mut(&origin) {
                all.retain(|closed| now.is_before(closed.until));
                if all.is_empty() {
                    self.by_origin.remove(&origin);
                }
            }
        }
        None
    }

    fn heap_bytes(&self) -> u64 {
        heap::of_map(&self.by_origin)
            + self.by_origin.values().map(heap::of_vec).sum::<u64>()
            + heap::of_deque(&self.order)
    }
}
