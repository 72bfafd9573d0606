//! State that both halves of an endpoint share: its address, its timers, and the queues of packets and results
//! that leave it.

use std::collections::VecDeque;
use std::sync::Arc;

use weft_cc::{Span, Time};

use super::abort::Aborts;
use super::acquaintance::Acquaintances;
use super::control_queue::ControlQueue;
use super::owed::Owed;
use super::reply::Replies;
use super::timers::TimerKey;
use super::turns::Turns;
use super::wheel::Wheel;
use super::zone::{Zone, ZoneId};
use super::{Completion, FepConfig, ReceiveError};
use crate::buffer::Buffer;
use crate::event::{Event, Events};
use crate::heap;
use crate::packet::{Addr, Class, Network, Packet};
use crate::region::{Region, RegionBytes};
use crate::rng::Rng;
use crate::ses::Delivery;
use crate::spray::Entropy;
use crate::wire::class::Priority;
use crate::wire::pds::{Control, Nack, Pds};
use crate::wire::ses::Ses;

/// The state that the [`Initiator`](super::initiator::Initiator) and the [`Target`](super::target::Target) share.
// In order of use.
#[repr(C)]
pub(super) struct Core {
    pub(super) config: Arc<FepConfig>,
    pub(super) addr: Addr,
    /// With so many completions, and packets that are sent again for a refusal, a burst should end.
    pub(super) burst_ends_at: u32,
    /// Whether the application got memory back while packets that refer to it may still be under way.
    pub(super) abandoned: bool,
    /// Whether the last packet that waited for its turn was a response with data: the next is one of a connection.
    pub(super) replied: bool,
    /// Whether further packets follow that were read together with the last one.
    pub(super) in_burst: bool,
    /// Whether datagrams wait for the port, or one has just been handed to it.
    pub(super) has_datagrams: bool,
    /// Whether a process belongs to a job.
    pub(super) has_jobs: bool,
    /// How long the packet at hand has waited at this host, for acknowledgements to report; zero if nobody measured it.
    pub(super) waited: Span,
    /// Acknowledgements, NACKs and control packets that wait for the port.
    pub(super) control: ControlQueue,
    pub(super) events: Events,
    /// Timers that expire now; empty between calls, kept for its memory.
    pub(super) due: Vec<TimerKey>,
    pub(super) wheel: Wheel<TimerKey>,
    pub(super) completions: VecDeque<Completion>,
    /// Responses with data that wait for the port.
    pub(super) replies: Replies,
    /// Acknowledgements that wait for the end of the burst.
    pub(super) owed: Owed,
    pub(super) rng: Rng,
    /// What is known of peers, if the endpoint watches them.
    pub(super) acquaintances: Option<Box<Acquaintances>>,
    /// How much of what has arrived early may be taken in this turn, now that what was missing is there.
    pub(super) early: EarlyShare,
    /// Connections that are being aborted, and have messages that are still to be cancelled.
    pub(super) aborts: Aborts,
    /// The memory that the application got back.
    abandoned_memory: Option<Box<Abandoned>>,
    /// Connections whose timers were due, and more than a call handles. Processes take turns.
    pub(super) late: Turns,
}

/// The budget of a turn of the worker's loop for messages and packets that arrived early and can be taken now. A peer can send a window
/// of them ahead on each of its PDCs, and then the missing packets of all these PDCs in one burst.
#[derive(Clone, Copy, Debug)]
pub(super) struct EarlyShare {
    /// The turn: all its packets have this time.
    now: Time,
    /// What is left, in bytes that are touched.
    left: u64,
}

impl EarlyShare {
    /// Bytes that the packets of a turn may touch, and a call for what was put off. The last message or packet may exceed
    /// them.
    pub(super) const OF_A_TURN: u64 = 256 << 10;
    /// Bytes that a message or packet counts for, besides those that are copied.
    pub(super) const EACH: u64 = 2 << 10;

    /// A full share, at the beginning of a turn.
    pub(super) fn new(now: Time) -> EarlyShare {
        EarlyShare { now, left: EarlyShare::OF_A_TURN }
    }

