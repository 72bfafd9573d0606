//! A connection: one PDC for sending, and its queue of messages.

use std::collections::VecDeque;

use weft_cc::{Span, Time};

use super::Failure;
use super::gaps::Gaps;
use super::timers::TimerKey;
use super::turns::Turns;
use super::wheel::Wheel;
use crate::pdc::{TxPdc, TxState, backed_off};
use crate::ses::SendMessage;
use crate::spray::Entropy;
use crate::table::{Key, Table};
use crate::wire::class::Priority;
use crate::wire::pds::{DeliveryMode, NackCode, Psn};

/// A connection's state in the send scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Has nothing to send, or is held back by its own window or the target.
    Idle,
    /// In the scheduler's queue.
    Ready,
    /// The same, in an endpoint with several processes, and has not had a turn since it was idle.
    New,
    /// In its context's queue of connections that wait for the gate.
    Blocked,
    /// Has been without an answer for too long, and sends nothing. Its timer, which is due, gives it up unless its peer is heard
    /// before. If it was trying the gate of its context, it still is.
    Overdue,
    /// Sends nothing until its owner releases it.
    Held,
}

/// A number of bytes in units of 64, at most 4 MiB: a connection has no room for more in the cache lines of each packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unasked(u16);

impl Unasked {
    pub(super) const NONE: Unasked = Unasked(0);

    pub(super) fn plus(self, bytes: u32) -> Unasked {
        Unasked(self.0.saturating_add(u16::try_from(bytes.div_ceil(64)).unwrap_or(u16::MAX)))
    }

    pub(super) fn bytes(self) -> u64 {
        u64::from(self.0) * 64
    }
}

// In the order of use: the fields that every packet needs come first and take four cache lines of the slot.
#[repr(C)]
pub(super) struct Connection {
    pub(super) context: Key,
    pub(super) standing: Standing,
    /// The one entropy of all packets that a ROD PDC has in flight.
    pub(super) fixed_entropy: Option<Entropy>,
    /// The peer's process that receives the messages.
    pub(super) process: u16,
    /// The process of this endpoint that sends them.
    pub(super) source: u16,
    /// The number of the next message of which a packet is cut.
    pub(super) next_msg_id: u16,
    /// Whether it had no work when its last message was posted, or its close was asked for, or its abort was done, and has not
    /// tried to send since.
    pub(super) rested: bool,
    /// The priority of its packets.
    pub(super) priority: Priority,
    /// What has left since a packet last asked for an acknowledgement, while the connection shared its context.
    pub(super) unasked: Unasked,
    /// Set while the target is busy: one packet is sent as often as its back-off says.
    pub(super) pause: Option<Box<Busy>>,
    /// The earliest wake-up that the timing wheel holds for this connection.
    pub(super) timer: Option<Time>,
    /// When a packet of the connection last arrived, or it got work after having had none, or was patient and asked its target
    /// to close. Nothing else moves it.
    pub(super) progress_at: Time,
    /// Messages not completely cut into packets, in order, with gaps in the places of those that were taken back, except at
    /// either end.
    pub(super) queue: VecDeque<Key>,
    /// Its part of [`Context::backlog`](super::context::Context): bytes of messages in the queue that have not left.
    pub(super) backlog: u64,
    pub(super) pdc: TxPdc,
    /// When to look for packets that probes should ask about.
    pub(super) probe_at: Option<Time>,
    /// Why the target, or a switch, last refused a packet since one arrived.
    pub(super) refused: Option<NackCode>,
    /// Whether probes have been answered since a packet last arrived.
    pub(super) probed: bool,
    /// Whether the target asked for the connection to be closed.
    pub(super) closed_by_peer: bool,
    /// Whether a target that answers and takes nothing is waited for without end.
    pub(super) patient: bool,
    /// Whether messages are still to be cancelled because it was aborted.
    pub(super) aborting: bool,
    /// Whether its timer was due in a call of [`Fep::on_timeout`](super::Fep::on_timeout) that had too many to handle.
    pub(super) late: bool,
    /// The CLEAR_PSN of the last CLEAR_CMD, so that it is not repeated with every acknowledgement.
    pub(super) cleared: Option<Psn>,
    /// When to look whether to ask for credit again, while the connection waits for it.
    pub(super) ask_at: Option<Time>,
    /// Number of times that it has looked since it last had credit.
    pub(super) looks: u32,
    /// The job of the process that sends, if processes of this endpoint belong to jobs.
    pub(super) job: u32,
    /// The gaps of the queue.
    pub(super) gaps: Gaps,
}

