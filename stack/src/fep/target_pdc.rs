//! One PDC that a peer has opened here.

use std::collections::VecDeque;

use weft_cc::{Span, Time};

use super::acquaintance::Proof;
use super::config::Limits;
use super::core::Core;
use super::credit::Joined;
use super::owed::OwedAck;
use super::peer_usage::PeerUsage;
use super::process::Processes;
use super::refused::Refused;
use super::reply::Reply;
use super::target_pdcs::{HalfOpen, note_proven};
use crate::event::Event;
use crate::heap;
use crate::packet::{Addr, Class, Network, Packet, Payload};
use crate::pdc::{Answer, PdcConfig, RxPdc, Trigger};
use crate::ses::Order;
use crate::spray::Entropy;
use crate::wire::pds::{
    Ack, AckCc, AckRequest, AckTrigger, CcState, Control, ControlKind, DelayEcho, DeliveryMode, Destination,
    Nack, NextHeader, NsccState, PdcId, Pds, Psn, Request, VendorFlags,
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
    pub(super) proof: Proof,
    /// Whether it is over, and ends in later calls: it has many unfinished messages, or much to copy.
    pub(super) is_over: bool,
    /// Whether early messages or packets whose turn has come have been put off.
    pub(super) has_put_off: bool,
    /// The place that its messages have reached in their order.
    pub(super) order: Order,
    /// Messages whose rest is refused; `None` if there never were any.
    pub(super) refused: Option<Box<Refused>>,
    /// The initiator's congestion context, once a request has told, and the PDC's place there.
    pub(super) joined: Option<Joined>,
    /// ROD packets that arrived early, in order of PSNs.
    pub(super) early: VecDeque<Early>,
    /// When the initiator was last asked.
    pub(super) asked_at: Option<Time>,
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
            is_over: false,
            has_put_off: false,
            asked_at: None,
            order: Order::new(config.mp_range),
            refused: None,
            joined: None,
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

    /// The initiator is there, even if nothing comes of its packet; or, if the PDC is half-open, somebody in its name. An initiator
    /// that was asked when it opened the PDC keeps it by its answer alone.
    #[inline]
    pub(super) fn heard(&mut self, now: Time) {
        match self.proof {
            Proof::Given => (self.rx.last_heard, self.asked) = (now, 0),
            Proof::None => self.rx.last_heard = now,
            Proof::Asked => {}
        }
    }

    #[inline]
    pub(super) fn is_half_open(&self) -> bool {
        self.proof != Proof::Given
    }

    /// How many messages, writes and early packets go with it.
    pub(super) fn unfinished(&self, processes: &Processes) -> usize {
        let writes = processes.memory.as_ref().map_or(0, |memory| memory.writes.of(self.rx.id));
        self.order.unfinished() + self.early.len() + writes as usize
    }

    /// It is over, and ends in later calls. It accepts nothing from now on. False if that is known already.
    #[cold]
    pub(super) fn put_off_end(&mut self) -> bool {
        self.order.close();
        !std::mem::replace(&mut self.is_over, true)
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

    /// Refuses the rest of the message that packet `psn` belongs to. Without room those that were refused before the next
    /// packet are forgotten first.
    #[cold]
    pub(super) fn refuse_rest(&mut self, msg_id: u16, psn: Psn, is_room: bool) {
        let mp_range = self.rx.mp_range();
        let refused = self.refused.get_or_insert_with(|| Box::new(Refused::new(mp_range)));
        refused.add(msg_id, psn, self.rx.expected(), is_room);
    }

    /// Whether room is needed to refuse the rest of a further message.
    pub(super) fn refuses_more_than_few(&self) -> bool {
        self.refused.as_deref().is_some_and(Refused::is_more_than_few)
    }

    /// Bytes that the messages count for of which it refuses the rest.
    pub(super) fn refused_cost(&self) -> u64 {
        self.refused.as_deref().map_or(0, Refused::cost)
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

    /// Asks with the acknowledgement of the packet that has just opened the PDC, which is in the queue of control packets at place
    /// `first` or behind it. False if there is none that can ask: it would have to be for the packet at CACK, as an initiator knows
    /// the question by that. One that has found the queue full is not there; what is before that place answers other packets, maybe
    /// those of a PDC that had the same PDCID.
    #[cold]
    pub(super) fn ask_with_last_ack(&mut self, core: &mut Core, now: Time, first: usize) -> bool {
        if core.control.len() <= first {
            return false;
        }
        let Some(Packet { net, pds: Pds::Ack(ack), .. }) = core.control.last_mut() else { return false };
        let is_own = (net.dst, ack.spdcid) == (self.rx.peer, self.rx.id);
        if !is_own || ack.trigger != AckTrigger::Psn(0) || ack.request != AckRequest::None {
            return false;
        }
        (ack.retx, ack.request) = (true, AckRequest::Clear);
        self.note_asked(now);
        true
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

    /// Whether it is the turn of message `msg_id`, which packet `psn` begins.
    #[inline(always)]
    pub(super) fn is_turn(&self, msg_id: u16, psn: Psn) -> bool {
        self.order.is_turn(msg_id, psn, self.rx.expected())
    }

    /// Whether the turn of a kept ROD packet has come.
    #[inline]
    pub(super) fn has_early(&self) -> bool {
        // Few PDCs are ROD: packets of the others do not touch the queue.
        self.rx.mode == DeliveryMode::Rod
            && self.early.front().is_some_and(|early| early.psn == self.rx.expected())
    }

    /// If the turn of early messages or packets has come, and that is not known yet: they have been put off, and the PDC is the one
    /// with this PDCID.
    #[inline(always)]
    pub(super) fn puts_off_early(&mut self) -> Option<PdcId> {
        let is_due = self.order.has_due(self.rx.expected()) || self.has_early();
        (is_due && !std::mem::replace(&mut self.has_put_off, true)).then_some(self.rx.id)
    }

    /// What has been put off is taken now.
    pub(super) fn takes_put_off(&mut self) {
        self.has_put_off = false;
    }

    /// The kept ROD packet whose turn has come, if there is one.
    pub(super) fn next_early(&mut self, usage: &mut PeerUsage) -> Option<Early> {
        let early = if self.has_early() { self.early.pop_front()? } else { return None };
        heap::give_back(&mut self.early);
        usage.change(early.packet.net.src, |used| used.early_bytes -= early.cost());
        Some(early)
    }

    /// Bytes of heap held.
    pub(super) fn heap_bytes(&self) -> u64 {
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
    pub(super) fn cost(&self) -> u64 {
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