    /// Half a share, at the beginning of a call that takes what was put off.
    pub(super) fn first_half(now: Time) -> EarlyShare {
        EarlyShare { now, left: EarlyShare::OF_A_TURN / 2 }
    }

    /// The other half is there, too.
    pub(super) fn add_half(&mut self) {
        self.left += EarlyShare::OF_A_TURN / 2;
    }

    /// Whether another message or packet may be taken at `now`.
    pub(super) fn is_left(&mut self, now: Time) -> bool {
        if self.now != now {
            *self = EarlyShare::new(now);
        }
        self.left > 0
    }

    /// One is taken, and `bytes` are copied.
    pub(super) fn take(&mut self, bytes: u64) {
        #[cfg(test)]
        crate::steps::count(1);
        self.left = self.left.saturating_sub(EarlyShare::EACH + bytes);
    }
}

/// Memory that applications got back while packets that refer to it may still be under way.
#[derive(Debug, Default)]
pub(crate) struct Abandoned {
    /// The regions that it lies in, unless there are more than a few.
    regions: Vec<Region>,
    /// It may lie anywhere.
    is_anywhere: bool,
}

impl Abandoned {
    /// Regions that are told apart. The messages of an application lie in one, or in a few.
    const REGIONS: usize = 64;

    fn add(&mut self, region: &Region) {
        if self.is_anywhere || self.regions.contains(region) {
            return;
        }
        self.regions.push(region.clone());
        if self.regions.len() > Self::REGIONS {
            *self = Abandoned { regions: Vec::new(), is_anywhere: true };
        }
    }

    /// Whether there is no such memory that a packet could refer to.
    pub(crate) fn is_nothing(&self) -> bool {
        self.regions.is_empty() && !self.is_anywhere
    }

    /// Whether it may include `bytes`.
    pub(crate) fn includes(&self, bytes: RegionBytes<'_>) -> bool {
        self.is_anywhere || self.regions.iter().any(|region| region.place_of(bytes).is_some())
    }
}

impl Core {
    /// The application gets `buffer` back, and packets that refer to it may still be under way.
    #[cold]
    pub(super) fn abandon(&mut self, buffer: &Buffer) {
        self.abandoned = true;
        // No packet refers to buffers of other kinds, which are copied, nor to no bytes at all.
        if let Buffer::Region(slice) = buffer
            && !slice.is_empty()
        {
            self.abandoned_memory.get_or_insert_default().add(slice.region());
        }
    }

    /// As [`Core::abandon`], for memory that may lie anywhere.
    #[cold]
    pub(super) fn abandon_any(&mut self) {
        self.abandoned = true;
        self.abandoned_memory.get_or_insert_default().is_anywhere = true;
    }

    /// See [`Fep::take_abandoned`](super::Fep::take_abandoned).
    #[inline]
    pub(super) fn take_abandoned(&mut self) -> Option<Abandoned> {
        std::mem::take(&mut self.abandoned).then(|| *self.abandoned_memory.take().unwrap_or_default())
    }

    pub(super) fn new(addr: Addr, config: Arc<FepConfig>, rng: Rng, now: Time) -> Core {
        Core {
            config,
            addr,
            abandoned: false,
            abandoned_memory: None,
            replied: false,
            in_burst: false,
            burst_ends_at: 0,
            has_datagrams: false,
            has_jobs: false,
            waited: Span::ZERO,
            control: ControlQueue::default(),
            events: Events::default(),
            due: Vec::new(),
            late: Turns::default(),
            wheel: Wheel::new(now),
            completions: VecDeque::new(),
            replies: Replies::default(),
            owed: Owed::default(),
            rng,
            acquaintances: None,
            early: EarlyShare::new(now),
            aborts: Aborts::default(),
        }
    }

    /// The zone `id`.
    #[inline]
    pub(super) fn zone(&self, id: ZoneId) -> &Zone {
        self.config.zones.get(id)
    }

    /// The zone that `peer` is in.
    pub(super) fn zone_of(&self, peer: Addr) -> ZoneId {
        self.config.zones.map.zone_of(self.addr, peer)
    }

