//! A connection: one PDC for sending, and its queue of messages.

use std::collections::VecDeque;

use weft_cc::Time;

use super::Failure;
use super::timers::TimerKey;
use super::wheel::Wheel;
use crate::pdc::{TxPdc, TxState};
use crate::spray::Entropy;
use crate::table::Key;
use crate::wire::pds::{NackCode, Psn};

/// A connection's state in the send scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Has nothing to send, or is held back by its own window or the target.
    Idle,
    /// In the scheduler's queue.
    Ready,
    /// In its context's queue of connections that wait for the gate.
    Blocked,
    /// Sends nothing until its owner releases it.
    Held,
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
    /// Set while the target is busy: no packet is sent before the pause ends.
    pub(super) pause: Option<Box<Busy>>,
    /// The earliest wake-up that the timing wheel holds for this connection.
    pub(super) timer: Option<Time>,
    /// When a packet of the connection last arrived, or it last began to send.
    pub(super) progress_at: Time,
    /// Messages not completely cut into packets, in order.
    pub(super) queue: VecDeque<Key>,
    pub(super) pdc: TxPdc,
    /// When to send the next probe for losses.
    pub(super) probe_at: Option<Time>,
    /// Number of probes since the last acknowledgement.
    pub(super) unanswered_probes: u8,
    /// Whether the target asked for the connection to be closed.
    pub(super) closed_by_peer: bool,
    pub(super) next_msg_id: u16,
    /// The CLEAR_PSN of the last CLEAR_CMD, so that it is not repeated with every acknowledgement.
    pub(super) cleared: Option<Psn>,
    /// Set while the connection waits for credit.
    pub(super) credit_wait: Option<CreditWait>,
}

/// The wait of a connection that has something to send and no credit.
#[derive(Clone, Copy, Debug)]
pub(super) struct CreditWait {
    pub(super) since: Time,
    /// When to ask for credit again.
    pub(super) ask_at: Time,
}

/// A pause because the target refuses packets for lack of a resource.
#[derive(Clone, Copy, Debug)]
pub(super) struct Busy {
    pub(super) code: NackCode,
    pub(super) since: Time,
    pub(super) until: Time,
    pub(super) count: u32,
}

impl Connection {
    pub(super) fn new(pdc: TxPdc, context: Key, now: Time) -> Connection {
        Connection {
            pdc,
            context,
            queue: VecDeque::new(),
            standing: Standing::Idle,
            fixed_entropy: None,
            process: 0,
            next_msg_id: 0,
            timer: None,
            pause: None,
            progress_at: now,
            probe_at: None,
            unanswered_probes: 0,
            credit_wait: None,
            cleared: None,
            closed_by_peer: false,
        }
    }

    /// Whether a packet could be sent if nothing held the connection back.
    pub(super) fn has_work(&self) -> bool {
        self.pdc.has_lost() || !self.queue.is_empty() || self.wants_close()
    }

    /// Whether CLOSE_CMD is due: no message is left and all packets are acknowledged.
    pub(super) fn wants_close(&self) -> bool {
        self.pdc.state == TxState::Draining && self.queue.is_empty() && self.pdc.is_idle()
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
        }
        closes
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
    pub(super) fn make_ready(&mut self, ready: &mut VecDeque<Key>, key: Key) {
        if self.standing == Standing::Idle && self.has_work() {
            self.standing = Standing::Ready;
            ready.push_back(key);
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

    /// Bytes of heap allocated.
    pub(super) fn heap_bytes(&self) -> u64 {
        let pause = self.pause.as_deref().map_or(0, |busy| size_of_val(busy) as u64);
        self.pdc.heap_bytes() + crate::heap::of_deque(&self.queue) + pause
    }
}
