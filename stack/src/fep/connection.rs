//! A connection: one PDC for sending and the messages that wait for it.

use std::collections::VecDeque;

use weft_cc::Time;

use super::Failure;
use super::timers::TimerKey;
use super::wheel::Wheel;
use crate::pdc::{TxPdc, TxState};
use crate::spray::Entropy;
use crate::table::Key;
use crate::wire::pds::{NackCode, Psn};

/// Where a connection stands with the send scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Nothing to send, or held back by its own window or the target.
    Idle,
    /// In the scheduler's queue.
    Ready,
    /// In its context's queue of those that wait for the gate.
    Blocked,
    /// Nothing of it leaves until its owner releases it.
    Held,
}

// In the order of use: what every packet needs comes first and takes four cache lines of its slot.
#[repr(C)]
pub(super) struct Connection {
    pub(super) context: Key,
    pub(super) standing: Standing,
    /// The one entropy of all that a ROD PDC has in flight.
    pub(super) fixed_entropy: Option<Entropy>,
    /// The peer's process that its messages are for.
    pub(super) process: u16,
    /// Nothing leaves before this: the target was busy.
    pub(super) pause: Option<Box<Busy>>,
    /// The earliest wake-up that the wheel holds for this connection.
    pub(super) timer: Option<Time>,
    /// When something of it last arrived, or it last began to send.
    pub(super) progress_at: Time,
    /// Messages not completely cut into packets, in order.
    pub(super) queue: VecDeque<Key>,
    pub(super) pdc: TxPdc,
    /// When to probe for losses.
    pub(super) probe_at: Option<Time>,
    /// Probes since the last acknowledgement.
    pub(super) unanswered_probes: u8,
    /// Whether the target asked for it to be closed.
    pub(super) closed_by_peer: bool,
    pub(super) next_msg_id: u16,
    /// The CLEAR_PSN of the last CLEAR_CMD, so that the same is not said with every acknowledgement.
    pub(super) cleared: Option<Psn>,
    /// Set while it waits for credit.
    pub(super) credit_wait: Option<CreditWait>,
}

/// Something waits to be sent and there is no credit.
#[derive(Clone, Copy, Debug)]
pub(super) struct CreditWait {
    pub(super) since: Time,
    /// When to ask for it again.
    pub(super) ask_at: Time,
}

/// The target refuses for lack of something.
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

    /// Whether anything could leave if nothing held it back.
    pub(super) fn has_work(&self) -> bool {
        self.pdc.has_lost() || !self.queue.is_empty() || self.wants_close()
    }

    /// Whether CLOSE_CMD is due: no message is left and everything is acknowledged.
    pub(super) fn wants_close(&self) -> bool {
        self.pdc.state == TxState::Draining && self.queue.is_empty() && self.pdc.is_idle()
    }

    /// The result to report when it is closed in good order.
    pub(super) fn close_result(&self) -> Result<(), Failure> {
        match self.closed_by_peer {
            true => Err(Failure::ClosedByPeer { pdc: self.pdc.id, peer: self.pdc.peer }),
            false => Ok(()),
        }
    }

    /// Begins to close because the target wants it so, unless there is something to send. Whether it has begun.
    pub(super) fn close_at_peers_request(&mut self) -> bool {
        let closes = self.pdc.state == TxState::Open && self.queue.is_empty() && self.pdc.is_idle();
        if closes {
            self.pdc.state = TxState::Draining;
            self.closed_by_peer = true;
        }
        closes
    }

    /// Lets go what [`Standing::Held`] keeps back. Whether anything did.
    pub(super) fn release(&mut self) -> bool {
        let held = self.standing == Standing::Held;
        if held {
            self.standing = Standing::Idle;
        }
        held
    }

    /// Puts it into the scheduler's queue if it has something to send. `key` is its own.
    #[inline]
    pub(super) fn make_ready(&mut self, ready: &mut VecDeque<Key>, key: Key) {
        if self.standing == Standing::Idle && self.has_work() {
            self.standing = Standing::Ready;
            ready.push_back(key);
        }
    }

    /// Makes sure that it is looked at by `at`. `key` is its own.
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

    /// Bytes of heap held.
    pub(super) fn heap_bytes(&self) -> u64 {
        let pause = self.pause.as_deref().map_or(0, |busy| size_of_val(busy) as u64);
        self.pdc.heap_bytes() + crate::heap::of_deque(&self.queue) + pause
    }
}