    /// Counts a packet that means nothing here.
    #[cold]
    pub(super) fn ignore(&mut self, now: Time, packet: &Packet, why: &'static str) {
        self.events.emit(now, Event::Ignored { peer: packet.net.src, why });
    }

    /// The network header of a packet from here, of the lowest priority.
    #[inline]
    pub(super) fn network(&self, dst: Addr, entropy: Entropy, class: Class) -> Network {
        let priority = Priority::LOWEST;
        Network { src: self.addr, dst, entropy, class, priority, ecn: false, hops: 0 }
    }

    /// Queues a packet for the control class. When the queue has no room for its peer the packet is dropped, as a
    /// switch might have done: acknowledgements are cumulative and everything else is repeated.
    #[inline]
    pub(super) fn push_control(&mut self, now: Time, packet: Packet) {
        let peer = packet.net.dst;
        if !self.control.push(packet, self.config.limits.control_queue) {
            self.drop_control(now, peer);
        }
    }

    #[cold]
    fn drop_control(&mut self, now: Time, peer: Addr) {
        self.events.emit(now, Event::ControlDropped { peer });
    }

    /// Queues a control packet.
    pub(super) fn send_control(&mut self, now: Time, peer: Addr, entropy: Entropy, control: Control) {
        self.note_control(now, peer, &control);
        let net = self.network(peer, entropy, Class::Control);
        self.push_control(now, control_packet(net, control));
    }

    /// Counts a control packet that leaves.
    pub(super) fn note_control(&mut self, now: Time, peer: Addr, control: &Control) {
        self.events.emit(now, Event::ControlSent { peer, pdc: control.spdcid, kind: control.kind });
    }

    /// Queues a NACK that answers `packet`, on the path of that packet.
    pub(super) fn send_nack(&mut self, now: Time, packet: &Packet, nack: Nack) {
        let nack = Nack { ecn: packet.net.ecn, ..nack };
        let (peer, pdc) = (packet.net.src, nack.spdcid);
        self.events.emit(now, Event::NackSent { peer, pdc, psn: nack.psn, code: nack.code });
        let net = self.network(packet.net.src, packet.net.entropy, Class::Control);
        self.push_control(now, Packet { net, payload_len: 0, pds: Pds::Nack(nack), ses: Ses::None });
    }

    /// Completes a receive.
    #[inline]
    pub(super) fn complete_receive(&mut self, delivery: Delivery) {
        // One call for each result: to make the result first and then move it is a store-forwarding stall
        // (see `crate::prefetch`).
        if delivery.complete && !delivery.is_truncated() {
            self.completions.push_back(received(delivery, Ok(())));
        } else {
            self.complete_in_part(delivery);
        }
    }

    #[cold]
    #[inline(never)]
    fn complete_in_part(&mut self, delivery: Delivery) {
        let error = match delivery.complete {
            true => ReceiveError::Truncated { len: delivery.len, room: delivery.buffer.len() },
            false => ReceiveError::PeerLost,
        };
        self.completions.push_back(received(delivery, Err(error)));
    }

    /// Bytes of heap held by its queues, without those of the wheel.
    pub(super) fn queue_bytes(&self) -> u64 {
        self.control.heap_bytes()
            + heap::of_vec(&self.due)
            + self.late.heap_bytes()
            + heap::of_deque(&self.completions)
            + self.replies.heap_bytes()
            + self.acquaintances.as_ref().map_or(0, |known| known.heap_bytes())
            + self.owed.heap_bytes()
            + self.aborts.heap_bytes()
    }
}

/// The completion of the receive that `delivery` is for.
#[inline(always)]
fn received(delivery: Delivery, result: Result<(), ReceiveError>) -> Completion {
    let Delivery { id, context, source, tag, header_data, len, buffer, more, .. } = delivery;
    let source = Some(source);
    Completion::Received { id, context, source, tag, header_data, len, buffer, more, result }
}

pub(super) fn control_packet(net: Network, control: Control) -> Packet {
    Packet { net, payload_len: 0, pds: Pds::Control(control), ses: Ses::None }
}