/// While the target answers, a connection asks for credit at each of its first `FIRST_LOOKS` looks, and then at one in
/// `LOOKS_TO_ASK`.
const FIRST_LOOKS: u32 = 3;
const LOOKS_TO_ASK: u32 = 4;

/// A pause because the target refuses packets for lack of a resource. It is polled with one packet at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Busy {
    pub(super) code: NackCode,
    pub(super) since: Time,
    /// When the target last refused a packet of a PDC that it knows.
    pub(super) refused_at: Time,
    /// When the next packet may leave.
    pub(super) until: Time,
    /// Number of polls.
    pub(super) count: u32,
    /// Whether the last poll has not been refused.
    pub(super) polled: bool,
}

impl Busy {
    /// A packet leaves to see whether the target is still busy. The next one may follow after `interval`.
    pub(super) fn poll(&mut self, now: Time, interval: Span) {
        self.count += 1;
        self.polled = true;
        self.until = now + interval;
    }
}

impl Connection {
    /// How long to wait for credit before looking whether to ask again: as long as before a packet is sent again.
    pub(super) fn look_wait(&self, rto_init: Span) -> Span {
        backed_off(rto_init, u8::try_from(self.looks).unwrap_or(u8::MAX))
    }

    /// Whether to ask for credit again although the target answers. It knows what this end wants then, and announces credit by
    /// itself; further requests only make up for packets that were lost, and take room on the link that the connection waits for.
    /// So they leave 1, 3, 7, 15, 31, 47 … initial timeouts after credit was used up.
    pub(super) fn asks_again(&self) -> bool {
        self.looks < FIRST_LOOKS || self.looks.is_multiple_of(LOOKS_TO_ASK)
    }

    pub(super) fn new(pdc: TxPdc, context: Key, now: Time) -> Connection {
        Connection {
            pdc,
            context,
            queue: VecDeque::new(),
            backlog: 0,
            standing: Standing::Idle,
            fixed_entropy: None,
            process: 0,
            source: 0,
            next_msg_id: 0,
            timer: None,
            pause: None,
            progress_at: now,
            rested: true,
            priority: Priority::LOWEST,
            unasked: Unasked::NONE,
            refused: None,
            probed: false,
            probe_at: None,
            ask_at: None,
            looks: 0,
            gaps: Gaps::default(),
            cleared: None,
            closed_by_peer: false,
            patient: false,
            aborting: false,
            late: false,
            job: 0,
        }
    }

    /// Takes message `key` of `sends` out of the queue, where it has `place`. The time that this takes does not depend on
    /// how many wait. Returns whether it was there.
    pub(super) fn withdraw(&mut self, sends: &mut Table<SendMessage>, key: Key, place: u32) -> bool {
        let was_there = self.gaps.withdraw(&mut self.queue, sends, key, place);
        // A connection from which no packet has left has no timer.
        crate::heap::give_back(&mut self.queue);
        was_there
    }

    /// The first message of the queue leaves it.
    #[inline]
    pub(super) fn pop_message(&mut self) {
        self.gaps.pop_front(&mut self.queue);
    }

    /// Whether a packet could be sent if nothing held the connection back.
    pub(super) fn has_work(&self) -> bool {
        self.pdc.has_lost() || !self.queue.is_empty() || self.wants_close()
    }

    /// Whether anything waits to be sent, or for the target.
    pub(super) fn is_waiting(&self) -> bool {
        self.has_work() || !self.pdc.is_settled()
    }

    /// It has something to send. If it has just got that, its time without progress begins. Otherwise it has waited for
    /// its turn: the progress of its context until `progress_at` counts as its own.
    pub(super) fn take_turn(&mut self, now: Time, progress_at: Time) {
        self.progress_at = if self.rested { now } else { self.progress_at.latest(progress_at) };
        self.rested = false;
    }

    /// A packet has arrived that had not arrived before.
    #[inline]
    pub(super) fn on_progress(&mut self, now: Time) {
        self.progress_at = now;
        self.refused = None;
        self.probed = false;
        // Packets that left before the pause say nothing about it.
        self.pause.take_if(|busy| busy.polled);
    }

    /// Whether CLOSE_CMD is due: no message is left and all packets are acknowledged.
    pub(super) fn wants_close(&self) -> bool {
        self.pdc.state == TxState::Draining && self.queue.is_empty() && self.pdc.is_idle() && !self.aborting
    }

    /// The result to report when the connection has closed normally.
    pub(super) fn close_result(&self) -> Result<(), Failure> {
        match self.closed_by_peer {
            true => Err(Failure::ClosedByPeer { pdc: self.pdc.id, peer: self.pdc.peer }),
            false => Ok(()),
        }
    }

    /// Starts closing at the target's request, unless there is something to send. Returns whether it has started.
    pub(super) fn close_at_peers_request(&mut self) -> bool {
        let closes = self.pdc.state == TxState::Open && self.queue.is_empty() && self.pdc.is_idle();
        if closes {
            self.pdc.state = TxState::Draining;
            self.closed_by_peer = true;
            self.rested = true;
        }
        closes
    }

    /// Whether a request will leave as soon as the window has room: nothing else holds the connection back.
    pub(super) fn sends_soon(&self) -> bool {
        let has_data = self.pdc.has_lost() || !self.queue.is_empty() && self.pdc.may_send_new();
        has_data && self.pause.is_none()
    }

    /// Ends [`Standing::Held`]. Returns whether the connection was held.
    pub(super) fn release(&mut self) -> bool {
        let held = self.standing == Standing::Held;
        if held {
            self.standing = Standing::Idle;
        }
        held
    }

    /// Puts the connection into the scheduler's queue if it has something to send. `key` is its own key.
    #[inline]
    pub(super) fn make_ready(&mut self, ready: &mut Turns, key: Key) {
        if self.standing == Standing::Idle && self.has_work() {
            self.standing = if ready.is_divided() { Standing::New } else { Standing::Ready };
            ready.push_back(key, self.source);
        }
    }

    /// As [`Connection::make_ready`], for a connection that has had its turn at the gate, so that it does not wait for one now.
    #[inline]
    pub(super) fn stay_ready(&mut self, ready: &mut Turns, key: Key) {
        if self.has_work() {
            self.standing = Standing::Ready;
            ready.push_back(key, self.source);
        }
    }

    /// Schedules a wake-up of the connection at `at` at the latest. `key` is its own key.
    #[inline]
    pub(super) fn wake(&mut self, wheel: &mut Wheel<TimerKey>, key: Key, at: Time) {
        if self.timer.is_none_or(|timer| at.is_before(timer)) {
            self.timer = Some(at);
            wheel.insert(at, TimerKey::Connection(key));
        }
    }

    #[inline]
    pub(super) fn is_paused(&self, now: Time) -> bool {
        self.pause.as_ref().is_some_and(|busy| now.is_before(busy.until))
    }

    /// Whether a busy target is polled with a new packet this time: every second poll is, while there are new ones.
    /// The target may have a receive for a message that it has not seen yet.
    #[cold]
    pub(super) fn polls_with_new_data(&self) -> bool {
        let is_turn = self.pause.as_ref().is_some_and(|busy| busy.count % 2 == 1);
        is_turn && self.pdc.mode == DeliveryMode::Rud && !self.queue.is_empty() && self.pdc.may_send_new()
    }

    /// Gives back the memory that many messages, or many packets in flight, have needed and fewer do not.
    pub(super) fn give_back(&mut self) {
        self.pdc.give_back();
        crate::heap::give_back(&mut self.queue);
    }

    /// Bytes of heap allocated.
    pub(super) fn heap_bytes(&self) -> u64 {
        let pause = self.pause.as_deref().map_or(0, |busy| size_of_val(busy) as u64);
        self.pdc.heap_bytes() + crate::heap::of_deque(&self.queue) + pause
    }
}
